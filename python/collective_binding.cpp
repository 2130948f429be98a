#include "collective_binding.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "backend/catalog.h"
#include "backend/signs.h"
#include "lowtide/optimizer.h"
#include "lowtide/sign_accumulator.h"
#include "lowtide/sign_collective.h"
#include "sign/sign_on.h"
#include "tensor_reader.h"

namespace lowtide::python {
namespace {

using namespace nb::literals;

// Python passes addresses as ints, and keeps the memory alive for the call.
template <class T = std::byte>
T* at(uintptr_t address) {
  return reinterpret_cast<T*>(address);
}

// Gradients: address, number of elements, number of the first sign of each.
using Gradients = std::vector<std::tuple<uintptr_t, int64_t, int64_t>>;

std::vector<SignItem> items_of(const Gradients& gradients, const std::string& dtype, uintptr_t bits) {
  std::vector<SignItem> items;
  items.reserve(gradients.size());
  for (const auto& [address, count, first] : gradients) {
    SignItem item;
    item.dtype = dtype_named(dtype);
    item.first = first, item.count = count;
    item.values = at<void>(address);
    item.bits = at(bits);
    items.push_back(item);
  }
  return items;
}

// Returns whether a value was not finite.
bool pack_gradients(const Gradients& gradients, const std::string& dtype, uintptr_t bits, uintptr_t presence,
                    bool zero_is_plus, int threads) {
  std::vector<SignItem> items = items_of(gradients, dtype, bits);
  uint32_t nonfinite = 0;
  for (SignItem& item : items)
    item.presence = at(presence), item.zero_is_plus = zero_is_plus, item.nonfinite = &nonfinite;
  const nb::gil_scoped_release released;
  sign::host_backend().pack_signs(items, threads, nullptr);
  return nonfinite != 0;
}

void unpack_gradients(const Gradients& gradients, const std::string& dtype, uintptr_t bits, uintptr_t presence,
                      uintptr_t zeros, uintptr_t scales, int threads) {
  std::vector<SignItem> items = items_of(gradients, dtype, bits);
  for (SignItem& item : items)
    item.presence = at(presence), item.zeros = at(zeros), item.scales = at<const uint16_t>(scales);
  const nb::gil_scoped_release released;
  sign::host_backend().unpack_signs(items, threads, nullptr);
}

// residuals: the addresses of codes and scales for each gradient (scales 0: the codec has none).
void feed_back(const Gradients& gradients, const std::string& dtype, float value_scale, const std::string& codec,
               const std::vector<std::pair<uintptr_t, uintptr_t>>& residuals, uintptr_t bits, uintptr_t scales,
               int threads) {
  if (residuals.size() != gradients.size()) refuse_value("got other numbers of residuals and gradients");
  std::vector<FeedbackItem> items;
  items.reserve(gradients.size());
  for (size_t i = 0; i < gradients.size(); ++i) {
    const auto& [address, count, first] = gradients[i];
    FeedbackItem item;
    item.first = first, item.count = count;
    item.dtype = dtype_named(dtype);
    item.values = at<void>(address);
    item.value_scale = value_scale;
    item.codec = find_codec(codec);
    item.codes = at<void>(residuals[i].first);
    item.scales = at<float>(residuals[i].second);
    item.bits = at(bits);
    item.bit_scales = at<uint16_t>(scales);
    items.push_back(item);
  }
  const nb::gil_scoped_release released;
  sign::host_backend().feedback(items, threads, nullptr);
}

// Encodes a signed state of one row from floats, or decodes it.
void convert_residual(bool encode, uintptr_t values, uintptr_t codes, uintptr_t scales, int64_t count,
                      const std::string& codec) {
  CodecItem item;
  item.codec = find_codec(codec);
  item.rows = count > 0, item.row_length = count;
  item.codes = at<void>(codes), item.scales = at<float>(scales), item.values = at<float>(values);
  const nb::gil_scoped_release released;
  encode ? sign::host_backend().encode(item, nullptr) : sign::host_backend().decode(item, nullptr);
}

CallbackTransport::Call call_of(nb::object function) {
  // The function lives in C++ objects, which know no GIL: each call takes it, and so does dropping the last reference.
  auto held = std::shared_ptr<nb::object>(new nb::object(std::move(function)), [](nb::object* object) {
    const nb::gil_scoped_acquire gil;
    delete object;
  });
  return [held](const std::byte* send, std::byte* receive, int64_t bytes) {
    const nb::gil_scoped_acquire gil;
    (*held)(reinterpret_cast<uintptr_t>(send), reinterpret_cast<uintptr_t>(receive), bytes);
  };
}

SignAlgorithm algorithm_from(const std::string& name) {
  if (name == "auto") return SignAlgorithm::kAuto;
  if (name == "one_phase") return SignAlgorithm::kOnePhase;
  if (name == "two_phase") return SignAlgorithm::kTwoPhase;
  refuse_value("got algorithm '" + name + "', wanted 'auto', 'one_phase' or 'two_phase'");
}

nb::dict outcome_dict(const SignOutcome& outcome, int size) {
  nb::dict out, rejected, seconds;
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

class PyCollective {
 public:
  PyCollective(int rank, int size, nb::object all_to_all, nb::object all_gather, const std::string& ties, uint64_t seed,
               const std::string& algorithm, uint32_t weight, int threads, bool commit)
      : size_(size),
        core_(std::make_shared<CallbackTransport>(rank, size, call_of(std::move(all_to_all)),
                                                  call_of(std::move(all_gather))),
              options(ties, seed, algorithm, weight, threads, commit)) {}

  // ready: is called when all ranks have agreed to go on, and returns whether this one can.
  nb::dict vote(int64_t count, uint64_t step, uint64_t digest, bool nonfinite, bool failed, const nb::object& ready,
                uintptr_t bits, uintptr_t presence, uintptr_t zeros, uintptr_t previous) {
    SignBallot ballot = ballot_of(count, step, digest, nonfinite, failed, ready, bits);
    ballot.presence = at(presence);
    ballot.previous = at(previous);
    SignResult result;
    result.bits = at(bits), result.presence = at(presence), result.zeros = at(zeros);
    SignOutcome outcome;
    {
      const nb::gil_scoped_release released;
      outcome = core_.vote(ballot, result);
    }
    return outcome_dict(outcome, size_);
  }

  nb::dict mean(int64_t count, uint64_t step, uint64_t digest, bool nonfinite, bool failed, const nb::object& ready,
                uintptr_t bits, uintptr_t scales, SignResidual& residual) {
    SignBallot ballot = ballot_of(count, step, digest, nonfinite, failed, ready, bits);
    ballot.scales = at<const uint16_t>(scales);
    SignResult result;
    result.bits = at(bits), result.scales = at<uint16_t>(scales);
    SignOutcome outcome;
    {
      const nb::gil_scoped_release released;
      outcome = core_.mean(ballot, result, residual);
    }
    return outcome_dict(outcome, size_);
  }

 private:
  static SignCollectiveOptions options(const std::string& ties, uint64_t seed, const std::string& algorithm,
                                       uint32_t weight, int threads, bool commit) {
    SignCollectiveOptions options;
    options.ties = ties;
    options.seed = seed;
    options.algorithm = algorithm_from(algorithm);
    options.weight = weight;
    options.threads = threads;
    options.commit = commit;
    return options;
  }

  static SignBallot ballot_of(int64_t count, uint64_t step, uint64_t digest, bool nonfinite, bool failed,
                              const nb::object& ready, uintptr_t bits) {
    SignBallot ballot;
    ballot.count = count;
    ballot.bits = at(bits);
    ballot.step = step, ballot.digest = digest;
    ballot.nonfinite = nonfinite, ballot.failed = failed;
    ballot.prepare = [&ready] {
      const nb::gil_scoped_acquire gil;
      return nb::cast<bool>(ready());
    };
    return ballot;
  }

  int size_;
  SignCollective core_;
};

}  // namespace

void bind_collective(nb::module_& m) {
  m.attr("SIGN_ALIGNMENT") = kSignAlignment;
  m.attr("SIGN_BLOCK") = kSignBlock;
  m.attr("FEEDBACK_BLOCK") = kFeedbackSigns;
  m.attr("STATE_BLOCK") = kBlockElements;
  m.def("pack_gradients", &pack_gradients);
  m.def("unpack_gradients", &unpack_gradients);
  m.def("feed_back", &feed_back);
  m.def("convert_residual", &convert_residual);
  m.def("codec_bytes", [](const std::string& codec) {
    check_residual_codec(find_codec(codec));
    const auto& of = codec_info(find_codec(codec));
    return std::pair(of.format[1].code_bits / 8, of.scaled);
  });
  nb::class_<SignAccumulator>(m, "SignAccumulator")
      .def(nb::init<int64_t, int, int>(), "count"_a, "most"_a, "threads"_a)
      .def("add",
           [](SignAccumulator& of, uintptr_t values, const std::string& dtype) {
             const DType type = dtype_named(dtype);
             const nb::gil_scoped_release released;
             return of.add(at<const void>(values), type);
           })
      .def("mean", [](const SignAccumulator& of, uintptr_t out) { of.mean(at<float>(out)); })
      .def("added", &SignAccumulator::added)
      .def("bytes", &SignAccumulator::bytes)
      .def("reset", &SignAccumulator::reset);
  nb::class_<SignResidual>(m, "SignResidual")
      .def(nb::init<int64_t, int, int, const std::string&>(), "count"_a, "rank"_a, "size"_a, "state"_a)
      .def("first", &SignResidual::first)
      .def("count", &SignResidual::count)
      .def("bytes", &SignResidual::bytes)
      .def("allocated_bytes", &SignResidual::allocated_bytes)
      .def("read", [](const SignResidual& of, uintptr_t out) { of.read(at(out)); })
      .def("replace", [](SignResidual& of, uintptr_t in) { of.replace(at(in)); })
      .def("read_values", [](const SignResidual& of, uintptr_t out) { of.read_values(at<float>(out)); })
      .def("replace_values", [](SignResidual& of, uintptr_t in) { of.replace_values(at<const float>(in)); });
  nb::class_<PyCollective>(m, "SignCollective")
      .def(nb::init<int, int, nb::object, nb::object, const std::string&, uint64_t, const std::string&, uint32_t, int,
                    bool>(),
           "rank"_a, "size"_a, "all_to_all"_a, "all_gather"_a, nb::kw_only(), "ties"_a, "seed"_a, "algorithm"_a,
           "weight"_a, "threads"_a, "commit"_a = true)
      .def("vote", &PyCollective::vote)
      .def("mean", &PyCollective::mean);
}

}  // namespace lowtide::python
