#include "core/error.h"
#include "lowtide/sign_collective.h"

namespace lowtide {

Transport::~Transport() = default;

CallbackTransport::CallbackTransport(int rank, int size, Call all_to_all, Call all_gather)
    : rank_(rank), size_(size), all_to_all_(std::move(all_to_all)), all_gather_(std::move(all_gather)) {
  LT_REQUIRE(size >= 1 && rank >= 0 && rank < size, "got rank %d of %d, wanted 0 <= rank < size", rank, size);
  LT_REQUIRE(all_to_all_ && all_gather_, "got no %s", all_to_all_ ? "all_gather" : "all_to_all");
}

void CallbackTransport::all_to_all(const std::byte* send, std::byte* receive, int64_t bytes_each) {
  all_to_all_(send, receive, bytes_each);
}

void CallbackTransport::all_gather(const std::byte* send, std::byte* receive, int64_t bytes) {
  all_gather_(send, receive, bytes);
}

}  // namespace lowtide
