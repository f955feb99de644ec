/* The choice of experts, section 8, by a warp. */
#ifndef SL_BACKEND_CUDA_KERNELS_MOE_CUH
#define SL_BACKEND_CUDA_KERNELS_MOE_CUH

#include "backend/cuda/kernels/common.cuh"

/* The top_k of n <= 32 EACH logits, and their weights: expert lane + 32 j is in register j of a
 * lane. The lanes of the sum are those of the contract, the choices are made in order. False when a
 * logit is not finite: then weights are not numbers, and any experts are chosen. ids and weights
 * are in global or shared memory; each lane has written its part. */
template <int EACH>
static __device__ __forceinline__ bool choose_experts(const float *logits, uint32_t n,
                                                      uint32_t top_k, uint32_t *ids, float *weights)
{
    const float infinity = sl_float_of_bits(0x7F800000u);
    const uint32_t lane = threadIdx.x % WARP;
    float p[EACH], m = -infinity;
    bool all_finite = true;
#pragma unroll
    for (int j = 0; j < EACH; j++) {
        const uint32_t i = lane + WARP * j;
        p[j] = i < n ? logits[i] : -infinity;
    }
#pragma unroll
    for (int j = 0; j < EACH; j++) {
        all_finite = all_finite && (lane + WARP * j >= n || finite(p[j]));
        m = m < p[j] ? p[j] : m;
    }
    if (!__all_sync(0xFFFFFFFFu, all_finite)) {
        for (uint32_t i = lane; i < top_k; i += WARP) {
            ids[i] = i;
            weights[i] = sl_float_of_bits(0x7FC00000u);
        }
        return false;
    }
    for (int half = WARP / 2; half > 0; half /= 2) {
        const float other = __shfl_xor_sync(0xFFFFFFFFu, m, half);
        m = m < other ? other : m;
    }
    float sum = 0.0f;
#pragma unroll
    for (int j = 0; j < EACH; j++) {
        if (WARP * j >= n)
            continue;
        p[j] = lane + WARP * j < n ? sl_expf(p[j] - m) : 0.0f; /* absent ones add +0 */
        sum = sum + __shfl_sync(0xFFFFFFFFu, p[j], (int)(lane % SUM_LANES));
        sum = sum + __shfl_sync(0xFFFFFFFFu, p[j], (int)(lane % SUM_LANES + SUM_LANES));
    }
    sum = __shfl_sync(0xFFFFFFFFu, sum_tree(sum), 0);
    uint32_t key[EACH]; /* orders probabilities; 0 is taken or absent */
#pragma unroll
    for (int j = 0; j < EACH; j++)
        key[j] = lane + WARP * j < n ? sl_bits_of_float(p[j] / sum) + 1 : 0;
    float of_chosen = 0.0f;
    for (uint32_t slot = 0; slot < top_k; slot++) {
        uint32_t best = 0, at = 0xFFFFFFFFu;
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            at = key[j] > best ? lane + WARP * j : at;
            best = max(best, key[j]);
        }
        const uint32_t most = __reduce_max_sync(0xFFFFFFFFu, best);
        at = __reduce_min_sync(0xFFFFFFFFu, best == most ? at : 0xFFFFFFFFu);
#pragma unroll
        for (int j = 0; j < EACH; j++)
            key[j] = lane + WARP * j == at ? 0 : key[j];
        of_chosen = of_chosen + sl_float_of_bits(most - 1);
        if (lane == slot % WARP) {
            ids[slot] = at;
            weights[slot] = sl_float_of_bits(most - 1);
        }
    }
    of_chosen = of_chosen < 0x1p-14f ? 0x1p-14f : of_chosen;
    for (uint32_t slot = lane; slot < top_k; slot += WARP) /* what this lane has put there */
        weights[slot] = weights[slot] / of_chosen;
    return true;
}

#endif
