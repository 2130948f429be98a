// The memory that an optimizer's state takes, where it is, and what has moved.
#pragma once

#include <cstdint>
#include <string>

namespace lowtide {

// A value: it stays as it was when Optimizer::report() made it. report.def lists the fields with their meaning and
// unit, among them params, state_bytes, allocated_bytes, device_bytes, disk_bytes, moved_per_step and transfer.
struct MemoryReport {
#define LT_REPORT_TEXT std::string
#define LT_REPORT_FIELD(type, name, unit, meaning) type name = {};
#include "lowtide/report.def"
#undef LT_REPORT_TEXT
};

}  // namespace lowtide
