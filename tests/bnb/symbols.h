// The optimizers' symbols as a table, and arrays to call them with.
#pragma once

#include "bnb/update.h"
#include "lowtide/bnb.h"
#include "support/dynamic_map.h"
#include "support/half_reference.h"
#include "support/test.h"

namespace lowtide::testing {

struct BnbSymbol {
  const char* name;
  bnb::Family family;
  DType dtype;
  bool coded;
  void (*call)(const bnb::Update&);
};

inline DType dtype_of_suffix(const std::string& suffix) {
  if (suffix == "bf16") return DType::kBF16;
  return suffix == "fp16" || suffix == "16" ? DType::kF16 : DType::kF32;
}

// Every symbol of lowtide/bnb.h, called with its own order of parameters.
inline const std::vector<BnbSymbol>& bnb_symbols() {
  using bnb::Update;
  static const auto floats = [](const void* data) { return static_cast<float*>(const_cast<void*>(data)); };
  static const auto bytes = [](void* data) { return static_cast<unsigned char*>(data); };
  static const std::vector<BnbSymbol> all = {
#define LT_SYMBOL(name, suffix, T)                                                                                 \
  {"c" #name "32bit_grad_" #suffix, bnb::Family::name, dtype_of_suffix(#suffix), false, [](const Update& u) {      \
     c##name##32bit_grad_##suffix(static_cast<T*>(const_cast<void*>(u.g)), static_cast<T*>(u.p), floats(u.state1), \
                                  floats(u.state2), u.unorm, u.max_unorm, u.param_norm, u.beta1, u.beta2, u.beta3, \
                                  u.alpha, u.eps, u.weight_decay, u.step, u.lr, u.gnorm_scale, u.skip_zeros,       \
                                  static_cast<int>(u.n));                                                          \
   }},
      LT_BNB_EACH_32BIT(LT_SYMBOL)
#undef LT_SYMBOL
#define LT_SYMBOL(name, suffix, T)                                                                                     \
  {"c" #name "_8bit_blockwise_grad_" #suffix, bnb::Family::name, dtype_of_suffix(#suffix), true, [](const Update& u) { \
     c##name##_8bit_blockwise_grad_##suffix(                                                                           \
         static_cast<T*>(u.p), static_cast<T*>(const_cast<void*>(u.g)), bytes(u.state1), bytes(u.state2), u.beta1,     \
         u.beta2, u.beta3, u.alpha, u.eps, u.step, u.lr, floats(u.quantiles1), floats(u.quantiles2), u.absmax1,        \
         u.absmax2, u.weight_decay, u.gnorm_scale, u.skip_zeros, static_cast<int>(u.n));                               \
   }},
          LT_BNB_EACH_8BIT(LT_SYMBOL)
#undef LT_SYMBOL
  };
  return all;
}

inline double element_value(DType dtype, const std::byte* data, int64_t i) {
  if (dtype == DType::kF32) return reinterpret_cast<const float*>(data)[i];
  const uint16_t bits = reinterpret_cast<const uint16_t*>(data)[i];
  return dtype == DType::kBF16 ? bf16_value(bits) : f16_value(bits);
}
inline void set_element(DType dtype, std::byte* data, int64_t i, double value) {
  if (dtype == DType::kF32)
    reinterpret_cast<float*>(data)[i] = static_cast<float>(value);
  else
    reinterpret_cast<uint16_t*>(data)[i] = dtype == DType::kBF16 ? bf16_nearest(value) : f16_nearest(value);
}

// The arrays of one parameter, and the hyper-parameters of its steps (`u`, whose pointers are into the arrays). Not
// movable: u points into it.
struct BnbCase {
  BnbCase(const BnbSymbol& symbol, int64_t n) : symbol(symbol) {
    u.family = symbol.family, u.dtype = symbol.dtype, u.coded = symbol.coded, u.n = n;
    const auto count = static_cast<size_t>(n);
    const size_t element = static_cast<size_t>(dtype_bytes(u.dtype)), state = u.coded ? 1 : 4;
    const auto words = [](size_t bytes) { return std::vector<uint64_t>((bytes + 7) / 8 + 1); };  // never empty
    arrays = {words(count * element), words(count * element), words(2 * count * state), words(count * state)};
    const auto blocks = static_cast<size_t>(u.blocks());
    absmax = {std::vector<float>(2 * blocks + 1), std::vector<float>(blocks + 1)};
    maps = {make_dynamic_map(true), make_dynamic_map(false)};
    u.p = arrays[0].data(), u.g = arrays[1].data(), u.state1 = arrays[2].data(), u.unorm = &unorm;
    if (u.states() > 1) u.state2 = arrays[3].data();
    if (u.coded) {
      u.quantiles1 = maps[0].data(), u.absmax1 = absmax[0].data();
      if (u.states() > 1) u.quantiles2 = maps[1].data(), u.absmax2 = absmax[1].data();
    }
    u.lr = 1e-2f, u.eps = 1e-8f, u.weight_decay = 1e-2f;
    u.beta1 = 0.9f, u.beta2 = 0.99f, u.beta3 = 0.999f, u.alpha = 3.f;
  }
  BnbCase(const BnbCase&) = delete;

  void set_random_parameter(Rng& rng) { set(0, rng, 1.0); }
  // Some are zero.
  void set_random_gradient(Rng& rng) { set(1, rng, 0.1); }

  // All that a call may change, as bytes.
  std::vector<std::byte> bytes() const {
    std::vector<std::byte> out;
    const auto add = [&](const auto& data) {
      const auto* from = reinterpret_cast<const std::byte*>(data.data());
      out.insert(out.end(), from, from + data.size() * sizeof data[0]);
    };
    for (const auto& array : arrays) add(array);
    for (const auto& one : absmax) add(one);
    add(std::vector<float>{unorm});
    return out;
  }

  BnbSymbol symbol;
  bnb::Update u;
  std::vector<std::vector<uint64_t>> arrays;  // p, g, state1, state2
  std::vector<std::vector<float>> absmax;
  std::vector<std::array<float, 256>> maps;
  float unorm = 0;

 private:
  void set(size_t array, Rng& rng, double size) {
    auto* data = reinterpret_cast<std::byte*>(arrays[array].data());
    for (int64_t i = 0; i < u.n; ++i)
      set_element(u.dtype, data, i, array == 1 && rng.chance(0.1) ? 0 : size * rng.normal());
  }
};

// A case whose arrays have copies in other memory, which `allocate(bytes)` gives and which outlives this.
class MovedCase {
 public:
  template <class Allocate>
  MovedCase(BnbCase& c, Allocate&& allocate) : case_(c) {
    const auto add = [&](void* here, size_t bytes) { parts_.push_back({here, allocate(bytes), bytes}); };
    for (auto& array : c.arrays) add(array.data(), array.size() * 8);
    for (auto& one : c.absmax) add(one.data(), one.size() * 4);
    add(&c.unorm, 4);
    for (auto& map : c.maps) add(map.data(), map.size() * 4);
  }

  // The case's, with the copies.
  bnb::Update update() const {
    bnb::Update u = case_.u;
    u.p = moved(u.p), u.g = moved(u.g), u.state1 = moved(u.state1), u.state2 = moved(u.state2);
    u.unorm = moved(u.unorm), u.absmax1 = moved(u.absmax1), u.absmax2 = moved(u.absmax2);
    u.quantiles1 = moved(u.quantiles1), u.quantiles2 = moved(u.quantiles2);
    return u;
  }

 protected:
  struct Part {
    void* here;
    void* there;
    size_t bytes;
  };
  const std::vector<Part>& parts() const { return parts_; }
  const BnbCase& of() const { return case_; }

 private:
  template <class T>
  T* moved(T* pointer) const {
    for (const Part& part : parts_)
      if (part.here == pointer) return static_cast<T*>(part.there);
    return pointer;
  }

  BnbCase& case_;
  std::vector<Part> parts_;
};

}  // namespace lowtide::testing
