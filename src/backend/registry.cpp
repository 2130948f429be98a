#include "backend/registry.h"

#include <dlfcn.h>

#include <filesystem>
#include <mutex>
#include <span>

#include "backend/cpu/cpu_backend.h"
#include "backend/plugin.h"
#include "core/error.h"

namespace lowtide {
namespace {

// The folder of the shared library, Python module or program that this code is in.
std::filesystem::path own_folder() {
  Dl_info info;
  if (!dladdr(reinterpret_cast<void*>(&own_folder), &info) || !info.dli_fname) return {};
  std::error_code ignored;
  return std::filesystem::weakly_canonical(info.dli_fname, ignored).parent_path();
}

// Loaded when first asked for. A failure is not remembered: what is missing may be brought.
class LoadedOnce {
 public:
  explicit LoadedOnce(Plugin (*load)()) : load_(load) {}
  Plugin get() {
    const std::lock_guard lock(mutex_);
    if (!plugin_.open) plugin_ = load_();
    return plugin_;
  }

 private:
  Plugin (*load_)();
  std::mutex mutex_;
  Plugin plugin_;
};

struct PluginBackend {
  const char *name, *title;
  const char* no_device;  // what to do where there is none, if its plug-in does not say that
  LoadedOnce plugin;
};

std::span<PluginBackend> plugins() {
  static PluginBackend all[] = {
#define LT_BACKEND(name, title, no_device) \
  {#name, title, no_device, LoadedOnce([] { return load_##name##_plugin(own_folder()); })},
#include "backend/backends.def"
#undef LT_BACKEND
  };
  return all;
}

BackendReport report(PluginBackend& backend) {
  const Plugin plugin = backend.plugin.get();
  if (!plugin.open) return {backend.name, false, plugin.missing};
  try {
    std::string text;
    if (plugin.devices(&text) > 0) return {backend.name, true, text};
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
    if (!plugin.open) fail(ErrorKind::kUnsupported, "no %s backend: %s", backend.title, plugin.missing.c_str());
    return std::unique_ptr<Backend>(plugin.open(target.c_str(), queue));
  }
  fail(ErrorKind::kInvalidArgument, "got backend '%s', wanted one of: %s", name.c_str(), known.c_str());
}

}  // namespace lowtide
