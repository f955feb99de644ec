/* Rows of the file, as they lie there and at any address, into panels of 16. */
#include "backend/cpu/pack.h"

#include <assert.h>
#include <stddef.h>
#include <string.h>

#include "backend/cpu/kernels/panels.h"
#include "backend/cpu/kernels/transpose.h"
#include "base/mem.h"

enum { ROWS = SL_PANEL_ROWS, HALF = 2 * SL_PANEL_ROWS };

/* The rows of one panel. The panel is zero before, and stays so where there is no row. */
typedef struct panel_rows {
    const uint8_t *rows[ROWS];
    size_t n_rows, n_cols;
    size_t next; /* bytes from a row to that of the next panel; 0 = there is none */
} panel_rows;

/* ---- parts of blocks ---- */

/* What a type keeps beside its codes goes into the head of the panel's segment at once; `to` is
 * where the part begins, r is the row. Codes are first collected in the row's own order, `codes`
 * being where the next ones go, since the groups of 16 rows change places faster together. */

static void put_half(uint16_t half, size_t r, uint8_t *to)
{
    memcpy(to + 2 * r, &half, sizeof half);
}

/* Groups that lie in the file as they do in the panel, of n bytes. */
static uint8_t *put_groups(const uint8_t *from, size_t n, uint8_t *codes)
{
    memcpy(codes, from, n);
    return codes + n;
}

/* Of 32 codes below 16. */
static uint8_t *put_nibbles(const uint8_t from[32], uint8_t *codes)
{
    for (size_t i = 0; i < 16; i++)
        codes[i] = (uint8_t)(from[i] | from[16 + i] << 4);
    return codes + 16;
}

/* Of 32 numbers below 2. */
static uint8_t *put_bits(const uint8_t bits[32], uint8_t *codes)
{
    for (size_t i = 0; i < 4; i++) {
        unsigned byte = 0;
        for (size_t g = 0; g < 8; g++)
            byte |= (unsigned)bits[4 * g + i] << g;
        codes[i] = (uint8_t)byte;
    }
    return codes + 4;
}

/* Of 32 numbers below 4. */
static uint8_t *put_pairs(const uint8_t pairs[32], uint8_t *codes)
{
    for (size_t h = 0; h < 2; h++) {
        for (size_t i = 0; i < 4; i++) {
            const uint8_t *p = pairs + 16 * h + i;
            codes[4 * h + i] = (uint8_t)(p[0] | p[4] << 2 | p[8] << 4 | p[12] << 6);
        }
    }
    return codes + 8;
}

/* n bits from bit `at` on of each of 32 bytes. */
static void take_bits(const uint8_t *from, int at, int n, uint8_t out[32])
{
    for (size_t i = 0; i < 32; i++)
        out[i] = (uint8_t)((from[i] >> at) & ((1 << n) - 1));
}

/* ---- types ---- */

/* Row r: of the n blocks or the super-block at `from`, the head into the segment at `to`, the codes
 * to `codes`. Returns where these end. */
typedef uint8_t *(*pack_fn)(const uint8_t *from, size_t n, size_t r, uint8_t *to, uint8_t *codes);

/* Small blocks are read where they lie: a copy would be read back in other pieces than it was
 * written in, which makes a processor wait. */
#define PART(block, at, member) ((at) + offsetof(block, member))

static void copy_half(const uint8_t *from, size_t r, uint8_t *to)
{
    memcpy(to + 2 * r, from, 2);
}

static uint8_t *pack_q8_0(const uint8_t *from, size_t n, size_t r, uint8_t *to, uint8_t *codes)
{
    typedef sl_block_q8_0 block;
    for (size_t b = 0; b < n; b++, from += sizeof(block), codes += 32) {
        copy_half(PART(block, from, d), r, to + HALF * b);
        for (size_t i = 0; i < 32; i += 8) {
            uint64_t eight;
            memcpy(&eight, PART(block, from, q) + i, sizeof eight);
            eight ^= 0x8080808080808080u;
            memcpy(codes + i, &eight, sizeof eight);
        }
    }
    return codes;
}

/* Q4_0 and IQ4_NL. */
static uint8_t *pack_q4_0(const uint8_t *from, size_t n, size_t r, uint8_t *to, uint8_t *codes)
{
    typedef sl_block_q4_0 block;
    for (size_t b = 0; b < n; b++, from += sizeof(block)) {
        copy_half(PART(block, from, d), r, to + HALF * b);
        codes = put_groups(PART(block, from, q), 16, codes);
    }
    return codes;
}

static uint8_t *pack_q4_1(const uint8_t *from, size_t n, size_t r, uint8_t *to, uint8_t *codes)
{
    typedef sl_block_q4_1 block;
    uint8_t *mins = to + HALF * n;
    for (size_t b = 0; b < n; b++, from += sizeof(block)) {
        copy_half(PART(block, from, d), r, to + HALF * b);
        copy_half(PART(block, from, m), r, mins + HALF * b);
        codes = put_groups(PART(block, from, q), 16, codes);
    }
    return codes;
}

static uint8_t *put_five_bits(const uint8_t q[16], const uint8_t high[4], uint8_t *codes)
{
    uint8_t bits[32];
    for (size_t i = 0; i < 32; i++)
        bits[i] = (uint8_t)((high[i / 8] >> i % 8) & 1);
    return put_bits(bits, put_groups(q, 16, codes));
}

static uint8_t *pack_q5_0(const uint8_t *from, size_t n, size_t r, uint8_t *to, uint8_t *codes)
{
    typedef sl_block_q5_0 block;
    for (size_t b = 0; b < n; b++, from += sizeof(block)) {
        copy_half(PART(block, from, d), r, to + HALF * b);
        codes = put_five_bits(PART(block, from, q), PART(block, from, high), codes);
    }
    return codes;
}

static uint8_t *pack_q5_1(const uint8_t *from, size_t n, size_t r, uint8_t *to, uint8_t *codes)
{
    typedef sl_block_q5_1 block;
    uint8_t *mins = to + HALF * n;
    for (size_t b = 0; b < n; b++, from += sizeof(block)) {
        copy_half(PART(block, from, d), r, to + HALF * b);
        copy_half(PART(block, from, m), r, mins + HALF * b);
        codes = put_five_bits(PART(block, from, q), PART(block, from, high), codes);
    }
    return codes;
}

static uint8_t *pack_mxfp4(const uint8_t *from, size_t n, size_t r, uint8_t *to, uint8_t *codes)
{
    typedef sl_block_mxfp4 block;
    for (size_t b = 0; b < n; b++, from += sizeof(block)) {
        to[ROWS * b + r] = *PART(block, from, e);
        codes = put_groups(PART(block, from, q), 16, codes);
    }
    return codes;
}

static uint8_t *pack_q2_k(const uint8_t *from, size_t n, size_t r, uint8_t *to, uint8_t *codes)
{
    sl_block_q2_k block;
    memcpy(&block, from, sizeof block);
    put_half(block.d, r, to);
    put_half(block.dmin, r, to + HALF);
    to += 2 * HALF;
    for (size_t i = 0; i < 16; i++, to += ROWS)
        to[r] = block.scales[i];
    for (size_t s = 0; s < n; s++) {
        uint8_t low[32];
        take_bits(block.q + 32 * (s / 4), 2 * (int)(s % 4), 2, low);
        codes = put_pairs(low, codes);
    }
    return codes;
}

static uint8_t *pack_q3_k(const uint8_t *from, size_t n, size_t r, uint8_t *to, uint8_t *codes)
{
    sl_block_q3_k block;
    memcpy(&block, from, sizeof block);
    put_half(block.d, r, to);
    to += HALF;
    for (int i = 0; i < 16; i++, to += ROWS)
        to[r] = (uint8_t)sl_q3_k_scale(block.scales, i);
    for (size_t s = 0; s < n; s++) {
        uint8_t low[32], high[32];
        take_bits(block.q + 32 * (s / 4), 2 * (int)(s % 4), 2, low);
        take_bits(block.high, (int)s, 1, high);
        codes = put_bits(high, put_pairs(low, codes));
    }
    return codes;
}

/* The head of Q4_K and Q5_K. */
static void put_scales_mins(uint16_t d, uint16_t dmin, const uint8_t scales[12], size_t r,
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
}

static uint8_t *pack_q4_k(const uint8_t *from, size_t n, size_t r, uint8_t *to, uint8_t *codes)
{
    sl_block_q4_k block;
    memcpy(&block, from, sizeof block);
    put_scales_mins(block.d, block.dmin, block.scales, r, to);
    for (size_t s = 0; s < n; s++) {
        uint8_t low[32];
        take_bits(block.q + 32 * (s / 2), 4 * (int)(s % 2), 4, low);
        codes = put_nibbles(low, codes);
    }
    return codes;
}

static uint8_t *pack_q5_k(const uint8_t *from, size_t n, size_t r, uint8_t *to, uint8_t *codes)
{
    sl_block_q5_k block;
    memcpy(&block, from, sizeof block);
    put_scales_mins(block.d, block.dmin, block.scales, r, to);
    for (size_t s = 0; s < n; s++) {
        uint8_t low[32], high[32];
        take_bits(block.q + 32 * (s / 2), 4 * (int)(s % 2), 4, low);
        take_bits(block.high, (int)s, 1, high);
        codes = put_bits(high, put_nibbles(low, codes));
    }
    return codes;
}

static uint8_t *pack_q6_k(const uint8_t *from, size_t n, size_t r, uint8_t *to, uint8_t *codes)
{
    sl_block_q6_k block;
    memcpy(&block, from, sizeof block);
    put_half(block.d, r, to);
    to += HALF;
    for (size_t i = 0; i < 16; i++, to += ROWS)
        to[r] = (uint8_t)block.scales[i];
    for (size_t s = 0; s < n; s++) {
        uint8_t low[32], high[32];
        take_bits(block.low + 64 * (s / 4) + 32 * (s % 2), 4 * (int)(s % 4 / 2), 4, low);
        take_bits(block.high + 32 * (s / 4), 2 * (int)(s % 4), 2, high);
        codes = put_pairs(high, put_nibbles(low, codes));
    }
    return codes;
}

static uint8_t *pack_iq4_xs(const uint8_t *from, size_t n, size_t r, uint8_t *to, uint8_t *codes)
{
    sl_block_iq4_xs block;
    memcpy(&block, from, sizeof block);
    put_half(block.d, r, to);
    to += HALF;
    for (int s = 0; s < SL_SEGMENT_BLOCKS; s++, to += ROWS)
        to[r] = (uint8_t)sl_iq4_xs_scale(&block, s);
    return put_groups(block.q, 16 * n, codes);
}

static const pack_fn pack_functions[SL_DTYPE_COUNT] = {
    [SL_Q8_0] = pack_q8_0,   [SL_Q4_0] = pack_q4_0,   [SL_Q4_1] = pack_q4_1,
    [SL_Q5_0] = pack_q5_0,   [SL_Q5_1] = pack_q5_1,   [SL_Q2_K] = pack_q2_k,
    [SL_Q3_K] = pack_q3_k,   [SL_Q4_K] = pack_q4_k,   [SL_Q5_K] = pack_q5_k,
    [SL_Q6_K] = pack_q6_k,   [SL_IQ4_NL] = pack_q4_0, [SL_IQ4_XS] = pack_iq4_xs,
    [SL_MXFP4] = pack_mxfp4,
};

/* Pairs of inputs, as transposing words of two half-wide numbers leaves them, into one after the
 * other. The second of the last pair may not exist. */
static void part_pairs(const uint8_t *pairs, size_t n_inputs, uint8_t *to)
{
    for (size_t k = 0; k < n_inputs; k++, to += HALF) {
        for (size_t r = 0; r < ROWS; r++)
            memcpy(to + 2 * r, pairs + SL_GROUP_BYTES * (k / 2) + 4 * r + 2 * (k % 2), 2);
    }
}

/* Inputs one after the other, a number of every row each. */
static void pack_floats(const panel_rows *from, size_t width, uint8_t *to)
{
    sl_row_words words = {0};
    const size_t step = SL_TRANSPOSE_BYTES / width;
    for (size_t first = 0; first < from->n_cols; first += step) {
        const size_t n = sl_min_size(step, from->n_cols - first);
        for (size_t r = 0; r < from->n_rows; r++)
            memcpy(words.bytes[r], from->rows[r] + width * first, width * n);
        if (width == 4) {
            sl_transpose(&words, n, to);
        } else {
            uint8_t pairs[SL_TRANSPOSE_BYTES * ROWS];
            sl_transpose(&words, (n + 1) / 2, pairs);
            part_pairs(pairs, n, to);
        }
        to += width * ROWS * n;
    }
}

/* The first thing that a row of the next panel needs is on its way while this one is packed: panels
 * lie one after the other in the file, but the processor sees sixteen rows that jump about. */
static void fetch_ahead(const uint8_t *from, size_t n_bytes)
{
    for (size_t i = 0; i < n_bytes; i += 64)
        __builtin_prefetch(from + i, 0, 2);
}

/* One panel, segment by segment. */
static void pack_panel(sl_dtype dtype, const panel_rows *from, uint8_t *to)
{
    const sl_dtype_info *info = sl_dtype_get(dtype);
    if (!info->quantised) {
        pack_floats(from, info->block_bytes, to);
        return;
    }
    sl_row_words words = {0};
    const size_t n_blocks = from->n_cols / 32;
    for (size_t first = 0; first < n_blocks; first += SL_SEGMENT_BLOCKS) {
        const size_t n = sl_min_size(SL_SEGMENT_BLOCKS, n_blocks - first);
        const size_t offset = 32 * first / info->block_elems * info->block_bytes;
        const size_t n_bytes = 32 * n / info->block_elems * info->block_bytes;
        size_t n_groups = 0;
        for (size_t r = 0; r < from->n_rows; r++) {
            const uint8_t *row = from->rows[r] + offset;
            fetch_ahead(row + from->next, n_bytes);
            const uint8_t *end = pack_functions[dtype](row, n, r, to, words.bytes[r]);
            n_groups = (size_t)(end - words.bytes[r]) / 4;
        }
        to += sl_panel_block_bytes(dtype) * 32 * n / info->block_elems;
        sl_transpose(&words, n_groups, to - SL_GROUP_BYTES * n_groups);
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
    size_t n_bytes;
    return sizes_of(matrix, &sizes) && sl_size_align(sizes.n_bytes, SL_MEM_ALIGN, &n_bytes)
               ? n_bytes
               : 0;
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
        if (ROWS * (panel + 2) <= m->n_rows)
            from.next = ROWS * m->row_bytes;
        for (size_t r = 0; r < from.n_rows; r++)
            from.rows[r] = sl_matrix_row(m, stack, ROWS * panel + r);
        pack_panel(m->dtype, &from, work->panels->data + unit * work->panels->panel_bytes);
    }
}

sl_panels sl_pack(sl_pool *pool, const sl_matrix *matrix, uint8_t *to)
{
    sl_panels panels;
    const bool has_size = sizes_of(matrix, &panels);
    assert(has_size);
    (void)has_size;
    panels.data = to;
    packing work = {.matrix = matrix, .panels = &panels};
    sl_pool_run(pool, pack_share, &work);
    return panels;
}
