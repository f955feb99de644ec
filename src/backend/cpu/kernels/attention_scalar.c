/* Attention over a paged KV, section 7 of docs/EXACTNESS.md. Keys come in blocks at absolute
 * positions and every block is summed from zero before it is merged, so that blocks can be computed
 * anywhere and the result does not depend on where a sequence was cut. Slots that hold no key are
 * never read: what lies there may be anything. */
#include <assert.h>

#include "backend/cpu/kernels/scalar.h"

enum { DIM = SL_ATTN_DIM, BLOCK = SL_ATTN_BLOCK, PAGE = SL_KV_PAGE };

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

/* One query. */
SL_INLINE void attend(const sl_attend *block, const float *q, size_t n_keys, sl_softmax *out)
{
    float p[BLOCK];
    for (size_t j = 0; j < n_keys; j += PAGE)
        score_page(block->type, q, (const char *)block->pages[j / PAGE] + block->k_offset,
                   sl_min_size(n_keys - j, PAGE), p + j);
    float m = -INFINITY;
    for (size_t j = 0; j < n_keys; j++)
        m = larger(m, p[j]);
    m = m + 0.0f; /* which of two equal zeros came first does not show */

    float lanes[SL_SUM_LANES] = {0}, value[DIM];
    memset(out->o, 0, sizeof out->o);
    for (size_t j = 0; j < n_keys; j++) {
        p[j] = sl_expf(p[j] - m);
        lanes[j % SL_SUM_LANES] += p[j];
        load(block->type, (const char *)block->pages[j / PAGE] + block->v_offset, j % PAGE * DIM,
             DIM, value);
        for (size_t d = 0; d < DIM; d++)
            out->o[d] = fmaf(p[j], value[d], out->o[d]);
    }
    out->m = m;
    out->l = sl_sum_tree(lanes);
}

SL_SCALAR_CLONES
void sl_attend_block_scalar(const sl_attend *block, sl_softmax *out)
{
    for (size_t i = 0; i < block->n; i++)
        attend(block, block->q + i * SL_ATTN_STRIDE, block->n_keys[i], &out[i]);
}

SL_SCALAR_CLONES
void sl_softmax_merge_scalar(sl_softmax *all, const sl_softmax *block)
{
    const float m = larger(all->m, block->m);
    const float x = sl_expf(all->m - m), y = sl_expf(block->m - m);
    all->m = m;
    all->l = fmaf(all->l, x, block->l * y);
    for (size_t d = 0; d < DIM; d++)
        all->o[d] = fmaf(all->o[d], x, block->o[d] * y);
}

SL_SCALAR_CLONES
void sl_softmax_finish_scalar(const sl_softmax *all, const float *gate, float *o)
{
    for (size_t d = 0; d < DIM; d++)
        o[d] = all->o[d] / all->l;
    sl_mul_sigmoid_scalar(gate, DIM, o);
}

void sl_attention_scalar(sl_kv_type type, const float *q, void *const *pages, size_t k_offset,
                         size_t v_offset, size_t n_keys, float *o)
{
    assert(n_keys > 0);
    sl_softmax all, block;
    for (size_t j = 0; j < n_keys; j += BLOCK) {
        const uint16_t n = (uint16_t)sl_min_size(n_keys - j, BLOCK);
        const sl_attend attended = {.type = type,
                                    .pages = pages + j / PAGE,
                                    .k_offset = k_offset,
                                    .v_offset = v_offset,
                                    .n = 1,
                                    .q = q,
                                    .n_keys = &n};
        sl_attend_block_scalar(&attended, j == 0 ? &all : &block);
        if (j > 0)
            sl_softmax_merge_scalar(&all, &block);
    }
    for (size_t d = 0; d < DIM; d++)
        o[d] = all.o[d] / all.l;
}

void sl_kv_store_scalar(const sl_kv_rows *rows)
{
    assert(rows->slot < PAGE && rows->n <= PAGE - rows->slot);
    for (size_t i = 0; i < rows->n; i++) {
        const size_t slot = rows->slot + i;
        for (size_t d = 0; d < DIM; d++) {
            store(rows->type, rows->k[i * rows->k_stride + d], rows->k_page, d * PAGE + slot);
            store(rows->type, rows->v[i * rows->v_stride + d], rows->v_page, slot * DIM + d);
        }
    }
}
