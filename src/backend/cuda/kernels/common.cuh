/* What the CUDA kernels share. The elementary functions are those of the CPU: math.h is compiled
 * for the device with one rounding per operation (the Makefile's flags), so the bits are the same.
 */
#ifndef SL_BACKEND_CUDA_KERNELS_COMMON_CUH
#define SL_BACKEND_CUDA_KERNELS_COMMON_CUH

#define _Static_assert static_assert
#include "backend/cpu/kernels/math.h"
#include "backend/cuda/kernels/launch.h"

enum { WARP = 32, SUM_LANES = 16 };

static __host__ __device__ inline uint32_t div_up(uint32_t a, uint32_t b)
{
    return (a + b - 1) / b;
}

/* Sum over 16 lanes of the first half of a warp: (l, l + 8), 4, 2, 1. Right in lane 0. */
static __device__ inline float sum_tree(float lane)
{
    for (int half = SUM_LANES / 2; half > 0; half /= 2)
        lane = lane + __shfl_down_sync(0xFFFFFFFFu, lane, half);
    return lane;
}

/* Sum of squares of x[n] in shared memory by a warp: element k in lane k mod 16, ascending. Right
 * in lane 0. The sum is a chain of which no link may wait for memory. */
static __device__ inline float sum_squares_of(const float *x, uint32_t n, uint32_t lane)
{
    enum { BATCH = 16, STEP = BATCH * SUM_LANES };
    const float *at = x + lane % SUM_LANES;
    uint32_t k = 0;
    float sum = 0.0f;
#pragma unroll 1
    for (; k + STEP <= n; k += STEP) {
        float value[BATCH];
#pragma unroll
        for (uint32_t j = 0; j < BATCH; j++)
            value[j] = at[k + j * SUM_LANES];
#pragma unroll
        for (uint32_t j = 0; j < BATCH; j++)
            sum = fmaf(value[j], value[j], sum);
    }
    for (k += lane % SUM_LANES; k < n; k += SUM_LANES)
        sum = fmaf(x[k], x[k], sum);
    return sum_tree(sum);
}

/* The same by the first warp of a block. */
static __device__ inline float sum_squares(const float *x, uint32_t n)
{
    return sum_squares_of(x, n, threadIdx.x);
}

/* Shared memory that a block of threads may have on the present device. */
static inline size_t most_memory_of_block(void)
{
    int device = 0, n_bytes = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&n_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    return (size_t)n_bytes;
}

/* Launches a kernel that begins with wait_for_previous: where the queue says so, it may start while
 * the kernel before it still runs. */
template <typename... Args>
static void launch(const sl_cu_queue *queue, void (*kernel)(Args...), dim3 grid, dim3 block,
                   size_t shared, Args... args)
{
    cudaLaunchAttribute overlap = {};
    overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    overlap.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = shared;
    config.stream = queue->stream;
    config.attrs = &overlap;
    config.numAttrs = queue->overlap ? 1 : 0;
    cudaLaunchKernelEx(&config, kernel, args...);
}

static __device__ inline void let_next_start(void)
{
#if __CUDA_ARCH__ >= 900
    cudaTriggerProgrammaticLaunchCompletion();
#endif
}

/* Until here a kernel may touch only what no kernel of the run writes; then the kernel before it,
 * and with it all that it waited for, has ended. */
static __device__ inline void wait_alone(void)
{
#if __CUDA_ARCH__ >= 900
    cudaGridDependencySynchronize();
#endif
}

/* The next kernel may come up to this point meanwhile. */
static __device__ inline void wait_for_previous(void)
{
    let_next_start();
    wait_alone();
}

static __device__ inline bool finite(float x)
{
    return (sl_bits_of_float(x) & 0x7FFFFFFFu) < 0x7F800000u;
}

/* As the instructions on shared memory want it. */
static __device__ __forceinline__ uint32_t shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* Copies 16 bytes to shared memory without waiting; end_of_copies closes a group of copies that can
 * be waited for. */
static __device__ __forceinline__ void copy_ahead(void *to, const void *from)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from));
}

static __device__ __forceinline__ void copy_word_ahead(void *to, const void *from)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_address(to)), "l"(from));
}

static __device__ __forceinline__ void end_of_copies(void)
{
    asm volatile("cp.async.commit_group;");
}

/* Waits until all but the last LEFT groups have arrived. */
template <int LEFT> static __device__ __forceinline__ void wait_for_copies(void)
{
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT));
}

/* One block of 32 values, one a lane (0 beyond the row's end), as codes, section 1. */
static __device__ inline void quantise_block(float x, int8_t *q, float *d, int16_t *sums)
{
    uint32_t lane = threadIdx.x & (WARP - 1);
    uint32_t bits = __reduce_max_sync(0xFFFFFFFFu, sl_bits_of_float(x) & 0x7FFFFFFFu);
    int code = 0;
    float scale = 0.0f;
    if (bits >= 0x7F800000u) {
        scale = sl_float_of_bits(0x7FC00000u);
    } else if (bits >= (uint32_t)(127 - 100) << 23) {
        float largest = sl_float_of_bits(bits);
        scale = largest / 127.0f;
        code = (int)sl_rintf(x * (127.0f / largest));
    }
    q[lane] = (int8_t)code;
    int low = __reduce_add_sync(0xFFFFFFFFu, lane < 16 ? code : 0);
    int high = __reduce_add_sync(0xFFFFFFFFu, lane < 16 ? 0 : code);
    if (lane == 0) {
        *d = scale;
        sums[0] = (int16_t)low;
        sums[1] = (int16_t)high;
    }
}

/* sl_rintf of a small number as an integer: where its rounding leaves it, without the slow
 * conversion. */
static __device__ __forceinline__ int code_of(float x)
{
    return (int)(sl_bits_of_float(x + 0x1.8p23f) - 0x4B400000u);
}

/* The same 32 values by one thread, from 16-byte places; the scale. */
static __device__ inline float quantise_values(const float4 *values, int8_t *q, float *d,
                                               int16_t *sums)
{
    float x[SL_Q8_BLOCK];
    uint32_t bits = 0;
#pragma unroll
    for (int i = 0; i < SL_Q8_BLOCK / 4; i++) {
        const float4 four = values[i];
        x[4 * i] = four.x;
        x[4 * i + 1] = four.y;
        x[4 * i + 2] = four.z;
        x[4 * i + 3] = four.w;
    }
#pragma unroll
    for (int i = 0; i < SL_Q8_BLOCK; i++) {
        const uint32_t size = sl_bits_of_float(x[i]) & 0x7FFFFFFFu;
        bits = bits < size ? size : bits;
    }
    const float largest = sl_float_of_bits(bits);
    const bool usable = bits >= (uint32_t)(127 - 100) << 23 && bits < 0x7F800000u;
    const float factor = usable ? 127.0f / largest : 0.0f;
    int sum[2] = {0, 0};
    uint32_t packed[SL_Q8_BLOCK / 4] = {0};
#pragma unroll
    for (int i = 0; i < SL_Q8_BLOCK; i++) {
        const int code = usable ? code_of(x[i] * factor) : 0;
        sum[i / 16] += code;
        packed[i / 4] |= ((uint32_t)code & 0xFFu) << (i % 4 * 8);
    }
    ((uint4 *)q)[0] = make_uint4(packed[0], packed[1], packed[2], packed[3]);
    ((uint4 *)q)[1] = make_uint4(packed[4], packed[5], packed[6], packed[7]);
    sums[0] = (int16_t)sum[0];
    sums[1] = (int16_t)sum[1];
    const float nan = sl_float_of_bits(0x7FC00000u);
    const float scale = usable ? largest / 127.0f : bits >= 0x7F800000u ? nan : 0.0f;
    *d = scale;
    return scale;
}

/* Row `row` of q from x[n] in shared or global memory, by a whole block of threads. */
static __device__ inline void quantise_row(const float *x, uint32_t n, const sl_cu_q8 q,
                                           uint32_t row)
{
    uint32_t lane = threadIdx.x & (WARP - 1);
    for (uint32_t b = threadIdx.x / WARP; b < q.n_blocks; b += blockDim.x / WARP) {
        uint32_t k = b * SL_Q8_BLOCK + lane;
        size_t at = (size_t)row * q.n_blocks + b;
        quantise_block(k < n ? x[k] : 0.0f, q.q + at * SL_Q8_BLOCK, q.d + at, q.sums + 2 * at);
    }
}

#endif
