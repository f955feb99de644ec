/* Products of many rows with plain quantised weights (section 2) on the warpgroup tensor cores of
 * compute capability 9.0, and what lies around them: several matrices that read one activation,
 * SwiGLU and its rounding, the sum into the residual stream.
 *
 * A block of threads computes tiles of 128 outputs x COLUMNS activation rows. One warp fetches, by
 * bulk copies; one warpgroup computes, two tensor core operands of 64 outputs each, so that a scale
 * of the activations read from shared memory serves four outputs. The float work of a block
 * (conversion, product of the scales, sum) and the writing of the dots into registers are what
 * limits it; all else is under way meanwhile. */
#include <cudaTypedefs.h>

#include "backend/cuda/kernels/product.cuh"

enum {
    BLOCKS_PER_PROCESSOR = 2,
    GROUP = 128, /* threads of a warpgroup */
    THREADS = 2 * GROUP,
    STAGE_BLOCKS = SL_CU_MANY_BLOCKS,
    STAGE_BYTES = STAGE_BLOCKS * SL_Q8_BLOCK, /* of a row of activations: one swizzled line */
    STAGES_OF_SEGMENT = SEGMENT_BLOCKS / STAGE_BLOCKS,
    PANELS = 8,
    TILE_OUTPUTS = PANELS * ROWS,
    PRODUCER_REGISTERS = 24,
    CONSUMER_REGISTERS = 232,
    ACT_OUTPUTS = TILE_OUTPUTS / 2, /* with SwiGLU half of the panels are gates */
    ACT_STRIDE = ACT_OUTPUTS + 4,
    SCALE_ROWS = 64 /* rows whose scales lie together */
};

/* What becomes of a tile. */
enum { STORE, SUM, ACT };

template <int COLUMNS> struct stage {
    int8_t q[COLUMNS][STAGE_BYTES]; /* 16-byte pieces swizzled by the row */
    uint8_t w[PANELS][STAGE_BLOCKS * SL_CU_PLAIN_BYTES];
    float d[STAGE_BLOCKS][SCALE_ROWS]; /* of the whole tile of scales, see scale_place */
};

/* Two blocks of threads share a multiprocessor: one adds while the other stores. */
template <int COLUMNS, int ENDING> struct shared_memory {
    enum { N_STAGES = ENDING == ACT ? 3 : 4 };
    stage<COLUMNS> stages[N_STAGES];
    float act[ENDING == ACT ? COLUMNS : 1][ACT_STRIDE];
    uint64_t full[N_STAGES], empty[N_STAGES];
};

/* A lane's columns of a tile, 8 j + 2 t and the next, lie such that four of them are 16 bytes and
 * those of the four t are adjacent. */
static __host__ __device__ inline uint32_t place_of(uint32_t column)
{
    const uint32_t j = column / 8, t = column % 8 / 2;
    return (j / 2 * 4 + t) * 4 + j % 2 * 2 + column % 2;
}

/* Where the scale of a row's block lies: in tiles of 64 rows, whole stages of blocks, what a stage
 * wants adjacent. */
static __host__ __device__ inline size_t scale_place(uint32_t n_blocks, uint32_t row, uint32_t b)
{
    const size_t padded = div_up(n_blocks, STAGE_BLOCKS) * STAGE_BLOCKS;
    return (row / SCALE_ROWS * padded + b) * SCALE_ROWS + place_of(row % SCALE_ROWS);
}

size_t sl_cu_many_scales(uint32_t n_rows, uint32_t n_blocks)
{
    return scale_place(n_blocks, div_up(n_rows, SCALE_ROWS) * SCALE_ROWS, 0);
}

/* Thread: four blocks of a row. Blocks beyond the last are 0, rows beyond it what the last is. */
static __global__ void scales_kernel(const float *d, uint32_t n_rows, uint32_t n_blocks, float *out)
{
    wait_for_previous();
    const uint32_t place = threadIdx.x % SCALE_ROWS;
    const uint32_t j = place / 16 * 2 + place % 4 / 2, t = place / 4 % 4;
    const uint32_t row = blockIdx.x * SCALE_ROWS + 8 * j + 2 * t + place % 2;
    const uint32_t first =
        (blockIdx.y * (blockDim.x / SCALE_ROWS) + threadIdx.x / SCALE_ROWS) * STAGE_BLOCKS;
    if (first >= n_blocks)
        return;
    const float *in = d + (size_t)(row < n_rows ? row : n_rows - 1) * n_blocks + first;
    float value[STAGE_BLOCKS];
#pragma unroll
    for (uint32_t b = 0; b < STAGE_BLOCKS; b++)
        value[b] = first + b < n_blocks ? in[b] : 0.0f;
    float *to = out + scale_place(n_blocks, row, first);
#pragma unroll
    for (uint32_t b = 0; b < STAGE_BLOCKS; b++)
        to[b * SCALE_ROWS] = value[b];
}

static void arrange_scales(const sl_cu_queue *queue, const sl_cu_many *m)
{
    enum { SCALE_THREADS = 256, GROUPS = SCALE_THREADS / SCALE_ROWS };
    const dim3 grid(div_up(m->n_rows, SCALE_ROWS), div_up(m->q8.n_blocks, STAGE_BLOCKS * GROUPS));
    launch(queue, scales_kernel, grid, dim3(SCALE_THREADS), 0, (const float *)m->q8.d, m->n_rows,
           m->q8.n_blocks, m->scales);
}

#if __CUDA_ARCH__ == 900 && !defined(__CUDA_ARCH_FEAT_SM90_ALL)
#error "compute capability 9.0 is compiled for as sm_90a"
#endif
/* Other devices get kernels without a body, and are not asked to run them. */
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define SL_HAS_WARPGROUPS 1
#else
#define SL_HAS_WARPGROUPS 0
#endif

static __host__ __device__ inline uint32_t count_panels(const sl_cu_many &m)
{
    uint32_t n = 0;
    for (uint32_t k = 0; k < SL_CU_MANY_TARGETS; k++) {
        if (k < m.n_targets)
            n += div_up(m.targets[k].w.n_rows, ROWS);
    }
    return n;
}

static __host__ __device__ inline uint32_t count_output_tiles(const sl_cu_many &m)
{
    return m.swiglu ? div_up(div_up(m.targets[0].w.n_rows, ROWS), PANELS / 2)
                    : div_up(count_panels(m), PANELS);
}

/* Tiles of rows, and the matrix of the stack that one of them reads. */
template <int COLUMNS>
static __device__ __forceinline__ uint32_t count_row_tiles(const sl_cu_many &m)
{
    return m.groups.n_rows ? *m.groups.n : div_up(m.n_rows, COLUMNS);
}

static __device__ __forceinline__ size_t stack_offset(const sl_cu_many &m, uint32_t row_tile)
{
    return m.groups.n_rows ? m.groups.stack[row_tile] * m.targets[0].w.stack_bytes : 0;
}

#if SL_HAS_WARPGROUPS
/* ---- barriers in shared memory ---- */

static __device__ __forceinline__ void open_barrier(uint64_t *barrier, uint32_t arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)),
                 "r"(arrivals)
                 : "memory");
}

static __device__ __forceinline__ void arrive(uint64_t *barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier))
                 : "memory");
}

static __device__ __forceinline__ void arrive_expecting(uint64_t *barrier, uint32_t n_bytes)
{
    asm volatile(
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
        "r"(n_bytes)
        : "memory");
}

static __device__ __forceinline__ void wait_for(uint64_t *barrier, uint32_t parity)
{
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@!done bra again;\n"
                 "}" ::"r"(shared_address(barrier)),
                 "r"(parity)
                 : "memory");
}

static __device__ __forceinline__ void copy_bulk(void *to, const void *from, uint32_t n_bytes,
                                                 uint64_t *barrier)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], "
                 "%2, [%3];" ::"r"(shared_address(to)),
                 "l"(from), "r"(n_bytes), "r"(shared_address(barrier))
                 : "memory");
}

/* A box of the activations' codes, as the map describes it, from byte x of row y on. */
static __device__ __forceinline__ void copy_box(void *to, const CUtensorMap *map, uint32_t x,
                                                uint32_t y, uint64_t *barrier)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3}], [%4];" ::"r"(shared_address(to)),
                 "l"(map), "r"(x), "r"(y), "r"(shared_address(barrier))
                 : "memory");
}

/* Where in the ring of stages, and in which round of it. */
typedef struct ring_place {
    uint32_t slot, parity;
} ring_place;

template <int N_STAGES> static __device__ __forceinline__ void advance(ring_place *at)
{
    if (++at->slot == N_STAGES) {
        at->slot = 0;
        at->parity ^= 1;
    }
}

/* ---- tensor cores ---- */

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

/* Waits until all but the last LEFT groups of dots are there; d is of those. */
template <int LEFT, int N> static __device__ __forceinline__ void wait_for_dots(int (&d)[N])
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("" : "+r"(d[i])::"memory");
}

/* Rows of 128 bytes, 16-byte pieces swizzled by the row, groups of 8 rows 1,024 bytes apart. */
static __device__ __forceinline__ uint64_t describe(const void *rows)
{
    return (uint64_t)(shared_address(rows) >> 4 & 0x3FFF) | (uint64_t)1 << 16 | (uint64_t)64 << 32 |
           (uint64_t)1 << 62;
}

/* ---- tiles ---- */

/* Panel n of all targets: where its weights lie and where its outputs go. Targets are looked up by
 * constant numbers only: the arguments of a kernel are fast to read there. */
typedef struct panel_place {
    const uint8_t *w;
    float *y;
    uint32_t y_stride, n_outputs; /* n_outputs 0: there is no such panel */
} panel_place;

static __device__ __forceinline__ panel_place find_panel(const sl_cu_many &m, uint32_t n)
{
    panel_place at = {m.targets[0].w.data, NULL, 0, 0};
#pragma unroll
    for (uint32_t k = 0; k < SL_CU_MANY_TARGETS; k++) {
        if (k >= m.n_targets)
            continue;
        const sl_cu_target &target = m.targets[k];
        const uint32_t n_panels = div_up(target.w.n_rows, ROWS);
        if (n < n_panels) {
            at.w = target.w.data + (size_t)n * target.w.panel_bytes;
            at.y = target.y + (size_t)n * ROWS;
            at.y_stride = target.y_stride;
            const uint32_t left = target.w.n_rows - n * ROWS;
            at.n_outputs = left < ROWS ? left : ROWS;
        }
        n = n < n_panels ? UINT32_MAX : n == UINT32_MAX ? n : n - n_panels;
    }
    return at;
}

/* Panel i of a tile; with SwiGLU the first four are gates, the others the same outputs of up. */
static __device__ __forceinline__ panel_place tile_panel(const sl_cu_many &m, uint32_t tile,
                                                         uint32_t i)
{
    if (!m.swiglu)
        return find_panel(m, tile * PANELS + i);
    const uint32_t n_panels = div_up(m.targets[0].w.n_rows, ROWS);
    const uint32_t n = tile * (PANELS / 2) + i % (PANELS / 2);
    panel_place none = {m.targets[0].w.data, NULL, 0, 0};
    return n < n_panels ? find_panel(m, i < PANELS / 2 ? n : n_panels + n) : none;
}

/* ---- the warp that fetches ---- */

/* The first warp of its warpgroup. Blocks that are not there count as ones whose scales are 0. */
template <int COLUMNS, int ENDING>
static __device__ __forceinline__ void fetch(const sl_cu_many &m, const CUtensorMap *codes,
                                             shared_memory<COLUMNS, ENDING> &shared)
{
    const uint32_t lane = threadIdx.x % WARP;
    const uint32_t n_blocks = m.q8.n_blocks, n_stages = div_up(n_blocks, STAGE_BLOCKS);
    const uint32_t row_tiles = count_row_tiles<COLUMNS>(m);
    const uint32_t n_tiles = row_tiles * count_output_tiles(m);
    ring_place at = {0, 1};
    for (uint32_t tile = blockIdx.x; tile < n_tiles; tile += gridDim.x) {
        const uint32_t first = tile % row_tiles * COLUMNS;
        const float *d =
            m.scales + (size_t)(first / SCALE_ROWS) * n_stages * STAGE_BLOCKS * SCALE_ROWS;
        const uint8_t *w =
            tile_panel(m, tile / row_tiles, lane % PANELS).w + stack_offset(m, tile % row_tiles);
        for (uint32_t s = 0; s < n_stages; s++) {
            const uint32_t left = n_blocks - s * STAGE_BLOCKS;
            const uint32_t count = left < STAGE_BLOCKS ? left : STAGE_BLOCKS;
            const uint32_t w_bytes = count * SL_CU_PLAIN_BYTES;
            stage<COLUMNS> &to = shared.stages[at.slot];
            uint64_t *full = &shared.full[at.slot];
            wait_for(&shared.empty[at.slot], at.parity);
            for (uint32_t b = count; b < STAGE_BLOCKS; b++) {
                for (uint32_t i = lane; i < PANELS * ROWS; i += WARP)
                    ((uint16_t *)&to.w[i / ROWS][b * SL_CU_PLAIN_BYTES + CODE_BYTES])[i % ROWS] = 0;
                /* the next bulk copy to this place comes after */
                asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
            }
            __syncwarp();
            if (lane == 0) {
                arrive_expecting(full, PANELS * w_bytes + (uint32_t)(sizeof to.q + sizeof to.d));
                copy_box(to.q, codes, s * STAGE_BYTES, first, full);
            }
            __syncwarp();
            if (lane < PANELS)
                copy_bulk(to.w[lane], w, w_bytes, full);
            else if (lane == PANELS)
                copy_bulk(to.d, d, sizeof to.d, full);
            w += w_bytes;
            d += STAGE_BLOCKS * SCALE_ROWS;
            advance<shared_memory<COLUMNS, ENDING>::N_STAGES>(&at);
        }
    }
}

/* ---- the warpgroup that computes ---- */

/* The scales of one block, as a lane sees them: of two rows in each of its two panels, and of its
 * columns. */
template <int COLUMNS> struct tile_scales {
    float w[2][2], a[COLUMNS / 4];
};

template <int COLUMNS>
static __device__ __forceinline__ void load_column_scales(const stage<COLUMNS> &from,
                                                          uint32_t first, int b, int four,
                                                          tile_scales<COLUMNS> *out)
{
    const float *d = &from.d[b][first];
    const float4 a = ((const float4 *)d)[4 * four + threadIdx.x % 4];
    out->a[4 * four] = a.x;
    out->a[4 * four + 1] = a.y;
    out->a[4 * four + 2] = a.z;
    out->a[4 * four + 3] = a.w;
}

template <int COLUMNS>
static __device__ __forceinline__ void load_output_scales(const stage<COLUMNS> &from, int b,
                                                          __half (&out)[2][2])
{
    const uint32_t warp = threadIdx.x % GROUP / WARP, g = threadIdx.x % WARP / 4;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const __half *d =
            (const __half *)&from.w[half * (PANELS / 2) + warp][b * SL_CU_PLAIN_BYTES + CODE_BYTES];
        out[half][0] = d[g];
        out[half][1] = d[g + 8];
    }
}

template <int COLUMNS>
static __device__ __forceinline__ void set_output_scales(const __half (&from)[2][2],
                                                         tile_scales<COLUMNS> *out)
{
#pragma unroll
    for (int i = 0; i < 4; i++)
        out->w[i / 2][i % 2] = __half2float(from[i / 2][i % 2]);
}

/* Adds the dots of eight outputs that share four columns' scales. */
template <int COLUMNS>
static __device__ __forceinline__ void add_eight(const int (&dots)[COLUMNS / 2],
                                                 const tile_scales<COLUMNS> &scales, int half,
                                                 int eight, float (&seg)[COLUMNS / 2])
{
#pragma unroll
    for (int i = 8 * eight; i < 8 * eight + 8; i++) {
        const float w = scales.w[half][i / 2 % 2], a = scales.a[i / 4 * 2 + i % 2];
        seg[i] = fmaf(w * a, (float)dots[i], seg[i]);
    }
}

template <int COLUMNS>
static __device__ __forceinline__ uint4 load_codes(const stage<COLUMNS> &from, int half, int b)
{
    const uint32_t warp = threadIdx.x % GROUP / WARP, lane = threadIdx.x % WARP;
    return *(const uint4 *)&from.w[half * (PANELS / 2) + warp][b * SL_CU_PLAIN_BYTES + 16 * lane];
}

/* The sums of one tile: total[half][i] is output lane / 4 + 8 (i / 2 % 2) of panel
 * 4 half + warp, column 8 (i / 4) + 2 (lane % 4) + i % 2. While the dots of one half are added,
 * those of the other are under way, and whatever of shared memory comes next. */
template <int COLUMNS, int ENDING>
static __device__ __forceinline__ void sum_tile(shared_memory<COLUMNS, ENDING> &shared,
                                                uint32_t first, uint32_t n_stages, ring_place *at,
                                                float (&total)[2][COLUMNS / 2])
{
    enum { N = COLUMNS / 2, FOURS = COLUMNS / 16 };
    float seg[2][N];
#pragma unroll
    for (int i = 0; i < N; i++)
        total[0][i] = total[1][i] = seg[0][i] = seg[1][i] = 0.0f;
    wait_for(&shared.full[at->slot], at->parity);
    uint4 codes[2] = {load_codes(shared.stages[at->slot], 0, 0),
                      load_codes(shared.stages[at->slot], 1, 0)};
    tile_scales<COLUMNS> scales;
    __half w[2][2];
    load_output_scales(shared.stages[at->slot], 0, w);
#pragma unroll
    for (int i = 0; i < FOURS; i++)
        load_column_scales(shared.stages[at->slot], first, 0, i, &scales);
    set_output_scales(w, &scales);
    for (uint32_t s = 0; s < n_stages; s++) {
        const stage<COLUMNS> &from = shared.stages[at->slot];
        const uint64_t rows = describe(from.q);
        ring_place following = *at;
        if (s + 1 < n_stages) /* after the last one loads are repeated, and not used */
            advance<shared_memory<COLUMNS, ENDING>::N_STAGES>(&following);
        int low[N], high[N];
        fence_operands();
        start_dots(low, codes[0], rows);
        close_dots();
        start_dots(high, codes[1], rows);
        close_dots();
#pragma unroll
        for (int b = 0; b < STAGE_BLOCKS; b++) {
            const bool more = b + 1 < STAGE_BLOCKS;
            const int next_b = (b + 1) % STAGE_BLOCKS;
            const stage<COLUMNS> &next = more ? from : shared.stages[following.slot];
            const uint64_t next_rows = rows + next_b * (SL_Q8_BLOCK / 16);
            wait_for_dots<1>(low);
            if (!more)
                wait_for(&shared.full[following.slot], following.parity);
            codes[0] = load_codes(next, 0, next_b);
#pragma unroll
            for (int i = 0; i < FOURS; i++)
                add_eight<COLUMNS>(low, scales, 0, i, seg[0]);
            if (more) {
                fence_operands();
                start_dots(low, codes[0], next_rows);
                close_dots();
                wait_for_dots<1>(high);
            } else {
                wait_for_dots<0>(high);
            }
            codes[1] = load_codes(next, 1, next_b);
            load_output_scales(next, next_b, w);
#pragma unroll
            for (int i = 0; i < FOURS; i++) {
                add_eight<COLUMNS>(high, scales, 1, i, seg[1]);
                load_column_scales(next, first, next_b, i, &scales);
            }
            set_output_scales(w, &scales);
            if (more) {
                fence_operands();
                start_dots(high, codes[1], next_rows);
                close_dots();
            }
        }
        __syncwarp();
        if (threadIdx.x % WARP == 0)
            arrive(&shared.empty[at->slot]);
        advance<shared_memory<COLUMNS, ENDING>::N_STAGES>(at);
        if ((s + 1) % STAGES_OF_SEGMENT != 0 && s + 1 < n_stages)
            continue;
#pragma unroll
        for (int i = 0; i < N; i++) {
            total[0][i] = total[0][i] + seg[0][i];
            total[1][i] = total[1][i] + seg[1][i];
            seg[0][i] = seg[1][i] = 0.0f;
        }
    }
}

/* Half of the results, stored or added to what is there. WHOLE: all rows and outputs are. */
template <int COLUMNS, bool SUM_UP, bool WHOLE>
static __device__ __forceinline__ void store_half(const sl_cu_many &m, const panel_place &at,
                                                  uint32_t first, const float (&total)[COLUMNS / 2])
{
    const uint32_t g = threadIdx.x % WARP / 4, left = m.n_rows - first;
    float *const y = at.y + (size_t)first * at.y_stride + g;
    float before[COLUMNS / 2];
    uint32_t faults = 0; /* a bit a row */
#pragma unroll
    for (int i = 0; i < COLUMNS / 2 && SUM_UP; i++) {
        const uint32_t output = 8 * (i / 2 % 2), row = i / 4 * 8 + i % 2;
        const bool there = WHOLE || (g + output < at.n_outputs && row < left);
        before[i] = there ? y[(size_t)row * at.y_stride + output] : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < COLUMNS / 2; i++) {
        const uint32_t output = 8 * (i / 2 % 2), row = i / 4 * 8 + i % 2;
        if (!WHOLE && (g + output >= at.n_outputs || row >= left))
            continue;
        const float value = SUM_UP ? before[i] + total[i] : total[i];
        y[(size_t)row * at.y_stride + output] = value;
        if (SUM_UP && (sl_bits_of_float(value) & 0x7FFFFFFFu) >= 0x7F800000u)
            faults |= 1u << (i / 4 * 2 + i % 2);
    }
    for (; faults != 0; faults &= faults - 1) {
        const uint32_t bit = (uint32_t)__ffs((int)faults) - 1;
        atomicCAS(&m.flags[first + bit / 2 * 8 + bit % 2], 0u, m.mark);
    }
}

template <int COLUMNS, bool SUM_UP>
static __device__ __forceinline__ void store_tile(const sl_cu_many &m, uint32_t tile,
                                                  uint32_t first, float (&total)[2][COLUMNS / 2])
{
    const uint32_t warp = threadIdx.x % GROUP / WARP, t = threadIdx.x % 4;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const panel_place at = tile_panel(m, tile, half * (PANELS / 2) + warp);
        if (at.n_outputs == ROWS && first + COLUMNS <= m.n_rows)
            store_half<COLUMNS, SUM_UP, true>(m, at, first + 2 * t, total[half]);
        else if (first + 2 * t < m.n_rows)
            store_half<COLUMNS, SUM_UP, false>(m, at, first + 2 * t, total[half]);
    }
}

/* a / (1 + e^-a) for eight numbers, whose divisors are b. In the usual range without a branch, so
 * that the eight go side by side: Newton's step and two corrections by exact remainders round as
 * the division does. (Where b is large, a is not small, and the quotient is not denormal.) */
static __device__ __forceinline__ void divide_eight(float (&a)[8], const float (&b)[8])
{
    bool usual = true;
#pragma unroll
    for (int i = 0; i < 8; i++)
        usual = usual && fabsf(a[i]) > 0x1p-60f && fabsf(a[i]) < 0x1p60f && b[i] < 0x1p100f;
    if (!usual) {
#pragma unroll 1
        for (int i = 0; i < 8; i++) {
#pragma unroll
            for (int k = 0; k < 8; k++)
                a[k] = k == i ? a[k] / b[k] : a[k];
        }
        return;
    }
#pragma unroll
    for (int i = 0; i < 8; i++) {
        float r;
        asm("rcp.approx.f32 %0, %1;" : "=f"(r) : "f"(b[i]));
        r = fmaf(r, fmaf(-b[i], r, 1.0f), r);
        float quotient = a[i] * r;
        quotient = fmaf(r, fmaf(-b[i], quotient, a[i]), quotient);
        a[i] = fmaf(r, fmaf(-b[i], quotient, a[i]), quotient);
    }
}

/* silu(gate) * up as codes: through shared memory, where a thread finds all values of a block. */
template <int COLUMNS>
static __device__ __forceinline__ void store_act(const sl_cu_many &m, uint32_t tile, uint32_t first,
                                                 float (&total)[2][COLUMNS / 2],
                                                 float (*act)[ACT_STRIDE])
{
    const uint32_t thread = threadIdx.x % GROUP;
    const uint32_t warp = thread / WARP, g = thread % WARP / 4, t = thread % 4;
    const uint32_t n = m.targets[0].w.n_rows;
#pragma unroll
    for (int first_i = 0; first_i < COLUMNS / 2; first_i += 8) {
        float value[8], divisor[8];
#pragma unroll
        for (int k = 0; k < 8; k++) {
            value[k] = total[0][first_i + k];
            divisor[k] = 1.0f + sl_expf(-value[k]);
        }
        divide_eight(value, divisor);
#pragma unroll
        for (int k = 0; k < 8; k++) {
            const int i = first_i + k;
            const uint32_t output = warp * ROWS + g + 8 * (i / 2 % 2);
            const bool present = tile * ACT_OUTPUTS + output < n;
            act[i / 4 * 8 + 2 * t + i % 2][output] = present ? value[k] * total[1][i] : 0.0f;
        }
    }
    asm volatile("bar.sync 1, 128;" ::: "memory");
    const uint32_t column = thread % COLUMNS, row = first + column;
    for (uint32_t half = thread / COLUMNS; half < ACT_OUTPUTS / SL_Q8_BLOCK;
         half += GROUP / COLUMNS) {
        const uint32_t b = tile * (ACT_OUTPUTS / SL_Q8_BLOCK) + half;
        if (row < m.n_rows && b < m.act_q8.n_blocks) {
            const size_t at = (size_t)row * m.act_q8.n_blocks + b;
            const float d = quantise_values((const float4 *)&act[column][half * SL_Q8_BLOCK],
                                            m.act_q8.q + at * SL_Q8_BLOCK, m.act_q8.d + at,
                                            m.act_q8.sums + 2 * at);
            if (m.act_scales)
                m.act_scales[scale_place(m.act_q8.n_blocks, row, b)] = d;
        }
    }
    asm volatile("bar.sync 1, 128;" ::: "memory");
}

template <int COLUMNS, int ENDING>
static __device__ __forceinline__ void compute(const sl_cu_many &m,
                                               shared_memory<COLUMNS, ENDING> &shared)
{
    const uint32_t n_stages = div_up(m.q8.n_blocks, STAGE_BLOCKS);
    const uint32_t row_tiles = count_row_tiles<COLUMNS>(m);
    const uint32_t n_tiles = row_tiles * count_output_tiles(m);
    ring_place at = {0, 0};
    for (uint32_t tile = blockIdx.x, next; tile < n_tiles; tile = next) {
        const uint32_t first = tile % row_tiles * COLUMNS;
        float total[2][COLUMNS / 2];
        sum_tile(shared, first % SCALE_ROWS, n_stages, &at, total);
        next = tile + gridDim.x; /* now: spilled registers are slow to read behind the stores */
        asm volatile("" : "+r"(next));
        if (ENDING == ACT)
            store_act<COLUMNS>(m, tile / row_tiles, first, total, shared.act);
        else
            store_tile<COLUMNS, ENDING == SUM>(m, tile / row_tiles, first, total);
    }
}

#endif

template <int COLUMNS, int ENDING>
static __global__ void __launch_bounds__(THREADS, BLOCKS_PER_PROCESSOR)
    many_kernel(const __grid_constant__ sl_cu_many m, const __grid_constant__ CUtensorMap codes)
{
#if SL_HAS_WARPGROUPS
    extern __shared__ __align__(1024) uint8_t raw[];
    shared_memory<COLUMNS, ENDING> &shared = *(shared_memory<COLUMNS, ENDING> *)(void *)raw;
    if (threadIdx.x == 0) {
        for (uint32_t i = 0; i < shared_memory<COLUMNS, ENDING>::N_STAGES; i++) {
            open_barrier(&shared.full[i], 1);
            open_barrier(&shared.empty[i], GROUP / WARP);
        }
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }
    __syncthreads();
    wait_for_previous();
    if (threadIdx.x < GROUP) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"((int)PRODUCER_REGISTERS));
        if (threadIdx.x < WARP)
            fetch(m, &codes, shared);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"((int)CONSUMER_REGISTERS));
        compute<COLUMNS, ENDING>(m, shared);
    }
#endif
}

/* The driver's function, found at run time: programs do not link to the driver. */
static PFN_cuTensorMapEncodeTiled_v12000 find_encode(void)
{
    enum { SINCE = 12000 };
    void *function = NULL;
    cudaDriverEntryPointQueryResult result;
    if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, SINCE,
                                         cudaEnableDefault, &result) != cudaSuccess ||
        result != cudaDriverEntryPointSuccess)
        return NULL;
    return (PFN_cuTensorMapEncodeTiled_v12000)function;
}

/* Boxes of one stage of a tile's rows. What lies beyond the last row or column reads as 0. */
static int describe_codes(const sl_cu_many *m, uint32_t box_rows, CUtensorMap *out)
{
    const PFN_cuTensorMapEncodeTiled_v12000 encode = find_encode();
    const cuuint64_t row_bytes = (cuuint64_t)m->q8.n_blocks * SL_Q8_BLOCK;
    const cuuint64_t size[2] = {row_bytes, m->n_rows}, stride[1] = {row_bytes};
    const cuuint32_t box[2] = {STAGE_BYTES, box_rows}, step[2] = {1, 1};
    return encode && encode(out, CU_TENSOR_MAP_DATA_TYPE_UINT8, 2, m->q8.q, size, stride, box, step,
                            CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                            CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                            CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

template <int COLUMNS, int ENDING>
static void launch_many(const sl_cu_queue *queue, const sl_cu_many *m, uint32_t n_processors)
{
    const uint32_t tiles = div_up(m->n_rows, COLUMNS) * count_output_tiles(*m);
    const uint32_t most = BLOCKS_PER_PROCESSOR * n_processors, blocks = tiles < most ? tiles : most;
    const size_t bytes = sizeof(shared_memory<COLUMNS, ENDING>);
    CUtensorMap codes;
    (void)describe_codes(m, COLUMNS, &codes);
    cudaFuncSetAttribute(many_kernel<COLUMNS, ENDING>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                         (int)bytes);
    launch(queue, many_kernel<COLUMNS, ENDING>, dim3(blocks), dim3(THREADS), bytes, *m, codes);
}

/* Of the device that is in use. */
static uint32_t attribute_of(cudaDeviceAttr attribute)
{
    int device = 0, value = 0;
    (void)cudaGetDevice(&device);
    (void)cudaDeviceGetAttribute(&value, attribute, device);
    return (uint32_t)value;
}

int sl_cu_many_fits(const sl_cu_many *m)
{
    if (m->n_targets == 0 || attribute_of(cudaDevAttrComputeCapabilityMajor) != 9)
        return 0;
    for (uint32_t i = 0; i < m->n_targets; i++) {
        if (m->targets[i].w.kind != SL_CU_PLAIN ||
            (m->targets[i].w.n_stack != 1 && m->groups.n_rows == 0))
            return 0;
    }
    CUtensorMap codes;
    return describe_codes(m, ROWS, &codes);
}

template <int ENDING> static void launch_any(const sl_cu_queue *queue, const sl_cu_many *m)
{
    enum { WIDE = 64, NARROW = 32 };
    const uint32_t n_processors = attribute_of(cudaDevAttrMultiProcessorCount);
    if (m->groups.n_rows ? m->groups.n_rows == WIDE
                         : div_up(m->n_rows, WIDE) * count_output_tiles(*m) >= n_processors)
        launch_many<WIDE, ENDING>(queue, m, n_processors);
    else
        launch_many<NARROW, ENDING>(queue, m, n_processors);
}

void sl_cu_run_many(const sl_cu_queue *queue, const sl_cu_many *m)
{
    if (!m->scales_are_there)
        arrange_scales(queue, m);
    if (m->swiglu)
        launch_any<ACT>(queue, m);
    else if (m->flags)
        launch_any<SUM>(queue, m);
    else
        launch_any<STORE>(queue, m);
}
