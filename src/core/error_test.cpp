// Claims: messages escape control characters in whatever they quote and leave all other text unchanged.
#include "core/error.h"

#include "support/test.h"

namespace lowtide::testing {
namespace {

template <class Act>
std::string text_of(Act act) {
  try {
    act();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

TEST(Error, MessagesAreWithoutControlCharacters) {
  const std::pair<const char*, const char*> cases[] = {
      {"a\x1b[2J\r\n\tb\x7f", "a\\x1b[2J\\x0d\\x0a\\x09b\\x7f"},
      {"\xc2\x9b"
       "31m",
       "\\x9b31m"},
      {"\xc2\xb5 \xc3\x9f \xe2\x82\x9f", "\xc2\xb5 \xc3\x9f \xe2\x82\x9f"},
      {"\xc2", "\xc2"},
  };
  for (const auto& [quoted, shown] : cases) {
    const std::string text = "got '" + std::string(shown) + "'";
    EXPECT_EQ(text_of([quoted = quoted] { fail(ErrorKind::kInvalidArgument, "got '%s'", quoted); }), text);
    EXPECT_EQ(text_of([quoted = quoted] { fail_io(EIO, "got '%s'", quoted); }), text + ": Input/output error");
  }
}

}  // namespace
}  // namespace lowtide::testing
