// The saves of this process that run beside steps: its exit waits for them. A forked child has a list of its own.
#pragma once

#include <memory>

namespace lowtide {
class AsyncSave;
}

namespace lowtide::running_saves {

// Any thread. Throws std::bad_alloc.
void add(const std::shared_ptr<AsyncSave>& save);
// Waits for all that are not done. Does nothing where memory is short.
void finish_all() noexcept;

}  // namespace lowtide::running_saves
