#include "machine.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>

namespace cuda_emulator {
namespace {

constexpr size_t kLongestQueue = 1024, kLongestLog = 1000;

int from_environment(const char* name, int otherwise) {
  const char* text = std::getenv(name);
  return text && *text ? std::atoi(text) : otherwise;
}

Settings initial_settings() {
  Settings out;
  out.devices = from_environment("LT_CUDA_EMULATOR_DEVICES", out.devices);
  out.strict = from_environment("LT_CUDA_EMULATOR_STRICT", 0) != 0;
  return out;
}

std::unique_ptr<Machine>& instance() {
  // Never destroyed: other objects of static life may still call.
  static auto& machine = *new std::unique_ptr<Machine>(std::make_unique<Machine>(initial_settings()));
  return machine;
}

}  // namespace

bool is_lasting(cudaError_t error) {
  switch (error) {
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorContained:
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorContextIsDestroyed:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case cudaErrorTensorMemoryLeak:
    case cudaErrorExternalDevice:
      return true;
    default:
      return false;
  }
}

HostThread& host_thread() {
  static thread_local HostThread state;
  return state;
}

Machine& Machine::get() { return *instance(); }

Machine::Machine(const Settings& of) : settings(of), random(of.seed) {
  for (int d = 0; d < settings.devices; ++d) {
    devices.push_back(std::make_unique<Device>(settings.memory));
    devices.back()->legacy = std::make_unique<Stream>();
    devices.back()->legacy->device = d;
    devices.back()->legacy->legacy = true;
  }
}

// A driver that is gone takes nothing back.
Machine::~Machine() {
  for (const auto& [address, block] : blocks)
    if (block.place == Place::kManaged) ::operator delete (block.begin, std::align_val_t{4096});
}

void Machine::misuse(const std::string& what) {
  misuses.push_back(what);
  if (!settings.strict) return;
  std::fprintf(stderr, "misuse of the CUDA runtime: %s\n", what.c_str());
  std::abort();
}

Device& Machine::present() { return *devices[static_cast<size_t>(host_thread().present())]; }

bool Machine::is_inherited() const { return process != 0 && process != getpid(); }

void Machine::lose(int device, cudaError_t error, const std::string& reason) {
  last_failure = reason;
  if (devices[static_cast<size_t>(device)]->lost == cudaSuccess) devices[static_cast<size_t>(device)]->lost = error;
}

void Machine::log(const std::string& what) {
  if (operations.size() >= kLongestLog) operations.erase(operations.begin(), operations.begin() + kLongestLog / 2);
  operations.push_back(what);
}

Stream* Machine::stream(cudaStream_t handle) {
  if (!handle || handle == cudaStreamLegacy) return present().legacy.get();
  const auto it = streams.find(handle);
  return it == streams.end() || it->second->destroyed ? nullptr : it->second.get();
}

Event* Machine::event(cudaEvent_t handle) {
  const auto it = events.find(handle);
  return it == events.end() ? nullptr : it->second.get();
}

cudaError_t Machine::enqueue(Stream& stream, Work work, std::vector<OpRef> after) {
  if (stream.capture) {
    if (!stream.capture->valid) return cudaErrorStreamCaptureInvalidated;
    stream.capture->nodes.push_back({std::move(work), stream.tail});
    stream.tail = {stream.capture->nodes.size() - 1};
    return cudaSuccess;
  }
  if (stream.legacy) {
    for (const auto& [handle, other] : streams) {
      if (other->device != stream.device || !other->blocking) continue;
      if (other->capture) {
        other->capture->valid = false;
        return cudaErrorStreamCaptureImplicit;
      }
      if (other->last && !other->last->done) after.push_back(other->last);
    }
  } else if (stream.blocking) {
    const OpRef& last = devices[static_cast<size_t>(stream.device)]->legacy->last;
    if (last && !last->done) after.push_back(last);
  }
  auto op = std::make_shared<Op>();
  op->work = std::move(work), op->stream = &stream, op->after = std::move(after);
  stream.queue.push_back(op);
  stream.last = op;
  while (stream.queue.size() > kLongestQueue) force(stream.queue.front());
  return cudaSuccess;
}

void Machine::check_unused(const Range& range, const char* what) {
  const auto look = [&](const Stream& stream) {
    for (const OpRef& op : stream.queue)
      if (op->work.reads.meets(range) || op->work.writes.meets(range))
        misuse(std::string(what) + " while " + op->work.name + " uses it");
  };
  for (const auto& [handle, stream] : streams) look(*stream);
  for (const auto& device : devices) look(*device->legacy);
}

Call::Call(const char* name, unsigned kind) : machine(Machine::get()), lock_(machine.mutex), kind_(kind) {
  ++machine.counters.calls;
  if (machine.unloaded) {
    error_ = cudaErrorCudartUnloading;
    return;
  }
  // CUDA does not go on in a forked child; initializing is the first thing that fails there.
  if (machine.is_inherited()) {
    error_ = cudaErrorInitializationError;
    return;
  }
  if (kind & kAlways) return;
  machine.process = getpid();
  if (machine.settings.driver < CUDART_VERSION / 1000 * 1000) {
    error_ = cudaErrorInsufficientDriver;
  } else if (machine.devices.empty()) {
    error_ = cudaErrorNoDevice;
  } else if (auto& device = machine.present(); device.lost != cudaSuccess) {
    error_ = device.lost;
  } else {
    for (const char* key : {name, ""}) {
      const auto it = machine.injections.find(key);
      if (it == machine.injections.end()) continue;
      if (it->second.after-- > 0) continue;
      error_ = it->second.error;
      if (is_lasting(error_)) device.lost = error_;
      if (--it->second.times <= 0) machine.injections.erase(it);
      break;
    }
  }
  if (error_ == cudaSuccess && (kind & kUnsafeInCapture) && !safe_in_capture(machine))
    error_ = cudaErrorStreamCaptureUnsupported;
  if (error_ != cudaSuccess || (kind & kWithoutContext)) return;
  HostThread& thread = host_thread();
  if (!thread.depth) thread.push(thread.device);
  machine.present().has_context = true;
}

Call::~Call() {
  for (const auto& device : machine.devices) device->arena.close();
}

cudaError_t Call::finish(cudaError_t error) {
  if (error_ != cudaSuccess) error = error_;
  if (!(kind_ & kAlways) && error_ == cudaSuccess && !machine.devices.empty()) {
    // A device may have been lost on the way.
    const cudaError_t lost = machine.present().lost;
    if (lost != cudaSuccess) error = lost;
    if (error == cudaSuccess && (kind_ & kSynchronizes)) ++machine.counters.synchronizing;
  }
  if (error != cudaSuccess && !(kind_ & kOfDriver)) host_thread().error = error;
  return error;
}

void reset(const Settings& settings) {
  instance() = std::make_unique<Machine>(settings);
  host_thread() = {};
}

}  // namespace cuda_emulator
