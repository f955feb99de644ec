/* Marked text. While it is built it lies at the end of the run's one buffer, with its ranges;
 * finished, it is a string in the arenas. Marks are never lost or widened: every byte that is put
 * says where it came from. */
#include "text/template_run.h"

#include <string.h>

tmpl_capture sl_tmpl_capture(tmpl_run *run)
{
    tmpl_capture capture = {run->text.n_bytes, run->n_ranges, run->first_range};
    run->first_range = run->n_ranges;
    return capture;
}

static sl_status add_range(tmpl_run *run, size_t begin, size_t end)
{
    if (run->n_ranges > run->first_range && run->ranges[run->n_ranges - 1].end == begin) {
        run->ranges[run->n_ranges - 1].end = end;
        return SL_OK;
    }
    if (run->n_ranges == run->capacity_ranges) {
        size_t capacity = sl_max_size(64, run->capacity_ranges * 2);
        sl_range *ranges = sl_realloc(SL_MEM_TEXT, run->ranges, capacity * sizeof *ranges);
        if (!ranges)
            return sl_tmpl_fail(run, SL_ERR_MEMORY, "out of memory");
        run->ranges = ranges;
        run->capacity_ranges = capacity;
    }
    run->ranges[run->n_ranges++] = (sl_range){begin, end};
    return SL_OK;
}

sl_status sl_tmpl_too_long(tmpl_run *run)
{
    return sl_tmpl_fail(run, SL_ERR_LIMIT, "more than %d bytes of text", SL_TEMPLATE_MAX_OUTPUT);
}

sl_status sl_tmpl_put(tmpl_run *run, const char *bytes, size_t n, bool untrusted)
{
    if (n == 0)
        return SL_OK;
    size_t begin = run->text.n_bytes;
    if (n > SL_TEMPLATE_MAX_OUTPUT - begin)
        return sl_tmpl_too_long(run);
    sl_status status = sl_buf_append(&run->text, bytes, n, NULL);
    if (status != SL_OK)
        return sl_tmpl_fail(run, status, "out of memory");
    return untrusted && !run->input->trust_content ? add_range(run, begin, begin + n) : SL_OK;
}

/* The index of the first mark that ends behind `offset`. */
static size_t first_mark_behind(const tmpl_str *s, size_t offset)
{
    size_t low = 0, high = s->n_marks;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (s->marks[middle].end <= offset)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

sl_status sl_tmpl_put_part(tmpl_run *run, const tmpl_str *s, size_t begin, size_t end)
{
    size_t at = run->text.n_bytes;
    if (begin == end)
        return SL_OK;
    SL_TRY(sl_tmpl_put(run, s->s.data + begin, end - begin, false));
    for (size_t i = first_mark_behind(s, begin); i < s->n_marks && s->marks[i].begin < end; i++) {
        size_t from = sl_max_size(begin, s->marks[i].begin);
        size_t to = sl_min_size(end, s->marks[i].end);
        SL_TRY(add_range(run, at + from - begin, at + to - begin));
    }
    return SL_OK;
}

sl_status sl_tmpl_put_str(tmpl_run *run, const tmpl_str *s)
{
    return sl_tmpl_put_part(run, s, 0, s->s.n_bytes);
}

sl_status sl_tmpl_put_escaped(tmpl_run *run, const tmpl_str *s)
{
    static const char *const entities[] = {
        ['&'] = "&amp;", ['<'] = "&lt;", ['>'] = "&gt;", ['\''] = "&#39;", ['"'] = "&#34;"};
    tmpl_mark_cursor cursor = {s, 0};
    size_t begin = 0;
    for (size_t i = 0; i < s->s.n_bytes; i++) {
        unsigned char c = (unsigned char)s->s.data[i];
        const char *entity = c < SL_COUNTOF(entities) ? entities[c] : NULL;
        if (!entity)
            continue;
        SL_TRY(sl_tmpl_put_part(run, s, begin, i));
        SL_TRY(sl_tmpl_put(run, entity, strlen(entity), sl_tmpl_marked_at(&cursor, i)));
        begin = i + 1;
    }
    return sl_tmpl_put_part(run, s, begin, s->s.n_bytes);
}

static sl_status new_str(tmpl_run *run, tmpl_value *out)
{
    tmpl_str *s;
    SL_TRY(sl_tmpl_new(run, 1, sizeof *s, &s));
    *s = (tmpl_str){.n_chars = SIZE_MAX};
    *out = tmpl_text(s);
    return SL_OK;
}

sl_status sl_tmpl_captured(tmpl_run *run, tmpl_capture capture, tmpl_value *out)
{
    size_t n = run->text.n_bytes - capture.n_bytes;
    size_t n_marks = run->n_ranges - capture.n_marks;
    SL_TRY(sl_tmpl_spend(run, n / 256));
    SL_TRY(new_str(run, out));
    tmpl_str *s = out->as.string;
    char *bytes = sl_tmpl_arena_extend(&run->bytes, NULL, 0, n);
    if (!bytes)
        return sl_tmpl_no_memory(run, &run->bytes);
    sl_range *marks = NULL;
    if (n_marks > 0) {
        marks = sl_tmpl_arena_extend(&run->marks, NULL, 0, n_marks * sizeof *marks);
        if (!marks)
            return sl_tmpl_no_memory(run, &run->marks);
    }
    if (n > 0)
        memcpy(bytes, run->text.data + capture.n_bytes, n);
    for (size_t i = 0; i < n_marks; i++) {
        sl_range range = run->ranges[capture.n_marks + i];
        marks[i] = (sl_range){range.begin - capture.n_bytes, range.end - capture.n_bytes};
    }
    s->s = (sl_str){bytes, n};
    s->marks = marks;
    s->n_marks = n_marks;
    run->text.n_bytes = capture.n_bytes;
    run->n_ranges = capture.n_marks;
    run->first_range = capture.first_mark;
    return SL_OK;
}

sl_status sl_tmpl_make_str(tmpl_run *run, sl_str bytes, bool untrusted, tmpl_value *out)
{
    SL_TRY(new_str(run, out));
    tmpl_str *s = out->as.string;
    s->s = bytes;
    if (!untrusted || run->input->trust_content || bytes.n_bytes == 0)
        return SL_OK;
    sl_range *mark = sl_tmpl_arena_extend(&run->marks, NULL, 0, sizeof *mark);
    if (!mark)
        return sl_tmpl_no_memory(run, &run->marks);
    *mark = (sl_range){0, bytes.n_bytes};
    s->marks = mark;
    s->n_marks = 1;
    return SL_OK;
}

sl_status sl_tmpl_slice_str(tmpl_run *run, const tmpl_str *s, size_t begin, size_t end,
                            tmpl_value *out)
{
    SL_TRY(sl_tmpl_spend(run, 1));
    SL_TRY(new_str(run, out));
    tmpl_str *part = out->as.string;
    part->s = (sl_str){s->s.data + begin, end - begin};
    part->markup = s->markup;
    if (begin == end)
        return SL_OK;
    size_t first = first_mark_behind(s, begin), last = first;
    while (last < s->n_marks && s->marks[last].begin < end)
        last++;
    SL_TRY(sl_tmpl_spend(run, (last - first) / 16));
    if (first == last)
        return SL_OK;
    sl_range *marks = sl_tmpl_arena_extend(&run->marks, NULL, 0, (last - first) * sizeof *marks);
    if (!marks)
        return sl_tmpl_no_memory(run, &run->marks);
    for (size_t i = first; i < last; i++)
        marks[i - first] = (sl_range){sl_max_size(s->marks[i].begin, begin) - begin,
                                      sl_min_size(s->marks[i].end, end) - begin};
    part->marks = marks;
    part->n_marks = last - first;
    return SL_OK;
}

/* The marks of a, then those of b moved behind a. Extends a's array in place where it can. */
static sl_status join_marks(tmpl_run *run, const tmpl_str *a, const tmpl_str *b, tmpl_str *joined)
{
    joined->marks = a->marks;
    joined->n_marks = a->n_marks + b->n_marks;
    if (b->n_marks == 0)
        return SL_OK;
    sl_range *marks = sl_tmpl_arena_extend(&run->marks, a->marks, a->n_marks * sizeof *marks,
                                           b->n_marks * sizeof *marks);
    if (!marks)
        return sl_tmpl_no_memory(run, &run->marks);
    for (size_t i = 0; i < b->n_marks; i++)
        marks[a->n_marks + i] =
            (sl_range){b->marks[i].begin + a->s.n_bytes, b->marks[i].end + a->s.n_bytes};
    joined->marks = marks;
    return SL_OK;
}

sl_status sl_tmpl_join_two(tmpl_run *run, const tmpl_str *a, const tmpl_str *b, tmpl_value *out)
{
    size_t n;
    if (!sl_size_add(a->s.n_bytes, b->s.n_bytes, &n) || n > SL_TEMPLATE_MAX_OUTPUT)
        return sl_tmpl_too_long(run);
    SL_TRY(sl_tmpl_spend(run, 1 + b->s.n_bytes / 256));
    SL_TRY(new_str(run, out));
    char *bytes = sl_tmpl_arena_extend(&run->bytes, a->s.data, a->s.n_bytes, b->s.n_bytes);
    if (!bytes)
        return sl_tmpl_no_memory(run, &run->bytes);
    if (b->s.n_bytes > 0)
        memcpy(bytes + a->s.n_bytes, b->s.data, b->s.n_bytes);
    out->as.string->s = (sl_str){bytes, n};
    return join_marks(run, a, b, out->as.string);
}

size_t sl_tmpl_count_chars(tmpl_str *s)
{
    if (s->n_chars == SIZE_MAX) {
        size_t n = 0;
        for (size_t i = 0; i < s->s.n_bytes; i++)
            n += ((unsigned char)s->s.data[i] & 0xC0) != 0x80;
        s->n_chars = n;
    }
    return s->n_chars;
}

size_t sl_tmpl_char_offset(tmpl_str *s, size_t index)
{
    if (sl_tmpl_count_chars(s) == s->s.n_bytes)
        return index;
    size_t at = 0;
    for (; at < s->s.n_bytes; at++) {
        if (((unsigned char)s->s.data[at] & 0xC0) != 0x80 && index-- == 0)
            break;
    }
    return at;
}

sl_status sl_tmpl_find_bytes(tmpl_run *run, sl_str text, size_t from, sl_str needle, size_t *out)
{
    *out = SIZE_MAX;
    if (from > text.n_bytes || needle.n_bytes > text.n_bytes - from)
        return SL_OK;
    if (needle.n_bytes == 0) {
        *out = from;
        return SL_OK;
    }
    size_t last = text.n_bytes - needle.n_bytes, work = 0, at = from;
    while (at <= last) {
        const char *hit = memchr(text.data + at, needle.data[0], last - at + 1);
        size_t next = hit ? (size_t)(hit - text.data) : last + 1;
        work += next - at;
        at = next;
        if (!hit)
            break;
        size_t same = 1;
        while (same < needle.n_bytes && text.data[at + same] == needle.data[same])
            same++;
        if (same == needle.n_bytes) {
            *out = at;
            break;
        }
        work += same * 16; /* repetitive texts would make this search quadratic */
        at++;
        if (work >= 1 << 16) {
            SL_TRY(sl_tmpl_spend(run, work / 256));
            work = 0;
        }
    }
    return sl_tmpl_spend(run, 1 + work / 256);
}

bool sl_tmpl_marked_at(tmpl_mark_cursor *cursor, size_t offset)
{
    while (cursor->next < cursor->s->n_marks && cursor->s->marks[cursor->next].end <= offset)
        cursor->next++;
    return cursor->next < cursor->s->n_marks && cursor->s->marks[cursor->next].begin <= offset;
}
