/* ATTENTION: gated softmax attention between its projections.
 *
 * Two sweeps: (1) every head of every row: norm, rope, and for key heads the append to the KV
 * pages; (2) every query head of every row: attention over the pages, output gate. Then rounding.
 */
#include <string.h>

#include "backend/cpu/cpu_internal.h"

enum { IN_Q, IN_K, IN_V };
enum { OUT_Y, OUT_YQ };
enum { MAX_PAIRS = SL_ATTN_DIM / 2 };

static uint32_t position(const sl_segment *segment, size_t row)
{
    return segment->pos + ((uint32_t)row - segment->first_row);
}

static sl_kv_type kv_type(const sl_cpu_step *step)
{
    return sl_plan_shape(step->plan)->kv_f32 ? SL_KV_F32 : SL_KV_F16;
}

/* Byte offset of a KV head's keys in a page; its values follow all keys of the layer. */
static size_t k_offset(const sl_cpu_step *step, size_t kv_head)
{
    const sl_attention_args *attention = &step->op->args.attention;
    return ((size_t)attention->index * 2 * attention->n_kv_heads + kv_head) *
           sl_shape_kv_head_bytes(sl_plan_shape(step->plan));
}

static size_t v_offset(const sl_cpu_step *step, size_t kv_head)
{
    return k_offset(step, kv_head + step->op->args.attention.n_kv_heads);
}

/* x = rope(norm(x)) */
static void norm_and_rotate(const sl_cpu_step *step, const float *x, const float *w, uint32_t pos,
                            float *y)
{
    const sl_attention_args *attention = &step->op->args.attention;
    const sl_cpu_kernels *kernels = &step->cpu->kernels;
    float cos[MAX_PAIRS], sin[MAX_PAIRS];
    kernels->rms_norm(x, w, SL_ATTN_DIM, attention->eps, y);
    kernels->rope_angles(pos, attention->inv_freq, attention->rope_scale, attention->n_pairs, cos,
                         sin);
    kernels->rope(y, cos, sin, attention->n_pairs);
}

/* Unit: one query head or one key head of a row. The queries wait in y, each in the place where its
 * result will be. */
static void prepare_unit(const sl_cpu_step *step, size_t unit)
{
    const sl_op *op = step->op;
    const sl_attention_args *attention = &op->args.attention;
    size_t n_units = (size_t)attention->n_heads + attention->n_kv_heads;
    size_t row = unit / n_units, head = unit % n_units;
    const sl_segment *segment = sl_step_segment(step, row);
    uint32_t pos = position(segment, row);
    if (head < attention->n_heads) {
        /* Rows of the query projection are interleaved per head: 256 query, 256 gate. */
        norm_and_rotate(step, sl_step_row(step, op->in[IN_Q], row) + head * 2 * SL_ATTN_DIM,
                        attention->q_norm, pos,
                        sl_step_row(step, op->out[OUT_Y], row) + head * SL_ATTN_DIM);
        return;
    }
    head -= attention->n_heads;
    float key[SL_ATTN_DIM];
    norm_and_rotate(step, sl_step_row(step, op->in[IN_K], row) + head * SL_ATTN_DIM,
                    attention->k_norm, pos, key);
    char *page = segment->kv_pages[pos / SL_KV_PAGE];
    step->cpu->kernels.kv_store(
        kv_type(step), key, sl_step_row(step, op->in[IN_V], row) + head * SL_ATTN_DIM,
        pos % SL_KV_PAGE, page + k_offset(step, head), page + v_offset(step, head));
}

static void attend_unit(const sl_cpu_step *step, size_t unit)
{
    const sl_op *op = step->op;
    const sl_attention_args *attention = &op->args.attention;
    size_t row = unit / attention->n_heads, head = unit % attention->n_heads;
    size_t kv_head = head / (attention->n_heads / attention->n_kv_heads);
    const sl_segment *segment = sl_step_segment(step, row);
    float *y = sl_step_row(step, op->out[OUT_Y], row) + head * SL_ATTN_DIM;
    float o[SL_ATTN_DIM];
    step->cpu->kernels.attention(kv_type(step), y, segment->kv_pages, k_offset(step, kv_head),
                                 v_offset(step, kv_head), (size_t)position(segment, row) + 1, o);
    const float *gate = sl_step_row(step, op->in[IN_Q], row) + (head * 2 + 1) * SL_ATTN_DIM;
    step->cpu->kernels.mul_sigmoid(gate, SL_ATTN_DIM, o);
    memcpy(y, o, sizeof o);
}

static void quantise_row(const sl_cpu_step *step, size_t row)
{
    sl_step_quantise(step, step->op->out[OUT_YQ], row,
                     sl_step_row(step, step->op->out[OUT_Y], row));
}

sl_status sl_cpu_attention(const sl_cpu_step *step, sl_error *err)
{
    (void)err;
    const sl_attention_args *attention = &step->op->args.attention;
    size_t rows = step->run->n_rows;
    sl_cpu_for_each(step, rows * ((size_t)attention->n_heads + attention->n_kv_heads),
                    prepare_unit);
    sl_cpu_for_each(step, rows * attention->n_heads, attend_unit);
    if (step->op->out[OUT_YQ] != SL_NO_VALUE)
        sl_cpu_for_each(step, rows, quantise_row);
    return SL_OK;
}
