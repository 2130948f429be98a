// Converts gradients at one place to bits and back; computes votes, means and counts of the bits there.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "arguments.h"
#include "backend/catalog.h"
#include "backend/signs.h"
#include "sign/sign_counts.h"
#include "sign/ties.h"
#include "signer.h"
#include "tensor_reader.h"

namespace lowtide::python {
namespace {

using namespace nb::literals;

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

void pack_gradients(const SignPlace& place, const Gradients& gradients, const std::string& dtype, Address bits,
                    Address presence, Address nonfinite, bool zero_is_plus, int threads, Address stream) {
  const SignItem item{.bits = bits, .presence = presence, .zero_is_plus = zero_is_plus, .nonfinite = nonfinite};
  place.backend().pack_signs(items_of(gradients, dtype, item), threads, stream);
}

void unpack_gradients(const SignPlace& place, const Gradients& gradients, const std::string& dtype, Address bits,
                      Address presence, Address zeros, Address scales, int threads, Address stream) {
  const SignItem item{.bits = bits, .zeros = zeros, .presence = presence, .scales = scales};
  place.backend().unpack_signs(items_of(gradients, dtype, item), threads, stream);
}

void feed_back(const SignPlace& place, const Gradients& gradients, const std::string& dtype, float value_scale,
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

void vote_ballots(const SignPlace& place, int64_t count, const std::vector<Address>& ballots,
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

void average_ballots(const SignPlace& place, int64_t count, const std::vector<Address>& ballots,
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
          [](CountRoom* made, const SignPlace& place, int64_t count, int most) {
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
          [](SignCounts* made, const SignPlace& place, int64_t count, int most) {
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

void bind_gradient_signs(nb::module_& m) {
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
