// The shipped plug-in's kernels, run by the executor: their stubs, which nvcc has made, register and launch them with
// functions of CUDA's runtime that stand here. All else of the runtime is the emulated one.
// Environment: LT_PTX_FOLDER (whose PTX runs), LT_PTX_CHOICE (lowest, highest, nearest, random), LT_PTX_COVERAGE (a
// folder, to which the process adds a file of what has run).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "launch.h"

namespace ptx {

// Applies to all launches to come; their seed is the emulated machine's.
Policy& policy();
// Counts all launches of the process.
const Work& work_done();
// From now on every file's text passes through this before it is read: for tests that put a defect in. Empty: as it is.
void edit_sources(std::function<std::string(const std::string& text)> edit);
// The launch that runs next: its kernel by name, and what that is given.
struct Launched {
  const std::string& kernel;
  const std::vector<std::byte>& parameters;
  uint32_t blocks, threads;
  size_t dynamic_bytes;  // of shared memory
  const Find& find;
};
// Called before each launch to come, while its memory can be read.
void observe(std::function<void(const Launched&)> observer);

}  // namespace ptx
