/* The choice of experts: against float64, ties, ends of the range, and logits that are no numbers.
 */
#include "support.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>

#include "backend/cpu/kernels/kernels.h"

enum { MOST = 512 };

static const float *sort_logits;
static int by_logit(const void *a, const void *b)
{
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    if (sort_logits[x] != sort_logits[y])
        return sort_logits[x] > sort_logits[y] ? -1 : 1;
    return x < y ? -1 : 1;
}

static void check_against_f64(const float *logits, size_t n, size_t top_k)
{
    static float scratch[MOST], weights[MOST];
    static uint32_t ids[MOST], want[MOST];
    assert_true(sl_route_scalar(logits, n, top_k, scratch, ids, weights));

    for (uint32_t i = 0; i < n; i++)
        want[i] = i;
    sort_logits = logits;
    qsort(want, n, sizeof *want, by_logit);
    /* The softmax's own sum cancels when the chosen ones are scaled to one. */
    double sum = 0.0;
    for (size_t i = 0; i < top_k; i++)
        sum += exp((double)logits[want[i]] - (double)logits[want[0]]);
    for (size_t i = 0; i < top_k; i++) {
        /* Two logits one rounding apart may have the same probability. */
        if (ids[i] != want[i])
            assert_true(fabsf(logits[ids[i]] - logits[want[i]]) <= 2e-6f);
        /* exp passes the rounding of its argument on; the sums and the rest cost a few more. */
        const double below = (double)logits[want[0]] - (double)logits[ids[i]];
        const double w = exp(-below) / sum, tolerance = (below + 16.0) * 0x1p-24;
        assert_true(fabs((double)weights[i] - w) <= tolerance * w);
        assert_true(i == 0 || weights[i] <= weights[i - 1]);
    }
}

static void test_against_f64(void **state)
{
    (void)state;
    static const size_t counts[] = {1, 2, 8, 15, 16, 17, 33, 128, 256, 512};
    static float logits[MOST];
    sl_test_rng rng = sl_test_rng_of(1);
    for (size_t i = 0; i < SL_COUNTOF(counts); i++) {
        const size_t n = counts[i];
        for (int round = 0; round < 20; round++) {
            for (size_t e = 0; e < n; e++)
                logits[e] = sl_test_rng_normal(&rng) * (round % 2 ? 5.0f : 0.5f);
            const size_t top_ks[] = {1, sl_min_size(2, n), sl_min_size(8, n), n};
            for (size_t k = 0; k < SL_COUNTOF(top_ks); k++)
                check_against_f64(logits, n, top_ks[k]);
        }
    }
}

static void check_ids(const float *logits, size_t n, size_t top_k, const uint32_t *want)
{
    float scratch[16], weights[16];
    uint32_t ids[16];
    assert_true(sl_route_scalar(logits, n, top_k, scratch, ids, weights));
    assert_memory_equal(ids, want, top_k * sizeof *ids);
}

static void test_ties_go_to_the_lowest_index(void **state)
{
    (void)state;
    check_ids((float[]){1, 1, 1, 1}, 4, 4, (uint32_t[]){0, 1, 2, 3});
    check_ids((float[]){0, 3, 1, 3, 1, 3}, 6, 5, (uint32_t[]){1, 3, 5, 2, 4});
    check_ids((float[]){-0.0f, 0.0f, -0.0f, 0.0f}, 4, 3, (uint32_t[]){0, 1, 2});
    check_ids((float[]){0.0f, -0.0f, -1.0f, 0.0f}, 4, 3, (uint32_t[]){0, 1, 3});
    /* Probabilities of zero tie as well. */
    check_ids((float[]){-500, -400, 0, -300}, 4, 4, (uint32_t[]){2, 0, 1, 3});
}

static void test_weights(void **state)
{
    (void)state;
    float scratch[8], weights[8];
    uint32_t ids[8];
    assert_true(sl_route_scalar((float[]){-7.0f}, 1, 1, scratch, ids, weights));
    assert_true(weights[0] == 1.0f);
    assert_true(sl_route_scalar((float[]){2, 2, 2, 2, 2, 2, 2, 2}, 8, 4, scratch, ids, weights));
    for (int i = 0; i < 4; i++)
        assert_true(weights[i] == 0.25f);
    assert_true(sl_route_scalar((float[]){-FLT_MAX, FLT_MAX, 0.0f}, 3, 3, scratch, ids, weights));
    assert_int_equal(ids[0], 1);
    assert_true(weights[0] == 1.0f && weights[1] == 0.0f && weights[2] == 0.0f);
}

/* 20,000 equal experts: the chosen probability is below 2^-14, which bounds the divisor. */
static void test_the_divisor_has_a_floor(void **state)
{
    (void)state;
    enum { N = 20000 };
    static float logits[N], scratch[N];
    float weight;
    uint32_t id;
    assert_true(sl_route_scalar(logits, N, 1, scratch, &id, &weight));
    assert_int_equal(id, 0);
    assert_true(weight == 1.0f / N * 0x1p14f);
}

static void test_refuses_what_is_not_finite(void **state)
{
    (void)state;
    const float bad[] = {NAN, -NAN, INFINITY, -INFINITY};
    float scratch[8], weights[2];
    uint32_t ids[2];
    for (size_t i = 0; i < SL_COUNTOF(bad); i++) {
        for (size_t at = 0; at < 8; at++) {
            float logits[8] = {0, 1, 2, 3, 4, 5, 6, 7};
            assert_true(sl_route_scalar(logits, 8, 2, scratch, ids, weights));
            logits[at] = bad[i];
            assert_false(sl_route_scalar(logits, 8, 2, scratch, ids, weights));
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_against_f64),
        cmocka_unit_test(test_ties_go_to_the_lowest_index),
        cmocka_unit_test(test_weights),
        cmocka_unit_test(test_the_divisor_has_a_floor),
        cmocka_unit_test(test_refuses_what_is_not_finite),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
