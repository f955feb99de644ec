/* Attention for prompts: segments of more than SL_CU_SPLIT_ROWS rows.
 *   append   keys and values of 16 rows go to their pages
 *   attend   64 query rows of one KV head (32 where shared memory is small) over all their key
 *            blocks in turn. A warp has 16 rows, and of a block 128 keys for the scores, then 128
 *            dimensions for o; the weights go through shared memory. While a block's scores become
 *            weights, the tensor cores make those of the next.
 * Keys come in pieces of 32 dimensions of a block, values in pieces of 32 keys, 16 KB each, copied
 * ahead through a ring. On Hopper products are wgmma's, elsewhere mma's: the same bits. */
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
    STEPS = 8,                     /* pieces of the keys of a block, and of its values */
    STEP = 32,                     /* dimensions, or keys, of a piece: rows of its panels */
    STEP_PANEL = STEP * PANEL_ROW, /* bytes of a panel */
    PIECE = 4 * STEP_PANEL,        /* panels: the keys of a page each, or 64 dimensions of values */
    TILES = 16,                    /* of 8 columns that a warp has: two panels */
    PAGE_SLOTS = 4                 /* key blocks whose pages are known at once */
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define SL_WGMMA 1
#else
#define SL_WGMMA 0
#endif

/* Of a few key blocks where each page's keys and values of the KV head are. */
typedef struct block_pages {
    const char *keys[PAGES], *values[PAGES];
} block_pages;
typedef block_pages page_slots[PAGE_SLOTS];

/* ROWS: query rows, 64 or 32. LAG: pieces that products may still read when the next one begins. */
template <int ROWS, int STAGES, int LAG> struct tile_memory {
    enum { THREADS = ROWS / 16 * 2 * WARP, AHEAD = STAGES - 1 - LAG, HALF = ROWS * HALF_ROW };
    char ring[STAGES][PIECE];
    char q[2 * HALF]; /* panels of high, then of low */
    char p[2 * HALF]; /* the same of weights; before them rows in the making, after them o */
    page_slots pages;
    float scale[ROWS], largest[ROWS][2], sums[ROWS][PAGES];
};

/* What a block of threads works on. */
typedef struct tile {
    const sl_cu_segment *segment;
    uint32_t kv_head, group;
    uint32_t begin, count;    /* query rows */
    uint32_t total, n_blocks; /* keys that the last of them sees */
    size_t k_offset, v_offset; /* in a page */
} tile;

static __device__ __forceinline__ uint32_t position(const tile &t, uint32_t row)
{
    return t.segment->pos + (t.begin + row) / t.group;
}

template <int ROWS, int THREADS>
static __device__ inline void make_queries(char *q, float *x, float *scales,
                                           const sl_cu_attention &at, const tile &t)
{
    enum { AT_ONCE = 4 };
    const uint32_t warp = threadIdx.x / WARP;
    x += warp * AT_ONCE * DIM;
    for (uint32_t row = warp * AT_ONCE; row < ROWS; row += THREADS / WARP * AT_ONCE) {
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
            const float scale = split_query(x + i * DIM, q, ROWS, row + i);
            if (threadIdx.x % WARP == 0)
                scales[row + i] = scale;
        }
        __syncwarp();
    }
}

/* ---- pieces ---- */

/* The pages of a key block, for the copies of its pieces. */
static __device__ __forceinline__ void find_pages(block_pages *slots, const tile &t, uint32_t block)
{
    if (threadIdx.x < PAGES && block < t.n_blocks) {
        const uint32_t page = block * PAGES + threadIdx.x, last = (t.total - 1) / PAGE;
        const char *at = (const char *)t.segment->kv_pages[page < last ? page : last];
        slots[block % PAGE_SLOTS].keys[threadIdx.x] = at + t.k_offset;
        slots[block % PAGE_SLOTS].values[threadIdx.x] = at + t.v_offset;
    }
}

/* left: keys of the block that exist. */
template <int THREADS>
static __device__ __forceinline__ void copy_keys(char *to, const block_pages &pages, uint32_t left,
                                                 uint32_t step)
{
#pragma unroll
    for (uint32_t x = threadIdx.x; x < STEP_PANEL / 16; x += THREADS) {
#pragma unroll
        for (uint32_t p = 0; p < PAGES; p++) {
            if (p * PAGE < left)
                copy_ahead(to + p * STEP_PANEL + panel_at(x / 8, x % 8),
                           pages.keys[p] + (step * STEP_PANEL + x * 16));
        }
    }
}

/* Values of keys that do not exist become zero. */
template <int THREADS>
static __device__ __forceinline__ void copy_values(char *to, const block_pages &pages,
                                                   uint32_t left, uint32_t step)
{
    const char *from = pages.values[step * STEP / PAGE] + step * STEP % PAGE * HALF_ROW;
#pragma unroll
    for (uint32_t x = threadIdx.x; x < PIECE / 16; x += THREADS) {
        const uint32_t key = x / 32, piece = x % 32;
        char *at = to + piece / 8 * STEP_PANEL + panel_at(key, piece % 8);
        if (step * STEP + key < left)
            copy_ahead(at, from + x * 16);
        else
            *(uint4 *)(void *)at = make_uint4(0, 0, 0, 0);
    }
}

/* Piece i of all: the keys of block 0, then for each block the keys of the next and its values. */
template <int THREADS>
static __device__ __forceinline__ void copy_piece(char *to, const block_pages *slots, uint32_t total,
                                                  uint32_t i)
{
    const uint32_t turn = i / STEPS, step = i % STEPS; /* K 0, K 1, V 0, K 2, V 1, .. V n - 1 */
    const uint32_t n_blocks = div_up(total, BLOCK), last = 2 * n_blocks - 1;
    const bool is_keys = turn == 0 || (turn % 2 == 1 && turn < last);
    const uint32_t block = turn == last ? n_blocks - 1 : is_keys ? (turn + 1) / 2 : turn / 2 - 1;
    const block_pages &pages = slots[block % PAGE_SLOTS];
    if (turn <= last && is_keys)
        copy_keys<THREADS>(to, pages, total - block * BLOCK, step);
    else if (turn <= last && block * BLOCK + step * STEP < total)
        copy_values<THREADS>(to, pages, total - block * BLOCK, step);
    end_of_copies();
}

/* Piece i is there for products to read; another one is on its way to where nobody reads any more. */
template <int ROWS, int STAGES, int LAG>
static __device__ __forceinline__ uint32_t next_piece(tile_memory<ROWS, STAGES, LAG> &s,
                                                      uint32_t total, uint32_t i)
{
    typedef tile_memory<ROWS, STAGES, LAG> memory;
    wait_for_copies<memory::AHEAD - 1>();
#if SL_WGMMA /* which reads shared memory in a way of its own */
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
    __syncthreads();
    const uint32_t next = i + memory::AHEAD;
    copy_piece<memory::THREADS>(s.ring[next % STAGES], s.pages, total, next);
    return shared_address(s.ring[i % STAGES]);
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
/* c += 64 rows of 16 columns times 16 rows of 128 columns, by the four warps of a group. */
static __device__ __forceinline__ void multiply_group(float c[TILES][4], uint64_t left,
                                                      uint64_t right)
{
    asm volatile(
        "{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %66, 0;\n\t"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
        "%64, %65, p, 1, 1, 0, 1;\n\t}"
        : SL_FOUR(c[0]), SL_FOUR(c[1]), SL_FOUR(c[2]), SL_FOUR(c[3]), SL_FOUR(c[4]), SL_FOUR(c[5]),
          SL_FOUR(c[6]), SL_FOUR(c[7]), SL_FOUR(c[8]), SL_FOUR(c[9]), SL_FOUR(c[10]),
          SL_FOUR(c[11]), SL_FOUR(c[12]), SL_FOUR(c[13]), SL_FOUR(c[14]), SL_FOUR(c[15])
        : "l"(left), "l"(right), "r"(1));
}
#undef SL_FOUR
#endif

/* c += a step of the left side's columns times a piece. left: panels of high, then of low, of which
 * the warp has rows from `row` on; right: its two panels of the piece. Products may be unfinished. */
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
            multiply_group(c, operand(left + k * 32, 16), b);
            multiply_group(c, operand(left + ROWS * HALF_ROW + k * 32, 16), b);
        }
        return;
    }
#endif
    const uint32_t lane = threadIdx.x % WARP;
#pragma unroll
    for (uint32_t k = 0; k < STEP / 16; k++) {
        uint32_t high[1][4], low[1][4], b[TILES][2];
        const uint32_t at = left + panel_at(row + lane % 16,
                                            step * STEP % PANEL / 8 + k * 2 + lane / 16);
        load_matrices(high[0], at);
        load_matrices(low[0], at + ROWS * HALF_ROW);
#pragma unroll
        for (uint32_t j = 0; j < TILES; j += 2)
            load_transposed(b[j], right + j / 8 * STEP_PANEL +
                                      panel_at(k * 16 + lane % 16, j % 8 + lane / 16));
        multiply_split<1, TILES>((float(*)[TILES][4])c, high, low, b);
    }
}

/* Ends a step, and waits until all but the last LEFT are done. */
template <int ROWS, int LEFT>
static __device__ __forceinline__ void end_of_step(float c[TILES][4])
{
#if SL_WGMMA
    if (ROWS != 64)
        return;
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
    if (LEFT == 0) {
#pragma unroll
        for (int j = 0; j < TILES; j++) /* their registers may be used */
            asm volatile("" : "+f"(c[j][0]), "+f"(c[j][1]), "+f"(c[j][2]), "+f"(c[j][3])::"memory");
    }
#endif
}

static __device__ __forceinline__ void clear(float c[TILES][4])
{
#pragma unroll
    for (int j = 0; j < TILES; j++)
        c[j][0] = c[j][1] = c[j][2] = c[j][3] = 0.0f;
}

/* ---- softmax ---- */

/* What a warp has of a tile: rows row + lane / 4 and 8 below, and side 0 or 1 of the columns. */
typedef struct share {
    uint32_t row, side;
    uint32_t seen[2]; /* keys of the block that each of the thread's rows sees */
} share;

/* The largest score of each row, of the warp's side. */
static __device__ __forceinline__ void find_largest(float (*largest)[2], const float c[TILES][4],
                                                    const share &w)
{
    const uint32_t t = threadIdx.x % 4, first = w.side * TILES * 8 + 2 * t;
#pragma unroll
    for (uint32_t r = 0; r < 2; r++) {
        float m = -sl_float_of_bits(0x7F800000u);
#pragma unroll
        for (uint32_t j = 0; j < TILES; j++) {
            m = first + 8 * j < w.seen[r] ? fmaxf(m, c[j][2 * r]) : m;
            m = first + 8 * j + 1 < w.seen[r] ? fmaxf(m, c[j][2 * r + 1]) : m;
        }
        m = fmaxf(m, __shfl_xor_sync(0xFFFFFFFFu, m, 1));
        m = fmaxf(m, __shfl_xor_sync(0xFFFFFFFFu, m, 2));
        if (t == 0)
            largest[w.row + threadIdx.x % WARP / 4 + 8 * r][w.side] = m;
    }
}

/* Tile j's scores of a row become weights in shared memory, and go into the page's sum. */
template <int ROWS>
static __device__ __forceinline__ void weigh(uint32_t p, const float *pair, const share &w, uint32_t r,
                                             uint32_t j, float m, float scale, float &sum)
{
    const uint32_t t = threadIdx.x % 4, key = w.side * TILES * 8 + 8 * j + 2 * t;
    const float p0 = weight_of(pair[0], m, scale), p1 = weight_of(pair[1], m, scale);
    const float w0 = key < w.seen[r] ? p0 : 0.0f, w1 = key + 1 < w.seen[r] ? p1 : 0.0f;
    sum = lane_sum(sum, w0, w1);
    uint32_t high, low;
    split_pair(w0, w1, high, low);
    const uint32_t to = (p ^ j % 8 << 4) + j / 8 * ROWS * PANEL_ROW + r * 8 * PANEL_ROW;
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(high) : "memory");
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(to + ROWS * HALF_ROW), "r"(low) : "memory");
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
    all.l[r] = merged(all.l[r], x, l_b, y);
#pragma unroll
    for (uint32_t j = 0; j < TILES; j++) {
        all.o[j][2 * r] = merged(all.o[j][2 * r], x, part[j][2 * r], y);
        all.o[j][2 * r + 1] = merged(all.o[j][2 * r + 1], x, part[j][2 * r + 1], y);
    }
}

/* o / l through shared memory, columns permuted against conflicts, then a warp a row. */
template <int ROWS, int THREADS>
static __device__ __forceinline__ void write_tile(float *out, const sl_cu_attention &at,
                                                  const tile &t, const share &w,
                                                  const running &all)
{
    const uint32_t lane = threadIdx.x % WARP;
    __syncthreads();
#pragma unroll
    for (uint32_t r = 0; r < 2; r++) {
        const uint32_t row = w.row + lane / 4 + 8 * r;
#pragma unroll
        for (uint32_t j = 0; j < TILES; j++) {
            const uint32_t d = (w.side * TILES * 8 + 8 * j + lane % 4 * 2) ^ (row & 7) * 8;
            *(float2 *)&out[row * DIM + d] =
                make_float2(all.o[j][2 * r] / all.l[r], all.o[j][2 * r + 1] / all.l[r]);
        }
    }
    __syncthreads();
    for (uint32_t r = threadIdx.x / WARP; r < t.count; r += THREADS / WARP) {
        const size_t row = t.segment->first_row + (t.begin + r) / t.group;
        const uint32_t head = t.kv_head * t.group + (t.begin + r) % t.group;
        float gate[DIM / WARP];
#pragma unroll
        for (uint32_t k = 0; k < DIM / WARP; k++)
            gate[k] = gate_of(at, row, head, k * WARP + lane);
#pragma unroll
        for (uint32_t k = 0; k < DIM / WARP; k++) {
            const uint32_t d = k * WARP + lane;
            write_result(at, row, head, d, out[r * DIM + (d ^ (r & 7) * 8)], gate[k]);
        }
    }
}

/* Block of threads: a tile of query rows of one segment and KV head; those with most keys first. */
template <int ROWS, int STAGES, int LAG>
static __global__ void __launch_bounds__(ROWS / 16 * 2 * WARP, 1)
    attend_kernel(const sl_cu_rows rows, const __grid_constant__ sl_cu_attention at)
{
    typedef tile_memory<ROWS, STAGES, LAG> memory;
    extern __shared__ __align__(1024) char raw[];
    memory &s = *(memory *)(void *)raw;
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
    t.n_blocks = div_up(t.total, BLOCK);
    t.k_offset = key_offset(at, t.kv_head);
    t.v_offset = value_offset(at, t.kv_head);

    find_pages(s.pages, t, 0);
    find_pages(s.pages, t, 1);
    __syncthreads();
#pragma unroll
    for (uint32_t i = 0; i < memory::AHEAD; i++)
        copy_piece<memory::THREADS>(s.ring[i], s.pages, t.total, i);
    make_queries<ROWS, memory::THREADS>(s.q, (float *)(void *)s.p, s.scale, at, t);

    const uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    share w = {.row = warp % (ROWS / 16) * 16, .side = warp / (ROWS / 16)};
    const uint32_t q = shared_address(s.q), p = shared_address(s.p);
    const uint32_t panels = w.side * 2 * STEP_PANEL;
    uint32_t pos[2], piece = 0;
#pragma unroll
    for (uint32_t r = 0; r < 2; r++) {
        const uint32_t row = w.row + lane / 4 + 8 * r;
        pos[r] = position(t, row < t.count ? row : t.count - 1);
    }
    const float lowest = -sl_float_of_bits(0x7F800000u);
    running all = {.m = {lowest, lowest}};
    float now[TILES][4], next[TILES][4]; /* scores of a block, then its o; scores of the next */
    clear(now);
#pragma unroll 1
    for (uint32_t step = 0; step < STEPS; step++) {
        const uint32_t keys = next_piece(s, t.total, piece++);
        multiply_step<ROWS>(now, q, w.row, keys + panels, step);
        end_of_step<ROWS, LAG>(now);
    }
    end_of_step<ROWS, 0>(now);
#pragma unroll 1
    for (uint32_t block = 0; block < t.n_blocks; block++) {
        const uint32_t first = block * BLOCK;
#pragma unroll
        for (uint32_t r = 0; r < 2; r++)
            w.seen[r] = keys_seen(pos[r], first);
        find_pages(s.pages, t, block + 2);
        find_largest(s.largest, now, w);
        __syncthreads();
        float m[2], scale[2], sum[2][2] = {};
#pragma unroll
        for (uint32_t r = 0; r < 2; r++) {
            const uint32_t row = w.row + lane / 4 + 8 * r;
            m[r] = fmaxf(s.largest[row][0], s.largest[row][1]);
            scale[r] = s.scale[row];
        }
        clear(next);
        uint32_t to = p + w.side * 2 * ROWS * PANEL_ROW + panel_at(w.row + lane / 4, 0) + lane % 4 * 4;
        asm volatile("" : "+r"(to)); /* addresses are made from it here, not kept */
        const bool has_next = block + 1 < t.n_blocks;
#pragma unroll
        for (uint32_t step = 0; step < STEPS; step++) {
            if (has_next) {
                const uint32_t keys = next_piece(s, t.total, piece++);
                multiply_step<ROWS>(next, q, w.row, keys + panels, step);
            }
#pragma unroll
            for (uint32_t j = 2 * step; j < 2 * step + 2; j++) {
#pragma unroll
                for (uint32_t r = 0; r < 2; r++)
                    weigh<ROWS>(to, &now[j][2 * r], w, r, j, m[r], scale[r], sum[r][j / 8]);
            }
            end_of_step<ROWS, LAG>(next);
        }
        end_of_step<ROWS, 0>(next);
#pragma unroll
        for (uint32_t r = 0; r < 2; r++) {
#pragma unroll
            for (uint32_t k = 0; k < 2; k++) {
                const float total = page_sum(sum[r][k]);
                if (lane % 4 == 0)
                    s.sums[w.row + lane / 4 + 8 * r][w.side * 2 + k] = total;
            }
        }
        clear(now);
#pragma unroll 1
        for (uint32_t step = 0; step < STEPS; step++) {
            const uint32_t values = next_piece(s, t.total, piece++);
            if (first + step * STEP < t.total)
                multiply_step<ROWS>(now, p, w.row, values + panels, step);
            end_of_step<ROWS, LAG>(now);
        }
        end_of_step<ROWS, 0>(now);
#pragma unroll
        for (uint32_t r = 0; r < 2; r++) {
            const float4 l = *(const float4 *)s.sums[w.row + lane / 4 + 8 * r];
            merge(all, now, r, m[r], pages_sum(l.x, l.y, l.z, l.w), scale[r]);
        }
#pragma unroll
        for (int j = 0; j < TILES; j++) {
#pragma unroll
            for (int k = 0; k < 4; k++)
                now[j][k] = next[j][k];
        }
    }
    write_tile<ROWS, memory::THREADS>((float *)(void *)s.p, at, t, w, all);
}

template <int ROWS, int STAGES, int LAG>
static void attend(const sl_cu_queue *queue, const sl_cu_rows *rows, const sl_cu_attention *at)
{
    typedef tile_memory<ROWS, STAGES, LAG> memory;
    const uint32_t queries = rows->most_rows * (at->n_heads / at->n_kv_heads);
    const dim3 grid(at->n_kv_heads, div_up(queries, ROWS), rows->n_segments);
    cudaFuncSetAttribute(attend_kernel<ROWS, STAGES, LAG>,
                         cudaFuncAttributeMaxDynamicSharedMemorySize, (int)sizeof(memory));
    attend_kernel<ROWS, STAGES, LAG>
        <<<grid, memory::THREADS, sizeof(memory), queue->stream>>>(*rows, *at);
}

void sl_cu_attend_tiles(const sl_cu_queue *queue, const sl_cu_rows *rows,
                        const sl_cu_attention *at)
{
    const dim3 grid(div_up(rows->most_rows, APPEND_ROWS), at->n_kv_heads, rows->n_segments);
    append_kernel<<<grid, APPEND_THREADS, 0, queue->stream>>>(*rows, *at);
    int device = 0, room = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&room, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    if ((size_t)room >= sizeof(tile_memory<64, 6, 1>))
        attend<64, 6, 1>(queue, rows, at);
    else
        attend<32, 2, 0>(queue, rows, at);
}
