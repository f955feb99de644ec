/* Renders conversations and asks for answers. */
#include "chat_engine.h"

#include "messages.h"
#include "terminal.h"

static sl_status render(const sl_chat_engine *engine, const sl_talk *talk, sl_ids *ids,
                        sl_marks *marks, sl_error *err)
{
    const sl_messages messages = {
        .messages = talk->messages,
        .tools = talk->tools,
        .think = talk->think,
        .trust_content = engine->trust_content,
    };
    return sl_messages_render(&messages, engine->engine, ids, marks, err);
}

/* Where the answer begins, for every later turn; 0 when the template knows no such place. */
static uint32_t reply_start(const sl_marks *marks)
{
    for (size_t i = 0; i < marks->n; i++) {
        if (marks->items[i].anchor == SL_ANCHOR_REPLY)
            return marks->items[i].position;
    }
    return 0;
}

static sl_status answer_prompt(sl_engine *engine, const sl_chat_turn *turn, const sl_ids *prompt,
                               const sl_marks *marks, sl_chat_answer *answer,
                               sl_chat_report *report, sl_error *err)
{
    sl_generation generation = {
        .engine = engine,
        .state = turn->state,
        .prompt = prompt,
        .params = turn->choices->params,
        .tools = turn->talk->tools,
        .take = sl_chat_answer_take,
        .user = answer,
        .stop = sl_terminal_end_typed,
    };
    generation.params.sampling.seed += turn->talk->attempt;
    generation.params.max_tokens = turn->max_tokens;
    generation.params.marks = marks->items;
    generation.params.n_marks = marks->n;
    *report = (sl_chat_report){.any = true,
                               .n_prompt = (uint32_t)prompt->n,
                               .reply_start = reply_start(marks),
                               .seed = generation.params.sampling.seed};
    SL_TRY(sl_chat_answer_begin(answer, turn->quiet, err));
    const sl_status status = sl_generation_run(&generation, &report->generated, err);
    const uint32_t reused = report->generated.reuse.reused, length = sl_state_length(turn->state);
    report->n_read = report->generated.n_tokens > 0 ? report->n_prompt - reused : length - reused;
    sl_chat_answer_finish(answer);
    return status;
}

sl_status sl_chat_engine_turn(const sl_chat_engine *engine, const sl_chat_turn *turn,
                              json_t **message, sl_chat_report *report, sl_error *err)
{
    *message = NULL;
    sl_ids prompt = {0};
    sl_chat_answer answer = {0};
    sl_marks marks = {.n = 0};
    sl_status status = render(engine, turn->talk, &prompt, &marks, err);
    if (status == SL_OK && prompt.n > engine->context)
        status =
            sl_fail(err, SL_ERR_CONTEXT, "the conversation has %zu tokens, the context holds %u",
                    prompt.n, engine->context);
    if (status == SL_OK)
        status = answer_prompt(engine->engine, turn, &prompt, &marks, &answer, report, err);
    /* Such a failure leaves the state unusable; the checkpoints are as good as before. */
    if (status == SL_ERR_NUMERIC || status == SL_ERR_IO)
        sl_state_reset(turn->state);
    const sl_generate_result *generated = &report->generated;
    if (status == SL_OK && generated->n_tokens > 0)
        status = sl_chat_answer_message(&answer, generated->finish != SL_FINISH_STOP, message, err);
    sl_chat_answer_free(&answer);
    sl_ids_free(&prompt);
    return status;
}

/* ---- settings ---- */

sl_status sl_chat_engine_choose(const sl_chat_engine *engine, const sl_sampling_options *options,
                                sl_choices *choices, sl_error *err)
{
    *choices = (sl_choices){.bias = {{0}}};
    SL_TRY(sl_choices_begin(choices, options, err));
    return sl_choices_finish(choices, options, engine->engine, err);
}

/* ---- files ---- */

sl_status sl_chat_engine_save(sl_state *state, const char *path, const char *own, size_t n,
                              sl_error *err)
{
    return sl_state_save(state, path, own, n, err);
}

sl_status sl_chat_engine_load(const sl_chat_engine *engine, const char *path, sl_state **state,
                              char **own, size_t *n, sl_error *err)
{
    return sl_state_load(engine->engine, path, engine->context, state, own, n, err);
}
