/* One block of a quantised product on the tensor cores, section 2. The integer dots run as
 * mma.m16n8k32 (16 outputs x 8 activation rows), where their order cannot matter; the float sums
 * keep the order of the contract: blocks ascend inside a segment, one warp a segment, and whoever
 * uses this adds the segments in ascending order. An output is the same operations whatever the
 * number of rows beside it. */
#ifndef SL_BACKEND_CUDA_KERNELS_PRODUCT_CUH
#define SL_BACKEND_CUDA_KERNELS_PRODUCT_CUH

#include <cuda_fp16.h>

#include "backend/cuda/kernels/common.cuh"

enum { SEGMENT_BLOCKS = 8, TOKENS = 8, ROWS = 16, CODE_BYTES = 512 };

static __device__ inline void mma_k32(int c[4], const uint32_t a[4], const uint32_t b[2])
{
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

static __device__ inline void mma_k16(int c[4], uint32_t a0, uint32_t a1, uint32_t b)
{
    asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, "
        "{%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a0), "r"(a1), "r"(b));
}

/* Rows g and g + 8 of a panel's block, as this lane sees them. */
typedef struct block_scales {
    float d[2], m[2];
    int s0[2], s1[2], m0[2], m1[2];
} block_scales;

static __device__ inline void load_scales(sl_cu_kind kind, const uint8_t *block, uint32_t g,
                                          block_scales *s)
{
    const uint8_t *at = block + CODE_BYTES;
    for (int half = 0; half < 2; half++) {
        uint32_t row = g + 8 * half;
        if (kind == SL_CU_PLAIN) {
            s->d[half] = __half2float(((const __half *)at)[row]);
        } else {
            s->d[half] = ((const float *)at)[row];
            s->m[half] = ((const float *)(at + 64))[row];
            s->s0[half] = ((const int8_t *)(at + 128))[row];
            s->s1[half] = ((const int8_t *)(at + 144))[row];
            s->m0[half] = (at + 160)[row];
            s->m1[half] = (at + 176)[row];
        }
    }
}

/* One block of one tile of 8 activation rows added to seg[4]: outputs (g, 2t), (g, 2t + 1),
 * (g + 8, 2t), (g + 8, 2t + 1). */
template <int KIND, bool HAS_MIN>
static __device__ inline void add_block(const uint4 &a, const block_scales &s, const uint32_t b[2],
                                        const float da[2], const int16_t *const sums[2],
                                        float seg[4])
{
    const uint32_t codes[4] = {a.x, a.y, a.z, a.w};
    int n[4] = {0, 0, 0, 0};
    if (KIND == SL_CU_PLAIN) {
        mma_k32(n, codes, b);
    } else {
        int high[4] = {0, 0, 0, 0};
        mma_k16(n, codes[0], codes[1], b[0]);
        mma_k16(high, codes[2], codes[3], b[1]);
#pragma unroll
        for (int i = 0; i < 4; i++)
            n[i] = s.s0[i / 2] * n[i] + s.s1[i / 2] * high[i];
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
        seg[i] = fmaf(s.d[i / 2] * da[i % 2], (float)n[i], seg[i]);
    if (HAS_MIN) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int sum = s.m0[i / 2] * sums[i % 2][0] + s.m1[i / 2] * sums[i % 2][1];
            seg[i] = fmaf(s.m[i / 2] * da[i % 2], (float)sum, seg[i]);
        }
    }
}

#endif
