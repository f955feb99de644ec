/* What a chat asks of the model: one turn of a conversation in a state.
 *
 * A turn brings the state to the rendered conversation, evaluating only what neither the state nor
 * a checkpoint has. Checkpoints are kept at the end of the system part, before the user's turn and
 * before the reply starts: where the next turn's prompt will still agree, although the template
 * drops the thinking of this one. */
#ifndef SL_CLI_CHAT_ENGINE_H
#define SL_CLI_CHAT_ENGINE_H

#include "chat_answer.h"
#include "chat_talk.h"
#include "sampling.h"

typedef struct sl_chat_engine {
    sl_engine *engine;
    uint32_t context; /* tokens of every state */
    bool trust_content;
} sl_chat_engine;

typedef struct sl_chat_turn {
    const sl_talk *talk; /* ends with what is to be answered */
    const sl_choices *choices;
    uint64_t max_tokens;
    sl_state *state;
    bool quiet; /* nothing is shown */
} sl_chat_turn;

typedef struct sl_chat_report {
    bool any; /* there was a turn */
    uint32_t n_prompt;
    uint32_t n_read; /* of the prompt, beside what was reused; less than all after an interrupt */
    uint32_t reply_start; /* where the answer begins, for every later turn */
    uint64_t seed;
    sl_generate_result generated;
} sl_chat_report;

/* *message: the answer, to be json_decref'd; NULL when an interrupt came before its first token.
 * Errors: SL_ERR_CONTEXT when the conversation has no room, those of rendering and evaluating. */
sl_status sl_chat_engine_turn(const sl_chat_engine *engine, const sl_chat_turn *turn,
                              json_t **message, sl_chat_report *report, sl_error *err);

/* How tokens are chosen with these options. Release with sl_choices_free, also after a failure. */
sl_status sl_chat_engine_choose(const sl_chat_engine *engine, const sl_sampling_options *options,
                                sl_choices *choices, sl_error *err);

/* The state and n bytes beside it, to and from a file; a loaded state is a new one. */
sl_status sl_chat_engine_save(sl_state *state, const char *path, const char *own, size_t n,
                              sl_error *err);
sl_status sl_chat_engine_load(const sl_chat_engine *engine, const char *path, sl_state **state,
                              char **own, size_t *n, sl_error *err);

#endif
