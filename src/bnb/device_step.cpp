#include "bnb/update.h"

#include <vector>

#include "bnb/map8.h"
#include "core/error.h"

namespace lowtide::bnb {
namespace {

// Copies of a device's arrays in host memory.
class Copies {
 public:
  Copies(Device& device, void* queue) : device_(device), queue_(queue) {}

  // The copy of the `count` elements at `data`, once wait() has been called; nullptr stays that. T is what they are.
  template <class T>
  T* read(const T* data, int64_t bytes) {
    if (!data) return nullptr;
    // In words, so that every type is aligned.
    Copy& copy = copies_.emplace_back(Copy{const_cast<void*>(static_cast<const void*>(data)), bytes,
                                           std::vector<uint64_t>(static_cast<size_t>(bytes + 7) / 8)});
    device_.copy(queue_, copy.words.data(), data, bytes);
    return reinterpret_cast<T*>(copy.words.data());
  }
  void* read(const void* data, int64_t bytes) { return read(static_cast<const std::byte*>(data), bytes); }

  // Writes a copy back to where it is from.
  void write(const void* copied) {
    for (const Copy& copy : copies_)
      if (copy.words.data() == copied) device_.copy(queue_, copy.from, copied, copy.bytes);
  }

  void wait() { device_.host_wait(device_.record(queue_)); }

 private:
  struct Copy {
    void* from;
    int64_t bytes;
    std::vector<uint64_t> words;
  };
  Device& device_;
  void* queue_;
  std::vector<Copy> copies_;
};

constexpr int64_t kMapBytes = Map8::kSize * static_cast<int64_t>(sizeof(float));

int64_t absmax_bytes(const Update& u, int copies) { return copies * u.blocks() * static_cast<int64_t>(sizeof(float)); }

// u with maps and absmax values that the host reads.
Update with_scales(const Update& u, Copies& copies) {
  Update out = u;
  if (!u.coded) return out;
  out.quantiles1 = copies.read(u.quantiles1, kMapBytes);
  out.absmax1 = copies.read(u.absmax1, absmax_bytes(u, u.states() > 2 ? 2 : 1));
  if (u.states() > 1) {
    out.quantiles2 = copies.read(u.quantiles2, kMapBytes);
    out.absmax2 = copies.read(u.absmax2, absmax_bytes(u, 1));
  }
  return out;
}

void step_through_host(const Update& scaled, Copies& copies, Backend& cpu, int threads) {
  Update u = scaled;
  const int64_t element = dtype_bytes(u.dtype), state = u.coded ? 1 : static_cast<int64_t>(sizeof(float));
  u.p = copies.read(u.p, u.n * element);
  u.g = copies.read(u.g, u.n * element);
  u.state1 = copies.read(u.state1, u.n * state * (u.states() > 2 ? 2 : 1));
  if (u.states() > 1) u.state2 = copies.read(u.state2, u.n * state);
  if (u.is_limited()) u.unorm = copies.read(u.unorm, sizeof(float));
  copies.wait();
  step_on_host(u, cpu, threads);
  for (const void* written : {u.p, u.state1, u.state2}) copies.write(written);
  for (const float* written : {u.absmax1, u.absmax2, u.unorm}) copies.write(written);
  copies.wait();
}

}  // namespace

void step_on_device(const Update& u, Backend& backend, void* queue, Backend& cpu, int threads) {
  check_arguments(u);
  if (u.n == 0) return;
  Copies copies(*backend.device(), queue);
  const Update scaled = with_scales(u, copies);
  copies.wait();
  check_scales(scaled);
  if (u.is_limited() || !fits_backend(scaled)) return step_through_host(scaled, copies, cpu, threads);
  const Layout layout = flat_layout(u.n);
  const ArgsBytes args = args_of(u, 1);
  const StepItem item = item_of(u, layout, args.data);
  require_finite_gradient(backend, item, threads, queue);
  backend.step({&item, 1}, threads, false, queue);
  copies.wait();
}

}  // namespace lowtide::bnb
