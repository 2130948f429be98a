#include "optim/async_save.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <exception>
#include <filesystem>
#include <mutex>
#include <system_error>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/process.h"

namespace lowtide {

std::shared_ptr<AsyncSave> AsyncSave::begin(const Tables& tables, const std::string& path, const std::string& metadata,
                                            int64_t copy_bytes) {
  LT_REQUIRE(copy_bytes >= -1, "got copy_bytes=%lld, wanted 0 or more, or -1 for no limit", ll(copy_bytes));
  // A forked child has the object but not its thread, and its mutex may stay locked: leak it.
  std::shared_ptr<AsyncSave> save(new AsyncSave(tables, path, metadata, copy_bytes), [](AsyncSave* of) {
    if (!of->is_of_parent()) delete of;
  });
  running_saves::add(save);
  try {
    save->watch();
    const AllSignalsBlocked blocked;
    save->thread_ = std::thread([of = save.get()] { of->run(); });
  } catch (...) {
    for (ParamTable* const table : tables.all()) save->let_go(*table);
    save->end(std::current_exception());
    save->raised_ = true;
    try {
      throw;
    } catch (const std::system_error&) {
      fail(ErrorKind::kOutOfMemory, "could not start a thread to save '%s'", path.c_str());
    }
  }
  return save;
}

namespace {

// Makes the path independent of later changes of the working directory. An invalid name stays as it is, to be refused.
std::string absolute_path(const std::string& path) {
  if (path.empty() || path.find('\0') != std::string::npos) return path;
  std::error_code error;  // no working directory: keep the path as given
  const std::filesystem::path whole = std::filesystem::absolute(path, error);
  return error ? path : whole.string();
}

}  // namespace

AsyncSave::AsyncSave(const Tables& tables, const std::string& path, const std::string& metadata, int64_t copy_bytes)
    : env_(tables.env()),
      copy_bytes_(copy_bytes < 0 ? INT64_MAX : copy_bytes),
      writer_(env_, absolute_path(path), describe(tables, metadata)),
      parts_(tables, writer_),
      taken_(parts_.all().size()) {}

AsyncSave::~AsyncSave() { join(); }

// Called by the last owner of the object or when the process exits.
void AsyncSave::join() {
  std::call_once(joined_, [this] {
    if (thread_.joinable()) thread_.join();
  });
}

void AsyncSave::watch() {
  parts_.for_each_store([this](Store& store) {
    store.watch([this, &store](size_t chunk, const std::byte* memory) {
      if (const size_t part = parts_.of_chunk(&store, chunk); part != SavedParts::kNone) keep(part, memory);
    });
  });
}

void AsyncSave::let_go(const ParamTable& table) const noexcept {
  for (const std::unique_ptr<Residence>& residence : table.residences)
    if (Store* const store = residence->store()) store->unwatch();
}

// -- The writing thread

void AsyncSave::run() noexcept {
  try {
    writer_.open();
    const Buffer own(env_, static_cast<size_t>(std::max(parts_.largest(), kPageBytes)));
    size_t part = 0;
    for (;;) {
      Copy copy;
      const Next found = next(part, copy);
      if (found == Next::kNothing) break;
      if (found == Next::kCopy) {
        at(copy.part).write(writer_, copy.memory.data());
        copy.memory = Buffer();
        const std::lock_guard lock(mutex_);
        kept_ -= round_up(at(copy.part).bytes, kPageBytes);
        changed_.notify_all();
        continue;
      }
      std::exception_ptr failure;
      try {
        at(part).read(own.data());
      } catch (...) {
        failure = std::current_exception();
      }
      {
        const std::lock_guard lock(mutex_);
        reading_ = false;
        changed_.notify_all();
      }
      if (failure) std::rethrow_exception(failure);
      at(part).write(writer_, own.data());
    }
  } catch (...) {
    return end(std::current_exception());
  }
  try {
    writer_.commit();
  } catch (...) {
    return end(std::current_exception());
  }
  end(nullptr);
}

AsyncSave::Next AsyncSave::next(size_t& part, Copy& copy) {
  std::unique_lock lock(mutex_);
  for (;;) {
    if (failure_) std::rethrow_exception(failure_);
    if (!copies_.empty()) {
      copy = std::move(copies_.front());
      copies_.pop_front();
      return Next::kCopy;
    }
    while (cursor_ < taken_.size() && taken_[cursor_]) ++cursor_;
    if (cursor_ == taken_.size() && filling_ == 0) return Next::kNothing;
    if (cursor_ < taken_.size() && inside_ == 0) {
      part = cursor_;
      taken_[part] = reading_ = true;
      return Next::kLive;
    }
    changed_.wait(lock);
  }
}

void AsyncSave::end(std::exception_ptr failure) noexcept {
  writer_.close();  // remove a failed save's files before reporting the failure
  const std::lock_guard lock(mutex_);
  failure_ = std::move(failure);
  copies_.clear();
  kept_ = 0;
  done_ = true;
  changed_.notify_all();
}

// -- The optimizer's calls

void AsyncSave::enter() noexcept {
  if (is_of_parent()) return;
  std::unique_lock lock(mutex_);
  ++inside_;
  changed_.wait(lock, [&] { return !reading_; });
}

void AsyncSave::leave() noexcept {
  if (is_of_parent()) return;
  const std::lock_guard lock(mutex_);
  --inside_;
  changed_.notify_all();
}

// Copies a part that is about to change, for the thread to write.
void AsyncSave::keep(size_t number, const std::byte* memory) noexcept {
  if (is_of_parent()) return;
  const SavedPart& part = at(number);
  const int64_t bytes = round_up(part.bytes, kPageBytes);
  std::unique_lock lock(mutex_);
  if (done_ || failure_ || taken_[number]) return;
  changed_.wait(lock, [&] { return done_ || failure_ || kept_ == 0 || kept_ <= copy_bytes_ - bytes; });
  if (done_ || failure_) return;
  taken_[number] = true;
  ++filling_;
  kept_ += bytes;
  most_kept_ = std::max(most_kept_, kept_);
  copied_ += part.bytes;
  lock.unlock();
  std::exception_ptr failure;
  Copy copy{number, {}};
  try {
    copy.memory = Buffer(env_, static_cast<size_t>(part.bytes));
    if (memory)
      std::memcpy(copy.memory.data(), memory, static_cast<size_t>(part.bytes));
    else
      part.read(copy.memory.data());
  } catch (...) {
    failure = std::current_exception();
  }
  lock.lock();
  --filling_;
  if (!failure && !done_) try {
      copies_.push_back(std::move(copy));
    } catch (...) {
      failure = std::current_exception();
    }
  if (failure && !failure_) failure_ = failure;
  changed_.notify_all();
}

void AsyncSave::before_change(size_t param) noexcept {
  parts_.of_param(param, [this](size_t part) { keep(part, nullptr); });
}

void AsyncSave::before_any_change() noexcept {
  for (size_t part = 0; part < parts_.all().size(); ++part) keep(part, nullptr);
}

void AsyncSave::finish() noexcept {
  if (is_of_parent()) return;
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return done_; });
}

// -- Any thread

void AsyncSave::check_process() const {
  LT_REQUIRE(!is_of_parent(),
             "got the save of '%s' to wait for in a forked child of the process that writes it, wanted the wait in "
             "that process",
             path().c_str());
}

bool AsyncSave::done() const {
  check_process();
  const std::lock_guard lock(mutex_);
  return done_;
}

bool AsyncSave::wait(double seconds) {
  check_process();
  std::unique_lock lock(mutex_);
  const auto is_done = [&] { return done_; };
  constexpr double kLongest = 1e9;  // a longer wait would overflow the clock
  if (!(seconds >= 0 && seconds <= kLongest))
    changed_.wait(lock, is_done);
  else if (!changed_.wait_for(lock, std::chrono::duration<double>(seconds), is_done))
    return false;
  raised_ = true;
  if (failure_) std::rethrow_exception(failure_);
  return true;
}

void AsyncSave::raise_unraised() {
  if (is_of_parent()) return;
  const std::lock_guard lock(mutex_);
  if (done_ && failure_ && !std::exchange(raised_, true)) std::rethrow_exception(failure_);
}

bool AsyncSave::is_over() const {
  if (is_of_parent()) return true;
  const std::lock_guard lock(mutex_);
  return done_ && (!failure_ || raised_);
}

int64_t AsyncSave::copied_bytes() const {
  check_process();
  const std::lock_guard lock(mutex_);
  return copied_;
}

int64_t AsyncSave::most_kept_bytes() const {
  check_process();
  const std::lock_guard lock(mutex_);
  return most_kept_;
}

// Skips a save whose optimizer is inside the call that called exit: that call never ends.
void AsyncSave::finish_for_exit() noexcept {
  if (is_of_parent()) return;
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return done_ || inside_ > 0; });
  if (!done_) return;
  lock.unlock();
  join();
}

namespace running_saves {
namespace {

struct List {
  const int64_t of_forks = forks();
  List* const of_parent;  // the parent's list, whose mutex may stay locked in this process
  std::mutex mutex;
  std::vector<std::weak_ptr<AsyncSave>> saves;

  explicit List(List* parent) : of_parent(parent) {}
};

std::atomic<List*> last = nullptr;  // never freed: a thread may be using it while the process exits

// This process's list, or nullptr.
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

}  // namespace running_saves
}  // namespace lowtide
