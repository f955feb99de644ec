/* Filters on one value: text and numbers. Those on sequences are in template_filters_seq.c, tojson
 * in template_print.c. */
#include "text/template_filters.h"

#include <math.h>
#include <string.h>
#include <utf8proc.h>

#include "base/utf8.h"

static sl_status filter_case(tmpl_run *run, tmpl_value self, tmpl_case to, tmpl_value *out)
{
    tmpl_str *s;
    SL_TRY(sl_tmpl_to_str(run, self, &s));
    return sl_tmpl_change_case(run, s, to, out);
}
static sl_status filter_upper(tmpl_run *run, tmpl_value self, const tmpl_value *args,
                              tmpl_value *out)
{
    (void)args;
    return filter_case(run, self, TMPL_CASE_UPPER, out);
}
static sl_status filter_lower(tmpl_run *run, tmpl_value self, const tmpl_value *args,
                              tmpl_value *out)
{
    (void)args;
    return filter_case(run, self, TMPL_CASE_LOWER, out);
}
static sl_status filter_title(tmpl_run *run, tmpl_value self, const tmpl_value *args,
                              tmpl_value *out)
{
    (void)args;
    return filter_case(run, self, TMPL_CASE_WORDS, out);
}
static sl_status filter_capitalize(tmpl_run *run, tmpl_value self, const tmpl_value *args,
                                   tmpl_value *out)
{
    (void)args;
    return filter_case(run, self, TMPL_CASE_CAPITALIZE, out);
}

static sl_status filter_trim(tmpl_run *run, tmpl_value self, const tmpl_value *args,
                             tmpl_value *out)
{
    tmpl_str *s;
    SL_TRY(sl_tmpl_to_str(run, self, &s));
    if (args[0].kind != TMPL_MISSING && args[0].kind != TMPL_NONE && args[0].kind != TMPL_STRING)
        return sl_tmpl_fail(run, SL_ERR_ARGUMENT, "trim: the characters must be a string");
    const tmpl_str *chars = args[0].kind == TMPL_STRING ? args[0].as.string : NULL;
    return sl_tmpl_strip(run, s, chars, true, true, out);
}

static sl_status filter_string(tmpl_run *run, tmpl_value self, const tmpl_value *args,
                               tmpl_value *out)
{
    (void)args;
    tmpl_str *s;
    SL_TRY(sl_tmpl_to_str(run, self, &s));
    *out = tmpl_text(s);
    return SL_OK;
}

static sl_status as_markup(tmpl_run *run, const tmpl_str *s, tmpl_value *out)
{
    SL_TRY(sl_tmpl_slice_str(run, s, 0, s->s.n_bytes, out));
    out->as.string->markup = true;
    return SL_OK;
}

static sl_status filter_safe(tmpl_run *run, tmpl_value self, const tmpl_value *args,
                             tmpl_value *out)
{
    (void)args;
    tmpl_str *s;
    SL_TRY(sl_tmpl_to_str(run, self, &s));
    return as_markup(run, s, out);
}

static sl_status filter_escape(tmpl_run *run, tmpl_value self, const tmpl_value *args,
                               tmpl_value *out)
{
    (void)args;
    tmpl_str *s;
    SL_TRY(sl_tmpl_to_str(run, self, &s));
    *out = tmpl_text(s);
    if (s->markup)
        return SL_OK;
    tmpl_capture capture = sl_tmpl_capture(run);
    SL_TRY(sl_tmpl_put_escaped(run, s));
    SL_TRY(sl_tmpl_captured(run, capture, out));
    out->as.string->markup = true;
    return SL_OK;
}

static sl_status filter_replace(tmpl_run *run, tmpl_value self, const tmpl_value *args,
                                tmpl_value *out)
{
    tmpl_str *s, *old, *new;
    int64_t most = -1;
    SL_TRY(sl_tmpl_to_str(run, self, &s));
    SL_TRY(sl_tmpl_to_str(run, args[0], &old));
    SL_TRY(sl_tmpl_to_str(run, args[1], &new));
    bool limited = args[2].kind != TMPL_MISSING && args[2].kind != TMPL_NONE;
    if (limited && !sl_tmpl_as_int(args[2], &most))
        return sl_tmpl_fail(run, SL_ERR_ARGUMENT, "replace: count must be an integer");
    return sl_tmpl_replace(run, s, old, new, most < 0 ? SIZE_MAX : (size_t)most, out);
}

static sl_status filter_center(tmpl_run *run, tmpl_value self, const tmpl_value *args,
                               tmpl_value *out)
{
    tmpl_str *s;
    int64_t width = 80;
    if (args[0].kind != TMPL_MISSING && !sl_tmpl_as_int(args[0], &width))
        return sl_tmpl_fail(run, SL_ERR_ARGUMENT, "center: width must be an integer");
    SL_TRY(sl_tmpl_to_str(run, self, &s));
    return sl_tmpl_justify(run, s, TMPL_SIDE_CENTRE, width, NULL, out);
}

/* Lines after the first get the indention; empty ones only with blank=true. */
static sl_status filter_indent(tmpl_run *run, tmpl_value self, const tmpl_value *args,
                               tmpl_value *out)
{
    int64_t width = 4;
    if (self.kind == TMPL_UNDEFINED)
        return sl_tmpl_undefined_error(run, self);
    if (self.kind != TMPL_STRING)
        return sl_tmpl_fail(run, SL_ERR_ARGUMENT, "indent needs a string, not %s",
                            sl_tmpl_kind_name((tmpl_kind)self.kind));
    const tmpl_str *given = args[0].kind == TMPL_STRING ? args[0].as.string : NULL;
    if (!given && args[0].kind != TMPL_MISSING && !sl_tmpl_as_int(args[0], &width))
        return sl_tmpl_fail(run, SL_ERR_ARGUMENT, "indent: width must be a string or an integer");
    bool first = sl_tmpl_truth(args[1]), blank = sl_tmpl_truth(args[2]);
    tmpl_value text, lines;
    tmpl_capture capture = sl_tmpl_capture(run);
    SL_TRY(sl_tmpl_put_str(run, self.as.string));
    SL_TRY(sl_tmpl_put(run, "\n", 1, false));
    SL_TRY(sl_tmpl_captured(run, capture, &text));
    SL_TRY(sl_tmpl_split_lines(run, text.as.string, false, &lines));
    capture = sl_tmpl_capture(run);
    for (size_t i = 0; i < lines.as.seq->n; i++) {
        const tmpl_str *line = lines.as.seq->items[i].as.string;
        if (i > 0)
            SL_TRY(sl_tmpl_put(run, "\n", 1, false));
        if (i == 0 ? first : blank || line->s.n_bytes > 0) {
            if (given)
                SL_TRY(sl_tmpl_put_str(run, given));
            for (int64_t k = 0; !given && k < width; k++)
                SL_TRY(sl_tmpl_put(run, " ", 1, false));
        }
        SL_TRY(sl_tmpl_put_str(run, line));
    }
    SL_TRY(sl_tmpl_captured(run, capture, out));
    out->as.string->markup = self.as.string->markup;
    return SL_OK;
}

static sl_status filter_wordcount(tmpl_run *run, tmpl_value self, const tmpl_value *args,
                                  tmpl_value *out)
{
    (void)args;
    tmpl_str *s;
    int64_t n = 0;
    bool inside = false;
    SL_TRY(sl_tmpl_to_str(run, self, &s));
    SL_TRY(sl_tmpl_spend(run, s->s.n_bytes / 64));
    for (size_t at = 0; at < s->s.n_bytes;) {
        uint32_t code;
        at += sl_utf8_decode(s->s.data + at, s->s.n_bytes - at, &code);
        utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)code);
        bool word = code == '_' ||
                    (category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO) ||
                    (category >= UTF8PROC_CATEGORY_ND && category <= UTF8PROC_CATEGORY_NO);
        n += word && !inside;
        inside = word;
    }
    *out = tmpl_int(n);
    return SL_OK;
}

/* value % arguments: keyword ones as a dict, else a tuple. */
static sl_status filter_format(tmpl_run *run, tmpl_value self, const tmpl_call *call,
                               tmpl_value *out)
{
    tmpl_str *format;
    tmpl_value args;
    SL_TRY(sl_tmpl_to_str(run, self, &format));
    if (call->n_positional > 0 && call->n > call->n_positional)
        return sl_tmpl_fail(run, SL_ERR_ARGUMENT,
                            "format takes positional or keyword arguments, not both");
    if (call->n > call->n_positional) {
        SL_TRY(sl_tmpl_new_dict(run, call->n, &args));
        for (size_t i = 0; i < call->n; i++) {
            tmpl_value key;
            SL_TRY(sl_tmpl_make_str(run, call->args[i].name, false, &key));
            SL_TRY(sl_tmpl_dict_set(run, args.as.dict, key, call->args[i].value));
        }
    } else {
        tmpl_value *items;
        SL_TRY(sl_tmpl_new_items(run, TMPL_TUPLE, call->n, &items, &args));
        for (size_t i = 0; i < call->n; i++)
            items[i] = call->args[i].value;
    }
    return sl_tmpl_format(run, format, args, out);
}

static sl_status filter_default(tmpl_run *run, tmpl_value self, const tmpl_value *args,
                                tmpl_value *out)
{
    bool replaced = self.kind == TMPL_UNDEFINED || (sl_tmpl_truth(args[1]) && !sl_tmpl_truth(self));
    *out = replaced ? args[0] : self;
    if (out->kind == TMPL_MISSING)
        return sl_tmpl_make_str(run, (sl_str){"", 0}, false, out);
    return SL_OK;
}

/* ---- numbers ---- */

/* The integer part of d; NaN and infinities give the fallback. */
static sl_status truncate(tmpl_run *run, double d, tmpl_value fallback, tmpl_value *out)
{
    *out = fallback;
    if (!isfinite(d))
        return SL_OK;
    return sl_tmpl_int_of_float(run, d, out);
}

/* int(text), else int(float(text)), else the fallback. */
static sl_status int_of_text(tmpl_run *run, sl_str text, int base, tmpl_value fallback,
                             tmpl_value *out)
{
    int64_t i;
    double d;
    bool is_big = false;
    *out = fallback;
    if (sl_tmpl_parse_int(text, base, &i)) {
        *out = tmpl_int(i);
        return SL_OK;
    }
    if (base == 10)
        SL_TRY(sl_tmpl_parse_big_int(run, text, out, &is_big));
    return !is_big && sl_tmpl_parse_float(text, &d) ? truncate(run, d, fallback, out) : SL_OK;
}

static sl_status filter_int(tmpl_run *run, tmpl_value self, const tmpl_value *args, tmpl_value *out)
{
    int64_t base = 10, i;
    if (self.kind == TMPL_UNDEFINED)
        return sl_tmpl_undefined_error(run, self);
    if (args[1].kind != TMPL_MISSING &&
        (!sl_tmpl_as_int(args[1], &base) || base < 0 || base == 1 || base > 36))
        return sl_tmpl_fail(run, SL_ERR_ARGUMENT, "int: base must be 0 or 2 to 36");
    tmpl_value fallback = args[0].kind == TMPL_MISSING ? tmpl_int(0) : args[0];
    *out = fallback;
    if (sl_tmpl_as_int(self, &i))
        *out = tmpl_int(i);
    else if (self.kind == TMPL_BIG_INT)
        *out = self;
    else if (self.kind == TMPL_FLOAT)
        return truncate(run, self.as.real, fallback, out);
    else if (self.kind == TMPL_STRING)
        return int_of_text(run, self.as.string->s, (int)base, fallback, out);
    return SL_OK;
}

static sl_status filter_float(tmpl_run *run, tmpl_value self, const tmpl_value *args,
                              tmpl_value *out)
{
    double d;
    if (self.kind == TMPL_UNDEFINED)
        return sl_tmpl_undefined_error(run, self);
    *out = args[0].kind == TMPL_MISSING ? tmpl_float(0) : args[0];
    if (self.kind == TMPL_BIG_INT && isinf(sl_tmpl_as_double(self)))
        return sl_tmpl_fail(run, SL_ERR_ARGUMENT, "float: an int that is too large");
    if (sl_tmpl_is_number(self))
        *out = tmpl_float(sl_tmpl_as_double(self));
    else if (self.kind == TMPL_STRING && sl_tmpl_parse_float(self.as.string->s, &d))
        *out = tmpl_float(d);
    return SL_OK;
}

static sl_status number_needed(tmpl_run *run, const char *filter, tmpl_value self)
{
    if (self.kind == TMPL_UNDEFINED)
        return sl_tmpl_undefined_error(run, self);
    return sl_tmpl_fail(run, SL_ERR_ARGUMENT, "%s needs a number, not %s", filter,
                        sl_tmpl_kind_name((tmpl_kind)self.kind));
}

static sl_status filter_abs(tmpl_run *run, tmpl_value self, const tmpl_value *args, tmpl_value *out)
{
    (void)args;
    int64_t i;
    if (!sl_tmpl_is_number(self))
        return number_needed(run, "abs", self);
    *out = sl_tmpl_as_int(self, &i) ? tmpl_int(i) : self;
    return sl_tmpl_is_negative(self) ? sl_tmpl_negate(run, *out, out) : SL_OK;
}

/* An integer rounded to a multiple of 10^digits, halves to even. */
static sl_status round_int(tmpl_run *run, int64_t i, int64_t digits, tmpl_value *out)
{
    if (digits > 18) {
        *out = tmpl_int(0);
        return SL_OK;
    }
    int64_t unit = 1;
    for (int64_t k = 0; k < digits; k++)
        unit *= 10;
    int64_t rest = i % unit, base = i - rest, magnitude = rest < 0 ? -rest : rest;
    bool odd = base / unit % 2 != 0;
    bool away = magnitude > unit - magnitude || (magnitude == unit - magnitude && odd);
    *out = tmpl_int(base);
    if (digits == 0 || !away)
        return SL_OK;
    return sl_tmpl_number_arithmetic(run, TMPL_OP_ADD, *out, tmpl_int(rest < 0 ? -unit : unit),
                                     out);
}

static sl_status filter_round(tmpl_run *run, tmpl_value self, const tmpl_value *args,
                              tmpl_value *out)
{
    int64_t precision = 0, i;
    if (!sl_tmpl_is_number(self))
        return number_needed(run, "round", self);
    if (args[0].kind != TMPL_MISSING && !sl_tmpl_as_int(args[0], &precision))
        return sl_tmpl_fail(run, SL_ERR_ARGUMENT, "round: precision must be an integer");
    bool common = args[1].kind == TMPL_MISSING;
    sl_str method = args[1].kind == TMPL_STRING ? args[1].as.string->s : (sl_str){"", 0};
    common |= sl_str_is(method, "common");
    if (self.kind == TMPL_BIG_INT) {
        *out = self;
        return common && precision >= 0
                   ? SL_OK
                   : sl_tmpl_fail(run, SL_ERR_UNSUPPORTED,
                                  "rounding an int beyond 64 bits is not supported");
    }
    if (common) {
        int digits = precision < -400 ? -400 : precision > 400 ? 400 : (int)precision;
        if (sl_tmpl_as_int(self, &i))
            return round_int(run, i, digits < 0 ? -digits : 0, out);
        *out = tmpl_float(sl_tmpl_round(self.as.real, digits));
        return SL_OK;
    }
    bool up = sl_str_is(method, "ceil");
    if (!up && !sl_str_is(method, "floor"))
        return sl_tmpl_fail(run, SL_ERR_ARGUMENT, "round: method must be common, ceil or floor");
    double unit = sl_tmpl_power_of_ten(precision), scaled = sl_tmpl_as_double(self) * unit;
    *out = tmpl_float((up ? ceil(scaled) : floor(scaled)) / unit);
    return SL_OK;
}

static const tmpl_callable filters[] = {
    {"upper", "", 0, filter_upper, NULL},
    {"lower", "", 0, filter_lower, NULL},
    {"title", "", 0, filter_title, NULL},
    {"capitalize", "", 0, filter_capitalize, NULL},
    {"trim", "chars", 0, filter_trim, NULL},
    {"string", "", 0, filter_string, NULL},
    {"safe", "", 0, filter_safe, NULL},
    {"escape", "", 0, filter_escape, NULL},
    {"e", "", 0, filter_escape, NULL},
    {"replace", "old new count", 2, filter_replace, NULL},
    {"center", "width", 0, filter_center, NULL},
    {"indent", "width first blank", 0, filter_indent, NULL},
    {"wordcount", "", 0, filter_wordcount, NULL},
    {"format", "", 0, NULL, filter_format},
    {"default", "default_value boolean", 0, filter_default, NULL},
    {"d", "default_value boolean", 0, filter_default, NULL},
    {"int", "default base", 0, filter_int, NULL},
    {"float", "default", 0, filter_float, NULL},
    {"abs", "", 0, filter_abs, NULL},
    {"round", "precision method", 0, filter_round, NULL},
    {"tojson", "ensure_ascii indent separators sort_keys", 0, sl_tmpl_filter_tojson, NULL},
};

const tmpl_callable *sl_tmpl_find_filter(sl_str name)
{
    const tmpl_callable *found = sl_tmpl_find(filters, SL_COUNTOF(filters), name);
    return found ? found : sl_tmpl_find_seq_filter(name);
}
