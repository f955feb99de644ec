/* Operations on text. Each copies the marks of what it copies; text that it adds itself has the
 * mark of where it came from: the separator's, the replacement's, or none. */
#include "text/template_run.h"

#include <string.h>
#include <utf8proc.h>

#include "base/utf8.h"
#include "text/template_case_table.h"
#include "text/template_lex.h"

sl_status sl_tmpl_list_add(tmpl_run *run, tmpl_list_builder *list, tmpl_value value)
{
    if (list->n == list->capacity) {
        size_t capacity = sl_max_size(8, list->capacity * 2);
        tmpl_value *items;
        SL_TRY(sl_tmpl_spend(run, 1 + list->n / 16));
        SL_TRY(sl_tmpl_new(run, capacity, sizeof *items, &items));
        if (list->n > 0)
            memcpy(items, list->items, list->n * sizeof *items);
        list->items = items;
        list->capacity = capacity;
    }
    list->items[list->n++] = value;
    return SL_OK;
}

/* ---- case ---- */

static bool is_cased(uint32_t code)
{
    utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)code);
    return category == UTF8PROC_CATEGORY_LU || category == UTF8PROC_CATEGORY_LL ||
           category == UTF8PROC_CATEGORY_LT;
}

/* What has a capital form; capitals and title case have none. */
static bool is_small(uint32_t code)
{
    utf8proc_int32_t c = (utf8proc_int32_t)code;
    utf8proc_category_t category = utf8proc_category(c);
    return category == UTF8PROC_CATEGORY_LL ||
           (category != UTF8PROC_CATEGORY_LT && utf8proc_toupper(c) != c);
}

/* What may stand between a letter and the end of its word. */
static bool is_case_ignorable(uint32_t code)
{
    utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)code);
    return category == UTF8PROC_CATEGORY_MN || category == UTF8PROC_CATEGORY_ME ||
           category == UTF8PROC_CATEGORY_CF || category == UTF8PROC_CATEGORY_LM ||
           category == UTF8PROC_CATEGORY_SK || code == '\'' || code == '.' || code == ':' ||
           code == 0xB7 || code == 0x2019;
}

static sl_status put_code(tmpl_run *run, uint32_t code, bool untrusted)
{
    char bytes[4];
    return sl_tmpl_put(run, bytes, sl_utf8_encode(code, bytes), untrusted);
}

/* The full upper or title case of a character. */
static sl_status put_upper(tmpl_run *run, uint32_t code, bool title, bool untrusted)
{
    if (code >= long_cases[0].code) {
        for (size_t i = 0; i < SL_COUNTOF(long_cases) && long_cases[i].code <= code; i++) {
            if (long_cases[i].code != code)
                continue;
            const uint16_t *to = title ? long_cases[i].title : long_cases[i].upper;
            for (size_t k = 0; k < 3 && to[k] != 0; k++)
                SL_TRY(put_code(run, to[k], untrusted));
            return SL_OK;
        }
    }
    utf8proc_int32_t c = (utf8proc_int32_t)code;
    return put_code(run, (uint32_t)(title ? utf8proc_totitle(c) : utf8proc_toupper(c)), untrusted);
}

/* Sigma is written differently at the end of a word: behind a letter, with no letter following. */
static bool is_final_sigma(sl_str s, size_t at)
{
    bool before = false;
    for (size_t i = at; i > 0 && !before;) {
        size_t begin = i - 1;
        while (begin > 0 && ((unsigned char)s.data[begin] & 0xC0) == 0x80)
            begin--;
        uint32_t code;
        sl_utf8_decode(s.data + begin, i - begin, &code);
        before = is_cased(code);
        if (!before && !is_case_ignorable(code))
            return false;
        i = begin;
    }
    for (size_t i = at + 2; before && i < s.n_bytes;) {
        uint32_t code;
        i += sl_utf8_decode(s.data + i, s.n_bytes - i, &code);
        if (is_cased(code))
            return false;
        if (!is_case_ignorable(code))
            break;
    }
    return before;
}

static sl_status put_lower(tmpl_run *run, sl_str s, size_t at, uint32_t code, bool untrusted)
{
    if (code == 0x130) { /* I with a dot: its small form keeps the dot */
        SL_TRY(put_code(run, 'i', untrusted));
        return put_code(run, 0x307, untrusted);
    }
    if (code == 0x3A3)
        return put_code(run, is_final_sigma(s, at) ? 0x3C2 : 0x3C3, untrusted);
    return put_code(run, (uint32_t)utf8proc_tolower((utf8proc_int32_t)code), untrusted);
}

sl_status sl_tmpl_change_case(tmpl_run *run, const tmpl_str *s, tmpl_case to, tmpl_value *out)
{
    tmpl_capture capture = sl_tmpl_capture(run);
    tmpl_mark_cursor cursor = {s, 0};
    bool first = true; /* of the text or of a word */
    SL_TRY(sl_tmpl_spend(run, s->s.n_bytes / 32));
    for (size_t at = 0; at < s->s.n_bytes;) {
        uint32_t code;
        size_t used = sl_utf8_decode(s->s.data + at, s->s.n_bytes - at, &code);
        bool untrusted = sl_tmpl_marked_at(&cursor, at);
        bool title = first && (to == TMPL_CASE_TITLE || to == TMPL_CASE_CAPITALIZE);
        bool raised = to == TMPL_CASE_UPPER || title || (to == TMPL_CASE_SWAP && is_small(code));
        if (raised || (first && to == TMPL_CASE_WORDS))
            SL_TRY(put_upper(run, code, title, untrusted));
        else if (to == TMPL_CASE_SWAP &&
                 utf8proc_category((utf8proc_int32_t)code) == UTF8PROC_CATEGORY_LT)
            SL_TRY(put_code(run, code, untrusted));
        else
            SL_TRY(put_lower(run, s->s, at, code, untrusted));
        if (to == TMPL_CASE_TITLE)
            first = !is_cased(code);
        else if (to == TMPL_CASE_WORDS)
            first = sl_tmpl_is_space(code) || (code < 0x80 && strchr("-({[<", (int)code));
        else
            first = false;
        at += used;
    }
    SL_TRY(sl_tmpl_captured(run, capture, out));
    out->as.string->markup = s->markup && to != TMPL_CASE_WORDS;
    return SL_OK;
}

/* ---- strip ---- */

static bool is_stripped(const tmpl_str *chars, sl_str at)
{
    if (!chars)
        return sl_tmpl_leading_space(at) == at.n_bytes;
    for (size_t i = 0; i + at.n_bytes <= chars->s.n_bytes; i++) {
        if (memcmp(chars->s.data + i, at.data, at.n_bytes) == 0)
            return true;
    }
    return false;
}

sl_status sl_tmpl_strip(tmpl_run *run, const tmpl_str *s, const tmpl_str *chars, bool left,
                        bool right, tmpl_value *out)
{
    size_t begin = 0, end = s->s.n_bytes, cost = 1 + (chars ? chars->s.n_bytes / 64 : 0);
    while (left && begin < end) {
        size_t next = begin + 1;
        while (next < end && ((unsigned char)s->s.data[next] & 0xC0) == 0x80)
            next++;
        if (!is_stripped(chars, (sl_str){s->s.data + begin, next - begin}))
            break;
        begin = next;
        if (begin % 16 == 0)
            SL_TRY(sl_tmpl_spend(run, cost));
    }
    while (right && begin < end) {
        size_t last = end - 1;
        while (last > begin && ((unsigned char)s->s.data[last] & 0xC0) == 0x80)
            last--;
        if (!is_stripped(chars, (sl_str){s->s.data + last, end - last}))
            break;
        end = last;
        if (end % 16 == 0)
            SL_TRY(sl_tmpl_spend(run, cost));
    }
    return sl_tmpl_slice_str(run, s, begin, end, out);
}

/* ---- fields ---- */

sl_status sl_tmpl_justify(tmpl_run *run, tmpl_str *s, tmpl_side side, int64_t width,
                          const tmpl_str *fill, tmpl_value *out)
{
    static const tmpl_str blank = {.s = {" ", 1}};
    int64_t n = (int64_t)sl_tmpl_count_chars(s), lacking = width > n ? width - n : 0;
    int64_t left = side == TMPL_SIDE_LEFT    ? 0
                   : side == TMPL_SIDE_RIGHT ? lacking
                                             : lacking / 2 + (lacking & width & 1);
    tmpl_capture capture = sl_tmpl_capture(run);
    for (int64_t i = 0; i < left; i++)
        SL_TRY(sl_tmpl_put_str(run, fill ? fill : &blank));
    SL_TRY(sl_tmpl_put_str(run, s));
    for (int64_t i = left; i < lacking; i++)
        SL_TRY(sl_tmpl_put_str(run, fill ? fill : &blank));
    SL_TRY(sl_tmpl_captured(run, capture, out));
    out->as.string->markup = s->markup;
    return SL_OK;
}

/* ---- split ---- */

static sl_status add_part(tmpl_run *run, tmpl_list_builder *list, const tmpl_str *s, size_t begin,
                          size_t end)
{
    tmpl_value part;
    SL_TRY(sl_tmpl_slice_str(run, s, begin, end, &part));
    return sl_tmpl_list_add(run, list, part);
}

static size_t skip_word(sl_str s, size_t at)
{
    while (at < s.n_bytes) {
        uint32_t code;
        size_t used = sl_utf8_decode(s.data + at, s.n_bytes - at, &code);
        if (sl_tmpl_is_space(code))
            break;
        at += used;
    }
    return at;
}

static sl_status split_words(tmpl_run *run, const tmpl_str *s, size_t most, tmpl_list_builder *list)
{
    size_t n = s->s.n_bytes;
    size_t at = sl_tmpl_leading_space(s->s);
    SL_TRY(sl_tmpl_spend(run, n / 16));
    while (at < n) {
        size_t end = list->n == most ? n : skip_word(s->s, at);
        SL_TRY(add_part(run, list, s, at, end));
        at = end + sl_tmpl_leading_space((sl_str){s->s.data + end, n - end});
    }
    return SL_OK;
}

sl_status sl_tmpl_split(tmpl_run *run, const tmpl_str *s, const tmpl_str *separator, size_t most,
                        tmpl_value *out)
{
    tmpl_list_builder list = {.n = 0};
    if (!separator) {
        SL_TRY(split_words(run, s, most, &list));
        return sl_tmpl_new_seq(run, TMPL_LIST, list.items, list.n, out);
    }
    if (separator->s.n_bytes == 0)
        return sl_tmpl_fail(run, SL_ERR_ARGUMENT, "split with an empty separator");
    size_t begin = 0;
    while (list.n < most) {
        size_t at;
        SL_TRY(sl_tmpl_find_bytes(run, s->s, begin, separator->s, &at));
        if (at == SIZE_MAX)
            break;
        SL_TRY(add_part(run, &list, s, begin, at));
        begin = at + separator->s.n_bytes;
    }
    SL_TRY(add_part(run, &list, s, begin, s->s.n_bytes));
    return sl_tmpl_new_seq(run, TMPL_LIST, list.items, list.n, out);
}

static void reverse_list(tmpl_list_builder *list)
{
    for (size_t i = 0; i < list->n / 2; i++) {
        tmpl_value swapped = list->items[i];
        list->items[i] = list->items[list->n - 1 - i];
        list->items[list->n - 1 - i] = swapped;
    }
}

/* Words from the right; what is left over keeps its leading whitespace. */
static sl_status split_words_right(tmpl_run *run, const tmpl_str *s, size_t most,
                                   tmpl_list_builder *list)
{
    size_t end = sl_tmpl_without_trailing_space(s->s);
    SL_TRY(sl_tmpl_spend(run, s->s.n_bytes / 16));
    while (end > 0) {
        size_t begin = list->n == most ? 0 : end;
        while (begin > 0) {
            size_t last = begin - 1;
            while (last > 0 && ((unsigned char)s->s.data[last] & 0xC0) == 0x80)
                last--;
            if (sl_tmpl_leading_space((sl_str){s->s.data + last, begin - last}) > 0)
                break;
            begin = last;
        }
        SL_TRY(add_part(run, list, s, begin, end));
        end = sl_tmpl_without_trailing_space((sl_str){s->s.data, begin});
    }
    return SL_OK;
}

sl_status sl_tmpl_find_last(tmpl_run *run, sl_str text, sl_str needle, size_t *out)
{
    size_t n = needle.n_bytes;
    *out = SIZE_MAX;
    for (size_t end = text.n_bytes; end >= n; end--) {
        if (end % 64 == 0)
            SL_TRY(sl_tmpl_spend(run, 1 + n / 64));
        if (n == 0 || memcmp(text.data + end - n, needle.data, n) == 0) {
            *out = end - n;
            return SL_OK;
        }
        if (end == 0)
            break;
    }
    return SL_OK;
}

sl_status sl_tmpl_split_right(tmpl_run *run, const tmpl_str *s, const tmpl_str *separator,
                              size_t most, tmpl_value *out)
{
    tmpl_list_builder list = {.n = 0};
    if (!separator) {
        SL_TRY(split_words_right(run, s, most, &list));
        reverse_list(&list);
        return sl_tmpl_new_seq(run, TMPL_LIST, list.items, list.n, out);
    }
    if (separator->s.n_bytes == 0)
        return sl_tmpl_fail(run, SL_ERR_ARGUMENT, "split with an empty separator");
    size_t end = s->s.n_bytes;
    while (list.n < most) {
        size_t at;
        SL_TRY(sl_tmpl_find_last(run, (sl_str){s->s.data, end}, separator->s, &at));
        if (at == SIZE_MAX)
            break;
        SL_TRY(add_part(run, &list, s, at + separator->s.n_bytes, end));
        end = at;
    }
    SL_TRY(add_part(run, &list, s, 0, end));
    reverse_list(&list);
    return sl_tmpl_new_seq(run, TMPL_LIST, list.items, list.n, out);
}

sl_status sl_tmpl_split_lines(tmpl_run *run, const tmpl_str *s, bool keep_ends, tmpl_value *out)
{
    tmpl_list_builder list = {.n = 0};
    sl_str text = s->s;
    size_t begin = 0;
    SL_TRY(sl_tmpl_spend(run, text.n_bytes / 64));
    for (size_t at = 0; at < text.n_bytes;) {
        uint32_t code;
        size_t end = at + sl_utf8_decode(text.data + at, text.n_bytes - at, &code);
        bool is_end = (code >= '\n' && code <= '\r') || (code >= 0x1C && code <= 0x1E) ||
                      code == 0x85 || code == 0x2028 || code == 0x2029;
        if (code == '\r' && end < text.n_bytes && text.data[end] == '\n')
            end++;
        if (is_end) {
            SL_TRY(add_part(run, &list, s, begin, keep_ends ? end : at));
            begin = end;
        }
        at = end;
    }
    if (begin < text.n_bytes)
        SL_TRY(add_part(run, &list, s, begin, text.n_bytes));
    return sl_tmpl_new_seq(run, TMPL_LIST, list.items, list.n, out);
}

/* ---- replace and join ---- */

/* An empty `old` stands before every character and at the end. */
static sl_status put_between_characters(tmpl_run *run, const tmpl_str *s, const tmpl_str *new,
                                        size_t most)
{
    size_t at = 0, n = s->s.n_bytes;
    for (size_t done = 0; done < most; done++) {
        SL_TRY(sl_tmpl_spend(run, 1));
        SL_TRY(sl_tmpl_put_str(run, new));
        if (at == n)
            return SL_OK;
        size_t end = at + 1;
        while (end < n && ((unsigned char)s->s.data[end] & 0xC0) == 0x80)
            end++;
        SL_TRY(sl_tmpl_put_part(run, s, at, end));
        at = end;
    }
    return sl_tmpl_put_part(run, s, at, n);
}

sl_status sl_tmpl_replace(tmpl_run *run, const tmpl_str *s, const tmpl_str *old,
                          const tmpl_str *new, size_t most, tmpl_value *out)
{
    tmpl_capture capture = sl_tmpl_capture(run);
    if (old->s.n_bytes == 0) {
        SL_TRY(put_between_characters(run, s, new, most));
        return sl_tmpl_captured(run, capture, out);
    }
    size_t begin = 0;
    for (size_t done = 0; done < most; done++) {
        size_t at;
        SL_TRY(sl_tmpl_find_bytes(run, s->s, begin, old->s, &at));
        if (at == SIZE_MAX)
            break;
        SL_TRY(sl_tmpl_put_part(run, s, begin, at));
        SL_TRY(sl_tmpl_put_str(run, new));
        begin = at + old->s.n_bytes;
    }
    SL_TRY(sl_tmpl_put_part(run, s, begin, s->s.n_bytes));
    return sl_tmpl_captured(run, capture, out);
}

sl_status sl_tmpl_join(tmpl_run *run, const tmpl_str *separator, const tmpl_value *items, size_t n,
                       bool convert, tmpl_value *out)
{
    tmpl_capture capture = sl_tmpl_capture(run);
    for (size_t i = 0; i < n; i++) {
        SL_TRY(sl_tmpl_spend(run, 1));
        if (i > 0)
            SL_TRY(sl_tmpl_put_str(run, separator));
        if (convert)
            SL_TRY(sl_tmpl_put_value(run, items[i]));
        else if (items[i].kind != TMPL_STRING)
            return sl_tmpl_fail(run, SL_ERR_ARGUMENT, "join: item %zu is a %s, not a string", i,
                                sl_tmpl_kind_name((tmpl_kind)items[i].kind));
        else if (separator->markup && !items[i].as.string->markup)
            SL_TRY(sl_tmpl_put_escaped(run, items[i].as.string));
        else
            SL_TRY(sl_tmpl_put_str(run, items[i].as.string));
    }
    SL_TRY(sl_tmpl_captured(run, capture, out));
    out->as.string->markup = separator->markup && !convert;
    return SL_OK;
}
