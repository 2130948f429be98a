#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <string>
#include <vector>

#include "arguments.h"
#include "backend/registry.h"
#include "core/error.h"
#include "sign/sign_memory.h"
#include "sign/sign_on.h"
#include "sign/ties.h"
#include "signer.h"
#include "tensor_reader.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace lowtide::python {

SignPlace::SignPlace(const std::string& backend, void* stream, const std::string& target)
    : backend_(backend == "cpu" ? sign::shared_host_backend() : open_backend(backend, target, stream)) {}

namespace {

using sign::SignMemory;

sign::BitOrder order_from(const std::string& name) {
  if (name == "little") return sign::BitOrder::kLittle;
  if (name == "big") return sign::BitOrder::kBig;
  fail(ErrorKind::kInvalidArgument, "got bitorder='%s', wanted 'little' or 'big'", name.c_str());
}

std::span<std::byte> span_of(std::byte* address, size_t bytes) { return {address, bytes}; }

// Computes signs at one place.
class PySigner : public SignPlace {
 public:
  PySigner(const std::string& backend, Address stream, const std::string& target)
      : SignPlace(backend, stream, target) {}

  void pack(Address values, const std::string& dtype, int64_t count, Address bits, size_t bits_bytes,
            const std::string& order, int threads, Address stream) {
    sign::pack_on(backend(), stream, dtype_named(dtype), values, count, span_of(bits, bits_bytes),
                  {order_from(order), threads});
  }

  void unpack(Address bits, size_t bits_bytes, Address values, const std::string& dtype, int64_t count, Address zeros,
              size_t zeros_bytes, const std::string& order, int threads, Address stream) {
    sign::unpack_on(backend(), stream, span_of(bits, bits_bytes), dtype_named(dtype), values, count,
                    span_of(zeros, zeros_bytes), {order_from(order), threads});
  }

  void majority(const std::vector<Address>& ballots, int64_t count, const std::optional<std::vector<uint32_t>>& weights,
                const std::string& ties, uint64_t seed, uint64_t step, uint64_t offset, Address previous,
                Address result, size_t result_bytes, Address zeros, size_t zeros_bytes, const std::string& order,
                int threads, Address stream) {
    const std::vector<const std::byte*> all(ballots.begin(), ballots.end());
    sign::Vote vote;
    vote.count = count;
    vote.ballots = all;
    if (weights) vote.weights = *weights;
    vote.ties = static_cast<sign::Ties>(find_tie_rule(ties));  // both enums have the same values
    vote.seed = seed;
    vote.step = step;
    vote.offset = offset;
    vote.previous = previous;
    vote.options = {order_from(order), threads};
    sign::majority_on(backend(), stream, vote, span_of(result, result_bytes), span_of(zeros, zeros_bytes));
  }

  void read(Address address, Address host, int64_t bytes, Address stream) {
    Device* const device = backend().device();
    if (!device) fail(ErrorKind::kInvalidArgument, "got the CPU's memory to read, wanted a device's");
    device->copy(stream, host, static_cast<const std::byte*>(address), bytes);
    device->host_wait(device->record(stream));
  }
};

void pack_sign_bits(Address values, const std::string& dtype, int64_t count, Address bits, size_t bits_bytes,
                    const std::string& order, int threads) {
  sign::pack_sign_bits(dtype_named(dtype), values, count, span_of(bits, bits_bytes), {order_from(order), threads});
}

}  // namespace

void bind_sign(nb::module_& m) {
  m.def("pack_sign_bits", &pack_sign_bits, "values"_a, "dtype"_a, "count"_a, "bits"_a, "bits_bytes"_a, "order"_a,
        "threads"_a, kReleased, "As Signer.pack on the CPU, with a 1 where the sign bit is clear, whatever the value.");
  nb::class_<SignPlace>(m, "SignPlace", "Where signs are computed: see `Signer`.");
  nb::class_<SignMemory>(m, "SignMemory",
                         R"(The same bytes on the device of a signer, zero at first, and on the host, from
when these are asked for; on the CPU, once. It keeps the device, and waits for what uses the memory when it goes.)")
      .def(
          "__init__",
          [](SignMemory* made, const SignPlace& place, int64_t bytes, Address there) {
            if (there.value)
              new (made) SignMemory(place.share(), static_cast<std::byte*>(there), bytes);
            else
              new (made) SignMemory(place.share(), bytes);
          },
          "place"_a, "bytes"_a, "there"_a = 0,
          "there: memory of the device that the caller keeps; 0: memory of its own.")
      .def("host", [](SignMemory& of) { return reinterpret_cast<uintptr_t>(of.host()); })
      .def("drop_host", &SignMemory::drop_host, kReleased)
      .def("there", [](const SignMemory& of) { return reinterpret_cast<uintptr_t>(of.there()); })
      .def(
          "clear", [](SignMemory& of, int64_t first, int64_t n, Address on) { of.clear(first, n, on); }, "first"_a,
          "bytes"_a, "stream"_a, kReleased, "Bytes of the device's become 0.")
      .def(
          "fetch", [](SignMemory& of, int64_t first, int64_t n, Address on) { of.fetch(first, n, on); }, "first"_a,
          "bytes"_a, "stream"_a, kReleased, "To the host; waits for them.")
      .def(
          "send", [](SignMemory& of, int64_t first, int64_t n, Address on) { of.send(first, n, on); }, "first"_a,
          "bytes"_a, "stream"_a, kReleased, "To the device. The next `fetch` waits for it.")
      .def(
          "copy", [](SignMemory& of, SignMemory& from, Address on) { of.copy(from, on); }, "other"_a, "stream"_a,
          kReleased, "Takes the bytes of another of the same place and size, on the device.")
      .def(
          "follow", [](SignMemory& of, Address on) { of.follow(on); }, "stream"_a, kReleased,
          "What is queued next comes behind what has used the device's memory, on whatever queue.")
      .def(
          "note_use", [](SignMemory& of, Address on) { of.note_use(on); }, "stream"_a, kReleased,
          "What is queued so far may use the device's memory.");
  nb::class_<PySigner, SignPlace>(m, "Signer", R"(Where signs are computed: the CPU, or the device of a queue.

Arrays are addresses with their bytes, contiguous and alive until the call returns (on a device: until what it queued is
done); 0: none. stream: the queue.)")
      .def(nb::init<const std::string&, Address, const std::string&>(), "backend"_a = "cpu", "stream"_a = 0,
           "target"_a = "")
      .def("pack", &PySigner::pack, "values"_a, "dtype"_a, "count"_a, "bits"_a, "bits_bytes"_a, "order"_a, "threads"_a,
           "stream"_a = 0, kReleased)
      .def("unpack", &PySigner::unpack, "bits"_a, "bits_bytes"_a, "values"_a, "dtype"_a, "count"_a, "zeros"_a,
           "zeros_bytes"_a, "order"_a, "threads"_a, "stream"_a = 0, kReleased)
      .def("majority", &PySigner::majority, "ballots"_a, "count"_a, "weights"_a.none(), "ties"_a, "seed"_a, "step"_a,
           "offset"_a, "previous"_a, "result"_a, "result_bytes"_a, "zeros"_a, "zeros_bytes"_a, "order"_a, "threads"_a,
           "stream"_a = 0, kReleased)
      .def("read", &PySigner::read, "address"_a, "host"_a, "bytes"_a, "stream"_a, kReleased,
           "Copies memory of the device to the host's, and waits for it.");
}

}  // namespace lowtide::python
