/* Products of up to 64 rows with one large matrix, the head: a warp takes whole panels, one after
 * the other, and has always eight blocks of weights on their way. The numbers are those of the
 * other products. */
#include "backend/cuda/kernels/step.cuh"

/* Registers limit the threads of a block, which is alone on its multiprocessor. */
template <int TILES> struct head_size {
    enum { THREADS = TILES <= 2 ? 512 : 384 };
};

template <int TILES>
static __device__ __forceinline__ void store_panel(const sl_cu_step &s, uint32_t panel,
                                                   const float total[TILES][4])
{
    const uint32_t lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    const sl_cu_target &target = s.targets[0];
#pragma unroll
    for (int c = 0; c < TILES; c++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const uint32_t column = c * TOKENS + 2 * t + j % 2,
                           row = panel * ROWS + g + 8 * (j / 2);
            if (column < s.n_rows && row < target.w.n_rows)
                target.y[(size_t)column * target.y_stride + row] = total[c][j];
        }
}

template <int TILES>
static __global__ void __launch_bounds__(head_size<TILES>::THREADS, 1)
    head_kernel(const __grid_constant__ sl_cu_step s)
{
    enum { COLUMNS = TILES * TOKENS };
    extern __shared__ uint4 raw[];
    const uint32_t n_blocks = s.n_cols / SL_Q8_BLOCK;
    const uint32_t warp = threadIdx.x / WARP, n_warps = blockDim.x / WARP;
    const uint32_t n_panels = div_up(s.targets[0].w.n_rows, ROWS);
    const uint32_t first = blockIdx.x * n_warps + warp, stride = gridDim.x * n_warps;
    const size_t panel_bytes = s.targets[0].w.panel_bytes;
    const activations a = activations_at(raw, n_blocks, COLUMNS);

    /* Weights in the order of their use: block after block, panel after panel. */
    const uint8_t *panel = s.targets[0].w.data + (first < n_panels ? first : 0) * panel_bytes;
    block_codes ring[SEGMENT_BLOCKS];
#pragma unroll
    for (uint32_t i = 0; i < SEGMENT_BLOCKS; i++)
        ring[i] = load_codes(panel + i * SL_CU_PLAIN_BYTES, true);
    float *room = (float *)((char *)raw + activation_bytes(n_blocks, COLUMNS));
    if (s.norm)
        norm_ahead(s, room);
    clear_absent<COLUMNS>(a, s.n_rows);
    wait_for_previous();
    if (s.norm)
        norm_input<COLUMNS>(s, a, room);
    else
        copy_input<COLUMNS, false>(s.q8, 0, s.n_rows, a);

    for (uint32_t p = first; p < n_panels; p += stride) {
        const uint8_t *after = p + stride < n_panels ? panel + stride * panel_bytes : panel;
        float total[TILES][4];
#pragma unroll
        for (int c = 0; c < TILES; c++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                total[c][j] = 0.0f;
#pragma unroll 1
        for (uint32_t begin = 0; begin < n_blocks; begin += SEGMENT_BLOCKS) {
            const uint8_t *next = begin + SEGMENT_BLOCKS < n_blocks
                                      ? panel + (begin + SEGMENT_BLOCKS) * SL_CU_PLAIN_BYTES
                                      : after;
            float seg[TILES][4];
#pragma unroll
            for (int c = 0; c < TILES; c++)
#pragma unroll
                for (int j = 0; j < 4; j++)
                    seg[c][j] = 0.0f;
#pragma unroll
            for (uint32_t i = 0; i < SEGMENT_BLOCKS; i++) {
                const block_codes now = ring[i];
                ring[i] = load_codes(next + i * SL_CU_PLAIN_BYTES, true);
                add_columns<SL_CU_PLAIN, false, TILES>(now.codes, plain_scales(now.d), a, begin + i,
                                                       seg);
            }
#pragma unroll
            for (int c = 0; c < TILES; c++)
#pragma unroll
                for (int j = 0; j < 4; j++)
                    total[c][j] = total[c][j] + seg[c][j];
        }
        store_panel<TILES>(s, p, total);
        panel = after;
    }
}

static uint32_t columns_of(const sl_cu_step *s)
{
    uint32_t columns = TOKENS;
    while (columns < s->n_rows)
        columns *= 2;
    return columns;
}

static size_t shared_bytes(const sl_cu_step *s)
{
    return activation_bytes(s->n_cols / SL_Q8_BLOCK, columns_of(s)) + norm_bytes(*s);
}

int sl_cu_head_fits(const sl_cu_step *s)
{
    enum { SEGMENT_COLS = SEGMENT_BLOCKS * SL_Q8_BLOCK };
    return s->n_targets == 1 && s->targets[0].w.kind == SL_CU_PLAIN && !s->swiglu && !s->add &&
           s->n_rows <= SL_CU_STEP_ROWS && s->n_cols % SEGMENT_COLS == 0 &&
           fits_block(shared_bytes(s)) && (!s->norm || norm_fits(s, head_size<1>::THREADS));
}

template <int TILES> static void launch_head(const sl_cu_queue *queue, const sl_cu_step *s)
{
    const size_t shared = shared_bytes(s);
    cudaFuncSetAttribute(head_kernel<TILES>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                         (int)shared);
    launch(queue, head_kernel<TILES>, dim3((uint32_t)queue->n_multiprocessors),
           dim3(head_size<TILES>::THREADS), shared, *s);
}

void sl_cu_run_head(const sl_cu_queue *queue, const sl_cu_step *s)
{
    switch (columns_of(s) / TOKENS) {
    case 1:
        launch_head<1>(queue, s);
        return;
    case 2:
        launch_head<2>(queue, s);
        return;
    case 4:
        launch_head<4>(queue, s);
        return;
    default:
        launch_head<8>(queue, s);
        return;
    }
}
