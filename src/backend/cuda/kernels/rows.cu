/* Ops that treat each row by itself: norms, activations, sums. */
#include "backend/cuda/kernels/common.cuh"

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
