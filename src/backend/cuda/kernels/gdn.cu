/* The gated delta rule over any number of rows, section 6: every value head and slice of its
 * columns, chunk by chunk, from the operands that gdn_prepare.cu has made. Outputs go to y, updates
 * on the tape, states to their borders, raw rows to the history of the convolution. */
#include "backend/cuda/kernels/cluster.cuh"
#include "backend/cuda/kernels/gdn_chunks.cuh"

/* Four warps have a range of the state's keys each. Two solve for the updates of a chunk, one for
 * those of its first half of rows, one for the rest. One writes outputs, and one brings the
 * operands of the chunks to come. */
enum {
    SOLVERS = 2,
    SOLVER = RANGES,
    WRITER = SOLVER + SOLVERS,
    LOADER,
    RULE_WARPS,
    RULE_THREADS = RULE_WARPS * WARP,
    READERS = LOADER, /* warps that read a stage */
    MOST_STAGES = 4,
    RULE_CLUSTER = 2,        /* blocks that share what they read: slices of one head */
    SIDE = TILES / 2,        /* tiles of rows of a solver */
    EARLY_KEYS = CHUNK <= 32 /* the next chunk's stage is there before this one's updates */
};

/* Named barriers. The state has met the keys of the first, the second half of the rows; a part's
 * updates are there for the state; all of a chunk's are there for the writer, and its queries have
 * met the state; the first solver has one more tile for the second. */
enum {
    MET = 1,
    TAKEN = MET + SOLVERS,  /* part by part */
    SOLVED = TAKEN + PARTS, /* of chunks in turn */
    PASSED = SOLVED + 2,    /* tile by tile */
    STATE_THREADS = RANGES * WARP,
};

typedef struct rule_stage {
    key_block keys;
    pair_block pairs;
    float v[CHUNK][SLICE];
} rule_stage;

typedef struct rule_memory {
    float kS[RANGES][SLICE * CHUNK]; /* float_at(column, row), one part of the sum each */
    float qS[CHUNK <= 32 ? 2 : 1][RANGES][SLICE * CHUNK]; /* of chunks in turn */
    float u[3][SLICE * CHUNK];
    __half u_high[PARTS][SLICE * STEP], u_low[PARTS][SLICE * STEP]; /* decayed and split: part_at */
    float down[PARTS][SLICE];
    uint64_t full[MOST_STAGES], empty[MOST_STAGES];
} rule_memory;

/* What a block works on. */
typedef struct rule_block {
    uint32_t head, key_head, slice, n_chunks, n_stages, all_chunks;
    size_t state_at; /* of the slice in a border */
    sl_cu_segment segment;
} rule_block;

/* Row i of column c in a part of 16 rows of halves. */
static __device__ __forceinline__ uint32_t part_at(uint32_t c, uint32_t i)
{
    return c * STEP + (((i / 8) ^ (c / 4 % 2)) * 8 + i % 8);
}

static __device__ __forceinline__ void meet(uint32_t barrier, uint32_t n_threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(n_threads) : "memory");
}

static __device__ __forceinline__ void announce(uint32_t barrier, uint32_t n_threads)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(n_threads) : "memory");
}

/* A chunk's stage, and the parity of the round in which the chunk has it. */
typedef struct cursor {
    uint32_t at, parity;
} cursor;

static __device__ __forceinline__ cursor next_of(cursor c, uint32_t n_stages)
{
    c.parity ^= c.at + 1 == n_stages;
    c.at = c.at + 1 == n_stages ? 0 : c.at + 1;
    return c;
}

/* The warp reads the stage no more: every block of the cluster writes to it. */
static __device__ __forceinline__ void leave_stage(rule_memory &m, cursor c)
{
    __syncwarp();
    const uint32_t lane = threadIdx.x % WARP;
    if (lane < cluster_blocks())
        arrive_remote(&m.empty[c.at], lane);
}

static __device__ void bring_chunks(rule_memory &m, rule_stage *stages, const rule_block &block,
                                    const sl_cu_gdn &gdn)
{
    cursor c = {0, 0};
    for (uint32_t n = 0; n < block.n_chunks; n++, c = next_of(c, block.n_stages)) {
        wait_for_counter(&m.empty[c.at], c.parity ^ 1); /* in the first round at once */
        rule_stage &stage = stages[c.at];
        const uint32_t chunk = block.segment.first_chunk + n;
        uint64_t *full = &m.full[c.at];
        expect_blocks(full, sizeof(rule_stage));
        copy_shared_block(&stage.keys, keys_of(gdn, chunk, block.key_head), sizeof stage.keys,
                          full);
        copy_shared_block(&stage.pairs, pairs_of(gdn, block.all_chunks, chunk, block.head),
                          sizeof stage.pairs, full);
        copy_block(stage.v, values_of(gdn, block.all_chunks, chunk, block.head)->v[block.slice],
                   sizeof stage.v, full);
        end_of_blocks(full);
    }
}

/* The warp's part of S^T k or S^T q for half of the chunk's rows. */
typedef right<KEY_STEPS, SIDE> side_rows;
static __device__ __forceinline__ void read_side(float *out, const state_operand &state,
                                                 const side_rows &rows, uint32_t side)
{
    const uint32_t g = threadIdx.x % WARP / 4, t = threadIdx.x % 4;
    float x[SIDE][4];
    read_state(x, state, rows);
#pragma unroll
    for (uint32_t n = 0; n < SIDE; n++) {
        const uint32_t i = (side * SIDE + n) * TILE + 2 * t;
        *(float2 *)&out[float_at(g, i)] = make_float2(x[n][0], x[n][1]);
        *(float2 *)&out[float_at(g + 8, i)] = make_float2(x[n][2], x[n][3]);
    }
}

/* Four rows of a column over all ranges of keys. */
static __device__ __forceinline__ float4 sum_ranges(const float (*parts)[SLICE * CHUNK],
                                                    uint32_t at)
{
    float4 sum = *(const float4 *)&parts[0][at];
#pragma unroll
    for (int range = 1; range < RANGES; range++) {
        const float4 x = *(const float4 *)&parts[range][at];
        sum = make_float4(sum.x + x.x, sum.y + x.y, sum.z + x.z, sum.w + x.w);
    }
    return sum;
}

/* Weights of the rows of a solver: of its tiles on the diagonal, and of four rows of a tile for the
 * updates of one before. They are loaded before they are waited for. */
typedef struct tile_weights {
    float w[CORNER];
} tile_weights;
typedef struct row_weights {
    float w[4][TILE];
} row_weights;

static __device__ __forceinline__ void load_tile(tile_weights &out, const pair_block &pairs,
                                                 uint32_t tile)
{
#pragma unroll
    for (int x = 0; x < CORNER; x += 4) {
        const float4 four = *(const float4 *)&pairs.corner[tile][x];
        out.w[x] = four.x;
        out.w[x + 1] = four.y;
        out.w[x + 2] = four.z;
        out.w[x + 3] = four.w;
    }
}

static __device__ __forceinline__ void load_row_weights(row_weights &out, const pair_block &pairs,
                                                        uint32_t i, uint32_t before)
{
#pragma unroll
    for (uint32_t k = 0; k < TILE; k++) {
        const float4 four =
            *(const float4 *)&pairs.solve[solve_place(i / TILE, before)][k][i % TILE];
        out.w[0][k] = four.x;
        out.w[1][k] = four.y;
        out.w[2][k] = four.z;
        out.w[3][k] = four.w;
    }
}

/* Eight rows of a column, brought together from two lanes and solved by both: r in, u out. */
static __device__ __forceinline__ void solve_tile(float (&u)[TILE], float (&r)[4],
                                                  const tile_weights &weights, uint32_t half)
{
#pragma unroll
    for (uint32_t x = 0; x < 4; x++) {
        const float other = __shfl_xor_sync(0xFFFFFFFFu, r[x], SLICE);
        u[x] = half == 0 ? r[x] : other;
        u[4 + x] = half == 0 ? other : r[x];
    }
#pragma unroll
    for (uint32_t j = 0; j < TILE; j++) {
#pragma unroll
        for (uint32_t k = j + 1; k < TILE; k++)
            u[k] = fmaf(weights.w[corner_at(k, j)], u[j], u[k]);
    }
#pragma unroll
    for (uint32_t k = 0; k < TILE; k++)
        u[k] = u[k] + 0.0f; /* never -0: it would not come back from the tape */
#pragma unroll
    for (uint32_t x = 0; x < 4; x++)
        r[x] = half == 0 ? u[x] : u[4 + x];
}

/* Four rows take in the updates of a tile before. */
static __device__ __forceinline__ void apply_tile(float (&r)[4], const float (&u)[TILE],
                                                  const row_weights &weights)
{
#pragma unroll
    for (uint32_t k = 0; k < TILE; k++) {
#pragma unroll
        for (uint32_t x = 0; x < 4; x++)
            r[x] = fmaf(weights.w[x][k], u[k], r[x]);
    }
}

/* 16 rows' updates as the state takes them: decayed to the chunk's end and split. The same as
 * split_columns, in another layout: u[k] has rows 8 k + 4 half .. of the lane's column. */
static __device__ __forceinline__ void split_part(rule_memory &m, const float (&u)[PART_TILES][4],
                                                  const float4 (&last)[PART_TILES], uint32_t part,
                                                  uint32_t c, uint32_t half)
{
    float x[PART_TILES][4], largest = 0.0f;
#pragma unroll
    for (uint32_t k = 0; k < PART_TILES; k++) {
        const float4 w = last[k];
        x[k][0] = w.x * u[k][0];
        x[k][1] = w.y * u[k][1];
        x[k][2] = w.z * u[k][2];
        x[k][3] = w.w * u[k][3];
#pragma unroll
        for (int i = 0; i < 4; i++)
            largest = fmaxf(largest, fabsf(x[k][i]));
    }
    const scale s = scale_of(fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, SLICE)));
#pragma unroll
    for (uint32_t k = 0; k < PART_TILES; k++) {
        const halves h0 = split(x[k][0] * s.up, x[k][1] * s.up);
        const halves h1 = split(x[k][2] * s.up, x[k][3] * s.up);
        const uint32_t at = part_at(c, k * TILE + 4 * half);
        *(uint2 *)&m.u_high[part][at] = make_uint2(h0.high, h1.high);
        *(uint2 *)&m.u_low[part][at] = make_uint2(h0.low, h1.low);
    }
    if (half == 0)
        m.down[part][c] = s.down;
}

/* Weights of the second solver's rows for tile `before` of the first one's. */
static __device__ __forceinline__ void load_outer(row_weights (&out)[SIDE], const pair_block &pairs,
                                                  uint32_t half, uint32_t before)
{
#pragma unroll
    for (uint32_t b = 0; b < SIDE; b++)
        load_row_weights(out[b], pairs, (SIDE + b) * TILE + 4 * half, before);
}

/* Four rows of a column. */
static __device__ __forceinline__ float4 four_of(const float (*v)[SLICE], uint32_t row, uint32_t c)
{
    return make_float4(v[row][c], v[row + 1][c], v[row + 2][c], v[row + 3][c]);
}

/* The updates of half of a chunk, one after the other: u_i = r_i + sum over j < i ascending of
 * solve[i][j] u_j. Two lanes have a column, each four rows of every eight. */
static __device__ void solve_chunks(rule_memory &m, const rule_stage *stages,
                                    const rule_block &block, const sl_cu_gdn &gdn, uint32_t solver)
{
    const uint32_t lane = lane_kept(), c = lane % SLICE, half = lane / SLICE;
    const uint32_t offset = block.segment.pos % CHUNK, n_rows = block.segment.n_rows;
    const uint32_t n_chunks = block.n_chunks;
    cursor place = {0, 0};
    for (uint32_t n = 0; n < n_chunks; n++) {
        const rule_stage &stage = stages[place.at];
        const pair_block &pairs = stage.pairs;
        float *all_u = m.u[n % 3];
        float r[SIDE][4], u[TILE];
        float4 v[SIDE], e[SIDE], last[PART_TILES > SIDE ? PART_TILES : SIDE];
        tile_weights own[SIDE];
        row_weights inner[SIDE][SIDE], outer[SIDE];
        wait_for_counter(&m.full[place.at], place.parity);
#pragma unroll
        for (uint32_t b = 0; b < SIDE; b++) {
            const uint32_t tile = solver * SIDE + b, i = tile * TILE + 4 * half;
            v[b] = four_of(stage.v, i, c);
            e[b] = *(const float4 *)&pairs.e_beta[i];
            load_tile(own[b], pairs, tile);
#pragma unroll
            for (uint32_t before = 0; before < b; before++)
                load_row_weights(inner[b][before], pairs, i, solver * SIDE + before);
        }
#pragma unroll
        for (uint32_t b = 0; b < sizeof last / sizeof *last; b++)
            last[b] = *(const float4 *)&pairs
                           .last[(SIDE < PART_TILES ? b : solver * SIDE + b) * TILE + 4 * half];
        if (solver == 1)
            load_outer(outer, pairs, half, 0);
        meet(MET + solver, STATE_THREADS + WARP);
#pragma unroll
        for (uint32_t b = 0; b < SIDE; b++) {
            const float4 kS = sum_ranges(m.kS, float_at(c, (solver * SIDE + b) * TILE + 4 * half));
            r[b][0] = fmaf(-e[b].x, kS.x, v[b].x);
            r[b][1] = fmaf(-e[b].y, kS.y, v[b].y);
            r[b][2] = fmaf(-e[b].z, kS.z, v[b].z);
            r[b][3] = fmaf(-e[b].w, kS.w, v[b].w);
        }
        if (solver == 1) {
#pragma unroll
            for (uint32_t before = 0; before < SIDE; before++) {
                meet(PASSED + before, SOLVERS * WARP);
                const float4 u0 = *(const float4 *)&all_u[float_at(c, before * TILE)];
                const float4 u1 = *(const float4 *)&all_u[float_at(c, before * TILE + 4)];
                const float known[TILE] = {u0.x, u0.y, u0.z, u0.w, u1.x, u1.y, u1.z, u1.w};
#pragma unroll
                for (uint32_t b = 0; b < SIDE; b++)
                    apply_tile(r[b], known, outer[b]);
                if (before + 1 < SIDE)
                    load_outer(outer, pairs, half, before + 1);
            }
        }
#pragma unroll
        for (uint32_t b = 0; b < SIDE; b++) {
            solve_tile(u, r[b], own[b], half);
            *(float4 *)&all_u[float_at(c, (solver * SIDE + b) * TILE + 4 * half)] =
                make_float4(r[b][0], r[b][1], r[b][2], r[b][3]);
            if (solver == 0)
                announce(PASSED + b, SOLVERS * WARP);
#pragma unroll
            for (uint32_t after = b + 1; after < SIDE; after++)
                apply_tile(r[after], u, inner[after][b]);
        }
#pragma unroll
        for (uint32_t b = 0; b < SIDE; b += PART_TILES) {
            /* a part is a solver's, or both solvers' where chunks have but one */
            float rows[PART_TILES][4];
            float4 decay[PART_TILES];
            if (SIDE < PART_TILES && solver == 0)
                break;
#pragma unroll
            for (uint32_t k = 0; k < PART_TILES; k++) {
                decay[k] = last[b + k];
#pragma unroll
                for (uint32_t x = 0; x < 4; x++)
                    rows[k][x] = SIDE < PART_TILES && k == 0 ? all_u[float_at(c, 4 * half + x)]
                                                             : r[(b + k) % SIDE][x];
            }
            const uint32_t part = (solver * SIDE + b) / PART_TILES;
            split_part(m, rows, decay, part, c, half);
            announce(TAKEN + part, STATE_THREADS + WARP);
        }
        if (solver == 1)
            announce(SOLVED + n % 2, STATE_THREADS + 2 * WARP);
        const uint32_t begin = n == 0 ? offset : 0;
        const uint32_t end = min((uint32_t)CHUNK, offset + n_rows - n * CHUNK);
        if (n + 2 >= n_chunks) { /* of the last two tapes */
#pragma unroll
            for (uint32_t b = 0; b < SIDE; b++) {
#pragma unroll
                for (uint32_t x = 0; x < 4; x++) {
                    const uint32_t i = (solver * SIDE + b) * TILE + 4 * half + x;
                    if (i >= begin && i < end)
                        tape_u(gdn, block.segment, n, i, block.head)[block.slice * SLICE + c] =
                            r[b][x];
                }
            }
        }
        leave_stage(m, place);
        place = next_of(place, block.n_stages);
    }
}

static __device__ __forceinline__ void take_updates(updates &out, const float *u)
{
    const uint32_t g = threadIdx.x % WARP / 4, t = threadIdx.x % 4;
#pragma unroll
    for (uint32_t k = 0; k < TILES; k++) {
        const float2 u0 = *(const float2 *)&u[float_at(g, k * TILE + 2 * t)];
        const float2 u1 = *(const float2 *)&u[float_at(g + 8, k * TILE + 2 * t)];
        out.u[k][0] = u0.x;
        out.u[k][1] = u0.y;
        out.u[k][2] = u1.x;
        out.u[k][3] = u1.y;
    }
}

/* Outputs, tile by tile. */
static __device__ void write_chunks(rule_memory &m, const rule_stage *stages,
                                    const rule_block &block, const sl_cu_gdn &gdn)
{
    enum { BUFFERS = sizeof m.qS / sizeof m.qS[0] };
    const uint32_t lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    const uint32_t offset = block.segment.pos % CHUNK, n_rows = block.segment.n_rows;
    const uint32_t n_chunks = block.n_chunks, y_stride = gdn.n_value_heads * DIM;
    float *y = gdn.y + (size_t)block.segment.first_row * y_stride + block.head * DIM +
               block.slice * SLICE + g;
    cursor place = {0, 0};
    for (uint32_t n = 0; n < n_chunks; n++) {
        const pair_block &pairs = stages[place.at].pairs;
        wait_for_counter(&m.full[place.at], place.parity);
        meet(SOLVED + n % 2, STATE_THREADS + 2 * WARP);
        const uint32_t begin = n == 0 ? offset : 0;
        const uint32_t end = min((uint32_t)CHUNK, offset + n_rows - n * CHUNK);
        const float(*parts)[SLICE * CHUNK] = m.qS[n % BUFFERS];
        updates updates;
        take_updates(updates, m.u[n % 3]);
#pragma unroll
        for (uint32_t tile = 0; tile < TILES; tile++) {
            float2 read[TILES], qS[2];
#pragma unroll
            for (uint32_t k = 0; k <= tile; k++)
                read[k] = *(const float2 *)&pairs.read[read_place(tile, k)][g][2 * t];
#pragma unroll
            for (uint32_t x = 0; x < 2; x++) {
                const uint32_t at = float_at(g + 8 * x, tile * TILE + 2 * t);
                qS[x] = *(const float2 *)&parts[0][at];
#pragma unroll
                for (int range = 1; range < RANGES; range++) {
                    const float2 part = *(const float2 *)&parts[range][at];
                    qS[x] = make_float2(qS[x].x + part.x, qS[x].y + part.y);
                }
            }
            float o[4];
            read_updates(o, updates, read, tile);
            const uint32_t i = tile * TILE + 2 * t;
            const float2 e = *(const float2 *)&pairs.e[i];
            if (i >= begin && i < end) {
                float *row = y + (size_t)(i - begin) * y_stride;
                row[0] = fmaf(e.x, qS[0].x, o[0]);
                row[8] = fmaf(e.x, qS[1].x, o[2]);
            }
            if (i + 1 >= begin && i + 1 < end) {
                float *row = y + (size_t)(i + 1 - begin) * y_stride;
                row[0] = fmaf(e.y, qS[0].y, o[1]);
                row[8] = fmaf(e.y, qS[1].y, o[3]);
            }
        }
        y += (size_t)(CHUNK - begin) * y_stride;
        leave_stage(m, place);
        place = next_of(place, block.n_stages);
    }
}

/* 16 rows' updates for the state. */
static __device__ __forceinline__ void load_part(update_operand &out, const rule_memory &m,
                                                 uint32_t part)
{
    const uint32_t lane = threadIdx.x % WARP, matrix = lane / 8;
    const uint32_t at = part_at(matrix % 2 * 8 + lane % 8, matrix / 2 * 8);
    load_matrices(out.a.high[0], &m.u_high[part][at]);
    load_matrices(out.a.low[0], &m.u_low[part][at]);
    out.down[0] = m.down[part][lane / 4];
    out.down[1] = m.down[part][lane / 4 + 8];
}

/* A range of the state over all chunks. */
static __device__ void carry_state(rule_memory &m, const rule_stage *stages,
                                   const rule_block &block)
{
    enum { BUFFERS = sizeof m.qS / sizeof m.qS[0] };
    const uint32_t range = threadIdx.x / WARP, n_chunks = block.n_chunks;
    const uint32_t n_stages = block.n_stages;
    const uint32_t n_full = (block.segment.pos % CHUNK + block.segment.n_rows) / CHUNK;
    state_part state;
    state_operand operand;
    side_rows first;
    cursor place = {0, 0};
    load_state(state, block.segment.border ? block.segment.border + block.state_at : NULL, range);
    split_state(operand, state);
    wait_for_counter(&m.full[0], 0);
    load_rows(first, stages[0].keys.k_high, stages[0].keys.k_low, 0, range);
    for (uint32_t n = 0; n < n_chunks; n++) {
        const rule_stage &stage = stages[place.at];
        const key_block &keys = stage.keys;
        side_rows second, queries;
        read_side(m.kS[range], operand, first, 0);
        announce(MET, STATE_THREADS + WARP);
        load_rows(second, keys.k_high, keys.k_low, SIDE * TILE, range);
        read_side(m.kS[range], operand, second, 1);
        announce(MET + 1, STATE_THREADS + WARP);
        if (EARLY_KEYS && n > 0) /* the writer is done with the queries of the last but one chunk */
            meet(SOLVED + (n - 1) % 2, STATE_THREADS + 2 * WARP);
#pragma unroll
        for (uint32_t side = 0; side < 2; side++) {
            load_rows(queries, keys.q_high, keys.q_low, side * SIDE * TILE, range);
            read_side(m.qS[n % BUFFERS][range], operand, queries, side);
        }
        turned_keys turned[PARTS];
#pragma unroll
        for (uint32_t part = 0; part < PARTS; part++)
            load_keys(turned[part], keys.k_high, keys.k_low, part, range);
        const float e = stage.pairs.e[CHUNK - 1];
        leave_stage(m, place);
        place = next_of(place, n_stages);
        if (n + 1 < n_chunks) {
            const key_block &next = stages[place.at].keys;
            if (EARLY_KEYS) {
                wait_for_counter(&m.full[place.at], place.parity);
                load_rows(first, next.k_high, next.k_low, 0, range);
            }
        }
        if (n < n_full)
            decay_state(state, e);
#pragma unroll
        for (uint32_t part = 0; part < PARTS; part++) {
            update_operand u;
            meet(TAKEN + part, STATE_THREADS + WARP);
            load_part(u, m, part);
            if (n < n_full)
                add_updates(state, u, turned[part]);
        }
        if (n < n_full)
            split_state(operand, state);
        if (n < n_full && n + 2 >= n_full) /* of the last two borders */
            store_state(state, block.segment.border_out[(n + 1) & 1] + block.state_at, range);
        if (!EARLY_KEYS) /* the next chunk comes when the writer has left this one */
            meet(SOLVED + n % 2, STATE_THREADS + 2 * WARP);
        if (!EARLY_KEYS && n + 1 < n_chunks) {
            const key_block &next = stages[place.at].keys;
            wait_for_counter(&m.full[place.at], place.parity);
            load_rows(first, next.k_high, next.k_low, 0, range);
        }
    }
    if (EARLY_KEYS)
        meet(SOLVED + (n_chunks - 1) % 2, STATE_THREADS + 2 * WARP);
}

/* The last raw rows stay for the taps of later runs: those of the slice's channels, and its share
 * of the key head's. By the solvers, before their first chunk is there. */
static __device__ void keep_raw_rows(const rule_block &block, const sl_cu_gdn &gdn)
{
    enum { FOURS = SLICE / 4, THREADS = SOLVERS * WARP, BATCH = 4 };
    const sl_cu_segment &segment = block.segment;
    const bool has_keys = value_head_of(gdn, block.key_head, 0) == block.head;
    const uint32_t n_rows = min(segment.n_rows, gdn.n_conv_rows), n_fours = n_rows * FOURS;
    const uint32_t n = (has_keys ? 3 : 1) * n_fours;
    for (uint32_t first = threadIdx.x - SOLVER * WARP; first < n; first += BATCH * THREADS) {
        float4 x[BATCH];
        uint32_t row[BATCH], channel[BATCH];
#pragma unroll
        for (uint32_t i = 0; i < BATCH; i++) {
            const uint32_t at = min(first + i * THREADS, n - 1), kind = at / n_fours;
            const uint32_t head = kind == 0   ? 2 * gdn.n_key_heads + block.head
                                  : kind == 1 ? block.key_head
                                              : gdn.n_key_heads + block.key_head;
            row[i] = segment.n_rows - n_rows + at / FOURS % n_rows;
            channel[i] = head * DIM + block.slice * SLICE + at % FOURS * 4;
            x[i] = *(const float4 *)&gdn
                        .qkv[(size_t)(segment.first_row + row[i]) * gdn.n_channels + channel[i]];
        }
#pragma unroll
        for (uint32_t i = 0; i < BATCH; i++)
            *(float4 *)&conv_row(gdn, segment, segment.pos + row[i])[channel[i]] = x[i];
    }
}

/* Block: 16 value columns of one value head of one segment. */
static __global__ void __launch_bounds__(RULE_THREADS)
    rule_kernel(const sl_cu_rows rows, const __grid_constant__ sl_cu_gdn gdn, uint32_t n_stages)
{
    extern __shared__ uint4 raw_rule[];
    rule_stage *stages = (rule_stage *)(void *)raw_rule;
    rule_memory &m = *(rule_memory *)(void *)(stages + n_stages);
    __shared__ rule_block block;
    const uint32_t warp = threadIdx.x / WARP;
    if (threadIdx.x == 0) {
        for (uint32_t s = 0; s < n_stages; s++) {
            init_counter(&m.full[s], COPY_ARRIVALS);
            init_counter(&m.empty[s], READERS * cluster_blocks());
        }
        show_counters();
    }
    wait_for_previous();
    if (threadIdx.x == 0) {
        block.segment = rows.segments[blockIdx.y];
        block.head = blockIdx.x / SLICES;
        block.slice = blockIdx.x % SLICES;
        block.key_head = key_head_of(gdn, block.head);
        block.n_chunks = count_chunks(block.segment);
        block.n_stages = n_stages;
        block.all_chunks = rows.n_chunks;
        block.state_at =
            ((size_t)gdn.index * gdn.n_value_heads + block.head) * DIM * DIM + block.slice * SLICE;
    }
    __syncthreads();
    cluster_arrive();
    cluster_wait();
    if (warp < SOLVER)
        carry_state(m, stages, block);
    else if (warp < WRITER) {
        keep_raw_rows(block, gdn);
        solve_chunks(m, stages, block, gdn, warp - SOLVER);
    } else if (warp == WRITER)
        write_chunks(m, stages, block, gdn);
    else
        bring_chunks(m, stages, block, gdn);
    cluster_end(); /* other blocks may still write here */
}

/* As many stages as fit and help: one block has a multiprocessor for itself. Chunks of 64 have one
 * stage, and one buffer of outputs suffices. */
static uint32_t choose_stages(void)
{
    const uint32_t fit =
        (uint32_t)(most_memory_of_block() - sizeof(rule_memory) - sizeof(rule_block)) /
        (uint32_t)sizeof(rule_stage);
    const uint32_t least = EARLY_KEYS ? 2 : 1, wanted = EARLY_KEYS ? MOST_STAGES : 1;
    return fit < least ? least : fit < wanted ? fit : wanted; /* too little: the launch says so */
}

void sl_cu_gdn_rule(const sl_cu_queue *queue, const sl_cu_rows *rows, const sl_cu_gdn *gdn)
{
    const uint32_t n_blocks = gdn->n_value_heads * SLICES;
    const uint32_t n_stages = choose_stages();
    const size_t n_bytes = n_stages * sizeof(rule_stage) + sizeof(rule_memory);
    cudaFuncSetAttribute(rule_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)n_bytes);
    launch_clusters(queue, rule_kernel, RULE_CLUSTER, dim3(n_blocks, rows->n_segments),
                    dim3(RULE_THREADS), n_bytes, *rows, *gdn, n_stages);
}
