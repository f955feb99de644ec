/* What a handful of measurements says. */
#ifndef SL_CLI_BENCH_STATS_H
#define SL_CLI_BENCH_STATS_H

#include <stddef.h>

enum { SL_MAX_RUNS = 1000 };

/* Of n values; all 0 when n is. The middle half lies from q1 to q3. */
typedef struct sl_spread {
    size_t n;
    double median, min, max, q1, q3;
} sl_spread;

/* n is at most SL_MAX_RUNS. */
sl_spread sl_spread_of(const double *values, size_t n);

/* How likely two sets of measurements of the same thing would differ at least as much: the
 * two-sided rank-sum test, which asks for no distribution. 1 when either set is empty. */
double sl_rank_test(const double *a, size_t n_a, const double *b, size_t n_b);

/* The smallest value the test can give: above SL_NOISE there are too few measurements to tell. */
double sl_rank_test_limit(size_t n_a, size_t n_b);

/* Below it a difference is taken for one. */
#define SL_NOISE 0.05

#endif
