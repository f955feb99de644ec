/* The quantiser of activations against its definition, at ordinary and hostile inputs. */
#include "numbers.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/kernels/kernels.h"

enum { MAX_N = 200, MAX_BLOCKS = 7 };

typedef struct quantised {
    int8_t q[MAX_BLOCKS * 32];
    float d[MAX_BLOCKS];
    int16_t sums[2 * MAX_BLOCKS];
} quantised;

static quantised quantise(const float *x, size_t n)
{
    quantised out;
    memset(&out, 0x55, sizeof out); /* nothing may be left as it was */
    sl_quantise_row_scalar(x, n, out.q, out.d, out.sums);
    return out;
}

/* The definition, with libm's rounding instead of a trick. */
static quantised reference(const float *x, size_t n)
{
    quantised out;
    memset(&out, 0x55, sizeof out);
    for (size_t b = 0; 32 * b < n; b++) {
        size_t m = sl_min_size(n - 32 * b, 32);
        float largest = 0.0f;
        bool finite = true;
        for (size_t i = 0; i < m; i++) {
            finite = finite && isfinite(x[32 * b + i]);
            largest = fmaxf(largest, fabsf(x[32 * b + i]));
        }
        bool zero = finite && largest < 0x1p-100f;
        out.d[b] = !finite ? NAN : zero ? 0.0f : largest / 127.0f;
        out.sums[2 * b] = out.sums[2 * b + 1] = 0;
        for (size_t i = 0; i < 32; i++) {
            float code = 0.0f;
            if (finite && !zero && i < m) {
                float inverse = 127.0f / largest;
                code = rintf(x[32 * b + i] * inverse);
            }
            out.q[32 * b + i] = (int8_t)code;
            out.sums[2 * b + i / 16] = (int16_t)(out.sums[2 * b + i / 16] + (int)code);
        }
    }
    return out;
}

static void test_definition(void **state)
{
    (void)state;
    sl_test_rng rng = sl_test_rng_of(1);
    for (int fill = 0; fill < SL_FILL_COUNT; fill++) {
        for (size_t n = 0; n <= MAX_N; n++) {
            float x[MAX_N];
            sl_fill_floats(&rng, (sl_test_fill)fill, x, n);
            quantised got = quantise(x, n), expected = reference(x, n);
            assert_memory_equal(got.q, expected.q, sizeof got.q);
            assert_memory_equal(got.sums, expected.sums, sizeof got.sums);
            assert_same_floats(got.d, expected.d, MAX_BLOCKS);
        }
    }
}

/* The largest code is 127 whatever the significand of the largest value is; its exponent only moves
 * powers of two about. */
static void test_codes_stay_within_127(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 1u << 23; i += 7) {
        float m = 1.0f + (float)i * 0x1p-23f;
        assert_true(rintf(m * (127.0f / m)) == 127.0f);
    }
    static const float scales[] = {0x1p-100f, 0x1p-60f, 1.0f, 0x1p60f, 0x1p126f, 0x1p127f};
    sl_test_rng rng = sl_test_rng_of(2);
    for (size_t i = 0; i < 3000; i++) {
        float random = 1.0f + (float)sl_test_rng_below(&rng, 1u << 23) * 0x1p-23f;
        float m = random * scales[i % SL_COUNTOF(scales)];
        float x[4] = {m, -m, 0.5f * m, 0.0f};
        quantised got = quantise(x, 4);
        assert_int_equal(got.q[0], 127);
        assert_int_equal(got.q[1], -127);
        assert_true(got.d[0] == m / 127.0f);
    }
}

/* Code times scale is within half a step, and a little rounding, of the value. */
static void test_error_is_half_a_step(void **state)
{
    (void)state;
    sl_test_rng rng = sl_test_rng_of(3);
    for (int round = 0; round < 200; round++) {
        float x[MAX_N];
        sl_fill_floats(&rng, SL_FILL_NORMAL, x, MAX_N);
        quantised got = quantise(x, MAX_N);
        for (size_t i = 0; i < MAX_N; i++) {
            double d = (double)got.d[i / 32];
            assert_true(fabs((double)x[i] - d * got.q[i]) <= 0.5001 * d);
        }
    }
}

/* Values next to the middle between two codes, where a product rounded otherwise than the
 * definition says would choose the other code. */
static void test_next_to_ties(void **state)
{
    (void)state;
    sl_test_rng rng = sl_test_rng_of(4);
    for (int round = 0; round < 2000; round++) {
        float x[32] = {1.0f + (float)sl_test_rng_below(&rng, 1u << 23) * 0x1p-23f};
        for (size_t i = 1; i < 32; i++) {
            x[i] = ((float)sl_test_rng_below(&rng, 126) + 0.5f) * (x[0] / 127.0f);
            x[i] = nextafterf(x[i], (float)sl_test_rng_below(&rng, 3) * x[i]);
        }
        quantised got = quantise(x, 32), expected = reference(x, 32);
        assert_memory_equal(got.q, expected.q, sizeof got.q);
    }
}

static void test_ties_go_to_even(void **state)
{
    (void)state;
    float x[6] = {127.0f, 0.5f, 1.5f, 2.5f, -0.5f, -3.5f};
    static const int8_t codes[6] = {127, 0, 2, 2, 0, -4};
    quantised got = quantise(x, 6);
    assert_memory_equal(got.q, codes, 6);
    assert_true(got.d[0] == 1.0f);
}

/* Borders of the cases: the smallest value that counts, and what is not finite. */
static void test_borders(void **state)
{
    (void)state;
    float x[2] = {0x1p-100f, 0.0f};
    quantised got = quantise(x, 2);
    assert_int_equal(got.q[0], 127);
    assert_true(got.d[0] == 0x1p-100f / 127.0f);
    x[0] = nextafterf(0x1p-100f, 0.0f);
    got = quantise(x, 2);
    assert_int_equal(got.q[0], 0);
    assert_same_floats(got.d, (float[]){0.0f}, 1);

    x[0] = FLT_MAX;
    assert_int_equal(quantise(x, 2).q[0], 127);
    static const float bad[] = {INFINITY, -INFINITY, NAN, -NAN};
    for (size_t i = 0; i < SL_COUNTOF(bad); i++) {
        float row[64] = {1.0f, bad[i], 2.0f, [32] = 3.0f};
        got = quantise(row, 64);
        assert_true(isnan(got.d[0]));
        for (int k = 0; k < 32; k++)
            assert_int_equal(got.q[k], 0);
        assert_int_equal(got.sums[0], 0);
        /* The neighbour is untouched. */
        assert_int_equal(got.q[32], 127);
        assert_true(got.d[1] == 3.0f / 127.0f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_definition),           cmocka_unit_test(test_codes_stay_within_127),
        cmocka_unit_test(test_error_is_half_a_step), cmocka_unit_test(test_next_to_ties),
        cmocka_unit_test(test_ties_go_to_even),      cmocka_unit_test(test_borders),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
