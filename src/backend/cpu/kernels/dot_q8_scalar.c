/* Rows of weights in blocks of 32 times a row of int8 activations: an exact integer dot per block,
 * then one fma into the sum of the segment. dot_q8_k_scalar.c has the super-blocks of 256. */
#include "backend/cpu/kernels/scalar.h"

/* What one weight block, at any address, adds to the sum of its segment: q, da and asum are the
 * codes, scale and code sum of the activation block. */
typedef float (*add_block_fn)(const void *block, const int8_t *q, float da, int32_t asum,
                              float seg);

/* Inlined together with add_block, so that a type's kernel is one loop. */
SL_INLINE float sum_segments(const void *w, size_t block_bytes, add_block_fn add_block,
                             const int8_t *q, const float *d, const int16_t *sums, size_t n)
{
    const uint8_t *blocks = w;
    float total = 0.0f;
    for (size_t i = 0; i < n; i += SL_SEGMENT) {
        float seg = 0.0f;
        for (size_t k = i; k < sl_min_size(n, i + SL_SEGMENT); k += SL_Q8_BLOCK) {
            size_t b = k / SL_Q8_BLOCK;
            seg = add_block(blocks + block_bytes * b, q + k, d[b], sums[2 * b] + sums[2 * b + 1],
                            seg);
        }
        total = total + seg;
    }
    return total;
}

/* The codes of 16 bytes of nibbles: low ones first, then the high ones. */
SL_INLINE void unpack_nibbles(const uint8_t bytes[16], int8_t codes[32])
{
    for (int i = 0; i < 16; i++)
        codes[i] = (int8_t)(bytes[i] & 15);
    for (int i = 0; i < 16; i++)
        codes[16 + i] = (int8_t)(bytes[i] >> 4);
}

/* As unpack_nibbles, with bit i of `high` as the fifth bit of code i. */
SL_INLINE void unpack_five_bits(const uint8_t bytes[16], const uint8_t high[4], int8_t codes[32])
{
    unpack_nibbles(bytes, codes);
    for (int i = 0; i < 32; i++)
        codes[i] = (int8_t)(codes[i] | ((high[i / 8] >> (i % 8)) & 1) << 4);
}

SL_INLINE void look_up(const int8_t values[16], int8_t codes[32])
{
    for (int i = 0; i < 32; i++)
        codes[i] = values[codes[i]];
}

SL_INLINE float add_q8_0(const void *w, const int8_t *q, float da, int32_t asum, float seg)
{
    (void)asum;
    sl_block_q8_0 block;
    memcpy(&block, w, sizeof block);
    float dot = (float)sl_dot_codes(block.q, q, 32);
    return fmaf(sl_half_value(block.d) * da, dot, seg);
}

/* The offset is removed after the dot: sum (code - 8) q = sum code q - 8 sum q, in integers. */
SL_INLINE float add_q4_0(const void *w, const int8_t *q, float da, int32_t asum, float seg)
{
    sl_block_q4_0 block;
    memcpy(&block, w, sizeof block);
    int8_t codes[32];
    unpack_nibbles(block.q, codes);
    float dot = (float)(sl_dot_codes(codes, q, 32) - 8 * asum);
    return fmaf(sl_half_value(block.d) * da, dot, seg);
}

SL_INLINE float add_q4_1(const void *w, const int8_t *q, float da, int32_t asum, float seg)
{
    sl_block_q4_1 block;
    memcpy(&block, w, sizeof block);
    int8_t codes[32];
    unpack_nibbles(block.q, codes);
    float dot = (float)sl_dot_codes(codes, q, 32);
    seg = fmaf(sl_half_value(block.d) * da, dot, seg);
    return fmaf(sl_half_value(block.m) * da, (float)asum, seg);
}

SL_INLINE float add_q5_0(const void *w, const int8_t *q, float da, int32_t asum, float seg)
{
    sl_block_q5_0 block;
    memcpy(&block, w, sizeof block);
    int8_t codes[32];
    unpack_five_bits(block.q, block.high, codes);
    float dot = (float)(sl_dot_codes(codes, q, 32) - 16 * asum);
    return fmaf(sl_half_value(block.d) * da, dot, seg);
}

SL_INLINE float add_q5_1(const void *w, const int8_t *q, float da, int32_t asum, float seg)
{
    sl_block_q5_1 block;
    memcpy(&block, w, sizeof block);
    int8_t codes[32];
    unpack_five_bits(block.q, block.high, codes);
    float dot = (float)sl_dot_codes(codes, q, 32);
    seg = fmaf(sl_half_value(block.d) * da, dot, seg);
    return fmaf(sl_half_value(block.m) * da, (float)asum, seg);
}

SL_INLINE float add_iq4_nl(const void *w, const int8_t *q, float da, int32_t asum, float seg)
{
    (void)asum;
    sl_block_iq4_nl block;
    memcpy(&block, w, sizeof block);
    int8_t codes[32];
    unpack_nibbles(block.q, codes);
    look_up(sl_iq4_values, codes);
    float dot = (float)sl_dot_codes(codes, q, 32);
    return fmaf(sl_half_value(block.d) * da, dot, seg);
}

/* 2^(e - 128); the two smallest are denormal. */
SL_INLINE float mxfp4_scale(uint8_t e)
{
    return sl_float_of_bits(e >= 2 ? (uint32_t)(e - 1) << 23 : 0x00200000u << e);
}

SL_INLINE float add_mxfp4(const void *w, const int8_t *q, float da, int32_t asum, float seg)
{
    (void)asum;
    sl_block_mxfp4 block;
    memcpy(&block, w, sizeof block);
    int8_t codes[32];
    unpack_nibbles(block.q, codes);
    look_up(sl_mxfp4_values, codes);
    float dot = (float)sl_dot_codes(codes, q, 32);
    return fmaf(mxfp4_scale(block.e) * da, dot, seg);
}

SL_SCALAR_CLONES
static float dot_q8_0(const void *w, const int8_t *q, const float *d, const int16_t *sums, size_t n)
{
    return sum_segments(w, sizeof(sl_block_q8_0), add_q8_0, q, d, sums, n);
}

SL_SCALAR_CLONES
static float dot_q4_0(const void *w, const int8_t *q, const float *d, const int16_t *sums, size_t n)
{
    return sum_segments(w, sizeof(sl_block_q4_0), add_q4_0, q, d, sums, n);
}

SL_SCALAR_CLONES
static float dot_q4_1(const void *w, const int8_t *q, const float *d, const int16_t *sums, size_t n)
{
    return sum_segments(w, sizeof(sl_block_q4_1), add_q4_1, q, d, sums, n);
}

SL_SCALAR_CLONES
static float dot_q5_0(const void *w, const int8_t *q, const float *d, const int16_t *sums, size_t n)
{
    return sum_segments(w, sizeof(sl_block_q5_0), add_q5_0, q, d, sums, n);
}

SL_SCALAR_CLONES
static float dot_q5_1(const void *w, const int8_t *q, const float *d, const int16_t *sums, size_t n)
{
    return sum_segments(w, sizeof(sl_block_q5_1), add_q5_1, q, d, sums, n);
}

SL_SCALAR_CLONES
static float dot_iq4_nl(const void *w, const int8_t *q, const float *d, const int16_t *sums,
                        size_t n)
{
    return sum_segments(w, sizeof(sl_block_iq4_nl), add_iq4_nl, q, d, sums, n);
}

SL_SCALAR_CLONES
static float dot_mxfp4(const void *w, const int8_t *q, const float *d, const int16_t *sums,
                       size_t n)
{
    return sum_segments(w, sizeof(sl_block_mxfp4), add_mxfp4, q, d, sums, n);
}

const sl_dot_q8_fn sl_dot_q8_scalar[SL_DTYPE_COUNT] = {
    [SL_Q8_0] = dot_q8_0,           [SL_Q4_0] = dot_q4_0,
    [SL_Q4_1] = dot_q4_1,           [SL_Q5_0] = dot_q5_0,
    [SL_Q5_1] = dot_q5_1,           [SL_Q2_K] = sl_dot_q2_k_scalar,
    [SL_Q3_K] = sl_dot_q3_k_scalar, [SL_Q4_K] = sl_dot_q4_k_scalar,
    [SL_Q5_K] = sl_dot_q5_k_scalar, [SL_Q6_K] = sl_dot_q6_k_scalar,
    [SL_IQ4_NL] = dot_iq4_nl,       [SL_IQ4_XS] = sl_dot_iq4_xs_scalar,
    [SL_MXFP4] = dot_mxfp4,
};
