/* How weights lie in panels.
 *
 * A panel holds 16 output rows, so that the lanes of a vector are rows and no sum ever crosses
 * lanes. It is a sequence of segments of 256 inputs (the last one may be shorter), in the order in
 * which a product reads it. In the table b counts the blocks of 32 inputs of a segment, n of them;
 * every [16] is one number per row, and codes are in groups of four inputs:
 *
 *   group    [16 rows][4 inputs]: 64 bytes, the operand of one dot-product instruction
 *   nibbles  [4 groups]: 256 bytes; low nibbles are groups 0 to 3 of the block, high ones 4 to 7
 *   bits     64 bytes: bit g belongs to group g, at the byte where the group's code would lie
 *   pairs    [2][64 bytes]: two bits a code; bits 2 j of half h belong to group 4 h + j
 *
 *   type     segment
 *   F32 F16 BF16   [inputs][16], in the file's own element type
 *   Q8_0     d half [n][16], then per b: 8 groups of code + 128
 *   Q4_0 IQ4_NL    d half [n][16], then per b: nibbles
 *   Q4_1     d half [n][16], m half [n][16], then per b: nibbles
 *   Q5_0     d half [n][16], then per b: nibbles, bits
 *   Q5_1     d half [n][16], m half [n][16], then per b: nibbles, bits
 *   MXFP4    exponent byte [n][16], then per b: nibbles
 *   Q2_K     d half [16], dmin half [16], byte [16][16] per 16 inputs (low nibble scale, high
 *            minimum), then per b: pairs
 *   Q3_K     d half [16], scale int8 [16][16] per 16 inputs, then per b: pairs, bits
 *   Q4_K     d half [16], dmin half [16], scale byte [8][16], minimum byte [8][16], then per b:
 *            nibbles
 *   Q5_K     the same, then per b: nibbles, bits
 *   Q6_K     d half [16], scale int8 [16][16] per 16 inputs, then per b: nibbles, pairs
 *   IQ4_XS   d half [16], scale int8 [8][16], then per b: nibbles
 *
 * A panel is at most 4 % larger than its rows in the file. */
#ifndef SL_BACKEND_CPU_KERNELS_PANELS_H
#define SL_BACKEND_CPU_KERNELS_PANELS_H

#include "backend/cpu/kernels/kernels.h"

enum {
    SL_GROUP_BYTES = 64,
    SL_SEGMENT_BLOCKS = SL_SEGMENT / 32,
    SL_NIBBLES_BYTES = 4 * SL_GROUP_BYTES,
    SL_BITS_BYTES = SL_GROUP_BYTES,
    SL_PAIRS_BYTES = 2 * SL_GROUP_BYTES
};

/* Bytes of a panel per block of the type (1, 32 or 256 inputs); 0 when it has no panels. */
static inline size_t sl_panel_block_bytes(sl_dtype dtype)
{
    enum { HALF = 2 * SL_PANEL_ROWS, BYTE = SL_PANEL_ROWS, N = SL_SEGMENT_BLOCKS };
    switch (dtype) {
    case SL_F32:
        return 4 * SL_PANEL_ROWS;
    case SL_F16:
    case SL_BF16:
        return 2 * SL_PANEL_ROWS;
    case SL_Q8_0:
        return HALF + 8 * SL_GROUP_BYTES;
    case SL_Q4_0:
    case SL_IQ4_NL:
        return HALF + SL_NIBBLES_BYTES;
    case SL_Q4_1:
        return 2 * HALF + SL_NIBBLES_BYTES;
    case SL_Q5_0:
        return HALF + SL_NIBBLES_BYTES + SL_BITS_BYTES;
    case SL_Q5_1:
        return 2 * HALF + SL_NIBBLES_BYTES + SL_BITS_BYTES;
    case SL_MXFP4:
        return BYTE + SL_NIBBLES_BYTES;
    case SL_Q2_K:
        return 2 * HALF + N * (2 * BYTE + SL_PAIRS_BYTES);
    case SL_Q3_K:
        return HALF + N * (2 * BYTE + SL_PAIRS_BYTES + SL_BITS_BYTES);
    case SL_Q4_K:
        return 2 * HALF + N * (2 * BYTE + SL_NIBBLES_BYTES);
    case SL_Q5_K:
        return 2 * HALF + N * (2 * BYTE + SL_NIBBLES_BYTES + SL_BITS_BYTES);
    case SL_Q6_K:
        return HALF + N * (2 * BYTE + SL_NIBBLES_BYTES + SL_PAIRS_BYTES);
    case SL_IQ4_XS:
        return HALF + N * (BYTE + SL_NIBBLES_BYTES);
    default:
        return 0;
    }
}

static inline size_t sl_panel_count(uint32_t n_rows)
{
    return ((size_t)n_rows + SL_PANEL_ROWS - 1) / SL_PANEL_ROWS;
}

#endif
