/* Groups of codes on AVX2, see product.h: two registers. A dot product is made of two instructions,
 * the first of which saturates: it must not see both large codes and large activations with the
 * same sign, so wide codes give their sign to the activation. */
#ifndef SL_BACKEND_CPU_KERNELS_CODES_AVX2_H
#define SL_BACKEND_CPU_KERNELS_CODES_AVX2_H

#include <string.h>

#include "backend/cpu/kernels/lanes.h"

/* clang-format off */
SL_INLINE __m256i load_32(const void *p) { return _mm256_loadu_si256((const __m256i *)p); }
SL_INLINE vi vc_load(const uint8_t *p) { return (vi){load_32(p), load_32(p + 32)}; }
SL_INLINE void vc_store(uint8_t *p, vi x)
{
    _mm256_storeu_si256((__m256i *)(void *)p, x.lo);
    _mm256_storeu_si256((__m256i *)(void *)(p + 32), x.hi);
}
SL_INLINE vi vc_and(vi x, int byte)
{
    const __m256i mask = _mm256_set1_epi8((char)byte);
    return (vi){_mm256_and_si256(x.lo, mask), _mm256_and_si256(x.hi, mask)};
}
SL_INLINE vi vc_or(vi a, vi b)
{
    return (vi){_mm256_or_si256(a.lo, b.lo), _mm256_or_si256(a.hi, b.hi)};
}
SL_INLINE vi vc_left(vi x, int n)
{
    return (vi){_mm256_slli_epi16(x.lo, n), _mm256_slli_epi16(x.hi, n)};
}
SL_INLINE vi vc_right(vi x, int n)
{
    return (vi){_mm256_srli_epi16(x.lo, n), _mm256_srli_epi16(x.hi, n)};
}
SL_INLINE vi vc_lookup(vi x, const uint8_t table[16])
{
    const __m256i row =
        _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)table));
    return (vi){_mm256_shuffle_epi8(row, x.lo), _mm256_shuffle_epi8(row, x.hi)};
}
SL_INLINE vf vc_float_u8(const uint8_t *p)
{
    const __m128i bytes = _mm_loadu_si128((const __m128i *)(const void *)p);
    return v_of_int((vi){_mm256_cvtepu8_epi32(bytes),
                         _mm256_cvtepu8_epi32(_mm_unpackhi_epi64(bytes, bytes))});
}
SL_INLINE vf vc_float_i8(const uint8_t *p)
{
    const __m128i bytes = _mm_loadu_si128((const __m128i *)(const void *)p);
    return v_of_int((vi){_mm256_cvtepi8_epi32(bytes),
                         _mm256_cvtepi8_epi32(_mm_unpackhi_epi64(bytes, bytes))});
}
SL_INLINE vi vc_four(const int8_t *p)
{
    int32_t four;
    memcpy(&four, p, sizeof four);
    return vi_set(four);
}

enum { WIDE_OFFSET = 0 };
typedef struct vw {
    vi size, value;
} vw;
SL_INLINE vw vw_of(vi codes)
{
    const __m256i flip = _mm256_set1_epi8((char)0x80);
    const vi value = {_mm256_xor_si256(codes.lo, flip), _mm256_xor_si256(codes.hi, flip)};
    return (vw){{_mm256_abs_epi8(value.lo), _mm256_abs_epi8(value.hi)}, value};
}
SL_INLINE __m256i dot_32(__m256i sum, __m256i codes, __m256i four)
{
    const __m256i pairs = _mm256_maddubs_epi16(codes, four);
    return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
SL_INLINE vi vc_dot(vi sum, vi codes, vi four)
{
    return (vi){dot_32(sum.lo, codes.lo, four.lo), dot_32(sum.hi, codes.hi, four.hi)};
}
SL_INLINE vi vw_dot(vi sum, vw codes, vi four)
{
    return (vi){dot_32(sum.lo, codes.size.lo, _mm256_sign_epi8(four.lo, codes.value.lo)),
                dot_32(sum.hi, codes.size.hi, _mm256_sign_epi8(four.hi, codes.value.hi))};
}

/* y[b] = factor * (x[2 b] + x[2 b + 1]), y[i] = factor * x[i]: eight and sixteen results. */
SL_INLINE void vc_pair_sums(const int16_t *x, int factor, int32_t *y)
{
    const __m256i sums = _mm256_madd_epi16(load_32(x), _mm256_set1_epi16((short)factor));
    _mm256_storeu_si256((__m256i *)(void *)y, sums);
}
SL_INLINE void vc_sums(const int16_t *x, int factor, int32_t *y)
{
    const __m256i factors = _mm256_set1_epi32(factor);
    for (int i = 0; i < 16; i += 8) {
        const __m128i part = _mm_loadu_si128((const __m128i *)(const void *)(x + i));
        const __m256i sums = _mm256_mullo_epi32(_mm256_cvtepi16_epi32(part), factors);
        _mm256_storeu_si256((__m256i *)(void *)(y + i), sums);
    }
}

SL_INLINE void v_prefetch(const uint8_t *p) { _mm_prefetch((const char *)p, _MM_HINT_T0); }
/* clang-format on */

#endif
