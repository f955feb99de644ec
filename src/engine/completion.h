/* An answer in progress: everything between a prompt and its last token. Inside of answers, shared
 * by completion.c, which makes and ends them, and step.c, which evaluates for several at once. */
#ifndef SL_ENGINE_COMPLETION_H
#define SL_ENGINE_COMPLETION_H

#include "base/buf.h"
#include "engine/engine_internal.h"
#include "engine/sampler.h"
#include "text/decode.h"
#include "text/outparse.h"
#include "text/stop.h"

typedef enum sl_completion_phase {
    SL_COMPLETION_READING, /* the state is not at the end of the prompt yet */
    SL_COMPLETION_WRITING, /* `token` was chosen and is not evaluated yet */
    SL_COMPLETION_ENDED
} sl_completion_phase;

struct sl_completion {
    sl_state *state;
    sl_engine *engine;
    const sl_tokenizer *tokenizer;
    const int32_t *prompt;
    size_t n_prompt;
    sl_generate_params params;
    sl_event_fn fn;
    void *user;
    sl_generate_result result;
    sl_completion_phase phase;
    bool begun; /* the first event has been told */
    bool cancelled;
    sl_status status; /* why it ended early, with its sentence */
    sl_error why;
    uint64_t begin_ns, read_ns;
    uint32_t start; /* of what had to be read of the prompt */
    int32_t token;

    sl_sampler *sampler;
    int32_t open_id, close_id; /* of thinking, or -1 */
    bool starts_in_thinking;
    sl_think_rules rules;
    sl_think_budget budget;

    /* With a constraint. */
    bool thinking;         /* it has not begun yet */
    uint32_t *no_stop;     /* while thinking: everything but the stop tokens */
    size_t n_framing;      /* tokens behind the end of thinking that are still to be forced */
    sl_think_rules closed; /* what they are */

    sl_decoder decoder;
    sl_buf piece;        /* what a token made certain */
    sl_outparse *parser; /* NULL when raw */
    bool broken;         /* the text side failed: it cannot go on, nor finish */
    sl_stops *stops;
    sl_stop_stream stop;
    sl_buf certain; /* what the stop strings let through */
};

/* Tells how much of the prompt is read. */
void sl_completion_tell_progress(sl_completion *a);
/* The logits of the last token have been kept: chooses the next one and tells what it makes
 * certain. Ends the answer where something does. */
void sl_completion_choose(sl_completion *a);
/* Ends it, with what is there, as `status` says (SL_OK: as the result says) and for the reason in
 * *why, which may be NULL. */
void sl_completion_end(sl_completion *a, sl_status status, const sl_error *why);

#endif
