// The prelude of tests, which is precompiled (tests/CMakeLists.txt): gtest, the common part of the standard library,
// random numbers, the share of cases to take, directories, and messages of refusals.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "lowtide/error.h"
#include "support/random.h"

namespace lowtide::testing {

// The share of random cases that a test takes: LOWTIDE_TEST_SHARE, by default 1. ctest sets it for long tests, but not
// for their `_soak` entries, which `make soak` runs.
inline double share() {
  static const double set = [] {
    const char* const text = std::getenv("LOWTIDE_TEST_SHARE");
    return text ? std::atof(text) : 1.0;
  }();
  return set;
}

// Scales a number of cases, or the expectations of such a number, to the share.
inline int share_of(int count) { return std::max(1, static_cast<int>(std::lround(share() * count))); }

// Returns n times the golden ratio without the integer part: any run of n spreads evenly over [0, 1).
inline double spread_at(int64_t n) {
  const double at = static_cast<double>(n) * 0.6180339887498949;
  return at - std::floor(at);
}

// Returns true if the share includes case `n` of a grid. A short row may get no case.
inline bool in_share(int64_t n) { return spread_at(n) < share(); }

// Does the same for row x column, but gives every row at least one case, in columns that take turns.
inline bool in_share(int64_t row, int64_t column, int64_t columns) {
  return column == static_cast<int64_t>(spread_at(row) * static_cast<double>(columns)) ||
         in_share(row * columns + column);
}

// The distance between the cases that the share takes from a long row of similar cases; 1 for all.
inline int64_t spread() { return std::max<int64_t>(1, std::lround(1 / share())); }

// A directory that is deleted at the end of the test.
class TemporaryDirectory {
 public:
  explicit TemporaryDirectory(const std::string& base = std::filesystem::temp_directory_path().string())
      : path_(base + "/lowtide-test-XXXXXX") {
    if (!::mkdtemp(path_.data())) throw std::runtime_error("cannot make " + path_);
  }
  ~TemporaryDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;

  const std::string& path() const { return path_; }
  std::string file(const std::string& name) const { return path_ + "/" + name; }
  // Returns the names in it, without the lock file of scratch files.
  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(path_))
      if (entry.path().filename() != ".lowtide.lock") names.push_back(entry.path().filename());
    return names;
  }

 private:
  std::string path_;
};

// Returns the message of the Error of this kind that `call` throws; fails the test if it throws none.
template <class Fn>
std::string refusal(Fn&& call, ErrorKind kind = ErrorKind::kInvalidArgument) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(static_cast<int>(error.kind()), static_cast<int>(kind)) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "nothing was refused";
  return "";
}

// Prints a figure that a test proves, on one line: each "{}" of the text is the next value.
template <class... Values>
void figure(std::string_view text, const Values&... values) {
  std::ostringstream line;
  line.precision(4);
  const auto put = [&](const auto& value) {
    const size_t at = std::min(text.find("{}"), text.size());
    line << text.substr(0, at) << value;
    text.remove_prefix(std::min(at + 2, text.size()));
  };
  (put(values), ...);
  line << text;
  std::puts(line.str().c_str());
}

inline void expect_in(const std::string& part, const std::string& text) {
  EXPECT_NE(text.find(part), std::string::npos) << "wanted '" << part << "' in: " << text;
}

// Expects a refusal whose message contains `part`.
template <class Fn>
void expect_refusal(Fn&& call, const std::string& part, ErrorKind kind = ErrorKind::kInvalidArgument) {
  expect_in(part, refusal(call, kind));
}

}  // namespace lowtide::testing
