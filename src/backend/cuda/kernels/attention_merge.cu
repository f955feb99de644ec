/* Attention whose key blocks were computed apart: a row's blocks are added up in order. */
#include "backend/cuda/kernels/attention.cuh"

static __device__ __forceinline__ const float *
parts_of(const sl_cu_attention &at, const sl_cu_segment &segment, uint32_t row, uint32_t head)
{
    const size_t index = (size_t)(segment.first_split + row) * at.n_heads + head;
    return at.scratch + index * at.n_key_blocks * PART;
}

/* ---- few key blocks ---- */

template <uint32_t AHEAD>
static __device__ __forceinline__ void load_parts(float value[AHEAD], const float *parts,
                                                  uint32_t first, uint32_t n)
{
#pragma unroll
    for (uint32_t k = 0; k < AHEAD; k++)
        value[k] = first + k < n ? parts[(size_t)(first + k) * PART + PART_HEAD] : 0.0f;
}

/* Block: one row of a segment, one query head; a thread has a dimension, a warp what the quantised
 * result calls a block. AHEAD key blocks at once, one a lane for what is the row's. */
template <uint32_t AHEAD>
static __global__ void __launch_bounds__(DIM)
    merge_kernel(const __grid_constant__ sl_cu_rows rows,
                 const __grid_constant__ sl_cu_attention at)
{
    const sl_cu_segment &segment = rows.segments[blockIdx.z];
    const uint32_t head = blockIdx.x, d = threadIdx.x, lane = d % WARP;
    const bool is_used = segment.n_rows <= SL_CU_SPLIT_ROWS && blockIdx.y < segment.n_rows;
    const size_t row = segment.first_row + blockIdx.y;
    const uint32_t n = (segment.pos + blockIdx.y) / BLOCK + 1;
    const float *parts = parts_of(at, segment, blockIdx.y, head);
    wait_for_previous();
    if (!is_used)
        return;
    const float gate = gate_of(at, row, head, d), scale = parts[2];
    float m = lowest(), l = 0.0f, o = 0.0f, value[AHEAD];
    load_parts<AHEAD>(value, parts + d, 0, n);
    for (uint32_t first = 0; first < n; first += AHEAD) {
        const bool is_block = lane < AHEAD && first + lane < n;
        const float *own = parts + (size_t)(first + lane) * PART;
        const float m_b = is_block ? own[0] : lowest(), l_b = is_block ? own[1] : 0.0f;
        float next[AHEAD];
        load_parts<AHEAD>(next, parts + d, first + AHEAD, n);
        float larger = m_b; /* of this block and all before it */
#pragma unroll
        for (uint32_t back = 1; back < AHEAD; back *= 2) {
            const float other = __shfl_up_sync(0xFFFFFFFFu, larger, back);
            larger = lane >= back ? fmaxf(larger, other) : larger;
        }
        larger = fmaxf(larger, m);
        const float other = __shfl_up_sync(0xFFFFFFFFu, larger, 1);
        const float x = weight_of(lane == 0 ? m : other, larger, scale);
        const float y = weight_of(m_b, larger, scale);
#pragma unroll
        for (uint32_t k = 0; k < AHEAD; k++) {
            if (first + k >= n)
                break;
            const float x_k = __shfl_sync(0xFFFFFFFFu, x, k), y_k = __shfl_sync(0xFFFFFFFFu, y, k);
            l = merged(l, x_k, __shfl_sync(0xFFFFFFFFu, l_b, k), y_k);
            o = merged(o, x_k, value[k], y_k);
        }
        m = __shfl_sync(0xFFFFFFFFu, larger, AHEAD - 1);
#pragma unroll
        for (uint32_t k = 0; k < AHEAD; k++)
            value[k] = next[k];
    }
    write_result(at, row, head, d, o * (1.0f / l), gate);
}

/* ---- many key blocks ---- */

enum { MANY = 256, SLICES = DIM / WARP };

/* Block: one row, one query head, 32 dimensions; up to 256 key blocks at once, one a thread for
 * what is the row's. Only the sums themselves, of the first two warps, go one by one. */
static __global__ void __launch_bounds__(MANY)
    merge_many_kernel(const __grid_constant__ sl_cu_rows rows,
                      const __grid_constant__ sl_cu_attention at)
{
    enum { PIECES = WARP * sizeof(float) / 16, ROWS = MANY / PIECES };
    __shared__ __align__(16) float values[MANY][WARP], x_of[MANY];
    __shared__ float y_of[MANY], l_of[MANY], reach[MANY / WARP], sum;
    const sl_cu_segment &segment = rows.segments[blockIdx.z];
    const uint32_t head = blockIdx.x / SLICES, slice = blockIdx.x % SLICES;
    const uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, d = slice * WARP + lane;
    const bool is_used = segment.n_rows <= SL_CU_SPLIT_ROWS && blockIdx.y < segment.n_rows;
    const size_t row = segment.first_row + blockIdx.y;
    const uint32_t n = (segment.pos + blockIdx.y) / BLOCK + 1;
    const float *parts = parts_of(at, segment, blockIdx.y, head);
    wait_for_previous();
    if (!is_used)
        return;
    const uint32_t own = threadIdx.x / PIECES, piece = threadIdx.x % PIECES * 4;
    const float gate = gate_of(at, row, head, d), scale = parts[2];
    float m = lowest(), l = 0.0f, o = 0.0f;
    for (uint32_t first = 0; first < n; first += MANY) {
        const uint32_t count = n - first < MANY ? n - first : MANY;
        const float *from = parts + (size_t)first * PART;
#pragma unroll
        for (uint32_t k = own; k < MANY; k += ROWS) {
            if (k < count)
                copy_ahead(&values[k][piece], from + k * PART + PART_HEAD + slice * WARP + piece);
        }
        end_of_copies();
        float2 block = make_float2(lowest(), 0.0f); /* m and l */
        if (threadIdx.x < count)
            block = *(const float2 *)(const void *)(from + threadIdx.x * PART);
        float larger = block.x; /* of this block and all before it */
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
        for (uint32_t k = 0; k < MANY / WARP; k++) {
            m = fmaxf(m, reach[k]);
            before = k < warp ? m : before;
        }
        larger = fmaxf(larger, before);
        const float other = __shfl_up_sync(0xFFFFFFFFu, larger, 1);
        const float y = weight_of(block.x, larger, scale);
        x_of[threadIdx.x] = weight_of(lane == 0 ? before : other, larger, scale);
        y_of[threadIdx.x] = y;
        l_of[threadIdx.x] = block.y * y;
        wait_for_copies<0>();
        __syncthreads();
#pragma unroll
        for (uint32_t k = own; k < MANY; k += ROWS) {
            if (k >= count)
                break;
            float4 *v = (float4 *)(void *)&values[k][piece];
            const float f = y_of[k];
            *v = make_float4(v->x * f, v->y * f, v->z * f, v->w * f);
        }
        __syncthreads();
        if (warp == 0) {
#pragma unroll 16
            for (uint32_t k = 0; k < count; k++)
                o = fmaf(o, x_of[k], values[k][lane]);
        } else if (warp == 1) {
#pragma unroll 16
            for (uint32_t k = 0; k < count; k++)
                l = fmaf(l, x_of[k], l_of[k]);
        }
        __syncthreads();
    }
    if (threadIdx.x == WARP)
        sum = l;
    __syncthreads();
    if (warp == 0)
        write_result(at, row, head, d, o * (1.0f / sum), gate);
}

/* ---- launch ---- */

void sl_cu_merge_blocks(const sl_cu_queue *queue, const sl_cu_rows *rows, const sl_cu_attention *at)
{
    enum { FEW = 4, SOME = 32 };
    const uint32_t n = at->n_key_blocks;
    const dim3 grid(at->n_heads * (n > SOME ? SLICES : 1), rows->most_split_rows, rows->n_segments);
    if (n > SOME)
        launch(queue, merge_many_kernel, grid, dim3(MANY), 0, *rows, *at);
    else if (n > FEW)
        launch(queue, merge_kernel<SOME>, grid, dim3(DIM), 0, *rows, *at);
    else
        launch(queue, merge_kernel<FEW>, grid, dim3(DIM), 0, *rows, *at);
}
