/* Attention for prompts: segments of more than SL_CU_SPLIT_ROWS rows.
 *   append   keys and values of 16 rows go to their pages
 *   attend   64 query rows of one KV head (32 where shared memory is small) over all their key
 *            blocks in turn. Four warps share 32 rows: each has one page of a block for the scores,
 *            then 64 dimensions for o; the weights go through shared memory.
 * Keys come in pieces of 32 dimensions of a block, values in pieces of 32 keys, 16 KB each, copied
 * ahead through a ring. */
#include "backend/cuda/kernels/attention.cuh"

/* ---- append ---- */

enum { APPEND_ROWS = 16, APPEND_THREADS = 256, APPEND_STRIDE = DIM + 1 };

/* Block: 16 rows of one segment from row 16 * blockIdx.x of it on, one KV head. */
static __global__ void __launch_bounds__(APPEND_THREADS)
    append_kernel(const sl_cu_rows rows, const __grid_constant__ sl_cu_attention at)
{
    __shared__ float x[APPEND_ROWS * APPEND_STRIDE];
    __shared__ bool finite[APPEND_ROWS];
    const sl_cu_segment &segment = rows.segments[blockIdx.z];
    const uint32_t begin = blockIdx.x * APPEND_ROWS, kv_head = blockIdx.y;
    if (segment.n_rows <= SL_CU_SPLIT_ROWS || begin >= segment.n_rows)
        return;
    const uint32_t left = segment.n_rows - begin, count = left < APPEND_ROWS ? left : APPEND_ROWS;
    const size_t k_offset = key_offset(at, kv_head), v_offset = value_offset(at, kv_head);
    const uint32_t lane = threadIdx.x % WARP;
    for (uint32_t i = threadIdx.x / WARP; i < count; i += APPEND_THREADS / WARP) {
        const uint32_t pos = segment.pos + begin + i;
        const size_t in = ((size_t)(segment.first_row + begin + i) * at.n_kv_heads + kv_head) * DIM;
        bool all;
        char *page = (char *)segment.kv_pages[pos / PAGE];
        const uint4 piece = value_piece(at.v + in, &all);
        *(uint4 *)(void *)(page + v_offset + pos % PAGE * HALF_ROW + lane * 16) = piece;
        const float *k[1] = {at.k + in};
        const rotation turn = rotation_of(at, pos);
        rotate_rows<1>(at, k, at.k_norm, &turn, x + i * APPEND_STRIDE, 0);
        if (lane == 0)
            finite[i] = all;
    }
    __syncthreads();
    for (uint32_t j = threadIdx.x; j < DIM * APPEND_ROWS; j += APPEND_THREADS) {
        const uint32_t i = j % APPEND_ROWS, d = j / APPEND_ROWS, pos = segment.pos + begin + i;
        if (i < count) {
            char *page = (char *)segment.kv_pages[pos / PAGE];
            ((uint16_t *)(void *)(page + k_offset))[d * PAGE + pos % PAGE] =
                key_half(x[i * APPEND_STRIDE + d], finite[i]);
        }
    }
}

/* ---- attend ---- */

enum {
    WARP_ROWS = 32,
    STEPS = 8,                    /* pieces of the keys of a block, and of its values */
    STEP = 32,                    /* dimensions, or keys, of a piece */
    PIECE = STEP * BLOCK * 2,     /* bytes of one */
    KEY_PAGE = STEP * SHORT_ROW,  /* of that, one page's keys */
    TILES = 8                     /* of 8 columns: 64 keys of a page, or 64 dimensions */
};

/* GROUPS: of 32 query rows. */
template <int GROUPS, int STAGES> struct tile_memory {
    enum { ROWS = GROUPS * WARP_ROWS };
    alignas(128) char ring[STAGES][PIECE];
    char q[2][ROWS * HALF_ROW]; /* high, low */
    char p[2][ROWS * HALF_ROW]; /* the same of weights; before them rows in the making, after them o */
    const char *pages[2][PAGES]; /* of an even and an odd key block */
    float scale[ROWS], largest[ROWS][PAGES], sums[ROWS][PAGES];
};

/* What a block of threads works on. */
typedef struct tile {
    const sl_cu_segment *segment;
    uint32_t kv_head, group;
    uint32_t begin, count; /* query rows */
    uint32_t total;        /* keys that the last of them sees */
    size_t k_offset, v_offset;
} tile;

static __device__ __forceinline__ uint32_t position(const tile &t, uint32_t row)
{
    return t.segment->pos + (t.begin + row) / t.group;
}

template <int GROUPS, int STAGES>
static __device__ inline void make_queries(tile_memory<GROUPS, STAGES> &s,
                                           const sl_cu_attention &at, const tile &t)
{
    enum { AT_ONCE = 4, ROWS = GROUPS * WARP_ROWS, WARPS = 4 * GROUPS };
    const uint32_t warp = threadIdx.x / WARP;
    float *x = (float *)(void *)s.p[0] + warp * AT_ONCE * DIM;
    for (uint32_t row = warp * AT_ONCE; row < ROWS; row += WARPS * AT_ONCE) {
        const float *in[AT_ONCE];
        rotation turn[AT_ONCE];
#pragma unroll
        for (uint32_t i = 0; i < AT_ONCE; i++) { /* beyond the last: that one again */
            const uint32_t r = row + i < t.count ? row + i : t.count - 1, f = t.begin + r;
            const size_t at_row = t.segment->first_row + f / t.group;
            const uint32_t head = t.kv_head * t.group + f % t.group;
            in[i] = at.q + (at_row * at.n_heads + head) * 2 * DIM;
            turn[i] = rotation_of(at, position(t, r));
        }
        rotate_rows<AT_ONCE>(at, in, at.q_norm, turn, x, DIM);
#pragma unroll
        for (uint32_t i = 0; i < AT_ONCE; i++) {
            const float scale = split_query(x + i * DIM, s.q[0], s.q[1], row + i);
            if (threadIdx.x % WARP == 0)
                s.scale[row + i] = scale;
        }
        __syncwarp();
    }
}

/* The pages of a key block, for the copies of its pieces. */
template <int GROUPS, int STAGES>
static __device__ __forceinline__ void find_pages(tile_memory<GROUPS, STAGES> &s, const tile &t,
                                                  uint32_t block)
{
    if (threadIdx.x < PAGES) {
        const uint32_t page = block * PAGES + threadIdx.x, last = (t.total - 1) / PAGE;
        s.pages[block & 1][threadIdx.x] =
            (const char *)t.segment->kv_pages[page < last ? page : last];
    }
}

/* Piece i of all: of block i / 16, keys first. Values of keys that do not exist become zero. */
template <int GROUPS, int STAGES>
static __device__ __forceinline__ void copy_piece(tile_memory<GROUPS, STAGES> &s, const tile &t,
                                                  uint32_t i)
{
    enum { THREADS = GROUPS * 4 * WARP };
    const uint32_t block = i / (2 * STEPS), step = i % STEPS, first = block * BLOCK;
    char *to = s.ring[i % STAGES];
    if (first >= t.total) {
        /* nothing is left */
    } else if (i % (2 * STEPS) < STEPS) {
#pragma unroll
        for (uint32_t x = threadIdx.x; x < KEY_PAGE / 16; x += THREADS) {
            const uint32_t at = piece_at<SHORT_ROW>(x / 8, x % 8);
#pragma unroll
            for (uint32_t p = 0; p < PAGES; p++) {
                if (first + p * PAGE < t.total)
                    copy_ahead(to + p * KEY_PAGE + at,
                               s.pages[block & 1][p] + t.k_offset + step * KEY_PAGE + x * 16);
            }
        }
    } else if (first + step * STEP < t.total) {
        const char *from = s.pages[block & 1][step * STEP / PAGE] + t.v_offset +
                           step * STEP % PAGE * HALF_ROW;
#pragma unroll
        for (uint32_t x = threadIdx.x; x < PIECE / 16; x += THREADS) {
            char *at = to + piece_at<HALF_ROW>(x / 32, x % 32);
            if (first + step * STEP + x / 32 < t.total)
                copy_ahead(at, from + x * 16);
            else
                *(uint4 *)(void *)at = make_uint4(0, 0, 0, 0);
        }
    }
    end_of_copies();
}

/* The next piece is there, and the one before it is not needed by anyone. */
template <int GROUPS, int STAGES>
static __device__ __forceinline__ const char *next_piece(tile_memory<GROUPS, STAGES> &s,
                                                         const tile &t, uint32_t i)
{
    wait_for_copies<STAGES - 2>();
    __syncthreads();
    copy_piece(s, t, i + STAGES - 1);
    return s.ring[i % STAGES];
}

/* 32 rows of a left side in two halves: 16 columns from piece `piece` on of rows from `row` on. */
static __device__ __forceinline__ void load_left(uint32_t high[2][4], uint32_t low[2][4],
                                                 uint32_t high_at, uint32_t low_at, uint32_t row,
                                                 uint32_t piece)
{
    const uint32_t lane = threadIdx.x % WARP;
#pragma unroll
    for (uint32_t m = 0; m < 2; m++) {
        const uint32_t at = piece_at<HALF_ROW>(row + m * 16 + lane % 16, piece + lane / 16);
        load_matrices(high[m], high_at + at);
        load_matrices(low[m], low_at + at);
    }
}

/* Scores of 32 rows against a page's 64 keys, 32 dimensions of them. */
static __device__ __forceinline__ void add_scores(float c[2][TILES][4], uint32_t q_high,
                                                  uint32_t q_low, uint32_t row, uint32_t keys,
                                                  uint32_t step)
{
    const uint32_t lane = threadIdx.x % WARP;
#pragma unroll
    for (uint32_t k = 0; k < STEP / 16; k++) {
        uint32_t high[2][4], low[2][4], b[TILES][2];
        load_left(high, low, q_high, q_low, row, step * (STEP / 8) + k * 2);
#pragma unroll
        for (uint32_t j = 0; j < TILES; j += 2)
            load_transposed(b[j], keys + piece_at<SHORT_ROW>(k * 16 + lane % 16, j + lane / 16));
        multiply_split<2, TILES>(c, high, low, b);
    }
}

/* o of 32 rows and 64 dimensions, 32 keys of it. */
static __device__ __forceinline__ void add_values(float c[2][TILES][4], uint32_t p_high,
                                                  uint32_t p_low, uint32_t row, uint32_t values,
                                                  uint32_t column, uint32_t step)
{
    const uint32_t lane = threadIdx.x % WARP;
#pragma unroll
    for (uint32_t k = 0; k < STEP / 16; k++) {
        uint32_t high[2][4], low[2][4], b[TILES][2];
        load_left(high, low, p_high, p_low, row, step * (STEP / 8) + k * 2);
#pragma unroll
        for (uint32_t j = 0; j < TILES; j += 2)
            load_transposed(b[j], values + piece_at<HALF_ROW>(k * 16 + lane % 16,
                                                              column * 8 + j + lane / 16));
        multiply_split<2, TILES>(c, high, low, b);
    }
}

/* Scores become weights in shared memory; s.largest and s.sums have what each page of the block
 * gathered. A thread's four rows: row + 8 r, seen[r] keys of the block each. */
template <int GROUPS, int STAGES>
static __device__ __forceinline__ void weigh(tile_memory<GROUPS, STAGES> &s, float c[2][TILES][4],
                                             const uint32_t seen[4], uint32_t row, uint32_t page)
{
    const uint32_t t = threadIdx.x % 4, first = page * PAGE + 2 * t;
#pragma unroll
    for (uint32_t r = 0; r < 4; r++) {
        float m = -sl_float_of_bits(0x7F800000u);
#pragma unroll
        for (uint32_t j = 0; j < TILES; j++) {
            float *pair = &c[r / 2][j][r % 2 * 2];
            m = first + 8 * j < seen[r] ? fmaxf(m, pair[0]) : m;
            m = first + 8 * j + 1 < seen[r] ? fmaxf(m, pair[1]) : m;
        }
        m = fmaxf(m, __shfl_xor_sync(0xFFFFFFFFu, m, 1));
        m = fmaxf(m, __shfl_xor_sync(0xFFFFFFFFu, m, 2));
        if (t == 0)
            s.largest[row + 8 * r][page] = m;
    }
    __syncthreads();
#pragma unroll
    for (uint32_t r = 0; r < 4; r++) {
        const uint32_t at = row + 8 * r;
        const float4 of = *(const float4 *)s.largest[at];
        const float m = fmaxf(fmaxf(of.x, of.y), fmaxf(of.z, of.w)), scale = s.scale[at];
        float sum = 0.0f;
#pragma unroll
        for (uint32_t j = 0; j < TILES; j++) {
            const float *pair = &c[r / 2][j][r % 2 * 2];
            const float p0 = weight_of(pair[0], m, scale), p1 = weight_of(pair[1], m, scale);
            const float w0 = first + 8 * j < seen[r] ? p0 : 0.0f;
            const float w1 = first + 8 * j + 1 < seen[r] ? p1 : 0.0f;
            sum = lane_sum(sum, w0, w1);
            uint32_t high, low;
            split_pair(w0, w1, high, low);
            const uint32_t byte = piece_at<HALF_ROW>(at, page * 8 + j) + t * 4;
            *(uint32_t *)(void *)(s.p[0] + byte) = high;
            *(uint32_t *)(void *)(s.p[1] + byte) = low;
        }
        sum = page_sum(sum);
        if (t == 0)
            s.sums[at][page] = sum;
    }
}

/* Block of threads: a tile of query rows of one segment and KV head; those with most keys first. */
template <int GROUPS, int STAGES>
static __global__ void __launch_bounds__(GROUPS * 4 * WARP, 1)
    attend_kernel(const sl_cu_rows rows, const __grid_constant__ sl_cu_attention at)
{
    enum { ROWS = GROUPS * WARP_ROWS, WARPS = GROUPS * 4 };
    extern __shared__ uint4 raw[];
    tile_memory<GROUPS, STAGES> &s = *(tile_memory<GROUPS, STAGES> *)(void *)raw;
    tile t;
    t.segment = &rows.segments[blockIdx.z];
    t.kv_head = blockIdx.x;
    t.group = at.n_heads / at.n_kv_heads;
    t.begin = (gridDim.y - 1 - blockIdx.y) * ROWS;
    const uint32_t n_queries = t.segment->n_rows * t.group;
    if (t.segment->n_rows <= SL_CU_SPLIT_ROWS || t.begin >= n_queries)
        return;
    t.count = n_queries - t.begin < ROWS ? n_queries - t.begin : ROWS;
    t.total = position(t, t.count - 1) + 1;
    t.k_offset = key_offset(at, t.kv_head);
    t.v_offset = value_offset(at, t.kv_head);

    find_pages(s, t, 0);
    __syncthreads();
#pragma unroll
    for (uint32_t i = 0; i < STAGES - 1; i++)
        copy_piece(s, t, i);
    make_queries(s, at, t);

    const uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const uint32_t column = warp % 4;                /* page for scores, 64 dimensions for o */
    const uint32_t first_row = warp / 4 * WARP_ROWS; /* of the warp */
    const uint32_t row = first_row + lane / 4;       /* of the thread: also row + 8, + 16, + 24 */
    const uint32_t q_high = shared_address(s.q[0]), q_low = shared_address(s.q[1]);
    const uint32_t p_high = shared_address(s.p[0]), p_low = shared_address(s.p[1]);
    uint32_t pos[4];
#pragma unroll
    for (uint32_t r = 0; r < 4; r++)
        pos[r] = position(t, row + 8 * r < t.count ? row + 8 * r : t.count - 1);
    float o[2][TILES][4], m[4], l[4];
    uint32_t piece = 0;
#pragma unroll 1
    for (uint32_t block = 0; block * BLOCK < t.total; block++) {
        const uint32_t first = block * BLOCK;
        float part[2][TILES][4] = {};
#pragma unroll 1
        for (uint32_t step = 0; step < STEPS; step++, piece++) {
            const uint32_t keys = shared_address(next_piece(s, t, piece));
            if (step == 0 && first + BLOCK < t.total)
                find_pages(s, t, block + 1);
            if (first + column * PAGE < t.total)
                add_scores(part, q_high, q_low, first_row, keys + column * KEY_PAGE, step);
        }
        uint32_t seen[4];
#pragma unroll
        for (uint32_t r = 0; r < 4; r++)
            seen[r] = keys_seen(pos[r], first);
        weigh(s, part, seen, row, column);

#pragma unroll
        for (int i = 0; i < 2; i++) {
#pragma unroll
            for (int j = 0; j < TILES; j++)
                part[i][j][0] = part[i][j][1] = part[i][j][2] = part[i][j][3] = 0.0f;
        }
#pragma unroll 1
        for (uint32_t step = 0; step < STEPS; step++, piece++) {
            const uint32_t values = shared_address(next_piece(s, t, piece));
            if (first + step * STEP < t.total)
                add_values(part, p_high, p_low, first_row, values, column, step);
        }

#pragma unroll
        for (uint32_t r = 0; r < 4; r++) {
            if (seen[r] == 0)
                continue;
            const float4 of = *(const float4 *)s.largest[row + 8 * r];
            const float4 sum = *(const float4 *)s.sums[row + 8 * r];
            const float m_b = fmaxf(fmaxf(of.x, of.y), fmaxf(of.z, of.w));
            const float l_b = pages_sum(sum.x, sum.y, sum.z, sum.w);
            if (block == 0) {
                m[r] = m_b;
                l[r] = l_b;
#pragma unroll
                for (uint32_t j = 0; j < TILES; j++) {
                    o[r / 2][j][r % 2 * 2] = part[r / 2][j][r % 2 * 2];
                    o[r / 2][j][r % 2 * 2 + 1] = part[r / 2][j][r % 2 * 2 + 1];
                }
                continue;
            }
            const float larger = fmaxf(m[r], m_b), scale = s.scale[row + 8 * r];
            const float x = weight_of(m[r], larger, scale), y = weight_of(m_b, larger, scale);
            m[r] = larger;
            l[r] = merged(l[r], x, l_b, y);
#pragma unroll
            for (uint32_t j = 0; j < TILES; j++) {
                float *to = &o[r / 2][j][r % 2 * 2];
                const float *from = &part[r / 2][j][r % 2 * 2];
                to[0] = merged(to[0], x, from[0], y);
                to[1] = merged(to[1], x, from[1], y);
            }
        }
    }

    /* o / l through shared memory, columns permuted against conflicts, then a warp a row. */
    float *out = (float *)(void *)s.p[0];
    __syncthreads();
#pragma unroll
    for (uint32_t r = 0; r < 4; r++) {
        const uint32_t at_row = row + 8 * r;
#pragma unroll
        for (uint32_t j = 0; j < TILES; j++) {
            const float *from = &o[r / 2][j][r % 2 * 2];
            const uint32_t d = (column * 64 + 8 * j + lane % 4 * 2) ^ (at_row & 7) * 8;
            *(float2 *)&out[at_row * DIM + d] = make_float2(from[0] / l[r], from[1] / l[r]);
        }
    }
    __syncthreads();
    for (uint32_t r = warp; r < t.count; r += WARPS) {
        const size_t at_row = t.segment->first_row + (t.begin + r) / t.group;
        const uint32_t head = t.kv_head * t.group + (t.begin + r) % t.group;
        float gate[DIM / WARP];
#pragma unroll
        for (uint32_t k = 0; k < DIM / WARP; k++)
            gate[k] = gate_of(at, at_row, head, k * WARP + lane);
#pragma unroll
        for (uint32_t k = 0; k < DIM / WARP; k++) {
            const uint32_t d = k * WARP + lane;
            write_result(at, at_row, head, d, out[r * DIM + (d ^ (r & 7) * 8)], gate[k]);
        }
    }
}

template <int GROUPS, int STAGES>
static void attend(const sl_cu_queue *queue, const sl_cu_rows *rows, const sl_cu_attention *at)
{
    const uint32_t queries = rows->most_rows * (at->n_heads / at->n_kv_heads);
    const dim3 grid(at->n_kv_heads, div_up(queries, GROUPS * WARP_ROWS), rows->n_segments);
    const int n_bytes = (int)sizeof(tile_memory<GROUPS, STAGES>);
    cudaFuncSetAttribute(attend_kernel<GROUPS, STAGES>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                         n_bytes);
    attend_kernel<GROUPS, STAGES>
        <<<grid, GROUPS * 4 * WARP, (size_t)n_bytes, queue->stream>>>(*rows, *at);
}

void sl_cu_attend_tiles(const sl_cu_queue *queue, const sl_cu_rows *rows,
                        const sl_cu_attention *at)
{
    const dim3 grid(div_up(rows->most_rows, APPEND_ROWS), at->n_kv_heads, rows->n_segments);
    append_kernel<<<grid, APPEND_THREADS, 0, queue->stream>>>(*rows, *at);
    int device = 0, room = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&room, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    if ((size_t)room >= sizeof(tile_memory<2, 5>))
        attend<2, 5>(queue, rows, at);
    else
        attend<1, 2>(queue, rows, at);
}
