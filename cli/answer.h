/* Where an answer goes while it is being generated: tokens in, whole characters out.
 *
 * The thinking of a model (between <think>, which the template has usually written already, and
 * </think>) is kept apart from its answer. Nothing after </think> is thinking again. */
#ifndef SL_CLI_ANSWER_H
#define SL_CLI_ANSWER_H

#include "generate.h"
#include "text/decode.h"
#include "text/stop.h"

/* The prompt ends inside of a think block. */
bool sl_prompt_thinks(const sl_tokenizer *tokenizer, const sl_ids *prompt);

typedef enum sl_answer_mode {
    SL_ANSWER_PLAIN,    /* answer on standard output, thinking dimmed on standard error */
    SL_ANSWER_THINKING, /* both on standard output, with their tags */
    SL_ANSWER_RAW,      /* everything on standard output, nothing kept apart */
    SL_ANSWER_COLLECT   /* both into the buffers below, for JSON */
} sl_answer_mode;

typedef struct sl_answer {
    sl_answer_mode mode;
    int32_t think, end_think; /* ids of the tags, or -1 */
    bool thinking;            /* the next token is */
    bool thought;             /* there was some */
    bool begun;               /* the answer has begun: line ends count from now on */
    char last;                /* the last byte written to standard output, 0 = none */
    sl_decoder decoder;
    sl_buf piece;               /* what one token made certain */
    sl_stop_stream stop;        /* over the answer, not the thinking */
    sl_buf certain;             /* what the stop strings let through of a piece */
    sl_buf text, thinking_text; /* SL_ANSWER_COLLECT */
} sl_answer;

/* The prompt tells whether the model begins in the middle of its thinking. With split false nothing
 * is looked for. stops is borrowed. */
void sl_answer_begin(sl_answer *answer, sl_answer_mode mode, bool split,
                     const sl_tokenizer *tokenizer, const sl_ids *prompt, const sl_stops *stops);
void sl_answer_free(sl_answer *answer);

/* Control tokens are not shown. A closed standard output is not an error here: see
 * sl_out_failed. */
sl_status sl_answer_push(sl_answer *answer, int32_t token, sl_error *err);

/* The same as the user of an sl_token_sink. */
sl_token_sink sl_answer_sink(sl_answer *answer);

/* A stop string has come: the answer ends before it, whatever is pushed. */
bool sl_answer_stopped(const sl_answer *answer);

/* The end of the last character, and of the last line. */
sl_status sl_answer_finish(sl_answer *answer, sl_error *err);

#endif
