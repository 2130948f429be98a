// Tests that after any sequence of requests, changes and failures a copy matches its chunk, every change is written
// once, when necessary, and a change that could not be written is written later.
#include "memory/staged_chunk.h"

#include "core/env.h"
#include "support/test.h"

namespace lowtide::testing {
namespace {

constexpr size_t kChunks = 3;
constexpr int64_t kBytes[kChunks] = {4096, 8192, 4096};

struct Records {
  std::array<std::vector<std::byte>, kChunks> bytes;
  int reads = 0, writes = 0;
  bool refuse = false;

  Records() {
    for (size_t i = 0; i < kChunks; ++i) bytes[i].assign(static_cast<size_t>(kBytes[i]), static_cast<std::byte>(i));
  }
  void read(size_t chunk, std::byte* copy) {
    if (refuse) throw chunk;
    std::copy(bytes[chunk].begin(), bytes[chunk].end(), copy);
    ++reads;
  }
  void write(size_t chunk, const std::byte* copy) {
    if (refuse) throw chunk;
    bytes[chunk].assign(copy, copy + kBytes[chunk]);
    ++writes;
  }
};

struct Fixture {
  Records records;
  Buffer memory;
  StagedChunk stage{[this](size_t chunk, std::byte* copy) { records.read(chunk, copy); },
                    [this](size_t chunk, const std::byte* copy) { records.write(chunk, copy); }};
  std::byte* bring(size_t chunk) { return stage.bring(chunk, system_env(), memory, kBytes[chunk]); }
};

TEST(StagedChunk, ManyChangesAreOneWrite) {
  Fixture f;
  for (int i = 0; i < 5; ++i) {
    f.bring(1)[i] = std::byte{9};
    f.stage.note_change(1);
    f.stage.note_change(0);  // a different chunk, so there is nothing to write
  }
  EXPECT_EQ(f.records.reads, 1);
  EXPECT_EQ(f.records.writes, 0);
  EXPECT_EQ(f.bring(2)[0], std::byte{2});
  EXPECT_EQ(f.records.writes, 1);
  EXPECT_EQ(f.records.bytes[1][4], std::byte{9});
  f.stage.write_back();
  EXPECT_EQ(f.records.writes, 1) << "nothing has changed since";
}

TEST(StagedChunk, RandomCallsWithRefusals) {
  Rng rng = seeded("StagedChunk", 401);
  std::array<std::byte, kChunks> expected{std::byte{0}, std::byte{1}, std::byte{2}};
  Fixture f;
  int refused = 0, changes = 0;
  for (int i = 0; i < 20000; ++i) {
    const auto chunk = static_cast<size_t>(rng.between(0, kChunks - 1));
    f.records.refuse = rng.between(0, 3) == 0;
    try {
      std::byte* const copy = f.bring(chunk);
      ASSERT_TRUE(f.stage.holds(chunk));
      ASSERT_EQ(copy[0], expected[chunk]);
      if (rng.between(0, 1)) {
        copy[0] = expected[chunk] = static_cast<std::byte>(++changes);
        f.stage.note_change(chunk);
      }
      if (rng.between(0, 9) == 0) f.stage.write_back(), f.stage.forget();
    } catch (size_t) {
      ++refused;
    }
  }
  f.records.refuse = false;
  f.stage.write_back();
  for (size_t chunk = 0; chunk < kChunks; ++chunk) EXPECT_EQ(f.records.bytes[chunk][0], expected[chunk]);
  EXPECT_GT(refused, 1000);
  EXPECT_LE(f.records.writes, changes);
  figure("{} changes in {} writes, {} calls refused: 0 lost", changes, f.records.writes, refused);
}

}  // namespace
}  // namespace lowtide::testing
