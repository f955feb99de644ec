/* Clusters of blocks, which share copies of memory and see each other's shared memory; barriers in
 * shared memory that count arrivals and bytes. From Hopper on: before, a cluster is one block and a
 * warp copies. */
#ifndef SL_BACKEND_CUDA_KERNELS_CLUSTER_CUH
#define SL_BACKEND_CUDA_KERNELS_CLUSTER_CUH

#include "backend/cuda/kernels/common.cuh"

/* Launches with clusters of n blocks along x when the queue's device has them; else as launch. */
template <typename... Args>
static void launch_clusters(const sl_cu_queue *queue, void (*kernel)(Args...), uint32_t n,
                            dim3 grid, dim3 block, size_t shared, Args... args)
{
    cudaLaunchAttribute attributes[2] = {};
    attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[0].val.programmaticStreamSerializationAllowed = 1;
    attributes[1].id = cudaLaunchAttributeClusterDimension;
    attributes[1].val.clusterDim.x = n;
    attributes[1].val.clusterDim.y = attributes[1].val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = shared;
    config.stream = queue->stream;
    config.attrs = attributes;
    config.numAttrs = queue->overlap ? 2 : 0;
    cudaLaunchKernelEx(&config, kernel, args...);
}

static __device__ __forceinline__ uint32_t cluster_blocks(void)
{
    uint32_t n = 1;
#if __CUDA_ARCH__ >= 900
    asm("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(n));
#endif
    return n;
}

static __device__ __forceinline__ uint32_t cluster_rank(void)
{
    uint32_t rank = 0;
#if __CUDA_ARCH__ >= 900
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
#endif
    return rank;
}

/* Every thread of the cluster arrives and later waits: then all have been here. What they wrote to
 * memory need not be seen yet. */
static __device__ __forceinline__ void cluster_arrive(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
#endif
}

static __device__ __forceinline__ void cluster_wait(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.wait;" ::: "memory");
#endif
}

/* The same when nothing may be on its way to other blocks afterwards. */
static __device__ __forceinline__ void cluster_end(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.release;\n\tbarrier.cluster.wait.acquire;" ::: "memory");
#endif
}

/* ---- counting barriers ---- */

static __device__ __forceinline__ void init_counter(uint64_t *counter, uint32_t n)
{
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(counter)), "r"(n)
                 : "memory");
}

/* After init_counter, before cluster_arrive. */
static __device__ __forceinline__ void show_counters(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}

/* At a counter of the block itself. */
static __device__ __forceinline__ void arrive(uint64_t *counter)
{
    asm volatile("{\n\t.reg .b64 state;\n\tmbarrier.arrive.shared.b64 state, [%0];\n\t}" ::"r"(
                     shared_address(counter))
                 : "memory");
}

static __device__ __forceinline__ void arrive_remote(uint64_t *counter, uint32_t rank)
{
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "{\n\t.reg .b32 there;\n\t"
        "mapa.shared::cluster.u32 there, %0, %1;\n\t"
        "mbarrier.arrive.shared::cluster.b64 _, [there];\n\t}" ::"r"(shared_address(counter)),
        "r"(rank)
        : "memory");
#else
    (void)rank;
    arrive(counter);
#endif
}

/* *to = x in the shared memory of block `rank`, where the counter counts its four bytes. */
static __device__ __forceinline__ void send(float *to, uint32_t rank, float x, uint64_t *counter)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("{\n\t.reg .b32 there, counter;\n\t"
                 "mapa.shared::cluster.u32 there, %0, %1;\n\t"
                 "mapa.shared::cluster.u32 counter, %3, %1;\n\t"
                 "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [there], %2, "
                 "[counter];\n\t}" ::"r"(shared_address(to)),
                 "r"(rank), "r"(__float_as_uint(x)), "r"(shared_address(counter))
                 : "memory");
#else
    (void)rank;
    (void)counter;
    *to = x;
#endif
}

/* Until the counter's round with this parity is over. */
static __device__ __forceinline__ void wait_for_counter(uint64_t *counter, uint32_t parity)
{
    uint32_t over = 0;
    while (!over) {
#if __CUDA_ARCH__ >= 900
        asm volatile("{\n\t.reg .pred p;\n\t"
                     "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n\t"
                     "selp.u32 %0, 1, 0, p;\n\t}"
                     : "=r"(over)
                     : "r"(shared_address(counter)), "r"(parity)
                     : "memory");
#else
        asm volatile("{\n\t.reg .pred p;\n\t"
                     "mbarrier.test_wait.parity.shared.b64 p, [%1], %2;\n\t"
                     "selp.u32 %0, 1, 0, p;\n\t}"
                     : "=r"(over)
                     : "r"(shared_address(counter)), "r"(parity)
                     : "memory");
#endif
    }
}

/* ---- copies of blocks, by the lanes of a warp ---- */

/* How often a counter of copies is arrived at in a round. */
#if __CUDA_ARCH__ >= 900
enum { COPY_ARRIVALS = 1 };
#else
enum { COPY_ARRIVALS = WARP };
#endif

/* Begins a round of copies of n bytes in all; the copies follow, then end_of_blocks. */
static __device__ __forceinline__ void expect_blocks(uint64_t *counter, uint32_t n_bytes)
{
#if __CUDA_ARCH__ >= 900
    if (threadIdx.x % WARP == 0)
        asm volatile(
            "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(counter)),
            "r"(n_bytes)
            : "memory");
#else
    (void)counter;
    (void)n_bytes;
#endif
}

/* To the block's own shared memory. */
static __device__ __forceinline__ void copy_block(void *to, const void *from, uint32_t n_bytes,
                                                  uint64_t *counter)
{
#if __CUDA_ARCH__ >= 900
    if (threadIdx.x % WARP == 0)
        asm volatile(
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], "
            "%2, [%3];" ::"r"(shared_address(to)),
            "l"(from), "r"(n_bytes), "r"(shared_address(counter))
            : "memory");
#else
    (void)counter;
    for (uint32_t x = threadIdx.x % WARP * 16; x < n_bytes; x += WARP * 16)
        copy_ahead((char *)to + x, (const char *)from + x);
#endif
}

/* To every block of the cluster, of which each copies its part; n_bytes is a multiple of 64. */
static __device__ __forceinline__ void copy_shared_block(void *to, const void *from,
                                                         uint32_t n_bytes, uint64_t *counter)
{
#if __CUDA_ARCH__ >= 900
    const uint32_t n = cluster_blocks();
    if (n == 1) {
        copy_block(to, from, n_bytes, counter);
        return;
    }
    const uint32_t part = n_bytes / n, at = cluster_rank() * part;
    if (threadIdx.x % WARP == 0)
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes."
                     "multicast::cluster [%0], [%1], %2, [%3], %4;" ::"r"(shared_address(to) + at),
                     "l"((const char *)from + at), "r"(part), "r"(shared_address(counter)),
                     "h"((uint16_t)((1u << n) - 1))
                     : "memory");
#else
    copy_block(to, from, n_bytes, counter);
#endif
}

static __device__ __forceinline__ void end_of_blocks(uint64_t *counter)
{
#if __CUDA_ARCH__ >= 900
    (void)counter;
#else
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(shared_address(counter))
                 : "memory");
#endif
}

/* The thread's writes to shared memory are to be seen by store_block after a barrier. */
static __device__ __forceinline__ void show_stores(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

/* From shared memory, by a warp; it may not be written to before end_of_stores. */
static __device__ __forceinline__ void store_block(void *to, const void *from, uint32_t n_bytes)
{
#if __CUDA_ARCH__ >= 900
    if (threadIdx.x % WARP == 0)
        asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\n\t"
                     "cp.async.bulk.commit_group;" ::"l"(to),
                     "r"(shared_address(from)), "r"(n_bytes)
                     : "memory");
#else
    for (uint32_t x = threadIdx.x % WARP * 16; x < n_bytes; x += WARP * 16)
        *(uint4 *)((char *)to + x) = *(const uint4 *)((const char *)from + x);
#endif
}

static __device__ __forceinline__ void end_of_stores(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
#endif
}

#endif
