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
SL_INLINE void vi_store_codes(int8_t *p, vi x)
{
    __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(x.lo, x.hi), 0xD8);
    __m128i codes =
        _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    _mm_storeu_si128((__m128i *)(void *)p, codes);
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

/* clang-format on */

#endif
