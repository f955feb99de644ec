/* Chat templates: an interpreter of the part of Jinja that this family's templates, and edited
 * copies of them, use. It runs no code, reads no files, and stops at limits on steps, depth and
 * output. Text that came from messages or tools keeps a mark through every string operation, so
 * that the tokenizer can refuse to read control tokens in it.
 *
 * Renders as Jinja2 does with the settings of Hugging Face (trim_blocks, lstrip_blocks, break and
 * continue, the immutable sandbox, json.dumps as tojson), with these differences:
 *  - Integers have 64 bits; a literal or a result beyond them is an error. One that is read from
 *    the input or by `int` stays exact, prints and compares, but cannot be calculated with.
 *  - Not provided, and refused by name: include, import, extends, block, autoescape, do, trans,
 *    recursive loops, arguments from * and **, and the filters attr, filesizeformat,
 *    forceescape, groupby, pprint, random, slice, striptags, truncate, urlencode, urlize, wordwrap
 *    and xmlattr; cycler, joiner and lipsum are undefined.
 *  - A name of the input that a block sets itself later on is until then, in blocks inside it, what
 *    the input says; in Jinja it is undefined there.
 *  - ** on floats may differ in the last place.
 *  - "..." % and format() know the conversions d i u f F x X o s r and plain fields.
 *  - strftime_now takes the time from the input, in UTC, and writes English names.
 *  - What Python would print with an address (functions, iterators) cannot be printed. */
#ifndef SL_TEXT_TEMPLATE_H
#define SL_TEXT_TEMPLATE_H

#include "base/json.h"
#include "text/tokenizer.h"

typedef struct sl_template sl_template;

/* Beyond any of these: SL_ERR_LIMIT. A compilation or render needs less than 64 KiB of stack. */
enum {
    SL_TEMPLATE_MAX_SOURCE = 1 << 20,  /* bytes of a template */
    SL_TEMPLATE_MAX_NESTING = 64,      /* open blocks, brackets and operators in the source */
    SL_TEMPLATE_MAX_ARGUMENTS = 32,    /* of one call, or parameters of one macro */
    SL_TEMPLATE_MAX_DEPTH = 100,       /* nested evaluations, and levels of a value */
    SL_TEMPLATE_MAX_CALLS = 32,        /* macros calling macros */
    SL_TEMPLATE_MAX_STEPS = 10000000,  /* evaluations; long texts and lists count more */
    SL_TEMPLATE_MAX_RANGE = 100000,    /* numbers of a range, as in Jinja's sandbox */
    SL_TEMPLATE_MAX_OUTPUT = 16 << 20, /* bytes of the result, or of any text on the way */
    SL_TEMPLATE_MAX_MEMORY = 256 << 20 /* bytes of all values of a render */
};

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
