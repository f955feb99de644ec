/* Running a plan on the device: the rows of the run go up in one copy, every op becomes launches on
 * one stream, and logits, hidden states and faults come back at the end. */
#ifdef SL_CUDA

#include <assert.h>
#include <string.h>

#include "backend/cuda/cuda_internal.h"
#include "base/fpenv.h"

/* One run, as the op runners see it. */
typedef struct step {
    sl_cuda *cuda;
    const sl_plan *plan;
    void *arena;
    const sl_run *run;
    const sl_cuda_plan *prepared;
    sl_cu_rows rows;
    const uint32_t *logit_rows; /* on the device */
    uint32_t max_keys;
    const sl_op *op;
    uint32_t op_index;
} step;

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

static sl_status prepare_plan(sl_cuda *cuda, const sl_plan *plan, const sl_cuda_plan **out,
                              sl_error *err)
{
    for (const sl_cuda_plan *p = cuda->plans; p; p = p->next) {
        if (p->plan == plan) {
            *out = p;
            return SL_OK;
        }
    }
    sl_cuda_plan *made = sl_alloc_zero(SL_MEM_GENERAL, sizeof *made);
    sl_cuda_vectors *vectors =
        sl_alloc_array(SL_MEM_GENERAL, sl_plan_op_count(plan), sizeof *vectors);
    sl_status status = made && vectors
                           ? SL_OK
                           : sl_fail(err, SL_ERR_MEMORY, "out of memory for the vectors of a plan");
    for (size_t i = 0; i < sl_plan_op_count(plan) && status == SL_OK; i++)
        status = upload_op(cuda, plan, sl_plan_op(plan, i), &vectors[i], err);
    if (status != SL_OK) {
        sl_free(made);
        sl_free(vectors);
        return status;
    }
    *made = (sl_cuda_plan){.next = cuda->plans, .plan = plan, .vectors = vectors};
    cuda->plans = made;
    *out = made;
    return SL_OK;
}

/* ---- rows of a run ---- */

static uint32_t last_position(const sl_segment *segment)
{
    return segment->pos + segment->n_rows - 1;
}

/* One block: segments, segment of each row, rows whose logits are wanted, KV pages. */
static sl_status upload_rows(step *s, sl_error *err)
{
    sl_cuda *cuda = s->cuda;
    const sl_run *run = s->run;
    size_t n_pages = 0;
    for (uint32_t i = 0; i < run->n_segments; i++)
        n_pages += last_position(&run->segments[i]) / SL_KV_PAGE + 1;
    const size_t segments = 0, pages = run->n_segments * sizeof(sl_cu_segment);
    const size_t segment_of = pages + n_pages * sizeof(void *);
    const size_t logit_rows = segment_of + run->n_rows * sizeof(uint32_t);
    const size_t n_bytes = logit_rows + run->n_logit_rows * sizeof(uint32_t);
    SL_TRY(sl_cuda_reserve(&cuda->host_rows, n_bytes, true, err));
    SL_TRY(sl_cuda_reserve(&cuda->device_rows, n_bytes, false, err));
    char *host = cuda->host_rows.data, *device = cuda->device_rows.data;

    sl_cu_segment *out = (sl_cu_segment *)(void *)(host + segments);
    void **page = (void **)(void *)(host + pages);
    uint32_t *of = (uint32_t *)(void *)(host + segment_of);
    for (uint32_t i = 0; i < run->n_segments; i++) {
        const sl_segment *in = &run->segments[i];
        const size_t n = last_position(in) / SL_KV_PAGE + 1;
        out[i] = (sl_cu_segment){
            .pos = in->pos,
            .first_row = in->first_row,
            .n_rows = in->n_rows,
            .border = in->border,
            .border_out = {in->border_out[0], in->border_out[1]},
            .conv = in->conv,
            .kv_pages = (void *const *)(void *)(device + ((char *)(void *)page - host))};
        memcpy(out[i].tape, in->tape, sizeof out[i].tape);
        memcpy(page, in->kv_pages, n * sizeof *page);
        page += n;
        for (uint32_t row = 0; row < in->n_rows; row++)
            of[in->first_row + row] = i;
        if (last_position(in) + 1 > s->max_keys)
            s->max_keys = last_position(in) + 1;
    }
    if (run->n_logit_rows > 0)
        memcpy(host + logit_rows, run->logit_rows, run->n_logit_rows * sizeof(uint32_t));
    SL_TRY(
        sl_cuda_check(cudaMemcpyAsync(device, host, n_bytes, cudaMemcpyHostToDevice, cuda->stream),
                      "uploading rows", err));

    SL_TRY(sl_cuda_reserve(&cuda->device_flags, run->n_rows * sizeof(uint32_t), false, err));
    SL_TRY(sl_cuda_check(
        cudaMemsetAsync(cuda->device_flags.data, 0, run->n_rows * sizeof(uint32_t), cuda->stream),
        "clearing flags", err));
    s->rows = (sl_cu_rows){.n_rows = run->n_rows,
                           .n_segments = run->n_segments,
                           .segments = (const sl_cu_segment *)(void *)(device + segments),
                           .segment_of = (const uint32_t *)(void *)(device + segment_of),
                           .flags = cuda->device_flags.data};
    s->logit_rows = (const uint32_t *)(void *)(device + logit_rows);
    return SL_OK;
}

/* ---- operands ---- */

static float *f32(const step *s, sl_value v)
{
    return v == SL_NO_VALUE ? NULL : sl_plan_f32(s->plan, s->arena, v);
}

static uint32_t n_cols(const step *s, sl_value v)
{
    return sl_plan_value(s->plan, v)->n_cols;
}

static sl_cu_q8 q8(const step *s, sl_value v)
{
    if (v == SL_NO_VALUE)
        return (sl_cu_q8){0};
    const sl_q8_rows rows = sl_plan_q8(s->plan, s->arena, v);
    return (sl_cu_q8){
        .q = rows.q, .d = rows.d, .sums = rows.sums, .n_blocks = (uint32_t)rows.n_blocks};
}

/* The input of a product, in the form that the plan made for its matrix. */
static void set_input(const step *s, sl_value v, sl_cu_product *p)
{
    if (sl_plan_value(s->plan, v)->form == SL_FORM_Q8) {
        p->q8 = q8(s, v);
    } else {
        p->f32 = f32(s, v);
        p->f32_stride = n_cols(s, v);
    }
}

static const float *vector(const step *s, int i)
{
    return s->prepared->vectors[s->op_index].v[i];
}

/* ---- runners ---- */

typedef sl_status (*runner)(step *s, sl_error *err);

/* Rows of the file's table, turned into floats by the host. */
static sl_status run_embed(step *s, sl_error *err)
{
    const sl_matrix *table = &s->op->args.matrix;
    const size_t row_bytes = table->n_cols * sizeof(float);
    const size_t n_bytes = s->run->n_rows * row_bytes;
    SL_TRY(sl_cuda_reserve(&s->cuda->host_embed, n_bytes, true, err));
    char *host = s->cuda->host_embed.data;
    for (uint32_t row = 0; row < s->run->n_rows; row++)
        sl_dequantise(table->dtype, sl_matrix_row(table, 0, (size_t)s->run->tokens[row]),
                      (float *)(void *)(host + row * row_bytes), table->n_cols);
    return sl_cuda_check(cudaMemcpyAsync(f32(s, s->op->out[0]), host, n_bytes,
                                         cudaMemcpyHostToDevice, s->cuda->stream),
                         "uploading embeddings", err);
}

static sl_status run_norm(step *s, sl_error *err)
{
    (void)err;
    const sl_op *op = s->op;
    const uint32_t n = n_cols(s, op->in[0]);
    sl_cu_norm(s->cuda->stream, f32(s, op->in[0]), vector(s, 0), s->run->n_rows, n,
               op->args.norm.eps, f32(s, op->out[0]), n, q8(s, op->out[1]));
    return SL_OK;
}

static sl_status run_project(step *s, sl_error *err)
{
    (void)err;
    sl_cu_product p = {.n = s->run->n_rows,
                       .row_divisor = 1,
                       .y = f32(s, s->op->out[0]),
                       .y_stride = n_cols(s, s->op->out[0])};
    set_input(s, s->op->in[0], &p);
    sl_cu_matrix_product(s->cuda->stream, s->op->args.matrix.packed, &p);
    return SL_OK;
}

static sl_status run_head(step *s, sl_error *err)
{
    const uint32_t n = s->run->n_logit_rows, vocab = s->op->args.matrix.n_rows;
    if (n == 0)
        return SL_OK;
    SL_TRY(sl_cuda_reserve(&s->cuda->device_logits, (size_t)n * vocab * sizeof(float), false, err));
    sl_cu_product p = {.n = n,
                       .rows = s->logit_rows,
                       .row_divisor = 1,
                       .y = s->cuda->device_logits.data,
                       .y_stride = vocab};
    set_input(s, s->op->in[0], &p);
    sl_cu_matrix_product(s->cuda->stream, s->op->args.matrix.packed, &p);
    for (uint32_t i = 0; i < n; i++)
        SL_TRY(sl_cuda_check(cudaMemcpyAsync(s->run->logits[i], p.y + (size_t)i * vocab,
                                             vocab * sizeof(float), cudaMemcpyDeviceToHost,
                                             s->cuda->stream),
                             "fetching logits", err));
    return SL_OK;
}

static sl_status run_gdn(step *s, sl_error *err)
{
    enum { IN_QKV, IN_Z, IN_A, IN_B };
    enum { OUT_Y, OUT_YQ, OUT_C, OUT_BETA, OUT_G };
    (void)err;
    const sl_op *op = s->op;
    const sl_gdn_args *args = &op->args.gdn;
    const sl_state_shape *shape = sl_plan_shape(s->plan);
    const sl_cu_gdn gdn = {.index = args->index,
                           .n_key_heads = args->n_key_heads,
                           .n_value_heads = args->n_value_heads,
                           .tiled = args->tiled,
                           .n_conv_rows = shape->n_conv_rows,
                           .n_channels = shape->n_channels,
                           .layer_floats = (uint32_t)sl_shape_tape_layer_floats(shape),
                           .conv = vector(s, 0),
                           .a_coef = vector(s, 1),
                           .dt = vector(s, 2),
                           .norm = vector(s, 3),
                           .eps = args->eps,
                           .qkv = f32(s, op->in[IN_QKV]),
                           .z = f32(s, op->in[IN_Z]),
                           .a = f32(s, op->in[IN_A]),
                           .b = f32(s, op->in[IN_B]),
                           .c = f32(s, op->out[OUT_C]),
                           .g = f32(s, op->out[OUT_G]),
                           .beta = f32(s, op->out[OUT_BETA]),
                           .y = f32(s, op->out[OUT_Y]),
                           .yq = q8(s, op->out[OUT_YQ])};
    sl_cu_gdn_layer(s->cuda->stream, &s->rows, &gdn);
    return SL_OK;
}

static sl_status run_attention(step *s, sl_error *err)
{
    enum { IN_Q, IN_K, IN_V };
    enum { PART_FLOATS = SL_ATTN_DIM + 2, BLOCK = 256, FEW_ROWS = 16 };
    const sl_op *op = s->op;
    const sl_attention_args *args = &op->args.attention;
    const size_t n_blocks = (s->max_keys + BLOCK - 1) / BLOCK;
    const size_t rows = s->run->n_rows < FEW_ROWS ? s->run->n_rows : FEW_ROWS;
    const size_t scratch = rows * args->n_heads * n_blocks * PART_FLOATS;
    SL_TRY(sl_cuda_reserve(&s->cuda->attention, scratch * sizeof(float), false, err));
    const sl_state_shape *shape = sl_plan_shape(s->plan);
    const sl_cu_attention attention = {.index = args->index,
                                       .n_heads = args->n_heads,
                                       .n_kv_heads = args->n_kv_heads,
                                       .kv_f32 = shape->kv_f32,
                                       .n_pairs = args->n_pairs,
                                       .q_norm = vector(s, 0),
                                       .k_norm = vector(s, 1),
                                       .inv_freq = vector(s, 2),
                                       .eps = args->eps,
                                       .rope_scale = args->rope_scale,
                                       .kv_head_bytes = sl_shape_kv_head_bytes(shape),
                                       .q = f32(s, op->in[IN_Q]),
                                       .k = f32(s, op->in[IN_K]),
                                       .v = f32(s, op->in[IN_V]),
                                       .y = f32(s, op->out[0]),
                                       .yq = q8(s, op->out[1]),
                                       .max_keys = s->max_keys,
                                       .scratch = s->cuda->attention.data,
                                       .scratch_floats = scratch};
    sl_cu_attention_layer(s->cuda->stream, &s->rows, &attention);
    return SL_OK;
}

static sl_status run_swiglu(step *s, sl_error *err)
{
    (void)err;
    const sl_op *op = s->op;
    sl_cu_swiglu(s->cuda->stream, f32(s, op->in[0]), f32(s, op->in[1]), s->run->n_rows,
                 n_cols(s, op->in[0]), f32(s, op->out[0]), q8(s, op->out[1]));
    return SL_OK;
}

static sl_status run_add(step *s, sl_error *err)
{
    (void)err;
    sl_cu_add(s->cuda->stream, f32(s, s->op->in[0]), f32(s, s->op->in[1]), s->run->n_rows,
              n_cols(s, s->op->in[0]), s->rows.flags, s->op_index + 1);
    return SL_OK;
}

static sl_status run_add_gated(step *s, sl_error *err)
{
    (void)err;
    sl_cu_add_gated(s->cuda->stream, f32(s, s->op->in[0]), f32(s, s->op->in[1]),
                    f32(s, s->op->in[2]), s->run->n_rows, n_cols(s, s->op->in[0]));
    return SL_OK;
}

static sl_status run_keep(step *s, sl_error *err)
{
    if (!s->run->hidden_out)
        return SL_OK;
    const size_t n = n_cols(s, s->op->in[0]);
    const float *x = f32(s, s->op->in[0]);
    for (uint32_t row = 0; row < s->run->n_rows; row++) {
        if (s->run->hidden_out[row])
            SL_TRY(
                sl_cuda_check(cudaMemcpyAsync(s->run->hidden_out[row], x + row * n, n * sizeof *x,
                                              cudaMemcpyDeviceToHost, s->cuda->stream),
                              "fetching hidden states", err));
    }
    return SL_OK;
}

static sl_status run_mtp_input(step *s, sl_error *err)
{
    const sl_op *op = s->op;
    const uint32_t n = n_cols(s, op->in[0]), rows = s->run->n_rows;
    const size_t n_bytes = (size_t)rows * n * sizeof(float);
    const float eps = op->args.mtp_input.eps;
    const sl_cu_q8 none = {0};
    SL_TRY(sl_cuda_reserve(&s->cuda->device_hidden, n_bytes, false, err));
    float *hidden = s->cuda->device_hidden.data, *y = f32(s, op->out[0]);
    SL_TRY(sl_cuda_check(cudaMemcpyAsync(hidden, s->run->hidden_in, n_bytes, cudaMemcpyHostToDevice,
                                         s->cuda->stream),
                         "uploading hidden states", err));
    sl_cu_norm(s->cuda->stream, f32(s, op->in[0]), vector(s, 0), rows, n, eps, y, 2 * n, none);
    sl_cu_norm(s->cuda->stream, hidden, vector(s, 1), rows, n, eps, y + n, 2 * n, none);
    if (op->out[1] != SL_NO_VALUE)
        sl_cu_quantise(s->cuda->stream, y, rows, 2 * n, q8(s, op->out[1]));
    return SL_OK;
}

static sl_status run_route(step *s, sl_error *err)
{
    enum { OUT_IDS, OUT_WEIGHTS, OUT_SCRATCH };
    (void)err;
    const sl_op *op = s->op;
    sl_cu_route(s->cuda->stream, f32(s, op->in[0]), s->run->n_rows, n_cols(s, op->in[0]),
                op->args.top_k, f32(s, op->out[OUT_SCRATCH]),
                sl_plan_u32(s->plan, s->arena, op->out[OUT_IDS]), f32(s, op->out[OUT_WEIGHTS]),
                s->rows.flags, s->op_index + 1);
    return SL_OK;
}

/* Every (row, chosen expert) pair is a product of its own. */
static sl_status run_experts(step *s, sl_error *err)
{
    enum { IN_X, IN_IDS, IN_WEIGHTS };
    enum { OUT_Y, OUT_GATE, OUT_UP, OUT_ACT, OUT_DOWN };
    (void)err;
    const sl_op *op = s->op;
    const sl_experts_args *args = &op->args.experts;
    const uint32_t inner = args->gate.n_rows, n_out = args->down.n_rows;
    const uint32_t pairs = s->run->n_rows * args->top_k;
    cudaStream_t stream = s->cuda->stream;
    sl_cu_product p = {.n = pairs,
                       .stack = sl_plan_u32(s->plan, s->arena, op->in[IN_IDS]),
                       .row_divisor = args->top_k,
                       .y = f32(s, op->out[OUT_GATE]),
                       .y_stride = inner};
    set_input(s, op->in[IN_X], &p);
    sl_cu_matrix_product(stream, args->gate.packed, &p);
    p.y = f32(s, op->out[OUT_UP]);
    sl_cu_matrix_product(stream, args->up.packed, &p);

    sl_cu_product down = {.n = pairs,
                          .stack = p.stack,
                          .row_divisor = 1,
                          .y = f32(s, op->out[OUT_DOWN]),
                          .y_stride = n_out};
    sl_cu_q8 act = {0};
    if (op->out[OUT_ACT] != op->out[OUT_GATE]) {
        act = q8(s, op->out[OUT_ACT]);
        act.n_blocks /= args->top_k; /* a pair is a row of its own blocks */
        down.q8 = act;
    } else {
        down.f32 = f32(s, op->out[OUT_GATE]);
        down.f32_stride = inner;
    }
    sl_cu_swiglu_pairs(stream, f32(s, op->out[OUT_GATE]), f32(s, op->out[OUT_UP]), pairs, inner,
                       act);
    sl_cu_matrix_product(stream, args->down.packed, &down);
    sl_cu_combine(stream, down.y, f32(s, op->in[IN_WEIGHTS]), s->run->n_rows, args->top_k, n_out,
                  f32(s, op->out[OUT_Y]));
    return SL_OK;
}

static const runner runners[SL_OP_KIND_COUNT] = {
    [SL_OP_EMBED] = run_embed,
    [SL_OP_NORM] = run_norm,
    [SL_OP_PROJECT] = run_project,
    [SL_OP_GDN] = run_gdn,
    [SL_OP_ATTENTION] = run_attention,
    [SL_OP_SWIGLU] = run_swiglu,
    [SL_OP_ADD] = run_add,
    [SL_OP_ROUTE] = run_route,
    [SL_OP_EXPERTS] = run_experts,
    [SL_OP_ADD_GATED] = run_add_gated,
    [SL_OP_MTP_INPUT] = run_mtp_input,
    [SL_OP_KEEP] = run_keep,
    [SL_OP_HEAD] = run_head,
};

/* ---- results ---- */

/* Shows an op's result to the run's observer: waits for it. */
static sl_status observe(step *s, sl_error *err)
{
    const sl_run *run = s->run;
    if (!run->tap || !s->op->tap)
        return SL_OK;
    const sl_value v = s->op->out[0] != SL_NO_VALUE ? s->op->out[0] : s->op->in[0];
    if (sl_plan_value(s->plan, v)->form != SL_FORM_F32)
        return SL_OK;
    const size_t n_bytes = (size_t)run->n_rows * n_cols(s, v) * sizeof(float);
    float *copy = sl_alloc(SL_MEM_SCRATCH, n_bytes);
    if (!copy)
        return sl_fail(err, SL_ERR_MEMORY, "out of memory for an observed value");
    cudaError_t error =
        cudaMemcpyAsync(copy, f32(s, v), n_bytes, cudaMemcpyDeviceToHost, s->cuda->stream);
    if (error == cudaSuccess)
        error = cudaStreamSynchronize(s->cuda->stream);
    if (error == cudaSuccess)
        run->tap(run->tap_context, s->op->tap, copy, run->n_rows, n_cols(s, v));
    sl_free(copy);
    return sl_cuda_check(error, "observing a value", err);
}

/* Of each segment the earliest op's first row. */
static void note_faults(const step *s, const uint32_t *flags)
{
    const sl_run *run = s->run;
    for (uint32_t i = 0; i < run->n_segments; i++) {
        const sl_segment *segment = &run->segments[i];
        uint32_t first = 0, row_of_first = 0;
        for (uint32_t row = 0; row < segment->n_rows; row++) {
            const uint32_t mark = flags[segment->first_row + row];
            if (mark != 0 && (first == 0 || mark < first)) {
                first = mark;
                row_of_first = row;
            }
        }
        if (first == 0 || run->faults[i].found)
            continue;
        const sl_op *op = sl_plan_op(s->plan, first - 1);
        run->faults[i] = (sl_fault){.found = true,
                                    .layer = op->layer,
                                    .pos = segment->pos + row_of_first,
                                    .op = sl_op_name(op->kind)};
    }
}

static sl_status finish(step *s, sl_error *err)
{
    sl_cuda *cuda = s->cuda;
    const size_t n_bytes = s->run->n_rows * sizeof(uint32_t);
    SL_TRY(sl_cuda_reserve(&cuda->host_flags, n_bytes, true, err));
    SL_TRY(sl_cuda_check(cudaMemcpyAsync(cuda->host_flags.data, s->rows.flags, n_bytes,
                                         cudaMemcpyDeviceToHost, cuda->stream),
                         "fetching flags", err));
    SL_TRY(sl_cuda_check(cudaStreamSynchronize(cuda->stream), "a run", err));
    note_faults(s, cuda->host_flags.data);
    return SL_OK;
}

static sl_status run_ops(step *s, sl_error *err)
{
    SL_TRY(sl_cuda_check(s->cuda->failed, "an earlier copy", err));
    SL_TRY(sl_cuda_check(cudaSetDevice(s->cuda->device), "choosing the device", err));
    SL_TRY(prepare_plan(s->cuda, s->plan, &s->prepared, err));
    SL_TRY(upload_rows(s, err));
    for (size_t i = 0; i < sl_plan_op_count(s->plan); i++) {
        s->op = sl_plan_op(s->plan, i);
        s->op_index = (uint32_t)i;
        SL_TRY(runners[s->op->kind](s, err));
        SL_TRY(sl_cuda_check(cudaPeekAtLastError(), sl_op_name(s->op->kind), err));
        SL_TRY(observe(s, err));
    }
    return finish(s, err);
}

sl_status sl_cuda_run(sl_backend *backend, const sl_plan *plan, void *arena, const sl_run *run,
                      sl_error *err)
{
    step s = {.cuda = (sl_cuda *)(void *)backend, .plan = plan, .arena = arena, .run = run};
    sl_fpenv env = sl_fpenv_enter();
    sl_status status = run_ops(&s, err);
    sl_fpenv_leave(env);
    if (status != SL_OK) /* nothing of this run may still be on its way to the caller's memory */
        (void)cudaStreamSynchronize(s.cuda->stream);
    return status;
}

#endif
