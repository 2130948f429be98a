// Files in memory whose power fails: unsynced data is kept, lost, kept in part, or torn. Syncing a file keeps its bytes
// and size; only syncing the directory keeps new or renamed names. After the failure every call is refused; a surviving
// image is what the next process may find.
#pragma once

#include <fcntl.h>

#include "core/env.h"
#include "support/test.h"

namespace lowtide::testing {

struct PowerCut {};

class PowerEnv : public Env {
 public:
  static constexpr size_t kSector = 4096;
  enum class Lost { kNothing, kAll, kSomeSectors, kTornSectors };
  using Image = std::map<std::string, std::string>;  // names and contents

  PowerEnv() = default;
  explicit PowerEnv(const Image& image) {
    for (const auto& [name, bytes] : image) names_[name] = std::make_shared<File>(File{bytes, bytes});
    synced_names_ = names_;
  }

  // Fails before the n-th writing call, from 1; 0: never.
  void cut_at(int64_t nth) { nth_ = nth, calls_ = 0, dead_ = false; }
  // For controls: makes syncs keep nothing.
  void ignore_syncs() { lying_ = true; }

  // Returns one of the images that may survive: it has the first `names` name changes since the directory was synced,
  // and the unsynced bytes that `lost` leaves.
  Image survivor(Lost lost, size_t names, Rng& rng) const {
    auto found = synced_names_;
    for (size_t i = 0; i < std::min(names, changes_.size()); ++i) changes_[i](found);
    Image image;
    for (const auto& [name, file] : found) image[name] = contents(*file, lost, rng);
    return image;
  }
  size_t changes_of_names() const { return changes_.size(); }

  int open(const char* path, int flags, unsigned) override {
    if (flags & O_DIRECTORY) return add({});
    const auto at = names_.find(path);
    if (flags & O_CREAT) {
      if (at != names_.end()) return -EEXIST;
      write();
      const auto file = std::make_shared<File>();
      change([name = std::string(path), file](Names& all) { all[name] = file; });
      return add(file);
    }
    return at == names_.end() ? -ENOENT : add(at->second);
  }
  int close(int fd) override { return open_.erase(fd) ? 0 : -EBADF; }
  int64_t pread(int fd, void* to, int64_t bytes, int64_t offset) override {
    const std::string& from = open_.at(fd)->bytes;
    if (offset >= static_cast<int64_t>(from.size())) return 0;
    const auto got = std::min<int64_t>(bytes, static_cast<int64_t>(from.size()) - offset);
    std::memcpy(to, from.data() + offset, static_cast<size_t>(got));
    return got;
  }
  int64_t pwrite(int fd, const void* from, int64_t bytes, int64_t offset) override {
    write();
    if (dead_) return -EIO;
    std::string& to = open_.at(fd)->bytes;
    to.resize(std::max(to.size(), static_cast<size_t>(offset + bytes)));
    std::memcpy(to.data() + offset, from, static_cast<size_t>(bytes));
    return bytes;
  }
  int allocate(int fd, int64_t bytes) override {
    write();
    if (dead_) return -EIO;
    std::string& file = open_.at(fd)->bytes;
    file.resize(std::max(file.size(), static_cast<size_t>(bytes)));
    return 0;
  }
  int truncate(int fd, int64_t bytes) override {
    write();
    if (dead_) return -EIO;
    open_.at(fd)->bytes.resize(static_cast<size_t>(bytes));
    return 0;
  }
  int sync(int fd) override {
    write();
    if (dead_) return -EIO;
    if (lying_) return 0;
    if (const auto file = open_.at(fd))
      file->synced = file->bytes;
    else
      synced_names_ = names_, changes_.clear();
    return 0;
  }
  int rename(const char* from, const char* to) override {
    write();
    if (dead_) return -EIO;
    change([old = std::string(from), now = std::string(to)](Names& all) {
      if (const auto at = all.find(old); at != all.end()) all[now] = at->second, all.erase(old);
    });
    return 0;
  }
  int unlink(const char* path) override {
    write();
    if (dead_) return -EIO;
    change([name = std::string(path)](Names& all) { all.erase(name); });
    return 0;
  }
  int lock(int, int*) override { return -ENOLCK; }  // the system does not know its descriptors
  int unlock(int) override { return 0; }
  bool allows_io_uring() const override { return false; }

 private:
  struct File {
    std::string bytes, synced;
  };
  using Names = std::map<std::string, std::shared_ptr<File>>;

  static std::string contents(const File& file, Lost lost, Rng& rng) {
    if (lost == Lost::kNothing) return file.bytes;
    if (lost == Lost::kAll) return file.synced;
    // The size may be the old or the new one; bytes past the data are zeros.
    std::string out = file.synced;
    if (rng.next() % 4) out.resize(file.bytes.size());
    for (size_t at = 0; at < std::min(out.size(), file.bytes.size()); at += kSector) {
      if (rng.next() % 2) continue;
      size_t count = std::min({kSector, out.size() - at, file.bytes.size() - at});
      if (lost == Lost::kTornSectors) count = rng.next() % (count + 1);
      std::memcpy(out.data() + at, file.bytes.data() + at, count);
    }
    return out;
  }

  void write() {
    if (dead_) return;
    if (++calls_ != nth_) return;
    dead_ = true;
    throw PowerCut{};
  }
  template <class Change>
  void change(Change change) {
    change(names_);
    changes_.push_back(change);
  }
  int add(std::shared_ptr<File> file) {
    open_[++last_] = std::move(file);
    return last_;
  }

  Names names_, synced_names_;
  std::vector<std::function<void(Names&)>> changes_;
  std::map<int, std::shared_ptr<File>> open_;
  int last_ = 2;
  int64_t nth_ = 0, calls_ = 0;
  bool dead_ = false, lying_ = false;
};

}  // namespace lowtide::testing
