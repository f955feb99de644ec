#include "base/json_out.h"

#include <string.h>

#include "base/json.h"

void sl_json_out_init(sl_json_out *json)
{
    *json = (sl_json_out){.status = SL_OK};
    sl_buf_init(&json->buf, SL_MEM_GENERAL, (size_t)1 << 30);
}

void sl_json_out_free(sl_json_out *json)
{
    sl_buf_free(&json->buf);
}

/* Keeps the first failure. */
static void keep(sl_json_out *json, sl_status status)
{
    if (json->status == SL_OK)
        json->status = status;
}

/* The comma before a value and its key. Returns false when nothing more can be written. */
static bool begin_value(sl_json_out *json, const char *key)
{
    if (json->status == SL_OK && json->comma)
        keep(json, sl_buf_append_str(&json->buf, ", ", &json->err));
    if (json->status == SL_OK && key) {
        keep(json, sl_json_append_string(&json->buf, key, strlen(key), &json->err));
        if (json->status == SL_OK)
            keep(json, sl_buf_append_str(&json->buf, ": ", &json->err));
    }
    json->comma = true;
    return json->status == SL_OK;
}

void sl_json_open(sl_json_out *json, const char *key, char bracket)
{
    if (begin_value(json, key))
        keep(json, sl_buf_append_char(&json->buf, bracket, &json->err));
    json->comma = false;
}

void sl_json_close(sl_json_out *json, char bracket)
{
    if (json->status == SL_OK)
        keep(json, sl_buf_append_char(&json->buf, bracket, &json->err));
    json->comma = true;
}

void sl_json_text(sl_json_out *json, const char *key, const char *s, size_t n)
{
    if (begin_value(json, key))
        keep(json, sl_json_append_string(&json->buf, s, n, &json->err));
}

void sl_json_string(sl_json_out *json, const char *key, const char *s)
{
    if (s)
        sl_json_text(json, key, s, strlen(s));
    else
        sl_json_null(json, key);
}

void sl_json_uint(sl_json_out *json, const char *key, uint64_t value)
{
    if (begin_value(json, key))
        keep(json, sl_buf_printf(&json->buf, &json->err, "%llu", (unsigned long long)value));
}

void sl_json_double(sl_json_out *json, const char *key, double value)
{
    if (begin_value(json, key))
        keep(json, sl_json_append_double(&json->buf, value, &json->err));
}

void sl_json_bool(sl_json_out *json, const char *key, bool value)
{
    if (begin_value(json, key))
        keep(json, sl_buf_append_str(&json->buf, value ? "true" : "false", &json->err));
}

void sl_json_null(sl_json_out *json, const char *key)
{
    if (begin_value(json, key))
        keep(json, sl_buf_append_str(&json->buf, "null", &json->err));
}

void sl_json_raw(sl_json_out *json, const char *key, const char *text, size_t n)
{
    if (begin_value(json, key))
        keep(json, sl_buf_append(&json->buf, text, n, &json->err));
}
