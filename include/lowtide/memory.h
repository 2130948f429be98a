// The memory that state may take, and the memory that it takes.
#pragma once

#include <cstdint>
#include <string>

namespace lowtide {

// A budget: where state may live. Only state that does not fit moves, and no bit of any result depends on it.
//
// State lives in the nearest tier that has room: on the device (for parameters there), in host memory, in a scratch
// file. What is not where its parameters are streams there in every step. For parameters on a device, host memory for
// state is pinned, and what is in the file comes through it; a step then returns when that has been written. A disk
// needs `host` and, for parameters on a device, transfer "copy" or "".
struct Memory {
  int64_t host = -1;        // bytes of host memory, buffers included; -1: no limit
  std::string disk = "";    // directory of a scratch file that has no name and leaves nothing behind; "": no disk
  int64_t disk_limit = -1;  // bytes of the scratch file; -1: no limit
  int64_t chunk = 0;        // unit of moving in bytes, a multiple of 4096; 0: chosen from the budget
  // The rest is for parameters on a device and must keep its defaults for parameters in host memory.
  int64_t device = -1;   // bytes of device memory, buffers included; must hold a few chunks if not 0. -1: 7/8 of the
                         // memory that is free when state is placed (of all, if the driver does not tell)
  bool managed = false;  // all state in managed (shared) memory, which the driver migrates; never more of it than
                         // `device`, or than the device has free
  // How state that does not fit reaches the device: "copy" (through slots in its memory), "zero_copy" (kernels reach
  // into pinned host memory), "hybrid" (copied in, written by kernels), or "": the fastest that the device can do,
  // which is measured once for each kind of machine and remembered (docs/devices.md).
  std::string transfer = "";
  // In place of `device`: state that a step brings begins on the device as far as it fits beside what else there is.
  // State that is there before any step begins in host memory, and as much as fits moves once steps have shown the
  // rest. When memory gets short, state moves to the host. See Optimizer::demote and StepOptions::free_bytes.
  bool automatic = false;
};

// The memory that an optimizer's state takes, where it is, and what has moved. A value: it stays as it was when
// Optimizer::report() made it. report.def lists the fields with their meaning and unit, among them params, state_bytes,
// allocated_bytes, device_bytes, disk_bytes, moved_per_step and transfer.
struct MemoryReport {
#define LT_REPORT_TEXT std::string
#define LT_REPORT_FIELD(type, name, unit, meaning) type name = {};
#include "lowtide/report.def"
#undef LT_REPORT_TEXT
};

}  // namespace lowtide
