/* Attention over a paged KV, section 7 of docs/EXACTNESS.md, for many queries at once. Included by
 * level files.
 *
 * Scores and weighted values are the same product: c[row][column] = sum over k ascending of
 * a[row][k] * b[k][column], where b is the keys [dim][key] or the values [key][dim] as pages hold
 * them. A tile of c stays in registers, so that a converted vector of b serves all its rows. Few
 * queries (decode) read pages in place; for many (prefill) a panel of b is converted once and used
 * by all tiles.
 *
 * What will be read next is fetched along the way, a line with every step of a tile: values while
 * scores are computed, the keys of the next block while values are added up.
 *
 * Lanes beyond the last key hold anything in scores and are cut off before they count; rows of
 * values that a query does not see never enter its sum. */
#ifndef SL_BACKEND_CPU_KERNELS_LANES_ATTENTION_H
#define SL_BACKEND_CPU_KERNELS_LANES_ATTENTION_H

#include <assert.h>
#include <math.h>
#include <string.h>

#include "backend/cpu/kernels/kernels.h"
#include "backend/cpu/kernels/lanes.h"
#include "backend/cpu/kernels/math.h"

enum {
    ATTN_VECTORS = LANE_REGISTERS >= 32 ? 2 : 1, /* of a tile's width */
    ATTN_WIDTH = ATTN_VECTORS * LANES,
    ATTN_FEW = 6,                                     /* rows that every level has tiles for */
    ATTN_ROWS = LANE_REGISTERS >= 32 ? 12 : ATTN_FEW, /* most rows of a tile */
    ATTN_PAGE_BYTES = SL_KV_PAGE * SL_ATTN_DIM * 2,   /* of keys or values, as halves */
    ATTN_STEP_BYTES = ATTN_WIDTH * 2
};

/* ---- tiles ---- */

/* c[r][ATTN_WIDTH] = c + sum over k < n of a[r][k] * b[k][ATTN_WIDTH], or the sum from zero if
 * fresh; rows of a and c lie at SL_ATTN_STRIDE. */
typedef struct attn_product {
    const float *a;
    const void *b; /* halves or floats */
    size_t b_stride, n;
    const char *ahead; /* fetched, with ahead_step bytes per step */
    size_t ahead_step;
    bool fresh;
    float *c;
} attn_product;

SL_INLINE vf attn_load(bool half, const void *b, size_t at)
{
    return half ? v_load_half((const uint16_t *)b + at) : v_load((const float *)b + at);
}

/* rows and half are constants wherever this is used. */
SL_INLINE void attn_tile(size_t rows, bool half, const attn_product *p)
{
    vf sum[ATTN_ROWS][ATTN_VECTORS];
    const float *a = p->a;
#pragma GCC unroll 16
    for (size_t r = 0; r < rows; r++) {
#pragma GCC unroll 2
        for (size_t v = 0; v < ATTN_VECTORS; v++)
            sum[r][v] = v_zero();
    }
    if (!p->fresh) {
#pragma GCC unroll 16
        for (size_t r = 0; r < rows; r++) {
#pragma GCC unroll 2
            for (size_t v = 0; v < ATTN_VECTORS; v++)
                sum[r][v] = v_load(p->c + r * SL_ATTN_STRIDE + v * LANES);
        }
    }
    for (size_t k = 0; k < p->n; k++) {
        vf b[ATTN_VECTORS];
#pragma GCC unroll 2
        for (size_t v = 0; v < ATTN_VECTORS; v++)
            b[v] = attn_load(half, p->b, k * p->b_stride + v * LANES);
        __builtin_prefetch(p->ahead + k * p->ahead_step, 0, 2);
#pragma GCC unroll 16
        for (size_t r = 0; r < rows; r++) {
            const vf x = v_set(a[r * SL_ATTN_STRIDE + k]);
#pragma GCC unroll 2
            for (size_t v = 0; v < ATTN_VECTORS; v++)
                sum[r][v] = v_fma(x, b[v], sum[r][v]);
        }
    }
#pragma GCC unroll 16
    for (size_t r = 0; r < rows; r++) {
#pragma GCC unroll 2
        for (size_t v = 0; v < ATTN_VECTORS; v++)
            v_store(p->c + r * SL_ATTN_STRIDE + v * LANES, sum[r][v]);
    }
}

/* clang-format off */
SL_INLINE void attn_tile_of(size_t rows, bool half, const attn_product *p)
{
    switch (rows) {
    case 1: attn_tile(1, half, p); return;
    case 2: attn_tile(2, half, p); return;
    case 3: attn_tile(3, half, p); return;
    case 4: attn_tile(4, half, p); return;
    case 5: attn_tile(5, half, p); return;
    case 6: attn_tile(6, half, p); return;
    }
    if (ATTN_ROWS > ATTN_FEW) {
        switch (rows) {
        case 7: attn_tile(7, half, p); return;
        case 8: attn_tile(8, half, p); return;
        case 9: attn_tile(9, half, p); return;
        case 10: attn_tile(10, half, p); return;
        case 11: attn_tile(11, half, p); return;
        case 12: attn_tile(12, half, p); return;
        }
    }
    assert(false && "no tile has so many rows");
}
/* clang-format on */

static void attn_halves(size_t rows, const attn_product *p)
{
    attn_tile_of(rows, true, p);
}

static void attn_floats(size_t rows, const attn_product *p)
{
    attn_tile_of(rows, false, p);
}

static void attn_multiply(sl_kv_type type, size_t rows, const attn_product *p)
{
    if (type == SL_KV_F16)
        attn_halves(rows, p);
    else
        attn_floats(rows, p);
}

/* ---- what pages hold ---- */

SL_INLINE const char *attn_keys(const sl_attend *block, size_t page)
{
    return (const char *)block->pages[page] + block->k_offset;
}

SL_INLINE const char *attn_values(const sl_attend *block, size_t page)
{
    return (const char *)block->pages[page] + block->v_offset;
}

SL_INLINE const void *attn_at(sl_kv_type type, const char *elements, size_t i)
{
    return elements + i * (type == SL_KV_F16 ? sizeof(uint16_t) : sizeof(float));
}

/* Lets a product fetch the part of the next pages that belongs to its place in the sequence of a
 * block's products: values, or the next block's keys, `done` bytes from their beginning. Without
 * such a page it fetches what it has. */
SL_INLINE void attn_fetch(const sl_attend *block, bool values, size_t n_keys, size_t done,
                          attn_product *p)
{
    const size_t page = done / ATTN_PAGE_BYTES, at = done % ATTN_PAGE_BYTES;
    p->ahead = (const char *)p->b;
    p->ahead_step = 0;
    if (block->type != SL_KV_F16)
        return;
    if (values && page * SL_KV_PAGE < n_keys)
        p->ahead = attn_values(block, page) + at;
    else if (!values && page < block->n_more)
        p->ahead = attn_keys(block, SL_ATTN_BLOCK / SL_KV_PAGE + page) + at;
    else
        return;
    p->ahead_step = ATTN_STEP_BYTES;
}

/* n rows of ATTN_WIDTH elements as floats. */
static void attn_convert(sl_kv_type type, const void *from, size_t stride, size_t n, float *to)
{
    const bool half = type == SL_KV_F16;
    for (size_t i = 0; i < n; i++) {
        for (size_t v = 0; v < ATTN_WIDTH; v += LANES)
            v_store(to + i * ATTN_WIDTH + v, attn_load(half, from, i * stride + v));
    }
}

/* ---- weights ---- */

SL_INLINE float attn_larger(float a, float b)
{
    return a < b ? b : a;
}

/* Scores of a query become weights: p = exp(s / 16 - m). */
static void attn_weigh(float *s, size_t n, sl_softmax *out)
{
    /* Lanes behind the last key: no largest score, weight zero (NaN if all weights are). */
    for (size_t j = n; j % LANES != 0; j++)
        s[j] = -INFINITY;
    vf most = v_set(-INFINITY);
    for (size_t j = 0; j < n; j += LANES) {
        const vf x = v_mul(v_load(s + j), v_set(0.0625f));
        most = v_larger(most, x);
        v_store(s + j, x);
    }
    float lanes[LANES];
    v_store(lanes, most);
    for (size_t half = LANES / 2; half > 0; half /= 2) {
        for (size_t l = 0; l < half; l++)
            lanes[l] = attn_larger(lanes[l], lanes[l + half]);
    }
    out->m = lanes[0] + 0.0f;

    const vf m = v_set(out->m);
    vf sum = v_zero();
    for (size_t j = 0; j < n; j += LANES) {
        const vf p = v_expf(v_sub(v_load(s + j), m));
        sum = v_add(sum, p);
        v_store(s + j, p);
    }
    out->l = v_sum_tree(sum);
}

/* ---- few queries: pages in place ---- */

static void attn_score_pages(const sl_attend *block, size_t most, float *scores)
{
    for (size_t j = 0; j < most; j += ATTN_WIDTH) {
        attn_product p = {
            .a = block->q,
            .b = attn_at(block->type, attn_keys(block, j / SL_KV_PAGE), j % SL_KV_PAGE),
            .b_stride = SL_KV_PAGE,
            .n = SL_ATTN_DIM,
            .fresh = true,
            .c = scores + j};
        attn_fetch(block, true, most, j * SL_ATTN_DIM * 2, &p);
        attn_multiply(block->type, block->n, &p);
    }
}

/* Adds the values of the keys begin .. end - 1 to the sums of `rows` queries. */
static void attn_add_pages(const sl_attend *block, size_t rows, const float *weights, size_t begin,
                           size_t end, sl_softmax *out)
{
    for (size_t j = begin; j < end;) {
        const size_t first = j % SL_KV_PAGE;
        const size_t n = sl_min_size(SL_KV_PAGE - first, end - j);
        const char *values = attn_values(block, j / SL_KV_PAGE);
        for (size_t d = 0; d < SL_ATTN_DIM; d += ATTN_WIDTH) {
            attn_product p = {.a = weights + j,
                              .b = attn_at(block->type, values, first * SL_ATTN_DIM + d),
                              .b_stride = SL_ATTN_DIM,
                              .n = n,
                              .fresh = j == 0,
                              .c = out->o + d};
            attn_fetch(block, false, 0, (j - first) * SL_ATTN_DIM * 2 + d * SL_KV_PAGE * 2, &p);
            attn_multiply(block->type, rows, &p);
        }
        j += n;
    }
}

/* ---- many queries: panels of floats ---- */

/* The keys that the rows of a tile see: all of them, and any of them. */
typedef struct attn_seen {
    size_t least, most;
} attn_seen;

SL_INLINE attn_seen attn_seen_by(const uint16_t *n_keys, size_t rows)
{
    attn_seen seen = {.least = SL_ATTN_BLOCK};
    for (size_t r = 0; r < rows; r++) {
        seen.least = sl_min_size(seen.least, n_keys[r]);
        seen.most = sl_max_size(seen.most, n_keys[r]);
    }
    return seen;
}

static void attn_score_panels(const sl_attend *block, size_t most, float *scores, float *panel)
{
    for (size_t j = 0; j < most; j += ATTN_WIDTH) {
        attn_convert(block->type,
                     attn_at(block->type, attn_keys(block, j / SL_KV_PAGE), j % SL_KV_PAGE),
                     SL_KV_PAGE, SL_ATTN_DIM, panel);
        attn_product p = {.b = panel, .b_stride = ATTN_WIDTH, .n = SL_ATTN_DIM, .fresh = true};
        attn_fetch(block, true, most, j * SL_ATTN_DIM * 2, &p);
        for (size_t r = 0; r < block->n; r += ATTN_ROWS) {
            const size_t rows = sl_min_size(ATTN_ROWS, block->n - r);
            if (attn_seen_by(block->n_keys + r, rows).most <= j)
                continue;
            p.a = block->q + r * SL_ATTN_STRIDE;
            p.c = scores + r * SL_ATTN_STRIDE + j;
            attn_floats(rows, &p);
            p.ahead_step = 0;
        }
    }
}

/* Adds up the panel's values, which begin at dimension d: first what all rows of a tile see, then
 * each row's rest. */
static void attn_add_panel(const sl_attend *block, const float *weights, const float *panel,
                           size_t d, sl_softmax *out)
{
    attn_product p = {.b = panel, .b_stride = ATTN_WIDTH};
    attn_fetch(block, false, 0, d * SL_ATTN_BLOCK * 2, &p);
    for (size_t r = 0; r < block->n; r += ATTN_ROWS) {
        const size_t rows = sl_min_size(ATTN_ROWS, block->n - r);
        const size_t least = attn_seen_by(block->n_keys + r, rows).least;
        p.a = weights + r * SL_ATTN_STRIDE;
        p.n = least;
        p.c = out[r].o + d;
        p.fresh = true;
        attn_floats(rows, &p);
        p.ahead_step = 0;
        p.fresh = false;
        for (size_t i = r; i < r + rows; i++) {
            attn_product rest = p;
            rest.a = weights + i * SL_ATTN_STRIDE + least;
            rest.b = panel + least * ATTN_WIDTH;
            rest.n = block->n_keys[i] - least;
            rest.c = out[i].o + d;
            if (rest.n > 0)
                attn_floats(1, &rest);
        }
    }
}

static void attn_add_panels(const sl_attend *block, size_t most, const float *weights, float *panel,
                            sl_softmax *out)
{
    for (size_t d = 0; d < SL_ATTN_DIM; d += ATTN_WIDTH) {
        for (size_t j = 0; j < most; j += SL_KV_PAGE)
            attn_convert(block->type, attn_at(block->type, attn_values(block, j / SL_KV_PAGE), d),
                         SL_ATTN_DIM, sl_min_size(SL_KV_PAGE, most - j), panel + j * ATTN_WIDTH);
        attn_add_panel(block, weights, panel, d, out);
    }
}

/* ---- kernels ---- */

static void attend_block(const sl_attend *block, sl_softmax *out)
{
    const attn_seen seen = attn_seen_by(block->n_keys, block->n);
    const bool few = block->n <= ATTN_ROWS;
    float *scores = block->scratch, *panel = block->scratch + block->n * SL_ATTN_STRIDE;
    if (few)
        attn_score_pages(block, seen.most, scores);
    else
        attn_score_panels(block, seen.most, scores, panel);
    for (size_t i = 0; i < block->n; i++)
        attn_weigh(scores + i * SL_ATTN_STRIDE, block->n_keys[i], &out[i]);
    if (!few) {
        attn_add_panels(block, seen.most, scores, panel, out);
        return;
    }
    attn_add_pages(block, block->n, scores, 0, seen.least, out);
    for (size_t i = 0; i < block->n; i++)
        attn_add_pages(block, 1, scores + i * SL_ATTN_STRIDE, seen.least, block->n_keys[i],
                       &out[i]);
}

static void softmax_merge(sl_softmax *all, const sl_softmax *block)
{
    const float m = attn_larger(all->m, block->m);
    const float x = sl_expf(all->m - m), y = sl_expf(block->m - m);
    all->m = m;
    all->l = fmaf(all->l, x, block->l * y);
    for (size_t d = 0; d < SL_ATTN_DIM; d += LANES)
        v_store(all->o + d,
                v_fma(v_load(all->o + d), v_set(x), v_mul(v_load(block->o + d), v_set(y))));
}

static void softmax_finish(const sl_softmax *all, const float *gate, float *o)
{
    const vf l = v_set(all->l);
    for (size_t d = 0; d < SL_ATTN_DIM; d += LANES)
        v_store(o + d, v_mul(v_div(v_load(all->o + d), l), v_sigmoid(v_load(gate + d))));
}

/* At most this many positions are turned over at a time. */
enum { KV_RUN = 16 };

SL_INLINE void kv_store_halves(const sl_kv_rows *rows, size_t first, size_t n)
{
    uint16_t k[KV_RUN][SL_ATTN_DIM];
    uint16_t *k_page = (uint16_t *)rows->k_page + rows->slot + first;
    uint16_t *v_page = (uint16_t *)rows->v_page + (rows->slot + first) * SL_ATTN_DIM;
    for (size_t i = 0; i < n; i++) {
        for (size_t d = 0; d < SL_ATTN_DIM; d += LANES) {
            v_store_half(&k[i][d], v_load(rows->k + (first + i) * rows->k_stride + d));
            v_store_half(v_page + i * SL_ATTN_DIM + d,
                         v_load(rows->v + (first + i) * rows->v_stride + d));
        }
    }
    for (size_t d = 0; d < SL_ATTN_DIM; d++) {
        for (size_t i = 0; i < n; i++)
            k_page[d * SL_KV_PAGE + i] = k[i][d];
    }
}

static void kv_store(const sl_kv_rows *rows)
{
    if (rows->type == SL_KV_F32) {
        sl_kv_store_scalar(rows);
        return;
    }
    for (size_t i = 0; i < rows->n; i += KV_RUN)
        kv_store_halves(rows, i, sl_min_size(KV_RUN, rows->n - i));
}

#endif
