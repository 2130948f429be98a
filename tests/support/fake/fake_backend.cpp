#include "support/fake/fake_backend.h"

#include "backend/cpu/cpu_backend.h"
#include "backend/catalog.h"
#include "support/fake/fake_batch.h"
#include "backend/kernels/items.h"
#include "core/error.h"
#include "support/test.h"

namespace lowtide::fake {
namespace {

constexpr int64_t kAlignment = 64;

int64_t extent_bytes(const Layout& layout, DType dtype) { return layout.extent * dtype_bytes(dtype); }

// Calls with(pointer, bytes) for the stepped part's arrays: codes and scales of states, if wanted, and the residual.
template <class Item, class Fn>
void for_each_array(Item& item, bool states, Fn&& with) {
  const int64_t row = item.param_layout->row_length;
  const int64_t blocks = item.blocks < 0 ? item.param_layout->blocks(kBlockElements) : item.blocks;
  const auto element = [&](int64_t b) { return elements_before_block(row, b, kBlockElements); };
  const int64_t elements = blocks ? element(item.first_block + blocks) - element(item.first_block) : 0;
  for (int k = 0; states && k < rule_info(item.rule).states; ++k) {
    const StateFormat& format = format_of(item.rule, item.codec, k);
    with(item.codes[k], format.code_bytes(elements));
    with(item.scales[k], format.scale_bytes(blocks));
  }
  if (has_master(item)) with(item.master.residual, residual_bytes(item.master.kind, elements));
}

template <class T>
T* moved(T* at, int64_t bytes) {
  return at ? reinterpret_cast<T*>(reinterpret_cast<std::byte*>(at) + bytes) : nullptr;
}
template <>
void* moved(void* at, int64_t bytes) {
  return at ? static_cast<std::byte*>(at) + bytes : nullptr;
}

}  // namespace

FakeBackend::FakeBackend(const FakeBackendOptions& options)
    : options_(options),
      device_(options.seed),
      cpu_(cpu::make_backend("")),
      near_(device_.add_memory("device", options.device_bytes)),
      far_(device_.add_memory("host", options.host_bytes)) {
  device_.add_stream("own");
}

void FakeBackend::step(std::span<const StepItem> items, int, bool ordered, void* stream) {
  Kernel kernel = step_kernel(items);
  kernel.run = [this, batch = std::make_shared<Batch>(items), ordered] { run_step(*batch, ordered); };
  launch(stream, std::move(kernel));
}

FakeBackend::Kernel FakeBackend::step_kernel(std::span<const StepItem> items) const {
  Kernel kernel{"step", {}, {}};
  const auto touch = [&](const void* memory, int64_t size, bool read, bool write) {
    if (!memory || size == 0) return;
    const Span span = touched(memory, size);
    if (read) kernel.reads.push_back(span);
    if (write) kernel.writes.push_back(span);
  };
  for (const StepItem& item : items) {
    if (const BallotTarget* ballot = item.ballot) {
      const int64_t signs = item.param_layout->numel;
      touch(ballot->bits + ballot->first / 8, sign_bytes(signs), true, true);
      if (ballot->presence) touch(ballot->presence + ballot->first / kSignBlock / 8, presence_bytes(signs), true, true);
    } else {
      touch(item.param, extent_bytes(*item.param_layout, item.param_dtype), true, true);
    }
    touch(item.grad, extent_bytes(*item.grad_layout, item.grad_dtype), true, false);
    if (item.guard) touch(item.guard->word(), sizeof(uint32_t), true, false);
    // If the guard stops the step, state written elsewhere keeps its old values there.
    const bool elsewhere = item.write_offset != 0;
    for_each_array(item, true, [&](auto* at, int64_t bytes) {
      touch(at, bytes, true, !elsewhere);
      if (at) kernel.bytes += bytes;
      if (elsewhere) touch(moved(at, item.write_offset), bytes, item.guard, true);
    });
  }
  return kernel;
}

void FakeBackend::run_step(Batch& batch, bool ordered) {
  if (!batch.items.empty() && batch.items[0].guard && *batch.items[0].guard->word() != kernels::kNoItem) return;
  for (StepItem& item : batch.items) {
    if (item.write_offset == 0) continue;
    for_each_array(item, true, [&](auto*& at, int64_t bytes) {
      auto* const to = moved(at, item.write_offset);
      if (at) std::memcpy(to, at, static_cast<size_t>(bytes));
      at = to;
    });
    item.write_offset = 0;
  }
  cpu_->step(batch.items, 1, ordered, nullptr);
}

void FakeBackend::read(const char* name, std::span<const StepItem> items, bool states, std::function<void()> run,
                       void* stream) {
  Kernel kernel{name, {}, {}};
  const auto touch = [&](const void* memory, int64_t size) {
    if (memory && size) kernel.reads.push_back(touched(memory, size)), kernel.bytes += size;
  };
  for (const StepItem& item : items) {
    touch(item.param, extent_bytes(*item.param_layout, item.param_dtype));
    touch(item.grad, extent_bytes(*item.grad_layout, item.grad_dtype));
    for_each_array(item, states || rule_info(item.rule).norms_read_state, touch);
  }
  kernel.run = std::move(run);
  launch(stream, std::move(kernel));
  finish(stream);
}

void FakeBackend::norms(std::span<const StepItem> items, int, std::span<BlockNorms> out, void* stream) {
  read(
      "norms", items, false, [&] { cpu_->norms(items, 1, out, nullptr); }, stream);
}

void FakeBackend::sum_terms(std::span<const StepItem> items, int, TermSums& to, void* stream) {
  read(
      "terms", items, true, [&] { cpu_->sum_terms(items, 1, to, nullptr); }, stream);
}

int64_t FakeBackend::first_nonfinite(std::span<const StepItem> items, int threads, void* stream) {
  finish(stream);
  return cpu_->first_nonfinite(items, threads, nullptr);
}

void FakeBackend::decode(const CodecItem& item, void* stream) {
  finish(stream);
  cpu_->decode(item, nullptr);
}

void FakeBackend::encode(const CodecItem& item, void* stream) {
  finish(stream);
  cpu_->encode(item, nullptr);
}

void FakeBackend::pack_signs(std::span<const SignItem> items, int, void* stream) {
  for (const SignItem& item : items) pack(item, stream);
}
void FakeBackend::unpack_signs(std::span<const SignItem> items, int, void* stream) {
  for (const SignItem& item : items) unpack(item, stream);
}

void FakeBackend::pack(const SignItem& item, void* stream) {
  check(item);
  if (!item.count) return;
  const int64_t bytes = item.count * dtype_bytes(item.dtype), first = item.first / 8;
  const Span bits = touched(item.bits + first, (item.first + item.count + 7) / 8 - first);
  launch(stream, {"pack_signs", {touched(item.values, bytes), bits}, {bits}, bytes, [this, item] {
                    cpu_->pack_signs({&item, 1}, 1, nullptr);
                  }});
}

void FakeBackend::unpack(const SignItem& item, void* stream) {
  check(item);
  if (!item.count) return;
  const int64_t bytes = item.count * dtype_bytes(item.dtype), first = item.first / 8;
  std::vector<Span> reads;
  for (const std::byte* bits : {static_cast<const std::byte*>(item.bits), item.zeros})
    if (bits) reads.push_back(touched(bits + first, (item.first + item.count + 7) / 8 - first));
  launch(stream, {"unpack_signs", reads, {touched(item.values, bytes)}, bytes, [this, item] {
                    cpu_->unpack_signs({&item, 1}, 1, nullptr);
                  }});
}

void FakeBackend::vote_signs(const VoteItem& item, int, void* stream) {
  check(item);
  if (!item.count) return;
  const int64_t bytes = (item.count + 7) / 8;
  std::vector<Span> reads, writes{touched(item.result, bytes)};
  for (size_t v = 0; v < item.ballots.size(); ++v)
    if (weight_of(item, v)) reads.push_back(touched(item.ballots[v], bytes));
  if (item.ties == TieRule::kPrevious) reads.push_back(touched(item.previous, bytes));
  if (item.ties == TieRule::kZero) writes.push_back(touched(item.zeros, bytes));
  launch(stream, {"vote_signs", reads, writes, bytes * static_cast<int64_t>(reads.size()),
                  [this, vote = item, ballots = std::vector(item.ballots.begin(), item.ballots.end()),
                   weights = std::vector(item.weights.begin(), item.weights.end())]() mutable {
                    vote.ballots = ballots, vote.weights = weights;
                    cpu_->vote_signs(vote, 1, nullptr);
                  }});
}

// These operations run at once, because nobody queues them without waiting.
void FakeBackend::count_signs(const CountItem& item, int threads, void* stream) {
  finish(stream);
  cpu_->count_signs(item, threads, nullptr);
}

void FakeBackend::apply_signs(std::span<const ApplyItem> items, int threads, void* stream) {
  finish(stream);
  cpu_->apply_signs(items, threads, nullptr);
}

void FakeBackend::feedback(std::span<const FeedbackItem> items, int threads, void* stream) {
  finish(stream);
  cpu_->feedback(items, threads, nullptr);
}

Device::Limits FakeBackend::limits() const {
  require_alive();
  if (options_.says_total >= 0) return {options_.says_total, -1, options_.says_total};
  return {options_.device_bytes, options_.device_bytes - device_.used(near_), options_.device_bytes};
}

void* FakeBackend::allocate(MemoryKind kind, int64_t bytes) {
  const std::lock_guard lock(mutex_);
  require_alive();
  if (kind != MemoryKind::kDevice || !allocator_.allocate) return allocate_own(kind, bytes);
  void* const memory = allocator_.allocate(allocator_.context, bytes);
  if (!memory)
    fail(ErrorKind::kOutOfMemory, "could not allocate %lld bytes of device memory: the allocator has none",
         static_cast<long long>(bytes));
  from_allocator_.insert(memory);
  return memory;
}

void* FakeBackend::allocate_own(MemoryKind kind, int64_t bytes) {
  const int region = device_.allocate(kind == MemoryKind::kDevice ? near_ : far_, bytes + kAlignment);
  uint8_t* const all = device_.data({region, 0, bytes + kAlignment});
  const int64_t begin = -reinterpret_cast<intptr_t>(all) & (kAlignment - 1);
  auto* data = reinterpret_cast<std::byte*>(all + begin);
  allocations_.push_back({data, bytes, region, begin, kind});
  return data;
}

void FakeBackend::free(void* memory) noexcept {
  const std::lock_guard lock(mutex_);
  if (lost_) return;
  if (from_allocator_.erase(memory))
    allocator_.free(allocator_.context, memory);
  else
    free_own(memory);
}

void FakeBackend::free_own(void* memory) noexcept {
  const auto found =
      std::find_if(allocations_.begin(), allocations_.end(), [&](const Allocation& a) { return a.data == memory; });
  device_.free(found->region);
  allocations_.erase(found);
}

void* FakeBackend::make_queue() {
  const std::lock_guard lock(mutex_);
  const double rate = queues_.empty() ? options_.step_rate : options_.link_rate;
  queues_.push_back(device_.add_stream("queue " + std::to_string(queues_.size()), rate));
  return &queues_.back();
}

void FakeBackend::copy(void* queue, void* to, const void* from, int64_t bytes) {
  const std::lock_guard lock(mutex_);
  Span to_span, from_span;
  const bool to_here = find(to, bytes, &to_span), from_here = find(from, bytes, &from_span);
  if (to_here && from_here && !is_capturing(queue)) {
    require_alive();
    if (kind_of(from_span) == MemoryKind::kDevice && kind_of(to_span) == MemoryKind::kPinned)
      writing_back_.insert(stream_of(queue));
    return device_.copy(stream_of(queue), "copy", to_span, from_span);
  }
  std::vector<Span> reads, writes;
  if (to_here) writes.push_back(to_span);
  if (from_here) reads.push_back(from_span);
  launch(queue,
         {"copy", reads, writes, bytes, [to, from, bytes] { std::memcpy(to, from, static_cast<size_t>(bytes)); }});
}

void FakeBackend::fill(void* queue, void* to, uint32_t pattern, int pattern_bytes, int64_t count) {
  const std::lock_guard lock(mutex_);
  const int64_t bytes = pattern_bytes * count;
  Span span;
  if (!find(to, bytes, &span)) fail(ErrorKind::kInternal, "fill of memory that is not the device's");
  launch(queue, {"fill", {}, {span}, bytes, [to, pattern, pattern_bytes, count] {
                   for (int64_t i = 0; i < count; ++i)
                     std::memcpy(static_cast<std::byte*>(to) + i * pattern_bytes, &pattern,
                                 static_cast<size_t>(pattern_bytes));
                 }});
}

void FakeBackend::prefetch(void*, const void* shared, int64_t bytes) {
  Span span;
  if (!find(shared, bytes, &span)) fail(ErrorKind::kInternal, "prefetch of memory that is not the device's");
  require_alive();
  ++prefetches_;
}

Device::Event FakeBackend::record(void* queue) {
  const std::lock_guard lock(mutex_);
  require_alive();
  require_not_capturing(queue);
  const int event = device_.new_event();
  device_.record(event, stream_of(queue));
  recorded_on_[event] = stream_of(queue);
  return std::make_shared<int>(event);
}

void FakeBackend::wait(void* queue, const Event& event) {
  const std::lock_guard lock(mutex_);
  require_alive();
  if (!event) return;
  require_not_capturing(queue);
  const int stream = stream_of(queue), number = *static_cast<int*>(event.get());
  waited_for_[stream].push_back(recorded_on_.at(number));
  if (waits_++ == options_.drop_wait)
    dropped_mattered_ = device_.wait_matters(stream, number);
  else
    device_.wait(stream, number);
}

void FakeBackend::host_wait(const Event& event) {
  const std::lock_guard lock(mutex_);
  require_alive();
  if (!event) return;
  const int number = *static_cast<int*>(event.get());
  if (host_waits_++ == options_.drop_host_wait)
    dropped_mattered_ = !device_.has_happened(number);
  else
    device_.host_wait(number);
}

void FakeBackend::host_touches(const void* memory, int64_t bytes, bool writes) {
  const std::lock_guard lock(mutex_);
  Span span;
  if (!lost_ && find(memory, bytes, &span)) device_.host_touches(span, writes);
}

bool FakeBackend::has_happened(const Event& event) {
  const std::lock_guard lock(mutex_);
  require_alive();
  return !event || device_.has_happened(*static_cast<int*>(event.get()));
}

bool FakeBackend::find(const void* memory, int64_t bytes, Span* span) const {
  const auto* at = static_cast<const std::byte*>(memory);
  for (const Allocation& a : allocations_)
    if (at >= a.data && at + bytes <= a.data + a.bytes) {
      *span = {a.region, a.begin + (at - a.data), bytes};
      return true;
    }
  return false;
}

const FakeBackend::Allocation& FakeBackend::allocation_of(const Span& span) const {
  return *std::find_if(allocations_.begin(), allocations_.end(),
                       [&](const Allocation& a) { return a.region == span.region; });
}

int64_t FakeBackend::waits_for_write_back(void* queue) const {
  const auto found = waited_for_.find(stream_of(queue));
  if (found == waited_for_.end()) return 0;
  return std::count_if(found->second.begin(), found->second.end(),
                       [&](int stream) { return stream != stream_of(queue) && writing_back_.contains(stream); });
}

Span FakeBackend::touched(const void* memory, int64_t bytes) const {
  Span span;
  if (!find(memory, bytes, &span)) fail(ErrorKind::kInternal, "a kernel would touch memory that is not the device's");
  if (!options_.steps_pinned && kind_of(span) == MemoryKind::kPinned)
    fail(ErrorKind::kInternal, "a kernel would touch pinned memory");
  return span;
}

void FakeBackend::finish(void* queue) { host_wait(record(queue)); }

}  // namespace lowtide::fake
