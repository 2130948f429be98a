// Budgets for the memory of state, and reports of the memory in use.
#pragma once

#include <cstdint>
#include <string>

namespace lowtide {

// A budget: where state may live. Only state that does not fit moves, and no bit of any result depends on the budget.
//
// State lives in the nearest tier with room: on the device (for parameters there), in host memory, or in a scratch
// file. State outside its parameters' tier streams there in every step. For parameters on a device, state in host
// memory is pinned, and state in the file passes through pinned memory; a step then returns when the file has been
// written. A disk needs `host` and, for parameters on a device, transfer "copy" or "".
struct Memory {
  int64_t host = -1;        // bytes of host memory, buffers included; -1: no limit
  std::string disk = "";    // directory of the unnamed scratch file, which vanishes with the process; "": no disk
  int64_t disk_limit = -1;  // bytes of the scratch file; -1: no limit
  int64_t chunk = 0;        // unit of transfer in bytes, a multiple of 4096; 0: chosen from the budget
  // The remaining fields are for parameters on a device and must keep their defaults for parameters in host memory.
  int64_t device = -1;   // bytes of device memory, buffers included; if not 0, must hold a few chunks. -1: 7/8 of the
                         // memory that is free when state is placed (of all memory, if the driver reports none)
  bool managed = false;  // all state in managed (shared) memory, which the driver migrates; at most `device` bytes, and
                         // at most what is free on the device
  // How state that does not fit reaches the device: "copy" (through slots in device memory), "zero_copy" (kernels
  // access pinned host memory), "hybrid" (copied in, written back by kernels), or "": the fastest mode of the device,
  // measured once for each kind of machine and remembered (docs/offload.md).
  std::string transfer = "";
  // Instead of a limit in `device`: state created by a step starts on the device if it fits beside everything else.
  // State created earlier starts in host memory; once steps have shown what else needs memory, as much as fits moves to
  // the device. When memory gets short, state moves to the host. See Optimizer::demote, StepOptions::free_bytes.
  bool automatic = false;
};

// A snapshot of the memory of an optimizer's state, by Optimizer::report(): how much, where it is, and how much has
// moved. report.def lists the fields with units and meanings, among them params, state_bytes, allocated_bytes,
// device_bytes, disk_bytes, moved_per_step and transfer.
struct MemoryReport {
#define LT_REPORT_TEXT std::string
#define LT_REPORT_FIELD(type, name, unit, meaning) type name = {};
#include "lowtide/report.def"
#undef LT_REPORT_TEXT
};

}  // namespace lowtide
