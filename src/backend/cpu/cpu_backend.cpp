#include "backend/cpu/cpu_backend.h"

#include "backend/cpu/targets.h"
//
#include <hwy/highway.h>

#include <algorithm>
#include <atomic>
#include <iterator>
#include <mutex>

#include "backend/cpu/kernel_tables.h"
#include "backend/cpu/pieces.h"
#include "backend/cpu/sign_kernels.h"
#include "backend/cpu/staged.h"
#include "backend/catalog.h"
#include "backend/gradient_limit.h"
#include "backend/random_keys.h"
#include "backend/term_sums.h"
#include "core/error.h"

namespace lowtide::cpu {
namespace {

constexpr int64_t kBlock = kBlockElements;
// Blocks that a thread takes at a time: 64 Ki elements, at most 0.1 ms, down to 4 Ki if there are many threads.
constexpr Grain kBlocksAtOnce{256, 16};
constexpr int kFloats = 0;  // the pair (float32, float32)

struct Target {
  int64_t bit;
  const char* name;
};

// Best first. The names are part of the public API.
constexpr Target kTargets[] = {
#if HWY_ARCH_X86
    {HWY_AVX3_DL, "avx512_vbmi"},
    {HWY_AVX3, "avx512"},
    {HWY_AVX2, "avx2"},
#elif HWY_ARCH_ARM_A64
    {HWY_NEON, "neon"},
#endif
    {HWY_SCALAR, "scalar"},
};

// A LOWTIDE_NATIVE build compiles only one of them.
constexpr bool is_compiled(const Target& target) { return (HWY_TARGETS & target.bit) != 0; }
static_assert(std::any_of(std::begin(kTargets), std::end(kTargets), is_compiled),
              "Highway compiles for none of kTargets");

bool runs_here(const Target& target) {
  return is_compiled(target) && (target.bit == HWY_SCALAR || (hwy::SupportedTargets() & target.bit) != 0);
}

// Returns the target with this name, or the best for "". Throws kInvalidArgument.
const Target& find_target(const std::string& name) {
  std::string known;
  for (const Target& target : kTargets) {
    if (!runs_here(target)) continue;
    if (name.empty() || name == target.name) return target;
    known += std::string(known.empty() ? "" : ", ") + target.name;
  }
  fail(ErrorKind::kInvalidArgument, "got CPU target '%s'; this CPU can run: %s", name.c_str(), known.c_str());
}

int64_t blocks_of(const StepItem& item) {
  return item.blocks >= 0 ? item.blocks : item.param_layout->blocks(kBlock) - item.first_block;
}

// Calls run(first element, count, first block) for contiguous runs of whole blocks that together form blocks [begin,
// end) of a tensor of rows. A run crosses rows only if rows consist of whole blocks.
template <class Fn>
void for_each_run(int64_t row_length, int64_t begin, int64_t end, Fn&& run) {
  const int64_t per_row = (row_length + kBlock - 1) / kBlock;
  if (row_length % kBlock == 0) {
    run(begin * kBlock, (end - begin) * kBlock, begin);
    return;
  }
  if (end <= per_row) {  // the first row needs no division, for which many small tensors would wait
    run(begin * kBlock, std::min(end * kBlock, row_length) - begin * kBlock, begin);
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

// Prefetches the beginning of an array. Hardware prefetchers restart at every page, so each of many small tensors would
// wait for its first lines.
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
  const StateFormat(&formats)[2] = codec_info(item.codec).format;
  const unsigned is_signed = rule_info(item.rule).signed_mask;
  for (int k = 0; k < kMaxStates; ++k)
    if (item.codes[k]) prefetch(item.codes[k], formats[(is_signed >> k) & 1].code_bytes(n));
}

class CpuBackend final : public Backend {
 public:
  explicit CpuBackend(const Target& target)
      : target_(target),
        aux_(pick_aux(target.bit)),
        signs_(pick_signs(target.bit)),
        sign_steps_(pick_sign_step(target.bit)),
        steps_(pick_steps(target.bit)) {}

  const char* name() const override { return "cpu"; }
  const char* target() const override { return target_.name; }
  std::vector<std::string> targets() const override {
    std::vector<std::string> names;
    for (const Target& t : kTargets)
      if (runs_here(t)) names.emplace_back(t.name);
    return names;
  }

  void step(std::span<const StepItem> items, int threads, bool ordered, void*) override {
    for_each_blocks(items, ordered ? 1 : threads, prefetch_all, [&](const StepItem& item, int64_t begin, int64_t end) {
      step_blocks(item, begin, end);
      return true;
    });
  }

  void norms(std::span<const StepItem> items, int threads, std::span<BlockNorms> out, void*) override {
    for_each_blocks(items, threads, prefetch_all, [&](const StepItem& item, int64_t begin, int64_t end) {
      // starts_ holds the number of blocks in earlier items.
      const int64_t before = starts_[static_cast<size_t>(&item - items.data())] - item.first_block;
      norm_blocks(item, begin, end, [&](NormRun& run, int64_t at) { run.out = out.data() + before + at; });
      return true;
    });
  }

  void sum_terms(std::span<const StepItem> items, int threads, TermSums& to, void*) override {
    std::mutex merging;
    for_each_blocks(items, threads, prefetch_all, [&](const StepItem& item, int64_t begin, int64_t end) {
      TermSums part;
      norm_blocks(item, begin, end, [&](NormRun& run, int64_t) { run.sums = &part; });
      const std::lock_guard lock(merging);
      to.merge(part);
      return true;
    });
  }

  int64_t first_nonfinite(std::span<const StepItem> items, int threads, void*) override {
    std::atomic<int64_t> first{static_cast<int64_t>(items.size())};
    for_each_blocks(items, threads, prefetch_grad, [&](const StepItem& item, int64_t begin, int64_t end) {
      const int64_t index = &item - items.data();
      // Pieces come in order: after a bad item, later items do not matter.
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
    cpu::pack_signs(signs_, items, false, threads);
  }
  void unpack_signs(std::span<const SignItem> items, int threads, void*) override {
    cpu::unpack_signs(signs_, items, threads);
  }
  void vote_signs(const VoteItem& item, int threads, void*) override { cpu::vote_signs(signs_, item, threads); }
  void count_signs(const CountItem& item, int threads, void*) override { cpu::count_signs(signs_, item, threads); }
  void apply_signs(std::span<const ApplyItem> items, int threads, void*) override {
    cpu::apply_signs(sign_steps_, items, threads);
  }
  void feedback(std::span<const FeedbackItem> items, int threads, void*) override {
    cpu::feedback(sign_steps_, items, threads);
  }

 private:
  // Calls work(item, first block, end block) for the blocks of all items, and prefetches a later item with ahead(item).
  // work returns false if later blocks are not needed.
  template <class Work>
  void for_each_blocks(std::span<const StepItem> items, int threads, void (*ahead)(const StepItem&), Work&& work) {
    for_each_piece(items, kBlocksAtOnce, threads, starts_, blocks_of,
                   [&](const StepItem& item, int64_t begin, int64_t end) {
                     const size_t i = static_cast<size_t>(&item - items.data());
                     if (i + 2 < items.size()) ahead(items[i + 2]);  // prefetching the next item would be 3 % too late
                     return work(item, begin + item.first_block, end + item.first_block);
                   });
  }

  void step_blocks(const StepItem& item, int64_t begin, int64_t end) const {
    const DType param_dtype = item.ballot ? DType::kF32 : item.param_dtype;
    // Kernels see a parameter with a master as floats.
    const DType kernel_dtype = has_master(item) ? DType::kF32 : param_dtype;
    const int pair = static_cast<int>(kernel_dtype) * kDTypes + static_cast<int>(item.grad_dtype);
    const StepKernel own = steps_.of[item.rule][item.codec][pair];
    const StepKernel kernel = own ? own : steps_.of[item.rule][item.codec][kFloats];
    const int64_t p_bytes = own ? dtype_bytes(kernel_dtype) : sizeof(float);
    const int64_t g_bytes = own ? dtype_bytes(item.grad_dtype) : sizeof(float);
    StepRun run{};
    run.args = item.args;
    run.grad_scale = item.grad_scale;
    run.stochastic = item.stochastic;
    const int64_t row_length = item.param_layout->row_length;
    const int64_t origin = item.first_block ? elements_before_block(row_length, item.first_block, kBlock) : 0;
    const RuleInfo& rule = rule_info(item.rule);
    const StateFormat(&formats)[2] = codec_info(item.codec).format;
    const auto kernel_on = [&](void* p, const void* g, int64_t first, int64_t n, int64_t block) {
      for (int64_t done = 0; done < n; done += run.n) {
        run.param = at(p, done, p_bytes);
        run.grad = at(g, done, g_bytes);
        run.n = begin_random(item, first + done, n - done, run);
        for (int k = 0; k < rule.states; ++k) {
          const StateFormat& format = formats[(rule.signed_mask >> k) & 1];
          const int64_t scales = (block + done / kBlock - item.first_block) * format.scales;
          run.codes[k] = static_cast<std::byte*>(item.codes[k]) + format.code_bytes(first + done - origin);
          run.scales[k] = item.scales[k] ? item.scales[k] + scales : nullptr;
        }
        kernel(run);
      }
    };
    for_each_run(row_length, begin, end, [&](int64_t first, int64_t n, int64_t block) {
      if (item.ballot) return make_ballot(item, !own, first, n, block, kernel_on);
      if (own && !has_master(item) && item.param_layout->contiguous && item.grad_layout->contiguous) {
        kernel_on(at(item.param, first, p_bytes), at(item.grad, first, g_bytes), first, n, block);
        return;
      }
      // Strided tensors, and pairs of element types without a kernel, are staged in the cache; the arithmetic is the
      // same.
      Staged grad(aux_, item.grad_dtype, !own);
      Staged param = staged_param(item, origin, !own);
      for (int64_t done = 0; done < n; done += kStaged) {
        const int64_t e = first + done, count = std::min(kStaged, n - done);
        const void* g = grad.read(*item.grad_layout, item.grad, e, count);
        void* p = const_cast<void*>(param.read(*item.param_layout, item.param, e, count));
        kernel_on(p, g, e, count, block + done / kBlock);
        param.write(*item.param_layout, item.param, e, count);
      }
    });
  }

  // put(run, first block): sets where the run's norms or sums go.
  template <class Put>
  void norm_blocks(const StepItem& item, int64_t begin, int64_t end, Put&& put) const {
    const NormKernel kernel = pick_norms(item.rule, item.codec, target_.bit);
    const RuleInfo& rule = rule_info(item.rule);
    NormRun run{};
    run.args = item.args;
    run.grad_scale = item.grad_scale;
    const int64_t origin = elements_before_block(item.param_layout->row_length, item.first_block, kBlock);
    for_each_run(item.param_layout->row_length, begin, end, [&](int64_t first, int64_t n, int64_t block) {
      Staged param = staged_param(item, origin, true), grad(aux_, item.grad_dtype, true);
      for (int64_t done = 0; done < n; done += kStaged) {
        const int64_t e = first + done, at = block + done / kBlock;
        static_assert(kStaged <= kMostSummed);
        run.n = std::min(kStaged, n - done);
        run.grad = static_cast<const float*>(grad.read(*item.grad_layout, item.grad, e, run.n));
        run.param = rule.sums ? run.grad  // sums need no weights
                              : static_cast<const float*>(param.read(*item.param_layout, item.param, e, run.n));
        put(run, at);
        for (int k = 0; (rule.sums || rule.norms_read_state) && k < rule.states; ++k) {
          const StateFormat& format = format_of(item.rule, item.codec, k);
          run.codes[k] = static_cast<const std::byte*>(item.codes[k]) + format.code_bytes(e - origin);
          run.scales[k] = item.scales[k] ? item.scales[k] + (at - item.first_block) * format.scales : nullptr;
        }
        kernel(run);
      }
    });
  }

  // Stages the parameter, with its master's precision if it has one; it is then always floats.
  Staged staged_param(const StepItem& item, int64_t origin, bool as_floats) const {
    return has_master(item) ? Staged(aux_, item, origin) : Staged(aux_, item.param_dtype, as_floats);
  }

  // Sets the source of random bits of `run` for element `first` of the parameter. Returns how many of the next n
  // elements share a run: up to a carry out of the index's low half and, if rows of the whole are longer, the row's
  // end.
  static int64_t begin_random(const StepItem& item, int64_t first, int64_t n, StepRun& run) {
    if (!item.stochastic) return n;
    const RandomRun random = random_run_at(item, first, n);
    run.index = random.index;
    keys_at(item, random.index_high, run.key);
    return random.count;
  }

  // Steps elements [first, first + n) from `block` on, with a tile of zeros as the parameter.
  template <class KernelOn>
  void make_ballot(const StepItem& item, bool as_floats, int64_t first, int64_t n, int64_t block,
                   KernelOn&& kernel_on) const {
    const BallotTarget& to = *item.ballot;
    BallotTile tile;
    Staged grad(aux_, item.grad_dtype, as_floats);
    static_assert(kBallotTile % kBlock == 0 && kBallotTile <= kStaged);
    for (int64_t done = 0; done < n; done += kBallotTile) {
      const int64_t e = first + done, count = std::min<int64_t>(kBallotTile, n - done);
      const void* g = grad.read(*item.grad_layout, item.grad, e, count);
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
        const StateFormat& format = format_of(item);
        kernel(CodecRun{item.values + (first - origin),
                        static_cast<std::byte*>(item.codes) + format.code_bytes(first - origin),
                        item.scales ? item.scales + (block - item.first_block) * format.scales : nullptr, n});
      });
    });
  }

  Target target_;
  AuxKernels aux_;
  SignKernels signs_;
  SignStepKernels sign_steps_;
  StepKernels steps_;
  std::vector<int64_t> starts_;  // first block of each item; kept between steps to reuse its memory
};

}  // namespace

std::unique_ptr<Backend> make_backend(const std::string& target) {
  return std::make_unique<CpuBackend>(find_target(target));
}

int64_t target_bit(const std::string& name) { return find_target(name).bit; }

}  // namespace lowtide::cpu
