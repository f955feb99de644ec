/* Inside of engines and states, shared by the files of engine/. */
#ifndef SL_ENGINE_ENGINE_INTERNAL_H
#define SL_ENGINE_ENGINE_INTERNAL_H

#include <sys/types.h>

#include "base/utf8.h"
#include "engine/block.h"
#include "engine/engine.h"
#include "engine/profile.h"
#include "model/model.h"

/* One chunk of a sequence: the state at its first position and the tape of its tokens. */
typedef struct sl_chunk {
    sl_block *border; /* that of the first chunk is all zeros and neither stored nor read */
    sl_block *tape[SL_TAPE_CHUNK_PAGES];
} sl_chunk;

enum { SL_STATE_CHUNKS = 3 }; /* current, previous, spare */

/* Invariants between calls:
 *   1. current is the chunk that holds position `length`; its tape has length % C rows;
 *   2. previous is the chunk before it, complete, when has_previous;
 *   3. spare is nobody's content: the next chunk will be written there;
 *   4. conv holds the raw rows of the positions conv_low .. length - 1;
 *   5. kv[p] holds positions 64 p onward and their ids, for all pages that begin below length;
 *   6. a block with more than one reference is never written: it is replaced first, by a copy when
 *      it has rows that stay. Blocks may be missing (NULL) where they have no content. */
struct sl_state {
    sl_engine *engine;
    uint32_t context, length;
    bool failed; /* an evaluation ended half way: only reset helps */
    bool in_call;
    bool counted;    /* in the engine's demand: created, not forked */
    int32_t *tokens; /* [context] */
    sl_chunk current, previous, spare;
    bool has_previous;
    sl_block *conv;
    uint32_t conv_low;
    /* Positions whose rows the draft head has in its KV layer, at most length. The row of the last
     * one was made with the token that was to come next: it then stands at tokens[length]. */
    uint32_t mtp_length;
    size_t n_kv_pages;
    sl_block **kv;
    void **kv_pages; /* the data of kv */
    /* The evaluation that kept the logits of the last token, and where; 0 = none did. */
    uint64_t kept_in;
    uint32_t kept_place;
};

typedef struct sl_checkpoint sl_checkpoint;

typedef struct sl_checkpoint_store {
    sl_checkpoint *first;  /* newest first */
    sl_checkpoint *unused; /* records that serve again */
    size_t n_checkpoints, n_records;
    size_t budget, bytes; /* bytes held by checkpoints, shared blocks once */
    uint32_t spacing;
    uint64_t clock; /* counts uses */
} sl_checkpoint_store;

/* What the states that were created (forks take their memory as they write) may need at once. */
typedef struct sl_state_demand {
    size_t n_states, n_kv_pages;
    size_t n_checkpoints; /* regular ones, if the budget were endless */
} sl_state_demand;

/* A name from a file, fit to be shown: valid UTF-8, no control characters, cut when long. */
const char *sl_shown(sl_str name, char text[SL_SHOWN_BYTES]);

struct sl_engine {
    sl_engine_params params;
    pid_t process; /* that opened it: the only one that has its threads and its device */
    sl_weights *weights;
    sl_config config;
    char name[SL_SHOWN_BYTES]; /* the model's own, "" when it has none */
    sl_text *text;             /* NULL: why_no_text says why */
    sl_error why_no_text;
    sl_constraint_vocab *constraint_vocab; /* NULL until it is asked for */
    sl_model *model;                       /* and everything behind it: NULL without weights */
    sl_backend *backend;
    char device[16]; /* params.device, when it is no literal */
    sl_state_shape shape;
    sl_plan *plan, *mtp_plan; /* mtp_plan NULL without a draft head */
    void *arena;              /* serves both plans, which never run at the same time */
    sl_block_pool borders, tapes, convs, conv_tails, kvs;
    sl_checkpoint_store store;
    sl_state_demand demand;
    bool has_fingerprint;
    uint8_t fingerprint[SL_FINGERPRINT_BYTES];
    /* What one run needs, for max_rows rows. */
    int32_t *tokens;
    sl_segment *segments;
    sl_state **segment_states;
    sl_fault *faults;
    uint32_t *logit_rows;
    float **logits;
    float **hidden;
    uint8_t *row_flags;
    /* Logits that the last evaluation kept. */
    uint64_t evaluation; /* counts the evaluations */
    uint32_t n_kept;
    float *kept;      /* of all of them, or the row fetched last from a backend that keeps them */
    size_t kept_room; /* rows */
    uint32_t fetched; /* the place of that row; UINT32_MAX = none */
    sl_shortlist *shortlists; /* by place, of a backend that keeps them */
    size_t shortlist_room;
    sl_tap_fn tap; /* observer of evaluations, or NULL */
    void *tap_context;
    sl_profile *profile; /* of the main plan, or NULL */
};

/* The blocks that the next n_rows rows of a state read and write, as a segment of a run. May be
 * repeated without harm. SL_ERR_MEMORY when a block must be replaced and there is none. */
sl_status sl_state_begin(sl_state *state, uint32_t first_row, uint32_t n_rows, sl_segment *segment,
                         sl_error *err);
/* After the run: the rows are part of the state. */
void sl_state_commit(sl_state *state, const int32_t *tokens, uint32_t n_rows);

/* Makes the KV pages of positions first .. first + n - 1 writable, keeping what they hold. */
sl_status sl_state_own_kv(sl_state *state, size_t first, size_t n, sl_error *err);

/* The positions of mtp_length whose rows depend on tokens of the state only: what may be copied. */
uint32_t sl_state_mtp_certain(const sl_state *state);

/* Takes the state back to `length` tokens when it still has everything for that; false if not. */
bool sl_state_rewind_free(sl_state *state, uint32_t length);

/* Tape pages that hold the rows of a partial chunk, and KV pages of that many tokens. */
static inline size_t sl_tape_pages_of(uint32_t length)
{
    return (length % SL_GDN_CHUNK + SL_TAPE_PAGE - 1) / SL_TAPE_PAGE;
}
size_t sl_kv_pages_of(size_t n_tokens);

/* Where a state has the raw convolution inputs of a position (invariant 4). */
static inline float *sl_conv_row(const sl_state *state, uint32_t layer, uint32_t pos)
{
    const sl_state_shape *shape = &state->engine->shape;
    const size_t row = (size_t)layer * shape->n_conv_rows + pos % shape->n_conv_rows;
    return (float *)state->conv->data + row * shape->n_channels;
}
/* How many positions before the next one the convolution reaches: the rows that go on needs. */
static inline uint32_t sl_conv_reach(uint32_t length)
{
    return length < SL_CONV_HISTORY ? length : SL_CONV_HISTORY;
}

/* SL_ERR_ARGUMENT for a state whose last evaluation failed, and for one that is being evaluated:
 * a call from inside a progress function. */
sl_status sl_state_check_sound(const sl_state *state, sl_error *err);
sl_status sl_state_check_idle(const sl_state *state, sl_error *err);

/* SL_ERR_ARGUMENT for an engine that was opened without weights. */
sl_status sl_engine_need_weights(const sl_engine *engine, sl_error *err);

/* Why an engine has no tokenizer, when it has none. */
sl_status sl_engine_need_text(const sl_engine *engine, sl_error *err);

/* Begins an evaluation: room for n rows of logits that it will keep. What the one before kept is
 * gone. */
sl_status sl_kept_begin(sl_engine *engine, uint32_t n, sl_error *err);
/* Where a run puts the row at `place`; NULL when the backend keeps it. */
float *sl_kept_row(const sl_engine *engine, uint32_t place);
void sl_kept_free(sl_engine *engine);

/* The state layout of a model, see sl_state_shape. */
sl_state_shape sl_shape_of(const sl_config *config, const sl_engine_params *params);

#endif
