/* Products of up to 64 rows with several matrices at once, for decoding, with what lies around
 * them: the norm before, SwiGLU with its rounding or the sum into the residual stream after.
 * Weights are asked for before the kernel waits for the one before it, and those of later kernels
 * are brought into the second cache. */
#include "backend/cuda/kernels/step.cuh"

enum { SWIGLU_PANELS = 4, MOST_WARPS = 16, BLOCK_THREADS = MOST_WARPS * WARP };

/* How a step is spread over blocks of threads. */
typedef struct spread {
    uint32_t n_panels;  /* of one block; with swiglu two of gate and two of up */
    uint32_t n_columns; /* activation rows of one block */
    uint32_t n_blocks;  /* of panels */
} spread;

/* The weights of one segment of one panel, as this lane sees them. */
typedef struct segment_weights {
    block_codes block[SEGMENT_BLOCKS]; /* d: whatever rows g and g + 8 have in a block */
    uint2 head;
} segment_weights;

template <int KIND>
static __device__ __forceinline__ void load_blocks(const uint8_t *panel, uint32_t segment,
                                                   uint32_t n_blocks, segment_weights *out)
{
#pragma unroll
    for (uint32_t i = 0; i < SEGMENT_BLOCKS; i++) {
        const uint32_t b = segment * SEGMENT_BLOCKS + i;
        const bool present = b < n_blocks;
        const uint8_t *block = block_at(KIND, panel, present ? b : 0);
        out->block[i].codes = load_raw(KIND, block);
        out->block[i].d = KIND != SL_CU_GENERAL && present ? load_raw_scales(KIND, block) : 0;
    }
    out->head = make_uint2(0, 0);
    if (head_bytes_of(KIND) > 0)
        out->head = load_raw_head(KIND, panel, segment);
}

template <bool ALL_PLAIN>
static __device__ __forceinline__ void load_segment(const panel_ref &w, uint32_t segment,
                                                    uint32_t n_blocks, segment_weights *out)
{
    if (ALL_PLAIN || w.kind == SL_CU_PLAIN)
        load_blocks<SL_CU_PLAIN>(w.data, segment, n_blocks, out);
    else if (w.kind == SL_CU_K4)
        load_blocks<SL_CU_K4>(w.data, segment, n_blocks, out);
    else if (w.kind == SL_CU_K5)
        load_blocks<SL_CU_K5>(w.data, segment, n_blocks, out);
    else if (w.kind == SL_CU_K6)
        load_blocks<SL_CU_K6>(w.data, segment, n_blocks, out);
    else
        load_blocks<SL_CU_GENERAL>(w.data, segment, n_blocks, out);
}

/* The segment times all columns. */
template <int KIND, bool HAS_MIN, int TILES>
static __device__ __forceinline__ void segment_product(const uint8_t *panel,
                                                       const segment_weights &w, uint32_t segment,
                                                       const activations &a, float *part)
{
    const uint32_t lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    float seg[TILES][4];
#pragma unroll
    for (int c = 0; c < TILES; c++)
#pragma unroll
        for (int j = 0; j < 4; j++)
            seg[c][j] = 0.0f;
#pragma unroll
    for (uint32_t i = 0; i < SEGMENT_BLOCKS; i++) {
        const uint32_t at = segment * SEGMENT_BLOCKS + i, b = at < a.n_blocks ? at : 0;
        block_scales scales = scales_of(KIND, w.block[i].d, w.head);
        if (KIND == SL_CU_GENERAL) {
            scales = general_scales(block_at(KIND, panel, b));
            for (int half = 0; half < 2; half++) {
                scales.d[half] = at < a.n_blocks ? scales.d[half] : 0.0f;
                scales.m[half] = at < a.n_blocks ? scales.m[half] : 0.0f;
            }
        }
        add_columns<KIND, HAS_MIN, TILES>(expand_codes(KIND, w.block[i].codes), scales, a, b, seg);
    }
#pragma unroll
    for (int c = 0; c < TILES; c++)
#pragma unroll
        for (int j = 0; j < 4; j++)
            part[(c * TOKENS + 2 * t + j % 2) * PART_STRIDE + g + 8 * (j / 2)] = seg[c][j];
}

template <int TILES, bool ALL_PLAIN>
static __device__ __forceinline__ void
any_segment_product(const panel_ref &w, const segment_weights &weights, uint32_t segment,
                    const activations &a, float *part)
{
    if (ALL_PLAIN || w.kind == SL_CU_PLAIN)
        segment_product<SL_CU_PLAIN, false, TILES>(w.data, weights, segment, a, part);
    else if (w.kind == SL_CU_K4)
        segment_product<SL_CU_K4, true, TILES>(w.data, weights, segment, a, part);
    else if (w.kind == SL_CU_K5)
        segment_product<SL_CU_K5, true, TILES>(w.data, weights, segment, a, part);
    else if (w.kind == SL_CU_K6)
        segment_product<SL_CU_K6, false, TILES>(w.data, weights, segment, a, part);
    else if (w.has_min)
        segment_product<SL_CU_GENERAL, true, TILES>(w.data, weights, segment, a, part);
    else
        segment_product<SL_CU_GENERAL, false, TILES>(w.data, weights, segment, a, part);
}

/* ---- which panel ---- */

/* The i-th panel of this block of threads. */
static __device__ __forceinline__ panel_ref own_panel(const sl_cu_step &s, const spread &by,
                                                      uint32_t i)
{
    if (s.swiglu)
        return panel_of(s, i / 2, 2 * blockIdx.x + i % 2);
    uint32_t target, panel;
    find_panel(s, blockIdx.x * by.n_panels + i, &target, &panel);
    return panel_of(s, target, panel);
}

/* ---- results ---- */

/* Absent segments add +0, which changes no sum that began at +0. */
static __device__ inline float sum_segments(const float *parts, uint32_t part_floats,
                                            uint32_t n_segments, uint32_t at)
{
    enum { BATCH = 8 };
    float total = 0.0f;
    for (uint32_t base = 0; base < n_segments; base += BATCH) {
        float part[BATCH];
#pragma unroll
        for (uint32_t i = 0; i < BATCH; i++)
            part[i] = base + i < n_segments ? parts[(base + i) * part_floats + at] : 0.0f;
#pragma unroll
        for (uint32_t i = 0; i < BATCH; i++)
            total = total + part[i];
    }
    return total;
}

/* Where a thread's outputs go: one row of one panel, every n_groups-th column from `column` on. */
typedef struct output_place {
    float *y; /* of the block's first column; NULL: nowhere */
    uint32_t stride, panel, column, n_groups;
} output_place;

static __device__ __forceinline__ output_place place_of(const sl_cu_step &s, const spread &by,
                                                        uint32_t first)
{
    const uint32_t outputs = by.n_panels * ROWS;
    output_place at = {.panel = threadIdx.x % outputs / ROWS,
                       .column = threadIdx.x / outputs,
                       .n_groups = blockDim.x / outputs};
    uint32_t target, panel;
    find_panel(s, blockIdx.x * by.n_panels + at.panel, &target, &panel);
    const uint32_t row = panel * ROWS + threadIdx.x % ROWS;
    if (at.column >= at.n_groups)
        return at;
#pragma unroll
    for (uint32_t k = 0; k < SL_CU_STEP_TARGETS; k++) {
        if (k == target && k < s.n_targets && row < s.targets[k].w.n_rows) {
            at.stride = s.targets[k].y_stride;
            at.y = s.targets[k].y + (size_t)first * at.stride + row;
        }
    }
    return at;
}

static __device__ __forceinline__ const float *first_output(const sl_cu_step &s, const spread &by,
                                                            uint32_t first, uint32_t n_rows)
{
    const output_place at = place_of(s, by, first);
    return at.y && at.column < n_rows ? at.y + (size_t)at.column * at.stride : NULL;
}

/* `before` is what stands at this thread's first output, where results are added. */
template <int COLUMNS>
static __device__ __forceinline__ void store_panels(const sl_cu_step &s, const spread &by,
                                                    const float *parts, uint32_t n_segments,
                                                    uint32_t first, uint32_t n_rows, float before)
{
    enum { PART_FLOATS = PART_STRIDE * COLUMNS };
    const output_place at = place_of(s, by, first);
    if (!at.y)
        return;
    const float *panel = parts + at.panel * n_segments * PART_FLOATS + threadIdx.x % ROWS;
    for (uint32_t column = at.column; column < n_rows; column += at.n_groups) {
        float *y = at.y + (size_t)column * at.stride;
        float value = sum_segments(panel, PART_FLOATS, n_segments, column * PART_STRIDE);
        if (s.add) {
            value = (column == at.column ? before : __ldcg(y)) + value;
            if (!finite(value))
                atomicCAS(&s.flags[first + column], 0u, s.mark);
        }
        *y = value;
    }
}

/* 32 outputs of gate and up: a block of activations, one warp a row. */
template <int COLUMNS>
static __device__ __forceinline__ void store_swiglu(const sl_cu_step &s, const float *parts,
                                                    uint32_t n_segments, uint32_t first,
                                                    uint32_t n_rows)
{
    const uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, b = blockIdx.x;
    const uint32_t n = s.targets[0].w.n_rows, k = b * SL_Q8_BLOCK + lane;
    const uint32_t part_floats = PART_STRIDE * COLUMNS, panel_floats = n_segments * part_floats;
    for (uint32_t i = warp; i < n_rows; i += blockDim.x / WARP) {
        const uint32_t at = i * PART_STRIDE + lane % ROWS;
        const float *gates = parts + lane / ROWS * panel_floats, *ups = gates + 2 * panel_floats;
        const float gate = sum_segments(gates, part_floats, n_segments, at);
        const float up = sum_segments(ups, part_floats, n_segments, at);
        const size_t row = first + i;
        float value = 0.0f;
        if (k < n) {
            value = sl_silu(gate) * up;
            if (s.act)
                s.act[row * n + k] = value;
        }
        if (s.act_q8.q) {
            const size_t block = row * s.act_q8.n_blocks + b;
            quantise_block(value, s.act_q8.q + block * SL_Q8_BLOCK, s.act_q8.d + block,
                           s.act_q8.sums + 2 * block);
        }
    }
}

/* Asks for this block's share of memory that later kernels read. */
static __device__ __forceinline__ void bring_ahead(const sl_cu_ahead &ahead)
{
#if __CUDA_ARCH__ >= 900
    enum { PIECE = 8192 };
    const size_t pieces = (ahead.n_bytes + PIECE - 1) / PIECE;
    const size_t blocks = gridDim.x * gridDim.y, block = blockIdx.y * gridDim.x + blockIdx.x;
    for (size_t i = block + threadIdx.x * blocks; i < pieces; i += blocks * blockDim.x) {
        const size_t at = i * PIECE;
        const uint32_t n = ahead.n_bytes - at < PIECE ? (uint32_t)(ahead.n_bytes - at) : PIECE;
        asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(ahead.data + at),
                     "r"(n / 16 * 16));
    }
#else
    (void)ahead;
#endif
}

/* With plain weights and up to 8 rows two blocks of threads fit on a multiprocessor: while one
 * waits for its input, the other's weights come. */
template <int TILES, bool ALL_PLAIN>
static __global__ void __launch_bounds__(BLOCK_THREADS, TILES == 1 && ALL_PLAIN ? 2 : 1)
    step_kernel(const __grid_constant__ sl_cu_step s, const __grid_constant__ spread by)
{
    enum { COLUMNS = TILES * TOKENS };
    extern __shared__ uint4 raw[];
    const uint32_t n_blocks = div_up(s.n_cols, SL_Q8_BLOCK);
    const uint32_t n_segments = div_up(n_blocks, SEGMENT_BLOCKS);
    const uint32_t warp = threadIdx.x / WARP, n_warps = blockDim.x / WARP;
    const uint32_t first = blockIdx.y * COLUMNS;
    const uint32_t n_rows = s.n_rows - first < COLUMNS ? s.n_rows - first : COLUMNS;
    const uint32_t n_tasks = by.n_panels * n_segments, part_floats = PART_STRIDE * COLUMNS;
    const activations a = activations_at(raw, n_blocks, COLUMNS);
    float *parts = (float *)((char *)raw + activation_bytes(n_blocks, COLUMNS));

    /* The first task's weights are on their way before this kernel's input is there. */
    segment_weights weights;
    panel_ref w = {NULL, 0, 0};
    if (warp < n_tasks)
        w = own_panel(s, by, warp / n_segments);
    if (w.data)
        load_segment<ALL_PLAIN>(w, warp % n_segments, n_blocks, &weights);
    if (s.norm)
        norm_ahead(s, parts);
    clear_absent<COLUMNS>(a, n_rows);
#pragma unroll
    for (int i = 0; i < SL_CU_STEP_AHEAD; i++)
        bring_ahead(s.ahead[i]);
    const float *added = s.add ? first_output(s, by, first, n_rows) : NULL;
    wait_for_previous();
    const float before = added ? __ldcg(added) : 0.0f;
    if (s.norm)
        norm_input<COLUMNS>(s, a, parts);
    else
        copy_input<COLUMNS, !ALL_PLAIN>(s.q8, first, n_rows, a);
    for (uint32_t task = warp; task < n_tasks; task += n_warps) {
        const uint32_t segment = task % n_segments;
        if (task != warp) {
            w = own_panel(s, by, task / n_segments);
            if (w.data)
                load_segment<ALL_PLAIN>(w, segment, n_blocks, &weights);
        }
        if (w.data)
            any_segment_product<TILES, ALL_PLAIN>(w, weights, segment, a,
                                                  parts + task * part_floats);
    }
    __syncthreads();
    if (s.swiglu)
        store_swiglu<COLUMNS>(s, parts, n_segments, first, n_rows);
    else
        store_panels<COLUMNS>(s, by, parts, n_segments, first, n_rows, before);
}

/* ---- launching ---- */

/* Shared memory of a block of threads. The rows to norm lie where the parts will be. */
static size_t shared_bytes(const sl_cu_step *s, const spread *by)
{
    const uint32_t n_blocks = div_up(s->n_cols, SL_Q8_BLOCK);
    const size_t parts =
        (size_t)by->n_panels * div_up(n_blocks, SEGMENT_BLOCKS) * PART_STRIDE * by->n_columns * 4;
    const size_t rows = norm_bytes(*s);
    return activation_bytes(n_blocks, by->n_columns) + (parts > rows ? parts : rows);
}

static spread spread_of(const sl_cu_queue *queue, const sl_cu_step *s)
{
    const uint32_t n_segments = div_up(div_up(s->n_cols, SL_Q8_BLOCK), SEGMENT_BLOCKS);
    uint32_t n_panels = 0;
    for (uint32_t i = 0; i < s->n_targets; i++)
        n_panels += div_up(s->targets[i].w.n_rows, ROWS);
    spread by = {SWIGLU_PANELS, TOKENS, div_up(s->targets[0].w.n_rows, 2 * ROWS)};
    if (!s->swiglu) {
        const uint32_t most = n_segments < MOST_WARPS ? MOST_WARPS / n_segments : 1;
        const uint32_t even = div_up(n_panels, (uint32_t)queue->n_multiprocessors);
        by.n_panels = even < most ? even : most;
        by.n_blocks = div_up(n_panels, by.n_panels);
    }
    while (by.n_columns < s->n_rows && by.n_columns < SL_CU_STEP_ROWS)
        by.n_columns *= 2;
    while (by.n_columns > TOKENS && !fits_block(shared_bytes(s, &by)))
        by.n_columns /= 2;
    return by;
}

static uint32_t warps_of(const sl_cu_step *s, const spread *by)
{
    enum { FEWEST_WARPS = 4 };
    const uint32_t n_segments = div_up(div_up(s->n_cols, SL_Q8_BLOCK), SEGMENT_BLOCKS);
    const uint32_t warps = by->n_panels * n_segments;
    return warps < FEWEST_WARPS ? FEWEST_WARPS : warps > MOST_WARPS ? MOST_WARPS : warps;
}

int sl_cu_step_fits(const sl_cu_queue *queue, const sl_cu_step *s)
{
    enum { MOST_TIMES = 2 /* that weights are read */ };
    if (s->n_rows > SL_CU_STEP_ROWS || s->n_cols % SL_Q8_BLOCK != 0)
        return 0;
    for (uint32_t i = 0; i < s->n_targets; i++) {
        if (!sl_cu_is_quantised(&s->targets[i].w))
            return 0;
    }
    const spread by = spread_of(queue, s);
    return fits_block(shared_bytes(s, &by)) && div_up(s->n_rows, by.n_columns) <= MOST_TIMES &&
           (!s->norm || norm_fits(s, WARP * warps_of(s, &by)));
}

template <int TILES, bool ALL_PLAIN>
static void launch_kind(const sl_cu_queue *queue, const sl_cu_step *s, const spread *by)
{
    const size_t shared = shared_bytes(s, by);
    cudaFuncSetAttribute(step_kernel<TILES, ALL_PLAIN>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                         (int)shared);
    launch(queue, step_kernel<TILES, ALL_PLAIN>,
           dim3(by->n_blocks, div_up(s->n_rows, by->n_columns)), dim3(warps_of(s, by) * WARP),
           shared, *s, *by);
}

template <int TILES>
static void launch_step(const sl_cu_queue *queue, const sl_cu_step *s, const spread *by)
{
    bool all_plain = true;
    for (uint32_t i = 0; i < s->n_targets; i++)
        all_plain = all_plain && s->targets[i].w.kind == SL_CU_PLAIN;
    if (all_plain)
        launch_kind<TILES, true>(queue, s, by);
    else
        launch_kind<TILES, false>(queue, s, by);
}

void sl_cu_run_step(const sl_cu_queue *queue, const sl_cu_step *s)
{
    if (s->n_rows > SL_CU_NORM_ROWS && sl_cu_batch_fits(queue, s)) {
        sl_cu_run_batch(queue, s);
        return;
    }
    const spread by = spread_of(queue, s);
    switch (by.n_columns / TOKENS) {
    case 1:
        launch_step<1>(queue, s, &by);
        return;
    case 2:
        launch_step<2>(queue, s, &by);
        return;
    case 4:
        launch_step<4>(queue, s, &by);
        return;
    default:
        launch_step<8>(queue, s, &by);
        return;
    }
}
