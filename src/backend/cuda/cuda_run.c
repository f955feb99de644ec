/* Running a plan on the device: the first kernel takes up what the host says of the rows, every op
 * becomes launches on one stream, and hidden states and faults come back at the end. */
#ifdef SL_CUDA

#include <assert.h>
#include <string.h>

#include "backend/cuda/cuda_internal.h"
#include "base/fpenv.h"

typedef sl_cuda_step step;

/* ---- the shape of a run ---- */

enum { GRAPH_ROWS = SL_CU_STEP_ROWS /* runs of up to so many rows are captured */ };

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
    for (uint32_t i = 0; i < run->n_logit_rows; i++)
        shape.n_kept += !run->logits[i];
    shape.first_kept = run->first_kept;
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

bool sl_cuda_wants_hidden(const sl_run *run)
{
    for (uint32_t row = 0; run->hidden_out && row < run->n_rows; row++) {
        if (run->hidden_out[row])
            return true;
    }
    return false;
}

/* Hidden states and many rows of logits go to memory of the caller's, which is another one each
 * time. */
static bool can_be_captured(const step *s)
{
    const sl_run *run = s->run;
    const uint32_t n_kept = s->shape.n_kept, n_wanted = run->n_logit_rows - n_kept;
    return run->n_rows <= GRAPH_ROWS && n_wanted <= SL_CUDA_FETCHED &&
           (n_wanted == 0 || n_kept == 0) && !run->tap && !run->hidden_in && !run->records &&
           !sl_cuda_wants_hidden(run);
}

/* One block goes up: segments, KV pages, segment of each row, rows whose logits are wanted. Behind
 * it lies what is read where it is: tokens, and embedded rows where the host makes them. */
typedef struct rows_layout {
    size_t pages, segment_of, logit_rows, n_bytes, tokens, embedded, n_host_bytes;
} rows_layout;

static rows_layout layout_of(const step *s)
{
    enum { WORD = 16 };
    const sl_cuda_shape *shape = &s->shape;
    const size_t row_bytes = s->prepared->embed->args.matrix.n_cols * sizeof(float);
    rows_layout at;
    at.pages = shape->n_segments * sizeof(sl_cu_segment);
    at.segment_of = at.pages + shape->n_pages * sizeof(void *);
    at.logit_rows = at.segment_of + shape->n_rows * sizeof(uint32_t);
    at.tokens = at.logit_rows + shape->n_logit_rows * sizeof(uint32_t);
    at.tokens = (at.tokens + WORD - 1) / WORD * WORD;
    at.n_bytes = at.tokens;
    at.embedded = at.tokens + shape->n_rows * sizeof(int32_t);
    at.n_host_bytes = at.embedded + (s->prepared->table ? 0 : shape->n_rows * row_bytes);
    return at;
}

static size_t attention_bytes(const step *s)
{
    const sl_op *op = s->prepared->attention;
    return op && !sl_plan_shape(s->plan)->kv_f32
               ? sizeof(float) *
                     sl_cu_attention_scratch(&s->cuda->queue, s->run->n_rows, s->shape.n_split_rows,
                                             op->args.attention.n_heads,
                                             op->args.attention.n_kv_heads, s->shape.n_key_blocks)
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

static sl_cuda_needs needs_of(const step *s)
{
    const rows_layout at = layout_of(s);
    const size_t rows = s->run->n_rows;
    const size_t hidden_bytes = rows * s->prepared->embed->args.matrix.n_cols * sizeof(float);
    sl_cuda_needs needs = {.host_rows = at.n_host_bytes,
                           .device_rows = at.n_bytes,
                           .host_flags = rows * sizeof(uint32_t),
                           .device_flags = rows * sizeof(uint32_t),
                           .device_hidden = s->run->hidden_in ? hidden_bytes : 0,
                           .chunks = chunk_bytes(s),
                           .many = sl_cuda_many_bytes(s->plan, s->run->n_rows),
                           .experts = sl_cuda_experts_bytes(s->plan, s->run->n_rows),
                           .attention = attention_bytes(s)};
    sl_cuda_need_logits(s, &needs);
    return needs;
}

/* Everything that the run will use: nothing can be reserved while it is captured. */
static sl_status reserve_all(step *s, sl_error *err)
{
    sl_cuda *cuda = s->cuda;
    const sl_cuda_needs n = needs_of(s);
    const struct {
        sl_cuda_buffer *buffer;
        size_t n_bytes;
        bool on_host;
    } all[] = {{&cuda->host_rows, n.host_rows, true},
               {&cuda->host_flags, n.host_flags, true},
               {&cuda->host_logits, n.host_logits, true},
               {&cuda->host_lists, n.host_lists, true},
               {&cuda->device_rows, n.device_rows, false},
               {&cuda->device_flags, n.device_flags, false},
               {&cuda->device_hidden, n.device_hidden, false},
               {&cuda->device_logits, n.device_logits, false},
               {&cuda->kept, n.kept, false},
               {&cuda->groups, n.groups, false},
               {&cuda->chunks, n.chunks, false},
               {&cuda->many, n.many, false},
               {&cuda->experts, n.experts, false},
               {&cuda->attention, n.attention, false}};
    for (size_t i = 0; i < SL_COUNTOF(all); i++)
        SL_TRY(sl_cuda_reserve(cuda, all[i].buffer, all[i].n_bytes, all[i].on_host, err));
    cuda->vocab = s->prepared->head->args.matrix.n_rows;
    return SL_OK;
}

/* Of the rows before `context`, whose logits stay or come back. */
size_t sl_cuda_run_bytes(const sl_plan *plan, uint32_t n_rows, uint32_t context)
{
    enum { MANY_MULTIPROCESSORS = 256 /* more than there are */ };
    float *logits[1] = {NULL};
    const float hidden = 0.0f;
    const uint32_t logit_rows[1] = {n_rows - 1};
    sl_segment segment = {.pos = context > n_rows ? context - n_rows : 0, .n_rows = n_rows};
    sl_run run = {.n_rows = n_rows,
                  .segments = &segment,
                  .n_segments = 1,
                  .logit_rows = logit_rows,
                  .n_logit_rows = 1,
                  .logits = logits,
                  .n_kept = 1,
                  .hidden_in = &hidden};
    sl_cuda cuda = {.queue = {.n_multiprocessors = MANY_MULTIPROCESSORS}};
    sl_cuda_plan prepared;
    sl_cuda_look_through(plan, &prepared);
    step s = {.cuda = &cuda,
              .plan = plan,
              .run = &run,
              .prepared = &prepared,
              .shape = shape_of(plan, NULL, &run)};
    sl_cuda_needs n = needs_of(&s);
    n.device_logits = (size_t)prepared.head->args.matrix.n_rows * sizeof(float);
    for (uint32_t rows = 1; rows < n_rows; rows++) { /* attention may want more for fewer rows */
        run.n_rows = segment.n_rows = rows;
        segment.pos = context > rows ? context - rows : 0;
        s.shape = shape_of(plan, NULL, &run);
        n.attention = sl_max_size(n.attention, attention_bytes(&s));
    }
    return n.device_rows + n.device_flags + n.device_hidden + n.device_logits + n.kept + n.groups +
           n.chunks + n.many + n.experts + n.attention + sl_cu_carry_bytes(MANY_MULTIPROCESSORS);
}

/* What the host has to say: in pinned memory, so that a captured copy finds it there. */
static void fill_rows(step *s)
{
    const sl_run *run = s->run;
    const rows_layout at = layout_of(s);
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
    int32_t *tokens = (int32_t *)(void *)(host + at.tokens);
    float *embedded = (float *)(void *)(host + at.embedded);
    memcpy(tokens, run->tokens, run->n_rows * sizeof *tokens);
    for (uint32_t row = 0; row < run->n_rows && !s->prepared->table; row++)
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
    s->begin = (sl_cu_begin){.from = host,
                             .to = device,
                             .n_words = (uint32_t)(at.n_bytes / sizeof(uint64_t) / 2),
                             .n_rows = run->n_rows,
                             .n_cols = table->n_cols,
                             .embedded = embedded,
                             .flags = s->rows.flags};
    if (s->prepared->table) {
        s->begin.tokens = tokens;
        s->begin.table = *s->prepared->table;
    }
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
        const uint32_t n_blocks = sl_cuda_n_blocks(sl_plan_value(s->plan, v));
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

void sl_cuda_set_input(const step *s, sl_value v, sl_cu_product *p)
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

/* The first op: with it goes up what the host says of the run. */
static sl_status run_embed(step *s, sl_error *err)
{
    (void)err;
    s->begin.x = f32(s, s->op->out[0]);
    sl_cu_begin_run(&s->cuda->queue, &s->begin);
    return SL_OK;
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
    sl_cuda_set_input(s, s->op->in[0], &p);
    sl_cu_matrix_product(&s->cuda->queue, s->op->args.matrix.packed, &p);
    return SL_OK;
}

static sl_status run_head(step *s, sl_error *err)
{
    const uint32_t n = s->run->n_logit_rows, vocab = s->op->args.matrix.n_rows;
    if (n == 0)
        return SL_OK;
    sl_cu_product p = {
        .n = n, .rows = s->logit_rows, .row_divisor = 1, .y = sl_cuda_logits(s), .y_stride = vocab};
    sl_cuda_set_input(s, s->op->in[0], &p);
    sl_cu_matrix_product(&s->cuda->queue, s->op->args.matrix.packed, &p);
    return sl_cuda_enqueue_logits(s, s->op_index, err);
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
    const bool keeps_y =
        (s->run->tap && op->tap) || sl_plan_value(s->plan, op->out[0])->last_op > s->op_index;
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
                                       .keeps_y = keeps_y,
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
    (void)err;
    sl_cuda_run_route(s);
    return SL_OK;
}

static sl_status run_experts(step *s, sl_error *err)
{
    (void)err;
    sl_cuda_run_experts(s);
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

static sl_status enqueue_ops(step *s, sl_error *err)
{
    sl_cuda *cuda = s->cuda;
    const uint32_t n_ops = (uint32_t)sl_plan_op_count(s->plan);
    const int overlap = cuda->queue.overlap;
    sl_status status = SL_OK;
    for (uint32_t i = 0, n; i < n_ops && status == SL_OK; i += n) {
        s->op = sl_plan_op(s->plan, i);
        s->op_index = i;
        cuda->queue.overlap = overlap && i > 1; /* see sl_cu_begin_run */
        cuda->queue.begins = overlap && i == 1;
        n = 0;
        status = sl_cuda_profile_group(s->profile, s, i, err);
        if (status == SL_OK && !s->run->tap)
            status = sl_cuda_run_fused(s, &n, err);
        if (status == SL_OK && n == 0) {
            status = runners[s->op->kind](s, err);
            n = 1;
        }
        if (status == SL_OK)
            status = sl_cuda_check(cudaPeekAtLastError(), sl_op_name(s->op->kind), err);
        if (status == SL_OK)
            status = observe(s, err);
    }
    cuda->queue.overlap = overlap;
    cuda->queue.begins = 0;
    return status != SL_OK ? status : sl_cuda_profile_group(s->profile, s, n_ops, err);
}

/* Puts the whole run on the stream, from the rows going up to the flags coming back. */
static sl_status enqueue(step *s, sl_error *err)
{
    sl_cuda *cuda = s->cuda;
    SL_TRY(enqueue_ops(s, err));
    if (s->shape.n_kept > 0)
        return SL_OK; /* with the lists */
    return sl_cuda_check(cudaMemcpyAsync(cuda->host_flags.data, cuda->device_flags.data,
                                         s->run->n_rows * sizeof(uint32_t), cudaMemcpyDeviceToHost,
                                         cuda->queue.stream),
                         "fetching flags", err);
}

/* ---- captured runs ---- */

static bool same_shape(const sl_cuda_shape *a, const sl_cuda_shape *b)
{
    return a->plan == b->plan && a->arena == b->arena && a->n_rows == b->n_rows &&
           a->n_segments == b->n_segments && a->n_logit_rows == b->n_logit_rows &&
           a->n_pages == b->n_pages && a->n_key_blocks == b->n_key_blocks &&
           a->n_split_rows == b->n_split_rows && a->most_rows == b->most_rows &&
           a->n_kept == b->n_kept && a->first_kept == b->first_kept &&
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
    if (!can_be_captured(s))
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

static sl_status run_all(step *s, sl_error *err)
{
    SL_TRY(sl_cuda_check(s->cuda->failed, "an earlier copy", err));
    SL_TRY(sl_cuda_check(cudaSetDevice(s->cuda->device), "choosing the device", err));
    SL_TRY(sl_cuda_prepare_plan(s->cuda, s->plan, &s->prepared, err));
    SL_TRY(reserve_all(s, err));
    fill_rows(s);
    SL_TRY(sl_cuda_profile_open(s, &s->profile, err));
    sl_cuda_expect_logits(s);
    SL_TRY(start(s, err));
    SL_TRY(sl_cuda_await(s, err));
    SL_TRY(sl_cuda_profile_collect(s->profile, s, err));
    sl_cuda_deliver_logits(s);
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
