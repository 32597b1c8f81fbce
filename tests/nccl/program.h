/* What the parts of the NCCL test program share. It is plain C against NVIDIA's own header and knows nothing of Tutti:
 *
 *   program init_all|threads|processes RANKS     every collective, type and operator, against expected values
 *   program sequence RANKS                       the calls that nccl-tests makes, in its order
 *
 * init_all: one thread drives all ranks, in groups. threads, processes: a rank each. The program ends with 0 when
 * nothing was wrong, and says what was. */
#ifndef TUTTI_TESTS_NCCL_PROGRAM_H
#define TUTTI_TESTS_NCCL_PROGRAM_H

#include <nccl.h>
#include <stddef.h>

#define MOST_RANKS 8

/* The ranks that this thread drives. */
typedef struct {
  int size;                    /* of the communicator */
  int count;                   /* ranks of this thread */
  int rank[MOST_RANKS];        /* theirs */
  ncclComm_t comm[MOST_RANKS]; /* theirs */
  long checks;                 /* elements compared */
  long wrong;
} ranks_t;

/* Ends the program, with the sentence of the library, when `result` is not ncclSuccess. */
#define MUST(call) must((call), #call, __FILE__, __LINE__)
void must(ncclResult_t result, const char* call, const char* file, int line);

/* Elements of NCCL's types, as doubles. Values are small enough to be exact in every type. */
size_t size_of(ncclDataType_t type);
void put(ncclDataType_t type, void* buffer, size_t i, double value);
double get(ncclDataType_t type, const void* buffer, size_t i);
/* Counts an element that is not what it should be. */
void expect(ranks_t* ranks, const char* what, ncclDataType_t type, const void* buffer, size_t i, double expected);

/* program_collectives.c */
void test_collectives(ranks_t* ranks);
void test_groups(ranks_t* ranks);
/* program_newer.c */
void test_newer(ranks_t* ranks);
/* program_sequence.c */
void test_sequence(ranks_t* ranks);

#endif
