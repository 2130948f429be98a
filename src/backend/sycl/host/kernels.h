// The kernels on one device of one context, and their launches. Programs are built on first use, because a driver takes
// 0.2 to 0.4 s for each and caches none across processes. May be used by any thread.
#pragma once

#include <sycl/sycl.hpp>

#include <algorithm>
#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <string>

#include "backend/kernels/items.h"
#include "backend/sycl/host/device_memory.h"
#include "lowtide/tensor.h"

namespace lowtide::sycl_host {

// Returns the SPIR-V of a program, which is embedded in the plug-in and lives as long. Names are "step_<rule>",
// "ballot_<rule>", "norms_<rule>", "terms_<rule>", "sign_<type>", "aux", "fill", "sums", "vote", "apply" and
// "feedback".
std::span<const std::byte> program(const std::string& name);

class Kernels {
 public:
  // Provides SPIR-V like program().
  using Source = std::span<const std::byte>(const std::string& name);
  Kernels(const sycl::context& context, const sycl::device& device, Source* source = &program)
      : context_(context), device_(device), source_(source) {}

  // Finds a kernel by the name of its program and its own name, given without the common prefix "lt_".
  const sycl::kernel& find(const std::string& program, const std::string& name);
  // `kind` is "step", "ballot", for an LT_NORM_RULE "norms" or, for an LT_SUM_RULE, "terms". Numbers come from
  // rules.def and codecs.def.
  const sycl::kernel& of_rule(const std::string& kind, int rule, int codec);
  // `kind` is "decode" or "encode".
  const sycl::kernel& of_codec(const std::string& kind, int codec, bool is_signed);
  // `kind` is "pack" or "unpack".
  const sycl::kernel& of_type(const std::string& kind, DType dtype);

  // Returns the codec's tables in device memory, or nullptr if it has none.
  const void* tables(int codec);

 private:
  using Bundle = sycl::kernel_bundle<sycl::bundle_state::executable>;

  sycl::context context_;
  sycl::device device_;
  Source* source_;
  std::mutex mutex_;
  std::map<std::string, Bundle> bundles_;
  std::map<std::string, sycl::kernel> kernels_;
  std::map<int, UsmBytes> tables_;
};

// Returns the process's kernels for this device of this context, which all backends share and which are never freed.
Kernels& kernels_of(const sycl::context& context, const sycl::device& device);

// Returns the number of groups that `items` work-items need.
inline int64_t groups_for(int64_t items) { return (items + kernels::kGroupSize - 1) / kernels::kGroupSize; }

// Launches a kernel with enough groups to fill any device. If there are more `blocks`, each group takes several.
template <class... Args>
sycl::event launch(sycl::queue& queue, const sycl::kernel& kernel, int64_t blocks, Args... args) {
  constexpr size_t kGroup = kernels::kGroupSize;
  const auto groups = static_cast<size_t>(std::min<int64_t>(blocks, 1 << 16));
  return queue.submit([&](sycl::handler& handler) {
    handler.set_args(args...);
    handler.parallel_for(sycl::nd_range<1>{groups * kGroup, kGroup}, kernel);
  });
}

}  // namespace lowtide::sycl_host
