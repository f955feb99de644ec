/* What lies before and after the rule (gdn.cu) in a gated delta layer, section 6:
 *   prepare  every chunk and key head: convolution, SiLU, norms, gates; what the rows of a chunk
 *            have to do with each other; keys and gates go on the tape
 *   finish   every row and value head: gated norm and rounding */
#include "backend/cuda/kernels/gdn_chunks.cuh"

size_t sl_cu_gdn_chunk_bytes(uint32_t n_chunks, uint32_t n_key_heads, uint32_t n_value_heads)
{
    return n_chunks * (n_key_heads * sizeof(key_block) +
                       n_value_heads * (sizeof(pair_block) + sizeof(value_block)));
}

/* ---- prepare ---- */

enum {
    PREPARE_WARPS = 12, /* and one for the gates */
    PREPARE_THREADS = (PREPARE_WARPS + 1) * WARP,
    GROUP = 8, /* rows that a warp convolves, */
    QUAD = 4,  /* so many at a time */
    GROUPS = CHUNK / GROUP
};

/* Gates of one chunk, per value head of the key head. */
typedef struct gates {
    double *total;
    float *g, *beta;
} gates;

static size_t prepare_bytes(uint32_t n_heads)
{
    return sizeof(key_block) + n_heads * CHUNK * (sizeof(double) + 2 * sizeof(float));
}

/* By a warp. Rows that are neither old nor of the run have no gate and write nothing; an old row's
 * update is what it was. */
static __device__ void take_gates(const sl_cu_gdn &gdn, const sl_cu_segment &segment,
                                  const chunk_ref &chunk, uint32_t key_head, uint32_t n_heads,
                                  const gates &gates)
{
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
}

/* Four channels of rows of the chunk on their way through the convolution: x[0 .. 2] are the rows
 * before `next`, which comes as x[3]. */
typedef struct window {
    float4 x[SL_CONV_HISTORY + QUAD];
    const float *from; /* of row `next` in the run; NULL while rows before it are in the state */
    uint32_t channel, next;
} window;

/* Row j of the chunk; zero where no row of the run needs it. */
static __device__ __forceinline__ float4 raw_row(const window &v, const sl_cu_gdn &gdn,
                                                 const sl_cu_segment &segment,
                                                 const chunk_ref &chunk, int j)
{
    const int i = (int)(chunk.row - segment.first_row) - (int)chunk.begin + j;
    if (j + SL_CONV_HISTORY < (int)chunk.begin || j >= (int)chunk.end)
        return make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    return raw_channels<float4>(gdn, segment, i, v.channel);
}

/* The next four rows into x[3 .. 6]. */
static __device__ __forceinline__ void
load_rows(window &v, const sl_cu_gdn &gdn, const sl_cu_segment &segment, const chunk_ref &chunk)
{
#pragma unroll
    for (uint32_t r = 0; r < QUAD; r++) {
        if (!v.from)
            v.x[SL_CONV_HISTORY + r] = raw_row(v, gdn, segment, chunk, (int)(v.next + r));
        else
            v.x[SL_CONV_HISTORY + r] = v.next + r < chunk.end
                                           ? *(const float4 *)&v.from[r * gdn.n_channels]
                                           : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
}

static __device__ __forceinline__ void begin_window(window &v, const sl_cu_gdn &gdn,
                                                    const sl_cu_segment &segment,
                                                    const chunk_ref &chunk, uint32_t first,
                                                    uint32_t channel)
{
    const int top = (int)(chunk.row - segment.first_row) + (int)first - (int)chunk.begin;
    v.channel = channel;
    v.next = first;
    v.from = NULL;
    if (top >= SL_CONV_HISTORY)
        v.from = gdn.qkv + (size_t)(segment.first_row + (uint32_t)top) * gdn.n_channels + channel;
#pragma unroll
    for (int r = 0; r < SL_CONV_HISTORY; r++) {
        if (!v.from)
            v.x[r] = raw_row(v, gdn, segment, chunk, (int)first + r - SL_CONV_HISTORY);
        else
            v.x[r] = first < chunk.end
                         ? *(const float4 *)&v.from[-(int)((SL_CONV_HISTORY - r) * gdn.n_channels)]
                         : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
    load_rows(v, gdn, segment, chunk);
}

/* Four rows after convolution and SiLU, and on. */
static __device__ __forceinline__ void convolve(float4 (&y)[QUAD], window &v, const sl_cu_gdn &gdn)
{
    const float4 *w = (const float4 *)gdn.conv + v.channel, *x = v.x;
    const float4 w0 = w[0];
#pragma unroll
    for (uint32_t r = 0; r < QUAD; r++)
        y[r].x = convolved(w0, x[r].x, x[r + 1].x, x[r + 2].x, x[r + 3].x);
    const float4 w1 = w[1];
#pragma unroll
    for (uint32_t r = 0; r < QUAD; r++)
        y[r].y = convolved(w1, x[r].y, x[r + 1].y, x[r + 2].y, x[r + 3].y);
    const float4 w2 = w[2];
#pragma unroll
    for (uint32_t r = 0; r < QUAD; r++)
        y[r].z = convolved(w2, x[r].z, x[r + 1].z, x[r + 2].z, x[r + 3].z);
    const float4 w3 = w[3];
#pragma unroll
    for (uint32_t r = 0; r < QUAD; r++)
        y[r].w = convolved(w3, x[r].w, x[r + 1].w, x[r + 2].w, x[r + 3].w);
#pragma unroll
    for (int r = 0; r < SL_CONV_HISTORY; r++)
        v.x[r] = v.x[r + QUAD];
    v.next += QUAD;
    v.from = v.from ? v.from + QUAD * gdn.n_channels : NULL;
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
    if (j < chunk.begin && is_key)
        return ((const float4 *)tape_k(gdn, segment, chunk.m, j, key_head))[threadIdx.x % WARP];
    if (j < chunk.begin || j >= chunk.end)
        return make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (is_key && chunk.is_kept)
        ((float4 *)tape_k(gdn, segment, chunk.m, j, key_head))[threadIdx.x % WARP] = x;
    return x;
}

/* Rows of the head's queries or keys become halves. */
static __device__ void prepare_keys(key_block &out, const sl_cu_gdn &gdn,
                                    const sl_cu_segment &segment, const chunk_ref &chunk,
                                    uint32_t key_head, bool is_key, uint32_t first)
{
    const uint32_t a = threadIdx.x % WARP * 4;
    const bool is_special = chunk.begin > 0 || chunk.end < CHUNK || chunk.is_kept;
    __half *high = is_key ? out.k_high : out.q_high, *low = is_key ? out.k_low : out.q_low;
    window v;
    begin_window(v, gdn, segment, chunk, first,
                 ((is_key ? gdn.n_key_heads : 0) + key_head) * DIM + a);
#pragma unroll 1
    for (uint32_t row = first; row < first + GROUP; row += QUAD) {
        float4 y[QUAD];
        float inverse[QUAD];
        convolve(y, v, gdn);
        if (row + QUAD < first + GROUP)
            load_rows(v, gdn, segment, chunk);
        inverse_norms(inverse, y);
#pragma unroll
        for (uint32_t r = 0; r < QUAD; r++) {
            const uint32_t j = row + r;
            float4 x = scaled(y[r], inverse[r]);
            if (!is_key)
                x = scaled(x, Q_SCALE);
            if (is_special)
                x = special_key(x, gdn, segment, chunk, key_head, is_key, j);
            const halves xy = split(x.x * KEY_SCALE, x.y * KEY_SCALE);
            const halves zw = split(x.z * KEY_SCALE, x.w * KEY_SCALE);
            *(uint2 *)&high[half_at(j, a)] = make_uint2(xy.high, zw.high);
            *(uint2 *)&low[half_at(j, a)] = make_uint2(xy.low, zw.low);
        }
    }
}

/* Rows of a head's values times the strength of writing; old rows have their updates here. */
static __device__ void prepare_values(value_block &out, const sl_cu_gdn &gdn,
                                      const sl_cu_segment &segment, const chunk_ref &chunk,
                                      uint32_t head, uint32_t first)
{
    const uint32_t a = threadIdx.x % WARP * 4, c = a % SLICE;
    float *to = out.v[a / SLICE];
    window v;
    begin_window(v, gdn, segment, chunk, first, (2 * gdn.n_key_heads + head) * DIM + a);
    const uint32_t mine = first + threadIdx.x % GROUP;
    float beta = 0.0f;
    if (mine >= chunk.begin && mine < chunk.end)
        beta = write_strength(gdn, chunk.row + mine - chunk.begin, head);
#pragma unroll 1
    for (uint32_t row = first; row < first + GROUP; row += QUAD) {
        float4 y[QUAD];
        convolve(y, v, gdn);
        if (row + QUAD < first + GROUP)
            load_rows(v, gdn, segment, chunk);
#pragma unroll
        for (uint32_t r = 0; r < QUAD; r++) {
            y[r] = scaled(y[r], __shfl_sync(0xFFFFFFFFu, beta, (int)(row + r - first)));
            if (row + r < chunk.begin)
                y[r] = *(const float4 *)&tape_u(gdn, segment, chunk.m, row + r, head)[a];
            else if (row + r >= chunk.end)
                y[r] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        }
        *(float4 *)&to[float_at(c, row)] = make_float4(y[0].x, y[1].x, y[2].x, y[3].x);
        *(float4 *)&to[float_at(c + 1, row)] = make_float4(y[0].y, y[1].y, y[2].y, y[3].y);
        *(float4 *)&to[float_at(c + 2, row)] = make_float4(y[0].z, y[1].z, y[2].z, y[3].z);
        *(float4 *)&to[float_at(c + 3, row)] = make_float4(y[0].w, y[1].w, y[2].w, y[3].w);
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
                                     const chunk_ref &chunk, uint32_t key_head, uint32_t n_heads,
                                     const gates &gates, const key_block &keys, bool with_keys,
                                     uint32_t m, uint32_t n)
{
    float dots[4];
    multiply_keys(dots, keys, with_keys, m, n);
    const uint32_t g = threadIdx.x % WARP / 4, t = threadIdx.x % 4;
    for (uint32_t h = 0; h < n_heads; h++) {
        const double *total = gates.total + h * CHUNK;
        pair_block *out = pairs_of(gdn, n_chunks, blockIdx.x, value_head_of(gdn, key_head, h));
#pragma unroll
        for (uint32_t x = 0; x < 4; x++) {
            const uint32_t j = m * STEP + x / 2 * 8 + g, i = n * TILE + 2 * t + x % 2;
            const bool is_fresh = i >= chunk.begin && i < chunk.end;
            const float weight = decay_between(total[i], total[j]) * (dots[x] * PAIR_SCALE);
            if (!with_keys) {
                out->read[float_at(i, j)] = is_fresh && j <= i ? weight : 0.0f;
                continue;
            }
            const float solve = is_fresh && j < i ? -(gates.beta[h * CHUNK + i] * weight) : 0.0f;
            const uint32_t k = i % TILE;
            out->solve[i][j] = solve;
            if (i / TILE == j / TILE && j < i)
                out->solve_tile[i / TILE][k * (k - 1) / 2 + j % TILE] = solve;
        }
    }
}

static __device__ void prepare_decays(const sl_cu_gdn &gdn, uint32_t n_chunks,
                                      const chunk_ref &chunk, uint32_t key_head, uint32_t n_heads,
                                      const gates &gates)
{
    for (uint32_t x = threadIdx.x % WARP; x < n_heads * CHUNK; x += WARP) {
        const uint32_t h = x / CHUNK, j = x % CHUNK;
        const double *total = gates.total + h * CHUNK;
        pair_block *out = pairs_of(gdn, n_chunks, blockIdx.x, value_head_of(gdn, key_head, h));
        const float e = j >= chunk.begin && j < chunk.end ? sl_expf((float)total[j]) : 0.0f;
        out->e[j] = e;
        out->e_beta[j] = gates.beta[x] * e;
        out->last[j] = decay_between(total[CHUNK - 1], total[j]);
    }
}

/* Block: one chunk, one key head. */
static __global__ void __launch_bounds__(PREPARE_THREADS, 2)
    prepare_kernel(const sl_cu_rows rows, const __grid_constant__ sl_cu_gdn gdn)
{
    extern __shared__ uint4 raw[];
    key_block &keys = *(key_block *)(void *)raw;
    const uint32_t key_head = blockIdx.y, n_heads = gdn.n_value_heads / gdn.n_key_heads;
    gates gates;
    gates.total = (double *)(void *)(&keys + 1);
    gates.g = (float *)(void *)(gates.total + n_heads * CHUNK);
    gates.beta = gates.g + n_heads * CHUNK;
    __shared__ sl_cu_segment segment;
    __shared__ chunk_ref chunk;
    __shared__ bool found;
    if (threadIdx.x == 0)
        found = false;
    wait_for_previous();
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < rows.n_segments; i += PREPARE_THREADS) {
        const sl_cu_segment &s = rows.segments[i];
        if (blockIdx.x >= s.first_chunk && blockIdx.x < s.first_chunk + count_chunks(s)) {
            segment = s;
            chunk = chunk_of(s, blockIdx.x - s.first_chunk);
            found = true;
        }
    }
    __syncthreads();
    if (!found)
        return;

    const uint32_t warp = threadIdx.x / WARP;
    if (warp == PREPARE_WARPS)
        take_gates(gdn, segment, chunk, key_head, n_heads, gates);
    for (uint32_t item = warp; warp < PREPARE_WARPS && item < (2 + n_heads) * GROUPS;
         item += PREPARE_WARPS) {
        const uint32_t part = item / GROUPS, first = item % GROUPS * GROUP;
        if (part < 2) {
            prepare_keys(keys, gdn, segment, chunk, key_head, part == 1, first);
        } else {
            const uint32_t head = value_head_of(gdn, key_head, part - 2);
            prepare_values(*values_of(gdn, rows.n_chunks, blockIdx.x, head), gdn, segment, chunk,
                           head, first);
        }
    }
    __syncthreads();
    uint4 *out = (uint4 *)(void *)keys_of(gdn, blockIdx.x, key_head);
    for (uint32_t x = threadIdx.x; x < sizeof(key_block) / sizeof(uint4); x += PREPARE_THREADS)
        out[x] = raw[x];
    if (warp == PREPARE_WARPS) {
        prepare_decays(gdn, rows.n_chunks, chunk, key_head, n_heads, gates);
        return;
    }
    enum { KEY_TILE_ROWS = CHUNK / STEP, TASKS = KEY_TILE_ROWS * (KEY_TILE_ROWS + 1) };
    for (uint32_t task = warp; task < 2 * TASKS; task += PREPARE_WARPS) {
        uint32_t m = 0, n = task % TASKS;
        for (; n >= TILES - 2 * m; m++)
            n -= TILES - 2 * m;
        prepare_pairs(gdn, rows.n_chunks, chunk, key_head, n_heads, gates, keys, task < TASKS, m,
                      2 * m + n);
    }
}

void sl_cu_gdn_prepare(const sl_cu_queue *queue, const sl_cu_rows *rows, const sl_cu_gdn *gdn)
{
    const size_t n_bytes = prepare_bytes(gdn->n_value_heads / gdn->n_key_heads);
    cudaFuncSetAttribute(prepare_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)n_bytes);
    launch(queue, prepare_kernel, dim3(rows->n_chunks, gdn->n_key_heads), dim3(PREPARE_THREADS),
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
