#include "backend/sycl/host/kernels.h"

#include "core/error.h"

// LOWTIDE_SPIRV_DIR is the folder of the .spv files. The build makes these files and their list (plugin.cmake).
#define LT_PROGRAM(name)                                                                                  \
  __asm__(".pushsection .rodata\n.balign 16\nlt_spirv_" #name ":\n.incbin \"" LOWTIDE_SPIRV_DIR "/" #name \
          ".spv\"\nlt_spirv_end_" #name ":\n.popsection\n");                                              \
  extern "C" [[gnu::visibility("hidden")]] const std::byte lt_spirv_##name[], lt_spirv_end_##name[];
#include <spirv/programs.def>

namespace lowtide::sycl_host {

std::span<const std::byte> program(const std::string& name) {
#define LT_PROGRAM(program) \
  if (name == #program) return {lt_spirv_##program, lt_spirv_end_##program};
#include <spirv/programs.def>
  fail(ErrorKind::kUnsupported,
       "SYCL: this build of the plug-in has no program '%s'; LOWTIDE_SYCL_BALLOTS chooses the rules that can make "
       "ballots; leave it empty for all rules",
       name.c_str());
}

}  // namespace lowtide::sycl_host
