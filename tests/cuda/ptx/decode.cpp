// Functions, scopes, declarations and labels.
#include <algorithm>

#include "decoder.h"

namespace ptx {
namespace {

std::vector<std::string>& names() {
  static std::vector<std::string> all;
  return all;
}

}  // namespace

void Decoder::run(const Function& entry) {
  out_.registers = kSpecial;
  lay_out_parameters(entry);
  function(entry, nullptr);
  for (size_t i = 0; i < callees_.size(); ++i) {
    callees_[i]->begin = static_cast<uint32_t>(out_.code.size());
    function(*callees_[i]->function, callees_[i].get());
  }
  for (const auto& [at, callee] : calls_) out_.code[at].target = callee->begin;
}

[[noreturn]] void Decoder::fail(const std::string& what) const {
  throw Error(source_.name() + ", line " + std::to_string(line_) + ": " + what);
}

void Decoder::lay_out_parameters(const Function& entry) {
  uint32_t at = 0;
  for (const Variable& parameter : entry.parameters) {
    at = (at + parameter.align - 1) / parameter.align * parameter.align;
    out_.parameters.push_back(parameter), out_.parameter_offsets.push_back(at);
    at += parameter.bytes;
  }
  out_.parameter_bytes = at;
}

Register Decoder::make_register(char letter, uint32_t count) {
  const Register out{static_cast<int32_t>(out_.registers), letter, count};
  out_.registers += count * (letter == 'd' ? 2 : 1);
  return out;
}

std::vector<Register> Decoder::make_registers(const std::vector<Variable>& variables) {
  std::vector<Register> all;
  for (const Variable& variable : variables) {
    if (variable.bytes != 4 && variable.bytes != 8) fail("a function's parameter of this size is not known");
    all.push_back(make_register(letter_of(variable.bytes)));
  }
  return all;
}

Callee& Decoder::callee(std::string_view name) {
  for (const auto& known : callees_)
    if (known->function->name == name) return *known;
  const Function* const function = source_.find(name);
  if (!function) fail("a call of " + std::string(name) + ", which is not there");
  auto made = std::make_unique<Callee>();
  made->function = function;
  made->results = make_registers(function->results), made->parameters = make_registers(function->parameters);
  callees_.push_back(std::move(made));
  return *callees_.back();
}

void Decoder::function(const Function& of, const Callee* as) {
  scopes_.clear(), families_.clear(), labels_.clear(), branches_.clear();
  scopes_.emplace_back();
  is_entry_ = as == nullptr;
  if (as) {
    for (size_t i = 0; i < of.results.size(); ++i) scopes_[0][of.results[i].name] = as->results[i];
    for (size_t i = 0; i < of.parameters.size(); ++i) scopes_[0][of.parameters[i].name] = as->parameters[i];
  }
  Lexer lexer(of.body, of.line);
  lexer_ = &lexer;
  while (!lexer.token().empty()) statement();
  for (const auto& [at, label] : branches_) {
    const auto it = labels_.find(label);
    if (it == labels_.end()) fail("no label " + std::string(label));
    out_.code[at].target = it->second;
  }
  Instruction end;  // behind the last one, where nothing may come
  end.flow = Flow::kReturn, end.line = line_, end.name = Names::number("ret");
  out_.code.push_back(end);
  out_.code.back().seen = true;  // not of the text
}

void Decoder::statement() {
  Lexer& lexer = *lexer_;
  line_ = lexer.line();
  if (lexer.skip("{")) {
    scopes_.emplace_back();
  } else if (lexer.skip("}")) {
    scopes_.pop_back();
  } else if (lexer.token()[0] == '.') {
    directive(lexer.take());
  } else if (lexer.token()[0] == '@') {
    instruction();
  } else {
    const Lexer before = lexer;
    const std::string_view word = lexer.take();
    if (lexer.skip(":")) {
      labels_[word] = static_cast<uint32_t>(out_.code.size());
    } else {
      lexer = before;
      instruction();
    }
  }
}

void Decoder::directive(std::string_view word) {
  Lexer& lexer = *lexer_;
  if (word == ".pragma") {
    lexer.take();
  } else if (word == ".reg") {
    const std::string_view type = lexer.take();
    const char letter = type == ".pred" ? 'p' : letter_of(bytes_of_type(type));
    do {
      const std::string_view name = lexer.take();
      if (lexer.skip("<")) {
        families_[name] = make_register(letter, static_cast<uint32_t>(integer(lexer.take())));
        lexer.expect(">");
      } else {
        scopes_.back()[name] = make_register(letter);
      }
    } while (lexer.skip(","));
  } else if (word == ".local") {
    Variable variable = read_variable(lexer);
    out_.local_bytes = (out_.local_bytes + variable.align - 1) / variable.align * variable.align;
    locals_[variable.name] = kFirstLocal + out_.local_bytes;
    out_.local_bytes += variable.bytes;
  } else if (word == ".shared") {
    own_shared_.push_back(read_variable(lexer));
  } else if (word == ".param") {
    const Variable variable = read_variable(lexer);
    scopes_.back()[variable.name] = make_registers({variable})[0];
  } else {
    fail("unknown directive " + std::string(word));
  }
  lexer.expect(";");
}

uint16_t Names::number(const std::string& name) {
  auto& all = names();
  const auto it = std::find(all.begin(), all.end(), name);
  if (it != all.end()) return static_cast<uint16_t>(it - all.begin());
  all.push_back(name);
  return static_cast<uint16_t>(all.size() - 1);
}

const std::string& Names::text(uint16_t number) { return names()[number]; }

std::unique_ptr<Program> decode(const Source& source, const Function& entry) {
  auto out = std::make_unique<Program>();
  out->name = entry.name, out->file = source.name();
  Decoder(source, *out).run(entry);
  return out;
}

}  // namespace ptx
