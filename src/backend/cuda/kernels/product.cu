/* Products of any number of rows with quantised weights (section 2) and float weights (section 3). */
#include "backend/cuda/kernels/product.cuh"

enum { WARPS = 8 };

/* The activation row of product i. */
static __device__ inline uint32_t row_of(const sl_cu_product &p, uint32_t i)
{
    return p.rows ? p.rows[i] : i / p.row_divisor;
}

/* Block: 8 warps, one panel, TILES * 8 activation rows; of a stack one row, whose matrix may differ
 * from its neighbours'. Warp w takes segments w, w + 8, ... */
template <int KIND, bool HAS_MIN, int TILES, bool STACKED>
static __global__ void __launch_bounds__(WARPS *WARP)
    product_kernel(const sl_cu_matrix w, const sl_cu_product p)
{
    enum { COLUMNS = TILES * TOKENS, OUTPUTS = ROWS * COLUMNS };
    __shared__ float parts[WARPS][ROWS][COLUMNS + 1];
    const uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    const uint32_t first = blockIdx.y * (STACKED ? 1 : COLUMNS);
    const uint32_t limit = STACKED ? first + 1 : p.n, n_blocks = p.q8.n_blocks;
    const uint32_t n_segments = div_up(n_blocks, SEGMENT_BLOCKS);
    const size_t block_bytes = KIND == SL_CU_PLAIN ? SL_CU_PLAIN_BYTES : SL_CU_GENERAL_BYTES;
    const uint8_t *panel = w.data + blockIdx.x * w.panel_bytes;
    if (STACKED)
        panel += p.stack[first] * w.stack_bytes;

    /* Columns beyond the last are computed from row 0 and not stored. */
    uint32_t b_row[TILES], c_row[TILES][2];
#pragma unroll
    for (int i = 0; i < TILES; i++) {
        uint32_t column = first + i * TOKENS;
        b_row[i] = column + g < limit ? row_of(p, column + g) : row_of(p, first);
        for (int j = 0; j < 2; j++)
            c_row[i][j] = column + 2 * t + j < limit ? row_of(p, column + 2 * t + j) : row_of(p, first);
    }

    float total[(OUTPUTS + WARPS * WARP - 1) / (WARPS * WARP)];
#pragma unroll
    for (int i = 0; i < (int)SL_COUNTOF(total); i++)
        total[i] = 0.0f;

    for (uint32_t base = 0; base < n_segments; base += WARPS) {
        const uint32_t segment = base + warp;
        float seg[TILES][4];
#pragma unroll
        for (int i = 0; i < TILES; i++) {
#pragma unroll
            for (int j = 0; j < 4; j++)
                seg[i][j] = 0.0f;
        }
        const uint32_t begin = segment * SEGMENT_BLOCKS;
        const uint32_t end = begin + SEGMENT_BLOCKS < n_blocks ? begin + SEGMENT_BLOCKS : n_blocks;
#pragma unroll 4
        for (uint32_t b = begin; b < end; b++) {
            const uint8_t *block = panel + b * block_bytes;
            const uint4 a = *(const uint4 *)(block + lane * 16);
            block_scales scales;
            load_scales((sl_cu_kind)KIND, block, g, &scales);
#pragma unroll
            for (int i = 0; i < TILES; i++) {
                const int8_t *q = p.q8.q + ((size_t)b_row[i] * n_blocks + b) * SL_Q8_BLOCK + 4 * t;
                const uint32_t codes[2] = {*(const uint32_t *)q, *(const uint32_t *)(q + 16)};
                const size_t at[2] = {(size_t)c_row[i][0] * n_blocks + b,
                                      (size_t)c_row[i][1] * n_blocks + b};
                const float da[2] = {p.q8.d[at[0]], p.q8.d[at[1]]};
                const int16_t *const sums[2] = {p.q8.sums + 2 * at[0], p.q8.sums + 2 * at[1]};
                add_block<KIND, HAS_MIN>(a, scales, codes, da, sums, seg[i]);
            }
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < TILES; i++) {
#pragma unroll
            for (int j = 0; j < 4; j++)
                parts[warp][g + 8 * (j / 2)][i * TOKENS + 2 * t + j % 2] = seg[i][j];
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < (int)SL_COUNTOF(total); i++) {
            uint32_t output = threadIdx.x + i * WARPS * WARP;
            if (output >= OUTPUTS)
                break;
            for (uint32_t s = 0; s < WARPS && base + s < n_segments; s++)
                total[i] = total[i] + parts[s][output % ROWS][output / ROWS];
        }
    }
#pragma unroll
    for (int i = 0; i < (int)SL_COUNTOF(total); i++) {
        uint32_t output = threadIdx.x + i * WARPS * WARP;
        uint32_t row = blockIdx.x * ROWS + output % ROWS, column = first + output / ROWS;
        if (output < OUTPUTS && row < w.n_rows && column < limit)
            p.y[(size_t)column * p.y_stride + row] = total[i];
    }
}

template <int KIND, bool HAS_MIN>
static void launch_quantised(cudaStream_t stream, const sl_cu_matrix *w, const sl_cu_product *p)
{
    const uint32_t panels = div_up(w->n_rows, ROWS), threads = WARPS * WARP;
    if (p->stack)
        product_kernel<KIND, HAS_MIN, 1, true>
            <<<dim3(panels, p->n), threads, 0, stream>>>(*w, *p);
    else if (p->n <= 8)
        product_kernel<KIND, HAS_MIN, 1, false><<<dim3(panels, 1), threads, 0, stream>>>(*w, *p);
    else if (p->n <= 16)
        product_kernel<KIND, HAS_MIN, 2, false><<<dim3(panels, 1), threads, 0, stream>>>(*w, *p);
    else
        product_kernel<KIND, HAS_MIN, 4, false>
            <<<dim3(panels, div_up(p->n, 32)), threads, 0, stream>>>(*w, *p);
}

/* ---- float weights, section 3 ---- */

static __device__ inline float weight_at(sl_cu_kind kind, const uint8_t *row, uint32_t k)
{
    if (kind == SL_CU_F32)
        return ((const float *)row)[k];
    uint16_t bits = ((const uint16_t *)row)[k];
    return kind == SL_CU_F16 ? __half2float(__ushort_as_half(bits))
                             : sl_float_of_bits((uint32_t)bits << 16);
}

enum { FLOAT_TOKENS = 4 };

/* Warp: one output of up to 4 activation rows. Lane l sums block l of 32 blocks; then the sums of a
 * segment's 8 lanes and the 4 segments are added in order. */
template <int KIND>
static __global__ void float_kernel(const sl_cu_matrix w, const sl_cu_product p, uint32_t per_block)
{
    const uint32_t out = blockIdx.x * WARPS + threadIdx.x / WARP, lane = threadIdx.x % WARP;
    if (out >= w.n_rows)
        return;
    const uint32_t first = blockIdx.y * per_block;
    const uint32_t count = p.n - first < per_block ? p.n - first : per_block;
    const uint8_t *row = w.data + out * w.row_bytes + (p.stack ? p.stack[first] * w.stack_bytes : 0);
    const float *x[FLOAT_TOKENS];
    for (uint32_t i = 0; i < FLOAT_TOKENS; i++)
        x[i] = p.f32 + (size_t)row_of(p, first + (i < count ? i : 0)) * p.f32_stride;
    float total[FLOAT_TOKENS] = {0.0f};
    for (uint32_t base = 0; base < w.n_cols; base += WARP * SL_Q8_BLOCK) {
        const uint32_t begin = base + lane * SL_Q8_BLOCK;
        float sum[FLOAT_TOKENS] = {0.0f};
        const uint32_t end = begin + SL_Q8_BLOCK < w.n_cols ? begin + SL_Q8_BLOCK : w.n_cols;
        for (uint32_t k = begin; k < end; k++) {
            const float weight = weight_at((sl_cu_kind)KIND, row, k);
#pragma unroll
            for (int i = 0; i < FLOAT_TOKENS; i++)
                sum[i] = fmaf(weight, x[i][k], sum[i]);
        }
        /* Absent blocks add +0, which changes no sum that started from +0. */
#pragma unroll
        for (int i = 0; i < FLOAT_TOKENS; i++) {
            float seg = 0.0f;
            for (int b = 0; b < SEGMENT_BLOCKS; b++)
                seg = seg + __shfl_sync(0xFFFFFFFFu, sum[i], (int)(lane / 8 * 8) + b);
            for (int s = 0; s < WARP / SEGMENT_BLOCKS; s++)
                total[i] = total[i] + __shfl_sync(0xFFFFFFFFu, seg, s * SEGMENT_BLOCKS);
        }
    }
    for (uint32_t i = 0; i < count; i++) {
        if (lane == i)
            p.y[(size_t)(first + i) * p.y_stride + out] = total[i];
    }
}

template <int KIND>
static void launch_float(cudaStream_t stream, const sl_cu_matrix *w, const sl_cu_product *p)
{
    const uint32_t per_block = p->stack ? 1 : FLOAT_TOKENS;
    dim3 grid(div_up(w->n_rows, WARPS), div_up(p->n, per_block));
    float_kernel<KIND><<<grid, WARPS * WARP, 0, stream>>>(*w, *p, per_block);
}

void sl_cu_matrix_product(cudaStream_t stream, const sl_cu_matrix *w, const sl_cu_product *p)
{
    switch (w->kind) {
    case SL_CU_PLAIN:
        launch_quantised<SL_CU_PLAIN, false>(stream, w, p);
        return;
    case SL_CU_GENERAL:
        if (w->has_min)
            launch_quantised<SL_CU_GENERAL, true>(stream, w, p);
        else
            launch_quantised<SL_CU_GENERAL, false>(stream, w, p);
        return;
    case SL_CU_F32:
        launch_float<SL_CU_F32>(stream, w, p);
        return;
    case SL_CU_F16:
        launch_float<SL_CU_F16>(stream, w, p);
        return;
    case SL_CU_BF16:
        launch_float<SL_CU_BF16>(stream, w, p);
        return;
    }
}
