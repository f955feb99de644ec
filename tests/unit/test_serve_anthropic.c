/* Anthropic's Messages API over the whole server. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "served.h"

#define QUESTION "\"messages\": [{\"role\": \"user\", \"content\": \"What is 47 + 36?\"}]"
#define PLAIN    "\"max_tokens\": 200, \"temperature\": 0, "
#define TOOLS \
    "\"tools\": [{\"name\": \"get_weather\", \"description\": \"Get the weather in a city.\", " \
    "\"input_schema\": {\"type\": \"object\", \"properties\": {\"city\": {\"type\": " \
    "\"string\"}}, \"required\": [\"city\"]}}], "

static void test_message(void **state)
{
    (void)state;
    sl_served_start(1, 4);
    json_t *a = sl_served_ask(
        "/v1/messages",
        "{" PLAIN "\"thinking\": {\"type\": \"enabled\", \"budget_tokens\": 1024}, " QUESTION "}",
        200);
    sl_served_assert_text(a, "type", "message");
    sl_served_assert_text(a, "role", "assistant");
    sl_served_assert_text(a, "model", "tiny");
    sl_served_assert_text(a, "content.0.type", "thinking");
    sl_served_assert_text(a, "content.0.thinking",
                          "47 + 36: tens 40 + 30 = 70, ones 7 + 6 = 13, together 83.");
    sl_served_assert_text(a, "content.1.type", "text");
    sl_served_assert_text(a, "content.1.text", "47 + 36 = 83.");
    sl_served_assert_text(a, "stop_reason", "end_turn");
    const long long n = sl_served_number(a, "usage.input_tokens");
    assert_int_equal(sl_served_number(a, "usage.cache_read_input_tokens"), 0);
    json_decref(a);
    a = sl_served_ask("/v1/messages",
                      "{" PLAIN "\"thinking\": {\"type\": \"enabled\", \"budget_tokens\": 1024}, "
                      "\"stop_sequences\": [\"never\", \" = \"], " QUESTION "}",
                      200);
    sl_served_assert_text(a, "content.1.text", "47 + 36");
    sl_served_assert_text(a, "stop_reason", "stop_sequence");
    sl_served_assert_text(a, "stop_sequence", " = ");
    assert_int_equal(sl_served_number(a, "usage.input_tokens") +
                         sl_served_number(a, "usage.cache_read_input_tokens"),
                     n);
    assert_true(sl_served_number(a, "usage.cache_read_input_tokens") > 0);
    json_decref(a);
    a = sl_served_ask("/v1/messages", "{\"max_tokens\": 2, \"temperature\": 0, " QUESTION "}", 200);
    sl_served_assert_text(a, "stop_reason", "max_tokens");
    assert_int_equal(sl_served_number(a, "usage.output_tokens"), 2);
    json_decref(a);
    a = sl_served_ask("/v1/messages/count_tokens", "{" QUESTION "}", 200);
    assert_true(sl_served_number(a, "input_tokens") > 10);
    json_decref(a);
    sl_served_stop();
}

/* The same conversation in Anthropic's form and in OpenAI's is the same prompt. */
static void test_same_prompt(void **state)
{
    (void)state;
    sl_served_start(1, 4);
    json_t *a = sl_served_ask(
        "/v1/messages/count_tokens",
        "{\"system\": [{\"type\": \"text\", \"text\": \"Be brief.\"}], " TOOLS
        "\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"What "
        "is "
        "the weather in Paris?\"}]}, {\"role\": \"assistant\", \"content\": [{\"type\": "
        "\"tool_use\", \"id\": \"t1\", \"name\": \"get_weather\", \"input\": {\"city\": "
        "\"Paris\"}}]}, {\"role\": \"user\", \"content\": [{\"type\": \"tool_result\", "
        "\"tool_use_id\": \"t1\", \"content\": [{\"type\": \"text\", \"text\": \"18 C\"}]}, "
        "{\"type\": \"text\", \"text\": \"And in Rome?\"}]}]}",
        200);
    json_t *b = sl_served_ask(
        "/apply-template",
        "{\"chat_template_kwargs\": {\"enable_thinking\": false}, \"tools\": [{\"type\": "
        "\"function\", \"function\": {\"name\": \"get_weather\", \"description\": \"Get the "
        "weather "
        "in a city.\", \"parameters\": {\"type\": \"object\", \"properties\": {\"city\": "
        "{\"type\": \"string\"}}, \"required\": [\"city\"]}}}], \"messages\": [{\"role\": "
        "\"system\", \"content\": \"Be brief.\"}, {\"role\": \"user\", \"content\": \"What is the "
        "weather in Paris?\"}, {\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": "
        "[{\"id\": \"t1\", \"type\": \"function\", \"function\": {\"name\": \"get_weather\", "
        "\"arguments\": {\"city\": \"Paris\"}}}]}, {\"role\": \"tool\", \"tool_call_id\": \"t1\", "
        "\"content\": \"18 C\"}, {\"role\": \"user\", \"content\": \"And in Rome?\"}]}",
        200);
    assert_int_equal(sl_served_number(a, "input_tokens"), sl_served_number(b, "n_tokens"));
    json_decref(a);
    json_decref(b);
    sl_served_stop();
}

/* ---- streams ---- */

/* The events' names in order, and what the deltas say. */
typedef struct seen {
    char names[2048], text[512], thinking[512], input[256], reason[32];
} seen;

static void add(char *to, size_t capacity, const char *text)
{
    if (!text)
        return;
    assert_true(strlen(to) + strlen(text) < capacity);
    strcat(to, text);
}

static void take(seen *s, const char *name, const json_t *event)
{
    sl_served_assert_text(event, "type", name);
    const size_t n = strlen(s->names), n_name = strlen(name);
    /* Runs of deltas count once. */
    if (n < n_name + 1 || strcmp(name, "content_block_delta") != 0 ||
        strncmp(s->names + n - n_name - 1, name, n_name) != 0) {
        add(s->names, sizeof s->names, name);
        add(s->names, sizeof s->names, " ");
    }
    add(s->text, sizeof s->text, sl_served_text(event, "delta.text"));
    add(s->thinking, sizeof s->thinking, sl_served_text(event, "delta.thinking"));
    add(s->input, sizeof s->input, sl_served_text(event, "delta.partial_json"));
    add(s->reason, sizeof s->reason, sl_served_text(event, "delta.stop_reason"));
}

static seen read_stream(const char *body)
{
    seen s = {.names = ""};
    const int fd = sl_served_post("/v1/messages", body);
    sl_test_answer answer = sl_test_read(fd, false);
    assert_int_equal(answer.status, 200);
    for (char *at = answer.body; at && *at;) {
        char *end = strstr(at, "\n\n"), *data = strstr(at, "\ndata: ");
        assert_non_null(end);
        *end = '\0';
        if (*at != ':') {
            assert_memory_equal(at, "event: ", 7);
            assert_non_null(data);
            *data = '\0';
            json_t *event = sl_served_parse(data + 7, strlen(data + 7));
            take(&s, at + 7, event);
            json_decref(event);
        }
        at = end + 2;
    }
    sl_test_answer_free(&answer);
    sl_test_close(fd);
    return s;
}

static void test_streams(void **state)
{
    (void)state;
    sl_served_start(1, 4);
    seen s = read_stream("{\"stream\": true, " PLAIN
                         "\"thinking\": {\"type\": \"enabled\", \"budget_tokens\": 1024}, " QUESTION
                         "}");
    assert_string_equal(s.names, "message_start content_block_start content_block_delta "
                                 "content_block_stop content_block_start content_block_delta "
                                 "content_block_stop message_delta message_stop ");
    assert_string_equal(s.text, "47 + 36 = 83.");
    assert_string_equal(s.thinking, "47 + 36: tens 40 + 30 = 70, ones 7 + 6 = 13, together 83.");
    assert_string_equal(s.reason, "end_turn");
    s = read_stream("{\"stream\": true, " PLAIN TOOLS "\"messages\": [{\"role\": \"user\", "
                    "\"content\": \"What is the weather in Paris?\"}]}");
    assert_string_equal(s.names, "message_start content_block_start content_block_delta "
                                 "content_block_stop message_delta message_stop ");
    json_t *input = sl_served_parse(s.input, strlen(s.input));
    sl_served_assert_text(input, "city", "Paris");
    json_decref(input);
    assert_string_equal(s.reason, "tool_use");
    sl_served_stop();
}

/* ---- refusals ---- */

static void test_bad_requests(void **state)
{
    (void)state;
    static const struct {
        const char *body, *part;
    } cases[] = {
        {"{" QUESTION "}", "max_tokens"},
        {"{\"max_tokens\": 5}", "messages"},
        {"{\"max_tokens\": 5, \"messages\": []}", "messages"},
        {"{\"max_tokens\": 5, \"messages\": [5]}", "messages[0]"},
        {"{\"max_tokens\": 5, \"messages\": [{\"role\": \"x\", \"content\": \"y\"}]}", "role"},
        {"{\"max_tokens\": 5, \"messages\": [{\"role\": \"user\", \"content\": 5}]}", "messages"},
        {"{\"max_tokens\": 5, \"messages\": [{\"role\": \"user\", \"content\": [{\"type\": "
         "\"image\"}]}]}",
         "only blocks of type"},
        {"{\"max_tokens\": 5, \"messages\": [{\"role\": \"user\", \"content\": [{\"type\": "
         "\"tool_result\"}]}]}",
         "tool_use_id"},
        {"{\"max_tokens\": 5, \"messages\": [{\"role\": \"assistant\", \"content\": [{\"type\": "
         "\"tool_use\", \"id\": \"a\"}]}]}",
         "id, name and input"},
        {"{\"max_tokens\": 5, \"tools\": [{}], " QUESTION "}", "tools"},
        {"{\"max_tokens\": 5, \"tool_choice\": {\"type\": \"any\"}, " QUESTION "}",
         "which tool_choice requires"},
        {"{\"max_tokens\": 5, \"thinking\": {\"type\": \"maybe\"}, " QUESTION "}", "thinking"},
        {"{\"max_tokens\": 5, \"stop_sequences\": [\"\"], " QUESTION "}", "stop_sequences"},
        {"{\"max_tokens\": 5, \"temperature\": 1.5, " QUESTION "}", "temperature"},
        {"{\"max_tokens\": 5, \"system\": 5, " QUESTION "}", "system"},
    };
    sl_served_start(1, 4);
    for (size_t i = 0; i < SL_COUNTOF(cases); i++) {
        json_t *a = sl_served_ask("/v1/messages", cases[i].body, 400);
        sl_served_assert_text(a, "type", "error");
        sl_served_assert_text(a, "error.type", "invalid_request_error");
        assert_non_null(strstr(sl_served_text(a, "error.message"), cases[i].part));
        json_decref(a);
    }
    sl_served_stop();
}

int main(void)
{
    signal(SIGPIPE, SIG_IGN);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_message),
        cmocka_unit_test(test_same_prompt),
        cmocka_unit_test(test_streams),
        cmocka_unit_test(test_bad_requests),
    };
    return cmocka_run_group_tests(tests, sl_served_set_up, sl_served_tear_down);
}
