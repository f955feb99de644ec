/* Owns the table of counts and the search for repeated sequences. Every penalty walks its part of
 * the history twice: to fill the table, and to apply and clear it, so that the cost is that of the
 * history and never that of the vocabulary. */
#include "engine/penalties.h"

#include <float.h>
#include <math.h>

#include "base/dmath.h"
#include "base/mem.h"

static const float default_dry_base = 1.75f;
enum { DEFAULT_DRY_ALLOWED_LENGTH = 2 };

bool sl_penalties_init(sl_penalties *penalties, size_t n_vocab)
{
    penalties->n_vocab = n_vocab;
    penalties->counts = sl_alloc_array(SL_MEM_SCRATCH, n_vocab, sizeof *penalties->counts);
    return penalties->counts;
}

void sl_penalties_free(sl_penalties *penalties)
{
    sl_free(penalties->counts);
    sl_free(penalties->spans);
    *penalties = (sl_penalties){0};
}

static size_t dry_window(const sl_sampling *sampling)
{
    return sampling->dry_window > 0 ? sampling->dry_window : SL_DRY_MAX_WINDOW;
}

sl_status sl_penalties_prepare(sl_penalties *penalties, const sl_sampling *sampling, sl_error *err)
{
    const size_t n_spans = sampling->dry_multiplier > 0.0f ? dry_window(sampling) : 0;
    if (n_spans <= penalties->n_spans)
        return SL_OK;
    uint32_t *spans = sl_alloc_array(SL_MEM_SCRATCH, n_spans, sizeof *spans);
    if (!spans)
        return sl_fail(err, SL_ERR_MEMORY, "no memory for a dry_window of %zu tokens", n_spans);
    sl_free(penalties->spans);
    penalties->spans = spans;
    penalties->n_spans = n_spans;
    return SL_OK;
}

float sl_finite_logit(double value)
{
    if (value > (double)FLT_MAX)
        return FLT_MAX;
    if (value < -(double)FLT_MAX)
        return -FLT_MAX;
    return (float)value;
}

static void subtract(float *logit, double penalty)
{
    if (*logit != -INFINITY)
        *logit = sl_finite_logit((double)*logit - penalty);
}

/* ---- repetition, presence, frequency ---- */

static void penalise_repetition(sl_penalties *penalties, double penalty, const int32_t *tokens,
                                size_t first, size_t end, float *logits)
{
    uint32_t *seen = penalties->counts;
    for (size_t i = first; i < end; i++)
        seen[tokens[i]] = 1;
    for (size_t i = first; i < end; i++) {
        if (seen[tokens[i]] == 0)
            continue;
        seen[tokens[i]] = 0;
        float *logit = &logits[tokens[i]];
        if (*logit == -INFINITY)
            continue;
        const double value = (double)*logit;
        *logit = sl_finite_logit(value > 0.0 ? value / penalty : value * penalty);
    }
}

static void penalise_presence(sl_penalties *penalties, const sl_sampling *sampling,
                              const int32_t *tokens, size_t first, size_t end, float *logits)
{
    uint32_t *counts = penalties->counts;
    for (size_t i = first; i < end; i++)
        counts[tokens[i]]++;
    for (size_t i = first; i < end; i++) {
        const uint32_t count = counts[tokens[i]];
        if (count == 0)
            continue;
        counts[tokens[i]] = 0;
        subtract(&logits[tokens[i]], (double)sampling->frequency_penalty * (double)count +
                                         (double)sampling->presence_penalty);
    }
}

/* ---- loop breaking ---- */

static bool is_breaker(const uint32_t *breakers, int32_t token)
{
    return breakers && ((breakers[token / 32] >> (token % 32)) & 1);
}

/* spans[k], for 0 < k < n: how many tokens before tokens[n - k] equal the last ones of all, one by
 * one going back; at most `longest`. This is the Z function of the reversed tokens: [begin, end) is
 * the rightmost stretch known to repeat the beginning, and whatever lies in it need not be compared
 * again, so that all of it takes O(n). */
static void find_spans(uint32_t *spans, const int32_t *tokens, size_t n, size_t longest)
{
    size_t begin = 0, end = 0;
    for (size_t k = 1; k < n; k++) {
        size_t span = k < end ? sl_min_size(spans[k - begin], end - k) : 0;
        while (span < longest && k + span < n && tokens[n - 1 - span] == tokens[n - 1 - k - span])
            span++;
        if (k + span > end) {
            begin = k;
            end = k + span;
        }
        spans[k] = (uint32_t)span;
    }
}

static void break_loops(sl_penalties *penalties, const sl_sampling *sampling, const int32_t *tokens,
                        size_t n, const uint32_t *breakers, float *logits)
{
    size_t longest = 0; /* tokens since the last breaker: no repetition reaches across it */
    while (longest < n && !is_breaker(breakers, tokens[n - 1 - longest]))
        longest++;
    const size_t allowed = sampling->dry_allowed_length > 0 ? sampling->dry_allowed_length
                                                            : DEFAULT_DRY_ALLOWED_LENGTH;
    if (longest < allowed)
        return;
    find_spans(penalties->spans, tokens, n, longest);

    uint32_t *spans = penalties->counts; /* by token: the longest it would continue */
    for (size_t k = 1; k < n; k++) {
        const int32_t next = tokens[n - k];
        const uint32_t span = penalties->spans[k];
        if (span >= allowed && span > spans[next] && !is_breaker(breakers, next))
            spans[next] = span;
    }
    const double base = (double)(sampling->dry_base > 0.0f ? sampling->dry_base : default_dry_base);
    for (size_t k = 1; k < n; k++) {
        const int32_t next = tokens[n - k];
        if (spans[next] == 0)
            continue;
        /* A power may be infinite; the logit then is the lowest there is. */
        const double power = sl_pow_f64(base, (double)(spans[next] - allowed));
        subtract(&logits[next], (double)sampling->dry_multiplier * power);
        spans[next] = 0;
    }
}

/* ---- all of them ---- */

static bool has_repetition(const sl_sampling *sampling)
{
    return sampling->repetition_penalty != 0.0f && sampling->repetition_penalty != 1.0f;
}

static bool has_counts(const sl_sampling *sampling)
{
    return sampling->presence_penalty != 0.0f || sampling->frequency_penalty != 0.0f;
}

bool sl_penalties_needed(const sl_sampling *sampling)
{
    return has_repetition(sampling) || has_counts(sampling) || sampling->dry_multiplier > 0.0f;
}

static sl_status check_history(const sl_history *history, size_t first, size_t n, sl_error *err)
{
    for (size_t i = first; i < history->n_tokens; i++) {
        const int32_t token = history->tokens[i];
        if (token < 0 || (size_t)token >= n)
            return sl_fail(err, SL_ERR_ARGUMENT,
                           "token %zu of the history is %d, it must be from 0 to %zu", i, token,
                           n - 1);
    }
    return SL_OK;
}

sl_status sl_penalties_apply(sl_penalties *penalties, const sl_sampling *sampling,
                             const sl_history *history, const uint32_t *breakers, float *logits,
                             size_t n, sl_error *err)
{
    if (history->n_prompt > history->n_tokens)
        return sl_fail(err, SL_ERR_ARGUMENT, "a history of %zu tokens with a prompt of %zu",
                       history->n_tokens, history->n_prompt);
    const int32_t *tokens = history->tokens;
    const size_t n_tokens = history->n_tokens;
    const bool repeats = has_repetition(sampling), counts = has_counts(sampling);
    const bool loops = sampling->dry_multiplier > 0.0f;
    size_t first = 0, dry_first = n_tokens;
    if (!repeats && !counts)
        first = n_tokens;
    else if (sampling->penalty_window > 0)
        first = n_tokens - sl_min_size(sampling->penalty_window, n_tokens);
    if (loops)
        dry_first = n_tokens - sl_min_size(dry_window(sampling), n_tokens);
    SL_TRY(check_history(history, sl_min_size(first, dry_first), n, err));

    if (repeats)
        penalise_repetition(penalties, (double)sampling->repetition_penalty, tokens, first,
                            n_tokens, logits);
    if (counts)
        penalise_presence(penalties, sampling, tokens, sl_max_size(first, history->n_prompt),
                          n_tokens, logits);
    if (loops && dry_first < n_tokens)
        break_loops(penalties, sampling, tokens + dry_first, n_tokens - dry_first, breakers,
                    logits);
    return SL_OK;
}
