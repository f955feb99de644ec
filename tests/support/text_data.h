/* Reference texts and tokenizers for tests. */
#ifndef SL_TESTS_TEXT_DATA_H
#define SL_TESTS_TEXT_DATA_H

#include "base/json.h"
#include "text/tokenizer.h"

/* The whole file; fails the test when it cannot be read. Release with free. */
char *sl_test_read_file(const char *path, size_t *n_bytes);

/* One JSON value a line. Zero-initialise, open, read until it returns NULL (json_decref every
 * value), close. */
typedef struct sl_test_lines {
    char *data;
    size_t n_bytes, pos;
} sl_test_lines;
void sl_test_lines_open(sl_test_lines *lines, const char *path);
json_t *sl_test_lines_next(sl_test_lines *lines);
void sl_test_lines_close(sl_test_lines *lines);

sl_str sl_test_string(const json_t *object, const char *key);

json_t *sl_test_json(const char *path);

/* The two tokenizers with reference data: "tiny" and "qwen35". n_vocab: rows of the embedding. */
sl_tokenizer *sl_test_tokenizer(const char *name, size_t n_vocab);
enum { SL_TEST_TINY_ROWS = 2688, SL_TEST_QWEN35_ROWS = 248320 };

/* A small vocabulary for tests: the 256 bytes with their values as ids, then n_extra tokens and
 * n_merges merges. Texts as in sl_tokenizer_spec; split rule qwen35. The spec borrows them. */
typedef struct sl_test_vocab {
    sl_tokenizer_spec spec;
    sl_str *tokens; /* spec.tokens and spec.kinds, to be changed by tests */
    sl_token_kind *kinds;
    char alphabet[256][4];
} sl_test_vocab;
sl_test_vocab *sl_test_vocab_new(size_t n_extra, const sl_str *texts, const sl_token_kind *kinds,
                                 size_t n_merges, const sl_str *merges);
void sl_test_vocab_free(sl_test_vocab *vocab);

sl_tokenizer *sl_test_byte_tokenizer(size_t n_extra, const sl_str *texts,
                                     const sl_token_kind *kinds, size_t n_merges,
                                     const sl_str *merges);

#endif
