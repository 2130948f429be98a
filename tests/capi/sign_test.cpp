// Signs through the C interface: NULLs, wrong numbers, option structs of other versions. What they compute is tested
// with lowtide/sign.h.
#include <gtest/gtest.h>

#include <string>

#include "lowtide/lowtide_sign.h"

extern "C" int lt_test_sign_c11(void);  // sign_c11_test.c

namespace lowtide::testing {
namespace {

void expect_refused(lt_status status, const char* words) {
  EXPECT_EQ(status, LT_INVALID_ARGUMENT);
  EXPECT_NE(std::string(lt_last_error()).find(words), std::string::npos) << words << " not in: " << lt_last_error();
}

TEST(CApiSign, WorksFromC11) { EXPECT_EQ(lt_test_sign_c11(), 0) << "line of sign_c11_test.c"; }

TEST(CApiSign, RefusesNullsAndWrongNumbers) {
  float values[8] = {};
  unsigned char bits[1] = {0x5a}, result[1] = {0x5a};
  const void* ballots[1] = {bits};
  expect_refused(lt_sign_pack(nullptr, LT_F32, 8, bits, 1, nullptr), "NULL for values");
  expect_refused(lt_sign_pack(values, LT_F32, 8, nullptr, 1, nullptr), "NULL for bits");
  expect_refused(lt_sign_pack(values, LT_F32, 8, bits, -1, nullptr), "got bits_bytes=-1");
  expect_refused(lt_sign_pack(values, 3, 8, bits, 1, nullptr), "got element type 3");
  expect_refused(lt_sign_pack(values, LT_F32, -8, bits, 1, nullptr), "got -8 signs");
  expect_refused(lt_sign_unpack(nullptr, 1, values, LT_F32, 8, nullptr, nullptr), "NULL for bits");
  expect_refused(lt_sign_unpack(bits, 1, nullptr, LT_F32, 8, nullptr, nullptr), "NULL for values");
  expect_refused(lt_sign_unpack(bits, 8, values, LT_F32, 8, nullptr, nullptr), "got 8 bytes of bits for 8 signs");
  expect_refused(lt_sign_majority(nullptr, 1, 8, result, 1, nullptr, nullptr), "NULL for ballots");
  expect_refused(lt_sign_majority(ballots, 0, 8, result, 1, nullptr, nullptr), "got 0 ballots, wanted 1 to 65535");
  expect_refused(lt_sign_majority(ballots, 1 << 16, 8, result, 1, nullptr, nullptr), "got 65536 ballots");
  expect_refused(lt_sign_majority(ballots, 1, 8, nullptr, 1, nullptr, nullptr), "NULL for the result");
  lt_majority_options options = LT_MAJORITY_OPTIONS_INIT;
  options.ties = int64_t{1} << 32;
  expect_refused(lt_sign_majority(ballots, 1, 8, result, 1, nullptr, &options), "got ties=4294967296");
  options.ties = LT_TIES_PREVIOUS;
  expect_refused(lt_sign_majority(ballots, 1, 8, result, 1, nullptr, &options), "got no earlier result");
  EXPECT_EQ(bits[0], 0x5a) << "a refused call has written";
  EXPECT_EQ(result[0], 0x5a) << "a refused call has written";
  EXPECT_EQ(lt_sign_pack(nullptr, LT_F32, 0, nullptr, 0, nullptr), LT_OK);
  EXPECT_EQ(lt_sign_unpack(nullptr, 0, nullptr, LT_F32, 0, nullptr, nullptr), LT_OK);
}

TEST(CApiSign, TakesOptionStructsOfOtherVersions) {
  // An older caller knows the order alone; what lies behind in its memory is no option.
  struct {
    int64_t struct_size;
    int32_t bit_order, threads;
    int64_t garbage[6];
  } old{16, LT_BITS_BIG, 1, {-77, -77, -77, -77, 1, 1}};
  const unsigned char ballot[1] = {0x80};
  const void* ballots[1] = {ballot};
  unsigned char result[1] = {};
  EXPECT_EQ(lt_sign_majority(ballots, 1, 1, result, 1, nullptr, reinterpret_cast<lt_majority_options*>(&old)), LT_OK)
      << lt_last_error();
  EXPECT_EQ(result[0], 0x80);
  // A newer one has fields that this library does not know.
  struct {
    lt_sign_options known;
    int64_t unknown[2];
  } future = {LT_SIGN_OPTIONS_INIT, {5, 6}};
  future.known.struct_size = sizeof future;
  const float one = 1;
  EXPECT_EQ(lt_sign_pack(&one, LT_F32, 1, result, 1, &future.known), LT_OK) << lt_last_error();
  EXPECT_EQ(result[0], 1);
  future.known.struct_size = 12;
  expect_refused(lt_sign_pack(&one, LT_F32, 1, result, 1, &future.known), "struct_size=12");
}

}  // namespace
}  // namespace lowtide::testing
