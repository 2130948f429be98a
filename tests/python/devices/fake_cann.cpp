// Huawei's CANN without an NPU, for torch_npu's own wheel: memory, streams, events and copies are real, in host memory;
// operators and everything else fail. One library under the names that the wheel links (tools/run_tests.py).
//
// A stream holds work back until somebody waits for it while `late` is on, as a device that is slower than its host;
// else work is done at once. Calls may come from any thread.
#include <dlfcn.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <mutex>
#include <set>
#include <string>
#include <unordered_set>
#include <vector>

namespace {

constexpr int kFailed = 500000;  // ACL_ERROR_FAILURE

struct Stream {
  std::vector<std::function<void()>> work;
  size_t done = 0;
};

struct Event {
  Stream* stream = nullptr;
  size_t after = 0;  // so much of the stream's work
};

std::recursive_mutex mutex;
Stream default_stream;
std::set<Stream*> streams{&default_stream};
bool late = false;
int64_t copied_late = 0;

Stream* stream_of(void* stream) { return stream != nullptr ? static_cast<Stream*>(stream) : &default_stream; }

void finish(Stream* stream, size_t after) {
  while (stream->done < after) {
    stream->work[stream->done++]();
  }
}

void finish(Stream* stream) { finish(stream, stream->work.size()); }

void finish_all() {
  for (Stream* stream : streams) finish(stream);
}

int queue(void* stream, std::function<void()> work) {
  std::lock_guard lock(mutex);
  stream_of(stream)->work.push_back(std::move(work));
  if (!late) finish(stream_of(stream));
  return 0;
}

int allocate(void** memory, size_t bytes) {
  return posix_memalign(memory, 512, bytes != 0 ? bytes : 512) == 0 ? 0 : kFailed;
}

int release(void* memory) {
  std::lock_guard lock(mutex);
  finish_all();
  free(memory);
  return 0;
}

// A torch that is built for CUDA has taken the names of the allocator's options that torch_npu takes for its own.
__attribute__((constructor)) void forget_option_names() {
  void* c10 = dlopen("libc10.so", RTLD_NOW | RTLD_NOLOAD);
  if (c10 == nullptr) return;
  void* names = dlsym(c10, "_ZN3c1016CachingAllocator26AcceleratorAllocatorConfig14getMutableKeysB5cxx11Ev");
  if (names != nullptr) reinterpret_cast<std::unordered_set<std::string>& (*)()>(names)().clear();
}

}  // namespace

extern "C" {

void fake_cann_be_late(int on) {
  std::lock_guard lock(mutex);
  finish_all();
  late = on != 0;
}
int64_t fake_cann_copied_late() { return copied_late; }  // bytes

int aclInit(const char*) { return 0; }
int aclFinalize() { return 0; }
const char* aclGetRecentErrMsg() { return "no NPU: fake_cann.cpp computes nothing"; }
const char* aclrtGetSocName() { return "Ascend910B1"; }
int aclrtGetDeviceCount(uint32_t* count) { return *count = 1, 0; }
int aclrtSetDevice(int32_t) { return 0; }
int aclrtResetDevice(int32_t) { return 0; }
int aclrtGetDevice(int32_t* device) { return *device = 0, 0; }
int aclrtGetCurrentContext(void** context) { return *context = &default_stream, 0; }
int aclrtSetCurrentContext(void*) { return 0; }
int aclrtDeviceCanAccessPeer(int32_t* can, int32_t, int32_t) { return *can = 0, 0; }
int aclGetDeviceCapability(uint32_t, int, int64_t* value) { return *value = 20, 0; }
int aclrtGetMemInfo(int, size_t* free, size_t* total) { return *free = size_t{1} << 30, *total = size_t{1} << 30, 0; }

int aclrtMalloc(void** memory, size_t bytes, int) { return allocate(memory, bytes); }
int aclrtMallocAlign32(void** memory, size_t bytes, int) { return allocate(memory, bytes); }
int aclrtMallocHost(void** memory, size_t bytes) { return allocate(memory, bytes); }
int aclrtFree(void* memory) { return release(memory); }
int aclrtFreeHost(void* memory) { return release(memory); }

int aclrtCreateStreamWithConfig(void** stream, uint32_t, uint32_t) {
  std::lock_guard lock(mutex);
  *stream = *streams.insert(new Stream).first;
  return 0;
}
int aclrtCreateStream(void** stream) { return aclrtCreateStreamWithConfig(stream, 0, 0); }
int aclrtDestroyStream(void* stream) {  // stays where it is: events know it
  std::lock_guard lock(mutex);
  finish(stream_of(stream));
  return 0;
}
int aclrtDestroyStreamForce(void* stream) { return aclrtDestroyStream(stream); }
int aclrtSynchronizeStream(void* stream) { return aclrtDestroyStream(stream); }
int aclrtSynchronizeStreamWithTimeout(void* stream, int32_t) { return aclrtDestroyStream(stream); }
int aclrtSynchronizeDevice() { return release(nullptr); }
int aclrtSynchronizeDeviceWithTimeout(int32_t) { return release(nullptr); }
int aclrtStreamQuery(void* stream, int* status) {
  std::lock_guard lock(mutex);
  *status = stream_of(stream)->done == stream_of(stream)->work.size() ? 0 : 1;
  return 0;
}

int aclrtCreateEventExWithFlag(void** event, uint32_t) { return *event = new Event, 0; }
int aclrtCreateEventWithFlag(void** event, uint32_t flag) { return aclrtCreateEventExWithFlag(event, flag); }
int aclrtCreateEvent(void** event) { return aclrtCreateEventExWithFlag(event, 0); }
int aclrtDestroyEvent(void* event) { return delete static_cast<Event*>(event), 0; }
int aclrtResetEvent(void*, void*) { return 0; }
int aclrtRecordEvent(void* event, void* stream) {
  std::lock_guard lock(mutex);
  *static_cast<Event*>(event) = {stream_of(stream), stream_of(stream)->work.size()};
  return 0;
}
int aclrtStreamWaitEvent(void* stream, void* event) {
  Event then = *static_cast<Event*>(event);
  return queue(stream, [then] {
    if (then.stream != nullptr) finish(then.stream, then.after);
  });
}
int aclrtSynchronizeEvent(void* event) {
  std::lock_guard lock(mutex);
  Event* one = static_cast<Event*>(event);
  if (one->stream != nullptr) finish(one->stream, one->after);
  return 0;
}
int aclrtQueryEventStatus(void* event, int* status) {
  std::lock_guard lock(mutex);
  Event* one = static_cast<Event*>(event);
  *status = one->stream == nullptr || one->stream->done >= one->after ? 1 : 0;
  return 0;
}
int aclrtQueryEventWaitStatus(void* event, int* status) { return aclrtQueryEventStatus(event, status); }
int aclrtEventElapsedTime(float* ms, void*, void*) { return *ms = 0, 0; }

int aclrtMemcpy(void* to, size_t, const void* from, size_t bytes, int) { return memcpy(to, from, bytes), 0; }
int aclrtMemcpyAsync(void* to, size_t, const void* from, size_t bytes, int, void* stream) {
  if (late) copied_late += static_cast<int64_t>(bytes);
  return queue(stream, [=] { memcpy(to, from, bytes); });
}
int aclrtMemcpyAsyncWithCondition(void* to, size_t room, const void* from, size_t bytes, int kind, void* stream) {
  return aclrtMemcpyAsync(to, room, from, bytes, kind, stream);
}
int aclrtMemset(void* memory, size_t, int32_t value, size_t bytes) { return memset(memory, value, bytes), 0; }

// torch_npu sets these when it begins.
int aclSetCompileopt() { return 0; }
int aclrtCtxSetSysParamOpt() { return 0; }
int aclrtSetDeviceSatMode() { return 0; }
int aclrtSetOpExecuteTimeOut() { return 0; }
int aclrtSetSysParamOpt() { return 0; }
int aclrtGetSysParamOpt(int, int64_t* value) { return *value = 0, 0; }
int aclrtCtxGetSysParamOpt(int, int64_t* value) { return *value = 0, 0; }

#define FAILS(name) \
  int name() { return kFailed; }
// clang-format off
FAILS(MsprofGetHashId) FAILS(MsprofRegisterCallback) FAILS(MsprofReportAdditionalInfo) FAILS(MsprofReportApi)
FAILS(MsprofReportCompactInfo) FAILS(MsprofSysCycleTime) FAILS(aclAppLog) FAILS(aclCreateDataBuffer)
FAILS(aclCreateTensorDesc) FAILS(aclDestroyDataBuffer) FAILS(aclDestroyTensorDesc) FAILS(aclGetTensorDescDimV2)
FAILS(aclGetTensorDescFormat) FAILS(aclGetTensorDescNumDims) FAILS(aclGetTensorDescType) FAILS(aclSetTensorDescName)
FAILS(aclSetTensorFormat) FAILS(aclSetTensorPlaceMent) FAILS(aclSetTensorShape) FAILS(aclmdlFinalizeDump)
FAILS(aclmdlInitDump) FAILS(aclmdlSetDump) FAILS(aclopCompileAndExecute) FAILS(aclopCreateAttr)
FAILS(aclopDestroyAttr) FAILS(aclopSetAttrBool) FAILS(aclopSetAttrDataType) FAILS(aclopSetAttrFloat)
FAILS(aclopSetAttrInt) FAILS(aclopSetAttrListBool) FAILS(aclopSetAttrListFloat) FAILS(aclopSetAttrListInt)
FAILS(aclopSetAttrListListInt) FAILS(aclopSetAttrString) FAILS(aclrtBinaryGetFunction) FAILS(aclrtBinaryLoadFromData)
FAILS(aclrtDeviceEnablePeerAccess) FAILS(aclrtDeviceGetBareTgid) FAILS(aclrtFreePhysical) FAILS(aclrtGetFunctionAddr)
FAILS(aclrtMallocPhysical) FAILS(aclrtMapMem) FAILS(aclrtMemExportToShareableHandle)
FAILS(aclrtMemImportFromShareableHandle) FAILS(aclrtMemSetPidToShareableHandle) FAILS(aclrtProcessReport)
FAILS(aclrtReleaseMemAddress) FAILS(aclrtReserveMemAddress) FAILS(aclrtUnmapMem) FAILS(rtDevBinaryRegister)
FAILS(rtFunctionRegister) FAILS(rtGetC2cCtrlAddr) FAILS(rtKernelLaunch)
// clang-format on

}  // extern "C"
