/* Running the answer parser in tests. */
#ifndef SL_TESTS_ANSWERS_H
#define SL_TESTS_ANSWERS_H

#include "text/outparse.h"

/* What came out of a parser that was given the text in pieces: {"reasoning_content": text,
 * "content": text, "tool_calls": [{"name", "arguments": JSON text, "flags": [names]}], "flags":
 * [names]}. `cuts` is asked for the size of the next piece (at least 1). Checks the order of the
 * events. */
typedef size_t (*sl_test_cuts)(void *user, size_t n_left);
json_t *sl_test_answer(const char *text, size_t n, const sl_outparse_options *options,
                       sl_test_cuts cuts, void *user);

json_t *sl_test_answer_whole(const char *text, size_t n, const sl_outparse_options *options);
/* At the byte `at`, then nowhere. */
json_t *sl_test_answer_cut_at(const char *text, size_t n, const sl_outparse_options *options,
                              size_t at);
/* In pieces of 1 to `most` bytes; most = 1: byte by byte. */
json_t *sl_test_answer_in_pieces(const char *text, size_t n, const sl_outparse_options *options,
                                 size_t most, uint64_t seed);

/* Fails the test with both values when they differ. */
void sl_test_same_answer(const char *name, const json_t *got, const json_t *wanted);

#endif
