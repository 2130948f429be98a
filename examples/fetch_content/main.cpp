// Fits a line with each rule that this Lowtide was built with, and shows what becomes of one that it was built without.
// Exits with 1 if a fit fails.
#include <lowtide/error.h>
#include <lowtide/optimizer.h>

#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

namespace {

// The slope and height of 0.5 x - 0.25, found from (0, 0). Returns the larger error of the two.
float fit(const std::string& rule) {
  std::vector<float> line(2), gradient(2);
  lowtide::Optimizer optimizer({.rule = rule});
  lowtide::GroupOptions group;
  group.hyper = lowtide::default_hyper(rule);
  group.hyper.weight_decay = 0;
  const int number = optimizer.add_group(group);
  optimizer.add_param(number, {line.data(), lowtide::DType::kF32, {2}, {}});
  constexpr int kSteps = 400, kPoints = 8;
  for (int step = 0; step < kSteps; ++step) {
    gradient = {0, 0};
    for (int i = 0; i < kPoints; ++i) {
      const float x = static_cast<float>(2 * i + 1) / kPoints - 1, error = line[0] * x + line[1] - (0.5f * x - 0.25f);
      gradient[0] += error * x, gradient[1] += error;
    }
    group.hyper.lr = 0.02 * (1 - static_cast<double>(step) / kSteps);
    optimizer.set_hyper(number, group.hyper);
    const lowtide::Gradient gradients[] = {{gradient.data()}};
    optimizer.step(gradients);
  }
  return std::fmax(std::fabs(line[0] - 0.5f), std::fabs(line[1] + 0.25f));
}

}  // namespace

int main() try {
  for (const std::string& rule : lowtide::rule_names()) {
    const float error = fit(rule);
    std::printf("%s: off by %.4f\n", rule.c_str(), static_cast<double>(error));
    if (!(error < 0.01f)) return 1;
  }
  try {
    lowtide::Optimizer({.rule = "sgd"});
  } catch (const lowtide::Error& error) {
    std::printf("%s\n", error.what());
  }
  return 0;
} catch (const lowtide::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
