/* What the device can do, for shares of a ceiling: the medians of a few runs of loops that do one
 * thing. */
#ifdef SL_CUDA

#include <stdlib.h>

#include "backend/cuda/cuda_internal.h"

enum { SAMPLES = 7, MAX_BUFFER = 1 << 30, MIN_BUFFER = 64 << 20, ROUNDS = 20000 };

typedef struct probe {
    cudaStream_t stream;
    cudaEvent_t from, to;
    uint32_t n_units;
    void *buffer;
    size_t n_bytes;
} probe;

/* Starts one loop on the probe's stream and returns how much it does: bytes or operations. */
typedef double (*loop)(const probe *p);

static double read_loop(const probe *p)
{
    sl_cu_read_ceiling(p->stream, p->buffer, p->n_bytes, p->n_units, p->buffer);
    return (double)p->n_bytes;
}

static double int8_loop(const probe *p)
{
    return sl_cu_int8_ceiling(p->stream, p->n_units, ROUNDS, p->buffer);
}

static double tf32_loop(const probe *p)
{
    return sl_cu_tf32_ceiling(p->stream, p->n_units, ROUNDS, p->buffer);
}

static int compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* In amounts a second; the first run, which warms up, does not count. */
static sl_status rate_of(const probe *p, loop run, double *out, sl_error *err)
{
    double rates[SAMPLES];
    for (int i = -1; i < SAMPLES; i++) {
        float ms = 0;
        SL_TRY(sl_cuda_check(cudaEventRecord(p->from, p->stream), "measuring", err));
        const double amount = run(p);
        SL_TRY(sl_cuda_check(cudaPeekAtLastError(), "measuring", err));
        SL_TRY(sl_cuda_check(cudaEventRecord(p->to, p->stream), "measuring", err));
        SL_TRY(sl_cuda_check(cudaEventSynchronize(p->to), "measuring", err));
        SL_TRY(sl_cuda_check(cudaEventElapsedTime(&ms, p->from, p->to), "measuring", err));
        if (i >= 0)
            rates[i] = ms > 0 ? amount / ms * 1e3 : 0;
    }
    qsort(rates, SAMPLES, sizeof *rates, compare_doubles);
    *out = rates[SAMPLES / 2];
    return SL_OK;
}

/* As much as a quarter of what is free, so that measuring pushes nothing out. */
static sl_status open_probe(const sl_cuda *cuda, probe *p, sl_error *err)
{
    sl_cuda_info info;
    SL_TRY(sl_cuda_query(cuda->device, &info, err));
    p->stream = cuda->queue.stream;
    p->n_units = (uint32_t)info.n_multiprocessors;
    p->n_bytes = MAX_BUFFER;
    while (p->n_bytes > MIN_BUFFER && p->n_bytes > info.memory_free / 4)
        p->n_bytes /= 2;
    SL_TRY(sl_cuda_check(cudaEventCreate(&p->from), "measuring", err));
    SL_TRY(sl_cuda_check(cudaEventCreate(&p->to), "measuring", err));
    SL_TRY(sl_cuda_check(cudaMalloc(&p->buffer, p->n_bytes), "reserving memory to read", err));
    return sl_cuda_check(cudaMemsetAsync(p->buffer, 0x5A, p->n_bytes, p->stream), "filling it",
                         err);
}

static void close_probe(probe *p)
{
    (void)cudaFree(p->buffer);
    if (p->from)
        (void)cudaEventDestroy(p->from);
    if (p->to)
        (void)cudaEventDestroy(p->to);
}

sl_status sl_cuda_ceilings(sl_backend *backend, sl_ceilings *out, sl_error *err)
{
    const sl_cuda *cuda = (const sl_cuda *)(const void *)backend;
    probe p = {0};
    double read = 0, int8 = 0, tf32 = 0;
    sl_status status = open_probe(cuda, &p, err);
    if (status == SL_OK)
        status = rate_of(&p, read_loop, &read, err);
    if (status == SL_OK)
        status = rate_of(&p, int8_loop, &int8, err);
    if (status == SL_OK)
        status = rate_of(&p, tf32_loop, &tf32, err);
    close_probe(&p);
    *out = (sl_ceilings){.read_gbs = read / 1e9,
                         .read_gbs_1 = read / 1e9,
                         .int8_tops = int8 / 1e12,
                         .f32_tflops = tf32 / 1e12,
                         .n_threads = 1,
                         .int8_loop = "mma m16n8k32 s8",
                         .f32_loop = "mma m16n8k8 tf32",
                         .read_bytes = p.n_bytes};
    return status;
}

#endif
