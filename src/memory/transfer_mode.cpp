#include "memory/transfer_mode.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "backend/backend.h"
#include "backend/catalog.h"
#include "core/buffer.h"
#include "core/error.h"
#include "core/layout.h"
#include "memory/descriptor.h"

namespace lowtide {
namespace {

constexpr char kFormat[] = "lowtide transfer rates 1\n";
constexpr size_t kLongest = 4096;

// Uses FNV-1a. Any hash that gives different keys different names will do, because the file also contains the key.
std::string file_for(const std::string& directory, const std::string& key) {
  uint64_t hash = 0xcbf29ce484222325ull;
  for (const char c : key) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
  return format("%s/transfer-%016" PRIx64, directory.c_str(), hash);
}

std::string one_line(std::string key) {
  for (char& c : key)
    if (c == '\n') c = ' ';
  return key;
}

std::string text_of(const std::string& key, const TransferRates& r) {
  return kFormat + one_line(key) + format("\n%a %a %a %a %a\n", r.in, r.out, r.copy, r.hybrid, r.zero_copy);
}

// Returns the whole file, or "" if it cannot be read.
std::string read_file(Env& env, const std::string& path) {
  const Descriptor file = Descriptor::open(env, path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (file.get() < 0) return "";
  std::string text(kLongest, '\0');
  const int64_t got = env.pread(file.get(), text.data(), static_cast<int64_t>(text.size()), 0);
  text.resize(got > 0 ? static_cast<size_t>(got) : 0);
  return text;
}

std::string host_name() {
  char name[256] = {};
  return ::gethostname(name, sizeof name - 1) == 0 ? name : "";
}

using Clock = std::chrono::steady_clock;

// State of 8-bit AdamW for bfloat16 parameters and gradients, cut into chunks, with two copies each in host memory and
// in device memory.
class Bench {
 public:
  static constexpr int kChunks = 4;

  Bench(Backend& backend, int64_t bytes)
      : backend_(backend),
        device_(*backend.device()),
        chunk_(bytes / kChunks / kPageBytes * kPageBytes),
        elements_(chunk_ * kBlockElements / (2 * (kBlockElements + int64_t{sizeof(float)})) / kBlockElements *
                  kBlockElements),
        layout_(Layout::make(std::array{elements_}, {})) {
    for (void*& queue : queues_) queue = device_.make_queue();
    for (DeviceBytes& memory : host_) {
      memory = DeviceBytes(device_, MemoryKind::kPinned, kChunks * chunk_);
      std::memset(memory.data(), 0, static_cast<size_t>(memory.bytes()));
    }
    for (DeviceBytes& memory : near_) memory = DeviceBytes(device_, MemoryKind::kDevice, kChunks * chunk_);
    tensors_ = DeviceBytes(device_, MemoryKind::kDevice, 4 * elements_);
    for (const DeviceBytes* memory : {&near_[0], &near_[1], &tensors_})
      device_.fill(queues_[1], memory->data(), 0, 1, memory->bytes());
    finish();
    const RuleInput hyper{.lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .first = true};
    rule_info(rule_).make_args(hyper, args_);
  }
  ~Bench() {
    try {
      finish();
    } catch (...) {  // a lost device no longer uses the memory
    }
  }

  void in(int i) { device_.copy(queues_[0], at(near_[0], i), at(host_[0], i), chunk_); }
  void out(int i) { device_.copy(queues_[2], at(host_[1], i), at(near_[1], i), chunk_); }
  void step(const DeviceBytes& from, const DeviceBytes& to, int i) {
    StepItem item;
    item.param = tensors_.data();
    item.grad = tensors_.data() + 2 * elements_;
    item.param_layout = item.grad_layout = &layout_;
    item.param_dtype = item.grad_dtype = DType::kBF16;
    item.rule = rule_;
    item.codec = codec_;
    item.args = args_;
    std::byte* const codes = at(from, i);
    for (int k = 0; k < 2; ++k) {
      item.codes[k] = codes + k * elements_;
      item.scales[k] = reinterpret_cast<float*>(codes + 2 * elements_) + k * (elements_ / kBlockElements);
    }
    item.write_offset = at(to, i) - codes;
    backend_.step({&item, 1}, 1, false, queues_[1]);
  }
  void step_in_place(int i) { step(host_[0], host_[0], i); }
  void step_hybrid(int i) {
    in(i);
    device_.wait(queues_[1], device_.record(queues_[0]));
    step(near_[0], host_[1], i);
  }

  // Returns the bytes per second when `queue` is called for all chunks: the best of three runs after a warm-up.
  template <class Queue>
  double rate(Queue&& queue) {
    double best = 0;
    const auto begin = Clock::now();
    for (int pass = 0; pass < 4; ++pass) {
      const auto start = Clock::now();
      for (int i = 0; i < kChunks; ++i) queue(i);
      finish();
      const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
      if (pass > 0 || seconds > 0.025) best = std::max(best, static_cast<double>(kChunks * chunk_) / seconds);
      if (std::chrono::duration<double>(Clock::now() - begin).count() > 0.025) break;  // one run of a slow machine
    }
    return best;
  }

 private:
  std::byte* at(const DeviceBytes& memory, int i) const { return memory.data() + i * chunk_; }
  void finish() {
    for (void* const queue : queues_) device_.host_wait(device_.record(queue));
  }

  Backend& backend_;
  Device& device_;
  int64_t chunk_, elements_;
  Layout layout_;
  const int rule_ = find_rule("adamw"), codec_ = find_codec("dynamic8");
  alignas(16) std::byte args_[kArgsBytes] = {};
  void* queues_[3] = {};
  DeviceBytes host_[2], near_[2], tensors_;
};

}  // namespace

TransferRates measure_transfer_rates(Backend& backend, int64_t bytes) {
  Bench bench(backend, bytes);
  TransferRates rates;
  rates.in = bench.rate([&](int i) { bench.in(i); });
  rates.out = bench.rate([&](int i) { bench.out(i); });
  rates.copy = bench.rate([&](int i) { bench.in(i), bench.out(i); });
  rates.hybrid = bench.rate([&](int i) { bench.step_hybrid(i); });
  rates.zero_copy = bench.rate([&](int i) { bench.step_in_place(i); });
  return rates;
}

std::optional<TransferMode> find_transfer_mode(const std::string& name) {
  if (name.empty()) return std::nullopt;
  for (const TransferMode transfer : {TransferMode::kCopy, TransferMode::kHybrid, TransferMode::kZeroCopy})
    if (name == transfer_mode_name(transfer)) return transfer;
  fail(ErrorKind::kInvalidArgument,
       "got transfer='%s', wanted 'copy', 'zero_copy', 'hybrid', or '' to have it measured", name.c_str());
}

std::string cache_directory() {
  const char* const own = std::getenv("XDG_CACHE_HOME");
  if (own && own[0] == '/') return std::string(own) + "/lowtide";  // the XDG specification ignores relative paths
  const char* const home = std::getenv("HOME");
  return home && home[0] == '/' ? std::string(home) + "/.cache/lowtide" : "";
}

std::optional<TransferRates> remembered_transfer_rates(Env& env, const std::string& directory, const std::string& key) {
  const std::string text = read_file(env, file_for(directory, key)), head = kFormat + one_line(key) + "\n";
  TransferRates r;
  if (text.compare(0, head.size(), head) != 0) return std::nullopt;
  if (std::sscanf(text.c_str() + head.size(), "%la %la %la %la %la", &r.in, &r.out, &r.copy, &r.hybrid, &r.zero_copy) !=
      5)
    return std::nullopt;
  for (const double rate : {r.in, r.out, r.copy, r.hybrid, r.zero_copy})
    if (!std::isfinite(rate) || rate <= 0) return std::nullopt;
  return text == text_of(key, r) ? std::optional(r) : std::nullopt;
}

void remember_transfer_rates(Env& env, const std::string& directory, const std::string& key,
                             const TransferRates& rates) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  const std::string path = file_for(directory, key), text = text_of(key, rates);
  const std::string temporary = format("%s.%d.tmp", path.c_str(), static_cast<int>(::getpid()));
  if (text.size() > kLongest) return;
  Descriptor file = Descriptor::open(env, temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (file.get() < 0) return;
  const auto bytes = static_cast<int64_t>(text.size());
  const bool written = env.pwrite(file.get(), text.data(), bytes, 0) == bytes;
  if (file.close() != 0 || !written || env.rename(temporary.c_str(), path.c_str()) != 0) env.unlink(temporary.c_str());
}

TransferMode choose_transfer_mode(const TransferRates& rates) {
  const TransferMode other = rates.zero_copy >= rates.hybrid ? TransferMode::kZeroCopy : TransferMode::kHybrid;
  return std::max(rates.zero_copy, rates.hybrid) > 1.05 * rates.copy ? other : TransferMode::kCopy;
}

TransferMode fastest_transfer_mode(Env& env, Backend& backend, int64_t bytes) {
  const std::string device = backend.device()->describe(), directory = device.empty() ? "" : cache_directory();
  const std::string key = std::string(backend.name()) + "; " + device + "; " + host_name();
  if (!directory.empty())
    if (const std::optional<TransferRates> rates = remembered_transfer_rates(env, directory, key))
      return choose_transfer_mode(*rates);
  try {
    const TransferRates rates = measure_transfer_rates(backend, bytes);
    if (!directory.empty()) remember_transfer_rates(env, directory, key, rates);
    return choose_transfer_mode(rates);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kOutOfMemory) throw;
    return TransferMode::kCopy;
  }
}

}  // namespace lowtide
