#include "lowtide/sign.h"

#include <memory>

#include "backend/cpu/cpu_backend.h"
#include "core/error.h"
#include "backend/registry.h"
#include "core/thread_pool.h"
#include "sign/sign_on.h"

namespace lowtide::sign {
namespace {

#define LT_TIE(number, name) static_assert(static_cast<int>(Ties::name) == number);
#include "portable/ties.def"
#undef LT_TIE

bool is_big(const Options& options) {
  LT_REQUIRE(options.order == BitOrder::kLittle || options.order == BitOrder::kBig, "got bit order %d, wanted 0 or 1",
             static_cast<int>(options.order));
  return options.order == BitOrder::kBig;
}

Backend& backend_of(const Options& options) { return options.queue ? options.queue->backend() : host_backend(); }
void* queue_of(const Options& options) { return options.queue ? options.queue->native() : nullptr; }

int threads_of(const Options& options) {
  LT_REQUIRE(options.threads >= 0, "got threads=%d, wanted 0 or more", options.threads);
  return options.threads ? options.threads : available_threads();
}

void check_dtype(DType dtype) {
  LT_REQUIRE(dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16, "got element type %d, wanted %s",
             static_cast<int>(dtype), "float32 (0), bfloat16 (1) or float16 (2)");
}

void check_count(int64_t count) {
  LT_REQUIRE(count >= 0 && count <= kMostSigns, "got %lld signs, wanted 0 to 2^60", ll(count));
}

// Catches the common mistake of passing a number of elements instead of a number of bytes, or the reverse.
void check_size(const char* name, std::span<const std::byte> bits, int64_t count) {
  const int64_t wanted = packed_bytes(count);
  LT_REQUIRE(bits.size() == static_cast<size_t>(wanted),
             "got %zu bytes of %s for %lld signs, wanted %lld: one bit for each, ceil(count / 8) bytes", bits.size(),
             name, ll(count), ll(wanted));
  LT_REQUIRE(wanted == 0 || bits.data(), "got NULL for %s", name);
}

bool overlap(const void* a, int64_t a_bytes, const void* b, int64_t b_bytes) {
  const auto first = reinterpret_cast<uintptr_t>(a), second = reinterpret_cast<uintptr_t>(b);
  return a && b && first < second + static_cast<uintptr_t>(b_bytes) && second < first + static_cast<uintptr_t>(a_bytes);
}

void check_apart(const char* a_name, const void* a, int64_t a_bytes, const char* b_name, const void* b,
                 int64_t b_bytes) {
  LT_REQUIRE(!overlap(a, a_bytes, b, b_bytes), "got %s that share memory with %s, wanted memory of their own", a_name,
             b_name);
}

// Checks results that may be written in place, byte by byte: the memory must be the same or separate.
void check_same_or_apart(const char* a_name, const void* a, const char* b_name, const void* b, int64_t bytes) {
  if (a != b) check_apart(a_name, a, bytes, b_name, b, bytes);
}

// Throws for errors that the backend does not check.
SignItem packed_item(DType dtype, const void* values, int64_t count, std::span<std::byte> bits,
                     const Options& options) {
  check_dtype(dtype);
  check_count(count);
  check_size("bits", bits, count);
  check_apart("bits", bits.data(), packed_bytes(count), "values", values, count * dtype_bytes(dtype));
  SignItem item;
  item.dtype = dtype;
  item.count = count;
  item.values = const_cast<void*>(values);  // packing only reads them
  item.bits = bits.data();
  item.big = is_big(options);
  return item;
}

// Checks everything that the backend does not check.
void check_vote(const Vote& vote, std::span<std::byte> result, std::span<std::byte> zeros) {
  check_count(vote.count);
  LT_REQUIRE(!vote.ballots.empty() && vote.ballots.size() <= static_cast<size_t>(kMostBallots),
             "got %zu ballots, wanted 1 to %lld", vote.ballots.size(), ll(kMostBallots));
  check_size("the result", result, vote.count);
  const int64_t bytes = packed_bytes(vote.count);
  if (vote.ties == Ties::kZero) {
    check_size("zeros", zeros, vote.count);
    check_apart("zeros", zeros.data(), bytes, "the result", result.data(), bytes);
  } else {
    LT_REQUIRE(zeros.empty(), "got memory for zeros with tie rule %d, wanted none: only rule 'zero' marks zeros",
               static_cast<int>(vote.ties));
  }
  for (const std::byte* ballot : vote.ballots) {
    check_same_or_apart("ballots", ballot, "a part of the result", result.data(), bytes);
    if (!zeros.empty()) check_apart("zeros", zeros.data(), bytes, "a ballot", ballot, bytes);
  }
  if (vote.ties == Ties::kPrevious)
    check_same_or_apart("earlier signs", vote.previous, "a part of the result", result.data(), bytes);
}

}  // namespace

Queue::Queue(const std::string& backend, void* native, const std::string& device)
    : backend_(open_backend(backend, device, native)), native_(native) {
  LT_REQUIRE(backend_->device(), "got backend '%s', whose memory is the host's, wanted one of a device",
             backend.c_str());
  if (!native_) native_ = backend_->device()->make_queue();
}

void Queue::synchronize() const { backend_->device()->host_wait(backend_->device()->record(native_)); }

Backend& host_backend() {
  static const std::unique_ptr<Backend> backend = cpu::make_backend("");
  return *backend;
}

void pack_on(Backend& backend, void* stream, DType dtype, const void* values, int64_t count, std::span<std::byte> bits,
             const Options& options) {
  const int threads = threads_of(options);
  const SignItem item = packed_item(dtype, values, count, bits, options);
  backend.pack_signs({&item, 1}, threads, stream);
}

void pack_sign_bits(DType dtype, const void* values, int64_t count, std::span<std::byte> bits, const Options& options) {
  cpu::pack_sign_bits(packed_item(dtype, values, count, bits, options), threads_of(options));
}

void unpack_on(Backend& backend, void* stream, std::span<const std::byte> bits, DType dtype, void* values,
               int64_t count, std::span<const std::byte> zeros, const Options& options) {
  const int threads = threads_of(options);
  check_dtype(dtype);
  check_count(count);
  check_size("bits", bits, count);
  if (zeros.data() || !zeros.empty()) check_size("zeros", zeros, count);
  const int64_t bytes = packed_bytes(count), value_bytes = count * dtype_bytes(dtype);
  check_apart("bits", bits.data(), bytes, "values", values, value_bytes);
  check_apart("zeros", zeros.data(), bytes, "values", values, value_bytes);
  SignItem item;
  item.dtype = dtype;
  item.count = count;
  item.values = values;
  item.bits = const_cast<std::byte*>(bits.data());  // unpacking only reads them
  item.zeros = zeros.data();
  item.big = is_big(options);
  backend.unpack_signs({&item, 1}, threads, stream);
}

void majority_on(Backend& backend, void* stream, const Vote& vote, std::span<std::byte> result,
                 std::span<std::byte> zeros) {
  const int threads = threads_of(vote.options);
  check_vote(vote, result, zeros);
  VoteItem item;
  item.count = vote.count;
  item.ballots = vote.ballots;
  item.weights = vote.weights;
  item.ties = static_cast<TieRule>(vote.ties);
  item.seed = vote.seed;
  item.step = vote.step;
  item.first_index = vote.offset;
  item.previous = vote.previous;
  item.result = result.data();
  item.zeros = zeros.empty() ? nullptr : zeros.data();
  item.big = is_big(vote.options);
  backend.vote_signs(item, threads, stream);
}

void pack(DType dtype, const void* values, int64_t count, std::span<std::byte> bits, const Options& options) {
  pack_on(backend_of(options), queue_of(options), dtype, values, count, bits, options);
}

void unpack(std::span<const std::byte> bits, DType dtype, void* values, int64_t count, std::span<const std::byte> zeros,
            const Options& options) {
  unpack_on(backend_of(options), queue_of(options), bits, dtype, values, count, zeros, options);
}

void majority(const Vote& vote, std::span<std::byte> result, std::span<std::byte> zeros) {
  majority_on(backend_of(vote.options), queue_of(vote.options), vote, result, zeros);
}

}  // namespace lowtide::sign
