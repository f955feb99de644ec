/* Attention with halves as keys and values: a ring of pieces in shared memory, which two warps fill
 * with the keys and values of page after page while others make products of them. It needs no
 * clusters and nothing of Hopper. */
#ifndef SL_BACKEND_CUDA_KERNELS_ATTENTION_RING_CUH
#define SL_BACKEND_CUDA_KERNELS_ATTENTION_RING_CUH

#include "backend/cuda/kernels/attention.cuh"
#include "backend/cuda/kernels/cluster.cuh"

enum {
    COPIERS = 2,      /* warps that copy, the last of a block: eight rows of 128 bytes at once */
    SLOT = 16 * 1024, /* bytes of a piece */
    EIGHT_ROWS = 8 * PANEL_ROW,
    VALUES = 32,                     /* keys of a piece of values ... */
    VALUE_PANEL = VALUES * PANEL_ROW /* ... and bytes of each of its four panels */
};

typedef struct ring {
    char *slots;                 /* [n_slots][SLOT] */
    uint64_t *full, *empty;      /* [n_slots] */
    uint32_t n_slots, n_readers; /* warps that make products, the first of a block */
} ring;

/* A slot, and which of the two kinds of rounds it is in. */
typedef struct place {
    uint32_t slot, parity;
} place;

static __device__ __forceinline__ void init_ring(const ring &r)
{
    if (threadIdx.x < r.n_slots) {
        init_counter(r.full + threadIdx.x, COPIERS * WARP);
        init_counter(r.empty + threadIdx.x, r.n_readers);
    }
}

static __device__ __forceinline__ place after(const ring &r, place p)
{
    const bool is_last = p.slot + 1 == r.n_slots;
    const place next = {is_last ? 0 : p.slot + 1, p.parity ^ (is_last ? 1 : 0)};
    return next;
}

/* ---- warps that make products ---- */

static __device__ __forceinline__ bool is_reader(const ring &r)
{
    return threadIdx.x < r.n_readers * WARP;
}

/* All of them are here. */
static __device__ __forceinline__ void meet(const ring &r)
{
    asm volatile("bar.sync 1, %0;" ::"r"(r.n_readers * WARP) : "memory");
}

static __device__ __forceinline__ void wait_for_piece(const ring &r, place p)
{
    wait_for_counter(r.full + p.slot, p.parity);
}

/* The warp has read what it needs of a piece. */
static __device__ __forceinline__ void release(const ring &r, place p)
{
    __syncwarp();
    if (threadIdx.x % WARP == 0)
        asm volatile("{\n\t.reg .b64 state;\n\tmbarrier.arrive.shared.b64 state, [%0];\n\t}" ::"r"(
                         shared_address(r.empty + p.slot))
                     : "memory");
}

/* ---- warps that copy ---- */

/* Of eight rows of 128 bytes a thread copies 16 bytes, piece x mod 8 of row x / 8. */
static __device__ __forceinline__ uint32_t copier(const ring &r)
{
    return threadIdx.x - r.n_readers * WARP;
}

/* The thread's place in the slot, when that is free. */
static __device__ __forceinline__ char *wait_for_room(const ring &r, place p)
{
    wait_for_counter(r.empty + p.slot, p.parity ^ 1);
    return r.slots + p.slot * SLOT + panel_at(copier(r) / 8, copier(r) % 8);
}

/* The readers hear of it when the thread's copies have arrived. */
static __device__ __forceinline__ void end_of_piece(const ring &r, place p)
{
    asm volatile(
        "cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(shared_address(r.full + p.slot))
        : "memory");
}

/* N times eight rows that lie one after the other. */
template <int N>
static __device__ __forceinline__ void copy_rows(const ring &r, char *to, const char *from)
{
    from += copier(r) * 16;
#pragma unroll
    for (uint32_t i = 0; i < N; i++)
        copy_ahead(to + i * EIGHT_ROWS, from + i * EIGHT_ROWS);
}

/* 16 bytes, or zeros. */
static __device__ __forceinline__ void copy_or_clear(char *to, const char *from, bool is_there)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)),
                 "l"(from), "r"(is_there ? 16 : 0));
}

/* Values of 32 keys from `from` on, of which n_there are there; others become zero. */
static __device__ __forceinline__ void copy_values(const ring &r, char *to, const char *from,
                                                   uint32_t n_there)
{
    const uint32_t row = copier(r) / 8;
    from += row * HALF_ROW + copier(r) % 8 * 16;
#pragma unroll
    for (uint32_t i = 0; i < VALUES / 8; i++) {
#pragma unroll
        for (uint32_t panel = 0; panel < DIM / PANEL; panel++)
            copy_or_clear(to + panel * VALUE_PANEL + i * EIGHT_ROWS,
                          from + i * 8 * HALF_ROW + panel * PANEL_ROW, 8 * i + row < n_there);
    }
}

#endif
