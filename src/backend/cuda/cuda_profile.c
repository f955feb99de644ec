/* What each op of a run takes, by events on the stream. Kernels do not overlap across an event and
 * nothing is captured while a run is recorded, so the sum is larger than an unrecorded run takes.
 * Ops that one kernel does together share its time by the bytes that each has to move. */
#ifdef SL_CUDA

#include "backend/cuda/cuda_internal.h"

struct sl_cuda_profile {
    cudaEvent_t *events; /* [n_ops + 1]: before each group of ops, and behind the last */
    uint32_t *first_ops; /* [n_groups]: of each group */
    uint32_t n_events, n_groups;
};

sl_status sl_cuda_profile_open(const sl_cuda_step *s, sl_cuda_profile **out, sl_error *err)
{
    const uint32_t n_ops = (uint32_t)sl_plan_op_count(s->plan);
    *out = NULL;
    if (!s->run->records)
        return SL_OK;
    sl_cuda_profile *profile = sl_alloc_zero(SL_MEM_GENERAL, sizeof *profile);
    if (!profile)
        return sl_fail(err, SL_ERR_MEMORY, "out of memory for a profile");
    profile->events = sl_alloc_array(SL_MEM_GENERAL, n_ops + 1, sizeof *profile->events);
    profile->first_ops = sl_alloc_array(SL_MEM_GENERAL, n_ops, sizeof *profile->first_ops);
    if (!profile->events || !profile->first_ops) {
        sl_cuda_profile_close(profile);
        return sl_fail(err, SL_ERR_MEMORY, "out of memory for a profile");
    }
    for (; profile->n_events <= n_ops; profile->n_events++) {
        const sl_status status = sl_cuda_check(cudaEventCreate(&profile->events[profile->n_events]),
                                               "making events", err);
        if (status != SL_OK) {
            sl_cuda_profile_close(profile);
            return status;
        }
    }
    *out = profile;
    return SL_OK;
}

sl_status sl_cuda_profile_group(sl_cuda_profile *profile, const sl_cuda_step *s, uint32_t op,
                                sl_error *err)
{
    if (!profile)
        return SL_OK;
    if (op < sl_plan_op_count(s->plan))
        profile->first_ops[profile->n_groups++] = op;
    const size_t i = op < sl_plan_op_count(s->plan) ? profile->n_groups - 1 : profile->n_groups;
    return sl_cuda_check(cudaEventRecord(profile->events[i], s->cuda->queue.stream),
                         "recording a time", err);
}

static double bytes_of(const sl_cuda_step *s, uint32_t op)
{
    const sl_op_cost cost = sl_plan_op_cost(s->plan, op, s->run->n_rows, s->run->segments[0].pos);
    return cost.weight_bytes + cost.activation_bytes + cost.state_bytes;
}

/* The time of one group, given to its ops. */
static void share_out(const sl_cuda_step *s, uint32_t first, uint32_t end, double ns)
{
    double all = 0;
    for (uint32_t op = first; op < end; op++)
        all += bytes_of(s, op);
    for (uint32_t op = first; op < end; op++) {
        const double share = all > 0 ? bytes_of(s, op) / all : 1.0 / (end - first);
        const uint64_t part = (uint64_t)(ns * share);
        sl_op_record *record = &s->run->records[op];
        record->calls++;
        record->wall_ns += part;
        record->busy_ns += part;
        record->longest_ns += part;
    }
}

sl_status sl_cuda_profile_collect(const sl_cuda_profile *profile, const sl_cuda_step *s,
                                  sl_error *err)
{
    if (!profile)
        return SL_OK;
    for (uint32_t i = 0; i < profile->n_groups; i++) {
        float ms = 0;
        SL_TRY(sl_cuda_check(cudaEventElapsedTime(&ms, profile->events[i], profile->events[i + 1]),
                             "reading a time", err));
        const uint32_t end = i + 1 < profile->n_groups ? profile->first_ops[i + 1]
                                                       : (uint32_t)sl_plan_op_count(s->plan);
        share_out(s, profile->first_ops[i], end, (double)ms * 1e6);
    }
    return SL_OK;
}

void sl_cuda_profile_close(sl_cuda_profile *profile)
{
    if (!profile)
        return;
    for (uint32_t i = 0; i < profile->n_events; i++)
        (void)cudaEventDestroy(profile->events[i]);
    sl_free(profile->events);
    sl_free(profile->first_ops);
    sl_free(profile);
}

#endif
