// Calls that make no sense: each says what it got, and changes nothing.
#include "backend/registry.h"
#include "support/test.h"
#include "symbols.h"

namespace lowtide::testing {
namespace {

struct Wrong {
  const char* message;
  std::function<void(BnbCase&)> make;
  std::function<bool(const BnbSymbol&)> applies = [](const BnbSymbol&) { return true; };
};

bool is_coded(const BnbSymbol& symbol) { return symbol.coded; }
bool has_two(const BnbSymbol& symbol) {
  return symbol.family == bnb::Family::adam || symbol.family == bnb::Family::ademamix;
}
bool two_coded(const BnbSymbol& symbol) { return symbol.coded && has_two(symbol); }
bool is_limited(const BnbSymbol& symbol) {
  return !symbol.coded && (symbol.family == bnb::Family::adam || symbol.family == bnb::Family::momentum ||
                           symbol.family == bnb::Family::rmsprop);
}
bool has_share(const BnbSymbol& symbol) {
  return symbol.family != bnb::Family::momentum && symbol.family != bnb::Family::adagrad;
}

const float kNan = std::nanf("");

const std::vector<Wrong>& wrongs() {
  static const std::vector<Wrong> all = {
      {"got n=-1", [](BnbCase& c) { c.u.n = -1; }},
      {"got n=-2147483648", [](BnbCase& c) { c.u.n = INT32_MIN; }},
      {"got step=0", [](BnbCase& c) { c.u.step = 0; }},
      {"got NULL for p", [](BnbCase& c) { c.u.p = nullptr; }},
      {"got NULL for g", [](BnbCase& c) { c.u.g = nullptr; }},
      {"got NULL for state1", [](BnbCase& c) { c.u.state1 = nullptr; }},
      {"got NULL for state2", [](BnbCase& c) { c.u.state2 = nullptr; }, has_two},
      {"got NULL for quantiles1", [](BnbCase& c) { c.u.quantiles1 = nullptr; }, is_coded},
      {"got NULL for quantiles2", [](BnbCase& c) { c.u.quantiles2 = nullptr; }, two_coded},
      {"got NULL for absmax1", [](BnbCase& c) { c.u.absmax1 = nullptr; }, is_coded},
      {"got NULL for absmax2", [](BnbCase& c) { c.u.absmax2 = nullptr; }, two_coded},
      {"for p, wanted an address aligned", [](BnbCase& c) { c.u.p = static_cast<std::byte*>(c.u.p) + 1; }},
      {"got lr=nan", [](BnbCase& c) { c.u.lr = kNan; }},
      {"got lr=inf", [](BnbCase& c) { c.u.lr = INFINITY; }},
      {"lr * weight_decay", [](BnbCase& c) { c.u.lr = 1e30f, c.u.weight_decay = 1e30f; }},
      {"got eps=-1", [](BnbCase& c) { c.u.eps = -1; }},
      {"got weight_decay=-0.1", [](BnbCase& c) { c.u.weight_decay = -0.1f; }},
      {"got gnorm_scale=nan", [](BnbCase& c) { c.u.gnorm_scale = kNan; }},
      {"got beta1=1", [](BnbCase& c) { c.u.beta1 = 1; }, has_share},
      {"got beta2=nan", [](BnbCase& c) { c.u.beta2 = kNan; }, has_two},
      {"got max_unorm=nan", [](BnbCase& c) { c.u.max_unorm = kNan; }, is_limited},
      {"got NULL for unorm", [](BnbCase& c) { c.u.max_unorm = 1, c.u.unorm = nullptr; }, is_limited},
      {"got param_norm=nan", [](BnbCase& c) { c.u.max_unorm = 1, c.u.param_norm = kNan; }, is_limited},
      {"got absmax1[1]=nan", [](BnbCase& c) { c.absmax[0][1] = kNan; }, is_coded},
      {"got absmax1[0]=-1", [](BnbCase& c) { c.absmax[0][0] = -1; }, is_coded},
      {"got absmax2[1]=inf", [](BnbCase& c) { c.absmax[1][1] = INFINITY; }, two_coded},
      {"got quantiles1[7]=nan", [](BnbCase& c) { c.maps[0][7] = kNan; }, is_coded},
      {"wanted ascending values", [](BnbCase& c) { std::swap(c.maps[0][7], c.maps[0][8]); }, is_coded},
      {"quantiles2[9]", [](BnbCase& c) { c.maps[1][9] = 0; }, two_coded},
      {"got a gradient that is not finite",
       [](BnbCase& c) { set_element(c.u.dtype, reinterpret_cast<std::byte*>(c.arrays[1].data()), 299, INFINITY); }},
  };
  return all;
}

TEST(BnbRefusals, SayWhatWasGotAndChangeNothing) {
  auto rng = seeded("bnb refusals", 821);
  int calls = 0, changed = 0;
  for (const BnbSymbol& symbol : bnb_symbols()) {
    for (const Wrong& wrong : wrongs()) {
      if (!wrong.applies(symbol)) continue;
      BnbCase c(symbol, 300);
      c.set_random_parameter(rng);
      c.set_random_gradient(rng);
      wrong.make(c);
      const auto before = c.bytes();
      lt_bnb_clear_error();
      symbol.call(c.u);
      const std::string error = lt_bnb_last_error();
      EXPECT_EQ(error.rfind(std::string(symbol.name) + ": ", 0), 0u) << error;
      EXPECT_NE(error.find(wrong.message), std::string::npos) << symbol.name << ": '" << error << "'";
      changed += c.bytes() != before;
      ++calls;
    }
  }
  figure("{} wrong calls of {} kinds: {} changed anything", calls, wrongs().size(), changed);
  EXPECT_EQ(changed, 0);
}

// Arguments that a symbol does not use may be anything.
TEST(BnbRefusals, LeaveAloneWhatIsNotUsed) {
  auto rng = seeded("bnb unused arguments", 822);
  for (const BnbSymbol& symbol : bnb_symbols()) {
    BnbCase c(symbol, 300);
    c.set_random_parameter(rng);
    c.set_random_gradient(rng);
    if (!has_two(symbol)) {
      c.u.state2 = &c, c.u.quantiles2 = reinterpret_cast<float*>(&c), c.u.absmax2 = reinterpret_cast<float*>(&c);
      if (symbol.family != bnb::Family::lion) c.u.beta2 = kNan;
    }
    if (symbol.family == bnb::Family::adagrad) c.u.beta1 = 1;
    if (symbol.family != bnb::Family::ademamix) c.u.beta3 = kNan, c.u.alpha = kNan;
    c.u.unorm = nullptr;
    const auto before = c.arrays[0];
    lt_bnb_clear_error();
    symbol.call(c.u);
    EXPECT_STREQ(lt_bnb_last_error(), "");
    EXPECT_NE(c.arrays[0], before) << symbol.name;
    // A call without elements looks at no memory.
    bnb::Update empty = c.u;
    empty.n = 0, empty.p = empty.state1 = nullptr, empty.g = nullptr, empty.absmax1 = nullptr;
    symbol.call(empty);
    EXPECT_STREQ(lt_bnb_last_error(), "");
  }
}

TEST(BnbRefusals, OfBackendsAndThreads) {
  const auto expect = [](int result, const char* message) {
    EXPECT_EQ(result, -1);
    EXPECT_NE(std::string(lt_bnb_last_error()).find(message), std::string::npos) << lt_bnb_last_error();
  };
  expect(lt_bnb_use_backend(nullptr, nullptr, nullptr), "lt_bnb_use_backend: got NULL");
  expect(lt_bnb_use_backend("metal", nullptr, nullptr), "got backend 'metal'");
  expect(lt_bnb_use_backend("cpu", "sse9", nullptr), "got CPU target 'sse9'");
  expect(lt_bnb_set_threads(-1), "lt_bnb_set_threads: got -1");
  EXPECT_EQ(lt_bnb_set_threads(3), 0);
  EXPECT_EQ(lt_bnb_set_threads(0), 0);
  for (const std::string& target : open_backend("cpu", "")->targets())
    EXPECT_EQ(lt_bnb_use_backend("cpu", target.c_str(), nullptr), 0) << lt_bnb_last_error();
  EXPECT_EQ(lt_bnb_use_backend("cpu", nullptr, nullptr), 0) << lt_bnb_last_error();
}

}  // namespace
}  // namespace lowtide::testing
