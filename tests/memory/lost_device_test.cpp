// Claims: if the device is lost in any call, state in host memory that no step was changing can be read and saved bit
// for bit, other state is refused by name, every call that needs the device says so, and destructors return.
#include "support/fake_twins.h"
#include "support/test.h"

namespace lowtide::testing {
namespace {

struct Tally {
  int64_t read = 0, refused = 0, bytes = 0, differing = 0, saved = 0, unsaved = 0;
};

// Reads every state of every parameter, which must equal the host's or be refused.
void read_all(Twins& twins, Tally& tally) {
  for (int64_t param = 0; param < twins.on_device().param_count(); ++param) {
    int k = 0;
    for (const StateView& state : twins.on_device().state(param)) {
      std::vector<std::byte> codes[2];
      std::vector<float> scales[2];
      for (int i = 0; i < 2; ++i) {
        codes[i].resize(static_cast<size_t>(state.numel * state.code_bits / 8));
        scales[i].resize(static_cast<size_t>(state.rows * state.scales_per_row));
      }
      twins.on_host().read_state(param, k, codes[0].data(), scales[0].data());
      try {
        twins.on_device().read_state(param, k++, codes[1].data(), scales[1].data());
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::kDeviceLost) << error.what();
        EXPECT_NE(std::string(error.what()).find("the state of parameter"), std::string::npos) << error.what();
        ++tally.refused;
        continue;
      }
      ++tally.read;
      for (size_t i = 0; i < codes[0].size(); ++i) tally.differing += codes[0][i] != codes[1][i];
      for (size_t i = 0; i < scales[0].size(); ++i) tally.differing += scales[0][i] != scales[1][i];
      tally.bytes += static_cast<int64_t>(codes[0].size() + 4 * scales[0].size());
    }
  }
}

TEST(LostDevice, HostMemoryStaysReadable) {
  Rng rng = seeded("lost device", 111);
  const TemporaryDirectory directory;
  Tally tally;
  int64_t trials = 0, in_steps = 0;
  for (; trials < 400; ++trials) {
    Config setup = random_setup(rng, false);
    setup.nonfinite = rng.chance(0.5) ? NonFinite::kSkip : NonFinite::kPropagate;
    lowtide::Memory memory{.chunk = 4096,
                           .transfer = pick(rng, std::vector<std::string>{"copy", "hybrid", "zero_copy"}),
                           .automatic = rng.chance(0.5)};
    if (!memory.automatic) memory.device = rng.between(3, 12) * 4096;
    if (!memory.automatic && memory.transfer == "copy" && rng.chance(0.7))
      memory.disk = directory.path(), memory.host = rng.between(3, 12) * 4096;
    fake::FakeBackendOptions options{.seed = rng.next(), .steps_pinned = true, .guards = rng.chance(0.5)};
    FakeTwins twins(rng, setup, memory, options);
    for (int64_t n = rng.between(1, 3); n > 0; --n) twins.add(DType::kF32, {rng.between(1, 4), rng.between(1, 1500)});
    twins.on_device().place_states();
    twins.free_bytes = 0;  // under `automatic`, this keeps all state on the host
    for (int64_t n = rng.between(1, 4); n > 0; --n) twins.step();
    const bool offloaded = !memory.automatic && rng.chance(0.3);
    const bool settled = rng.chance(0.6) || offloaded;
    if (settled) twins.on_device().synchronize();
    if (offloaded) twins.on_device().offload();
    bool in_step = false;
    if (!settled && rng.chance(0.6)) {
      twins.before_device_step = [&] { twins.fake.lose_at(rng.between(1, 40)); };
      try {
        twins.step();
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::kDeviceLost) << error.what();
        in_step = true;
      }
    }
    if (!twins.fake.is_lost()) twins.fake.lose();
    in_steps += in_step;
    Tally here;
    read_all(twins, here);
    if (offloaded) {
      EXPECT_EQ(here.refused, 0) << "trial " << trials;
    }
    const std::string path = directory.file("state" + std::to_string(trials));
    if (here.refused == 0) {
      twins.on_device().save(path);
      Optimizer again = make_optimizer(setup);
      std::vector<Tensor> params;
      for (int64_t i = 0; i < twins.on_device().param_count(); ++i) params.emplace_back(DType::kF32, twins.sizes(i));
      for (Tensor& param : params) again.add_param(0, param.view());
      again.load(path);
      EXPECT_EQ(snapshot(again, {}), snapshot(twins.on_host(), {})) << "trial " << trials;
      ++here.saved;
    } else {
      EXPECT_EQ(refusal([&] { twins.on_device().save(path); }, ErrorKind::kDeviceLost).empty(), false);
      ++here.unsaved;
    }
    refusal([&] { twins.on_device().step(twins.last_gradients()); }, ErrorKind::kDeviceLost);
    refusal([&] { twins.on_device().synchronize(); }, ErrorKind::kDeviceLost);
    twins.on_device().report();
    tally.read += here.read, tally.refused += here.refused, tally.bytes += here.bytes;
    tally.differing += here.differing, tally.saved += here.saved, tally.unsaved += here.unsaved;
  }
  EXPECT_EQ(tally.differing, 0);
  EXPECT_GT(tally.saved, 60);
  EXPECT_GT(in_steps, 20);
  figure(
      "{} losses, {} in a step: {} states read, differing bytes {} of {}; {} refused by name; {} optimizers saved and "
      "loaded, {} refused",
      trials, in_steps, tally.read, tally.differing, tally.bytes, tally.refused, tally.saved, tally.unsaved);
}

}  // namespace
}  // namespace lowtide::testing
