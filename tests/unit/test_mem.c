/* The allocator: alignment, totals by purpose, and requests made to fail. */
#include "support.h"

#include <string.h>

#include "base/mem.h"

static void test_alignment_and_content(void **state)
{
    (void)state;
    static const size_t sizes[] = {0, 1, 63, 64, 65, 1000, 4096, 1 << 20};
    for (size_t i = 0; i < SL_COUNTOF(sizes); i++) {
        unsigned char *p = sl_alloc(SL_MEM_GENERAL, sizes[i]);
        unsigned char *q = sl_alloc(SL_MEM_GENERAL, sizes[i]);
        assert_true(p && q && p != q);
        assert_int_equal((uintptr_t)p % SL_MEM_ALIGN, 0);
        memset(p, 0xAB, sizes[i]); /* so that the next block of this size is dirty */
        sl_free(p);
        unsigned char *zeros = sl_alloc_zero(SL_MEM_GENERAL, sizes[i]);
        for (size_t k = 0; k < sizes[i]; k++)
            assert_int_equal(zeros[k], 0);
        sl_free(zeros);
        sl_free(q);
    }
    sl_free(NULL);
}

static void test_sizes_that_do_not_fit(void **state)
{
    (void)state;
    size_t blocks = sl_mem_get_stats().blocks;
    assert_null(sl_alloc(SL_MEM_GENERAL, SIZE_MAX));
    assert_null(sl_alloc(SL_MEM_GENERAL, SIZE_MAX - SL_MEM_ALIGN));
    assert_null(sl_alloc_array(SL_MEM_GENERAL, SIZE_MAX / 2, 3));
    assert_null(sl_alloc_array(SL_MEM_GENERAL, (size_t)1 << 33, (size_t)1 << 33));
    assert_null(sl_strndup(SL_MEM_GENERAL, "x", SIZE_MAX));
    assert_int_equal(sl_mem_get_stats().blocks, blocks);

    size_t out = 7;
    assert_false(sl_size_add(SIZE_MAX, 1, &out));
    assert_false(sl_size_mul(SIZE_MAX / 2, 3, &out));
    assert_false(sl_size_align(SIZE_MAX - 62, 64, &out));
    assert_int_equal(out, 7);
    assert_true(sl_size_add(SIZE_MAX - 1, 1, &out) && out == SIZE_MAX);
    assert_true(sl_size_mul(0, SIZE_MAX, &out) && out == 0);
    assert_true(sl_size_mul(SIZE_MAX, 0, &out) && out == 0);
    assert_true(sl_size_mul(SIZE_MAX, 1, &out) && out == SIZE_MAX);
    assert_true(sl_size_align(65, 64, &out) && out == 128);
    assert_true(sl_size_align(64, 64, &out) && out == 64);
    assert_true(sl_size_align(0, 64, &out) && out == 0);
}

static void test_totals(void **state)
{
    (void)state;
    sl_mem_stats before = sl_mem_get_stats();
    void *weights = sl_alloc(SL_MEM_WEIGHTS, 1000);
    int *array = sl_alloc_array(SL_MEM_STATE, 25, sizeof *array);
    for (int i = 0; i < 25; i++) {
        assert_int_equal(array[i], 0);
        array[i] = i;
    }
    sl_mem_stats stats = sl_mem_get_stats();
    assert_int_equal(stats.blocks, before.blocks + 2);
    assert_int_equal(stats.requests, before.requests + 2);
    assert_int_equal(stats.bytes[SL_MEM_WEIGHTS], before.bytes[SL_MEM_WEIGHTS] + 1000);
    assert_int_equal(stats.bytes[SL_MEM_STATE], before.bytes[SL_MEM_STATE] + 100);

    /* A block keeps its purpose when it grows or shrinks, and its content. */
    array = sl_realloc(SL_MEM_TEXT, array, 400);
    assert_int_equal(sl_mem_get_stats().bytes[SL_MEM_STATE], before.bytes[SL_MEM_STATE] + 400);
    assert_int_equal(sl_mem_get_stats().bytes[SL_MEM_TEXT], before.bytes[SL_MEM_TEXT]);
    array = sl_realloc(SL_MEM_TEXT, array, 40);
    for (int i = 0; i < 10; i++)
        assert_int_equal(array[i], i);
    void *fresh = sl_realloc(SL_MEM_TEXT, NULL, 8);
    assert_int_equal(sl_mem_get_stats().bytes[SL_MEM_TEXT], before.bytes[SL_MEM_TEXT] + 8);

    sl_free(fresh);
    sl_free(array);
    sl_free(weights);
    stats = sl_mem_get_stats();
    assert_int_equal(stats.blocks, before.blocks);
    assert_memory_equal(stats.bytes, before.bytes, sizeof stats.bytes);

    for (int i = 0; i < SL_MEM_TAG_COUNT; i++)
        assert_string_not_equal(sl_mem_tag_name((sl_mem_tag)i), "unknown");
    assert_string_equal(sl_mem_tag_name(SL_MEM_WEIGHTS), "weights");
    assert_string_equal(sl_mem_tag_name(SL_MEM_TAG_COUNT), "unknown");
}

static void test_strndup(void **state)
{
    (void)state;
    char *copy = sl_strndup(SL_MEM_TEXT, "abc\0def", 7);
    assert_memory_equal(copy, "abc\0def", 8);
    sl_free(copy);
    copy = sl_strndup(SL_MEM_TEXT, "abc", 2);
    assert_string_equal(copy, "ab");
    sl_free(copy);
}

static void test_failing_requests(void **state)
{
    (void)state;
    void *p[5];
    sl_mem_fail_at(3, false);
    for (int i = 0; i < 5; i++)
        p[i] = sl_alloc(SL_MEM_GENERAL, 10);
    for (int i = 0; i < 5; i++) {
        assert_int_equal(p[i] == NULL, i == 2);
        sl_free(p[i]);
    }
    sl_mem_fail_at(3, true);
    for (int i = 0; i < 5; i++)
        p[i] = sl_alloc_zero(SL_MEM_GENERAL, 10);
    for (int i = 0; i < 5; i++) {
        assert_int_equal(p[i] == NULL, i >= 2);
        sl_free(p[i]);
    }
    sl_mem_fail_at(0, false);

    /* A block that cannot grow stays as it was. */
    char *text = sl_strndup(SL_MEM_TEXT, "kept", 4);
    sl_mem_fail_at(1, false);
    assert_null(sl_realloc(SL_MEM_TEXT, text, 1000));
    assert_string_equal(text, "kept");
    sl_mem_fail_at(1, false);
    assert_null(sl_strndup(SL_MEM_TEXT, "x", 1));
    sl_mem_fail_at(0, false);
    sl_free(text);
}

static void test_pages(void **state)
{
    (void)state;
    const sl_mem_stats before = sl_mem_get_stats();
    const size_t n = 5000000;
    unsigned char *p = sl_pages_alloc(SL_MEM_WEIGHTS, n);
    assert_non_null(p);
    assert_int_equal((uintptr_t)p % 4096, 0);
    assert_true(p[0] == 0 && p[n / 2] == 0 && p[n - 1] == 0);
    p[n - 1] = 1;
    assert_int_equal(sl_mem_get_stats().bytes[SL_MEM_WEIGHTS], before.bytes[SL_MEM_WEIGHTS] + n);
    sl_mem_fail_at(1, false);
    assert_null(sl_pages_alloc(SL_MEM_WEIGHTS, n));
    sl_mem_fail_at(0, false);
    assert_null(sl_pages_alloc(SL_MEM_WEIGHTS, 0));
    assert_null(sl_pages_alloc(SL_MEM_WEIGHTS, SIZE_MAX / 2));
    sl_pages_free(SL_MEM_WEIGHTS, p, n);
    sl_pages_free(SL_MEM_WEIGHTS, NULL, n);
    assert_int_equal(sl_mem_get_stats().blocks, before.blocks);
    assert_int_equal(sl_mem_get_stats().bytes[SL_MEM_WEIGHTS], before.bytes[SL_MEM_WEIGHTS]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_alignment_and_content),
        cmocka_unit_test(test_sizes_that_do_not_fit),
        cmocka_unit_test(test_totals),
        cmocka_unit_test(test_strndup),
        cmocka_unit_test(test_failing_requests),
        cmocka_unit_test(test_pages),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
