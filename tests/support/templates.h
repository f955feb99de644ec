/* Rendering templates in tests. */
#ifndef SL_TESTS_TEMPLATES_H
#define SL_TESTS_TEMPLATES_H

#include "text/template.h"

/* A JSON value with ' for ", which keeps test sources readable. Fails the test if it is none. */
json_t *sl_test_json_of(const char *text);

/* Compiles `source` under the name "t" and renders it with what `input` holds (its messages may be
 * NULL: an empty array). On SL_OK release *out with sl_marked_text_free. */
sl_status sl_test_render(const char *source, size_t n, const sl_template_input *input,
                         sl_marked_text *out, sl_error *err);

/* The same for messages and variables (may be NULL) in the notation of sl_test_json_of. */
sl_status sl_test_render_json(const char *source, const char *messages, const char *variables,
                              sl_marked_text *out, sl_error *err);

/* The text with every untrusted range in guillemets, for comparison. Release with free. */
char *sl_test_show_marks(const sl_marked_text *text);

/* Fails the test unless the ranges are ascending, apart and inside the text. */
void sl_test_check_marks(const sl_marked_text *text);

/* Runs fn on a thread with 64 KiB of stack. */
void sl_test_on_small_stack(void *(*fn)(void *), void *arg);

#endif
