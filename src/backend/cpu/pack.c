/* Rows of the file, as they lie there and at any address, into panels of 16. */
#include "backend/cpu/pack.h"

#include <string.h>

#include "backend/cpu/kernels/panels.h"
#include "base/mem.h"

enum { ROWS = SL_PANEL_ROWS, HALF = 2 * SL_PANEL_ROWS };

/* The rows of one panel. The panel is zero before, and stays so where there is no row. */
typedef struct panel_rows {
    const uint8_t *rows[ROWS];
    size_t n_rows, n_cols;
} panel_rows;

/* ---- parts of blocks ---- */

/* `to` is where the part begins; r is the row. */

static void put_half(uint16_t half, size_t r, uint8_t *to)
{
    memcpy(to + 2 * r, &half, sizeof half);
}

static void put_group(uint32_t four, size_t g, size_t r, uint8_t *to)
{
    memcpy(to + SL_GROUP_BYTES * g + 4 * r, &four, sizeof four);
}

static uint32_t four_at(const uint8_t *from)
{
    uint32_t four;
    memcpy(&four, from, sizeof four);
    return four;
}

/* Groups that lie in the file as they do in the panel. */
static void put_groups(const uint8_t *from, size_t n, uint32_t flip, size_t r, uint8_t *to)
{
    for (size_t g = 0; g < n; g++)
        put_group(four_at(from + 4 * g) ^ flip, g, r, to);
}

/* Of 32 codes below 16. */
static void put_nibbles(const uint8_t codes[32], size_t r, uint8_t *to)
{
    for (size_t g = 0; g < 4; g++)
        put_group(four_at(codes + 4 * g) | four_at(codes + 16 + 4 * g) << 4, g, r, to);
}

/* Of 32 numbers below 2. */
static void put_bits(const uint8_t bits[32], size_t r, uint8_t *to)
{
    uint32_t four = 0;
    for (size_t g = 0; g < 8; g++)
        four |= four_at(bits + 4 * g) << g;
    put_group(four, 0, r, to);
}

/* Of 32 numbers below 4. */
static void put_pairs(const uint8_t pairs[32], size_t r, uint8_t *to)
{
    for (size_t h = 0; h < 2; h++) {
        uint32_t four = 0;
        for (size_t g = 0; g < 4; g++)
            four |= four_at(pairs + 16 * h + 4 * g) << 2 * g;
        put_group(four, h, r, to);
    }
}

/* n bits from bit `at` on of each of 32 bytes. */
static void take_bits(const uint8_t *from, int at, int n, uint8_t out[32])
{
    for (size_t i = 0; i < 32; i++)
        out[i] = (uint8_t)((from[i] >> at) & ((1 << n) - 1));
}

/* ---- types ---- */

/* Row r: the n blocks or the super-block at `from` into the segment at `to`. */
typedef void (*pack_fn)(const uint8_t *from, size_t n, size_t r, uint8_t *to);

static void pack_q8_0(const uint8_t *from, size_t n, size_t r, uint8_t *to)
{
    uint8_t *codes = to + HALF * n;
    for (size_t b = 0; b < n; b++) {
        sl_block_q8_0 block;
        memcpy(&block, from + sizeof block * b, sizeof block);
        put_half(block.d, r, to + HALF * b);
        put_groups((const uint8_t *)block.q, 8, 0x80808080u, r, codes + 8 * SL_GROUP_BYTES * b);
    }
}

/* Q4_0 and IQ4_NL. */
static void pack_q4_0(const uint8_t *from, size_t n, size_t r, uint8_t *to)
{
    uint8_t *codes = to + HALF * n;
    for (size_t b = 0; b < n; b++) {
        sl_block_q4_0 block;
        memcpy(&block, from + sizeof block * b, sizeof block);
        put_half(block.d, r, to + HALF * b);
        put_groups(block.q, 4, 0, r, codes + SL_NIBBLES_BYTES * b);
    }
}

static void pack_q4_1(const uint8_t *from, size_t n, size_t r, uint8_t *to)
{
    uint8_t *mins = to + HALF * n, *codes = mins + HALF * n;
    for (size_t b = 0; b < n; b++) {
        sl_block_q4_1 block;
        memcpy(&block, from + sizeof block * b, sizeof block);
        put_half(block.d, r, to + HALF * b);
        put_half(block.m, r, mins + HALF * b);
        put_groups(block.q, 4, 0, r, codes + SL_NIBBLES_BYTES * b);
    }
}

static void put_five_bits(const uint8_t *q, const uint8_t high[4], size_t r, uint8_t *to)
{
    uint8_t bits[32];
    for (size_t i = 0; i < 32; i++)
        bits[i] = (uint8_t)((high[i / 8] >> i % 8) & 1);
    put_groups(q, 4, 0, r, to);
    put_bits(bits, r, to + SL_NIBBLES_BYTES);
}

static void pack_q5_0(const uint8_t *from, size_t n, size_t r, uint8_t *to)
{
    uint8_t *codes = to + HALF * n;
    for (size_t b = 0; b < n; b++, codes += SL_NIBBLES_BYTES + SL_BITS_BYTES) {
        sl_block_q5_0 block;
        memcpy(&block, from + sizeof block * b, sizeof block);
        put_half(block.d, r, to + HALF * b);
        put_five_bits(block.q, block.high, r, codes);
    }
}

static void pack_q5_1(const uint8_t *from, size_t n, size_t r, uint8_t *to)
{
    uint8_t *mins = to + HALF * n, *codes = mins + HALF * n;
    for (size_t b = 0; b < n; b++, codes += SL_NIBBLES_BYTES + SL_BITS_BYTES) {
        sl_block_q5_1 block;
        memcpy(&block, from + sizeof block * b, sizeof block);
        put_half(block.d, r, to + HALF * b);
        put_half(block.m, r, mins + HALF * b);
        put_five_bits(block.q, block.high, r, codes);
    }
}

static void pack_mxfp4(const uint8_t *from, size_t n, size_t r, uint8_t *to)
{
    uint8_t *codes = to + ROWS * n;
    for (size_t b = 0; b < n; b++) {
        sl_block_mxfp4 block;
        memcpy(&block, from + sizeof block * b, sizeof block);
        to[ROWS * b + r] = block.e;
        put_groups(block.q, 4, 0, r, codes + SL_NIBBLES_BYTES * b);
    }
}

static void pack_q2_k(const uint8_t *from, size_t n, size_t r, uint8_t *to)
{
    sl_block_q2_k block;
    memcpy(&block, from, sizeof block);
    put_half(block.d, r, to);
    put_half(block.dmin, r, to + HALF);
    to += 2 * HALF;
    for (size_t i = 0; i < 16; i++, to += ROWS)
        to[r] = block.scales[i];
    for (size_t s = 0; s < n; s++, to += SL_PAIRS_BYTES) {
        uint8_t codes[32];
        take_bits(block.q + 32 * (s / 4), 2 * (int)(s % 4), 2, codes);
        put_pairs(codes, r, to);
    }
}

static void pack_q3_k(const uint8_t *from, size_t n, size_t r, uint8_t *to)
{
    sl_block_q3_k block;
    memcpy(&block, from, sizeof block);
    put_half(block.d, r, to);
    to += HALF;
    for (int i = 0; i < 16; i++, to += ROWS)
        to[r] = (uint8_t)sl_q3_k_scale(block.scales, i);
    for (size_t s = 0; s < n; s++, to += SL_PAIRS_BYTES + SL_BITS_BYTES) {
        uint8_t codes[32], high[32];
        take_bits(block.q + 32 * (s / 4), 2 * (int)(s % 4), 2, codes);
        take_bits(block.high, (int)s, 1, high);
        put_pairs(codes, r, to);
        put_bits(high, r, to + SL_PAIRS_BYTES);
    }
}

/* The head of Q4_K and Q5_K: where the codes begin. */
static uint8_t *put_scales_mins(uint16_t d, uint16_t dmin, const uint8_t scales[12], size_t r,
                                uint8_t *to)
{
    put_half(d, r, to);
    put_half(dmin, r, to + HALF);
    to += 2 * HALF;
    for (int s = 0; s < SL_SEGMENT_BLOCKS; s++) {
        int scale, min;
        sl_q4_k_scale_min(scales, s, &scale, &min);
        to[(size_t)ROWS * (size_t)s + r] = (uint8_t)scale;
        to[(size_t)ROWS * (size_t)(SL_SEGMENT_BLOCKS + s) + r] = (uint8_t)min;
    }
    return to + 2 * ROWS * SL_SEGMENT_BLOCKS;
}

static void pack_q4_k(const uint8_t *from, size_t n, size_t r, uint8_t *to)
{
    sl_block_q4_k block;
    memcpy(&block, from, sizeof block);
    to = put_scales_mins(block.d, block.dmin, block.scales, r, to);
    for (size_t s = 0; s < n; s++, to += SL_NIBBLES_BYTES) {
        uint8_t codes[32];
        take_bits(block.q + 32 * (s / 2), 4 * (int)(s % 2), 4, codes);
        put_nibbles(codes, r, to);
    }
}

static void pack_q5_k(const uint8_t *from, size_t n, size_t r, uint8_t *to)
{
    sl_block_q5_k block;
    memcpy(&block, from, sizeof block);
    to = put_scales_mins(block.d, block.dmin, block.scales, r, to);
    for (size_t s = 0; s < n; s++, to += SL_NIBBLES_BYTES + SL_BITS_BYTES) {
        uint8_t codes[32], high[32];
        take_bits(block.q + 32 * (s / 2), 4 * (int)(s % 2), 4, codes);
        take_bits(block.high, (int)s, 1, high);
        put_nibbles(codes, r, to);
        put_bits(high, r, to + SL_NIBBLES_BYTES);
    }
}

static void pack_q6_k(const uint8_t *from, size_t n, size_t r, uint8_t *to)
{
    sl_block_q6_k block;
    memcpy(&block, from, sizeof block);
    put_half(block.d, r, to);
    to += HALF;
    for (size_t i = 0; i < 16; i++, to += ROWS)
        to[r] = (uint8_t)block.scales[i];
    for (size_t s = 0; s < n; s++, to += SL_NIBBLES_BYTES + SL_PAIRS_BYTES) {
        uint8_t low[32], high[32];
        take_bits(block.low + 64 * (s / 4) + 32 * (s % 2), 4 * (int)(s % 4 / 2), 4, low);
        take_bits(block.high + 32 * (s / 4), 2 * (int)(s % 4), 2, high);
        put_nibbles(low, r, to);
        put_pairs(high, r, to + SL_NIBBLES_BYTES);
    }
}

static void pack_iq4_xs(const uint8_t *from, size_t n, size_t r, uint8_t *to)
{
    sl_block_iq4_xs block;
    memcpy(&block, from, sizeof block);
    put_half(block.d, r, to);
    to += HALF;
    for (int s = 0; s < SL_SEGMENT_BLOCKS; s++, to += ROWS)
        to[r] = (uint8_t)sl_iq4_xs_scale(&block, s);
    for (size_t s = 0; s < n; s++, to += SL_NIBBLES_BYTES)
        put_groups(block.q + 16 * s, 4, 0, r, to);
}

static const pack_fn pack_functions[SL_DTYPE_COUNT] = {
    [SL_Q8_0] = pack_q8_0,   [SL_Q4_0] = pack_q4_0,   [SL_Q4_1] = pack_q4_1,
    [SL_Q5_0] = pack_q5_0,   [SL_Q5_1] = pack_q5_1,   [SL_Q2_K] = pack_q2_k,
    [SL_Q3_K] = pack_q3_k,   [SL_Q4_K] = pack_q4_k,   [SL_Q5_K] = pack_q5_k,
    [SL_Q6_K] = pack_q6_k,   [SL_IQ4_NL] = pack_q4_0, [SL_IQ4_XS] = pack_iq4_xs,
    [SL_MXFP4] = pack_mxfp4,
};

/* Inputs one after the other, a number of every row each. */
static void pack_floats(const panel_rows *from, size_t width, uint8_t *to)
{
    enum { STEP = 32 }; /* inputs: what is written stays in the innermost cache */
    for (size_t first = 0; first < from->n_cols; first += STEP) {
        const size_t end = first + sl_min_size(STEP, from->n_cols - first);
        for (size_t r = 0; r < from->n_rows; r++) {
            for (size_t k = first; k < end && width == 4; k++)
                memcpy(to + 4 * (ROWS * k + r), from->rows[r] + 4 * k, 4);
            for (size_t k = first; k < end && width == 2; k++)
                memcpy(to + 2 * (ROWS * k + r), from->rows[r] + 2 * k, 2);
        }
    }
}

/* One panel, segment by segment. */
static void pack_panel(sl_dtype dtype, const panel_rows *from, uint8_t *to)
{
    const sl_dtype_info *info = sl_dtype_get(dtype);
    if (!info->quantised) {
        pack_floats(from, info->block_bytes, to);
        return;
    }
    const size_t n_blocks = from->n_cols / 32;
    for (size_t first = 0; first < n_blocks; first += SL_SEGMENT_BLOCKS) {
        const size_t n = sl_min_size(SL_SEGMENT_BLOCKS, n_blocks - first);
        const size_t offset = 32 * first / info->block_elems * info->block_bytes;
        for (size_t r = 0; r < from->n_rows; r++)
            pack_functions[dtype](from->rows[r] + offset, n, r, to);
        to += sl_panel_block_bytes(dtype) * 32 * n / info->block_elems;
    }
}

/* ---- a matrix ---- */

static bool sizes_of(const sl_matrix *m, sl_panels *out)
{
    const size_t block_bytes = sl_panel_block_bytes(m->dtype);
    *out = (sl_panels){
        .dtype = m->dtype, .n_rows = m->n_rows, .n_cols = m->n_cols, .n_stack = m->n_stack};
    return block_bytes > 0 &&
           sl_size_mul(block_bytes, m->n_cols / sl_dtype_get(m->dtype)->block_elems,
                       &out->panel_bytes) &&
           sl_size_mul(out->panel_bytes, sl_panel_count(m->n_rows), &out->stack_bytes) &&
           sl_size_mul(out->stack_bytes, m->n_stack, &out->n_bytes);
}

size_t sl_packed_bytes(const sl_matrix *matrix)
{
    sl_panels sizes;
    return sizes_of(matrix, &sizes) ? sizes.n_bytes : 0;
}

typedef struct packing {
    const sl_matrix *matrix;
    const sl_panels *panels;
} packing;

static void pack_share(void *context, unsigned i, unsigned n)
{
    const packing *work = context;
    const sl_matrix *m = work->matrix;
    const size_t n_panels = sl_panel_count(m->n_rows);
    size_t begin, end;
    sl_pool_share(n_panels * m->n_stack, 1, i, n, &begin, &end);
    for (size_t unit = begin; unit < end; unit++) {
        const uint32_t stack = (uint32_t)(unit / n_panels);
        const size_t panel = unit % n_panels;
        panel_rows from = {.n_cols = m->n_cols,
                           .n_rows = sl_min_size(ROWS, m->n_rows - ROWS * panel)};
        for (size_t r = 0; r < from.n_rows; r++)
            from.rows[r] = sl_matrix_row(m, stack, ROWS * panel + r);
        pack_panel(m->dtype, &from, work->panels->data + unit * work->panels->panel_bytes);
    }
}

sl_status sl_pack(sl_pool *pool, const sl_matrix *matrix, sl_panels **out, sl_error *err)
{
    sl_panels sizes;
    if (!sizes_of(matrix, &sizes))
        return sl_fail(err, SL_ERR_LIMIT, "a matrix of %u x %u x %u %s is too large",
                       matrix->n_stack, matrix->n_rows, matrix->n_cols,
                       sl_dtype_get(matrix->dtype)->name);
    sl_panels *panels = sl_alloc(SL_MEM_WEIGHTS, sizeof *panels);
    if (panels) {
        *panels = sizes;
        panels->data = sl_pages_alloc(SL_MEM_WEIGHTS, panels->n_bytes);
    }
    if (!panels || !panels->data) {
        sl_free(panels);
        return sl_fail(err, SL_ERR_MEMORY, "out of memory for a matrix of %zu bytes",
                       sizes.n_bytes);
    }
    packing work = {.matrix = matrix, .panels = panels};
    sl_pool_run(pool, pack_share, &work);
    *out = panels;
    return SL_OK;
}

void sl_panels_free(sl_panels *panels)
{
    if (!panels)
        return;
    sl_pages_free(SL_MEM_WEIGHTS, panels->data, panels->n_bytes);
    sl_free(panels);
}
