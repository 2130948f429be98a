// Short texts of PTX, run for rows of values.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "launch.h"

namespace ptx {

using Row = std::array<uint64_t, 4>;

inline uint32_t bits(float x) { return std::bit_cast<uint32_t>(x); }

// All of the memory that a test gives to a kernel: each piece is an allocation of its own.
class Memory {
 public:
  template <class T>
  void add(std::vector<T>& values) {
    const auto begin = reinterpret_cast<uint64_t>(values.data());
    ranges_.push_back({begin, begin + values.size() * sizeof(T)});
  }
  Find find() const {
    return [this](uint64_t address) {
      for (const Range& range : ranges_)
        if (address >= range.begin && address < range.end) return range;
      return Range{};
    };
  }

 private:
  std::vector<Range> ranges_;
};

inline std::string header() { return ".version 9.0\n.target sm_90\n.address_size 64\n"; }

// An entry of this body, whose parameters are addresses named p0, p1, ...
inline std::string entry(const std::string& body, size_t parameters = 2, const std::string& before = "") {
  std::string text = header() + before + ".visible .entry test(";
  for (size_t i = 0; i < parameters; ++i) text += std::string(i ? ", " : "") + ".param .u64 p" + std::to_string(i);
  return text + ")\n{\n" + body + "ret;\n}\n";
}

inline Work launch(const std::string& text, const std::vector<uint64_t>& parameters, uint32_t grid, uint32_t threads,
                   const Memory& memory, const Policy& policy = {}) {
  const Source source(text, "a test");
  const auto program = decode(source, *source.find("test"));
  const auto* const first = reinterpret_cast<const std::byte*>(parameters.data());
  const std::vector<std::byte> bytes(first, first + parameters.size() * 8);
  return run_grid(*program, bytes, grid, threads, memory.find(), policy);
}

// The body sees a row's values as %a to %d (32 bits), %ah to %dh (16) and %aw to %dw (64), and leaves a result in %o,
// %oh, %ow or %q, a predicate.
inline std::vector<uint64_t> run(const std::string& body, std::vector<Row> rows, const Policy& policy = {}) {
  std::string text =
      ".reg .b64 %at<4>, %aw, %bw, %cw, %dw, %ow; .reg .b32 %t, %a, %b, %c, %d, %o; .reg .pred %q, %r;\n"
      ".reg .b16 %ah, %bh, %ch, %dh, %oh;\n"
      "ld.param.u64 %at0, [p0]; ld.param.u64 %at1, [p1]; mov.u32 %t, %tid.x;\n"
      "mul.wide.u32 %at2, %t, 32; add.s64 %at0, %at0, %at2; add.s64 %at1, %at1, %at2;\n";
  const char* names = "abcd";
  for (int i = 0; i < 4; ++i) {
    const std::string name(1, names[i]), wide = "%" + name + "w";
    text += "ld.global.u64 " + wide + ", [%at0+" + std::to_string(8 * i) + "]; cvt.u32.u64 %" + name + ", " + wide +
            "; cvt.u16.u64 %" + name + "h, " + wide + ";\n";
  }
  text += "mov.b32 %o, 0; mov.b64 %ow, 0; mov.u16 %oh, 0; mov.pred %q, 0;\n" + body +
          "\nst.global.u32 [%at1], %o; st.global.u64 [%at1+8], %ow; st.global.u16 [%at1+16], %oh;\n"
          "selp.b32 %t, 1, 0, %q; st.global.u32 [%at1+24], %t;\n";
  std::vector<uint64_t> out(4 * rows.size());
  Memory memory;
  memory.add(rows), memory.add(out);
  launch(entry(text), {reinterpret_cast<uint64_t>(rows.data()), reinterpret_cast<uint64_t>(out.data())}, 1,
         static_cast<uint32_t>(rows.size()), memory, policy);
  const size_t at = body.find("%ow") != body.npos   ? 1
                    : body.find("%oh") != body.npos ? 2
                    : body.find("%q") != body.npos  ? 3
                                                    : 0;
  std::vector<uint64_t> results;
  for (size_t i = 0; i < rows.size(); ++i) results.push_back(out[4 * i + at]);
  return results;
}

// Text of operands and the wanted result.
struct Case {
  Row row;
  uint64_t wanted;
};
// By a whole warp of each, and by warps that are not whole.
inline void check(const std::string& body, const std::vector<Case>& cases) {
  for (const size_t copies : {size_t{1}, size_t{kWarp}}) {
    std::vector<Row> rows;
    for (const Case& c : cases) rows.insert(rows.end(), copies, c.row);
    const std::vector<uint64_t> got = run(body, rows);
    for (size_t i = 0; i < got.size(); ++i)
      ASSERT_EQ(got[i], cases[i / copies].wanted) << body << " of 0x" << std::hex << rows[i][0] << ", 0x" << rows[i][1]
                                                  << ", 0x" << rows[i][2] << ", 0x" << rows[i][3];
  }
}

}  // namespace ptx
