// Signs at one place, the CPU or a device: to bits and back, majorities, means and counts of them.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "arguments.h"
#include "backend/catalog.h"
#include "backend/registry.h"
#include "backend/signs.h"
#include "core/error.h"
#include "sign/sign_counts.h"
#include "sign/sign_memory.h"
#include "sign/sign_on.h"
#include "tensor_reader.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace lowtide::python {
namespace {

using sign::SignMemory;

sign::BitOrder order_from(const std::string& name) {
  if (name == "little") return sign::BitOrder::kLittle;
  if (name == "big") return sign::BitOrder::kBig;
  fail(ErrorKind::kInvalidArgument, "got bitorder='%s', wanted 'little' or 'big'", name.c_str());
}

std::span<std::byte> span_of(std::byte* address, size_t bytes) { return {address, bytes}; }

// Computes signs on the CPU backend that the process shares, or on one device. A device's is for one thread at a time.
class PySigner {
 public:
  // As open_backend() takes them.
  PySigner(const std::string& backend, Address stream, const std::string& target)
      : backend_(backend == "cpu" ? sign::shared_host_backend() : open_backend(backend, target, stream)) {}

  Backend& backend() const { return *backend_; }
  std::shared_ptr<Backend> share() const { return backend_; }

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

 private:
  std::shared_ptr<Backend> backend_;
};

void pack_sign_bits(Address values, const std::string& dtype, int64_t count, Address bits, size_t bits_bytes,
                    const std::string& order, int threads) {
  sign::pack_sign_bits(dtype_named(dtype), values, count, span_of(bits, bits_bytes), {order_from(order), threads});
}

// For each gradient its address, the number of elements (contiguous, at the place) and the number of its first sign, a
// multiple of SIGN_ALIGNMENT.
using Gradients = std::vector<std::tuple<Address, int64_t, int64_t>>;

// Returns a copy of `item` for each gradient.
std::vector<SignItem> items_of(const Gradients& gradients, const std::string& dtype, SignItem item) {
  std::vector<SignItem> items;
  item.dtype = dtype_named(dtype);
  for (const auto& [address, count, first] : gradients) {
    item.values = address, item.count = count, item.first = first;
    items.push_back(item);
  }
  return items;
}

void pack_gradients(const PySigner& place, const Gradients& gradients, const std::string& dtype, Address bits,
                    Address presence, Address nonfinite, bool zero_is_plus, int threads, Address stream) {
  const SignItem item{.bits = bits, .presence = presence, .zero_is_plus = zero_is_plus, .nonfinite = nonfinite};
  place.backend().pack_signs(items_of(gradients, dtype, item), threads, stream);
}

void unpack_gradients(const PySigner& place, const Gradients& gradients, const std::string& dtype, Address bits,
                      Address presence, Address zeros, Address scales, int threads, Address stream) {
  const SignItem item{.bits = bits, .zeros = zeros, .presence = presence, .scales = scales};
  place.backend().unpack_signs(items_of(gradients, dtype, item), threads, stream);
}

void feed_back(const PySigner& place, const Gradients& gradients, const std::string& dtype, float value_scale,
               const std::string& codec, const std::vector<std::pair<Address, Address>>& residuals, Address bits,
               Address scales, int threads, Address stream) {
  if (residuals.size() != gradients.size()) refuse_value("got other numbers of residuals and gradients");
  std::vector<FeedbackItem> items;
  FeedbackItem item;
  item.dtype = dtype_named(dtype), item.value_scale = value_scale;
  item.codec = find_codec(codec);
  item.bits = bits, item.bit_scales = scales;
  for (size_t i = 0; i < gradients.size(); ++i) {
    std::tie(item.values, item.count, item.first) = gradients[i];
    std::tie(item.codes, item.scales) = residuals[i];
    items.push_back(item);
  }
  place.backend().feedback(items, threads, stream);
}

std::vector<const std::byte*> rows_of(const std::vector<Address>& addresses) {
  return {addresses.begin(), addresses.end()};
}

void vote_ballots(const PySigner& place, int64_t count, const std::vector<Address>& ballots,
                  const std::vector<Address>& presence, const std::vector<uint32_t>& weights, const std::string& ties,
                  uint64_t seed, uint64_t step, uint64_t first_index, Address previous, Address result, Address zeros,
                  Address result_presence, Address stream) {
  const std::vector<const std::byte*> rows = rows_of(ballots), presences = rows_of(presence);
  VoteItem item;
  item.count = count;
  item.ballots = rows, item.presence = presences, item.weights = weights;
  item.ties = find_tie_rule(ties);
  item.seed = seed, item.step = step, item.first_index = first_index;
  item.previous = previous, item.result = result, item.zeros = zeros, item.result_presence = result_presence;
  place.backend().vote_signs(item, 1, stream);
}

void average_ballots(const PySigner& place, int64_t count, const std::vector<Address>& ballots,
                     const std::vector<Address>& scales, const std::vector<uint32_t>& weights, const std::string& codec,
                     const std::pair<Address, Address>& residual, Address result, Address result_scales,
                     Address stream) {
  const std::vector<const std::byte*> rows = rows_of(ballots);
  const std::vector<const uint16_t*> of_rows(scales.begin(), scales.end());
  FeedbackItem item;
  item.count = count;
  item.ballots = rows, item.ballot_scales = of_rows, item.weights = weights;
  item.codec = find_codec(codec);
  item.codes = residual.first, item.scales = residual.second;
  item.bits = result, item.bit_scales = result_scales;
  place.backend().feedback({&item, 1}, 1, stream);
}

void bind_counts(nb::module_& m) {
  using sign::CountRoom, sign::SignCounts;
  nb::class_<CountRoom>(m, "CountRoom", "What additions to `SignCounts` of up to `count` values need beside these.")
      .def(
          "__init__",
          [](CountRoom* made, const PySigner& place, int64_t count, int most) {
            new (made) CountRoom(place.share(), count, most);
          },
          "place"_a, "count"_a, "most"_a)
      .def(
          "take_nonfinite", [](CountRoom& of, Address on) { return of.take_nonfinite(on); }, "stream"_a, kReleased,
          "Whether a value was not finite since it was last asked; waits for the additions.");
  nb::class_<SignCounts>(m, "SignCounts",
                         "Counts of signs in bit planes, where the values are: see sign/sign_counts.h.")
      .def(
          "__init__",
          [](SignCounts* made, const PySigner& place, int64_t count, int most) {
            new (made) SignCounts(place.share(), count, most);
          },
          "place"_a, "count"_a, "most"_a)
      .def(
          "add",
          [](SignCounts& of, Address values, const std::string& dtype, CountRoom& room, int threads, Address on) {
            of.add(values, dtype_named(dtype), room, threads, on);
          },
          "values"_a, "dtype"_a, "room"_a, "threads"_a, "stream"_a, kReleased)
      .def(
          "read", [](SignCounts& of, Address out, int threads, Address on) { of.read(out, threads, on); }, "out"_a,
          "threads"_a, "stream"_a, kReleased, "The number of + of each value, as float32.")
      .def(
          "clear", [](SignCounts& of, Address on) { of.clear(on); }, "stream"_a, kReleased)
      .def("added", &SignCounts::added)
      .def("bytes", &SignCounts::bytes);
  m.def("means_of", &sign::means_of, "added"_a, "The mean of `added` signs for each number of +, rounded to float32.");
}

}  // namespace

void bind_sign(nb::module_& m) {
  m.def("pack_sign_bits", &pack_sign_bits, "values"_a, "dtype"_a, "count"_a, "bits"_a, "bits_bytes"_a, "order"_a,
        "threads"_a, kReleased, "As Signer.pack on the CPU, with a 1 where the sign bit is clear, whatever the value.");
  nb::class_<PySigner>(m, "Signer", R"(Where signs are computed: the CPU, or the device of a queue.

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
  nb::class_<SignMemory>(m, "SignMemory",
                         R"(The same bytes on the device of a signer, zero at first, and on the host, from
when these are asked for; on the CPU, once. It keeps the device, and waits for what uses the memory when it goes.)")
      .def(
          "__init__",
          [](SignMemory* made, const PySigner& place, int64_t bytes, Address there) {
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
  bind_counts(m);
  m.attr("SIGN_ALIGNMENT") = kSignAlignment;
  m.attr("SIGN_BLOCK") = kSignBlock;
  m.attr("FEEDBACK_BLOCK") = kFeedbackSigns;
  m.def(
      "pack_gradients", &pack_gradients, "place"_a, "gradients"_a, "dtype"_a, "bits"_a, "presence"_a, "nonfinite"_a,
      "zero_is_plus"_a, "threads"_a, "stream"_a, kReleased,
      R"(Signs into `bits` and, unless 0, blocks that are not all zeros into `presence`. The uint32 `nonfinite` becomes 1 if a
value is not finite.)");
  m.def(
      "unpack_gradients", &unpack_gradients, "place"_a, "gradients"_a, "dtype"_a, "bits"_a, "presence"_a, "zeros"_a,
      "scales"_a, "threads"_a, "stream"_a, kReleased,
      R"(Writes +1 and -1, times bfloat16 `scales` (one for FEEDBACK_BLOCK signs) unless 0; and 0 where `zeros` has a 1 or
`presence` a 0.)");
  m.def(
      "feed_back", &feed_back, "place"_a, "gradients"_a, "dtype"_a, "value_scale"_a, "codec"_a, "residuals"_a, "bits"_a,
      "scales"_a, "threads"_a, "stream"_a, kReleased,
      R"(Gradients times `value_scale`, plus their residuals (codes and, unless 0, scales of `codec`), as bits and scales;
residuals become what these leave out.)");
  m.def("vote_ballots", &vote_ballots, "place"_a, "count"_a, "ballots"_a, "presence"_a, "weights"_a, "ties"_a, "seed"_a,
        "step"_a, "first_index"_a, "previous"_a, "result"_a, "zeros"_a, "result_presence"_a, "stream"_a, kReleased,
        "The majority of ballots with presence, 0 where theirs is: see `lowtide::VoteItem`.");
  m.def(
      "average_ballots", &average_ballots, "place"_a, "count"_a, "ballots"_a, "scales"_a, "weights"_a, "codec"_a,
      "residual"_a, "result"_a, "result_scales"_a, "stream"_a, kReleased,
      R"(The mean of ballots times scales, plus the residual (codes and, unless 0, scales of `codec`), as bits and scales; the
residual becomes what these leave out.)");
}

}  // namespace lowtide::python
