// The library's side of the border: a Backend implemented by a plug-in, and a plug-in's description of its devices.
#pragma once

#include <memory>
#include <string>

#include "backend/border.h"

namespace lowtide {

// `target` and `queue` as for open_backend (registry.h). Throws the plug-in's Errors, as all its calls do.
std::unique_ptr<Backend> open_plugin(const border::Exports& plugin, const std::string& target, void* queue);

// Writes the runtime's version and the usable devices to `text`; returns the number of devices.
int list_devices(const border::Exports& plugin, std::string* text);

// True if its compiler and libraries let data cross the border unchanged (border::digest).
bool reads_as_written(const border::Exports& plugin);

// The plug-in's own form of a guard, for StepItem::guard.
Guard* own_guard(Guard* guard);

}  // namespace lowtide
