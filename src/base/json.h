/* JSON through jansson, behind limits and with messages that name the field. */
#ifndef SL_BASE_JSON_H
#define SL_BASE_JSON_H

#include <jansson.h>

#include "base/buf.h"

typedef struct sl_json_limits {
    size_t max_bytes;
    size_t max_depth;  /* nesting of arrays and objects */
    size_t max_values; /* in all; an empty array or object counts twice; 0 = 2^21 */
} sl_json_limits;

/* Of one integer; more are refused with SL_ERR_LIMIT. */
enum { SL_JSON_MAX_DIGITS = 4300 };

/* 64 MiB, 64 levels and 2^21 values: model files and chat requests. A value takes about 130 bytes
 * of memory, however short it is written. */
sl_json_limits sl_json_limits_default(void);

/* Parses text[0..n) (one value, UTF-8, duplicate keys refused). name says where the text came from,
 * for messages with line and column. Release with json_decref. */
sl_status sl_json_parse(const char *text, size_t n, const char *name, sl_json_limits limits,
                        json_t **out, sl_error *err);

/* jansson keeps integers as int64_t. One outside that (an id that is a hash, 10^30 for "no limit")
 * stays exact: it is a jansson string of U+FDD0 and its digits. Returns the digits, behind a '-' if
 * it is negative, with a NUL behind them, and their number (n may be NULL); NULL for every other
 * value. Who asks for a string of a text that was parsed asks sl_json_is_string.
 *
 * U+FDD0 is a noncharacter, not meant for interchange: a string (or key) in a text that begins with
 * it begins with U+FFFD after parsing, so that no text can pass for a number. */
const char *sl_json_big_int(const json_t *value, size_t *n);
bool sl_json_is_string(const json_t *value);

/* json_stringn for text from elsewhere, which might begin so too: it then begins with U+FFFD. NULL
 * when s[0..n) is not UTF-8 or without memory. */
json_t *sl_json_new_string(const char *s, size_t n);

/* Typed getters of a member of an object. `name` is the file or request named in messages.
 * Missing members: the *_or forms give the fallback, the others fail with SL_ERR_FORMAT; a wrong
 * type or a value outside [low, high] always fails. null counts as missing. */
sl_status sl_json_get_int(const json_t *object, const char *key, int64_t low, int64_t high,
                          int64_t *out, const char *name, sl_error *err);
sl_status sl_json_get_int_or(const json_t *object, const char *key, int64_t low, int64_t high,
                             int64_t fallback, int64_t *out, const char *name, sl_error *err);
/* Integers of any size are accepted too; the result is finite. */
sl_status sl_json_get_number_or(const json_t *object, const char *key, double fallback, double *out,
                                const char *name, sl_error *err);
sl_status sl_json_get_bool_or(const json_t *object, const char *key, bool fallback, bool *out,
                              const char *name, sl_error *err);
/* *out points into the object; NULL when missing (the _or form). */
sl_status sl_json_get_string(const json_t *object, const char *key, const char **out,
                             const char *name, sl_error *err);
sl_status sl_json_get_string_or(const json_t *object, const char *key, const char *fallback,
                                const char **out, const char *name, sl_error *err);

/* Appends s[0..n) as a JSON string with its quotes. ASCII control characters are escaped,
 * everything else is written as UTF-8. */
sl_status sl_json_append_string(sl_buf *buf, const char *s, size_t n, sl_error *err);

/* Appends a whole value, compact; integers beyond int64_t exactly. SL_ERR_LIMIT for more than
 * SL_JSON_MAX_WRITE_DEPTH levels. */
enum { SL_JSON_MAX_WRITE_DEPTH = 128 };
sl_status sl_json_append(sl_buf *buf, const json_t *value, sl_error *err);

/* Appends a finite double in the shortest form that reads back to the same value ("0.1", "1e-07",
 * "3.0" with always a '.', exponent as Python's repr writes it); NaN and infinities become null. */
sl_status sl_json_append_double(sl_buf *buf, double value, sl_error *err);

#endif
