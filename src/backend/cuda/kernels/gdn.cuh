/* Where things of a gated delta layer lie in a state, and sizes that its kernels share. */
#ifndef SL_BACKEND_CUDA_KERNELS_GDN_CUH
#define SL_BACKEND_CUDA_KERNELS_GDN_CUH

#include "backend/cuda/kernels/common.cuh"

enum { DIM = SL_GDN_DIM, CHUNK = SL_GDN_CHUNK };

/* q is scaled by 1 / sqrt(128), rounded once. */
#define Q_SCALE 0x1.6a09e6p-4f

static __device__ inline float *conv_row(const sl_cu_gdn &gdn, const sl_cu_segment &segment,
                                         uint32_t pos)
{
    return segment.conv +
           ((size_t)gdn.index * gdn.n_conv_rows + pos % gdn.n_conv_rows) * gdn.n_channels;
}

static __device__ inline uint32_t key_head_of(const sl_cu_gdn &gdn, uint32_t value_head)
{
    return gdn.tiled ? value_head % gdn.n_key_heads
                     : value_head / (gdn.n_value_heads / gdn.n_key_heads);
}

/* Convolution and SiLU of one channel of a row of the run, the i-th of its segment. The taps reach
 * three rows back: in this run, in the state, or before the sequence. */
static __device__ inline float convolved(const sl_cu_gdn &gdn, const sl_cu_segment &segment,
                                         uint32_t i, uint32_t channel)
{
    const float4 w = ((const float4 *)gdn.conv)[channel];
    const float taps[SL_CONV_TAPS] = {w.x, w.y, w.z, w.w};
    float x[SL_CONV_TAPS];
#pragma unroll
    for (uint32_t j = 0; j < SL_CONV_TAPS; j++) {
        const uint32_t back = SL_CONV_TAPS - 1 - j;
        x[j] = 0.0f;
        if (back <= i)
            x[j] = gdn.qkv[(size_t)(segment.first_row + i - back) * gdn.n_channels + channel];
        else if (back <= segment.pos + i)
            x[j] = conv_row(gdn, segment, segment.pos + i - back)[channel];
    }
    float sum = 0.0f;
#pragma unroll
    for (uint32_t j = 0; j < SL_CONV_TAPS; j++)
        sum = fmaf(taps[j], x[j], sum);
    return sl_silu(sum);
}

static __device__ inline float decay_gate(const sl_cu_gdn &gdn, size_t row, uint32_t head)
{
    return gdn.a_coef[head] * sl_softplus(gdn.a[row * gdn.n_value_heads + head] + gdn.dt[head]);
}

static __device__ inline float write_strength(const sl_cu_gdn &gdn, size_t row, uint32_t head)
{
    return sl_sigmoid(gdn.b[row * gdn.n_value_heads + head]);
}

/* Row j of chunk m of the segment's rows on the tape; then heads of 16 rows of 128, then decays. */
static __device__ inline float *tape_layer(const sl_cu_gdn &gdn, const sl_cu_segment &segment,
                                           uint32_t m, uint32_t j)
{
    return segment.tape[m == 0 ? 0 : 1 + (m & 1)][j / SL_TAPE_PAGE] +
           (size_t)gdn.index * gdn.layer_floats;
}
static __device__ inline float *tape_k(const sl_cu_gdn &gdn, const sl_cu_segment &segment,
                                       uint32_t m, uint32_t j, uint32_t head)
{
    return tape_layer(gdn, segment, m, j) + (head * SL_TAPE_PAGE + j % SL_TAPE_PAGE) * DIM;
}
static __device__ inline float *tape_u(const sl_cu_gdn &gdn, const sl_cu_segment &segment,
                                       uint32_t m, uint32_t j, uint32_t head)
{
    return tape_k(gdn, segment, m, j, gdn.n_key_heads + head);
}
static __device__ inline float *tape_g(const sl_cu_gdn &gdn, const sl_cu_segment &segment,
                                       uint32_t m, uint32_t j, uint32_t head)
{
    return tape_layer(gdn, segment, m, j) +
           (size_t)(gdn.n_key_heads + gdn.n_value_heads) * SL_TAPE_PAGE * DIM +
           head * SL_TAPE_PAGE + j % SL_TAPE_PAGE;
}

/* Below 2^-100 a value becomes +0. */
static __device__ inline float flush_tiny(float x)
{
    return fabsf(x) < 0x1p-100f ? 0.0f : x;
}

#endif
