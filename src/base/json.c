#include "base/json.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fpenv.h"
#include "base/utf8.h"

sl_json_limits sl_json_limits_default(void)
{
    return (sl_json_limits){.max_bytes = (size_t)64 << 20, .max_depth = 64, .max_values = 1 << 21};
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

/* The parser recurses and takes memory for every value, so nesting and values are counted before it
 * runs. On malformed text this may count otherwise than the parser does, but not before the place
 * where the parser stops. */
static sl_status check_limits(const char *text, size_t n, sl_json_limits limits, const char *name,
                              size_t *n_values_out, sl_error *err)
{
    const size_t max_values =
        limits.max_values ? limits.max_values : sl_json_limits_default().max_values;
    size_t depth = 0, n_values = 1;
    char what[80];
    for (size_t i = 0; i < n;) {
        char c = text[i];
        if (c == '"') {
            i = skip_string(text, n, i);
            continue;
        }
        if (c == '[' || c == '{') {
            if (depth == limits.max_depth) {
                snprintf(what, sizeof what, "nested deeper than %zu levels", limits.max_depth);
                return fail_at(err, SL_ERR_LIMIT, name, text, i, what);
            }
            depth++;
        } else if ((c == ']' || c == '}') && depth > 0) {
            depth--;
        }
        /* Every value but the first follows one of these, and a key is as good as a value. */
        n_values += c == '[' || c == '{' || c == ',';
        if (n_values > max_values) {
            snprintf(what, sizeof what, "more than %zu values", max_values);
            return fail_at(err, SL_ERR_LIMIT, name, text, i, what);
        }
        i++;
    }
    *n_values_out = n_values;
    return SL_OK;
}

/* jansson (2.14) writes past its buffer when there is no memory for a string to grow. So it is only
 * called when all that it can need is there for the asking: nodes and tables for n_values values,
 * the text once more in parts, and a buffer for a part, which doubles while the old one is held. */
static sl_status check_memory(size_t n_values, size_t n, const char *name, sl_error *err)
{
    enum { VALUE_BYTES = 256, SLACK_BYTES = 1 << 16 };
    size_t values, texts, total;
    void *probe = NULL;
    if (sl_size_mul(n_values, VALUE_BYTES, &values) && sl_size_mul(n, 4, &texts) &&
        sl_size_add(values, texts, &total) && sl_size_add(total, SLACK_BYTES, &total))
        probe = sl_alloc(SL_MEM_TEXT, total);
    sl_free(probe);
    return probe ? SL_OK : sl_fail(err, SL_ERR_MEMORY, "%s: out of memory", name);
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* Is s[0..n) an integer as JSON writes it, but outside int64_t? */
static bool is_wide_integer(const char *s, size_t n)
{
    static const char most[] = "9223372036854775807", least[] = "9223372036854775808";
    bool negative = n > 0 && s[0] == '-';
    const char *digits = s + negative;
    size_t n_digits = n - negative, n_most = sizeof most - 1;
    if (n_digits < n_most || digits[0] == '0')
        return false;
    for (size_t i = 0; i < n_digits; i++)
        if (!is_digit(digits[i]))
            return false;
    return n_digits > n_most || memcmp(digits, negative ? least : most, n_most) > 0;
}

/* U+FDD0, and U+FFFD for strings of the text that begin with it. */
#define MARK          "\xEF\xB7\x90"
#define MARK_REPLACED "\xEF\xBF\xBD"
enum { MARK_BYTES = sizeof MARK - 1, MARK_ESCAPE_BYTES = 6 };

static bool has_mark(const char *s, size_t n)
{
    return n >= MARK_BYTES && memcmp(s, MARK, MARK_BYTES) == 0;
}

/* How many bytes the mark has at text[i]: it may be written as \uFDD0. 0: it is not there. */
static size_t mark_bytes(const char *text, size_t n, size_t i)
{
    static const char escape[MARK_ESCAPE_BYTES] = {'\\', 'u', 'f', 'd', 'd', '0'};
    if (has_mark(text + i, n - i))
        return MARK_BYTES;
    for (size_t k = 0; k < sizeof escape; k++) {
        char c = i + k < n ? text[i + k] : '\0';
        if (c != escape[k] && !(k > 1 && (c | 0x20) == escape[k]))
            return 0;
    }
    return MARK_ESCAPE_BYTES;
}

static bool is_key(const char *text, size_t n, size_t end)
{
    while (end < n && memchr(" \t\r\n", text[end], 4))
        end++;
    return end < n && text[end] == ':';
}

/* A piece of the text that the parser is handed otherwise: an integer outside int64_t, which it
 * would refuse, becomes a string that begins with the mark; a string that begins so already loses
 * it. */
typedef struct edit {
    size_t begin, end; /* a string with its quotes */
    size_t n_mark;     /* 0: an integer */
} edit;

/* The first one from offset i on, which is outside strings. */
static bool next_edit(const char *text, size_t n, size_t i, edit *out)
{
    while (i < n) {
        *out = (edit){.begin = i};
        if (text[i] == '"') {
            out->end = i = skip_string(text, n, i);
            out->n_mark = mark_bytes(text, n, out->begin + 1);
            if (out->n_mark > 0)
                return true;
        } else if (text[i] == '-' || is_digit(text[i])) {
            while (i < n && (is_digit(text[i]) || memchr("+-.eE", text[i], 5)))
                i++;
            out->end = i;
            if (is_wide_integer(text + out->begin, i - out->begin) && !is_key(text, n, i))
                return true;
        } else {
            i++;
        }
    }
    return false;
}

/* Appends the text from `done` up to the edit, and the edit. */
static sl_status append_edit(sl_buf *out, const char *text, size_t done, edit e, sl_error *err)
{
    bool is_integer = e.n_mark == 0;
    size_t kept = is_integer ? e.begin : e.begin + 1 + e.n_mark;
    SL_TRY(sl_buf_append(out, text + done, e.begin - done, err));
    SL_TRY(sl_buf_append_char(out, '"', err));
    /* A string keeps its length in bytes. */
    SL_TRY(sl_buf_append_str(out,
                             is_integer               ? MARK
                             : e.n_mark == MARK_BYTES ? MARK_REPLACED
                                                      : "\\ufffd",
                             err));
    SL_TRY(sl_buf_append(out, text + kept, e.end - kept, err));
    return is_integer ? sl_buf_append_char(out, '"', err) : SL_OK;
}

/* What the parser is handed; nothing if that is the text itself. */
static sl_status edit_text(const char *text, size_t n, const char *name, sl_buf *out, sl_error *err)
{
    size_t done = 0;
    sl_status status = SL_OK;
    for (edit e; status == SL_OK && next_edit(text, n, done, &e); done = e.end) {
        size_t n_digits = e.end - e.begin - (text[e.begin] == '-');
        if (e.n_mark == 0 && n_digits > SL_JSON_MAX_DIGITS) {
            char what[80];
            snprintf(what, sizeof what, "an integer of %zu digits, the limit is %d", n_digits,
                     SL_JSON_MAX_DIGITS);
            return fail_at(err, SL_ERR_LIMIT, name, text, e.begin, what);
        }
        status = append_edit(out, text, done, e, err);
    }
    if (status == SL_OK && done > 0)
        status = sl_buf_append(out, text + done, n - done, err);
    return status == SL_OK ? SL_OK : sl_fail_within(err, status, "%s", name);
}

/* The offset in text of an offset in the edited text. */
static size_t unedited(const char *text, size_t n, size_t offset)
{
    size_t shift = 0, i = 0;
    for (edit e; next_edit(text, n, i, &e) && e.begin + shift < offset; i = e.end) {
        if (e.n_mark > 0)
            continue;
        shift += sl_min_size(1 + MARK_BYTES, offset - (e.begin + shift));
        shift += e.end + shift < offset;
    }
    return sl_min_size(n, offset - shift);
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
    size_t n_values = 0;
    SL_TRY(check_limits(text, n, limits, name, &n_values, err));

    sl_buf edited;
    sl_buf_init(&edited, SL_MEM_TEXT, SIZE_MAX / 2);
    json_t *value = NULL;
    json_error_t problem;
    sl_status status = edit_text(text, n, name, &edited, err);
    if (status != SL_OK)
        goto done;
    SL_CHECK(check_memory(n_values, sl_max_size(n, edited.n_bytes), name, err));
    bool is_edited = edited.n_bytes > 0;
    sl_fpenv env = sl_fpenv_enter(); /* strtod rounds as the processor is set */
    value = json_loadb(is_edited ? edited.data
                       : n > 0   ? text
                                 : "",
                       is_edited ? edited.n_bytes : n,
                       JSON_REJECT_DUPLICATES | JSON_DECODE_ANY | JSON_ALLOW_NUL, &problem);
    sl_fpenv_leave(env);
    if (value) {
        *out = value;
        goto done;
    }
    enum json_error_code code = json_error_code(&problem);
    if (code == json_error_out_of_memory || problem.text[0] == '\0') {
        /* Without a text, it found no memory to begin with. */
        status = sl_fail(err, SL_ERR_MEMORY, "%s: out of memory", name);
        goto done;
    }
    status = code == json_error_stack_overflow ? SL_ERR_LIMIT : SL_ERR_FORMAT;
    /* position counts the bytes read: it went wrong at the last of them or just behind it. */
    size_t position = unedited(text, n, (size_t)problem.position);
    if (n == 0)
        sl_fail(err, status, "%s: line 1, column 1: %s", name, problem.text);
    else
        fail_at(err, status, name, text, position > 0 ? position - 1 : 0, problem.text);

done:
    sl_buf_free(&edited);
    return status;
}

/* ---- integers beyond int64_t, and strings ---- */

const char *sl_json_big_int(const json_t *value, size_t *n)
{
    const char *s = json_string_value(value);
    size_t n_bytes = json_string_length(value);
    if (!s || !has_mark(s, n_bytes) || !is_wide_integer(s + MARK_BYTES, n_bytes - MARK_BYTES))
        return NULL;
    if (n)
        *n = n_bytes - MARK_BYTES;
    return s + MARK_BYTES;
}

bool sl_json_is_string(const json_t *value)
{
    return json_is_string(value) && !sl_json_big_int(value, NULL);
}

json_t *sl_json_new_string(const char *s, size_t n)
{
    if (n == 0 || !has_mark(s, n))
        return json_stringn(n > 0 ? s : "", n);
    char *copy = sl_alloc(SL_MEM_TEXT, n);
    if (!copy)
        return NULL;
    memcpy(copy, s, n);
    memcpy(copy, MARK_REPLACED, MARK_BYTES);
    json_t *value = json_stringn(copy, n);
    sl_free(copy);
    return value;
}

/* ---- members ---- */

static const char *kind_of(const json_t *value)
{
    if (sl_json_big_int(value, NULL))
        return "an integer";
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
    size_t n;
    const char *big = sl_json_big_int(value, &n);
    if (big)
        return sl_fail(err, SL_ERR_FORMAT, "%s: \"%s\" is %.40s%s, outside %lld .. %lld", name, key,
                       big, n > 40 ? "..." : "", (long long)low, (long long)high);
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
    size_t n;
    const char *big = sl_json_big_int(value, &n);
    if (value && !big && !json_is_number(value))
        return fail_kind(err, name, key, "a number", value);
    sl_fpenv env = sl_fpenv_enter();
    double number = big ? strtod(big, NULL) : value ? json_number_value(value) : fallback;
    sl_fpenv_leave(env);
    if (big && !isfinite(number))
        return sl_fail(err, SL_ERR_FORMAT, "%s: \"%s\" is an integer of %zu digits, too large",
                       name, key, n - (big[0] == '-'));
    *out = number;
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
    if (!sl_json_is_string(value))
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

/* ---- whole values ---- */

static sl_status append_value(sl_buf *buf, const json_t *value, unsigned depth, sl_error *err);

static sl_status append_array(sl_buf *buf, const json_t *array, unsigned depth, sl_error *err)
{
    SL_TRY(sl_buf_append_char(buf, '[', err));
    for (size_t i = 0; i < json_array_size(array); i++) {
        if (i > 0)
            SL_TRY(sl_buf_append_char(buf, ',', err));
        SL_TRY(append_value(buf, json_array_get(array, i), depth, err));
    }
    return sl_buf_append_char(buf, ']', err);
}

static sl_status append_object(sl_buf *buf, const json_t *object, unsigned depth, sl_error *err)
{
    bool first = true;
    SL_TRY(sl_buf_append_char(buf, '{', err));
    /* jansson's iterators take objects that may be changed. */
    json_t *o = (json_t *)(uintptr_t)object;
    for (void *at = json_object_iter(o); at; at = json_object_iter_next(o, at)) {
        const char *key = json_object_iter_key(at);
        if (!first)
            SL_TRY(sl_buf_append_char(buf, ',', err));
        first = false;
        SL_TRY(sl_json_append_string(buf, key, json_object_iter_key_len(at), err));
        SL_TRY(sl_buf_append_char(buf, ':', err));
        SL_TRY(append_value(buf, json_object_iter_value(at), depth, err));
    }
    return sl_buf_append_char(buf, '}', err);
}

static sl_status append_value(sl_buf *buf, const json_t *value, unsigned depth, sl_error *err)
{
    if (depth == SL_JSON_MAX_WRITE_DEPTH)
        return sl_fail(err, SL_ERR_LIMIT, "JSON of more than %d levels", SL_JSON_MAX_WRITE_DEPTH);
    const char *big = sl_json_big_int(value, NULL);
    if (big)
        return sl_buf_append_str(buf, big, err);
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        return append_object(buf, value, depth + 1, err);
    case JSON_ARRAY:
        return append_array(buf, value, depth + 1, err);
    case JSON_STRING:
        return sl_json_append_string(buf, json_string_value(value), json_string_length(value), err);
    case JSON_INTEGER:
        return sl_buf_printf(buf, err, "%lld", (long long)json_integer_value(value));
    case JSON_REAL:
        return sl_json_append_double(buf, json_real_value(value), err);
    case JSON_TRUE:
        return sl_buf_append_str(buf, "true", err);
    case JSON_FALSE:
        return sl_buf_append_str(buf, "false", err);
    case JSON_NULL:
        break;
    }
    return sl_buf_append_str(buf, "null", err);
}

sl_status sl_json_append(sl_buf *buf, const json_t *value, sl_error *err)
{
    return append_value(buf, value, 0, err);
}
