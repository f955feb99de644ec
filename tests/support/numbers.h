/* Rows of floats for kernel tests: ordinary and hostile inputs, and comparison of bits. */
#ifndef SL_TESTS_NUMBERS_H
#define SL_TESTS_NUMBERS_H

#include "support.h"

typedef enum sl_test_fill {
    SL_FILL_NORMAL,   /* about N(0, 1) */
    SL_FILL_INTEGERS, /* small whole numbers */
    SL_FILL_ZEROS,    /* zeros of both signs */
    SL_FILL_TINY,     /* around 2^-100 and below, denormals too */
    SL_FILL_HUGE,     /* up to the largest float */
    SL_FILL_WIDE,     /* any finite exponent */
    SL_FILL_NAN,      /* N(0, 1), here and there a NaN */
    SL_FILL_INFINITY, /* N(0, 1), here and there an infinity */
    SL_FILL_COUNT
} sl_test_fill;

void sl_fill_floats(sl_test_rng *rng, sl_test_fill fill, float *x, size_t n);

/* Fails the test at the first element that differs in its bits; any two NaN are equal. */
#define assert_same_floats(got, expected, n) \
    sl_assert_same_floats((got), (expected), (n), #got, __FILE__, __LINE__)
void sl_assert_same_floats(const float *got, const float *expected, size_t n, const char *what,
                           const char *file, int line);

bool sl_same_float(float a, float b);

#endif
