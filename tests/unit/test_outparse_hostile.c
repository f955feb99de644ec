/* The answer parser on what nobody would write: tags in any order, cut anywhere. Nothing may be
 * lost, the cuts may not matter, arguments are always JSON, and time stays linear. */
#include "answers.h"
#include "support.h"
#include "templates.h"

#include <stdio.h>
#include <stdlib.h>

#include "text/outparse_json.h"
#include "text/outparse_value.h"

/* Pieces of answers; "*" becomes a word that occurs once. */
static const char *const fragments[] = {
    "*",
    "*",
    "*",
    " * ",
    "\n",
    "\n",
    "  ",
    "<",
    "</",
    ">",
    "é",
    "<think>",
    "</think>",
    "<tool_call>",
    "<tool_call>\n<function=f>\n",
    "</tool_call>",
    "\n</tool_call>",
    "</function>",
    "\n</function>\n",
    "<function=*>",
    "<function=f>",
    "<function name=\"f\">",
    "<function",
    "<parameter=s>",
    "<parameter=i>\n",
    "<parameter=a>\n",
    "<parameter=*>",
    "<parameter=*",
    "</parameter>",
    "\n</parameter>\n",
    "\n</parameter>\n</function>\n</tool_call>",
    "{\"name\": \"f\", \"arguments\": {\"a\": \"*\"}}",
    "{\"name\": \"*\", \"arguments\": {",
    "<tool_call>{\"name\": \"f\", \"arguments\": {",
    "\"*\": ",
    "\"",
    "'",
    "\\",
    "{",
    "}",
    "[",
    "]",
    ",",
    "[1, 2]",
    "True",
    "\"*\"",
};

enum { MAX_TEXT = 1 << 12 };

typedef struct answer_text {
    char text[MAX_TEXT];
    size_t n;
    unsigned n_words;
} answer_text;

static void make_text(sl_test_rng *rng, unsigned n_fragments, answer_text *out)
{
    *out = (answer_text){.n = 0};
    for (unsigned i = 0; i < n_fragments; i++) {
        const char *s = fragments[sl_test_rng_below(rng, SL_COUNTOF(fragments))];
        for (; *s && out->n + 16 < MAX_TEXT; s++) {
            if (*s == '*')
                out->n += (size_t)snprintf(out->text + out->n, 16, "w%uq", out->n_words++);
            else
                out->text[out->n++] = *s;
        }
    }
    out->text[out->n] = '\0';
}

static bool contains(sl_str text, const char *word)
{
    size_t n = strlen(word);
    for (size_t i = 0; i + n <= text.n_bytes; i++)
        if (memcmp(text.data + i, word, n) == 0)
            return true;
    return false;
}

static unsigned n_places(const json_t *answer, const char *word)
{
    static const char *const keys[] = {"reasoning_content", "content"};
    unsigned n = 0;
    for (size_t i = 0; i < SL_COUNTOF(keys); i++) {
        const json_t *text = json_object_get(answer, keys[i]);
        n += contains((sl_str){json_string_value(text), json_string_length(text)}, word);
    }
    const json_t *calls = json_object_get(answer, "tool_calls");
    for (size_t i = 0; i < json_array_size(calls); i++) {
        const json_t *call = json_array_get(calls, i);
        n += strstr(json_string_value(json_object_get(call, "name")), word) != NULL;
        n += strstr(json_string_value(json_object_get(call, "arguments")), word) != NULL;
    }
    return n;
}

/* A limit may cut a word. */
static void check_answer(const json_t *answer, const answer_text *input, bool words)
{
    for (unsigned i = 0; words && i < input->n_words; i++) {
        char word[16];
        snprintf(word, sizeof word, "w%uq", i);
        unsigned n = n_places(answer, word);
        if (n != 1) {
            char *dump = json_dumps(answer, 0);
            fail_msg("%s is in %u places:\n  %s\n  %s", word, n, input->text, dump);
        }
    }
    const json_t *calls = json_object_get(answer, "tool_calls");
    for (size_t i = 0; i < json_array_size(calls); i++) {
        const char *arguments =
            json_string_value(json_object_get(json_array_get(calls, i), "arguments"));
        json_error_t problem;
        json_t *value = json_loads(arguments, 0, &problem);
        if (!json_is_object(value))
            fail_msg("%s\n  gives arguments %s: %s", input->text, arguments, problem.text);
        json_decref(value);
    }
}

static json_t *some_tools(void)
{
    json_t *tools =
        sl_test_json_of("[{'type': 'function', 'function': {'name': 'f', 'parameters': {"
                        "'type': 'object', 'properties': {'s': {'type': 'string'}, 'i': {'type': "
                        "'integer'}, 'a': {'type': ['array', 'boolean']}}}}}]");
    return tools;
}

static sl_outparse_options some_options(sl_test_rng *rng, const json_t *tools)
{
    sl_outparse_options options = {.tools = sl_test_rng_below(rng, 3) > 0 ? tools : NULL};
    options.starts_in_thinking = sl_test_rng_below(rng, 3) == 0;
    if (sl_test_rng_below(rng, 4) == 0)
        options.max_call_bytes = 1 + sl_test_rng_below(rng, 200);
    options.ignore_calls = sl_test_rng_below(rng, 16) == 0;
    options.ignore_calls_in_thinking = sl_test_rng_below(rng, 8) == 0;
    return options;
}

static void test_random_answers(void **state)
{
    (void)state;
    sl_test_rng rng = sl_test_rng_of(7);
    json_t *tools = some_tools();
    answer_text *input = malloc(sizeof *input);
    const unsigned n_rounds = sl_test_shortened() ? 1000 : 4000;
    for (unsigned round = 0; round < n_rounds; round++) {
        make_text(&rng, 1 + sl_test_rng_below(&rng, 40), input);
        sl_outparse_options options = some_options(&rng, tools);
        json_t *answer = sl_test_answer_whole(input->text, input->n, &options);
        check_answer(answer, input, options.max_call_bytes == 0);
        for (size_t most = 1; most <= 16; most *= 4) {
            json_t *other =
                sl_test_answer_in_pieces(input->text, input->n, &options, most, round + 1);
            sl_test_same_answer(input->text, other, answer);
            json_decref(other);
        }
        json_decref(answer);
    }
    free(input);
    json_decref(tools);
}

static void test_random_answers_cut_everywhere(void **state)
{
    (void)state;
    sl_test_rng rng = sl_test_rng_of(11);
    json_t *tools = some_tools();
    answer_text *input = malloc(sizeof *input);
    const unsigned n_rounds = sl_test_shortened() ? 40 : 150;
    for (unsigned round = 0; round < n_rounds; round++) {
        make_text(&rng, 12, input);
        sl_outparse_options options = some_options(&rng, tools);
        json_t *answer = sl_test_answer_whole(input->text, input->n, &options);
        for (size_t at = 1; at < input->n; at++) {
            json_t *other = sl_test_answer_cut_at(input->text, input->n, &options, at);
            sl_test_same_answer(input->text, other, answer);
            json_decref(other);
        }
        json_decref(answer);
    }
    free(input);
    json_decref(tools);
}

/* Every beginning of an answer is an answer. */
static void test_cut_off_anywhere(void **state)
{
    (void)state;
    static const char whole[] =
        "<think>\nw0q\n</think>\n\nw1q\n\n<tool_call>\n<function=f>\n<parameter=s>\nw2q\n"
        "</parameter>\n<parameter=i>\n5\n</parameter>\n</function>\n</tool_call>\n"
        "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"s\": \"w3q\"}}\n</tool_call>\nw4q";
    json_t *tools = some_tools();
    sl_outparse_options options = {.tools = tools};
    answer_text *input = malloc(sizeof *input);
    for (size_t n = 0; n < sizeof whole; n++) {
        *input = (answer_text){.n = n};
        memcpy(input->text, whole, n);
        for (const char *s = strchr(input->text, 'q'); s; s = strchr(s + 1, 'q'))
            input->n_words++;
        json_t *answer = sl_test_answer_whole(input->text, n, &options);
        check_answer(answer, input, true);
        json_decref(answer);
    }
    free(input);
    json_decref(tools);
}

/* ---- size ---- */

/* Each of these would be quadratic or deep in a parser that starts again or recurses. */
static void *read_long_answers(void *arg)
{
    (void)arg;
    static const struct {
        const char *begin, *repeat, *end;
    } cases[] = {
        {"", "<", ""},
        {"", "<tool_call>", ""},
        {"", "<tool_call>{", ""},
        {"", "<tool_call>{\"", ""},
        {"", "<function=f>", ""},
        {"", "<tool_call><function=f>", ""},
        {"", "<tool_call><function=f><parameter=s>", ""},
        {"", "<think>", ""},
        {"", "<think></think>", ""},
        {"<tool_call><function=f><parameter=s>", "</parameter>x", ""},
        {"<tool_call><function=f><parameter=s>",
         "<tool_call><function=f><parameter=s>x</parameter></function></tool_call>y", ""},
        {"<tool_call><function=f><parameter=s>", "</parameter>", ""},
        {"<tool_call><function=f><parameter=s>", "<parameter=z></parameter></function>", ""},
        {"<tool_call><function=f><parameter=s>", "</function>x<tool_call>", ""},
        {"<tool_call><function=f><parameter=s>", "<tool_call>x", "</parameter>"},
        {"<tool_call><function=f>", "<parameter=s>x</parameter>", ""},
        {"<tool_call><function=f><parameter=s>x</parameter>y", "<parameter=s></parameter> ", ""},
        {"<tool_call><function=f><parameter=a>", "[", ""},
        {"<tool_call><function=f><parameter=a>[", "'\\u", ""},
        {"<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": ", "[", ""},
        {"<tool_call>[", "{\"name\": \"f\"},", "]</tool_call>"},
        {"<tool_call>", "{\"name\": \"f\"},", "</tool_call>"},
        {"<tool_call>{\"name\": \"f\", \"arguments\": \"", "\\ud800", "\"}</tool_call>"},
        {"", "a ", ""},
        {"", " ", ""},
    };
    const size_t most = sl_test_shortened() ? (size_t)1 << 18 : (size_t)1 << 20;
    char *text = malloc(most + 256);
    for (size_t i = 0; i < SL_COUNTOF(cases); i++) {
        size_t n = strlen(cases[i].begin), n_repeat = strlen(cases[i].repeat);
        memcpy(text, cases[i].begin, n);
        for (; n + n_repeat <= most; n += n_repeat)
            memcpy(text + n, cases[i].repeat, n_repeat);
        memcpy(text + n, cases[i].end, strlen(cases[i].end));
        n += strlen(cases[i].end);
        json_decref(sl_test_answer_whole(text, n, NULL));
    }
    free(text);
    return NULL;
}

static void test_long_answers(void **state)
{
    (void)state;
    sl_test_on_small_stack(read_long_answers, NULL);
}

static json_t *one_value(size_t n_value, size_t max_call_bytes)
{
    static const char begin[] = "<tool_call><function=f><parameter=s>", end[] = "</parameter>";
    char *text = malloc(sizeof begin + n_value + sizeof end);
    memcpy(text, begin, sizeof begin - 1);
    memset(text + sizeof begin - 1, '\x01', n_value);
    memcpy(text + sizeof begin - 1 + n_value, end, sizeof end);
    sl_outparse_options options = {.max_call_bytes = max_call_bytes};
    json_t *answer = sl_test_answer_whole(text, sizeof begin + n_value + sizeof end - 2, &options);
    free(text);
    return answer;
}

static void test_call_size_limit(void **state)
{
    (void)state;
    size_t framing = strlen("<function=f><parameter=s>"), most = 1000;
    json_t *answer = one_value(most - framing, most);
    const json_t *call = json_array_get(json_object_get(answer, "tool_calls"), 0);
    const json_t *arguments = json_object_get(call, "arguments");
    assert_int_equal(json_string_length(arguments), strlen("{\"s\":\"\"}") + 6 * (most - framing));
    json_decref(answer);
    answer = one_value(most - framing + 1, most);
    assert_int_equal(json_string_length(json_object_get(answer, "content")),
                     strlen("\x01</parameter>"));
    json_decref(answer);
    if (sl_test_shortened())
        return;
    /* The limit itself, of the longest escapes. */
    size_t n = SL_OUTPARSE_MAX_CALL_BYTES - framing;
    answer = one_value(n, 0);
    call = json_array_get(json_object_get(answer, "tool_calls"), 0);
    assert_int_equal(json_string_length(json_object_get(call, "arguments")),
                     strlen("{\"s\":\"\"}") + 6 * n);
    json_decref(answer);
}

static void test_parameter_limit(void **state)
{
    (void)state;
    sl_error err;
    sl_buf text;
    sl_buf_init(&text, SL_MEM_TEXT, 1 << 20);
    assert_ok(sl_buf_append_str(&text, "<tool_call><function=f>", &err));
    for (int i = 0; i <= SL_OUTPARSE_MAX_PARAMETERS; i++)
        assert_ok(sl_buf_printf(&text, &err, "<parameter=p%d>x</parameter>", i));
    json_t *answer = sl_test_answer_whole(text.data, text.n_bytes, NULL);
    const json_t *call = json_array_get(json_object_get(answer, "tool_calls"), 0);
    json_error_t problem;
    json_t *arguments =
        json_loads(json_string_value(json_object_get(call, "arguments")), 0, &problem);
    assert_int_equal(json_object_size(arguments), SL_OUTPARSE_MAX_PARAMETERS);
    assert_string_equal(json_string_value(json_object_get(answer, "content")),
                        "<parameter=p1024>x</parameter>");
    json_decref(arguments);
    json_decref(answer);
    sl_buf_free(&text);
}

/* ---- the reader of lenient JSON ---- */

/* Whatever it accepts, it writes JSON; what is JSON it accepts and does not change. */
static void test_lax_json(void **state)
{
    (void)state;
    static const char *const parts[] = {
        "{",       "}",     "[",     "]",    ",",     ":",         "\"",     "'",    "\\",
        "u",       "ab",    "00e9",  "\\u",  "d8",    "3d",        "\n",     " ",    "1",
        "-0",      "0.5",   "1e5",   "True", "None",  "é",         "\"k\":", "null", "\\ud83d",
        "\\ude00", "'k': ", "false", "\x01", "[1,2]", "{\"a\":[]}"};
    sl_test_rng rng = sl_test_rng_of(3);
    sl_lax_json json;
    sl_lax_init(&json, SL_MEM_TEXT, 1 << 20);
    unsigned n_accepted = 0, n_strict = 0;
    const unsigned n_rounds = sl_test_shortened() ? 20000 : 60000;
    for (unsigned round = 0; round < n_rounds; round++) {
        char text[256] = "";
        size_t n = 0;
        const char *open = sl_test_rng_below(&rng, 2) ? "[" : "{\"k\":";
        memcpy(text, open, strlen(open));
        n = strlen(open);
        for (unsigned i = sl_test_rng_below(&rng, 12); i > 0; i--) {
            const char *part = parts[sl_test_rng_below(&rng, SL_COUNTOF(parts))];
            memcpy(text + n, part, strlen(part));
            n += strlen(part);
        }
        text[n++] = open[0] == '[' ? ']' : '}';
        sl_error err;
        size_t used;
        sl_lax_result result;
        sl_lax_reset(&json);
        assert_ok(sl_lax_push(&json, text, n, &used, &result, &err));
        json_error_t problem;
        json_t *before = json_loadb(text, n, 0, &problem);
        if (before)
            assert_true(result == SL_LAX_DONE && used == n && !json.repaired);
        if (result == SL_LAX_DONE) {
            json_t *after = json_loadb(json.out.data, json.out.n_bytes, JSON_ALLOW_NUL, &problem);
            if (!after)
                fail_msg("%s became %s: %s", text, json.out.data, problem.text);
            if (before)
                assert_true(json_equal(before, after));
            json_decref(after);
            sl_str value = sl_lax_value(json.out.data);
            assert_int_equal(value.n_bytes, json.out.n_bytes);
        }
        n_accepted += result == SL_LAX_DONE;
        n_strict += before != NULL;
        json_decref(before);
    }
    assert_true(n_accepted > n_rounds / 60 && n_strict > n_rounds / 120);
    sl_lax_free(&json);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_answers),
        cmocka_unit_test(test_random_answers_cut_everywhere),
        cmocka_unit_test(test_cut_off_anywhere),
        cmocka_unit_test(test_long_answers),
        cmocka_unit_test(test_call_size_limit),
        cmocka_unit_test(test_parameter_limit),
        cmocka_unit_test(test_lax_json),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
