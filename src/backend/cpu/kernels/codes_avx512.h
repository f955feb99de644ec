/* Groups of codes on AVX-512, see product.h. Without VNNI a dot product is made of two
 * instructions, the first of which saturates: it must not see both large codes and large
 * activations with the same sign, so wide codes give their sign to the activation. */
#ifndef SL_BACKEND_CPU_KERNELS_CODES_AVX512_H
#define SL_BACKEND_CPU_KERNELS_CODES_AVX512_H

#include <string.h>

#include "backend/cpu/kernels/lanes.h"

/* clang-format off */
SL_INLINE vi vc_load(const uint8_t *p) { return _mm512_loadu_si512(p); }
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

SL_INLINE void v_prefetch(const uint8_t *p) { _mm_prefetch((const char *)p, _MM_HINT_T0); }
/* clang-format on */

#endif
