// The C interface: statuses and messages, NULLs, option structs of older and newer callers, and the same bits as C++.
// The results of lowtide_sign.h are tested with lowtide/sign.h.
#include "lowtide/lowtide.h"
#include "lowtide/lowtide_sign.h"
#include "support/checkpoint_case.h"
#include "support/optimizer_case.h"
#include "support/plainest_target.h"
#include "support/test.h"

extern "C" int lt_test_c11(const char* target);  // c11_test.c; an instruction set of this CPU
extern "C" int lt_test_sign_c11(void);           // sign_c11_test.c

namespace lowtide::testing {
namespace {

struct Handle {
  lt_optimizer* optimizer = nullptr;
  Handle() = default;
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  ~Handle() { lt_optimizer_destroy(optimizer); }
};

void expect_refused(lt_status status, const char* words) {
  EXPECT_EQ(status, LT_INVALID_ARGUMENT);
  EXPECT_NE(std::string(lt_last_error()).find(words), std::string::npos) << words << " not in: " << lt_last_error();
}

class CApi : public ::testing::Test {
 protected:
  void SetUp() override {
    lt_group_options group = LT_GROUP_OPTIONS_INIT;
    group.min_quantized_numel = 0;
    make(handle_, nullptr, tensor_, &group);
  }
  // Makes an optimizer with one group and one parameter.
  static void make(Handle& handle, const lt_optimizer_options* options, const lt_tensor& param,
                   const lt_group_options* group = nullptr) {
    ASSERT_EQ(lt_optimizer_create(options, &handle.optimizer), LT_OK) << lt_last_error();
    ASSERT_EQ(lt_optimizer_add_group(handle.optimizer, group, nullptr), LT_OK) << lt_last_error();
    ASSERT_EQ(lt_optimizer_add_param(handle.optimizer, 0, &param, nullptr), LT_OK) << lt_last_error();
  }

  Handle handle_, options_target_;
  std::vector<float> p_ = std::vector<float>(600, 1.f), g_ = std::vector<float>(600, 0.5f);
  const int64_t sizes_[1] = {600};
  lt_tensor tensor_ = {p_.data(), LT_F32, 1, sizes_, nullptr};
  lt_gradient gradient_ = {g_.data(), LT_F32, nullptr};
};

TEST_F(CApi, WorksFromC11) { EXPECT_EQ(lt_test_c11(plainest_target().c_str()), 0) << "line of c11_test.c"; }

TEST_F(CApi, NamesItsStatuses) {
  EXPECT_STREQ(lt_version(), version());
  EXPECT_STREQ(lt_status_name(LT_OK), "ok");
  EXPECT_STREQ(lt_status_name(LT_INVALID_ARGUMENT), "invalid argument");
  EXPECT_STREQ(lt_status_name(LT_OUT_OF_MEMORY), "out of memory");
  EXPECT_STREQ(lt_status_name(LT_UNSUPPORTED), "unsupported");
  EXPECT_STREQ(lt_status_name(LT_DEVICE_LOST), "device lost");
  EXPECT_STREQ(lt_status_name(LT_INTERNAL), "internal error");
  EXPECT_STREQ(lt_status_name(static_cast<lt_status>(77)), "unknown status");
}

TEST_F(CApi, GivesTheBitsOfTheCppInterface) {
  Tensor q(DType::kF32, {600});
  for (int64_t i = 0; i < 600; ++i) q.set(i, 1);
  Config config{.hyper = default_hyper("adamw")};
  Optimizer optimizer = make_optimizer(config);
  optimizer.add_param(0, q.view());
  const Gradient gradient{g_.data(), DType::kF32, nullptr};
  for (int i = 0; i < 3; ++i) {
    lt_step_report report = LT_STEP_REPORT_INIT;
    ASSERT_EQ(lt_optimizer_step(handle_.optimizer, &gradient_, 1, nullptr, &report), LT_OK);
    EXPECT_EQ(report.applied, 1);
    optimizer.step({&gradient, 1});
  }
  EXPECT_TRUE(same_bits(p_.data(), q.data.data(), DType::kF32, 600));
  lt_state_view view;
  ASSERT_EQ(lt_optimizer_state(handle_.optimizer, 0, 1, &view), LT_OK);
  const StateView wanted = optimizer.state(0)[1];
  EXPECT_STREQ(view.name, "exp_avg_sq");
  EXPECT_STREQ(view.codec, "dynamic8");
  EXPECT_EQ(view.numel, 600);
  EXPECT_EQ(view.scales_per_row, 3);
  EXPECT_EQ(view.block, 256);
  EXPECT_EQ(differing_bytes(view.codes, wanted.codes, 600), 0);
  EXPECT_EQ(differing_bytes(view.scales, wanted.scales, 12), 0);
  std::vector<float> values(600);
  EXPECT_EQ(lt_optimizer_export_state(handle_.optimizer, 0, 1, values.data()), LT_OK);
  EXPECT_GT(values[0], 0.f);
  EXPECT_EQ(lt_optimizer_import_state(handle_.optimizer, 0, 1, values.data()), LT_OK);
  int64_t steps = 0;
  EXPECT_EQ(lt_optimizer_get_steps(handle_.optimizer, 0, &steps), LT_OK);
  EXPECT_EQ(steps, 3);
  EXPECT_EQ(lt_optimizer_set_steps(handle_.optimizer, 0, 9), LT_OK);
  EXPECT_EQ(lt_optimizer_get_steps(handle_.optimizer, 0, &steps), LT_OK);
  EXPECT_EQ(steps, 9);
  lt_memory_report report = LT_MEMORY_REPORT_INIT;
  ASSERT_EQ(lt_optimizer_report(handle_.optimizer, &report), LT_OK);
  EXPECT_EQ(report.params, 1);
  EXPECT_EQ(report.elements, 600);
  EXPECT_EQ(report.state_bytes, 2 * (600 + 12));
  EXPECT_EQ(report.steps, 3);
}

// The norm, and a step with the factor that it gives.
TEST_F(CApi, ClipsInTheStep) {
  lt_clip_report clip = LT_CLIP_REPORT_INIT;
  ASSERT_EQ(lt_optimizer_clip_grad_norm(handle_.optimizer, &gradient_, 1, 1, 2, nullptr, &clip), LT_OK);
  EXPECT_EQ(clip.norm, std::sqrt(600 * 0.25));
  EXPECT_EQ(clip.grad_scale, 1 / (clip.norm + 1e-6));
  EXPECT_EQ(clip.finite, 1);
  EXPECT_EQ(g_[0], 0.5f);
  lt_step_options options = LT_STEP_OPTIONS_INIT;
  options.grad_scale = clip.grad_scale, options.assume_finite = clip.finite;
  EXPECT_EQ(lt_optimizer_step(handle_.optimizer, &gradient_, 1, &options, nullptr), LT_OK);
  options.grad_scale = -0.5;
  ASSERT_EQ(lt_optimizer_clip_grad_norm(handle_.optimizer, &gradient_, 1, 1, INFINITY, &options, &clip), LT_OK);
  EXPECT_EQ(clip.norm, 0.25);
  EXPECT_EQ(clip.grad_scale, -0.5);
  g_[3] = NAN;
  ASSERT_EQ(lt_optimizer_clip_grad_norm(handle_.optimizer, &gradient_, 1, 1, 2, nullptr, &clip), LT_OK);
  EXPECT_TRUE(std::isnan(clip.norm));
  EXPECT_EQ(clip.grad_scale, 1);
  EXPECT_EQ(clip.finite, 0);
  expect_refused(lt_optimizer_clip_grad_norm(handle_.optimizer, &gradient_, 1, -1, 2, nullptr, &clip), "max_norm=-1");
  expect_refused(lt_optimizer_clip_grad_norm(handle_.optimizer, &gradient_, 1, 1, 3, nullptr, &clip), "norm_type=3");
  expect_refused(lt_optimizer_clip_grad_norm(handle_.optimizer, &gradient_, 2, 1, 2, nullptr, &clip), "2 gradients");
  expect_refused(lt_optimizer_clip_grad_norm(handle_.optimizer, &gradient_, 1, 1, 2, nullptr, nullptr), "report");
}

// A queued clip leaves the bits that a waiting one leaves.
TEST_F(CApi, QueuedClipsGoIntoTheStep) {
  lt_clip_report clip = LT_CLIP_REPORT_INIT, queued_clip = LT_CLIP_REPORT_INIT;
  lt_step_options waited = LT_STEP_OPTIONS_INIT, queued = LT_STEP_OPTIONS_INIT;
  const std::vector<float> before = p_;
  ASSERT_EQ(lt_optimizer_clip_grad_norm(handle_.optimizer, &gradient_, 1, 1, 2, nullptr, &clip), LT_OK);
  waited.grad_scale = clip.grad_scale, waited.assume_finite = clip.finite;
  ASSERT_EQ(lt_optimizer_step(handle_.optimizer, &gradient_, 1, &waited, nullptr), LT_OK);
  const std::vector<float> wanted = p_;

  lt_optimizer_destroy(handle_.optimizer);
  SetUp();
  p_ = before;
  float norm = 0;
  ASSERT_EQ(lt_optimizer_queue_clip_grad_norm(handle_.optimizer, &gradient_, 1, 1, 2, nullptr, &norm, &queued.clip),
            LT_OK);
  EXPECT_EQ(norm, static_cast<float>(clip.norm));
  ASSERT_EQ(lt_queued_clip_wait(queued.clip, &queued_clip), LT_OK);
  EXPECT_EQ(queued_clip.norm, clip.norm);
  EXPECT_EQ(queued_clip.grad_scale, clip.grad_scale);
  ASSERT_EQ(lt_optimizer_step(handle_.optimizer, &gradient_, 1, &queued, nullptr), LT_OK);
  EXPECT_EQ(differing_bytes(p_.data(), wanted.data(), wanted.size() * sizeof(float)), 0);
  expect_refused(lt_queued_clip_wait(queued.clip, nullptr), "report");
  lt_queued_clip_destroy(queued.clip);

  expect_refused(lt_queued_clip_wait(nullptr, &queued_clip), "clip");
  lt_queued_clip* none = queued.clip;
  expect_refused(lt_optimizer_queue_clip_grad_norm(handle_.optimizer, &gradient_, 1, -1, 2, nullptr, nullptr, &none),
                 "max_norm=-1");
  EXPECT_EQ(none, nullptr);
  none = queued.clip;
  expect_refused(lt_optimizer_queue_clip_grad_norm(nullptr, &gradient_, 1, 1, 2, nullptr, nullptr, &none), "optimizer");
  EXPECT_EQ(none, nullptr);
  expect_refused(lt_optimizer_queue_clip_grad_norm(handle_.optimizer, &gradient_, 1, 1, 2, nullptr, nullptr, nullptr),
                 "clip");
  lt_queued_clip_destroy(nullptr);
}

// Options that decide which states exist are set by name before the group's first parameter.
TEST_F(CApi, VariantsOfRulesAreSetByName) {
  struct Case {
    const char *rule, *name, *state;
    double value;
  };
  const Case cases[] = {{"adamw", "amsgrad", "max_exp_avg_sq", 1},
                        {"rmsprop", "centered", "grad_avg", 1},
                        {"rmsprop", "momentum", "momentum_buffer", 0.9},
                        {"ademamix", "t_beta3", "exp_avg_slow", 100},
                        {"adagrad", "initial_accumulator_value", "sum", 0.1}};
  for (const Case& each : cases) {
    lt_optimizer_options options = LT_OPTIMIZER_OPTIONS_INIT;
    options.rule = each.rule;
    lt_optimizer* optimizer = nullptr;
    ASSERT_EQ(lt_optimizer_create(&options, &optimizer), LT_OK) << lt_last_error();
    EXPECT_EQ(lt_optimizer_add_group(optimizer, nullptr, nullptr), LT_OK);
    EXPECT_EQ(lt_optimizer_set(optimizer, 0, each.name, each.value), LT_OK) << lt_last_error();
    double value = 0;
    EXPECT_EQ(lt_optimizer_get(optimizer, 0, each.name, &value), LT_OK);
    EXPECT_EQ(value, each.value);
    EXPECT_EQ(lt_optimizer_add_param(optimizer, 0, &tensor_, nullptr), LT_OK);
    bool found = false;
    lt_state_view view;
    for (int32_t k = 0; lt_optimizer_state(optimizer, 0, k, &view) == LT_OK; ++k)
      found |= !std::strcmp(view.name, each.state);
    EXPECT_TRUE(found) << each.rule << " has no " << each.state;
    if (!std::strcmp(each.name, "amsgrad"))
      expect_refused(lt_optimizer_set(optimizer, 0, "amsgrad", 0), "make adamw out of adamw_amsgrad");
    lt_optimizer_destroy(optimizer);
  }
  figure("{} variants by name", std::size(cases));
}

TEST_F(CApi, WeightsToEvaluateComeAndGo) {
  lt_optimizer_options options = LT_OPTIMIZER_OPTIONS_INIT;
  options.rule = "schedulefree";
  Handle made;
  make(made, &options, tensor_);
  lt_optimizer* const optimizer = made.optimizer;
  for (int i = 0; i < 3; ++i)
    EXPECT_EQ(lt_optimizer_step(optimizer, &gradient_, 1, nullptr, nullptr), LT_OK) << lt_last_error();
  int32_t evaluating = -1;
  EXPECT_EQ(lt_optimizer_set_evaluating(optimizer, 1, nullptr), LT_OK) << lt_last_error();
  EXPECT_EQ(lt_optimizer_get_evaluating(optimizer, 0, &evaluating), LT_OK);
  EXPECT_EQ(evaluating, 1);
  expect_refused(lt_optimizer_step(optimizer, &gradient_, 1, nullptr, nullptr), "has the weights to evaluate");
  EXPECT_EQ(lt_optimizer_set_evaluating(optimizer, 0, nullptr), LT_OK);
  EXPECT_EQ(lt_optimizer_step(optimizer, &gradient_, 1, nullptr, nullptr), LT_OK) << lt_last_error();
  EXPECT_EQ(lt_optimizer_mark_evaluating(optimizer, 0, 1), LT_OK);
  expect_refused(lt_optimizer_get_evaluating(optimizer, 0, nullptr), "evaluating");
  expect_refused(lt_optimizer_get_evaluating(optimizer, 1, &evaluating), "1");
  expect_refused(lt_optimizer_mark_evaluating(handle_.optimizer, 0, 1), "wanted schedulefree");
  expect_refused(lt_optimizer_set_evaluating(nullptr, 1, nullptr), "optimizer");
}

TEST_F(CApi, RefusesNullsAndWrongNumbers) {
  lt_optimizer* o = handle_.optimizer;
  double value = 0;
  int64_t number = 0;
  lt_state_view view;
  lt_memory_report report = LT_MEMORY_REPORT_INIT;
  float x[1];
  lt_optimizer_destroy(nullptr);
  expect_refused(lt_optimizer_create(nullptr, nullptr), "NULL for out");
  expect_refused(lt_optimizer_add_group(nullptr, nullptr, nullptr), "NULL for optimizer");
  expect_refused(lt_optimizer_set(nullptr, 0, "lr", 1), "NULL for optimizer");
  expect_refused(lt_optimizer_set(o, 0, nullptr, 1), "NULL for name");
  expect_refused(lt_optimizer_set(o, 0, "learning_rate", 1),
                 "got hyper-parameter 'learning_rate', wanted one of: lr, ");
  expect_refused(lt_optimizer_set(o, 3, "lr", 1), "got group 3, wanted");
  expect_refused(lt_optimizer_set(o, 0, "lr", -1), "got lr=-1");
  expect_refused(lt_optimizer_set(o, 0, "maximize", 0.5), "got maximize=0.5, wanted 0 or 1");
  expect_refused(lt_optimizer_get(nullptr, 0, "lr", &value), "NULL for optimizer");
  expect_refused(lt_optimizer_get(o, 0, "lr", nullptr), "NULL for value");
  expect_refused(lt_optimizer_get(o, -1, "lr", &value), "got group -1");
  expect_refused(lt_optimizer_add_param(nullptr, 0, &tensor_, nullptr), "NULL for optimizer");
  expect_refused(lt_optimizer_add_param(o, 0, nullptr, nullptr), "NULL for tensor");
  lt_tensor bad = tensor_;
  bad.sizes = nullptr;
  expect_refused(lt_optimizer_add_param(o, 0, &bad, nullptr), "got ndim=1");
  bad = tensor_, bad.ndim = -1;
  expect_refused(lt_optimizer_add_param(o, 0, &bad, nullptr), "got ndim=-1");
  bad = tensor_, bad.dtype = static_cast<lt_dtype>(5);
  expect_refused(lt_optimizer_add_param(o, 0, &bad, nullptr), "got a parameter of element type 5");
  bad = tensor_, bad.data = nullptr;
  expect_refused(lt_optimizer_add_param(o, 0, &bad, nullptr), "null pointer");
  expect_refused(lt_optimizer_rebind(o, 4, &tensor_), "got parameter 4, wanted");
  expect_refused(lt_optimizer_step(nullptr, &gradient_, 1, nullptr, nullptr), "NULL for optimizer");
  expect_refused(lt_optimizer_step(o, &gradient_, 2, nullptr, nullptr), "got 2 gradients for 1");
  expect_refused(lt_optimizer_step(o, &gradient_, -1, nullptr, nullptr), "got -1 gradients");
  expect_refused(lt_optimizer_step(o, nullptr, 1, nullptr, nullptr), "NULL for gradients");
  lt_step_options on_stream = LT_STEP_OPTIONS_INIT;
  on_stream.stream = x;
  expect_refused(lt_optimizer_step(o, &gradient_, 1, &on_stream, nullptr), "got a stream");
  expect_refused(lt_optimizer_state(o, 0, 2, &view), "got state 2 of parameter 0, which has 2");
  expect_refused(lt_optimizer_state(o, 0, 0, nullptr), "NULL for out");
  expect_refused(lt_optimizer_export_state(o, 0, 0, nullptr), "NULL for out");
  expect_refused(lt_optimizer_export_state(o, 1, 0, x), "got parameter 1");
  expect_refused(lt_optimizer_import_state(o, 0, 0, nullptr), "NULL for in");
  expect_refused(lt_optimizer_get_steps(o, 0, nullptr), "NULL for steps");
  expect_refused(lt_optimizer_get_steps(o, 8, &number), "got parameter 8");
  expect_refused(lt_optimizer_set_steps(o, 0, -1), "got -1 steps");
  expect_refused(lt_optimizer_report(o, nullptr), "NULL for out");
  expect_refused(lt_optimizer_report(nullptr, &report), "NULL for optimizer");
  EXPECT_EQ(p_, std::vector<float>(600, 1.f)) << "a refused call changed a parameter";
  EXPECT_EQ(lt_optimizer_report(o, &report), LT_OK);
  EXPECT_EQ(report.params, 1);
  EXPECT_EQ(report.steps, 0);
}

TEST_F(CApi, TakesOptionStructsOfOtherVersions) {
  // An older caller knows only struct_size and rule; what lies behind in its memory is not an option.
  struct {
    int64_t struct_size;
    const char* rule;
    const char* garbage = reinterpret_cast<const char*>(1);
    int32_t more_garbage[2] = {-77, -77};
  } old{2 * sizeof(int64_t), "lion", reinterpret_cast<const char*>(1), {-77, -77}};
  Handle older, newer, wrong;
  EXPECT_EQ(lt_optimizer_create(reinterpret_cast<lt_optimizer_options*>(&old), &older.optimizer), LT_OK)
      << lt_last_error();
  // A newer one has fields that this library does not know.
  struct {
    lt_optimizer_options known;
    int64_t unknown[4];
  } future = {LT_OPTIMIZER_OPTIONS_INIT, {5, 6, 7, 8}};
  future.known.struct_size = sizeof future;
  future.known.rule = "sgd";
  EXPECT_EQ(lt_optimizer_create(&future.known, &newer.optimizer), LT_OK) << lt_last_error();
  for (const int64_t size : {int64_t{0}, int64_t{-8}, int64_t{7}, int64_t{12}, int64_t{1} << 40}) {  // 12: half of rule
    lt_optimizer_options options = LT_OPTIMIZER_OPTIONS_INIT;
    options.struct_size = size;
    wrong.optimizer = reinterpret_cast<lt_optimizer*>(8);
    expect_refused(lt_optimizer_create(&options, &wrong.optimizer), "struct_size=");
    EXPECT_EQ(wrong.optimizer, nullptr) << "a failed create gives NULL";
    lt_group_options group = LT_GROUP_OPTIONS_INIT;
    group.struct_size = size;
    expect_refused(lt_optimizer_add_group(handle_.optimizer, &group, nullptr), "struct_size=");
  }
  lt_optimizer_options options = LT_OPTIMIZER_OPTIONS_INIT;
  options.nonfinite = 3;
  expect_refused(lt_optimizer_create(&options, &wrong.optimizer), "got nonfinite=3");
  options = LT_OPTIMIZER_OPTIONS_INIT, options.rule = "adma";
  expect_refused(lt_optimizer_create(&options, &wrong.optimizer), "got rule 'adma'");
}

TEST_F(CApi, StepsWithOptions) {
  lt_step_options options = LT_STEP_OPTIONS_INIT;
  lt_step_report report = LT_STEP_REPORT_INIT;
  g_[5] = NAN;
  EXPECT_EQ(lt_optimizer_step(handle_.optimizer, &gradient_, 1, &options, &report), LT_OK);
  EXPECT_TRUE(report.applied == 0 && report.nonfinite_param == 0 && report.pending == 0) << "the CPU knows at once";
  EXPECT_EQ(p_, std::vector<float>(600, 1.f));
  options.assume_finite = 1;  // then nobody looks
  EXPECT_EQ(lt_optimizer_step(handle_.optimizer, &gradient_, 1, &options, &report), LT_OK);
  EXPECT_EQ(report.applied, 1);
  EXPECT_TRUE(std::isnan(p_[5]));

  options.assume_finite = 2;
  expect_refused(lt_optimizer_step(handle_.optimizer, &gradient_, 1, &options, &report), "got assume_finite=2");
  options = LT_STEP_OPTIONS_INIT, options.struct_size = 12;
  expect_refused(lt_optimizer_step(handle_.optimizer, &gradient_, 1, &options, &report), "struct_size=12");
  report.struct_size = 0;
  expect_refused(lt_optimizer_step(handle_.optimizer, &gradient_, 1, nullptr, &report), "struct_size=0");
  struct {  // an older caller's report ends after `applied`
    int64_t struct_size, applied, behind;
  } old{2 * sizeof(int64_t), -1, 77};
  g_[5] = 0.5f;
  EXPECT_EQ(lt_optimizer_step(handle_.optimizer, &gradient_, 1, nullptr, reinterpret_cast<lt_step_report*>(&old)),
            LT_OK);
  EXPECT_TRUE(old.applied == 1 && old.behind == 77);
  options = LT_STEP_OPTIONS_INIT;
  options.stream = &old;
  expect_refused(lt_optimizer_step(handle_.optimizer, &gradient_, 1, &options, nullptr), "stream");
}

TEST_F(CApi, OptionsOfDevicesAreRefusedOnTheCpu) {
  EXPECT_EQ(lt_optimizer_step(nullptr, nullptr, 0, nullptr, nullptr), LT_INVALID_ARGUMENT);
  EXPECT_EQ(lt_optimizer_prepare_replay(nullptr, nullptr), LT_INVALID_ARGUMENT);
  EXPECT_EQ(lt_optimizer_prefetch(nullptr, 0, nullptr, nullptr), LT_INVALID_ARGUMENT);
  EXPECT_EQ(lt_optimizer_demote(nullptr, 0, nullptr), LT_INVALID_ARGUMENT);
  EXPECT_EQ(lt_optimizer_synchronize(nullptr), LT_INVALID_ARGUMENT);
  expect_refused(lt_optimizer_prefetch(handle_.optimizer, -1, nullptr, nullptr), "got bytes=-1");
  expect_refused(lt_optimizer_demote(handle_.optimizer, -1, nullptr), "got bytes=-1");
  expect_refused(lt_optimizer_prepare_replay(handle_.optimizer, nullptr), "");

  Handle wrong;
  lt_optimizer_options options = LT_OPTIMIZER_OPTIONS_INIT;
  lt_memory_options memory = LT_MEMORY_OPTIONS_INIT;
  options.memory = &memory;
  memory.automatic = 1;
  expect_refused(lt_optimizer_create(&options, &wrong.optimizer), "automatic=1");
  memory.automatic = 2;
  expect_refused(lt_optimizer_create(&options, &wrong.optimizer), "got automatic=2");
  memory = LT_MEMORY_OPTIONS_INIT, memory.transfer = "copy";
  expect_refused(lt_optimizer_create(&options, &wrong.optimizer), "transfer='copy'");
  memory = LT_MEMORY_OPTIONS_INIT;
  options.allocate = [](void*, int64_t) -> void* { return nullptr; };
  expect_refused(lt_optimizer_create(&options, &wrong.optimizer), "allocator");
  options.deallocate = [](void*, void*) {};
  expect_refused(lt_optimizer_create(&options, &wrong.optimizer), "allocator");
}

// State on disk by the C interface: the same bits as in RAM, through save and load, too.
TEST_F(CApi, StateUnderABudget) {
  const TemporaryDirectory directory;
  constexpr int64_t kNumel = 40000;
  const int64_t sizes[1] = {kNumel};
  std::vector<float> p(kNumel, 1.f), q = p, g(kNumel);
  for (size_t i = 0; i < g.size(); ++i) g[i] = static_cast<float>(i % 100) * 0.01f;
  const lt_tensor on_disk = {p.data(), LT_F32, 1, sizes, nullptr}, in_ram = {q.data(), LT_F32, 1, sizes, nullptr};
  const lt_gradient gradient = {g.data(), LT_F32, nullptr};
  lt_memory_options memory = LT_MEMORY_OPTIONS_INIT;
  memory.host = 4 * 8192;
  memory.disk = directory.path().c_str();
  memory.chunk = 8192;
  lt_optimizer_options options = LT_OPTIMIZER_OPTIONS_INIT;
  Handle a, b, c;
  options.memory = &memory;
  lt_group_options group = LT_GROUP_OPTIONS_INIT;
  group.memory = &memory;
  make(a, &options, on_disk);
  make(b, nullptr, in_ram);
  make(c, nullptr, on_disk, &group);  // the budget of its group
  const auto step = [&](Handle& h) {
    ASSERT_EQ(lt_optimizer_step(h.optimizer, &gradient, 1, nullptr, nullptr), LT_OK) << lt_last_error();
  };
  for (int i = 0; i < 3; ++i) step(a), step(b);
  EXPECT_EQ(p, q);
  lt_memory_report disk = LT_MEMORY_REPORT_INIT;
  ASSERT_EQ(lt_optimizer_report(a.optimizer, &disk), LT_OK);
  EXPECT_GT(disk.disk_bytes, 0);
  EXPECT_EQ(disk.read_bytes + disk.written_bytes, 3 * disk.moved_per_step);
  EXPECT_EQ(disk.kept_bytes, 0);
  lt_memory_report old = LT_MEMORY_REPORT_INIT;  // from a caller who knows only the first field
  old.struct_size = 2 * sizeof(int64_t), old.elements = -77;
  ASSERT_EQ(lt_optimizer_report(a.optimizer, &old), LT_OK);
  EXPECT_EQ(old.params, 1);
  EXPECT_EQ(old.elements, -77);
  lt_state_view view;
  ASSERT_EQ(lt_optimizer_state(a.optimizer, 0, 0, &view), LT_OK);
  EXPECT_EQ(view.codes, nullptr);
  std::vector<unsigned char> codes(kNumel), wanted(kNumel);
  std::vector<float> scales(static_cast<size_t>(view.rows * view.scales_per_row)), wanted_scales = scales;
  ASSERT_EQ(lt_optimizer_read_state(a.optimizer, 0, 0, codes.data(), scales.data()), LT_OK);
  ASSERT_EQ(lt_optimizer_read_state(b.optimizer, 0, 0, wanted.data(), wanted_scales.data()), LT_OK);
  EXPECT_EQ(codes, wanted);
  EXPECT_EQ(scales, wanted_scales);
  // By file into the third, whose first state is then overwritten with itself.
  const std::string path = directory.file("c");
  const char* metadata = nullptr;
  ASSERT_EQ(lt_optimizer_save(a.optimizer, path.c_str(), "three steps"), LT_OK) << lt_last_error();
  lt_save* save = nullptr;
  int32_t done = 0;
  const std::string beside = directory.file("beside");
  ASSERT_EQ(lt_optimizer_save_async(a.optimizer, beside.c_str(), "three steps", 0, &save), LT_OK) << lt_last_error();
  ASSERT_EQ(lt_save_wait(save, -1, &done), LT_OK) << lt_last_error();
  EXPECT_EQ(done, 1);
  lt_save_destroy(save);
  EXPECT_EQ(read_file(beside), read_file(path));
  ASSERT_EQ(lt_optimizer_load(c.optimizer, path.c_str(), &metadata), LT_OK) << lt_last_error();
  EXPECT_STREQ(metadata, "three steps");
  ASSERT_EQ(lt_optimizer_allocate_state(c.optimizer, 0), LT_OK);
  ASSERT_EQ(lt_optimizer_write_state(c.optimizer, 0, 0, codes.data(), scales.data()), LT_OK);
  step(b), step(c);
  EXPECT_EQ(p, q);
  // Refusals, with the system's number where there is one.
  EXPECT_EQ(lt_optimizer_load(c.optimizer, directory.file("none").c_str(), nullptr), LT_IO_ERROR);
  EXPECT_EQ(lt_last_os_error(), ENOENT);
  EXPECT_EQ(lt_optimizer_save(c.optimizer, directory.path().c_str(), nullptr), LT_IO_ERROR);
  EXPECT_EQ(lt_last_os_error(), EISDIR);
  expect_refused(lt_optimizer_load(b.optimizer, nullptr, nullptr), "NULL for path");
  expect_refused(lt_optimizer_save(nullptr, path.c_str(), nullptr), "NULL for optimizer");
  expect_refused(lt_optimizer_read_state(b.optimizer, 0, 0, nullptr, nullptr), "NULL for codes");
  expect_refused(lt_optimizer_write_state(b.optimizer, 0, 2, codes.data(), nullptr), "got state 2");
  expect_refused(lt_optimizer_allocate_state(b.optimizer, 3), "got parameter 3");
  disk.struct_size = 0;
  expect_refused(lt_optimizer_report(b.optimizer, &disk), "struct_size=0");
  EXPECT_EQ(lt_last_os_error(), 0);
  memory.chunk = 100;
  expect_refused(lt_optimizer_create(&options, &options_target_.optimizer), "got chunk=100");
  memory.struct_size = 3;
  expect_refused(lt_optimizer_create(&options, &options_target_.optimizer), "struct_size=3");
}

TEST_F(CApi, HyperParametersGoInAndOut) {
  lt_optimizer* o = handle_.optimizer;
  const Hyper defaults = default_hyper("adamw");
  double value = -1;
  EXPECT_EQ(lt_optimizer_get(o, 0, "weight_decay", &value), LT_OK);
  EXPECT_EQ(value, defaults.weight_decay);
  for (const char* name : {"lr", "beta1", "beta2", "eps", "weight_decay", "momentum", "dampening"}) {
    ASSERT_EQ(lt_optimizer_set(o, 0, name, 0.25), LT_OK) << lt_last_error();
    EXPECT_EQ(lt_optimizer_get(o, 0, name, &value), LT_OK);
    EXPECT_EQ(value, 0.25) << name;
  }
  ASSERT_EQ(lt_optimizer_set(o, 0, "maximize", 1), LT_OK);
  EXPECT_EQ(lt_optimizer_get(o, 0, "maximize", &value), LT_OK);
  EXPECT_EQ(value, 1);
}

TEST_F(CApi, SkipsOrRefusesNonFiniteGradients) {
  g_[77] = std::numeric_limits<float>::quiet_NaN();
  lt_step_report report = LT_STEP_REPORT_INIT;
  EXPECT_EQ(lt_optimizer_step(handle_.optimizer, &gradient_, 1, nullptr, &report), LT_OK);
  EXPECT_EQ(report.applied, 0);
  EXPECT_EQ(p_, std::vector<float>(600, 1.f));
  lt_optimizer_options options = LT_OPTIMIZER_OPTIONS_INIT;
  options.nonfinite = LT_NONFINITE_RAISE;
  Handle raising;
  make(raising, &options, tensor_);
  expect_refused(lt_optimizer_step(raising.optimizer, &gradient_, 1, nullptr, nullptr), "gradient of parameter 0");
  EXPECT_EQ(p_, std::vector<float>(600, 1.f));
}

TEST_F(CApi, KeepsTheLastErrorOfEachThreadApart) {
  expect_refused(lt_optimizer_set(handle_.optimizer, 0, "lr", -1), "got lr=-1");
  const std::string mine = lt_last_error();
  std::thread([&] {
    EXPECT_STREQ(lt_last_error(), "") << "another thread's failure is not this one's";
    expect_refused(lt_optimizer_set(handle_.optimizer, 0, "eps", 0), "got eps=0");
  }).join();
  EXPECT_EQ(lt_last_error(), mine);
}

// lowtide_sign.h ----------------------------------------------------------------------------------------------------

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
