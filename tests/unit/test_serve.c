/* The server whole: HTTP in, the demonstration model, HTTP out, in OpenAI's form. Answers are the
 * same streamed or not, alone or beside others. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "served.h"

/* ---- chat ---- */

#define QUESTION "\"messages\": [{\"role\": \"user\", \"content\": \"What is 47 + 36?\"}]"
#define THINKS   "\"chat_template_kwargs\": {\"enable_thinking\": true}"
#define PLAIN    "\"chat_template_kwargs\": {\"enable_thinking\": false}"

static void test_whole_answer(void **state)
{
    (void)state;
    sl_served_start(2, 8);
    json_t *a =
        sl_served_ask("/v1/chat/completions",
                      "{\"model\": \"any\", \"temperature\": 0, " THINKS ", " QUESTION "}", 200);
    sl_served_assert_text(a, "object", "chat.completion");
    sl_served_assert_text(a, "model", "tiny");
    assert_memory_equal(sl_served_text(a, "id"), "chatcmpl-", 9);
    assert_memory_equal(sl_served_text(a, "system_fingerprint"), "fp_", 3);
    sl_served_assert_text(a, "choices.0.message.role", "assistant");
    sl_served_assert_text(a, "choices.0.message.content", "47 + 36 = 83.");
    sl_served_assert_text(a, "choices.0.message.reasoning_content",
                          "47 + 36: tens 40 + 30 = 70, ones 7 + 6 = 13, together 83.");
    sl_served_assert_text(a, "choices.0.finish_reason", "stop");
    assert_true(json_is_null(sl_served_at(a, "choices.0.logprobs")));
    const long long n_prompt = sl_served_number(a, "usage.prompt_tokens");
    assert_int_equal(sl_served_number(a, "usage.total_tokens"),
                     n_prompt + sl_served_number(a, "usage.completion_tokens"));
    assert_int_equal(sl_served_number(a, "usage.prompt_tokens_details.cached_tokens"), 0);
    json_decref(a);
    /* Again: the prompt is there up to where the reply begins. */
    a = sl_served_ask("/v1/chat/completions",
                      "{\"max_tokens\": 3, \"temperature\": 0, " THINKS ", " QUESTION "}", 200);
    sl_served_assert_text(a, "choices.0.finish_reason", "length");
    assert_int_equal(sl_served_number(a, "usage.completion_tokens"), 3);
    assert_true(sl_served_number(a, "usage.prompt_tokens_details.cached_tokens") >= n_prompt - 4);
    json_decref(a);
    a = sl_served_ask(
        "/v1/chat/completions",
        "{\"temperature\": 0, \"stop\": [\"never\", \" =\"], " PLAIN ", " QUESTION "}", 200);
    sl_served_assert_text(a, "choices.0.message.content", "47 + 36");
    sl_served_assert_text(a, "choices.0.finish_reason", "stop");
    json_decref(a);
    sl_served_stop();
}

/* What a stream says in all. */
typedef struct streamed {
    char content[2048], thinking[2048], finish[32], id[64];
    char tool[64], arguments[512];
    size_t n_chunks, n_roles, n_logprobs;
    long long n_answer, n_cached;
    bool done, failed;
} streamed;

static void add_text(char *to, size_t capacity, const char *text)
{
    if (!text)
        return;
    assert_true(strlen(to) + strlen(text) < capacity);
    strcat(to, text);
}

static void take_chunk(streamed *s, const json_t *chunk)
{
    s->n_chunks++;
    if (sl_served_at(chunk, "error")) {
        s->failed = true;
        return;
    }
    sl_served_assert_text(chunk, "object", "chat.completion.chunk");
    if (!s->id[0])
        snprintf(s->id, sizeof s->id, "%s", sl_served_text(chunk, "id"));
    assert_string_equal(s->id, sl_served_text(chunk, "id"));
    if (sl_served_at(chunk, "usage")) {
        assert_int_equal(json_array_size(sl_served_at(chunk, "choices")), 0);
        s->n_answer = sl_served_number(chunk, "usage.completion_tokens");
        s->n_cached = sl_served_number(chunk, "usage.prompt_tokens_details.cached_tokens");
    }
    s->n_roles += sl_served_text(chunk, "choices.0.delta.role") != NULL;
    const json_t *tokens = sl_served_at(chunk, "choices.0.logprobs.content");
    if (json_array_size(tokens) > 0)
        assert_true(s->n_chunks > 1);
    s->n_logprobs += json_array_size(tokens);
    add_text(s->content, sizeof s->content, sl_served_text(chunk, "choices.0.delta.content"));
    add_text(s->thinking, sizeof s->thinking,
             sl_served_text(chunk, "choices.0.delta.reasoning_content"));
    add_text(s->tool, sizeof s->tool,
             sl_served_text(chunk, "choices.0.delta.tool_calls.0.function.name"));
    add_text(s->arguments, sizeof s->arguments,
             sl_served_text(chunk, "choices.0.delta.tool_calls.0.function.arguments"));
    add_text(s->finish, sizeof s->finish, sl_served_text(chunk, "choices.0.finish_reason"));
}

/* Reads the whole stream of an open connection. */
static streamed read_stream(int fd)
{
    streamed s = {.n_chunks = 0};
    sl_test_answer answer = sl_test_read(fd, false);
    assert_int_equal(answer.status, 200);
    char type[64];
    assert_true(sl_test_header(&answer, "Content-Type", type, sizeof type));
    assert_memory_equal(type, "text/event-stream", 17);
    for (char *line = answer.body; line && *line;) {
        char *end = strstr(line, "\n\n");
        assert_non_null(end);
        *end = '\0';
        if (strcmp(line, "data: [DONE]") == 0) {
            s.done = true;
        } else if (line[0] != ':') {
            assert_false(s.done);
            assert_memory_equal(line, "data: ", 6);
            json_t *chunk = sl_served_parse(line + 6, strlen(line + 6));
            take_chunk(&s, chunk);
            json_decref(chunk);
        }
        line = end + 2;
    }
    sl_test_answer_free(&answer);
    sl_test_close(fd);
    return s;
}

static void test_stream(void **state)
{
    (void)state;
    sl_served_start(2, 8);
    streamed s = read_stream(sl_served_post("/v1/chat/completions",
                                            "{\"stream\": true, \"temperature\": 0, "
                                            "\"stream_options\": {\"include_usage\": true}, " THINKS
                                            ", " QUESTION "}"));
    assert_true(s.done);
    assert_string_equal(s.content, "47 + 36 = 83.");
    assert_string_equal(s.thinking, "47 + 36: tens 40 + 30 = 70, ones 7 + 6 = 13, together 83.");
    assert_string_equal(s.finish, "stop");
    assert_int_equal(s.n_roles, 1);
    assert_true(s.n_chunks > 10 && s.n_answer > 10);
    s = read_stream(sl_served_post("/v1/chat/completions",
                                   "{\"stream\": true, \"temperature\": 0, "
                                   "\"max_completion_tokens\": 2, " PLAIN ", " QUESTION "}"));
    assert_string_equal(s.finish, "length");
    assert_int_equal(s.n_answer, 0); /* nobody asked */
    s = read_stream(sl_served_post("/v1/chat/completions",
                                   "{\"stream\": true, \"temperature\": 0, \"logprobs\": true, "
                                   "\"max_tokens\": 4, " PLAIN ", " QUESTION "}"));
    assert_int_equal(s.n_logprobs, 4); /* none of them with the role */
    sl_served_stop();
}

static const char with_tools[] =
    "\"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"get_weather\", "
    "\"description\": \"Get the weather in a city.\", \"parameters\": {\"type\": \"object\", "
    "\"properties\": {\"city\": {\"type\": \"string\"}}, \"required\": [\"city\"]}}}], "
    "\"messages\": [{\"role\": \"user\", \"content\": \"What is the weather in Paris?\"}]";

static void test_tools(void **state)
{
    (void)state;
    char body[1024];
    sl_served_start(1, 4);
    snprintf(body, sizeof body, "{\"temperature\": 0, " PLAIN ", %s}", with_tools);
    json_t *a = sl_served_ask("/v1/chat/completions", body, 200);
    sl_served_assert_text(a, "choices.0.finish_reason", "tool_calls");
    assert_true(json_is_null(sl_served_at(a, "choices.0.message.content")));
    sl_served_assert_text(a, "choices.0.message.tool_calls.0.type", "function");
    sl_served_assert_text(a, "choices.0.message.tool_calls.0.function.name", "get_weather");
    const char *arguments = sl_served_text(a, "choices.0.message.tool_calls.0.function.arguments");
    json_t *parsed = sl_served_parse(arguments, strlen(arguments));
    sl_served_assert_text(parsed, "city", "Paris");
    json_decref(parsed);
    snprintf(body, sizeof body, "{\"stream\": true, \"temperature\": 0, " PLAIN ", %s}",
             with_tools);
    const streamed s = read_stream(sl_served_post("/v1/chat/completions", body));
    assert_string_equal(s.finish, "tool_calls");
    assert_string_equal(s.tool, "get_weather");
    assert_string_equal(s.arguments, arguments);
    json_decref(a);
    snprintf(body, sizeof body, "{\"tool_choice\": \"none\", \"temperature\": 0, " PLAIN ", %s}",
             with_tools);
    a = sl_served_ask("/v1/chat/completions", body, 200);
    assert_null(sl_served_at(a, "choices.0.message.tool_calls"));
    json_decref(a);
    sl_served_stop();
}

static void test_choices_and_logprobs(void **state)
{
    (void)state;
    sl_served_start(3, 4);
    json_t *a = sl_served_ask("/v1/chat/completions",
                              "{\"n\": 5, \"seed\": 7, \"temperature\": 1.5, \"max_tokens\": 8, "
                              "\"logprobs\": true, \"top_logprobs\": 3, " PLAIN ", " QUESTION "}",
                              200);
    assert_int_equal(json_array_size(sl_served_at(a, "choices")), 5);
    size_t n_tokens = 0;
    for (size_t i = 0; i < 5; i++) {
        const json_t *choice = json_array_get(sl_served_at(a, "choices"), i);
        assert_int_equal(sl_served_number(choice, "index"), i);
        const json_t *tokens = sl_served_at(choice, "logprobs.content");
        assert_true(json_array_size(tokens) > 0);
        n_tokens += json_array_size(tokens);
        assert_int_equal(json_array_size(sl_served_at(tokens, "0.top_logprobs")), 3);
        assert_true(json_real_value(sl_served_at(tokens, "0.logprob")) <= 0.0);
    }
    assert_int_equal(sl_served_number(a, "usage.completion_tokens"), n_tokens);
    /* The first choice of a seed is that of the seed alone. */
    json_t *one = sl_served_ask(
        "/v1/chat/completions",
        "{\"seed\": 9, \"temperature\": 1.5, \"max_tokens\": 8, " PLAIN ", " QUESTION "}", 200);
    assert_string_equal(sl_served_text(a, "choices.2.message.content"),
                        sl_served_text(one, "choices.0.message.content"));
    json_decref(one);
    json_decref(a);
    sl_served_stop();
}

/* ---- forms ---- */

static void test_forms(void **state)
{
    (void)state;
    sl_served_start(2, 8);
    json_t *a = sl_served_ask(
        "/v1/chat/completions",
        "{\"temperature\": 1.5, \"seed\": 3, \"n\": 4, " PLAIN ", \"response_format\": {\"type\": "
        "\"json_schema\", \"json_schema\": {\"name\": \"x\", \"schema\": {\"type\": \"object\", "
        "\"properties\": {\"sum\": {\"type\": \"integer\", \"minimum\": 10, \"maximum\": 99}, "
        "\"sure\": {\"type\": \"boolean\"}}, \"required\": [\"sum\", \"sure\"], "
        "\"additionalProperties\": false}}}, " QUESTION "}",
        200);
    for (size_t i = 0; i < 4; i++) {
        const json_t *choice = json_array_get(sl_served_at(a, "choices"), i);
        const char *text = sl_served_text(choice, "message.content");
        json_t *value = sl_served_parse(text, strlen(text));
        assert_int_equal(json_object_size(value), 2);
        assert_in_range(sl_served_number(value, "sum"), 10, 99);
        assert_true(json_is_boolean(sl_served_at(value, "sure")));
        json_decref(value);
    }
    json_decref(a);
    /* Thinking is free of the form. */
    a = sl_served_ask("/v1/chat/completions",
                      "{\"temperature\": 0, " THINKS
                      ", \"grammar\": \"root ::= [0-9] [0-9]\", " QUESTION "}",
                      200);
    sl_served_assert_text(a, "choices.0.message.reasoning_content",
                          "47 + 36: tens 40 + 30 = 70, ones 7 + 6 = 13, together 83.");
    assert_int_equal(strlen(sl_served_text(a, "choices.0.message.content")), 2);
    json_decref(a);
    sl_served_stop();
}

/* A call that is required comes, with arguments of its schema, whatever was asked. */
static void test_required_tools(void **state)
{
    (void)state;
    static const char tools[] =
        "\"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"get_weather\", "
        "\"parameters\": {\"type\": \"object\", \"properties\": {\"city\": {\"type\": "
        "\"string\", \"enum\": [\"Paris\", \"Rome\"]}}, \"required\": [\"city\"]}}}, {\"type\": "
        "\"function\", \"function\": {\"name\": \"add\", \"parameters\": {\"type\": \"object\", "
        "\"properties\": {\"a\": {\"type\": \"integer\", \"minimum\": 0, \"maximum\": 99}}, "
        "\"required\": [\"a\"]}}}], ";
    char body[2048];
    sl_served_start(2, 8);
    snprintf(body, sizeof body,
             "{\"temperature\": 1.5, \"seed\": 1, \"n\": 3, \"parallel_tool_calls\": false, "
             "\"tool_choice\": \"required\", %s" PLAIN ", " QUESTION "}",
             tools);
    json_t *a = sl_served_ask("/v1/chat/completions", body, 200);
    for (size_t i = 0; i < 3; i++) {
        const json_t *choice = json_array_get(sl_served_at(a, "choices"), i);
        assert_int_equal(json_array_size(sl_served_at(choice, "message.tool_calls")), 1);
        sl_served_assert_text(choice, "finish_reason", "tool_calls");
        const char *text = sl_served_text(choice, "message.tool_calls.0.function.arguments");
        json_t *value = sl_served_parse(text, strlen(text));
        assert_int_equal(json_object_size(value), 1);
        json_decref(value);
    }
    json_decref(a);
    snprintf(body, sizeof body,
             "{\"temperature\": 0, \"tool_choice\": {\"type\": \"function\", \"function\": "
             "{\"name\": \"add\"}}, \"parallel_tool_calls\": false, %s" PLAIN ", " QUESTION "}",
             tools);
    a = sl_served_ask("/v1/chat/completions", body, 200);
    sl_served_assert_text(a, "choices.0.message.tool_calls.0.function.name", "add");
    json_decref(a);
    sl_served_stop();
}

/* ---- beside each other ---- */

enum { N_CLIENTS = 24 };

static void body_of(char *body, size_t capacity, unsigned i, bool streams)
{
    snprintf(body, capacity,
             "{\"stream\": %s, \"seed\": %u, \"temperature\": 1.2, \"max_tokens\": %u, %s, "
             "\"messages\": [{\"role\": \"user\", \"content\": \"What is %u + %u?\"}]}",
             streams ? "true" : "false", i, 5 + i % 30, i % 3 ? PLAIN : THINKS, i, 36 + i);
}

static void test_many_clients(void **state)
{
    (void)state;
    char body[512], expected[N_CLIENTS][1024];
    sl_served_start(1, 1);
    for (unsigned i = 0; i < N_CLIENTS; i++) {
        body_of(body, sizeof body, i, false);
        json_t *a = sl_served_ask("/v1/chat/completions", body, 200);
        const char *thinking = sl_served_text(a, "choices.0.message.reasoning_content");
        snprintf(expected[i], sizeof expected[i], "%s|%s", thinking ? thinking : "",
                 sl_served_text(a, "choices.0.message.content"));
        json_decref(a);
    }
    sl_served_stop();
    sl_served_start(5, 2 * N_CLIENTS);
    int fds[N_CLIENTS], leavers[N_CLIENTS];
    for (unsigned i = 0; i < N_CLIENTS; i++) {
        body_of(body, sizeof body, i, true);
        fds[i] = sl_served_post("/v1/chat/completions", body);
        leavers[i] = -1;
        if (i % 4 == 1) {
            body_of(body, sizeof body, 100 + i, true);
            leavers[i] = sl_served_post("/v1/chat/completions", body);
        }
        if (i >= 3 && leavers[i - 2] >= 0)
            sl_test_close(leavers[i - 2]);
    }
    for (unsigned i = N_CLIENTS - 2; i < N_CLIENTS; i++) {
        if (leavers[i] >= 0)
            sl_test_close(leavers[i]);
    }
    if (leavers[0] >= 0)
        sl_test_close(leavers[0]);
    for (unsigned i = 0; i < N_CLIENTS; i++) {
        const streamed s = read_stream(fds[i]);
        char got[4096];
        assert_true(s.done);
        snprintf(got, sizeof got, "%s|%s", s.thinking, s.content);
        assert_string_equal(got, expected[i]);
    }
    sl_served_stop();
}

/* A client that leaves frees its place within a step. */
static void test_disconnect(void **state)
{
    (void)state;
    sl_served_start(1, 4);
    static const char endless[] = "{\"stream\": true, \"temperature\": 0, \"logit_bias\": "
                                  "{\"5\": 100}, " PLAIN ", " QUESTION "}";
    for (unsigned i = 0; i < 5; i++) {
        const int fd = sl_served_post("/v1/chat/completions", endless);
        assert_true(sl_test_read_until(fd, "data: "));
        sl_test_close(fd);
    }
    json_t *a =
        sl_served_ask("/v1/chat/completions", "{\"temperature\": 0, " PLAIN ", " QUESTION "}", 200);
    sl_served_assert_text(a, "choices.0.message.content", "47 + 36 = 83.");
    json_decref(a);
    sl_served_stop();
}

/* ---- refusals ---- */

static void assert_refused_for(const char *body, const char *param, const char *part)
{
    json_t *a = sl_served_ask("/v1/chat/completions", body, 400);
    sl_served_assert_text(a, "error.type", "invalid_request_error");
    if (param)
        sl_served_assert_text(a, "error.param", param);
    else
        assert_true(json_is_null(sl_served_at(a, "error.param")));
    assert_non_null(strstr(sl_served_text(a, "error.message"), part));
    json_decref(a);
}

static void test_bad_requests(void **state)
{
    (void)state;
    static const struct {
        const char *field, *param, *part;
    } cases[] = {
        {"\"temperature\": \"hot\"", "temperature", "expected a number from 0 to"},
        {"\"temperature\": -1", "temperature", "expected a number"},
        {"\"top_p\": 1.5", "top_p", "from 0 to 1"},
        {"\"top_p\": true", "top_p", "expected a number"},
        {"\"n\": 0", "n", "from 1 to 128"},
        {"\"n\": 100000", "n", "from 1 to 128"},
        {"\"n\": 1.5", "n", "whole number"},
        {"\"max_tokens\": 0", "max_tokens", "whole number"},
        {"\"max_tokens\": -5", "max_tokens", "whole number"},
        {"\"max_completion_tokens\": []", "max_completion_tokens", "whole number"},
        {"\"stop\": 5", "stop", "a string or an array"},
        {"\"stop\": [\"\"]", "stop", "1 to 4096 bytes"},
        {"\"stop\": [\"a\", \"b\", \"c\", \"d\", \"e\"]", "stop", "up to 4"},
        {"\"seed\": \"x\"", "seed", "whole number"},
        {"\"stream\": 1", "stream", "true or false"},
        {"\"stream_options\": {}", "stream_options", "only for answers that stream"},
        {"\"logit_bias\": {\"x\": 1}", "logit_bias", "token ids"},
        {"\"logit_bias\": {\"999999999\": 1}", "logit_bias", "token ids"},
        {"\"logit_bias\": {\"1\": 101}", "logit_bias", "from -100 to 100"},
        {"\"top_logprobs\": 3", "top_logprobs", "only with logprobs"},
        {"\"logprobs\": true, \"top_logprobs\": 21", "top_logprobs", "from 0 to 20"},
        {"\"tools\": {}", "tools", "an array"},
        {"\"tool_choice\": \"required\"", "tools", "which tool_choice requires"},
        {"\"tool_choice\": {\"type\": \"function\"}", "tool_choice", "or a function"},
        {"\"tool_choice\": 5", "tool_choice", "expected"},
        {"\"response_format\": {\"type\": \"xml\"}", "response_format", "json_object"},
        {"\"response_format\": {\"type\": \"json_schema\"}", "response_format", "a schema"},
        {"\"response_format\": {\"type\": \"json_schema\", \"json_schema\": {\"schema\": "
         "{\"type\": \"object\", \"minProperties\": \"x\"}}}",
         "response_format", "minProperties"},
        {"\"grammar\": \"root ::= (\"", "grammar", "line 1"},
        {"\"reasoning_effort\": 3", "reasoning_effort", "a string"},
        {"\"thinking_budget\": -1", "thinking_budget", "whole number"},
        {"\"model\": 5", "model", "a string"},
    };
    char body[512];
    sl_served_start(1, 4);
    for (size_t i = 0; i < SL_COUNTOF(cases); i++) {
        snprintf(body, sizeof body, "{%s, " QUESTION "}", cases[i].field);
        assert_refused_for(body, cases[i].param, cases[i].part);
    }
    assert_refused_for("{}", "messages", "at least one message");
    assert_refused_for("{\"messages\": []}", "messages", "at least one message");
    assert_refused_for("{\"messages\": \"hello\"}", "messages", "an array");
    assert_refused_for("[]", NULL, "no JSON object");
    assert_refused_for("{\"messages\": [", NULL, "line 1");
    assert_refused_for("{\"messages\": [{\"role\": \"king\", \"content\": \"x\"}]}", "messages",
                       "messages[0]");
    char *deep = malloc(300000);
    assert_non_null(deep);
    size_t n = (size_t)sprintf(deep, "{\"messages\": ");
    memset(deep + n, '[', 200000);
    deep[n + 200000] = '\0';
    assert_refused_for(deep, NULL, "");
    free(deep);
    /* A prompt that does not fit. */
    char *longer = malloc(20000);
    assert_non_null(longer);
    n = (size_t)sprintf(longer, "{\"messages\": [{\"role\": \"user\", \"content\": \"");
    for (unsigned i = 0; i < 1500; i++)
        n += (size_t)sprintf(longer + n, "word %u", i % 10);
    sprintf(longer + n, "\"}]}");
    json_t *a = sl_served_ask("/v1/chat/completions", longer, 400);
    sl_served_assert_text(a, "error.code", "context_length_exceeded");
    json_decref(a);
    free(longer);
    /* And the server is well. */
    a = sl_served_ask("/v1/chat/completions", "{\"temperature\": 0, " PLAIN ", " QUESTION "}", 200);
    sl_served_assert_text(a, "choices.0.message.content", "47 + 36 = 83.");
    json_decref(a);
    sl_served_stop();
}

static void test_full_queue(void **state)
{
    (void)state;
    sl_served_start(1, 2);
    int fds[3];
    static const char endless[] = "{\"stream\": true, \"temperature\": 0, \"logit_bias\": "
                                  "{\"5\": 100}, " PLAIN ", " QUESTION "}";
    fds[0] = sl_served_post("/v1/chat/completions", endless);
    assert_true(sl_test_read_until(fds[0], "data: "));
    unsigned n_refused = 0;
    for (unsigned i = 0; i < 12; i++) {
        const int fd = sl_served_post("/v1/chat/completions", endless);
        if (i < 2) {
            fds[1 + i] = fd;
            usleep(20000); /* it has its place in the queue */
            continue;
        }
        sl_test_answer answer = sl_test_read(fd, false);
        char after[16];
        if (answer.status == 429) {
            n_refused++;
            assert_true(sl_test_header(&answer, "Retry-After", after, sizeof after));
        }
        sl_test_answer_free(&answer);
        sl_test_close(fd);
    }
    assert_true(n_refused > 0);
    for (unsigned i = 0; i < 3; i++)
        sl_test_close(fds[i]);
    sl_served_stop();
}

/* ---- the other routes ---- */

static void test_other_routes(void **state)
{
    (void)state;
    sl_served_start(1, 4);
    sl_test_expect(sl_served(), "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n", 200, "ok");
    sl_test_expect(sl_served(), "GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n", 200, "ok");
    sl_test_expect(sl_served(), "GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n", 200, "ok");
    sl_test_expect(sl_served(), "GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n", 200,
                   "\"id\": \"tiny\"");
    sl_test_expect(sl_served(), "GET /v1/models/tiny HTTP/1.1\r\nHost: localhost\r\n\r\n", 200,
                   "\"object\": \"model\"");
    sl_test_expect(sl_served(), "GET /v1/models/other HTTP/1.1\r\nHost: localhost\r\n\r\n", 404,
                   "model_not_found");
    sl_test_expect(sl_served(), "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n", 200,
                   "sluice_num_requests_running 0\n");
    json_t *a = sl_served_ask("/tokenize", "{\"content\": \"What is 47 + 36?\"}", 200);
    char body[2048];
    char *tokens = json_dumps(sl_served_at(a, "tokens"), JSON_COMPACT);
    snprintf(body, sizeof body, "{\"tokens\": %s}", tokens);
    free(tokens);
    json_decref(a);
    a = sl_served_ask("/detokenize", body, 200);
    sl_served_assert_text(a, "content", "What is 47 + 36?");
    json_decref(a);
    a = sl_served_ask("/tokenize", "{\"content\": \"ab\", \"with_pieces\": true}", 200);
    assert_non_null(sl_served_text(a, "tokens.0.piece"));
    json_decref(a);
    a = sl_served_ask("/tokenize", "{\"content\": 5}", 400);
    sl_served_assert_text(a, "error.param", "content");
    json_decref(a);
    a = sl_served_ask("/detokenize", "{\"tokens\": [-1]}", 400);
    sl_served_assert_text(a, "error.param", "tokens");
    json_decref(a);
    a = sl_served_ask("/apply-template", "{" QUESTION "}", 200);
    assert_non_null(strstr(sl_served_text(a, "prompt"), "What is 47 + 36?"));
    assert_true(sl_served_number(a, "n_tokens") > 5);
    json_decref(a);
    sl_served_stop();
}

/* Answers in progress end before the server does. */
static void test_drain(void **state)
{
    (void)state;
    sl_served_start(2, 4);
    const int fd = sl_served_post(
        "/v1/chat/completions", "{\"stream\": true, \"temperature\": 0, " THINKS ", " QUESTION "}");
    assert_true(sl_test_read_until(fd, "data: "));
    sl_http_stop(sl_served_http());
    assert_true(sl_test_read_until(fd, "[DONE]"));
    sl_test_close(fd);
    sl_served_join();
}

int main(void)
{
    signal(SIGPIPE, SIG_IGN);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_whole_answer), cmocka_unit_test(test_stream),
        cmocka_unit_test(test_tools),        cmocka_unit_test(test_choices_and_logprobs),
        cmocka_unit_test(test_forms),        cmocka_unit_test(test_required_tools),
        cmocka_unit_test(test_many_clients), cmocka_unit_test(test_disconnect),
        cmocka_unit_test(test_bad_requests), cmocka_unit_test(test_full_queue),
        cmocka_unit_test(test_other_routes), cmocka_unit_test(test_drain),
    };
    return cmocka_run_group_tests(tests, sl_served_set_up, sl_served_tear_down);
}
