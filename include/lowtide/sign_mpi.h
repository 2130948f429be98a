// MPI as a transport of the sign collective. Header only: the user compiles it with the program's MPI; the library
// itself does not depend on MPI.
//
//   lowtide::SignCollective votes(std::make_shared<lowtide::MpiTransport>(MPI_COMM_WORLD, std::chrono::seconds(60)));
//
// Threads: MPI is called in the collective's thread and must have been initialized accordingly (MPI_THREAD_SERIALIZED
// unless it is the main thread). Errors: TransportError, with MPI's text.
#pragma once

#include <mpi.h>

#include <chrono>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "lowtide/sign_collective.h"

namespace lowtide {

class MpiTransport final : public Transport {
 public:
  // Owns a duplicate of `communicator` that returns errors instead of aborting. The constructor is collective over
  // `communicator`; destroy the transport before MPI_Finalize. timeout: for each call; MPI does not tell which ranks
  // are missing.
  explicit MpiTransport(MPI_Comm communicator, std::chrono::milliseconds timeout = std::chrono::minutes(10))
      : timeout_(timeout) {
    check(MPI_Comm_dup(communicator, &communicator_), "MPI_Comm_dup");
    check(MPI_Comm_set_errhandler(communicator_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    check(MPI_Comm_rank(communicator_, &rank_), "MPI_Comm_rank");
    check(MPI_Comm_size(communicator_, &size_), "MPI_Comm_size");
  }
  ~MpiTransport() override {
    if (!under_way_) {
      MPI_Comm_free(&communicator_);
      return;
    }
    // A collective call cannot be cancelled: MPI may still read and write its buffers, so leak them.
    (void)buffers_.release();
  }
  MpiTransport(const MpiTransport&) = delete;
  MpiTransport& operator=(const MpiTransport&) = delete;

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  void all_to_all(const std::byte* send, std::byte* receive, int64_t bytes_each) override {
    call(
        send, bytes_each * size_, receive, bytes_each,
        [this](const void* from, void* to, int count, MPI_Request* on) {
          return MPI_Ialltoall(from, count, MPI_BYTE, to, count, MPI_BYTE, communicator_, on);
        },
        "MPI_Ialltoall");
  }
  void all_gather(const std::byte* send, std::byte* receive, int64_t bytes) override {
    call(
        send, bytes, receive, bytes,
        [this](const void* from, void* to, int count, MPI_Request* on) {
          return MPI_Iallgather(from, count, MPI_BYTE, to, count, MPI_BYTE, communicator_, on);
        },
        "MPI_Iallgather");
  }

 private:
  struct Buffers {
    std::vector<std::byte> send, receive;
  };

  static void check(int code, const char* what) {
    if (code == MPI_SUCCESS) return;
    char text[MPI_MAX_ERROR_STRING] = {};
    int length = 0;
    if (MPI_Error_string(code, text, &length) != MPI_SUCCESS) length = 0;
    throw TransportError(std::string(what) + " failed: " + std::string(text, static_cast<size_t>(length)));
  }

  // Uses its own buffers, which outlive a call that timed out.
  template <class Start>
  void call(const std::byte* send, int64_t send_bytes, std::byte* receive, int64_t bytes, Start&& start,
            const char* what) {
    if (under_way_) throw TransportError("an MPI call that timed out is still under way; restart the ranks");
    // MPI counts in int, even when it adds up the bytes for all ranks.
    if (bytes < 0 || bytes > std::numeric_limits<int>::max() / size_)
      throw TransportError(std::string(what) + " got " + std::to_string(bytes) + " bytes for each of " +
                           std::to_string(size_) +
                           " ranks, wanted fewer than 2^31 in all; vote on fewer signs at a time");
    if (!buffers_) buffers_ = std::make_unique<Buffers>();
    buffers_->send.assign(send, send + send_bytes);
    buffers_->receive.resize(static_cast<size_t>(bytes * size_));
    MPI_Request request = MPI_REQUEST_NULL;
    check(start(buffers_->send.data(), buffers_->receive.data(), static_cast<int>(bytes), &request), what);
    under_way_ = true;
    const auto limit = std::chrono::steady_clock::now() + timeout_;
    for (int done = 0, polls = 0; !done; ++polls) {
      const int code = MPI_Test(&request, &done, MPI_STATUS_IGNORE);
      check(code, what);
      if (!done && std::chrono::steady_clock::now() > limit)
        throw TransportError(std::string(what) + " did not end within " + std::to_string(timeout_.count()) +
                             " ms: a rank did not come");
      constexpr int kBusyPolls = 1000;  // most calls end within these
      if (!done && polls > kBusyPolls) std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
    under_way_ = false;
    std::memcpy(receive, buffers_->receive.data(), buffers_->receive.size());
  }

  std::chrono::milliseconds timeout_;
  MPI_Comm communicator_ = MPI_COMM_NULL;
  int rank_ = 0, size_ = 1;
  bool under_way_ = false;
  std::unique_ptr<Buffers> buffers_;
};

}  // namespace lowtide
