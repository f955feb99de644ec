/* Products of any number of rows with float weights, section 3. An output is the same operations in
 * the same order in both kernels: blocks of 32 by themselves, ascending; the blocks of a segment
 * added in order; the segments added in order. */
#include "backend/cuda/kernels/product_float.cuh"

enum { WARPS = 8, THREADS = WARPS * WARP, SEGMENT_COLS = SEGMENT_BLOCKS * SL_Q8_BLOCK };

/* ---- few rows ---- */

enum { FEW_ROWS = 4 };

/* Warp: one output of up to 4 rows. Lane l sums block l of
 * 32 blocks; then the sums of a segment's 8 lanes and the 4 segments are added in order. Absent
 * columns are products of zeros, and absent blocks zeros, which change no sum that began at +0. */
template <int KIND, bool WHOLE>
static __global__ void __launch_bounds__(THREADS)
    few_kernel(const __grid_constant__ sl_cu_matrix w, const __grid_constant__ sl_cu_product p,
               uint32_t per_block)
{
    const uint32_t lane = threadIdx.x % WARP, n = w.n_cols;
    const uint32_t first = blockIdx.y * per_block, count = min(p.n - first, per_block);
    const uint32_t out = blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP;
    const bool present = out < w.n_rows;
    const uint8_t *row = w.data + (present ? out : 0) * w.row_bytes;
    float weight[SL_Q8_BLOCK];
    if (!p.stack)
        load_weights<KIND, WHOLE>(row, lane * SL_Q8_BLOCK, n, weight);
    wait_for_previous();
    if (!present)
        return;
    if (p.stack) {
        row += p.stack[first] * w.stack_bytes;
        load_weights<KIND, WHOLE>(row, lane * SL_Q8_BLOCK, n, weight);
    }
    float total[FEW_ROWS] = {0.0f};
    for (uint32_t base = 0; base < n; base += WARP * SL_Q8_BLOCK) {
        const uint32_t begin = base + lane * SL_Q8_BLOCK;
        if (base > 0)
            load_weights<KIND, WHOLE>(row, begin, n, weight);
#pragma unroll
        for (int i = 0; i < FEW_ROWS; i++) {
            if (i >= (int)count)
                continue;
            const float *x = p.f32 + (size_t)activation_row(p, first + i) * p.f32_stride;
            float value[SL_Q8_BLOCK];
            load_values<WHOLE>(x, begin, n, value);
            total[i] = add_blocks(weight, value, total[i]);
        }
    }
#pragma unroll
    for (uint32_t i = 0; i < FEW_ROWS; i++) {
        if (i < count && lane == i)
            p.y[(size_t)(first + i) * p.y_stride + out] = total[i];
    }
}

/* ---- many rows ---- */

enum { TILE = 32, X_STRIDE = TILE + 4, SUM_STRIDE = TILE + 1 };

/* 32 columns of the tile's weights and activations: a lane's four values are 16 (8) bytes, and
 * eight lanes that read different rows meet no bank twice. */
template <int KIND> struct tile_stage {
    enum { BYTES = KIND == SL_CU_F32 ? 4 : 2, W_STRIDE = TILE * BYTES + 16 };
    uint8_t w[TILE][W_STRIDE];
    float x[TILE][X_STRIDE];
};

template <int KIND> struct tile_memory {
    tile_stage<KIND> stages[WARPS][2];
    float sums[WARPS][TILE][SUM_STRIDE];
};

template <int KIND>
static __device__ __forceinline__ void copy_columns(const sl_cu_matrix &w, const sl_cu_product &p,
                                                    uint32_t first_out, uint32_t first_row,
                                                    uint32_t k, tile_stage<KIND> &to)
{
    enum { BYTES = tile_stage<KIND>::BYTES, PIECES = TILE * BYTES / 16 };
    const uint32_t lane = threadIdx.x % WARP;
#pragma unroll
    for (uint32_t x = lane; x < TILE * PIECES; x += WARP) {
        const uint32_t i = x / PIECES, out = min(first_out + i, w.n_rows - 1);
        copy_ahead(&to.w[i][16 * (x % PIECES)],
                   w.data + out * w.row_bytes + (size_t)k * BYTES + 16 * (x % PIECES));
    }
#pragma unroll
    for (uint32_t x = lane; x < TILE * TILE / 4; x += WARP) {
        const uint32_t i = x / (TILE / 4), row = activation_row(p, min(first_row + i, p.n - 1));
        copy_ahead(&to.x[i][4 * (x % (TILE / 4))],
                   p.f32 + (size_t)row * p.f32_stride + k + 4 * (x % (TILE / 4)));
    }
    end_of_copies();
}

template <int KIND>
static __device__ __forceinline__ void four_weights(const tile_stage<KIND> &from, uint32_t i,
                                                    uint32_t k, float (&out)[4])
{
    if (KIND == SL_CU_F32) {
        const float4 four = *(const float4 *)&from.w[i][4 * k];
        out[0] = four.x;
        out[1] = four.y;
        out[2] = four.z;
        out[3] = four.w;
    } else {
        const uint2 four = *(const uint2 *)&from.w[i][2 * k];
        widen((sl_cu_kind)KIND, four.x, out);
        widen((sl_cu_kind)KIND, four.y, out + 2);
    }
}

/* A tile of 32 outputs by 32 rows. Warp w sums segments w, w + 8, ...: a lane has outputs
 * lane / 8 + 4 i and rows lane % 8 + 8 j. */
template <int KIND>
static __global__ void __launch_bounds__(THREADS, 1)
    tile_kernel(const __grid_constant__ sl_cu_matrix w, const __grid_constant__ sl_cu_product p)
{
    enum { OUTS = TILE / 4, EACH = TILE / 8, OWN = TILE * TILE / THREADS };
    extern __shared__ uint4 raw[];
    tile_memory<KIND> &shared = *(tile_memory<KIND> *)(void *)raw;
    const uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const uint32_t first_out = blockIdx.x * TILE, first_row = blockIdx.y * TILE;
    const uint32_t n_segments = div_up(w.n_cols, SEGMENT_COLS);
    float total[OWN] = {0.0f};
    wait_for_previous();
    for (uint32_t base = 0; base < n_segments; base += WARPS) {
        const uint32_t begin = (base + warp) * SEGMENT_COLS;
        const uint32_t end = min(begin + SEGMENT_COLS, w.n_cols);
        float seg[OUTS][EACH] = {{0.0f}};
        if (begin < end)
            copy_columns<KIND>(w, p, first_out, first_row, begin, shared.stages[warp][0]);
        for (uint32_t k = begin, at = 0; k < end; k += SL_Q8_BLOCK, at ^= 1) {
            if (k + SL_Q8_BLOCK < end) {
                copy_columns<KIND>(w, p, first_out, first_row, k + SL_Q8_BLOCK,
                                   shared.stages[warp][at ^ 1]);
                wait_for_copies<1>();
            } else {
                wait_for_copies<0>();
            }
            __syncwarp();
            const tile_stage<KIND> &from = shared.stages[warp][at];
            float sum[OUTS][EACH] = {{0.0f}};
#pragma unroll 2
            for (uint32_t c = 0; c < SL_Q8_BLOCK; c += 4) {
                float4 x[EACH];
#pragma unroll
                for (int j = 0; j < EACH; j++)
                    x[j] = *(const float4 *)&from.x[lane % 8 + 8 * j][c];
#pragma unroll
                for (int i = 0; i < OUTS; i++) {
                    float v[4];
                    four_weights<KIND>(from, lane / 8 + 4 * i, c, v);
#pragma unroll
                    for (int j = 0; j < EACH; j++) {
                        sum[i][j] = fmaf(v[0], x[j].x, sum[i][j]);
                        sum[i][j] = fmaf(v[1], x[j].y, sum[i][j]);
                        sum[i][j] = fmaf(v[2], x[j].z, sum[i][j]);
                        sum[i][j] = fmaf(v[3], x[j].w, sum[i][j]);
                    }
                }
            }
#pragma unroll
            for (int i = 0; i < OUTS; i++)
#pragma unroll
                for (int j = 0; j < EACH; j++)
                    seg[i][j] = seg[i][j] + sum[i][j];
            __syncwarp();
        }
        __syncthreads(); /* the sums of the round before have been read */
#pragma unroll
        for (int i = 0; i < OUTS; i++)
#pragma unroll
            for (int j = 0; j < EACH; j++)
                shared.sums[warp][lane % 8 + 8 * j][lane / 8 + 4 * i] = seg[i][j];
        __syncthreads();
        for (uint32_t s = 0; s < WARPS && base + s < n_segments; s++) {
#pragma unroll
            for (int i = 0; i < OWN; i++)
                total[i] = total[i] + shared.sums[s][warp + WARPS * i][lane];
        }
    }
#pragma unroll
    for (int i = 0; i < OWN; i++) {
        const uint32_t row = first_row + warp + WARPS * i, out = first_out + lane;
        if (row < p.n && out < w.n_rows)
            p.y[(size_t)row * p.y_stride + out] = total[i];
    }
}

/* ---- launching ---- */

static bool is_aligned(const void *p, size_t stride)
{
    return (size_t)p % 16 == 0 && stride % 16 == 0;
}

template <int KIND>
static void launch_tiles(const sl_cu_queue *queue, const sl_cu_matrix *w, const sl_cu_product *p)
{
    const size_t shared = sizeof(tile_memory<KIND>);
    cudaFuncSetAttribute(tile_kernel<KIND>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                         (int)shared);
    launch(queue, tile_kernel<KIND>, dim3(div_up(w->n_rows, TILE), div_up(p->n, TILE)),
           dim3(THREADS), shared, *w, *p);
}

/* Blocks of as many warps and rows as leave none of the device's processors without one. */
template <int KIND>
static void launch_few(const sl_cu_queue *queue, const sl_cu_matrix *w, const sl_cu_product *p,
                       bool whole)
{
    const uint32_t processors = (uint32_t)queue->n_multiprocessors, even = w->n_rows / processors;
    const uint32_t per_block =
        p->stack || w->n_rows * div_up(p->n, FEW_ROWS) < 4 * processors ? 1 : FEW_ROWS;
    const uint32_t warps = even < 1 ? 1 : even > WARPS ? WARPS : even;
    launch(queue, whole ? few_kernel<KIND, true> : few_kernel<KIND, false>,
           dim3(div_up(w->n_rows, warps), div_up(p->n, per_block)), dim3(warps * WARP), 0, *w, *p,
           per_block);
}

template <int KIND>
static void launch_float(const sl_cu_queue *queue, const sl_cu_matrix *w, const sl_cu_product *p)
{
    enum { TILED_ROWS = 16, TILED_OUTPUTS = 16 };
    const bool whole = w->n_cols % SL_Q8_BLOCK == 0 && is_aligned(w->data, w->row_bytes) &&
                       w->stack_bytes % 16 == 0 &&
                       is_aligned(p->f32, p->f32_stride * sizeof(float));
    if (whole && !p->stack && p->n >= TILED_ROWS && w->n_rows >= TILED_OUTPUTS &&
        sizeof(tile_memory<KIND>) <= most_memory_of_block())
        launch_tiles<KIND>(queue, w, p);
    else
        launch_few<KIND>(queue, w, p, whole);
}

void sl_cu_float_product(const sl_cu_queue *queue, const sl_cu_matrix *w, const sl_cu_product *p)
{
    if (w->kind == SL_CU_F32)
        launch_float<SL_CU_F32>(queue, w, p);
    else if (w->kind == SL_CU_F16)
        launch_float<SL_CU_F16>(queue, w, p);
    else
        launch_float<SL_CU_BF16>(queue, w, p);
}
