/* The choice of experts, section 8 of docs/EXACTNESS.md: softmax over all of them, the top_k
 * largest probabilities, their weights scaled to sum to one. It refuses router logits that are not
 * finite, which would otherwise pick experts at random. */
#include <assert.h>

#include "backend/cpu/kernels/scalar.h"

/* p[n] = softmax(logits); false when a logit is not finite. */
SL_INLINE bool softmax(const float *logits, size_t n, float *p)
{
    float m = logits[0];
    for (size_t i = 0; i < n; i++) {
        if (!(fabsf(logits[i]) < INFINITY))
            return false;
        m = m < logits[i] ? logits[i] : m;
    }
    float lanes[SL_SUM_LANES] = {0};
    for (size_t i = 0; i < n; i++) {
        p[i] = sl_expf(logits[i] - m);
        lanes[i % SL_SUM_LANES] += p[i];
    }
    const float sum = sl_sum_tree(lanes);
    for (size_t i = 0; i < n; i++)
        p[i] = p[i] / sum;
    return true;
}

SL_SCALAR_CLONES
bool sl_route_scalar(const float *logits, size_t n, size_t top_k, float *scratch, uint32_t *ids,
                     float *weights)
{
    assert(top_k > 0 && top_k <= n);
    float *p = scratch;
    if (!softmax(logits, n, p))
        return false;

    float sum = 0.0f;
    for (size_t chosen = 0; chosen < top_k; chosen++) {
        size_t best = 0;
        for (size_t i = 1; i < n; i++) {
            if (p[i] > p[best])
                best = i;
        }
        ids[chosen] = (uint32_t)best;
        weights[chosen] = p[best];
        sum = sum + p[best];
        p[best] = -1.0f; /* below every probability: taken */
    }
    sum = sum < 0x1p-14f ? 0x1p-14f : sum;
    for (size_t chosen = 0; chosen < top_k; chosen++)
        weights[chosen] = weights[chosen] / sum;
    return true;
}
