/* What products with float weights share: an output is a warp's, a lane has one block of 32 inputs
 * of 1,024 at a time. */
#ifndef SL_BACKEND_CUDA_KERNELS_PRODUCT_FLOAT_CUH
#define SL_BACKEND_CUDA_KERNELS_PRODUCT_FLOAT_CUH

#include "backend/cuda/kernels/product.cuh"

static __device__ inline float weight_at(sl_cu_kind kind, const uint8_t *row, uint32_t k)
{
    if (kind == SL_CU_F32)
        return ((const float *)row)[k];
    uint16_t bits = ((const uint16_t *)row)[k];
    return kind == SL_CU_F16 ? __half2float(__ushort_as_half(bits))
                             : sl_float_of_bits((uint32_t)bits << 16);
}

static __device__ __forceinline__ void widen(sl_cu_kind kind, uint32_t two, float out[2])
{
    const uint16_t low = (uint16_t)two, high = (uint16_t)(two >> 16);
    out[0] = weight_at(kind, (const uint8_t *)&low, 0);
    out[1] = weight_at(kind, (const uint8_t *)&high, 0);
}

/* The 32 weights from column k on. WHOLE: they are all there, and aligned. */
template <int KIND, bool WHOLE>
static __device__ __forceinline__ void load_weights(const uint8_t *row, uint32_t k, uint32_t end,
                                                    float (&out)[SL_Q8_BLOCK])
{
    enum { WORDS = KIND == SL_CU_F32 ? 8 : 4, EACH = SL_Q8_BLOCK / WORDS };
    if (!WHOLE) {
#pragma unroll
        for (uint32_t i = 0; i < SL_Q8_BLOCK; i++)
            out[i] = k + i < end ? weight_at((sl_cu_kind)KIND, row, k + i) : 0.0f;
    } else {
        const uint4 *from = (const uint4 *)(row + (size_t)k * (16 / EACH));
#pragma unroll
        for (int i = 0; i < WORDS; i++) {
            const uint4 word = k < end ? from[i] : make_uint4(0, 0, 0, 0);
            const uint32_t part[4] = {word.x, word.y, word.z, word.w};
#pragma unroll
            for (int j = 0; j < 4; j++) {
                if (KIND == SL_CU_F32)
                    out[4 * i + j] = sl_float_of_bits(part[j]);
                else
                    widen((sl_cu_kind)KIND, part[j], &out[EACH * i + 2 * j]);
            }
        }
    }
}

/* The 32 values from column k on. WHOLE: as above. */
template <bool WHOLE>
static __device__ __forceinline__ void load_values(const float *x, uint32_t k, uint32_t end,
                                                   float (&out)[SL_Q8_BLOCK])
{
    if (!WHOLE) {
#pragma unroll
        for (uint32_t i = 0; i < SL_Q8_BLOCK; i++)
            out[i] = k + i < end ? x[k + i] : 0.0f;
    } else {
#pragma unroll
        for (uint32_t i = 0; i < SL_Q8_BLOCK / 4; i++) {
            const float4 four =
                k < end ? ((const float4 *)(x + k))[i] : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            out[4 * i] = four.x;
            out[4 * i + 1] = four.y;
            out[4 * i + 2] = four.z;
            out[4 * i + 3] = four.w;
        }
    }
}

/* Adds the 32 blocks of a warp's lanes to a sum: each by itself, those of a segment in order, the
 * segments in order. Absent columns are products of zeros, and absent blocks zeros, which change no
 * sum that began at +0. */
static __device__ __forceinline__ float add_blocks(const float (&weight)[SL_Q8_BLOCK],
                                                   const float (&value)[SL_Q8_BLOCK], float total)
{
    const int first = (int)(threadIdx.x % WARP / SEGMENT_BLOCKS * SEGMENT_BLOCKS);
    float sum = 0.0f, seg = 0.0f;
#pragma unroll
    for (int k = 0; k < SL_Q8_BLOCK; k++)
        sum = fmaf(weight[k], value[k], sum);
#pragma unroll
    for (int b = 0; b < SEGMENT_BLOCKS; b++)
        seg = seg + __shfl_sync(0xFFFFFFFFu, sum, first + b);
#pragma unroll
    for (int s = 0; s < WARP / SEGMENT_BLOCKS; s++)
        total = total + __shfl_sync(0xFFFFFFFFu, seg, s * SEGMENT_BLOCKS);
    return total;
}

#endif
