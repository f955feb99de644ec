/* sl_generate: one answer from prompt to end. Against a loop made of its parts, with every way to
 * end, with every failing allocation, and without memory per token. */
#include "hostmode.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "models.h"

#include "base/json.h"
#include "base/mem.h"

static const char tiny[] = "models/tiny-q8_0.gguf";
static const char tools[] =
    "[{\"type\": \"function\", \"function\": {\"name\": \"get_weather\", \"description\": \"Get "
    "the "
    "weather in a city.\", \"parameters\": {\"type\": \"object\", \"properties\": {\"city\": "
    "{\"type\": \"string\"}}, \"required\": [\"city\"]}}}, {\"type\": \"function\", \"function\": "
    "{\"name\": \"search\", \"description\": \"Search the web.\", \"parameters\": {\"type\": "
    "\"object\", \"properties\": {\"query\": {\"type\": \"string\"}}, \"required\": "
    "[\"query\"]}}}]";

static sl_engine *open_engine(size_t checkpoint_budget)
{
    sl_error err;
    sl_engine *engine;
    sl_engine_params params = sl_engine_params_default();
    params.n_threads = 2;
    params.checkpoint_budget = checkpoint_budget;
    assert_ok(sl_engine_open(tiny, &params, &engine, &err));
    return engine;
}

static sl_str str(const char *s)
{
    return (sl_str){s, strlen(s)};
}

/* think: 1 on, 0 off. Append to *ids. */
static void render(const sl_engine *engine, const char *question, bool think,
                   const char *with_tools, sl_ids *ids)
{
    sl_error err;
    char messages[512];
    snprintf(messages, sizeof messages, "[{\"role\": \"user\", \"content\": \"%s\"}]", question);
    const sl_chat chat = {
        .messages = str(messages),
        .tools = str(with_tools),
        .variables = str(think ? "{\"enable_thinking\": true}" : "{\"enable_thinking\": false}"),
    };
    assert_ok(sl_engine_render(engine, &chat, ids, NULL, &err));
}

/* What the events said. */
typedef struct seen {
    char thinking[512], content[512], name[64], arguments[256];
    int32_t tokens[512];
    double logprobs[512];
    size_t n_tokens, n_prompt, total, n_top;
    bool top_is_first;
    size_t cancel_at_token; /* 1 = the first; 0 = never */
    bool cancel_in_prompt;
} seen;

static void add(char *to, size_t capacity, sl_str text)
{
    const size_t n = strlen(to);
    assert_true(text.n_bytes > 0 && n + text.n_bytes < capacity);
    memcpy(to + n, text.data, text.n_bytes);
    to[n + text.n_bytes] = '\0';
}

static bool watch(void *user, const sl_event *event)
{
    seen *s = user;
    switch (event->kind) {
    case SL_EVENT_PROMPT:
        assert_true(s->n_prompt == 0 ? event->done == 0 : event->done <= event->total);
        s->n_prompt++;
        s->total = event->total;
        return s->cancel_in_prompt && event->done > 0;
    case SL_EVENT_TOKEN:
        s->tokens[s->n_tokens] = event->token;
        s->logprobs[s->n_tokens++] = event->logprob;
        s->n_top = event->n_top;
        if (event->n_top > 0)
            s->top_is_first = event->top[0].logprob >= event->logprob;
        return s->n_tokens == s->cancel_at_token;
    case SL_EVENT_OUTPUT:
        break;
    }
    const sl_outparse_event *output = event->output;
    switch (output->kind) {
    case SL_OUTPARSE_THINKING:
        add(s->thinking, sizeof s->thinking, output->text);
        break;
    case SL_OUTPARSE_CONTENT:
        add(s->content, sizeof s->content, output->text);
        break;
    case SL_OUTPARSE_CALL_BEGIN:
        add(s->name, sizeof s->name, output->name);
        break;
    case SL_OUTPARSE_CALL_ARGUMENTS:
        add(s->arguments, sizeof s->arguments, output->text);
        break;
    case SL_OUTPARSE_CALL_END:
        break;
    }
    return false;
}

static sl_generate_params greedy(const sl_engine *engine)
{
    sl_generate_params params = sl_generate_params_default(engine);
    params.sampling = sl_sampling_default();
    return params;
}

static sl_generate_result generate(sl_state *state, const sl_ids *prompt,
                                   const sl_generate_params *params, seen *s)
{
    sl_error err;
    sl_generate_result result;
    assert_ok(sl_generate(state, prompt->ids, prompt->n, params, watch, s, &result, &err));
    return result;
}

static sl_state *new_state(sl_engine *engine, uint32_t context)
{
    sl_error err;
    sl_state *state;
    assert_ok(sl_state_create(engine, context, &state, &err));
    return state;
}

/* ---- what comes out ---- */

/* The same tokens as evaluating and sampling by hand, whatever the pieces of the prompt. */
static void test_equals_its_parts(void **state)
{
    (void)state;
    sl_error err;
    sl_engine *engine = open_engine((size_t)1 << 24);
    const size_t vocab = sl_engine_vocab(engine);
    sl_generate_params params = sl_generate_params_default(engine);
    params.sampling.temperature = 2.0f;
    params.sampling.seed = 5;
    params.sampling.presence_penalty = 0.5f;
    params.max_tokens = 40;
    sl_ids prompt = {0};
    render(engine, "What is the capital of France?", false, "", &prompt);

    float *logits = sl_alloc_array(SL_MEM_GENERAL, vocab, sizeof *logits);
    int32_t expected[40];
    size_t n_expected = 0;
    sl_state *by_hand = new_state(engine, 128);
    sl_sampler *sampler;
    assert_ok(sl_engine_sampler(engine, &params.sampling, &sampler, &err));
    sl_eval_item item = {
        .state = by_hand, .tokens = prompt.ids, .n_tokens = prompt.n, .logits = logits};
    while (n_expected < 40) {
        assert_ok(sl_engine_eval(engine, &item, 1, NULL, &err));
        const sl_sample_context context = {
            .history = {sl_state_tokens(by_hand), sl_state_length(by_hand), prompt.n},
            .position = sl_state_length(by_hand)};
        assert_ok(sl_sample_next(sampler, logits, vocab, &context, &expected[n_expected], &err));
        if (sl_engine_is_stop(engine, expected[n_expected++]))
            break;
        item.tokens = &expected[n_expected - 1];
        item.n_tokens = 1;
    }
    for (uint32_t rows = 0; rows < 3; rows++) {
        seen s = {.n_tokens = 0};
        params.max_rows = rows;
        sl_state *sequence = new_state(engine, 128);
        const sl_generate_result result = generate(sequence, &prompt, &params, &s);
        assert_int_equal(s.n_tokens, n_expected);
        assert_memory_equal(s.tokens, expected, n_expected * sizeof *expected);
        assert_int_equal(result.n_tokens, n_expected);
        assert_int_equal(result.n_steps, n_expected - 1);
        assert_int_equal(sl_state_length(sequence), prompt.n + n_expected - 1);
        assert_memory_equal(sl_state_tokens(sequence), prompt.ids, prompt.n * sizeof *prompt.ids);
        if (rows == 0)
            assert_int_equal(s.n_prompt, 2); /* 0 and all of it */
        if (rows == 1)
            assert_true(s.n_prompt > prompt.n / 2); /* less what another state's checkpoint had */
        sl_state_free(sequence);
    }
    sl_sampler_destroy(sampler);
    sl_state_free(by_hand);
    sl_free(logits);
    sl_ids_free(&prompt);
    sl_engine_close(engine);
}

static void test_parts_of_an_answer(void **state)
{
    (void)state;
    sl_engine *engine = open_engine(0);
    sl_state *sequence = new_state(engine, 1024);
    sl_generate_params params = greedy(engine);
    sl_ids prompt = {0};

    seen s = {.n_tokens = 0};
    render(engine, "What is 47 + 36?", true, "", &prompt);
    sl_generate_result result = generate(sequence, &prompt, &params, &s);
    assert_string_equal(s.content, "47 + 36 = 83.");
    assert_string_equal(s.thinking, "47 + 36: tens 40 + 30 = 70, ones 7 + 6 = 13, together 83.");
    assert_int_equal(result.finish, SL_FINISH_STOP);
    assert_int_equal(result.stop, -1);
    assert_int_equal(result.flags, 0);

    /* Everything is content when raw; control tokens stay out of it. */
    s = (seen){.n_tokens = 0};
    params.raw = true;
    generate(sequence, &prompt, &params, &s);
    assert_string_equal(s.thinking, "");
    assert_string_equal(s.content,
                        "47 + 36: tens 40 + 30 = 70, ones 7 + 6 = 13, together 83.\n</think>\n\n"
                        "47 + 36 = 83.");
    params.raw = false;

    prompt.n = 0;
    s = (seen){.n_tokens = 0};
    render(engine, "What is the weather in Paris?", false, tools, &prompt);
    params.tools = str(tools);
    result = generate(sequence, &prompt, &params, &s);
    assert_string_equal(s.name, "get_weather");
    assert_non_null(strstr(s.arguments, "\"Paris\""));
    assert_int_equal(result.n_calls, 1);
    assert_int_equal(result.flags & SL_OUTPARSE_CALL_UNKNOWN, 0);

    s = (seen){.n_tokens = 0};
    params.ignore_calls = true;
    result = generate(sequence, &prompt, &params, &s);
    assert_string_equal(s.name, "");
    assert_non_null(strstr(s.content, "<tool_call>"));
    assert_int_equal(result.n_calls, 0);
    sl_ids_free(&prompt);
    sl_state_free(sequence);
    sl_engine_close(engine);
}

/* ---- how it ends ---- */

static void test_ends(void **state)
{
    (void)state;
    sl_error err;
    sl_engine *engine = open_engine(0);
    sl_state *sequence = new_state(engine, 128);
    sl_generate_params params = greedy(engine);
    sl_ids prompt = {0};
    render(engine, "What is the capital of France?", false, "", &prompt);

    /* At a stop string, with nothing of it shown, also when it begins inside a token. */
    const sl_str stops[] = {{"never", 5}, {" of Fr", 6}};
    seen s = {.n_tokens = 0};
    params.stops = stops;
    params.n_stops = 2;
    sl_generate_result result = generate(sequence, &prompt, &params, &s);
    assert_int_equal(result.finish, SL_FINISH_STOP);
    assert_int_equal(result.stop, 1);
    assert_string_equal(s.content, "The capital");
    params.n_stops = 1;
    s = (seen){.n_tokens = 0};
    result = generate(sequence, &prompt, &params, &s);
    assert_int_equal(result.stop, -1);
    assert_string_equal(s.content, "The capital of France is Paris.");
    const size_t whole = result.n_tokens;

    /* At one in text that the parser held back, when the last token that may come is that one. */
    const sl_str angle = {"<", 1};
    const sl_tokenizer *tokenizer;
    sl_ids bracket = {0};
    assert_ok(sl_engine_tokenizer(engine, &tokenizer, &err));
    assert_ok(sl_tokenizer_encode(tokenizer, "<", 1, NULL, &bracket, NULL, &err));
    assert_int_equal(bracket.n, 1);
    sl_logit_bias always = {.id = bracket.ids[0], .bias = 1000.0f};
    params.stops = &angle;
    params.max_tokens = 1;
    params.sampling.bias = &always;
    params.sampling.n_bias = 1;
    s = (seen){.n_tokens = 0};
    result = generate(sequence, &prompt, &params, &s);
    assert_int_equal(result.finish, SL_FINISH_STOP);
    assert_int_equal(result.stop, 0);
    assert_string_equal(s.content, "");
    sl_ids_free(&bracket);
    params = greedy(engine);
    params.stops = stops;
    params.n_stops = 1;

    /* After so many tokens; a state that has no more room. */
    for (uint64_t n = 1; n <= whole; n++) {
        s = (seen){.n_tokens = 0};
        params.max_tokens = n;
        result = generate(sequence, &prompt, &params, &s);
        assert_int_equal(result.finish, n < whole ? SL_FINISH_LENGTH : SL_FINISH_STOP);
        assert_int_equal(result.n_tokens, n);
        assert_int_equal(sl_state_length(sequence), prompt.n + n - 1);
    }
    params.max_tokens = 0;
    sl_state *narrow = new_state(engine, (uint32_t)prompt.n + 2);
    result = generate(narrow, &prompt, &params, &(seen){.n_tokens = 0});
    assert_int_equal(result.finish, SL_FINISH_LENGTH);
    assert_int_equal(result.n_tokens, 3);
    sl_state_free(narrow);

    /* When asked to, with what there is; and from there on as if nothing had been. */
    for (size_t at = 1; at < whole; at++) {
        s = (seen){.cancel_at_token = at};
        result = generate(sequence, &prompt, &params, &s);
        assert_int_equal(result.finish, SL_FINISH_CANCELLED);
        assert_int_equal(result.n_tokens, at);
    }
    params.max_rows = 4;
    s = (seen){.cancel_in_prompt = true};
    sl_state_reset(sequence);
    result = generate(sequence, &prompt, &params, &s);
    assert_int_equal(result.finish, SL_FINISH_CANCELLED);
    assert_int_equal(result.n_tokens, 0);
    assert_int_equal(sl_state_length(sequence), 4);
    s = (seen){.n_tokens = 0};
    result = generate(sequence, &prompt, &params, &s);
    assert_int_equal(result.reuse.reused, 4);
    assert_int_equal(s.total, prompt.n - 4);
    assert_string_equal(s.content, "The capital of France is Paris.");
    assert_ok(sl_generate(sequence, prompt.ids, prompt.n, &params, NULL, NULL, &result, &err));
    assert_int_equal(result.n_tokens, whole);

    assert_string_equal(sl_finish_name(SL_FINISH_STOP), "stop");
    assert_string_equal(sl_finish_name(SL_FINISH_LENGTH), "length");
    assert_string_equal(sl_finish_name(SL_FINISH_CANCELLED), "cancelled");
    sl_ids_free(&prompt);
    sl_state_free(sequence);
    sl_engine_close(engine);
}

static void test_thinking_budget(void **state)
{
    (void)state;
    sl_engine *engine = open_engine(0);
    sl_state *sequence = new_state(engine, 256);
    sl_generate_params params = greedy(engine);
    sl_ids prompt = {0};
    render(engine, "What is 47 + 36?", true, "", &prompt);
    params.limit_thinking = true;
    params.think_budget = 3;
    params.think_grace = 2;
    params.max_tokens = 30;
    seen s = {.n_tokens = 0};
    const sl_generate_result result = generate(sequence, &prompt, &params, &s);
    assert_true(result.n_forced > 0);
    assert_true(strlen(s.thinking) > 0 && strlen(s.thinking) < 30);
    assert_null(strstr(s.thinking, "together"));
    assert_true(strlen(s.content) > 0);
    sl_ids_free(&prompt);
    sl_state_free(sequence);
    sl_engine_close(engine);
}

static void test_logprobs(void **state)
{
    (void)state;
    sl_engine *engine = open_engine(0);
    sl_state *sequence = new_state(engine, 128);
    sl_generate_params params = greedy(engine);
    sl_ids prompt = {0};
    render(engine, "What is the capital of France?", false, "", &prompt);
    params.logprobs = true;
    params.n_top = 3;
    seen s = {.n_tokens = 0}, plain = {.n_tokens = 0};
    generate(sequence, &prompt, &params, &s);
    assert_int_equal(s.n_top, 3);
    assert_true(s.top_is_first);
    for (size_t i = 0; i < s.n_tokens; i++)
        assert_true(s.logprobs[i] <= 0 && s.logprobs[i] > -1);
    params.logprobs = false;
    generate(sequence, &prompt, &params, &plain);
    assert_int_equal(plain.n_tokens, s.n_tokens);
    assert_memory_equal(plain.tokens, s.tokens, s.n_tokens * sizeof *s.tokens);
    sl_ids_free(&prompt);
    sl_state_free(sequence);
    sl_engine_close(engine);
}

/* ---- what was there before ---- */

static void test_marks_and_reuse(void **state)
{
    (void)state;
    sl_engine *engine = open_engine((size_t)32 << 20);
    sl_generate_params params = greedy(engine);
    sl_ids prompt = {0}, other = {0};
    render(engine, "What is the capital of France?", false, tools, &prompt);
    render(engine, "What is 6 times 7?", false, tools, &other);
    uint32_t common = 0;
    while (prompt.ids[common] == other.ids[common])
        common++;
    assert_true(common > 100);
    /* Positions that make no sense are passed over. */
    const sl_prompt_mark marks[] = {{0, SL_ANCHOR_SYSTEM},
                                    {common, SL_ANCHOR_SYSTEM},
                                    {common, SL_ANCHOR_TURN},
                                    {7, SL_ANCHOR_TURN},
                                    {(uint32_t)prompt.n, SL_ANCHOR_REPLY},
                                    {UINT32_MAX, SL_ANCHOR_REPLY}};
    params.marks = marks;
    params.n_marks = SL_COUNTOF(marks);
    sl_state *first = new_state(engine, 1024), *second = new_state(engine, 1024);
    seen s = {.n_tokens = 0};
    sl_generate_result result = generate(first, &prompt, &params, &s);
    assert_int_equal(result.reuse.source, SL_REUSE_NOTHING);
    assert_string_equal(s.content, "The capital of France is Paris.");
    assert_int_equal(sl_engine_checkpoint_stats(engine).n_checkpoints, 1);

    /* Another state, another question: what is common comes from the checkpoint. */
    s = (seen){.n_tokens = 0};
    result = generate(second, &other, &params, &s);
    assert_int_equal(result.reuse.source, SL_REUSE_CHECKPOINT);
    assert_int_equal(result.reuse.reused, common);
    assert_int_equal(s.total, other.n - common);
    assert_string_equal(s.content, "6 * 7 = 42.");
    /* The same once more, and the same bits without any help. */
    seen again = {.n_tokens = 0}, alone = {.n_tokens = 0};
    result = generate(second, &other, &params, &again);
    assert_int_equal(result.reuse.reused, other.n - 1);
    sl_state_free(first);
    sl_state_free(second);
    sl_engine *fresh = open_engine(0);
    sl_state *third = new_state(fresh, 1024);
    generate(third, &other, &params, &alone);
    assert_int_equal(alone.n_tokens, s.n_tokens);
    assert_memory_equal(alone.tokens, s.tokens, s.n_tokens * sizeof *s.tokens);
    assert_memory_equal(again.tokens, s.tokens, s.n_tokens * sizeof *s.tokens);
    sl_state_free(third);
    sl_engine_close(fresh);
    sl_ids_free(&prompt);
    sl_ids_free(&other);
    sl_engine_close(engine);
}

/* ---- what is refused ---- */

static void test_refusals(void **state)
{
    (void)state;
    sl_error err;
    sl_engine *engine = open_engine(0);
    sl_state *sequence = new_state(engine, 8);
    sl_generate_result r;
    int32_t ids[9] = {1, 2, 3, 4, 5, 6, 7, 8, 9};
    sl_generate_params good = greedy(engine), p = good;
    assert_refused(sl_generate(sequence, ids, 0, &p, NULL, NULL, &r, &err), SL_ERR_ARGUMENT,
                   "the prompt is empty");
    assert_refused(sl_generate(sequence, ids, 9, &p, NULL, NULL, &r, &err), SL_ERR_CONTEXT,
                   "the prompt has 9 tokens, the context holds 8");
    ids[2] = -1;
    assert_refused(sl_generate(sequence, ids, 3, &p, NULL, NULL, &r, &err), SL_ERR_ARGUMENT,
                   "token 2 of the prompt is -1");
    ids[2] = (int32_t)sl_engine_vocab(engine);
    assert_refused(sl_generate(sequence, ids, 3, &p, NULL, NULL, &r, &err), SL_ERR_ARGUMENT,
                   "token 2 of the prompt is");
    ids[2] = 3;
    p.n_top = SL_MAX_TOP + 1;
    assert_refused(sl_generate(sequence, ids, 3, &p, NULL, NULL, &r, &err), SL_ERR_ARGUMENT,
                   "n_top is 65, it may be 64");
    p = good;
    p.reserved[1] = 1;
    assert_refused(sl_generate(sequence, ids, 3, &p, NULL, NULL, &r, &err), SL_ERR_ARGUMENT,
                   "reserved[1] of sl_generate_params");
    p = good;
    p.sampling.min_p = -1;
    assert_refused(sl_generate(sequence, ids, 3, &p, NULL, NULL, &r, &err), SL_ERR_ARGUMENT,
                   "min_p is -1");
    p = good;
    p.tools = str("{");
    assert_refused(sl_generate(sequence, ids, 3, &p, NULL, NULL, &r, &err), SL_ERR_FORMAT,
                   "tools: line 1");
    p = good;
    p.stops = &(sl_str){"", 0};
    p.n_stops = 1;
    assert_refused(sl_generate(sequence, ids, 3, &p, NULL, NULL, &r, &err), SL_ERR_ARGUMENT,
                   "stop");
    assert_int_equal(sl_state_length(sequence), 0); /* nothing was evaluated for it */
    sl_state_free(sequence);
    sl_engine_close(engine);
}

/* ---- memory ---- */

static bool ignore(void *user, const sl_event *event)
{
    (void)event;
    return *(bool *)user;
}

/* Allocation requests of one answer of exactly n tokens. */
static uint64_t requests_of(sl_state *sequence, const sl_ids *prompt, sl_generate_params *params,
                            uint64_t n)
{
    sl_error err;
    sl_generate_result result;
    bool cancel = false;
    const uint64_t before = sl_mem_get_stats().requests;
    params->max_tokens = n;
    assert_ok(
        sl_generate(sequence, prompt->ids, prompt->n, params, ignore, &cancel, &result, &err));
    assert_int_equal(result.n_tokens, n);
    return sl_mem_get_stats().requests - before;
}

static void test_no_memory_per_token(void **state)
{
    (void)state;
    sl_error err;
    sl_engine *engine;
    sl_ids prompt = {0};
    const sl_tokenizer *tokenizer;
    sl_engine_params engine_params = sl_engine_params_default();
    engine_params.n_threads = 1;
    engine_params.checkpoint_budget = 0;
    assert_ok(sl_engine_open(sl_model_path("rand-r1-q8_0.gguf"), &engine_params, &engine, &err));
    assert_ok(sl_engine_tokenizer(engine, &tokenizer, &err));
    assert_ok(sl_tokenizer_encode(tokenizer, "Once upon", 9, NULL, &prompt, NULL, &err));
    const sl_str stop = {"no such text \xE2\x82\xAC", 16};
    sl_generate_params params = sl_generate_params_default(engine);
    params.stops = &stop;
    params.n_stops = 1;
    params.sampling = (sl_sampling){.temperature = 2.0f, /* every filter and penalty at once */
                                    .top_k = 300,
                                    .top_p = 0.99f,
                                    .min_p = 1e-6f,
                                    .typical_p = 0.99f,
                                    .presence_penalty = 0.5f,
                                    .frequency_penalty = 0.1f,
                                    .repetition_penalty = 1.1f,
                                    .dry_multiplier = 0.5f,
                                    .seed = 11};
    sl_logit_bias endless[8]; /* the end tokens never come */
    for (int32_t id = 0; id < (int32_t)sl_engine_vocab(engine); id++) {
        if (sl_engine_is_stop(engine, id) && params.sampling.n_bias < SL_COUNTOF(endless))
            endless[params.sampling.n_bias++] = (sl_logit_bias){.id = id, .bias = -1000.0f};
    }
    params.sampling.bias = endless;
    sl_state *sequence = new_state(engine, 512);
    for (int raw = 0; raw < 2; raw++) {
        params.raw = raw;
        requests_of(sequence, &prompt, &params, 64); /* blocks of states are kept for the next */
        const uint64_t few = requests_of(sequence, &prompt, &params, 64);
        const uint64_t many = requests_of(sequence, &prompt, &params, 320);
        assert_int_equal(many, few);
    }
    sl_state_free(sequence);
    sl_ids_free(&prompt);
    sl_engine_close(engine);
}

/* Every allocation fails once: an error, no leak, and the next run says the same as ever. */
static void test_allocation_failures(void **state)
{
    (void)state;
    sl_error err;
    sl_engine *engine = open_engine((size_t)8 << 20);
    sl_generate_params params = greedy(engine);
    sl_ids prompt = {0};
    render(engine, "What is the capital of France?", false, "", &prompt);
    const sl_str stop = {"xyz", 3};
    const sl_prompt_mark mark = {9, SL_ANCHOR_REPLY};
    params.tools = str(tools);
    params.stops = &stop;
    params.n_stops = 1;
    params.marks = &mark;
    params.n_marks = 1;
    sl_state *sequence = new_state(engine, 64);
    sl_generate_result result;
    sl_status status = SL_ERR_MEMORY;
    uint64_t n = 0;
    const size_t blocks = sl_mem_get_stats().blocks;
    size_t most = 0; /* blocks that checkpoints and pools keep */
    while (status == SL_ERR_MEMORY) {
        seen s = {.n_tokens = 0};
        sl_state_reset(sequence);
        sl_mem_fail_at(++n, false);
        status = sl_generate(sequence, prompt.ids, prompt.n, &params, watch, &s, &result, &err);
        sl_mem_fail_at(0, false);
        if (status == SL_OK)
            assert_string_equal(s.content, "The capital of France is Paris.");
        most = sl_max_size(most, sl_mem_get_stats().blocks - blocks);
    }
    assert_int_equal(status, SL_OK);
    assert_true(n > 10 && most < 40);
    for (int i = 0; i < 3; i++) {
        const size_t before = sl_mem_get_stats().blocks;
        seen s = {.n_tokens = 0};
        generate(sequence, &prompt, &params, &s);
        assert_string_equal(s.content, "The capital of France is Paris.");
        assert_int_equal(sl_mem_get_stats().blocks, before);
    }
    sl_state_free(sequence);
    sl_ids_free(&prompt);
    sl_engine_close(engine);
}

/* ---- hosts ---- */

static void test_host_modes(void **state)
{
    (void)state;
    sl_error err;
    sl_engine *engine = open_engine(0);
    sl_generate_params params = greedy(engine);
    params.sampling.temperature = 3.0f;
    params.sampling.top_p = 0.9f;
    params.logprobs = true;
    params.max_tokens = 8;
    sl_ids prompt = {0};
    render(engine, "What is the capital of France?", false, "", &prompt);
    seen plain = {.n_tokens = 0};
    sl_state *sequence = new_state(engine, 64);
    for (size_t i = 0; i < SL_COUNTOF(sl_host_modes); i++) {
        seen s = {.n_tokens = 0};
        sl_generate_result result;
        sl_state_reset(sequence);
        sl_set_host_mode(sl_host_modes[i]);
        const sl_status status =
            sl_generate(sequence, prompt.ids, prompt.n, &params, watch, &s, &result, &err);
        const uint64_t mode = sl_host_mode();
        sl_set_host_mode(SL_HOST_PLAIN);
        assert_int_equal(status, SL_OK);
        assert_int_equal(mode & ~(uint64_t)SL_HOST_SEEN,
                         sl_host_modes[i] & ~(uint64_t)SL_HOST_SEEN);
        if (i == 0)
            plain = s;
        assert_int_equal(s.n_tokens, plain.n_tokens);
        assert_memory_equal(s.tokens, plain.tokens, s.n_tokens * sizeof *s.tokens);
        assert_memory_equal(s.logprobs, plain.logprobs, s.n_tokens * sizeof *s.logprobs);
    }
    sl_state_free(sequence);
    sl_ids_free(&prompt);
    sl_engine_close(engine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_equals_its_parts),
        cmocka_unit_test(test_parts_of_an_answer),
        cmocka_unit_test(test_ends),
        cmocka_unit_test(test_thinking_budget),
        cmocka_unit_test(test_logprobs),
        cmocka_unit_test(test_marks_and_reuse),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_no_memory_per_token),
        cmocka_unit_test(test_allocation_failures),
        cmocka_unit_test(test_host_modes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
