#include "lowtide/sign.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/sign_form.h"
#include "core/error.h"
#include "core/thread_pool.h"
#include "sign/sign_on.h"

namespace lowtide::sign {
namespace {

#define LT_TIE(number, name) static_assert(static_cast<int>(Ties::name) == number);
#include "portable/ties.def"
#undef LT_TIE

// Bytes of bits that are mirrored at a time: 8 Mi signs, enough to keep threads busy.
constexpr int64_t kPieceBytes = 1 << 20;

// Mirrors the bits of each byte, between the orders "little" and "big". `to` may be `from`.
void reverse_bits(const std::byte* from, std::byte* to, int64_t bytes) {
  for (int64_t i = 0; i < bytes; ++i) {
    auto b = std::to_integer<unsigned char>(from[i]);
    b = static_cast<unsigned char>((b & 0xf0) >> 4 | (b & 0x0f) << 4);
    b = static_cast<unsigned char>((b & 0xcc) >> 2 | (b & 0x33) << 2);
    b = static_cast<unsigned char>((b & 0xaa) >> 1 | (b & 0x55) << 1);
    to[i] = std::byte{b};
  }
}

// Clears the bits behind the last of `count` signs in its byte.
void clear_tail(std::byte* bits, int64_t count) {
  if (const int64_t used = count % 8) bits[count / 8] &= std::byte{static_cast<unsigned char>(0xff << (8 - used))};
}

bool is_big(Backend& backend, const Options& options) {
  LT_REQUIRE(options.order == BitOrder::kLittle || options.order == BitOrder::kBig, "got bit order %d, wanted 0 or 1",
             static_cast<int>(options.order));
  const bool big = options.order == BitOrder::kBig;
  if (big && backend.device())
    fail(ErrorKind::kUnsupported, "got bit order 'big' for signs on a device, wanted 'little' or host memory");
  return big;
}

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

// Catches the usual mistake: a count of elements where a count of bytes is meant, or the other way round.
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

// For results that are written in place, byte by byte: the memory is the same, or apart.
void check_same_or_apart(const char* a_name, const void* a, const char* b_name, const void* b, int64_t bytes) {
  if (a != b) check_apart(a_name, a, bytes, b_name, b, bytes);
}

// Throws for what the backend does not check itself.
SignItem packed_item(DType dtype, const void* values, int64_t count, std::span<std::byte> bits) {
  check_dtype(dtype);
  check_count(count);
  check_size("bits", bits, count);
  check_apart("bits", bits.data(), packed_bytes(count), "values", values, count * dtype_bytes(dtype));
  SignItem item;
  item.dtype = dtype;
  item.count = count;
  item.values = const_cast<void*>(values);  // packing reads them
  item.bits = bits.data();
  return item;
}

// Checks everything that the backend does not check itself.
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
    LT_REQUIRE(zeros.empty(), "got memory for zeros with tie rule %d, wanted it with rule 'zero' only",
               static_cast<int>(vote.ties));
  }
  for (const std::byte* ballot : vote.ballots) {
    check_same_or_apart("ballots", ballot, "a part of the result", result.data(), bytes);
    if (!zeros.empty()) check_apart("zeros", zeros.data(), bytes, "a ballot", ballot, bytes);
  }
  if (vote.ties == Ties::kPrevious)
    check_same_or_apart("earlier signs", vote.previous, "a part of the result", result.data(), bytes);
}

// Votes on a part of the signs in the order "big", from byte `first`. A vote looks at bits one by one, so their place
// in a byte matters only to the hash and at the end. The bits of the hash are the result of a vote in which nobody
// takes part; mirrored, they serve as the earlier result that decides ties.
void vote_big(Backend& backend, void* stream, const VoteItem& whole, int64_t first, int64_t signs, int threads,
              std::vector<const std::byte*>& ballots, std::vector<std::byte>& hash) {
  const int64_t bytes = packed_bytes(signs);
  VoteItem item = whole;
  item.count = 8 * bytes;
  item.result += first;
  if (item.zeros) item.zeros += first;
  if (item.previous) item.previous += first;
  for (size_t v = 0; v < ballots.size(); ++v) ballots[v] = whole.ballots[v] ? whole.ballots[v] + first : nullptr;
  item.ballots = ballots;
  if (item.ties == TieRule::kHash) {
    VoteItem nobody;
    nobody.count = item.count;
    nobody.seed = item.seed, nobody.step = item.step;
    nobody.first_index = item.first_index + 8 * static_cast<uint64_t>(first);
    nobody.result = hash.data();
    backend.vote_signs(nobody, threads, stream);
    reverse_bits(hash.data(), hash.data(), bytes);
    item.ties = TieRule::kPrevious;
    item.previous = hash.data();
  }
  backend.vote_signs(item, threads, stream);
  clear_tail(item.result, signs);
  if (item.zeros) clear_tail(item.zeros, signs);
}

}  // namespace

Backend& host_backend() {
  static const std::unique_ptr<Backend> backend = cpu::make_backend("");
  return *backend;
}

void pack_on(Backend& backend, void* stream, DType dtype, const void* values, int64_t count, std::span<std::byte> bits,
             const Options& options) {
  const bool big = is_big(backend, options);
  const int threads = threads_of(options);
  const SignItem item = packed_item(dtype, values, count, bits);
  if (big)
    cpu::pack_signs(item, {.big = true}, threads);
  else
    backend.pack_signs({&item, 1}, threads, stream);
}

void pack_sign_bits(DType dtype, const void* values, int64_t count, std::span<std::byte> bits, const Options& options) {
  const bool big = is_big(host_backend(), options);
  cpu::pack_signs(packed_item(dtype, values, count, bits), {big, true}, threads_of(options));
}

void unpack_on(Backend& backend, void* stream, std::span<const std::byte> bits, DType dtype, void* values,
               int64_t count, std::span<const std::byte> zeros, const Options& options) {
  const bool big = is_big(backend, options);
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
  item.bits = const_cast<std::byte*>(bits.data());  // unpacking reads them
  item.zeros = zeros.data();
  if (big)
    cpu::unpack_signs(item, {.big = true}, threads);
  else
    backend.unpack_signs({&item, 1}, threads, stream);
}

void majority_on(Backend& backend, void* stream, const Vote& vote, std::span<std::byte> result,
                 std::span<std::byte> zeros) {
  const bool big = is_big(backend, vote.options);
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
  if (!big) {
    backend.vote_signs(item, threads, stream);
    return;
  }
  check(item);
  const int64_t bytes = packed_bytes(vote.count);
  std::vector<const std::byte*> ballots(vote.ballots.size());
  std::vector<std::byte> hash(vote.ties == Ties::kHash ? static_cast<size_t>(std::min(bytes, kPieceBytes)) : 0);
  for (int64_t first = 0; first < bytes; first += kPieceBytes)
    vote_big(backend, stream, item, first, std::min(8 * kPieceBytes, vote.count - 8 * first), threads, ballots, hash);
}

void pack(DType dtype, const void* values, int64_t count, std::span<std::byte> bits, const Options& options) {
  pack_on(host_backend(), nullptr, dtype, values, count, bits, options);
}

void unpack(std::span<const std::byte> bits, DType dtype, void* values, int64_t count, std::span<const std::byte> zeros,
            const Options& options) {
  unpack_on(host_backend(), nullptr, bits, dtype, values, count, zeros, options);
}

void majority(const Vote& vote, std::span<std::byte> result, std::span<std::byte> zeros) {
  majority_on(host_backend(), nullptr, vote, result, zeros);
}

}  // namespace lowtide::sign
