// Memory of each kind, its limits, and pointers that kernels cannot be given.
#include <cstdlib>

#include "backend/cuda/host/memory.h"
#include "host_support.h"

namespace lowtide::cuda_host {
namespace {

class CudaMemory : public Emulated {};

TEST_F(CudaMemory, PinnedMemoryRefused) {
  restart({.pin_limit = 1 << 20});
  auto backend = make_backend("", nullptr);
  Device& device = *backend->device();
  const auto before = cuda_emulator::held();
  expect_words(refusal([&] { device.allocate(MemoryKind::kPinned, (1 << 20) + 1); }, ErrorKind::kOutOfMemory),
               {"1052672 bytes of pinned host memory", "cudaError", "may lock", "ulimit -l", "Memory(host=...)"});
  EXPECT_EQ(cuda_emulator::held().registered_bytes, before.registered_bytes);
  DeviceBytes fits(device, MemoryKind::kPinned, 1 << 19);
}

// The second piece is refused: the first is given back, and so are the pages.
TEST_F(CudaMemory, PinnedInPiecesOrNotAtAll) {
  auto backend = make_backend("", nullptr);
  Device& device = *backend->device();
  const auto before = cuda_emulator::held();
  const int64_t bytes = HostMemory::kPieceBytes + 8192;
  cuda_emulator::fail("cudaHostRegister", {1, 1, cudaErrorMemoryAllocation});
  cuda_emulator::fail("cudaHostAlloc", {0, 1, cudaErrorMemoryAllocation});
  refusal([&] { device.allocate(MemoryKind::kPinned, bytes); }, ErrorKind::kOutOfMemory);
  EXPECT_EQ(cuda_emulator::held().registrations, before.registrations);
  cuda_emulator::forget_failures();

  // No copy crosses from one piece to the next.
  DeviceBytes pinned(device, MemoryKind::kPinned, bytes), there(device, MemoryKind::kDevice, 8192);
  EXPECT_EQ(cuda_emulator::held().registrations, before.registrations + 2);
  std::byte* const across = pinned.data() + HostMemory::kPieceBytes - 4096;
  for (int i = 0; i < 8192; ++i) across[i] = static_cast<std::byte>(i * 7);
  const cudaStream_t stream = own_stream(*backend);
  const int64_t copies = cuda_emulator::counters().copies;
  device.copy(stream, there.data(), across, 8192);
  std::vector<std::byte> back(8192);
  device.copy(stream, back.data(), there.data(), 8192);
  device.host_wait(device.record(stream));
  EXPECT_EQ(cuda_emulator::counters().copies - copies, 3);
  EXPECT_EQ(std::memcmp(back.data(), across, back.size()), 0);
}

// Where CUDA does not register the system's memory (hostRegisterSupported 0), or refuses this, it gives some of its
// own: cudaHostAlloc.
TEST_F(CudaMemory, PinnedMemoryIsCudasWhereTheSystemsIsRefused) {
  for (const bool registers : {false, true}) {
    restart({.registers = registers});
    auto backend = make_backend("", nullptr);
    Device& device = *backend->device();
    const cudaStream_t stream = own_stream(*backend);
    Model model(*backend, {100, 300}, stream);
    backend->step(model.items(), 1, false, stream);  // takes pinned memory for its arguments
    const auto before = cuda_emulator::held();
    {
      if (registers) cuda_emulator::fail("cudaHostRegister", {0, 1, cudaErrorOperatingSystem});
      DeviceBytes pinned(device, MemoryKind::kPinned, 100000), there(device, MemoryKind::kDevice, 100000);
      EXPECT_EQ(cuda_emulator::held().host_allocations, before.host_allocations + 1);
      EXPECT_EQ(cuda_emulator::held().registrations, before.registrations);
      std::memset(pinned.data(), 7, 100000);
      device.copy(stream, there.data(), pinned.data(), 100000);
      device.fill(stream, pinned.data(), 0, 4, 100);  // kernels reach it
      device.copy(stream, pinned.data() + 400, there.data(), 99600);
      device.host_wait(device.record(stream));
      EXPECT_EQ(pinned.data()[399], std::byte{0});
      EXPECT_EQ(pinned.data()[400], std::byte{7});
      backend->step(model.items(), 1, false, stream);
      EXPECT_EQ(model.steps(), (std::vector<int>{2, 2}));
    }
    EXPECT_EQ(cuda_emulator::held().host_allocations, before.host_allocations);
    cuda_emulator::fail("cudaHostRegister", {0, 1, cudaErrorOperatingSystem});
    cuda_emulator::fail("cudaHostAlloc", {0, 1, cudaErrorMemoryAllocation});
    expect_words(
        refusal([&] { device.allocate(MemoryKind::kPinned, 4096); }, ErrorKind::kOutOfMemory),
        {registers ? "cudaErrorOperatingSystem" : "cudaErrorNotSupported", "cudaErrorMemoryAllocation", "ulimit -l"});
    cuda_emulator::forget_failures();
  }
}

TEST_F(CudaMemory, DeviceMemoryIsCountedAndNamed) {
  auto backend = make_backend("", nullptr);
  Device& device = *backend->device();
  const Device::Limits start = device.limits();
  EXPECT_EQ(start.total, int64_t{1} << 30);
  expect_words(refusal([&] { device.allocate(MemoryKind::kDevice, start.total + 1); }, ErrorKind::kOutOfMemory),
               {"1073741825 bytes of device memory", "of its 1073741824"});
  DeviceBytes some(device, MemoryKind::kDevice, 1 << 20);
  EXPECT_LE(device.limits().free, start.free - (1 << 20));
}

// Never more than nine tenths of what is free, nor of all.
TEST_F(CudaMemory, ManagedMemoryHasACap) {
  auto backend = make_backend("", nullptr);
  Device& device = *backend->device();
  constexpr int64_t kSome = 300 << 20;
  expect_words(refusal([&] { device.allocate(MemoryKind::kShared, device.limits().free); }, ErrorKind::kOutOfMemory),
               {"got 1073741824", "managed", "wanted"});
  std::vector<DeviceBytes> all;
  for (int i = 0; i < 3; ++i) all.emplace_back(device, MemoryKind::kShared, kSome);
  expect_words(refusal([&] { device.allocate(MemoryKind::kShared, kSome); }, ErrorKind::kOutOfMemory),
               {"beside 943718400"});
  all.pop_back();
  all.emplace_back(device, MemoryKind::kShared, kSome);
  all.clear();

  cuda_emulator::Settings crowded = cuda_emulator::settings();
  crowded.other_use = size_t{900} << 20;
  cuda_emulator::change(crowded);
  refusal([&] { device.allocate(MemoryKind::kShared, kSome); }, ErrorKind::kOutOfMemory);
}

TEST_F(CudaMemory, ManagedMemoryWithoutPrefetch) {
  restart({.managed = false});
  auto backend = make_backend("", nullptr);
  DeviceBytes shared(*backend->device(), MemoryKind::kShared, 1 << 20);
  backend->device()->prefetch(own_stream(*backend), shared.data(), shared.bytes());
}

TEST_F(CudaMemory, PointersThatKernelsCannotReach) {
  restart({.devices = 2});
  auto backend = make_backend(":0", nullptr), other = make_backend(":1", nullptr);
  const cudaStream_t stream = own_stream(*backend);
  Model model(*backend, {100, 100}, stream);
  std::vector<float> pageable(100);
  DeviceBytes elsewhere(*other->device(), MemoryKind::kDevice, 400),
      pinned(*backend->device(), MemoryKind::kPinned, 400), managed(*backend->device(), MemoryKind::kShared, 400);
  const auto with = [&](void* grad) {
    std::vector<StepItem> items = model.items();
    items[1].grad = grad;
    backend->step(items, 1, false, stream);
  };
  const int64_t launches = cuda_emulator::counters().launches;
  expect_words(refusal([&] { with(pageable.data()); }),
               {"the gradient of item 1", "pageable host memory", "cudaMalloc"});
  expect_words(refusal([&] { with(elsewhere.data()); }),
               {"the gradient of item 1", "memory of CUDA device 1", "of device 0"});
  EXPECT_EQ(cuda_emulator::counters().launches, launches);
  EXPECT_EQ(model.steps(), (std::vector<int>{0, 0}));
  std::memset(pinned.data(), 0, 400);
  with(pinned.data());
  backend->device()->fill(stream, managed.data(), 0, 4, 100);
  with(managed.data());
  EXPECT_EQ(model.steps(), (std::vector<int>{2, 0}));
}

// CUDA, cudaDevAttrPageableMemoryAccess and ...UsesHostPageTables: with the first alone (heterogeneous memory
// management) a kernel's first touch of each page of the host is a fault, and the page migrates; that is refused.
// Devices that use the host's own page tables reach what the host reaches.
TEST_F(CudaMemory, PageableMemoryIsForDevicesWithTheHostsPageTables) {
  using Pageable = cuda_emulator::Settings::Pageable;
  for (const Pageable pageable : {Pageable::kNever, Pageable::kMigrates, Pageable::kHostTables}) {
    restart({.pageable = pageable});
    auto backend = make_backend("", nullptr);
    const cudaStream_t stream = own_stream(*backend);
    Model model(*backend, {100}, stream);
    std::vector<float> gradient(100, 1.f);
    std::vector<StepItem> items = model.items();
    items[0].grad = gradient.data();
    const auto step = [&] { backend->step(items, 1, false, stream); };
    if (pageable == Pageable::kHostTables)
      step();
    else
      expect_words(refusal(step), {"the gradient of item 0", "pageable host memory"});
    EXPECT_EQ(model.steps(), std::vector<int>{pageable == Pageable::kHostTables});
  }
}

// Tensors of a framework lie beside one another: CUDA is asked after one of them.
TEST_F(CudaMemory, PointersAreAskedAfterOnceForEachGranule) {
  auto backend = make_backend("", nullptr), framework = make_backend("", nullptr);
  const cudaStream_t stream = own_stream(*backend);
  const auto calls_of = [&](size_t params) {
    Model model(*framework, std::vector<int64_t>(params, 100), stream);
    model.steps();
    backend->step(model.items(), 1, false, stream);
    model.steps();
    const int64_t before = cuda_emulator::counters().calls;
    backend->step(model.items(), 1, false, stream);
    const int64_t calls = cuda_emulator::counters().calls - before;
    EXPECT_EQ(model.steps(), std::vector<int>(params, 2));
    return calls;
  };
  const int64_t of_one = calls_of(1), of_many = calls_of(100);
  EXPECT_LE(of_many, of_one + 2);
  Model model(*framework, {100}, stream);
  std::vector<StepItem> items = model.items();
  items[0].grad = reinterpret_cast<const void*>(uintptr_t{64});
  refusal([&] { backend->step(items, 1, false, stream); });
  std::printf("calls of a step of 1 parameter: %lld, of 100: %lld\n", static_cast<long long>(of_one),
              static_cast<long long>(of_many));
}

}  // namespace
}  // namespace lowtide::cuda_host
