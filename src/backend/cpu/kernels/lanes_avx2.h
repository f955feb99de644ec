/* Sixteen lanes on AVX2 with FMA and F16C: two registers. See lanes.h. */
#ifndef SL_BACKEND_CPU_KERNELS_LANES_AVX2_H
#define SL_BACKEND_CPU_KERNELS_LANES_AVX2_H

#include <immintrin.h>

#include "base/base.h"

enum { LANES = 16, LANE_REGISTERS = 8 };

typedef struct vf {
    __m256 lo, hi;
} vf;
typedef struct vi {
    __m256i lo, hi;
} vi;
typedef vf vm; /* all bits of a lane set or clear */

/* clang-format off */
/* ---- floats ---- */

SL_INLINE vf v_zero(void) { return (vf){_mm256_setzero_ps(), _mm256_setzero_ps()}; }
SL_INLINE vf v_set(float x) { return (vf){_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
SL_INLINE vf v_load(const float *p) { return (vf){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
SL_INLINE void v_store(float *p, vf x)
{
    _mm256_storeu_ps(p, x.lo);
    _mm256_storeu_ps(p + 8, x.hi);
}
SL_INLINE vm vm_first(size_t n)
{
    __m256i count = _mm256_set1_epi32((int)n);
    __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return (vm){_mm256_castsi256_ps(_mm256_cmpgt_epi32(count, lane)),
                _mm256_castsi256_ps(
                    _mm256_cmpgt_epi32(count, _mm256_add_epi32(lane, _mm256_set1_epi32(8))))};
}
SL_INLINE vf v_load_first(const float *p, size_t n)
{
    vm m = vm_first(n);
    return (vf){_mm256_maskload_ps(p, _mm256_castps_si256(m.lo)),
                n > 8 ? _mm256_maskload_ps(p + 8, _mm256_castps_si256(m.hi)) : _mm256_setzero_ps()};
}
SL_INLINE void v_store_first(float *p, vf x, size_t n)
{
    vm m = vm_first(n);
    _mm256_maskstore_ps(p, _mm256_castps_si256(m.lo), x.lo);
    if (n > 8)
        _mm256_maskstore_ps(p + 8, _mm256_castps_si256(m.hi), x.hi);
}
SL_INLINE vf v_add(vf a, vf b) { return (vf){_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
SL_INLINE vf v_sub(vf a, vf b) { return (vf){_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
SL_INLINE vf v_mul(vf a, vf b) { return (vf){_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
SL_INLINE vf v_div(vf a, vf b) { return (vf){_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
SL_INLINE vf v_sqrt(vf a) { return (vf){_mm256_sqrt_ps(a.lo), _mm256_sqrt_ps(a.hi)}; }
SL_INLINE vf v_fma(vf a, vf b, vf c)
{
    return (vf){_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
SL_INLINE vf v_fnma(vf a, vf b, vf c)
{
    return (vf){_mm256_fnmadd_ps(a.lo, b.lo, c.lo), _mm256_fnmadd_ps(a.hi, b.hi, c.hi)};
}
/* MAXPS gives its second operand for NaN and equal zeros. */
SL_INLINE vf v_larger(vf a, vf b)
{
    return (vf){_mm256_max_ps(b.lo, a.lo), _mm256_max_ps(b.hi, a.hi)};
}

/* ---- masks ---- */

SL_INLINE vm v_lt(vf a, vf b)
{
    return (vm){_mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ)};
}
SL_INLINE vm v_eq(vf a, vf b)
{
    return (vm){_mm256_cmp_ps(a.lo, b.lo, _CMP_EQ_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_EQ_OQ)};
}
SL_INLINE vf v_select(vm m, vf x, vf y)
{
    return (vf){_mm256_blendv_ps(y.lo, x.lo, m.lo), _mm256_blendv_ps(y.hi, x.hi, m.hi)};
}

/* ---- integers ---- */

SL_INLINE vi vi_set(int32_t x) { return (vi){_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
SL_INLINE vi vi_load(const int32_t *p)
{
    return (vi){_mm256_loadu_si256((const __m256i *)(const void *)p),
                _mm256_loadu_si256((const __m256i *)(const void *)(p + 8))};
}
SL_INLINE void vi_store(int32_t *p, vi x)
{
    _mm256_storeu_si256((__m256i *)(void *)p, x.lo);
    _mm256_storeu_si256((__m256i *)(void *)(p + 8), x.hi);
}
SL_INLINE vi vi_add(vi a, vi b)
{
    return (vi){_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)};
}
SL_INLINE vi vi_sub(vi a, vi b)
{
    return (vi){_mm256_sub_epi32(a.lo, b.lo), _mm256_sub_epi32(a.hi, b.hi)};
}
SL_INLINE vi vi_and(vi a, vi b)
{
    return (vi){_mm256_and_si256(a.lo, b.lo), _mm256_and_si256(a.hi, b.hi)};
}
SL_INLINE vi vi_larger(vi a, vi b)
{
    return (vi){_mm256_max_epi32(a.lo, b.lo), _mm256_max_epi32(a.hi, b.hi)};
}
SL_INLINE vi vi_shift_left(vi a, int n)
{
    return (vi){_mm256_slli_epi32(a.lo, n), _mm256_slli_epi32(a.hi, n)};
}
SL_INLINE int32_t vi_largest(vi a)
{
    __m256i m = _mm256_max_epi32(a.lo, a.hi);
    __m128i b = _mm_max_epi32(_mm256_castsi256_si128(m), _mm256_extracti128_si256(m, 1));
    b = _mm_max_epi32(b, _mm_shuffle_epi32(b, 0x4E));
    return _mm_cvtsi128_si32(_mm_max_epi32(b, _mm_shuffle_epi32(b, 0xB1)));
}
SL_INLINE int32_t vi_sum(vi a)
{
    __m256i s = _mm256_add_epi32(a.lo, a.hi);
    __m128i b = _mm_add_epi32(_mm256_castsi256_si128(s), _mm256_extracti128_si256(s, 1));
    b = _mm_add_epi32(b, _mm_shuffle_epi32(b, 0x4E));
    return _mm_cvtsi128_si32(_mm_add_epi32(b, _mm_shuffle_epi32(b, 0xB1)));
}

/* ---- between them ---- */

SL_INLINE vi v_bits(vf x)
{
    return (vi){_mm256_castps_si256(x.lo), _mm256_castps_si256(x.hi)};
}
SL_INLINE vf v_of_bits(vi x)
{
    return (vf){_mm256_castsi256_ps(x.lo), _mm256_castsi256_ps(x.hi)};
}
SL_INLINE vf v_of_int(vi x) { return (vf){_mm256_cvtepi32_ps(x.lo), _mm256_cvtepi32_ps(x.hi)}; }
SL_INLINE vi v_to_int(vf x) { return (vi){_mm256_cvtps_epi32(x.lo), _mm256_cvtps_epi32(x.hi)}; }
SL_INLINE int32_t vi_store_codes(int8_t *p, vi x)
{
    __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(x.lo, x.hi), 0xD8);
    __m128i codes =
        _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    _mm_storeu_si128((__m128i *)(void *)p, codes);
    /* SAD sums unsigned bytes, eight at a time. */
    __m128i sums = _mm_sad_epu8(_mm_xor_si128(codes, _mm_set1_epi8(-128)), _mm_setzero_si128());
    return _mm_cvtsi128_si32(_mm_add_epi32(sums, _mm_unpackhi_epi64(sums, sums))) - 16 * 128;
}
SL_INLINE vf v_load_half(const uint16_t *p)
{
    return (vf){_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p)),
                _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(p + 8)))};
}
SL_INLINE void v_store_half(uint16_t *p, vf x)
{
    _mm_storeu_si128((__m128i *)(void *)p, _mm256_cvtps_ph(x.lo, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128((__m128i *)(void *)(p + 8), _mm256_cvtps_ph(x.hi, _MM_FROUND_TO_NEAREST_INT));
}
SL_INLINE vf v_load_bf16(const uint16_t *p)
{
    __m256i lo = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
    __m256i hi = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)(p + 8)));
    return (vf){_mm256_castsi256_ps(_mm256_slli_epi32(lo, 16)),
                _mm256_castsi256_ps(_mm256_slli_epi32(hi, 16))};
}

/* ---- across lanes ---- */

SL_INLINE float v_sum_tree(vf x)
{
    __m256 a = _mm256_add_ps(x.lo, x.hi);
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}

/* ---- rearrangements ---- */

SL_INLINE void transpose8(const __m256 in[8], __m256 out[8])
{
    __m256 t[8], s[8];
    for (int i = 0; i < 8; i += 2) {
        t[i] = _mm256_unpacklo_ps(in[i], in[i + 1]);
        t[i + 1] = _mm256_unpackhi_ps(in[i], in[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) { /* s[i + l]: halves of lane l, rows i .. i + 3 */
        s[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
        s[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xEE);
        s[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
        s[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xEE);
    }
    for (int l = 0; l < 4; l++) {
        out[l] = _mm256_permute2f128_ps(s[l], s[4 + l], 0x20);
        out[4 + l] = _mm256_permute2f128_ps(s[l], s[4 + l], 0x31);
    }
}

SL_INLINE void v_transpose(vf r[16])
{
    __m256 in[4][8], out[4][8]; /* the four quarters */
    for (int i = 0; i < 8; i++) {
        in[0][i] = r[i].lo;
        in[1][i] = r[i].hi;
        in[2][i] = r[8 + i].lo;
        in[3][i] = r[8 + i].hi;
    }
    for (int quarter = 0; quarter < 4; quarter++)
        transpose8(in[quarter], out[quarter]);
    for (int i = 0; i < 8; i++) {
        r[i] = (vf){out[0][i], out[2][i]};
        r[8 + i] = (vf){out[1][i], out[3][i]};
    }
}

SL_INLINE void load_taps8(const float *p, __m256 w[4])
{
    __m256 a = _mm256_loadu_ps(p), b = _mm256_loadu_ps(p + 8);
    __m256 c = _mm256_loadu_ps(p + 16), d = _mm256_loadu_ps(p + 24);
    __m256 c04 = _mm256_permute2f128_ps(a, c, 0x20), c15 = _mm256_permute2f128_ps(a, c, 0x31);
    __m256 c26 = _mm256_permute2f128_ps(b, d, 0x20), c37 = _mm256_permute2f128_ps(b, d, 0x31);
    __m256 lo01 = _mm256_unpacklo_ps(c04, c15), hi01 = _mm256_unpacklo_ps(c26, c37);
    __m256 lo23 = _mm256_unpackhi_ps(c04, c15), hi23 = _mm256_unpackhi_ps(c26, c37);
    w[0] = _mm256_shuffle_ps(lo01, hi01, 0x44);
    w[1] = _mm256_shuffle_ps(lo01, hi01, 0xEE);
    w[2] = _mm256_shuffle_ps(lo23, hi23, 0x44);
    w[3] = _mm256_shuffle_ps(lo23, hi23, 0xEE);
}

SL_INLINE void v_load_taps(const float *p, vf w[4])
{
    __m256 lo[4], hi[4];
    load_taps8(p, lo);
    load_taps8(p + 32, hi);
    for (int j = 0; j < 4; j++)
        w[j] = (vf){lo[j], hi[j]};
}

/* clang-format on */

#endif
