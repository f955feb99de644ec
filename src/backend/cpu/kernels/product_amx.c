/* Products of many rows on AMX tiles: the integer dots of 16 rows with 16 outputs are one
 * instruction; scales and sums follow in vector registers as everywhere. Codes are made signed when
 * a segment is expanded, so that nothing is to be taken off. Compiled for AMX int8 and AVX-512 with
 * VNNI. */
#if defined(__x86_64__)

#include <stdatomic.h>

#include "backend/cpu/kernels/codes_avx512.h"

#include "backend/cpu/kernels/product_types.h"

enum { ROWS = 16 }; /* of a tile; missing ones are computed as zeros and left out */

/* Names of tile registers, which instructions take as constants. Sums of a block of 32 inputs, of
 * its halves; activations and codes of both widths. */
#define DOTS   0
#define DOTS_1 1
#define X_32   2
#define W_32   3
#define X_16   4
#define W_16   5

/* What the processor reads to set the sizes of the tiles. */
typedef struct tile_sizes {
    uint8_t palette, start_row, unused[14];
    uint16_t row_bytes[16];
    uint8_t n_rows[16];
} tile_sizes;

_Static_assert(sizeof(tile_sizes) == 64, "the size that LDTILECFG reads");

/* A constant of the program: compilers may take LDTILECFG to read but its first bytes, and leave
 * out what a function writes to the others. */
static const tile_sizes sizes = {.palette = 1,
                                 .row_bytes = {[DOTS] = 64,
                                               [DOTS_1] = 64,
                                               [X_32] = 32,
                                               [W_32] = SL_GROUP_BYTES,
                                               [X_16] = 16,
                                               [W_16] = SL_GROUP_BYTES},
                                 .n_rows = {[DOTS] = ROWS,
                                            [DOTS_1] = ROWS,
                                            [X_32] = ROWS,
                                            [W_32] = GROUPS,
                                            [X_16] = ROWS,
                                            [W_16] = GROUPS / 2}};

static void configure(void)
{
    atomic_signal_fence(memory_order_seq_cst);
    _tile_loadconfig(&sizes);
}

/* The part of 16 rows that meets a segment. */
typedef struct amx_rows {
    const int8_t *q; /* codes of the first row; the others follow */
    size_t stride;
    _Alignas(64) int8_t copied[ROWS][SL_SEGMENT]; /* where they do not, or are fewer */
    float d[ROWS][SL_SEGMENT_BLOCKS];
    int32_t sums[ROWS][2 * SL_SEGMENT_BLOCKS]; /* of the codes, per block or per half */
} amx_rows;

/* Inlined with a constant n_blocks for whole segments: calls of memcpy would cost more than the
 * tiles. */
SL_INLINE void take_amx_row(const shape *form, const sl_product_rows *x, size_t block,
                            size_t n_blocks, size_t t, bool copy, amx_rows *out)
{
    if (copy)
        memcpy(out->copied[t], x->q + 32 * block, 32 * n_blocks);
    memcpy(out->d[t], x->d + block, n_blocks * sizeof(float));
    if (form->min)
        offset_sums(form, x->sums + 2 * block, n_blocks, -1, out->sums[t]);
}

SL_INLINE size_t row_at(const sl_product_rows *x, size_t i)
{
    return x->index ? x->index[i] : i;
}

SL_INLINE void take_amx_rows(const shape *form, const sl_product_rows *x, size_t first, size_t n,
                             size_t begin, size_t n_blocks, amx_rows *out)
{
    bool copy = n < ROWS;
    for (size_t t = 1; t < n; t++)
        copy = copy || row_at(x, first + t) != row_at(x, first) + t;
    out->q = copy ? out->copied[0] : x->q + 32 * (row_at(x, first) * x->n_blocks + begin);
    out->stride = copy ? SL_SEGMENT : 32 * x->n_blocks;
    for (size_t t = 0; t < n; t++) {
        const size_t block = row_at(x, first + t) * x->n_blocks + begin;
        if (n_blocks == SL_SEGMENT_BLOCKS)
            take_amx_row(form, x, block, SL_SEGMENT_BLOCKS, t, copy, out);
        else
            take_amx_row(form, x, block, n_blocks, t, copy, out);
    }
    for (size_t t = n; t < ROWS; t++) {
        memset(out->copied[t], 0, sizeof out->copied[t]);
        memset(out->d[t], 0, sizeof out->d[t]);
        memset(out->sums[t], 0, sizeof out->sums[t]);
    }
}

/* The dots of block b, of its two halves in one instruction each where these have their own
 * scales. */
SL_INLINE void amx_dots(const shape *form, const uint8_t *codes, const amx_rows *x, size_t b,
                        int32_t dots[2][ROWS][LANES])
{
    const uint8_t *w = codes + GROUPS * SL_GROUP_BYTES * b;
    const int8_t *q = x->q + 32 * b;
    _tile_zero(DOTS);
    if (form->scales == 2) {
        _tile_zero(DOTS_1);
        _tile_loadd(X_16, q, (long)x->stride);
        _tile_loadd(W_16, w, SL_GROUP_BYTES);
        _tile_dpbssd(DOTS, X_16, W_16);
        _tile_loadd(X_16, q + 16, (long)x->stride);
        _tile_loadd(W_16, w + GROUPS / 2 * SL_GROUP_BYTES, SL_GROUP_BYTES);
        _tile_dpbssd(DOTS_1, X_16, W_16);
        _tile_stored(DOTS_1, dots[1], sizeof dots[1][0]);
    } else {
        _tile_loadd(X_32, q, (long)x->stride);
        _tile_loadd(W_32, w, SL_GROUP_BYTES);
        _tile_dpbssd(DOTS, X_32, W_32);
    }
    _tile_stored(DOTS, dots[0], sizeof dots[0][0]);
}

/* sums += what block b adds. */
SL_INLINE void amx_add_block(const shape *form, const segment *seg, size_t p, const amx_rows *x,
                             size_t b, int32_t dots[2][ROWS][LANES], vf sums[ROWS])
{
    const vf w = v_load(seg->w[p][b]);
    _Pragma("GCC unroll 16") for (size_t t = 0; t < ROWS; t++)
    {
        const vf d = v_set(x->d[t][b]);
        vf n = v_of_int(vi_load(dots[0][t]));
        if (form->scales >= 1)
            n = v_mul(v_load(seg->scales[p][b][0]), n);
        if (form->scales == 2)
            n = v_fma(v_load(seg->scales[p][b][1]), v_of_int(vi_load(dots[1][t])), n);
        sums[t] = v_fma(v_mul(w, d), n, sums[t]);
        if (!form->min)
            continue;
        const vf m = v_mul(v_load(seg->m[p][b]), d);
        if (form->mins == 0) {
            sums[t] = v_fma(m, v_set((float)x->sums[t][b]), sums[t]);
            continue;
        }
        const size_t i = form->mins * b;
        vf taken = v_mul(v_load(seg->mins[p][b][0]), v_set((float)x->sums[t][i]));
        if (form->mins == 2)
            taken = v_fma(v_load(seg->mins[p][b][1]), v_set((float)x->sums[t][i + 1]), taken);
        sums[t] = v_fnma(m, taken, sums[t]);
    }
}

/* One panel of a segment times 16 rows; the tiles are one block ahead of the vectors. */
SL_INLINE void amx_tile(const shape *form, const segment *seg, size_t p, const amx_rows *x,
                        vf sums[ROWS])
{
    _Alignas(64) int32_t dots[SL_SEGMENT_BLOCKS][2][ROWS][LANES];
    _Pragma("GCC unroll 16") for (size_t t = 0; t < ROWS; t++) sums[t] = v_zero();
    for (size_t b = 0; b < seg->n_blocks; b++)
        amx_dots(form, seg->codes[p], x, b, dots[b]);
    for (size_t b = 0; b < seg->n_blocks; b++)
        amx_add_block(form, seg, p, x, b, dots[b], sums);
}

/* Codes with the offset taken off, in the segment's own memory. */
static void make_signed(segment *seg, size_t p, int offset)
{
    const vi taken = _mm512_set1_epi8((char)offset);
    uint8_t *to = seg->unpacked[p][0];
    for (size_t i = 0; i < seg->n_blocks * GROUPS * SL_GROUP_BYTES; i += SL_GROUP_BYTES)
        vc_store(to + i, _mm512_sub_epi8(vc_load(seg->codes[p] + i), taken));
    seg->codes[p] = to;
}

/* The places of the results of rows [first, last): the first segment writes them without reading,
 * and would wait for each. */
SL_INLINE void prefetch_results(float *const *y, size_t first, size_t last, size_t column,
                                size_t n_panels)
{
    for (size_t i = first; i < last; i++) {
        for (size_t p = 0; p < n_panels; p++)
            v_prefetch((const uint8_t *)(y[i] + column + LANES * p));
    }
}

SL_INLINE void run_amx(const shape *form, int offset, expand_fn expand, const sl_panels *w,
                       uint32_t stack, size_t begin, size_t end, const sl_product_rows *x,
                       float *const *y)
{
    const size_t n_blocks = w->n_cols / 32, n_tiles = (x->n + ROWS - 1) / ROWS;
    const size_t block_bytes =
        sl_panel_block_bytes(w->dtype) * 32 / sl_dtype_get(w->dtype)->block_elems;
    segment seg;
    amx_rows rows;
    configure();
    for (size_t panel = begin; panel < end; panel += PANELS) {
        const size_t n_panels = sl_min_size(PANELS, end - panel);
        const uint8_t *from = w->data + stack * w->stack_bytes + panel * w->panel_bytes;
        for (size_t b = 0; b < n_blocks; b += SL_SEGMENT_BLOCKS) {
            seg.n_blocks = sl_min_size(SL_SEGMENT_BLOCKS, n_blocks - b);
            for (size_t p = 0; p < n_panels; p++) {
                expand(from + p * w->panel_bytes + b * block_bytes, seg.n_blocks, p, &seg);
                if (offset != 0)
                    make_signed(&seg, p, offset);
            }
            coming next = what_comes(w, from, n_panels, (b + SL_SEGMENT_BLOCKS) * block_bytes,
                                     SL_SEGMENT_BLOCKS * block_bytes, n_tiles);
            for (size_t first = 0; first < x->n; first += ROWS) {
                const size_t n_rows = sl_min_size(ROWS, x->n - first);
                prefetch_some(&next);
                if (b == 0)
                    prefetch_results(y, first + n_rows, sl_min_size(first + 2 * ROWS, x->n),
                                     LANES * panel, n_panels);
                take_amx_rows(form, x, first, n_rows, b, seg.n_blocks, &rows);
                atomic_signal_fence(memory_order_seq_cst); /* tiles read what was just written */
                for (size_t p = 0; p < n_panels; p++) {
                    vf sums[ROWS];
                    const size_t column = LANES * (panel + p);
                    const size_t n = sl_min_size(LANES, w->n_rows - column);
                    amx_tile(form, &seg, p, &rows, sums);
                    _Pragma("GCC unroll 16") for (size_t t = 0; t < ROWS; t++)
                    {
                        if (t >= n_rows)
                            break;
                        float *to = y[first + t] + column;
                        if (n == LANES)
                            v_store(to, b == 0 ? sums[t] : v_add(v_load(to), sums[t]));
                        else
                            v_store_first(
                                to, b == 0 ? sums[t] : v_add(v_load_first(to, n), sums[t]), n);
                    }
                }
            }
        }
    }
    _tile_release();
}

#define PRODUCT_OF(dtype, type, form, offset) \
    static void product_##type(const sl_panels *w, uint32_t stack, size_t begin, size_t end, \
                               const sl_product_rows *x, float *const *y) \
    { \
        run_amx(&form, offset, expand_##type, w, stack, begin, end, x, y); \
    }
PRODUCT_TYPES(PRODUCT_OF)

void sl_products_amx(sl_cpu_kernels *k)
{
#define SET_PRODUCT(dtype, type, form, offset) k->product_many[SL_##dtype] = product_##type;
    PRODUCT_TYPES(SET_PRODUCT)
#undef SET_PRODUCT
}

#endif
