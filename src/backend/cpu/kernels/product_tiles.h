/* Products made of dot products in vector registers: a function for every size of tile of every
 * shape, and one for every type. Included by the product_<isa>.c files. */
#ifndef SL_BACKEND_CPU_KERNELS_PRODUCT_TILES_H
#define SL_BACKEND_CPU_KERNELS_PRODUCT_TILES_H

#include "backend/cpu/kernels/product_types.h"

/* ---- tiles ---- */

#define TILE_OF(name, n_panels, n_rows) \
    static void name##_##n_panels##_##n_rows(const segment *seg, const tile_rows *x, bool set, \
                                             size_t n_outputs, float *const *y, size_t column) \
    { \
        tile_to(&name, n_panels, n_rows, seg, x, set, n_outputs, y, column); \
    }
#define TILES_OF_4(name, n_panels) \
    TILE_OF(name, n_panels, 1) \
    TILE_OF(name, n_panels, 2) TILE_OF(name, n_panels, 3) TILE_OF(name, n_panels, 4)
#define TILES_OF_6(name, n_panels) \
    TILES_OF_4(name, n_panels) TILE_OF(name, n_panels, 5) TILE_OF(name, n_panels, 6)
#define LIST_OF_4(name) name##_1, name##_2, name##_3, name##_4
#define LIST_OF_6(name) LIST_OF_4(name), name##_5, name##_6

#if defined(__AVX512F__)
/* 32 registers: sums of twelve, or of eight where each block has two. */
#define SHAPE(name) \
    TILES_OF_6(name, 1) \
    TILES_OF_6(name, 2) \
    static const tile_set name##_tiles = {{{LIST_OF_6(name##_1)}, {LIST_OF_6(name##_2)}}, {6, 6}};
#define SHAPE_OF_HALVES(name) \
    TILES_OF_6(name, 1) \
    TILES_OF_4(name, 2) \
    static const tile_set name##_tiles = {{{LIST_OF_6(name##_1)}, {LIST_OF_4(name##_2)}}, {6, 4}};
#else
#define SHAPE(name) \
    TILES_OF_4(name, 1) \
    static const tile_set name##_tiles = {{{LIST_OF_4(name##_1)}}, {4}};
#define SHAPE_OF_HALVES(name) SHAPE(name)
#endif

SHAPE(wide)
SHAPE(wide_scaled)
SHAPE(narrow)
SHAPE(narrow_min)
SHAPE(scaled_min)
SHAPE_OF_HALVES(halves)
SHAPE_OF_HALVES(halves_min)

/* ---- types ---- */

#define PRODUCT_OF(dtype, type, form, offset) \
    static void product_##type(const sl_panels *w, uint32_t stack, size_t begin, size_t end, \
                               const sl_product_rows *x, float *const *y) \
    { \
        run_product(&form, offset, &form##_tiles, expand_##type, w, stack, begin, end, x, y); \
    }
PRODUCT_TYPES(PRODUCT_OF)

static void set_products(sl_cpu_kernels *k)
{
#define SET_PRODUCT(dtype, type, form, offset) k->product[SL_##dtype] = product_##type;
    PRODUCT_TYPES(SET_PRODUCT)
#undef SET_PRODUCT
}

#endif
