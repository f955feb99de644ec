/* The marks of a prompt: each lies at or before the place where the conversations that may follow
 * part from it, as far along as they agree, and a state comes back to it. */
#include <string.h>

#include "models.h"
#include "support.h"

#include "base/json.h"
#include "base/mem.h"

static const char tiny[] = "models/tiny-q8_0.gguf";

#define TOOLS \
    "[{\"type\": \"function\", \"function\": {\"name\": \"f\", \"parameters\": {\"type\": " \
    "\"object\", \"properties\": {\"n\": {\"type\": \"integer\"}}}}}]"
#define MESSAGE(role, text) "{\"role\": \"" role "\", \"content\": \"" text "\"}"
#define SYSTEM              MESSAGE("system", "Be brief.") ", "
#define EARLIER             MESSAGE("user", "What is 6 times 7?") ", " MESSAGE("assistant", "42.") ", "
#define QUESTION            MESSAGE("user", "Translate cat to German.")
#define OTHER               MESSAGE("user", "Name three rivers.")
#define ANSWERED \
    ", {\"role\": \"assistant\", \"reasoning_content\": \"It is Katze.\", \"content\": " \
    "\"Katze.\"}"
#define CALLED \
    ", {\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": [{\"type\": \"function\", " \
    "\"function\": {\"name\": \"f\", \"arguments\": {\"n\": 1}}}]}, "

static sl_engine *open_at(sl_open_level level)
{
    sl_error err;
    sl_engine *engine;
    sl_engine_params params = sl_engine_params_default();
    params.level = level;
    params.n_threads = 2;
    assert_ok(sl_engine_open(tiny, &params, &engine, &err));
    return engine;
}

static sl_str str(const char *s)
{
    return (sl_str){s, strlen(s)};
}

static sl_chat chat_of(const char *messages, const char *tools)
{
    return (sl_chat){.messages = str(messages),
                     .tools = str(tools),
                     .variables = str("{\"enable_thinking\": true}")};
}

/* The tokens that the prompt has in common with another conversation. */
static uint32_t common_with(const sl_engine *engine, const sl_ids *prompt, const char *messages,
                            const char *tools)
{
    sl_error err;
    sl_ids ids = {0};
    const sl_chat chat = chat_of(messages, tools);
    assert_ok(sl_engine_render(engine, &chat, &ids, NULL, &err));
    uint32_t n = 0;
    while (n < prompt->n && n < ids.n && prompt->ids[n] == ids.ids[n])
        n++;
    sl_ids_free(&ids);
    return n;
}

typedef struct marked {
    sl_ids prompt;
    sl_prompt_mark marks[SL_MAX_PROMPT_MARKS];
    size_t n;
} marked;

static marked mark(const sl_engine *engine, const char *messages, const char *tools)
{
    sl_error err;
    marked m = {.n = 0};
    const sl_chat chat = chat_of(messages, tools);
    assert_ok(sl_engine_render(engine, &chat, &m.prompt, NULL, &err));
    assert_ok(sl_engine_prompt_marks(engine, &chat, m.prompt.ids, m.prompt.n, m.marks, &m.n, &err));
    assert_true(m.n <= SL_MAX_PROMPT_MARKS);
    for (size_t i = 0; i < m.n; i++) {
        assert_in_range(m.marks[i].position, 1, m.prompt.n - 1);
        assert_true(i == 0 || m.marks[i - 1].position <= m.marks[i].position);
    }
    return m;
}

/* 0 when there is none. */
static uint32_t position_of(const marked *m, sl_anchor anchor)
{
    for (size_t i = 0; i < m->n; i++) {
        if (m->marks[i].anchor == anchor)
            return m->marks[i].position;
    }
    return 0;
}

static void test_places(void **state)
{
    (void)state;
    static const struct {
        const char *messages, *tools;
        /* Conversations that share the system part, stand in place of the last message, follow. */
        const char *beginning, *instead, *next;
    } cases[] = {
        {"[" QUESTION "]", "", NULL, "[" OTHER "]", "[" QUESTION ANSWERED ", " OTHER "]"},
        {"[" SYSTEM QUESTION "]", "", "[" SYSTEM OTHER "]", "[" SYSTEM OTHER "]",
         "[" SYSTEM QUESTION ANSWERED ", " OTHER "]"},
        {"[" QUESTION "]", TOOLS, "[" OTHER "]", "[" OTHER "]",
         "[" QUESTION ANSWERED ", " OTHER "]"},
        {"[" SYSTEM EARLIER QUESTION "]", TOOLS, "[" SYSTEM OTHER "]", "[" SYSTEM EARLIER OTHER "]",
         "[" SYSTEM EARLIER QUESTION ANSWERED ", " OTHER "]"},
        {"[" SYSTEM QUESTION CALLED MESSAGE("tool", "one") "]", TOOLS, "[" SYSTEM OTHER "]",
         "[" SYSTEM QUESTION CALLED MESSAGE("tool", "two") "]",
         "[" SYSTEM QUESTION CALLED MESSAGE("tool", "one") ANSWERED ", " OTHER "]"},
    };
    sl_engine *engine = open_at(SL_OPEN_TEXT);
    for (size_t i = 0; i < SL_COUNTOF(cases); i++) {
        marked m = mark(engine, cases[i].messages, cases[i].tools);
        const uint32_t system = position_of(&m, SL_ANCHOR_SYSTEM);
        assert_int_equal(system,
                         cases[i].beginning
                             ? common_with(engine, &m.prompt, cases[i].beginning, cases[i].tools)
                             : 0);
        assert_int_equal(position_of(&m, SL_ANCHOR_TURN),
                         common_with(engine, &m.prompt, cases[i].instead, cases[i].tools));
        assert_int_equal(position_of(&m, SL_ANCHOR_REPLY),
                         common_with(engine, &m.prompt, cases[i].next, cases[i].tools));
        assert_int_equal(m.n, cases[i].beginning ? 3 : 2);
        sl_ids_free(&m.prompt);
    }
    sl_engine_close(engine);
}

/* A second turn whose first one loses its thinking, in a state of its own: what it evaluates is the
 * answer and the new question, with the same bits. */
static void test_next_turn(void **state)
{
    (void)state;
    sl_error err;
    sl_engine *engine = open_at(SL_OPEN_ALL);
    sl_generate_params params = sl_generate_params_default(engine);
    params.sampling = sl_sampling_default();
    marked m = mark(engine, "[" SYSTEM QUESTION "]", "");
    params.marks = m.marks;
    params.n_marks = m.n;
    sl_generate_result result;
    sl_state *first, *second;
    assert_ok(sl_state_create(engine, 1024, &first, &err));
    assert_ok(sl_generate(first, m.prompt.ids, m.prompt.n, &params, NULL, NULL, &result, &err));
    assert_true(result.n_tokens > 8);

    sl_ids next = {0};
    const sl_chat chat = chat_of("[" SYSTEM QUESTION ANSWERED ", " OTHER "]", "");
    assert_ok(sl_engine_render(engine, &chat, &next, NULL, &err));
    assert_ok(sl_state_create(engine, 1024, &second, &err));
    sl_reuse_report report;
    assert_ok(sl_state_sync(second, next.ids, next.n, &report, &err));
    assert_int_equal(report.source, SL_REUSE_CHECKPOINT);
    assert_int_equal(report.reused, position_of(&m, SL_ANCHOR_REPLY));
    sl_state_free(first);
    sl_state_free(second);
    sl_ids_free(&next);
    sl_ids_free(&m.prompt);
    sl_engine_close(engine);
}

/* What is wrong with the call is told; what only other conversations would make the template
 * refuse is no error. */
static void test_refusals(void **state)
{
    (void)state;
    sl_error err;
    sl_engine *engine = open_at(SL_OPEN_TEXT);
    sl_prompt_mark marks[SL_MAX_PROMPT_MARKS];
    size_t n = 9;
    const int32_t prompt[] = {1, 2, 3};
    static const struct {
        const char *messages, *tools;
        sl_status status;
        const char *part;
    } cases[] = {
        {"", "", SL_ERR_ARGUMENT, "there are no messages"},
        {"{}", "", SL_ERR_ARGUMENT, "messages must be a JSON array"},
        {"[", "", SL_ERR_FORMAT, "messages: line 1"},
        {"[]", "{}", SL_ERR_ARGUMENT, "tools must be a JSON array"},
    };
    for (size_t i = 0; i < SL_COUNTOF(cases); i++) {
        const sl_chat chat = chat_of(cases[i].messages, cases[i].tools);
        assert_refused(sl_engine_prompt_marks(engine, &chat, prompt, 3, marks, &n, &err),
                       cases[i].status, cases[i].part);
        assert_int_equal(n, 0);
    }
    sl_chat chat = chat_of("[" QUESTION "]", "");
    chat.reserved[0] = 1;
    assert_refused(sl_engine_prompt_marks(engine, &chat, prompt, 3, marks, &n, &err),
                   SL_ERR_ARGUMENT, "sl_chat");

    static const char *const odd[] = {"[]", "[1]", "[{\"role\": 7}]",
                                      "[" MESSAGE("wizard", "x") "]",
                                      "[" SYSTEM MESSAGE("developer", "x") "]"};
    for (size_t i = 0; i < SL_COUNTOF(odd); i++) {
        chat = chat_of(odd[i], "");
        assert_ok(sl_engine_prompt_marks(engine, &chat, prompt, 3, marks, &n, &err));
        assert_int_equal(n, 0); /* no conversation begins with these tokens */
        assert_ok(sl_engine_prompt_marks(engine, &chat, NULL, 0, marks, &n, &err));
    }
    sl_engine_close(engine);

    engine = open_at(SL_OPEN_HEADERS);
    chat = chat_of("[" QUESTION "]", "");
    assert_int_not_equal(sl_engine_prompt_marks(engine, &chat, prompt, 3, marks, &n, &err), SL_OK);
    sl_engine_close(engine);
}

static void test_allocation_failures(void **state)
{
    (void)state;
    sl_error err;
    sl_engine *engine = open_at(SL_OPEN_TEXT);
    marked m = mark(engine, "[" SYSTEM EARLIER QUESTION "]", TOOLS);
    const sl_chat chat = chat_of("[" SYSTEM EARLIER QUESTION "]", TOOLS);
    const size_t blocks = sl_mem_get_stats().blocks;
    sl_prompt_mark marks[SL_MAX_PROMPT_MARKS];
    size_t n_marks;
    sl_status status = SL_ERR_MEMORY;
    uint64_t n = 0;
    while (status == SL_ERR_MEMORY) {
        sl_mem_fail_at(++n, false);
        status =
            sl_engine_prompt_marks(engine, &chat, m.prompt.ids, m.prompt.n, marks, &n_marks, &err);
        sl_mem_fail_at(0, false);
        assert_int_equal(sl_mem_get_stats().blocks, blocks);
    }
    assert_ok(status);
    assert_true(n > 40);
    assert_int_equal(n_marks, m.n);
    assert_memory_equal(marks, m.marks, m.n * sizeof *marks);
    sl_ids_free(&m.prompt);
    sl_engine_close(engine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_places),
        cmocka_unit_test(test_next_turn),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_allocation_failures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
