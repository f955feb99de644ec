/* Attention for steps of few rows: segments of up to SL_CU_SPLIT_ROWS rows, key blocks apart. Many
 * items, or all where there are no clusters, go through attention_stream.cu. Here a cluster of four
 * blocks of threads takes several in turn. Of an item each block has a page of the keys, tells the
 * others its scores, and has 64 dimensions of the values. Keys and values of an item are on their
 * way while the one before is computed, those of the first before the kernel before has ended; rows
 * of this run are made here, put beside the copies, and into their pages. */
#include "backend/cuda/kernels/attention_items.cuh"
#include "backend/cuda/kernels/cluster.cuh"

enum {
    THREADS = 256,
    WARPS = THREADS / WARP,
    PARTS = 4, /* of a key block: a page of its keys, 64 dimensions of its values */
    PART_DIMS = DIM / PARTS,
    PART_BYTES = PAGE * DIM * 2,
    PIECES = PART_BYTES / 16 / THREADS /* of a part of the keys that a thread copies */
};

/* Scores of two items: some blocks of a cluster may be an item ahead of others, but not two, since
 * they need everyone's scores. */
typedef struct split_memory : item_memory {
    char *keys;         /* [256 dimensions][64 keys] of a page */
    char *values;       /* [256 keys][64 dimensions] */
    uint64_t *counters; /* of what has come of the scores of even and of odd items */
} split_memory;

static size_t split_bytes(uint32_t room, bool with_rows)
{
    const size_t row = 2 * HALF_ROW + 2 * SCORE_ROW + 3 * sizeof(float);
    return 2 * PART_BYTES + room * row + 2 * sizeof(uint64_t) +
           (with_rows ? WARPS * DIM * sizeof(float) : 0);
}

static __device__ __forceinline__ split_memory split_memory_of(char *raw, uint32_t room)
{
    split_memory s;
    s.keys = raw;
    s.values = s.keys + PART_BYTES;
    s.q = s.values + PART_BYTES;
    s.scores = (float *)(void *)(s.q + room * 2 * HALF_ROW);
    s.counters = (uint64_t *)(void *)(s.scores + 2 * room * BLOCK);
    s.scale = (float *)(void *)(s.counters + 2);
    s.m = s.scale + room;
    s.l = s.m + room;
    s.rows = s.l + room;
    s.room = room;
    return s;
}

/* ---- clusters ---- */

/* The others have begun, and their counters are ready. */
static __device__ __forceinline__ void meet_cluster(const split_memory &s)
{
    if (threadIdx.x == 0) {
        init_counter(s.counters, 1);
        init_counter(s.counters + 1, 1);
        show_counters();
    }
    cluster_end();
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

/* This part of a new key and value: to the copies in shared memory and to their pages. */
static __device__ __forceinline__ void put_key(const split_memory &s, const sl_cu_attention &at,
                                               const split &t, uint32_t part, uint32_t key,
                                               const float2 k[PAIRS], const uint4 &value,
                                               bool finite, bool to_page)
{
    const uint32_t lane = threadIdx.x % WARP, slot = key % PAGE;
    char *page = (char *)page_of(t, key / PAGE);
    if (key / PAGE == part) {
        char *near = s.keys + panel_at(2 * lane, slot / 8) + slot % 8 * 2;
        char *after = s.keys + panel_at(2 * lane + 1, slot / 8) + slot % 8 * 2;
        uint16_t *far = (uint16_t *)(void *)(page + key_offset(at, t.kv_head)) + slot;
#pragma unroll
        for (uint32_t i = 0; i < PAIRS; i++) {
            const uint16_t a = key_half(k[i].x, finite), b = key_half(k[i].y, finite);
            *(uint16_t *)(void *)(near + i * 64 * PANEL_ROW) = a;
            *(uint16_t *)(void *)(after + i * 64 * PANEL_ROW) = b;
            if (to_page) {
                far[(i * 64 + 2 * lane) * PAGE] = a;
                far[(i * 64 + 2 * lane + 1) * PAGE] = b;
            }
        }
    }
    if (lane / 8 == part) {
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
            put_key(s, at, t, part, pos - t.first, v, value, finite, t.is_last);
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
#pragma unroll
        for (uint32_t rank = 0; rank < PARTS; rank++)
            tell(to, counter, rank, a, b);
    }
}

/* o of 64 dimensions: to the block's place in scratch. */
static __device__ __forceinline__ void store_o(const split_memory &s, const sl_cu_attention &at,
                                               const split &t, uint32_t part, uint32_t row,
                                               float2 o)
{
    const uint32_t d = threadIdx.x / WARP * 8 + threadIdx.x % 4 * 2;
    float *to = part_of(at, t, row);
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
            make_rows(s, at, t, part, n_queries, turn);
        }
        float gate[OUTPUTS];
        if (at.n_key_blocks == 1)
            load_gates(gate, at, t, part);
        wait_for_copies<1>();
        __syncthreads();
        make_scores(s, t, part, counter);
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
        weigh<WARPS>(s, t);
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

/* Cluster: its share of the items. */
static __global__ void __launch_bounds__(THREADS, 2)
    split_kernel(const __grid_constant__ sl_cu_rows rows,
                 const __grid_constant__ sl_cu_attention at, uint32_t n_tiles, uint32_t room)
{
    extern __shared__ __align__(128) char raw[];
    const split_memory s = split_memory_of(raw, room);
    const item_range own = share_of(rows, at, n_tiles, blockIdx.x / PARTS, gridDim.x / PARTS);
    if (own.begin == own.end)
        return;
    meet_cluster(s);
    attend_together(s, rows, at, n_tiles, blockIdx.x % PARTS, own.begin, own.end);
}

/* ---- launches ---- */

/* How many clusters run at once; 0 where there are none. Multiprocessors that do not make up whole
 * clusters count for nothing, and clusters beyond would begin when the others have ended. */
static uint32_t clusters_at_once(size_t n_bytes)
{
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = PARTS;
    attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(PARTS);
    config.blockDim = dim3(THREADS);
    config.dynamicSmemBytes = n_bytes;
    config.attrs = &attribute;
    config.numAttrs = 1;
    int n = 0;
    cudaFuncSetAttribute(split_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)n_bytes);
    return cudaOccupancyMaxActiveClusters(&n, split_kernel, &config) == cudaSuccess ? (uint32_t)n
                                                                                    : 0;
}

void sl_cu_attend_split(const sl_cu_queue *queue, const sl_cu_rows *rows, const sl_cu_attention *at)
{
    const uint32_t queries = rows->most_split_rows * (at->n_heads / at->n_kv_heads);
    const uint32_t n_tiles = div_up(queries, TILE), room = room_of(queries);
    const uint64_t items = (uint64_t)at->n_key_blocks * at->n_kv_heads * rows->n_segments * n_tiles;
    const size_t n_bytes = split_bytes(room, at->n_pairs != USUAL_TURNS);
    const uint32_t clusters = has_clusters(queue) ? clusters_at_once(n_bytes) : 0;
    if (items > 2 * clusters) {
        sl_cu_attend_stream(queue, rows, at, items);
    } else {
        const dim3 grid((items < clusters ? (uint32_t)items : clusters) * PARTS);
        launch_clusters(queue, split_kernel, PARTS, grid, dim3(THREADS), n_bytes, *rows, *at,
                        n_tiles, room);
    }
}
