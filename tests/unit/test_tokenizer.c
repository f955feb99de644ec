/* Text to ids: the reference lines of both tokenizers, untrusted text, hostile vocabularies, and
 * texts that make naive tokenizers slow or overflow the stack. */
#include "support.h"

#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "text/added.h"
#include "text/bpe.h"
#include "text_data.h"

static const sl_encode_options all_added = {.control = true, .user_defined = true};
static const sl_encode_options no_control = {.user_defined = true};

/* ---- reference lines ---- */

static size_t check_line(const sl_tokenizer *tokenizer, const json_t *line, const char *name,
                         size_t number)
{
    sl_error err;
    sl_str text = sl_test_string(line, "text");
    bool specials = json_is_true(json_object_get(line, "specials"));
    const json_t *expected = json_object_get(line, "ids");
    sl_ids ids = {0};
    size_t n_replaced = 1;
    assert_ok(sl_tokenizer_encode(tokenizer, text.data, text.n_bytes,
                                  specials ? &all_added : &no_control, &ids, &n_replaced, &err));
    assert_int_equal(n_replaced, 0);
    bool same = ids.n == json_array_size(expected);
    for (size_t i = 0; same && i < ids.n; i++)
        same = ids.ids[i] == json_integer_value(json_array_get(expected, i));
    if (!same) {
        print_error("%s line %zu (%s): %zu ids, expected %zu; text \"%s\"\n", name, number,
                    json_string_value(json_object_get(line, "cat")), ids.n,
                    json_array_size(expected), text.data);
        for (size_t i = 0; i < ids.n && i < 40; i++)
            print_error(" %d", (int)ids.ids[i]);
        print_error("\n");
    }
    sl_ids_free(&ids);
    return same ? 0 : 1;
}

static void check_lines(const char *name, size_t n_vocab, const char *path)
{
    sl_tokenizer *tokenizer = sl_test_tokenizer(name, n_vocab);
    sl_test_lines lines = {0};
    sl_test_lines_open(&lines, path);
    size_t n_lines = 0, n_bad = 0;
    for (json_t *line; (line = sl_test_lines_next(&lines)) != NULL;) {
        n_bad += check_line(tokenizer, line, name, ++n_lines);
        json_decref(line);
    }
    assert_int_equal(n_bad, 0);
    assert_int_equal(n_lines, 709);
    sl_test_lines_close(&lines);
    sl_tokenizer_free(tokenizer);
}

static void test_reference_tiny(void **state)
{
    (void)state;
    check_lines("tiny", SL_TEST_TINY_ROWS, "tests/data/tokenizer/tiny-encode.jsonl");
}

static void test_reference_qwen35(void **state)
{
    (void)state;
    check_lines("qwen35", SL_TEST_QWEN35_ROWS, "tests/data/tokenizer/qwen35-encode.jsonl");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reference_tiny),
        cmocka_unit_test(test_reference_qwen35),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
