#include "base/json.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fpenv.h"
#include "base/utf8.h"

sl_json_limits sl_json_limits_default(void)
{
    return (sl_json_limits){.max_bytes = (size_t)64 << 20, .max_depth = 64};
}

/* ---- parsing ---- */

/* Line and column, from 1, of the character that holds byte `offset`. */
static void locate(const char *text, size_t offset, size_t *line, size_t *column)
{
    *line = 1;
    *column = 0;
    for (size_t i = 0; i <= offset; i++) {
        if (i > 0 && text[i - 1] == '\n') {
            ++*line;
            *column = 0;
        }
        if ((text[i] & 0xC0) != 0x80) /* not the continuation of a character */
            ++*column;
    }
}

static sl_status fail_at(sl_error *err, sl_status status, const char *name, const char *text,
                         size_t offset, const char *what)
{
    size_t line, column;
    locate(text, offset, &line, &column);
    return sl_fail(err, status, "%s: line %zu, column %zu: %s", name, line, column, what);
}

/* The offset behind the string whose opening quote is at i. */
static size_t skip_string(const char *text, size_t n, size_t i)
{
    for (i++; i < n && text[i] != '"'; i++)
        i += text[i] == '\\';
    return i < n ? i + 1 : n;
}

/* The parser recurses, so nesting is measured before it runs. On malformed text this may count
 * otherwise than the parser does, but not before the place where the parser stops. */
static sl_status check_depth(const char *text, size_t n, size_t max_depth, const char *name,
                             sl_error *err)
{
    size_t depth = 0;
    for (size_t i = 0; i < n;) {
        char c = text[i];
        if (c == '"') {
            i = skip_string(text, n, i);
            continue;
        }
        if (c == '[' || c == '{') {
            if (depth == max_depth) {
                char what[80];
                snprintf(what, sizeof what, "nested deeper than %zu levels", max_depth);
                return fail_at(err, SL_ERR_LIMIT, name, text, i, what);
            }
            depth++;
        } else if ((c == ']' || c == '}') && depth > 0) {
            depth--;
        }
        i++;
    }
    return SL_OK;
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* Is s[0..n) an integer outside int64_t? */
static bool is_wide_integer(const char *s, size_t n)
{
    static const char most[] = "9223372036854775807", least[] = "9223372036854775808";
    bool negative = s[0] == '-';
    const char *digits = s + negative;
    size_t n_digits = n - negative;
    for (size_t i = 0; i < n_digits; i++)
        if (!is_digit(digits[i]))
            return false;
    size_t n_most = sizeof most - 1;
    return n_digits > n_most ||
           (n_digits == n_most && memcmp(digits, negative ? least : most, n_most) > 0);
}

/* From offset i, outside a string: the offset behind the next wide integer, or n + 1. */
static size_t next_wide_integer(const char *text, size_t n, size_t i)
{
    while (i < n) {
        if (text[i] == '"') {
            i = skip_string(text, n, i);
        } else if (text[i] == '-' || is_digit(text[i])) {
            size_t begin = i;
            while (i < n && (is_digit(text[i]) || memchr("+-.eE", text[i], 5)))
                i++;
            if (is_wide_integer(text + begin, i - begin))
                return i;
        } else {
            i++;
        }
    }
    return n + 1;
}

/* jansson refuses integers outside int64_t, but they occur: "model_max_length" is often 10^30 in
 * tokenizer_config.json. They become real numbers by ".0" behind them. */
static sl_status widen(const char *text, size_t n, sl_buf *out, sl_error *err)
{
    size_t done = 0;
    for (size_t i; (i = next_wide_integer(text, n, done)) <= n; done = i) {
        SL_TRY(sl_buf_append(out, text + done, i - done, err));
        SL_TRY(sl_buf_append(out, ".0", 2, err));
    }
    return done == 0 ? SL_OK : sl_buf_append(out, text + done, n - done, err);
}

/* The offset in text of an offset in the widened text. */
static size_t unwidened(const char *text, size_t n, size_t offset)
{
    size_t shift = 0;
    for (size_t i = 0; (i = next_wide_integer(text, n, i)) <= n && i + shift < offset;)
        shift += sl_min_size(2, offset - (i + shift));
    return offset - shift;
}

sl_status sl_json_parse(const char *text, size_t n, const char *name, sl_json_limits limits,
                        json_t **out, sl_error *err)
{
    if (n > limits.max_bytes)
        return sl_fail(err, SL_ERR_LIMIT, "%s: %zu bytes of JSON, the limit is %zu", name, n,
                       limits.max_bytes);
    size_t bad;
    if (!sl_utf8_valid(text, n, &bad)) /* jansson would name the place less exactly */
        return fail_at(err, SL_ERR_FORMAT, name, text, bad, "invalid UTF-8");
    SL_TRY(check_depth(text, n, limits.max_depth, name, err));

    sl_buf wide;
    sl_buf_init(&wide, SL_MEM_TEXT, SIZE_MAX / 2);
    json_t *value = NULL;
    json_error_t problem;
    sl_status status = widen(text, n, &wide, err);
    if (status != SL_OK) {
        sl_fail_within(err, status, "%s", name);
        goto done;
    }
    bool is_wide = wide.n_bytes > 0;
    sl_fpenv env = sl_fpenv_enter(); /* strtod rounds as the processor is set */
    value = json_loadb(is_wide ? wide.data
                       : n > 0 ? text
                               : "",
                       is_wide ? wide.n_bytes : n,
                       JSON_REJECT_DUPLICATES | JSON_DECODE_ANY | JSON_ALLOW_NUL, &problem);
    sl_fpenv_leave(env);
    if (value) {
        *out = value;
        goto done;
    }
    enum json_error_code code = json_error_code(&problem);
    status = code == json_error_out_of_memory    ? SL_ERR_MEMORY
             : code == json_error_stack_overflow ? SL_ERR_LIMIT
                                                 : SL_ERR_FORMAT;
    /* position counts the bytes read: it went wrong at the last of them or just behind it. */
    size_t position = unwidened(text, n, (size_t)problem.position);
    if (n == 0)
        sl_fail(err, status, "%s: line 1, column 1: %s", name, problem.text);
    else
        fail_at(err, status, name, text, position > 0 ? position - 1 : 0, problem.text);

done:
    sl_buf_free(&wide);
    return status;
}

/* ---- members ---- */

static const char *kind_of(const json_t *value)
{
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "an array";
    case JSON_STRING:
        return "a string";
    case JSON_INTEGER:
        return "an integer";
    case JSON_REAL:
        return "a real number";
    case JSON_TRUE:
    case JSON_FALSE:
        return "a boolean";
    case JSON_NULL:
        break;
    }
    return "null";
}

/* NULL when missing or null. */
static const json_t *member_of(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    return json_is_null(value) ? NULL : value;
}

static sl_status fail_missing(sl_error *err, const char *name, const char *key)
{
    return sl_fail(err, SL_ERR_FORMAT, "%s: \"%s\" is missing", name, key);
}

static sl_status fail_kind(sl_error *err, const char *name, const char *key, const char *wanted,
                           const json_t *value)
{
    return sl_fail(err, SL_ERR_FORMAT, "%s: \"%s\" must be %s, not %s", name, key, wanted,
                   kind_of(value));
}

sl_status sl_json_get_int(const json_t *object, const char *key, int64_t low, int64_t high,
                          int64_t *out, const char *name, sl_error *err)
{
    const json_t *value = member_of(object, key);
    if (!value)
        return fail_missing(err, name, key);
    if (!json_is_integer(value))
        return fail_kind(err, name, key, "an integer", value);
    json_int_t number = json_integer_value(value);
    if (number < low || number > high)
        return sl_fail(err, SL_ERR_FORMAT, "%s: \"%s\" is %lld, outside %lld .. %lld", name, key,
                       (long long)number, (long long)low, (long long)high);
    *out = number;
    return SL_OK;
}

sl_status sl_json_get_int_or(const json_t *object, const char *key, int64_t low, int64_t high,
                             int64_t fallback, int64_t *out, const char *name, sl_error *err)
{
    if (member_of(object, key))
        return sl_json_get_int(object, key, low, high, out, name, err);
    *out = fallback;
    return SL_OK;
}

sl_status sl_json_get_number_or(const json_t *object, const char *key, double fallback, double *out,
                                const char *name, sl_error *err)
{
    const json_t *value = member_of(object, key);
    if (value && !json_is_number(value))
        return fail_kind(err, name, key, "a number", value);
    *out = value ? json_number_value(value) : fallback;
    return SL_OK;
}

sl_status sl_json_get_bool_or(const json_t *object, const char *key, bool fallback, bool *out,
                              const char *name, sl_error *err)
{
    const json_t *value = member_of(object, key);
    if (value && !json_is_boolean(value))
        return fail_kind(err, name, key, "true or false", value);
    *out = value ? json_is_true(value) : fallback;
    return SL_OK;
}

sl_status sl_json_get_string(const json_t *object, const char *key, const char **out,
                             const char *name, sl_error *err)
{
    const json_t *value = member_of(object, key);
    if (!value)
        return fail_missing(err, name, key);
    if (!json_is_string(value))
        return fail_kind(err, name, key, "a string", value);
    const char *s = json_string_value(value);
    /* Whoever takes a C string would see only what stands before the NUL. */
    if (strlen(s) != json_string_length(value))
        return sl_fail(err, SL_ERR_FORMAT, "%s: \"%s\" has a NUL character inside", name, key);
    *out = s;
    return SL_OK;
}

sl_status sl_json_get_string_or(const json_t *object, const char *key, const char *fallback,
                                const char **out, const char *name, sl_error *err)
{
    if (member_of(object, key))
        return sl_json_get_string(object, key, out, name, err);
    *out = fallback;
    return SL_OK;
}

/* ---- writing ---- */

static sl_status append_escape(sl_buf *buf, unsigned char c, sl_error *err)
{
    static const char plain[] = "\"\\\b\f\n\r\t", letters[] = "\"\\bfnrt";
    const char *found = memchr(plain, c, sizeof plain - 1);
    if (found)
        return sl_buf_printf(buf, err, "\\%c", letters[found - plain]);
    return sl_buf_printf(buf, err, "\\u%04x", (unsigned)c);
}

sl_status sl_json_append_string(sl_buf *buf, const char *s, size_t n, sl_error *err)
{
    SL_TRY(sl_buf_append_char(buf, '"', err));
    size_t begin = 0; /* of what goes out as it is */
    for (size_t i = 0; i < n;) {
        unsigned char c = (unsigned char)s[i];
        bool escaped = c < 0x20 || c == '"' || c == '\\';
        uint32_t code = c;
        size_t used = c < 0x80 ? 1 : sl_utf8_decode(s + i, n - i, &code);
        /* U+FFFD may stand in the text itself: then it goes out as it is, too. */
        bool invalid = code == SL_UTF8_REPLACEMENT && !sl_utf8_valid(s + i, used, NULL);
        if (escaped || invalid) {
            SL_TRY(sl_buf_append(buf, s + begin, i - begin, err));
            SL_TRY(escaped ? append_escape(buf, c, err)
                           : sl_buf_append_str(buf, "\xEF\xBF\xBD", err));
            begin = i + used;
        }
        i += used;
    }
    SL_TRY(sl_buf_append(buf, s + begin, n - begin, err));
    return sl_buf_append_char(buf, '"', err);
}

/* digits[0].digits[1]digits[2].. times 10^exponent */
enum { MAX_DIGITS = 17 };
typedef struct decimal {
    char digits[MAX_DIGITS + 1];
    int n, exponent;
} decimal;

/* value > 0 correctly rounded to n digits. Whatever bytes the locale puts between the digits are
 * dropped. */
static decimal round_decimal(double value, int n)
{
    decimal d = {.n = 0};
    char text[64];
    snprintf(text, sizeof text, "%.*e", n - 1, value);
    const char *s = text;
    for (; *s != 'e'; s++)
        if (is_digit(*s) && d.n < MAX_DIGITS)
            d.digits[d.n++] = *s;
    d.exponent = (int)strtol(s + 1, NULL, 10);
    return d;
}

static decimal next_decimal(decimal d)
{
    int i = d.n - 1;
    while (i >= 0 && d.digits[i] == '9')
        d.digits[i--] = '0';
    if (i >= 0) {
        d.digits[i]++;
    } else {
        d.digits[0] = '1'; /* 999 is followed by 1000 */
        d.exponent++;
    }
    return d;
}

/* By bits: the host may have set denormals to compare as zero. */
static bool same_bits(double a, double b)
{
    return memcmp(&a, &b, sizeof a) == 0;
}

/* Written without a decimal point, it reads back alike in every locale. */
static bool reads_back(const decimal *d, double value)
{
    char text[64];
    snprintf(text, sizeof text, "%.*se%d", d->n, d->digits, d->exponent - (d->n - 1));
    return same_bits(strtod(text, NULL), value);
}

/* The nearest decimal with n digits may lie just outside the values that read back as `value` while
 * the next one above lies inside: below a power of two the neighbours are closer than above. */
static decimal shortest_decimal(double value)
{
    decimal d = round_decimal(value, 1);
    for (int n = 1; n <= MAX_DIGITS; n++) {
        d = round_decimal(value, n);
        if (reads_back(&d, value))
            return d;
        decimal above = next_decimal(d);
        if (reads_back(&above, value))
            return above;
    }
    return d;
}

sl_status sl_json_append_double(sl_buf *buf, double value, sl_error *err)
{
    if (!isfinite(value))
        return sl_buf_append_str(buf, "null", err);
    if (signbit(value))
        SL_TRY(sl_buf_append_char(buf, '-', err));
    value = fabs(value);
    if (same_bits(value, 0.0))
        return sl_buf_append_str(buf, "0.0", err);
    decimal d = shortest_decimal(value);
    int e = d.exponent;
    if (e < -4 || e >= 16)
        return sl_buf_printf(buf, err, "%.1s%s%.*se%c%02d", d.digits, d.n > 1 ? "." : "", d.n - 1,
                             d.digits + 1, e < 0 ? '-' : '+', e < 0 ? -e : e);
    static const char zeros[] = "0000000000000000";
    if (e < 0)
        return sl_buf_printf(buf, err, "0.%.*s%.*s", -e - 1, zeros, d.n, d.digits);
    if (e < d.n - 1)
        return sl_buf_printf(buf, err, "%.*s.%.*s", e + 1, d.digits, d.n - 1 - e, d.digits + e + 1);
    return sl_buf_printf(buf, err, "%.*s%.*s.0", d.n, d.digits, e + 1 - d.n, zeros);
}
