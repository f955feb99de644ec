/* Products of quantised weight rows with int8 activations: bits against a plain reference that
 * takes the integers from the dequantiser, values against float64, and planted extremes. */
#include "golden.h"
#include "numbers.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/kernels/kernels.h"

enum { MAX_N = 1024, MAX_BLOCKS = MAX_N / 32, MAX_BYTES = 4096, NO_FIELD = -1 };

/* Where a block keeps its scale and the factor of its minimums, both halves. */
typedef struct block_type {
    sl_dtype dtype;
    int d, min;
    bool min_is_subtracted; /* dmin of a super-block; m of Q4_1 and Q5_1 is added */
} block_type;

static const block_type types[] = {
    {SL_Q8_0, offsetof(sl_block_q8_0, d), NO_FIELD, false},
    {SL_Q4_0, offsetof(sl_block_q4_0, d), NO_FIELD, false},
    {SL_Q4_1, offsetof(sl_block_q4_1, d), offsetof(sl_block_q4_1, m), false},
    {SL_Q5_0, offsetof(sl_block_q5_0, d), NO_FIELD, false},
    {SL_Q5_1, offsetof(sl_block_q5_1, d), offsetof(sl_block_q5_1, m), false},
    {SL_Q2_K, offsetof(sl_block_q2_k, d), offsetof(sl_block_q2_k, dmin), true},
    {SL_Q3_K, offsetof(sl_block_q3_k, d), NO_FIELD, false},
    {SL_Q4_K, offsetof(sl_block_q4_k, d), offsetof(sl_block_q4_k, dmin), true},
    {SL_Q5_K, offsetof(sl_block_q5_k, d), offsetof(sl_block_q5_k, dmin), true},
    {SL_Q6_K, offsetof(sl_block_q6_k, d), NO_FIELD, false},
    {SL_IQ4_NL, offsetof(sl_block_iq4_nl, d), NO_FIELD, false},
    {SL_IQ4_XS, offsetof(sl_block_iq4_xs, d), NO_FIELD, false},
    {SL_MXFP4, NO_FIELD, NO_FIELD, false},
};

typedef struct activations {
    int8_t q[MAX_N];
    float d[MAX_BLOCKS];
    int16_t sums[2 * MAX_BLOCKS];
} activations;

/* Aligned for every block struct. */
typedef struct weight_row {
    _Alignas(8) uint8_t bytes[MAX_BYTES];
} weight_row;

static void put_half(uint8_t *block, int offset, uint16_t half)
{
    if (offset != NO_FIELD)
        memcpy(block + offset, &half, sizeof half);
}

static uint16_t get_half(const uint8_t *block, int offset)
{
    uint16_t half = 0;
    if (offset != NO_FIELD)
        memcpy(&half, block + offset, sizeof half);
    return half;
}

/* Random bytes with finite scales of either sign, zero and denormal ones among them. */
static void random_row(sl_test_rng *rng, const block_type *type, size_t n, weight_row *row)
{
    const sl_dtype_info *info = sl_dtype_get(type->dtype);
    for (size_t i = 0; i < n / info->block_elems * info->block_bytes; i++)
        row->bytes[i] = (uint8_t)sl_test_rng_below(rng, 256);
    for (size_t b = 0; b < n / info->block_elems; b++) {
        uint8_t *block = row->bytes + b * info->block_bytes;
        put_half(block, type->d, sl_f32_to_f16(0.01f * sl_test_rng_normal(rng)));
        put_half(block, type->min, sl_f32_to_f16(0.01f * sl_test_rng_normal(rng)));
        if (sl_test_rng_below(rng, 8) == 0)
            put_half(block, type->d, (uint16_t)sl_test_rng_below(rng, 3));
        if (type->dtype == SL_MXFP4)
            block[0] = (uint8_t)(sl_test_rng_below(rng, 12) ? 110 + sl_test_rng_below(rng, 30)
                                                            : sl_test_rng_below(rng, 4));
    }
}

static void random_activations(sl_test_rng *rng, sl_test_fill fill, size_t n, activations *a)
{
    float x[MAX_N];
    sl_fill_floats(rng, fill, x, n);
    sl_quantise_row_scalar(x, n, a->q, a->d, a->sums);
}

/* The values of the row with all scales and minimum factors replaced. */
static void dequantise_with(const block_type *type, const weight_row *row, size_t n, float d,
                            float min, float *values)
{
    const sl_dtype_info *info = sl_dtype_get(type->dtype);
    weight_row copy = *row;
    for (size_t b = 0; b < n / info->block_elems; b++) {
        uint8_t *block = copy.bytes + b * info->block_bytes;
        put_half(block, type->d, sl_f32_to_f16(d));
        put_half(block, type->min, sl_f32_to_f16(min));
        if (type->dtype == SL_MXFP4)
            block[0] = 128; /* 2^0 */
    }
    sl_dequantise(type->dtype, copy.bytes, values, n);
}

/* The definition: with scale 1 and minimum factor 0 the values of a row are the integers that
 * multiply the codes, and the other way round those that multiply the code sums. */
static float reference(const block_type *type, const weight_row *row, const activations *a,
                       size_t n)
{
    const sl_dtype_info *info = sl_dtype_get(type->dtype);
    float ints[MAX_N], mins[MAX_N];
    dequantise_with(type, row, n, 1.0f, 0.0f, ints);
    dequantise_with(type, row, n, 0.0f, 1.0f, mins);
    float total = 0.0f;
    for (size_t i = 0; i < n; i += 256) {
        float seg = 0.0f;
        for (size_t k = i; k < sl_min_size(i + 256, n); k += 32) {
            long long dot = 0, min_dot = 0;
            for (size_t j = k; j < k + 32; j++) {
                dot += (long long)ints[j] * a->q[j];
                min_dot += (long long)mins[j] * a->q[j];
            }
            assert_true(llabs(dot) < 1 << 24 && llabs(min_dot) < 1 << 24);
            const uint8_t *block = row->bytes + k / info->block_elems * info->block_bytes;
            float d = type->dtype == SL_MXFP4 ? ldexpf(1.0f, block[0] - 128)
                                              : sl_f16_to_f32(get_half(block, type->d));
            seg = fmaf(d * a->d[k / 32], (float)dot, seg);
            if (type->min == NO_FIELD)
                continue;
            float factor = sl_f16_to_f32(get_half(block, type->min)) * a->d[k / 32];
            seg = type->min_is_subtracted ? fmaf(-factor, (float)-min_dot, seg)
                                          : fmaf(factor, (float)min_dot, seg);
        }
        total = total + seg;
    }
    return total;
}

static float dot(const block_type *type, const weight_row *row, const activations *a, size_t n)
{
    return sl_dot_q8_scalar[type->dtype](row->bytes, a->q, a->d, a->sums, n);
}

static void check(const block_type *type, const weight_row *row, const activations *a, size_t n)
{
    float got = dot(type, row, a, n), expected = reference(type, row, a, n);
    assert_same_floats(&got, &expected, 1);
}

static void test_every_type_is_there(void **state)
{
    (void)state;
    size_t n_quantised = 0;
    for (int dtype = 0; dtype < SL_DTYPE_COUNT; dtype++) {
        bool quantised = sl_dtype_get((sl_dtype)dtype)->quantised;
        n_quantised += quantised;
        assert_int_equal(quantised, sl_dot_q8_scalar[dtype] != NULL);
        assert_int_equal(quantised, sl_dot_float_scalar[dtype] == NULL);
    }
    assert_int_equal(n_quantised, SL_COUNTOF(types));
}

static void test_definition(void **state)
{
    (void)state;
    sl_test_rng rng = sl_test_rng_of(1);
    for (size_t t = 0; t < SL_COUNTOF(types); t++) {
        size_t block = sl_dtype_get(types[t].dtype)->block_elems;
        for (int fill = 0; fill < SL_FILL_COUNT; fill++) {
            for (size_t n = 0; n <= MAX_N; n += block) {
                weight_row row;
                activations a;
                random_row(&rng, &types[t], n, &row);
                random_activations(&rng, (sl_test_fill)fill, n, &a);
                check(&types[t], &row, &a, n);
            }
        }
    }
}

/* Largest codes, smallest codes, largest scales, against activations of all +127 and all -127. */
static void test_extremes(void **state)
{
    (void)state;
    static const uint8_t fillings[] = {0x00, 0xFF, 0x80, 0x7F, 0x88, 0x77, 0x0F, 0xF0};
    for (size_t t = 0; t < SL_COUNTOF(types); t++) {
        const sl_dtype_info *info = sl_dtype_get(types[t].dtype);
        for (size_t f = 0; f < SL_COUNTOF(fillings) * SL_COUNTOF(fillings); f++) {
            weight_row row;
            size_t n = 512, n_bytes = n / info->block_elems * info->block_bytes;
            /* Even and odd bytes differ, so that codes, high bits and scales take part. */
            for (size_t i = 0; i < n_bytes; i++)
                row.bytes[i] =
                    fillings[i % 2 ? f / SL_COUNTOF(fillings) : f % SL_COUNTOF(fillings)];
            for (size_t b = 0; b < n / info->block_elems; b++) {
                put_half(row.bytes + b * info->block_bytes, types[t].d, 0x7BFF);
                put_half(row.bytes + b * info->block_bytes, types[t].min, 0xFBFF);
            }
            for (int sign = -1; sign <= 1; sign++) {
                float x[512];
                for (size_t i = 0; i < n; i++)
                    x[i] = (sign ? (float)sign : i % 2 ? -1.0f : 1.0f) * 1000.0f;
                activations a;
                sl_quantise_row_scalar(x, n, a.q, a.d, a.sums);
                check(&types[t], &row, &a, n);
            }
        }
    }
}

/* Every exponent of MXFP4 on its own, the two denormal scales included. */
static void test_mxfp4_exponents(void **state)
{
    (void)state;
    const block_type *type = &types[SL_COUNTOF(types) - 1];
    assert_int_equal(type->dtype, SL_MXFP4);
    for (int e = 0; e < 256; e++) {
        weight_row row = {{(uint8_t)e, 0x72, 0x7F}};
        activations a;
        float x[32];
        for (size_t i = 0; i < 32; i++)
            x[i] = (float)(i + 1);
        sl_quantise_row_scalar(x, 32, a.q, a.d, a.sums);
        check(type, &row, &a, 32);
        assert_true(dot(type, &row, &a, 32) > 0.0f);
    }
}

/* A plain integer product where nothing rounds: the codes themselves, -128 among them. */
static void test_small_integers_are_exact(void **state)
{
    (void)state;
    sl_test_rng rng = sl_test_rng_of(4);
    for (int round = 0; round < 50; round++) {
        weight_row row;
        sl_block_q8_0 *blocks = (sl_block_q8_0 *)row.bytes;
        activations a;
        long long exact = 0;
        for (size_t i = 0; i < 288; i++) {
            blocks[i / 32].d = 0x3C00;
            a.d[i / 32] = 1.0f;
            int w = round == 0 ? -128 : (int)sl_test_rng_below(&rng, 256) - 128;
            int q = round == 0 ? -127 : (int)sl_test_rng_below(&rng, 255) - 127;
            blocks[i / 32].q[i % 32] = (int8_t)w;
            a.q[i] = (int8_t)q;
            exact += w * q;
        }
        memset(a.sums, 0, sizeof a.sums); /* Q8_0 has no use for them */
        assert_true(dot(&types[0], &row, &a, 288) == (float)exact);
    }
}

/* Files may place rows at any address. */
static void test_any_alignment(void **state)
{
    (void)state;
    sl_test_rng rng = sl_test_rng_of(7);
    for (size_t t = 0; t < SL_COUNTOF(types); t++) {
        weight_row row;
        activations a;
        uint8_t odd[MAX_BYTES + 1];
        random_row(&rng, &types[t], 512, &row);
        random_activations(&rng, SL_FILL_NORMAL, 512, &a);
        memcpy(odd + 1, row.bytes, sizeof row.bytes);
        float got = sl_dot_q8_scalar[types[t].dtype](odd + 1, a.q, a.d, a.sums, 512);
        float expected = dot(&types[t], &row, &a, 512);
        assert_same_floats(&got, &expected, 1);
    }
}

/* A block of activations that is not finite shows in the product, whatever the weights. */
static void test_a_fault_stays_visible(void **state)
{
    (void)state;
    sl_test_rng rng = sl_test_rng_of(5);
    for (size_t t = 0; t < SL_COUNTOF(types); t++) {
        weight_row row;
        activations a;
        float x[512];
        random_row(&rng, &types[t], 512, &row);
        sl_fill_floats(&rng, SL_FILL_NORMAL, x, 512);
        x[300] = -INFINITY;
        sl_quantise_row_scalar(x, 512, a.q, a.d, a.sums);
        assert_true(isnan(dot(&types[t], &row, &a, 512)));
    }
}

/* Reference blocks and their values: the product is that of the values with the activations as
 * quantised, up to float rounding; against the activations before quantising it is off by no more
 * than half a step of each. */
static void test_reference_blocks(void **state)
{
    (void)state;
    sl_golden *golden = sl_golden_open("tests/data/quants/blocks.safetensors");
    sl_test_rng rng = sl_test_rng_of(6);
    for (size_t t = 0; t < SL_COUNTOF(types); t++) {
        const sl_dtype_info *info = sl_dtype_get(types[t].dtype);
        char name[32];
        snprintf(name, sizeof name, "%s.raw", info->name);
        const sl_golden_tensor *raw = sl_golden_get(golden, name);
        snprintf(name, sizeof name, "%s.deq", info->name);
        const float *values = sl_golden_f32(golden, name, 4 * 512);
        size_t row_bytes = 512 / info->block_elems * info->block_bytes;
        assert_int_equal(raw->n_bytes, 4 * row_bytes);
        for (size_t r = 0; r < 4; r++) {
            weight_row row;
            memcpy(row.bytes, raw->u8 + r * row_bytes, row_bytes);
            float x[512];
            activations a;
            sl_fill_floats(&rng, SL_FILL_NORMAL, x, 512);
            sl_quantise_row_scalar(x, 512, a.q, a.d, a.sums);
            double of_codes = 0, of_values = 0, half_steps = 0, magnitude = 0;
            for (size_t i = 0; i < 512; i++) {
                double w = (double)values[512 * r + i], d = (double)a.d[i / 32];
                of_codes += w * (d * a.q[i]);
                of_values += w * (double)x[i];
                half_steps += fabs(w) * 0.5001 * d;
                magnitude += fabs(w) * 127 * d;
            }
            double got = (double)dot(&types[t], &row, &a, 512);
            assert_true(fabs(got - of_codes) <= 1e-6 * magnitude);
            assert_true(fabs(got - of_values) <= half_steps + 1e-6 * magnitude);
        }
    }
    sl_golden_close(golden);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_type_is_there),
        cmocka_unit_test(test_definition),
        cmocka_unit_test(test_extremes),
        cmocka_unit_test(test_mxfp4_exponents),
        cmocka_unit_test(test_small_integers_are_exact),
        cmocka_unit_test(test_any_alignment),
        cmocka_unit_test(test_a_fault_stays_visible),
        cmocka_unit_test(test_reference_blocks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
