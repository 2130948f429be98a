#include "bnb/update.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "bnb/map8.h"
#include "core/error.h"
#include "core/thread_pool.h"

namespace lowtide::bnb {
namespace {

constexpr int64_t kPiece = 64 * kBlockElements;  // elements in a thread's piece, which has one partial sum of a norm
constexpr int64_t kChunk = 16 * kPiece;          // elements whose states are floats at a time

// Steps the elements of an Update chunk by chunk with a backend, which sees the states as floats.
class FloatSteps {
 public:
  FloatSteps(const Update& u, const ArgsBytes& args, Backend& cpu, int threads)
      : u_(u), args_(args), cpu_(cpu), threads_(threads), element_(dtype_bytes(u.dtype)) {
    for (int k = 0; k < u.states(); ++k) {
      if (u.coded) maps_[k] = Map8(u.quantiles(k), u.is_second_moment(k));
      state_[k].resize(static_cast<size_t>(std::min(u.n, kChunk)));
    }
  }

  // Converts the states of elements [first, first + n), n <= kChunk, to floats.
  void load(int64_t first, int64_t n) {
    first_ = first, n_ = n;
    for (int k = 0; k < u_.states(); ++k) {
      if (!u_.coded) std::copy_n(floats(k), n, state_[k].data());
      for_each_block(u_.coded, [&](int64_t at, int64_t block, int count) {
        maps_[k].decode(codes(k) + at, u_.absmax(k)[block], count, state_[k].data() + at);
      });
    }
  }

  // Steps `param`, which holds the chunk's elements or replaces them.
  void step(void* param, DType dtype) {
    Update chunk = u_;
    chunk.p = param, chunk.g = grad(), chunk.coded = false;
    const Layout layout = flat_layout(n_);
    StepItem item = item_of(chunk, layout, args_.data);
    item.param_dtype = dtype;
    for (int k = 0; k < u_.states(); ++k) item.codes[k] = state_[k].data();
    cpu_.step({&item, 1}, threads_, false, nullptr);
  }

  // Steps only elements whose gradient, plus `l2` times the parameter, is not zero.
  void step_nonzero(float l2) {
    const std::vector<std::byte> old_param(param(), param() + n_ * element_);
    std::vector<float> old_state[kMaxStates];
    for (int k = 0; k < u_.states(); ++k) old_state[k] = state_[k];
    step(param(), u_.dtype);
    parallel_for((n_ + kPiece - 1) / kPiece, threads_, [&](int64_t piece) {
      for (int64_t i = piece * kPiece; i < std::min(n_, (piece + 1) * kPiece); ++i) {
        const float g = value_of(u_.dtype, grad(), i) * u_.gnorm_scale;
        if (g + value_of(u_.dtype, old_param.data(), i) * l2 != 0) continue;
        std::copy_n(old_param.data() + i * element_, element_, param() + i * element_);
        for (int k = 0; k < u_.states(); ++k) state_[k][static_cast<size_t>(i)] = old_state[k][static_cast<size_t>(i)];
      }
    });
  }

  // Converts the states from floats.
  void store() {
    for (int k = 0; k < u_.states(); ++k) {
      if (!u_.coded) std::copy_n(state_[k].data(), n_, floats(k));
      for_each_block(u_.coded, [&](int64_t at, int64_t block, int count) {
        u_.absmax(k)[block] = maps_[k].encode(state_[k].data() + at, count, codes(k) + at);
      });
    }
  }

  std::byte* param() const { return static_cast<std::byte*>(u_.p) + first_ * element_; }

 private:
  const std::byte* grad() const { return static_cast<const std::byte*>(u_.g) + first_ * element_; }
  uint8_t* codes(int k) const { return static_cast<uint8_t*>(u_.state(k)) + first_; }
  float* floats(int k) const { return static_cast<float*>(u_.state(k)) + first_; }

  // If there are codes, calls work(first element in the chunk, number of the block in the array, elements) for each
  // block.
  template <class Work>
  void for_each_block(bool coded, Work&& work) const {
    parallel_for(coded ? (n_ + kPiece - 1) / kPiece : 0, threads_, [&](int64_t piece) {
      for (int64_t at = piece * kPiece; at < std::min(n_, (piece + 1) * kPiece); at += kBlockElements)
        work(at, (first_ + at) / kBlockElements, static_cast<int>(std::min<int64_t>(kBlockElements, n_ - at)));
    });
  }

  const Update& u_;
  const ArgsBytes& args_;
  Backend& cpu_;
  int threads_;
  int64_t element_, first_ = 0, n_ = 0;
  Map8 maps_[kMaxStates];
  std::vector<float> state_[kMaxStates];
};

}  // namespace

double update_norm_squared(const Update& update, Backend& cpu, int threads) {
  Update u = update;
  u.lr = -1, u.weight_decay = 0;  // a parameter of 0 becomes the update
  const ArgsBytes args = args_of(u, 1);
  FloatSteps steps(u, args, cpu, threads);
  std::vector<double> sums(static_cast<size_t>((u.n + kPiece - 1) / kPiece));
  std::vector<float> moved(static_cast<size_t>(std::min(u.n, kChunk)));
  for (int64_t first = 0; first < u.n; first += kChunk) {
    const int64_t n = std::min(kChunk, u.n - first);
    std::fill_n(moved.begin(), n, 0.f);
    steps.load(first, n);
    steps.step(moved.data(), DType::kF32);
    parallel_for((n + kPiece - 1) / kPiece, threads, [&](int64_t piece) {
      double& sum = sums[static_cast<size_t>(first / kPiece + piece)];
      for (int64_t i = piece * kPiece; i < std::min(n, (piece + 1) * kPiece); ++i)
        sum += static_cast<double>(moved[static_cast<size_t>(i)]) * moved[static_cast<size_t>(i)];
    });
  }
  double sum = 0;
  for (const double one : sums) sum += one;
  return sum;
}

void step_floats(const Update& u, const ArgsBytes& args, Backend& cpu, int threads) {
  FloatSteps steps(u, args, cpu, threads);
  for (int64_t first = 0; first < u.n; first += kChunk) {
    steps.load(first, std::min(kChunk, u.n - first));
    if (u.skip_zeros)
      steps.step_nonzero(u.l2());
    else
      steps.step(steps.param(), u.dtype);
    steps.store();
  }
}

void require_finite_gradient(int64_t bad) {
  LT_REQUIRE(bad < 0,
             "got a gradient that is not finite or has a magnitude of 2^62 and above, wanted smaller numbers; nothing "
             "was changed");
}

void step_on_host(const Update& u, Backend& cpu, int threads) {
  check_arguments(u);
  if (u.n == 0) return;
  check_scales(u);
  const Layout layout = flat_layout(u.n);
  StepItem item = item_of(u, layout, nullptr);
  require_finite_gradient(cpu.first_nonfinite({&item, 1}, threads, nullptr));
  double scale = 1;
  if (u.is_limited()) {
    const double squared = update_norm_squared(u, cpu, threads), norm = std::sqrt(squared);
    const double slack = u.family == Family::adam ? 0 : u.eps;
    const double most = static_cast<double>(u.max_unorm) * u.param_norm + slack;
    LT_REQUIRE(std::isfinite(static_cast<float>(squared)),
               "got updates whose squares add up to %g, wanted a sum that float32 can hold", squared);
    if (norm > most) scale = most / norm;
    *u.unorm = static_cast<float>(squared);
  }
  const ArgsBytes args = args_of(u, scale);
  if (!fits_backend(u)) return step_floats(u, args, cpu, threads);
  item.args = args.data;
  cpu.step({&item, 1}, threads, false, nullptr);
}

}  // namespace lowtide::bnb
