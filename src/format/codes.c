/* One reader per type, in the layouts of dtype.h. */
#include "format/codes.h"

#include <assert.h>
#include <string.h>

enum { SUB_BLOCKS = 8 }; /* of 32 elements in a super-block */

bool sl_codes_are_plain(sl_dtype dtype)
{
    return dtype == SL_Q8_0 || dtype == SL_Q4_0 || dtype == SL_Q5_0 || dtype == SL_IQ4_NL;
}

bool sl_codes_have_min(sl_dtype dtype)
{
    return dtype == SL_Q4_1 || dtype == SL_Q5_1 || dtype == SL_Q2_K || dtype == SL_Q4_K ||
           dtype == SL_Q5_K;
}

/* Low nibbles first, then the high ones; `high` gives each code a fifth bit, or is NULL. */
static void read_nibbles(const uint8_t bytes[16], const uint8_t *high, int offset, int8_t q[32])
{
    for (int i = 0; i < 32; i++) {
        int code = i < 16 ? bytes[i] & 15 : bytes[i - 16] >> 4;
        if (high)
            code |= ((high[i / 8] >> (i % 8)) & 1) << 4;
        q[i] = (int8_t)(code - offset);
    }
}

static void look_up(const int8_t values[16], int8_t q[32])
{
    for (int i = 0; i < 32; i++)
        q[i] = values[q[i]];
}

/* Sub-block s of nibbles in rows of 32 bytes: low ones are an even sub-block, high ones the odd one
 * after it. */
static void read_nibble_row(const uint8_t *bytes, int s, int8_t q[32])
{
    for (int i = 0; i < 32; i++)
        q[i] = (int8_t)((bytes[32 * (s / 2) + i] >> 4 * (s % 2)) & 15);
}

static void read_pair_row(const uint8_t *bytes, int s, int8_t q[32])
{
    for (int i = 0; i < 32; i++)
        q[i] = (int8_t)((bytes[32 * (s / 4) + i] >> 2 * (s % 4)) & 3);
}

static void read_q2_k(const sl_block_q2_k *block, int s, sl_codes *out)
{
    read_pair_row(block->q, s, out->q);
    out->d = sl_f16_to_f32(block->d);
    out->m = -sl_f16_to_f32(block->dmin);
    for (int h = 0; h < 2; h++) {
        out->scale[h] = (int8_t)(block->scales[2 * s + h] & 15);
        out->min[h] = block->scales[2 * s + h] >> 4;
    }
}

static void read_q3_k(const sl_block_q3_k *block, int s, sl_codes *out)
{
    read_pair_row(block->q, s, out->q);
    for (int i = 0; i < 32; i++)
        out->q[i] = (int8_t)(out->q[i] - (((block->high[i] >> s) & 1) ? 0 : 4));
    out->d = sl_f16_to_f32(block->d);
    for (int h = 0; h < 2; h++)
        out->scale[h] = (int8_t)sl_q3_k_scale(block->scales, 2 * s + h);
}

static void read_q4_k_scales(uint16_t d, uint16_t dmin, const uint8_t scales[12], int s,
                             sl_codes *out)
{
    int scale, min;
    sl_q4_k_scale_min(scales, s, &scale, &min);
    out->d = sl_f16_to_f32(d);
    out->m = -sl_f16_to_f32(dmin);
    out->scale[0] = out->scale[1] = (int8_t)scale;
    out->min[0] = out->min[1] = (uint8_t)min;
}

static void read_q6_k(const sl_block_q6_k *block, int s, sl_codes *out)
{
    const uint8_t *low = block->low + 64 * (s / 4) + 32 * (s % 2);
    const uint8_t *high = block->high + 32 * (s / 4);
    for (int i = 0; i < 32; i++) {
        int code = ((low[i] >> 4 * (s % 4 / 2)) & 15) | ((high[i] >> 2 * (s % 4)) & 3) << 4;
        out->q[i] = (int8_t)(code - 32);
    }
    out->d = sl_f16_to_f32(block->d);
    for (int h = 0; h < 2; h++)
        out->scale[h] = block->scales[2 * s + h];
}

static void read_super_block(sl_dtype dtype, const uint8_t *bytes, int s, sl_codes *out)
{
    union {
        sl_block_q2_k q2;
        sl_block_q3_k q3;
        sl_block_q4_k q4;
        sl_block_q5_k q5;
        sl_block_q6_k q6;
        sl_block_iq4_xs iq4;
    } block;
    memcpy(&block, bytes, sl_dtype_get(dtype)->block_bytes);
    switch (dtype) {
    case SL_Q2_K:
        read_q2_k(&block.q2, s, out);
        return;
    case SL_Q3_K:
        read_q3_k(&block.q3, s, out);
        return;
    case SL_Q4_K:
        read_nibble_row(block.q4.q, s, out->q);
        read_q4_k_scales(block.q4.d, block.q4.dmin, block.q4.scales, s, out);
        return;
    case SL_Q5_K:
        read_nibble_row(block.q5.q, s, out->q);
        for (int i = 0; i < 32; i++)
            out->q[i] = (int8_t)(out->q[i] | ((block.q5.high[i] >> s) & 1) << 4);
        read_q4_k_scales(block.q5.d, block.q5.dmin, block.q5.scales, s, out);
        return;
    case SL_Q6_K:
        read_q6_k(&block.q6, s, out);
        return;
    default:
        assert(dtype == SL_IQ4_XS);
        read_nibbles(block.iq4.q + 16 * s, NULL, 0, out->q);
        look_up(sl_iq4_values, out->q);
        out->d = sl_f16_to_f32(block.iq4.d);
        out->scale[0] = out->scale[1] = (int8_t)sl_iq4_xs_scale(&block.iq4, s);
    }
}

static void read_block(sl_dtype dtype, const uint8_t *bytes, sl_codes *out)
{
    union {
        sl_block_q8_0 q8_0;
        sl_block_q4_0 q4_0;
        sl_block_q4_1 q4_1;
        sl_block_q5_0 q5_0;
        sl_block_q5_1 q5_1;
        sl_block_iq4_nl iq4_nl;
        sl_block_mxfp4 mxfp4;
    } block;
    memcpy(&block, bytes, sl_dtype_get(dtype)->block_bytes);
    if (dtype != SL_MXFP4)
        out->d = sl_f16_to_f32(block.q8_0.d); /* the first member of every other one */
    switch (dtype) {
    case SL_Q8_0:
        memcpy(out->q, block.q8_0.q, sizeof out->q);
        return;
    case SL_Q4_0:
        read_nibbles(block.q4_0.q, NULL, 8, out->q);
        return;
    case SL_Q4_1:
        read_nibbles(block.q4_1.q, NULL, 0, out->q);
        out->m = sl_f16_to_f32(block.q4_1.m);
        out->min[0] = out->min[1] = 1;
        return;
    case SL_Q5_0:
        read_nibbles(block.q5_0.q, block.q5_0.high, 16, out->q);
        return;
    case SL_Q5_1:
        read_nibbles(block.q5_1.q, block.q5_1.high, 0, out->q);
        out->m = sl_f16_to_f32(block.q5_1.m);
        out->min[0] = out->min[1] = 1;
        return;
    case SL_IQ4_NL:
        read_nibbles(block.iq4_nl.q, NULL, 0, out->q);
        look_up(sl_iq4_values, out->q);
        return;
    default:
        assert(dtype == SL_MXFP4);
        read_nibbles(block.mxfp4.q, NULL, 0, out->q);
        look_up(sl_mxfp4_values, out->q);
        out->d = sl_mxfp4_scale(block.mxfp4.e);
    }
}

void sl_read_codes(sl_dtype dtype, const void *row, size_t b, sl_codes *out)
{
    const sl_dtype_info *info = sl_dtype_get(dtype);
    assert(info->quantised);
    *out = (sl_codes){.scale = {1, 1}};
    const uint8_t *bytes = row;
    if (info->block_elems == 32)
        read_block(dtype, bytes + b * info->block_bytes, out);
    else
        read_super_block(dtype, bytes + b / SUB_BLOCKS * info->block_bytes, (int)(b % SUB_BLOCKS),
                         out);
}
