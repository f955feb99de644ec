/* Owns the double functions that do not come from libm. Two ideas carry them: e^x is a polynomial
 * after x = k ln 2 + r, and log is a series in pairs of doubles (106 bits), so that y * log(x) is
 * still good to the last bit of x^y when it is 700. */
#include "base/dmath.h"

#include <float.h>
#include <math.h>

#include "base/bits.h"

#ifdef __FAST_MATH__
#error "one rounding per operation: this file cannot be compiled with fast math"
#endif

enum { EXPONENT_BIAS = 1023, FRACTION_BITS = 52 };

/* ---- exp ---- */

/* 2^k of a normal double. */
static double power_of_two(int k)
{
    return sl_double_of_bits((uint64_t)(k + EXPONENT_BIAS) << FRACTION_BITS);
}

/* e^(high + low) for -746 <= high <= 710 and a low below the last place of high.
 *
 * |r| <= 0.35, where the Taylor polynomial of degree 14 leaves less than 2^-62. r is kept in two
 * parts, and so is 1 + r: what rounds before the last addition is below 0.15
 * units of the last place. */
static double exp_of_sum(double high, double low)
{
    static const double log2_e = 0x1.71547652b82fep+0;
    static const double ln2_high = 0x1.62e42feep-1; /* 32 bits, so that k * ln2_high is exact */
    static const double ln2_low = 0x1.a39ef35793c76p-33;
    static const double inverse_factorial[] = {
        0x1p+0, /* 0! */
        0x1p+0,
        0x1p-1,
        0x1.5555555555555p-3,
        0x1.5555555555555p-5,
        0x1.1111111111111p-7,
        0x1.6c16c16c16c17p-10,
        0x1.a01a01a01a01ap-13,
        0x1.a01a01a01a01ap-16,
        0x1.71de3a556c734p-19,
        0x1.27e4fb7789f5cp-22,
        0x1.ae64567f544e4p-26,
        0x1.1eed8eff8d898p-29,
        0x1.6124613a86d09p-33,
        0x1.93974a8c07c9dp-37,
    };
    const int k = (int)(high * log2_e + (high < 0.0 ? -0.5 : 0.5));
    const double exact = high - (double)k * ln2_high, rest = low - (double)k * ln2_low;
    const double r = exact + rest, r_low = (exact - r) + rest;
    double tail = inverse_factorial[14];
    for (int i = 13; i >= 2; i--)
        tail = tail * r + inverse_factorial[i];
    const double sum = 1.0 + r, sum_low = (1.0 - sum) + r;
    const double p = sum + (sum_low + (r_low + r_low * r) + r * r * tail);
    /* In two steps, because 2^k alone may be no normal number. Only the second can round. */
    const int half = k / 2;
    return p * power_of_two(half) * power_of_two(k - half);
}

double sl_exp_f64(double x)
{
    if (isnan(x))
        return x;
    if (x > 710.0)
        return INFINITY;
    if (x < -746.0)
        return 0.0;
    return exp_of_sum(x, 0.0);
}

/* ---- pairs: high + low, with low at most half a unit in the last place of high ---- */

typedef struct pair {
    double high, low;
} pair;

/* a + b where |a| >= |b| or a is 0. */
static pair normalise(double a, double b)
{
    const double high = a + b;
    return (pair){high, (a - high) + b};
}

/* a + b, exactly. */
static pair sum_of(double a, double b)
{
    const double high = a + b, b_part = high - a;
    return (pair){high, (a - (high - b_part)) + (b - b_part)};
}

static pair add(pair a, pair b)
{
    const pair sum = sum_of(a.high, b.high);
    return normalise(sum.high, sum.low + (a.low + b.low));
}

static pair multiply(pair a, pair b)
{
    const double high = a.high * b.high;
    return normalise(high, fma(a.high, b.high, -high) + (a.high * b.low + a.low * b.high));
}

static pair divide(pair a, pair b)
{
    const double q = a.high / b.high;
    const double left = fma(-q, b.high, a.high) + (a.low - q * b.low);
    return normalise(q, left / b.high);
}

/* ---- log ---- */

/* log(x) of a positive finite x, to about 2^-80 of the result.
 *
 * x = 2^e * m with m around 1, and log m = 2 artanh(s) = 2 (s + s^3/3 + s^5/5 + ...) for
 * s = (m - 1) / (m + 1). |s| < 0.172: the first term left out is s^32 / 33 < 2^-86 of the sum. */
static pair log_of(double x)
{
    static const pair ln2 = {0x1.62e42fefa39efp-1, 0x1.abc9e3b39803fp-56};
    static const double sqrt2 = 0x1.6a09e667f3bcdp+0;
    static const uint64_t fraction = ((uint64_t)1 << FRACTION_BITS) - 1;
    int e = -EXPONENT_BIAS;
    if (x < DBL_MIN) {
        x *= 0x1p54;
        e -= 54;
    }
    e += (int)(sl_bits_of_double(x) >> FRACTION_BITS);
    double m = sl_double_of_bits((sl_bits_of_double(x) & fraction) | sl_bits_of_double(1.0));
    if (m > sqrt2) {
        m *= 0.5;
        e++;
    }
    const pair s = divide((pair){m - 1.0, 0.0}, sum_of(m, 1.0)); /* m - 1 is exact */
    const pair square = multiply(s, s);
    pair series = {0.0, 0.0};
    for (int n = 31; n >= 1; n -= 2)
        series = add(multiply(series, square), divide((pair){1.0, 0.0}, (pair){n, 0.0}));
    series = multiply(series, s);
    return add(multiply((pair){e, 0.0}, ln2), (pair){2.0 * series.high, 2.0 * series.low});
}

double sl_log_f64(double x)
{
    if (isnan(x) || x < 0.0)
        return NAN;
    if (x == 0.0)
        return -INFINITY;
    if (x == INFINITY)
        return INFINITY;
    return log_of(x).high;
}

/* ---- pow ---- */

double sl_pow_f64(double x, double y)
{
    if (x == 1.0 || y == 0.0)
        return 1.0;
    if (isnan(x) || isnan(y) || x < 0.0)
        return NAN;
    if (x == 0.0 || x == INFINITY)
        return (x == 0.0) == (y > 0.0) ? 0.0 : INFINITY;
    const pair log_x = log_of(x);
    const double high = y * log_x.high;
    if (high > 710.0)
        return INFINITY;
    if (high < -746.0)
        return 0.0;
    return exp_of_sum(high, fma(y, log_x.high, -high) + y * log_x.low);
}
