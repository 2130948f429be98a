#include "backend/cpu/cpu_backend.h"

#include "backend/cpu/targets.h"
//
#include <hwy/highway.h>

#include <algorithm>
#include <atomic>
#include <functional>

#include "backend/cpu/kernel_tables.h"
#include "backend/cpu/sign_pieces.h"
#include "backend/cpu/sign_step.h"
#include "backend/cpu/signs.h"
#include "backend/dialect.h"
#include "backend/gradient_limit.h"
#include "backend/random_keys.h"
#include "core/error.h"
#include "core/thread_pool.h"

namespace lowtide::cpu {
namespace {

constexpr int64_t kBlock = kBlockElements;
// Blocks that a thread takes at a time: 64 Ki elements, 0.1 ms or less, so that threads finish together.
constexpr int64_t kBlocksAtOnce = 256;

struct Target {
  int64_t bit;
  const char* name;
};

// Best first. The names are public.
constexpr Target kTargets[] = {
#if HWY_ARCH_X86
    {HWY_AVX3_DL, "avx512_vbmi"},
    {HWY_AVX3, "avx512"},
    {HWY_AVX2, "avx2"},
#endif
    {HWY_SCALAR, "scalar"},
};

bool runs_here(const Target& target) { return target.bit == HWY_SCALAR || (hwy::SupportedTargets() & target.bit) != 0; }

int64_t blocks_of(const StepItem& item) {
  return item.blocks >= 0 ? item.blocks : item.param_layout->blocks(kBlock) - item.first_block;
}

// Calls run(first element, count, first block) for contiguous runs of whole blocks that make up blocks [begin, end) of
// a tensor of rows; no run crosses a row unless rows consist of whole blocks.
template <class Fn>
void for_each_run(int64_t row_length, int64_t begin, int64_t end, Fn&& run) {
  const int64_t per_row = (row_length + kBlock - 1) / kBlock;
  if (row_length % kBlock == 0) {
    run(begin * kBlock, (end - begin) * kBlock, begin);
    return;
  }
  while (begin < end) {
    const int64_t row = begin / per_row, column = begin % per_row * kBlock;
    const int64_t blocks = std::min(end, (row + 1) * per_row) - begin;
    run(row * row_length + column, std::min(blocks * kBlock, row_length - column), begin);
    begin += blocks;
  }
}

std::byte* at(void* base, int64_t element, int64_t element_bytes) {
  return static_cast<std::byte*>(base) + element * element_bytes;
}
const std::byte* at(const void* base, int64_t element, int64_t element_bytes) {
  return static_cast<const std::byte*>(base) + element * element_bytes;
}

// Brings in the beginning of an array. Hardware prefetchers start anew with every page, so that many small tensors
// would each wait for their first lines.
void prefetch(const void* p, int64_t bytes) {
  constexpr int64_t kAhead = 1024, kLine = 64;
  for (int64_t b = 0; b < std::min(bytes, kAhead); b += kLine) __builtin_prefetch(static_cast<const std::byte*>(p) + b);
}
void prefetch_grad(const StepItem& item) {
  prefetch(item.grad, item.grad_layout->numel * dtype_bytes(item.grad_dtype));
}
void prefetch_all(const StepItem& item) {
  const int64_t n = item.param_layout->numel;
  prefetch_grad(item);
  if (!item.ballot) prefetch(item.param, n * dtype_bytes(item.param_dtype));
  for (const void* codes : item.codes)
    if (codes) prefetch(codes, n * codecs()[static_cast<size_t>(item.codec)].code_bytes);
}

class CpuBackend final : public Backend {
 public:
  explicit CpuBackend(const Target& target)
      : target_(target),
        aux_(pick_aux(target.bit)),
        signs_(pick_signs(target.bit)),
        sign_steps_(pick_sign_step(target.bit)) {
    for (int codec = 0; codec < kCodecs; ++codec)
      for (int pair = 0; pair < kPairs; ++pair) {
#define LT_RULE(number, name, Rule) kernels_[number][codec][pair] = pick_step_##name(codec, pair, target.bit);
#include "portable/rules.def"
#undef LT_RULE
      }
  }

  const char* name() const override { return "cpu"; }
  const char* target() const override { return target_.name; }
  std::vector<std::string> targets() const override {
    std::vector<std::string> names;
    for (const Target& t : kTargets)
      if (runs_here(t)) names.emplace_back(t.name);
    return names;
  }

  void step(std::span<const StepItem> items, int threads, bool ordered, void*) override {
    for_each_piece(items, ordered ? 1 : threads, prefetch_all, [&](const StepItem& item, int64_t begin, int64_t end) {
      step_blocks(item, begin, end);
      return true;
    });
  }

  int64_t first_nonfinite(std::span<const StepItem> items, int threads, void*) override {
    std::atomic<int64_t> first{static_cast<int64_t>(items.size())};
    for_each_piece(items, threads, prefetch_grad, [&](const StepItem& item, int64_t begin, int64_t end) {
      const int64_t index = &item - items.data();
      // Pieces come in order: once an earlier item is known to be bad, later ones do not matter.
      if (index >= first.load(std::memory_order_relaxed)) return false;
      if (finite_blocks(item, begin, end)) return true;
      for (int64_t seen = first.load(std::memory_order_relaxed); index < seen;)
        if (first.compare_exchange_weak(seen, index, std::memory_order_relaxed)) break;
      return false;
    });
    const int64_t found = first.load();
    return found == static_cast<int64_t>(items.size()) ? -1 : found;
  }

  void decode(const CodecItem& item, void*) override { convert(item, aux_.decode[item.codec][item.is_signed]); }
  void encode(const CodecItem& item, void*) override { convert(item, aux_.encode[item.codec][item.is_signed]); }

  void pack_signs(std::span<const SignItem> items, int threads, void*) override {
    for (const SignItem& item : items) check(item);
    cpu::pack_signs(signs_, items, threads);
  }
  void unpack_signs(std::span<const SignItem> items, int threads, void*) override {
    for (const SignItem& item : items) check(item);
    cpu::unpack_signs(signs_, items, threads);
  }
  void vote_signs(const VoteItem& item, int threads, void*) override {
    check(item);
    cpu::vote_signs(signs_, item, threads);
  }
  void count_signs(const CountItem& item, int threads, void*) override {
    check(item);
    cpu::count_signs(signs_, item, threads);
  }
  void apply_signs(std::span<const ApplyItem> items, int threads, void*) override {
    for (const ApplyItem& item : items) check(item);
    cpu::apply_signs(sign_steps_, items, threads);
  }
  void feedback(std::span<const FeedbackItem> items, int threads, void*) override {
    for (const FeedbackItem& item : items) check(item);
    cpu::feedback(sign_steps_, items, threads);
  }

 private:
  // Cuts the blocks of all items, laid end to end, into pieces and hands them to the threads; a piece of many small
  // items becomes one call per item, while prefetch(next item) is under way. work(item, first block, end block) returns
  // false to stop this thread.
  template <class Fn>
  void for_each_piece(std::span<const StepItem> items, int threads, void (*prefetch)(const StepItem&), Fn&& work) {
    starts_.resize(items.size() + 1);
    int64_t total = 0;
    for (size_t i = 0; i < items.size(); ++i) {
      starts_[i] = total;
      total += blocks_of(items[i]);
    }
    starts_[items.size()] = total;
    const int64_t pieces = (total + kBlocksAtOnce - 1) / kBlocksAtOnce;
    std::atomic<int64_t> next{0};
    run_parallel(static_cast<int>(std::min<int64_t>(threads, pieces)), [&](int) {
      for (int64_t piece; (piece = next.fetch_add(1, std::memory_order_relaxed)) < pieces;) {
        int64_t block = piece * kBlocksAtOnce;
        const int64_t end = std::min(total, block + kBlocksAtOnce);
        size_t i = static_cast<size_t>(std::upper_bound(starts_.begin(), starts_.end(), block) - starts_.begin()) - 1;
        for (; block < end; ++i) {
          if (i + 2 < items.size()) prefetch(items[i + 2]);  // one ahead comes 3 % too late
          const int64_t stop = std::min(end, starts_[i + 1]);
          const int64_t shift = items[i].first_block - starts_[i];
          if (stop > block && !work(items[i], block + shift, stop + shift)) return;
          block = stop;
        }
      }
    });
  }

  void step_blocks(const StepItem& item, int64_t begin, int64_t end) const {
    const DType param_dtype = item.ballot ? DType::kF32 : item.param_dtype;
    const int pair = static_cast<int>(param_dtype) * kDTypes + static_cast<int>(item.grad_dtype);
    const StepKernel kernel = kernels_[item.rule][item.codec][pair];
    const int64_t p_bytes = dtype_bytes(item.param_dtype), g_bytes = dtype_bytes(item.grad_dtype);
    const int64_t param_bytes = dtype_bytes(param_dtype);
    StepRun run{};
    run.args = item.args;
    run.grad_scale = item.grad_scale;
    run.stochastic = item.stochastic;
    const int64_t row_length = item.param_layout->row_length;
    const int64_t origin = elements_before_block(row_length, item.first_block, kBlock);
    const auto kernel_on = [&](void* p, const void* g, int64_t first, int64_t n, int64_t block) {
      for (int64_t done = 0; done < n; done += run.n) {
        run.param = at(p, done, param_bytes);
        run.grad = at(g, done, g_bytes);
        run.n = begin_random(item, first + done, n - done, run);
        for (int k = 0; k < kMaxStates; ++k) {
          if (item.codes[k]) run.codes[k] = at(item.codes[k], first + done - origin, code_bytes(item.codec));
          if (item.scales[k]) run.scales[k] = item.scales[k] + (block + done / kBlock - item.first_block);
        }
        kernel(run);
      }
    };
    for_each_run(row_length, begin, end, [&](int64_t first, int64_t n, int64_t block) {
      if (item.ballot) return make_ballot(item, first, n, block, kernel_on);
      if (item.param_layout->contiguous && item.grad_layout->contiguous) {
        kernel_on(at(item.param, first, p_bytes), at(item.grad, first, g_bytes), first, n, block);
        return;
      }
      // A strided tensor passes through the cache block by block; the arithmetic is the same.
      for (int64_t done = 0; done < n; done += kBlock, ++block) {
        alignas(64) std::byte p[kBlock * 4], g[kBlock * 4];
        const int64_t e = first + done, count = std::min(kBlock, n - done);
        item.param_layout->gather(item.param, p_bytes, e, count, p);
        item.grad_layout->gather(item.grad, g_bytes, e, count, g);
        kernel_on(p, g, e, count, block);
        item.param_layout->scatter(p, p_bytes, e, count, item.param);
      }
    });
  }

  // Sets what random bits of `run` go by, for element `first` of the parameter; returns how many of n elements from
  // there are in one run: up to a carry out of the index's low half, and where rows of the whole are longer, in the
  // row.
  static int64_t begin_random(const StepItem& item, int64_t first, int64_t n, StepRun& run) {
    if (!item.stochastic) return n;
    const int64_t row_length = item.param_layout->row_length, stride = item.origin.stride(row_length);
    const int64_t row = first / row_length, column = first % row_length;
    const int64_t index = (item.origin.first_row + row) * stride + item.origin.first_column + column;
    run.index = static_cast<uint32_t>(index);
    keys_at(item, static_cast<uint32_t>(index >> 32), run.key);
    const int64_t most = std::min(n, (int64_t{1} << 32) - int64_t{run.index});
    return stride == row_length ? most : std::min(most, row_length - column);
  }

  // A step of elements [first, first + n) from `block` on whose parameter is a tile of zeros.
  template <class KernelOn>
  void make_ballot(const StepItem& item, int64_t first, int64_t n, int64_t block, KernelOn&& kernel_on) const {
    const BallotTarget& to = *item.ballot;
    const int64_t g_bytes = dtype_bytes(item.grad_dtype);
    BallotTile tile;
    static_assert(kBallotTile % kBlock == 0);
    for (int64_t done = 0; done < n; done += kBallotTile) {
      alignas(64) std::byte gathered[kBallotTile * 4];
      const int64_t e = first + done, count = std::min<int64_t>(kBallotTile, n - done);
      const void* g = at(item.grad, e, g_bytes);
      if (!item.grad_layout->contiguous) {
        item.grad_layout->gather(item.grad, g_bytes, e, count, gathered);
        g = gathered;
      }
      kernel_on(tile.begin(to.first + e, static_cast<int>(count)), g, e, count, block + done / kBlock);
      tile.end(sign_steps_, to.zero_is_plus, to.bits, to.presence);
    }
  }

  bool finite_blocks(const StepItem& item, int64_t begin, int64_t end) const {
    const FiniteKernel finite = aux_.finite[static_cast<int>(item.grad_dtype)];
    const uint32_t limit = gradient_limit_bits(item.grad_scale);
    const int64_t g_bytes = dtype_bytes(item.grad_dtype);
    bool ok = true;
    for_each_run(item.param_layout->row_length, begin, end, [&](int64_t first, int64_t n, int64_t) {
      if (!ok) return;
      if (item.grad_layout->contiguous) {
        ok = finite(at(item.grad, first, g_bytes), n, limit);
        return;
      }
      alignas(64) std::byte g[kBlock * 4];
      for (int64_t done = 0; ok && done < n; done += kBlock) {
        const int64_t count = std::min(kBlock, n - done);
        item.grad_layout->gather(item.grad, g_bytes, first + done, count, g);
        ok = finite(g, count, limit);
      }
    });
    return ok;
  }

  void convert(const CodecItem& item, CodecKernel kernel) const {
    const int64_t per_row = (item.row_length + kBlock - 1) / kBlock;
    const int64_t end = item.blocks >= 0 ? item.first_block + item.blocks : item.rows * per_row;
    const int64_t origin = elements_before_block(item.row_length, item.first_block, kBlock);
    run_parallel(1, [&](int) {
      for_each_run(item.row_length, item.first_block, end, [&](int64_t first, int64_t n, int64_t block) {
        kernel(CodecRun{item.values + (first - origin), at(item.codes, first - origin, code_bytes(item.codec)),
                        item.scales ? item.scales + (block - item.first_block) : nullptr, n});
      });
    });
  }

  static int64_t code_bytes(int codec) { return codecs()[static_cast<size_t>(codec)].code_bytes; }

  Target target_;
  AuxKernels aux_;
  SignKernels signs_;
  SignStepKernels sign_steps_;
  StepKernel kernels_[kRules][kCodecs][kPairs];
  std::vector<int64_t> starts_;  // first block of each item; kept between steps for its memory
};

}  // namespace

std::unique_ptr<Backend> make_backend(const std::string& target) {
  std::string known;
  for (const Target& t : kTargets) {
    if (!runs_here(t)) continue;
    if (target.empty() || target == t.name) return std::make_unique<CpuBackend>(t);
    known += std::string(known.empty() ? "" : ", ") + t.name;
  }
  fail(ErrorKind::kInvalidArgument, "got CPU target '%s'; this CPU can run: %s", target.c_str(), known.c_str());
}

}  // namespace lowtide::cpu
