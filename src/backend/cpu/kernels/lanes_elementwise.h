/* Activation functions and sums over vectors of any length. Included by level files. */
#ifndef SL_BACKEND_CPU_KERNELS_LANES_ELEMENTWISE_H
#define SL_BACKEND_CPU_KERNELS_LANES_ELEMENTWISE_H

#include "backend/cpu/kernels/kernels.h"
#include "backend/cpu/kernels/lanes.h"
#include "backend/cpu/kernels/math.h"

/* Whole vectors, then one that is cut: `n` of its lanes exist. */
#define FOR_VECTORS(i, n) for (size_t i = 0; i < (n); i += LANES)

SL_INLINE vf load_some(const float *p, size_t n)
{
    return n >= LANES ? v_load(p) : v_load_first(p, n);
}

SL_INLINE void store_some(float *p, vf x, size_t n)
{
    if (n >= LANES)
        v_store(p, x);
    else
        v_store_first(p, x, n);
}

static void add(const float *a, const float *b, size_t n, float *y)
{
    FOR_VECTORS(i, n)
    store_some(y + i, v_add(load_some(a + i, n - i), load_some(b + i, n - i)), n - i);
}

static void swiglu(const float *gate, const float *up, size_t n, float *y)
{
    FOR_VECTORS(i, n)
    {
        vf silu = v_silu(load_some(gate + i, n - i));
        store_some(y + i, v_mul(silu, load_some(up + i, n - i)), n - i);
    }
}

static void mul_silu(const float *z, size_t n, float *y)
{
    FOR_VECTORS(i, n)
    {
        vf silu = v_silu(load_some(z + i, n - i));
        store_some(y + i, v_mul(load_some(y + i, n - i), silu), n - i);
    }
}

static void mul_sigmoid(const float *z, size_t n, float *y)
{
    FOR_VECTORS(i, n)
    {
        vf sigmoid = v_sigmoid(load_some(z + i, n - i));
        store_some(y + i, v_mul(load_some(y + i, n - i), sigmoid), n - i);
    }
}

static void axpy(float w, const float *x, size_t n, float *y)
{
    const vf weight = v_set(w);
    FOR_VECTORS(i, n)
    store_some(y + i, v_fma(weight, load_some(x + i, n - i), load_some(y + i, n - i)), n - i);
}

static void scale(float w, size_t n, float *y)
{
    const vf weight = v_set(w);
    FOR_VECTORS(i, n)
    store_some(y + i, v_mul(weight, load_some(y + i, n - i)), n - i);
}

/* Patterns of |x| order like the values, with infinity and NaN on top. */
static bool all_finite(const float *x, size_t n)
{
    const vi magnitude = vi_set(0x7FFFFFFF);
    vi largest = vi_set(0);
    FOR_VECTORS(i, n)
    largest = vi_larger(largest, vi_and(v_bits(load_some(x + i, n - i)), magnitude));
    return vi_largest(largest) < 0x7F800000;
}

/* The logarithm runs in double: loops that the compiler turns into vectors of the level. */
static void gdn_gates(const float *a, const float *b, const float *a_coef, const float *dt,
                      size_t n_heads, float *g, float *beta)
{
    for (size_t h = 0; h < n_heads; h++)
        g[h] = a_coef[h] * sl_softplus(a[h] + dt[h]);
    for (size_t h = 0; h < n_heads; h++)
        beta[h] = sl_sigmoid(b[h]);
}

#endif
