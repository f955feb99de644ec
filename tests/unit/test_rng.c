/* Philox4x32-10 against the published vectors, and the uniform numbers made from it. */
#include "support.h"

#include "engine/rng.h"

static void test_known_answers(void **state)
{
    (void)state;
    /* Random123, kat_vectors: nothing set, everything set, digits of pi. */
    static const struct {
        uint32_t counter[4], key[2], out[4];
    } cases[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < SL_COUNTOF(cases); i++) {
        uint32_t out[4];
        sl_philox4x32_10(cases[i].counter, cases[i].key, out);
        assert_memory_equal(out, cases[i].out, sizeof out);
    }
}

static void test_uniform_is_the_first_word(void **state)
{
    (void)state;
    /* The vectors again: key = seed, counter = (position, draw, position's high half, 0). */
    assert_true(sl_rng_uniform(0, 0, 0) == ((double)0x6627e8 + 0.5) / 16777216.0);
    const uint32_t key[2] = {0x89abcdef, 0x01234567}, counter[4] = {0x0badcafe, 3, 0x12, 0};
    uint32_t out[4];
    sl_philox4x32_10(counter, key, out);
    assert_true(sl_rng_uniform(0x0123456789abcdef, 0x120badcafe, 3) ==
                ((double)(out[0] >> 8) + 0.5) / 16777216.0);
}

static void test_uniform_is_uniform(void **state)
{
    (void)state;
    enum { DRAWS = 1 << 18, BINS = 64 };
    uint32_t bins[BINS] = {0};
    double sum = 0.0, product = 0.0, last = 0.5;
    for (uint32_t i = 0; i < DRAWS; i++) {
        const double u = sl_rng_uniform(42, i, 0);
        assert_true(u > 0.0 && u < 1.0);
        bins[(size_t)(u * BINS)]++;
        sum += u;
        product += (u - 0.5) * (last - 0.5);
        last = u;
    }
    double chi2 = 0.0;
    for (int i = 0; i < BINS; i++) {
        const double expected = (double)DRAWS / BINS, d = bins[i] - expected;
        chi2 += d * d / expected;
    }
    /* 63 degrees of freedom: 99.9 % of true sources stay below 103.4. */
    assert_true(chi2 < 103.4);
    assert_true(sum / DRAWS > 0.498 && sum / DRAWS < 0.502);
    const double correlation = product / DRAWS * 12.0;
    assert_true(correlation > -0.01 && correlation < 0.01);
}

static void test_every_input_matters(void **state)
{
    (void)state;
    const double u = sl_rng_uniform(7, 100, 0);
    assert_true(u == sl_rng_uniform(7, 100, 0));
    assert_true(u != sl_rng_uniform(8, 100, 0));
    assert_true(u != sl_rng_uniform(7 + (1ull << 32), 100, 0));
    assert_true(u != sl_rng_uniform(7, 101, 0));
    assert_true(u != sl_rng_uniform(7, 100 + (1ull << 32), 0));
    assert_true(u != sl_rng_uniform(7, 100, 1));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_known_answers),
        cmocka_unit_test(test_uniform_is_the_first_word),
        cmocka_unit_test(test_uniform_is_uniform),
        cmocka_unit_test(test_every_input_matters),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
