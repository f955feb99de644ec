/* Methods of str, dict, list, tuple and loop. Those that change their object do not exist, as in
 * the sandbox in which Hugging Face renders templates. */
#include "text/template_run.h"

#include <string.h>
#include <utf8proc.h>

#include "base/utf8.h"
#include "text/template_lex.h"

static bool given(tmpl_value arg)
{
    return arg.kind != TMPL_MISSING && arg.kind != TMPL_NONE;
}

/* A string argument; NULL when it is missing or none. */
static sl_status optional_str(tmpl_run *run, tmpl_value arg, const tmpl_str **out)
{
    *out = NULL;
    if (!given(arg))
        return SL_OK;
    if (arg.kind != TMPL_STRING)
        return sl_tmpl_fail(run, SL_ERR_ARGUMENT, "a string method needs a string, not %s",
                            sl_tmpl_kind_name((tmpl_kind)arg.kind));
    *out = arg.as.string;
    return SL_OK;
}

static sl_status required_str(tmpl_run *run, tmpl_value arg, const tmpl_str **out)
{
    SL_TRY(optional_str(run, arg, out));
    if (!*out)
        return sl_tmpl_fail(run, SL_ERR_ARGUMENT, "a string method needs a string, not %s",
                            sl_tmpl_kind_name((tmpl_kind)arg.kind));
    return SL_OK;
}

/* A count: SIZE_MAX (no limit) when missing or negative. */
static sl_status optional_count(tmpl_run *run, tmpl_value arg, size_t *out)
{
    int64_t i = -1;
    if (arg.kind != TMPL_MISSING && !sl_tmpl_as_int(arg, &i))
        return sl_tmpl_fail(run, SL_ERR_ARGUMENT, "a count must be an integer, not %s",
                            sl_tmpl_kind_name((tmpl_kind)arg.kind));
    *out = i < 0 ? SIZE_MAX : (size_t)i;
    return SL_OK;
}

/* ---- str ---- */

static sl_status strip_sides(tmpl_run *run, tmpl_value self, tmpl_value arg, bool left, bool right,
                             tmpl_value *out)
{
    const tmpl_str *chars;
    SL_TRY(optional_str(run, arg, &chars));
    return sl_tmpl_strip(run, self.as.string, chars, left, right, out);
}
static sl_status str_strip(tmpl_run *run, tmpl_value self, const tmpl_value *args, tmpl_value *out)
{
    return strip_sides(run, self, args[0], true, true, out);
}
static sl_status str_lstrip(tmpl_run *run, tmpl_value self, const tmpl_value *args, tmpl_value *out)
{
    return strip_sides(run, self, args[0], true, false, out);
}
static sl_status str_rstrip(tmpl_run *run, tmpl_value self, const tmpl_value *args, tmpl_value *out)
{
    return strip_sides(run, self, args[0], false, true, out);
}

static sl_status str_split(tmpl_run *run, tmpl_value self, const tmpl_value *args, tmpl_value *out)
{
    const tmpl_str *separator;
    size_t most;
    SL_TRY(optional_str(run, args[0], &separator));
    SL_TRY(optional_count(run, args[1], &most));
    return sl_tmpl_split(run, self.as.string, separator, most, out);
}
static sl_status str_rsplit(tmpl_run *run, tmpl_value self, const tmpl_value *args, tmpl_value *out)
{
    const tmpl_str *separator;
    size_t most;
    SL_TRY(optional_str(run, args[0], &separator));
    SL_TRY(optional_count(run, args[1], &most));
    return sl_tmpl_split_right(run, self.as.string, separator, most, out);
}
static sl_status str_splitlines(tmpl_run *run, tmpl_value self, const tmpl_value *args,
                                tmpl_value *out)
{
    return sl_tmpl_split_lines(run, self.as.string, sl_tmpl_truth(args[0]), out);
}

/* (before, separator, after) */
static sl_status partition_at(tmpl_run *run, const tmpl_str *s, tmpl_value separator, size_t at,
                              bool rest_first, tmpl_value *out)
{
    tmpl_value *parts;
    size_t n = s->s.n_bytes, n_separator = separator.as.string->s.n_bytes;
    SL_TRY(sl_tmpl_new_items(run, TMPL_TUPLE, 3, &parts, out));
    if (at != SIZE_MAX) {
        SL_TRY(sl_tmpl_slice_str(run, s, 0, at, &parts[0]));
        SL_TRY(sl_tmpl_slice_str(run, s, at, at + n_separator, &parts[1]));
        return sl_tmpl_slice_str(run, s, at + n_separator, n, &parts[2]);
    }
    SL_TRY(sl_tmpl_slice_str(run, s, 0, rest_first ? n : 0, &parts[0]));
    SL_TRY(sl_tmpl_slice_str(run, s, 0, 0, &parts[1]));
    return sl_tmpl_slice_str(run, s, 0, rest_first ? 0 : n, &parts[2]);
}
static sl_status find_separator(tmpl_run *run, tmpl_value self, tmpl_value arg, bool last,
                                size_t *at)
{
    const tmpl_str *separator;
    SL_TRY(required_str(run, arg, &separator));
    if (separator->s.n_bytes == 0)
        return sl_tmpl_fail(run, SL_ERR_ARGUMENT, "partition with an empty separator");
    return last ? sl_tmpl_find_last(run, self.as.string->s, separator->s, at)
                : sl_tmpl_find_bytes(run, self.as.string->s, 0, separator->s, at);
}
static sl_status str_partition(tmpl_run *run, tmpl_value self, const tmpl_value *args,
                               tmpl_value *out)
{
    size_t at;
    SL_TRY(find_separator(run, self, args[0], false, &at));
    return partition_at(run, self.as.string, args[0], at, true, out);
}
static sl_status str_rpartition(tmpl_run *run, tmpl_value self, const tmpl_value *args,
                                tmpl_value *out)
{
    size_t at;
    SL_TRY(find_separator(run, self, args[0], true, &at));
    return partition_at(run, self.as.string, args[0], at, false, out);
}

static bool has_prefix(sl_str s, sl_str prefix)
{
    return prefix.n_bytes <= s.n_bytes && sl_str_equal((sl_str){s.data, prefix.n_bytes}, prefix);
}
static bool has_suffix(sl_str s, sl_str suffix)
{
    return suffix.n_bytes <= s.n_bytes &&
           sl_str_equal((sl_str){s.data + s.n_bytes - suffix.n_bytes, suffix.n_bytes}, suffix);
}

/* The bytes [*begin, *end) between the characters that two optional arguments name, as in a slice.
 * SIZE_MAX for *begin: it lies behind the end, where nothing is found, not even the empty text. */
static sl_status search_range(tmpl_run *run, tmpl_str *s, const tmpl_value bounds[2], size_t *begin,
                              size_t *end)
{
    *begin = 0;
    *end = s->s.n_bytes;
    if (!given(bounds[0]) && !given(bounds[1]))
        return SL_OK;
    SL_TRY(sl_tmpl_spend(run, s->s.n_bytes / 64));
    int64_t n = (int64_t)sl_tmpl_count_chars(s), at[2] = {0, n};
    for (int i = 0; i < 2; i++) {
        if (!given(bounds[i]))
            continue;
        if (!sl_tmpl_as_int(bounds[i], &at[i]))
            return sl_tmpl_fail(run, SL_ERR_ARGUMENT, "start and end must be integers, not %s",
                                sl_tmpl_kind_name((tmpl_kind)bounds[i].kind));
        if (at[i] < 0)
            at[i] = at[i] < -n ? 0 : at[i] + n;
    }
    at[1] = at[1] > n ? n : at[1];
    *end = sl_tmpl_char_offset(s, (size_t)at[1]);
    *begin = at[0] > at[1] ? SIZE_MAX : sl_tmpl_char_offset(s, (size_t)at[0]);
    return SL_OK;
}

/* The affix may be a tuple of strings: then one of them must fit. args: affix, start, end. */
static sl_status has_affix(tmpl_run *run, tmpl_value self, const tmpl_value *args,
                           bool (*has)(sl_str, sl_str), tmpl_value *out)
{
    bool found = false;
    const tmpl_value *items = args;
    size_t n = 1, begin, end;
    if (args[0].kind == TMPL_TUPLE)
        SL_TRY(sl_tmpl_items(run, args[0], &items, &n));
    SL_TRY(search_range(run, self.as.string, args + 1, &begin, &end));
    for (size_t i = 0; i < n && !found; i++) {
        const tmpl_str *s;
        SL_TRY(required_str(run, items[i], &s));
        SL_TRY(sl_tmpl_spend(run, s->s.n_bytes / 256));
        found = begin <= end && has((sl_str){self.as.string->s.data + begin, end - begin}, s->s);
    }
    *out = tmpl_bool(found);
    return SL_OK;
}
static sl_status str_startswith(tmpl_run *run, tmpl_value self, const tmpl_value *args,
                                tmpl_value *out)
{
    return has_affix(run, self, args, has_prefix, out);
}
static sl_status str_endswith(tmpl_run *run, tmpl_value self, const tmpl_value *args,
                              tmpl_value *out)
{
    return has_affix(run, self, args, has_suffix, out);
}
static sl_status str_removeprefix(tmpl_run *run, tmpl_value self, const tmpl_value *args,
                                  tmpl_value *out)
{
    const tmpl_str *s = self.as.string, *prefix;
    SL_TRY(required_str(run, args[0], &prefix));
    size_t begin = has_prefix(s->s, prefix->s) ? prefix->s.n_bytes : 0;
    return sl_tmpl_slice_str(run, s, begin, s->s.n_bytes, out);
}
static sl_status str_removesuffix(tmpl_run *run, tmpl_value self, const tmpl_value *args,
                                  tmpl_value *out)
{
    const tmpl_str *s = self.as.string, *suffix;
    SL_TRY(required_str(run, args[0], &suffix));
    size_t n = has_suffix(s->s, suffix->s) ? suffix->s.n_bytes : 0;
    return sl_tmpl_slice_str(run, s, 0, s->s.n_bytes - n, out);
}

static sl_status str_replace(tmpl_run *run, tmpl_value self, const tmpl_value *args,
                             tmpl_value *out)
{
    const tmpl_str *old, *new;
    size_t most;
    SL_TRY(required_str(run, args[0], &old));
    SL_TRY(required_str(run, args[1], &new));
    SL_TRY(optional_count(run, args[2], &most));
    tmpl_value escaped;
    if (self.as.string->markup && !new->markup) {
        tmpl_capture capture = sl_tmpl_capture(run);
        SL_TRY(sl_tmpl_put_escaped(run, new));
        SL_TRY(sl_tmpl_captured(run, capture, &escaped));
        new = escaped.as.string;
    }
    SL_TRY(sl_tmpl_replace(run, self.as.string, old, new, most, out));
    out->as.string->markup = self.as.string->markup;
    return SL_OK;
}

static sl_status str_join(tmpl_run *run, tmpl_value self, const tmpl_value *args, tmpl_value *out)
{
    const tmpl_value *items;
    size_t n;
    if (args[0].kind == TMPL_UNDEFINED)
        return sl_tmpl_undefined_error(run, args[0]);
    SL_TRY(sl_tmpl_items(run, args[0], &items, &n));
    return sl_tmpl_join(run, self.as.string, items, n, false, out);
}

static sl_status str_upper(tmpl_run *run, tmpl_value self, const tmpl_value *args, tmpl_value *out)
{
    (void)args;
    return sl_tmpl_change_case(run, self.as.string, TMPL_CASE_UPPER, out);
}
static sl_status str_lower(tmpl_run *run, tmpl_value self, const tmpl_value *args, tmpl_value *out)
{
    (void)args;
    return sl_tmpl_change_case(run, self.as.string, TMPL_CASE_LOWER, out);
}
static sl_status str_title(tmpl_run *run, tmpl_value self, const tmpl_value *args, tmpl_value *out)
{
    (void)args;
    return sl_tmpl_change_case(run, self.as.string, TMPL_CASE_TITLE, out);
}
static sl_status str_capitalize(tmpl_run *run, tmpl_value self, const tmpl_value *args,
                                tmpl_value *out)
{
    (void)args;
    return sl_tmpl_change_case(run, self.as.string, TMPL_CASE_CAPITALIZE, out);
}

static sl_status str_swapcase(tmpl_run *run, tmpl_value self, const tmpl_value *args,
                              tmpl_value *out)
{
    (void)args;
    return sl_tmpl_change_case(run, self.as.string, TMPL_CASE_SWAP, out);
}

static sl_status required_int(tmpl_run *run, tmpl_value arg, int64_t *out)
{
    if (sl_tmpl_as_int(arg, out))
        return SL_OK;
    return sl_tmpl_fail(run, SL_ERR_ARGUMENT, "a width must be an integer, not %s",
                        sl_tmpl_kind_name((tmpl_kind)arg.kind));
}

/* args: width, fill character. */
static sl_status justify(tmpl_run *run, tmpl_value self, const tmpl_value *args, tmpl_side side,
                         tmpl_value *out)
{
    int64_t width;
    const tmpl_str *fill = NULL;
    SL_TRY(required_int(run, args[0], &width));
    if (args[1].kind != TMPL_MISSING) {
        SL_TRY(required_str(run, args[1], &fill));
        if (sl_tmpl_count_chars(args[1].as.string) != 1)
            return sl_tmpl_fail(run, SL_ERR_ARGUMENT, "the fill must be one character");
    }
    return sl_tmpl_justify(run, self.as.string, side, width, fill, out);
}
static sl_status str_center(tmpl_run *run, tmpl_value self, const tmpl_value *args, tmpl_value *out)
{
    return justify(run, self, args, TMPL_SIDE_CENTRE, out);
}
static sl_status str_ljust(tmpl_run *run, tmpl_value self, const tmpl_value *args, tmpl_value *out)
{
    return justify(run, self, args, TMPL_SIDE_LEFT, out);
}
static sl_status str_rjust(tmpl_run *run, tmpl_value self, const tmpl_value *args, tmpl_value *out)
{
    return justify(run, self, args, TMPL_SIDE_RIGHT, out);
}
/* Zeros between the sign, if there is one, and the rest. */
static sl_status str_zfill(tmpl_run *run, tmpl_value self, const tmpl_value *args, tmpl_value *out)
{
    static const tmpl_str zero = {.s = {"0", 1}};
    int64_t width;
    tmpl_value sign, rest;
    SL_TRY(required_int(run, args[0], &width));
    tmpl_str *s = self.as.string;
    size_t n_sign = s->s.n_bytes > 0 && (s->s.data[0] == '-' || s->s.data[0] == '+');
    if (width > (int64_t)n_sign)
        width -= (int64_t)n_sign;
    SL_TRY(sl_tmpl_slice_str(run, s, 0, n_sign, &sign));
    SL_TRY(sl_tmpl_slice_str(run, s, n_sign, s->s.n_bytes, &rest));
    SL_TRY(sl_tmpl_justify(run, rest.as.string, TMPL_SIDE_RIGHT, width, &zero, &rest));
    SL_TRY(sl_tmpl_join_two(run, sign.as.string, rest.as.string, out));
    out->as.string->markup = s->markup;
    return SL_OK;
}

/* The index, counted in characters, of a byte offset. */
static int64_t char_index(sl_str s, size_t offset)
{
    tmpl_str before = {.s = {s.data, offset}, .n_chars = SIZE_MAX};
    return (int64_t)sl_tmpl_count_chars(&before);
}
/* args: needle, start, end. */
static sl_status index_of(tmpl_run *run, tmpl_value self, const tmpl_value *args, bool last,
                          bool must, tmpl_value *out)
{
    const tmpl_str *needle;
    size_t at = SIZE_MAX, begin, end;
    SL_TRY(required_str(run, args[0], &needle));
    SL_TRY(search_range(run, self.as.string, args + 1, &begin, &end));
    sl_str s = self.as.string->s;
    if (begin <= end) {
        sl_str part = {s.data + begin, end - begin};
        SL_TRY(last ? sl_tmpl_find_last(run, part, needle->s, &at)
                    : sl_tmpl_find_bytes(run, part, 0, needle->s, &at));
        at += at == SIZE_MAX ? 0 : begin;
    }
    if (at == SIZE_MAX && must)
        return sl_tmpl_fail(run, SL_ERR_ARGUMENT, "index: the string is not there");
    *out = tmpl_int(at == SIZE_MAX ? -1 : char_index(s, at));
    return SL_OK;
}
static sl_status str_find(tmpl_run *run, tmpl_value self, const tmpl_value *args, tmpl_value *out)
{
    return index_of(run, self, args, false, false, out);
}
static sl_status str_rfind(tmpl_run *run, tmpl_value self, const tmpl_value *args, tmpl_value *out)
{
    return index_of(run, self, args, true, false, out);
}
static sl_status str_index(tmpl_run *run, tmpl_value self, const tmpl_value *args, tmpl_value *out)
{
    return index_of(run, self, args, false, true, out);
}
static sl_status str_rindex(tmpl_run *run, tmpl_value self, const tmpl_value *args, tmpl_value *out)
{
    return index_of(run, self, args, true, true, out);
}

static sl_status str_count(tmpl_run *run, tmpl_value self, const tmpl_value *args, tmpl_value *out)
{
    const tmpl_str *needle;
    size_t begin, end;
    SL_TRY(required_str(run, args[0], &needle));
    SL_TRY(search_range(run, self.as.string, args + 1, &begin, &end));
    sl_str s = self.as.string->s;
    int64_t n = 0;
    if (needle->s.n_bytes == 0) {
        n = begin <= end ? char_index(s, end) - char_index(s, begin) + 1 : 0;
    } else {
        for (size_t at = begin; at <= end; at += needle->s.n_bytes, n++) {
            SL_TRY(sl_tmpl_find_bytes(run, (sl_str){s.data, end}, at, needle->s, &at));
            if (at == SIZE_MAX)
                break;
        }
    }
    *out = tmpl_int(n);
    return SL_OK;
}

/* ---- str.is... ---- */

typedef bool code_test(uint32_t code, utf8proc_category_t category);

static bool is_alpha(uint32_t code, utf8proc_category_t category)
{
    (void)code;
    return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
}
static bool is_digit(uint32_t code, utf8proc_category_t category)
{
    bool superscript = code == 0xB2 || code == 0xB3 || code == 0xB9 ||
                       (code >= 0x2070 && code <= 0x2089 && category == UTF8PROC_CATEGORY_NO);
    return category == UTF8PROC_CATEGORY_ND || superscript;
}
static bool is_numeric(uint32_t code, utf8proc_category_t category)
{
    (void)code;
    return category >= UTF8PROC_CATEGORY_ND && category <= UTF8PROC_CATEGORY_NO;
}
static bool is_alnum(uint32_t code, utf8proc_category_t category)
{
    return is_alpha(code, category) || is_numeric(code, category);
}
static bool is_space(uint32_t code, utf8proc_category_t category)
{
    (void)category;
    return sl_tmpl_is_space(code);
}

static sl_status all_chars(tmpl_run *run, tmpl_value self, code_test *test, tmpl_value *out)
{
    sl_str s = self.as.string->s;
    bool all = s.n_bytes > 0;
    SL_TRY(sl_tmpl_spend(run, s.n_bytes / 64));
    for (size_t at = 0; at < s.n_bytes && all;) {
        uint32_t code;
        at += sl_utf8_decode(s.data + at, s.n_bytes - at, &code);
        all = test(code, utf8proc_category((utf8proc_int32_t)code));
    }
    *out = tmpl_bool(all);
    return SL_OK;
}
static sl_status str_isalpha(tmpl_run *run, tmpl_value self, const tmpl_value *args,
                             tmpl_value *out)
{
    (void)args;
    return all_chars(run, self, is_alpha, out);
}
static sl_status str_isdigit(tmpl_run *run, tmpl_value self, const tmpl_value *args,
                             tmpl_value *out)
{
    (void)args;
    return all_chars(run, self, is_digit, out);
}
static sl_status str_isnumeric(tmpl_run *run, tmpl_value self, const tmpl_value *args,
                               tmpl_value *out)
{
    (void)args;
    return all_chars(run, self, is_numeric, out);
}
static sl_status str_isalnum(tmpl_run *run, tmpl_value self, const tmpl_value *args,
                             tmpl_value *out)
{
    (void)args;
    return all_chars(run, self, is_alnum, out);
}
static sl_status str_isspace(tmpl_run *run, tmpl_value self, const tmpl_value *args,
                             tmpl_value *out)
{
    (void)args;
    return all_chars(run, self, is_space, out);
}

sl_status sl_tmpl_all_cased(tmpl_run *run, const tmpl_str *s, bool upper, bool *out)
{
    utf8proc_category_t wanted = upper ? UTF8PROC_CATEGORY_LU : UTF8PROC_CATEGORY_LL;
    utf8proc_category_t unwanted = upper ? UTF8PROC_CATEGORY_LL : UTF8PROC_CATEGORY_LU;
    bool any = false, all = true;
    SL_TRY(sl_tmpl_spend(run, s->s.n_bytes / 64));
    for (size_t at = 0; at < s->s.n_bytes && all;) {
        uint32_t code;
        at += sl_utf8_decode(s->s.data + at, s->s.n_bytes - at, &code);
        utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)code);
        any |= category == wanted;
        all = category != unwanted && category != UTF8PROC_CATEGORY_LT;
    }
    *out = any && all;
    return SL_OK;
}
static sl_status str_isupper(tmpl_run *run, tmpl_value self, const tmpl_value *args,
                             tmpl_value *out)
{
    (void)args;
    *out = tmpl_bool(false);
    return sl_tmpl_all_cased(run, self.as.string, true, &out->as.boolean);
}
static sl_status str_islower(tmpl_run *run, tmpl_value self, const tmpl_value *args,
                             tmpl_value *out)
{
    (void)args;
    *out = tmpl_bool(false);
    return sl_tmpl_all_cased(run, self.as.string, false, &out->as.boolean);
}

/* ---- str.format ---- */

/* One "{field}": a position, a name or nothing (the next position). */
static sl_status format_field(tmpl_run *run, sl_str field, const tmpl_call *call, size_t *next,
                              tmpl_value *out)
{
    int64_t index;
    for (size_t i = 0; i < field.n_bytes; i++) {
        if (memchr(".[!:{", field.data[i], 5))
            return sl_tmpl_fail(run, SL_ERR_UNSUPPORTED,
                                "format: only plain fields like {}, {0} and {name} are supported");
    }
    if (field.n_bytes == 0) {
        index = (int64_t)(*next)++;
    } else if (!sl_tmpl_parse_int(field, 10, &index)) {
        for (size_t i = call->n_positional; i < call->n; i++) {
            if (sl_str_equal(call->args[i].name, field)) {
                *out = call->args[i].value;
                return SL_OK;
            }
        }
        index = -1;
    }
    if (index < 0 || (size_t)index >= call->n_positional)
        return sl_tmpl_fail(run, SL_ERR_ARGUMENT, "format: no value for a field");
    *out = call->args[index].value;
    return SL_OK;
}

static sl_status str_format(tmpl_run *run, tmpl_value self, const tmpl_call *call, tmpl_value *out)
{
    const tmpl_str *format = self.as.string;
    sl_str s = format->s;
    size_t next = 0, begin = 0, at = 0;
    tmpl_capture capture = sl_tmpl_capture(run);
    for (; at < s.n_bytes; at++) {
        char c = s.data[at];
        if (c != '{' && c != '}')
            continue;
        SL_TRY(sl_tmpl_put_part(run, format, begin, at));
        begin = at + 1;
        if (begin < s.n_bytes && s.data[begin] == c) { /* "{{" stands for "{" */
            at++;
            continue;
        }
        size_t end = begin;
        while (end < s.n_bytes && s.data[end] != '}')
            end++;
        if (c == '}' || end == s.n_bytes)
            return sl_tmpl_fail(run, SL_ERR_ARGUMENT, "format: a single '%c'", c);
        tmpl_value value;
        SL_TRY(sl_tmpl_spend(run, 1));
        SL_TRY(format_field(run, (sl_str){s.data + begin, end - begin}, call, &next, &value));
        SL_TRY(sl_tmpl_put_value(run, value));
        begin = end + 1;
        at = end;
    }
    SL_TRY(sl_tmpl_put_part(run, format, begin, s.n_bytes));
    return sl_tmpl_captured(run, capture, out);
}

static const tmpl_callable str_methods[] = {
    {"strip", "chars", 0, str_strip, NULL},
    {"lstrip", "chars", 0, str_lstrip, NULL},
    {"rstrip", "chars", 0, str_rstrip, NULL},
    {"split", "sep maxsplit", 0, str_split, NULL},
    {"rsplit", "sep maxsplit", 0, str_rsplit, NULL},
    {"splitlines", "keepends", 0, str_splitlines, NULL},
    {"partition", "sep", 1, str_partition, NULL},
    {"rpartition", "sep", 1, str_rpartition, NULL},
    {"startswith", "prefix start end", 1, str_startswith, NULL},
    {"endswith", "suffix start end", 1, str_endswith, NULL},
    {"removeprefix", "prefix", 1, str_removeprefix, NULL},
    {"removesuffix", "suffix", 1, str_removesuffix, NULL},
    {"replace", "old new count", 2, str_replace, NULL},
    {"join", "iterable", 1, str_join, NULL},
    {"upper", "", 0, str_upper, NULL},
    {"lower", "", 0, str_lower, NULL},
    {"title", "", 0, str_title, NULL},
    {"capitalize", "", 0, str_capitalize, NULL},
    {"swapcase", "", 0, str_swapcase, NULL},
    {"center", "width fillchar", 1, str_center, NULL},
    {"ljust", "width fillchar", 1, str_ljust, NULL},
    {"rjust", "width fillchar", 1, str_rjust, NULL},
    {"zfill", "width", 1, str_zfill, NULL},
    {"find", "sub start end", 1, str_find, NULL},
    {"rfind", "sub start end", 1, str_rfind, NULL},
    {"index", "sub start end", 1, str_index, NULL},
    {"rindex", "sub start end", 1, str_rindex, NULL},
    {"count", "sub start end", 1, str_count, NULL},
    {"isalpha", "", 0, str_isalpha, NULL},
    {"isdigit", "", 0, str_isdigit, NULL},
    {"isdecimal", "", 0, str_isdigit, NULL},
    {"isnumeric", "", 0, str_isnumeric, NULL},
    {"isalnum", "", 0, str_isalnum, NULL},
    {"isspace", "", 0, str_isspace, NULL},
    {"isupper", "", 0, str_isupper, NULL},
    {"islower", "", 0, str_islower, NULL},
    {"format", "", 0, NULL, str_format},
};

/* ---- dict ---- */

static sl_status dict_get(tmpl_run *run, tmpl_value self, const tmpl_value *args, tmpl_value *out)
{
    tmpl_entry *entry;
    SL_TRY(sl_tmpl_dict_find(run, self.as.dict, args[0], &entry));
    *out = entry ? entry->value : args[1].kind == TMPL_MISSING ? tmpl_none() : args[1];
    return SL_OK;
}
static sl_status dict_items(tmpl_run *run, tmpl_value self, const tmpl_value *args, tmpl_value *out)
{
    (void)args;
    SL_TRY(sl_tmpl_dict_items(run, self.as.dict, TMPL_VIEW, out));
    out->as.seq->view = "dict_items";
    return SL_OK;
}
static sl_status dict_column(tmpl_run *run, const tmpl_dict *dict, bool keys, tmpl_value *out)
{
    tmpl_value *items;
    SL_TRY(sl_tmpl_new_items(run, TMPL_VIEW, dict->n, &items, out));
    for (size_t i = 0; i < dict->n; i++)
        items[i] = keys ? dict->entries[i].key : dict->entries[i].value;
    out->as.seq->view = keys ? "dict_keys" : "dict_values";
    return SL_OK;
}
static sl_status dict_keys(tmpl_run *run, tmpl_value self, const tmpl_value *args, tmpl_value *out)
{
    (void)args;
    return dict_column(run, self.as.dict, true, out);
}
static sl_status dict_values(tmpl_run *run, tmpl_value self, const tmpl_value *args,
                             tmpl_value *out)
{
    (void)args;
    return dict_column(run, self.as.dict, false, out);
}
static sl_status dict_copy(tmpl_run *run, tmpl_value self, const tmpl_value *args, tmpl_value *out)
{
    (void)run;
    (void)args;
    *out = self; /* nothing can change either */
    return SL_OK;
}

static const tmpl_callable dict_methods[] = {
    {"get", "key default", 1, dict_get, NULL}, {"items", "", 0, dict_items, NULL},
    {"keys", "", 0, dict_keys, NULL},          {"values", "", 0, dict_values, NULL},
    {"copy", "", 0, dict_copy, NULL},
};

/* ---- list, tuple ---- */

static sl_status seq_count(tmpl_run *run, tmpl_value self, const tmpl_value *args, tmpl_value *out)
{
    int64_t n = 0;
    SL_TRY(sl_tmpl_spend(run, self.as.seq->n / 16));
    for (size_t i = 0; i < self.as.seq->n; i++) {
        bool equal;
        SL_TRY(sl_tmpl_equal(run, sl_tmpl_seq_item(self.as.seq, i), args[0], &equal));
        n += equal;
    }
    *out = tmpl_int(n);
    return SL_OK;
}
static sl_status seq_index(tmpl_run *run, tmpl_value self, const tmpl_value *args, tmpl_value *out)
{
    SL_TRY(sl_tmpl_spend(run, self.as.seq->n / 16));
    for (size_t i = 0; i < self.as.seq->n; i++) {
        bool equal;
        SL_TRY(sl_tmpl_equal(run, sl_tmpl_seq_item(self.as.seq, i), args[0], &equal));
        if (equal) {
            *out = tmpl_int((int64_t)i);
            return SL_OK;
        }
    }
    return sl_tmpl_fail(run, SL_ERR_ARGUMENT, "index: the value is not in the %s",
                        sl_tmpl_kind_name((tmpl_kind)self.kind));
}
static sl_status seq_copy(tmpl_run *run, tmpl_value self, const tmpl_value *args, tmpl_value *out)
{
    (void)run;
    (void)args;
    *out = self;
    return SL_OK;
}

static const tmpl_callable seq_methods[] = {
    {"count", "value", 1, seq_count, NULL},
    {"index", "value", 1, seq_index, NULL},
    {"copy", "", 0, seq_copy, NULL},
};

/* ---- loop ---- */

static sl_status loop_cycle(tmpl_run *run, tmpl_value self, const tmpl_call *call, tmpl_value *out)
{
    if (call->n == 0 || call->n != call->n_positional)
        return sl_tmpl_fail(run, SL_ERR_ARGUMENT, "loop.cycle needs values");
    *out = call->args[self.as.loop->index0 % call->n].value;
    return SL_OK;
}

/* Whether the arguments differ from those of the last call. */
static sl_status loop_changed(tmpl_run *run, tmpl_value self, const tmpl_call *call,
                              tmpl_value *out)
{
    tmpl_value *items, now;
    bool same = false;
    SL_TRY(sl_tmpl_new_items(run, TMPL_TUPLE, call->n, &items, &now));
    for (size_t i = 0; i < call->n; i++)
        items[i] = call->args[i].value;
    if (self.as.loop->changed.kind == TMPL_TUPLE)
        SL_TRY(sl_tmpl_equal(run, self.as.loop->changed, now, &same));
    self.as.loop->changed = now;
    *out = tmpl_bool(!same);
    return SL_OK;
}

static const tmpl_callable loop_methods[] = {
    {"cycle", "", 0, NULL, loop_cycle},
    {"changed", "", 0, NULL, loop_changed},
};

const tmpl_callable *sl_tmpl_find(const tmpl_callable *table, size_t n, sl_str name)
{
    for (size_t i = 0; i < n; i++) {
        if (sl_str_is(name, table[i].name))
            return &table[i];
    }
    return NULL;
}

const tmpl_callable *sl_tmpl_find_method(tmpl_kind kind, sl_str name)
{
    switch (kind) {
    case TMPL_STRING:
        return sl_tmpl_find(str_methods, SL_COUNTOF(str_methods), name);
    case TMPL_DICT:
        return sl_tmpl_find(dict_methods, SL_COUNTOF(dict_methods), name);
    case TMPL_LIST:
        return sl_tmpl_find(seq_methods, SL_COUNTOF(seq_methods), name);
    case TMPL_TUPLE:
    case TMPL_RANGE:
        return sl_tmpl_find(seq_methods, 2, name);
    case TMPL_LOOP:
        return sl_tmpl_find(loop_methods, SL_COUNTOF(loop_methods), name);
    default:
        return NULL;
    }
}

bool sl_tmpl_is_unsafe_method(tmpl_kind kind, sl_str name)
{
    static const char *const dict_names[] = {"clear",      "pop",    "popitem",
                                             "setdefault", "update", "fromkeys"};
    static const char *const list_names[] = {"append", "clear",  "extend",  "insert",
                                             "pop",    "remove", "reverse", "sort"};
    const char *const *names = kind == TMPL_DICT ? dict_names : list_names;
    size_t n = kind == TMPL_DICT   ? SL_COUNTOF(dict_names)
               : kind == TMPL_LIST ? SL_COUNTOF(list_names)
                                   : 0;
    for (size_t i = 0; i < n; i++) {
        if (sl_str_is(name, names[i]))
            return true;
    }
    return false;
}
