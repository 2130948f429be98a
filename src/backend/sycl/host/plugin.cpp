#include "backend/plugin.h"

#include <dlfcn.h>
#include <stdlib.h>

#include <filesystem>
#include <mutex>

#include "backend/sycl/host/errors.h"
#include "backend/sycl/host/sycl_backend.h"
#include "lowtide/export.h"

namespace lowtide::sycl_host {
namespace {

// Intel's CPU driver from pip lies beside libsycl, where no OpenCL loader looks. Drivers are found in a process's first
// SYCL call, and the list then stays: that call is made here, with the variable that names this driver too, unless the
// user has set it.
void find_drivers() {
  static std::once_flag once;
  std::call_once(once, [] {
    constexpr const char* kVariable = "OCL_ICD_FILENAMES";
    Dl_info info;
    if (getenv(kVariable) || !dladdr(reinterpret_cast<void*>(&sycl::device::get_devices), &info) || !info.dli_fname)
      return;
    std::error_code ignored;
    const auto driver = std::filesystem::path(info.dli_fname).parent_path() / "libintelocl.so";
    if (!std::filesystem::exists(driver, ignored)) return;
    struct Restore {
      ~Restore() { unsetenv(kVariable); }
    } restore;
    setenv(kVariable, driver.c_str(), 0);
    sycl::device::get_devices();
  });
}

}  // namespace
}  // namespace lowtide::sycl_host

using namespace lowtide;

extern "C" {

LT_API lowtide::PluginVersionFn lt_sycl_version;
LT_API lowtide::PluginDevicesFn lt_sycl_devices;
LT_API lowtide::PluginOpenFn lt_sycl_open;

const char* lt_sycl_version() { return LOWTIDE_VERSION; }

int lt_sycl_devices(std::string* text) {
  return sycl_host::guarded("looking for devices", [&] {
    sycl_host::find_drivers();
    *text = format("libsycl %d", __LIBSYCL_MAJOR_VERSION);
    const auto devices = sycl_host::find_devices();
    for (const sycl::device& device : devices)
      *text +=
          format("; %s: %s (%s)", sycl_host::target_of(device), device.get_info<sycl::info::device::name>().c_str(),
                 sycl_host::gives_cpu_bits(device) ? "the same bits as the CPU backend"
                                                   : "its driver does not promise the bits of the CPU backend");
    return static_cast<int>(devices.size());
  });
}

Backend* lt_sycl_open(const char* target, void* queue) {
  sycl_host::guarded("looking for drivers", [] { sycl_host::find_drivers(); });
  return sycl_host::make_backend(target, static_cast<const sycl::queue*>(queue)).release();
}
}
