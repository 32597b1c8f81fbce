// For a plain loop that the compiler turns into vectors: on x86 it is compiled for each width, and the widest that the
// machine has is taken at run time. Arm has one width.
#pragma once

#if defined(__x86_64__)
#define TUTTI_VECTOR_CLONES [[gnu::target_clones("avx512f", "avx2", "default")]]
#else
#define TUTTI_VECTOR_CLONES
#endif
