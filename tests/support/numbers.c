#include "numbers.h"

#include <math.h>
#include <string.h>

static float float_of_bits(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

/* A random float whose exponent field lies in [low, high]. */
static float of_exponents(sl_test_rng *rng, uint32_t low, uint32_t high)
{
    uint32_t exponent = low + sl_test_rng_below(rng, high - low + 1);
    uint32_t random = (uint32_t)(sl_test_rng_next(rng) >> 32);
    return float_of_bits((random & 0x807FFFFFu) | exponent << 23);
}

static float one_float(sl_test_rng *rng, sl_test_fill fill)
{
    switch (fill) {
    case SL_FILL_INTEGERS:
        return (float)((int)sl_test_rng_below(rng, 31) - 15);
    case SL_FILL_ZEROS:
        return sl_test_rng_below(rng, 2) ? 0.0f : -0.0f;
    case SL_FILL_TINY:
        return of_exponents(rng, 0, sl_test_rng_below(rng, 4) ? 20 : 28);
    case SL_FILL_HUGE:
        return of_exponents(rng, 245, 254);
    case SL_FILL_WIDE:
        return of_exponents(rng, 0, 254);
    case SL_FILL_NAN:
        if (sl_test_rng_below(rng, 40) == 0)
            return sl_test_rng_below(rng, 2) ? NAN : -NAN;
        break;
    case SL_FILL_INFINITY:
        if (sl_test_rng_below(rng, 40) == 0)
            return sl_test_rng_below(rng, 2) ? INFINITY : -INFINITY;
        break;
    case SL_FILL_NORMAL:
    case SL_FILL_COUNT:
        break;
    }
    return sl_test_rng_normal(rng);
}

void sl_fill_floats(sl_test_rng *rng, sl_test_fill fill, float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        x[i] = one_float(rng, fill);
}

bool sl_same_float(float a, float b)
{
    return memcmp(&a, &b, sizeof a) == 0 || (isnan(a) && isnan(b));
}

void sl_assert_same_floats(const float *got, const float *expected, size_t n, const char *what,
                           const char *file, int line)
{
    for (size_t i = 0; i < n; i++) {
        if (sl_same_float(got[i], expected[i]))
            continue;
        print_error("%s[%zu] is %a, expected %a\n", what, i, (double)got[i], (double)expected[i]);
        _fail(file, line);
    }
}
