/* The ceilings of the machine: figures for every loop, and what happens without memory. */
#include "support.h"

#include "base/mem.h"

static void test_measure(void **state)
{
    (void)state;
    sl_error err;
    sl_ceilings ceilings;
    const size_t blocks = sl_mem_get_stats().blocks;
    assert_ok(sl_measure_ceilings(2, &ceilings, &err));
    assert_int_equal(ceilings.n_threads, 2);
    assert_true(ceilings.read_gbs > 0);
    assert_true(ceilings.read_gbs_1 > 0);
    assert_true(ceilings.read_bytes >= 4 << 20);
    assert_true(ceilings.int8_tops > 0);
    assert_true(ceilings.f32_tflops > 0);
    assert_true(ceilings.amx_tops >= 0);
    assert_non_null(ceilings.int8_loop);
    assert_non_null(ceilings.f32_loop);
    assert_int_equal(sl_mem_get_stats().blocks, blocks);
    print_message("%.1f and %.1f GB/s, %.3f TOPS (%s), %.3f TFLOP/s (%s), %.3f TOPS on tiles\n",
                  ceilings.read_gbs, ceilings.read_gbs_1, ceilings.int8_tops, ceilings.int8_loop,
                  ceilings.f32_tflops, ceilings.f32_loop, ceilings.amx_tops);
}

static void test_refusals(void **state)
{
    (void)state;
    sl_error err;
    sl_ceilings ceilings;
    assert_refused(sl_measure_ceilings(100000, &ceilings, &err), SL_ERR_ARGUMENT, "100000 threads");
    const size_t blocks = sl_mem_get_stats().blocks;
    sl_status status = SL_ERR_MEMORY;
    for (uint64_t n = 1; status != SL_OK; n++) {
        sl_mem_fail_at(n, true); /* once would only make the buffer smaller */
        status = sl_measure_ceilings(1, &ceilings, &err);
        sl_mem_fail_at(0, false);
        assert_true(status == SL_OK || status == SL_ERR_MEMORY);
        assert_int_equal(sl_mem_get_stats().blocks, blocks);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_measure),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
