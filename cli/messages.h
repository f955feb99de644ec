/* Conversations to prompts. */
#ifndef SL_CLI_MESSAGES_H
#define SL_CLI_MESSAGES_H

#include "base/json.h"

typedef struct sl_messages {
    const json_t *messages; /* array */
    const json_t *tools;    /* array, or NULL */
    int think;              /* 1 on, 0 off, -1 as the template has it */
    bool trust_content;
} sl_messages;

/* Where to keep checkpoints of a prompt, see sl_engine_prompt_marks. */
typedef struct sl_marks {
    sl_prompt_mark items[SL_MAX_PROMPT_MARKS];
    size_t n;
} sl_marks;

/* Gives the empty *ids the tokens of the rendered conversation; marks may be NULL. Errors: those of
 * sl_engine_render. */
sl_status sl_messages_render(const sl_messages *messages, const sl_engine *engine, sl_ids *ids,
                             sl_marks *marks, sl_error *err);

#endif
