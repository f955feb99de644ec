/* Products of any number of rows with quantised weights (section 2) and float weights (section 3). */
#include "backend/cuda/kernels/product.cuh"

enum { WARPS = 8 };

/* The activation row of product i. */
static __device__ inline uint32_t row_of(const sl_cu_product &p, uint32_t i)
{
    return p.rows ? p.rows[i] : i / p.row_divisor;
}

/* Block: 8 warps, one panel, up to 8 activation rows; of a stack one row, whose matrix may differ from
 * its neighbours'. Warp w takes segments w, w + 8, ... */
template <int KIND, bool HAS_MIN, bool STACKED>
static __global__ void __launch_bounds__(WARPS *WARP)
    product_kernel(const sl_cu_matrix w, const sl_cu_product p)
{
    enum { OUTPUTS = ROWS * TOKENS };
    __shared__ float parts[WARPS][ROWS][TOKENS + 1];
    const uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    const uint32_t first = STACKED ? blockIdx.y : 0;
    const uint32_t limit = STACKED ? first + 1 : p.n, n_blocks = p.q8.n_blocks;
    const uint32_t n_segments = div_up(n_blocks, SEGMENT_BLOCKS);
    const size_t block_bytes = KIND == SL_CU_PLAIN ? SL_CU_PLAIN_BYTES : SL_CU_GENERAL_BYTES;
    const uint8_t *panel = w.data + blockIdx.x * w.panel_bytes;
    if (STACKED)
        panel += p.stack[first] * w.stack_bytes;

    /* Columns beyond the last are computed from the first and not stored. */
    const uint32_t b_row = row_of(p, first + g < limit ? first + g : first);
    const uint32_t c_row[2] = {row_of(p, first + 2 * t < limit ? first + 2 * t : first),
                               row_of(p, first + 2 * t + 1 < limit ? first + 2 * t + 1 : first)};
    const uint32_t output = threadIdx.x;
    float total = 0.0f;
    for (uint32_t base = 0; base < n_segments; base += WARPS) {
        float seg[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        const uint32_t begin = (base + warp) * SEGMENT_BLOCKS;
        const uint32_t end = begin + SEGMENT_BLOCKS < n_blocks ? begin + SEGMENT_BLOCKS : n_blocks;
#pragma unroll 4
        for (uint32_t b = begin; b < end; b++) {
            const uint8_t *block = panel + b * block_bytes;
            const uint4 a = *(const uint4 *)(block + lane * 16);
            block_scales scales;
            load_scales((sl_cu_kind)KIND, block, g, &scales);
            const int8_t *q = p.q8.q + ((size_t)b_row * n_blocks + b) * SL_Q8_BLOCK + 4 * t;
            const uint32_t codes[2] = {*(const uint32_t *)q, *(const uint32_t *)(q + 16)};
            const size_t at[2] = {(size_t)c_row[0] * n_blocks + b, (size_t)c_row[1] * n_blocks + b};
            const float da[2] = {p.q8.d[at[0]], p.q8.d[at[1]]};
            const int16_t *const sums[2] = {p.q8.sums + 2 * at[0], p.q8.sums + 2 * at[1]};
            add_block<KIND, HAS_MIN>(a, scales, codes, da, sums, seg);
        }
        __syncthreads();
#pragma unroll
        for (int j = 0; j < 4; j++)
            parts[warp][g + 8 * (j / 2)][2 * t + j % 2] = seg[j];
        __syncthreads();
        if (output < OUTPUTS) {
            for (uint32_t s = 0; s < WARPS && base + s < n_segments; s++)
                total = total + parts[s][output % ROWS][output / ROWS];
        }
    }
    const uint32_t row = blockIdx.x * ROWS + output % ROWS, column = first + output / ROWS;
    if (output < OUTPUTS && row < w.n_rows && column < limit)
        p.y[(size_t)column * p.y_stride + row] = total;
}

/* ---- many rows ---- */

/* A tile of 4 warps: PANELS panels of 16 outputs a warp, times 64 activation rows. Activations of one
 * segment at a time are in shared memory, the next segment's on their way; weights go from the second
 * cache straight into registers, a block ahead. The float work of a block (conversion, product of the
 * scales, sum) is what limits it, so everything else is arranged around it. */
enum { TILE_WARPS = 4, TILE_ROWS = 64, TILE_COLUMNS = TILE_ROWS / TOKENS, SEGMENT = SL_Q8_BLOCK * SEGMENT_BLOCKS, CODE_STRIDE = SEGMENT + 16 };

typedef struct tile_stage {
    int8_t q[TILE_ROWS][CODE_STRIDE];
    float d[SEGMENT_BLOCKS][TILE_ROWS];
    uint32_t sums[SEGMENT_BLOCKS][TILE_ROWS]; /* two int16 */
} tile_stage;

/* Starts the copy of one segment of the tile's activations. Rows beyond the last are copies of it,
 * blocks beyond the row's end stay what they are and are not used. */
template <bool HAS_MIN>
static __device__ __forceinline__ void copy_stage(tile_stage &stage, const sl_cu_product &p,
                                                  uint32_t first, uint32_t segment)
{
    enum { THREADS = TILE_WARPS * WARP, PIECES = SEGMENT / 16 };
    const uint32_t n_blocks = p.q8.n_blocks, begin = segment * SEGMENT_BLOCKS;
    const uint32_t count = n_blocks - begin < SEGMENT_BLOCKS ? n_blocks - begin : SEGMENT_BLOCKS;
#pragma unroll 4
    for (uint32_t x = threadIdx.x; x < TILE_ROWS * PIECES; x += THREADS) {
        const uint32_t i = x / PIECES, piece = x % PIECES;
        const size_t row = row_of(p, first + i < p.n ? first + i : p.n - 1);
        if (piece < 2 * count)
            copy_ahead(&stage.q[i][16 * piece],
                         p.q8.q + (row * n_blocks + begin) * SL_Q8_BLOCK + 16 * piece);
    }
#pragma unroll 4
    for (uint32_t x = threadIdx.x; x < TILE_ROWS * SEGMENT_BLOCKS; x += THREADS) {
        const uint32_t i = x / SEGMENT_BLOCKS, b = x % SEGMENT_BLOCKS;
        const size_t row = row_of(p, first + i < p.n ? first + i : p.n - 1);
        if (b >= count)
            continue;
        const size_t at = row * n_blocks + begin + b;
        copy_word_ahead(&stage.d[b][i], p.q8.d + at);
        if (HAS_MIN)
            copy_word_ahead(&stage.sums[b][i], p.q8.sums + 2 * at);
    }
    end_of_copies();
}

/* One block of a panel, as a lane sees it. */
typedef struct block_weights {
    uint4 codes;
    block_scales scales;
} block_weights;

template <int KIND>
static __device__ __forceinline__ void load_block(const uint8_t *block, block_weights *out)
{
    const uint32_t lane = threadIdx.x % WARP;
    out->codes = *(const uint4 *)(block + lane * 16);
    load_scales((sl_cu_kind)KIND, block, lane / 4, &out->scales);
}

template <int KIND, bool HAS_MIN, int PANELS>
static __global__ void __launch_bounds__(TILE_WARPS *WARP)
    tiled_kernel(const __grid_constant__ sl_cu_matrix w, const __grid_constant__ sl_cu_product p)
{
    extern __shared__ uint4 raw[];
    tile_stage *stages = (tile_stage *)(void *)raw;
    const uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    const uint32_t first = blockIdx.y * TILE_ROWS, n_blocks = p.q8.n_blocks;
    const uint32_t n_segments = div_up(n_blocks, SEGMENT_BLOCKS), n_panels = div_up(w.n_rows, ROWS);
    const uint32_t first_panel = (blockIdx.x * TILE_WARPS + warp) * PANELS;
    const size_t block_bytes = KIND == SL_CU_PLAIN ? SL_CU_PLAIN_BYTES : SL_CU_GENERAL_BYTES;
    const uint8_t *panel[PANELS];
#pragma unroll
    for (uint32_t i = 0; i < PANELS; i++) /* panels beyond the last are computed like it */
        panel[i] = w.data + (size_t)(first_panel + i < n_panels ? first_panel + i : n_panels - 1) *
                                w.panel_bytes;

    float total[PANELS][TILE_COLUMNS][4];
#pragma unroll
    for (int i = 0; i < PANELS; i++)
#pragma unroll
        for (int c = 0; c < TILE_COLUMNS; c++)
#pragma unroll
            for (int k = 0; k < 4; k++)
                total[i][c][k] = 0.0f;

    copy_stage<HAS_MIN>(stages[0], p, first, 0);
    block_weights weights[PANELS];
#pragma unroll
    for (int i = 0; i < PANELS; i++)
        load_block<KIND>(panel[i], &weights[i]);
    for (uint32_t segment = 0; segment < n_segments; segment++) {
        const tile_stage &stage = stages[segment % 2];
        if (segment + 1 < n_segments) {
            copy_stage<HAS_MIN>(stages[(segment + 1) % 2], p, first, segment + 1);
            wait_for_copies<1>();
        } else {
            wait_for_copies<0>();
        }
        __syncthreads();
        float seg[PANELS][TILE_COLUMNS][4];
#pragma unroll
        for (int i = 0; i < PANELS; i++)
#pragma unroll
            for (int c = 0; c < TILE_COLUMNS; c++)
#pragma unroll
                for (int k = 0; k < 4; k++)
                    seg[i][c][k] = 0.0f;
        const uint32_t begin = segment * SEGMENT_BLOCKS;
        const uint32_t count = n_blocks - begin < SEGMENT_BLOCKS ? n_blocks - begin : SEGMENT_BLOCKS;
#pragma unroll 1
        for (uint32_t b = 0; b < count; b++) {
            block_weights next[PANELS];
            const uint32_t after = begin + b + 1 < n_blocks ? begin + b + 1 : begin + b;
#pragma unroll
            for (int i = 0; i < PANELS; i++)
                load_block<KIND>(panel[i] + after * block_bytes, &next[i]);
#pragma unroll
            for (int c = 0; c < TILE_COLUMNS; c++) {
                const int8_t *q = &stage.q[c * TOKENS + g][b * SL_Q8_BLOCK + 4 * t];
                const uint32_t codes[2] = {*(const uint32_t *)q, *(const uint32_t *)(q + 16)};
                const float2 d = *(const float2 *)&stage.d[b][c * TOKENS + 2 * t];
                const float da[2] = {d.x, d.y};
                const int16_t *const sums[2] = {
                    (const int16_t *)&stage.sums[b][c * TOKENS + 2 * t],
                    (const int16_t *)&stage.sums[b][c * TOKENS + 2 * t + 1]};
#pragma unroll
                for (int i = 0; i < PANELS; i++)
                    add_block<KIND, HAS_MIN>(weights[i].codes, weights[i].scales, codes, da, sums,
                                             seg[i][c]);
            }
#pragma unroll
            for (int i = 0; i < PANELS; i++)
                weights[i] = next[i];
        }
#pragma unroll
        for (int i = 0; i < PANELS; i++)
#pragma unroll
            for (int c = 0; c < TILE_COLUMNS; c++)
#pragma unroll
                for (int k = 0; k < 4; k++)
                    total[i][c][k] = total[i][c][k] + seg[i][c][k];
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < PANELS; i++)
#pragma unroll
        for (int c = 0; c < TILE_COLUMNS; c++)
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const uint32_t row = (first_panel + i) * ROWS + g + 8 * (k / 2);
                const uint32_t column = first + c * TOKENS + 2 * t + k % 2;
                if (row < w.n_rows && column < p.n)
                    p.y[(size_t)column * p.y_stride + row] = total[i][c][k];
            }
}

template <int KIND, bool HAS_MIN, int PANELS>
static void launch_tiled(cudaStream_t stream, const sl_cu_matrix *w, const sl_cu_product *p)
{
    const size_t shared = 2 * sizeof(tile_stage);
    cudaFuncSetAttribute(tiled_kernel<KIND, HAS_MIN, PANELS>,
                         cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
    dim3 grid(div_up(w->n_rows, PANELS * TILE_WARPS * ROWS), div_up(p->n, TILE_ROWS));
    tiled_kernel<KIND, HAS_MIN, PANELS><<<grid, TILE_WARPS * WARP, shared, stream>>>(*w, *p);
}

/* From so many tiles of two panels a warp on, there are enough of them for the largest devices. */
enum { MANY_TILES = 400 };

template <int KIND, bool HAS_MIN>
static void launch_quantised(cudaStream_t stream, const sl_cu_matrix *w, const sl_cu_product *p)
{
    const uint32_t panels = div_up(w->n_rows, ROWS), threads = WARPS * WARP;
    const uint32_t tiles = div_up(panels, 2 * TILE_WARPS) * div_up(p->n, TILE_ROWS);
    if (p->stack)
        product_kernel<KIND, HAS_MIN, true><<<dim3(panels, p->n), threads, 0, stream>>>(*w, *p);
    else if (p->n <= TOKENS)
        product_kernel<KIND, HAS_MIN, false><<<dim3(panels, 1), threads, 0, stream>>>(*w, *p);
    else if (tiles >= MANY_TILES && KIND == SL_CU_PLAIN)
        launch_tiled<KIND, HAS_MIN, 2>(stream, w, p);
    else
        launch_tiled<KIND, HAS_MIN, 1>(stream, w, p);
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
