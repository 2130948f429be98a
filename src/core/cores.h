// The cores that this process may run on, their NUMA nodes and their cache. Only this file asks the system about them,
// and only Linux answers.
#pragma once

#include <bitset>
#include <cstdint>
#include <string>
#include <vector>

namespace lowtide {

using CoreSet = std::bitset<1024>;  // indexed by core number; as large as Linux's cpu_set_t

// The cores that any thread of the process may run on; empty if the system does not report them. The caller's own set
// is not enough: OpenMP runtimes bind every thread they see (OMP_PROC_BIND), including the caller, to one core.
CoreSet process_cores();

// The core that the calling thread is on, or -1.
int current_core();
// Restricts the calling thread to these cores, if the system supports it.
void keep_to(const CoreSet& cores);

// Bytes of the machine's largest cache; 0 if unknown.
int64_t last_cache_bytes();

// The NUMA nodes that own at least one core of a set, renumbered from 0.
struct MemoryNodes {
  std::vector<int> cores;    // for each node: how many cores of the set it owns
  std::vector<int> of_core;  // for each core of the machine: its node, or -1

  int of(int core) const {
    return core >= 0 && static_cast<size_t>(core) < of_core.size() ? of_core[static_cast<size_t>(core)] : -1;
  }
};

// folder: like /sys/devices/system/node. Returns one node with all cores if it is unreadable or omits a core.
MemoryNodes read_nodes(const std::string& folder, const CoreSet& cores);

// The nodes of the cores that the process had at the first call.
const MemoryNodes& process_nodes();

}  // namespace lowtide
