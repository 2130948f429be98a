// One AdamW step whose state does not fit in memory: explicit paging (a budget), or state in a file that is mapped
// shared, which the operating system pages. The same kernels, rule, state format, elements and values, so that both end
// with the same bits. Whoever starts it sets the memory limit, between the answers to "ready" and "state".
//   os_paging explicit|mapped|mapped-sequential DIRECTORY STATE ELEMENTS BUDGET CHUNK
// Answers lines of input: state -> bytes of state in RAM by its own account; step -> its seconds; settle (all written
// back) -> seconds of that; end -> hash of the parameter.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <iostream>
#include <memory>
#include <string>

#include "backend/cpu/cpu_backend.h"
#include "backend/catalog.h"
#include "core/thread_pool.h"
#include "lowtide/optimizer.h"
#include "state.h"

namespace {

using lowtide::Hyper;

class Contender {
 public:
  virtual ~Contender() = default;
  virtual int64_t resident() = 0;  // bytes of state in RAM, -1: the operating system knows
  virtual void step() = 0;
  virtual void settle() = 0;
};

class Explicit final : public Contender {
 public:
  Explicit(paging::Tensors& tensors, const std::string& disk, const std::string& state, int64_t budget, int64_t chunk)
      : optimizer_({.rule = "adamw",
                    .nonfinite = lowtide::NonFinite::kPropagate,
                    .memory = {.host = budget, .disk = disk, .chunk = chunk}}),
        gradient_{tensors.grad.data()} {
    lowtide::GroupOptions group;
    group.hyper = lowtide::default_hyper("adamw");
    group.state = state;
    optimizer_.add_param(optimizer_.add_group(group),
                         {tensors.param.data(), lowtide::DType::kF32, {tensors.rows, tensors.columns}, {}});
    optimizer_.allocate_state(0);
  }
  int64_t resident() override { return optimizer_.report().allocated_bytes; }
  void step() override { optimizer_.step({&gradient_, 1}); }
  void settle() override {}  // a step has waited for its writes; they bypass the page cache where that is possible

 private:
  lowtide::Optimizer optimizer_;
  lowtide::Gradient gradient_;
};

class Mapped final : public Contender {
 public:
  Mapped(paging::Tensors& tensors, const std::string& disk, const std::string& state, bool sequential)
      : backend_(lowtide::cpu::make_backend("")),
        layout_(lowtide::Layout::make(std::vector<int64_t>{tensors.rows, tensors.columns}, {})) {
    const int rule = lowtide::find_rule("adamw"), codec = lowtide::find_codec(state);
    const lowtide::RuleInfo& info = lowtide::rules()[static_cast<size_t>(rule)];
    const lowtide::CodecInfo& format = lowtide::codecs()[static_cast<size_t>(codec)];
    fd_ = open(disk.c_str(), O_TMPFILE | O_RDWR, 0600);
    if (fd_ < 0) paging::die(disk.c_str());
    const lowtide::StateFormat* const of = format.format;
    const int64_t codes = of->code_bytes(layout_.numel);
    const int64_t scales = of->scale_bytes(layout_.blocks(lowtide::kBlockElements));
    // Written, not only allocated: reading an extent that was never written is free and would flatter the mapping.
    for (int k = 0; k < info.states; ++k) fill(codes, of[info.signed_mask >> k & 1].zero);
    for (int k = 0; k < info.states; ++k) fill(scales, 0);
    settle();
    void* const memory = mmap(nullptr, static_cast<size_t>(bytes_), PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
    if (memory == MAP_FAILED) paging::die("mmap");
    if (sequential && madvise(memory, static_cast<size_t>(bytes_), MADV_SEQUENTIAL) != 0) paging::die("madvise");
    auto* at = static_cast<std::byte*>(memory);
    for (int k = 0; k < info.states; ++k, at += padded(codes)) item_.codes[k] = at;
    for (int k = 0; k < info.states && scales; ++k, at += padded(scales))
      item_.scales[k] = reinterpret_cast<float*>(at);
    item_.param = tensors.param.data(), item_.grad = tensors.grad.data();
    item_.param_layout = item_.grad_layout = &layout_;
    item_.rule = rule, item_.codec = codec, item_.args = args_;
  }
  ~Mapped() override { close(fd_); }
  Mapped(const Mapped&) = delete;
  Mapped& operator=(const Mapped&) = delete;

  int64_t resident() override { return -1; }
  void step() override {
    const Hyper h = lowtide::default_hyper("adamw");
    const bool first = steps_++ == 0;
    lowtide::rules()[static_cast<size_t>(item_.rule)].make_args({.lr = h.lr,
                                                                 .beta1 = h.beta1,
                                                                 .beta2 = h.beta2,
                                                                 .eps = h.eps,
                                                                 .weight_decay = h.weight_decay,
                                                                 .t = static_cast<double>(steps_),
                                                                 .first = first},
                                                                args_);
    backend_->step({&item_, 1}, lowtide::available_threads(), false, nullptr);
  }
  void settle() override {
    if (fdatasync(fd_) != 0) paging::die("fdatasync");
  }

 private:
  static int64_t padded(int64_t bytes) { return (bytes + 4095) / 4096 * 4096; }
  void fill(int64_t bytes, unsigned value) {
    const std::vector<char> block(1 << 20, static_cast<char>(value));
    for (int64_t left = padded(bytes); left > 0;) {
      const auto part = static_cast<size_t>(std::min<int64_t>(left, static_cast<int64_t>(block.size())));
      const ssize_t done = pwrite(fd_, block.data(), part, bytes_);
      if (done <= 0) paging::die("pwrite");
      bytes_ += done, left -= done;
    }
  }

  std::unique_ptr<lowtide::Backend> backend_;
  lowtide::Layout layout_;
  lowtide::StepItem item_;
  alignas(64) std::byte args_[lowtide::kArgsBytes];
  int fd_ = -1;
  int64_t bytes_ = 0;
  int64_t steps_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 7)
    return std::fprintf(stderr, "os_paging explicit|mapped|mapped-sequential DIRECTORY STATE ELEMENTS BUDGET CHUNK\n"),
           2;
  const std::string kind = argv[1], disk = argv[2], state = argv[3];
  paging::Tensors tensors(std::atol(argv[4]));
  const int64_t budget = std::atol(argv[5]), chunk = std::atol(argv[6]);
  std::cout << "ready" << std::endl;
  std::unique_ptr<Contender> contender;
  const auto seconds = [](auto&& work) {
    const auto start = std::chrono::steady_clock::now();
    work();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  try {
    for (std::string line; std::getline(std::cin, line);) {
      if (line == "state") {
        if (kind == "explicit")
          contender = std::make_unique<Explicit>(tensors, disk, state, budget, chunk);
        else
          contender = std::make_unique<Mapped>(tensors, disk, state, kind == "mapped-sequential");
        std::cout << contender->resident() << std::endl;
      } else if (line == "step") {
        std::cout << seconds([&] { contender->step(); }) << std::endl;
      } else if (line == "settle") {
        std::cout << seconds([&] { contender->settle(); }) << std::endl;
      } else if (line == "end") {
        std::cout << std::hex << tensors.hash() << std::endl;
        return 0;
      }
    }
  } catch (const std::exception& error) {
    return std::fprintf(stderr, "os_paging: %s\n", error.what()), 1;
  }
  return 0;
}
