// Claim: wherever in a save the power fails, and whichever unsynced bytes and names survive, the path holds the whole
// old or the whole new checkpoint.
#include "support/checkpoint_case.h"
#include "support/power_env.h"
#include "support/test.h"

namespace lowtide::testing {
namespace {

struct Tally {
  int64_t points = 0, images = 0, old_count = 0, new_count = 0, none = 0, wrong = 0;
};

// Every point of failure, every number of surviving name changes and every way to lose bytes.
Tally all_failures(const Content& older, const Content& newer, bool first, bool with_syncs) {
  const TemporaryDirectory directory;  // stays empty: the files are in memory
  const std::string path = directory.file("c");
  PowerEnv::Image before;
  if (!first) {
    PowerEnv env;
    older.save(path, kSmallPiece, env);
    Rng rng(0);
    before = env.survivor(PowerEnv::Lost::kNothing, env.changes_of_names(), rng);
  }
  Tally tally;
  Rng rng(31);
  for (int64_t nth = 1;; ++nth) {
    PowerEnv env(before);
    if (!with_syncs) env.ignore_syncs();
    env.cut_at(nth);
    bool saved = false;
    try {
      newer.save(path, kSmallPiece, env);
      saved = true;
    } catch (const PowerCut&) {
    }
    ++tally.points;
    for (size_t names = 0; names <= env.changes_of_names(); ++names)
      for (const auto lost :
           {PowerEnv::Lost::kNothing, PowerEnv::Lost::kAll, PowerEnv::Lost::kSomeSectors, PowerEnv::Lost::kTornSectors})
        for (int again = 0; again < 8; ++again) {
          PowerEnv reader(env.survivor(lost, names, rng));
          ++tally.images;
          try {
            const Content now = load(path, reader);
            const bool is_old = same(now, older), is_new = same(now, newer);
            tally.old_count += is_old, tally.new_count += is_new;
            tally.wrong += !(is_old || is_new) || (first && is_old) || (saved && with_syncs && !is_new);
          } catch (const Error& error) {
            const bool none = error.os_error() == ENOENT;
            tally.none += none, tally.wrong += !none || !first || (saved && with_syncs);
          }
        }
    if (saved) return tally;
  }
}

TEST(CheckpointPower, AFailureLeavesTheOldOrTheNew) {
  const Content older = small_content(1), newer = small_content(2);
  for (const bool first : {false, true}) {
    const Tally tally = all_failures(older, newer, first, true);
    EXPECT_EQ(tally.wrong, 0);
    EXPECT_GT(first ? tally.none : tally.old_count, 100);
    EXPECT_GT(tally.new_count, 50);
    figure("power failures: {} points, {} images: old {}, new {}, none before and none after {}, wrong {}",
           tally.points, tally.images, tally.old_count, tally.new_count, tally.none, tally.wrong);
  }
  const Tally control = all_failures(older, newer, false, false);
  EXPECT_GT(control.wrong, 0) << "control: without syncs, images without a whole checkpoint are found";
  figure("without syncs, {} of {} images have no whole checkpoint", control.wrong, control.images);
}

}  // namespace
}  // namespace lowtide::testing
