/* A job: a prompt, the wish for one or several answers to it, and what has come of them so far.
 * Whoever asks makes it, hands it to a worker (worker.h) and takes its events, on any thread of its
 * own; the worker's thread adds them. It knows nothing of HTTP or of how an API writes things. */
#ifndef SL_SERVER_JOB_H
#define SL_SERVER_JOB_H

#include <pthread.h>
#include <stdatomic.h>

#include "sluice.h"

enum { SL_JOB_MAX_CHOICES = 128 };

typedef enum sl_job_event_kind {
    SL_JOB_STARTED,        /* choice 0 has its place: reuse says what was known of the prompt */
    SL_JOB_PROGRESS,       /* done of total tokens of the prompt are evaluated */
    SL_JOB_TOKEN,          /* token; logprob and top where they were wanted */
    SL_JOB_THINKING,       /* text */
    SL_JOB_CONTENT,        /* text */
    SL_JOB_CALL_BEGIN,     /* call, text: the name */
    SL_JOB_CALL_ARGUMENTS, /* call, text */
    SL_JOB_CALL_END,       /* call */
    SL_JOB_ENDED           /* the choice: result, and status with its sentence in text */
} sl_job_event_kind;

typedef struct sl_job_event {
    struct sl_job_event *next;
    sl_job_event_kind kind;
    unsigned choice;
    size_t call, done, total;
    int32_t token;
    double logprob;
    size_t n_top;
    sl_logprob *top; /* in the event's memory, as text */
    sl_status status;
    sl_generate_result result;
    char *text; /* NUL-terminated; NULL = none */
    size_t n_bytes;
} sl_job_event;

typedef struct sl_job {
    /* Set by the maker before it is handed over, and left alone until the last event. */
    sl_ids prompt;
    sl_generate_params params; /* what it points to is the maker's, until release; a constraint is
                                * forked for each choice, on the worker's thread */
    unsigned n_choices;        /* the i-th has the seed + i */
    bool wants_progress;
    /* There is something to take, where there was nothing before. On the worker's thread: to wake
     * another one. */
    void (*notify)(struct sl_job *job);
    /* The last reference is gone. Frees what belongs to the maker, and the job (sl_job_finish). */
    void (*release)(struct sl_job *job);
    void *user;

    /* Between the threads. */
    atomic_uint refs;
    atomic_bool cancelled;
    pthread_mutex_t mutex;
    /* Under the mutex. */
    sl_job_event *first, *last;
    bool done; /* nothing comes any more */
    sl_status status;
    sl_error why;

    /* The worker's. */
    struct sl_job *next_waiting;
    unsigned n_begun, n_ended;
    sl_state *base; /* at the end of the prompt, for choices that wait for a place; or NULL */
    uint64_t submitted_ns;
} sl_job;

/* One reference, one choice, no events. */
void sl_job_init(sl_job *job);
/* Of a job that nobody refers to: what init and the events took. */
void sl_job_finish(sl_job *job);
sl_job *sl_job_ref(sl_job *job);
void sl_job_unref(sl_job *job);

/* Nobody wants it any more: it ends within a step. Any thread. */
void sl_job_cancel(sl_job *job);

/* All events so far, oldest first, now the caller's: sl_job_free_events. NULL = none. *done: the
 * job has ended and nothing follows; sl_job_outcome then says how. Any thread. */
sl_job_event *sl_job_take(sl_job *job, bool *done);
/* Of a job that is done. SL_OK: every choice has its SL_JOB_ENDED. SL_ERR_CANCELLED: nobody wanted
 * it any more; others: it could not begin, or there was no memory to tell what happened. */
sl_status sl_job_outcome(const sl_job *job, sl_error *err);
void sl_job_free_events(sl_job_event *events);

/* ---- the worker's side ---- */

/* Adds a copy of *event, with text[0..n) and its top. Without memory the job is cancelled, and ends
 * with SL_ERR_MEMORY. */
void sl_job_add(sl_job *job, const sl_job_event *event, const char *text, size_t n);
/* Cancels the job for a reason, which becomes its outcome. */
void sl_job_fail(sl_job *job, sl_status status, const sl_error *why);
/* The end. why may be NULL with SL_OK. */
void sl_job_end(sl_job *job, sl_status status, const sl_error *why);

#endif
