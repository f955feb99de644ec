/* GDN: the gated delta layer between its projections.
 *
 * Three sweeps, each spread over the threads: (1) every row: convolution, SiLU, norms, gates;
 * (2) every value head: the delta rule over the rows in order, chunk by chunk at absolute borders;
 * (3) every row: gated norm, rounding for the output projection, and what the state keeps. */
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

/* ---- sweep 1 ---- */

/* Unit: one head's 128 channels of one row (query, key, then value heads), or the row's gates. */
static void prepare_unit(const sl_cpu_step *step, size_t unit)
{
    const sl_op *op = step->op;
    const sl_gdn_args *gdn = &op->args.gdn;
    const sl_cpu_kernels *kernels = &step->cpu->kernels;
    size_t n_heads = channels(gdn) / SL_GDN_DIM;
    size_t row = unit / (n_heads + 1), head = unit % (n_heads + 1);
    if (head == n_heads) {
        kernels->gdn_gates(sl_step_row(step, op->in[IN_A], row),
                           sl_step_row(step, op->in[IN_B], row), gdn->a_coef, gdn->dt,
                           gdn->n_value_heads, sl_step_row(step, op->out[OUT_G], row),
                           sl_step_row(step, op->out[OUT_BETA], row));
        return;
    }
    const sl_segment *segment = sl_step_segment(step, row);
    size_t offset = head * SL_GDN_DIM;
    const float *rows[SL_CONV_TAPS];
    for (size_t j = 0; j < SL_CONV_TAPS; j++) {
        /* The taps reach three rows back: in this run, in the state, or before the sequence. */
        size_t back = SL_CONV_TAPS - 1 - j, i = row - segment->first_row;
        if (back <= i)
            rows[j] = sl_step_row(step, op->in[IN_QKV], row - back) + offset;
        else if (back <= segment->pos + i)
            rows[j] = conv_row(step, segment, (uint32_t)(segment->pos + i - back)) + offset;
        else
            rows[j] = NULL;
    }
    float *c = sl_step_row(step, op->out[OUT_C], row) + offset;
    kernels->conv_silu(rows, gdn->conv + offset * SL_CONV_TAPS, SL_GDN_DIM, c);
    if (head < gdn->n_key_heads)
        kernels->l2_norm(c, SL_GDN_DIM, q_scale, c);
    else if (head < 2 * (size_t)gdn->n_key_heads)
        kernels->l2_norm(c, SL_GDN_DIM, 1.0f, c);
}

/* ---- sweep 2 ---- */

/* One head's view of one chunk. */
typedef struct head_chunk {
    const float *k[SL_GDN_CHUNK];
    float *u[SL_GDN_CHUNK];
    float g[SL_GDN_CHUNK];
    const float *q[SL_GDN_CHUNK], *v[SL_GDN_CHUNK];
    float beta[SL_GDN_CHUNK];
    float *o[SL_GDN_CHUNK];
} head_chunk;

/* Fills the chunk: rows below `begin` come from the tape, the n rows after from this run. */
static void gather_chunk(const sl_cpu_step *step, const sl_segment *segment, size_t m, size_t head,
                         size_t begin, size_t row, size_t n, head_chunk *chunk)
{
    const sl_op *op = step->op;
    const sl_gdn_args *gdn = &op->args.gdn;
    size_t khead = key_head(gdn, head), n_keys = gdn->n_key_heads;
    for (size_t j = 0; j < begin; j++) {
        chunk->k[j] = tape_k(step, segment, m, j, khead);
        chunk->u[j] = tape_u(step, segment, m, j, head);
        chunk->g[j] = *tape_g(step, segment, m, j, head);
    }
    for (size_t i = 0; i < n; i++) {
        const float *c = sl_step_row(step, op->out[OUT_C], row + i);
        chunk->q[i] = c + khead * SL_GDN_DIM;
        chunk->k[begin + i] = c + (n_keys + khead) * SL_GDN_DIM;
        chunk->v[i] = c + (2 * n_keys + head) * SL_GDN_DIM;
        chunk->u[begin + i] = tape_u(step, segment, m, begin + i, head);
        chunk->g[begin + i] = sl_step_row(step, op->out[OUT_G], row + i)[head];
        chunk->beta[i] = sl_step_row(step, op->out[OUT_BETA], row + i)[head];
        chunk->o[i] = sl_step_row(step, op->out[OUT_Y], row + i) + head * SL_GDN_DIM;
    }
}

/* Unit: one value head of one segment, all its rows. */
static void delta_unit(const sl_cpu_step *step, size_t unit)
{
    const sl_gdn_args *gdn = &step->op->args.gdn;
    const sl_cpu_kernels *kernels = &step->cpu->kernels;
    const sl_segment *segment = &step->run->segments[unit / gdn->n_value_heads];
    size_t head = unit % gdn->n_value_heads;
    size_t state_offset =
        ((size_t)gdn->index * gdn->n_value_heads + head) * SL_GDN_DIM * SL_GDN_DIM;
    const float *S = segment->border ? segment->border + state_offset : zero_state;
    head_chunk chunk;
    size_t begin = segment->pos % SL_GDN_CHUNK;
    for (size_t m = 0, done = 0; done < segment->n_rows; m++, begin = 0) {
        size_t n = sl_min_size(SL_GDN_CHUNK - begin, segment->n_rows - done);
        gather_chunk(step, segment, m, head, begin, segment->first_row + done, n, &chunk);
        kernels->gdn_rows(&(sl_gdn_rows){.S = S,
                                         .k = chunk.k,
                                         .u = chunk.u,
                                         .g = chunk.g,
                                         .begin = begin,
                                         .n = n,
                                         .q = chunk.q,
                                         .v = chunk.v,
                                         .beta = chunk.beta,
                                         .o = chunk.o,
                                         .col_end = SL_GDN_DIM});
        done += n;
        if (begin + n == SL_GDN_CHUNK) {
            float *next = segment->border_out[(m + 1) & 1] + state_offset;
            kernels->gdn_border(S, chunk.k, (const float *const *)chunk.u, chunk.g, 0, SL_GDN_DIM,
                                next);
            S = next;
        }
    }
}

/* ---- sweep 3 ---- */

/* What later runs need of a row: its key and decay on the tape (u is there already), and its raw
 * projection for the convolution. */
static void keep_row(const sl_cpu_step *step, const sl_segment *segment, size_t row)
{
    const sl_op *op = step->op;
    const sl_gdn_args *gdn = &op->args.gdn;
    uint32_t i = (uint32_t)row - segment->first_row, left = segment->n_rows - i;
    if (left <= sl_plan_shape(step->plan)->n_conv_rows)
        memcpy(conv_row(step, segment, segment->pos + i), sl_step_row(step, op->in[IN_QKV], row),
               channels(gdn) * sizeof(float));
    size_t at = segment->pos % SL_GDN_CHUNK + i;
    size_t last = (segment->pos % SL_GDN_CHUNK + segment->n_rows - 1) / SL_GDN_CHUNK;
    size_t m = at / SL_GDN_CHUNK, j = at % SL_GDN_CHUNK;
    if (m + 1 < last)
        return; /* only the tapes of the last two chunks survive */
    const float *c = sl_step_row(step, op->out[OUT_C], row);
    for (size_t h = 0; h < gdn->n_key_heads; h++)
        memcpy(tape_k(step, segment, m, j, h), c + (gdn->n_key_heads + h) * SL_GDN_DIM,
               SL_GDN_DIM * sizeof(float));
    const float *g = sl_step_row(step, op->out[OUT_G], row);
    for (size_t h = 0; h < gdn->n_value_heads; h++)
        *tape_g(step, segment, m, j, h) = g[h];
}

static void finish_row(const sl_cpu_step *step, size_t row)
{
    const sl_op *op = step->op;
    const sl_gdn_args *gdn = &op->args.gdn;
    const sl_cpu_kernels *kernels = &step->cpu->kernels;
    float *y = sl_step_row(step, op->out[OUT_Y], row);
    const float *z = sl_step_row(step, op->in[IN_Z], row);
    for (size_t h = 0; h < gdn->n_value_heads; h++) {
        float *head = y + h * SL_GDN_DIM;
        kernels->rms_norm(head, gdn->norm, SL_GDN_DIM, gdn->eps, head);
        kernels->mul_silu(z + h * SL_GDN_DIM, SL_GDN_DIM, head);
    }
    if (op->out[OUT_YQ] != SL_NO_VALUE)
        sl_step_quantise(step, op->out[OUT_YQ], row, y);
    keep_row(step, sl_step_segment(step, row), row);
}

sl_status sl_cpu_gdn(const sl_cpu_step *step, sl_error *err)
{
    (void)err;
    const sl_gdn_args *gdn = &step->op->args.gdn;
    sl_cpu_for_each(step, step->run->n_rows * (channels(gdn) / SL_GDN_DIM + 1), prepare_unit);
    sl_cpu_for_each(step, (size_t)step->run->n_segments * gdn->n_value_heads, delta_unit);
    sl_cpu_for_each(step, step->run->n_rows, finish_row);
    return SL_OK;
}
