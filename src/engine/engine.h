/* The engine: one loaded model, its tokenizer and template, its plans and its backend.
 *
 * sl_engine_open -> any number of states (engine/state.h) -> sl_engine_eval on one or several of
 * them -> sl_engine_close after the states. One thread may call into an engine at a time; the work
 * of a call is spread over the backend's threads. */
#ifndef SL_ENGINE_ENGINE_H
#define SL_ENGINE_ENGINE_H

#include "engine/state.h"
#include "format/weights.h"
#include "model/config.h"
#include "plan/plan.h"

typedef struct sl_engine_params {
    unsigned n_threads;     /* 0 = one per processor this process may use */
    uint32_t max_rows;      /* rows of one plan run: the size of a prefill piece */
    bool kv_f32;            /* KV cache in float32 instead of float16: another arithmetic mode */
    uint32_t rewind_window; /* tokens that can be taken back without recomputing, at most a chunk */
    size_t checkpoint_budget;    /* bytes that all checkpoints together may hold; 0 = none */
    uint32_t checkpoint_spacing; /* a regular checkpoint every so many tokens */
} sl_engine_params;

sl_engine_params sl_engine_params_default(void); /* 0, 256, false, 16, 256 MiB, 512 */

/* path: a GGUF file or a Hugging Face folder. */
sl_status sl_engine_open(const char *path, const sl_engine_params *params, sl_engine **out,
                         sl_error *err);
void sl_engine_close(sl_engine *engine);

const sl_weights *sl_engine_weights(const sl_engine *engine);
const sl_config *sl_engine_config(const sl_engine *engine);
const sl_engine_params *sl_engine_get_params(const sl_engine *engine); /* threads resolved */
uint32_t sl_engine_vocab(const sl_engine *engine);                     /* logits of one position */
bool sl_engine_has_mtp(const sl_engine *engine);

/* 128 bits that tell model files apart: over hyper-parameters, tensor names, types, shapes and
 * samples of every tensor. Computed once, on the first call. SL_ERR_IO when the file was lost. */
enum { SL_FINGERPRINT_BYTES = 16 };
sl_status sl_engine_fingerprint(sl_engine *engine, uint8_t out[SL_FINGERPRINT_BYTES],
                                sl_error *err);

/* Rows of several states evaluated together. Each item appends n_tokens to its state.
 * logits: NULL, or [n_tokens][vocab] when all_logits, else [vocab] of the last token.
 * hidden: NULL, or [n_tokens][hidden], the hidden states after the final norm. */
typedef struct sl_eval_item {
    sl_state *state;
    const int32_t *tokens;
    size_t n_tokens;
    bool all_logits;
    float *logits;
    float *hidden;
} sl_eval_item;

typedef struct sl_eval_options {
    uint32_t max_rows; /* 0 = the engine's; a smaller one makes smaller prefill pieces */
    /* After each piece; return true to stop (SL_ERR_CANCELLED; what is done stays in the states).
     * done and total count rows of the whole call. */
    bool (*progress)(void *context, size_t done, size_t total);
    void *progress_context;
    sl_tap_fn tap; /* observer of layer values: called per piece, rows in order of the items */
    void *tap_context;
} sl_eval_options;

/* options may be NULL. Everything is checked before anything is computed: SL_ERR_ARGUMENT (token
 * out of range, a state named twice or of another engine), SL_ERR_CONTEXT with both counts.
 * Afterwards: SL_ERR_NUMERIC names layer and position, SL_ERR_IO when the model file was lost. Such
 * an error makes the states of the call unusable until sl_state_reset. */
sl_status sl_engine_eval(sl_engine *engine, const sl_eval_item *items, size_t n_items,
                         const sl_eval_options *options, sl_error *err);

/* Checkpoints held now and their bytes. */
typedef struct sl_checkpoint_stats {
    size_t n_checkpoints, bytes, budget;
} sl_checkpoint_stats;
sl_checkpoint_stats sl_engine_checkpoint_stats(const sl_engine *engine);

/* The MTP head over n rows of one state, teacher-forced: row i is fed the token after position
 * first + i and the hidden state at position first + i (from sl_eval_item.hidden) and gives the
 * logits [n][vocab] for the position after that token. Rows must be evaluated in order from 0. */
sl_status sl_engine_eval_mtp(sl_engine *engine, sl_state *state, const int32_t *next_tokens,
                             const float *hidden, uint32_t first, size_t n, float *logits,
                             sl_error *err);

/* The listing of the main plan for a run of n_rows at position pos. */
sl_status sl_engine_dump_plan(const sl_engine *engine, uint32_t n_rows, uint32_t pos, sl_buf *out,
                              sl_error *err);

/* Bytes by part. Of the weights only vectors are read; nothing large is allocated. */
typedef struct sl_memory_plan {
    size_t weights;       /* mapped from the file */
    size_t weights_owned; /* vectors and rearranged matrices held outside the file, about */
    size_t state_fixed;   /* borders, tapes, conv rows of one state */
    size_t state_context; /* KV of one state at the given context length */
    size_t scratch;       /* arenas of the plans */
} sl_memory_plan;
sl_status sl_memory_plan_compute(const sl_weights *weights, const sl_config *config,
                                 const sl_engine_params *params, uint32_t context,
                                 sl_memory_plan *out, sl_error *err);

#endif
