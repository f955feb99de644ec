/* Choosing the next token from logits. Every choice is a function of the logits, the settings, the
 * seed and the position alone, so a request gives the same text alone or in a batch, from a fresh
 * start or from a restored sequence. No libm, and no allocation once a sampler exists.
 *
 * Greedy (temperature 0): the largest logit, ties to the lowest id.
 * Otherwise tokens are put in order (logit descending, id ascending) and weigh
 * w = exp((logit - largest logit) / temperature) in double; sums run along the order from +0. The
 * filters cut the order's tail, one after the other, and each leaves the first token:
 *   top_k   keeps the first top_k tokens;
 *   top_p   keeps a token while the sum of the weights before it is below top_p * total, the total
 *           being that of what top_k left;
 *   min_p   ends at the first weight below min_p (the first token's weight is 1).
 * The token drawn is the first whose running sum exceeds u * total of what is left, with
 * u = sl_rng_uniform(seed, position, 0). */
#ifndef SL_ENGINE_SAMPLER_H
#define SL_ENGINE_SAMPLER_H

#include "base/err.h"

typedef struct sl_sampling {
    float temperature; /* 0 = greedy; the filters and the seed then have no effect */
    uint32_t top_k;    /* 0 = off */
    float top_p;       /* 0 to 1, 1 = off */
    float min_p;       /* 0 to 1, 0 = off */
    uint64_t seed;
} sl_sampling;

/* Greedy, every filter off, seed 0. */
sl_sampling sl_sampling_default(void);

/* SL_ERR_ARGUMENT naming the setting that is NaN, infinite, negative or out of its range. */
sl_status sl_sampling_check(const sl_sampling *sampling, sl_error *err);

typedef struct sl_sampler sl_sampler;

/* Room for up to n_vocab logits, about 24 bytes each; the settings are sl_sampling_default(). */
sl_status sl_sampler_create(size_t n_vocab, sl_sampler **out, sl_error *err);
void sl_sampler_destroy(sl_sampler *sampler);

/* Checks the settings and takes them; the old ones stay on failure. */
sl_status sl_sampler_set(sl_sampler *sampler, const sl_sampling *sampling, sl_error *err);

/* Tokens that are never emitted, such as the padding of a vocabulary: bit (id mod 32) of word
 * id / 32, for every id below the n of later calls. Borrowed until replaced; NULL bans none. */
void sl_sampler_set_banned(sl_sampler *sampler, const uint32_t *banned);

/* The token at an absolute position from n logits. A logit of -inf is never chosen; SL_ERR_NUMERIC
 * names token and position of a NaN or +inf, whether banned or not, and the position when no token
 * is left. */
sl_status sl_sample(sl_sampler *sampler, const float *logits, size_t n, uint64_t position,
                    int32_t *token, sl_error *err);

#endif
