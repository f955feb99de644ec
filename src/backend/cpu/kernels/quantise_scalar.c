/* Activations to int8 codes with a float scale per block of 32. */
#include "backend/cpu/kernels/scalar.h"

/* Patterns of |x|: as integers they order like the values, with infinity and NaN on top. */
enum { BITS_INFINITY = 0x7F800000, BITS_TINY = (127 - 100) << 23 /* 2^-100 */ };

SL_INLINE uint32_t largest_magnitude(const float *x, size_t n)
{
    uint32_t largest = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t magnitude = sl_bits_of_float(x[i]) & 0x7FFFFFFFu;
        largest = magnitude > largest ? magnitude : largest;
    }
    return largest;
}

/* Codes and scale of n <= 32 values. A block that is not finite has the scale NaN and keeps the
 * fault visible in every product; one below 2^-100 is zero. |code| <= 127: 127 / m and the product
 * are each at most half a unit too large, and 127 plus a unit still rounds to 127. */
SL_INLINE void quantise_block(const float *x, size_t n, int8_t q[SL_Q8_BLOCK], float *d)
{
    memset(q, 0, SL_Q8_BLOCK);
    uint32_t bits = largest_magnitude(x, n);
    if (bits < BITS_TINY || bits >= BITS_INFINITY) {
        *d = bits < BITS_TINY ? 0.0f : NAN;
        return;
    }
    float largest = sl_float_of_bits(bits);
    float inverse = 127.0f / largest;
    *d = largest / 127.0f;
    for (size_t i = 0; i < n; i++)
        q[i] = (int8_t)sl_rintf(x[i] * inverse);
}

SL_SCALAR_CLONES
void sl_quantise_row_scalar(const float *x, size_t n, int8_t *q, float *d, int16_t *sums)
{
    for (size_t i = 0, b = 0; i < n; i += SL_Q8_BLOCK, b++) {
        quantise_block(x + i, sl_min_size(n - i, SL_Q8_BLOCK), q + i, d + b);
        for (size_t half = 0; half < 2; half++) {
            int sum = 0;
            for (size_t k = 0; k < 16; k++)
                sum += q[i + 16 * half + k];
            sums[2 * b + half] = (int16_t)sum;
        }
    }
}
