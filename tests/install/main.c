/* A C11 program against the installed C interface: one step moves a parameter, and an error arrives as a status. */
#include <lowtide/lowtide.h>
#include <stdio.h>
#include <string.h>

#define COUNT 5000

static int fail(const char* what) {
  fprintf(stderr, "%s: '%s'\n", what, lt_last_error());
  return 0;
}

static int steps_a_parameter(lt_optimizer* optimizer) {
  static float param[COUNT], grad[COUNT];
  const int64_t sizes[] = {COUNT};
  const lt_tensor tensor = {param, LT_F32, 1, sizes, NULL};
  const lt_gradient gradient = {grad, LT_F32, NULL};
  int32_t group = -1;
  lt_step_report report = LT_STEP_REPORT_INIT;
  int64_t number = -1;

  for (int i = 0; i < COUNT; ++i) {
    param[i] = 1.0f;
    grad[i] = 0.5f;
  }
  if (lt_optimizer_add_group(optimizer, NULL, &group) != LT_OK) return fail("add_group");
  if (lt_optimizer_add_param(optimizer, group, &tensor, &number) != LT_OK) return fail("add_param");
  if (lt_optimizer_step(optimizer, &gradient, 1, NULL, &report) != LT_OK) return fail("step");
  if (!report.applied || !(param[0] < 1.0f) || param[0] != param[COUNT - 1]) return fail("the step moved nothing");
  return 1;
}

int main(void) {
  lt_optimizer_options options = LT_OPTIMIZER_OPTIONS_INIT;
  lt_optimizer* optimizer = NULL;
  char header[32];
  int good;

  snprintf(header, sizeof header, "%d.%d.%d", LOWTIDE_VERSION_MAJOR, LOWTIDE_VERSION_MINOR, LOWTIDE_VERSION_PATCH);
  if (strcmp(lt_version(), header) != 0) return !fail("lt_version is not that of the headers");
  if (LOWTIDE_VERSION_NUMBER < 100) return !fail("LOWTIDE_VERSION_NUMBER is not that of 0.1.0 or later");
  if (lt_optimizer_create(&options, &optimizer) != LT_OK) return !fail("create");
  good = steps_a_parameter(optimizer);
  lt_optimizer_destroy(optimizer);

  options.rule = "no such rule";
  if (lt_optimizer_create(&options, &optimizer) != LT_INVALID_ARGUMENT) return !fail("an unknown rule was accepted");

  if (good) printf("C: lowtide %s\n", lt_version());
  return !good;
}
