// The sign functions of the C interface.
#include "lowtide/sign.h"

#include <vector>

#include "capi/device.h"
#include "capi/guard.h"
#include "core/error.h"
#include "lowtide/lowtide_sign.h"
#include "sign/sign_on.h"

namespace sign = lowtide::sign;
using lowtide::capi::guarded;
using lowtide::capi::require;
using lowtide::capi::struct_from;

namespace {

static_assert(LT_BITS_LITTLE == static_cast<int>(sign::BitOrder::kLittle) &&
              LT_BITS_BIG == static_cast<int>(sign::BitOrder::kBig));
static_assert(LT_TIES_HASH == static_cast<int>(sign::Ties::kHash) &&
              LT_TIES_PLUS == static_cast<int>(sign::Ties::kPlus) &&
              LT_TIES_MINUS == static_cast<int>(sign::Ties::kMinus) &&
              LT_TIES_ZERO == static_cast<int>(sign::Ties::kZero) &&
              LT_TIES_PREVIOUS == static_cast<int>(sign::Ties::kPrevious));

size_t size_from(int64_t bytes) {
  lowtide::capi::require_bytes(bytes, "bits_bytes");
  return static_cast<size_t>(bytes);
}
std::span<std::byte> span_of(void* bits, int64_t bytes) { return {static_cast<std::byte*>(bits), size_from(bytes)}; }
std::span<const std::byte> span_of(const void* bits, int64_t bytes) {
  return {static_cast<const std::byte*>(bits), size_from(bytes)};
}

template <class Given>
sign::Options sign_options(const Given& given) {
  return {static_cast<sign::BitOrder>(given.bit_order), given.threads};
}

// The place where the options say that signs are computed.
struct Place {
  template <class Given>
  explicit Place(const Given& given)
      : backend(given.device ? *given.device->backend : sign::host_backend()),
        queue(given.device ? given.device->queue_or_own(given.queue) : nullptr) {
    LT_REQUIRE(given.device || !given.queue, "got a queue without a device, wanted the lt_device of the queue, too");
  }
  lowtide::Backend& backend;
  void* queue;
};

}  // namespace

extern "C" {

lt_status lt_sign_pack(const void* values, int32_t dtype, int64_t count, void* bits, int64_t bits_bytes,
                       const lt_sign_options* options) {
  return guarded([&] {
    const lt_sign_options given = struct_from(options, lt_sign_options LT_SIGN_OPTIONS_INIT);
    if (count) require(values, "values");
    const Place place(given);
    sign::pack_on(place.backend, place.queue, static_cast<lowtide::DType>(dtype), values, count,
                  span_of(bits, bits_bytes), sign_options(given));
  });
}

lt_status lt_sign_unpack(const void* bits, int64_t bits_bytes, void* values, int32_t dtype, int64_t count,
                         const void* zeros, const lt_sign_options* options) {
  return guarded([&] {
    const lt_sign_options given = struct_from(options, lt_sign_options LT_SIGN_OPTIONS_INIT);
    if (count) require(values, "values");
    const Place place(given);
    sign::unpack_on(place.backend, place.queue, span_of(bits, bits_bytes), static_cast<lowtide::DType>(dtype), values,
                    count, zeros ? span_of(zeros, bits_bytes) : std::span<const std::byte>(), sign_options(given));
  });
}

lt_status lt_sign_majority(const void* const* ballots, int64_t voters, int64_t count, void* result, int64_t bits_bytes,
                           void* zeros, const lt_majority_options* options) {
  return guarded([&] {
    const lt_majority_options given = struct_from(options, lt_majority_options LT_MAJORITY_OPTIONS_INIT);
    require(ballots, "ballots");
    LT_REQUIRE(voters >= 1 && voters <= sign::kMostBallots, "got %lld ballots, wanted 1 to %lld", lowtide::ll(voters),
               lowtide::ll(sign::kMostBallots));
    LT_REQUIRE(given.ties >= LT_TIES_HASH && given.ties <= LT_TIES_PREVIOUS, "got ties=%lld, wanted an lt_ties",
               lowtide::ll(given.ties));
    std::vector<const std::byte*> all;
    for (int64_t v = 0; v < voters; ++v) all.push_back(static_cast<const std::byte*>(ballots[v]));
    sign::Vote vote;
    vote.count = count;
    vote.ballots = all;
    if (given.weights) vote.weights = {given.weights, all.size()};
    vote.ties = static_cast<sign::Ties>(given.ties);
    vote.seed = given.seed;
    vote.step = given.step;
    vote.offset = given.offset;
    vote.previous = static_cast<const std::byte*>(given.previous);
    vote.options = sign_options(given);
    const Place place(given);
    sign::majority_on(place.backend, place.queue, vote, span_of(result, bits_bytes),
                      zeros ? span_of(zeros, bits_bytes) : std::span<std::byte>());
  });
}

}  // extern "C"
