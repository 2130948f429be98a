#include "backend/sycl/host/plugin.h"

#include <dlfcn.h>
#include <stdlib.h>

#include <filesystem>

#include "backend/sycl/host/errors.h"
#include "backend/sycl/host/sycl_backend.h"
#include "lowtide/export.h"

namespace lowtide::sycl_host {
namespace {

// Intel's CPU driver from pip lies beside libsycl, where no OpenCL loader looks. Tells it, unless the user has. Works
// only before the process's first SYCL call.
void show_cpu_driver() {
  Dl_info info;
  if (!dladdr(reinterpret_cast<void*>(&sycl::device::get_devices), &info) || !info.dli_fname) return;
  std::error_code ignored;
  const auto driver = std::filesystem::path(info.dli_fname).parent_path() / "libintelocl.so";
  if (std::filesystem::exists(driver, ignored)) setenv("OCL_ICD_FILENAMES", driver.c_str(), 0);
}

}  // namespace
}  // namespace lowtide::sycl_host

using namespace lowtide;

extern "C" {

LT_API lowtide::sycl_plugin::VersionFn lt_sycl_version;
LT_API lowtide::sycl_plugin::DevicesFn lt_sycl_devices;
LT_API lowtide::sycl_plugin::OpenFn lt_sycl_open;

const char* lt_sycl_version() { return LOWTIDE_VERSION; }

int lt_sycl_devices(std::string* text) {
  return sycl_host::guarded("looking for devices", [&] {
    *text = format("libsycl %d", __LIBSYCL_MAJOR_VERSION);
    const auto devices = sycl_host::find_devices();
    for (const sycl::device& device : devices)
      *text +=
          format("; %s: %s (%s)", sycl_host::target_of(device), device.get_info<sycl::info::device::name>().c_str(),
                 sycl_host::gives_cpu_bits(device) ? "the same bits as the CPU backend"
                                                   : "division and square root are not exact");
    return static_cast<int>(devices.size());
  });
}

Backend* lt_sycl_open(const char* target) {
  // Changes the process's environment: only when the CPU device is asked for.
  if (std::string(target) == "cpu") sycl_host::show_cpu_driver();
  return sycl_host::make_backend(target).release();
}
}
