// For the tests of the CUDA backend's host code: an emulated machine for each test, and small models on it.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "backend/cuda/host/cuda_backend.h"
#include "backend/cuda/host/errors.h"
#include "backend/catalog.h"
#include "cuda_emulator.h"
#include "support/test.h"

namespace lowtide::cuda_host {

using lowtide::testing::expect_refusal;
using lowtide::testing::refusal;

// Every test begins with a machine that has nothing, and ends with one on which nothing was misused.
class Emulated : public ::testing::Test {
 protected:
  static void restart(const cuda_emulator::Settings& settings) {
    cuda_emulator::reset(settings);
    for (int ordinal = 0; ordinal < 4; ++ordinal) lost(ordinal) = false;
  }
  void SetUp() override { restart({}); }
  void TearDown() override {
    cuda_emulator::check_edges();
    const auto found = cuda_emulator::take_misuses();
    EXPECT_TRUE(found.empty()) << found[0];
    restart({});
  }
};

// The same for optimizers and the C interface, which find the plug-in as programs do.
class ThroughPlugin : public Emulated {
 protected:
  void SetUp() override {
    Emulated::SetUp();
    setenv("LOWTIDE_CUDA_PLUGIN", LT_CUDA_EMULATED, 1);
  }
  void TearDown() override {
    unsetenv("LOWTIDE_CUDA_PLUGIN");
    Emulated::TearDown();
  }
};

// The graph that a stream has captured.
struct Graph {
  explicit Graph(cudaStream_t stream) {
    EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    EXPECT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
  }
  ~Graph() {
    EXPECT_EQ(cudaGraphExecDestroy(executable), cudaSuccess);
    EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  }
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
};

inline void expect_words(const std::string& text, std::initializer_list<const char*> words) {
  for (const char* word : words) EXPECT_NE(text.find(word), std::string::npos) << word << " not in: " << text;
}

// Parameters of float32 and plain SGD of rate 1: a step subtracts grad_scale times the gradient, which is the number of
// the parameter, from 1, at the start.
class Model {
 public:
  Model(Backend& backend, const std::vector<int64_t>& sizes, cudaStream_t stream)
      : device_(*backend.device()), stream_(stream), args_(kArgsBytes) {
    RuleInput hyper{};
    hyper.lr = 1, hyper.t = 1;
    const int rule = effective_rule(find_rule("sgd"), {});
    rule_info(rule).make_args(hyper, args_.data());
    for (size_t i = 0; i < sizes.size(); ++i) {
      layouts_.push_back(Layout::make({&sizes[i], 1}, {}));
      const int64_t bytes = sizes[i] * 4;
      params_.emplace_back(device_, MemoryKind::kDevice, bytes);
      grads_.emplace_back(device_, MemoryKind::kDevice, bytes);
      device_.fill(stream, params_[i].data(), 0, 4, sizes[i]);
      fill_gradient(i, static_cast<float>(i + 1));
      StepItem item;
      item.param = params_[i].data(), item.grad = grads_[i].data();
      item.param_layout = item.grad_layout = &layouts_[i];
      item.rule = rule, item.codec = find_codec("fp32");
      item.args = args_.data();
      items_.push_back(item);
    }
  }

  void fill_gradient(size_t i, float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    device_.fill(stream_, grads_[i].data(), bits, 4, layouts_[i].numel);
  }
  std::vector<StepItem>& items(float scale = 1, Guard* guard = nullptr) {
    for (StepItem& item : items_) item.grad_scale = scale, item.guard = guard;
    return items_;
  }
  // The number of times that each parameter's gradient was subtracted; -1: its elements differ.
  std::vector<int> steps() {
    std::vector<int> all;
    for (size_t i = 0; i < items_.size(); ++i) {
      std::vector<float> values(static_cast<size_t>(layouts_[i].numel));
      device_.copy(stream_, values.data(), params_[i].data(), layouts_[i].numel * 4);
      device_.host_wait(device_.record(stream_));
      const float count = -values[0] / static_cast<float>(i + 1);
      bool alike = true;
      for (const float value : values) alike = alike && value == values[0];
      all.push_back(alike ? static_cast<int>(count) : -1);
    }
    return all;
  }

 private:
  Device& device_;
  cudaStream_t stream_;
  std::vector<unsigned char> args_;
  std::deque<Layout> layouts_;
  std::vector<DeviceBytes> params_, grads_;
  std::vector<StepItem> items_;
};

inline cudaStream_t own_stream(Backend& backend) { return static_cast<cudaStream_t>(backend.device()->make_queue()); }

}  // namespace lowtide::cuda_host
