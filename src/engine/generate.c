/* One answer to one prompt: the loop around evaluating and sampling. It owns what an answer needs
 * (logits, a sampler, the decoder, stop strings and parser) and takes no memory per token. */
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "engine/engine_internal.h"
#include "engine/sampler.h"
#include "grammar/constraint.h"
#include "text/decode.h"
#include "text/outparse.h"
#include "text/stop.h"

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

typedef struct answer {
    sl_state *state;
    sl_engine *engine;
    const sl_tokenizer *tokenizer;
    const int32_t *prompt;
    size_t n_prompt;
    const sl_generate_params *params;
    sl_event_fn fn;
    void *user;
    sl_generate_result *result;
    bool cancelled;

    sl_sampler *sampler;
    int32_t open_id, close_id; /* of thinking, or -1 */
    bool starts_in_thinking;
    sl_think_rules rules;
    sl_think_budget budget;

    /* With a constraint. */
    bool thinking;         /* it has not begun yet */
    uint32_t *no_stop;     /* while thinking: everything but the stop tokens */
    size_t n_framing;      /* tokens behind the end of thinking that are still to be forced */
    sl_think_rules closed; /* what they are */

    sl_decoder decoder;
    sl_buf piece;        /* what a token made certain */
    sl_outparse *parser; /* NULL when raw */
    bool broken;         /* the text side failed: it cannot go on, nor finish */
    sl_stops *stops;
    sl_stop_stream stop;
    sl_buf certain; /* what the stop strings let through */
} answer;

/* ---- events ---- */

static void tell(answer *a, const sl_event *event)
{
    if (a->fn && a->fn(a->user, event))
        a->cancelled = true;
}

static void tell_output(answer *a, const sl_outparse_event *output)
{
    const sl_event event = {.kind = SL_EVENT_OUTPUT, .output = output};
    tell(a, &event);
}

static void tell_content(answer *a)
{
    const sl_outparse_event content = {.kind = SL_OUTPARSE_CONTENT,
                                       .text = {a->certain.data, a->certain.n_bytes}};
    if (content.text.n_bytes > 0)
        tell_output(a, &content);
}

static bool stopped(const answer *a)
{
    return a->stop.found >= 0;
}

/* ---- from text to events ---- */

static sl_status push_content(answer *a, sl_str text, sl_error *err)
{
    sl_buf_clear(&a->certain);
    SL_TRY(sl_stop_push(&a->stop, text.data, text.n_bytes, &a->certain, err));
    tell_content(a);
    return SL_OK;
}

/* Nothing that follows can belong to a stop string begun before. */
static sl_status release_content(answer *a, sl_error *err)
{
    sl_buf_clear(&a->certain);
    SL_TRY(sl_stop_flush(&a->stop, &a->certain, err));
    tell_content(a);
    return SL_OK;
}

/* An sl_outparse_fn. */
static sl_status on_output(void *user, const sl_outparse_event *output, sl_error *err)
{
    answer *a = user;
    if (stopped(a))
        return SL_OK;
    if (output->kind == SL_OUTPARSE_CONTENT)
        return push_content(a, output->text, err);
    SL_TRY(release_content(a, err));
    tell_output(a, output);
    return SL_OK;
}

static sl_status push_text(answer *a, sl_error *err)
{
    const sl_str text = {a->piece.data, a->piece.n_bytes};
    const sl_status status = a->parser ? sl_outparse_push(a->parser, text.data, text.n_bytes, err)
                                       : push_content(a, text, err);
    a->broken = status != SL_OK;
    return status;
}

static sl_status push_token(answer *a, int32_t token, sl_error *err)
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
static sl_status finish_text(answer *a, sl_error *err)
{
    if (a->broken)
        return SL_OK;
    sl_buf_clear(&a->piece);
    SL_TRY(sl_decoder_flush(&a->decoder, &a->piece, err));
    SL_TRY(push_text(a, err));
    if (a->parser) {
        SL_TRY(sl_outparse_finish(a->parser, err));
        a->result->flags = sl_outparse_flags_of(a->parser);
        a->result->n_calls = sl_outparse_n_calls(a->parser);
    }
    return release_content(a, err);
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
static bool ends_in_thinking(const answer *a)
{
    for (size_t i = a->n_prompt; i > 0 && a->open_id >= 0; i--) {
        if (a->prompt[i - 1] == a->open_id || a->prompt[i - 1] == a->close_id)
            return a->prompt[i - 1] == a->open_id;
    }
    return false;
}

static sl_status make_parser(answer *a, sl_error *err)
{
    if (a->params->raw)
        return SL_OK;
    const sl_constraint *constraint = a->params->constraint;
    const sl_outparse_params params = {.tools = a->params->tools,
                                       .starts_in_thinking = a->starts_in_thinking,
                                       .ignore_calls =
                                           a->params->ignore_calls ||
                                           (constraint && !sl_constraint_is_calls(constraint))};
    return sl_outparse_create(&params, on_output, a, &a->parser, err);
}

static sl_status make_sampler(answer *a, sl_error *err)
{
    SL_TRY(sl_engine_sampler(a->engine, &a->params->sampling, &a->sampler, err));
    if (a->params->breakers)
        sl_sampler_set_breakers(a->sampler, a->params->breakers);
    return SL_OK;
}

static sl_status make_budget(answer *a, sl_error *err)
{
    const sl_generate_params *params = a->params;
    if (!params->limit_thinking)
        return SL_OK;
    SL_TRY(sl_think_rules_create(a->tokenizer, params->think_budget, params->think_grace, &a->rules,
                                 err));
    a->budget = sl_think_budget_begin(&a->rules, a->starts_in_thinking,
                                      sl_tokenizer_bytes(a->tokenizer, a->prompt[a->n_prompt - 1]));
    return SL_OK;
}

/* Thinking is free of the form, and may not end the answer: there would be none. */
static sl_status make_constraint(answer *a, sl_error *err)
{
    const uint32_t vocab = a->engine->config.vocab;
    if (!a->params->constraint || !a->starts_in_thinking)
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

static sl_status make_ready(answer *a, sl_error *err)
{
    SL_TRY(sl_engine_tokenizer(a->engine, &a->tokenizer, err));
    a->open_id = sl_tokenizer_find(a->tokenizer, "<think>");
    a->close_id = sl_tokenizer_find(a->tokenizer, "</think>");
    a->starts_in_thinking = !a->params->raw && ends_in_thinking(a);
    a->decoder = sl_decoder_of(a->tokenizer, true);
    SL_TRY(sl_stops_create(a->params->stops, a->params->n_stops, &a->stops, err));
    a->stop = sl_stop_stream_of(a->stops);
    SL_TRY(make_parser(a, err));
    SL_TRY(make_sampler(a, err));
    SL_TRY(make_constraint(a, err));
    return make_budget(a, err);
}

static void release(answer *a)
{
    sl_sampler_destroy(a->sampler);
    sl_free(a->no_stop);
    sl_buf_free(&a->piece);
    sl_outparse_free(a->parser);
    sl_stops_destroy(a->stops);
    sl_buf_free(&a->certain);
}

/* ---- the prompt ---- */

typedef struct reading {
    answer *a;
    size_t done, total; /* tokens, before the present call */
} reading;

static bool on_progress(void *context, size_t done, size_t total)
{
    (void)total;
    const reading *r = context;
    const sl_event event = {.kind = SL_EVENT_PROMPT, .done = r->done + done, .total = r->total};
    tell(r->a, &event);
    return r->a->cancelled;
}

/* Evaluates the prompt up to `end`. */
static sl_status read_to(reading *r, size_t end, bool keep_logits, sl_error *err)
{
    answer *a = r->a;
    const size_t start = a->state->length;
    const sl_eval_item item = {.state = a->state,
                               .tokens = a->prompt + start,
                               .n_tokens = end - start,
                               .keep_logits = keep_logits};
    const sl_eval_options options = {
        .max_rows = a->params->max_rows, .progress = on_progress, .progress_context = r};
    SL_TRY(sl_engine_eval(a->engine, &item, 1, &options, err));
    r->done += end - start;
    (void)on_progress(r, 0, 0);
    return a->cancelled ? sl_fail(err, SL_ERR_CANCELLED, "stopped while the prompt was read")
                        : SL_OK;
}

static sl_status read_prompt(answer *a, sl_error *err)
{
    SL_TRY(sl_state_sync(a->state, a->prompt, a->n_prompt, &a->result->reuse, err));
    reading r = {.a = a, .total = a->n_prompt - a->state->length};
    if (on_progress(&r, 0, 0))
        return sl_fail(err, SL_ERR_CANCELLED, "stopped before the prompt was read");
    for (size_t i = 0; i < a->params->n_marks; i++) {
        const sl_prompt_mark *mark = &a->params->marks[i];
        if (mark->position <= a->state->length || mark->position >= a->n_prompt)
            continue;
        SL_TRY(read_to(&r, mark->position, false, err));
        /* A convenience: without memory for it the answer is still good. */
        if (sl_state_checkpoint(a->state, mark->anchor, NULL) != SL_OK)
            sl_log(SL_LOG_WARNING, "no memory for a checkpoint at position %u", mark->position);
    }
    return read_to(&r, a->n_prompt, true, err);
}

/* ---- the answer ---- */

static sl_status tell_token(answer *a, int32_t token, sl_error *err)
{
    sl_logprob top[SL_MAX_TOP];
    sl_event event = {.kind = SL_EVENT_TOKEN, .token = token, .top = top};
    if (a->params->logprobs) {
        const float *logits;
        SL_TRY(sl_state_logits(a->state, &logits, err));
        SL_TRY(sl_sampler_logprobs(a->sampler, logits, a->engine->config.vocab, a->state->length,
                                   token, &event.logprob, top, a->params->n_top, &event.n_top,
                                   err));
    }
    tell(a, &event);
    return SL_OK;
}

/* The token that has to come, or -1: the end of thinking that has used up its budget, or the line
 * breaks behind thinking. */
static int32_t forced_token(const answer *a)
{
    if (a->n_framing > 0)
        return a->closed.end[a->closed.n_end - a->n_framing];
    return a->params->limit_thinking ? sl_think_budget_forced(&a->budget, &a->rules) : -1;
}

static sl_status allowed_tokens(const answer *a, const uint32_t **allowed, sl_error *err)
{
    *allowed = a->no_stop;
    if (!a->params->constraint || a->thinking || a->n_framing > 0)
        return SL_OK;
    return sl_constraint_allowed(a->params->constraint, allowed, err);
}

/* The form begins behind the end of thinking and what is written after that. */
static sl_status constrain(answer *a, int32_t token, sl_error *err)
{
    if (!a->params->constraint)
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
    return sl_constraint_accept(a->params->constraint, token, err);
}

static sl_status choose(answer *a, int32_t *token, sl_error *err)
{
    const bool limited = a->params->limit_thinking;
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
    a->result->n_tokens++;
    SL_TRY(constrain(a, *token, err));
    if (limited) {
        sl_think_budget_push(&a->budget, &a->rules, *token,
                             sl_tokenizer_bytes(a->tokenizer, *token));
        a->result->n_forced = a->budget.n_forced;
    }
    return tell_token(a, *token, err);
}

/* Whether the answer ends with this token, and why. */
static sl_status ends(answer *a, int32_t token, bool *end, sl_error *err)
{
    *end = true;
    a->result->finish = SL_FINISH_STOP;
    if (sl_engine_is_stop(a->engine, token))
        return SL_OK;
    SL_TRY(push_token(a, token, err));
    if (stopped(a))
        return SL_OK;
    a->result->finish = SL_FINISH_CANCELLED;
    if (a->cancelled)
        return SL_OK;
    a->result->finish = SL_FINISH_LENGTH;
    *end = a->result->n_tokens == a->params->max_tokens || a->state->length >= a->state->context;
    return SL_OK;
}

static sl_status write_answer(answer *a, sl_error *err)
{
    for (;;) {
        int32_t token;
        bool end;
        SL_TRY(choose(a, &token, err));
        SL_TRY(ends(a, token, &end, err));
        if (end)
            return SL_OK;
        const sl_eval_item item = {
            .state = a->state, .tokens = &token, .n_tokens = 1, .keep_logits = true};
        SL_TRY(sl_engine_eval(a->engine, &item, 1, NULL, err));
        a->result->n_steps++;
    }
}

static sl_status run(answer *a, sl_error *err)
{
    const uint64_t start = sl_clock_ns();
    sl_status status = read_prompt(a, err);
    const uint64_t read = sl_clock_ns();
    a->result->prompt_ns = read - start;
    if (status == SL_OK) {
        status = write_answer(a, err);
        a->result->answer_ns = sl_clock_ns() - read;
    }
    if (status == SL_ERR_CANCELLED) {
        a->result->finish = SL_FINISH_CANCELLED;
        status = SL_OK;
    }
    /* What is there is given out, whatever ended the answer. */
    const sl_status finished = finish_text(a, status == SL_OK ? err : NULL);
    a->result->stop = a->stop.found;
    if (stopped(a)) /* perhaps only in what was held back until the end */
        a->result->finish = SL_FINISH_STOP;
    return status != SL_OK ? status : finished;
}

sl_status sl_generate(sl_state *state, const int32_t *prompt, size_t n_prompt,
                      const sl_generate_params *params, sl_event_fn fn, void *user,
                      sl_generate_result *result, sl_error *err)
{
    *result = (sl_generate_result){.finish = SL_FINISH_CANCELLED, .stop = -1, .reuse = {.why = ""}};
    SL_TRY(check_call(state, prompt, n_prompt, params, err));
    answer a = {.state = state,
                .engine = state->engine,
                .prompt = prompt,
                .n_prompt = n_prompt,
                .params = params,
                .fn = fn,
                .user = user,
                .result = result};
    sl_buf_init(&a.piece, SL_MEM_TEXT, MAX_PIECE);
    sl_buf_init(&a.certain, SL_MEM_TEXT, MAX_PIECE);
    sl_status status = make_ready(&a, err);
    if (status == SL_OK)
        status = run(&a, err);
    release(&a);
    return status;
}
