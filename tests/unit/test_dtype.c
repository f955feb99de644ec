/* Element types: numbers and sizes, conversions of halves, and every dequantiser against reference
 * values, bit for bit. */
#include "golden.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bits.h"
#include "format/dtype.h"

/* ---- the table ---- */

static void test_table(void **state)
{
    (void)state;
    static const struct {
        uint32_t number;
        const char *name;
        uint32_t block_elems, block_bytes; /* 0: known by name only */
    } types[] = {
        {0, "F32", 1, 4},         {1, "F16", 1, 2},         {2, "Q4_0", 32, 18},
        {3, "Q4_1", 32, 20},      {6, "Q5_0", 32, 22},      {7, "Q5_1", 32, 24},
        {8, "Q8_0", 32, 34},      {10, "Q2_K", 256, 84},    {11, "Q3_K", 256, 110},
        {12, "Q4_K", 256, 144},   {13, "Q5_K", 256, 176},   {14, "Q6_K", 256, 210},
        {20, "IQ4_NL", 32, 18},   {23, "IQ4_XS", 256, 136}, {30, "BF16", 1, 2},
        {39, "MXFP4", 32, 17},    {9, "Q8_1", 0, 0},        {15, "Q8_K", 0, 0},
        {16, "IQ2_XXS", 0, 0},    {19, "IQ1_S", 0, 0},      {28, "F64", 0, 0},
        {33, "Q4_0_8_8", 0, 0},   {34, "TQ1_0", 0, 0},      {35, "TQ2_0", 0, 0},
        {38, "IQ4_NL_8_8", 0, 0}, {40, "NVFP4", 0, 0},
    };
    int n_usable = 0;
    for (size_t i = 0; i < SL_COUNTOF(types); i++) {
        sl_dtype dtype = SL_DTYPE_COUNT;
        const char *name;
        bool usable = sl_dtype_from_ggml(types[i].number, &dtype, &name);
        assert_string_equal(name, types[i].name);
        assert_int_equal(usable, types[i].block_bytes > 0);
        if (!usable)
            continue;
        n_usable++;
        const sl_dtype_info *info = sl_dtype_get(dtype);
        assert_string_equal(info->name, types[i].name);
        assert_int_equal(info->block_elems, types[i].block_elems);
        assert_int_equal(info->block_bytes, types[i].block_bytes);
        assert_int_equal(info->quantised, types[i].block_elems > 1);
    }
    assert_int_equal(n_usable, SL_DTYPE_COUNT);
}

static void test_unknown_numbers(void **state)
{
    (void)state;
    static const uint32_t numbers[] = {43, 100, 0x7fffffff, 0x80000000, UINT32_MAX};
    for (size_t i = 0; i < SL_COUNTOF(numbers); i++) {
        sl_dtype dtype;
        const char *name = "";
        assert_false(sl_dtype_from_ggml(numbers[i], &dtype, &name));
        assert_null(name);
    }
}

static void test_row_bytes(void **state)
{
    (void)state;
    size_t n = 7;
    assert_true(sl_dtype_row_bytes(SL_Q8_0, 64, &n));
    assert_int_equal(n, 68);
    assert_true(sl_dtype_row_bytes(SL_F32, 3, &n));
    assert_int_equal(n, 12);
    assert_true(sl_dtype_row_bytes(SL_Q4_K, 0, &n));
    assert_int_equal(n, 0);
    n = 7;
    assert_false(sl_dtype_row_bytes(SL_Q8_0, 33, &n));
    assert_false(sl_dtype_row_bytes(SL_Q4_K, 128, &n));
    assert_false(sl_dtype_row_bytes(SL_F32, UINT64_C(1) << 62, &n));
    assert_false(sl_dtype_row_bytes(SL_F32, UINT64_MAX, &n));
    assert_false(sl_dtype_row_bytes(SL_Q8_0, UINT64_MAX - 31, &n));
    assert_int_equal(n, 7);
}

/* ---- halves ---- */

/* The value of a half by its definition; infinity counts as 2^16, which is where it stands in
 * rounding. */
static double half_value(uint32_t h)
{
    int exponent = (int)(h >> 10 & 31), mantissa = (int)(h & 0x3ff);
    double value = exponent == 0 ? ldexp(mantissa, -24) : ldexp(1024 + mantissa, exponent - 25);
    return h & 0x8000 ? -value : value;
}

static void test_half_to_float(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 0x10000; h++) {
        uint32_t bits = sl_bits_of_float(sl_f16_to_f32((uint16_t)h));
        uint32_t sign = (h & 0x8000) << 16, payload = h & 0x3ff;
        if ((h & 0x7c00) != 0x7c00)
            assert_int_equal(bits, sl_bits_of_float((float)half_value(h)));
        else if (payload == 0)
            assert_int_equal(bits, sign | 0x7f800000);
        else
            assert_int_equal(bits, sign | 0x7fc00000 | payload << 13);
    }
}

/* The nearest half of a finite float: the positive halves are ordered as their bits, so search. */
static uint16_t nearest_half(float f)
{
    double magnitude = fabs((double)f);
    uint32_t low = 0, high = 0x7c00;
    while (high - low > 1) {
        uint32_t middle = (low + high) / 2;
        *(half_value(middle) <= magnitude ? &low : &high) = middle;
    }
    double below = magnitude - half_value(low), above = half_value(high) - magnitude;
    uint32_t h = above < below || (above == below && low % 2 == 1) ? high : low;
    return (uint16_t)(h | (sl_bits_of_float(f) >> 16 & 0x8000));
}

static void assert_half(float f)
{
    uint16_t expected = nearest_half(f), got = sl_f32_to_f16(f);
    if (got != expected)
        print_error("%a became %04x, not %04x\n", (double)f, got, expected);
    assert_int_equal(got, expected);
}

/* Every half, every point halfway to the next one, and the floats on both sides of each. */
static void test_float_to_half_at_borders(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 0x7c00; h++) {
        double middle = (half_value(h) + half_value(h + 1)) / 2; /* exact in float32 */
        uint32_t points[] = {sl_bits_of_float((float)half_value(h)),
                             sl_bits_of_float((float)middle)};
        for (int p = 0; p < 2; p++) {
            for (int step = -1; step <= 1; step++) {
                if (points[p] == 0 && step < 0)
                    continue;
                uint32_t bits = points[p] + (uint32_t)step;
                assert_half(sl_float_of_bits(bits));
                assert_half(sl_float_of_bits(bits | 0x80000000));
            }
        }
        assert_int_equal(sl_f32_to_f16(sl_f16_to_f32((uint16_t)h)), h);
    }
}

static void test_float_to_half_at_random(void **state)
{
    (void)state;
    sl_test_rng rng = sl_test_rng_of(1);
    for (int i = 0; i < 200000; i++) {
        uint32_t bits = (uint32_t)sl_test_rng_next(&rng);
        if ((bits & 0x7f800000) == 0x7f800000)
            continue;
        /* Half of them inside the range of halves. */
        if (i % 2)
            bits = (bits & 0x807fffff) | (100 + sl_test_rng_below(&rng, 44)) << 23;
        assert_half(sl_float_of_bits(bits));
    }
}

static void test_float_to_half_beyond(void **state)
{
    (void)state;
    assert_int_equal(sl_f32_to_f16(INFINITY), 0x7c00);
    assert_int_equal(sl_f32_to_f16(-INFINITY), 0xfc00);
    assert_int_equal(sl_f32_to_f16(65519.996f), 0x7bff);
    assert_int_equal(sl_f32_to_f16(65520.0f), 0x7c00);
    assert_int_equal(sl_f32_to_f16(-3e38f), 0xfc00);
    assert_int_equal(sl_f32_to_f16(0x1p-25f), 0x0000);
    assert_int_equal(sl_f32_to_f16(sl_float_of_bits(sl_bits_of_float(0x1p-25f) + 1)), 0x0001);
    assert_int_equal(sl_f32_to_f16(sl_float_of_bits(1)), 0x0000);
    assert_int_equal(sl_f32_to_f16(-0.0f), 0x8000);
    assert_int_equal(sl_f32_to_f16(sl_float_of_bits(0x7fc00000)), 0x7e00);
    assert_int_equal(sl_f32_to_f16(sl_float_of_bits(0xff800001)), 0xfe00);
    assert_int_equal(sl_f32_to_f16(sl_float_of_bits(0x7fffffff)), 0x7fff);
}

static void test_bfloat_to_float(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 0x10000; h++)
        assert_int_equal(sl_bits_of_float(sl_bf16_to_f32((uint16_t)h)), h << 16);
}

static void test_mxfp4_scales(void **state)
{
    (void)state;
    for (int e = 0; e < 256; e++)
        assert_int_equal(sl_bits_of_float(sl_mxfp4_scale((uint8_t)e)),
                         sl_bits_of_float(ldexpf(1.0f, e - 128)));
}

/* ---- dequantisers ---- */

enum { ROWS = 4, COLUMNS = 512 };

/* Dequantises tensor `raw` row by row, from an aligned and from an odd address, and compares every
 * bit with tensor `values`. */
static void compare(const sl_golden *g, sl_dtype dtype, const char *raw, const char *values)
{
    size_t row_bytes;
    assert_true(sl_dtype_row_bytes(dtype, COLUMNS, &row_bytes));
    const sl_golden_tensor *blocks = sl_golden_get(g, raw);
    const float *expected = sl_golden_f32(g, values, ROWS * COLUMNS);
    assert_int_equal(blocks->n_bytes, ROWS * row_bytes);
    for (size_t row = 0; row < ROWS; row++) {
        for (size_t shift = 0; shift < 2; shift++) {
            /* Exactly as long as the row, so that a sanitizer sees a read past its end. */
            uint8_t *copy = malloc(row_bytes + shift);
            float *got = malloc(COLUMNS * sizeof *got);
            assert_true(copy && got);
            memcpy(copy + shift, blocks->u8 + row * row_bytes, row_bytes);
            sl_dequantise(dtype, copy + shift, got, COLUMNS);
            for (size_t i = 0; i < COLUMNS; i++) {
                float want = expected[row * COLUMNS + i];
                if (sl_bits_of_float(got[i]) != sl_bits_of_float(want))
                    print_error("%s row %zu element %zu: %a, not %a\n", raw, row, i, (double)got[i],
                                (double)want);
                assert_int_equal(sl_bits_of_float(got[i]), sl_bits_of_float(want));
            }
            free(copy);
            free(got);
        }
    }
}

static void test_golden_blocks(void **state)
{
    (void)state;
    sl_golden *g = sl_golden_open("tests/data/quants/blocks.safetensors");
    int n_raw = 0, n_quantised = 0;
    for (int t = 0; t < SL_DTYPE_COUNT; t++) {
        char raw[32], values[32];
        const char *name = sl_dtype_get((sl_dtype)t)->name;
        snprintf(raw, sizeof raw, "%s.raw", name);
        snprintf(values, sizeof values, "%s.deq", name);
        if (sl_golden_find(g, raw)) {
            compare(g, (sl_dtype)t, raw, values);
            n_raw++;
        }
        snprintf(raw, sizeof raw, "%s.q", name);
        snprintf(values, sizeof values, "%s.q_deq", name);
        if (sl_golden_find(g, raw)) {
            compare(g, (sl_dtype)t, raw, values);
            n_quantised++;
        }
    }
    assert_int_equal(n_raw, SL_DTYPE_COUNT - 1); /* all but F32, which is */
    compare(g, SL_F32, "src", "src");            /* its own value */
    assert_int_equal(n_quantised, 8);
    sl_golden_close(g);
}

static void test_nothing_to_do(void **state)
{
    (void)state;
    float untouched = 1.0f;
    for (int t = 0; t < SL_DTYPE_COUNT; t++)
        sl_dequantise((sl_dtype)t, "", &untouched, 0);
    assert_true(untouched == 1.0f);
}

/* A block whose scale is not finite gives non-finite values, not a crash or a silent number. */
static void test_hostile_scales(void **state)
{
    (void)state;
    for (int t = 0; t < SL_DTYPE_COUNT; t++) {
        uint8_t block[256];
        float out[256];
        memset(block, 0xff, sizeof block);
        const sl_dtype_info *info = sl_dtype_get((sl_dtype)t);
        sl_dequantise((sl_dtype)t, block, out, info->block_elems);
        for (uint32_t i = 0; i < info->block_elems; i++)
            assert_true(!isfinite(out[i]));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_unknown_numbers),
        cmocka_unit_test(test_row_bytes),
        cmocka_unit_test(test_half_to_float),
        cmocka_unit_test(test_float_to_half_at_borders),
        cmocka_unit_test(test_float_to_half_at_random),
        cmocka_unit_test(test_float_to_half_beyond),
        cmocka_unit_test(test_bfloat_to_float),
        cmocka_unit_test(test_mxfp4_scales),
        cmocka_unit_test(test_golden_blocks),
        cmocka_unit_test(test_nothing_to_do),
        cmocka_unit_test(test_hostile_scales),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
