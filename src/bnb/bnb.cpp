// The C functions of lowtide/bnb.h: one Memory for the process, behind a mutex.
#include "lowtide/bnb.h"

#include <dlfcn.h>

#include <bit>
#include <filesystem>
#include <mutex>
#include <string>

#include "backend/sycl_loader.h"
#include "bnb/memory.h"
#include "core/error.h"

namespace {

using namespace lowtide;

std::mutex mutex;
thread_local std::string last_error;

// The plug-in lies beside this library, as it does beside liblowtide.
std::unique_ptr<Backend> open_device(int number) {
  Dl_info info;
  if (!dladdr(reinterpret_cast<void*>(&cget_managed_ptr), &info) || !info.dli_fname)
    fail(ErrorKind::kUnsupported, "no SYCL backend: this library does not know its folder");
  std::error_code ignored;
  static const Plugin plugin =
      load_sycl_plugin(std::filesystem::weakly_canonical(info.dli_fname, ignored).parent_path());
  if (!plugin.open) fail(ErrorKind::kUnsupported, "no SYCL backend: %s", plugin.missing.c_str());
  return std::unique_ptr<Backend>(plugin.open(format(":%d", number).c_str(), nullptr));
}

// Never freed: the runtime may be gone when statics are.
bnb::Memory& memory() {
  static auto* const all = new bnb::Memory(open_device);
  return *all;
}

void note_error(const char* what) noexcept {
  try {
    last_error = what;
  } catch (const std::bad_alloc&) {
    last_error.clear();
    last_error += "no memory";  // fits without an allocation
  }
}

// f() with the memory; `failed` if it throws.
template <class T, class Fn>
T guarded(const char* name, T failed, Fn&& f) noexcept {
  try {
    const std::lock_guard lock(mutex);
    return f(memory());
  } catch (const std::exception& error) {
    try {
      note_error((std::string(name) + ": " + error.what()).c_str());
    } catch (const std::bad_alloc&) {
      note_error(error.what());
    }
  }
  return failed;
}

}  // namespace

extern "C" {

void* cget_managed_ptr(size_t bytes) {
  return guarded("cget_managed_ptr", static_cast<void*>(nullptr), [&](bnb::Memory& m) { return m.allocate(bytes); });
}

void cfree_managed_ptr(void* ptr) {
  guarded("cfree_managed_ptr", 0, [&](bnb::Memory& m) { return m.free(ptr), 0; });
}

void cprefetch(void* ptr, size_t bytes, int device) {
  guarded("cprefetch", 0, [&](bnb::Memory& m) { return m.prefetch(ptr, bytes, device), 0; });
}

void cfill_fp32(float* A, float*, float value, long n) {
  guarded("cfill_fp32", 0, [&](bnb::Memory& m) { return m.fill(A, std::bit_cast<uint32_t>(value), 4, n), 0; });
}

void cfill_uint8(unsigned char* A, unsigned char*, unsigned char value, long n) {
  guarded("cfill_uint8", 0, [&](bnb::Memory& m) { return m.fill(A, value, 1, n), 0; });
}

const char* lt_bnb_place() {
  return guarded("lt_bnb_place", "", [](bnb::Memory& m) { return m.place().c_str(); });
}

const char* lt_bnb_last_error() { return last_error.c_str(); }
}
