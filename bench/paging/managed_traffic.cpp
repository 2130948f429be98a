// managed_traffic ELEMENTS PARAMS STEPS SHARE...: prints a line of JSON for each share of AdamW's float32 state that
// the device holds, with the bytes that steps move in managed memory (pages of 2 MiB) and in chunks of that size.
#include "support/managed_traffic.h"

#include <cstdio>
#include <cstdlib>

namespace {

using namespace lowtide::testing;

void print(const char* name, const Traffic& traffic) {
  std::printf("\"%s\": {\"state_bytes\": %lld, \"device_bytes\": %lld", name,
              static_cast<long long>(traffic.state_bytes), static_cast<long long>(traffic.device_bytes));
  const auto list = [](const char* way, const std::vector<int64_t>& bytes) {
    std::printf(", \"%s\": [", way);
    for (size_t i = 0; i < bytes.size(); ++i) std::printf("%s%lld", i ? ", " : "", static_cast<long long>(bytes[i]));
    std::printf("]");
  };
  list("in", traffic.in);
  list("out", traffic.out);
  std::printf("}");
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 5) {
    std::fprintf(stderr, "managed_traffic: wanted ELEMENTS PARAMS STEPS SHARE...\n");
    return 2;
  }
  TrafficCase c;
  c.elements = std::atoll(arguments[1]), c.params = std::atoi(arguments[2]), c.steps = std::atoi(arguments[3]);
  for (int i = 4; i < count; ++i) {
    const double share = std::atof(arguments[i]);
    // Two slots at least.
    c.device_bytes = std::max(static_cast<int64_t>(share * 8 * static_cast<double>(c.elements)), 2 * c.page_bytes);
    std::printf("{\"share\": %g, ", share);
    print("managed", managed_traffic(c, 1));
    std::printf(", ");
    print("streamed", streamed_traffic(c, 1));
    std::printf("}\n");
    std::fflush(stdout);
  }
}
