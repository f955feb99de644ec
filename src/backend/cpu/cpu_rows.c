/* The ops that treat each row by itself: NORM, SWIGLU, ADD, ADD_GATED, KEEP, MTP_INPUT. */
#include <string.h>

#include "backend/cpu/cpu_internal.h"

/* Rounds x[n], the columns from `first` of row `row` of out[0], into out[1] when that is wanted. */
static void quantise_result(const sl_cpu_step *step, size_t row, size_t first, size_t n,
                            const float *x)
{
    if (step->op->out[1] != SL_NO_VALUE)
        sl_step_quantise_part(step, step->op->out[1], row, first, n, x);
}

/* Rows whose floats nobody reads are all made in the place of the range's first one, which stays
 * in the inner cache. */
static void norm_rows(const sl_cpu_step *step, size_t begin, size_t end)
{
    const sl_op *op = step->op;
    const size_t n = sl_step_cols(step, op->in[0]);
    const bool is_read = sl_step_is_read(step, op->out[0]);
    for (size_t row = begin; row < end; row++) {
        float *y = sl_step_row(step, op->out[0], is_read ? row : begin);
        step->cpu->kernels.rms_norm(sl_step_row(step, op->in[0], row), op->args.norm.w, n,
                                    op->args.norm.eps, y);
        quantise_result(step, row, 0, n, y);
    }
}

sl_status sl_cpu_norm(const sl_cpu_step *step, sl_error *err)
{
    (void)err;
    sl_cpu_for_ranges(step, step->run->n_rows, 1, norm_rows);
    return SL_OK;
}

/* Columns that make a thread's work of a row worth waking it; a multiple of 32. */
enum { SWIGLU_COLUMNS = 4096 };

static size_t swiglu_pieces(const sl_cpu_step *step)
{
    return (sl_step_cols(step, step->op->in[0]) + SWIGLU_COLUMNS - 1) / SWIGLU_COLUMNS;
}

static void swiglu_range(const sl_cpu_step *step, size_t begin, size_t end)
{
    const sl_op *op = step->op;
    const size_t n_cols = sl_step_cols(step, op->in[0]), n_pieces = swiglu_pieces(step);
    const bool is_read = sl_step_is_read(step, op->out[0]);
    for (size_t unit = begin; unit < end; unit++) {
        const size_t row = unit / n_pieces, first = unit % n_pieces * SWIGLU_COLUMNS;
        const size_t n = sl_min_size(n_cols - first, SWIGLU_COLUMNS);
        /* Two ranges may begin in one row: only whole rows are made in the first one's place. */
        const bool in_own_row = is_read || n_pieces > 1;
        float *y = sl_step_row(step, op->out[0], in_own_row ? row : begin) + first;
        step->cpu->kernels.swiglu(sl_step_row(step, op->in[0], row) + first,
                                  sl_step_row(step, op->in[1], row) + first, n, y);
        quantise_result(step, row, first, n, y);
    }
}

sl_status sl_cpu_swiglu(const sl_cpu_step *step, sl_error *err)
{
    (void)err;
    sl_cpu_for_ranges(step, step->run->n_rows * swiglu_pieces(step), 1, swiglu_range);
    return SL_OK;
}

/* The residual stream is where every layer's result arrives, so this is the place to notice values
 * that are not finite. */
static void add_row(const sl_cpu_step *step, size_t row)
{
    const sl_op *op = step->op;
    size_t n = sl_step_cols(step, op->in[0]);
    float *x = sl_step_row(step, op->in[0], row);
    step->cpu->kernels.add(x, sl_step_row(step, op->in[1], row), n, x);
    if (!step->cpu->kernels.all_finite(x, n))
        step->run->row_flags[row] = 1;
}

sl_status sl_cpu_add(const sl_cpu_step *step, sl_error *err)
{
    (void)err;
    sl_cpu_for_each(step, step->run->n_rows, add_row);
    sl_step_note_faults(step);
    return SL_OK;
}

/* x + sigmoid(gate) * y: the product is rounded before the sum. */
static void add_gated_row(const sl_cpu_step *step, size_t row)
{
    const sl_op *op = step->op;
    const sl_cpu_kernels *k = &step->cpu->kernels;
    float *x = sl_step_row(step, op->in[0], row);
    float *y = sl_step_row(step, op->in[2], row);
    float factor = 1.0f;
    k->mul_sigmoid(sl_step_row(step, op->in[1], row), 1, &factor);
    const size_t n = sl_step_cols(step, op->in[0]);
    k->scale(factor, n, y);
    k->add(x, y, n, x);
}

sl_status sl_cpu_add_gated(const sl_cpu_step *step, sl_error *err)
{
    (void)err;
    sl_cpu_for_each(step, step->run->n_rows, add_gated_row);
    return SL_OK;
}

static void keep_row(const sl_cpu_step *step, size_t row)
{
    if (step->run->hidden_out[row])
        memcpy(step->run->hidden_out[row], sl_step_row(step, step->op->in[0], row),
               sl_step_cols(step, step->op->in[0]) * sizeof(float));
}

sl_status sl_cpu_keep(const sl_cpu_step *step, sl_error *err)
{
    (void)err;
    if (step->run->hidden_out)
        sl_cpu_for_each(step, step->run->n_rows, keep_row);
    return SL_OK;
}

static void mtp_input_row(const sl_cpu_step *step, size_t row)
{
    const sl_op *op = step->op;
    const sl_mtp_input_args *args = &op->args.mtp_input;
    const sl_cpu_kernels *k = &step->cpu->kernels;
    size_t n = sl_step_cols(step, op->in[0]);
    float *y = sl_step_row(step, op->out[0], row);
    k->rms_norm(sl_step_row(step, op->in[0], row), args->x_norm, n, args->eps, y);
    k->rms_norm(step->run->hidden_in + row * n, args->hidden_norm, n, args->eps, y + n);
    quantise_result(step, row, 0, 2 * n, y);
}

sl_status sl_cpu_mtp_input(const sl_cpu_step *step, sl_error *err)
{
    (void)err;
    sl_cpu_for_each(step, step->run->n_rows, mtp_input_row);
    return SL_OK;
}
