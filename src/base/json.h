/* JSON through jansson, behind limits and with messages that name the field. */
#ifndef SL_BASE_JSON_H
#define SL_BASE_JSON_H

#include <jansson.h>

#include "base/buf.h"

typedef struct sl_json_limits {
    size_t max_bytes;
    size_t max_depth; /* nesting of arrays and objects */
} sl_json_limits;

/* 64 MiB and 64 levels: model files and chat requests. */
sl_json_limits sl_json_limits_default(void);

/* Parses text[0..n) (one value, UTF-8, duplicate keys refused). name says where the text came from,
 * for messages with line and column. Release with json_decref. */
sl_status sl_json_parse(const char *text, size_t n, const char *name, sl_json_limits limits,
                        json_t **out, sl_error *err);

/* Typed getters of a member of an object. `name` is the file or request named in messages.
 * Missing members: the *_or forms give the fallback, the others fail with SL_ERR_FORMAT; a wrong
 * type or a value outside [low, high] always fails. null counts as missing. */
sl_status sl_json_get_int(const json_t *object, const char *key, int64_t low, int64_t high,
                          int64_t *out, const char *name, sl_error *err);
sl_status sl_json_get_int_or(const json_t *object, const char *key, int64_t low, int64_t high,
                             int64_t fallback, int64_t *out, const char *name, sl_error *err);
/* Integers are accepted too; the result is finite. */
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

/* Appends a finite double in the shortest form that reads back to the same value ("0.1", "1e-07",
 * "3.0" with always a '.', exponent as Python's repr writes it); NaN and infinities become null. */
sl_status sl_json_append_double(sl_buf *buf, double value, sl_error *err);

#endif
