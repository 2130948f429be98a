// The schedule: work runs as late as it may, in a random order.
#include <algorithm>

#include "machine.h"

namespace cuda_emulator {
namespace {

bool is_ready(const Stream& stream) {
  if (stream.queue.empty() || stream.queue.front()->running) return false;
  const auto& after = stream.queue.front()->after;
  return std::all_of(after.begin(), after.end(), [](const OpRef& op) { return op->done; });
}

}  // namespace

OpRef Machine::any_ready() {
  std::vector<Stream*> ready;
  for (const auto& [handle, stream] : streams)
    if (is_ready(*stream)) ready.push_back(stream.get());
  for (const auto& device : devices)
    if (is_ready(*device->legacy)) ready.push_back(device->legacy.get());
  if (ready.empty()) return nullptr;
  return ready[random.below(static_cast<uint32_t>(ready.size()))]->queue.front();
}

// One that can run and has to run before the target has.
OpRef Machine::next_for(const OpRef& target) {
  OpRef op = target;
  for (;;) {
    op = op->stream->queue.front();
    std::vector<OpRef> waits_for;
    for (const OpRef& other : op->after)
      if (!other->done) waits_for.push_back(other);
    if (waits_for.empty()) return op;
    op = waits_for[random.below(static_cast<uint32_t>(waits_for.size()))];
  }
}

void Machine::force(OpRef op) {
  const bool eager = random.chance(0.3);
  while (op && !op->done) {
    const OpRef other = eager && random.chance(0.5) ? any_ready() : nullptr;
    run(other ? other : next_for(op));
  }
}

void Machine::force_all(int device) {
  std::vector<OpRef> last;
  for (const auto& [handle, stream] : streams)
    if (device < 0 || stream->device == device) last.push_back(stream->last);
  for (const auto& of : devices)
    if (device < 0 || of->legacy->device == device) last.push_back(of->legacy->last);
  while (!last.empty()) {
    std::swap(last[random.below(static_cast<uint32_t>(last.size()))], last.back());
    const OpRef op = last.back();
    last.pop_back();
    force(op);
  }
}

bool Machine::progress() {
  const OpRef op = any_ready();
  if (op) run(op);
  return op != nullptr;
}

void Machine::interleave() {
  if (interleaving_ || !random.chance(0.5)) return;
  interleaving_ = true;
  progress();
  interleaving_ = false;
}

void Machine::run(const OpRef& op) {
  op->running = true;
  execute(op->work);
  op->running = false, op->done = true;
  op->after.clear();
  op->work = {};
  Stream& stream = *op->stream;
  stream.queue.pop_front();
  if (stream.destroyed && stream.queue.empty())
    std::erase_if(streams, [&](const auto& entry) { return entry.second.get() == &stream; });
}

void Machine::execute(const Work& work) {
  if (!work.run || devices[static_cast<size_t>(work.device)]->lost != cudaSuccess) return;
  log(work.name);
  work.run();
}

}  // namespace cuda_emulator
