/* Anthropic's Messages API: reading requests (anthropic_read.c), writing answers (anthropic.c). */
#ifndef SL_SERVER_ANTHROPIC_H
#define SL_SERVER_ANTHROPIC_H

#include "call.h"

/* A conversation as chat templates want it: messages and tools in OpenAI's form, and variables.
 * References of the caller's. */
typedef struct sl_anthropic_chat {
    json_t *messages, *tools, *variables;
    bool forces_tools;
    const char *forced; /* the one tool, borrowed from the request; NULL = any */
} sl_anthropic_chat;

/* Reads system, messages, tools, tool_choice and thinking. Errors: SL_ERR_ARGUMENT and
 * SL_ERR_UNSUPPORTED, with the field in f->param. Release the chat also after an error. */
sl_status sl_anthropic_read_chat(sl_fields *f, sl_anthropic_chat *out, sl_error *err);
void sl_anthropic_release(sl_anthropic_chat *chat);

/* Keeps the chat's parts as JSON texts. */
sl_status sl_anthropic_keep_chat(const sl_anthropic_chat *chat, sl_chat_texts *texts,
                                 sl_error *err);

#endif
