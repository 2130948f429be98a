#include "memory/store_plan.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/buffer.h"
#include "core/error.h"

namespace lowtide {
namespace {

constexpr int64_t kSmallestChunk = 64 << 10;
constexpr int64_t kMostChunks = int64_t{1} << 22;  // a gigabyte of bookkeeping
constexpr int kSlots = 4;

// Bytes of all chunks.
int64_t sum_of(const std::vector<int64_t>& chunks) { return std::accumulate(chunks.begin(), chunks.end(), int64_t{0}); }

bool has_third(const StoreOptions& options) { return options.on_device && !options.disk.empty(); }

// Large enough for the disk to run at its rate, small enough that the ring leaves most of the budget to residents.
int64_t chunk_bytes_for(const StoreOptions& options, int64_t total) {
  const Budget& given = options.budget;
  if (given.chunk > 0) return given.chunk;
  const int64_t near = options.on_device ? given.device : given.host;
  int64_t budget = !options.at_least_slots ? near : options.device_limit;
  if (has_third(options) && given.host >= 0)  // the slots of either must leave room
    budget = budget < 0 ? given.host : std::min(budget, given.host);
  else if (near < 0)
    return kLargestChunk;
  if (budget < 0) budget = total;
  const int64_t share = std::min(budget, total) / (4 * kSlots) / kPageBytes * kPageBytes;
  return std::clamp(share, kSmallestChunk, kLargestChunk);
}

}  // namespace

StorePlan plan_store(const StoreOptions& options, std::vector<int64_t> before, std::span<const ShapedParam> params,
                     const StoreRates& rates) {
  const int64_t known = sum_of(before);
  int64_t total = known;
  for (const ShapedParam& p : params)
    for (int k = 0; k < p.shape.states; ++k) total += p.shape.format[k].code_bytes(p.shape.rows * p.shape.row_length);
  const int64_t chunk_bytes = chunk_bytes_for(options, total);
  LT_REQUIRE(total / chunk_bytes <= kMostChunks,
             "got %lld bytes of state in chunks of %lld bytes, more than 2^22 of them; make chunks larger (chunk_bytes "
             "of at least %lld) or give more RAM",
             ll(total), ll(chunk_bytes), ll((total / kMostChunks + kPageBytes) / kPageBytes * kPageBytes));
  StorePlan out;
  out.added = cut_chunks(params, chunk_bytes);
  PlanInput input;
  input.chunk_bytes = std::move(before);
  for (const Chunk& chunk : out.added) input.chunk_bytes.push_back(chunk.bytes);
  input.ram_budget = options.on_device ? options.budget.device : options.budget.host;
  input.disk_budget = options.on_device ? options.budget.host : options.budget.disk;
  if (options.at_least_slots && !options.in_place && !input.chunk_bytes.empty()) {
    int64_t slots = kOverlappingSlots * *std::max_element(input.chunk_bytes.begin(), input.chunk_bytes.end());
    if (options.device_limit >= 0) slots = std::min(slots, options.device_limit);
    input.ram_budget = std::max(input.ram_budget, slots);
  }
  input.has_disk = options.on_device || !options.disk.empty();
  if (options.on_device) input.near = "device memory", input.far = "host memory";
  if (!input.has_disk && sum_of(input.chunk_bytes) > input.ram_budget) {
    // Chunks follow the budget, and so does what is added to fill their pages: this is of the one to ask for.
    StoreOptions whole = options;
    whole.budget.host = total;
    input.whole_bytes = known;
    for (const Chunk& chunk : cut_chunks(params, chunk_bytes_for(whole, total))) input.whole_bytes += chunk.bytes;
  }
  input.max_slots = options.in_place ? 0 : kSlots;
  input.read_rate = rates.read;
  input.write_rate = rates.write;
  input.step_rate = rates.step;
  input.both_ways = options.on_device;
  if (has_third(options)) {
    TierPlan tiers =
        plan_tiers(input.chunk_bytes, {input.ram_budget, options.budget.host, options.budget.disk}, kSlots);
    for (const Tier tier : tiers.tier) out.on_disk.push_back(tier == Tier::kDisk);
    out.plan = std::move(tiers.device);
    out.host = std::move(tiers.host);
  } else {
    out.plan = make_plan(input);
  }
  out.chunk_bytes = std::move(input.chunk_bytes);
  return out;
}

}  // namespace lowtide
