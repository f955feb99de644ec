/* Activations to int8 codes with a float scale per block of 32, two vectors a block. */
#ifndef SL_BACKEND_CPU_KERNELS_LANES_QUANTISE_H
#define SL_BACKEND_CPU_KERNELS_LANES_QUANTISE_H

#include "backend/cpu/kernels/lanes_elementwise.h"

/* Scale of a block whose largest magnitude has the pattern `bits`, and the factor that turns its
 * values into codes: 0 when all codes are zero, because the values are tiny or not finite. */
SL_INLINE float block_scale(int32_t bits, float *inverse)
{
    const int32_t tiny = (127 - 100) << 23 /* 2^-100 */, infinity = 0x7F800000;
    *inverse = 0.0f;
    if (bits < tiny || bits >= infinity)
        return bits < tiny ? 0.0f : NAN;
    const float largest = sl_float_of_bits((uint32_t)bits);
    *inverse = 127.0f / largest;
    return largest / 127.0f;
}

static void quantise_row(const float *x, size_t n, int8_t *q, float *d, int16_t *sums)
{
    const vi magnitude = vi_set(0x7FFFFFFF);
    for (size_t i = 0; i < n; i += SL_Q8_BLOCK, d++, sums += 2) {
        const size_t left = n - i;
        vf a = load_some(x + i, left);
        vf b = left > LANES ? load_some(x + i + LANES, left - LANES) : v_zero();
        vi largest = vi_larger(vi_and(v_bits(a), magnitude), vi_and(v_bits(b), magnitude));
        float inverse;
        *d = block_scale(vi_largest(largest), &inverse);
        vi codes_a = vi_set(0), codes_b = vi_set(0);
        if (inverse != 0.0f) { /* no codes come from 0 * infinity */
            codes_a = v_to_int(v_mul(a, v_set(inverse)));
            codes_b = v_to_int(v_mul(b, v_set(inverse)));
        }
        sums[0] = (int16_t)vi_store_codes(q + i, codes_a);
        sums[1] = (int16_t)vi_store_codes(q + i + LANES, codes_b);
    }
}

#endif
