/* Floating-point values as their bit patterns. */
#ifndef SL_BASE_BITS_H
#define SL_BASE_BITS_H

#include <string.h>

#include "base/base.h"

SL_INLINE uint32_t sl_bits_of_float(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}

SL_INLINE float sl_float_of_bits(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

SL_INLINE uint64_t sl_bits_of_double(double d)
{
    uint64_t bits;
    memcpy(&bits, &d, sizeof bits);
    return bits;
}

SL_INLINE double sl_double_of_bits(uint64_t bits)
{
    double d;
    memcpy(&d, &bits, sizeof d);
    return d;
}

/* Whether x[n] holds neither an infinity nor a NaN. Without branches, so that it can run over every
 * activation: only the largest exponent carries into the sign. */
SL_INLINE bool sl_all_finite(const float *x, size_t n)
{
    uint32_t carries = 0;
    for (size_t i = 0; i < n; i++)
        carries |= (sl_bits_of_float(x[i]) & 0x7fffffff) + 0x00800000;
    return carries >> 31 == 0;
}

#endif
