// Plug-ins: shared libraries liblowtide_<backend><N>.so that hold a backend, and how the library finds and opens one.
// Plug-in and library may use different compilers (border.h) but have the same version: the library refuses others.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "backend/border.h"

namespace lowtide {

// A plug-in that is published as a separate Python package: pip install "lowtide[<extra>]" installs it.
struct PluginPackage {
  const char* backend;
  int number;
  const char *package, *extra;
};
inline constexpr PluginPackage kPluginPackages[] = {{"cuda", 13, "lowtide_cuda13", "cuda13"},
                                                    {"sycl", 9, "lowtide_sycl", "sycl"}};

// `pip install "lowtide[...]", or ` for that plug-in of a backend; "" if none is published.
std::string pip_install_or(const char* backend, int number);

// The folders of plug-ins: the library's own, and others that were added.
using PluginFolders = std::vector<std::filesystem::path>;

// The plug-in's file in one of these folders, or in its package beside one of them, where pip puts it; empty if there
// is none.
std::filesystem::path find_plugin(const PluginFolders& folders, const char* backend, int number);
// The path where it is expected, for messages.
std::filesystem::path plugin_file(const PluginFolders& folders, const char* backend, int number);

struct Plugin {
  const border::Exports* exports = nullptr;
  std::string missing;  // why it is missing, and how to get it
};

// Loads the shared library `path` as a plug-in of `backend` ("sycl", "cuda"). It stays loaded. hint: what to do if it,
// or a library that it needs, cannot be loaded.
Plugin load_plugin(const std::string& path, const char* backend, const char* hint);

// For each plug-in: the one in `folders` that fits the process and the machine.
#define LT_BACKEND(name, title, no_device) Plugin load_##name##_plugin(const PluginFolders& folders);
#include "backend/backends.def"
#undef LT_BACKEND

// True if the process has loaded the shared library of this name.
bool is_library_loaded(const std::string& name);

}  // namespace lowtide
