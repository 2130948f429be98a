// The cores that this process may run on, their NUMA nodes, and their cache. This is the only file that asks the system
// about them: Linux answers, other systems do not.
#pragma once

#include <bitset>
#include <cstdint>
#include <string>
#include <vector>

namespace lowtide {

using CoreSet = std::bitset<1024>;  // by number; as many as Linux's own set holds

// The cores that any thread of the process may run on; empty if the system does not report them. One thread's own set
// is not enough: OpenMP runtimes bind every thread they see (OMP_PROC_BIND), including the caller, to a single core.
CoreSet process_cores();

// The core that the calling thread is on, or -1.
int current_core();
// Restricts the calling thread to these cores, if the system supports it.
void keep_to(const CoreSet& cores);

// The largest cache of the machine; 0: unknown.
int64_t last_cache_bytes();

// NUMA nodes that own a core of the set, renumbered from 0.
struct MemoryNodes {
  std::vector<int> cores;    // for each node: cores of the set
  std::vector<int> of_core;  // for each core of the machine: its node, or -1

  int of(int core) const {
    return core >= 0 && static_cast<size_t>(core) < of_core.size() ? of_core[static_cast<size_t>(core)] : -1;
  }
};

// folder: like /sys/devices/system/node. One node with all cores if it cannot be read or does not name every core.
MemoryNodes read_nodes(const std::string& folder, const CoreSet& cores);

// Nodes of the cores that the process had at the first call.
const MemoryNodes& process_nodes();

}  // namespace lowtide
