/* What is known about each element type: names, numbers, block sizes, and the few decodings that
 * kernels and dequantisers share (halves, 6-bit scales, code tables). It refuses nothing: a type
 * that sluice cannot use is only named, so that whoever needs the tensor can say so. */
#include "format/dtype.h"

#include "base/bits.h"

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "blocks are read as they lie in the file: little-endian hosts only"
#endif

static const sl_dtype_info infos[SL_DTYPE_COUNT] = {
    [SL_F32] = {"F32", 1, 4, false},
    [SL_F16] = {"F16", 1, 2, false},
    [SL_BF16] = {"BF16", 1, 2, false},
    [SL_Q8_0] = {"Q8_0", 32, sizeof(sl_block_q8_0), true},
    [SL_Q4_0] = {"Q4_0", 32, sizeof(sl_block_q4_0), true},
    [SL_Q4_1] = {"Q4_1", 32, sizeof(sl_block_q4_1), true},
    [SL_Q5_0] = {"Q5_0", 32, sizeof(sl_block_q5_0), true},
    [SL_Q5_1] = {"Q5_1", 32, sizeof(sl_block_q5_1), true},
    [SL_Q2_K] = {"Q2_K", 256, sizeof(sl_block_q2_k), true},
    [SL_Q3_K] = {"Q3_K", 256, sizeof(sl_block_q3_k), true},
    [SL_Q4_K] = {"Q4_K", 256, sizeof(sl_block_q4_k), true},
    [SL_Q5_K] = {"Q5_K", 256, sizeof(sl_block_q5_k), true},
    [SL_Q6_K] = {"Q6_K", 256, sizeof(sl_block_q6_k), true},
    [SL_IQ4_NL] = {"IQ4_NL", 32, sizeof(sl_block_iq4_nl), true},
    [SL_IQ4_XS] = {"IQ4_XS", 256, sizeof(sl_block_iq4_xs), true},
    [SL_MXFP4] = {"MXFP4", 32, sizeof(sl_block_mxfp4), true},
};

/* The structs must be the bytes of the file, without padding. */
_Static_assert(sizeof(sl_block_q8_0) == 34, "Q8_0");
_Static_assert(sizeof(sl_block_q4_0) == 18, "Q4_0");
_Static_assert(sizeof(sl_block_q4_1) == 20, "Q4_1");
_Static_assert(sizeof(sl_block_q5_0) == 22, "Q5_0");
_Static_assert(sizeof(sl_block_q5_1) == 24, "Q5_1");
_Static_assert(sizeof(sl_block_q2_k) == 84, "Q2_K");
_Static_assert(sizeof(sl_block_q3_k) == 110, "Q3_K");
_Static_assert(sizeof(sl_block_q4_k) == 144, "Q4_K");
_Static_assert(sizeof(sl_block_q5_k) == 176, "Q5_K");
_Static_assert(sizeof(sl_block_q6_k) == 210, "Q6_K");
_Static_assert(sizeof(sl_block_iq4_nl) == 18, "IQ4_NL");
_Static_assert(sizeof(sl_block_iq4_xs) == 136, "IQ4_XS");
_Static_assert(sizeof(sl_block_mxfp4) == 17, "MXFP4");

/* By ggml's number. The numbers without a type of ours are named for messages only. */
static const struct ggml_entry {
    const char *name;
    bool usable;
    sl_dtype dtype;
} ggml_types[] = {
    [0] = {"F32", true, SL_F32},
    [1] = {"F16", true, SL_F16},
    [2] = {"Q4_0", true, SL_Q4_0},
    [3] = {"Q4_1", true, SL_Q4_1},
    [4] = {.name = "Q4_2"},
    [5] = {.name = "Q4_3"},
    [6] = {"Q5_0", true, SL_Q5_0},
    [7] = {"Q5_1", true, SL_Q5_1},
    [8] = {"Q8_0", true, SL_Q8_0},
    [9] = {.name = "Q8_1"},
    [10] = {"Q2_K", true, SL_Q2_K},
    [11] = {"Q3_K", true, SL_Q3_K},
    [12] = {"Q4_K", true, SL_Q4_K},
    [13] = {"Q5_K", true, SL_Q5_K},
    [14] = {"Q6_K", true, SL_Q6_K},
    [15] = {.name = "Q8_K"},
    [16] = {.name = "IQ2_XXS"},
    [17] = {.name = "IQ2_XS"},
    [18] = {.name = "IQ3_XXS"},
    [19] = {.name = "IQ1_S"},
    [20] = {"IQ4_NL", true, SL_IQ4_NL},
    [21] = {.name = "IQ3_S"},
    [22] = {.name = "IQ2_S"},
    [23] = {"IQ4_XS", true, SL_IQ4_XS},
    [24] = {.name = "I8"},
    [25] = {.name = "I16"},
    [26] = {.name = "I32"},
    [27] = {.name = "I64"},
    [28] = {.name = "F64"},
    [29] = {.name = "IQ1_M"},
    [30] = {"BF16", true, SL_BF16},
    [31] = {.name = "Q4_0_4_4"},
    [32] = {.name = "Q4_0_4_8"},
    [33] = {.name = "Q4_0_8_8"},
    [34] = {.name = "TQ1_0"},
    [35] = {.name = "TQ2_0"},
    [36] = {.name = "IQ4_NL_4_4"},
    [37] = {.name = "IQ4_NL_4_8"},
    [38] = {.name = "IQ4_NL_8_8"},
    [39] = {"MXFP4", true, SL_MXFP4},
    [40] = {.name = "NVFP4"},
    [41] = {.name = "Q1_0"},
    [42] = {.name = "Q2_0"},
};

const int8_t sl_iq4_values[16] = {
    -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113,
};
const int8_t sl_mxfp4_values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

const sl_dtype_info *sl_dtype_get(sl_dtype dtype)
{
    return &infos[dtype];
}

bool sl_dtype_from_ggml(uint32_t ggml_type, sl_dtype *dtype, const char **name)
{
    *name = NULL;
    if (ggml_type >= SL_COUNTOF(ggml_types))
        return false;
    const struct ggml_entry *entry = &ggml_types[ggml_type];
    *name = entry->name;
    if (!entry->usable)
        return false;
    *dtype = entry->dtype;
    return true;
}

bool sl_dtype_row_bytes(sl_dtype dtype, uint64_t n, size_t *n_bytes)
{
    const sl_dtype_info *info = &infos[dtype];
    uint64_t n_blocks = n / info->block_elems;
    if (n % info->block_elems != 0 || n_blocks > SIZE_MAX)
        return false;
    return sl_size_mul((size_t)n_blocks, info->block_bytes, n_bytes);
}

/* A signalling NaN becomes quiet, as the conversion instructions of every CPU do it. */
float sl_f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16;
    uint32_t exponent = (h >> 10) & 31, mantissa = h & 0x3ff;
    if (exponent == 0) { /* zero or denormal: an exact product, normal in float32 */
        float magnitude = (float)mantissa * 0x1p-24f;
        return sign ? -magnitude : magnitude;
    }
    if (exponent == 31)
        return sl_float_of_bits(sign | 0x7f800000u | (mantissa ? 0x400000u | mantissa << 13 : 0));
    return sl_float_of_bits(sign | (exponent + 112) << 23 | mantissa << 13);
}

uint16_t sl_f32_to_f16(float f)
{
    uint32_t bits = sl_bits_of_float(f);
    uint32_t sign = (bits >> 16) & 0x8000, magnitude = bits & 0x7fffffff;
    uint32_t half;
    if (magnitude > 0x7f800000) { /* NaN: the upper bits of the payload stay, and it is quiet */
        half = 0x7e00 | ((magnitude >> 13) & 0x3ff);
    } else if (magnitude >= 0x477ff000) { /* 65520 and more round to infinity */
        half = 0x7c00;
    } else if (magnitude >=
               0x38800000) { /* 2^-14 and more: normal; a carry may raise the exponent */
        uint32_t rebased = magnitude - 0x38000000;
        half = (rebased + 0xfff + ((rebased >> 13) & 1)) >> 13;
    } else if (magnitude > 0x33000000) { /* above 2^-25: denormal, in units of 2^-24 */
        uint32_t shift = 126 - (magnitude >> 23);
        uint32_t mantissa = (magnitude & 0x7fffff) | 0x800000;
        uint32_t rest = mantissa & ((1u << shift) - 1), tie = 1u << (shift - 1);
        half = mantissa >> shift;
        half += rest > tie || (rest == tie && (half & 1));
    } else {
        half = 0;
    }
    return (uint16_t)(sign | half);
}

float sl_bf16_to_f32(uint16_t h)
{
    return sl_float_of_bits((uint32_t)h << 16);
}

/* The two smallest are denormals. */
float sl_mxfp4_scale(uint8_t e)
{
    return sl_float_of_bits(e < 2 ? 0x200000u << e : (uint32_t)(e - 1) << 23);
}

/* The first four sub-blocks keep 6 bits in one byte each; the upper two bits of those bytes hold
 * the upper bits of the last four, whose lower nibbles share the last four bytes. */
void sl_q4_k_scale_min(const uint8_t scales[12], int s, int *scale, int *min)
{
    if (s < 4) {
        *scale = scales[s] & 63;
        *min = scales[s + 4] & 63;
    } else {
        *scale = (scales[s + 4] & 15) | (scales[s - 4] >> 6) << 4;
        *min = (scales[s + 4] >> 4) | (scales[s] >> 6) << 4;
    }
}

int sl_q3_k_scale(const uint8_t scales[12], int s)
{
    int low = s < 8 ? scales[s] & 15 : scales[s - 8] >> 4;
    int high = (scales[8 + s % 4] >> 2 * (s / 4)) & 3;
    return (low | high << 4) - 32;
}

int sl_iq4_xs_scale(const sl_block_iq4_xs *block, int s)
{
    int low = (block->scales_low[s / 2] >> 4 * (s % 2)) & 15;
    int high = (block->scales_high >> 2 * s) & 3;
    return (low | high << 4) - 32;
}
