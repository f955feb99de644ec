/* Attention with halves as keys and values, section 7: what its kernels share. Prompts go through
 * attention_tiles.cu, steps of few rows through attention_split.cu or attention_stream.cu, and all
 * compute every quantity with the functions here, so that a row's bits do not depend on which of
 * them it went through:
 *
 *   query    norm, rope; times a power of two of its own, so that any query fits into two halves,
 *            high + low, with 22 bits
 *   score    of key j: products of 16 dimensions, ascending, high then low, on one accumulator
 *   weight   exp2((score - m) * scale): m is the largest score of the row in the key block of 256
 *            absolute positions; scale has 1/16, log2 e and the power of two. Exactly 0 where it
 *            is masked
 *   l        sum of the weights of a block: see page_sum
 *   o        weights as high + low times values: products of 16 keys, ascending, high then low
 *   result   blocks merged in ascending order, o * (1 / l) * sigmoid(gate)
 *
 * A masked key contributes a product with zero, which is why values are always finite: see
 * value_piece. Query row f of a segment and KV head is head f mod group of position f / group. */
#ifndef SL_BACKEND_CUDA_KERNELS_ATTENTION_CUH
#define SL_BACKEND_CUDA_KERNELS_ATTENTION_CUH

#include <cuda_fp16.h>

#include "backend/cuda/kernels/common.cuh"

enum {
    DIM = SL_ATTN_DIM,
    PAGE = SL_KV_PAGE,
    BLOCK = SL_CU_KEY_BLOCK,
    PAGES = BLOCK / PAGE, /* of a key block */
    HALF_ROW = DIM * 2,   /* bytes of a row of 256 halves: dimensions, or weights of a block */
    PART_HEAD = 4,        /* m, l, scale of one block of one query row, then its o */
    PART = PART_HEAD + DIM,
    TILE_ROWS = 64 /* query rows of a tile of a prompt, where shared memory is large */
};
static_assert(DIM == 256 && PAGE == 64 && BLOCK == 256, "tiles and swizzles are made for these");

/* The launches of the other files. */
void sl_cu_append(const sl_cu_queue *queue, const sl_cu_rows *rows, const sl_cu_attention *at);
void sl_cu_attend_tiles(const sl_cu_queue *queue, const sl_cu_rows *rows,
                        const sl_cu_attention *at);
void sl_cu_attend_split(const sl_cu_queue *queue, const sl_cu_rows *rows,
                        const sl_cu_attention *at);
void sl_cu_attend_stream(const sl_cu_queue *queue, const sl_cu_rows *rows,
                         const sl_cu_attention *at, uint64_t n_items);
void sl_cu_merge_blocks(const sl_cu_queue *queue, const sl_cu_rows *rows,
                        const sl_cu_attention *at);
void sl_cu_attend_f32(const sl_cu_queue *queue, const sl_cu_rows *rows, const sl_cu_attention *at);

/* Shared memory of a block of threads, at most: from Hopper on, and on every device since Ampere.
 */
enum { LARGE_MEMORY = 227 * 1024, SMALL_MEMORY = 99 * 1024 };

/* Whether the device has clusters and large memory; else all goes in smaller pieces. A queue
 * without overlap counts as one of an older device, so that tests can go its way. */
static inline bool has_clusters(const sl_cu_queue *queue)
{
    return queue->overlap && most_memory_of_block() >= LARGE_MEMORY;
}

/* ---- where things are ---- */

static __device__ inline size_t key_offset(const sl_cu_attention &at, uint32_t kv_head)
{
    return ((size_t)at.index * 2 * at.n_kv_heads + kv_head) * at.kv_head_bytes;
}

static __device__ inline size_t value_offset(const sl_cu_attention &at, uint32_t kv_head)
{
    return key_offset(at, kv_head) + at.n_kv_heads * at.kv_head_bytes;
}

/* Halves lie in shared memory in panels of 64 columns: rows of 128 bytes, whose pieces of 16 bytes
 * are permuted so that eight rows' pieces of one column lie in different banks. This is the
 * 128-byte swizzle that wgmma knows, when a panel begins at a multiple of 1,024 bytes. */
enum { PANEL = 64, PANEL_ROW = PANEL * 2 };
static __device__ __forceinline__ uint32_t panel_at(uint32_t row, uint32_t piece)
{
    return row * PANEL_ROW + ((piece ^ (row & 7)) << 4);
}

/* Where what the key blocks of a query row give goes, one after the other, behind two places for
 * what was before them. */
enum { PLACES_BEFORE = 2 };
static __device__ __forceinline__ float *
parts_of(const sl_cu_attention &at, const sl_cu_segment &segment, uint32_t row, uint32_t head)
{
    const uint32_t first = at.tiles_apart ? segment.first_row : segment.first_split;
    const size_t index = ((size_t)(first + row) * at.n_heads + head) * (PLACES_BEFORE + at.n_parts);
    return at.scratch + (index + PLACES_BEFORE) * PART;
}

/* Keys of the block from first_key on that position pos sees. */
static __device__ __forceinline__ uint32_t keys_seen(uint32_t pos, uint32_t first_key)
{
    if (pos < first_key)
        return 0;
    return pos - first_key < BLOCK ? pos - first_key + 1 : BLOCK;
}

/* ---- rows before they are used ---- */

/* A head's row in a warp: lane l has dimensions 64 i + 2 l and the next in v[i]. */
enum { PAIRS = DIM / 64, USUAL_TURNS = 32 /* pairs that rope turns: dimensions 0 .. 63 */ };

/* Cosine and sine for the lane's dimensions in v[0], where rope turns the usual number of pairs. */
typedef struct rotation {
    float2 c, s;
} rotation;

static __device__ inline rotation rotation_of(const sl_cu_attention &at, uint32_t pos)
{
    rotation r = {};
    if (at.n_pairs == USUAL_TURNS) {
        const uint32_t lane = threadIdx.x % WARP;
        const float2 f = *(const float2 *)&at.inv_freq[lane % 16 * 2];
        sl_sincos((float)pos * f.x, &r.s.x, &r.c.x);
        sl_sincos((float)pos * f.y, &r.s.y, &r.c.y);
        const float sign = lane < 16 ? -at.rope_scale : at.rope_scale;
        r.c = make_float2(r.c.x * at.rope_scale, r.c.y * at.rope_scale);
        r.s = make_float2(r.s.x * sign, r.s.y * sign);
    }
    return r;
}

static __device__ __forceinline__ void load_row(float2 v[PAIRS], const float *from)
{
#pragma unroll
    for (int i = 0; i < PAIRS; i++)
        v[i] = ((const float2 *)(const void *)from)[i * WARP + threadIdx.x % WARP];
}

/* Rope of any number of pairs, through a row of shared memory. */
static __device__ __noinline__ void turn_through(const sl_cu_attention *at, uint32_t pos, float *x)
{
    __syncwarp();
    for (uint32_t pair = threadIdx.x % WARP; pair < at->n_pairs; pair += WARP) {
        float c, s;
        sl_sincos((float)pos * at->inv_freq[pair], &s, &c);
        c = c * at->rope_scale;
        s = s * at->rope_scale;
        const float a = x[pair], b = x[pair + at->n_pairs];
        x[pair] = fmaf(a, c, -(b * s));
        x[pair + at->n_pairs] = fmaf(b, c, a * s);
    }
    __syncwarp();
}

/* Norm and rope. x: DIM floats of shared memory, the warp's own. */
static __device__ __forceinline__ void rotate_row(const sl_cu_attention &at, float2 v[PAIRS],
                                                  const float2 w[PAIRS], const rotation &turn,
                                                  uint32_t pos, float *x)
{
    float sum = 0.0f, r;
#pragma unroll
    for (int i = 0; i < PAIRS; i++)
        sum = fmaf(v[i].y, v[i].y, fmaf(v[i].x, v[i].x, sum));
#pragma unroll
    for (int other = WARP / 2; other > 0; other /= 2)
        sum = sum + __shfl_xor_sync(0xFFFFFFFFu, sum, other);
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(sum * (1.0f / DIM) + at.eps));
#pragma unroll
    for (int i = 0; i < PAIRS; i++)
        v[i] = make_float2((v[i].x * r) * w[i].x, (v[i].y * r) * w[i].y);
    if (at.n_pairs == USUAL_TURNS) {
        const float a = __shfl_xor_sync(0xFFFFFFFFu, v[0].x, 16);
        const float b = __shfl_xor_sync(0xFFFFFFFFu, v[0].y, 16);
        v[0].x = fmaf(v[0].x, turn.c.x, a * turn.s.x);
        v[0].y = fmaf(v[0].y, turn.c.y, b * turn.s.y);
        return;
    }
    float2 *own = (float2 *)(void *)x + threadIdx.x % WARP;
#pragma unroll
    for (int i = 0; i < PAIRS; i++)
        own[i * WARP] = v[i];
    turn_through(&at, pos, x);
#pragma unroll
    for (int i = 0; i < PAIRS; i++)
        v[i] = own[i * WARP];
}

/* a and b as halves with 11 bits each, and what is missing as halves again. */
static __device__ __forceinline__ void split_pair(float a, float b, uint32_t &high, uint32_t &low)
{
    const __half2 h = __floats2half2_rn(a, b);
    const float2 f = __half22float2(h);
    const __half2 l = __floats2half2_rn(a - f.x, b - f.y);
    high = *(const uint32_t *)&h;
    low = *(const uint32_t *)&l;
}

/* Row `row` of n_rows queries in shared memory, panels of high, then of low; returns the row's
 * scale. The largest element comes to lie in 2^9 .. 2^10. */
static __device__ __forceinline__ float split_query(const float2 v[PAIRS], char *queries,
                                                    uint32_t n_rows, uint32_t row)
{
    enum { TARGET = 127 + 9, LEAST = 23 };
    const uint32_t lane = threadIdx.x % WARP;
    uint32_t bits = 0;
#pragma unroll
    for (int i = 0; i < PAIRS; i++) {
        bits = max(bits, sl_bits_of_float(v[i].x) & 0x7FFFFFFFu);
        bits = max(bits, sl_bits_of_float(v[i].y) & 0x7FFFFFFFu);
    }
    bits = __reduce_max_sync(0xFFFFFFFFu, bits);
    const uint32_t exponent = bits >> 23 < LEAST ? LEAST : bits >> 23;
    const float factor = sl_float_of_bits((TARGET + 127 - exponent) << 23);
    char *to = queries + panel_at(row, lane / 4) + lane % 4 * 4;
#pragma unroll
    for (int i = 0; i < PAIRS; i++, to += n_rows * PANEL_ROW) {
        uint32_t high, low;
        split_pair(v[i].x * factor, v[i].y * factor, high, low);
        *(uint32_t *)(void *)to = high;
        *(uint32_t *)(void *)(to + n_rows * HALF_ROW) = low;
    }
    return (0.0625f * 0x1.715476p+0f) * sl_float_of_bits((exponent + 127 - TARGET) << 23);
}

/* Eight dimensions of a value row as halves, lane's of 32. Weights of masked keys are zero, and
 * zero times an infinity would reach rows that must not see the key: where a value is not finite as
 * a half it is stored as zero, and *finite turns false for the whole warp; the key becomes NaN
 * instead, which only rows that see it meet. */
static __device__ inline uint4 value_piece(const float *v, bool *finite)
{
    const float4 a = ((const float4 *)(const void *)v)[threadIdx.x % WARP * 2];
    const float4 b = ((const float4 *)(const void *)v)[threadIdx.x % WARP * 2 + 1];
    const float x[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
    uint16_t h[8];
    bool all = true;
#pragma unroll
    for (int k = 0; k < 8; k++) {
        h[k] = __half_as_ushort(__float2half_rn(x[k]));
        const bool ok = (h[k] & 0x7C00u) != 0x7C00u;
        h[k] = ok ? h[k] : (uint16_t)0;
        all = all && ok;
    }
    *finite = __all_sync(0xFFFFFFFFu, all);
    return make_uint4(h[0] | (uint32_t)h[1] << 16, h[2] | (uint32_t)h[3] << 16,
                      h[4] | (uint32_t)h[5] << 16, h[6] | (uint32_t)h[7] << 16);
}

static __device__ __forceinline__ uint16_t key_half(float x, bool finite)
{
    return finite ? __half_as_ushort(__float2half_rn(x)) : (uint16_t)0x7FFFu;
}

/* ---- products ---- */

/* Four matrices of 8 rows of 16 bytes: lane l has the address of row l mod 8 of matrix l / 8. */
static __device__ __forceinline__ void load_matrices(uint32_t r[4], uint32_t address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

static __device__ __forceinline__ void load_transposed(uint32_t r[4], uint32_t address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

static __device__ __forceinline__ void multiply(float c[4], const uint32_t a[4],
                                                const uint32_t b[2])
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* One step of 16 along the sums, for M x N tiles: scores or o. */
template <int M, int N>
static __device__ __forceinline__ void multiply_split(float c[M][N][4], const uint32_t high[M][4],
                                                      const uint32_t low[M][4],
                                                      const uint32_t b[N][2])
{
#pragma unroll
    for (int i = 0; i < M; i++) {
#pragma unroll
        for (int j = 0; j < N; j++)
            multiply(c[i][j], high[i], b[j]);
    }
#pragma unroll
    for (int i = 0; i < M; i++) {
#pragma unroll
        for (int j = 0; j < N; j++)
            multiply(c[i][j], low[i], b[j]);
    }
}

/* ---- softmax ---- */

/* 2^x; the hardware's, at most 2 units of the last place off; 0 rather than a denormal. */
static __device__ __forceinline__ float exp2_of(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* -infinity for a masked score, which gives weight 0. */
static __device__ __forceinline__ float lowest(void)
{
    return sl_float_of_bits(0xFF800000u);
}

static __device__ __forceinline__ float weight_of(float score, float m, float scale)
{
    return exp2_of((score - m) * scale);
}

/* What scores are compared with: the largest of the row in the block, but 0 where all are masked.
 */
static __device__ __forceinline__ float reference_of(float m)
{
    return m == lowest() ? 0.0f : m;
}

/* The sum of the weights of a page's 64 keys: lane t of four has keys 8 j + 2 t and the next, whose
 * sums w_j are added as ((w0 + w1) + (w2 + w3)) + ((w4 + w5) + (w6 + w7)); then lanes t and t + 1,
 * then those two sums. Pages: the first two, the last two, both. */
static __device__ __forceinline__ float page_sum(float lane_sum)
{
    lane_sum = lane_sum + __shfl_xor_sync(0xFFFFFFFFu, lane_sum, 1);
    return lane_sum + __shfl_xor_sync(0xFFFFFFFFu, lane_sum, 2);
}

static __device__ __forceinline__ float pages_sum(float a, float b, float c, float d)
{
    return (a + b) + (c + d);
}

/* Adds what a block has gathered to what those before it have: x and y are weight_of the two
 * maxima against the larger one. */
static __device__ __forceinline__ float weighed(float block, float y)
{
    return block * y;
}

static __device__ __forceinline__ float merged(float before, float x, float weighed_block)
{
    return fmaf(before, x, weighed_block);
}

static __device__ __forceinline__ float gate_of(const sl_cu_attention &at, size_t row,
                                                uint32_t head, uint32_t d)
{
    return at.q[(row * at.n_heads + head) * 2 * DIM + DIM + d];
}

/* o * sigmoid(gate), the sigmoid by the hardware's exponential and reciprocal. */
static __device__ __forceinline__ float gated(float o, float gate)
{
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(1.0f + exp2_of(gate * -0x1.715476p+0f)));
    return o * y;
}

/* One of a warp's 32 neighbouring dimensions of a result, plain and rounded. */
static __device__ __forceinline__ void write_result(const sl_cu_attention &at, size_t row,
                                                    uint32_t head, uint32_t d, float o, float gate)
{
    const float y = gated(o, gate);
    const size_t index = (row * at.n_heads + head) * DIM + d;
    if (at.keeps_y)
        at.y[index] = y;
    if (at.yq.q) {
        const size_t block = index / SL_Q8_BLOCK;
        quantise_block(y, at.yq.q + block * SL_Q8_BLOCK, at.yq.d + block, at.yq.sums + 2 * block);
    }
}

#endif
