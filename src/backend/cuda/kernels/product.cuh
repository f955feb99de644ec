/* One block of a quantised product on the tensor cores, section 2. The integer dots run as
 * mma.m16n8k32 (16 outputs x 8 activation rows), where their order cannot matter; the float sums
 * keep the order of the contract: blocks ascend inside a segment, one warp a segment, and whoever
 * uses this adds the segments in ascending order. An output is the same operations whatever the
 * number of rows beside it. */
#ifndef SL_BACKEND_CUDA_KERNELS_PRODUCT_CUH
#define SL_BACKEND_CUDA_KERNELS_PRODUCT_CUH

#include <cuda_fp16.h>

#include "backend/cuda/kernels/common.cuh"

enum { SEGMENT_BLOCKS = SL_CU_SEGMENT_BLOCKS, TOKENS = 8, ROWS = 16, CODE_BYTES = 512 };

/* The activation row of product i. */
static __device__ inline uint32_t activation_row(const sl_cu_product &p, uint32_t i)
{
    return p.rows ? p.rows[i] : i / p.row_divisor;
}

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

/* ---- forms of weights ---- */

static __host__ __device__ constexpr uint32_t block_bytes_of(int kind)
{
    return kind == SL_CU_PLAIN     ? SL_CU_PLAIN_BYTES
           : kind == SL_CU_GENERAL ? SL_CU_GENERAL_BYTES
           : kind == SL_CU_K4      ? 256 + 32
           : kind == SL_CU_K5      ? 256 + 64 + 32
                                   : 256 + 128 + 32;
}

static __host__ __device__ constexpr uint32_t head_bytes_of(int kind)
{
    return kind == SL_CU_PLAIN || kind == SL_CU_GENERAL ? 0 : 64;
}

static __host__ __device__ constexpr uint32_t segment_bytes_of(int kind)
{
    return head_bytes_of(kind) + SEGMENT_BLOCKS * block_bytes_of(kind);
}

/* Whether a block's two halves have a factor each. */
static __host__ __device__ constexpr bool has_halves(int kind)
{
    return kind == SL_CU_GENERAL || kind == SL_CU_K6;
}

static __device__ __forceinline__ const uint8_t *block_at(int kind, const uint8_t *panel,
                                                          uint32_t b)
{
    return panel + (size_t)(b / SEGMENT_BLOCKS) * segment_bytes_of(kind) + head_bytes_of(kind) +
           b % SEGMENT_BLOCKS * block_bytes_of(kind);
}

/* A lane's codes of a block, as they lie there. STREAMED: in global memory, and read once. */
template <bool STREAMED, typename T> static __device__ __forceinline__ T load_once(const void *at)
{
    return STREAMED ? __ldcs((const T *)at) : *(const T *)at;
}

template <bool STREAMED = true>
static __device__ __forceinline__ uint4 load_raw(int kind, const uint8_t *block)
{
    const uint32_t lane = threadIdx.x % WARP;
    if (kind == SL_CU_PLAIN || kind == SL_CU_GENERAL)
        return load_once<STREAMED, uint4>(block + 16 * lane);
    const uint2 nibbles = load_once<STREAMED, uint2>(block + 8 * lane);
    uint32_t more = 0;
    if (kind == SL_CU_K5)
        more = load_once<STREAMED, uint16_t>(block + 256 + 2 * lane);
    if (kind == SL_CU_K6)
        more = load_once<STREAMED, uint32_t>(block + 256 + 4 * lane);
    return make_uint4(nibbles.x, nibbles.y, more, 0);
}

/* Four bits as the lowest bits of four bytes. */
static __device__ __forceinline__ uint32_t spread_bits(uint32_t four)
{
    return (four & 15) * 0x00204081u & 0x01010101u;
}

/* The same as signed bytes; of K6 four times the code, which keeps its sign at the top. */
static __device__ __forceinline__ uint4 expand_codes(int kind, const uint4 &raw)
{
    enum { LOW = 0x0F0F0F0F, MIDDLE = 0x3C3C3C3C };
    const uint32_t top = 0xC0C0C0C0u;
    if (kind == SL_CU_K4 || kind == SL_CU_K5) {
        uint4 codes = make_uint4(raw.x & LOW, raw.x >> 4 & LOW, raw.y & LOW, raw.y >> 4 & LOW);
        if (kind == SL_CU_K5) {
            codes.x |= spread_bits(raw.z) << 4;
            codes.y |= spread_bits(raw.z >> 4) << 4;
            codes.z |= spread_bits(raw.z >> 8) << 4;
            codes.w |= spread_bits(raw.z >> 12) << 4;
        }
        return codes;
    }
    if (kind == SL_CU_K6)
        return make_uint4(
            (raw.x << 2 & MIDDLE) | (raw.z << 6 & top), (raw.x >> 2 & MIDDLE) | (raw.z << 4 & top),
            (raw.y << 2 & MIDDLE) | (raw.z << 2 & top), (raw.y >> 2 & MIDDLE) | (raw.z & top));
    return raw;
}

/* Rows g and g + 8 of a panel's block, as this lane sees them. */
typedef struct block_scales {
    float d[2], m[2];
    int s0[2], s1[2], m0[2], m1[2];
} block_scales;

/* What rows g and g + 8 have in a block's last 32 bytes, two bytes each; not of the general form.
 */
template <bool STREAMED = true>
static __device__ __forceinline__ uint32_t load_raw_scales(int kind, const uint8_t *block)
{
    const uint8_t *at = block + block_bytes_of(kind) - 2 * ROWS + 2 * (threadIdx.x % WARP / 4);
    return load_once<STREAMED, uint16_t>(at) | (uint32_t)load_once<STREAMED, uint16_t>(at + ROWS)
                                                   << 16;
}

/* What they have in a segment's head, of the forms that have one. */
template <bool STREAMED = true>
static __device__ __forceinline__ uint2 load_raw_head(int kind, const uint8_t *panel,
                                                      uint32_t segment)
{
    const uint8_t *at =
        panel + (size_t)segment * segment_bytes_of(kind) + 4 * (threadIdx.x % WARP / 4);
    return make_uint2(load_once<STREAMED, uint32_t>(at),
                      load_once<STREAMED, uint32_t>(at + 2 * ROWS));
}

static __device__ __forceinline__ float half_of(uint32_t bits)
{
    return __half2float(__ushort_as_half((uint16_t)bits));
}

static __device__ __forceinline__ block_scales scales_of(int kind, uint32_t raw, const uint2 &head)
{
    block_scales s = {};
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const uint32_t two = raw >> 16 * half, h = half ? head.y : head.x;
        if (kind == SL_CU_PLAIN) {
            s.d[half] = half_of(two);
        } else if (kind == SL_CU_K6) {
            s.d[half] = sl_float_of_bits(h);
            s.s0[half] = (int8_t)two;
            s.s1[half] = (int8_t)(two >> 8);
        } else {
            s.d[half] = half_of(h);
            s.m[half] = half_of(h >> 16);
            s.s0[half] = two & 255;
            s.m0[half] = two >> 8 & 255;
        }
    }
    return s;
}

static __device__ __forceinline__ block_scales general_scales(const uint8_t *block)
{
    const uint8_t *at = block + CODE_BYTES;
    block_scales s;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const uint32_t row = threadIdx.x % WARP / 4 + 8 * half;
        s.d[half] = ((const float *)at)[row];
        s.m[half] = ((const float *)(at + 64))[row];
        s.s0[half] = ((const int8_t *)(at + 128))[row];
        s.s1[half] = ((const int8_t *)(at + 144))[row];
        s.m0[half] = (at + 160)[row];
        s.m1[half] = (at + 176)[row];
    }
    return s;
}

/* All of block b of a panel. */
template <bool STREAMED = true>
static __device__ __forceinline__ block_scales load_scales(int kind, const uint8_t *panel,
                                                           uint32_t b)
{
    const uint8_t *block = block_at(kind, panel, b);
    if (kind == SL_CU_GENERAL)
        return general_scales(block);
    const uint2 head = head_bytes_of(kind) > 0
                           ? load_raw_head<STREAMED>(kind, panel, b / SEGMENT_BLOCKS)
                           : make_uint2(0, 0);
    return scales_of(kind, load_raw_scales<STREAMED>(kind, block), head);
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
    if (!has_halves(KIND)) {
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
    for (int i = 0; i < 4; i++) {
        if (KIND == SL_CU_K4 || KIND == SL_CU_K5)
            n[i] = s.s0[i / 2] * n[i];
        if (KIND == SL_CU_K6) /* the codes were four times as large */
            n[i] = n[i] >> 2;
        seg[i] = fmaf(s.d[i / 2] * da[i % 2], (float)n[i], seg[i]);
    }
    if (HAS_MIN) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int sum = has_halves(KIND)
                                ? s.m0[i / 2] * sums[i % 2][0] + s.m1[i / 2] * sums[i % 2][1]
                                : s.m0[i / 2] * (sums[i % 2][0] + sums[i % 2][1]);
            seg[i] = fmaf(s.m[i / 2] * da[i % 2], (float)sum, seg[i]);
        }
    }
}

/* Calls f.run<KIND, HAS_MIN>() for a quantised matrix. */
template <typename F> static void for_form(const sl_cu_matrix *w, const F &f)
{
    switch (w->kind) {
    case SL_CU_PLAIN:
        f.template run<SL_CU_PLAIN, false>();
        return;
    case SL_CU_K4:
        f.template run<SL_CU_K4, true>();
        return;
    case SL_CU_K5:
        f.template run<SL_CU_K5, true>();
        return;
    case SL_CU_K6:
        f.template run<SL_CU_K6, false>();
        return;
    default:
        if (w->has_min)
            f.template run<SL_CU_GENERAL, true>();
        else
            f.template run<SL_CU_GENERAL, false>();
    }
}

#endif
