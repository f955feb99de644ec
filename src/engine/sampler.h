/* What the sampler of sluice.h computes: the next token from logits. Every choice is a function of
 * the logits, the settings, the history, the seed and the position alone, so a request gives the
 * same text alone or in a batch, from a fresh start or from a restored sequence. No libm, and no
 * allocation once the settings are taken.
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
#include "plan/op.h"

/* The token that sl_sample_next would choose from n logits of which only the short list is known.
 * Not decided: the choice may depend on tokens that are not listed. The logits are finite. */
sl_status sl_sample_shortlist(sl_sampler *sampler, const sl_shortlist *list, size_t n,
                              const sl_sample_context *context, int32_t *token, bool *decided,
                              sl_error *err);

#endif
