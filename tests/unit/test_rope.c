/* Rotary positions: angles as far as a million tokens and beyond, and the rotation. */
#include "numbers.h"

#include <math.h>
#include <string.h>

#include "backend/cpu/kernels/kernels.h"

enum { HALF = 32 };

static void inverse_frequencies(float inv_freq[HALF])
{
    for (int i = 0; i < HALF; i++)
        inv_freq[i] = (float)pow(1e7, -i / (double)HALF);
}

static void test_angles(void **state)
{
    (void)state;
    static const uint32_t positions[] = {
        0, 1, 2, 31, 32, 4095, 65536, 262143, 262144, 1000003, 1048575, 0x1000001, UINT32_MAX};
    float inv_freq[HALF], c[HALF], s[HALF], scaled_c[HALF], scaled_s[HALF];
    inverse_frequencies(inv_freq);
    for (size_t p = 0; p < SL_COUNTOF(positions); p++) {
        sl_rope_angles_scalar(positions[p], inv_freq, 1.0f, HALF, c, s);
        sl_rope_angles_scalar(positions[p], inv_freq, 1.1386294f, HALF, scaled_c, scaled_s);
        for (int i = 0; i < HALF; i++) {
            /* The angle is rounded to float before the functions see it. */
            float angle = (float)positions[p] * inv_freq[i];
            assert_true(fabs((double)c[i] - cos((double)angle)) <= 0x1p-24 * 0.501);
            assert_true(fabs((double)s[i] - sin((double)angle)) <= 0x1p-24 * 0.501);
            assert_true(scaled_c[i] == c[i] * 1.1386294f);
            assert_true(scaled_s[i] == s[i] * 1.1386294f);
        }
    }
    sl_rope_angles_scalar(0, inv_freq, 1.0f, HALF, c, s);
    for (int i = 0; i < HALF; i++)
        assert_true(c[i] == 1.0f && s[i] == 0.0f);
}

static void test_rotation(void **state)
{
    (void)state;
    sl_test_rng rng = sl_test_rng_of(1);
    float inv_freq[HALF], c[HALF], s[HALF];
    inverse_frequencies(inv_freq);
    for (int fill = 0; fill < SL_FILL_COUNT; fill++) {
        for (uint32_t position = 0; position < 50; position++) {
            float x[2 * HALF + 1], y[2 * HALF + 1];
            sl_fill_floats(&rng, (sl_test_fill)fill, x, 2 * HALF + 1);
            memcpy(y, x, sizeof y);
            sl_rope_angles_scalar(position * 977, inv_freq, 1.0f, HALF, c, s);
            sl_rope_scalar(y, c, s, HALF);
            for (int i = 0; i < HALF; i++) {
                float a = x[i], b = x[i + HALF];
                float first = b * s[i], second = a * s[i];
                first = fmaf(a, c[i], -first);
                second = fmaf(b, c[i], second);
                assert_same_floats(&y[i], &first, 1);
                assert_same_floats(&y[i + HALF], &second, 1);
            }
            assert_same_floats(&y[2 * HALF], &x[2 * HALF], 1);
        }
    }
}

/* What attention needs of it: products of rotated pairs depend on the distance alone. */
static void test_products_depend_on_distance(void **state)
{
    (void)state;
    sl_test_rng rng = sl_test_rng_of(2);
    float inv_freq[HALF], q[2 * HALF], k[2 * HALF];
    inverse_frequencies(inv_freq);
    sl_fill_floats(&rng, SL_FILL_NORMAL, q, 2 * HALF);
    sl_fill_floats(&rng, SL_FILL_NORMAL, k, 2 * HALF);
    double first = 0;
    for (uint32_t start = 0; start < 1000; start += 111) {
        float c[HALF], s[HALF], rotated_q[2 * HALF], rotated_k[2 * HALF];
        memcpy(rotated_q, q, sizeof q);
        memcpy(rotated_k, k, sizeof k);
        sl_rope_angles_scalar(start + 17, inv_freq, 1.0f, HALF, c, s);
        sl_rope_scalar(rotated_q, c, s, HALF);
        sl_rope_angles_scalar(start, inv_freq, 1.0f, HALF, c, s);
        sl_rope_scalar(rotated_k, c, s, HALF);
        double product = 0;
        for (int i = 0; i < 2 * HALF; i++)
            product += (double)rotated_q[i] * (double)rotated_k[i];
        if (start == 0)
            first = product;
        assert_true(fabs(product - first) < 2e-3);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_angles),
        cmocka_unit_test(test_rotation),
        cmocka_unit_test(test_products_depend_on_distance),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
