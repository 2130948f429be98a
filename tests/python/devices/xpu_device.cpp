// Torch's device type "xpu" on SYCL's CPU device, for a torch that was built without XPU. Memory, queues and copies are those of
// include/lowtide/lowtide_device.h; torch's operators run on the CPU, on copies, when all that was queued is done. Copies that torch
// need not wait for are queued. xpu_device.py loads and opens it.

#include <ATen/EmptyTensor.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/detail/XPUHooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/_scaled_dot_product_attention_math.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/view_native.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <torch/library.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "lowtide/lowtide_device.h"

namespace {

constexpr auto kXpu = c10::DeviceType::XPU;

// The functions of the compiled core, which exports them.
struct Functions {
  decltype(&lt_device_alloc) allocate;
  decltype(&lt_device_free) free;
  decltype(&lt_device_copy) copy;
  decltype(&lt_device_synchronize) synchronize;
};

struct Device {
  lt_device* opened = nullptr;
  void* queue = nullptr;
  c10::CachingDeviceAllocator::DeviceStats stats;
};

Functions lt;
std::vector<Device> devices;  // none: torch sees no XPU
thread_local c10::DeviceIndex current = 0;
std::mutex mutex;  // of all below, and of statistics

struct Block {
  c10::DeviceIndex index;
  int64_t bytes;
};

int64_t opening = 0;                  // counts calls of xpu_open
std::map<const void*, Block> blocks;  // by address
std::map<const void*, Block> pinned;
std::atomic<int64_t> bytes_to_host{0}, bytes_to_device{0};
std::atomic<int64_t> limit{0};           // bytes of each device's memory

c10::Device device_at(c10::DeviceIndex index) { return c10::Device(kXpu, index); }

void require(lt_status status) { TORCH_CHECK(status == LT_OK, "xpu: the device failed with status ", status); }

void wait_for(c10::DeviceIndex index) {
  if (static_cast<size_t>(index) < devices.size()) require(lt.synchronize(devices[index].opened, nullptr));
}

void wait_for_all() {
  for (size_t i = 0; i < devices.size(); ++i) wait_for(static_cast<c10::DeviceIndex>(i));
}

template <class Change>
void count(Device& device, Change change) {
  for (const size_t kind : {size_t{0}, size_t{1}}) {  // of all memory, and of small tensors, which all count as
    change(device.stats.allocated_bytes[kind]);
    change(device.stats.active_bytes[kind]);
    change(device.stats.reserved_bytes[kind]);
  }
}

// Torch's owner of memory: frees it when nothing that is queued can use it.
struct Owner {
  std::map<const void*, Block>& home;
  void* address;
  int64_t since;

  static c10::DataPtr take(std::map<const void*, Block>& home, void* address, const Block& block, c10::Device device) {
    home.emplace(address, block);
    return {address, new Owner{home, address, opening}, &release, device};
  }

  static void release(void* raw) {
    const std::unique_ptr<Owner> owner(static_cast<Owner*>(raw));
    if (owner->since != opening) return;  // it went with its device
    wait_for_all();
    std::lock_guard<std::mutex> lock(mutex);
    const auto found = owner->home.find(owner->address);
    const Block block = found->second;
    owner->home.erase(found);
    if (&owner->home == &blocks) count(devices[block.index], [&](auto& stat) { stat.decrease(block.bytes); });
    lt.free(devices[block.index].opened, owner->address);
  }
};

struct Memory final : c10::DeviceAllocator {
  c10::DataPtr allocate(size_t size) override {
    const auto bytes = static_cast<int64_t>(size);
    const c10::DeviceIndex index = current;
    TORCH_CHECK(initialized(), "xpu: no device is open");
    if (bytes == 0) return {nullptr, nullptr, nullptr, device_at(index)};
    void* address = nullptr;
    Device& device = devices[index];
    std::lock_guard<std::mutex> lock(mutex);
    const bool fits = device.stats.allocated_bytes[0].current + bytes <= limit;
    const bool done = fits && lt.allocate(device.opened, LT_MEMORY_SHARED, bytes, &address) == LT_OK;
    TORCH_CHECK_WITH(OutOfMemoryError, done, "XPU out of memory. Tried to allocate ", bytes, " bytes");
    count(device, [bytes](auto& stat) { stat.increase(bytes); });
    return Owner::take(blocks, address, {index, bytes}, device_at(index));
  }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }
  bool initialized() override { return !devices.empty(); }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr&, c10::Stream) override {}  // release() waits for all queues
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex index) override { return devices[index].stats; }
  void resetAccumulatedStats(c10::DeviceIndex index) override {
    count(devices[index], [](auto& stat) { stat.reset_accumulated(); });
  }
  void resetPeakStats(c10::DeviceIndex index) override {
    count(devices[index], [](auto& stat) { stat.reset_peak(); });
  }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex index) override {
    return {limit - devices[index].stats.allocated_bytes[0].current, static_cast<size_t>(limit)};
  }
} memory;

struct Pinned final : c10::Allocator {
  c10::DataPtr allocate(size_t size) override {
    const auto bytes = static_cast<int64_t>(size);
    if (bytes == 0) return {nullptr, nullptr, nullptr, c10::Device(c10::kCPU)};
    TORCH_CHECK(!devices.empty(), "xpu: no device is open");
    void* address = nullptr;
    require(lt.allocate(devices[0].opened, LT_MEMORY_PINNED, bytes, &address));
    std::lock_guard<std::mutex> lock(mutex);
    return Owner::take(pinned, address, {0, bytes}, c10::Device(c10::kCPU));
  }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }
} pinned_memory;

bool is_pinned(const void* address) {
  std::lock_guard<std::mutex> lock(mutex);
  auto after = pinned.upper_bound(address);
  if (after == pinned.begin()) return false;
  --after;
  return static_cast<const char*>(address) < static_cast<const char*>(after->first) + after->second.bytes;
}

// Torch's engine and its pinned memory ask hooks for the accelerator of this process.
struct XpuHooks final : at::XPUHooksInterface {
  void init() const override {}
  bool hasXPU() const override { return !devices.empty(); }
  bool isBuilt() const override { return hasXPU(); }
  bool isAvailable() const override { return hasXPU(); }
  c10::DeviceIndex getNumGPUs() const override { return static_cast<c10::DeviceIndex>(devices.size()); }
  c10::DeviceIndex deviceCount() const override { return getNumGPUs(); }
  c10::DeviceIndex current_device() const override { return current; }
  c10::DeviceIndex getCurrentDevice() const override { return current; }
  void setCurrentDevice(c10::DeviceIndex index) const override { current = index; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override { return std::exchange(current, index); }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override {
    return index < 0 ? current : exchangeDevice(index);
  }
  void deviceSynchronize(c10::DeviceIndex index) const override { wait_for(index); }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return hasXPU(); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &pinned_memory; }
  bool isPinnedPtr(const void* address) const override { return is_pinned(address); }
  int32_t getGlobalIdxFromDevice(const c10::Device& device) const override { return device.index(); }
  c10::Device getDeviceFromPtr(void* address) const override {
    std::lock_guard<std::mutex> lock(mutex);
    return device_at(std::prev(blocks.upper_bound(address))->second.index);
  }
} xpu_hooks;

// Torch's wheel is a CUDA build and takes CUDA for its accelerator, with a driver or without one, unless its hooks say otherwise.
struct NoCuda final : at::CUDAHooksInterface {
} no_cuda;

// Torch asks its registry once, in which it had CUDA and no XPU: as long as a device is open, its objects and these have exchanged
// their functions.
template <class Hooks>
void exchange(const Hooks& of_torch, Hooks& others) {
  std::swap(*reinterpret_cast<void**>(const_cast<Hooks*>(&of_torch)), *reinterpret_cast<void**>(&others));
}

// One stream a device. An event stands for all that its stream has.
struct Guard : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kXpu; }
  c10::Device exchangeDevice(c10::Device device) const override { return device_at(std::exchange(current, device.index())); }
  c10::Device getDevice() const override { return device_at(current); }
  void setDevice(c10::Device device) const override { current = device.index(); }
  void uncheckedSetDevice(c10::Device device) const noexcept override { current = device.index(); }
  c10::Stream getStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT, device.has_index() ? device : device_at(current));
  }
  c10::Stream getDefaultStream(c10::Device device) const override { return getStream(device); }
  c10::Stream getNewStream(c10::Device device, int) const override { return getStream(device); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override { return getStream(device); }
  c10::Stream exchangeStream(c10::Stream stream) const override { return stream; }
  void* getStreamNativeHandle(const c10::Stream stream) const override { return devices[stream.device_index()].queue; }
  c10::DeviceIndex deviceCount() const noexcept override { return static_cast<c10::DeviceIndex>(devices.size()); }
  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex, const c10::EventFlag) const override {
    *event = &devices[stream.device_index()];
  }
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return false; }
  void destroyEvent(void*, const c10::DeviceIndex) const noexcept override {}
  bool queryStream(const c10::Stream&) const override { return false; }
  void synchronizeStream(const c10::Stream& stream) const override { wait_for(stream.device_index()); }
  void synchronizeEvent(void* event) const override {
    wait_for(static_cast<c10::DeviceIndex>(static_cast<Device*>(event) - devices.data()));
  }
  void synchronizeDevice(const c10::DeviceIndex index) const override { wait_for(index); }
};
C10_REGISTER_GUARD_IMPL(XPU, Guard);

at::Tensor on_cpu(const at::Tensor& tensor) {
  return at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(), tensor.options().device(c10::kCPU));
}

at::Tensor empty(c10::IntArrayRef sizes, std::optional<c10::ScalarType> dtype, std::optional<c10::Layout>,
                 std::optional<c10::Device> device, std::optional<bool>, std::optional<c10::MemoryFormat> format) {
  const c10::DeviceGuard guard(device.value_or(device_at(current)));
  return at::detail::empty_generic(sizes, &memory, c10::DispatchKeySet(c10::DispatchKey::XPU),
                                   c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(c10::IntArrayRef sizes, c10::IntArrayRef strides, std::optional<c10::ScalarType> dtype,
                         std::optional<c10::Layout>, std::optional<c10::Device> device, std::optional<bool>) {
  const c10::DeviceGuard guard(device.value_or(device_at(current)));
  return at::detail::empty_strided_generic(sizes, strides, &memory, c10::DispatchKeySet(c10::DispatchKey::XPU),
                                           c10::dtype_or_default(dtype));
}

bool can_be_queued(const at::Tensor& tensor) {
  return tensor.is_non_overlapping_and_dense() && (tensor.is_xpu() || is_pinned(tensor.data_ptr()));
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  const bool between = from.device() != to.device();
  if (between) {
    (to.is_cpu() ? bytes_to_host : bytes_to_device) += static_cast<int64_t>(from.nbytes());
  }
  const bool alike = from.dtype() == to.dtype() && from.sizes() == to.sizes() && from.strides() == to.strides();
  if (between && non_blocking && alike && from.nbytes() > 0 && can_be_queued(from) && can_be_queued(to)) {
    Device& device = devices[(from.is_xpu() ? from : to).device().index()];
    require(lt.copy(device.opened, nullptr, to.data_ptr(), from.data_ptr(), static_cast<int64_t>(from.nbytes())));
    return to;
  }
  wait_for_all();
  on_cpu(to).copy_(on_cpu(from));
  return to;
}

at::Tensor& copy(at::Tensor& to, const at::Tensor& from, bool non_blocking) {
  copy_from(from, to, non_blocking);
  return to;
}

// Results take this; their elements are not kept.
const at::Tensor& resize(const at::Tensor& tensor, c10::SymIntArrayRef sizes, std::optional<c10::MemoryFormat>) {
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous(C10_AS_INTARRAYREF_SLOW(sizes));
  const size_t bytes = tensor.nbytes();
  c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  if (bytes > storage->nbytes()) {
    const c10::DeviceGuard guard(tensor.device());
    storage->set_data_ptr(memory.allocate(bytes));
    storage->set_nbytes(bytes);
  }
  return tensor;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  to.resize_(from.sizes());
  return copy_from(from, to, false);
}

at::Tensor& set_at(at::Tensor& self, at::Storage storage, int64_t offset, c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  c10::TensorImpl* impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(storage));
  impl->set_storage_offset(offset);
  if (strides.data() != nullptr) {
    impl->set_sizes_and_strides(sizes, strides);
  } else {
    impl->set_sizes_contiguous(sizes);
  }
  return self;
}

at::Tensor& set_storage(at::Tensor& self, at::Storage storage) {
  const auto elements = static_cast<int64_t>(storage.nbytes() / self.dtype().itemsize());
  return set_at(self, std::move(storage), 0, {elements}, {});
}

at::Tensor& set_tensor(at::Tensor& self, const at::Tensor& other) {
  return set_at(self, other.storage(), other.storage_offset(), other.sizes(), other.strides());
}

void record_stream(at::Tensor&, c10::Stream) {}  // as Memory::recordStream

// As on a real device, an operator takes numbers from the CPU, and where to look in a tensor, but no other tensors.
void require_one_device(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  const std::string& name = op.schema().name();
  if (name.rfind("aten::index", 0) == 0 || name.rfind("aten::_index", 0) == 0) return;
  const auto check = [&](const at::Tensor& tensor) {
    TORCH_CHECK(!tensor.defined() || tensor.is_xpu() || tensor.dim() == 0, name,
                ": Expected all tensors to be on the same device, but found at least two devices, xpu and ", tensor.device());
  };
  for (const c10::IValue& value : stack) {
    if (value.isTensor()) check(value.toTensor());
    if (value.isTensorList()) {
      for (const at::Tensor& each : value.toTensorVector()) check(each);
    }
  }
}

void run_on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  require_one_device(op, *stack);
  wait_for_all();
  at::native::cpu_fallback(op, stack);
}

// Torch has no table of kernels for xpu to choose from: the form that consists of other operators.
at::Tensor attend(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, const std::optional<at::Tensor>& mask,
                  double dropout, bool is_causal, std::optional<double> scale, bool enable_gqa) {
  return std::get<0>(at::_scaled_dot_product_attention_math(query, key, value, mask, dropout, is_causal, std::nullopt, scale,
                                                            enable_gqa));
}

// A collective of torch.distributed on copies, which are waited for and brought back.
void communicate(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  wait_for_all();
  std::vector<std::pair<at::Tensor, at::Tensor>> moved;  // there, here
  const auto here = [&](const at::Tensor& there) {
    if (!there.is_xpu()) return there;
    return moved.emplace_back(there, there.cpu()).second;
  };
  const std::function<c10::IValue(const c10::IValue&)> of = [&](const c10::IValue& value) -> c10::IValue {
    if (value.isTensor()) return here(value.toTensor());
    if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& each : value.toTensorVector()) list.push_back(here(each));
      return list;
    }
    if (value.isList() && value.toListRef().size() > 0 && value.toListRef()[0].isTensorList()) {
      c10::List<c10::List<at::Tensor>> lists;
      for (const c10::IValue& each : value.toListRef()) lists.push_back(of(each).toTensorList());
      return lists;
    }
    return value;
  };
  for (c10::IValue& value : *stack) value = of(value);
  op.callBoxed(stack);
  for (const c10::IValue& value : *stack) {
    if (value.isCustomClass()) value.toCustomClass<c10d::Work>()->wait();
  }
  for (auto& [there, copy_of] : moved) there.copy_(copy_of);
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, XPU, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("as_strided", &at::native::as_strided_tensorimpl);
  m.impl("view", &at::native::view);
  m.impl("_reshape_alias", &at::native::_reshape_alias);
  m.impl("set_.source_Storage_storage_offset", &set_at);
  m.impl("set_.source_Storage", &set_storage);
  m.impl("set_.source_Tensor", &set_tensor);
  m.impl("record_stream", &record_stream);
  m.impl("resize_", &resize);
  m.impl("copy_", &copy);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
}

TORCH_LIBRARY_IMPL(aten, AutogradXPU, m) { m.impl("scaled_dot_product_attention", &attend); }

TORCH_LIBRARY_IMPL(_, XPU, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>()); }

TORCH_LIBRARY_IMPL(c10d, XPU, m) {
  for (const char* name : {"allreduce_", "broadcast_", "allgather_", "_allgather_base_", "allgather_into_tensor_coalesced_",
                           "reduce_scatter_", "_reduce_scatter_base_", "reduce_scatter_tensor_coalesced_", "reduce_",
                           "gather_", "scatter_", "alltoall_", "alltoall_base_", "send", "recv_", "allreduce_coalesced_"}) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&communicate>());
  }
}

extern "C" {

void xpu_functions(void* allocate, void* free, void* copy, void* synchronize) {
  lt = {reinterpret_cast<decltype(lt.allocate)>(allocate), reinterpret_cast<decltype(lt.free)>(free),
        reinterpret_cast<decltype(lt.copy)>(copy), reinterpret_cast<decltype(lt.synchronize)>(synchronize)};
  c10::SetAllocator(kXpu, &memory);
}

// Torch sees `count` devices from now on, of `bytes` of memory each; none: no XPU. What older devices had is gone.
void xpu_open(lt_device** opened, void** queues, int64_t count, int64_t bytes) {
  if (devices.empty() != (count == 0)) {
    exchange<at::XPUHooksInterface>(at::detail::getXPUHooks(), xpu_hooks);
    exchange<at::CUDAHooksInterface>(at::detail::getCUDAHooks(), no_cuda);
  }
  std::lock_guard<std::mutex> lock(mutex);
  ++opening;
  blocks.clear();
  pinned.clear();
  devices = std::vector<Device>(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    devices[i].opened = opened[i];
    devices[i].queue = queues[i];
  }
  current = 0;
  limit = bytes;
}

int64_t xpu_bytes_to_host() { return bytes_to_host; }
int64_t xpu_bytes_to_device() { return bytes_to_device; }
void xpu_limit(int64_t bytes) { limit = bytes; }

}  // extern "C"
