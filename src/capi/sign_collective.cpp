// The sign collective of the C interface.
#include <memory>
#include <vector>

#include "capi/guard.h"
#include "core/error.h"
#include "lowtide/lowtide_sign_collective.h"
#include "lowtide/sign_collective.h"

using lowtide::ErrorKind;
using lowtide::SignOutcome;
using lowtide::capi::guarded;
using lowtide::capi::on;
using lowtide::capi::require;
using lowtide::capi::struct_from;

struct lt_sign_collective {
  explicit lt_sign_collective(lowtide::SignCollective made) : collective(std::move(made)) {}

  lowtide::SignCollective collective;
  // These members own the memory to which outcomes and failures point.
  SignOutcome last;
  std::vector<lt_sign_rejected> rejected;
  std::vector<int> error_ranks;
};

struct lt_sign_residual {
  lowtide::SignResidual residual;
};

namespace {

std::shared_ptr<lowtide::Transport> transport_of(const lt_sign_transport* given) {
  const lt_sign_transport transport =
      struct_from(require(given, "transport"), lt_sign_transport LT_SIGN_TRANSPORT_INIT);
  const auto call = [context = transport.context](lt_sign_transfer transfer, const char* name) {
    lowtide::CallbackTransport::Call out;
    if (transfer)
      out = [=](const std::byte* send, std::byte* receive, int64_t bytes) {
        if (const int32_t code = transfer(context, send, receive, bytes))
          throw lowtide::TransportError(lowtide::format("%s of the caller's transport returned %d", name, code), {},
                                        code);
      };
    return out;
  };
  return std::make_shared<lowtide::CallbackTransport>(transport.rank, transport.size,
                                                      call(transport.all_to_all, "all_to_all"),
                                                      call(transport.all_gather, "all_gather"));
}

lowtide::SignCollectiveOptions options_of(const lt_sign_collective_options* given) {
  const auto options = struct_from(given, lt_sign_collective_options LT_SIGN_COLLECTIVE_OPTIONS_INIT);
  lowtide::SignCollectiveOptions out;
  LT_REQUIRE(options.weight >= 0 && options.weight < int64_t{1} << 31,
             "got a weight of %lld votes, wanted 0 to 2^31 - 1", lowtide::ll(options.weight));
  if (options.ties) out.ties = options.ties;
  out.seed = options.seed;
  out.algorithm = static_cast<lowtide::SignAlgorithm>(options.algorithm);
  out.commit = options.commit != 0;
  out.latency_s = options.latency_s, out.bytes_per_s = options.bytes_per_s;
  out.weight = static_cast<uint32_t>(options.weight);
  out.threads = options.threads;
  if (options.cpu_target) out.cpu_target = options.cpu_target;
  return out;
}

lowtide::SignBallot ballot_of(const lt_sign_ballot* given) {
  const auto ballot = struct_from(require(given, "ballot"), lt_sign_ballot LT_SIGN_BALLOT_INIT);
  LT_REQUIRE(ballot.dtype >= LT_F32 && ballot.dtype <= LT_F16, "got dtype=%d, wanted an lt_dtype", ballot.dtype);
  lowtide::SignBallot out;
  out.count = ballot.count;
  out.bits = static_cast<const std::byte*>(ballot.bits);
  out.presence = static_cast<const std::byte*>(ballot.presence);
  out.scales = ballot.scales;
  out.previous = static_cast<const std::byte*>(ballot.previous);
  out.dtype = static_cast<lowtide::DType>(ballot.dtype);
  out.step = ballot.step, out.digest = ballot.digest, out.first_index = ballot.first_index;
  out.weight = ballot.weight;
  out.nonfinite = ballot.nonfinite != 0, out.failed = ballot.failed != 0;
  LT_REQUIRE(ballot.part >= 0, "got part=%d, wanted the number of earlier parts", ballot.part);
  out.part = static_cast<uint32_t>(ballot.part);
  out.more = lowtide::capi::flag(ballot.more, "more");
  return out;
}

lowtide::SignResult result_of(const lt_sign_result* given) {
  const auto result = struct_from(require(given, "result"), lt_sign_result LT_SIGN_RESULT_INIT);
  return {static_cast<std::byte*>(result.bits), static_cast<std::byte*>(result.presence),
          static_cast<std::byte*>(result.zeros), result.scales};
}

void report(lt_sign_collective& from, lt_sign_outcome* out) {
  const SignOutcome& last = from.last;
  lt_sign_outcome all = LT_SIGN_OUTCOME_INIT;
  all.applied = last.applied, all.algorithm = static_cast<int32_t>(last.algorithm);
  all.nonfinite = last.nonfinite.data(), all.nonfinite_count = static_cast<int64_t>(last.nonfinite.size());
  all.failed = last.failed.data(), all.failed_count = static_cast<int64_t>(last.failed.size());
  all.rejected = from.rejected.data(), all.rejected_count = static_cast<int64_t>(from.rejected.size());
  all.payload_sent = last.payload_sent, all.payload_received = last.payload_received;
  all.control_sent = last.control_sent, all.control_received = last.control_received;
  all.announce_s = last.seconds.announce, all.ballots_s = last.seconds.ballots, all.vote_s = last.seconds.vote;
  all.results_s = last.seconds.results, all.confirm_s = last.seconds.confirm, all.measure_s = last.seconds.measure;
  lowtide::capi::copy_out(all, out);
}

// Makes a call of vote or mean (for a vote, `residual` is any pointer but nullptr). If this rank's structs are invalid,
// the rank takes part as failed, so that the other ranks learn of it, and then reports its error.
template <class Call>
lt_status run(lt_sign_collective* collective, const lt_sign_ballot* ballot, const lt_sign_result* result,
              lt_sign_outcome* outcome, const void* residual, Call&& call) {
  return on(collective, "collective", [&](lt_sign_collective& of) {
    of.last = {};
    of.rejected.clear();
    of.error_ranks.clear();
    lowtide::SignBallot given;
    lowtide::SignResult memory;
    std::exception_ptr own;
    try {
      if (outcome) lowtide::capi::check_struct_size(outcome->struct_size);
      require(residual, "residual");
      given = ballot_of(ballot);
      memory = result_of(result);
    } catch (const lowtide::Error&) {
      own = std::current_exception();
      given = {};
      given.failed = true;
    }
    try {
      of.last = call(of.collective, given, memory);
    } catch (const lowtide::CollectiveError& e) {
      of.error_ranks = e.ranks();
      throw;
    } catch (const lowtide::TransportError& e) {
      of.error_ranks = e.ranks();
      throw;
    }
    if (own) std::rethrow_exception(own);
    for (const lowtide::RejectedBallot& each : of.last.rejected)
      of.rejected.push_back({each.sender, each.owner, each.reason.c_str()});
    if (outcome) report(of, outcome);
  });
}

}  // namespace

extern "C" {

lt_status lt_sign_collective_create(const lt_sign_transport* transport, const lt_sign_transport* between,
                                    const lt_sign_collective_options* options, lt_sign_collective** out) {
  return guarded([&] {
    *require(out, "out") = nullptr;
    const auto with = options_of(options);
    const auto inside = transport_of(transport);
    *out = new lt_sign_collective(between ? lowtide::SignCollective(inside, transport_of(between), with)
                                          : lowtide::SignCollective(inside, with));
  });
}

void lt_sign_collective_destroy(lt_sign_collective* collective) { delete collective; }

lt_status lt_sign_vote(lt_sign_collective* collective, const lt_sign_ballot* ballot, const lt_sign_result* result,
                       lt_sign_outcome* outcome) {
  return run(collective, ballot, result, outcome, collective,
             [](auto& on, const auto& given, const auto& memory) { return on.vote(given, memory); });
}

lt_status lt_sign_mean(lt_sign_collective* collective, const lt_sign_ballot* ballot, const lt_sign_result* result,
                       lt_sign_residual* residual, lt_sign_outcome* outcome) {
  return run(
      collective, ballot, result, outcome, residual, [residual](auto& on, const auto& given, const auto& memory) {
        return residual ? on.mean(given, memory, residual->residual) : on.vote(given, memory);  // a failed rank's vote
      });
}

lt_status lt_sign_collective_error_ranks(const lt_sign_collective* collective, const int32_t** ranks, int64_t* count) {
  return on(collective, "collective", [&](const lt_sign_collective& of) {
    require(count, "count");
    *require(ranks, "ranks") = of.error_ranks.data();
    *count = static_cast<int64_t>(of.error_ranks.size());
  });
}

lt_status lt_sign_residual_create(int64_t count, int32_t rank, int32_t size, const char* state,
                                  lt_sign_residual** out) {
  return guarded([&] {
    *require(out, "out") = nullptr;
    *out = new lt_sign_residual{lowtide::SignResidual(count, rank, size, require(state, "state"))};
  });
}

void lt_sign_residual_destroy(lt_sign_residual* residual) { delete residual; }

lt_status lt_sign_residual_shape(const lt_sign_residual* residual, int64_t* first, int64_t* count, int64_t* bytes) {
  return on(residual, "residual", [&](const lt_sign_residual& of) {
    if (first) *first = of.residual.first();
    if (count) *count = of.residual.count();
    if (bytes) *bytes = of.residual.bytes();
  });
}

lt_status lt_sign_residual_read(const lt_sign_residual* residual, void* out) {
  return on(residual, "residual",
            [&](const lt_sign_residual& of) { of.residual.read(static_cast<std::byte*>(require(out, "out"))); });
}

lt_status lt_sign_residual_replace(lt_sign_residual* residual, const void* in) {
  return on(residual, "residual",
            [&](lt_sign_residual& of) { of.residual.replace(static_cast<const std::byte*>(require(in, "in"))); });
}

lt_status lt_sign_residual_read_values(const lt_sign_residual* residual, float* out) {
  return on(residual, "residual", [&](const lt_sign_residual& of) { of.residual.read_values(require(out, "out")); });
}

lt_status lt_sign_residual_replace_values(lt_sign_residual* residual, const float* in) {
  return on(residual, "residual", [&](lt_sign_residual& of) { of.residual.replace_values(require(in, "in")); });
}

}  // extern "C"
