#include "memory/mapped_file.h"

#include <algorithm>
#include <cerrno>
#include <vector>

#include "core/error.h"

namespace lowtide {
namespace {

constexpr int64_t kPieceBytes = 1 << 20;  // size of each read; stays in a processor's cache

int64_t pages(int64_t bytes) {
  LT_REQUIRE(bytes >= 1 && bytes <= int64_t{1} << 62, "got a file of %lld bytes for weights, wanted 1 to 2^62",
             ll(bytes));
  return round_up(bytes, kPageBytes);
}

}  // namespace

MappedFile::MappedFile(Env& env, const std::string& directory, int64_t bytes)
    : env_(env), bytes_(pages(bytes)), unnamed_(env, directory, bytes_, /*direct=*/false) {
  void* memory = nullptr;
  const int error = -env.map_file(unnamed_.file.get(), static_cast<size_t>(bytes_), &memory);
  if (error == ENOMEM) fail(ErrorKind::kOutOfMemory, "could not map %lld bytes of weights", ll(bytes_));
  if (error) fail_io(error, "could not map %lld bytes of weights in %s", ll(bytes_), unnamed_.path.c_str());
  memory_ = {static_cast<std::byte*>(memory), Unmap{&env, static_cast<size_t>(bytes_)}};
}

void MappedFile::check(int64_t offset, int64_t bytes) const {
  LT_REQUIRE(offset >= 0 && bytes >= 0 && bytes <= bytes_ && offset <= bytes_ - bytes && offset % kPageBytes == 0 &&
                 bytes % kPageBytes == 0,
             "got %lld bytes at offset %lld, wanted multiples of %lld within the %lld bytes of weights", ll(bytes),
             ll(offset), ll(kPageBytes), ll(bytes_));
}

void MappedFile::bring(int64_t offset, int64_t bytes) {
  check(offset, bytes);
  if (bytes == 0) return;  // to the system, 0 means up to the end of the file

  env_.read_ahead(unnamed_.file.get(), offset, bytes);  // only advice
  if (env_.map_pages(data() + offset, bytes) == 0) {
    read_ += bytes;
    return;
  }
  // Linux before 5.14 cannot map pages ahead, and errors of the disk have no names there.
  std::vector<std::byte> piece(static_cast<size_t>(std::min(bytes, kPieceBytes)));
  for (int64_t done = 0; done < bytes;) {  // reading fills the page cache and reports errors
    const int64_t wanted = std::min(bytes - done, kPieceBytes);
    const int64_t got =
        retry_interrupted([&] { return env_.pread(unnamed_.file.get(), piece.data(), wanted, offset + done); });
    if (got <= 0) {
      fail_io(static_cast<int>(-got), "could not read %lld bytes at offset %lld of the weights in %s%s", ll(wanted),
              ll(offset + done), unnamed_.path.c_str(), got ? "" : ": the file has been made shorter by another");
    }
    done += got;
    read_ += got;
  }
}

void MappedFile::let_go(int64_t offset, int64_t bytes, bool changed) {
  check(offset, bytes);
  if (bytes == 0) return;
  if (changed) {
    const int error =
        -retry_interrupted([&] { return env_.write_back(unnamed_.file.get(), offset, data() + offset, bytes); });
    if (error) {
      fail_io(error, "could not write %lld bytes at offset %lld of the weights in %s", ll(bytes), ll(offset),
              unnamed_.path.c_str());
    }
    written_ += bytes;
  }
  env_.drop_pages(unnamed_.file.get(), offset, data() + offset, bytes);  // if pages stay, they only take memory
}

}  // namespace lowtide
