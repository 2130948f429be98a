#include "backend/registry.h"

#include <dlfcn.h>

#include <algorithm>
#include <filesystem>
#include <mutex>
#include <span>

#include "backend/cpu/cpu_backend.h"
#include "backend/plugin.h"
#include "backend/plugin_backend.h"
#include "core/error.h"

namespace lowtide {
namespace {

// Returns the folder of the shared library, Python module or program that contains this code.
std::filesystem::path own_folder() {
  Dl_info info;
  if (!dladdr(reinterpret_cast<void*>(&own_folder), &info) || !info.dli_fname) return {};
  std::error_code ignored;
  return std::filesystem::weakly_canonical(info.dli_fname, ignored).parent_path();
}

// The folders that are searched for plug-ins.
class Folders {
 public:
  void add(const std::filesystem::path& folder) {
    const std::lock_guard lock(mutex_);
    if (std::find(all_.begin(), all_.end(), folder) == all_.end()) all_.push_back(folder);
  }
  PluginFolders all() {
    const std::lock_guard lock(mutex_);
    return all_;
  }

 private:
  std::mutex mutex_;
  PluginFolders all_{own_folder()};
};

Folders& folders() {
  static Folders all;
  return all;
}

// A plug-in that is loaded on first use. Failures are not remembered, because the user may install the missing part.
class LoadedOnce {
 public:
  explicit LoadedOnce(Plugin (*load)()) : load_(load) {}
  Plugin get() {
    const std::lock_guard lock(mutex_);
    if (!plugin_.exports) plugin_ = load_();
    return plugin_;
  }

 private:
  Plugin (*load_)();
  std::mutex mutex_;
  Plugin plugin_;
};

struct PluginBackend {
  const char *name, *title;
  const char* no_device;  // advice if there is no device; "" if the plug-in gives it
  LoadedOnce plugin;
};

std::span<PluginBackend> plugins() {
  static PluginBackend all[] = {
#define LT_BACKEND(name, title, no_device) \
  {#name, title, no_device, LoadedOnce([] { return load_##name##_plugin(folders().all()); })},
#include "backend/backends.def"
#undef LT_BACKEND
  };
  return all;
}

BackendReport report(PluginBackend& backend) {
  const Plugin plugin = backend.plugin.get();
  if (!plugin.exports) return {backend.name, false, plugin.missing};
  try {
    std::string text;
    if (list_devices(*plugin.exports, &text) > 0) return {backend.name, true, text};
    if (*backend.no_device) text += format("; no device: %s", backend.no_device);
    return {backend.name, false, text};
  } catch (const Error& error) {
    return {backend.name, false, error.what()};
  }
}

BackendReport report_cpu() {
  const auto backend = cpu::make_backend("");
  std::string all;
  for (const std::string& target : backend->targets()) {
    if (!all.empty()) all += ", ";
    all += target;
  }
  return {"cpu", true, format("uses %s; this CPU can run %s", backend->target(), all.c_str())};
}

}  // namespace

void add_plugin_folder(const std::filesystem::path& folder) { folders().add(folder); }

std::vector<BackendReport> report_backends() {
  std::vector<BackendReport> all{report_cpu()};
  for (PluginBackend& backend : plugins()) all.push_back(report(backend));
  return all;
}

std::unique_ptr<Backend> open_backend(const std::string& name, const std::string& target, void* queue) {
  if (name == "cpu") {
    LT_REQUIRE(!queue, "got a queue for the cpu backend, wanted nullptr");
    return cpu::make_backend(target);
  }
  std::string known = "cpu";
  for (PluginBackend& backend : plugins()) {
    known += std::string(", ") + backend.name;
    if (name != backend.name) continue;
    const Plugin plugin = backend.plugin.get();
    if (!plugin.exports) fail(ErrorKind::kUnsupported, "no %s backend: %s", backend.title, plugin.missing.c_str());
    return open_plugin(*plugin.exports, target, queue);
  }
  fail(ErrorKind::kInvalidArgument, "got backend '%s', wanted one of: %s", name.c_str(), known.c_str());
}

}  // namespace lowtide
