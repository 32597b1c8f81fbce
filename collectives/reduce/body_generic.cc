// The body for any machine: 16-byte vectors, which every 64-bit x86 (SSE2) and Arm (NEON) has. f16 is converted by
// instructions on Arm, by integer arithmetic elsewhere.
#define TUTTI_REDUCE_VECTOR_BYTES 16
#define TUTTI_REDUCE_BODY kBodyGeneric
#define TUTTI_REDUCE_ISA "generic"
#include "collectives/reduce/body-inl.h"
