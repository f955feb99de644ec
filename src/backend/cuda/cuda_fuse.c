/* Ops that one kernel can do together: the sum into the residual stream and the norm after it;
 * products that read one activation, with SwiGLU when they are gate and up. The plan stays what it
 * is: this is only how it is carried out.
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
    return w->kind == SL_CU_PLAIN || w->kind == SL_CU_GENERAL ? w : NULL;
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
    out->act = sl_cuda_f32(s, op->out[0]);
    out->act_q8 = sl_cuda_q8(s, op->out[1]);
    return i + 1;
}

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

static uint32_t run_products(const sl_cuda_step *s)
{
    sl_cu_step step = {.n_rows = s->run->n_rows,
                       .n_cols = s->op->args.matrix.n_cols,
                       .q8 = sl_cuda_q8(s, s->op->in[0])};
    uint32_t end = take_products(s, s->op_index, s->op->in[0], &step);
    if (step.n_targets == 0)
        return 0;
    end = take_swiglu(s, end, &step);
    if (!sl_cu_step_fits(&step))
        return 0;
    sl_cu_run_step(&s->cuda->queue, &step);
    return end - s->op_index;
}

uint32_t sl_cuda_run_fused(const sl_cuda_step *s)
{
    if (s->run->n_rows > SL_CU_STEP_ROWS)
        return 0;
    if (s->op->kind == SL_OP_ADD)
        return run_add_norm(s);
    if (s->op->kind == SL_OP_PROJECT && sl_plan_value(s->plan, s->op->in[0])->form == SL_FORM_Q8)
        return run_products(s);
    return 0;
}

#endif
