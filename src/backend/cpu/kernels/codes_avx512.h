/* Groups of codes on AVX-512, see product.h. Without VNNI a dot product is made of two
 * instructions, the first of which saturates: it must not see both large codes and large
 * activations with the same sign, so wide codes give their sign to the activation. */
#ifndef SL_BACKEND_CPU_KERNELS_CODES_AVX512_H
#define SL_BACKEND_CPU_KERNELS_CODES_AVX512_H

#include <string.h>

#include "backend/cpu/kernels/lanes.h"

/* clang-format off */
SL_INLINE vi vc_load(const uint8_t *p) { return _mm512_loadu_si512(p); }
SL_INLINE void vc_store(uint8_t *p, vi x) { _mm512_storeu_si512(p, x); }
SL_INLINE vi vc_and(vi x, int byte) { return _mm512_and_si512(x, _mm512_set1_epi8((char)byte)); }
SL_INLINE vi vc_or(vi a, vi b) { return _mm512_or_si512(a, b); }
SL_INLINE vi vc_left(vi x, int n) { return _mm512_slli_epi16(x, n); }
SL_INLINE vi vc_right(vi x, int n) { return _mm512_srli_epi16(x, n); }
SL_INLINE vi vc_lookup(vi x, const uint8_t table[16])
{
    __m128i row = _mm_loadu_si128((const __m128i *)(const void *)table);
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(row), x);
}
SL_INLINE vf vc_float_u8(const uint8_t *p)
{
    return v_of_int(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p)));
}
SL_INLINE vf vc_float_i8(const uint8_t *p)
{
    return v_of_int(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p)));
}
SL_INLINE vi vc_four(const int8_t *p)
{
    int32_t four;
    memcpy(&four, p, sizeof four);
    return _mm512_set1_epi32(four);
}

#if defined(__AVX512VNNI__)

enum { WIDE_OFFSET = 128 };
typedef vi vw;
SL_INLINE vw vw_of(vi codes) { return codes; }
SL_INLINE vi vc_dot(vi sum, vi codes, vi four) { return _mm512_dpbusd_epi32(sum, codes, four); }
SL_INLINE vi vw_dot(vi sum, vw codes, vi four) { return _mm512_dpbusd_epi32(sum, codes, four); }

#else

enum { WIDE_OFFSET = 0 };
typedef struct vw {
    vi size;
    __mmask64 negative;
} vw;
SL_INLINE vw vw_of(vi codes)
{
    vi value = _mm512_xor_si512(codes, _mm512_set1_epi8((char)0x80));
    return (vw){_mm512_abs_epi8(value), _mm512_movepi8_mask(value)};
}
SL_INLINE vi vc_dot(vi sum, vi codes, vi four)
{
    vi pairs = _mm512_maddubs_epi16(codes, four);
    return _mm512_add_epi32(sum, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
}
SL_INLINE vi vw_dot(vi sum, vw codes, vi four)
{
    return vc_dot(sum, codes.size,
                  _mm512_mask_sub_epi8(four, codes.negative, _mm512_setzero_si512(), four));
}

#endif

/* y[b] = factor * (x[2 b] + x[2 b + 1]), y[i] = factor * x[i]: eight and sixteen results. */
SL_INLINE void vc_pair_sums(const int16_t *x, int factor, int32_t *y)
{
    __m256i sums = _mm256_madd_epi16(_mm256_loadu_si256((const __m256i *)(const void *)x),
                                     _mm256_set1_epi16((short)factor));
    _mm256_storeu_si256((__m256i *)(void *)y, sums);
}
SL_INLINE void vc_sums(const int16_t *x, int factor, int32_t *y)
{
    vi sums = _mm512_cvtepi16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)x));
    vi_store(y, _mm512_mullo_epi32(sums, vi_set(factor)));
}

SL_INLINE void v_prefetch(const uint8_t *p) { _mm_prefetch((const char *)p, _MM_HINT_T0); }
/* clang-format on */

#endif
