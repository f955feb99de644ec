/* Products of up to 8 rows with several matrices at once, for decoding, and SwiGLU with its rounding
 * after gate and up. The numbers are those of the separate kernels. Weights are asked for before
 * the kernel waits for the one before it.
 *
 * The norm is a kernel of its own: done here, by every block of threads for itself, it took 4.8 us
 * of 8.1 for one row and 26 of 30 for eight. */
#include "backend/cuda/kernels/product.cuh"

enum { PANELS = 4, PART = ROWS * TOKENS, PAD = 16 };

/* Activations of the step in shared memory. Rows of codes are 16 bytes apart modulo 128, so that
 * the eight rows of a tile lie in different banks. */
typedef struct activations {
    int8_t *q;
    float *d;
    int16_t *sums;
    uint32_t n_blocks, q_stride;
} activations;

static __device__ __forceinline__ void copy_input(const sl_cu_step &s, const activations &a)
{
    const uint32_t words = a.n_blocks * SL_Q8_BLOCK / 16;
    for (uint32_t x = threadIdx.x; x < s.n_rows * words; x += blockDim.x) {
        const uint32_t i = x / words, w = x % words;
        *(uint4 *)(a.q + i * a.q_stride + 16 * w) = ((const uint4 *)s.q8.q)[x];
    }
    for (uint32_t x = threadIdx.x; x < s.n_rows * a.n_blocks; x += blockDim.x) {
        a.d[x] = s.q8.d[x];
        ((uint32_t *)a.sums)[x] = ((const uint32_t *)s.q8.sums)[x];
    }
    __syncthreads();
}

/* ---- products ---- */

/* The weights of one segment of one panel, as this lane sees them. */
typedef struct segment_weights {
    uint4 codes[SEGMENT_BLOCKS];
    uint32_t d[SEGMENT_BLOCKS]; /* plain: two halves, of rows g and g + 8 */
} segment_weights;

/* One panel that a block of threads works on: plain values, so that nothing is looked up on the way
 * to the weights. */
typedef struct panel_ref {
    const uint8_t *data; /* NULL: beyond the matrix */
    int kind, has_min;
} panel_ref;

/* Addresses of absent blocks are those of the last one. */
static __device__ inline uint32_t block_at(const activations &a, uint32_t segment, uint32_t i)
{
    const uint32_t b = segment * SEGMENT_BLOCKS + i;
    return b < a.n_blocks ? b : a.n_blocks - 1;
}

static __device__ __forceinline__ void load_segment(const panel_ref &w, uint32_t segment,
                                                    const activations &a, segment_weights *out)
{
    const uint32_t lane = threadIdx.x % WARP, g = lane / 4;
    const uint32_t block_bytes = w.kind == SL_CU_PLAIN ? SL_CU_PLAIN_BYTES : SL_CU_GENERAL_BYTES;
#pragma unroll
    for (uint32_t i = 0; i < SEGMENT_BLOCKS; i++) {
        const uint8_t *block = w.data + (size_t)block_at(a, segment, i) * block_bytes;
        out->codes[i] = __ldcs((const uint4 *)(block + lane * 16));
        const uint16_t *d = (const uint16_t *)(block + CODE_BYTES);
        out->d[i] = w.kind == SL_CU_PLAIN ? d[g] | (uint32_t)d[g + 8] << 16 : 0;
    }
}

/* The segment times all rows. */
template <int KIND, bool HAS_MIN>
static __device__ __forceinline__ void segment_product(const uint8_t *panel,
                                                       const segment_weights &w, uint32_t segment,
                                                       const activations &a, uint32_t n_rows,
                                                       float *part)
{
    const uint32_t lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    /* Columns beyond the last are computed from the last row and not used. */
    const uint32_t row = g < n_rows ? g : n_rows - 1;
    const uint32_t column[2] = {2 * t < n_rows ? 2 * t : n_rows - 1,
                                2 * t + 1 < n_rows ? 2 * t + 1 : n_rows - 1};
    float seg[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
    for (uint32_t i = 0; i < SEGMENT_BLOCKS; i++) {
        const uint32_t b = block_at(a, segment, i);
        block_scales scales;
        if (KIND == SL_CU_PLAIN) {
            scales.d[0] = __half2float(__ushort_as_half((uint16_t)w.d[i]));
            scales.d[1] = __half2float(__ushort_as_half((uint16_t)(w.d[i] >> 16)));
        } else {
            load_scales((sl_cu_kind)KIND, panel + b * SL_CU_GENERAL_BYTES, g, &scales);
        }
        const int8_t *q = a.q + row * a.q_stride + b * SL_Q8_BLOCK + 4 * t;
        const uint32_t codes[2] = {*(const uint32_t *)q, *(const uint32_t *)(q + 16)};
        const uint32_t at[2] = {column[0] * a.n_blocks + b, column[1] * a.n_blocks + b};
        const float da[2] = {a.d[at[0]], a.d[at[1]]};
        const int16_t *const sums[2] = {a.sums + 2 * at[0], a.sums + 2 * at[1]};
        float next[4] = {seg[0], seg[1], seg[2], seg[3]};
        add_block<KIND, HAS_MIN>(w.codes[i], scales, codes, da, sums, next);
        const bool present = segment * SEGMENT_BLOCKS + i < a.n_blocks;
#pragma unroll
        for (int j = 0; j < 4; j++)
            seg[j] = present ? next[j] : seg[j];
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
        part[(g + 8 * (i / 2)) * TOKENS + 2 * t + i % 2] = seg[i];
}

static __device__ __forceinline__ void any_segment_product(const panel_ref &w,
                                                           const segment_weights &weights,
                                                           uint32_t segment,
                                                           const activations &a, uint32_t n_rows,
                                                           float *part)
{
    if (w.kind == SL_CU_PLAIN)
        segment_product<SL_CU_PLAIN, false>(w.data, weights, segment, a, n_rows, part);
    else if (w.has_min)
        segment_product<SL_CU_GENERAL, true>(w.data, weights, segment, a, n_rows, part);
    else
        segment_product<SL_CU_GENERAL, false>(w.data, weights, segment, a, n_rows, part);
}

static __device__ inline float sum_segments(const float *parts, uint32_t first_task,
                                            uint32_t n_segments, uint32_t output)
{
    float total = 0.0f;
    for (uint32_t i = 0; i < n_segments; i++)
        total = total + parts[(first_task + i) * PART + output];
    return total;
}

/* Panel `panel` of target i. Targets are looked up by constant numbers only: the arguments of a
 * kernel are fast to read there and slow through a pointer. */
static __device__ __forceinline__ panel_ref panel_of(const sl_cu_step &s, uint32_t i,
                                                     uint32_t panel)
{
    panel_ref ref = {NULL, 0, 0};
#pragma unroll
    for (uint32_t k = 0; k < SL_CU_STEP_TARGETS; k++) {
        if (k == i && panel < div_up(s.targets[k].w.n_rows, ROWS)) {
            ref.data = s.targets[k].w.data + panel * s.targets[k].w.panel_bytes;
            ref.kind = s.targets[k].w.kind;
            ref.has_min = s.targets[k].w.has_min;
        }
    }
    return ref;
}

/* Which target and panel the n-th panel of all targets is. */
static __device__ __forceinline__ void find_panel(const sl_cu_step &s, uint32_t n,
                                                  uint32_t *target, uint32_t *panel)
{
    *target = 0;
    *panel = n;
#pragma unroll
    for (uint32_t k = 0; k + 1 < SL_CU_STEP_TARGETS; k++) {
        const uint32_t n_panels = div_up(s.targets[k].w.n_rows, ROWS);
        if (*target == k && k + 1 < s.n_targets && *panel >= n_panels) {
            *target = k + 1;
            *panel -= n_panels;
        }
    }
}

static __device__ __forceinline__ void store_panel(const sl_cu_step &s, uint32_t target, uint32_t panel,
                                   const float *parts, uint32_t n_segments)
{
    float *y = NULL;
    uint32_t stride = 0, n_rows = 0;
#pragma unroll
    for (uint32_t k = 0; k < SL_CU_STEP_TARGETS; k++) {
        if (k == target) {
            y = s.targets[k].y;
            stride = s.targets[k].y_stride;
            n_rows = s.targets[k].w.n_rows;
        }
    }
    for (uint32_t output = threadIdx.x; output < PART; output += blockDim.x) {
        const uint32_t row = panel * ROWS + output / TOKENS, i = output % TOKENS;
        if (row < n_rows && i < s.n_rows)
            y[(size_t)i * stride + row] = sum_segments(parts, 0, n_segments, output);
    }
}

/* 32 outputs of gate and up: a block of activations, one warp a row. */
static __device__ __forceinline__ void store_swiglu(const sl_cu_step &s, const float *parts, uint32_t n_segments)
{
    const uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, b = blockIdx.x;
    const uint32_t n = s.targets[0].w.n_rows, k = b * SL_Q8_BLOCK + lane;
    for (uint32_t i = warp; i < s.n_rows; i += blockDim.x / WARP) {
        const uint32_t output = lane % ROWS * TOKENS + i;
        const float gate = sum_segments(parts, lane / ROWS * n_segments, n_segments, output);
        const float up = sum_segments(parts, (2 + lane / ROWS) * n_segments, n_segments, output);
        float value = 0.0f;
        if (k < n) {
            value = sl_silu(gate) * up;
            s.act[(size_t)i * n + k] = value;
        }
        if (s.act_q8.q) {
            const size_t block = (size_t)i * s.act_q8.n_blocks + b;
            quantise_block(value, s.act_q8.q + block * SL_Q8_BLOCK, s.act_q8.d + block,
                           s.act_q8.sums + 2 * block);
        }
    }
}

static __global__ void __launch_bounds__(512) step_kernel(const __grid_constant__ sl_cu_step s)
{
    extern __shared__ uint4 raw[];
    const uint32_t n_blocks = div_up(s.n_cols, SL_Q8_BLOCK);
    const uint32_t n_segments = div_up(n_blocks, SEGMENT_BLOCKS);
    const uint32_t warp = threadIdx.x / WARP, n_warps = blockDim.x / WARP;
    activations a = {.n_blocks = n_blocks, .q_stride = n_blocks * SL_Q8_BLOCK + PAD};
    a.q = (int8_t *)raw;
    a.d = (float *)(a.q + s.n_rows * a.q_stride);
    a.sums = (int16_t *)(a.d + s.n_rows * n_blocks);
    float *parts = (float *)(a.sums + 2 * s.n_rows * n_blocks);

    uint32_t target = 0, panel = 0;
    find_panel(s, blockIdx.x, &target, &panel);
    const uint32_t n_tasks = (s.swiglu ? PANELS : 1) * n_segments;

    /* The first task's weights are on their way before this kernel's input is there. */
    segment_weights weights;
    bool ready = false;
    for (uint32_t task = warp; task < n_tasks || !ready; task += n_warps) {
        const uint32_t i = task / n_segments, segment = task % n_segments;
        panel_ref w = {NULL, 0, 0};
        if (task < n_tasks)
            w = s.swiglu ? panel_of(s, i / 2, 2 * blockIdx.x + i % 2) : panel_of(s, target, panel);
        if (w.data)
            load_segment(w, segment, a, &weights);
        if (!ready) {
            wait_for_previous();
            copy_input(s, a);
            ready = true;
        }
        if (w.data)
            any_segment_product(w, weights, segment, a, s.n_rows, parts + task * PART);
    }
    __syncthreads();
    if (s.swiglu)
        store_swiglu(s, parts, n_segments);
    else
        store_panel(s, target, panel, parts, n_segments);
}

static uint32_t shared_bytes(const sl_cu_step *s, uint32_t n_tasks)
{
    const uint32_t n_blocks = div_up(s->n_cols, SL_Q8_BLOCK);
    const uint32_t row = n_blocks * (SL_Q8_BLOCK + 4 + 4) + PAD;
    return s->n_rows * row + n_tasks * PART * 4;
}

static uint32_t tasks_of(const sl_cu_step *s)
{
    return (s->swiglu ? PANELS : 1) * div_up(div_up(s->n_cols, SL_Q8_BLOCK), SEGMENT_BLOCKS);
}

int sl_cu_step_fits(const sl_cu_step *s)
{
    enum { MOST_SHARED = 200 << 10 };
    if (s->n_rows > SL_CU_STEP_ROWS || s->n_cols % SL_Q8_BLOCK != 0)
        return 0;
    for (uint32_t i = 0; i < s->n_targets; i++) {
        if (s->targets[i].w.kind != SL_CU_PLAIN && s->targets[i].w.kind != SL_CU_GENERAL)
            return 0;
    }
    return shared_bytes(s, tasks_of(s)) <= MOST_SHARED;
}

void sl_cu_run_step(const sl_cu_queue *queue, const sl_cu_step *s)
{
    enum { FEWEST_WARPS = 4, MOST_WARPS = 16 };
    const uint32_t n_tasks = tasks_of(s);
    uint32_t warps = n_tasks < FEWEST_WARPS ? FEWEST_WARPS : n_tasks;
    warps = warps > MOST_WARPS ? MOST_WARPS : warps;
    uint32_t n_blocks = 0;
    if (s->swiglu) {
        n_blocks = div_up(s->targets[0].w.n_rows, 2 * ROWS);
    } else {
        for (uint32_t i = 0; i < s->n_targets; i++)
            n_blocks += div_up(s->targets[i].w.n_rows, ROWS);
    }
    const uint32_t shared = shared_bytes(s, n_tasks);
    cudaFuncSetAttribute(step_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
    launch(queue, step_kernel, dim3(n_blocks), dim3(warps * WARP), shared, *s);
}
