/* One answer to one prompt: from logits to tokens, from tokens to text, from text to events. It
 * owns what an answer needs besides its state (sampler, decoder, stop strings, parser) and takes no
 * memory per token. Evaluating is in step.c. */
#include "engine/completion.h"

#include <string.h>

#include "base/clock.h"
#include "grammar/constraint.h"

enum { MAX_PIECE = 1 << 30 };

const char *sl_finish_name(sl_finish finish)
{
    static const char *const names[] = {"stop", "length", "cancelled"};
    return (unsigned)finish < SL_COUNTOF(names) ? names[finish] : "unknown";
}

sl_generate_params sl_generate_params_default(const sl_engine *engine)
{
    return (sl_generate_params){.sampling = sl_engine_sampling(engine),
                                .think_grace = SL_THINK_DEFAULT_GRACE};
}

/* ---- events ---- */

static void tell(sl_completion *a, const sl_event *event)
{
    if (a->fn && a->fn(a->user, event))
        a->cancelled = true;
}

static void tell_output(sl_completion *a, const sl_outparse_event *output)
{
    const sl_event event = {.kind = SL_EVENT_OUTPUT, .output = output};
    tell(a, &event);
}

static void tell_content(sl_completion *a)
{
    const sl_outparse_event content = {.kind = SL_OUTPARSE_CONTENT,
                                       .text = {a->certain.data, a->certain.n_bytes}};
    if (content.text.n_bytes > 0)
        tell_output(a, &content);
}

void sl_completion_tell_progress(sl_completion *a)
{
    const sl_event event = {.kind = SL_EVENT_PROMPT,
                            .done = a->state->length - a->start,
                            .total = a->n_prompt - a->start};
    tell(a, &event);
}

static bool stopped(const sl_completion *a)
{
    return a->stop.found >= 0;
}

/* ---- from text to events ---- */

static sl_status push_content(sl_completion *a, sl_str text, sl_error *err)
{
    sl_buf_clear(&a->certain);
    SL_TRY(sl_stop_push(&a->stop, text.data, text.n_bytes, &a->certain, err));
    tell_content(a);
    return SL_OK;
}

/* Nothing that follows can belong to a stop string begun before. */
static sl_status release_content(sl_completion *a, sl_error *err)
{
    sl_buf_clear(&a->certain);
    SL_TRY(sl_stop_flush(&a->stop, &a->certain, err));
    tell_content(a);
    return SL_OK;
}

/* An sl_outparse_fn. */
static sl_status on_output(void *user, const sl_outparse_event *output, sl_error *err)
{
    sl_completion *a = user;
    if (stopped(a))
        return SL_OK;
    if (output->kind == SL_OUTPARSE_CONTENT)
        return push_content(a, output->text, err);
    SL_TRY(release_content(a, err));
    tell_output(a, output);
    return SL_OK;
}

static sl_status push_text(sl_completion *a, sl_error *err)
{
    const sl_str text = {a->piece.data, a->piece.n_bytes};
    const sl_status status = a->parser ? sl_outparse_push(a->parser, text.data, text.n_bytes, err)
                                       : push_content(a, text, err);
    a->broken = status != SL_OK;
    return status;
}

static sl_status push_token(sl_completion *a, int32_t token, sl_error *err)
{
    sl_buf_clear(&a->piece);
    if (a->parser && (token == a->open_id || token == a->close_id)) {
        /* The parser needs the tags, also of a model that hides them. */
        const sl_str tag = sl_tokenizer_bytes(a->tokenizer, token);
        SL_TRY(sl_decoder_flush(&a->decoder, &a->piece, err));
        SL_TRY(sl_buf_append(&a->piece, tag.data, tag.n_bytes, err));
    } else {
        SL_TRY(sl_decoder_push(&a->decoder, token, &a->piece, err));
    }
    return push_text(a, err);
}

/* The end of the last character, of open calls and of what may have become a stop string. */
static sl_status finish_text(sl_completion *a, sl_error *err)
{
    if (a->broken)
        return SL_OK;
    sl_buf_clear(&a->piece);
    SL_TRY(sl_decoder_flush(&a->decoder, &a->piece, err));
    SL_TRY(push_text(a, err));
    if (a->parser) {
        SL_TRY(sl_outparse_finish(a->parser, err));
        a->result.flags = sl_outparse_flags_of(a->parser);
        a->result.n_calls = sl_outparse_n_calls(a->parser);
    }
    return release_content(a, err);
}

/* ---- the next token ---- */

static sl_status tell_token(sl_completion *a, int32_t token, sl_error *err)
{
    sl_logprob top[SL_MAX_TOP];
    sl_event event = {.kind = SL_EVENT_TOKEN, .token = token, .top = top};
    if (a->params.logprobs) {
        const float *logits;
        SL_TRY(sl_state_logits(a->state, &logits, err));
        SL_TRY(sl_sampler_logprobs(a->sampler, logits, a->engine->config.vocab, a->state->length,
                                   token, &event.logprob, top, a->params.n_top, &event.n_top, err));
    }
    tell(a, &event);
    return SL_OK;
}

/* The token that has to come, or -1: the end of thinking that has used up its budget, or the line
 * breaks behind thinking. */
static int32_t forced_token(const sl_completion *a)
{
    if (a->n_framing > 0)
        return a->closed.end[a->closed.n_end - a->n_framing];
    return a->params.limit_thinking ? sl_think_budget_forced(&a->budget, &a->rules) : -1;
}

static sl_status allowed_tokens(const sl_completion *a, const uint32_t **allowed, sl_error *err)
{
    *allowed = a->no_stop;
    if (!a->params.constraint || a->thinking || a->n_framing > 0)
        return SL_OK;
    return sl_constraint_allowed(a->params.constraint, allowed, err);
}

/* The form begins behind the end of thinking and what is written after that. */
static sl_status constrain(sl_completion *a, int32_t token, sl_error *err)
{
    if (!a->params.constraint)
        return SL_OK;
    if (a->thinking) {
        a->thinking = token != a->close_id;
        for (size_t i = 0; !a->thinking && i < a->closed.n_end; i++) {
            if (a->closed.end[i] == a->close_id)
                a->n_framing = a->closed.n_end - i - 1;
        }
        return SL_OK;
    }
    if (a->n_framing > 0) {
        a->n_framing--;
        return SL_OK;
    }
    return sl_constraint_accept(a->params.constraint, token, err);
}

static sl_status choose(sl_completion *a, int32_t *token, sl_error *err)
{
    const bool limited = a->params.limit_thinking;
    const int32_t forced = forced_token(a);
    const uint32_t *allowed;
    SL_TRY(allowed_tokens(a, &allowed, err));
    const sl_sample_context context = {
        .history = {.tokens = a->state->tokens,
                    .n_tokens = a->state->length,
                    .n_prompt = a->n_prompt},
        .position = a->state->length,
        .allowed = allowed,
        .forced = forced >= 0 ? &forced : NULL,
    };
    SL_TRY(sl_state_sample(a->state, a->sampler, &context, token, err));
    a->result.n_tokens++;
    SL_TRY(constrain(a, *token, err));
    if (limited) {
        sl_think_budget_push(&a->budget, &a->rules, *token,
                             sl_tokenizer_bytes(a->tokenizer, *token));
        a->result.n_forced = a->budget.n_forced;
    }
    return tell_token(a, *token, err);
}

/* Whether the answer ends with this token, and why. */
static sl_status ends(sl_completion *a, int32_t token, bool *end, sl_error *err)
{
    *end = true;
    a->result.finish = SL_FINISH_STOP;
    if (sl_engine_is_stop(a->engine, token))
        return SL_OK;
    SL_TRY(push_token(a, token, err));
    if (stopped(a))
        return SL_OK;
    a->result.finish = SL_FINISH_CANCELLED;
    if (a->cancelled)
        return SL_OK;
    a->result.finish = SL_FINISH_LENGTH;
    *end = a->result.n_tokens == a->params.max_tokens || a->state->length >= a->state->context;
    return SL_OK;
}

void sl_completion_choose(sl_completion *a)
{
    sl_error err;
    bool end = true;
    a->phase = SL_COMPLETION_WRITING;
    sl_status status = choose(a, &a->token, &err);
    if (status == SL_OK)
        status = ends(a, a->token, &end, &err);
    if (status != SL_OK || end)
        sl_completion_end(a, status, &err);
}

void sl_completion_end(sl_completion *a, sl_status status, const sl_error *why)
{
    sl_error err;
    const uint64_t now = sl_clock_ns();
    if (a->phase == SL_COMPLETION_READING)
        a->result.prompt_ns = a->begun ? now - a->begin_ns : 0;
    else
        a->result.answer_ns = now - a->read_ns;
    a->phase = SL_COMPLETION_ENDED;
    if (status != SL_OK && why)
        a->why = *why;
    a->status = status;
    /* What is there is given out, whatever ended the answer. */
    const sl_status finished = finish_text(a, &err);
    if (status == SL_OK && finished != SL_OK) {
        a->status = finished;
        a->why = err;
    }
    a->result.stop = a->stop.found;
    if (stopped(a)) /* perhaps only in what was held back until the end */
        a->result.finish = SL_FINISH_STOP;
}

/* ---- making ready ---- */

static sl_status check_call(const sl_state *state, const int32_t *prompt, size_t n_prompt,
                            const sl_generate_params *params, sl_error *err)
{
    if (n_prompt == 0 || !prompt)
        return sl_fail(err, SL_ERR_ARGUMENT, "the prompt is empty");
    if (n_prompt > state->context)
        return sl_fail(err, SL_ERR_CONTEXT, "the prompt has %zu tokens, the context holds %u",
                       n_prompt, state->context);
    for (size_t i = 0; i < n_prompt; i++) {
        if (prompt[i] < 0 || (uint32_t)prompt[i] >= state->engine->config.vocab)
            return sl_fail(err, SL_ERR_ARGUMENT,
                           "token %zu of the prompt is %d, the vocabulary "
                           "has %u",
                           i, prompt[i], state->engine->config.vocab);
    }
    if (params->n_top > SL_MAX_TOP)
        return sl_fail(err, SL_ERR_ARGUMENT, "n_top is %u, it may be %d", params->n_top,
                       SL_MAX_TOP);
    if (params->constraint &&
        sl_constraint_n_vocab(params->constraint) != state->engine->config.vocab)
        return sl_fail(err, SL_ERR_ARGUMENT, "the constraint is for %zu tokens, the model has %u",
                       sl_constraint_n_vocab(params->constraint), state->engine->config.vocab);
    return sl_check_reserved(params->reserved, SL_COUNTOF(params->reserved), "sl_generate_params",
                             err);
}

/* Whether the prompt leaves the model in the middle of its thinking. */
static bool ends_in_thinking(const sl_completion *a)
{
    for (size_t i = a->n_prompt; i > 0 && a->open_id >= 0; i--) {
        if (a->prompt[i - 1] == a->open_id || a->prompt[i - 1] == a->close_id)
            return a->prompt[i - 1] == a->open_id;
    }
    return false;
}

static sl_status make_parser(sl_completion *a, sl_error *err)
{
    if (a->params.raw)
        return SL_OK;
    const sl_constraint *constraint = a->params.constraint;
    const sl_outparse_params params = {.tools = a->params.tools,
                                       .starts_in_thinking = a->starts_in_thinking,
                                       .ignore_calls =
                                           a->params.ignore_calls ||
                                           (constraint && !sl_constraint_is_calls(constraint))};
    return sl_outparse_create(&params, on_output, a, &a->parser, err);
}

static sl_status make_sampler(sl_completion *a, sl_error *err)
{
    SL_TRY(sl_engine_sampler(a->engine, &a->params.sampling, &a->sampler, err));
    if (a->params.breakers)
        sl_sampler_set_breakers(a->sampler, a->params.breakers);
    return SL_OK;
}

static sl_status make_budget(sl_completion *a, sl_error *err)
{
    const sl_generate_params *params = &a->params;
    if (!params->limit_thinking)
        return SL_OK;
    SL_TRY(sl_think_rules_create(a->tokenizer, params->think_budget, params->think_grace, &a->rules,
                                 err));
    a->budget = sl_think_budget_begin(&a->rules, a->starts_in_thinking,
                                      sl_tokenizer_bytes(a->tokenizer, a->prompt[a->n_prompt - 1]));
    return SL_OK;
}

/* Thinking is free of the form, and may not end the answer: there would be none. */
static sl_status make_constraint(sl_completion *a, sl_error *err)
{
    const uint32_t vocab = a->engine->config.vocab;
    if (!a->params.constraint || !a->starts_in_thinking)
        return SL_OK;
    SL_TRY(sl_think_rules_create(a->tokenizer, 0, 0, &a->closed, err));
    a->no_stop = sl_alloc(SL_MEM_TEXT, (vocab / 32 + 1) * sizeof *a->no_stop);
    if (!a->no_stop)
        return sl_fail(err, SL_ERR_MEMORY, "out of memory for a mask of %u tokens", vocab);
    memset(a->no_stop, 0xFF, (vocab / 32 + 1) * sizeof *a->no_stop);
    for (uint32_t id = 0; id < vocab; id++) {
        if (sl_engine_is_stop(a->engine, (int32_t)id))
            a->no_stop[id / 32] &= ~((uint32_t)1 << (id % 32));
    }
    a->thinking = true;
    return SL_OK;
}

static sl_status make_ready(sl_completion *a, sl_error *err)
{
    SL_TRY(sl_engine_tokenizer(a->engine, &a->tokenizer, err));
    a->open_id = sl_tokenizer_find(a->tokenizer, "<think>");
    a->close_id = sl_tokenizer_find(a->tokenizer, "</think>");
    a->starts_in_thinking = !a->params.raw && ends_in_thinking(a);
    a->decoder = sl_decoder_of(a->tokenizer, true);
    SL_TRY(sl_stops_create(a->params.stops, a->params.n_stops, &a->stops, err));
    a->stop = sl_stop_stream_of(a->stops);
    SL_TRY(make_parser(a, err));
    SL_TRY(make_sampler(a, err));
    SL_TRY(make_constraint(a, err));
    SL_TRY(make_budget(a, err));
    SL_TRY(sl_state_sync(a->state, a->prompt, a->n_prompt, &a->result.reuse, err));
    a->start = a->state->length;
    return SL_OK;
}

sl_status sl_completion_create(sl_state *state, const int32_t *prompt, size_t n_prompt,
                               const sl_generate_params *params, sl_event_fn fn, void *user,
                               sl_completion **out, sl_error *err)
{
    SL_TRY(check_call(state, prompt, n_prompt, params, err));
    sl_completion *a = sl_alloc_zero(SL_MEM_GENERAL, sizeof *a);
    if (!a)
        return sl_fail(err, SL_ERR_MEMORY, "out of memory for an answer");
    a->state = state;
    a->engine = state->engine;
    a->prompt = prompt;
    a->n_prompt = n_prompt;
    a->params = *params;
    a->fn = fn;
    a->user = user;
    a->result =
        (sl_generate_result){.finish = SL_FINISH_CANCELLED, .stop = -1, .reuse = {.why = ""}};
    sl_buf_init(&a->piece, SL_MEM_TEXT, MAX_PIECE);
    sl_buf_init(&a->certain, SL_MEM_TEXT, MAX_PIECE);
    const sl_status status = make_ready(a, err);
    if (status != SL_OK) {
        sl_completion_free(a);
        return status;
    }
    *out = a;
    return SL_OK;
}

void sl_completion_free(sl_completion *answer)
{
    if (!answer)
        return;
    sl_sampler_destroy(answer->sampler);
    sl_free(answer->no_stop);
    sl_buf_free(&answer->piece);
    sl_outparse_free(answer->parser);
    sl_stops_destroy(answer->stops);
    sl_buf_free(&answer->certain);
    sl_free(answer);
}

void sl_completion_cancel(sl_completion *answer)
{
    answer->cancelled = true;
}

bool sl_completion_ended(const sl_completion *answer)
{
    return answer->phase == SL_COMPLETION_ENDED;
}

sl_status sl_completion_result(const sl_completion *answer, sl_generate_result *result,
                               sl_error *err)
{
    *result = answer->result;
    if (answer->status != SL_OK && err)
        *err = answer->why;
    return answer->status;
}
