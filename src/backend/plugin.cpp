#include "backend/plugin.h"

#include <dlfcn.h>

#include <cstring>

#include "core/error.h"

namespace lowtide {

Plugin load_plugin(const std::string& path, const char* backend, const char* hint) {
  Plugin plugin;
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    plugin.missing = format("%s (%s)", dlerror(), hint);
    return plugin;
  }
  const auto find = [&](const char* function) { return dlsym(library, format("lt_%s_%s", backend, function).c_str()); };
  auto* version = reinterpret_cast<PluginVersionFn*>(find("version"));
  auto* devices = reinterpret_cast<PluginDevicesFn*>(find("devices"));
  auto* open = reinterpret_cast<PluginOpenFn*>(find("open"));
  if (!version || !devices || !open || std::strcmp(version(), LOWTIDE_VERSION) != 0) {
    plugin.missing = format("%s is of version %s, wanted %s: install both from one build", path.c_str(),
                            version ? version() : "unknown", LOWTIDE_VERSION);
    dlclose(library);
    return plugin;
  }
  plugin.devices = devices, plugin.open = open;
  return plugin;
}

bool is_library_loaded(const std::string& name) {
  void* library = dlopen(name.c_str(), RTLD_NOW | RTLD_NOLOAD);
  if (library) dlclose(library);
  return library != nullptr;
}

}  // namespace lowtide
