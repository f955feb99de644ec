#include "job.h"

#include <string.h>

#include "base/err.h"
#include "base/mem.h"

void sl_job_init(sl_job *job)
{
    *job = (sl_job){.n_choices = 1};
    atomic_init(&job->refs, 1);
    atomic_init(&job->cancelled, false);
    pthread_mutex_init(&job->mutex, NULL);
}

void sl_job_finish(sl_job *job)
{
    sl_job_free_events(job->first);
    sl_ids_free(&job->prompt);
    pthread_mutex_destroy(&job->mutex);
}

sl_job *sl_job_ref(sl_job *job)
{
    atomic_fetch_add_explicit(&job->refs, 1, memory_order_relaxed);
    return job;
}

void sl_job_unref(sl_job *job)
{
    if (atomic_fetch_sub_explicit(&job->refs, 1, memory_order_acq_rel) == 1)
        job->release(job);
}

void sl_job_cancel(sl_job *job)
{
    atomic_store_explicit(&job->cancelled, true, memory_order_relaxed);
}

sl_job_event *sl_job_take(sl_job *job, bool *done)
{
    pthread_mutex_lock(&job->mutex);
    sl_job_event *events = job->first;
    job->first = job->last = NULL;
    *done = job->done;
    pthread_mutex_unlock(&job->mutex);
    return events;
}

sl_status sl_job_outcome(const sl_job *job, sl_error *err)
{
    if (job->status != SL_OK && err)
        *err = job->why;
    return job->status;
}

void sl_job_free_events(sl_job_event *events)
{
    while (events) {
        sl_job_event *next = events->next;
        sl_free(events);
        events = next;
    }
}

/* One block of memory: the event, its top, its text. */
static sl_job_event *copy_event(const sl_job_event *event, const char *text, size_t n)
{
    const size_t top_bytes = event->n_top * sizeof *event->top;
    sl_job_event *copy = sl_alloc(SL_MEM_GENERAL, sizeof *copy + top_bytes + n + 1);
    if (!copy)
        return NULL;
    *copy = *event;
    copy->next = NULL;
    copy->top = (sl_logprob *)(copy + 1);
    if (top_bytes > 0)
        memcpy(copy->top, event->top, top_bytes);
    copy->text = NULL;
    copy->n_bytes = 0;
    if (text) {
        copy->text = (char *)copy->top + top_bytes;
        memcpy(copy->text, text, n);
        copy->text[n] = '\0';
        copy->n_bytes = n;
    }
    return copy;
}

static void fail_locked(sl_job *job, sl_status status, const sl_error *why)
{
    if (job->status != SL_OK) /* the first counts */
        return;
    job->status = status;
    if (why)
        job->why = *why;
}

void sl_job_add(sl_job *job, const sl_job_event *event, const char *text, size_t n)
{
    sl_job_event *copy = copy_event(event, text, n);
    pthread_mutex_lock(&job->mutex);
    const bool was_empty = !job->first;
    if (!copy) {
        sl_error why;
        const sl_status status = sl_fail(&why, SL_ERR_MEMORY, "out of memory for an answer's text");
        fail_locked(job, status, &why);
        sl_job_cancel(job);
    } else if (was_empty) {
        job->first = job->last = copy;
    } else {
        job->last->next = copy;
        job->last = copy;
    }
    pthread_mutex_unlock(&job->mutex);
    if (copy && was_empty && job->notify)
        job->notify(job);
}

void sl_job_fail(sl_job *job, sl_status status, const sl_error *why)
{
    pthread_mutex_lock(&job->mutex);
    fail_locked(job, status, why);
    pthread_mutex_unlock(&job->mutex);
    sl_job_cancel(job);
}

void sl_job_end(sl_job *job, sl_status status, const sl_error *why)
{
    pthread_mutex_lock(&job->mutex);
    if (status != SL_OK)
        fail_locked(job, status, why);
    job->done = true;
    pthread_mutex_unlock(&job->mutex);
    if (job->notify)
        job->notify(job);
}
