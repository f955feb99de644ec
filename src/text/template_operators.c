/* The operators + - * / // % ** on whatever they can be applied to, and "..." % arguments. */
#include "text/template_run.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Adding Markup to plain text escapes the plain text, as in Jinja. */
static sl_status add_strings(tmpl_run *run, tmpl_str *a, tmpl_str *b, tmpl_value *out)
{
    if (a->markup != b->markup) {
        tmpl_str **plain = a->markup ? &b : &a;
        tmpl_value escaped;
        tmpl_capture capture = sl_tmpl_capture(run);
        SL_TRY(sl_tmpl_put_escaped(run, *plain));
        SL_TRY(sl_tmpl_captured(run, capture, &escaped));
        *plain = escaped.as.string;
    }
    bool markup = a->markup || b->markup;
    SL_TRY(sl_tmpl_join_two(run, a, b, out));
    out->as.string->markup = markup;
    return SL_OK;
}

static sl_status add_seqs(tmpl_run *run, tmpl_kind kind, const tmpl_seq *a, const tmpl_seq *b,
                          tmpl_value *out)
{
    tmpl_value *items;
    SL_TRY(sl_tmpl_new_items(run, kind, a->n + b->n, &items, out));
    if (a->n > 0)
        memcpy(items, a->items, a->n * sizeof *items);
    if (b->n > 0)
        memcpy(items + a->n, b->items, b->n * sizeof *items);
    return SL_OK;
}

static sl_status repeat_str(tmpl_run *run, const tmpl_str *s, size_t count, tmpl_value *out)
{
    if (s->s.n_bytes == 0)
        count = 0;
    else if (count > SL_TEMPLATE_MAX_OUTPUT / s->s.n_bytes)
        return sl_tmpl_too_long(run);
    SL_TRY(sl_tmpl_spend(run, count / 4));
    tmpl_capture capture = sl_tmpl_capture(run);
    for (size_t i = 0; i < count; i++)
        SL_TRY(sl_tmpl_put_str(run, s));
    SL_TRY(sl_tmpl_captured(run, capture, out));
    out->as.string->markup = s->markup;
    return SL_OK;
}

static sl_status repeat_seq(tmpl_run *run, tmpl_kind kind, const tmpl_seq *seq, size_t count,
                            tmpl_value *out)
{
    size_t n = 0;
    if (!sl_size_mul(seq->n, count, &n))
        return sl_tmpl_fail(run, SL_ERR_LIMIT, "a list of too many items");
    tmpl_value *items;
    SL_TRY(sl_tmpl_new_items(run, kind, n, &items, out));
    for (size_t i = 0; i < n; i++)
        items[i] = seq->items[i % seq->n];
    return SL_OK;
}

static sl_status unsupported(tmpl_run *run, tmpl_op op, tmpl_value a, tmpl_value b)
{
    static const char *const names[] = {
        [TMPL_OP_ADD] = "+", [TMPL_OP_SUB] = "-",       [TMPL_OP_MUL] = "*",  [TMPL_OP_DIV] = "/",
        [TMPL_OP_MOD] = "%", [TMPL_OP_FLOORDIV] = "//", [TMPL_OP_POW] = "**",
    };
    if (a.kind == TMPL_UNDEFINED)
        return sl_tmpl_undefined_error(run, a);
    if (b.kind == TMPL_UNDEFINED)
        return sl_tmpl_undefined_error(run, b);
    return sl_tmpl_fail(run, SL_ERR_ARGUMENT, "operator '%s' does not apply to %s and %s",
                        names[op], sl_tmpl_kind_name((tmpl_kind)a.kind),
                        sl_tmpl_kind_name((tmpl_kind)b.kind));
}

static sl_status multiply(tmpl_run *run, tmpl_value a, tmpl_value b, tmpl_value *out)
{
    int64_t count = 0;
    if (sl_tmpl_as_int(a, &count)) {
        tmpl_value swapped = a;
        a = b;
        b = swapped;
    }
    if (!sl_tmpl_as_int(b, &count))
        return unsupported(run, TMPL_OP_MUL, a, b);
    size_t n = count < 0 ? 0 : (size_t)count;
    if (a.kind == TMPL_STRING)
        return repeat_str(run, a.as.string, n, out);
    if (a.kind == TMPL_LIST || a.kind == TMPL_TUPLE)
        return repeat_seq(run, (tmpl_kind)a.kind, a.as.seq, n, out);
    return unsupported(run, TMPL_OP_MUL, a, b);
}

sl_status sl_tmpl_arithmetic(tmpl_run *run, tmpl_op op, tmpl_value a, tmpl_value b, tmpl_value *out)
{
    if (sl_tmpl_is_number(a) && sl_tmpl_is_number(b))
        return sl_tmpl_number_arithmetic(run, op, a, b, out);
    if (op == TMPL_OP_ADD && a.kind == TMPL_STRING && b.kind == TMPL_STRING)
        return add_strings(run, a.as.string, b.as.string, out);
    if (op == TMPL_OP_ADD && a.kind == b.kind && (a.kind == TMPL_LIST || a.kind == TMPL_TUPLE))
        return add_seqs(run, (tmpl_kind)a.kind, a.as.seq, b.as.seq, out);
    if (op == TMPL_OP_MUL)
        return multiply(run, a, b, out);
    if (op == TMPL_OP_MOD && a.kind == TMPL_STRING)
        return sl_tmpl_format(run, a.as.string, b, out);
    return unsupported(run, op, a, b);
}

/* ---- "..." % arguments ---- */

typedef struct conversion {
    bool left, zeros, plus, blank;
    size_t width;
    int precision; /* -1: none */
    char letter;
} conversion;

static size_t read_count(sl_str s, size_t *at)
{
    size_t n = 0;
    for (; *at < s.n_bytes && s.data[*at] >= '0' && s.data[*at] <= '9'; ++*at)
        n = n > SL_TEMPLATE_MAX_OUTPUT ? n : n * 10 + (size_t)(s.data[*at] - '0');
    return n;
}

/* What follows '%' and an optional "(name)". */
static conversion read_conversion(sl_str s, size_t *at)
{
    conversion c = {.precision = -1};
    for (; *at < s.n_bytes && memchr("-0+ #", s.data[*at], 5); ++*at) {
        c.left |= s.data[*at] == '-';
        c.zeros |= s.data[*at] == '0';
        c.plus |= s.data[*at] == '+';
        c.blank |= s.data[*at] == ' ';
    }
    c.width = read_count(s, at);
    if (*at < s.n_bytes && s.data[*at] == '.') {
        ++*at;
        c.precision = (int)read_count(s, at);
    }
    if (*at < s.n_bytes)
        c.letter = s.data[(*at)++];
    return c;
}

static sl_status put_fill(tmpl_run *run, char fill, size_t width, size_t n_chars)
{
    for (; n_chars < width; n_chars++)
        SL_TRY(sl_tmpl_put(run, &fill, 1, false));
    return SL_OK;
}

static sl_status put_string_conversion(tmpl_run *run, const conversion *c, tmpl_value value,
                                       bool escape)
{
    tmpl_capture capture = sl_tmpl_capture(run);
    tmpl_value text = value;
    bool is_markup = value.kind == TMPL_STRING && value.as.string->markup;
    if (c->letter == 'r') {
        SL_TRY(sl_tmpl_put_repr(run, value));
        SL_TRY(sl_tmpl_captured(run, capture, &text));
    } else {
        SL_TRY(sl_tmpl_put_value(run, value));
        SL_TRY(sl_tmpl_captured(run, capture, &text));
    }
    if (escape && !is_markup) {
        capture = sl_tmpl_capture(run);
        SL_TRY(sl_tmpl_put_escaped(run, text.as.string));
        SL_TRY(sl_tmpl_captured(run, capture, &text));
    }
    tmpl_str *s = text.as.string;
    size_t n = sl_tmpl_count_chars(s);
    if (c->precision >= 0)
        n = sl_min_size(n, (size_t)c->precision);
    if (!c->left)
        SL_TRY(put_fill(run, ' ', c->width, n));
    SL_TRY(sl_tmpl_put_part(run, s, 0, sl_tmpl_char_offset(s, n)));
    return c->left ? put_fill(run, ' ', c->width, n) : SL_OK;
}

/* The digits of a number without its sign. */
static sl_status put_digits(tmpl_run *run, const conversion *c, tmpl_value value)
{
    int64_t i = 0;
    if (memchr("fF", c->letter, 2)) {
        double d = fabs(sl_tmpl_as_double(value));
        if (value.kind == TMPL_BIG_INT && isinf(d))
            return sl_tmpl_fail(run, SL_ERR_ARGUMENT, "%%%c of an int that is too large",
                                c->letter);
        return sl_tmpl_put_float(run, d, c->precision < 0 ? 6 : c->precision);
    }
    if (value.kind == TMPL_FLOAT && !isfinite(value.as.real))
        return sl_tmpl_fail(run, SL_ERR_ARGUMENT, "%%%c of a float that is no number", c->letter);
    if (value.kind == TMPL_FLOAT)
        SL_TRY(sl_tmpl_int_of_float(run, value.as.real, &value));
    if (value.kind == TMPL_BIG_INT) {
        sl_str digits = *value.as.digits;
        size_t sign = digits.data[0] == '-';
        if (memchr("xXo", c->letter, 3))
            return sl_tmpl_fail(run, SL_ERR_UNSUPPORTED, "%%%c of an int beyond 64 bits",
                                c->letter);
        return sl_tmpl_put(run, digits.data + sign, digits.n_bytes - sign, false);
    }
    sl_tmpl_as_int(value, &i);
    uint64_t magnitude = i < 0 ? (uint64_t)0 - (uint64_t)i : (uint64_t)i;
    char text[32];
    const char *form = c->letter == 'x'   ? "%llx"
                       : c->letter == 'X' ? "%llX"
                       : c->letter == 'o' ? "%llo"
                                          : "%llu";
    int n = snprintf(text, sizeof text, form, (unsigned long long)magnitude);
    return sl_tmpl_put(run, text, (size_t)n, false);
}

static sl_status put_number_conversion(tmpl_run *run, const conversion *c, tmpl_value value)
{
    bool is_int_only = memchr("xXo", c->letter, 3) != NULL;
    if (!sl_tmpl_is_number(value) || (is_int_only && value.kind == TMPL_FLOAT))
        return sl_tmpl_fail(run, SL_ERR_ARGUMENT, "%%%c needs a number, not %s", c->letter,
                            sl_tmpl_kind_name((tmpl_kind)value.kind));
    bool negative = sl_tmpl_is_negative(value);
    if (value.kind == TMPL_FLOAT && !memchr("fF", c->letter, 2))
        negative = value.as.real <= -1;
    char sign = negative ? '-' : c->plus ? '+' : c->blank ? ' ' : '\0';
    tmpl_capture capture = sl_tmpl_capture(run);
    SL_TRY(put_digits(run, c, value));
    tmpl_value digits;
    SL_TRY(sl_tmpl_captured(run, capture, &digits));
    size_t n = digits.as.string->s.n_bytes + (sign != '\0');
    if (!c->left && !c->zeros)
        SL_TRY(put_fill(run, ' ', c->width, n));
    if (sign != '\0')
        SL_TRY(sl_tmpl_put(run, &sign, 1, false));
    if (!c->left && c->zeros)
        SL_TRY(put_fill(run, '0', c->width, n));
    SL_TRY(sl_tmpl_put_str(run, digits.as.string));
    return c->left ? put_fill(run, ' ', c->width, n) : SL_OK;
}

/* The value for the conversion at s[*at..): by name out of a dict, else the next of the tuple. */
static sl_status next_argument(tmpl_run *run, sl_str s, size_t *at, tmpl_value args, size_t *used,
                               tmpl_value *out)
{
    if (*at < s.n_bytes && s.data[*at] == '(') {
        size_t begin = ++*at;
        while (*at < s.n_bytes && s.data[*at] != ')')
            ++*at;
        sl_str name = {s.data + begin, *at - begin};
        if (*at < s.n_bytes)
            ++*at;
        tmpl_entry *entry =
            args.kind == TMPL_DICT ? sl_tmpl_dict_find_name(args.as.dict, name) : NULL;
        if (!entry)
            return sl_tmpl_fail(run, SL_ERR_ARGUMENT, "no value for '%%(%.*s)'",
                                (int)sl_min_size(name.n_bytes, 60), name.data);
        *out = entry->value;
        *used = SIZE_MAX;
        return SL_OK;
    }
    size_t n = args.kind == TMPL_TUPLE ? args.as.seq->n : 1;
    if (*used >= n)
        return sl_tmpl_fail(run, SL_ERR_ARGUMENT, "too few values for a format");
    *out = args.kind == TMPL_TUPLE ? args.as.seq->items[*used] : args;
    ++*used;
    return SL_OK;
}

sl_status sl_tmpl_format(tmpl_run *run, const tmpl_str *format, tmpl_value args, tmpl_value *out)
{
    sl_str s = format->s;
    tmpl_capture capture = sl_tmpl_capture(run);
    size_t at = 0, used = 0;
    while (at < s.n_bytes) {
        const char *percent = memchr(s.data + at, '%', s.n_bytes - at);
        size_t next = percent ? (size_t)(percent - s.data) : s.n_bytes;
        SL_TRY(sl_tmpl_put_part(run, format, at, next));
        if (!percent)
            break;
        at = next + 1;
        if (at < s.n_bytes && s.data[at] == '%') {
            SL_TRY(sl_tmpl_put_part(run, format, at, at + 1));
            at++;
            continue;
        }
        tmpl_value value;
        SL_TRY(sl_tmpl_spend(run, 1));
        SL_TRY(next_argument(run, s, &at, args, &used, &value));
        conversion c = read_conversion(s, &at);
        if (c.letter == 's' || c.letter == 'r')
            SL_TRY(put_string_conversion(run, &c, value, format->markup));
        else if (c.letter != '\0' && memchr("diufFxXo", c.letter, 8))
            SL_TRY(put_number_conversion(run, &c, value));
        else
            return sl_tmpl_fail(run, SL_ERR_UNSUPPORTED, "conversion %%%c is not supported",
                                c.letter != '\0' ? c.letter : '?');
    }
    bool mapping = args.kind == TMPL_DICT || args.kind == TMPL_LIST;
    if (!mapping && used < (args.kind == TMPL_TUPLE ? args.as.seq->n : 1))
        return sl_tmpl_fail(run, SL_ERR_ARGUMENT, "more values than a format takes");
    SL_TRY(sl_tmpl_captured(run, capture, out));
    out->as.string->markup = format->markup;
    return SL_OK;
}
