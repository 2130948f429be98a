// The optimizers of the C interface. Devices are in device.cpp, signs in sign.cpp and sign_collective.cpp.
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "capi/guard.h"
#include "core/error.h"
#include "lowtide/backends.h"
#include "lowtide/lowtide.h"
#include "lowtide/optimizer.h"
#include "optim/hyper.h"

struct lt_queued_clip {
  std::shared_ptr<lowtide::QueuedClip> clip;
};

struct lt_save {
  explicit lt_save(lowtide::SaveHandle of) : handle(std::move(of)) {}
  lowtide::SaveHandle handle;
};

struct lt_optimizer {
  lowtide::Optimizer optimizer;
  std::string rule;
  std::string metadata;                  // from the last checkpoint that was loaded
  mutable lowtide::MemoryReport report;  // owns the texts that the last call returned
};

namespace {

using lowtide::ErrorKind;
using lowtide::capi::flag;
using lowtide::capi::guarded;
using lowtide::capi::require;
using lowtide::capi::require_bytes;
using lowtide::capi::struct_from;

thread_local std::string last_error;
thread_local int32_t last_os_error = 0;
thread_local std::vector<lowtide::BackendReport> last_backends;  // lt_backends() returns pointers into it

std::string text(const char* given) { return given ? given : ""; }

lowtide::Memory memory_from(const lt_memory_options* options) {
  const lt_memory_options given = struct_from(options, lt_memory_options LT_MEMORY_OPTIONS_INIT);
  return {given.host,           text(given.disk),
          given.disk_limit,     given.chunk,
          given.device,         flag(given.managed, "managed"),
          text(given.transfer), flag(given.automatic, "automatic")};
}

lowtide::StepOptions step_options_from(const lt_step_options* options) {
  const lt_step_options given = struct_from(options, lt_step_options LT_STEP_OPTIONS_INIT);
  return {.stream = given.stream,
          .grad_scale = given.grad_scale,
          .assume_finite = flag(given.assume_finite, "assume_finite"),
          .free_bytes = given.free_bytes,
          .clip = given.clip ? given.clip->clip : nullptr,
          .scaling = {given.loss_scale, given.found_inf}};
}

lowtide::TensorView view_of(const lt_tensor* tensor) {
  require(tensor, "tensor");
  LT_REQUIRE(tensor->ndim >= 0 && (tensor->ndim == 0 || tensor->sizes),
             "got ndim=%d and sizes=%p, wanted ndim >= 0 and that many sizes", tensor->ndim,
             static_cast<const void*>(tensor->sizes));
  lowtide::TensorView view;
  view.data = tensor->data;
  view.dtype = static_cast<lowtide::DType>(tensor->dtype);
  view.sizes.assign(tensor->sizes, tensor->sizes + tensor->ndim);
  if (tensor->strides) view.strides.assign(tensor->strides, tensor->strides + tensor->ndim);
  return view;
}

std::vector<lowtide::Gradient> gradients_from(const lowtide::Optimizer& core, const lt_gradient* gradients,
                                              int64_t count) {
  LT_REQUIRE(count == core.param_count(), "got %lld gradients for %lld parameters, wanted one each", lowtide::ll(count),
             lowtide::ll(core.param_count()));
  if (count) require(gradients, "gradients");
  std::vector<lowtide::Gradient> all;
  all.reserve(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i)
    all.push_back({gradients[i].data, static_cast<lowtide::DType>(gradients[i].dtype), gradients[i].strides});
  return all;
}

// Runs body(core) for the optimizer of a handle, and turns exceptions into status codes.
template <class Handle, class Fn>
lt_status on(Handle* handle, Fn&& body) noexcept {
  return lowtide::capi::on(handle, "optimizer", [&](auto& of) { body(of.optimizer); });
}

template <class T>
void give(T value, T* to) {
  if (to) *to = value;
}

void give_clip(const lowtide::ClippedNorm& found, lt_clip_report* report) {
  lowtide::capi::copy_out({0, found.norm, found.grad_scale, found.finite}, report);
}

template <class Number>
Number c_value(Number value) {
  return value;
}
const char* c_value(const std::string& value) { return value.c_str(); }

// Calls use(member) for the hyper-parameter with this name.
template <class H, class Fn>
void with_hyper(H& hyper, const char* name, Fn&& use) {
  require(name, "name");
  bool found = false;
  std::string known;
  lowtide::for_each_hyper(hyper, [&](const char* field, auto& value) {
    known += (known.empty() ? "" : ", ") + std::string(field);
    if (std::strcmp(field, name) == 0) found = true, use(value);
  });
  LT_REQUIRE(found, "got hyper-parameter '%s', wanted one of: %s", name, known.c_str());
}

// Returns names as an array that ends with NULL and stays valid.
template <auto kNames>
lt_status give_names(const char* const** names) noexcept {
  return guarded([&] {
    static const std::vector<std::string> texts = kNames();
    static const std::vector<const char*> all = [] {
      std::vector<const char*> list;
      for (const std::string& each : texts) list.push_back(each.c_str());
      list.push_back(nullptr);
      return list;
    }();
    *require(names, "names") = all.data();
  });
}

std::vector<std::string> hyper_names() {
  std::vector<std::string> names;
  const lowtide::Hyper hyper;
  lowtide::for_each_hyper(hyper, [&](const char* name, const auto&) { names.push_back(name); });
  return names;
}

}  // namespace

lt_status lowtide::capi::failed(lt_status status, const char* text, int os_error) noexcept {
  last_os_error = os_error;
  try {
    last_error = text;
  } catch (...) {
    last_error.clear();
  }
  return status;
}

static_assert(LT_INVALID_ARGUMENT == static_cast<int>(ErrorKind::kInvalidArgument));
static_assert(LT_OUT_OF_MEMORY == static_cast<int>(ErrorKind::kOutOfMemory));
static_assert(LT_UNSUPPORTED == static_cast<int>(ErrorKind::kUnsupported));
static_assert(LT_IO_ERROR == static_cast<int>(ErrorKind::kIo));
static_assert(LT_DEVICE_LOST == static_cast<int>(ErrorKind::kDeviceLost));
static_assert(LT_INTERNAL == static_cast<int>(ErrorKind::kInternal));
static_assert(LT_F32 == static_cast<int>(lowtide::DType::kF32) && LT_BF16 == static_cast<int>(lowtide::DType::kBF16) &&
              LT_F16 == static_cast<int>(lowtide::DType::kF16));

extern "C" {

const char* lt_version(void) { return lowtide::version(); }
const char* lt_last_error(void) { return last_error.c_str(); }
int32_t lt_last_os_error(void) { return last_os_error; }

lt_status lt_rule_names(const char* const** names) { return give_names<lowtide::rule_names>(names); }
lt_status lt_state_formats(const char* const** names) { return give_names<lowtide::codec_names>(names); }
lt_status lt_hyper_names(const char* const** names) { return give_names<hyper_names>(names); }

lt_status lt_backends(lt_backend_report* out, int32_t room, int32_t* count) {
  return guarded([&] {
    require(count, "count");
    LT_REQUIRE(room >= 0 && (out || room == 0),
               "got room=%d and out=%p, wanted room >= 0 and space for that many reports", room,
               static_cast<void*>(out));
    last_backends = lowtide::report_backends();
    *count = static_cast<int32_t>(last_backends.size());
    for (size_t i = 0; i < std::min(last_backends.size(), static_cast<size_t>(room)); ++i)
      out[i] = {last_backends[i].name.c_str(), last_backends[i].detail.c_str(), last_backends[i].available};
  });
}

const char* lt_status_name(lt_status status) {
  static constexpr std::pair<lt_status, const char*> kNames[] = {
      {LT_OK, "ok"},
      {LT_INVALID_ARGUMENT, "invalid argument"},
      {LT_OUT_OF_MEMORY, "out of memory"},
      {LT_UNSUPPORTED, "unsupported"},
      {LT_IO_ERROR, "input/output error"},
      {LT_DEVICE_LOST, "device lost"},
      {LT_INTERNAL, "internal error"},
  };
  for (const auto& [known, name] : kNames)
    if (status == known) return name;
  return "unknown status";
}

lt_status lt_optimizer_create(const lt_optimizer_options* options, lt_optimizer** out) {
  return guarded([&] {
    *require(out, "out") = nullptr;
    const lt_optimizer_options given = struct_from(options, lt_optimizer_options LT_OPTIMIZER_OPTIONS_INIT);
    LT_REQUIRE(given.nonfinite >= LT_NONFINITE_SKIP && given.nonfinite <= LT_NONFINITE_PROPAGATE,
               "got nonfinite=%d, wanted an lt_nonfinite", given.nonfinite);
    lowtide::OptimizerOptions wanted;
    if (given.rule) wanted.rule = given.rule;
    if (given.cpu_target) wanted.cpu_target = given.cpu_target;
    wanted.nonfinite = static_cast<lowtide::NonFinite>(given.nonfinite);
    wanted.threads = given.threads;
    wanted.memory = memory_from(given.memory);
    if (given.backend) wanted.backend = given.backend;
    if (given.device) wanted.device = given.device;
    wanted.stream = given.stream;
    wanted.seed = given.seed;
    wanted.allocator = {given.allocator_context, given.allocate, given.deallocate, given.note_use};
    *out = new lt_optimizer{lowtide::Optimizer(wanted), wanted.rule, "", {}};
  });
}

void lt_optimizer_destroy(lt_optimizer* optimizer) { delete optimizer; }

lt_status lt_optimizer_add_group(lt_optimizer* optimizer, const lt_group_options* options, int32_t* group) {
  return on(optimizer, [&](lowtide::Optimizer& core) {
    const lt_group_options given = struct_from(options, lt_group_options LT_GROUP_OPTIONS_INIT);
    lowtide::GroupOptions wanted;
    wanted.hyper = lowtide::default_hyper(optimizer->rule);
#define LT_GROUP_COUNT(name, value, fixed) wanted.name = given.name;
#define LT_GROUP_TEXT(name, value, fixed) \
  if (given.name) wanted.name = given.name;
#define LT_GROUP_BUDGET(name) \
  if (given.name) wanted.name = memory_from(given.name);
    LT_GROUP_OPTIONS(LT_GROUP_TEXT, LT_GROUP_COUNT, LT_GROUP_BUDGET)
    give(core.add_group(wanted), group);
  });
}

lt_status lt_optimizer_set(lt_optimizer* optimizer, int32_t group, const char* name, double value) {
  return on(optimizer, [&](lowtide::Optimizer& core) {
    lowtide::Hyper hyper = core.hyper(group);
    with_hyper(hyper, name, [&](auto& member) {
      if constexpr (std::is_same_v<std::remove_reference_t<decltype(member)>, bool>) {
        LT_REQUIRE(value == 0 || value == 1, "got %s=%g, wanted 0 or 1", name, value);
        member = value != 0;
      } else {
        member = value;
      }
    });
    core.set_hyper(group, hyper);
  });
}

lt_status lt_optimizer_get(const lt_optimizer* optimizer, int32_t group, const char* name, double* value) {
  return on(optimizer, [&](const lowtide::Optimizer& core) {
    require(value, "value");
    with_hyper(core.hyper(group), name, [&](const auto& member) { *value = static_cast<double>(member); });
  });
}

lt_status lt_optimizer_add_param(lt_optimizer* optimizer, int32_t group, const lt_tensor* tensor, int64_t* param) {
  return on(optimizer, [&](lowtide::Optimizer& core) { give(core.add_param(group, view_of(tensor)), param); });
}

lt_status lt_optimizer_rebind(lt_optimizer* optimizer, int64_t param, const lt_tensor* tensor) {
  return on(optimizer, [&](lowtide::Optimizer& core) { core.rebind(param, view_of(tensor)); });
}

lt_status lt_optimizer_step(lt_optimizer* optimizer, const lt_gradient* gradients, int64_t count,
                            const lt_step_options* options, lt_step_report* report) {
  return on(optimizer, [&](lowtide::Optimizer& core) {
    if (report) lowtide::capi::check_struct_size(report->struct_size);
    const lowtide::StepOptions given = step_options_from(options);
    const lowtide::StepResult result = core.step(gradients_from(core, gradients, count), given);
    if (report) lowtide::capi::copy_out({0, result.applied, result.nonfinite_param, result.pending}, report);
  });
}

lt_status lt_optimizer_clip_grad_norm(lt_optimizer* optimizer, const lt_gradient* gradients, int64_t count,
                                      double max_norm, double norm_type, const lt_step_options* options,
                                      lt_clip_report* report) {
  return on(optimizer, [&](lowtide::Optimizer& core) {
    lowtide::capi::check_struct_size(require(report, "report")->struct_size);
    const lowtide::StepOptions given = step_options_from(options);
    give_clip(core.clip_grad_norm(gradients_from(core, gradients, count), max_norm, norm_type, given), report);
  });
}

lt_status lt_optimizer_queue_clip_grad_norm(lt_optimizer* optimizer, const lt_gradient* gradients, int64_t count,
                                            double max_norm, double norm_type, const lt_step_options* options,
                                            float* norm, lt_queued_clip** clip) {
  if (clip) *clip = nullptr;
  return on(optimizer, [&](lowtide::Optimizer& core) {
    require(clip, "clip");
    const lowtide::StepOptions given = step_options_from(options);
    auto made = std::make_unique<lt_queued_clip>();
    made->clip = core.queue_clip_grad_norm(gradients_from(core, gradients, count), max_norm, norm_type, norm, given);
    *clip = made.release();
  });
}

lt_status lt_queued_clip_wait(lt_queued_clip* clip, lt_clip_report* report) {
  return lowtide::capi::on(clip, "clip", [&](lt_queued_clip& of) {
    lowtide::capi::check_struct_size(require(report, "report")->struct_size);
    give_clip(lowtide::Optimizer::clipped(*of.clip), report);
  });
}

void lt_queued_clip_destroy(lt_queued_clip* clip) { delete clip; }

lt_status lt_optimizer_prepare_replay(lt_optimizer* optimizer, const lt_step_options* options) {
  return on(optimizer, [&](lowtide::Optimizer& core) { core.prepare_replay(step_options_from(options)); });
}

lt_status lt_optimizer_prefetch(lt_optimizer* optimizer, int64_t bytes, void* stream, int64_t* taken) {
  return on(optimizer, [&](lowtide::Optimizer& core) {
    require_bytes(bytes);
    give(core.prefetch(bytes, stream), taken);
  });
}

lt_status lt_optimizer_demote(lt_optimizer* optimizer, int64_t bytes, int64_t* freed) {
  return on(optimizer, [&](lowtide::Optimizer& core) {
    require_bytes(bytes);
    give(core.demote(bytes), freed);
  });
}

lt_status lt_optimizer_synchronize(lt_optimizer* optimizer) {
  return on(optimizer, [](lowtide::Optimizer& core) { core.synchronize(); });
}

lt_status lt_optimizer_set_evaluating(lt_optimizer* optimizer, int32_t evaluating, void* stream) {
  return on(optimizer, [&](lowtide::Optimizer& core) { core.set_evaluating(evaluating != 0, stream); });
}

lt_status lt_optimizer_get_evaluating(const lt_optimizer* optimizer, int64_t param, int32_t* evaluating) {
  return on(optimizer,
            [&](const lowtide::Optimizer& core) { *require(evaluating, "evaluating") = core.evaluating(param); });
}

lt_status lt_optimizer_mark_evaluating(lt_optimizer* optimizer, int64_t param, int32_t evaluating) {
  return on(optimizer, [&](lowtide::Optimizer& core) { core.mark_evaluating(param, evaluating != 0); });
}

lt_status lt_optimizer_report(const lt_optimizer* optimizer, lt_memory_report* out) {
  return on(optimizer, [&](const lowtide::Optimizer& core) {
    lowtide::capi::check_struct_size(require(out, "out")->struct_size);
    optimizer->report = core.report();
    lt_memory_report all = LT_MEMORY_REPORT_INIT;
#define LT_REPORT_FIELD(type, name, unit, meaning) all.name = c_value(optimizer->report.name);
#include "lowtide/report.def"
    lowtide::capi::copy_out(all, out);
  });
}

lt_status lt_optimizer_state(const lt_optimizer* optimizer, int64_t param, int32_t k, lt_state_view* out) {
  return on(optimizer, [&](const lowtide::Optimizer& core) {
    require(out, "out");
    const std::vector<lowtide::StateView> states = core.state(param);
    LT_REQUIRE(k >= 0 && k < static_cast<int32_t>(states.size()), "got state %d of parameter %lld, which has %zu", k,
               lowtide::ll(param), states.size());
    const lowtide::StateView& view = states[static_cast<size_t>(k)];
    *out = {view.name, view.codec,          view.codes,     view.scales, view.numel,
            view.rows, view.scales_per_row, view.code_bits, view.block};
  });
}

lt_status lt_optimizer_export_state(const lt_optimizer* optimizer, int64_t param, int32_t k, float* out) {
  return on(optimizer, [&](const lowtide::Optimizer& core) { core.export_state(param, k, require(out, "out")); });
}

lt_status lt_optimizer_import_state(lt_optimizer* optimizer, int64_t param, int32_t k, const float* in) {
  return on(optimizer, [&](lowtide::Optimizer& core) { core.import_state(param, k, require(in, "in")); });
}

lt_status lt_optimizer_read_state(const lt_optimizer* optimizer, int64_t param, int32_t k, void* codes, float* scales) {
  return on(optimizer,
            [&](const lowtide::Optimizer& core) { core.read_state(param, k, require(codes, "codes"), scales); });
}

lt_status lt_optimizer_write_state(lt_optimizer* optimizer, int64_t param, int32_t k, const void* codes,
                                   const float* scales) {
  return on(optimizer, [&](lowtide::Optimizer& core) { core.write_state(param, k, require(codes, "codes"), scales); });
}

lt_status lt_optimizer_allocate_state(lt_optimizer* optimizer, int64_t param) {
  return on(optimizer, [&](lowtide::Optimizer& core) { core.allocate_state(param); });
}

lt_status lt_optimizer_get_steps(const lt_optimizer* optimizer, int64_t param, int64_t* steps) {
  return on(optimizer, [&](const lowtide::Optimizer& core) { *require(steps, "steps") = core.steps(param); });
}

lt_status lt_optimizer_set_steps(lt_optimizer* optimizer, int64_t param, int64_t steps) {
  return on(optimizer, [&](lowtide::Optimizer& core) { core.set_steps(param, steps); });
}

lt_status lt_optimizer_save(const lt_optimizer* optimizer, const char* path, const char* metadata) {
  return on(optimizer, [&](const lowtide::Optimizer& core) { core.save(require(path, "path"), text(metadata)); });
}

lt_status lt_optimizer_save_async(const lt_optimizer* optimizer, const char* path, const char* metadata,
                                  int64_t copy_bytes, lt_save** save) {
  if (save) *save = nullptr;
  return on(optimizer, [&](const lowtide::Optimizer& core) {
    require(save, "save");
    *save = std::make_unique<lt_save>(core.save_async(require(path, "path"), text(metadata), copy_bytes)).release();
  });
}

lt_status lt_save_wait(const lt_save* save, double seconds, int32_t* done) {
  if (done) *done = 1;
  return lowtide::capi::on(save, "save", [&](const lt_save& of) { give(int32_t{of.handle.wait(seconds)}, done); });
}

void lt_save_destroy(lt_save* save) { delete save; }

lt_status lt_optimizer_load(lt_optimizer* optimizer, const char* path, const char** metadata) {
  return on(optimizer, [&](lowtide::Optimizer& core) {
    optimizer->metadata = core.load(require(path, "path"));
    give(optimizer->metadata.c_str(), metadata);
  });
}

}  // extern "C"
