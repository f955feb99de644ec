/* Ops that one kernel can do together: products that read one activation, with the norm before
 * them, with SwiGLU when they are gate and up, with the sum into the residual stream; or that sum
 * and the norm after it. The plan stays what it is: this is only how it is carried out.
 *
 * Only for runs of few rows, whose values have places of their own: in the arena, what an op reads
 * last may lie where the next one writes, and blocks of one kernel do not wait for each other. */
#ifdef SL_CUDA

#include "backend/cuda/cuda_internal.h"

static const sl_op *op_at(const sl_cuda_step *s, uint32_t i)
{
    return i < sl_plan_op_count(s->plan) ? sl_plan_op(s->plan, i) : NULL;
}

static const sl_cu_matrix *quantised_matrix(const sl_op *op)
{
    const sl_cu_matrix *w = op->args.matrix.packed;
    return sl_cu_is_quantised(w) ? w : NULL;
}

/* Whether anyone after op `last` still reads the value. */
static bool is_read_after(const sl_cuda_step *s, sl_value v, uint32_t last)
{
    return v != SL_NO_VALUE && sl_plan_value(s->plan, v)->last_op > last;
}

/* Products of the quantised value from op `i` on, as many as a step takes. */
static uint32_t take_products(const sl_cuda_step *s, uint32_t i, sl_value q8, sl_cu_step *out)
{
    const sl_op *op;
    while (out->n_targets < SL_CU_STEP_TARGETS && (op = op_at(s, i)) != NULL &&
           op->kind == SL_OP_PROJECT && op->in[0] == q8 && quantised_matrix(op)) {
        out->targets[out->n_targets++] =
            (sl_cu_target){.w = *quantised_matrix(op),
                           .y = sl_cuda_f32(s, op->out[0]),
                           .y_stride = sl_plan_value(s->plan, op->out[0])->n_cols};
        i++;
    }
    return i;
}

/* SwiGLU of the two products just taken, which nobody else reads. */
static uint32_t take_swiglu(const sl_cuda_step *s, uint32_t i, sl_cu_step *out)
{
    const sl_op *op = op_at(s, i);
    if (!op || op->kind != SL_OP_SWIGLU || out->n_targets != 2)
        return i;
    const sl_op *gate = op_at(s, i - 2), *up = op_at(s, i - 1);
    if (op->in[0] != gate->out[0] || op->in[1] != up->out[0] || is_read_after(s, gate->out[0], i) ||
        is_read_after(s, up->out[0], i) || out->targets[0].w.n_rows != out->targets[1].w.n_rows)
        return i;
    out->swiglu = 1;
    out->act = is_read_after(s, op->out[0], i) ? sl_cuda_f32(s, op->out[0]) : NULL;
    out->act_q8 = sl_cuda_q8(s, op->out[1]);
    return i + 1;
}

/* The sum into the residual stream of the product just taken, which nobody else reads. */
static uint32_t take_add(const sl_cuda_step *s, uint32_t i, sl_cu_step *out)
{
    const sl_op *op = op_at(s, i);
    if (!op || op->kind != SL_OP_ADD || out->n_targets != 1)
        return i;
    const sl_value y = op_at(s, i - 1)->out[0];
    if (op->in[1] != y || op->in[0] == y || is_read_after(s, y, i))
        return i;
    out->add = 1;
    out->targets[0].y = sl_cuda_f32(s, op->in[0]);
    out->flags = s->rows.flags;
    out->mark = i + 1;
    return i + 1;
}

/* The norm at op `i` as the input of the products after it. */
static void take_norm(const sl_cuda_step *s, uint32_t i, sl_cu_step *out)
{
    const sl_op *norm = op_at(s, i);
    out->n_cols = sl_plan_value(s->plan, norm->in[0])->n_cols;
    out->x = sl_cuda_f32(s, norm->in[0]);
    out->norm = sl_cuda_vector(s, i, 0);
    out->eps = norm->args.norm.eps;
}

/* ---- weights ahead ---- */

static size_t weight_bytes(const sl_cu_matrix *w)
{
    return (w->n_rows + 15) / 16 * w->panel_bytes;
}

/* Names the weights of the second group of products from op `i` on, as far as they and those of the
 * first one will still be in the second cache when they are wanted. */
static void look_ahead(const sl_cuda_step *s, uint32_t i, sl_cu_step *out)
{
    enum { BUDGET = 24 << 20 };
    size_t left = BUDGET;
    uint32_t group = 0, n = 0;
    sl_value input = SL_NO_VALUE;
    const sl_op *op;
    for (; (op = op_at(s, i)) != NULL && n < SL_CU_STEP_AHEAD && left > 0; i++) {
        const bool product = op->kind == SL_OP_PROJECT || op->kind == SL_OP_HEAD;
        const sl_cu_matrix *w = product ? quantised_matrix(op) : NULL;
        if (!w)
            continue;
        group += op->in[0] != input;
        input = op->in[0];
        const size_t n_bytes = sl_min_size(weight_bytes(w), left);
        left -= n_bytes;
        if (group == 2)
            out->ahead[n++] = (sl_cu_ahead){w->data, n_bytes};
        if (group > 2)
            return;
    }
}

/* ---- groups ---- */

/* x + y and its norm. */
static uint32_t run_add_norm(const sl_cuda_step *s)
{
    const sl_op *add = s->op, *norm = op_at(s, s->op_index + 1);
    if (!norm || norm->kind != SL_OP_NORM || norm->in[0] != add->in[0])
        return 0;
    const uint32_t n = sl_plan_value(s->plan, norm->in[0])->n_cols;
    sl_cu_norm(&s->cuda->queue, sl_cuda_f32(s, norm->in[0]), sl_cuda_f32(s, add->in[1]),
               sl_cuda_vector(s, s->op_index + 1, 0), s->run->n_rows, n, norm->args.norm.eps,
               sl_cuda_f32(s, norm->out[0]), n, sl_cuda_q8(s, norm->out[1]), s->rows.flags,
               s->op_index + 1);
    return 2;
}

/* Products from op `i` on, of what `input` says. */
static uint32_t run_products(const sl_cuda_step *s, uint32_t i, sl_value q8, sl_cu_step *step)
{
    uint32_t end = take_products(s, i, q8, step);
    if (step->n_targets == 0)
        return 0;
    end = take_swiglu(s, end, step);
    if (!step->swiglu)
        end = take_add(s, end, step);
    const sl_op *norm = s->op; /* where it is one, all that read it must be here */
    if (step->norm &&
        (is_read_after(s, norm->out[0], end - 1) || is_read_after(s, norm->out[1], end - 1)))
        return 0;
    look_ahead(s, end, step);
    if (sl_cu_row_fits(step))
        sl_cu_run_row(&s->cuda->queue, step);
    else if (sl_cu_step_fits(&s->cuda->queue, step))
        sl_cu_run_step(&s->cuda->queue, step);
    else
        return 0;
    return end - s->op_index;
}

/* The head at op `i`, when every row has logits. */
static sl_status run_head(const sl_cuda_step *s, uint32_t i, sl_cu_step *step, uint32_t *n_ops,
                          sl_error *err)
{
    const sl_op *head = op_at(s, i);
    const sl_cu_matrix *w = quantised_matrix(head);
    if (!w || s->run->n_logit_rows != s->run->n_rows)
        return SL_OK;
    step->n_cols = w->n_cols;
    step->n_targets = 1;
    step->targets[0] = (sl_cu_target){.w = *w, .y = sl_cuda_logits(s), .y_stride = w->n_rows};
    if (sl_cu_batch_head_fits(&s->cuda->queue, step))
        sl_cu_run_batch_head(&s->cuda->queue, step);
    else if (sl_cu_head_fits(step))
        sl_cu_run_head(&s->cuda->queue, step);
    else if (sl_cu_step_fits(&s->cuda->queue, step))
        sl_cu_run_step(&s->cuda->queue, step);
    else
        return SL_OK;
    *n_ops = i + 1 - s->op_index;
    return sl_cuda_enqueue_logits(s, i, err);
}

/* The norm and what reads it: products, or the head. */
static sl_status run_norm(const sl_cuda_step *s, uint32_t *n_ops, sl_error *err)
{
    const uint32_t i = s->op_index;
    const sl_op *next = op_at(s, i + 1), *after = op_at(s, i + 2);
    if (!next || s->op->out[1] == SL_NO_VALUE || s->run->n_rows > SL_CU_NORM_ROWS)
        return SL_OK;
    sl_cu_step step = {.n_rows = s->run->n_rows};
    take_norm(s, i, &step);
    if (next->kind == SL_OP_PROJECT)
        *n_ops = run_products(s, i + 1, s->op->out[1], &step);
    else if (next->kind == SL_OP_KEEP && after && after->kind == SL_OP_HEAD &&
             after->in[0] == s->op->out[1] && !sl_cuda_wants_hidden(s->run))
        return run_head(s, i + 2, &step, n_ops, err);
    return SL_OK;
}

sl_status sl_cuda_run_fused(const sl_cuda_step *s, uint32_t *n_ops, sl_error *err)
{
    const sl_op *op = s->op;
    *n_ops = 0;
    if (s->run->n_rows > SL_CU_STEP_ROWS) {
        *n_ops = sl_cuda_run_fused_many(s);
        return SL_OK;
    }
    if (op->kind == SL_OP_ADD)
        *n_ops = run_add_norm(s);
    if (op->kind == SL_OP_NORM)
        return run_norm(s, n_ops, err);
    if (op->kind != SL_OP_PROJECT && op->kind != SL_OP_HEAD)
        return SL_OK;
    if (op->kind == SL_OP_PROJECT && (*n_ops = sl_cuda_run_mixture(s)) > 0)
        return SL_OK;
    if (sl_plan_value(s->plan, op->in[0])->form != SL_FORM_Q8)
        return SL_OK;
    sl_cu_step step = {.n_rows = s->run->n_rows, .q8 = sl_cuda_q8(s, op->in[0])};
    if (op->kind == SL_OP_HEAD)
        return run_head(s, s->op_index, &step, n_ops, err);
    step.n_cols = op->args.matrix.n_cols;
    *n_ops = run_products(s, s->op_index, op->in[0], &step);
    return SL_OK;
}

#endif
