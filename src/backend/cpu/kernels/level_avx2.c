/* The kernels of the avx2 level that are written over lanes. Compiled for AVX2, FMA and F16C. */
#if defined(__x86_64__)

#include "backend/cpu/kernels/lanes_level.h"

void sl_level_avx2(sl_cpu_kernels *k)
{
    use_lane_kernels(k);
}

#endif
