/* Attention for prompts: segments of more than SL_CU_SPLIT_ROWS rows.
 *   append   keys and values of 16 rows go to their pages
 *   attend   64 query rows of one KV head (32 where shared memory is small) over all their key
 *            blocks in turn or, where these are computed apart, over some of them. A warp has 16
 *            rows, and of a block 128 keys for the scores, then 128 dimensions for o; the weights
 *            go through shared memory, and are made while the next block's scores are
 * Keys come in pieces of 32 dimensions of a block, values in pieces of 32 keys, through a ring. On
 * Hopper products are wgmma's, elsewhere mma's: the same bits. */
#include "backend/cuda/kernels/attention_ring.cuh"

/* ---- append ---- */

enum { APPEND_ROWS = 16, APPEND_THREADS = APPEND_ROWS * WARP, APPEND_STRIDE = DIM + 2 };

/* Block: 16 rows of one segment from row 16 * blockIdx.x of it on, one KV head. */
static __global__ void __launch_bounds__(APPEND_THREADS)
    append_kernel(const sl_cu_rows rows, const __grid_constant__ sl_cu_attention at)
{
    __shared__ float x[APPEND_ROWS][APPEND_STRIDE];
    __shared__ bool finite[APPEND_ROWS];
    wait_for_previous(); /* lets attend begin */
    const sl_cu_segment &segment = rows.segments[blockIdx.z];
    const uint32_t begin = blockIdx.x * APPEND_ROWS, kv_head = blockIdx.y;
    if (segment.n_rows <= SL_CU_SPLIT_ROWS || begin >= segment.n_rows)
        return;
    const uint32_t left = segment.n_rows - begin, count = left < APPEND_ROWS ? left : APPEND_ROWS;
    const size_t k_offset = key_offset(at, kv_head), v_offset = value_offset(at, kv_head);
    const uint32_t lane = threadIdx.x % WARP, i = threadIdx.x / WARP;
    if (i < count) {
        const uint32_t pos = segment.pos + begin + i;
        const size_t in = ((size_t)(segment.first_row + begin + i) * at.n_kv_heads + kv_head) * DIM;
        bool all;
        char *page = (char *)segment.kv_pages[pos / PAGE];
        const uint4 piece = value_piece(at.v + in, &all);
        *(uint4 *)(void *)(page + v_offset + pos % PAGE * HALF_ROW + lane * 16) = piece;
        float2 k[PAIRS], norm[PAIRS];
        load_row(k, at.k + in);
        load_row(norm, at.k_norm);
        rotate_row(at, k, norm, rotation_of(at, pos), pos, x[i]);
        __syncwarp();
#pragma unroll
        for (uint32_t p = 0; p < PAIRS; p++)
            *(float2 *)&x[i][p * 64 + 2 * lane] = k[p];
        if (lane == 0)
            finite[i] = all;
    }
    __syncthreads();
    for (uint32_t j = threadIdx.x; j < DIM * APPEND_ROWS; j += APPEND_THREADS) {
        const uint32_t i = j % APPEND_ROWS, d = j / APPEND_ROWS, pos = segment.pos + begin + i;
        if (i < count) {
            char *page = (char *)segment.kv_pages[pos / PAGE];
            ((uint16_t *)(void *)(page + k_offset))[d * PAGE + pos % PAGE] =
                key_half(x[i][d], finite[i]);
        }
    }
}

/* ---- attend ---- */

enum {
    STEPS = 8,                     /* pieces of the keys of a block, and of its values */
    STEP = 32,                     /* dimensions, or keys, of a piece: rows of its panels */
    STEP_PANEL = STEP * PANEL_ROW, /* bytes of a panel */
    TILES = 16                     /* of 8 columns that a warp has: two panels */
};
static_assert((int)STEP_PANEL * PAGES == SLOT && (int)STEP == VALUES,
              "keys of a page are a panel of a piece");

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define SL_WGMMA 1
#else
#define SL_WGMMA 0
#endif

/* What a block of threads works on. */
typedef struct tile {
    const sl_cu_segment *segment;
    uint32_t kv_head, group;
    uint32_t begin, count;     /* query rows */
    uint32_t total;            /* keys that the last of them sees */
    uint32_t first, end;       /* key blocks */
    size_t k_offset, v_offset; /* in a page */
} tile;

/* ROWS: query rows, 64 or 32. LAG: pieces that products may still read when the next one begins. */
template <int ROWS, int STAGES, int LAG> struct tile_memory {
    static_assert(STAGES < STEPS && LAG <= 1, "a warp cannot be a block ahead of another");
    enum {
        WARPS = ROWS / 16 * 2,
        /* Registers are shared out by groups of four warps. */
        THREADS = (WARPS + (ROWS == TILE_ROWS ? 4 : COPIERS)) * WARP,
        HALF = ROWS * HALF_ROW
    };
    char slots[STAGES][SLOT];
    char q[2 * HALF]; /* panels of high, then of low */
    char p[2 * HALF]; /* the same of weights; before them rows in the making, after them o */
    uint64_t full[STAGES], empty[STAGES];
    float scale[ROWS], largest[ROWS][2], sums[ROWS][PAGES];
    tile t; /* here, since registers are short */
};

static __device__ __forceinline__ uint32_t position(const tile &t, uint32_t row)
{
    return t.segment->pos + (t.begin + row) / t.group;
}

/* Where the results of a query row begin. */
static __device__ __forceinline__ size_t result_of(const sl_cu_attention &at, const tile &t,
                                                   uint32_t row)
{
    const uint32_t f = t.begin + row;
    const size_t at_row = t.segment->first_row + f / t.group;
    return (at_row * at.n_heads + t.kv_head * t.group + f % t.group) * DIM;
}

template <int ROWS, int WARPS>
static __device__ inline void make_queries(char *q, float *x, float *scales,
                                           const sl_cu_attention &at, const tile &t)
{
    enum { AT_ONCE = 8 };
    const uint32_t warp = threadIdx.x / WARP;
    x += warp * DIM;
    float2 norm[PAIRS];
    load_row(norm, at.q_norm);
    for (uint32_t row = warp * AT_ONCE; row < ROWS; row += WARPS * AT_ONCE) {
        float2 v[AT_ONCE][PAIRS];
        rotation turn[AT_ONCE];
        uint32_t pos[AT_ONCE];
#pragma unroll
        for (uint32_t i = 0; i < AT_ONCE; i++) { /* beyond the last: that one again */
            const uint32_t r = row + i < t.count ? row + i : t.count - 1;
            load_row(v[i], at.q + 2 * result_of(at, t, r));
            pos[i] = position(t, r);
            if (i > 0 && pos[i] == pos[i - 1])
                turn[i] = turn[i - 1];
            else
                turn[i] = rotation_of(at, pos[i]);
        }
#pragma unroll
        for (uint32_t i = 0; i < AT_ONCE; i++) {
            rotate_row(at, v[i], norm, turn[i], pos[i], x);
            const float scale = split_query(v[i], q, ROWS, row + i);
            if (threadIdx.x % WARP == 0)
                scales[row + i] = scale;
        }
    }
}

/* ---- copies ---- */

/* Where the pages of a key block are; those beyond the last are that one again. */
static __device__ __forceinline__ void find_pages(const char *pages[PAGES], const tile &t,
                                                  uint32_t block)
{
    const uint32_t last = (t.total - 1) / PAGE;
#pragma unroll
    for (uint32_t p = 0; p < PAGES; p++) {
        const uint32_t page = block * PAGES + p;
        pages[p] = (const char *)t.segment->kv_pages[page < last ? page : last];
    }
}

/* Eight pieces of a block's keys. */
static __device__ __forceinline__ void
copy_keys(const ring &r, const tile &t, const char *const pages[PAGES], uint32_t left, place &to)
{
#pragma unroll 1
    for (uint32_t step = 0; step < STEPS; step++, to = after(r, to)) {
        char *slot = wait_for_room(r, to);
#pragma unroll
        for (uint32_t p = 0; p < PAGES; p++) {
            if (p * PAGE < left)
                copy_rows<STEP / 8>(r, slot + p * STEP_PANEL,
                                    pages[p] + t.k_offset + step * STEP_PANEL);
        }
        end_of_piece(r, to);
    }
}

/* All blocks in turn: the first one's keys, then of each block the next one's keys and its values.
 */
static __device__ __forceinline__ void copy_blocks(const ring &r, const tile &t)
{
    place to = {0, 0};
    const char *pages[PAGES], *next[PAGES];
    find_pages(next, t, t.first);
    copy_keys(r, t, next, t.total - t.first * BLOCK, to);
#pragma unroll 1
    for (uint32_t block = t.first; block < t.end; block++) {
        const uint32_t left = t.total - block * BLOCK;
#pragma unroll
        for (uint32_t p = 0; p < PAGES; p++)
            pages[p] = next[p];
        if (block + 1 < t.end) {
            find_pages(next, t, block + 1);
            copy_keys(r, t, next, left - BLOCK, to);
        }
#pragma unroll
        for (uint32_t step = 0; step < STEPS; step++) {
            if (step * STEP < left) {
                const uint32_t key = step * STEP % PAGE;
                copy_values(r, wait_for_room(r, to),
                            pages[step * STEP / PAGE] + t.v_offset + key * HALF_ROW,
                            left - step * STEP);
                end_of_piece(r, to);
                to = after(r, to);
            }
        }
    }
    wait_for_copies<0>();
}

/* ---- products ---- */

#if SL_WGMMA
/* How wgmma finds an operand: `leading` bytes from a panel to the next, 1,024 from 8 rows to the
 * next, swizzled. */
static __device__ __forceinline__ uint64_t operand(uint32_t address, uint32_t leading)
{
    return (uint64_t)((address & 0x3FFFF) >> 4) | (uint64_t)(leading >> 4) << 16 |
           (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 62;
}

#define SL_FOUR(c) "+f"((c)[0]), "+f"((c)[1]), "+f"((c)[2]), "+f"((c)[3])
/* c += 64 rows of 16 columns times 16 rows of 128 columns, by the four warps of a group; or c =,
 * without is_more. */
static __device__ __forceinline__ void multiply_group(float c[TILES][4], uint64_t left,
                                                      uint64_t right, bool is_more)
{
    asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %66, 0;\n\t"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
                 "%64, %65, p, 1, 1, 0, 1;\n\t}"
                 : SL_FOUR(c[0]), SL_FOUR(c[1]), SL_FOUR(c[2]), SL_FOUR(c[3]), SL_FOUR(c[4]),
                   SL_FOUR(c[5]), SL_FOUR(c[6]), SL_FOUR(c[7]), SL_FOUR(c[8]), SL_FOUR(c[9]),
                   SL_FOUR(c[10]), SL_FOUR(c[11]), SL_FOUR(c[12]), SL_FOUR(c[13]), SL_FOUR(c[14]),
                   SL_FOUR(c[15])
                 : "l"(left), "l"(right), "r"((int)is_more));
}
#undef SL_FOUR
#endif

/* c += a step of the left side's columns times a piece. left: panels of high, then of low, of which
 * the warp has rows from `row` on; right: its two panels of the piece. Products may be unfinished.
 */
template <int ROWS>
static __device__ __forceinline__ void multiply_step(float c[TILES][4], uint32_t left, uint32_t row,
                                                     uint32_t right, uint32_t step)
{
    left += step * STEP / PANEL * ROWS * PANEL_ROW;
#if SL_WGMMA
    if (ROWS == 64) {
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
        left += step * STEP % PANEL * 2;
#pragma unroll
        for (uint32_t k = 0; k < STEP / 16; k++) {
            const uint64_t b = operand(right + k * 16 * PANEL_ROW, STEP_PANEL);
            multiply_group(c, operand(left + k * 32, 16), b, step + k > 0);
            multiply_group(c, operand(left + ROWS * HALF_ROW + k * 32, 16), b, true);
        }
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        return;
    }
#endif
    const uint32_t lane = threadIdx.x % WARP;
#pragma unroll
    for (uint32_t k = 0; k < STEP / 16; k++) {
        uint32_t high[1][4], low[1][4], b[TILES][2];
        const uint32_t at =
            left + panel_at(row + lane % 16, step * STEP % PANEL / 8 + k * 2 + lane / 16);
        load_matrices(high[0], at);
        load_matrices(low[0], at + ROWS * HALF_ROW);
#pragma unroll
        for (uint32_t j = 0; j < TILES; j += 2)
            load_transposed(b[j], right + j / 8 * STEP_PANEL +
                                      panel_at(k * 16 + lane % 16, j % 8 + lane / 16));
        multiply_split<1, TILES>((float(*)[TILES][4])c, high, low, b);
    }
}

/* Until all but the last LEFT steps are done. */
template <int ROWS, int LEFT>
static __device__ __forceinline__ void wait_for_steps(float c[TILES][4])
{
#if SL_WGMMA
    if (ROWS != 64)
        return;
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
    if (LEFT == 0) {
#pragma unroll
        for (int j = 0; j < TILES; j++) /* their registers may be used */
            asm volatile("" : "+f"(c[j][0]), "+f"(c[j][1]), "+f"(c[j][2]), "+f"(c[j][3])::"memory");
    }
#endif
}

/* What this thread has written is seen by products, which read shared memory in a way of their own.
 */
static __device__ __forceinline__ void show_products(void)
{
#if SL_WGMMA
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

/* Before the first step of sums, which wgmma can begin by itself. */
template <int ROWS> static __device__ __forceinline__ void clear(float c[TILES][4])
{
    if (!SL_WGMMA || ROWS != 64) {
#pragma unroll
        for (int j = 0; j < TILES; j++)
            c[j][0] = c[j][1] = c[j][2] = c[j][3] = 0.0f;
    }
}

/* c = the left side's n columns times as many pieces; slots: the warp's panels in slot 0. */
template <int ROWS, int LAG>
static __device__ __forceinline__ void multiply_steps(float c[TILES][4], uint32_t left,
                                                      uint32_t row, const ring &pieces,
                                                      uint32_t slots, place &from, uint32_t n)
{
    place before = from;
    clear<ROWS>(c);
#pragma unroll 1
    for (uint32_t step = 0; step * STEP < n; step++) {
        wait_for_piece(pieces, from);
        show_products();
        multiply_step<ROWS>(c, left, row, slots + from.slot * SLOT, step);
        wait_for_steps<ROWS, LAG>(c);
        if (LAG == 0)
            release(pieces, from);
        else if (step > 0)
            release(pieces, before);
        before = from;
        from = after(pieces, from);
    }
    wait_for_steps<ROWS, 0>(c);
    if (LAG > 0)
        release(pieces, before);
}

/* ---- softmax ---- */

/* What a warp has of a tile: rows row + lane / 4 and 8 below, and side 0 or 1 of the columns. */
typedef struct share {
    uint32_t row, side;
    uint32_t seen[2]; /* keys of the block that each of the thread's rows sees */
} share;

static __device__ __forceinline__ uint32_t first_key_of(const share &w)
{
    return w.side * TILES * 8 + threadIdx.x % 4 * 2;
}

/* Scores of keys that a row does not see. */
static __device__ __forceinline__ void mask(float c[TILES][4], const share &w)
{
    const uint32_t first = first_key_of(w);
#pragma unroll
    for (uint32_t j = 0; j < TILES; j++) {
#pragma unroll
        for (uint32_t k = 0; k < 4; k++)
            c[j][k] = first + 8 * j + k % 2 < w.seen[k / 2] ? c[j][k] : lowest();
    }
}

/* The largest score of each row, of the warp's side. */
static __device__ __forceinline__ void find_largest(float (*largest)[2], const float c[TILES][4],
                                                    const share &w)
{
#pragma unroll
    for (uint32_t r = 0; r < 2; r++) {
        float m = lowest();
#pragma unroll
        for (uint32_t j = 0; j < TILES; j++)
            m = fmaxf(m, fmaxf(c[j][2 * r], c[j][2 * r + 1]));
        m = fmaxf(m, __shfl_xor_sync(0xFFFFFFFFu, m, 1));
        m = fmaxf(m, __shfl_xor_sync(0xFFFFFFFFu, m, 2));
        if (threadIdx.x % 4 == 0)
            largest[w.row + threadIdx.x % WARP / 4 + 8 * r][w.side] = m;
    }
}

/* Tiles j and j + 1 of the warp's weights, of rows and then of those 8 below, go to p. */
template <int ROWS>
static __device__ __forceinline__ void store_weights(uint32_t p, const share &w, uint32_t j,
                                                     const uint32_t tiles[4])
{
    const uint32_t lane = threadIdx.x % WARP;
    p += (w.side * 2 + j / 8) * ROWS * PANEL_ROW;
#if __CUDA_ARCH__ >= 900
    const uint32_t to = p + panel_at(w.row + lane % 16, lane / 16);
    asm volatile(
        "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to ^ j % 8 << 4),
        "r"(tiles[0]), "r"(tiles[1]), "r"(tiles[2]), "r"(tiles[3])
        : "memory");
#else
#pragma unroll
    for (uint32_t k = 0; k < 4; k++) {
        const uint32_t to =
            p + panel_at(w.row + lane / 4 + k % 2 * 8, j % 8 + k / 2) + lane % 4 * 4;
        asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(tiles[k]) : "memory");
    }
#endif
}

/* A tile's two scores of a row become weights; their sum. */
static __device__ __forceinline__ float weigh(const float *pair, float m, float scale,
                                              uint32_t &high, uint32_t &low)
{
    const float a = weight_of(pair[0], m, scale), b = weight_of(pair[1], m, scale);
    split_pair(a, b, high, low);
    return a + b;
}

/* A row over the blocks so far. */
typedef struct running {
    float m[2], l[2], o[TILES][4];
} running;

/* Adds a block to the thread's row r. A row that sees none of its keys has m_b = -infinity, which
 * leaves everything as it was; before the first block m is -infinity, which makes all of it the
 * block's. */
static __device__ __forceinline__ void merge(running &all, const float part[TILES][4], uint32_t r,
                                             float m_b, float l_b, float scale)
{
    const float larger = fmaxf(all.m[r], m_b);
    const float x = weight_of(all.m[r], larger, scale), y = weight_of(m_b, larger, scale);
    all.m[r] = larger;
    all.l[r] = merged(all.l[r], x, weighed(l_b, y));
#pragma unroll
    for (uint32_t j = 0; j < TILES; j++) {
        all.o[j][2 * r] = merged(all.o[j][2 * r], x, weighed(part[j][2 * r], y));
        all.o[j][2 * r + 1] = merged(all.o[j][2 * r + 1], x, weighed(part[j][2 * r + 1], y));
    }
}

/* Where the parts of the thread's rows are; NULL for a row that does not exist. */
static __device__ __forceinline__ void find_parts(float *parts[2], const sl_cu_attention &at,
                                                  const tile &t, const share &w)
{
#pragma unroll
    for (uint32_t r = 0; r < 2; r++) {
        const uint32_t row = w.row + threadIdx.x % WARP / 4 + 8 * r, f = t.begin + row;
        parts[r] = row < t.count
                       ? parts_of(at, *t.segment, f / t.group, t.kv_head * t.group + f % t.group)
                       : NULL;
    }
}

/* Or stores it for a row. */
static __device__ __forceinline__ void store_part(float *to, const float part[TILES][4], uint32_t r,
                                                  const share &w, float m_b, float l_b, float scale)
{
    const uint32_t first = first_key_of(w);
    if (first == 0)
        *(float4 *)(void *)to = make_float4(m_b, l_b, scale, 0.0f);
#pragma unroll
    for (uint32_t j = 0; j < TILES; j++)
        *(float2 *)(void *)(to + PART_HEAD + first + 8 * j) =
            make_float2(part[j][2 * r], part[j][2 * r + 1]);
}

/* A value's place in a tile of results: pieces of 16 bytes are permuted against conflicts, for the
 * threads of a product as for one that reads the 32 values of a block. */
static __device__ __forceinline__ uint32_t result_at(uint32_t row, uint32_t d)
{
    const uint32_t piece = (d / 4 ^ d / SL_Q8_BLOCK ^ row) % 8;
    return row * DIM + d / SL_Q8_BLOCK * SL_Q8_BLOCK + piece * 4 + d % 4;
}

/* o / l, gated: to where it is read as floats, and to shared memory. */
static __device__ __forceinline__ void stage_result(float *out, const sl_cu_attention &at,
                                                    const tile &t, const share &w,
                                                    const running &all)
{
    const uint32_t first = first_key_of(w);
#pragma unroll
    for (uint32_t r = 0; r < 2; r++) {
        const uint32_t row = w.row + threadIdx.x % WARP / 4 + 8 * r;
        if (row >= t.count)
            continue;
        const size_t index = result_of(at, t, row);
        const float *const gates = at.q + 2 * index + DIM + first;
        float2 gate[TILES];
#pragma unroll
        for (uint32_t j = 0; j < TILES; j++)
            gate[j] = *(const float2 *)(const void *)(gates + 8 * j);
        const float inverse = 1.0f / all.l[r];
#pragma unroll
        for (uint32_t j = 0; j < TILES; j++) {
            const float2 y = make_float2(gated(all.o[j][2 * r] * inverse, gate[j].x),
                                         gated(all.o[j][2 * r + 1] * inverse, gate[j].y));
            if (at.keeps_y)
                *(float2 *)(void *)(at.y + index + first + 8 * j) = y;
            *(float2 *)(void *)(out + result_at(row, first + 8 * j)) = y;
        }
    }
}

/* Rounds it from there, a thread a block of 32 values. */
static __device__ __noinline__ void round_tile(const float *out, const sl_cu_attention *at,
                                               const tile *t, uint32_t n_threads)
{
    enum { BLOCKS = DIM / SL_Q8_BLOCK };
    for (uint32_t i = threadIdx.x; i < t->count * BLOCKS; i += n_threads) {
        const uint32_t row = i / BLOCKS, d = i % BLOCKS * SL_Q8_BLOCK;
        const size_t block = result_of(*at, *t, row) / SL_Q8_BLOCK + i % BLOCKS;
        float4 values[SL_Q8_BLOCK / 4];
#pragma unroll
        for (uint32_t k = 0; k < SL_Q8_BLOCK / 4; k++)
            values[k] = *(const float4 *)(const void *)(out + result_at(row, d + 4 * k));
        quantise_values(values, at->yq.q + block * SL_Q8_BLOCK, at->yq.d + block,
                        at->yq.sums + 2 * block);
    }
}

/* The block's tile, those with most keys first; false when there is none. */
static __device__ inline bool take_tile(tile &out, const sl_cu_rows &rows,
                                        const sl_cu_attention &at, uint32_t n_rows)
{
    tile t;
    t.segment = &rows.segments[blockIdx.z];
    t.kv_head = blockIdx.x % at.n_kv_heads;
    t.group = at.n_heads / at.n_kv_heads;
    t.begin = (gridDim.y - 1 - blockIdx.y) * n_rows;
    const uint32_t n_queries = t.segment->n_rows * t.group;
    if (t.segment->n_rows <= SL_CU_SPLIT_ROWS || t.begin >= n_queries)
        return false;
    t.count = n_queries - t.begin < n_rows ? n_queries - t.begin : n_rows;
    t.total = position(t, t.count - 1) + 1;
    const uint32_t n_blocks = div_up(t.total, BLOCK), n = gridDim.x / at.n_kv_heads;
    const uint32_t range = blockIdx.x / at.n_kv_heads;
    const uint32_t left = n_blocks > at.first_part ? n_blocks - at.first_part : 0;
    const uint32_t count = left < at.n_parts ? left : at.n_parts;
    t.first = at.first_part + range * count / n;
    t.end = at.first_part + (range + 1) * count / n;
    if (t.first == t.end)
        return false;
    t.k_offset = key_offset(at, t.kv_head);
    t.v_offset = value_offset(at, t.kv_head);
    if (threadIdx.x == 0)
        out = t;
    __syncthreads();
    return true;
}

/* Scores of a block become weights while the next one's are made. */
template <bool HAS_NEXT, int ROWS, int STAGES, int LAG>
static __device__ __forceinline__ void
make_weights(tile_memory<ROWS, STAGES, LAG> &s, const float now[TILES][4], float next[TILES][4],
             const share &w, uint32_t q, const ring &pieces, uint32_t slots, place &from)
{
    const uint32_t lane = threadIdx.x % WARP, p = shared_address(s.p);
    float m[2], scale[2], quarter[2], half[2];
#pragma unroll
    for (uint32_t r = 0; r < 2; r++) {
        const uint32_t row = w.row + lane / 4 + 8 * r;
        m[r] = reference_of(fmaxf(s.largest[row][0], s.largest[row][1]));
        scale[r] = s.scale[row];
    }
    place before = from;
    if (HAS_NEXT)
        clear<ROWS>(next);
#pragma unroll
    for (uint32_t j = 0; j < TILES; j += 2) {
        if (HAS_NEXT) {
            wait_for_piece(pieces, from);
            show_products();
            multiply_step<ROWS>(next, q, w.row, slots + from.slot * SLOT, j / 2);
        }
        uint32_t high[4], low[4];
#pragma unroll
        for (uint32_t r = 0; r < 2; r++) { /* as page_sum has it */
            const float a = weigh(&now[j][2 * r], m[r], scale[r], high[r], low[r]);
            const float b = weigh(&now[j + 1][2 * r], m[r], scale[r], high[r + 2], low[r + 2]);
            if (j % 8 == 2)
                half[r] = quarter[r] + (a + b);
            if (j % 8 == 6) {
                const float sum = page_sum(half[r] + (quarter[r] + (a + b)));
                if (lane % 4 == 0)
                    s.sums[w.row + lane / 4 + 8 * r][w.side * 2 + j / 8] = sum;
            }
            quarter[r] = a + b;
        }
        store_weights<ROWS>(p, w, j, high);
        store_weights<ROWS>(p + ROWS * HALF_ROW, w, j, low);
        if (HAS_NEXT) {
            wait_for_steps<ROWS, 1>(next);
            if (j > 0)
                release(pieces, before);
            before = from;
            from = after(pieces, from);
        }
    }
    if (HAS_NEXT) {
        wait_for_steps<ROWS, 0>(next);
        release(pieces, before);
    }
}

/* Warps that make products: all blocks in turn. */
template <int ROWS, int STAGES, int LAG, bool APART>
static __device__ __forceinline__ void read_blocks(tile_memory<ROWS, STAGES, LAG> &s,
                                                   const ring &pieces, const sl_cu_attention &at)
{
    typedef tile_memory<ROWS, STAGES, LAG> memory;
    const tile &t = s.t;
    make_queries<ROWS, memory::WARPS>(s.q, (float *)(void *)s.p, s.scale, at, t);
    show_products();
    meet(pieces);
    const uint32_t lane = threadIdx.x % WARP;
    const uint32_t warp = __shfl_sync(0xFFFFFFFFu, threadIdx.x / WARP, 0);
    share w = {.row = warp % (ROWS / 16) * 16, .side = warp / (ROWS / 16)};
    const uint32_t q = shared_address(s.q), p = shared_address(s.p);
    const uint32_t slots = shared_address(s.slots[0]) + w.side * 2 * STEP_PANEL;
    uint32_t pos[2];
#pragma unroll
    for (uint32_t r = 0; r < 2; r++) {
        const uint32_t row = w.row + lane / 4 + 8 * r;
        pos[r] = position(t, row < t.count ? row : t.count - 1);
    }
    place from = {0, 0};
    running all = {.m = {lowest(), lowest()}};
    float *parts[2];
    if (APART)
        find_parts(parts, at, t, w);
    float now[TILES][4]; /* scores of a block, then its o */
    multiply_steps<ROWS, LAG>(now, q, w.row, pieces, slots, from, DIM);
#pragma unroll 1
    for (uint32_t block = t.first; block < t.end; block++) {
        const uint32_t first = block * BLOCK, left = t.total - first;
#pragma unroll
        for (uint32_t r = 0; r < 2; r++)
            w.seen[r] = keys_seen(pos[r], first);
        if (first + BLOCK > position(t, 0) + 1)
            mask(now, w);
        find_largest(s.largest, now, w);
        meet(pieces);
        float next[TILES][4];
        if (block + 1 < t.end)
            make_weights<true, ROWS, STAGES, LAG>(s, now, next, w, q, pieces, slots, from);
        else
            make_weights<false, ROWS, STAGES, LAG>(s, now, next, w, q, pieces, slots, from);
        show_products();
        meet(pieces);
        float m_b[2], l_b[2];
#pragma unroll
        for (uint32_t r = 0; r < 2; r++) {
            const uint32_t row = w.row + lane / 4 + 8 * r;
            const float4 l = *(const float4 *)s.sums[row];
            m_b[r] = fmaxf(s.largest[row][0], s.largest[row][1]);
            l_b[r] = pages_sum(l.x, l.y, l.z, l.w);
        }
        multiply_steps<ROWS, LAG>(now, p, w.row, pieces, slots, from, left < BLOCK ? left : BLOCK);
#pragma unroll
        for (uint32_t r = 0; r < 2; r++) {
            const float scale = s.scale[w.row + lane / 4 + 8 * r];
            if (!APART)
                merge(all, now, r, m_b[r], l_b[r], scale);
            else if (parts[r])
                store_part(parts[r] + (size_t)(block - at.first_part) * PART, now, r, w, m_b[r],
                           l_b[r], scale);
        }
        if (block + 1 < t.end) {
#pragma unroll
            for (uint32_t j = 0; j < TILES; j++) {
#pragma unroll
                for (uint32_t k = 0; k < 4; k++)
                    now[j][k] = next[j][k];
            }
        }
    }
    if (APART)
        return;
    float *out = (float *)(void *)s.p;
    meet(pieces);
    stage_result(out, at, t, w, all);
    meet(pieces);
    if (at.yq.q)
        round_tile(out, &at, &t, memory::WARPS * WARP);
}

/* On Hopper copies need few registers, products nearly all that a thread can have. */
template <int ROWS, bool IS_READER> static __device__ __forceinline__ void share_registers(void)
{
#if SL_WGMMA
    if (ROWS == TILE_ROWS && IS_READER)
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    else if (ROWS == TILE_ROWS)
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
#endif
}

/* Block of threads: a tile of query rows of one segment and KV head, and all or a range of its key
 * blocks. Queries are made while keys are still being appended. */
template <int ROWS, int STAGES, int LAG, bool APART>
static __global__ void __launch_bounds__(tile_memory<ROWS, STAGES, LAG>::THREADS, 1)
    attend_kernel(const __grid_constant__ sl_cu_rows rows,
                  const __grid_constant__ sl_cu_attention at)
{
    typedef tile_memory<ROWS, STAGES, LAG> memory;
    extern __shared__ __align__(1024) char raw[];
    memory &s = *(memory *)(void *)raw;
    const ring r = {s.slots[0], s.full, s.empty, STAGES, memory::WARPS};
    init_ring(r);
    if (!take_tile(s.t, rows, at, ROWS)) {
        /* That a kernel has ended says that those before it have: one block waits for them, also
         * where none has a tile. */
        if ((blockIdx.x | blockIdx.y | blockIdx.z) == 0)
            wait_alone();
        return;
    }
    if (!is_reader(r)) {
        share_registers<ROWS, false>();
        if (copier(r) < COPIERS * WARP) {
            wait_for_previous();
            copy_blocks(r, s.t);
        }
    } else {
        share_registers<ROWS, true>();
        read_blocks<ROWS, STAGES, LAG, APART>(s, r, at);
    }
}

static_assert(sizeof(tile_memory<TILE_ROWS, 6, 1>) <= LARGE_MEMORY, "more than a block can have");
static_assert(sizeof(tile_memory<32, 2, 0>) <= SMALL_MEMORY, "more than every device has");

/* In how many ranges the n_blocks key blocks of each of n_tiles go on n multiprocessors: what a
 * block of threads does besides takes as long as START blocks. */
static uint32_t n_ranges(uint32_t n_tiles, uint32_t n_blocks, uint32_t n)
{
    enum { MOST_TURNS = 3, START = 2 };
    uint32_t best = 1, least = n_blocks + START;
    for (uint32_t turns = 1; turns <= MOST_TURNS; turns++) {
        const uint32_t fit = turns * n / n_tiles, ranges = fit < n_blocks ? fit : n_blocks;
        if (ranges == 0)
            continue;
        const uint32_t cost = turns * (div_up(n_blocks, ranges) + START);
        best = cost < least ? ranges : best;
        least = cost < least ? cost : least;
    }
    return best;
}

template <int ROWS, int STAGES, int LAG, bool APART>
static void attend(const sl_cu_queue *queue, const sl_cu_rows *rows, const sl_cu_attention *at)
{
    typedef tile_memory<ROWS, STAGES, LAG> memory;
    const uint32_t tiles = div_up(rows->most_rows * (at->n_heads / at->n_kv_heads), ROWS);
    const uint32_t all = tiles * at->n_kv_heads * rows->n_segments;
    const uint32_t ranges =
        APART ? n_ranges(all, at->n_parts, (uint32_t)queue->n_multiprocessors) : 1;
    const dim3 grid(at->n_kv_heads * ranges, tiles, rows->n_segments);
    cudaFuncSetAttribute(attend_kernel<ROWS, STAGES, LAG, APART>,
                         cudaFuncAttributeMaxDynamicSharedMemorySize, (int)sizeof(memory));
    launch(queue, attend_kernel<ROWS, STAGES, LAG, APART>, grid, dim3(memory::THREADS),
           sizeof(memory), *rows, *at);
}

void sl_cu_append(const sl_cu_queue *queue, const sl_cu_rows *rows, const sl_cu_attention *at)
{
    const dim3 grid(div_up(rows->most_rows, APPEND_ROWS), at->n_kv_heads, rows->n_segments);
    /* Not by launch: when this kernel has begun, queries are there. */
    append_kernel<<<grid, APPEND_THREADS, 0, queue->stream>>>(*rows, *at);
}

void sl_cu_attend_tiles(const sl_cu_queue *queue, const sl_cu_rows *rows, const sl_cu_attention *at)
{
    if (has_clusters(queue) && at->tiles_apart)
        attend<TILE_ROWS, 6, 1, true>(queue, rows, at);
    else if (has_clusters(queue))
        attend<TILE_ROWS, 6, 1, false>(queue, rows, at);
    else if (at->tiles_apart)
        attend<32, 2, 0, true>(queue, rows, at);
    else
        attend<32, 2, 0, false>(queue, rows, at);
}
