// The library's side of the border: a Backend whose work a plug-in does, and what a plug-in says of its devices.
#pragma once

#include <memory>
#include <string>

#include "backend/border.h"

namespace lowtide {

// `target` and `queue` as open_backend (registry.h) takes them. Throws the plug-in's Errors, as all calls of it do.
std::unique_ptr<Backend> open_plugin(const border::Exports& plugin, const std::string& target, void* queue);

// The runtime's version and the devices that kernels can run on, in words, into `text`; returns how many there are.
int list_devices(const border::Exports& plugin, std::string* text);

// True if it was compiled so that data crosses the border unchanged (border::digest).
bool reads_as_written(const border::Exports& plugin);

// A guard as StepItem::guard takes it: the backend's own.
Guard* own_guard(Guard* guard);

}  // namespace lowtide
