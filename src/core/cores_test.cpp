#include "core/cores.h"

#include "support/test.h"

namespace lowtide::testing {
namespace {

CoreSet set_of(std::initializer_list<int> cores) {
  CoreSet set;
  for (const int core : cores) set.set(static_cast<size_t>(core));
  return set;
}

void write(const std::filesystem::path& file, const char* text) {
  std::filesystem::create_directories(file.parent_path());
  std::ofstream(file) << text << "\n";
}

// Two sockets, a memory-only node between them, and a set that omits most cores.
TEST(Cores, NodesHaveThoseOfTheirCoresThatAreInTheSet) {
  const TemporaryDirectory folder;
  const std::filesystem::path at(folder.path());
  write(at / "online", "0-2");
  write(at / "node0" / "cpulist", "0-3,8-11");
  write(at / "node1" / "cpulist", "");
  write(at / "node2" / "cpulist", "4-7,12-15");
  const MemoryNodes nodes = read_nodes(at, set_of({1, 8, 9, 15}));
  EXPECT_EQ(nodes.cores, (std::vector<int>{3, 1}));
  EXPECT_EQ(nodes.of(1), 0);
  EXPECT_EQ(nodes.of(9), 0);
  EXPECT_EQ(nodes.of(15), 1);
  EXPECT_EQ(nodes.of(0), -1);
  EXPECT_EQ(nodes.of(-1), -1);
  EXPECT_EQ(nodes.of(100000), -1);
}

// The folder is missing (containers), a core belongs to no node, or the text is not a list.
TEST(Cores, AreOneNodeWhereNodesAreNotKnown) {
  const TemporaryDirectory folder;
  const std::filesystem::path at(folder.path());
  EXPECT_EQ(read_nodes(at / "none", set_of({0, 5})).cores, std::vector<int>{2});
  write(at / "online", "0");
  write(at / "node0" / "cpulist", "0-3");
  EXPECT_EQ(read_nodes(at, set_of({0, 5})).cores, std::vector<int>{2});
  write(at / "node0" / "cpulist", "all of them");
  EXPECT_EQ(read_nodes(at, set_of({0, 5})).cores, std::vector<int>{2});
  EXPECT_EQ(read_nodes(at, set_of({0, 5})).of(5), 0);
}

TEST(Cores, OfThisProcessAreAllOnItsNodes) {
  const MemoryNodes& nodes = process_nodes();
  EXPECT_EQ(std::accumulate(nodes.cores.begin(), nodes.cores.end(), 0), static_cast<int>(process_cores().count()));
}

}  // namespace
}  // namespace lowtide::testing
