/* Products of 9 to 64 rows with plain weights from Hopper on: what step.cu does for any, and with
 * the same numbers, in fewer instructions. A warp has one segment of one panel of weights in
 * registers before the input is there, and takes it past the rows, eight at a time; the segments'
 * sums meet in shared memory. */
#include <string.h>

#include "backend/cuda/kernels/cluster.cuh"
#include "backend/cuda/kernels/step.cuh"

enum {
    MOST_WARPS = 16,
    SEGMENT_BYTES = SEGMENT_BLOCKS * SL_Q8_BLOCK, /* of a row of activations */
    SEGMENT_WEIGHTS = SEGMENT_BLOCKS * SL_CU_PLAIN_BYTES,
    SWIGLU_PANELS = 4,
    CLUSTER = 2 /* blocks that share copies of their input */
};

/* What becomes of the products. */
enum { STORE, ADD, ACT };

/* What the kernel needs of a target. */
typedef struct matrix_part {
    const uint8_t *data;
    float *y;
    uint32_t y_stride;
    uint32_t first_panel; /* among those of all targets; UINT32_MAX: there is no such target */
} matrix_part;

/* A step and how it is cut into blocks of threads: arguments of a kernel come slowly, so these are
 * few. A block has n_panels panels (with SwiGLU two of gate and two of up) and n_columns rows. */
typedef struct batch {
    const int8_t *q;
    const float *d;
    uint32_t n_rows, n_columns, n_panels, n_segments;
    uint32_t n_all_panels;
    matrix_part parts[SL_CU_STEP_TARGETS];
    uint32_t mark, *flags;
    sl_cu_q8 act_q8;
    float *act;
    uint32_t n_outputs; /* of gate, and of up */
    sl_cu_ahead ahead[SL_CU_STEP_AHEAD];
} batch;

/* Rows of activations in shared memory, a little apart, so that eight lie in different banks. */
typedef struct room {
    int8_t *q;
    float *d, *parts;
    uint32_t q_stride, d_stride;
} room;

static __host__ __device__ inline uint32_t part_floats(uint32_t n_columns)
{
    return n_columns * PART_STRIDE;
}

static __device__ __forceinline__ room room_at(uint4 *raw, const batch &b)
{
    room out;
    out.q_stride = b.n_segments * SEGMENT_BYTES + PAD;
    out.d_stride = b.n_segments * SEGMENT_BLOCKS + PAD / 4;
    out.q = (int8_t *)raw;
    out.d = (float *)(out.q + b.n_columns * out.q_stride);
    out.parts = out.d + b.n_columns * out.d_stride;
    return out;
}

/* A block of threads has a warp for every segment, or for some, and for every panel, or for some:
 * threadIdx.y and threadIdx.z. */
static __device__ __forceinline__ uint32_t warp_index(void)
{
    return threadIdx.z * blockDim.y + threadIdx.y;
}

static __device__ __forceinline__ uint32_t warp_count(void)
{
    return blockDim.y * blockDim.z;
}

/* ---- input ---- */

/* A warp a row. */
static __device__ __forceinline__ void copy_rows(const batch &b, const room &m, uint32_t first,
                                                 uint32_t n_rows)
{
    const uint32_t q_bytes = b.n_segments * SEGMENT_BYTES, lane = threadIdx.x;
    const uint32_t d_floats = b.n_segments * SEGMENT_BLOCKS;
    for (uint32_t i = warp_index(); i < n_rows; i += warp_count()) {
        const int8_t *q = b.q + (size_t)(first + i) * q_bytes;
        const float *d = b.d + (size_t)(first + i) * d_floats;
#pragma unroll 4
        for (uint32_t x = 16 * lane; x < q_bytes; x += 16 * WARP)
            copy_ahead(m.q + i * m.q_stride + x, q + x);
        for (uint32_t x = 4 * lane; x < d_floats; x += 4 * WARP)
            copy_ahead(m.d + i * m.d_stride + x, d + x);
    }
    end_of_copies();
}

/* To the same place in every block of the cluster, where the same counter counts. */
static __device__ __forceinline__ void copy_to_all(void *to, const void *from, uint32_t n_bytes,
                                                   uint64_t *counter)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes."
                 "multicast::cluster [%0], [%1], %2, [%3], %4;" ::"r"(shared_address(to)),
                 "l"(from), "r"(n_bytes), "r"(shared_address(counter)),
                 "h"((uint16_t)((1u << CLUSTER) - 1))
                 : "memory");
#else
    (void)to, (void)from, (void)n_bytes, (void)counter;
#endif
}

/* The same for all blocks of the cluster, which want the same rows: each fetches some for all, as
 * so many readers of the same lines wait for each other. */
static __device__ __forceinline__ void share_rows(const batch &b, const room &m, uint32_t first,
                                                  uint32_t n_rows, uint64_t *arrived)
{
    const uint32_t q_bytes = b.n_segments * SEGMENT_BYTES;
    const uint32_t d_bytes = b.n_segments * SEGMENT_BLOCKS * sizeof(float);
    if (threadIdx.x == 0) {
        if (warp_index() == 0)
            expect_blocks(arrived, n_rows * (q_bytes + d_bytes));
        for (uint32_t i = warp_index() * CLUSTER + cluster_rank(); i < n_rows;
             i += warp_count() * CLUSTER) {
            const size_t row = first + i;
            copy_to_all(m.q + i * m.q_stride, b.q + row * q_bytes, q_bytes, arrived);
            copy_to_all(m.d + i * m.d_stride, (const uint8_t *)b.d + row * d_bytes, d_bytes,
                        arrived);
        }
    }
    __syncwarp();
}

/* ---- products ---- */

/* The target of the n-th panel of all. */
static __device__ __forceinline__ matrix_part part_of(const batch &b, uint32_t n)
{
    matrix_part out = b.parts[0];
#pragma unroll
    for (uint32_t k = 1; k < SL_CU_STEP_TARGETS; k++) {
        if (n >= b.parts[k].first_panel)
            out = b.parts[k];
    }
    return out;
}

/* Panel i of the block; NULL: there is none. */
template <int ENDING>
static __device__ __forceinline__ const uint8_t *panel_at(const batch &b, uint32_t i)
{
    const uint32_t panel_bytes = b.n_segments * SEGMENT_WEIGHTS;
    if (ENDING == ACT) {
        const uint32_t n = 2 * blockIdx.x + i % 2;
        const uint8_t *data = i < 2 ? b.parts[0].data : b.parts[1].data;
        return n * ROWS < b.n_outputs ? data + n * panel_bytes : NULL;
    }
    const uint32_t n = blockIdx.x * b.n_panels + i;
    const matrix_part part = part_of(b, n);
    return n < b.n_all_panels ? part.data + (n - part.first_panel) * panel_bytes : NULL;
}

/* The weights of a segment of a panel, as this lane sees them. */
typedef struct segment_weights {
    uint4 codes[SEGMENT_BLOCKS];
    uint16_t d[SEGMENT_BLOCKS][2]; /* halves, of rows g and g + 8; used no sooner than needed */
} segment_weights;

static __device__ __forceinline__ void load_segment(segment_weights &w, const uint8_t *panel,
                                                    uint32_t segment)
{
    const uint32_t lane = threadIdx.x;
    const uint8_t *block = panel + segment * SEGMENT_WEIGHTS;
#pragma unroll
    for (uint32_t i = 0; i < SEGMENT_BLOCKS; i++) {
        const uint8_t *at = block + i * SL_CU_PLAIN_BYTES;
        const uint16_t *d = (const uint16_t *)(at + CODE_BYTES) + lane / 4;
        w.codes[i] = __ldcs((const uint4 *)(at + lane * 16));
        w.d[i][0] = __ldcs(d);
        w.d[i][1] = __ldcs(d + 8);
    }
}

typedef struct segment_scales {
    float d[SEGMENT_BLOCKS][2];
} segment_scales;

static __device__ __forceinline__ void take_scales(segment_scales &out, const segment_weights &w)
{
#pragma unroll
    for (uint32_t i = 0; i < SEGMENT_BLOCKS; i++) {
        out.d[i][0] = __half2float(__ushort_as_half(w.d[i][0]));
        out.d[i][1] = __half2float(__ushort_as_half(w.d[i][1]));
    }
}

/* Two blocks of eight rows as right operands. */
static __device__ __forceinline__ void load_pair(uint32_t (&b)[4], uint32_t at)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
                 : "r"(at));
}

/* The segment times eight rows: columns 2 t and the next of rows g and g + 8. */
static __device__ __forceinline__ void multiply_tile(float (&seg)[4],
                                                     const uint4 (&codes)[SEGMENT_BLOCKS],
                                                     const segment_scales &scales, const room &m,
                                                     uint32_t segment, uint32_t tile)
{
    const uint32_t lane = threadIdx.x, t = lane % 4;
    const uint32_t rows = shared_address(m.q) + (tile * TOKENS + lane % 8) * m.q_stride +
                          segment * SEGMENT_BYTES + lane / 8 * 16;
    const float *d = m.d + (tile * TOKENS + 2 * t) * m.d_stride + segment * SEGMENT_BLOCKS;
    float da[2][SEGMENT_BLOCKS];
    uint32_t b[SEGMENT_BLOCKS / 2][4];
#pragma unroll
    for (uint32_t i = 0; i < SEGMENT_BLOCKS / 2; i++)
        load_pair(b[i], rows + i * 2 * SL_Q8_BLOCK);
#pragma unroll
    for (uint32_t j = 0; j < 2; j++) {
#pragma unroll
        for (uint32_t i = 0; i < SEGMENT_BLOCKS; i += 4)
            *(float4 *)&da[j][i] = *(const float4 *)&d[j * m.d_stride + i];
    }
    seg[0] = seg[1] = seg[2] = seg[3] = 0.0f;
#pragma unroll
    for (uint32_t i = 0; i < SEGMENT_BLOCKS; i++) {
        const uint32_t right[2] = {b[i / 2][i % 2 * 2], b[i / 2][i % 2 * 2 + 1]};
        const float of_rows[2] = {da[0][i], da[1][i]};
        block_scales own;
        own.d[0] = scales.d[i][0];
        own.d[1] = scales.d[i][1];
        add_plain(codes[i], own, right, of_rows, seg);
    }
}

/* ---- results ---- */

static __device__ __forceinline__ void keep_tile(float *part, uint32_t tile, const float (&seg)[4])
{
    const uint32_t lane = threadIdx.x, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int j = 0; j < 4; j++)
        part[(tile * TOKENS + 2 * t + j % 2) * PART_STRIDE + g + 8 * (j / 2)] = seg[j];
}

/* Four outputs of a column: the sum of their segments, ascending. */
static __device__ __forceinline__ float4 sum_four(const float *parts, uint32_t stride,
                                                  uint32_t n_segments)
{
    float4 total = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 4
    for (uint32_t i = 0; i < n_segments; i++) {
        const float4 part = *(const float4 *)&parts[i * stride];
        total.x = total.x + part.x;
        total.y = total.y + part.y;
        total.z = total.z + part.z;
        total.w = total.w + part.w;
    }
    return total;
}

/* Where the lane's four outputs of panel i of the block go, in column `column`. */
static __device__ __forceinline__ float4 *output_of(const batch &b, uint32_t i, uint32_t first,
                                                    uint32_t column)
{
    const uint32_t n = blockIdx.x * b.n_panels + i;
    const matrix_part part = part_of(b, n);
    if (n >= b.n_all_panels || first + column >= b.n_rows)
        return NULL;
    return (float4 *)(part.y + (size_t)(first + column) * part.y_stride +
                      (n - part.first_panel) * ROWS + threadIdx.x % 4 * 4);
}

/* `before` is what stands where the warp's first results are added. */
template <int ENDING>
static __device__ __forceinline__ void
store_outputs(const batch &b, const float *parts, uint32_t first, uint32_t n_tiles, float4 before)
{
    const uint32_t lane = threadIdx.x, stride = part_floats(b.n_columns);
    for (uint32_t i = threadIdx.z; i < b.n_panels; i += blockDim.z) {
        for (uint32_t tile = threadIdx.y; tile < n_tiles; tile += blockDim.y) {
            const uint32_t column = tile * TOKENS + lane / 4;
            float4 *y = output_of(b, i, first, column);
            if (!y)
                continue;
            const float *part = parts + i * b.n_segments * stride;
            float4 value =
                sum_four(part + column * PART_STRIDE + lane % 4 * 4, stride, b.n_segments);
            if (ENDING == ADD) {
                if (i != threadIdx.z || tile != threadIdx.y)
                    before = __ldcg(y);
                value.x = before.x + value.x;
                value.y = before.y + value.y;
                value.z = before.z + value.z;
                value.w = before.w + value.w;
                if (!(finite(value.x) && finite(value.y) && finite(value.z) && finite(value.w)))
                    atomicCAS(&b.flags[first + column], 0u, b.mark);
            }
            *y = value;
        }
    }
}

/* 32 outputs of gate and up: a block of activations, four rows a warp, four outputs a lane. */
static __device__ __forceinline__ void store_act(const batch &b, const float *parts, uint32_t first,
                                                 uint32_t n_rows)
{
    const uint32_t lane = threadIdx.x, four = lane % 8, k = blockIdx.x * SL_Q8_BLOCK + 4 * four;
    const uint32_t stride = part_floats(b.n_columns), panel = b.n_segments * stride;
    if (blockIdx.x >= b.act_q8.n_blocks)
        return;
    for (uint32_t top = 4 * warp_index(); top < n_rows; top += 4 * warp_count()) {
        const uint32_t i = min(top + lane / 8, n_rows - 1); /* the last row perhaps twice */
        const float *gates = parts + four / 4 * panel + i * PART_STRIDE + four % 4 * 4;
        const float4 gate = sum_four(gates, stride, b.n_segments);
        const float4 up = sum_four(gates + 2 * panel, stride, b.n_segments);
        float value[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        if (k < b.n_outputs) {
            value[0] = sl_silu(gate.x) * up.x;
            value[1] = sl_silu(gate.y) * up.y;
            value[2] = sl_silu(gate.z) * up.z;
            value[3] = sl_silu(gate.w) * up.w;
        }
        const size_t row = first + i, block = row * b.act_q8.n_blocks + blockIdx.x;
        if (b.act && k < b.n_outputs)
            *(float4 *)&b.act[row * b.n_outputs + k] =
                make_float4(value[0], value[1], value[2], value[3]);
        quantise_quads(value, b.act_q8.q + block * SL_Q8_BLOCK + 4 * four, b.act_q8.d + block,
                       b.act_q8.sums + 2 * block);
    }
}

/* ---- the kernel ---- */

/* Brings the block's share of what later kernels read into the second cache, by a warp. */
static __device__ __forceinline__ void bring_ahead(const sl_cu_ahead &ahead)
{
#if __CUDA_ARCH__ >= 900
    enum { PIECE = 4096 };
    const uint32_t n = gridDim.x * gridDim.y, block = blockIdx.y * gridDim.x + blockIdx.x;
    const uint32_t n_bytes = (uint32_t)ahead.n_bytes;
    for (uint32_t at = (block + threadIdx.x * n) * PIECE; at < n_bytes; at += WARP * n * PIECE)
        asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(ahead.data + at),
                     "r"(min(n_bytes - at, (uint32_t)PIECE) / 16 * 16));
#else
    (void)ahead;
#endif
}

template <int ENDING>
static __global__ void __launch_bounds__(MOST_WARPS *WARP, 1)
    batch_kernel(const __grid_constant__ batch b)
{
    extern __shared__ uint4 raw[];
    __shared__ uint64_t arrived;
    const room m = room_at(raw, b);
    const uint32_t first = blockIdx.y * b.n_columns;
    const uint32_t n_rows = min(b.n_rows - first, b.n_columns), n_tiles = div_up(n_rows, TOKENS);
    uint32_t panel = threadIdx.z, segment = threadIdx.y;

    if (threadIdx.x == 0 && warp_index() == 0) {
        init_counter(&arrived, 1);
        show_counters();
    }
    __syncwarp();
    cluster_arrive();
    /* The first weights are on their way before this kernel's input is there. */
    segment_weights w;
    const uint8_t *data = panel_at<ENDING>(b, panel);
    if (data)
        load_segment(w, data, segment);
#pragma unroll
    for (uint32_t i = 0; i < SL_CU_STEP_AHEAD; i++) {
        if (warp_index() == i)
            bring_ahead(b.ahead[i]);
    }
    cluster_wait();
    wait_for_previous();
    share_rows(b, m, first, n_rows, &arrived);
    float4 before = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (ENDING == ADD && threadIdx.y < n_tiles) {
        const float4 *y = output_of(b, panel, first, threadIdx.y * TOKENS + threadIdx.x / 4);
        before = y ? __ldcg(y) : before;
    }
    wait_for_counter(&arrived, 0);
    for (;;) {
        float *part = m.parts + (panel * b.n_segments + segment) * part_floats(b.n_columns);
        segment_scales scales;
        take_scales(scales, w);
        if (data) {
#pragma unroll 2
            for (uint32_t tile = 0; tile < n_tiles; tile++) {
                float seg[4];
                multiply_tile(seg, w.codes, scales, m, segment, tile);
                keep_tile(part, tile, seg);
            }
        }
        segment += blockDim.y;
        if (segment >= b.n_segments) {
            segment = threadIdx.y;
            panel += blockDim.z;
            if (panel >= b.n_panels)
                break;
            data = panel_at<ENDING>(b, panel);
        }
        if (data)
            load_segment(w, data, segment);
    }
    __syncthreads();
    if (ENDING == ACT)
        store_act(b, m.parts, first, n_rows);
    else
        store_outputs<ENDING>(b, m.parts, first, n_tiles, before);
}

/* ---- the head ---- */

enum { HEAD_TILES = SL_CU_STEP_ROWS / TOKENS };

/* Asks for the weights of a segment, by one thread. */
static __device__ __forceinline__ void ask_segment(void *to, const uint8_t *from, uint64_t *counter)
{
    expect_blocks(counter, SEGMENT_WEIGHTS);
    copy_block(to, from, SEGMENT_WEIGHTS, counter);
}

static __device__ __forceinline__ void take_segment(uint4 (&codes)[SEGMENT_BLOCKS],
                                                    segment_scales &scales, const uint8_t *from)
{
    const uint32_t lane = threadIdx.x;
#pragma unroll
    for (uint32_t i = 0; i < SEGMENT_BLOCKS; i++) {
        const uint8_t *at = from + i * SL_CU_PLAIN_BYTES;
        const __half *d = (const __half *)(at + CODE_BYTES) + lane / 4;
        codes[i] = *(const uint4 *)(at + lane * 16);
        scales.d[i][0] = __half2float(d[0]);
        scales.d[i][1] = __half2float(d[8]);
    }
}

/* The same for one target with very many panels, of which a warp takes one after the other; while
 * it is at a segment, the weights of the next come. */
static __global__ void __launch_bounds__(MOST_WARPS *WARP, 1)
    head_kernel(const __grid_constant__ batch b)
{
    extern __shared__ uint4 raw[];
    __shared__ uint64_t arrived[MOST_WARPS];
    const room m = room_at(raw, b);
    const uint32_t warp = warp_index(), lane = threadIdx.x, g = lane / 4, t = lane % 4;
    const uint32_t panel_bytes = b.n_segments * SEGMENT_WEIGHTS;
    const uint32_t stride = gridDim.x * MOST_WARPS, n_tiles = div_up(b.n_rows, TOKENS);
    uint8_t *const own = (uint8_t *)m.parts + warp * SEGMENT_WEIGHTS;
    uint32_t parity = 0, panel = blockIdx.x * MOST_WARPS + warp;
    if (lane == 0) {
        init_counter(&arrived[warp], 1);
        show_counters();
        if (panel < b.n_all_panels)
            ask_segment(own, b.parts[0].data + (size_t)panel * panel_bytes, &arrived[warp]);
    }
    __syncwarp();
    wait_for_previous();
    copy_rows(b, m, 0, b.n_rows);
    wait_for_copies<0>();
    __syncthreads();
    for (; panel < b.n_all_panels; panel += stride) {
        const uint8_t *at = b.parts[0].data + (size_t)panel * panel_bytes;
        float total[HEAD_TILES][4] = {};
#pragma unroll 1
        for (uint32_t segment = 0; segment < b.n_segments; segment++) {
            uint4 codes[SEGMENT_BLOCKS];
            segment_scales scales;
            wait_for_counter(&arrived[warp], parity);
            parity ^= 1;
            take_segment(codes, scales, own);
            __syncwarp();
            const bool more = segment + 1 < b.n_segments;
            if (lane == 0 && (more || panel + stride < b.n_all_panels))
                ask_segment(
                    own,
                    at + (more ? (segment + 1) * SEGMENT_WEIGHTS : (size_t)stride * panel_bytes),
                    &arrived[warp]);
            __syncwarp();
#pragma unroll
            for (uint32_t tile = 0; tile < HEAD_TILES; tile++) {
                if (tile >= n_tiles)
                    break;
                float seg[4];
                multiply_tile(seg, codes, scales, m, segment, tile);
#pragma unroll
                for (int j = 0; j < 4; j++)
                    total[tile][j] = total[tile][j] + seg[j];
            }
        }
        float *y = b.parts[0].y + (size_t)(2 * t) * b.parts[0].y_stride + panel * ROWS + g;
#pragma unroll
        for (uint32_t tile = 0; tile < HEAD_TILES; tile++) {
#pragma unroll
            for (uint32_t j = 0; j < 4; j++) {
                if (tile * TOKENS + 2 * t + j % 2 < b.n_rows)
                    y[(size_t)(tile * TOKENS + j % 2) * b.parts[0].y_stride + 8 * (j / 2)] =
                        total[tile][j];
            }
        }
    }
}

/* ---- launching ---- */

static size_t shared_bytes(const batch *b)
{
    const size_t row = b->n_segments * (SEGMENT_BYTES + SEGMENT_BLOCKS * 4) + 2 * PAD;
    return b->n_columns * row +
           (size_t)b->n_panels * b->n_segments * part_floats(b->n_columns) * sizeof(float);
}

/* At most so many blocks as there are multiprocessors, where panels and rows allow it. */
static batch batch_of(const sl_cu_queue *queue, const sl_cu_step *s)
{
    const uint32_t n_processors = (uint32_t)queue->n_multiprocessors;
    batch b = {};
    b.q = s->q8.q;
    b.d = s->q8.d;
    b.n_rows = s->n_rows;
    b.n_segments = s->n_cols / SEGMENT_BYTES;
    b.flags = s->flags;
    b.mark = s->mark;
    b.act = s->act;
    b.act_q8 = s->act_q8;
    b.n_outputs = s->targets[0].w.n_rows;
    memcpy(b.ahead, s->ahead, sizeof b.ahead);
    for (uint32_t i = 0; i < SL_CU_STEP_TARGETS; i++) {
        b.parts[i].first_panel = i < s->n_targets ? b.n_all_panels : UINT32_MAX;
        if (i >= s->n_targets)
            continue;
        b.parts[i].data = s->targets[i].w.data;
        b.parts[i].y = s->targets[i].y;
        b.parts[i].y_stride = s->targets[i].y_stride;
        b.n_all_panels += s->targets[i].w.n_rows / ROWS;
    }
    const uint32_t most = b.n_segments < MOST_WARPS ? MOST_WARPS / b.n_segments : 1;
    const uint32_t even = div_up(b.n_all_panels, n_processors);
    b.n_panels = s->swiglu ? (uint32_t)SWIGLU_PANELS : even < most ? even : most;
    const uint32_t n_blocks = div_up(b.n_all_panels, b.n_panels);
    for (uint32_t n_parts = 1;; n_parts *= 2) {
        b.n_columns = div_up(div_up(s->n_rows, n_parts), TOKENS) * TOKENS;
        if (b.n_columns == TOKENS ||
            (2 * n_parts * n_blocks > n_processors && fits_block(shared_bytes(&b))))
            return b;
    }
}

static int is_possible(const sl_cu_queue *queue, const sl_cu_step *s)
{
    if (!queue->overlap || s->norm || s->n_rows > SL_CU_STEP_ROWS ||
        s->n_cols % SEGMENT_BYTES != 0 || (s->swiglu && !s->act_q8.q))
        return 0;
    for (uint32_t i = 0; i < s->n_targets; i++) {
        const sl_cu_target *t = &s->targets[i];
        if (t->w.kind != SL_CU_PLAIN || t->w.n_rows % ROWS != 0 || t->y_stride % 4 != 0 ||
            (size_t)t->y % sizeof(float4) != 0)
            return 0;
    }
    return 1;
}

int sl_cu_batch_fits(const sl_cu_queue *queue, const sl_cu_step *s)
{
    enum { MOST_TIMES = 4 /* that weights are read */ };
    if (!is_possible(queue, s))
        return 0;
    const batch b = batch_of(queue, s);
    return fits_block(shared_bytes(&b)) && div_up(s->n_rows, b.n_columns) <= MOST_TIMES;
}

template <int ENDING> static void launch_batch(const sl_cu_queue *queue, const batch *b)
{
    const size_t shared = shared_bytes(b);
    const uint32_t y = b->n_segments < MOST_WARPS ? b->n_segments : (uint32_t)MOST_WARPS;
    const uint32_t z = b->n_panels < MOST_WARPS / y ? b->n_panels : MOST_WARPS / y;
    cudaFuncSetAttribute(batch_kernel<ENDING>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                         (int)shared);
    const uint32_t n_blocks = div_up(div_up(b->n_all_panels, b->n_panels), CLUSTER) * CLUSTER;
    launch_clusters(queue, batch_kernel<ENDING>, CLUSTER,
                    dim3(n_blocks, div_up(b->n_rows, b->n_columns)), dim3(WARP, y, z), shared, *b);
}

void sl_cu_run_batch(const sl_cu_queue *queue, const sl_cu_step *s)
{
    const batch b = batch_of(queue, s);
    if (s->swiglu)
        launch_batch<ACT>(queue, &b);
    else if (s->add)
        launch_batch<ADD>(queue, &b);
    else
        launch_batch<STORE>(queue, &b);
}

static size_t head_bytes(const batch *b)
{
    const size_t row = b->n_segments * (SEGMENT_BYTES + SEGMENT_BLOCKS * 4) + 2 * PAD;
    return b->n_columns * row + MOST_WARPS * SEGMENT_WEIGHTS;
}

static batch head_of(const sl_cu_queue *queue, const sl_cu_step *s)
{
    batch b = batch_of(queue, s);
    b.n_columns = div_up(s->n_rows, TOKENS) * TOKENS;
    return b;
}

int sl_cu_batch_head_fits(const sl_cu_queue *queue, const sl_cu_step *s)
{
    if (s->n_targets != 1 || s->add || s->swiglu || s->n_rows <= SL_CU_NORM_ROWS ||
        !is_possible(queue, s))
        return 0;
    const batch b = head_of(queue, s);
    return fits_block(head_bytes(&b));
}

void sl_cu_run_batch_head(const sl_cu_queue *queue, const sl_cu_step *s)
{
    const batch b = head_of(queue, s);
    const size_t shared = head_bytes(&b);
    cudaFuncSetAttribute(head_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
    launch(queue, head_kernel, dim3((uint32_t)queue->n_multiprocessors), dim3(WARP, MOST_WARPS),
           shared, b);
}
