/* Attention for steps of few rows, a block of threads for an item: for many items. Two warps copy
 * the keys and values of the block's items, one item after the other, through a ring of pieces of
 * 16 KB; eight warps make products of them. So copies never wait for an item's end, and those of
 * the first item are on their way before the kernel before has ended.
 *   scores  16 keys of a page by 8 query rows; a warp has a quarter of every other page
 *   o       16 dimensions by 8 query rows; a warp has 32 dimensions
 * Rows of this run are made here, put into the ring, and into their pages. */
#include "backend/cuda/kernels/attention_items.cuh"
#include "backend/cuda/kernels/attention_ring.cuh"

enum {
    READERS = 8, /* warps that make products */
    THREADS = (READERS + COPIERS) * WARP,
    COLUMNS = 8,         /* query rows of a product */
    HALF_DIMS = DIM / 2, /* of a piece of keys: 128 dimensions of a page */
    OWN_DIMS = WARP,     /* of o, by warp */
    OWN_KEYS = 16        /* of a page */
};
static_assert(READERS * OWN_DIMS == DIM && 4 * OWN_KEYS == PAGE, "what warps have adds up");

typedef struct stream_memory : item_memory {
    ring pieces;
} stream_memory;

static size_t stream_bytes(uint32_t n_slots, uint32_t room, bool with_rows)
{
    return n_slots * (SLOT + 2 * sizeof(uint64_t)) +
           room * (2 * HALF_ROW + 2 * SCORE_ROW + 3 * sizeof(float)) +
           (with_rows ? READERS * DIM * sizeof(float) : 0);
}

/* Scores of two items, since some warps may be at the next one already. */
static __device__ __forceinline__ stream_memory stream_memory_of(char *raw, uint32_t n_slots,
                                                                 uint32_t room)
{
    stream_memory s;
    s.pieces.slots = raw;
    s.q = raw + n_slots * SLOT;
    s.scores = (float *)(void *)(s.q + room * 2 * HALF_ROW);
    s.pieces.full = (uint64_t *)(void *)(s.scores + 2 * room * BLOCK);
    s.pieces.empty = s.pieces.full + n_slots;
    s.pieces.n_slots = n_slots;
    s.pieces.n_readers = READERS;
    s.scale = (float *)(void *)(s.pieces.empty + n_slots);
    s.m = s.scale + room;
    s.l = s.m + room;
    s.rows = s.l + room;
    s.room = room;
    return s;
}

/* ---- copies ---- */

/* Keys, then values of an item, as far as they were there before this run; values that were not are
 * zero. */
static __device__ __forceinline__ void copy_item(const ring &r, const sl_cu_attention &at,
                                                 const split &t, place &to)
{
    const uint32_t n_old = t.n - t.n_new, last = (t.n - 1) / PAGE;
    const char *page = page_of(t, 0);
#pragma unroll 1
    for (uint32_t p = 0; p <= last; p++) {
        const char *from = page + key_offset(at, t.kv_head);
        page = page_of(t, p < last ? p + 1 : 0);
#pragma unroll 1
        for (uint32_t half = 0; half < 2; half++, to = after(r, to)) {
            char *slot = wait_for_room(r, to);
            if (p * PAGE + copier(r) % 8 * 8 < n_old)
                copy_rows<HALF_DIMS / 8>(r, slot, from + half * SLOT);
            end_of_piece(r, to);
        }
    }
#pragma unroll 1
    for (uint32_t key = 0; key < t.n; key += VALUES, to = after(r, to)) {
        const char *from = page + value_offset(at, t.kv_head) + key % PAGE * HALF_ROW;
        if (key % PAGE + VALUES == PAGE)
            page = page_of(t, key / PAGE < last ? key / PAGE + 1 : 0);
        copy_values(r, wait_for_room(r, to), from, n_old < key ? 0 : n_old - key);
        end_of_piece(r, to);
    }
}

/* ---- rows of this run ---- */

/* The tile's queries. */
static __device__ __forceinline__ void make_queries(const stream_memory &s,
                                                    const sl_cu_attention &at, const split &t)
{
    const uint32_t warp = threadIdx.x / WARP;
    for (uint32_t i = warp; i < t.count; i += READERS) {
        const uint32_t pos = position(t, i);
        const size_t row = t.segment->first_row + row_of(t, i);
        float2 v[PAIRS], norm[PAIRS];
        load_row(v, at.q + (row * at.n_heads + head_of(t, i)) * 2 * DIM);
        load_row(norm, at.q_norm);
        rotate_row(at, v, norm, rotation_of(at, pos), pos, s.rows + warp * DIM);
        const float scale = split_query(v, s.q, s.room, i);
        if (threadIdx.x % WARP == 0)
            s.scale[i] = scale;
    }
}

/* Where the keys begin and end of those `from` to `to` in the block that are of this run. */
typedef struct key_range {
    uint32_t begin, end;
} key_range;

static __device__ __forceinline__ key_range new_keys(const split &t, uint32_t from, uint32_t to)
{
    const uint32_t begin = t.n - t.n_new;
    const key_range r = {begin < from ? from : begin, t.n < to ? t.n : to};
    return r;
}

static __device__ __forceinline__ size_t row_of_key(const sl_cu_attention &at, const split &t,
                                                    uint32_t key)
{
    const size_t row = t.segment->first_row + (t.first + key - t.pos);
    return (row * at.n_kv_heads + t.kv_head) * DIM;
}

/* New keys of a page, whose two pieces are there, into these and into their page. */
static __device__ __forceinline__ void put_keys(const stream_memory &s, const sl_cu_attention &at,
                                                const split &t, uint32_t page, place first)
{
    const uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const key_range r = new_keys(t, page * PAGE, (page + 1) * PAGE);
    const place second = after(s.pieces, first);
    for (uint32_t key = r.begin + warp; key < r.end; key += READERS) {
        const size_t from = row_of_key(at, t, key);
        const uint32_t pos = t.first + key, column = key % PAGE;
        float2 v[PAIRS], norm[PAIRS];
        bool finite;
        load_row(v, at.k + from);
        load_row(norm, at.k_norm);
        value_piece(at.v + from, &finite);
        rotate_row(at, v, norm, rotation_of(at, pos), pos, s.rows + warp * DIM);
        uint16_t *far =
            (uint16_t *)(void *)((char *)page_of(t, page) + key_offset(at, t.kv_head)) + column;
#pragma unroll
        for (uint32_t i = 0; i < PAIRS; i++) {
            const uint32_t d = i * 64 + 2 * lane;
            const uint16_t a = key_half(v[i].x, finite), b = key_half(v[i].y, finite);
            char *slot =
                s.pieces.slots + (i < PAIRS / 2 ? first : second).slot * SLOT + column % 8 * 2;
            *(uint16_t *)(void *)(slot + panel_at(d % HALF_DIMS, column / 8)) = a;
            *(uint16_t *)(void *)(slot + panel_at(d % HALF_DIMS + 1, column / 8)) = b;
            if (t.is_last) {
                far[d * PAGE] = a;
                far[(d + 1) * PAGE] = b;
            }
        }
    }
}

/* New values of a piece, likewise. */
static __device__ __forceinline__ void put_values(const stream_memory &s, const sl_cu_attention &at,
                                                  const split &t, key_range r, place to)
{
    const uint32_t lane = threadIdx.x % WARP;
    for (uint32_t key = r.begin + threadIdx.x / WARP; key < r.end; key += READERS) {
        bool finite;
        const uint4 value = value_piece(at.v + row_of_key(at, t, key), &finite);
        char *near = s.pieces.slots + to.slot * SLOT + lane / 8 * VALUE_PANEL;
        *(uint4 *)(void *)(near + panel_at(key % VALUES, lane % 8)) = value;
        if (t.is_last) {
            char *page = (char *)page_of(t, key / PAGE) + value_offset(at, t.kv_head);
            *(uint4 *)(void *)(page + key % PAGE * HALF_ROW + lane * 16) = value;
        }
    }
}

/* ---- products ---- */

/* c += 16 rows of a piece, from `left` on, turned, times a step of 16 of the queries or weights at
 * `right`, high then low. */
template <int TILES, int N>
static __device__ __forceinline__ void
multiply_turned(float c[TILES][N][4], const uint32_t left[TILES], const uint32_t right[N])
{
    uint32_t a[TILES][4], b[N][4];
#pragma unroll
    for (int i = 0; i < TILES; i++)
        load_transposed(a[i], left[i]);
#pragma unroll
    for (int j = 0; j < N; j++)
        load_matrices(b[j], right[j]);
#pragma unroll
    for (int half = 0; half < 2; half++) {
#pragma unroll
        for (int i = 0; i < TILES; i++) {
#pragma unroll
            for (int j = 0; j < N; j++)
                multiply(c[i][j], a[i], b[j] + 2 * half);
        }
    }
}

/* The lane's row of eight among those of a matrix of the left side, and its piece of 16 bytes; of
 * the right side, where lanes from 16 on have the low halves. */
typedef struct lane_place {
    uint32_t row, piece;
} lane_place;

static __device__ __forceinline__ lane_place left_place(void)
{
    const uint32_t lane = threadIdx.x % WARP;
    const lane_place p = {lane / 16 * 8 + lane % 8, lane / 8 % 2};
    return p;
}

/* Right side's addresses of step 0; step k is at ^ k * 32 in a row, by panels or of weights. */
template <int N>
static __device__ __forceinline__ void right_places(uint32_t at[N], uint32_t rows, uint32_t room,
                                                    uint32_t row_bytes, uint32_t to_low)
{
    const uint32_t lane = threadIdx.x % WARP;
#pragma unroll
    for (uint32_t j = 0; j < N; j++) {
        const uint32_t row = (lane % 8 + j * COLUMNS) & (room - 1);
        at[j] = rows + row * row_bytes + ((lane / 8 % 2) ^ (row & 7)) * 16 + lane / 16 * to_low;
    }
}

/* Scores of the warp's 16 keys in a piece, dimensions half * 128 on. */
template <int N>
static __device__ __forceinline__ void add_scores(float c[1][N][4], const stream_memory &s,
                                                  uint32_t slot, uint32_t half)
{
    const lane_place p = left_place();
    const uint32_t piece = threadIdx.x / WARP % 4 * 2 + p.piece;
    const uint32_t left = shared_address(s.pieces.slots) + slot * SLOT + panel_at(p.row, piece);
    uint32_t right[N];
    right_places<N>(right, shared_address(s.q) + half * 2 * s.room * PANEL_ROW, s.room, PANEL_ROW,
                    s.room * HALF_ROW);
#pragma unroll
    for (uint32_t k = 0; k < HALF_DIMS / 16; k++) {
        const uint32_t a[1] = {left + k * 2 * EIGHT_ROWS};
        uint32_t b[N];
#pragma unroll
        for (int j = 0; j < N; j++)
            b[j] = (right[j] ^ k % 4 * 32) + k / 4 * s.room * PANEL_ROW;
        multiply_turned<1, N>(c, a, b);
    }
}

template <int N>
static __device__ __forceinline__ void store_scores(const stream_memory &s, const float c[1][N][4],
                                                    const split &t, uint32_t page)
{
    const uint32_t lane = threadIdx.x % WARP;
    float *to = s.scores + page * PAGE + threadIdx.x / WARP % 4 * OWN_KEYS + lane / 4;
#pragma unroll
    for (uint32_t j = 0; j < N; j++) {
#pragma unroll
        for (uint32_t k = 0; k < 4; k++) {
            const uint32_t row = j * COLUMNS + lane % 4 * 2 + k % 2;
            if (row < t.count)
                to[row * BLOCK + k / 2 * 8] = c[0][j][k];
        }
    }
}

/* o of the warp's 32 dimensions, keys `key` to key + 32. */
template <int N>
static __device__ __forceinline__ void add_values(float c[2][N][4], const stream_memory &s,
                                                  uint32_t slot, uint32_t key)
{
    const lane_place p = left_place();
    const uint32_t warp = threadIdx.x / WARP;
    const uint32_t panel = shared_address(s.pieces.slots) + slot * SLOT + warp / 2 * VALUE_PANEL;
    const uint32_t left = panel + panel_at(p.row, warp % 2 * 4 + p.piece);
    uint32_t right[N];
    right_places<N>(right, shared_address(s.scores), s.room, SCORE_ROW, HALF_ROW);
#pragma unroll
    for (uint32_t k = 0; k < VALUES / 16; k++) {
        const uint32_t a[2] = {left + k * 2 * EIGHT_ROWS, (left ^ 32) + k * 2 * EIGHT_ROWS};
        uint32_t b[N];
#pragma unroll
        for (int j = 0; j < N; j++)
            b[j] = right[j] ^ (key / 16 + k) * 32;
        multiply_turned<2, N>(c, a, b);
    }
}

/* ---- results ---- */

/* o to the block's place in scratch, or, being all there is, divided to shared memory. */
template <int N>
static __device__ __forceinline__ void store_o(const stream_memory &s, const sl_cu_attention &at,
                                               const split &t, const float c[2][N][4])
{
    const uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const bool is_all = at.n_key_blocks == 1;
#pragma unroll
    for (uint32_t j = 0; j < N; j++) {
#pragma unroll
        for (uint32_t r = 0; r < 2; r++) {
            const uint32_t row = j * COLUMNS + lane % 4 * 2 + r;
            if (row >= t.count)
                continue;
            float *to = is_all ? (float *)(void *)s.q + row * DIM : part_of(at, t, row) + PART_HEAD;
            const float factor = is_all ? 1.0f / s.l[row] : 1.0f;
            to += warp * OWN_DIMS + lane / 4;
#pragma unroll
            for (uint32_t i = 0; i < 4; i++)
                to[i * 8] = c[i / 2][j][i % 2 * 2 + r] * factor;
        }
    }
    if (!is_all && threadIdx.x < t.count) {
        const uint32_t row = threadIdx.x;
        *(float4 *)(void *)part_of(at, t, row) =
            make_float4(s.m[row], s.l[row], s.scale[row], 0.0f);
    }
}

template <int N>
static __device__ __forceinline__ void load_gates(float gate[N * COLUMNS],
                                                  const sl_cu_attention &at, const split &t)
{
#pragma unroll
    for (uint32_t row = 0; row < N * COLUMNS; row++)
        gate[row] = row < t.count ? gate_of(at, t.segment->first_row + row_of(t, row),
                                            head_of(t, row), threadIdx.x)
                                  : 0.0f;
}

/* A warp's 32 dimensions of all rows, which it has put there itself. */
template <int N>
static __device__ __forceinline__ void finish(const stream_memory &s, const sl_cu_attention &at,
                                              const split &t, const float gate[N * COLUMNS])
{
    const float *o = (const float *)(const void *)s.q + threadIdx.x;
    __syncwarp();
#pragma unroll
    for (uint32_t row = 0; row < N * COLUMNS; row++) {
        if (row < t.count)
            write_result(at, t.segment->first_row + row_of(t, row), head_of(t, row), threadIdx.x,
                         o[row * DIM], gate[row]);
    }
}

/* ---- an item ---- */

template <int N>
static __device__ __forceinline__ void read_item(const stream_memory &s, const sl_cu_attention &at,
                                                 const split &t, place &from)
{
    const uint32_t warp = threadIdx.x / WARP;
#pragma unroll 1
    for (uint32_t page = 0; page * PAGE < t.n; page++) {
        if (t.n_new > 0 && t.n - t.n_new < (page + 1) * PAGE) {
            wait_for_piece(s.pieces, from);
            wait_for_piece(s.pieces, after(s.pieces, from));
            put_keys(s, at, t, page, from);
            meet(s.pieces);
        }
        float c[1][N][4] = {};
#pragma unroll 1
        for (uint32_t half = 0; half < 2; half++) {
            wait_for_piece(s.pieces, from);
            if (page % 2 == warp / 4)
                add_scores<N>(c, s, from.slot, half);
            release(s.pieces, from);
            from = after(s.pieces, from);
        }
        if (page % 2 == warp / 4)
            store_scores<N>(s, c, t, page);
    }
    meet(s.pieces);
    weigh<READERS>(s, t);
    float gate[N * COLUMNS];
    if (at.n_key_blocks == 1)
        load_gates<N>(gate, at, t);
    meet(s.pieces);
    float o[2][N][4] = {};
#pragma unroll 1
    for (uint32_t key = 0; key < t.n; key += VALUES) {
        wait_for_piece(s.pieces, from);
        const key_range r = new_keys(t, key, key + VALUES);
        if (r.begin < r.end) {
            put_values(s, at, t, r, from);
            meet(s.pieces);
        }
        add_values<N>(o, s, from.slot, key);
        release(s.pieces, from);
        from = after(s.pieces, from);
    }
    store_o<N>(s, at, t, o);
    if (at.n_key_blocks == 1)
        finish<N>(s, at, t, gate);
}

static __device__ __forceinline__ bool same_queries(const item &a, const item &b)
{
    return a.segment == b.segment && a.kv_head == b.kv_head && a.tile == b.tile;
}

/* Block of threads: its share of the items. */
template <int N>
static __global__ void __launch_bounds__(THREADS, 2)
    stream_kernel(const __grid_constant__ sl_cu_rows rows,
                  const __grid_constant__ sl_cu_attention at, uint32_t n_tiles, uint32_t room,
                  uint32_t n_slots)
{
    extern __shared__ __align__(1024) char raw[];
    stream_memory s = stream_memory_of(raw, n_slots, room);
    init_ring(s.pieces);
    __syncthreads();
    const item_range own = share_of(rows, at, n_tiles, blockIdx.x, gridDim.x);
    if (own.begin == own.end)
        return;
    const uint32_t group = at.n_heads / at.n_kv_heads;
    item i = find_item(rows, at.n_kv_heads, n_tiles, own.begin), before = i;
    place p = {0, 0};
    if (is_reader(s.pieces))
        wait_for_previous();
    float *const scores = s.scores;
    uint32_t n_used = 0;
    for (uint32_t n = own.begin; n < own.end; n++) {
        const split t = split_of(i, group);
        if (t.n > 0 && !is_reader(s.pieces)) {
            copy_item(s.pieces, at, t, p);
        } else if (t.n > 0) {
            s.scores = scores + n_used++ % 2 * room * BLOCK;
            if (n_used == 1 || !same_queries(i, before)) {
                meet(s.pieces); /* all are done with the queries before */
                make_queries(s, at, t);
                meet(s.pieces);
            }
            read_item<N>(s, at, t, p);
            before = i;
        }
        if (n + 1 < own.end)
            next_item(i, at.n_kv_heads, n_tiles);
    }
    if (!is_reader(s.pieces))
        wait_for_copies<0>();
}

/* ---- launch ---- */

template <int N>
static void stream(const sl_cu_queue *queue, const sl_cu_rows *rows, const sl_cu_attention *at,
                   uint32_t n_blocks, uint32_t n_tiles, uint32_t room, uint32_t n_slots)
{
    const size_t n_bytes = stream_bytes(n_slots, room, at->n_pairs != USUAL_TURNS);
    cudaFuncSetAttribute(stream_kernel<N>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                         (int)n_bytes);
    launch(queue, stream_kernel<N>, dim3(n_blocks), dim3(THREADS), n_bytes, *rows, *at, n_tiles,
           room, n_slots);
}

/* Two blocks of threads share a multiprocessor, where its memory is large enough; more pieces than
 * four do not help. */
void sl_cu_attend_stream(const sl_cu_queue *queue, const sl_cu_rows *rows,
                         const sl_cu_attention *at, uint64_t n_items)
{
    enum { MOST_SLOTS = 4, AT_ONCE = 2 };
    const uint32_t queries = rows->most_split_rows * (at->n_heads / at->n_kv_heads);
    const uint32_t n_tiles = div_up(queries, TILE), room = room_of(queries);
    const size_t rest = stream_bytes(0, room, at->n_pairs != USUAL_TURNS);
    const size_t slots = (SMALL_MEMORY - rest) / (SLOT + 2 * sizeof(uint64_t));
    const uint32_t n_slots = slots < MOST_SLOTS ? (uint32_t)slots : MOST_SLOTS;
    const uint32_t most = AT_ONCE * (uint32_t)queue->n_multiprocessors;
    const uint32_t n_blocks = n_items < most ? (uint32_t)n_items : most;
    if (room <= COLUMNS)
        stream<1>(queue, rows, at, n_blocks, n_tiles, room, n_slots);
    else
        stream<2>(queue, rows, at, n_blocks, n_tiles, room, n_slots);
}
