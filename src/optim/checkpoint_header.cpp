// The JSON header of a checkpoint, written and read one parameter at a time: a document of the whole header would take
// ten times its size, and a garbled one far more.
#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "core/error.h"
#include "optim/checkpoint_format.h"

namespace lowtide::checkpoint {
namespace {

using json = nlohmann::json;

// nlohmann's values need memory for their destruction, and end the process without it; these do not.
struct JsonValue {
  enum class Type { kNull, kBoolean, kInteger, kFloat, kString, kArray, kObject };

  Type type = Type::kNull;
  bool boolean = false;
  bool negative = false;  // for an integer, whose magnitude is `number`
  uint64_t number = 0;
  std::string text = {};
  std::vector<JsonValue> items = {};   // for an array or object
  std::vector<std::string> keys = {};  // for an object, one for each item, sorted

  const char* type_name() const {
    constexpr const char* kNames[] = {"null", "boolean", "number", "number", "string", "array", "object"};
    return kNames[static_cast<int>(type)];
  }
  // The value of a key; nullptr if there is none.
  const JsonValue* find(std::string_view key) const {
    const auto found = std::lower_bound(keys.begin(), keys.end(), key);
    if (found == keys.end() || *found != key) return nullptr;
    return &items[static_cast<size_t>(found - keys.begin())];
  }
};
using Type = JsonValue::Type;

enum class Event { kStart, kEnd, kKey, kValue };

// Depths of containers: header 0, params 1, parameter 2, carried, sizes and states 3, state 4, codes and scales 5.
constexpr int kParam = 2, kDeepest = 5;
// Limit per parameter: a state takes 16 events, a size and a carried number one each, the rest 21.
constexpr int kMostEvents = 16 * kMostStates + kMostSizes + kMostCarried + 21;

std::string quoted(const std::string& text) {
  try {
    return json(text).dump();
  } catch (const json::exception&) {
    fail(ErrorKind::kInvalidArgument, "a name or the metadata is not UTF-8");
  }
}

const JsonValue& of_type(const JsonValue& value, const char* what, Type type, const char* wanted) {
  LT_REQUIRE(value.type == type, "%s is %s; wanted %s", what, value.type_name(), wanted);
  return value;
}

uint64_t word(const JsonValue& value, const char* what, uint64_t most = std::numeric_limits<uint64_t>::max()) {
  of_type(value, what, Type::kInteger, "an integer");
  LT_REQUIRE(!value.negative && value.number <= most, "%s is %s%llu; wanted 0 to %llu", what, value.negative ? "-" : "",
             static_cast<unsigned long long>(value.number), static_cast<unsigned long long>(most));
  return value.number;
}

int64_t integer(const JsonValue& value, const char* what, int64_t most = kMostBytes) {
  return static_cast<int64_t>(word(value, what, static_cast<uint64_t>(most)));
}

const JsonValue& member(const JsonValue& object, const char* key) {
  const JsonValue* const found = object.find(key);
  LT_REQUIRE(found, "the header lacks \"%s\"", key);
  return *found;
}

const std::string& text_at(const JsonValue& object, const char* key) {
  return of_type(member(object, key), key, Type::kString, "a string").text;
}

const std::vector<JsonValue>& array_at(const JsonValue& object, const char* key) {
  return of_type(member(object, key), key, Type::kArray, "an array").items;
}

void check_object(const JsonValue& value, const char* what, size_t keys) {
  of_type(value, what, Type::kObject, "an object");
  LT_REQUIRE(value.items.size() == keys, "%s has %zu keys; wanted %zu", what, value.items.size(), keys);
}

// The parser calls these functions; it determines their names.
class Decoder {
 public:
  Checkpoint decode(std::string_view text) {
    // The parser would skip a byte order mark or leading space, which the format does not allow.
    LT_REQUIRE(!text.empty() && text.front() == '{', "the header is not a JSON object");
    json::sax_parse(text.begin(), text.end(), this);
    const JsonValue& rest = root_;
    check_object(rest, "a header", 3);
    out_.metadata = text_at(rest, "metadata");
    array_at(rest, "params");
    out_.rule = text_at(rest, "rule");
    return std::move(out_);
  }

  bool null() { return add({}); }
  bool boolean(bool value) { return add({.type = Type::kBoolean, .boolean = value}); }
  bool number_integer(int64_t value) {  // only negative ones
    return add({.type = Type::kInteger, .negative = true, .number = 0 - static_cast<uint64_t>(value)});
  }
  bool number_unsigned(uint64_t value) { return add({.type = Type::kInteger, .number = value}); }
  bool number_float(double, const std::string&) { return add({.type = Type::kFloat}); }
  bool string(std::string& value) { return add({.type = Type::kString, .text = std::move(value)}); }
  bool binary(json::binary_t&) { return false; }  // JSON has none
  bool start_object(size_t) { return open(Type::kObject); }
  bool start_array(size_t) { return open(Type::kArray); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }
  bool key(std::string& value) {
    see(depth(), Event::kKey);
    see_key(depth(), value);
    open_.back().keys.push_back(std::move(value));
    return true;
  }
  bool parse_error(size_t, const std::string&, const json::exception& error) {
    fail(ErrorKind::kInvalidArgument, "the header is not valid JSON: %.200s", error.what());
  }

 private:
  int depth() const { return static_cast<int>(open_.size()); }

  bool add(JsonValue value) {
    see(depth(), Event::kValue);
    open_.back().items.push_back(std::move(value));
    return true;
  }
  bool open(Type type) {
    see(depth(), Event::kStart, type == Type::kObject);
    open_.push_back({.type = type});
    return true;
  }
  // Converts a complete parameter and drops its values.
  bool close() {
    JsonValue value = std::move(open_.back());
    open_.pop_back();
    see(depth(), Event::kEnd);
    if (depth() == 0)
      root_ = std::move(value);
    else if (depth() == kParam)
      take(value);
    else
      open_.back().items.push_back(std::move(value));
    return true;
  }

  // Rejects early what would take memory.
  void see(int depth, Event event, bool object = false) {
    if (event == Event::kStart) {
      LT_REQUIRE(depth <= kDeepest && object == (depth == 0 || depth == kParam || depth == 4),
                 "the header has an object or array where none belongs");
      LT_REQUIRE(depth != 1 || keys_[1] == "params", "the header has an array where a string belongs");
      if (object) keys_[static_cast<size_t>(depth) + 1].reset();
    } else if (event == Event::kValue) {
      LT_REQUIRE(depth != 0 && depth != kParam, "a parameter of the header is not an object");
      LT_REQUIRE(depth != 1 || keys_[1] != "params", "\"params\" is not an array");
    }
    if (depth == kParam && event == Event::kStart) events_ = 0;
    LT_REQUIRE(depth < kParam || ++events_ <= kMostEvents, "a parameter of the header has too many sizes or states");
  }

  void see_key(int depth, const std::string& key) {
    LT_REQUIRE(depth == 1 || depth == 3 || depth == 5, "the header has a key where none belongs");
    std::optional<std::string>& last = keys_[static_cast<size_t>(depth)];
    LT_REQUIRE(!last || *last < key, "keys of the header are not sorted, or \"%.100s\" is there twice", key.c_str());
    last = key;
    LT_REQUIRE(depth != 1 || key == "metadata" || key == "params" || key == "rule", "the header has a key \"%.100s\"",
               key.c_str());
  }

  int64_t extent(const JsonValue& state, const char* key) {
    const std::vector<JsonValue>& pair = array_at(state, key);
    LT_REQUIRE(pair.size() == 2, "\"%s\" has %zu numbers; wanted [offset, bytes]", key, pair.size());
    const int64_t offset = integer(pair[0], "an offset"), bytes = integer(pair[1], "a number of bytes");
    LT_REQUIRE(offset == next_ && bytes <= kMostBytes - next_,
               "\"%s\" is %lld bytes at offset %lld; the array before it ends at %lld", key, ll(bytes), ll(offset),
               ll(next_));
    next_ += bytes;
    return bytes;
  }

  void take(const JsonValue& from) {
    check_object(from, "a parameter", 8);
    CheckpointParam param;
    param.block = static_cast<int>(integer(member(from, "block"), "\"block\"", std::numeric_limits<int>::max()));
    for (const JsonValue& number : array_at(from, "carried"))
      param.carried.push_back(std::bit_cast<double>(word(number, "a carried number")));
    param.codec = text_at(from, "codec");
    param.group = static_cast<int>(integer(member(from, "group"), "\"group\"", std::numeric_limits<int>::max()));
    param.name = text_at(from, "name");
    for (const JsonValue& size : array_at(from, "sizes")) param.sizes.push_back(integer(size, "a size"));
    for (const JsonValue& state : array_at(from, "states")) {
      check_object(state, "a state", 4);
      CheckpointState one;
      one.code_bytes = extent(state, "codes");
      one.name = text_at(state, "name");
      one.scale_bytes = extent(state, "scales");
      LT_REQUIRE(member(state, "signed").type == Type::kBoolean, "\"signed\" is not true or false");
      one.is_signed = member(state, "signed").boolean;
      param.states.push_back(std::move(one));
    }
    param.steps = integer(member(from, "steps"), "\"steps\"", std::numeric_limits<int64_t>::max());
    out_.params.push_back(std::move(param));
  }

  Checkpoint out_;
  JsonValue root_;
  std::vector<JsonValue> open_;                                // containers, outermost first
  std::array<std::optional<std::string>, kDeepest + 2> keys_;  // by depth: the last key of the open object
  int events_ = 0;                                             // in the open parameter
  int64_t next_ = 0;                                           // end of the last array
};

}  // namespace

std::string encode_header(const Checkpoint& checkpoint) {
  // Written by hand, compact and with sorted keys: see JsonValue.
  std::string out = "{\"metadata\":" + quoted(checkpoint.metadata) + ",\"params\":[";
  int64_t offset = 0;
  const auto extent = [&](int64_t bytes) {
    out += '[' + std::to_string(offset) + ',' + std::to_string(bytes) + ']';
    offset += bytes;
  };
  const auto check_bytes = [&] {
    LT_REQUIRE(static_cast<int64_t>(out.size()) <= kMostHeaderBytes,
               "names, sizes and metadata take more than %lld bytes", ll(kMostHeaderBytes));
  };
  const auto separate = [&](bool first) {
    if (!first) out += ',';
  };
  for (const CheckpointParam& param : checkpoint.params) {
    separate(&param == &checkpoint.params.front());
    out += "{\"block\":" + std::to_string(param.block) + ",\"carried\":[";
    for (const double& number : param.carried) {
      separate(&number == &param.carried.front());
      out += std::to_string(std::bit_cast<uint64_t>(number));
    }
    out += "],\"codec\":" + quoted(param.codec) + ",\"group\":" + std::to_string(param.group) +
           ",\"name\":" + quoted(param.name) + ",\"sizes\":[";
    for (const int64_t& size : param.sizes) {
      separate(&size == &param.sizes.front());
      out += std::to_string(size);
    }
    out += "],\"states\":[";
    for (const CheckpointState& state : param.states) {
      separate(&state == &param.states.front());
      out += "{\"codes\":";
      extent(state.code_bytes);
      out += ",\"name\":" + quoted(state.name) + ",\"scales\":";
      extent(state.scale_bytes);
      out += state.is_signed ? ",\"signed\":true}" : ",\"signed\":false}";
    }
    out += "],\"steps\":" + std::to_string(param.steps) + '}';
    check_bytes();
  }
  out += "],\"rule\":" + quoted(checkpoint.rule) + "}";
  check_bytes();
  return out;
}

Checkpoint decode_header(std::string_view text) { return Decoder().decode(text); }

}  // namespace lowtide::checkpoint
