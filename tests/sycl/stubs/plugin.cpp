// A plug-in of nothing, to be found by the loader's tests; LT_STUB_NEEDS makes it need a runtime.
#include "backend/sycl/host/plugin.h"
#include "lowtide/export.h"

extern "C" {
LT_API lowtide::sycl_plugin::VersionFn lt_sycl_version;
LT_API lowtide::sycl_plugin::DevicesFn lt_sycl_devices;
LT_API lowtide::sycl_plugin::OpenFn lt_sycl_open;
int lt_stub_runtime();

#ifdef LT_STUB_NEEDS
const char* lt_sycl_version() { return lt_stub_runtime() ? LT_STUB_VERSION : ""; }
#else
const char* lt_sycl_version() { return LT_STUB_VERSION; }
#endif
int lt_sycl_devices(std::string*) { return LT_STUB_NUMBER; }
lowtide::Backend* lt_sycl_open(const char*, const void*) { return nullptr; }
}
