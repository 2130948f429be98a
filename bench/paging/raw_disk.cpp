// Measures the disk alone: a plain io_uring loop reads every block of a file once and writes it once, `lag` blocks
// behind, with `depth` requests under way, past the page cache. That is the traffic of a step whose state is all on
// disk, without the step. Every line of input starts one round over the same file and prints its seconds.
//   raw_disk DIRECTORY BYTES BLOCK DEPTH LAG
#include <fcntl.h>
#include <liburing.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

int main(int argc, char** argv) {
  if (argc != 6) return std::fprintf(stderr, "raw_disk DIRECTORY BYTES BLOCK DEPTH LAG\n"), 2;
  const long bytes = std::atol(argv[2]), block = std::atol(argv[3]), depth = std::atol(argv[4]);
  const long lag = std::atol(argv[5]), blocks = bytes / block;
  int fd = open(argv[1], O_TMPFILE | O_RDWR | O_DIRECT, 0600);
  const bool direct = fd >= 0;
  if (!direct) fd = open(argv[1], O_TMPFILE | O_RDWR, 0600);
  if (fd < 0 || posix_fallocate(fd, 0, bytes) != 0) return std::perror("raw_disk"), 1;
  auto* memory = static_cast<char*>(std::aligned_alloc(4096, static_cast<size_t>(depth * block)));
  std::memset(memory, 1, static_cast<size_t>(depth * block));
  io_uring ring;
  if (io_uring_queue_init(static_cast<unsigned>(depth), &ring, 0) < 0) return std::perror("io_uring"), 1;
  std::vector<int> idle;
  for (int i = 0; i < depth; ++i) idle.push_back(i);
  const auto finish_one = [&] {
    io_uring_cqe* done;
    if (io_uring_wait_cqe(&ring, &done) < 0 || done->res != block)
      std::fprintf(stderr, "failed: %d\n", done->res), std::exit(1);
    idle.push_back(static_cast<int>(done->user_data));
    io_uring_cqe_seen(&ring, done);
  };
  const auto start = [&](bool write, long index) {
    if (idle.empty()) finish_one();
    const int slot = idle.back();
    idle.pop_back();
    io_uring_sqe* request = io_uring_get_sqe(&ring);
    char* at = memory + slot * block;
    if (write)
      io_uring_prep_write(request, fd, at, static_cast<unsigned>(block), static_cast<unsigned long>(index * block));
    else
      io_uring_prep_read(request, fd, at, static_cast<unsigned>(block), static_cast<unsigned long>(index * block));
    request->user_data = static_cast<unsigned long>(slot);
    io_uring_submit(&ring);
  };
  for (long i = 0; i < blocks; ++i) start(true, i);  // so that there is something to read
  while (static_cast<long>(idle.size()) < depth) finish_one();
  while (std::getchar() != EOF) {
    const auto begin = std::chrono::steady_clock::now();
    for (long i = 0; i < blocks + lag; ++i) {
      if (i < blocks) start(false, i);
      if (i >= lag) start(true, i - lag);
    }
    while (static_cast<long>(idle.size()) < depth) finish_one();
    std::printf("%.6f\n", std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    std::fflush(stdout);
  }
  return 0;
}
