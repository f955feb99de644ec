/* Products of many rows with plain quantised weights (section 2) on the warpgroup tensor cores of
 * compute capability 9.0, and what lies around them: several matrices that read one activation,
 * SwiGLU and its rounding, the sum into the residual stream.
 *
 * One warpgroup fetches, three compute a unit each. The float work of a block (conversion, product
 * of the scales, sum) is what limits it, and the registers' bandwidth at that; one warpgroup's
 * dots are under way while the others add. */
#include "backend/cuda/kernels/product_many.cuh"

enum {
    PRODUCER_REGISTERS = 24,
    CONSUMER_REGISTERS = 160,
    ACT_OUTPUTS = SL_Q8_BLOCK, /* of a unit with SwiGLU, where half of the panels are gates */
    ACT_STRIDE = ACT_OUTPUTS + 4
};

/* What becomes of a unit. */
enum { STORE, SUM, ACT };

/* Units of a tile may lie in two tiles of rows. */
template <int COLUMNS> struct alignas(1024) stage {
    int8_t q[2][COLUMNS][STAGE_BYTES]; /* 16-byte pieces swizzled by the row */
    uint8_t w[UNITS][UNIT_PANELS][STAGE_BLOCKS * SL_CU_PLAIN_BYTES];
    float d[2][STAGE_BLOCKS][SCALE_ROWS]; /* of the whole tile of scales, see scale_place */
    uint64_t full, empty;
};

template <int COLUMNS> struct act_memory {
    union {
        float4 half[UNIT_PANELS][COLUMNS / 16][WARP]; /* gates and ups that change warps */
        float value[COLUMNS][ACT_STRIDE];
    };
};

template <int COLUMNS, int ENDING> struct shared_memory {
    enum { N_STAGES = ENDING == ACT ? 4 : 5 };
    stage<COLUMNS> stages[N_STAGES];
    act_memory<ENDING == ACT ? COLUMNS : 16> act[ENDING == ACT ? UNITS : 1];
};

/* The ring of stages: of one of them the address in shared memory and the round. Addresses are
 * plain numbers, and the first comes through a shuffle: the compiler would find them anew for each
 * use. */
template <int COLUMNS, int ENDING> struct ring {
    uint32_t first, at, parity;

    __device__ __forceinline__ ring(const shared_memory<COLUMNS, ENDING> &shared, uint32_t round)
        : first(__shfl_sync(0xFFFFFFFFu, shared_address(shared.stages), 0)), at(first),
          parity(round)
    {
    }

    __device__ __forceinline__ void advance(void)
    {
        at += (uint32_t)sizeof(stage<COLUMNS>);
        if (at == first + (uint32_t)sizeof(shared_memory<COLUMNS, ENDING>::stages)) {
            at = first;
            parity ^= 1;
        }
    }

    __device__ __forceinline__ uint32_t full(void) const
    {
        return at + (uint32_t)offsetof(stage<COLUMNS>, full);
    }

    __device__ __forceinline__ uint32_t empty(void) const
    {
        return at + (uint32_t)offsetof(stage<COLUMNS>, empty);
    }
};

typedef struct copy_maps {
    CUtensorMap codes, w[SL_CU_MANY_TARGETS];
} copy_maps;

typedef struct carried_sums {
    float *sums; /* [blocks of threads][UNITS][64 * COLUMNS], NULL: tiles are not divided */
    uint32_t *flags;
} carried_sums;

size_t sl_cu_many_scales(uint32_t n_rows, uint32_t n_blocks)
{
    return scale_place(n_blocks, div_up(n_rows, SCALE_ROWS) * SCALE_ROWS, 0);
}

/* Thread: four blocks of a row. Blocks beyond the last are 0, rows beyond it what the last is. */
static __global__ void scales_kernel(const float *d, uint32_t n_rows, uint32_t n_blocks, float *out)
{
    wait_for_previous();
    const uint32_t place = threadIdx.x % SCALE_ROWS;
    const uint32_t j = place / 16 * 2 + place % 4 / 2, t = place / 4 % 4;
    const uint32_t row = blockIdx.x * SCALE_ROWS + 8 * j + 2 * t + place % 2;
    const uint32_t first =
        (blockIdx.y * (blockDim.x / SCALE_ROWS) + threadIdx.x / SCALE_ROWS) * STAGE_BLOCKS;
    if (first >= n_blocks)
        return;
    const float *in = d + (size_t)(row < n_rows ? row : n_rows - 1) * n_blocks + first;
    float value[STAGE_BLOCKS];
#pragma unroll
    for (uint32_t b = 0; b < STAGE_BLOCKS; b++)
        value[b] = first + b < n_blocks ? in[b] : 0.0f;
    float *to = out + scale_place(n_blocks, row, first);
#pragma unroll
    for (uint32_t b = 0; b < STAGE_BLOCKS; b++)
        to[b * SCALE_ROWS] = value[b];
}

static void arrange_scales(const sl_cu_queue *queue, const sl_cu_many *m)
{
    enum { SCALE_THREADS = 256, GROUPS = SCALE_THREADS / SCALE_ROWS };
    const dim3 grid(div_up(m->n_rows, SCALE_ROWS), div_up(m->q8.n_blocks, STAGE_BLOCKS * GROUPS));
    launch(queue, scales_kernel, grid, dim3(SCALE_THREADS), 0, (const float *)m->q8.d, m->n_rows,
           m->q8.n_blocks, m->scales);
}

size_t sl_cu_carry_bytes(int n_multiprocessors)
{
    return (size_t)n_multiprocessors * UNITS *
           (UNIT_PANELS * ROWS * WIDE * sizeof(float) + sizeof(uint32_t));
}

/* Tiles of rows, and the matrix of the stack that one of them reads. */
template <int COLUMNS>
static __device__ __forceinline__ uint32_t count_row_tiles(const sl_cu_many &m)
{
    return m.groups.n_rows ? *m.groups.n : div_up(m.n_rows, COLUMNS);
}

#if SL_HAS_WARPGROUPS
/* ---- panels ---- */

/* Where a panel's outputs go. Targets are looked up by constant numbers only: the arguments of a
 * kernel are fast to read there. */
typedef struct panel_place {
    float *y;
    uint32_t y_stride, n_outputs; /* n_outputs 0: there is no such panel */
} panel_place;

/* Panel i of a group. */
static __device__ __forceinline__ panel_place find_panel(const sl_cu_many &m, uint32_t group,
                                                         uint32_t i)
{
    panel_place at = {NULL, 0, 0};
#pragma unroll
    for (uint32_t k = 0; k < SL_CU_MANY_TARGETS; k++) {
        if (k >= m.n_targets)
            continue;
        const sl_cu_target &target = m.targets[k];
        const uint32_t n_panels = panels_of(target), n_groups = div_up(n_panels, UNIT_PANELS);
        const uint32_t n = group * UNIT_PANELS + i;
        if (group < n_groups && n < n_panels) {
            at.y = target.y + (size_t)n * ROWS;
            at.y_stride = target.y_stride;
            const uint32_t left = target.w.n_rows - n * ROWS;
            at.n_outputs = left < ROWS ? left : ROWS;
        }
        group = group < n_groups || group == UINT32_MAX ? UINT32_MAX : group - n_groups;
    }
    return at;
}

/* ---- the warps that fetch ---- */

/* A stage of the weights of one group. What is not there arrives as 0. */
static __device__ __forceinline__ void copy_weights(const sl_cu_many &m, const copy_maps &maps,
                                                    uint32_t group, uint32_t matrix, uint32_t block,
                                                    uint32_t to, uint32_t full)
{
    if (m.swiglu) {
        const uint32_t n = group * (UNIT_PANELS / 2);
        copy_panels(to, &maps.w[0], block, n, matrix, full);
        copy_panels(to + UNIT_PANELS / 2 * STAGE_BLOCKS * SL_CU_PLAIN_BYTES, &maps.w[1], block, n,
                    matrix, full);
        return;
    }
    uint32_t target = 0;
#pragma unroll
    for (uint32_t k = 0; k + 1 < SL_CU_MANY_TARGETS; k++) {
        const uint32_t n_groups = div_up(panels_of(m.targets[k]), UNIT_PANELS);
        if (target == k && k + 1 < m.n_targets && group >= n_groups) {
            group -= n_groups;
            target = k + 1;
        }
    }
    copy_panels(to, &maps.w[target], block, group * UNIT_PANELS, matrix, full);
}

/* One thread of each warp of the warpgroup: three fetch the weights of a unit each, the last one
 * the activations. */
template <int COLUMNS, int ENDING>
static __device__ __forceinline__ void fetch(const sl_cu_many &m, const copy_maps &maps,
                                             const schedule &s, uint32_t warp,
                                             ring<COLUMNS, ENDING> at)
{
    typedef stage<COLUMNS> stage_type;
    const uint32_t w_bytes = (uint32_t)sizeof(stage_type::w[0]);
    const uint32_t q_bytes = (uint32_t)sizeof(stage_type::q[0]);
    const uint32_t d_bytes = (uint32_t)sizeof(stage_type::d[0]);
    tile_part part;
    for (uint32_t i = 0; part_at(s, i, &part); i++) {
        const uint32_t left = s.n_units - part.first_unit;
        const uint32_t n_units = left < s.per_tile ? left : s.per_tile;
        const uint32_t first_tile = part.first_unit / s.n_groups;
        const uint32_t last_tile = (part.first_unit + n_units - 1) / s.n_groups;
        const uint32_t n_tiles = warp == UNITS ? last_tile - first_tile + 1 : 0;
        const uint32_t unit = part.first_unit + warp;
        const uint32_t matrix =
            warp < n_units && m.groups.n_rows ? m.groups.stack[unit / s.n_groups] : 0;
        for (uint32_t n = part.first; n < part.end; n++) {
            wait_for(at.empty(), at.parity);
            arrive_expecting(at.full(), warp < n_units ? w_bytes : n_tiles * (q_bytes + d_bytes));
            if (warp < n_units)
                copy_weights(m, maps, unit % s.n_groups, matrix, n * STAGE_BLOCKS,
                             at.at + (uint32_t)offsetof(stage_type, w) + warp * w_bytes, at.full());
            for (uint32_t k = 0; k < n_tiles; k++) {
                const uint32_t row = (first_tile + k) * COLUMNS;
                const size_t tile = (size_t)(row / SCALE_ROWS) * s.n_stages + n;
                copy_rows(at.at + k * q_bytes, &maps.codes, n * STAGE_BYTES, row, at.full());
                copy_bulk(at.at + (uint32_t)offsetof(stage_type, d) + k * d_bytes,
                          m.scales + tile * (STAGE_BLOCKS * SCALE_ROWS), d_bytes, at.full());
            }
            at.advance();
        }
    }
}

/* ---- the warpgroups that compute ---- */

/* Where a lane's operands lie in every stage: codes and scales of its panel, rows of activations
 * and its columns' scales. */
typedef struct operand_place {
    uint32_t codes, w, rows, a;
} operand_place;

template <int COLUMNS>
static __device__ __forceinline__ operand_place place_operands(uint32_t unit, uint32_t tile,
                                                               uint32_t first_scale)
{
    typedef stage<COLUMNS> stage_type;
    const uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x % GROUP / WARP;
    const uint32_t panel = (uint32_t)offsetof(stage_type, w) +
                           (unit * UNIT_PANELS + warp) * (STAGE_BLOCKS * SL_CU_PLAIN_BYTES);
    operand_place at;
    at.codes = panel + 16 * lane;
    at.w = panel + CODE_BYTES + lane / 4 * (uint32_t)sizeof(__half);
    at.rows = tile * (uint32_t)sizeof(stage_type::q[0]);
    at.a = (uint32_t)offsetof(stage_type, d) + tile * (uint32_t)sizeof(stage_type::d[0]) +
           first_scale * (uint32_t)sizeof(float) + lane % 4 * 16;
    /* kept in registers: see ring */
    at.codes = __shfl_sync(0xFFFFFFFFu, at.codes, lane);
    at.w = __shfl_sync(0xFFFFFFFFu, at.w, lane);
    at.rows = __shfl_sync(0xFFFFFFFFu, at.rows, lane);
    at.a = __shfl_sync(0xFFFFFFFFu, at.a, lane);
    return at;
}

/* The scales of one block, as a lane sees them: of its two outputs and of its columns. */
template <int COLUMNS> struct block_of_scales {
    float w[2], a[COLUMNS / 4];
};

template <int COLUMNS>
static __device__ __forceinline__ void load_scales(uint32_t w, uint32_t a,
                                                   block_of_scales<COLUMNS> *out)
{
#pragma unroll
    for (int i = 0; i < COLUMNS / 16; i++) {
        const uint4 four = load_16(a + 64 * i);
        out->a[4 * i] = sl_float_of_bits(four.x);
        out->a[4 * i + 1] = sl_float_of_bits(four.y);
        out->a[4 * i + 2] = sl_float_of_bits(four.z);
        out->a[4 * i + 3] = sl_float_of_bits(four.w);
    }
    out->w[0] = load_half(w);
    out->w[1] = load_half(w + 8 * (uint32_t)sizeof(__half));
}

/* Adds the blocks of the stage at hand to a segment's sums, or begins them. */
template <bool FIRST, int COLUMNS, int ENDING>
static __device__ __forceinline__ void
sum_stage(const operand_place &place, ring<COLUMNS, ENDING> *at, float (&seg)[COLUMNS / 2])
{
    enum { N = COLUMNS / 2 };
    const uint64_t rows = describe(at->at + place.rows);
    wait_for(at->full(), at->parity);
    uint4 codes = load_16(at->at + place.codes);
#pragma unroll
    for (int b = 0; b < STAGE_BLOCKS; b++) {
        int dots[N];
        block_of_scales<COLUMNS> scales;
        load_scales<COLUMNS>(at->at + place.w + b * SL_CU_PLAIN_BYTES,
                             at->at + place.a + b * (uint32_t)(SCALE_ROWS * sizeof(float)),
                             &scales);
        fence_operands();
        start_dots(dots, codes, rows + b * (SL_Q8_BLOCK / 16));
        close_dots();
        wait_for_dots(dots);
        if (b + 1 < STAGE_BLOCKS) {
            codes = load_16(at->at + place.codes + (b + 1) * SL_CU_PLAIN_BYTES);
        } else {
            __syncwarp();
            if (threadIdx.x % WARP == 0)
                arrive(at->empty());
        }
#pragma unroll
        for (int i = 0; i < N; i++)
            seg[i] = fmaf(scales.w[i / 2 % 2] * scales.a[i / 4 * 2 + i % 2], (float)dots[i],
                          FIRST && b == 0 ? 0.0f : seg[i]);
    }
    at->advance();
}

/* Adds the stages of a part to the sums of a unit: total[i] is output lane / 4 + 8 (i / 2 % 2) of
 * the warp's panel, column 8 (i / 4) + 2 (lane % 4) + i % 2. A part begins with a segment. */
template <int COLUMNS, int ENDING>
static __device__ __forceinline__ void sum_part(const operand_place &place, const tile_part &part,
                                                ring<COLUMNS, ENDING> *at,
                                                float (&total)[COLUMNS / 2])
{
    static_assert(STAGES_OF_SEGMENT == 2, "stages of a segment");
    for (uint32_t n = part.first; n < part.end; n += STAGES_OF_SEGMENT) {
        float seg[COLUMNS / 2];
        sum_stage<true>(place, at, seg);
        if (n + 1 < part.end)
            sum_stage<false>(place, at, seg);
#pragma unroll
        for (int i = 0; i < COLUMNS / 2; i++)
            total[i] = total[i] + seg[i];
    }
}

/* The results of a panel, stored or added to what is there. WHOLE: all rows and outputs are. */
template <int COLUMNS, bool SUM_UP, bool WHOLE>
static __device__ __forceinline__ void store_panel(const sl_cu_many &m, const panel_place &at,
                                                   uint32_t first,
                                                   const float (&total)[COLUMNS / 2])
{
    const uint32_t g = threadIdx.x % WARP / 4, left = m.n_rows - first;
    float *const y = at.y + (size_t)first * at.y_stride + g;
    float before[COLUMNS / 2];
    uint32_t faults = 0; /* a bit a row */
#pragma unroll
    for (int i = 0; i < COLUMNS / 2 && SUM_UP; i++) {
        const uint32_t output = 8 * (i / 2 % 2), row = i / 4 * 8 + i % 2;
        const bool there = WHOLE || (g + output < at.n_outputs && row < left);
        before[i] = there ? y[(size_t)row * at.y_stride + output] : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < COLUMNS / 2; i++) {
        const uint32_t output = 8 * (i / 2 % 2), row = i / 4 * 8 + i % 2;
        if (!WHOLE && (g + output >= at.n_outputs || row >= left))
            continue;
        const float value = SUM_UP ? before[i] + total[i] : total[i];
        y[(size_t)row * at.y_stride + output] = value;
        if (SUM_UP && (sl_bits_of_float(value) & 0x7FFFFFFFu) >= 0x7F800000u)
            faults |= 1u << (i / 4 * 2 + i % 2);
    }
    for (; faults != 0; faults &= faults - 1) {
        const uint32_t bit = (uint32_t)__ffs((int)faults) - 1;
        atomicCAS(&m.flags[first + bit / 2 * 8 + bit % 2], 0u, m.mark);
    }
}

template <int COLUMNS, bool SUM_UP>
static __device__ __forceinline__ void store_unit(const sl_cu_many &m, uint32_t group,
                                                  uint32_t first, const float (&total)[COLUMNS / 2])
{
    const uint32_t warp = threadIdx.x % GROUP / WARP, t = threadIdx.x % 4;
    const panel_place at = find_panel(m, group, warp);
    if (at.n_outputs == ROWS && first + COLUMNS <= m.n_rows)
        store_panel<COLUMNS, SUM_UP, true>(m, at, first + 2 * t, total);
    else if (first + 2 * t < m.n_rows)
        store_panel<COLUMNS, SUM_UP, false>(m, at, first + 2 * t, total);
}

/* silu of eight numbers. In the usual range without a branch, so that the eight go side by side:
 * e^-x needs none of its special cases there, and Newton's step and two corrections by exact
 * remainders round as the division does. */
static __device__ __forceinline__ void silu_eight(float (&x)[8])
{
    bool usual = true;
#pragma unroll
    for (int i = 0; i < 8; i++)
        usual = usual && fabsf(x[i]) > 0x1p-60f && fabsf(x[i]) < 64.0f;
    if (!usual) {
#pragma unroll 1
        for (int i = 0; i < 8; i++) {
#pragma unroll
            for (int k = 0; k < 8; k++)
                x[k] = k == i ? sl_silu(x[k]) : x[k];
        }
        return;
    }
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const float b = 1.0f + sl_expf_usual(-x[i]);
        float r;
        asm("rcp.approx.f32 %0, %1;" : "=f"(r) : "f"(b));
        r = fmaf(r, fmaf(-b, r, 1.0f), r);
        float quotient = x[i] * r;
        quotient = fmaf(r, fmaf(-b, quotient, x[i]), quotient);
        x[i] = fmaf(r, fmaf(-b, quotient, x[i]), quotient);
    }
}

/* A block of values of a row as codes, by two neighbouring lanes, half each. */
static __device__ __forceinline__ void quantise_shared(const sl_cu_many &m, uint32_t row,
                                                       uint32_t b, const float *values)
{
    enum { N = SL_Q8_BLOCK / 2 };
    const uint32_t half = threadIdx.x % 2;
    float x[N];
    uint32_t bits = 0;
#pragma unroll
    for (int i = 0; i < N / 4; i++) {
        const float4 four = ((const float4 *)values)[half * (N / 4) + i];
        x[4 * i] = four.x;
        x[4 * i + 1] = four.y;
        x[4 * i + 2] = four.z;
        x[4 * i + 3] = four.w;
    }
#pragma unroll
    for (int i = 0; i < N; i++) {
        const uint32_t size = sl_bits_of_float(x[i]) & 0x7FFFFFFFu;
        bits = bits < size ? size : bits;
    }
    const uint32_t others = __shfl_xor_sync(0xFFFFFFFFu, bits, 1);
    if (row >= m.n_rows || b >= m.act_q8.n_blocks)
        return;
    bits = bits < others ? others : bits;
    const float largest = sl_float_of_bits(bits);
    const bool usable = bits >= (uint32_t)(127 - 100) << 23 && bits < 0x7F800000u;
    const float factor = usable ? 127.0f / largest : 0.0f;
    int sum = 0;
    uint32_t packed[N / 4] = {0};
#pragma unroll
    for (int i = 0; i < N; i++) {
        const int code = usable ? code_of(x[i] * factor) : 0;
        sum += code;
        packed[i / 4] |= ((uint32_t)code & 0xFFu) << (i % 4 * 8);
    }
    const size_t at = (size_t)row * m.act_q8.n_blocks + b;
    ((uint4 *)(m.act_q8.q + at * SL_Q8_BLOCK))[half] =
        make_uint4(packed[0], packed[1], packed[2], packed[3]);
    m.act_q8.sums[2 * at + half] = (int16_t)sum;
    const float nan = sl_float_of_bits(0x7FC00000u);
    const float scale = usable ? largest / 127.0f : bits >= 0x7F800000u ? nan : 0.0f;
    if (half == 0)
        m.act_q8.d[at] = scale;
    else if (m.act_scales)
        m.act_scales[scale_place(m.act_q8.n_blocks, row, b)] = scale;
}

/* silu(gate) * up as codes. Gates are with the first two warps, the same outputs of up with the
 * others: each two change half of their columns, so that all have work. */
template <int COLUMNS>
static __device__ __forceinline__ void store_act(const sl_cu_many &m, uint32_t unit, uint32_t group,
                                                 uint32_t first, const float (&total)[COLUMNS / 2],
                                                 act_memory<COLUMNS> &act)
{
    enum { N = COLUMNS / 4 };
    const uint32_t thread = threadIdx.x % GROUP, lane = thread % WARP, g = lane / 4, t = lane % 4;
    const uint32_t warp = thread / WARP;
    const bool is_up = warp >= UNIT_PANELS / 2;
    wait_for_group(unit); /* the last unit's codes are made */
#pragma unroll
    for (int i = 0; i < N; i += 4)
        act.half[warp][i / 4][lane] =
            is_up ? make_float4(total[i], total[i + 1], total[i + 2], total[i + 3])
                  : make_float4(total[N + i], total[N + i + 1], total[N + i + 2], total[N + i + 3]);
    wait_for_group(unit);
    float value[N], up[N];
#pragma unroll
    for (int i = 0; i < N; i += 4) {
        const float4 four = act.half[warp ^ UNIT_PANELS / 2][i / 4][lane];
        const float other[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
        for (int k = 0; k < 4; k++) {
            value[i + k] = is_up ? other[k] : total[i + k];
            up[i + k] = is_up ? total[N + i + k] : other[k];
        }
    }
    wait_for_group(unit);
    const uint32_t first_column = is_up ? COLUMNS / 2 : 0;
    const uint32_t first_output = warp % (UNIT_PANELS / 2) * ROWS + g;
#pragma unroll
    for (int i = 0; i < N; i += 8) {
        float silu[8];
#pragma unroll
        for (int k = 0; k < 8; k++)
            silu[k] = value[i + k];
        silu_eight(silu);
#pragma unroll
        for (int k = 0; k < 8; k++) {
            const uint32_t column = first_column + (i + k) / 4 * 8 + 2 * t + k % 2;
            const uint32_t output = first_output + 8 * (k / 2 % 2);
            const bool present = group * ACT_OUTPUTS + output < m.targets[0].w.n_rows;
            act.value[column][output] = present ? silu[k] * up[i + k] : 0.0f;
        }
    }
    wait_for_group(unit);
    const uint32_t column = thread / 2;
    if (column < COLUMNS)
        quantise_shared(m, first + column, group, act.value[column]);
}

template <int COLUMNS, int ENDING>
static __device__ __forceinline__ void compute(const sl_cu_many &m, const carried_sums &carried,
                                               const schedule &s, uint32_t warpgroup,
                                               shared_memory<COLUMNS, ENDING> &shared)
{
    enum { N = COLUMNS / 2 };
    ring<COLUMNS, ENDING> at(shared, 0);
    tile_part part;
    for (uint32_t i = 0; part_at(s, i, &part); i++) {
        const uint32_t unit = part.first_unit + warpgroup;
        if (warpgroup >= s.per_tile || unit >= s.n_units) {
            for (uint32_t n = part.first; n < part.end; n++) {
                wait_for(at.full(), at.parity);
                __syncwarp();
                if (threadIdx.x % WARP == 0)
                    arrive(at.empty());
                at.advance();
            }
            continue;
        }
        const uint32_t row_tile = unit / s.n_groups, first = row_tile * COLUMNS;
        const operand_place place = place_operands<COLUMNS>(
            warpgroup, row_tile - part.first_unit / s.n_groups, first % SCALE_ROWS);
        const uint32_t before = (blockIdx.x - 1) * UNITS + warpgroup, own = before + UNITS;
        float total[N];
#pragma unroll
        for (int k = 0; k < N; k++)
            total[k] = 0.0f;
        if (part.first > 0)
            take_sums(carried.sums + (size_t)before * (N * GROUP), &carried.flags[before],
                      warpgroup, total);
        sum_part(place, part, &at, total);
        if (part.end < s.n_stages)
            leave_sums(carried.sums + (size_t)own * (N * GROUP), &carried.flags[own], warpgroup,
                       total);
        else if constexpr (ENDING == ACT)
            store_act<COLUMNS>(m, warpgroup, unit % s.n_groups, first, total,
                               shared.act[warpgroup]);
        else
            store_unit<COLUMNS, ENDING == SUM>(m, unit % s.n_groups, first, total);
    }
}

#endif

template <int COLUMNS, int ENDING>
static __global__ void __launch_bounds__(THREADS, 1)
    many_kernel(const __grid_constant__ sl_cu_many m, const __grid_constant__ copy_maps maps,
                const carried_sums carried)
{
    static_assert(sizeof(shared_memory<COLUMNS, ENDING>) <= 227 * 1024, "shared memory of a block");
#if SL_HAS_WARPGROUPS
    extern __shared__ __align__(1024) uint8_t raw[];
    shared_memory<COLUMNS, ENDING> &shared = *(shared_memory<COLUMNS, ENDING> *)(void *)raw;
    const uint32_t warp = __shfl_sync(0xFFFFFFFFu, threadIdx.x / WARP, 0);
    if (threadIdx.x == 0) {
        for (uint32_t i = 0; i < shared_memory<COLUMNS, ENDING>::N_STAGES; i++) {
            open_barrier(&shared.stages[i].full, UNITS + 1);
            open_barrier(&shared.stages[i].empty, UNITS * (GROUP / WARP));
        }
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }
    __syncthreads();
    wait_for_previous();
    const schedule s = schedule_of(m, count_row_tiles<COLUMNS>(m), carried.sums != NULL);
    if (warp >= UNITS * (GROUP / WARP)) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"((int)PRODUCER_REGISTERS));
        const ring<COLUMNS, ENDING> at(shared, 1);
        if (threadIdx.x % WARP == 0)
            fetch(m, maps, s, warp - UNITS * (GROUP / WARP), at);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"((int)CONSUMER_REGISTERS));
        compute(m, carried, s, warp / (GROUP / WARP), shared);
    }
#endif
}

/* Of the device that is in use. */
static uint32_t attribute_of(cudaDeviceAttr attribute)
{
    int device = 0, value = 0;
    (void)cudaGetDevice(&device);
    (void)cudaDeviceGetAttribute(&value, attribute, device);
    return (uint32_t)value;
}

/* The driver's function, found at run time: programs do not link to the driver. */
static PFN_cuTensorMapEncodeTiled_v12000 find_encode(void)
{
    enum { SINCE = 12000 };
    void *function = NULL;
    cudaDriverEntryPointQueryResult result;
    if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, SINCE,
                                         cudaEnableDefault, &result) != cudaSuccess ||
        result != cudaDriverEntryPointSuccess)
        return NULL;
    return (PFN_cuTensorMapEncodeTiled_v12000)function;
}

/* Boxes of one stage of a tile's rows. What lies beyond the last row or column reads as 0. */
static int describe_codes(PFN_cuTensorMapEncodeTiled_v12000 encode, const sl_cu_many *m,
                          uint32_t box_rows, CUtensorMap *out)
{
    const cuuint64_t row_bytes = (cuuint64_t)m->q8.n_blocks * SL_Q8_BLOCK;
    const cuuint64_t size[2] = {row_bytes, m->n_rows}, stride[1] = {row_bytes};
    const cuuint32_t box[2] = {STAGE_BYTES, box_rows}, step[2] = {1, 1};
    return encode(out, CU_TENSOR_MAP_DATA_TYPE_UINT8, 2, m->q8.q, size, stride, box, step,
                  CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                  CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

/* Boxes of one stage of a group's panels of one matrix of the stack, in pieces of 8 bytes. */
static int describe_weights(PFN_cuTensorMapEncodeTiled_v12000 encode, const sl_cu_many *m,
                            const sl_cu_target *target, CUtensorMap *out)
{
    enum { PIECE = 8, PIECES = SL_CU_PLAIN_BYTES / PIECE };
    const sl_cu_matrix *w = &target->w;
    const cuuint64_t matrix_bytes = (cuuint64_t)panels_of(*target) * w->panel_bytes;
    const cuuint64_t size[4] = {PIECES, m->q8.n_blocks, panels_of(*target), w->n_stack};
    const cuuint64_t stride[3] = {SL_CU_PLAIN_BYTES, w->panel_bytes,
                                  w->n_stack > 1 ? w->stack_bytes : matrix_bytes};
    const cuuint32_t panels = m->swiglu ? UNIT_PANELS / 2 : UNIT_PANELS;
    const cuuint32_t box[4] = {PIECES, STAGE_BLOCKS, panels, 1}, step[4] = {1, 1, 1, 1};
    return encode(out, CU_TENSOR_MAP_DATA_TYPE_UINT64, 4, (void *)(uintptr_t)w->data, size, stride,
                  box, step, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,
                  CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

static int describe_all(const sl_cu_many *m, uint32_t box_rows, copy_maps *out)
{
    const PFN_cuTensorMapEncodeTiled_v12000 encode = find_encode();
    if (!encode || !describe_codes(encode, m, box_rows, &out->codes))
        return 0;
    for (uint32_t i = 0; i < m->n_targets; i++) {
        if (!describe_weights(encode, m, &m->targets[i], &out->w[i]))
            return 0;
    }
    return 1;
}

template <int COLUMNS, int ENDING>
static void launch_many(const sl_cu_queue *queue, const sl_cu_many *m, uint32_t n_processors)
{
    const uint32_t n_units = div_up(m->n_rows, COLUMNS) * count_groups(*m);
    const uint32_t n_tiles = div_up(n_units, units_per_tile(n_units, n_processors));
    const uint32_t n_blocks = n_tiles < n_processors ? n_tiles : n_processors;
    const size_t bytes = sizeof(shared_memory<COLUMNS, ENDING>);
    copy_maps maps = {};
    (void)describe_all(m, COLUMNS, &maps);
    carried_sums carried = {(float *)queue->carry, NULL};
    if (carried.sums)
        carried.flags =
            (uint32_t *)(carried.sums + (size_t)n_processors * UNITS * (UNIT_PANELS * ROWS * WIDE));
    cudaFuncSetAttribute(many_kernel<COLUMNS, ENDING>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                         (int)bytes);
    launch(queue, many_kernel<COLUMNS, ENDING>, dim3(n_blocks), dim3(THREADS), bytes, *m, maps,
           carried);
}

int sl_cu_many_fits(const sl_cu_many *m)
{
    if (m->n_targets == 0 || attribute_of(cudaDevAttrComputeCapabilityMajor) != 9)
        return 0;
    for (uint32_t i = 0; i < m->n_targets; i++) {
        if (m->targets[i].w.kind != SL_CU_PLAIN ||
            (m->targets[i].w.n_stack != 1 && m->groups.n_rows == 0))
            return 0;
    }
    copy_maps maps;
    return describe_all(m, ROWS, &maps);
}

template <int ENDING> static void launch_any(const sl_cu_queue *queue, const sl_cu_many *m)
{
    const uint32_t n_processors = attribute_of(cudaDevAttrMultiProcessorCount);
    const uint32_t n_wide = div_up(m->n_rows, WIDE) * count_groups(*m);
    const bool wide =
        m->groups.n_rows ? m->groups.n_rows == WIDE : units_per_tile(n_wide, n_processors) == UNITS;
    if (wide)
        launch_many<WIDE, ENDING>(queue, m, n_processors);
    else
        launch_many<NARROW, ENDING>(queue, m, n_processors);
}

void sl_cu_run_many(const sl_cu_queue *queue, const sl_cu_many *m)
{
    if (!m->scales_are_there)
        arrange_scales(queue, m);
    if (m->swiglu)
        launch_any<ACT>(queue, m);
    else if (m->flags)
        launch_any<SUM>(queue, m);
    else
        launch_any<STORE>(queue, m);
}
