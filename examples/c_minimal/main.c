/* One tensor stepped through the C interface: AdamW with 8-bit state on 4096 floats, its memory and its state shown.
 *
 * Against an installed library:
 *   cc -std=c11 main.c -o c_minimal $(pkg-config --cflags --libs lowtide) && ./c_minimal
 * Exits with 1 if a call fails or a value is not what the formula gives.
 */
#include <lowtide/lowtide.h>

#include <stdio.h>
#include <stdlib.h>

/* Calls that can fail return a status, and leave a sentence. */
static void check(lt_status status) {
  if (status == LT_OK) return;
  fprintf(stderr, "%s: %s\n", lt_status_name(status), lt_last_error());
  exit(1);
}

static void expect_near(const char* what, double got, double wanted, double tolerance) {
  const double error = got > wanted ? got - wanted : wanted - got;
  printf("%-12s %.7f\n", what, got);
  if (error <= tolerance) return;
  fprintf(stderr, "%s: got %.9g, wanted %.9g\n", what, got, wanted);
  exit(1);
}

int main(void) {
  enum { kNumel = 4096 };
  static float param[kNumel], grad[kNumel];
  for (int i = 0; i < kNumel; ++i) param[i] = 1.0f, grad[i] = i % 2 ? 0.5f : -0.25f;

  /* An optimizer, a group of parameters with its settings, and a parameter. */
  lt_optimizer_options options = LT_OPTIMIZER_OPTIONS_INIT;
  options.rule = "adamw";
  lt_optimizer* optimizer = NULL;
  check(lt_optimizer_create(&options, &optimizer));
  int32_t group = 0;
  check(lt_optimizer_add_group(optimizer, NULL, &group)); /* NULL: 8-bit state */
  check(lt_optimizer_set(optimizer, group, "lr", 0.01));
  check(lt_optimizer_set(optimizer, group, "weight_decay", 0.1));
  const int64_t sizes[] = {kNumel};
  const lt_tensor tensor = {param, LT_F32, 1, sizes, NULL};
  int64_t number = 0;
  check(lt_optimizer_add_param(optimizer, group, &tensor, &number));

  /* A step. Adam's first step is lr * g / |g|; before it the weight decays by lr * weight_decay. */
  const lt_gradient gradient = {grad, LT_F32, NULL};
  lt_step_report step = LT_STEP_REPORT_INIT;
  check(lt_optimizer_step(optimizer, &gradient, 1, NULL, &step)); /* NULL: default options */
  if (!step.applied) return 1;
  /* float32: a few roundings of numbers near 1. */
  expect_near("param[0]", param[0], 0.999 + 0.01, 1e-6);
  expect_near("param[1]", param[1], 0.999 - 0.01, 1e-6);

  /* The state is two moments, one byte each and a float per 256 values. */
  lt_state_view view;
  check(lt_optimizer_state(optimizer, number, 0, &view));
  static float moment[kNumel];
  check(lt_optimizer_export_state(optimizer, number, 0, moment));
  printf("%s is %s, %d bits a value\n", view.name, view.codec, (int)view.code_bits);
  /* The largest of a block is exact; 0.5 of it lies in a decade of 64 codes, 0.014 apart: half of that, times 0.05. */
  expect_near("moment[1]", moment[1], 0.05, 1e-8);
  expect_near("moment[0]", moment[0], -0.025, 0.05 * 0.0071);
  lt_memory_report report = LT_MEMORY_REPORT_INIT;
  check(lt_optimizer_report(optimizer, &report));
  const double bytes = (double)report.state_bytes / (double)report.elements;
  expect_near("bytes/param", bytes, 2.03125, 0);

  /* Mistakes are refused, with a reason, and change nothing. */
  if (lt_optimizer_set(optimizer, group, "lr", -1) != LT_INVALID_ARGUMENT) return 1;
  printf("refused: %s\n", lt_last_error());

  lt_optimizer_destroy(optimizer);
  return 0;
}
