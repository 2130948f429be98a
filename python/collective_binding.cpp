#include <nanobind/ndarray.h>
#include <nanobind/stl/function.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "arguments.h"
#include "backend/catalog.h"
#include "lowtide/optimizer.h"
#include "lowtide/sign_collective.h"
#include "sign/exchange.h"
#include "sign/shard_messages.h"
#include "tensor_reader.h"

namespace lowtide::python {
namespace {

using namespace nb::literals;

// From addresses to send and to receive, and the bytes for each rank.
using Transfer = std::function<void(uintptr_t, uintptr_t, int64_t)>;

CallbackTransport::Call transport_call(const Transfer& function) {
  return [function](const std::byte* send, std::byte* receive, int64_t bytes) {
    function(reinterpret_cast<uintptr_t>(send), reinterpret_cast<uintptr_t>(receive), bytes);
  };
}

SignAlgorithm algorithm_from(const std::string& name) {
  if (name == "auto") return SignAlgorithm::kAuto;
  if (name == "one_phase") return SignAlgorithm::kOnePhase;
  if (name == "two_phase") return SignAlgorithm::kTwoPhase;
  refuse_value("got algorithm '" + name + "', wanted 'auto', 'one_phase' or 'two_phase'");
}

FieldDict outcome_dict(const SignOutcome& outcome, int size) {
  FieldDict out;
  nb::dict rejected, seconds;
  for (const RejectedBallot& ballot : outcome.rejected) rejected[nb::int_(ballot.sender)] = ballot.reason;
  seconds["announce"] = outcome.seconds.announce;
  seconds["ballots"] = outcome.seconds.ballots;
  seconds["vote"] = outcome.seconds.vote;
  seconds["results"] = outcome.seconds.results;
  seconds["confirm"] = outcome.seconds.confirm;
  seconds["measure"] = outcome.seconds.measure;
  out["applied"] = outcome.applied;
  out["nonfinite_ranks"] = outcome.nonfinite;
  out["failed_ranks"] = outcome.failed;
  out["rejected"] = rejected;
  out["algorithm"] = size == 1 ? "none" : outcome.algorithm == SignAlgorithm::kOnePhase ? "one_phase" : "two_phase";
  out["sent_bytes"] = outcome.payload_sent + outcome.control_sent;
  out["seconds"] = seconds;
  return out;
}

// Run: every rank's votes -> a checksum of the result, and whether it is valid. Deliver: adopts the result.
using Run = std::function<std::pair<uint64_t, bool>(std::vector<uint32_t>)>;
using Deliver = std::function<void()>;

// The payload rounds, run by Python functions over tensors on a device.
class PyExchange final : public Exchange {
 public:
  PyExchange(int rank, const Run& run, const Deliver& deliver) : rank_(rank), run_(run), deliver_(deliver) {}

  void prepare() override {}  // Python did this before the call

  Found run(const Agreement& agreed) override {
    std::vector<uint32_t> votes;
    uint64_t sum = 0;
    for (size_t r = 0; r < agreed.of.size(); ++r) {
      votes.push_back(agreed.reasons[r] == wire::Reason::kFine ? agreed.weight(static_cast<int>(r)) : 0);
      sum += votes.back();
    }
    const auto [checksum, sound] = run_(std::move(votes));
    Found found;
    found.result = wire::checksum(&checksum, sizeof checksum, agreed.weights_checksum());
    if (!sound || !sum) {
      found.reason = sum ? wire::Reason::kBadScale : wire::Reason::kNoVotes;
      found.culprit = rank_;
    }
    return found;
  }

  void deliver() override { deliver_(); }

 private:
  int rank_;
  const Run& run_;
  const Deliver& deliver_;
};

class PyCollective {
 public:
  PyCollective(int rank, int size, const Transfer& all_to_all, const Transfer& all_gather, const std::string& ties,
               uint64_t seed, const std::string& algorithm, uint32_t weight, int threads, bool commit)
      : rank_(rank),
        size_(size),
        core_(std::make_shared<CallbackTransport>(rank, size, transport_call(all_to_all), transport_call(all_gather)),
              {.ties = ties,
               .seed = seed,
               .weight = weight,
               .algorithm = algorithm_from(algorithm),
               .threads = threads,
               .commit = commit}) {}

  FieldDict vote(int64_t count, uint64_t step, uint64_t digest, bool nonfinite, bool failed,
                 const std::function<bool()>& ready, Address bits, Address presence, Address scales, Address zeros,
                 Address previous, SignResidual* residual, uint64_t first_index, uint32_t part, bool more) {
    const Call call = call_of(count, step, digest, nonfinite, failed, ready, bits, presence, scales, zeros, previous,
                              first_index, part, more);
    const SignOutcome outcome = released([&] {
      return residual ? core_.mean(call.ballot, call.result, *residual) : core_.vote(call.ballot, call.result);
    });
    return outcome_dict(outcome, size_);
  }

  FieldDict vote_there(int64_t count, uint64_t step, uint64_t digest, bool nonfinite, bool failed,
                       const std::function<bool()>& ready, Address bits, Address presence, Address scales,
                       Address zeros, Address previous, const std::string& residual, uint64_t first_index,
                       uint32_t part, bool more, const Run& run, const Deliver& deliver) {
    const Call call = call_of(count, step, digest, nonfinite, failed, ready, bits, presence, scales, zeros, previous,
                              first_index, part, more);
    ResidualState state;
    if (!residual.empty()) state.codec = find_codec(residual);
    state.total = count, state.rank = rank_, state.size = size_;
    PyExchange exchange(rank_, run, deliver);
    const SignOutcome outcome = released([&] {
      return OwnExchange::call(core_, call.ballot, call.result, residual.empty() ? nullptr : &state, exchange);
    });
    return outcome_dict(outcome, size_);
  }

 private:
  struct Call {
    SignBallot ballot;
    SignResult result;
  };

  static Call call_of(int64_t count, uint64_t step, uint64_t digest, bool nonfinite, bool failed,
                      const std::function<bool()>& ready, Address bits, Address presence, Address scales, Address zeros,
                      Address previous, uint64_t first_index, uint32_t part, bool more) {
    SignBallot ballot;
    ballot.count = count, ballot.step = step, ballot.digest = digest;
    ballot.bits = bits, ballot.presence = presence, ballot.scales = scales, ballot.previous = previous;
    ballot.first_index = first_index;
    ballot.nonfinite = nonfinite, ballot.failed = failed;
    ballot.prepare = ready;
    ballot.part = part, ballot.more = more;
    return {ballot, {bits, presence, zeros, scales}};
  }

  int rank_, size_;
  SignCollective core_;
};

}  // namespace

void bind_collective(nb::module_& m) {
  m.def(
      "vote_shard",
      [](int64_t count, int rank, int size) {
        const int64_t each = shard_signs(count, size);
        return std::make_tuple(each, rank * each, signs_in_shard(count, rank * each, each));
      },
      "count"_a, "rank"_a, "size"_a,
      "Signs of each of `size` workers' shards of `count` signs, the first one of a rank's, and how many are in that.");
  nb::class_<SignResidual>(m, "SignResidual", "See `lowtide::SignResidual`.")
      .def(nb::init<int64_t, int, int, const std::string&>(), "count"_a, "rank"_a, "size"_a, "state"_a)
      .def("first", &SignResidual::first)
      .def("count", &SignResidual::count)
      .def("bytes", &SignResidual::bytes)
      .def("allocated_bytes", &SignResidual::allocated_bytes)
      .def("read", [](const SignResidual& of, Address out) { of.read(out); })
      .def("replace", [](SignResidual& of, Address in) { of.replace(in); })
      .def("read_values", [](const SignResidual& of, Address out) { of.read_values(out); })
      .def("replace_values", [](SignResidual& of, Address in) { of.replace_values(in); });
  nb::class_<PyCollective>(m, "SignCollective", R"(See `lowtide::SignCollective`.

all_to_all, all_gather: of addresses to send and to receive, and the bytes for each rank; what they raise comes out of
the call that made them. Calls return the fields of `lowtide.distributed.Outcome`.)")
      .def(nb::init<int, int, const Transfer&, const Transfer&, const std::string&, uint64_t, const std::string&,
                    uint32_t, int, bool>(),
           "rank"_a, "size"_a, "all_to_all"_a, "all_gather"_a, nb::kw_only(), "ties"_a, "seed"_a, "algorithm"_a,
           "weight"_a, "threads"_a, "commit"_a = true)
      .def(
          "vote", &PyCollective::vote, "count"_a, "step"_a, "digest"_a, "nonfinite"_a, "failed"_a, "ready"_a.none(),
          "bits"_a, "presence"_a, "scales"_a, "zeros"_a, "previous"_a, "residual"_a.none(), "first_index"_a, "part"_a,
          "more"_a,
          R"(bits, presence, scales: the ballot, and the result in its place. residual: None for a vote; else the mean of
sign times scale. ready: called when all workers have agreed to go on, before anything is read; whether this one can.
None: it can, and a vote like the last one takes a round less. What ready raises comes out here. part, more: of a vote in
parts, the parts before this one, and whether others follow, until which results are provisional. ValueError where
workers differ, ConnectionError where messages came damaged or one was
not `ready`; the same on all.)")
      .def(
          "vote_there", &PyCollective::vote_there, "count"_a, "step"_a, "digest"_a, "nonfinite"_a, "failed"_a,
          "ready"_a.none(), "bits"_a, "presence"_a, "scales"_a, "zeros"_a, "previous"_a, "residual"_a, "first_index"_a,
          "part"_a, "more"_a, "run"_a, "deliver"_a,
          R"(As `vote`, of bits in memory of a device, whose addresses say only what there is. run: moves ballots, votes on
them and moves the results, by everybody's number of votes (0: left out); gives a checksum of what this worker then
holds, and whether it is sound. What it raises is a transport's failure. deliver: called if all hold the same. residual: the
residuals' format, of a mean; else "".)");
}

}  // namespace lowtide::python
