/* The state of one sequence: everything the model remembers of its tokens.
 *
 * Per gated delta layer a border state (produced once per chunk, then immutable and shared), the
 * tape of the tokens since, and the last raw conv inputs; per attention layer KV pages. All lie in
 * reference-counted blocks from the engine's pools, so that forks share what they have in common.
 */
#ifndef SL_ENGINE_STATE_H
#define SL_ENGINE_STATE_H

#include "base/err.h"

typedef struct sl_engine sl_engine;
typedef struct sl_state sl_state;

/* A state of at most `context` tokens. All its memory is taken here: evaluating allocates nothing.
 * Errors: SL_ERR_ARGUMENT (context 0 or above the model's), SL_ERR_MEMORY with the bytes needed. */
sl_status sl_state_create(sl_engine *engine, uint32_t context, sl_state **out, sl_error *err);
void sl_state_free(sl_state *state);

/* Forgets all tokens; also makes a state usable again after a failed evaluation. */
void sl_state_reset(sl_state *state);

uint32_t sl_state_context(const sl_state *state);
uint32_t sl_state_length(const sl_state *state); /* tokens evaluated so far */
const int32_t *sl_state_tokens(const sl_state *state);

#endif
