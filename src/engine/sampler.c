/* Owns the steps from logits to a token. It refuses logits that are not numbers. */
#include "engine/sampler.h"

#include <math.h>
#include <string.h>

#include "base/dmath.h"
#include "base/fpenv.h"
#include "base/mem.h"
#include "engine/ranking.h"
#include "engine/rng.h"

/* exp(-40) < 2^-53 / 26: next to a total of at least 1 such a weight is lost in rounding, so a
 * running sum that reaches it already equals the total. */
static const double negligible = 40.0;

struct sl_sampler {
    sl_sampling sampling;
    size_t n_vocab;
    const uint32_t *banned;   /* borrowed, may be NULL */
    const uint32_t *breakers; /* borrowed, may be NULL */
    sl_penalties penalties;
    sl_ranking ranking;
    float *adjusted; /* [n_vocab] logits after masks, bias and penalties */
    bool blank;      /* all of them are -inf: what a short list begins from */
    double *weights; /* [n_vocab] of the ranked tokens */
    size_t n_left;   /* tokens that the filters have left: the first n_left keys and weights */
    double total;    /* the sum of their weights */
};

sl_status sl_sampler_create(size_t n_vocab, sl_sampler **out, sl_error *err)
{
    *out = NULL;
    if (n_vocab == 0 || n_vocab > INT32_MAX)
        return sl_fail(err, SL_ERR_ARGUMENT, "a sampler for %zu tokens, it must be 1 to %d",
                       n_vocab, INT32_MAX);
    sl_sampler *sampler = sl_alloc_zero(SL_MEM_GENERAL, sizeof *sampler);
    if (!sampler)
        goto no_memory;
    sampler->sampling = sl_sampling_default();
    sampler->n_vocab = n_vocab;
    sampler->adjusted = sl_alloc_array(SL_MEM_SCRATCH, n_vocab, sizeof *sampler->adjusted);
    sampler->weights = sl_alloc_array(SL_MEM_SCRATCH, n_vocab, sizeof *sampler->weights);
    if (!sampler->adjusted || !sampler->weights || !sl_ranking_init(&sampler->ranking, n_vocab) ||
        !sl_penalties_init(&sampler->penalties, n_vocab))
        goto no_memory;
    *out = sampler;
    return SL_OK;

no_memory:
    sl_sampler_destroy(sampler);
    return sl_fail(err, SL_ERR_MEMORY, "no memory for a sampler of %zu tokens", n_vocab);
}

void sl_sampler_destroy(sl_sampler *sampler)
{
    if (!sampler)
        return;
    sl_penalties_free(&sampler->penalties);
    sl_ranking_free(&sampler->ranking);
    sl_free(sampler->adjusted);
    sl_free(sampler->weights);
    sl_free(sampler);
}

sl_status sl_sampler_set(sl_sampler *sampler, const sl_sampling *sampling, sl_error *err)
{
    SL_TRY(sl_sampling_check(sampling, err));
    for (size_t i = 0; i < sampling->n_bias; i++) {
        if ((size_t)sampling->bias[i].id >= sampler->n_vocab)
            return sl_fail(err, SL_ERR_ARGUMENT, "logit_bias names token %d, the last one is %zu",
                           sampling->bias[i].id, sampler->n_vocab - 1);
    }
    SL_TRY(sl_penalties_prepare(&sampler->penalties, sampling, err));
    sampler->sampling = *sampling;
    return SL_OK;
}

void sl_sampler_set_banned(sl_sampler *sampler, const uint32_t *banned)
{
    sampler->banned = banned;
}

void sl_sampler_set_breakers(sl_sampler *sampler, const uint32_t *breakers)
{
    sampler->breakers = breakers;
}

/* ---- adjusting logits ---- */

static sl_status check_logits(const sl_sampler *sampler, const float *logits, size_t n,
                              uint64_t position, sl_error *err)
{
    if (n == 0 || n > sampler->n_vocab)
        return sl_fail(err, SL_ERR_ARGUMENT, "%zu logits for a sampler of %zu tokens", n,
                       sampler->n_vocab);
    for (size_t id = 0; id < n; id++) {
        if (!(logits[id] < INFINITY)) /* true for NaN */
            return sl_fail(err, SL_ERR_NUMERIC, "the logit of token %zu at position %llu is %s", id,
                           (unsigned long long)position, isnan(logits[id]) ? "NaN" : "+inf");
    }
    return SL_OK;
}

static sl_status check_token(int32_t token, size_t n, const char *what, sl_error *err)
{
    if (token >= 0 && (size_t)token < n)
        return SL_OK;
    return sl_fail(err, SL_ERR_ARGUMENT, "the %s token is %d, it must be from 0 to %zu", what,
                   token, n - 1);
}

/* Masks the banned and those that are not allowed; either set may be NULL. */
static void mask(float *adjusted, size_t n, const uint32_t *banned, const uint32_t *allowed)
{
    for (size_t begin = 0; begin < n; begin += 32) {
        const uint32_t out =
            (banned ? banned[begin / 32] : 0) | (allowed ? ~allowed[begin / 32] : 0);
        if (out == 0)
            continue;
        const size_t end = sl_min_size(begin + 32, n);
        for (size_t id = begin; id < end; id++) {
            if ((out >> (id - begin)) & 1)
                adjusted[id] = -INFINITY;
        }
    }
}

static void add_bias(const sl_sampling *sampling, float *adjusted, size_t n)
{
    for (size_t i = 0; i < sampling->n_bias; i++) {
        const sl_logit_bias *entry = &sampling->bias[i];
        if ((size_t)entry->id >= n || adjusted[entry->id] == -INFINITY)
            continue;
        adjusted[entry->id] = sl_finite_logit((double)adjusted[entry->id] + (double)entry->bias);
    }
}

/* The largest logit of a token that can come, its lowest id; n when there is none. */
static size_t find_best(const float *logits, size_t n)
{
    size_t best = n;
    for (size_t id = 0; id < n; id++) {
        if (logits[id] != -INFINITY && (best == n || logits[id] > logits[best]))
            best = id;
    }
    return best;
}

/* ---- filters ---- */

static double sum_of(const double *weights, size_t n)
{
    double sum = 0.0;
    for (size_t i = 0; i < n; i++)
        sum += weights[i];
    return sum;
}

/* The logarithm of the i-th token's weight. */
static double log_weight(const sl_sampler *sampler, size_t i, float best)
{
    const double logit = (double)sampler->adjusted[sl_ranking_id(&sampler->ranking, i)];
    return (logit - (double)best) / (double)sampler->sampling.temperature;
}

/* Moves the tokens [from, from + n) to `to`. */
static void move_tokens(sl_sampler *sampler, size_t to, size_t from, size_t n)
{
    memmove(sampler->weights + to, sampler->weights + from, n * sizeof *sampler->weights);
    memmove(sampler->ranking.keys + to, sampler->ranking.keys + from,
            n * sizeof *sampler->ranking.keys);
}

/* What makes a token typical: a surprise near the expected one. */
typedef struct expectation {
    float best;
    double log_total, surprise;
} expectation;

static double surprise(const sl_sampler *sampler, const expectation *e, size_t i)
{
    return e->log_total - log_weight(sampler, i, e->best);
}

static double distance(const sl_sampler *sampler, const expectation *e, size_t i)
{
    return fabs(surprise(sampler, e, i) - e->surprise);
}

/* Surprise grows along the order, so the distance falls up to some token and rises from there:
 * taking the most typical first eats outwards from that place. Neighbours on the left that are
 * equally typical are taken in order, which is from their far end; where the last of these runs is
 * not needed to its end there is a gap, [gap_begin, gap_end). */
static size_t keep_typical(sl_sampler *sampler, size_t n, float best)
{
    const double *weights = sampler->weights;
    const double total = sum_of(weights, n);
    expectation e = {.best = best, .log_total = sl_log_f64(total)};
    for (size_t i = 0; i < n; i++)
        e.surprise += weights[i] / total * surprise(sampler, &e, i);

    size_t left = 0;
    while (left < n && surprise(sampler, &e, left) < e.surprise)
        left++;
    size_t right = left, gap_begin = left, gap_end = left; /* taken: [left, right) but the gap */
    const double enough = (double)sampler->sampling.typical_p * total;
    double taken = 0.0;
    while (left == right || taken < enough) {
        if (left == 0 && right == n)
            break;
        if (left == 0 ||
            (right < n && distance(sampler, &e, right) < distance(sampler, &e, left - 1))) {
            taken += weights[right++];
            continue;
        }
        gap_end = left;
        const double run = distance(sampler, &e, left - 1);
        while (left > 0 && distance(sampler, &e, left - 1) == run)
            left--;
        gap_begin = left;
        do
            taken += weights[gap_begin++];
        while (gap_begin < gap_end && taken < enough);
    }
    const size_t n_before = gap_begin - left, n_after = right - gap_end;
    move_tokens(sampler, 0, left, n_before);
    move_tokens(sampler, n_before, gap_end, n_after);
    return n_before + n_after;
}

/* How many of the first n tokens top_p and min_p keep; *total is their sum. */
static size_t keep_likely(const sl_sampling *sampling, const double *weights, size_t n,
                          double *total)
{
    size_t n_kept = n;
    if (sampling->top_p < 1.0f) {
        const double enough = (double)sampling->top_p * sum_of(weights, n);
        double before = weights[0];
        for (n_kept = 1; n_kept < n && before < enough; n_kept++)
            before += weights[n_kept];
    }
    const double least = (double)sampling->min_p * weights[0];
    double sum = weights[0];
    size_t i = 1;
    for (; i < n_kept && weights[i] >= least; i++)
        sum += weights[i];
    *total = sum;
    return i;
}

/* ---- the distribution and the draw ---- */

static void leave_one(sl_sampler *sampler, size_t id)
{
    sampler->ranking.keys[0] = (uint64_t)id;
    sampler->weights[0] = 1.0;
    sampler->n_left = 1;
    sampler->total = 1.0;
}

static bool is_greedy(const sl_sampling *sampling)
{
    return sampling->temperature == 0.0f || sampling->top_k == 1;
}

static bool has_typical(const sl_sampling *sampling)
{
    return sampling->typical_p > 0.0f && sampling->typical_p < 1.0f;
}

static size_t most_left(const sl_sampling *sampling, size_t n)
{
    return sampling->top_k > 0 ? sl_min_size(sampling->top_k, n) : n;
}

/* Below this no token is ranked. */
static double lowest_logit(const sl_sampling *sampling, float best)
{
    return (double)best - negligible * (double)sampling->temperature;
}

/* Weighs the first n tokens of the order and filters them. */
static void leave_likely(sl_sampler *sampler, size_t n, float best)
{
    const sl_sampling *sampling = &sampler->sampling;
    for (size_t i = 0; i < n; i++)
        sampler->weights[i] = sl_exp_f64(log_weight(sampler, i, best));
    if (has_typical(sampling))
        n = keep_typical(sampler, n, best);
    sampler->n_left = keep_likely(sampling, sampler->weights, n, &sampler->total);
}

static void leave_filtered(sl_sampler *sampler, size_t n, float best)
{
    const sl_sampling *sampling = &sampler->sampling;
    const size_t limit = most_left(sampling, n);
    const size_t n_ranked = sl_ranking_sort(&sampler->ranking, sampler->adjusted, n,
                                            lowest_logit(sampling, best), limit);
    leave_likely(sampler, sl_min_size(n_ranked, limit), best);
}

static sl_status find_distribution(sl_sampler *sampler, const float *logits, size_t n,
                                   const sl_sample_context *context, sl_error *err)
{
    const sl_sampling *sampling = &sampler->sampling;
    sampler->n_left = 0;
    SL_TRY(sl_check_reserved(context->reserved, SL_COUNTOF(context->reserved), "sl_sample_context",
                             err));
    SL_TRY(check_logits(sampler, logits, n, context->position, err));
    if (context->forced) {
        SL_TRY(check_token(*context->forced, n, "forced", err));
        leave_one(sampler, (size_t)*context->forced);
        return SL_OK;
    }
    float *adjusted = sampler->adjusted;
    sampler->blank = false;
    memcpy(adjusted, logits, n * sizeof *adjusted);
    mask(adjusted, n, sampler->banned, context->allowed);
    add_bias(sampling, adjusted, n);
    SL_TRY(sl_penalties_apply(&sampler->penalties, sampling, &context->history, sampler->breakers,
                              adjusted, n, err));
    const size_t best = find_best(adjusted, n);
    if (best == n)
        return sl_fail(err, SL_ERR_NUMERIC,
                       "no token is left at position %llu: every one of %zu is masked or banned",
                       (unsigned long long)context->position, n);
    if (is_greedy(sampling))
        leave_one(sampler, best);
    else
        leave_filtered(sampler, n, adjusted[best]);
    return SL_OK;
}

/* A token of those that are left. */
static int32_t pick(const sl_sampler *sampler, const sl_sample_context *context)
{
    const double u = sl_rng_uniform(sampler->sampling.seed, context->position, 0);
    const double target = u * sampler->total;
    size_t drawn = 0;
    for (double sum = sampler->weights[0]; sum <= target && drawn + 1 < sampler->n_left;)
        sum += sampler->weights[++drawn];
    return (int32_t)sl_ranking_id(&sampler->ranking, drawn);
}

static sl_status draw(sl_sampler *sampler, const float *logits, size_t n,
                      const sl_sample_context *context, int32_t *token, sl_error *err)
{
    SL_TRY(find_distribution(sampler, logits, n, context, err));
    *token = pick(sampler, context);
    return SL_OK;
}

sl_status sl_sample_next(sl_sampler *sampler, const float *logits, size_t n,
                         const sl_sample_context *context, int32_t *token, sl_error *err)
{
    sl_fpenv env = sl_fpenv_enter();
    sl_status status = draw(sampler, logits, n, context, token, err);
    sl_fpenv_leave(env);
    return status;
}

sl_status sl_sample(sl_sampler *sampler, const float *logits, size_t n, uint64_t position,
                    int32_t *token, sl_error *err)
{
    if (sl_penalties_needed(&sampler->sampling))
        return sl_fail(err, SL_ERR_ARGUMENT, "penalties need the tokens so far");
    const sl_sample_context context = {.position = position};
    return sl_sample_next(sampler, logits, n, &context, token, err);
}

/* ---- from a short list ---- */

/* Whether no setting raises a logit: a token that is not listed then stays behind the listed ones
 * that are in front of the list's last key. */
static bool only_lower(const sl_sampling *sampling)
{
    for (size_t i = 0; i < sampling->n_bias; i++) {
        if (sampling->bias[i].bias > 0.0f)
            return false;
    }
    return (sampling->repetition_penalty == 0.0f || sampling->repetition_penalty >= 1.0f) &&
           sampling->presence_penalty >= 0.0f && sampling->frequency_penalty >= 0.0f;
}

static bool is_out(const uint32_t *banned, const uint32_t *allowed, size_t id)
{
    const uint32_t out = (banned ? banned[id / 32] : 0) | (allowed ? ~allowed[id / 32] : 0);
    return (out >> id % 32) & 1;
}

/* The list's logits in their places, all others -inf, which no step changes; then the steps. */
static sl_status adjust_list(sl_sampler *sampler, const sl_shortlist *list, size_t n,
                             const sl_sample_context *context, sl_error *err)
{
    float *adjusted = sampler->adjusted;
    for (size_t id = 0; id < sampler->n_vocab && !sampler->blank; id++)
        adjusted[id] = -INFINITY;
    sampler->blank = false;
    for (size_t i = 0; i < list->n; i++) {
        const size_t id = (size_t)(list->keys[i] & UINT32_MAX);
        if (!is_out(sampler->banned, context->allowed, id))
            adjusted[id] = sl_ranking_logit(list->keys[i]);
    }
    add_bias(&sampler->sampling, adjusted, n);
    return sl_penalties_apply(&sampler->penalties, &sampler->sampling, &context->history,
                              sampler->breakers, adjusted, n, err);
}

static void blank_list(sl_sampler *sampler, const sl_shortlist *list)
{
    for (size_t i = 0; i < list->n; i++)
        sampler->adjusted[list->keys[i] & UINT32_MAX] = -INFINITY;
    sampler->blank = true;
}

/* Puts the adjusted tokens in order; how many of them certainly come first of all n. */
static size_t rank_list(sl_sampler *sampler, const sl_shortlist *list, size_t n)
{
    const uint64_t last = list->n < n ? list->keys[list->n - 1] : UINT64_MAX;
    size_t n_ranked = 0;
    for (size_t i = 0; i < list->n; i++) {
        const size_t id = (size_t)(list->keys[i] & UINT32_MAX);
        if (sampler->adjusted[id] != -INFINITY)
            sl_ranking_insert(&sampler->ranking, n_ranked++,
                              sl_ranking_key(sampler->adjusted[id], id));
    }
    while (n_ranked > 0 && sampler->ranking.keys[n_ranked - 1] > last)
        n_ranked--;
    return n_ranked;
}

/* The distribution from the first n_sure tokens of the order, behind which others may follow unless
 * they are all there are; false when those could matter. */
static bool list_decides(sl_sampler *sampler, size_t n_sure, size_t n, bool all)
{
    const sl_sampling *sampling = &sampler->sampling;
    if (n_sure == 0)
        return false;
    const size_t first = sl_ranking_id(&sampler->ranking, 0);
    if (is_greedy(sampling)) {
        leave_one(sampler, first);
        return true;
    }
    const float best = sampler->adjusted[first];
    const size_t limit = sl_min_size(most_left(sampling, n), n_sure);
    const double lowest = lowest_logit(sampling, best);
    size_t n_left = 1;
    while (n_left < limit &&
           (double)sampler->adjusted[sl_ranking_id(&sampler->ranking, n_left)] >= lowest)
        n_left++;
    const bool known = all || n_left < n_sure || n_left == most_left(sampling, n);
    if (!known && (sampling->top_p < 1.0f || has_typical(sampling)))
        return false; /* the sum of all weights is not known */
    leave_likely(sampler, n_left, best);
    return known || sampler->n_left < n_left; /* min_p ended among them */
}

static sl_status draw_from_list(sl_sampler *sampler, const sl_shortlist *list, size_t n,
                                const sl_sample_context *context, int32_t *token, bool *decided,
                                sl_error *err)
{
    sampler->n_left = 0;
    *decided = false;
    SL_TRY(sl_check_reserved(context->reserved, SL_COUNTOF(context->reserved), "sl_sample_context",
                             err));
    if (context->forced) {
        SL_TRY(check_token(*context->forced, n, "forced", err));
        leave_one(sampler, (size_t)*context->forced);
        *decided = true;
    } else if (list->n > 0 && n <= sampler->n_vocab && only_lower(&sampler->sampling)) {
        const sl_status status = adjust_list(sampler, list, n, context, err);
        if (status == SL_OK)
            *decided = list_decides(sampler, rank_list(sampler, list, n), n, list->n == n);
        blank_list(sampler, list);
        SL_TRY(status);
    }
    if (*decided)
        *token = pick(sampler, context);
    else
        sampler->n_left = 0;
    return SL_OK;
}

sl_status sl_sample_shortlist(sl_sampler *sampler, const sl_shortlist *list, size_t n,
                              const sl_sample_context *context, int32_t *token, bool *decided,
                              sl_error *err)
{
    sl_fpenv env = sl_fpenv_enter();
    sl_status status = draw_from_list(sampler, list, n, context, token, decided, err);
    sl_fpenv_leave(env);
    return status;
}

size_t sl_sampler_n_candidates(const sl_sampler *sampler)
{
    return sampler->n_left;
}

sl_candidate sl_sampler_candidate(const sl_sampler *sampler, size_t i)
{
    return (sl_candidate){.id = (int32_t)sl_ranking_id(&sampler->ranking, i),
                          .p = sampler->weights[i] / sampler->total};
}

/* ---- log probabilities ---- */

static sl_status find_logprobs(sl_sampler *sampler, const float *logits, size_t n,
                               uint64_t position, int32_t token, double *logprob, sl_logprob *top,
                               size_t max_top, size_t *n_top, sl_error *err)
{
    sampler->n_left = 0;
    SL_TRY(check_logits(sampler, logits, n, position, err));
    SL_TRY(check_token(token, n, "chosen", err));
    const sl_ranking *ranking = &sampler->ranking;
    const size_t n_ranked = sl_ranking_sort(&sampler->ranking, logits, n, -INFINITY, n);
    if (n_ranked == 0)
        return sl_fail(err, SL_ERR_NUMERIC, "every one of %zu logits at position %llu is -inf", n,
                       (unsigned long long)position);
    const double best = (double)logits[sl_ranking_id(ranking, 0)];
    double total = 0.0;
    for (size_t i = 0; i < n_ranked; i++) {
        const double below = (double)logits[sl_ranking_id(ranking, i)] - best;
        if (below < -negligible)
            break;
        total += sl_exp_f64(below);
    }
    const double log_total = sl_log_f64(total);
    *logprob = (double)logits[token] - best - log_total;
    const size_t n_wanted = sl_min_size(max_top, n_ranked);
    for (size_t i = 0; i < n_wanted; i++) {
        const size_t id = sl_ranking_id(ranking, i);
        top[i] = (sl_logprob){(int32_t)id, (double)logits[id] - best - log_total};
    }
    *n_top = n_wanted;
    return SL_OK;
}

sl_status sl_sampler_logprobs(sl_sampler *sampler, const float *logits, size_t n, uint64_t position,
                              int32_t token, double *logprob, sl_logprob *top, size_t max_top,
                              size_t *n_top, sl_error *err)
{
    sl_fpenv env = sl_fpenv_enter();
    sl_status status =
        find_logprobs(sampler, logits, n, position, token, logprob, top, max_top, n_top, err);
    sl_fpenv_leave(env);
    return status;
}
