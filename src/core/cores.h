// The cores that this process may run on, the nodes of memory that they belong to, and their cache. All that the
// library asks the system about them is asked here: Linux answers, other systems do not.
#pragma once

#include <bitset>
#include <cstdint>
#include <string>
#include <vector>

namespace lowtide {

using CoreSet = std::bitset<1024>;  // by number, as many as Linux's own set holds

// All that any of the process's threads may run on; none where the system does not tell. One thread's own set is not
// enough: OpenMP runtimes bind the threads they meet (OMP_PROC_BIND), the calling one included, to a single core each.
CoreSet process_cores();

// The core that the calling thread is on, or -1.
int current_core();
// Lets the calling thread run on these alone, where the system can do so.
void keep_to(const CoreSet& cores);

// The largest cache of the machine; 0: not known.
int64_t last_cache_bytes();

// NUMA nodes that own a core of the set, renumbered from 0.
struct MemoryNodes {
  std::vector<int> cores;    // for each node: cores of the set
  std::vector<int> of_core;  // for each core of the machine: its node, or -1

  int of(int core) const {
    return core >= 0 && static_cast<size_t>(core) < of_core.size() ? of_core[static_cast<size_t>(core)] : -1;
  }
};

// folder: as /sys/devices/system/node. One node of all cores if it cannot be read or does not name every one of them.
MemoryNodes read_nodes(const std::string& folder, const CoreSet& cores);

// Nodes of the cores that the process had at the first call.
const MemoryNodes& process_nodes();

}  // namespace lowtide
