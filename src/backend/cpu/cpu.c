/* The CPU backend: walks a plan op by op and splits each over the threads of one pool. */
#include <assert.h>
#include <string.h>

#include "backend/cpu/cpu_internal.h"
#include "base/clock.h"
#include "base/fpenv.h"

static const sl_cpu_runner runners[SL_OP_KIND_COUNT] = {
    [SL_OP_EMBED] = sl_cpu_embed,
    [SL_OP_NORM] = sl_cpu_norm,
    [SL_OP_PROJECT] = sl_cpu_project,
    [SL_OP_GDN] = sl_cpu_gdn,
    [SL_OP_ATTENTION] = sl_cpu_attention,
    [SL_OP_SWIGLU] = sl_cpu_swiglu,
    [SL_OP_ADD] = sl_cpu_add,
    [SL_OP_ROUTE] = sl_cpu_route,
    [SL_OP_EXPERTS] = sl_cpu_experts,
    [SL_OP_ADD_GATED] = sl_cpu_add_gated,
    [SL_OP_MTP_INPUT] = sl_cpu_mtp_input,
    [SL_OP_KEEP] = sl_cpu_keep,
    [SL_OP_HEAD] = sl_cpu_head,
};

/* ---- operands ---- */

bool sl_step_is_read(const sl_cpu_step *step, sl_value v)
{
    return sl_plan_value(step->plan, v)->last_op > step->i_op || (step->run->tap && step->op->tap);
}

void sl_step_quantise_part(const sl_cpu_step *step, sl_value q8, size_t row, size_t first, size_t n,
                           const float *x)
{
    const sl_q8_rows rows = sl_plan_q8(step->plan, step->arena, q8);
    const size_t block = row * rows.n_blocks + first / SL_Q8_BLOCK;
    step->cpu->kernels.quantise_row(x, n, rows.q + row * rows.n_padded + first, rows.d + block,
                                    rows.sums + 2 * block);
}

void sl_step_quantise(const sl_cpu_step *step, sl_value q8, size_t row, const float *x)
{
    sl_step_quantise_part(step, q8, row, 0, sl_step_cols(step, q8), x);
}

const sl_segment *sl_step_segment(const sl_cpu_step *step, size_t row)
{
    const sl_segment *segment = step->run->segments;
    while (row >= (size_t)segment->first_row + segment->n_rows)
        segment++;
    return segment;
}

void sl_step_note_faults(const sl_cpu_step *step)
{
    const sl_run *run = step->run;
    uint8_t *flag;
    while ((flag = memchr(run->row_flags, 1, run->n_rows)) != NULL) {
        *flag = 0;
        size_t row = (size_t)(flag - run->row_flags);
        const sl_segment *segment = sl_step_segment(step, row);
        sl_fault *fault = &run->faults[segment - run->segments];
        if (!fault->found)
            *fault = (sl_fault){.found = true,
                                .layer = step->op->layer,
                                .pos = segment->pos + ((uint32_t)row - segment->first_row),
                                .op = sl_op_name(step->op->kind)};
    }
}

/* ---- the backend ---- */

static void observe(const sl_cpu_step *step, const sl_op *op)
{
    const sl_run *run = step->run;
    if (!run->tap || !op->tap)
        return;
    sl_value v = op->out[0] != SL_NO_VALUE ? op->out[0] : op->in[0];
    if (sl_plan_value(step->plan, v)->form == SL_FORM_F32)
        run->tap(run->tap_context, op->tap, sl_step_row(step, v, 0), run->n_rows,
                 sl_step_cols(step, v));
}

static uint64_t weight_bytes(const sl_op *op)
{
    return op->kind == SL_OP_PROJECT ? op->args.matrix.n_rows * (uint64_t)op->args.matrix.row_bytes
                                     : 1;
}

/* Adds what ops took together to their records, to each by the weights that it read. */
static void add_record(const sl_cpu_step *step, const sl_op_record *all)
{
    sl_op_record left = *all;
    uint64_t bytes = 0;
    for (size_t i = 0; i < step->n_ops; i++)
        bytes += weight_bytes(sl_plan_op(step->plan, step->i_op + i));
    for (size_t i = 0; i < step->n_ops; i++) {
        const uint64_t own = weight_bytes(sl_plan_op(step->plan, step->i_op + i));
        const double part = (double)own / (double)bytes;
        const sl_op_record its = {.wall_ns = (uint64_t)((double)left.wall_ns * part),
                                  .busy_ns = (uint64_t)((double)left.busy_ns * part),
                                  .longest_ns = (uint64_t)((double)left.longest_ns * part)};
        sl_op_record *record = &step->run->records[step->i_op + i];
        record->calls++;
        record->wall_ns += its.wall_ns;
        record->busy_ns += its.busy_ns;
        record->longest_ns += its.longest_ns;
        left.wall_ns -= its.wall_ns;
        left.busy_ns -= its.busy_ns;
        left.longest_ns -= its.longest_ns;
        bytes -= own;
    }
}

static sl_status run_op(sl_cpu_step *step, sl_error *err)
{
    if (!step->run->records)
        return runners[step->op->kind](step, err);
    sl_op_record together = {0};
    step->record = &together;
    const uint64_t start = sl_clock_ns();
    const sl_status status = runners[step->op->kind](step, err);
    together.wall_ns = sl_clock_ns() - start;
    add_record(step, &together);
    return status;
}

static sl_status cpu_run(sl_backend *backend, const sl_plan *plan, void *arena, const sl_run *run,
                         sl_error *err)
{
    sl_cpu_step step = {
        .cpu = (const sl_cpu *)(const void *)backend, .plan = plan, .arena = arena, .run = run};
    sl_status status = SL_OK;
    sl_fpenv env = sl_fpenv_enter();
    for (size_t i = 0; i < sl_plan_op_count(plan) && status == SL_OK; i += step.n_ops) {
        step.op = sl_plan_op(plan, i);
        step.i_op = i;
        step.n_ops = sl_cpu_products_together(plan, i);
        status = run_op(&step, err);
        for (size_t k = 0; k < step.n_ops && status == SL_OK; k++)
            observe(&step, sl_plan_op(plan, i + k));
    }
    sl_fpenv_leave(env);
    return status;
}

/* All in one piece, so that huge pages reach across matrices: pages of 4 KiB at the ends of each
 * would be a third of a small model. They are there when they are first written, not before. */
static sl_status cpu_reserve(sl_backend *backend, size_t n_bytes, sl_error *err)
{
    sl_cpu *cpu = (sl_cpu *)(void *)backend;
    if (n_bytes == 0)
        return SL_OK;
    cpu->weights = sl_pages_alloc(SL_MEM_WEIGHTS, n_bytes);
    if (!cpu->weights)
        return sl_fail(err, SL_ERR_MEMORY, "out of memory for matrices of %zu bytes", n_bytes);
    cpu->weights_bytes = n_bytes;
    return SL_OK;
}

static sl_status cpu_load(sl_backend *backend, sl_matrix *matrix, sl_error *err)
{
    sl_cpu *cpu = (sl_cpu *)(void *)backend;
    if (!cpu->kernels.product[matrix->dtype])
        return SL_OK;
    const size_t n_bytes = sl_packed_bytes(matrix);
    if (n_bytes == 0)
        return sl_fail(err, SL_ERR_LIMIT, "a matrix of %u x %u x %u %s is too large",
                       matrix->n_stack, matrix->n_rows, matrix->n_cols,
                       sl_dtype_get(matrix->dtype)->name);
    sl_cpu_packed *packed = sl_alloc(SL_MEM_WEIGHTS, sizeof *packed);
    if (!packed)
        return sl_fail(err, SL_ERR_MEMORY, "out of memory for a matrix");
    assert(n_bytes <= cpu->weights_bytes - cpu->weights_used);
    packed->panels = sl_pack(cpu->pool, matrix, cpu->weights + cpu->weights_used);
    cpu->weights_used += n_bytes;
    packed->next = cpu->packed;
    cpu->packed = packed;
    matrix->packed = &packed->panels;
    return SL_OK;
}

size_t sl_cpu_packed_bytes(sl_isa isa, const sl_matrix *matrix)
{
    const sl_cpu_kernels kernels = sl_cpu_kernels_of(isa);
    return kernels.product[matrix->dtype] ? sl_packed_bytes(matrix) : 0;
}

/* Arenas and the blocks of states: the large ones are read from end to end at every step. */
static void *cpu_alloc(sl_backend *backend, sl_mem_tag tag, size_t n_bytes)
{
    enum { LARGE = 4 << 20 };
    (void)backend;
    void *memory = sl_alloc(tag, n_bytes);
    if (memory && n_bytes >= LARGE)
        sl_mem_prefer_huge(memory, n_bytes);
    return memory;
}

static void cpu_free(sl_backend *backend, void *memory)
{
    (void)backend;
    sl_free(memory);
}

static void cpu_copy(sl_backend *backend, void *to, const void *from, size_t n_bytes)
{
    (void)backend;
    memcpy(to, from, n_bytes);
}

static sl_status cpu_ceilings(sl_backend *backend, sl_ceilings *out, sl_error *err)
{
    return sl_measure_ceilings(sl_cpu_backend_threads(backend), out, err);
}

static void cpu_destroy(sl_backend *backend)
{
    if (!backend)
        return;
    sl_cpu *cpu = (sl_cpu *)(void *)backend;
    while (cpu->packed) {
        sl_cpu_packed *next = cpu->packed->next;
        sl_free(cpu->packed);
        cpu->packed = next;
    }
    sl_pages_free(SL_MEM_WEIGHTS, cpu->weights, cpu->weights_bytes);
    sl_pool_destroy(cpu->pool);
    sl_free(cpu->busy);
    sl_free(cpu->shares);
    sl_free(cpu->attention);
    sl_free(cpu);
}

sl_status sl_cpu_backend_create(const char *isa_name, unsigned n_threads, sl_backend **out,
                                sl_error *err)
{
    sl_isa isa;
    SL_TRY(sl_isa_choose(isa_name, &isa, err));
    sl_cpu *cpu = sl_alloc_zero(SL_MEM_GENERAL, sizeof *cpu);
    if (!cpu)
        return sl_fail(err, SL_ERR_MEMORY, "out of memory for the CPU backend");
    cpu->base = (sl_backend){.name = "cpu",
                             .destroy = cpu_destroy,
                             .alloc = cpu_alloc,
                             .free = cpu_free,
                             .copy = cpu_copy,
                             .reserve = cpu_reserve,
                             .load = cpu_load,
                             .run = cpu_run,
                             .ceilings = cpu_ceilings};
    cpu->isa = isa;
    cpu->kernels = sl_cpu_kernels_of(isa);
    sl_status status = sl_pool_create(n_threads, &cpu->pool, err);
    if (status != SL_OK) {
        sl_free(cpu);
        return status;
    }
    const size_t threads = sl_pool_threads(cpu->pool);
    cpu->busy = sl_alloc_array(SL_MEM_GENERAL, threads, sizeof *cpu->busy);
    cpu->shares = sl_alloc_array(SL_MEM_GENERAL, threads, sizeof *cpu->shares);
    /* Not cleared here: pages go to the thread that first writes them. */
    cpu->attention = sl_alloc(SL_MEM_GENERAL, threads * sl_cpu_attention_scratch_bytes());
    if (!cpu->busy || !cpu->shares || !cpu->attention) {
        cpu_destroy(&cpu->base);
        return sl_fail(err, SL_ERR_MEMORY, "out of memory for the CPU backend");
    }
    *out = &cpu->base;
    return SL_OK;
}

sl_isa sl_cpu_backend_isa(const sl_backend *backend)
{
    return ((const sl_cpu *)(const void *)backend)->isa;
}

unsigned sl_cpu_backend_threads(const sl_backend *backend)
{
    return sl_pool_threads(((const sl_cpu *)(const void *)backend)->pool);
}
