/* Makes the bytes of random weights: a pool of random blocks, and a tensor put together from runs
 * of it. Blocks are made, not quantised: random codes around the type's zero, and scales that give
 * the wanted deviation. Codes have mean 0 in every type, or signs of scales that make it so,
 * because a mean of all weights would be one direction that every layer amplifies, which no trained
 * model has.
 *
 * The laws of the few vectors are computed element by element. */
#include "model/random_weights.h"

#include <math.h>
#include <string.h>

#include "base/dmath.h"
#include "base/mem.h"

enum { POOL_BYTES = 1 << 20 };

struct sl_random_source {
    uint64_t state; /* of the generator */
    uint8_t *pool;  /* [pool_blocks] blocks */
    size_t block_bytes, pool_blocks;
    const uint8_t *run; /* what comes next, and how much of it */
    size_t run_left;
};

/* ---- the generator: splitmix64 ---- */

static uint64_t next(uint64_t *state)
{
    uint64_t z = *state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

/* 0 <= x < 1, a multiple of 2^-32. */
static double uniform(uint64_t *state)
{
    return (double)(next(state) >> 32) / 4294967296.0;
}

static double evenly(uint64_t *state, double low, double high)
{
    return low + (high - low) * uniform(state);
}

/* Deviation 1, within 3.47: four uniform numbers of 16 bits added. */
static double normal(uint64_t *state)
{
    const uint64_t bits = next(state);
    const int64_t sum =
        (int64_t)((bits & 0xFFFF) + (bits >> 16 & 0xFFFF) + (bits >> 32 & 0xFFFF) + (bits >> 48));
    return (double)(sum - 2 * 0xFFFF) / 37837.2;
}

/* ---- codes, eight or sixteen at once ---- */

/* n / 2 bytes of pairs of 4-bit codes, 1 to 15 around 8. */
static void nibbles(uint64_t *state, uint8_t *codes, size_t n_bytes)
{
    const uint64_t three_bits = 0x7777777777777777u, ones = 0x1111111111111111u;
    for (size_t i = 0; i < n_bytes; i += 8) {
        const uint64_t word = (next(state) & three_bits) + (next(state) & three_bits) + ones;
        memcpy(codes + i, &word, 8);
    }
}

/* Any bytes: the further bits of codes. */
static void bits(uint64_t *state, uint8_t *bytes, size_t n_bytes)
{
    for (size_t i = 0; i < n_bytes; i += 8) {
        const uint64_t word = next(state);
        memcpy(bytes + i, &word, sl_min_size(8, n_bytes - i));
    }
}

/* Signed bytes, -126 to 126, bell-shaped: sums of four numbers of 6 bits. */
static void signed_bytes(uint64_t *state, int8_t *codes, size_t n)
{
    const uint64_t six_bits = 0x3F3F3F3F3F3F3F3Fu;
    for (size_t i = 0; i < n; i += 8) {
        const uint64_t word = (next(state) & six_bits) + (next(state) & six_bits) +
                              (next(state) & six_bits) + (next(state) & six_bits);
        for (size_t k = 0; k < 8; k++)
            codes[i + k] = (int8_t)((int)(word >> 8 * k & 0xFF) - 126);
    }
}

/* Root mean squares of the codes, of the scale codes, and of the tables. */
static const double nibble_rms = 3.2404;    /* sum of two of 0..7 */
static const double five_bit_rms = 8.6313;  /* the same and 16 times a bit */
static const double six_bit_rms = 18.1797;  /* the same and 16 times two bits */
static const double byte_rms = 36.9459;     /* sum of four of 0..63 */
static const double two_bit_rms = 1.1180;   /* 0..3 around 1.5 */
static const double three_bit_rms = 2.3452; /* -4..3 */
static const double iq4_rms = 67.44;
static const double mxfp4_mean_square = 34.25; /* of the doubled codes */
static const double scale_rms_16 = 23.95;      /* 16..31 */
static const double scale_rms_32 = 48.38;      /* 32..63 */

/* ---- blocks ---- */

/* A block's scale: about d, as blocks of real files differ. */
static uint16_t scale(uint64_t *state, double d)
{
    return sl_f32_to_f16((float)(d * evenly(state, 0.8, 1.2)));
}

static uint16_t signed_scale(uint64_t *state, double d)
{
    return scale(state, next(state) & 1 ? d : -d);
}

/* factor times a scale, for minimums that move the middle of the codes to 0. */
static uint16_t times(uint16_t d, float factor)
{
    return sl_f32_to_f16(sl_f16_to_f32(d) * factor);
}

/* Eight scale codes of 32 to 63 and equal minimum codes, packed as Q4_K and Q5_K have them. */
static void pack_scales_mins(uint64_t *state, uint8_t scales[12])
{
    for (int s = 0; s < 4; s++) {
        const unsigned low = 32 | (next(state) & 31), high = 32 | (next(state) & 31);
        scales[s] = scales[s + 4] = (uint8_t)(low | (high >> 4) << 6);
        scales[s + 8] = (uint8_t)((high & 15) | (high & 15) << 4);
    }
}

/* 16 to 31 with either sign: a code around an offset of 32. */
static unsigned signed_scale_code(uint64_t *state)
{
    const uint64_t r = next(state);
    const unsigned size = 16 | (r & 15);
    return r >> 32 & 1 ? 32 + size : 32 - size;
}

static void make_q8_0(uint64_t *state, double std, uint8_t *out)
{
    sl_block_q8_0 block = {.d = scale(state, std / byte_rms)};
    signed_bytes(state, block.q, sizeof block.q);
    memcpy(out, &block, sizeof block);
}

static void make_q4_0(uint64_t *state, double std, uint8_t *out)
{
    sl_block_q4_0 block = {.d = scale(state, std / nibble_rms)};
    nibbles(state, block.q, sizeof block.q);
    memcpy(out, &block, sizeof block);
}

static void make_q4_1(uint64_t *state, double std, uint8_t *out)
{
    sl_block_q4_1 block = {.d = scale(state, std / nibble_rms)};
    block.m = times(block.d, -8.0f);
    nibbles(state, block.q, sizeof block.q);
    memcpy(out, &block, sizeof block);
}

static void make_q5_0(uint64_t *state, double std, uint8_t *out)
{
    sl_block_q5_0 block = {.d = scale(state, std / five_bit_rms)};
    bits(state, block.high, sizeof block.high);
    nibbles(state, block.q, sizeof block.q);
    memcpy(out, &block, sizeof block);
}

static void make_q5_1(uint64_t *state, double std, uint8_t *out)
{
    sl_block_q5_1 block = {.d = scale(state, std / five_bit_rms)};
    block.m = times(block.d, -16.0f);
    bits(state, block.high, sizeof block.high);
    nibbles(state, block.q, sizeof block.q);
    memcpy(out, &block, sizeof block);
}

static void make_q2_k(uint64_t *state, double std, uint8_t *out)
{
    const double code_rms = 11.73; /* 8..15 */
    sl_block_q2_k block = {.d = scale(state, std / (two_bit_rms * code_rms))};
    block.dmin = times(block.d, 1.5f);
    for (size_t s = 0; s < sizeof block.scales; s++)
        block.scales[s] = (uint8_t)(0x11 * (8 | (next(state) & 7)));
    bits(state, block.q, sizeof block.q);
    memcpy(out, &block, sizeof block);
}

static void make_q3_k(uint64_t *state, double std, uint8_t *out)
{
    sl_block_q3_k block = {.d = scale(state, std / (three_bit_rms * scale_rms_16))};
    bits(state, block.high, sizeof block.high);
    bits(state, block.q, sizeof block.q);
    for (unsigned s = 0; s < 16; s++) {
        const unsigned code = signed_scale_code(state);
        block.scales[s % 8] |= (uint8_t)((code & 15) << (s < 8 ? 0 : 4));
        block.scales[8 + s % 4] |= (uint8_t)((code >> 4) << 2 * (s / 4));
    }
    memcpy(out, &block, sizeof block);
}

static void make_q4_k(uint64_t *state, double std, uint8_t *out)
{
    sl_block_q4_k block = {.d = scale(state, std / (nibble_rms * scale_rms_32))};
    block.dmin = times(block.d, 8.0f);
    pack_scales_mins(state, block.scales);
    nibbles(state, block.q, sizeof block.q);
    memcpy(out, &block, sizeof block);
}

static void make_q5_k(uint64_t *state, double std, uint8_t *out)
{
    sl_block_q5_k block = {.d = scale(state, std / (five_bit_rms * scale_rms_32))};
    block.dmin = times(block.d, 16.0f);
    pack_scales_mins(state, block.scales);
    bits(state, block.high, sizeof block.high);
    nibbles(state, block.q, sizeof block.q);
    memcpy(out, &block, sizeof block);
}

static void make_q6_k(uint64_t *state, double std, uint8_t *out)
{
    sl_block_q6_k block = {.d = scale(state, std / (six_bit_rms * scale_rms_32))};
    nibbles(state, block.low, sizeof block.low);
    bits(state, block.high, sizeof block.high);
    for (size_t s = 0; s < sizeof block.scales; s++) {
        const uint64_t r = next(state);
        const int size = (int)(32 | (r & 31));
        block.scales[s] = (int8_t)(r >> 32 & 1 ? size : -size);
    }
    memcpy(out, &block, sizeof block);
}

static void make_iq4_nl(uint64_t *state, double std, uint8_t *out)
{
    sl_block_iq4_nl block = {.d = signed_scale(state, std / iq4_rms)};
    bits(state, block.q, sizeof block.q);
    memcpy(out, &block, sizeof block);
}

static void make_iq4_xs(uint64_t *state, double std, uint8_t *out)
{
    sl_block_iq4_xs block = {.d = scale(state, std / (iq4_rms * scale_rms_16))};
    for (unsigned s = 0; s < 8; s++) {
        const unsigned code = signed_scale_code(state);
        block.scales_low[s / 2] |= (uint8_t)((code & 15) << 4 * (s % 2));
        block.scales_high |= (uint16_t)((code >> 4) << 2 * s);
    }
    bits(state, block.q, sizeof block.q);
    memcpy(out, &block, sizeof block);
}

/* Scales are powers of two: the two around the wanted one, mixed so that the variance is right. */
static void make_mxfp4(uint64_t *state, double std, uint8_t *out)
{
    const double wanted = std * std / mxfp4_mean_square; /* square of the scale */
    int exponent = 0;
    while (exponent > -120 && ldexp(1.0, 2 * exponent) > wanted)
        exponent--;
    const double excess = wanted / ldexp(1.0, 2 * exponent) - 1.0; /* 0 to 3 */
    sl_block_mxfp4 block = {.e = (uint8_t)(128 + exponent + (uniform(state) * 3.0 < excess))};
    bits(state, block.q, sizeof block.q);
    memcpy(out, &block, sizeof block);
}

static uint16_t to_bf16(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return (uint16_t)((u + 0x7FFF + (u >> 16 & 1)) >> 16);
}

static void put_float(sl_dtype dtype, double x, uint8_t *out)
{
    const float value = (float)x;
    const uint16_t half = dtype == SL_F16 ? sl_f32_to_f16(value) : to_bf16(value);
    if (dtype == SL_F32)
        memcpy(out, &value, sizeof value);
    else
        memcpy(out, &half, sizeof half);
}

typedef void (*block_maker)(uint64_t *state, double std, uint8_t *out);

static const block_maker makers[SL_DTYPE_COUNT] = {
    [SL_Q8_0] = make_q8_0,   [SL_Q4_0] = make_q4_0,     [SL_Q4_1] = make_q4_1,
    [SL_Q5_0] = make_q5_0,   [SL_Q5_1] = make_q5_1,     [SL_Q2_K] = make_q2_k,
    [SL_Q3_K] = make_q3_k,   [SL_Q4_K] = make_q4_k,     [SL_Q5_K] = make_q5_k,
    [SL_Q6_K] = make_q6_k,   [SL_IQ4_NL] = make_iq4_nl, [SL_IQ4_XS] = make_iq4_xs,
    [SL_MXFP4] = make_mxfp4,
};

/* ---- values of float types ---- */

static double draw(uint64_t *state, sl_random_law law, double deviation)
{
    switch (law) {
    case SL_RANDOM_NORM:
        return evenly(state, 0.9, 1.1);
    case SL_RANDOM_A_COEF:
        return -sl_exp_f64(evenly(state, sl_log_f64(0.1), sl_log_f64(8.0)));
    case SL_RANDOM_DT: /* the inverse of softplus */
        return sl_log_f64(
            sl_exp_f64(sl_exp_f64(evenly(state, sl_log_f64(0.001), sl_log_f64(0.1)))) - 1.0);
    default:
        return deviation * normal(state);
    }
}

/* ---- the source ---- */

sl_status sl_random_open(sl_dtype dtype, size_t n_elems, sl_random_law law, double deviation,
                         uint64_t seed, sl_random_source **out, sl_error *err)
{
    const sl_dtype_info *info = sl_dtype_get(dtype);
    const size_t n_blocks = n_elems / info->block_elems;
    sl_random_source *source = sl_alloc_zero(SL_MEM_GENERAL, sizeof *source);
    if (!source)
        return sl_fail(err, SL_ERR_MEMORY, "out of memory for random weights");
    source->state = seed;
    source->block_bytes = info->block_bytes;
    source->pool_blocks = sl_min_size(n_blocks, POOL_BYTES / info->block_bytes);
    const size_t pool_bytes = source->pool_blocks * source->block_bytes;
    source->pool = sl_alloc(SL_MEM_GENERAL, pool_bytes);
    if (!source->pool) {
        sl_random_close(source);
        return sl_fail(err, SL_ERR_MEMORY, "out of memory for random weights");
    }
    for (size_t i = 0; i < source->pool_blocks; i++) {
        uint8_t *block = source->pool + i * source->block_bytes;
        if (makers[dtype])
            makers[dtype](&source->state, deviation, block);
        else
            put_float(dtype, draw(&source->state, law, deviation), block);
    }
    source->run = source->pool;
    source->run_left = pool_bytes;
    *out = source;
    return SL_OK;
}

void sl_random_close(sl_random_source *source)
{
    if (!source)
        return;
    sl_free(source->pool);
    sl_free(source);
}

/* A stretch of the pool, anywhere, so that rows of a matrix are not copies of each other. */
static void next_run(sl_random_source *source)
{
    const uint64_t r = next(&source->state);
    const size_t first = (size_t)((r & 0xFFFFFFFF) * source->pool_blocks >> 32);
    const size_t longest = source->pool_blocks - first;
    const size_t n = 1 + (size_t)((r >> 32) * longest >> 32);
    source->run = source->pool + first * source->block_bytes;
    source->run_left = n * source->block_bytes;
}

void sl_random_read(sl_random_source *source, uint8_t *bytes, size_t n)
{
    while (n > 0) {
        if (source->run_left == 0)
            next_run(source);
        const size_t now = sl_min_size(n, source->run_left);
        memcpy(bytes, source->run, now);
        source->run += now;
        source->run_left -= now;
        bytes += now;
        n -= now;
    }
}
