/* A tiny network trained with tensors of one's own, through the C interface: 64 -> 64 -> 1, tanh, backpropagation by
 * hand. Tensors are as in ggml: sizes `ne` and strides `nb` in bytes, the innermost first, weights and gradients in one
 * arena. Lowtide borrows that memory, steps it in place, and owns the optimizer state, 8 bits a value, alone.
 *
 * Against an installed library:
 *   cc -std=c11 -O2 main.c -o c_mlp $(pkg-config --cflags --libs lowtide) -lm && ./c_mlp lion
 * Prints the loss as it falls; exits with 1 if it does not fall to a tenth, or if a call fails.
 */
#include <lowtide/lowtide.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kIn = 64, kHidden = 64, kBatch = 32, kSteps = 300 };

typedef struct {
  int64_t ne[2]; /* elements: in a row, rows */
  size_t nb[2];  /* bytes from one element to the next, and from one row to the next */
  float *data, *grad;
} tensor;

typedef struct {
  char* memory;
  size_t used, size;
} arena;

static float* take(arena* from, size_t count) {
  const size_t bytes = count * sizeof(float);
  if (from->used + bytes > from->size) fprintf(stderr, "the arena is too small\n"), exit(1);
  float* const given = (float*)(from->memory + from->used);
  from->used += bytes;
  return given;
}

/* Uniform in [-1, 1). */
static float noise(uint64_t* seed) {
  *seed = *seed * 6364136223846793005u + 1442695040888963407u;
  return (float)(*seed >> 40) / 8388608.0f - 1.0f;
}

static tensor new_tensor(arena* from, int64_t columns, int64_t rows, float bound, uint64_t* seed) {
  tensor t = {{columns, rows}, {sizeof(float), (size_t)columns * sizeof(float)}, NULL, NULL};
  t.data = take(from, (size_t)(columns * rows)), t.grad = take(from, (size_t)(columns * rows));
  for (int64_t i = 0; i < columns * rows; ++i) t.data[i] = bound * noise(seed);
  return t;
}

static void check(lt_status status) {
  if (status == LT_OK) return;
  fprintf(stderr, "%s: %s\n", lt_status_name(status), lt_last_error());
  exit(1);
}

/* Registers a tensor. Lowtide counts in elements, the outermost dimension first. */
static void add(lt_optimizer* optimizer, int32_t group, const tensor* t) {
  const int64_t sizes[] = {t->ne[1], t->ne[0]};
  const int64_t strides[] = {(int64_t)(t->nb[1] / sizeof(float)), (int64_t)(t->nb[0] / sizeof(float))};
  const lt_tensor view = {t->data, LT_F32, 2, sizes, strides};
  int64_t number = 0;
  check(lt_optimizer_add_param(optimizer, group, &view, &number));
}

/* The mean squared error over a batch; adds its gradients. The targets are a function that a network can learn. */
static double forward_backward(const tensor* first, const tensor* second, uint64_t* seed) {
  double loss = 0;
  for (int b = 0; b < kBatch; ++b) {
    float x[kIn], h[kHidden], wanted = 0, y = 0;
    for (int i = 0; i < kIn; ++i) x[i] = noise(seed), wanted += (i % 3 - 1) * x[i] / 4;
    for (int k = 0; k < kHidden; ++k) {
      float sum = 0;
      for (int i = 0; i < kIn; ++i) sum += first->data[k * kIn + i] * x[i];
      h[k] = tanhf(sum), y += second->data[k] * h[k];
    }
    const float error = y - tanhf(wanted), slope = 2 * error / kBatch;
    loss += (double)(error * error) / kBatch;
    for (int k = 0; k < kHidden; ++k) {
      second->grad[k] += slope * h[k];
      const float back = slope * second->data[k] * (1 - h[k] * h[k]);
      for (int i = 0; i < kIn; ++i) first->grad[k * kIn + i] += back * x[i];
    }
  }
  return loss;
}

int main(int argc, char** argv) {
  const char* const rule = argc > 1 ? argv[1] : "adamw";
  uint64_t seed = 1;
  arena memory = {NULL, 0, 2 * sizeof(float) * (kIn * kHidden + kHidden)};
  memory.memory = malloc(memory.size);
  if (!memory.memory) return 1;
  const tensor first = new_tensor(&memory, kIn, kHidden, 0.2f, &seed);
  const tensor second = new_tensor(&memory, kHidden, 1, 0.2f, &seed);

  lt_optimizer_options options = LT_OPTIMIZER_OPTIONS_INIT;
  options.rule = rule;
  lt_optimizer* optimizer = NULL;
  check(lt_optimizer_create(&options, &optimizer));
  int32_t group = 0;
  check(lt_optimizer_add_group(optimizer, NULL, &group)); /* NULL: 8-bit state, the rule's usual settings */
  add(optimizer, group, &first);
  add(optimizer, group, &second);

  double begin = 0, end = 0; /* means of the first and the last 10 losses */
  for (int step = 0; step < kSteps; ++step) {
    memset(first.grad, 0, sizeof(float) * kIn * kHidden);
    memset(second.grad, 0, sizeof(float) * kHidden);
    const double loss = forward_backward(&first, &second, &seed);
    if (step < 10) begin += loss / 10;
    if (step >= kSteps - 10) end += loss / 10;
    if (step % 50 == 0) printf("step %3d  loss %.4f\n", step, loss);
    check(lt_optimizer_set(optimizer, group, "lr", 3e-3 * (1 - (double)step / kSteps)));
    const lt_gradient gradients[] = {{first.grad, LT_F32, NULL}, {second.grad, LT_F32, NULL}};
    check(lt_optimizer_step(optimizer, gradients, 2, NULL, NULL)); /* NULL: default options, no report */
  }

  lt_memory_report report = LT_MEMORY_REPORT_INIT;
  check(lt_optimizer_report(optimizer, &report));
  printf("%s, lowtide %s: loss %.4f to %.4f, %.2f bytes of state a parameter\n", rule, lt_version(), begin, end,
         (double)report.state_bytes / (double)report.elements);
  lt_optimizer_destroy(optimizer);
  free(memory.memory);
  return end < begin / 10 ? 0 : 1;
}
