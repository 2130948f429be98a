// Operands: registers, constants and addresses by name.
#include <algorithm>
#include <charconv>

#include "decoder.h"

namespace ptx {
namespace {

constexpr uint32_t kGap = 64;  // between variables of shared memory, which belongs to none

}  // namespace

int64_t Decoder::integer(std::string_view word) {
  const bool hex = word.substr(0, 2) == "0x" || word.substr(0, 2) == "0X";
  if (word.back() == 'U') word.remove_suffix(1);
  if (hex) word.remove_prefix(2);
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value, hex ? 16 : 10);
  if (error != std::errc() || end != word.data() + word.size())
    throw Error("got '" + std::string(word) + "', wanted a number");
  return static_cast<int64_t>(value);
}

// An immediate or an address by name; nothing: it is a register.
std::optional<uint64_t> Decoder::value_of(std::string_view word) {
  if (word[0] == '%') return std::nullopt;
  if (word[0] >= '0' && word[0] <= '9') {
    const std::string_view kind = word.substr(0, 2);
    if (kind == "0f" || kind == "0F" || kind == "0d" || kind == "0D")
      return static_cast<uint64_t>(integer("0x" + std::string(word.substr(2))));
    return static_cast<uint64_t>(integer(word));
  }
  if (word == "WARP_SZ") return kWarp;
  if (const auto it = locals_.find(word); it != locals_.end()) return it->second;
  for (size_t i = 0; is_entry_ && i < out_.parameters.size(); ++i)
    if (out_.parameters[i].name == word) return out_.parameter_offsets[i];
  return shared_address(word);
}

std::optional<uint64_t> Decoder::shared_address(std::string_view name) {
  for (size_t i = 0; i < out_.shared.size(); ++i)
    if (out_.shared[i].name == name) return out_.shared_addresses[i];
  for (const std::vector<Variable>* all : {&source_.shared(), &std::as_const(own_shared_)})
    for (const Variable& variable : *all)
      if (variable.name == name) {
        const uint32_t align = std::max(variable.align, 16u);
        const uint32_t at = (out_.shared_end + align - 1) / align * align;
        out_.shared.push_back(variable), out_.shared_addresses.push_back(at);
        out_.shared_end = at + variable.bytes + kGap;
        return at;
      }
  return std::nullopt;
}

int32_t Decoder::constant(uint64_t value, bool wide) {
  if (!wide) value = static_cast<uint32_t>(value);
  const auto [it, is_new] = constants_.emplace(std::pair(value, wide), 0);
  if (is_new) {
    it->second = ~static_cast<int32_t>(out_.constants.size() / kWarp);
    for (uint32_t lane = 0; lane < kWarp; ++lane) {
      out_.constants.push_back(static_cast<uint32_t>(value));
      if (wide) out_.constants.push_back(static_cast<uint32_t>(value >> 32));
    }
  }
  return it->second;
}

Register Decoder::find_register(std::string_view word) {
  for (size_t i = scopes_.size(); i-- > 0;)
    if (const auto it = scopes_[i].find(word); it != scopes_[i].end()) return it->second;
  static const std::map<std::string_view, SpecialRegister> special = {
      {"%tid.x", kThread}, {"%ntid.x", kThreads}, {"%ctaid.x", kBlock}, {"%nctaid.x", kBlocks}, {"%laneid", kLane}};
  if (const auto it = special.find(word); it != special.end()) return {it->second, 'w', 1};
  if (word == "_") return {kSink, 'x', 1};
  const size_t digits = word.find_last_not_of("0123456789") + 1;
  const auto family = families_.find(word.substr(0, digits));
  if (family == families_.end() || digits == word.size()) fail("unknown register " + std::string(word));
  const auto number = static_cast<uint32_t>(integer(word.substr(digits)));
  if (number >= family->second.count) fail("no register " + std::string(word));
  const char letter = family->second.letter;
  return {family->second.first + static_cast<int32_t>(number) * (letter == 'd' ? 2 : 1), letter, 1};
}

// letter: what the operation wants; x: any register.
int32_t Decoder::operand(char letter, Instruction& at, bool is_source, char* found) {
  Lexer& lexer = *lexer_;
  if (lexer.skip("!")) {
    if (letter != 'p') fail("'!' before what is no predicate");
    at.source_negated = true;
  }
  const bool minus = lexer.skip("-");
  const std::string_view word = lexer.take();
  if (const std::optional<uint64_t> value = word.empty() ? std::nullopt : value_of(word)) {
    if (!is_source) fail("a constant where it cannot be");
    if (letter == 'p') return constant(*value ? kAllLanes : 0, false);
    if (letter == 'x') fail("a constant of unknown width");
    const uint64_t bits = minus ? 0 - *value : *value;
    return constant(letter == 'h' ? bits & 0xffff : bits, letter == 'd');
  }
  const Register reg = find_register(word);
  if (found) *found = reg.letter;
  if (letter != 'x' && reg.letter != 'x' && reg.letter != letter)
    fail("register " + std::string(word) + " has another width than its instruction");
  return reg.letter == 'x' && letter == 'd' ? kSinkWide : reg.first;
}

}  // namespace ptx
