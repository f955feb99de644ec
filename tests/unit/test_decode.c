/* Ids to text in steps: the reference lines of both tokenizers, held characters, limits. */
#include "support.h"

#include <stdlib.h>
#include <string.h>

#include "text/decode.h"
#include "text_data.h"

static void assert_text(const sl_buf *buf, size_t from, sl_str expected)
{
    const sl_str got = {buf->data + from, buf->n_bytes - from};
    if (!sl_str_equal(got, expected))
        fail_msg("got \"%.*s\", expected \"%.*s\"", (int)got.n_bytes, got.data,
                 (int)expected.n_bytes, expected.data);
}

static void assert_hex(sl_str bytes, sl_str hex)
{
    static const char digits[] = "0123456789abcdef";
    assert_int_equal(hex.n_bytes, 2 * bytes.n_bytes);
    for (size_t i = 0; i < bytes.n_bytes; i++) {
        unsigned byte = (unsigned char)bytes.data[i];
        assert_int_equal(hex.data[2 * i], digits[byte >> 4]);
        assert_int_equal(hex.data[2 * i + 1], digits[byte & 15]);
    }
}

/* True when a surrogate (ED A0..BF) is cut by a token border. Such bytes can never become valid, so
 * they are shown at once; the reference, Python's decoder, holds them for one byte more. */
static bool cuts_surrogate(const json_t *bytes)
{
    for (size_t i = 0; i + 1 < json_array_size(bytes); i++) {
        const char *hex = json_string_value(json_array_get(bytes, i));
        const char *next = json_string_value(json_array_get(bytes, i + 1));
        size_t n = strlen(hex);
        if (n >= 2 && strcmp(hex + n - 2, "ed") == 0 && (next[0] == 'a' || next[0] == 'b'))
            return true;
    }
    return false;
}

/* Returns 1 when only the whole text could be compared. */
static size_t check_line(const sl_tokenizer *tokenizer, const json_t *line)
{
    sl_error err;
    const json_t *ids = json_object_get(line, "ids");
    const json_t *bytes = json_object_get(line, "bytes");
    const json_t *stream = json_object_get(line, "stream");
    const bool cut = cuts_surrogate(bytes);
    assert_int_equal(json_array_size(bytes), json_array_size(ids));
    assert_int_equal(json_array_size(stream), json_array_size(ids));
    for (int skip = 0; skip < 2; skip++) {
        sl_decoder decoder = sl_decoder_of(tokenizer, skip);
        sl_buf text;
        sl_buf_init(&text, SL_MEM_TEXT, 1 << 20);
        for (size_t i = 0; i < json_array_size(ids); i++) {
            int32_t id = (int32_t)json_integer_value(json_array_get(ids, i));
            size_t before = text.n_bytes;
            assert_ok(sl_decoder_push(&decoder, id, &text, &err));
            const json_t *piece = json_array_get(stream, i), *hex = json_array_get(bytes, i);
            assert_hex(sl_tokenizer_bytes(tokenizer, id),
                       (sl_str){json_string_value(hex), json_string_length(hex)});
            if (!skip && !cut)
                assert_text(&text, before,
                            (sl_str){json_string_value(piece), json_string_length(piece)});
        }
        size_t before = text.n_bytes;
        assert_ok(sl_decoder_flush(&decoder, &text, &err));
        if (!skip)
            assert_text(&text, before, sl_test_string(line, "flush"));
        assert_text(&text, 0, sl_test_string(line, skip ? "text_skip_special" : "text"));
        sl_buf_free(&text);
    }
    return cut;
}

static void check_lines(const char *name, size_t n_vocab, const char *path, size_t n_expected)
{
    sl_tokenizer *tokenizer = sl_test_tokenizer(name, n_vocab);
    sl_test_lines lines = {0};
    sl_test_lines_open(&lines, path);
    size_t n_lines = 0, n_cut = 0;
    for (json_t *line; (line = sl_test_lines_next(&lines)) != NULL; n_lines++) {
        n_cut += check_line(tokenizer, line);
        json_decref(line);
    }
    assert_int_equal(n_lines, n_expected);
    assert_int_equal(n_cut, 1);
    sl_test_lines_close(&lines);
    sl_tokenizer_free(tokenizer);
}

static void test_reference_tiny(void **state)
{
    (void)state;
    check_lines("tiny", SL_TEST_TINY_ROWS, "tests/data/tokenizer/tiny-decode.jsonl", 324);
}

static void test_reference_qwen35(void **state)
{
    (void)state;
    check_lines("qwen35", SL_TEST_QWEN35_ROWS, "tests/data/tokenizer/qwen35-decode.jsonl", 333);
}

/* A small vocabulary: 256 bytes in the order of the alphabet, then what the test adds. */
static sl_tokenizer *small(size_t n_extra, const sl_str *texts, const sl_token_kind *kinds)
{
    return sl_test_byte_tokenizer(n_extra, texts, kinds, 0, NULL);
}

static void test_ids_without_text(void **state)
{
    (void)state;
    sl_error err;
    const sl_str texts[] = {{"[PAD]", 5}, {"<|c|>", 5}, {"<u>", 3}};
    const sl_token_kind kinds[] = {SL_TOKEN_UNUSED, SL_TOKEN_CONTROL, SL_TOKEN_USER_DEFINED};
    sl_tokenizer *tokenizer = small(3, texts, kinds);
    sl_decoder decoder = sl_decoder_of(tokenizer, true);
    sl_buf text;
    sl_buf_init(&text, SL_MEM_TEXT, 100);
    static const int32_t ids[] = {-1, INT32_MIN, 256, 257, 258, 259, INT32_MAX};
    for (size_t i = 0; i < SL_COUNTOF(ids); i++)
        assert_ok(sl_decoder_push(&decoder, ids[i], &text, &err));
    assert_ok(sl_decoder_flush(&decoder, &text, &err));
    assert_string_equal(text.data, "<u>");

    /* A skipped control token does not part the two halves of a character; a shown one does. */
    const int32_t halves[] = {0xC3, 257, 0xA9};
    for (int skip = 1; skip >= 0; skip--) {
        sl_buf_clear(&text);
        decoder = sl_decoder_of(tokenizer, skip);
        for (size_t i = 0; i < SL_COUNTOF(halves); i++)
            assert_ok(sl_decoder_push(&decoder, halves[i], &text, &err));
        assert_string_equal(text.data, skip ? "\xC3\xA9" : "\xEF\xBF\xBD<|c|>\xEF\xBF\xBD");
    }
    sl_buf_free(&text);
    sl_tokenizer_free(tokenizer);
}

/* A token longer than any chunk, and a buffer that is too small for it: all or nothing. */
static void test_long_token(void **state)
{
    (void)state;
    sl_error err;
    const size_t n = 100001;
    char *long_text = malloc(n);
    assert_non_null(long_text);
    for (size_t i = 0; i < n; i++)
        long_text[i] = i % 2 == 0 ? '\xC3' : '\xA9';
    long_text[n - 1] = '!';
    const sl_str texts[] = {{long_text, n}};
    const sl_token_kind kinds[] = {SL_TOKEN_USER_DEFINED};
    sl_tokenizer *tokenizer = small(1, texts, kinds);
    assert_int_equal(sl_tokenizer_bytes(tokenizer, 256).n_bytes, n);
    sl_buf text;
    sl_buf_init(&text, SL_MEM_TEXT, n + 3);
    sl_decoder decoder = sl_decoder_of(tokenizer, false);
    assert_ok(sl_decoder_push(&decoder, 0xE2, &text, &err)); /* held */
    assert_int_equal(text.n_bytes, 0);
    assert_ok(sl_decoder_push(&decoder, 256, &text, &err));
    assert_int_equal(text.n_bytes, n + 3);
    assert_memory_equal(text.data, "\xEF\xBF\xBD", 3);
    assert_memory_equal(text.data + 3, long_text, n);

    sl_buf_free(&text);
    sl_buf_init(&text, SL_MEM_TEXT, n + 2);
    decoder = sl_decoder_of(tokenizer, false);
    assert_ok(sl_decoder_push(&decoder, 0xE2, &text, &err));
    assert_refused(sl_decoder_push(&decoder, 256, &text, &err), SL_ERR_LIMIT, "");
    assert_int_equal(text.n_bytes, 0);
    assert_ok(sl_decoder_push(&decoder, 0x82, &text, &err));
    assert_ok(sl_decoder_push(&decoder, 0xAC, &text, &err));
    assert_string_equal(text.data, "\xE2\x82\xAC");
    sl_buf_free(&text);

    /* The end of a text that is full: the held bytes stay for another try. */
    sl_buf_init(&text, SL_MEM_TEXT, 2);
    assert_ok(sl_decoder_push(&decoder, 0xE2, &text, &err));
    assert_refused(sl_decoder_flush(&decoder, &text, &err), SL_ERR_LIMIT, "");
    text.limit = 3;
    assert_ok(sl_decoder_flush(&decoder, &text, &err));
    assert_string_equal(text.data, "\xEF\xBF\xBD");
    assert_ok(sl_decoder_flush(&decoder, &text, &err));
    assert_int_equal(text.n_bytes, 3);
    sl_buf_free(&text);
    sl_tokenizer_free(tokenizer);
    free(long_text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reference_tiny),
        cmocka_unit_test(test_reference_qwen35),
        cmocka_unit_test(test_ids_without_text),
        cmocka_unit_test(test_long_token),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
