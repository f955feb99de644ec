/* The arithmetic of `sluice parity`: diagnostics only, so the C library's exp and log will do. */
#include "parity_metrics.h"

#include <math.h>

sl_row_distance sl_row_compare(const float *golden, const float *ours, size_t n)
{
    double dot = 0, golden2 = 0, ours2 = 0, max_abs = 0;
    for (size_t i = 0; i < n; i++) {
        const double g = (double)golden[i], o = (double)ours[i];
        const double difference = fabs(o - g);
        if (g == o)
            ; /* also two equal infinities */
        else if (!(difference < INFINITY))
            max_abs = INFINITY;
        else if (difference > max_abs)
            max_abs = difference;
        dot += g * o;
        golden2 += g * g;
        ours2 += o * o;
    }
    sl_row_distance distance = {.cosine = 1, .max_abs = max_abs, .norm_ratio = 1};
    if (!(golden2 == 0 && ours2 == 0)) {
        const double norms = sqrt(golden2) * sqrt(ours2);
        distance.cosine = norms > 0 ? dot / norms : 0;
        distance.norm_ratio = sqrt(ours2) / sqrt(golden2);
    }
    return distance;
}

static size_t index_of_largest(const float *x, size_t n)
{
    size_t best = 0;
    for (size_t i = 1; i < n; i++) {
        if (x[i] > x[best])
            best = i;
    }
    return best;
}

/* log(sum exp x) */
static double log_sum_exp(const float *x, size_t n)
{
    const double largest = (double)x[index_of_largest(x, n)];
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += exp((double)x[i] - largest);
    return largest + log(sum);
}

static double margin_of(const float *x, size_t n, size_t top)
{
    double second = -INFINITY;
    for (size_t i = 0; i < n; i++) {
        if (i != top && (double)x[i] > second)
            second = (double)x[i];
    }
    return (double)x[top] - second;
}

sl_logits_distance sl_logits_compare(const float *golden, const float *ours, size_t n)
{
    sl_logits_distance distance = {
        .golden_top = index_of_largest(golden, n),
        .our_top = index_of_largest(ours, n),
    };
    distance.margin = margin_of(golden, n, distance.golden_top);
    const double golden_total = log_sum_exp(golden, n), our_total = log_sum_exp(ours, n);
    double kl = 0;
    for (size_t i = 0; i < n; i++) {
        const double log_p = (double)golden[i] - golden_total;
        const double log_q = (double)ours[i] - our_total;
        const double p = exp(log_p);
        if (p != 0) /* or not a number */
            kl += p * (log_p - log_q);
    }
    /* Equal rows may give a sum of -1e-17. */
    distance.kl = isnan(kl) ? INFINITY : fmax(kl, 0);
    return distance;
}

void sl_parity_add(sl_parity_summary *summary, const sl_row_distance *row,
                   const sl_logits_distance *logits)
{
    const size_t i = summary->n_rows++;
    if (i == 0) {
        summary->min_cosine = row->cosine;
        summary->min_norm_ratio = summary->max_norm_ratio = row->norm_ratio;
    }
    /* A NaN anywhere stays, so that it cannot look like agreement. */
    if (isnan(row->cosine) || row->cosine < summary->min_cosine)
        summary->min_cosine = row->cosine;
    if (isnan(row->norm_ratio) || row->norm_ratio < summary->min_norm_ratio)
        summary->min_norm_ratio = row->norm_ratio;
    if (isnan(row->norm_ratio) || row->norm_ratio > summary->max_norm_ratio)
        summary->max_norm_ratio = row->norm_ratio;
    if (row->max_abs > summary->max_abs) {
        summary->max_abs = row->max_abs;
        summary->max_abs_row = i;
    }
    if (!logits)
        return;
    summary->has_logits = true;
    summary->kl_sum += logits->kl;
    summary->max_kl = fmax(summary->max_kl, logits->kl);
    if (logits->golden_top == logits->our_top) {
        summary->n_same_top++;
    } else if (!summary->diverged) {
        summary->diverged = true;
        summary->first_divergent = i;
        summary->divergent_golden = logits->golden_top;
        summary->divergent_ours = logits->our_top;
        summary->divergent_margin = logits->margin;
    }
}

double sl_parity_mean_kl(const sl_parity_summary *summary)
{
    return summary->n_rows > 0 ? summary->kl_sum / (double)summary->n_rows : 0;
}
