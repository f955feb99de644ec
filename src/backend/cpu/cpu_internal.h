/* Shared by the op runners of the CPU backend. */
#ifndef SL_BACKEND_CPU_CPU_INTERNAL_H
#define SL_BACKEND_CPU_CPU_INTERNAL_H

#include <stdatomic.h>

#include "backend/cpu/cpu.h"
#include "backend/cpu/kernels/kernels.h"
#include "backend/cpu/pack.h"
#include "base/pool.h"

typedef struct sl_cpu_packed {
    sl_panels panels;
    struct sl_cpu_packed *next;
} sl_cpu_packed;

/* The time of one thread inside of a region, on a cache line of its own. */
typedef struct sl_cpu_busy {
    uint64_t ns;
    uint8_t unused[56];
} sl_cpu_busy;

/* What is left of one thread's units of the region that runs: the first one in the upper half, the
 * one behind the last in the lower half. On a cache line of its own. */
typedef struct sl_cpu_share {
    _Atomic uint64_t left;
    uint8_t unused[56];
} sl_cpu_share;

typedef struct sl_cpu {
    sl_backend base;
    sl_pool *pool;
    sl_isa isa;
    sl_cpu_kernels kernels;
    sl_cpu_packed *packed;                  /* the matrices that were loaded */
    uint8_t *weights;                       /* their panels, one matrix after the other */
    size_t weights_bytes, weights_used;
    sl_cpu_busy *busy;                      /* [threads], of the region that runs now, if timed */
    sl_cpu_share *shares;                   /* [threads], of the region that runs now */
    struct sl_attention_scratch *attention; /* [threads] */
} sl_cpu;

/* One op of one run, or products of one input, as pool tasks see it. */
typedef struct sl_cpu_step {
    const sl_cpu *cpu;
    const sl_plan *plan;
    void *arena;
    const sl_run *run;
    const sl_op *op;
    size_t i_op;
    size_t n_ops;         /* products that run together, from op on; else 1 */
    sl_op_record *record; /* of all of them, or NULL when nobody asked */
} sl_cpu_step;

/* Runs one region of an op on the pool. Runners and what they call take this and never sl_pool_run
 * itself, so that every region is seen by `sluice profile`. */
void sl_cpu_region(const sl_cpu_step *step, sl_pool_task task, void *context);

/* Calls unit(step, i) for every i < count, spread over the pool's threads; returns when all are
 * done. Units must write disjoint results. */
typedef void (*sl_cpu_unit)(const sl_cpu_step *step, size_t i);
void sl_cpu_for_each(const sl_cpu_step *step, size_t count, sl_cpu_unit unit);

/* The same with a range of units per call, at least `grain` where there are as many. */
typedef void (*sl_cpu_range)(const sl_cpu_step *step, size_t begin, size_t end);
void sl_cpu_for_ranges(const sl_cpu_step *step, size_t count, size_t grain, sl_cpu_range range);

/* For tasks that spread units themselves. Before the region: the units [begin, end) that thread i
 * begins with. Inside of it: pieces of at most `piece` units, own ones first and then what others
 * have left, until none is left anywhere; they belong to the share of thread taker->from. */
typedef struct sl_cpu_taker {
    unsigned i, n; /* thread i of n */
    unsigned tried, from;
} sl_cpu_taker;
void sl_cpu_share_out(const sl_cpu_step *step, unsigned i, size_t begin, size_t end);
bool sl_cpu_take(const sl_cpu_step *step, sl_cpu_taker *taker, size_t piece, size_t *begin,
                 size_t *end);

/* ---- looking ahead ---- */

/* Tells the pool what thread i of n reads first in the ops after this one: it will fetch that while
 * it waits. Called by the thread at the end of a region. */
void sl_cpu_look_ahead(const sl_cpu_step *step, unsigned i, unsigned n);

/* Pieces of memory, up to a number of bytes. */
typedef struct sl_cpu_ahead {
    sl_pool_piece pieces[SL_POOL_AHEAD];
    size_t n_pieces, bytes_left;
} sl_cpu_ahead;
void sl_cpu_will_read(sl_cpu_ahead *ahead, const void *p, size_t n_bytes);

/* What thread i of n reads first in an op; step->op is that op. */
void sl_cpu_product_reads(const sl_cpu_step *step, unsigned i, unsigned n, sl_cpu_ahead *ahead);
void sl_cpu_gdn_reads(const sl_cpu_step *step, unsigned i, unsigned n, sl_cpu_ahead *ahead);

/* ---- operands ---- */

static inline uint32_t sl_step_cols(const sl_cpu_step *step, sl_value v)
{
    return sl_plan_value(step->plan, v)->n_cols;
}

/* Row `row` of a float value. */
static inline float *sl_step_row(const sl_cpu_step *step, sl_value v, size_t row)
{
    return sl_plan_f32(step->plan, step->arena, v) + row * sl_step_cols(step, v);
}

/* Whether later ops or an observer read a float value that this op writes. When its rounded form is
 * all that anyone reads, rows need not travel to memory. */
bool sl_step_is_read(const sl_cpu_step *step, sl_value v);

/* Rounds x[n] into row `row` of a Q8 value. */
void sl_step_quantise(const sl_cpu_step *step, sl_value q8, size_t row, const float *x);
/* The same for x[n] alone, its columns first .. first + n - 1; first is a multiple of 32. */
void sl_step_quantise_part(const sl_cpu_step *step, sl_value q8, size_t row, size_t first, size_t n,
                           const float *x);

/* The segment that holds a row. */
const sl_segment *sl_step_segment(const sl_cpu_step *step, size_t row);

/* Turns the row flags that an op's units have set into faults of their segments. */
void sl_step_note_faults(const sl_cpu_step *step);

/* ---- runners, one per op kind ---- */

typedef sl_status (*sl_cpu_runner)(const sl_cpu_step *step, sl_error *err);

sl_status sl_cpu_embed(const sl_cpu_step *step, sl_error *err);
sl_status sl_cpu_project(const sl_cpu_step *step, sl_error *err);
sl_status sl_cpu_head(const sl_cpu_step *step, sl_error *err);
sl_status sl_cpu_norm(const sl_cpu_step *step, sl_error *err);
sl_status sl_cpu_swiglu(const sl_cpu_step *step, sl_error *err);
sl_status sl_cpu_add(const sl_cpu_step *step, sl_error *err);
sl_status sl_cpu_add_gated(const sl_cpu_step *step, sl_error *err);
sl_status sl_cpu_keep(const sl_cpu_step *step, sl_error *err);
sl_status sl_cpu_mtp_input(const sl_cpu_step *step, sl_error *err);
sl_status sl_cpu_gdn(const sl_cpu_step *step, sl_error *err);
sl_status sl_cpu_attention(const sl_cpu_step *step, sl_error *err);
size_t sl_cpu_attention_scratch_bytes(void); /* of one thread */
sl_status sl_cpu_route(const sl_cpu_step *step, sl_error *err);
sl_status sl_cpu_experts(const sl_cpu_step *step, sl_error *err);

/* ---- products ---- */

/* How many ops from op `i` on run as one: products that read one value, whose results and input
 * lie apart. */
size_t sl_cpu_products_together(const sl_plan *plan, size_t i);

/* Rows of an activation in the form that a matrix reads. */
typedef struct sl_product_input {
    const float *f32; /* with stride n_cols, when not quantised */
    size_t stride;
    sl_q8_rows q8;
    bool quantised;
} sl_product_input;

sl_product_input sl_step_input(const sl_cpu_step *step, sl_value v);

/* The same for panels, without a number of rows and an index. */
sl_product_rows sl_step_product_rows(const sl_cpu_step *step, sl_value v);

/* Panels [begin, end) of matrix `stack` times rows of x, by the kernel that suits their number. */
static inline void sl_cpu_multiply(const sl_cpu *cpu, const sl_panels *w, uint32_t stack,
                                   size_t begin, size_t end, const sl_product_rows *x,
                                   float *const *y)
{
    const sl_product_fn many = cpu->kernels.product_many[w->dtype];
    const sl_product_fn product = cpu->kernels.product[w->dtype];
    (many && x->n >= SL_MANY_ROWS ? many : product)(w, stack, begin, end, x, y);
}

/* Rows of one call of a panel kernel: their pointers are kept on the stack. */
enum { SL_ROWS_AT_ONCE = 512 };

/* One output: row `out` of matrix `stack` times row `row` of the input. For experts `x_offset` is
 * the first column of the input row, a multiple of 32. */
float sl_product(const sl_cpu *cpu, const sl_matrix *w, uint32_t stack, size_t out,
                 const sl_product_input *x, size_t row, size_t x_offset);

#endif
