/* Vectors of sixteen lanes, the unit of the contract's arithmetic, for every instruction set: a
 * kernel written over them is compiled once per level and gives the bits of the scalar kernels,
 * because every operation is the same IEEE operation lane by lane.
 *
 * Included by the level files, which the Makefile compiles with their instruction set. An
 * instruction set defines (lanes_<isa>.h):
 *   vf vi vm             floats, int32, one truth value per lane
 *   LANE_REGISTERS       how many vf values the registers hold, for the size of tiles
 *   v_zero v_set v_load v_store v_load_first v_store_first (n of 16 lanes; the others read as 0)
 *   v_add v_sub v_mul v_div v_sqrt v_fma (a*b + c) v_fnma (-(a*b) + c)
 *   v_larger             a < b ? b : a, also for NaN and zeros
 *   v_lt v_eq v_select   ordered comparisons; m ? x : y
 *   vi_set vi_load vi_store vi_add vi_sub vi_and vi_larger vi_shift_left vi_largest vi_sum
 *   v_bits v_of_bits     the pattern of a float, and back
 *   v_of_int v_to_int    conversions, to nearest even
 *   vi_store_codes       sixteen int32 in -128 .. 127 as bytes; gives their sum
 *   v_load_half v_store_half v_load_bf16   sixteen IEEE halves, bfloat16s
 *   v_sum_tree           lanes l + (l + 8), then 4, 2, 1
 *   v_transpose          of sixteen vectors: row r, lane l becomes row l, lane r
 *   v_load_taps          64 floats [16][4] as four vectors */
#ifndef SL_BACKEND_CPU_KERNELS_LANES_H
#define SL_BACKEND_CPU_KERNELS_LANES_H

#if defined(__AVX512F__)
#include "backend/cpu/kernels/lanes_avx512.h"
#elif defined(__AVX2__)
#include "backend/cpu/kernels/lanes_avx2.h"
#elif defined(__aarch64__)
#include "backend/cpu/kernels/lanes_neon.h"
#endif

/* The functions of math.h, lane by lane: the same operations in the same order. */

SL_INLINE vf v_expf(vf x)
{
    const vf shift = v_set(0x1.8p23f);
    vf shifted = v_fma(x, v_set(0x1.715476p+0f), shift);
    vf n = v_sub(shifted, shift);
    vf r = v_fma(n, v_set(-0x1.62e43p-1f), x);
    r = v_fma(n, v_set(0x1.05c61p-29f), r);
    vf p = v_set(0x1.6ac74ep-10f);
    p = v_fma(p, r, v_set(0x1.123dep-7f));
    p = v_fma(p, r, v_set(0x1.555858p-5f));
    p = v_fma(p, r, v_set(0x1.55548cp-3f));
    p = v_fma(p, r, v_set(0x1.fffffcp-2f));
    p = v_fma(p, r, v_set(1.0f));
    p = v_fma(p, r, v_set(1.0f));
    vf y = v_of_bits(vi_add(v_bits(p), vi_shift_left(v_bits(shifted), 23)));
    y = v_select(v_lt(v_set(0x1.62e42ep6f), x), v_of_bits(vi_set(0x7F800000)), y);
    y = v_select(v_lt(x, v_set(-87.3f)), v_zero(), y);
    return v_select(v_eq(x, x), y, x);
}

SL_INLINE vf v_negate(vf x)
{
    return v_sub(v_set(-0.0f), x);
}

SL_INLINE vf v_silu(vf x)
{
    return v_div(x, v_add(v_set(1.0f), v_expf(v_negate(x))));
}

SL_INLINE vf v_sigmoid(vf x)
{
    const vm far_below = v_lt(x, v_set(-87.0f));
    vf e = v_expf(v_select(far_below, x, v_negate(x)));
    return v_select(far_below, e, v_div(v_set(1.0f), v_add(v_set(1.0f), e)));
}

/* |x| < 2^-100 becomes +0; NaN stays. */
SL_INLINE vf v_flush_tiny(vf x)
{
    vf magnitude = v_of_bits(vi_and(v_bits(x), vi_set(0x7FFFFFFF)));
    return v_select(v_lt(magnitude, v_set(0x1p-100f)), v_zero(), x);
}

#endif
