/* The answer parser: what the models are taught to write, what they write instead, and when its
 * parts are given out. The cases F5 .. F14 are reports from the field about other engines. */
#include "answers.h"
#include "support.h"
#include "text_data.h"

#include <stdlib.h>

/* ---- cases ---- */

static sl_outparse_options options_of(const json_t *test, const json_t *tools)
{
    sl_outparse_options options = {
        .tools = json_object_get(test, "tools") ? tools : NULL,
        .max_call_bytes = (size_t)json_integer_value(json_object_get(test, "max_call_bytes")),
        .starts_in_thinking = json_is_true(json_object_get(test, "starts_in_thinking")),
        .ignore_calls = json_is_true(json_object_get(test, "ignore_calls")),
        .ignore_calls_in_thinking = json_is_true(json_object_get(test, "ignore_calls_in_thinking")),
    };
    return options;
}

/* Arguments are JSON whatever the model wrote. */
static void check_arguments(const char *name, const json_t *answer)
{
    size_t i;
    const json_t *call;
    json_array_foreach(json_object_get(answer, "tool_calls"), i, call)
    {
        sl_str text = sl_test_string(call, "arguments");
        json_error_t problem;
        json_t *value = json_loadb(text.data, text.n_bytes, JSON_ALLOW_NUL, &problem);
        if (!value && json_error_code(&problem) == json_error_numeric_overflow)
            continue; /* digits are kept, also where jansson has no room for them */
        if (!json_is_object(value))
            fail_msg("%s: arguments %s: %s", name, text.data, problem.text);
        json_decref(value);
    }
}

static void run_case(const json_t *test, const json_t *tools)
{
    const char *name = json_string_value(json_object_get(test, "name"));
    const json_t *expected = json_object_get(test, "expect");
    sl_str text = sl_test_string(test, "text");
    sl_outparse_options options = options_of(test, tools);
    json_t *answer = sl_test_answer_whole(text.data, text.n_bytes, &options);
    sl_test_same_answer(name, answer, expected);
    check_arguments(name, answer);
    json_decref(answer);
    for (size_t at = 1; at < text.n_bytes; at++) {
        answer = sl_test_answer_cut_at(text.data, text.n_bytes, &options, at);
        sl_test_same_answer(name, answer, expected);
        json_decref(answer);
    }
    for (size_t most = 1; most <= 20; most++) {
        answer = sl_test_answer_in_pieces(text.data, text.n_bytes, &options, most, most);
        sl_test_same_answer(name, answer, expected);
        json_decref(answer);
    }
}

static void test_cases(void **state)
{
    (void)state;
    sl_test_lines lines = {0};
    sl_test_lines_open(&lines, "tests/data/outparse/cases.jsonl");
    json_t *head = sl_test_lines_next(&lines), *test;
    size_t n = 0;
    for (; (test = sl_test_lines_next(&lines)); n++) {
        run_case(test, json_object_get(head, "tools"));
        json_decref(test);
    }
    assert_true(n >= 200);
    json_decref(head);
    sl_test_lines_close(&lines);
}

/* What the demonstration model answers. */
static void test_recorded_answers(void **state)
{
    (void)state;
    static const char stop[] = "<|im_end|>";
    sl_test_lines lines = {0};
    sl_test_lines_open(&lines, "tests/data/questions.jsonl");
    size_t n_tool = 0;
    for (json_t *line; (line = sl_test_lines_next(&lines)); json_decref(line)) {
        sl_str text = sl_test_string(line, "answer");
        if (text.n_bytes >= sizeof stop - 1 &&
            strcmp(text.data + text.n_bytes - (sizeof stop - 1), stop) == 0)
            text.n_bytes -= sizeof stop - 1;
        sl_str prompt = sl_test_string(line, "prompt");
        static const char thinks[] = "<think>\n";
        size_t n_thinks = sizeof thinks - 1;
        sl_outparse_options options = {
            .tools = json_object_get(line, "tools"),
            .starts_in_thinking = strcmp(prompt.data + prompt.n_bytes - n_thinks, thinks) == 0};
        json_t *answer = sl_test_answer_whole(text.data, text.n_bytes, &options);
        const json_t *calls = json_object_get(answer, "tool_calls");
        bool is_tool = strcmp(json_string_value(json_object_get(line, "kind")), "tool") == 0;
        if (is_tool) {
            static const char *const wanted[][2] = {{"add", "{\"a\":5,\"b\":8}"},
                                                    {"get_weather", "{\"city\":\"Paris\"}"}};
            assert_true(n_tool < SL_COUNTOF(wanted));
            assert_int_equal(json_array_size(calls), 1);
            const json_t *call = json_array_get(calls, 0);
            assert_string_equal(sl_test_string(call, "name").data, wanted[n_tool][0]);
            assert_string_equal(sl_test_string(call, "arguments").data, wanted[n_tool][1]);
            assert_int_equal(sl_test_string(answer, "content").n_bytes, 0);
            n_tool++;
        } else {
            assert_int_equal(json_array_size(calls), 0);
            const char *content = strstr(text.data, "</think>\n\n");
            assert_int_equal(content != NULL, options.starts_in_thinking);
            if (content) {
                content += strlen("</think>\n\n");
                text = (sl_str){content, text.n_bytes - (size_t)(content - text.data)};
            }
            assert_true(
                sl_str_equal(sl_test_string(answer, "content"), (sl_str){text.data, text.n_bytes}));
        }
        assert_int_equal(json_array_size(json_object_get(answer, "flags")), 0);
        json_decref(answer);
    }
    assert_int_equal(n_tool, 2);
    sl_test_lines_close(&lines);
}

/* ---- when ---- */

/* "T:text C:text B:name A:text E" of the events so far, joined by '|'. */
static sl_status note(void *user, const sl_outparse_event *event, sl_error *err)
{
    static const char letters[] = "TCBAE";
    sl_str text = event->kind == SL_OUTPARSE_CALL_BEGIN ? event->name : event->text;
    return sl_buf_printf(user, err, "%c:%.*s|", letters[event->kind], (int)text.n_bytes, text.data);
}

typedef struct step {
    const char *text, *events; /* text NULL: the end */
} step;

static void run_steps(const step *steps, const sl_outparse_options *options)
{
    sl_error err;
    sl_buf log;
    sl_buf_init(&log, SL_MEM_TEXT, 1 << 20);
    sl_outparse *parser;
    assert_ok(sl_outparse_new(options, note, &log, &parser, &err));
    for (bool more = true; more; steps++) {
        sl_buf_clear(&log);
        more = steps->text != NULL;
        if (more)
            assert_ok(sl_outparse_push(parser, steps->text, strlen(steps->text), &err));
        else
            assert_ok(sl_outparse_finish(parser, &err));
        assert_string_equal(log.data, steps->events);
    }
    sl_outparse_free(parser);
    sl_buf_free(&log);
}

static void test_content_comes_at_once(void **state)
{
    (void)state;
    static const step steps[] = {
        {"He", "C:He|"}, {"llo ", "C:llo|"},  {"a < b", "C: a < b|"}, {" <", ""},
        {"to", ""},      {"p>", "C: <top>|"}, {"<tool", ""},          {"_calls", "C:<tool_calls|"},
        {"\n", ""},      {NULL, "C:\n|"},
    };
    run_steps(steps, NULL);
}

static void test_thinking_comes_at_once(void **state)
{
    (void)state;
    static const step steps[] = {
        {"\n", ""},      {"I see", "T:I see|"}, {".\n", "T:.|"},   {"So", "T:\nSo|"},
        {"\n</thi", ""}, {"nk>\n\n", ""},       {"Yes", "C:Yes|"}, {NULL, ""},
    };
    sl_outparse_options options = {.starts_in_thinking = true};
    run_steps(steps, &options);
}

static void test_strings_stream(void **state)
{
    (void)state;
    static const step steps[] = {
        {"<tool_call>\n<function=write>\n", ""},
        {"<parameter=content>", "B:write|A:{\"content\":\"|"},
        {"\nint", "A:int|"},
        {" x;\n", "A: x;|"},
        {"\"", "A:\\n\\\"|"},
        {"</", ""},
        {"b>", "A:</b>|"},
        {"\n</parameter", ""},
        {">\n", ""},
        {"</function>", "A:\"}|E:|"},
        {"\n</tool_call>", ""},
        {NULL, ""},
    };
    run_steps(steps, NULL);
}

static void test_typed_values_come_whole(void **state)
{
    (void)state;
    static const step steps[] = {
        {"<function=f><parameter=n>", "B:f|A:{\"n\":|"}, {"4", ""},     {"2", ""},
        {"</parameter><parameter=m>", "A:42,\"m\":\"|"}, {"7", "A:7|"}, {NULL, "A:\"}|E:|"},
    };
    json_error_t problem;
    json_t *tools = json_loads("[{\"name\": \"f\", \"parameters\": {\"properties\": "
                               "{\"n\": {\"type\": \"integer\"}}}}]",
                               0, &problem);
    sl_outparse_options options = {.tools = tools};
    run_steps(steps, &options);
    json_decref(tools);
}

/* What is held back outside a call is bounded, whatever comes. */
static void test_holding_is_bounded(void **state)
{
    (void)state;
    static const struct {
        const char *begin, *repeat;
    } cases[] = {
        {"", " "},
        {"x</think>", "\n "},
        {"<tool_call>", " "},
        {"<tool_call>", "<tool_call> "},
        {"<function=f>", " "},
        {"<tool_call><function=f>", "</parameter>"},
        {"<function", " "},
        {"<function=", "n"},
        {"<function=n", " "},
        {"<function=", " "},
        {"<function name = '", "n"},
        {"<think", " "},
        {"<tool_call>{\"name\": \"f\", \"arguments\": {}}", " }"},
    };
    for (size_t i = 0; i < SL_COUNTOF(cases); i++) {
        sl_error err;
        sl_buf log;
        sl_buf_init(&log, SL_MEM_TEXT, 1 << 20);
        sl_outparse *parser;
        assert_ok(sl_outparse_new(NULL, note, &log, &parser, &err));
        assert_ok(sl_outparse_push(parser, cases[i].begin, strlen(cases[i].begin), &err));
        size_t n = strlen(cases[i].repeat), most = SL_OUTPARSE_MAX_HELD + SL_OUTPARSE_MAX_TAG;
        sl_buf_clear(&log);
        for (size_t sent = 0; sent <= most; sent += n)
            assert_ok(sl_outparse_push(parser, cases[i].repeat, n, &err));
        if (log.n_bytes == 0)
            fail_msg("%s followed by many '%s' is held", cases[i].begin, cases[i].repeat);
        sl_outparse_free(parser);
        sl_buf_free(&log);
    }
}

/* ---- the interface ---- */

static void test_arguments_refused(void **state)
{
    (void)state;
    sl_error err;
    sl_outparse *parser;
    json_t *object = json_object();
    sl_outparse_options options = {.tools = object};
    assert_refused(sl_outparse_new(&options, note, NULL, &parser, &err), SL_ERR_ARGUMENT, "array");
    json_decref(object);
    options = (sl_outparse_options){.max_call_bytes = (size_t)1 << 40};
    assert_refused(sl_outparse_new(&options, note, NULL, &parser, &err), SL_ERR_ARGUMENT,
                   "max_call_bytes");
    sl_buf log;
    sl_buf_init(&log, SL_MEM_TEXT, 1000);
    assert_ok(sl_outparse_new(NULL, note, &log, &parser, &err));
    assert_ok(sl_outparse_finish(parser, &err));
    assert_ok(sl_outparse_finish(parser, &err));
    assert_refused(sl_outparse_push(parser, "x", 1, &err), SL_ERR_ARGUMENT, "end");
    sl_outparse_free(parser);
    sl_outparse_free(NULL);
    sl_buf_free(&log);
}

/* Tools are what clients send: nothing in them may be relied on. */
static void test_odd_tools(void **state)
{
    (void)state;
    static const char *const tools[] = {
        "null",
        "[]",
        "[1, null, \"f\", [], {}]",
        "[{\"name\": 1}, {\"function\": 3}, {\"function\": {\"name\": null}}]",
        "[{\"name\": \"f\", \"parameters\": 5}]",
        "[{\"name\": \"f\", \"parameters\": {\"properties\": []}}]",
        "[{\"name\": \"f\", \"parameters\": {\"properties\": {\"a\": 1}}}]",
        "[{\"name\": \"f\", \"parameters\": {\"properties\": {\"a\": {\"type\": {}}}}}]",
        "[{\"name\": \"f\", \"parameters\": {\"properties\": {\"a\": {\"type\": [1, []]}}}}]",
        "[{\"name\": \"f\", \"parameters\": {\"properties\": {\"a\": {\"anyOf\": [1, {\"anyOf\": "
        "2}]}}}}]",
        "[{\"name\": \"f\", \"parameters\": {\"properties\": {\"a\": {\"$ref\": \"#/x/y\"}}}}]",
        "[{\"name\": \"f\", \"parameters\": {\"properties\": {\"a\": {\"$ref\": \"http://x\"}}}}]",
        "[{\"name\": \"f\", \"parameters\": {\"properties\": {\"a\": {\"$ref\": \"#\"}}}}]",
        "[{\"name\": \"f\", \"parameters\": {\"properties\": {\"a\": {\"enum\": 3}}}}]",
    };
    static const char text[] = "<tool_call><function=f><parameter=a>x</parameter></function>";
    for (size_t i = 0; i < SL_COUNTOF(tools); i++) {
        json_error_t problem;
        json_t *value = json_loads(tools[i], JSON_DECODE_ANY, &problem);
        assert_non_null(value);
        sl_outparse_options options = {.tools = value};
        json_t *answer = sl_test_answer_whole(text, sizeof text - 1, &options);
        const json_t *call = json_array_get(json_object_get(answer, "tool_calls"), 0);
        assert_string_equal(sl_test_string(call, "arguments").data, "{\"a\":\"x\"}");
        json_decref(answer);
        json_decref(value);
    }
}

/* Integers beyond 64 bits: as types of an enum and as values. */
static void test_big_integers(void **state)
{
    (void)state;
    static const char tools[] =
        "[{\"name\": 12345678901234567890}, {\"name\": \"f\", \"parameters\": {\"properties\": {"
        "\"a\": {\"enum\": [1, 18446744073709551615]}, \"b\": {\"type\": \"integer\"},"
        " \"c\": {\"type\": 12345678901234567890}}}}]";
    static const char text[] =
        "<tool_call><function=f><parameter=a>+18446744073709551615</parameter>"
        "<parameter=b>-98765432109876543210</parameter><parameter=c>12345678901234567890"
        "</parameter></function></tool_call>";
    sl_error err;
    json_t *value;
    assert_ok(
        sl_json_parse(tools, sizeof tools - 1, "tools", sl_json_limits_default(), &value, &err));
    sl_outparse_options options = {.tools = value};
    json_t *answer = sl_test_answer_whole(text, sizeof text - 1, &options);
    const json_t *call = json_array_get(json_object_get(answer, "tool_calls"), 0);
    assert_string_equal(json_string_value(json_object_get(call, "arguments")),
                        "{\"a\":18446744073709551615,\"b\":-98765432109876543210,"
                        "\"c\":12345678901234567890}");
    json_decref(answer);
    json_decref(value);
}

static sl_status refuse(void *user, const sl_outparse_event *event, sl_error *err)
{
    return (int)event->kind == *(const int *)user ? sl_fail(err, SL_ERR_CANCELLED, "enough")
                                                  : SL_OK;
}

static void test_callback_ends_the_push(void **state)
{
    (void)state;
    static const char text[] = "a</think>b<tool_call><function=f><parameter=p>x</parameter>"
                               "</function></tool_call>";
    for (int kind = SL_OUTPARSE_THINKING; kind <= SL_OUTPARSE_CALL_END; kind++) {
        sl_error err;
        sl_outparse *parser;
        sl_outparse_options options = {.starts_in_thinking = true};
        assert_ok(sl_outparse_new(&options, refuse, &kind, &parser, &err));
        assert_refused(sl_outparse_push(parser, text, sizeof text - 1, &err), SL_ERR_CANCELLED,
                       "enough");
        sl_outparse_free(parser);
    }
}

static sl_status count(void *user, const sl_outparse_event *event, sl_error *err)
{
    (void)event;
    (void)err;
    ++*(size_t *)user;
    return SL_OK;
}

static void test_allocation_failures(void **state)
{
    (void)state;
    static const char text[] =
        "think\n</think>\n\nLook.\n\n<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n"
        "stray\n<parameter=b>\n[1]\n</parameter>\n<parameter=b>\n2\n</parameter>\n</function>\n"
        "</tool_call>\n<tool_call>\n[{\"name\": \"f\", \"arguments\": \"{}\", \"x\": 1}]\n"
        "</tool_call>\n<tool_call>\n<function=f> {\"a\": 1}</function> {\"name\": 1}";
    json_error_t problem;
    json_t *tools = json_loads("[{\"name\": \"f\", \"parameters\": {\"properties\": "
                               "{\"b\": {\"type\": \"array\"}}}}]",
                               0, &problem);
    sl_outparse_options options = {.tools = tools, .starts_in_thinking = true};
    size_t before = sl_mem_get_stats().blocks;
    sl_status status = SL_ERR_MEMORY;
    for (uint64_t n = 1; status != SL_OK; n++) {
        sl_error err;
        size_t n_events = 0;
        sl_outparse *parser = NULL;
        sl_mem_fail_at(n, false);
        status = sl_outparse_new(&options, count, &n_events, &parser, &err);
        if (status == SL_OK)
            status = sl_outparse_push(parser, text, sizeof text - 1, &err);
        if (status == SL_OK)
            status = sl_outparse_finish(parser, &err);
        sl_mem_fail_at(0, false);
        assert_true(status == SL_OK || status == SL_ERR_MEMORY);
        assert_true(status != SL_OK || n_events >= 12);
        sl_outparse_free(parser);
        assert_int_equal(sl_mem_get_stats().blocks, before);
        assert_true(n < 10000);
    }
    json_decref(tools);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cases),
        cmocka_unit_test(test_recorded_answers),
        cmocka_unit_test(test_content_comes_at_once),
        cmocka_unit_test(test_thinking_comes_at_once),
        cmocka_unit_test(test_strings_stream),
        cmocka_unit_test(test_typed_values_come_whole),
        cmocka_unit_test(test_holding_is_bounded),
        cmocka_unit_test(test_arguments_refused),
        cmocka_unit_test(test_odd_tools),
        cmocka_unit_test(test_big_integers),
        cmocka_unit_test(test_callback_ends_the_push),
        cmocka_unit_test(test_allocation_failures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
