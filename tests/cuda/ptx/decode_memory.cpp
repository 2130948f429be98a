// Loads, stores and atomics, and parameters of functions, which are registers.
#include <algorithm>

#include "decoder.h"

namespace ptx {

std::vector<std::string_view> Decoder::words_of(std::string_view name) {
  std::vector<std::string_view> words;
  for (size_t at = 0; at < name.size();) {
    const size_t end = std::min(name.find('.', at), name.size());
    words.push_back(name.substr(at, end - at));
    at = end + 1;
  }
  return words;
}

void Decoder::move(Instruction at, Register to, int32_t from) {
  at.x[0] = to.first, at.x[1] = from;
  emit(at, operation(to.letter == 'd' ? "mov.b64" : "mov.b32"));
}

// ld, st, atom.
void Decoder::memory(Instruction& at, const std::string& name) {
  Lexer& lexer = *lexer_;
  const std::vector<std::string_view> words = words_of(name);
  const std::string type = std::string(".").append(words.back());  // "." + std::string: GCC 12 warns of an overlap
  at.bytes = static_cast<uint8_t>(bytes_of_type(type));
  if (!at.bytes) fail("unknown type in " + name);
  std::string atomic;
  for (size_t i = 1; i + 1 < words.size(); ++i) {
    const std::string_view word = words[i];
    if (word == "global" || word == "shared" || word == "local" || word == "param")
      at.space = word == "global"   ? Space::kGlobal
                 : word == "shared" ? Space::kShared
                 : word == "local"  ? Space::kLocal
                                    : Space::kParam;
    else if (word == "v2" || word == "v4")
      at.count = static_cast<uint8_t>(word[1] - '0');
    else if (words[0] == "atom" && (word == "or" || word == "and" || word == "min" || word == "max" || word == "add"))
      atomic = word;
    else if (word != "nc" && word != "cs" && word != "ca" && word != "cg" && word != "volatile" && word != "relaxed" &&
             word != "gpu")
      fail("unknown instruction " + name);
  }
  const bool is_load = words[0] == "ld", is_store = words[0] == "st";
  char letter = 0;
  const auto values = [&](size_t n, bool is_source) {
    const auto one = [&](size_t i) {
      char of = letter_of(at.bytes);
      const char wanted = is_source && lexer.token()[0] != '%' ? of : 'x';
      at.x[i] = operand(wanted, at, is_source, &of);
      if (letter && of != letter) fail("registers of different widths");
      letter = of;
    };
    if (at.count == 1) return one(n);
    lexer.expect("{");
    for (size_t i = 0; i < at.count; ++i) one(n + i), lexer.skip(",");
    lexer.expect("}");
  };
  std::string_view param_name;  // of a call, which is a register
  const auto address = [&](size_t n) {
    lexer.expect("[");
    const std::string_view word = lexer.take();
    if (const std::optional<uint64_t> value = value_of(word)) {
      at.x[n] = constant(*value, true), at.wide_address = true;
    } else {
      const Register reg = find_register(word);
      at.x[n] = reg.first, at.wide_address = reg.letter == 'd';
      if (word[0] != '%') param_name = word;
    }
    if (lexer.skip("+")) {
      const bool minus = lexer.skip("-");
      at.offset = integer(lexer.take()) * (minus ? -1 : 1);
    }
    lexer.expect("]");
  };
  const auto check_parameter = [&](char of) {
    if (at.offset || at.count != 1 || letter_of(at.bytes) != of)
      fail("a parameter of a function in parts is not known");
  };
  if (is_load) {
    values(0, false);
    lexer.expect(",");
    address(at.count);
    if (!param_name.empty()) {
      check_parameter(letter);
      return move(at, {at.x[0], letter, 1}, at.x[1]);
    }
    if (at.bytes > (letter == 'd' ? 8 : letter == 'w' ? 4 : 2)) fail("a register narrower than its load");
    const bool is_signed = type[1] == 's';
    return emit(at, {load_handler(at.bytes, is_signed, letter == 'd'), nullptr, ""});
  }
  if (is_store) {
    address(0);
    lexer.expect(",");
    values(1, true);
    if (!param_name.empty()) {
      check_parameter(letter);
      return move(at, {at.x[0], letter, 1}, at.x[1]);
    }
    return emit(at, {store_handler(at.bytes, letter == 'd'), nullptr, ""});
  }
  at.x[0] = operand(letter_of(at.bytes), at, false);
  lexer.expect(",");
  address(1);
  lexer.expect(",");
  at.x[2] = operand(letter_of(at.bytes), at, true);
  const Handler handler = atomic_handler(atomic + type);
  if (!handler || at.space != Space::kGlobal) fail("unknown instruction " + name);
  emit(at, {handler, nullptr, ""});
}

}  // namespace ptx
