/* Answers of the demonstration model that are held to a form: each is valid, with thinking and
 * without, whatever the seed; thinking stays free and does not end the answer; text of a call
 * inside of a string stays text. */
#include "support.h"

#include <stdio.h>
#include <string.h>

#include "json_check.h"
#include "models.h"

#include "base/buf.h"
#include "base/mem.h"
#include "base/str.h"

static const char tiny[] = "models/tiny-q8_0.gguf";

static const char *const schemas[] = {
    "{\"type\":\"object\",\"properties\":{\"city\":{\"type\":\"string\",\"maxLength\":12},"
    "\"people\":{\"type\":\"integer\",\"minimum\":1,\"maximum\":90},\"capital\":{\"type\":"
    "\"boolean\"}},\"required\":[\"city\",\"people\",\"capital\"],\"additionalProperties\":false}",
    "{\"type\":\"array\",\"items\":{\"enum\":[\"Paris\",\"Rome\",\"Oslo\"]},\"minItems\":2,"
    "\"maxItems\":3}",
    "{\"type\":\"string\",\"pattern\":\"^[A-Z][a-z]{2,6}( [A-Z][a-z]{2,6})?$\"}",
    "{\"anyOf\":[{\"type\":\"null\"},{\"type\":\"number\",\"minimum\":0,\"maximum\":9.5}]}",
};

typedef struct seen {
    sl_buf thinking, content, arguments;
    size_t n_calls; /* events of calls */
    char name[32];  /* of the last one */
} seen;

static const char tools[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"get_weather\",\"parameters\":{\"type\":"
    "\"object\",\"properties\":{\"city\":{\"type\":\"string\",\"maxLength\":24},\"unit\":{\"enum\":"
    "[\"C\",\"F\"]},\"days\":{\"type\":\"integer\",\"minimum\":1,\"maximum\":9},\"note\":{"
    "\"anyOf\":"
    "[{\"type\":\"string\",\"maxLength\":5},{\"type\":\"null\"}]},\"at\":{\"$ref\":\"#/$defs/"
    "at\"}},"
    "\"required\":[\"city\",\"days\",\"at\"],\"$defs\":{\"at\":{\"type\":\"array\",\"items\":{"
    "\"type\":"
    "\"string\",\"maxLength\":6},\"maxItems\":2}}}}},{\"type\":\"function\",\"function\":{\"name\":"
    "\"stop\",\"parameters\":{\"type\":\"object\",\"properties\":{}}}}]";

static bool watch(void *user, const sl_event *event)
{
    seen *s = user;
    sl_error err;
    if (event->kind != SL_EVENT_OUTPUT)
        return false;
    const sl_outparse_event *output = event->output;
    if (output->kind == SL_OUTPARSE_THINKING)
        assert_ok(sl_buf_append(&s->thinking, output->text.data, output->text.n_bytes, &err));
    else if (output->kind == SL_OUTPARSE_CONTENT)
        assert_ok(sl_buf_append(&s->content, output->text.data, output->text.n_bytes, &err));
    else
        s->n_calls++;
    if (output->kind == SL_OUTPARSE_CALL_ARGUMENTS)
        assert_ok(sl_buf_append(&s->arguments, output->text.data, output->text.n_bytes, &err));
    if (output->kind == SL_OUTPARSE_CALL_BEGIN)
        snprintf(s->name, sizeof s->name, "%.*s", (int)output->name.n_bytes, output->name.data);
    if (output->kind == SL_OUTPARSE_CALL_END)
        assert_int_equal(output->flags, 0); /* in the form taught, and typed */
    return false;
}

static sl_engine *open_engine(void)
{
    sl_error err;
    sl_engine *engine;
    sl_engine_params params = sl_engine_params_default();
    params.n_threads = 2;
    params.checkpoint_budget = 0;
    assert_ok(sl_engine_open(tiny, &params, &engine, &err));
    return engine;
}

static void render(const sl_engine *engine, bool think, sl_ids *ids)
{
    sl_error err;
    const sl_chat chat = {
        .messages =
            sl_str_of("[{\"role\":\"user\",\"content\":\"What is the capital of Italy?\"}]"),
        .variables =
            sl_str_of(think ? "{\"enable_thinking\":true}" : "{\"enable_thinking\":false}"),
    };
    assert_ok(sl_engine_render(engine, &chat, ids, NULL, &err));
}

static void answer(sl_engine *engine, sl_constraint *constraint, bool think, int budget,
                   uint64_t seed, seen *s, sl_generate_result *result)
{
    sl_error err;
    sl_ids prompt = {0};
    sl_state *state;
    sl_generate_params params = sl_generate_params_default(engine);
    params.sampling.seed = seed;
    params.constraint = constraint;
    params.limit_thinking = budget >= 0;
    params.think_budget = budget >= 0 ? (uint32_t)budget : 0;
    params.think_grace = 2;
    params.tools = sl_str_of(tools);
    sl_buf_clear(&s->thinking);
    sl_buf_clear(&s->content);
    sl_buf_clear(&s->arguments);
    s->n_calls = 0;
    render(engine, think, &prompt);
    assert_ok(sl_state_create(engine, 600, &state, &err));
    sl_constraint_reset(constraint);
    assert_ok(sl_generate(state, prompt.ids, prompt.n, &params, watch, s, result, &err));
    sl_state_free(state);
    sl_ids_free(&prompt);
}

static void check(sl_engine *engine, const char *text, seen *s)
{
    sl_error err;
    sl_grammar *grammar;
    sl_constraint *constraint;
    const sl_constraint_vocab *vocab;
    json_t *schema, *value;
    char why[256];
    assert_ok(sl_grammar_from_json_schema(sl_str_of(text), &grammar, &err));
    assert_ok(sl_engine_constraint_vocab(engine, &vocab, &err));
    assert_ok(sl_constraint_create(grammar, vocab, &constraint, &err));
    assert_ok(sl_json_parse(text, strlen(text), "schema", sl_json_limits_default(), &schema, &err));
    for (uint64_t seed = 0; seed < (sl_test_shortened() ? 3 : 12); seed++) {
        sl_generate_result result;
        const bool think = seed % 3 != 0;
        answer(engine, constraint, think, seed % 3 == 2 ? 3 : -1, seed, s, &result);
        assert_int_equal(result.finish, SL_FINISH_STOP);
        assert_true(sl_constraint_is_done(constraint));
        assert_int_equal(s->n_calls, 0);
        assert_int_equal(s->thinking.n_bytes > 0, think);
        assert_ok(sl_json_parse(s->content.data, s->content.n_bytes, "answer",
                                sl_json_limits_default(), &value, &err));
        if (!sl_json_check(schema, schema, value, why))
            fail_msg("%s: %s", why, s->content.data);
        json_decref(value);
    }
    json_decref(schema);
    sl_constraint_free(constraint);
    sl_grammar_free(grammar);
}

static void test_answers(void **state)
{
    (void)state;
    seen s = {0};
    sl_engine *engine = open_engine();
    sl_buf_init(&s.thinking, SL_MEM_TEXT, 1 << 20);
    sl_buf_init(&s.content, SL_MEM_TEXT, 1 << 20);
    sl_buf_init(&s.arguments, SL_MEM_TEXT, 1 << 20);
    for (size_t i = 0; i < SL_COUNTOF(schemas); i++)
        check(engine, schemas[i], &s);
    sl_buf_free(&s.thinking);
    sl_buf_free(&s.content);
    sl_buf_free(&s.arguments);
    sl_engine_close(engine);
}

/* The form is a text that the parser would take for a call, had it been free. */
static void test_calls_stay_text(void **state)
{
    (void)state;
    static const char text[] =
        "root ::= \"<tool_call>\\n<function=f>\\n</function>\\n</tool_call>\"";
    seen s = {0};
    sl_error err;
    sl_grammar *grammar;
    sl_constraint *constraint;
    const sl_constraint_vocab *vocab;
    sl_generate_result result;
    sl_engine *engine = open_engine();
    sl_buf_init(&s.thinking, SL_MEM_TEXT, 1 << 20);
    sl_buf_init(&s.content, SL_MEM_TEXT, 1 << 20);
    sl_buf_init(&s.arguments, SL_MEM_TEXT, 1 << 20);
    assert_ok(sl_grammar_from_gbnf(sl_str_of(text), &grammar, &err));
    assert_ok(sl_engine_constraint_vocab(engine, &vocab, &err));
    assert_ok(sl_constraint_create(grammar, vocab, &constraint, &err));
    answer(engine, constraint, true, -1, 5, &s, &result);
    assert_string_equal(s.content.data, "<tool_call>\n<function=f>\n</function>\n</tool_call>");
    assert_int_equal(s.n_calls, 0);
    sl_constraint_free(constraint);
    sl_grammar_free(grammar);
    sl_buf_free(&s.thinking);
    sl_buf_free(&s.content);
    sl_buf_free(&s.arguments);
    sl_engine_close(engine);
}

/* One call, of a known function, with arguments that are valid. */
static void check_calls(sl_engine *engine, const char *name, seen *s)
{
    sl_error err;
    sl_grammar *grammar;
    sl_constraint *constraint;
    const sl_constraint_vocab *vocab;
    json_t *list, *value;
    char why[256];
    assert_ok(sl_grammar_from_tools(sl_str_of(tools), name, 1, &grammar, &err));
    assert_ok(sl_engine_constraint_vocab(engine, &vocab, &err));
    assert_ok(sl_constraint_create(grammar, vocab, &constraint, &err));
    assert_ok(sl_json_parse(tools, strlen(tools), "tools", sl_json_limits_default(), &list, &err));
    for (uint64_t seed = 0; seed < (sl_test_shortened() ? 3 : 12); seed++) {
        sl_generate_result result;
        answer(engine, constraint, seed % 2, -1, seed, s, &result);
        assert_int_equal(result.finish, SL_FINISH_STOP);
        assert_int_equal(result.n_calls, 1);
        assert_int_equal(s->content.n_bytes, 0);
        if (name)
            assert_string_equal(s->name, name);
        const size_t which = strcmp(s->name, "stop") == 0;
        const json_t *schema =
            json_object_get(json_object_get(json_array_get(list, which), "function"), "parameters");
        assert_ok(sl_json_parse(s->arguments.data, s->arguments.n_bytes, "arguments",
                                sl_json_limits_default(), &value, &err));
        if (!sl_json_check(schema, schema, value, why))
            fail_msg("%s: %s", why, s->arguments.data);
        json_decref(value);
    }
    json_decref(list);
    sl_constraint_free(constraint);
    sl_grammar_free(grammar);
}

static void test_calls(void **state)
{
    (void)state;
    seen s = {0};
    sl_error err;
    sl_grammar *grammar;
    sl_engine *engine = open_engine();
    sl_buf_init(&s.thinking, SL_MEM_TEXT, 1 << 20);
    sl_buf_init(&s.content, SL_MEM_TEXT, 1 << 20);
    sl_buf_init(&s.arguments, SL_MEM_TEXT, 1 << 20);
    check_calls(engine, "get_weather", &s);
    check_calls(engine, NULL, &s);
    assert_refused(sl_grammar_from_tools(sl_str_of(tools), "other", 1, &grammar, &err),
                   SL_ERR_ARGUMENT, "no function other");
    assert_refused(sl_grammar_from_tools(sl_str_of("{}"), NULL, 1, &grammar, &err), SL_ERR_ARGUMENT,
                   "not a JSON array");
    const char *const odd =
        "[{\"name\":\"f\",\"parameters\":{\"properties\":{\"a\":{\"type\":[\"string\","
        "\"integer\"]}}}}]";
    assert_refused(sl_grammar_from_tools(sl_str_of(odd), NULL, 1, &grammar, &err),
                   SL_ERR_UNSUPPORTED, "a string or something else");
    sl_buf_free(&s.thinking);
    sl_buf_free(&s.content);
    sl_buf_free(&s.arguments);
    sl_engine_close(engine);
}

/* A constraint for another vocabulary would have masks that are too short. */
static void test_other_vocabulary(void **state)
{
    (void)state;
    sl_error err;
    sl_grammar *grammar;
    sl_constraint *constraint;
    sl_constraint_vocab *vocab;
    const sl_tokenizer *tokenizer;
    sl_state *sequence;
    sl_generate_result result;
    const int32_t prompt = 3;
    sl_engine *engine = open_engine();
    assert_ok(sl_engine_tokenizer(engine, &tokenizer, &err));
    assert_ok(sl_constraint_vocab_create(tokenizer, 300, NULL, 0, &vocab, &err));
    assert_ok(sl_grammar_json_object(&grammar, &err));
    assert_ok(sl_constraint_create(grammar, vocab, &constraint, &err));
    assert_ok(sl_state_create(engine, 8, &sequence, &err));
    sl_generate_params params = sl_generate_params_default(engine);
    params.constraint = constraint;
    assert_refused(sl_generate(sequence, &prompt, 1, &params, NULL, NULL, &result, &err),
                   SL_ERR_ARGUMENT, "the constraint is for 300 tokens");
    sl_state_free(sequence);
    sl_constraint_free(constraint);
    sl_grammar_free(grammar);
    sl_constraint_vocab_free(vocab);
    sl_engine_close(engine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_answers),
        cmocka_unit_test(test_calls_stay_text),
        cmocka_unit_test(test_calls),
        cmocka_unit_test(test_other_vocabulary),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
