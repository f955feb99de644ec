/* Running a plan on the device: the rows of the run go up in one copy, every op becomes launches on
 * one stream, and logits, hidden states and faults come back at the end. */
#ifdef SL_CUDA

#include <assert.h>
#include <string.h>

#include "backend/cuda/cuda_internal.h"
#include "base/fpenv.h"

typedef sl_cuda_step step;

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

/* A value of few rows: floats, numbers, or codes, scales and sums one after the other. */
enum { ALIGN = 256, Q8_BYTES_PER_BLOCK = SL_Q8_BLOCK + sizeof(float) + 2 * sizeof(int16_t) };

static uint32_t n_blocks_of(const sl_value_info *value)
{
    return (value->n_cols + SL_Q8_BLOCK - 1) / SL_Q8_BLOCK;
}

static size_t few_rows_bytes(const sl_value_info *value)
{
    const size_t row = value->form == SL_FORM_Q8 ? (size_t)n_blocks_of(value) * Q8_BYTES_PER_BLOCK
                                                 : (size_t)value->n_cols * sizeof(float);
    return (SL_CU_STEP_ROWS * row + ALIGN - 1) / ALIGN * ALIGN;
}

static const sl_op *find_op(const sl_plan *plan, sl_op_kind kind)
{
    for (size_t i = 0; i < sl_plan_op_count(plan); i++) {
        if (sl_plan_op(plan, i)->kind == kind)
            return sl_plan_op(plan, i);
    }
    return NULL;
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
    for (size_t v = 0; v < n_values; v++) {
        made->places[v] = n_bytes;
        n_bytes += few_rows_bytes(sl_plan_value(plan, (sl_value)v));
    }
    void *memory = NULL;
    SL_TRY(sl_cuda_upload(cuda, NULL, n_bytes, &memory, err));
    made->few_rows = memory;
    made->embed = find_op(plan, SL_OP_EMBED);
    made->head = find_op(plan, SL_OP_HEAD);
    made->gdn = find_op(plan, SL_OP_GDN);
    made->attention = find_op(plan, SL_OP_ATTENTION);
    return SL_OK;
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

/* ---- the shape of a run ---- */

enum {
    GRAPH_ROWS = 16,    /* runs of up to so many rows are captured */
    FETCHED_LOGITS = 16 /* up to so many rows of logits come back through pinned memory */
};

static uint32_t last_position(const sl_segment *segment)
{
    return segment->pos + segment->n_rows - 1;
}

static uint32_t n_pages_of(const sl_segment *segment)
{
    return last_position(segment) / SL_KV_PAGE + 1;
}

static uint32_t round_up(uint32_t n)
{
    uint32_t rounded = 1;
    while (rounded < n && rounded < 1u << 31)
        rounded *= 2;
    return rounded;
}

static sl_cuda_shape shape_of(const sl_plan *plan, const void *arena, const sl_run *run)
{
    sl_cuda_shape shape = {.plan = plan,
                           .arena = arena,
                           .n_rows = run->n_rows,
                           .n_segments = run->n_segments,
                           .n_logit_rows = run->n_logit_rows,
                           .one_row_each = run->n_rows == run->n_segments};
    uint32_t n_pages = 0, most = 0;
    for (uint32_t i = 0; i < run->n_segments; i++) {
        const uint32_t n = n_pages_of(&run->segments[i]), n_rows = run->segments[i].n_rows;
        n_pages += n;
        most = n > most ? n : most;
        shape.n_split_rows += n_rows <= SL_CU_SPLIT_ROWS ? n_rows : 0;
        shape.most_rows = n_rows > shape.most_rows ? n_rows : shape.most_rows;
    }
    if (shape.n_split_rows == run->n_rows) /* steps of one shape may share rows out as they like */
        shape.most_rows = shape.one_row_each               ? 1
                          : run->n_rows > SL_CU_SPLIT_ROWS ? SL_CU_SPLIT_ROWS
                                                           : run->n_rows;
    shape.n_pages = round_up(n_pages);
    shape.n_key_blocks = round_up((most * SL_KV_PAGE + SL_CU_KEY_BLOCK - 1) / SL_CU_KEY_BLOCK);
    return shape;
}

/* Hidden states go to memory of the caller's, which is another one each time. */
static bool can_be_captured(const sl_run *run)
{
    for (uint32_t row = 0; run->hidden_out && row < run->n_rows && row < GRAPH_ROWS; row++) {
        if (run->hidden_out[row])
            return false;
    }
    return run->n_rows <= GRAPH_ROWS && run->n_logit_rows <= FETCHED_LOGITS && !run->tap &&
           !run->hidden_in && !run->records;
}

/* One block goes up: segments, KV pages, segment of each row, rows whose logits are wanted. */
typedef struct rows_layout {
    size_t pages, segment_of, logit_rows, n_bytes;
} rows_layout;

static rows_layout layout_of(const sl_cuda_shape *shape)
{
    rows_layout at;
    at.pages = shape->n_segments * sizeof(sl_cu_segment);
    at.segment_of = at.pages + shape->n_pages * sizeof(void *);
    at.logit_rows = at.segment_of + shape->n_rows * sizeof(uint32_t);
    at.n_bytes = at.logit_rows + shape->n_logit_rows * sizeof(uint32_t);
    return at;
}

static size_t attention_bytes(const step *s)
{
    const sl_op *op = s->prepared->attention;
    return op && !sl_plan_shape(s->plan)->kv_f32
               ? sizeof(float) * sl_cu_attention_scratch(s->shape.n_split_rows,
                                                         op->args.attention.n_heads,
                                                         s->shape.n_key_blocks)
               : 0;
}

/* However its segments lie to the borders. */
static uint32_t most_chunks(const sl_run *run)
{
    return run->n_rows / SL_GDN_CHUNK + 2 * run->n_segments;
}

static size_t chunk_bytes(const step *s)
{
    const sl_op *op = s->prepared->gdn;
    return op && !s->shape.one_row_each
               ? sl_cu_gdn_chunk_bytes(most_chunks(s->run), op->args.gdn.n_key_heads,
                                       op->args.gdn.n_value_heads)
               : 0;
}

/* Everything that the run will use: nothing can be reserved while it is captured. */
static sl_status reserve_all(step *s, sl_error *err)
{
    sl_cuda *cuda = s->cuda;
    const sl_op *embed = s->prepared->embed, *head = s->prepared->head;
    const size_t rows = s->run->n_rows, row_bytes = embed->args.matrix.n_cols * sizeof(float);
    const size_t logits = (size_t)s->run->n_logit_rows * head->args.matrix.n_rows * sizeof(float);
    const size_t rows_bytes = layout_of(&s->shape).n_bytes;
    SL_TRY(sl_cuda_reserve(cuda, &cuda->host_rows, rows_bytes, true, err));
    SL_TRY(sl_cuda_reserve(cuda, &cuda->device_rows, rows_bytes, false, err));
    SL_TRY(sl_cuda_reserve(cuda, &cuda->host_flags, rows * sizeof(uint32_t), true, err));
    SL_TRY(sl_cuda_reserve(cuda, &cuda->device_flags, rows * sizeof(uint32_t), false, err));
    SL_TRY(sl_cuda_reserve(cuda, &cuda->host_embed, rows * row_bytes, true, err));
    SL_TRY(sl_cuda_reserve(cuda, &cuda->device_logits, logits, false, err));
    if (s->run->n_logit_rows <= FETCHED_LOGITS)
        SL_TRY(sl_cuda_reserve(cuda, &cuda->host_logits, logits, true, err));
    if (s->run->hidden_in)
        SL_TRY(sl_cuda_reserve(cuda, &cuda->device_hidden, rows * row_bytes, false, err));
    SL_TRY(sl_cuda_reserve(cuda, &cuda->chunks, chunk_bytes(s), false, err));
    return sl_cuda_reserve(cuda, &cuda->attention, attention_bytes(s), false, err);
}

/* What the host has to say: in pinned memory, so that a captured copy finds it there. */
static void fill_rows(step *s)
{
    const sl_run *run = s->run;
    const rows_layout at = layout_of(&s->shape);
    char *host = s->cuda->host_rows.data, *device = s->cuda->device_rows.data;
    sl_cu_segment *out = (sl_cu_segment *)(void *)host;
    void **page = (void **)(void *)(host + at.pages);
    uint32_t *of = (uint32_t *)(void *)(host + at.segment_of);
    uint32_t n_chunks = 0, n_split_rows = 0, n_key_blocks = 0;
    for (uint32_t i = 0; i < run->n_segments; i++) {
        const sl_segment *in = &run->segments[i];
        out[i] = (sl_cu_segment){
            .pos = in->pos,
            .first_row = in->first_row,
            .n_rows = in->n_rows,
            .first_chunk = n_chunks,
            .first_split = n_split_rows,
            .first_key_block = n_key_blocks,
            .border = in->border,
            .border_out = {in->border_out[0], in->border_out[1]},
            .conv = in->conv,
            .kv_pages = (void *const *)(void *)(device + ((char *)(void *)page - host))};
        n_chunks += (in->pos % SL_GDN_CHUNK + in->n_rows + SL_GDN_CHUNK - 1) / SL_GDN_CHUNK;
        if (in->n_rows <= SL_CU_SPLIT_ROWS) {
            n_split_rows += in->n_rows;
            n_key_blocks += last_position(in) / SL_CU_KEY_BLOCK + 1;
        }
        memcpy(out[i].tape, in->tape, sizeof out[i].tape);
        memcpy(page, in->kv_pages, n_pages_of(in) * sizeof *page);
        page += n_pages_of(in);
        for (uint32_t row = 0; row < in->n_rows; row++)
            of[in->first_row + row] = i;
    }
    if (run->n_logit_rows > 0)
        memcpy(host + at.logit_rows, run->logit_rows, run->n_logit_rows * sizeof(uint32_t));

    const sl_matrix *table = &s->prepared->embed->args.matrix;
    float *embedded = s->cuda->host_embed.data;
    for (uint32_t row = 0; row < run->n_rows; row++)
        sl_dequantise(table->dtype, sl_matrix_row(table, 0, (size_t)run->tokens[row]),
                      embedded + (size_t)row * table->n_cols, table->n_cols);

    s->rows =
        (sl_cu_rows){.n_rows = run->n_rows,
                     .n_segments = run->n_segments,
                     .n_chunks = most_chunks(run),
                     .n_split_rows = s->shape.n_split_rows,
                     .most_split_rows = s->shape.most_rows < SL_CU_SPLIT_ROWS ? s->shape.most_rows
                                                                              : SL_CU_SPLIT_ROWS,
                     .most_rows = s->shape.most_rows,
                     .segments = (const sl_cu_segment *)(void *)device,
                     .segment_of = (const uint32_t *)(void *)(device + at.segment_of),
                     .flags = s->cuda->device_flags.data};
    s->logit_rows = (const uint32_t *)(void *)(device + at.logit_rows);
}

/* ---- operands ---- */

/* Where a value lies in the memory for few rows; NULL when the run has more. */
static char *few_rows(const step *s, sl_value v)
{
    return s->run->n_rows <= SL_CU_STEP_ROWS ? s->prepared->few_rows + s->prepared->places[v]
                                             : NULL;
}

float *sl_cuda_f32(const step *s, sl_value v)
{
    if (v == SL_NO_VALUE)
        return NULL;
    char *place = few_rows(s, v);
    return place ? (float *)(void *)place : sl_plan_f32(s->plan, s->arena, v);
}

uint32_t *sl_cuda_u32(const step *s, sl_value v)
{
    char *place = few_rows(s, v);
    return place ? (uint32_t *)(void *)place : sl_plan_u32(s->plan, s->arena, v);
}

sl_cu_q8 sl_cuda_q8(const step *s, sl_value v)
{
    if (v == SL_NO_VALUE)
        return (sl_cu_q8){0};
    char *place = few_rows(s, v);
    if (place) {
        const uint32_t n_blocks = n_blocks_of(sl_plan_value(s->plan, v));
        const size_t all = (size_t)SL_CU_STEP_ROWS * n_blocks;
        char *d = place + all * SL_Q8_BLOCK, *sums = d + all * sizeof(float);
        return (sl_cu_q8){.q = (int8_t *)place,
                          .d = (float *)(void *)d,
                          .sums = (int16_t *)(void *)sums,
                          .n_blocks = n_blocks};
    }
    const sl_q8_rows rows = sl_plan_q8(s->plan, s->arena, v);
    return (sl_cu_q8){
        .q = rows.q, .d = rows.d, .sums = rows.sums, .n_blocks = (uint32_t)rows.n_blocks};
}

const float *sl_cuda_vector(const step *s, uint32_t op, int i)
{
    return s->prepared->vectors[op].v[i];
}

static float *f32(const step *s, sl_value v)
{
    return sl_cuda_f32(s, v);
}

static sl_cu_q8 q8(const step *s, sl_value v)
{
    return sl_cuda_q8(s, v);
}

static const float *vector(const step *s, int i)
{
    return sl_cuda_vector(s, s->op_index, i);
}

static uint32_t n_cols(const step *s, sl_value v)
{
    return sl_plan_value(s->plan, v)->n_cols;
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

/* ---- runners ---- */

typedef sl_status (*runner)(step *s, sl_error *err);

/* The host has turned rows of the file's table into floats. */
static sl_status run_embed(step *s, sl_error *err)
{
    const size_t n_bytes = (size_t)s->run->n_rows * s->op->args.matrix.n_cols * sizeof(float);
    return sl_cuda_check(cudaMemcpyAsync(f32(s, s->op->out[0]), s->cuda->host_embed.data, n_bytes,
                                         cudaMemcpyHostToDevice, s->cuda->queue.stream),
                         "uploading embeddings", err);
}

static sl_status run_norm(step *s, sl_error *err)
{
    (void)err;
    const sl_op *op = s->op;
    const uint32_t n = n_cols(s, op->in[0]);
    sl_cu_norm(&s->cuda->queue, f32(s, op->in[0]), NULL, vector(s, 0), s->run->n_rows, n,
               op->args.norm.eps, f32(s, op->out[0]), n, q8(s, op->out[1]), s->rows.flags, 0);
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
    sl_cu_matrix_product(s->cuda->queue.stream, s->op->args.matrix.packed, &p);
    return SL_OK;
}

static sl_status run_head(step *s, sl_error *err)
{
    const uint32_t n = s->run->n_logit_rows, vocab = s->op->args.matrix.n_rows;
    if (n == 0)
        return SL_OK;
    const size_t row_bytes = vocab * sizeof(float);
    sl_cu_product p = {.n = n,
                       .rows = s->logit_rows,
                       .row_divisor = 1,
                       .y = s->cuda->device_logits.data,
                       .y_stride = vocab};
    set_input(s, s->op->in[0], &p);
    const sl_cu_matrix *w = s->op->args.matrix.packed;
    const sl_cu_step alone = {.n_rows = n,
                              .n_cols = w->n_cols,
                              .q8 = p.q8,
                              .n_targets = 1,
                              .targets = {{.w = *w, .y = p.y, .y_stride = vocab}}};
    if (n == s->run->n_rows && sl_cu_step_fits(&alone))
        sl_cu_run_step(&s->cuda->queue, &alone);
    else
        sl_cu_matrix_product(s->cuda->queue.stream, w, &p);
    if (n <= FETCHED_LOGITS)
        return sl_cuda_check(cudaMemcpyAsync(s->cuda->host_logits.data, p.y, n * row_bytes,
                                             cudaMemcpyDeviceToHost, s->cuda->queue.stream),
                             "fetching logits", err);
    for (uint32_t i = 0; i < n; i++)
        SL_TRY(sl_cuda_check(cudaMemcpyAsync(s->run->logits[i], p.y + (size_t)i * vocab, row_bytes,
                                             cudaMemcpyDeviceToHost, s->cuda->queue.stream),
                             "fetching logits", err));
    return SL_OK;
}

static sl_status run_gdn(step *s, sl_error *err)
{
    enum { IN_QKV, IN_Z, IN_A, IN_B };
    enum { OUT_Y, OUT_YQ };
    (void)err;
    const sl_op *op = s->op;
    const bool is_observed = s->run->tap && op->tap;
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
                           .y = f32(s, op->out[OUT_Y]),
                           .keeps_y = is_observed ||
                                      sl_plan_value(s->plan, op->out[OUT_Y])->last_op > s->op_index,
                           .yq = q8(s, op->out[OUT_YQ]),
                           .chunks = s->cuda->chunks.data};
    if (s->shape.one_row_each) {
        sl_cu_gdn_step(&s->cuda->queue, &s->rows, &gdn);
        return SL_OK;
    }
    sl_cu_gdn_prepare(&s->cuda->queue, &s->rows, &gdn);
    sl_cu_gdn_rule(&s->cuda->queue, &s->rows, &gdn);
    sl_cu_gdn_finish(&s->cuda->queue, &s->rows, &gdn);
    return SL_OK;
}

static sl_status run_attention(step *s, sl_error *err)
{
    enum { IN_Q, IN_K, IN_V };
    (void)err;
    const sl_op *op = s->op;
    const sl_attention_args *args = &op->args.attention;
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
                                       .n_key_blocks = s->shape.n_key_blocks,
                                       .scratch = s->cuda->attention.data};
    sl_cu_attention_layer(&s->cuda->queue, &s->rows, &attention);
    return SL_OK;
}

static sl_status run_swiglu(step *s, sl_error *err)
{
    (void)err;
    const sl_op *op = s->op;
    sl_cu_swiglu(s->cuda->queue.stream, f32(s, op->in[0]), f32(s, op->in[1]), s->run->n_rows,
                 n_cols(s, op->in[0]), f32(s, op->out[0]), q8(s, op->out[1]));
    return SL_OK;
}

static sl_status run_add(step *s, sl_error *err)
{
    (void)err;
    sl_cu_add(s->cuda->queue.stream, f32(s, s->op->in[0]), f32(s, s->op->in[1]), s->run->n_rows,
              n_cols(s, s->op->in[0]), s->rows.flags, s->op_index + 1);
    return SL_OK;
}

static sl_status run_add_gated(step *s, sl_error *err)
{
    (void)err;
    sl_cu_add_gated(s->cuda->queue.stream, f32(s, s->op->in[0]), f32(s, s->op->in[1]),
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
                                              cudaMemcpyDeviceToHost, s->cuda->queue.stream),
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
    float *hidden = s->cuda->device_hidden.data, *y = f32(s, op->out[0]);
    SL_TRY(sl_cuda_check(cudaMemcpyAsync(hidden, s->run->hidden_in, n_bytes, cudaMemcpyHostToDevice,
                                         s->cuda->queue.stream),
                         "uploading hidden states", err));
    const sl_cu_queue *queue = &s->cuda->queue;
    uint32_t *flags = s->rows.flags;
    sl_cu_norm(queue, f32(s, op->in[0]), NULL, vector(s, 0), rows, n, eps, y, 2 * n, none, flags,
               0);
    sl_cu_norm(queue, hidden, NULL, vector(s, 1), rows, n, eps, y + n, 2 * n, none, flags, 0);
    if (op->out[1] != SL_NO_VALUE)
        sl_cu_quantise(s->cuda->queue.stream, y, rows, 2 * n, q8(s, op->out[1]));
    return SL_OK;
}

static sl_status run_route(step *s, sl_error *err)
{
    enum { OUT_IDS, OUT_WEIGHTS, OUT_SCRATCH };
    (void)err;
    const sl_op *op = s->op;
    sl_cu_route(s->cuda->queue.stream, f32(s, op->in[0]), s->run->n_rows, n_cols(s, op->in[0]),
                op->args.top_k, f32(s, op->out[OUT_SCRATCH]), sl_cuda_u32(s, op->out[OUT_IDS]),
                f32(s, op->out[OUT_WEIGHTS]), s->rows.flags, s->op_index + 1);
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
    cudaStream_t stream = s->cuda->queue.stream;
    sl_cu_product p = {.n = pairs,
                       .stack = sl_cuda_u32(s, op->in[IN_IDS]),
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
    float *gate = f32(s, op->out[OUT_GATE]);
    sl_cu_swiglu(stream, gate, f32(s, op->out[OUT_UP]), pairs, inner, gate, act);
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
        cudaMemcpyAsync(copy, f32(s, v), n_bytes, cudaMemcpyDeviceToHost, s->cuda->queue.stream);
    if (error == cudaSuccess)
        error = cudaStreamSynchronize(s->cuda->queue.stream);
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

/* Puts the whole run on the stream, from the rows going up to the flags coming back. */
static sl_status enqueue(step *s, sl_error *err)
{
    sl_cuda *cuda = s->cuda;
    const size_t flag_bytes = s->run->n_rows * sizeof(uint32_t);
    cudaStream_t stream = cuda->queue.stream;
    SL_TRY(
        sl_cuda_check(cudaMemcpyAsync(cuda->device_rows.data, cuda->host_rows.data,
                                      layout_of(&s->shape).n_bytes, cudaMemcpyHostToDevice, stream),
                      "uploading rows", err));
    SL_TRY(sl_cuda_check(cudaMemsetAsync(cuda->device_flags.data, 0, flag_bytes, stream),
                         "clearing flags", err));
    const uint32_t n_ops = (uint32_t)sl_plan_op_count(s->plan);
    for (uint32_t i = 0, n; i < n_ops; i += n) {
        s->op = sl_plan_op(s->plan, i);
        s->op_index = i;
        SL_TRY(sl_cuda_profile_group(s->profile, s, i, err));
        n = s->run->tap ? 0 : sl_cuda_run_fused(s);
        if (n == 0) {
            SL_TRY(runners[s->op->kind](s, err));
            n = 1;
        }
        SL_TRY(sl_cuda_check(cudaPeekAtLastError(), sl_op_name(s->op->kind), err));
        SL_TRY(observe(s, err));
    }
    SL_TRY(sl_cuda_profile_group(s->profile, s, n_ops, err));
    return sl_cuda_check(cudaMemcpyAsync(cuda->host_flags.data, cuda->device_flags.data, flag_bytes,
                                         cudaMemcpyDeviceToHost, stream),
                         "fetching flags", err);
}

/* ---- captured runs ---- */

static bool same_shape(const sl_cuda_shape *a, const sl_cuda_shape *b)
{
    return a->plan == b->plan && a->arena == b->arena && a->n_rows == b->n_rows &&
           a->n_segments == b->n_segments && a->n_logit_rows == b->n_logit_rows &&
           a->n_pages == b->n_pages && a->n_key_blocks == b->n_key_blocks &&
           a->n_split_rows == b->n_split_rows && a->most_rows == b->most_rows &&
           a->one_row_each == b->one_row_each;
}

static sl_cuda_graph *find_graph(sl_cuda *cuda, const sl_cuda_shape *shape)
{
    for (size_t i = 0; i < SL_CUDA_GRAPHS; i++) {
        if (cuda->graphs[i].exec && same_shape(&cuda->graphs[i].shape, shape))
            return &cuda->graphs[i];
    }
    return NULL;
}

/* The place of the graph that was not used for the longest time. */
static sl_cuda_graph *free_place(sl_cuda *cuda)
{
    sl_cuda_graph *oldest = &cuda->graphs[0];
    for (size_t i = 1; i < SL_CUDA_GRAPHS; i++) {
        if (cuda->graphs[i].used < oldest->used)
            oldest = &cuda->graphs[i];
    }
    if (oldest->exec)
        (void)cudaGraphExecDestroy(oldest->exec);
    *oldest = (sl_cuda_graph){0};
    return oldest;
}

static sl_status capture(step *s, sl_cuda_graph **out, sl_error *err)
{
    cudaStream_t stream = s->cuda->queue.stream;
    SL_TRY(sl_cuda_check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal),
                         "beginning a capture", err));
    cudaGraph_t graph = NULL;
    const sl_status status = enqueue(s, err);
    const cudaError_t ended = cudaStreamEndCapture(stream, &graph);
    if (status != SL_OK || ended != cudaSuccess) {
        if (graph)
            (void)cudaGraphDestroy(graph);
        (void)cudaGetLastError();
        return status != SL_OK ? status : sl_cuda_check(ended, "ending a capture", err);
    }
    sl_cuda_graph *made = free_place(s->cuda);
    const cudaError_t error = cudaGraphInstantiate(&made->exec, graph, 0);
    (void)cudaGraphDestroy(graph);
    SL_TRY(sl_cuda_check(error, "making a graph", err));
    made->shape = s->shape;
    *out = made;
    return SL_OK;
}

/* A shape is captured the second time in a row that it comes, so that single runs pay nothing. */
static sl_status start(step *s, sl_error *err)
{
    sl_cuda *cuda = s->cuda;
    if (!can_be_captured(s->run))
        return enqueue(s, err);
    sl_cuda_graph *graph = find_graph(cuda, &s->shape);
    const bool again = same_shape(&cuda->last, &s->shape);
    cuda->last = s->shape;
    if (!graph && !again)
        return enqueue(s, err);
    if (!graph)
        SL_TRY(capture(s, &graph, err));
    graph->used = ++cuda->clock;
    return sl_cuda_check(cudaGraphLaunch(graph->exec, cuda->queue.stream), "starting a graph", err);
}

static void fetch_logits(const step *s)
{
    const size_t vocab = s->prepared->head->args.matrix.n_rows;
    const float *logits = s->cuda->host_logits.data;
    if (s->run->n_logit_rows > FETCHED_LOGITS)
        return; /* they went to the caller */
    for (uint32_t i = 0; i < s->run->n_logit_rows; i++)
        memcpy(s->run->logits[i], logits + i * vocab, vocab * sizeof *logits);
}

static sl_status run_all(step *s, sl_error *err)
{
    SL_TRY(sl_cuda_check(s->cuda->failed, "an earlier copy", err));
    SL_TRY(sl_cuda_check(cudaSetDevice(s->cuda->device), "choosing the device", err));
    SL_TRY(prepare_plan(s->cuda, s->plan, &s->prepared, err));
    SL_TRY(reserve_all(s, err));
    fill_rows(s);
    SL_TRY(sl_cuda_profile_open(s, &s->profile, err));
    SL_TRY(start(s, err));
    SL_TRY(sl_cuda_check(cudaStreamSynchronize(s->cuda->queue.stream), "a run", err));
    SL_TRY(sl_cuda_profile_collect(s->profile, s, err));
    fetch_logits(s);
    note_faults(s, s->cuda->host_flags.data);
    return SL_OK;
}

sl_status sl_cuda_run(sl_backend *backend, const sl_plan *plan, void *arena, const sl_run *run,
                      sl_error *err)
{
    step s = {.cuda = (sl_cuda *)(void *)backend,
              .plan = plan,
              .arena = arena,
              .run = run,
              .shape = shape_of(plan, arena, run)};
    sl_fpenv env = sl_fpenv_enter();
    sl_status status = run_all(&s, err);
    sl_fpenv_leave(env);
    if (status != SL_OK) /* nothing of this run may still be on its way to the caller's memory */
        (void)cudaStreamSynchronize(s.cuda->queue.stream);
    sl_cuda_profile_close(s.profile);
    return status;
}

#endif
