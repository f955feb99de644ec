/* EMBED, PROJECT, HEAD: rows of weights times rows of activations. Threads share the outputs; a
 * weight row is read once for all rows of the run. Products of one input that follow one another
 * are one sweep over the panels of all their matrices: one start and one wait instead of several.
 */
#include "backend/cpu/cpu_internal.h"
#include "backend/cpu/kernels/panels.h"

sl_product_input sl_step_input(const sl_cpu_step *step, sl_value v)
{
    sl_product_input x = {.quantised = sl_plan_value(step->plan, v)->form == SL_FORM_Q8};
    if (x.quantised) {
        x.q8 = sl_plan_q8(step->plan, step->arena, v);
    } else {
        x.f32 = sl_plan_f32(step->plan, step->arena, v);
        x.stride = sl_step_cols(step, v);
    }
    return x;
}

float sl_product(const sl_cpu *cpu, const sl_matrix *w, uint32_t stack, size_t out,
                 const sl_product_input *x, size_t row, size_t x_offset)
{
    const uint8_t *weights = sl_matrix_row(w, stack, out);
    if (!x->quantised)
        return cpu->kernels.dot_float[w->dtype](weights, x->f32 + row * x->stride + x_offset,
                                                w->n_cols);
    size_t block = row * x->q8.n_blocks + x_offset / SL_Q8_BLOCK;
    return cpu->kernels.dot_q8[w->dtype](weights, x->q8.q + block * SL_Q8_BLOCK, x->q8.d + block,
                                         x->q8.sums + 2 * block, w->n_cols);
}

static void embed_row(const sl_cpu_step *step, size_t row)
{
    const sl_matrix *table = &step->op->args.matrix;
    sl_dequantise(table->dtype, sl_matrix_row(table, 0, (size_t)step->run->tokens[row]),
                  sl_step_row(step, step->op->out[0], row), table->n_cols);
}

sl_status sl_cpu_embed(const sl_cpu_step *step, sl_error *err)
{
    (void)err;
    sl_cpu_for_each(step, step->run->n_rows, embed_row);
    return SL_OK;
}

/* ---- panels ---- */

sl_product_rows sl_step_product_rows(const sl_cpu_step *step, sl_value v)
{
    const sl_product_input x = sl_step_input(step, v);
    if (!x.quantised)
        return (sl_product_rows){.f32 = x.f32, .stride = x.stride};
    return (sl_product_rows){
        .q = x.q8.q, .d = x.q8.d, .sums = x.q8.sums, .n_blocks = x.q8.n_blocks};
}

enum {
    MOST_TOGETHER = 8,      /* products */
    PIECE_BYTES = 64 << 10, /* that a thread takes at once: a few microseconds of reading */
};

static bool is_read_after(const sl_plan *plan, sl_value v, size_t i)
{
    return sl_plan_value(plan, v)->last_op > i;
}

/* A value that is read for the last time may lie where the next op writes: those of all products
 * must live until the last one is done. */
size_t sl_cpu_products_together(const sl_plan *plan, size_t i)
{
    const sl_op *first = sl_plan_op(plan, i);
    if (first->kind != SL_OP_PROJECT || !first->args.matrix.packed)
        return 1;
    size_t n = 1;
    for (; n < MOST_TOGETHER && i + n < sl_plan_op_count(plan); n++) {
        const sl_op *op = sl_plan_op(plan, i + n);
        bool fits =
            op->kind == SL_OP_PROJECT && op->args.matrix.packed && op->in[0] == first->in[0];
        for (size_t k = 0; k < n && fits; k++)
            fits = is_read_after(plan, sl_plan_op(plan, i + k)->out[0], i + n);
        if (!fits)
            break;
    }
    return n;
}

/* Thread i's own panels of a matrix, in pairs where there are enough of them: more than a few rows
 * meet two panels at once. */
static void own_panels(const sl_op *op, unsigned i, unsigned n, size_t *begin, size_t *end)
{
    const size_t n_panels = sl_panel_count(op->args.matrix.n_rows);
    sl_pool_share(n_panels, n_panels >= 2 * (size_t)n ? 2 : 1, i, n, begin, end);
}

void sl_cpu_product_reads(const sl_cpu_step *step, unsigned i, unsigned n, sl_cpu_ahead *ahead)
{
    const sl_panels *w = step->op->args.matrix.packed;
    if (!w || (step->op->kind == SL_OP_HEAD && step->run->n_logit_rows == 0))
        return;
    size_t begin, end;
    own_panels(step->op, i, n, &begin, &end);
    if (begin < end)
        sl_cpu_will_read(ahead, w->data + begin * w->panel_bytes, (end - begin) * w->panel_bytes);
}

/* Panels of the op times all rows of the run. */
static void project_panels(const sl_cpu_step *step, const sl_op *op, size_t begin, size_t end)
{
    uint32_t index[SL_ROWS_AT_ONCE];
    float *y[SL_ROWS_AT_ONCE];
    sl_product_rows x = sl_step_product_rows(step, op->in[0]);
    x.index = index;
    for (size_t first = 0; first < step->run->n_rows; first += SL_ROWS_AT_ONCE) {
        x.n = sl_min_size(SL_ROWS_AT_ONCE, step->run->n_rows - first);
        for (size_t i = 0; i < x.n; i++) {
            index[i] = (uint32_t)(first + i);
            y[i] = sl_step_row(step, op->out[0], first + i);
        }
        sl_cpu_multiply(step->cpu, op->args.matrix.packed, 0, begin, end, &x, y);
    }
}

static void head_panels(const sl_cpu_step *step, const sl_op *op, size_t begin, size_t end)
{
    const sl_run *run = step->run;
    sl_product_rows x = sl_step_product_rows(step, op->in[0]);
    for (size_t first = 0; first < run->n_logit_rows; first += SL_ROWS_AT_ONCE) {
        x.n = sl_min_size(SL_ROWS_AT_ONCE, run->n_logit_rows - first);
        x.index = run->logit_rows + first;
        sl_cpu_multiply(step->cpu, op->args.matrix.packed, 0, begin, end, &x, run->logits + first);
    }
}

static void multiply_panels(const sl_cpu_step *step, const sl_op *op, size_t begin, size_t end)
{
    if (op->kind == SL_OP_HEAD)
        head_panels(step, op, begin, end);
    else
        project_panels(step, op, begin, end);
}

/* The units of a thread's share are its own panels of the first matrix, then those of the next. */
static void sweep_piece(const sl_cpu_step *step, unsigned from, unsigned n, size_t begin,
                        size_t end)
{
    for (size_t k = 0, before = 0; k < step->n_ops && before < end; k++) {
        const sl_op *op = sl_plan_op(step->plan, step->i_op + k);
        size_t first, last;
        own_panels(op, from, n, &first, &last);
        const size_t own = last - first, at = sl_max_size(begin, before);
        if (at < before + own)
            multiply_panels(step, op, first + (at - before),
                            first + sl_min_size(end - before, own));
        before += own;
    }
}

static void sweep_task(void *context, unsigned i, unsigned n)
{
    const sl_cpu_step *step = context;
    const sl_panels *w = step->op->args.matrix.packed;
    const size_t pairs = PIECE_BYTES / (2 * w->panel_bytes);
    sl_cpu_taker taker = {.i = i, .n = n};
    size_t begin, end;
    while (sl_cpu_take(step, &taker, 2 * sl_max_size(pairs, 1), &begin, &end))
        sweep_piece(step, taker.from, n, begin, end);
}

static void sweep_panels(const sl_cpu_step *step)
{
    const unsigned n_threads = sl_pool_threads(step->cpu->pool);
    for (unsigned i = 0; i < n_threads; i++) {
        size_t total = 0;
        for (size_t k = 0; k < step->n_ops; k++) {
            size_t begin, end;
            own_panels(sl_plan_op(step->plan, step->i_op + k), i, n_threads, &begin, &end);
            total += end - begin;
        }
        sl_cpu_share_out(step, i, 0, total);
    }
    sl_cpu_region(step, sweep_task, (void *)(uintptr_t)step); /* tasks may change what they get */
}

/* ---- rows of the file ---- */

static void project_range(const sl_cpu_step *step, size_t begin, size_t end)
{
    const sl_matrix *w = &step->op->args.matrix;
    sl_product_input x = sl_step_input(step, step->op->in[0]);
    for (size_t out = begin; out < end; out++) {
        for (size_t row = 0; row < step->run->n_rows; row++)
            sl_step_row(step, step->op->out[0], row)[out] =
                sl_product(step->cpu, w, 0, out, &x, row, 0);
    }
}

sl_status sl_cpu_project(const sl_cpu_step *step, sl_error *err)
{
    (void)err;
    if (step->op->args.matrix.packed)
        sweep_panels(step);
    else
        sl_cpu_for_ranges(step, step->op->args.matrix.n_rows, 16, project_range);
    return SL_OK;
}

static void head_range(const sl_cpu_step *step, size_t begin, size_t end)
{
    const sl_run *run = step->run;
    sl_product_input x = sl_step_input(step, step->op->in[0]);
    for (size_t out = begin; out < end; out++) {
        for (size_t i = 0; i < run->n_logit_rows; i++)
            run->logits[i][out] =
                sl_product(step->cpu, &step->op->args.matrix, 0, out, &x, run->logit_rows[i], 0);
    }
}

sl_status sl_cpu_head(const sl_cpu_step *step, sl_error *err)
{
    (void)err;
    if (step->run->n_logit_rows == 0)
        return SL_OK;
    if (step->op->args.matrix.packed)
        sweep_panels(step);
    else
        sl_cpu_for_ranges(step, step->op->args.matrix.n_rows, 16, head_range);
    return SL_OK;
}
