/* The server's worker: many jobs at once get the answers they would get alone; queue, cancelling,
 * several answers to one prompt, stopping. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "models.h"

#include "base/mem.h"
#include "worker.h"

static const char tiny[] = "models/tiny-q8_0.gguf";

enum { CONTEXT = 192, MOST_CHOICES = 8 };

static sl_engine *open_engine(void)
{
    sl_error err;
    sl_engine *engine;
    sl_engine_params params = sl_engine_params_default();
    params.n_threads = 2;
    assert_ok(sl_engine_open(tiny, &params, &engine, &err));
    return engine;
}

static sl_engine *alone; /* for what answers say by themselves */

static int open_alone(void **state)
{
    (void)state;
    alone = open_engine();
    return 0;
}

static int close_alone(void **state)
{
    (void)state;
    sl_engine_close(alone);
    return sl_mem_get_stats().blocks == 0 ? 0 : -1;
}

static sl_worker *new_worker(sl_engine *engine, unsigned n_places, size_t queue)
{
    sl_error err;
    sl_worker *worker;
    sl_worker_settings settings = sl_worker_settings_default(engine);
    settings.n_places = n_places;
    settings.context = CONTEXT;
    settings.queue = queue;
    settings.prompt_rows = 5;
    assert_ok(sl_worker_create(engine, &settings, &worker, &err));
    return worker;
}

/* ---- a job that gathers what comes ---- */

typedef struct asked {
    sl_job job;
    atomic_bool released, woken;
    char text[MOST_CHOICES][1024];
    sl_generate_result result[MOST_CHOICES];
    sl_status status[MOST_CHOICES], outcome;
    sl_error why;
    unsigned n_ended;
    size_t n_started, n_progress, n_tokens;
    bool done;
} asked;

static void on_notify(sl_job *job)
{
    asked *a = job->user;
    atomic_store(&a->woken, true);
}

static void on_release(sl_job *job)
{
    asked *a = job->user;
    atomic_store(&a->released, true);
}

static asked *new_job(sl_engine *engine, unsigned i, unsigned n_choices)
{
    sl_error err;
    char messages[256];
    asked *a = calloc(1, sizeof *a);
    assert_non_null(a);
    sl_job_init(&a->job);
    a->job.user = a;
    a->job.notify = on_notify;
    a->job.release = on_release;
    a->job.n_choices = n_choices;
    const int n = snprintf(messages, sizeof messages,
                           "[{\"role\": \"user\", \"content\": \"What is %u + %u?%s\"}]", i, 36 + i,
                           i % 3 ? "" : " Think about it, and then tell me what comes out.");
    static const char thinks[] = "{\"enable_thinking\": true}";
    const sl_chat chat = {.messages = {messages, (size_t)n},
                          .variables = {thinks, i % 2 ? sizeof thinks - 1 : 0}};
    assert_ok(sl_engine_render(engine, &chat, &a->job.prompt, NULL, &err));
    a->job.params = sl_generate_params_default(engine);
    a->job.params.max_tokens = 5 + i % 20;
    a->job.params.sampling.temperature = 1.5f;
    a->job.params.sampling.seed = 100 * i;
    a->job.params.ignore_calls = true;
    return a;
}

static void gather(asked *a)
{
    sl_job_event *events = sl_job_take(&a->job, &a->done);
    for (const sl_job_event *event = events; event; event = event->next) {
        assert_true(event->choice < MOST_CHOICES);
        switch (event->kind) {
        case SL_JOB_STARTED:
            a->n_started++;
            break;
        case SL_JOB_PROGRESS:
            a->n_progress++;
            break;
        case SL_JOB_TOKEN:
            a->n_tokens++;
            break;
        case SL_JOB_THINKING:
        case SL_JOB_CONTENT:
            assert_true(strlen(a->text[event->choice]) + event->n_bytes < sizeof a->text[0]);
            strcat(a->text[event->choice], event->text);
            break;
        case SL_JOB_CALL_BEGIN:
        case SL_JOB_CALL_ARGUMENTS:
        case SL_JOB_CALL_END:
            break;
        case SL_JOB_ENDED:
            a->result[event->choice] = event->result;
            a->status[event->choice] = event->status;
            a->n_ended++;
            break;
        }
    }
    sl_job_free_events(events);
    if (a->done)
        a->outcome = sl_job_outcome(&a->job, &a->why);
}

/* Fails the test after a minute. */
static void await(asked *a)
{
    for (int i = 0; i < 60000 && !a->done; i++) {
        gather(a);
        if (!a->done)
            usleep(1000);
    }
    assert_true(a->done);
}

static void forget(asked *a)
{
    sl_job_unref(&a->job);
    for (int i = 0; i < 60000 && !atomic_load(&a->released); i++)
        usleep(1000);
    assert_true(atomic_load(&a->released));
    sl_job_finish(&a->job);
    free(a);
}

/* What a job's choice says by itself, in another engine: the worker's is the worker's. */
static bool append(void *user, const sl_event *event)
{
    if (event->kind == SL_EVENT_OUTPUT)
        strncat(user, event->output->text.data, event->output->text.n_bytes);
    return false;
}

static void assert_as_alone(const asked *a, unsigned choice)
{
    sl_engine *engine = alone;
    sl_error err;
    sl_state *state;
    sl_generate_result result;
    char text[1024] = "";
    sl_generate_params params = a->job.params;
    params.sampling.seed += choice;
    assert_ok(sl_state_create(engine, CONTEXT, &state, &err));
    assert_ok(sl_generate(state, a->job.prompt.ids, a->job.prompt.n, &params, append, text, &result,
                          &err));
    sl_state_free(state);
    assert_int_equal(a->status[choice], SL_OK);
    assert_string_equal(a->text[choice], text);
    assert_int_equal(a->result[choice].finish, result.finish);
    assert_int_equal(a->result[choice].n_tokens, result.n_tokens);
}

/* ---- answers ---- */

static void test_many_jobs(void **state_)
{
    (void)state_;
    sl_error err;
    enum { N = 40 };
    asked *jobs[N];
    sl_engine *engine = open_engine();
    for (unsigned n_places = 1; n_places <= 9; n_places += 4) {
        sl_worker *worker = new_worker(engine, n_places, N);
        for (unsigned i = 0; i < N; i++) {
            jobs[i] = new_job(engine, i, i % 8 == 5 ? 1 + i % MOST_CHOICES : 1);
            jobs[i]->job.wants_progress = i % 2;
            jobs[i]->job.params.logprobs = i % 4 == 0;
            assert_ok(sl_worker_submit(worker, &jobs[i]->job, &err));
        }
        for (unsigned i = 0; i < N; i++)
            await(jobs[i]);
        const sl_worker_stats stats = sl_worker_get_stats(worker);
        assert_int_equal(stats.n_running, 0);
        assert_int_equal(stats.n_waiting, 0);
        assert_int_equal(stats.n_jobs, N);
        sl_worker_free(worker);
        for (unsigned i = 0; i < N; i++) {
            assert_int_equal(jobs[i]->outcome, SL_OK);
            assert_int_equal(jobs[i]->n_ended, jobs[i]->job.n_choices);
            assert_int_equal(jobs[i]->n_started, 1);
            assert_true(i % 2 ? jobs[i]->n_progress >= 2 : jobs[i]->n_progress == 0);
            assert_true(i % 4 ? jobs[i]->n_tokens == 0 : jobs[i]->n_tokens > 0);
            for (unsigned choice = 0; choice < jobs[i]->job.n_choices; choice++)
                assert_as_alone(jobs[i], choice);
            forget(jobs[i]);
        }
    }
    sl_engine_close(engine);
}

/* ---- the queue ---- */

/* Occupies a place until it is cancelled. */
static asked *new_long_job(sl_engine *engine)
{
    asked *a = new_job(engine, 1, 1);
    a->job.params.max_tokens = 0;
    a->job.params.raw = true;
    static const sl_logit_bias never[] = {{.id = 0, .bias = 1000.0f}};
    a->job.params.sampling.bias = never;
    a->job.params.sampling.n_bias = 1;
    return a;
}

static void test_full_queue(void **state_)
{
    (void)state_;
    sl_error err;
    enum { N = 30, PLACES = 2, QUEUE = 5 };
    asked *jobs[N];
    unsigned n_refused = 0;
    sl_engine *engine = open_engine();
    sl_worker *worker = new_worker(engine, PLACES, QUEUE);
    asked *blockers[PLACES];
    for (unsigned i = 0; i < PLACES; i++) {
        blockers[i] = new_long_job(engine);
        assert_ok(sl_worker_submit(worker, &blockers[i]->job, &err));
    }
    for (unsigned i = 0; i < N; i++) {
        jobs[i] = new_job(engine, i, 1);
        const sl_status status = sl_worker_submit(worker, &jobs[i]->job, &err);
        if (status == SL_OK)
            continue;
        assert_int_equal(status, SL_ERR_LIMIT);
        assert_non_null(strstr(err.message, "try again later"));
        n_refused++;
        forget(jobs[i]);
        jobs[i] = NULL;
    }
    /* The blockers may have ended meanwhile, being as long as their contexts. */
    assert_true(n_refused <= N - QUEUE);
    assert_int_equal(sl_worker_get_stats(worker).n_refused, n_refused);
    for (unsigned i = 0; i < PLACES; i++)
        sl_job_cancel(&blockers[i]->job);
    for (unsigned i = 0; i < N; i++) {
        if (!jobs[i])
            continue;
        await(jobs[i]);
        assert_as_alone(jobs[i], 0);
        forget(jobs[i]);
    }
    for (unsigned i = 0; i < PLACES; i++) {
        await(blockers[i]);
        forget(blockers[i]);
    }
    sl_worker_free(worker);
    sl_engine_close(engine);
}

static void test_cancelled(void **state_)
{
    (void)state_;
    sl_error err;
    sl_engine *engine = open_engine();
    sl_worker *worker = new_worker(engine, 1, 8);
    asked *writes = new_long_job(engine), *waits = new_job(engine, 2, 1),
          *many = new_job(engine, 3, MOST_CHOICES), *stays = new_job(engine, 4, 1);
    assert_ok(sl_worker_submit(worker, &writes->job, &err));
    for (int i = 0; i < 60000 && writes->n_started == 0; i++) {
        gather(writes);
        usleep(1000);
    }
    assert_ok(sl_worker_submit(worker, &waits->job, &err));
    assert_ok(sl_worker_submit(worker, &many->job, &err));
    assert_ok(sl_worker_submit(worker, &stays->job, &err));
    sl_job_cancel(&waits->job);
    sl_job_cancel(&writes->job);
    await(writes);
    assert_int_equal(writes->outcome, SL_OK);
    await(waits);
    assert_int_equal(waits->outcome, SL_ERR_CANCELLED);
    assert_int_equal(waits->n_ended, 0);
    while (many->n_ended < 2 && !many->done)
        gather(many);
    sl_job_cancel(&many->job);
    await(many);
    assert_int_equal(many->n_ended, MOST_CHOICES);
    await(stays);
    assert_as_alone(stays, 0);
    forget(writes);
    forget(waits);
    forget(many);
    forget(stays);
    sl_worker_free(worker);
    sl_engine_close(engine);
}

static void test_stopping(void **state_)
{
    (void)state_;
    sl_error err;
    enum { N = 6 };
    asked *jobs[N];
    sl_engine *engine = open_engine();
    sl_worker *worker = new_worker(engine, 2, N);
    for (unsigned i = 0; i < N; i++) {
        jobs[i] = i % 2 ? new_job(engine, i, 3) : new_long_job(engine);
        assert_ok(sl_worker_submit(worker, &jobs[i]->job, &err));
    }
    sl_worker_free(worker);
    for (unsigned i = 0; i < N; i++) {
        gather(jobs[i]);
        assert_true(jobs[i]->done);
        forget(jobs[i]);
    }
    sl_engine_close(engine);
}

static void test_refusals(void **state_)
{
    (void)state_;
    sl_error err;
    sl_worker *worker;
    sl_engine *engine = open_engine();
    sl_worker_settings settings = sl_worker_settings_default(engine);
    settings.n_places = 0;
    assert_refused(sl_worker_create(engine, &settings, &worker, &err), SL_ERR_ARGUMENT,
                   "0 places for answers");
    settings.n_places = 1;
    settings.context = 1u << 30;
    assert_int_not_equal(sl_worker_create(engine, &settings, &worker, &err), SL_OK);
    worker = new_worker(engine, 1, 1);
    asked *a = new_job(engine, 0, 0);
    assert_refused(sl_worker_submit(worker, &a->job, &err), SL_ERR_ARGUMENT, "0 answers");
    a->job.n_choices = 1;
    while (a->job.prompt.n <= CONTEXT)
        assert_ok(sl_ids_push(&a->job.prompt, 1, &err));
    assert_refused(sl_worker_submit(worker, &a->job, &err), SL_ERR_CONTEXT,
                   "the context of an answer holds 192");
    /* What only evaluating finds ends the job with its reason. */
    a->job.prompt.n = 3;
    a->job.prompt.ids[1] = -1;
    assert_ok(sl_worker_submit(worker, &a->job, &err));
    await(a);
    assert_int_equal(a->outcome, SL_OK);
    assert_int_equal(a->status[0], SL_ERR_ARGUMENT);
    forget(a);
    sl_worker_free(worker);
    sl_engine_close(engine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_many_jobs), cmocka_unit_test(test_full_queue),
        cmocka_unit_test(test_cancelled), cmocka_unit_test(test_stopping),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, open_alone, close_alone);
}
