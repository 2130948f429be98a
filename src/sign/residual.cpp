// Implements SignResidual, one rank's shard of the residual of a mean.
#include <cstring>

#include "backend/cpu/cpu_backend.h"
#include "backend/catalog.h"
#include "backend/limits.h"
#include "core/error.h"
#include "core/layout.h"
#include "sign/shard_messages.h"

namespace lowtide {
namespace {

CodecItem item_of(ResidualState& state, float* values) {
  CodecItem item;
  item.codec = state.codec;
  item.rows = 1, item.row_length = state.count;
  item.codes = state.now.codes.data();
  item.scales = state.scales(state.now);
  item.values = values;
  return item;
}

}  // namespace

SignResidual::SignResidual(int64_t count, int rank, int size, const std::string& state) {
  LT_REQUIRE(count >= 0 && count <= kMostSigns && size >= 1 && rank >= 0 && rank < size,
             "got %lld signs, rank %d of %d, wanted 0 to 2^60 signs and 0 <= rank < size", ll(count), rank, size);
  impl_ = std::make_unique<Impl>();
  Impl& s = *impl_;
  s.codec = find_codec(state);
  check_residual_codec(s.codec);
  s.total = count, s.rank = rank, s.size = size;
  const int64_t shard = shard_signs(count, size);
  s.first = std::min(count, rank * shard);
  s.count = signs_in_shard(count, s.first, shard);
  const StateFormat& format = codec_info(s.codec).format[1];
  s.now.codes.assign(static_cast<size_t>(format.code_bytes(s.count)), static_cast<std::byte>(format.zero));
  s.now.scales.assign(static_cast<size_t>(format.scales * blocks_per_row(s.count, kBlockElements)), 0.f);
  s.next = s.now;
}

SignResidual::~SignResidual() = default;
SignResidual::SignResidual(SignResidual&&) noexcept = default;
SignResidual& SignResidual::operator=(SignResidual&&) noexcept = default;

int64_t SignResidual::first() const { return impl_->first; }
int64_t SignResidual::count() const { return impl_->count; }

int64_t SignResidual::bytes() const {
  return static_cast<int64_t>(impl_->now.codes.size() + impl_->now.scales.size() * sizeof(float));
}
int64_t SignResidual::allocated_bytes() const { return 2 * bytes(); }

void SignResidual::read(std::byte* out) const {
  if (impl_->count == 0) return;
  const ResidualState::Values& now = impl_->now;
  std::memcpy(out, now.codes.data(), now.codes.size());
  if (!now.scales.empty()) std::memcpy(out + now.codes.size(), now.scales.data(), now.scales.size() * sizeof(float));
}

void SignResidual::replace(const std::byte* in) {
  if (impl_->count == 0) return;
  ResidualState::Values& now = impl_->now;
  std::memcpy(now.codes.data(), in, now.codes.size());
  if (!now.scales.empty()) std::memcpy(now.scales.data(), in + now.codes.size(), now.scales.size() * sizeof(float));
}

void SignResidual::read_values(float* out) const {
  if (impl_->count) cpu::make_backend("")->decode(item_of(*impl_, out), nullptr);
}

void SignResidual::replace_values(const float* in) {
  if (impl_->count) cpu::make_backend("")->encode(item_of(*impl_, const_cast<float*>(in)), nullptr);
}

}  // namespace lowtide
