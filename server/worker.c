#include "worker.h"

#include <string.h>

#include "base/base.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"

enum { MOST_PLACES = 1024, DEFAULT_CONTEXT = 32768, CPU_ROWS = 64, DEVICE_ROWS = 512 };

/* Where one answer is made. */
typedef struct place {
    sl_state *state;
    sl_completion *completion; /* NULL = free */
    sl_constraint *constraint; /* the answer's own place in its form; or NULL */
    sl_job *job;
    unsigned choice;
    uint64_t used;   /* the step in which it was taken last */
    uint64_t waited; /* steps in which its prompt was passed over */
    uint32_t length; /* of the state, before the step */
} place;

struct sl_worker {
    sl_engine *engine;
    sl_worker_settings settings;
    pthread_t thread;
    bool has_thread;

    place *places;           /* [n_places] */
    sl_completion **running; /* scratch of a step, [n_places] */
    place **readers;         /* likewise, */
    size_t n_readers;        /* of this step */
    sl_job *begun;           /* jobs of which choices wait for a place */
    uint64_t n_steps;

    pthread_mutex_t mutex;
    pthread_cond_t wake;
    /* Under the mutex. */
    sl_job *first, *last; /* that wait */
    bool stopping;
    sl_worker_stats stats;
};

sl_worker_settings sl_worker_settings_default(const sl_engine *engine)
{
    sl_model_info info;
    sl_engine_model_info(engine, &info);
    return (sl_worker_settings){
        .n_places = 4,
        .context = info.context_length < DEFAULT_CONTEXT ? info.context_length : DEFAULT_CONTEXT,
        .queue = 64,
        .prompt_rows = strncmp(info.device, "cuda", 4) == 0 ? DEVICE_ROWS : CPU_ROWS,
    };
}

/* ---- events ---- */

static void add_output(place *p, const sl_outparse_event *output)
{
    static const sl_job_event_kind kinds[] = {
        [SL_OUTPARSE_THINKING] = SL_JOB_THINKING,
        [SL_OUTPARSE_CONTENT] = SL_JOB_CONTENT,
        [SL_OUTPARSE_CALL_BEGIN] = SL_JOB_CALL_BEGIN,
        [SL_OUTPARSE_CALL_ARGUMENTS] = SL_JOB_CALL_ARGUMENTS,
        [SL_OUTPARSE_CALL_END] = SL_JOB_CALL_END,
    };
    const sl_str text = output->kind == SL_OUTPARSE_CALL_BEGIN ? output->name : output->text;
    const sl_job_event event = {
        .kind = kinds[output->kind], .choice = p->choice, .call = output->index};
    sl_job_add(p->job, &event, text.data ? text.data : "", text.n_bytes);
}

/* An sl_event_fn. */
static bool on_event(void *user, const sl_event *from)
{
    place *p = user;
    sl_job_event event = {.choice = p->choice};
    switch (from->kind) {
    case SL_EVENT_PROMPT:
        if (!p->job->wants_progress || p->choice > 0)
            break;
        event.kind = SL_JOB_PROGRESS;
        event.done = from->done;
        event.total = from->total;
        sl_job_add(p->job, &event, NULL, 0);
        break;
    case SL_EVENT_TOKEN:
        if (!p->job->params.logprobs)
            break;
        event.kind = SL_JOB_TOKEN;
        event.token = from->token;
        event.logprob = from->logprob;
        event.n_top = from->n_top;
        event.top = (sl_logprob *)(uintptr_t)from->top; /* copied, not changed */
        sl_job_add(p->job, &event, NULL, 0);
        break;
    case SL_EVENT_OUTPUT:
        add_output(p, from->output);
        break;
    }
    return atomic_load_explicit(&p->job->cancelled, memory_order_relaxed);
}

/* ---- places ---- */

static uint32_t common_length(const sl_state *state, const sl_ids *prompt)
{
    const int32_t *tokens = sl_state_tokens(state);
    const size_t most = sl_min_size(sl_state_length(state), prompt->n);
    size_t n = 0;
    while (n < most && tokens[n] == prompt->ids[n])
        n++;
    return (uint32_t)n;
}

/* The free place whose state has most of the prompt, of those the one unused for longest. */
static place *find_place(sl_worker *w, const sl_ids *prompt)
{
    place *best = NULL;
    uint32_t most = 0;
    for (unsigned i = 0; i < w->settings.n_places; i++) {
        place *p = &w->places[i];
        if (p->completion)
            continue;
        const uint32_t length = common_length(p->state, prompt);
        if (!best || length > most || (length == most && p->used < best->used)) {
            best = p;
            most = length;
        }
    }
    return best;
}

/* A place is counted as taken from when its job leaves the queue, so that no request is let in that
 * has neither. */
static void count_taken(sl_worker *w)
{
    pthread_mutex_lock(&w->mutex);
    w->stats.n_running++;
    pthread_mutex_unlock(&w->mutex);
}

static void count_free(sl_worker *w)
{
    pthread_mutex_lock(&w->mutex);
    w->stats.n_running--;
    pthread_mutex_unlock(&w->mutex);
}

/* A job with all choices begun and ended gives back the worker's reference. */
static void end_job_if_over(sl_job *job)
{
    if (job->n_ended < job->n_choices)
        return;
    sl_state_free(job->base);
    job->base = NULL;
    sl_job_end(job, SL_OK, NULL);
    sl_job_unref(job);
}

static void end_choice(sl_job *job, unsigned choice, sl_status status,
                       const sl_generate_result *result, const sl_error *why)
{
    const sl_job_event event = {
        .kind = SL_JOB_ENDED, .choice = choice, .status = status, .result = *result};
    const char *text = status == SL_OK ? NULL : why->message;
    sl_job_add(job, &event, text, text ? strlen(text) : 0);
    job->n_ended++;
}

/* Begins the job's next choice in a place, which is counted already. */
static void begin_choice(sl_worker *w, place *p, sl_job *job)
{
    const unsigned choice = job->n_begun++;
    sl_generate_params params = job->params;
    params.sampling.seed += choice;
    p->job = job;
    p->choice = choice;
    p->used = w->n_steps;
    p->waited = 0;
    sl_error err;
    sl_status status = SL_OK;
    if (params.constraint)
        status = sl_constraint_fork(params.constraint, &p->constraint, &err);
    params.constraint = p->constraint;
    if (status == SL_OK)
        status = sl_completion_create(p->state, job->prompt.ids, job->prompt.n, &params, on_event,
                                      p, &p->completion, &err);
    if (status != SL_OK) {
        const sl_generate_result none = {.finish = SL_FINISH_CANCELLED, .stop = -1};
        p->completion = NULL;
        p->job = NULL;
        sl_constraint_free(p->constraint);
        p->constraint = NULL;
        count_free(w);
        end_choice(job, choice, status, &none, &err);
        return;
    }
    if (choice > 0)
        return;
    sl_job_event event = {.kind = SL_JOB_STARTED};
    (void)sl_completion_result(p->completion, &event.result, NULL);
    event.total = job->prompt.n;
    sl_job_add(job, &event, NULL, 0);
    pthread_mutex_lock(&w->mutex);
    w->stats.prompt_tokens += job->prompt.n;
    w->stats.reused_tokens += event.result.reuse.reused;
    pthread_mutex_unlock(&w->mutex);
}

/* Further choices continue a fork of the state that has read the prompt. */
static void begin_from_base(sl_worker *w, place *p, sl_job *job)
{
    sl_state *fork = NULL;
    sl_error err;
    const sl_status status = sl_state_fork(job->base, &fork, &err);
    if (status != SL_OK) {
        const sl_generate_result none = {.finish = SL_FINISH_CANCELLED, .stop = -1};
        end_choice(job, job->n_begun++, status, &none, &err);
        return;
    }
    /* What the place had is worth keeping for who comes back to it. */
    (void)sl_state_checkpoint(p->state, SL_ANCHOR_TURN, NULL);
    sl_state_free(p->state);
    p->state = fork;
    count_taken(w);
    begin_choice(w, p, job);
}

static bool is_cancelled(const sl_job *job)
{
    return atomic_load_explicit(&job->cancelled, memory_order_relaxed);
}

/* Choices of jobs that have begun come before new jobs. */
static void begin_further_choices(sl_worker *w)
{
    for (sl_job **at = &w->begun; *at;) {
        sl_job *job = *at;
        const sl_generate_result none = {.finish = SL_FINISH_CANCELLED, .stop = -1};
        while (is_cancelled(job) && job->n_begun < job->n_choices)
            end_choice(job, job->n_begun++, SL_OK, &none, NULL);
        place *p;
        while (job->base && job->n_begun < job->n_choices && (p = find_place(w, &job->prompt)))
            begin_from_base(w, p, job);
        if (job->n_begun < job->n_choices) {
            at = &job->next_waiting;
            continue;
        }
        *at = job->next_waiting;
        job->next_waiting = NULL;
        end_job_if_over(job);
    }
}

/* The oldest job that waits, for a place. */
static sl_job *next_job(sl_worker *w)
{
    pthread_mutex_lock(&w->mutex);
    sl_job *job = w->first;
    if (job) {
        w->first = job->next_waiting;
        if (!w->first)
            w->last = NULL;
        job->next_waiting = NULL;
        w->stats.n_waiting--;
        w->stats.n_running++;
    }
    pthread_mutex_unlock(&w->mutex);
    return job;
}

/* Jobs that nobody wants any more leave the queue at once, wherever they stand. */
static void drop_cancelled(sl_worker *w)
{
    sl_job *dropped = NULL;
    pthread_mutex_lock(&w->mutex);
    sl_job **at = &w->first;
    w->last = NULL;
    while (*at) {
        sl_job *job = *at;
        if (is_cancelled(job)) {
            *at = job->next_waiting;
            job->next_waiting = dropped;
            dropped = job;
            w->stats.n_waiting--;
        } else {
            w->last = job;
            at = &job->next_waiting;
        }
    }
    pthread_mutex_unlock(&w->mutex);
    while (dropped) {
        sl_job *job = dropped;
        dropped = job->next_waiting;
        job->next_waiting = NULL;
        sl_error why;
        const sl_status status = sl_fail(&why, SL_ERR_CANCELLED, "cancelled while it waited");
        sl_job_end(job, status, &why);
        sl_job_unref(job);
    }
}

static bool has_free_place(const sl_worker *w)
{
    for (unsigned i = 0; i < w->settings.n_places; i++) {
        if (!w->places[i].completion)
            return true;
    }
    return false;
}

static void begin_jobs(sl_worker *w)
{
    drop_cancelled(w);
    begin_further_choices(w);
    while (has_free_place(w)) {
        sl_job *job = next_job(w);
        if (!job)
            return;
        begin_choice(w, find_place(w, &job->prompt), job);
        if (job->n_choices > 1 && job->n_ended == 0) {
            sl_job **last = &w->begun;
            while (*last)
                last = &(*last)->next_waiting;
            *last = job;
            continue;
        }
        if (job->n_ended > 0) { /* it could not begin: nor can its other choices */
            const sl_generate_result none = {.finish = SL_FINISH_CANCELLED, .stop = -1};
            while (job->n_begun < job->n_choices)
                end_choice(job, job->n_begun++, SL_OK, &none, NULL);
            end_job_if_over(job);
        }
    }
}

/* ---- steps ---- */

static bool reads(const place *p)
{
    return p->completion && sl_state_length(p->state) < p->job->prompt.n;
}

/* Short prompts come first, and those that have waited: what is left of one counts less with every
 * step that it was passed over in. */
static int64_t turn_of(const sl_worker *w, const place *p)
{
    const int64_t left = (int64_t)p->job->prompt.n - sl_state_length(p->state);
    return left - (int64_t)(p->waited * w->settings.prompt_rows);
}

/* The completions of a step in their order, and how many rows prompts may have. */
static size_t line_up(sl_worker *w, uint32_t *prompt_rows)
{
    size_t n = 0, n_readers = 0;
    for (unsigned i = 0; i < w->settings.n_places; i++) {
        place *p = &w->places[i];
        if (!p->completion)
            continue;
        if (is_cancelled(p->job))
            sl_completion_cancel(p->completion);
        if (!reads(p)) {
            w->running[n++] = p->completion;
            continue;
        }
        size_t at = n_readers++;
        for (; at > 0 && turn_of(w, w->readers[at - 1]) > turn_of(w, p); at--)
            w->readers[at] = w->readers[at - 1];
        w->readers[at] = p;
    }
    *prompt_rows = n > 0 ? w->settings.prompt_rows : 0;
    for (size_t i = 0; i < n_readers; i++) {
        w->readers[i]->length = sl_state_length(w->readers[i]->state);
        w->running[n++] = w->readers[i]->completion;
    }
    w->n_readers = n_readers;
    return n;
}

/* The place's answer has ended, or is ended by `failed`. */
static void leave_place(sl_worker *w, place *p, sl_status failed, const sl_error *why)
{
    sl_job *job = p->job;
    sl_generate_result result;
    sl_error err;
    sl_status status = sl_completion_result(p->completion, &result, &err);
    if (failed != SL_OK) {
        status = failed;
        err = *why;
    }
    sl_completion_free(p->completion);
    sl_constraint_free(p->constraint);
    p->completion = NULL;
    p->constraint = NULL;
    p->job = NULL;
    p->used = w->n_steps;
    count_free(w);
    pthread_mutex_lock(&w->mutex);
    w->stats.answer_tokens += result.n_tokens;
    pthread_mutex_unlock(&w->mutex);
    if (status != SL_OK)
        sl_state_reset(p->state);
    else
        (void)sl_state_checkpoint(p->state, SL_ANCHOR_TURN, NULL);
    end_choice(job, p->choice, status, &result, &err);
    const bool is_listed = job->n_choices > 1 && job->n_begun < job->n_choices;
    if (is_listed && !job->base) /* nothing is there that the others could continue */
        sl_job_cancel(job);
    if (!is_listed)
        end_job_if_over(job);
}

/* Keeps the state at the end of the prompt for the choices to come. */
static void keep_base(place *p)
{
    sl_job *job = p->job;
    if (p->choice > 0 || job->base || job->n_begun == job->n_choices || reads(p))
        return;
    sl_error err;
    const sl_status status = sl_state_fork(p->state, &job->base, &err);
    if (status != SL_OK)
        sl_job_fail(job, status, &err);
}

static void look_around(sl_worker *w)
{
    for (unsigned i = 0; i < w->settings.n_places; i++) {
        place *p = &w->places[i];
        if (!p->completion)
            continue;
        keep_base(p);
        if (sl_completion_ended(p->completion))
            leave_place(w, p, SL_OK, NULL);
    }
}

/* A step found no memory: the answer that came last makes room. */
static void make_room(sl_worker *w, sl_status status, const sl_error *why)
{
    place *last = NULL;
    for (unsigned i = 0; i < w->settings.n_places; i++) {
        place *p = &w->places[i];
        if (p->completion && (!last || p->used > last->used))
            last = p;
    }
    if (last)
        leave_place(w, last, status, why);
}

static void step(sl_worker *w)
{
    sl_error err;
    uint32_t prompt_rows;
    const size_t n = line_up(w, &prompt_rows);
    if (n == 0)
        return;
    w->n_steps++;
    const sl_status status = sl_engine_step(w->engine, w->running, n, prompt_rows, &err);
    for (size_t i = 0; i < w->n_readers; i++) {
        place *p = w->readers[i];
        p->waited += sl_state_length(p->state) == p->length;
    }
    if (status != SL_OK)
        make_room(w, status, &err);
    look_around(w);
}

/* Sleeps until there is something to do; false: the end. */
static bool wait_for_work(sl_worker *w)
{
    pthread_mutex_lock(&w->mutex);
    while (!w->stopping && !w->first && !w->begun && w->stats.n_running == 0)
        pthread_cond_wait(&w->wake, &w->mutex);
    w->stats.n_steps = w->n_steps;
    w->stats.last_step_ns = sl_clock_ns();
    const bool goes_on = !w->stopping;
    pthread_mutex_unlock(&w->mutex);
    return goes_on;
}

static void end_everything(sl_worker *w)
{
    sl_error why;
    const sl_status status = sl_fail(&why, SL_ERR_CANCELLED, "the server stops");
    for (sl_job *job = w->begun; job; job = job->next_waiting)
        sl_job_cancel(job);
    for (unsigned i = 0; i < w->settings.n_places; i++) {
        if (!w->places[i].completion)
            continue;
        sl_job_cancel(w->places[i].job);
        leave_place(w, &w->places[i], status, &why);
    }
    begin_further_choices(w);
    sl_job *job;
    while ((job = next_job(w)) != NULL) {
        count_free(w);
        sl_job_end(job, status, &why);
        sl_job_unref(job);
    }
}

static void *work(void *argument)
{
    sl_worker *w = argument;
    while (wait_for_work(w)) {
        begin_jobs(w);
        step(w);
    }
    end_everything(w);
    return NULL;
}

/* ---- the calls ---- */

static sl_status make_places(sl_worker *w, sl_error *err)
{
    const unsigned n = w->settings.n_places;
    w->places = sl_alloc_zero(SL_MEM_GENERAL, n * sizeof *w->places);
    w->running = sl_alloc_array(SL_MEM_GENERAL, n, sizeof(sl_completion *));
    w->readers = sl_alloc_array(SL_MEM_GENERAL, n, sizeof(place *));
    if (!w->places || !w->running || !w->readers)
        return sl_fail(err, SL_ERR_MEMORY, "out of memory for %u places", n);
    for (unsigned i = 0; i < n; i++) {
        SL_TRY(sl_state_create(w->engine, w->settings.context, &w->places[i].state, err));
    }
    return SL_OK;
}

sl_status sl_worker_create(sl_engine *engine, const sl_worker_settings *settings, sl_worker **out,
                           sl_error *err)
{
    if (settings->n_places == 0 || settings->n_places > MOST_PLACES)
        return sl_fail(err, SL_ERR_ARGUMENT, "%u places for answers, expected 1 to %d",
                       settings->n_places, MOST_PLACES);
    sl_worker *w = sl_alloc_zero(SL_MEM_GENERAL, sizeof *w);
    if (!w)
        return sl_fail(err, SL_ERR_MEMORY, "out of memory for a worker");
    w->engine = engine;
    w->settings = *settings;
    if (w->settings.prompt_rows == 0)
        w->settings.prompt_rows = sl_worker_settings_default(engine).prompt_rows;
    w->stats.n_places = settings->n_places;
    w->stats.queue = settings->queue;
    w->stats.last_step_ns = sl_clock_ns();
    pthread_mutex_init(&w->mutex, NULL);
    pthread_cond_init(&w->wake, NULL);
    sl_status status = make_places(w, err);
    if (status == SL_OK && pthread_create(&w->thread, NULL, work, w) != 0)
        status = sl_fail(err, SL_ERR_MEMORY, "no thread could be made to compute on");
    else
        w->has_thread = status == SL_OK;
    if (status != SL_OK) {
        sl_worker_free(w);
        return status;
    }
    *out = w;
    return SL_OK;
}

void sl_worker_free(sl_worker *worker)
{
    if (!worker)
        return;
    if (worker->has_thread) {
        pthread_mutex_lock(&worker->mutex);
        worker->stopping = true;
        pthread_cond_signal(&worker->wake);
        pthread_mutex_unlock(&worker->mutex);
        pthread_join(worker->thread, NULL);
    }
    for (unsigned i = 0; worker->places && i < worker->settings.n_places; i++)
        sl_state_free(worker->places[i].state);
    sl_free(worker->readers);
    sl_free(worker->running);
    sl_free(worker->places);
    pthread_cond_destroy(&worker->wake);
    pthread_mutex_destroy(&worker->mutex);
    sl_free(worker);
}

static sl_status check_job(const sl_worker *worker, const sl_job *job, sl_error *err)
{
    if (job->n_choices == 0 || job->n_choices > SL_JOB_MAX_CHOICES)
        return sl_fail(err, SL_ERR_ARGUMENT, "%u answers are wanted, expected 1 to %d",
                       job->n_choices, SL_JOB_MAX_CHOICES);
    if (job->prompt.n == 0)
        return sl_fail(err, SL_ERR_ARGUMENT, "the prompt is empty");
    if (job->prompt.n > worker->settings.context)
        return sl_fail(err, SL_ERR_CONTEXT,
                       "the prompt has %zu tokens, the context of an answer holds %u",
                       job->prompt.n, worker->settings.context);
    return SL_OK;
}

sl_status sl_worker_submit(sl_worker *worker, sl_job *job, sl_error *err)
{
    SL_TRY(check_job(worker, job, err));
    sl_status status = SL_OK;
    pthread_mutex_lock(&worker->mutex);
    const size_t n_inside = worker->stats.n_waiting + worker->stats.n_running;
    if (worker->stopping) {
        status = sl_fail(err, SL_ERR_CANCELLED, "the server stops");
    } else if (n_inside >= worker->settings.queue + worker->stats.n_places) {
        worker->stats.n_refused++;
        status = sl_fail(err, SL_ERR_LIMIT, "%zu requests wait already; try again later",
                         worker->stats.n_waiting);
    } else {
        job->submitted_ns = sl_clock_ns();
        if (n_inside == 0) /* the thread sleeps, which is no fault of its */
            worker->stats.last_step_ns = job->submitted_ns;
        job->next_waiting = NULL;
        if (worker->last)
            worker->last->next_waiting = sl_job_ref(job);
        else
            worker->first = sl_job_ref(job);
        worker->last = job;
        worker->stats.n_waiting++;
        worker->stats.n_jobs++;
        pthread_cond_signal(&worker->wake);
    }
    pthread_mutex_unlock(&worker->mutex);
    return status;
}

sl_worker_stats sl_worker_get_stats(sl_worker *worker)
{
    pthread_mutex_lock(&worker->mutex);
    const sl_worker_stats stats = worker->stats;
    pthread_mutex_unlock(&worker->mutex);
    return stats;
}
