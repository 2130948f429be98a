// Claim: a checkpoint reads back as it was written, and nothing else is accepted as a checkpoint.
#include "optim/checkpoint.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "support/checkpoint_case.h"
#include "support/optimizer_case.h"
#include "support/test.h"

namespace lowtide::testing {
namespace {

using checkpoint::Array;
using checkpoint::Prefix;
using nlohmann::json;

// True if it is refused with the right kind of error; any other exception, or a crash, fails the test.
bool refused(const std::string& path) {
  try {
    load(path);
  } catch (const Error& error) {
    return error.kind() == ErrorKind::kInvalidArgument || error.kind() == ErrorKind::kIo;
  }
  return false;
}

// A file's parts, for reassembling them in other ways.
struct Parts {
  explicit Parts(const std::string& file) : prefix(checkpoint::decode_prefix(file.substr(0, 64))) {
    const auto at = [](int64_t n) { return static_cast<size_t>(n); };
    header = file.substr(64, at(prefix.header_bytes));
    data = file.substr(at(prefix.data_offset()), at(prefix.data_bytes));
    table.resize(at(prefix.pieces));
    if (!table.empty()) std::memcpy(table.data(), file.data() + prefix.table_offset(), table.size() * 8);
    for (const Array& array : checkpoint::arrays_of(checkpoint::decode_header(header))) {
      for (int64_t done = 0; done < array.bytes; done += prefix.piece_bytes)
        pieces.emplace_back(at(array.offset + done), at(std::min(prefix.piece_bytes, array.bytes - done)));
    }
  }
  std::string forged() const { return forge(header, data, table); }
  std::string piece(size_t i) const { return data.substr(pieces[i].first, pieces[i].second); }
  void put(size_t i, const std::string& bytes) { data.replace(pieces[i].first, bytes.size(), bytes); }

  Prefix prefix;
  std::string header, data;
  std::vector<uint64_t> table;
  std::vector<std::pair<size_t, size_t>> pieces;  // offset in the data, bytes
};

TEST(Checkpoint, IsReadAsItWasWritten) {
  Rng rng = seeded("checkpoint round trip", 20);
  const TemporaryDirectory directory;
  const std::string path = directory.file("c");
  int same_count = 0, with_data = 0, pieces = 0;
  constexpr int kCases = 300;
  for (int i = 0; i < kCases; ++i) {
    const Content content = random_content(rng, 6, 40);
    const int64_t piece = rng.chance(0.5) ? kSmallPiece : checkpoint::kPieceBytes;
    content.save(path, piece);
    same_count += same(content, load(path));
    with_data += !content.arrays.empty();
    pieces += static_cast<int>(Parts(read_file(path)).pieces.size());
  }
  Content large;  // through the public function: several whole pieces, then a short one
  large.description.rule = "adamw";
  large.description.params = {param_of("w", {3, 3 << 20}, 1, 1, 256)};
  large.fill(rng);
  save_checkpoint(system_env(), path, large.description, large.reader());
  EXPECT_TRUE(same(large, load(path)));
  EXPECT_EQ(same_count, kCases);
  EXPECT_GT(with_data, kCases / 2);
  EXPECT_GT(pieces, 2 * kCases);
  figure("read as written: {}/{} checkpoints ({} with state, {} pieces), and one of 9 MiB in 4 pieces", same_count,
         kCases, with_data, pieces);
}

TEST(Checkpoint, ReplacesNothingButRegularFiles) {
  const TemporaryDirectory directory;
  const Content content = small_content(1);
  const std::string pipe = directory.file("pipe"), folder = directory.file("folder"), plug = directory.file("socket");
  const std::string link = directory.file("link"), file = directory.file("file"), to_file = directory.file("to_file");
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  std::filesystem::create_directory(folder);
  std::filesystem::create_symlink(pipe, link);
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  ASSERT_LT(plug.size(), sizeof name.sun_path);
  std::memcpy(name.sun_path, plug.c_str(), plug.size() + 1);
  const int socket_fd = socket(AF_UNIX, SOCK_STREAM, 0);
  ASSERT_EQ(bind(socket_fd, reinterpret_cast<const sockaddr*>(&name), sizeof name), 0);
  std::vector<std::string> special = {pipe, folder, plug, link};
  const std::string device = directory.file("device");  // like /dev/null, where this process may make one
  const bool has_device = mknod(device.c_str(), S_IFCHR | 0600, makedev(1, 3)) == 0;
  if (has_device) special.push_back(device);
  for (const std::string& path : special) {
    const auto before = std::filesystem::symlink_status(path).type();
    const bool is_folder = path == folder;
    expect_refusal([&] { content.save(path); }, is_folder ? "could not replace" : path + "' is a",
                   is_folder ? ErrorKind::kIo : ErrorKind::kInvalidArgument);
    EXPECT_EQ(std::filesystem::symlink_status(path).type(), before) << path;
  }
  EXPECT_EQ(directory.names().size(), special.size()) << "nothing else is left";
  close(socket_fd);

  content.save(file);
  std::filesystem::create_symlink(file, to_file);
  content.save(file), content.save(to_file);
  EXPECT_TRUE(same(content, load(file)) && same(content, load(to_file)));
  figure("{} kinds of special files refused{}; a file and a link to one replaced", special.size(),
         has_device ? "" : " (no device: not root)");
}

TEST(Checkpoint, IsNotWrittenFromWrongValues) {
  const Content valid = small_content(1);
  using Change = std::function<void(Checkpoint&)>;
  const auto param = [](auto change) -> Change { return [=](Checkpoint& c) { change(c.params[0]); }; };
  const Change changes[] = {
      [](Checkpoint& c) { c.rule = ""; },
      [](Checkpoint& c) { c.metadata = "\xff"; },
      [](Checkpoint& c) { c.metadata = std::string(100'000'000, 'x'); },
      [](Checkpoint& c) { c.metadata = std::string(20'000'000, '\x01'); },  // escaped to six bytes each
      [](Checkpoint& c) { c.params[1].name = c.params[0].name; },
      param([](CheckpointParam& p) { p.name = ""; }),
      param([](CheckpointParam& p) { p.name = std::string(4097, 'x'); }),
      param([](CheckpointParam& p) { p.name = "\xc3"; }),
      param([](CheckpointParam& p) { p.codec = std::string(4097, 'x'); }),
      param([](CheckpointParam& p) { p.group = -1; }),
      param([](CheckpointParam& p) { p.steps = -1; }),
      param([](CheckpointParam& p) { p.block = -1; }),
      param([](CheckpointParam& p) { p.block = 128; }),
      param([](CheckpointParam& p) { p.sizes[0] = -1; }),
      param([](CheckpointParam& p) {
        p.sizes = {3, 3001};
      }),
      param([](CheckpointParam& p) {
        p.sizes = {int64_t{1} << 31, int64_t{1} << 31};
      }),
      param([](CheckpointParam& p) { p.sizes = std::vector<int64_t>(65, 1); }),
      param([](CheckpointParam& p) { p.states[1].name = p.states[0].name; }),
      param([](CheckpointParam& p) { p.states[0].name = ""; }),
      param([](CheckpointParam& p) { p.states[0].code_bytes = -9000; }),
      param([](CheckpointParam& p) { p.states[0].code_bytes = 0; }),
      param([](CheckpointParam& p) { p.states[0].scale_bytes += 1; }),
      param([](CheckpointParam& p) { p.states[0].scale_bytes = 0; }),
      param([](CheckpointParam& p) { p.states.resize(65); }),
      param([](CheckpointParam& p) { p.carried.resize(17); }),
  };
  const TemporaryDirectory directory;
  int count = 0;
  for (const Change& change : changes) {
    Content wrong = valid;
    change(wrong.description);
    try {
      wrong.save(directory.file("c"));
      ADD_FAILURE() << "change " << &change - changes << " was written";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument) << error.what();
      ++count;
    }
  }
  for (const std::string& path : {std::string(), directory.file(""), directory.file(std::string("a\0b", 3))})
    EXPECT_THROW(valid.save(path), Error);
  EXPECT_TRUE(directory.names().empty());
  figure("wrong values refused: {}/{}, files left {}", count, std::size(changes), directory.names().size());
}

TEST(Checkpoint, EveryFlippedBitAndEveryLengthIsFound) {
  const TemporaryDirectory directory;
  const std::string path = directory.file("c");
  Content content;
  content.description.rule = "adamw";
  content.description.params = {param_of("w", {2, 2100}, 1, 1, 256), param_of("b", {5}, 1, 4, 0)};
  Rng rng(3);
  content.fill(rng);
  content.save(path);
  const std::string good = read_file(path);
  ASSERT_TRUE(same(content, load(path)));
  // Changes one byte in place: writing the whole file each time would take most of the test.
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  const auto put = [&](size_t at, char byte) {
    file.seekp(static_cast<std::streamoff>(at));
    file.put(byte).flush();
  };
  size_t found = 0, cut = 0, longer = 0;
  for (size_t bit = 0; bit < good.size() * 8; ++bit) {
    put(bit / 8, static_cast<char>(good[bit / 8] ^ (1 << bit % 8)));
    found += refused(path);
    put(bit / 8, good[bit / 8]);
  }
  file.close();
  ASSERT_TRUE(same(content, load(path)));
  for (size_t length = 1; length <= 64; ++length) {
    write_file(path, good + std::string(length, '\0'));
    longer += refused(path);
  }
  write_file(path, good);
  for (size_t length = good.size(); length-- > 0;) {
    std::filesystem::resize_file(path, length);
    cut += refused(path);
  }
  EXPECT_EQ(found, good.size() * 8);
  EXPECT_EQ(cut, good.size());
  EXPECT_EQ(longer, 64u);
  figure("found: flipped bits {}/{}, truncated lengths {}/{}, longer files {}/64", found, good.size() * 8, cut,
         good.size(), longer);
}

TEST(Checkpoint, APieceInAnothersPlaceIsFound) {
  const TemporaryDirectory directory;
  const std::string path = directory.file("c"), other = directory.file("older");
  const Content content = small_content(1), older = small_content(2);
  content.save(path);
  older.save(other);
  const Parts now(read_file(path)), before(read_file(other));
  ASSERT_EQ(now.header, before.header);
  ASSERT_EQ(now.pieces, before.pieces);
  int swaps = 0, swaps_found = 0, stale = 0, stale_found = 0;
  const auto check = [&](const std::string& file, int* count, int* found) {
    write_file(path, file);
    ++*count;
    *found += refused(path);
  };
  check(now.forged(), &swaps, &swaps_found);  // control: an unchanged forgery is read
  ASSERT_EQ(std::exchange(swaps_found, 0), 0);
  swaps = 0;
  for (size_t i = 0; i < now.pieces.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      if (now.pieces[i].second != now.pieces[j].second) continue;
      Parts swapped = now;
      swapped.put(i, now.piece(j));
      swapped.put(j, now.piece(i));
      check(swapped.forged(), &swaps, &swaps_found);
      std::swap(swapped.table[i], swapped.table[j]);  // swaps the checksums too, under a new root
      check(swapped.forged(), &swaps, &swaps_found);
    }
    Parts mixed = now;
    mixed.put(i, before.piece(i));
    check(mixed.forged(), &stale, &stale_found);
    // The older checksum too, under the new root: a write that was lost from data and table.
    std::string file = mixed.forged();
    std::memcpy(file.data() + now.prefix.table_offset() + 8 * static_cast<int64_t>(i), &before.table[i], 8);
    check(file, &stale, &stale_found);
  }
  EXPECT_GT(swaps, 5);
  EXPECT_GT(stale, 5);
  EXPECT_EQ(swaps_found, swaps);
  EXPECT_EQ(stale_found, stale);
  figure("found: swapped pieces {}/{}, pieces of an older checkpoint {}/{}", swaps_found, swaps, stale_found, stale);
}

// Headers with one mistake each.
std::vector<std::string> wrong_headers(const std::string& good) {
  std::vector<std::string> out;
  const auto set = [&](const char* at, json value) {
    json header = json::parse(good);
    header[json::json_pointer(at)] = std::move(value);
    out.push_back(header.dump());
  };
  const auto max = std::numeric_limits<int64_t>::max();
  const json numbers[] = {-1,
                          max,
                          std::numeric_limits<uint64_t>::max(),
                          1e300,
                          1.0,
                          "1",
                          nullptr,
                          json::array(),
                          json::object(),
                          true,
                          std::numeric_limits<int64_t>::min()};
  for (const char* at : {"/params/0/sizes/0", "/params/0/sizes/1", "/params/0/states/0/codes/0", "/params/0/block",
                         "/params/0/states/0/codes/1", "/params/0/states/1/scales/0", "/params/0/states/1/scales/1"}) {
    for (const json& number : numbers) set(at, number);
  }
  for (const char* at : {"/params/0/group", "/params/0/steps"}) {
    for (const json& number : numbers) {
      if (number != json(max) || std::string(at) == "/params/0/group") set(at, number);  // 2^63 - 1 steps are valid
    }
  }
  for (const json& number : numbers) {
    if (!number.is_number_integer() || number.dump().starts_with('-'))
      set("/params/0/carried/1", number);  // any 64 bits are a double
  }
  const json texts[] = {7, nullptr, json::array(), json::object(), false, 0.5};
  for (const char* at :
       {"/metadata", "/rule", "/params/0/name", "/params/0/codec", "/params/0/states/0/name", "/params", "/params/0",
        "/params/1", "/params/0/carried", "/params/0/sizes", "/params/0/states", "/params/0/states/0",
        "/params/0/states/0/codes", "/params/0/states/0/signed"}) {
    for (const json& text : texts) {
      const std::string path = at;
      if (path.ends_with("signed") && text.is_boolean()) continue;
      if (path.ends_with("carried") && text.is_array()) continue;
      set(at, text);
    }
  }
  for (const char* at : {"/rule", "/params/0/name", "/params/0/states/0/name"}) {
    set(at, "");
    set(at, std::string(4097, 'x'));
  }
  set("/params/1/name", "weight");
  set("/params/0/states/1/name", "exp_avg");
  set("/params/0/sizes", {int64_t{1} << 32, int64_t{1} << 32, 9000});  // the product overflows
  set("/params/0/sizes", {int64_t{1} << 40, int64_t{1} << 40, 0});
  set("/params/0/sizes", {3, 3000, 2});
  set("/params/0/sizes", json(std::vector<int>(65, 1)));
  set("/params/0/carried", json(std::vector<int>(17, 1)));
  set("/params/0/states/0/codes", {0, 9000, 0});
  set("/params/0/states/0/codes", {1, 9000});   // a hole
  set("/params/0/states/1/codes", {0, 9000});   // an overlap
  set("/params/0/states/0/codes", {0, 18000});  // past its end
  set("/extra", 1);
  set("/estimate", "");
  set("/params/0/extra", 1);
  set("/params/0/states/0/extra", 1);
  for (const char* at : {"", "/params/0", "/params/0/states/0"}) {
    const json::json_pointer pointer(at);
    const json whole = json::parse(good);
    for (const auto& [key, unused] : whole[pointer].items()) {
      json header = json::parse(good);
      header[pointer].erase(key);
      out.push_back(header.dump());
    }
  }
  const auto replace = [&](const std::string& from, const std::string& to) {
    std::string header = good;
    const size_t at = header.find(from);
    if (at == std::string::npos) throw std::logic_error("no " + from);
    out.push_back(header.replace(at, from.size(), to));
  };
  replace("\"block\":256", "\"block\":256,\"block\":256");
  replace("\"metadata\":\"groups\",", "\"metadata\":\"groups\",\"metadata\":\"x\",");
  replace("\"metadata\":\"groups\",\"params\"", "\"params\"");
  replace("\"codec\":\"dynamic8\",\"group\":0", "\"group\":0,\"codec\":\"dynamic8\"");  // not sorted
  replace("[3,3000]", "[3,3e3]");
  replace("[3,3000]", "[3,3000,]");
  replace("[3,3000]", "[3,03000]");
  replace("[3,3000]", "[3,NaN]");
  replace("[3,3000]", "[3,184467440737095519160]");
  replace("\"groups\"", "\"\\ud800\"");
  replace("\"groups\"", "\"\xff\"");
  replace("\"groups\"", "\"a\nb\"");
  out.push_back("\xef\xbb\xbf" + good);
  out.push_back(" " + good);
  out.push_back(good + "x");
  out.push_back(good + good);
  out.push_back("");
  out.push_back("[]");
  out.push_back("{}");
  out.push_back(std::string(100000, '['));
  out.push_back("{\"params\":" + std::string(100000, '['));
  return out;
}

TEST(Checkpoint, AWrongHeaderIsRefusedThoughItsChecksumsAreRight) {
  const TemporaryDirectory directory;
  const std::string path = directory.file("c");
  const Content content = small_content(1);
  content.save(path);
  const Parts good(read_file(path));
  write_file(path, good.forged());
  ASSERT_TRUE(same(content, load(path)));
  size_t found = 0;
  const std::vector<std::string> headers = wrong_headers(good.header);
  for (const std::string& header : headers) {
    write_file(path, forge(header, good.data, good.table));
    const bool ok = refused(path);
    found += ok;
    EXPECT_TRUE(ok) << header.substr(0, 1000);
  }
  EXPECT_EQ(found, headers.size());

  // The prefix: values at and beyond every limit, with a correct checksum.
  size_t prefixes = 0, prefixes_found = 0;
  const std::string file = good.forged();
  for (const size_t at : {12u, 16u, 24u, 32u, 40u, 48u}) {
    for (const uint64_t value : {uint64_t{1}, uint64_t{4097}, uint64_t{1} << 24, uint64_t{100'000'001},
                                 uint64_t{1} << 32, uint64_t{1} << 59, uint64_t{1} << 63, ~uint64_t{0}}) {
      std::string wrong = file;
      std::memcpy(wrong.data() + at, &value, at == 12 ? 4 : 8);
      const uint64_t sum = checkpoint::piece_checksum(wrong.data(), 56, 0);
      std::memcpy(wrong.data() + 56, &sum, 8);
      write_file(path, wrong);
      ++prefixes;
      prefixes_found += refused(path);
    }
  }
  EXPECT_EQ(prefixes_found, prefixes);

  std::string older = file;
  older[8] = 1;
  write_file(path, older);
  expect_refusal([&] { load(path); }, "format version 1; this version of Lowtide reads version 2");

  // Random changes: any header still accepted is a valid description of the same data.
  Rng rng = seeded("mutated headers", 21);
  int refusals = 0, accepted = 0;
  for (int i = 0; i < 5000; ++i) {
    std::string header = good.header;
    for (int64_t n = rng.between(1, 3); n > 0; --n) {
      const auto at = static_cast<size_t>(rng.below(static_cast<int64_t>(header.size())));
      const auto from = static_cast<size_t>(rng.below(static_cast<int64_t>(header.size())));
      static constexpr char kBytes[] = "0123456789-+.eE{}[]\",:\\x";
      switch (rng.below(4)) {
        case 0:
          header[at] = kBytes[rng.below(24)];
          break;
        case 1:
          header.erase(at, static_cast<size_t>(rng.between(1, 20)));
          break;
        case 2:
          header.insert(at, 1, kBytes[rng.below(24)]);
          break;
        default:
          header.insert(at, header.substr(from, static_cast<size_t>(rng.between(1, 60))));
          break;
      }
    }
    write_file(path, forge(header, good.data, good.table));
    try {
      const Content read = load(path);
      ++accepted;
      int64_t bytes = 0;
      for (const Array& array : checkpoint::arrays_of(read.description)) bytes += array.bytes;
      EXPECT_EQ(bytes, good.prefix.data_bytes);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
      ++refusals;
    }
  }
  EXPECT_GT(refusals, 3000);
  figure("wrong headers refused: {}/{}; wrong prefixes {}/{}; random changes: {} refused, {} valid", found,
         headers.size(), prefixes_found, prefixes, refusals, accepted);
}

TEST(Checkpoint, RandomBytesAreNotACheckpoint) {
  Rng rng = seeded("random files", 22);
  const TemporaryDirectory directory;
  const std::string path = directory.file("c");
  const std::string magic = checkpoint::encode(Prefix{kSmallPiece, 2, 0, 0}).substr(0, 16);
  int found = 0;
  constexpr int kFiles = 2000;
  for (int i = 0; i < kFiles; ++i) {
    std::string bytes(static_cast<size_t>(rng.below(10000)), '\0');
    for (char& byte : bytes) byte = static_cast<char>(rng.next());
    if (rng.chance(0.5)) bytes.insert(0, magic);
    write_file(path, bytes);
    found += refused(path);
  }
  EXPECT_EQ(found, kFiles);
  EXPECT_TRUE(refused("/dev/zero"));
  EXPECT_TRUE(refused(directory.file("")));
  EXPECT_TRUE(refused(directory.file("missing")));
  const std::string pipe = directory.file("pipe");
  ASSERT_EQ(::system(("mkfifo '" + pipe + "'").c_str()), 0);
  EXPECT_TRUE(refused(pipe));  // without waiting for a writer
  figure("random files refused: {}/{}, and a directory, a pipe, a device, a missing file", found, kFiles);
}

// tools/read_checkpoint.py follows the document alone: both readers agree on what is a checkpoint.
TEST(Checkpoint, IsReadByTheIndependentReader) {
  const std::filesystem::path tool = std::filesystem::path(__FILE__).parent_path() / "../../tools/read_checkpoint.py";
  if (!std::filesystem::exists(tool)) GTEST_SKIP() << "no " << tool << ": the sources are not here";
  if (::system("python3 -c 'import sys; sys.exit(sys.version_info < (3, 8))' 2>/dev/null") != 0)
    GTEST_SKIP() << "no python3 of version 3.8 or later";
  const TemporaryDirectory directory;
  const auto run = [&](const std::string& paths) {
    const int status = ::system(("python3 -B '" + tool.string() + "' --verify " + paths + " >'" +
                                 directory.file("out") + "' 2>'" + directory.file("err") + "'")
                                    .c_str());
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  };
  Rng rng = seeded("independent reader", 23);
  std::string valid, bad;
  int valid_count = 0, bad_count = 0, valid_found = 0, bad_found = 0;
  for (; valid_count < 40; ++valid_count) {
    const std::string path = directory.file("valid" + std::to_string(valid_count));
    random_content(rng, 6, 25).save(path, valid_count % 2 ? kSmallPiece : checkpoint::kPieceBytes);
    valid += " '" + path + "'";
  }
  EXPECT_EQ(run(valid), 0) << read_file(directory.file("err"));
  std::istringstream out(read_file(directory.file("out")));
  for (std::string line; std::getline(out, line);) valid_found += line.rfind("verified: ", 0) == 0;

  const std::string good_path = directory.file("good");
  small_content(1).save(good_path);
  const std::string file = read_file(good_path);
  const Parts good(file);
  const auto add = [&](const std::string& bytes) {
    const std::string path = directory.file("bad" + std::to_string(bad_count++));
    write_file(path, bytes);
    bad += " '" + path + "'";
  };
  for (int i = 0; i < 200; ++i) {
    std::string flipped = file;
    const auto bit = static_cast<size_t>(rng.below(static_cast<int64_t>(file.size()) * 8));
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << bit % 8));
    add(flipped);
  }
  for (int i = 0; i < 50; ++i) add(file.substr(0, static_cast<size_t>(rng.below(static_cast<int64_t>(file.size())))));
  for (const std::string& header : wrong_headers(good.header)) add(forge(header, good.data, good.table));
  EXPECT_EQ(run(bad), 1);
  const std::string err = read_file(directory.file("err"));
  for (int i = 0; i < bad_count; ++i) {
    // The tool's own message, not a traceback.
    const bool found = err.find(directory.file("bad" + std::to_string(i)) + ": ") != std::string::npos;
    EXPECT_TRUE(found) << "bad" << i;
    bad_found += found;
  }
  EXPECT_EQ(valid_found, valid_count);
  EXPECT_EQ(bad_found, bad_count);
  figure("read_checkpoint.py: verified {}/{}, refused {}/{}", valid_found, valid_count, bad_found, bad_count);
}

}  // namespace
}  // namespace lowtide::testing
