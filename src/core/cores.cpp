#include "core/cores.h"

#include <unistd.h>
#if defined(__linux__)
#include <dirent.h>
#include <sched.h>
#endif

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <sstream>

namespace lowtide {
namespace {

constexpr int kMostCores = static_cast<int>(CoreSet{}.size());

// Parses "0-3,8,12-13"; returns nothing if the text is not such a list.
std::vector<int> numbers_of(const std::string& list) {
  std::vector<int> all;
  std::istringstream parts(list);
  for (std::string part; std::getline(parts, part, ',');) {
    int first = 0, last = 0;
    char dash = 0;
    std::istringstream text(part);
    if (!(text >> first)) return {};
    last = text >> dash >> last ? last : first;
    if (first < 0 || last >= kMostCores) return {};
    for (int n = first; n <= last; ++n) all.push_back(n);
  }
  return all;
}

MemoryNodes one_node(const CoreSet& cores) {
  return {{std::max(1, static_cast<int>(cores.count()))}, std::vector<int>(kMostCores, 0)};
}

}  // namespace

#if defined(__linux__)
static_assert(kMostCores == CPU_SETSIZE);

CoreSet process_cores() {
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
  CoreSet cores;
  for (size_t core = 0; core < cores.size(); ++core) cores[core] = CPU_ISSET(core, &all);
  return cores;
}

int current_core() { return sched_getcpu(); }

void keep_to(const CoreSet& cores) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (size_t core = 0; core < cores.size(); ++core)
    if (cores[core]) CPU_SET(core, &set);
  sched_setaffinity(0, sizeof set, &set);
}

int64_t last_cache_bytes() { return std::max<int64_t>(::sysconf(_SC_LEVEL3_CACHE_SIZE), 0); }
#else
CoreSet process_cores() { return {}; }
int current_core() { return -1; }
void keep_to(const CoreSet&) {}
int64_t last_cache_bytes() { return 0; }
#endif

MemoryNodes read_nodes(const std::string& folder, const CoreSet& cores) {
  MemoryNodes nodes{{}, std::vector<int>(kMostCores, -1)};
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
      if (!cores[static_cast<size_t>(core)] || of_core >= 0) continue;
      of_core = static_cast<int>(nodes.cores.size());
      ++count;
    }
    if (count) nodes.cores.push_back(count);  // a node may have memory but no cores
    named += count;
  }
  return named && named == static_cast<int>(cores.count()) ? nodes : one_node(cores);
}

const MemoryNodes& process_nodes() {
  static const MemoryNodes nodes = read_nodes("/sys/devices/system/node", process_cores());
  return nodes;
}

}  // namespace lowtide
