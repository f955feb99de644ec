/* The gated delta layer for one row of each of any number of sequences, in one kernel: what gdn.cu
 * does in three, in the same operations. A block of threads has one value head of one sequence. The
 * state and the tape, which no kernel of the run has written so far, come in before the projections
 * are ready. */
#include "backend/cuda/kernels/gdn.cuh"

enum { GROUPS = 4, THREADS = GROUPS * DIM, KEY_STRIDE = DIM + 1 };

typedef struct step_memory {
    float S[DIM][DIM];
    float k[CHUNK][KEY_STRIDE];
    float u[CHUNK][DIM];
    float g[CHUNK];
    alignas(16) float channel[3][DIM]; /* q, k, v of the row */
    float r[2];                      /* of the norms of q and k */
    float decay[CHUNK], e, g_new, beta;
    float kk[CHUNK], qk[CHUNK];      /* exp(d_j) times the dots with row j; qk of the row itself */
    float kS[DIM], qS[DIM], o[DIM];
    float norm;
} step_memory;

/* Tape rows below `begin`, the decays so far, and the state. */
static __device__ __forceinline__ void load_state(step_memory &m, const sl_cu_gdn &gdn,
                                  const sl_cu_segment &segment, uint32_t begin, uint32_t head,
                                  uint32_t key_head, size_t state_offset)
{
    const float *border = segment.border;
    for (uint32_t x = threadIdx.x; x < DIM * DIM / 4; x += THREADS)
        ((float4 *)m.S)[x] = border ? ((const float4 *)(border + state_offset))[x]
                                    : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    const uint32_t a = threadIdx.x % DIM, first = threadIdx.x / DIM;
    enum { EACH = CHUNK / GROUPS, BATCH = 8 };
#pragma unroll
    for (uint32_t base = 0; base < EACH; base += BATCH) {
        float k[BATCH], u[BATCH];
#pragma unroll
        for (uint32_t i = 0; i < BATCH && base + i < EACH; i++) {
            const uint32_t j = first + (base + i) * GROUPS;
            k[i] = j < begin ? tape_k(gdn, segment, 0, j, key_head)[a] : 0.0f;
            u[i] = j < begin ? tape_u(gdn, segment, 0, j, head)[a] : 0.0f;
        }
#pragma unroll
        for (uint32_t i = 0; i < BATCH && base + i < EACH; i++) {
            m.k[first + (base + i) * GROUPS][a] = k[i];
            m.u[first + (base + i) * GROUPS][a] = u[i];
        }
    }
    for (uint32_t j = threadIdx.x; j < begin; j += THREADS)
        m.g[j] = *tape_g(gdn, segment, 0, j, head);
}

/* Group 0, 1, 2: the head's query, key, value channels. */
static __device__ __forceinline__ void convolve(step_memory &m, const sl_cu_gdn &gdn,
                                const sl_cu_segment &segment, uint32_t row, uint32_t head,
                                uint32_t key_head, bool keeps_key)
{
    const uint32_t group = threadIdx.x / DIM, a = threadIdx.x % DIM;
    if (group > 2)
        return;
    const uint32_t first[3] = {key_head, gdn.n_key_heads + key_head, 2 * gdn.n_key_heads + head};
    const uint32_t channel = first[group] * DIM + a;
    m.channel[group][a] = convolved(gdn, segment, 0, channel);
    if (group == 2 || keeps_key)
        conv_row(gdn, segment, segment.pos)[channel] =
            gdn.qkv[(size_t)row * gdn.n_channels + channel];
}

/* Decays since the border and since every tape row, once row `begin` is on the tape. */
static __device__ __forceinline__ void gather_decays(step_memory &m, uint32_t begin)
{
    const uint32_t j = threadIdx.x;
    if (j < begin) {
        float d = 0.0f;
        for (uint32_t i = j + 1; i < begin; i++)
            d = d + m.g[i];
        m.decay[j] = sl_expf(d + m.g_new);
    } else if (j == begin) {
        float total = 0.0f;
        for (uint32_t i = 0; i < begin; i++)
            total = total + m.g[i];
        m.e = sl_expf(total + m.g_new);
    }
}

/* The state after a full chunk; the new row is on the tape. */
static __device__ __forceinline__ void advance_state(step_memory &m, float *border)
{
    const float e = m.e;
    for (uint32_t x = threadIdx.x; x < DIM * DIM; x += THREADS) {
        const uint32_t a = x / DIM, c = x % DIM;
        float s = e * m.S[a][c];
#pragma unroll 8
        for (uint32_t j = 0; j < CHUNK; j++)
            s = fmaf(m.decay[j] * m.k[j][a], m.u[j][c], s);
        border[x] = flush_tiny(s);
    }
}

static __global__ void __launch_bounds__(THREADS)
    gdn_step_kernel(const sl_cu_rows rows, const __grid_constant__ sl_cu_gdn gdn)
{
    extern __shared__ float raw[];
    step_memory &m = *(step_memory *)(void *)raw;
    const uint32_t head = blockIdx.x, group = threadIdx.x / DIM, c = threadIdx.x % DIM;
    const uint32_t key_head = key_head_of(gdn, head);
    const bool keeps_key = gdn.tiled ? head < gdn.n_key_heads
                                     : head % (gdn.n_value_heads / gdn.n_key_heads) == 0;
    __shared__ sl_cu_segment segment;
    enum { WORDS = sizeof(sl_cu_segment) / 4 };
    if (threadIdx.x < WORDS)
        ((uint32_t *)&segment)[threadIdx.x] =
            ((const uint32_t *)&rows.segments[blockIdx.y])[threadIdx.x];
    __syncthreads();
    const uint32_t begin = segment.pos % CHUNK, row = segment.first_row;
    const size_t state_offset = ((size_t)gdn.index * gdn.n_value_heads + head) * DIM * DIM;

    load_state(m, gdn, segment, begin, head, key_head, state_offset);
    wait_for_previous();
    convolve(m, gdn, segment, row, head, key_head, keeps_key);
    if (threadIdx.x == 3 * DIM) {
        m.g_new = decay_gate(gdn, row, head);
        m.beta = write_strength(gdn, row, head);
    }
    __syncthreads();
    if (group < 2 && c < WARP) {
        const float squares = sum_squares_of(m.channel[group], DIM, c);
        if (c == 0)
            m.r[group] = 1.0f / sqrtf(squares + 1e-6f);
    }
    __syncthreads();
    if (group == 0)
        m.channel[0][c] = (m.channel[0][c] * m.r[0]) * Q_SCALE;
    else if (group == 1)
        m.channel[1][c] = (m.channel[1][c] * m.r[1]) * 1.0f;
    gather_decays(m, begin);
    __syncthreads();
    const float *q = m.channel[0], *k = m.channel[1];

    /* Groups 0 and 1 read the state, 2 and 3 the tape. */
    if (group < 2) {
        const float *with = group == 0 ? k : q;
        float sum = 0.0f;
#pragma unroll 4
        for (uint32_t a = 0; a < DIM; a += 4) {
            const float4 w = *(const float4 *)(with + a);
            sum = fmaf(m.S[a][c], w.x, sum);
            sum = fmaf(m.S[a + 1][c], w.y, sum);
            sum = fmaf(m.S[a + 2][c], w.z, sum);
            sum = fmaf(m.S[a + 3][c], w.w, sum);
        }
        if (group == 0)
            m.kS[c] = sum;
        else
            m.qS[c] = sum;
    } else if (c <= begin) {
        const float *with = group == 2 ? k : q;
        const float *other = c < begin ? m.k[c] : k;
        float dot = 0.0f;
#pragma unroll 8
        for (uint32_t a = 0; a < DIM; a++)
            dot = fmaf(with[a], other[a], dot);
        if (c < begin)
            dot = m.decay[c] * dot;
        if (group == 2)
            m.kk[c] = dot;
        else
            m.qk[c] = dot;
    }
    __syncthreads();
    if (group == 0) {
        float r = fmaf(-m.e, m.kS[c], m.channel[2][c]);
#pragma unroll 8
        for (uint32_t j = 0; j < begin; j++)
            r = fmaf(-m.kk[j], m.u[j][c], r);
        const float u = flush_tiny(m.beta * r);
        m.u[begin][c] = u;
        tape_u(gdn, segment, 0, begin, head)[c] = u;
    } else if (group == 1) {
        float o = m.e * m.qS[c];
#pragma unroll 8
        for (uint32_t j = 0; j < begin; j++)
            o = fmaf(m.qk[j], m.u[j][c], o);
        m.o[c] = o;
    } else if (group == 2) {
        m.k[begin][c] = k[c];
        if (keeps_key)
            tape_k(gdn, segment, 0, begin, key_head)[c] = k[c];
        if (c == 0) {
            *tape_g(gdn, segment, 0, begin, head) = m.g_new;
            m.decay[begin] = 1.0f; /* exp(+0) */
        }
    }
    __syncthreads();
    if (group == 0)
        m.o[c] = fmaf(m.qk[begin], m.u[begin][c], m.o[c]);
    __syncthreads();
    if (threadIdx.x < WARP) {
        const float squares = sum_squares_of(m.o, DIM, threadIdx.x);
        if (threadIdx.x == 0)
            m.norm = 1.0f / sqrtf(squares / (float)DIM + gdn.eps);
    }
    __syncthreads();
    if (group == 0) {
        const size_t at = ((size_t)row * gdn.n_value_heads + head) * DIM + c;
        float y = (m.o[c] * m.norm) * gdn.norm[c];
        y = y * sl_silu(gdn.z[at]);
        gdn.y[at] = y;
        if (gdn.yq.q) {
            const size_t block = at / SL_Q8_BLOCK;
            quantise_block(y, gdn.yq.q + block * SL_Q8_BLOCK, gdn.yq.d + block,
                           gdn.yq.sums + 2 * block);
        }
    }
    if (begin + 1 == CHUNK)
        advance_state(m, segment.border_out[1] + state_offset);
}

void sl_cu_gdn_step(const sl_cu_queue *queue, const sl_cu_rows *rows, const sl_cu_gdn *gdn)
{
    cudaFuncSetAttribute(gdn_step_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                         (int)sizeof(step_memory));
    launch(queue, gdn_step_kernel, dim3(gdn->n_value_heads, rows->n_segments), dim3(THREADS),
           sizeof(step_memory), *rows, *gdn);
}
