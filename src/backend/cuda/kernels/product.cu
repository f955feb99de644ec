/* Products of any number of rows with quantised weights, section 2. */
#include "backend/cuda/kernels/product.cuh"

enum { WARPS = 8 };

/* Block: 8 warps, one panel, up to 8 activation rows; of a stack one row, whose matrix may differ
 * from its neighbours'. Warp w takes segments w, w + 8, ... */
template <int KIND, bool HAS_MIN, bool STACKED>
static __global__ void __launch_bounds__(WARPS *WARP)
    product_kernel(const __grid_constant__ sl_cu_matrix w, const __grid_constant__ sl_cu_product p)
{
    enum { OUTPUTS = ROWS * TOKENS };
    __shared__ float parts[WARPS][ROWS][TOKENS + 1];
    const uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    const uint32_t first = STACKED ? blockIdx.y : 0;
    const uint32_t limit = STACKED ? first + 1 : p.n, n_blocks = p.q8.n_blocks;
    const uint32_t n_segments = div_up(n_blocks, SEGMENT_BLOCKS);
    const uint8_t *panel = w.data + blockIdx.x * w.panel_bytes;
    wait_for_previous();
    if (STACKED)
        panel += p.stack[first] * w.stack_bytes;

    /* Columns beyond the last are computed from the first and not stored. */
    const uint32_t b_row = activation_row(p, first + g < limit ? first + g : first);
    const uint32_t c_row[2] = {
        activation_row(p, first + 2 * t < limit ? first + 2 * t : first),
        activation_row(p, first + 2 * t + 1 < limit ? first + 2 * t + 1 : first)};
    const uint32_t output = threadIdx.x;
    float total = 0.0f;
    for (uint32_t base = 0; base < n_segments; base += WARPS) {
        float seg[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        const uint32_t begin = (base + warp) * SEGMENT_BLOCKS;
        const uint32_t end = begin + SEGMENT_BLOCKS < n_blocks ? begin + SEGMENT_BLOCKS : n_blocks;
#pragma unroll 4
        for (uint32_t b = begin; b < end; b++) {
            const uint4 a = expand_codes(KIND, load_raw(KIND, block_at(KIND, panel, b)));
            const block_scales scales = load_scales(KIND, panel, b);
            const int8_t *q = p.q8.q + ((size_t)b_row * n_blocks + b) * SL_Q8_BLOCK + 4 * t;
            const uint32_t codes[2] = {*(const uint32_t *)q, *(const uint32_t *)(q + 16)};
            const size_t at[2] = {(size_t)c_row[0] * n_blocks + b, (size_t)c_row[1] * n_blocks + b};
            const float da[2] = {p.q8.d[at[0]], p.q8.d[at[1]]};
            const int16_t *const sums[2] = {p.q8.sums + 2 * at[0], p.q8.sums + 2 * at[1]};
            add_block<KIND, HAS_MIN>(a, scales, codes, da, sums, seg);
        }
        __syncthreads();
#pragma unroll
        for (int j = 0; j < 4; j++)
            parts[warp][g + 8 * (j / 2)][2 * t + j % 2] = seg[j];
        __syncthreads();
        if (output < OUTPUTS) {
            for (uint32_t s = 0; s < WARPS && base + s < n_segments; s++)
                total = total + parts[s][output % ROWS][output / ROWS];
        }
    }
    const uint32_t row = blockIdx.x * ROWS + output % ROWS, column = first + output / ROWS;
    if (output < OUTPUTS && row < w.n_rows && column < limit)
        p.y[(size_t)column * p.y_stride + row] = total;
}

/* ---- many rows ---- */

/* A tile of 4 warps: PANELS panels of 16 outputs a warp, times 64 activation rows. Activations of
 * one segment at a time are in shared memory, the next segment's on their way; weights go from the
 * second cache straight into registers, a block ahead. The float work of a block (conversion,
 * product of the scales, sum) is what limits it, so everything else is arranged around it. */
enum { TILE_WARPS = 4, SEGMENT = SL_Q8_BLOCK * SEGMENT_BLOCKS, CODE_STRIDE = SEGMENT + 16 };

/* Of 64 or 32 rows. */
template <int TILE_ROWS> struct tile_stage {
    int8_t q[TILE_ROWS][CODE_STRIDE];
    float d[SEGMENT_BLOCKS][TILE_ROWS];
    uint32_t sums[SEGMENT_BLOCKS][TILE_ROWS]; /* two int16 */
};

/* Starts the copy of one segment of the tile's activations. Rows beyond the last are copies of it,
 * blocks beyond the row's end stay what they are and are not used. */
template <bool HAS_MIN, int TILE_ROWS>
static __device__ __forceinline__ void
copy_stage(tile_stage<TILE_ROWS> &stage, const sl_cu_product &p, uint32_t first, uint32_t segment)
{
    enum { THREADS = TILE_WARPS * WARP, PIECES = SEGMENT / 16 };
    const uint32_t n_blocks = p.q8.n_blocks, begin = segment * SEGMENT_BLOCKS;
    const uint32_t count = n_blocks - begin < SEGMENT_BLOCKS ? n_blocks - begin : SEGMENT_BLOCKS;
#pragma unroll 4
    for (uint32_t x = threadIdx.x; x < TILE_ROWS * PIECES; x += THREADS) {
        const uint32_t i = x / PIECES, piece = x % PIECES;
        const size_t row = activation_row(p, first + i < p.n ? first + i : p.n - 1);
        if (piece < 2 * count)
            copy_ahead(&stage.q[i][16 * piece],
                       p.q8.q + (row * n_blocks + begin) * SL_Q8_BLOCK + 16 * piece);
    }
#pragma unroll 4
    for (uint32_t x = threadIdx.x; x < TILE_ROWS * SEGMENT_BLOCKS; x += THREADS) {
        const uint32_t i = x / SEGMENT_BLOCKS, b = x % SEGMENT_BLOCKS;
        const size_t row = activation_row(p, first + i < p.n ? first + i : p.n - 1);
        if (b >= count)
            continue;
        const size_t at = row * n_blocks + begin + b;
        copy_word_ahead(&stage.d[b][i], p.q8.d + at);
        if (HAS_MIN)
            copy_word_ahead(&stage.sums[b][i], p.q8.sums + 2 * at);
    }
    end_of_copies();
}

/* One block of a panel, as a lane sees it. */
typedef struct block_weights {
    uint4 codes;
    block_scales scales;
} block_weights;

template <int KIND>
static __device__ __forceinline__ void load_block(const uint8_t *panel, uint32_t b,
                                                  block_weights *out)
{
    out->codes = load_raw(KIND, block_at(KIND, panel, b));
    out->scales = load_scales(KIND, panel, b);
}

template <int KIND, bool HAS_MIN, int PANELS, int TILE_ROWS>
static __global__ void __launch_bounds__(TILE_WARPS *WARP)
    tiled_kernel(const __grid_constant__ sl_cu_matrix w, const __grid_constant__ sl_cu_product p)
{
    enum { TILE_COLUMNS = TILE_ROWS / TOKENS };
    extern __shared__ uint4 raw[];
    tile_stage<TILE_ROWS> *stages = (tile_stage<TILE_ROWS> *)(void *)raw;
    const uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    const uint32_t first = blockIdx.y * TILE_ROWS, n_blocks = p.q8.n_blocks;
    const uint32_t n_segments = div_up(n_blocks, SEGMENT_BLOCKS), n_panels = div_up(w.n_rows, ROWS);
    const uint32_t first_panel = (blockIdx.x * TILE_WARPS + warp) * PANELS;
    const uint8_t *panel[PANELS];
#pragma unroll
    for (uint32_t i = 0; i < PANELS; i++) /* panels beyond the last are computed like it */
        panel[i] = w.data + (size_t)(first_panel + i < n_panels ? first_panel + i : n_panels - 1) *
                                w.panel_bytes;

    float total[PANELS][TILE_COLUMNS][4];
#pragma unroll
    for (int i = 0; i < PANELS; i++)
#pragma unroll
        for (int c = 0; c < TILE_COLUMNS; c++)
#pragma unroll
            for (int k = 0; k < 4; k++)
                total[i][c][k] = 0.0f;

    wait_for_previous();
    if (p.groups.n_rows > 0) {
        if (blockIdx.y >= *p.groups.n)
            return;
#pragma unroll
        for (int i = 0; i < PANELS; i++)
            panel[i] += p.groups.stack[blockIdx.y] * w.stack_bytes;
    }
    copy_stage<HAS_MIN>(stages[0], p, first, 0);
    block_weights weights[PANELS];
#pragma unroll
    for (int i = 0; i < PANELS; i++)
        load_block<KIND>(panel[i], 0, &weights[i]);
    for (uint32_t segment = 0; segment < n_segments; segment++) {
        const tile_stage<TILE_ROWS> &stage = stages[segment % 2];
        if (segment + 1 < n_segments) {
            copy_stage<HAS_MIN>(stages[(segment + 1) % 2], p, first, segment + 1);
            wait_for_copies<1>();
        } else {
            wait_for_copies<0>();
        }
        __syncthreads();
        float seg[PANELS][TILE_COLUMNS][4];
#pragma unroll
        for (int i = 0; i < PANELS; i++)
#pragma unroll
            for (int c = 0; c < TILE_COLUMNS; c++)
#pragma unroll
                for (int k = 0; k < 4; k++)
                    seg[i][c][k] = 0.0f;
        const uint32_t begin = segment * SEGMENT_BLOCKS;
        const uint32_t count =
            n_blocks - begin < SEGMENT_BLOCKS ? n_blocks - begin : SEGMENT_BLOCKS;
#pragma unroll 1
        for (uint32_t b = 0; b < count; b++) {
            block_weights next[PANELS];
            const uint32_t after = begin + b + 1 < n_blocks ? begin + b + 1 : begin + b;
#pragma unroll
            for (int i = 0; i < PANELS; i++)
                load_block<KIND>(panel[i], after, &next[i]);
            uint4 codes_of[PANELS];
#pragma unroll
            for (int i = 0; i < PANELS; i++)
                codes_of[i] = expand_codes(KIND, weights[i].codes);
#pragma unroll
            for (int c = 0; c < TILE_COLUMNS; c++) {
                const int8_t *q = &stage.q[c * TOKENS + g][b * SL_Q8_BLOCK + 4 * t];
                const uint32_t codes[2] = {*(const uint32_t *)q, *(const uint32_t *)(q + 16)};
                const float2 d = *(const float2 *)&stage.d[b][c * TOKENS + 2 * t];
                const float da[2] = {d.x, d.y};
                const int16_t *const sums[2] = {
                    (const int16_t *)&stage.sums[b][c * TOKENS + 2 * t],
                    (const int16_t *)&stage.sums[b][c * TOKENS + 2 * t + 1]};
#pragma unroll
                for (int i = 0; i < PANELS; i++)
                    add_block<KIND, HAS_MIN>(codes_of[i], weights[i].scales, codes, da, sums,
                                             seg[i][c]);
            }
#pragma unroll
            for (int i = 0; i < PANELS; i++)
                weights[i] = next[i];
        }
#pragma unroll
        for (int i = 0; i < PANELS; i++)
#pragma unroll
            for (int c = 0; c < TILE_COLUMNS; c++)
#pragma unroll
                for (int k = 0; k < 4; k++)
                    total[i][c][k] = total[i][c][k] + seg[i][c][k];
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < PANELS; i++)
#pragma unroll
        for (int c = 0; c < TILE_COLUMNS; c++)
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const uint32_t row = (first_panel + i) * ROWS + g + 8 * (k / 2);
                const uint32_t column = first + c * TOKENS + 2 * t + k % 2;
                if (row < w.n_rows && column < p.n)
                    p.y[(size_t)column * p.y_stride + row] = total[i][c][k];
            }
}

template <int KIND, bool HAS_MIN, int PANELS, int TILE_ROWS>
static void launch_tiled(const sl_cu_queue *queue, const sl_cu_matrix *w, const sl_cu_product *p)
{
    const size_t shared = 2 * sizeof(tile_stage<TILE_ROWS>);
    cudaFuncSetAttribute(tiled_kernel<KIND, HAS_MIN, PANELS, TILE_ROWS>,
                         cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
    dim3 grid(div_up(w->n_rows, PANELS * TILE_WARPS * ROWS), div_up(p->n, TILE_ROWS));
    launch(queue, tiled_kernel<KIND, HAS_MIN, PANELS, TILE_ROWS>, grid, dim3(TILE_WARPS * WARP),
           shared, *w, *p);
}

/* From so many tiles of two panels a warp on, there are enough of them for the largest devices. */
enum { MANY_TILES = 400 };

struct product_launch {
    const sl_cu_queue *queue;
    const sl_cu_matrix *w;
    const sl_cu_product *p;

    template <int KIND, bool HAS_MIN> void run(void) const
    {
        enum { WIDE = 64, NARROW = 32, PANELS = has_halves(KIND) ? 1 : 2 };
        const uint32_t panels = div_up(w->n_rows, ROWS), threads = WARPS * WARP;
        const uint32_t tiles = div_up(panels, 2 * TILE_WARPS) * div_up(p->n, WIDE);
        if (p->groups.n_rows == NARROW)
            launch_tiled<KIND, HAS_MIN, PANELS, NARROW>(queue, w, p);
        else if (p->groups.n_rows == WIDE)
            launch_tiled<KIND, HAS_MIN, PANELS, WIDE>(queue, w, p);
        else if (p->stack)
            launch(queue, product_kernel<KIND, HAS_MIN, true>, dim3(panels, p->n), dim3(threads), 0,
                   *w, *p);
        else if (p->n <= TOKENS)
            launch(queue, product_kernel<KIND, HAS_MIN, false>, dim3(panels, 1), dim3(threads), 0,
                   *w, *p);
        else if (tiles >= MANY_TILES)
            launch_tiled<KIND, HAS_MIN, PANELS, WIDE>(queue, w, p);
        else
            launch_tiled<KIND, HAS_MIN, 1, WIDE>(queue, w, p);
    }
};

void sl_cu_matrix_product(const sl_cu_queue *queue, const sl_cu_matrix *w, const sl_cu_product *p)
{
    if (sl_cu_is_quantised(w))
        for_form(w, product_launch{queue, w, p});
    else
        sl_cu_float_product(queue, w, p);
}
