// The format dynamic4 by its definition: a list of entries, and double arithmetic.
#pragma once

#include "support/test.h"

namespace lowtide::testing {

struct Dynamic4Map {
  bool is_signed;
  std::vector<float> value;  // ascending

  explicit Dynamic4Map(bool of_signed) : is_signed(of_signed) {
    if (is_signed)
      value = {-.8875f, -.6625f, -.4375f, -.2125f, -.0775f, -.0325f, -.0055f, 0.f,
               .0055f,  .0325f,  .0775f,  .2125f,  .4375f,  .6625f,  .8875f,  1.f};
    else
      for (int k = 1; k <= 16; ++k) value.push_back(static_cast<float>(k * k) / 256.f);
  }

  // Returns the code of x in units of absmax; a tie keeps the lower entry.
  int nearest(float x) const {
    int code = 0;
    while (code < 15 && x > (value[size_t(code)] + value[size_t(code) + 1]) * 0.5f) ++code;
    return code;
  }
};

}  // namespace lowtide::testing
