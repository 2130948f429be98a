// For tests of scratch files: aligned memory, and the text of an error.
#pragma once

#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "memory/scratch_file.h"
#include "support/test.h"

namespace lowtide::testing {

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

// Returns the error that `act` throws, if any.
template <typename Act>
std::optional<Error> error_of(Act act) {
  try {
    act();
  } catch (const Error& error) {
    return error;
  }
  return std::nullopt;
}

// Returns the exit status of a forked child, which is the result of `act`; -1 if a signal ended it.
template <typename Act>
int in_child(Act act) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(act());
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

}  // namespace lowtide::testing
