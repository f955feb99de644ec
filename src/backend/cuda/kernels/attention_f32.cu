/* Attention with float keys and values (--kv f32, for comparisons): sums in the order of section 7,
 * one kernel for prompts and steps. prepare  every row and head: norm, rope; keys and values go to
 * their pages attend   16 rows of one segment and query head over their blocks of 256 keys in turn
 * Slots that hold no key are never read into a result. */
#include "backend/cuda/kernels/attention.cuh"

enum { ROWS = 16 /* query rows that share the keys they read */ };

/* A warp: one row, one query or key head. Queries wait in y, where the result will be. */
static __global__ void __launch_bounds__(DIM)
    prepare_kernel(const sl_cu_rows rows, const __grid_constant__ sl_cu_attention at)
{
    enum { WARPS = DIM / WARP };
    __shared__ float memory[WARPS][DIM];
    wait_for_previous();
    const uint32_t row = blockIdx.x, lane = threadIdx.x % WARP;
    const uint32_t which = blockIdx.y * WARPS + threadIdx.x / WARP;
    if (which >= at.n_heads + at.n_kv_heads)
        return;
    const sl_cu_segment &segment = rows.segments[rows.segment_of[row]];
    const uint32_t pos = segment.pos + row - segment.first_row;
    float *x = memory[threadIdx.x / WARP];
    const rotation turn = rotation_of(at, pos);
    const bool is_query = which < at.n_heads;
    const uint32_t kv_head = which - at.n_heads, slot = pos % PAGE;
    const size_t q = ((size_t)row * at.n_heads + which) * DIM;
    const size_t k = ((size_t)row * at.n_kv_heads + kv_head) * DIM;
    float2 v[PAIRS], w[PAIRS];
    load_row(v, is_query ? at.q + 2 * q : at.k + k);
    load_row(w, is_query ? at.q_norm : at.k_norm);
    rotate_row(at, v, w, turn, pos, x);
    char *page = (char *)segment.kv_pages[pos / PAGE];
#pragma unroll
    for (uint32_t i = 0; i < PAIRS; i++) {
        const uint32_t d = i * 64 + 2 * lane;
        if (is_query) {
            *(float2 *)&at.y[q + d] = v[i];
            continue;
        }
        float *keys = (float *)(void *)(page + key_offset(at, kv_head));
        float *values = (float *)(void *)(page + value_offset(at, kv_head));
        keys[d * PAGE + slot] = v[i].x;
        keys[(d + 1) * PAGE + slot] = v[i].y;
        *(float2 *)&values[slot * DIM + d] = *(const float2 *)&at.v[k + d];
    }
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
static __device__ inline float4 load_four(const char *page, uint32_t at)
{
    return *(const float4 *)((const float *)(const void *)page + at);
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
                key[x] = load_four(page, (d + x) * PAGE + at % PAGE);
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
            *(float4 *)&s.p[row + i][at] =
                make_float4(score[i][0] * 0.0625f, score[i][1] * 0.0625f, score[i][2] * 0.0625f,
                            score[i][3] * 0.0625f);
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
    /* Keys that every row sees, four at a time; then the others, each for the rows that see it.
     * Rows that see none have o unused. */
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
                value[x] = load_four(v_pages[p], (k + x - first) * DIM + at);
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
            const float4 value = load_four(v_pages[p], (k - first) * DIM + at);
#pragma unroll
            for (int i = 0; i < EACH; i++) {
                if (k < s.n_keys[row + i])
                    add_products(o[i], s.p[row + i][k], value);
            }
        }
    }
    __syncthreads();
}

/* Block: 16 rows of one segment from row 16 * blockIdx.x of it on, one query head, all key blocks.
 */
static __global__ void __launch_bounds__(DIM)
    attend_kernel(const sl_cu_rows rows, const __grid_constant__ sl_cu_attention at)
{
    __shared__ block_memory s;
    const sl_cu_segment segment = rows.segments[blockIdx.z];
    const uint32_t begin = blockIdx.x * ROWS, head = blockIdx.y, d = threadIdx.x;
    if (begin >= segment.n_rows)
        return;
    const uint32_t count = segment.n_rows - begin < ROWS ? segment.n_rows - begin : ROWS;
    const uint32_t row = segment.first_row + begin;
    const uint32_t kv_head = head / (at.n_heads / at.n_kv_heads);
    const size_t k_offset = key_offset(at, kv_head), v_offset = value_offset(at, kv_head);
    for (uint32_t i = 0; i < ROWS; i++)
        s.q[i][d] = i < count ? at.y[((size_t)(row + i) * at.n_heads + head) * DIM + d] : 0.0f;
    __syncthreads();

    const uint32_t mine = d / SIDE * EACH, at_dim = d % SIDE * EACH;
    float m[EACH], l[EACH], o[EACH][EACH];
    const uint32_t total = segment.pos + begin + count;
    for (uint32_t first = 0; first < total; first += BLOCK) {
        float part[EACH][EACH];
        if (d < ROWS)
            s.n_keys[d] = d < count ? keys_seen(segment.pos + begin + d, first) : 0;
        __syncthreads();
        attend_block(s, segment.kv_pages + first / PAGE, k_offset, v_offset, part);
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
        for (uint32_t x = 0; x < EACH; x++) {
            const float gate = gate_of(at, out, head, at_dim + x);
            at.y[(out * at.n_heads + head) * DIM + at_dim + x] = o[i][x] / l[i] * sl_sigmoid(gate);
        }
    }
}

void sl_cu_attend_f32(const sl_cu_queue *queue, const sl_cu_rows *rows, const sl_cu_attention *at)
{
    const uint32_t all = at->n_heads + at->n_kv_heads;
    launch(queue, prepare_kernel, dim3(rows->n_rows, div_up(all, DIM / WARP)), dim3(DIM), 0, *rows,
           *at);
    const dim3 grid(div_up(rows->n_rows, ROWS), at->n_heads, rows->n_segments);
    attend_kernel<<<grid, DIM, 0, queue->stream>>>(*rows, *at);
    if (at->yq.q)
        sl_cu_quantise(queue->stream, at->y, rows->n_rows, at->n_heads * DIM, at->yq);
}
