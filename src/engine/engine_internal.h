/* Inside of engines and states, shared by the files of engine/. */
#ifndef SL_ENGINE_ENGINE_INTERNAL_H
#define SL_ENGINE_ENGINE_INTERNAL_H

#include "engine/block.h"
#include "engine/engine.h"
#include "model/model.h"

/* One chunk of a sequence: the state at its first position and the tape of its tokens. */
typedef struct sl_chunk {
    sl_block *border; /* [0] of the sequence is all zeros and never read, see sl_state_begin */
    sl_block *tape[SL_TAPE_CHUNK_PAGES];
} sl_chunk;

/* Invariants between calls:
 *   1. current is the chunk that holds position `length`; its tape has length % C rows;
 *   2. previous is the chunk before it, complete, when length >= C;
 *   3. spare is nobody's content: the next chunk will be written there;
 *   4. conv holds the raw rows of the last min(length, n_conv_rows) positions;
 *   5. kv_pages[p] holds positions 64 p onward, up to length. */
struct sl_state {
    sl_engine *engine;
    uint32_t context, length;
    bool failed; /* an evaluation ended half way: only reset helps */
    bool in_call;
    int32_t *tokens; /* [context] */
    sl_chunk current, previous, spare;
    sl_block *conv;
    size_t n_kv_pages;
    sl_block **kv;
    void **kv_pages; /* the data of kv */
};

struct sl_engine {
    sl_engine_params params;
    sl_weights *weights;
    sl_config config;
    sl_model *model;
    sl_backend *backend;
    sl_state_shape shape;
    sl_plan *plan, *mtp_plan; /* mtp_plan NULL without a draft head */
    void *arena;              /* serves both plans, which never run at the same time */
    sl_block_pool borders, tapes, convs, kvs;
    /* What one run needs, for max_rows rows. */
    int32_t *tokens;
    sl_segment *segments;
    sl_state **segment_states;
    sl_fault *faults;
    uint32_t *logit_rows;
    float **logits;
    float **hidden;
    uint8_t *row_flags;
};

/* The blocks that the next n_rows rows of a state read and write, as a segment of a run. */
void sl_state_begin(sl_state *state, uint32_t first_row, uint32_t n_rows, sl_segment *segment);
/* After the run: the rows are part of the state. */
void sl_state_commit(sl_state *state, const int32_t *tokens, uint32_t n_rows);

/* The state layout of a model, see sl_state_shape. */
sl_state_shape sl_shape_of(const sl_config *config, const sl_engine_params *params);

#endif
