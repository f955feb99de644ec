/* JSON as models write it, made into JSON as it should be. */
#ifndef SL_TEXT_OUTPARSE_JSON_H
#define SL_TEXT_OUTPARSE_JSON_H

#include "base/buf.h"
#include "base/str.h"
#include "text/outparse.h"

typedef enum sl_lax_result { SL_LAX_MORE, SL_LAX_DONE, SL_LAX_BAD } sl_lax_result;

/* Reads one object or array byte by byte and writes it as strict JSON without white space outside
 * strings; numbers keep their digits. Accepts besides strict JSON: a comma before a closing
 * bracket; control characters in strings (escaped); strings in single quotes (ended by the next
 * unescaped one, so that an apostrophe inside makes the text malformed unless it is escaped);
 * True, False, None; a backslash that begins no escape (kept as a backslash); \' ; lone surrogates
 * (become U+FFFD). Keys given twice are passed on. Refuses nesting deeper than
 * SL_OUTPARSE_MAX_DEPTH. */
typedef struct sl_lax_json {
    sl_buf out;
    bool repaired; /* the text was not strict JSON */
    size_t depth;
    bool is_object[SL_OUTPARSE_MAX_DEPTH];
    unsigned char state;
    bool is_key, after_comma;
    char quote;
    size_t word_at; /* in out, of a number or literal being read */
    char hex[4];    /* digits of a \u escape */
    unsigned n_hex;
    unsigned high; /* a high surrogate that waits for its low one; 0: none */
} sl_lax_json;

void sl_lax_init(sl_lax_json *json, sl_mem_tag tag, size_t limit);
void sl_lax_free(sl_lax_json *json);
void sl_lax_reset(sl_lax_json *json);

/* Reads s[0..n) up to the end of the value (SL_LAX_DONE) or the byte that cannot be
 * (SL_LAX_BAD; it is not counted in *used). Errors: those of sl_buf. */
sl_status sl_lax_push(sl_lax_json *json, const char *s, size_t n, size_t *used,
                      sl_lax_result *result, sl_error *err);

/* Inside a string, where any byte may follow. */
bool sl_lax_in_string(const sl_lax_json *json);

/* Writes the brackets that are missing at the end, when nothing else is: *closed. */
sl_status sl_lax_close(sl_lax_json *json, bool *closed, sl_error *err);

bool sl_lax_is_number(sl_str text); /* by the grammar of JSON */

/* ---- walking through what was written ---- */

/* The value at s[0] of strict JSON without white space. */
sl_str sl_lax_value(const char *s);

/* The next member of an object (array: value only, key empty). *at is 0 at first. */
bool sl_lax_next(sl_str container, size_t *at, sl_str *key, sl_str *value);

/* Appends what a JSON string, given with its quotes, stands for. */
sl_status sl_lax_unquote(sl_str string, sl_buf *out, sl_error *err);

#endif
