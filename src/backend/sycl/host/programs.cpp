#include "backend/sycl/host/programs.h"

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
LT_EMBED(aux)
LT_EMBED(fill)
LT_EMBED(sign_float32)
LT_EMBED(sign_bfloat16)
LT_EMBED(sign_float16)
LT_EMBED(vote)
LT_EMBED(apply)
LT_EMBED(feedback)

namespace lowtide::sycl_host {

std::span<const std::byte> program(const std::string& name) {
#define LT_RULE(number, rule, Rule)                                                   \
  if (name == "step_" #rule) return {lt_spirv_step_##rule, lt_spirv_end_step_##rule}; \
  if (name == "ballot_" #rule) return {lt_spirv_ballot_##rule, lt_spirv_end_ballot_##rule};
#define LT_NORM_RULE(number, rule, Rule) \
  LT_RULE(number, rule, Rule)            \
  if (name == "norms_" #rule) return {lt_spirv_norms_##rule, lt_spirv_end_norms_##rule};
#include "portable/rules.def"
#undef LT_RULE
  if (name == "aux") return {lt_spirv_aux, lt_spirv_end_aux};
  if (name == "fill") return {lt_spirv_fill, lt_spirv_end_fill};
  if (name == "sign_float32") return {lt_spirv_sign_float32, lt_spirv_end_sign_float32};
  if (name == "sign_bfloat16") return {lt_spirv_sign_bfloat16, lt_spirv_end_sign_bfloat16};
  if (name == "sign_float16") return {lt_spirv_sign_float16, lt_spirv_end_sign_float16};
  if (name == "vote") return {lt_spirv_vote, lt_spirv_end_vote};
  if (name == "apply") return {lt_spirv_apply, lt_spirv_end_apply};
  if (name == "feedback") return {lt_spirv_feedback, lt_spirv_end_feedback};
  fail(ErrorKind::kInternal, "no SYCL program '%s'", name.c_str());
}

}  // namespace lowtide::sycl_host
