/* Products of up to 8 rows together with what lies around them, for decoding: the sum into the
 * residual stream, the norm and the rounding before them (which every block of threads does for
 * itself: it is cheaper than a kernel of its own), SwiGLU and rounding after them. The numbers are
 * those of the separate kernels. Weights are asked for before the kernel waits for the one before
 * it. */
#include "backend/cuda/kernels/product.cuh"

enum { PANELS = 4, MAX_ROWS = SL_CU_STEP_ROWS, PART = ROWS * TOKENS, PAD = 16 };

/* Activations of the step in shared memory. Rows of codes are 16 bytes apart modulo 128, so that
 * the eight rows of a tile lie in different banks. */
typedef struct activations {
    int8_t *q;
    float *d;
    int16_t *sums;
    uint32_t n_blocks, q_stride;
} activations;

/* ---- before ---- */

/* x = x + add, normed and rounded. Block 0 leaves the sum and what else is wanted in memory. */
static __device__ void norm_input(const sl_cu_step &s, float *rows, const activations &a)
{
    __shared__ float r[MAX_ROWS];
    const uint32_t n = s.n_cols, warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const uint32_t n_warps = blockDim.x / WARP;
    const bool first = blockIdx.x == 0;
    for (uint32_t i = 0; i < s.n_rows; i++) {
        bool fault = false;
        for (uint32_t k = threadIdx.x; k < n; k += blockDim.x) {
            float x = s.x[(size_t)i * n + k];
            if (s.add) {
                x = x + s.add[(size_t)i * n + k];
                fault = fault || (sl_bits_of_float(x) & 0x7FFFFFFFu) >= 0x7F800000u;
                if (first)
                    s.x_out[(size_t)i * n + k] = x;
            }
            rows[i * n + k] = x;
        }
        if (first && s.add && __syncthreads_or(fault) && threadIdx.x == 0)
            atomicCAS(&s.flags[i], 0u, s.mark);
    }
    __syncthreads();
    for (uint32_t i = warp; i < s.n_rows; i += n_warps) {
        const float sum = sum_squares_of(rows + i * n, n, lane);
        if (lane == 0)
            r[i] = 1.0f / sqrtf(sum / (float)n + s.eps);
    }
    __syncthreads();
    for (uint32_t task = warp; task < s.n_rows * a.n_blocks; task += n_warps) {
        const uint32_t i = task / a.n_blocks, b = task % a.n_blocks, k = b * SL_Q8_BLOCK + lane;
        const float y = (rows[i * n + k] * r[i]) * s.norm[k];
        quantise_block(y, a.q + i * a.q_stride + b * SL_Q8_BLOCK, a.d + task, a.sums + 2 * task);
        if (first) {
            if (s.norm_out)
                s.norm_out[(size_t)i * n + k] = y;
            if (s.norm_q8.q) {
                __syncwarp();
                s.norm_q8.q[(size_t)task * SL_Q8_BLOCK + lane] =
                    a.q[i * a.q_stride + b * SL_Q8_BLOCK + lane];
                if (lane == 0)
                    s.norm_q8.d[task] = a.d[task];
                if (lane < 2)
                    s.norm_q8.sums[2 * task + lane] = a.sums[2 * task + lane];
            }
        }
    }
    __syncthreads();
}

static __device__ void copy_input(const sl_cu_step &s, const activations &a)
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

/* One segment of one panel times all rows. */
template <int KIND, bool HAS_MIN>
static __device__ void segment_product(const uint8_t *panel, const uint4 *ahead, uint32_t segment,
                                       const activations &a, uint32_t n_rows, float *part)
{
    const uint32_t lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    const size_t block_bytes = KIND == SL_CU_PLAIN ? SL_CU_PLAIN_BYTES : SL_CU_GENERAL_BYTES;
    const uint32_t begin = segment * SEGMENT_BLOCKS;
    /* Columns beyond the last are computed from the last row and not used. */
    const uint32_t row = g < n_rows ? g : n_rows - 1;
    const uint32_t column[2] = {2 * t < n_rows ? 2 * t : n_rows - 1,
                                2 * t + 1 < n_rows ? 2 * t + 1 : n_rows - 1};
    float seg[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
    for (uint32_t i = 0; i < SEGMENT_BLOCKS; i++) {
        const uint32_t b = begin + i;
        if (b >= a.n_blocks)
            break;
        const uint8_t *block = panel + b * block_bytes;
        const uint4 weights = ahead ? ahead[i] : *(const uint4 *)(block + lane * 16);
        block_scales scales;
        load_scales((sl_cu_kind)KIND, block, g, &scales);
        const int8_t *q = a.q + row * a.q_stride + b * SL_Q8_BLOCK + 4 * t;
        const uint32_t codes[2] = {*(const uint32_t *)q, *(const uint32_t *)(q + 16)};
        const uint32_t at[2] = {column[0] * a.n_blocks + b, column[1] * a.n_blocks + b};
        const float da[2] = {a.d[at[0]], a.d[at[1]]};
        const int16_t *const sums[2] = {a.sums + 2 * at[0], a.sums + 2 * at[1]};
        add_block<KIND, HAS_MIN>(weights, scales, codes, da, sums, seg);
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
        part[(g + 8 * (i / 2)) * TOKENS + 2 * t + i % 2] = seg[i];
}

static __device__ void any_segment_product(const sl_cu_matrix &w, const uint8_t *panel,
                                           const uint4 *ahead, uint32_t segment,
                                           const activations &a, uint32_t n_rows, float *part)
{
    if (w.kind == SL_CU_PLAIN)
        segment_product<SL_CU_PLAIN, false>(panel, ahead, segment, a, n_rows, part);
    else if (w.has_min)
        segment_product<SL_CU_GENERAL, true>(panel, ahead, segment, a, n_rows, part);
    else
        segment_product<SL_CU_GENERAL, false>(panel, ahead, segment, a, n_rows, part);
}

static __device__ inline float sum_segments(const float *parts, uint32_t first_task,
                                            uint32_t n_segments, uint32_t output)
{
    float total = 0.0f;
    for (uint32_t i = 0; i < n_segments; i++)
        total = total + parts[(first_task + i) * PART + output];
    return total;
}

/* The step's panel of this block of threads: with SwiGLU two of gate and two of up. */
static __device__ inline uint32_t find_panels(const sl_cu_step &s, const sl_cu_target *targets[],
                                              uint32_t panels[])
{
    if (s.swiglu) {
        uint32_t n = 0;
        for (uint32_t i = 0; i < PANELS; i++, n++) {
            targets[i] = &s.targets[i / 2];
            panels[i] = 2 * blockIdx.x + i % 2;
        }
        return n;
    }
    uint32_t panel = blockIdx.x, i = 0;
    while (panel >= div_up(s.targets[i].w.n_rows, ROWS))
        panel -= div_up(s.targets[i++].w.n_rows, ROWS);
    targets[0] = &s.targets[i];
    panels[0] = panel;
    return 1;
}

static __device__ void store_panel(const sl_cu_step &s, const sl_cu_target &target, uint32_t panel,
                                   const float *parts, uint32_t n_segments)
{
    for (uint32_t output = threadIdx.x; output < PART; output += blockDim.x) {
        const uint32_t row = panel * ROWS + output / TOKENS, i = output % TOKENS;
        if (row < target.w.n_rows && i < s.n_rows)
            target.y[(size_t)i * target.y_stride + row] =
                sum_segments(parts, 0, n_segments, output);
    }
}

/* 32 outputs of gate and up: a block of activations, one warp a row. */
static __device__ void store_swiglu(const sl_cu_step &s, const float *parts, uint32_t n_segments)
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

static __global__ void step_kernel(const __grid_constant__ sl_cu_step s)
{
    extern __shared__ uint4 raw[];
    const uint32_t n_blocks = div_up(s.n_cols, SL_Q8_BLOCK);
    const uint32_t n_segments = div_up(n_blocks, SEGMENT_BLOCKS);
    const uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const uint32_t n_warps = blockDim.x / WARP;
    activations a = {.n_blocks = n_blocks, .q_stride = n_blocks * SL_Q8_BLOCK + PAD};
    float *rows = (float *)raw;
    a.q = (int8_t *)(rows + (s.norm ? s.n_rows * s.n_cols : 0));
    a.d = (float *)(a.q + s.n_rows * a.q_stride);
    a.sums = (int16_t *)(a.d + s.n_rows * n_blocks);
    float *parts = (float *)(a.sums + 2 * s.n_rows * n_blocks);

    const sl_cu_target *targets[PANELS];
    uint32_t panels[PANELS];
    const uint32_t n_tasks = find_panels(s, targets, panels) * n_segments;

    /* The first task's weights are on their way before this kernel's input is there. */
    uint4 ahead[SEGMENT_BLOCKS];
    const bool has_ahead = warp < n_tasks;
    if (has_ahead) {
        const sl_cu_matrix &w = targets[warp / n_segments]->w;
        const uint32_t p = panels[warp / n_segments];
        const size_t block_bytes = w.kind == SL_CU_PLAIN ? SL_CU_PLAIN_BYTES : SL_CU_GENERAL_BYTES;
        const uint8_t *panel = w.data + p * w.panel_bytes;
#pragma unroll
        for (uint32_t i = 0; i < SEGMENT_BLOCKS; i++) {
            const uint32_t b = warp % n_segments * SEGMENT_BLOCKS + i;
            ahead[i] = make_uint4(0, 0, 0, 0);
            if (b < n_blocks && p < div_up(w.n_rows, ROWS))
                ahead[i] = __ldcs((const uint4 *)(panel + b * block_bytes + lane * 16));
        }
    }
    wait_for_previous();
    if (s.norm)
        norm_input(s, rows, a);
    else
        copy_input(s, a);
    for (uint32_t task = warp; task < n_tasks; task += n_warps) {
        const sl_cu_matrix &w = targets[task / n_segments]->w;
        const uint32_t p = panels[task / n_segments];
        if (p >= div_up(w.n_rows, ROWS))
            continue;
        any_segment_product(w, w.data + p * w.panel_bytes, task == warp ? ahead : NULL,
                            task % n_segments, a, s.n_rows, parts + task * PART);
    }
    __syncthreads();
    if (s.swiglu)
        store_swiglu(s, parts, n_segments);
    else
        store_panel(s, *targets[0], panels[0], parts, n_segments);
}

static uint32_t shared_bytes(const sl_cu_step *s, uint32_t n_tasks)
{
    const uint32_t n_blocks = div_up(s->n_cols, SL_Q8_BLOCK);
    const uint32_t row = n_blocks * SL_Q8_BLOCK + PAD + n_blocks * (4 + 4) +
                         (s->norm ? s->n_cols * 4 : 0);
    return s->n_rows * row + n_tasks * PART * 4;
}

static uint32_t tasks_of(const sl_cu_step *s)
{
    return (s->swiglu ? PANELS : 1) * div_up(div_up(s->n_cols, SL_Q8_BLOCK), SEGMENT_BLOCKS);
}

int sl_cu_step_fits(const sl_cu_step *s)
{
    enum { MOST_SHARED = 200 << 10 };
    if (s->n_rows > MAX_ROWS || s->n_cols % SL_Q8_BLOCK != 0)
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
