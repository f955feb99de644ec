/* The kernels of the neon level that are written over lanes. Compiled for Armv8.2. */
#if defined(__aarch64__)

#include "backend/cpu/kernels/lanes_level.h"

void sl_level_neon(sl_cpu_kernels *k)
{
    use_lane_kernels(k);
}

#endif
