// A plug-in of nothing, to be found by the loaders' tests; LT_STUB_NEEDS makes it need a runtime, LT_STUB_STRANGE read
// what crosses the border in a way of its own.
#include "backend/border_export.h"
#include "lowtide/export.h"

extern "C" int lt_stub_runtime();

namespace {

int devices(std::string*) {
#ifdef LT_STUB_NEEDS
  return lt_stub_runtime();
#else
  return LT_STUB_NUMBER;
#endif
}

std::unique_ptr<lowtide::Backend> open(const char*, void*) { return nullptr; }

const lowtide::border::Exports* stub() {
  static const lowtide::border::Exports all = [] {
    lowtide::border::Exports made = *lowtide::border::exports<devices, open>();
    made.version = LT_STUB_VERSION;
#ifdef LT_STUB_STRANGE
    made.digest = [](const lowtide::border::Sample& sample) { return lowtide::border::digest(sample) + 1; };
#endif
    return made;
  }();
  return &all;
}

}  // namespace

#define LT_JOINED(backend) lt_##backend##_plugin
#define LT_NAME(backend) LT_JOINED(backend)
extern "C" LT_API const lowtide::border::Exports* LT_NAME(LT_STUB_BACKEND)();
const lowtide::border::Exports* LT_NAME(LT_STUB_BACKEND)() { return stub(); }
