/* What clients send as messages, brought into the form that templates accept. */
#ifndef SL_TEXT_CHAT_H
#define SL_TEXT_CHAT_H

#include "base/json.h"

/* Returns a new array (json_decref it) from the array `messages`, checked and normalised:
 * developer becomes system; all system messages are merged, in order and joined by a blank line,
 * into one at the front; content null or missing becomes ""; content parts keep their order, text
 * parts of one message are joined when all parts are text; string `arguments` of tool calls are
 * parsed when they are a JSON object, else kept as {"input": text}... see chat.c for the whole
 * list. Errors: SL_ERR_ARGUMENT naming the message index and field. */
sl_status sl_chat_normalise(const json_t *messages, json_t **out, sl_error *err);

#endif
