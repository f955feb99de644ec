/* The logic of a chat without a terminal: conversations, settings, branches, and what a turn reads
 * anew. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "chat.h"
#include "models.h"

static void add(sl_talk *talk, const char *role, const char *text)
{
    sl_error err;
    assert_ok(sl_talk_add(talk, role, text, strlen(text), &err));
}

static void add_answer(sl_talk *talk, const char *json)
{
    sl_error err;
    json_t *message = json_loads(json, 0, NULL);
    assert_non_null(message);
    assert_ok(sl_talk_add_answer(talk, message, &err));
}

static sl_talk new_talk(void)
{
    sl_talk talk;
    sl_error err;
    assert_ok(sl_talk_create(&talk, &err));
    return talk;
}

#define ANSWER "{\"role\": \"assistant\", \"content\": \"yes\"}"
#define TWO_CALLS \
    "{\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": [{\"function\": {\"name\": " \
    "\"first\", \"arguments\": \"{}\"}}, {\"function\": {\"name\": \"second\", \"arguments\": " \
    "\"{}\"}}]"

/* ---- conversations ---- */

static void test_going_back(void **state)
{
    (void)state;
    sl_error err;
    sl_talk talk = new_talk();
    assert_false(sl_talk_undo(&talk));
    assert_false(sl_talk_unanswer(&talk));
    assert_null(sl_talk_system(&talk));
    add(&talk, "user", "one");
    assert_false(sl_talk_unanswer(&talk)); /* not answered yet */
    add_answer(&talk, ANSWER);
    assert_ok(sl_talk_set_system(&talk, "first", &err));
    assert_ok(sl_talk_set_system(&talk, "second", &err));
    assert_string_equal(sl_talk_system(&talk), "second");
    assert_int_equal(json_array_size(talk.messages), 3);

    sl_talk copy;
    assert_ok(sl_talk_copy(&talk, &copy, &err));
    add(&copy, "user", "two");
    add_answer(&copy, ANSWER);
    assert_int_equal(sl_talk_turns(&copy), 2);
    assert_int_equal(sl_talk_turns(&talk), 1); /* of its own */
    assert_true(sl_talk_unanswer(&copy));
    assert_int_equal(json_array_size(copy.messages), 4);
    assert_true(sl_talk_undo(&copy));
    assert_true(json_equal(copy.messages, talk.messages));
    assert_true(sl_talk_undo(&copy));
    assert_int_equal(json_array_size(copy.messages), 1); /* the system's stays */
    assert_false(sl_talk_undo(&copy));
    sl_talk_clear(&talk);
    assert_string_equal(sl_talk_system(&talk), "second");
    assert_ok(sl_talk_set_system(&talk, "", &err));
    assert_null(sl_talk_system(&talk));
    assert_int_equal(json_array_size(talk.messages), 0);
    sl_talk_free(&copy);
    sl_talk_free(&talk);
}

static void test_results_of_tools(void **state)
{
    (void)state;
    sl_talk talk = new_talk();
    add(&talk, "user", "go");
    add_answer(&talk, TWO_CALLS "}");
    assert_string_equal(sl_talk_awaited(&talk), "first");
    add(&talk, "tool", "1");
    assert_string_equal(sl_talk_awaited(&talk), "second");
    add(&talk, "tool", "2");
    assert_null(sl_talk_awaited(&talk));
    add_answer(&talk, ANSWER);
    assert_null(sl_talk_awaited(&talk));
    assert_true(sl_talk_unanswer(&talk)); /* the last answer only */
    assert_int_equal(json_array_size(talk.messages), 4);
    assert_true(sl_talk_unanswer(&talk)); /* results without the calls mean nothing */
    assert_int_equal(json_array_size(talk.messages), 1);
    add_answer(&talk, TWO_CALLS ", \"cut\": true}");
    assert_null(sl_talk_awaited(&talk)); /* nobody knows what it was going to be */
    assert_true(sl_talk_undo(&talk));
    assert_int_equal(json_array_size(talk.messages), 0);
    sl_talk_free(&talk);
}

static void test_files_of_talks(void **state)
{
    (void)state;
    sl_error err;
    sl_talk talk = new_talk(), again;
    add(&talk, "user", "one \xF0\x9F\xA6\x8A");
    add_answer(&talk, TWO_CALLS "}");
    talk.think = 1;
    talk.attempt = 3;
    talk.tools = json_pack("[{s:s}]", "name", "first");
    json_t *object;
    assert_ok(sl_talk_to_json(&talk, &object, &err));
    assert_ok(sl_talk_from_json(object, "x", &again, &err));
    assert_true(json_equal(again.messages, talk.messages));
    assert_true(json_equal(again.tools, talk.tools));
    assert_int_equal(again.think, 1);
    assert_int_equal(again.attempt, 3);
    sl_talk_free(&again);
    json_decref(object);
    sl_talk_free(&talk);

    static const char *const bad[] = {
        "{}",
        "{\"messages\": 1}",
        "{\"messages\": [1]}",
        "{\"messages\": [{\"role\": \"user\"}]}",
        "{\"messages\": [{\"role\": \"king\", \"content\": \"\"}]}",
        "{\"messages\": [{\"role\": \"user\", \"content\": \"\"}, {\"role\": \"system\", "
        "\"content\": \"\"}]}",
        "{\"messages\": [], \"tools\": {}}",
        "{\"messages\": [], \"attempt\": -1}",
    };
    for (size_t i = 0; i < SL_COUNTOF(bad); i++) {
        json_t *value = json_loads(bad[i], 0, NULL);
        assert_non_null(value);
        assert_refused(sl_talk_from_json(value, "FILE", &again, &err), SL_ERR_FORMAT, "FILE");
        json_decref(value);
    }
}

/* ---- settings ---- */

static void test_settings(void **state)
{
    (void)state;
    sl_error err;
    sl_settings settings, copy;
    const sl_run_options given = {
        .think = 0,
        .max_tokens = {true, 9},
        .sampling = {.temp = {true, 0.1}, .stop = {.items = {"a", "b"}, .n = 2}},
    };
    assert_ok(sl_settings_create(&settings, &given, &err));
    sl_run_options made;
    sl_settings_options(&settings, &made);
    assert_true(made.max_tokens.set && made.max_tokens.value == 9);
    assert_true(made.sampling.temp.set && made.sampling.temp.value == 0.1);
    assert_int_equal(made.sampling.stop.n, 2);
    assert_string_equal(made.sampling.stop.items[1], "b");
    assert_false(made.sampling.top_k.set);

    assert_ok(sl_settings_copy(&settings, &copy, &err));
    assert_ok(sl_settings_set(&copy, "stop", "c", &err));
    assert_ok(sl_settings_set(&copy, "temp", NULL, &err));
    assert_ok(sl_settings_set(&copy, "greedy", "on", &err));
    assert_ok(sl_settings_set(&copy, "temp", "2", &err));
    sl_settings_options(&copy, &made);
    assert_int_equal(made.sampling.stop.n, 3);
    assert_false(made.sampling.greedy); /* a temperature ends it */
    assert_true(made.sampling.temp.value == 2);
    assert_ok(sl_settings_set(&copy, "greedy", "off", &err));
    assert_ok(sl_settings_set(&copy, "greedy", "on", &err));
    assert_ok(sl_settings_set(&copy, "stop", NULL, &err));
    sl_settings_options(&copy, &made);
    assert_false(made.sampling.temp.set);
    assert_int_equal(made.sampling.stop.n, 0);
    sl_settings_options(&settings, &made);
    assert_int_equal(made.sampling.stop.n, 2); /* the copy was one */

    assert_refused(sl_settings_set(&copy, "top_k", "1", &err), SL_ERR_ARGUMENT, "mean 'top-k'?");
    assert_refused(sl_settings_set(&copy, "json", "on", &err), SL_ERR_ARGUMENT, "no setting");
    assert_refused(sl_settings_set(&copy, "top-k", "-1", &err), SL_ERR_ARGUMENT, "'-1' is not a");
    for (int i = 0; i < SL_OPT_MAX_LIST; i++)
        assert_ok(sl_settings_set(&copy, "stop", "x", &err));
    assert_refused(sl_settings_set(&copy, "stop", "x", &err), SL_ERR_ARGUMENT, "64 times");

    sl_settings again;
    assert_ok(sl_settings_from_json(settings.values, "x", &again, &err));
    assert_true(json_equal(again.values, settings.values));
    sl_settings_free(&again);
    static const char *const bad[] = {"[]", "{\"tmep\": \"1\"}", "{\"temp\": 1}",
                                      "{\"stop\": [\"a\", 1]}", "{\"temp\": \"hot\"}"};
    for (size_t i = 0; i < SL_COUNTOF(bad); i++) {
        json_t *value = json_loads(bad[i], 0, NULL);
        assert_non_null(value);
        assert_true(sl_settings_from_json(value, "FILE", &again, &err) != SL_OK);
        json_decref(value);
    }
    sl_settings_free(&settings);
    sl_settings_free(&copy);
}

/* ---- turns ---- */

static sl_chat_engine open_model(void)
{
    return (sl_chat_engine){.engine = sl_test_engine(sl_model_path("tiny-q8_0.gguf"), 1, false),
                            .context = 512};
}

/* Asks, greedily, and adds the answer; returns its text, borrowed from the conversation. */
static const char *ask(const sl_chat_engine *m, sl_branch *branch, const char *question)
{
    sl_error err;
    sl_choices choices;
    const sl_sampling_options options = {.greedy = true};
    add(&branch->talk, "user", question);
    assert_ok(sl_chat_engine_choose(m, &options, &choices, &err));
    const sl_chat_turn turn = {
        .talk = &branch->talk,
        .choices = &choices,
        .max_tokens = 48,
        .state = branch->state,
        .quiet = true,
    };
    json_t *message;
    assert_ok(sl_chat_engine_turn(m, &turn, &message, &branch->last, &err));
    assert_ok(sl_talk_add_answer(&branch->talk, message, &err));
    sl_choices_free(&choices);
    return json_string_value(json_object_get(message, "content"));
}

static const char *const questions[] = {"What is the capital of France?",
                                        "Translate cat to German.", "What is 6 times 7?",
                                        "Capital of Italy?"};

/* The template drops the thinking of earlier turns, and writes an empty thought before an answer
 * without one: either way a turn reads only from where the reply before it began, and answers as
 * one that reads everything does. */
static void test_turns_read_from_the_reply(void **state)
{
    (void)state;
    sl_chat_engine m = open_model();
    sl_error err;
    for (int think = 0; think < 2; think++) {
        sl_branches branches;
        assert_ok(sl_branches_create(&branches, &m, &err));
        sl_branch *branch = sl_branches_current(&branches);
        branch->talk.think = think;
        assert_ok(sl_talk_set_system(&branch->talk, think ? "Be short." : NULL, &err));
        uint32_t reply_start = 0;
        for (size_t i = 0; i < SL_COUNTOF(questions); i++) {
            char *answer = strdup(ask(&m, branch, questions[i]));
            const sl_chat_report *report = &branch->last;
            if (i > 0)
                assert_int_equal(report->generated.reuse.reused, reply_start);
            assert_true(report->reply_start > reply_start);
            assert_true(report->reply_start < report->n_prompt);
            assert_true(report->n_prompt - report->reply_start <= 4); /* the thought's beginning */
            reply_start = report->reply_start;

            /* A fresh engine, without checkpoints of this conversation. */
            if (i + 1 == SL_COUNTOF(questions)) {
                sl_chat_engine fresh = open_model();
                sl_branches alone;
                assert_ok(sl_branches_create(&alone, &fresh, &err));
                sl_talk_free(&alone.items[0].talk);
                assert_ok(sl_talk_copy(&branch->talk, &alone.items[0].talk, &err));
                sl_talk_undo(&alone.items[0].talk);
                assert_string_equal(ask(&fresh, &alone.items[0], questions[i]), answer);
                assert_int_equal(alone.items[0].last.generated.reuse.reused, 0);
                sl_branches_free(&alone);
                sl_engine_close(fresh.engine);
            }
            free(answer);
        }
        sl_branches_free(&branches);
    }
    sl_engine_close(m.engine);
}

/* After /undo the turn's beginning is known, after /clear the system message's end. */
static void test_going_back_is_cheap(void **state)
{
    (void)state;
    sl_chat_engine m = open_model();
    sl_error err;
    sl_branches branches;
    assert_ok(sl_branches_create(&branches, &m, &err));
    sl_branch *branch = sl_branches_current(&branches);
    assert_ok(sl_talk_set_system(&branch->talk, "You are a friend of short answers.", &err));
    ask(&m, branch, questions[0]);
    const uint32_t system_prompt = branch->last.n_prompt;
    ask(&m, branch, questions[1]);
    const uint32_t before_turn = branch->last.generated.reuse.reused;
    sl_talk_undo(&branch->talk);
    ask(&m, branch, questions[2]);
    assert_true(branch->last.generated.reuse.reused > before_turn); /* the answer before, too */
    sl_talk_clear(&branch->talk);
    ask(&m, branch, questions[3]);
    assert_true(branch->last.generated.reuse.reused > 5);
    assert_true(branch->last.generated.reuse.reused < system_prompt);
    sl_branches_free(&branches);
    sl_engine_close(m.engine);
}

static void test_branches(void **state)
{
    (void)state;
    sl_chat_engine m = open_model();
    sl_error err;
    sl_branches branches;
    assert_ok(sl_branches_create(&branches, &m, &err));
    ask(&m, sl_branches_current(&branches), questions[0]);
    assert_ok(sl_branches_fork(&branches, "b", &err));
    assert_string_equal(sl_branches_current(&branches)->name, "b");
    const char *there = ask(&m, sl_branches_current(&branches), questions[1]);
    assert_int_equal(sl_talk_turns(&branches.items[0].talk), 1);
    assert_ok(sl_branches_switch(&branches, "main", &err));
    const uint32_t length = sl_state_length(sl_branches_current(&branches)->state);
    assert_string_equal(ask(&m, sl_branches_current(&branches), questions[1]), there);
    assert_true(sl_state_length(sl_branches_current(&branches)->state) > length);

    assert_refused(sl_branches_fork(&branches, "b", &err), SL_ERR_ARGUMENT, "already");
    assert_refused(sl_branches_fork(&branches, "", &err), SL_ERR_ARGUMENT, "''");
    assert_refused(sl_branches_fork(&branches, "a b", &err), SL_ERR_ARGUMENT, "'a b'");
    assert_refused(sl_branches_fork(&branches, "abcdefghijklmnopqrstuvwxyz1234567", &err),
                   SL_ERR_ARGUMENT, "at most 32");
    assert_refused(sl_branches_switch(&branches, "c", &err), SL_ERR_ARGUMENT, "no branch 'c'");
    assert_refused(sl_branches_drop(&branches, "main", &err), SL_ERR_ARGUMENT, "current");
    assert_ok(sl_branches_drop(&branches, "b", &err));
    while (branches.n < SL_MAX_BRANCHES)
        assert_ok(sl_branches_fork(&branches, NULL, &err));
    assert_string_equal(sl_branches_current(&branches)->name, "15");
    assert_refused(sl_branches_fork(&branches, NULL, &err), SL_ERR_LIMIT, "16 branches");
    assert_ok(sl_branches_drop(&branches, "main", &err));
    assert_string_equal(sl_branches_current(&branches)->name, "15");
    assert_int_equal(sl_talk_turns(&sl_branches_current(&branches)->talk), 2);
    sl_branches_free(&branches);
    sl_engine_close(m.engine);
}

/* Every failed allocation on the way of a turn is an error, and the next turn is as good. */
static void test_failed_allocations(void **state)
{
    (void)state;
    sl_chat_engine m = open_model();
    sl_error err;
    sl_branches branches;
    assert_ok(sl_branches_create(&branches, &m, &err));
    sl_branch *branch = sl_branches_current(&branches);
    ask(&m, branch, questions[0]);
    sl_talk_undo(&branch->talk);
    add(&branch->talk, "user", questions[0]);
    bool done = false;
    for (uint64_t n = 1; !done; n += sl_test_shortened() ? 1 + n / 4 : 1 + n / 32) {
        sl_choices choices;
        const sl_sampling_options options = {.greedy = true};
        json_t *message = NULL;
        sl_mem_fail_at(n, false);
        sl_status status = sl_chat_engine_choose(&m, &options, &choices, &err);
        if (status == SL_OK) {
            const sl_chat_turn turn = {.talk = &branch->talk,
                                       .choices = &choices,
                                       .max_tokens = 48,
                                       .state = branch->state,
                                       .quiet = true};
            status = sl_chat_engine_turn(&m, &turn, &message, &branch->last, &err);
        }
        sl_mem_fail_at(0, false);
        sl_choices_free(&choices);
        done = status == SL_OK;
        if (done) {
            assert_string_equal(json_string_value(json_object_get(message, "content")),
                                "The capital of France is Paris.");
        } else {
            assert_int_equal(status, SL_ERR_MEMORY);
            assert_null(message);
        }
        json_decref(message);
    }
    sl_branches_free(&branches);
    sl_engine_close(m.engine);
    assert_int_equal(sl_mem_get_stats().blocks, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_going_back),
        cmocka_unit_test(test_results_of_tools),
        cmocka_unit_test(test_files_of_talks),
        cmocka_unit_test(test_settings),
        cmocka_unit_test(test_turns_read_from_the_reply),
        cmocka_unit_test(test_going_back_is_cheap),
        cmocka_unit_test(test_branches),
        cmocka_unit_test(test_failed_allocations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
