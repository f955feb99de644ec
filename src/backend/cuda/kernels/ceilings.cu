/* Loops that do nothing but read, or multiply on the tensor cores: what shares of a ceiling are
 * quoted against. Every loop's result depends on all of its work. */
#include "backend/cuda/kernels/common.cuh"

enum { READ_THREADS = 256, READS_AT_ONCE = 8, CHAINS = 8, COMPUTE_WARPS = 8 };

static __global__ void __launch_bounds__(READ_THREADS)
    read_all(const uint4 *data, size_t n, uint32_t *out)
{
    const size_t step = (size_t)gridDim.x * READ_THREADS;
    size_t i = (size_t)blockIdx.x * READ_THREADS + threadIdx.x;
    uint32_t mix = 0;
    for (; i + (READS_AT_ONCE - 1) * step < n; i += READS_AT_ONCE * step) {
        uint4 v[READS_AT_ONCE];
#pragma unroll
        for (int k = 0; k < READS_AT_ONCE; k++)
            v[k] = __ldcs(data + i + k * step);
#pragma unroll
        for (int k = 0; k < READS_AT_ONCE; k++)
            mix ^= v[k].x ^ v[k].y ^ v[k].z ^ v[k].w;
    }
    for (; i < n; i += step)
        mix ^= data[i].x;
    if (mix == 0x9E3779B9u) /* never, but the compiler cannot know */
        *out = mix;
}

static __global__ void multiply_int8(uint32_t n_rounds, uint32_t *out)
{
    int c[CHAINS][4] = {};
    const uint32_t a = threadIdx.x * 0x01010101u, b = ~a;
    for (uint32_t i = 0; i < n_rounds; i++) {
#pragma unroll
        for (int k = 0; k < CHAINS; k++)
            asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, "
                         "{%4,%5,%4,%5}, {%4,%5}, {%0,%1,%2,%3};"
                         : "+r"(c[k][0]), "+r"(c[k][1]), "+r"(c[k][2]), "+r"(c[k][3])
                         : "r"(a), "r"(b));
    }
    int sum = 0;
    for (int k = 0; k < CHAINS; k++)
        sum ^= c[k][0] ^ c[k][1] ^ c[k][2] ^ c[k][3];
    if (sum == 0x1E3779B9)
        *out = (uint32_t)sum;
}

static __global__ void multiply_tf32(uint32_t n_rounds, uint32_t *out)
{
    float c[CHAINS][4] = {};
    const uint32_t a = 0x3F800000u + threadIdx.x * 0x10000u, b = a ^ 0x80000000u;
    for (uint32_t i = 0; i < n_rounds; i++) {
#pragma unroll
        for (int k = 0; k < CHAINS; k++)
            asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, "
                         "{%4,%5,%4,%5}, {%4,%5}, {%0,%1,%2,%3};"
                         : "+f"(c[k][0]), "+f"(c[k][1]), "+f"(c[k][2]), "+f"(c[k][3])
                         : "r"(a), "r"(b));
    }
    float sum = 0.0f;
    for (int k = 0; k < CHAINS; k++)
        sum += c[k][0] + c[k][1] + c[k][2] + c[k][3];
    if (sum == 0.123f)
        *out = 1;
}

void sl_cu_read_ceiling(cudaStream_t stream, const void *data, size_t n_bytes, uint32_t n_units,
                        uint32_t *out)
{
    enum { BLOCKS_PER_UNIT = 4 };
    read_all<<<n_units * BLOCKS_PER_UNIT, READ_THREADS, 0, stream>>>((const uint4 *)data,
                                                                     n_bytes / sizeof(uint4), out);
}

/* A multiply-add counts as two. */
static double operations(uint32_t n_units, uint32_t n_rounds, int k)
{
    return 2.0 * 16 * 8 * k * CHAINS * COMPUTE_WARPS * (double)n_units * n_rounds;
}

double sl_cu_int8_ceiling(cudaStream_t stream, uint32_t n_units, uint32_t n_rounds, uint32_t *out)
{
    multiply_int8<<<n_units, COMPUTE_WARPS * WARP, 0, stream>>>(n_rounds, out);
    return operations(n_units, n_rounds, 32);
}

double sl_cu_tf32_ceiling(cudaStream_t stream, uint32_t n_units, uint32_t n_rounds, uint32_t *out)
{
    multiply_tf32<<<n_units, COMPUTE_WARPS * WARP, 0, stream>>>(n_rounds, out);
    return operations(n_units, n_rounds, 8);
}
