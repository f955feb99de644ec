/* A push reader of lenient JSON that writes strict JSON (outparse_json.h). The nesting is an
 * explicit stack of bits; nothing recurses and nothing is read twice. */
#include "text/outparse_json.h"

#include "base/utf8.h"

enum {
    STATE_BEGIN,
    STATE_VALUE,        /* behind ':' */
    STATE_VALUE_OR_END, /* behind '[' or ',' */
    STATE_KEY_OR_END,   /* behind '{' or ',' */
    STATE_COLON,
    STATE_COMMA_OR_END, /* behind a value */
    STATE_WORD,         /* number or literal */
    STATE_STRING,
    STATE_ESCAPE, /* behind '\' */
    STATE_HEX     /* behind \u */
};

void sl_lax_init(sl_lax_json *json, sl_mem_tag tag, size_t limit)
{
    *json = (sl_lax_json){.repaired = false};
    sl_buf_init(&json->out, tag, limit);
}

void sl_lax_free(sl_lax_json *json)
{
    sl_buf_free(&json->out);
}

void sl_lax_reset(sl_lax_json *json)
{
    sl_buf_clear(&json->out);
    json->repaired = json->after_comma = false;
    json->depth = 0;
    json->high = 0;
    json->state = STATE_BEGIN;
}

bool sl_lax_in_string(const sl_lax_json *json)
{
    return json->state >= STATE_STRING;
}

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool is_hex(char c)
{
    return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

static unsigned hex_value(const char digits[4])
{
    unsigned value = 0;
    for (int i = 0; i < 4; i++) {
        char c = digits[i];
        int digit = is_digit(c) ? c - '0' : (c | 0x20) - 'a' + 10;
        value = value * 16 + (unsigned)digit;
    }
    return value;
}

static size_t skip_digits(sl_str text, size_t i)
{
    while (i < text.n_bytes && is_digit(text.data[i]))
        i++;
    return i;
}

bool sl_lax_is_number(sl_str text)
{
    size_t i = text.n_bytes > 0 && text.data[0] == '-';
    size_t end = skip_digits(text, i);
    if (end == i || (text.data[i] == '0' && end > i + 1))
        return false;
    i = end;
    if (i < text.n_bytes && text.data[i] == '.') {
        end = skip_digits(text, i + 1);
        if (end == i + 1)
            return false;
        i = end;
    }
    if (i < text.n_bytes && (text.data[i] == 'e' || text.data[i] == 'E')) {
        i++;
        if (i < text.n_bytes && (text.data[i] == '+' || text.data[i] == '-'))
            i++;
        end = skip_digits(text, i);
        if (end == i)
            return false;
        i = end;
    }
    return i == text.n_bytes;
}

/* ---- strings ---- */

static sl_status flush_high(sl_lax_json *json, sl_error *err)
{
    if (json->high == 0)
        return SL_OK;
    json->high = 0;
    json->repaired = true;
    return sl_buf_append_str(&json->out, "\\ufffd", err);
}

static sl_status string_char(sl_lax_json *json, char c, sl_error *err)
{
    json->state = STATE_STRING;
    if (c == '\\') {
        json->state = STATE_ESCAPE;
        return SL_OK;
    }
    SL_TRY(flush_high(json, err));
    if (c == json->quote) {
        json->state = json->is_key ? STATE_COLON : STATE_COMMA_OR_END;
        return sl_buf_append_char(&json->out, '"', err);
    }
    if (c == '"')
        return sl_buf_append_str(&json->out, "\\\"", err);
    if ((unsigned char)c >= 0x20)
        return sl_buf_append_char(&json->out, c, err);
    json->repaired = true;
    static const char controls[] = "\b\f\n\r\t", letters[] = "bfnrt";
    const char *found = memchr(controls, c, sizeof controls - 1);
    if (found)
        return sl_buf_printf(&json->out, err, "\\%c", letters[found - controls]);
    return sl_buf_printf(&json->out, err, "\\u%04x", (unsigned)c);
}

static sl_status escape_char(sl_lax_json *json, char c, sl_error *err)
{
    if (c == 'u') {
        json->state = STATE_HEX;
        json->n_hex = 0;
        return SL_OK;
    }
    SL_TRY(flush_high(json, err));
    json->state = STATE_STRING;
    if (c == '\'') {
        json->repaired = true;
        return sl_buf_append_char(&json->out, c, err);
    }
    if (c != '\0' && strchr("\"\\/bfnrt", c))
        return sl_buf_printf(&json->out, err, "\\%c", c);
    json->repaired = true;
    SL_TRY(sl_buf_append_str(&json->out, "\\\\", err));
    return string_char(json, c, err);
}

static sl_status hex_char(sl_lax_json *json, char c, sl_error *err)
{
    if (!is_hex(c)) {
        SL_TRY(flush_high(json, err));
        json->repaired = true;
        SL_TRY(sl_buf_printf(&json->out, err, "\\\\u%.*s", (int)json->n_hex, json->hex));
        return string_char(json, c, err);
    }
    json->hex[json->n_hex++] = c;
    if (json->n_hex < sizeof json->hex)
        return SL_OK;
    json->state = STATE_STRING;
    unsigned code = hex_value(json->hex), high = json->high;
    bool is_low = code >= 0xDC00 && code < 0xE000;
    if (is_low && high != 0) {
        json->high = 0;
        return sl_buf_printf(&json->out, err, "\\u%04x\\u%04x", high, code);
    }
    SL_TRY(flush_high(json, err));
    if (code >= 0xD800 && code < 0xDC00) {
        json->high = code;
        return SL_OK;
    }
    json->repaired = json->repaired || is_low;
    return sl_buf_printf(&json->out, err, "\\u%04x", is_low ? SL_UTF8_REPLACEMENT : code);
}

/* ---- structure ---- */

static sl_status separate(sl_lax_json *json, sl_error *err)
{
    if (!json->after_comma)
        return SL_OK;
    json->after_comma = false;
    return sl_buf_append_char(&json->out, ',', err);
}

static sl_status open_container(sl_lax_json *json, bool is_object, sl_lax_result *result,
                                sl_error *err)
{
    if (json->depth == SL_OUTPARSE_MAX_DEPTH) {
        *result = SL_LAX_BAD;
        return SL_OK;
    }
    json->is_object[json->depth++] = is_object;
    json->state = is_object ? STATE_KEY_OR_END : STATE_VALUE_OR_END;
    return sl_buf_append_char(&json->out, is_object ? '{' : '[', err);
}

static sl_status close_container(sl_lax_json *json, sl_lax_result *result, sl_error *err)
{
    json->repaired = json->repaired || json->after_comma;
    json->after_comma = false;
    bool is_object = json->is_object[--json->depth];
    json->state = STATE_COMMA_OR_END;
    if (json->depth == 0)
        *result = SL_LAX_DONE;
    return sl_buf_append_char(&json->out, is_object ? '}' : ']', err);
}

static sl_status begin_string(sl_lax_json *json, char quote, bool is_key, sl_error *err)
{
    SL_TRY(separate(json, err));
    json->repaired = json->repaired || quote == '\'';
    json->quote = quote;
    json->is_key = is_key;
    json->state = STATE_STRING;
    return sl_buf_append_char(&json->out, '"', err);
}

static bool is_word_char(char c)
{
    return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '+' ||
           c == '-' || c == '.';
}

static sl_status value_char(sl_lax_json *json, char c, sl_lax_result *result, sl_error *err)
{
    if (c == '"' || c == '\'')
        return begin_string(json, c, false, err);
    if (c != '{' && c != '[' && !is_word_char(c)) {
        *result = SL_LAX_BAD;
        return SL_OK;
    }
    SL_TRY(separate(json, err));
    if (c == '{' || c == '[')
        return open_container(json, c == '{', result, err);
    json->word_at = json->out.n_bytes;
    json->state = STATE_WORD;
    return sl_buf_append_char(&json->out, c, err);
}

/* A number or literal stands complete at the end of out. */
static sl_status finish_word(sl_lax_json *json, sl_lax_result *result, sl_error *err)
{
    static const char *const python[][2] = {{"True", "true"}, {"False", "false"}, {"None", "null"}};
    sl_str word = {json->out.data + json->word_at, json->out.n_bytes - json->word_at};
    json->state = STATE_COMMA_OR_END;
    if (sl_str_is(word, "true") || sl_str_is(word, "false") || sl_str_is(word, "null") ||
        sl_lax_is_number(word))
        return SL_OK;
    for (size_t i = 0; i < SL_COUNTOF(python); i++) {
        if (sl_str_is(word, python[i][0])) {
            json->repaired = true;
            json->out.n_bytes = json->word_at;
            return sl_buf_append_str(&json->out, python[i][1], err);
        }
    }
    *result = SL_LAX_BAD;
    return SL_OK;
}

static sl_status comma_or_end(sl_lax_json *json, char c, sl_lax_result *result, sl_error *err)
{
    bool in_object = json->is_object[json->depth - 1];
    if (c == (in_object ? '}' : ']'))
        return close_container(json, result, err);
    if (c != ',')
        *result = SL_LAX_BAD;
    json->after_comma = true;
    json->state = in_object ? STATE_KEY_OR_END : STATE_VALUE_OR_END;
    return SL_OK;
}

static sl_status structure_char(sl_lax_json *json, char c, sl_lax_result *result, sl_error *err)
{
    if (json->state == STATE_WORD) {
        if (is_word_char(c))
            return sl_buf_append_char(&json->out, c, err);
        SL_TRY(finish_word(json, result, err));
        if (*result == SL_LAX_BAD)
            return SL_OK;
    }
    if (is_space(c))
        return SL_OK;
    switch (json->state) {
    case STATE_BEGIN:
        if (c == '{' || c == '[')
            return open_container(json, c == '{', result, err);
        break;
    case STATE_VALUE:
        return value_char(json, c, result, err);
    case STATE_VALUE_OR_END:
        return c == ']' ? close_container(json, result, err) : value_char(json, c, result, err);
    case STATE_KEY_OR_END:
        if (c == '}')
            return close_container(json, result, err);
        if (c == '"' || c == '\'')
            return begin_string(json, c, true, err);
        break;
    case STATE_COLON:
        if (c == ':') {
            json->state = STATE_VALUE;
            return sl_buf_append_char(&json->out, c, err);
        }
        break;
    default:
        return comma_or_end(json, c, result, err);
    }
    *result = SL_LAX_BAD;
    return SL_OK;
}

sl_status sl_lax_push(sl_lax_json *json, const char *s, size_t n, size_t *used,
                      sl_lax_result *result, sl_error *err)
{
    *result = SL_LAX_MORE;
    for (*used = 0; *used < n && *result == SL_LAX_MORE;) {
        char c = s[*used];
        if (json->state == STATE_STRING)
            SL_TRY(string_char(json, c, err));
        else if (json->state == STATE_ESCAPE)
            SL_TRY(escape_char(json, c, err));
        else if (json->state == STATE_HEX)
            SL_TRY(hex_char(json, c, err));
        else
            SL_TRY(structure_char(json, c, result, err));
        *used += *result != SL_LAX_BAD;
    }
    return SL_OK;
}

sl_status sl_lax_close(sl_lax_json *json, bool *closed, sl_error *err)
{
    sl_lax_result result = SL_LAX_MORE;
    *closed = false;
    if (json->state == STATE_WORD)
        SL_TRY(finish_word(json, &result, err));
    bool complete = json->state == STATE_COMMA_OR_END || json->state == STATE_KEY_OR_END ||
                    json->state == STATE_VALUE_OR_END;
    if (result == SL_LAX_BAD || !complete || json->depth == 0)
        return SL_OK;
    while (json->depth > 0)
        SL_TRY(close_container(json, &result, err));
    json->repaired = true;
    *closed = true;
    return SL_OK;
}

/* ---- walking ---- */

static size_t string_end(const char *s)
{
    size_t i = 1;
    while (s[i] != '"')
        i += s[i] == '\\' ? 2 : 1;
    return i + 1;
}

sl_str sl_lax_value(const char *s)
{
    size_t depth = 0, i = 0;
    do {
        if (s[i] == '"') {
            i += string_end(s + i);
        } else if (s[i] == '{' || s[i] == '[') {
            depth++;
            i++;
        } else if (s[i] == '}' || s[i] == ']') {
            depth--;
            i++;
        } else if (s[i] == ',' || s[i] == ':') {
            i++;
        } else {
            while (is_word_char(s[i]))
                i++;
        }
    } while (depth > 0);
    return (sl_str){s, i};
}

bool sl_lax_next(sl_str container, size_t *at, sl_str *key, sl_str *value)
{
    const char *s = container.data;
    size_t i = *at + 1; /* behind the bracket or the comma */
    if (i + 1 >= container.n_bytes)
        return false;
    *key = (sl_str){s + i, 0};
    if (s[0] == '{') {
        key->n_bytes = string_end(s + i);
        i += key->n_bytes + 1;
    }
    *value = sl_lax_value(s + i);
    *at = i + value->n_bytes;
    return true;
}

/* One escape at s[0] == '\\'; *used bytes. Pairs of surrogates are whole. */
static size_t unescape(const char *s, char out[4], size_t *used)
{
    static const char letters[] = "bfnrt", controls[] = "\b\f\n\r\t";
    *used = 2;
    if (s[1] == 'u') {
        uint32_t code = hex_value(s + 2);
        *used = 6;
        if (code >= 0xD800 && code < 0xDC00) {
            code = 0x10000 + ((code - 0xD800) << 10) + (hex_value(s + 8) - 0xDC00);
            *used = 12;
        }
        return sl_utf8_encode(code, out);
    }
    const char *found = strchr(letters, s[1]);
    out[0] = found ? controls[found - letters] : s[1];
    return 1;
}

sl_status sl_lax_unquote(sl_str string, sl_buf *out, sl_error *err)
{
    const char *s = string.data;
    size_t end = string.n_bytes - 1;
    for (size_t i = 1; i < end;) {
        size_t used = 1;
        if (s[i] == '\\') {
            char plain[4];
            size_t n = unescape(s + i, plain, &used);
            SL_TRY(sl_buf_append(out, plain, n, err));
        } else {
            while (i + used < end && s[i + used] != '\\')
                used++;
            SL_TRY(sl_buf_append(out, s + i, used, err));
        }
        i += used;
    }
    return SL_OK;
}
