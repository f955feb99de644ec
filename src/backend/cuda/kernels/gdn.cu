/* The gated delta layer between its projections, section 6: four kernels.
 *   prepare  every row and head: convolution, SiLU, norms; gates
 *   pairs    every chunk and value head: what one row has to do with another
 *   delta    every value head and slice of its columns: the rule over the rows, chunk by chunk
 *   finish   every row and head: gated norm, rounding, and what the state keeps
 * A dot runs over its index in ascending order in one thread, a column of the state never meets
 * another: the sums are those of the CPU. */
#include "backend/cuda/kernels/gdn.cuh"

/* ---- prepare ---- */

/* Block: one row, one head's 128 channels (query, key, then value heads); the last one the gates. */
static __global__ void prepare_kernel(const sl_cu_rows rows, const sl_cu_gdn gdn)
{
    const uint32_t row = blockIdx.x, head = blockIdx.y, n_heads = gdn.n_channels / DIM;
    if (head == n_heads) {
        for (uint32_t h = threadIdx.x; h < gdn.n_value_heads; h += blockDim.x) {
            size_t at = (size_t)row * gdn.n_value_heads + h;
            gdn.g[at] = decay_gate(gdn, row, h);
            gdn.beta[at] = write_strength(gdn, row, h);
        }
        return;
    }
    const sl_cu_segment &segment = rows.segments[rows.segment_of[row]];
    const uint32_t channel = head * DIM + threadIdx.x;
    float value = convolved(gdn, segment, row - segment.first_row, channel);
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

/* ---- pairs ---- */

/* Chunk `chunk` of the run: of which segment, which of its chunks, and which rows. */
typedef struct chunk_ref {
    sl_cu_segment segment;
    uint32_t m;          /* of the segment's chunks */
    uint32_t begin, end; /* tape rows below begin are old, the others rows of the run */
    uint32_t row;        /* in the run, of tape row `begin` */
} chunk_ref;

static __device__ inline void look_up_chunk(const sl_cu_segment &segment, uint32_t m,
                                            chunk_ref *out)
{
    const uint32_t offset = segment.pos % CHUNK, done = m == 0 ? 0 : m * CHUNK - offset;
    out->segment = segment;
    out->m = m;
    out->begin = m == 0 ? offset : 0;
    const uint32_t left = segment.n_rows - done;
    out->end = CHUNK - out->begin < left ? CHUNK : out->begin + left;
    out->row = segment.first_row + done;
}

static __device__ inline bool find_chunk(const sl_cu_rows &rows, uint32_t chunk, chunk_ref *out)
{
    for (uint32_t i = 0; i < rows.n_segments; i++) {
        const sl_cu_segment &segment = rows.segments[i];
        const uint32_t n = div_up(segment.pos % CHUNK + segment.n_rows, CHUNK);
        if (chunk < segment.first_chunk + n) {
            look_up_chunk(segment, chunk - segment.first_chunk, out);
            return true;
        }
    }
    return false;
}

/* What the rule needs of one chunk and head besides the state, [j][i] so that lanes can be rows:
 * exp(d_ij) times the dots of key i with key j < i and of query i with key j <= i; exp(D_i); and
 * exp(d_j) at the chunk's end. */
typedef struct chunk_pairs {
    float kk[CHUNK][CHUNK];
    float qk[CHUNK][CHUNK];
    float e[CHUNK];
    float last[CHUNK];
} chunk_pairs;

enum { PAIR_THREADS = 256, PAIR_SIDE = 16, PAIR_TILE = CHUNK / PAIR_SIDE, KEY_STRIDE = DIM + 1 };

typedef struct pair_memory {
    float k[CHUNK][KEY_STRIDE];
    float q[CHUNK][KEY_STRIDE];
    float d[CHUNK][CHUNK + 1]; /* decay gathered since row j, at row i: [i][j] */
    float g[CHUNK];
} pair_memory;

/* Running sums, one per tape row: never a difference of sums. */
static __device__ void gather_decays(pair_memory &m, uint32_t end, chunk_pairs &out)
{
    const uint32_t j = threadIdx.x;
    if (j < end) {
        float d = 0.0f;
        m.d[j][j] = d;
        for (uint32_t i = j + 1; i < end; i++) {
            d = d + m.g[i];
            m.d[i][j] = d;
        }
        out.last[j] = sl_expf(d);
    } else if (j == CHUNK) {
        float total = 0.0f;
        for (uint32_t i = 0; i < end; i++) {
            total = total + m.g[i];
            out.e[i] = sl_expf(total);
        }
    }
}

/* Block: one chunk, one value head. */
static __global__ void __launch_bounds__(PAIR_THREADS)
    pairs_kernel(const sl_cu_rows rows, const __grid_constant__ sl_cu_gdn gdn)
{
    extern __shared__ float raw[];
    pair_memory &m = *(pair_memory *)(void *)raw;
    __shared__ chunk_ref chunk;
    __shared__ bool found;
    if (threadIdx.x == 0)
        found = find_chunk(rows, blockIdx.x, &chunk);
    __syncthreads();
    if (!found)
        return;
    const uint32_t head = blockIdx.y, begin = chunk.begin, end = chunk.end;
    const uint32_t key_head = key_head_of(gdn, head);
    const uint32_t q_at = key_head * DIM, k_at = (gdn.n_key_heads + key_head) * DIM;
    const uint32_t a = threadIdx.x % DIM;
    enum { STEP = PAIR_THREADS / DIM, BATCH = 8 };
    for (uint32_t first = threadIdx.x / DIM; first < end; first += STEP * BATCH) {
        float k[BATCH], q[BATCH];
#pragma unroll
        for (uint32_t x = 0; x < BATCH; x++) {
            const uint32_t j = first + x * STEP;
            k[x] = q[x] = 0.0f;
            if (j < begin) {
                k[x] = tape_k(gdn, chunk.segment, chunk.m, j, key_head)[a];
            } else if (j < end) {
                const float *c = gdn.c + (size_t)(chunk.row + j - begin) * gdn.n_channels;
                k[x] = c[k_at + a];
                q[x] = c[q_at + a];
            }
        }
#pragma unroll
        for (uint32_t x = 0; x < BATCH; x++) {
            const uint32_t j = first + x * STEP;
            if (j < end) {
                m.k[j][a] = k[x];
                m.q[j][a] = q[x];
            }
        }
    }
    for (uint32_t j = threadIdx.x; j < end; j += PAIR_THREADS)
        m.g[j] = j < begin ? *tape_g(gdn, chunk.segment, chunk.m, j, head)
                           : gdn.g[(size_t)(chunk.row + j - begin) * gdn.n_value_heads + head];
    __syncthreads();
    chunk_pairs &out = ((chunk_pairs *)gdn.pairs)[(size_t)blockIdx.x * gdn.n_value_heads + head];
    gather_decays(m, end, out);
    __syncthreads();

    const uint32_t tx = threadIdx.x % PAIR_SIDE, ty = threadIdx.x / PAIR_SIDE;
    float kk[PAIR_TILE][PAIR_TILE] = {{0.0f}}, qk[PAIR_TILE][PAIR_TILE] = {{0.0f}};
#pragma unroll 4
    for (uint32_t x = 0; x < DIM; x++) {
        float kj[PAIR_TILE], ki[PAIR_TILE], qi[PAIR_TILE];
#pragma unroll
        for (uint32_t t = 0; t < PAIR_TILE; t++) {
            kj[t] = m.k[tx + t * PAIR_SIDE][x];
            ki[t] = m.k[ty + t * PAIR_SIDE][x];
            qi[t] = m.q[ty + t * PAIR_SIDE][x];
        }
#pragma unroll
        for (uint32_t i = 0; i < PAIR_TILE; i++) {
#pragma unroll
            for (uint32_t j = 0; j < PAIR_TILE; j++) {
                kk[i][j] = fmaf(ki[i], kj[j], kk[i][j]);
                qk[i][j] = fmaf(qi[i], kj[j], qk[i][j]);
            }
        }
    }
#pragma unroll
    for (uint32_t y = 0; y < PAIR_TILE; y++) {
#pragma unroll
        for (uint32_t x = 0; x < PAIR_TILE; x++) {
            const uint32_t i = ty + y * PAIR_SIDE, j = tx + x * PAIR_SIDE;
            if (i < begin || i >= end || j > i)
                continue;
            const float decay = sl_expf(m.d[i][j]);
            out.kk[j][i] = decay * kk[y][x];
            out.qk[j][i] = j == i ? qk[y][x] : decay * qk[y][x];
        }
    }
}

/* ---- delta ---- */

enum {
    COLUMNS = 16, /* of a value head, in one block of the delta kernel */
    DELTA_WARPS = 4,
    DELTA_THREADS = DELTA_WARPS * WARP,
    PER_WARP = COLUMNS / DELTA_WARPS,
    PER_LANE = (CHUNK + WARP - 1) / WARP, /* tape rows of a lane in the substitution */
    ROW_STRIDE = DIM + 4,
    STAGES = CHUNK <= 32 ? 2 : 1 /* chunks in shared memory: this one, and the next on its way */
};

typedef struct chunk_stage {
    float k[CHUNK][ROW_STRIDE];
    float q[CHUNK][ROW_STRIDE];
    float v[CHUNK][COLUMNS];
    chunk_pairs pairs;
} chunk_stage;

typedef struct delta_memory {
    chunk_stage stages[STAGES];
    float S[DIM][COLUMNS];
    float u[CHUNK][COLUMNS];
    float r[CHUNK][COLUMNS + 1]; /* v - e * kS */
    float o[CHUNK][COLUMNS + 1]; /* e * qS */
    float beta[CHUNK];
} delta_memory;

/* Starts the copy of a chunk's rows and pairs. */
static __device__ void copy_chunk(chunk_stage &stage, const sl_cu_gdn &gdn, const chunk_ref &chunk,
                                  uint32_t head, uint32_t key_head, uint32_t column)
{
    enum { PIECES = DIM / 4, V_PIECES = COLUMNS / 4, PAIR_PIECES = sizeof(chunk_pairs) / 16 };
    const uint32_t q_at = key_head * DIM, k_at = (gdn.n_key_heads + key_head) * DIM;
    const uint32_t v_at = (2 * gdn.n_key_heads + head) * DIM + column;
    const uint32_t begin = chunk.begin, end = chunk.end;
    for (uint32_t x = threadIdx.x; x < end * PIECES; x += DELTA_THREADS) {
        const uint32_t j = x / PIECES, a = x % PIECES * 4;
        if (j < begin) {
            copy_ahead(&stage.k[j][a], tape_k(gdn, chunk.segment, chunk.m, j, key_head) + a);
            continue;
        }
        const float *c = gdn.c + (size_t)(chunk.row + j - begin) * gdn.n_channels;
        copy_ahead(&stage.k[j][a], c + k_at + a);
        copy_ahead(&stage.q[j][a], c + q_at + a);
    }
    for (uint32_t x = threadIdx.x; x < (end - begin) * V_PIECES; x += DELTA_THREADS) {
        const uint32_t i = x / V_PIECES, c = x % V_PIECES * 4;
        copy_ahead(&stage.v[begin + i][c],
                   gdn.c + (size_t)(chunk.row + i) * gdn.n_channels + v_at + c);
    }
    const float4 *pairs = (const float4 *)((const chunk_pairs *)gdn.pairs +
                                           (size_t)(chunk.segment.first_chunk + chunk.m) *
                                               gdn.n_value_heads +
                                           head);
    for (uint32_t x = threadIdx.x; x < PAIR_PIECES; x += DELTA_THREADS)
        copy_ahead((float4 *)&stage.pairs + x, pairs + x);
    end_of_copies();
}

/* r_i = v_i - e_i * S^T k_i and o_i = e_i * S^T q_i. A thread has 4 rows of one kind and 2 columns. */
static __device__ __forceinline__ void read_state(delta_memory &m, const chunk_stage &stage,
                                                  uint32_t begin, uint32_t end)
{
    enum { ROWS = 4, GROUPS = DELTA_THREADS / (COLUMNS / 2) };
    const uint32_t c = threadIdx.x % (COLUMNS / 2) * 2, group = threadIdx.x / (COLUMNS / 2);
    const bool queries = group >= GROUPS / 2;
    const float(*in)[ROW_STRIDE] = queries ? stage.q : stage.k;
    for (uint32_t first = begin + group % (GROUPS / 2) * ROWS; first < end;
         first += GROUPS / 2 * ROWS) {
        float sum[ROWS][2] = {{0.0f}};
        uint32_t row[ROWS];
#pragma unroll
        for (uint32_t i = 0; i < ROWS; i++)
            row[i] = first + i < end ? first + i : end - 1;
#pragma unroll 4
        for (uint32_t a = 0; a < DIM; a += 4) {
            float4 x[ROWS];
            float2 s[4];
#pragma unroll
            for (uint32_t i = 0; i < ROWS; i++)
                x[i] = *(const float4 *)&in[row[i]][a];
#pragma unroll
            for (uint32_t k = 0; k < 4; k++)
                s[k] = *(const float2 *)&m.S[a + k][c];
#pragma unroll
            for (uint32_t i = 0; i < ROWS; i++) {
                const float with[4] = {x[i].x, x[i].y, x[i].z, x[i].w};
#pragma unroll
                for (uint32_t k = 0; k < 4; k++) {
                    sum[i][0] = fmaf(s[k].x, with[k], sum[i][0]);
                    sum[i][1] = fmaf(s[k].y, with[k], sum[i][1]);
                }
            }
        }
#pragma unroll
        for (uint32_t i = 0; i < ROWS; i++) {
            if (first + i >= end)
                continue;
            const float e = stage.pairs.e[first + i];
#pragma unroll
            for (uint32_t x = 0; x < 2; x++) {
                if (queries)
                    m.o[first + i][c + x] = e * sum[i][x];
                else
                    m.r[first + i][c + x] = fmaf(-e, sum[i][x], stage.v[first + i][c + x]);
            }
        }
    }
}

/* The substitution: lanes are tape rows, a warp has 4 columns. Row j's update is final once every
 * row before it has been taken off, and then goes to all rows after it. */
static __device__ __forceinline__ void substitute(delta_memory &m, const chunk_pairs &pairs,
                                                  uint32_t begin, uint32_t end)
{
    const uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    float r[PER_WARP][PER_LANE], o[PER_WARP][PER_LANE], u[PER_WARP][PER_LANE], beta[PER_LANE];
#pragma unroll
    for (int k = 0; k < PER_LANE; k++) {
        const uint32_t i = lane + k * WARP;
        const bool fresh = i >= begin && i < end;
        beta[k] = fresh ? m.beta[i] : 0.0f;
#pragma unroll
        for (int x = 0; x < PER_WARP; x++) {
            const uint32_t c = warp * PER_WARP + x;
            r[x][k] = fresh ? m.r[i][c] : 0.0f;
            o[x][k] = fresh ? m.o[i][c] : 0.0f;
            u[x][k] = i < begin ? m.u[i][c] : 0.0f;
        }
    }
    for (uint32_t j = 0; j < end; j++) {
        float u_j[PER_WARP], to_r[PER_LANE], to_o[PER_LANE];
#pragma unroll
        for (int k = 0; k < PER_LANE; k++) {
            to_r[k] = pairs.kk[j][lane + k * WARP];
            to_o[k] = pairs.qk[j][lane + k * WARP];
        }
#pragma unroll
        for (int x = 0; x < PER_WARP; x++) {
            u_j[x] = 0.0f;
#pragma unroll
            for (int k = 0; k < PER_LANE; k++) {
                if (j >= begin && lane + k * WARP == j)
                    u[x][k] = flush_tiny(beta[k] * r[x][k]);
                if ((int)(j / WARP) == k)
                    u_j[x] = __shfl_sync(0xFFFFFFFFu, u[x][k], (int)(j % WARP));
            }
        }
#pragma unroll
        for (int k = 0; k < PER_LANE; k++) {
            const uint32_t i = lane + k * WARP;
            if (i < begin || i >= end || j > i)
                continue;
#pragma unroll
            for (int x = 0; x < PER_WARP; x++) {
                if (j < i)
                    r[x][k] = fmaf(-to_r[k], u_j[x], r[x][k]);
                o[x][k] = fmaf(to_o[k], u_j[x], o[x][k]);
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

/* The state after a full chunk: a thread has 4 keys and 4 columns. */
static __device__ __forceinline__ void advance_state(delta_memory &m, const chunk_stage &stage,
                                                     float *border)
{
    const uint32_t c = threadIdx.x % (COLUMNS / 4) * 4, a = threadIdx.x / (COLUMNS / 4) * 4;
    const float e = stage.pairs.e[CHUNK - 1];
    float s[4][4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float4 old = *(const float4 *)&m.S[a + i][c];
        s[i][0] = e * old.x;
        s[i][1] = e * old.y;
        s[i][2] = e * old.z;
        s[i][3] = e * old.w;
    }
#pragma unroll 4
    for (uint32_t j = 0; j < CHUNK; j++) {
        const float4 k = *(const float4 *)&stage.k[j][a], u = *(const float4 *)&m.u[j][c];
        const float last = stage.pairs.last[j];
        const float w[4] = {last * k.x, last * k.y, last * k.z, last * k.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            s[i][0] = fmaf(w[i], u.x, s[i][0]);
            s[i][1] = fmaf(w[i], u.y, s[i][1]);
            s[i][2] = fmaf(w[i], u.z, s[i][2]);
            s[i][3] = fmaf(w[i], u.w, s[i][3]);
        }
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float4 next = make_float4(flush_tiny(s[i][0]), flush_tiny(s[i][1]),
                                        flush_tiny(s[i][2]), flush_tiny(s[i][3]));
        *(float4 *)&m.S[a + i][c] = next;
        *(float4 *)&border[(a + i) * DIM + c] = next;
    }
}

/* Block: 16 value columns of one value head of one segment. */
static __global__ void __launch_bounds__(DELTA_THREADS)
    delta_kernel(const sl_cu_rows rows, const __grid_constant__ sl_cu_gdn gdn)
{
    extern __shared__ uint4 raw_delta[];
    delta_memory &m = *(delta_memory *)(void *)raw_delta;
    __shared__ chunk_ref chunks[2];
    const uint32_t head = blockIdx.x / (DIM / COLUMNS);
    const uint32_t column = blockIdx.x % (DIM / COLUMNS) * COLUMNS;
    const uint32_t key_head = key_head_of(gdn, head);
    const size_t state_offset = ((size_t)gdn.index * gdn.n_value_heads + head) * DIM * DIM;
    const size_t y_stride = (size_t)gdn.n_value_heads * DIM;
    if (threadIdx.x == 0)
        look_up_chunk(rows.segments[blockIdx.y], 0, &chunks[0]);
    __syncthreads();
    const uint32_t n_rows = chunks[0].segment.n_rows;
    const uint32_t n_chunks = div_up(chunks[0].segment.pos % CHUNK + n_rows, CHUNK);
    const float *border = chunks[0].segment.border;
    for (uint32_t x = threadIdx.x; x < DIM * COLUMNS / 4; x += DELTA_THREADS) {
        const uint32_t a = x / (COLUMNS / 4), c = x % (COLUMNS / 4) * 4;
        *(float4 *)&m.S[a][c] =
            border ? *(const float4 *)&border[state_offset + a * DIM + column + c]
                   : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
    for (uint32_t x = threadIdx.x; x < chunks[0].begin * COLUMNS; x += DELTA_THREADS) {
        const uint32_t j = x / COLUMNS, c = x % COLUMNS;
        m.u[j][c] = tape_u(gdn, chunks[0].segment, 0, j, head)[column + c];
    }
    copy_chunk(m.stages[0], gdn, chunks[0], head, key_head, column);

    for (uint32_t n = 0; n < n_chunks; n++) {
        chunk_ref &chunk = chunks[n % 2];
        chunk_stage &stage = m.stages[n % STAGES];
        const uint32_t begin = chunk.begin, end = chunk.end;
        if (threadIdx.x == 0 && n + 1 < n_chunks)
            look_up_chunk(chunk.segment, n + 1, &chunks[(n + 1) % 2]);
        for (uint32_t i = begin + threadIdx.x; i < end; i += DELTA_THREADS)
            m.beta[i] = gdn.beta[(size_t)(chunk.row + i - begin) * gdn.n_value_heads + head];
        __syncthreads();
        if (STAGES == 2 && n + 1 < n_chunks) {
            copy_chunk(m.stages[(n + 1) % STAGES], gdn, chunks[(n + 1) % 2], head, key_head, column);
            wait_for_copies<1>();
        } else {
            wait_for_copies<0>();
        }
        __syncthreads();
        read_state(m, stage, begin, end);
        __syncthreads();
        substitute(m, stage.pairs, begin, end);
        __syncthreads();
        for (uint32_t x = threadIdx.x; x < (end - begin) * COLUMNS; x += DELTA_THREADS) {
            const uint32_t i = x / COLUMNS, c = x % COLUMNS;
            tape_u(gdn, chunk.segment, n, begin + i, head)[column + c] = m.u[begin + i][c];
            gdn.y[(chunk.row + i) * y_stride + head * DIM + column + c] = m.o[begin + i][c];
        }
        if (end == CHUNK)
            advance_state(m, stage,
                          chunk.segment.border_out[(n + 1) & 1] + state_offset + column);
        __syncthreads();
        if (STAGES == 1 && n + 1 < n_chunks)
            copy_chunk(m.stages[0], gdn, chunks[(n + 1) % 2], head, key_head, column);
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
    cudaFuncSetAttribute(pairs_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                         (int)sizeof(pair_memory));
    pairs_kernel<<<dim3(rows->n_chunks, gdn->n_value_heads), PAIR_THREADS, sizeof(pair_memory),
                   stream>>>(*rows, *gdn);
    cudaFuncSetAttribute(delta_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                         (int)sizeof(delta_memory));
    delta_kernel<<<dim3(gdn->n_value_heads * (DIM / COLUMNS), rows->n_segments), DELTA_THREADS,
                   sizeof(delta_memory), stream>>>(*rows, *gdn);
    finish_kernel<<<dim3(rows->n_rows, gdn->n_value_heads + gdn->n_key_heads + n_heads), DIM, 0,
                    stream>>>(*rows, *gdn);
}

size_t sl_cu_gdn_pair_bytes(uint32_t n_chunks, uint32_t n_value_heads)
{
    return (size_t)n_chunks * n_value_heads * sizeof(chunk_pairs);
}
