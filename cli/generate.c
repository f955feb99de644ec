/* Stands between the library's events and whoever shows the answer. */
#include "generate.h"

#include <string.h>

#include "interrupt.h"
#include "out.h"

enum { TEXT_LIMIT = 1 << 30 };

/* Prompt tokens between two looks at Ctrl-C and two reports of progress. Large pieces are faster
 * (of 0.8 billion parameters on two cores, 256 tokens 1.6 times as fast as 32); a piece of a large
 * model takes long, and nobody wants to wait for it after Ctrl-C. A GPU takes what its engine
 * takes. */
static uint32_t piece_rows(const sl_engine *engine)
{
    enum { MOST = 256, LEAST = 32 };
    static const uint64_t at_most = 4000000000; /* parameters for which pieces are largest */
    sl_model_info model;
    sl_engine_model_info(engine, &model);
    if (strcmp(model.device, "cpu") != 0 || model.n_parameters <= at_most)
        return 0;
    const uint64_t rows = MOST * at_most / model.n_parameters / LEAST * LEAST;
    return rows > LEAST ? (uint32_t)rows : LEAST;
}

const char *sl_finish_word(sl_finish finish)
{
    return finish == SL_FINISH_CANCELLED ? "interrupted" : sl_finish_name(finish);
}

typedef struct running {
    const sl_generation *generation;
    sl_progress line;
    sl_status status; /* of `take` */
    sl_error err;
} running;

/* An sl_event_fn. */
static bool on_event(void *user, const sl_event *event)
{
    running *r = user;
    if (event->kind == SL_EVENT_PROMPT && event->done < event->total)
        sl_progress_update(&r->line, event->done, event->total);
    else
        sl_progress_clear(&r->line);
    if (event->kind == SL_EVENT_OUTPUT && r->status == SL_OK)
        r->status = r->generation->take(r->generation->user, event->output, &r->err);
    return r->status != SL_OK || sl_interrupted() || sl_out_failed() ||
           (r->generation->stop && r->generation->stop());
}

sl_status sl_generation_run(const sl_generation *generation, sl_generate_result *result,
                            sl_error *err)
{
    running r = {.generation = generation, .line = {.label = "reading the prompt"}};
    sl_generate_params params = generation->params;
    const sl_ids *prompt = generation->prompt;
    sl_buf tools;
    sl_status status;
    sl_buf_init(&tools, SL_MEM_TEXT, TEXT_LIMIT);
    *result = (sl_generate_result){.finish = SL_FINISH_CANCELLED};
    if (generation->tools)
        SL_CHECK(sl_json_append(&tools, generation->tools, err));
    params.tools = (sl_str){tools.data, tools.n_bytes};
    params.ignore_calls = !generation->tools;
    params.max_rows = piece_rows(generation->engine);
    status =
        sl_generate(generation->state, prompt->ids, prompt->n, &params, on_event, &r, result, err);
    sl_progress_clear(&r.line);
    if (status == SL_OK && r.status != SL_OK) {
        status = r.status;
        *err = r.err;
    }
done:
    sl_buf_free(&tools);
    return status;
}
