/* The attention kernels by themselves, on one thread, at every level of this machine. Figures, not
 * assertions: medians of interleaved rounds, beside the machine's own limits of the same rounds.
 * usage: bench/attention [KEYS [QUERIES_PER_KV_HEAD]]
 *
 * Prefill: a tile of 96 queries goes over KEYS keys of one KV head. Decode: the queries of one
 * token, over the KV heads of 12 layers and heads in turn, so that caches hold little of them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "backend/cpu/ceilings.h"
#include "backend/cpu/kernels/kernels.h"
#include "base/mem.h"

enum { TILE = 96, HEADS = 12, ROUNDS = 15, PAGE_BYTES = SL_KV_PAGE * SL_ATTN_DIM * 2 };

static size_t n_keys = 4096, n_group = 4;
static char *kv;
static void **pages; /* keys of head h at 2 * h * PAGE_BYTES of each, its values behind them */
static float *queries, *scratch;
static sl_softmax *all, *block;
static uint16_t seen[TILE];

/* Time of this thread on a processor: other programs do not count. */
static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void *memory(size_t n)
{
    void *p = sl_alloc_zero(SL_MEM_GENERAL, n);
    if (!p) {
        fprintf(stderr, "attention: out of memory\n");
        exit(1);
    }
    return p;
}

static void prepare(void)
{
    const size_t n_pages = n_keys / SL_KV_PAGE;
    kv = memory(n_pages * HEADS * 2 * PAGE_BYTES);
    pages = memory(n_pages * sizeof *pages);
    for (size_t p = 0; p < n_pages; p++)
        pages[p] = kv + p * HEADS * 2 * PAGE_BYTES;
    uint16_t *halves = (uint16_t *)(void *)kv;
    for (size_t i = 0; i < n_pages * HEADS * PAGE_BYTES; i++)
        halves[i] = (uint16_t)(0x3000 + i * 2654435761u % 0x800); /* 0.125 .. 0.5 */
    queries = memory(TILE * SL_ATTN_STRIDE * sizeof *queries);
    for (size_t i = 0; i < TILE * SL_ATTN_STRIDE; i++)
        queries[i] = (float)(i * 40503 % 1000) / 2000.0f - 0.25f;
    scratch = memory((TILE * SL_ATTN_STRIDE + SL_ATTN_PANEL) * sizeof *scratch);
    all = memory(TILE * sizeof *all);
    block = memory(TILE * sizeof *block);
    for (size_t i = 0; i < TILE; i++)
        seen[i] = SL_ATTN_BLOCK;
}

/* Seconds for n queries over all keys of a KV head. */
static double attend(const sl_cpu_kernels *k, size_t head, size_t n)
{
    const double start = now();
    for (size_t j = 0; j < n_keys; j += SL_ATTN_BLOCK) {
        const sl_attend a = {.type = SL_KV_F16,
                             .pages = pages + j / SL_KV_PAGE,
                             .k_offset = 2 * head * PAGE_BYTES,
                             .v_offset = (2 * head + 1) * PAGE_BYTES,
                             .n_more = j + SL_ATTN_BLOCK < n_keys ? SL_ATTN_BLOCK / SL_KV_PAGE : 0,
                             .n = n,
                             .q = queries,
                             .n_keys = seen,
                             .scratch = scratch};
        k->attend_block(&a, j == 0 ? all : block);
        for (size_t i = 0; i < n && j > 0; i++)
            k->softmax_merge(&all[i], &block[i]);
    }
    return now() - start;
}

static double peak(const sl_ceiling_loop *loop)
{
    const size_t rounds = 400000;
    const double start = now();
    loop->run(rounds);
    return loop->ops_per_round * (double)rounds / (now() - start) * 1e-9;
}

static double read_rate(sl_ceiling_read read)
{
    const size_t n = n_keys / SL_KV_PAGE * HEADS * 2 * PAGE_BYTES;
    const double start = now();
    read((const uint8_t *)kv, n, 4096);
    return (double)n / (now() - start) * 1e-9;
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *samples)
{
    qsort(samples, ROUNDS, sizeof *samples, compare);
    return samples[ROUNDS / 2];
}

static void measure(sl_isa isa, const sl_ceiling_loops *loops)
{
    const sl_cpu_kernels k = sl_cpu_kernels_of(isa);
    double prefill[ROUNDS], decode[ROUNDS], flops[ROUNDS], bytes[ROUNDS];
    for (size_t i = 0; i < ROUNDS; i++) {
        const double each = 4.0 * SL_ATTN_DIM * (double)n_keys;
        flops[i] = peak(&loops->f32);
        prefill[i] = each * TILE / attend(&k, i % HEADS, TILE) * 1e-9;
        bytes[i] = read_rate(loops->read);
        double seconds = 0;
        for (size_t head = 0; head < HEADS; head++)
            seconds += attend(&k, head, n_group);
        decode[i] = (double)n_keys * HEADS * SL_ATTN_DIM * 4 / seconds * 1e-9;
    }
    const double f = median(flops), b = median(bytes), p = median(prefill), d = median(decode);
    printf("%-10s  prefill %6.1f GFLOP/s, %3.0f %% of %s at %6.1f   decode %5.1f GB/s, %3.0f %% of "
           "reading at %5.1f\n",
           sl_isa_name(isa), p, 100 * p / f, loops->f32.name, f, d, 100 * d / b, b);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        n_keys = strtoul(argv[1], NULL, 10) / SL_ATTN_BLOCK * SL_ATTN_BLOCK;
    if (argc > 2)
        n_group = strtoul(argv[2], NULL, 10);
    if (n_keys < SL_ATTN_BLOCK || n_keys > 1u << 20 || n_group < 1 || n_group > TILE) {
        fprintf(stderr, "usage: attention [KEYS (256 .. 1048576) [QUERIES (1 .. %d)]]\n", TILE);
        return 2;
    }
    prepare();
    const sl_ceiling_loops loops = sl_ceiling_loops_best();
    for (int isa = SL_ISA_AVX2; isa < SL_ISA_COUNT; isa++) {
        if (sl_isa_usable((sl_isa)isa))
            measure((sl_isa)isa, &loops);
    }
    return 0;
}
