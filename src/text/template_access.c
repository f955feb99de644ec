/* owner.name, owner[key] and owner[start:stop:step]. What does not exist is undefined; asking an
 * undefined value is an error. A dict's methods hide its keys of the same name from `.name`, as in
 * Jinja. */
#include "text/template_run.h"

#include <string.h>

static tmpl_value loop_attribute(const tmpl_loop *loop, const sl_str *name)
{
    static const char *const numbers[] = {"index",  "index0", "revindex", "revindex0",
                                          "length", "depth",  "depth0"};
    const size_t values[] = {loop->index0 + 1,
                             loop->index0,
                             loop->n - loop->index0,
                             loop->n - loop->index0 - 1,
                             loop->n,
                             1,
                             0};
    for (size_t i = 0; i < SL_COUNTOF(numbers); i++) {
        if (sl_str_is(*name, numbers[i]))
            return tmpl_int((int64_t)values[i]);
    }
    if (sl_str_is(*name, "first"))
        return tmpl_bool(loop->index0 == 0);
    if (sl_str_is(*name, "last"))
        return tmpl_bool(loop->index0 + 1 == loop->n);
    if (sl_str_is(*name, "previtem"))
        return loop->index0 > 0 ? loop->items[loop->index0 - 1]
                                : tmpl_lacking(TMPL_LACK_NEIGHBOUR, TMPL_LOOP, name);
    if (sl_str_is(*name, "nextitem"))
        return loop->index0 + 1 < loop->n ? loop->items[loop->index0 + 1]
                                          : tmpl_lacking(TMPL_LACK_NEIGHBOUR, TMPL_LOOP, name);
    return tmpl_lacking(TMPL_LACK_ATTRIBUTE, TMPL_LOOP, name);
}

/* A method as a value of its own, or nothing. */
static sl_status method_value(tmpl_run *run, tmpl_value owner, const sl_str *name, bool *found,
                              tmpl_value *out)
{
    const tmpl_callable *method = sl_tmpl_find_method((tmpl_kind)owner.kind, *name);
    *found = method != NULL;
    if (!method)
        return SL_OK;
    tmpl_function *function;
    SL_TRY(sl_tmpl_new(run, 1, sizeof *function, &function));
    *function = (tmpl_function){.callable = method, .self = owner};
    *out = (tmpl_value){.kind = TMPL_FUNCTION, .as.function = function};
    return SL_OK;
}

sl_status sl_tmpl_attribute(tmpl_run *run, tmpl_value owner, const sl_str *name, tmpl_value *out)
{
    tmpl_kind kind = (tmpl_kind)owner.kind;
    if (kind == TMPL_UNDEFINED)
        return sl_tmpl_undefined_error(run, owner);
    bool found;
    SL_TRY(method_value(run, owner, name, &found, out));
    if (found)
        return SL_OK;
    if (sl_tmpl_is_unsafe_method(kind, *name)) {
        *out = tmpl_lacking(TMPL_LACK_UNSAFE, kind, name);
        return SL_OK;
    }
    *out = tmpl_lacking(TMPL_LACK_ATTRIBUTE, kind, name);
    if (kind == TMPL_LOOP) {
        *out = loop_attribute(owner.as.loop, name);
    } else if (kind == TMPL_DICT || kind == TMPL_NAMESPACE) {
        const tmpl_dict *dict = kind == TMPL_DICT ? owner.as.dict : owner.as.attributes;
        SL_TRY(sl_tmpl_spend(run, dict->n / 16));
        const tmpl_entry *entry = sl_tmpl_dict_find_name(dict, *name);
        if (entry)
            *out = entry->value;
    }
    return SL_OK;
}

/* An index from the end is negative; false when out of range. */
static bool resolve_index(int64_t index, size_t n, size_t *out)
{
    if (index < 0)
        index += (int64_t)n;
    *out = (size_t)index;
    return index >= 0 && (size_t)index < n;
}

sl_status sl_tmpl_item(tmpl_run *run, tmpl_value owner, tmpl_value key, tmpl_value *out)
{
    tmpl_kind kind = (tmpl_kind)owner.kind;
    if (kind == TMPL_UNDEFINED)
        return sl_tmpl_undefined_error(run, owner);
    if (kind == TMPL_DICT && key.kind != TMPL_LIST && key.kind != TMPL_DICT) {
        tmpl_entry *entry;
        SL_TRY(sl_tmpl_dict_find(run, owner.as.dict, key, &entry));
        if (entry) {
            *out = entry->value;
            return SL_OK;
        }
    }
    if (key.kind == TMPL_STRING)
        return sl_tmpl_attribute(run, owner, &key.as.string->s, out);
    *out = tmpl_lacking(TMPL_LACK_ITEM, kind, NULL);
    int64_t index;
    size_t at;
    if (!sl_tmpl_as_int(key, &index))
        return SL_OK;
    if (kind == TMPL_LIST || kind == TMPL_TUPLE || kind == TMPL_RANGE) {
        if (resolve_index(index, owner.as.seq->n, &at))
            *out = sl_tmpl_seq_item(owner.as.seq, at);
    } else if (kind == TMPL_STRING) {
        tmpl_str *s = owner.as.string;
        SL_TRY(sl_tmpl_spend(run, s->s.n_bytes / 64));
        if (resolve_index(index, sl_tmpl_count_chars(s), &at))
            return sl_tmpl_slice_str(run, s, sl_tmpl_char_offset(s, at),
                                     sl_tmpl_char_offset(s, at + 1), out);
    }
    return SL_OK;
}

/* start, stop and step of a slice of n items, as Python resolves them; *count of items. */
static sl_status resolve_slice(tmpl_run *run, const tmpl_value bounds[3], size_t n, int64_t *start,
                               int64_t *step, size_t *count)
{
    int64_t given[3] = {0, 0, 1}, length = (int64_t)n;
    bool absent[3];
    for (int i = 0; i < 3; i++) {
        absent[i] = bounds[i].kind == TMPL_NONE;
        if (!absent[i] && !sl_tmpl_as_int(bounds[i], &given[i]))
            return bounds[i].kind == TMPL_UNDEFINED
                       ? sl_tmpl_undefined_error(run, bounds[i])
                       : sl_tmpl_fail(run, SL_ERR_ARGUMENT, "a slice needs integers, not %s",
                                      sl_tmpl_kind_name((tmpl_kind)bounds[i].kind));
    }
    *step = given[2];
    if (*step == 0)
        return sl_tmpl_fail(run, SL_ERR_ARGUMENT, "a slice with step 0");
    *step = *step > length ? length + 1 : *step < -length ? -length - 1 : *step;
    int64_t low = *step > 0 ? 0 : -1, high = *step > 0 ? length : length - 1;
    int64_t ends[2];
    for (int i = 0; i < 2; i++) {
        int64_t end = given[i];
        if (end < 0)
            end = end < -length ? -1 : end + length;
        ends[i] = end < low || (given[i] < 0 && given[i] < -length) ? low : end > high ? high : end;
    }
    *start = absent[0] ? (*step > 0 ? low : high) : ends[0];
    int64_t stop = absent[1] ? (*step > 0 ? high : low) : ends[1];
    int64_t distance = *step > 0 ? stop - *start : *start - stop;
    int64_t stride = *step > 0 ? *step : -*step;
    *count = distance > 0 ? (size_t)((distance - 1) / stride + 1) : 0;
    return SL_OK;
}

static sl_status slice_text(tmpl_run *run, tmpl_str *s, const tmpl_value bounds[3], tmpl_value *out)
{
    int64_t start, step;
    size_t count;
    SL_TRY(sl_tmpl_spend(run, s->s.n_bytes / 64));
    SL_TRY(resolve_slice(run, bounds, sl_tmpl_count_chars(s), &start, &step, &count));
    if (step == 1 || count == 0) {
        size_t begin = count > 0 ? (size_t)start : 0;
        return sl_tmpl_slice_str(run, s, sl_tmpl_char_offset(s, begin),
                                 sl_tmpl_char_offset(s, begin + count), out);
    }
    const tmpl_value *chars;
    size_t n;
    SL_TRY(sl_tmpl_items(run, tmpl_text(s), &chars, &n));
    tmpl_capture capture = sl_tmpl_capture(run);
    for (size_t i = 0; i < count; i++)
        SL_TRY(sl_tmpl_put_str(run, chars[start + step * (int64_t)i].as.string));
    SL_TRY(sl_tmpl_captured(run, capture, out));
    out->as.string->markup = s->markup;
    return SL_OK;
}

sl_status sl_tmpl_slice(tmpl_run *run, tmpl_value owner, const tmpl_value bounds[3],
                        tmpl_value *out)
{
    tmpl_kind kind = (tmpl_kind)owner.kind;
    if (kind == TMPL_UNDEFINED)
        return sl_tmpl_undefined_error(run, owner);
    if (kind == TMPL_STRING)
        return slice_text(run, owner.as.string, bounds, out);
    if (kind != TMPL_LIST && kind != TMPL_TUPLE && kind != TMPL_RANGE)
        return sl_tmpl_fail(run, SL_ERR_ARGUMENT, "%s cannot be sliced", sl_tmpl_kind_name(kind));
    const tmpl_seq *seq = owner.as.seq;
    int64_t start, step;
    size_t count;
    SL_TRY(resolve_slice(run, bounds, seq->n, &start, &step, &count));
    if (kind == TMPL_RANGE) {
        SL_TRY(sl_tmpl_new_seq(run, TMPL_RANGE, NULL, count, out));
        tmpl_seq *range = out->as.seq;
        range->items = NULL;
        range->start = seq->start + seq->step * start;
        range->step = seq->step * step;
        range->stop = range->start + range->step * (int64_t)count;
        return SL_OK;
    }
    if (step == 1 && count > 0) /* shares the items */
        return sl_tmpl_new_seq(run, kind, seq->items + start, count, out);
    tmpl_value *items;
    SL_TRY(sl_tmpl_new_items(run, kind, count, &items, out));
    for (size_t i = 0; i < count; i++)
        items[i] = seq->items[start + step * (int64_t)i];
    return SL_OK;
}
