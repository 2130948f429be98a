// A framework's cache of device memory, a DeviceAllocator that reuses freed memory while its queue may still use it.
#pragma once

#include "support/fake/fake_backend.h"
#include "support/test.h"

namespace lowtide::testing {

struct Cache {
  struct Unused {
    void* memory;
    int64_t bytes;
    std::vector<Device::Event> until = {};  // until these have happened, it must stay
  };
  fake::FakeBackend& fake;
  std::vector<Unused> unused = {};
  std::map<void*, int64_t> sizes = {};
  std::map<void*, std::vector<void*>> queues = {};  // queues that still use the memory to be freed next
  void* fills_on = nullptr;  // fills handed-out memory on this queue, as torch does in its deterministic mode
  bool refuses = false;      // refuses notes of use
  std::map<void*, Device::Event> unnoted = {};  // the uses that it refused to note
  int64_t early = 0;                            // times that such memory came back before its use ended
  int64_t reused = 0, taken = 0, given_back = 0, refused = 0;

  static void* allocate(void* self, int64_t bytes) {
    Cache& cache = *static_cast<Cache*>(self);
    ++cache.taken;
    for (size_t i = 0; i < cache.unused.size(); ++i)
      if (cache.unused[i].bytes >= bytes && cache.may_use(cache.unused[i])) {
        void* const memory = cache.unused[i].memory;
        cache.unused.erase(cache.unused.begin() + static_cast<ptrdiff_t>(i));
        ++cache.reused;
        if (cache.fills_on) cache.use(cache.fills_on, memory);
        return memory;
      }
    void* const memory = cache.fake.allocate_own(MemoryKind::kDevice, bytes);
    cache.sizes[memory] = bytes;
    if (cache.fills_on) cache.use(cache.fills_on, memory);
    return memory;
  }
  static void free(void* self, void* memory) {
    Cache& cache = *static_cast<Cache*>(self);
    Unused& given = cache.unused.emplace_back(Unused{memory, cache.sizes.at(memory)});
    for (void* const queue : cache.queues[memory]) given.until.push_back(cache.fake.record(queue));
    cache.queues.erase(memory);
    if (const auto of = cache.unnoted.find(memory); of != cache.unnoted.end()) {
      cache.early += !cache.fake.has_happened(of->second);
      cache.unnoted.erase(of);
    }
    ++cache.given_back;
  }
  static int32_t note_use(void* self, void* memory, void* queue) {
    Cache& cache = *static_cast<Cache*>(self);
    if (cache.refuses) {
      cache.unnoted[memory] = cache.fake.record(queue);
      ++cache.refused;
      return 0;
    }
    cache.queues[memory].push_back(queue);
    return 1;
  }
  bool may_use(const Unused& of) const {
    return std::all_of(of.until.begin(), of.until.end(),
                       [&](const Device::Event& event) { return fake.has_happened(event); });
  }
  // Allocates an activation of the caller on its queue.
  void* activation(void* queue, int64_t bytes) {
    void* const memory = fake.allocate_own(MemoryKind::kDevice, bytes);
    sizes[memory] = bytes;
    use(queue, memory);
    return memory;
  }
  void use(void* queue, void* memory) {
    static const std::vector<std::byte> filling(4096 * 16, std::byte{7});
    fake.copy(queue, memory, filling.data(), std::min<int64_t>(sizes.at(memory), ssize(filling)));
  }
};

}  // namespace lowtide::testing
