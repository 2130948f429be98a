// The JSON header of a checkpoint. It is written and read one parameter at a time: a document of the whole header would
// take ten times its size, and a garbled one many times more.
#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "core/error.h"
#include "optim/checkpoint_format.h"

namespace lowtide::checkpoint {
namespace {

using json = nlohmann::json;  // objects are sorted by key
using Event = json::parse_event_t;

// Depths of containers: header 0, params 1, parameter 2, sizes and states 3, state 4, codes and scales 5.
constexpr int kParam = 2, kDeepest = 5;
// Of one parameter: 64 states take 16 each, 64 sizes one each, the rest 16.
constexpr int kMostEvents = 16 * kMostStates + kMostSizes + 16;

std::string dump(const json& value) {
  try {
    return value.dump();
  } catch (const json::exception&) {
    fail(ErrorKind::kInvalidArgument, "a name or the metadata is not UTF-8");
  }
}

int64_t integer(const json& value, const char* what, int64_t most = kMostBytes) {
  LT_REQUIRE(value.is_number_integer(), "%s is %s; wanted an integer", what, value.type_name());
  const bool fits = value.is_number_unsigned() ? value.get<uint64_t>() <= static_cast<uint64_t>(most)
                                               : value.get<int64_t>() >= 0 && value.get<int64_t>() <= most;
  LT_REQUIRE(fits, "%s is %s; wanted 0 to %lld", what, value.dump().c_str(), static_cast<long long>(most));
  return value.get<int64_t>();
}

std::string text_of(const json& value, const char* what) {
  LT_REQUIRE(value.is_string(), "%s is %s; wanted a string", what, value.type_name());
  return value.get<std::string>();
}

const json& array(const json& value, const char* what) {
  LT_REQUIRE(value.is_array(), "%s is %s; wanted an array", what, value.type_name());
  return value;
}

const json& member(const json& object, const char* key) {
  const auto found = object.find(key);
  LT_REQUIRE(found != object.end(), "the header lacks \"%s\"", key);
  return *found;
}

void check_object(const json& value, const char* what, size_t keys) {
  LT_REQUIRE(value.is_object(), "a %s is %s; wanted an object", what, value.type_name());
  LT_REQUIRE(value.size() == keys, "a %s has %zu keys; wanted %zu", what, value.size(), keys);
}

class Decoder {
 public:
  Checkpoint decode(std::string_view text) {
    // A byte order mark or leading space would be skipped by the parser; the format has neither.
    LT_REQUIRE(!text.empty() && text.front() == '{', "the header is not a JSON object");
    json rest;
    try {
      rest = json::parse(text.begin(), text.end(),
                         [this](int depth, Event event, json& value) { return see(depth, event, value); });
    } catch (const json::exception& error) {
      fail(ErrorKind::kInvalidArgument, "the header is not valid JSON: %.200s", error.what());
    }
    check_object(rest, "header", 3);
    out_.metadata = text_of(member(rest, "metadata"), "\"metadata\"");
    array(member(rest, "params"), "\"params\"");
    out_.rule = text_of(member(rest, "rule"), "\"rule\"");
    return std::move(out_);
  }

 private:
  // Called by the parser. Refuses early what would take memory; false drops a value, here a parameter that was taken.
  bool see(int depth, Event event, json& value) {
    const bool starts = event == Event::object_start || event == Event::array_start;
    if (event == Event::key) {
      see_key(depth, value.get_ref<const std::string&>());
    } else if (starts) {
      LT_REQUIRE(depth <= kDeepest && (event == Event::object_start) == (depth == 0 || depth == kParam || depth == 4),
                 "the header has an object or array where none belongs");
      LT_REQUIRE(depth != 1 || keys_[1] == "params", "the header has an array where a string belongs");
      if (event == Event::object_start) keys_[static_cast<size_t>(depth) + 1].reset();
    } else if (event == Event::value) {
      LT_REQUIRE(depth != 0 && depth != kParam, "a parameter of the header is not an object");
      LT_REQUIRE(depth != 1 || keys_[1] != "params", "\"params\" is not an array");
    }
    if (depth == kParam && starts) events_ = 0;
    LT_REQUIRE(depth < kParam || ++events_ <= kMostEvents, "a parameter of the header has too many sizes or states");
    if (depth != kParam || event != Event::object_end) return true;
    take(value);
    return false;
  }

  void see_key(int depth, const std::string& key) {
    LT_REQUIRE(depth == 1 || depth == 3 || depth == 5, "the header has a key where none belongs");
    std::optional<std::string>& last = keys_[static_cast<size_t>(depth)];
    LT_REQUIRE(!last || *last < key, "keys of the header are not sorted, or \"%.100s\" is there twice", key.c_str());
    last = key;
    LT_REQUIRE(depth != 1 || key == "metadata" || key == "params" || key == "rule", "the header has a key \"%.100s\"",
               key.c_str());
  }

  int64_t extent(const json& state, const char* key) {
    const json& pair = array(member(state, key), key);
    LT_REQUIRE(pair.size() == 2, "\"%s\" has %zu numbers; wanted [offset, bytes]", key, pair.size());
    const int64_t offset = integer(pair[0], "an offset"), bytes = integer(pair[1], "a number of bytes");
    LT_REQUIRE(offset == next_ && bytes <= kMostBytes - next_,
               "\"%s\" is %lld bytes at offset %lld; the array before it ends at %lld", key,
               static_cast<long long>(bytes), static_cast<long long>(offset), static_cast<long long>(next_));
    next_ += bytes;
    return bytes;
  }

  void take(const json& from) {
    check_object(from, "parameter", 7);
    CheckpointParam param;
    param.block = static_cast<int>(integer(member(from, "block"), "\"block\"", std::numeric_limits<int>::max()));
    param.codec = text_of(member(from, "codec"), "\"codec\"");
    param.group = static_cast<int>(integer(member(from, "group"), "\"group\"", std::numeric_limits<int>::max()));
    param.name = text_of(member(from, "name"), "\"name\"");
    for (const json& size : array(member(from, "sizes"), "\"sizes\"")) param.sizes.push_back(integer(size, "a size"));
    for (const json& state : array(member(from, "states"), "\"states\"")) {
      check_object(state, "state", 4);
      CheckpointState one;
      one.code_bytes = extent(state, "codes");
      one.name = text_of(member(state, "name"), "\"name\"");
      one.scale_bytes = extent(state, "scales");
      LT_REQUIRE(member(state, "signed").is_boolean(), "\"signed\" is not true or false");
      one.is_signed = member(state, "signed").get<bool>();
      param.states.push_back(std::move(one));
    }
    param.steps = integer(member(from, "steps"), "\"steps\"", std::numeric_limits<int64_t>::max());
    out_.params.push_back(std::move(param));
  }

  Checkpoint out_;
  std::array<std::optional<std::string>, kDeepest + 2> keys_;  // the last of the open object of each depth
  int events_ = 0;                                             // of the open parameter
  int64_t next_ = 0;                                           // end of the last array
};

}  // namespace

std::string encode_header(const Checkpoint& checkpoint) {
  std::string out = "{\"metadata\":" + dump(checkpoint.metadata) + ",\"params\":[";
  int64_t offset = 0;
  const auto extent = [&offset](int64_t bytes) {
    json pair = json::array({offset, bytes});
    offset += bytes;
    return pair;
  };
  bool first = true;
  for (const CheckpointParam& param : checkpoint.params) {
    json states = json::array();
    for (const CheckpointState& state : param.states) {
      json codes = extent(state.code_bytes), scales = extent(state.scale_bytes);
      states.push_back(json{{"codes", codes}, {"name", state.name}, {"scales", scales}, {"signed", state.is_signed}});
    }
    if (!std::exchange(first, false)) out += ',';
    out += dump(json{{"block", param.block},
                     {"codec", param.codec},
                     {"group", param.group},
                     {"name", param.name},
                     {"sizes", param.sizes},
                     {"states", states},
                     {"steps", param.steps}});
    LT_REQUIRE(static_cast<int64_t>(out.size()) < kMostHeaderBytes,
               "names, sizes and metadata take more than %lld bytes", static_cast<long long>(kMostHeaderBytes));
  }
  out += "],\"rule\":" + dump(checkpoint.rule) + "}";
  LT_REQUIRE(static_cast<int64_t>(out.size()) <= kMostHeaderBytes,
             "names, sizes and metadata take more than %lld bytes", static_cast<long long>(kMostHeaderBytes));
  return out;
}

Checkpoint decode_header(std::string_view text) { return Decoder().decode(text); }

}  // namespace lowtide::checkpoint
