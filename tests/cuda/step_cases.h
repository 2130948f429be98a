// Steps of the CUDA kernels on the emulated machine: cases in its memory, and one launch for all of them.
#pragma once

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>

#include "backend/cuda/device/launch.h"
#include "backend/cuda/device/shape.h"
#include "backend/kernels/batch.h"
#include "support/step_case.h"

namespace lowtide::testing {

using kernels::Batch;
using kernels::DeviceItem;

// Memory that host and device see.
class Shared {
 public:
  explicit Shared(size_t bytes) { EXPECT_EQ(cudaMallocManaged(&data_, std::max<size_t>(bytes, 1)), cudaSuccess); }
  Shared(const void* data, size_t bytes) : Shared(bytes) {
    if (bytes) std::memcpy(data_, data, bytes);
  }
  ~Shared() { cudaFree(data_); }
  Shared(const Shared&) = delete;
  std::byte* get() const { return static_cast<std::byte*>(data_); }

 private:
  void* data_ = nullptr;
};

// A tensor's elements in memory of the device: `shift` elements behind aligned ones, as this layout has them, and
// between them bytes that nobody may change.
class DeviceTensor {
 public:
  DeviceTensor(const std::vector<std::byte>& packed, DType dtype, Layout as, size_t shift)
      : layout(std::make_unique<Layout>(std::move(as))),
        element_bytes_(dtype_bytes(dtype)),
        shift_(shift * static_cast<size_t>(element_bytes_)),
        memory_(std::make_unique<Shared>(bytes())) {
    write(packed, memory_->get());
  }

  std::byte* data() const { return memory_->get() + shift_; }
  // The elements in row-major order; false if a byte between them has changed.
  bool fetch(std::vector<std::byte>& packed) const {
    layout->gather(data(), element_bytes_, 0, layout->numel, packed.data());
    std::vector<std::byte> wanted(bytes());
    write(packed, wanted.data());
    return differing_bytes(wanted.data(), memory_->get(), static_cast<int64_t>(bytes())) == 0;
  }

  std::unique_ptr<const Layout> layout;  // items point to it

 private:
  size_t bytes() const { return static_cast<size_t>(layout->extent * element_bytes_) + shift_; }
  void write(const std::vector<std::byte>& packed, std::byte* to) const {
    if (!bytes()) return;
    std::memset(to, 0xa5, bytes());
    layout->scatter(packed.data(), element_bytes_, 0, layout->numel, to + shift_);
  }

  int64_t element_bytes_;
  size_t shift_;
  std::unique_ptr<Shared> memory_;
};

// The same rows in other memory.
enum class Lie { kContiguous, kTransposed, kGaps, kEveryThird, kCount };
inline Layout layout_of(const Layout& contiguous, Lie lie) {
  const int64_t rows = contiguous.rows, length = contiguous.row_length, sizes[] = {rows, length};
  const int64_t strides[][2] = {{length, 1}, {1, rows}, {length + 5, 1}, {3 * length, 3}};
  return Layout::make(sizes, strides[static_cast<size_t>(lie)]);
}

// A case's memory on the device, `shift` elements behind aligned ones; states may be written elsewhere.
struct DeviceCase {
  StepCase* of;
  DeviceTensor param, grad;
  std::unique_ptr<Shared> states;
  size_t at[2 * kMaxStates + 1] = {}, state_bytes = 0;  // the last: of the residual
  int64_t write_offset = 0;

  DeviceCase(StepCase& c, size_t shift, bool elsewhere, Lie param_lie = Lie::kContiguous,
             Lie grad_lie = Lie::kContiguous)
      : of(&c),
        param(c.param, c.param_dtype, layout_of(c.layout, param_lie), shift),
        grad(c.grad, c.grad_dtype, layout_of(c.layout, grad_lie), shift) {
    const auto place = [&](size_t bytes) {
      const size_t begin = state_bytes;
      state_bytes = (begin + bytes + 255) / 256 * 256;
      return begin;
    };
    for (int k = 0; k < kMaxStates; ++k) {
      at[2 * k] = place(c.codes[k].size());
      at[2 * k + 1] = place(c.scales[k].size() * sizeof(float));
    }
    at[2 * kMaxStates] = place(c.residual.size());
    states = std::make_unique<Shared>(2 * state_bytes);
    std::memset(states->get(), 0xa5, 2 * state_bytes);
    if (elsewhere) write_offset = static_cast<int64_t>(state_bytes);
    copy_states(
        [&](void* host, std::byte* device, size_t bytes) { bytes ? void(std::memcpy(device, host, bytes)) : void(); },
        0);
  }

  template <class Fn>
  void copy_states(Fn&& copy, int64_t offset) {
    for (int k = 0; k < kMaxStates; ++k) {
      std::byte* const base = states->get() + offset;
      if (!of->codes[k].empty()) copy(of->codes[k].data(), base + at[2 * k], of->codes[k].size());
      if (!of->scales[k].empty())
        copy(of->scales[k].data(), base + at[2 * k + 1], of->scales[k].size() * sizeof(float));
    }
    copy(of->residual.data(), states->get() + offset + at[2 * kMaxStates], of->residual.size());
  }

  StepItem item() {
    StepItem out = of->item();
    out.param = param.data(), out.param_layout = param.layout.get();
    out.grad = grad.data(), out.grad_layout = grad.layout.get();
    for (int k = 0; k < kMaxStates; ++k) {
      if (out.codes[k]) out.codes[k] = states->get() + at[2 * k];
      if (out.scales[k]) out.scales[k] = reinterpret_cast<float*>(states->get() + at[2 * k + 1]);
    }
    if (out.master.residual) out.master.residual = states->get() + at[2 * kMaxStates];
    out.write_offset = write_offset;
    return out;
  }

  void fetch() {
    EXPECT_TRUE(param.fetch(of->param)) << "bytes between the elements have changed";
    copy_states(
        [&](void* host, std::byte* device, size_t bytes) { bytes ? void(std::memcpy(host, device, bytes)) : void(); },
        write_offset);
  }
};

struct Launch {
  int rule, codec;
  bool fast = false;
  const uint32_t* guard = nullptr;
  const cuda_kernels::ReplayState* replay = nullptr;
};

// One launch for all items of one rule and codec.
inline cudaError_t try_step_on_device(std::span<StepItem> items, const Launch& how) {
  Batch batch;
  batch.begin_launch(how.rule, how.codec, items[0].ballot != nullptr);
  for (size_t i = 0; i < items.size(); ++i) batch.add(items[i], static_cast<int64_t>(i));
  std::vector<std::byte> bytes(batch.bytes());
  const Shared table(batch.bytes() + 1);
  batch.write(bytes.data(), table.get());
  auto* const device_items = reinterpret_cast<DeviceItem*>(bytes.data());
  auto* const starts = reinterpret_cast<int64_t*>(bytes.data() + items.size() * sizeof(DeviceItem));
  int64_t tiles = 0;
  for (size_t i = 0; i < items.size(); ++i) {
    if (how.guard) device_items[i].guard = how.guard;
    starts[i] = tiles;
    tiles += cuda_kernels::tiles_of(device_items[i].blocks);
  }
  std::memcpy(table.get(), bytes.data(), bytes.size());
  const std::vector<std::byte> tables = kernels::codec_tables(how.codec);
  const Shared on_device(tables.data(), tables.size());
  cuda_kernels::StepLaunch launch;
  launch.rule = how.rule, launch.codec = how.codec, launch.fast = how.fast;
  launch.items = reinterpret_cast<const DeviceItem*>(table.get());
  launch.starts = reinterpret_cast<const int64_t*>(table.get() + items.size() * sizeof(DeviceItem));
  launch.count = static_cast<int64_t>(items.size()), launch.tiles = tiles;
  launch.taken = batch.taken(table.get(), batch.launches()[0]);
  launch.ballot = items[0].ballot != nullptr;
  launch.tables = on_device.get(), launch.replay = how.replay;
  const cudaError_t error = cuda_kernels::step(launch, {nullptr, 2, 0});
  return error == cudaSuccess ? cudaStreamSynchronize(nullptr) : error;
}
inline void step_on_device(std::span<StepItem> items, const Launch& how) {
  ASSERT_EQ(try_step_on_device(items, how), cudaSuccess);
}

// States that a training has, so that the hot path takes them: scales within a few binades, and no gradient below
// 2^-20; zeros among all.
inline void make_usual(StepCase& c, Rng& rng) {
  const RuleInfo& info = rule_info(c.rule);
  const CodecInfo& as = codec_info(c.codec);
  for (int k = 0; k < info.states; ++k) {
    for (float& scale : c.scales[k])
      scale = rng.chance(0.05) ? 0.f : static_cast<float>(std::ldexp(1 + rng.uniform(), -6));
    if (as.scaled) continue;
    const bool is_signed = (info.signed_mask >> k) & 1;
    for (int64_t i = 0; i < c.layout.numel; ++i) {
      const double value = rng.chance(0.1) ? 0 : rng.over_binades(-30, 0);
      put(c.codes[k], as.format[1].code_bits == 32 ? DType::kF32 : DType::kBF16, i,
          is_signed ? value : std::fabs(value));
    }
  }
}

// Which states are rounded stochastically, and where in the whole the parameter lies: below, across and above the index
// 2^32, and columns of shards, which without scales need not begin with a block.
inline void make_random(StepCase& c, size_t i, Rng& rng) {
  const uint32_t all = (1u << rule_info(c.rule).states) - 1;
  const bool scaled = codec_info(c.codec).scaled;
  c.stochastic = i % 4 == 3 ? all : static_cast<uint32_t>(rng.below(all + 1));
  const int64_t row = blocks_per_row(c.layout.row_length, kBlockElements) * kBlockElements;
  c.origin = {};
  if (i % 3 == 1) c.origin.row_stride = row + kBlockElements * rng.between(0, 3);
  const int64_t stride = std::max<int64_t>(1, c.origin.stride(c.layout.row_length));
  if (i % 3 == 1 && c.origin.row_stride > row) c.origin.first_column = scaled || rng.chance(0.7) ? kBlockElements : 1;
  if (i % 2) c.origin.first_row = std::max<int64_t>(0, (int64_t{1} << 32) / stride - rng.between(0, 2));
}

// Zeros of both signs, denormals, and the largest parameters and gradients whose squares are finite; the largest
// parameters of all where gradients do not take them in. Infinite ones become NaN, whose bits nobody promises.
inline void make_extreme(StepCase& c, Rng& rng) {
  for (int64_t i = 0; i < c.layout.numel; ++i) {
    const auto one_of = [&](DType dtype, double largest) {
      const double least = dtype == DType::kF16 ? 0x1p-24 : dtype == DType::kBF16 ? 0x1p-133 : 0x1p-149;
      const double values[] = {0., -0., least, -least, 3 * least, largest, -largest, 1};
      return values[rng.below(8)];
    };
    const auto largest = [](DType dtype) { return dtype == DType::kF16 ? 60000. : 0x1p60; };
    const bool decays_apart = std::strcmp(rule_info(c.rule).name, "adamw") == 0;
    if (rng.chance(0.3))
      put(c.param, c.param_dtype, i,
          one_of(c.param_dtype, decays_apart && c.param_dtype != DType::kF16 ? 0x1.fep127 : largest(c.param_dtype)));
    if (rng.chance(0.3)) put(c.grad, c.grad_dtype, i, one_of(c.grad_dtype, largest(c.grad_dtype)));
  }
}

// Gradients and states so small that their squares and reciprocals leave the range of float32, of one size in a block.
inline void make_small(StepCase& c, Rng& rng) {
  const auto size = [&] { return static_cast<int>(-40 - rng.below(110)); };
  for (int k = 0; k < rule_info(c.rule).states; ++k) {
    for (float& scale : c.scales[k])
      scale = rng.chance(0.1) ? 0.f : static_cast<float>(std::ldexp(1 + rng.uniform(), size()));
    if (codec_info(c.codec).scaled) continue;
    const bool is_signed = (rule_info(c.rule).signed_mask >> k) & 1;
    for (int64_t i = 0; i < c.layout.numel; ++i) {
      const double value = rng.chance(0.1) ? 0 : rng.over_binades(-149, -60);
      put(c.codes[k], codec_info(c.codec).format[1].code_bits == 32 ? DType::kF32 : DType::kBF16, i,
          is_signed ? value : std::fabs(value));
    }
  }
  int exponent = 0;
  for (int64_t i = 0; i < c.layout.numel; ++i) {
    if (i % kBlockElements == 0) exponent = size();
    put(c.grad, c.grad_dtype, i, rng.chance(0.1) ? 0 : std::ldexp(2 * rng.uniform() - 1, exponent));
  }
}

// Usual states to nearest, any states, misaligned memory, all pairs of types in one launch, memory that is not
// contiguous, usual states stochastically, weights with masters, the ends of the numbers, and small ones.
enum Variant { kUsual, kAny, kMisaligned, kMixed, kStrided, kStochastic, kMasters, kExtreme, kSmall, kVariants };

// Parameters of these (rows, length).
inline std::vector<StepCase> make_cases(std::span<const std::pair<int64_t, int64_t>> shapes, int rule, int codec,
                                        int pair, Variant variant, Rng& rng) {
  std::vector<StepCase> cases;
  for (const auto& [rows, length] : shapes) {
    const size_t i = cases.size();
    const int types = variant == kMixed ? static_cast<int>((static_cast<size_t>(pair) + i) % 9) : pair;
    StepCase& c = cases.emplace_back(rule, codec, static_cast<DType>(types / 3), static_cast<DType>(types % 3), rows,
                                     length, rng);
    if (variant != kAny) make_usual(c, rng);
    if (variant == kUsual) c.stochastic = 0;
    if (variant == kExtreme) make_extreme(c, rng);
    if (variant == kSmall) make_small(c, rng);
    if (variant == kStochastic) make_random(c, i, rng);
    if (variant == kMasters && c.param_dtype != DType::kF32) c.set_master(static_cast<int>(1 + i % 3), rng);
  }
  return cases;
}

inline std::vector<DeviceCase> on_the_device(std::vector<StepCase>& cases, Variant variant, Rng& rng) {
  std::vector<DeviceCase> out;
  const auto lie = [&] { return static_cast<Lie>(rng.below(variant == kStrided ? int(Lie::kCount) : 1)); };
  for (size_t i = 0; i < cases.size(); ++i) {
    const Lie of_param = lie();
    out.emplace_back(cases[i], variant == kMisaligned ? 1 + i % 3 : 0, i % 2 == 1, of_param, lie());
  }
  return out;
}

// A ballot instead of a step, of the case as it would be from zeros, on the CPU and on the device; the bytes of ballots
// and states that differ.
inline int64_t differing_ballot_bytes(Backend& cpu, StepCase start, Rng& rng) {
  start.lr = -1, start.weight_decay = 0;
  start.set_step(2);
  StepCase wanted = start, got = start;
  const size_t size = static_cast<size_t>(sign_bytes(start.layout.numel) + 16), half = (size + 7) / 8 * 8;
  std::vector<std::byte> host(2 * half);
  const Shared device(host.data(), host.size());
  const BallotTarget on_host{host.data(), host.data() + half, 0, rng.chance(0.5)};
  const BallotTarget on_device{device.get(), device.get() + half, 0, on_host.zero_is_plus};
  StepItem item = wanted.item();
  item.ballot = &on_host;
  cpu.step({&item, 1}, 1, false, nullptr);
  DeviceCase there(got, 0, rng.chance(0.5));
  item = there.item();
  item.ballot = &on_device;
  step_on_device({&item, 1}, {start.rule, start.codec});
  there.fetch();
  return differing_bytes(host.data(), device.get(), static_cast<int64_t>(host.size())) + differing_bytes(got, wanted);
}

}  // namespace lowtide::testing
