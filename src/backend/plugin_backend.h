// The library's side of the border: a Backend that a plug-in implements, and the plug-in's description of its devices.
#pragma once

#include <memory>
#include <string>

#include "backend/border.h"

namespace lowtide {

// Opens a plug-in's backend; `target` and `queue` are those of open_backend (registry.h). Throws the plug-in's Errors,
// like all calls of the backend.
std::unique_ptr<Backend> open_plugin(const border::Exports& plugin, const std::string& target, void* queue);

// Writes the runtime's version and the usable devices to `text`, and returns the number of devices.
int list_devices(const border::Exports& plugin, std::string* text);

// Returns true if data crosses the border to this plug-in unchanged (border::digest).
bool reads_as_written(const border::Exports& plugin);

// Returns the plug-in's form of a guard, for StepItem::guard.
Guard* own_guard(Guard* guard);

}  // namespace lowtide
