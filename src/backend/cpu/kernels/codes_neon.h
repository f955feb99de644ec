/* Groups of codes on NEON with its dot products, see product.h: four registers. The dot product
 * multiplies signed with signed bytes, so wide codes lose their 128 by a flip of the top bit. */
#ifndef SL_BACKEND_CPU_KERNELS_CODES_NEON_H
#define SL_BACKEND_CPU_KERNELS_CODES_NEON_H

#include <string.h>

#include "backend/cpu/kernels/lanes.h"

/* clang-format off */
SL_INLINE uint8x16_t bytes_of(int32x4_t x) { return vreinterpretq_u8_s32(x); }
SL_INLINE int32x4_t of_bytes(uint8x16_t x) { return vreinterpretq_s32_u8(x); }

#define EACH(expression) \
    vi r; \
    for (int i = 0; i < QUARTERS; i++) \
        r.q[i] = (expression); \
    return r

SL_INLINE vi vc_load(const uint8_t *p) { EACH(of_bytes(vld1q_u8(p + 16 * i))); }
SL_INLINE void vc_store(uint8_t *p, vi x)
{
    for (int i = 0; i < QUARTERS; i++)
        vst1q_u8(p + 16 * i, bytes_of(x.q[i]));
}
SL_INLINE vi vc_and(vi x, int byte)
{
    EACH(of_bytes(vandq_u8(bytes_of(x.q[i]), vdupq_n_u8((uint8_t)byte))));
}
SL_INLINE vi vc_or(vi a, vi b) { EACH(vorrq_s32(a.q[i], b.q[i])); }
SL_INLINE vi vc_left(vi x, int n)
{
    EACH(of_bytes(vshlq_u8(bytes_of(x.q[i]), vdupq_n_s8((int8_t)n))));
}
SL_INLINE vi vc_right(vi x, int n) { return vc_left(x, -n); }
SL_INLINE vi vc_lookup(vi x, const uint8_t table[16])
{
    EACH(of_bytes(vqtbl1q_u8(vld1q_u8(table), bytes_of(x.q[i]))));
}
SL_INLINE vi vc_four(const int8_t *p)
{
    int32_t four;
    memcpy(&four, p, sizeof four);
    return vi_set(four);
}

enum { WIDE_OFFSET = 0 };
typedef vi vw;
SL_INLINE vw vw_of(vi codes)
{
    EACH(of_bytes(veorq_u8(bytes_of(codes.q[i]), vdupq_n_u8(0x80))));
}
SL_INLINE vi vw_dot(vi sum, vw codes, vi four)
{
    EACH(vdotq_s32(sum.q[i], vreinterpretq_s8_s32(codes.q[i]), vreinterpretq_s8_s32(four.q[i])));
}
SL_INLINE vi vc_dot(vi sum, vi codes, vi four) { return vw_dot(sum, codes, four); }

#undef EACH

SL_INLINE vf vc_float_u8(const uint8_t *p)
{
    const uint8x16_t bytes = vld1q_u8(p);
    const uint16x8_t lo = vmovl_u8(vget_low_u8(bytes)), hi = vmovl_u8(vget_high_u8(bytes));
    return (vf){{vcvtq_f32_u32(vmovl_u16(vget_low_u16(lo))),
                 vcvtq_f32_u32(vmovl_u16(vget_high_u16(lo))),
                 vcvtq_f32_u32(vmovl_u16(vget_low_u16(hi))),
                 vcvtq_f32_u32(vmovl_u16(vget_high_u16(hi)))}};
}
SL_INLINE vf vc_float_i8(const uint8_t *p)
{
    const int8x16_t bytes = vreinterpretq_s8_u8(vld1q_u8(p));
    const int16x8_t lo = vmovl_s8(vget_low_s8(bytes)), hi = vmovl_s8(vget_high_s8(bytes));
    return (vf){{vcvtq_f32_s32(vmovl_s16(vget_low_s16(lo))),
                 vcvtq_f32_s32(vmovl_s16(vget_high_s16(lo))),
                 vcvtq_f32_s32(vmovl_s16(vget_low_s16(hi))),
                 vcvtq_f32_s32(vmovl_s16(vget_high_s16(hi)))}};
}

/* y[b] = factor * (x[2 b] + x[2 b + 1]), y[i] = factor * x[i]: eight and sixteen results. */
SL_INLINE void vc_pair_sums(const int16_t *x, int factor, int32_t *y)
{
    for (int i = 0; i < 8; i += 4)
        vst1q_s32(y + i, vmulq_n_s32(vpaddlq_s16(vld1q_s16(x + 2 * i)), factor));
}
SL_INLINE void vc_sums(const int16_t *x, int factor, int32_t *y)
{
    for (int i = 0; i < 16; i += 4)
        vst1q_s32(y + i, vmulq_n_s32(vmovl_s16(vld1_s16(x + i)), factor));
}

SL_INLINE void v_prefetch(const uint8_t *p) { __builtin_prefetch(p); }
/* clang-format on */

#endif
