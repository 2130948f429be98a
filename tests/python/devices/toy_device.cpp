// A device that torch knows and Lowtide has no kernels for: PrivateUse1 on memory of the CPU. Every operation that is not
// here runs on copies of its tensors on the CPU. Copies between it and the CPU are counted, and may fail.

#include <ATen/EmptyTensor.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/view_native.h>
#include <torch/library.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <optional>

namespace {

struct Copies {
  std::atomic<int64_t> bytes_to_host{0}, bytes_to_device{0};
  std::atomic<int64_t> until_failure{-1};  // copies that still work; -1: all of them
} copies;

const c10::Device kDevice(c10::DeviceType::PrivateUse1, 0);

struct Memory final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    void* address = bytes > 0 ? std::malloc(bytes) : nullptr;
    return {address, address, &std::free, kDevice};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &std::free; }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }
};
Memory memory;

at::Tensor empty(c10::IntArrayRef sizes, std::optional<c10::ScalarType> dtype, std::optional<c10::Layout>,
                 std::optional<c10::Device>, std::optional<bool>, std::optional<c10::MemoryFormat> format) {
  return at::detail::empty_generic(sizes, &memory, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(c10::IntArrayRef sizes, c10::IntArrayRef strides, std::optional<c10::ScalarType> dtype,
                         std::optional<c10::Layout>, std::optional<c10::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(sizes, strides, &memory,
                                           c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                           c10::dtype_or_default(dtype));
}

at::Tensor on_cpu(const at::Tensor& tensor) {
  return at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(), tensor.options().device(c10::kCPU));
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool) {
  if (from.device() != to.device()) {
    TORCH_CHECK(copies.until_failure != 0, "toy: the device does not answer");
    if (copies.until_failure > 0) --copies.until_failure;
    (to.is_cpu() ? copies.bytes_to_host : copies.bytes_to_device) += static_cast<int64_t>(from.nbytes());
  }
  on_cpu(to).copy_(on_cpu(from));
  return to;
}

// Results take this; their elements are not kept.
const at::Tensor& resize(const at::Tensor& tensor, c10::SymIntArrayRef sizes, std::optional<c10::MemoryFormat>) {
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous(C10_AS_INTARRAYREF_SLOW(sizes));
  const size_t bytes = tensor.nbytes();
  c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  if (bytes > storage->nbytes()) {
    storage->set_data_ptr(memory.allocate(bytes));
    storage->set_nbytes(bytes);
  }
  return tensor;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  to.resize_(from.sizes());
  return copy_from(from, to, false);
}

void run_on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) { at::native::cpu_fallback(op, stack); }

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("as_strided", &at::native::as_strided_tensorimpl);
  m.impl("view", &at::native::view);
  m.impl("resize_", &resize);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>());
}

extern "C" {
int64_t toy_bytes_to_host() { return copies.bytes_to_host; }
int64_t toy_bytes_to_device() { return copies.bytes_to_device; }
void toy_fail_after(int64_t good) { copies.until_failure = good; }
}
