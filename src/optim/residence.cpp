#include "optim/residence.h"

#include <filesystem>
#include <system_error>

#include "backend/catalog.h"
#include "core/error.h"
#include "memory/transfer_mode.h"

namespace lowtide {

void check_memory(const Memory& memory) {
  const std::pair<const char*, int64_t> limits[] = {
      {"device", memory.device}, {"host", memory.host}, {"disk_limit", memory.disk_limit}};
  for (const auto& [name, bytes] : limits)
    LT_REQUIRE(bytes >= -1, "got %s=%lld, wanted 0 or more, or -1 for no limit", name, ll(bytes));
  LT_REQUIRE(memory.chunk >= 0 && memory.chunk % kPageBytes == 0 && memory.chunk <= int64_t{1} << 40,
             "got chunk=%lld, wanted a multiple of %lld, or 0 to have it chosen", ll(memory.chunk), ll(kPageBytes));
  LT_REQUIRE(!memory.automatic || (memory.device < 0 && !memory.managed),
             "got automatic with device=%lld and managed=%d, wanted automatic alone", ll(memory.device),
             memory.managed);
  LT_REQUIRE(!find_transfer_mode(memory.transfer) || !memory.managed,
             "got transfer='%s' for managed memory, which the driver migrates, wanted ''", memory.transfer.c_str());
  LT_REQUIRE(
      memory.disk.empty() || memory.host >= 0,
      "got a disk ('%s') without a limit of host memory, wanted host too: without it all state stays in host memory",
      memory.disk.c_str());
}

Residence::Residence(Env& env, const Memory& memory, Backend& backend, const DeviceAllocator& allocator)
    : env_(env), memory_(memory), backend_(backend), device_(backend.device()), allocator_(allocator), arena_(env) {
  check_memory(memory);
  if (device_) {
    LT_REQUIRE(find_transfer_mode(memory.transfer).value_or(TransferMode::kCopy) == TransferMode::kCopy ||
                   device_->steps_pinned(),
               "got transfer='%s' on a %s device, whose kernels do not reach pinned host memory, wanted 'copy' or ''",
               memory.transfer.c_str(), backend.name());
    LT_REQUIRE(
        memory.disk.empty() ||
            (!memory.managed && !memory.automatic &&
             find_transfer_mode(memory.transfer).value_or(TransferMode::kCopy) == TransferMode::kCopy),
        "got a disk ('%s') with managed=%d, automatic=%d and transfer='%s' for parameters on a device, wanted it "
        "with device and host, and transfer 'copy' or ''",
        memory.disk.c_str(), memory.managed, memory.automatic, memory.transfer.c_str());
  } else {
    LT_REQUIRE(
        memory.device < 0 && !memory.managed && !memory.automatic && memory.transfer.empty(),
        "got device=%lld, managed=%d, automatic=%d and transfer='%s' for parameters in host memory, wanted host alone",
        ll(memory.device), memory.managed, memory.automatic, memory.transfer.c_str());
  }
  if (memory.disk.empty()) return;
  std::error_code error;  // no working directory: keep the path as given, which will be refused
  if (std::filesystem::path whole = std::filesystem::absolute(memory.disk, error); !error)
    memory_.disk = whole.string();
  check_scratch_directory(env, memory_.disk);  // fail now, not when the first step needs the disk
}

Placement placement_of(const Memory& memory, int64_t taken, std::span<const ShapedParam> params) {
  Placement out;
  for (const ShapedParam& param : params) {
    if (param.shape.states == 0) continue;
    out.shaped.push_back(param);
    out.record_bytes += record_bytes(param.shape);
  }
  out.direct = memory.host < 0 || round_up(out.record_bytes, kPageBytes) <= memory.host - taken;
  out.store = {.memory = memory, .taken = taken};
  return out;
}

void Residence::add_to_store(const Placement& placement) {
  // Create one store, however often it refuses: its queues live as long as the device.
  if (device_ && !on_device_) {
    DeviceStoreOptions options{memory_};
    if (!memory_.disk.empty()) options.memory.transfer = transfer_mode_name(TransferMode::kCopy);
    options.choose_transfer_mode = [this] { return fastest_transfer_mode(env_, backend_); };
    options.shared_allocator = allocator_.allocate != nullptr;
    if (allocator_.note_use)
      options.note_use = [from = allocator_](void* memory, void* queue) {
        return from.note_use(from.context, memory, queue) != 0;
      };
    on_device_ = std::make_unique<DeviceStore>(env_, *device_, std::move(options));
    on_device_->set_queue(queue_);
    if (free_bytes_) on_device_->set_free_bytes(*free_bytes_);
  }
  if (store()) return store()->add(placement.shaped);
  auto store = std::make_unique<StateStore>(env_, placement.store);
  store->add(placement.shaped);
  in_ram_ = std::move(store);
}

void Residence::tell(void* queue, std::optional<int64_t> free_bytes) {
  queue_ = queue;
  if (free_bytes) free_bytes_ = free_bytes;
  if (!on_device_) return;
  on_device_->set_queue(queue);
  if (free_bytes) on_device_->set_free_bytes(*free_bytes);
}

void Residence::place(std::span<Parameter* const> params, std::span<const int64_t> numbers) {
  std::vector<ShapedParam> shaped;
  for (size_t i = 0; i < params.size(); ++i) shaped.push_back({numbers[i], params[i]->state_shape(params[i]->rule)});
  Placement placement = placement_of(memory_, arena_.allocated_bytes(), shaped);
  if (!device_ && !store() && placement.direct) {
    if (waits()) arena_.reserve(static_cast<size_t>(placement.record_bytes));
    for (Parameter* const param : params) param->allocate_state(arena_, param->rule);
    return;
  }
  // An earlier attempt may have placed some of them.
  std::erase_if(placement.shaped, [&](const ShapedParam& of) { return store() && store()->has(of.param); });
  add_to_store(placement);
  // Allocate all memory before the first change: after it the store has the parameters, even for a second attempt.
  std::vector<std::vector<Progress>> progress;
  for (const int64_t number : numbers)
    progress.emplace_back(store()->has(number) ? store()->pieces(number) : 0, Progress{0, true});
  for (size_t i = 0; i < params.size(); ++i) {
    Parameter& param = *params[i];
    param.begin_state(param.rule);
    param.paged = store()->has(numbers[i]);
    param.progress = std::move(progress[i]);
  }
}

// All RAM that holds state.
std::vector<const Buffer*> Residence::ram_buffers() {
  std::vector<const Buffer*> buffers = in_ram_ ? in_ram_->shrink() : std::vector<const Buffer*>();
  for (const Buffer& buffer : arena_.buffers()) buffers.push_back(&buffer);
  return buffers;
}

void Residence::check_offload() {
  if (on_device_) return on_device_->check_offload();
  if (offloaded_ || device_) return;
  const std::vector<const Buffer*> buffers = ram_buffers();
  if (buffers.empty()) return;
  LT_REQUIRE(!memory_.disk.empty(), "got state in RAM and no disk to put it on, wanted a memory budget with a disk");
  int64_t needed = in_ram_ ? in_ram_->report().disk_bytes : 0;
  for (const Buffer* buffer : buffers) needed += static_cast<int64_t>(buffer->bytes());
  LT_REQUIRE(memory_.disk_limit < 0 || needed <= memory_.disk_limit,
             "got a disk budget of %lld bytes, wanted at least %lld to put all state there", ll(memory_.disk_limit),
             ll(needed));
}

void Residence::offload(int threads) {
  if (on_device_) return on_device_->offload();
  if (offloaded_) return;
  check_offload();
  std::vector<const Buffer*> buffers = ram_buffers();
  if (!buffers.empty()) offloaded_ = std::make_unique<OffloadedMemory>(env_, memory_.disk, std::move(buffers), threads);
}

void Residence::onload(int threads) {
  if (on_device_) return on_device_->onload();
  if (!offloaded_) return;
  offloaded_->bring_back(threads);
  offloaded_.reset();
}

}  // namespace lowtide
