/* Marked text. While it is built it lies at the end of the run's one buffer, with its ranges;
 * finished, it is a string in the arena. Marks are never lost or widened: every byte that is put
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
    char *bytes;
    SL_TRY(sl_tmpl_new(run, n, 1, &bytes));
    sl_range *marks = NULL;
    if (n_marks > 0)
        SL_TRY(sl_tmpl_new(run, n_marks, sizeof *marks, &marks));
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
    sl_range *mark;
    SL_TRY(sl_tmpl_new(run, 1, sizeof *mark, &mark));
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
    sl_range *marks;
    SL_TRY(sl_tmpl_new(run, last - first, sizeof *marks, &marks));
    for (size_t i = first; i < last; i++)
        marks[i - first] = (sl_range){sl_max_size(s->marks[i].begin, begin) - begin,
                                      sl_min_size(s->marks[i].end, end) - begin};
    part->marks = marks;
    part->n_marks = last - first;
    return SL_OK;
}

/* The n_old bytes at `old` (in *room if that is not NULL) with n_more behind them: in place if
 * nothing was appended there yet and they fit, else copied to where there is room for more. So a
 * text built piece by piece costs linear time and memory. */
static sl_status grow(tmpl_run *run, tmpl_room **room, const void *old, size_t n_old, size_t n_more,
                      void **out)
{
    if (!*room || (*room)->used != n_old || n_more > (*room)->capacity - n_old) {
        size_t total = n_old + n_more;
        size_t capacity = total < 256 || total > run->arena.budget / 4 ? total : 2 * total;
        tmpl_room *fresh;
        SL_TRY(sl_tmpl_new(run, sizeof *fresh + capacity, 1, &fresh));
        *fresh = (tmpl_room){n_old, capacity};
        if (n_old > 0)
            memcpy(fresh + 1, old, n_old);
        *room = fresh;
    }
    (*room)->used += n_more;
    *out = *room + 1;
    return SL_OK;
}

sl_status sl_tmpl_join_two(tmpl_run *run, const tmpl_str *a, const tmpl_str *b, tmpl_value *out)
{
    size_t n_a = a->s.n_bytes, n_b = b->s.n_bytes;
    if (n_b > SL_TEMPLATE_MAX_OUTPUT - n_a)
        return sl_tmpl_too_long(run);
    SL_TRY(sl_tmpl_spend(run, 1 + n_b / 256));
    SL_TRY(new_str(run, out));
    tmpl_str *joined = out->as.string;
    *joined = *a;
    joined->n_chars = SIZE_MAX;
    joined->markup = false;
    void *grown;
    SL_TRY(grow(run, &joined->room, a->s.data, n_a, n_b, &grown));
    char *bytes = grown;
    if (n_b > 0)
        memcpy(bytes + n_a, b->s.data, n_b);
    joined->s = (sl_str){bytes, n_a + n_b};
    if (b->n_marks == 0)
        return SL_OK;
    SL_TRY(grow(run, &joined->marks_room, a->marks, a->n_marks * sizeof *a->marks,
                b->n_marks * sizeof *a->marks, &grown));
    sl_range *marks = grown;
    for (size_t i = 0; i < b->n_marks; i++)
        marks[a->n_marks + i] = (sl_range){b->marks[i].begin + n_a, b->marks[i].end + n_a};
    joined->marks = marks;
    joined->n_marks = a->n_marks + b->n_marks;
    return SL_OK;
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
