/* Sixteen lanes on AVX-512: one register. See lanes.h. */
#ifndef SL_BACKEND_CPU_KERNELS_LANES_AVX512_H
#define SL_BACKEND_CPU_KERNELS_LANES_AVX512_H

#include <immintrin.h>

#include "base/base.h"

enum { LANES = 16, LANE_REGISTERS = 32 };

typedef __m512 vf;
typedef __m512i vi;
typedef __mmask16 vm;

/* clang-format off */
/* ---- floats ---- */

SL_INLINE vf v_zero(void) { return _mm512_setzero_ps(); }
SL_INLINE vf v_set(float x) { return _mm512_set1_ps(x); }
SL_INLINE vf v_load(const float *p) { return _mm512_loadu_ps(p); }
SL_INLINE void v_store(float *p, vf x) { _mm512_storeu_ps(p, x); }
SL_INLINE vm vm_first(size_t n) { return (vm)((1u << n) - 1u); }
SL_INLINE vf v_load_first(const float *p, size_t n) { return _mm512_maskz_loadu_ps(vm_first(n), p); }
SL_INLINE void v_store_first(float *p, vf x, size_t n) { _mm512_mask_storeu_ps(p, vm_first(n), x); }
SL_INLINE vf v_add(vf a, vf b) { return _mm512_add_ps(a, b); }
SL_INLINE vf v_sub(vf a, vf b) { return _mm512_sub_ps(a, b); }
SL_INLINE vf v_mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
SL_INLINE vf v_div(vf a, vf b) { return _mm512_div_ps(a, b); }
SL_INLINE vf v_sqrt(vf a) { return _mm512_sqrt_ps(a); }
SL_INLINE vf v_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
SL_INLINE vf v_fnma(vf a, vf b, vf c) { return _mm512_fnmadd_ps(a, b, c); }
/* MAXPS gives its second operand for NaN and equal zeros. */
SL_INLINE vf v_larger(vf a, vf b) { return _mm512_max_ps(b, a); }

/* ---- masks ---- */

SL_INLINE vm v_lt(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
SL_INLINE vm v_eq(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ); }
SL_INLINE vf v_select(vm m, vf x, vf y) { return _mm512_mask_blend_ps(m, y, x); }

/* ---- integers ---- */

SL_INLINE vi vi_set(int32_t x) { return _mm512_set1_epi32(x); }
SL_INLINE vi vi_load(const int32_t *p) { return _mm512_loadu_si512(p); }
SL_INLINE void vi_store(int32_t *p, vi x) { _mm512_storeu_si512(p, x); }
SL_INLINE vi vi_add(vi a, vi b) { return _mm512_add_epi32(a, b); }
SL_INLINE vi vi_sub(vi a, vi b) { return _mm512_sub_epi32(a, b); }
SL_INLINE vi vi_and(vi a, vi b) { return _mm512_and_si512(a, b); }
SL_INLINE vi vi_larger(vi a, vi b) { return _mm512_max_epi32(a, b); }
SL_INLINE vi vi_shift_left(vi a, int n) { return _mm512_slli_epi32(a, (unsigned)n); }
SL_INLINE int32_t vi_largest(vi a) { return _mm512_reduce_max_epi32(a); }
SL_INLINE int32_t vi_sum(vi a) { return _mm512_reduce_add_epi32(a); }

/* ---- between them ---- */

SL_INLINE vi v_bits(vf x) { return _mm512_castps_si512(x); }
SL_INLINE vf v_of_bits(vi x) { return _mm512_castsi512_ps(x); }
SL_INLINE vf v_of_int(vi x) { return _mm512_cvtepi32_ps(x); }
SL_INLINE vi v_to_int(vf x) { return _mm512_cvtps_epi32(x); }
SL_INLINE int32_t vi_store_codes(int8_t *p, vi x)
{
    __m128i codes = _mm512_cvtepi32_epi8(x);
    _mm_storeu_si128((__m128i *)(void *)p, codes);
    /* SAD sums unsigned bytes, eight at a time. */
    __m128i sums = _mm_sad_epu8(_mm_xor_si128(codes, _mm_set1_epi8(-128)), _mm_setzero_si128());
    return _mm_cvtsi128_si32(_mm_add_epi32(sums, _mm_unpackhi_epi64(sums, sums))) - 16 * 128;
}
SL_INLINE vf v_load_half(const uint16_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
}
SL_INLINE void v_store_half(uint16_t *p, vf x)
{
    _mm256_storeu_si256((__m256i *)(void *)p,
                        _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
SL_INLINE vf v_load_bf16(const uint16_t *p)
{
    __m256i bits = _mm256_loadu_si256((const __m256i *)(const void *)p);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}

/* ---- across lanes ---- */

SL_INLINE float v_sum_tree(vf x)
{
    __m256 a = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}

/* ---- rearrangements ---- */

SL_INLINE void v_transpose(vf r[16])
{
    __m512 t[16];
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) { /* r[i + l]: quarters of lane l, rows i .. i + 3 */
        __m512d a = _mm512_castps_pd(t[i]), b = _mm512_castps_pd(t[i + 2]);
        __m512d c = _mm512_castps_pd(t[i + 1]), d = _mm512_castps_pd(t[i + 3]);
        r[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b));
        r[i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
        r[i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(c, d));
        r[i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(c, d));
    }
    for (int l = 0; l < 4; l++) {
        t[l] = _mm512_shuffle_f32x4(r[l], r[4 + l], 0x44);
        t[4 + l] = _mm512_shuffle_f32x4(r[l], r[4 + l], 0xEE);
        t[8 + l] = _mm512_shuffle_f32x4(r[8 + l], r[12 + l], 0x44);
        t[12 + l] = _mm512_shuffle_f32x4(r[8 + l], r[12 + l], 0xEE);
    }
    for (int l = 0; l < 4; l++) {
        r[l] = _mm512_shuffle_f32x4(t[l], t[8 + l], 0x88);
        r[4 + l] = _mm512_shuffle_f32x4(t[l], t[8 + l], 0xDD);
        r[8 + l] = _mm512_shuffle_f32x4(t[4 + l], t[12 + l], 0x88);
        r[12 + l] = _mm512_shuffle_f32x4(t[4 + l], t[12 + l], 0xDD);
    }
}

SL_INLINE void v_load_taps(const float *p, vf w[4])
{
    const __m512i even = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 1, 5, 9, 13, 17, 21, 25, 29);
    const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(2));
    __m512 a = v_load(p), b = v_load(p + 16), c = v_load(p + 32), d = v_load(p + 48);
    __m512 lo01 = _mm512_permutex2var_ps(a, even, b), hi01 = _mm512_permutex2var_ps(c, even, d);
    __m512 lo23 = _mm512_permutex2var_ps(a, odd, b), hi23 = _mm512_permutex2var_ps(c, odd, d);
    w[0] = _mm512_shuffle_f32x4(lo01, hi01, 0x44);
    w[1] = _mm512_shuffle_f32x4(lo01, hi01, 0xEE);
    w[2] = _mm512_shuffle_f32x4(lo23, hi23, 0x44);
    w[3] = _mm512_shuffle_f32x4(lo23, hi23, 0xEE);
}

/* clang-format on */

#endif
