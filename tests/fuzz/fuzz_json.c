/* JSON in and out: what was parsed is read by every getter; the input as a string and its first
 * bytes as a number must come back from what was written. */
#include <math.h>

#include "base/utf8.h"
#include "fuzz.h"

static void use_getters(const json_t *object)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)object, key, value)
    {
        sl_error err = {0};
        int64_t integer;
        double number;
        bool truth;
        const char *text;
        if (sl_fuzz_ok(sl_json_get_int(object, key, -1000, 1000, &integer, "input", &err), &err))
            sl_fuzz_check(integer >= -1000 && integer <= 1000);
        if (sl_fuzz_ok(sl_json_get_number_or(object, key, 1.0, &number, "input", &err), &err))
            sl_fuzz_check(isfinite(number));
        sl_fuzz_ok(sl_json_get_bool_or(object, key, false, &truth, "input", &err), &err);
        if (sl_fuzz_ok(sl_json_get_string(object, key, &text, "input", &err), &err))
            sl_fuzz_check(strlen(text) == json_string_length(value));
    }
}

static void parse(const char *text, size_t n, size_t max_depth)
{
    sl_error err = {0};
    json_t *value = NULL;
    sl_json_limits limits = sl_json_limits_default();
    limits.max_depth = max_depth;
    if (sl_fuzz_ok(sl_json_parse(text, n, "input", limits, &value, &err), &err)) {
        use_getters(value);
        json_decref(value);
    }
}

/* What a string comes back as: U+FDD0, the mark of big integers, is U+FFFD at its beginning. */
static bool comes_back(const json_t *value, const char *text, size_t n)
{
    static const char mark[] = "\xEF\xB7\x90", replaced[] = "\xEF\xBF\xBD";
    const char *got = json_string_value(value);
    if (!got || json_string_length(value) != n)
        return false;
    if (n < 3 || memcmp(text, mark, 3) != 0)
        return memcmp(got, text, n) == 0;
    return memcmp(got, replaced, 3) == 0 && memcmp(got + 3, text + 3, n - 3) == 0;
}

static void write_string(const char *text, size_t n)
{
    sl_error err = {0};
    sl_buf buf;
    json_t *value = NULL;
    sl_buf_init(&buf, SL_MEM_TEXT, 1 << 24);
    if (sl_fuzz_ok(sl_json_append_string(&buf, text, n, &err), &err)) {
        const sl_status status =
            sl_json_parse(buf.data, buf.n_bytes, "written", sl_json_limits_default(), &value, &err);
        sl_fuzz_check(status == SL_OK || status == SL_ERR_MEMORY);
    }
    if (value && sl_utf8_valid(text, n, NULL))
        sl_fuzz_check(comes_back(value, text, n));
    json_decref(value);
    sl_buf_free(&buf);
}

static void write_number(double number)
{
    sl_error err = {0};
    sl_buf buf;
    json_t *value = NULL;
    sl_buf_init(&buf, SL_MEM_TEXT, 64);
    if (sl_fuzz_ok(sl_json_append_double(&buf, number, &err), &err)) {
        const sl_status status =
            sl_json_parse(buf.data, buf.n_bytes, "written", sl_json_limits_default(), &value, &err);
        sl_fuzz_check(status == SL_OK || status == SL_ERR_MEMORY);
    }
    if (value) {
        const double again = json_real_value(value);
        sl_fuzz_check(isfinite(number) ? memcmp(&again, &number, sizeof number) == 0
                                       : json_is_null(value));
    }
    json_decref(value);
    sl_buf_free(&buf);
}

static void body(const uint8_t *data, size_t n)
{
    char *text = sl_fuzz_copy(data, n);
    if (!text)
        return;
    parse(text, n, 64);
    parse(text, n, 3);
    write_string(text, n);
    if (n >= sizeof(double)) {
        double number;
        memcpy(&number, text, sizeof number);
        write_number(number);
    }
    sl_free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    return sl_fuzz_run(body, data, n);
}
