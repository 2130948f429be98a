// The kernels on one device of one context, and their launches. Programs are built when first used, since a driver
// takes 0.2 to 0.4 s for each and keeps none from process to process. Any thread.
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
  // source: where SPIR-V comes from, as program().
  using Source = std::span<const std::byte>(const std::string& name);
  Kernels(const sycl::context& context, const sycl::device& device, Source* source = &program)
      : context_(context), device_(device), source_(source) {}

  // By the numbers of rules.def and codecs.def.
  const sycl::kernel& step(int rule, int codec) { return of_rule("step", rule, codec); }
  const sycl::kernel& ballot(int rule, int codec) { return of_rule("ballot", rule, codec); }  // of a step
  const sycl::kernel& norms(int rule, int codec) { return of_rule("norms", rule, codec); }    // of an LT_NORM_RULE
  const sycl::kernel& decode(int codec, bool is_signed) { return of_codec("decode", codec, is_signed); }
  const sycl::kernel& encode(int codec, bool is_signed) { return of_codec("encode", codec, is_signed); }
  const sycl::kernel& first_nonfinite() { return find("aux", "first_nonfinite"); }
  const sycl::kernel& fill() { return find("fill", "fill"); }
  const sycl::kernel& pack_signs(DType dtype) { return of_type("pack", dtype); }
  const sycl::kernel& unpack_signs(DType dtype) { return of_type("unpack", dtype); }
  const sycl::kernel& vote_signs() { return find("vote", "vote"); }
  const sycl::kernel& vote_presence() { return find("vote", "vote_presence"); }
  const sycl::kernel& count_signs() { return find("vote", "count"); }
  const sycl::kernel& apply_signs() { return find("apply", "apply"); }
  const sycl::kernel& feedback() { return find("feedback", "feedback"); }

  // The codec's tables in device memory, nullptr if it has none.
  const void* tables(int codec);

 private:
  using Bundle = sycl::kernel_bundle<sycl::bundle_state::executable>;
  // name: without the "lt_" that all have.
  const sycl::kernel& find(const std::string& program, const std::string& name);
  const sycl::kernel& of_rule(const std::string& kind, int rule, int codec);
  const sycl::kernel& of_codec(const std::string& kind, int codec, bool is_signed);
  const sycl::kernel& of_type(const std::string& kind, DType dtype);

  sycl::context context_;
  sycl::device device_;
  Source* source_;
  std::mutex mutex_;
  std::map<std::string, Bundle> bundles_;
  std::map<std::string, sycl::kernel> kernels_;
  std::map<int, UsmBytes> tables_;
};

// Those of the process for this device of this context, built once however many backends use them; kept to its end.
Kernels& kernels_of(const sycl::context& context, const sycl::device& device);

// Groups in which `items` work-items fit.
inline int64_t groups_for(int64_t items) { return (items + kernels::kGroupSize - 1) / kernels::kGroupSize; }

// Groups of a launch: enough for any device; each takes several of `blocks` if there are more.
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
