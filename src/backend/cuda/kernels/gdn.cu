/* The gated delta layer between its projections, section 6: three kernels.
 *   prepare  every row and head: convolution, SiLU, norms; gates
 *   delta    every value head and slice of its columns: the rule over the rows, chunk by chunk
 *   finish   every row and head: gated norm, rounding, and what the state keeps
 * A dot runs over its index in ascending order in one thread, a column of the state never meets
 * another: the sums are those of the CPU. */
#include "backend/cuda/kernels/gdn.cuh"

enum {
    COLUMNS = 32, /* of a value head, in one block of the delta kernel */
    GROUPS = 8,   /* warps of it */
    PER_WARP = COLUMNS / GROUPS,
    PER_LANE = (CHUNK + WARP - 1) / WARP, /* tape rows of a lane in the substitution */
    KEY_STRIDE = DIM + 1,
    PAIR_STRIDE = CHUNK + 1
};

/* ---- prepare ---- */

/* Block: one row, one head's 128 channels (query, key, then value heads); the last one the gates. */
static __global__ void prepare_kernel(const sl_cu_rows rows, const sl_cu_gdn gdn)
{
    const uint32_t row = blockIdx.x, head = blockIdx.y, n_heads = gdn.n_channels / DIM;
    if (head == n_heads) {
        for (uint32_t h = threadIdx.x; h < gdn.n_value_heads; h += blockDim.x) {
            size_t at = (size_t)row * gdn.n_value_heads + h;
            gdn.g[at] = gdn.a_coef[h] * sl_softplus(gdn.a[at] + gdn.dt[h]);
            gdn.beta[at] = sl_sigmoid(gdn.b[at]);
        }
        return;
    }
    const sl_cu_segment &segment = rows.segments[rows.segment_of[row]];
    const uint32_t i = row - segment.first_row, channel = head * DIM + threadIdx.x;
    float sum = 0.0f;
    for (uint32_t j = 0; j < SL_CONV_TAPS; j++) {
        /* The taps reach three rows back: in this run, in the state, or before the sequence. */
        const uint32_t back = SL_CONV_TAPS - 1 - j;
        float x = 0.0f;
        if (back <= i)
            x = gdn.qkv[(size_t)(row - back) * gdn.n_channels + channel];
        else if (back <= segment.pos + i)
            x = conv_row(gdn, segment, segment.pos + i - back)[channel];
        sum = fmaf(gdn.conv[channel * SL_CONV_TAPS + j], x, sum);
    }
    float value = sl_silu(sum);
    __shared__ float shared[DIM], r;
    shared[threadIdx.x] = value;
    __syncthreads();
    if (head < 2 * gdn.n_key_heads) {
        if (threadIdx.x < WARP) {
            float squares = sum_squares(shared, DIM);
            if (threadIdx.x == 0)
                r = 1.0f / sqrtf(squares + 1e-6f);
        }
        __syncthreads();
        value = (value * r) * (head < gdn.n_key_heads ? Q_SCALE : 1.0f);
    }
    gdn.c[(size_t)row * gdn.n_channels + channel] = value;
}

/* ---- delta ---- */

typedef struct chunk_memory {
    float S[DIM][COLUMNS];
    float k[CHUNK][KEY_STRIDE];
    float q[CHUNK][KEY_STRIDE];
    float kk[CHUNK][PAIR_STRIDE]; /* exp(d_ij) * (k_i . k_j), j < i */
    float qk[CHUNK][PAIR_STRIDE]; /* exp(d_ij) * (q_i . k_j), j <= i */
    float u[CHUNK][COLUMNS];
    float r[CHUNK][COLUMNS + 1]; /* v - e * kS */
    float o[CHUNK][COLUMNS + 1]; /* e * qS */
    float g[CHUNK], beta[CHUNK];
    float e[CHUNK];    /* exp(D_i) */
    float last[CHUNK]; /* exp(d_j) at the chunk's end */
} chunk_memory;

/* Decays: D_i and d_ij are running sums, one per tape row. */
static __device__ void gather_decays(chunk_memory &m, uint32_t begin, uint32_t end)
{
    for (uint32_t j = threadIdx.x; j <= end; j += blockDim.x) {
        if (j == end) { /* the decay since the border */
            float total = 0.0f;
            for (uint32_t i = 0; i < end; i++) {
                total = total + m.g[i];
                m.e[i] = sl_expf(total);
            }
            continue;
        }
        float d = 0.0f;
        m.last[j] = 1.0f;
        for (uint32_t i = j + 1; i < end; i++) {
            d = d + m.g[i];
            float decay = sl_expf(d);
            if (i >= begin)
                m.qk[i][j] = decay;
            m.last[j] = decay;
        }
    }
}

/* Dots of new rows i with rows j <= i, times their decays, which wait in qk. */
static __device__ void pair_products(chunk_memory &m, uint32_t begin, uint32_t end)
{
    const uint32_t n = end - begin;
    for (uint32_t pair = threadIdx.x; pair < n * end; pair += blockDim.x) {
        const uint32_t i = begin + pair / end, j = pair % end;
        if (j > i)
            continue;
        float kk = 0.0f, qk = 0.0f;
#pragma unroll 8
        for (uint32_t a = 0; a < DIM; a++) {
            kk = fmaf(m.k[i][a], m.k[j][a], kk);
            qk = fmaf(m.q[i][a], m.k[j][a], qk);
        }
        const float decay = m.qk[i][j];
        m.kk[i][j] = decay * kk;
        m.qk[i][j] = j == i ? qk : decay * qk;
    }
}

/* r_i = v_i - e_i * S^T k_i and o_i = e_i * S^T q_i for the block's columns. v waits in r. */
static __device__ void read_state(chunk_memory &m, uint32_t begin, uint32_t end)
{
    const uint32_t c = threadIdx.x % COLUMNS, group = threadIdx.x / COLUMNS;
    enum { ROWS = 4 };
    for (uint32_t first = begin + group * ROWS; first < end; first += GROUPS * ROWS) {
        float kS[ROWS] = {0.0f}, qS[ROWS] = {0.0f};
        const uint32_t last = end - 1;
        uint32_t row[ROWS];
#pragma unroll
        for (uint32_t i = 0; i < ROWS; i++)
            row[i] = first + i < end ? first + i : last;
#pragma unroll 4
        for (uint32_t a = 0; a < DIM; a++) {
            const float s = m.S[a][c];
#pragma unroll
            for (int i = 0; i < ROWS; i++) {
                kS[i] = fmaf(s, m.k[row[i]][a], kS[i]);
                qS[i] = fmaf(s, m.q[row[i]][a], qS[i]);
            }
        }
#pragma unroll
        for (uint32_t i = 0; i < ROWS; i++) {
            if (first + i < end) {
                m.r[first + i][c] = fmaf(-m.e[first + i], kS[i], m.r[first + i][c]);
                m.o[first + i][c] = m.e[first + i] * qS[i];
            }
        }
    }
}

/* The substitution: lanes are tape rows, a warp has 4 columns. Row j's update is final once every
 * row before it has been taken off, and then goes to all rows after it. */
static __device__ void substitute(chunk_memory &m, uint32_t begin, uint32_t end)
{
    const uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    float r[PER_WARP][PER_LANE], o[PER_WARP][PER_LANE], u[PER_WARP][PER_LANE];
#pragma unroll
    for (int k = 0; k < PER_LANE; k++) {
        const uint32_t i = lane + k * WARP;
#pragma unroll
        for (int x = 0; x < PER_WARP; x++) {
            const uint32_t c = warp * PER_WARP + x;
            const bool fresh = i >= begin && i < end;
            r[x][k] = fresh ? m.r[i][c] : 0.0f;
            o[x][k] = fresh ? m.o[i][c] : 0.0f;
            u[x][k] = i < begin ? m.u[i][c] : 0.0f;
        }
    }
    for (uint32_t j = 0; j < end; j++) {
#pragma unroll
        for (int k = 0; k < PER_LANE; k++) {
            if ((int)(j / WARP) != k)
                continue;
#pragma unroll
            for (int x = 0; x < PER_WARP; x++) {
                if (j >= begin && lane == j % WARP)
                    u[x][k] = flush_tiny(m.beta[j] * r[x][k]);
                const float u_j = __shfl_sync(0xFFFFFFFFu, u[x][k], (int)(j % WARP));
#pragma unroll
                for (int k2 = 0; k2 < PER_LANE; k2++) {
                    const uint32_t i = lane + k2 * WARP;
                    if (i >= begin && i < end) {
                        if (j < i)
                            r[x][k2] = fmaf(-m.kk[i][j], u_j, r[x][k2]);
                        if (j <= i)
                            o[x][k2] = fmaf(m.qk[i][j], u_j, o[x][k2]);
                    }
                }
            }
        }
    }
#pragma unroll
    for (int k = 0; k < PER_LANE; k++) {
        const uint32_t i = lane + k * WARP;
#pragma unroll
        for (int x = 0; x < PER_WARP; x++) {
            if (i >= begin && i < end) {
                m.u[i][warp * PER_WARP + x] = u[x][k];
                m.o[i][warp * PER_WARP + x] = o[x][k];
            }
        }
    }
}

/* The state after a full chunk. */
static __device__ void advance_state(chunk_memory &m, float *border, uint32_t first_column)
{
    const uint32_t c = threadIdx.x % COLUMNS, group = threadIdx.x / COLUMNS;
    const float e = m.e[CHUNK - 1];
    for (uint32_t a = group; a < DIM; a += GROUPS) {
        float s = e * m.S[a][c];
#pragma unroll 8
        for (uint32_t j = 0; j < CHUNK; j++)
            s = fmaf(m.last[j] * m.k[j][a], m.u[j][c], s);
        s = flush_tiny(s);
        m.S[a][c] = s;
        border[a * DIM + first_column + c] = s;
    }
}

/* Block: 32 value columns of one value head of one segment. */
static __global__ void __launch_bounds__(GROUPS *WARP)
    delta_kernel(const sl_cu_rows rows, const sl_cu_gdn gdn)
{
    extern __shared__ float raw[];
    chunk_memory &m = *(chunk_memory *)(void *)raw;
    const uint32_t head = blockIdx.x / (DIM / COLUMNS);
    const uint32_t column = blockIdx.x % (DIM / COLUMNS) * COLUMNS;
    const uint32_t key_head =
        gdn.tiled ? head % gdn.n_key_heads : head / (gdn.n_value_heads / gdn.n_key_heads);
    const sl_cu_segment segment = rows.segments[blockIdx.y];
    const size_t state_offset = ((size_t)gdn.index * gdn.n_value_heads + head) * DIM * DIM;
    const size_t y_stride = (size_t)gdn.n_value_heads * DIM;
    const uint32_t q_at = key_head * DIM, k_at = (gdn.n_key_heads + key_head) * DIM;
    const uint32_t v_at = (2 * gdn.n_key_heads + head) * DIM + column;

    for (uint32_t x = threadIdx.x; x < DIM * COLUMNS; x += blockDim.x) {
        const uint32_t a = x / COLUMNS, c = x % COLUMNS;
        m.S[a][c] = segment.border ? segment.border[state_offset + a * DIM + column + c] : 0.0f;
    }
    uint32_t begin = segment.pos % CHUNK;
    for (uint32_t chunk = 0, done = 0; done < segment.n_rows; chunk++, begin = 0) {
        const uint32_t left = segment.n_rows - done;
        const uint32_t n = CHUNK - begin < left ? CHUNK - begin : left, end = begin + n;
        const uint32_t row = segment.first_row + done;
        for (uint32_t x = threadIdx.x; x < end * DIM; x += blockDim.x) {
            const uint32_t j = x / DIM, a = x % DIM;
            if (j < begin) {
                m.k[j][a] = tape_k(gdn, segment, chunk, j, key_head)[a];
            } else {
                const float *c = gdn.c + (size_t)(row + j - begin) * gdn.n_channels;
                m.k[j][a] = c[k_at + a];
                m.q[j][a] = c[q_at + a];
            }
        }
        for (uint32_t x = threadIdx.x; x < end * COLUMNS; x += blockDim.x) {
            const uint32_t j = x / COLUMNS, c = x % COLUMNS;
            if (j < begin)
                m.u[j][c] = tape_u(gdn, segment, chunk, j, head)[column + c];
            else
                m.r[j][c] = gdn.c[(size_t)(row + j - begin) * gdn.n_channels + v_at + c];
        }
        for (uint32_t j = threadIdx.x; j < end; j += blockDim.x) {
            const size_t at = (size_t)(row + j - begin) * gdn.n_value_heads + head;
            m.g[j] = j < begin ? *tape_g(gdn, segment, chunk, j, head) : gdn.g[at];
            if (j >= begin)
                m.beta[j] = gdn.beta[at];
        }
        __syncthreads();
        gather_decays(m, begin, end);
        __syncthreads();
        pair_products(m, begin, end);
        read_state(m, begin, end);
        __syncthreads();
        substitute(m, begin, end);
        __syncthreads();
        for (uint32_t x = threadIdx.x; x < n * COLUMNS; x += blockDim.x) {
            const uint32_t i = x / COLUMNS, c = x % COLUMNS;
            tape_u(gdn, segment, chunk, begin + i, head)[column + c] = m.u[begin + i][c];
            gdn.y[(row + i) * y_stride + head * DIM + column + c] = m.o[begin + i][c];
        }
        if (end == CHUNK)
            advance_state(m, segment.border_out[(chunk + 1) & 1] + state_offset, column);
        __syncthreads();
        done += n;
    }
}

/* ---- finish ---- */

/* Block: one row, one value head; the last ones keep a key head's tape rows and the conv rows. */
static __global__ void finish_kernel(const sl_cu_rows rows, const sl_cu_gdn gdn)
{
    const uint32_t row = blockIdx.x, head = blockIdx.y;
    if (head < gdn.n_value_heads) {
        __shared__ float shared[DIM], r;
        const size_t at = ((size_t)row * gdn.n_value_heads + head) * DIM + threadIdx.x;
        float value = gdn.y[at];
        shared[threadIdx.x] = value;
        __syncthreads();
        if (threadIdx.x < WARP) {
            float squares = sum_squares(shared, DIM);
            if (threadIdx.x == 0)
                r = 1.0f / sqrtf(squares / (float)DIM + gdn.eps);
        }
        __syncthreads();
        value = (value * r) * gdn.norm[threadIdx.x];
        value = value * sl_silu(gdn.z[at]);
        gdn.y[at] = value;
        if (gdn.yq.q) {
            const size_t block = at / SL_Q8_BLOCK;
            quantise_block(value, gdn.yq.q + block * SL_Q8_BLOCK, gdn.yq.d + block,
                           gdn.yq.sums + 2 * block);
        }
        return;
    }
    const uint32_t part = head - gdn.n_value_heads;
    const sl_cu_segment &segment = rows.segments[rows.segment_of[row]];
    const uint32_t i = row - segment.first_row;
    if (part >= gdn.n_key_heads) { /* 128 channels of the raw row */
        const uint32_t channel = (part - gdn.n_key_heads) * DIM + threadIdx.x;
        if (segment.n_rows - i <= gdn.n_conv_rows)
            conv_row(gdn, segment, segment.pos + i)[channel] =
                gdn.qkv[(size_t)row * gdn.n_channels + channel];
        return;
    }
    const uint32_t at = segment.pos % CHUNK + i;
    const uint32_t last = (segment.pos % CHUNK + segment.n_rows - 1) / CHUNK;
    const uint32_t m = at / CHUNK, j = at % CHUNK;
    if (m + 1 < last)
        return; /* only the tapes of the last two chunks survive */
    tape_k(gdn, segment, m, j, part)[threadIdx.x] =
        gdn.c[(size_t)row * gdn.n_channels + (gdn.n_key_heads + part) * DIM + threadIdx.x];
    if (part == 0) {
        for (uint32_t h = threadIdx.x; h < gdn.n_value_heads; h += blockDim.x)
            *tape_g(gdn, segment, m, j, h) = gdn.g[(size_t)row * gdn.n_value_heads + h];
    }
}

void sl_cu_gdn_layer(cudaStream_t stream, const sl_cu_rows *rows, const sl_cu_gdn *gdn)
{
    const uint32_t n_heads = gdn->n_channels / DIM;
    prepare_kernel<<<dim3(rows->n_rows, n_heads + 1), DIM, 0, stream>>>(*rows, *gdn);
    cudaFuncSetAttribute(delta_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                         (int)sizeof(chunk_memory));
    delta_kernel<<<dim3(gdn->n_value_heads * (DIM / COLUMNS), rows->n_segments), GROUPS * WARP,
                   sizeof(chunk_memory), stream>>>(*rows, *gdn);
    finish_kernel<<<dim3(rows->n_rows, gdn->n_value_heads + gdn->n_key_heads + n_heads), DIM, 0,
                    stream>>>(*rows, *gdn);
}
