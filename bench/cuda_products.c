/* Products on a CUDA device by themselves: every product of the 0.8B shape at several numbers of
 * rows, as one launch for matrices that read one activation beside a launch for each, and their
 * bits against the plain loops of the contract on sampled outputs.
 *
 * usage: bench/cuda_products [DEVICE [REPEATS [ROWS]]]
 *
 * Repeats run in one captured graph; printed is the best of several graphs. The ceiling is what the
 * exact form (integer dots of 32, float sums in order) reached with its operands in registers. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/kernels/math.h"
#include "backend/cuda/cuda_internal.h"
#include "format/codes.h"

enum { MOST_ROWS = 4096, MOST_COLUMNS = 8192, SAMPLES = 64, GRAPHS = 5, BLOCK = SL_Q8_BLOCK };
static const double ceiling_tops = 378.0;

typedef struct host_codes {
    int8_t *q;
    float *d;
} host_codes;

typedef struct bench {
    sl_cuda *cuda;
    unsigned n_repeats;
    uint64_t random;
    float *x, *y[SL_CU_MANY_TARGETS]; /* on the device */
    sl_cu_q8 q8, act;
    uint32_t *flags;
    float *scales, *act_scales, *copy;
    size_t n_wrong, n_checked;
} bench;

static void fail(const char *what)
{
    fprintf(stderr, "cuda_products: %s\n", what);
    exit(1);
}

static void need(cudaError_t error)
{
    if (error != cudaSuccess)
        fail(cudaGetErrorString(error));
}

static void *device_memory(size_t n_bytes)
{
    void *memory = NULL;
    need(cudaMalloc(&memory, n_bytes));
    need(cudaMemset(memory, 0, n_bytes));
    return memory;
}

static sl_cu_q8 device_codes(size_t n_values)
{
    return (sl_cu_q8){.q = device_memory(n_values),
                      .d = device_memory(n_values / BLOCK * sizeof(float)),
                      .sums = device_memory(n_values / BLOCK * 2 * sizeof(int16_t))};
}

static uint32_t next_random(bench *b)
{
    b->random = b->random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(b->random >> 33);
}

static sl_matrix random_matrix(bench *b, uint32_t n_rows, uint32_t n_cols)
{
    enum { BLOCK_BYTES = 34 };
    sl_matrix m = {.dtype = SL_Q8_0, .n_rows = n_rows, .n_cols = n_cols, .n_stack = 1};
    m.row_bytes = (size_t)n_cols / BLOCK * BLOCK_BYTES;
    uint8_t *data = malloc(n_rows * m.row_bytes);
    if (!data)
        fail("out of memory");
    for (size_t i = 0; i < n_rows * m.row_bytes; i += BLOCK_BYTES) {
        const uint16_t d = sl_f32_to_f16((float)(next_random(b) % 1000 + 1) * 1e-5f);
        memcpy(data + i, &d, sizeof d);
        for (size_t k = sizeof d; k < BLOCK_BYTES; k++)
            data[i + k] = (uint8_t)next_random(b);
    }
    m.data = data;
    sl_error err = {0};
    if (sl_cuda_load(&b->cuda->base, &m, &err) != SL_OK)
        fail(err.message);
    return m;
}

/* Section 2 of the contract, word for word. */
static float plain_product(const sl_matrix *m, size_t output, const int8_t *q, const float *d)
{
    const size_t n_blocks = m->n_cols / BLOCK;
    const uint8_t *row = sl_matrix_row(m, 0, output);
    float total = 0.0f;
    for (size_t first = 0; first < n_blocks; first += 8) {
        float seg = 0.0f;
        for (size_t k = first; k < n_blocks && k < first + 8; k++) {
            sl_codes codes;
            sl_read_codes(m->dtype, row, k, &codes);
            int32_t n = 0;
            for (size_t i = 0; i < BLOCK; i++)
                n += codes.q[i] * q[k * BLOCK + i];
            seg = fmaf(codes.d * d[k], (float)n, seg);
        }
        total = total + seg;
    }
    return total;
}

static void check(bench *b, float got, float expected)
{
    b->n_checked++;
    b->n_wrong += memcmp(&got, &expected, sizeof got) != 0;
}

/* Codes and scale of the sampled block of SwiGLU. */
static void check_act(bench *b, const sl_matrix *w, uint32_t row, uint32_t block, const int8_t *q,
                      const float *d)
{
    float value[BLOCK], largest = 0.0f;
    for (uint32_t i = 0; i < BLOCK; i++) {
        const float gate = plain_product(&w[0], block * BLOCK + i, q, d);
        value[i] = sl_silu(gate) * plain_product(&w[1], block * BLOCK + i, q, d);
        largest = fabsf(value[i]) > largest ? fabsf(value[i]) : largest;
    }
    int8_t codes[BLOCK];
    float scale = 0.0f;
    const size_t at = (size_t)row * b->act.n_blocks + block;
    need(cudaMemcpy(codes, b->act.q + at * BLOCK, BLOCK, cudaMemcpyDeviceToHost));
    need(cudaMemcpy(&scale, b->act.d + at, sizeof scale, cudaMemcpyDeviceToHost));
    check(b, scale, largest / 127.0f);
    for (uint32_t i = 0; i < BLOCK; i++)
        check(b, codes[i], sl_rintf(value[i] * (127.0f / largest)));
}

static void check_samples(bench *b, const sl_cu_many *many, const sl_matrix *w, host_codes a,
                          const float *before)
{
    const size_t n_blocks = many->q8.n_blocks;
    for (size_t i = 0; i < SAMPLES; i++) {
        const uint32_t row = i == 0 ? many->n_rows - 1 : next_random(b) % many->n_rows;
        const int8_t *q = a.q + row * n_blocks * BLOCK;
        const float *d = a.d + row * n_blocks;
        if (many->swiglu) {
            check_act(b, w, row, next_random(b) % (w[0].n_rows / BLOCK), q, d);
            continue;
        }
        const uint32_t k = (uint32_t)i % many->n_targets;
        const uint32_t output = i < 4 ? w[k].n_rows - 1 : next_random(b) % w[k].n_rows;
        const size_t at = (size_t)row * w[k].n_rows + output;
        float got;
        need(cudaMemcpy(&got, many->targets[k].y + at, sizeof got, cudaMemcpyDeviceToHost));
        const float product = plain_product(&w[k], output, q, d);
        check(b, got, many->flags ? before[at] + product : product);
    }
}

static void run_apart(bench *b, const sl_cu_many *many)
{
    cudaStream_t stream = b->cuda->queue.stream;
    for (uint32_t k = 0; k < many->n_targets; k++) {
        const sl_cu_target *target = &many->targets[k];
        const sl_cu_product p = {.n = many->n_rows,
                                 .row_divisor = 1,
                                 .q8 = many->q8,
                                 .y = many->flags ? b->y[1] : target->y,
                                 .y_stride = target->y_stride};
        sl_cu_matrix_product(&b->cuda->queue, &target->w, &p);
    }
    const uint32_t n = many->targets[0].w.n_rows;
    if (many->flags)
        sl_cu_add(stream, many->targets[0].y, b->y[1], many->n_rows, n, many->flags, many->mark);
    if (many->swiglu)
        sl_cu_swiglu(stream, b->y[0], b->y[1], many->n_rows, n, b->y[2], many->act_q8);
}

static double microseconds(bench *b, const sl_cu_many *many, bool together)
{
    cudaStream_t stream = b->cuda->queue.stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaEvent_t begin, end;
    need(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (unsigned i = 0; i < b->n_repeats; i++) {
        if (together)
            sl_cu_run_many(&b->cuda->queue, many);
        else
            run_apart(b, many);
    }
    need(cudaStreamEndCapture(stream, &graph));
    need(cudaGraphInstantiate(&exec, graph, 0));
    need(cudaEventCreate(&begin));
    need(cudaEventCreate(&end));
    float best = 1e30f;
    for (int i = 0; i < GRAPHS; i++) {
        float took = 0.0f;
        need(cudaEventRecord(begin, stream));
        need(cudaGraphLaunch(exec, stream));
        need(cudaEventRecord(end, stream));
        need(cudaEventSynchronize(end));
        need(cudaEventElapsedTime(&took, begin, end));
        best = took < best ? took : best;
    }
    need(cudaGraphExecDestroy(exec));
    need(cudaGraphDestroy(graph));
    return 1e3 * best / b->n_repeats;
}

typedef struct shape {
    const char *name;
    uint32_t n_cols, n_targets, n_rows[SL_CU_MANY_TARGETS];
    bool swiglu, sum;
} shape;

static void fill_input(bench *b, uint32_t n_rows, uint32_t n_cols, host_codes *out)
{
    const size_t n = (size_t)n_rows * n_cols;
    for (size_t i = 0; i < n; i++)
        b->copy[i] = (float)(int32_t)(next_random(b) - (1u << 30)) * 0x1p-30f;
    need(cudaMemcpy(b->x, b->copy, n * sizeof(float), cudaMemcpyHostToDevice));
    b->q8.n_blocks = n_cols / BLOCK;
    sl_cu_quantise(b->cuda->queue.stream, b->x, n_rows, n_cols, b->q8);
    need(cudaStreamSynchronize(b->cuda->queue.stream));
    need(cudaMemcpy(out->q, b->q8.q, n, cudaMemcpyDeviceToHost));
    need(cudaMemcpy(out->d, b->q8.d, n / BLOCK * sizeof(float), cudaMemcpyDeviceToHost));
}

static void measure(bench *b, const shape *s, uint32_t n_rows, const sl_matrix *w, host_codes a)
{
    fill_input(b, n_rows, s->n_cols, &a);
    sl_cu_many many = {
        .n_rows = n_rows, .q8 = b->q8, .scales = b->scales, .n_targets = s->n_targets};
    many.act_scales = b->act_scales;
    many.flags = s->sum ? b->flags : NULL;
    many.mark = 1;
    many.swiglu = s->swiglu;
    double products = 0.0;
    for (uint32_t k = 0; k < s->n_targets; k++) {
        products += 2.0 * n_rows * s->n_cols * s->n_rows[k];
        many.targets[k] = (sl_cu_target){.w = *(const sl_cu_matrix *)w[k].packed, .y = b->y[k]};
        many.targets[k].y_stride = s->n_rows[k];
    }
    b->act.n_blocks = s->n_rows[0] / BLOCK;
    many.act_q8 = b->act;
    const double apart = microseconds(b, &many, false);
    if (!sl_cu_many_fits(&many)) {
        printf("%-12s %5u rows: apart %8.2f us %6.1f TOPS\n", s->name, n_rows, apart,
               products / apart * 1e-6);
        return;
    }
    const double together = microseconds(b, &many, true);
    const size_t n_y = (size_t)n_rows * s->n_rows[0];
    need(cudaMemcpy(b->copy, b->y[0], n_y * sizeof(float), cudaMemcpyDeviceToHost));
    sl_cu_run_many(&b->cuda->queue, &many);
    need(cudaStreamSynchronize(b->cuda->queue.stream));
    b->n_checked = b->n_wrong = 0;
    check_samples(b, &many, w, a, b->copy);
    printf("%-12s %5u rows: apart %8.2f us %6.1f TOPS, together %8.2f us %6.1f TOPS = %3.0f %%; "
           "%zu of %zu samples differ\n",
           s->name, n_rows, apart, products / apart * 1e-6, together, products / together * 1e-6,
           100.0 * products / together * 1e-6 / ceiling_tops, b->n_wrong, b->n_checked);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    static const shape shapes[] = {{"qkv z a b", 1024, 4, {6144, 2048, 16, 16}, false, false},
                                   {"q k v", 1024, 3, {4096, 512, 512}, false, false},
                                   {"out", 2048, 1, {1024}, false, true},
                                   {"gate up", 1024, 2, {3584, 3584}, true, false},
                                   {"down", 3584, 1, {1024}, false, true}};
    static const uint32_t rows[] = {16, 64, 100, 512, 1024, 4000, 4096};
    const uint32_t only = argc > 3 ? (uint32_t)atoi(argv[3]) : 0;
    if (only > MOST_ROWS)
        fail("too many rows");
    sl_backend *backend = NULL;
    sl_error err = {0};
    if (sl_cuda_backend_create(argc > 1 ? atoi(argv[1]) : 0, &backend, &err) != SL_OK)
        fail(err.message);
    bench b = {.cuda = (sl_cuda *)(void *)backend,
               .n_repeats = argc > 2 ? (unsigned)atoi(argv[2]) : 20,
               .random = 1};
    const size_t most = (size_t)MOST_ROWS * MOST_COLUMNS;
    b.x = device_memory(most * sizeof(float));
    for (size_t k = 0; k < SL_CU_MANY_TARGETS; k++)
        b.y[k] = device_memory(most * sizeof(float));
    b.q8 = device_codes(most);
    b.act = device_codes(most);
    b.scales = device_memory(most / BLOCK * sizeof(float));
    b.act_scales = device_memory(most / BLOCK * sizeof(float));
    b.flags = device_memory(MOST_ROWS * sizeof(uint32_t));
    b.copy = malloc(most * sizeof(float));
    const host_codes a = {.q = malloc(most), .d = malloc(most / BLOCK * sizeof(float))};
    if (!b.copy || !a.q || !a.d)
        fail("out of memory");
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        sl_matrix w[SL_CU_MANY_TARGETS];
        for (uint32_t k = 0; k < shapes[i].n_targets; k++)
            w[k] = random_matrix(&b, shapes[i].n_rows[k], shapes[i].n_cols);
        for (size_t k = 0; k < (only ? 1 : sizeof rows / sizeof *rows); k++)
            measure(&b, &shapes[i], only ? only : rows[k], w, a);
        for (uint32_t k = 0; k < shapes[i].n_targets; k++)
            free((void *)(uintptr_t)w[k].data);
    }
    return 0;
}
