// The kernels on one device of one context, and their launches. Programs are built on first use, because a driver takes
// 0.2 to 0.4 s for each and caches none across processes. Any thread.
#pragma once

#include <sycl/sycl.hpp>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>

#include "backend/kernels/items.h"
#include "backend/sycl/host/device_memory.h"
#include "lowtide/tensor.h"

namespace lowtide::sycl_host {

// The SPIR-V of a program, embedded in the plug-in, by its name: "step_<rule>", "ballot_<rule>", "norms_<rule>",
// "sign_<type>", "aux", "fill", "vote", "apply" or "feedback". The bytes live as long as the plug-in.
std::span<const std::byte> program(const std::string& name);

class Kernels {
 public:
  // source: provides SPIR-V, like program().
  using Source = std::span<const std::byte>(const std::string& name);
  Kernels(const sycl::context& context, const sycl::device& device, Source* source = &program)
      : context_(context), device_(device), source_(source) {}

  // Finds a kernel by the name of its program and its own name, given without the common prefix "lt_".
  const sycl::kernel& find(const std::string& program, const std::string& name);
  // kind: "step", "ballot" or, for an LT_NORM_RULE, "norms". Numbers come from rules.def and codecs.def.
  const sycl::kernel& of_rule(const std::string& kind, int rule, int codec);
  // kind: "decode" or "encode".
  const sycl::kernel& of_codec(const std::string& kind, int codec, bool is_signed);
  // kind: "pack" or "unpack".
  const sycl::kernel& of_type(const std::string& kind, DType dtype);

  // The codec's tables in device memory, nullptr if it has none.
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

// The process's kernels for this device of this context, built once for all backends and kept to its end.
Kernels& kernels_of(const sycl::context& context, const sycl::device& device);

// The number of groups that `items` work-items fill.
inline int64_t groups_for(int64_t items) { return (items + kernels::kGroupSize - 1) / kernels::kGroupSize; }

// Groups of a launch: enough for any device; if there are more `blocks`, each group takes several.
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
