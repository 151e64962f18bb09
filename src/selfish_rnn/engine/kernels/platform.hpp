// What the kernels ask of the machine they are compiled for, and threads where the compiler has OpenMP.
#pragma once

static_assert(sizeof(void*) == 8, "the packed engine is for 64-bit processors; without it the masked engine serves");
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the packed engine is for little-endian processors; without it the masked engine serves"
#endif

#ifdef _OPENMP
#include <omp.h>
#else
// One thread: what OpenMP's pragmas mean when a compiler passes over them.
inline int omp_get_max_threads() { return 1; }
inline int omp_get_num_threads() { return 1; }
inline int omp_get_thread_num() { return 0; }
#endif

namespace selfish {
#ifdef _OPENMP
constexpr bool kThreaded = true;
#else
constexpr bool kThreaded = false;
#endif
}  // namespace selfish
