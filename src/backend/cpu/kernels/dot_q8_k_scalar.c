/* Rows of super-blocks of 256 weights times a row of int8 activations. A super-block is one segment
 * of the sum, and may lie at any address. The small scales of its parts multiply the dots in
 * integers; every product stays below 2^24 in size, so that its conversion to float is exact. */
#include "backend/cpu/kernels/scalar.h"

enum { SUB_BLOCKS = SL_SEGMENT / SL_Q8_BLOCK };

/* The sum of one segment: a super-block w, at any address, times its part of the activations. */
typedef float (*segment_fn)(const void *w, const int8_t *q, const float *d, const int16_t *sums);

/* Inlined together with segment, so that a type's kernel is one loop. */
SL_INLINE float sum_super_blocks(const void *w, size_t block_bytes, segment_fn segment,
                                 const int8_t *q, const float *d, const int16_t *sums, size_t n)
{
    const uint8_t *blocks = w;
    float total = 0.0f;
    for (size_t b = 0; b < n / SL_SEGMENT; b++)
        total = total + segment(blocks + b * block_bytes, q + SL_SEGMENT * b, d + SUB_BLOCKS * b,
                                sums + 2 * SUB_BLOCKS * b);
    return total;
}

/* The 32 codes of sub-block s from pairs of nibble rows: the low nibbles of a row of 32 bytes are
 * an even sub-block, the high ones the odd sub-block after it. */
SL_INLINE void unpack_nibble_row(const uint8_t *bytes, int s, int8_t codes[32])
{
    const uint8_t *row = bytes + 32 * (s / 2);
    for (int i = 0; i < 32; i++)
        codes[i] = (int8_t)((row[i] >> 4 * (s % 2)) & 15);
}

/* The 32 two-bit codes of sub-block s: four sub-blocks share a row of 32 bytes. */
SL_INLINE void unpack_two_bit_row(const uint8_t *bytes, int s, int8_t codes[32])
{
    const uint8_t *row = bytes + 32 * (s / 4);
    for (int i = 0; i < 32; i++)
        codes[i] = (int8_t)((row[i] >> 2 * (s % 4)) & 3);
}

/* Scale times dot of the two halves of a sub-block. */
SL_INLINE int32_t dot_halves(const int8_t codes[32], const int8_t *q, int scale0, int scale1)
{
    return scale0 * sl_dot_codes(codes, q, 16) + scale1 * sl_dot_codes(codes + 16, q + 16, 16);
}

SL_INLINE float q2_k_segment(const void *w, const int8_t *q, const float *d, const int16_t *sums)
{
    sl_block_q2_k block;
    memcpy(&block, w, sizeof block);
    float scale = sl_half_value(block.d), min = sl_half_value(block.dmin);
    float seg = 0.0f;
    for (int s = 0; s < SUB_BLOCKS; s++) {
        int8_t codes[32];
        unpack_two_bit_row(block.q, s, codes);
        int scale0 = block.scales[2 * s] & 15, min0 = block.scales[2 * s] >> 4;
        int scale1 = block.scales[2 * s + 1] & 15, min1 = block.scales[2 * s + 1] >> 4;
        int32_t dot = dot_halves(codes, q + 32 * s, scale0, scale1);
        int32_t mins = min0 * sums[2 * s] + min1 * sums[2 * s + 1];
        seg = fmaf(scale * d[s], (float)dot, seg);
        seg = fmaf(-(min * d[s]), (float)mins, seg);
    }
    return seg;
}

SL_INLINE float q3_k_segment(const void *w, const int8_t *q, const float *d, const int16_t *sums)
{
    (void)sums;
    sl_block_q3_k block;
    memcpy(&block, w, sizeof block);
    float scale = sl_half_value(block.d);
    float seg = 0.0f;
    for (int s = 0; s < SUB_BLOCKS; s++) {
        int8_t codes[32];
        unpack_two_bit_row(block.q, s, codes);
        for (int i = 0; i < 32; i++) /* a clear high bit takes 4 away */
            codes[i] = (int8_t)(codes[i] - (((block.high[i] >> s) & 1) ? 0 : 4));
        int32_t dot = dot_halves(codes, q + 32 * s, sl_q3_k_scale(block.scales, 2 * s),
                                 sl_q3_k_scale(block.scales, 2 * s + 1));
        seg = fmaf(scale * d[s], (float)dot, seg);
    }
    return seg;
}

SL_INLINE float q4_k_segment(const void *w, const int8_t *q, const float *d, const int16_t *sums)
{
    sl_block_q4_k block;
    memcpy(&block, w, sizeof block);
    float scale = sl_half_value(block.d), min = sl_half_value(block.dmin);
    float seg = 0.0f;
    for (int s = 0; s < SUB_BLOCKS; s++) {
        int8_t codes[32];
        unpack_nibble_row(block.q, s, codes);
        int sub_scale, sub_min;
        sl_q4_k_scale_min(block.scales, s, &sub_scale, &sub_min);
        int32_t dot = sub_scale * sl_dot_codes(codes, q + 32 * s, 32);
        int32_t mins = sub_min * (sums[2 * s] + sums[2 * s + 1]);
        seg = fmaf(scale * d[s], (float)dot, seg);
        seg = fmaf(-(min * d[s]), (float)mins, seg);
    }
    return seg;
}

SL_INLINE float q5_k_segment(const void *w, const int8_t *q, const float *d, const int16_t *sums)
{
    sl_block_q5_k block;
    memcpy(&block, w, sizeof block);
    float scale = sl_half_value(block.d), min = sl_half_value(block.dmin);
    float seg = 0.0f;
    for (int s = 0; s < SUB_BLOCKS; s++) {
        int8_t codes[32];
        unpack_nibble_row(block.q, s, codes);
        for (int i = 0; i < 32; i++)
            codes[i] = (int8_t)(codes[i] | ((block.high[i] >> s) & 1) << 4);
        int sub_scale, sub_min;
        sl_q4_k_scale_min(block.scales, s, &sub_scale, &sub_min);
        int32_t dot = sub_scale * sl_dot_codes(codes, q + 32 * s, 32);
        int32_t mins = sub_min * (sums[2 * s] + sums[2 * s + 1]);
        seg = fmaf(scale * d[s], (float)dot, seg);
        seg = fmaf(-(min * d[s]), (float)mins, seg);
    }
    return seg;
}

/* Sub-blocks 0 to 3 and 4 to 7 are the two halves of the block. In each, the low four bits of the
 * codes are nibbles of 64 bytes and the high two come from 32 bytes, two bits a sub-block. */
SL_INLINE float q6_k_segment(const void *w, const int8_t *q, const float *d, const int16_t *sums)
{
    (void)sums;
    sl_block_q6_k block;
    memcpy(&block, w, sizeof block);
    float scale = sl_half_value(block.d);
    float seg = 0.0f;
    for (int s = 0; s < SUB_BLOCKS; s++) {
        const uint8_t *low = block.low + 64 * (s / 4) + 32 * (s % 2);
        const uint8_t *high = block.high + 32 * (s / 4);
        int low_shift = 4 * (s % 4 / 2), high_shift = 2 * (s % 4);
        int8_t codes[32];
        for (int i = 0; i < 32; i++)
            codes[i] =
                (int8_t)((((low[i] >> low_shift) & 15) | ((high[i] >> high_shift) & 3) << 4) - 32);
        int32_t dot = dot_halves(codes, q + 32 * s, block.scales[2 * s], block.scales[2 * s + 1]);
        seg = fmaf(scale * d[s], (float)dot, seg);
    }
    return seg;
}

SL_INLINE float iq4_xs_segment(const void *w, const int8_t *q, const float *d, const int16_t *sums)
{
    (void)sums;
    sl_block_iq4_xs block;
    memcpy(&block, w, sizeof block);
    float scale = sl_half_value(block.d);
    float seg = 0.0f;
    for (int s = 0; s < SUB_BLOCKS; s++) {
        int8_t codes[32];
        for (int i = 0; i < 16; i++) {
            uint8_t byte = block.q[16 * s + i];
            codes[i] = sl_iq4_values[byte & 15];
            codes[16 + i] = sl_iq4_values[byte >> 4];
        }
        int32_t dot = sl_iq4_xs_scale(&block, s) * sl_dot_codes(codes, q + 32 * s, 32);
        seg = fmaf(scale * d[s], (float)dot, seg);
    }
    return seg;
}

SL_SCALAR_CLONES
float sl_dot_q2_k_scalar(const void *w, const int8_t *q, const float *d, const int16_t *sums,
                         size_t n)
{
    return sum_super_blocks(w, sizeof(sl_block_q2_k), q2_k_segment, q, d, sums, n);
}

SL_SCALAR_CLONES
float sl_dot_q3_k_scalar(const void *w, const int8_t *q, const float *d, const int16_t *sums,
                         size_t n)
{
    return sum_super_blocks(w, sizeof(sl_block_q3_k), q3_k_segment, q, d, sums, n);
}

SL_SCALAR_CLONES
float sl_dot_q4_k_scalar(const void *w, const int8_t *q, const float *d, const int16_t *sums,
                         size_t n)
{
    return sum_super_blocks(w, sizeof(sl_block_q4_k), q4_k_segment, q, d, sums, n);
}

SL_SCALAR_CLONES
float sl_dot_q5_k_scalar(const void *w, const int8_t *q, const float *d, const int16_t *sums,
                         size_t n)
{
    return sum_super_blocks(w, sizeof(sl_block_q5_k), q5_k_segment, q, d, sums, n);
}

SL_SCALAR_CLONES
float sl_dot_q6_k_scalar(const void *w, const int8_t *q, const float *d, const int16_t *sums,
                         size_t n)
{
    return sum_super_blocks(w, sizeof(sl_block_q6_k), q6_k_segment, q, d, sums, n);
}

SL_SCALAR_CLONES
float sl_dot_iq4_xs_scalar(const void *w, const int8_t *q, const float *d, const int16_t *sums,
                           size_t n)
{
    return sum_super_blocks(w, sizeof(sl_block_iq4_xs), iq4_xs_segment, q, d, sums, n);
}
