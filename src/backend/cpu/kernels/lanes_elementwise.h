/* Activation functions and sums over vectors of any length. Included by level files. */
#ifndef SL_BACKEND_CPU_KERNELS_LANES_ELEMENTWISE_H
#define SL_BACKEND_CPU_KERNELS_LANES_ELEMENTWISE_H

#include "backend/cpu/kernels/kernels.h"
#include "backend/cpu/kernels/lanes.h"

static void add(const float *a, const float *b, size_t n, float *y)
{
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        v_store(y + i, v_add(v_load(a + i), v_load(b + i)));
    if (i < n)
        v_store_first(y + i, v_add(v_load_first(a + i, n - i), v_load_first(b + i, n - i)), n - i);
}

static void swiglu(const float *gate, const float *up, size_t n, float *y)
{
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        v_store(y + i, v_mul(v_silu(v_load(gate + i)), v_load(up + i)));
    if (i < n)
        v_store_first(y + i,
                      v_mul(v_silu(v_load_first(gate + i, n - i)), v_load_first(up + i, n - i)),
                      n - i);
}

#endif
