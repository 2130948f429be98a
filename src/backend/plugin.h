// Finds and loads plug-ins, which are shared libraries liblowtide_<backend><N>.so with one backend each. A plug-in and
// the library may use different compilers (border.h), but the library refuses plug-ins of another version.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "backend/border.h"

namespace lowtide {

// A plug-in that is published as a separate Python package, which pip install "lowtide[<extra>]" installs.
struct PluginPackage {
  const char* backend;
  int number;
  const char *package, *extra;
};
inline constexpr PluginPackage kPluginPackages[] = {{"cuda", 12, "lowtide_cuda12", "cuda12"},
                                                    {"cuda", 13, "lowtide_cuda13", "cuda13"},
                                                    {"sycl", 9, "lowtide_sycl", "sycl"}};

// Returns `pip install "lowtide[...]", or ` for plug-in `number` of a backend, or "" if none is published.
std::string pip_install_or(const char* backend, int number);

// The folders that are searched for plug-ins: the library's own folder, and folders that were added.
using PluginFolders = std::vector<std::filesystem::path>;

// Returns the plug-in's file in one of these folders, or in its package beside one of them, where pip puts it. Returns
// an empty path if there is none.
std::filesystem::path find_plugin(const PluginFolders& folders, const char* backend, int number);
// Returns the path where the plug-in is expected, for messages.
std::filesystem::path plugin_file(const PluginFolders& folders, const char* backend, int number);

struct Plugin {
  const border::Exports* exports = nullptr;
  std::string missing;  // why the plug-in is missing, and how to get it
};

// Loads the shared library `path`, which stays loaded, as a plug-in of `backend` ("sycl", "cuda"). `hint` says what to
// do if the plug-in or a library that it needs cannot be loaded.
Plugin load_plugin(const std::string& path, const char* backend, const char* hint);

// These functions, one for each backend, load the plug-in in `folders` that fits the process and the machine.
#define LT_BACKEND(name, title, no_device) Plugin load_##name##_plugin(const PluginFolders& folders);
#include "backend/backends.def"
#undef LT_BACKEND

// Returns true if the process has loaded the shared library with this name.
bool is_library_loaded(const std::string& name);

}  // namespace lowtide
