// Gradients at one place to bits and back.
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
#include "signer.h"
#include "tensor_reader.h"

namespace lowtide::python {
namespace {

using namespace nb::literals;

// Gradients: address, number of elements (contiguous, at the place) and number of the first sign of each, a multiple of
// SIGN_ALIGNMENT.
using Gradients = std::vector<std::tuple<Address, int64_t, int64_t>>;

// For each gradient an item like this one.
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

}  // namespace

void bind_gradient_signs(nb::module_& m) {
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
}

}  // namespace lowtide::python
