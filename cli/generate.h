/* One answer: the prompt evaluated, then token after token until something ends it. */
#ifndef SL_CLI_GENERATE_H
#define SL_CLI_GENERATE_H

#include "engine/engine.h"
#include "engine/sampler.h"
#include "engine/text.h"
#include "engine/think_budget.h"

typedef enum sl_finish {
    SL_FINISH_STOP,       /* the model ended its answer, or a stop string did */
    SL_FINISH_LENGTH,     /* max_tokens, or the context is full */
    SL_FINISH_INTERRUPTED /* Ctrl-C, or nobody reads the output any more */
} sl_finish;
const char *sl_finish_name(sl_finish finish); /* "stop", "length", "interrupted" */

/* Takes the tokens of an answer as they are drawn; *stop ends it. */
typedef struct sl_token_sink {
    sl_status (*push)(void *user, int32_t token, bool *stop, sl_error *err);
    void *user;
} sl_token_sink;

/* A checkpoint to keep while the prompt is read. */
typedef struct sl_prompt_mark {
    uint32_t position;
    sl_anchor anchor;
} sl_prompt_mark;

typedef struct sl_generation {
    sl_engine *engine;
    const sl_text *text;
    const sl_sampling *sampling;
    const uint32_t *breakers;    /* of loop breaking, or NULL */
    const sl_think_rules *think; /* or NULL: no limit */
    const sl_ids *prompt;
    bool thinking;   /* the prompt ends inside of a think block */
    sl_state *state; /* goes on from what it and the checkpoints have of the prompt; NULL: a new
                      * one with room for `context` tokens, at least the prompt */
    uint32_t context;
    uint64_t max_tokens;         /* at least 1 */
    const sl_prompt_mark *marks; /* ascending positions below the prompt's length */
    size_t n_marks;
    sl_token_sink sink;
} sl_generation;

typedef struct sl_generated {
    sl_finish finish;
    sl_reuse_report reuse;
    size_t n_tokens; /* drawn, the stop token included */
    size_t n_steps;  /* evaluated one by one after the prompt */
    size_t n_forced; /* to end the thinking */
    uint64_t prefill_ns, decode_ns;
    size_t state_bytes;
} sl_generated;

/* Everything drawn goes to the sink, apart from the stop token. After an interrupt the result is
 * SL_OK with what there is. */
sl_status sl_generate(const sl_generation *generation, sl_generated *out, sl_error *err);

#endif
