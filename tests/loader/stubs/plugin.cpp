// A plug-in of nothing, to be found by the loaders' tests; LT_STUB_NEEDS makes it need a runtime.
#include "backend/plugin.h"
#include "lowtide/export.h"

#define LT_JOINED(backend, function) lt_##backend##_##function
#define LT_NAME(backend, function) LT_JOINED(backend, function)

extern "C" {
LT_API lowtide::PluginVersionFn LT_NAME(LT_STUB_BACKEND, version);
LT_API lowtide::PluginDevicesFn LT_NAME(LT_STUB_BACKEND, devices);
LT_API lowtide::PluginOpenFn LT_NAME(LT_STUB_BACKEND, open);
int lt_stub_runtime();

#ifdef LT_STUB_NEEDS
const char* LT_NAME(LT_STUB_BACKEND, version)() { return lt_stub_runtime() ? LT_STUB_VERSION : ""; }
#else
const char* LT_NAME(LT_STUB_BACKEND, version)() { return LT_STUB_VERSION; }
#endif
int LT_NAME(LT_STUB_BACKEND, devices)(std::string*) { return LT_STUB_NUMBER; }
lowtide::Backend* LT_NAME(LT_STUB_BACKEND, open)(const char*, void*) { return nullptr; }
}
