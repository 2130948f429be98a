/* A C11 program against the installed liblowtide_bnb: a step of Lion in place, and an error that is said. */
#include <lowtide/bnb.h>
#include <stdio.h>
#include <string.h>

#define COUNT 1000

int main(void) {
  static float param[COUNT], grad[COUNT], momentum[COUNT];
  int moved = 0;
  for (int i = 0; i < COUNT; ++i) param[i] = 1.0f, grad[i] = i % 2 ? 0.5f : -0.5f;
  clion32bit_grad_fp32(grad, param, momentum, NULL, NULL, 0, 0, 0.9f, 0.99f, 0, 0, 1e-8f, 0, 1, 0.25f, 1, false, COUNT);
  for (int i = 0; i < COUNT; ++i) moved += param[i] == (i % 2 ? 0.75f : 1.25f); /* lr against the sign */
  if (moved != COUNT) {
    fprintf(stderr, "%d of %d elements moved by lr; '%s'\n", moved, COUNT, lt_bnb_last_error());
    return 1;
  }
  if (lt_bnb_use_backend("no such backend", NULL, NULL) != -1 || !strstr(lt_bnb_last_error(), "no such backend")) {
    fprintf(stderr, "an unknown backend: '%s'\n", lt_bnb_last_error());
    return 1;
  }
  printf("bitsandbytes' functions: %d elements moved\n", moved);
  return 0;
}
