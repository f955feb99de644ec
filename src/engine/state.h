/* The state of one sequence: everything the model remembers of its tokens, as a value that can be
 * forked, taken back, kept and compared.
 *
 * Per gated delta layer a border state (produced once per chunk, then immutable and shared), the
 * tape of the tokens since, and the last raw conv inputs; per attention layer KV pages. All lie in
 * reference-counted blocks from the engine's pools, so that forks and checkpoints share what they
 * have in common; a shared block is copied when one side writes into it. */
#ifndef SL_ENGINE_STATE_H
#define SL_ENGINE_STATE_H

#include "base/err.h"

typedef struct sl_engine sl_engine;
typedef struct sl_state sl_state;

/* A state of at most `context` tokens. All its memory is taken here: evaluating it allocates
 * nothing. Errors: SL_ERR_ARGUMENT (context 0 or above the model's), SL_ERR_MEMORY. */
sl_status sl_state_create(sl_engine *engine, uint32_t context, sl_state **out, sl_error *err);
void sl_state_free(sl_state *state);

/* Forgets all tokens; also makes a state usable again after a failed evaluation. */
void sl_state_reset(sl_state *state);

uint32_t sl_state_context(const sl_state *state);
uint32_t sl_state_length(const sl_state *state); /* tokens evaluated so far */
const int32_t *sl_state_tokens(const sl_state *state);

/* A second state with the same content; both go on independently, and neither changes a bit of the
 * other. Costs pointers: blocks are shared until one side writes into a partly filled one. */
sl_status sl_state_fork(const sl_state *state, sl_state **out, sl_error *err);

/* What a fork, a rewind or a sync found. */
typedef enum sl_reuse_source {
    SL_REUSE_NOTHING,    /* began from the empty state */
    SL_REUSE_LIVE,       /* the state already was a prefix */
    SL_REUSE_WINDOW,     /* taken back inside the rewind window */
    SL_REUSE_CHECKPOINT, /* restored from a checkpoint */
} sl_reuse_source;

typedef struct sl_reuse_report {
    sl_reuse_source source;
    uint32_t matched;    /* tokens that the state and the wanted ones had in common */
    uint32_t reused;     /* tokens that need not be evaluated (again) */
    uint32_t recomputed; /* tokens that this call evaluated again (sl_state_rewind) */
    uint32_t checkpoint; /* position of the checkpoint used, with SL_REUSE_CHECKPOINT */
    const char *why;     /* why not more was reused: a clause, static; "" when all was */
} sl_reuse_report;

/* Takes the state back to its first `length` tokens, exactly. Free within the rewind window;
 * further back from the nearest checkpoint, evaluating the tokens since again. report may be NULL.
 * Errors: SL_ERR_ARGUMENT (length above the present one), and those of evaluating. */
sl_status sl_state_rewind(sl_state *state, uint32_t length, sl_reuse_report *report, sl_error *err);

/* Makes the state the longest prefix of tokens[0..n) that can be had without evaluating: what it
 * is, a rewind inside the window, or a checkpoint (of any sequence of the engine). At least the
 * last token is left to evaluate, so that its logits can be had. A failed state is reset first. */
sl_status sl_state_sync(sl_state *state, const int32_t *tokens, size_t n, sl_reuse_report *report,
                        sl_error *err);

/* Why a checkpoint is taken; the order says nothing. */
typedef enum sl_anchor {
    SL_ANCHOR_REGULAR, /* by spacing, taken by the engine itself */
    SL_ANCHOR_SYSTEM,  /* end of system text and tools */
    SL_ANCHOR_TURN,    /* before a user's turn */
    SL_ANCHOR_REPLY,   /* before a reply starts: survives templates that drop its reasoning */
    SL_ANCHOR_TOOL,    /* after a tool result */
    SL_ANCHOR_FORK,    /* a point where sequences were seen to part */
    SL_ANCHOR_COUNT
} sl_anchor;

/* Keeps the state's present position under the engine's byte budget. May keep nothing when the
 * budget is too small. Errors: SL_ERR_ARGUMENT (a failed state), SL_ERR_MEMORY. */
sl_status sl_state_checkpoint(sl_state *state, sl_anchor anchor, sl_error *err);

/* Bytes of blocks that only this state refers to, and of those that it shares. */
typedef struct sl_state_bytes {
    size_t own, shared;
} sl_state_bytes;
sl_state_bytes sl_state_memory(const sl_state *state);

#endif
