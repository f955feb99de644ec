/* exp, log and pow in double, for what lies outside the kernels: constants made when a model is
 * opened, the sampler's weights, and the powers of templates. libm's own differ in last places from
 * one version to the next; these are built from operations that IEEE 754 rounds correctly (+ - * /
 * fma) and from moves of bit patterns, so they give the same bits on every machine. They expect the
 * environment of base/fpenv.h.
 *
 * Errors in units of the last place of the exact result: the limits that test_dmath holds, and in
 * brackets the worst of some ten million arguments.
 *
 *     exp   0.65 [0.622], where the result is subnormal 0.82 [0.750]
 *     log   0.501 [0.5000]
 *     pow   0.65 [0.621], where the result is subnormal 0.82 [0.750]
 *
 * exp is quick; log and pow work in pairs of doubles, which is simple and slow. */
#ifndef SL_BASE_DMATH_H
#define SL_BASE_DMATH_H

/* e^x: exactly 1 at 0, infinity where the result would round above the largest double, +0 where it
 * would round below the smallest. NaN for NaN. */
double sl_exp_f64(double x);

/* +0 at 1, -infinity at 0 of either sign, infinity at infinity; NaN below 0 and for NaN. */
double sl_log_f64(double x);

/* x^y for x >= 0, with the special cases of C: 1 where x is 1 or y is 0, whatever the other is; a
 * base of 0 or infinity gives 0 or infinity by the sign of y; -0 counts as +0. A base below 0 gives
 * NaN, also where y is an integer. A power that a double can hold, such as 10^22, is exact. */
double sl_pow_f64(double x, double y);

#endif
