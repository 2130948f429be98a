// A case's arrays in memory that host and device share.
#pragma once

#include <cstring>
#include <vector>

#include "symbols.h"

namespace lowtide::testing {

// The arrays of a case in memory of cget_managed_ptr.
class SharedCopy {
 public:
  explicit SharedCopy(BnbCase& c) : case_(c) {
    for (auto& array : c.arrays) add(array.data(), array.size() * 8);
    for (auto& one : c.absmax) add(one.data(), one.size() * 4);
    add(&c.unorm, 4);
    for (auto& map : c.maps) add(map.data(), map.size() * 4);
  }
  SharedCopy(const SharedCopy&) = delete;
  ~SharedCopy() {
    for (const Part& part : parts_) cfree_managed_ptr(part.there);
  }

  // The case's, with these arrays.
  bnb::Update update() const {
    bnb::Update u = case_.u;
    u.p = moved(u.p), u.g = moved(u.g), u.state1 = moved(u.state1), u.state2 = moved(u.state2);
    u.unorm = moved(u.unorm), u.absmax1 = moved(u.absmax1), u.absmax2 = moved(u.absmax2);
    u.quantiles1 = moved(u.quantiles1), u.quantiles2 = moved(u.quantiles2);
    return u;
  }
  // Like BnbCase::bytes().
  std::vector<std::byte> bytes() const {
    std::vector<std::byte> out;
    for (size_t i = 0; i + case_.maps.size() < parts_.size(); ++i) {
      const auto* from = static_cast<const std::byte*>(parts_[i].there);
      out.insert(out.end(), from, from + parts_[i].bytes);
    }
    return out;
  }

 private:
  struct Part {
    const void* here;
    void* there;
    size_t bytes;
  };
  void add(const void* data, size_t bytes) {
    parts_.push_back({data, cget_managed_ptr(bytes), bytes});
    std::memcpy(parts_.back().there, data, bytes);
  }
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
