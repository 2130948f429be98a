// Claim: data, results and errors cross the border between the library and a plug-in unchanged and uncopied, whichever
// compilers and C++ libraries the two are of.
//
//     border_test PLUGIN        exit status 0: it holds
//
// Compiled with the library's own sources once for each C++ library (CMakeLists.txt), of which gtest has one only.
#include <dlfcn.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <numeric>
#include <string>
#include <vector>

#include "backend/plugin.h"
#include "backend/plugin_backend.h"
#include "border/echo.h"
#include "lowtide/error.h"

namespace {

std::atomic<int64_t> allocations = 0;
int failures = 0;

#define CHECK(...)                                                          \
  do {                                                                      \
    if (!(__VA_ARGS__)) {                                                   \
      std::printf("%s:%d: not so: %s\n", __FILE__, __LINE__, #__VA_ARGS__); \
      ++failures;                                                           \
    }                                                                       \
  } while (false)

}  // namespace

// The plug-in's as well: a program's come first.
void* operator new(size_t bytes) {
  ++allocations;
  if (void* const memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace lowtide::testing {
namespace {

void* const kStream = reinterpret_cast<void*>(0x1234);
const Seen* seen;

// act() throws what the plug-in throws for `number`.
template <class Act>
void check_thrown(int64_t number, Act&& act) {
  const char* text = "nothing";
  std::string words;
  int kind = 0, os_error = 0;
  try {
    act();
  } catch (const Error& error) {
    words = error.what(), kind = static_cast<int>(error.kind()), os_error = error.os_error();
    text = words.c_str();
  } catch (const std::bad_alloc&) {
    kind = -1;
  }
  const bool known = number > 0;
  CHECK(kind == (known || number == -1 ? number : static_cast<int>(ErrorKind::kInternal)));
  CHECK(os_error == (known ? 28 : 0));
  if (number == -3) CHECK(std::strstr(text, "not a std::exception"));
  if (known || number == -2) CHECK(words == LT_ECHO_TEXT);
}

template <class Act>
void check_all_thrown(Act&& act) {
  for (const int64_t number : {1, 10, 20, 30, 40, 90, -1, -2, -3}) check_thrown(number, [&] { act(number); });
}

bool saw(const char* call, const void* items, size_t count, int threads) {
  return !std::strcmp(seen->call, call) && seen->items == items && seen->count == count && seen->threads == threads &&
         seen->stream == kStream;
}

void check_steps(Backend& backend) {
  const Layout layout = Layout::make(std::array<int64_t, 3>{5, 4, 3}, std::array<int64_t, 3>{1, 100, 1000});
  CHECK(layout.sizes.size() == 3);
  BallotTarget ballot{.first = 1000};
  std::vector<StepItem> items(10000);
  for (StepItem& item : items) {
    item.param_layout = &layout, item.ballot = &ballot;
    item.rule = 1, item.key[1][1] = 20, item.origin.row_stride = 300;
  }
  const int64_t sum = 10000 * (5 * 1 + 4 * 100 + 3 * 1000 + 1 + 20 + 300 + 1000);
  items[0].rule = 0;
  const std::shared_ptr<Guard> guard = backend.queue_guard(items, kStream);
  items[0].rule = 1;
  CHECK(guard->first() == 7 && *guard->word() == 11);
  for (StepItem& item : items) item.guard = own_guard(guard.get());

  backend.step(items, 3, true, kStream);
  CHECK(saw("step", items.data(), items.size(), 3) && seen->flag && seen->sum == sum && seen->own_guard);
  backend.step(items, 3, false, kStream);
  CHECK(!seen->flag);
  CHECK(backend.first_nonfinite(items, 2, kStream) == int64_t{1} << 40);
  CHECK(saw("first_nonfinite", items.data(), items.size(), 2));
  std::vector<BlockNorms> norms(3);
  backend.norms(items, 4, norms, kStream);
  CHECK(saw("norms", items.data(), items.size(), 4) && norms[2].sum[1] == 2 && norms[2].unit[1] == 4);
  TermSums sums;
  sums.below.add(2, 0);
  backend.sum_terms(items, 5, sums, kStream);
  CHECK(saw("sum_terms", items.data(), items.size(), 5) && sums.below.value() == 5 && !sums.are_finite());
  CHECK(backend.norm_sums(int64_t{1} << 40) == reinterpret_cast<kernels::NormSums*>(uintptr_t{1} << 40));
  backend.add_norms(items, kStream);
  CHECK(saw("add_norms", items.data(), items.size(), 0));

  const std::shared_ptr<RecordedStep> recorded = backend.record_step(items, false, kStream);
  recorded->prepare(items, kStream);
  CHECK(saw("prepare", items.data(), items.size(), 0) && seen->own_guard);
  CHECK(recorded->all_prepared() && !recorded->was_replayed());
  CHECK(seen->live == 3);
  CHECK(!backend.queue_guard({}, kStream));

  const int64_t before = allocations;
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < 100; ++i) backend.step(std::span(items).first(1), 1, false, kStream);
  const std::chrono::duration<double, std::nano> each = (std::chrono::steady_clock::now() - start) / 100;
  backend.step(items, 1, false, kStream);
  CHECK(allocations == before);
  std::printf("steps of 1 and of 10000 items: %lld allocations, %.0f ns a call\n",
              static_cast<long long>(allocations - before), each.count());

  check_all_thrown([&](int64_t number) {
    items[0].codec = static_cast<int>(number);
    backend.step(items, 1, false, kStream);
  });
  check_all_thrown([&](int64_t number) {
    items[0].codec = static_cast<int>(number);
    recorded->prepare(items, kStream);
  });
  items[0].codec = 0;
  check_all_thrown([&](int64_t number) {
    items[0].rule = static_cast<int>(number);
    backend.queue_guard(items, kStream)->first();
  });
  try {
    backend.record_step(items, true, kStream);
    CHECK(false);
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::kUnsupported && std::strstr(error.what(), "echo backend cannot record steps"));
  }
}

void check_signs(Backend& backend) {
  const std::array<std::byte, 3> bytes{std::byte{1}, std::byte{20}, std::byte{200}};
  const std::array<const std::byte*, 3> rows{&bytes[0], &bytes[1], &bytes[2]};
  const std::array<uint32_t, 2> weights{3000, 40000};
  const std::array<uint16_t, 1> scale{500};
  const std::array<const uint16_t*, 2> scales{scale.data(), scale.data()};
  const std::array<std::byte*, 7> planes{};
  const VoteItem vote{.ballots = rows, .weights = weights, .presence = std::span(rows).first(1)};
  backend.vote_signs(vote, 1, kStream);
  CHECK(saw("vote_signs", &vote, 1, 1) && seen->sum == 221 + 43000 + 1);
  const CountItem count{.ballots = std::span(rows).last(1), .weights = weights, .planes = planes};
  backend.count_signs(count, 2, kStream);
  CHECK(saw("count_signs", &count, 1, 2) && seen->sum == 200 + 43000 + 7);
  const std::vector<FeedbackItem> all(3, FeedbackItem{.ballots = rows, .ballot_scales = scales, .weights = weights});
  backend.feedback(all, 3, kStream);
  CHECK(saw("feedback", all.data(), 3, 3) && seen->sum == 3 * (221 + 1000 + 43000));
  const std::vector<SignItem> signs(5);
  backend.pack_signs(signs, 4, kStream);
  CHECK(saw("pack_signs", signs.data(), 5, 4));
  backend.unpack_signs(signs, 5, kStream);
  CHECK(saw("unpack_signs", signs.data(), 5, 5));
  const std::vector<ApplyItem> applied(6);
  backend.apply_signs(applied, 6, kStream);
  CHECK(saw("apply_signs", applied.data(), 6, 6));
  const CodecItem codec;
  backend.decode(codec, kStream);
  CHECK(saw("decode", &codec, 1, 0));
  backend.encode(codec, kStream);
  CHECK(saw("encode", &codec, 1, 0));
}

void check_device(Device& device) {
  const Device::Limits limits = device.limits();
  CHECK(limits.total == 1 && limits.free == 2 && limits.largest_allocation == 3);
  void* const there = device.make_queue();
  CHECK(there && device.allocate(MemoryKind::kPinned, 0) == there && !device.allocate(MemoryKind::kDevice, 0));
  check_all_thrown([&](int64_t number) { device.allocate(MemoryKind::kDevice, number); });
  device.free(there);
  CHECK(seen->items == there);
  device.copy(kStream, there, &limits, 9);
  CHECK(saw("copy", &limits, 9, 0) && seen->flag);
  device.fill(kStream, there, 0xabcdef01, 4, int64_t{1} << 40);
  CHECK(seen->sum == 0xabcdef01 && seen->threads == 4 && seen->count == size_t{1} << 40);
  device.prefetch(kStream, &limits, 1);
  CHECK(seen->items == &limits);
  const int live = seen->live;
  {
    const Device::Event event = device.record(kStream);
    CHECK(event && seen->live == live + 1 && !device.has_happened(event));
    device.wait(kStream, event);
    const void* const inside = seen->items;
    CHECK(inside);
    device.host_wait(nullptr);
    CHECK(!seen->items);
    device.host_wait(event);
    CHECK(seen->items == inside);
  }
  CHECK(seen->live == live && !device.record(nullptr) && device.has_happened(nullptr));
  CHECK(device.steps_pinned() && !device.pages_shared());
  CHECK(device.is_capturing(there) && !device.is_capturing(kStream) && !device.is_lost());
  CHECK(device.describe() == LT_ECHO_TEXT);
  device.use_allocator({there, [](void* context, int64_t bytes) -> void* { return bytes == 5 ? context : nullptr; }});
  CHECK(seen->items == there);
  device.trust_memory();
  CHECK(seen->call == std::string("trust_memory"));
}

int run(const char* path) {
  const Plugin plugin = load_plugin(path, "echo", "build it");
  if (!plugin.exports) {
    std::printf("%s\n", plugin.missing.c_str());
    return 1;
  }
  void* const library = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
  seen = reinterpret_cast<const Seen* (*)()>(dlsym(library, "lt_echo_seen"))();
  std::string text;
  CHECK(list_devices(*plugin.exports, &text) == 3 && text == LT_ECHO_TEXT);
  check_all_thrown([&](int64_t number) { open_plugin(*plugin.exports, "", reinterpret_cast<void*>(number)); });
  {
    const std::unique_ptr<Backend> backend = open_plugin(*plugin.exports, LT_ECHO_TEXT, nullptr);
    CHECK(!std::strcmp(backend->name(), "echo") && !std::strcmp(backend->target(), LT_ECHO_TEXT));
    CHECK(backend->targets() == std::vector<std::string>{"one", LT_ECHO_TEXT});
    CHECK(backend->device());
    CHECK(!open_plugin(*plugin.exports, "none", nullptr)->device());
    check_steps(*backend);
    check_signs(*backend);
    check_device(*backend->device());
    CHECK(seen->live == 1);
  }
  CHECK(seen->live == 0);
  // Every function is there: the table holds pointers alone.
  std::array<void*, sizeof(border::Table) / sizeof(void*)> functions;
  std::memcpy(functions.data(), plugin.exports->table, sizeof(border::Table));
  for (const void* const function : functions) CHECK(function);
  std::printf("%zu functions, %d of the claims do not hold\n", functions.size(), failures);
  return failures ? 1 : 0;
}

}  // namespace
}  // namespace lowtide::testing

int main(int count, char** arguments) {
  if (count != 2) {
    std::printf("usage: %s PLUGIN\n", arguments[0]);
    return 2;
  }
  return lowtide::testing::run(arguments[1]);
}
