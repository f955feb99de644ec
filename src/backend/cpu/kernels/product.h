/* Products of panels with rows of activations, written once for every instruction set. Included by
 * the product_<isa>.c files after the header of their groups of codes (codes_<isa>.h), which
 * defines over the vectors of lanes.h:
 *   vc_load vc_store     a group of codes
 *   vc_four              four activations, for every row
 *   vc_dot               sum += dots of codes 0 .. 127 with four activations, row by row
 *   vw vw_of vw_dot      the same for wide codes, stored as code + 128; the result is that of
 *                        code + WIDE_OFFSET
 *   vc_and vc_or vc_left vc_right vc_lookup    on bytes; what shifts bring in must be masked out
 *   vc_float_u8 vc_float_i8    sixteen bytes as floats
 *   vc_sums vc_pair_sums v_prefetch
 *
 * A segment of one or two panels is brought into one form (bytes and float scales, in the first
 * level of cache), and then meets all rows, a tile of them at a time: the sums of a tile stay in
 * registers. The offset of codes is taken off before the dots: sums start at minus the offset times
 * the sum of the activation's codes, in integers, which costs nothing.
 *
 * Why the floats here are exact where the contract has integers: a dot, its small scale and their
 * product are below 2^24 in size. A zero may get another sign than an integer has; it is added to a
 * sum that is never -0. */
#ifndef SL_BACKEND_CPU_KERNELS_PRODUCT_H
#define SL_BACKEND_CPU_KERNELS_PRODUCT_H

#include "backend/cpu/kernels/panels.h"

enum {
    PANELS = LANE_REGISTERS >= 32 ? 2 : 1, /* of a tile at most */
    TILE = 6,                              /* rows of a tile at most */
    GROUPS = 8,                            /* of a block */
    FEW_ROWS = TILE, /* that do not use what they read enough for a tile of two panels */
    AHEAD = 4096     /* bytes between reading and prefetching */
};

/* What the types have in common, known when a tile is compiled. */
typedef struct shape {
    bool wide;     /* codes are stored with 128 added */
    bool offset;   /* something must be taken off */
    size_t scales; /* integer scales of a block: 0, 1 or 2 */
    size_t mins;   /* integer minimums of a block: 0, 1 or 2 */
    bool min;      /* a block has a float minimum; its sign is + without integer minimums, else - */
} shape;

/* A segment of up to two panels. */
typedef struct segment {
    const uint8_t *codes[PANELS]; /* [n_blocks][8 groups][64]: unpacked, or in the panel itself */
    size_t n_blocks;
    /* What a tile prefetches with every block: so many bytes of each panel, `block_bytes` further
     * on with the next block. */
    const uint8_t *ahead[PANELS];
    size_t block_bytes, ahead_bytes;
    float w[PANELS][SL_SEGMENT_BLOCKS][LANES];
    float m[PANELS][SL_SEGMENT_BLOCKS][LANES];
    float scales[PANELS][SL_SEGMENT_BLOCKS][2][LANES];
    float mins[PANELS][SL_SEGMENT_BLOCKS][2][LANES];
    _Alignas(64) uint8_t unpacked[PANELS][SL_SEGMENT_BLOCKS][GROUPS * SL_GROUP_BYTES];
} segment;

/* The part of some rows that meets it. */
typedef struct tile_rows {
    const int8_t *q[TILE];
    const float *d[TILE];
    int32_t start[TILE][2 * SL_SEGMENT_BLOCKS]; /* of the sums: per block, or per half */
    int32_t sums[TILE][2 * SL_SEGMENT_BLOCKS];  /* of the codes, the same */
} tile_rows;

/* Loops over panels and rows are unrolled, so that their sums are registers. A build that checks
 * every access would take minutes to compile then, and needs no speed. */
#if defined(__SANITIZE_ADDRESS__)
#define UNROLL _Pragma("GCC unroll 1")
#else
#define UNROLL _Pragma("GCC unroll 8")
#endif
/* Where a dot product is one instruction, counting groups is worth avoiding. */
#if defined(__AVX512VNNI__)
#define UNROLL_GROUPS UNROLL
#else
#define UNROLL_GROUPS _Pragma("GCC unroll 1")
#endif

/* ---- tiles ---- */

/* A block's share of what is to come, spread over its groups: in one go it would hold up the reads
 * that the sums wait for. */
SL_INLINE void prefetch_part(const segment *seg, size_t n_panels, size_t b, size_t g)
{
    for (size_t i = 64 * g; i < seg->ahead_bytes; i += 64 * GROUPS) {
        UNROLL
        for (size_t p = 0; p < n_panels; p++)
            v_prefetch(seg->ahead[p] + b * seg->block_bytes + i);
    }
}

/* The integer sums of the groups [first, last) of block b. */
SL_INLINE void dot_groups(const shape *form, size_t n_panels, size_t n_rows, const segment *seg,
                          const tile_rows *x, size_t b, size_t first, size_t last,
                          vi dots[PANELS][TILE])
{
    const size_t half = form->scales == 2 ? 2 * b + first / (GROUPS / 2) : b;
    UNROLL
    for (size_t t = 0; t < n_rows; t++) {
        const vi start = vi_set(form->offset ? x->start[t][half] : 0);
        UNROLL
        for (size_t p = 0; p < n_panels; p++)
            dots[p][t] = start;
    }
    UNROLL_GROUPS
    for (size_t g = first; g < last; g++) {
        prefetch_part(seg, n_panels, b, g);
        vi codes[PANELS];
        vw wide[PANELS];
        UNROLL
        for (size_t p = 0; p < n_panels; p++) {
            codes[p] = vc_load(seg->codes[p] + (GROUPS * b + g) * SL_GROUP_BYTES);
            wide[p] = vw_of(codes[p]);
        }
        UNROLL
        for (size_t t = 0; t < n_rows; t++) {
            const vi four = vc_four(x->q[t] + 32 * b + 4 * g);
            UNROLL
            for (size_t p = 0; p < n_panels; p++)
                dots[p][t] = form->wide ? vw_dot(dots[p][t], wide[p], four)
                                        : vc_dot(dots[p][t], codes[p], four);
        }
    }
}

/* out[t][p] += or = the sums of the segment. Unrolled by its constant arguments. */
SL_INLINE void run_tile(const shape *form, size_t n_panels, size_t n_rows, const segment *seg,
                        const tile_rows *x, vf sums[PANELS][TILE])
{
    UNROLL
    for (size_t t = 0; t < n_rows; t++) {
        UNROLL
        for (size_t p = 0; p < n_panels; p++)
            sums[p][t] = v_zero();
    }
    for (size_t b = 0; b < seg->n_blocks; b++) {
        vi dots[PANELS][TILE];
        vf n[PANELS][TILE];
        if (form->scales == 2) {
            dot_groups(form, n_panels, n_rows, seg, x, b, 0, GROUPS / 2, dots);
            UNROLL
            for (size_t t = 0; t < n_rows; t++) {
                UNROLL
                for (size_t p = 0; p < n_panels; p++)
                    n[p][t] = v_mul(v_load(seg->scales[p][b][0]), v_of_int(dots[p][t]));
            }
            dot_groups(form, n_panels, n_rows, seg, x, b, GROUPS / 2, GROUPS, dots);
        } else {
            dot_groups(form, n_panels, n_rows, seg, x, b, 0, GROUPS, dots);
        }
        UNROLL
        for (size_t t = 0; t < n_rows; t++) {
            const vf d = v_set(x->d[t][b]);
            UNROLL
            for (size_t p = 0; p < n_panels; p++) {
                const vf dot = v_of_int(dots[p][t]);
                vf count = dot;
                if (form->scales == 1)
                    count = v_mul(v_load(seg->scales[p][b][0]), dot);
                if (form->scales == 2)
                    count = v_fma(v_load(seg->scales[p][b][1]), dot, n[p][t]);
                sums[p][t] = v_fma(v_mul(v_load(seg->w[p][b]), d), count, sums[p][t]);
                if (!form->min)
                    continue;
                const vf m = v_mul(v_load(seg->m[p][b]), d);
                if (form->mins == 0) {
                    sums[p][t] = v_fma(m, v_set((float)x->sums[t][b]), sums[p][t]);
                    continue;
                }
                const size_t i = form->mins * b;
                vf taken = v_mul(v_load(seg->mins[p][b][0]), v_set((float)x->sums[t][i]));
                if (form->mins == 2)
                    taken =
                        v_fma(v_load(seg->mins[p][b][1]), v_set((float)x->sums[t][i + 1]), taken);
                sums[p][t] = v_fnma(m, taken, sums[p][t]);
            }
        }
    }
}

/* ---- the whole ---- */

/* start[i] = -offset * sum i, of the n_blocks blocks or their halves. */
SL_INLINE void offset_sums(const shape *form, const int16_t *sums, size_t n_blocks, int offset,
                           int32_t *start)
{
    if (n_blocks == SL_SEGMENT_BLOCKS) {
        if (form->scales == 2)
            vc_sums(sums, -offset, start);
        else
            vc_pair_sums(sums, -offset, start);
        return;
    }
    for (size_t b = 0; b < n_blocks; b++)
        start[b] = -offset * (sums[2 * b] + sums[2 * b + 1]);
}

/* Rows first .. first + n of x, where they meet the n_blocks blocks from `begin` on. */
SL_INLINE void take_rows(const shape *form, int offset, const sl_product_rows *x, size_t first,
                         size_t n, size_t begin, size_t n_blocks, tile_rows *out)
{
    for (size_t t = 0; t < n; t++) {
        const size_t row = x->index ? x->index[first + t] : first + t;
        const size_t block = row * x->n_blocks + begin;
        const int16_t *sums = x->sums + 2 * block;
        out->q[t] = x->q + 32 * block;
        out->d[t] = x->d + block;
        if (form->offset)
            offset_sums(form, sums, n_blocks, offset, out->start[t]);
        if (form->min)
            offset_sums(form, sums, n_blocks, -1, out->sums[t]);
    }
}

/* One tile of one shape, and where its sums go: y[t][0 .. 16 n_panels), of which n_outputs exist.
 * The first segment sets them, the others add to them. */
typedef void (*tile_fn)(const segment *seg, const tile_rows *x, bool set, size_t n_outputs,
                        float *const *y, size_t column);

/* y[t] = or += the sums of a segment. */
SL_INLINE void store_sums(size_t n_panels, size_t n_rows, vf sums[PANELS][TILE], bool set,
                          size_t n_outputs, float *const *y, size_t column)
{
    UNROLL
    for (size_t p = 0; p < n_panels; p++) {
        const size_t n = sl_min_size(LANES, n_outputs - LANES * p);
        UNROLL
        for (size_t t = 0; t < n_rows; t++) {
            float *to = y[t] + column + LANES * p;
            if (n == LANES)
                v_store(to, set ? sums[p][t] : v_add(v_load(to), sums[p][t]));
            else
                v_store_first(to, set ? sums[p][t] : v_add(v_load_first(to, n), sums[p][t]), n);
        }
    }
}

SL_INLINE void tile_to(const shape *form, size_t n_panels, size_t n_rows, const segment *seg,
                       const tile_rows *x, bool set, size_t n_outputs, float *const *y,
                       size_t column)
{
    vf sums[PANELS][TILE];
    run_tile(form, n_panels, n_rows, seg, x, sums);
    store_sums(n_panels, n_rows, sums, set, n_outputs, y, column);
}

/* The next segments of two panels, asked for in parts, one before each tile. */
typedef struct coming {
    const uint8_t *next;
    size_t n_panels, panel_bytes, left, part;
} coming;

/* The segments of n_bytes at `offset` of the panels at `from`, or the first ones of the panels
 * after them. Tiles of one panel look ahead themselves. */
SL_INLINE coming what_comes(const sl_panels *w, const uint8_t *from, size_t n_panels, size_t offset,
                            size_t n_bytes, size_t n_tiles)
{
    return (coming){.next =
                        offset < w->panel_bytes ? from + offset : from + n_panels * w->panel_bytes,
                    .n_panels = n_panels,
                    .panel_bytes = w->panel_bytes,
                    .left = n_panels == 1 ? 0 : n_bytes,
                    .part = n_bytes / n_tiles + 64};
}

SL_INLINE void prefetch_some(coming *it)
{
    const size_t n = sl_min_size(it->part, it->left);
    for (size_t i = 0; i < n; i += 64) {
        for (size_t p = 0; p < it->n_panels; p++)
            v_prefetch(it->next + p * it->panel_bytes + i);
    }
    it->next += n;
    it->left -= n;
}

/* What a tile prefetches while it meets the segment from block b of panels at `from`: with every
 * block `n` bytes from `begin` on, of the same panels' next segment, or of the panels after them;
 * a single panel is read as it lies in memory, with those after it. */
SL_INLINE void look_ahead(const sl_panels *w, const uint8_t *from, size_t n_panels, size_t b,
                          size_t begin, size_t n, segment *seg)
{
    const size_t at = b * seg->block_bytes, next = at + SL_SEGMENT_BLOCKS * seg->block_bytes;
    seg->ahead_bytes = begin < seg->block_bytes ? sl_min_size(n, seg->block_bytes - begin) : 0;
    if (n_panels == 1) {
        seg->ahead[0] = from + at + AHEAD + begin;
        return;
    }
    for (size_t p = 0; p < n_panels; p++)
        seg->ahead[p] = from + begin + p * w->panel_bytes +
                        (next < w->panel_bytes ? next : n_panels * w->panel_bytes);
}

/* Brings a segment of n blocks of panel p of a tile into the common form. */
typedef void (*expand_fn)(const uint8_t *from, size_t n, size_t p, segment *out);

/* tiles[n_panels - 1][n_rows - 1]; most: rows of a tile of one and of two panels. */
typedef struct tile_set {
    tile_fn tiles[PANELS][TILE];
    size_t most[PANELS];
} tile_set;

SL_INLINE void run_product(const shape *form, int offset, const tile_set *set, expand_fn expand,
                           const sl_panels *w, uint32_t stack, size_t begin, size_t end,
                           const sl_product_rows *x, float *const *y)
{
    const size_t n_blocks = w->n_cols / 32;
    const size_t block_bytes =
        sl_panel_block_bytes(w->dtype) * 32 / sl_dtype_get(w->dtype)->block_elems;
    /* Few rows: panel after panel as they lie in memory, each read once. More: two at a time. */
    const size_t wanted = x->n <= FEW_ROWS ? 1 : PANELS;
    segment seg;
    tile_rows rows;
    for (size_t panel = begin; panel < end; panel += wanted) {
        const size_t n_panels = sl_min_size(wanted, end - panel);
        const size_t n_outputs = sl_min_size(LANES * n_panels, w->n_rows - LANES * panel);
        const size_t n_tiles = (x->n + set->most[n_panels - 1] - 1) / set->most[n_panels - 1];
        const uint8_t *from = w->data + stack * w->stack_bytes + panel * w->panel_bytes;
        for (size_t b = 0; b < n_blocks; b += SL_SEGMENT_BLOCKS) {
            seg.n_blocks = sl_min_size(SL_SEGMENT_BLOCKS, n_blocks - b);
            seg.block_bytes = block_bytes;
            for (size_t p = 0; p < n_panels; p++)
                expand(from + p * w->panel_bytes + b * block_bytes, seg.n_blocks, p, &seg);
            const size_t part = (block_bytes / n_tiles + 63) & ~(size_t)63;
            for (size_t i = 0, first = 0; i < n_tiles; i++) {
                const size_t n = (x->n - first) / (n_tiles - i);
                look_ahead(w, from, n_panels, b, part * i, part, &seg);
                take_rows(form, offset, x, first, n, b, seg.n_blocks, &rows);
                set->tiles[n_panels - 1][n - 1](&seg, &rows, b == 0, n_outputs, y + first,
                                                LANES * panel);
                first += n;
            }
        }
    }
}

#endif
