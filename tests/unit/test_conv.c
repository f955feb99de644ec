/* The short convolution before the delta rule, against reference rows in float64, with and without
 * history, and the norm of its query part. */
#include "golden.h"
#include "numbers.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/kernels/kernels.h"

enum { CHANNELS = 1024, ROWS = 9, HISTORY = 3, QUERY_HEADS = 2 };

/* Relative to the size of the terms, of which a sum may cancel most. */
static void assert_near(float got, float expected, double magnitude)
{
    if (fabs((double)got - (double)expected) > 1e-6 * (fabs((double)expected) + magnitude)) {
        print_error("got %a, expected %a\n", (double)got, (double)expected);
        fail();
    }
}

/* Row t of the input with `history` (or nothing) before it. */
static const float *input_row(const float *m, const float *history, int t)
{
    if (t >= 0)
        return m + t * CHANNELS;
    return history ? history + (t + HISTORY) * CHANNELS : NULL;
}

static void conv(const float *const rows[SL_CONV_TAPS], const float *w, size_t n, float *y)
{
    sl_conv_silu_scalar(&(sl_conv_rows){.x = rows, .n = 1, .w = w, .end = n, .y = &y});
}

static void conv_row(const float *m, const float *history, const float *w, int t, float *y)
{
    const float *rows[SL_CONV_TAPS];
    for (int j = 0; j < SL_CONV_TAPS; j++)
        rows[j] = input_row(m, history, t - HISTORY + j);
    conv(rows, w, CHANNELS, y);
}

static void check_rows(const sl_golden *golden, const float *history, const char *name)
{
    const float *m = sl_golden_f32(golden, "m", ROWS * CHANNELS);
    const float *w = sl_golden_f32(golden, "weight", CHANNELS * SL_CONV_TAPS);
    const float *expected = sl_golden_f32(golden, name, ROWS * CHANNELS);
    for (int t = 0; t < ROWS; t++) {
        float y[CHANNELS];
        conv_row(m, history, w, t, y);
        for (size_t c = 0; c < CHANNELS; c++) {
            double magnitude = 0;
            for (size_t j = 0; j < SL_CONV_TAPS; j++) {
                const float *row = input_row(m, history, t - HISTORY + (int)j);
                magnitude += row ? fabs((double)w[SL_CONV_TAPS * c + j] * (double)row[c]) : 0.0;
            }
            assert_near(y[c], expected[(size_t)t * CHANNELS + c], magnitude);
        }
    }
}

static void test_reference_rows(void **state)
{
    (void)state;
    sl_golden *golden = sl_golden_open("tests/data/gdn/conv.safetensors");
    check_rows(golden, NULL, "out_zero");
    check_rows(golden, sl_golden_f32(golden, "history", HISTORY * CHANNELS), "out_history");
    sl_golden_close(golden);
}

static void test_reference_queries(void **state)
{
    (void)state;
    sl_golden *golden = sl_golden_open("tests/data/gdn/conv.safetensors");
    const float *m = sl_golden_f32(golden, "m", ROWS * CHANNELS);
    const float *w = sl_golden_f32(golden, "weight", CHANNELS * SL_CONV_TAPS);
    const float *history = sl_golden_f32(golden, "history", HISTORY * CHANNELS);
    size_t n = QUERY_HEADS * SL_GDN_DIM;
    const float *expected = sl_golden_f32(golden, "q_history", ROWS * n);
    for (int t = 0; t < ROWS; t++) {
        float y[CHANNELS];
        conv_row(m, history, w, t, y);
        for (size_t h = 0; h < QUERY_HEADS; h++)
            sl_l2_norm_scalar(y + SL_GDN_DIM * h, SL_GDN_DIM, 0.0883883476f, y + SL_GDN_DIM * h);
        for (size_t i = 0; i < n; i++)
            assert_near(y[i], expected[(size_t)t * n + i], 0.01);
    }
    sl_golden_close(golden);
}

/* A row that does not exist and a row of zeros are the same history. */
static void test_missing_rows_are_zeros(void **state)
{
    (void)state;
    sl_test_rng rng = sl_test_rng_of(1);
    static const float zeros[100];
    for (int fill = 0; fill < SL_FILL_COUNT; fill++) {
        float rows[400], w[400], with_null[100], with_zeros[100];
        sl_fill_floats(&rng, (sl_test_fill)fill, rows, 400);
        sl_fill_floats(&rng, (sl_test_fill)fill, w, 400);
        for (int missing = 0; missing < 16; missing++) {
            const float *a[SL_CONV_TAPS], *b[SL_CONV_TAPS];
            for (int j = 0; j < SL_CONV_TAPS; j++) {
                a[j] = missing >> j & 1 ? NULL : rows + 100 * j;
                b[j] = missing >> j & 1 ? zeros : rows + 100 * j;
            }
            conv(a, w, 100, with_null);
            conv(b, w, 100, with_zeros);
            assert_same_floats(with_null, with_zeros, 100);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reference_rows),
        cmocka_unit_test(test_reference_queries),
        cmocka_unit_test(test_missing_rows_are_zeros),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
