// The emulated machine: devices, streams, events, captures and queued work. One lock guards all of it. A Call, with
// which every function of the runtime begins, holds the lock.
#pragma once

#include <cuda_runtime.h>

#include <array>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "block.h"
#include "cuda_emulator.h"
#include "memory.h"
#include "random.h"

namespace cuda_emulator {

// One entry of a stream or a graph.
struct Work {
  enum class Kind { kKernel, kCopy, kGraph, kMark } kind = Kind::kMark;
  std::string name;
  int device = 0;
  std::function<void()> run;  // may be empty
  Range reads, writes;        // of copies
};

struct Stream;
struct Op {
  Work work;
  Stream* stream = nullptr;
  std::vector<std::shared_ptr<Op>> after;  // beside what is before it in its stream
  bool running = false, done = false;
};
using OpRef = std::shared_ptr<Op>;

struct Node {
  Work work;
  std::vector<size_t> after;
};
struct Capture {
  cudaStreamCaptureMode mode;
  std::thread::id thread;
  Stream* origin;
  bool valid = true, ended = false;
  std::vector<Node> nodes;
};
using CaptureRef = std::shared_ptr<Capture>;

struct Stream {
  int device = 0;
  bool blocking = true, legacy = false, destroyed = false;
  std::deque<OpRef> queue;
  OpRef last;
  CaptureRef capture;
  std::vector<size_t> tail;  // nodes that the next one of this stream follows
};
struct Event {
  int device = 0;
  OpRef record;  // nullptr: never
  CaptureRef capture;
  std::vector<size_t> tail;
};

struct Device {
  explicit Device(size_t memory) : arena(memory) {}
  Arena arena;
  bool has_context = false;
  cudaError_t lost = cudaSuccess;
  std::unique_ptr<Stream> legacy;
};

class Machine {
 public:
  static Machine& get();
  explicit Machine(const Settings& settings);
  ~Machine();

  // Streams and events by handle; nullptr: there is no such one. The legacy stream is the present device's.
  Stream* stream(cudaStream_t handle);
  Event* event(cudaEvent_t handle);
  // Queues it, or captures it.
  cudaError_t enqueue(Stream& stream, Work work, std::vector<OpRef> after = {});
  // Runs what must be before the op is done, in a random order, and sometimes more.
  void force(OpRef op);  // by value: what is at the front of a queue leaves it
  // Runs all work that is queued on a device; -1: on any.
  void force_all(int device);
  bool progress();  // runs one op that can; false: there is none
  void execute(const Work& work);
  // In the middle of a copy: something else may run.
  void interleave();

  void misuse(const std::string& what);
  Device& present();
  // Whether this process is a forked child of the one that has used the machine.
  bool is_inherited() const;
  void lose(int device, cudaError_t error, const std::string& reason);
  void log(const std::string& what);
  // Unregisters or frees memory that something queued uses.
  void check_unused(const Range& range, const char* what);

  std::mutex mutex;
  Settings settings;
  Random random;
  Counters counters;
  std::vector<std::unique_ptr<Device>> devices;
  std::map<const void*, std::unique_ptr<Stream>> streams;
  std::map<const void*, std::unique_ptr<Event>> events;
  using Graph = std::shared_ptr<const std::vector<Node>>;
  std::map<const void*, Graph> graphs, executables;
  std::vector<std::weak_ptr<Capture>> captures;
  Blocks blocks;  // of all memory
  std::map<std::string, Injection> injections;
  std::vector<std::string> misuses, operations;
  std::string last_failure;
  bool unloaded = false;
  int process = 0;  // that has used the machine first
  uint64_t next_handle = 1;
  BlockRunner runner;

 private:
  OpRef next_for(const OpRef& target);
  OpRef any_ready();
  void run(const OpRef& op);
  bool interleaving_ = false;
};

// State of a thread of the host. CUDA, Runtime API, "Interactions with the CUDA Driver API": calls of the runtime work
// in the context that is current to the thread; where there is none, a call that needs one makes the primary context of
// the thread's device and makes it current.
struct HostThread {
  int device = 0;                  // of cudaSetDevice
  std::array<int, 16> contexts{};  // by device; the last of `depth` is current
  size_t depth = 0;
  int present() const { return depth ? contexts[depth - 1] : device; }
  void push(int context) { contexts.at(depth++) = context; }
  cudaError_t error = cudaSuccess;
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
};
HostThread& host_thread();

// Handles are no addresses of anything, and are never given twice.
template <class Handle>
Handle new_handle(Machine& machine) {
  return reinterpret_cast<Handle>(uintptr_t{0x7c0000000000} + 64 * machine.next_handle++);
}

// One call of the runtime: it takes the lock and fails if a test asked for that, without a driver or on a lost device.
enum CallKind : unsigned {
  kPlain = 0,
  kAlways = 1,
  kUnsafeInCapture = 2,
  kSynchronizes = 4,
  kWithoutContext = 8,  // needs none, and makes none
  kOfDriver = 16        // leaves the runtime's last error alone
};
class Call {
 public:
  Call(const char* name, unsigned kind);
  ~Call();
  bool may_go_on() const { return error_ == cudaSuccess; }
  cudaError_t finish(cudaError_t error);
  Machine& machine;

 private:
  std::unique_lock<std::mutex> lock_;
  unsigned kind_;
  cudaError_t error_ = cudaSuccess;
};

template <class Act>
cudaError_t call(const char* name, unsigned kind, Act&& act) {
  Call one(name, kind);
  return one.finish(one.may_go_on() ? act(one.machine) : cudaSuccess);
}

// Whether the thread may make calls that are unsafe while something is captured; invalidates what is if not.
bool safe_in_capture(Machine& machine);
// Captures that an event of another stream brings in.
cudaError_t wait_in_capture(Stream& stream, Event& event);
bool is_lasting(cudaError_t error);

}  // namespace cuda_emulator
