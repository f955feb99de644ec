/* What products of few rows share: their input in shared memory, copied or normed on the spot, and
 * one segment of weights times all rows of it. An output is the same operations in the same order
 * whatever the number of rows beside it, and those of the kernels for many rows. */
#ifndef SL_BACKEND_CUDA_KERNELS_STEP_CUH
#define SL_BACKEND_CUDA_KERNELS_STEP_CUH

#include "backend/cuda/kernels/product.cuh"

enum {
    PAD = 16,
    PART_STRIDE = ROWS + 4, /* floats from one column of a part to the next: no bank twice */
    MOST_SHARED = 224 << 10
};

/* Activations in shared memory, `columns` rows of them: those beyond the last are zeros. Rows of
 * codes are 16 bytes apart modulo 128, so that the eight rows of a tile lie in different banks. */
typedef struct activations {
    int8_t *q;
    float *d;       /* [n_blocks][columns] */
    uint32_t *sums; /* [n_blocks][columns], two int16 */
    uint32_t n_blocks, q_stride;
} activations;

static __host__ __device__ inline uint32_t activation_bytes(uint32_t n_blocks, uint32_t columns)
{
    return columns * (n_blocks * (SL_Q8_BLOCK + 4 + 4) + PAD);
}

static __device__ inline activations activations_at(uint4 *raw, uint32_t n_blocks, uint32_t columns)
{
    activations a = {.n_blocks = n_blocks, .q_stride = n_blocks * SL_Q8_BLOCK + PAD};
    a.q = (int8_t *)raw;
    a.d = (float *)(a.q + columns * a.q_stride);
    a.sums = (uint32_t *)(a.d + columns * n_blocks);
    return a;
}

/* ---- input ---- */

/* Columns n_rows and on. */
template <int COLUMNS>
static __device__ inline void clear_absent(const activations &a, uint32_t n_rows)
{
    const uint32_t words = (COLUMNS - n_rows) * (a.q_stride / 16);
    uint4 *q = (uint4 *)(a.q + n_rows * a.q_stride);
    for (uint32_t x = threadIdx.x; x < words; x += blockDim.x)
        q[x] = make_uint4(0, 0, 0, 0);
    for (uint32_t x = threadIdx.x; x < COLUMNS * a.n_blocks; x += blockDim.x) {
        if (x % COLUMNS >= n_rows) {
            a.d[x] = 0.0f;
            a.sums[x] = 0;
        }
    }
}

/* Rows first .. first + n_rows - 1 of q8, each by `warps_a_row` warps; everything is on its way
 * before anything has come. */
template <int COLUMNS, bool SUMS>
static __device__ inline void copy_input(const sl_cu_q8 &q8, uint32_t first, uint32_t n_rows,
                                         const activations &a)
{
    const uint32_t n_warps = blockDim.x / WARP, words = a.n_blocks * SL_Q8_BLOCK / 16;
    const uint32_t warps_a_row = n_rows == 1 ? n_warps : 1;
    const uint32_t threads = warps_a_row * WARP, thread = threadIdx.x % threads;
    for (uint32_t i = threadIdx.x / threads; i < n_rows; i += n_warps / warps_a_row) {
        const size_t row = first + i;
        const uint4 *q = (const uint4 *)q8.q + row * words;
        for (uint32_t x = thread; x < words; x += threads)
            copy_ahead(a.q + i * a.q_stride + 16 * x, q + x);
        for (uint32_t b = thread; b < a.n_blocks; b += threads) {
            copy_word_ahead(a.d + b * COLUMNS + i, q8.d + row * a.n_blocks + b);
            if (SUMS)
                copy_word_ahead(a.sums + b * COLUMNS + i, q8.sums + 2 * (row * a.n_blocks + b));
        }
    }
    end_of_copies();
    wait_for_copies<0>();
    __syncthreads();
}

/* The norm's weights of the first blocks that a warp rounds, asked for before the input is there.
 */
enum { NORM_AHEAD = 2 };
typedef struct norm_weights {
    float w[NORM_AHEAD];
} norm_weights;

static __device__ __forceinline__ float norm_weight(const sl_cu_step &s, uint32_t block)
{
    const uint32_t k = block * SL_Q8_BLOCK + threadIdx.x % WARP;
    return k < s.n_cols ? s.norm[k] : 0.0f;
}

static __device__ __forceinline__ norm_weights norm_ahead(const sl_cu_step &s)
{
    norm_weights ahead;
#pragma unroll
    for (uint32_t j = 0; j < NORM_AHEAD; j++)
        ahead.w[j] = norm_weight(s, threadIdx.x / WARP + j * (blockDim.x / WARP));
    return ahead;
}

/* Block b of all rows. */
template <int COLUMNS>
static __device__ __forceinline__ void norm_block(const sl_cu_step &s, const activations &a,
                                                  const float *x_room, const float *factor,
                                                  uint32_t b, float w)
{
    for (uint32_t i = 0; i < s.n_rows; i++) {
        const float x = x_room[i * s.n_cols + b * SL_Q8_BLOCK + threadIdx.x % WARP];
        const uint32_t at = b * COLUMNS + i;
        quantise_block((x * factor[i]) * w, a.q + i * a.q_stride + b * SL_Q8_BLOCK, a.d + at,
                       (int16_t *)(a.sums + at));
    }
}

/* Rows of x as their norm, rounded: what sl_cu_norm computes. At most as many rows as warps; x_room
 * is room for them in shared memory. */
template <int COLUMNS>
static __device__ inline void norm_input(const sl_cu_step &s, const norm_weights &ahead,
                                         const activations &a, float *x_room)
{
    enum { BATCH = 4 };
    __shared__ float factor[TOKENS];
    const uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const uint32_t n_warps = blockDim.x / WARP, n = s.n_cols, all = s.n_rows * n;
    for (uint32_t base = threadIdx.x; base < all; base += BATCH * blockDim.x) {
        float value[BATCH];
#pragma unroll
        for (uint32_t j = 0; j < BATCH; j++)
            value[j] = base + j * blockDim.x < all ? __ldcg(s.x + base + j * blockDim.x) : 0.0f;
#pragma unroll
        for (uint32_t j = 0; j < BATCH; j++) {
            if (base + j * blockDim.x < all)
                x_room[base + j * blockDim.x] = value[j];
        }
    }
    __syncthreads();
    if (warp < s.n_rows) {
        const float sum = sum_squares_of(x_room + warp * n, n, lane);
        if (lane == 0)
            factor[warp] = 1.0f / sqrtf(sum / (float)n + s.eps);
    }
    __syncthreads();
#pragma unroll
    for (uint32_t j = 0; j < NORM_AHEAD; j++) {
        if (warp + j * n_warps < a.n_blocks)
            norm_block<COLUMNS>(s, a, x_room, factor, warp + j * n_warps, ahead.w[j]);
    }
    for (uint32_t b = warp + NORM_AHEAD * n_warps; b < a.n_blocks; b += n_warps)
        norm_block<COLUMNS>(s, a, x_room, factor, b, norm_weight(s, b));
    __syncthreads();
}

/* ---- products ---- */

/* One panel that a warp works on: plain values, so that nothing is looked up on the way to the
 * weights. */
typedef struct panel_ref {
    const uint8_t *data; /* NULL: beyond the matrix */
    int kind, has_min;
} panel_ref;

/* A block as this lane sees it. */
typedef struct block_codes {
    uint4 codes;
    uint32_t d; /* plain: two halves, of rows g and g + 8 */
} block_codes;

static __device__ __forceinline__ block_codes load_codes(const uint8_t *block, bool plain)
{
    const uint32_t lane = threadIdx.x % WARP, g = lane / 4;
    const uint16_t *d = (const uint16_t *)(block + CODE_BYTES);
    block_codes out;
    out.codes = __ldcs((const uint4 *)(block + lane * 16));
    out.d = plain ? __ldcs(d + g) | (uint32_t)__ldcs(d + g + 8) << 16 : 0;
    return out;
}

/* Adds a block times all columns to seg. A block that is absent (beyond the end of a row) has
 * scales 0 and adds zeros to sums that began at +0: it changes none. */
template <int KIND, bool HAS_MIN, int TILES>
static __device__ __forceinline__ void add_columns(const uint4 &codes, const block_scales &scales,
                                                   const activations &a, uint32_t b,
                                                   float seg[TILES][4])
{
    enum { COLUMNS = TILES * TOKENS };
    const uint32_t lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int c = 0; c < TILES; c++) {
        const int8_t *q = a.q + (c * TOKENS + g) * a.q_stride + b * SL_Q8_BLOCK + 4 * t;
        const uint32_t x[2] = {*(const uint32_t *)q, *(const uint32_t *)(q + 16)};
        const uint32_t at = b * COLUMNS + c * TOKENS + 2 * t;
        const float2 d = *(const float2 *)(a.d + at);
        const float da[2] = {d.x, d.y};
        const int16_t *const sums[2] = {(const int16_t *)(a.sums + at),
                                        (const int16_t *)(a.sums + at + 1)};
        add_block<KIND, HAS_MIN>(codes, scales, x, da, sums, seg[c]);
    }
}

static __device__ __forceinline__ block_scales plain_scales(uint32_t d)
{
    block_scales scales;
    scales.d[0] = __half2float(__ushort_as_half((uint16_t)d));
    scales.d[1] = __half2float(__ushort_as_half((uint16_t)(d >> 16)));
    return scales;
}

#endif
