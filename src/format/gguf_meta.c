/* Typed access to the metadata of a parsed GGUF file, and its description for people.
 *
 * Writers disagree about integer widths and about floats against integers, so a number is accepted
 * in any type that holds it exactly; everything else (a string for a number, a bool for an integer,
 * a value out of range, a float that is not finite) is refused with what was found and what was
 * expected. */
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/utf8.h"
#include "format/gguf_private.h"

enum {
    SHOWN_NUMBERS = 8, /* items of an array in a description */
    SHOWN_STRINGS = 4,
    SHOWN_BYTES = 60, /* of a string */
    FOUND_BYTES = 120 /* of the description of a wrong value in a message */
};

/* ---- numbers ---- */

/* An integer of any type, as sign and magnitude, so that no range is lost. */
typedef struct integer {
    bool negative;
    uint64_t magnitude;
} integer;

static bool load_integer(sl_gguf_type type, const uint8_t *data, integer *out)
{
    size_t size = sl_gguf_type_size(type);
    switch (type) {
    case SL_GGUF_U8:
    case SL_GGUF_U16:
    case SL_GGUF_U32:
    case SL_GGUF_U64:
        *out = (integer){false, load_le(data, size)};
        return true;
    case SL_GGUF_I8:
    case SL_GGUF_I16:
    case SL_GGUF_I32:
    case SL_GGUF_I64: {
        uint64_t bits = load_le(data, size);
        bool negative = bits >> (8 * size - 1);
        uint64_t mask = size == 8 ? UINT64_MAX : (UINT64_C(1) << 8 * size) - 1;
        *out = (integer){negative, negative ? (0 - bits) & mask : bits};
        return true;
    }
    default:
        return false;
    }
}

static bool load_float(sl_gguf_type type, const uint8_t *data, double *out)
{
    if (type == SL_GGUF_F32) {
        float f;
        memcpy(&f, data, sizeof f);
        *out = (double)f;
        return true;
    }
    if (type == SL_GGUF_F64) {
        memcpy(out, data, sizeof *out);
        return true;
    }
    return false;
}

/* ---- descriptions ---- */

typedef struct writer {
    char *text;
    size_t capacity;
    size_t n;
} writer;

static void write_bytes(writer *w, const char *bytes, size_t n)
{
    if (n >= w->capacity - w->n) {
        w->capacity = w->n + 1; /* full: nothing shorter may follow what was left out */
        return;
    }
    memcpy(w->text + w->n, bytes, n);
    w->n += n;
    w->text[w->n] = '\0';
}

static void write_format(writer *w, const char *format, ...) SL_PRINTF(2, 3);

static void write_format(writer *w, const char *format, ...)
{
    char text[64];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    write_bytes(w, text, n < 0 ? 0 : sl_min_size((size_t)n, sizeof text - 1));
}

/* One character of text, escaped where it would not show or would end the quotation. */
static void write_character(writer *w, uint32_t code, const char *bytes, size_t n)
{
    if (code == SL_UTF8_REPLACEMENT && memcmp(bytes, "\xEF\xBF\xBD", sl_min_size(n, 3)) != 0) {
        for (size_t i = 0; i < n; i++)
            write_format(w, "\\x%02x", (unsigned char)bytes[i]);
    } else if (code == '"' || code == '\\') {
        write_format(w, "\\%c", (char)code);
    } else if (code == '\n') {
        write_bytes(w, "\\n", 2);
    } else if (code == '\t') {
        write_bytes(w, "\\t", 2);
    } else if (code < 0x20 || (code >= 0x7f && code < 0xa0)) {
        write_format(w, "\\u%04x", (unsigned)code);
    } else {
        write_bytes(w, bytes, n);
    }
}

static void write_quoted(writer *w, sl_str s)
{
    size_t i = 0;
    write_bytes(w, "\"", 1);
    while (i < s.n_bytes && i < SHOWN_BYTES) {
        uint32_t code;
        size_t used = sl_utf8_decode(s.data + i, s.n_bytes - i, &code);
        write_character(w, code, s.data + i, used);
        i += used;
    }
    write_bytes(w, "\"", 1);
    if (i < s.n_bytes)
        write_bytes(w, "...", 3);
}

/* With the fewest digits that give the value back: 1e-06, not 9.99999997e-07. */
static void write_float(writer *w, double value, bool single)
{
    char text[40];
    int digits = single ? 6 : 15, most = single ? 9 : 17;
    do {
        snprintf(text, sizeof text, "%.*g", digits, value);
        double back = strtod(text, NULL);
        if (single ? (float)back == (float)value : back == value)
            break;
    } while (++digits <= most);
    write_format(w, "%s", text);
}

static void write_scalar(writer *w, sl_gguf_type type, const uint8_t *data)
{
    integer value;
    double real;
    if (load_integer(type, data, &value))
        write_format(w, "%s%" PRIu64, value.negative ? "-" : "", value.magnitude);
    else if (load_float(type, data, &real))
        write_float(w, real, type == SL_GGUF_F32);
    else if (*data > 1) /* only in arrays, whose items are not checked before they are used */
        write_format(w, "%u", *data);
    else
        write_format(w, "%s", *data == 0 ? "false" : "true");
}

static void write_array(writer *w, const gguf_key *key)
{
    const char *plural = key->n == 1 ? "" : "s";
    if (key->item_type == SL_GGUF_ARRAY) {
        write_format(w, "array of %zu array%s", key->n, plural);
        return;
    }
    bool strings = key->item_type == SL_GGUF_STRING;
    write_format(w, "array of %zu %s%s [", key->n, sl_gguf_type_name(key->item_type),
                 strings ? plural : "");
    size_t shown = sl_min_size(key->n, strings ? SHOWN_STRINGS : SHOWN_NUMBERS);
    for (size_t i = 0; i < shown; i++) {
        if (i > 0)
            write_bytes(w, ", ", 2);
        if (strings)
            write_quoted(w, key->strings[i]);
        else
            write_scalar(w, key->item_type, key->data + i * sl_gguf_type_size(key->item_type));
    }
    if (shown < key->n)
        write_bytes(w, ", ...", 5);
    write_bytes(w, "]", 1);
}

static void describe(const gguf_key *key, char *text, size_t capacity)
{
    writer w = {text, capacity, 0};
    text[0] = '\0';
    if (key->type == SL_GGUF_ARRAY) {
        write_array(&w, key);
        return;
    }
    write_format(&w, "%s ", sl_gguf_type_name(key->type));
    if (key->type == SL_GGUF_STRING)
        write_quoted(&w, (sl_str){(const char *)key->data, key->n});
    else
        write_scalar(&w, key->type, key->data);
}

size_t sl_gguf_key_count(const sl_gguf *gguf)
{
    return gguf->n_keys;
}

sl_str sl_gguf_key_at(const sl_gguf *gguf, size_t i)
{
    return i < gguf->n_keys ? gguf->keys[i].name : (sl_str){"", 0};
}

sl_status sl_gguf_describe(const sl_gguf *gguf, size_t i, char *text, size_t capacity)
{
    if (i >= gguf->n_keys || capacity == 0)
        return SL_ERR_ARGUMENT;
    describe(&gguf->keys[i], text, capacity);
    return SL_OK;
}

/* ---- getters ---- */

static const gguf_key *find_key(const sl_gguf *gguf, const char *name)
{
    /* The name is the first member. */
    return (const gguf_key *)(const void *)sl_gguf_index_find(&gguf->key_index, name);
}

bool sl_gguf_has(const sl_gguf *gguf, const char *key)
{
    return find_key(gguf, key) != NULL;
}

uint64_t sl_gguf_key_offset(const sl_gguf *gguf, const char *key)
{
    const gguf_key *found = find_key(gguf, key);
    return found ? found->offset : 0;
}

static sl_status missing(const sl_gguf *gguf, const char *key, sl_error *err)
{
    return sl_fail(err, SL_ERR_FORMAT, "%s: key \"%s\" is missing", gguf->label, key);
}

static sl_status wrong(const sl_gguf *gguf, const gguf_key *key, sl_error *err,
                       const char *expected)
{
    char found[FOUND_BYTES];
    describe(key, found, sizeof found);
    return sl_fail(err, SL_ERR_FORMAT, "%s: key \"%.*s\" is %s, expected %s (byte %" PRIu64 ")",
                   gguf->label, (int)sl_min_size(key->name.n_bytes, 100), key->name.data, found,
                   expected, key->offset);
}

static sl_status read_uint(const sl_gguf *gguf, const gguf_key *key, uint64_t low, uint64_t high,
                           uint64_t *out, sl_error *err)
{
    integer value;
    if (load_integer(key->type, key->data, &value) && !value.negative && value.magnitude >= low &&
        value.magnitude <= high) {
        *out = value.magnitude;
        return SL_OK;
    }
    char expected[96];
    snprintf(expected, sizeof expected, "an integer from %" PRIu64 " to %" PRIu64, low, high);
    return wrong(gguf, key, err, expected);
}

sl_status sl_gguf_get_uint(const sl_gguf *gguf, const char *key, uint64_t low, uint64_t high,
                           uint64_t *out, sl_error *err)
{
    const gguf_key *found = find_key(gguf, key);
    if (!found)
        return missing(gguf, key, err);
    return read_uint(gguf, found, low, high, out, err);
}

sl_status sl_gguf_get_uint_or(const sl_gguf *gguf, const char *key, uint64_t low, uint64_t high,
                              uint64_t fallback, uint64_t *out, sl_error *err)
{
    const gguf_key *found = find_key(gguf, key);
    if (found)
        return read_uint(gguf, found, low, high, out, err);
    *out = fallback;
    return SL_OK;
}

sl_status sl_gguf_get_float_or(const sl_gguf *gguf, const char *key, double fallback, double *out,
                               sl_error *err)
{
    const gguf_key *found = find_key(gguf, key);
    if (!found) {
        *out = fallback;
        return SL_OK;
    }
    integer value;
    double real;
    if (load_integer(found->type, found->data, &value))
        real = value.negative ? -(double)value.magnitude : (double)value.magnitude;
    else if (!load_float(found->type, found->data, &real) || !isfinite(real))
        return wrong(gguf, found, err, "a finite number");
    *out = real;
    return SL_OK;
}

sl_status sl_gguf_get_bool_or(const sl_gguf *gguf, const char *key, bool fallback, bool *out,
                              sl_error *err)
{
    const gguf_key *found = find_key(gguf, key);
    if (!found) {
        *out = fallback;
        return SL_OK;
    }
    integer value;
    if (found->type == SL_GGUF_BOOL)
        value = (integer){false, *found->data};
    else if (!load_integer(found->type, found->data, &value) || value.negative ||
             value.magnitude > 1)
        return wrong(gguf, found, err, "true or false");
    *out = value.magnitude != 0;
    return SL_OK;
}

static sl_status read_string(const sl_gguf *gguf, const gguf_key *key, sl_str *out, sl_error *err)
{
    if (key->type != SL_GGUF_STRING)
        return wrong(gguf, key, err, "a string");
    *out = (sl_str){(const char *)key->data, key->n};
    return SL_OK;
}

sl_status sl_gguf_get_string(const sl_gguf *gguf, const char *key, sl_str *out, sl_error *err)
{
    const gguf_key *found = find_key(gguf, key);
    if (!found)
        return missing(gguf, key, err);
    return read_string(gguf, found, out, err);
}

sl_status sl_gguf_get_string_or(const sl_gguf *gguf, const char *key, sl_str fallback, sl_str *out,
                                sl_error *err)
{
    const gguf_key *found = find_key(gguf, key);
    if (found)
        return read_string(gguf, found, out, err);
    *out = fallback;
    return SL_OK;
}

/* ---- arrays ---- */

sl_status sl_gguf_get_array_or_empty(const sl_gguf *gguf, const char *key, sl_gguf_array *out,
                                     sl_error *err)
{
    *out = (sl_gguf_array){.type = SL_GGUF_TYPE_COUNT};
    const gguf_key *found = find_key(gguf, key);
    if (!found)
        return SL_OK;
    if (found->type != SL_GGUF_ARRAY)
        return wrong(gguf, found, err, "an array");
    if (found->item_type == SL_GGUF_ARRAY)
        return wrong(gguf, found, err, "an array of numbers or strings");
    *out = (sl_gguf_array){
        .type = found->item_type,
        .n_items = found->n,
        .data = found->item_type == SL_GGUF_STRING ? NULL : found->data,
        .strings = found->strings,
    };
    return SL_OK;
}

static const uint8_t *item_data(const sl_gguf_array *array, size_t i)
{
    if (i >= array->n_items || !array->data)
        return NULL;
    return array->data + i * sl_gguf_type_size(array->type);
}

bool sl_gguf_array_int(const sl_gguf_array *array, size_t i, int64_t *out)
{
    const uint8_t *data = item_data(array, i);
    integer value;
    if (!data)
        return false;
    if (array->type == SL_GGUF_BOOL && *data <= 1)
        value = (integer){false, *data};
    else if (!load_integer(array->type, data, &value))
        return false;
    if (value.magnitude > (uint64_t)INT64_MAX + value.negative)
        return false;
    /* Negated below zero, because the magnitude of INT64_MIN is no int64. */
    *out = value.negative ? -(int64_t)(value.magnitude - 1) - 1 : (int64_t)value.magnitude;
    return true;
}

double sl_gguf_array_float(const sl_gguf_array *array, size_t i)
{
    const uint8_t *data = item_data(array, i);
    double value;
    return data && load_float(array->type, data, &value) ? value : (double)NAN;
}
