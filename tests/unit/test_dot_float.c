/* Products of float weight rows with float activations: the fixed order of the sum, exact
 * conversions, any length, any alignment. */
#include "numbers.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/kernels/kernels.h"
#include "base/bits.h"

enum { MAX_N = 600 };

static const sl_dtype types[] = {SL_F32, SL_F16, SL_BF16};

/* A row of random values of the type, as bytes. */
static void random_row(sl_test_rng *rng, sl_dtype dtype, sl_test_fill fill, size_t n,
                       uint8_t *bytes)
{
    for (size_t i = 0; i < n; i++) {
        float f;
        sl_fill_floats(rng, fill, &f, 1);
        uint16_t half = dtype == SL_F16 ? sl_f32_to_f16(f) : (uint16_t)(sl_bits_of_float(f) >> 16);
        if (dtype == SL_F32)
            memcpy(bytes + 4 * i, &f, sizeof f);
        else
            memcpy(bytes + 2 * i, &half, sizeof half);
    }
}

static float reference(sl_dtype dtype, const uint8_t *bytes, const float *x, size_t n)
{
    float w[MAX_N];
    sl_dequantise(dtype, bytes, w, n);
    float total = 0.0f;
    for (size_t i = 0; i < n; i += 256) {
        float seg = 0.0f;
        for (size_t k = i; k < i + 256 && k < n; k += 32) {
            float block = 0.0f;
            for (size_t j = k; j < k + 32 && j < n; j++)
                block = fmaf(w[j], x[j], block);
            seg = seg + block;
        }
        total = total + seg;
    }
    return total;
}

static void test_definition(void **state)
{
    (void)state;
    sl_test_rng rng = sl_test_rng_of(1);
    for (size_t t = 0; t < SL_COUNTOF(types); t++) {
        for (int fill = 0; fill < SL_FILL_COUNT; fill++) {
            for (size_t n = 0; n <= MAX_N; n += n < 300 ? 1 : 37) {
                /* One byte off: no alignment is asked for. */
                uint8_t bytes[4 * MAX_N + 1];
                float x[MAX_N];
                random_row(&rng, types[t], (sl_test_fill)fill, n, bytes + 1);
                sl_fill_floats(&rng, (sl_test_fill)fill, x, n);
                float got = sl_dot_float_scalar[types[t]](bytes + 1, x, n);
                float expected = reference(types[t], bytes + 1, x, n);
                assert_same_floats(&got, &expected, 1);
            }
        }
    }
}

static void test_small_integers_are_exact(void **state)
{
    (void)state;
    sl_test_rng rng = sl_test_rng_of(2);
    for (size_t t = 0; t < SL_COUNTOF(types); t++) {
        uint8_t bytes[4 * MAX_N];
        float x[MAX_N], w[MAX_N];
        random_row(&rng, types[t], SL_FILL_INTEGERS, MAX_N, bytes);
        sl_fill_floats(&rng, SL_FILL_INTEGERS, x, MAX_N);
        sl_dequantise(types[t], bytes, w, MAX_N);
        double exact = 0;
        for (size_t i = 0; i < MAX_N; i++)
            exact += (double)w[i] * (double)x[i];
        assert_true((double)sl_dot_float_scalar[types[t]](bytes, x, MAX_N) == exact);
    }
}

static void test_accuracy(void **state)
{
    (void)state;
    sl_test_rng rng = sl_test_rng_of(3);
    uint8_t bytes[4 * MAX_N];
    float x[MAX_N], w[MAX_N];
    random_row(&rng, SL_F32, SL_FILL_NORMAL, MAX_N, bytes);
    sl_fill_floats(&rng, SL_FILL_NORMAL, x, MAX_N);
    sl_dequantise(SL_F32, bytes, w, MAX_N);
    double exact = 0, magnitude = 0;
    for (size_t i = 0; i < MAX_N; i++) {
        exact += (double)w[i] * (double)x[i];
        magnitude += fabs((double)w[i] * (double)x[i]);
    }
    double got = (double)sl_dot_float_scalar[SL_F32](bytes, x, MAX_N);
    assert_true(fabs(got - exact) < 1e-6 * magnitude);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_definition),
        cmocka_unit_test(test_small_integers_are_exact),
        cmocka_unit_test(test_accuracy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
