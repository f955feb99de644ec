/* Gated softmax attention between its projections, section 7.
 *   prepare  every row and head: norm, rope; key heads are appended to the KV pages
 *   attend   every query head over blocks of 256 keys at absolute positions; blocks are merged in
 *            ascending order, in the same kernel or, when few rows would leave the device idle, by
 *            one that follows
 * Slots that hold no key are never read into a result. */
#include <cuda_fp16.h>

#include "backend/cuda/kernels/common.cuh"

enum {
    DIM = SL_ATTN_DIM,
    BLOCK = 256, /* keys */
    PAGE = SL_KV_PAGE,
    ROWS = 8,          /* query rows that share the keys they read */
    PART = DIM + 2,    /* m, l, o of one block of one query */
    SPLIT_MAX_ROWS = 16 /* up to so many rows a run, blocks are computed apart */
};

/* ---- prepare ---- */

static __device__ inline uint16_t half_bits(float x)
{
    return __half_as_ushort(__float2half_rn(x));
}

/* Block: one row, one query or key head; 256 threads. Queries wait in y, where the result will be. */
static __global__ void prepare_kernel(const sl_cu_rows rows, const sl_cu_attention at)
{
    wait_for_previous();
    const uint32_t row = blockIdx.x, d = threadIdx.x;
    const bool is_query = blockIdx.y < at.n_heads;
    const uint32_t head = is_query ? blockIdx.y : blockIdx.y - at.n_heads;
    const sl_cu_segment &segment = rows.segments[rows.segment_of[row]];
    const uint32_t pos = segment.pos + row - segment.first_row;
    __shared__ float x[DIM], r;
    x[d] = is_query ? at.q[((size_t)row * at.n_heads + head) * 2 * DIM + d]
                    : at.k[((size_t)row * at.n_kv_heads + head) * DIM + d];
    __syncthreads();
    if (d < WARP) {
        float sum = sum_squares(x, DIM);
        if (d == 0)
            r = 1.0f / sqrtf(sum / (float)DIM + at.eps);
    }
    __syncthreads();
    x[d] = (x[d] * r) * (is_query ? at.q_norm : at.k_norm)[d];
    __syncthreads();
    if (d < at.n_pairs) {
        float c, s;
        sl_sincos((float)pos * at.inv_freq[d], &s, &c);
        c = c * at.rope_scale;
        s = s * at.rope_scale;
        const float a = x[d], b = x[d + at.n_pairs];
        x[d] = fmaf(a, c, -(b * s));
        x[d + at.n_pairs] = fmaf(b, c, a * s);
    }
    __syncthreads();
    if (is_query) {
        at.y[((size_t)row * at.n_heads + head) * DIM + d] = x[d];
        return;
    }
    const float value = at.v[((size_t)row * at.n_kv_heads + head) * DIM + d];
    char *page = (char *)segment.kv_pages[pos / PAGE];
    const size_t k_head = (size_t)at.index * 2 * at.n_kv_heads + head, slot = pos % PAGE;
    char *k_page = page + k_head * at.kv_head_bytes;
    char *v_page = page + (k_head + at.n_kv_heads) * at.kv_head_bytes;
    if (at.kv_f32) {
        ((float *)k_page)[d * PAGE + slot] = x[d];
        ((float *)v_page)[slot * DIM + d] = value;
    } else {
        ((uint16_t *)k_page)[d * PAGE + slot] = half_bits(x[d]);
        ((uint16_t *)v_page)[slot * DIM + d] = half_bits(value);
    }
}

/* ---- attend ---- */

template <bool F32> static __device__ inline float load_kv(const char *page, uint32_t at)
{
    return F32 ? ((const float *)page)[at]
               : __half2float(__ushort_as_half(((const uint16_t *)page)[at]));
}

typedef struct block_memory {
    float q[ROWS][DIM];
    float p[ROWS][BLOCK];
    float m[ROWS], l[ROWS];
} block_memory;

/* The largest of each row's scores, which lie in p. larger(a, b) = a < b ? b : a, ascending: for
 * numbers any order gives the same; a NaN among them makes the row NaN whichever is taken. */
static __device__ inline void block_maximum(block_memory &s, const uint32_t n_keys[ROWS])
{
    const uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    float m = -sl_float_of_bits(0x7F800000u);
    for (uint32_t j = lane; j < n_keys[warp]; j += WARP)
        m = m < s.p[warp][j] ? s.p[warp][j] : m;
    for (int half = WARP / 2; half > 0; half /= 2) {
        float other = __shfl_xor_sync(0xFFFFFFFFu, m, half);
        m = m < other ? other : m;
    }
    if (lane == 0)
        s.m[warp] = m;
}

/* Softmax over the keys first .. first + 255 of one KV head for up to 8 query rows; thread d leaves
 * with o[row][d]. n_keys[row]: keys of the block that the row sees, 0 = none. */
template <bool F32>
static __device__ inline void attend_block(block_memory &s, void *const *pages, size_t k_offset,
                                           size_t v_offset, const uint32_t n_keys[ROWS],
                                           float o[ROWS])
{
    uint32_t most = 0;
#pragma unroll
    for (int i = 0; i < ROWS; i++)
        most = most < n_keys[i] ? n_keys[i] : most;
    const uint32_t j = threadIdx.x;
    const char *v_pages[BLOCK / PAGE];
#pragma unroll
    for (int p = 0; p < BLOCK / PAGE; p++)
        v_pages[p] = p * PAGE < most ? (const char *)pages[p] + v_offset : NULL;
    if (j < most) {
        const char *page = (const char *)pages[j / PAGE] + k_offset;
        float score[ROWS] = {0.0f};
#pragma unroll 32
        for (uint32_t d = 0; d < DIM; d++) {
            const float key = load_kv<F32>(page, d * PAGE + j % PAGE);
#pragma unroll
            for (int i = 0; i < ROWS; i++)
                score[i] = fmaf(s.q[i][d], key, score[i]);
        }
#pragma unroll
        for (int i = 0; i < ROWS; i++)
            s.p[i][j] = score[i] * 0.0625f;
    }
    __syncthreads();
    block_maximum(s, n_keys);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        if (j < n_keys[i])
            s.p[i][j] = sl_expf(s.p[i][j] - s.m[i]);
    }
    __syncthreads();
    const uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    float sum = 0.0f;
    for (uint32_t k = lane % SUM_LANES; k < n_keys[warp]; k += SUM_LANES)
        sum = sum + s.p[warp][k];
    sum = sum_tree(sum);
    if (lane == 0)
        s.l[warp] = sum;

    const uint32_t d = threadIdx.x;
#pragma unroll
    for (int i = 0; i < ROWS; i++)
        o[i] = 0.0f;
#pragma unroll
    for (int p = 0; p < BLOCK / PAGE; p++) {
        const uint32_t end = most < (p + 1) * PAGE ? most : (p + 1) * PAGE;
        const char *page = v_pages[p] + d * (F32 ? 4 : 2);
#pragma unroll 16
        for (uint32_t k = p * PAGE; k < end; k++) {
            const float value = load_kv<F32>(page, (k - p * PAGE) * DIM);
#pragma unroll
            for (int i = 0; i < ROWS; i++) {
                if (k < n_keys[i])
                    o[i] = fmaf(s.p[i][k], value, o[i]);
            }
        }
    }
    __syncthreads();
}

static __device__ inline float gated(const sl_cu_attention &at, size_t row, uint32_t head,
                                     uint32_t d, float o)
{
    return o * sl_sigmoid(at.q[(row * at.n_heads + head) * 2 * DIM + DIM + d]);
}


static __device__ inline uint32_t keys_in_block(const sl_cu_segment &segment, uint32_t row,
                                                uint32_t first_key)
{
    const uint32_t n = segment.pos + row - segment.first_row + 1;
    if (n <= first_key)
        return 0;
    return n - first_key < BLOCK ? n - first_key : BLOCK;
}

/* Block: 8 rows of one segment from rows 8 * blockIdx.x of it on, one query head, all key blocks. */
template <bool F32>
static __global__ void __launch_bounds__(DIM)
    attend_kernel(const sl_cu_rows rows, const sl_cu_attention at)
{
    __shared__ block_memory s;
    const sl_cu_segment segment = rows.segments[blockIdx.z];
    const uint32_t begin = blockIdx.x * ROWS, head = blockIdx.y, d = threadIdx.x;
    if (begin >= segment.n_rows)
        return;
    const uint32_t count = segment.n_rows - begin < ROWS ? segment.n_rows - begin : ROWS;
    const uint32_t row = segment.first_row + begin;
    const uint32_t kv_head = head / (at.n_heads / at.n_kv_heads);
    const size_t k_head = (size_t)at.index * 2 * at.n_kv_heads + kv_head;
    const size_t k_offset = k_head * at.kv_head_bytes;
    const size_t v_offset = (k_head + at.n_kv_heads) * at.kv_head_bytes;
    for (uint32_t i = 0; i < ROWS; i++)
        s.q[i][d] = i < count ? at.y[((size_t)(row + i) * at.n_heads + head) * DIM + d] : 0.0f;
    __syncthreads();

    float m[ROWS], l[ROWS], o[ROWS];
    const uint32_t total = segment.pos + begin + count;
    for (uint32_t first = 0; first < total; first += BLOCK) {
        uint32_t n_keys[ROWS];
        float part[ROWS];
#pragma unroll
        for (uint32_t i = 0; i < ROWS; i++)
            n_keys[i] = i < count ? keys_in_block(segment, row + i, first) : 0;
        attend_block<F32>(s, segment.kv_pages + first / PAGE, k_offset, v_offset, n_keys, part);
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            if (n_keys[i] == 0)
                continue;
            if (first == 0) {
                m[i] = s.m[i];
                l[i] = s.l[i];
                o[i] = part[i];
                continue;
            }
            const float larger = m[i] < s.m[i] ? s.m[i] : m[i];
            const float x = sl_expf(m[i] - larger), y = sl_expf(s.m[i] - larger);
            m[i] = larger;
            l[i] = fmaf(l[i], x, s.l[i] * y);
            o[i] = fmaf(o[i], x, part[i] * y);
        }
        __syncthreads();
    }
#pragma unroll
    for (uint32_t i = 0; i < ROWS; i++) {
        if (i < count)
            at.y[((size_t)(row + i) * at.n_heads + head) * DIM + d] =
                gated(at, row + i, head, d, o[i] / l[i]);
    }
}

/* Block: one key block of one KV head for the query heads of its group, one row. */
template <bool F32>
static __global__ void __launch_bounds__(DIM)
    split_kernel(const sl_cu_rows rows, const sl_cu_attention at, uint32_t n_blocks)
{
    __shared__ block_memory s;
    wait_for_previous();
    const uint32_t row = blockIdx.z, d = threadIdx.x, group = at.n_heads / at.n_kv_heads;
    const uint32_t parts = div_up(group, ROWS), kv_head = blockIdx.y / parts;
    const uint32_t head = kv_head * group + blockIdx.y % parts * ROWS;
    const uint32_t count = (kv_head + 1) * group - head < ROWS ? (kv_head + 1) * group - head : ROWS;
    const sl_cu_segment &segment = rows.segments[rows.segment_of[row]];
    const uint32_t first = blockIdx.x * BLOCK, n = keys_in_block(segment, row, first);
    if (n == 0)
        return;
    const size_t k_head = (size_t)at.index * 2 * at.n_kv_heads + kv_head;
    uint32_t n_keys[ROWS];
#pragma unroll
    for (uint32_t i = 0; i < ROWS; i++) {
        n_keys[i] = i < count ? n : 0;
        s.q[i][d] = i < count ? at.y[((size_t)row * at.n_heads + head + i) * DIM + d] : 0.0f;
    }
    __syncthreads();
    float o[ROWS];
    attend_block<F32>(s, segment.kv_pages + first / PAGE, k_head * at.kv_head_bytes,
                      (k_head + at.n_kv_heads) * at.kv_head_bytes, n_keys, o);
#pragma unroll
    for (uint32_t i = 0; i < ROWS; i++) {
        if (i >= count)
            continue;
        float *part =
            at.scratch + (((size_t)row * at.n_heads + head + i) * n_blocks + blockIdx.x) * PART;
        part[2 + d] = o[i];
        if (d == 0) {
            part[0] = s.m[i];
            part[1] = s.l[i];
        }
    }
}

/* Block: one row, one query head: its key blocks merged in order. */
static __global__ void __launch_bounds__(DIM)
    merge_kernel(const sl_cu_rows rows, const sl_cu_attention at, uint32_t n_blocks)
{
    wait_for_previous();
    const uint32_t row = blockIdx.x, head = blockIdx.y, d = threadIdx.x;
    const sl_cu_segment &segment = rows.segments[rows.segment_of[row]];
    const float *parts = at.scratch + ((size_t)row * at.n_heads + head) * n_blocks * PART;
    const uint32_t n = segment.pos + row - segment.first_row + 1;
    float m = parts[0], l = parts[1], o = parts[2 + d];
    for (uint32_t b = 1; b * BLOCK < n; b++) {
        const float *part = parts + b * PART;
        const float larger = m < part[0] ? part[0] : m;
        const float x = sl_expf(m - larger), y = sl_expf(part[0] - larger);
        m = larger;
        l = fmaf(l, x, part[1] * y);
        o = fmaf(o, x, part[2 + d] * y);
    }
    const size_t index = ((size_t)row * at.n_heads + head) * DIM + d;
    const float y = gated(at, row, head, d, o / l);
    at.y[index] = y;
    if (at.yq.q) {
        const size_t block = index / SL_Q8_BLOCK;
        quantise_block(y, at.yq.q + block * SL_Q8_BLOCK, at.yq.d + block, at.yq.sums + 2 * block);
    }
}

template <bool F32>
static void attend(const sl_cu_queue *queue, const sl_cu_rows *rows, const sl_cu_attention *at)
{
    const uint32_t n_blocks = div_up(at->max_keys, BLOCK);
    const uint32_t group = at->n_heads / at->n_kv_heads;
    if (rows->n_rows <= SPLIT_MAX_ROWS &&
        (size_t)rows->n_rows * at->n_heads * n_blocks * PART <= at->scratch_floats) {
        dim3 grid(n_blocks, at->n_kv_heads * div_up(group, ROWS), rows->n_rows);
        launch(queue, split_kernel<F32>, grid, dim3(DIM), 0, *rows, *at, n_blocks);
        launch(queue, merge_kernel, dim3(rows->n_rows, at->n_heads), dim3(DIM), 0, *rows, *at,
               n_blocks);
        return;
    }
    dim3 grid(div_up(rows->n_rows, ROWS), at->n_heads, rows->n_segments);
    attend_kernel<F32><<<grid, DIM, 0, queue->stream>>>(*rows, *at);
    if (at->yq.q)
        sl_cu_quantise(queue->stream, at->y, rows->n_rows, at->n_heads * DIM, at->yq);
}

void sl_cu_attention_layer(const sl_cu_queue *queue, const sl_cu_rows *rows,
                           const sl_cu_attention *at)
{
    launch(queue, prepare_kernel, dim3(rows->n_rows, at->n_heads + at->n_kv_heads), dim3(DIM), 0,
           *rows, *at);
    if (at->kv_f32)
        attend<true>(queue, rows, at);
    else
        attend<false>(queue, rows, at);
}
