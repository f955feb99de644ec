/* Runs of many rows: products that read one activation as one launch, sums into the residual stream
 * where the product ends, and the products of a feed-forward layer with what lies between them.
 *
 * Values lie in the arena, where what an op reads last may lie where the next one writes. So what
 * is joined here writes either outputs of products, all of which live beside their input, or the
 * residual stream, or memory of its own. */
#ifdef SL_CUDA

#include "backend/cuda/cuda_internal.h"

static const sl_op *op_at(const sl_cuda_step *s, uint32_t i)
{
    return i < sl_plan_op_count(s->plan) ? sl_plan_op(s->plan, i) : NULL;
}

static bool is_read_after(const sl_cuda_step *s, sl_value v, uint32_t last)
{
    return v != SL_NO_VALUE && sl_plan_value(s->plan, v)->last_op > last;
}

/* The op at i where it is a product of the quantised value. */
static const sl_op *product_at(const sl_cuda_step *s, uint32_t i, sl_value q8)
{
    const sl_op *op = op_at(s, i);
    return op && op->kind == SL_OP_PROJECT && op->in[0] == q8 ? op : NULL;
}

static sl_cu_target target_of(const sl_cuda_step *s, const sl_op *op)
{
    return (sl_cu_target){.w = *(const sl_cu_matrix *)op->args.matrix.packed,
                          .y = sl_cuda_f32(s, op->out[0]),
                          .y_stride = sl_plan_value(s->plan, op->out[0])->n_cols};
}

/* Products of one value from op i on; their number. */
static uint32_t take_products(const sl_cuda_step *s, uint32_t i, sl_cu_many *out)
{
    const sl_value q8 = op_at(s, i)->in[0];
    *out = (sl_cu_many){
        .n_rows = s->run->n_rows, .q8 = sl_cuda_q8(s, q8), .scales = s->cuda->many.data};
    const sl_op *op;
    while (out->n_targets < SL_CU_MANY_TARGETS &&
           (op = product_at(s, i + out->n_targets, q8)) != NULL) {
        out->targets[out->n_targets++] = target_of(s, op);
        if (!sl_cu_many_fits(out)) {
            out->n_targets--;
            break;
        }
    }
    return out->n_targets;
}

/* Whether op i adds the product before it, which nobody else reads, to the residual stream. */
static bool take_sum(const sl_cuda_step *s, uint32_t i, sl_cu_many *out)
{
    const sl_op *add = op_at(s, i);
    if (!add || add->kind != SL_OP_ADD || out->n_targets != 1 ||
        add->in[1] != op_at(s, i - 1)->out[0] || is_read_after(s, add->in[1], i))
        return false;
    out->targets[0].y = sl_cuda_f32(s, add->in[0]);
    out->targets[0].y_stride = sl_plan_value(s->plan, add->in[0])->n_cols;
    out->flags = s->rows.flags;
    out->mark = i + 1;
    return true;
}

/* Gate and up at op i, SwiGLU, and the product of what it leaves: only where each is read by the
 * next alone. */
static bool is_feed_forward(const sl_cuda_step *s, uint32_t i)
{
    const sl_op *gate = op_at(s, i), *up = op_at(s, i + 1), *act = op_at(s, i + 2);
    if (!act || act->kind != SL_OP_SWIGLU || act->in[0] != gate->out[0] ||
        act->in[1] != up->out[0] || act->out[1] == SL_NO_VALUE)
        return false;
    return gate->args.matrix.n_rows == up->args.matrix.n_rows &&
           product_at(s, i + 3, act->out[1]) && !is_read_after(s, gate->out[0], i + 2) &&
           !is_read_after(s, up->out[0], i + 2) && !is_read_after(s, act->out[0], i + 2) &&
           !is_read_after(s, act->out[1], i + 3);
}

/* The buffer `many`: scales of what is read, scales and codes of what SwiGLU leaves. */
typedef struct many_layout {
    size_t act_scales, q, d, sums, n_bytes;
    uint32_t act_blocks;
} many_layout;

static uint32_t blocks_of(uint32_t n_cols)
{
    return (n_cols + SL_Q8_BLOCK - 1) / SL_Q8_BLOCK;
}

static many_layout layout_of(const sl_plan *plan, uint32_t n_rows)
{
    uint32_t n_read = 0, n_act = 0;
    for (size_t i = 0; i < sl_plan_op_count(plan); i++) {
        const sl_op *op = sl_plan_op(plan, i);
        if (op->kind != SL_OP_PROJECT && op->kind != SL_OP_SWIGLU)
            continue;
        const uint32_t n = sl_plan_value(plan, op->in[0])->n_cols;
        n_read = n > n_read ? n : n_read;
        n_act = op->kind == SL_OP_SWIGLU && n > n_act ? n : n_act;
    }
    many_layout at = {.act_blocks = blocks_of(n_act)};
    const size_t all = (size_t)n_rows * at.act_blocks;
    at.act_scales = sl_cu_many_scales(n_rows, blocks_of(n_read)) * sizeof(float);
    at.q = at.act_scales + sl_cu_many_scales(n_rows, at.act_blocks) * sizeof(float);
    at.d = at.q + all * SL_Q8_BLOCK;
    at.sums = at.d + all * sizeof(float);
    at.n_bytes = at.sums + all * 2 * sizeof(int16_t);
    return at;
}

size_t sl_cuda_many_bytes(const sl_plan *plan, uint32_t n_rows)
{
    return layout_of(plan, n_rows).n_bytes;
}

static uint32_t run_feed_forward(const sl_cuda_step *s, uint32_t i, sl_cu_many *gate_up)
{
    const many_layout at = layout_of(s->plan, s->run->n_rows);
    char *memory = s->cuda->many.data;
    gate_up->swiglu = 1;
    gate_up->act_q8 = (sl_cu_q8){.q = (int8_t *)(memory + at.q),
                                 .d = (float *)(void *)(memory + at.d),
                                 .sums = (int16_t *)(void *)(memory + at.sums),
                                 .n_blocks = blocks_of(op_at(s, i)->args.matrix.n_rows)};
    gate_up->act_scales = (float *)(void *)(memory + at.act_scales);
    sl_cu_many down = {.n_rows = s->run->n_rows,
                       .q8 = gate_up->act_q8,
                       .scales = gate_up->act_scales,
                       .scales_are_there = gate_up->act_q8.n_blocks % SL_CU_MANY_BLOCKS == 0,
                       .n_targets = 1,
                       .targets = {target_of(s, op_at(s, i + 3))}};
    if (!sl_cu_many_fits(&down))
        return 0;
    const bool sum = take_sum(s, i + 4, &down);
    sl_cu_run_many(&s->cuda->queue, gate_up);
    sl_cu_run_many(&s->cuda->queue, &down);
    return sum ? 5 : 4;
}

/* Products from op i on and what becomes of their results; their number. scales_are_there: those
 * of the input lie where sl_cu_many wants them. */
static uint32_t run_products(const sl_cuda_step *s, uint32_t i, bool scales_are_there)
{
    sl_cu_many many;
    uint32_t n = take_products(s, i, &many);
    if (n == 0)
        return 0;
    many.scales_are_there = scales_are_there;
    if (n == 2 && is_feed_forward(s, i)) {
        const uint32_t all = run_feed_forward(s, i, &many);
        if (all > 0)
            return all;
        many.swiglu = 0;
    }
    if (n == 1 && take_sum(s, i + 1, &many))
        n = 2;
    sl_cu_run_many(&s->cuda->queue, &many);
    return n;
}

/* A norm that is rounded, with the products that read it. */
static uint32_t run_norm(const sl_cuda_step *s)
{
    const uint32_t i = s->op_index, n = sl_plan_value(s->plan, s->op->in[0])->n_cols;
    if (s->op->out[1] == SL_NO_VALUE || !sl_cu_norm_many_fits(n))
        return 0;
    const sl_cu_q8 q8 = sl_cuda_q8(s, s->op->out[1]);
    sl_cu_many many;
    const bool products = product_at(s, i + 1, s->op->out[1]) && take_products(s, i + 1, &many) &&
                          q8.n_blocks % SL_CU_MANY_BLOCKS == 0;
    const bool read = is_read_after(s, s->op->out[0], i);
    sl_cu_norm_many(&s->cuda->queue, sl_cuda_f32(s, s->op->in[0]), sl_cuda_vector(s, i, 0),
                    s->run->n_rows, n, s->op->args.norm.eps,
                    read ? sl_cuda_f32(s, s->op->out[0]) : NULL, n, q8,
                    products ? s->cuda->many.data : NULL);
    return 1 + (products ? run_products(s, i + 1, true) : 0);
}

uint32_t sl_cuda_run_fused_many(const sl_cuda_step *s)
{
    if (s->op->kind == SL_OP_NORM)
        return run_norm(s);
    if (s->op->kind != SL_OP_PROJECT || sl_plan_value(s->plan, s->op->in[0])->form != SL_FORM_Q8)
        return 0;
    return run_products(s, s->op_index, false);
}

#endif
