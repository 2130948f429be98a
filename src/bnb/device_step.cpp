#include "bnb/update.h"

#include <algorithm>
#include <deque>
#include <utility>
#include <vector>

#include "bnb/map8.h"
#include "core/error.h"

namespace lowtide::bnb {
namespace {

constexpr int64_t kMapBytes = Map8::kSize * static_cast<int64_t>(sizeof(float));

int64_t absmax_bytes(const Update& u, int copies) { return copies * u.blocks() * static_cast<int64_t>(sizeof(float)); }

// Host copies of a device's arrays. The destructor waits for all copies, even after an error, because the memory of the
// copies and of the caller may be freed next.
class Copies {
 public:
  Copies(Device& device, void* queue) : device_(device), queue_(queue) {}
  ~Copies() {
    try {
      if (queued_) wait();
    } catch (const Error&) {  // a lost device no longer copies
    }
  }
  Copies(const Copies&) = delete;
  Copies& operator=(const Copies&) = delete;

  // Returns a host copy of `bytes` bytes at `data`, which is valid after wait(). Returns nullptr for nullptr.
  template <class T>
  T* read(const T* data, int64_t bytes) {
    if (!data) return nullptr;
    // Copies are 64-bit words, so that every type is aligned.
    std::vector<uint64_t>& words = words_.emplace_back(static_cast<size_t>(bytes + 7) / 8);
    return read_to(words.data(), data, bytes);
  }
  void* read(const void* data, int64_t bytes) { return read(static_cast<const std::byte*>(data), bytes); }

  // Copies `bytes` bytes at `data` to `to` and returns `to`; the copy is valid after wait().
  template <class T>
  T* read_to(void* to, const T* data, int64_t bytes) {
    copies_.push_back({const_cast<void*>(static_cast<const void*>(data)), to, bytes});
    queue_copy(to, data, bytes);
    return static_cast<T*>(to);
  }

  // Writes a host copy back to its origin.
  void write(const void* copied) {
    for (const Copy& copy : copies_)
      if (copy.at == copied) queue_copy(copy.from, copied, copy.bytes);
  }

  void wait() {
    device_.host_wait(device_.record(queue_));
    queued_ = false;
  }

 private:
  void queue_copy(void* to, const void* from, int64_t bytes) {
    queued_ = true;
    device_.copy(queue_, to, from, bytes);
  }

  struct Copy {
    void *from, *at;
    int64_t bytes;
  };
  Device& device_;
  void* queue_;
  std::vector<Copy> copies_;
  std::deque<std::vector<uint64_t>> words_;
  bool queued_ = false;  // since the last wait()
};

// Returns `u` with maps and absmax values that the host can read. They are in pinned memory, because a copy to other
// memory would block.
Update with_scales(const Update& u, Copies& copies, Device& device, DeviceBytes& pinned) {
  Update out = u;
  if (!u.coded) return out;
  const int64_t first = absmax_bytes(u, u.states() > 2 ? 2 : 1), second = absmax_bytes(u, u.states() > 1 ? 1 : 0);
  if (const int64_t needed = 2 * kMapBytes + first + second; pinned.bytes() < needed)
    pinned = DeviceBytes(device, MemoryKind::kPinned, std::max(needed, 2 * pinned.bytes()));
  std::byte* at = pinned.data();
  const auto read = [&](auto*& data, int64_t bytes) {
    data = copies.read_to(std::exchange(at, at + bytes), data, bytes);
  };
  read(out.quantiles1, kMapBytes);
  if (u.states() > 1) read(out.quantiles2, kMapBytes);
  read(out.absmax1, first);
  if (u.states() > 1) read(out.absmax2, second);
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

void step_on_device(const Update& u, Backend& backend, void* queue, DeviceBytes& pinned, Backend& cpu, int threads) {
  check_arguments(u);
  if (u.n == 0) return;
  Device& device = *backend.device();
  Copies copies(device, queue);
  const Update scaled = with_scales(u, copies, device, pinned);
  const Layout layout = flat_layout(u.n);
  const ArgsBytes args = args_of(u, 1);
  const StepItem item = item_of(u, layout, args.data);
  const int64_t bad = backend.first_nonfinite({&item, 1}, threads, queue);  // also waits for the copies
  check_scales(scaled);
  require_finite_gradient(bad);
  if (u.is_limited() || !fits_backend(scaled)) return step_through_host(scaled, copies, cpu, threads);
  backend.step({&item, 1}, threads, false, queue);
  copies.wait();
}

}  // namespace lowtide::bnb
