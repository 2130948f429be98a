// PTX text, cut into functions; their bodies stay text until they are decoded.
#pragma once

#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace ptx {

// Text that cannot be read, or asks for what the executor does not know.
struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Words, numbers and signs of PTX; comments are left out. Words take dots: "ld.global.u32", "%tid.x".
class Lexer {
 public:
  Lexer(std::string_view text, uint32_t line) : text_(text), line_(line) { next(); }
  // The present one; empty at the end.
  std::string_view token() const { return token_; }
  uint32_t line() const { return line_of_token_; }
  std::string_view take();
  bool skip(std::string_view wanted);
  void expect(std::string_view wanted);
  // The text from a brace to its counterpart; the token behind it is next.
  std::string_view take_braces();

 private:
  void next();

  std::string_view text_, token_;
  size_t at_ = 0;
  uint32_t line_, line_of_token_ = 0;
};

// A parameter, or a variable in shared or local memory.
struct Variable {
  std::string_view name;
  uint32_t bytes = 0, align = 1;
};

struct Function {
  std::string_view name, body;  // with its braces
  uint32_t line = 0;            // of the body's beginning
  bool is_entry = false;
  std::vector<Variable> results, parameters;
};

// ".b32" and so on, in bytes; 0: no such type. Predicates count as one byte.
uint32_t bytes_of_type(std::string_view type);
// Reads "[.align N] .type name[[count]]" where the lexer stands.
Variable read_variable(Lexer& lexer);

class Source {
 public:
  // name: of the file, for messages.
  Source(std::string text, std::string name);
  Source(const Source&) = delete;

  const Function* find(std::string_view name) const;
  const std::map<std::string_view, Function>& functions() const { return functions_; }
  const std::vector<Variable>& shared() const { return shared_; }
  const std::string& name() const { return name_; }

 private:
  void read();
  void read_function(Lexer& lexer, bool is_entry);

  std::string text_, name_;
  std::map<std::string_view, Function> functions_;
  std::vector<Variable> shared_;
};

}  // namespace ptx
