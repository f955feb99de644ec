/* What lies before and after the rule (gdn.cu) in a gated delta layer, section 6:
 *   prepare  every chunk and key head: convolution, SiLU, norms, gates; what the rows of a chunk
 *            have to do with each other; keys and gates go on the tape
 *   finish   every row and value head: gated norm and rounding */
#include "backend/cuda/kernels/cluster.cuh"
#include "backend/cuda/kernels/gdn_chunks.cuh"

size_t sl_cu_gdn_chunk_bytes(uint32_t n_chunks, uint32_t n_key_heads, uint32_t n_value_heads)
{
    return n_chunks * (n_key_heads * sizeof(key_block) +
                       n_value_heads * (sizeof(pair_block) + sizeof(value_block)));
}

/* ---- prepare ---- */

/* A block goes through chunks of heads. Twelve warps convolve and multiply, and copy the raw rows
 * of the next chunk meanwhile; the last one finds the chunks and has their gates, ahead of them. */
enum {
    WORKERS = 12,
    PREPARE_THREADS = (WORKERS + 1) * WARP,
    BLOCKS = 2, /* on a multiprocessor */
    QUAD = 4,   /* rows that a warp convolves at a time */
    QUADS = CHUNK / QUAD,
    RAW_ROWS = SL_CONV_HISTORY + CHUNK,
    RAW_PARTS = 3, /* heads whose raw rows are there at a time */
    ITEMS = 3
};

/* Parts: channels of one head each. */
enum { QUERIES, KEYS, VALUES };

/* A chunk of a key head and its value heads. */
typedef struct prepare_item {
    sl_cu_segment segment;
    chunk_ref chunk;
    uint32_t place, key_head; /* place in the run's chunks */
    bool found;               /* else there are no more */
} prepare_item;

typedef struct prepare_memory {
    /* of parts in turn; the first rows are those before the chunk */
    alignas(16) float raw[RAW_PARTS][RAW_ROWS][DIM];
    key_block keys;
    prepare_item items[ITEMS]; /* in turn */
    /* of items in turn: found and gated by the last warp, begun by the others; with so many
     * counters none is a round ahead of who waits */
    uint64_t known[ITEMS], gated[ITEMS], begun[2];
} prepare_memory;

/* Gates of one chunk, per value head of the key head. */
typedef struct gates {
    double *total;
    float *g, *beta;
} gates;

static size_t prepare_bytes(uint32_t n_heads)
{
    return sizeof(prepare_memory) + ITEMS * n_heads * CHUNK * (sizeof(double) + 2 * sizeof(float));
}

static __device__ __forceinline__ gates gates_of(prepare_memory &m, uint32_t n_heads, uint32_t item)
{
    const uint32_t n = n_heads * CHUNK;
    double *totals = (double *)(void *)(&m + 1);
    float *floats = (float *)(void *)(totals + ITEMS * n);
    gates out;
    out.total = totals + item % ITEMS * n;
    out.g = floats + item % ITEMS * 2 * n;
    out.beta = out.g + n;
    return out;
}

static __device__ void prepare_decays(const sl_cu_gdn &gdn, uint32_t n_chunks,
                                      const prepare_item &item, uint32_t n_heads,
                                      const gates &gates)
{
    const chunk_ref chunk = item.chunk;
    const uint32_t key_head = item.key_head;
    for (uint32_t x = threadIdx.x % WARP; x < n_heads * CHUNK; x += WARP) {
        const uint32_t h = x / CHUNK, j = x % CHUNK;
        const double *total = gates.total + h * CHUNK;
        pair_block *out = pairs_of(gdn, n_chunks, item.place, value_head_of(gdn, key_head, h));
        const float e = j >= chunk.begin && j < chunk.end ? sl_expf((float)total[j]) : 0.0f;
        out->e[j] = e;
        out->e_beta[j] = gates.beta[x] * e;
        out->last[j] = decay_between(total[CHUNK - 1], total[j]);
    }
}

/* By a warp. Rows that are neither old nor of the run have no gate and write nothing; an old row's
 * update is what it was. */
static __device__ void take_gates(const sl_cu_gdn &gdn, uint32_t n_chunks, const prepare_item &item,
                                  uint32_t n_heads, const gates &gates)
{
    const sl_cu_segment &segment = item.segment;
    const chunk_ref chunk = item.chunk;
    const uint32_t key_head = item.key_head;
    for (uint32_t x = threadIdx.x % WARP; x < n_heads * CHUNK; x += WARP) {
        const uint32_t head = value_head_of(gdn, key_head, x / CHUNK), j = x % CHUNK;
        float g = 0.0f, beta = 0.0f;
        if (j < chunk.begin) {
            g = *tape_g(gdn, segment, chunk.m, j, head);
            beta = 1.0f;
        } else if (j < chunk.end) {
            g = decay_gate(gdn, chunk.row + j - chunk.begin, head);
            beta = write_strength(gdn, chunk.row + j - chunk.begin, head);
            if (chunk.is_kept)
                *tape_g(gdn, segment, chunk.m, j, head) = g;
        }
        gates.g[x] = g;
        gates.beta[x] = beta;
    }
    __syncwarp();
    for (uint32_t h = 0; h < n_heads; h++)
        sum_gates(gates.g + h * CHUNK, gates.total + h * CHUNK);
    __syncwarp();
    prepare_decays(gdn, n_chunks, item, n_heads, gates);
}

static __device__ __forceinline__ uint32_t channel_of(const sl_cu_gdn &gdn, uint32_t key_head,
                                                      uint32_t part)
{
    const uint32_t head = part == QUERIES ? key_head
                          : part == KEYS
                              ? gdn.n_key_heads + key_head
                              : 2 * gdn.n_key_heads + value_head_of(gdn, key_head, part - VALUES);
    return head * DIM;
}

/* Begins copies of the warp's share of raw rows of parts from `first` on: those that rows of the
 * run need, from the run, from the state, or zeros before the sequence. */
static __device__ __forceinline__ void bring_rows(prepare_memory &m, const sl_cu_gdn &gdn,
                                                  const prepare_item &item, uint32_t first,
                                                  uint32_t n_parts)
{
    enum { SHARES = WORKERS / RAW_PARTS };
    const sl_cu_segment &segment = item.segment;
    const chunk_ref chunk = item.chunk;
    const uint32_t a = threadIdx.x % WARP * 4, warp = threadIdx.x / WARP;
    const uint32_t part = first + warp / SHARES, top = warp % SHARES;
    const int before = (int)(chunk.row - segment.first_row) - (int)chunk.begin - SL_CONV_HISTORY;
    if (part >= n_parts)
        return;
    const uint32_t channel = channel_of(gdn, item.key_head, part) + a;
    float *to = &m.raw[part % RAW_PARTS][top][a];
    const float *from = gdn.qkv + channel;
    if (chunk.begin == 0 && chunk.end == CHUNK && before >= 0) {
        from += (size_t)(segment.first_row + (uint32_t)before + top) * gdn.n_channels;
#pragma unroll
        for (uint32_t row = 0; row < RAW_ROWS; row += SHARES) {
            if (row + SHARES <= RAW_ROWS || row + top < RAW_ROWS)
                copy_ahead(&to[row * DIM], from);
            from += SHARES * gdn.n_channels;
        }
        return;
    }
#pragma unroll 1
    for (uint32_t row = top; row < RAW_ROWS; row += SHARES, to += SHARES * DIM) {
        const int i = before + (int)row;
        if (row < chunk.begin || row >= chunk.end + SL_CONV_HISTORY)
            continue;
        if (i >= 0)
            copy_ahead(to, &from[(size_t)(segment.first_row + (uint32_t)i) * gdn.n_channels]);
        else if ((int)segment.pos + i >= 0)
            copy_ahead(to, &conv_row(gdn, segment, segment.pos + (uint32_t)i)[channel]);
        else
            *(float4 *)to = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
}

/* Four rows of four channels after convolution and SiLU. */
static __device__ __forceinline__ void convolve(float4 (&y)[QUAD], const prepare_memory &m,
                                                const sl_cu_gdn &gdn, uint32_t key_head,
                                                uint32_t part, uint32_t row)
{
    const uint32_t a = threadIdx.x % WARP * 4;
    const float4 *w = (const float4 *)gdn.conv + channel_of(gdn, key_head, part) + a;
    const float *from = &m.raw[part % RAW_PARTS][row][a];
    const float4 w0 = w[0], w1 = w[1], w2 = w[2], w3 = w[3];
    float4 x[SL_CONV_HISTORY + QUAD];
#pragma unroll
    for (uint32_t r = 0; r < SL_CONV_HISTORY + QUAD; r++)
        x[r] = *(const float4 *)&from[r * DIM];
#pragma unroll
    for (uint32_t r = 0; r < QUAD; r++) {
        y[r].x = convolved(w0, x[r].x, x[r + 1].x, x[r + 2].x, x[r + 3].x);
        y[r].y = convolved(w1, x[r].y, x[r + 1].y, x[r + 2].y, x[r + 3].y);
        y[r].z = convolved(w2, x[r].z, x[r + 1].z, x[r + 2].z, x[r + 3].z);
        y[r].w = convolved(w3, x[r].w, x[r + 1].w, x[r + 2].w, x[r + 3].w);
    }
}

static __device__ __forceinline__ float4 scaled(float4 x, float by)
{
    return make_float4(x.x * by, x.y * by, x.z * by, x.w * by);
}

/* Row j of the keys or queries where the chunk has old rows, missing ones, or a tape to be kept. */
static __device__ __noinline__ float4 special_key(float4 x, const sl_cu_gdn &gdn,
                                                  const sl_cu_segment &segment,
                                                  const chunk_ref &chunk, uint32_t key_head,
                                                  bool is_key, uint32_t j)
{
    const uint32_t lane = threadIdx.x % WARP;
    if (j < chunk.begin && is_key)
        return ((const float4 *)tape_k(gdn, segment, chunk.m, j, key_head))[lane];
    if (j < chunk.begin || j >= chunk.end)
        return make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (is_key && chunk.is_kept)
        ((float4 *)tape_k(gdn, segment, chunk.m, j, key_head))[lane] = x;
    return x;
}

/* Four rows of the head's queries or keys become halves, for which KEY_SCALE costs no bit in the
 * factors (what is below the normal floats without it is no half with it). */
static __device__ __forceinline__ void prepare_keys(prepare_memory &m, const sl_cu_gdn &gdn,
                                                    const prepare_item &item, uint32_t part,
                                                    uint32_t first)
{
    const uint32_t a = threadIdx.x % WARP * 4;
    const chunk_ref chunk = item.chunk;
    const bool is_special = chunk.begin > 0 || chunk.end < CHUNK || chunk.is_kept;
    const bool is_key = part == KEYS;
    __half *high = is_key ? m.keys.k_high : m.keys.q_high;
    __half *low = is_key ? m.keys.k_low : m.keys.q_low;
    float4 y[QUAD];
    float inverse[QUAD];
    convolve(y, m, gdn, item.key_head, part, first);
    inverse_norms(inverse, y);
#pragma unroll
    for (uint32_t r = 0; r < QUAD; r++) {
        const uint32_t j = first + r;
        float4 x;
        if (is_special) {
            x = scaled(scaled(y[r], inverse[r]), is_key ? 1.0f : Q_SCALE);
            x = special_key(x, gdn, item.segment, chunk, item.key_head, is_key, j);
            x = scaled(x, KEY_SCALE);
        } else if (is_key) {
            x = scaled(y[r], inverse[r] * KEY_SCALE);
        } else {
            x = scaled(scaled(y[r], inverse[r]), Q_SCALE * KEY_SCALE);
        }
        const halves xy = split(x.x, x.y), zw = split(x.z, x.w);
        *(uint2 *)&high[half_at(j, a)] = make_uint2(xy.high, zw.high);
        *(uint2 *)&low[half_at(j, a)] = make_uint2(xy.low, zw.low);
    }
}

/* Four rows of a head's values times the strength of writing; old rows have their updates here. */
static __device__ __forceinline__ void prepare_values(value_block &out, const prepare_memory &m,
                                                      const sl_cu_gdn &gdn,
                                                      const prepare_item &item, uint32_t part,
                                                      const float *beta, uint32_t first)
{
    const uint32_t a = threadIdx.x % WARP * 4;
    const chunk_ref chunk = item.chunk;
    float *to = &out.v[a / SLICE][first][a % SLICE];
    float4 y[QUAD];
    convolve(y, m, gdn, item.key_head, part, first);
#pragma unroll
    for (uint32_t r = 0; r < QUAD; r++) {
        const uint32_t j = first + r;
        float4 x = scaled(y[r], beta[j]);
        if (j < chunk.begin)
            x = *(const float4 *)&tape_u(gdn, item.segment, chunk.m, j,
                                         value_head_of(gdn, item.key_head, part - VALUES))[a];
        else if (j >= chunk.end)
            x = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        *(float4 *)&to[r * SLICE] = x;
    }
}

/* Dots of the keys 16 m .. with the keys or queries 8 n .., all of the chunk. */
static __device__ __forceinline__ void multiply_keys(float (&sum)[4], const key_block &keys,
                                                     bool with_keys, uint32_t m, uint32_t n)
{
    const uint32_t lane = threadIdx.x % WARP, matrix = lane / 8;
    const uint32_t row = m * STEP + matrix % 2 * 8 + lane % 8;
#pragma unroll
    for (uint32_t range = 0; range < RANGES; range++) {
        left<KEY_STEPS> a;
        right<KEY_STEPS, 1> b;
        float d[1][4];
#pragma unroll
        for (uint32_t s = 0; s < KEY_STEPS; s++) {
            const uint32_t at = half_at(row, range * RANGE + s * STEP + matrix / 2 * 8);
            load_matrices(a.high[s], keys.k_high + at);
            load_matrices(a.low[s], keys.k_low + at);
        }
        load_rows(b, with_keys ? keys.k_high : keys.q_high, with_keys ? keys.k_low : keys.q_low,
                  n * TILE, range);
        multiply(d, a, b);
#pragma unroll
        for (int i = 0; i < 4; i++)
            sum[i] = range == 0 ? d[0][i] : sum[i] + d[0][i];
    }
}

/* Tile m, n of what the rows have to do with each other, for every value head of the key head. */
static __device__ void prepare_pairs(const sl_cu_gdn &gdn, uint32_t n_chunks,
                                     const prepare_item &item, uint32_t n_heads, const gates &gates,
                                     const key_block &keys, bool with_keys, uint32_t m, uint32_t n)
{
    const chunk_ref chunk = item.chunk;
    const uint32_t key_head = item.key_head;
    float dots[4];
    multiply_keys(dots, keys, with_keys, m, n);
    const uint32_t g = threadIdx.x % WARP / 4, t = threadIdx.x % 4;
    const uint32_t i = n * TILE + 2 * t;
    const bool fresh[2] = {i >= chunk.begin && i < chunk.end,
                           i + 1 >= chunk.begin && i + 1 < chunk.end};
#pragma unroll 1
    for (uint32_t h = 0; h < n_heads; h++) {
        const double *total = gates.total + h * CHUNK;
        const double2 now = *(const double2 *)&total[i];
        const float2 beta = *(const float2 *)&gates.beta[h * CHUNK + i];
        pair_block *out = pairs_of(gdn, n_chunks, item.place, value_head_of(gdn, key_head, h));
#pragma unroll
        for (uint32_t side = 0; side < STEP / TILE; side++) {
            const uint32_t tile = m * (STEP / TILE) + side, j = tile * TILE + g;
            if (tile > n)
                continue;
            const double then = total[j];
            float w[2] = {decay_between(now.x, then) * (dots[2 * side] * PAIR_SCALE),
                          decay_between(now.y, then) * (dots[2 * side + 1] * PAIR_SCALE)};
            if (with_keys) {
                w[0] = -(beta.x * w[0]);
                w[1] = -(beta.y * w[1]);
            }
#pragma unroll
            for (uint32_t x = 0; x < 2; x++) /* of one tile, only rows before count */
                w[x] = fresh[x] && (tile < n || g + with_keys <= 2 * t + x) ? w[x] : 0.0f;
            if (!with_keys) {
                out->read[read_place(n, tile)][2 * t][g] = w[0];
                out->read[read_place(n, tile)][2 * t + 1][g] = w[1];
            } else if (tile < n) {
                *(float2 *)&out->solve[solve_place(n, tile)][g][2 * t] = make_float2(w[0], w[1]);
            } else {
#pragma unroll
                for (uint32_t x = 0; x < 2; x++) {
                    if (g < 2 * t + x)
                        out->corner[n][corner_at(2 * t + x, g)] = w[x];
                }
            }
        }
    }
}

/* The first item at or after `at` in steps of the grid that is a chunk of a segment, by a warp;
 * where to look for the next one. */
static __device__ uint32_t find_item(prepare_item &out, const sl_cu_rows &rows,
                                     const sl_cu_gdn &gdn, uint32_t at)
{
    const uint32_t lane = threadIdx.x % WARP, n_items = rows.n_chunks * gdn.n_key_heads;
    bool found = false;
    for (; at < n_items && !found; at += gridDim.x) {
        const uint32_t place = at / gdn.n_key_heads;
        for (uint32_t first = 0; first < rows.n_segments && !found; first += WARP) {
            const sl_cu_segment &s = rows.segments[min(first + lane, rows.n_segments - 1)];
            const bool is_mine = first + lane < rows.n_segments && place >= s.first_chunk &&
                                 place < s.first_chunk + count_chunks(s);
            if (is_mine) {
                out.segment = s;
                out.chunk = chunk_of(s, place - s.first_chunk);
                out.place = place;
                out.key_head = at % gdn.n_key_heads;
            }
            found = __any_sync(0xFFFFFFFFu, is_mine);
        }
    }
    if (lane == 0)
        out.found = found;
    __syncwarp();
    return at;
}

/* By the last warp. */
static __device__ void find_items(prepare_memory &m, const sl_cu_rows &rows, const sl_cu_gdn &gdn,
                                  uint32_t n_heads)
{
    uint32_t at = blockIdx.x;
    bool found = true;
    for (uint32_t k = 0; found; k++) {
        prepare_item &item = m.items[k % ITEMS];
        if (k >= 2) /* the one before that is over */
            wait_for_counter(&m.begun[k % 2], (k / 2 - 1) & 1);
        at = find_item(item, rows, gdn, at);
        found = item.found;
        if (threadIdx.x % WARP == 0)
            arrive(&m.known[k % ITEMS]);
        if (found)
            take_gates(gdn, rows.n_chunks, item, n_heads, gates_of(m, n_heads, k));
        __syncwarp();
        if (threadIdx.x % WARP == 0)
            arrive(&m.gated[k % ITEMS]);
    }
}

static __device__ __forceinline__ void meet_workers(void)
{
    asm volatile("bar.sync 1, %0;" ::"n"(WORKERS * WARP) : "memory");
}

/* By the others. */
static __device__ void work_on_items(prepare_memory &m, const sl_cu_rows &rows,
                                     const sl_cu_gdn &gdn, uint32_t n_heads)
{
    enum { KEY_TILE_ROWS = CHUNK / STEP, TASKS = KEY_TILE_ROWS * (KEY_TILE_ROWS + 1) };
    const uint32_t warp = threadIdx.x / WARP, n_parts = VALUES + n_heads;
    wait_for_counter(&m.known[0], 0);
    if (m.items[0].found)
        bring_rows(m, gdn, m.items[0], 0, n_parts);
    for (uint32_t k = 0; m.items[k % ITEMS].found; k++) {
        const prepare_item &item = m.items[k % ITEMS], &next = m.items[(k + 1) % ITEMS];
        const gates gates = gates_of(m, n_heads, k);
        for (uint32_t first = 0; first < n_parts; first += RAW_PARTS) {
            const uint32_t end = min(first + RAW_PARTS, n_parts);
            end_of_copies();
            wait_for_copies<0>();
            if (first == 0 && warp == 0)
                end_of_stores();
            meet_workers(); /* raw rows are there, keys have been taken */
            if (first == 0 && threadIdx.x == 0)
                arrive(&m.begun[k % 2]);
#pragma unroll 1
            for (uint32_t x = warp; x < (end - first) * QUADS; x += WORKERS) {
                const uint32_t part = first + x / QUADS, row = x % QUADS * QUAD;
                const uint32_t n = part - VALUES;
                if (part < VALUES) {
                    prepare_keys(m, gdn, item, part, row);
                    continue;
                }
                wait_for_counter(&m.gated[k % ITEMS], k / ITEMS & 1);
                prepare_values(*values_of(gdn, rows.n_chunks, item.place,
                                          value_head_of(gdn, item.key_head, n)),
                               m, gdn, item, part, gates.beta + n * CHUNK, row);
            }
            if (first == 0)
                show_stores();
            meet_workers(); /* keys are there, raw rows have been taken */
            if (end < n_parts) {
                bring_rows(m, gdn, item, end, n_parts);
            } else {
                wait_for_counter(&m.known[(k + 1) % ITEMS], (k + 1) / ITEMS & 1);
                if (next.found)
                    bring_rows(m, gdn, next, 0, n_parts);
            }
            if (first > 0)
                continue;
            wait_for_counter(&m.gated[k % ITEMS], k / ITEMS & 1);
            if (warp == 0)
                store_block(keys_of(gdn, item.place, item.key_head), &m.keys, sizeof m.keys);
#pragma unroll 1
            for (uint32_t task = warp; task < 2 * TASKS; task += WORKERS) {
                uint32_t m16 = 0, n = task % TASKS;
                for (; n >= TILES - 2 * m16; m16++)
                    n -= TILES - 2 * m16;
                prepare_pairs(gdn, rows.n_chunks, item, n_heads, gates, m.keys, task < TASKS, m16,
                              2 * m16 + n);
            }
        }
    }
    if (warp == 0)
        end_of_stores();
}

/* Block: chunks of heads in steps of the grid. */
static __global__ void __launch_bounds__(PREPARE_THREADS, BLOCKS)
    prepare_kernel(const sl_cu_rows rows, const __grid_constant__ sl_cu_gdn gdn)
{
    extern __shared__ uint4 raw_prepare[];
    prepare_memory &m = *(prepare_memory *)(void *)raw_prepare;
    const uint32_t n_heads = gdn.n_value_heads / gdn.n_key_heads;
    if (threadIdx.x == 0) {
        for (uint32_t i = 0; i < ITEMS; i++) {
            init_counter(&m.known[i], 1);
            init_counter(&m.gated[i], 1);
        }
        for (uint32_t i = 0; i < 2; i++)
            init_counter(&m.begun[i], 1);
        show_counters();
    }
    wait_for_previous();
    __syncthreads();
    if (threadIdx.x / WARP == WORKERS)
        find_items(m, rows, gdn, n_heads);
    else
        work_on_items(m, rows, gdn, n_heads);
}

void sl_cu_gdn_prepare(const sl_cu_queue *queue, const sl_cu_rows *rows, const sl_cu_gdn *gdn)
{
    const size_t n_bytes = prepare_bytes(gdn->n_value_heads / gdn->n_key_heads);
    const uint32_t n_items = rows->n_chunks * gdn->n_key_heads;
    int device = 0, n_units = 1;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&n_units, cudaDevAttrMultiProcessorCount, device);
    const uint32_t most = BLOCKS * (uint32_t)n_units;
    cudaFuncSetAttribute(prepare_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)n_bytes);
    launch(queue, prepare_kernel, dim3(n_items < most ? n_items : most), dim3(PREPARE_THREADS),
           n_bytes, *rows, *gdn);
}

/* ---- finish ---- */

enum { FINISH_WARPS = 8 };

/* 32 values as codes, section 1, four in each of eight lanes. */
static __device__ __forceinline__ void quantise_columns(const float4 y, const sl_cu_q8 &out,
                                                        size_t block)
{
    const uint32_t lane = threadIdx.x % 8;
    const float x[4] = {y.x, y.y, y.z, y.w};
    uint32_t bits = 0;
#pragma unroll
    for (int i = 0; i < 4; i++)
        bits = max(bits, sl_bits_of_float(x[i]) & 0x7FFFFFFFu);
#pragma unroll
    for (int far = 4; far > 0; far /= 2)
        bits = max(bits, __shfl_xor_sync(0xFFFFFFFFu, bits, far));
    float scale = 0.0f, inverse = 0.0f;
    if (bits >= 0x7F800000u) {
        scale = sl_float_of_bits(0x7FC00000u);
    } else if (bits >= (uint32_t)(127 - 100) << 23) {
        scale = sl_float_of_bits(bits) / 127.0f;
        inverse = 127.0f / sl_float_of_bits(bits);
    }
    int code[4], sum = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        code[i] = inverse > 0.0f ? (int)sl_rintf(x[i] * inverse) : 0;
        sum += code[i];
    }
    sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 1);
    sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 2);
    ((char4 *)(out.q + block * SL_Q8_BLOCK))[lane] = make_char4(
        (signed char)code[0], (signed char)code[1], (signed char)code[2], (signed char)code[3]);
    if (lane % 4 == 0)
        out.sums[2 * block + lane / 4] = (int16_t)sum;
    if (lane == 0)
        out.d[block] = scale;
}

/* Warp: one row, one value head. */
static __global__ void __launch_bounds__(FINISH_WARPS *WARP)
    finish_kernel(const sl_cu_rows rows, const __grid_constant__ sl_cu_gdn gdn)
{
    const uint32_t lane = threadIdx.x % WARP;
    const size_t head = (size_t)blockIdx.x * FINISH_WARPS + threadIdx.x / WARP;
    wait_for_previous();
    if (head >= (size_t)rows.n_rows * gdn.n_value_heads)
        return;
    float4 *y = (float4 *)gdn.y + head * WARP + lane;
    const float4 z = ((const float4 *)gdn.z)[head * WARP + lane];
    const float4 w = ((const float4 *)gdn.norm)[lane];
    float4 o = *y;
    const float sum = sum_squares_of(o);
    const float inverse =
        inverse_rms(__shfl_sync(0xFFFFFFFFu, sum, 0), __shfl_sync(0xFFFFFFFFu, sum, 8),
                    __shfl_sync(0xFFFFFFFFu, sum, 16), __shfl_sync(0xFFFFFFFFu, sum, 24), gdn.eps);
    o = make_float4(gated(o.x, inverse, w.x, z.x), gated(o.y, inverse, w.y, z.y),
                    gated(o.z, inverse, w.z, z.z), gated(o.w, inverse, w.w, z.w));
    if (gdn.keeps_y)
        *y = o;
    if (gdn.yq.q)
        quantise_columns(o, gdn.yq, head * (DIM / SL_Q8_BLOCK) + lane / 8);
}

void sl_cu_gdn_finish(const sl_cu_queue *queue, const sl_cu_rows *rows, const sl_cu_gdn *gdn)
{
    launch(queue, finish_kernel, dim3(div_up(rows->n_rows * gdn->n_value_heads, FINISH_WARPS)),
           dim3(FINISH_WARPS * WARP), 0, *rows, *gdn);
}
