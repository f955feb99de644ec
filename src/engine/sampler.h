/* Choosing the next token from logits. Every choice is a function of the logits, the settings, the
 * history, the seed and the position alone, so a request gives the same text alone or in a batch,
 * from a fresh start or from a restored sequence. No libm, and no allocation once the settings are
 * taken.
 *
 * The steps, in this order. Logits are floats; a step that changes one computes in double, rounds
 * once and stays finite. -inf means that a token cannot come, and stays -inf.
 *
 *  1. masks        l = -inf where the token is banned or not allowed.
 *  2. logit bias   l = l + bias, entry by entry.
 *  3. repetition   l = l / r if l > 0, else l * r, for every token among the last penalty_window of
 *                  prompt and output (r = repetition_penalty).
 *  4. presence and frequency
 *                  l = l - (frequency_penalty * count + presence_penalty) for every token that
 *                  stands count > 0 times in the OUTPUT, as far as it lies in penalty_window.
 *  5. loop breaking ("DRY")
 *                  A token that would continue a repetition: the last `span` tokens of the last
 *                  dry_window (prompt and output) stood there before, and this token followed them.
 *                  l = l - dry_multiplier * dry_base^(span - dry_allowed_length) where the longest
 *                  such span is at least dry_allowed_length. Breakers are never penalised, and no
 *                  span reaches across one: what a dialogue is made of may repeat.
 *  6. greedy       temperature 0: the largest l, ties to the lowest id. This is the end.
 *  7. temperature  The tokens are put in order (l descending, id ascending) and weigh
 *                  w = exp((l - largest l) / temperature). The order ends 40 temperatures below
 *                  the largest: such weights are lost in any sum of the others.
 *  8. top_k        keeps the first top_k tokens.
 *  9. typical_p    Of what is left, with probabilities p = w / total: the surprise of a token is
 *                  s = log(total) - (l - largest l) / temperature = -log p, and H = sum of p * s
 *                  the surprise to be expected. Tokens are taken by |s - H| ascending, equal ones
 *                  in order, while the sum of the weights before is below typical_p * total; they
 *                  keep their order.
 * 10. top_p        keeps a token while the sum of the weights before it is below top_p * total, the
 *                  total being that of what is left.
 * 11. min_p        ends at the first weight below min_p * the first one's.
 * 12. draw         The first token whose running sum exceeds u * total of what is left, with
 *                  u = sl_rng_uniform(seed, position, 0).
 *
 * Sums are doubles and run along the order from +0. Every filter leaves at least one token. */
#ifndef SL_ENGINE_SAMPLER_H
#define SL_ENGINE_SAMPLER_H

#include "engine/penalties.h"
#include "engine/sampling.h"

typedef struct sl_sampler sl_sampler;

/* Room for up to n_vocab logits, about 32 bytes each; the settings are sl_sampling_default(). */
sl_status sl_sampler_create(size_t n_vocab, sl_sampler **out, sl_error *err);
void sl_sampler_destroy(sl_sampler *sampler);

/* Checks the settings and takes them; the old ones stay on failure. */
sl_status sl_sampler_set(sl_sampler *sampler, const sl_sampling *sampling, sl_error *err);

/* Sets of tokens: bit (id mod 32) of word id / 32, for every id below the n of later calls.
 * Borrowed until replaced; NULL is the empty set.
 * Banned tokens are never emitted, such as the padding of a vocabulary. Breakers are the tokens at
 * which loop breaking ends (engine/breakers.h). */
void sl_sampler_set_banned(sl_sampler *sampler, const uint32_t *banned);
void sl_sampler_set_breakers(sl_sampler *sampler, const uint32_t *breakers);

typedef struct sl_sample_context {
    sl_history history; /* may be empty where no setting needs it */
    uint64_t position;  /* absolute, of the token to be chosen: what the draw depends on */
    /* What a grammar allows at this position, a set as above; NULL allows everything. */
    const uint32_t *allowed;
    /* Not NULL: the token that has to come, whatever masks and settings say. The logits are checked
     * all the same. */
    const int32_t *forced;
} sl_sample_context;

/* The next token from n logits, which are not changed. SL_ERR_NUMERIC names token and position of a
 * NaN or +inf, whether banned or not, and the position when no token is left. */
sl_status sl_sample_next(sl_sampler *sampler, const float *logits, size_t n,
                         const sl_sample_context *context, int32_t *token, sl_error *err);

/* The same for settings that do not look at the history; SL_ERR_ARGUMENT for others. */
sl_status sl_sample(sl_sampler *sampler, const float *logits, size_t n, uint64_t position,
                    int32_t *token, sl_error *err);

/* What the last token was drawn from: the tokens that were left, in order, with their
 * probabilities. One token with probability 1 after a greedy or forced choice. */
typedef struct sl_candidate {
    int32_t id;
    double p;
} sl_candidate;
size_t sl_sampler_n_candidates(const sl_sampler *sampler);
sl_candidate sl_sampler_candidate(const sl_sampler *sampler, size_t i);

/* Log probabilities of the RAW distribution, before any mask or setting, at temperature 1:
 *     (l - largest l) - log(sum of exp(l - largest l))
 * with the sum along the order. Never above 0; -inf for a logit of -inf. */
typedef struct sl_logprob {
    int32_t id;
    double logprob;
} sl_logprob;

/* *logprob: of `token`, which may be any below n. top[0..*n_top): the first tokens in order, at
 * most max_top, without those that cannot come; max_top may be 0 and top NULL then. The logits are
 * those of a position and refused as in sl_sample_next. Forgets the candidates of the last draw. */
sl_status sl_sampler_logprobs(sl_sampler *sampler, const float *logits, size_t n, uint64_t position,
                              int32_t token, double *logprob, sl_logprob *top, size_t max_top,
                              size_t *n_top, sl_error *err);

#endif
