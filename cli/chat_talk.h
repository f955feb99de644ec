/* One conversation as data: messages, tools, the thinking switch. Knows no model and no terminal.
 *
 * A message is never changed once it is part of a conversation, so that copies share them. */
#ifndef SL_CLI_CHAT_TALK_H
#define SL_CLI_CHAT_TALK_H

#include "base/json.h"

typedef struct sl_talk {
    json_t *messages; /* as templates take them; a system message, if there is one, comes first */
    json_t *tools;    /* or NULL */
    int think;        /* 1 on, 0 off, -1 as the template has it */
    uint32_t attempt; /* answers to the last turn that were thrown away */
} sl_talk;

sl_status sl_talk_create(sl_talk *talk, sl_error *err);
sl_status sl_talk_copy(const sl_talk *from, sl_talk *to, sl_error *err);
void sl_talk_free(sl_talk *talk);

const char *sl_talk_system(const sl_talk *talk); /* NULL = none */
/* NULL or "" takes it away. */
sl_status sl_talk_set_system(sl_talk *talk, const char *text, sl_error *err);

/* Adds what the user says, or the result of a tool: "user" or "tool". */
sl_status sl_talk_add(sl_talk *talk, const char *role, const char *text, size_t n, sl_error *err);
/* Adds an answer; the message is taken over, also on failure. */
sl_status sl_talk_add_answer(sl_talk *talk, json_t *message, sl_error *err);

/* The tool whose result comes next: the first call of the last answer without one; NULL when the
 * user speaks. A call in an answer that was cut short asks for nothing. */
const char *sl_talk_awaited(const sl_talk *talk);

size_t sl_talk_turns(const sl_talk *talk); /* of the user */

/* Takes back the last message. */
void sl_talk_drop(sl_talk *talk);
/* Takes back the last turn of the user and all that followed; false when there is none. */
bool sl_talk_undo(sl_talk *talk);
/* Takes back the last answer, and results of tools after it; false when there is none. */
bool sl_talk_unanswer(sl_talk *talk);
/* Takes back everything but the system message. */
void sl_talk_clear(sl_talk *talk);

/* The conversation as a JSON object, and back; `name` stands in messages about a bad one. *out is
 * to be json_decref'd. Errors: SL_ERR_FORMAT, SL_ERR_MEMORY. */
sl_status sl_talk_to_json(const sl_talk *talk, json_t **out, sl_error *err);
sl_status sl_talk_from_json(const json_t *object, const char *name, sl_talk *out, sl_error *err);

#endif
