// What tests of scratch files share: a directory of their own, aligned memory, and what an error says.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lowtide/error.h"
#include "memory/scratch_file.h"
#include "support/random.h"

namespace lowtide::testing {

// Removed with what is in it.
class ScratchDir {
 public:
  explicit ScratchDir(const std::string& base = "/tmp") : path_(base + "/lowtide-scratch-XXXXXX") {
    if (!::mkdtemp(path_.data())) path_.clear();
  }
  ~ScratchDir() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  ScratchDir(const ScratchDir&) = delete;
  ScratchDir& operator=(const ScratchDir&) = delete;
  const std::string& path() const { return path_; }
  // Names in it, without the lock file.
  std::vector<std::string> left() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(path_)) {
      if (entry.path().filename() != ".lowtide.lock") names.push_back(entry.path().filename());
    }
    return names;
  }

 private:
  std::string path_;
};

struct Memory {
  explicit Memory(int64_t n) : bytes(n) {
    data.reset(static_cast<std::byte*>(std::aligned_alloc(4096, static_cast<size_t>(n))));
    std::memset(data.get(), 0xEE, static_cast<size_t>(n));
  }
  void fill(Rng& rng) {
    for (int64_t i = 0; i < bytes; i += 8) {
      const uint64_t word = rng.next();
      std::memcpy(data.get() + i, &word, 8);
    }
  }
  std::byte* at(int64_t offset) { return data.get() + offset; }

  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };
  int64_t bytes;
  std::unique_ptr<std::byte, Free> data;
};

// The error that `act` throws, if it does.
template <typename Act>
std::optional<Error> error_of(Act act) {
  try {
    act();
  } catch (const Error& error) {
    return error;
  }
  return std::nullopt;
}

template <typename Act>
void expect_error(Act act, ErrorKind kind, const std::string& part) {
  const std::optional<Error> error = error_of(act);
  ASSERT_TRUE(error) << "no error, wanted: " << part;
  EXPECT_EQ(static_cast<int>(error->kind()), static_cast<int>(kind)) << error->what();
  EXPECT_NE(std::string(error->what()).find(part), std::string::npos) << error->what();
}

// Exit status of a forked child that runs `act`, which returns it; -1 if it died of a signal.
template <typename Act>
int in_child(Act act) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(act());
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

}  // namespace lowtide::testing
