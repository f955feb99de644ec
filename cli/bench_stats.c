/* Order statistics, and the rank-sum test: exact for small sets, by the normal law for large ones.
 */
#include "bench_stats.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"

enum { EXACT_MAX = 20 };

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The value below which a share of the sorted ones lies, linear between two of them. */
static double quantile(const double *sorted, size_t n, double share)
{
    const double place = share * (double)(n - 1);
    const size_t below = (size_t)place;
    if (below + 1 >= n)
        return sorted[n - 1];
    return sorted[below] + (place - (double)below) * (sorted[below + 1] - sorted[below]);
}

sl_spread sl_spread_of(const double *values, size_t n)
{
    double sorted[SL_MAX_RUNS];
    if (n == 0)
        return (sl_spread){0};
    memcpy(sorted, values, n * sizeof *sorted);
    qsort(sorted, n, sizeof *sorted, compare);
    return (sl_spread){
        .n = n,
        .median = quantile(sorted, n, 0.5),
        .min = sorted[0],
        .max = sorted[n - 1],
        .q1 = quantile(sorted, n, 0.25),
        .q3 = quantile(sorted, n, 0.75),
    };
}

/* counts[u]: of all orders of n_a and n_b items, those where u pairs (a, b) have b first. The
 * coefficients of the Gaussian binomial, made by n_a multiplications and divisions of
 * polynomials. */
static void count_orders(size_t n_a, size_t n_b, double counts[EXACT_MAX * EXACT_MAX + 1])
{
    const size_t last = n_a * n_b;
    for (size_t u = 0; u <= last; u++)
        counts[u] = u == 0;
    for (size_t i = 1; i <= n_a; i++) {
        for (size_t u = last; u >= n_b + i; u--)
            counts[u] -= counts[u - (n_b + i)];
        for (size_t u = i; u <= last; u++)
            counts[u] += counts[u - i];
    }
}

static double exact(double smaller, size_t n_a, size_t n_b)
{
    double counts[EXACT_MAX * EXACT_MAX + 1], below = 0, all = 0;
    count_orders(n_a, n_b, counts);
    for (size_t u = 0; u <= n_a * n_b; u++) {
        all += counts[u];
        if ((double)u <= smaller)
            below += counts[u];
    }
    return fmin(1.0, 2.0 * below / all);
}

double sl_rank_test(const double *a, size_t n_a, const double *b, size_t n_b)
{
    if (n_a == 0 || n_b == 0)
        return 1.0;
    double u = 0; /* pairs with b first; equal ones count half */
    for (size_t i = 0; i < n_a; i++) {
        for (size_t j = 0; j < n_b; j++)
            u += a[i] > b[j] ? 1.0 : a[i] < b[j] ? 0.0 : 0.5;
    }
    const double pairs = (double)n_a * (double)n_b;
    const double smaller = fmin(u, pairs - u);
    if (n_a <= EXACT_MAX && n_b <= EXACT_MAX)
        return exact(smaller, n_a, n_b);
    const double deviation = sqrt(pairs * (double)(n_a + n_b + 1) / 12.0);
    return fmin(1.0, erfc((pairs / 2.0 - smaller - 0.5) / (deviation * sqrt(2.0))));
}

double sl_rank_test_limit(size_t n_a, size_t n_b)
{
    if (n_a == 0 || n_b == 0)
        return 1.0;
    return n_a <= EXACT_MAX && n_b <= EXACT_MAX ? exact(0, n_a, n_b) : 0.0;
}
