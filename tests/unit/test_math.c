/* The elementary functions against libm's double functions, in units of the last place of the exact
 * result. Every 211th float pattern by default and every pattern near the points where a formula
 * changes; all of them with SL_EXHAUSTIVE=1 in the environment (some minutes). */
#include "support.h"

#include <float.h>
#include <stdlib.h>

#include "backend/cpu/kernels/scalar.h"

#if defined(__SANITIZE_ADDRESS__)
enum { STRIDE = 1009 };
#else
enum { STRIDE = 211 };
#endif

typedef enum function { EXP, LOG, LOG1P, SINE, COSINE, SIGMOID, SILU, SOFTPLUS } function;

static const char *const names[] = {"exp", "log",     "log1p", "sin",
                                    "cos", "sigmoid", "silu",  "softplus"};

/* Distance in units of the last place that a correctly rounded result would have. Infinity counts
 * as 2^128, the first value that is out of range. */
static double ulps(float got, double exact)
{
    double value = isinf(got) ? copysign(0x1p128, (double)got) : (double)got;
    int exponent = exact == 0.0 ? -126 : ilogb(exact);
    if (exponent < -126)
        exponent = -126;
    return fabs(value - exact) * ldexp(1.0, 23 - exponent);
}

typedef struct worst {
    double error;
    float x;
} worst;

SL_INLINE float value_of(function f, float x)
{
    float sine, cosine;
    switch (f) {
    case EXP:
        return sl_expf(x);
    case LOG:
        return sl_logf(x);
    case LOG1P:
        return sl_log1pf(x);
    case SINE:
        sl_sincos(x, &sine, &cosine);
        return sine;
    case COSINE:
        sl_sincos(x, &sine, &cosine);
        return cosine;
    case SIGMOID:
        return sl_sigmoid(x);
    case SILU:
        return sl_silu(x);
    case SOFTPLUS:
        return sl_softplus(x);
    }
    return 0.0f;
}

static double exact_of(function f, double x)
{
    switch (f) {
    case EXP:
        return exp(x);
    case LOG:
        return log(x);
    case LOG1P:
        return log1p(x);
    case SINE:
        return sin(x);
    case COSINE:
        return cos(x);
    case SIGMOID:
        return 1.0 / (1.0 + exp(-x));
    case SILU:
        return x / (1.0 + exp(-x));
    case SOFTPLUS:
        return x > 100.0 ? x : log1p(exp(x));
    }
    return 0.0;
}

/* Floats in the order of their patterns: first and last have the same sign. */
SL_SCALAR_CLONES
static void sweep(function f, float first, float last, uint64_t stride, worst *w)
{
    uint32_t a = sl_bits_of_float(first), b = sl_bits_of_float(last);
    for (uint64_t bits = a < b ? a : b; bits <= (a < b ? b : a); bits += stride) {
        float x = sl_float_of_bits((uint32_t)bits);
        double error = ulps(value_of(f, x), exact_of(f, (double)x));
        if (!(error <= w->error)) /* a NaN is the worst error of all */
            *w = (worst){error, x};
    }
}

/* All floats within 3000 steps of x, as far as they lie in [low, high]. */
static void sweep_near(function f, float x, float low, float high, worst *w)
{
    float first = x, last = x;
    for (int i = 0; i < 3000; i++) {
        first = nextafterf(first, -INFINITY);
        last = nextafterf(last, INFINITY);
    }
    first = fmaxf(first, low);
    last = fminf(last, high);
    if (first < 0.0f && last > 0.0f) {
        sweep(f, first, -0.0f, 1, w);
        sweep(f, 0.0f, last, 1, w);
    } else if (first <= last) {
        sweep(f, first, last, 1, w);
    }
}

static void check_range(function f, float low, float high, double limit)
{
    uint64_t stride = getenv("SL_EXHAUSTIVE") ? 1 : STRIDE;
    worst w = {0};
    if (low < 0.0f)
        sweep(f, low, high < 0.0f ? high : -0.0f, stride, &w);
    if (high >= 0.0f)
        sweep(f, low > 0.0f ? low : 0.0f, high, stride, &w);
    static const float points[] = {0.0f,  1.0f,    -1.0f,   0.5f,         -0.5f,       2.0f,
                                   20.0f, -20.0f,  -87.0f,  0.70710678f,  1.41421356f, 0.41421356f,
                                   88.0f, 0x1p24f, 0x1p30f, -0.29289322f, 0x1p-126f,   0x1p-64f};
    for (size_t i = 0; i < SL_COUNTOF(points); i++)
        sweep_near(f, points[i], low, high, &w);
    sweep_near(f, low, low, high, &w);
    sweep_near(f, high, low, high, &w);
    print_message("%-8s worst error %.4f ulp at %a\n", names[f], w.error, (double)w.x);
    assert_true(w.error < limit);
}

static void test_exp(void **state)
{
    (void)state;
    check_range(EXP, -87.3f, 0x1.62e42ep6f, 1.0);
    /* Where n changes. */
    worst w = {0};
    for (int n = -250; n <= 255; n++)
        sweep_near(EXP, (float)(0.5 * n * 0.69314718055994531), -87.3f, 0x1.62e42ep6f, &w);
    assert_true(w.error < 1.0);
}

/* The answer is +0 or a normal number, never a denormal. */
static void test_exp_ends(void **state)
{
    (void)state;
    static const float below[] = {-0x1.5d3336p6f, -87.4f, -88.0f, -1e4f, -FLT_MAX, -INFINITY};
    for (size_t i = 0; i < SL_COUNTOF(below); i++)
        assert_int_equal(sl_bits_of_float(sl_expf(below[i])), 0);
    assert_true(sl_expf(-87.3f) >= FLT_MIN);
    assert_true(isfinite(sl_expf(0x1.62e42ep6f)));
    static const float above[] = {0x1.62e430p6f, 89.0f, 1e6f, FLT_MAX, INFINITY};
    for (size_t i = 0; i < SL_COUNTOF(above); i++)
        assert_true(sl_expf(above[i]) == INFINITY);
    assert_true(sl_expf(0.0f) == 1.0f && sl_expf(-0.0f) == 1.0f);
    assert_true(isnan(sl_expf(NAN)) && isnan(sl_expf(-NAN)));
}

static void test_log(void **state)
{
    (void)state;
    check_range(LOG, 0x1p-149f, FLT_MAX, 0.51);
    assert_int_equal(sl_bits_of_float(sl_logf(1.0f)), 0);
    assert_true(sl_logf(0.0f) == -INFINITY && sl_logf(-0.0f) == -INFINITY);
    assert_true(sl_logf(INFINITY) == INFINITY);
    assert_true(isnan(sl_logf(-0x1p-149f)) && isnan(sl_logf(-INFINITY)) && isnan(sl_logf(NAN)));
}

static void test_log1p(void **state)
{
    (void)state;
    check_range(LOG1P, -0x1.fffffep-1f, FLT_MAX, 0.51);
    assert_true(sl_log1pf(0.0f) == 0.0f && sl_log1pf(-0.0f) == 0.0f);
    assert_true(sl_log1pf(-1.0f) == -INFINITY && sl_log1pf(INFINITY) == INFINITY);
    assert_true(isnan(sl_log1pf(-0x1.000002p0f)) && isnan(sl_log1pf(-INFINITY)) &&
                isnan(sl_log1pf(NAN)));
}

static void test_sincos(void **state)
{
    (void)state;
    check_range(SINE, -0x1p40f, 0x1p40f, 0.51);
    check_range(COSINE, -0x1p40f, 0x1p40f, 0.51);
    /* The floats nearest to multiples of pi/2, where the reduction has to cancel most. */
    worst w = {0};
    for (int k = 1; k < 100000; k++) {
        float x = (float)(k * 1.5707963267948966);
        sweep(SINE, x, x, 1, &w);
        sweep(COSINE, x, x, 1, &w);
    }
    assert_true(w.error < 0.51);
}

static void test_sincos_ends(void **state)
{
    (void)state;
    float s, c;
    static const float beyond[] = {0x1.000002p40f, 1e20f, FLT_MAX, -FLT_MAX};
    for (size_t i = 0; i < SL_COUNTOF(beyond); i++) {
        sl_sincos(beyond[i], &s, &c);
        assert_true(s == 0.0f && c == 1.0f);
    }
    static const float none[] = {INFINITY, -INFINITY, NAN};
    for (size_t i = 0; i < SL_COUNTOF(none); i++) {
        sl_sincos(none[i], &s, &c);
        assert_true(isnan(s) && isnan(c));
    }
}

static void test_sigmoid_silu_softplus(void **state)
{
    (void)state;
    check_range(SIGMOID, -87.3f, FLT_MAX, 2.5);
    check_range(SILU, -87.3f, FLT_MAX, 2.5);
    check_range(SOFTPLUS, -87.3f, FLT_MAX, 2.0);

    assert_int_equal(sl_bits_of_float(sl_sigmoid(-INFINITY)), 0);
    assert_int_equal(sl_bits_of_float(sl_sigmoid(-100.0f)), 0);
    assert_true(sl_sigmoid(0.0f) == 0.5f && sl_sigmoid(100.0f) == 1.0f);
    assert_true(sl_sigmoid(INFINITY) == 1.0f && isnan(sl_sigmoid(NAN)));

    assert_true(sl_silu(0.0f) == 0.0f && sl_silu(-1000.0f) == 0.0f);
    assert_true(sl_silu(100.0f) == 100.0f && sl_silu(INFINITY) == INFINITY);
    assert_true(isnan(sl_silu(-INFINITY)) && isnan(sl_silu(NAN)));

    assert_int_equal(sl_bits_of_float(sl_softplus(-100.0f)), 0);
    assert_true(sl_softplus(0x1.400002p4f) == 0x1.400002p4f && sl_softplus(1e30f) == 1e30f);
    assert_true(isnan(sl_softplus(NAN)));
}

static void test_rint(void **state)
{
    (void)state;
    for (int i = -2 * 300; i <= 2 * 300; i++) {
        float half = 0.5f * (float)i;
        assert_true(sl_rintf(half) == rintf(half));
        assert_true(sl_rintf(nextafterf(half, 1e9f)) == rintf(nextafterf(half, 1e9f)));
        assert_true(sl_rintf(nextafterf(half, -1e9f)) == rintf(nextafterf(half, -1e9f)));
    }
}

static void test_half_values(void **state)
{
    (void)state;
    for (uint32_t h = 0; h <= 0xFFFF; h++) {
        float got = sl_half_value((uint16_t)h);
        int exponent = (h >> 10) & 31;
        double fraction = (double)(h & 1023);
        double magnitude =
            exponent == 0 ? ldexp(fraction, -24) : ldexp(1024.0 + fraction, exponent - 25);
        assert_true(!signbit(got) == !(h >> 15));
        if (exponent == 31 && fraction != 0.0)
            assert_true(isnan(got));
        else
            assert_true(fabs((double)got) == (exponent == 31 ? (double)INFINITY : magnitude));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exp),
        cmocka_unit_test(test_exp_ends),
        cmocka_unit_test(test_log),
        cmocka_unit_test(test_log1p),
        cmocka_unit_test(test_sincos),
        cmocka_unit_test(test_sincos_ends),
        cmocka_unit_test(test_rint),
        cmocka_unit_test(test_half_values),
        cmocka_unit_test(test_sigmoid_silu_softplus),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
