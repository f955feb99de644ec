/* Renders conversations, finds their borders, and asks for answers. */
#include "chat_engine.h"

#include <string.h>

#include "messages.h"

enum { MAX_MARKS = 3 };

/* Stands where the text of another turn will stand. */
static const char any_text[] = "\xC2\xB7";

/* ---- from messages to tokens ---- */

static sl_status render(const sl_chat_engine *engine, const sl_talk *talk, bool reply, sl_ids *ids,
                        sl_error *err)
{
    const sl_messages messages = {
        .messages = talk->messages,
        .tools = talk->tools,
        .think = talk->think,
        .no_reply = !reply,
        .trust_content = engine->trust_content,
    };
    return sl_messages_render(&messages, engine->engine, ids, err);
}

static sl_status append_any(sl_talk *talk, const char *role, sl_error *err)
{
    return sl_talk_add(talk, role, any_text, sizeof any_text - 1, err);
}

/* The tokens that the prompt has in common with another conversation; 0 when the template refuses
 * that one. Takes `other` over. */
static sl_status in_common(const sl_chat_engine *engine, const sl_ids *prompt, sl_talk *other,
                           uint32_t *n, sl_error *err)
{
    sl_ids ids = {0};
    *n = 0;
    sl_status status = render(engine, other, false, &ids, err);
    while (status == SL_OK && *n < prompt->n && *n < ids.n && prompt->ids[*n] == ids.ids[*n])
        ++*n;
    sl_ids_free(&ids);
    sl_talk_free(other);
    return status == SL_ERR_MEMORY ? status : SL_OK;
}

/* What stays of the prompt whatever the user says first. */
static sl_status find_system_end(const sl_chat_engine *engine, const sl_talk *talk,
                                 const sl_ids *prompt, uint32_t *n, sl_error *err)
{
    *n = 0;
    if (!sl_talk_system(talk) && !talk->tools)
        return SL_OK;
    sl_talk other;
    SL_TRY(sl_talk_copy(talk, &other, err));
    sl_talk_clear(&other);
    const sl_status status = append_any(&other, "user", err);
    if (status != SL_OK) {
        sl_talk_free(&other);
        return status;
    }
    return in_common(engine, prompt, &other, n, err);
}

/* What stays of it whatever is said in place of the last message. */
static sl_status find_turn_start(const sl_chat_engine *engine, const sl_talk *talk,
                                 const sl_ids *prompt, uint32_t *n, sl_error *err)
{
    sl_talk other;
    const json_t *last = json_array_get(talk->messages, json_array_size(talk->messages) - 1);
    SL_TRY(sl_talk_copy(talk, &other, err));
    sl_talk_drop(&other);
    const sl_status status =
        append_any(&other, json_string_value(json_object_get(last, "role")), err);
    if (status != SL_OK) {
        sl_talk_free(&other);
        return status;
    }
    return in_common(engine, prompt, &other, n, err);
}

/* What stays of it when the answer has become an earlier turn's. */
static sl_status find_reply_start(const sl_chat_engine *engine, const sl_talk *talk,
                                  const sl_ids *prompt, uint32_t *n, sl_error *err)
{
    sl_talk other;
    SL_TRY(sl_talk_copy(talk, &other, err));
    sl_status status = append_any(&other, "assistant", err);
    if (status == SL_OK)
        status = append_any(&other, "user", err);
    if (status != SL_OK) {
        sl_talk_free(&other);
        return status;
    }
    return in_common(engine, prompt, &other, n, err);
}

/* ---- a turn ---- */

typedef struct borders {
    uint32_t system, turn, reply;
} borders;

static sl_status find_borders(const sl_chat_engine *engine, const sl_talk *talk,
                              const sl_ids *prompt, borders *out, sl_error *err)
{
    SL_TRY(find_system_end(engine, talk, prompt, &out->system, err));
    SL_TRY(find_turn_start(engine, talk, prompt, &out->turn, err));
    return find_reply_start(engine, talk, prompt, &out->reply, err);
}

static sl_status answer_prompt(const sl_chat_engine *engine, const sl_chat_turn *turn,
                               const sl_ids *prompt, sl_chat_answer *answer, sl_chat_report *report,
                               sl_error *err)
{
    borders at;
    SL_TRY(find_borders(engine, turn->talk, prompt, &at, err));
    const sl_prompt_mark marks[MAX_MARKS] = {
        {at.system, SL_ANCHOR_SYSTEM}, {at.turn, SL_ANCHOR_TURN}, {at.reply, SL_ANCHOR_REPLY}};
    sl_generation generation = {
        .state = turn->state,
        .prompt = prompt,
        .params = turn->choices->params,
        .tools = turn->talk->tools,
        .take = sl_chat_answer_take,
        .user = answer,
    };
    generation.params.sampling.seed += turn->talk->attempt;
    generation.params.max_tokens = turn->max_tokens;
    generation.params.marks = marks;
    generation.params.n_marks = MAX_MARKS;
    *report = (sl_chat_report){.any = true,
                               .n_prompt = (uint32_t)prompt->n,
                               .reply_start = at.reply,
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
    sl_status status = render(engine, turn->talk, true, &prompt, err);
    if (status == SL_OK && prompt.n > engine->context)
        status =
            sl_fail(err, SL_ERR_CONTEXT, "the conversation has %zu tokens, the context holds %u",
                    prompt.n, engine->context);
    if (status == SL_OK)
        status = answer_prompt(engine, turn, &prompt, &answer, report, err);
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
