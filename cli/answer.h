/* Where the answer of `sluice run` goes while it is being generated. */
#ifndef SL_CLI_ANSWER_H
#define SL_CLI_ANSWER_H

#include "base/json.h"

typedef enum sl_answer_mode {
    SL_ANSWER_PLAIN,    /* answer on standard output, thinking dimmed on standard error */
    SL_ANSWER_THINKING, /* both on standard output, the thinking between its tags */
    SL_ANSWER_COLLECT   /* both into the buffers below, for JSON */
} sl_answer_mode;

typedef struct sl_answer {
    sl_answer_mode mode;
    bool thinking; /* what was shown last is */
    bool thought;  /* there was some */
    char last;     /* the last byte written to standard output, 0 = none */
    /* SL_ANSWER_COLLECT */
    sl_buf text, thinking_text;
    sl_buf name, arguments; /* of the current call */
    json_t *calls;          /* [{"name", "arguments"}] */
} sl_answer;

sl_status sl_answer_begin(sl_answer *answer, sl_answer_mode mode, sl_error *err);
void sl_answer_free(sl_answer *answer); /* a zeroed one may be freed */

/* An sl_outparse_fn; the user is the answer. A closed standard output is not an error here: see
 * sl_out_failed. */
sl_status sl_answer_take(void *user, const sl_outparse_event *event, sl_error *err);

/* The end of the last line. */
void sl_answer_finish(sl_answer *answer);

#endif
