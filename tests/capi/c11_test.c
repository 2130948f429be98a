/* The C header by a C compiler (-std=c11 -pedantic -Werror). Returns 0, or the line of the first check that failed. */
#include "lowtide/lowtide.h"
#include "lowtide/lowtide_device.h"
#include "lowtide/lowtide_sign_collective.h"

#include <errno.h>
#include <string.h>

_Static_assert(sizeof(lt_optimizer_options) % 8 == 0 && sizeof(lt_group_options) % 8 == 0 &&
                   sizeof(lt_memory_options) % 8 == 0 && sizeof(lt_memory_report) % 8 == 0 &&
                   sizeof(lt_step_options) % 8 == 0 && sizeof(lt_step_report) % 8 == 0 &&
                   sizeof(lt_device_limits_report) % 8 == 0,
               "no padding at the end");
_Static_assert(LT_F32 == 0 && LT_BF16 == 1 && LT_F16 == 2, "dtype numbers are part of the ABI");
_Static_assert(LT_MEMORY_DEVICE == 0 && LT_MEMORY_PINNED == 1 && LT_MEMORY_SHARED == 2, "part of the ABI");
_Static_assert(LT_OK == 0 && LT_INVALID_ARGUMENT == 1 && LT_OUT_OF_MEMORY == 10 && LT_UNSUPPORTED == 20 &&
                   LT_IO_ERROR == 30 && LT_DEVICE_LOST == 40 && LT_INTERNAL == 90,
               "status numbers are part of the ABI");

#define CHECK(condition) \
  do {                   \
    if (!(condition)) {  \
      line = __LINE__;   \
      goto done;         \
    }                    \
  } while (0)

int lt_test_c11(const char* target);

int lt_test_c11(const char* target) {
  int line = 0;
  lt_optimizer* optimizer = NULL;
  lt_save* save = NULL;
  int32_t done = 0;
  lt_optimizer_options options = LT_OPTIMIZER_OPTIONS_INIT;
  lt_group_options group_options = LT_GROUP_OPTIONS_INIT;
  lt_memory_options memory = LT_MEMORY_OPTIONS_INIT;
  lt_memory_report report = LT_MEMORY_REPORT_INIT;
  lt_step_options step = LT_STEP_OPTIONS_INIT;
  lt_step_report stepped = LT_STEP_REPORT_INIT;
  lt_backend_report backend;
  const char* const* names = NULL;
  lt_device* device = NULL;
  lt_device_limits_report limits = LT_DEVICE_LIMITS_REPORT_INIT;
  lt_status status = LT_OK;
  int32_t group = -1, count = 0;
  int64_t param = -1, bytes = -1;
  float p[6] = {1, 2, 3, 4, 5, 6};
  const float g[3] = {1, -1, 0};
  const int64_t sizes[2] = {2, 3}, strides[2] = {0, 1}; /* each row has the same gradient */
  const lt_tensor tensor = {p, LT_F32, 2, sizes, NULL};
  const lt_gradient gradient = {g, LT_F32, strides};
  int i;

  CHECK(strncmp(lt_version(), "0.", 2) == 0);
  CHECK(lt_backends(NULL, 0, &count) == LT_OK && count >= 1);
  CHECK(lt_backends(&backend, 1, &count) == LT_OK && strcmp(backend.name, "cpu") == 0 && backend.available == 1);
  CHECK(strstr(backend.detail, target) != NULL);
  CHECK(lt_rule_names(&names) == LT_OK && strcmp(names[0], "adam") == 0);
  CHECK(lt_state_formats(&names) == LT_OK && strcmp(names[2], "dynamic8") == 0);
  CHECK(lt_hyper_names(&names) == LT_OK && strcmp(names[0], "lr") == 0);
  while (*names) ++names;
  CHECK(strcmp(names[-1], "safeguard_warmup") == 0 && lt_rule_names(NULL) == LT_INVALID_ARGUMENT);
  CHECK(lt_backends(NULL, 1, &count) == LT_INVALID_ARGUMENT && lt_backends(NULL, 0, NULL) == LT_INVALID_ARGUMENT);
  options.rule = "sgd";
  group_options.state = "fp32";
  CHECK(lt_optimizer_create(&options, &optimizer) == LT_OK);
  CHECK(lt_optimizer_add_group(optimizer, &group_options, &group) == LT_OK && group == 0);
  CHECK(lt_optimizer_set(optimizer, group, "lr", 0.5) == LT_OK);
  CHECK(lt_optimizer_add_param(optimizer, group, &tensor, &param) == LT_OK && param == 0);
  CHECK(lt_optimizer_step(optimizer, &gradient, 1, NULL, NULL) == LT_OK);
  for (i = 0; i < 6; ++i) CHECK(p[i] == (float)(i + 1) - 0.5f * g[i % 3]);
  step.grad_scale = -1; /* back again */
  CHECK(lt_optimizer_step(optimizer, &gradient, 1, &step, &stepped) == LT_OK);
  CHECK(stepped.applied == 1 && stepped.nonfinite_param == -1 && stepped.pending == 0);
  for (i = 0; i < 6; ++i) CHECK(p[i] == (float)(i + 1));
  CHECK(lt_optimizer_step(optimizer, &gradient, 1, NULL, NULL) == LT_OK && p[0] == 0.5f);
  CHECK(lt_optimizer_set(optimizer, group, "lr", -1) == LT_INVALID_ARGUMENT);
  CHECK(strstr(lt_last_error(), "lr") != NULL);
  CHECK(lt_optimizer_report(optimizer, &report) == LT_OK && report.disk_bytes == 0 && report.steps == 3);
  CHECK(lt_optimizer_save(optimizer, "/does/not/exist/c", NULL) == LT_IO_ERROR && lt_last_os_error() == ENOENT);
  CHECK(lt_optimizer_save_async(optimizer, "/does/not/exist/c", NULL, LT_SAVE_COPY_BYTES, &save) == LT_OK && save);
  CHECK(lt_save_wait(save, -1, &done) == LT_IO_ERROR && lt_last_os_error() == ENOENT && done == 1);
  lt_save_destroy(save);
  lt_save_destroy(NULL);
  CHECK(lt_optimizer_save_async(optimizer, "/c", NULL, -2, &save) == LT_INVALID_ARGUMENT && save == NULL);
  CHECK(lt_optimizer_save_async(optimizer, "/c", NULL, 0, NULL) == LT_INVALID_ARGUMENT);
  CHECK(lt_save_wait(NULL, 0, &done) == LT_INVALID_ARGUMENT);
  memory.host = -2;
  group_options.memory = &memory;
  CHECK(lt_optimizer_add_group(optimizer, &group_options, &group) == LT_INVALID_ARGUMENT && lt_last_os_error() == 0);
  group_options.memory = NULL;
  /* Nothing of a device without one. */
  CHECK(report.device_bytes == 0 && report.managed_bytes == 0 && report.promotions == 0 && report.demotions == 0);
  CHECK(report.transfer != NULL && report.transfer[0] == '\0');
  CHECK(lt_optimizer_prefetch(optimizer, 1 << 20, NULL, &bytes) == LT_OK && bytes == 0);
  CHECK(lt_optimizer_demote(optimizer, 1 << 20, &bytes) == LT_OK && bytes == 0);
  CHECK(lt_optimizer_synchronize(optimizer) == LT_OK);
  CHECK(lt_optimizer_prepare_replay(optimizer, NULL) == LT_INVALID_ARGUMENT);
  CHECK(lt_device_open("cpu", NULL, NULL, &device) == LT_INVALID_ARGUMENT && device == NULL);
  CHECK(lt_device_open("tpu", NULL, NULL, &device) == LT_INVALID_ARGUMENT);
  status = lt_device_open("cuda", NULL, NULL, &device); /* as the machine has it */
  CHECK(status == (device ? LT_OK : LT_UNSUPPORTED));
  lt_device_close(device);
  CHECK(lt_device_open(NULL, NULL, NULL, NULL) == LT_INVALID_ARGUMENT);
  CHECK(lt_device_queue(NULL, NULL) == LT_INVALID_ARGUMENT && lt_device_limits(NULL, &limits) == LT_INVALID_ARGUMENT);
  CHECK(lt_device_alloc(NULL, LT_MEMORY_SHARED, 1, NULL) == LT_INVALID_ARGUMENT);
  CHECK(lt_device_free(NULL, NULL) == LT_INVALID_ARGUMENT && lt_device_synchronize(NULL, NULL) == LT_INVALID_ARGUMENT);
  CHECK(lt_device_copy(NULL, NULL, NULL, NULL, 0) == LT_INVALID_ARGUMENT);
  lt_device_close(NULL);
done:
  lt_optimizer_destroy(optimizer);
  return line;
}
