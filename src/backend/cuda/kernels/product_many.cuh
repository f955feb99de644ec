/* How products of many rows are divided among blocks of threads, and the instructions of compute
 * capability 9.0 that they are made of.
 *
 * A unit is 64 outputs (four panels) x COLUMNS activation rows: what one warpgroup computes at a
 * time. Units that follow each other, rows of activations outside, groups of panels inside, make a
 * tile: what a block of threads computes from one ring of copies. Each block has an equal share of
 * all segments of all tiles, so that none waits for the last tiles of others. Where its share ends
 * inside a tile, it computes that part first and leaves the sums to the next block, which goes on
 * with them last of all, long after. */
#ifndef SL_BACKEND_CUDA_KERNELS_PRODUCT_MANY_CUH
#define SL_BACKEND_CUDA_KERNELS_PRODUCT_MANY_CUH

#include <cudaTypedefs.h>

#include "backend/cuda/kernels/product.cuh"
#include "backend/cuda/kernels/scale_place.cuh"

enum {
    GROUP = 128, /* threads of a warpgroup */
    UNITS = 3,   /* of a tile at most, each by its own warpgroup */
    THREADS = (UNITS + 1) * GROUP,
    UNIT_PANELS = 4,
    STAGE_BYTES = STAGE_BLOCKS * SL_Q8_BLOCK, /* of a row of activations: one swizzled line */
    STAGES_OF_SEGMENT = SEGMENT_BLOCKS / STAGE_BLOCKS,
    WIDE = 64,
    NARROW = 32
};

/* ---- who computes what ---- */

static __host__ __device__ inline uint32_t panels_of(const sl_cu_target &target)
{
    return div_up(target.w.n_rows, ROWS);
}

/* Groups of four panels of one target; with SwiGLU two of gates and the same two of up. At least
 * two, so that a tile's units lie in two tiles of rows at most. */
static __host__ __device__ inline uint32_t count_groups(const sl_cu_many &m)
{
    uint32_t n = 0;
    for (uint32_t k = 0; k < SL_CU_MANY_TARGETS; k++) {
        if (k < m.n_targets)
            n += div_up(panels_of(m.targets[k]), UNIT_PANELS);
    }
    n = m.swiglu ? div_up(panels_of(m.targets[0]), UNIT_PANELS / 2) : n;
    return n < 2 ? 2 : n;
}

/* Two warpgroups on a multiprocessor reach about 0.8 of what three do. */
static __host__ __device__ inline uint32_t units_per_tile(uint32_t n_units, uint32_t n_processors)
{
    return n_units <= n_processors ? 1 : 3 * n_units <= 7 * n_processors ? 2 : UNITS;
}

/* Part of a tile: stages [first, end). */
typedef struct tile_part {
    uint32_t first_unit, first, end;
} tile_part;

typedef struct schedule {
    uint32_t n_groups, n_units, per_tile;
    uint32_t n_stages, n_segments; /* of a tile */
    uint32_t begin, end;           /* this block's segments of all tiles */
} schedule;

#ifdef __CUDACC__

static __device__ __forceinline__ schedule schedule_of(const sl_cu_many &m, uint32_t n_row_tiles,
                                                       bool may_carry)
{
    schedule s = {};
    s.n_groups = count_groups(m);
    s.n_units = n_row_tiles * s.n_groups;
    s.per_tile = units_per_tile(s.n_units, gridDim.x);
    s.n_stages = div_up(m.q8.n_blocks, STAGE_BLOCKS);
    s.n_segments = div_up(s.n_stages, STAGES_OF_SEGMENT);
    const uint64_t n_tiles = div_up(s.n_units, s.per_tile);
    if (n_tiles < gridDim.x) {
        s.begin = blockIdx.x * s.n_segments;
        s.end = blockIdx.x < n_tiles ? s.begin + s.n_segments : s.begin;
    } else {
        const uint64_t n = may_carry ? n_tiles * s.n_segments : n_tiles;
        const uint32_t scale = may_carry ? 1 : s.n_segments;
        s.begin = (uint32_t)(n * blockIdx.x / gridDim.x) * scale;
        s.end = (uint32_t)(n * (blockIdx.x + 1) / gridDim.x) * scale;
    }
    return s;
}

/* Part i of this block's share, in the order in which it computes them; whether there is one. */
static __device__ __forceinline__ bool part_at(const schedule &s, uint32_t i, tile_part *out)
{
    const uint32_t n = s.n_segments, head = s.end % n, tail = s.begin % n;
    const uint32_t first_whole = div_up(s.begin, n), end_whole = s.end / n;
    uint32_t tile = end_whole, begin = 0, end = head;
    if (head == 0 || i > 0) {
        tile = first_whole + i - (head != 0);
        end = n;
        if (tile >= end_whole) {
            if (tile > end_whole || tail == 0)
                return false;
            tile = s.begin / n;
            begin = tail;
        }
    }
    const uint32_t end_stage = end * STAGES_OF_SEGMENT;
    *out = {tile * s.per_tile, begin * STAGES_OF_SEGMENT,
            end_stage < s.n_stages ? end_stage : s.n_stages};
    return true;
}

/* ---- copies to shared memory, and the barriers that tell of them ---- */

static __device__ __forceinline__ void open_barrier(uint64_t *barrier, uint32_t arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)),
                 "r"(arrivals)
                 : "memory");
}

/* From here on addresses in shared memory are the instructions' own, 32 bits. */

static __device__ __forceinline__ void arrive(uint32_t barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

static __device__ __forceinline__ void arrive_expecting(uint32_t barrier, uint32_t n_bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier),
                 "r"(n_bytes)
                 : "memory");
}

static __device__ __forceinline__ void wait_for(uint32_t barrier, uint32_t parity)
{
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@!done bra again;\n"
                 "}" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
}

static __device__ __forceinline__ void copy_bulk(uint32_t to, const void *from, uint32_t n_bytes,
                                                 uint32_t barrier)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], "
                 "%2, [%3];" ::"r"(to),
                 "l"(from), "r"(n_bytes), "r"(barrier)
                 : "memory");
}

/* A box of the activations' codes, as the map describes it, from byte x of row y on. */
static __device__ __forceinline__ void copy_rows(uint32_t to, const CUtensorMap *map, uint32_t x,
                                                 uint32_t y, uint32_t barrier)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3}], [%4];" ::"r"(to),
                 "l"(map), "r"(x), "r"(y), "r"(barrier)
                 : "memory");
}

/* A box of weights: a stage of some panels from panel n of the stack's matrix on. */
static __device__ __forceinline__ void copy_panels(uint32_t to, const CUtensorMap *map,
                                                   uint32_t block, uint32_t n, uint32_t matrix,
                                                   uint32_t barrier)
{
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"(to),
                 "l"(map), "r"(0), "r"(block), "r"(n), "r"(matrix), "r"(barrier)
                 : "memory");
}

static __device__ __forceinline__ uint4 load_16(uint32_t from)
{
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(from));
    return v;
}

static __device__ __forceinline__ float load_half(uint32_t from)
{
    uint16_t bits;
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(bits) : "r"(from));
    return __half2float(__ushort_as_half(bits));
}

/* Among the threads of one warpgroup of those that compute. */
static __device__ __forceinline__ void wait_for_group(uint32_t unit)
{
    asm volatile("bar.sync %0, 128;" ::"r"(1 + unit) : "memory");
}

/* ---- sums that go from one block to the next ---- */

/* The sums of a unit, by all its threads; the flag tells the next block. */
template <int N>
static __device__ __forceinline__ void leave_sums(float *memory, uint32_t *flag, uint32_t unit,
                                                  const float (&sums)[N])
{
    const uint32_t thread = threadIdx.x % GROUP;
#pragma unroll
    for (int i = 0; i < N; i += 4)
        __stcg((float4 *)memory + i / 4 * GROUP + thread,
               make_float4(sums[i], sums[i + 1], sums[i + 2], sums[i + 3]));
    __threadfence();
    wait_for_group(unit);
    if (thread == 0)
        asm volatile("st.release.gpu.global.u32 [%0], 1;" ::"l"(flag) : "memory");
}

template <int N>
static __device__ __forceinline__ void take_sums(const float *memory, uint32_t *flag, uint32_t unit,
                                                 float (&sums)[N])
{
    const uint32_t thread = threadIdx.x % GROUP;
    if (thread == 0) {
        uint32_t there;
        do {
            asm volatile("ld.acquire.gpu.global.u32 %0, [%1];"
                         : "=r"(there)
                         : "l"(flag)
                         : "memory");
        } while (!there);
        *flag = 0;
    }
    wait_for_group(unit);
#pragma unroll
    for (int i = 0; i < N; i += 4) {
        const float4 four = __ldcg((const float4 *)memory + i / 4 * GROUP + thread);
        sums[i] = four.x;
        sums[i + 1] = four.y;
        sums[i + 2] = four.z;
        sums[i + 3] = four.w;
    }
}

/* ---- tensor cores ---- */

#if __CUDA_ARCH__ == 900 && !defined(__CUDA_ARCH_FEAT_SM90_ALL)
#error "compute capability 9.0 is compiled for as sm_90a"
#endif
/* Other devices get kernels without a body, and are not asked to run them. */
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define SL_HAS_WARPGROUPS 1
#else
#define SL_HAS_WARPGROUPS 0
#endif

#if SL_HAS_WARPGROUPS

#define EIGHT_OPERANDS(d, i) \
    "+r"(d[i]), "+r"(d[i + 1]), "+r"(d[i + 2]), "+r"(d[i + 3]), "+r"(d[i + 4]), "+r"(d[i + 5]), \
        "+r"(d[i + 6]), "+r"(d[i + 7])

/* d = 16 outputs a warp times all columns: the dot products of one block. */
static __device__ __forceinline__ void start_dots(int (&d)[32], const uint4 &a, uint64_t b)
{
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k32.s32.s8.s8 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
                 "{%32, %33, %34, %35}, %36, 0;"
                 : EIGHT_OPERANDS(d, 0), EIGHT_OPERANDS(d, 8), EIGHT_OPERANDS(d, 16),
                   EIGHT_OPERANDS(d, 24)
                 : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(b));
}

static __device__ __forceinline__ void start_dots(int (&d)[16], const uint4 &a, uint64_t b)
{
    asm volatile("wgmma.mma_async.sync.aligned.m64n32k32.s32.s8.s8 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
                 "{%16, %17, %18, %19}, %20, 0;"
                 : EIGHT_OPERANDS(d, 0), EIGHT_OPERANDS(d, 8)
                 : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(b));
}

static __device__ __forceinline__ void fence_operands(void)
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

static __device__ __forceinline__ void close_dots(void)
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

template <int N> static __device__ __forceinline__ void wait_for_dots(int (&d)[N])
{
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("" : "+r"(d[i])::"memory");
}

/* Rows of 128 bytes, 16-byte pieces swizzled by the row, groups of 8 rows 1,024 bytes apart. */
static __device__ __forceinline__ uint64_t describe(uint32_t rows)
{
    return (uint64_t)(rows >> 4 & 0x3FFF) | (uint64_t)1 << 16 | (uint64_t)64 << 32 |
           (uint64_t)1 << 62;
}

#endif
#endif
#endif
