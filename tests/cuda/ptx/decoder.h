// Makes a program of a kernel's text: statement by statement, its functions behind it.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "operations.h"
#include "program.h"

namespace ptx {

struct Register {
  int32_t first = 0;
  char letter = 'w';  // as in Operation::operands
  uint32_t count = 1;
};

inline char letter_of(uint32_t bytes) { return bytes == 8 ? 'd' : bytes == 4 ? 'w' : 'h'; }

// One that is decoded, or will be.
struct Callee {
  const Function* function;
  std::vector<Register> results, parameters;
  uint32_t begin = 0;
};

class Decoder {
 public:
  Decoder(const Source& source, Program& out) : source_(source), out_(out) {}
  void run(const Function& entry);

 private:
  [[noreturn]] void fail(const std::string& what) const;
  void lay_out_parameters(const Function& entry);
  Register make_register(char letter, uint32_t count = 1);
  std::vector<Register> make_registers(const std::vector<Variable>& variables);
  Callee& callee(std::string_view name);
  void function(const Function& of, const Callee* as);
  void statement();
  void directive(std::string_view word);
  static int64_t integer(std::string_view word);
  std::optional<uint64_t> value_of(std::string_view word);
  std::optional<uint64_t> shared_address(std::string_view name);
  int32_t constant(uint64_t value, bool wide);
  Register find_register(std::string_view word);
  int32_t operand(char letter, Instruction& at, bool is_source, char* found = nullptr);
  void emit(Instruction& at, const Operation& operation);
  const Operation& operation(const std::string& name);
  void instruction();
  void plain(Instruction& at, std::string name);
  static std::vector<std::string_view> words_of(std::string_view name);
  void move(Instruction at, Register to, int32_t from);
  void memory(Instruction& at, const std::string& name);
  void call(Instruction& at);

  const Source& source_;
  Program& out_;
  Lexer* lexer_ = nullptr;
  uint32_t line_ = 0;
  bool is_entry_ = true;
  std::vector<std::map<std::string_view, Register>> scopes_;
  std::map<std::string_view, Register, std::less<>> families_;
  std::map<std::string_view, uint32_t> labels_, locals_;
  std::vector<Variable> own_shared_;
  std::vector<std::pair<size_t, std::string_view>> branches_;
  std::vector<std::pair<size_t, const Callee*>> calls_;
  std::vector<std::unique_ptr<Callee>> callees_;
  std::map<std::pair<uint64_t, bool>, int32_t> constants_;
};

}  // namespace ptx
