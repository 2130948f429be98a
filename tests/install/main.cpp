// A C++ program against the installed library: one step moves a parameter, and an error arrives as lowtide::Error.
#include <lowtide/error.h>
#include <lowtide/optimizer.h>

#include <cstdio>
#include <vector>

namespace {

bool steps_a_parameter() {
  std::vector<float> param(5000, 1.0f);
  const std::vector<float> grad(param.size(), 0.5f);

  lowtide::OptimizerOptions options;
  options.rule = "adamw";
  lowtide::Optimizer optimizer(options);
  lowtide::GroupOptions group_options;
  group_options.hyper = lowtide::default_hyper("adamw");
  const int group = optimizer.add_group(group_options);
  lowtide::TensorView view;
  view.data = param.data();
  view.sizes = {static_cast<int64_t>(param.size())};
  optimizer.add_param(group, view);

  lowtide::Gradient gradient;
  gradient.data = grad.data();
  const lowtide::StepResult result = optimizer.step({&gradient, 1});
  if (!result.applied || !(param.front() < 1.0f) || param.front() != param.back()) {
    std::fprintf(stderr, "step: applied %d, param[0] %g, param[n-1] %g; wanted 1 and two equal values below 1\n",
                 result.applied, static_cast<double>(param.front()), static_cast<double>(param.back()));
    return false;
  }
  return true;
}

// The exception's type must be one and the same on both sides of the shared library.
bool catches_an_error() {
  lowtide::OptimizerOptions options;
  options.rule = "no such rule";
  try {
    lowtide::Optimizer optimizer(options);
  } catch (const lowtide::Error& error) {
    return error.kind() == lowtide::ErrorKind::kInvalidArgument;
  }
  std::fprintf(stderr, "an unknown rule was accepted\n");
  return false;
}

}  // namespace

int main() {
  if (!steps_a_parameter() || !catches_an_error()) return 1;
  std::printf("C++: lowtide %s on %s\n", lowtide::version(), lowtide::cpu_targets().front().c_str());
  return 0;
}
