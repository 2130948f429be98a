#include "backend/plugin.h"

#include <dlfcn.h>

#include <cstring>

#include "backend/plugin_backend.h"
#include "core/error.h"

namespace lowtide {
namespace {

const PluginPackage* find_package(const char* backend, int number) {
  for (const PluginPackage& one : kPluginPackages)
    if (number == one.number && std::strcmp(backend, one.backend) == 0) return &one;
  return nullptr;
}

std::string file_name(const char* backend, int number) { return format("liblowtide_%s%d.so", backend, number); }

}  // namespace

std::string pip_install_or(const char* backend, int number) {
  const PluginPackage* const package = find_package(backend, number);
  return package ? format("pip install \"lowtide[%s]\", or ", package->extra) : "";
}

std::filesystem::path find_plugin(const PluginFolders& folders, const char* backend, int number) {
  const PluginPackage* const package = find_package(backend, number);
  const std::string file = file_name(backend, number);
  std::error_code ignored;
  for (const std::filesystem::path& folder : folders) {
    if (std::filesystem::exists(folder / file, ignored)) return folder / file;
    if (!package) continue;
    const std::filesystem::path beside = folder.parent_path() / package->package / file;
    if (std::filesystem::exists(beside, ignored)) return beside;
  }
  return {};
}

std::filesystem::path plugin_file(const PluginFolders& folders, const char* backend, int number) {
  return (folders.empty() ? std::filesystem::path() : folders[0]) / file_name(backend, number);
}

Plugin load_plugin(const std::string& path, const char* backend, const char* hint) {
  Plugin plugin;
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    plugin.missing = format("%s (%s)", dlerror(), hint);
    return plugin;
  }
  using Find = const border::Exports*();
  auto* const find = reinterpret_cast<Find*>(dlsym(library, format("lt_%s_plugin", backend).c_str()));
  const border::Exports* const exports = find ? find() : nullptr;
  if (!exports || std::strcmp(exports->version, LOWTIDE_VERSION) != 0)
    plugin.missing = format("%s has version %s, wanted %s: install both in one version", path.c_str(),
                            exports ? exports->version : "unknown", LOWTIDE_VERSION);
  else if (!reads_as_written(*exports))
    plugin.missing = format(
        "%s was built from other sources of version %s or with a C++ library that is laid out "
        "differently: install both from one release or one build",
        path.c_str(), LOWTIDE_VERSION);
  else
    plugin.exports = exports;
  if (!plugin.exports) dlclose(library);
  return plugin;
}

bool is_library_loaded(const std::string& name) {
  void* library = dlopen(name.c_str(), RTLD_NOW | RTLD_NOLOAD);
  if (library) dlclose(library);
  return library != nullptr;
}

}  // namespace lowtide
