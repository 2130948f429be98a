// A directory that is gone at the end of the test.
#pragma once

#include <stdlib.h>

#include <filesystem>
#include <stdexcept>
#include <string>
#include <system_error>
#include <vector>

namespace lowtide::testing {

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
  // Names in it, without the lock file of scratch files.
  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(path_))
      if (entry.path().filename() != ".lowtide.lock") names.push_back(entry.path().filename());
    return names;
  }

 private:
  std::string path_;
};

}  // namespace lowtide::testing
