/* One answer in a chat while it comes: shown on the terminal, and kept as a message.
 *
 * Thinking is dim, a tool call is one line. What the model writes cannot steer the terminal:
 * control characters are shown as ^X. */
#ifndef SL_CLI_CHAT_ANSWER_H
#define SL_CLI_CHAT_ANSWER_H

#include "base/json.h"
#include "generate.h"
#include "text/decode.h"
#include "text/outparse.h"
#include "text/stop.h"

typedef struct sl_chat_answer {
    bool quiet;   /* nothing is shown */
    bool stopped; /* by a stop string */
    sl_decoder decoder;
    sl_outparse *parser;
    sl_stop_stream stop; /* over the content */
    sl_buf piece, certain;
    sl_buf thinking, content, name, arguments; /* the latter two of the current call */
    json_t *calls;                             /* of the message, as templates take them */
    int shown;                                 /* the kind of text that was shown last, or -1 */
    bool line_ended;                           /* by what was shown */
} sl_chat_answer;

/* What it needs to know. Everything is borrowed. */
typedef struct sl_chat_answer_setup {
    const sl_tokenizer *tokenizer;
    const json_t *tools; /* or NULL */
    const sl_stops *stops;
    bool quiet;
    bool thinking; /* the prompt ends inside of a think block */
} sl_chat_answer_setup;

sl_status sl_chat_answer_begin(sl_chat_answer *answer, const sl_chat_answer_setup *setup,
                               sl_error *err);
void sl_chat_answer_free(sl_chat_answer *answer); /* a zeroed one may be freed */

sl_token_sink sl_chat_answer_sink(sl_chat_answer *answer);

/* The end of the text. */
sl_status sl_chat_answer_finish(sl_chat_answer *answer, sl_error *err);

/* The message it makes, with "cut": true when asked for; to be json_decref'd. */
sl_status sl_chat_answer_message(const sl_chat_answer *answer, bool cut, json_t **out,
                                 sl_error *err);

#endif
