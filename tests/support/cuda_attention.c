#ifdef SL_CUDA

#include "cuda_attention.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/kernels/math.h"
#include "format/dtype.h"

enum { DIM = SL_ATTN_DIM, PAGE = SL_KV_PAGE, BASE_ROWS = 1024 };

struct sl_attention_rig {
    sl_attention_shape shape;
    sl_cu_queue queue;
    uint32_t seed;
    size_t page_bytes, head_bytes;
    void **pages;                    /* [sequence][page], on the host */
    float *base_q, *base_k, *base_v; /* inputs that positions share, on the host */
    float *vectors;                  /* q_norm, k_norm, inv_freq; on the device */
    float host_vectors[2 * DIM + DIM / 2];
    float *q, *k, *v, *y, *scratch;
    size_t scratch_floats;
    sl_cu_q8 yq;
    sl_cu_segment *segments;
    uint32_t *segment_of;
    void **device_pages;
    float *host_y;
    int8_t *host_codes;
    sl_cu_rows rows;
    uint32_t n_key_blocks;
    bool only_codes; /* results are not wanted as floats */
    bool failed;
};

static uint32_t n_pages_of(const sl_attention_rig *r)
{
    return (r->shape.n_positions + PAGE - 1) / PAGE;
}

static uint32_t next_random(uint32_t *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    return *seed >> 8;
}

/* About N(0, 1). */
static float random_normal(uint32_t *seed)
{
    float sum = 0.0f;
    for (int i = 0; i < 6; i++)
        sum += (float)next_random(seed) / 16777216.0f - 0.5f;
    return sum * 1.41421356f;
}

static void *device_memory(sl_attention_rig *r, size_t n_bytes)
{
    void *p = NULL;
    if (cudaMalloc(&p, n_bytes) != cudaSuccess)
        r->failed = true;
    return p;
}

static void *host_memory(sl_attention_rig *r, size_t n_bytes)
{
    void *p = calloc(1, n_bytes);
    r->failed = r->failed || !p;
    return p;
}

static void make_inputs(sl_attention_rig *r)
{
    const sl_attention_shape *s = &r->shape;
    uint32_t seed = r->seed;
    const size_t n_q = (size_t)BASE_ROWS * s->n_heads * 2 * DIM;
    const size_t n_k = (size_t)BASE_ROWS * s->n_kv_heads * DIM;
    r->base_q = host_memory(r, n_q * sizeof(float));
    r->base_k = host_memory(r, n_k * sizeof(float));
    r->base_v = host_memory(r, n_k * sizeof(float));
    if (r->failed)
        return;
    for (size_t i = 0; i < n_q; i++)
        r->base_q[i] = random_normal(&seed);
    for (size_t i = 0; i < n_k; i++) {
        r->base_k[i] = random_normal(&seed);
        r->base_v[i] = random_normal(&seed);
    }
    for (int i = 0; i < 2 * DIM; i++) /* scores of some size, so that weights differ */
        r->host_vectors[i] = 1.2f + 0.2f * random_normal(&seed);
    for (uint32_t i = 0; i < s->n_pairs; i++)
        r->host_vectors[2 * DIM + i] = (float)pow(1e7, -(double)i / s->n_pairs);
    cudaMemcpy(r->vectors, r->host_vectors, sizeof r->host_vectors, cudaMemcpyHostToDevice);
}

static void make_buffers(sl_attention_rig *r)
{
    const sl_attention_shape *s = &r->shape;
    const size_t rows = s->most_rows, width = (size_t)s->n_heads * DIM;
    const uint32_t n_pages = n_pages_of(r) * s->n_sequences;
    r->vectors = device_memory(r, sizeof r->host_vectors);
    r->q = device_memory(r, rows * 2 * width * sizeof(float));
    r->k = device_memory(r, rows * s->n_kv_heads * DIM * sizeof(float));
    r->v = device_memory(r, rows * s->n_kv_heads * DIM * sizeof(float));
    r->y = device_memory(r, rows * width * sizeof(float));
    r->yq = (sl_cu_q8){.q = device_memory(r, rows * width),
                       .d = device_memory(r, rows * width / SL_Q8_BLOCK * sizeof(float)),
                       .sums = device_memory(r, rows * width / SL_Q8_BLOCK * 2 * sizeof(int16_t)),
                       .n_blocks = (uint32_t)(width / SL_Q8_BLOCK)};
    r->segments = device_memory(r, s->n_sequences * sizeof *r->segments);
    r->segment_of = device_memory(r, rows * sizeof *r->segment_of);
    r->device_pages = device_memory(r, n_pages * sizeof(void *));
    r->host_y = host_memory(r, rows * width * sizeof(float));
    r->host_codes = host_memory(r, rows * width);
    r->pages = host_memory(r, n_pages * sizeof(void *));
    const uint32_t blocks = (s->n_positions + SL_CU_KEY_BLOCK - 1) / SL_CU_KEY_BLOCK;
    const uint32_t most_split = s->n_sequences * SL_CU_SPLIT_ROWS;
    for (uint32_t n = 1; n <= s->most_rows; n++) {
        for (uint32_t k = 1; k < 2 * blocks; k *= 2) {
            const size_t floats = sl_cu_attention_scratch(
                &r->queue, n, n < most_split ? n : most_split, s->n_heads, s->n_kv_heads, k);
            r->scratch_floats = floats > r->scratch_floats ? floats : r->scratch_floats;
        }
    }
    r->scratch = device_memory(r, (r->scratch_floats + 1) * sizeof(float));
    r->head_bytes = (size_t)DIM * PAGE * (s->kv_f32 ? sizeof(float) : 2);
    r->page_bytes = (size_t)s->n_layers * 2 * s->n_kv_heads * r->head_bytes;
    char *memory = device_memory(r, n_pages * r->page_bytes);
    if (r->failed)
        return;
    for (uint32_t i = 0; i < n_pages; i++) /* in no order */
        r->pages[i] = memory + (size_t)(n_pages - 1 - i) * r->page_bytes;
    cudaMemcpy(r->device_pages, r->pages, n_pages * sizeof(void *), cudaMemcpyHostToDevice);
}

/* NaN, as halves and as floats. */
static void clear_pages(sl_attention_rig *r)
{
    const uint32_t n_pages = n_pages_of(r) * r->shape.n_sequences;
    cudaMemset(r->pages[n_pages - 1], 0xFF, n_pages * r->page_bytes);
    cudaDeviceSynchronize();
}

sl_attention_rig *sl_attention_rig_create(const sl_attention_shape *shape, uint32_t seed)
{
    int count = 0;
    struct cudaDeviceProp p;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0 ||
        cudaGetDeviceProperties(&p, 0) != cudaSuccess)
        return NULL;
    sl_attention_rig *r = calloc(1, sizeof *r);
    if (!r)
        return NULL;
    r->shape = *shape;
    r->seed = seed;
    r->queue.overlap = p.major >= 9 && !shape->is_older;
    r->queue.n_multiprocessors = p.multiProcessorCount;
    r->failed = cudaStreamCreateWithFlags(&r->queue.stream, cudaStreamNonBlocking) != cudaSuccess;
    make_buffers(r);
    if (!r->failed) {
        make_inputs(r);
        clear_pages(r);
    }
    if (r->failed) {
        sl_attention_rig_free(r);
        return NULL;
    }
    return r;
}

void sl_attention_rig_free(sl_attention_rig *r)
{
    if (!r)
        return;
    if (r->pages && r->pages[0]) /* the last of them is the memory's beginning */
        cudaFree(r->pages[n_pages_of(r) * r->shape.n_sequences - 1]);
    void *on_device[] = {r->vectors, r->q,        r->k,          r->v,
                         r->y,       r->yq.q,     r->yq.d,       r->yq.sums,
                         r->scratch, r->segments, r->segment_of, r->device_pages};
    for (size_t i = 0; i < sizeof on_device / sizeof *on_device; i++)
        cudaFree(on_device[i]);
    void *on_host[] = {r->base_q, r->base_k, r->base_v, r->host_y, r->host_codes, r->pages};
    for (size_t i = 0; i < sizeof on_host / sizeof *on_host; i++)
        free(on_host[i]);
    if (r->queue.stream)
        cudaStreamDestroy(r->queue.stream);
    free(r);
}

void sl_attention_rig_fill(sl_attention_rig *r)
{
    uint16_t *page = malloc(r->page_bytes);
    if (!page)
        return;
    uint32_t seed = r->seed + 1;
    for (size_t i = 0; i < r->page_bytes / 2; i++) /* 0.25 .. 2, either sign */
        page[i] = (uint16_t)(0x3400 + next_random(&seed) % 0xC00 + next_random(&seed) % 2 * 0x8000);
    for (uint32_t i = 0; i < n_pages_of(r) * r->shape.n_sequences; i++)
        cudaMemcpy(r->pages[i], i == 0 ? (void *)page : r->pages[0], r->page_bytes,
                   cudaMemcpyDefault);
    free(page);
}

/* The row of the shared inputs that a position of a sequence has. */
static uint32_t base_row(uint32_t sequence, uint32_t pos)
{
    return (sequence * 311 + pos * 7) % BASE_ROWS;
}

static uint32_t round_up(uint32_t n)
{
    uint32_t rounded = 1;
    while (rounded < n)
        rounded *= 2;
    return rounded;
}

void sl_attention_rig_set(sl_attention_rig *r, const sl_attention_piece *pieces, uint32_t n)
{
    const sl_attention_shape *s = &r->shape;
    const size_t q_row = (size_t)s->n_heads * 2 * DIM, k_row = (size_t)s->n_kv_heads * DIM;
    sl_cu_segment *segments = calloc(n, sizeof *segments);
    uint32_t *of = calloc(s->most_rows, sizeof *of);
    r->rows = (sl_cu_rows){.n_segments = n, .segments = r->segments, .segment_of = r->segment_of};
    uint32_t most_keys = 1, n_key_blocks = 0;
    for (uint32_t i = 0; i < n && segments && of; i++) {
        const sl_attention_piece *p = &pieces[i];
        segments[i] = (sl_cu_segment){.pos = p->pos,
                                      .first_row = r->rows.n_rows,
                                      .n_rows = p->n_rows,
                                      .first_split = r->rows.n_split_rows,
                                      .first_key_block = n_key_blocks,
                                      .kv_pages = r->device_pages + p->sequence * n_pages_of(r)};
        if (p->n_rows <= SL_CU_SPLIT_ROWS) {
            r->rows.n_split_rows += p->n_rows;
            n_key_blocks += (p->pos + p->n_rows - 1) / SL_CU_KEY_BLOCK + 1;
            if (p->n_rows > r->rows.most_split_rows)
                r->rows.most_split_rows = p->n_rows;
        }
        if (p->n_rows > r->rows.most_rows)
            r->rows.most_rows = p->n_rows;
        for (uint32_t k = 0; k < p->n_rows; k++) {
            const size_t from = base_row(p->sequence, p->pos + k), to = r->rows.n_rows++;
            of[to] = i;
            cudaMemcpyAsync(r->q + to * q_row, r->base_q + from * q_row, q_row * sizeof(float),
                            cudaMemcpyHostToDevice, r->queue.stream);
            cudaMemcpyAsync(r->k + to * k_row, r->base_k + from * k_row, k_row * sizeof(float),
                            cudaMemcpyHostToDevice, r->queue.stream);
            cudaMemcpyAsync(r->v + to * k_row, r->base_v + from * k_row, k_row * sizeof(float),
                            cudaMemcpyHostToDevice, r->queue.stream);
        }
        if (p->pos + p->n_rows > most_keys)
            most_keys = p->pos + p->n_rows;
    }
    r->n_key_blocks = round_up((most_keys + SL_CU_KEY_BLOCK - 1) / SL_CU_KEY_BLOCK);
    if (segments && of) {
        cudaMemcpyAsync(r->segments, segments, n * sizeof *segments, cudaMemcpyHostToDevice,
                        r->queue.stream);
        cudaMemcpyAsync(r->segment_of, of, r->rows.n_rows * sizeof *of, cudaMemcpyHostToDevice,
                        r->queue.stream);
    }
    cudaStreamSynchronize(r->queue.stream);
    free(segments);
    free(of);
}

void sl_attention_rig_launch(sl_attention_rig *r, uint32_t layer, const sl_cu_queue *queue)
{
    const sl_attention_shape *s = &r->shape;
    const sl_cu_attention at = {.index = layer,
                                .n_heads = s->n_heads,
                                .n_kv_heads = s->n_kv_heads,
                                .kv_f32 = s->kv_f32,
                                .n_pairs = s->n_pairs,
                                .q_norm = r->vectors,
                                .k_norm = r->vectors + DIM,
                                .inv_freq = r->vectors + 2 * DIM,
                                .eps = 1e-6f,
                                .rope_scale = 1.0f,
                                .kv_head_bytes = r->head_bytes,
                                .q = r->q,
                                .k = r->k,
                                .v = r->v,
                                .y = r->y,
                                .keeps_y = !r->only_codes,
                                .yq = r->yq,
                                .n_key_blocks = r->n_key_blocks,
                                .scratch = r->scratch};
    sl_cu_attention_layer(queue, &r->rows, &at);
}

bool sl_attention_rig_run(sl_attention_rig *r, const sl_attention_piece *pieces, uint32_t n,
                          const float **y, const int8_t **codes)
{
    const size_t width = (size_t)r->shape.n_heads * DIM;
    sl_attention_rig_set(r, pieces, n);
    cudaMemsetAsync(r->y, 0xFF, r->rows.n_rows * width * sizeof(float), r->queue.stream);
    sl_attention_rig_launch(r, 0, &r->queue);
    cudaMemcpyAsync(r->host_y, r->y, r->rows.n_rows * width * sizeof(float), cudaMemcpyDeviceToHost,
                    r->queue.stream);
    cudaMemcpyAsync(r->host_codes, r->yq.q, r->rows.n_rows * width, cudaMemcpyDeviceToHost,
                    r->queue.stream);
    *y = r->host_y;
    *codes = r->host_codes;
    const cudaError_t error = cudaStreamSynchronize(r->queue.stream);
    return error == cudaSuccess && cudaGetLastError() == cudaSuccess;
}

/* Rows of a run that differ from what is expected, or become it. */
static size_t take_rows(const sl_attention_rig *r, const sl_attention_piece *p, size_t first,
                        float *y, int8_t *codes, bool compare)
{
    const size_t width = (size_t)r->shape.n_heads * DIM;
    size_t different = 0;
    for (size_t i = 0; i < p->n_rows; i++) {
        const size_t at = ((size_t)p->sequence * r->shape.n_positions + p->pos + i) * width;
        const float *got = r->host_y + (first + i) * width;
        const int8_t *got_codes = r->host_codes + (first + i) * width;
        if (compare) {
            different += memcmp(y + at, got, width * sizeof *got) != 0 ||
                         memcmp(codes + at, got_codes, width) != 0;
        } else {
            memcpy(y + at, got, width * sizeof *got);
            memcpy(codes + at, got_codes, width);
        }
    }
    return different;
}

size_t sl_attention_rig_schedules(sl_attention_rig *r, uint32_t n_rounds, size_t *n_rows)
{
    static const uint32_t most[] = {1, 2, 5, 16, 17, 70, 300, 1000000};
    const uint32_t n = r->shape.n_sequences, length = r->shape.n_positions;
    const size_t width = (size_t)r->shape.n_heads * DIM;
    float *y = malloc((size_t)n * length * width * sizeof *y);
    int8_t *codes = malloc((size_t)n * length * width);
    uint32_t *at = malloc(n * sizeof *at), seed = r->seed;
    sl_attention_piece *pieces = malloc(n * sizeof *pieces);
    const float *got;
    const int8_t *got_codes;
    size_t different = 0;
    *n_rows = 0;
    bool ok = y && codes && at && pieces;
    for (uint32_t i = 0; ok && i < n; i++) {
        const sl_attention_piece whole = {i, 0, length};
        ok = sl_attention_rig_run(r, &whole, 1, &got, &got_codes);
        take_rows(r, &whole, 0, y, codes, false);
    }
    for (uint32_t round = 0; ok && round < n_rounds; round++) {
        memset(at, 0, n * sizeof *at);
        clear_pages(r);
        for (uint32_t left = n * length; ok && left > 0;) {
            uint32_t n_pieces = 0, room = r->shape.most_rows;
            for (uint32_t i = 0; i < n; i++) {
                const uint32_t size = most[next_random(&seed) % (sizeof most / sizeof *most)];
                uint32_t rows = round == 0 ? 1 : 1 + next_random(&seed) % size;
                rows = rows < length - at[i] ? rows : length - at[i];
                rows = rows < room ? rows : room;
                if (rows == 0 || (round > 0 && next_random(&seed) % 3 == 0))
                    continue;
                pieces[n_pieces++] = (sl_attention_piece){i, at[i], rows};
                at[i] += rows;
                room -= rows;
                left -= rows;
            }
            if (n_pieces == 0)
                continue;
            ok = sl_attention_rig_run(r, pieces, n_pieces, &got, &got_codes);
            for (uint32_t k = 0, first = 0; k < n_pieces; first += pieces[k++].n_rows) {
                different += take_rows(r, &pieces[k], first, y, codes, true);
                *n_rows += pieces[k].n_rows;
            }
        }
    }
    free(y);
    free(codes);
    free(at);
    free(pieces);
    return ok ? different : SIZE_MAX;
}

size_t sl_attention_rig_last(sl_attention_rig *r, const uint32_t *sizes, uint32_t n, size_t *n_rows)
{
    const size_t width = (size_t)r->shape.n_heads * DIM;
    const sl_attention_piece whole = {0, 0, r->shape.n_positions};
    float *y = malloc(whole.n_rows * width * sizeof *y);
    int8_t *codes = malloc(whole.n_rows * width);
    const float *got;
    const int8_t *got_codes;
    size_t different = 0;
    bool ok = y && codes && sl_attention_rig_run(r, &whole, 1, &got, &got_codes);
    if (ok)
        take_rows(r, &whole, 0, y, codes, false);
    *n_rows = 0;
    for (uint32_t i = 0; i < n; i++)
        *n_rows += sizes[i];
    sl_attention_piece piece = {0, whole.n_rows - (uint32_t)*n_rows, 0};
    for (uint32_t i = 0; ok && i < n; i++, piece.pos += piece.n_rows) {
        piece.n_rows = sizes[i];
        ok = sl_attention_rig_run(r, &piece, 1, &got, &got_codes);
        different += take_rows(r, &piece, 0, y, codes, true);
    }
    free(y);
    free(codes);
    return ok ? different : SIZE_MAX;
}

/* Norm and rope as the kernels have them. */
static void rotated(const sl_attention_rig *r, const float *in, uint32_t pos, float x[DIM])
{
    float lanes[16] = {0.0f}, sum;
    for (int d = 0; d < DIM; d++)
        lanes[d % 16] = fmaf(in[d], in[d], lanes[d % 16]);
    for (int half = 8; half > 0; half /= 2)
        for (int i = 0; i < half; i++)
            lanes[i] = lanes[i] + lanes[i + half];
    sum = lanes[0];
    const float scale = 1.0f / sqrtf(sum / (float)DIM + 1e-6f);
    for (int d = 0; d < DIM; d++)
        x[d] = in[d] * scale * r->host_vectors[d];
    for (uint32_t i = 0; i < r->shape.n_pairs; i++) {
        float c, s;
        sl_sincos((float)pos * r->host_vectors[2 * DIM + i], &s, &c);
        const float a = x[i], b = x[i + r->shape.n_pairs];
        x[i] = fmaf(a, c, -(b * s));
        x[i + r->shape.n_pairs] = fmaf(b, c, a * s);
    }
}

void sl_attention_rig_reference(sl_attention_rig *r, uint32_t sequence, uint32_t pos, uint32_t head,
                                double out[DIM])
{
    const sl_attention_shape *s = &r->shape;
    const uint32_t kv_head = head / (s->n_heads / s->n_kv_heads), n = pos + 1;
    const float *in = r->base_q + ((size_t)base_row(sequence, pos) * s->n_heads + head) * 2 * DIM;
    float q[DIM], *k_page = malloc(sizeof(float) * DIM * PAGE),
                  *v_page = malloc(sizeof(float) * DIM * PAGE);
    void *raw = malloc(r->head_bytes);
    double *scores = malloc(n * sizeof *scores), largest = -INFINITY, sum = 0.0;
    memset(out, 0, DIM * sizeof *out);
    rotated(r, in, pos, q);
    for (int pass = 0; pass < 2 && k_page && v_page && raw && scores; pass++) {
        for (uint32_t p = 0; p * PAGE < n; p++) {
            const char *page = r->pages[sequence * n_pages_of(r) + p];
            const char *from = page + ((uint32_t)pass * s->n_kv_heads + kv_head) * r->head_bytes;
            float *to = pass == 0 ? k_page : v_page;
            cudaMemcpy(s->kv_f32 ? (void *)to : raw, from, r->head_bytes, cudaMemcpyDeviceToHost);
            if (!s->kv_f32)
                sl_dequantise(SL_F16, raw, to, (size_t)DIM * PAGE);
            for (uint32_t j = 0; j < PAGE && p * PAGE + j < n; j++) {
                double *score = &scores[p * PAGE + j];
                if (pass == 0) {
                    *score = 0.0;
                    for (uint32_t d = 0; d < DIM; d++)
                        *score += (double)q[d] * (double)k_page[d * PAGE + j] / 16.0;
                    largest = *score > largest ? *score : largest;
                } else {
                    const double w = exp(*score - largest);
                    sum += w;
                    for (uint32_t d = 0; d < DIM; d++)
                        out[d] += w * (double)v_page[j * DIM + d];
                }
            }
        }
    }
    for (uint32_t d = 0; d < DIM; d++)
        out[d] = out[d] / sum / (1.0 + exp(-(double)in[DIM + d]));
    free(k_page);
    free(v_page);
    free(raw);
    free(scores);
}

double sl_attention_rig_time(sl_attention_rig *r, uint32_t n_launches, uint32_t n_replays)
{
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    cudaEvent_t begin, end;
    float ms = -1.0f;
    if (cudaStreamBeginCapture(r->queue.stream, cudaStreamCaptureModeThreadLocal) != cudaSuccess)
        return -1.0;
    r->only_codes = true;
    for (uint32_t i = 0; i < n_launches; i++)
        sl_attention_rig_launch(r, i % r->shape.n_layers, &r->queue);
    r->only_codes = false;
    if (cudaStreamEndCapture(r->queue.stream, &graph) != cudaSuccess ||
        cudaGraphInstantiate(&exec, graph, 0) != cudaSuccess)
        return -1.0;
    cudaEventCreate(&begin);
    cudaEventCreate(&end);
    cudaGraphLaunch(exec, r->queue.stream);
    cudaEventRecord(begin, r->queue.stream);
    for (uint32_t i = 0; i < n_replays; i++)
        cudaGraphLaunch(exec, r->queue.stream);
    cudaEventRecord(end, r->queue.stream);
    if (cudaEventSynchronize(end) == cudaSuccess)
        cudaEventElapsedTime(&ms, begin, end);
    cudaEventDestroy(begin);
    cudaEventDestroy(end);
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
    return 1000.0 * (double)ms / n_launches / n_replays;
}

#endif
