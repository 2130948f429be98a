// A JSON value as the decoder of checkpoint headers needs it. nlohmann's takes memory to be destroyed, and ends the
// process where there is none; this one does not.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lowtide::checkpoint {

struct JsonValue {
  enum class Type { kNull, kBoolean, kInteger, kFloat, kString, kArray, kObject };

  Type type = Type::kNull;
  bool boolean = false;
  bool negative = false;  // of an integer; then `number` is its magnitude
  uint64_t number = 0;
  std::string text = {};
  std::vector<JsonValue> items = {};   // of an array or object
  std::vector<std::string> keys = {};  // of an object, one for each item, sorted

  const char* type_name() const {
    constexpr const char* kNames[] = {"null", "boolean", "number", "number", "string", "array", "object"};
    return kNames[static_cast<int>(type)];
  }
  // nullptr if there is none.
  const JsonValue* find(std::string_view key) const {
    const auto found = std::lower_bound(keys.begin(), keys.end(), key);
    if (found == keys.end() || *found != key) return nullptr;
    return &items[static_cast<size_t>(found - keys.begin())];
  }
};

}  // namespace lowtide::checkpoint
