// Instructions with their operands, and calls.
#include "decoder.h"

namespace ptx {

void Decoder::emit(Instruction& at, const Operation& operation) {
  at.run = operation.run, at.meet = operation.meet;
  if (operation.meet) at.flow = Flow::kMeeting;
  out_.code.push_back(at);
}

const Operation& Decoder::operation(const std::string& name) {
  const auto it = operations().find(name);
  if (it == operations().end()) fail("unknown instruction " + name);
  return it->second;
}

void Decoder::instruction() {
  Lexer& lexer = *lexer_;
  Instruction at;
  at.line = line_;
  if (lexer.skip("@")) {
    at.negated = lexer.skip("!");
    at.guard = find_register(lexer.take()).first;
  }
  const std::string name(lexer.take());
  at.name = Names::number(name);
  const std::string_view base = std::string_view(name).substr(0, name.find('.'));
  if (base == "bra") {
    at.flow = Flow::kBranch;
    branches_.emplace_back(out_.code.size(), lexer.take());
    out_.code.push_back(at);
  } else if (base == "ret" || base == "exit") {
    at.flow = Flow::kReturn;
    out_.code.push_back(at);
  } else if (name == "bar.sync" || name == "barrier.sync.aligned") {
    if (lexer.take() != "0") fail("only barrier 0 is known, with all threads");
    at.flow = Flow::kBlockBarrier;
    out_.code.push_back(at);
  } else if (base == "call") {
    call(at);
  } else if (base == "ld" || base == "st" || base == "atom") {
    memory(at, name);
  } else {
    plain(at, name);
  }
  lexer.expect(";");
}

void Decoder::plain(Instruction& at, std::string name) {
  Lexer& lexer = *lexer_;
  size_t n = 0;
  std::string letters;
  const auto vector = [&](bool is_source) {
    size_t count = 0;
    do at.x[n++] = operand('x', at, is_source), ++count;
    while (lexer.skip(","));
    lexer.expect("}");
    return std::to_string(count);
  };
  if (lexer.skip("{")) {  // mov.b32 {a, b}, c
    const std::string count = vector(false);
    name += ".unpack" + count;
    letters = operation(name).operands;
  } else {
    if (name.starts_with("mov.b")) {
      const Lexer before = lexer;
      lexer.take();
      if (lexer.skip(",") && lexer.skip("{")) {
        const std::string count = vector(true);
        lexer = before;
        name += ".pack" + count;
        n = 0;
      } else {
        lexer = before;
      }
    }
    letters = operation(name).operands;
  }
  const Operation& op = operation(name);
  for (; n < letters.size(); ++n) {
    if (n) {
      // shfl's second destination stands behind a bar, and may be left out.
      if (letters[n] == '|') {
        letters.erase(n, 1);
        if (!lexer.skip("|")) {
          at.x[n] = kSink;
          continue;
        }
      } else {
        lexer.expect(",");
      }
    }
    if (lexer.skip("{")) {
      do at.x[n] = operand(letters[n], at, true), ++n;
      while (lexer.skip(","));
      lexer.expect("}");
      --n;
      continue;
    }
    at.x[n] = operand(letters[n], at, n > 0 || letters.size() == 1);
  }
  emit(at, op);
}

// call (result), name, (arguments): arguments and results are copied between registers.
void Decoder::call(Instruction& at) {
  Lexer& lexer = *lexer_;
  if (at.guard >= 0) fail("a call under a condition is not known");
  const auto list = [&] {
    std::vector<Register> all;
    while (!lexer.skip(")")) all.push_back(find_register(lexer.take())), lexer.skip(",");
    return all;
  };
  std::vector<Register> results, arguments;
  if (lexer.skip("(")) results = list(), lexer.expect(",");
  Callee& to = callee(lexer.take());
  if (lexer.skip(",")) lexer.expect("("), arguments = list();
  if (arguments.size() != to.parameters.size() || results.size() != to.results.size())
    fail("a call with another number of arguments than the function has");
  for (size_t i = 0; i < arguments.size(); ++i) move(at, to.parameters[i], arguments[i].first);
  Instruction jump = at;
  jump.flow = Flow::kCall;
  calls_.emplace_back(out_.code.size(), &to);
  out_.code.push_back(jump);
  for (size_t i = 0; i < results.size(); ++i) move(at, results[i], to.results[i].first);
}

}  // namespace ptx
