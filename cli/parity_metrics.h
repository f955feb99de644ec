/* How far two sets of rows lie apart. Pure functions on float arrays; all sums are in double. */
#ifndef SL_CLI_PARITY_METRICS_H
#define SL_CLI_PARITY_METRICS_H

#include "base/base.h"

/* One row against its reference ("golden"). A value that is not finite, on either side and not the
 * same on both, makes max_abs infinite. */
typedef struct sl_row_distance {
    double cosine;     /* 1 when both rows are zero, 0 when one is */
    double max_abs;    /* largest |ours - golden| */
    double norm_ratio; /* |ours| / |golden|; 1 when both are zero */
} sl_row_distance;
sl_row_distance sl_row_compare(const float *golden, const float *ours, size_t n);

/* One row of logits as distributions. Ties go to the lowest index, as greedy sampling does. */
typedef struct sl_logits_distance {
    double kl;         /* KL(softmax(golden) || softmax(ours)) in nats; infinite when not finite */
    size_t golden_top; /* argmax of the reference */
    size_t our_top;    /* argmax of ours */
    double margin;     /* the reference's largest logit minus its second largest */
} sl_logits_distance;
sl_logits_distance sl_logits_compare(const float *golden, const float *ours, size_t n);

/* What many rows have in common. Zero-initialise, then add rows in order. */
typedef struct sl_parity_summary {
    size_t n_rows;
    double min_cosine;
    double max_abs;
    size_t max_abs_row;
    double min_norm_ratio, max_norm_ratio;
    /* logits only */
    bool has_logits;
    double kl_sum, max_kl;
    size_t n_same_top;
    bool diverged; /* some row has another argmax */
    size_t first_divergent;
    size_t divergent_golden, divergent_ours; /* the two choices there */
    double divergent_margin;
} sl_parity_summary;

void sl_parity_add(sl_parity_summary *summary, const sl_row_distance *row,
                   const sl_logits_distance *logits /* or NULL */);
double sl_parity_mean_kl(const sl_parity_summary *summary);

#endif
