/* Attention for steps of few rows: segments of up to SL_CU_SPLIT_ROWS rows, key blocks apart.
 *   split  works through items: up to 16 query rows of one KV head (with one row: its group of
 *          heads) and one key block. A cluster of four blocks of threads takes several in turn. Of
 *          an item each block has a page of the keys, tells the others its scores, and has 64
 *          dimensions of the values. Keys and values of an item are on their way while the one
 *          before is computed, those of the first before the kernel before has ended; rows of this
 *          run are made here, put beside the copies, and into their pages.
 *   merge  a row's key blocks in order; where there is only one, the first kernel does it all.
 * Devices without clusters do the four parts one after the other. */
#include "backend/cuda/kernels/attention.cuh"

enum {
    THREADS = 256,
    WARPS = THREADS / WARP,
    TILE = 16, /* query rows of a product */
    PARTS = 4, /* of a key block: a page of its keys, 64 dimensions of its values */
    PART_DIMS = DIM / PARTS,
    PART_BYTES = PAGE * DIM * 2,
    PIECES = PART_BYTES / 16 / THREADS, /* of a part of the keys that a thread copies */
    SCORE_ROW = BLOCK * sizeof(float)   /* bytes; weights take the place of scores, high then low */
};

/* Query rows are few, so their room is counted at run time: 4, 8 or 16 rows. Products always have
 * 16; the others repeat these or are zero. Scores of two items: some blocks of a cluster may be an
 * item ahead of others, but not two, since they need everyone's scores. */
typedef struct split_memory {
    char *keys;           /* [256 dimensions][64 keys] of a page */
    char *values;         /* [256 keys][64 dimensions] */
    char *q;              /* panels of high, then of low */
    float *scores;        /* [room][256] of this item */
    float *rows;          /* [WARPS][256] in the making, where rope needs them */
    float *scale, *m, *l; /* [room] */
    uint64_t *counters;   /* of what has come of the scores of even and of odd items */
    uint32_t room;
} split_memory;

/* Without a cluster there are the scores of one item, and rows in the making lie where keys will.
 */
static size_t split_bytes(bool cluster, uint32_t room, bool with_rows)
{
    const size_t row = 2 * HALF_ROW + (cluster ? 2 : 1) * SCORE_ROW + 3 * sizeof(float);
    return 2 * PART_BYTES + room * row + 2 * sizeof(uint64_t) +
           (cluster && with_rows ? WARPS * DIM * sizeof(float) : 0);
}

template <bool CLUSTER>
static __device__ __forceinline__ split_memory split_memory_of(char *raw, uint32_t room)
{
    split_memory s;
    s.keys = raw;
    s.values = s.keys + PART_BYTES;
    s.q = s.values + PART_BYTES;
    s.scores = (float *)(void *)(s.q + room * 2 * HALF_ROW);
    s.counters = (uint64_t *)(void *)(s.scores + (CLUSTER ? 2 : 1) * room * BLOCK);
    s.scale = (float *)(void *)(s.counters + 2);
    s.m = s.scale + room;
    s.l = s.m + room;
    s.rows = CLUSTER ? s.l + room : (float *)(void *)s.keys;
    s.room = room;
    return s;
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

/* ---- clusters ---- */

/* The others have begun, and their counters are ready. */
static __device__ __forceinline__ void meet_cluster(const split_memory &s)
{
#if __CUDA_ARCH__ >= 900
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(shared_address(s.counters)));
        asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(shared_address(s.counters + 1)));
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}

/* How much will come to a counter in this round; by one thread. */
static __device__ __forceinline__ void expect(uint64_t *counter, uint32_t n_bytes)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(shared_address(counter)),
                 "r"(n_bytes)
                 : "memory");
#endif
}

static __device__ __forceinline__ void wait_for_counter(uint64_t *counter, uint32_t parity)
{
#if __CUDA_ARCH__ >= 900
    uint32_t is_over = 0;
    while (!is_over)
        asm volatile("{\n\t.reg .pred p;\n\t"
                     "mbarrier.try_wait.parity.shared.b64 p, [%1], %2;\n\t"
                     "selp.u32 %0, 1, 0, p;\n\t}"
                     : "=r"(is_over)
                     : "r"(shared_address(counter)), "r"(parity)
                     : "memory");
#endif
}

/* Two floats to the same place of shared memory in block `rank` of the cluster, and to its counter.
 */
static __device__ __forceinline__ void tell(float *place, uint64_t *counter, uint32_t rank, float a,
                                            float b)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("{\n\t.reg .b32 there, count;\n\t"
                 "mapa.shared::cluster.u32 there, %0, %2;\n\t"
                 "mapa.shared::cluster.u32 count, %1, %2;\n\t"
                 "st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [there], {%3, %4}, "
                 "[count];\n\t}" ::"r"(shared_address(place)),
                 "r"(shared_address(counter)), "r"(rank), "f"(a), "f"(b)
                 : "memory");
#endif
}

/* ---- copies ---- */

static __device__ __forceinline__ void copy_keys(const split_memory &s, const sl_cu_attention &at,
                                                 const split &t, uint32_t part)
{
    const uint32_t first = part * PAGE;
    if (first < t.n) {
        const char *from = page_of(t, part) + key_offset(at, t.kv_head);
        if (first + threadIdx.x % 8 * 8 < t.n) {
#pragma unroll
            for (uint32_t i = 0; i < PIECES; i++) {
                const uint32_t x = threadIdx.x + i * THREADS;
                copy_ahead(s.keys + panel_at(x / 8, x % 8), from + x * 16);
            }
        }
    }
    end_of_copies();
}

/* The first n_old values are in their pages; those that do not exist, up to where products end,
 * become zero; those between are put there by make_rows. */
static __device__ __forceinline__ void copy_values(const split_memory &s, const sl_cu_attention &at,
                                                   const split &t, uint32_t part, uint32_t n_old)
{
    const uint32_t end = (t.n + 31) / 32 * 32, row = threadIdx.x / 8, piece = threadIdx.x % 8;
    const size_t offset =
        value_offset(at, t.kv_head) + part * PANEL_ROW + row * HALF_ROW + piece * 16;
    char *to = s.values + panel_at(row, piece);
    const bool is_whole = n_old == BLOCK;
#pragma unroll
    for (uint32_t p = 0; p < PAGES; p++) {
        if (p * PAGE >= t.n)
            break;
        const char *from = page_of(t, p) + offset;
#pragma unroll
        for (uint32_t i = 0; i < PAGE; i += THREADS / 8) {
            const uint32_t key = p * PAGE + i + row;
            if (is_whole || key < n_old)
                copy_ahead(to + (p * PAGE + i) * PANEL_ROW, from + i * HALF_ROW);
            else if (key >= t.n && key < end)
                *(uint4 *)(void *)(to + (p * PAGE + i) * PANEL_ROW) = make_uint4(0, 0, 0, 0);
        }
    }
    end_of_copies();
}

/* ---- rows of this run ---- */

/* A new key and value: to their pages and, in a cluster, this part of them to the copies in shared
 * memory. Without a cluster each tile writes all that it will read, to one place the same bits. */
template <bool CLUSTER>
static __device__ __forceinline__ void
put_key(const split_memory &s, const sl_cu_attention &at, const split &t, uint32_t part,
        uint32_t key, const float2 k[PAIRS], const uint4 &value, bool finite, bool to_page)
{
    const uint32_t lane = threadIdx.x % WARP, slot = key % PAGE;
    char *page = (char *)page_of(t, key / PAGE);
    if (!CLUSTER || key / PAGE == part) {
        char *near = s.keys + panel_at(2 * lane, slot / 8) + slot % 8 * 2;
        char *after = s.keys + panel_at(2 * lane + 1, slot / 8) + slot % 8 * 2;
        uint16_t *far = (uint16_t *)(void *)(page + key_offset(at, t.kv_head)) + slot;
#pragma unroll
        for (uint32_t i = 0; i < PAIRS; i++) {
            const uint16_t a = key_half(k[i].x, finite), b = key_half(k[i].y, finite);
            if (CLUSTER) {
                *(uint16_t *)(void *)(near + i * 64 * PANEL_ROW) = a;
                *(uint16_t *)(void *)(after + i * 64 * PANEL_ROW) = b;
            }
            if (to_page) {
                far[(i * 64 + 2 * lane) * PAGE] = a;
                far[(i * 64 + 2 * lane + 1) * PAGE] = b;
            }
        }
    }
    if (!CLUSTER || lane / 8 == part) {
        if (CLUSTER)
            *(uint4 *)(void *)(s.values + panel_at(key, lane % 8)) = value;
        if (to_page)
            *(uint4 *)(void *)(page + value_offset(at, t.kv_head) + slot * HALF_ROW + lane * 16) =
                value;
    }
}

/* Position of the first row that the warp makes: the tile's queries, then the block's new keys. */
static __device__ inline uint32_t first_position(const split &t, uint32_t n_queries)
{
    const uint32_t warp = threadIdx.x / WARP;
    return warp < n_queries ? position(t, warp) : t.new_begin + warp - n_queries;
}

/* The tile's queries, unless there are none to make because they are those of the item before, and
 * the block's new keys and values. `turn` is the rotation of first_position. */
template <bool CLUSTER>
static __device__ __forceinline__ void make_rows(const split_memory &s, const sl_cu_attention &at,
                                                 const split &t, uint32_t part, uint32_t n_queries,
                                                 rotation turn)
{
    const uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    for (uint32_t i = warp; i < n_queries + t.n_new; i += WARPS) {
        const bool is_query = i < n_queries;
        const uint32_t pos = is_query ? position(t, i) : t.new_begin + i - n_queries;
        const size_t row = t.segment->first_row + pos - t.pos;
        const size_t kv = (row * at.n_kv_heads + t.kv_head) * DIM;
        float2 v[PAIRS], norm[PAIRS];
        load_row(v, is_query ? at.q + (row * at.n_heads + head_of(t, i)) * 2 * DIM : at.k + kv);
        load_row(norm, is_query ? at.q_norm : at.k_norm);
        uint4 value = make_uint4(0, 0, 0, 0);
        bool finite = true;
        if (!is_query)
            value = value_piece(at.v + kv, &finite);
        if (i != warp)
            turn = rotation_of(at, pos);
        rotate_row(at, v, norm, turn, pos, s.rows + warp * DIM);
        if (is_query) {
            const float scale = split_query(v, s.q, s.room, i);
            if (lane == 0)
                s.scale[i] = scale;
        } else {
            put_key<CLUSTER>(s, at, t, part, pos - t.first, v, value, finite,
                             !CLUSTER || t.is_last);
        }
    }
}

/* ---- the two products ---- */

/* Left side of a step of 16 columns: high and low of 16 rows, low `to_low` bytes after high. Where
 * there are 8 rows or fewer, half of the lanes have low's addresses, and the lower half is zero. */
template <bool IS_WIDE>
static __device__ __forceinline__ void load_left(uint32_t high[1][4], uint32_t low[1][4],
                                                 uint32_t rows, uint32_t to_low)
{
    if (IS_WIDE) {
        load_matrices(high[0], rows);
        load_matrices(low[0], rows + to_low);
    } else {
        uint32_t both[4];
        load_matrices(both, rows);
        high[0][0] = both[0];
        high[0][2] = both[1];
        low[0][0] = both[2];
        low[0][2] = both[3];
        high[0][1] = high[0][3] = low[0][1] = low[0][3] = 0;
    }
}

/* The row of which a lane gives load_left the address. */
template <bool IS_WIDE> static __device__ __forceinline__ uint32_t left_row(uint32_t room)
{
    const uint32_t lane = threadIdx.x % WARP;
    return IS_WIDE ? lane % 16 : lane % 8 & (room - 1);
}

/* Scores: a warp's 8 keys of a page; sums over 256 dimensions. */
template <bool IS_WIDE>
static __device__ __forceinline__ void add_scores(float c[1][1][4], const split_memory &s)
{
    const uint32_t lane = threadIdx.x % WARP, column = threadIdx.x / WARP;
    const uint32_t row = left_row<IS_WIDE>(s.room), to_low = s.room * HALF_ROW;
    const uint32_t q = shared_address(s.q) + (!IS_WIDE && lane >= 16 ? to_low : 0);
#pragma unroll
    for (uint32_t k = 0; k < DIM / 32; k++) {
        uint32_t b[4];
        load_transposed(b, shared_address(s.keys) + panel_at(k * 32 + lane, column));
#pragma unroll
        for (uint32_t i = 0; i < 2; i++) {
            uint32_t high[1][4], low[1][4];
            const uint32_t right[1][2] = {{b[2 * i], b[2 * i + 1]}};
            const uint32_t piece = 4 * k + 2 * i + (IS_WIDE ? lane / 16 : lane / 8 % 2);
            load_left<IS_WIDE>(
                high, low, q + piece / 8 * s.room * PANEL_ROW + panel_at(row, piece % 8), to_low);
            multiply_split<1, 1>(c, high, low, right);
        }
    }
}

/* A weight's byte in its row: high halves, low ones 512 bytes after them; permuted like panels. */
static __device__ __forceinline__ uint32_t weight_at(uint32_t row, uint32_t piece)
{
    return row * SCORE_ROW + ((piece ^ (row & 7)) << 4);
}

/* o: a warp's 8 dimensions of a part; sums over the keys of a block. */
template <bool IS_WIDE>
static __device__ __forceinline__ void add_values(float c[1][1][4], const split_memory &s,
                                                  uint32_t n_keys)
{
    const uint32_t lane = threadIdx.x % WARP, column = threadIdx.x / WARP;
    const uint32_t row = left_row<IS_WIDE>(s.room);
    const uint32_t p = shared_address(s.scores) + (!IS_WIDE && lane >= 16 ? HALF_ROW : 0);
#pragma unroll
    for (uint32_t k = 0; k < BLOCK / 32; k++) {
        if (k * 32 >= n_keys)
            break;
        uint32_t b[4];
        load_transposed(b, shared_address(s.values) + panel_at(k * 32 + lane, column));
#pragma unroll
        for (uint32_t i = 0; i < 2; i++) {
            uint32_t high[1][4], low[1][4];
            const uint32_t right[1][2] = {{b[2 * i], b[2 * i + 1]}};
            const uint32_t piece = 4 * k + 2 * i + (IS_WIDE ? lane / 16 : lane / 8 % 2);
            load_left<IS_WIDE>(high, low, p + weight_at(row, piece), HALF_ROW);
            multiply_split<1, 1>(c, high, low, right);
        }
    }
}

/* Scores of a part's page go to all parts. */
template <bool CLUSTER>
static __device__ __forceinline__ void make_scores(const split_memory &s, const split &t,
                                                   uint32_t part, uint64_t *counter)
{
    const uint32_t lane = threadIdx.x % WARP;
    float c[1][1][4] = {};
    if (s.room > 8)
        add_scores<true>(c, s);
    else
        add_scores<false>(c, s);
#pragma unroll
    for (uint32_t half = 0; half < 2; half++) {
        const uint32_t row = lane / 4 + 8 * half;
        if (row >= t.count)
            continue;
        float *to = s.scores + row * BLOCK + part * PAGE + threadIdx.x / WARP * 8 + lane % 4 * 2;
        const float a = c[0][0][2 * half], b = c[0][0][2 * half + 1];
        if (CLUSTER) {
#pragma unroll
            for (uint32_t rank = 0; rank < PARTS; rank++)
                tell(to, counter, rank, a, b);
        } else {
            *(float2 *)to = make_float2(a, b);
        }
    }
}

/* A warp a row: lane 8 p + 4 v + t has keys 8 j + 2 t and the next of page p, for j = 4 v .. 4 v
 * + 3. */
static __device__ __forceinline__ void weigh(const split_memory &s, const split &t)
{
    enum { EACH = 4 };
    const uint32_t lane = threadIdx.x % WARP, piece = lane / 8 * 8 + lane / 4 % 2 * EACH;
    const uint32_t first = piece * 8 + lane % 4 * 2;
    for (uint32_t row = threadIdx.x / WARP; row < t.count; row += WARPS) {
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

/* o of 64 dimensions: to the block's place in scratch. */
static __device__ __forceinline__ void store_o(const split_memory &s, const sl_cu_attention &at,
                                               const split &t, uint32_t part, uint32_t row,
                                               float2 o)
{
    const uint32_t d = threadIdx.x / WARP * 8 + threadIdx.x % 4 * 2;
    const size_t index =
        (size_t)(t.segment->first_split + row_of(t, row)) * at.n_heads + head_of(t, row);
    float *to = at.scratch + (index * at.n_key_blocks + t.block) * PART;
    *(float2 *)&to[PART_HEAD + part * PART_DIMS + d] = o;
    if (part == 0 && d == 0) {
        to[0] = s.m[row];
        to[1] = s.l[row];
        to[2] = s.scale[row];
    }
}

/* Or, being all there is, o / l through shared memory, a warp for 32 dimensions. */
enum { OUTPUTS = TILE * PART_DIMS / THREADS };
static __device__ __forceinline__ void load_gates(float gate[OUTPUTS], const sl_cu_attention &at,
                                                  const split &t, uint32_t part)
{
#pragma unroll
    for (uint32_t k = 0; k < OUTPUTS; k++) {
        const uint32_t i = threadIdx.x + k * THREADS, row = i / PART_DIMS;
        gate[k] = row < t.count ? gate_of(at, t.segment->first_row + row_of(t, row),
                                          head_of(t, row), part * PART_DIMS + i % PART_DIMS)
                                : 0.0f;
    }
}

static __device__ __forceinline__ void finish(const float *o, const float gate[OUTPUTS],
                                              const sl_cu_attention &at, const split &t,
                                              uint32_t part)
{
#pragma unroll
    for (uint32_t k = 0; k < OUTPUTS; k++) {
        const uint32_t i = threadIdx.x + k * THREADS, row = i / PART_DIMS;
        if (row < t.count)
            write_result(at, t.segment->first_row + row_of(t, row), head_of(t, row),
                         part * PART_DIMS + i % PART_DIMS, o[i], gate[k]);
    }
}

static __device__ __forceinline__ void make_o(const split_memory &s, const sl_cu_attention &at,
                                              const split &t, uint32_t part,
                                              const float gate[OUTPUTS])
{
    const uint32_t lane = threadIdx.x % WARP;
    float c[1][1][4] = {};
    if (s.room > 8)
        add_values<true>(c, s, t.n);
    else
        add_values<false>(c, s, t.n);
    const bool is_all = at.n_key_blocks == 1;
    float *o = (float *)(void *)s.q; /* the queries are done with */
#pragma unroll
    for (uint32_t half = 0; half < 2; half++) {
        const uint32_t row = lane / 4 + 8 * half, d = threadIdx.x / WARP * 8 + lane % 4 * 2;
        const float a = c[0][0][2 * half], b = c[0][0][2 * half + 1];
        if (row >= t.count)
            continue;
        if (is_all) {
            const float inverse = 1.0f / s.l[row];
            *(float2 *)&o[row * PART_DIMS + d] = make_float2(a * inverse, b * inverse);
        } else {
            store_o(s, at, t, part, row, make_float2(a, b));
        }
    }
    if (is_all) {
        __syncthreads();
        finish(o, gate, at, t, part);
    }
}

/* Items begin .. end of a cluster, of which the block has part `part`. */
static __device__ __forceinline__ void attend_together(split_memory s, const sl_cu_rows &rows,
                                                       const sl_cu_attention &at, uint32_t n_tiles,
                                                       uint32_t part, uint32_t begin, uint32_t end)
{
    const uint32_t group = at.n_heads / at.n_kv_heads;
    float *const scores = s.scores;
    item i = find_item(rows, at.n_kv_heads, n_tiles, begin);
    split t = split_of(i, group);
    copy_keys(s, at, t, part);
    copy_values(s, at, t, part, t.n - t.n_new);
    rotation turn = rotation_of(at, first_position(t, t.count));
    wait_for_previous();
    uint32_t n_queries = t.count;
    for (uint32_t n = 0; n < end - begin; n++) {
        const bool has_next = begin + n + 1 < end;
        uint64_t *counter = s.counters + n % 2;
        s.scores = scores + n % 2 * s.room * BLOCK;
        if (threadIdx.x == 0)
            expect(counter, t.count * SCORE_ROW);
        if (n_queries + t.n_new > 0) {
            if (t.n_new > 0) { /* which go between the keys that are being copied */
                wait_for_copies<1>();
                __syncthreads();
            }
            if (n > 0)
                turn = rotation_of(at, first_position(t, n_queries));
            make_rows<true>(s, at, t, part, n_queries, turn);
        }
        float gate[OUTPUTS];
        if (at.n_key_blocks == 1)
            load_gates(gate, at, t, part);
        wait_for_copies<1>();
        __syncthreads();
        make_scores<true>(s, t, part, counter);
        const item before = i;
        if (has_next)
            next_item(i, at.n_kv_heads, n_tiles);
        const split next = split_of(i, group);
        __syncthreads();
        if (has_next)
            copy_keys(s, at, next, part);
        else
            end_of_copies();
        wait_for_counter(counter, n / 2 % 2);
        weigh(s, t);
        wait_for_copies<1>();
        __syncthreads();
        make_o(s, at, t, part, gate);
        __syncthreads();
        if (has_next)
            copy_values(s, at, next, part, next.n - next.n_new);
        n_queries =
            i.segment == before.segment && i.kv_head == before.kv_head && i.tile == before.tile
                ? 0
                : next.count;
        t = next;
    }
}

/* The same by one block, part after part; new keys come from their pages. */
static __device__ __forceinline__ void attend_alone(const split_memory &s, const sl_cu_rows &rows,
                                                    const sl_cu_attention &at, uint32_t n_tiles,
                                                    uint32_t begin, uint32_t end)
{
    item i = find_item(rows, at.n_kv_heads, n_tiles, begin);
    wait_for_previous();
    for (uint32_t n = begin; n < end; n++) {
        const split t = split_of(i, at.n_heads / at.n_kv_heads);
        make_rows<false>(s, at, t, 0, t.count, rotation_of(at, first_position(t, t.count)));
        __syncthreads();
        for (uint32_t part = 0; part < PARTS; part++) {
            copy_keys(s, at, t, part);
            wait_for_copies<0>();
            __syncthreads();
            make_scores<false>(s, t, part, NULL);
            __syncthreads();
        }
        weigh(s, t);
        for (uint32_t part = 0; part < PARTS; part++) {
            float gate[OUTPUTS];
            load_gates(gate, at, t, part);
            copy_values(s, at, t, part, t.n);
            wait_for_copies<0>();
            __syncthreads();
            make_o(s, at, t, part, gate);
            __syncthreads();
        }
        if (n + 1 < end)
            next_item(i, at.n_kv_heads, n_tiles);
    }
}

/* Block (with CLUSTER: a cluster of 4): its share of the items. */
template <bool CLUSTER>
static __global__ void __launch_bounds__(THREADS, 2)
    split_kernel(const __grid_constant__ sl_cu_rows rows,
                 const __grid_constant__ sl_cu_attention at, uint32_t n_tiles, uint32_t room)
{
    extern __shared__ __align__(128) char raw[];
    const split_memory s = split_memory_of<CLUSTER>(raw, room);
    if (CLUSTER)
        meet_cluster(s);
    const sl_cu_segment &last = rows.segments[rows.n_segments - 1];
    const uint64_t all =
        (uint64_t)(last.first_key_block + blocks_of(last)) * at.n_kv_heads * n_tiles;
    const uint32_t wide = CLUSTER ? PARTS : 1, worker = blockIdx.x / wide, n = gridDim.x / wide;
    const uint32_t begin = (uint32_t)(worker * all / n), end = (uint32_t)((worker + 1) * all / n);
    if (begin == end)
        wait_for_previous();
    else if (CLUSTER)
        attend_together(s, rows, at, n_tiles, blockIdx.x % PARTS, begin, end);
    else
        attend_alone(s, rows, at, n_tiles, begin, end);
}

/* ---- merge ---- */

template <uint32_t AHEAD>
static __device__ __forceinline__ void load_parts(float value[AHEAD], const float *parts,
                                                  uint32_t first, uint32_t n)
{
#pragma unroll
    for (uint32_t k = 0; k < AHEAD; k++)
        value[k] = first + k < n ? parts[(size_t)(first + k) * PART + PART_HEAD] : 0.0f;
}

/* Block: one row of a segment, one query head; a thread has a dimension, a warp what the quantised
 * result calls a block. AHEAD key blocks at once, one a lane for what is the row's. */
template <uint32_t AHEAD>
static __global__ void __launch_bounds__(DIM)
    merge_kernel(const __grid_constant__ sl_cu_rows rows,
                 const __grid_constant__ sl_cu_attention at)
{
    const sl_cu_segment &segment = rows.segments[blockIdx.z];
    const uint32_t head = blockIdx.x, d = threadIdx.x, lane = d % WARP;
    const bool is_used = segment.n_rows <= SL_CU_SPLIT_ROWS && blockIdx.y < segment.n_rows;
    const size_t row = segment.first_row + blockIdx.y;
    const uint32_t n = (segment.pos + blockIdx.y) / BLOCK + 1;
    const float *parts =
        at.scratch +
        ((size_t)(segment.first_split + blockIdx.y) * at.n_heads + head) * at.n_key_blocks * PART;
    wait_for_previous();
    if (!is_used)
        return;
    const float gate = gate_of(at, row, head, d), scale = parts[2];
    float m = lowest(), l = 0.0f, o = 0.0f, value[AHEAD];
    load_parts<AHEAD>(value, parts + d, 0, n);
    for (uint32_t first = 0; first < n; first += AHEAD) {
        const bool is_block = lane < AHEAD && first + lane < n;
        const float *own = parts + (size_t)(first + lane) * PART;
        const float m_b = is_block ? own[0] : lowest(), l_b = is_block ? own[1] : 0.0f;
        float next[AHEAD];
        load_parts<AHEAD>(next, parts + d, first + AHEAD, n);
        float larger = m_b; /* of this block and all before it */
#pragma unroll
        for (uint32_t back = 1; back < AHEAD; back *= 2) {
            const float other = __shfl_up_sync(0xFFFFFFFFu, larger, back);
            larger = lane >= back ? fmaxf(larger, other) : larger;
        }
        larger = fmaxf(larger, m);
        const float other = __shfl_up_sync(0xFFFFFFFFu, larger, 1);
        const float x = weight_of(lane == 0 ? m : other, larger, scale);
        const float y = weight_of(m_b, larger, scale);
#pragma unroll
        for (uint32_t k = 0; k < AHEAD; k++) {
            if (first + k >= n)
                break;
            const float x_k = __shfl_sync(0xFFFFFFFFu, x, k), y_k = __shfl_sync(0xFFFFFFFFu, y, k);
            l = merged(l, x_k, __shfl_sync(0xFFFFFFFFu, l_b, k), y_k);
            o = merged(o, x_k, value[k], y_k);
        }
        m = __shfl_sync(0xFFFFFFFFu, larger, AHEAD - 1);
#pragma unroll
        for (uint32_t k = 0; k < AHEAD; k++)
            value[k] = next[k];
    }
    write_result(at, row, head, d, o * (1.0f / l), gate);
}

/* ---- launches ---- */

template <bool CLUSTER>
static void split_items(const sl_cu_queue *queue, const sl_cu_rows *rows, const sl_cu_attention *at,
                        uint32_t n_processors)
{
    const uint32_t queries = rows->most_split_rows * (at->n_heads / at->n_kv_heads);
    const uint32_t n_tiles = div_up(queries, TILE);
    const uint32_t room = queries <= 4 ? 4 : queries <= 8 ? 8 : TILE;
    const uint32_t wide = CLUSTER ? PARTS : 1, at_once = 2; /* on a processor */
    const uint64_t items = (uint64_t)at->n_key_blocks * at->n_kv_heads * rows->n_segments * n_tiles;
    const uint32_t most = n_processors * at_once / wide;
    const uint32_t workers = items < most ? (uint32_t)items : most;
    const size_t n_bytes = split_bytes(CLUSTER, room, at->n_pairs != USUAL_TURNS);
    cudaFuncSetAttribute(split_kernel<CLUSTER>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                         (int)n_bytes);
    cudaLaunchAttribute attributes[2] = {};
    attributes[0].id = cudaLaunchAttributeClusterDimension;
    attributes[0].val.clusterDim.x = wide;
    attributes[0].val.clusterDim.y = attributes[0].val.clusterDim.z = 1;
    attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[1].val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(workers * wide);
    config.blockDim = dim3(THREADS);
    config.dynamicSmemBytes = n_bytes;
    config.stream = queue->stream;
    config.attrs = CLUSTER ? attributes : attributes + 1;
    config.numAttrs = (CLUSTER ? 1 : 0) + (queue->overlap ? 1 : 0);
    cudaLaunchKernelEx(&config, split_kernel<CLUSTER>, *rows, *at, n_tiles, room);
}

void sl_cu_attend_split(const sl_cu_queue *queue, const sl_cu_rows *rows, const sl_cu_attention *at)
{
    int device = 0, n = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&n, cudaDevAttrMultiProcessorCount, device);
    if (has_clusters(queue))
        split_items<true>(queue, rows, at, (uint32_t)n);
    else
        split_items<false>(queue, rows, at, (uint32_t)n);
    enum { FEW_BLOCKS = 4, MANY_BLOCKS = 32 };
    const dim3 grid(at->n_heads, rows->most_split_rows, rows->n_segments);
    if (at->n_key_blocks > FEW_BLOCKS)
        launch(queue, merge_kernel<MANY_BLOCKS>, grid, dim3(DIM), 0, *rows, *at);
    else if (at->n_key_blocks > 1)
        launch(queue, merge_kernel<FEW_BLOCKS>, grid, dim3(DIM), 0, *rows, *at);
}
