// A whole optimizer under faults: parameters under two budgets with a disk and one without, the same gradients in each
// trial, and the expected blocks of parameters and states after each number of steps.
#pragma once

#include "backend/limits.h"
#include "optim/optimizer_impl.h"
#include "support/optimizer_case.h"
#include "support/test.h"

namespace lowtide::testing {

constexpr int kTrialSteps = 6;
constexpr int kLateStep = 3;  // the first step with gradients for the parameters that are added late

struct TrialParam {
  std::vector<int64_t> sizes;
  int group;
  bool late;
};
// Covers a parameter of several chunks, a chunk of several parameters, and rows that end within a block.
inline const std::vector<TrialParam> kTrialParams = {{{23000}, 0, false},   {{7, 1000}, 0, false}, {{}, 0, false},
                                                     {{40, 256}, 1, false}, {{5000}, 1, false},    {{1000}, 2, false},
                                                     {{9000}, 0, true},     {{3, 900}, 3, true}};
constexpr int kTrialGroups = 3;  // and one more, added late

// Parameters and states as bytes.
struct Image {
  struct Param {
    std::vector<std::byte> data;
    std::array<std::vector<std::byte>, kMaxStates> codes;
    std::array<std::vector<float>, kMaxStates> scales;
    int64_t steps = 0;
  };
  std::vector<Param> params;
};

class Trial {
 public:
  // disk "": everything in RAM; else RAM for the rings of the groups with a budget, and little more.
  explicit Trial(Env& env, const std::string& disk, const std::string& rule = "adamw") : disk_(disk) {
    OptimizerOptions options{.rule = rule, .threads = 1, .memory = budget(5)};
    optimizer_.emplace(OptimizerEnv::make(options, env));
    hyper_ = default_hyper(rule);
    if (rule == "sgd") hyper_.momentum = 0.9, hyper_.dampening = 0.1;  // makes the first step special
    for (int group = 0; group < kTrialGroups; ++group) add_group(group);
    Rng rng(11);
    for (const TrialParam& param : kTrialParams) params_.emplace_back(DType::kF32, param.sizes).randomize(rng);
    for (size_t i = 0; i < kTrialParams.size(); ++i)
      if (!kTrialParams[i].late) add_param(i);
  }

  Optimizer& optimizer() { return *optimizer_; }
  Tensor& param(size_t i) { return params_[i]; }

  // Adds the late group and parameters. May be called again after a failure.
  void add_late() {
    if (groups_ == kTrialGroups) add_group(kTrialGroups);
    for (auto i = static_cast<size_t>(optimizer_->param_count()); i < kTrialParams.size(); ++i) add_param(i);
  }

  void step(int number) {
    std::vector<Gradient> gradients;
    for (size_t i = 0; i < static_cast<size_t>(optimizer_->param_count()); ++i) {
      const bool none = kTrialParams[i].late && number < kLateStep;
      gradients.push_back(none ? Gradient{} : gradient(i, number).gradient());
    }
    optimizer_->step(gradients);
  }

  // Moves parameters to new addresses, with the same values.
  void move_params() {
    for (size_t i = 0; i < static_cast<size_t>(optimizer_->param_count()); ++i) {
      Tensor moved = params_[i];
      std::swap(moved, params_[i]);
      optimizer_->rebind(static_cast<int64_t>(i), params_[i].view());
    }
  }

  // Parameters without state have none in the image. Throws what read_state throws.
  Image image() const {
    Image out;
    for (size_t i = 0; i < static_cast<size_t>(optimizer_->param_count()); ++i) {
      const auto number = static_cast<int64_t>(i);
      Image::Param& to = out.params.emplace_back();
      to.data = params_[i].data;
      to.steps = optimizer_->steps(number);
      size_t k = 0;
      for (const StateView& view : optimizer_->state(number)) {
        to.codes[k].resize(static_cast<size_t>(view.numel * view.code_bits / 8));
        to.scales[k].resize(static_cast<size_t>(view.rows * view.scales_per_row));
        optimizer_->read_state(number, static_cast<int>(k), to.codes[k].data(), to.scales[k].data());
        ++k;
      }
    }
    return out;
  }

 private:
  // Returns a budget with RAM for `chunks` chunks.
  Memory budget(int64_t chunks) const {
    constexpr int64_t kChunk = 8192;
    return disk_.empty() ? Memory{} : Memory{chunks * kChunk, disk_, -1, kChunk};
  }
  void add_group(int number) {
    GroupOptions options{.hyper = hyper_, .state = "dynamic8", .min_quantized_numel = 0};
    if (number == 1) options.memory = budget(4);
    if (number == 2) options.memory = Memory{};
    if (number == 3) options.memory = disk_.empty() ? Memory{} : Memory{4096, disk_, -1, 4096};
    optimizer_->add_group(options);
    ++groups_;
  }
  void add_param(size_t i) { optimizer_->add_param(kTrialParams[i].group, params_[i].view()); }

  // All trials share these gradients.
  static const Tensor& gradient(size_t i, int number) {
    static const std::vector<std::vector<Tensor>> all = [] {
      std::vector<std::vector<Tensor>> made(kTrialSteps);
      Rng rng(12);
      for (std::vector<Tensor>& of_step : made)
        for (const TrialParam& param : kTrialParams) of_step.emplace_back(DType::kF32, param.sizes).randomize(rng, 0.1);
      return made;
    }();
    return all[static_cast<size_t>(number)][i];
  }

  std::string disk_;
  Hyper hyper_;
  int groups_ = 0;
  std::vector<Tensor> params_;
  std::optional<Optimizer> optimizer_;
};

// Returns images of a trial in RAM after 0, 1, ... kTrialSteps steps, without step `missed` (-1: with all).
inline std::vector<Image> reference_images(int missed = -1, const std::string& rule = "adamw") {
  Trial trial(system_env(), "", rule);
  trial.add_late();
  std::vector<Image> images = {trial.image()};
  for (int number = 0; number < kTrialSteps; ++number) {
    if (number != missed) trial.step(number);
    images.push_back(trial.image());
  }
  return images;
}

// Returns a mask for each block of parameters and states (or only of states): the candidates that it equals.
inline std::vector<uint32_t> matches(const Image& got, const std::vector<const Image*>& candidates,
                                     bool parameters = true) {
  std::vector<uint32_t> out;
  for (size_t i = 0; i < got.params.size(); ++i) {
    const Image::Param& mine = got.params[i];
    const auto numel = static_cast<int64_t>(mine.data.size()) / 4;
    const int64_t rows = kTrialParams[i].sizes.size() < 2 ? 1 : kTrialParams[i].sizes[0];
    const int64_t length = numel / rows, per_row = (length + 255) / 256;
    for (int64_t block = 0; block < rows * per_row; ++block) {
      const int64_t column = block % per_row * 256, first = block / per_row * length + column;
      const int64_t n = std::min<int64_t>(256, length - column);
      uint32_t mask = 0;
      for (size_t c = 0; c < candidates.size(); ++c) {
        const Image::Param& wanted = candidates[c]->params[i];
        bool same =
            !parameters || std::memcmp(&mine.data[static_cast<size_t>(first * 4)],
                                       &wanted.data[static_cast<size_t>(first * 4)], static_cast<size_t>(n * 4)) == 0;
        for (size_t k = 0; k < kMaxStates; ++k) {
          if (mine.codes[k].empty()) {  // no state yet equals zeros that no step has touched
            same = same && (wanted.steps == 0 || wanted.codes[k].empty());
            continue;
          }
          const auto bytes = static_cast<int64_t>(mine.codes[k].size()) / numel;
          same = same &&
                 std::memcmp(&mine.codes[k][static_cast<size_t>(first * bytes)],
                             &wanted.codes[k][static_cast<size_t>(first * bytes)], static_cast<size_t>(n * bytes)) == 0;
          if (!mine.scales[k].empty())
            same = same && std::memcmp(&mine.scales[k][static_cast<size_t>(block)],
                                       &wanted.scales[k][static_cast<size_t>(block)], 4) == 0;
        }
        if (same) mask |= uint32_t{1} << c;
      }
      out.push_back(mask);
    }
  }
  return out;
}

}  // namespace lowtide::testing
