#include "backend/kernels/batch.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <tuple>

#include "backend/catalog.h"
#include "backend/gradient_limit.h"

namespace lowtide::kernels {
namespace {
#include "portable/portable.h"

static_assert(sizeof(DeviceItem) % alignof(DeviceNorms) == 0 && sizeof(DeviceNorms) % alignof(int64_t) == 0);
static_assert(sizeof(DeviceItem::key) == sizeof(StepItem::key));

unsigned char* chars(const std::byte* p) { return reinterpret_cast<unsigned char*>(const_cast<std::byte*>(p)); }

template <class C>
std::vector<std::byte> tables_of() {
  const auto tables = std::make_unique<typename C::Tables>();
  if constexpr (requires(typename C::Tables t) { C::make_tables(t); }) C::make_tables(*tables);
  const auto* bytes = reinterpret_cast<const std::byte*>(tables.get());
  return {bytes, bytes + sizeof *tables};
}

const int64_t* at(const std::byte* device, size_t bytes) { return reinterpret_cast<const int64_t*>(device + bytes); }
}  // namespace

void Batch::clear() {
  items_.clear();
  norms_.clear();
  starts_.clear();
  dims_.clear();
  launches_.clear();
}

void Batch::begin_launch(int rule, int codec, bool ballot) {
  const int64_t norms = rule_info(rule).norms ? static_cast<int64_t>(norms_.size()) : -1;
  launches_.push_back({rule, codec, ballot, size(), 0, 0, norms, false, false});
}

DeviceTensor Batch::tensor(const void* data, DType dtype, const Layout& layout) {
  DeviceTensor out{const_cast<void*>(data), nullptr, 0, static_cast<int32_t>(dtype)};
  if (layout.contiguous) return out;
  out.dim_count = static_cast<int32_t>(layout.sizes.size());
  out.dims = reinterpret_cast<const int64_t*>(dims_.size() * sizeof(int64_t));
  for (size_t d = 0; d < layout.sizes.size(); ++d) {
    dims_.push_back(layout.sizes[d]);
    dims_.push_back(layout.strides[d]);
  }
  return out;
}

void Batch::add(const DeviceItem& item, int64_t blocks, int64_t unit_blocks) {
  Launch& launch = launches_.back();
  items_.push_back(item);
  items_.back().blocks = blocks;
  starts_.push_back(launch.units);
  ++launch.count;
  launch.units += (blocks + unit_blocks - 1) / unit_blocks;
}

void Batch::add(const StepItem& item, int64_t index) {
  DeviceItem out{};
  if (!item.ballot) out.param = tensor(item.param, item.param_dtype, *item.param_layout);
  if (const BallotTarget* to = item.ballot)
    out.signs = {chars(to->bits), chars(to->presence), nullptr, to->first, to->zero_is_plus};
  out.grad = tensor(item.grad, item.grad_dtype, *item.grad_layout);
  if (const MasterWeights& of = item.master; has_master(item))
    out.master = {of.residual, of.kind, {of.key[0], of.key[1]}};
  out.row_length = item.param_layout->row_length;
  out.first_block = item.first_block;
  out.origin = elements_before_block(out.row_length, item.first_block, kBlockElements);
  std::copy(std::begin(item.codes), std::end(item.codes), out.codes);
  std::copy(std::begin(item.scales), std::end(item.scales), out.scales);
  out.grad_scale = item.grad_scale;
  out.limit_bits = gradient_limit_bits(item.grad_scale);
  out.index = static_cast<uint32_t>(index);
  out.stochastic = item.stochastic;
  out.row_stride = item.origin.stride(out.row_length);
  out.first_index = item.origin.first_row * out.row_stride + item.origin.first_column;
  out.write_offset = item.write_offset;
  if (item.guard) out.guard = item.guard->word();
  std::memcpy(out.key, item.key, sizeof out.key);
  if (item.args) std::memcpy(out.args, item.args, rule_info(item.rule).args_bytes);
  const int64_t blocks = item.blocks >= 0 ? item.blocks : item.param_layout->blocks(kBlockElements) - item.first_block;
  add(out, blocks, unit_blocks_);
  if (launches_.back().norms >= 0) add_norms(item);
}

void Batch::add_norms(const StepItem& item) {
  DeviceNorms& norms = norms_.emplace_back();
  if (!item.norms) return;
  const Hyper& h = *item.hyper;
  norms = {item.norms, item.adds_norms, h.lr, h.eps, h.weight_decay, h.trust_coefficient, h.max_unorm, {}};
  launches_.back().puts_norms = true;
  launches_.back().adds_norms |= item.adds_norms;
}

void Batch::add_steps(std::span<const StepItem> items, bool ordered) {
  const auto kernel_of = [&](size_t i) {
    return std::tuple(items[i].rule, items[i].codec, items[i].ballot != nullptr);
  };
  order_.resize(items.size());
  std::iota(order_.begin(), order_.end(), size_t{0});
  const auto before = [&](size_t a, size_t b) { return kernel_of(a) < kernel_of(b); };
  if (!ordered && !std::is_sorted(order_.begin(), order_.end(), before))
    std::stable_sort(order_.begin(), order_.end(), before);
  for (size_t n = 0; n < order_.size(); ++n) {
    const auto kernel = kernel_of(order_[n]);
    if (ordered || n == 0 || kernel_of(order_[n - 1]) != kernel) {
      const auto [rule, codec, ballot] = kernel;
      begin_launch(rule, codec, ballot);
    }
    add(items[order_[n]], static_cast<int64_t>(order_[n]));
  }
}

void Batch::take_norms(const BlockNorms* from, std::span<BlockNorms> out) const {
  std::vector<int64_t> first(items_.size() + 1);  // first block of each of the caller's items
  for (const DeviceItem& item : items_) first[item.index + 1] = item.blocks;
  std::partial_sum(first.begin(), first.end(), first.begin());
  for (const DeviceItem& item : items_) {
    std::copy_n(from, item.blocks, out.data() + first[item.index]);
    from += item.blocks;
  }
}

void Batch::add(const CodecItem& item) {
  DeviceItem out{};
  out.param.data = item.values;
  out.row_length = item.row_length;
  out.first_block = item.first_block;
  out.origin = elements_before_block(item.row_length, item.first_block, kBlockElements);
  out.codes[0] = item.codes;
  out.scales[0] = item.scales;
  const int64_t all = item.rows * blocks_per_row(item.row_length, kBlockElements);
  add(out, item.blocks >= 0 ? item.blocks : all - item.first_block, 1);
}

void Batch::add(const ApplyItem& item) {
  DeviceItem out{};
  out.param = tensor(item.param, item.dtype, *item.layout);
  out.row_length = item.layout->numel;
  out.signs = {chars(item.bits), chars(item.presence), chars(item.zeros), item.first, true};
  const ApplyArgs args{item.lr, item.decay};
  std::memcpy(out.args, &args, sizeof args);
  add(out, blocks_per_row(item.layout->numel, kBlockElements), 1);
}

size_t Batch::bytes() const {
  return items_.size() * sizeof(DeviceItem) + norms_.size() * sizeof(DeviceNorms) +
         (starts_.size() + dims_.size() + launches_.size()) * sizeof(int64_t);
}

void Batch::write(std::byte* to, const std::byte* device) {
  const size_t taken_at = bytes() - launches_.size() * sizeof(int64_t);
  const size_t dims_at = taken_at - dims_.size() * sizeof(int64_t);
  for (DeviceItem& item : items_)
    for (DeviceTensor* tensor : {&item.param, &item.grad})
      if (tensor->dim_count) tensor->dims = at(device, dims_at + reinterpret_cast<size_t>(tensor->dims));
  const auto put = [&](const void* data, size_t bytes) {
    if (bytes) std::memcpy(to, data, bytes);
    to += bytes;
  };
  put(items_.data(), items_.size() * sizeof(DeviceItem));
  put(norms_.data(), norms_.size() * sizeof(DeviceNorms));
  put(starts_.data(), starts_.size() * sizeof(int64_t));
  put(dims_.data(), dims_.size() * sizeof(int64_t));
  if (!launches_.empty()) std::memset(to, 0, launches_.size() * sizeof(int64_t));
}

const DeviceItem* Batch::items(const std::byte* device, const Launch& launch) const {
  return reinterpret_cast<const DeviceItem*>(device) + launch.first;
}

const int64_t* Batch::starts(const std::byte* device, const Launch& launch) const {
  return at(device, items_.size() * sizeof(DeviceItem) + norms_.size() * sizeof(DeviceNorms)) + launch.first;
}

const DeviceNorms* Batch::norms(const std::byte* device, const Launch& launch) const {
  if (launch.norms < 0) return nullptr;
  return reinterpret_cast<const DeviceNorms*>(device + items_.size() * sizeof(DeviceItem)) + launch.norms;
}

int64_t* Batch::taken(std::byte* device, const Launch& launch) const {
  const ptrdiff_t left = launches_.data() + launches_.size() - &launch;  // the counters end the batch, in order
  return reinterpret_cast<int64_t*>(device + bytes()) - left;
}

std::vector<std::byte> codec_tables(int codec) {
  switch (codec) {
#define LT_CODEC(number, name, C) \
  case number:                    \
    return tables_of<C>();
#include "portable/codecs.def"
#undef LT_CODEC
  }
  return {};
}

}  // namespace lowtide::kernels
