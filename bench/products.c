/* Products of packed weights by themselves: every level of this machine beside what the machine can
 * do, measured in the same rounds.
 *
 * usage: bench/products [TYPE [OUTPUTS INPUTS [ROWS [THREADS [ROUNDS [LEVEL]]]]]]
 *
 * Few rows are limited by memory, so there the matrix is repeated until no cache holds it, and the
 * ceiling is a plain reading loop over the same bytes; many rows by arithmetic, where it is a loop
 * of nothing but integer (or float) products on registers. Every round runs each level and the
 * ceiling in turn; printed is the median of the rounds, and of the shares of the same round. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/ceilings.h"
#include "backend/cpu/kernels/panels.h"
#include "backend/cpu/pack.h"
#include "base/clock.h"
#include "base/mem.h"

enum { FEW_ROWS = 16, MOST_ROUNDS = 101, COPIES_BYTES = 768 << 20, AHEAD = 4096 };

typedef struct workload {
    sl_panels panels;
    sl_product_rows rows;
    float **y;
    const sl_cpu_kernels *kernels;
    const sl_ceiling_loop *loop;
    size_t n_loop_rounds;
    sl_ceiling_read read;
    uint64_t sink[256];
} workload;

static void *need(void *p)
{
    if (!p) {
        fprintf(stderr, "products: out of memory\n");
        exit(1);
    }
    return p;
}

static void run_product(void *context, unsigned i, unsigned n)
{
    const workload *work = context;
    const sl_panels *w = &work->panels;
    size_t begin, end;
    sl_pool_share(sl_panel_count(w->n_rows), 2, i, n, &begin, &end);
    const sl_product_fn many = work->kernels->product_many[w->dtype];
    const sl_product_fn few = work->kernels->product[w->dtype];
    const sl_product_fn product = many && work->rows.n >= SL_MANY_ROWS ? many : few;
    for (uint32_t stack = 0; stack < w->n_stack && begin < end; stack++)
        product(w, stack, begin, end, &work->rows, work->y);
}

static void run_loop(void *context, unsigned i, unsigned n)
{
    workload *work = context;
    (void)n;
    work->sink[i] += work->loop->run(work->n_loop_rounds);
}

static void run_read(void *context, unsigned i, unsigned n)
{
    workload *work = context;
    size_t begin, end;
    sl_pool_share(work->panels.n_bytes / 256 * 256, 4096, i, n, &begin, &end);
    work->sink[i] += work->read(work->panels.data + begin, end - begin, AHEAD);
}

static double seconds(sl_pool *pool, sl_pool_task task, workload *work)
{
    const uint64_t start = sl_clock_ns();
    sl_pool_run(pool, task, work);
    return (double)(sl_clock_ns() - start) * 1e-9;
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *samples, size_t n)
{
    qsort(samples, n, sizeof *samples, compare);
    return samples[n / 2];
}

static sl_dtype type_of(const char *name)
{
    for (int i = 0; i < SL_DTYPE_COUNT; i++) {
        if (strcmp(sl_dtype_get((sl_dtype)i)->name, name) == 0)
            return (sl_dtype)i;
    }
    fprintf(stderr, "products: '%s' is no type\n", name);
    exit(2);
}

static void prepare(workload *work, sl_pool *pool, sl_dtype dtype, uint32_t n_outputs,
                    uint32_t n_cols, size_t n_rows)
{
    size_t row_bytes;
    if (n_outputs == 0 || n_rows == 0 || !sl_dtype_row_bytes(dtype, n_cols, &row_bytes) ||
        row_bytes == 0 || sl_panel_block_bytes(dtype) == 0) {
        fprintf(stderr, "products: no such product\n");
        exit(2);
    }
    const size_t n_bytes = row_bytes * n_outputs, n_blocks = (n_cols + 31) / 32;
    uint8_t *weights = need(sl_alloc_zero(SL_MEM_GENERAL, n_bytes));
    uint32_t seed = 1;
    for (size_t i = 0; i < n_bytes; i += 2) { /* halves below one wherever they are */
        seed = seed * 1664525u + 1013904223u;
        weights[i] = (uint8_t)(seed >> 24);
        if (i + 1 < n_bytes)
            weights[i + 1] = (uint8_t)(seed >> 16) & 0xBB;
    }
    for (size_t i = 0; i < n_bytes && !sl_dtype_get(dtype)->quantised; i += row_bytes / n_cols) {
        seed = seed * 1664525u + 1013904223u; /* between 1 and 2 */
        const uint32_t bits = 0x3F800000u | seed >> 9;
        const uint16_t half =
            dtype == SL_F16 ? (uint16_t)(0x3C00u | seed >> 22) : (uint16_t)(bits >> 16);
        memcpy(weights + i, dtype == SL_F32 ? (const void *)&bits : (const void *)&half,
               row_bytes / n_cols);
    }
    const size_t copies = n_rows <= FEW_ROWS ? 1 + COPIES_BYTES / n_bytes : 1;
    sl_matrix matrix = {.data = weights,
                        .dtype = dtype,
                        .n_rows = n_outputs,
                        .n_cols = n_cols,
                        .row_bytes = row_bytes,
                        .n_stack = (uint32_t)copies};
    work->panels =
        sl_pack(pool, &matrix, need(sl_pages_alloc(SL_MEM_WEIGHTS, sl_packed_bytes(&matrix))));
    sl_free(weights);
    float *x = need(sl_alloc_array(SL_MEM_GENERAL, n_rows * n_cols, sizeof *x));
    int8_t *q = need(sl_alloc_zero(SL_MEM_GENERAL, n_rows * n_blocks * 32));
    float *d = need(sl_alloc_array(SL_MEM_GENERAL, n_rows * n_blocks, sizeof *d));
    int16_t *sums = need(sl_alloc_array(SL_MEM_GENERAL, n_rows * n_blocks * 2, sizeof *sums));
    work->y = need(sl_alloc_array(SL_MEM_GENERAL, n_rows, sizeof *work->y));
    for (size_t i = 0; i < n_rows * n_cols; i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = ((float)(seed >> 8) - 0x1p23f) * 0x1p-23f;
    }
    for (size_t i = 0; i < n_rows; i++) {
        sl_quantise_row_scalar(x + i * n_cols, n_cols, q + i * n_blocks * 32, d + i * n_blocks,
                               sums + 2 * i * n_blocks);
        work->y[i] = need(sl_alloc_array(SL_MEM_GENERAL, n_outputs, sizeof(float)));
    }
    work->rows = (sl_product_rows){.n = n_rows,
                                   .f32 = x,
                                   .stride = n_cols,
                                   .q = q,
                                   .d = d,
                                   .sums = sums,
                                   .n_blocks = n_blocks};
}

int main(int argc, char **argv)
{
    const sl_dtype dtype = type_of(argc > 1 ? argv[1] : "Q8_0");
    const uint32_t n_outputs = argc > 3 ? (uint32_t)strtoul(argv[2], NULL, 10) : 3584;
    const uint32_t n_cols = argc > 3 ? (uint32_t)strtoul(argv[3], NULL, 10) : 1024;
    const size_t n_rows = argc > 4 ? strtoul(argv[4], NULL, 10) : 256;
    const unsigned n_threads = argc > 5 ? (unsigned)strtoul(argv[5], NULL, 10) : 0;
    size_t n_rounds = argc > 6 ? strtoul(argv[6], NULL, 10) : 15;
    const char *only = argc > 7 ? argv[7] : NULL;
    n_rounds = n_rounds < 1 || n_rounds > MOST_ROUNDS ? MOST_ROUNDS : n_rounds;

    static workload work;
    static double rates[SL_ISA_COUNT][MOST_ROUNDS], shares[SL_ISA_COUNT][MOST_ROUNDS];
    static double ceilings[MOST_ROUNDS];
    sl_error err;
    sl_pool *pool;
    if (sl_pool_create(n_threads, &pool, &err) != SL_OK) {
        fprintf(stderr, "products: %s\n", err.message);
        return 2;
    }
    prepare(&work, pool, dtype, n_outputs, n_cols, n_rows);
    sl_ceiling_loops loops = {0};
#if defined(__x86_64__)
    sl_ceiling_loops_x86(&loops);
#endif
    const bool few = n_rows <= FEW_ROWS;
    work.loop = sl_dtype_get(dtype)->quantised ? &loops.int8 : &loops.f32;
    work.read = loops.read;
    work.n_loop_rounds = 1;
    const double ops = 2.0 * n_outputs * n_cols * (double)n_rows * work.panels.n_stack;
    const double amount = few ? (double)work.panels.n_bytes * 1e-9 : ops * 1e-12;
    if (!few && work.loop->run) { /* as long as a product at half of its rate */
        while (seconds(pool, run_loop, &work) < 0.01)
            work.n_loop_rounds *= 2;
    }
    for (size_t round = 0; round < n_rounds; round++) {
        ceilings[round] = 0.0;
        if (few && work.read)
            ceilings[round] = amount / seconds(pool, run_read, &work);
        if (!few && work.loop->run)
            ceilings[round] = work.loop->ops_per_round * (double)work.n_loop_rounds *
                              sl_pool_threads(pool) * 1e-12 / seconds(pool, run_loop, &work);
        for (int isa = 0; isa < SL_ISA_COUNT; isa++) {
            const sl_cpu_kernels kernels = sl_cpu_kernels_of((sl_isa)isa);
            if (!sl_isa_usable((sl_isa)isa) || !kernels.product[dtype] ||
                (only && strcmp(only, sl_isa_name((sl_isa)isa)) != 0))
                continue;
            work.kernels = &kernels;
            rates[isa][round] = amount / seconds(pool, run_product, &work);
            shares[isa][round] = rates[isa][round] / ceilings[round];
        }
    }
    printf("%s [%u x %u], %zu rows, %u threads, %.1f MB\n", sl_dtype_get(dtype)->name, n_outputs,
           n_cols, n_rows, sl_pool_threads(pool), (double)work.panels.n_bytes * 1e-6);
    printf("%-12s %8.3f %s\n", "ceiling", median(ceilings, n_rounds), few ? "GB/s" : "Tops");
    for (int isa = 0; isa < SL_ISA_COUNT; isa++) {
        if (rates[isa][0] > 0.0)
            printf("%-12s %8.3f  %3.0f %%\n", sl_isa_name((sl_isa)isa),
                   median(rates[isa], n_rounds), 100.0 * median(shares[isa], n_rounds));
    }
    return 0;
}
