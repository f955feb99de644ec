/* RMS and L2 normalisation: the 16 lanes and their tree, any length, in place, accuracy. */
#include "numbers.h"

#include <math.h>
#include <string.h>

#include "backend/cpu/kernels/kernels.h"

enum { MAX_N = 400 };

static float sum_squares(const float *x, size_t n)
{
    float s[16] = {0};
    for (size_t k = 0; k < n; k++)
        s[k % 16] = fmaf(x[k], x[k], s[k % 16]);
    for (int l = 0; l < 8; l++)
        s[l] += s[l + 8];
    for (int l = 0; l < 4; l++)
        s[l] += s[l + 4];
    return (s[0] + s[2]) + (s[1] + s[3]);
}

static void test_definition(void **state)
{
    (void)state;
    sl_test_rng rng = sl_test_rng_of(1);
    for (int fill = 0; fill < SL_FILL_COUNT; fill++) {
        for (size_t n = 1; n <= MAX_N; n++) {
            float x[MAX_N], w[MAX_N], y[MAX_N], expected[MAX_N];
            sl_fill_floats(&rng, (sl_test_fill)fill, x, n);
            sl_fill_floats(&rng, SL_FILL_NORMAL, w, n);
            float s = sum_squares(x, n);

            float r = 1.0f / sqrtf(s / (float)n + 1e-6f);
            for (size_t i = 0; i < n; i++)
                expected[i] = (x[i] * r) * w[i];
            sl_rms_norm_scalar(x, w, n, 1e-6f, y);
            assert_same_floats(y, expected, n);

            r = 1.0f / sqrtf(s + 1e-6f);
            for (size_t i = 0; i < n; i++)
                expected[i] = (x[i] * r) * 0.125f;
            sl_l2_norm_scalar(x, n, 0.125f, y);
            assert_same_floats(y, expected, n);
        }
    }
}

static void test_in_place(void **state)
{
    (void)state;
    sl_test_rng rng = sl_test_rng_of(2);
    float x[MAX_N], w[MAX_N], apart[MAX_N], y[MAX_N];
    sl_fill_floats(&rng, SL_FILL_NORMAL, x, MAX_N);
    sl_fill_floats(&rng, SL_FILL_NORMAL, w, MAX_N);
    sl_rms_norm_scalar(x, w, MAX_N, 1e-6f, apart);
    memcpy(y, x, sizeof y);
    sl_rms_norm_scalar(y, w, MAX_N, 1e-6f, y);
    assert_same_floats(y, apart, MAX_N);
    sl_l2_norm_scalar(x, MAX_N, 1.0f, apart);
    memcpy(y, x, sizeof y);
    sl_l2_norm_scalar(y, MAX_N, 1.0f, y);
    assert_same_floats(y, apart, MAX_N);
}

static void test_accuracy(void **state)
{
    (void)state;
    sl_test_rng rng = sl_test_rng_of(3);
    for (size_t n = 1; n <= MAX_N; n += 7) {
        float x[MAX_N], w[MAX_N], y[MAX_N];
        sl_fill_floats(&rng, SL_FILL_NORMAL, x, n);
        sl_fill_floats(&rng, SL_FILL_NORMAL, w, n);
        double s = 0;
        for (size_t i = 0; i < n; i++)
            s += (double)x[i] * (double)x[i];
        sl_rms_norm_scalar(x, w, n, 1e-6f, y);
        for (size_t i = 0; i < n; i++) {
            double exact = (double)x[i] / sqrt(s / (double)n + 1e-6) * (double)w[i];
            assert_true(fabs((double)y[i] - exact) <= 5e-7 * fabs(exact));
        }
        sl_l2_norm_scalar(x, n, 1.0f, y);
        for (size_t i = 0; i < n; i++) {
            double exact = (double)x[i] / sqrt(s + 1e-6);
            assert_true(fabs((double)y[i] - exact) <= 5e-7 * fabs(exact));
        }
    }
}

/* The epsilon keeps a row of zeros at zero. */
static void test_zeros(void **state)
{
    (void)state;
    float x[40] = {0}, w[40], y[40];
    for (size_t i = 0; i < 40; i++)
        w[i] = 1.0f;
    sl_rms_norm_scalar(x, w, 40, 1e-6f, y);
    assert_same_floats(y, x, 40);
    sl_l2_norm_scalar(x, 40, 1.0f, y);
    assert_same_floats(y, x, 40);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_definition),
        cmocka_unit_test(test_in_place),
        cmocka_unit_test(test_accuracy),
        cmocka_unit_test(test_zeros),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
