/* The types of weights: how the segments of their panels (panels.h) become bytes and float scales,
 * and which shape of product each of them has. Included by the product_<isa>.c files. */
#ifndef SL_BACKEND_CPU_KERNELS_PRODUCT_TYPES_H
#define SL_BACKEND_CPU_KERNELS_PRODUCT_TYPES_H

#include "backend/cpu/kernels/product.h"
#include "base/bits.h"

/* ---- shapes ---- */

static const shape wide = {.wide = true, .offset = WIDE_OFFSET != 0};
static const shape wide_scaled = {.wide = true, .offset = WIDE_OFFSET != 0, .scales = 1};
static const shape narrow = {.offset = true};
static const shape narrow_min = {.min = true};
static const shape scaled_min = {.scales = 1, .mins = 1, .min = true};
static const shape halves = {.offset = true, .scales = 2};
static const shape halves_min = {.scales = 2, .mins = 2, .min = true};

/* ---- codes ---- */

static inline const uint16_t *halves_at(const uint8_t *p)
{
    return (const uint16_t *)(const void *)p;
}

/* The high bits of a code come from rows of bits or pairs. */
typedef enum high_bits { NO_HIGH, BIT_2, BIT_4, PAIR_4 } high_bits;

/* x with bits [at, at + n) of every byte moved to [to, to + n), the others cleared. */
SL_INLINE vi move_bits(vi x, int at, int to, int n)
{
    const int mask = ((1 << n) - 1) << to;
    return vc_and(at < to ? vc_left(x, to - at) : vc_right(x, at - to), mask);
}

/* One block of nibbles, with their high bits, through a table when there is one. */
SL_INLINE void expand_nibbles(const uint8_t *from, high_bits high, const uint8_t *table,
                              uint8_t *to)
{
    UNROLL
    for (int g = 0; g < GROUPS; g++) {
        vi codes = move_bits(vc_load(from + SL_GROUP_BYTES * (g % 4)), g / 4 * 4, 0, 4);
        if (high == BIT_4)
            codes = vc_or(codes, move_bits(vc_load(from + SL_NIBBLES_BYTES), g, 4, 1));
        if (high == PAIR_4)
            codes =
                vc_or(codes, move_bits(vc_load(from + SL_NIBBLES_BYTES + SL_GROUP_BYTES * (g / 4)),
                                       g % 4 * 2, 4, 2));
        vc_store(to + SL_GROUP_BYTES * g, table ? vc_lookup(codes, table) : codes);
    }
}

/* One block of pairs. */
SL_INLINE void expand_pairs(const uint8_t *from, high_bits high, uint8_t *to)
{
    UNROLL
    for (int g = 0; g < GROUPS; g++) {
        vi codes = move_bits(vc_load(from + SL_GROUP_BYTES * (g / 4)), g % 4 * 2, 0, 2);
        if (high == BIT_2)
            codes = vc_or(codes, move_bits(vc_load(from + SL_PAIRS_BYTES), g, 2, 1));
        vc_store(to + SL_GROUP_BYTES * g, codes);
    }
}

SL_INLINE void expand_blocks(const uint8_t *from, size_t n, size_t block_bytes, bool pairs,
                             high_bits high, const uint8_t *table, size_t p, segment *out)
{
    for (size_t b = 0; b < n; b++) {
        if (pairs)
            expand_pairs(from + block_bytes * b, high, out->unpacked[p][b]);
        else
            expand_nibbles(from + block_bytes * b, high, table, out->unpacked[p][b]);
    }
    out->codes[p] = out->unpacked[p][0];
}

/* ---- scales ---- */

/* n rows of halves, one per block. */
SL_INLINE const uint8_t *expand_halves(const uint8_t *from, size_t n, float to[][LANES])
{
    for (size_t b = 0; b < n; b++)
        v_store(to[b], v_load_half(halves_at(from) + LANES * b));
    return from + 2 * LANES * n;
}

/* One row of halves for a whole super-block. */
SL_INLINE const uint8_t *expand_half(const uint8_t *from, float to[][LANES])
{
    const vf x = v_load_half(halves_at(from));
    for (size_t b = 0; b < SL_SEGMENT_BLOCKS; b++)
        v_store(to[b], x);
    return from + 2 * LANES;
}

/* Rows of bytes, per_block of them for each block. */
SL_INLINE const uint8_t *expand_bytes(const uint8_t *from, size_t per_block, bool is_signed,
                                      float to[][2][LANES])
{
    for (size_t b = 0; b < SL_SEGMENT_BLOCKS; b++) {
        for (size_t i = 0; i < per_block; i++, from += LANES)
            v_store(to[b][i], is_signed ? vc_float_i8(from) : vc_float_u8(from));
    }
    return from;
}

/* ---- types ---- */

/* The values of 4-bit codes, made positive: 128 and 12 added. */
static const uint8_t iq4_table[16] = {1,   24,  45,  63,  79,  93,  106, 118,
                                      129, 141, 153, 166, 181, 197, 217, 241};
static const uint8_t mxfp4_table[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};

enum {
    NIBBLES = SL_NIBBLES_BYTES,
    NIBBLES_BITS = SL_NIBBLES_BYTES + SL_BITS_BYTES,
    NIBBLES_PAIRS = SL_NIBBLES_BYTES + SL_PAIRS_BYTES,
    PAIRS = SL_PAIRS_BYTES,
    PAIRS_BITS = SL_PAIRS_BYTES + SL_BITS_BYTES
};

static void expand_q8_0(const uint8_t *from, size_t n, size_t p, segment *out)
{
    out->codes[p] = expand_halves(from, n, out->w[p]);
}

static void expand_q4_0(const uint8_t *from, size_t n, size_t p, segment *out)
{
    from = expand_halves(from, n, out->w[p]);
    expand_blocks(from, n, NIBBLES, false, NO_HIGH, NULL, p, out);
}

static void expand_q4_1(const uint8_t *from, size_t n, size_t p, segment *out)
{
    from = expand_halves(from, n, out->w[p]);
    from = expand_halves(from, n, out->m[p]);
    expand_blocks(from, n, NIBBLES, false, NO_HIGH, NULL, p, out);
}

static void expand_q5_0(const uint8_t *from, size_t n, size_t p, segment *out)
{
    from = expand_halves(from, n, out->w[p]);
    expand_blocks(from, n, NIBBLES_BITS, false, BIT_4, NULL, p, out);
}

static void expand_q5_1(const uint8_t *from, size_t n, size_t p, segment *out)
{
    from = expand_halves(from, n, out->w[p]);
    from = expand_halves(from, n, out->m[p]);
    expand_blocks(from, n, NIBBLES_BITS, false, BIT_4, NULL, p, out);
}

static void expand_iq4_nl(const uint8_t *from, size_t n, size_t p, segment *out)
{
    from = expand_halves(from, n, out->w[p]);
    expand_blocks(from, n, NIBBLES, false, NO_HIGH, iq4_table, p, out);
}

static void expand_mxfp4(const uint8_t *from, size_t n, size_t p, segment *out)
{
    for (size_t b = 0; b < n; b++) {
        for (size_t r = 0; r < LANES; r++, from++)
            out->w[p][b][r] =
                sl_float_of_bits(*from < 2 ? 0x200000u << *from : (uint32_t)(*from - 1) << 23);
    }
    expand_blocks(from, n, NIBBLES, false, NO_HIGH, mxfp4_table, p, out);
}

static void expand_q2_k(const uint8_t *from, size_t n, size_t p, segment *out)
{
    from = expand_half(from, out->w[p]);
    from = expand_half(from, out->m[p]);
    _Alignas(64) uint8_t bytes[2][2 * SL_SEGMENT_BLOCKS * LANES];
    for (size_t i = 0; i < sizeof bytes[0]; i++, from++) {
        bytes[0][i] = *from & 15;
        bytes[1][i] = *from >> 4;
    }
    expand_bytes(bytes[0], 2, false, out->scales[p]);
    expand_bytes(bytes[1], 2, false, out->mins[p]);
    expand_blocks(from, n, PAIRS, true, NO_HIGH, NULL, p, out);
}

static void expand_q3_k(const uint8_t *from, size_t n, size_t p, segment *out)
{
    from = expand_half(from, out->w[p]);
    from = expand_bytes(from, 2, true, out->scales[p]);
    expand_blocks(from, n, PAIRS_BITS, true, BIT_2, NULL, p, out);
}

static void expand_q4_k(const uint8_t *from, size_t n, size_t p, segment *out)
{
    from = expand_half(from, out->w[p]);
    from = expand_half(from, out->m[p]);
    from = expand_bytes(from, 1, false, out->scales[p]);
    from = expand_bytes(from, 1, false, out->mins[p]);
    expand_blocks(from, n, NIBBLES, false, NO_HIGH, NULL, p, out);
}

static void expand_q5_k(const uint8_t *from, size_t n, size_t p, segment *out)
{
    from = expand_half(from, out->w[p]);
    from = expand_half(from, out->m[p]);
    from = expand_bytes(from, 1, false, out->scales[p]);
    from = expand_bytes(from, 1, false, out->mins[p]);
    expand_blocks(from, n, NIBBLES_BITS, false, BIT_4, NULL, p, out);
}

static void expand_q6_k(const uint8_t *from, size_t n, size_t p, segment *out)
{
    from = expand_half(from, out->w[p]);
    from = expand_bytes(from, 2, true, out->scales[p]);
    expand_blocks(from, n, NIBBLES_PAIRS, false, PAIR_4, NULL, p, out);
}

static void expand_iq4_xs(const uint8_t *from, size_t n, size_t p, segment *out)
{
    from = expand_half(from, out->w[p]);
    from = expand_bytes(from, 1, true, out->scales[p]);
    expand_blocks(from, n, NIBBLES, false, NO_HIGH, iq4_table, p, out);
}

/* X(name of the type, its shape, what its codes have too much) */
#define PRODUCT_TYPES(X) \
    X(Q8_0, q8_0, wide, WIDE_OFFSET) \
    X(Q4_0, q4_0, narrow, 8) \
    X(Q4_1, q4_1, narrow_min, 0) \
    X(Q5_0, q5_0, narrow, 16) \
    X(Q5_1, q5_1, narrow_min, 0) \
    X(Q2_K, q2_k, halves_min, 0) \
    X(Q3_K, q3_k, halves, 4) \
    X(Q4_K, q4_k, scaled_min, 0) \
    X(Q5_K, q5_k, scaled_min, 0) \
    X(Q6_K, q6_k, halves, 32) \
    X(IQ4_NL, iq4_nl, wide, WIDE_OFFSET) \
    X(IQ4_XS, iq4_xs, wide_scaled, WIDE_OFFSET) \
    X(MXFP4, mxfp4, narrow, 12)

#endif
