/* Elementwise kernels: the order of their operations, and every size. */
#include "numbers.h"

#include <math.h>
#include <string.h>

#include "backend/cpu/kernels/kernels.h"
#include "backend/cpu/kernels/math.h"

enum { MAX_N = 131 };

/* The definitions of docs/EXACTNESS.md, written once more. */
static float silu(float x)
{
    return x / (1.0f + sl_expf(-x));
}

static float sigmoid(float x)
{
    return x < -87.0f ? sl_expf(x) : 1.0f / (1.0f + sl_expf(-x));
}

static void test_definitions(void **state)
{
    (void)state;
    sl_test_rng rng = sl_test_rng_of(1);
    for (int fill = 0; fill < SL_FILL_COUNT; fill++) {
        for (size_t n = 0; n <= MAX_N; n++) {
            float a[MAX_N], b[MAX_N], y[MAX_N], expected[MAX_N];
            sl_fill_floats(&rng, (sl_test_fill)fill, a, n);
            sl_fill_floats(&rng, (sl_test_fill)fill, b, n);
            for (size_t i = 0; i < n; i++)
                a[i] = n % 3 ? a[i] : 30.0f * a[i]; /* reach the ends of the functions */

            for (size_t i = 0; i < n; i++)
                expected[i] = silu(a[i]) * b[i];
            sl_swiglu_scalar(a, b, n, y);
            assert_same_floats(y, expected, n);
            memcpy(y, b, sizeof y);
            sl_mul_silu_scalar(a, n, y);
            assert_same_floats(y, expected, n);

            for (size_t i = 0; i < n; i++)
                expected[i] = sigmoid(a[i]) * b[i];
            memcpy(y, b, sizeof y);
            sl_mul_sigmoid_scalar(a, n, y);
            assert_same_floats(y, expected, n);

            for (size_t i = 0; i < n; i++)
                expected[i] = a[i] + b[i];
            sl_add_scalar(a, b, n, y);
            assert_same_floats(y, expected, n);
            memcpy(y, a, sizeof y);
            sl_add_scalar(y, b, n, y);
            assert_same_floats(y, expected, n);

            for (size_t i = 0; i < n; i++)
                expected[i] = fmaf(0.3f, a[i], b[i]);
            memcpy(y, b, sizeof y);
            sl_axpy_scalar(0.3f, a, n, y);
            assert_same_floats(y, expected, n);
        }
    }
}

/* One rounding, not two. */
static void test_axpy_is_fused(void **state)
{
    (void)state;
    float x = 1.0f + 0x1p-23f, y = -1.0f;
    sl_axpy_scalar(x, &x, 1, &y);
    assert_true(y == 0x1p-22f + 0x1p-46f);
}

static void test_gates(void **state)
{
    (void)state;
    sl_test_rng rng = sl_test_rng_of(2);
    for (int fill = 0; fill < SL_FILL_COUNT; fill++) {
        float a[64], b[64], coef[64], dt[64], g[64], beta[64];
        sl_fill_floats(&rng, (sl_test_fill)fill, a, 64);
        sl_fill_floats(&rng, (sl_test_fill)fill, b, 64);
        sl_fill_floats(&rng, SL_FILL_NORMAL, coef, 64);
        sl_fill_floats(&rng, SL_FILL_NORMAL, dt, 64);
        for (size_t h = 0; h < 64; h++) {
            a[h] *= h % 2 ? 20.0f : 1.0f;
            coef[h] = -fabsf(coef[h]);
        }
        sl_gdn_gates_scalar(a, b, coef, dt, 64, g, beta);
        for (size_t h = 0; h < 64; h++) {
            float t = a[h] + dt[h];
            float expected = coef[h] * (t > 20.0f ? t : sl_log1pf(sl_expf(t)));
            assert_same_floats(&g[h], &expected, 1);
            expected = sigmoid(b[h]);
            assert_same_floats(&beta[h], &expected, 1);
            if (!isnan(g[h]))
                assert_true(g[h] <= 0.0f);
            if (!isnan(beta[h]))
                assert_true(beta[h] >= 0.0f && beta[h] <= 1.0f);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_definitions),
        cmocka_unit_test(test_axpy_is_fused),
        cmocka_unit_test(test_gates),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
