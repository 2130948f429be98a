// The tests' view of the emulated machine, and its settings.
#include "cuda_emulator.h"

#include <algorithm>

#include "machine.h"

namespace cuda_emulator {
namespace {

struct Locked {
  Machine& machine = Machine::get();
  std::lock_guard<std::mutex> lock{machine.mutex};
  ~Locked() {
    for (const auto& device : machine.devices) device->arena.close();
  }
  Machine* operator->() { return &machine; }
};

}  // namespace

Settings settings() { return Locked()->settings; }

void change(const Settings& to) {
  Locked machine;
  Settings& now = machine->settings;
  if (to.seed != now.seed) machine->random = Random(to.seed);
  now.pin_limit = to.pin_limit, now.other_use = to.other_use, now.seed = to.seed, now.strict = to.strict;
  now.memory = to.memory, now.registers = to.registers, now.reaches = to.reaches;
  now.pageable = to.pageable, now.managed = to.managed;
  for (const auto& device : machine->devices) device->arena.set_capacity(to.memory);
}

void fail(const std::string& function, const Injection& injection) { Locked()->injections[function] = injection; }

void forget_failures() { Locked()->injections.clear(); }

void lose_device(int device, cudaError_t error) { Locked()->lose(device, error, "lost on request"); }

Counters counters() { return Locked()->counters; }

Held held() {
  Locked machine;
  Held out;
  for (const auto& [begin, block] : machine->blocks) {
    const auto bytes = static_cast<int64_t>(block.bytes);
    if (is_pinned(block))
      out.registered_bytes += bytes, ++(block.place == Place::kRegistered ? out.registrations : out.host_allocations);
    else
      (block.place == Place::kDevice ? out.device_bytes : out.managed_bytes) += bytes, ++out.allocations;
  }
  for (const auto& [handle, stream] : machine->streams) {
    out.streams += !stream->destroyed;
    out.pending += std::ssize(stream->queue);
  }
  for (const auto& device : machine->devices) out.pending += std::ssize(device->legacy->queue);
  out.events = std::ssize(machine->events);
  out.graphs = std::ssize(machine->graphs) + std::ssize(machine->executables);
  return out;
}

std::vector<std::string> take_misuses() { return std::exchange(Locked()->misuses, {}); }

std::string last_failure() { return Locked()->last_failure; }

void unload() { Locked()->unloaded = true; }

bool has_context(int device) { return Locked()->devices.at(static_cast<size_t>(device))->has_context; }

std::vector<std::string> operations() { return Locked()->operations; }

void run_all() { Locked()->force_all(-1); }

void check_edges() {
  Locked machine;
  for (const auto& [begin, block] : machine->blocks) {
    if (block.place != Place::kDevice) continue;
    Arena& arena = machine->devices[static_cast<size_t>(block.device)]->arena;
    arena.open();
    if (!arena.edge_is_whole(block.begin, block.bytes))
      machine->misuse("memory of " + std::to_string(block.bytes) + " bytes was written beyond its end");
  }
}

}  // namespace cuda_emulator
