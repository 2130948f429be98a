#include "backend/sycl/host/sycl_backend.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <list>
#include <utility>

#include "backend/kernels/batch.h"
#include "backend/sycl/host/errors.h"
#include "backend/sycl/host/kernels.h"
#include "backend/sycl/host/pointers.h"
#include "backend/sycl/host/signs.h"
#include "backend/sycl/host/sycl_device.h"
#include "backend/sycl/host/device_memory.h"

namespace lowtide::sycl_host {
namespace {

constexpr uint32_t kNone = kernels::kNoItem;

class SyclBackend final : public Backend {
 public:
  SyclBackend(const sycl::context& context, const sycl::device& device)
      : target_(target_of(device)),
        late_(std::make_shared<LateErrors>()),
        own_(context, device, handler_of(late_), sycl::property::queue::in_order()),
        device_(own_, late_) {}

  const char* name() const override { return "sycl"; }
  const char* target() const override { return target_; }
  Device* device() override { return &device_; }
  std::vector<std::string> targets() const override {
    std::vector<std::string> names;
    for (const sycl::device& device : find_devices())
      if (std::find(names.begin(), names.end(), target_of(device)) == names.end())
        names.emplace_back(target_of(device));
    return names;
  }

  void step(std::span<const StepItem> items, int, bool ordered, void* stream) override {
    guarded("step", [&] {
      late_->throw_any();
      sycl::queue queue = queue_of(stream);
      DeviceContext& here = context_of(queue);
      for (size_t i = 0; i < items.size(); ++i) here.check(items[i], i);
      batch_.clear();
      batch_.add_steps(items, ordered);
      // All that can fail for want of memory or a kernel comes before the first launch.
      for (const kernels::Batch::Launch& part : batch_.launches()) {
        step_kernel(here, part);
        here.kernels.tables(part.codec);
      }
      Uploads::Buffer& buffer = upload(queue, here, batch_.bytes());
      for (const kernels::Batch::Launch& part : batch_.launches())
        if (part.units)
          buffer.used =
              launch(queue, step_kernel(here, part), part.units, batch_.items(buffer.device.get(), part),
                     batch_.starts(buffer.device.get(), part), part.count, part.units, here.kernels.tables(part.codec));
    });
  }

  void norms(std::span<const StepItem> items, int, std::span<BlockNorms> out, void* stream) override {
    guarded("norms", [&] {
      late_->throw_any();
      sycl::queue queue = queue_of(stream);
      DeviceContext& here = context_of(queue);
      for (size_t i = 0; i < items.size(); ++i) here.check(items[i], i);
      batch_.clear();
      batch_.add_steps(items, false);
      for (const kernels::Batch::Launch& part : batch_.launches()) {
        here.kernels.norms(part.rule, part.codec);
        here.kernels.tables(part.codec);
      }
      if (out.empty()) return;
      const size_t at = batch_.bytes();  // items are aligned as norms are
      Uploads::Buffer& buffer = upload(
          queue, here, at, [](std::byte*) {}, out.size_bytes());
      auto* there = reinterpret_cast<BlockNorms*>(buffer.device.get() + at);
      for (const kernels::Batch::Launch& part : batch_.launches()) {
        if (part.units)
          buffer.used = launch(queue, here.kernels.norms(part.rule, part.codec), part.units,
                               batch_.items(buffer.device.get(), part), batch_.starts(buffer.device.get(), part),
                               part.count, part.units, here.kernels.tables(part.codec), there);
        there += part.units;
      }
      buffer.used = queue.memcpy(buffer.host.get() + at, buffer.device.get() + at, out.size_bytes());
      wait(buffer.used);
      batch_.take_norms(reinterpret_cast<const BlockNorms*>(buffer.host.get() + at), out);
    });
  }

  int64_t first_nonfinite(std::span<const StepItem> items, int, void* stream) override {
    return guarded("first_nonfinite", [&]() -> int64_t {
      LT_REQUIRE(items.size() < kNone, "got %zu parameters, wanted fewer than 2^32 - 1", items.size());
      sycl::queue queue = queue_of(stream);
      DeviceContext& here = context_of(queue);
      for (size_t i = 0; i < items.size(); ++i) here.check.gradient(items[i], i);
      batch_.clear();
      batch_.begin_launch(0, 0);
      for (size_t i = 0; i < items.size(); ++i) batch_.add(items[i], static_cast<int64_t>(i));
      const kernels::Batch::Launch& part = batch_.launches()[0];
      if (part.units == 0) return -1;
      const size_t at = batch_.bytes();
      const sycl::kernel& kernel = here.kernels.first_nonfinite();
      Uploads::Buffer& buffer =
          upload(queue, here, at + sizeof kNone, [&](std::byte* to) { std::memcpy(to + at, &kNone, sizeof kNone); });
      buffer.used = launch(queue, kernel, part.units, batch_.items(buffer.device.get(), part),
                           batch_.starts(buffer.device.get(), part), part.count, part.units,
                           reinterpret_cast<uint32_t*>(buffer.device.get() + at));
      buffer.used = queue.memcpy(buffer.host.get() + at, buffer.device.get() + at, sizeof kNone);
      wait(buffer.used);
      uint32_t first;
      std::memcpy(&first, buffer.host.get() + at, sizeof first);
      return first == kNone ? -1 : static_cast<int64_t>(first);
    });
  }

  void decode(const CodecItem& item, void* stream) override {
    guarded("decode", [&] { convert(item, stream, &Kernels::decode); });
  }
  void encode(const CodecItem& item, void* stream) override {
    guarded("encode", [&] { convert(item, stream, &Kernels::encode); });
  }

  void pack_signs(std::span<const SignItem> items, int, void* stream) override {
    with_context("pack_signs", items, stream, [&](sycl::queue& queue, DeviceContext& here) {
      for (const SignItem& item : items) sycl_host::pack_signs(queue, here.kernels, item);
    });
  }
  void unpack_signs(std::span<const SignItem> items, int, void* stream) override {
    with_context("unpack_signs", items, stream, [&](sycl::queue& queue, DeviceContext& here) {
      for (const SignItem& item : items) sycl_host::unpack_signs(queue, here.kernels, item);
    });
  }
  void vote_signs(const VoteItem& item, int, void* stream) override {
    with_context("vote_signs", std::span(&item, 1), stream, [&](sycl::queue& queue, DeviceContext& here) {
      sycl_host::vote_signs(queue, here.kernels, here.uploads, item);
    });
  }
  void count_signs(const CountItem& item, int, void* stream) override {
    with_context("count_signs", std::span(&item, 1), stream, [&](sycl::queue& queue, DeviceContext& here) {
      sycl_host::count_signs(queue, here.kernels, here.uploads, item);
    });
  }
  void apply_signs(std::span<const ApplyItem> items, int, void* stream) override {
    with_context("apply_signs", items, stream, [&](sycl::queue& queue, DeviceContext& here) {
      batch_.clear();
      batch_.begin_launch(0, 0);
      for (const ApplyItem& item : items) batch_.add(item);
      const kernels::Batch::Launch& part = batch_.launches()[0];
      if (part.units == 0) return;
      const sycl::kernel& kernel = here.kernels.apply_signs();
      Uploads::Buffer& buffer = upload(queue, here, batch_.bytes());
      buffer.used = launch(queue, kernel, part.units, batch_.items(buffer.device.get(), part),
                           batch_.starts(buffer.device.get(), part), part.count, part.units);
    });
  }
  void feedback(std::span<const FeedbackItem> items, int, void* stream) override {
    with_context("feedback", items, stream, [&](sycl::queue& queue, DeviceContext& here) {
      for (const FeedbackItem& item : items) sycl_host::feedback(queue, here.kernels, here.uploads, item);
    });
  }

 private:
  // The parts that belong to one device of one context.
  struct DeviceContext {
    sycl::context context;
    sycl::device device;
    Kernels& kernels;
    Uploads uploads;
    PointerCheck check;
    DeviceContext(const sycl::context& c, const sycl::device& d)
        : context(c), device(d), kernels(kernels_of(c, d)), uploads(UploadMemory{c, d}), check(c, d) {}
  };

  sycl::queue queue_of(void* stream) const {
    if (!stream) return own_;
    sycl::queue queue = *static_cast<sycl::queue*>(stream);
    require_in_order(queue);
    return queue;
  }

  DeviceContext& context_of(const sycl::queue& queue) {
    const sycl::context context = queue.get_context();
    const sycl::device device = queue.get_device();
    for (DeviceContext& here : contexts_)
      if (here.context == context && here.device == device) return here;
    return contexts_.emplace_back(context, device);
  }

  static const sycl::kernel& step_kernel(DeviceContext& here, const kernels::Batch::Launch& part) {
    return part.ballot ? here.kernels.ballot(part.rule, part.codec) : here.kernels.step(part.rule, part.codec);
  }

  // queue_signs(queue, here), all items being checked.
  template <class Item, class Fn>
  void with_context(const char* what, std::span<const Item> items, void* stream, Fn&& queue_signs) {
    guarded(what, [&] {
      late_->throw_any();
      for (const Item& item : items) check(item);
      sycl::queue queue = queue_of(stream);
      DeviceContext& here = context_of(queue);
      for (size_t i = 0; i < items.size(); ++i) here.check(items[i], i);
      queue_signs(queue, here);
    });
  }

  // Queues the copy of the batch, and of what `more` writes behind it, to a buffer's device memory. room: bytes behind
  // them, for results.
  template <class Fn>
  Uploads::Buffer& upload(sycl::queue& queue, DeviceContext& here, size_t bytes, Fn&& more, size_t room = 0) {
    Uploads::Buffer& buffer = here.uploads.acquire(bytes + room);
    batch_.write(buffer.host.get(), buffer.device.get());
    more(buffer.host.get());
    if (bytes) buffer.used = queue.memcpy(buffer.device.get(), buffer.host.get(), bytes);
    return buffer;
  }
  Uploads::Buffer& upload(sycl::queue& queue, DeviceContext& here, size_t bytes) {
    return upload(queue, here, bytes, [](std::byte*) {});
  }

  void convert(const CodecItem& item, void* stream, const sycl::kernel& (Kernels::*pick)(int, bool)) {
    sycl::queue queue = queue_of(stream);
    DeviceContext& here = context_of(queue);
    here.check(item);
    batch_.clear();
    batch_.begin_launch(0, item.codec);
    batch_.add(item);
    const kernels::Batch::Launch& part = batch_.launches()[0];
    if (part.units == 0) return;
    const sycl::kernel& kernel = (here.kernels.*pick)(item.codec, item.is_signed);
    const void* tables = here.kernels.tables(item.codec);
    Uploads::Buffer& buffer = upload(queue, here, batch_.bytes());
    buffer.used = launch(queue, kernel, part.units, batch_.items(buffer.device.get(), part), part.units, tables);
    wait(buffer.used);
  }

  void wait(sycl::event& event) {
    event.wait();
    late_->throw_any();
  }

  const char* target_;
  std::shared_ptr<LateErrors> late_;
  sycl::queue own_;
  SyclDevice device_;
  std::list<DeviceContext> contexts_;
  kernels::Batch batch_;  // kept between calls for its memory
};

}  // namespace

std::vector<sycl::device> find_devices() {
  std::vector<sycl::device> found;
  for (const sycl::device& device : sycl::device::get_devices())
    if (device.has(sycl::aspect::usm_device_allocations) && device.has(sycl::aspect::usm_host_allocations) &&
        device.has(sycl::aspect::online_compiler))
      found.push_back(device);
  std::stable_sort(found.begin(), found.end(),
                   [](const sycl::device& a, const sycl::device& b) { return a.is_gpu() > b.is_gpu(); });
  return found;
}

bool gives_cpu_bits(const sycl::device& device) {
  const auto config = device.get_info<sycl::info::device::single_fp_config>();
  const auto has = [&](sycl::info::fp_config bit) {
    return std::find(config.begin(), config.end(), bit) != config.end();
  };
  return has(sycl::info::fp_config::denorm) && has(sycl::info::fp_config::round_to_nearest) &&
         has(sycl::info::fp_config::correctly_rounded_divide_sqrt);
}

const char* target_of(const sycl::device& device) {
  return device.is_gpu() ? "gpu" : device.is_cpu() ? "cpu" : "other";
}

std::unique_ptr<Backend> make_backend(const std::string& target, const sycl::queue* queue) {
  const std::string kind = target.substr(0, target.find(':'));
  size_t number = 0;
  if (kind.size() < target.size()) {
    const char *const first = target.data() + kind.size() + 1, *const end = target.data() + target.size();
    const auto [rest, error] = std::from_chars(first, end, number);
    LT_REQUIRE(error == std::errc() && rest == end && !queue,
               "got SYCL target '%s'%s, wanted a number behind ':', and no queue", target.c_str(),
               queue ? " and a queue" : "");
  }
  LT_REQUIRE(kind.empty() || kind == "gpu" || kind == "cpu",
             "got SYCL target '%s', wanted gpu, cpu, or none for the best", target.c_str());
  return guarded("opening a device", [&]() -> std::unique_ptr<Backend> {
    std::vector<sycl::device> found;  // of one platform, unless there is a queue: drivers may list a GPU twice
    for (const sycl::device& device : find_devices()) {
      if (!(kind.empty() || kind == target_of(device))) continue;
      if (queue && device == queue->get_device()) return std::make_unique<SyclBackend>(queue->get_context(), device);
      if (found.empty() ||
          (device.get_platform() == found[0].get_platform() && target_of(device) == target_of(found[0])))
        found.push_back(device);
    }
    LT_REQUIRE(!queue, "got a queue of '%s', wanted one of a %s that runs SPIR-V kernels",
               queue->get_device().get_info<sycl::info::device::name>().c_str(),
               kind.empty() ? "device" : (kind + " device").c_str());
    if (number < found.size())
      return std::make_unique<SyclBackend>(sycl::queue(found[number]).get_context(), found[number]);
    LT_REQUIRE(found.empty(), "got SYCL target '%s', wanted a number below %zu, for there are so many devices",
               target.c_str(), found.size());
    fail(ErrorKind::kUnsupported,
         "the SYCL runtime finds no %s; install its driver (a CPU's: pip install intel-opencl-rt)",
         kind.empty() ? "device that runs SPIR-V kernels" : (kind + " device").c_str());
  });
}

}  // namespace lowtide::sycl_host
