#include "memory/transfers.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <thread>

#include "memory/descriptor.h"

namespace lowtide {
namespace {

// The first retries follow at once, which suits signals; later retries wait, which gives a busy system time to recover.
constexpr int kHastyRetries = 80;
static_assert(kHastyRetries < kMaxRetries);

// io_uring answers ECANCELED if the thread that submitted a request has ended.
bool is_transient(int64_t result) { return result == -EINTR || result == -EAGAIN || result == -ECANCELED; }

}  // namespace

Transfers::Transfers(std::unique_ptr<IoEngine> engine, int depth, int64_t request_bytes, bool aligned)
    : engine_(std::move(engine)),
      request_bytes_(request_bytes),
      aligned_(aligned),
      pieces_(static_cast<size_t>(depth)) {
  free_.reserve(pieces_.size());
  for (Piece& piece : pieces_) free_.push_back(&piece);
}

Transfers::~Transfers() {
  if (!engine_) return;
  waiting_.clear();
  while (engine_->next(true)) {
  }
}

Transfers::Ticket Transfers::start(bool write, int64_t offset, std::byte* memory, int64_t bytes) {
  Transfer transfer{.memory = memory, .offset = offset, .bytes = bytes, .under_way = 0, .outcome = {}};
  transfer.outcome.write = write;
  const auto added = transfers_.emplace(last_ + 1, transfer).first;
  try {
    if (bytes > 0) waiting_.push_back(&added->second);
  } catch (...) {
    transfers_.erase(added);
    throw;
  }
  while (IoRequest* const over = engine_->next(false)) settle(static_cast<Piece*>(over));
  issue();
  return ++last_;
}

Transfers::Outcome Transfers::wait(Ticket ticket) {
  const auto found = transfers_.find(ticket);
  Transfer& transfer = found->second;
  while (!transfer.over()) {
    issue();
    if (IoRequest* const over = engine_->next(true)) settle(static_cast<Piece*>(over));
  }
  const Outcome outcome = transfer.outcome;
  std::erase(waiting_, &transfer);
  transfers_.erase(found);
  issue();
  return outcome;
}

void Transfers::issue() {
  while (!free_.empty() && !waiting_.empty()) {
    Transfer& transfer = *waiting_.front();
    if (transfer.bytes == 0 || transfer.outcome.failed) {
      waiting_.pop_front();
      continue;
    }
    Piece* const piece = free_.back();
    free_.pop_back();
    piece->write = transfer.outcome.write;
    piece->memory = transfer.memory;
    piece->offset = transfer.offset;
    piece->bytes = std::min(transfer.bytes, request_bytes_);
    piece->of = &transfer;
    piece->stalls = 0;
    transfer.memory += piece->bytes;
    transfer.offset += piece->bytes;
    transfer.bytes -= piece->bytes;
    ++transfer.under_way;
    engine_->start(piece);
  }
}

void Transfers::settle(Piece* piece) {
  const int64_t result = piece->result;
  if (result == piece->bytes || piece->of->outcome.failed) return finish(piece);
  if (result < 0 && !is_transient(result)) return fail(piece, static_cast<int>(-result));
  if (result > piece->bytes) return fail(piece, EIO);
  if (result == 0 && !piece->write) return fail(piece, 0);
  int64_t done = std::max(result, int64_t{0});
  if (aligned_) done = done / kAlignment * kAlignment;
  if (done > 0) {
    piece->memory += done;
    piece->offset += done;
    piece->bytes -= done;
    piece->stalls = 0;
  } else {
    if (++piece->stalls > kMaxRetries) return fail(piece, result < 0 ? static_cast<int>(-result) : EIO);
    if (piece->stalls > kHastyRetries) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  engine_->start(piece);
}

void Transfers::fail(Piece* piece, int system_error) {
  Outcome& outcome = piece->of->outcome;
  outcome.failed = true;
  outcome.system_error = system_error;
  outcome.offset = piece->offset;
  outcome.bytes = piece->bytes;
  finish(piece);
}

void Transfers::finish(Piece* piece) {
  --piece->of->under_way;
  free_.push_back(piece);
}

}  // namespace lowtide
