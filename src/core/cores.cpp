#include "core/cores.h"

#include <dirent.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <sstream>

namespace lowtide {
namespace {

// "0-3,8,12-13" as numbers; empty for a text that is none.
std::vector<int> numbers_of(const std::string& list) {
  std::vector<int> all;
  std::istringstream parts(list);
  for (std::string part; std::getline(parts, part, ',');) {
    int first = 0, last = 0;
    char dash = 0;
    std::istringstream text(part);
    if (!(text >> first)) return {};
    last = text >> dash >> last ? last : first;
    if (first < 0 || last >= CPU_SETSIZE) return {};
    for (int n = first; n <= last; ++n) all.push_back(n);
  }
  return all;
}

MemoryNodes one_node(const cpu_set_t& cores) {
  return {{std::max(1, CPU_COUNT(&cores))}, std::vector<int>(CPU_SETSIZE, 0)};
}

}  // namespace

cpu_set_t process_cores() {
  cpu_set_t all;
  CPU_ZERO(&all);
  if (DIR* tasks = opendir("/proc/self/task")) {
    while (const dirent* entry = readdir(tasks)) {
      cpu_set_t one;
      const pid_t tid = std::atoi(entry->d_name);
      if (tid > 0 && sched_getaffinity(tid, sizeof one, &one) == 0) CPU_OR(&all, &all, &one);
    }
    closedir(tasks);
  }
  return all;
}

MemoryNodes read_nodes(const std::string& folder, const cpu_set_t& cores) {
  MemoryNodes nodes{{}, std::vector<int>(CPU_SETSIZE, -1)};
  const auto line_of = [&](const std::string& name) {
    std::string line;
    std::getline(std::ifstream(folder + "/" + name), line);
    return line;
  };
  int named = 0;
  for (const int node : numbers_of(line_of("online"))) {
    int count = 0;
    for (const int core : numbers_of(line_of("node" + std::to_string(node) + "/cpulist"))) {
      int& of_core = nodes.of_core[static_cast<size_t>(core)];
      if (!CPU_ISSET(static_cast<size_t>(core), &cores) || of_core >= 0) continue;
      of_core = static_cast<int>(nodes.cores.size());
      ++count;
    }
    if (count) nodes.cores.push_back(count);  // nodes of memory alone have no cores
    named += count;
  }
  return named && named == CPU_COUNT(&cores) ? nodes : one_node(cores);
}

const MemoryNodes& process_nodes() {
  static const MemoryNodes nodes = read_nodes("/sys/devices/system/node", process_cores());
  return nodes;
}

}  // namespace lowtide
