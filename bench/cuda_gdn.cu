/* The gated delta layer of the CUDA backend by itself: usage: bench/cuda_gdn [error] [same] [rule]
 * [step], all of them without an argument.
 *
 * error  relative L2 error of outputs and state against the token-serial rule in float64, which
 *        begins at the raw projections like the kernels
 * same   the same bits in one run, token by token, and in random pieces with a neighbour
 * rule   microseconds of the three kernels for prompts, by graph replay; inputs rotate so that they
 *        do not stay in the cache
 * step   microseconds of one token for 1 and 64 sequences, 18 layers in turn: mean over the places
 *        in a chunk, and the worst */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cuda/kernels/common.cuh"

enum { DIM = SL_GDN_DIM, CHUNK = SL_GDN_CHUNK, N_CONV_ROWS = 19, MOST_SEGMENTS = 64, CROWD = 40 };

static sl_cu_queue queue;

static void check(cudaError_t error, const char *what)
{
    if (error == cudaSuccess)
        return;
    printf("%s: %s\n", what, cudaGetErrorString(error));
    exit(1);
}

static void *device_memory(size_t n_bytes)
{
    void *p = NULL;
    check(cudaMalloc(&p, n_bytes), "reserving memory");
    check(cudaMemset(p, 0, n_bytes), "clearing memory");
    return p;
}

static float *device_floats(size_t n)
{
    return (float *)device_memory(n * sizeof(float));
}

/* ---- inputs ---- */

/* Evenly in -1 .. 1. */
static __device__ float noise(uint64_t at, uint32_t seed)
{
    uint64_t x = (at + 1) * 0x9E3779B97F4A7C15u + seed * 0xD1B54A32D192ED03u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return (float)((x ^ (x >> 31)) >> 40) * 0x1p-23f - 1.0f;
}

/* x[row][c]: with a period, rows repeat but for 1 % of new noise. */
static __global__ void fill_kernel(float *x, size_t n, uint32_t n_cols, uint32_t period,
                                   uint32_t seed, float scale, float offset)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x) {
        float value = noise(i, seed);
        if (period > 0)
            value = noise(i % ((size_t)period * n_cols), seed) + 0.01f * value;
        x[i] = offset + scale * value;
    }
}

static void fill(float *x, size_t n, uint32_t n_cols, uint32_t period, uint32_t seed, float scale,
                 float offset)
{
    fill_kernel<<<1024, 256, 0, queue.stream>>>(x, n, n_cols, period, seed, scale, offset);
}

/* Projections of n_rows rows and the constants of a layer. */
typedef struct problem {
    sl_cu_gdn gdn;
    uint32_t n_rows;
} problem;

static problem make_problem(uint32_t n_key_heads, uint32_t n_value_heads, uint32_t n_rows,
                            uint32_t n_layers, uint32_t period)
{
    problem p = {};
    sl_cu_gdn *g = &p.gdn;
    const uint32_t n_channels = (2 * n_key_heads + n_value_heads) * DIM;
    const size_t n_gates = (size_t)n_rows * n_value_heads;
    p.n_rows = n_rows;
    g->n_key_heads = n_key_heads;
    g->n_value_heads = n_value_heads;
    g->n_channels = n_channels;
    g->n_conv_rows = N_CONV_ROWS;
    g->layer_floats =
        (n_key_heads + n_value_heads) * SL_TAPE_PAGE * DIM + n_value_heads * SL_TAPE_PAGE;
    g->eps = 1e-6f;
    float *conv = device_floats(n_channels * SL_CONV_TAPS), *a_coef = device_floats(n_value_heads);
    float *dt = device_floats(n_value_heads), *norm = device_floats(DIM);
    float *qkv = device_floats((size_t)n_rows * n_channels), *z = device_floats(n_gates * DIM);
    float *a = device_floats(n_gates), *b = device_floats(n_gates);
    fill(conv, n_channels * SL_CONV_TAPS, 1, 0, 1, 0.5f, 0.0f);
    fill(a_coef, n_value_heads, 1, 0, 2, period ? 0.0f : 0.03f, period ? -1.5e-4f : -0.04f);
    fill(norm, DIM, 1, 0, 3, 0.1f, 1.0f);
    fill(qkv, (size_t)n_rows * n_channels, n_channels, period, 4, 2.0f, 0.0f);
    fill(z, n_gates * DIM, 1, 0, 5, 2.0f, 0.0f);
    fill(a, n_gates, 1, 0, 6, 1.0f, 0.0f);
    fill(b, n_gates, 1, 0, 7, period ? 0.0f : 2.0f, period ? 6.9f : 0.0f);
    g->conv = conv;
    g->a_coef = a_coef;
    g->dt = dt;
    g->norm = norm;
    g->qkv = qkv;
    g->z = z;
    g->a = a;
    g->b = b;
    g->y = device_floats(n_gates * DIM);
    g->keeps_y = 1;
    const size_t n_blocks = n_gates * DIM / SL_Q8_BLOCK;
    g->yq.q = (int8_t *)device_memory(n_gates * DIM);
    g->yq.d = device_floats(n_blocks);
    g->yq.sums = (int16_t *)device_memory(n_blocks * 2 * sizeof(int16_t));
    g->yq.n_blocks = n_value_heads * DIM / SL_Q8_BLOCK;
    (void)n_layers;
    return p;
}

static void free_problem(problem *p)
{
    const void *all[] = {p->gdn.conv, p->gdn.a_coef,  p->gdn.dt,    p->gdn.norm, p->gdn.qkv,
                         p->gdn.z,    p->gdn.a,       p->gdn.b,     p->gdn.y,    p->gdn.yq.q,
                         p->gdn.yq.d, p->gdn.yq.sums, p->gdn.chunks};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        check(cudaFree((void *)all[i]), "freeing memory");
}

/* ---- states ---- */

/* Of one sequence: a border and tape pages for each of its chunks, so that all can be compared. */
typedef struct sequence {
    uint32_t n_chunks;
    size_t border_floats, page_floats, conv_floats;
    float *borders, *pages, *conv; /* border c is the state at the beginning of chunk c */
} sequence;

static sequence make_sequence(const sl_cu_gdn *g, uint32_t n_chunks, uint32_t n_layers)
{
    sequence s;
    s.n_chunks = n_chunks;
    s.border_floats = (size_t)n_layers * g->n_value_heads * DIM * DIM;
    s.page_floats = (size_t)n_layers * g->layer_floats;
    s.conv_floats = (size_t)n_layers * N_CONV_ROWS * g->n_channels;
    s.borders = device_floats((n_chunks + 1) * s.border_floats);
    s.pages = device_floats((n_chunks + 1) * SL_TAPE_CHUNK_PAGES * s.page_floats);
    s.conv = device_floats(s.conv_floats);
    return s;
}

static void free_sequence(sequence *s)
{
    check(cudaFree(s->borders), "freeing memory");
    check(cudaFree(s->pages), "freeing memory");
    check(cudaFree(s->conv), "freeing memory");
}

static float *border_of(const sequence *s, uint32_t chunk)
{
    return s->borders + chunk * s->border_floats;
}

/* What the engine says of n rows from position pos on. */
static sl_cu_segment segment_of(const sequence *s, uint32_t pos, uint32_t first_row, uint32_t n)
{
    sl_cu_segment out = {};
    const uint32_t chunk = pos / CHUNK, n_full = (pos % CHUNK + n) / CHUNK;
    out.pos = pos;
    out.first_row = first_row;
    out.n_rows = n;
    out.border = chunk > 0 ? border_of(s, chunk) : NULL;
    for (uint32_t m = n_full > 1 ? n_full - 1 : 1; m <= n_full; m++)
        out.border_out[m & 1] = border_of(s, chunk + m);
    const uint32_t last = (pos % CHUNK + n - 1) / CHUNK;
    for (uint32_t page = 0; page < SL_TAPE_CHUNK_PAGES; page++) {
        out.tape[0][page] = s->pages + (chunk * SL_TAPE_CHUNK_PAGES + page) * s->page_floats;
        for (uint32_t m = last > 1 ? last - 1 : 1; m <= last; m++)
            out.tape[1 + (m & 1)][page] =
                s->pages + ((chunk + m) * SL_TAPE_CHUNK_PAGES + page) * s->page_floats;
    }
    out.conv = s->conv;
    return out;
}

typedef struct run_rows {
    sl_cu_rows rows;
    void *memory;
} run_rows;

static run_rows make_rows(sl_cu_segment *segments, uint32_t n)
{
    run_rows out = {};
    uint32_t n_rows = 0, n_chunks = 0;
    for (uint32_t i = 0; i < n; i++) {
        segments[i].first_chunk = n_chunks;
        n_chunks += div_up(segments[i].pos % CHUNK + segments[i].n_rows, CHUNK);
        n_rows += segments[i].n_rows;
    }
    out.memory = device_memory(n * sizeof *segments);
    check(cudaMemcpy(out.memory, segments, n * sizeof *segments, cudaMemcpyHostToDevice),
          "copying segments");
    out.rows.n_rows = n_rows;
    out.rows.n_segments = n;
    out.rows.n_chunks = n_rows / CHUNK + 2 * n;
    out.rows.segments = (const sl_cu_segment *)out.memory;
    return out;
}

static void *chunk_memory(const sl_cu_gdn *g, uint32_t n_rows, uint32_t n_segments)
{
    return device_memory(
        sl_cu_gdn_chunk_bytes(n_rows / CHUNK + 2 * n_segments, g->n_key_heads, g->n_value_heads));
}

static void run_layer(const sl_cu_rows *rows, const sl_cu_gdn *g)
{
    sl_cu_gdn_prepare(&queue, rows, g);
    sl_cu_gdn_rule(&queue, rows, g);
    sl_cu_gdn_finish(&queue, rows, g);
}

static void finish_work(const char *what)
{
    check(cudaGetLastError(), what);
    check(cudaStreamSynchronize(queue.stream), what);
}

/* ---- error ---- */

static __device__ double convolved_double(const sl_cu_gdn &g, uint32_t row, uint32_t channel)
{
    double sum = 0;
    for (uint32_t j = 0; j < SL_CONV_TAPS; j++) {
        if (row + j >= SL_CONV_HISTORY)
            sum += (double)g.conv[channel * SL_CONV_TAPS + j] *
                   (double)g.qkv[(size_t)(row + j - SL_CONV_HISTORY) * g.n_channels + channel];
    }
    return sum / (1 + exp(-sum));
}

/* One value head, a thread for each column: the token-serial rule in double. */
static __global__ void reference_kernel(const sl_cu_gdn g, uint32_t n_rows, double *o,
                                        double *state)
{
    extern __shared__ double memory[];
    double *S = memory, *k = S + DIM * DIM, *q = k + DIM, *squares = q + DIM;
    const uint32_t head = blockIdx.x, c = threadIdx.x;
    const uint32_t key_head = head / (g.n_value_heads / g.n_key_heads);
    for (uint32_t a = 0; a < DIM; a++)
        S[a * DIM + c] = 0;
    for (uint32_t row = 0; row < n_rows; row++) {
        k[c] = convolved_double(g, row, (g.n_key_heads + key_head) * DIM + c);
        q[c] = convolved_double(g, row, key_head * DIM + c);
        const double v = convolved_double(g, row, (2 * g.n_key_heads + head) * DIM + c);
        __syncthreads();
        if (c < 2) {
            const double *x = c == 0 ? k : q;
            squares[c] = 0;
            for (uint32_t a = 0; a < DIM; a++)
                squares[c] += x[a] * x[a];
        }
        __syncthreads();
        k[c] /= sqrt(squares[0] + 1e-6);
        q[c] /= sqrt(squares[1] + 1e-6) * sqrt((double)DIM);
        __syncthreads();
        const size_t at = (size_t)row * g.n_value_heads + head;
        const double decay = exp((double)g.a_coef[head] * log1p(exp((double)g.a[at])));
        double kS = 0, out = 0;
        for (uint32_t a = 0; a < DIM; a++)
            kS += decay * S[a * DIM + c] * k[a];
        const double u = (v - kS) / (1 + exp(-(double)g.b[at]));
        for (uint32_t a = 0; a < DIM; a++) {
            S[a * DIM + c] = decay * S[a * DIM + c] + k[a] * u;
            out += S[a * DIM + c] * q[a];
        }
        o[at * DIM + c] = out;
        __syncthreads();
    }
    for (uint32_t a = 0; a < DIM; a++)
        state[((size_t)head * DIM + a) * DIM + c] = S[a * DIM + c];
}

/* sums[0] += (x - y)^2, sums[1] += y^2 */
static __global__ void distance_kernel(const float *x, const double *y, size_t n, double *sums)
{
    double difference = 0, norm = 0;
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x) {
        difference += ((double)x[i] - y[i]) * ((double)x[i] - y[i]);
        norm += y[i] * y[i];
    }
    atomicAdd(&sums[0], difference);
    atomicAdd(&sums[1], norm);
}

static double distance(const float *x, const double *y, size_t n)
{
    double sums[2], *on_device = (double *)device_memory(sizeof sums);
    distance_kernel<<<256, 256, 0, queue.stream>>>(x, y, n, on_device);
    finish_work("comparing");
    check(cudaMemcpy(sums, on_device, sizeof sums, cudaMemcpyDeviceToHost), "copying sums");
    check(cudaFree(on_device), "freeing memory");
    return sqrt(sums[0] / sums[1]);
}

static void measure_error(uint32_t n_key_heads, uint32_t n_value_heads, uint32_t n_rows,
                          uint32_t period)
{
    problem p = make_problem(n_key_heads, n_value_heads, n_rows, 1, period);
    sequence s = make_sequence(&p.gdn, n_rows / CHUNK, 1);
    sl_cu_segment segment = segment_of(&s, 0, 0, n_rows);
    run_rows r = make_rows(&segment, 1);
    const size_t n_outputs = (size_t)n_rows * n_value_heads * DIM;
    const size_t n_state = (size_t)n_value_heads * DIM * DIM;
    double *o = (double *)device_memory(n_outputs * sizeof(double));
    double *state = (double *)device_memory(n_state * sizeof(double));
    p.gdn.chunks = chunk_memory(&p.gdn, n_rows, 1);
    sl_cu_gdn_prepare(&queue, &r.rows, &p.gdn);
    finish_work("prepare");
    sl_cu_gdn_rule(&queue, &r.rows, &p.gdn);
    finish_work("rule");
    const int shared = (DIM * DIM + 2 * DIM + 2) * (int)sizeof(double);
    check(
        cudaFuncSetAttribute(reference_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared),
        "the reference");
    reference_kernel<<<n_value_heads, DIM, shared, queue.stream>>>(p.gdn, n_rows, o, state);
    finish_work("the reference");
    printf("error   %2u/%2u heads, %5u rows, %-8s  outputs %.2e  state %.2e\n", n_key_heads,
           n_value_heads, n_rows, period ? "period 3" : "random", distance(p.gdn.y, o, n_outputs),
           distance(border_of(&s, n_rows / CHUNK), state, n_state));
    check(cudaFree(o), "freeing memory");
    check(cudaFree(state), "freeing memory");
    check(cudaFree(r.memory), "freeing memory");
    free_sequence(&s);
    free_problem(&p);
}

/* ---- same ---- */

/* Bytes of what a schedule left behind. */
typedef struct result {
    float *y, *borders, *pages, *conv;
    int8_t *q;
} result;

static void *fetch(const void *from, size_t n_bytes)
{
    void *out = malloc(n_bytes);
    check(cudaMemcpy(out, from, n_bytes, cudaMemcpyDeviceToHost), "fetching results");
    return out;
}

static result fetch_result(const problem *p, const sequence *s)
{
    const size_t n = (size_t)p->n_rows * p->gdn.n_value_heads * DIM;
    result out;
    out.y = (float *)fetch(p->gdn.y, n * sizeof(float));
    out.q = (int8_t *)fetch(p->gdn.yq.q, n);
    out.borders = (float *)fetch(s->borders, (s->n_chunks + 1) * s->border_floats * sizeof(float));
    out.pages = (float *)fetch(s->pages, (s->n_chunks + 1) * SL_TAPE_CHUNK_PAGES * s->page_floats *
                                             sizeof(float));
    out.conv = (float *)fetch(s->conv, s->conv_floats * sizeof(float));
    return out;
}

static void free_result(result *r)
{
    free(r->y);
    free(r->q);
    free(r->borders);
    free(r->pages);
    free(r->conv);
}

static size_t count_different(const float *x, const float *y, size_t n, size_t *first)
{
    size_t count = 0;
    for (size_t i = 0; i < n; i++) {
        if (memcmp(&x[i], &y[i], sizeof *x) != 0 && count++ == 0)
            *first = i;
    }
    return count;
}

/* Tapes and borders only where both schedules had to keep them: the last chunk's. */
static void compare(const char *what, const problem *p, const sequence *s, const result *x,
                    const result *y)
{
    const size_t width = (size_t)p->gdn.n_value_heads * DIM;
    const uint32_t last = (p->n_rows - 1) / CHUNK;
    const size_t page = (size_t)last * SL_TAPE_CHUNK_PAGES * s->page_floats;
    const size_t border = (size_t)(p->n_rows / CHUNK) * s->border_floats;
    size_t first = 0;
    size_t n = count_different(x->y, y->y, p->n_rows * width, &first);
    printf("same    %-34s outputs differ: %zu", what, n);
    if (n > 0)
        printf(" (row %zu, head %zu, column %zu: %a, expected %a)", first / width,
               first % width / DIM, first % DIM, (double)x->y[first], (double)y->y[first]);
    printf(", codes: %d, state: %zu, tape: %zu, raw rows: %zu\n",
           memcmp(x->q, y->q, p->n_rows * width) != 0,
           count_different(x->borders + border, y->borders + border, s->border_floats, &first),
           count_different(x->pages + page, y->pages + page, SL_TAPE_CHUNK_PAGES * s->page_floats,
                           &first),
           count_different(x->conv, y->conv, s->conv_floats, &first));
}

static void clear_sequence(sequence *s)
{
    check(cudaMemset(s->borders, 0, (s->n_chunks + 1) * s->border_floats * sizeof(float)), "clear");
    check(cudaMemset(s->pages, 0,
                     (s->n_chunks + 1) * SL_TAPE_CHUNK_PAGES * s->page_floats * sizeof(float)),
          "clear");
    check(cudaMemset(s->conv, 0, s->conv_floats * sizeof(float)), "clear");
}

/* Rows pos .. pos + n of the problem as a run of its own, beside a neighbour of so many rows, or so
 * many neighbours of one row each. */
static void run_piece(const problem *p, const sequence *s, const sequence *neighbour, uint32_t pos,
                      uint32_t n, uint32_t n_neighbour, bool as_step)
{
    const sl_cu_gdn *g = &p->gdn;
    sl_cu_gdn part = *g;
    const size_t gates = (size_t)pos * g->n_value_heads;
    part.qkv = g->qkv + (size_t)pos * g->n_channels;
    part.z = g->z + gates * DIM;
    part.a = g->a + gates;
    part.b = g->b + gates;
    part.y = g->y + gates * DIM;
    part.yq.q = g->yq.q + gates * DIM;
    part.yq.d = g->yq.d + gates * DIM / SL_Q8_BLOCK;
    part.yq.sums = g->yq.sums + gates * DIM / SL_Q8_BLOCK * 2;
    sl_cu_segment segments[1 + CROWD] = {segment_of(s, pos, 0, n)};
    uint32_t n_segments = 1;
    if (as_step) { /* what they leave behind does not matter, so one state is enough */
        for (uint32_t i = 0; i < n_neighbour; i++)
            segments[n_segments++] = segment_of(neighbour, 0, n + i, 1);
    } else if (n_neighbour > 0) {
        segments[n_segments++] = segment_of(neighbour, 0, n, n_neighbour);
    }
    run_rows r = make_rows(segments, n_segments);
    if (as_step)
        sl_cu_gdn_step(&queue, &r.rows, &part);
    else
        run_layer(&r.rows, &part);
    finish_work("a piece");
    check(cudaFree(r.memory), "freeing memory");
}

static void check_same(uint32_t n_key_heads, uint32_t n_value_heads, uint32_t tiled)
{
    enum { ROWS = 5 * CHUNK + 7, SPARE = 64 };
    problem p = make_problem(n_key_heads, n_value_heads, ROWS + SPARE, 1, 0);
    p.gdn.tiled = tiled;
    p.n_rows = ROWS;
    sequence s = make_sequence(&p.gdn, ROWS / CHUNK + 1, 1);
    sequence neighbour = make_sequence(&p.gdn, SPARE / CHUNK + 1, 1);
    p.gdn.chunks = chunk_memory(&p.gdn, ROWS + SPARE, 2);
    run_piece(&p, &s, &neighbour, 0, ROWS, 0, false);
    result whole = fetch_result(&p, &s);
    char what[80];
    for (int schedule = 0; schedule < 7; schedule++) {
        static const char *const names[] = {
            "token by token", "rows by the chunk kernels", "pieces of 5",     "pieces of 33",
            "mixed",          "mixed beside a neighbour",  "steps in a crowd"};
        clear_sequence(&s);
        clear_sequence(&neighbour);
        uint32_t seed = 1;
        for (uint32_t pos = 0, n; pos < ROWS; pos += n) {
            seed = seed * 1664525u + 1013904223u;
            const uint32_t random = 1 + (seed >> 24) % 70;
            const uint32_t pieces[] = {1, 1, 5, 33, random, random, 1};
            n = pieces[schedule] < ROWS - pos ? pieces[schedule] : ROWS - pos;
            const bool as_step = schedule == 0 || schedule == 6 || (schedule == 4 && n == 1);
            const uint32_t n_neighbour = schedule == 5   ? 1 + (seed >> 16) % 40
                                         : schedule == 6 ? CROWD
                                                         : 0;
            run_piece(&p, &s, &neighbour, pos, n, n_neighbour, as_step);
        }
        result got = fetch_result(&p, &s);
        snprintf(what, sizeof what, "%u/%u%s, %s", n_key_heads, n_value_heads,
                 tiled ? " tiled" : "", names[schedule]);
        compare(what, &p, &s, &got, &whole);
        free_result(&got);
    }
    free_result(&whole);
    free_sequence(&s);
    free_sequence(&neighbour);
    free_problem(&p);
}

/* ---- time ---- */

typedef void (*launcher)(const sl_cu_rows *rows, const sl_cu_gdn *gdn);

static void prepare(const sl_cu_rows *rows, const sl_cu_gdn *g)
{
    sl_cu_gdn_prepare(&queue, rows, g);
}
static void rule(const sl_cu_rows *rows, const sl_cu_gdn *g)
{
    sl_cu_gdn_rule(&queue, rows, g);
}
static void finish(const sl_cu_rows *rows, const sl_cu_gdn *g)
{
    sl_cu_gdn_finish(&queue, rows, g);
}
static void step(const sl_cu_rows *rows, const sl_cu_gdn *g)
{
    sl_cu_gdn_step(&queue, rows, g);
}

static int compare_floats(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* Microseconds of one launch: n of them, from n layers' inputs in turn, captured and replayed. */
static double time_launches(launcher f, const sl_cu_rows *rows, const sl_cu_gdn *layers, uint32_t n)
{
    enum { REPEATS = 7 };
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaEvent_t begin, end;
    float ms[REPEATS];
    check(cudaStreamBeginCapture(queue.stream, cudaStreamCaptureModeThreadLocal), "capture");
    for (uint32_t i = 0; i < n; i++)
        f(rows, &layers[i]);
    check(cudaStreamEndCapture(queue.stream, &graph), "capture");
    check(cudaGraphInstantiate(&exec, graph, 0), "capture");
    check(cudaEventCreate(&begin), "events");
    check(cudaEventCreate(&end), "events");
    check(cudaGraphLaunch(exec, queue.stream), "replay");
    for (int i = 0; i < REPEATS; i++) {
        check(cudaEventRecord(begin, queue.stream), "events");
        check(cudaGraphLaunch(exec, queue.stream), "replay");
        check(cudaEventRecord(end, queue.stream), "events");
        check(cudaEventSynchronize(end), "replay");
        check(cudaEventElapsedTime(&ms[i], begin, end), "events");
    }
    qsort(ms, REPEATS, sizeof *ms, compare_floats);
    check(cudaEventDestroy(begin), "events");
    check(cudaEventDestroy(end), "events");
    check(cudaGraphExecDestroy(exec), "capture");
    check(cudaGraphDestroy(graph), "capture");
    return 1e3 * (double)ms[REPEATS / 2] / n;
}

/* Sets of inputs in turn that are together three times as large as the cache. */
static void time_rule(uint32_t n_key_heads, uint32_t n_value_heads, uint32_t n_rows)
{
    enum { MOST_SETS = 16 };
    const double cache = 180e6, bytes = 4.0 * n_rows * (2 * n_key_heads + 3 * n_value_heads) * DIM;
    uint32_t n_sets = (uint32_t)(cache / bytes) + 1;
    n_sets = n_sets < 2 ? 2 : n_sets > MOST_SETS ? MOST_SETS : n_sets;
    problem sets[MOST_SETS];
    sl_cu_gdn layers[MOST_SETS];
    sequence s = {};
    for (uint32_t i = 0; i < n_sets; i++) {
        sets[i] = make_problem(n_key_heads, n_value_heads, n_rows, 1, 0);
        sets[i].gdn.chunks = chunk_memory(&sets[i].gdn, n_rows, 1);
        sets[i].gdn.keeps_y = 0;
        layers[i] = sets[i].gdn;
    }
    /* borders and tapes of the last two chunks only */
    s = make_sequence(&layers[0], 3, 1);
    sl_cu_segment segment = segment_of(&s, 0, 0, 3 * CHUNK);
    segment.n_rows = n_rows;
    segment.border_out[0] = border_of(&s, 1);
    segment.border_out[1] = border_of(&s, 2);
    run_rows r = make_rows(&segment, 1);
    const double t1 = time_launches(prepare, &r.rows, layers, n_sets);
    const double t2 = time_launches(rule, &r.rows, layers, n_sets);
    const double t3 = time_launches(finish, &r.rows, layers, n_sets);
    const double all = time_launches(run_layer, &r.rows, layers, n_sets);
    finish_work("timing");
    printf(
        "rule    %2u/%2u heads, %5u rows: prepare %7.1f  rule %7.1f  finish %7.1f  all %7.1f us, "
        "a chunk %.3f us\n",
        n_key_heads, n_value_heads, n_rows, t1, t2, t3, all, t2 * CHUNK / n_rows);
    check(cudaFree(r.memory), "freeing memory");
    free_sequence(&s);
    for (uint32_t i = 0; i < n_sets; i++)
        free_problem(&sets[i]);
}

static void time_step(uint32_t n_key_heads, uint32_t n_value_heads, uint32_t n_sequences)
{
    enum { LAYERS = 18 };
    problem p = make_problem(n_key_heads, n_value_heads, n_sequences, 1, 0);
    p.gdn.keeps_y = 0;
    sl_cu_gdn layers[LAYERS];
    for (uint32_t i = 0; i < LAYERS; i++) {
        layers[i] = p.gdn;
        layers[i].index = i;
    }
    static sequence sequences[MOST_SEGMENTS];
    sl_cu_segment segments[MOST_SEGMENTS];
    for (uint32_t i = 0; i < n_sequences; i++)
        sequences[i] = make_sequence(&p.gdn, 2, LAYERS);
    double sum = 0, worst = 0, first = 0;
    for (uint32_t begin = 0; begin < CHUNK; begin++) {
        for (uint32_t i = 0; i < n_sequences; i++)
            segments[i] = segment_of(&sequences[i], CHUNK + begin, i, 1);
        run_rows r = make_rows(segments, n_sequences);
        const double us = time_launches(step, &r.rows, layers, LAYERS);
        sum += us;
        worst = us > worst ? us : worst;
        first = begin == 0 ? us : first;
        check(cudaFree(r.memory), "freeing memory");
    }
    finish_work("timing");
    printf("step    %2u/%2u heads, %2u sequences: mean %.2f  first %.2f  worst %.2f us\n",
           n_key_heads, n_value_heads, n_sequences, sum / CHUNK, first, worst);
    for (uint32_t i = 0; i < n_sequences; i++)
        free_sequence(&sequences[i]);
    free_problem(&p);
}

static bool is_wanted(int argc, char **argv, const char *part)
{
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], part) == 0)
            return true;
    }
    return argc == 1;
}

int main(int argc, char **argv)
{
    int device = 0, major = 0;
    check(cudaSetDevice(device), "choosing the device");
    check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "the device");
    check(cudaStreamCreateWithFlags(&queue.stream, cudaStreamNonBlocking), "a stream");
    setvbuf(stdout, NULL, _IOLBF, 0);
    queue.overlap = major >= 9;
    check(cudaDeviceGetAttribute(&queue.n_multiprocessors, cudaDevAttrMultiProcessorCount, device),
          "the device");
    if (is_wanted(argc, argv, "error")) {
        for (uint32_t period = 0; period <= 3; period += 3) {
            measure_error(16, 16, 512, period);
            measure_error(16, 16, 4096, period);
            measure_error(2, 6, 16384, period);
        }
    }
    if (is_wanted(argc, argv, "same")) {
        check_same(2, 2, 0);
        check_same(2, 6, 0);
        check_same(2, 4, 1);
    }
    if (is_wanted(argc, argv, "rule")) {
        for (uint32_t n_rows = 512; n_rows <= 65536; n_rows = n_rows == 512 ? 4096 : 4 * n_rows) {
            for (uint32_t heads = 16; heads <= 48; heads += 16)
                time_rule(16, heads, n_rows);
        }
    }
    if (is_wanted(argc, argv, "step")) {
        time_step(16, 16, 1);
        time_step(16, 16, 8);
        time_step(16, 16, 64);
        time_step(16, 32, 1);
        time_step(16, 32, 64);
    }
    return 0;
}
