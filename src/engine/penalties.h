/* What the tokens so far do to the logits of the next one: the repetition, presence and frequency
 * penalties, and loop breaking. The formulas are in engine/sampler.h. Nothing is remembered between
 * calls: the result depends on the settings and the history alone, so histories may fork, shrink
 * and take turns. */
#ifndef SL_ENGINE_PENALTIES_H
#define SL_ENGINE_PENALTIES_H

#include "engine/sampling.h"

typedef struct sl_penalties {
    size_t n_vocab;
    uint32_t *counts; /* [n_vocab], all 0 between calls */
    uint32_t *spans;  /* [n_spans] for loop breaking */
    size_t n_spans;
} sl_penalties;

/* Whether the settings look at the history. */
bool sl_penalties_needed(const sl_sampling *sampling);

/* False when memory is short (sl_penalties_free all the same). The struct is zero before. */
bool sl_penalties_init(sl_penalties *penalties, size_t n_vocab);
void sl_penalties_free(sl_penalties *penalties);

/* Takes the memory that these settings need, so that applying them takes none. */
sl_status sl_penalties_prepare(sl_penalties *penalties, const sl_sampling *sampling, sl_error *err);

/* Changes logits[n]. Logits of -inf stay as they are, the others stay finite. breakers: one bit per
 * token, or NULL. SL_ERR_ARGUMENT when the history is no history of n tokens' ids; the logits are
 * not changed then. */
sl_status sl_penalties_apply(sl_penalties *penalties, const sl_sampling *sampling,
                             const sl_history *history, const uint32_t *breakers, float *logits,
                             size_t n, sl_error *err);

/* value as a float between -FLT_MAX and FLT_MAX: an adjusted logit is never infinite. */
float sl_finite_logit(double value);

#endif
