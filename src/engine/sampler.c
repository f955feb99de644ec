/* Owns the order of candidate tokens and the draw. It refuses logits that are not numbers.
 *
 * A token is one 64-bit key: the logit's bits, mapped so that unsigned order is descending value,
 * above the id. Only keys that can matter are sorted: those in the buckets that hold the first
 * top_k, and those whose weight can change a sum in double. Leaving out the others gives the same
 * token as sorting everything (see `gather`). */
#include "engine/sampler.h"

#include <math.h>
#include <string.h>

#include "base/dmath.h"
#include "base/mem.h"
#include "engine/rng.h"

enum {
    DIGIT_BITS = 11, /* three passes over the 32 bits of a logit */
    DIGITS = 1 << DIGIT_BITS,
    KEY_SHIFT = 32, /* a key's value part; its top digit is the bucket of a logit */
    TOP_SHIFT = 64 - DIGIT_BITS
};

/* exp(-40) < 2^-53 / 26: next to a total of at least 1 such a weight is lost in rounding. */
static const double negligible = 40.0;

struct sl_sampler {
    sl_sampling sampling;
    size_t n_vocab;
    const uint32_t *banned; /* borrowed, may be NULL */
    uint64_t *keys;         /* [n_vocab] candidates, sorted in place */
    uint64_t *spare;        /* [n_vocab] the other side of a sorting pass */
    double *weights;        /* [n_vocab] of the sorted candidates */
    uint32_t counts[DIGITS];
};

sl_sampling sl_sampling_default(void)
{
    return (sl_sampling){.temperature = 0.0f, .top_k = 0, .top_p = 1.0f, .min_p = 0.0f, .seed = 0};
}

static sl_status check_fraction(const char *name, float value, sl_error *err)
{
    if (value >= 0.0f && value <= 1.0f) /* false for NaN */
        return SL_OK;
    return sl_fail(err, SL_ERR_ARGUMENT, "%s is %g, it must be from 0 to 1", name, (double)value);
}

sl_status sl_sampling_check(const sl_sampling *sampling, sl_error *err)
{
    if (!(sampling->temperature >= 0.0f && sampling->temperature < INFINITY))
        return sl_fail(err, SL_ERR_ARGUMENT, "temperature is %g, it must be 0 or more and finite",
                       (double)sampling->temperature);
    SL_TRY(check_fraction("top_p", sampling->top_p, err));
    SL_TRY(check_fraction("min_p", sampling->min_p, err));
    return SL_OK;
}

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
    sampler->keys = sl_alloc_array(SL_MEM_SCRATCH, n_vocab, sizeof *sampler->keys);
    sampler->spare = sl_alloc_array(SL_MEM_SCRATCH, n_vocab, sizeof *sampler->spare);
    sampler->weights = sl_alloc_array(SL_MEM_SCRATCH, n_vocab, sizeof *sampler->weights);
    if (!sampler->keys || !sampler->spare || !sampler->weights)
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
    sl_free(sampler->keys);
    sl_free(sampler->spare);
    sl_free(sampler->weights);
    sl_free(sampler);
}

sl_status sl_sampler_set(sl_sampler *sampler, const sl_sampling *sampling, sl_error *err)
{
    SL_TRY(sl_sampling_check(sampling, err));
    sampler->sampling = *sampling;
    return SL_OK;
}

void sl_sampler_set_banned(sl_sampler *sampler, const uint32_t *banned)
{
    sampler->banned = banned;
}

static bool is_banned(const sl_sampler *sampler, size_t id)
{
    return sampler->banned && ((sampler->banned[id / 32] >> (id % 32)) & 1);
}

/* The largest logit that may be chosen, its lowest id first; refuses NaN and +inf. */
static sl_status find_best(const sl_sampler *sampler, const float *logits, size_t n,
                           uint64_t position, size_t *best, sl_error *err)
{
    bool found = false;
    *best = 0;
    for (size_t id = 0; id < n; id++) {
        if (!(logits[id] < INFINITY)) /* true for NaN */
            return sl_fail(err, SL_ERR_NUMERIC, "the logit of token %zu at position %llu is %s", id,
                           (unsigned long long)position, isnan(logits[id]) ? "NaN" : "+inf");
        if (logits[id] == -INFINITY || is_banned(sampler, id))
            continue;
        if (!found || logits[id] > logits[*best])
            *best = id;
        found = true;
    }
    if (!found)
        return sl_fail(err, SL_ERR_NUMERIC,
                       "no token is left at position %llu: every one of %zu is masked or banned",
                       (unsigned long long)position, n);
    return SL_OK;
}

static uint64_t key_of(float logit, size_t id)
{
    const float value = logit + 0.0f; /* -0 and +0 are the same value */
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    /* Positive values: larger bits, larger value; negative ones the other way round. */
    const uint32_t descending = bits >> 31 ? bits : ~(bits | 0x80000000u);
    return (uint64_t)descending << KEY_SHIFT | (uint64_t)id;
}

/* Writes the keys of all tokens that can be among the first `limit` or change a sum, by ascending
 * id, and returns their number. What it leaves out comes after everything it keeps.
 * A token that lies `negligible` temperatures below the best weighs less than half a unit in the
 * last place of 1 <= total: the running sum already equals the total there, so neither top_p nor
 * the draw (both compare with less than the total) can reach it. */
static size_t gather(sl_sampler *sampler, const float *logits, size_t n, float best, size_t limit)
{
    const double lowest = (double)best - negligible * (double)sampler->sampling.temperature;
    memset(sampler->counts, 0, sizeof sampler->counts);
    size_t n_keys = 0;
    for (size_t id = 0; id < n; id++) {
        if (logits[id] == -INFINITY || (double)logits[id] < lowest || is_banned(sampler, id))
            continue;
        const uint64_t key = key_of(logits[id], id);
        sampler->counts[key >> TOP_SHIFT]++;
        sampler->keys[n_keys++] = key;
    }
    if (n_keys <= limit)
        return n_keys;
    size_t last_bucket = 0;
    for (size_t n_covered = 0; (n_covered += sampler->counts[last_bucket]) < limit; last_bucket++)
        ;
    size_t n_left = 0;
    for (size_t i = 0; i < n_keys; i++) {
        if (sampler->keys[i] >> TOP_SHIFT <= last_bucket)
            sampler->keys[n_left++] = sampler->keys[i];
    }
    return n_left;
}

/* Stable passes from the lowest digit of the value up; the ids ascend before the first. */
static void sort_keys(sl_sampler *sampler, size_t n_keys)
{
    for (int shift = KEY_SHIFT; shift < 64; shift += DIGIT_BITS) {
        memset(sampler->counts, 0, sizeof sampler->counts);
        for (size_t i = 0; i < n_keys; i++)
            sampler->counts[sampler->keys[i] >> shift & (DIGITS - 1)]++;
        uint32_t start = 0;
        for (size_t digit = 0; digit < DIGITS; digit++) {
            const uint32_t count = sampler->counts[digit];
            sampler->counts[digit] = start;
            start += count;
        }
        for (size_t i = 0; i < n_keys; i++)
            sampler->spare[sampler->counts[sampler->keys[i] >> shift & (DIGITS - 1)]++] =
                sampler->keys[i];
        uint64_t *sorted = sampler->spare;
        sampler->spare = sampler->keys;
        sampler->keys = sorted;
    }
}

static size_t key_id(uint64_t key)
{
    return (size_t)(key & UINT32_MAX);
}

/* How many of the first n tokens the filters on weights keep, at least 1; *total is their sum. */
static size_t filter(const sl_sampling *sampling, const double *weights, size_t n, double *total)
{
    size_t n_kept = n;
    if (sampling->top_p < 1.0f) {
        double sum = 0.0;
        for (size_t i = 0; i < n; i++)
            sum += weights[i];
        const double enough = (double)sampling->top_p * sum;
        double before = weights[0];
        for (n_kept = 1; n_kept < n && before < enough; n_kept++)
            before += weights[n_kept];
    }
    double sum = weights[0];
    size_t i = 1;
    for (; i < n_kept && weights[i] >= (double)sampling->min_p; i++)
        sum += weights[i];
    *total = sum;
    return i;
}

sl_status sl_sample(sl_sampler *sampler, const float *logits, size_t n, uint64_t position,
                    int32_t *token, sl_error *err)
{
    const sl_sampling *sampling = &sampler->sampling;
    if (n == 0 || n > sampler->n_vocab)
        return sl_fail(err, SL_ERR_ARGUMENT, "%zu logits for a sampler of %zu tokens", n,
                       sampler->n_vocab);
    size_t best;
    SL_TRY(find_best(sampler, logits, n, position, &best, err));
    if (sampling->temperature == 0.0f || sampling->top_k == 1) {
        *token = (int32_t)best;
        return SL_OK;
    }

    const size_t limit = sampling->top_k > 0 ? sampling->top_k : n;
    size_t n_tokens = gather(sampler, logits, n, logits[best], limit);
    sort_keys(sampler, n_tokens);
    n_tokens = sl_min_size(n_tokens, limit);
    for (size_t i = 0; i < n_tokens; i++) {
        const double below = (double)logits[key_id(sampler->keys[i])] - (double)logits[best];
        sampler->weights[i] = sl_exp_f64(below / (double)sampling->temperature);
    }

    double total;
    const size_t n_kept = filter(sampling, sampler->weights, n_tokens, &total);
    const double target = sl_rng_uniform(sampling->seed, position, 0) * total;
    size_t drawn = 0;
    for (double sum = sampler->weights[0]; sum <= target && drawn + 1 < n_kept;)
        sum += sampler->weights[++drawn];
    *token = (int32_t)key_id(sampler->keys[drawn]);
    return SL_OK;
}
