/* Blocks of every element type to float32.
 *
 * Products of a block's constants and codes are exact in float32 (a half has 11 significant bits,
 * scales at most 7, codes at most 7), so only the subtraction of a minimum rounds, once. Each block
 * is copied before it is read: files give no alignment. */
#include "format/dtype.h"

#include <assert.h>
#include <string.h>

static void dequantise_f32(const uint8_t *src, float *dst, size_t n)
{
    memcpy(dst, src, n * sizeof *dst);
}

static void dequantise_f16(const uint8_t *src, float *dst, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint16_t h;
        memcpy(&h, src + 2 * i, sizeof h);
        dst[i] = sl_f16_to_f32(h);
    }
}

static void dequantise_bf16(const uint8_t *src, float *dst, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint16_t h;
        memcpy(&h, src + 2 * i, sizeof h);
        dst[i] = sl_bf16_to_f32(h);
    }
}

static void dequantise_q8_0(const uint8_t *src, float *dst, size_t n)
{
    sl_block_q8_0 block;
    for (; n > 0; n -= 32, src += sizeof block, dst += 32) {
        memcpy(&block, src, sizeof block);
        float d = sl_f16_to_f32(block.d);
        for (int i = 0; i < 32; i++)
            dst[i] = d * (float)block.q[i];
    }
}

static void dequantise_q4_0(const uint8_t *src, float *dst, size_t n)
{
    sl_block_q4_0 block;
    for (; n > 0; n -= 32, src += sizeof block, dst += 32) {
        memcpy(&block, src, sizeof block);
        float d = sl_f16_to_f32(block.d);
        for (int i = 0; i < 16; i++) {
            dst[i] = d * (float)((block.q[i] & 15) - 8);
            dst[i + 16] = d * (float)((block.q[i] >> 4) - 8);
        }
    }
}

static void dequantise_q4_1(const uint8_t *src, float *dst, size_t n)
{
    sl_block_q4_1 block;
    for (; n > 0; n -= 32, src += sizeof block, dst += 32) {
        memcpy(&block, src, sizeof block);
        float d = sl_f16_to_f32(block.d), m = sl_f16_to_f32(block.m);
        for (int i = 0; i < 16; i++) {
            dst[i] = d * (float)(block.q[i] & 15) + m;
            dst[i + 16] = d * (float)(block.q[i] >> 4) + m;
        }
    }
}

/* The fifth bit of element i, in its place. */
static int fifth_bit(const uint8_t high[4], int i)
{
    return (high[i / 8] >> i % 8 & 1) << 4;
}

static void dequantise_q5_0(const uint8_t *src, float *dst, size_t n)
{
    sl_block_q5_0 block;
    for (; n > 0; n -= 32, src += sizeof block, dst += 32) {
        memcpy(&block, src, sizeof block);
        float d = sl_f16_to_f32(block.d);
        for (int i = 0; i < 16; i++) {
            dst[i] = d * (float)(((block.q[i] & 15) | fifth_bit(block.high, i)) - 16);
            dst[i + 16] = d * (float)((block.q[i] >> 4 | fifth_bit(block.high, i + 16)) - 16);
        }
    }
}

static void dequantise_q5_1(const uint8_t *src, float *dst, size_t n)
{
    sl_block_q5_1 block;
    for (; n > 0; n -= 32, src += sizeof block, dst += 32) {
        memcpy(&block, src, sizeof block);
        float d = sl_f16_to_f32(block.d), m = sl_f16_to_f32(block.m);
        for (int i = 0; i < 16; i++) {
            dst[i] = d * (float)((block.q[i] & 15) | fifth_bit(block.high, i)) + m;
            dst[i + 16] = d * (float)(block.q[i] >> 4 | fifth_bit(block.high, i + 16)) + m;
        }
    }
}

/* Q2_K and Q3_K share the order of their 2-bit codes: 16 sub-blocks of 16; eight of them, a half of
 * the block, lie in 32 bytes, two bits deeper for every second one. */
static int two_bits(const uint8_t q[64], int s, int i)
{
    return q[32 * (s / 8) + 16 * (s % 2) + i] >> 2 * (s % 8 / 2) & 3;
}

static void dequantise_q2_k(const uint8_t *src, float *dst, size_t n)
{
    sl_block_q2_k block;
    for (; n > 0; n -= 256, src += sizeof block, dst += 256) {
        memcpy(&block, src, sizeof block);
        float d = sl_f16_to_f32(block.d), dmin = sl_f16_to_f32(block.dmin);
        for (int s = 0; s < 16; s++) {
            float scale = d * (float)(block.scales[s] & 15);
            float min = dmin * (float)(block.scales[s] >> 4);
            for (int i = 0; i < 16; i++)
                dst[16 * s + i] = scale * (float)two_bits(block.q, s, i) - min;
        }
    }
}

static void dequantise_q3_k(const uint8_t *src, float *dst, size_t n)
{
    sl_block_q3_k block;
    for (; n > 0; n -= 256, src += sizeof block, dst += 256) {
        memcpy(&block, src, sizeof block);
        float d = sl_f16_to_f32(block.d);
        for (int s = 0; s < 16; s++) {
            float scale = d * (float)sl_q3_k_scale(block.scales, s);
            for (int i = 0; i < 16; i++) {
                int third = block.high[16 * (s % 2) + i] >> s / 2 & 1;
                dst[16 * s + i] = scale * (float)(two_bits(block.q, s, i) - (third ? 0 : 4));
            }
        }
    }
}

static void dequantise_q4_k(const uint8_t *src, float *dst, size_t n)
{
    sl_block_q4_k block;
    for (; n > 0; n -= 256, src += sizeof block, dst += 256) {
        memcpy(&block, src, sizeof block);
        float d = sl_f16_to_f32(block.d), dmin = sl_f16_to_f32(block.dmin);
        for (int s = 0; s < 8; s++) {
            int scale_code, min_code;
            sl_q4_k_scale_min(block.scales, s, &scale_code, &min_code);
            float scale = d * (float)scale_code, min = dmin * (float)min_code;
            for (int i = 0; i < 32; i++) {
                int code = block.q[32 * (s / 2) + i] >> 4 * (s % 2) & 15;
                dst[32 * s + i] = scale * (float)code - min;
            }
        }
    }
}

static void dequantise_q5_k(const uint8_t *src, float *dst, size_t n)
{
    sl_block_q5_k block;
    for (; n > 0; n -= 256, src += sizeof block, dst += 256) {
        memcpy(&block, src, sizeof block);
        float d = sl_f16_to_f32(block.d), dmin = sl_f16_to_f32(block.dmin);
        for (int s = 0; s < 8; s++) {
            int scale_code, min_code;
            sl_q4_k_scale_min(block.scales, s, &scale_code, &min_code);
            float scale = d * (float)scale_code, min = dmin * (float)min_code;
            for (int i = 0; i < 32; i++) {
                int code = block.q[32 * (s / 2) + i] >> 4 * (s % 2) & 15;
                code |= (block.high[i] >> s & 1) << 4;
                dst[32 * s + i] = scale * (float)code - min;
            }
        }
    }
}

/* Q6_K: each half of 128 elements has 64 bytes of low nibbles and 32 bytes of high bit pairs; the
 * quarter r of a half takes nibble r / 2 of low byte 32 (r % 2) + i and pair r of high byte i. */
static void dequantise_q6_k(const uint8_t *src, float *dst, size_t n)
{
    sl_block_q6_k block;
    for (; n > 0; n -= 256, src += sizeof block, dst += 256) {
        memcpy(&block, src, sizeof block);
        float d = sl_f16_to_f32(block.d);
        for (int s = 0; s < 16; s++) {
            int half = s / 8, quarter = s % 8 / 2, first = 16 * (s % 2);
            float scale = d * (float)block.scales[s];
            for (int i = first; i < first + 16; i++) {
                int low = block.low[64 * half + 32 * (quarter % 2) + i] >> 4 * (quarter / 2) & 15;
                int high = block.high[32 * half + i] >> 2 * quarter & 3;
                dst[128 * half + 32 * quarter + i] = scale * (float)((low | high << 4) - 32);
            }
        }
    }
}

static void dequantise_iq4_nl(const uint8_t *src, float *dst, size_t n)
{
    sl_block_iq4_nl block;
    for (; n > 0; n -= 32, src += sizeof block, dst += 32) {
        memcpy(&block, src, sizeof block);
        float d = sl_f16_to_f32(block.d);
        for (int i = 0; i < 16; i++) {
            dst[i] = d * (float)sl_iq4_values[block.q[i] & 15];
            dst[i + 16] = d * (float)sl_iq4_values[block.q[i] >> 4];
        }
    }
}

static void dequantise_iq4_xs(const uint8_t *src, float *dst, size_t n)
{
    sl_block_iq4_xs block;
    for (; n > 0; n -= 256, src += sizeof block, dst += 256) {
        memcpy(&block, src, sizeof block);
        float d = sl_f16_to_f32(block.d);
        for (int s = 0; s < 8; s++) {
            float scale = d * (float)sl_iq4_xs_scale(&block, s);
            for (int i = 0; i < 16; i++) {
                uint8_t codes = block.q[16 * s + i];
                dst[32 * s + i] = scale * (float)sl_iq4_values[codes & 15];
                dst[32 * s + i + 16] = scale * (float)sl_iq4_values[codes >> 4];
            }
        }
    }
}

static void dequantise_mxfp4(const uint8_t *src, float *dst, size_t n)
{
    sl_block_mxfp4 block;
    for (; n > 0; n -= 32, src += sizeof block, dst += 32) {
        memcpy(&block, src, sizeof block);
        float scale = sl_mxfp4_scale(block.e);
        for (int i = 0; i < 16; i++) {
            dst[i] = scale * (float)sl_mxfp4_values[block.q[i] & 15];
            dst[i + 16] = scale * (float)sl_mxfp4_values[block.q[i] >> 4];
        }
    }
}

void sl_dequantise(sl_dtype dtype, const void *src, float *dst, size_t n)
{
    static void (*const by_type[SL_DTYPE_COUNT])(const uint8_t *, float *, size_t) = {
        [SL_F32] = dequantise_f32,       [SL_F16] = dequantise_f16,
        [SL_BF16] = dequantise_bf16,     [SL_Q8_0] = dequantise_q8_0,
        [SL_Q4_0] = dequantise_q4_0,     [SL_Q4_1] = dequantise_q4_1,
        [SL_Q5_0] = dequantise_q5_0,     [SL_Q5_1] = dequantise_q5_1,
        [SL_Q2_K] = dequantise_q2_k,     [SL_Q3_K] = dequantise_q3_k,
        [SL_Q4_K] = dequantise_q4_k,     [SL_Q5_K] = dequantise_q5_k,
        [SL_Q6_K] = dequantise_q6_k,     [SL_IQ4_NL] = dequantise_iq4_nl,
        [SL_IQ4_XS] = dequantise_iq4_xs, [SL_MXFP4] = dequantise_mxfp4,
    };
    assert(n % sl_dtype_get(dtype)->block_elems == 0);
    if (n > 0)
        by_type[dtype](src, dst, n);
}
