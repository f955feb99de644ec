/* Conversations to prompts. */
#ifndef SL_CLI_MESSAGES_H
#define SL_CLI_MESSAGES_H

#include "base/json.h"

typedef struct sl_messages {
    const json_t *messages; /* array */
    const json_t *tools;    /* array, or NULL */
    int think;              /* 1 on, 0 off, -1 as the template has it */
    bool no_reply;          /* without the beginning of the assistant's reply */
    bool trust_content;
} sl_messages;

/* Appends the tokens of the rendered conversation. Errors: those of sl_engine_render. */
sl_status sl_messages_render(const sl_messages *messages, const sl_engine *engine, sl_ids *ids,
                             sl_error *err);

#endif
