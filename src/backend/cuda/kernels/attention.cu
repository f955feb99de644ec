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
    BLOCK = SL_CU_KEY_BLOCK,
    PAGE = SL_KV_PAGE,
    ROWS = 16,     /* query rows that share the keys they read */
    PART = DIM + 2 /* m, l, o of one block of one query */
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
    alignas(16) float q[ROWS][DIM];
    float p[ROWS][BLOCK];
    float m[ROWS], l[ROWS];
    uint32_t n_keys[ROWS];
} block_memory;

/* The largest of each row's scores, which lie in p. larger(a, b) = a < b ? b : a, ascending: for
 * numbers any order gives the same; a NaN among them makes the row NaN whichever is taken. */
static __device__ inline void block_maximum(block_memory &s)
{
    const uint32_t lane = threadIdx.x % WARP;
    for (uint32_t i = threadIdx.x / WARP; i < ROWS; i += DIM / WARP) {
        float m = -sl_float_of_bits(0x7F800000u);
        for (uint32_t j = lane; j < s.n_keys[i]; j += WARP)
            m = m < s.p[i][j] ? s.p[i][j] : m;
        for (int half = WARP / 2; half > 0; half /= 2) {
            float other = __shfl_xor_sync(0xFFFFFFFFu, m, half);
            m = m < other ? other : m;
        }
        if (lane == 0)
            s.m[i] = m;
    }
}

static __device__ inline void block_sums(block_memory &s)
{
    const uint32_t lane = threadIdx.x % WARP;
    for (uint32_t i = threadIdx.x / WARP; i < ROWS; i += DIM / WARP) {
        float sum = 0.0f;
        for (uint32_t k = lane % SUM_LANES; k < s.n_keys[i]; k += SUM_LANES)
            sum = sum + s.p[i][k];
        sum = sum_tree(sum);
        if (lane == 0)
            s.l[i] = sum;
    }
}

/* How the threads of a block share the work: 4 queries, and 4 keys or 4 dimensions, each. */
enum { EACH = 4, SIDE = DIM / EACH };

/* Four neighbours of a page. */
template <bool F32> static __device__ inline float4 load_four(const char *page, uint32_t at)
{
    if (F32)
        return *(const float4 *)((const float *)(const void *)page + at);
    const uint2 bits = *(const uint2 *)((const uint16_t *)(const void *)page + at);
    const float2 a = __half22float2(*(const __half2 *)&bits.x);
    const float2 b = __half22float2(*(const __half2 *)&bits.y);
    return make_float4(a.x, a.y, b.x, b.y);
}

static __device__ inline void add_products(float sum[EACH], float w, const float4 &x)
{
    sum[0] = fmaf(w, x.x, sum[0]);
    sum[1] = fmaf(w, x.y, sum[1]);
    sum[2] = fmaf(w, x.z, sum[2]);
    sum[3] = fmaf(w, x.w, sum[3]);
}

/* Softmax over a block of keys of one KV head for up to 16 query rows: a thread leaves with four
 * dimensions of four rows. s.n_keys[row]: keys of the block that the row sees, 0 = none. */
template <bool F32>
static __device__ inline void attend_block(block_memory &s, void *const *pages, size_t k_offset,
                                           size_t v_offset, float o[EACH][EACH])
{
    uint32_t most = 0, least = BLOCK; /* of the rows that see any */
    for (int i = 0; i < ROWS; i++) {
        const uint32_t n = s.n_keys[i];
        most = most < n ? n : most;
        least = n > 0 && n < least ? n : least;
    }
    const uint32_t row = threadIdx.x / SIDE * EACH, at = threadIdx.x % SIDE * EACH;
    const char *v_pages[BLOCK / PAGE];
#pragma unroll
    for (int p = 0; p < BLOCK / PAGE; p++)
        v_pages[p] = p * PAGE < most ? (const char *)pages[p] + v_offset : NULL;
    if (at < most) {
        const char *page = (const char *)pages[at / PAGE] + k_offset;
        float score[EACH][EACH] = {{0.0f}};
#pragma unroll 4
        for (uint32_t d = 0; d < DIM; d += 4) {
            float4 key[4];
#pragma unroll
            for (uint32_t x = 0; x < 4; x++)
                key[x] = load_four<F32>(page, (d + x) * PAGE + at % PAGE);
#pragma unroll
            for (int i = 0; i < EACH; i++) {
                const float4 q = *(const float4 *)&s.q[row + i][d];
                add_products(score[i], q.x, key[0]);
                add_products(score[i], q.y, key[1]);
                add_products(score[i], q.z, key[2]);
                add_products(score[i], q.w, key[3]);
            }
        }
#pragma unroll
        for (int i = 0; i < EACH; i++)
            *(float4 *)&s.p[row + i][at] = make_float4(score[i][0] * 0.0625f, score[i][1] * 0.0625f,
                                                       score[i][2] * 0.0625f, score[i][3] * 0.0625f);
    }
    __syncthreads();
    block_maximum(s);
    __syncthreads();
#pragma unroll 4
    for (int i = 0; i < ROWS; i++) {
        if (threadIdx.x < s.n_keys[i])
            s.p[i][threadIdx.x] = sl_expf(s.p[i][threadIdx.x] - s.m[i]);
    }
    __syncthreads();
    block_sums(s);

#pragma unroll
    for (int i = 0; i < EACH; i++) {
#pragma unroll
        for (int x = 0; x < EACH; x++)
            o[i][x] = 0.0f;
    }
    /* Keys that every row sees, four at a time; then the others, each for the rows that see it. Rows
     * that see none have o unused. */
#pragma unroll
    for (int p = 0; p < BLOCK / PAGE; p++) {
        const uint32_t first = p * PAGE, end = most < first + PAGE ? most : first + PAGE;
        const uint32_t all = least < end ? least / 4 * 4 : end / 4 * 4;
        uint32_t k = first;
#pragma unroll 2
        for (; k + 4 <= all; k += 4) {
            float4 value[4];
#pragma unroll
            for (uint32_t x = 0; x < 4; x++)
                value[x] = load_four<F32>(v_pages[p], (k + x - first) * DIM + at);
#pragma unroll
            for (int i = 0; i < EACH; i++) {
                const float4 w = *(const float4 *)&s.p[row + i][k];
                add_products(o[i], w.x, value[0]);
                add_products(o[i], w.y, value[1]);
                add_products(o[i], w.z, value[2]);
                add_products(o[i], w.w, value[3]);
            }
        }
        for (; k < end; k++) {
            const float4 value = load_four<F32>(v_pages[p], (k - first) * DIM + at);
#pragma unroll
            for (int i = 0; i < EACH; i++) {
                if (k < s.n_keys[row + i])
                    add_products(o[i], s.p[row + i][k], value);
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

/* Block: 16 rows of one segment from row 16 * blockIdx.x of it on, one query head, all key blocks. */
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

    const uint32_t mine = d / SIDE * EACH, at_dim = d % SIDE * EACH;
    float m[EACH], l[EACH], o[EACH][EACH];
    const uint32_t total = segment.pos + begin + count;
    for (uint32_t first = 0; first < total; first += BLOCK) {
        float part[EACH][EACH];
        if (d < ROWS)
            s.n_keys[d] = d < count ? keys_in_block(segment, row + d, first) : 0;
        __syncthreads();
        attend_block<F32>(s, segment.kv_pages + first / PAGE, k_offset, v_offset, part);
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            if (s.n_keys[mine + i] == 0)
                continue;
            const float m_b = s.m[mine + i], l_b = s.l[mine + i];
            if (first == 0) {
                m[i] = m_b;
                l[i] = l_b;
#pragma unroll
                for (int x = 0; x < EACH; x++)
                    o[i][x] = part[i][x];
                continue;
            }
            const float larger = m[i] < m_b ? m_b : m[i];
            const float x = sl_expf(m[i] - larger), y = sl_expf(m_b - larger);
            m[i] = larger;
            l[i] = fmaf(l[i], x, l_b * y);
#pragma unroll
            for (int k = 0; k < EACH; k++)
                o[i][k] = fmaf(o[i][k], x, part[i][k] * y);
        }
        __syncthreads();
    }
#pragma unroll
    for (uint32_t i = 0; i < EACH; i++) {
        if (mine + i >= count)
            continue;
        const size_t out = (size_t)(row + mine + i);
#pragma unroll
        for (uint32_t x = 0; x < EACH; x++)
            at.y[(out * at.n_heads + head) * DIM + at_dim + x] =
                gated(at, out, head, at_dim + x, o[i][x] / l[i]);
    }
}

/* A key block's pages in shared memory: keys first, values in the same place once they are used. */
enum {
    STAGES = 8,                   /* parts of a block that are waited for one by one */
    STAGE_DIMS = DIM / STAGES,    /* keys: dimensions of all 256 keys */
    STAGE_KEYS = BLOCK / STAGES   /* values: keys of all 256 dimensions */
};

typedef struct split_memory {
    uint16_t kv[DIM * BLOCK]; /* keys [dim][256], then values [key][256] */
    float q[ROWS][DIM];
    float p[ROWS][BLOCK];
    float m[ROWS], l[ROWS];
} split_memory;

/* Stage `stage` of the keys: dimensions 32 stage .., of pages below n_pages. */
static __device__ __forceinline__ void copy_keys(split_memory &s, const char *const pages[],
                                                 uint32_t n_pages, size_t k_offset, uint32_t stage)
{
    enum { PER_ROW = PAGE * 2 / 16 }; /* pieces of 16 bytes of one dimension in one page */
    for (uint32_t x = threadIdx.x; x < STAGE_DIMS * n_pages * PER_ROW; x += DIM) {
        const uint32_t piece = x % PER_ROW, page = x / PER_ROW % n_pages;
        const uint32_t d = stage * STAGE_DIMS + x / PER_ROW / n_pages;
        copy_ahead(s.kv + d * BLOCK + page * PAGE + piece * 8,
                   pages[page] + k_offset + (size_t)(d * PAGE + piece * 8) * 2);
    }
    end_of_copies();
}

static __device__ __forceinline__ void copy_values(split_memory &s, const char *const pages[],
                                                   uint32_t n, size_t v_offset, uint32_t stage)
{
    enum { PER_ROW = DIM * 2 / 16 };
    for (uint32_t x = threadIdx.x; x < STAGE_KEYS * PER_ROW; x += DIM) {
        const uint32_t piece = x % PER_ROW, key = stage * STAGE_KEYS + x / PER_ROW;
        if (key < n)
            copy_ahead(s.kv + key * DIM + piece * 8,
                       pages[key / PAGE] + v_offset + (size_t)(key % PAGE * DIM + piece * 8) * 2);
    }
    end_of_copies();
}

/* Runs f(stage) for the stages in order, each when its copy has arrived. */
template <typename F> static __device__ __forceinline__ void each_stage(F f)
{
    wait_for_copies<7>();
    __syncthreads();
    f(0);
    wait_for_copies<6>();
    __syncthreads();
    f(1);
    wait_for_copies<5>();
    __syncthreads();
    f(2);
    wait_for_copies<4>();
    __syncthreads();
    f(3);
    wait_for_copies<3>();
    __syncthreads();
    f(4);
    wait_for_copies<2>();
    __syncthreads();
    f(5);
    wait_for_copies<1>();
    __syncthreads();
    f(6);
    wait_for_copies<0>();
    __syncthreads();
    f(7);
}

static __device__ __forceinline__ float half_value(uint16_t bits)
{
    return __half2float(__ushort_as_half(bits));
}

/* Block: one key block of one KV head for COUNT query heads of its group, one row; halves. Keys of
 * earlier positions are on their way before the row's own key is there. */
template <int COUNT>
static __global__ void __launch_bounds__(DIM)
    split_half_kernel(const sl_cu_rows rows, const __grid_constant__ sl_cu_attention at,
                      uint32_t n_blocks)
{
    extern __shared__ uint4 raw[];
    split_memory &s = *(split_memory *)(void *)raw;
    const uint32_t row = blockIdx.z, d = threadIdx.x, group = at.n_heads / at.n_kv_heads;
    const uint32_t parts = group / COUNT, kv_head = blockIdx.y / parts;
    const uint32_t head = kv_head * group + blockIdx.y % parts * COUNT;
    const sl_cu_segment *segment = &rows.segments[rows.segment_of[row]];
    const uint32_t pos = segment->pos + row - segment->first_row, run_begin = segment->pos;
    const uint32_t first = blockIdx.x * BLOCK;
    if (pos < first) {
        wait_for_previous();
        return;
    }
    const uint32_t n = pos + 1 - first < BLOCK ? pos + 1 - first : BLOCK;
    const uint32_t n_pages = div_up(n, PAGE);
    const char *pages[BLOCK / PAGE];
#pragma unroll
    for (uint32_t p = 0; p < BLOCK / PAGE; p++)
        pages[p] = (const char *)segment->kv_pages[first / PAGE + (p < n_pages ? p : 0)];
    const size_t k_head = (size_t)at.index * 2 * at.n_kv_heads + kv_head;
    const size_t k_offset = k_head * at.kv_head_bytes;
    const size_t v_offset = (k_head + at.n_kv_heads) * at.kv_head_bytes;

    const bool fresh = run_begin < first + n; /* the block has keys of this run */
    if (fresh)
        wait_for_previous();
#pragma unroll
    for (uint32_t stage = 0; stage < STAGES; stage++)
        copy_keys(s, pages, n_pages, k_offset, stage);
    if (!fresh)
        wait_for_previous();
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        s.q[i][d] = at.y[((size_t)row * at.n_heads + head + i) * DIM + d];

    float score[COUNT] = {0.0f};
    each_stage([&](uint32_t stage) {
#pragma unroll 8
        for (uint32_t k = 0; k < STAGE_DIMS; k++) {
            const uint32_t dim = stage * STAGE_DIMS + k;
            const float key = half_value(s.kv[dim * BLOCK + d]);
#pragma unroll
            for (int i = 0; i < COUNT; i++)
                score[i] = fmaf(s.q[i][dim], key, score[i]);
        }
    });
    __syncthreads();
#pragma unroll
    for (uint32_t stage = 0; stage < STAGES; stage++)
        copy_values(s, pages, n, v_offset, stage);
    if (d < n) {
#pragma unroll
        for (int i = 0; i < COUNT; i++)
            s.p[i][d] = score[i] * 0.0625f;
    }
    __syncthreads();
    const uint32_t warp = d / WARP, lane = d % WARP;
    if (warp < COUNT) {
        float m = -sl_float_of_bits(0x7F800000u);
        for (uint32_t j = lane; j < n; j += WARP)
            m = m < s.p[warp][j] ? s.p[warp][j] : m;
        for (int half = WARP / 2; half > 0; half /= 2) {
            const float other = __shfl_xor_sync(0xFFFFFFFFu, m, half);
            m = m < other ? other : m;
        }
        for (uint32_t j = lane; j < n; j += WARP)
            s.p[warp][j] = sl_expf(s.p[warp][j] - m);
        __syncwarp();
        float sum = 0.0f;
        for (uint32_t k = lane % SUM_LANES; k < n; k += SUM_LANES)
            sum = sum + s.p[warp][k];
        sum = sum_tree(sum);
        if (lane == 0) {
            s.m[warp] = m;
            s.l[warp] = sum;
        }
    }
    float o[COUNT] = {0.0f};
    each_stage([&](uint32_t stage) {
        const uint32_t end = (stage + 1) * STAGE_KEYS < n ? (stage + 1) * STAGE_KEYS : n;
#pragma unroll 8
        for (uint32_t k = stage * STAGE_KEYS; k < end; k++) {
            const float value = half_value(s.kv[k * DIM + d]);
#pragma unroll
            for (int i = 0; i < COUNT; i++)
                o[i] = fmaf(s.p[i][k], value, o[i]);
        }
    });
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        float *part =
            at.scratch + (((size_t)row * at.n_heads + head + i) * n_blocks + blockIdx.x) * PART;
        part[2 + d] = o[i];
        if (d == 0) {
            part[0] = s.m[i];
            part[1] = s.l[i];
        }
    }
}

/* The same with float keys and values, which no production run has: nothing is fetched ahead. */
static __global__ void __launch_bounds__(DIM)
    split_float_kernel(const sl_cu_rows rows, const sl_cu_attention at, uint32_t n_blocks)
{
    __shared__ block_memory s;
    wait_for_previous();
    const uint32_t row = blockIdx.z, d = threadIdx.x, group = at.n_heads / at.n_kv_heads;
    const uint32_t parts = div_up(group, ROWS), kv_head = blockIdx.y / parts;
    const uint32_t head = kv_head * group + blockIdx.y % parts * ROWS;
    const uint32_t left = (kv_head + 1) * group - head, count = left < ROWS ? left : ROWS;
    const sl_cu_segment &segment = rows.segments[rows.segment_of[row]];
    const uint32_t first = blockIdx.x * BLOCK, n = keys_in_block(segment, row, first);
    if (n == 0)
        return;
    const size_t k_head = (size_t)at.index * 2 * at.n_kv_heads + kv_head;
    if (d < ROWS)
        s.n_keys[d] = d < count ? n : 0;
    for (uint32_t i = 0; i < ROWS; i++)
        s.q[i][d] = i < count ? at.y[((size_t)row * at.n_heads + head + i) * DIM + d] : 0.0f;
    __syncthreads();
    float o[EACH][EACH];
    attend_block<true>(s, segment.kv_pages + first / PAGE, k_head * at.kv_head_bytes,
                       (k_head + at.n_kv_heads) * at.kv_head_bytes, o);
    const uint32_t mine = d / SIDE * EACH, at_dim = d % SIDE * EACH;
#pragma unroll
    for (uint32_t i = 0; i < EACH; i++) {
        if (mine + i >= count)
            continue;
        float *part = at.scratch +
                      (((size_t)row * at.n_heads + head + mine + i) * n_blocks + blockIdx.x) * PART;
#pragma unroll
        for (uint32_t x = 0; x < EACH; x++)
            part[2 + at_dim + x] = o[i][x];
        if (at_dim == 0) {
            part[0] = s.m[mine + i];
            part[1] = s.l[mine + i];
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

template <int COUNT>
static void split_halves(const sl_cu_queue *queue, const sl_cu_rows *rows,
                         const sl_cu_attention *at, uint32_t n_blocks)
{
    cudaFuncSetAttribute(split_half_kernel<COUNT>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                         (int)sizeof(split_memory));
    launch(queue, split_half_kernel<COUNT>, dim3(n_blocks, at->n_heads / COUNT, rows->n_rows),
           dim3(DIM), sizeof(split_memory), *rows, *at, n_blocks);
}

/* Query heads that share a KV head share what they read of it. */
static void split(const sl_cu_queue *queue, const sl_cu_rows *rows, const sl_cu_attention *at,
                  uint32_t n_blocks, bool f32)
{
    const uint32_t group = at->n_heads / at->n_kv_heads;
    if (!f32 && group % 4 == 0) {
        split_halves<4>(queue, rows, at, n_blocks);
    } else if (!f32 && group % 2 == 0) {
        split_halves<2>(queue, rows, at, n_blocks);
    } else if (!f32) {
        split_halves<1>(queue, rows, at, n_blocks);
    } else {
        dim3 grid(n_blocks, at->n_kv_heads * div_up(group, ROWS), rows->n_rows);
        launch(queue, split_float_kernel, grid, dim3(DIM), 0, *rows, *at, n_blocks);
    }
}

size_t sl_cu_attention_scratch(uint32_t n_rows, uint32_t n_heads, uint32_t n_key_blocks)
{
    return n_rows <= SL_CU_SPLIT_ROWS ? (size_t)n_rows * n_heads * n_key_blocks * PART : 0;
}

template <bool F32>
static void attend(const sl_cu_queue *queue, const sl_cu_rows *rows, const sl_cu_attention *at)
{
    if (rows->n_rows <= SL_CU_SPLIT_ROWS) {
        split(queue, rows, at, at->n_key_blocks, F32);
        launch(queue, merge_kernel, dim3(rows->n_rows, at->n_heads), dim3(DIM), 0, *rows, *at,
               at->n_key_blocks);
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
