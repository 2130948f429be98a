// The C functions of lowtide/bnb.h but for the optimizers: one Memory for the process.
#include "lowtide/bnb.h"

#include <bit>

#include "backend/registry.h"
#include "bnb/guard.h"
#include "bnb/memory.h"
#include "core/error.h"

namespace {

using namespace lowtide;
using bnb::guarded;

std::unique_ptr<Backend> open_device(int number) { return open_backend("sycl", format(":%d", number)); }

// Never freed: the runtime may be gone when statics are.
bnb::Memory& memory() {
  static auto* const all = new bnb::Memory(open_device);
  return *all;
}

}  // namespace

extern "C" {

void* cget_managed_ptr(size_t bytes) {
  return guarded("cget_managed_ptr", static_cast<void*>(nullptr), [&] { return memory().allocate(bytes); });
}

void cfree_managed_ptr(void* ptr) {
  guarded("cfree_managed_ptr", 0, [&] { return memory().free(ptr), 0; });
}

void cprefetch(void* ptr, size_t bytes, int device) {
  guarded("cprefetch", 0, [&] { return memory().prefetch(ptr, bytes, device), 0; });
}

void cfill_fp32(float* A, float*, float value, long n) {
  guarded("cfill_fp32", 0, [&] { return memory().fill(A, std::bit_cast<uint32_t>(value), 4, n), 0; });
}

void cfill_uint8(unsigned char* A, unsigned char*, unsigned char value, long n) {
  guarded("cfill_uint8", 0, [&] { return memory().fill(A, value, 1, n), 0; });
}

const char* lt_bnb_place() {
  return guarded("lt_bnb_place", "", [] { return memory().place().c_str(); });
}

const char* lt_bnb_last_error() { return bnb::last_error.c_str(); }
void lt_bnb_clear_error() { bnb::last_error.clear(); }
}
