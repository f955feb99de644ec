/* EMBED, PROJECT, HEAD: rows of weights times rows of activations. Threads share the outputs; a
 * weight row is read once for all rows of the run. */
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

/* Panels [begin, end) of a product. */
static void project_panels(const sl_cpu_step *step, size_t begin, size_t end)
{
    const sl_panels *w = step->op->args.matrix.packed;
    sl_product_rows x = sl_step_product_rows(step, step->op->in[0]);
    uint32_t index[SL_ROWS_AT_ONCE];
    float *y[SL_ROWS_AT_ONCE];
    x.index = index;
    for (size_t first = 0; first < step->run->n_rows; first += SL_ROWS_AT_ONCE) {
        x.n = sl_min_size(SL_ROWS_AT_ONCE, step->run->n_rows - first);
        for (size_t i = 0; i < x.n; i++) {
            index[i] = (uint32_t)(first + i);
            y[i] = sl_step_row(step, step->op->out[0], first + i);
        }
        sl_cpu_multiply(step->cpu, w, 0, begin, end, &x, y);
    }
}

static void head_panels(const sl_cpu_step *step, size_t begin, size_t end)
{
    const sl_run *run = step->run;
    const sl_panels *w = step->op->args.matrix.packed;
    sl_product_rows x = sl_step_product_rows(step, step->op->in[0]);
    for (size_t first = 0; first < run->n_logit_rows; first += SL_ROWS_AT_ONCE) {
        x.n = sl_min_size(SL_ROWS_AT_ONCE, run->n_logit_rows - first);
        x.index = run->logit_rows + first;
        sl_cpu_multiply(step->cpu, w, 0, begin, end, &x, run->logits + first);
    }
}

/* Shares of panels, in pairs where there are enough of them. */
static void for_panels(const sl_cpu_step *step, sl_cpu_range range)
{
    const size_t n_panels = sl_panel_count(step->op->args.matrix.n_rows);
    const size_t n_threads = sl_pool_threads(step->cpu->pool);
    sl_cpu_for_ranges(step, n_panels, n_panels >= 2 * n_threads ? 2 : 1, range);
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
        for_panels(step, project_panels);
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
        for_panels(step, head_panels);
    else
        sl_cpu_for_ranges(step, step->op->args.matrix.n_rows, 16, head_range);
    return SL_OK;
}
