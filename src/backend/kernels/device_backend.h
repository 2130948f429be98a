// The operations that device backends share: they check items, lay them out for kernels, send the bytes to the device,
// and queue kernels there. Each backend implements the parts that its device needs.
#pragma once

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>
#include <span>
#include <string>

#include "backend/gradient_reader.h"
#include "backend/kernels/batch.h"
#include "backend/kernels/sign_items.h"
#include "backend/term_sums.h"
#include "core/error.h"

namespace lowtide::kernels {

// The target name of a device backend: "<kind>", with ":<number>" for a particular device.
struct Target {
  std::string kind;
  int number = -1;      // -1 if absent
  bool is_well = true;  // false if the text after ':' is not a number
};

inline Target parse_target(const std::string& text) {
  Target target{text.substr(0, text.find(':'))};
  if (target.kind.size() == text.size()) return target;
  const char *const first = text.data() + target.kind.size() + 1, *const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(first, end, target.number);
  target.is_well = error == std::errc() && rest == end && target.number >= 0;
  return target;
}

// Self: the backend. Self::with_call(doing, stream, can_be_captured, work) runs work(call) for one call on a stream;
// can_be_captured: queued work reads no host memory, so it may be recorded for replays. A call has
//   pointers                          the PointerCheck of its device
//   tables(codec)                     the codec's tables on the device, nullptr if it has none
//   upload(bytes, write, room)        bytes that write(host, device) makes, copied to device(), with room for results
//   behind them; host() is the same place on the host, and at<T>(offset)
//   download(host, device, bytes)     copies results, and waits for them
//   wait()                            for all queued work
//   terms(launch), sums(units), merge_sums(), convert(encodes, item, units), apply(units), pack(item), unpack(item),
//   vote(signs), vote_presence(signs), count(signs), feedback(signs), fill(bytes)
//                                     a kernel, found or refused now; calling it with its arguments queues it
template <class Self>
class DeviceBackend : public Backend, public GradientReader {
 public:
  // unit_blocks: the number of blocks in a unit of work of a step.
  explicit DeviceBackend(int64_t unit_blocks = 1) : steps_(unit_blocks) {}

  GradientReader* gradient_reader() override { return this; }

  Sums read_gradients(std::span<const StepItem> items, void* stream) override {
    Sums found;
    self().with_call("reading gradients for their norm", stream, false, [&](auto& call) {
      sum_gradients(call, items, [&](const Sums* sums, std::byte* host) {
        call.download(host, reinterpret_cast<const std::byte*>(sums), sizeof found);
        std::memcpy(&found, host, sizeof found);
      });
    });
    return found;
  }

  void sum_terms(std::span<const StepItem> items, int, TermSums& to, void* stream) override {
    self().with_call("sums over all parameters", stream, false, [&](auto& call) {
      check_pointers(call, items);
      steps_.clear();
      steps_.add_steps(items, false);
      // Everything that can fail for lack of memory or of a kernel comes before the first launch.
      for (const Batch::Launch& part : steps_.launches()) call.terms(part), call.tables(part.codec);
      const auto there = upload(call, steps_, kTermSums * kSumsRoom);
      auto* const parts = parts_at(there.device());
      auto* const sums = reinterpret_cast<Sums*>(parts + kTermSums);
      for (int i = 0; i < kTermSums; ++i) clear(call, parts[i]);
      for (const Batch::Launch& part : steps_.launches())
        if (part.units)
          call.terms(part)(steps_.items(there.device(), part), steps_.starts(there.device(), part), part.count,
                           part.units, call.tables(part.codec), parts);
      const auto merge = call.merge_sums();
      for (int i = 0; i < kTermSums; ++i) merge(parts + i, sums + i);
      std::byte* const host = there.host() + (reinterpret_cast<std::byte*>(sums) - there.device());
      call.download(host, reinterpret_cast<const std::byte*>(sums), kTermSums * sizeof(Sums));
      Sums found[kTermSums];
      std::memcpy(found, host, sizeof found);
      to.merge({exact(found[0]), exact(found[1]), exact(found[2])});
    });
  }

  void decode(const CodecItem& item, void* stream) override { convert("decode", false, item, stream); }
  void encode(const CodecItem& item, void* stream) override { convert("encode", true, item, stream); }

  void pack_signs(std::span<const SignItem> items, int, void* stream) override {
    for_each_checked("pack_signs", items, stream, true, [](auto& call, const SignItem& item) {
      if (item.count) call.pack(item)(device_item(item));
    });
  }
  void unpack_signs(std::span<const SignItem> items, int, void* stream) override {
    for_each_checked("unpack_signs", items, stream, true, [](auto& call, const SignItem& item) {
      if (item.count) call.unpack(item)(device_item(item));
    });
  }

  void vote_signs(const VoteItem& item, int, void* stream) override {
    for_each_checked("vote_signs", std::span(&item, 1), stream, false, [](auto& call, const VoteItem& vote) {
      if (vote.count == 0) return;
      const auto kernel = call.vote(vote.count);
      const auto of_presence = call.vote_presence(vote.count);
      const DeviceVote on_device = device_item(vote);
      Arguments arguments;
      const size_t vote_at = arguments.add(&on_device, sizeof on_device), ballots_at = arguments.add(vote.ballots),
                   weights_at = arguments.add_weights(vote.ballots, vote.weights),
                   presence_at = arguments.add(vote.presence);
      const auto there = upload(call, arguments);
      const auto* const at = there.template at<const DeviceVote>(vote_at);
      const auto* const weights = there.template at<const uint32_t>(weights_at);
      const auto presences = there.template at<Row>(presence_at);
      kernel(at, there.template at<Row>(ballots_at), weights, presences);
      if (on_device.result_presence) of_presence(at, weights, presences);
    });
  }

  void count_signs(const CountItem& item, int, void* stream) override {
    for_each_checked("count_signs", std::span(&item, 1), stream, false, [](auto& call, const CountItem& sum) {
      if (sum.count == 0) return;
      const DeviceVote vote = device_item(sum);
      const std::span<std::byte* const> never_reached = sum.planes.subspan(static_cast<size_t>(vote.planes));
      const auto kernel = call.count(sum.count);
      const int64_t plane_bytes = sign_bytes(sum.count);
      if (!never_reached.empty()) call.fill(plane_bytes);  // everything that can fail comes before the first launch
      Arguments arguments;
      const size_t vote_at = arguments.add(&vote, sizeof vote), ballots_at = arguments.add(sum.ballots),
                   weights_at = arguments.add_weights(sum.ballots, sum.weights), planes_at = arguments.add(sum.planes);
      const auto there = upload(call, arguments);
      kernel(there.template at<const DeviceVote>(vote_at), there.template at<Row>(ballots_at),
             there.template at<const uint32_t>(weights_at), there.template at<unsigned char* const>(planes_at));
      for (std::byte* const plane : never_reached) call.fill(plane_bytes)(bytes(plane), uint32_t{0}, plane_bytes);
    });
  }

  void apply_signs(std::span<const ApplyItem> items, int, void* stream) override {
    with_checked("apply_signs", items, stream, false, [&](auto& call) {
      batch_.clear();
      batch_.begin_launch(0, 0);
      for (const ApplyItem& item : items) batch_.add(item);
      const Batch::Launch& part = batch_.launches()[0];
      if (part.units == 0) return;
      const auto kernel = call.apply(part.units);
      const auto there = upload(call, batch_);
      kernel(batch_.items(there.device(), part), batch_.starts(there.device(), part), part.count, part.units);
    });
  }

  void feedback(std::span<const FeedbackItem> items, int, void* stream) override {
    for_each_checked("feedback", items, stream, false, [](auto& call, const FeedbackItem& item) {
      if (item.count == 0) return;
      const auto kernel = call.feedback(item.count);
      const void* const tables = item.codes ? call.tables(item.codec) : nullptr;
      const DeviceFeedback on_device = device_item(item);
      Arguments arguments;
      const size_t item_at = arguments.add(&on_device, sizeof on_device), ballots_at = arguments.add(item.ballots),
                   scales_at = arguments.add(item.ballot_scales),
                   weights_at = arguments.add_weights(item.ballots, item.weights);
      const auto there = upload(call, arguments);
      kernel(there.template at<const DeviceFeedback>(item_at), there.template at<Row>(ballots_at),
             there.template at<const uint16_t* const>(scales_at), there.template at<const uint32_t>(weights_at),
             tables);
    });
  }

 protected:
  template <class Call, class Item>
  static void check_pointers(Call& call, std::span<const Item> items) {
    for (size_t i = 0; i < items.size(); ++i) call.pointers(items[i], i);
  }

  // Checks and lays out items for kernels that read only their gradients.
  template <class Call>
  static void check_gradients(Call& call, std::span<const StepItem> items) {
    LT_REQUIRE(items.size() < kNoItem, "got %zu parameters, wanted fewer than 2^32 - 1", items.size());
    for (size_t i = 0; i < items.size(); ++i) call.pointers.gradient(items[i], i);
  }
  void add_gradients(std::span<const StepItem> items) {
    steps_.clear();
    steps_.begin_launch(0, 0);
    for (size_t i = 0; i < items.size(); ++i) steps_.add(items[i], static_cast<int64_t>(i));
  }

  // Queues reads of the gradients, and calls then(sums, host), which queues reads of the sums in device memory. `host`
  // is host memory of the same size that the device can write.
  template <class Call, class Then>
  void sum_gradients(Call& call, std::span<const StepItem> items, Then&& then) {
    check_gradients(call, items);
    add_gradients(items);
    const auto there = upload(call, steps_, kSumsRoom);
    then(queue_sums(call, there.device()), there.host() + steps_.bytes() + sizeof(SumParts));
  }
  // Does the same for a batch of gradients at `device`, which has room for the sums after it.
  static constexpr size_t kSumsRoom = sizeof(SumParts) + sizeof(Sums);
  template <class Call>
  Sums* queue_sums(Call& call, std::byte* device) {
    const Batch::Launch& part = steps_.launches()[0];
    static_assert(sizeof(SumParts) % alignof(Sums) == 0);
    const auto sum = call.sums(part.units);
    const auto merge = call.merge_sums();
    SumParts* const parts = parts_at(device);
    auto* const sums = reinterpret_cast<Sums*>(parts + 1);
    clear(call, *parts);
    if (part.units) sum(steps_.items(device, part), steps_.starts(device, part), part.count, part.units, parts);
    merge(parts, sums);
    return sums;
  }

  // Behind the batch; items have the alignment of sums.
  SumParts* parts_at(std::byte* device) const { return reinterpret_cast<SumParts*>(device + steps_.bytes()); }
  template <class Call>
  static void clear(Call& call, SumParts& parts) {
    const auto fill = call.fill(sizeof parts.limbs);
    const auto bytes_of = [](uint32_t* words) { return reinterpret_cast<unsigned char*>(words); };
    fill(bytes_of(parts.limbs[0]), uint32_t{0}, int64_t{sizeof parts.limbs});
    fill(bytes_of(&parts.least), ~uint32_t{0}, int64_t{sizeof parts.least});
  }
  static ExactSum exact(const Sums& of) {
    ExactSum::Limbs limbs;
    std::copy_n(of.limbs, limbs.size(), limbs.begin());
    ExactSum sum;
    sum.set_limbs(limbs);
    const auto largest = std::bit_cast<float>(of.largest);
    if (!std::isfinite(largest)) sum.add(largest, 0);
    return sum;
  }

  template <class Call>
  static auto upload(Call& call, Batch& batch, size_t room = 0) {
    return call.upload(
        batch.bytes(), [&](std::byte* host, std::byte* device) { batch.write(host, device); }, room);
  }
  template <class Call>
  static auto upload(Call& call, const Arguments& arguments) {
    const std::vector<std::byte>& all = arguments.all();
    return call.upload(
        all.size(), [&](std::byte* host, std::byte*) { std::memcpy(host, all.data(), all.size()); }, size_t{0});
  }

  // Kept between calls to reuse their memory. steps_ counts in units of unit_blocks, batch_ in blocks.
  Batch steps_, batch_;

 private:
  using Row = const unsigned char* const;

  Self& self() { return static_cast<Self&>(*this); }

  // Checks all items, then calls work(call).
  template <class Item, class Work>
  void with_checked(const char* doing, std::span<const Item> items, void* stream, bool can_be_captured, Work&& work) {
    for (const Item& item : items) check(item);
    self().with_call(doing, stream, can_be_captured, [&](auto& call) {
      check_pointers(call, items);
      work(call);
    });
  }
  // Calls work(call, item) for each item.
  template <class Item, class Work>
  void for_each_checked(const char* doing, std::span<const Item> items, void* stream, bool can_be_captured,
                        Work&& work) {
    with_checked(doing, items, stream, can_be_captured, [&](auto& call) {
      for (const Item& item : items) work(call, item);
    });
  }

  void convert(const char* doing, bool encodes, const CodecItem& item, void* stream) {
    self().with_call(doing, stream, false, [&](auto& call) {
      call.pointers(item);
      batch_.clear();
      batch_.begin_launch(0, item.codec);
      batch_.add(item);
      const Batch::Launch& part = batch_.launches()[0];
      if (part.units == 0) return;
      const auto kernel = call.convert(encodes, item, part.units);
      const void* const tables = call.tables(item.codec);
      {
        const auto there = upload(call, batch_);
        kernel(batch_.items(there.device(), part), part.units, tables);
      }
      call.wait();
    });
  }
};

}  // namespace lowtide::kernels
