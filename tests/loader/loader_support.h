// Checks of found plug-ins, for the tests of both loaders.
#pragma once

#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <initializer_list>
#include <string>

#include "backend/plugin.h"
#include "backend/plugin_backend.h"

namespace lowtide {

inline const std::filesystem::path kStubs = LT_STUBS;

// The message holds every word; there is no plug-in.
inline void expect_missing(const Plugin& plugin, std::initializer_list<const char*> words) {
  EXPECT_EQ(plugin.exports, nullptr);
  for (const char* word : words)
    EXPECT_NE(plugin.missing.find(word), std::string::npos) << word << " not in: " << plugin.missing;
  std::printf("%s\n", plugin.missing.c_str());
}

// A stub tells its number as that of its devices.
inline void expect_number(const Plugin& plugin, int number) {
  ASSERT_NE(plugin.exports, nullptr) << plugin.missing;
  std::string text;
  EXPECT_EQ(list_devices(*plugin.exports, &text), number);
}

}  // namespace lowtide
