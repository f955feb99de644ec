/* The kernels of the avx512 level that are written over lanes. Compiled for AVX-512. */
#if defined(__x86_64__)

#include "backend/cpu/kernels/lanes_level.h"

void sl_level_avx512(sl_cpu_kernels *k)
{
    use_lane_kernels(k);
}

#endif
