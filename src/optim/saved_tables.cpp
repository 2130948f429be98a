#include "optim/saved_tables.h"

#include "backend/catalog.h"
#include "backend/limits.h"

namespace lowtide {

CheckpointParam describe(const Parameter& param, int of_rule) {
  const CodecInfo& codec = codec_info(param.codec);
  CheckpointParam out;
  out.sizes = param.sizes;
  out.group = param.group;
  out.steps = param.steps;
  out.codec = codec.name;
  out.block = codec.scaled ? kBlockElements : 0;
  if (of_rule < 0) return out;
  for (int k = 0; k < param.arrays(of_rule); ++k)
    out.states.push_back({param.view(of_rule, k).name, param.is_signed(of_rule, k), param.code_bytes(of_rule, k),
                          param.scale_bytes(of_rule, k)});
  return out;
}

Checkpoint describe(const Tables& tables, const std::string& metadata) {
  Checkpoint out;
  out.rule = tables.rule();
  out.metadata = metadata;
  for (size_t i = 0; i < tables.params(); ++i) {
    const Parameter& param = tables.at(i);
    tables.of(i).require_whole(param, i);
    out.params.push_back(describe(param, param.has_state && !param.uninitialized ? param.state_rule : -1));
    out.params.back().name = std::to_string(i);
  }
  return out;
}

void count_as_saved(const Tables& tables) {
  for (size_t i = 0; i < tables.params(); ++i) {
    Parameter& param = tables.at(i);
    for (Progress& piece : param.progress) piece = {0, param.uninitialized};
  }
}

}  // namespace lowtide
