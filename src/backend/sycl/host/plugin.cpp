#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>

#include <mutex>

#include "backend/border_export.h"
#include "backend/sycl/host/errors.h"
#include "backend/sycl/host/sycl_backend.h"
#include "lowtide/export.h"

namespace lowtide::sycl_host {
namespace {

// pip installs Intel's CPU driver beside libsycl, where no OpenCL loader looks. A process's first SYCL call finds the
// drivers, and the list then stays. This function makes that call while a variable, unless the user has set it, also
// names this driver.
void find_drivers() {
  static std::once_flag once;
  std::call_once(once, [] {
    constexpr const char* kVariable = "OCL_ICD_FILENAMES";
    Dl_info info;
    if (getenv(kVariable) || !dladdr(reinterpret_cast<void*>(&sycl::device::get_devices), &info) || !info.dli_fname)
      return;
    const std::string library = info.dli_fname;
    const std::string driver = library.substr(0, library.rfind('/') + 1) + "libintelocl.so";
    if (access(driver.c_str(), F_OK) != 0) return;
    struct Restore {
      ~Restore() { unsetenv(kVariable); }
    } restore;
    setenv(kVariable, driver.c_str(), 0);
    sycl::device::get_devices();
  });
}

int report(std::string* text) {
  return guarded("looking for devices", [&] {
    find_drivers();
    *text = format("libsycl %d", __LIBSYCL_MAJOR_VERSION);
    const auto devices = find_devices();
    for (const sycl::device& device : devices)
      *text += format("; %s: %s (%s)", target_of(device), device.get_info<sycl::info::device::name>().c_str(),
                      gives_cpu_bits(device) ? "the same bits as the CPU backend"
                                             : "its driver does not promise the bits of the CPU backend");
    return static_cast<int>(devices.size());
  });
}

std::unique_ptr<Backend> open(const char* target, void* queue) {
  guarded("looking for drivers", [] { find_drivers(); });
  return make_backend(target, static_cast<const sycl::queue*>(queue));
}

}  // namespace
}  // namespace lowtide::sycl_host

LT_EXPORT_PLUGIN(sycl, lowtide::sycl_host::report, lowtide::sycl_host::open)
