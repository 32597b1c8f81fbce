/* The C ABI as a C compiler sees it: the header alone, in C99, and a program of one rank that uses it. */
#include <stdio.h>

#include "tutti/tutti.h"

/* Writes what went wrong to `message` and returns 1, or returns 0. */
int tutti_c_program(char* message, size_t capacity) {
  tutti_options_t options = TUTTI_OPTIONS_INIT;
  tutti_call_options_t call_options = TUTTI_CALL_OPTIONS_INIT;
  tutti_memory_t memory = TUTTI_MEMORY_INIT;
  tutti_traffic_t traffic = TUTTI_TRAFFIC_INIT;
  tutti_comm_t comm = NULL;
  tutti_work_t work = NULL;
  float values[2] = {1.0f, 2.0f};
  tutti_status_t status;

  options.timeout_ms = 60000;
  status = tutti_comm_create_in_process(1, &options, &comm);
  if (status == TUTTI_OK) {
    status = tutti_all_reduce_async(comm, values, values, 2, TUTTI_F32, TUTTI_SUM, &call_options, &work);
  }
  if (status == TUTTI_OK) status = tutti_work_wait(work, -1);
  if (status == TUTTI_OK) status = tutti_comm_memory(comm, &memory);
  if (status == TUTTI_OK) status = tutti_comm_traffic(comm, &traffic);
  snprintf(message, capacity, "%s: %s", tutti_status_name(status), tutti_last_error());
  tutti_work_free(work);
  tutti_comm_destroy(comm);
  return status != TUTTI_OK || values[0] != 1.0f || values[1] != 2.0f;
}
