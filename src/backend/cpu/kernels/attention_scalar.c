/* Attention of one query head over a paged KV, section 7 of docs/EXACTNESS.md. Keys come in blocks
 * at absolute positions and every block is summed from zero before it is merged, so that blocks can
 * be computed anywhere and the result does not depend on where a sequence was cut. Slots that hold
 * no key are never read: what lies there may be anything. */
#include <assert.h>

#include "backend/cpu/kernels/scalar.h"

enum { DIM = SL_ATTN_DIM, BLOCK = SL_ATTN_BLOCK, PAGE = SL_KV_PAGE };

/* The softmax over some keys: largest score, sum of weights, weighted sum of values. */
typedef struct softmax {
    float m, l;
    float o[DIM];
} softmax;

SL_INLINE void load(sl_kv_type type, const void *page, size_t first, size_t n, float *out)
{
    if (type == SL_KV_F32) {
        memcpy(out, (const float *)page + first, n * sizeof *out);
        return;
    }
    const uint16_t *halves = (const uint16_t *)page + first;
    for (size_t i = 0; i < n; i++)
        out[i] = sl_half_value(halves[i]);
}

SL_INLINE void store(sl_kv_type type, float x, void *page, size_t at)
{
    if (type == SL_KV_F32)
        ((float *)page)[at] = x;
    else
        ((uint16_t *)page)[at] = sl_f32_to_f16(x);
}

SL_INLINE float larger(float a, float b)
{
    return a < b ? b : a;
}

/* scores[n] of the first n keys of a page; every key's sum runs over the dimensions in order. */
SL_INLINE void score_page(sl_kv_type type, const float *q, const void *k_page, size_t n,
                          float *scores)
{
    float keys[PAGE];
    for (size_t j = 0; j < n; j++)
        scores[j] = 0.0f;
    for (size_t d = 0; d < DIM; d++) {
        load(type, k_page, d * PAGE, n, keys);
        for (size_t j = 0; j < n; j++)
            scores[j] = fmaf(q[d], keys[j], scores[j]);
    }
    for (size_t j = 0; j < n; j++)
        scores[j] = scores[j] * 0.0625f; /* 1 / sqrt(DIM) */
}

/* One block of n keys, from its own pages. */
SL_INLINE void attend_block(sl_kv_type type, const float *q, void *const *pages, size_t k_offset,
                            size_t v_offset, size_t n, softmax *block)
{
    float p[BLOCK];
    for (size_t j = 0; j < n; j += PAGE)
        score_page(type, q, (const char *)pages[j / PAGE] + k_offset, sl_min_size(n - j, PAGE),
                   p + j);
    block->m = -INFINITY;
    for (size_t j = 0; j < n; j++)
        block->m = larger(block->m, p[j]);

    float lanes[SL_SUM_LANES] = {0}, value[DIM];
    memset(block->o, 0, sizeof block->o);
    for (size_t j = 0; j < n; j++) {
        p[j] = sl_expf(p[j] - block->m);
        lanes[j % SL_SUM_LANES] += p[j];
        load(type, (const char *)pages[j / PAGE] + v_offset, j % PAGE * DIM, DIM, value);
        for (size_t d = 0; d < DIM; d++)
            block->o[d] = fmaf(p[j], value[d], block->o[d]);
    }
    block->l = sl_sum_tree(lanes);
}

SL_INLINE void merge(softmax *all, const softmax *block)
{
    const float m = larger(all->m, block->m);
    const float x = sl_expf(all->m - m), y = sl_expf(block->m - m);
    all->m = m;
    all->l = fmaf(all->l, x, block->l * y);
    for (size_t d = 0; d < DIM; d++)
        all->o[d] = fmaf(all->o[d], x, block->o[d] * y);
}

SL_SCALAR_CLONES
void sl_attention_scalar(sl_kv_type type, const float *q, void *const *pages, size_t k_offset,
                         size_t v_offset, size_t n_keys, float *o)
{
    assert(n_keys > 0);
    softmax all, block;
    attend_block(type, q, pages, k_offset, v_offset, sl_min_size(n_keys, BLOCK), &all);
    for (size_t j = BLOCK; j < n_keys; j += BLOCK) {
        attend_block(type, q, pages + j / PAGE, k_offset, v_offset, sl_min_size(n_keys - j, BLOCK),
                     &block);
        merge(&all, &block);
    }
    for (size_t d = 0; d < DIM; d++)
        o[d] = all.o[d] / all.l;
}

void sl_kv_store_scalar(sl_kv_type type, const float *k, const float *v, size_t slot, void *k_page,
                        void *v_page)
{
    assert(slot < PAGE);
    for (size_t d = 0; d < DIM; d++) {
        store(type, k[d], k_page, d * PAGE + slot);
        store(type, v[d], v_page, slot * DIM + d);
    }
}
