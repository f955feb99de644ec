/* The ends of a run: tokens become rows, and rows of logits become short lists of the likeliest
 * tokens (sl_shortlist of plan/op.h), so that little goes up and little comes back. What the host
 * wrote and will read lies in its pinned memory; kernels reach it directly. */
#include <cuda_fp16.h>

#include "backend/cuda/kernels/common.cuh"

/* ---- the beginning ---- */

enum { BEGIN_THREADS = 256, PANEL_ROWS = 16, CODE_BYTES = 512 };

/* Element k of row `row` of a table, as sl_dequantise gives it. */
static __device__ inline float table_value(const sl_cu_matrix &table, uint32_t row, uint32_t k)
{
    if (table.kind == SL_CU_PLAIN) {
        const uint32_t r = row % PANEL_ROWS, group = k % SL_Q8_BLOCK / 4;
        const uint8_t *block = table.data + row / PANEL_ROWS * table.panel_bytes +
                               (size_t)(k / SL_Q8_BLOCK) * SL_CU_PLAIN_BYTES;
        const uint32_t lane = 4 * (r % 8) + group % 4, word = r / 8 + 2 * (group / 4);
        const int8_t code = (int8_t)block[16 * lane + 4 * word + k % 4];
        return __half2float(((const __half *)(block + CODE_BYTES))[r]) * (float)code;
    }
    const uint8_t *data = table.data + row * table.row_bytes;
    if (table.kind == SL_CU_F32)
        return ((const float *)data)[k];
    const uint16_t bits = ((const uint16_t *)data)[k];
    return table.kind == SL_CU_F16 ? __half2float(__ushort_as_half(bits))
                                   : sl_float_of_bits((uint32_t)bits << 16);
}

/* Blocks of threads: one a row, and behind them those that copy. */
static __global__ void __launch_bounds__(BEGIN_THREADS)
    begin_kernel(const __grid_constant__ sl_cu_begin b)
{
    let_next_start();
    if (blockIdx.x >= b.n_rows) {
        const uint32_t stride = (gridDim.x - b.n_rows) * BEGIN_THREADS;
        for (uint32_t i = (blockIdx.x - b.n_rows) * BEGIN_THREADS + threadIdx.x; i < b.n_words;
             i += stride)
            ((uint4 *)b.to)[i] = ((const uint4 *)b.from)[i];
        return;
    }
    const uint32_t row = blockIdx.x;
    if (threadIdx.x == 0)
        b.flags[row] = 0;
    const uint32_t token = b.tokens ? (uint32_t)b.tokens[row] : 0;
    float *x = b.x + (size_t)row * b.n_cols;
    const float *embedded = b.embedded + (size_t)row * b.n_cols;
    for (uint32_t k = threadIdx.x; k < b.n_cols; k += BEGIN_THREADS)
        x[k] = b.tokens ? table_value(b.table, token, k) : embedded[k];
}

void sl_cu_begin_run(const sl_cu_queue *queue, const sl_cu_begin *b)
{
    enum { WORDS_EACH = 2 * BEGIN_THREADS, MOST_COPIERS = 64 };
    uint32_t copiers = div_up(b->n_words, WORDS_EACH);
    copiers = copiers < MOST_COPIERS ? copiers : MOST_COPIERS;
    begin_kernel<<<b->n_rows + copiers, BEGIN_THREADS, 0, queue->stream>>>(*b);
}

/* ---- the end ---- */

enum {
    GROUP = 16,          /* logits that are looked at together */
    GROUP_THREADS = 256, /* four logits each */
    LIST_THREADS = 1024,
    LIST_WARPS = LIST_THREADS / WARP,
    GROUPS_HELD = 16,  /* of a thread, in registers */
    MOST_LISTED = 2048 /* tokens at or above the limit */
};

/* The upper half of a key: ascending order is descending value. */
static __device__ inline uint32_t rank_of(float logit)
{
    const uint32_t bits = sl_bits_of_float(logit + 0.0f);
    return bits >> 31 ? bits : ~(bits | 0x80000000u);
}

/* The best rank of each group of a row of logits. A row with a value that is not finite is noted.
 */
static __global__ void __launch_bounds__(GROUP_THREADS)
    group_kernel(const __grid_constant__ sl_cu_shortlists l)
{
    const uint32_t i = blockIdx.y, quad = blockIdx.x * GROUP_THREADS + threadIdx.x;
    wait_for_previous();
    const float *logits = l.logits + (size_t)i * l.vocab;
    uint32_t best = UINT32_MAX;
    bool fault = false;
    __align__(16) float value[4];
    if (l.vocab % 4 == 0 && 4 * quad < l.vocab) {
        *(float4 *)value = __ldcg((const float4 *)logits + quad);
    } else {
        for (uint32_t j = 0; j < 4; j++)
            value[j] = 4 * quad + j < l.vocab ? __ldcg(logits + 4 * quad + j) : 0.0f;
    }
#pragma unroll
    for (uint32_t j = 0; j < 4; j++) {
        if (4 * quad + j < l.vocab) {
            fault = fault || !finite(value[j]);
            best = min(best, rank_of(value[j]));
        }
    }
    best = min(best, __shfl_xor_sync(0xFFFFFFFFu, best, 1));
    best = min(best, __shfl_xor_sync(0xFFFFFFFFu, best, 2));
    if (quad % 4 == 0 && 4 * quad < l.vocab)
        l.groups[(size_t)i * div_up(l.vocab, GROUP) + quad / 4] = best;
    if (__syncthreads_or(fault) && threadIdx.x == 0)
        atomicCAS(&l.flags[l.rows[i]], 0u, l.mark);
}

/* Sorts one value a lane, ascending. */
static __device__ inline uint32_t sort_warp(uint32_t value)
{
    const uint32_t lane = threadIdx.x % WARP;
#pragma unroll
    for (uint32_t size = 2; size <= WARP; size *= 2)
#pragma unroll
        for (uint32_t step = size / 2; step > 0; step /= 2) {
            const uint32_t other = __shfl_xor_sync(0xFFFFFFFFu, value, (int)step);
            const bool ascending = (lane & size) == 0, lower = (lane & step) == 0;
            value = ascending == lower ? min(value, other) : max(value, other);
        }
    return value;
}

/* The best of a thread's groups, of which it holds the first ones in registers. */
typedef struct own_groups {
    uint32_t best[GROUPS_HELD];
} own_groups;

static __device__ inline own_groups load_groups(const uint32_t *groups, uint32_t n_groups)
{
    own_groups own;
#pragma unroll
    for (uint32_t j = 0; j < GROUPS_HELD; j++) {
        const uint32_t g = threadIdx.x + j * LIST_THREADS;
        own.best[j] = g < n_groups ? __ldcg(groups + g) : UINT32_MAX;
    }
    return own;
}

/* A rank that at least SL_CU_LISTED groups reach: every warp has a share of the groups, and every
 * lane the best of some; where each warp has q lanes that reach a rank, all of them together have
 * enough. UINT32_MAX when there are few groups. */
static __device__ inline uint32_t find_limit(const own_groups &own, const uint32_t *groups,
                                             uint32_t n_groups)
{
    __shared__ uint32_t of_warp[LIST_WARPS];
    const uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const uint32_t n_full = n_groups / WARP < LIST_WARPS ? n_groups / WARP : LIST_WARPS;
    if (n_full * WARP < SL_CU_LISTED)
        return UINT32_MAX;
    const uint32_t q = div_up(SL_CU_LISTED, n_full);
    uint32_t best = UINT32_MAX;
#pragma unroll
    for (uint32_t j = 0; j < GROUPS_HELD; j++)
        best = min(best, own.best[j]);
    for (uint32_t g = threadIdx.x + GROUPS_HELD * LIST_THREADS; g < n_groups; g += LIST_THREADS)
        best = min(best, __ldcg(groups + g));
    const uint32_t reached = __shfl_sync(0xFFFFFFFFu, sort_warp(best), (int)(q - 1));
    if (lane == 0)
        of_warp[warp] = warp < n_full ? reached : 0;
    __syncthreads();
    return __reduce_max_sync(0xFFFFFFFFu, of_warp[lane]);
}

typedef struct list_memory {
    uint32_t n_hits, n_tokens, ties;
    uint32_t hits[MOST_LISTED];
    __align__(16) uint32_t ranks[MOST_LISTED];
    uint32_t ids[MOST_LISTED];
    uint32_t taken[SL_CU_LISTED];
    uint64_t listed[SL_CU_LISTED];
} list_memory;

static __device__ __forceinline__ void note_hit(list_memory &m, uint32_t g)
{
    const uint32_t at = atomicAdd(&m.n_hits, 1u);
    if (at < MOST_LISTED)
        m.hits[at] = g;
}

/* A token's place is the number of those before it. Tokens of one rank, which are seldom, are told
 * apart by their ids. */
static __device__ inline void place_tokens(list_memory &m, uint32_t n)
{
    for (uint32_t c = threadIdx.x; c < n; c += LIST_THREADS) {
        const uint32_t rank = m.ranks[c], id = m.ids[c];
        uint32_t place = 0;
#pragma unroll 2
        for (uint32_t k = 0; k < n; k += 4) { /* beyond the end there are ranks that come last */
            const uint4 four = *(const uint4 *)(m.ranks + k);
            place += (four.x < rank) + (four.y < rank) + (four.z < rank) + (four.w < rank);
        }
        if (m.ties) {
            for (uint32_t k = 0; k < n; k++)
                place += m.ranks[k] == rank && m.ids[k] < id;
        }
        if (place < SL_CU_LISTED) {
            if (atomicAdd(&m.taken[place], 1u) > 0)
                m.ties = 1;
            m.listed[place] = (uint64_t)rank << 32 | id;
        }
    }
}

/* Block: one row. Where too many tokens are equal, or nearly so, there is no list. */
static __global__ void __launch_bounds__(LIST_THREADS)
    list_kernel(const __grid_constant__ sl_cu_shortlists l)
{
    __shared__ list_memory m;
    const uint32_t i = blockIdx.x, n_groups = div_up(l.vocab, GROUP);
    const float *logits = l.logits + (size_t)i * l.vocab;
    const uint32_t *groups = l.groups + (size_t)i * n_groups;
    if (threadIdx.x == 0)
        m.n_hits = m.n_tokens = m.ties = 0;
    if (threadIdx.x < SL_CU_LISTED)
        m.taken[threadIdx.x] = 0;
    wait_for_previous();
    const own_groups own = load_groups(groups, n_groups);
    const uint32_t limit = find_limit(own, groups, n_groups);
    __syncthreads();
#pragma unroll
    for (uint32_t j = 0; j < GROUPS_HELD; j++) {
        const uint32_t g = threadIdx.x + j * LIST_THREADS;
        if (g < n_groups && own.best[j] <= limit)
            note_hit(m, g);
    }
    for (uint32_t g = threadIdx.x + GROUPS_HELD * LIST_THREADS; g < n_groups; g += LIST_THREADS) {
        if (__ldcg(groups + g) <= limit)
            note_hit(m, g);
    }
    __syncthreads();
    const uint32_t n_candidates = (m.n_hits < MOST_LISTED ? m.n_hits : MOST_LISTED) * GROUP;
#pragma unroll 8
    for (uint32_t c = threadIdx.x; c < n_candidates; c += LIST_THREADS) {
        const uint32_t id = m.hits[c / GROUP] * GROUP + c % GROUP;
        const uint32_t rank = id < l.vocab ? rank_of(__ldcg(logits + id)) : UINT32_MAX;
        if (id < l.vocab && rank <= limit) {
            const uint32_t at = atomicAdd(&m.n_tokens, 1u);
            if (at < MOST_LISTED) {
                m.ranks[at] = rank;
                m.ids[at] = id;
            }
        }
    }
    __syncthreads();
    const uint32_t n = m.n_hits > MOST_LISTED || m.n_tokens > MOST_LISTED ? 0 : m.n_tokens;
    if (threadIdx.x < 3 && n + threadIdx.x < MOST_LISTED)
        m.ranks[n + threadIdx.x] = UINT32_MAX;
    __syncthreads();
    place_tokens(m, n);
    __syncthreads();
    if (m.ties) { /* once more, now that it is known */
        __syncthreads();
        place_tokens(m, n);
        __syncthreads();
    }
    if (threadIdx.x < SL_CU_LISTED)
        l.keys[(size_t)i * SL_CU_LISTED + threadIdx.x] = m.listed[threadIdx.x];
    if (threadIdx.x == 0)
        l.counts[i] = n < SL_CU_LISTED ? n : SL_CU_LISTED;
    for (uint32_t row = threadIdx.x; i == 0 && row < l.n_rows; row += LIST_THREADS)
        l.host_flags[row] = __ldcg(l.flags + row);
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence_system();
        ((volatile uint32_t *)l.done)[i] = 1;
    }
}

void sl_cu_make_shortlists(const sl_cu_queue *queue, const sl_cu_shortlists *l)
{
    const dim3 grid(div_up(l->vocab, 4 * GROUP_THREADS), l->n);
    launch(queue, group_kernel, grid, dim3(GROUP_THREADS), 0, *l);
    launch(queue, list_kernel, dim3(l->n), dim3(LIST_THREADS), 0, *l);
}

size_t sl_cu_group_bytes(uint32_t n, uint32_t vocab)
{
    return (size_t)n * div_up(vocab, GROUP) * sizeof(uint32_t);
}
