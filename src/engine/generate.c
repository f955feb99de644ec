/* One answer from prompt to end: steps of an answer by itself. */
#include "engine/completion.h"

sl_status sl_generate(sl_state *state, const int32_t *prompt, size_t n_prompt,
                      const sl_generate_params *params, sl_event_fn fn, void *user,
                      sl_generate_result *result, sl_error *err)
{
    *result = (sl_generate_result){.finish = SL_FINISH_CANCELLED, .stop = -1, .reuse = {.why = ""}};
    sl_completion *answer = NULL;
    SL_TRY(sl_completion_create(state, prompt, n_prompt, params, fn, user, &answer, err));
    sl_error why;
    sl_status status = SL_OK;
    while (status == SL_OK && !sl_completion_ended(answer))
        status = sl_engine_step(state->engine, &answer, 1, 0, &why);
    if (status != SL_OK)
        sl_completion_end(answer, status, &why);
    status = sl_completion_result(answer, result, err);
    sl_completion_free(answer);
    return status;
}
