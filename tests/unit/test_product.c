/* Panels: every level's products of every type have the bits of the scalar dots of the same rows,
 * for awkward numbers of outputs, inputs and rows, random and planted extreme numbers; nothing is
 * written outside of the outputs. */
#include "numbers.h"

#include <stdio.h>
#include <string.h>

#include "backend/cpu/kernels/panels.h"
#include "backend/cpu/pack.h"
#include "base/bits.h"
#include "base/mem.h"

enum {
    MAX_COLS = 1056,
    MAX_BLOCKS = (MAX_COLS + 31) / 32,
    MAX_OUTPUTS = 100,
    MAX_STACK = 3,
    MAX_ROWS = 80,
    MAX_INPUTS = 2 * MAX_ROWS, /* rows that are there; products take some of them */
    GUARD = 16
};

static const float guard_value = 12345.0f;

/* ---- operands ---- */

/* A stack of weight matrices at an odd address, and activations in both forms. */
typedef struct operands {
    sl_matrix matrix;
    uint8_t *weights;
    float x[MAX_INPUTS * MAX_COLS];
    int8_t q[MAX_INPUTS * MAX_BLOCKS * 32];
    float d[MAX_INPUTS * MAX_BLOCKS];
    int16_t sums[2 * MAX_INPUTS * MAX_BLOCKS];
    uint32_t index[MAX_ROWS];
    sl_product_rows rows;
} operands;

/* Where the halves of a block are, so that most of them can be made ordinary numbers. */
typedef struct halves {
    int n, at[2];
} halves;

static halves halves_of(sl_dtype dtype)
{
    switch (dtype) {
    case SL_Q8_0:
    case SL_Q4_0:
    case SL_Q5_0:
    case SL_IQ4_NL:
    case SL_IQ4_XS:
        return (halves){1, {0, 0}};
    case SL_Q4_1:
    case SL_Q5_1:
    case SL_Q4_K:
    case SL_Q5_K:
        return (halves){2, {0, 2}};
    case SL_Q2_K:
        return (halves){2, {offsetof(sl_block_q2_k, d), offsetof(sl_block_q2_k, dmin)}};
    case SL_Q3_K:
        return (halves){1, {offsetof(sl_block_q3_k, d), 0}};
    case SL_Q6_K:
        return (halves){1, {offsetof(sl_block_q6_k, d), 0}};
    default:
        return (halves){0, {0, 0}};
    }
}

static uint16_t random_half(sl_test_rng *rng)
{
    switch (sl_test_rng_below(rng, 40)) {
    case 0:
        return (uint16_t)sl_test_rng_below(rng, 65536); /* NaN and infinity too */
    case 1:
        return (uint16_t)(sl_test_rng_below(rng, 2) << 15); /* zeros */
    case 2:
        return (uint16_t)sl_test_rng_below(rng, 1024); /* denormal */
    default:
        return sl_f32_to_f16(0.01f * sl_test_rng_normal(rng));
    }
}

/* Random bytes; in some rows all of them alike, so that codes are all at one end. */
static void random_weights(sl_test_rng *rng, sl_dtype dtype, uint8_t *row, size_t n_cols)
{
    static const uint8_t ends[] = {0x00, 0xFF, 0x80, 0x7F, 0x88, 0x77};
    const sl_dtype_info *info = sl_dtype_get(dtype);
    const halves scales = halves_of(dtype);
    const size_t n_blocks = n_cols / info->block_elems;
    const bool alike = sl_test_rng_below(rng, 4) == 0;
    const uint8_t end = ends[sl_test_rng_below(rng, SL_COUNTOF(ends))];
    for (size_t i = 0; i < n_blocks * info->block_bytes; i++)
        row[i] = alike ? end : (uint8_t)sl_test_rng_below(rng, 256);
    for (size_t b = 0; b < n_blocks; b++) {
        uint8_t *block = row + b * info->block_bytes;
        for (int i = 0; i < scales.n; i++) {
            const uint16_t half = random_half(rng);
            memcpy(block + scales.at[i], &half, sizeof half);
        }
        if (dtype == SL_MXFP4 && sl_test_rng_below(rng, 8))
            block[0] = (uint8_t)(110 + sl_test_rng_below(rng, 30));
        if (!info->quantised && sl_test_rng_below(rng, 200)) {
            const float value = sl_test_rng_normal(rng);
            const uint16_t half =
                dtype == SL_F16 ? sl_f32_to_f16(value) : (uint16_t)(sl_bits_of_float(value) >> 16);
            memcpy(block, dtype == SL_F32 ? (const void *)&value : (const void *)&half,
                   info->block_bytes);
        }
    }
}

static void random_input(sl_test_rng *rng, operands *o, size_t row, size_t n_cols)
{
    const size_t n_blocks = (n_cols + 31) / 32;
    float *x = o->x + row * n_cols;
    int8_t *q = o->q + row * n_blocks * 32;
    const size_t kind = sl_test_rng_below(rng, 2 * SL_FILL_COUNT);
    sl_fill_floats(rng, kind < SL_FILL_COUNT ? (sl_test_fill)kind : SL_FILL_NORMAL, x, n_cols);
    if (sl_test_rng_below(rng, 6) == 0) { /* all codes at one end */
        for (size_t i = 0; i < n_cols; i++)
            x[i] = row % 2 ? 3.0f : -3.0f;
    }
    sl_quantise_row_scalar(x, n_cols, q, o->d + row * n_blocks, o->sums + 2 * row * n_blocks);
}

static void make_operands(sl_test_rng *rng, sl_dtype dtype, uint32_t n_outputs, uint32_t n_cols,
                          uint32_t n_stack, size_t n_rows, bool indexed, operands *o)
{
    size_t row_bytes;
    assert_true(sl_dtype_row_bytes(dtype, n_cols, &row_bytes));
    const size_t n_bytes = row_bytes * n_outputs * n_stack;
    o->weights = sl_alloc(SL_MEM_GENERAL, n_bytes + 1);
    assert_non_null(o->weights);
    o->matrix = (sl_matrix){.data = o->weights + 1,
                            .dtype = dtype,
                            .n_rows = n_outputs,
                            .n_cols = n_cols,
                            .row_bytes = row_bytes,
                            .n_stack = n_stack,
                            .stack_bytes = row_bytes * n_outputs};
    for (size_t i = 0; i < (size_t)n_outputs * n_stack; i++)
        random_weights(rng, dtype, o->weights + 1 + i * row_bytes, n_cols);
    const size_t n_inputs = indexed ? 2 * n_rows : n_rows;
    for (size_t i = 0; i < n_inputs; i++)
        random_input(rng, o, i, n_cols);
    for (size_t i = 0; i < n_rows; i++)
        o->index[i] = sl_test_rng_below(rng, (uint32_t)n_inputs);
    o->rows = (sl_product_rows){.n = n_rows,
                                .index = indexed ? o->index : NULL,
                                .f32 = o->x,
                                .stride = n_cols,
                                .q = o->q,
                                .d = o->d,
                                .sums = o->sums,
                                .n_blocks = (n_cols + 31) / 32};
}

/* ---- comparison ---- */

static float expected_of(const sl_cpu_kernels *scalar, const operands *o, uint32_t stack,
                         size_t output, size_t i)
{
    const sl_matrix *m = &o->matrix;
    const size_t row = o->rows.index ? o->rows.index[i] : i;
    const size_t block = row * o->rows.n_blocks;
    const uint8_t *w = sl_matrix_row(m, stack, output);
    if (!sl_dtype_get(m->dtype)->quantised)
        return scalar->dot_float[m->dtype](w, o->x + row * m->n_cols, m->n_cols);
    return scalar->dot_q8[m->dtype](w, o->q + 32 * block, o->d + block, o->sums + 2 * block,
                                    m->n_cols);
}

/* The panels [begin, end) of one matrix of the stack. */
static void check_range(sl_isa isa, bool many, const operands *o, const sl_panels *panels,
                        uint32_t stack, size_t begin, size_t end)
{
    static float y[MAX_ROWS][MAX_OUTPUTS + 2 * GUARD];
    const sl_cpu_kernels scalar = sl_cpu_kernels_of(SL_ISA_SCALAR);
    const sl_cpu_kernels level = sl_cpu_kernels_of(isa);
    const sl_matrix *m = &o->matrix;
    float *to[MAX_ROWS];
    for (size_t i = 0; i < o->rows.n; i++) {
        to[i] = y[i] + GUARD;
        for (size_t k = 0; k < SL_COUNTOF(y[i]); k++)
            y[i][k] = guard_value;
    }
    (many ? level.product_many : level.product)[m->dtype](panels, stack, begin, end, &o->rows, to);
    const size_t last = sl_min_size(SL_PANEL_ROWS * end, m->n_rows);
    for (size_t i = 0; i < o->rows.n; i++) {
        for (size_t k = 0; k < SL_COUNTOF(y[i]); k++) {
            const size_t output = k - GUARD;
            const bool ours = k >= GUARD && output >= SL_PANEL_ROWS * begin && output < last;
            const float expected = ours ? expected_of(&scalar, o, stack, output, i) : guard_value;
            if (!sl_same_float(y[i][k], expected))
                fail_msg("%s %s [%u x %u], %zu rows: row %zu, output %zu is %a, expected %a",
                         sl_isa_name(isa), sl_dtype_get(m->dtype)->name, m->n_rows, m->n_cols,
                         o->rows.n, i, output, (double)y[i][k], (double)expected);
        }
    }
}

static operands shared;

/* The panels of the matrix, in memory of their own. */
static sl_panels pack(sl_pool *pool, const sl_matrix *matrix)
{
    uint8_t *memory = sl_pages_alloc(SL_MEM_WEIGHTS, sl_packed_bytes(matrix));
    assert_non_null(memory);
    return sl_pack(pool, matrix, memory);
}

/* One shape on every level that has products of the type. */
static void check_shape(sl_pool *pool, sl_test_rng *rng, sl_dtype dtype, uint32_t n_outputs,
                        uint32_t n_cols, uint32_t n_stack, size_t n_rows, bool indexed)
{
    operands *o = &shared;
    if (sl_panel_block_bytes(dtype) == 0)
        return;
    make_operands(rng, dtype, n_outputs, n_cols, n_stack, n_rows, indexed, o);
    const sl_panels panels = pack(pool, &o->matrix);
    const size_t room = sl_packed_bytes(&o->matrix);
    assert_true(panels.n_bytes <= room && room - panels.n_bytes < SL_MEM_ALIGN);
    const size_t n_panels = sl_panel_count(n_outputs);
    for (int isa = 0; isa < SL_ISA_COUNT; isa++) {
        if (!sl_isa_usable((sl_isa)isa) || !sl_cpu_kernels_of((sl_isa)isa).product[dtype])
            continue;
        const uint32_t stack = (uint32_t)sl_test_rng_below(rng, n_stack);
        const size_t middle = sl_test_rng_below(rng, (uint32_t)n_panels + 1);
        for (int many = 0; many < 2; many++) {
            if (many && !sl_cpu_kernels_of((sl_isa)isa).product_many[dtype])
                continue;
            check_range((sl_isa)isa, many, o, &panels, stack, 0, n_panels);
            check_range((sl_isa)isa, many, o, &panels, stack, 0, middle);
            check_range((sl_isa)isa, many, o, &panels, stack, middle, n_panels);
        }
    }
    sl_pages_free(SL_MEM_WEIGHTS, panels.data, room);
    sl_free(o->weights);
}

static sl_pool *pool_of(unsigned n_threads)
{
    sl_error err;
    sl_pool *pool = NULL;
    assert_int_equal(sl_pool_create(n_threads, &pool, &err), SL_OK);
    return pool;
}

/* ---- tests ---- */

static uint32_t some_cols(sl_dtype dtype, uint32_t units)
{
    const uint32_t block = sl_dtype_get(dtype)->block_elems;
    return block == 256 ? 256 * (1 + units % 4) : block == 32 ? 32 * units : units;
}

static void test_every_number_of_rows(void **state)
{
    (void)state;
    sl_test_rng rng = sl_test_rng_of(11);
    sl_pool *pool = pool_of(2);
    for (int dtype = 0; dtype < SL_DTYPE_COUNT; dtype++) {
        for (size_t n_rows = 1; n_rows <= 20; n_rows++)
            check_shape(pool, &rng, (sl_dtype)dtype, 48, some_cols((sl_dtype)dtype, 11), 1, n_rows,
                        false);
        check_shape(pool, &rng, (sl_dtype)dtype, 33, some_cols((sl_dtype)dtype, 32), 1, 67, false);
    }
    sl_pool_destroy(pool);
}

static void test_every_number_of_blocks(void **state)
{
    (void)state;
    sl_test_rng rng = sl_test_rng_of(12);
    sl_pool *pool = pool_of(1);
    for (int dtype = 0; dtype < SL_DTYPE_COUNT; dtype++) {
        const bool quantised = sl_dtype_get((sl_dtype)dtype)->quantised;
        for (uint32_t units = 1; units <= (quantised ? 33u : 70u); units++) {
            check_shape(pool, &rng, (sl_dtype)dtype, 32, some_cols((sl_dtype)dtype, units), 1, 1,
                        false);
            check_shape(pool, &rng, (sl_dtype)dtype, 32, some_cols((sl_dtype)dtype, units), 1, 14,
                        false);
        }
        if (!quantised)
            check_shape(pool, &rng, (sl_dtype)dtype, 20, 1055, 1, 9, true);
    }
    sl_pool_destroy(pool);
}

static void test_random_shapes(void **state)
{
    (void)state;
    sl_test_rng rng = sl_test_rng_of(13);
    sl_pool *pool = pool_of(3);
    for (int dtype = 0; dtype < SL_DTYPE_COUNT; dtype++) {
        for (int i = 0; i < 40; i++) {
            const uint32_t n_outputs = 1 + (uint32_t)sl_test_rng_below(&rng, MAX_OUTPUTS);
            const uint32_t units = 1 + (uint32_t)sl_test_rng_below(&rng, 33);
            const size_t n_rows = 1 + sl_test_rng_below(&rng, 30);
            check_shape(pool, &rng, (sl_dtype)dtype, n_outputs, some_cols((sl_dtype)dtype, units),
                        1 + (uint32_t)sl_test_rng_below(&rng, MAX_STACK), n_rows,
                        sl_test_rng_below(&rng, 2));
        }
    }
    sl_pool_destroy(pool);
}

/* What is packed has products at every level but the scalar one. */
static void test_no_type_left_out(void **state)
{
    (void)state;
    for (int isa = SL_ISA_SCALAR + 1; isa < SL_ISA_COUNT; isa++) {
        if (!sl_isa_usable((sl_isa)isa))
            continue;
        const sl_cpu_kernels level = sl_cpu_kernels_of((sl_isa)isa);
        for (int dtype = 0; dtype < SL_DTYPE_COUNT; dtype++) {
            if (sl_panel_block_bytes((sl_dtype)dtype) > 0 && !level.product[dtype])
                fail_msg("%s has no product of %s", sl_isa_name((sl_isa)isa),
                         sl_dtype_get((sl_dtype)dtype)->name);
        }
    }
}

/* Sizes that no machine has have no panels. */
static void test_bad_sizes(void **state)
{
    (void)state;
    sl_matrix huge = {.dtype = SL_Q8_0,
                      .n_rows = UINT32_MAX,
                      .n_cols = UINT32_MAX / 32 * 32,
                      .n_stack = UINT32_MAX};
    assert_int_equal(sl_packed_bytes(&huge), 0);
    huge.n_rows = 1;
    huge.n_cols = 32;
    huge.n_stack = 1;
    assert_int_equal(sl_packed_bytes(&huge) % SL_MEM_ALIGN, 0);
    assert_int_equal(sl_packed_bytes(&huge) / SL_MEM_ALIGN,
                     (544 + SL_MEM_ALIGN - 1) / SL_MEM_ALIGN);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_number_of_rows),
        cmocka_unit_test(test_every_number_of_blocks),
        cmocka_unit_test(test_random_shapes),
        cmocka_unit_test(test_no_type_left_out),
        cmocka_unit_test(test_bad_sizes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
