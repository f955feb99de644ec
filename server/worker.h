/* The thread that computes. It takes jobs from a bounded queue, gives their answers places (a state
 * each), and takes all answers a step further together, prompts in pieces beside the answers that
 * are being written. It owns all states; nothing else touches the engine while it runs. */
#ifndef SL_SERVER_WORKER_H
#define SL_SERVER_WORKER_H

#include "job.h"

typedef struct sl_worker sl_worker;

typedef struct sl_worker_settings {
    unsigned n_places;    /* answers at a time */
    uint32_t context;     /* tokens of each */
    size_t queue;         /* jobs that may wait */
    uint32_t prompt_rows; /* of prompts in a step in which others write; 0 = by the device */
} sl_worker_settings;

/* 4 places, the model's context up to 32,768, 64 jobs. */
sl_worker_settings sl_worker_settings_default(const sl_engine *engine);

/* Makes the states and starts the thread. The engine is the worker's until sl_worker_free.
 * SL_ERR_ARGUMENT, SL_ERR_CONTEXT (more than the model has), SL_ERR_MEMORY. */
sl_status sl_worker_create(sl_engine *engine, const sl_worker_settings *settings, sl_worker **out,
                           sl_error *err);
/* Ends what runs and waits with SL_ERR_CANCELLED, then the thread. */
void sl_worker_free(sl_worker *worker);

/* Queues the job, with a reference of the worker's own. Any thread. Nothing is queued on an error:
 * SL_ERR_LIMIT (the queue is full), SL_ERR_CONTEXT (the prompt leaves no room), SL_ERR_ARGUMENT. */
sl_status sl_worker_submit(sl_worker *worker, sl_job *job, sl_error *err);

typedef struct sl_worker_stats {
    unsigned n_places, n_running; /* answers */
    size_t n_waiting, queue;      /* jobs that wait, and that may */
    uint64_t n_steps, n_jobs, n_refused;
    uint64_t prompt_tokens, reused_tokens, answer_tokens;
    uint64_t last_step_ns; /* sl_clock_ns of the thread's last sign of life */
} sl_worker_stats;
/* Any thread. */
sl_worker_stats sl_worker_get_stats(sl_worker *worker);

#endif
