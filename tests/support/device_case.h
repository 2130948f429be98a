// The arrays of a step case in a device's memory.
#pragma once

#include "support/step_case.h"
#include "support/test.h"

namespace lowtide::testing {

// Bytes: owns a copy of host memory, Bytes(host, bytes, where...), with data(), put(host), get(host) and
// guards_are_whole(). Each item() takes gradients and args from the case.
template <class Bytes>
class DeviceCaseOf {
 public:
  template <class... Where>
  explicit DeviceCaseOf(StepCase& of, Where&... where)
      : case_(of),
        param_(of.param.data(), of.param.size(), where...),
        grad_(of.grad.data(), of.grad.size(), where...),
        residual_(of.residual.data(), of.residual.size(), where...) {
    for (int k = 0; k < kMaxStates; ++k) {
      codes_.emplace_back(of.codes[k].data(), of.codes[k].size(), where...);
      scales_.emplace_back(of.scales[k].data(), of.scales[k].size() * sizeof(float), where...);
    }
  }
  StepItem item() {
    StepItem out = case_.item();
    grad_.put(case_.grad.data());
    out.param = param_.data(), out.grad = grad_.data();
    out.master.residual = residual_.data();
    for (size_t k = 0; k < kMaxStates; ++k) {
      out.codes[k] = codes_[k].data();
      out.scales[k] = reinterpret_cast<float*>(scales_[k].data());
    }
    return out;
  }
  // Copies parameter and state back into the case.
  void fetch() {
    EXPECT_TRUE(grad_.guards_are_whole());
    param_.get(case_.param.data());
    residual_.get(case_.residual.data());
    for (size_t k = 0; k < kMaxStates; ++k) {
      codes_[k].get(case_.codes[k].data());
      scales_[k].get(case_.scales[k].data());
    }
  }

 private:
  StepCase& case_;
  Bytes param_, grad_, residual_;
  std::vector<Bytes> codes_, scales_;
};

}  // namespace lowtide::testing
