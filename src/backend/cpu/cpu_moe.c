/* ROUTE and EXPERTS: the mixture of experts. Every (row, chosen expert) pair is a unit of its own;
 * a row's results are added in selection order, so no order depends on threads or neighbours. */
#include <math.h>
#include <string.h>

#include "backend/cpu/cpu_internal.h"

/* ---- ROUTE ---- */

enum { OUT_IDS, OUT_WEIGHTS, OUT_SCRATCH };

static uint32_t *ids_row(const sl_cpu_step *step, sl_value ids, size_t row)
{
    return sl_plan_u32(step->plan, step->arena, ids) + row * sl_step_cols(step, ids);
}

/* Router logits that are not finite choose no experts: the row is marked, and goes on with NaN
 * weights so that nothing downstream can look right. */
static void route_row(const sl_cpu_step *step, size_t row)
{
    const sl_op *op = step->op;
    uint32_t *ids = ids_row(step, op->out[OUT_IDS], row);
    float *weights = sl_step_row(step, op->out[OUT_WEIGHTS], row);
    if (step->cpu->kernels.route(sl_step_row(step, op->in[0], row), sl_step_cols(step, op->in[0]),
                                 op->args.top_k, sl_step_row(step, op->out[OUT_SCRATCH], row), ids,
                                 weights))
        return;
    step->run->row_flags[row] = 1;
    for (uint32_t i = 0; i < op->args.top_k; i++) {
        ids[i] = i;
        weights[i] = NAN;
    }
}

sl_status sl_cpu_route(const sl_cpu_step *step, sl_error *err)
{
    (void)err;
    sl_cpu_for_each(step, step->run->n_rows, route_row);
    sl_step_note_faults(step);
    return SL_OK;
}

/* ---- EXPERTS ---- */

enum { IN_X, IN_IDS, IN_WEIGHTS };
enum { OUT_Y, OUT_GATE, OUT_UP, OUT_ACT, OUT_DOWN };

/* Outputs [begin, end) over all pairs: pair * inner + index. */
static void gate_up_range(const sl_cpu_step *step, size_t begin, size_t end)
{
    const sl_op *op = step->op;
    const sl_experts_args *experts = &op->args.experts;
    size_t inner = experts->gate.n_rows;
    sl_product_input x = sl_step_input(step, op->in[IN_X]);
    const uint32_t *ids = sl_plan_u32(step->plan, step->arena, op->in[IN_IDS]);
    float *gate = sl_step_row(step, op->out[OUT_GATE], 0);
    float *up = sl_step_row(step, op->out[OUT_UP], 0);
    for (size_t i = begin; i < end; i++) {
        size_t pair = i / inner, out = i % inner, row = pair / experts->top_k;
        gate[i] = sl_product(step->cpu, &experts->gate, ids[pair], out, &x, row, 0);
        up[i] = sl_product(step->cpu, &experts->up, ids[pair], out, &x, row, 0);
    }
}

/* First column of a chosen expert's rounded activation: whole blocks for each. */
static size_t act_offset(const sl_experts_args *experts, size_t slot)
{
    size_t inner = experts->gate.n_rows;
    return slot * ((inner + SL_Q8_BLOCK - 1) / SL_Q8_BLOCK * SL_Q8_BLOCK);
}

static void swiglu_pair(const sl_cpu_step *step, size_t pair)
{
    const sl_op *op = step->op;
    const sl_experts_args *experts = &op->args.experts;
    size_t inner = experts->gate.n_rows, row = pair / experts->top_k, slot = pair % experts->top_k;
    float *gate = sl_step_row(step, op->out[OUT_GATE], row) + slot * inner;
    const float *up = sl_step_row(step, op->out[OUT_UP], row) + slot * inner;
    step->cpu->kernels.swiglu(gate, up, inner, gate);
    if (op->out[OUT_ACT] == op->out[OUT_GATE])
        return;
    sl_q8_rows act = sl_plan_q8(step->plan, step->arena, op->out[OUT_ACT]);
    size_t block = row * act.n_blocks + act_offset(experts, slot) / SL_Q8_BLOCK;
    step->cpu->kernels.quantise_row(gate, inner, act.q + block * SL_Q8_BLOCK, act.d + block,
                                    act.sums + 2 * block);
}

static void down_range(const sl_cpu_step *step, size_t begin, size_t end)
{
    const sl_op *op = step->op;
    const sl_experts_args *experts = &op->args.experts;
    size_t n_out = experts->down.n_rows;
    sl_product_input act = sl_step_input(step, op->out[OUT_ACT]);
    const uint32_t *ids = sl_plan_u32(step->plan, step->arena, op->in[IN_IDS]);
    float *down = sl_step_row(step, op->out[OUT_DOWN], 0);
    for (size_t i = begin; i < end; i++) {
        size_t pair = i / n_out, row = pair / experts->top_k, slot = pair % experts->top_k;
        size_t offset = act.quantised ? act_offset(experts, slot) : slot * experts->gate.n_rows;
        down[i] = sl_product(step->cpu, &experts->down, ids[pair], i % n_out, &act, row, offset);
    }
}

static void combine_row(const sl_cpu_step *step, size_t row)
{
    const sl_op *op = step->op;
    size_t n = op->args.experts.down.n_rows;
    float *y = sl_step_row(step, op->out[OUT_Y], row);
    const float *weights = sl_step_row(step, op->in[IN_WEIGHTS], row);
    const float *down = sl_step_row(step, op->out[OUT_DOWN], row);
    memset(y, 0, n * sizeof *y);
    for (size_t slot = 0; slot < op->args.experts.top_k; slot++)
        step->cpu->kernels.axpy(weights[slot], down + slot * n, n, y);
}

sl_status sl_cpu_experts(const sl_cpu_step *step, sl_error *err)
{
    (void)err;
    const sl_experts_args *experts = &step->op->args.experts;
    size_t rows = step->run->n_rows, pairs = rows * experts->top_k;
    sl_cpu_for_ranges(step, pairs * experts->gate.n_rows, 16, gate_up_range);
    sl_cpu_for_each(step, pairs, swiglu_pair);
    sl_cpu_for_ranges(step, pairs * experts->down.n_rows, 16, down_range);
    sl_cpu_for_each(step, rows, combine_row);
    return SL_OK;
}
