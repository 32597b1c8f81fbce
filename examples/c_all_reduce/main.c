/* Every rank gives the numbers rank + 0, rank + 1, ...; all ranks get their sums. */
#include <stdio.h>
#include <stdlib.h>
#include <tutti/tutti.h>

enum { kCount = 1000 };

/* Ends the program with the library's sentence when a call fails. */
static void check(tutti_status_t status) {
  if (status == TUTTI_OK) return;
  fprintf(stderr, "%s (%s)\n", tutti_last_error(), tutti_status_name(status));
  exit(1);
}

int main(void) {
  tutti_comm_t comm;
  check(tutti_comm_create_from_environment(NULL, &comm));
  int rank, size;
  check(tutti_comm_rank(comm, &rank));
  check(tutti_comm_size(comm, &size));

  void* memory;
  check(tutti_allocate(kCount * sizeof(float), &memory));
  float* data = memory;
  for (int i = 0; i < kCount; ++i) data[i] = (float)(rank + i);

  check(tutti_all_reduce(comm, data, data, kCount, TUTTI_F32, TUTTI_SUM, NULL));

  /* 0 + 1 + ... + (size - 1), and `size` times i: whole numbers, so floats hold them exactly. */
  int wrong = 0;
  for (int i = 0; i < kCount; ++i) wrong += data[i] != (float)(size * (size - 1) / 2 + size * i);
  printf("rank %d of %d: %d numbers summed, %d wrong\n", rank, size, kCount, wrong);

  tutti_free(memory);
  tutti_comm_destroy(comm);
  return wrong != 0;
}
