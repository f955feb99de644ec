/* The gated delta layer for one row of each of any number of sequences, in one kernel: what
 * gdn_prepare.cu and gdn.cu do in three, by the same functions on tiles of which the row fills one
 * column. The state and the tape, which no kernel of the run has written so far, come in before the
 * projections are ready. */
#include "backend/cuda/kernels/cluster.cuh"
#include "backend/cuda/kernels/gdn.cuh"

/* A block has 32 value columns of one head of one sequence; the blocks of a head are a cluster.
 * Eight warps have a slice of 16 columns and a range of 32 keys of the state each, and of the
 * tape's keys the same range of 16 rows; in between they convolve. */
enum {
    COLUMNS = 32,
    QUARTERS = DIM / COLUMNS,
    STEP_SLICES = COLUMNS / SLICE,
    WORKERS = STEP_SLICES * RANGES,
    VALUES = WORKERS, /* a warp convolves values, */
    GATES,            /* one has the gates */
    WARPS,
    THREADS = WARPS * WARP,
    ROW_TILES = CHUNK / STEP,
    MOST_ROW_TILES = (ROW_TILES + STEP_SLICES - 1) / STEP_SLICES /* of a worker */
};
static_assert(WORKERS * WARP == 2 * DIM, "a worker's lanes have the channels of key and query");

enum { KEY, QUERY };

typedef struct step_memory {
    __half k_high[CHUNK * DIM], k_low[CHUNK * DIM]; /* at the chunk's end only */
    alignas(16) float channel[2][DIM];
    float v[COLUMNS];
    uint32_t high[2][DIM / 2], low[2][DIM / 2]; /* the row's key and query as halves */
    float dots[RANGES][2][CHUNK];               /* key and query with the tape's keys */
    float product[RANGES][2][COLUMNS];          /* and with the state */
    double total[CHUNK];
    float g[CHUNK];
    float decay[CHUNK]; /* from a row until now */
    float solve[CHUNK], read[CHUNK];
    float u[CHUNK][COLUMNS];
    alignas(16) float o[COLUMNS];
    float e, beta;
    float sums[QUARTERS]; /* squares of the outputs of each block of the cluster */
    uint64_t arrived;     /* counts their bytes */
} step_memory;

/* Where the block is at work. */
typedef struct place {
    uint32_t head, key_head, quarter, begin, row;
    bool keeps_head, keeps_key; /* whether it writes what belongs to the head, the key head */
} place;

/* The tape's keys that a worker multiplies, as left operands: [tile of rows][step][register]. */
typedef struct tape_keys {
    float2 k[MOST_ROW_TILES][KEY_STEPS][4];
} tape_keys;

static __device__ __forceinline__ uint32_t tape_row(uint32_t part, uint32_t tile, uint32_t reg)
{
    return (part + tile * STEP_SLICES) * STEP + threadIdx.x % WARP / 4 + reg % 2 * 8;
}

static __device__ __forceinline__ uint32_t tape_key(uint32_t range, uint32_t s, uint32_t reg)
{
    return range * RANGE + s * STEP + 2 * (threadIdx.x % 4) + reg / 2 * 8;
}

static __device__ __forceinline__ void load_tape(tape_keys &out, const sl_cu_gdn &gdn,
                                                 const sl_cu_segment &segment, const place &at,
                                                 uint32_t part, uint32_t range)
{
#pragma unroll
    for (uint32_t tile = 0; tile < MOST_ROW_TILES; tile++) {
        const uint32_t j = tape_row(part, tile, 0);
        if (part + tile * STEP_SLICES >= ROW_TILES)
            break;
        const float *from = tape_k(gdn, segment, 0, j, at.key_head) + tape_key(range, 0, 0);
#pragma unroll
        for (uint32_t s = 0; s < KEY_STEPS; s++) {
#pragma unroll
            for (uint32_t reg = 0; reg < 4; reg++) {
                out.k[tile][s][reg] = make_float2(0.0f, 0.0f);
                if (j + reg % 2 * 8 < at.begin)
                    out.k[tile][s][reg] =
                        *(const float2 *)&from[reg % 2 * 8 * DIM + s * STEP + reg / 2 * 8];
            }
        }
    }
}

static __device__ __forceinline__ void load_updates(step_memory &m, const sl_cu_gdn &gdn,
                                                    const sl_cu_segment &segment, const place &at)
{
    enum { ROWS = WARP * 4 / COLUMNS }; /* at a time */
    const uint32_t lane = threadIdx.x % WARP, c = lane % (COLUMNS / 4) * 4,
                   first = lane / (COLUMNS / 4);
#pragma unroll
    for (uint32_t page = 0; page < SL_TAPE_CHUNK_PAGES; page++) {
        const uint32_t top = page * SL_TAPE_PAGE + first;
        const float *from = tape_u(gdn, segment, 0, top, at.head) + at.quarter * COLUMNS + c;
#pragma unroll
        for (uint32_t j = 0; j < SL_TAPE_PAGE; j += ROWS)
            *(float4 *)&m.u[top + j][c] = top + j < at.begin ? *(const float4 *)&from[j * DIM]
                                                             : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
}

/* What a thread needs of the convolution of its channel besides the row itself. */
typedef struct taps {
    float4 w;
    float x[SL_CONV_HISTORY];
    uint32_t channel;
} taps;

static __device__ __forceinline__ void load_taps(taps &out, const sl_cu_gdn &gdn,
                                                 const sl_cu_segment &segment, const place &at)
{
    const uint32_t thread = threadIdx.x, a = thread % DIM;
    const uint32_t key = thread < DIM ? gdn.n_key_heads : 0; /* threads of keys, then of queries */
    out.channel = (key + at.key_head) * DIM + a;
    if (thread / WARP == VALUES)
        out.channel = (2 * gdn.n_key_heads + at.head) * DIM + at.quarter * COLUMNS + thread % WARP;
    out.w = ((const float4 *)gdn.conv)[out.channel];
    const float *rows = segment.conv + (size_t)gdn.index * gdn.n_conv_rows * gdn.n_channels;
    const uint32_t now = segment.pos % gdn.n_conv_rows;
#pragma unroll
    for (uint32_t back = 1; back <= SL_CONV_HISTORY; back++) {
        const uint32_t row = now >= back ? now - back : now + gdn.n_conv_rows - back;
        out.x[SL_CONV_HISTORY - back] =
            back <= segment.pos ? rows[(size_t)row * gdn.n_channels + out.channel] : 0.0f;
    }
}

static __device__ __forceinline__ float convolve(const taps &taps, const sl_cu_gdn &gdn,
                                                 const sl_cu_segment &segment, bool keeps)
{
    const float x = gdn.qkv[(size_t)segment.first_row * gdn.n_channels + taps.channel];
    if (keeps)
        conv_row(gdn, segment, segment.pos)[taps.channel] = x;
    return convolved(taps.w, taps.x[0], taps.x[1], taps.x[2], x);
}

/* Gates and decays, by a warp. */
static __device__ __forceinline__ void take_gates(step_memory &m, const sl_cu_gdn &gdn,
                                                  const sl_cu_segment &segment, const place &at)
{
    const uint32_t lane = threadIdx.x % WARP;
    const float g = decay_gate(gdn, at.row, at.head);
    if (lane == 0) {
        m.g[at.begin] = g;
        m.beta = write_strength(gdn, at.row, at.head);
        if (at.keeps_head)
            *tape_g(gdn, segment, 0, at.begin, at.head) = g;
    }
    __syncwarp();
    sum_gates(m.g, m.total);
    __syncwarp();
    const double now = m.total[at.begin];
    for (uint32_t j = lane; j < CHUNK; j += WARP)
        m.decay[j] = j <= at.begin ? decay_between(now, m.total[j]) : 0.0f;
    if (lane == 0)
        m.e = sl_expf((float)now);
}

/* Warp 0 the key, warp 4 the query: norm and halves. */
static __device__ __forceinline__ void split_row(step_memory &m, const sl_cu_gdn &gdn,
                                                 const sl_cu_segment &segment, const place &at)
{
    const uint32_t kind = threadIdx.x / DIM, lane = threadIdx.x % WARP;
    if (kind > QUERY || threadIdx.x % DIM >= WARP)
        return;
    float4 x = *(const float4 *)&m.channel[kind][4 * lane];
    const float inverse = inverse_norm(x);
    x = make_float4(x.x * inverse, x.y * inverse, x.z * inverse, x.w * inverse);
    if (kind == QUERY)
        x = make_float4(x.x * Q_SCALE, x.y * Q_SCALE, x.z * Q_SCALE, x.w * Q_SCALE);
    else if (at.keeps_key)
        *(float4 *)&tape_k(gdn, segment, 0, at.begin, at.key_head)[4 * lane] = x;
    const halves xy = split(x.x * KEY_SCALE, x.y * KEY_SCALE);
    const halves zw = split(x.z * KEY_SCALE, x.w * KEY_SCALE);
    *(uint2 *)&m.high[kind][2 * lane] = make_uint2(xy.high, zw.high);
    *(uint2 *)&m.low[kind][2 * lane] = make_uint2(xy.low, zw.low);
}

/* The row's key and query with the state and with the tape's keys, its own among them. */
static __device__ __forceinline__ void multiply_row(step_memory &m, const state_part &state,
                                                    const tape_keys &keys, const place &at,
                                                    uint32_t part, uint32_t range)
{
    const uint32_t lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    right<KEY_STEPS, 1> row;
#pragma unroll
    for (uint32_t i = 0; i < 2 * KEY_STEPS; i++) {
        const uint32_t pair = range * (RANGE / 2) + i * 4 + t;
        row.high[0][i] = g <= QUERY ? m.high[g][pair] : 0;
        row.low[0][i] = g <= QUERY ? m.low[g][pair] : 0;
    }
    state_operand operand;
    float x[1][4];
    split_state(operand, state);
    read_state(x, operand, row);
    if (t == 0) {
        m.product[range][KEY][part * SLICE + g] = x[0][0];
        m.product[range][QUERY][part * SLICE + g] = x[0][1];
        m.product[range][KEY][part * SLICE + g + 8] = x[0][2];
        m.product[range][QUERY][part * SLICE + g + 8] = x[0][3];
    }
#pragma unroll
    for (uint32_t tile = 0; tile < MOST_ROW_TILES; tile++) {
        if (part + tile * STEP_SLICES >= ROW_TILES)
            break;
        left<KEY_STEPS> a;
#pragma unroll
        for (uint32_t s = 0; s < KEY_STEPS; s++) {
#pragma unroll
            for (uint32_t reg = 0; reg < 4; reg++) {
                const uint32_t j = tape_row(part, tile, reg), key = tape_key(range, s, reg);
                const float2 k = keys.k[tile][s][reg];
                halves h = split(k.x * KEY_SCALE, k.y * KEY_SCALE);
                if (j == at.begin) {
                    h.high = m.high[KEY][key / 2];
                    h.low = m.low[KEY][key / 2];
                }
                a.high[s][reg] = h.high;
                a.low[s][reg] = h.low;
                if (at.begin + 1 == CHUNK) {
                    *(uint32_t *)&m.k_high[half_at(j, key)] = h.high;
                    *(uint32_t *)&m.k_low[half_at(j, key)] = h.low;
                }
            }
        }
        multiply(x, a, row);
        if (t == 0) {
            const uint32_t j = tape_row(part, tile, 0);
            m.dots[range][KEY][j] = x[0][0];
            m.dots[range][QUERY][j] = x[0][1];
            m.dots[range][KEY][j + 8] = x[0][2];
            m.dots[range][QUERY][j + 8] = x[0][3];
        }
    }
}

template <int N>
static __device__ __forceinline__ float sum_parts(const float (&parts)[RANGES][2][N], uint32_t kind,
                                                  uint32_t at)
{
    float sum = parts[0][kind][at];
#pragma unroll
    for (int range = 1; range < RANGES; range++)
        sum = sum + parts[range][kind][at];
    return sum;
}

static __device__ __forceinline__ void take_updates(updates &out, const step_memory &m,
                                                    uint32_t part)
{
    const uint32_t g = threadIdx.x % WARP / 4, t = threadIdx.x % 4;
#pragma unroll
    for (uint32_t k = 0; k < TILES; k++) {
#pragma unroll
        for (uint32_t x = 0; x < 4; x++)
            out.u[k][x] = m.u[k * TILE + 2 * t + x % 2][part * SLICE + g + x / 2 * 8];
    }
}

/* Update and output of a column in each lane of one warp. */
static __device__ __forceinline__ float solve_row(step_memory &m, const sl_cu_gdn &gdn,
                                                  const sl_cu_segment &segment, const place &at)
{
    const uint32_t lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    for (uint32_t j = lane; j < CHUNK; j += WARP) {
        const float k = m.decay[j] * (sum_parts(m.dots, KEY, j) * PAIR_SCALE);
        const float q = m.decay[j] * (sum_parts(m.dots, QUERY, j) * PAIR_SCALE);
        m.solve[j] = j < at.begin ? -(m.beta * k) : 0.0f;
        m.read[j] = j <= at.begin ? q : 0.0f;
    }
    __syncwarp();
    float r = fmaf(-(m.beta * m.e), sum_parts(m.product, KEY, lane), m.beta * m.v[lane]);
#pragma unroll
    for (uint32_t j = 0; j < CHUNK; j++)
        r = fmaf(m.solve[j], m.u[j][lane], r);
    r = r + 0.0f;
    m.u[at.begin][lane] = r;
    tape_u(gdn, segment, 0, at.begin, at.head)[at.quarter * COLUMNS + lane] = r;
    __syncwarp();

    float2 read[TILES];
#pragma unroll
    for (uint32_t k = 0; k < TILES; k++)
        read[k] = g == 0 ? *(const float2 *)&m.read[k * TILE + 2 * t] : make_float2(0.0f, 0.0f);
#pragma unroll
    for (uint32_t part = 0; part < STEP_SLICES; part++) {
        updates updates;
        float o[4];
        take_updates(updates, m, part);
        read_updates(o, updates, read, at.begin / TILE);
        if (t == 0) {
            m.o[part * SLICE + g] = o[0];
            m.o[part * SLICE + g + 8] = o[2];
        }
    }
    __syncwarp();
    const float out = fmaf(m.e, sum_parts(m.product, QUERY, lane), m.o[lane]);
    __syncwarp();
    m.o[lane] = out;
    __syncwarp();
    return out;
}

/* Gated norm of the lane's column; block 32 columns of rounding. */
static __device__ __forceinline__ void finish_row(const step_memory &m, const sl_cu_gdn &gdn,
                                                  const place &at, float o, float weight, float z)
{
    const uint32_t c = at.quarter * COLUMNS + threadIdx.x;
    const size_t place = ((size_t)at.row * gdn.n_value_heads + at.head) * DIM + c;
    const float inverse = inverse_rms(m.sums[0], m.sums[1], m.sums[2], m.sums[3], gdn.eps);
    const float y = gated(o, inverse, weight, z);
    if (gdn.keeps_y)
        gdn.y[place] = y;
    if (gdn.yq.q) {
        const size_t block = place / SL_Q8_BLOCK;
        quantise_block(y, gdn.yq.q + block * SL_Q8_BLOCK, gdn.yq.d + block,
                       gdn.yq.sums + 2 * block);
    }
}

static __device__ __forceinline__ void meet_workers(void)
{
    asm volatile("bar.sync 1, %0;" ::"n"(WORKERS * WARP) : "memory");
}

/* is_whole: the blocks of a head are a cluster, and the gated norm is done here. Without, each
 * block is a cluster by itself. SHARED: blocks that are to fit on a multiprocessor at a time. */
template <int SHARED>
static __global__ void __launch_bounds__(THREADS, SHARED)
    gdn_step_kernel(const sl_cu_rows rows, const __grid_constant__ sl_cu_gdn gdn, bool is_whole)
{
    __shared__ step_memory m;
    __shared__ sl_cu_segment segment;
    enum { WORDS = sizeof(sl_cu_segment) / 4 };
    if (threadIdx.x < WORDS)
        ((uint32_t *)&segment)[threadIdx.x] =
            ((const uint32_t *)&rows.segments[blockIdx.y])[threadIdx.x];
    if (threadIdx.x == 0) {
        init_counter(&m.arrived, 1);
        show_counters();
        expect_blocks(&m.arrived, QUARTERS * sizeof(float));
    }
    __syncwarp();
    cluster_arrive();
    __syncthreads();
    place at;
    at.head = blockIdx.x / QUARTERS;
    at.quarter = blockIdx.x % QUARTERS;
    at.key_head = key_head_of(gdn, at.head);
    at.begin = segment.pos % CHUNK;
    at.row = segment.first_row;
    at.keeps_head = at.quarter == 0;
    at.keeps_key = at.keeps_head && value_head_of(gdn, at.key_head, 0) == at.head;
    const uint32_t warp = threadIdx.x / WARP, part = warp / RANGES, range = warp % RANGES;
    const uint32_t t = threadIdx.x % 4;
    const size_t state_at = ((size_t)gdn.index * gdn.n_value_heads + at.head) * DIM * DIM +
                            at.quarter * COLUMNS + part * SLICE;

    state_part state;
    tape_keys keys;
    if (warp < WORKERS) {
        load_state(state, segment.border ? segment.border + state_at : NULL, range);
        load_tape(keys, gdn, segment, at, part, range);
    } else if (warp == VALUES) {
        load_updates(m, gdn, segment, at);
    } else {
        for (uint32_t j = threadIdx.x % WARP; j < CHUNK; j += WARP)
            m.g[j] = j < at.begin ? *tape_g(gdn, segment, 0, j, at.head) : 0.0f;
        __syncwarp();
    }
    taps taps;
    if (warp < GATES)
        load_taps(taps, gdn, segment, at);
    wait_for_previous();
    if (warp < WORKERS) {
        m.channel[threadIdx.x / DIM][threadIdx.x % DIM] =
            convolve(taps, gdn, segment, at.keeps_key);
        meet_workers();
        split_row(m, gdn, segment, at);
        meet_workers();
        multiply_row(m, state, keys, at, part, range);
    } else if (warp == VALUES) {
        m.v[threadIdx.x % WARP] = convolve(taps, gdn, segment, true);
    } else {
        take_gates(m, gdn, segment, at);
    }
    __syncthreads();
    cluster_wait(); /* now the other blocks are known to be there */
    float o = 0.0f, z = 0.0f, weight = 0.0f;
    if (warp == 0) {
        const uint32_t c = at.quarter * COLUMNS + threadIdx.x;
        if (is_whole) {
            z = gdn.z[((size_t)at.row * gdn.n_value_heads + at.head) * DIM + c];
            weight = gdn.norm[c];
        }
        o = solve_row(m, gdn, segment, at);
        const float sum = sum_squares_of(*(const float4 *)&m.o[threadIdx.x % 8 * 4]);
        if (is_whole && threadIdx.x < QUARTERS)
            send(&m.sums[at.quarter], threadIdx.x, sum, &m.arrived);
        if (!is_whole)
            gdn.y[((size_t)at.row * gdn.n_value_heads + at.head) * DIM + at.quarter * COLUMNS +
                  threadIdx.x] = o;
    }
    if (at.begin + 1 == CHUNK) {
        __syncthreads();
        if (warp < WORKERS) {
            updates updates;
            take_updates(updates, m, part);
            decay_state(state, m.e);
#pragma unroll
            for (uint32_t rows = 0; rows < PARTS; rows++) {
                float decayed[PART_TILES][4];
                turned_keys turned;
                update_operand u;
                load_keys(turned, m.k_high, m.k_low, rows, range);
#pragma unroll
                for (uint32_t k = 0; k < PART_TILES; k++) {
#pragma unroll
                    for (uint32_t x = 0; x < 4; x++)
                        decayed[k][x] = m.decay[rows * STEP + k * TILE + 2 * t + x % 2] *
                                        updates.u[rows * PART_TILES + k][x];
                }
                split_columns<1>(u.a, decayed, u.down);
                add_updates(state, u, turned);
            }
            store_state(state, segment.border_out[1] + state_at, range);
        }
    }
    if (is_whole && warp == 0) {
        wait_for_counter(&m.arrived, 0);
        finish_row(m, gdn, at, o, weight, z);
    }
}

void sl_cu_gdn_step(const sl_cu_queue *queue, const sl_cu_rows *rows, const sl_cu_gdn *gdn)
{
    enum { FEW = 2, MANY = 4, FEW_BLOCKS = 256 };
    const bool is_whole = queue->overlap != 0;
    const dim3 grid(gdn->n_value_heads * QUARTERS, rows->n_segments);
    const uint32_t n_blocks = grid.x * grid.y;
    launch_clusters(queue, n_blocks <= FEW_BLOCKS ? gdn_step_kernel<FEW> : gdn_step_kernel<MANY>,
                    QUARTERS, grid, dim3(THREADS), 0, *rows, *gdn, is_whole);
    if (!is_whole)
        sl_cu_gdn_finish(queue, rows, gdn);
}
