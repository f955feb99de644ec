/* Products of float panels with float rows: lanes are outputs, every sum of 32 products runs upward
 * in its lane. Included by the product_<isa>.c files. */
#ifndef SL_BACKEND_CPU_KERNELS_PRODUCT_FLOAT_H
#define SL_BACKEND_CPU_KERNELS_PRODUCT_FLOAT_H

#include "backend/cpu/kernels/product_tiles.h"

/* Sixteen weights of a panel. */
typedef vf (*load_fn)(const uint8_t *p);

SL_INLINE vf load_f32(const uint8_t *p)
{
    return v_load((const float *)(const void *)p);
}

SL_INLINE vf load_f16(const uint8_t *p)
{
    return v_load_half(halves_at(p));
}

SL_INLINE vf load_bf16(const uint8_t *p)
{
    return v_load_bf16(halves_at(p));
}

/* What a tile of float products reads. */
typedef struct float_tile {
    const uint8_t *w[PANELS];
    const float *x[TILE];
    size_t n; /* inputs, at most a segment */
} float_tile;

/* n inputs of one block, added to its sums. */
SL_INLINE void add_inputs(load_fn load, size_t width, size_t n_panels, size_t n_rows,
                          const float_tile *tile, size_t k, size_t n, vf block[PANELS][TILE])
{
    UNROLL
    for (size_t i = k; i < k + n; i++) {
        vf w[PANELS];
        UNROLL
        for (size_t p = 0; p < n_panels; p++)
            w[p] = load(tile->w[p] + width * i);
        UNROLL
        for (size_t t = 0; t < n_rows; t++) {
            const vf x = v_set(tile->x[t][i]);
            UNROLL
            for (size_t p = 0; p < n_panels; p++)
                block[p][t] = v_fma(w[p], x, block[p][t]);
        }
    }
}

/* width: bytes of sixteen weights. */
SL_INLINE void run_float_tile(load_fn load, size_t width, size_t n_panels, size_t n_rows,
                              const float_tile *tile, bool set, size_t n_outputs, float *const *y,
                              size_t column)
{
    enum { STEP = 4 }; /* inputs between two prefetches */
    vf sums[PANELS][TILE];
    UNROLL
    for (size_t t = 0; t < n_rows; t++) {
        UNROLL
        for (size_t p = 0; p < n_panels; p++)
            sums[p][t] = v_zero();
    }
    for (size_t first = 0; first < tile->n; first += 32) {
        const size_t end = first + sl_min_size(32, tile->n - first);
        size_t k = first;
        vf block[PANELS][TILE];
        UNROLL
        for (size_t t = 0; t < n_rows; t++) {
            UNROLL
            for (size_t p = 0; p < n_panels; p++)
                block[p][t] = v_zero();
        }
        for (; k + STEP <= end; k += STEP) {
            if (n_panels == 1) {
                for (size_t i = 0; i < STEP * width; i += 64)
                    v_prefetch(tile->w[0] + width * k + AHEAD + i);
            }
            add_inputs(load, width, n_panels, n_rows, tile, k, STEP, block);
        }
        for (; k < end; k++)
            add_inputs(load, width, n_panels, n_rows, tile, k, 1, block);
        UNROLL
        for (size_t t = 0; t < n_rows; t++) {
            UNROLL
            for (size_t p = 0; p < n_panels; p++)
                sums[p][t] = v_add(sums[p][t], block[p][t]);
        }
    }
    store_sums(n_panels, n_rows, sums, set, n_outputs, y, column);
}

typedef void (*float_tile_fn)(const float_tile *tile, bool set, size_t n_outputs, float *const *y,
                              size_t column);

/* As tile_set. */
typedef struct float_tile_set {
    float_tile_fn tiles[PANELS][TILE];
    size_t most[PANELS];
} float_tile_set;

SL_INLINE void run_float_product(size_t width, const float_tile_set *set, const sl_panels *w,
                                 uint32_t stack, size_t begin, size_t end, const sl_product_rows *x,
                                 float *const *y)
{
    const size_t wanted = x->n <= FEW_ROWS ? 1 : PANELS;
    float_tile tile;
    for (size_t panel = begin; panel < end; panel += wanted) {
        const size_t n_panels = sl_min_size(wanted, end - panel);
        const size_t n_outputs = sl_min_size(LANES * n_panels, w->n_rows - LANES * panel);
        const size_t most = set->most[n_panels - 1], n_tiles = (x->n + most - 1) / most;
        const uint8_t *from = w->data + stack * w->stack_bytes + panel * w->panel_bytes;
        for (size_t k = 0; k < w->n_cols; k += SL_SEGMENT) {
            tile.n = sl_min_size(SL_SEGMENT, w->n_cols - k);
            for (size_t p = 0; p < n_panels; p++)
                tile.w[p] = from + p * w->panel_bytes + width * k;
            coming next = what_comes(w, from, n_panels, width * (k + SL_SEGMENT),
                                     width * SL_SEGMENT, n_tiles);
            for (size_t i = 0, first = 0; i < n_tiles; i++) {
                const size_t n = (x->n - first) / (n_tiles - i);
                prefetch_some(&next);
                for (size_t t = 0; t < n; t++) {
                    const size_t row = x->index ? x->index[first + t] : first + t;
                    tile.x[t] = x->f32 + row * x->stride + k;
                }
                set->tiles[n_panels - 1][n - 1](&tile, k == 0, n_outputs, y + first, LANES * panel);
                first += n;
            }
        }
    }
}

#define FLOAT_TILE_OF(type, width, n_panels, n_rows) \
    static void type##_##n_panels##_##n_rows(const float_tile *tile, bool set, size_t n_outputs, \
                                             float *const *y, size_t column) \
    { \
        run_float_tile(load_##type, width, n_panels, n_rows, tile, set, n_outputs, y, column); \
    }
#define FLOAT_TILES_OF_4(type, width, n_panels) \
    FLOAT_TILE_OF(type, width, n_panels, 1) \
    FLOAT_TILE_OF(type, width, n_panels, 2) \
    FLOAT_TILE_OF(type, width, n_panels, 3) \
    FLOAT_TILE_OF(type, width, n_panels, 4)
#define FLOAT_TILES_OF_6(type, width, n_panels) \
    FLOAT_TILES_OF_4(type, width, n_panels) \
    FLOAT_TILE_OF(type, width, n_panels, 5) \
    FLOAT_TILE_OF(type, width, n_panels, 6)

#if defined(__AVX512F__)
#define FLOAT_TILES(type, width) \
    FLOAT_TILES_OF_6(type, width, 1) \
    FLOAT_TILES_OF_6(type, width, 2) \
    static const float_tile_set type##_tiles = {{{LIST_OF_6(type##_1)}, {LIST_OF_6(type##_2)}}, \
                                                {6, 6}};
#else
#define FLOAT_TILES(type, width) \
    FLOAT_TILES_OF_4(type, width, 1) \
    static const float_tile_set type##_tiles = {{{LIST_OF_4(type##_1)}}, {4}};
#endif

#define FLOAT_PRODUCT(type, width) \
    FLOAT_TILES(type, width) \
    static void product_##type(const sl_panels *w, uint32_t stack, size_t begin, size_t end, \
                               const sl_product_rows *x, float *const *y) \
    { \
        run_float_product(width, &type##_tiles, w, stack, begin, end, x, y); \
    }

FLOAT_PRODUCT(f32, 4 * LANES)
FLOAT_PRODUCT(f16, 2 * LANES)
FLOAT_PRODUCT(bf16, 2 * LANES)

static void set_float_products(sl_cpu_kernels *k)
{
    k->product[SL_F32] = product_f32;
    k->product[SL_F16] = product_f16;
    k->product[SL_BF16] = product_bf16;
}

#endif
