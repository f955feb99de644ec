/* Writing JSON piece by piece. */
#ifndef SL_BASE_JSON_OUT_H
#define SL_BASE_JSON_OUT_H

#include "base/buf.h"

/* Builds one JSON value. The first failure is kept and later calls do nothing, so that only the end
 * has to be checked. */
typedef struct sl_json_out {
    sl_buf buf;
    sl_status status;
    sl_error err;
    bool comma; /* a value came before, on this level */
} sl_json_out;

void sl_json_out_init(sl_json_out *json);
void sl_json_out_free(sl_json_out *json);

/* key is NULL inside arrays and for the outermost value. */
void sl_json_open(sl_json_out *json, const char *key, char bracket); /* '{' or '[' */
void sl_json_close(sl_json_out *json, char bracket);                 /* '}' or ']' */
void sl_json_text(sl_json_out *json, const char *key, const char *s, size_t n);
void sl_json_string(sl_json_out *json, const char *key, const char *s); /* NULL = null */
void sl_json_uint(sl_json_out *json, const char *key, uint64_t value);
void sl_json_double(sl_json_out *json, const char *key, double value);
void sl_json_bool(sl_json_out *json, const char *key, bool value);
void sl_json_null(sl_json_out *json, const char *key);
/* text[0..n): values already written, with commas between them. */
void sl_json_raw(sl_json_out *json, const char *key, const char *text, size_t n);

#endif
