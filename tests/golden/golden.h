// Results that must never change, as lists of hashes in this folder: one cell for each combination of options.
//
// A test makes its cells and compares them with the committed list. A cell that differs, is missing or is not in the
// list fails the test by name. After an intended change of results, or a new rule or state format, write the lists anew
// and review the difference:
//   LOWTIDE_GOLDEN=write build/dev/lowtide_cross_tests --gtest_filter='Golden*'
#pragma once

#include "lowtide/tensor.h"
#include "support/test.h"

namespace lowtide::testing {

// Cells in rows and columns. Their names, "<row> <column>", are unique; a value is one word, "-" for a refusal.
struct GoldenTable {
  std::vector<std::string> columns;
  std::vector<std::pair<std::string, std::vector<std::string>>> rows;  // a name, and one value for each column
};

// The committed list `file`, of this folder.
class GoldenList {
 public:
  GoldenList(std::string file, std::string head);
  // Fails the test unless the cells are those of the list. `where`: what made them, to be printed. With
  // LOWTIDE_GOLDEN=write the first table becomes the list, and later ones are compared with it. Of one that is not
  // `whole` no cell can be missing.
  void check(const GoldenTable& got, const std::string& where, bool whole = true);

 private:
  std::string path_, head_;
  bool write_;
};

// Whether LOWTIDE_GOLDEN=write asks for new lists.
bool golden_write();
// The folder of a committed file: "tests/golden", "docs".
std::string golden_path(const std::string& file);
std::string read_golden(const std::string& path);
void write_golden(const std::string& path, const std::string& text);

// XXH3, over everything added.
class GoldenHash {
 public:
  void add(const void* data, size_t bytes);
  template <class T>
  void add(const std::vector<T>& values) {
    add(values.data(), values.size() * sizeof(T));
  }
  void add(int64_t value) { add(&value, sizeof value); }
  std::string text(int digits = 7) const;  // the lowest digits, in hexadecimal

 private:
  std::string bytes_;
};

}  // namespace lowtide::testing
