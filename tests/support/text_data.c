#include "text_data.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "support.h"

char *sl_test_read_file(const char *path, size_t *n_bytes)
{
    FILE *file = fopen(path, "rb");
    if (!file)
        fail_msg("%s cannot be opened", path);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    long size = ftell(file);
    assert_true(size >= 0);
    rewind(file);
    char *data = malloc((size_t)size + 1);
    assert_non_null(data);
    *n_bytes = fread(data, 1, (size_t)size, file);
    assert_int_equal(*n_bytes, size);
    data[*n_bytes] = '\0';
    fclose(file);
    return data;
}

void sl_test_lines_open(sl_test_lines *lines, const char *path)
{
    lines->data = sl_test_read_file(path, &lines->n_bytes);
    lines->pos = 0;
}

json_t *sl_test_lines_next(sl_test_lines *lines)
{
    if (lines->pos >= lines->n_bytes)
        return NULL;
    const char *begin = lines->data + lines->pos;
    const char *end = memchr(begin, '\n', lines->n_bytes - lines->pos);
    assert_non_null(end);
    lines->pos = (size_t)(end - lines->data) + 1;
    sl_error err;
    json_t *value;
    assert_ok(sl_json_parse(begin, (size_t)(end - begin), "line", sl_json_limits_default(), &value,
                            &err));
    return value;
}

void sl_test_lines_close(sl_test_lines *lines)
{
    free(lines->data);
    *lines = (sl_test_lines){0};
}

sl_str sl_test_string(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    assert_true(json_is_string(value));
    return (sl_str){json_string_value(value), json_string_length(value)};
}

json_t *sl_test_json(const char *path)
{
    size_t n;
    char *data = sl_test_read_file(path, &n);
    sl_error err;
    json_t *value;
    assert_ok(sl_json_parse(data, n, path, sl_json_limits_default(), &value, &err));
    free(data);
    return value;
}

sl_tokenizer *sl_test_tokenizer(const char *name, size_t n_vocab)
{
    const char *path = strcmp(name, "tiny") == 0 ? "tests/data/tokenizer/tiny-tokenizer.json"
                                                 : sl_build_path("testdata/qwen35-tokenizer.json");
    json_t *json = sl_test_json(path);
    sl_error err;
    sl_tokenizer *tokenizer;
    assert_ok(sl_tokenizer_create_json(json, NULL, n_vocab, name, &tokenizer, &err));
    json_decref(json);
    return tokenizer;
}

sl_test_vocab *sl_test_vocab_new(size_t n_extra, const sl_str *texts, const sl_token_kind *kinds,
                                 size_t n_merges, const sl_str *merges)
{
    sl_test_vocab *vocab = calloc(1, sizeof *vocab);
    assert_non_null(vocab);
    vocab->tokens = calloc(256 + n_extra, sizeof *vocab->tokens);
    vocab->kinds = calloc(256 + n_extra, sizeof *vocab->kinds);
    assert_non_null(vocab->tokens);
    assert_non_null(vocab->kinds);
    uint32_t next = 0x100;
    for (uint32_t byte = 0; byte < 256; byte++) {
        bool prints = (byte > 0x20 && byte < 0x7F) || (byte > 0xA0 && byte != 0xAD);
        size_t n = sl_utf8_encode(prints ? byte : next++, vocab->alphabet[byte]);
        vocab->tokens[byte] = (sl_str){vocab->alphabet[byte], n};
        vocab->kinds[byte] = SL_TOKEN_NORMAL;
    }
    for (size_t i = 0; i < n_extra; i++) {
        vocab->tokens[256 + i] = texts[i];
        vocab->kinds[256 + i] = kinds[i];
    }
    vocab->spec = (sl_tokenizer_spec){.n_tokens = 256 + n_extra,
                                      .tokens = vocab->tokens,
                                      .kinds = vocab->kinds,
                                      .n_merges = n_merges,
                                      .merges = merges,
                                      .pretok = SL_PRETOK_QWEN35,
                                      .nfc = true};
    return vocab;
}

void sl_test_vocab_free(sl_test_vocab *vocab)
{
    free(vocab->tokens);
    free(vocab->kinds);
    free(vocab);
}

sl_tokenizer *sl_test_byte_tokenizer(size_t n_extra, const sl_str *texts,
                                     const sl_token_kind *kinds, size_t n_merges,
                                     const sl_str *merges)
{
    sl_error err;
    sl_tokenizer *tokenizer;
    sl_test_vocab *vocab = sl_test_vocab_new(n_extra, texts, kinds, n_merges, merges);
    assert_ok(sl_tokenizer_create(&vocab->spec, &tokenizer, &err));
    sl_test_vocab_free(vocab);
    return tokenizer;
}
