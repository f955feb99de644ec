/* Shared by the kernels of the gated delta layer: where things lie in a state, the arithmetic of
 * the rule, and its operands in shared memory.
 *
 * Every sum over keys or over the rows of a chunk is made here, by one function for prefill and for
 * steps, from tensor products of fixed tiles: that keeps level L1 (docs/EXACTNESS.md, section 6). A
 * row of a tile depends on no other row or column of it, and what is not there is zero.
 *
 * A float goes into a product as two halves, the second what the first leaves out: 22 bits. The
 * product of the two second halves is left out. Halves have a small range, so keys and queries, at
 * most 1, are scaled by 2^14 and every column of the state or of the updates by the power of two
 * that takes its largest value below 2^14; powers of two cost no bit. */
#ifndef SL_BACKEND_CUDA_KERNELS_GDN_CUH
#define SL_BACKEND_CUDA_KERNELS_GDN_CUH

#include <cuda_fp16.h>

#include "backend/cuda/kernels/common.cuh"

enum {
    DIM = SL_GDN_DIM,
    CHUNK = SL_GDN_CHUNK,
    SLICE = 16, /* value columns of a product: its M */
    SLICES = DIM / SLICE,
    TILE = 8, /* rows of a chunk in a product: its N */
    TILES = CHUNK / TILE,
    RANGE = 32, /* keys that are summed in one go */
    RANGES = DIM / RANGE,
    STEP = 16, /* K of one instruction, and rows of a chunk that are summed in one go */
    PARTS = CHUNK / STEP,
    PART_TILES = STEP / TILE,
    KEY_STEPS = RANGE / STEP,
    KEY_TILES = RANGE / TILE
};

/* q is scaled by 1 / sqrt(128), rounded once. */
#define Q_SCALE 0x1.6a09e6p-4f

#define KEY_SCALE  0x1p14f
#define PAIR_SCALE 0x1p-28f

/* ---- a state ---- */

static __device__ inline float *conv_row(const sl_cu_gdn &gdn, const sl_cu_segment &segment,
                                         uint32_t pos)
{
    return segment.conv +
           ((size_t)gdn.index * gdn.n_conv_rows + pos % gdn.n_conv_rows) * gdn.n_channels;
}

static __device__ inline uint32_t key_head_of(const sl_cu_gdn &gdn, uint32_t value_head)
{
    return gdn.tiled ? value_head % gdn.n_key_heads
                     : value_head / (gdn.n_value_heads / gdn.n_key_heads);
}

/* The n-th value head of a key head; the first one keeps what belongs to the key head. */
static __device__ inline uint32_t value_head_of(const sl_cu_gdn &gdn, uint32_t key_head, uint32_t n)
{
    return gdn.tiled ? n * gdn.n_key_heads + key_head
                     : key_head * (gdn.n_value_heads / gdn.n_key_heads) + n;
}

/* Raw channels of the segment's i-th row, 0 and below being rows before the run: in the run, in the
 * state, or before the sequence. */
template <typename T>
static __device__ inline T raw_channels(const sl_cu_gdn &gdn, const sl_cu_segment &segment, int i,
                                        uint32_t channel)
{
    if (i >= 0)
        return *(const T *)&gdn
                    .qkv[(size_t)(segment.first_row + (uint32_t)i) * gdn.n_channels + channel];
    if ((int)segment.pos + i >= 0)
        return *(const T *)&conv_row(gdn, segment, segment.pos + (uint32_t)i)[channel];
    return T{};
}

/* By the processor's own exponential and reciprocal: 3 units of the last place, of large negative
 * numbers more. */
static __device__ __forceinline__ float silu(float x)
{
    float e, r;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(x * -0x1.715476p+0f));
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(1.0f + e));
    return x * r;
}

static __device__ __forceinline__ float inverse_root(float x)
{
    float r;
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return fmaf(fmaf(-x * r, r, 1.0f), 0.5f * r, r);
}

/* Convolution and SiLU of one channel: its taps and its last four rows. */
static __device__ __forceinline__ float convolved(const float4 w, float x0, float x1, float x2,
                                                  float x3)
{
    float sum = fmaf(w.x, x0, 0.0f);
    sum = fmaf(w.y, x1, sum);
    sum = fmaf(w.z, x2, sum);
    return silu(fmaf(w.w, x3, sum));
}

static __device__ inline float decay_gate(const sl_cu_gdn &gdn, size_t row, uint32_t head)
{
    return gdn.a_coef[head] * sl_softplus(gdn.a[row * gdn.n_value_heads + head] + gdn.dt[head]);
}

static __device__ inline float write_strength(const sl_cu_gdn &gdn, size_t row, uint32_t head)
{
    return sl_sigmoid(gdn.b[row * gdn.n_value_heads + head]);
}

/* Row j of chunk m of the segment's rows on the tape; then heads of 16 rows of 128, then decays. */
static __device__ inline float *tape_layer(const sl_cu_gdn &gdn, const sl_cu_segment &segment,
                                           uint32_t m, uint32_t j)
{
    return segment.tape[m == 0 ? 0 : 1 + (m & 1)][j / SL_TAPE_PAGE] +
           (size_t)gdn.index * gdn.layer_floats;
}
static __device__ inline float *tape_k(const sl_cu_gdn &gdn, const sl_cu_segment &segment,
                                       uint32_t m, uint32_t j, uint32_t head)
{
    return tape_layer(gdn, segment, m, j) + (head * SL_TAPE_PAGE + j % SL_TAPE_PAGE) * DIM;
}
static __device__ inline float *tape_u(const sl_cu_gdn &gdn, const sl_cu_segment &segment,
                                       uint32_t m, uint32_t j, uint32_t head)
{
    return tape_k(gdn, segment, m, j, gdn.n_key_heads + head);
}
static __device__ inline float *tape_g(const sl_cu_gdn &gdn, const sl_cu_segment &segment,
                                       uint32_t m, uint32_t j, uint32_t head)
{
    return tape_layer(gdn, segment, m, j) +
           (size_t)(gdn.n_key_heads + gdn.n_value_heads) * SL_TAPE_PAGE * DIM +
           head * SL_TAPE_PAGE + j % SL_TAPE_PAGE;
}

/* The lane, read once: the compiler would read the register again and again, which is slow. */
static __device__ __forceinline__ uint32_t lane_kept(void)
{
    uint32_t lane;
    asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
    return lane;
}

/* ---- sums in a warp ---- */

/* Over all lanes, the same bits in each. */
static __device__ inline float sum_lanes(float x)
{
#pragma unroll
    for (int far = WARP / 2; far > 0; far /= 2)
        x = x + __shfl_xor_sync(0xFFFFFFFFu, x, far);
    return x;
}

/* 1 / the norm of a head's key or query, four channels a lane. */
static __device__ inline float inverse_norm(const float4 x)
{
    float sum = fmaf(x.x, x.x, 0.0f);
    sum = fmaf(x.y, x.y, sum);
    sum = fmaf(x.z, x.z, sum);
    sum = sum_lanes(fmaf(x.w, x.w, sum));
    return inverse_root(sum + 1e-6f);
}

/* The same of four rows, in fewer steps: each lane ends up with the sum of one row. */
static __device__ __forceinline__ void inverse_norms(float (&out)[4], const float4 (&rows)[4])
{
    const uint32_t lane = threadIdx.x % WARP;
    const bool upper = lane & 16, odd = lane & 8;
    float s[4];
#pragma unroll
    for (int r = 0; r < 4; r++) {
        s[r] = fmaf(rows[r].x, rows[r].x, 0.0f);
        s[r] = fmaf(rows[r].y, rows[r].y, s[r]);
        s[r] = fmaf(rows[r].z, rows[r].z, s[r]);
        s[r] = fmaf(rows[r].w, rows[r].w, s[r]);
    }
    const float far0 = __shfl_xor_sync(0xFFFFFFFFu, upper ? s[0] : s[2], 16);
    const float far1 = __shfl_xor_sync(0xFFFFFFFFu, upper ? s[1] : s[3], 16);
    const float even = (upper ? s[2] : s[0]) + far0, other = (upper ? s[3] : s[1]) + far1;
    float sum = (odd ? other : even) + __shfl_xor_sync(0xFFFFFFFFu, odd ? even : other, 8);
#pragma unroll
    for (int far = 4; far > 0; far /= 2)
        sum = sum + __shfl_xor_sync(0xFFFFFFFFu, sum, far);
    const float inverse = inverse_root(sum + 1e-6f);
#pragma unroll
    for (int r = 0; r < 4; r++)
        out[r] = __shfl_sync(0xFFFFFFFFu, inverse, r / 2 * 16 + r % 2 * 8);
}

/* Gates summed up from the border, in double: total[i] = g[0] + ... + g[i], by a warp. Rows that do
 * not exist yet are zero; they change no earlier one. */
static __device__ inline void sum_gates(const float *g, double *total)
{
    const uint32_t lane = threadIdx.x % WARP;
    double before = 0.0;
    for (uint32_t first = 0; first < CHUNK; first += WARP) {
        double x = first + lane < CHUNK ? (double)g[first + lane] : 0.0;
#pragma unroll
        for (uint32_t far = 1; far < WARP; far *= 2) {
            const double other = __shfl_up_sync(0xFFFFFFFFu, x, far);
            x = lane >= far ? x + other : x;
        }
        x = before + x;
        if (first + lane < CHUNK)
            total[first + lane] = x;
        before = __shfl_sync(0xFFFFFFFFu, x, WARP - 1);
    }
}

/* Decay from row j to row i of the chunk. */
static __device__ inline float decay_between(double total_i, double total_j)
{
    return sl_expf((float)(total_i - total_j));
}

/* ---- operands in shared memory ---- */

/* Rows of 128 halves, every 16 bytes moved within the row so that 8 rows lie in different banks. */
static __device__ __forceinline__ uint32_t half_at(uint32_t row, uint32_t a)
{
    return row * DIM + (((a / 8) ^ (row % 8)) * 8 + a % 8);
}

/* Four floats of a row of the chunk's length moved likewise: [columns or rows][CHUNK]. */
static __device__ __forceinline__ uint32_t turned(uint32_t r)
{
    return ((r & 3) << 1 | (r >> 2 & 1)) & (CHUNK / 4 - 1);
}
static __device__ __forceinline__ uint32_t float_at(uint32_t r, uint32_t i)
{
    return r * CHUNK + (((i / 4) ^ turned(r)) * 4 + i % 4);
}

/* Keys and queries of a chunk as halves, half_at. */
typedef struct key_block {
    __half k_high[CHUNK * DIM], k_low[CHUNK * DIM], q_high[CHUNK * DIM], q_low[CHUNK * DIM];
} key_block;

/* What rows of a chunk have to do with each other, for one value head, by tiles of 8 x 8 rows. */
enum {
    SOLVE_TILES = TILES * (TILES - 1) / 2, /* below the diagonal */
    READ_TILES = SOLVE_TILES + TILES,      /* and on it */
    CORNER = TILE * (TILE - 1) / 2         /* below the diagonal of a tile */
};
typedef struct pair_block {
    float solve[SOLVE_TILES][TILE][TILE]; /* solve_place(i, j): [j][i]: -beta_i exp(d_ij) k_i.k_j */
    float corner[TILES][CORNER];          /* the same of tiles on the diagonal: corner_at */
    float read[READ_TILES][TILE][TILE];   /* read_place(i, j): [i][j]: exp(d_ij) q_i.k_j, j <= i */
    float e[CHUNK];                       /* decay since the border */
    float last[CHUNK];                    /* decay from a row to the chunk's end */
    float e_beta[CHUNK];                  /* beta e */
} pair_block;
static_assert(sizeof(pair_block) % 32 == 0, "two blocks copy halves of it, 16 bytes at a time");

/* Places of tiles: of rows i with the updates of rows j. */
static constexpr __device__ uint32_t solve_place(uint32_t i, uint32_t j)
{
    return i * (i - 1) / 2 + j;
}
static constexpr __device__ uint32_t read_place(uint32_t i, uint32_t j)
{
    return i * (i + 1) / 2 + j;
}

/* Of row i with row j of the same tile, j < i: as the substitution takes them, j by j. */
static constexpr __device__ uint32_t corner_at(uint32_t i, uint32_t j)
{
    return j * (2 * TILE - 1 - j) / 2 + i - j - 1;
}

/* ---- products ---- */

typedef struct halves {
    uint32_t high, low; /* two each */
} halves;

static __device__ __forceinline__ halves split(float x, float y)
{
    const __half2 high = __floats2half2_rn(x, y);
    const float2 back = __half22float2(high);
    const __half2 low = __floats2half2_rn(x - back.x, y - back.y);
    halves out;
    out.high = *(const uint32_t *)&high;
    out.low = *(const uint32_t *)&low;
    return out;
}

/* The left operand: 16 rows and STEPS * 16 of K. */
template <int STEPS> struct left {
    uint32_t high[STEPS][4], low[STEPS][4];
};

static __device__ __forceinline__ void mma_half(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                                uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

static __device__ __forceinline__ void mma_tf32(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                                uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* The right operand: N tiles of 8 columns and STEPS * 16 of K. */
template <int STEPS, int N> struct right {
    uint32_t high[N][2 * STEPS], low[N][2 * STEPS];
};

/* d = a b, tile by tile: the small products are summed apart from the large ones. */
template <int STEPS, int N>
static __device__ __forceinline__ void multiply(float (&d)[N][4], const left<STEPS> &a,
                                                const right<STEPS, N> &b)
{
    float small[N][4];
#pragma unroll
    for (int n = 0; n < N; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            d[n][i] = small[n][i] = 0.0f;
    }
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
#pragma unroll
        for (int n = 0; n < N; n++)
            mma_half(small[n], a.low[s], b.high[n][2 * s], b.high[n][2 * s + 1]);
#pragma unroll
        for (int n = 0; n < N; n++)
            mma_half(d[n], a.high[s], b.high[n][2 * s], b.high[n][2 * s + 1]);
#pragma unroll
        for (int n = 0; n < N; n++)
            mma_half(small[n], a.high[s], b.low[n][2 * s], b.low[n][2 * s + 1]);
    }
#pragma unroll
    for (int n = 0; n < N; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            d[n][i] = d[n][i] + small[n][i];
    }
}

/* The part of a float that an instruction for 19-bit floats takes; it ignores the rest of what is
 * left by itself. */
static __device__ __forceinline__ float high_part(float x)
{
    return sl_float_of_bits(sl_bits_of_float(x) & 0xFFFFE000u);
}

/* Lane l gets row l / 4, columns 2 (l % 4) and the next of four matrices of 8 x 8 halves, whose
 * rows the lanes point to, 8 each. */
static __device__ __forceinline__ void load_matrices(uint32_t (&r)[4], const __half *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row)));
}

/* The same of the transposed matrices. */
static __device__ __forceinline__ void load_turned(uint32_t (&r)[4], const __half *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row)));
}
/* Tiles of 8 rows of halves as right operand of products over a range of keys. */
template <int N>
static __device__ __forceinline__ void load_rows(right<KEY_STEPS, N> &b, const __half *high,
                                                 const __half *low, uint32_t first_row,
                                                 uint32_t range)
{
    const uint32_t lane = threadIdx.x % WARP;
#pragma unroll
    for (uint32_t n = 0; n < N; n++) {
        const uint32_t row = first_row + n * TILE + lane % 8;
        const uint32_t at = half_at(row, range * RANGE + lane / 8 * 8);
        load_matrices(b.high[n], high + at);
        load_matrices(b.low[n], low + at);
    }
}

/* A range of keys of 16 rows as right operand of products over the rows. */
typedef right<1, KEY_TILES> turned_keys;

static __device__ __forceinline__ void load_keys(turned_keys &out, const __half *high,
                                                 const __half *low, uint32_t part, uint32_t range)
{
    const uint32_t lane = threadIdx.x % WARP, row = part * STEP + lane % STEP;
#pragma unroll
    for (uint32_t n = 0; n < KEY_TILES; n += 2) {
        const uint32_t at = half_at(row, range * RANGE + (n + lane / STEP) * TILE);
        uint32_t r[4];
        load_turned(r, high + at);
        out.high[n][0] = r[0];
        out.high[n][1] = r[1];
        out.high[n + 1][0] = r[2];
        out.high[n + 1][1] = r[3];
        load_turned(r, low + at);
        out.low[n][0] = r[0];
        out.low[n][1] = r[1];
        out.low[n + 1][0] = r[2];
        out.low[n + 1][1] = r[3];
    }
}

/* ---- the state ---- */

/* A slice of 16 columns and a range of 32 keys of the state in a warp: s[n][x] in lane 4 g + t is
 * column g + 8 (x / 2), key 8 n + 2 t + x % 2. */
typedef struct state_part {
    float s[KEY_TILES][4];
} state_part;

static __device__ __forceinline__ size_t state_place(uint32_t range)
{
    const uint32_t g = threadIdx.x % WARP / 4, t = threadIdx.x % 4;
    return (range * RANGE + 2 * t) * DIM + g;
}
static constexpr __device__ uint32_t state_step(uint32_t n, uint32_t x)
{
    return (n * TILE + x % 2) * DIM + x / 2 * 8;
}

/* From a head's state at the slice's first column; NULL is zeros. */
static __device__ __forceinline__ void load_state(state_part &state, const float *from,
                                                  uint32_t range)
{
    const float *at = from + state_place(range);
#pragma unroll
    for (uint32_t n = 0; n < KEY_TILES; n++) {
#pragma unroll
        for (uint32_t x = 0; x < 4; x++)
            state.s[n][x] = from ? at[state_step(n, x)] : 0.0f;
    }
}

static __device__ __forceinline__ void store_state(const state_part &state, float *to,
                                                   uint32_t range)
{
    float *at = to + state_place(range);
#pragma unroll
    for (uint32_t n = 0; n < KEY_TILES; n++) {
#pragma unroll
        for (uint32_t x = 0; x < 4; x++)
            at[state_step(n, x)] = state.s[n][x];
    }
}

/* Powers of two: `up` takes values up to `largest` below 2^14, `down` undoes it and KEY_SCALE in a
 * product. What is below 2^-99 counts as that. A NaN needs no care, it stays one. */
typedef struct scale {
    float up, down;
} scale;

static __device__ __forceinline__ scale scale_of(float largest)
{
    const uint32_t exponent = max(sl_bits_of_float(largest) >> 23, 28u);
    scale out;
    out.up = sl_float_of_bits((267 - exponent) << 23);
    out.down = sl_float_of_bits((exponent - 27) << 23);
    return out;
}

/* The largest over the four lanes that share columns. */
static __device__ __forceinline__ float largest_in_columns(float x)
{
    x = fmaxf(x, __shfl_xor_sync(0xFFFFFFFFu, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xFFFFFFFFu, x, 2));
}

/* Pairs of values of column g and of column g + 8, in the order of products, as halves. */
template <int STEPS>
static __device__ __forceinline__ void
split_columns(left<STEPS> &out, const float (&x)[2 * STEPS][4], float (&down)[2])
{
    float largest[2] = {0.0f, 0.0f};
#pragma unroll
    for (int n = 0; n < 2 * STEPS; n++) {
        largest[0] = fmaxf(largest[0], fmaxf(fabsf(x[n][0]), fabsf(x[n][1])));
        largest[1] = fmaxf(largest[1], fmaxf(fabsf(x[n][2]), fabsf(x[n][3])));
    }
#pragma unroll
    for (int side = 0; side < 2; side++) {
        const scale s = scale_of(largest_in_columns(largest[side]));
#pragma unroll
        for (int n = 0; n < 2 * STEPS; n++) {
            const halves h = split(x[n][2 * side] * s.up, x[n][2 * side + 1] * s.up);
            out.high[n / 2][n % 2 * 2 + side] = h.high;
            out.low[n / 2][n % 2 * 2 + side] = h.low;
        }
        down[side] = s.down;
    }
}

/* The state as left operand: sums over its range of keys are to be multiplied by `down`. */
typedef struct state_operand {
    left<KEY_STEPS> a;
    float down[2];
} state_operand;

static __device__ __forceinline__ void split_state(state_operand &out, const state_part &state)
{
    split_columns<KEY_STEPS>(out.a, state.s, out.down);
}

/* S^T times tiles of 8 rows: x[n][0], x[n][1] of column g, rows 2 t and 2 t + 1 of the tile,
 * x[n][2], x[n][3] of column g + 8. */
template <int N>
static __device__ __forceinline__ void read_state(float (&x)[N][4], const state_operand &state,
                                                  const right<KEY_STEPS, N> &rows)
{
    multiply<KEY_STEPS, N>(x, state.a, rows);
#pragma unroll
    for (int n = 0; n < N; n++) {
        x[n][0] *= state.down[0];
        x[n][1] *= state.down[0];
        x[n][2] *= state.down[1];
        x[n][3] *= state.down[1];
    }
}

/* The updates of the chunk's rows in a warp, like the state: u[m][x] is column g + 8 (x / 2), row
 * 8 m + 2 t + x % 2. */
typedef struct updates {
    float u[TILES][4];
} updates;

/* The state after a full chunk is e S + the sum over its rows of (last u) k, `last` being the decay
 * from the row to the chunk's end: first this, then 16 rows at a time ascending. */
static __device__ __forceinline__ void decay_state(state_part &state, float e)
{
#pragma unroll
    for (uint32_t n = 0; n < KEY_TILES; n++) {
#pragma unroll
        for (uint32_t x = 0; x < 4; x++)
            state.s[n][x] = e * state.s[n][x];
    }
}

/* 16 rows' decayed updates as left operand, split by columns. */
typedef struct update_operand {
    left<1> a;
    float down[2];
} update_operand;

static __device__ __forceinline__ void add_updates(state_part &state, const update_operand &u,
                                                   const turned_keys &keys)
{
    float d[KEY_TILES][4];
    multiply(d, u.a, keys);
#pragma unroll
    for (uint32_t n = 0; n < KEY_TILES; n++) {
#pragma unroll
        for (uint32_t x = 0; x < 4; x++)
            state.s[n][x] = fmaf(d[n][x], u.down[x / 2], state.s[n][x]);
    }
}

/* What the updates of the chunk add to the outputs of tile `tile` of its rows, of which only those
 * of the tiles up to it count: d as in read_state. read[m] has the weights of rows 8 m + 2 t and
 * the next for row g of the tile. */
static __device__ __forceinline__ void read_updates(float (&d)[4], const updates &updates,
                                                    const float2 (&read)[TILES], uint32_t tile)
{
    float large[4] = {0.0f, 0.0f, 0.0f, 0.0f}, small0[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    float small1[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
    for (uint32_t m = 0; m < TILES; m++) {
        if (m > tile)
            break;
        const float(&u)[4] = updates.u[m];
        const float values[4] = {u[0], u[2], u[1],
                                 u[3]}; /* K of the instruction: 0 2 4 6 1 3 5 7 */
        const float weights[2] = {read[m].x, read[m].y};
        uint32_t high[4], low[4], w_high[2], w_low[2];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float part = high_part(values[i]);
            high[i] = sl_bits_of_float(part);
            low[i] = sl_bits_of_float(values[i] - part);
        }
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const float part = high_part(weights[i]);
            w_high[i] = sl_bits_of_float(part);
            w_low[i] = sl_bits_of_float(weights[i] - part);
        }
        mma_tf32(large, high, w_high[0], w_high[1]);
        mma_tf32(small0, low, w_high[0], w_high[1]);
        mma_tf32(small1, high, w_low[0], w_low[1]);
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
        d[i] = large[i] + (small0[i] + small1[i]);
}

/* ---- gated norm ---- */

/* Sum of squares of 32 outputs, four in each of eight lanes. */
static __device__ __forceinline__ float sum_squares_of(const float4 o)
{
    float sum = fmaf(o.x, o.x, 0.0f);
    sum = fmaf(o.y, o.y, sum);
    sum = fmaf(o.z, o.z, sum);
    sum = fmaf(o.w, o.w, sum);
#pragma unroll
    for (int far = 4; far > 0; far /= 2)
        sum = sum + __shfl_xor_sync(0xFFFFFFFFu, sum, far);
    return sum;
}

/* From the four sums of a head. */
static __device__ __forceinline__ float inverse_rms(float s0, float s1, float s2, float s3,
                                                    float eps)
{
    return inverse_root((((s0 + s1) + s2) + s3) * (1.0f / DIM) + eps);
}

static __device__ __forceinline__ float gated(float o, float inverse, float weight, float z)
{
    return ((o * inverse) * weight) * silu(z);
}

#endif
