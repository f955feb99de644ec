/* The reader of reference tensors that other tests rely on. */
#include "golden.h"

#include "base/bits.h"

static void test_blocks(void **state)
{
    (void)state;
    sl_golden *g = sl_golden_open("tests/data/quants/blocks.safetensors");
    assert_int_equal(sl_golden_count(g), 47);
    assert_string_equal(sl_golden_about(g), "");
    const sl_golden_tensor *raw = sl_golden_get(g, "Q8_0.raw");
    assert_int_equal(raw->n_dims, 2);
    assert_int_equal(raw->shape[0], 4);
    assert_int_equal(raw->shape[1], 512 / 32 * 34);
    assert_int_equal(raw->n_bytes, 4 * 512 / 32 * 34);
    assert_null(raw->f32);
    /* bfloat16 is the upper half of a float32, so values can be checked without a dequantiser. */
    const uint8_t *halves = sl_golden_get(g, "BF16.raw")->u8;
    const float *values = sl_golden_f32(g, "BF16.deq", 4 * 512);
    for (size_t i = 0; i < 4 * 512; i++) {
        assert_int_equal(sl_bits_of_float(values[i]),
                         (uint32_t)halves[2 * i + 1] << 24 | (uint32_t)halves[2 * i] << 16);
    }
    assert_null(sl_golden_find(g, "no such tensor"));
    sl_golden_close(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_blocks)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
