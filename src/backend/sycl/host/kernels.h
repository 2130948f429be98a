// The kernels on one device of one context: programs are built when first used, since a driver takes 0.2 to 0.4 s for
// each and keeps none from process to process. Any thread.
#pragma once

#include <sycl/sycl.hpp>

#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>

#include "backend/sycl/host/device_memory.h"
#include "backend/sycl/host/programs.h"
#include "lowtide/tensor.h"

namespace lowtide::sycl_host {

class Kernels {
 public:
  // source: where SPIR-V comes from, as program() of programs.h.
  using Source = std::span<const std::byte>(const std::string& name);
  Kernels(const sycl::context& context, const sycl::device& device, Source* source = &program)
      : context_(context), device_(device), source_(source) {}

  // By the numbers of rules.def and codecs.def.
  const sycl::kernel& step(int rule, int codec);
  const sycl::kernel& ballot(int rule, int codec);  // of a step
  const sycl::kernel& norms(int rule, int codec);   // of an LT_NORM_RULE
  const sycl::kernel& decode(int codec, bool is_signed);
  const sycl::kernel& encode(int codec, bool is_signed);
  const sycl::kernel& first_nonfinite();
  const sycl::kernel& fill();
  const sycl::kernel& pack_signs(DType dtype);
  const sycl::kernel& unpack_signs(DType dtype);
  const sycl::kernel& vote_signs();
  const sycl::kernel& vote_presence();
  const sycl::kernel& count_signs();
  const sycl::kernel& apply_signs();
  const sycl::kernel& feedback();

  // The codec's tables in device memory, nullptr if it has none.
  const void* tables(int codec);

 private:
  using Bundle = sycl::kernel_bundle<sycl::bundle_state::executable>;
  const sycl::kernel& find(const std::string& program, const std::string& name);

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

}  // namespace lowtide::sycl_host
