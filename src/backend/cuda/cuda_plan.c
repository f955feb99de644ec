/* What a plan needs on the device besides its arena: the vectors of its ops, and places for the
 * values of runs of few rows. */
#ifdef SL_CUDA

#include <assert.h>

#include "backend/cuda/cuda_internal.h"

enum { ALIGN = 256 };

/* ---- vectors of a plan ---- */

static sl_status upload_vector(sl_cuda *cuda, const float *v, size_t n, const float **out,
                               sl_error *err)
{
    void *memory = NULL;
    SL_TRY(sl_cuda_upload(cuda, v, n * sizeof *v, &memory, err));
    *out = memory;
    return SL_OK;
}

static sl_status upload_op(sl_cuda *cuda, const sl_plan *plan, const sl_op *op,
                           sl_cuda_vectors *out, sl_error *err)
{
    switch (op->kind) {
    case SL_OP_NORM:
        return upload_vector(cuda, op->args.norm.w, sl_plan_value(plan, op->in[0])->n_cols,
                             &out->v[0], err);
    case SL_OP_MTP_INPUT: {
        const size_t n = sl_plan_value(plan, op->in[0])->n_cols;
        SL_TRY(upload_vector(cuda, op->args.mtp_input.x_norm, n, &out->v[0], err));
        return upload_vector(cuda, op->args.mtp_input.hidden_norm, n, &out->v[1], err);
    }
    case SL_OP_GDN: {
        const sl_gdn_args *gdn = &op->args.gdn;
        const size_t heads = gdn->n_value_heads;
        const size_t channels = (2 * (size_t)gdn->n_key_heads + heads) * SL_GDN_DIM;
        SL_TRY(upload_vector(cuda, gdn->conv, channels * SL_CONV_TAPS, &out->v[0], err));
        SL_TRY(upload_vector(cuda, gdn->a_coef, heads, &out->v[1], err));
        SL_TRY(upload_vector(cuda, gdn->dt, heads, &out->v[2], err));
        return upload_vector(cuda, gdn->norm, SL_GDN_DIM, &out->v[3], err);
    }
    case SL_OP_ATTENTION: {
        const sl_attention_args *attention = &op->args.attention;
        SL_TRY(upload_vector(cuda, attention->q_norm, SL_ATTN_DIM, &out->v[0], err));
        SL_TRY(upload_vector(cuda, attention->k_norm, SL_ATTN_DIM, &out->v[1], err));
        return upload_vector(cuda, attention->inv_freq, attention->n_pairs, &out->v[2], err);
    }
    default:
        return SL_OK;
    }
}

/* ---- places of the values of few rows ---- */

static size_t few_rows_bytes(const sl_value_info *value)
{
    const size_t row = value->form == SL_FORM_Q8
                           ? (size_t)sl_cuda_n_blocks(value) * SL_CUDA_Q8_BLOCK_BYTES
                           : (size_t)value->n_cols * sizeof(float);
    return (SL_CU_STEP_ROWS * row + ALIGN - 1) / ALIGN * ALIGN;
}

/* Ops that a kernel may do together: a place is not given away as long as one kernel could read the
 * old value and write the new one. */
enum { APART = 8 };

static bool both_live(const sl_value_info *a, const sl_value_info *b)
{
    return a->first_op <= b->last_op + APART && b->first_op <= a->last_op + APART;
}

/* The lowest place that no value living at the same time has; *end is raised to its end. */
static size_t place_value(const sl_plan *plan, const size_t *places, sl_value v, size_t *end)
{
    const sl_value_info *value = sl_plan_value(plan, v);
    const size_t n_bytes = few_rows_bytes(value);
    size_t place = 0;
    for (sl_value w = 0; w < v; w++) {
        const sl_value_info *other = sl_plan_value(plan, w);
        const size_t other_bytes = few_rows_bytes(other);
        if (both_live(value, other) && place < places[w] + other_bytes &&
            places[w] < place + n_bytes) {
            place = places[w] + other_bytes;
            w = (sl_value)-1; /* the ones before may be in the way now */
        }
    }
    *end = place + n_bytes > *end ? place + n_bytes : *end;
    return place;
}

static const sl_op *find_op(const sl_plan *plan, sl_op_kind kind)
{
    for (size_t i = 0; i < sl_plan_op_count(plan); i++) {
        if (sl_plan_op(plan, i)->kind == kind)
            return sl_plan_op(plan, i);
    }
    return NULL;
}

/* The embedding table on the device: the head, where that is the same and its rows can be had. */
static const sl_cu_matrix *table_of(const sl_matrix *embed, const sl_matrix *head)
{
    const sl_cu_matrix *packed = head->packed;
    const bool same = embed->data == head->data && embed->n_rows == head->n_rows &&
                      embed->n_cols == head->n_cols && embed->dtype == head->dtype;
    return same && packed->kind != SL_CU_GENERAL ? packed : NULL;
}

static sl_status fill_plan(sl_cuda *cuda, sl_cuda_plan *made, sl_error *err)
{
    const sl_plan *plan = made->plan;
    const size_t n_ops = sl_plan_op_count(plan), n_values = sl_plan_value_count(plan);
    made->vectors = sl_alloc_array(SL_MEM_GENERAL, n_ops, sizeof *made->vectors);
    made->places = sl_alloc_array(SL_MEM_GENERAL, n_values, sizeof *made->places);
    if (!made->vectors || !made->places)
        return sl_fail(err, SL_ERR_MEMORY, "out of memory for a plan on the device");
    for (size_t i = 0; i < n_ops; i++)
        SL_TRY(upload_op(cuda, plan, sl_plan_op(plan, i), &made->vectors[i], err));
    size_t n_bytes = 0;
    for (size_t v = 0; v < n_values; v++)
        made->places[v] = place_value(plan, made->places, (sl_value)v, &n_bytes);
    void *memory = NULL;
    SL_TRY(sl_cuda_upload(cuda, NULL, n_bytes, &memory, err));
    made->few_rows = memory;
    made->embed = find_op(plan, SL_OP_EMBED);
    made->head = find_op(plan, SL_OP_HEAD);
    made->gdn = find_op(plan, SL_OP_GDN);
    made->attention = find_op(plan, SL_OP_ATTENTION);
    assert(made->embed == sl_plan_op(plan, 0) && made->head);
    made->table = table_of(&made->embed->args.matrix, &made->head->args.matrix);
    return SL_OK;
}

sl_status sl_cuda_prepare_plan(sl_cuda *cuda, const sl_plan *plan, const sl_cuda_plan **out,
                               sl_error *err)
{
    for (const sl_cuda_plan *p = cuda->plans; p; p = p->next) {
        if (p->plan == plan) {
            *out = p;
            return SL_OK;
        }
    }
    sl_cuda_plan *made = sl_alloc_zero(SL_MEM_GENERAL, sizeof *made);
    if (!made)
        return sl_fail(err, SL_ERR_MEMORY, "out of memory for a plan on the device");
    made->plan = plan;
    const sl_status status = fill_plan(cuda, made, err);
    if (status != SL_OK) {
        sl_free(made->vectors);
        sl_free(made->places);
        sl_free(made);
        return status;
    }
    made->next = cuda->plans;
    cuda->plans = made;
    *out = made;
    return SL_OK;
}

#endif
