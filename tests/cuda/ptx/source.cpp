#include "source.h"

#include <algorithm>
#include <charconv>

namespace ptx {
namespace {

bool is_of_word(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '$' ||
         c == '%' || c == '.';
}

std::vector<Variable> read_parameters(Lexer& lexer) {
  std::vector<Variable> all;
  if (!lexer.skip("(")) return all;
  while (!lexer.skip(")")) {
    lexer.expect(".param");
    all.push_back(read_variable(lexer));
    lexer.skip(",");
  }
  return all;
}

uint32_t number(std::string_view token) {
  uint32_t value = 0;
  const auto [end, error] = std::from_chars(token.data(), token.data() + token.size(), value);
  if (error != std::errc() || end != token.data() + token.size())
    throw Error("got '" + std::string(token) + "', wanted a number");
  return value;
}

}  // namespace

void Lexer::next() {
  const auto blank = [](char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; };
  for (;; ++at_) {
    if (at_ == text_.size()) {
      token_ = {}, line_of_token_ = line_;
      return;
    }
    if (text_[at_] == '\n') ++line_;
    if (text_.substr(at_, 2) == "//") {
      at_ = std::min(text_.find('\n', at_), text_.size()) - 1;
    } else if (!blank(text_[at_])) {
      break;
    }
  }
  size_t end = at_ + 1;
  if (text_[at_] == '"')
    end = std::min(text_.find('"', end), text_.size() - 1) + 1;
  else if (is_of_word(text_[at_]))
    while (end < text_.size() && is_of_word(text_[end])) ++end;
  token_ = text_.substr(at_, end - at_), line_of_token_ = line_;
  at_ = end;
}

std::string_view Lexer::take() {
  const std::string_view out = token_;
  next();
  return out;
}

bool Lexer::skip(std::string_view wanted) {
  if (token_ != wanted) return false;
  next();
  return true;
}

// Braces do not occur in strings of PTX.
std::string_view Lexer::take_braces() {
  const size_t begin = at_ - 1;
  int depth = 0;
  for (at_ = begin; at_ < text_.size(); ++at_) {
    line_ += text_[at_] == '\n';
    depth += text_[at_] == '{' ? 1 : text_[at_] == '}' ? -1 : 0;
    if (depth == 0) break;
  }
  at_ = std::min(at_ + 1, text_.size());
  const std::string_view out = text_.substr(begin, at_ - begin);
  next();
  return out;
}

void Lexer::expect(std::string_view wanted) {
  if (!skip(wanted))
    throw Error("line " + std::to_string(line_of_token_) + ": got '" + std::string(token_) + "', wanted '" +
                std::string(wanted) + "'");
}

uint32_t bytes_of_type(std::string_view type) {
  if (type == ".pred") return 1;
  if (type.size() < 3 || type[0] != '.' || std::string_view("busf").find(type[1]) == std::string_view::npos) return 0;
  const std::string_view bits = type.substr(2);
  return bits == "8" ? 1 : bits == "16" ? 2 : bits == "32" ? 4 : bits == "64" ? 8 : 0;
}

Variable read_variable(Lexer& lexer) {
  Variable out;
  uint32_t align = 0;
  if (lexer.skip(".align")) align = number(lexer.take());
  const std::string_view type = lexer.take();
  out.bytes = bytes_of_type(type);
  if (!out.bytes) throw Error("line " + std::to_string(lexer.line()) + ": unknown type " + std::string(type));
  out.align = align ? align : out.bytes;
  out.name = lexer.take();
  if (lexer.skip("[")) {
    out.bytes *= number(lexer.take());
    lexer.expect("]");
  }
  return out;
}

Source::Source(std::string text, std::string name) : text_(std::move(text)), name_(std::move(name)) {
  try {
    read();
  } catch (const Error& error) {
    throw Error(name_ + ": " + error.what());
  }
}

const Function* Source::find(std::string_view name) const {
  const auto it = functions_.find(name);
  return it == functions_.end() ? nullptr : &it->second;
}

void Source::read() {
  Lexer lexer(text_, 1);
  while (!lexer.token().empty()) {
    const std::string_view word = lexer.take();
    if (word == ".version" || word == ".address_size") {
      lexer.take();
    } else if (word == ".target") {
      do lexer.take();
      while (lexer.skip(","));
    } else if (word == ".visible" || word == ".weak" || word == ".extern") {
      continue;
    } else if (word == ".entry" || word == ".func") {
      read_function(lexer, word == ".entry");
    } else if (word == ".shared") {
      shared_.push_back(read_variable(lexer));
      lexer.expect(";");
    } else {
      throw Error("line " + std::to_string(lexer.line()) + ": unknown directive " + std::string(word));
    }
  }
}

void Source::read_function(Lexer& lexer, bool is_entry) {
  Function out;
  out.is_entry = is_entry;
  if (!is_entry) out.results = read_parameters(lexer);
  out.name = lexer.take();
  out.parameters = read_parameters(lexer);
  // Limits of the launch, which the compiler asked for.
  while (lexer.token() != "{" && lexer.token() != ";" && !lexer.token().empty()) lexer.take();
  if (lexer.skip(";")) return;  // declared only
  out.line = lexer.line();
  out.body = lexer.take_braces();
  if (!functions_.emplace(out.name, out).second) throw Error("two functions are named " + std::string(out.name));
}

}  // namespace ptx
