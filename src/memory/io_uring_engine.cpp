#include "memory/io_engine.h"

#ifdef LOWTIDE_HAVE_LIBURING

#include <liburing.h>

#include <cerrno>
#include <chrono>
#include <thread>
#include <vector>

namespace lowtide {
namespace {

constexpr int kMaxRefusals = 1000;  // refusals for lack of resources that are accepted; about a second

class IoUringEngine : public IoEngine {
 public:
  IoUringEngine(int fd, int depth) : fd_(fd) {
    queued_.reserve(static_cast<size_t>(depth));
    refused_.reserve(static_cast<size_t>(depth));
    if (io_uring_queue_init(static_cast<unsigned>(depth), &ring_, 0) < 0) return;
    made_ = true;
    io_uring_probe* const probe = io_uring_get_probe_ring(&ring_);  // old kernels have io_uring but not IORING_OP_READ
    const bool knows_ops =
        probe && io_uring_opcode_supported(probe, IORING_OP_READ) && io_uring_opcode_supported(probe, IORING_OP_WRITE);
    if (probe) io_uring_free_probe(probe);
    works_ = knows_ops && takes_requests();
  }
  ~IoUringEngine() override {
    if (made_) io_uring_queue_exit(&ring_);
  }
  bool usable() const { return works_; }

  void start(IoRequest* request) noexcept override {
    io_uring_sqe* const sqe = broken_ ? nullptr : io_uring_get_sqe(&ring_);
    if (!sqe) {
      request->result = broken_ ? -broken_ : -EAGAIN;
      refused_.push_back(request);
      return;
    }
    const auto bytes = static_cast<unsigned>(request->bytes);
    const auto offset = static_cast<uint64_t>(request->offset);
    if (request->write) {
      io_uring_prep_write(sqe, fd_, request->memory, bytes, offset);
    } else {
      io_uring_prep_read(sqe, fd_, request->memory, bytes, offset);
    }
    io_uring_sqe_set_data(sqe, request);
    queued_.push_back(request);
    taken(io_uring_submit(&ring_));
  }

  IoRequest* next(bool block) noexcept override {
    for (int refusals = 0;;) {
      if (!refused_.empty()) {
        IoRequest* const request = refused_.back();
        refused_.pop_back();
        return request;
      }
      io_uring_cqe* cqe = nullptr;
      if (in_kernel_ > 0 && io_uring_peek_cqe(&ring_, &cqe) == 0) {
        auto* const request = static_cast<IoRequest*>(io_uring_cqe_get_data(cqe));
        request->result = cqe->res;
        io_uring_cqe_seen(&ring_, cqe);
        --in_kernel_;
        return request;
      }
      if (queued_.empty() && (in_kernel_ == 0 || !block)) return nullptr;
      int result = 0;
      if (!broken_) result = block ? io_uring_submit_and_wait(&ring_, 1) : io_uring_submit(&ring_);
      taken(result);
      if (!block) return nullptr;
      const bool transient = result == -EINTR || result == -EAGAIN || result == -EBUSY;
      if (result < 0 && (!transient || ++refusals > kMaxRefusals)) break_with(-result);
      // A broken ring still finishes the requests that the kernel has taken; their memory must not be returned earlier.
      if (broken_ || (result < 0 && result != -EINTR)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

  const char* name() const override { return "io_uring"; }

 private:
  // Returns true if the ring executes requests. A sandbox may allow a ring and refuse its requests.
  bool takes_requests() {
    io_uring_prep_nop(io_uring_get_sqe(&ring_));
    io_uring_cqe* cqe = nullptr;
    int result = io_uring_submit(&ring_);
    while (result == 1 && (result = io_uring_wait_cqe(&ring_, &cqe)) == -EINTR) result = 1;
    if (result < 0 || !cqe) return false;
    io_uring_cqe_seen(&ring_, cqe);
    return true;
  }

  void taken(int count) {  // the kernel takes requests in the order of submission
    if (count <= 0) return;
    queued_.erase(queued_.begin(), queued_.begin() + count);
    in_kernel_ += count;
  }

  void break_with(int error) {
    broken_ = error;
    for (IoRequest* const request : queued_) {
      request->result = -error;
      refused_.push_back(request);
    }
    queued_.clear();
  }

  const int fd_;
  io_uring ring_{};
  bool made_ = false, works_ = false;
  int broken_ = 0;     // the ring's error (errno); a broken ring gets no new requests
  int in_kernel_ = 0;  // requests that the kernel has taken
  std::vector<IoRequest*> queued_, refused_;
};

}  // namespace

std::unique_ptr<IoEngine> make_io_uring_engine(int fd, int depth) {
  auto engine = std::make_unique<IoUringEngine>(fd, depth);
  if (!engine->usable()) return nullptr;
  return engine;
}

}  // namespace lowtide

#else

namespace lowtide {

std::unique_ptr<IoEngine> make_io_uring_engine(int, int) { return nullptr; }

}  // namespace lowtide

#endif
