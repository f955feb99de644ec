/* Mixture of experts, section 8: the choice of experts, their rows brought together, and the sum of
 * their results. */
#include "backend/cuda/kernels/moe.cuh"

/* ---- the choice ---- */

enum { ROUTE_WARPS = 4 };

/* Warp: one row. */
template <int EACH>
static __global__ void __launch_bounds__(ROUTE_WARPS *WARP)
    route_kernel(const float *logits, uint32_t n_rows, uint32_t n, uint32_t top_k, uint32_t *ids,
                 float *weights, uint32_t *flags, uint32_t mark)
{
    const uint32_t row = blockIdx.x * ROUTE_WARPS + threadIdx.x / WARP;
    wait_for_previous();
    if (row >= n_rows)
        return;
    const bool found =
        choose_experts<EACH>(logits + (size_t)row * n, n, top_k, ids + (size_t)row * top_k,
                             weights + (size_t)row * top_k);
    if (!found && threadIdx.x % WARP == 0)
        atomicCAS(&flags[row], 0u, mark);
}

void sl_cu_route(const sl_cu_queue *queue, const float *logits, uint32_t n_rows, uint32_t n,
                 uint32_t top_k, uint32_t *ids, float *weights, uint32_t *flags, uint32_t mark)
{
    enum { FEW = 256 / WARP, MORE = 512 / WARP, MOST = SL_CU_MOST_EXPERTS / WARP };
    const dim3 grid(div_up(n_rows, ROUTE_WARPS)), block(ROUTE_WARPS * WARP);
    launch(queue,
           n <= FEW * WARP    ? route_kernel<FEW>
           : n <= MORE * WARP ? route_kernel<MORE>
                              : route_kernel<MOST>,
           grid, block, 0, logits, n_rows, n, top_k, ids, weights, flags, mark);
}

/* ---- pairs of rows and experts, by expert ---- */

enum { ORDER_THREADS = 256, ORDER_WARPS = ORDER_THREADS / WARP, NO_PAIR = 0xFFFFFFFFu };

/* Which of BATCH pairs are those of this block's expert, a bit each. */
enum { BATCH = 8 };

static __device__ __forceinline__ uint32_t find_own(const sl_cu_grouping &g, uint32_t first)
{
    uint32_t own = 0;
    if (first + BATCH <= g.n_pairs && (size_t)g.ids % 16 == 0) {
        const uint4 a = *(const uint4 *)(g.ids + first), b = *(const uint4 *)(g.ids + first + 4);
        const uint32_t id[BATCH] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
#pragma unroll
        for (uint32_t j = 0; j < BATCH; j++)
            own |= (uint32_t)(id[j] == blockIdx.x) << j;
        return own;
    }
    for (uint32_t j = 0; j < BATCH && first + j < g.n_pairs; j++)
        own |= (uint32_t)(g.ids[first + j] == blockIdx.x) << j;
    return own;
}

/* The sum over all threads of the block, in all of them. */
static __device__ __forceinline__ uint32_t sum_of_block(uint32_t n, uint32_t *sums)
{
    n = __reduce_add_sync(0xFFFFFFFFu, n);
    if (threadIdx.x % WARP == 0)
        sums[threadIdx.x / WARP] = n;
    __syncthreads();
    uint32_t all = 0;
    for (uint32_t w = 0; w < ORDER_WARPS; w++)
        all += sums[w];
    __syncthreads();
    return all;
}

/* Block: how many pairs an expert has. */
static __global__ void __launch_bounds__(ORDER_THREADS) count_kernel(const sl_cu_grouping g)
{
    __shared__ uint32_t sums[ORDER_WARPS];
    uint32_t n = 0;
    wait_for_previous();
    for (uint32_t i = threadIdx.x * BATCH; i < g.n_pairs; i += ORDER_THREADS * BATCH)
        n += (uint32_t)__popc(find_own(g, i));
    n = sum_of_block(n, sums);
    if (threadIdx.x == 0)
        g.counts[blockIdx.x] = n;
}

/* Block: the groups of an expert, which begin behind those of the experts before it. */
static __global__ void __launch_bounds__(ORDER_THREADS) place_kernel(const sl_cu_grouping g)
{
    __shared__ uint32_t sums[ORDER_WARPS];
    const uint32_t e = blockIdx.x, warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    uint32_t before = 0;
    wait_for_previous();
    for (uint32_t i = threadIdx.x; i < e; i += ORDER_THREADS)
        before += div_up(g.counts[i], g.group_rows);
    before = sum_of_block(before, sums);
    const uint32_t n_groups = div_up(g.counts[e], g.group_rows);
    for (uint32_t i = threadIdx.x; i < n_groups; i += ORDER_THREADS)
        g.stack[before + i] = e;
    if (e + 1 == g.n_experts && threadIdx.x == 0)
        *g.n_groups = before + n_groups;
    uint32_t place = before * g.group_rows;
    const uint32_t end = (before + n_groups) * g.group_rows;
    for (uint32_t base = 0; base < g.n_pairs; base += ORDER_THREADS * BATCH) {
        const uint32_t first = base + threadIdx.x * BATCH;
        uint32_t own = first < g.n_pairs ? find_own(g, first) : 0;
        uint32_t up_to = (uint32_t)__popc(own); /* this thread's in its warp */
        for (uint32_t step = 1; step < WARP; step *= 2) {
            const uint32_t other = __shfl_up_sync(0xFFFFFFFFu, up_to, step);
            up_to += lane >= step ? other : 0;
        }
        if (lane == WARP - 1)
            sums[warp] = up_to;
        __syncthreads();
        uint32_t at = place + up_to - (uint32_t)__popc(own);
        for (uint32_t w = 0; w < ORDER_WARPS; w++) {
            at += w < warp ? sums[w] : 0;
            place += sums[w];
        }
        for (; own != 0; own &= own - 1, at++) {
            const uint32_t pair = first + (uint32_t)__ffs((int)own) - 1;
            g.place[pair] = at;
            g.pair[at] = pair;
        }
        __syncthreads();
    }
    for (uint32_t i = place + threadIdx.x; i < end; i += ORDER_THREADS)
        g.pair[i] = NO_PAIR;
}

uint32_t sl_cu_most_groups(uint32_t n_pairs, uint32_t n_experts, uint32_t group_rows)
{
    return (n_pairs < n_experts ? n_pairs : n_experts) + n_pairs / group_rows;
}

void sl_cu_group_pairs(const sl_cu_queue *queue, const sl_cu_grouping *g)
{
    launch(queue, count_kernel, dim3(g->n_experts), dim3(ORDER_THREADS), 0, *g);
    launch(queue, place_kernel, dim3(g->n_experts), dim3(ORDER_THREADS), 0, *g);
}

enum { GATHER_THREADS = 256, GATHER_ROWS = 8 };

/* Block: some rows of a group. Rows that belong to no pair get scales 0, whatever their codes. */
static __global__ void __launch_bounds__(GATHER_THREADS)
    gather_kernel(const sl_cu_grouping g, uint32_t top_k, const sl_cu_q8 from, const sl_cu_q8 to)
{
    enum { AHEAD = 4 };
    __shared__ uint32_t pairs[GATHER_ROWS];
    const size_t first = (size_t)blockIdx.x * GATHER_ROWS;
    const uint32_t words = from.n_blocks * SL_Q8_BLOCK / 16;
    wait_for_previous();
    if (first >= (size_t)*g.n_groups * g.group_rows)
        return;
    if (threadIdx.x < GATHER_ROWS)
        pairs[threadIdx.x] = g.pair[first + threadIdx.x];
    __syncthreads();
    for (uint32_t base = threadIdx.x; base < GATHER_ROWS * words; base += AHEAD * GATHER_THREADS) {
        uint4 word[AHEAD];
#pragma unroll
        for (uint32_t j = 0; j < AHEAD; j++) {
            const uint32_t x = base + j * GATHER_THREADS, i = x / words;
            if (i < GATHER_ROWS && pairs[i] != NO_PAIR)
                word[j] = ((const uint4 *)from.q)[(size_t)(pairs[i] / top_k) * words + x % words];
        }
#pragma unroll
        for (uint32_t j = 0; j < AHEAD; j++) {
            const uint32_t x = base + j * GATHER_THREADS, i = x / words;
            if (i < GATHER_ROWS && pairs[i] != NO_PAIR)
                ((uint4 *)to.q)[first * words + x] = word[j];
        }
    }
    for (uint32_t x = threadIdx.x; x < GATHER_ROWS * from.n_blocks; x += GATHER_THREADS) {
        const uint32_t i = x / from.n_blocks;
        const size_t at = (size_t)(pairs[i] / top_k) * from.n_blocks + x % from.n_blocks;
        to.d[first * from.n_blocks + x] = pairs[i] != NO_PAIR ? from.d[at] : 0.0f;
        if (to.sums)
            ((uint32_t *)to.sums)[first * from.n_blocks + x] =
                pairs[i] != NO_PAIR ? ((const uint32_t *)from.sums)[at] : 0;
    }
}

void sl_cu_gather_pairs(const sl_cu_queue *queue, const sl_cu_grouping *g, uint32_t top_k,
                        const sl_cu_q8 *from, const sl_cu_q8 *to)
{
    const uint32_t groups = sl_cu_most_groups(g->n_pairs, g->n_experts, g->group_rows);
    launch(queue, gather_kernel, dim3(groups * (g->group_rows / GATHER_ROWS)), dim3(GATHER_THREADS),
           0, *g, top_k, *from, *to);
}

/* ---- the sum ---- */

enum { COMBINE_THREADS = 128 };

/* Thread: one output of one row. The slots add in order; their loads are all under way before. */
static __global__ void __launch_bounds__(COMBINE_THREADS)
    combine_kernel(const float *down, const uint32_t *place, const float *weights, uint32_t top_k,
                   uint32_t n, float *y)
{
    enum { AHEAD = 8 };
    const uint32_t row = blockIdx.y, k = blockIdx.x * COMBINE_THREADS + threadIdx.x;
    wait_for_previous();
    if (k >= n)
        return;
    float sum = 0.0f;
    for (uint32_t base = 0; base < top_k; base += AHEAD) {
        float value[AHEAD];
#pragma unroll
        for (uint32_t j = 0; j < AHEAD; j++) {
            const size_t pair = (size_t)row * top_k + base + j;
            if (base + j < top_k)
                value[j] = down[(place ? place[pair] : pair) * n + k];
        }
#pragma unroll
        for (uint32_t j = 0; j < AHEAD; j++) {
            if (base + j < top_k)
                sum = fmaf(weights[(size_t)row * top_k + base + j], value[j], sum);
        }
    }
    y[(size_t)row * n + k] = sum;
}

void sl_cu_combine(const sl_cu_queue *queue, const float *down, const uint32_t *place,
                   const float *weights, uint32_t n_rows, uint32_t top_k, uint32_t n, float *y)
{
    launch(queue, combine_kernel, dim3(div_up(n, COMBINE_THREADS), n_rows), dim3(COMBINE_THREADS),
           0, down, place, weights, top_k, n, y);
}
