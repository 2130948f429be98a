#include "backend/cuda/host/device_info.h"

#include <stdlib.h>

#include <algorithm>
#include <cctype>
#include <cstring>
#include <fstream>
#include <string>

#include "backend/cuda/host/code.h"
#include "backend/cuda/host/errors.h"

namespace lowtide::cuda_host {
namespace {

constexpr const char* kOpening = "opening a device";

void check_opening(cudaError_t code) {
  if (code == cudaSuccess) return;
  cudaGetLastError();
  fail(kind_of(code), "CUDA, %s: %s", kOpening, words_of(code).c_str());
}

// Returns the NUMA node that Linux gives for the device's bus address.
int numa_node_of(int ordinal) {
  char id[32] = {};
  if (cudaDeviceGetPCIBusId(id, sizeof id, ordinal) != cudaSuccess) {
    cudaGetLastError();
    return -1;
  }
  std::transform(std::begin(id), std::end(id), std::begin(id),
                 [](char c) { return static_cast<char>(std::tolower(static_cast<unsigned char>(c))); });
  std::ifstream file(std::string("/sys/bus/pci/devices/") + id + "/numa_node");
  int node = -1;
  return file >> node ? node : -1;
}

}  // namespace

DeviceInfo describe_device(int ordinal) {
  if (is_forked()) fail_forked(ErrorKind::kUnsupported, kOpening);
  int count = 0;
  check_opening(cudaGetDeviceCount(&count));
  if (count == 0) check_opening(cudaErrorNoDevice);
  if (ordinal < 0) check_opening(cudaGetDevice(&ordinal));
  LT_REQUIRE(ordinal < count, "got CUDA device %d, wanted 0 to %d, the devices that this process sees", ordinal,
             count - 1);
  if (ordinal >= kMostDevices)
    fail(ErrorKind::kUnsupported, "got CUDA device %d, wanted one of the first %d: see CUDA_VISIBLE_DEVICES", ordinal,
         kMostDevices);
  note_forks();
  DeviceInfo info;
  info.ordinal = ordinal;
  const char* const sync = getenv("LOWTIDE_SYNC");
  info.synchronous = sync && std::strcmp(sync, "1") == 0;
  if (!lost(ordinal)) check_opening(retain_context(ordinal, info.driver_device, info.context));
  const Scope scope(info, kOpening);
  const auto attribute = [&](cudaDeviceAttr which) {
    int value = 0;
    scope.check(cudaDeviceGetAttribute(&value, which, ordinal));
    return value;
  };
  if (!cuda_kernels::has_code())
    fail(ErrorKind::kUnsupported,
         "no kernel of this build runs on CUDA device %d, which has compute capability %d.%d; wanted %s, and a driver "
         "that knows it",
         ordinal, attribute(cudaDevAttrComputeCapabilityMajor), attribute(cudaDevAttrComputeCapabilityMinor),
         capabilities(kCode).c_str());
  info.processors = attribute(cudaDevAttrMultiProcessorCount);
  info.reaches_all = attribute(cudaDevAttrPageableMemoryAccessUsesHostPageTables) != 0;
  info.registers = attribute(cudaDevAttrHostRegisterSupported) != 0;
  info.reaches_pinned = attribute(cudaDevAttrCanUseHostPointerForRegisteredMem) != 0;
  info.concurrent_managed = attribute(cudaDevAttrConcurrentManagedAccess) != 0;
  info.numa_node = numa_node_of(ordinal);
  return info;
}

cudaError_t find_capture(cudaStream_t stream, bool& captured) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  const cudaError_t code = cudaStreamIsCapturing(stream, &status);
  captured = status != cudaStreamCaptureStatusNone;
  return code;
}

cudaError_t find_device(cudaStream_t stream, int& ordinal) {
  bool captured = false;
  if (const cudaError_t code = find_capture(stream, captured); code != cudaSuccess || captured) return code;
  int found = -1;
  const cudaError_t code = cudaStreamGetDevice(stream, &found);
  if (code == cudaSuccess)
    ordinal = found;
  else if (code != cudaErrorCallRequiresNewerDriver && code != cudaErrorNotSupported)
    return code;
  else
    cudaGetLastError();  // an older driver cannot tell
  return cudaSuccess;
}

Scope::Scope(const DeviceInfo& info, const char* doing) : info_(info), doing_(doing) {
  if (is_forked()) fail_forked(ErrorKind::kDeviceLost, doing);
  if (lost(info.ordinal))
    fail(ErrorKind::kDeviceLost,
         "CUDA, %s: device %d was lost to an earlier error; the contents of its memory are gone, and only another "
         "process can use it again",
         doing, info.ordinal);
  check(enter_context(info.driver_device, info.context, entered_));
  const cudaError_t code = cudaThreadExchangeStreamCaptureMode(&mode_);
  if (code == cudaSuccess) return;
  if (entered_) leave_context();
  raise(code);
}

Scope::~Scope() {
  cudaThreadExchangeStreamCaptureMode(&mode_);
  if (entered_) leave_context();
}

void Scope::raise(cudaError_t code) const {
  cudaGetLastError();  // clears our error, not the caller's, because the plug-in has its own copy of the runtime
  const ErrorKind kind = kind_of(code);
  if (kind == ErrorKind::kDeviceLost) lost(info_.ordinal) = true;
  fail(kind, "CUDA, %s, device %d: %s%s", doing_, info_.ordinal, words_of(code).c_str(),
       kind == ErrorKind::kDeviceLost && !info_.synchronous
           ? "; the operation that failed may have been queued earlier, by any library: LOWTIDE_SYNC=1 waits for each "
             "of Lowtide's"
           : "");
}

void Scope::queued(cudaStream_t stream) const {
  if (info_.synchronous && !is_capturing(stream)) check(cudaStreamSynchronize(stream));
}

bool Scope::is_capturing(cudaStream_t stream) const {
  bool captured = false;
  check(find_capture(stream, captured));
  return captured;
}

}  // namespace lowtide::cuda_host
