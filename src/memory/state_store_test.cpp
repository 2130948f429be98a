// Tests that damage on the disk is noticed, that reads ahead wait for writes, and that nothing leaks.
// tests/memory/faults_test.cpp lets every call of a step fail.
#include "memory/state_store.h"

#include <malloc.h>

#include "support/faulty_env.h"
#include "support/mapped_bytes.h"
#include "support/test.h"

namespace lowtide::testing {
namespace {

StateShape shape(int64_t rows, int64_t row_length) { return {rows, row_length, 2, {{8, 1, 127}, {8, 1, 0}}}; }

// A store whose steps add 1 to every byte of the codes of state 1, so that each piece shows how often it was stepped.
class Counted {
 public:
  explicit Counted(Env& env, const std::string& directory)
      : store_(env, {{.host = 5 * 16384, .disk = directory, .chunk = 16384}}) {
    const std::vector<ShapedParam> params = {
        {0, shape(1, 30000)}, {1, shape(7, 1000)}, {2, shape(1, 1)}, {3, shape(40, 256)}};
    store_.add(params);
    for (const ShapedParam& p : params) expected_[p.param].assign(store_.pieces(p.param), 0);
  }

  // Returns the number of read requests of the first step, one for each streamed chunk.
  int reads_of_first_step() { return static_cast<int>(store_.report().moved_per_step / 2 / 16384); }

  // Takes a step. Returns the message if it threw.
  std::optional<std::string> step() {
    try {
      store_.step([&](std::span<const Store::PlacedChunk> chunks) {
        std::byte* const memory = chunks[0].memory;
        for (const Piece& piece : chunks[0].pieces) {
          for (int64_t i = 0; i < piece.elements; ++i)
            memory[piece.codes_at[1] + i] = static_cast<std::byte>(static_cast<int>(memory[piece.codes_at[1] + i]) + 1);
          ++expected_[piece.param][piece.number];
        }
      });
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kIo) << error.what();
      return error.what();
    }
    return std::nullopt;
  }

  // Returns the number of bytes that differ from what the calls of `work` wrote, or -1 if a chunk could not be read.
  int64_t wrong() {
    int64_t wrong = 0;
    for (auto& [param, steps] : expected_) try {
        store_.visit(param, false, [&, &counts = steps](const Piece& piece, std::byte* memory) {
          for (int64_t i = 0; i < piece.elements; ++i) {
            wrong += memory[piece.codes_at[1] + i] != static_cast<std::byte>(counts[piece.number]);
            wrong += memory[piece.codes_at[0] + i] != std::byte{127};
          }
        });
      } catch (const Error&) {
        return -1;
      }
    return wrong;
  }

 private:
  std::map<int64_t, std::vector<int>> expected_;
  StateStore store_;
};

TEST(StateStore, OnlyWantedChunksMove) {
  const TemporaryDirectory directory;
  StateStore store(system_env(), {{.host = 3 * 16384, .disk = directory.path(), .chunk = 16384}});
  const ShapedParam params[] = {{0, shape(1, 100000)}, {1, shape(1, 100000)}};
  store.add(params);
  constexpr int64_t kChunk = 16384, kRing = 3;
  const int64_t all = store.report().moved_per_step / 2;
  store.step([](std::span<const Store::PlacedChunk>) {});
  std::vector<bool> seen(store.pieces(1));
  const auto mark = [&](std::span<const Store::PlacedChunk> chunks) {
    for (const Piece& piece : chunks[0].pieces)
      if (piece.param == 1) seen[piece.number] = true;
  };
  store.step(mark, 1, {1});
  EXPECT_EQ(std::count(seen.begin(), seen.end(), false), 0);
  const int64_t before = store.report().read_bytes, written = store.report().written_bytes;
  store.step(mark, 1, {1});
  const int64_t half = store.report().read_bytes - before;
  EXPECT_EQ(half, store.report().written_bytes - written);
  EXPECT_LE(half, all / 2 + kChunk);  // the chunk in the middle may hold pieces of both parameters
  EXPECT_GT(half, 0);
  // Before the first of these steps, the ring had read ahead chunks that were not wanted.
  EXPECT_LE(before, all + half + kRing * kChunk);
  figure("of two parameters: both read {} bytes, one {}; {} read ahead in vain", all, half, before - all - half);
}

// Ends writes in any order, because half of them take a while.
class UnorderedEnv : public Env {
 public:
  int64_t pwrite(int fd, const void* from, int64_t bytes, int64_t offset) override {
    if (count_++ % 2 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    return Env::pwrite(fd, from, bytes, offset);
  }
  bool allows_io_uring() const override { return false; }

 private:
  std::atomic<int> count_ = 0;
};

// Two parameters are stepped in turn. The chunks of the next step are read ahead into slots from which the last step
// may still be writing.
TEST(StateStore, WhatIsReadAheadWaitsForEachWrite) {
  const TemporaryDirectory directory;
  UnorderedEnv env;
  StateStore store(env, {{.host = 5 * 16384, .disk = directory.path(), .chunk = 16384}});
  store.add(std::vector<ShapedParam>{{0, shape(1, 100000)}, {1, shape(1, 100000)}});
  constexpr int kSteps = 60;
  int64_t wrong = 0, compared = 0;
  for (int step = 0; step < kSteps; ++step)
    store.step(
        [&](std::span<const Store::PlacedChunk> chunks) {
          for (const Piece& piece : chunks[0].pieces) {
            std::byte* const codes = chunks[0].memory + piece.codes_at[1];
            if (piece.param == step % 2)
              for (int64_t i = 0; i < piece.elements; ++i)
                codes[i] = static_cast<std::byte>(std::to_integer<int>(codes[i]) + 1);
          }
        },
        1, {step % 2});
  for (const int64_t param : {0, 1})
    store.visit(param, false, [&](const Piece& piece, std::byte* memory) {
      compared += piece.elements;
      for (int64_t i = 0; i < piece.elements; ++i) wrong += memory[piece.codes_at[1] + i] != std::byte{kSteps / 2};
    });
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(store.report().read_bytes, 0);
  figure("{} steps of two parameters in turn: {} of {} bytes wrong", kSteps, wrong, compared);
}

// Damages what a read returns: it flips a bit, or returns a different record or an older one.
class DamagingEnv : public Env {
 public:
  int64_t pread(int fd, void* to, int64_t bytes, int64_t offset) override {
    const int64_t got = Env::pread(fd, to, bytes, offset);
    const bool is_hit = got > 0 && countdown > 0 && --countdown == 0;
    if (is_hit && lasting) damaged = offset;
    if (is_hit || (got > 0 && damaged == offset)) damage(static_cast<std::byte*>(to), got, fd, offset);
    return got;
  }
  int64_t pwrite(int fd, const void* from, int64_t bytes, int64_t offset) override {
    if (lose > 0 && --lose == 0) return bytes;  // claims to have written
    return Env::pwrite(fd, from, bytes, offset);
  }
  bool allows_io_uring() const override { return false; }

  std::atomic<int> countdown = 0, lose = 0;  // number of reads until one is damaged, and of writes until one is lost
  std::atomic<int64_t> damaged = -1;         // offset
  bool lasting = true;                       // the disk stays damaged; otherwise only one read is
  std::function<void(std::byte*, int64_t, int, int64_t)> damage;
};

TEST(StateStore, WhatWasReadAheadWronglyIsReadAgain) {
  const TemporaryDirectory directory;
  Rng rng = seeded("read ahead", 96);
  int64_t runs = 0, damaged = 0, wrong = 0;
  for (; runs < 50; ++runs) {
    DamagingEnv env;
    env.lasting = false;
    env.damage = [&](std::byte* data, int64_t bytes, int, int64_t) {
      data[rng.below(bytes)] ^= std::byte{1};
      ++damaged;
    };
    Counted counted(env, directory.path());
    env.countdown = counted.reads_of_first_step() + 1 + static_cast<int>(rng.below(2));
    for (int i = 0; i < 3; ++i) ASSERT_EQ(counted.step(), std::nullopt);
    wrong += counted.wrong();
  }
  EXPECT_EQ(damaged, runs);
  EXPECT_EQ(wrong, 0);
  figure("{} reads ahead damaged on their way: the steps went on, {} bytes wrong", damaged, wrong);
}

TEST(StateStore, DamageOnTheDiskIsSeen) {
  const TemporaryDirectory directory;
  Rng rng = seeded("damage", 95);
  int flips = 0, flips_seen = 0, swaps = 0, swaps_seen = 0, stale = 0, stale_seen = 0;
  for (int i = 0; i < 300; ++i) {
    DamagingEnv env;
    Counted counted(env, directory.path());
    ASSERT_EQ(counted.step(), std::nullopt);
    env.damage = [&](std::byte* data, int64_t bytes, int, int64_t) {
      const int64_t at = rng.below(bytes);
      data[at] ^= static_cast<std::byte>(1 << rng.below(8));
    };
    env.countdown = 1 + static_cast<int>(rng.below(3));
    ++flips, flips_seen += counted.step().has_value() || counted.step().has_value();  // it may have been read ahead
  }
  for (int i = 0; i < 50; ++i) {
    DamagingEnv env;
    Counted counted(env, directory.path());
    ASSERT_EQ(counted.step(), std::nullopt);
    env.damage = [&](std::byte* data, int64_t bytes, int fd, int64_t offset) {
      env.Env::pread(fd, data, bytes, offset >= 16384 ? 0 : 16384);  // a misdirected read
    };
    env.countdown = 1 + static_cast<int>(rng.below(3));
    ++swaps, swaps_seen += counted.step().has_value() || counted.step().has_value();
    DamagingEnv forgetful;
    Counted old(forgetful, directory.path());
    ASSERT_EQ(old.step(), std::nullopt);
    forgetful.lose = 1 + static_cast<int>(rng.below(3));
    ASSERT_EQ(old.step(), std::nullopt);
    ++stale, stale_seen += old.step().has_value();
  }
  EXPECT_EQ(flips_seen, flips);
  EXPECT_EQ(swaps_seen, swaps);
  EXPECT_EQ(stale_seen, stale);
  figure("detected: flipped bits {}/{}, swapped chunks {}/{}, lost writes {}/{}", flips_seen, flips, swaps_seen, swaps,
         stale_seen, stale);
}

TEST(StateStore, AllMemoryAndDescriptorsComeBack) {
  const TemporaryDirectory directory;
  const int64_t descriptors = open_descriptors();
  // Allow no more arenas for threads, because their number depends on how threads meet in the allocator.
  ::mallopt(M_ARENA_MAX, 1);
  int64_t before = 0;
  for (int i = 0; i < 101; ++i) {
    Counted counted(system_env(), directory.path());
    counted.step();
    if (i == 0) before = mapped_bytes();
  }
  ::mallopt(M_ARENA_MAX, 0);  // restores the allocator's default
  // The first round allocates the threads' stacks; 100 more rounds allocate nothing.
  const int64_t drift = (mapped_bytes() - before) / 4096;
  EXPECT_LE(drift, 16) << "pages";
  EXPECT_EQ(open_descriptors(), descriptors);
  figure("100 stores: drift {} pages, {} descriptors", drift, open_descriptors() - descriptors);
}

}  // namespace
}  // namespace lowtide::testing
