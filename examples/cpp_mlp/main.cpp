// Trains a small network to tell two interleaved spirals apart, with AdamW and 8-bit state: 2 -> 64 -> 64 -> 1, tanh,
// backpropagation by hand. Prints the loss as it falls; exits with 1 if fewer than 99 % of the points come out right.
//
// Against an installed library:
//   c++ -std=c++20 -O2 main.cpp -o cpp_mlp $(pkg-config --cflags --libs lowtide) && ./cpp_mlp
// or in CMake: find_package(lowtide 0.1 REQUIRED) and target_link_libraries(cpp_mlp PRIVATE lowtide::lowtide).
#include <lowtide/error.h>
#include <lowtide/optimizer.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

namespace {

// y = W x + b and its gradients; W is [out][in], row-major.
struct Linear {
  int in, out;
  std::vector<float> w, b, w_grad, b_grad;

  Linear(int inputs, int outputs, std::mt19937& rng)
      : in(inputs),
        out(outputs),
        w(size_t(inputs) * size_t(outputs)),
        b(size_t(outputs)),
        w_grad(w.size()),
        b_grad(b.size()) {
    std::uniform_real_distribution<float> uniform(-1, 1);
    const float bound = std::sqrt(3.0f / static_cast<float>(inputs));
    for (float& x : w) x = bound * uniform(rng);
    for (float& x : b) x = bound * uniform(rng);
  }

  void forward(const std::vector<float>& x, std::vector<float>& y) const {
    y.assign(size_t(out), 0);
    for (int o = 0; o < out; ++o) {
      float sum = b[size_t(o)];
      for (int i = 0; i < in; ++i) sum += w[size_t(o * in + i)] * x[size_t(i)];
      y[size_t(o)] = sum;
    }
  }

  // Adds to the gradients of W and b, and gives that of x.
  void backward(const std::vector<float>& x, const std::vector<float>& y_grad, std::vector<float>& x_grad) {
    x_grad.assign(size_t(in), 0);
    for (int o = 0; o < out; ++o) {
      const float g = y_grad[size_t(o)];
      b_grad[size_t(o)] += g;
      for (int i = 0; i < in; ++i) {
        w_grad[size_t(o * in + i)] += g * x[size_t(i)];
        x_grad[size_t(i)] += g * w[size_t(o * in + i)];
      }
    }
  }
};

void apply_tanh(std::vector<float>& x) {
  for (float& value : x) value = std::tanh(value);
}

struct Network {
  Linear first, second, third;
  std::vector<float> a, b, y, grad_y, grad_b, grad_a, grad_x;  // activations of one point, and their gradients

  Network(int hidden, std::mt19937& rng) : first(2, hidden, rng), second(hidden, hidden, rng), third(hidden, 1, rng) {}

  float forward(const std::vector<float>& x) {
    first.forward(x, a), apply_tanh(a);
    second.forward(a, b), apply_tanh(b);
    third.forward(b, y);
    return y[0];
  }

  void backward(const std::vector<float>& x, float loss_grad) {
    grad_y = {loss_grad};
    third.backward(b, grad_y, grad_b);
    for (size_t i = 0; i < b.size(); ++i) grad_b[i] *= 1 - b[i] * b[i];
    second.backward(a, grad_b, grad_a);
    for (size_t i = 0; i < a.size(); ++i) grad_a[i] *= 1 - a[i] * a[i];
    first.backward(x, grad_a, grad_x);
  }

  std::vector<Linear*> layers() { return {&first, &second, &third}; }
};

struct Points {
  std::vector<std::vector<float>> x;
  std::vector<float> label;  // 0 or 1: which spiral
};

Points two_spirals(int per_class, std::mt19937& rng) {
  Points points;
  std::normal_distribution<float> noise(0, 0.01f);
  for (int i = 0; i < per_class; ++i)
    for (int label = 0; label < 2; ++label) {
      const float t = 0.15f + 0.85f * static_cast<float>(i) / static_cast<float>(per_class);
      const float angle = 3.0f * 3.14159265f * t + 3.14159265f * static_cast<float>(label);
      points.x.push_back({2 * t * std::cos(angle) + noise(rng), 2 * t * std::sin(angle) + noise(rng)});
      points.label.push_back(static_cast<float>(label));
    }
  return points;
}

}  // namespace

int main() try {
  std::mt19937 rng(1);
  const Points points = two_spirals(60, rng);
  Network network(64, rng);

  // One group; parameters of fewer than 4096 elements keep float state, so the 64 x 64 matrix is what is quantized.
  lowtide::OptimizerOptions options;
  options.rule = "adamw";
  lowtide::Optimizer optimizer(options);
  lowtide::GroupOptions group;
  group.hyper = lowtide::default_hyper("adamw");
  group.hyper.lr = 1e-2;
  optimizer.add_group(group);
  std::vector<lowtide::Gradient> gradients;
  for (Linear* layer : network.layers()) {
    optimizer.add_param(0, {layer->w.data(), lowtide::DType::kF32, {layer->out, layer->in}, {}});
    optimizer.add_param(0, {layer->b.data(), lowtide::DType::kF32, {layer->out}, {}});
    gradients.push_back({layer->w_grad.data(), lowtide::DType::kF32, nullptr});
    gradients.push_back({layer->b_grad.data(), lowtide::DType::kF32, nullptr});
  }
  std::printf("state of the 64 x 64 matrix: %s\n", optimizer.state_codec(2));

  double accuracy = 0;
  for (int epoch = 0; epoch <= 150; ++epoch) {
    for (Linear* layer : network.layers()) {
      layer->w_grad.assign(layer->w_grad.size(), 0);
      layer->b_grad.assign(layer->b_grad.size(), 0);
    }
    double loss = 0;
    size_t right = 0;
    for (size_t i = 0; i < points.x.size(); ++i) {
      const float score = network.forward(points.x[i]), label = points.label[i];
      const float probability = 1 / (1 + std::exp(-score));
      loss -= std::log(std::max(1e-12f, label > 0 ? probability : 1 - probability));
      right += (score > 0) == (label > 0);
      network.backward(points.x[i], (probability - label) / static_cast<float>(points.x.size()));
    }
    accuracy = static_cast<double>(right) / static_cast<double>(points.x.size());
    if (epoch % 50 == 0)
      std::printf("epoch %3d  loss %.4f  accuracy %.1f %%\n", epoch, loss / static_cast<double>(points.x.size()),
                  100 * accuracy);
    optimizer.step(gradients);
  }
  if (accuracy < 0.99) {
    std::fprintf(stderr, "got an accuracy of %.1f %%, wanted 99 %%\n", 100 * accuracy);
    return 1;
  }
  return 0;
} catch (const lowtide::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
