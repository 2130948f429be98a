#include <nanobind/ndarray.h>
#include <nanobind/stl/function.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "arguments.h"
#include "lowtide/optimizer.h"
#include "lowtide/sign_accumulator.h"
#include "lowtide/sign_collective.h"
#include "tensor_reader.h"

namespace lowtide::python {
namespace {

using namespace nb::literals;

// From addresses to send and to receive, and the bytes for each rank.
using Exchange = std::function<void(uintptr_t, uintptr_t, int64_t)>;

CallbackTransport::Call call_of(const Exchange& function) {
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

class PyCollective {
 public:
  PyCollective(int rank, int size, const Exchange& all_to_all, const Exchange& all_gather, const std::string& ties,
               uint64_t seed, const std::string& algorithm, uint32_t weight, int threads, bool commit)
      : size_(size),
        core_(std::make_shared<CallbackTransport>(rank, size, call_of(all_to_all), call_of(all_gather)),
              {.ties = ties,
               .seed = seed,
               .weight = weight,
               .algorithm = algorithm_from(algorithm),
               .threads = threads,
               .commit = commit}) {}

  FieldDict vote(int64_t count, uint64_t step, uint64_t digest, bool nonfinite, bool failed,
                 const std::function<bool()>& ready, Address bits, Address presence, Address scales, Address zeros,
                 Address previous, SignResidual* residual, uint64_t first_index) {
    SignBallot ballot;
    ballot.count = count, ballot.step = step, ballot.digest = digest;
    ballot.bits = bits, ballot.presence = presence, ballot.scales = scales, ballot.previous = previous;
    ballot.first_index = first_index;
    ballot.nonfinite = nonfinite, ballot.failed = failed;
    ballot.prepare = ready;
    const SignResult result{bits, presence, zeros, scales};
    const SignOutcome outcome =
        released([&] { return residual ? core_.mean(ballot, result, *residual) : core_.vote(ballot, result); });
    return outcome_dict(outcome, size_);
  }

 private:
  int size_;
  SignCollective core_;
};

}  // namespace

void bind_collective(nb::module_& m) {
  nb::class_<SignAccumulator>(m, "SignAccumulator", "See `lowtide::SignAccumulator`.")
      .def(nb::init<int64_t, int, int>(), "count"_a, "most"_a, "threads"_a)
      .def(
          "add",
          [](SignAccumulator& of, Address values, const std::string& dtype) {
            return of.add(values, dtype_named(dtype));
          },
          "values"_a, "dtype"_a, kReleased)
      .def("mean", [](const SignAccumulator& of, Address out) { of.mean(out); })
      .def("added", &SignAccumulator::added)
      .def("bytes", &SignAccumulator::bytes)
      .def("reset", &SignAccumulator::reset);
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
      .def(nb::init<int, int, const Exchange&, const Exchange&, const std::string&, uint64_t, const std::string&,
                    uint32_t, int, bool>(),
           "rank"_a, "size"_a, "all_to_all"_a, "all_gather"_a, nb::kw_only(), "ties"_a, "seed"_a, "algorithm"_a,
           "weight"_a, "threads"_a, "commit"_a = true)
      .def(
          "vote", &PyCollective::vote, "count"_a, "step"_a, "digest"_a, "nonfinite"_a, "failed"_a, "ready"_a, "bits"_a,
          "presence"_a, "scales"_a, "zeros"_a, "previous"_a, "residual"_a.none(), "first_index"_a,
          R"(bits, presence, scales: the ballot, and the result in its place. residual: None for a vote; else the mean of
sign times scale. ready: called when all workers have agreed to go on, before anything is read; whether this one can.
What it raises comes out here. ValueError where workers differ, ConnectionError where messages came damaged or one was
not `ready`; the same on all.)");
}

}  // namespace lowtide::python
