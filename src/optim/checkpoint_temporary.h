// The file that a checkpoint is written to until it is whole, `<path>.tmp-<pid>-<16 hex digits>`, and what writers that
// were killed have left of such files. A writer holds a lock on its file until that has its final name, so a file of
// this kind whose lock can be had is nobody's. (Not where the file system has no locks: nothing is removed there.)
#pragma once

#include <string>

#include "core/env.h"

namespace lowtide::checkpoint {

// Another one at each call.
std::string temporary_name(const std::string& path);

enum class Lock {
  kHeld,
  kLost,  // another has it, or the file has lost its name: it was taken for abandoned before it was locked
  kNone,  // the file system has no locks
};
// Locks the open file, until its descriptor is closed.
Lock lock_temporary(Env& env, int fd);

// Removes the temporary files of `path` whose writers are gone. What cannot be removed stays.
void remove_abandoned(Env& env, const std::string& path) noexcept;

}  // namespace lowtide::checkpoint
