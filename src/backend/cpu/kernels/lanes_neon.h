/* Sixteen lanes on NEON: four registers. See lanes.h. */
#ifndef SL_BACKEND_CPU_KERNELS_LANES_NEON_H
#define SL_BACKEND_CPU_KERNELS_LANES_NEON_H

#include <arm_neon.h>
#include <string.h>

#include "base/base.h"

enum { LANES = 16, LANE_REGISTERS = 8, QUARTERS = 4 };

typedef struct vf {
    float32x4_t q[QUARTERS];
} vf;
typedef struct vi {
    int32x4_t q[QUARTERS];
} vi;
typedef struct vm { /* all bits of a lane set or clear */
    uint32x4_t q[QUARTERS];
} vm;

/* clang-format off */
#define EACH(type, expression) \
    type r; \
    for (int i = 0; i < QUARTERS; i++) \
        r.q[i] = (expression); \
    return r

/* ---- floats ---- */

SL_INLINE vf v_set(float x) { EACH(vf, vdupq_n_f32(x)); }
SL_INLINE vf v_zero(void) { return v_set(0.0f); }
SL_INLINE vf v_load(const float *p) { EACH(vf, vld1q_f32(p + 4 * i)); }
SL_INLINE void v_store(float *p, vf x)
{
    for (int i = 0; i < QUARTERS; i++)
        vst1q_f32(p + 4 * i, x.q[i]);
}
SL_INLINE vf v_load_first(const float *p, size_t n)
{
    float whole[LANES] = {0};
    memcpy(whole, p, n * sizeof *p);
    return v_load(whole);
}
SL_INLINE void v_store_first(float *p, vf x, size_t n)
{
    float whole[LANES];
    v_store(whole, x);
    memcpy(p, whole, n * sizeof *p);
}
SL_INLINE vf v_add(vf a, vf b) { EACH(vf, vaddq_f32(a.q[i], b.q[i])); }
SL_INLINE vf v_sub(vf a, vf b) { EACH(vf, vsubq_f32(a.q[i], b.q[i])); }
SL_INLINE vf v_mul(vf a, vf b) { EACH(vf, vmulq_f32(a.q[i], b.q[i])); }
SL_INLINE vf v_div(vf a, vf b) { EACH(vf, vdivq_f32(a.q[i], b.q[i])); }
SL_INLINE vf v_sqrt(vf a) { EACH(vf, vsqrtq_f32(a.q[i])); }
SL_INLINE vf v_fma(vf a, vf b, vf c) { EACH(vf, vfmaq_f32(c.q[i], a.q[i], b.q[i])); }
SL_INLINE vf v_fnma(vf a, vf b, vf c) { EACH(vf, vfmsq_f32(c.q[i], a.q[i], b.q[i])); }

/* ---- masks ---- */

SL_INLINE vm v_lt(vf a, vf b) { EACH(vm, vcltq_f32(a.q[i], b.q[i])); }
SL_INLINE vm v_eq(vf a, vf b) { EACH(vm, vceqq_f32(a.q[i], b.q[i])); }
SL_INLINE vf v_select(vm m, vf x, vf y) { EACH(vf, vbslq_f32(m.q[i], x.q[i], y.q[i])); }
SL_INLINE vf v_larger(vf a, vf b) { return v_select(v_lt(a, b), b, a); }

/* ---- integers ---- */

SL_INLINE vi vi_set(int32_t x) { EACH(vi, vdupq_n_s32(x)); }
SL_INLINE vi vi_load(const int32_t *p) { EACH(vi, vld1q_s32(p + 4 * i)); }
SL_INLINE void vi_store(int32_t *p, vi x)
{
    for (int i = 0; i < QUARTERS; i++)
        vst1q_s32(p + 4 * i, x.q[i]);
}
SL_INLINE vi vi_add(vi a, vi b) { EACH(vi, vaddq_s32(a.q[i], b.q[i])); }
SL_INLINE vi vi_sub(vi a, vi b) { EACH(vi, vsubq_s32(a.q[i], b.q[i])); }
SL_INLINE vi vi_and(vi a, vi b) { EACH(vi, vandq_s32(a.q[i], b.q[i])); }
SL_INLINE vi vi_larger(vi a, vi b) { EACH(vi, vmaxq_s32(a.q[i], b.q[i])); }
SL_INLINE vi vi_shift_left(vi a, int n) { EACH(vi, vshlq_s32(a.q[i], vdupq_n_s32(n))); }
SL_INLINE int32_t vi_largest(vi a)
{
    return vmaxvq_s32(vmaxq_s32(vmaxq_s32(a.q[0], a.q[1]), vmaxq_s32(a.q[2], a.q[3])));
}
SL_INLINE int32_t vi_sum(vi a)
{
    return vaddvq_s32(vaddq_s32(vaddq_s32(a.q[0], a.q[1]), vaddq_s32(a.q[2], a.q[3])));
}

/* ---- between them ---- */

SL_INLINE vi v_bits(vf x) { EACH(vi, vreinterpretq_s32_f32(x.q[i])); }
SL_INLINE vf v_of_bits(vi x) { EACH(vf, vreinterpretq_f32_s32(x.q[i])); }
SL_INLINE vf v_of_int(vi x) { EACH(vf, vcvtq_f32_s32(x.q[i])); }
SL_INLINE vi v_to_int(vf x) { EACH(vi, vcvtnq_s32_f32(x.q[i])); }
SL_INLINE int32_t vi_store_codes(int8_t *p, vi x)
{
    int16x8_t lo = vcombine_s16(vmovn_s32(x.q[0]), vmovn_s32(x.q[1]));
    int16x8_t hi = vcombine_s16(vmovn_s32(x.q[2]), vmovn_s32(x.q[3]));
    vst1q_s8(p, vcombine_s8(vmovn_s16(lo), vmovn_s16(hi)));
    return vaddvq_s16(vaddq_s16(lo, hi));
}
SL_INLINE vf v_load_half(const uint16_t *p)
{
    EACH(vf, vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p + 4 * i))));
}
SL_INLINE void v_store_half(uint16_t *p, vf x)
{
    for (int i = 0; i < QUARTERS; i++)
        vst1_u16(p + 4 * i, vreinterpret_u16_f16(vcvt_f16_f32(x.q[i])));
}
SL_INLINE vf v_load_bf16(const uint16_t *p)
{
    EACH(vf, vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p + 4 * i), 16)));
}

/* ---- across lanes ---- */

SL_INLINE float v_sum_tree(vf x)
{
    float32x4_t a = vaddq_f32(vaddq_f32(x.q[0], x.q[2]), vaddq_f32(x.q[1], x.q[3]));
    float32x2_t b = vadd_f32(vget_low_f32(a), vget_high_f32(a));
    return vget_lane_f32(b, 0) + vget_lane_f32(b, 1);
}

/* ---- rearrangements ---- */

SL_INLINE void transpose4(float32x4_t a, float32x4_t b, float32x4_t c, float32x4_t d,
                          float32x4_t out[4])
{
    float64x2_t ab0 = vreinterpretq_f64_f32(vtrn1q_f32(a, b));
    float64x2_t ab1 = vreinterpretq_f64_f32(vtrn2q_f32(a, b));
    float64x2_t cd0 = vreinterpretq_f64_f32(vtrn1q_f32(c, d));
    float64x2_t cd1 = vreinterpretq_f64_f32(vtrn2q_f32(c, d));
    out[0] = vreinterpretq_f32_f64(vtrn1q_f64(ab0, cd0));
    out[1] = vreinterpretq_f32_f64(vtrn1q_f64(ab1, cd1));
    out[2] = vreinterpretq_f32_f64(vtrn2q_f64(ab0, cd0));
    out[3] = vreinterpretq_f32_f64(vtrn2q_f64(ab1, cd1));
}

SL_INLINE void v_transpose(vf r[16])
{
    vf t[16];
    for (int row = 0; row < 4; row++) {
        for (int column = 0; column < 4; column++) {
            float32x4_t out[4];
            transpose4(r[4 * row].q[column], r[4 * row + 1].q[column], r[4 * row + 2].q[column],
                       r[4 * row + 3].q[column], out);
            for (int l = 0; l < 4; l++)
                t[4 * column + l].q[row] = out[l];
        }
    }
    memcpy(r, t, sizeof t);
}

SL_INLINE void v_load_taps(const float *p, vf w[4])
{
    for (int i = 0; i < QUARTERS; i++) {
        float32x4x4_t taps = vld4q_f32(p + 16 * i);
        for (int j = 0; j < 4; j++)
            w[j].q[i] = taps.val[j];
    }
}

#undef EACH
/* clang-format on */

#endif
