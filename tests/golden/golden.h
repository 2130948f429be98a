// Results that must never change, as hashes in sections of list.txt: one cell for each combination of options.
//
// A test makes its cells and compares them with its section. A cell that differs, is missing or is not in the section
// fails the test by name. After an intended change of results, or a new rule or state format, write the sections again
// and review the difference:
//   LOWTIDE_GOLDEN=write build/dev/lowtide_cross_tests --gtest_filter='Golden*'
#pragma once

#include "lowtide/tensor.h"
#include "support/test.h"

namespace lowtide::testing {

// Cells in rows and columns. Their names, "<row> <column>", are unique; a value is one word, "-" for a refusal. The list
// leaves out rows that have refusals alone.
struct GoldenTable {
  std::vector<std::string> columns;
  std::vector<std::pair<std::string, std::vector<std::string>>> rows;  // a name, and one value for each column
};

// A section of the committed list.
class GoldenList {
 public:
  GoldenList(std::string section, std::string head);
  // Fails the test unless the cells are those of the section. `where`: what made them, to be printed. With
  // LOWTIDE_GOLDEN=write the first table becomes the section, and later ones are compared with it. Of one that is not
  // `whole` no cell can be missing.
  void check(const GoldenTable& got, const std::string& where, bool whole = true);

 private:
  std::string section_, head_;
  bool write_;
};

// Whether LOWTIDE_GOLDEN=write asks for new lists.
bool golden_write();
// The part of a committed file from the line `begin` to the line that starts with `end`, or to the file's end. `begin`
// itself does not belong to it. Fails the test if there is none.
struct GoldenPart {
  std::string file, begin, end;

  std::string read() const;
  void write(const std::string& text) const;
};
// A section of list.txt.
GoldenPart golden_section(const std::string& name);

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
