/* Attention whose key blocks were computed apart: a row's blocks are added up in order. */
#include "backend/cuda/kernels/attention.cuh"

static __device__ __forceinline__ bool is_apart(const sl_cu_attention &at,
                                                const sl_cu_segment &segment, uint32_t row)
{
    const bool is_few = segment.n_rows <= SL_CU_SPLIT_ROWS;
    return is_few != (at.tiles_apart != 0) && row < segment.n_rows;
}

/* ---- few key blocks ---- */

/* Block: one row of a segment, one query head; a thread has a dimension, a warp what the quantised
 * result calls a block. Up to MOST key blocks, all that there are, one a lane for what is the
 * row's.
 */
template <uint32_t MOST>
static __global__ void __launch_bounds__(DIM)
    merge_kernel(const __grid_constant__ sl_cu_rows rows,
                 const __grid_constant__ sl_cu_attention at)
{
    const sl_cu_segment &segment = rows.segments[blockIdx.z];
    const uint32_t head = blockIdx.x, d = threadIdx.x, lane = d % WARP;
    const bool is_used = is_apart(at, segment, blockIdx.y);
    const size_t row = segment.first_row + blockIdx.y;
    const uint32_t n = (segment.pos + blockIdx.y) / BLOCK + 1;
    const float *parts = parts_of(at, segment, blockIdx.y, head);
    wait_for_previous();
    if (!is_used)
        return;
    const float gate = gate_of(at, row, head, d), scale = parts[2];
    float2 block = make_float2(lowest(), 0.0f); /* m and l */
    if (lane < n)
        block = *(const float2 *)(const void *)(parts + lane * PART);
    float value[MOST];
#pragma unroll
    for (uint32_t k = 0; k < MOST; k++)
        value[k] = k < n ? parts[k * PART + PART_HEAD + d] : 0.0f;
    float larger = block.x; /* of this block and all before it */
#pragma unroll
    for (uint32_t back = 1; back < MOST; back *= 2) {
        const float other = __shfl_up_sync(0xFFFFFFFFu, larger, back);
        larger = lane >= back ? fmaxf(larger, other) : larger;
    }
    const float other = __shfl_up_sync(0xFFFFFFFFu, larger, 1);
    const float x = weight_of(lane == 0 ? lowest() : other, larger, scale);
    const float y = weight_of(block.x, larger, scale), l_y = weighed(block.y, y);
    float l = 0.0f, o = 0.0f;
#pragma unroll
    for (uint32_t k = 0; k < MOST; k++) {
        if (k >= n)
            break;
        const float x_k = __shfl_sync(0xFFFFFFFFu, x, k);
        l = merged(l, x_k, __shfl_sync(0xFFFFFFFFu, l_y, k));
        o = merged(o, x_k, weighed(value[k], __shfl_sync(0xFFFFFFFFu, y, k)));
    }
    write_result(at, row, head, d, o * (1.0f / l), gate);
}

/* ---- many key blocks ---- */

enum { SLICES = DIM / WARP };

/* For each block, its weight y against the largest score so far, and the weight x that what was
 * before it keeps; a thread a block. reach: of the warps. m: of all blocks before, then of all. */
template <uint32_t N>
static __device__ __forceinline__ float2 weigh_block(float *reach, float &m, float m_b, float scale)
{
    const uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    float larger = m_b; /* of this block and all before it */
#pragma unroll
    for (uint32_t back = 1; back < WARP; back *= 2) {
        const float other = __shfl_up_sync(0xFFFFFFFFu, larger, back);
        larger = lane >= back ? fmaxf(larger, other) : larger;
    }
    if (lane == WARP - 1)
        reach[warp] = larger;
    __syncthreads();
    float before = m;
#pragma unroll
    for (uint32_t k = 0; k < N / WARP; k++) {
        m = fmaxf(m, reach[k]);
        before = k < warp ? m : before;
    }
    larger = fmaxf(larger, before);
    const float other = __shfl_up_sync(0xFFFFFFFFu, larger, 1);
    return make_float2(weight_of(lane == 0 ? before : other, larger, scale),
                       weight_of(m_b, larger, scale));
}

/* Block: one row, one query head, 32 dimensions; N key blocks at once, a thread each. Only the
 * sums themselves go one by one, in the first warp and the last. Sums go on from those of the parts
 * before, and on to those after: in two places in turn, since some blocks of threads may still read
 * the one while others write. */
template <uint32_t N>
static __global__ void __launch_bounds__(N)
    merge_many_kernel(const __grid_constant__ sl_cu_rows rows,
                      const __grid_constant__ sl_cu_attention at)
{
    enum { PIECES = WARP * sizeof(float) / 16, ROWS = N / PIECES };
    __shared__ __align__(16) float values[N][WARP], x_of[N], y_of[N], l_of[N];
    __shared__ float reach[N / WARP], sum;
    const sl_cu_segment &segment = rows.segments[blockIdx.z];
    const uint32_t head = blockIdx.x / SLICES, slice = blockIdx.x % SLICES;
    const uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, d = slice * WARP + lane;
    const bool is_used = is_apart(at, segment, blockIdx.y);
    const size_t row = segment.first_row + blockIdx.y;
    const uint32_t n_all = (segment.pos + blockIdx.y) / BLOCK + 1;
    float *parts = parts_of(at, segment, blockIdx.y, head);
    wait_for_previous();
    if (!is_used || n_all <= at.first_part)
        return;
    const uint32_t turn = at.first_part / at.n_parts % 2;
    const float *const before = parts - (1 + turn) * PART;
    float *const after = parts - (2 - turn) * PART;
    const uint32_t n_left = n_all - at.first_part, n = n_left < at.n_parts ? n_left : at.n_parts;
    const uint32_t own = threadIdx.x / PIECES, piece = threadIdx.x % PIECES * 4;
    const float gate = gate_of(at, row, head, d), scale = parts[2];
    float m = lowest(), l = 0.0f, o = 0.0f;
    if (at.first_part > 0) {
        m = before[0];
        l = before[1];
        o = before[PART_HEAD + d];
    }
    for (uint32_t first = 0; first < n; first += N) {
        const uint32_t count = n - first < N ? n - first : N;
        const float *from = parts + (size_t)first * PART;
#pragma unroll
        for (uint32_t k = own; k < N; k += ROWS) {
            if (k < count)
                copy_ahead(&values[k][piece], from + k * PART + PART_HEAD + slice * WARP + piece);
        }
        end_of_copies();
        float2 block = make_float2(lowest(), 0.0f); /* m and l */
        if (threadIdx.x < count)
            block = *(const float2 *)(const void *)(from + threadIdx.x * PART);
        const float2 weight = weigh_block<N>(reach, m, block.x, scale);
        x_of[threadIdx.x] = weight.x;
        y_of[threadIdx.x] = weight.y;
        l_of[threadIdx.x] = weighed(block.y, weight.y);
        wait_for_copies<0>();
        __syncthreads();
#pragma unroll
        for (uint32_t k = own; k < N; k += ROWS) {
            if (k >= count)
                break;
            float4 *v = (float4 *)(void *)&values[k][piece];
            const float y = y_of[k];
            *v =
                make_float4(weighed(v->x, y), weighed(v->y, y), weighed(v->z, y), weighed(v->w, y));
        }
        __syncthreads();
        if (warp == 0) {
#pragma unroll 16
            for (uint32_t k = 0; k < count; k++)
                o = merged(o, x_of[k], values[k][lane]);
        }
        if (warp == N / WARP - 1) {
#pragma unroll 16
            for (uint32_t k = 0; k < count; k++)
                l = merged(l, x_of[k], l_of[k]);
        }
        __syncthreads();
    }
    if (threadIdx.x == N - 1)
        sum = l;
    __syncthreads();
    if (warp > 0)
        return;
    if (n == n_left) {
        write_result(at, row, head, d, o * (1.0f / sum), gate);
        return;
    }
    after[PART_HEAD + d] = o;
    if (d == 0) {
        after[0] = m;
        after[1] = sum;
    }
}

/* ---- launch ---- */

void sl_cu_merge_blocks(const sl_cu_queue *queue, const sl_cu_rows *rows, const sl_cu_attention *at)
{
    enum { FEW = 4, SOME = 32, MANY = 64, MOST = 256 };
    const uint32_t n = at->n_key_blocks;
    const bool are_many = n > SOME || n > at->n_parts;
    const uint32_t most_rows = at->tiles_apart ? rows->most_rows : rows->most_split_rows;
    const dim3 grid(at->n_heads * (are_many ? SLICES : 1), most_rows, rows->n_segments);
    const uint64_t n_blocks = (uint64_t)grid.x * grid.y * grid.z;
    if (are_many && n_blocks <= 2 * (uint64_t)queue->n_multiprocessors) /* latency is what counts */
        launch(queue, merge_many_kernel<MOST>, grid, dim3(MOST), 0, *rows, *at);
    else if (are_many)
        launch(queue, merge_many_kernel<MANY>, grid, dim3(MANY), 0, *rows, *at);
    else if (n > FEW)
        launch(queue, merge_kernel<SOME>, grid, dim3(DIM), 0, *rows, *at);
    else
        launch(queue, merge_kernel<FEW>, grid, dim3(DIM), 0, *rows, *at);
}
