#include "sign_binding.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/registry.h"
#include "core/error.h"
#include "sign/sign_on.h"
#include "sign/ties.h"
#include "tensor_reader.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace lowtide::python {
namespace {

sign::BitOrder order_from(const std::string& name) {
  if (name == "little") return sign::BitOrder::kLittle;
  if (name == "big") return sign::BitOrder::kBig;
  fail(ErrorKind::kInvalidArgument, "got bitorder='%s', wanted 'little' or 'big'", name.c_str());
}

// Python has checked the memory and keeps it alive. Address 0: no memory.
std::span<std::byte> span_of(uintptr_t address, size_t bytes) { return {reinterpret_cast<std::byte*>(address), bytes}; }

// Computes signs on the CPU backend that the process shares, or on one device.
class PySigner {
 public:
  PySigner(const std::string& backend, uintptr_t stream, const std::string& target) {
    if (backend == "cpu") {
      backend_ = &sign::host_backend();
      return;
    }
    own_ = open_backend(backend, target, reinterpret_cast<void*>(stream));
    backend_ = own_.get();
  }

  void pack(uintptr_t values, const std::string& dtype, int64_t count, uintptr_t bits, size_t bits_bytes,
            const std::string& order, int threads, uintptr_t stream) {
    const sign::Options options{order_from(order), threads};
    const DType type = dtype_named(dtype);
    const nb::gil_scoped_release nogil;
    sign::pack_on(*backend_, reinterpret_cast<void*>(stream), type, reinterpret_cast<const void*>(values), count,
                  span_of(bits, bits_bytes), options);
  }

  void unpack(uintptr_t bits, size_t bits_bytes, uintptr_t values, const std::string& dtype, int64_t count,
              uintptr_t zeros, size_t zeros_bytes, const std::string& order, int threads, uintptr_t stream) {
    const sign::Options options{order_from(order), threads};
    const DType type = dtype_named(dtype);
    const nb::gil_scoped_release nogil;
    sign::unpack_on(*backend_, reinterpret_cast<void*>(stream), span_of(bits, bits_bytes), type,
                    reinterpret_cast<void*>(values), count, span_of(zeros, zeros_bytes), options);
  }

  void majority(const std::vector<uintptr_t>& ballots, int64_t count,
                const std::optional<std::vector<uint32_t>>& weights, const std::string& ties, uint64_t seed,
                uint64_t step, uint64_t offset, uintptr_t previous, uintptr_t result, size_t result_bytes,
                uintptr_t zeros, size_t zeros_bytes, const std::string& order, int threads, uintptr_t stream) {
    std::vector<const std::byte*> all;
    all.reserve(ballots.size());
    for (const uintptr_t ballot : ballots) all.push_back(reinterpret_cast<const std::byte*>(ballot));
    sign::Vote vote;
    vote.count = count;
    vote.ballots = all;
    if (weights) vote.weights = *weights;
    vote.ties = static_cast<sign::Ties>(find_tie_rule(ties));  // the same numbers
    vote.seed = seed;
    vote.step = step;
    vote.offset = offset;
    vote.previous = reinterpret_cast<const std::byte*>(previous);
    vote.options = {order_from(order), threads};
    const nb::gil_scoped_release nogil;
    sign::majority_on(*backend_, reinterpret_cast<void*>(stream), vote, span_of(result, result_bytes),
                      span_of(zeros, zeros_bytes));
  }

 private:
  std::unique_ptr<Backend> own_;
  Backend* backend_ = nullptr;
};

}  // namespace

void bind_sign(nb::module_& m) {
  nb::class_<PySigner>(m, "Signer")
      .def(nb::init<const std::string&, uintptr_t, const std::string&>(), "backend"_a = "cpu", "stream"_a = 0,
           "target"_a = "")
      .def("pack", &PySigner::pack, "values"_a, "dtype"_a, "count"_a, "bits"_a, "bits_bytes"_a, "order"_a, "threads"_a,
           "stream"_a = 0)
      .def("unpack", &PySigner::unpack, "bits"_a, "bits_bytes"_a, "values"_a, "dtype"_a, "count"_a, "zeros"_a,
           "zeros_bytes"_a, "order"_a, "threads"_a, "stream"_a = 0)
      .def("majority", &PySigner::majority, "ballots"_a, "count"_a, "weights"_a.none(), "ties"_a, "seed"_a, "step"_a,
           "offset"_a, "previous"_a, "result"_a, "result_bytes"_a, "zeros"_a, "zeros_bytes"_a, "order"_a, "threads"_a,
           "stream"_a = 0);
}

}  // namespace lowtide::python
