// The C functions of lowtide/bnb.h. The process has one Memory and one Engine.
#include "lowtide/bnb.h"

#include <bit>
#include <exception>
#include <mutex>
#include <new>
#include <string>

#include "backend/registry.h"
#include "bnb/memory.h"
#include "bnb/update.h"
#include "core/error.h"
#include "core/thread_pool.h"

namespace {

using namespace lowtide;
using bnb::Update;

// Every C function runs inside guarded(), which admits one caller at a time and stores the thread's last error.
std::mutex calls;
thread_local std::string last_error;

// `name` is the function that failed.
void note_error(const char* name, const char* what) noexcept {
  try {
    last_error = std::string(name) + ": " + what;
  } catch (const std::bad_alloc&) {
    last_error.clear();
    last_error += "no memory";  // short enough to need no allocation
  }
}

// Calls f(). Returns `failed` if f() throws.
template <class T, class Fn>
T guarded(const char* name, T failed, Fn&& f) noexcept {
  try {
    const std::lock_guard lock(calls);
    return f();
  } catch (const std::exception& error) {
    note_error(name, error.what());
  }
  return failed;
}

// Returns the process's Memory. It is never freed, because the runtime may be gone when statics are destroyed.
bnb::Memory& memory() {
  static constexpr bnb::OpenDevice* kBackends[] = {
      [](int number) { return open_backend("cuda", format(":%d", number)); },
      [](int number) { return open_backend("sycl", format(":%d", number)); },
  };
  static auto* const all = new bnb::Memory(kBackends);
  return *all;
}

// The backends that step. Used by one caller at a time.
struct Engine {
  std::unique_ptr<Backend> cpu = open_backend("cpu", "");
  std::unique_ptr<Backend> device;  // nullptr if memory is the host's
  void* queue = nullptr;
  DeviceBytes pinned;  // memory of the device's backend
  int threads = available_threads();

  void step(const Update& update) {
    if (device)
      bnb::step_on_device(update, *device, queue, pinned, *cpu, threads);
    else
      bnb::step_on_host(update, *cpu, threads);
  }
};

Engine& engine() {
  static auto* const only = new Engine;
  return *only;
}

void step(const char* name, const Update& update) {
  guarded(name, 0, [&] { return engine().step(update), 0; });
}

// Element types, named by the suffixes of the C functions.
constexpr DType kType_fp32 = DType::kF32, kType_fp16 = DType::kF16, kType_bf16 = DType::kBF16;
constexpr DType kType_32 = DType::kF32, kType_16 = DType::kF16;

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

const char* lt_bnb_last_error() { return last_error.c_str(); }
void lt_bnb_clear_error() { last_error.clear(); }

#define LT_BNB_DEFINE(name, suffix, T)                                                    \
  void c##name##32bit_grad_##suffix(LT_BNB_PARAMETERS_32BIT(T)) {                         \
    Update u{bnb::Family::name, kType_##suffix, p, g, state1, state2};                    \
    u.unorm = unorm, u.max_unorm = max_unorm, u.param_norm = param_norm;                  \
    u.beta1 = beta1, u.beta2 = beta2, u.beta3 = beta3, u.alpha = alpha, u.eps = eps;      \
    u.weight_decay = weight_decay, u.lr = lr, u.gnorm_scale = gnorm_scale, u.step = step; \
    u.skip_zeros = skip_zeros, u.n = n;                                                   \
    ::step("c" #name "32bit_grad_" #suffix, u);                                           \
  }
LT_BNB_EACH_32BIT(LT_BNB_DEFINE)
#undef LT_BNB_DEFINE

#define LT_BNB_DEFINE(name, suffix, T)                                                                                 \
  void c##name##_8bit_blockwise_grad_##suffix(LT_BNB_PARAMETERS_8BIT(T)) {                                             \
    Update u{bnb::Family::name, kType_##suffix, p, g, state1, state2, true, quantiles1, quantiles2, absmax1, absmax2}; \
    u.beta1 = beta1, u.beta2 = beta2, u.beta3 = beta3, u.alpha = alpha, u.eps = eps;                                   \
    u.weight_decay = weight_decay, u.lr = lr, u.gnorm_scale = gnorm_scale, u.step = step;                              \
    u.skip_zeros = skip_zeros, u.n = n;                                                                                \
    ::step("c" #name "_8bit_blockwise_grad_" #suffix, u);                                                              \
  }
LT_BNB_EACH_8BIT(LT_BNB_DEFINE)
#undef LT_BNB_DEFINE

int lt_bnb_use_backend(const char* backend, const char* target, void* queue) {
  return guarded("lt_bnb_use_backend", -1, [&] {
    LT_REQUIRE(backend, "got NULL for the backend, wanted \"cpu\", \"sycl\" or \"cuda\"");
    std::unique_ptr<Backend> opened = open_backend(backend, target ? target : "", queue);
    Engine& at = engine();
    at.pinned = {};
    if (opened->device())
      at.device = std::move(opened), at.queue = queue;
    else
      at.cpu = std::move(opened), at.device = nullptr, at.queue = nullptr;
    return 0;
  });
}

int lt_bnb_set_threads(int threads) {
  return guarded("lt_bnb_set_threads", -1, [&] {
    LT_REQUIRE(threads >= 0, "got %d threads, wanted 0 or more", threads);
    engine().threads = threads ? threads : available_threads();
    return 0;
  });
}
}
