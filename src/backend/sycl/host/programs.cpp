#include "backend/sycl/host/kernels.h"

#include "core/error.h"

// LOWTIDE_SPIRV_DIR: the folder of the .spv files.
#define LT_EMBED(name)                                                                                    \
  __asm__(".pushsection .rodata\n.balign 16\nlt_spirv_" #name ":\n.incbin \"" LOWTIDE_SPIRV_DIR "/" #name \
          ".spv\"\nlt_spirv_end_" #name ":\n.popsection\n");                                              \
  extern "C" [[gnu::visibility("hidden")]] const std::byte lt_spirv_##name[], lt_spirv_end_##name[];

#define LT_RULE(number, name, Rule) LT_EMBED(step_##name) LT_EMBED(ballot_##name)
#define LT_NORM_RULE(number, name, Rule) LT_RULE(number, name, Rule) LT_EMBED(norms_##name)
#include "portable/rules.def"
#undef LT_RULE
#define LT_EACH_OTHER(use) \
  use(aux) use(fill) use(sign_float32) use(sign_bfloat16) use(sign_float16) use(vote) use(apply) use(feedback) use(sums)
LT_EACH_OTHER(LT_EMBED)

namespace lowtide::sycl_host {

std::span<const std::byte> program(const std::string& name) {
#define LT_FIND(program) \
  if (name == #program) return {lt_spirv_##program, lt_spirv_end_##program};
#define LT_RULE(number, rule, Rule) LT_FIND(step_##rule) LT_FIND(ballot_##rule)
#define LT_NORM_RULE(number, rule, Rule) LT_RULE(number, rule, Rule) LT_FIND(norms_##rule)
#include "portable/rules.def"
#undef LT_RULE
  LT_EACH_OTHER(LT_FIND)
  fail(ErrorKind::kInternal, "no SYCL program '%s'", name.c_str());
}

}  // namespace lowtide::sycl_host
