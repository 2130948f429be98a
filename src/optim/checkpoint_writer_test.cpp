// Claim: bytes that the disk does not return as written are found before the file gets its name, in whatever order they
// were written. (tests/optimizer/async_save_test.cpp compares files of any order.)
#include "core/error.h"
#include "support/checkpoint_case.h"
#include "support/faulty_env.h"
#include "support/test.h"

namespace lowtide::testing {
namespace {

struct Cut {
  size_t array;
  int64_t at, bytes;
};

std::vector<Cut> random_cuts(const checkpoint::Writer& writer, Rng& rng) {
  std::vector<Cut> cuts;
  for (size_t i = 0; i < writer.arrays().size(); ++i)
    for (int64_t at = 0; at < writer.arrays()[i].bytes;) {
      const int64_t left = writer.arrays()[i].bytes - at;
      const int64_t bytes = rng.chance(0.2) ? left : std::min(left, rng.between(1, 3 * kSmallPiece));
      cuts.push_back({i, at, bytes});
      at += bytes;
    }
  for (size_t i = cuts.size(); i > 1; --i) std::swap(cuts[i - 1], cuts[static_cast<size_t>(rng.below(ll(i)))]);
  return cuts;
}

void write(checkpoint::Writer& writer, const Content& content, const std::vector<Cut>& cuts) {
  writer.open();
  for (const Cut& cut : cuts) {
    const std::string& bytes = content.arrays.at(Content::key(writer.arrays()[cut.array].part));
    writer.write(cut.array, cut.at, reinterpret_cast<const std::byte*>(bytes.data()) + cut.at, cut.bytes);
  }
  writer.commit();
}

// Flips a bit of whatever is read back.
class DamagedEnv : public Env {
 public:
  int64_t pread(int fd, void* to, int64_t bytes, int64_t offset) override {
    const int64_t done = Env::pread(fd, to, bytes, offset);
    if (done > 0) static_cast<char*>(to)[done / 2] ^= 1, ++damaged;
    return done;
  }
  int64_t damaged = 0;
};

TEST(CheckpointWriter, DamageIsFoundWhilePartsAreReadBack) {
  Rng rng = seeded("damage of parts", 27);
  const TemporaryDirectory directory;
  int64_t found = 0, tried = 0;
  for (int trial = 0; trial < 20; ++trial) {
    const Content content = random_content(rng, 6, 40);
    DamagedEnv env;
    checkpoint::Writer writer(env, directory.file("c"), content.description, kSmallPiece);
    const std::vector<Cut> cuts = random_cuts(writer, rng);
    try {
      write(writer, content, cuts);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kIo) << error.what();
      ++found;
    }
    tried += env.damaged > 0;
    writer.close();
    for (const std::string& name : directory.names()) EXPECT_EQ(name, "c");
  }
  EXPECT_EQ(found, tried);
  EXPECT_GT(found, 0);
  figure("damage found in {} of {} files that were read back", found, tried);
}

}  // namespace
}  // namespace lowtide::testing
