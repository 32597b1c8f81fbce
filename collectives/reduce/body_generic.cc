// The body for any machine: 16-byte vectors, which every 64-bit x86 and ARM has, and software conversion of f16.
#define TUTTI_REDUCE_VECTOR_BYTES 16
#define TUTTI_REDUCE_BODY kBodyGeneric
#define TUTTI_REDUCE_ISA "generic"
#include "collectives/reduce/body-inl.h"
