// The errors with which RecordedStep::prepare() and optimizers refuse replays.
#pragma once

#include "core/error.h"

namespace lowtide {

inline void require_all_prepared(bool all_prepared) {
  LT_REQUIRE(all_prepared,
             "got a replay of a recorded step without prepare_replay() before it: the replay changed nothing");
}

inline void require_replayed(bool was_replayed) {
  LT_REQUIRE(was_replayed,
             "got a call that needs the outcome of a replay after prepare_replay() and before that replay, wanted the "
             "replay first: its step is counted; replay it, or record the step again");
}

}  // namespace lowtide
