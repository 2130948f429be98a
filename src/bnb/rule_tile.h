// the portable rules on one block of plain floats.
#pragma once

#include "backend/limits.h"
#include "bnb/update.h"

namespace lowtide::bnb {

struct RuleTile {
  int n = 0;
  float p[kBlockElements], g[kBlockElements], s[kMaxStates][kBlockElements];
};

// Steps the tile. skip: nullptr, or the weight decay that joins the gradient: elements where the two are zero stay as
// they are.
using RunTile = void (*)(RuleTile& tile, const void* args, const float* skip);
RunTile run_tile_of(Family family);

// n elements of a type, to floats and from them (rounded to nearest, ties to even).
void load_elements(DType dtype, const void* from, int n, float* to);
void store_elements(DType dtype, const float* from, int n, void* to);

}  // namespace lowtide::bnb
