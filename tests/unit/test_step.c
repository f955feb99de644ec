/* sl_engine_step: answers side by side are what they are alone, whoever comes, goes, is cancelled
 * or fails beside them. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "models.h"

#include "base/mem.h"
#include "engine/engine_internal.h"

static const char tiny[] = "models/tiny-q8_0.gguf";

enum { N_ANSWERS = 11, CONTEXT = 160, MOST_TOKENS = 24 };

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

/* ---- a question and its answer ---- */

typedef struct talk {
    sl_ids prompt;
    sl_generate_params params;
    sl_state *state;
    sl_completion *answer;
    sl_generate_result result;
    int32_t tokens[MOST_TOKENS];
    size_t n_tokens, n_progress;
    char text[512];
} talk;

static bool watch(void *user, const sl_event *event)
{
    talk *t = user;
    if (event->kind == SL_EVENT_PROMPT)
        t->n_progress++;
    if (event->kind == SL_EVENT_TOKEN)
        t->tokens[t->n_tokens++] = event->token;
    if (event->kind == SL_EVENT_OUTPUT) {
        const sl_str text = event->output->text;
        const size_t n = strlen(t->text);
        assert_true(n + text.n_bytes < sizeof t->text);
        memcpy(t->text + n, text.data, text.n_bytes);
        t->text[n + text.n_bytes] = '\0';
    }
    return false;
}

static void begin_state(sl_engine *engine, talk *t)
{
    sl_error err;
    assert_ok(sl_state_create(engine, CONTEXT, &t->state, &err));
}

/* Questions of different lengths, with settings of their own. */
static void ask(sl_engine *engine, talk *t, unsigned i)
{
    sl_error err;
    char messages[512] = "";
    int n = snprintf(messages, sizeof messages, "[{\"role\": \"user\", \"content\": \"");
    for (unsigned k = 0; k <= i % 5; k++)
        n += snprintf(messages + n, sizeof messages - (size_t)n, "What is %u + %u? ", 11 * i + k,
                      36 - i);
    snprintf(messages + n, sizeof messages - (size_t)n, "\"}]");
    const char *thinks = i % 2 ? "{\"enable_thinking\": true}" : "{\"enable_thinking\": false}";
    const sl_chat chat = {.messages = {messages, strlen(messages)},
                          .variables = {thinks, strlen(thinks)}};
    assert_ok(sl_engine_render(engine, &chat, &t->prompt, NULL, &err));
    t->params = sl_generate_params_default(engine);
    t->params.max_tokens = 4 + 2 * i % 21;
    t->params.sampling.temperature = i % 3 ? 1.5f : 0.0f;
    t->params.sampling.seed = i;
    t->params.limit_thinking = i % 4 == 1;
    t->params.think_budget = 5;
    begin_state(engine, t);
}

static void create(talk *t)
{
    sl_error err;
    assert_ok(sl_completion_create(t->state, t->prompt.ids, t->prompt.n, &t->params, watch, t,
                                   &t->answer, &err));
}

static void end(talk *t)
{
    sl_completion_free(t->answer);
    sl_state_free(t->state);
    t->answer = NULL;
    t->state = NULL;
}

static void forget(talk *talks, size_t n)
{
    for (size_t i = 0; i < n; i++)
        sl_ids_free(&talks[i].prompt);
}

/* What each says by itself. */
static void answer_alone(sl_engine *engine, talk *talks, size_t n)
{
    sl_error err;
    for (size_t i = 0; i < n; i++) {
        talk *t = &talks[i];
        ask(engine, t, (unsigned)i);
        assert_ok(sl_generate(t->state, t->prompt.ids, t->prompt.n, &t->params, watch, t,
                              &t->result, &err));
        end(t);
    }
}

static void assert_same_answer(const talk *t, const talk *alone)
{
    sl_error err;
    sl_generate_result result;
    assert_ok(sl_completion_result(t->answer, &result, &err));
    assert_true(sl_completion_ended(t->answer));
    assert_int_equal(t->n_tokens, alone->n_tokens);
    assert_memory_equal(t->tokens, alone->tokens, t->n_tokens * sizeof *t->tokens);
    assert_string_equal(t->text, alone->text);
    assert_int_equal(result.finish, alone->result.finish);
    assert_int_equal(result.n_steps, alone->result.n_steps);
    assert_int_equal(result.n_forced, alone->result.n_forced);
}

/* ---- side by side ---- */

static void test_equal_to_alone(void **state_)
{
    (void)state_;
    sl_error err;
    static const uint32_t pieces[] = {0, 1, 7, 64};
    talk alone[N_ANSWERS] = {0};
    sl_engine *engine = open_engine(0);
    answer_alone(engine, alone, N_ANSWERS);
    for (size_t p = 0; p < SL_COUNTOF(pieces); p++) {
        talk talks[N_ANSWERS] = {0};
        sl_completion *running[N_ANSWERS];
        size_t n_running = 0, n_begun = 0, n_ended = 0;
        /* One more joins with every second step; those that ended leave. */
        for (unsigned step = 0; n_ended < N_ANSWERS; step++) {
            assert_true(step < 5000);
            if (step % 2 == 0 && n_begun < N_ANSWERS) {
                ask(engine, &talks[n_begun], (unsigned)n_begun);
                create(&talks[n_begun]);
                running[n_running++] = talks[n_begun++].answer;
            }
            assert_ok(sl_engine_step(engine, running, n_running, pieces[p], &err));
            for (size_t i = n_running; i > 0; i--) {
                if (!sl_completion_ended(running[i - 1]))
                    continue;
                memmove(&running[i - 1], &running[i], (n_running - i) * sizeof *running);
                n_running--;
                n_ended++;
            }
        }
        for (size_t i = 0; i < N_ANSWERS; i++) {
            assert_same_answer(&talks[i], &alone[i]);
            assert_true(talks[i].n_progress >= 2);
            end(&talks[i]);
        }
        forget(talks, N_ANSWERS);
    }
    forget(alone, N_ANSWERS);
    sl_engine_close(engine);
}

/* Prompts wait for their turn while others write; no writer waits for a prompt. */
static void test_rows_of_a_step(void **state_)
{
    (void)state_;
    sl_error err;
    enum { FIRST, SECOND, THIRD, N };
    talk talks[N] = {0};
    sl_engine *engine = open_engine(0);
    sl_completion *all[N];
    for (unsigned i = 0; i < N; i++) {
        ask(engine, &talks[i], 2 * i + 4);
        talks[i].params.max_tokens = MOST_TOKENS;
        talks[i].params.sampling = sl_sampling_default();
        create(&talks[i]);
        all[i] = talks[i].answer;
    }
    const uint32_t length = (uint32_t)talks[FIRST].prompt.n;
    assert_ok(sl_engine_step(engine, all, N, length + 3, &err));
    assert_int_equal(sl_state_length(talks[FIRST].state), length);
    assert_int_equal(talks[FIRST].n_tokens, 1);
    assert_int_equal(sl_state_length(talks[SECOND].state), 3);
    assert_int_equal(sl_state_length(talks[THIRD].state), 0);
    assert_ok(sl_engine_step(engine, all, N, 2, &err));
    assert_int_equal(talks[FIRST].n_tokens, 2);
    assert_int_equal(sl_state_length(talks[FIRST].state), length + 1);
    assert_int_equal(sl_state_length(talks[SECOND].state), 5);
    assert_int_equal(sl_state_length(talks[THIRD].state), 0);
    for (unsigned i = 0; i < N; i++)
        end(&talks[i]);
    forget(talks, N);
    sl_engine_close(engine);
}

/* ---- who leaves early ---- */

static void step_until_ended(sl_engine *engine, sl_completion *const *answers, size_t n)
{
    sl_error err;
    bool ended = false;
    for (unsigned step = 0; !ended; step++) {
        assert_true(step < 5000);
        assert_ok(sl_engine_step(engine, answers, n, 8, &err));
        ended = true;
        for (size_t i = 0; i < n; i++)
            ended = ended && sl_completion_ended(answers[i]);
    }
}

static void test_cancelled_beside_others(void **state_)
{
    (void)state_;
    sl_error err;
    sl_generate_result result;
    talk alone[N_ANSWERS] = {0}, talks[N_ANSWERS] = {0};
    sl_engine *engine = open_engine((size_t)1 << 22);
    answer_alone(engine, alone, N_ANSWERS);
    sl_engine_close(engine);
    engine = open_engine((size_t)1 << 22);
    sl_completion *all[N_ANSWERS];
    for (unsigned i = 0; i < N_ANSWERS; i++) {
        ask(engine, &talks[i], i);
        create(&talks[i]);
        all[i] = talks[i].answer;
    }
    enum { WRITER = 0, READER = 5 };
    while (talks[WRITER].n_tokens < 2)
        assert_ok(sl_engine_step(engine, all, N_ANSWERS, 8, &err));
    sl_completion_cancel(all[WRITER]);
    sl_completion_cancel(all[READER]);
    assert_false(sl_completion_ended(all[WRITER]));
    step_until_ended(engine, all, N_ANSWERS);
    for (unsigned i = 0; i < N_ANSWERS; i++) {
        if (i != WRITER && i != READER) {
            assert_same_answer(&talks[i], &alone[i]);
            continue;
        }
        assert_ok(sl_completion_result(all[i], &result, &err));
        assert_int_equal(result.finish, SL_FINISH_CANCELLED);
        assert_int_equal(result.n_tokens, i == WRITER ? 2 : 0);
    }
    assert_ok(sl_engine_step(engine, all, N_ANSWERS, 8, &err)); /* of nobody */
    for (unsigned i = 0; i < N_ANSWERS; i++)
        end(&talks[i]);
    forget(talks, N_ANSWERS);
    forget(alone, N_ANSWERS);
    sl_engine_close(engine);
}

/* One whose numbers go bad ends with its error; the others do not notice. */
static void test_failed_beside_others(void **state_)
{
    (void)state_;
    sl_error err;
    sl_generate_result result;
    enum { N = 4, BAD = 2 };
    talk alone[N] = {0}, talks[N] = {0};
    sl_engine *engine = open_engine(0);
    answer_alone(engine, alone, N);
    sl_completion *all[N];
    for (unsigned i = 0; i < N; i++) {
        ask(engine, &talks[i], i);
        create(&talks[i]);
        all[i] = talks[i].answer;
    }
    while (talks[BAD].n_tokens < 2)
        assert_ok(sl_engine_step(engine, all, N, 0, &err));
    const sl_block *conv = talks[BAD].state->conv;
    float *rows = conv->data;
    for (size_t i = 0; i < conv->pool->n_bytes / sizeof *rows; i++)
        rows[i] = NAN;
    step_until_ended(engine, all, N);
    for (unsigned i = 0; i < N; i++) {
        if (i != BAD) {
            assert_same_answer(&talks[i], &alone[i]);
            continue;
        }
        assert_refused(sl_completion_result(all[i], &result, &err), SL_ERR_NUMERIC,
                       "are not finite at position");
        assert_int_equal(result.n_tokens, 2);
    }
    for (unsigned i = 0; i < N; i++)
        end(&talks[i]);
    forget(talks, N);
    forget(alone, N);
    sl_engine_close(engine);
}

/* ---- refusals ---- */

static void test_refusals(void **state_)
{
    (void)state_;
    sl_error err;
    talk alone = {0}, t = {0};
    sl_engine *engine = open_engine(0), *other = open_engine(0);
    answer_alone(engine, &alone, 1);
    ask(engine, &t, 0);
    sl_completion *answer = NULL;
    assert_refused(
        sl_completion_create(t.state, t.prompt.ids, 0, &t.params, watch, &t, &answer, &err),
        SL_ERR_ARGUMENT, "the prompt is empty");
    create(&t);
    sl_completion *twice[2] = {t.answer, t.answer};
    assert_refused(sl_engine_step(engine, twice, 2, 0, &err), SL_ERR_ARGUMENT,
                   "the same state twice");
    assert_refused(sl_engine_step(other, twice, 1, 0, &err), SL_ERR_ARGUMENT,
                   "answer 0 belongs to another engine");
    assert_refused(sl_engine_step(engine, twice, 5000, 0, &err), SL_ERR_ARGUMENT,
                   "a step of 5000 answers");
    step_until_ended(engine, twice, 1);
    assert_same_answer(&t, &alone);
    end(&t);
    sl_ids_free(&t.prompt);
    sl_ids_free(&alone.prompt);
    sl_engine_close(other);
    sl_engine_close(engine);
}

/* Each allocation fails in turn: nothing is lost but what the error names. */
static void test_out_of_memory(void **state_)
{
    (void)state_;
    sl_error err;
    enum { N = 9 };
    talk alone[N] = {0};
    sl_engine *engine = open_engine(0);
    answer_alone(engine, alone, N);
    bool failed = true;
    for (uint64_t at = 1; failed; at += 1 + at / 8) {
        talk talks[N] = {0};
        sl_completion *all[N];
        size_t n = 0;
        for (unsigned i = 0; i < N; i++)
            ask(engine, &talks[i], i);
        sl_mem_fail_at(at, false);
        sl_status status = SL_OK;
        for (; n < N && status == SL_OK; n++) {
            talk *t = &talks[n];
            status = sl_completion_create(t->state, t->prompt.ids, t->prompt.n, &t->params, watch,
                                          t, &t->answer, &err);
            if (status != SL_OK)
                break;
            all[n] = t->answer;
        }
        if (status == SL_OK)
            status = sl_engine_step(engine, all, n, 0, &err);
        sl_mem_fail_at(0, false);
        failed = status != SL_OK;
        assert_true(status == SL_OK || status == SL_ERR_MEMORY);
        step_until_ended(engine, all, n);
        for (size_t i = 0; i < n; i++) {
            sl_generate_result result;
            if (sl_completion_result(all[i], &result, &err) == SL_OK)
                assert_same_answer(&talks[i], &alone[i]);
            else
                failed = true;
        }
        for (unsigned i = 0; i < N; i++)
            end(&talks[i]);
        forget(talks, N);
    }
    forget(alone, N);
    sl_engine_close(engine);
    assert_int_equal(sl_mem_get_stats().blocks, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_equal_to_alone),
        cmocka_unit_test(test_rows_of_a_step),
        cmocka_unit_test(test_cancelled_beside_others),
        cmocka_unit_test(test_failed_beside_others),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
