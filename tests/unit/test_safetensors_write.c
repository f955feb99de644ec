/* Writing files whole or not at all, and the safetensors layout. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "golden.h"

#include "base/mem.h"
#include "base/outfile.h"

static const char *scratch(const char *name)
{
    static char path[4096];
    mkdir(sl_build_path("scratch"), 0777);
    snprintf(path, sizeof path, "%s/%s", sl_build_path("scratch"), name);
    return path;
}

/* Files in the scratch folder whose name holds `part`. */
static size_t count_files(const char *part)
{
    DIR *folder = opendir(sl_build_path("scratch"));
    size_t n = 0;
    assert_non_null(folder);
    for (struct dirent *entry; (entry = readdir(folder));)
        n += strstr(entry->d_name, part) != NULL;
    closedir(folder);
    return n;
}

static void assert_content(const char *path, const char *expected)
{
    char text[64] = "";
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    fclose(file);
    assert_string_equal(text, expected);
}

static void write_text(const char *path, const char *text)
{
    sl_error err;
    sl_outfile *file;
    assert_ok(sl_outfile_open(path, &file, &err));
    assert_ok(sl_outfile_write(file, text, strlen(text), &err));
    assert_ok(sl_outfile_commit(file, &err));
}

static void test_a_file_appears_when_complete(void **state)
{
    (void)state;
    sl_error err;
    sl_outfile *file;
    const char *path = scratch("outfile");
    write_text(path, "old");
    assert_ok(sl_outfile_open(path, &file, &err));
    assert_ok(sl_outfile_write(file, "new content", 11, &err));
    assert_content(path, "old");
    sl_outfile_abandon(file);
    assert_content(path, "old");
    assert_int_equal(count_files("outfile"), 1);

    assert_ok(sl_outfile_open(path, &file, &err));
    assert_ok(sl_outfile_write(file, "new", 3, &err));
    assert_ok(sl_outfile_commit(file, &err));
    assert_content(path, "new");
    assert_int_equal(count_files("outfile"), 1);
    sl_outfile_abandon(NULL);
    remove(path);
}

/* The link stays a link and its target gets the content. */
static void test_a_link_is_followed(void **state)
{
    (void)state;
    char link[4096];
    snprintf(link, sizeof link, "%s", scratch("outlink"));
    unlink(link);
    const char *path = scratch("outtarget");
    write_text(path, "old");
    assert_int_equal(symlink("outtarget", link), 0);
    write_text(link, "new");
    assert_content(scratch("outtarget"), "new");
    struct stat info;
    assert_int_equal(lstat(link, &info), 0);
    assert_true(S_ISLNK(info.st_mode));
    remove(link);
    remove(scratch("outtarget"));
}

static void test_outfile_refusals(void **state)
{
    (void)state;
    sl_error err;
    sl_outfile *file;
    assert_refused(sl_outfile_open("no/such/folder/file", &file, &err), SL_ERR_IO,
                   "no/such/folder/file");
    assert_null(file);
    assert_refused(sl_outfile_open(sl_build_path("scratch"), &file, &err), SL_ERR_IO, "scratch");
    if (access("/dev/full", W_OK) != 0)
        return;
    assert_ok(sl_outfile_open("/dev/full", &file, &err));
    assert_refused(sl_outfile_write(file, "x", 1, &err), SL_ERR_IO, "/dev/full: No space left");
    sl_outfile_abandon(file);
    assert_int_equal(access("/dev/full", F_OK), 0);
}

static void test_tensors_read_back(void **state)
{
    (void)state;
    sl_error err;
    const char *path = scratch("written.safetensors");
    const float values[2][3] = {{1, -2, 3.5f}, {0, 1e-40f, 6}};
    const int32_t ids[] = {7, -1};
    const sl_array entries[] = {
        {"ids", SL_ARRAY_I32, 1, {2}, ids},
        {"a \"name\"", SL_ARRAY_F32, 2, {2, 3}, values},
        {"empty", SL_ARRAY_F32, 2, {0, 3}, values},
        {"scalar", SL_ARRAY_F32, 0, {0}, &values[0][2]},
    };
    const sl_array_note notes[] = {{"about", "a test"}, {"more", "\n"}};
    assert_ok(sl_arrays_write(path, entries, 4, notes, 2, &err));
    sl_golden *golden = sl_golden_open(path);
    assert_string_equal(sl_golden_about(golden), "a test");
    assert_int_equal(sl_golden_count(golden), 4);
    assert_memory_equal(sl_golden_i32(golden, "ids", 2), ids, sizeof ids);
    assert_memory_equal(sl_golden_f32(golden, "a \"name\"", 6), values, sizeof values);
    assert_int_equal(sl_golden_get(golden, "a \"name\"")->shape[1], 3);
    assert_int_equal(sl_golden_get(golden, "empty")->n_elems, 0);
    assert_true(sl_golden_f32(golden, "scalar", 1)[0] == 3.5f);
    sl_golden_close(golden);
    remove(path);
}

static void test_writer_refusals(void **state)
{
    (void)state;
    sl_error err;
    const char *path = scratch("refused.safetensors");
    const float x = 0;
    const sl_array twice[] = {{"x", SL_ARRAY_F32, 1, {1}, &x},
                                          {"x", SL_ARRAY_F32, 1, {1}, &x}};
    assert_refused(sl_arrays_write(path, twice, 2, NULL, 0, &err), SL_ERR_ARGUMENT,
                   "two tensors named 'x'");
    const sl_array large = {
        "x", SL_ARRAY_F32, 2, {SIZE_MAX / 4, SIZE_MAX / 4}, &x};
    assert_refused(sl_arrays_write(path, &large, 1, NULL, 0, &err), SL_ERR_ARGUMENT,
                   "too large");
    const sl_array deep = {"x", SL_ARRAY_F32, 5, {1, 1, 1, 1}, &x};
    assert_refused(sl_arrays_write(path, &deep, 1, NULL, 0, &err), SL_ERR_ARGUMENT,
                   "too large");
    assert_int_equal(count_files("refused"), 0);
}

static void test_every_allocation_may_fail(void **state)
{
    (void)state;
    sl_error err;
    const float x = 1;
    const sl_array entry = {"x", SL_ARRAY_F32, 1, {1}, &x};
    const size_t blocks = sl_mem_get_stats().blocks;
    const char *path = scratch("memory.safetensors");
    sl_status status = SL_ERR_MEMORY;
    uint64_t n = 1;
    for (; status != SL_OK; n++) {
        sl_mem_fail_at(n, false);
        status = sl_arrays_write(path, &entry, 1, NULL, 0, &err);
        sl_mem_fail_at(0, false);
        assert_true(status == SL_OK || status == SL_ERR_MEMORY);
        assert_int_equal(sl_mem_get_stats().blocks, blocks);
        assert_int_equal(count_files("memory"), status == SL_OK);
    }
    assert_true(n > 4);
    remove(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_file_appears_when_complete),
        cmocka_unit_test(test_a_link_is_followed),
        cmocka_unit_test(test_outfile_refusals),
        cmocka_unit_test(test_tensors_read_back),
        cmocka_unit_test(test_writer_refusals),
        cmocka_unit_test(test_every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
