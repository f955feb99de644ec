/* exp, log and pow in double against libm's long double functions, in units of the last place of
 * the exact result; against values computed with 60 decimal digits; and, for the bits that must be
 * the same everywhere, against a hash. The limits stand in dmath.h. */
#include "support.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>

#include "base/bits.h"
#include "base/dmath.h"
#include "hash.h"

#if defined(__SANITIZE_ADDRESS__)
enum { MANY = 100000 };
#else
enum { MANY = 1000000 };
#endif

/* 0 up to 1. */
static double uniform(sl_test_rng *rng)
{
    return (double)(sl_test_rng_next(rng) >> 11) * 0x1p-53;
}

/* Any positive finite double, every exponent alike, subnormals too. */
static double any_positive(sl_test_rng *rng)
{
    return sl_double_of_bits(1 + sl_test_rng_next(rng) % (sl_bits_of_double(INFINITY) - 1));
}

/* ---- errors ---- */

typedef struct worst {
    double normal, subnormal; /* by the exact result */
    double x, y;              /* of the worst normal one */
} worst;

static void measure(worst *w, double got, long double exact, double x, double y)
{
    int exponent = exact == 0.0L ? DBL_MIN_EXP - 1 : ilogbl(exact);
    const bool normal = exponent >= DBL_MIN_EXP - 1;
    if (!normal)
        exponent = DBL_MIN_EXP - 1;
    /* Infinity counts as 2^1024, the first value out of range. */
    const long double value = isinf(got) ? ldexpl(got > 0.0 ? 1.0L : -1.0L, 1024) : got;
    const double error = (double)(fabsl(value - exact) * ldexpl(1.0L, 52 - exponent));
    if (!normal) {
        if (!(error <= w->subnormal))
            w->subnormal = error;
    } else if (!(error <= w->normal)) { /* a NaN is the worst error of all */
        w->normal = error;
        w->x = x;
        w->y = y;
    }
}

static void report(const char *name, const worst *w)
{
    print_message("%-4s worst error %.4f ulp at (%a, %a); %.4f ulp of subnormal results\n", name,
                  w->normal, w->x, w->y, w->subnormal);
}

static void need_long_double(void)
{
    if (LDBL_MANT_DIG < 64)
        skip_because("long double is too short to be a reference");
}

static void test_exp(void **state)
{
    (void)state;
    need_long_double();
    worst w = {0};
    sl_test_rng rng = sl_test_rng_of(3);
    static const double ranges[] = {0x1p-20, 0.7, 40.0, 708.0, 745.2};
    for (int i = 0; i < MANY; i++) {
        const double x = (2.0 * uniform(&rng) - 1.0) * ranges[i % 5];
        if (x < 709.782)
            measure(&w, sl_exp_f64(x), expl((long double)x), x, 0.0);
    }
    /* Where k changes, and the ends. */
    for (int k = -1076; k <= 1023; k++) {
        double x = ((double)k + 0.5) * 0x1.62e42fefa39efp-1;
        for (int i = 0; i < 20; i++, x = nextafter(x, INFINITY))
            measure(&w, sl_exp_f64(x), expl((long double)x), x, 0.0);
    }
    report("exp", &w);
    assert_true(w.normal < 0.65 && w.subnormal < 0.82);
}

static void test_exp_ends(void **state)
{
    (void)state;
    assert_true(sl_exp_f64(0.0) == 1.0 && sl_exp_f64(-0.0) == 1.0);
    assert_true(sl_exp_f64(DBL_MIN) == 1.0 && sl_exp_f64(-DBL_TRUE_MIN) == 1.0);
    assert_true(sl_exp_f64(0x1p-52) == 1.0 + 0x1p-52 && sl_exp_f64(-0x1p-53) == 1.0 - 0x1p-53);
    /* ln of the largest double rounded down; the next double is beyond it. */
    const double last = 0x1.62e42fefa39efp+9;
    assert_true(isfinite(sl_exp_f64(last)));
    assert_true(sl_exp_f64(nextafter(last, INFINITY)) == INFINITY);
    assert_true(sl_exp_f64(710.0) == INFINITY && sl_exp_f64(710.1) == INFINITY);
    assert_true(sl_exp_f64(DBL_MAX) == INFINITY && sl_exp_f64(INFINITY) == INFINITY);
    assert_true(sl_exp_f64(-708.0) >= DBL_MIN && sl_exp_f64(-708.5) < DBL_MIN);
    assert_true(sl_exp_f64(-745.13) == DBL_TRUE_MIN);
    static const double below[] = {-745.14, -746.0, -746.1, -1e4, -DBL_MAX, -INFINITY};
    for (size_t i = 0; i < SL_COUNTOF(below); i++)
        assert_int_equal(sl_bits_of_double(sl_exp_f64(below[i])), 0);
    assert_true(isnan(sl_exp_f64(NAN)) && isnan(sl_exp_f64(-NAN)));
}

static void test_log(void **state)
{
    (void)state;
    need_long_double();
    worst w = {0};
    sl_test_rng rng = sl_test_rng_of(5);
    for (int i = 0; i < MANY / 2; i++) {
        double x = any_positive(&rng);
        if (i % 3 == 1)
            x = 0.5 + 1.5 * uniform(&rng);
        else if (i % 3 == 2) /* near 1 from both sides */
            x = 1.0 + (uniform(&rng) - 0.5) * ldexp(1.0, -(int)sl_test_rng_below(&rng, 52));
        measure(&w, sl_log_f64(x), logl((long double)x), x, 0.0);
    }
    /* Powers of two and of their root, where e changes. */
    for (int e = -1074; e <= 1023; e++) {
        for (int half = 0; half < 2; half++) {
            double x = ldexp(half ? 0x1.6a09e667f3bcdp+0 : 1.0, e);
            x = nextafter(nextafter(x, 0.0), 0.0);
            for (int i = 0; i < 5; i++, x = nextafter(x, INFINITY)) {
                if (x > 0.0 && x < INFINITY)
                    measure(&w, sl_log_f64(x), logl((long double)x), x, 0.0);
            }
        }
    }
    report("log", &w);
    assert_true(w.normal < 0.501 && w.subnormal == 0.0);
}

static void test_log_ends(void **state)
{
    (void)state;
    assert_int_equal(sl_bits_of_double(sl_log_f64(1.0)), 0);
    assert_true(sl_log_f64(0.0) == -INFINITY && sl_log_f64(-0.0) == -INFINITY);
    assert_true(sl_log_f64(INFINITY) == INFINITY);
    assert_true(sl_log_f64(DBL_TRUE_MIN) == -0x1.74385446d71c3p+9);
    assert_true(sl_log_f64(DBL_MAX) == 0x1.62e42fefa39efp+9);
    assert_true(sl_log_f64(2.0) == 0x1.62e42fefa39efp-1);
    assert_true(isnan(sl_log_f64(-DBL_TRUE_MIN)) && isnan(sl_log_f64(-1.0)));
    assert_true(isnan(sl_log_f64(-INFINITY)) && isnan(sl_log_f64(NAN)));
}

static void test_pow(void **state)
{
    (void)state;
    need_long_double();
    worst w = {0};
    sl_test_rng rng = sl_test_rng_of(7);
    for (int i = 0; i < MANY / 2; i++) {
        double x = any_positive(&rng);
        if (i % 4 == 1)
            x = 1e9 * uniform(&rng);
        else if (i % 4 == 2)
            x = 1.0 + (uniform(&rng) - 0.5) * ldexp(1.0, -(int)sl_test_rng_below(&rng, 52));
        if (x == 1.0 || x == 0.0)
            continue;
        /* The exponent that gives a result of any size. */
        const double log_of_result =
            i % 4 == 3 ? 4.0 * uniform(&rng) - 2.0 : -745.1 + (709.78 + 745.1) * uniform(&rng);
        const double y = (double)(log_of_result / logl((long double)x));
        const long double exact = powl((long double)x, (long double)y);
        if (exact < ldexpl(1.0L, 1024))
            measure(&w, sl_pow_f64(x, y), exact, x, y);
    }
    /* The rotary frequencies of every base that a model could have. */
    for (int i = 0; i < MANY / 4; i++) {
        const double x = 2.0 + floor(uniform(&rng) * 1e8), y = -2.0 * (i % 128) / 256.0;
        measure(&w, sl_pow_f64(x, y), powl((long double)x, (long double)y), x, y);
    }
    report("pow", &w);
    assert_true(w.normal < 0.65 && w.subnormal < 0.82);
}

/* C's table, which libm follows, for a base that is not negative. */
static void test_pow_ends(void **state)
{
    (void)state;
    static const double values[] = {0.0,           DBL_TRUE_MIN, DBL_MIN,       0x1p-60, 0.5,
                                    1.0 - 0x1p-53, 1.0,          1.0 + 0x1p-52, 2.0,     3.0,
                                    0x1p1023,      DBL_MAX,      INFINITY};
    for (size_t i = 0; i < SL_COUNTOF(values); i++) {
        for (size_t j = 0; j < 2 * SL_COUNTOF(values); j++) {
            const double x = values[i], y = j % 2 ? -values[j / 2] : values[j / 2];
            const double got = sl_pow_f64(x, y), expected = pow(x, y);
            const int64_t apart = (int64_t)(sl_bits_of_double(got) - sl_bits_of_double(expected));
            if (apart < -1 || apart > 1)
                fail_msg("pow(%a, %a) is %a, expected %a", x, y, got, expected);
            if (expected == 0.0 || expected == 1.0 || isinf(expected) || x == 2.0)
                assert_int_equal(apart, 0);
        }
        assert_true(sl_pow_f64(-0.0, values[i]) == sl_pow_f64(0.0, values[i]));
        assert_true(isnan(sl_pow_f64(values[i], NAN)) == (values[i] != 1.0));
        assert_true(isnan(sl_pow_f64(NAN, values[i])) == (values[i] != 0.0));
    }
    assert_true(isnan(sl_pow_f64(-1.0, 2.0)) && isnan(sl_pow_f64(-INFINITY, -1.0)));
    for (int e = -1074; e <= 1023; e++)
        assert_true(sl_pow_f64(2.0, e) == ldexp(1.0, e));
    assert_true(sl_pow_f64(2.0, -1075.0) == 0.0 && sl_pow_f64(2.0, 1024.0) == INFINITY);
    double power = 1.0;
    for (int e = 0; e <= 22; e++, power *= 10.0)
        assert_true(sl_pow_f64(10.0, e) == power);
}

/* ---- values from 60 decimal digits, rounded once ---- */

static void test_pow_values(void **state)
{
    (void)state;
    static const struct {
        double x, y, result;
    } rows[] = {
        {2.5, 3.7, 0x1.dac93f32d18ddp+4},
        {10.0, 308.25, 0x1.fa788589d81d3p+1023},
        {3.0, 646.0, 0x1.d906a378b5987p+1023},
        {0x1.0000000000001p+0, 1e16, 0x1.26c41b1a61c92p+3},
        {0x1.fffffffffffffp-1, -6e17, 0x1.12e7f63b3344ap+96},
        {0x0.00000000007e8p-1022, 0.5, 0x1.67e93ddbc0e73p-532},
        {7.0, -380.0, 0x0.0000000000094p-1022},
        {1e300, -1.03, 0x0.0b8157268fdabp-1022},
    };
    for (size_t i = 0; i < SL_COUNTOF(rows); i++)
        assert_int_equal(sl_bits_of_double(sl_pow_f64(rows[i].x, rows[i].y)),
                         sl_bits_of_double(rows[i].result));
}

/* 1e7^(-2i/64), as a double by another library's pow and then as a float too. */
static void test_rotary_frequencies(void **state)
{
    (void)state;
    static const uint32_t expected[32] = {
        0x3f800000, 0x3f1ab32b, 0x3ebaf81a, 0x3e61f836, 0x3e088d77, 0x3da50957, 0x3d47763f,
        0x3cf11176, 0x3c91ad39, 0x3c301052, 0x3bd4ca14, 0x3b80967d, 0x3b1b690d, 0x3abbd3ec,
        0x3a6301e2, 0x3a092e02, 0x39a5cb5f, 0x394860c1, 0x38f22ce3, 0x3892587f, 0x3830df51,
        0x37d5c442, 0x37812dac, 0x371c1fc4, 0x36bcb0c1, 0x36640cc6, 0x3609cf4b, 0x35a68e4c,
        0x35494c56, 0x34f3499c, 0x3493048e, 0x3431af44};
    for (int i = 0; i < 32; i++)
        assert_int_equal(sl_bits_of_float((float)sl_pow_f64(1e7, -2.0 * i / 64.0)), expected[i]);
}

/* -exp(A_log) as a float, from the smallest subnormals to the largest floats. */
static void test_decay_coefficients(void **state)
{
    (void)state;
    static const struct {
        float a_log;
        uint32_t coefficient;
    } rows[] = {
        {-100.0f, 0x8000001b},  {-95.0f, 0x80000f64},          {-6.0f, 0xbb227290},
        {-2.3125f, 0xbdcac78b}, {-0x1.54fdf4p-2f, 0xbf377e40}, {-0x1p-7f, 0xbf7e01ff},
        {0.0f, 0xbf800000},     {0x1.0624dep-10f, 0xbf8020c9}, {0x1.62e43p-1f, 0xc0000000},
        {1.0f, 0xc02df854},     {0x1.62e43p+1f, 0xc1800000},   {0x1.ba7526p+1f, 0xc1fdb27f},
        {4.15625f, 0xc27f53aa}, {88.5f, 0xff4cdcc4},
    };
    for (size_t i = 0; i < SL_COUNTOF(rows); i++)
        assert_int_equal(sl_bits_of_float((float)-sl_exp_f64((double)rows[i].a_log)),
                         rows[i].coefficient);
}

/* ---- the same bits with every compiler and processor ---- */

static void test_bits(void **state)
{
    (void)state;
    enum { N = 3 * 20000 };
    double *results = malloc(N * sizeof *results);
    assert_non_null(results);
    sl_test_rng rng = sl_test_rng_of(11);
    for (size_t i = 0; i < N; i += 3) {
        const double x = any_positive(&rng), u = uniform(&rng);
        results[i] = sl_exp_f64(1500.0 * u - 750.0);
        results[i + 1] = sl_log_f64(x);
        results[i + 2] = sl_pow_f64(x, 2.0 * u - 1.0);
    }
    const uint64_t hash = sl_test_hash(results, N * sizeof *results);
    free(results);
    assert_int_equal(hash, 0xc81c9e2fc985b6f6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exp),
        cmocka_unit_test(test_exp_ends),
        cmocka_unit_test(test_log),
        cmocka_unit_test(test_log_ends),
        cmocka_unit_test(test_pow),
        cmocka_unit_test(test_pow_ends),
        cmocka_unit_test(test_pow_values),
        cmocka_unit_test(test_rotary_frequencies),
        cmocka_unit_test(test_decay_coefficients),
        cmocka_unit_test(test_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
