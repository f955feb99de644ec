/* Rotary positions. */
#ifndef SL_BACKEND_CPU_KERNELS_LANES_ROPE_H
#define SL_BACKEND_CPU_KERNELS_LANES_ROPE_H

#include "backend/cpu/kernels/lanes_elementwise.h"

static void rope(float *x, const float *cos, const float *sin, size_t half)
{
    FOR_VECTORS(i, half)
    {
        const size_t n = half - i;
        vf a = load_some(x + i, n), b = load_some(x + half + i, n);
        vf c = load_some(cos + i, n), s = load_some(sin + i, n);
        store_some(x + i, v_fma(a, c, v_negate(v_mul(b, s))), n);
        store_some(x + half + i, v_fma(b, c, v_mul(a, s)), n);
    }
}

#endif
