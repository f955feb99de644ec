/* Mixture of experts, section 8: the choice of experts and the sum of their results. */
#include "backend/cuda/kernels/common.cuh"

enum { ROUTE_THREADS = 32, COMBINE_THREADS = 256 };

/* Warp: one row. The lanes of the sum are lanes of the warp, the choices are made in order. */
static __global__ void route_kernel(const float *logits, uint32_t n, uint32_t top_k, float *scratch,
                                    uint32_t *ids, float *weights, uint32_t *flags, uint32_t mark)
{
    const uint32_t row = blockIdx.x, lane = threadIdx.x;
    const float *in = logits + (size_t)row * n;
    float *p = scratch + (size_t)row * n, *w = weights + (size_t)row * top_k;
    uint32_t *chosen = ids + (size_t)row * top_k;
    float m = in[0];
    bool finite = true;
    for (uint32_t i = lane; i < n; i += WARP) {
        finite = finite && fabsf(in[i]) < sl_float_of_bits(0x7F800000u);
        m = m < in[i] ? in[i] : m;
    }
    if (!__all_sync(0xFFFFFFFFu, finite)) {
        for (uint32_t i = lane; i < top_k; i += WARP) {
            chosen[i] = i;
            w[i] = sl_float_of_bits(0x7FC00000u);
        }
        if (lane == 0)
            atomicCAS(&flags[row], 0u, mark);
        return;
    }
    for (int half = WARP / 2; half > 0; half /= 2) {
        float other = __shfl_xor_sync(0xFFFFFFFFu, m, half);
        m = m < other ? other : m;
    }
    float sum = 0.0f;
    for (uint32_t i = lane; i < n; i += WARP)
        p[i] = sl_expf(in[i] - m);
    __syncwarp();
    for (uint32_t i = lane % SUM_LANES; i < n; i += SUM_LANES)
        sum = sum + p[i];
    sum = __shfl_sync(0xFFFFFFFFu, sum_tree(sum), 0);
    __syncwarp();
    for (uint32_t i = lane; i < n; i += WARP)
        p[i] = p[i] / sum;
    __syncwarp();
    float of_chosen = 0.0f;
    for (uint32_t slot = 0; slot < top_k; slot++) {
        float best = -2.0f;
        uint32_t at = n;
        for (uint32_t i = lane; i < n; i += WARP) {
            if (p[i] > best) {
                best = p[i];
                at = i;
            }
        }
        for (int half = WARP / 2; half > 0; half /= 2) {
            float other = __shfl_xor_sync(0xFFFFFFFFu, best, half);
            uint32_t other_at = __shfl_xor_sync(0xFFFFFFFFu, at, half);
            if (other > best || (other == best && other_at < at)) {
                best = other;
                at = other_at;
            }
        }
        of_chosen = of_chosen + best;
        if (lane == 0) {
            chosen[slot] = at;
            w[slot] = best;
            p[at] = -1.0f; /* below every probability: taken */
        }
        __syncwarp();
    }
    of_chosen = of_chosen < 0x1p-14f ? 0x1p-14f : of_chosen;
    for (uint32_t slot = lane; slot < top_k; slot += WARP)
        w[slot] = w[slot] / of_chosen;
}

void sl_cu_route(cudaStream_t stream, const float *logits, uint32_t n_rows, uint32_t n,
                 uint32_t top_k, float *scratch, uint32_t *ids, float *weights, uint32_t *flags,
                 uint32_t mark)
{
    route_kernel<<<n_rows, ROUTE_THREADS, 0, stream>>>(logits, n, top_k, scratch, ids, weights,
                                                       flags, mark);
}

static __global__ void combine_kernel(const float *down, const float *weights, uint32_t top_k,
                                      uint32_t n, float *y)
{
    const uint32_t row = blockIdx.y, k = blockIdx.x * blockDim.x + threadIdx.x;
    if (k >= n)
        return;
    float sum = 0.0f;
    for (uint32_t slot = 0; slot < top_k; slot++) {
        const size_t pair = (size_t)row * top_k + slot;
        sum = fmaf(weights[pair], down[pair * n + k], sum);
    }
    y[(size_t)row * n + k] = sum;
}

void sl_cu_combine(cudaStream_t stream, const float *down, const float *weights, uint32_t n_rows,
                   uint32_t top_k, uint32_t n, float *y)
{
    dim3 grid(div_up(n, COMBINE_THREADS), n_rows);
    combine_kernel<<<grid, COMBINE_THREADS, 0, stream>>>(down, weights, top_k, n, y);
}
