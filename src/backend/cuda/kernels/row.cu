/* Products of one row with plain weights, with what lies around them: step.cu for decoding one
 * sequence, with the same bits. A warp has one segment of one panel, whose weights are in its
 * registers before the kernel waits for the one before it. From there on only the row's own work is
 * left, and as few instructions as possible: each of them costs every kernel of a step. */
#include "backend/cuda/kernels/product.cuh"

enum {
    MOST_WARPS = 16,
    MOST_THREADS = MOST_WARPS * WARP,
    MOST_NORM = 2 * MOST_THREADS, /* inputs that are normed: two a thread */
    X_STRIDE = MOST_NORM / SUM_LANES + 4,
    SEGMENT_COLS = SEGMENT_BLOCKS * SL_Q8_BLOCK,
    SWIGLU_PANELS = 4
};

typedef enum row_input { NORM, CODES } row_input;
typedef enum row_output { PLAIN_OUT, ADD, SWIGLU } row_output;

/* What a kernel needs of a step: little, as every 64 bytes of it are fetched when first read. */
typedef struct row_step {
    const uint8_t *data[SL_CU_STEP_TARGETS];
    float *y[SL_CU_STEP_TARGETS];
    uint32_t first_panel[SL_CU_STEP_TARGETS], n_rows[SL_CU_STEP_TARGETS];
    uint32_t n_cols, n_segments, n_panels; /* panels of a block of threads */
    float eps, per_col;                    /* 1 / n_cols where that is exact, else 0 */
    int is_first; /* of a run: the next kernel may not start before this one has waited */
    const float *x, *norm;
    const int8_t *q;
    const float *d;
    uint32_t *flags, mark;
    float *act;
    sl_cu_q8 act_q8;
} row_step;

/* A segment of the row: codes in the order of the products' right operand, see code_at. */
typedef struct segment_input {
    uint8_t q[SEGMENT_COLS];
    float d[SEGMENT_BLOCKS];
} segment_input;

/* Codes k .. k + 3: a lane of a quad has of two blocks 16 bytes in a row. */
static __device__ __forceinline__ uint32_t code_at(uint32_t k)
{
    const uint32_t b = k / SL_Q8_BLOCK, group = k % SL_Q8_BLOCK / 4;
    return b / 2 * (2 * SL_Q8_BLOCK) + group % 4 * 16 + b % 2 * 8 + group / 4 * 4 + k % 4;
}

/* ---- weights ---- */

typedef struct own_segment {
    uint4 codes[SEGMENT_BLOCKS];
    uint32_t d[SEGMENT_BLOCKS]; /* two halves, of rows g and g + 8 */
} own_segment;

/* Where panel `panel` of all targets lies; NULL beyond the last. Targets are looked up by constant
 * numbers: arguments of a kernel are slow through a pointer. */
static __device__ __forceinline__ const uint8_t *find_panel(const row_step &s, uint32_t panel)
{
    const uint32_t panel_bytes = s.n_cols / SL_Q8_BLOCK * SL_CU_PLAIN_BYTES;
    const uint8_t *data = NULL;
#pragma unroll
    for (uint32_t k = 0; k < SL_CU_STEP_TARGETS; k++) {
        if (panel >= s.first_panel[k] && panel - s.first_panel[k] < div_up(s.n_rows[k], ROWS))
            data = s.data[k] + (size_t)(panel - s.first_panel[k]) * panel_bytes;
    }
    return data;
}

static __device__ __forceinline__ void load_segment(own_segment &w, const uint8_t *panel,
                                                    uint32_t segment, uint32_t n_blocks)
{
    const uint32_t lane = threadIdx.x % WARP, g = lane / 4;
#pragma unroll
    for (uint32_t i = 0; i < SEGMENT_BLOCKS; i++) {
        const uint32_t b = segment * SEGMENT_BLOCKS + i;
        const bool present = b < n_blocks;
        const uint8_t *block = panel + (present ? b : 0) * SL_CU_PLAIN_BYTES;
        const uint16_t *d = (const uint16_t *)(block + CODE_BYTES);
        w.codes[i] = __ldcs((const uint4 *)(block + lane * 16));
        w.d[i] = present ? __ldcs(d + g) | (uint32_t)__ldcs(d + g + 8) << 16 : 0;
    }
}

/* ---- input ---- */

typedef struct norm_memory {
    float x[SUM_LANES * X_STRIDE]; /* the sum of squares takes every 16th */
    float factor;
} norm_memory;

/* Sum of squares by a warp, as sum_squares_of: n is a multiple of 256. */
static __device__ __forceinline__ float sum_squares_in(const norm_memory &m, uint32_t n)
{
    enum { BATCH = 4 };
    const float4 *at = (const float4 *)(m.x + threadIdx.x % SUM_LANES * X_STRIDE);
    float sum = 0.0f;
#pragma unroll 4
    for (uint32_t j = 0; j < n / (SUM_LANES * 4 * BATCH); j++, at += BATCH) {
        float4 four[BATCH];
#pragma unroll
        for (uint32_t i = 0; i < BATCH; i++)
            four[i] = at[i];
#pragma unroll
        for (uint32_t i = 0; i < BATCH; i++) {
            sum = fmaf(four[i].x, four[i].x, sum);
            sum = fmaf(four[i].y, four[i].y, sum);
            sum = fmaf(four[i].z, four[i].z, sum);
            sum = fmaf(four[i].w, four[i].w, sum);
        }
    }
    return sum_tree(sum);
}

/* Two neighbours a lane, 16 lanes a block: as quantise_block. k is the first one's place. */
static __device__ __forceinline__ void quantise_pair(segment_input *row, float a, float b,
                                                     uint32_t k)
{
    uint32_t bits = max(sl_bits_of_float(a) & 0x7FFFFFFFu, sl_bits_of_float(b) & 0x7FFFFFFFu);
#pragma unroll
    for (int far = 1; far < 16; far *= 2)
        bits = max(bits, __shfl_xor_sync(0xFFFFFFFFu, bits, far));
    uint32_t codes = 0;
    float scale = bits >= 0x7F800000u ? sl_float_of_bits(0x7FC00000u) : 0.0f;
    if (bits < 0x7F800000u && bits >= (uint32_t)(127 - 100) << 23) {
        const float largest = sl_float_of_bits(bits), inverse = 127.0f / largest;
        scale = largest / 127.0f;
        codes = (sl_bits_of_float(a * inverse + 0x1.8p23f) & 0xFFu) |
                (sl_bits_of_float(b * inverse + 0x1.8p23f) & 0xFFu) << 8;
    }
    segment_input &in = row[k / SEGMENT_COLS];
    *(uint16_t *)(in.q + code_at(k % SEGMENT_COLS)) = (uint16_t)codes;
    if (k % SL_Q8_BLOCK == 0)
        in.d[k % SEGMENT_COLS / SL_Q8_BLOCK] = scale;
}

/* The norm of x, rounded, by all threads. w: of the norm, for the thread's two inputs. */
static __device__ __forceinline__ void receive_norm(norm_memory &m, segment_input *row,
                                                    const row_step &s, float2 w)
{
    const uint32_t n = s.n_cols, k = 2 * threadIdx.x;
    float2 x = make_float2(0.0f, 0.0f);
    if (k < n) {
        x = __ldcg((const float2 *)(s.x + k));
        float *to = m.x + k % SUM_LANES * X_STRIDE + k / SUM_LANES;
        to[0] = x.x;
        to[X_STRIDE] = x.y;
    }
    __syncthreads();
    if (threadIdx.x < WARP) {
        const float sum = sum_squares_in(m, n);
        const float mean = s.per_col > 0.0f ? sum * s.per_col : sum / (float)n;
        if (threadIdx.x == 0)
            m.factor = 1.0f / sqrtf(mean + s.eps);
    }
    __syncthreads();
    const float r = m.factor;
    if (k < n) /* a whole warp is, or is not */
        quantise_pair(row, (x.x * r) * w.x, (x.y * r) * w.y, k);
    __syncthreads();
}

/* The warp's segment of a row that is rounded already, for itself alone. */
static __device__ __forceinline__ void receive_codes(segment_input &own, const row_step &s,
                                                     uint32_t segment)
{
    enum { PIECE = 16, PIECES = SEGMENT_COLS / PIECE };
    const uint32_t lane = threadIdx.x % WARP, n_blocks = s.n_cols / SL_Q8_BLOCK;
    const uint32_t first = segment * SEGMENT_BLOCKS;
    if (lane < PIECES) {
        uint4 four = make_uint4(0, 0, 0, 0);
        if (first + lane / 2 < n_blocks)
            four = __ldcg((const uint4 *)(s.q + segment * SEGMENT_COLS) + lane);
        uint8_t *to = own.q + code_at(PIECE * lane);
        *(uint32_t *)to = four.x;
        *(uint32_t *)(to + 16) = four.y;
        *(uint32_t *)(to + 32) = four.z;
        *(uint32_t *)(to + 48) = four.w;
    } else if (lane < PIECES + SEGMENT_BLOCKS) {
        const uint32_t b = lane - PIECES;
        own.d[b] = first + b < n_blocks ? __ldcg(s.d + first + b) : 0.0f;
    }
    __syncwarp();
}

/* ---- products ---- */

/* The warp's segment times the row, as add_plain in step.cuh: the instruction's other columns are
 * not looked at, so they may be the same row. */
static __device__ __forceinline__ void multiply_segment(const own_segment &w,
                                                        const segment_input &in, float *part)
{
    enum { SHIFTED_ZERO = 0x4B400000 };
    const uint32_t lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    const uint4 *q = (const uint4 *)in.q + t;
    float sum[2] = {0.0f, 0.0f};
#pragma unroll
    for (uint32_t i = 0; i < SEGMENT_BLOCKS; i += 2) {
        const uint4 row = q[2 * i];
        const float2 d = *(const float2 *)(in.d + i);
#pragma unroll
        for (uint32_t j = 0; j < 2; j++) {
            const uint4 &codes = w.codes[i + j];
            const uint32_t a[4] = {codes.x, codes.y, codes.z, codes.w};
            const uint32_t b[2] = {j == 0 ? row.x : row.z, j == 0 ? row.y : row.w};
            const float2 scale = __half22float2(*(const __half2 *)&w.d[i + j]);
            const float da = j == 0 ? d.x : d.y;
            int n[4] = {SHIFTED_ZERO, SHIFTED_ZERO, SHIFTED_ZERO, SHIFTED_ZERO};
            mma_k32(n, a, b);
            sum[0] = fmaf(scale.x * da, sl_float_of_bits((uint32_t)n[0]) - 0x1.8p23f, sum[0]);
            sum[1] = fmaf(scale.y * da, sl_float_of_bits((uint32_t)n[2]) - 0x1.8p23f, sum[1]);
        }
    }
    if (t == 0) {
        part[g] = sum[0];
        part[g + 8] = sum[1];
    }
}

/* Segments of one row of one panel, ascending. Absent ones add +0, which changes no sum that began
 * at +0. */
static __device__ __forceinline__ float sum_parts(const float *parts, uint32_t n_segments)
{
    enum { BATCH = 8 };
    float total = 0.0f;
    for (uint32_t base = 0; base < n_segments; base += BATCH) {
        float part[BATCH];
#pragma unroll
        for (uint32_t i = 0; i < BATCH; i++)
            part[i] = base + i < n_segments ? parts[(base + i) * ROWS] : 0.0f;
#pragma unroll
        for (uint32_t i = 0; i < BATCH; i++)
            total = total + part[i];
    }
    return total;
}

/* Where the thread's output goes; NULL: it has none. */
static __device__ __forceinline__ float *own_output(const row_step &s)
{
    if (threadIdx.x >= s.n_panels * ROWS)
        return NULL;
    const uint32_t panel = blockIdx.x * s.n_panels + threadIdx.x / ROWS;
    float *y = NULL;
#pragma unroll
    for (uint32_t k = 0; k < SL_CU_STEP_TARGETS; k++) {
        const uint32_t row = (panel - s.first_panel[k]) * ROWS + threadIdx.x % ROWS;
        if (panel >= s.first_panel[k] && row < s.n_rows[k])
            y = s.y[k] + row;
    }
    return y;
}

template <row_input INPUT, row_output OUTPUT>
static __global__ void __launch_bounds__(MOST_THREADS, 2)
    row_kernel(const __grid_constant__ row_step s)
{
    __shared__ __align__(16) segment_input row[MOST_WARPS];
    __shared__ __align__(16) norm_memory m;
    __shared__ float parts[MOST_WARPS * ROWS];
    if (!s.is_first)
        let_next_start(); /* as early as can be: its weights are to be on their way too */
    const uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const uint32_t panel = warp / s.n_segments, segment = warp - panel * s.n_segments;
    uint32_t n = blockIdx.x * s.n_panels + panel;
    bool present = panel < s.n_panels;
    if (OUTPUT == SWIGLU) { /* two panels of gate, two of up */
        n = 2 * blockIdx.x + panel % 2;
        present = present && n < s.first_panel[1];
        n += panel / 2 * s.first_panel[1];
    }
    const uint8_t *data = present ? find_panel(s, n) : NULL;
    own_segment w;
    if (data)
        load_segment(w, data, segment, s.n_cols / SL_Q8_BLOCK);
    float2 norm = make_float2(0.0f, 0.0f);
    if (INPUT == NORM && 2 * threadIdx.x < s.n_cols)
        norm = *(const float2 *)(s.norm + 2 * threadIdx.x);
    float *y = OUTPUT == SWIGLU ? NULL : own_output(s);
    wait_alone();
    if (s.is_first)
        let_next_start();
    float before = 0.0f;
    if (OUTPUT == ADD && y)
        before = __ldcg(y);
    if (INPUT == NORM)
        receive_norm(m, row, s, norm);
    else
        receive_codes(row[warp], s, segment);
    if (data)
        multiply_segment(w, row[INPUT == NORM ? segment : warp], parts + warp * ROWS);
    __syncthreads();
    if (OUTPUT == SWIGLU) {
        if (warp > 0)
            return;
        const uint32_t panel_floats = s.n_segments * ROWS, k = blockIdx.x * SL_Q8_BLOCK + lane;
        const float *gates = parts + lane / ROWS * panel_floats + lane % ROWS;
        const float gate = sum_parts(gates, s.n_segments);
        const float up = sum_parts(gates + 2 * panel_floats, s.n_segments);
        const float value = k < s.n_rows[0] ? sl_silu(gate) * up : 0.0f;
        if (s.act_q8.q)
            quantise_block(value, s.act_q8.q + blockIdx.x * SL_Q8_BLOCK, s.act_q8.d + blockIdx.x,
                           s.act_q8.sums + 2 * blockIdx.x);
        if (s.act && k < s.n_rows[0])
            s.act[k] = value;
    } else if (y) {
        float value = sum_parts(
            parts + threadIdx.x / ROWS * s.n_segments * ROWS + threadIdx.x % ROWS, s.n_segments);
        if (OUTPUT == ADD)
            value = before + value;
        *y = value;
        if (OUTPUT == ADD && !finite(value))
            atomicCAS(s.flags, 0u, s.mark);
    }
}

/* ---- launching ---- */

int sl_cu_row_fits(const sl_cu_step *s)
{
    if (s->n_rows != 1 || s->n_cols % SL_Q8_BLOCK != 0 ||
        div_up(s->n_cols, SEGMENT_COLS) * (s->swiglu ? SWIGLU_PANELS : 1) > MOST_WARPS ||
        (s->norm && (s->n_cols % SEGMENT_COLS != 0 || s->n_cols > MOST_NORM)))
        return 0;
    for (uint32_t i = 0; i < s->n_targets; i++) {
        if (s->targets[i].w.kind != SL_CU_PLAIN)
            return 0;
    }
    return 1;
}

template <row_input INPUT, row_output OUTPUT>
static void launch_row(const sl_cu_queue *queue, const row_step *s, uint32_t n_blocks)
{
    /* A norm needs a thread for two inputs. */
    const uint32_t tasks = s->n_panels * s->n_segments * WARP;
    const uint32_t normed = INPUT == NORM ? s->n_cols / 2 : 0;
    sl_cu_queue own = *queue;
    own.overlap = queue->overlap || queue->begins;
    launch(&own, row_kernel<INPUT, OUTPUT>, dim3(n_blocks), dim3(tasks > normed ? tasks : normed),
           0, *s);
}

void sl_cu_run_row(const sl_cu_queue *queue, const sl_cu_step *s)
{
    row_step row = {};
    uint32_t n_panels = 0;
    for (uint32_t i = 0; i < s->n_targets; i++) {
        row.data[i] = s->targets[i].w.data;
        row.y[i] = s->targets[i].y;
        row.first_panel[i] = n_panels;
        row.n_rows[i] = s->targets[i].w.n_rows;
        n_panels += div_up(s->targets[i].w.n_rows, ROWS);
    }
    row.n_cols = s->n_cols;
    row.n_segments = div_up(s->n_cols, SEGMENT_COLS);
    row.is_first = queue->begins;
    row.eps = s->eps;
    row.per_col = (s->n_cols & (s->n_cols - 1)) == 0 ? 1.0f / (float)s->n_cols : 0.0f;
    row.x = s->x;
    row.norm = s->norm;
    row.q = s->q8.q;
    row.d = s->q8.d;
    row.flags = s->flags;
    row.mark = s->mark;
    row.act = s->act;
    row.act_q8 = s->act_q8;
    /* A block of threads has as many panels as it has warps for, but no more than it takes to give
     * every multiprocessor some. */
    const uint32_t most = MOST_WARPS / row.n_segments;
    const uint32_t even = div_up(n_panels, (uint32_t)queue->n_multiprocessors);
    row.n_panels = s->swiglu ? SWIGLU_PANELS : even < most ? even : most;
    const uint32_t n_blocks =
        s->swiglu ? div_up(row.n_rows[0], SL_Q8_BLOCK) : div_up(n_panels, row.n_panels);
    if (s->swiglu && s->norm)
        launch_row<NORM, SWIGLU>(queue, &row, n_blocks);
    else if (s->swiglu)
        launch_row<CODES, SWIGLU>(queue, &row, n_blocks);
    else if (s->add && s->norm)
        launch_row<NORM, ADD>(queue, &row, n_blocks);
    else if (s->add)
        launch_row<CODES, ADD>(queue, &row, n_blocks);
    else if (s->norm)
        launch_row<NORM, PLAIN_OUT>(queue, &row, n_blocks);
    else
        launch_row<CODES, PLAIN_OUT>(queue, &row, n_blocks);
}
