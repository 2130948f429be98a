// dynamic4: 4 bits per value, two values to a byte, with one float32 scale per 128 values within a row. Signed states
// use the 4-bit dynamic map (Dettmers et al., arXiv 2110.02861; Li et al., arXiv 2309.01507). It has an entry at 1 but
// none at -1, so the scale maps the absmax to +-.8875, the largest entry with both signs: with the absmax at 1, an
// average of negative gradients would shrink by .8875 in every step and end at half its size. Second moments have 16
// entries with evenly spaced roots, (k / 16)^2 for k = 1 ... 16, hence no zero; a block of zeros decodes to zero
// because its scale is zero.
//
// Nearest, signed: x = value * (1 / scale) takes entry i + 1 rather than i if it is above the midpoint (c[i] + c[i+1])
// / 2, computed in float32; a tie keeps the lower index. Second moments are never rounded to nearest: they are always
// rounded stochastically, and values from outside use the middle random number.
//
// Stochastic: x becomes one of the two entries around it, with probabilities that make the decoded mean equal x. y(x)
// is the straight line between these two, with rank r at entry r, in float32 as x * slope + intercept; the rank is the
// floor of y plus a random fraction of 1.
//
// A table finds the rank below x, or the nearest, by the exponent and 2 bits of mantissa. Its 32 buckets reach from
// 2^-8, the lowest second moment, to 1, and none contains two boundaries. One boundary of signed states lies lower and
// is compared separately.
struct Dynamic4Table {
  static constexpr int kBuckets = 32, kBits = 21;  // kBits: the low bits of a float that a bucket ignores
  static constexpr float kLowest = 0x1p-8f, kBelowOne = 0x1.fffffep-1f;
  alignas(64) float value[16];  // decoded value of a code, in units of the scale
  // Adding these to a magnitude's bits leaves the rank in the upper bits.
  alignas(64) u32 below[kBuckets], nearest[kBuckets];
  // The line from a rank's entry to the next, in units of 2^-16 of a rank, plus half a unit because truncation rounds
  // down.
  alignas(64) float slope[16], intercept[16];
  float least;  // signed states rounded to nearest: magnitudes up to this are 0
};

struct Dynamic4 {
  template <bool kSigned>
  struct Stored {
    using Code = u4;
    static constexpr int kScales = 2;
  };
  static constexpr const char* kName = "dynamic4";
  static constexpr bool kScaled = true;
  static constexpr float kError = 0x1p-2f;               // bound on the relative error of typical values
  static constexpr bool kNeedsRandom[] = {true, false};  // [is signed]
  static constexpr float kTop = .8875f;                  // the largest entry with a negative counterpart
  static constexpr u32 kSignedZero = 7;                  // code of 0; magnitudes count up and down from here
  struct Tables {
    Dynamic4Table side[2];
  };  // [0] unsigned, [1] signed

  template <bool kSigned>
  LT_FN BlockScale block_scale(float absmax) {
    constexpr float kLargest = 0x1p126f;  // still finite when divided by 1/2 or more
    return absmax_scale(absmax, kSigned && absmax < kLargest ? kTop : 1.f);
  }

  template <bool kSigned, class U>
  LT_FN auto decode(const Tables& t, U code) {
    return pick(t.side[kSigned].value, code);
  }

  template <bool kSigned, class F, class U>
  LT_FN U encode_with(const Tables& t, F value, F inverse, bool stochastic, U random) {
    const Dynamic4Table& table = t.side[kSigned];
    const F x = value * inverse;
    if constexpr (!kSigned) return between<false>(table, x, stochastic ? random : U(0x8000u));
    if (stochastic) {
      const U rank = between<true>(table, max(abs(x), F(0.f)), random);                  // a NaN becomes 0
      const U below = select(rank == U(kSignedZero + 1), U(0u), U(kSignedZero) - rank);  // there is no entry at -1
      return select(x < F(0.f), below, U(kSignedZero) + rank);
    }
    // A midpoint belongs to the lower index: for negative values that is the larger magnitude.
    const U sign = bits(x) >> 31;
    const F magnitude = as_float((bits(x) & U(0x7fffffffu)) + sign);
    const F inside = max(min(magnitude, F(Dynamic4Table::kBelowOne)), F(Dynamic4Table::kLowest));
    const U rank = select(magnitude > F(table.least), rank_in(table.nearest, inside), U(0u));
    const U code = (rank ^ (U(0u) - sign)) + sign + U(kSignedZero);  // kSignedZero +- rank
    return code + (code >> 31);                                      // there is no entry at -1: -1 becomes 0
  }

  // Fills the tables. Host only; once per process.
  LT_HOST_FN void make_tables(Tables& t) {
    constexpr float kMagnitudes[] = {0.f, .0055f, .0325f, .0775f, .2125f, .4375f, .6625f, .8875f, 1.f};
    float roots[16], middle[8];
    for (u32 k = 1; k <= 16; ++k) t.side[0].value[k - 1] = roots[k - 1] = float(k * k) * 0x1p-8f;
    for (u32 code = 0; code < 16; ++code)
      t.side[1].value[code] = code < kSignedZero ? -kMagnitudes[kSignedZero - code] : kMagnitudes[code - kSignedZero];
    for (int i = 0; i < 8; ++i) middle[i] = (kMagnitudes[i] + kMagnitudes[i + 1]) * 0.5f;
    make_lines(t.side[0], roots, 15);
    make_lines(t.side[1], kMagnitudes, 8);
    make_buckets(t.side[0].nearest, roots, 0, false);  // no nearest rounding
    make_buckets(t.side[1].nearest, middle, 8, true);
    t.side[0].least = 0.f, t.side[1].least = middle[0];
  }

 private:
  template <class F>
  LT_FN auto rank_in(const u32 (&buckets)[Dynamic4Table::kBuckets], F x) {
    const auto u = bits(x);
    return (u + pick(buckets, u >> Dynamic4Table::kBits)) >> Dynamic4Table::kBits;
  }
  template <bool kSigned, class F, class U>
  LT_FN U between(const Dynamic4Table& table, F magnitude, U random) {
    const F capped = min(magnitude, F(Dynamic4Table::kBelowOne)), x = max(capped, F(Dynamic4Table::kLowest));
    const U rank = rank_in(table.below, x);
    const F y = (kSigned ? capped : x) * pick(table.slope, rank) + pick(table.intercept, rank);
    return (truncate(y) + random) >> 16;
  }

  // A rank is the number of boundaries, out of n, that are below a value or (unless `above`) equal to it.
  LT_HOST_FN void make_buckets(u32 (&buckets)[Dynamic4Table::kBuckets], const float* boundary, int n, bool above) {
    constexpr int kBits = Dynamic4Table::kBits;
    const u32 first = bits(Dynamic4Table::kLowest) >> kBits;
    for (u32 key = first; key < first + Dynamic4Table::kBuckets; ++key) {
      u32 before = 0, carry = 0;
      for (int i = 0; i < n; ++i) {
        const u32 last = bits(boundary[i]) - (above ? 0 : 1);  // last float of the rank below
        before += last < key << kBits;
        if (last >> kBits == key) carry = (1u << kBits) - 1 - (last & ((1u << kBits) - 1));
      }
      buckets[key & (Dynamic4Table::kBuckets - 1)] = ((before - key) << kBits) + carry;
    }
  }
  // Makes the lines between entries 0 ... n.
  LT_HOST_FN void make_lines(Dynamic4Table& table, const float* entry, int n) {
    make_buckets(table.below, entry + 1, n - 1, false);
    for (int rank = 0; rank < 16; ++rank) {
      const int low = rank < n ? rank : n - 1;  // later ranks do not exist
      const double slope = 65536 / (double{entry[low + 1]} - double{entry[low]});
      table.slope[rank] = float(slope);
      table.intercept[rank] = float(65536.0 * low - slope * double{entry[low]} + 0.5);
    }
  }
};
