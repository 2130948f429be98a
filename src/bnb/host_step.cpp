#include "bnb/host_step.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "bnb/map8.h"
#include "bnb/rule_tile.h"
#include "core/error.h"
#include "core/thread_pool.h"

namespace lowtide::bnb {
namespace {

constexpr int64_t kBlocksAtOnce = 64;  // of a thread's piece

// Calls work(piece, first block, end block) for all pieces on up to `threads` threads.
template <class Fn>
void for_each_piece(int64_t blocks, int threads, Fn&& work) {
  const int64_t pieces = (blocks + kBlocksAtOnce - 1) / kBlocksAtOnce;
  parallel_for(pieces, threads, [&](int64_t piece) {
    work(piece, piece * kBlocksAtOnce, std::min(blocks, (piece + 1) * kBlocksAtOnce));
  });
}

// Between the arrays of an update and a tile of one block.
class Blocks {
 public:
  explicit Blocks(const Update& u) : u_(u), states_(u.states()), element_(dtype_bytes(u.dtype)) {
    for (int k = 0; u.coded && k < states_; ++k) maps_[k] = Map8(u.quantiles(k), u.is_second_moment(k));
  }

  void load(int64_t block, RuleTile& tile) const {
    const int64_t first = block * kBlockElements;
    tile.n = static_cast<int>(std::min<int64_t>(kBlockElements, u_.n - first));
    load_elements(u_.dtype, static_cast<const std::byte*>(u_.p) + first * element_, tile.n, tile.p);
    load_elements(u_.dtype, static_cast<const std::byte*>(u_.g) + first * element_, tile.n, tile.g);
    for (int i = 0; i < tile.n; ++i) tile.g[i] = tile.g[i] * u_.gnorm_scale;
    for (int k = 0; k < states_; ++k) {
      if (u_.coded)
        maps_[k].decode(codes(k) + first, u_.absmax(k)[block], tile.n, tile.s[k]);
      else
        std::memcpy(tile.s[k], floats(k) + first, static_cast<size_t>(tile.n) * sizeof(float));
    }
  }

  void store(int64_t block, RuleTile& tile) const {
    const int64_t first = block * kBlockElements;
    store_elements(u_.dtype, tile.p, tile.n, static_cast<std::byte*>(u_.p) + first * element_);
    for (int k = 0; k < states_; ++k) {
      if (u_.coded)
        u_.absmax(k)[block] = maps_[k].encode(tile.s[k], tile.n, codes(k) + first);
      else
        std::memcpy(floats(k) + first, tile.s[k], static_cast<size_t>(tile.n) * sizeof(float));
    }
  }

 private:
  uint8_t* codes(int k) const { return static_cast<uint8_t*>(u_.state(k)); }
  float* floats(int k) const { return static_cast<float*>(u_.state(k)); }

  const Update& u_;
  int states_;
  int64_t element_;
  Map8 maps_[kMaxStates];
};

}  // namespace

double update_norm_squared(const Update& update, int threads) {
  Update u = update;
  u.lr = -1, u.weight_decay = 0;  // a parameter of 0 becomes the update
  const ArgsBytes args = args_of(u, 1);
  const RunTile run = run_tile_of(u.family);
  const Blocks blocks(u);
  std::vector<double> sums(static_cast<size_t>((u.blocks() + kBlocksAtOnce - 1) / kBlocksAtOnce));
  for_each_piece(u.blocks(), threads, [&](int64_t piece, int64_t begin, int64_t end) {
    RuleTile tile;
    for (int64_t block = begin; block < end; ++block) {
      blocks.load(block, tile);
      std::fill_n(tile.p, tile.n, 0.f);
      run(tile, args.data, nullptr);
      for (int i = 0; i < tile.n; ++i) sums[static_cast<size_t>(piece)] += static_cast<double>(tile.p[i]) * tile.p[i];
    }
  });
  double sum = 0;
  for (const double one : sums) sum += one;
  return sum;
}

void step_blocks(const Update& u, const ArgsBytes& args, int threads) {
  const RunTile run = run_tile_of(u.family);
  const Blocks blocks(u);
  const float l2 = u.l2();
  for_each_piece(u.blocks(), threads, [&](int64_t, int64_t begin, int64_t end) {
    RuleTile tile;
    for (int64_t block = begin; block < end; ++block) {
      blocks.load(block, tile);
      run(tile, args.data, u.skip_zeros ? &l2 : nullptr);
      blocks.store(block, tile);
    }
  });
}

void require_finite_gradient(Backend& backend, const StepItem& item, int threads, void* queue) {
  LT_REQUIRE(backend.first_nonfinite({&item, 1}, threads, queue) < 0,
             "got a gradient that is not finite, or of 2^62 and above; wanted numbers: the step is not made");
}

void step_on_host(const Update& u, Backend& cpu, int threads) {
  check_arguments(u);
  if (u.n == 0) return;
  check_scales(u);
  const Layout layout = flat_layout(u.n);
  StepItem item = item_of(u, layout, nullptr);
  require_finite_gradient(cpu, item, threads, nullptr);
  double scale = 1;
  if (u.is_limited()) {
    const double squared = update_norm_squared(u, threads), norm = std::sqrt(squared);
    const double slack = u.family == Family::adam ? 0 : u.eps;
    const double most = static_cast<double>(u.max_unorm) * u.param_norm + slack;
    LT_REQUIRE(std::isfinite(static_cast<float>(squared)),
               "got updates whose squares add up to %g, wanted a sum that float32 can hold", squared);
    if (norm > most) scale = most / norm;
    *u.unorm = static_cast<float>(squared);
  }
  const ArgsBytes args = args_of(u, scale);
  if (!fits_backend(u)) return step_blocks(u, args, threads);
  item.args = args.data;
  cpu.step({&item, 1}, threads, false, nullptr);
}

}  // namespace lowtide::bnb
