/* Elementary functions of the contract, inline, from single IEEE operations: +, -, *, /, fma,
 * comparisons that select, and integer operations on bit patterns. No call into libm (fma and
 * fmaf are one operation), no tables and no branches, so that SIMD code can do every step lane by
 * lane and get the same bits. Measured errors are in docs/EXACTNESS.md; test_math.c holds them.
 *
 * The functions expect the environment of base/fpenv.h. NaN goes in, NaN comes out. */
#ifndef SL_BACKEND_CPU_KERNELS_MATH_H
#define SL_BACKEND_CPU_KERNELS_MATH_H

#include <math.h>

#include "base/bits.h"

#ifdef __FAST_MATH__
#error "one rounding per operation: the kernels cannot be compiled with fast math"
#endif

/* Nearest integer, ties to even, of |x| <= 2^22: adding 1.5 * 2^23 leaves no fraction bits. */
SL_INLINE float sl_rintf(float x)
{
    return (x + 0x1.8p23f) - 0x1.8p23f;
}

/* e^x. +0 for x < -87.3, so the result is never a denormal; infinity above 88.72283.
 *
 * x = n ln 2 + r with |r| <= ln 2 / 2; ln 2 in two floats, the first of 20 bits, so that
 * x - n * ln2_hi is exact. e^r is a polynomial of degree 6 with minimal relative error (2^-28).
 * n sits in the low bits of the shifted product and is added to the exponent of the result. */
SL_INLINE float sl_expf_usual(float x)
{
    float shifted = fmaf(x, 0x1.715476p+0f, 0x1.8p23f);
    float n = shifted - 0x1.8p23f;
    float r = fmaf(n, -0x1.62e43p-1f, x);
    r = fmaf(n, 0x1.05c61p-29f, r);
    float p = 0x1.6ac74ep-10f;
    p = fmaf(p, r, 0x1.123dep-7f);
    p = fmaf(p, r, 0x1.555858p-5f);
    p = fmaf(p, r, 0x1.55548cp-3f);
    p = fmaf(p, r, 0x1.fffffcp-2f);
    p = fmaf(p, r, 1.0f);
    p = fmaf(p, r, 1.0f);
    return sl_float_of_bits(sl_bits_of_float(p) + (sl_bits_of_float(shifted) << 23));
}

/* For any x; the other is for |x| < 87. */
SL_INLINE float sl_expf(float x)
{
    float y = sl_expf_usual(x);
    y = x > 0x1.62e42ep6f ? INFINITY : y;
    y = x < -87.3f ? 0.0f : y;
    return x == x ? y : x;
}

/* ln(1 + f) + e ln 2 for 1 + f in [sqrt(1/2), sqrt(2)): with s = f / (2 + f) the first term is
 * 2 atanh(s), odd in s, hence a short polynomial in s^2 (relative error 2^-44). */
SL_INLINE double sl_log_reduced(double f, double e)
{
    double s = f / (2.0 + f);
    double z = s * s;
    double p = 0x1.91159e39fc203p-4;
    p = fma(p, z, 0x1.c62b138f8db23p-4);
    p = fma(p, z, 0x1.249411f18a669p-3);
    p = fma(p, z, 0x1.999996a9425efp-3);
    p = fma(p, z, 0x1.555555561e45dp-2);
    double twice = 2.0 * s;
    return fma(e, 0x1.62e42fefa39efp-1, fma(twice, z * p, twice));
}

/* d = 2^*e * m with m in [sqrt(1/2), sqrt(2)), for a positive normal d. */
SL_INLINE double sl_log_split(double d, double *e)
{
    const uint64_t one = 0x3FF0000000000000u, sqrt_half = 0x3FE6A09E667F3BCDu;
    uint64_t bits = sl_bits_of_double(d);
    uint64_t biased = (bits + (one - sqrt_half)) >> 52;
    *e = (double)((int32_t)biased - 1023);
    return sl_double_of_bits(bits - (biased << 52) + one);
}

/* Natural logarithm: -infinity of a zero, NaN of negative numbers. In double, where a float
 * denormal is a normal number, rounded once at the end. */
SL_INLINE float sl_logf(float x)
{
    double e;
    double m = sl_log_split((double)x, &e);
    float y = (float)sl_log_reduced(m - 1.0, e);
    y = x == INFINITY ? x : y;
    y = x == 0.0f ? -INFINITY : y;
    return x >= 0.0f ? y : NAN;
}

/* ln(1 + x); -infinity at -1, NaN below. Where 1 + x needs no splitting, x itself is the f of
 * sl_log_reduced, so small x lose nothing; elsewhere |x| > 0.29 and the sum in double is as good as
 * exact. */
SL_INLINE float sl_log1pf(float x)
{
    double e;
    double m = sl_log_split(1.0 + (double)x, &e);
    double f = e == 0.0 ? (double)x : m - 1.0;
    float y = (float)sl_log_reduced(f, e);
    y = x == INFINITY ? x : y;
    y = x == -1.0f ? -INFINITY : y;
    return x >= -1.0f ? y : NAN;
}

/* Sine and cosine of a float angle in radians, computed in double and rounded once. Right for
 * |angle| <= 2^40, which covers every 32-bit position; beyond that the angle counts as zero;
 * infinity gives NaN.
 *
 * angle = n pi/2 + r, pi/2 in two doubles: a float never comes closer than about 2^-30 to a
 * multiple of pi/2, and the error of r stays below n * 2^-107. */
SL_INLINE void sl_sincos(float angle, float *sine, float *cosine)
{
    double x = (double)angle;
    x = fabs(x) > 0x1p40 ? x * 0.0 : x;
    double shifted = fma(x, 0x1.45f306dc9c883p-1, 0x1.8p52);
    double n = shifted - 0x1.8p52;
    double r = fma(n, -0x1.921fb54442d18p+0, x);
    r = fma(n, -0x1.1a62633145c07p-54, r);
    double z = r * r;
    double s = 0x1.6cd859e2e10bfp-19;
    s = fma(s, z, -0x1.a00f9dad31939p-13);
    s = fma(s, z, 0x1.111108965455ap-7);
    s = fma(s, z, -0x1.5555554cb9f61p-3);
    s = fma(r * z, s, r);
    double c = -0x1.23d800201e508p-22;
    c = fma(c, z, 0x1.a00f117dba947p-16);
    c = fma(c, z, -0x1.6c16b40040f81p-10);
    c = fma(c, z, 0x1.55555546f4302p-5);
    c = fma(c, z, -0x1.ffffffffebfc1p-2);
    c = fma(c, z, 1.0);
    uint64_t quadrant = sl_bits_of_double(shifted);
    bool swap = (quadrant & 1) != 0;
    double sin_abs = swap ? c : s, cos_abs = swap ? s : c;
    *sine = (float)((quadrant & 2) != 0 ? -sin_abs : sin_abs);
    *cosine = (float)(((quadrant + 1) & 2) != 0 ? -cos_abs : cos_abs);
}

/* 1 / (1 + e^-x). Far below zero, where e^-x would overflow, the answer is e^x itself. */
SL_INLINE float sl_sigmoid(float x)
{
    bool far_below = x < -87.0f;
    float e = sl_expf(far_below ? x : -x);
    return far_below ? e : 1.0f / (1.0f + e);
}

SL_INLINE float sl_silu(float x)
{
    return x / (1.0f + sl_expf(-x));
}

/* ln(1 + e^x), which is x in float above 20. */
SL_INLINE float sl_softplus(float x)
{
    return x > 20.0f ? x : sl_log1pf(sl_expf(x));
}

#endif
