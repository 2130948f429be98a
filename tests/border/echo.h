// A backend of nothing but a memory: what it was last given. Test program and plug-in may be of different C++
// libraries.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lowtide::testing {

struct Seen {
  const void* items;  // where the last call's were
  size_t count;
  int threads;
  bool flag;
  void* stream;
  int64_t sum;       // of the numbers that are behind them
  bool own_guard;    // all items had one of the plug-in's
  int live;          // events, guards, recordings and backends that are not released
  const char* call;  // the last one
};

}  // namespace lowtide::testing

// Texts of errors and devices, with what encodings and formats could spoil.
#define LT_ECHO_TEXT "got 100% of \"ü\"\n\twanted {} less"
