/* What clients send as messages, brought into the form that templates accept. */
#ifndef SL_TEXT_CHAT_H
#define SL_TEXT_CHAT_H

#include "base/json.h"

enum { SL_CHAT_MAX_MESSAGES = 100000 };

/* Returns a new array (json_decref it) from the array `messages`, which stays as it is:
 *
 * role         "developer" becomes "system" and "function" becomes "tool"; apart from these,
 *              "user" and "assistant", a role is refused.
 * system       All system messages are merged into one at the front: their texts in order, joined
 *              by a blank line, empty ones left out. The first one's other members are kept.
 * content      Null or missing becomes "". An array of parts becomes one string, the texts in order
 *              with nothing between them, as a template would print them: parts are strings or
 *              objects of type text, input_text, output_text or refusal, or without type but with a
 *              text. Other parts (image_url, input_audio, ...) are refused by name: the model is
 *              run on text only.
 * tool_calls   Null is removed; an old function_call becomes the only tool call. `arguments` that
 *              are a string become the JSON object in it; empty, null or missing ones become {}.
 *              What is no object is kept as {"input": ...}: the string, or the value itself. The
 *              members of a call may stand in its "function" or in the call itself.
 * reasoning    A string `reasoning` or `thinking` becomes reasoning_content if that is missing or
 *              null.
 *
 * Everything else (name, tool_call_id, unknown members) is kept. Errors: SL_ERR_ARGUMENT naming
 * messages[index].field, SL_ERR_LIMIT for more than SL_CHAT_MAX_MESSAGES messages or texts beyond
 * 64 MiB, SL_ERR_MEMORY. */
sl_status sl_chat_normalise(const json_t *messages, json_t **out, sl_error *err);

#endif
