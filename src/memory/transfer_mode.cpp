#include "memory/transfer_mode.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "backend/backend.h"
#include "core/error.h"
#include "memory/descriptor.h"

namespace lowtide {
namespace {

constexpr char kFormat[] = "lowtide transfer rates 1\n";
constexpr size_t kLongest = 4096;

// FNV-1a: any that gives different keys different names; the key itself is in the file.
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

// All of it, "" if it cannot be read.
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

}  // namespace

std::optional<TransferMode> find_transfer_mode(const std::string& name) {
  if (name.empty()) return std::nullopt;
  for (const TransferMode transfer : {TransferMode::kCopy, TransferMode::kHybrid, TransferMode::kZeroCopy})
    if (name == transfer_mode_name(transfer)) return transfer;
  fail(ErrorKind::kInvalidArgument,
       "got transfer='%s', wanted 'copy', 'zero_copy', 'hybrid', or '' to have it measured", name.c_str());
}

std::string cache_directory() {
  const char* const own = std::getenv("XDG_CACHE_HOME");
  if (own && own[0] == '/') return std::string(own) + "/lowtide";  // relative ones are to be ignored
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
