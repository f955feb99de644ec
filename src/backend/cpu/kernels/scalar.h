/* What the scalar kernels share. Everything is static inline, so that it becomes part of each clone
 * of the function that uses it. */
#ifndef SL_BACKEND_CPU_KERNELS_SCALAR_H
#define SL_BACKEND_CPU_KERNELS_SCALAR_H

#include <string.h>

#include "backend/cpu/kernels/kernels.h"
#include "backend/cpu/kernels/math.h"

/* fmaf is a call into libm on plain x86-64 and one instruction where the processor has it. Both
 * round once, so the two clones give the same bits; only their speed differs. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define SL_SCALAR_CLONES __attribute__((target_clones("default", "arch=x86-64-v3")))
#else
#define SL_SCALAR_CLONES
#endif

/* The lanes of sums that run along a vector. */
enum { SL_SUM_LANES = 16 };

/* Adds lane l and l + 8, l + 4, l + 2, l + 1. */
SL_INLINE float sl_sum_tree(float lanes[SL_SUM_LANES])
{
    for (int half = SL_SUM_LANES / 2; half > 0; half /= 2) {
        for (int l = 0; l < half; l++)
            lanes[l] = lanes[l] + lanes[l + half];
    }
    return lanes[0];
}

/* Sum of squares in fixed lanes: element k belongs to lane k mod 16. */
SL_INLINE float sl_sum_squares(const float *x, size_t n)
{
    float lanes[SL_SUM_LANES] = {0};
    size_t k = 0;
    for (; k + SL_SUM_LANES <= n; k += SL_SUM_LANES) {
        for (size_t l = 0; l < SL_SUM_LANES; l++)
            lanes[l] = fmaf(x[k + l], x[k + l], lanes[l]);
    }
    for (size_t l = 0; k + l < n; l++)
        lanes[l] = fmaf(x[k + l], x[k + l], lanes[l]);
    return sl_sum_tree(lanes);
}

/* The same value as sl_f16_to_f32, inline: the exponent is moved by a multiplication, which is
 * exact and brings denormals out right. */
SL_INLINE float sl_half_value(uint16_t h)
{
    uint32_t magnitude = (uint32_t)(h & 0x7FFF) << 13;
    float value = sl_float_of_bits(magnitude) * 0x1p112f;
    /* infinity and NaN */
    uint32_t bits = magnitude >= 0x0F800000u ? magnitude | 0x7F800000u : sl_bits_of_float(value);
    return sl_float_of_bits(bits | (uint32_t)(h & 0x8000) << 16);
}

/* Exact: at most 32 products of two bytes. */
SL_INLINE int32_t sl_dot_codes(const int8_t *a, const int8_t *b, size_t n)
{
    int32_t sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += a[i] * b[i];
    return sum;
}

/* Of dot_q8_k_scalar.c, for the table in dot_q8_scalar.c. */
float sl_dot_q2_k_scalar(const void *w, const int8_t *q, const float *d, const int16_t *sums,
                         size_t n);
float sl_dot_q3_k_scalar(const void *w, const int8_t *q, const float *d, const int16_t *sums,
                         size_t n);
float sl_dot_q4_k_scalar(const void *w, const int8_t *q, const float *d, const int16_t *sums,
                         size_t n);
float sl_dot_q5_k_scalar(const void *w, const int8_t *q, const float *d, const int16_t *sums,
                         size_t n);
float sl_dot_q6_k_scalar(const void *w, const int8_t *q, const float *d, const int16_t *sums,
                         size_t n);
float sl_dot_iq4_xs_scalar(const void *w, const int8_t *q, const float *d, const int16_t *sums,
                           size_t n);

#endif
