/* The growing buffer: content, the hard limit, failed growth, hand-over. */
#include "support.h"

#include <string.h>

#include "base/buf.h"

static void test_appending(void **state)
{
    (void)state;
    sl_error err;
    sl_buf buf;
    sl_buf_init(&buf, SL_MEM_TEXT, 1 << 20);
    assert_string_equal(buf.data, "");
    assert_ok(sl_buf_append(&buf, NULL, 0, &err));
    assert_ok(sl_buf_append_str(&buf, "ab", &err));
    assert_ok(sl_buf_append_char(&buf, 'c', &err));
    assert_ok(sl_buf_append(&buf, "d\0e", 3, &err));
    assert_ok(sl_buf_printf(&buf, &err, "%d-%s", 17, "x"));
    assert_ok(sl_buf_printf(&buf, &err, "%s", ""));
    assert_int_equal(buf.n_bytes, 10);
    assert_memory_equal(buf.data, "abcd\0e17-x", 11);

    const char *data = buf.data;
    sl_buf_clear(&buf);
    assert_int_equal(buf.n_bytes, 0);
    assert_string_equal(buf.data, "");
    assert_ptr_equal(buf.data, data); /* the memory is kept */

    /* Long formatted text, and many small pieces. */
    char piece[3001];
    memset(piece, 'y', 3000);
    piece[3000] = '\0';
    assert_ok(sl_buf_printf(&buf, &err, "<%s>", piece));
    assert_int_equal(buf.n_bytes, 3002);
    assert_int_equal(buf.data[3001], '>');
    for (int i = 0; i < 50000; i++) {
        assert_ok(sl_buf_append_char(&buf, (char)('a' + i % 26), &err));
        assert_int_equal(buf.data[buf.n_bytes], '\0');
    }
    for (int i = 0; i < 50000; i++)
        assert_int_equal(buf.data[3002 + i], 'a' + i % 26);
    sl_buf_free(&buf);
    assert_string_equal(buf.data, "");
    sl_buf_clear(&buf);
    sl_buf_free(&buf);
}

static void test_limit(void **state)
{
    (void)state;
    sl_error err;
    sl_buf buf;
    sl_buf_init(&buf, SL_MEM_TEXT, 8);
    assert_ok(sl_buf_append_str(&buf, "12345678", &err)); /* the NUL does not count */
    assert_refused(sl_buf_append_char(&buf, '9', &err), SL_ERR_LIMIT, "more than 8 bytes");
    assert_refused(sl_buf_printf(&buf, &err, "%d", 9), SL_ERR_LIMIT, "more than 8 bytes");
    assert_refused(sl_buf_append(&buf, "", SIZE_MAX, &err), SL_ERR_LIMIT, "more than 8 bytes");
    assert_refused(sl_buf_reserve(&buf, SIZE_MAX - 4, &err), SL_ERR_LIMIT, "more than 8 bytes");
    assert_ok(sl_buf_append(&buf, "", 0, &err));
    assert_string_equal(buf.data, "12345678");
    assert_int_equal(buf.n_bytes, 8);
    sl_buf_free(&buf);

    sl_buf_init(&buf, SL_MEM_TEXT, 0);
    assert_ok(sl_buf_append_str(&buf, "", &err));
    assert_refused(sl_buf_append_char(&buf, 'x', &err), SL_ERR_LIMIT, "more than 0 bytes");
    sl_buf_free(&buf);

    /* No limit at all, and a size that leaves no room for the NUL. */
    sl_buf_init(&buf, SL_MEM_TEXT, SIZE_MAX);
    assert_refused(sl_buf_reserve(&buf, SIZE_MAX, &err), SL_ERR_LIMIT, "text of more than");
    sl_buf_free(&buf);
}

static void test_take(void **state)
{
    (void)state;
    sl_error err;
    sl_buf buf;
    size_t n = 99;
    sl_buf_init(&buf, SL_MEM_STATE, 100);
    assert_null(sl_buf_take(&buf, &n));
    assert_int_equal(n, 0);
    assert_ok(sl_buf_append_str(&buf, "mine", &err));
    char *mine = sl_buf_take(&buf, &n);
    assert_int_equal(n, 4);
    assert_ok(sl_buf_append_str(&buf, "another", &err)); /* it can be used again */
    assert_string_equal(mine, "mine");
    assert_string_equal(buf.data, "another");
    sl_free(mine);
    sl_buf_free(&buf);
}

static void test_allocation_failures(void **state)
{
    (void)state;
    sl_error err;
    size_t blocks = sl_mem_get_stats().blocks;
    unsigned failures = 0;
    for (bool finished = false; !finished; failures++) {
        sl_buf buf;
        sl_buf_init(&buf, SL_MEM_TEXT, 100000);
        sl_mem_fail_at(failures + 1, false);
        sl_status status = SL_OK;
        size_t expected = 0;
        while (expected < 5000 && status == SL_OK) {
            status = expected % 2 ? sl_buf_printf(&buf, &err, "%s", "0123456789")
                                  : sl_buf_append_str(&buf, "abcdefghi", &err);
            if (status == SL_OK)
                expected += expected % 2 ? 10 : 9;
        }
        sl_mem_fail_at(0, false);
        finished = status == SL_OK;
        if (!finished)
            assert_int_equal(status, SL_ERR_MEMORY);
        assert_int_equal(buf.n_bytes, expected); /* the old content stays */
        assert_int_equal(strlen(buf.data), expected);
        sl_buf_free(&buf);
        assert_int_equal(sl_mem_get_stats().blocks, blocks);
    }
    assert_true(failures > 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_appending),
        cmocka_unit_test(test_limit),
        cmocka_unit_test(test_take),
        cmocka_unit_test(test_allocation_failures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
