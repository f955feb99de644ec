/* Ops that treat each row by itself: norms, activations, sums. */
#include "backend/cuda/kernels/scale_place.cuh"

enum { ROW_THREADS = 256, NORM_THREADS = 512 };

/* Block: one row. All loads of a batch are under way before the first is used. */
static __global__ void __launch_bounds__(NORM_THREADS)
    norm_kernel(float *x, const float *add, const float *w, uint32_t n, float eps, float *y,
                uint32_t y_stride, sl_cu_q8 yq, uint32_t *flags, uint32_t mark)
{
    enum { BATCH = 4 };
    extern __shared__ float shared[];
    __shared__ float r;
    const uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    enum { AHEAD = 2, WARPS = NORM_THREADS / WARP };
    float weight[AHEAD];
#pragma unroll
    for (uint32_t j = 0; j < AHEAD; j++) {
        const uint32_t k = (warp + j * WARPS) * SL_Q8_BLOCK + lane;
        weight[j] = k < n ? w[k] : 0.0f;
    }
    wait_for_previous();
    float *in = x + (size_t)blockIdx.x * n;
    const float *plus = add ? add + (size_t)blockIdx.x * n : NULL;
    bool fault = false;
    for (uint32_t base = threadIdx.x; base < n; base += BATCH * NORM_THREADS) {
        float value[BATCH], more[BATCH];
#pragma unroll
        for (uint32_t j = 0; j < BATCH; j++) {
            const uint32_t k = base + j * NORM_THREADS;
            value[j] = k < n ? in[k] : 0.0f;
            more[j] = plus && k < n ? plus[k] : 0.0f;
        }
#pragma unroll
        for (uint32_t j = 0; j < BATCH; j++) {
            const uint32_t k = base + j * NORM_THREADS;
            if (k >= n)
                continue;
            if (plus) {
                value[j] = value[j] + more[j];
                fault = fault || !finite(value[j]);
                in[k] = value[j];
            }
            shared[k] = value[j];
        }
    }
    if (__syncthreads_or(fault) && threadIdx.x == 0)
        atomicCAS(&flags[blockIdx.x], 0u, mark);
    if (threadIdx.x < WARP) {
        const float sum = sum_squares(shared, n);
        if (threadIdx.x == 0)
            r = 1.0f / sqrtf(sum / (float)n + eps);
    }
    __syncthreads();
    for (uint32_t b = warp; b * SL_Q8_BLOCK < n; b += WARPS) {
        const uint32_t k = b * SL_Q8_BLOCK + lane;
        const float by = b < WARPS ? weight[0] : b < 2 * WARPS ? weight[1] : k < n ? w[k] : 0.0f;
        const float value = k < n ? (shared[k] * r) * by : 0.0f;
        if (y && k < n)
            y[(size_t)blockIdx.x * y_stride + k] = value;
        if (yq.q) {
            const size_t at = (size_t)blockIdx.x * yq.n_blocks + b;
            quantise_block(value, yq.q + at * SL_Q8_BLOCK, yq.d + at, yq.sums + 2 * at);
        }
    }
}

void sl_cu_norm(const sl_cu_queue *queue, float *x, const float *add, const float *w,
                uint32_t n_rows, uint32_t n, float eps, float *y, uint32_t y_stride, sl_cu_q8 yq,
                uint32_t *flags, uint32_t mark)
{
    launch(queue, norm_kernel, dim3(n_rows), dim3(NORM_THREADS), n * sizeof(float), x, add, w, n,
           eps, y, y_stride, yq, flags, mark);
}

/* ---- norms of many rows ---- */

enum { NORM_ROWS = 4 /* of a block at a time, one a warp */ };

/* Values in shared memory: blocks of 32 that lanes can read one each, 16 bytes at a time. */
enum { PADDED_BLOCK = SL_Q8_BLOCK + 4 };

static __device__ __forceinline__ float4 *padded(float *values, uint32_t k)
{
    return (float4 *)(values + k / SL_Q8_BLOCK * PADDED_BLOCK + k % SL_Q8_BLOCK);
}

/* The sum of squares of sum_squares, of padded values. */
static __device__ __forceinline__ float sum_padded_squares(const float *values, uint32_t n,
                                                           uint32_t lane)
{
    enum { BLOCKS = 8 };
    float sum = 0.0f;
    const float *at = values + lane % SUM_LANES;
#pragma unroll 1
    for (uint32_t k = 0; k < n; k += BLOCKS * SL_Q8_BLOCK) {
        float value[2 * BLOCKS];
#pragma unroll
        for (uint32_t j = 0; j < 2 * BLOCKS; j++)
            value[j] = k + j * SUM_LANES < n ? at[j / 2 * PADDED_BLOCK + j % 2 * SUM_LANES] : 0.0f;
#pragma unroll
        for (uint32_t j = 0; j < 2 * BLOCKS; j++)
            sum = fmaf(value[j], value[j], sum);
        at += BLOCKS * PADDED_BLOCK;
    }
    return sum_tree(sum);
}

/* Warp: one row at a time, whose length is a multiple of 128. The same operations as above. */
static __global__ void __launch_bounds__(NORM_ROWS *WARP, 5)
    norm_rows_kernel(const float *x, const float *w, uint32_t n_rows, uint32_t n, float eps,
                     float *y, uint32_t y_stride, sl_cu_q8 yq, float *scales)
{
    enum { AHEAD = 8, STEP = 4 * WARP };
    extern __shared__ float4 rows[];
    const uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const uint32_t n_padded = n / SL_Q8_BLOCK * PADDED_BLOCK;
    float *const weights = (float *)rows, *const values = weights + (1 + warp) * n_padded;
    for (uint32_t k = 4 * threadIdx.x; k < n; k += 4 * NORM_ROWS * WARP)
        *padded(weights, k) = *(const float4 *)(w + k);
    __syncthreads();
    wait_for_previous();
    for (uint32_t row = blockIdx.x * NORM_ROWS + warp; row < n_rows; row += gridDim.x * NORM_ROWS) {
        const float *in = x + (size_t)row * n;
        for (uint32_t k = 4 * lane; k < n; k += AHEAD * STEP) {
            float4 four[AHEAD];
#pragma unroll
            for (uint32_t j = 0; j < AHEAD; j++) {
                if (k + j * STEP < n)
                    four[j] = *(const float4 *)(in + k + j * STEP);
            }
#pragma unroll
            for (uint32_t j = 0; j < AHEAD; j++) {
                if (k + j * STEP < n)
                    *padded(values, k + j * STEP) = four[j];
            }
        }
        __syncwarp();
        const float sum = __shfl_sync(0xFFFFFFFFu, sum_padded_squares(values, n, lane), 0);
        const float r = 1.0f / sqrtf(sum / (float)n + eps);
        for (uint32_t b = lane; b < n / SL_Q8_BLOCK; b += WARP) {
            float4 *const block = padded(values, b * SL_Q8_BLOCK);
            const float4 *const by = padded(weights, b * SL_Q8_BLOCK);
#pragma unroll
            for (int i = 0; i < SL_Q8_BLOCK / 4; i++)
                block[i] = make_float4((block[i].x * r) * by[i].x, (block[i].y * r) * by[i].y,
                                       (block[i].z * r) * by[i].z, (block[i].w * r) * by[i].w);
            const size_t at = (size_t)row * yq.n_blocks + b;
            const float d =
                quantise_values(block, yq.q + at * SL_Q8_BLOCK, yq.d + at, yq.sums + 2 * at);
            if (scales)
                scales[scale_place(yq.n_blocks, row, b)] = d;
        }
        __syncwarp();
        for (uint32_t k = 4 * lane; y && k < n; k += STEP)
            *(float4 *)(y + (size_t)row * y_stride + k) = *padded(values, k);
        __syncwarp();
    }
}

static size_t norm_rows_bytes(uint32_t n)
{
    return (size_t)(1 + NORM_ROWS) * (n / SL_Q8_BLOCK) * PADDED_BLOCK * sizeof(float);
}

int sl_cu_norm_many_fits(uint32_t n)
{
    const size_t most = 48 * 1024; /* what a block may have without asking */
    return n % (4 * WARP) == 0 && n <= most && norm_rows_bytes(n) <= most;
}

void sl_cu_norm_many(const sl_cu_queue *queue, const float *x, const float *w, uint32_t n_rows,
                     uint32_t n, float eps, float *y, uint32_t y_stride, sl_cu_q8 yq, float *scales)
{
    enum { ROWS_OF_PROCESSOR = 2048 / WARP };
    const uint32_t most = (uint32_t)queue->n_multiprocessors * ROWS_OF_PROCESSOR / NORM_ROWS;
    const uint32_t blocks = div_up(n_rows, NORM_ROWS);
    launch(queue, norm_rows_kernel, dim3(blocks < most ? blocks : most), dim3(NORM_ROWS * WARP),
           norm_rows_bytes(n), x, w, n_rows, n, eps, y, y_stride, yq, scales);
}

static __global__ void quantise_kernel(const float *x, uint32_t n, sl_cu_q8 q)
{
    quantise_row(x + (size_t)blockIdx.x * n, n, q, blockIdx.x);
}

void sl_cu_quantise(cudaStream_t stream, const float *x, uint32_t n_rows, uint32_t n, sl_cu_q8 q)
{
    quantise_kernel<<<n_rows, ROW_THREADS, 0, stream>>>(x, n, q);
}

/* One warp a block of 32 columns. The last block may be short. */
static __global__ void swiglu_kernel(const float *gate, const float *up, uint32_t n,
                                     uint32_t n_blocks, float *y, sl_cu_q8 yq)
{
    uint32_t b = (blockIdx.x * blockDim.x + threadIdx.x) / WARP;
    if (b >= n_blocks)
        return;
    uint32_t row = blockIdx.y, k = b * SL_Q8_BLOCK + (threadIdx.x & (WARP - 1));
    size_t at = (size_t)row * n + k;
    float value = 0.0f;
    if (k < n) {
        value = sl_silu(gate[at]) * up[at];
        y[at] = value;
    }
    if (yq.q) {
        size_t block = (size_t)row * n_blocks + b;
        quantise_block(value, yq.q + block * SL_Q8_BLOCK, yq.d + block, yq.sums + 2 * block);
    }
}

void sl_cu_swiglu(cudaStream_t stream, const float *gate, const float *up, uint32_t n_rows,
                  uint32_t n, float *y, sl_cu_q8 yq)
{
    uint32_t n_blocks = div_up(n, SL_Q8_BLOCK);
    dim3 grid(div_up(n_blocks * WARP, ROW_THREADS), n_rows);
    swiglu_kernel<<<grid, ROW_THREADS, 0, stream>>>(gate, up, n, n_blocks, y, yq);
}

static __global__ void add_kernel(float *x, const float *y, uint32_t n, uint32_t *flags,
                                  uint32_t mark)
{
    bool fault = false;
    size_t row = (size_t)blockIdx.y * n;
    uint32_t k = blockIdx.x * blockDim.x + threadIdx.x;
    if (k < n) {
        float sum = x[row + k] + y[row + k];
        x[row + k] = sum;
        fault = !finite(sum);
    }
    if (__syncthreads_or(fault) && threadIdx.x == 0)
        atomicCAS(&flags[blockIdx.y], 0u, mark);
}

void sl_cu_add(cudaStream_t stream, float *x, const float *y, uint32_t n_rows, uint32_t n,
               uint32_t *flags, uint32_t mark)
{
    dim3 grid(div_up(n, ROW_THREADS), n_rows);
    add_kernel<<<grid, ROW_THREADS, 0, stream>>>(x, y, n, flags, mark);
}

static __global__ void add_gated_kernel(float *x, const float *gate, const float *y, uint32_t n)
{
    float factor = 1.0f * sl_sigmoid(gate[blockIdx.y]);
    size_t row = (size_t)blockIdx.y * n;
    uint32_t k = blockIdx.x * blockDim.x + threadIdx.x;
    if (k < n)
        x[row + k] = x[row + k] + factor * y[row + k];
}

void sl_cu_add_gated(cudaStream_t stream, float *x, const float *gate, const float *y,
                     uint32_t n_rows, uint32_t n)
{
    dim3 grid(div_up(n, ROW_THREADS), n_rows);
    add_gated_kernel<<<grid, ROW_THREADS, 0, stream>>>(x, gate, y, n);
}
