// Forecasts a run: bytes in each tier, bytes moved and seconds per step. Also measures this machine's rates, from which
// the seconds follow. forecast() allocates no state and touches no disk.
//
// Threads: any, at any time; measurements disturb each other. All arguments and results are values. Errors: Error, as
// each function says, and std::bad_alloc.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lowtide/optimizer.h"

namespace lowtide {

struct PlannedParam {
  std::vector<int64_t> sizes;            // strides do not matter
  std::optional<WholeParam> whole = {};  // as in Optimizer::add_param
  DType dtype = DType::kF32;             // weights of 16 bits may have a residual
  int64_t number = -1;  // among all parameters, in whose order state is placed; all -1: the order of the groups
};

struct PlannedGroup {
  GroupOptions options = {};
  std::vector<PlannedParam> params = {};
  double step_rate = 0;  // bytes of this group's state stepped per second; 0: unknown
};

struct ForecastRequest {
  OptimizerOptions options;  // only rule and memory are read. A budget with `device` or managed memory is a device's
  std::vector<PlannedGroup> groups;
  // Bytes per second of the disk and of a device's link, which carries this rate both ways at once; 0: unknown.
  double read_rate = 0, write_rate = 0, link_rate = 0;
};

// The memory that one budget, or all together, will take. Bytes equal Optimizer::report() after a first step in which
// every parameter had a gradient. If the state does not fit, all fields below `problem` are 0.
struct Forecast {
  int64_t params = 0;       // parameters with state
  int64_t elements = 0;     // their elements
  int64_t state_bytes = 0;  // codes + scales
  bool fits = true;
  std::string problem = "";    // if it does not: what was given, and how much is needed
  int64_t device_bytes = 0;    // device memory, slots included; also managed memory
  int64_t host_bytes = 0;      // host memory, alignment and slots included
  int64_t disk_bytes = 0;      // size of the scratch file
  int64_t direct_bytes = 0;    // directly addressable state, part of host_bytes
  int64_t resident_bytes = 0;  // chunks that stay where they are stepped
  int64_t streamed_bytes = 0;  // the other chunks
  int64_t slot_bytes = 0;      // the slots through which these stream, where they are stepped
  int64_t chunks = 0;
  // Bytes read and written: where state is stepped, and on disk. Upper bounds if rules with norms share a budget with
  // others.
  int64_t moved_per_step = 0, disk_moved_per_step = 0;
  // Seconds per step: for stepping, for the link, for the disk, and for all three together, a lower bound that assumes
  // full overlap and ignores checksums, the first read and the last write. Each is 0 if a rate that it needs is
  // unknown.
  double step_seconds = 0, link_seconds = 0, disk_seconds = 0, seconds = 0;
};

struct Forecasts {
  std::vector<Forecast> budgets;  // [0]: the budget of groups without their own; then each group's own, in order
  Forecast total;                 // fits if all do; `problem` is the first problem

  // Throws kInvalidArgument with `problem` unless everything fits.
  LT_API void require_fit() const;
};

// Decides with the optimizer's own code, without side effects. Throws kInvalidArgument for everything that an Optimizer
// would refuse under any budget (an unknown rule or state, negative sizes), for rates that are not numbers, and for
// more than 2^52 elements. A budget that is too small is not an error here: see Forecasts.
LT_API Forecasts forecast(const ForecastRequest& request);

struct StepMeasurement {
  std::string rule = "adamw", state = "dynamic8";
  Hyper hyper = {};
  NonFinite nonfinite = NonFinite::kSkip;
  int threads = 0;              // as in OptimizerOptions
  std::string cpu_target = "";  // likewise
  int64_t elements = 0;         // of the stepped parameter; 0: enough to exceed the cache
  double seconds = 0.5;         // time to spend on steps (at least three); above 0, at most 60
};

// Measures the bytes of state per second that steps of a contiguous float32 parameter with float32 gradients process:
// the median of the steps that fit into `seconds`. 0 if the rule has no state. Takes about seconds + 0.5, and 16 bytes
// of RAM per element (160 MB with defaults on a CPU with a cache of up to 40 MB). Throws kInvalidArgument,
// kOutOfMemory.
LT_API double measure_step_rate(const StepMeasurement& what);

struct DiskInfo {
  int64_t free_bytes = 0;   // for this user
  std::string engine = "";  // "io_uring" or "threads"
  bool direct = false;      // bypasses the page cache; if false, rates include its effect
};

// Tells how scratch files in this directory are read and written. Opens a file of 4 KiB; only the small lock file
// ".lowtide.lock" stays. Throws kInvalidArgument (no directory, a symbolic link, in use by another process) or kIo.
LT_API DiskInfo disk_info(const std::string& directory);

struct DiskRates {
  double read = 0, write = 0;  // bytes per second
  int64_t bytes = 0;           // size of the scratch file used
  DiskInfo disk;
};

// Measures the sequential rates of a scratch file in this directory, with the request size and queue depth that
// streamed state uses. Whole-file writes and reads alternate; the first pass does not count, and the median of the
// others does. Takes `bytes` of disk (less if less than twice that is free; a multiple of 16 MiB, 64 TiB at most) and
// about `seconds` (at least one pass of each kind; 600 at most). Throws like disk_info(), and kInvalidArgument if less
// than 32 MiB are free.
LT_API DiskRates measure_disk_rates(const std::string& directory, int64_t bytes = int64_t{256} << 20,
                                    double seconds = 1.0);

}  // namespace lowtide
