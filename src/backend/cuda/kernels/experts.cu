/* The feed-forward part of a layer with experts for a single row, in three kernels: the router,
 * with gate and up of the expert that is always there; gate and up of those that it chooses; all
 * down projections with the sum over the experts, the shared one's gate and the sum into the
 * residual stream. The second and third repeat the choice in each of their blocks, which takes less
 * time than a kernel. All weights of a block come by bulk copies, as soon as it is known which;
 * those of the third kernel while the second computes. The numbers are those of the other products.
 */
#include "backend/cuda/kernels/cluster.cuh"
#include "backend/cuda/kernels/product_float.cuh"
#include "backend/cuda/kernels/step.cuh"

enum {
    ACT_WARPS = 16,
    ACT_PANELS = 4, /* two of gate and two of up: 32 outputs, which are rounded together */
    DOWN_WARPS = 9,
    ROUTER_WARPS = 4, /* outputs of a block of the router */
    MOST_CHOSEN = 32,
    MOST_EXPERTS = 512
};

/* ---- weights ---- */

/* Starts to copy a segment, whose arrival completes the first round of its counter. By one thread,
 * which opens the counter too. */
template <int KIND>
static __device__ __forceinline__ void fetch_segment(uint8_t *to, const uint8_t *panel,
                                                     uint32_t segment, uint32_t n_blocks,
                                                     uint64_t *counter)
{
#if __CUDA_ARCH__ >= 900
    const uint32_t left = n_blocks - segment * SEGMENT_BLOCKS;
    const uint32_t n_bytes =
        head_bytes_of(KIND) + min(left, (uint32_t)SEGMENT_BLOCKS) * block_bytes_of(KIND);
    init_counter(counter, 1);
    show_counters();
    asm volatile(
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n\t"
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%2], [%3], %1, "
        "[%0];" ::"r"(shared_address(counter)),
        "r"(n_bytes), "r"(shared_address(to)), "l"(panel + (size_t)segment * segment_bytes_of(KIND))
        : "memory");
#endif
}

/* ---- the choice ---- */

typedef struct choice {
    float p[MOST_EXPERTS];
    uint32_t key[MOST_EXPERTS]; /* orders probabilities; 0 is taken */
    uint32_t most[WARP];        /* of each warp's logits, as below */
    uint32_t ids[MOST_CHOSEN];
    float weights[MOST_CHOSEN];
} choice;

/* Unsigned order is that of the numbers. */
static __device__ __forceinline__ uint32_t ordered(float x)
{
    const uint32_t bits = sl_bits_of_float(x);
    return bits ^ ((uint32_t)((int)bits >> 31) | 0x80000000u);
}

static __device__ __forceinline__ float of_ordered(uint32_t key)
{
    return sl_float_of_bits(key ^ ((uint32_t)((int)~key >> 31) | 0x80000000u));
}

/* The largest keys in order, by the first warp. */
static __device__ __forceinline__ void take_largest(uint32_t n, uint32_t top_k, choice &c)
{
    const uint32_t lane = threadIdx.x % WARP;
    float of_chosen = 0.0f;
    for (uint32_t slot = 0; slot < top_k; slot++) {
        uint32_t best = 0, at = 0xFFFFFFFFu;
#pragma unroll 4
        for (uint32_t i = lane; i < n; i += WARP) {
            const uint32_t key = c.key[i];
            at = key > best ? i : at;
            best = max(best, key);
        }
        const uint32_t most = __reduce_max_sync(0xFFFFFFFFu, best);
        at = __reduce_min_sync(0xFFFFFFFFu, best == most ? at : 0xFFFFFFFFu);
        of_chosen = of_chosen + sl_float_of_bits(most - 1);
        if (lane == 0) {
            c.key[at] = 0;
            c.ids[slot] = at;
            c.weights[slot] = sl_float_of_bits(most - 1);
        }
        __syncwarp();
    }
    of_chosen = of_chosen < 0x1p-14f ? 0x1p-14f : of_chosen;
    if (lane < top_k)
        c.weights[lane] = c.weights[lane] / of_chosen;
    __syncwarp();
}

/* By all threads: ids and weights of section 8, for the first warp; others wait for it before they
 * read them. False when a logit is not finite: weights are not numbers then. */
static __device__ __forceinline__ bool choose(const float *logits, uint32_t n, uint32_t top_k,
                                              choice &c)
{
    const uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    uint32_t most = 0;
    bool fault = false;
#pragma unroll 1
    for (uint32_t i = threadIdx.x; i < n; i += blockDim.x) {
        const float x = __ldcg(logits + i);
        fault = fault || !finite(x);
        most = max(most, ordered(x));
        c.p[i] = x;
    }
    most = __reduce_max_sync(0xFFFFFFFFu, most);
    if (lane == 0)
        c.most[warp] = most;
    if (__syncthreads_or(fault)) {
        if (threadIdx.x < top_k) {
            c.ids[threadIdx.x] = threadIdx.x;
            c.weights[threadIdx.x] = sl_float_of_bits(0x7FC00000u);
        }
        __syncwarp();
        return false;
    }
    most = __reduce_max_sync(0xFFFFFFFFu, lane < blockDim.x / WARP ? c.most[lane] : 0);
#pragma unroll 1
    for (uint32_t i = threadIdx.x; i < n; i += blockDim.x)
        c.p[i] = sl_expf(c.p[i] - of_ordered(most));
    __syncthreads();
    float sum = 0.0f; /* every warp for itself */
#pragma unroll 4
    for (uint32_t i = lane % SUM_LANES; i < n; i += SUM_LANES)
        sum = sum + c.p[i];
    sum = __shfl_sync(0xFFFFFFFFu, sum_tree(sum), 0);
#pragma unroll 1
    for (uint32_t i = threadIdx.x; i < n; i += blockDim.x)
        c.key[i] = sl_bits_of_float(c.p[i] / sum) + 1;
    __syncthreads();
    if (warp == 0)
        take_largest(n, top_k, c);
    return true;
}

/* ---- activations ---- */

/* Rows of activations in shared memory, at a place of 16 bytes; what is behind them is at one of 8.
 */
struct rows_input {
    uint32_t *q; /* [rows][8 n_blocks] */
    float *d;    /* [rows][n_blocks] */
    uint32_t *sums;
};

static __host__ __device__ inline uint32_t input_bytes(uint32_t n_rows, uint32_t n_blocks)
{
    return n_rows * n_blocks * (SL_Q8_BLOCK + 4 + 4);
}

static __device__ __forceinline__ rows_input input_at(void *memory, uint32_t n_rows,
                                                      uint32_t n_blocks)
{
    rows_input at;
    at.q = (uint32_t *)memory;
    at.d = (float *)(at.q + n_rows * n_blocks * (SL_Q8_BLOCK / 4));
    at.sums = (uint32_t *)(at.d + n_rows * n_blocks);
    return at;
}

/* By all threads: rows to row `first` of `to` and on. */
static __device__ __forceinline__ void copy_rows(const sl_cu_q8 &from, uint32_t n_rows,
                                                 const rows_input &to, uint32_t first)
{
    enum { WORDS = SL_Q8_BLOCK / 4 };
    const uint32_t n = n_rows * from.n_blocks, at = first * from.n_blocks;
#pragma unroll 1
    for (uint32_t i = threadIdx.x; i < n * (WORDS / 4); i += blockDim.x)
        ((uint4 *)(to.q + at * WORDS))[i] = __ldcg((const uint4 *)from.q + i);
#pragma unroll 1
    for (uint32_t i = threadIdx.x; i < n; i += blockDim.x) {
        to.d[at + i] = __ldcg(from.d + i);
        to.sums[at + i] = __ldcg((const uint32_t *)from.sums + i);
    }
}

/* The sums of a segment's `count` blocks for outputs g and g + 8 of the panel, with the row's
 * blocks from `first` on as the first of eight columns; right in the lanes whose t is 0. */
template <int KIND, bool HAS_MIN>
static __device__ __forceinline__ float2 segment_sums(const uint8_t *segment, uint32_t count,
                                                      const rows_input &x, uint32_t first)
{
    const uint32_t lane = threadIdx.x % WARP;
    float seg[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll 2
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t *q = x.q + (first + i) * (SL_Q8_BLOCK / 4) + lane % 4;
        const uint32_t codes[2] = {lane < 4 ? q[0] : 0, lane < 4 ? q[4] : 0};
        const float d[2] = {x.d[first + i], 0.0f};
        const int16_t *sum = (const int16_t *)(x.sums + first + i);
        const int16_t *const sums[2] = {sum, sum};
        const uint4 raw = load_raw<false>(KIND, block_at(KIND, segment, i));
        const block_scales scales = load_scales<false>(KIND, segment, i);
        if (KIND == SL_CU_PLAIN)
            add_plain(raw, scales, codes, d, seg);
        else
            add_block<KIND, HAS_MIN>(expand_codes(KIND, raw), scales, codes, d, sums, seg);
    }
    return make_float2(seg[0], seg[2]);
}

/* ---- gate and up ---- */

/* What 32 outputs of gate and up need of shared memory. */
struct act_memory {
    uint8_t *weights;   /* [ACT_PANELS] panels */
    float *parts;       /* [ACT_PANELS][n_segments][ROWS] */
    uint64_t *counters; /* [ACT_PANELS][n_segments] */
    rows_input x;
};

static __host__ __device__ inline uint32_t act_tasks(const sl_cu_experts &e)
{
    return ACT_PANELS * div_up(e.x.n_blocks, SEGMENT_BLOCKS);
}

static __host__ __device__ inline size_t act_bytes(const sl_cu_experts &e)
{
    return ACT_PANELS * e.gate.panel_bytes + input_bytes(1, e.x.n_blocks) +
           act_tasks(e) * (ROWS * sizeof(float) + sizeof(uint64_t));
}

static __device__ __forceinline__ act_memory act_memory_at(const sl_cu_experts &e, uint4 *raw)
{
    act_memory at;
    at.weights = (uint8_t *)raw;
    uint8_t *const input = at.weights + ACT_PANELS * e.gate.panel_bytes;
    at.x = input_at(input, 1, e.x.n_blocks);
    at.counters = (uint64_t *)(input + input_bytes(1, e.x.n_blocks));
    at.parts = (float *)(at.counters + act_tasks(e));
    return at;
}

/* By a warp: the weights of outputs 32 b .. of these two matrices. Panels beyond the last are the
 * first. */
template <int KIND>
static __device__ __forceinline__ void fetch_act(const sl_cu_experts &e, const uint8_t *gate,
                                                 const uint8_t *up, uint32_t n, uint32_t b,
                                                 const act_memory &at)
{
    const uint32_t n_segments = div_up(e.x.n_blocks, SEGMENT_BLOCKS), n_panels = div_up(n, ROWS);
    for (uint32_t task = threadIdx.x % WARP; task < act_tasks(e); task += WARP) {
        const uint32_t i = task / n_segments, segment = task % n_segments;
        const uint32_t panel = 2 * b + i % 2 < n_panels ? 2 * b + i % 2 : 0;
        fetch_segment<KIND>(at.weights + i * e.gate.panel_bytes + segment * segment_bytes_of(KIND),
                            (i < 2 ? gate : up) + panel * e.gate.panel_bytes, segment, e.x.n_blocks,
                            &at.counters[task]);
    }
}

/* By all threads, once the input is in shared memory. */
template <int KIND, bool HAS_MIN>
static __device__ __forceinline__ void compute_act(const sl_cu_experts &e, const act_memory &at,
                                                   uint32_t n, uint32_t b, const sl_cu_q8 &act,
                                                   uint32_t row)
{
    const uint32_t n_segments = div_up(e.x.n_blocks, SEGMENT_BLOCKS), lane = threadIdx.x % WARP;
    for (uint32_t task = threadIdx.x / WARP; task < act_tasks(e); task += ACT_WARPS) {
        const uint32_t i = task / n_segments, segment = task % n_segments;
        const uint32_t first = segment * SEGMENT_BLOCKS;
        wait_for_counter(&at.counters[task], 0);
        const float2 sums = segment_sums<KIND, HAS_MIN>(
            at.weights + i * e.gate.panel_bytes + segment * segment_bytes_of(KIND),
            min(e.x.n_blocks - first, (uint32_t)SEGMENT_BLOCKS), at.x, first);
        if (lane % 4 == 0) {
            at.parts[task * ROWS + lane / 4] = sums.x;
            at.parts[task * ROWS + lane / 4 + 8] = sums.y;
        }
    }
    __syncthreads();
    if (threadIdx.x >= WARP)
        return;
    const float *gates = at.parts + lane / ROWS * n_segments * ROWS + lane % ROWS;
    const float *ups = gates + 2 * n_segments * ROWS;
    float gate = 0.0f, up = 0.0f;
#pragma unroll 2
    for (uint32_t s = 0; s < n_segments; s++) {
        gate = gate + gates[s * ROWS];
        up = up + ups[s * ROWS];
    }
    const float value = b * SL_Q8_BLOCK + lane < n ? sl_silu(gate) * up : 0.0f;
    const size_t block = (size_t)row * act.n_blocks + b;
    quantise_block(value, act.q + block * SL_Q8_BLOCK, act.d + block, act.sums + 2 * block);
}

/* ---- the kernels ---- */

static __host__ __device__ inline uint32_t router_blocks(const sl_cu_experts &e)
{
    return div_up(e.router.n_rows + e.shared_logit_w.n_rows, ROUTER_WARPS);
}

/* Some outputs of the router or of the shared expert's gate, a warp each. */
static __device__ __forceinline__ void run_router(const sl_cu_experts &e)
{
    const uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, n = e.router.n_cols;
    uint32_t out = blockIdx.x * ROUTER_WARPS + warp;
    const bool is_shared = out >= e.router.n_rows;
    out -= is_shared ? e.router.n_rows : 0;
    const bool present = warp < ROUTER_WARPS && (!is_shared || out < e.shared_logit_w.n_rows);
    const uint8_t *row =
        is_shared ? e.shared_logit_w.data : e.router.data + out * e.router.row_bytes;
    float weight[SL_Q8_BLOCK], value[SL_Q8_BLOCK], total = 0.0f;
    if (present)
        load_weights<SL_CU_F32, true>(row, lane * SL_Q8_BLOCK, n, weight);
    wait_for_previous();
    if (!present)
        return;
    for (uint32_t k = lane * SL_Q8_BLOCK; k - lane * SL_Q8_BLOCK < n; k += WARP * SL_Q8_BLOCK) {
        if (k >= WARP * SL_Q8_BLOCK)
            load_weights<SL_CU_F32, true>(row, k, n, weight);
        load_values<true>(e.x_f32, k, n, value);
        total = add_blocks(weight, value, total);
    }
    if (lane == 0)
        *(is_shared ? e.shared_logit : e.logits + out) = total;
}

template <int KIND, bool HAS_MIN>
static __global__ void __launch_bounds__(ACT_WARPS *WARP, 1)
    router_kernel(const __grid_constant__ sl_cu_experts e)
{
    extern __shared__ uint4 raw[];
    if (blockIdx.x < router_blocks(e)) {
        run_router(e);
        return;
    }
    const uint32_t b = blockIdx.x - router_blocks(e), n = e.shared_gate.n_rows;
    const act_memory at = act_memory_at(e, raw);
    if (threadIdx.x < WARP)
        fetch_act<KIND>(e, e.shared_gate.data, e.shared_up.data, n, b, at);
    wait_for_previous();
    copy_rows(e.x, 1, at.x, 0);
    __syncthreads();
    compute_act<KIND, HAS_MIN>(e, at, n, b, e.shared_act, 0);
}

/* Block: 32 outputs of gate and up of one expert. The kernel after this one, which needs the logits
 * while it is not yet allowed to wait, may only start when they are there. */
template <int KIND, bool HAS_MIN>
static __global__ void __launch_bounds__(ACT_WARPS *WARP, 1)
    act_kernel(const __grid_constant__ sl_cu_experts e)
{
    extern __shared__ uint4 raw[];
    __shared__ choice chosen;
    const uint32_t slot = blockIdx.y, b = blockIdx.x, n = e.gate.n_rows;
    const act_memory at = act_memory_at(e, raw);
    wait_alone();
    let_next_start();
    copy_rows(e.x, 1, at.x, 0);
    const bool found = choose(e.logits, e.router.n_rows, e.top_k, chosen);
    if (threadIdx.x < WARP) {
        const size_t stack = chosen.ids[slot] * e.gate.stack_bytes;
        fetch_act<KIND>(e, e.gate.data + stack, e.up.data + stack, n, b, at);
        if (!found && threadIdx.x == 0)
            atomicCAS(e.flags, 0u, e.route_mark);
    }
    __syncthreads();
    compute_act<KIND, HAS_MIN>(e, at, n, b, e.act, slot);
}

/* Experts that are down projected, the shared one last. */
static __host__ __device__ inline uint32_t down_experts(const sl_cu_experts &e)
{
    return e.top_k + (e.shared_down.data ? 1 : 0);
}

static __host__ __device__ inline size_t down_bytes(const sl_cu_experts &e)
{
    const size_t n_segments = div_up(e.act.n_blocks, SEGMENT_BLOCKS);
    return down_experts(e) *
               (e.down.panel_bytes + n_segments * sizeof(uint64_t) + ROWS * sizeof(float)) +
           input_bytes(down_experts(e), e.act.n_blocks);
}

/* Block: 16 outputs of down of all experts, a warp each, and what becomes of them. */
template <int KIND, bool HAS_MIN>
static __global__ void __launch_bounds__(DOWN_WARPS *WARP)
    down_kernel(const __grid_constant__ sl_cu_experts e)
{
    extern __shared__ uint4 raw[]; /* panels [experts], input, counters, sums [experts][ROWS] */
    __shared__ choice chosen;
    const uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, panel = blockIdx.x;
    const uint32_t n_blocks = e.act.n_blocks, n_segments = div_up(n_blocks, SEGMENT_BLOCKS);
    const uint32_t n_experts = down_experts(e), k = panel * ROWS + threadIdx.x;
    const bool ends = threadIdx.x < ROWS && k<e.down.n_rows, shared = n_experts> e.top_k;
    uint8_t *const panels = (uint8_t *)raw;
    uint8_t *const input = panels + n_experts * e.down.panel_bytes;
    const rows_input x = input_at(input, n_experts, n_blocks);
    uint64_t *const counters = (uint64_t *)(input + input_bytes(n_experts, n_blocks));
    float *const totals = (float *)(counters + n_experts * n_segments);
    (void)choose(e.logits, e.router.n_rows, e.top_k, chosen);
    if (warp == 0) {
        for (uint32_t task = lane; task < n_experts * n_segments; task += WARP) {
            const uint32_t slot = task / n_segments, segment = task % n_segments;
            const uint8_t *w = slot < e.top_k ? e.down.data + chosen.ids[slot] * e.down.stack_bytes
                                              : e.shared_down.data;
            fetch_segment<KIND>(panels + slot * e.down.panel_bytes +
                                    segment * segment_bytes_of(KIND),
                                w + panel * e.down.panel_bytes, segment, n_blocks, &counters[task]);
        }
    }
    const float before = ends ? __ldcg(&e.x_out[k]) : 0.0f;
    const float factor = ends && shared ? 1.0f * sl_sigmoid(__ldcg(e.shared_logit)) : 0.0f;
    if (shared)
        copy_rows(e.shared_act, 1, x, e.top_k);
    wait_for_previous();
    copy_rows(e.act, e.top_k, x, 0);
    __syncthreads();
    for (uint32_t slot = warp; slot < n_experts; slot += DOWN_WARPS) {
        float2 total = make_float2(0.0f, 0.0f);
        for (uint32_t segment = 0; segment < n_segments; segment++) {
            const uint32_t first = segment * SEGMENT_BLOCKS;
            wait_for_counter(&counters[slot * n_segments + segment], 0);
            const float2 sums = segment_sums<KIND, HAS_MIN>(
                panels + slot * e.down.panel_bytes + segment * segment_bytes_of(KIND),
                min(n_blocks - first, (uint32_t)SEGMENT_BLOCKS), x, slot * n_blocks + first);
            total.x = total.x + sums.x;
            total.y = total.y + sums.y;
        }
        if (lane % 4 == 0) {
            totals[slot * ROWS + lane / 4] = total.x;
            totals[slot * ROWS + lane / 4 + 8] = total.y;
        }
    }
    __syncthreads();
    if (!ends)
        return;
    float y = 0.0f;
    for (uint32_t slot = 0; slot < e.top_k; slot++)
        y = fmaf(chosen.weights[slot], totals[slot * ROWS + threadIdx.x], y);
    if (shared)
        y = y + factor * totals[e.top_k * ROWS + threadIdx.x];
    const float value = before + y;
    e.x_out[k] = value;
    if (!finite(value))
        atomicCAS(e.flags, 0u, e.mark);
}

/* ---- launching ---- */

static bool is_alike(const sl_cu_matrix *a, const sl_cu_matrix *b)
{
    return a->kind == b->kind && a->has_min == b->has_min && a->n_cols == b->n_cols;
}

static bool is_whole(const sl_cu_matrix *w)
{
    return w->kind == SL_CU_F32 && w->n_cols % SL_Q8_BLOCK == 0 && (size_t)w->data % 16 == 0 &&
           w->row_bytes % 16 == 0;
}

int sl_cu_experts_fit(const sl_cu_queue *queue, const sl_cu_experts *e)
{
    const bool shared = e->shared_down.data != NULL;
    return queue->overlap && sl_cu_is_quantised(&e->gate) && sl_cu_is_quantised(&e->down) &&
           is_alike(&e->gate, &e->up) && is_whole(&e->router) &&
           (!shared || (is_alike(&e->gate, &e->shared_gate) && is_alike(&e->gate, &e->shared_up) &&
                        is_alike(&e->down, &e->shared_down) && is_whole(&e->shared_logit_w))) &&
           e->top_k <= MOST_CHOSEN && e->router.n_rows <= MOST_EXPERTS &&
           fits_block(act_bytes(*e) + sizeof(choice)) &&
           fits_block(down_bytes(*e) + sizeof(choice));
}

/* With memory enough for what a block wants, and for blocks of two of these kernels at a time. */
static void launch_experts(const sl_cu_queue *queue, void (*kernel)(const sl_cu_experts), dim3 grid,
                           uint32_t warps, size_t shared, const sl_cu_experts *e)
{
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
    cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                         cudaSharedmemCarveoutMaxShared);
    launch(queue, kernel, grid, dim3(warps * WARP), shared, *e);
}

struct act_launch {
    const sl_cu_queue *queue;
    const sl_cu_experts *e;

    template <int KIND, bool HAS_MIN> void run(void) const
    {
        const uint32_t shared =
            e->shared_down.data ? div_up(e->shared_gate.n_rows, SL_Q8_BLOCK) : 0;
        launch_experts(queue, router_kernel<KIND, HAS_MIN>, dim3(router_blocks(*e) + shared),
                       ACT_WARPS, act_bytes(*e), e);
        launch_experts(queue, act_kernel<KIND, HAS_MIN>,
                       dim3(div_up(e->gate.n_rows, SL_Q8_BLOCK), e->top_k), ACT_WARPS,
                       act_bytes(*e), e);
    }
};

struct down_launch {
    const sl_cu_queue *queue;
    const sl_cu_experts *e;

    template <int KIND, bool HAS_MIN> void run(void) const
    {
        launch_experts(queue, down_kernel<KIND, HAS_MIN>, dim3(div_up(e->down.n_rows, ROWS)),
                       DOWN_WARPS, down_bytes(*e), e);
    }
};

void sl_cu_run_experts(const sl_cu_queue *queue, const sl_cu_experts *e)
{
    for_form(&e->gate, act_launch{queue, e});
    for_form(&e->down, down_launch{queue, e});
}
