// The cores that this process may run on, and the nodes of memory that they belong to.
#pragma once

#include <sched.h>

#include <string>
#include <vector>

namespace lowtide {

// All that any of the process's threads may run on. One thread's own set is not enough: OpenMP runtimes bind the
// threads they meet (OMP_PROC_BIND), the calling one included, to a single core each.
cpu_set_t process_cores();

// Nodes of memory by numbers of their own: 0, 1, ... of those that have a core in a set.
struct MemoryNodes {
  std::vector<int> cores;    // of each: how many are in the set
  std::vector<int> of_core;  // of each core of the machine: its node, or -1

  int of(int core) const {
    return core >= 0 && static_cast<size_t>(core) < of_core.size() ? of_core[static_cast<size_t>(core)] : -1;
  }
};

// folder: as /sys/devices/system/node. One node of all cores if it cannot be read or does not name every one of them.
MemoryNodes read_nodes(const std::string& folder, const cpu_set_t& cores);

// Those of the cores that the process had when this was first called.
const MemoryNodes& process_nodes();

}  // namespace lowtide
