/* RMS and L2 normalisation: the contract's sixteen partial sums are one vector. */
#ifndef SL_BACKEND_CPU_KERNELS_LANES_NORM_H
#define SL_BACKEND_CPU_KERNELS_LANES_NORM_H

#include "backend/cpu/kernels/lanes_elementwise.h"

SL_INLINE float sum_squares(const float *x, size_t n)
{
    vf sum = v_zero();
    FOR_VECTORS(i, n)
    {
        vf v = load_some(x + i, n - i);
        sum = v_fma(v, v, sum);
    }
    return v_sum_tree(sum);
}

static void rms_norm(const float *x, const float *w, size_t n, float eps, float *y)
{
    const vf r = v_set(1.0f / sqrtf(sum_squares(x, n) / (float)n + eps));
    FOR_VECTORS(i, n)
    {
        vf v = v_mul(load_some(x + i, n - i), r);
        store_some(y + i, v_mul(v, load_some(w + i, n - i)), n - i);
    }
}

static void l2_norm(const float *x, size_t n, float factor, float *y)
{
    const vf r = v_set(1.0f / sqrtf(sum_squares(x, n) + 1e-6f)), f = v_set(factor);
    FOR_VECTORS(i, n)
    store_some(y + i, v_mul(v_mul(load_some(x + i, n - i), r), f), n - i);
}

#endif
