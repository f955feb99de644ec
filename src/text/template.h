/* Chat templates: an interpreter of the part of Jinja that this family's templates, and edited
 * copies of them, use. It runs no code, reads no files, and stops at limits on steps, depth and
 * output. Text that came from messages or tools keeps a mark through every string operation, so
 * that the tokenizer can refuse to read control tokens in it. */
#ifndef SL_TEXT_TEMPLATE_H
#define SL_TEXT_TEMPLATE_H

#include "base/json.h"
#include "text/tokenizer.h"

typedef struct sl_template sl_template;

/* Compiles source[0..n); name stands in messages ("FILE: line 12: filter 'foo' is not known").
 * Errors: SL_ERR_FORMAT (syntax), SL_ERR_UNSUPPORTED (a construct outside the subset),
 * SL_ERR_LIMIT, SL_ERR_MEMORY. */
sl_status sl_template_compile(const char *source, size_t n, const char *name, sl_template **out,
                              sl_error *err);
void sl_template_free(sl_template *compiled);

typedef struct sl_template_input {
    const json_t *messages;  /* array of objects */
    const json_t *tools;     /* array, or NULL = undefined, as when no tools are passed */
    const json_t *variables; /* object of further variables (enable_thinking, ...), or NULL */
    bool add_generation_prompt;
    int64_t now;        /* seconds since the epoch, UTC, for strftime_now */
    bool trust_content; /* no marks: Hugging Face's behaviour */
} sl_template_input;

/* Rendered text and where it is not to be trusted. Release with sl_marked_text_free. */
typedef struct sl_marked_text {
    sl_buf text;
    sl_range *untrusted;
    size_t n_untrusted;
} sl_marked_text;
void sl_marked_text_free(sl_marked_text *text);

/* Renders into *out (initialised by the call). Errors as above and SL_ERR_ARGUMENT for the
 * template's own raise_exception (its text is the message) and for a filter that refused its
 * input. */
sl_status sl_template_render(const sl_template *compiled, const sl_template_input *input,
                             sl_marked_text *out, sl_error *err);

#endif
