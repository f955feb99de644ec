/* Attention for steps of few rows: segments of up to SL_CU_SPLIT_ROWS rows, key blocks apart.
 *   split  up to 16 query rows of one KV head (with one row: its group of heads) and one key block.
 *          Four blocks of threads form a cluster: each has a page of the keys, tells the others its
 *          scores, and has 64 dimensions of the values. Keys and values of earlier runs are on their
 *          way before the kernel before has ended; rows of this run are made here, put beside them,
 *          and into their pages.
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
    PIECES = PART_BYTES / 16 / THREADS /* of a part that a thread copies */
};

/* Query rows are few, so their room is counted at run time: 4, 8 or 16 rows. Products always have 16;
 * the others repeat these. */
typedef struct split_memory {
    char *keys;    /* [256 dimensions][64 keys] of a page; then weights as high and low, [room][256] */
    char *values;  /* [256 keys][64 dimensions] */
    char *q;       /* high and low, [room][256] */
    float *scores; /* [room][256]; before them rows in the making, of which there may be one more */
    float *scale, *m, *l; /* [room] */
    uint32_t room;
} split_memory;

static size_t split_bytes(uint32_t room)
{
    return 2 * PART_BYTES + room * 2 * HALF_ROW + (room + 1) * DIM * sizeof(float) +
           3 * room * sizeof(float);
}

static __device__ __forceinline__ split_memory split_memory_of(void *raw, uint32_t room)
{
    split_memory s;
    s.keys = (char *)raw;
    s.values = s.keys + PART_BYTES;
    s.q = s.values + PART_BYTES;
    s.scores = (float *)(void *)(s.q + room * 2 * HALF_ROW);
    s.scale = s.scores + (room + 1) * DIM;
    s.m = s.scale + room;
    s.l = s.m + room;
    s.room = room;
    return s;
}

/* What a block of threads works on. */
typedef struct split {
    const sl_cu_segment *segment;
    uint32_t kv_head, group;
    uint32_t begin, count;         /* query rows */
    uint32_t block, first;         /* key block and its first key */
    uint32_t n;                    /* keys of it that the last row sees */
    uint32_t new_begin, n_new;     /* positions in it that this run adds */
    uint32_t n_old;                /* keys that are in memory when copies begin */
    bool is_last;                  /* tile of the segment */
    size_t k_offset, v_offset;
} split;

static __device__ __forceinline__ uint32_t position(const split &t, uint32_t row)
{
    return t.segment->pos + (t.begin + row) / t.group;
}

static __device__ __forceinline__ const char *page_of(const split &t, uint32_t page)
{
    return (const char *)t.segment->kv_pages[t.block * PAGES + page];
}

/* ---- clusters ---- */

static __device__ __forceinline__ void arrive_in_cluster(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}

static __device__ __forceinline__ void wait_for_cluster(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}

/* Two floats to the same place of shared memory in block `rank` of the cluster. */
static __device__ __forceinline__ void tell(float *place, uint32_t rank, float a, float b)
{
#if __CUDA_ARCH__ >= 900
    uint32_t there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;"
        : "=r"(there)
        : "r"(shared_address(place)), "r"(rank));
    asm volatile("st.shared::cluster.v2.f32 [%0], {%1, %2};" ::"r"(there), "f"(a), "f"(b)
                 : "memory");
#endif
}

/* ---- copies ---- */

static __device__ __forceinline__ void copy_keys(const split_memory &s, const split &t,
                                                 uint32_t part)
{
    const uint32_t first = part * PAGE;
    if (first < t.n) {
        const char *from = page_of(t, part) + t.k_offset;
#pragma unroll
        for (uint32_t i = 0; i < PIECES; i++) {
            const uint32_t x = threadIdx.x + i * THREADS, d = x / 8, piece = x % 8;
            if (first + piece * 8 < t.n)
                copy_ahead(s.keys + piece_at<SHORT_ROW>(d, piece), from + x * 16);
        }
    }
    end_of_copies();
}

/* Values of keys that do not exist, up to where products end, become zero. */
static __device__ __forceinline__ void copy_values(const split_memory &s, const split &t,
                                                   uint32_t part)
{
    const uint32_t end = (t.n + 31) / 32 * 32;
    const char *pages[PAGES];
#pragma unroll
    for (uint32_t p = 0; p < PAGES; p++)
        pages[p] = p * PAGE < t.n_old ? page_of(t, p) + t.v_offset + part * SHORT_ROW : NULL;
#pragma unroll
    for (uint32_t i = 0; i < PIECES; i++) {
        const uint32_t x = threadIdx.x + i * THREADS, key = x / 8, piece = x % 8;
        char *to = s.values + piece_at<SHORT_ROW>(key, piece);
        if (key < t.n_old)
            copy_ahead(to, pages[i * THREADS / 8 / PAGE] + key % PAGE * HALF_ROW + piece * 16);
        else if (key >= t.n && key < end)
            *(uint4 *)(void *)to = make_uint4(0, 0, 0, 0);
    }
    end_of_copies();
}

/* ---- rows of this run ---- */

/* A new key and value: to their pages (all parts without a cluster, else this one's) and, in a
 * cluster, to the copies in shared memory. */
template <bool CLUSTER>
static __device__ __forceinline__ void put_key(const split_memory &s, const split &t, uint32_t part,
                                               uint32_t key, const float *x, const uint4 &value,
                                               bool finite, bool to_page)
{
    const uint32_t lane = threadIdx.x % WARP, slot = key % PAGE;
    char *page = (char *)page_of(t, key / PAGE);
    if (!CLUSTER || key / PAGE == part) {
#pragma unroll
        for (uint32_t k = 0; k < DIM / WARP; k++) {
            const uint32_t d = lane + k * WARP;
            const uint16_t h = key_half(x[d], finite);
            if (CLUSTER)
                *(uint16_t *)(void *)(s.keys + piece_at<SHORT_ROW>(d, slot / 8) + slot % 8 * 2) = h;
            if (to_page)
                ((uint16_t *)(void *)(page + t.k_offset))[d * PAGE + slot] = h;
        }
    }
    if (!CLUSTER || lane / 8 == part) {
        if (CLUSTER)
            *(uint4 *)(void *)(s.values + piece_at<SHORT_ROW>(key, lane % 8)) = value;
        if (to_page)
            *(uint4 *)(void *)(page + t.v_offset + slot * HALF_ROW + lane * 16) = value;
    }
}

/* The tile's queries, and the block's new keys and values. `turn` is the rotation of a warp's first. */
template <bool CLUSTER>
static __device__ __forceinline__ void make_rows(const split_memory &s, const sl_cu_attention &at,
                                                 const split &t, uint32_t part, rotation turn)
{
    const uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const uint32_t slots = s.room + 1 < WARPS ? s.room + 1 : WARPS;
    if (warp >= slots)
        return;
    float *x = s.scores + warp * DIM;
    for (uint32_t i = warp; i < t.count + t.n_new; i += slots) {
        const bool is_query = i < t.count;
        const uint32_t f = t.begin + i;
        const uint32_t pos = is_query ? position(t, i) : t.new_begin + i - t.count;
        const size_t row = t.segment->first_row + pos - t.segment->pos;
        if (i != warp)
            turn = rotation_of(at, pos);
        if (is_query) {
            const uint32_t head = t.kv_head * t.group + f % t.group;
            const float *in[1] = {at.q + (row * at.n_heads + head) * 2 * DIM};
            rotate_rows<1>(at, in, at.q_norm, &turn, x, 0);
            const float scale = split_query(x, s.q, s.q + s.room * HALF_ROW, i);
            if (lane == 0)
                s.scale[i] = scale;
        } else {
            const size_t offset = (row * at.n_kv_heads + t.kv_head) * DIM;
            const float *in[1] = {at.k + offset};
            bool finite;
            const uint4 value = value_piece(at.v + offset, &finite);
            rotate_rows<1>(at, in, at.k_norm, &turn, x, 0);
            put_key<CLUSTER>(s, t, part, pos - t.first, x, value, finite, t.is_last);
        }
        __syncwarp();
    }
}

/* ---- the two products ---- */

/* Left side: high and low of 16 rows, 16 columns from piece `piece` on; rows are repeated. */
static __device__ __forceinline__ void load_left(uint32_t high[1][4], uint32_t low[1][4],
                                                 const char *rows, uint32_t room, uint32_t piece)
{
    const uint32_t lane = threadIdx.x % WARP;
    const uint32_t at =
        shared_address(rows) + piece_at<HALF_ROW>(lane % 16 & (room - 1), piece + lane / 16);
    load_matrices(high[0], at);
    load_matrices(low[0], at + room * HALF_ROW);
}

/* A warp's 8 columns of 16 rows: sums over 32 n_steps rows of `right`, of 64 halves each. */
static __device__ __forceinline__ void multiply_tile(float c[1][1][4], const char *left,
                                                     uint32_t room, const char *right,
                                                     uint32_t n_steps)
{
    const uint32_t lane = threadIdx.x % WARP, column = threadIdx.x / WARP;
#pragma unroll 2
    for (uint32_t k = 0; k < n_steps; k++) {
        uint32_t b[4];
        load_transposed(b, shared_address(right) + piece_at<SHORT_ROW>(k * 32 + lane, column));
#pragma unroll
        for (uint32_t i = 0; i < 2; i++) {
            uint32_t high[1][4], low[1][4];
            const uint32_t right_side[1][2] = {{b[2 * i], b[2 * i + 1]}};
            load_left(high, low, left, room, (2 * k + i) * 2);
            multiply_split<1, 1>(c, high, low, right_side);
        }
    }
}

/* A part's scores go to all parts. */
template <bool CLUSTER>
static __device__ __forceinline__ void make_scores(const split_memory &s, const split &t,
                                                   uint32_t part)
{
    const uint32_t lane = threadIdx.x % WARP;
    float c[1][1][4] = {};
    if (part * PAGE < t.n)
        multiply_tile(c, s.q, s.room, s.keys, DIM / 32);
    if (CLUSTER)
        wait_for_cluster(); /* all have begun, and are done with the rows that scores replace */
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
                tell(to, rank, a, b);
        } else {
            *(float2 *)to = make_float2(a, b);
        }
    }
}

/* Half a warp a row: lane 4 p + t has keys 8 j + 2 t and the next of page p. The weights lie where
 * the keys were. */
static __device__ __forceinline__ void weigh(const split_memory &s, const split &t)
{
    enum { EACH = PAGE / 8 };
    const uint32_t lane = threadIdx.x % WARP, half = lane / 16;
    const uint32_t page = lane % 16 / 4, first = page * PAGE + lane % 4 * 2;
    for (uint32_t begin = threadIdx.x / WARP; begin < t.count; begin += 2 * WARPS) {
        const uint32_t row = begin + half * WARPS;
        const bool used = row < t.count;
        const uint32_t seen = used ? keys_seen(position(t, row), t.first) : 0;
        const float scale = used ? s.scale[row] : 0.0f;
        float2 c[EACH];
        float m = -sl_float_of_bits(0x7F800000u), sum = 0.0f;
#pragma unroll
        for (uint32_t j = 0; j < EACH; j++) {
            c[j] = used ? *(const float2 *)&s.scores[row * BLOCK + first + 8 * j]
                        : make_float2(0.0f, 0.0f);
            m = first + 8 * j < seen ? fmaxf(m, c[j].x) : m;
            m = first + 8 * j + 1 < seen ? fmaxf(m, c[j].y) : m;
        }
#pragma unroll
        for (int other = 1; other < 16; other *= 2)
            m = fmaxf(m, __shfl_xor_sync(0xFFFFFFFFu, m, other));
#pragma unroll
        for (uint32_t j = 0; j < EACH; j++) {
            const float p0 = weight_of(c[j].x, m, scale), p1 = weight_of(c[j].y, m, scale);
            const float w0 = first + 8 * j < seen ? p0 : 0.0f;
            const float w1 = first + 8 * j + 1 < seen ? p1 : 0.0f;
            sum = lane_sum(sum, w0, w1);
            uint32_t high, low;
            split_pair(w0, w1, high, low);
            if (used) {
                char *to = s.keys + piece_at<HALF_ROW>(row, page * 8 + j) + lane % 4 * 4;
                *(uint32_t *)(void *)to = high;
                *(uint32_t *)(void *)(to + s.room * HALF_ROW) = low;
            }
        }
        sum = page_sum(sum);
        const uint32_t base = half * 16;
        const float a = __shfl_sync(0xFFFFFFFFu, sum, base);
        const float b = __shfl_sync(0xFFFFFFFFu, sum, base + 4);
        const float d = __shfl_sync(0xFFFFFFFFu, sum, base + 8);
        const float e = __shfl_sync(0xFFFFFFFFu, sum, base + 12);
        if (used && lane % 16 == 0) {
            s.m[row] = m;
            s.l[row] = pages_sum(a, b, d, e);
        }
    }
}

/* o of 64 dimensions: to the block's place in scratch, or, being all there is, o / l to where the
 * scores were. */
static __device__ __forceinline__ void make_o(const split_memory &s, const sl_cu_attention &at,
                                              const split &t, uint32_t part)
{
    const uint32_t lane = threadIdx.x % WARP;
    const uint32_t d = threadIdx.x / WARP * 8 + lane % 4 * 2; /* of the part */
    float c[1][1][4] = {};
    multiply_tile(c, s.keys, s.room, s.values, div_up(t.n, 32));
#pragma unroll
    for (uint32_t half = 0; half < 2; half++) {
        const uint32_t row = lane / 4 + 8 * half, f = t.begin + row;
        if (row >= t.count)
            continue;
        const float a = c[0][0][2 * half], b = c[0][0][2 * half + 1];
        if (at.n_key_blocks == 1) {
            *(float2 *)&s.scores[row * PART_DIMS + d] = make_float2(a / s.l[row], b / s.l[row]);
            continue;
        }
        const size_t index =
            (size_t)(t.segment->first_split + f / t.group) * at.n_heads + t.kv_head * t.group +
            f % t.group;
        float *to = at.scratch + (index * at.n_key_blocks + t.block) * PART;
        *(float2 *)&to[PART_HEAD + part * PART_DIMS + d] = make_float2(a, b);
        if (part == 0 && d == 0) {
            to[0] = s.m[row];
            to[1] = s.l[row];
            to[2] = s.scale[row];
        }
    }
}

/* Where there is one key block: a warp has 32 dimensions of the part. */
static __device__ __forceinline__ void finish(const split_memory &s, const sl_cu_attention &at,
                                              const split &t, uint32_t part)
{
    enum { EACH = PART_DIMS / WARP };
    const uint32_t lane = threadIdx.x % WARP;
    for (uint32_t i = threadIdx.x / WARP; i < t.count * EACH; i += WARPS) {
        const uint32_t f = t.begin + i / EACH, d = i % EACH * WARP + lane;
        const size_t row = t.segment->first_row + f / t.group;
        const uint32_t head = t.kv_head * t.group + f % t.group, dim = part * PART_DIMS + d;
        write_result(at, row, head, dim, s.scores[i / EACH * PART_DIMS + d],
                     gate_of(at, row, head, dim));
    }
}

/* Block (with CLUSTER: a cluster of 4): one key block, one KV head, one tile of a segment's query
 * rows. */
template <bool CLUSTER>
static __global__ void __launch_bounds__(THREADS, 3)
    split_kernel(const __grid_constant__ sl_cu_rows rows,
                 const __grid_constant__ sl_cu_attention at, uint32_t n_tiles, uint32_t room)
{
    extern __shared__ uint4 raw[];
    const split_memory s = split_memory_of(raw, room);
    const uint32_t mine = CLUSTER ? blockIdx.x % PARTS : 0; /* the part, or the first */
    const uint32_t end = CLUSTER ? mine + 1 : PARTS;
    split t;
    t.segment = &rows.segments[blockIdx.z / n_tiles];
    t.kv_head = blockIdx.y;
    t.group = at.n_heads / at.n_kv_heads;
    t.begin = blockIdx.z % n_tiles * TILE;
    t.block = blockIdx.x / (CLUSTER ? PARTS : 1);
    t.first = t.block * BLOCK;
    const uint32_t n_rows = t.segment->n_rows, run_begin = t.segment->pos;
    const uint32_t left = n_rows * t.group - t.begin;
    t.count = left < TILE ? left : TILE;
    const bool is_used = n_rows <= SL_CU_SPLIT_ROWS && t.begin < n_rows * t.group;
    const uint32_t last = is_used ? position(t, t.count - 1) : 0;
    if (!is_used || last < t.first) {
        wait_for_previous();
        return;
    }
    t.is_last = left <= TILE;
    t.n = keys_seen(last, t.first);
    t.new_begin = run_begin < t.first ? t.first : run_begin;
    t.n_new = t.first + t.n > t.new_begin ? t.first + t.n - t.new_begin : 0;
    t.n_old = CLUSTER ? t.n - t.n_new : t.n;
    t.k_offset = key_offset(at, t.kv_head);
    t.v_offset = value_offset(at, t.kv_head);

    const uint32_t warp = threadIdx.x / WARP;
    const rotation turn =
        rotation_of(at, warp < t.count ? position(t, warp) : t.new_begin + warp - t.count);
    if (CLUSTER) {
        copy_keys(s, t, mine);
        copy_values(s, t, mine);
        wait_for_previous();
        if (t.n_new > 0) { /* which go between the keys that are being copied */
            wait_for_copies<1>();
            __syncthreads();
        }
    } else {
        wait_for_previous();
    }
    make_rows<CLUSTER>(s, at, t, mine, turn);
    wait_for_copies<1>();
    __syncthreads();
    if (CLUSTER)
        arrive_in_cluster();
    for (uint32_t part = mine; part < end; part++) {
        if (!CLUSTER) {
            copy_keys(s, t, part);
            wait_for_copies<0>();
            __syncthreads();
        }
        make_scores<CLUSTER>(s, t, part);
        if (!CLUSTER)
            __syncthreads();
    }
    if (CLUSTER) {
        arrive_in_cluster();
        wait_for_cluster();
    }
    weigh(s, t);
    for (uint32_t part = mine; part < end; part++) {
        if (!CLUSTER)
            copy_values(s, t, part);
        wait_for_copies<0>();
        __syncthreads();
        make_o(s, at, t, part);
        __syncthreads();
        if (at.n_key_blocks == 1)
            finish(s, at, t, part);
    }
}

/* ---- merge ---- */

enum { AHEAD = 32 }; /* key blocks at once, one a lane for what is the row's */

static __device__ __forceinline__ void load_parts(float value[AHEAD], const float *parts,
                                                  uint32_t first, uint32_t n)
{
#pragma unroll
    for (uint32_t k = 0; k < AHEAD; k++)
        value[k] = first + k < n ? parts[(size_t)(first + k) * PART + PART_HEAD] : 0.0f;
}

/* Block: one row of a segment, one query head; a thread has a dimension, a warp what the quantised
 * result calls a block. */
static __global__ void __launch_bounds__(DIM)
    merge_kernel(const __grid_constant__ sl_cu_rows rows,
                 const __grid_constant__ sl_cu_attention at)
{
    wait_for_previous();
    const sl_cu_segment &segment = rows.segments[blockIdx.z];
    const uint32_t head = blockIdx.x, d = threadIdx.x, lane = d % WARP;
    if (segment.n_rows > SL_CU_SPLIT_ROWS || blockIdx.y >= segment.n_rows)
        return;
    const size_t row = segment.first_row + blockIdx.y;
    const uint32_t n = (segment.pos + blockIdx.y) / BLOCK + 1;
    const float *parts = at.scratch + ((size_t)(segment.first_split + blockIdx.y) * at.n_heads +
                                       head) * at.n_key_blocks * PART;
    const float gate = gate_of(at, row, head, d), scale = parts[2];
    const float lowest = -sl_float_of_bits(0x7F800000u);
    float m = lowest, l = 0.0f, o = 0.0f, value[AHEAD];
    load_parts(value, parts + d, 0, n);
    for (uint32_t first = 0; first < n; first += AHEAD) {
        const float *own = parts + (size_t)(first + lane) * PART;
        const float m_b = first + lane < n ? own[0] : lowest;
        const float l_b = first + lane < n ? own[1] : 0.0f;
        float next[AHEAD];
        load_parts(next, parts + d, first + AHEAD, n);
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
            if (first + k < n) {
                const float x_k = __shfl_sync(0xFFFFFFFFu, x, k);
                const float y_k = __shfl_sync(0xFFFFFFFFu, y, k);
                const float l_k = __shfl_sync(0xFFFFFFFFu, l_b, k);
                const bool is_first = first + k == 0;
                l = is_first ? l_k : merged(l, x_k, l_k, y_k);
                o = is_first ? value[k] : merged(o, x_k, value[k], y_k);
            }
        }
        m = __shfl_sync(0xFFFFFFFFu, larger, AHEAD - 1);
#pragma unroll
        for (uint32_t k = 0; k < AHEAD; k++)
            value[k] = next[k];
    }
    write_result(at, row, head, d, o / l, gate);
}

/* ---- launches ---- */

template <bool CLUSTER>
static void split_apart(const sl_cu_queue *queue, const sl_cu_rows *rows,
                        const sl_cu_attention *at)
{
    const uint32_t queries = rows->most_split_rows * (at->n_heads / at->n_kv_heads);
    const uint32_t n_tiles = div_up(queries, TILE);
    const uint32_t room = queries <= 4 ? 4 : queries <= 8 ? 8 : TILE;
    const uint32_t wide = CLUSTER ? PARTS : 1;
    const size_t n_bytes = split_bytes(room);
    cudaFuncSetAttribute(split_kernel<CLUSTER>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                         (int)split_bytes(TILE));
    cudaLaunchAttribute attributes[2] = {};
    attributes[0].id = cudaLaunchAttributeClusterDimension;
    attributes[0].val.clusterDim.x = wide;
    attributes[0].val.clusterDim.y = attributes[0].val.clusterDim.z = 1;
    attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[1].val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(at->n_key_blocks * wide, at->n_kv_heads, rows->n_segments * n_tiles);
    config.blockDim = dim3(THREADS);
    config.dynamicSmemBytes = n_bytes;
    config.stream = queue->stream;
    config.attrs = CLUSTER ? attributes : attributes + 1;
    config.numAttrs = (CLUSTER ? 1 : 0) + (queue->overlap ? 1 : 0);
    cudaLaunchKernelEx(&config, split_kernel<CLUSTER>, *rows, *at, n_tiles, room);
}

void sl_cu_attend_split(const sl_cu_queue *queue, const sl_cu_rows *rows,
                        const sl_cu_attention *at)
{
    enum { CLUSTER_CAPABILITY = 9 };
    int device = 0, capability = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&capability, cudaDevAttrComputeCapabilityMajor, device);
    if (capability >= CLUSTER_CAPABILITY)
        split_apart<true>(queue, rows, at);
    else
        split_apart<false>(queue, rows, at);
    if (at->n_key_blocks > 1)
        launch(queue, merge_kernel, dim3(at->n_heads, rows->most_split_rows, rows->n_segments),
               dim3(DIM), 0, *rows, *at);
}
