// Pairs of optimizers, one in host memory and one on a device, for comparison.
#pragma once

#include "backend/backend.h"
#include "backend/catalog.h"
#include "optim/optimizer_impl.h"
#include "support/optimizer_case.h"
#include "support/test.h"
#include "support/tested_rules.h"

namespace lowtide::testing {

// Tensors in a device's memory, filled on a queue.
class DeviceTensors {
 public:
  DeviceTensors(Device& device, void* queue) : device_(device), queue_(queue) {}

  void* put(const Tensor& tensor) {
    const auto bytes = static_cast<int64_t>(tensor.data.size());
    memory_.emplace_back(device_, MemoryKind::kDevice, std::max<int64_t>(bytes, 1));
    set(memory_.back().data(), tensor);
    return memory_.back().data();
  }
  // Queues a late copy; the contents are kept until then.
  void set(void* to, const Tensor& tensor) {
    kept_.push_back(tensor.data);
    if (!tensor.data.empty()) device_.copy(queue_, to, kept_.back().data(), static_cast<int64_t>(tensor.data.size()));
  }
  void get(const void* from, Tensor& tensor) {
    if (tensor.data.empty()) return;
    device_.copy(queue_, tensor.data.data(), from, static_cast<int64_t>(tensor.data.size()));
    device_.host_wait(device_.record(queue_));
  }

 private:
  Device& device_;
  void* queue_;
  std::deque<DeviceBytes> memory_;
  std::deque<std::vector<std::byte>> kept_;
};

// Two equal optimizers: one in host memory, one on a device under `memory`.
class Twins {
 public:
  Twins(Rng& rng, Config setup, const lowtide::Memory& memory, std::unique_ptr<Backend> backend,
        const DeviceAllocator& allocator = {}, Env& env = system_env())
      : rng_(rng), rule_(setup.rule), on_host_(make_optimizer(setup)), device_(*backend->device()) {
    queue_ = device_.make_queue();
    tensors_.emplace(device_, queue_);
    OptimizerOptions options{
        .rule = setup.rule, .nonfinite = setup.nonfinite, .threads = 1, .memory = memory, .allocator = allocator};
    on_device_.emplace(OptimizerEnv::make(options, env, std::move(backend)));
    group_.hyper = setup.hyper;
    group_.state = setup.state;
    group_.min_quantized_numel = setup.min_quantized_numel;
    group_.rounding = setup.rounding;
    group_.master = setup.master;
    on_device_->add_group(group_);
  }
  ~Twins() {
    try {
      device_.host_wait(device_.record(queue_));  // copies of the kept tensors may still be queued
    } catch (const Error&) {                      // a lost device has no such copies
    }
    tensors_.reset();  // before the device itself
  }

  void add(DType dtype, std::vector<int64_t> sizes) {
    Tensor& param = params_.emplace_back(dtype, sizes);
    param.randomize(rng_);
    on_host_.add_param(0, param.view());
    grads_.emplace_back(rng_.chance(0.5) ? dtype : DType::kF32, std::move(sizes));
    device_params_.push_back(tensors_->put(param));
    device_grads_.push_back(tensors_->put(grads_.back()));
    on_device_->add_param(0, {device_params_.back(), dtype, param.sizes, {}});
  }

  // share: of the parameters, which get a gradient.
  void step(double share = 1) {
    step_where([&](size_t) { return rng_.chance(share); });
  }
  // Steps the parameters whose numbers pass has_gradient.
  template <class Fn>
  void step_where(Fn&& has_gradient) {
    // A call between steps would receive the error that a later step should raise.
    if (rule_info(find_rule(rule_)).make_average_args && steps_ > 0 && !raises_later && rng_.chance(0.3)) evaluate();
    std::vector<Gradient> here, there;
    for (size_t i = 0; i < params_.size(); ++i) {
      if (!has_gradient(i)) {
        here.emplace_back();
        there.emplace_back();
        continue;
      }
      if (!same_gradients || steps_ == 0) grads_[i].randomize(rng_);
      if (spoil) spoil(grads_[i]);
      if (!same_gradients || steps_ == 0)
        tensors_->set(device_grads_[i], grads_[i]);  // ordered after the previous step, which may still run
      here.push_back(grads_[i].gradient());
      if (grads_[i].numel == 0) here.back().data = this;  // with any address it counts as stepped, as on the device
      there.push_back({device_grads_[i], grads_[i].dtype, nullptr});
    }
    StepOptions at_host, options;
    options.stream = queue_;
    if (max_norm > 0) clip(here, there, at_host, options);
    try {
      on_host_.step(here, at_host);
    } catch (const Error& error) {
      if (!raises_later) throw;
      ++raised_here;
    }
    options.free_bytes = free_bytes;
    if (before_device_step) before_device_step();
    try {
      on_device_->step(there, options);
    } catch (const Error& error) {  // from the previous step
      if (!raises_later || error.kind() != ErrorKind::kInvalidArgument) throw;
      ++raised_there;
      on_device_->step(there, options);
    }
    ++steps_;
    last_ = std::move(there);
  }
  // Takes the step of a replay, with new values, of a recording with these gradients.
  void replay(const std::vector<Gradient>& recorded, const std::function<void()>& queue_replay) {
    std::vector<Gradient> here(params_.size());
    for (size_t i = 0; i < params_.size(); ++i) {
      if (!recorded[i].data) continue;
      grads_[i].randomize(rng_);
      if (spoil) spoil(grads_[i]);
      tensors_->set(device_grads_[i], grads_[i]);
      here[i] = grads_[i].gradient();
      if (grads_[i].numel == 0) here[i].data = this;
    }
    on_host_.step(here);
    queue_replay();
    ++steps_;
  }
  // Moves to the evaluation weights, compares them, and moves back.
  void evaluate() {
    for (const bool evaluating : {true, false}) {
      on_host_.set_evaluating(evaluating);
      on_device_->set_evaluating(evaluating, queue_);
      if (evaluating) {
        EXPECT_EQ(differing(), 0);
      }
    }
  }
  const std::vector<Gradient>& last_gradients() const { return last_; }
  std::function<void(Tensor&)> spoil;  // changes gradients before their use
  bool same_gradients = false;         // reuses the first step's gradients, which take no time on the device's queue
  double max_norm = 0;                 // above 0: steps clip to this norm
  double norm_scale = 1;               // scale of the gradients whose norm is measured
  double grad_scale = 1;               // scale of steps, clipped ones included
  bool queues_clips = false;           // the device's clips are queued without a wait
  bool raises_later = false;           // on the device, a step throws the previous step's error
  int64_t raised_here = 0, raised_there = 0;
  int64_t free_bytes = -1;                   // passed to steps
  std::function<void()> before_device_step;  // runs when all inputs of a step are queued

  // Gives the device the host's parameters and state, after a step that failed half-way.
  void restore(const std::string& path) {
    for (size_t i = 0; i < params_.size(); ++i) tensors_->set(device_params_[i], params_[i]);
    on_host_.save(path);
    on_device_->load(path);
  }

  // The number of bytes in which parameters, states or counts differ.
  int64_t differing() {
    on_device_->place_states();  // the host's parameters got their state when they were added
    std::deque<Tensor> got = params_;
    std::vector<const Tensor*> mine, theirs;
    for (size_t i = 0; i < params_.size(); ++i) {
      tensors_->get(device_params_[i], got[i]);
      mine.push_back(&params_[i]);
      theirs.push_back(&got[i]);
    }
    const auto a = snapshot(on_host_, mine), b = snapshot(*on_device_, theirs);
    if (a.size() != b.size()) return -1;
    int64_t count = 0;
    for (size_t i = 0; i < a.size(); ++i) count += a[i] != b[i];
    bytes_ += static_cast<int64_t>(a.size());
    return count;
  }

  void* queue() const { return queue_; }
  std::vector<int64_t> sizes(int64_t param) const { return params_[static_cast<size_t>(param)].sizes; }
  Optimizer& on_host() { return on_host_; }
  Optimizer& on_device() { return *on_device_; }
  int64_t compared() const { return bytes_; }
  int64_t steps() const { return steps_; }

 private:
  void clip(std::span<const Gradient> here, std::span<const Gradient> there, StepOptions& at_host,
            StepOptions& on_device) {
    StepOptions measured, measured_there = on_device;
    measured.grad_scale = measured_there.grad_scale = norm_scale;
    // The host clips by plain options, whose check is the step's own.
    const ClippedNorm wanted = on_host_.clip_grad_norm(here, max_norm, 2, measured);
    at_host.grad_scale = wanted.grad_scale * grad_scale;
    Tensor norm(DType::kF32, {1});
    void* const norm_there = tensors_->put(norm);
    if (queues_clips) {
      on_device.clip =
          on_device_->queue_clip_grad_norm(there, max_norm, 2, static_cast<float*>(norm_there), measured_there);
      on_device.grad_scale = grad_scale;
      if (rng_.chance(0.7)) return;
    }
    const ClippedNorm got = on_device.clip ? Optimizer::clipped(*on_device.clip)
                                           : on_device_->clip_grad_norm(there, max_norm, 2, measured_there);
    EXPECT_TRUE(got.norm == wanted.norm || (std::isnan(got.norm) && std::isnan(wanted.norm)));
    EXPECT_EQ(got.grad_scale, wanted.grad_scale);
    EXPECT_EQ(got.finite, wanted.finite);
    if (on_device.clip && std::isfinite(got.norm)) {
      tensors_->get(norm_there, norm);
      EXPECT_EQ(norm.get(0), static_cast<float>(got.norm));
    }
    if (!on_device.clip)
      on_device.grad_scale = got.grad_scale * grad_scale, on_device.assume_finite = got.finite && grad_scale == 1;
  }

  Rng& rng_;
  std::string rule_;
  Optimizer on_host_;
  std::optional<Optimizer> on_device_;
  Device& device_;
  void* queue_;
  std::optional<DeviceTensors> tensors_;
  GroupOptions group_;
  std::deque<Tensor> params_, grads_;
  std::vector<void*> device_params_, device_grads_;
  std::vector<Gradient> last_;
  int64_t bytes_ = 0, steps_ = 0;
};

template <class T>
T pick(Rng& rng, const std::vector<T>& from) {
  return from[static_cast<size_t>(rng.below(static_cast<int64_t>(from.size())))];
}

// waits: also draws rules whose steps wait for the device, for norms or sums.
inline Config random_setup(Rng& rng, bool waits = true) {
  const std::vector<std::string> masters = {"residual16", "residual8", "stochastic"};
  Config setup;
  do {
    do setup.rule = pick(rng, rule_names());
    while (!waits && (rule_info(find_rule(setup.rule)).norms || rule_info(find_rule(setup.rule)).sums));
    setup.master = rng.chance(0.4) ? pick(rng, masters) : std::string();
    setup.hyper = random_variant(setup.rule, rng);
  } while (!is_tested(effective_rule(find_rule(setup.rule), setup.hyper)));
  setup.state = pick(rng, codec_names_of(setup.rule, setup.hyper));
  setup.hyper.lr = 0.01;
  return setup;
}

inline std::vector<int64_t> random_sizes(Rng& rng) {
  if (rng.chance(0.1)) return {};
  if (rng.chance(0.1)) return {0, 3};
  if (rng.chance(0.3)) return {rng.between(1, 9000)};
  return {rng.between(1, 12), rng.between(1, 1500)};
}

}  // namespace lowtide::testing
