/* Attention for steps of few rows: what its kernels share. An item is up to 16 query rows of one KV
 * head (with one row: its group of heads) and one key block. attention_split.cu shares an item out
 * over a cluster, attention_stream.cu has a block of threads do it alone, and attention_merge.cu
 * adds up what the key blocks of a row gave. */
#ifndef SL_BACKEND_CUDA_KERNELS_ATTENTION_ITEMS_CUH
#define SL_BACKEND_CUDA_KERNELS_ATTENTION_ITEMS_CUH

#include "backend/cuda/kernels/attention.cuh"

enum {
    TILE = 16,                        /* query rows of an item */
    SCORE_ROW = BLOCK * sizeof(float) /* bytes; weights take the place of scores, high then low */
};

/* Query rows are few, so their room is counted at run time: 4, 8 or 16 rows. Products always have
 * 8 or 16; the others repeat these or are zero. */
typedef struct item_memory {
    char *q;              /* panels of high, then of low */
    float *scores;        /* [room][256] */
    float *rows;          /* [warps][256] in the making, where rope needs them */
    float *scale, *m, *l; /* [room] */
    uint32_t room;
} item_memory;

static inline uint32_t room_of(uint32_t n_queries)
{
    return n_queries <= 4 ? 4 : n_queries <= 8 ? 8 : TILE;
}

/* ---- items ---- */

/* The segment with the n-th key block of all. */
static __device__ inline uint32_t find_segment(const sl_cu_rows &rows, uint32_t n)
{
    const uint32_t lane = threadIdx.x % WARP;
    uint32_t begin = 0, left = rows.n_segments;
    while (left > 1) {
        const uint32_t step = div_up(left, WARP), i = lane * step;
        const bool before = i < left && rows.segments[begin + i].first_key_block <= n;
        const uint32_t skip = (__popc(__ballot_sync(0xFFFFFFFFu, before)) - 1) * step;
        begin += skip;
        left = left - skip < step ? left - skip : step;
    }
    return begin;
}

/* Items in order: segments, KV heads, tiles of query rows, key blocks. */
typedef struct item {
    const sl_cu_segment *segment;
    uint32_t kv_head, tile, block, n_blocks;
} item;

static __device__ __forceinline__ uint32_t blocks_of(const sl_cu_segment &segment)
{
    return segment.n_rows <= SL_CU_SPLIT_ROWS ? (segment.pos + segment.n_rows - 1) / BLOCK + 1 : 0;
}

static __device__ inline item find_item(const sl_cu_rows &rows, uint32_t n_kv_heads,
                                        uint32_t n_tiles, uint32_t n)
{
    item i;
    i.segment = &rows.segments[find_segment(rows, n / (n_kv_heads * n_tiles))];
    i.n_blocks = blocks_of(*i.segment);
    n -= i.segment->first_key_block * n_kv_heads * n_tiles;
    i.block = n % i.n_blocks;
    i.tile = n / i.n_blocks % n_tiles;
    i.kv_head = n / i.n_blocks / n_tiles;
    return i;
}

static __device__ inline void next_item(item &i, uint32_t n_kv_heads, uint32_t n_tiles)
{
    if (++i.block < i.n_blocks)
        return;
    i.block = 0;
    if (++i.tile < n_tiles)
        return;
    i.tile = 0;
    if (++i.kv_head < n_kv_heads)
        return;
    i.kv_head = 0;
    do {
        i.segment++;
        i.n_blocks = blocks_of(*i.segment);
    } while (i.n_blocks == 0);
}

typedef struct item_range {
    uint32_t begin, end;
} item_range;

/* The items of worker i of n. Where there are fewer items than workers the first have one each, so
 * that the others do not stand in their way. */
static __device__ __forceinline__ item_range share_of(const sl_cu_rows &rows,
                                                      const sl_cu_attention &at, uint32_t n_tiles,
                                                      uint32_t i, uint32_t n)
{
    const sl_cu_segment &last = rows.segments[rows.n_segments - 1];
    const uint64_t all =
        (uint64_t)(last.first_key_block + blocks_of(last)) * at.n_kv_heads * n_tiles;
    const uint32_t workers = all < n ? (uint32_t)all : n;
    item_range r = {0, 0};
    if (i < workers) {
        r.begin = (uint32_t)(i * all / workers);
        r.end = (uint32_t)((i + 1) * all / workers);
    }
    return r;
}

/* What an item is about. */
typedef struct split {
    const sl_cu_segment *segment;
    uint32_t pos, n_rows;                  /* of the segment */
    uint32_t kv_head, group, begin, count; /* query rows */
    uint32_t block, first;                 /* key block and its first key */
    uint32_t n;                /* keys of it that the last row sees, 0 = nothing to do */
    uint32_t new_begin, n_new; /* positions in it that this run adds */
    bool is_last;              /* tile of the segment */
} split;

/* Row of the segment that a query row of the tile belongs to. */
static __device__ __forceinline__ uint32_t row_of(const split &t, uint32_t row)
{
    return t.n_rows == 1 ? 0 : (t.begin + row) / t.group;
}

static __device__ __forceinline__ uint32_t head_of(const split &t, uint32_t row)
{
    return t.kv_head * t.group + t.begin + row - row_of(t, row) * t.group;
}

static __device__ __forceinline__ uint32_t position(const split &t, uint32_t row)
{
    return t.pos + row_of(t, row);
}

static __device__ inline split split_of(const item &i, uint32_t group)
{
    split t;
    t.segment = i.segment;
    t.pos = i.segment->pos;
    t.n_rows = i.segment->n_rows;
    t.kv_head = i.kv_head;
    t.group = group;
    t.begin = i.tile * TILE;
    t.block = i.block;
    t.first = i.block * BLOCK;
    const uint32_t queries = t.n_rows * group;
    t.count = t.begin >= queries ? 0 : queries - t.begin < TILE ? queries - t.begin : TILE;
    t.is_last = t.begin + TILE >= queries;
    t.n = t.count > 0 ? keys_seen(position(t, t.count - 1), t.first) : 0;
    t.new_begin = t.pos < t.first ? t.first : t.pos;
    t.n_new = t.first + t.n > t.new_begin ? t.first + t.n - t.new_begin : 0;
    return t;
}

static __device__ __forceinline__ const char *page_of(const split &t, uint32_t page)
{
    return (const char *)t.segment->kv_pages[t.block * PAGES + page];
}

/* ---- weights ---- */

/* A weight's byte in its row: high halves, low ones 512 bytes after them; permuted like panels. */
static __device__ __forceinline__ uint32_t weight_at(uint32_t row, uint32_t piece)
{
    return row * SCORE_ROW + ((piece ^ (row & 7)) << 4);
}

/* A warp a row: lane 8 p + 4 v + t has keys 8 j + 2 t and the next of page p, for j = 4 v .. 4 v
 * + 3. */
template <uint32_t N_WARPS>
static __device__ __forceinline__ void weigh(const item_memory &s, const split &t)
{
    enum { EACH = 4 };
    const uint32_t lane = threadIdx.x % WARP, piece = lane / 8 * 8 + lane / 4 % 2 * EACH;
    const uint32_t first = piece * 8 + lane % 4 * 2;
    for (uint32_t row = threadIdx.x / WARP; row < t.count; row += N_WARPS) {
        const uint32_t seen = keys_seen(position(t, row), t.first);
        const float scale = s.scale[row];
        float2 c[EACH];
        float largest = lowest(), w[EACH];
#pragma unroll
        for (uint32_t j = 0; j < EACH; j++) {
            c[j] = *(const float2 *)&s.scores[row * BLOCK + first + 8 * j];
            c[j].x = first + 8 * j < seen ? c[j].x : lowest();
            c[j].y = first + 8 * j + 1 < seen ? c[j].y : lowest();
            largest = fmaxf(largest, fmaxf(c[j].x, c[j].y));
        }
#pragma unroll
        for (int other = 1; other < WARP; other *= 2)
            largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, other));
        const float m = reference_of(largest);
        char *weights = (char *)s.scores + row * SCORE_ROW + lane % 4 * 4;
#pragma unroll
        for (uint32_t j = 0; j < EACH; j++) { /* all lanes have read the row */
            const float a = weight_of(c[j].x, m, scale), b = weight_of(c[j].y, m, scale);
            w[j] = a + b;
            uint32_t high, low;
            split_pair(a, b, high, low);
            char *to = weights + (((piece + j) ^ (row & 7)) << 4);
            *(uint32_t *)(void *)to = high;
            *(uint32_t *)(void *)(to + HALF_ROW) = low;
        }
        float sum = (w[0] + w[1]) + (w[2] + w[3]);
        sum = sum + __shfl_xor_sync(0xFFFFFFFFu, sum, 4);
        sum = page_sum(sum);
        sum = sum + __shfl_xor_sync(0xFFFFFFFFu, sum, 8); /* as pages_sum has it */
        sum = sum + __shfl_xor_sync(0xFFFFFFFFu, sum, 16);
        if (lane == 0) {
            s.m[row] = largest;
            s.l[row] = sum;
        }
    }
}

/* Where the block's o goes, by rows and query heads; first what is the row's. */
static __device__ __forceinline__ float *part_of(const sl_cu_attention &at, const split &t,
                                                 uint32_t row)
{
    return parts_of(at, *t.segment, row_of(t, row), head_of(t, row)) + (size_t)t.block * PART;
}

#endif
