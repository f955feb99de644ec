/* GGUF files that are written: what the reader finds in them, what is refused, and that a failure
 * leaves nothing behind. */
#include <stdio.h>
#include <string.h>

#include "model_build.h"

#include "base/mem.h"
#include "format/gguf.h"
#include "format/gguf_write.h"
#include "format/weights.h"

static sl_status next_bytes(void *context, size_t i, uint8_t *bytes, size_t n, sl_error *err)
{
    uint8_t *count = context;
    (void)err;
    for (size_t k = 0; k < n; k++)
        bytes[k] = (uint8_t)(7 * i + (*count)++);
    return SL_OK;
}

/* Two tensors, the first of them with an end that needs padding. */
static sl_status describe(sl_gguf_writer *writer, sl_error *err)
{
    const int32_t numbers[] = {-1, 2, INT32_MAX};
    sl_gguf_put_string(writer, "general.architecture", sl_str_of("none"));
    sl_gguf_put_u32(writer, "a.count", 4000000000u);
    sl_gguf_put_f32(writer, "a.real", -0.5f);
    sl_gguf_put_bool(writer, "a.truth", true);
    sl_gguf_put_i32s(writer, "a.numbers", numbers, SL_COUNTOF(numbers));
    sl_gguf_put_strings(writer, "a.texts", 2);
    sl_gguf_add_string(writer, sl_str_of("first"));
    sl_gguf_add_string(writer, sl_str_of(""));
    sl_gguf_put_tensor(writer, "x", SL_F32, 1, (const uint64_t[]){3});
    sl_gguf_put_tensor(writer, "y", SL_Q8_0, 3, (const uint64_t[]){32, 2, 5});
    return sl_gguf_writer_finish(writer, err);
}

static void test_the_reader_finds_everything(void **state)
{
    (void)state;
    sl_error err;
    sl_gguf_writer *writer;
    sl_gguf *gguf;
    const char *folder = sl_temp_make();
    const char *path = sl_path(folder, "all.gguf");
    assert_ok(sl_gguf_writer_create(path, &writer, &err));
    assert_ok(describe(writer, &err));
    uint8_t count = 0;
    assert_ok(sl_gguf_writer_save(writer, next_bytes, &count, &err));

    size_t n;
    uint8_t *bytes = sl_read_whole(path, &n);
    assert_int_equal(n, sl_gguf_writer_total(writer));
    assert_ok(sl_gguf_parse(bytes, n, path, &gguf, &err));
    assert_int_equal(sl_gguf_version(gguf), 3);
    assert_int_equal(sl_gguf_key_count(gguf), 6);
    uint64_t number;
    double real;
    bool truth;
    sl_str text;
    sl_gguf_array array;
    assert_ok(sl_gguf_get_uint(gguf, "a.count", 0, UINT32_MAX, &number, &err));
    assert_int_equal(number, 4000000000u);
    assert_ok(sl_gguf_get_float_or(gguf, "a.real", 0, &real, &err));
    assert_true(real == -0.5);
    assert_ok(sl_gguf_get_bool_or(gguf, "a.truth", false, &truth, &err));
    assert_true(truth);
    assert_ok(sl_gguf_get_string(gguf, "general.architecture", &text, &err));
    assert_true(sl_str_is(text, "none"));
    assert_ok(sl_gguf_get_array_or_empty(gguf, "a.numbers", &array, &err));
    int64_t value;
    assert_int_equal(array.n_items, 3);
    assert_true(sl_gguf_array_int(&array, 0, &value) && value == -1);
    assert_true(sl_gguf_array_int(&array, 2, &value) && value == INT32_MAX);
    assert_ok(sl_gguf_get_array_or_empty(gguf, "a.texts", &array, &err));
    assert_int_equal(array.n_items, 2);
    assert_true(sl_str_is(array.strings[0], "first") && sl_str_is(array.strings[1], ""));

    count = 0;
    assert_int_equal(sl_gguf_tensor_count(gguf), 2);
    for (size_t i = 0; i < 2; i++) {
        const sl_gguf_tensor *tensor = sl_gguf_tensor_at(gguf, i);
        assert_int_equal(tensor->offset, sl_gguf_writer_offset(writer, i));
        assert_int_equal(tensor->offset % 32, 0);
        assert_int_equal(tensor->n_bytes, sl_gguf_writer_bytes(writer, i));
        for (size_t k = 0; k < tensor->n_bytes; k++)
            assert_int_equal(bytes[tensor->offset + k], (uint8_t)(7 * i + count++));
    }
    assert_int_equal(sl_gguf_find_tensor(gguf, "y")->ne[2], 5);
    sl_gguf_free(gguf);
    sl_gguf_writer_free(writer);
    free(bytes);
    sl_temp_remove(folder);
}

static sl_gguf_writer *new_writer(void)
{
    sl_error err;
    sl_gguf_writer *writer;
    assert_ok(sl_gguf_writer_create("f.gguf", &writer, &err));
    return writer;
}

static void test_refusals(void **state)
{
    (void)state;
    sl_error err;
    sl_gguf_writer *writer = new_writer();
    sl_gguf_put_tensor(writer, "odd", SL_Q8_0, 1, (const uint64_t[]){33});
    sl_gguf_put_tensor(writer, "later", SL_Q8_0, 1, (const uint64_t[]){31});
    assert_refused(sl_gguf_writer_finish(writer, &err), SL_ERR_ARGUMENT, "f.gguf: odd has a shape");
    sl_gguf_writer_free(writer);

    writer = new_writer();
    sl_gguf_put_tensor(writer, "flat", SL_F32, 0, NULL);
    assert_refused(sl_gguf_writer_finish(writer, &err), SL_ERR_ARGUMENT, "flat");
    sl_gguf_writer_free(writer);

    writer = new_writer();
    sl_gguf_put_tensor(writer, "vast", SL_F32, 2, (const uint64_t[]){1u << 31, 1ull << 33});
    assert_refused(sl_gguf_writer_finish(writer, &err), SL_ERR_ARGUMENT, "vast");
    sl_gguf_writer_free(writer);

    writer = new_writer();
    for (int i = 0; i < 2; i++)
        sl_gguf_put_tensor(writer, i ? "second" : "half", SL_F32, 2,
                           (const uint64_t[]){1u << 31, 1u << 30});
    assert_refused(sl_gguf_writer_finish(writer, &err), SL_ERR_ARGUMENT, "second makes");
    sl_gguf_writer_free(writer);

    writer = new_writer();
    sl_gguf_put_strings(writer, "texts", 1);
    sl_gguf_put_u32(writer, "number", 1);
    assert_refused(sl_gguf_writer_finish(writer, &err), SL_ERR_ARGUMENT, "number comes before");
    sl_gguf_writer_free(writer);

    writer = new_writer();
    sl_gguf_put_strings(writer, "texts", 1);
    assert_refused(sl_gguf_writer_finish(writer, &err), SL_ERR_ARGUMENT, "not complete");
    sl_gguf_writer_free(writer);

    writer = new_writer();
    sl_gguf_add_string(writer, sl_str_of("alone"));
    assert_refused(sl_gguf_writer_finish(writer, &err), SL_ERR_ARGUMENT, "more strings");
    sl_gguf_writer_free(writer);
}

static sl_status failing_source(void *context, size_t i, uint8_t *bytes, size_t n, sl_error *err)
{
    (void)context;
    memset(bytes, 0, n);
    return i == 0 ? SL_OK : sl_fail(err, SL_ERR_IO, "the source is dry");
}

static void test_a_failure_leaves_no_file(void **state)
{
    (void)state;
    sl_error err;
    sl_gguf_writer *writer;
    const char *folder = sl_temp_make();
    const char *path = sl_path(folder, "half.gguf");
    assert_ok(sl_gguf_writer_create(path, &writer, &err));
    assert_ok(describe(writer, &err));
    assert_refused(sl_gguf_writer_save(writer, failing_source, NULL, &err), SL_ERR_IO, "dry");
    FILE *file = fopen(path, "rb");
    assert_null(file);
    sl_gguf_writer_free(writer);

    uint8_t count = 0;
    assert_ok(sl_gguf_writer_create(sl_path(folder, "no/such/folder"), &writer, &err));
    assert_ok(describe(writer, &err));
    assert_refused(sl_gguf_writer_save(writer, next_bytes, &count, &err), SL_ERR_IO, "no/such");
    sl_gguf_writer_free(writer);
    sl_temp_remove(folder);
}

static sl_status write_once(const char *path)
{
    sl_error err;
    sl_gguf_writer *writer;
    uint8_t count = 0;
    sl_status status = sl_gguf_writer_create(path, &writer, &err);
    if (status != SL_OK)
        return status;
    status = describe(writer, &err);
    if (status == SL_OK)
        status = sl_gguf_writer_save(writer, next_bytes, &count, &err);
    sl_gguf_writer_free(writer);
    return status;
}

static void test_out_of_memory(void **state)
{
    (void)state;
    const char *folder = sl_temp_make();
    const char *path = sl_path(folder, "memory.gguf");
    const size_t blocks = sl_mem_get_stats().blocks;
    sl_status status = SL_ERR_MEMORY;
    for (uint64_t n = 1; status != SL_OK; n++) {
        assert_true(n < 1000);
        sl_mem_fail_at(n, false);
        status = write_once(path);
        sl_mem_fail_at(0, false);
        assert_true(status == SL_OK || status == SL_ERR_MEMORY);
        assert_int_equal(sl_mem_get_stats().blocks, blocks);
    }
    sl_temp_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_reader_finds_everything),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_a_failure_leaves_no_file),
        cmocka_unit_test(test_out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
