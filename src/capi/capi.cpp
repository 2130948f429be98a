// The C interface's optimizers. Devices: device.cpp. Signs: sign.cpp.
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "capi/guard.h"
#include "core/error.h"
#include "lowtide/backends.h"
#include "lowtide/lowtide.h"
#include "lowtide/optimizer.h"
#include "optim/hyper.h"

struct lt_optimizer {
  lowtide::Optimizer optimizer;
  std::string rule;
  std::string metadata;                  // of the last checkpoint loaded
  mutable lowtide::MemoryReport report;  // the last one: owns the texts given out
};

namespace {

using lowtide::ErrorKind;
using lowtide::capi::guarded;
using lowtide::capi::options_from;
using lowtide::capi::require;

thread_local std::string last_error;
thread_local int32_t last_os_error = 0;
thread_local std::vector<lowtide::BackendReport> last_backends;  // what lt_backends() gave pointers into

std::string text(const char* given) { return given ? given : ""; }

lowtide::Memory memory_from(const lt_memory_options* options) {
  const lt_memory_options given = options_from(options, lt_memory_options LT_MEMORY_OPTIONS_INIT);
  LT_REQUIRE(given.managed == 0 || given.managed == 1, "got managed=%lld, wanted 0 or 1",
             static_cast<long long>(given.managed));
  LT_REQUIRE(given.automatic == 0 || given.automatic == 1, "got automatic=%lld, wanted 0 or 1",
             static_cast<long long>(given.automatic));
  return {given.ram_bytes,    text(given.disk),   given.disk_bytes,     given.chunk_bytes,
          given.device_bytes, given.managed == 1, text(given.transfer), given.automatic == 1};
}

lowtide::StepOptions step_options_from(const lt_step_options* options) {
  const lt_step_options given = options_from(options, lt_step_options LT_STEP_OPTIONS_INIT);
  LT_REQUIRE(given.assume_finite == 0 || given.assume_finite == 1, "got assume_finite=%lld, wanted 0 or 1",
             static_cast<long long>(given.assume_finite));
  return {given.stream, given.grad_scale, given.assume_finite == 1, given.free_bytes};
}

lowtide::TensorView view_of(const lt_tensor* tensor) {
  require(tensor, "tensor");
  LT_REQUIRE(tensor->ndim >= 0 && (tensor->ndim == 0 || tensor->sizes), "got ndim=%d and sizes=%p", tensor->ndim,
             static_cast<const void*>(tensor->sizes));
  lowtide::TensorView view;
  view.data = tensor->data;
  view.dtype = static_cast<lowtide::DType>(tensor->dtype);
  view.sizes.assign(tensor->sizes, tensor->sizes + tensor->ndim);
  if (tensor->strides) view.strides.assign(tensor->strides, tensor->strides + tensor->ndim);
  return view;
}

template <class Number>
Number c_value(Number value) {
  return value;
}
const char* c_value(const std::string& value) { return value.c_str(); }

void require_bytes(int64_t bytes) {
  LT_REQUIRE(bytes >= 0, "got bytes=%lld, wanted 0 or more", static_cast<long long>(bytes));
}

// Calls use(member) for the hyper-parameter of that name.
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

lt_status lt_backends(lt_backend_report* out, int32_t room, int32_t* count) {
  return guarded([&] {
    require(count, "count");
    LT_REQUIRE(room >= 0 && (out || room == 0), "got room=%d and out=%p", room, static_cast<void*>(out));
    last_backends = lowtide::report_backends();
    *count = static_cast<int32_t>(last_backends.size());
    for (size_t i = 0; i < std::min(last_backends.size(), static_cast<size_t>(room)); ++i)
      out[i] = {last_backends[i].name.c_str(), last_backends[i].detail.c_str(), last_backends[i].available};
  });
}

const char* lt_status_name(lt_status status) {
  switch (status) {
    case LT_OK:
      return "ok";
    case LT_INVALID_ARGUMENT:
      return "invalid argument";
    case LT_OUT_OF_MEMORY:
      return "out of memory";
    case LT_UNSUPPORTED:
      return "unsupported";
    case LT_IO_ERROR:
      return "input/output error";
    case LT_DEVICE_LOST:
      return "device lost";
    case LT_INTERNAL:
      return "internal error";
  }
  return "unknown status";
}

lt_status lt_optimizer_create(const lt_optimizer_options* options, lt_optimizer** out) {
  return guarded([&] {
    require(out, "out");
    *out = nullptr;
    const lt_optimizer_options given = options_from(options, lt_optimizer_options LT_OPTIMIZER_OPTIONS_INIT);
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
    wanted.allocator = {given.allocator_context, given.allocate, given.deallocate};
    *out = new lt_optimizer{lowtide::Optimizer(wanted), wanted.rule, "", {}};
  });
}

void lt_optimizer_destroy(lt_optimizer* optimizer) { delete optimizer; }

lt_status lt_optimizer_add_group(lt_optimizer* optimizer, const lt_group_options* options, int32_t* group) {
  return guarded([&] {
    require(optimizer, "optimizer");
    const lt_group_options given = options_from(options, lt_group_options LT_GROUP_OPTIONS_INIT);
    lowtide::GroupOptions wanted;
    wanted.hyper = lowtide::default_hyper(optimizer->rule);
    if (given.state) wanted.state = given.state;
    wanted.min_quantized_numel = given.min_quantized_numel;
    if (given.memory) wanted.memory = memory_from(given.memory);
    if (given.rounding) wanted.rounding = given.rounding;
    if (given.master) wanted.master = given.master;
    const int number = optimizer->optimizer.add_group(wanted);
    if (group) *group = number;
  });
}

lt_status lt_optimizer_set(lt_optimizer* optimizer, int32_t group, const char* name, double value) {
  return guarded([&] {
    require(optimizer, "optimizer");
    lowtide::Hyper hyper = optimizer->optimizer.hyper(group);
    with_hyper(hyper, name, [&](auto& member) {
      if constexpr (std::is_same_v<std::remove_reference_t<decltype(member)>, bool>) {
        LT_REQUIRE(value == 0 || value == 1, "got %s=%g, wanted 0 or 1", name, value);
        member = value != 0;
      } else {
        member = value;
      }
    });
    optimizer->optimizer.set_hyper(group, hyper);
  });
}

lt_status lt_optimizer_get(const lt_optimizer* optimizer, int32_t group, const char* name, double* value) {
  return guarded([&] {
    require(optimizer, "optimizer");
    require(value, "value");
    with_hyper(optimizer->optimizer.hyper(group), name,
               [&](const auto& member) { *value = static_cast<double>(member); });
  });
}

lt_status lt_optimizer_add_param(lt_optimizer* optimizer, int32_t group, const lt_tensor* tensor, int64_t* param) {
  return guarded([&] {
    require(optimizer, "optimizer");
    const int64_t number = optimizer->optimizer.add_param(group, view_of(tensor));
    if (param) *param = number;
  });
}

lt_status lt_optimizer_rebind(lt_optimizer* optimizer, int64_t param, const lt_tensor* tensor) {
  return guarded([&] {
    require(optimizer, "optimizer");
    optimizer->optimizer.rebind(param, view_of(tensor));
  });
}

lt_status lt_optimizer_step(lt_optimizer* optimizer, const lt_gradient* gradients, int64_t count,
                            const lt_step_options* options, lt_step_report* report) {
  return guarded([&] {
    require(optimizer, "optimizer");
    lowtide::Optimizer& core = optimizer->optimizer;
    if (report) lowtide::capi::check_struct_size(report->struct_size);
    const lowtide::StepOptions given = step_options_from(options);
    LT_REQUIRE(count == core.param_count(), "got %lld gradients for %lld parameters", static_cast<long long>(count),
               static_cast<long long>(core.param_count()));
    if (count) require(gradients, "gradients");
    std::vector<lowtide::Gradient> all;
    all.reserve(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i)
      all.push_back({gradients[i].data, static_cast<lowtide::DType>(gradients[i].dtype), gradients[i].strides});
    const lowtide::StepResult result = core.step(all, given);
    if (report)
      lowtide::capi::copy_out({report->struct_size, result.applied, result.nonfinite_param, result.pending}, report);
  });
}

lt_status lt_optimizer_prepare_replay(lt_optimizer* optimizer, const lt_step_options* options) {
  return guarded([&] {
    require(optimizer, "optimizer");
    optimizer->optimizer.prepare_replay(step_options_from(options));
  });
}

lt_status lt_optimizer_prefetch(lt_optimizer* optimizer, int64_t bytes, void* stream, int64_t* taken) {
  return guarded([&] {
    require(optimizer, "optimizer");
    require_bytes(bytes);
    const int64_t found = optimizer->optimizer.prefetch(bytes, stream);
    if (taken) *taken = found;
  });
}

lt_status lt_optimizer_demote(lt_optimizer* optimizer, int64_t bytes, int64_t* freed) {
  return guarded([&] {
    require(optimizer, "optimizer");
    require_bytes(bytes);
    const int64_t found = optimizer->optimizer.demote(bytes);
    if (freed) *freed = found;
  });
}

lt_status lt_optimizer_synchronize(lt_optimizer* optimizer) {
  return guarded([&] {
    require(optimizer, "optimizer");
    optimizer->optimizer.synchronize();
  });
}

lt_status lt_optimizer_state(const lt_optimizer* optimizer, int64_t param, int32_t k, lt_state_view* out) {
  return guarded([&] {
    require(optimizer, "optimizer");
    require(out, "out");
    const std::vector<lowtide::StateView> states = optimizer->optimizer.state(param);
    LT_REQUIRE(k >= 0 && k < static_cast<int32_t>(states.size()), "got state %d of parameter %lld, which has %zu", k,
               static_cast<long long>(param), states.size());
    const lowtide::StateView& view = states[static_cast<size_t>(k)];
    *out = {view.name, view.codec,          view.codes,     view.scales, view.numel,
            view.rows, view.scales_per_row, view.code_bits, view.block};
  });
}

lt_status lt_optimizer_export_state(const lt_optimizer* optimizer, int64_t param, int32_t k, float* out) {
  return guarded([&] {
    require(optimizer, "optimizer");
    require(out, "out");
    optimizer->optimizer.export_state(param, k, out);
  });
}

lt_status lt_optimizer_import_state(lt_optimizer* optimizer, int64_t param, int32_t k, const float* in) {
  return guarded([&] {
    require(optimizer, "optimizer");
    require(in, "in");
    optimizer->optimizer.import_state(param, k, in);
  });
}

lt_status lt_optimizer_read_state(const lt_optimizer* optimizer, int64_t param, int32_t k, void* codes, float* scales) {
  return guarded([&] {
    require(optimizer, "optimizer");
    require(codes, "codes");
    optimizer->optimizer.read_state(param, k, codes, scales);
  });
}

lt_status lt_optimizer_write_state(lt_optimizer* optimizer, int64_t param, int32_t k, const void* codes,
                                   const float* scales) {
  return guarded([&] {
    require(optimizer, "optimizer");
    require(codes, "codes");
    optimizer->optimizer.write_state(param, k, codes, scales);
  });
}

lt_status lt_optimizer_allocate_state(lt_optimizer* optimizer, int64_t param) {
  return guarded([&] {
    require(optimizer, "optimizer");
    optimizer->optimizer.allocate_state(param);
  });
}

lt_status lt_optimizer_get_steps(const lt_optimizer* optimizer, int64_t param, int64_t* steps) {
  return guarded([&] {
    require(optimizer, "optimizer");
    require(steps, "steps");
    *steps = optimizer->optimizer.steps(param);
  });
}

lt_status lt_optimizer_set_steps(lt_optimizer* optimizer, int64_t param, int64_t steps) {
  return guarded([&] {
    require(optimizer, "optimizer");
    optimizer->optimizer.set_steps(param, steps);
  });
}

lt_status lt_optimizer_save(const lt_optimizer* optimizer, const char* path, const char* metadata) {
  return guarded([&] {
    require(optimizer, "optimizer");
    require(path, "path");
    optimizer->optimizer.save(path, metadata ? metadata : "");
  });
}

lt_status lt_optimizer_load(lt_optimizer* optimizer, const char* path, const char** metadata) {
  return guarded([&] {
    require(optimizer, "optimizer");
    require(path, "path");
    optimizer->metadata = optimizer->optimizer.load(path);
    if (metadata) *metadata = optimizer->metadata.c_str();
  });
}

lt_status lt_optimizer_report(const lt_optimizer* optimizer, lt_memory_report* out) {
  return guarded([&] {
    require(optimizer, "optimizer");
    require(out, "out");
    lowtide::capi::check_struct_size(out->struct_size);
    optimizer->report = optimizer->optimizer.report();
    lt_memory_report all = LT_MEMORY_REPORT_INIT;
    all.struct_size = out->struct_size;
#define LT_REPORT_FIELD(type, name, unit, meaning) all.name = c_value(optimizer->report.name);
#include "lowtide/report.def"
    lowtide::capi::copy_out(all, out);
  });
}

}  // extern "C"
