/* A C11 program against the installed C interface. */
#include <lowtide/lowtide.h>

#include <stdio.h>
#include <string.h>

int main(void) {
  const char* version = lt_version();
  if (version == NULL || strncmp(version, "0.1.", 4) != 0) {
    fprintf(stderr, "lt_version: got '%s', wanted 0.1.x\n", version ? version : "NULL");
    return 1;
  }
  printf("C: lowtide %s\n", version);
  return 0;
}
