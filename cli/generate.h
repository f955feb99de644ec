/* One answer with the manners of the program: a line of progress while the prompt is read; Ctrl-C,
 * and an output that nobody reads, end it. */
#ifndef SL_CLI_GENERATE_H
#define SL_CLI_GENERATE_H

#include "base/json.h"

typedef struct sl_generation {
    sl_engine *engine;
    sl_state *state;
    const sl_ids *prompt;
    sl_generate_params params; /* tools, ignore_calls and max_rows are set here */
    const json_t *tools;       /* what the model may call; NULL: calls stay text */
    sl_outparse_fn take;       /* gets the parts of the answer as they come */
    void *user;
    bool (*stop)(void); /* another reason to end the answer early, or NULL */
} sl_generation;

/* After an early end the result is SL_OK with what there is. Errors: those of sl_generate and of
 * `take`. */
sl_status sl_generation_run(const sl_generation *generation, sl_generate_result *result,
                            sl_error *err);

/* "stop", "length", "interrupted" */
const char *sl_finish_word(sl_finish finish);

#endif
