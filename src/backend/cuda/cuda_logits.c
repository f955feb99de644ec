/* What becomes of the logits of a run: rows go to the caller, or stay on the device for this
 * evaluation with a short list of the likeliest tokens. */
#ifdef SL_CUDA

#include <stdatomic.h>
#include <string.h>

#include "backend/cuda/cuda_internal.h"

static uint32_t n_wanted(const sl_cuda_step *s)
{
    return s->run->n_logit_rows - s->shape.n_kept;
}

/* Rows of logits are made where they stay, unless others are among them. */
static bool all_stay(const sl_cuda_step *s)
{
    return s->shape.n_kept > 0 && n_wanted(s) == 0;
}

static size_t row_bytes(const sl_cuda_step *s)
{
    return s->prepared->head->args.matrix.n_rows * sizeof(float);
}

static float *kept_row(const sl_cuda *cuda, size_t place)
{
    return (float *)cuda->kept.data + place * cuda->vocab;
}

/* Lists are made for all rows: keys, then their counts, then whether they are there. */
static size_t list_bytes(const sl_cuda_step *s)
{
    return s->run->n_logit_rows * (SL_CU_LISTED * sizeof(uint64_t) + 2 * sizeof(uint32_t));
}

static uint64_t *list_keys(const sl_cuda_step *s)
{
    return s->cuda->host_lists.data;
}

static uint32_t *list_counts(const sl_cuda_step *s)
{
    return (uint32_t *)(void *)(list_keys(s) + (size_t)s->run->n_logit_rows * SL_CU_LISTED);
}

static uint32_t *list_done(const sl_cuda_step *s)
{
    return list_counts(s) + s->run->n_logit_rows;
}

/* The place of all rows of the evaluation is taken at its first run, and stays. */
void sl_cuda_need_logits(const sl_cuda_step *s, sl_cuda_needs *needs)
{
    const sl_run *run = s->run;
    const uint32_t n = run->n_logit_rows, vocab = s->prepared->head->args.matrix.n_rows;
    if (n_wanted(s) > 0)
        needs->device_logits = n * row_bytes(s);
    if (n_wanted(s) > 0 && n_wanted(s) <= SL_CUDA_FETCHED)
        needs->host_logits = n_wanted(s) * row_bytes(s);
    if (s->shape.n_kept == 0)
        return;
    needs->kept = run->n_kept * row_bytes(s);
    needs->groups = sl_cu_group_bytes(n, vocab);
    needs->host_lists = list_bytes(s);
}

float *sl_cuda_logits(const sl_cuda_step *s)
{
    return all_stay(s) ? kept_row(s->cuda, s->run->first_kept) : s->cuda->device_logits.data;
}

/* Rows among which some stay, or that all go. */
static sl_status enqueue_copies(const sl_cuda_step *s, sl_error *err)
{
    const sl_run *run = s->run;
    sl_cuda *cuda = s->cuda;
    const char *row = (const char *)sl_cuda_logits(s);
    size_t place = run->first_kept, fetched = 0;
    for (uint32_t i = 0; i < run->n_logit_rows; i++, row += row_bytes(s)) {
        void *to = run->logits[i];
        if (!to)
            to = kept_row(cuda, place++);
        else if (n_wanted(s) <= SL_CUDA_FETCHED)
            to = (char *)cuda->host_logits.data + fetched++ * row_bytes(s);
        SL_TRY(sl_cuda_check(
            cudaMemcpyAsync(to, row, row_bytes(s), cudaMemcpyDefault, cuda->queue.stream),
            "fetching logits", err));
    }
    return SL_OK;
}

sl_status sl_cuda_enqueue_logits(const sl_cuda_step *s, uint32_t head_op, sl_error *err)
{
    sl_cuda *cuda = s->cuda;
    if (s->shape.n_kept > 0) {
        const sl_cu_shortlists lists = {.n = s->run->n_logit_rows,
                                        .vocab = s->prepared->head->args.matrix.n_rows,
                                        .logits = sl_cuda_logits(s),
                                        .groups = cuda->groups.data,
                                        .rows = s->logit_rows,
                                        .flags = s->rows.flags,
                                        .mark = head_op + 1,
                                        .n_rows = s->run->n_rows,
                                        .keys = list_keys(s),
                                        .counts = list_counts(s),
                                        .host_flags = cuda->host_flags.data,
                                        .done = list_done(s)};
        sl_cu_make_shortlists(&cuda->queue, &lists);
    }
    return all_stay(s) ? SL_OK : enqueue_copies(s, err);
}

/* Whether lists are the last that a run does. */
static bool ends_with_lists(const sl_cuda_step *s)
{
    const size_t n_ops = sl_plan_op_count(s->plan);
    return all_stay(s) && !s->profile && !sl_cuda_wants_hidden(s->run) &&
           sl_plan_op(s->plan, n_ops - 1) == s->prepared->head;
}

void sl_cuda_expect_logits(const sl_cuda_step *s)
{
    if (ends_with_lists(s))
        memset(list_done(s), 0, s->run->n_logit_rows * sizeof(uint32_t));
}

/* The lists, which the device puts into the host's memory, are seen some microseconds before the
 * stream is known to have come to its end. Now and then one looks whether it has failed. */
sl_status sl_cuda_await(const sl_cuda_step *s, sl_error *err)
{
    enum { LOOKS = 1 << 14 };
    cudaStream_t stream = s->cuda->queue.stream;
    uint32_t n_done = 0;
    for (uint32_t n = 1; ends_with_lists(s); n++) {
        const volatile uint32_t *done = list_done(s);
        while (n_done < s->run->n_logit_rows && done[n_done] != 0)
            n_done++;
        if (n_done == s->run->n_logit_rows) {
            atomic_thread_fence(memory_order_acquire);
            return SL_OK;
        }
        if (n % LOOKS == 0 && cudaStreamQuery(stream) != cudaErrorNotReady)
            break;
    }
    return sl_cuda_check(cudaStreamSynchronize(stream), "a run", err);
}

void sl_cuda_deliver_logits(const sl_cuda_step *s)
{
    const sl_run *run = s->run;
    const char *fetched = s->cuda->host_logits.data;
    uint32_t place = run->first_kept;
    for (uint32_t i = 0; i < run->n_logit_rows; i++) {
        if (!run->logits[i]) {
            sl_shortlist *list = &run->shortlists[place++];
            list->n = list_counts(s)[i];
            memcpy(list->keys, list_keys(s) + (size_t)i * SL_CU_LISTED, sizeof list->keys);
        } else if (n_wanted(s) <= SL_CUDA_FETCHED) {
            memcpy(run->logits[i], fetched, row_bytes(s));
            fetched += row_bytes(s);
        }
    }
}

sl_status sl_cuda_fetch_logits(sl_backend *backend, uint32_t place, float *out, sl_error *err)
{
    sl_cuda *cuda = (sl_cuda *)(void *)backend;
    SL_TRY(sl_cuda_check(cudaSetDevice(cuda->device), "choosing the device", err));
    cudaError_t error = cudaMemcpyAsync(out, kept_row(cuda, place), cuda->vocab * sizeof(float),
                                        cudaMemcpyDeviceToHost, cuda->queue.stream);
    if (error == cudaSuccess)
        error = cudaStreamSynchronize(cuda->queue.stream);
    return sl_cuda_check(error, "fetching logits", err);
}

#endif
