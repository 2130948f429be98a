#include "backend/sycl/host/kernels.h"

#include <list>

#include "backend/catalog.h"
#include "backend/kernels/batch.h"
#include "backend/sycl/host/errors.h"

namespace lowtide::sycl_host {
namespace {
namespace sx = sycl::ext::oneapi::experimental;

template <class Fn>
void refused_if_throws(const std::string& program, Fn&& f) {
  try {
    f();
  } catch (const sycl::exception& error) {
    fail(kind_of(error) == ErrorKind::kOutOfMemory ? ErrorKind::kOutOfMemory : ErrorKind::kUnsupported,
         "SYCL: the device's driver rejects program %s: %s", program.c_str(), error.what());
  }
}
}  // namespace

const sycl::kernel& Kernels::find(const std::string& program_name, const std::string& name) {
  const std::lock_guard lock(mutex_);
  if (const auto known = kernels_.find(name); known != kernels_.end()) return known->second;
  auto bundle = bundles_.find(program_name);
  if (bundle == bundles_.end()) {
    const auto bytes = source_(program_name);
    const std::vector<std::byte> copy(bytes.begin(), bytes.end());
    refused_if_throws(program_name, [&] {
      auto source = sx::create_kernel_bundle_from_source(context_, sx::source_language::spirv, copy);
      bundle = bundles_.emplace(program_name, sx::build(source, {device_})).first;
    });
  }
  refused_if_throws(program_name,
                    [&] { kernels_.emplace(name, bundle->second.ext_oneapi_get_kernel("__sycl_kernel_lt_" + name)); });
  return kernels_.at(name);
}

const sycl::kernel& Kernels::of_rule(const std::string& kind, int rule, int codec) {
  const std::string program = kind + "_" + rule_info(rule).name;
  return find(program, program + "_" + codec_info(codec).name);
}
const sycl::kernel& Kernels::of_codec(const std::string& kind, int codec, bool is_signed) {
  return find("aux", kind + "_" + codec_info(codec).name + (is_signed ? "_signed" : "_unsigned"));
}
const sycl::kernel& Kernels::of_type(const std::string& kind, DType dtype) {
  return find(std::string("sign_") + dtype_name(dtype), kind + "_" + dtype_name(dtype));
}

const void* Kernels::tables(int codec) {
  const std::lock_guard lock(mutex_);
  if (const auto known = tables_.find(codec); known != tables_.end()) return known->second.get();
  const std::vector<std::byte> bytes = kernels::codec_tables(codec);
  UsmBytes memory(nullptr, Free{context_});
  if (!bytes.empty()) {
    memory = allocate(bytes.size(), context_, device_, sycl::usm::alloc::device);
    sycl::queue(context_, device_).memcpy(memory.get(), bytes.data(), bytes.size()).wait();
  }
  return tables_.emplace(codec, std::move(memory)).first->second.get();
}

Kernels& kernels_of(const sycl::context& context, const sycl::device& device) {
  struct Entry {
    sycl::context context;
    sycl::device device;
    Kernels kernels;
    Entry(const sycl::context& c, const sycl::device& d) : context(c), device(d), kernels(c, d) {}
  };
  static std::mutex mutex;
  static auto* const entries = new std::list<Entry>();  // never freed: the runtime may be gone when statics are
  const std::lock_guard lock(mutex);
  for (Entry& entry : *entries)
    if (entry.context == context && entry.device == device) return entry.kernels;
  return entries->emplace_back(context, device).kernels;
}

}  // namespace lowtide::sycl_host
