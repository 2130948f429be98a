#include "backend/sycl/host/sycl_backend.h"

#include <algorithm>
#include <cstring>
#include <list>

#include "backend/kernels/device_backend.h"
#include "backend/sycl/host/errors.h"
#include "backend/sycl/host/kernels.h"
#include "backend/sycl/host/sycl_device.h"
#include "backend/sycl/host/device_memory.h"

namespace lowtide::sycl_host {
namespace {

constexpr uint32_t kNone = kernels::kNoItem;

// The parts that belong to one device of one context.
struct DeviceContext {
  sycl::context context;
  sycl::device device;
  Kernels& kernels;
  Uploads uploads;
  PointerCheck pointers;
  DeviceContext(const sycl::context& c, const sycl::device& d)
      : context(c), device(d), kernels(kernels_of(c, d)), uploads(UploadMemory{c, d}), pointers(c, d) {}
};

// One call on a queue, as DeviceBackend requires.
struct Call {
  sycl::queue queue;
  DeviceContext& here;
  LateErrors& late;
  PointerCheck& pointers = here.pointers;
  sycl::event last = {};  // the last event queued

  const void* tables(int codec) { return here.kernels.tables(codec); }
  template <class Write>
  Upload upload(size_t bytes, Write&& write, size_t room) {
    return Upload(queue, here.uploads, last, bytes, write, room);
  }
  void download(std::byte* host, const std::byte* device, size_t bytes) {
    last = queue.memcpy(host, device, bytes);
    wait();
  }
  void wait() {
    last.wait();
    late.throw_any();
  }

  // Queues kernel(arguments ...) in `groups` groups.
  auto queued(const sycl::kernel& kernel, int64_t groups) {
    return [this, &kernel, groups](auto... arguments) { last = launch(queue, kernel, groups, arguments...); };
  }
  auto step(const kernels::Batch::Launch& part) {
    return queued(here.kernels.of_rule(part.ballot ? "ballot" : "step", part.rule, part.codec), part.units);
  }
  auto norms(const kernels::Batch::Launch& part) {
    return queued(here.kernels.of_rule("norms", part.rule, part.codec), part.units);
  }
  auto terms(const kernels::Batch::Launch& part) {
    return queued(here.kernels.of_rule("terms", part.rule, part.codec), groups_for(32 * part.units));
  }
  auto first_nonfinite(const kernels::Batch::Launch& part) {
    return queued(here.kernels.find("aux", "first_nonfinite"), part.units);
  }
  auto convert(bool encodes, const CodecItem& item, int64_t units) {
    return queued(here.kernels.of_codec(encodes ? "encode" : "decode", item.codec, item.is_signed), units);
  }
  auto sums(int64_t units) { return queued(here.kernels.find("sums", "sum_squares"), groups_for(32 * units)); }
  auto merge_sums() { return queued(here.kernels.find("sums", "merge_sums"), 1); }
  auto apply(int64_t units) { return queued(here.kernels.find("apply", "apply"), units); }
  // Each sub-group takes kSignWordsAtOnce words of 32 signs.
  auto pack(const SignItem& item) {
    return queued(here.kernels.of_type("pack", item.dtype), groups_of_members(item, 32 * kernels::kSignWordsAtOnce));
  }
  auto unpack(const SignItem& item) {
    return queued(here.kernels.of_type("unpack", item.dtype), groups_of_members(item, 32));
  }
  // Each work-item takes one word.
  auto vote(int64_t signs) { return queued(here.kernels.find("vote", "vote"), groups_for((signs + 31) / 32)); }
  auto vote_presence(int64_t signs) {
    return queued(here.kernels.find("vote", "vote_presence"), groups_for(presence_bytes(signs)));
  }
  auto count(int64_t signs) { return queued(here.kernels.find("vote", "count"), groups_for((signs + 31) / 32)); }
  auto feedback(int64_t signs) {
    const int64_t blocks = (signs + kFeedbackSigns - 1) / kFeedbackSigns;
    return queued(here.kernels.find("feedback", "feedback"), groups_for(blocks * kernels::kFeedbackLanes));
  }
  auto fill(int64_t bytes) { return queued(here.kernels.find("fill", "fill"), groups_for(bytes / 4 + 1)); }

  // Returns the number of groups for sub-groups of 32 that take `signs` signs each.
  static int64_t groups_of_members(const SignItem& item, int64_t signs) {
    return groups_for(32 * ((item.first + item.count + signs - 1) / signs - item.first / signs));
  }
};

class SyclBackend final : public kernels::DeviceBackend<SyclBackend> {
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
    with_call("step", stream, false, [&](Call& call) {
      check_pointers(call, items);
      steps_.clear();
      steps_.add_steps(items, ordered);
      // Everything that can fail for lack of memory or of a kernel comes before the first launch.
      for (const kernels::Batch::Launch& part : steps_.launches()) call.step(part), call.tables(part.codec);
      const auto there = upload(call, steps_);
      for (const kernels::Batch::Launch& part : steps_.launches())
        if (part.units)
          call.step(part)(steps_.items(there.device(), part), steps_.starts(there.device(), part), part.count,
                          part.units, call.tables(part.codec));
    });
  }

  void norms(std::span<const StepItem> items, int, std::span<BlockNorms> out, void* stream) override {
    with_call("norms", stream, false, [&](Call& call) {
      check_pointers(call, items);
      steps_.clear();
      steps_.add_steps(items, false);
      for (const kernels::Batch::Launch& part : steps_.launches()) call.norms(part), call.tables(part.codec);
      if (out.empty()) return;
      const size_t at = steps_.bytes();  // items have the alignment of norms
      const auto there = upload(call, steps_, out.size_bytes());
      auto* norms = there.at<BlockNorms>(at);
      for (const kernels::Batch::Launch& part : steps_.launches()) {
        if (part.units)
          call.norms(part)(steps_.items(there.device(), part), steps_.starts(there.device(), part), part.count,
                           part.units, call.tables(part.codec), norms);
        norms += part.units;
      }
      call.download(there.host() + at, there.device() + at, out.size_bytes());
      steps_.take_norms(reinterpret_cast<const BlockNorms*>(there.host() + at), out);
    });
  }

  int64_t first_nonfinite(std::span<const StepItem> items, int, void* stream) override {
    uint32_t first = kNone;
    with_call("first_nonfinite", stream, false, [&](Call& call) {
      check_gradients(call, items);
      add_gradients(items);
      const kernels::Batch::Launch& part = steps_.launches()[0];
      if (part.units == 0) return;
      const auto kernel = call.first_nonfinite(part);
      const size_t at = steps_.bytes();
      const auto write = [&](std::byte* host, std::byte* device) {
        steps_.write(host, device);
        std::memcpy(host + at, &kNone, sizeof kNone);
      };
      const Upload there = call.upload(at + sizeof kNone, write, 0);
      kernel(steps_.items(there.device(), part), steps_.starts(there.device(), part), part.count, part.units,
             there.at<uint32_t>(at));
      call.download(there.host() + at, there.device() + at, sizeof first);
      std::memcpy(&first, there.host() + at, sizeof first);
    });
    return first == kNone ? -1 : static_cast<int64_t>(first);
  }

 private:
  friend DeviceBackend;

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

  template <class Work>
  void with_call(const char* doing, void* stream, bool /*can_be_captured*/, Work&& work) {
    guarded(doing, [&] {
      late_->throw_any();
      const sycl::queue queue = queue_of(stream);
      Call call{queue, context_of(queue), *late_};
      work(call);
    });
  }

  const char* target_;
  std::shared_ptr<LateErrors> late_;
  sycl::queue own_;
  SyclDevice device_;
  std::list<DeviceContext> contexts_;
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
  const kernels::Target wanted = kernels::parse_target(target);
  const std::string& kind = wanted.kind;
  LT_REQUIRE(wanted.is_well && (wanted.number < 0 || !queue),
             "got SYCL target '%s'%s, wanted a number after ':', and no queue", target.c_str(),
             queue ? " and a queue" : "");
  const auto number = static_cast<size_t>(std::max(wanted.number, 0));
  LT_REQUIRE(kind.empty() || kind == "gpu" || kind == "cpu",
             "got SYCL target '%s', wanted gpu, cpu, or none for the best", target.c_str());
  return guarded("opening a device", [&]() -> std::unique_ptr<Backend> {
    std::vector<sycl::device> found;  // on one platform unless there is a queue, because drivers may list a GPU twice
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
    LT_REQUIRE(found.empty(), "got SYCL target '%s', wanted a number below %zu, the number of devices", target.c_str(),
               found.size());
    fail(ErrorKind::kUnsupported,
         "the SYCL runtime finds no %s; install its driver (a CPU's: pip install intel-opencl-rt)",
         kind.empty() ? "device that runs SPIR-V kernels" : (kind + " device").c_str());
  });
}

}  // namespace lowtide::sycl_host
