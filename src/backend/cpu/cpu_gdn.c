/* GDN: the gated delta layer between its projections.
 *
 * As one sweep over pairs of a segment and a key head, each with its value heads: convolution,
 * SiLU, norms, gates, the delta rule, the gated norm, rounding for the output projection, and what
 * the state keeps, chunk by chunk at absolute borders, so that a chunk's values stay in the inner
 * caches. Where there are too few pairs for the threads it is three sweeps: (1) rows, up to the
 * gates; (2) value heads, cut into slices of columns: the delta rule; (3) rows again. Both are made
 * of the same pieces and give the same bits. */
#include <string.h>

#include "backend/cpu/cpu_internal.h"

/* q is scaled by 1 / sqrt(128), rounded once. */
static const float q_scale = 0x1.6a09e6p-4f;

static const float zero_state[SL_GDN_DIM * SL_GDN_DIM];

/* The op's operands: see SL_OPS. */
enum { IN_QKV, IN_Z, IN_A, IN_B };
enum { OUT_Y, OUT_YQ, OUT_C, OUT_BETA, OUT_G };

static size_t channels(const sl_gdn_args *gdn)
{
    return ((size_t)2 * gdn->n_key_heads + gdn->n_value_heads) * SL_GDN_DIM;
}

static size_t key_head(const sl_gdn_args *gdn, size_t value_head)
{
    return gdn->tiled ? value_head % gdn->n_key_heads
                      : value_head / (gdn->n_value_heads / gdn->n_key_heads);
}

/* Value head number i of a key head. */
static size_t value_head(const sl_gdn_args *gdn, size_t khead, size_t i)
{
    return gdn->tiled ? khead + i * gdn->n_key_heads
                      : khead * (gdn->n_value_heads / gdn->n_key_heads) + i;
}

/* First channel of a head in the projection of queries, keys and values. */
static size_t query_channel(size_t khead)
{
    return khead * SL_GDN_DIM;
}

static size_t key_channel(const sl_gdn_args *gdn, size_t khead)
{
    return (gdn->n_key_heads + khead) * SL_GDN_DIM;
}

static size_t value_channel(const sl_gdn_args *gdn, size_t head)
{
    return (2 * (size_t)gdn->n_key_heads + head) * SL_GDN_DIM;
}

/* ---- where things lie in the state ---- */

static float *conv_row(const sl_cpu_step *step, const sl_segment *segment, uint32_t pos)
{
    const sl_state_shape *shape = sl_plan_shape(step->plan);
    size_t row = (size_t)step->op->args.gdn.index * shape->n_conv_rows + pos % shape->n_conv_rows;
    return segment->conv + row * shape->n_channels;
}

/* The pages of chunk m of the segment's rows. */
static float *const *tape_pages(const sl_segment *segment, size_t m)
{
    return segment->tape[m == 0 ? 0 : 1 + (m & 1)];
}

static float *tape_layer(const sl_cpu_step *step, const sl_segment *segment, size_t m, size_t j)
{
    return tape_pages(segment, m)[j / SL_TAPE_PAGE] +
           step->op->args.gdn.index * sl_shape_tape_layer_floats(sl_plan_shape(step->plan));
}

static float *tape_k(const sl_cpu_step *step, const sl_segment *segment, size_t m, size_t j,
                     size_t head)
{
    return tape_layer(step, segment, m, j) + (head * SL_TAPE_PAGE + j % SL_TAPE_PAGE) * SL_GDN_DIM;
}

static float *tape_u(const sl_cpu_step *step, const sl_segment *segment, size_t m, size_t j,
                     size_t head)
{
    return tape_k(step, segment, m, j, step->op->args.gdn.n_key_heads + head);
}

static float *tape_g(const sl_cpu_step *step, const sl_segment *segment, size_t m, size_t j,
                     size_t head)
{
    const sl_gdn_args *gdn = &step->op->args.gdn;
    size_t heads = (size_t)gdn->n_key_heads + gdn->n_value_heads;
    return tape_layer(step, segment, m, j) + heads * SL_TAPE_PAGE * SL_GDN_DIM +
           head * SL_TAPE_PAGE + j % SL_TAPE_PAGE;
}

/* The state at the beginning of chunk m of the segment's rows, and where the one after it goes. */
static size_t state_offset(const sl_cpu_step *step, size_t head)
{
    const sl_gdn_args *gdn = &step->op->args.gdn;
    return ((size_t)gdn->index * gdn->n_value_heads + head) * SL_GDN_DIM * SL_GDN_DIM;
}

static const float *state_at(const sl_cpu_step *step, const sl_segment *segment, size_t m,
                             size_t head)
{
    const float *border = m == 0 ? segment->border : segment->border_out[m & 1];
    return border ? border + state_offset(step, head) : zero_state;
}

static float *state_after(const sl_cpu_step *step, const sl_segment *segment, size_t m, size_t head)
{
    return segment->border_out[(m + 1) & 1] + state_offset(step, head);
}

/* ---- pieces ---- */

/* Rows of a segment that lie in one chunk. */
typedef struct chunk_part {
    const sl_segment *segment;
    size_t m;     /* chunk of the segment */
    size_t begin; /* first row in the chunk */
    size_t i;     /* the same row in the segment */
    size_t n;
} chunk_part;

static chunk_part first_part(const sl_segment *segment)
{
    const size_t begin = segment->pos % SL_GDN_CHUNK;
    return (chunk_part){.segment = segment,
                        .begin = begin,
                        .n = sl_min_size(SL_GDN_CHUNK - begin, segment->n_rows)};
}

static bool part_exists(const chunk_part *part)
{
    return part->i < part->segment->n_rows;
}

static void next_part(chunk_part *part)
{
    part->m++;
    part->i += part->n;
    part->begin = 0;
    part->n = sl_min_size(SL_GDN_CHUNK, part->segment->n_rows - part->i);
}

/* The delta rule over the rows of a part, in one head and the columns of `rows`, whose S is set
 * here. */
static void apply_rule(const sl_cpu_step *step, const chunk_part *part, size_t head,
                       sl_gdn_rows *rows)
{
    const sl_cpu_kernels *kernels = &step->cpu->kernels;
    const sl_segment *segment = part->segment;
    const size_t begin = rows->col_begin, end = rows->col_end;
    if (sl_plan_shape(step->plan)->gdn_serial) {
        float *S = segment->border_out[0] + state_offset(step, head);
        for (size_t a = 0; a < SL_GDN_DIM && segment->pos + part->i == 0; a++)
            memset(S + a * SL_GDN_DIM + begin, 0, (end - begin) * sizeof *S);
        kernels->gdn_tokens(&(sl_gdn_tokens){S, part->n, rows->k + part->begin, rows->q, rows->v,
                                             rows->g + part->begin, rows->beta, rows->o, begin,
                                             end});
        return;
    }
    rows->S = state_at(step, segment, part->m, head);
    kernels->gdn_rows(rows);
    if (part->begin + part->n == SL_GDN_CHUNK)
        kernels->gdn_border(rows->S, rows->k, (const float *const *)rows->u, rows->g, begin, end,
                            state_after(step, segment, part->m, head));
}

/* Raw rows for the convolution of n rows of a segment from row i on: three rows before them, which
 * lie in this run, in the state, or before the sequence (then NULL), the rows themselves, and the
 * next ones of the run, of which `n_ahead` are there. */
enum { FETCH_ROWS = 8 };

typedef struct raw_rows {
    const float *x[SL_CONV_HISTORY + SL_GDN_CHUNK + FETCH_ROWS];
    size_t n, n_ahead;
} raw_rows;

static void gather_raw(const sl_cpu_step *step, const sl_segment *segment, size_t i, size_t n,
                       raw_rows *raw)
{
    raw->n = n;
    raw->n_ahead = sl_min_size(FETCH_ROWS, segment->n_rows - i - n);
    for (size_t j = 0; j < SL_CONV_HISTORY + n + raw->n_ahead; j++) {
        const size_t pos = segment->pos + i + j; /* of the row, plus SL_CONV_HISTORY */
        if (i + j >= SL_CONV_HISTORY)
            raw->x[j] = sl_step_row(step, step->op->in[IN_QKV],
                                    segment->first_row + i + j - SL_CONV_HISTORY);
        else if (pos >= SL_CONV_HISTORY)
            raw->x[j] = conv_row(step, segment, (uint32_t)(pos - SL_CONV_HISTORY));
        else
            raw->x[j] = NULL;
    }
}

/* Convolution and SiLU of 128 channels. */
static void convolve(const sl_cpu_step *step, const raw_rows *raw, size_t channel, float *const *y)
{
    step->cpu->kernels.conv_silu(&(sl_conv_rows){.x = raw->x,
                                                 .n = raw->n,
                                                 .n_ahead = raw->n_ahead,
                                                 .w = step->op->args.gdn.conv,
                                                 .begin = channel,
                                                 .end = channel + SL_GDN_DIM,
                                                 .y = y});
}

static void make_queries(const sl_cpu_step *step, const raw_rows *raw, size_t khead,
                         float *const *q)
{
    convolve(step, raw, query_channel(khead), q);
    for (size_t i = 0; i < raw->n; i++)
        step->cpu->kernels.l2_norm(q[i], SL_GDN_DIM, q_scale, q[i]);
}

static void make_keys(const sl_cpu_step *step, const raw_rows *raw, size_t khead, float *const *k)
{
    convolve(step, raw, key_channel(&step->op->args.gdn, khead), k);
    for (size_t i = 0; i < raw->n; i++)
        step->cpu->kernels.l2_norm(k[i], SL_GDN_DIM, 1.0f, k[i]);
}

/* From the rule's output of one row and head to the op's: gated norm, rounding. o is overwritten
 * where it lies when nobody reads the floats, and may lie in y. */
static void finish_head(const sl_cpu_step *step, size_t row, size_t head, float *o)
{
    const sl_op *op = step->op;
    const sl_cpu_kernels *kernels = &step->cpu->kernels;
    const size_t at = head * SL_GDN_DIM;
    float *y =
        sl_step_is_read(step, op->out[OUT_Y]) ? sl_step_row(step, op->out[OUT_Y], row) + at : o;
    kernels->rms_norm(o, op->args.gdn.norm, SL_GDN_DIM, op->args.gdn.eps, y);
    kernels->mul_silu(sl_step_row(step, op->in[IN_Z], row) + at, SL_GDN_DIM, y);
    if (op->out[OUT_YQ] != SL_NO_VALUE)
        sl_step_quantise_part(step, op->out[OUT_YQ], row, at, SL_GDN_DIM, y);
}

/* The raw projections that later rows' convolutions reach, of 128 channels. */
static void keep_channels(const sl_cpu_step *step, const sl_segment *segment, size_t channel)
{
    const size_t kept = sl_min_size(segment->n_rows, sl_plan_shape(step->plan)->n_conv_rows);
    for (size_t i = segment->n_rows - kept; i < segment->n_rows; i++)
        memcpy(conv_row(step, segment, segment->pos + (uint32_t)i) + channel,
               sl_step_row(step, step->op->in[IN_QKV], segment->first_row + i) + channel,
               SL_GDN_DIM * sizeof(float));
}

/* ---- one sweep ---- */

/* A key head's chunk and what its value heads share, then one value head's. */
typedef struct head_chunk {
    float q[SL_GDN_CHUNK][SL_GDN_DIM];
    float o[SL_GDN_CHUNK][SL_GDN_DIM]; /* values, which the rule turns into outputs */
    raw_rows raw;
    float *q_rows[SL_GDN_CHUNK], *k_rows[SL_GDN_CHUNK];
    float *u_rows[SL_GDN_CHUNK], *o_rows[SL_GDN_CHUNK];
    float g[SL_GDN_CHUNK], beta[SL_GDN_CHUNK];
} head_chunk;

/* Decays and betas of the part's rows, the former to the tape as well; those of the tape's rows
 * before them. */
static void gate_rows(const sl_cpu_step *step, const chunk_part *part, size_t head,
                      head_chunk *chunk)
{
    const sl_op *op = step->op;
    const sl_gdn_args *gdn = &op->args.gdn;
    float a[SL_GDN_CHUNK], b[SL_GDN_CHUNK], a_coef[SL_GDN_CHUNK], dt[SL_GDN_CHUNK];
    for (size_t j = 0; j < part->n; j++) {
        const size_t row = part->segment->first_row + part->i + j;
        a[j] = sl_step_row(step, op->in[IN_A], row)[head];
        b[j] = sl_step_row(step, op->in[IN_B], row)[head];
        a_coef[j] = gdn->a_coef[head];
        dt[j] = gdn->dt[head];
    }
    step->cpu->kernels.gdn_gates(a, b, a_coef, dt, part->n, chunk->g + part->begin, chunk->beta);
    for (size_t j = 0; j < part->begin; j++)
        chunk->g[j] = *tape_g(step, part->segment, part->m, j, head);
    for (size_t j = part->begin; j < part->begin + part->n; j++)
        *tape_g(step, part->segment, part->m, j, head) = chunk->g[j];
}

/* The output gates that finish_head will read arrive while the rule runs. */
static void fetch_gates(const sl_cpu_step *step, const chunk_part *part, size_t head)
{
    enum { LINE = 16 /* floats */ };
    for (size_t j = 0; j < part->n; j++) {
        const size_t row = part->segment->first_row + part->i + j;
        const float *z = sl_step_row(step, step->op->in[IN_Z], row) + head * SL_GDN_DIM;
        for (size_t i = 0; i < SL_GDN_DIM; i += LINE)
            __builtin_prefetch(z + i, 0, 2);
    }
}

/* next_S: as in sl_gdn_rows. */
static void run_head(const sl_cpu_step *step, const chunk_part *part, size_t head,
                     const float *next_S, head_chunk *chunk)
{
    const sl_segment *segment = part->segment;
    gate_rows(step, part, head, chunk);
    for (size_t j = 0; j < part->begin + part->n; j++)
        chunk->u_rows[j] = tape_u(step, segment, part->m, j, head);
    convolve(step, &chunk->raw, value_channel(&step->op->args.gdn, head), chunk->o_rows);
    fetch_gates(step, part, head);
    apply_rule(step, part, head,
               &(sl_gdn_rows){.k = (const float *const *)chunk->k_rows,
                              .u = chunk->u_rows,
                              .g = chunk->g,
                              .begin = part->begin,
                              .n = part->n,
                              .q = (const float *const *)chunk->q_rows,
                              .v = (const float *const *)chunk->o_rows,
                              .beta = chunk->beta,
                              .o = chunk->o_rows,
                              .col_end = SL_GDN_DIM,
                              .next_S = next_S});
    for (size_t j = 0; j < part->n; j++)
        finish_head(step, segment->first_row + part->i + j, head, chunk->o[j]);
}

/* A group is a key head of a segment, with its value heads: the state of value head i. */
static const float *group_state(const sl_cpu_step *step, size_t group, size_t i)
{
    const sl_gdn_args *gdn = &step->op->args.gdn;
    const sl_segment *segment = &step->run->segments[group / gdn->n_key_heads];
    return state_at(step, segment, 0, value_head(gdn, group % gdn->n_key_heads, i));
}

/* next_S: the first state that the thread reads afterwards, or NULL. */
static void run_group(const sl_cpu_step *step, size_t group, const float *next_S)
{
    const sl_gdn_args *gdn = &step->op->args.gdn;
    const sl_segment *segment = &step->run->segments[group / gdn->n_key_heads];
    const size_t khead = group % gdn->n_key_heads, n_values = gdn->n_value_heads / gdn->n_key_heads;
    _Alignas(64) head_chunk chunk;
    for (size_t j = 0; j < SL_GDN_CHUNK; j++) {
        chunk.q_rows[j] = chunk.q[j];
        chunk.o_rows[j] = chunk.o[j];
    }
    for (chunk_part part = first_part(segment); part_exists(&part); next_part(&part)) {
        for (size_t j = 0; j < part.begin + part.n; j++)
            chunk.k_rows[j] = tape_k(step, segment, part.m, j, khead);
        gather_raw(step, segment, part.i, part.n, &chunk.raw);
        make_queries(step, &chunk.raw, khead, chunk.q_rows);
        make_keys(step, &chunk.raw, khead, chunk.k_rows + part.begin);
        for (size_t i = 0; i < n_values; i++)
            run_head(step, &part, value_head(gdn, khead, i),
                     i + 1 < n_values ? group_state(step, group, i + 1) : next_S, &chunk);
    }
    keep_channels(step, segment, query_channel(khead));
    keep_channels(step, segment, key_channel(gdn, khead));
    for (size_t i = 0; i < n_values; i++)
        keep_channels(step, segment, value_channel(gdn, value_head(gdn, khead, i)));
}

static size_t all_groups(const sl_cpu_step *step)
{
    return (size_t)step->run->n_segments * step->op->args.gdn.n_key_heads;
}

static void groups_task(void *context, unsigned i, unsigned n)
{
    const sl_cpu_step *step = context;
    sl_cpu_taker taker = {.i = i, .n = n};
    size_t group, end, own_end;
    sl_pool_share(all_groups(step), 1, i, n, &group, &own_end);
    while (sl_cpu_take(step, &taker, 1, &group, &end))
        run_group(step, group, taker.from == i && end < own_end ? group_state(step, end, 0) : NULL);
}

static void run_groups(const sl_cpu_step *step)
{
    const unsigned n_threads = sl_pool_threads(step->cpu->pool);
    for (unsigned i = 0; i < n_threads; i++) {
        size_t begin, end;
        sl_pool_share(all_groups(step), 1, i, n_threads, &begin, &end);
        sl_cpu_share_out(step, i, begin, end);
    }
    sl_cpu_region(step, groups_task, (void *)(uintptr_t)step); /* tasks may change what they get */
}

/* ---- three sweeps ---- */

/* Sweep 1, unit: a row. Its heads go to C, its gates to BETA and G. */
static void prepare_row(const sl_cpu_step *step, size_t row)
{
    const sl_op *op = step->op;
    const sl_gdn_args *gdn = &op->args.gdn;
    const sl_segment *segment = sl_step_segment(step, row);
    float *c = sl_step_row(step, op->out[OUT_C], row);
    raw_rows raw;
    gather_raw(step, segment, row - segment->first_row, 1, &raw);
    for (size_t head = 0; head < gdn->n_key_heads; head++) {
        make_queries(step, &raw, head, (float *[]){c + query_channel(head)});
        make_keys(step, &raw, head, (float *[]){c + key_channel(gdn, head)});
    }
    for (size_t head = 0; head < gdn->n_value_heads; head++)
        convolve(step, &raw, value_channel(gdn, head), (float *[]){c + value_channel(gdn, head)});
    step->cpu->kernels.gdn_gates(sl_step_row(step, op->in[IN_A], row),
                                 sl_step_row(step, op->in[IN_B], row), gdn->a_coef, gdn->dt,
                                 gdn->n_value_heads, sl_step_row(step, op->out[OUT_G], row),
                                 sl_step_row(step, op->out[OUT_BETA], row));
}

/* One value head's view of one chunk. */
typedef struct head_rows {
    const float *k[SL_GDN_CHUNK];
    float *u[SL_GDN_CHUNK];
    float g[SL_GDN_CHUNK];
    const float *q[SL_GDN_CHUNK], *v[SL_GDN_CHUNK];
    float beta[SL_GDN_CHUNK];
    float *o[SL_GDN_CHUNK];
} head_rows;

/* Rows before the part come from the tape, its own from this run. */
static void gather_rows(const sl_cpu_step *step, const chunk_part *part, size_t head,
                        head_rows *rows)
{
    const sl_op *op = step->op;
    const sl_gdn_args *gdn = &op->args.gdn;
    const size_t khead = key_head(gdn, head);
    for (size_t j = 0; j < part->begin; j++) {
        rows->k[j] = tape_k(step, part->segment, part->m, j, khead);
        rows->u[j] = tape_u(step, part->segment, part->m, j, head);
        rows->g[j] = *tape_g(step, part->segment, part->m, j, head);
    }
    for (size_t i = 0; i < part->n; i++) {
        const size_t row = part->segment->first_row + part->i + i, j = part->begin + i;
        const float *c = sl_step_row(step, op->out[OUT_C], row);
        rows->q[i] = c + query_channel(khead);
        rows->k[j] = c + key_channel(gdn, khead);
        rows->v[i] = c + value_channel(gdn, head);
        rows->u[j] = tape_u(step, part->segment, part->m, j, head);
        rows->g[j] = sl_step_row(step, op->out[OUT_G], row)[head];
        rows->beta[i] = sl_step_row(step, op->out[OUT_BETA], row)[head];
        rows->o[i] = sl_step_row(step, op->out[OUT_Y], row) + head * SL_GDN_DIM;
    }
}

/* Columns of a slice: whole vectors of every level, so that four threads share a head. */
enum { SLICE = 32, SLICES = SL_GDN_DIM / SLICE };

/* Sweep 2, unit: a slice of a value head of a segment. */
static void slice_unit(const sl_cpu_step *step, size_t unit)
{
    const sl_gdn_args *gdn = &step->op->args.gdn;
    const size_t slice = unit % SLICES, head = unit / SLICES % gdn->n_value_heads;
    const sl_segment *segment = &step->run->segments[unit / SLICES / gdn->n_value_heads];
    head_rows rows;
    for (chunk_part part = first_part(segment); part_exists(&part); next_part(&part)) {
        gather_rows(step, &part, head, &rows);
        apply_rule(step, &part, head,
                   &(sl_gdn_rows){.k = rows.k,
                                  .u = rows.u,
                                  .g = rows.g,
                                  .begin = part.begin,
                                  .n = part.n,
                                  .q = rows.q,
                                  .v = rows.v,
                                  .beta = rows.beta,
                                  .o = rows.o,
                                  .col_begin = slice * SLICE,
                                  .col_end = (slice + 1) * SLICE});
    }
}

/* Key and decay of a row to the tape, where u is already. */
static void keep_on_tape(const sl_cpu_step *step, const sl_segment *segment, size_t row)
{
    const sl_op *op = step->op;
    const sl_gdn_args *gdn = &op->args.gdn;
    const size_t first = segment->pos % SL_GDN_CHUNK, at = first + (row - segment->first_row);
    const size_t last = (first + segment->n_rows - 1) / SL_GDN_CHUNK;
    const size_t m = at / SL_GDN_CHUNK, j = at % SL_GDN_CHUNK;
    if (m + 1 < last)
        return; /* only the tapes of the last two chunks survive */
    const float *c = sl_step_row(step, op->out[OUT_C], row);
    for (size_t h = 0; h < gdn->n_key_heads; h++)
        memcpy(tape_k(step, segment, m, j, h), c + key_channel(gdn, h), SL_GDN_DIM * sizeof(float));
    const float *g = sl_step_row(step, op->out[OUT_G], row);
    for (size_t h = 0; h < gdn->n_value_heads; h++)
        *tape_g(step, segment, m, j, h) = g[h];
}

/* Sweep 3, unit: a row. */
static void finish_row(const sl_cpu_step *step, size_t row)
{
    const sl_gdn_args *gdn = &step->op->args.gdn;
    const sl_segment *segment = sl_step_segment(step, row);
    float *o = sl_step_row(step, step->op->out[OUT_Y], row);
    for (size_t head = 0; head < gdn->n_value_heads; head++)
        finish_head(step, row, head, o + head * SL_GDN_DIM);
    if (!sl_plan_shape(step->plan)->gdn_serial)
        keep_on_tape(step, segment, row);
    const size_t i = row - segment->first_row, left = segment->n_rows - i;
    if (left <= sl_plan_shape(step->plan)->n_conv_rows)
        memcpy(conv_row(step, segment, segment->pos + (uint32_t)i),
               sl_step_row(step, step->op->in[IN_QKV], row), channels(gdn) * sizeof(float));
}

/* Three sweeps when one would keep threads waiting; but a row a segment, as in decoding, is too
 * little work for three. */
static bool is_one_sweep(const sl_cpu_step *step, size_t n_groups)
{
    const size_t n_threads = sl_pool_threads(step->cpu->pool);
    const size_t rounds = (n_groups + n_threads - 1) / n_threads;
    return step->run->n_rows == step->run->n_segments ||
           4 * rounds * n_threads <= 5 * n_groups; /* at least 4/5 of the threads' time */
}

/* The states of its first heads. */
void sl_cpu_gdn_reads(const sl_cpu_step *step, unsigned i, unsigned n, sl_cpu_ahead *ahead)
{
    const sl_gdn_args *gdn = &step->op->args.gdn;
    size_t group, end;
    if (!is_one_sweep(step, all_groups(step)))
        return;
    sl_pool_share(all_groups(step), 1, i, n, &group, &end);
    for (; group < end && ahead->bytes_left > 0; group++) {
        for (size_t k = 0; k < gdn->n_value_heads / gdn->n_key_heads; k++)
            sl_cpu_will_read(ahead, group_state(step, group, k),
                             SL_GDN_DIM * SL_GDN_DIM * sizeof(float));
    }
}

sl_status sl_cpu_gdn(const sl_cpu_step *step, sl_error *err)
{
    (void)err;
    const sl_gdn_args *gdn = &step->op->args.gdn;
    const size_t n_segments = step->run->n_segments;
    if (is_one_sweep(step, all_groups(step))) {
        run_groups(step);
        return SL_OK;
    }
    sl_cpu_for_each(step, step->run->n_rows, prepare_row);
    sl_cpu_for_each(step, n_segments * gdn->n_value_heads * SLICES, slice_unit);
    sl_cpu_for_each(step, step->run->n_rows, finish_row);
    return SL_OK;
}
