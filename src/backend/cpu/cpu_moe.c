/* ROUTE and EXPERTS: the mixture of experts. A row's results are added in selection order, so no
 * order depends on threads or neighbours.
 *
 * Packed experts meet all their rows at once: the (row, chosen expert) pairs are sorted by expert,
 * and threads share the panels of all experts by the work that these have. Experts read from the
 * file take every pair as a unit of its own. */
#include <math.h>
#include <string.h>

#include "backend/cpu/cpu_internal.h"
#include "backend/cpu/kernels/panels.h"

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
enum { OUT_Y, OUT_GATE, OUT_UP, OUT_ACT, OUT_DOWN, OUT_ORDER };

/* ---- experts in panels ---- */

/* The pairs of expert e are pairs[begin[e] .. begin[e + 1]), ascending. */
typedef struct sorted_pairs {
    uint32_t *begin, *pairs;
} sorted_pairs;

static sorted_pairs pairs_of(const sl_cpu_step *step)
{
    uint32_t *order = sl_plan_u32(step->plan, step->arena, step->op->out[OUT_ORDER]);
    return (sorted_pairs){order, order + step->op->args.experts.gate.n_stack + 1};
}

static void sort_pairs(const sl_cpu_step *step)
{
    const sl_experts_args *experts = &step->op->args.experts;
    const uint32_t n_pairs = step->run->n_rows * experts->top_k;
    const uint32_t *ids = sl_plan_u32(step->plan, step->arena, step->op->in[IN_IDS]);
    const sorted_pairs sorted = pairs_of(step);
    const uint32_t n = experts->gate.n_stack;
    memset(sorted.begin, 0, (n + 1) * sizeof *sorted.begin);
    for (uint32_t pair = 0; pair < n_pairs; pair++)
        sorted.begin[ids[pair] + 1]++;
    for (uint32_t e = 0; e < n; e++)
        sorted.begin[e + 1] += sorted.begin[e];
    for (uint32_t pair = 0; pair < n_pairs; pair++)
        sorted.pairs[sorted.begin[ids[pair]]++] = pair;
    memmove(sorted.begin + 1, sorted.begin, n * sizeof *sorted.begin);
    sorted.begin[0] = 0;
}

/* Panels [begin, end) of one expert. */
typedef void (*expert_unit)(const sl_cpu_step *step, uint32_t expert, size_t begin, size_t end);

typedef struct expert_work {
    const sl_cpu_step *step;
    size_t n_panels;
    expert_unit unit;
} expert_work;

/* Reading a panel costs about as much as multiplying it with so many rows. */
enum { READ_COST = 8 };

/* The first panel of an expert that lies at or behind a place in the work of all: the expert's
 * panels begin at `base` and have `cost` each. */
static size_t panel_at(uint64_t place, uint64_t base, uint64_t cost, size_t n_panels)
{
    const uint64_t panel = place <= base ? 0 : (place - base + cost - 1) / cost;
    return panel < n_panels ? (size_t)panel : n_panels;
}

static void expert_task(void *context, unsigned i, unsigned n)
{
    const expert_work *work = context;
    const uint32_t *begin = pairs_of(work->step).begin;
    const uint32_t n_experts = work->step->op->args.experts.gate.n_stack;
    uint64_t total = 0, base = 0;
    for (uint32_t e = 0; e < n_experts; e++)
        total += begin[e + 1] > begin[e] ? begin[e + 1] - begin[e] + READ_COST : 0;
    total *= work->n_panels;
    const uint64_t first = total * i / n, last = total * (i + 1) / n;
    for (uint32_t e = 0; e < n_experts; e++) {
        if (begin[e + 1] == begin[e])
            continue;
        const uint64_t cost = begin[e + 1] - begin[e] + READ_COST;
        const size_t from = panel_at(first, base, cost, work->n_panels);
        const size_t to = panel_at(last, base, cost, work->n_panels);
        if (from < to)
            work->unit(work->step, e, from, to);
        base += cost * work->n_panels;
    }
}

static void for_experts(const sl_cpu_step *step, uint32_t n_outputs, expert_unit unit)
{
    expert_work work = {.step = step, .n_panels = sl_panel_count(n_outputs), .unit = unit};
    sl_cpu_region(step, expert_task, &work);
}

/* y[pair] = W x for the pairs of an expert; x has a row for each pair or one for each row. */
static void multiply_pairs(const sl_cpu_step *step, const sl_matrix *w, uint32_t expert,
                           size_t begin, size_t end, sl_product_rows x, bool row_per_pair, float *y)
{
    const sorted_pairs sorted = pairs_of(step);
    const uint32_t top_k = step->op->args.experts.top_k;
    uint32_t index[SL_ROWS_AT_ONCE];
    float *to[SL_ROWS_AT_ONCE];
    x.index = index;
    for (size_t at = sorted.begin[expert]; at < sorted.begin[expert + 1]; at += x.n) {
        x.n = sl_min_size(SL_ROWS_AT_ONCE, sorted.begin[expert + 1] - at);
        for (size_t i = 0; i < x.n; i++) {
            const uint32_t pair = sorted.pairs[at + i];
            index[i] = row_per_pair ? pair : pair / top_k;
            to[i] = y + (size_t)pair * w->n_rows;
        }
        sl_cpu_multiply(step->cpu, w->packed, expert, begin, end, &x, to);
    }
}

static void gate_up_unit(const sl_cpu_step *step, uint32_t expert, size_t begin, size_t end)
{
    const sl_op *op = step->op;
    const sl_experts_args *experts = &op->args.experts;
    const sl_product_rows x = sl_step_product_rows(step, op->in[IN_X]);
    multiply_pairs(step, &experts->gate, expert, begin, end, x, false,
                   sl_step_row(step, op->out[OUT_GATE], 0));
    multiply_pairs(step, &experts->up, expert, begin, end, x, false,
                   sl_step_row(step, op->out[OUT_UP], 0));
}

/* The activations of a row's experts lie one after the other, in whole blocks. */
static void down_unit(const sl_cpu_step *step, uint32_t expert, size_t begin, size_t end)
{
    const sl_op *op = step->op;
    const sl_experts_args *experts = &op->args.experts;
    sl_product_rows act = sl_step_product_rows(step, op->out[OUT_ACT]);
    act.stride = experts->gate.n_rows;
    act.n_blocks /= experts->top_k;
    multiply_pairs(step, &experts->down, expert, begin, end, act, true,
                   sl_step_row(step, op->out[OUT_DOWN], 0));
}

/* ---- experts in the file ---- */

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
    const bool packed = experts->gate.packed && experts->up.packed && experts->down.packed;
    if (packed) {
        sort_pairs(step);
        for_experts(step, experts->gate.n_rows, gate_up_unit);
    } else {
        sl_cpu_for_ranges(step, pairs * experts->gate.n_rows, 16, gate_up_range);
    }
    sl_cpu_for_each(step, pairs, swiglu_pair);
    if (packed)
        for_experts(step, experts->down.n_rows, down_unit);
    else
        sl_cpu_for_ranges(step, pairs * experts->down.n_rows, 16, down_range);
    sl_cpu_for_each(step, rows, combine_row);
    return SL_OK;
}
