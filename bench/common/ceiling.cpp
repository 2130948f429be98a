// The memory ceiling of a step: the same bytes read and written with trivial arithmetic, so that a step's GB/s can be set
// against what this machine does for that mix of streams at this moment. Compiled on the fly for the machine at hand.
#include <cstddef>
#include <cstdint>
#include <thread>

namespace {

// Streams a[i] <- a[i] + g[i] for `updated` arrays and reads `read` arrays; sizes in 64-byte lines per array, so that
// arrays of different element sizes advance in step.
struct Stream {
  std::uint32_t* data;
  std::size_t words_per_unit;  // words (4 bytes) per unit of 64 elements
  bool write;
};

void sweep(const Stream* streams, int n, std::size_t first, std::size_t last, std::uint32_t* sink) {
  std::uint32_t sum = 0;
  for (std::size_t unit = first; unit < last; ++unit) {
    for (int s = 0; s < n; ++s) {
      std::uint32_t* p = streams[s].data + unit * streams[s].words_per_unit;
      const std::size_t words = streams[s].words_per_unit;
      if (streams[s].write)
        for (std::size_t i = 0; i < words; ++i) p[i] += 1;
      else
        for (std::size_t i = 0; i < words; ++i) sum += p[i];
    }
  }
  *sink += sum;
}

}  // namespace

// elements: a multiple of 64. bytes[s]: bytes per element of stream s (1, 2 or 4); write[s]: update it in place.
extern "C" void ceiling(void** data, const int* bytes, const int* write, int n, std::size_t elements, int threads) {
  Stream streams[8];
  for (int s = 0; s < n; ++s)
    streams[s] = {static_cast<std::uint32_t*>(data[s]), static_cast<std::size_t>(16 * bytes[s]), write[s] != 0};
  const std::size_t units = elements / 64;
  std::uint32_t sinks[2][16] = {};
  if (threads < 2) {
    sweep(streams, n, 0, units, sinks[0]);
  } else {
    std::thread other(sweep, streams, n, units / 2, units, sinks[1]);
    sweep(streams, n, 0, units / 2, sinks[0]);
    other.join();
  }
  static volatile std::uint32_t keep;
  keep = sinks[0][0] + sinks[1][0];
}
