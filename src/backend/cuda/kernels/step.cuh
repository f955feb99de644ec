/* What products of few rows share: their input in shared memory, copied or normed on the spot, and
 * one segment of weights times all rows of it. An output is the same operations in the same order
 * whatever the number of rows beside it, and those of the kernels for many rows. */
#ifndef SL_BACKEND_CUDA_KERNELS_STEP_CUH
#define SL_BACKEND_CUDA_KERNELS_STEP_CUH

#include "backend/cuda/kernels/product.cuh"

enum {
    PAD = 16,
    PART_STRIDE = ROWS + 4, /* floats from one column of a part to the next: no bank twice */
    MOST_SHARED = 224 << 10 /* of a block, where the device has it */
};

static inline bool fits_block(size_t n_bytes)
{
    return n_bytes <= MOST_SHARED && n_bytes <= most_memory_of_block();
}

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

/* Four neighbouring values a lane, eight lanes a block: as quantise_block. q is the lane's place.
 */
static __device__ __forceinline__ void quantise_quads(const float value[4], int8_t *q, float *d,
                                                      int16_t *sums)
{
    const uint32_t lane = threadIdx.x % 8;
    uint32_t bits = 0;
#pragma unroll
    for (int i = 0; i < 4; i++)
        bits = max(bits, sl_bits_of_float(value[i]) & 0x7FFFFFFFu);
#pragma unroll
    for (int step = 1; step < 8; step *= 2)
        bits = max(bits, __shfl_xor_sync(0xFFFFFFFFu, bits, step));
    uint32_t codes = 0;
    int sum = 0;
    float scale = bits >= 0x7F800000u ? sl_float_of_bits(0x7FC00000u) : 0.0f;
    if (bits < 0x7F800000u && bits >= (uint32_t)(127 - 100) << 23) {
        const float largest = sl_float_of_bits(bits), inverse = 127.0f / largest;
        scale = largest / 127.0f;
#pragma unroll
        for (int i = 0; i < 4; i++) { /* sl_rintf; the low bits of the shifted value are the code */
            const int shifted = (int)sl_bits_of_float(value[i] * inverse + 0x1.8p23f);
            codes |= (uint32_t)(shifted & 0xFF) << 8 * i;
            sum += (int)(int8_t)(shifted & 0xFF);
        }
    }
    *(uint32_t *)q = codes;
    sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 1);
    sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 2);
    if (lane == 0)
        *d = scale;
    if (lane % 4 == 0)
        sums[lane / 4] = (int16_t)sum;
}

/* Where the rows to norm and the norm's weights lie in shared memory. */
static __device__ inline float *norm_weights_at(const sl_cu_step &s, float *room)
{
    return room + s.n_rows * s.n_cols;
}

static __host__ __device__ inline uint32_t norm_bytes(const sl_cu_step &s)
{
    return s.norm ? (s.n_rows + 1) * s.n_cols * 4 : 0;
}

/* Asks for the norm's weights. */
static __device__ __forceinline__ void norm_ahead(const sl_cu_step &s, float *room)
{
    for (uint32_t k = 4 * threadIdx.x; k < s.n_cols; k += 4 * blockDim.x)
        copy_ahead(norm_weights_at(s, room) + k, s.norm + k);
    end_of_copies();
}

/* Rows of x as their norm, rounded: what sl_cu_norm computes. A thread has four neighbours. */
template <int COLUMNS>
static __device__ inline void norm_input(const sl_cu_step &s, const activations &a, float *room)
{
    __shared__ float factor[TOKENS];
    const uint32_t warp = threadIdx.x / WARP, n = s.n_cols, place = 4 * threadIdx.x;
    const bool present = place < s.n_rows * n;
    float4 x = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (present) {
        x = __ldcg((const float4 *)(s.x + place));
        *(float4 *)(room + place) = x;
    }
    wait_for_copies<0>();
    __syncthreads();
    if (warp < s.n_rows) {
        const float sum = sum_squares_of(room + warp * n, n, threadIdx.x % WARP);
        if (threadIdx.x % WARP == 0)
            factor[warp] = 1.0f / sqrtf(sum / (float)n + s.eps);
    }
    const uint32_t row = present ? place / n : 0, k = place - row * n;
    const float4 w = present ? *(const float4 *)(norm_weights_at(s, room) + k) : x;
    __syncthreads();
    if (present) { /* a whole warp is, or is not */
        const float r = factor[row];
        const float value[4] = {(x.x * r) * w.x, (x.y * r) * w.y, (x.z * r) * w.z, (x.w * r) * w.w};
        const uint32_t at = k / SL_Q8_BLOCK * COLUMNS + row;
        quantise_quads(value, a.q + row * a.q_stride + k, a.d + at, (int16_t *)(a.sums + at));
    }
    __syncthreads();
}

/* Whether a block of threads can norm the rows of a step. */
static inline bool norm_fits(const sl_cu_step *s, uint32_t threads)
{
    enum { WARP_COLS = 4 * WARP }; /* a warp is of one row */
    return s->n_cols % WARP_COLS == 0 && s->n_rows <= SL_CU_NORM_ROWS &&
           s->n_rows * s->n_cols <= 4 * threads;
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

/* add_block for plain weights: a dot product is below 2^22, so that an accumulator that begins at
 * the bits of 1.5 * 2^23 ends at those of 1.5 * 2^23 + dot; the conversion is a subtraction. */
static __device__ __forceinline__ void add_plain(const uint4 &a, const block_scales &s,
                                                 const uint32_t b[2], const float da[2],
                                                 float seg[4])
{
    enum { SHIFTED_ZERO = 0x4B400000 };
    const uint32_t codes[4] = {a.x, a.y, a.z, a.w};
    int n[4] = {SHIFTED_ZERO, SHIFTED_ZERO, SHIFTED_ZERO, SHIFTED_ZERO};
    mma_k32(n, codes, b);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float dot = sl_float_of_bits((uint32_t)n[i]) - 0x1.8p23f;
        seg[i] = fmaf(s.d[i / 2] * da[i % 2], dot, seg[i]);
    }
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
        if (KIND == SL_CU_PLAIN) {
            add_plain(codes, scales, x, da, seg[c]);
            continue;
        }
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

/* ---- which panel ---- */

/* Panel `panel` of target i. Targets are looked up by constant numbers only: the arguments of a
 * kernel are fast to read there and slow through a pointer. */
static __device__ __forceinline__ panel_ref panel_of(const sl_cu_step &s, uint32_t i,
                                                     uint32_t panel)
{
    panel_ref ref = {NULL, 0, 0};
#pragma unroll
    for (uint32_t k = 0; k < SL_CU_STEP_TARGETS; k++) {
        if (k == i && k < s.n_targets && panel < div_up(s.targets[k].w.n_rows, ROWS)) {
            ref.data = s.targets[k].w.data + panel * s.targets[k].w.panel_bytes;
            ref.kind = s.targets[k].w.kind;
            ref.has_min = s.targets[k].w.has_min;
        }
    }
    return ref;
}

/* Which target and panel the n-th panel of all targets is. */
static __device__ __forceinline__ void find_panel(const sl_cu_step &s, uint32_t n, uint32_t *target,
                                                  uint32_t *panel)
{
    *target = 0;
    *panel = n;
#pragma unroll
    for (uint32_t k = 0; k + 1 < SL_CU_STEP_TARGETS; k++) {
        const uint32_t n_panels = div_up(s.targets[k].w.n_rows, ROWS);
        if (*target == k && k + 1 < s.n_targets && *panel >= n_panels) {
            *target = k + 1;
            *panel -= n_panels;
        }
    }
}

/* ---- steps of some rows, batch.cu ---- */

int sl_cu_batch_fits(const sl_cu_queue *queue, const sl_cu_step *s);
void sl_cu_run_batch(const sl_cu_queue *queue, const sl_cu_step *s);

#endif
