/* What a plan needs on the device besides its arena: the vectors of its ops, and places for the
 * values of runs of few rows. */
#ifdef SL_CUDA

#include <assert.h>

#include "backend/cuda/cuda_internal.h"

enum { ALIGN = 256 };

/* ---- vectors of a plan ---- */

/* The vectors of an op's arguments: where they lie and their lengths; NULL: there is none. */
typedef struct vectors {
    const float *v[SL_CUDA_VECTORS];
    size_t n[SL_CUDA_VECTORS];
} vectors;

static vectors vectors_of(const sl_plan *plan, const sl_op *op)
{
    switch (op->kind) {
    case SL_OP_NORM:
        return (vectors){{op->args.norm.w}, {sl_plan_value(plan, op->in[0])->n_cols}};
    case SL_OP_MTP_INPUT: {
        const size_t n = sl_plan_value(plan, op->in[0])->n_cols;
        return (vectors){{op->args.mtp_input.x_norm, op->args.mtp_input.hidden_norm}, {n, n}};
    }
    case SL_OP_GDN: {
        const sl_gdn_args *gdn = &op->args.gdn;
        const size_t heads = gdn->n_value_heads;
        const size_t channels = (2 * (size_t)gdn->n_key_heads + heads) * SL_GDN_DIM;
        return (vectors){{gdn->conv, gdn->a_coef, gdn->dt, gdn->norm},
                         {channels * SL_CONV_TAPS, heads, heads, SL_GDN_DIM}};
    }
    case SL_OP_ATTENTION: {
        const sl_attention_args *attention = &op->args.attention;
        return (vectors){{attention->q_norm, attention->k_norm, attention->inv_freq},
                         {SL_ATTN_DIM, SL_ATTN_DIM, attention->n_pairs}};
    }
    default:
        return (vectors){{NULL}, {0}};
    }
}

static sl_status upload_op(sl_cuda *cuda, const sl_plan *plan, const sl_op *op,
                           sl_cuda_vectors *out, sl_error *err)
{
    const vectors all = vectors_of(plan, op);
    for (size_t i = 0; i < SL_CUDA_VECTORS; i++) {
        void *memory = NULL;
        if (all.n[i] > 0)
            SL_TRY(sl_cuda_upload(cuda, all.v[i], all.n[i] * sizeof(float), &memory, err));
        out->v[i] = memory;
    }
    return SL_OK;
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
enum { APART = 12 };

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
    return same && (packed->kind == SL_CU_PLAIN || !sl_cu_is_quantised(packed)) ? packed : NULL;
}

void sl_cuda_look_through(const sl_plan *plan, sl_cuda_plan *out)
{
    *out = (sl_cuda_plan){.plan = plan,
                          .embed = find_op(plan, SL_OP_EMBED),
                          .head = find_op(plan, SL_OP_HEAD),
                          .gdn = find_op(plan, SL_OP_GDN),
                          .attention = find_op(plan, SL_OP_ATTENTION)};
    assert(out->embed == sl_plan_op(plan, 0) && out->head);
}

/* Places of all values; the bytes that they take. */
static size_t place_values(const sl_plan *plan, size_t *places)
{
    size_t n_bytes = 0;
    for (size_t v = 0; v < sl_plan_value_count(plan); v++)
        places[v] = place_value(plan, places, (sl_value)v, &n_bytes);
    return n_bytes;
}

size_t sl_cuda_plan_bytes(const sl_plan *plan)
{
    size_t n_bytes = 0;
    for (size_t i = 0; i < sl_plan_op_count(plan); i++) {
        const vectors all = vectors_of(plan, sl_plan_op(plan, i));
        for (size_t k = 0; k < SL_CUDA_VECTORS; k++)
            n_bytes += all.n[k] * sizeof(float);
    }
    size_t *places = sl_alloc_array(SL_MEM_SCRATCH, sl_plan_value_count(plan), sizeof *places);
    if (places) /* else opening the model will say that memory is short */
        n_bytes += place_values(plan, places);
    sl_free(places);
    return n_bytes;
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
    void *memory = NULL;
    SL_TRY(sl_cuda_upload(cuda, NULL, place_values(plan, made->places), &memory, err));
    made->few_rows = memory;
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
    sl_cuda_look_through(plan, made);
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
