/* Profiles of the main plan. A run is noted with what its costs depend on; they are added up only
 * when the profile is read, so that evaluating pays for the clock alone. */
#include "engine/profile.h"

#include <string.h>

#include "engine/engine_internal.h"

/* In bytes: about a million runs. */
enum { MAX_NOTES = 16 << 20 };

/* The rows of one sequence in a run. */
typedef struct note {
    uint32_t n_rows, pos;
    uint32_t n_run_rows;   /* of the whole run, with its first sequence; 0 with the others */
    uint32_t n_logit_rows; /* the same */
} note;

struct sl_profile {
    const sl_plan *plan;
    bool recording;
    sl_op_record *records; /* [ops of the plan] */
    sl_buf notes;          /* of note */
    sl_status status;      /* of keeping them */
    sl_error err;
};

sl_status sl_profile_create(const sl_plan *plan, sl_profile **out, sl_error *err)
{
    sl_profile *profile = sl_alloc_zero(SL_MEM_GENERAL, sizeof *profile);
    sl_op_record *records = sl_alloc_array(SL_MEM_GENERAL, sl_plan_op_count(plan), sizeof *records);
    if (!profile || !records) {
        sl_free(profile);
        sl_free(records);
        return sl_fail(err, SL_ERR_MEMORY, "out of memory for a profile");
    }
    profile->plan = plan;
    profile->recording = true;
    profile->records = records;
    sl_buf_init(&profile->notes, SL_MEM_GENERAL, MAX_NOTES);
    *out = profile;
    return SL_OK;
}

void sl_profile_free(sl_profile *profile)
{
    if (!profile)
        return;
    sl_buf_free(&profile->notes);
    sl_free(profile->records);
    sl_free(profile);
}

sl_op_record *sl_profile_records(sl_profile *profile)
{
    return profile && profile->recording ? profile->records : NULL;
}

void sl_profile_note(sl_profile *profile, const sl_run *run)
{
    if (!run->records)
        return;
    for (uint32_t s = 0; s < run->n_segments && profile->status == SL_OK; s++) {
        const note n = {.n_rows = run->segments[s].n_rows,
                        .pos = run->segments[s].pos,
                        .n_run_rows = s == 0 ? run->n_rows : 0,
                        .n_logit_rows = s == 0 ? run->n_logit_rows : 0};
        profile->status = sl_buf_append(&profile->notes, &n, sizeof n, &profile->err);
    }
}

/* ---- reading ---- */

static const sl_matrix *matrix_of(const sl_op *op)
{
    switch (op->kind) {
    case SL_OP_EMBED:
    case SL_OP_PROJECT:
    case SL_OP_HEAD:
        return &op->args.matrix;
    case SL_OP_EXPERTS:
        return &op->args.experts.gate;
    default:
        return NULL;
    }
}

/* A layer is a mixer up to the first residual add, and a feed-forward part from there. */
static void name_parts(const sl_plan *plan, sl_profile_op *ops)
{
    const size_t n = sl_plan_op_count(plan);
    for (size_t i = 0; i < n;) {
        const int layer = sl_plan_op(plan, i)->layer;
        const char *mixer = layer < 0 ? "head" : "layer";
        size_t end = i, first_add = n;
        for (; end < n && sl_plan_op(plan, end)->layer == layer; end++) {
            const sl_op_kind kind = sl_plan_op(plan, end)->kind;
            if (kind == SL_OP_EMBED)
                mixer = "embedding";
            else if (kind == SL_OP_GDN)
                mixer = "gated delta";
            else if (kind == SL_OP_ATTENTION)
                mixer = "attention";
            else if (kind == SL_OP_ADD && first_add == n)
                first_add = end;
        }
        for (; i < end; i++)
            ops[i].part = i <= first_add ? mixer : "feed-forward";
    }
}

static void describe(const sl_plan *plan, sl_profile_op *ops)
{
    for (size_t i = 0; i < sl_plan_op_count(plan); i++) {
        const sl_op *op = sl_plan_op(plan, i);
        const sl_matrix *matrix = matrix_of(op);
        ops[i].op = sl_op_name(op->kind);
        ops[i].name = op->kind == SL_OP_PROJECT ? sl_plan_value(plan, op->out[0])->name : "";
        ops[i].type = matrix ? sl_dtype_get(matrix->dtype)->name : "";
        ops[i].layer = op->layer;
    }
    name_parts(plan, ops);
}

static void add_note(const sl_plan *plan, const note *n, size_t i, sl_profile_op *out)
{
    const sl_workload own = {
        .n_sequences = 1, .n_rows = n->n_rows, .pos = n->pos, .n_logits = n->n_logit_rows};
    const sl_op_cost cost = sl_plan_op_cost_of(plan, i, &own);
    /* The recurrent state is read for every row, but has to come from memory only once. */
    const bool recurrent = sl_plan_op(plan, i)->kind == SL_OP_GDN;
    out->state_bytes += cost.state_bytes;
    out->memory_bytes += recurrent ? cost.state_bytes / n->n_rows : cost.state_bytes;
    out->int8_ops += 2 * cost.int8_macs;
    out->float_ops += cost.flops - 2 * cost.int8_macs;
    if (n->n_run_rows == 0)
        return;
    /* Weights are read once for all sequences of the run. */
    const sl_workload all = {
        .n_sequences = 1, .n_rows = n->n_run_rows, .n_logits = n->n_logit_rows};
    const sl_op_cost shared = sl_plan_op_cost_of(plan, i, &all);
    out->weight_bytes += shared.weight_bytes;
    out->activation_bytes += shared.activation_bytes;
    out->memory_bytes += shared.weight_bytes;
}

/* ---- the calls ---- */

sl_status sl_engine_profile_start(sl_engine *engine, sl_error *err)
{
    SL_TRY(sl_engine_need_weights(engine, err));
    sl_profile *profile;
    SL_TRY(sl_profile_create(engine->plan, &profile, err));
    sl_profile_free(engine->profile);
    engine->profile = profile;
    return SL_OK;
}

void sl_engine_profile_stop(sl_engine *engine)
{
    if (engine->profile)
        engine->profile->recording = false;
}

/* Work done for several ops is shared out among them in whole nanoseconds, each figure by itself:
 * the threads together may have a few less than the busiest of them, or more than all can have. */
static uint64_t busy_of(const sl_op_record *record, unsigned n_threads)
{
    const uint64_t most = record->longest_ns * n_threads;
    if (record->busy_ns < record->longest_ns)
        return record->longest_ns;
    return record->busy_ns < most ? record->busy_ns : most;
}

sl_status sl_engine_profile_ops(const sl_engine *engine, sl_profile_op **out, size_t *n,
                                sl_error *err)
{
    const sl_profile *profile = engine->profile;
    if (!profile)
        return sl_fail(err, SL_ERR_ARGUMENT, "no profile was started");
    if (profile->status != SL_OK)
        return sl_fail(err, profile->status, "the profile is not complete: %s",
                       profile->err.message);
    const sl_plan *plan = profile->plan;
    const size_t n_ops = sl_plan_op_count(plan);
    sl_profile_op *ops = sl_alloc_array(SL_MEM_GENERAL, n_ops, sizeof *ops);
    if (!ops)
        return sl_fail(err, SL_ERR_MEMORY, "out of memory for the profile of %zu ops", n_ops);
    describe(plan, ops);
    const size_t n_notes = profile->notes.n_bytes / sizeof(note);
    for (size_t i = 0; i < n_ops; i++) {
        const sl_op_record *record = &profile->records[i];
        ops[i].calls = record->calls;
        ops[i].wall_ns = record->wall_ns;
        ops[i].busy_ns = busy_of(record, engine->params.n_threads);
        ops[i].longest_ns = record->longest_ns;
        for (size_t k = 0; k < n_notes; k++) {
            note at;
            memcpy(&at, profile->notes.data + k * sizeof at, sizeof at);
            add_note(plan, &at, i, &ops[i]);
        }
    }
    *out = ops;
    *n = n_ops;
    return SL_OK;
}
