/* What a plan says about itself: names, costs and the listing of `sluice run --plan`. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "plan/plan.h"

typedef struct op_text {
    const char *name, *in, *out, *synopsis;
} op_text;

static const op_text texts[SL_OP_KIND_COUNT] = {
#define OP_TEXT(name, text, in, out, synopsis) [SL_OP_##name] = {text, in, out, synopsis},
    SL_OPS(OP_TEXT)
#undef OP_TEXT
};

const char *sl_op_name(sl_op_kind kind)
{
    return texts[kind].name;
}

/* ---- costs ---- */

static double value_row_bytes(const sl_plan *plan, sl_value v)
{
    if (v == SL_NO_VALUE)
        return 0;
    const sl_value_info *value = sl_plan_value(plan, v);
    return value->form == SL_FORM_Q8 ? value->n_cols * (1 + 4.0 / 32 + 2.0 / 16)
                                     : value->n_cols * 4.0;
}

static double matrix_bytes(const sl_matrix *m)
{
    return (double)m->row_bytes * m->n_rows;
}

static void add_product(const sl_matrix *m, double rows, sl_op_cost *cost)
{
    const double macs = (double)m->n_rows * m->n_cols * rows;
    cost->flops += 2.0 * macs;
    if (sl_dtype_get(m->dtype)->quantised)
        cost->int8_macs += macs;
}

/* Of one sequence, as the next. A chunk reads its state and, on average, half a tape; borders and
 * tape rows are written once. */
static void gdn_cost(const sl_gdn_args *gdn, const sl_state_shape *shape, double rows, double pos,
                     sl_op_cost *cost)
{
    const double heads = gdn->n_value_heads, square = SL_GDN_DIM * SL_GDN_DIM;
    const double channels = (2.0 * gdn->n_key_heads + heads) * SL_GDN_DIM;
    const double chunks = floor((pos + rows - 1) / SL_GDN_CHUNK) - floor(pos / SL_GDN_CHUNK) + 1;
    const double tape_rows = SL_GDN_CHUNK / 2.0;
    const double tape_row_bytes = (gdn->n_key_heads + heads) * SL_GDN_DIM * 4;
    cost->weight_bytes = channels * SL_CONV_TAPS * 4;
    cost->state_bytes = heads * square * 4 * (chunks + rows / SL_GDN_CHUNK) +
                        tape_row_bytes * (chunks * tape_rows + rows);
    cost->flops = rows * (2 * SL_CONV_TAPS * channels +
                          heads * (4 * square + 8 * tape_rows * SL_GDN_DIM + 2 * square));
    if (shape->gdn_serial) { /* the state read and written once; three sums and a decay a token */
        cost->state_bytes = heads * square * 4 * 2;
        cost->flops = rows * (2 * SL_CONV_TAPS * channels + heads * 7 * square);
    }
}

static void attention_cost(const sl_attention_args *attention, const sl_state_shape *shape,
                           double rows, double pos, sl_op_cost *cost)
{
    double keys = rows * pos + rows * (rows + 1) / 2; /* seen by all rows together */
    cost->state_bytes =
        (pos + rows) * attention->n_kv_heads * 2 * SL_ATTN_DIM * (shape->kv_f32 ? 4 : 2);
    cost->flops = 4.0 * SL_ATTN_DIM * attention->n_heads * keys;
}

static void experts_cost(const sl_experts_args *experts, double rows, sl_op_cost *cost)
{
    double chosen = rows * experts->top_k;
    double distinct = chosen < experts->gate.n_stack ? chosen : experts->gate.n_stack;
    cost->weight_bytes = distinct * (matrix_bytes(&experts->gate) + matrix_bytes(&experts->up) +
                                     matrix_bytes(&experts->down));
    add_product(&experts->gate, chosen, cost);
    add_product(&experts->up, chosen, cost);
    add_product(&experts->down, chosen, cost);
}

static void per_sequence(double n_sequences, sl_op_cost *cost)
{
    cost->state_bytes *= n_sequences;
    cost->flops *= n_sequences;
}

sl_op_cost sl_plan_op_cost_of(const sl_plan *plan, size_t i, const sl_workload *work)
{
    const sl_op *op = sl_plan_op(plan, i);
    const double rows = (double)work->n_sequences * work->n_rows;
    sl_op_cost cost = {0};
    for (int k = 0; k < SL_OP_MAX_IN; k++)
        cost.activation_bytes += rows * value_row_bytes(plan, op->in[k]);
    for (int k = 0; k < SL_OP_MAX_OUT; k++)
        cost.activation_bytes += rows * value_row_bytes(plan, op->out[k]);
    switch (op->kind) {
    case SL_OP_EMBED:
        cost.weight_bytes = (double)op->args.matrix.row_bytes * rows;
        break;
    case SL_OP_PROJECT:
        cost.weight_bytes = matrix_bytes(&op->args.matrix);
        add_product(&op->args.matrix, rows, &cost);
        break;
    case SL_OP_HEAD:
        if (work->n_logits == 0)
            break;
        cost.weight_bytes = matrix_bytes(&op->args.matrix);
        add_product(&op->args.matrix, work->n_logits, &cost);
        break;
    case SL_OP_GDN:
        gdn_cost(&op->args.gdn, sl_plan_shape(plan), work->n_rows, work->pos, &cost);
        per_sequence(work->n_sequences, &cost);
        break;
    case SL_OP_ATTENTION:
        attention_cost(&op->args.attention, sl_plan_shape(plan), work->n_rows, work->pos, &cost);
        per_sequence(work->n_sequences, &cost);
        break;
    case SL_OP_EXPERTS:
        experts_cost(&op->args.experts, rows, &cost);
        break;
    default: /* elementwise: the activation bytes are what matters */
        break;
    }
    return cost;
}

sl_op_cost sl_plan_op_cost(const sl_plan *plan, size_t i, uint32_t n_rows, uint32_t pos)
{
    const sl_workload work = {.n_sequences = 1, .n_rows = n_rows, .pos = pos, .n_logits = 1};
    return sl_plan_op_cost_of(plan, i, &work);
}

sl_op_cost sl_plan_cost(const sl_plan *plan, const sl_workload *work)
{
    sl_op_cost sum = {0};
    for (size_t i = 0; i < sl_plan_op_count(plan); i++) {
        const sl_op_cost cost = sl_plan_op_cost_of(plan, i, work);
        sum.weight_bytes += cost.weight_bytes;
        sum.activation_bytes += cost.activation_bytes;
        sum.state_bytes += cost.state_bytes;
        sum.flops += cost.flops;
        sum.int8_macs += cost.int8_macs;
    }
    return sum;
}

/* ---- listing ---- */

static sl_status append_operands(const sl_plan *plan, const char *names, const sl_value *values,
                                 int n, sl_buf *out, sl_error *err)
{
    const char *name = names;
    for (int i = 0; i < n && *name; name += strspn(name, " |")) {
        size_t length = strcspn(name, " ");
        sl_value v = values[i++];
        if (v != SL_NO_VALUE) {
            const sl_value_info *value = sl_plan_value(plan, v);
            SL_TRY(sl_buf_printf(out, err, " %.*s=v%u[%u]%s", (int)length, name, v, value->n_cols,
                                 value->form == SL_FORM_Q8 ? "q8" : ""));
        }
        name += length;
    }
    return SL_OK;
}

static sl_status append_matrix(const sl_matrix *m, sl_buf *out, sl_error *err)
{
    SL_TRY(sl_buf_printf(out, err, " W=%s[%u x %u", sl_dtype_get(m->dtype)->name, m->n_rows,
                         m->n_cols));
    if (m->n_stack > 1)
        SL_TRY(sl_buf_printf(out, err, " x %u", m->n_stack));
    return sl_buf_append_str(out, "]", err);
}

static sl_status append_op(const sl_plan *plan, size_t i, uint32_t n_rows, uint32_t pos,
                           sl_buf *out, sl_error *err)
{
    const sl_op *op = sl_plan_op(plan, i);
    const op_text *text = &texts[op->kind];
    sl_op_cost cost = sl_plan_op_cost(plan, i, n_rows, pos);
    double bytes = cost.weight_bytes + cost.activation_bytes + cost.state_bytes;
    char layer[16] = "-";
    if (op->layer >= 0)
        snprintf(layer, sizeof layer, "%d", op->layer);
    SL_TRY(sl_buf_printf(out, err, "%4zu %5s  %-10s %10.1f %10.2f ", i, layer, text->name,
                         bytes / 1e3, cost.flops / 1e6));
    SL_TRY(append_operands(plan, text->in, op->in, SL_OP_MAX_IN, out, err));
    SL_TRY(sl_buf_append_str(out, " ->", err));
    SL_TRY(append_operands(plan, text->out, op->out, SL_OP_MAX_OUT, out, err));
    if (op->kind == SL_OP_EMBED || op->kind == SL_OP_PROJECT || op->kind == SL_OP_HEAD)
        SL_TRY(append_matrix(&op->args.matrix, out, err));
    if (op->kind == SL_OP_EXPERTS)
        SL_TRY(append_matrix(&op->args.experts.gate, out, err));
    if (op->tap)
        SL_TRY(sl_buf_printf(out, err, "  (%s)", op->tap));
    return sl_buf_append_str(out, "\n", err);
}

sl_status sl_plan_dump(const sl_plan *plan, uint32_t n_rows, uint32_t pos, sl_buf *out,
                       sl_error *err)
{
    SL_TRY(sl_buf_printf(out, err,
                         "plan %s: %zu ops, %zu values, capacity %u rows, arena %.1f MB\n"
                         "costs for %u row%s at position %u\n"
                         "  op layer  name               kB     Mflop  operands\n",
                         sl_plan_name(plan), sl_plan_op_count(plan), sl_plan_value_count(plan),
                         sl_plan_capacity(plan), (double)sl_plan_arena_bytes(plan) / 1e6, n_rows,
                         n_rows == 1 ? "" : "s", pos));
    double bytes = 0, flops = 0;
    bool used[SL_OP_KIND_COUNT] = {false};
    for (size_t i = 0; i < sl_plan_op_count(plan); i++) {
        SL_TRY(append_op(plan, i, n_rows, pos, out, err));
        sl_op_cost cost = sl_plan_op_cost(plan, i, n_rows, pos);
        bytes += cost.weight_bytes + cost.activation_bytes + cost.state_bytes;
        flops += cost.flops;
        used[sl_plan_op(plan, i)->kind] = true;
    }
    SL_TRY(sl_buf_printf(out, err, "total: %.3f MB, %.3f Mflop\n\n", bytes / 1e6, flops / 1e6));
    for (size_t kind = 0; kind < SL_OP_KIND_COUNT; kind++) {
        if (used[kind])
            SL_TRY(sl_buf_printf(out, err, "%-10s  %s\n", texts[kind].name, texts[kind].synopsis));
    }
    return SL_OK;
}
