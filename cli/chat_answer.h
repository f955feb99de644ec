/* One answer in a chat while it comes: shown on the terminal, and kept as a message.
 *
 * Thinking is dim, a tool call is one line. What the model writes cannot steer the terminal:
 * control characters are shown as ^X. */
#ifndef SL_CLI_CHAT_ANSWER_H
#define SL_CLI_CHAT_ANSWER_H

#include "base/json.h"
#include "generate.h"

typedef struct sl_chat_answer {
    bool quiet; /* nothing is shown */
    sl_buf piece;
    sl_buf thinking, content, name, arguments; /* the latter two of the current call */
    json_t *calls;                             /* of the message, as templates take them */
    int shown;                                 /* the kind of text that was shown last, or -1 */
    bool line_ended;                           /* by what was shown */
} sl_chat_answer;

sl_status sl_chat_answer_begin(sl_chat_answer *answer, bool quiet, sl_error *err);
void sl_chat_answer_free(sl_chat_answer *answer); /* a zeroed one may be freed */

/* An sl_outparse_fn; the user is the answer. */
sl_status sl_chat_answer_take(void *user, const sl_outparse_event *event, sl_error *err);

/* Ends the line that is shown. */
void sl_chat_answer_finish(sl_chat_answer *answer);

/* The message it makes, with "cut": true when asked for; to be json_decref'd. */
sl_status sl_chat_answer_message(const sl_chat_answer *answer, bool cut, json_t **out,
                                 sl_error *err);

#endif
