#include "optim/running_saves.h"

#include <atomic>
#include <exception>
#include <mutex>
#include <vector>

#include "core/forks.h"
#include "optim/async_save.h"

namespace lowtide::running_saves {
namespace {

struct List {
  const int64_t of_forks = forks();
  List* const of_parent;  // whose mutex may be locked for good in this process
  std::mutex mutex;
  std::vector<std::weak_ptr<AsyncSave>> saves;

  explicit List(List* parent) : of_parent(parent) {}
};

std::atomic<List*> last = nullptr;  // never freed: a thread may be using it while the process exits

// nullptr: there is none.
List* list_of_this_process() {
  List* const list = last;
  return list && list->of_forks == forks() ? list : nullptr;
}

struct AtExit {
  ~AtExit() { finish_all(); }
};

}  // namespace

void add(const std::shared_ptr<AsyncSave>& save) {
  static const AtExit at_exit;
  List* list = list_of_this_process();
  if (!list) {
    List* before = last;
    auto made = std::make_unique<List>(before);
    if (last.compare_exchange_strong(before, made.get())) made.release();
    list = last;
  }
  const std::lock_guard lock(list->mutex);
  std::erase_if(list->saves, [](const std::weak_ptr<AsyncSave>& each) { return each.expired(); });
  list->saves.push_back(save);
}

void finish_all() noexcept {
  try {
    List* const list = list_of_this_process();
    if (!list) return;
    std::vector<std::shared_ptr<AsyncSave>> saves;
    {
      const std::lock_guard lock(list->mutex);
      for (const std::weak_ptr<AsyncSave>& each : list->saves)
        if (std::shared_ptr<AsyncSave> save = each.lock()) saves.push_back(std::move(save));
    }
    for (const std::shared_ptr<AsyncSave>& save : saves) save->finish_for_exit();
  } catch (const std::exception&) {
  }
}

}  // namespace lowtide::running_saves
