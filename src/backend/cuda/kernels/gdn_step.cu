/* The gated delta layer for one row of each of any number of sequences, in one kernel: what
 * gdn_prepare.cu and gdn.cu do in three, by the same functions on tiles of which the row fills one
 * column. The state and the tape, which no kernel of the run has written so far, come in before the
 * projections are ready.
 *
 * A block has some value columns of one head. With many sequences it has all of them, so that
 * nothing is done twice, and takes several sequences, one after the other: each warp has its own
 * part of the work, does it as soon as it can, and asks for what it needs of the next sequence when
 * its room is free. With few sequences it has 32 columns of one, so that every multiprocessor has
 * work, and the four blocks of a head are a cluster. */
#include "backend/cuda/kernels/cluster.cuh"
#include "backend/cuda/kernels/gdn.cuh"

enum { KEY, QUERY };
enum {
    GROUP = WARP, /* columns that one warp finishes, one a lane */
    GROUPS_OF_HEAD = DIM / GROUP,
    ROW_TILES = CHUNK / STEP,
    WORKERS = 8,
    PARTS_OF_WORK = WORKERS / RANGES,
    MOST_ROW_TILES = (ROW_TILES + PARTS_OF_WORK - 1) / PARTS_OF_WORK, /* of a worker */
    MOST_SEQUENCES = 8                                                /* of a block */
};

/* The warps of a block. A worker has slices of 16 columns and a range of 32 keys of the state, and
 * of the tape's keys the same range of tiles of 16 rows. One warp each makes the row's key, its
 * query and the gates; one a group convolves the values, and finishes them when the workers are
 * done. */
enum { KEY_WARP = WORKERS, QUERY_WARP, GATES_WARP, VALUES_WARP };

template <int COLUMNS> struct size_of {
    enum {
        IS_HEAD = COLUMNS == DIM,
        GROUPS = COLUMNS / GROUP,
        OWN_SLICES = COLUMNS / SLICE / PARTS_OF_WORK,
        COPIED = IS_HEAD ? 2 : 1, /* slices that are copied at a time, 128 bytes a row */
        COPIES = OWN_SLICES / COPIED,
        THREADS = (VALUES_WARP + GROUPS) * WARP,
        BLOCKS = 2 /* that are to fit on a multiprocessor */
    };
};

/* Of one sequence, made before the workers' products. */
typedef struct row_part {
    uint32_t high[2][DIM / 2], low[2][DIM / 2]; /* the row's key and query as halves */
    float decay[CHUNK];                         /* from a row until now */
    float e, beta;
} row_part;

template <int COLUMNS> struct products {
    float dots[RANGES][2][CHUNK];                 /* key and query with the tape's keys */
    alignas(8) float product[RANGES][2][COLUMNS]; /* and with the state */
};

/* What two sequences in turn have twice is at sequence % 2. Counters: of key and query; of gates;
 * of workers whose products are there; of groups that need none of all that any more. */
template <int COLUMNS> struct step_memory {
    float state[DIM * COLUMNS]; /* column_place */
    union {
        float tape[CHUNK * DIM]; /* keys, tape_place */
        struct {
            __half high[CHUNK * DIM], low[CHUNK * DIM];
        } keys; /* the same at the chunk's end: half_at */
    };
    alignas(16) float u[CHUNK * COLUMNS]; /* column_place */
    alignas(16) row_part row[2];
    products<COLUMNS> products[2];
    double total[CHUNK];
    float g[CHUNK];
    alignas(16) float solve[size_of<COLUMNS>::GROUPS][CHUNK];
    alignas(16) float read[size_of<COLUMNS>::GROUPS][CHUNK];
    alignas(16) float o[COLUMNS];
    float sums[2][GROUPS_OF_HEAD]; /* squares of the outputs of each group */
    uint64_t made[2], gated[2], multiplied[2], solved[2];
    uint64_t arrived; /* counts the bytes of sums that blocks send */
    sl_cu_segment segments[MOST_SEQUENCES];
};

/* Where the block is at work. */
typedef struct place {
    uint32_t head, key_head;
    uint32_t first;             /* of its columns */
    bool keeps_head, keeps_key; /* whether it writes what belongs to the head, the key head */
    size_t state;               /* of its first column in a state */
} place;

static __device__ __forceinline__ uint32_t tape_rows(const sl_cu_segment &segment)
{
    return segment.pos % CHUNK;
}

/* Of the n-th time that a pair of counters is used. */
static __device__ __forceinline__ uint32_t parity_of(uint32_t n)
{
    return n / 2 % 2;
}

/* ---- what lies in shared memory, and how it gets there ---- */

/* A lane's two columns in a row of 32 or 128, where a warp reads rows 2 t and columns 2 g. */
template <int COLUMNS>
static __device__ __forceinline__ uint32_t column_place(uint32_t row, uint32_t c)
{
    return row * COLUMNS + (((c / 4) ^ (row / 2 % 4 * 2)) * 4 + c % 4);
}

/* Two keys of a row of the tape, where a warp reads rows g and keys 2 t. */
static __device__ __forceinline__ uint32_t tape_place(uint32_t j, uint32_t key)
{
    return j * DIM + (((key / 4) ^ (j % 4 * 2)) * 4 + key % 4);
}

/* Copies 16 bytes ahead, or zeros. */
static __device__ __forceinline__ void copy_or_clear(float *to, const float *from, bool there)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)),
                 "l"(from), "r"(there ? 16 : 0));
}

/* A worker's part of slices of the state. */
template <int COLUMNS>
static __device__ __forceinline__ void copy_slices(step_memory<COLUMNS> &m,
                                                   const sl_cu_segment &segment, const place &at,
                                                   uint32_t slice, uint32_t range)
{
    enum { PIECES = SLICE / 4 * size_of<COLUMNS>::COPIED, ROWS = WARP / PIECES /* at a time */ };
    const uint32_t lane = threadIdx.x % WARP, c = slice * SLICE + lane % PIECES * 4;
    const uint32_t first = range * RANGE + lane / PIECES;
    const float *from = segment.border + at.state + first * DIM + c;
#pragma unroll
    for (uint32_t i = 0; i < RANGE; i += ROWS)
        copy_or_clear(&m.state[column_place<COLUMNS>(first + i, c)], from + i * DIM,
                      segment.border != NULL);
    end_of_copies();
}

/* Whether rows of a tile of the tape count, the row's own among them. */
static __device__ __forceinline__ bool is_needed(uint32_t begin, uint32_t tile)
{
    return tile < ROW_TILES && tile * STEP <= begin;
}

/* A worker's part of the tape's keys. */
template <int COLUMNS>
static __device__ __forceinline__ void copy_tape(step_memory<COLUMNS> &m, const sl_cu_gdn &gdn,
                                                 const sl_cu_segment &segment, const place &at,
                                                 uint32_t part, uint32_t range)
{
    enum { PIECES = RANGE / 4, ROWS = WARP / PIECES };
    const uint32_t lane = threadIdx.x % WARP, key = range * RANGE + lane % PIECES * 4;
    const uint32_t begin = tape_rows(segment);
#pragma unroll
    for (uint32_t n = 0; n < MOST_ROW_TILES; n++) {
        const uint32_t tile = part + n * PARTS_OF_WORK, first = tile * STEP + lane / PIECES;
        if (!is_needed(begin, tile))
            break;
        const float *from = tape_k(gdn, segment, 0, first, at.key_head) + key;
#pragma unroll
        for (uint32_t i = 0; i < STEP; i += ROWS)
            copy_or_clear(&m.tape[tape_place(first + i, key)], from + i * DIM, first + i < begin);
    }
    end_of_copies();
}
static_assert(SL_TAPE_PAGE % STEP == 0, "a tile of rows lies in one page");

/* A group's updates, whole tiles of rows. */
template <int COLUMNS>
static __device__ __forceinline__ void copy_updates(step_memory<COLUMNS> &m, const sl_cu_gdn &gdn,
                                                    const sl_cu_segment &segment, const place &at,
                                                    uint32_t group)
{
    enum { PIECES = GROUP / 4, ROWS = WARP / PIECES };
    const uint32_t lane = threadIdx.x % WARP, c = group * GROUP + lane % PIECES * 4;
    const uint32_t begin = tape_rows(segment);
#pragma unroll
    for (uint32_t page = 0; page < SL_TAPE_CHUNK_PAGES; page++) {
        const uint32_t first = page * SL_TAPE_PAGE + lane / PIECES;
        if (page * SL_TAPE_PAGE > begin)
            break;
        const float *from = tape_u(gdn, segment, 0, first, at.head) + at.first + c;
#pragma unroll
        for (uint32_t i = 0; i < SL_TAPE_PAGE; i += ROWS)
            copy_or_clear(&m.u[column_place<COLUMNS>(first + i, c)], from + i * DIM,
                          first + i < begin);
    }
    end_of_copies();
}

/* ---- the row ---- */

/* What the rows before this one left of a channel, or of four: T is float or float4. */
template <typename T> struct history {
    T x[SL_CONV_HISTORY];
};

template <typename T>
static __device__ __forceinline__ history<T>
load_history(const sl_cu_gdn &gdn, const sl_cu_segment &segment, uint32_t channel)
{
    history<T> out;
    const float *rows = segment.conv + (size_t)gdn.index * gdn.n_conv_rows * gdn.n_channels;
    const uint32_t now = segment.pos % gdn.n_conv_rows;
#pragma unroll
    for (uint32_t back = 1; back <= SL_CONV_HISTORY; back++) {
        const uint32_t row = now >= back ? now - back : now + gdn.n_conv_rows - back;
        out.x[SL_CONV_HISTORY - back] =
            back <= segment.pos ? *(const T *)&rows[(size_t)row * gdn.n_channels + channel] : T{};
    }
    return out;
}

template <typename T>
static __device__ __forceinline__ T load_row(const sl_cu_gdn &gdn, const sl_cu_segment &segment,
                                             uint32_t channel)
{
    return *(const T *)&gdn.qkv[(size_t)segment.first_row * gdn.n_channels + channel];
}

/* Keys, or queries, of all sequences. */
template <int COLUMNS>
static __device__ __forceinline__ void make_rows(step_memory<COLUMNS> &m, const sl_cu_gdn &gdn,
                                                 const place &at, uint32_t n, uint32_t kind)
{
    const uint32_t lane = threadIdx.x % WARP;
    const uint32_t channel = ((kind == KEY ? gdn.n_key_heads : 0) + at.key_head) * DIM + 4 * lane;
    float4 w[4];
#pragma unroll
    for (uint32_t i = 0; i < 4; i++)
        w[i] = ((const float4 *)gdn.conv)[channel + i];
    history<float4> before = load_history<float4>(gdn, m.segments[0], channel);
    wait_for_previous();
    float4 now = load_row<float4>(gdn, m.segments[0], channel);
#pragma unroll 1
    for (uint32_t i = 0; i < n; i++) {
        const sl_cu_segment &segment = m.segments[i];
        if (at.keeps_key)
            *(float4 *)&conv_row(gdn, segment, segment.pos)[channel] = now;
        const float4 *p = before.x;
        float4 x = make_float4(convolved(w[0], p[0].x, p[1].x, p[2].x, now.x),
                               convolved(w[1], p[0].y, p[1].y, p[2].y, now.y),
                               convolved(w[2], p[0].z, p[1].z, p[2].z, now.z),
                               convolved(w[3], p[0].w, p[1].w, p[2].w, now.w));
        if (i + 1 < n) {
            before = load_history<float4>(gdn, m.segments[i + 1], channel);
            now = load_row<float4>(gdn, m.segments[i + 1], channel);
        }
        const float inverse = inverse_norm(x);
        x = make_float4(x.x * inverse, x.y * inverse, x.z * inverse, x.w * inverse);
        if (kind == QUERY)
            x = make_float4(x.x * Q_SCALE, x.y * Q_SCALE, x.z * Q_SCALE, x.w * Q_SCALE);
        else if (at.keeps_key)
            *(float4 *)&tape_k(gdn, segment, 0, tape_rows(segment), at.key_head)[4 * lane] = x;
        const halves xy = split(x.x * KEY_SCALE, x.y * KEY_SCALE);
        const halves zw = split(x.z * KEY_SCALE, x.w * KEY_SCALE);
        if (i >= 2)
            wait_for_counter(&m.solved[i % 2], parity_of(i - 2));
        row_part &row = m.row[i % 2];
        *(uint2 *)&row.high[kind][2 * lane] = make_uint2(xy.high, zw.high);
        *(uint2 *)&row.low[kind][2 * lane] = make_uint2(xy.low, zw.low);
        __syncwarp();
        if (lane == 0)
            arrive(&m.made[i % 2]);
    }
}

/* Gates and decays of all sequences. */
template <int COLUMNS>
static __device__ __forceinline__ void take_gates(step_memory<COLUMNS> &m, const sl_cu_gdn &gdn,
                                                  const place &at, uint32_t n)
{
    const uint32_t lane = threadIdx.x % WARP;
#pragma unroll 1
    for (uint32_t i = 0; i < n; i++) {
        const sl_cu_segment &segment = m.segments[i];
        const uint32_t begin = tape_rows(segment);
        for (uint32_t j = lane; j < CHUNK; j += WARP)
            m.g[j] = j < begin ? *tape_g(gdn, segment, 0, j, at.head) : 0.0f;
        if (i == 0)
            wait_for_previous();
        const float g = decay_gate(gdn, segment.first_row, at.head);
        const float beta = write_strength(gdn, segment.first_row, at.head);
        __syncwarp();
        if (lane == 0) {
            m.g[begin] = g;
            if (at.keeps_head)
                *tape_g(gdn, segment, 0, begin, at.head) = g;
        }
        __syncwarp();
        sum_gates(m.g, m.total);
        __syncwarp();
        if (i >= 2)
            wait_for_counter(&m.solved[i % 2], parity_of(i - 2));
        row_part &row = m.row[i % 2];
        const double now = m.total[begin];
        for (uint32_t j = lane; j < CHUNK; j += WARP)
            row.decay[j] = j <= begin ? decay_between(now, m.total[j]) : 0.0f;
        if (lane == 0) {
            row.e = sl_expf((float)now);
            row.beta = beta;
        }
        __syncwarp();
        if (lane == 0)
            arrive(&m.gated[i % 2]);
    }
}

/* ---- workers ---- */

/* A slice of 16 columns and a range of 32 keys: s[n][x] in lane 4 g + t is column 2 g + x / 2, key
 * 8 n + 2 t + x % 2. (Which columns are rows g and g + 8 of an operand is anyone's choice.) */
template <int COLUMNS>
static __device__ __forceinline__ void take_state(state_part &state, const step_memory<COLUMNS> &m,
                                                  uint32_t slice, uint32_t range)
{
    const uint32_t g = threadIdx.x % WARP / 4, t = threadIdx.x % 4;
#pragma unroll
    for (uint32_t n = 0; n < KEY_TILES; n++) {
#pragma unroll
        for (uint32_t x = 0; x < 2; x++) {
            const uint32_t key = range * RANGE + n * TILE + 2 * t + x;
            const float2 two =
                *(const float2 *)&m.state[column_place<COLUMNS>(key, slice * SLICE + 2 * g)];
            state.s[n][x] = two.x;
            state.s[n][2 + x] = two.y;
        }
    }
}

/* Key and query as two columns of a tile, a range of keys. */
static __device__ __forceinline__ void take_row(right<KEY_STEPS, 1> &out, const row_part &row,
                                                uint32_t range)
{
    const uint32_t g = threadIdx.x % WARP / 4, t = threadIdx.x % 4;
#pragma unroll
    for (uint32_t i = 0; i < 2 * KEY_STEPS; i++) {
        const uint32_t pair = range * (RANGE / 2) + i * 4 + t;
        out.high[0][i] = g <= QUERY ? row.high[g][pair] : 0;
        out.low[0][i] = g <= QUERY ? row.low[g][pair] : 0;
    }
}

static __device__ __forceinline__ uint32_t tape_row(uint32_t tile, uint32_t reg)
{
    return tile * STEP + threadIdx.x % WARP / 4 + reg % 2 * 8;
}

static __device__ __forceinline__ uint32_t tape_key(uint32_t range, uint32_t s, uint32_t reg)
{
    return range * RANGE + s * STEP + 2 * (threadIdx.x % 4) + reg / 2 * 8;
}

/* A tile of the tape's keys as left operand. */
template <int COLUMNS>
static __device__ __forceinline__ void take_tape(left<KEY_STEPS> &a, const step_memory<COLUMNS> &m,
                                                 uint32_t tile, uint32_t range)
{
#pragma unroll
    for (uint32_t s = 0; s < KEY_STEPS; s++) {
#pragma unroll
        for (uint32_t reg = 0; reg < 4; reg++) {
            const uint32_t at = tape_place(tape_row(tile, reg), tape_key(range, s, reg));
            const float2 k = *(const float2 *)&m.tape[at];
            const halves h = split(k.x * KEY_SCALE, k.y * KEY_SCALE);
            a.high[s][reg] = h.high;
            a.low[s][reg] = h.low;
        }
    }
}

/* The row's own key belongs to the tape too. */
static __device__ __forceinline__ void add_own_key(left<KEY_STEPS> &a, const row_part &row,
                                                   uint32_t begin, uint32_t tile, uint32_t range)
{
#pragma unroll
    for (uint32_t reg = 0; reg < 2; reg++) {
        if (tape_row(tile, reg) != begin)
            continue;
#pragma unroll
        for (uint32_t s = 0; s < KEY_STEPS; s++) {
#pragma unroll
            for (uint32_t next = reg; next < 4; next += 2) {
                a.high[s][next] = row.high[KEY][tape_key(range, s, next) / 2];
                a.low[s][next] = row.low[KEY][tape_key(range, s, next) / 2];
            }
        }
    }
}

/* Key and query with the tape's keys, their own among them. */
template <int COLUMNS>
static __device__ __forceinline__ void
multiply_tape(products<COLUMNS> &out, left<KEY_STEPS> (&tape)[MOST_ROW_TILES], const row_part &row,
              const right<KEY_STEPS, 1> &b, uint32_t begin, uint32_t part, uint32_t range)
{
    const uint32_t t = threadIdx.x % 4;
#pragma unroll
    for (uint32_t n = 0; n < MOST_ROW_TILES; n++) {
        const uint32_t tile = part + n * PARTS_OF_WORK, j = tape_row(tile, 0);
        if (tile >= ROW_TILES)
            break;
        float x[1][4] = {{0.0f, 0.0f, 0.0f, 0.0f}};
        if (is_needed(begin, tile)) {
            add_own_key(tape[n], row, begin, tile, range);
            multiply(x, tape[n], b);
        }
        if (t == 0) {
            out.dots[range][KEY][j] = x[0][0];
            out.dots[range][QUERY][j] = x[0][1];
            out.dots[range][KEY][j + 8] = x[0][2];
            out.dots[range][QUERY][j + 8] = x[0][3];
        }
    }
}

template <int COLUMNS>
static __device__ __forceinline__ void take_tapes(left<KEY_STEPS> (&tape)[MOST_ROW_TILES],
                                                  const step_memory<COLUMNS> &m, uint32_t begin,
                                                  uint32_t part, uint32_t range)
{
#pragma unroll
    for (uint32_t n = 0; n < MOST_ROW_TILES; n++) {
        if (is_needed(begin, part + n * PARTS_OF_WORK))
            take_tape(tape[n], m, part + n * PARTS_OF_WORK, range);
    }
}

/* For the border, which workers and groups do together. */
template <int COLUMNS> static __device__ __forceinline__ void meet_at_border(void)
{
    asm volatile("bar.sync 2, %0;" ::"n"((WORKERS + size_of<COLUMNS>::GROUPS) * WARP) : "memory");
}

template <int COLUMNS>
static __device__ __forceinline__ void
move_border(step_memory<COLUMNS> &m, const sl_cu_segment &segment, const place &at,
            const row_part &row, uint32_t part, uint32_t range);

/* A worker's part of all products. What it has read of shared memory it fills again at once. */
template <int COLUMNS>
static __device__ __forceinline__ void work(step_memory<COLUMNS> &m, const sl_cu_gdn &gdn,
                                            const place &at, uint32_t n)
{
    using S = size_of<COLUMNS>;
    const uint32_t warp = threadIdx.x / WARP, part = warp / RANGES, range = warp % RANGES;
    const uint32_t g = threadIdx.x % WARP / 4, t = threadIdx.x % 4;
#pragma unroll
    for (uint32_t k = 0; k < S::OWN_SLICES; k += S::COPIED)
        copy_slices(m, m.segments[0], at, part * S::OWN_SLICES + k, range);
    copy_tape(m, gdn, m.segments[0], at, part, range);
    wait_for_previous();
#pragma unroll 1
    for (uint32_t i = 0; i < n; i++) {
        const sl_cu_segment &segment = m.segments[i], &next = m.segments[i + 1 < n ? i + 1 : i];
        const uint32_t begin = tape_rows(segment);
        const bool is_last = begin + 1 == CHUNK, fills = i + 1 < n && !is_last;
        const row_part &row = m.row[i % 2];
        products<COLUMNS> &out = m.products[i % 2];
        left<KEY_STEPS> tape[MOST_ROW_TILES];
        right<KEY_STEPS, 1> b;
        if (!S::IS_HEAD) {
            wait_for_copies<0>();
            __syncwarp();
            take_tapes(tape, m, begin, part, range);
        }
#pragma unroll
        for (uint32_t k = 0; k < S::OWN_SLICES; k++) {
            const uint32_t slice = part * S::OWN_SLICES + k, c = slice * SLICE + 2 * g;
            state_part state;
            state_operand operand;
            float x[1][4];
            if (k % S::COPIED == 0)
                wait_for_copies<S::COPIES>(); /* other slices and the tape may be on their way */
            __syncwarp();
            take_state(state, m, slice, range);
            __syncwarp();
            if (k % S::COPIED + 1 == S::COPIED) {
                if (fills)
                    copy_slices(m, next, at, slice + 1 - S::COPIED, range);
                else
                    end_of_copies();
            }
            split_state(operand, state);
            if (k == 0) { /* all that could be done without it is done */
                if (i >= 2)
                    wait_for_counter(&m.solved[i % 2], parity_of(i - 2));
                wait_for_counter(&m.made[i % 2], parity_of(i));
                take_row(b, row, range);
            }
            read_state(x, operand, b);
            if (t == 0) {
                *(float2 *)&out.product[range][KEY][c] = make_float2(x[0][0], x[0][2]);
                *(float2 *)&out.product[range][QUERY][c] = make_float2(x[0][1], x[0][3]);
            }
        }
        if (S::IS_HEAD) {
            wait_for_copies<S::COPIES>();
            __syncwarp();
            take_tapes(tape, m, begin, part, range);
        }
        multiply_tape(out, tape, row, b, begin, part, range);
        __syncwarp();
        if (threadIdx.x % WARP == 0)
            arrive(&m.multiplied[i % 2]);
        if (is_last) {
            meet_at_border<COLUMNS>();
            move_border(m, segment, at, row, part, range);
            meet_at_border<COLUMNS>();
            if (i + 1 < n) {
#pragma unroll
                for (uint32_t k = 0; k < S::OWN_SLICES; k += S::COPIED)
                    copy_slices(m, next, at, part * S::OWN_SLICES + k, range);
            }
        }
        if (i + 1 < n)
            copy_tape(m, gdn, next, at, part, range);
    }
}

/* ---- update and output ---- */

template <int N>
static __device__ __forceinline__ float sum_parts(const float (&parts)[RANGES][2][N], uint32_t kind,
                                                  uint32_t at)
{
    float sum = parts[0][kind][at];
#pragma unroll
    for (int range = 1; range < RANGES; range++)
        sum = sum + parts[range][kind][at];
    return sum;
}

/* Updates of a slice, whose columns lie as in take_state. */
template <int COLUMNS>
static __device__ __forceinline__ void take_updates(updates &out, const step_memory<COLUMNS> &m,
                                                    uint32_t slice, uint32_t n_tiles)
{
    const uint32_t g = threadIdx.x % WARP / 4, t = threadIdx.x % 4;
#pragma unroll
    for (uint32_t k = 0; k < TILES; k++) {
        if (k >= n_tiles)
            break;
#pragma unroll
        for (uint32_t x = 0; x < 2; x++) {
            const uint32_t j = k * TILE + 2 * t + x;
            const float2 two =
                *(const float2 *)&m.u[column_place<COLUMNS>(j, slice * SLICE + 2 * g)];
            out.u[k][x] = two.x;
            out.u[k][2 + x] = two.y;
        }
    }
}

/* Update and output of a column in each lane of a group's warp. */
template <int COLUMNS>
static __device__ __forceinline__ float
solve_row(step_memory<COLUMNS> &m, const sl_cu_gdn &gdn, const sl_cu_segment &segment,
          const place &at, const row_part &row, const products<COLUMNS> &from, uint32_t group,
          float v)
{
    const uint32_t lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    const uint32_t c = group * GROUP + lane, begin = tape_rows(segment);
    for (uint32_t j = lane; j < CHUNK; j += WARP) {
        const float k = row.decay[j] * (sum_parts(from.dots, KEY, j) * PAIR_SCALE);
        const float q = row.decay[j] * (sum_parts(from.dots, QUERY, j) * PAIR_SCALE);
        m.solve[group][j] = j < begin ? -(row.beta * k) : 0.0f;
        m.read[group][j] = j <= begin ? q : 0.0f;
    }
    __syncwarp();
    float r = fmaf(-(row.beta * row.e), sum_parts(from.product, KEY, c), row.beta * v);
#pragma unroll 1
    for (uint32_t j = 0; j < begin; j += TILE) { /* what is beyond adds zeros */
#pragma unroll
        for (uint32_t k = 0; k < TILE; k++)
            r = fmaf(m.solve[group][j + k], m.u[column_place<COLUMNS>(j + k, c)], r);
    }
    r = r + 0.0f;
    m.u[column_place<COLUMNS>(begin, c)] = r;
    tape_u(gdn, segment, 0, begin, at.head)[at.first + c] = r;
    __syncwarp();

    float2 read[TILES];
#pragma unroll
    for (uint32_t k = 0; k < TILES; k++)
        read[k] =
            g == 0 ? *(const float2 *)&m.read[group][k * TILE + 2 * t] : make_float2(0.0f, 0.0f);
#pragma unroll
    for (uint32_t i = 0; i < GROUP / SLICE; i++) {
        const uint32_t slice = group * (GROUP / SLICE) + i;
        updates updates;
        float o[4];
        take_updates(updates, m, slice, begin / TILE + 1);
        read_updates(o, updates, read, begin / TILE);
        if (t == 0)
            *(float2 *)&m.o[slice * SLICE + 2 * g] = make_float2(o[0], o[2]);
    }
    __syncwarp();
    const float out = fmaf(row.e, sum_parts(from.product, QUERY, c), m.o[c]);
    __syncwarp();
    m.o[c] = out;
    __syncwarp();
    return out;
}

/* Gated norm of the lane's column; block 32 columns of rounding. */
static __device__ __forceinline__ void finish_row(const float (&sums)[GROUPS_OF_HEAD],
                                                  const sl_cu_gdn &gdn, size_t place, float o,
                                                  float weight, float z)
{
    const float inverse = inverse_rms(sums[0], sums[1], sums[2], sums[3], gdn.eps);
    const float y = gated(o, inverse, weight, z);
    if (gdn.keeps_y)
        gdn.y[place] = y;
    if (gdn.yq.q) {
        const size_t block = place / SL_Q8_BLOCK;
        quantise_block(y, gdn.yq.q + block * SL_Q8_BLOCK, gdn.yq.d + block,
                       gdn.yq.sums + 2 * block);
    }
}

/* A group of columns of all sequences. is_whole as at the kernel. */
template <int COLUMNS>
static __device__ __forceinline__ void take_values(step_memory<COLUMNS> &m, const sl_cu_gdn &gdn,
                                                   const place &at, uint32_t n, bool is_whole)
{
    using S = size_of<COLUMNS>;
    const uint32_t group = threadIdx.x / WARP - VALUES_WARP, lane = threadIdx.x % WARP;
    const uint32_t c = at.first + group * GROUP + lane;
    const uint32_t channel = (2 * gdn.n_key_heads + at.head) * DIM + c;
    copy_updates(m, gdn, m.segments[0], at, group);
    const float4 w = ((const float4 *)gdn.conv)[channel];
    const float weight = is_whole ? gdn.norm[c] : 0.0f;
    history<float> before = load_history<float>(gdn, m.segments[0], channel);
    wait_for_previous();
    float now = load_row<float>(gdn, m.segments[0], channel);
#pragma unroll 1
    for (uint32_t i = 0; i < n; i++) {
        const sl_cu_segment &segment = m.segments[i];
        const size_t out_at = ((size_t)segment.first_row * gdn.n_value_heads + at.head) * DIM + c;
        const bool is_last = tape_rows(segment) + 1 == CHUNK;
        const float z = is_whole ? gdn.z[out_at] : 0.0f;
        conv_row(gdn, segment, segment.pos)[channel] = now;
        const float v = convolved(w, before.x[0], before.x[1], before.x[2], now);
        if (i + 1 < n) {
            before = load_history<float>(gdn, m.segments[i + 1], channel);
            now = load_row<float>(gdn, m.segments[i + 1], channel);
        }
        wait_for_copies<0>();
        wait_for_counter(&m.gated[i % 2], parity_of(i));
        wait_for_counter(&m.multiplied[i % 2], parity_of(i));
        const float o = solve_row(m, gdn, segment, at, m.row[i % 2], m.products[i % 2], group, v);
        if (is_last) {
            meet_at_border<COLUMNS>();
            meet_at_border<COLUMNS>();
        }
        if (lane == 0)
            arrive(&m.solved[i % 2]);
        if (i + 1 < n)
            copy_updates(m, gdn, m.segments[i + 1], at, group);
        const float sum = sum_squares_of(*(const float4 *)&m.o[group * GROUP + lane % 8 * 4]);
        if (!is_whole) {
            gdn.y[out_at] = o;
            continue;
        }
        if (S::IS_HEAD) {
            if (lane == 0)
                m.sums[i % 2][group] = sum;
            asm volatile("bar.sync 1, %0;" ::"n"(S::GROUPS * WARP) : "memory");
        } else {
            cluster_wait(); /* now the other blocks are known to be there */
            if (lane < GROUPS_OF_HEAD)
                send(&m.sums[0][at.first / COLUMNS], lane, sum, &m.arrived);
            wait_for_counter(&m.arrived, 0);
        }
        finish_row(m.sums[i % 2], gdn, out_at, o, weight, z);
    }
}

/* ---- the chunk's end ---- */

static __device__ __forceinline__ void meet_workers(void)
{
    asm volatile("bar.sync 3, %0;" ::"n"(WORKERS * WARP) : "memory");
}

/* All keys of the chunk as halves, in their place, by the workers. */
template <int COLUMNS>
static __device__ __forceinline__ void split_keys(step_memory<COLUMNS> &m, const row_part &row)
{
    enum { ROWS = WORKERS * WARP / (DIM / 2) /* at a time */ };
    const uint32_t first = threadIdx.x / (DIM / 2), pair = threadIdx.x % (DIM / 2);
    halves keys[CHUNK / ROWS];
#pragma unroll
    for (uint32_t i = 0; i < CHUNK / ROWS; i++) {
        const uint32_t j = i * ROWS + first;
        const float2 k = *(const float2 *)&m.tape[tape_place(j, 2 * pair)];
        keys[i] = split(k.x * KEY_SCALE, k.y * KEY_SCALE);
        if (j + 1 == CHUNK) {
            keys[i].high = row.high[KEY][pair];
            keys[i].low = row.low[KEY][pair];
        }
    }
    meet_workers();
#pragma unroll
    for (uint32_t i = 0; i < CHUNK / ROWS; i++) {
        const uint32_t at = half_at(i * ROWS + first, 2 * pair);
        *(uint32_t *)&m.keys.high[at] = keys[i].high;
        *(uint32_t *)&m.keys.low[at] = keys[i].low;
    }
    meet_workers();
}

/* The next border of a worker's part. */
template <int COLUMNS>
static __device__ __forceinline__ void
move_border(step_memory<COLUMNS> &m, const sl_cu_segment &segment, const place &at,
            const row_part &row, uint32_t part, uint32_t range)
{
    enum { OWN_SLICES = size_of<COLUMNS>::OWN_SLICES };
    const uint32_t g = threadIdx.x % WARP / 4, t = threadIdx.x % 4;
    split_keys(m, row);
#pragma unroll 1
    for (uint32_t i = 0; i < OWN_SLICES; i++) {
        const uint32_t slice = part * OWN_SLICES + i;
        const size_t place = at.state + (range * RANGE + 2 * t) * DIM + slice * SLICE + 2 * g;
        state_part state;
        updates updates;
        take_state(state, m, slice, range);
        take_updates(updates, m, slice, TILES);
        decay_state(state, row.e);
#pragma unroll
        for (uint32_t rows = 0; rows < PARTS; rows++) {
            float decayed[PART_TILES][4];
            turned_keys turned;
            update_operand u;
            load_keys(turned, m.keys.high, m.keys.low, rows, range);
#pragma unroll
            for (uint32_t k = 0; k < PART_TILES; k++) {
#pragma unroll
                for (uint32_t x = 0; x < 4; x++)
                    decayed[k][x] = row.decay[rows * STEP + k * TILE + 2 * t + x % 2] *
                                    updates.u[rows * PART_TILES + k][x];
            }
            split_columns<1>(u.a, decayed, u.down);
            add_updates(state, u, turned);
        }
#pragma unroll
        for (uint32_t n = 0; n < KEY_TILES; n++) {
#pragma unroll
            for (uint32_t x = 0; x < 2; x++)
                *(float2 *)&segment.border_out[1][place + (n * TILE + x) * DIM] =
                    make_float2(state.s[n][x], state.s[n][2 + x]);
        }
    }
}

/* ---- the kernel ---- */

/* Sequences blockIdx.y, blockIdx.y + gridDim.y and so on. is_whole: the blocks of a head, where it
 * has several, are a cluster, and the gated norm is done here. Without, each block is a cluster by
 * itself. */
template <int COLUMNS>
static __global__ void __launch_bounds__(size_of<COLUMNS>::THREADS, size_of<COLUMNS>::BLOCKS)
    gdn_step_kernel(const sl_cu_rows rows, const __grid_constant__ sl_cu_gdn gdn, bool is_whole)
{
    using S = size_of<COLUMNS>;
    enum { BLOCKS_OF_HEAD = DIM / COLUMNS, WORDS = sizeof(sl_cu_segment) / 4 };
    extern __shared__ uint4 raw[];
    step_memory<COLUMNS> &m = *(step_memory<COLUMNS> *)raw;
    const uint32_t n = div_up(rows.n_segments - blockIdx.y, gridDim.y);
    for (uint32_t i = threadIdx.x; i < n * WORDS; i += S::THREADS) {
        const sl_cu_segment *from = &rows.segments[blockIdx.y + i / WORDS * gridDim.y];
        ((uint32_t *)&m.segments)[i] = ((const uint32_t *)from)[i % WORDS];
    }
    if (threadIdx.x == 0) {
        for (uint32_t i = 0; i < 2; i++) {
            init_counter(&m.made[i], 2);
            init_counter(&m.gated[i], 1);
            init_counter(&m.multiplied[i], WORKERS);
            init_counter(&m.solved[i], S::GROUPS);
        }
        init_counter(&m.arrived, 1);
        show_counters();
        expect_blocks(&m.arrived, GROUPS_OF_HEAD * sizeof(float));
    }
    __syncwarp();
    if (!S::IS_HEAD)
        cluster_arrive();
    __syncthreads();
    place at;
    at.head = blockIdx.x / BLOCKS_OF_HEAD;
    at.first = blockIdx.x % BLOCKS_OF_HEAD * COLUMNS;
    at.key_head = key_head_of(gdn, at.head);
    at.keeps_head = at.first == 0;
    at.keeps_key = at.keeps_head && value_head_of(gdn, at.key_head, 0) == at.head;
    at.state = ((size_t)gdn.index * gdn.n_value_heads + at.head) * DIM * DIM + at.first;
    const uint32_t warp = threadIdx.x / WARP;
    if (warp < WORKERS)
        work(m, gdn, at, n);
    else if (warp < GATES_WARP)
        make_rows(m, gdn, at, n, warp - KEY_WARP);
    else if (warp == GATES_WARP)
        take_gates(m, gdn, at, n);
    else
        take_values(m, gdn, at, n, is_whole);
    if (!S::IS_HEAD && (warp < VALUES_WARP || !is_whole))
        cluster_wait();
}

/* n_runs: blocks that share the sequences. */
template <int COLUMNS>
static void launch_step(const sl_cu_queue *queue, const sl_cu_rows *rows, const sl_cu_gdn *gdn,
                        uint32_t n_runs, bool is_whole)
{
    const uint32_t n_blocks = DIM / COLUMNS;
    const int bytes = (int)sizeof(step_memory<COLUMNS>);
    cudaFuncSetAttribute(gdn_step_kernel<COLUMNS>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                         bytes);
    launch_clusters(queue, gdn_step_kernel<COLUMNS>, n_blocks,
                    dim3(gdn->n_value_heads * n_blocks, n_runs), dim3(size_of<COLUMNS>::THREADS),
                    (size_t)bytes, *rows, *gdn, is_whole);
}

void sl_cu_gdn_step(const sl_cu_queue *queue, const sl_cu_rows *rows, const sl_cu_gdn *gdn)
{
    enum { MANY_HEADS = 48 }; /* from here on whole heads are quicker */
    const uint32_t n = rows->n_segments;
    const bool is_whole = queue->overlap != 0;
    if (is_whole && gdn->n_value_heads * n >= MANY_HEADS) {
        const uint32_t room = size_of<DIM>::BLOCKS * (uint32_t)queue->n_multiprocessors;
        const uint32_t at_a_time = room > gdn->n_value_heads ? room / gdn->n_value_heads : 1;
        uint32_t each = div_up(n, at_a_time);
        each = each < MOST_SEQUENCES ? each : MOST_SEQUENCES;
        launch_step<DIM>(queue, rows, gdn, div_up(n, each), is_whole);
    } else {
        launch_step<GROUP>(queue, rows, gdn, n, is_whole);
    }
    if (!is_whole)
        sl_cu_gdn_finish(queue, rows, gdn);
}
