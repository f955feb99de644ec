/* Messages as clients send them, against the form that templates accept. */
#include "support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "templates.h"
#include "text/chat.h"
#include "text_data.h"

static void check(const char *given, const char *expected)
{
    sl_error err;
    json_t *messages = sl_test_json_of(given), *wanted = sl_test_json_of(expected), *out;
    char *before = json_dumps(messages, 0);
    assert_ok(sl_chat_normalise(messages, &out, &err));
    char *after = json_dumps(messages, 0), *text = json_dumps(out, JSON_COMPACT);
    if (!json_equal(out, wanted))
        fail_msg("%s gave %s", given, text);
    assert_string_equal(before, after); /* the input is not touched */
    free(before);
    free(after);
    free(text);
    /* What is normal stays so. */
    json_t *again;
    assert_ok(sl_chat_normalise(out, &again, &err));
    assert_true(json_equal(out, again));
    json_decref(again);
    json_decref(out);
    json_decref(messages);
    json_decref(wanted);
}

#define U "{'role': 'user', 'content': 'u'}"
#define A "{'role': 'assistant', 'content': 'a'}"

static void test_roles_and_system(void **state)
{
    (void)state;
    check("[]", "[]");
    check("[" U "]", "[" U "]");
    check("[{'role': 'developer', 'content': 'd'}, " U "]",
          "[{'role': 'system', 'content': 'd'}, " U "]");
    check("[{'role': 'system', 'content': 'A'}, {'role': 'system', 'content': 'B'}, " U "]",
          "[{'role': 'system', 'content': 'A\\n\\nB'}, " U "]");
    check("[{'role': 'developer', 'content': 'A'}, {'role': 'developer', 'content': 'B'}, " U "]",
          "[{'role': 'system', 'content': 'A\\n\\nB'}, " U "]");
    /* Late ones move to the front, in order; the rest keeps its order. */
    check("[" U ", " A ", {'role': 'system', 'content': 'late'}, " U
          ", {'role': 'developer', 'content': [{'type': 'text', 'text': 'x'}]}]",
          "[{'role': 'system', 'content': 'late\\n\\nx'}, " U ", " A ", " U "]");
    check("[{'role': 'system', 'content': null, 'name': 'n'}, " U
          ", {'role': 'system', 'content': 'S'}, {'role': 'system', 'content': ''}]",
          "[{'role': 'system', 'content': 'S', 'name': 'n'}, " U "]");
    check("[{'role': 'system', 'content': ''}, " U "]",
          "[{'role': 'system', 'content': ''}, " U "]");
    check("[{'role': 'function', 'name': 'f', 'content': '1'}]",
          "[{'role': 'tool', 'name': 'f', 'content': '1'}]");
    check("[{'role': 'tool', 'tool_call_id': 'c', 'content': null, 'x': {'y': 1}}]",
          "[{'role': 'tool', 'tool_call_id': 'c', 'content': '', 'x': {'y': 1}}]");
}

static void test_content(void **state)
{
    (void)state;
    check("[{'role': 'user'}]", "[{'role': 'user', 'content': ''}]");
    check("[{'role': 'user', 'content': null}]", "[{'role': 'user', 'content': ''}]");
    check("[{'role': 'user', 'content': []}]", "[{'role': 'user', 'content': ''}]");
    check("[{'role': 'user', 'content': [{'type': 'text', 'text': 'a '}, {'type': 'input_text',"
          " 'text': 'b'}, {'text': 'c'}, 'd', {'type': 'output_text', 'text': 'e'},"
          " {'type': 'refusal', 'refusal': 'f'}]}]",
          "[{'role': 'user', 'content': 'a bcdef'}]");
    check("[{'role': 'user', 'content': [{'type': 'text', 'text': 'a\\u0000b',"
          " 'cache_control': {}}]}]",
          "[{'role': 'user', 'content': 'a\\u0000b'}]");
}

#define CALLS(role_content, calls) \
    "[{'role': 'assistant', 'content': " role_content ", 'tool_calls': " calls "}]"

static void test_tool_calls(void **state)
{
    (void)state;
    static const struct {
        const char *given, *expected; /* arguments */
    } cases[] = {
        {"{'a': 1}", "{'a': 1}"},
        {"'{}'", "{}"},
        {"''", "{}"},
        {"null", "{}"},
        {"'nonsense'", "{'input': 'nonsense'}"},
        {"'[1, 2]'", "{'input': '[1, 2]'}"},
        {"'17'", "{'input': '17'}"},
        {"[1]", "{'input': [1]}"},
        {"5", "{'input': 5}"},
    };
    for (size_t i = 0; i < SL_COUNTOF(cases); i++) {
        char given[256], expected[256];
        static const char form[] =
            CALLS("%s", "[{'id': 'x', 'type': 'function', 'function': {'name': 'f', "
                        "'arguments': %s}}, {'name': 'g', 'arguments': %s}]");
        snprintf(given, sizeof given, form, "null", cases[i].given, cases[i].given);
        snprintf(expected, sizeof expected, form, "''", cases[i].expected, cases[i].expected);
        check(given, expected);
    }
    /* JSON in a string, with its order and types. */
    sl_error err;
    json_t *messages =
        json_pack("[{s:s, s:[{s:{s:s, s:s}}]}]", "role", "assistant", "tool_calls", "function",
                  "name", "f", "arguments", "{\"z\": 1.0, \"a\": [\"\\u00e9\", null], \"m\": 3}");
    json_t *out;
    assert_ok(sl_chat_normalise(messages, &out, &err));
    char *text = json_dumps(out, JSON_COMPACT);
    assert_string_equal(text, "[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":"
                              "\"f\",\"arguments\":{\"z\":1.0,\"a\":[\"\u00e9\",null],\"m\":3}}}],"
                              "\"content\":\"\"}]");
    free(text);
    json_decref(out);
    json_decref(messages);

    check(CALLS("'a'", "null"), "[" A "]");
    check(CALLS("'a'", "[]"), CALLS("'a'", "[]"));
    check(CALLS("''", "[{'function': {'name': 'f'}}]"),
          CALLS("''", "[{'function': {'name': 'f', 'arguments': {}}}]"));
    check("[{'role': 'assistant', 'content': null, 'function_call': {'name': 'f', 'arguments': "
          "'{}'}}]",
          CALLS("''", "[{'type': 'function', 'function': {'name': 'f', 'arguments': {}}}]"));
    check("[{'role': 'assistant', 'content': 'a', 'function_call': null}]",
          "[{'role': 'assistant', 'content': 'a', 'function_call': null}]");
}

/* Integers beyond 64 bits: kept in arguments, no strings anywhere. */
static void test_big_integers(void **state)
{
    (void)state;
    check(CALLS("''", "[{'name': 'f', 'arguments': {'id': 12345678901234567890}}]"),
          CALLS("''", "[{'name': 'f', 'arguments': {'id': 12345678901234567890}}]"));
    check(CALLS("''", "[{'name': 'f', 'arguments': 12345678901234567890}]"),
          CALLS("''", "[{'name': 'f', 'arguments': {'input': 12345678901234567890}}]"));
    check(CALLS("''", "[{'name': 'f', 'arguments': '12345678901234567890'}]"),
          CALLS("''", "[{'name': 'f', 'arguments': {'input': '12345678901234567890'}}]"));
    check("[{'role': 'assistant', 'content': 'a', 'reasoning': 12345678901234567890}]",
          "[{'role': 'assistant', 'content': 'a', 'reasoning': 12345678901234567890}]");
    /* In a string, next to one that would pass for one. */
    sl_error err;
    json_t *messages = json_pack("[{s:s, s:[{s:s, s:s}]}]", "role", "assistant", "tool_calls",
                                 "name", "f", "arguments",
                                 "{\"id\": 12345678901234567890, \"l\": [-98765432109876543210, "
                                 "\"\\uFDD012345678901234567890\"]}");
    json_t *out;
    size_t n;
    assert_ok(sl_chat_normalise(messages, &out, &err));
    const json_t *call = json_array_get(json_object_get(json_array_get(out, 0), "tool_calls"), 0);
    const json_t *arguments = json_object_get(call, "arguments");
    const json_t *list = json_object_get(arguments, "l");
    assert_string_equal(sl_json_big_int(json_object_get(arguments, "id"), &n),
                        "12345678901234567890");
    assert_int_equal(n, 20);
    assert_string_equal(sl_json_big_int(json_array_get(list, 0), NULL), "-98765432109876543210");
    assert_true(sl_json_is_string(json_array_get(list, 1)));
    json_decref(out);
    json_decref(messages);
}

static void test_reasoning(void **state)
{
    (void)state;
    check("[{'role': 'assistant', 'content': 'a', 'reasoning_content': 'r', 'reasoning': 'x'}]",
          "[{'role': 'assistant', 'content': 'a', 'reasoning_content': 'r', 'reasoning': 'x'}]");
    check("[{'role': 'assistant', 'content': 'a', 'reasoning': 'x', 'thinking': 'y'}]",
          "[{'role': 'assistant', 'content': 'a', 'reasoning': 'x', 'thinking': 'y',"
          " 'reasoning_content': 'x'}]");
    check("[{'role': 'assistant', 'content': 'a', 'thinking': 'y', 'reasoning_content': null}]",
          "[{'role': 'assistant', 'content': 'a', 'thinking': 'y', 'reasoning_content': 'y'}]");
    check("[{'role': 'assistant', 'content': 'a', 'thinking': {'type': 'enabled'}}]",
          "[{'role': 'assistant', 'content': 'a', 'thinking': {'type': 'enabled'}}]");
}

static void test_refusals(void **state)
{
    (void)state;
    static const struct {
        const char *given, *part;
    } cases[] = {
        {"{}", "messages must be an array"},
        {"[" U ", 1]", "messages[1] must be an object"},
        {"[{'content': 'a'}]", "messages[0].role must be a string"},
        {"[" U ", {'role': 7}]", "messages[1].role must be a string"},
        {"[{'role': 12345678901234567890}]", "messages[0].role must be a string"},
        {"[{'role': 'user', 'content': 12345678901234567890}]", "messages[0].content must be"},
        {"[{'role': 'user', 'content': [12345678901234567890]}]", "type 'unknown'"},
        {"[{'role': 'user', 'content': [{'type': 12345678901234567890}]}]", "type 'unknown'"},
        {"[{'role': 'user', 'content': [{'type': 'text', 'text': 12345678901234567890}]}]",
         "content[0]"},
        {CALLS("''", "[{'function': {'name': 12345678901234567890}}]"), "tool_calls[0] needs"},
        {"[{'role': 'assistant', 'content': '', 'reasoning_content': 12345678901234567890}]",
         "messages[0].reasoning_content"},
        {"[{'role': 'robot', 'content': 'a'}]", "messages[0].role 'robot'"},
        {"[{'role': 'user', 'content': 5}]", "messages[0].content must be"},
        {"[{'role': 'user', 'content': {'text': 'a'}}]", "messages[0].content must be"},
        {"[" U ", {'role': 'user', 'content': [{'type': 'text', 'text': 'a'}, {'type': 'image_url',"
         " 'image_url': {}}]}]",
         "messages[1].content[1] is a part of type 'image_url'"},
        {"[{'role': 'user', 'content': [{'type': 'input_audio'}]}]", "type 'input_audio'"},
        {"[{'role': 'user', 'content': [{'type': 'video'}]}]", "type 'video'"},
        {"[{'role': 'user', 'content': [{'image': 'x'}]}]", "type 'image'"},
        {"[{'role': 'user', 'content': [{}]}]", "type 'unknown'"},
        {"[{'role': 'user', 'content': [7]}]", "type 'unknown'"},
        {"[{'role': 'user', 'content': [{'type': 7}]}]", "type 'unknown'"},
        {"[{'role': 'user', 'content': [{'type': 'text', 'text': 7}]}]", "content[0]"},
        {CALLS("''", "{}"), "messages[0].tool_calls must be an array"},
        {CALLS("''", "[7]"), "messages[0].tool_calls[0] must be an object"},
        {CALLS("''", "[{'function': {'name': 'f'}}, {'function': 7}]"),
         "messages[0].tool_calls[1].function must be an object"},
        {CALLS("''", "[{'function': {'arguments': '{}'}}]"), "messages[0].tool_calls[0] needs"},
        {"[{'role': 'assistant', 'content': '', 'function_call': {}}]", "tool_calls[0] needs"},
        {"[{'role': 'assistant', 'content': '', 'reasoning_content': 7}]",
         "messages[0].reasoning_content"},
    };
    for (size_t i = 0; i < SL_COUNTOF(cases); i++) {
        sl_error err;
        json_t *messages = sl_test_json_of(cases[i].given), *out;
        assert_refused(sl_chat_normalise(messages, &out, &err), SL_ERR_ARGUMENT, cases[i].part);
        assert_null(out);
        json_decref(messages);
    }
}

static void test_limits(void **state)
{
    (void)state;
    sl_error err;
    json_t *messages = json_array(), *user = sl_test_json_of(U), *out;
    for (int i = 0; i < SL_CHAT_MAX_MESSAGES; i++)
        json_array_append(messages, user);
    assert_ok(sl_chat_normalise(messages, &out, &err));
    assert_int_equal(json_array_size(out), SL_CHAT_MAX_MESSAGES);
    json_decref(out);
    json_array_append(messages, user);
    assert_refused(sl_chat_normalise(messages, &out, &err), SL_ERR_LIMIT, "100001 messages");
    json_decref(messages);
    json_decref(user);

    /* Arguments nested beyond what JSON may be stay text. */
    char deep[512];
    memset(deep, '[', 200);
    memset(deep + 200, ']', 200);
    deep[400] = '\0';
    messages = json_pack("[{s:s, s:[{s:s, s:s}]}]", "role", "assistant", "tool_calls", "name", "f",
                         "arguments", deep);
    assert_ok(sl_chat_normalise(messages, &out, &err));
    const json_t *call = json_array_get(json_object_get(json_array_get(out, 0), "tool_calls"), 0);
    const json_t *input = json_object_get(json_object_get(call, "arguments"), "input");
    assert_string_equal(json_string_value(input), deep);
    json_decref(out);
    json_decref(messages);
}

static void test_out_of_memory(void **state)
{
    (void)state;
    json_t *messages = sl_test_json_of(
        "[{'role': 'system', 'content': [{'text': 'a'}, 'b']}, {'role': 'developer', 'content':"
        " 'c'}, {'role': 'assistant', 'tool_calls': [{'name': 'f', 'arguments': null}]}]");
    json_t *call = json_array_get(json_object_get(json_array_get(messages, 2), "tool_calls"), 0);
    json_object_set_new(call, "arguments", json_string("{\"wide\": 99999999999999999999}"));
    sl_mem_stats before = sl_mem_get_stats();
    sl_status status = SL_ERR_MEMORY;
    for (uint64_t n = 1; status != SL_OK; n++) {
        sl_error err;
        json_t *out;
        sl_mem_fail_at(n, false);
        status = sl_chat_normalise(messages, &out, &err);
        sl_mem_fail_at(0, false);
        assert_true(status == SL_OK || status == SL_ERR_MEMORY);
        assert_int_equal(sl_mem_get_stats().blocks, before.blocks);
        if (status == SL_OK) { /* and not taken for text that is no JSON */
            call = json_array_get(json_object_get(json_array_get(out, 1), "tool_calls"), 0);
            assert_non_null(json_object_get(json_object_get(call, "arguments"), "wide"));
        }
        json_decref(out);
    }
    json_decref(messages);
}

/* The requests that servers are known to refuse: all render with the family's own template. */
static void test_renders(void **state)
{
    (void)state;
    static const struct {
        const char *messages, *expected;
    } cases[] = {
        {"[{'role': 'system', 'content': 'A'}, {'role': 'system', 'content': 'B'}, " U "]",
         "<|im_start|>system\nA\n\nB<|im_end|>\n<|im_start|>user\nu<|im_end|>\n"},
        {"[" U ", " A ", {'role': 'system', 'content': 'late'}, " U "]",
         "<|im_start|>system\nlate<|im_end|>\n<|im_start|>user\nu<|im_end|>\n"
         "<|im_start|>assistant\na<|im_end|>\n<|im_start|>user\nu<|im_end|>\n"},
        {"[{'role': 'developer', 'content': 'D'}, " U "]",
         "<|im_start|>system\nD<|im_end|>\n<|im_start|>user\nu<|im_end|>\n"},
        {"[" U ", {'role': 'assistant', 'content': null, 'tool_calls': [{'function': {'name': 'f',"
         " 'arguments': 'oops'}}]}, {'role': 'tool', 'content': [{'type': 'text', 'text': '1'}]},"
         " " U "]",
         "<|im_start|>user\nu<|im_end|>\n<|im_start|>assistant\n<tool_call>\n<function=f>\n"
         "<parameter=input>\noops\n</parameter>\n</function>\n</tool_call><|im_end|>\n"
         "<|im_start|>user\n<tool_response>\n1\n</tool_response><|im_end|>\n"
         "<|im_start|>user\nu<|im_end|>\n"},
        {"[" U ", {'role': 'assistant', 'content': null, 'tool_calls': [{'function': {'name': 'f',"
         " 'arguments': {'id': 12345678901234567890, 'l': [18446744073709551615]}}}]}, " U "]",
         "<|im_start|>user\nu<|im_end|>\n<|im_start|>assistant\n<tool_call>\n<function=f>\n"
         "<parameter=id>\n12345678901234567890\n</parameter>\n"
         "<parameter=l>\n[18446744073709551615]\n</parameter>\n</function>\n</tool_call>"
         "<|im_end|>\n<|im_start|>user\nu<|im_end|>\n"},
    };
    size_t n;
    char *source = sl_test_read_file("tests/data/template/qwen3.5-4b.jinja", &n);
    for (size_t i = 0; i < SL_COUNTOF(cases); i++) {
        sl_error err;
        json_t *messages = sl_test_json_of(cases[i].messages), *normal;
        assert_ok(sl_chat_normalise(messages, &normal, &err));
        sl_template_input input = {.messages = normal};
        sl_marked_text out;
        assert_ok(sl_test_render(source, n, &input, &out, &err));
        assert_string_equal(out.text.data, cases[i].expected);
        sl_marked_text_free(&out);
        json_decref(normal);
        json_decref(messages);
    }
    free(source);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_roles_and_system), cmocka_unit_test(test_content),
        cmocka_unit_test(test_tool_calls),       cmocka_unit_test(test_reasoning),
        cmocka_unit_test(test_refusals),         cmocka_unit_test(test_limits),
        cmocka_unit_test(test_out_of_memory),    cmocka_unit_test(test_renders),
        cmocka_unit_test(test_big_integers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
