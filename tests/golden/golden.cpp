#include "golden/golden.h"
#include "support/test.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace lowtide::testing {
namespace {

using Cells = std::map<std::string, std::string>;  // value by name

bool is_refusal(const std::string& value) { return value == "-"; }

void put(Cells& cells, const std::string& row, const std::string& column, const std::string& value) {
  EXPECT_TRUE(cells.emplace(row + " " + column, value).second) << "two cells named " << row << " " << column;
}

Cells cells_of(const GoldenTable& table) {
  Cells cells;
  for (const auto& [row, values] : table.rows)
    for (size_t i = 0; i < table.columns.size(); ++i) put(cells, row, table.columns[i], values.at(i));
  return cells;
}

std::string text_of(const GoldenTable& table) {
  std::ostringstream out;
  out << "columns";
  for (const std::string& column : table.columns) out << ' ' << column;
  out << '\n';
  for (const auto& [row, values] : table.rows) {
    if (std::ranges::all_of(values, is_refusal)) continue;
    out << row << " :";
    for (const std::string& value : values) out << ' ' << value;
    out << '\n';
  }
  return out.str();
}

Cells parse(const std::string& text) {
  Cells cells;
  std::vector<std::string> columns;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.empty() || line[0] == '#') continue;
    const size_t colon = line.find(" : ");
    std::istringstream words(colon == std::string::npos ? line : line.substr(colon + 3));
    std::vector<std::string> values{std::istream_iterator<std::string>(words), {}};
    if (colon == std::string::npos) {
      columns.assign(values.begin() + 1, values.end());
      continue;
    }
    const std::string row = line.substr(0, colon);
    EXPECT_EQ(values.size(), columns.size()) << row;
    for (size_t i = 0; i < values.size() && i < columns.size(); ++i) put(cells, row, columns[i], values[i]);
  }
  return cells;
}

std::string path_of(const std::string& file) { return std::string(LOWTIDE_SOURCE_DIR "/") + file; }

std::string text_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Where the part begins and ends.
std::pair<size_t, size_t> place_in(const std::string& all, const GoldenPart& part) {
  const std::string begin = part.begin + "\n";
  size_t from = all.starts_with(begin) ? 0 : all.find("\n" + begin);
  EXPECT_NE(from, std::string::npos) << "got no line '" << part.begin << "' in " << part.file << ", wanted one";
  if (from == std::string::npos) return {all.size(), all.size()};
  from += begin.size() + (from ? 1 : 0);
  if (all.compare(from, part.end.size(), part.end) == 0) return {from, from};
  const size_t to = all.find("\n" + part.end, from);
  return {from, to == std::string::npos ? all.size() : to + 1};
}

}  // namespace

bool golden_write() {
  const char* const wish = std::getenv("LOWTIDE_GOLDEN");
  return wish && std::string(wish) == "write";
}

std::string GoldenPart::read() const {
  const std::string all = text_of(path_of(file));
  const auto [from, to] = place_in(all, *this);
  return all.substr(from, to - from);
}

void GoldenPart::write(const std::string& text) const {
  std::string all = text_of(path_of(file));
  const auto [from, to] = place_in(all, *this);
  all.replace(from, to - from, text);
  std::ofstream out(path_of(file), std::ios::binary);
  out << all;
  ASSERT_TRUE(out.flush()) << file;
}

GoldenPart golden_section(const std::string& name) { return {"tests/golden/list.txt", "[" + name + "]", "["}; }

GoldenList::GoldenList(std::string section, std::string head)
    : section_(std::move(section)), head_(std::move(head)), write_(golden_write()) {}

void GoldenList::check(const GoldenTable& got, const std::string& where, bool whole) {
  const GoldenPart list = golden_section(section_);
  if (write_) list.write(head_ + text_of(got)), write_ = false;
  const Cells wanted = parse(list.read()), cells = cells_of(got);
  int compared = 0, refused = 0, differ = 0, missing = 0, extra = 0;
  const auto offence = [&](int& count, const std::string& cell, const std::string& text) {
    if (++count <= 20) ADD_FAILURE() << where << ": " << cell << ": " << text;
  };
  for (const auto& [name, value] : cells) {
    const auto at = wanted.find(name);
    if (at == wanted.end() && !is_refusal(value)) {
      offence(extra, name, "got " + value + ", not in the list");
      continue;
    }
    ++compared, refused += is_refusal(value);
    if (at != wanted.end() && at->second != value) offence(differ, name, "got " + value + ", wanted " + at->second);
  }
  for (const auto& [name, value] : wanted)
    if (whole && !cells.contains(name)) offence(missing, name, "in the list, not made");
  EXPECT_GT(compared, 0) << section_;
  EXPECT_EQ(differ + missing + extra, 0);
  figure("golden bits, {}: {} cells compared, {} of them refusals; {} differ, {} missing, {} not in the list", where,
         compared, refused, differ, missing, extra);
}

void GoldenHash::add(const void* data, size_t bytes) { bytes_.append(static_cast<const char*>(data), bytes); }

std::string GoldenHash::text(int digits) const {
  char out[17];
  std::snprintf(out, sizeof out, "%016llx", static_cast<unsigned long long>(XXH3_64bits(bytes_.data(), bytes_.size())));
  return std::string(out).substr(static_cast<size_t>(16 - digits));
}

}  // namespace lowtide::testing
