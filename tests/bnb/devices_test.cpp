// Several devices: the number of a prefetch chooses the device, whose own queue it goes to.
#include "bnb/memory.h"
#include "core/error.h"
#include "support/test.h"

namespace lowtide::testing {
namespace {

struct Calls {
  int opened = 0, allocated = 0, freed = 0, filled = 0, waited = 0;
  std::vector<std::pair<const void*, int64_t>> prefetched;
};
std::map<int, Calls> calls;  // by device

constexpr int kDevices = 3;

class Recorder final : public Backend, public Device {
 public:
  explicit Recorder(Calls& to) : calls_(to) { ++calls_.opened; }

  const char* name() const override { return "recorder"; }
  std::vector<std::string> targets() const override { return {"test"}; }
  const char* target() const override { return "test"; }
  Device* device() override { return this; }
  void step(std::span<const StepItem>, int, bool, void*) override { ADD_FAILURE(); }
  void norms(std::span<const StepItem>, int, std::span<BlockNorms>, void*) override { ADD_FAILURE(); }
  int64_t first_nonfinite(std::span<const StepItem>, int, void*) override { return -1; }
  void decode(const CodecItem&, void*) override { ADD_FAILURE(); }
  void encode(const CodecItem&, void*) override { ADD_FAILURE(); }
  void pack_signs(std::span<const SignItem>, int, void*) override { ADD_FAILURE(); }
  void unpack_signs(std::span<const SignItem>, int, void*) override { ADD_FAILURE(); }
  void vote_signs(const VoteItem&, int, void*) override { ADD_FAILURE(); }
  void count_signs(const CountItem&, int, void*) override { ADD_FAILURE(); }
  void apply_signs(std::span<const ApplyItem>, int, void*) override { ADD_FAILURE(); }
  void feedback(std::span<const FeedbackItem>, int, void*) override { ADD_FAILURE(); }

  Limits limits() const override { return {}; }
  void* allocate(MemoryKind kind, int64_t bytes) override {
    EXPECT_EQ(kind, MemoryKind::kShared);
    ++calls_.allocated;
    return std::aligned_alloc(4096, static_cast<size_t>((bytes + 4095) / 4096 * 4096));
  }
  void free(void* memory) noexcept override {
    ++calls_.freed;
    std::free(memory);
  }
  void* make_queue() override { return nullptr; }
  void copy(void*, void*, const void*, int64_t) override { ADD_FAILURE(); }
  void fill(void* queue, void* to, uint32_t pattern, int pattern_bytes, int64_t count) override {
    EXPECT_EQ(queue, nullptr);
    ++calls_.filled;
    std::memset(to, static_cast<int>(pattern & 0xff), static_cast<size_t>(pattern_bytes * count));
  }
  void prefetch(void* queue, const void* shared, int64_t bytes) override {
    EXPECT_EQ(queue, nullptr) << "its own";
    calls_.prefetched.emplace_back(shared, bytes);
  }
  Event record(void*) override { return std::make_shared<int>(0); }
  void wait(void*, const Event&) override { ADD_FAILURE(); }
  void host_wait(const Event& event) override { calls_.waited += event != nullptr; }

 private:
  Calls& calls_;
};

std::unique_ptr<Backend> open_recorder(int number) {
  LT_REQUIRE(number < kDevices, "got device %d, wanted one below %d", number, kDevices);
  return std::make_unique<Recorder>(calls[number]);
}

std::unique_ptr<Backend> refuse(int) { fail(ErrorKind::kUnsupported, "not here"); }

TEST(BnbDevices, WithoutADeviceMemoryIsTheHosts) {
  static constexpr bnb::OpenDevice* kNone[] = {refuse, refuse};
  bnb::Memory memory(kNone);
  EXPECT_EQ(memory.place(), "host: not here; not here");
  memory.free(memory.allocate(1));
}

TEST(BnbDevices, TheNumberOfAPrefetchChooses) {
  calls.clear();
  static constexpr bnb::OpenDevice* kBackends[] = {refuse, open_recorder, refuse};
  bnb::Memory memory(kBackends);
  EXPECT_EQ(memory.place(), "recorder: test");
  auto* data = static_cast<std::byte*>(memory.allocate(1000));
  for (const int number : {2, 0, 1, 2, -1})
    memory.prefetch(data + number + 1, 10 + static_cast<size_t>(number + 1), number);
  memory.prefetch(data, 0, 1);
  EXPECT_THROW(memory.prefetch(data, 1, kDevices), Error);
  const std::vector<std::pair<const void*, int64_t>> two{{data + 3, 13}, {data + 3, 13}}, one{{data + 2, 12}},
      zero{{data + 1, 11}};
  EXPECT_EQ(calls[0].prefetched, zero);
  EXPECT_EQ(calls[1].prefetched, one);
  EXPECT_EQ(calls[2].prefetched, two);
  for (int number = 0; number < kDevices; ++number) EXPECT_EQ(calls[number].opened, 1) << "once, however often used";
  memory.fill(data, 1, 1, 1000);
  const int before = calls[1].waited;
  memory.free(data);
  EXPECT_EQ(calls[1].waited, before + 1) << "a prefetch may be under way on each device";
  EXPECT_EQ(calls[0].allocated, 1);
  EXPECT_EQ(calls[0].freed, 1);
  EXPECT_EQ(calls[0].filled, 2);
  figure("{} devices, 4 prefetches, each on its own", kDevices);
}

}  // namespace
}  // namespace lowtide::testing
