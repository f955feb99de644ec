/* Filters on sequences and dicts. Where Jinja gives a generator, so does this: an iterator that can
 * be read once. It is computed at once, though; templates cannot tell. */
#include "text/template_filters.h"

#include <string.h>

static sl_status new_iterator(tmpl_run *run, const tmpl_list_builder *list, tmpl_value *out)
{
    return sl_tmpl_new_seq(run, TMPL_ITERATOR, list->items, list->n, out);
}

/* The items of what a filter works on; none for anything false when `lenient`. */
static sl_status items_of(tmpl_run *run, tmpl_value self, bool lenient, const tmpl_value **items,
                          size_t *n)
{
    *n = 0;
    if (lenient && !sl_tmpl_truth(self))
        return SL_OK;
    SL_TRY(sl_tmpl_items(run, self, items, n));
    return sl_tmpl_spend(run, 1 + *n / 4);
}

/* item.a.0.b for the attribute "a.0.b" (or an integer); `fallback` replaces what is undefined. */
static sl_status attribute_path(tmpl_run *run, tmpl_value item, tmpl_value attribute,
                                tmpl_value fallback, tmpl_value *out)
{
    *out = item;
    if (attribute.kind == TMPL_MISSING || attribute.kind == TMPL_NONE)
        return SL_OK;
    if (attribute.kind != TMPL_STRING)
        return sl_tmpl_item(run, item, attribute, out);
    sl_str path = attribute.as.string->s;
    for (size_t begin = 0; begin <= path.n_bytes;) {
        size_t end = begin;
        while (end < path.n_bytes && path.data[end] != '.')
            end++;
        sl_str part = {path.data + begin, end - begin};
        tmpl_value key;
        int64_t index;
        bool digits = part.n_bytes > 0 && part.data[0] >= '0' && part.data[0] <= '9';
        if (digits && sl_tmpl_parse_int(part, 10, &index))
            key = tmpl_int(index);
        else
            SL_TRY(sl_tmpl_make_str(run, part, false, &key));
        SL_TRY(sl_tmpl_item(run, *out, key, out));
        if (out->kind == TMPL_UNDEFINED && fallback.kind != TMPL_MISSING &&
            fallback.kind != TMPL_NONE)
            *out = fallback;
        begin = end + 1;
    }
    return SL_OK;
}

static sl_status fold_case(tmpl_run *run, tmpl_value *value)
{
    if (value->kind == TMPL_STRING)
        return sl_tmpl_change_case(run, value->as.string, TMPL_CASE_LOWER, value);
    return SL_OK;
}

static const tmpl_value missing; /* TMPL_MISSING */

/* What items are sorted and compared by. */
static sl_status sort_key(tmpl_run *run, tmpl_value item, tmpl_value attribute,
                          tmpl_value case_sensitive, tmpl_value *out)
{
    SL_TRY(attribute_path(run, item, attribute, missing, out));
    return sl_tmpl_truth(case_sensitive) ? SL_OK : fold_case(run, out);
}

/* ---- one item, or a number of them ---- */

static sl_status filter_length(tmpl_run *run, tmpl_value self, const tmpl_value *args,
                               tmpl_value *out)
{
    (void)args;
    size_t n;
    if (!sl_tmpl_length(self, &n))
        return sl_tmpl_fail(run, SL_ERR_ARGUMENT, "%s has no length",
                            sl_tmpl_kind_name((tmpl_kind)self.kind));
    *out = tmpl_int((int64_t)n);
    return SL_OK;
}

static sl_status filter_first(tmpl_run *run, tmpl_value self, const tmpl_value *args,
                              tmpl_value *out)
{
    (void)args;
    const tmpl_value *items;
    size_t n, at = self.kind == TMPL_ITERATOR ? self.as.seq->at : 0;
    SL_TRY(items_of(run, self, false, &items, &n));
    *out = n > 0 ? items[0] : tmpl_lacking(TMPL_LACK_EMPTY, TMPL_LIST, NULL);
    if (self.kind == TMPL_ITERATOR) /* takes one item, not all */
        self.as.seq->at = at + (n > 0);
    return SL_OK;
}

static sl_status filter_last(tmpl_run *run, tmpl_value self, const tmpl_value *args,
                             tmpl_value *out)
{
    (void)args;
    const tmpl_value *items;
    size_t n;
    if (self.kind == TMPL_ITERATOR)
        return sl_tmpl_fail(run, SL_ERR_ARGUMENT, "last does not apply to an iterator");
    SL_TRY(items_of(run, self, false, &items, &n));
    *out = n > 0 ? items[n - 1] : tmpl_lacking(TMPL_LACK_EMPTY, TMPL_LIST, NULL);
    return SL_OK;
}

static sl_status extreme(tmpl_run *run, tmpl_value self, const tmpl_value *args, int wanted,
                         tmpl_value *out)
{
    const tmpl_value *items;
    size_t n;
    tmpl_value best, key;
    SL_TRY(items_of(run, self, false, &items, &n));
    *out = tmpl_lacking(TMPL_LACK_EMPTY, TMPL_LIST, NULL);
    for (size_t i = 0; i < n; i++) {
        int order = wanted;
        SL_TRY(sort_key(run, items[i], args[1], args[0], &key));
        if (i > 0)
            SL_TRY(sl_tmpl_compare(run, key, best, &order));
        if (order == wanted) {
            best = key;
            *out = items[i];
        }
    }
    return SL_OK;
}
static sl_status filter_min(tmpl_run *run, tmpl_value self, const tmpl_value *args, tmpl_value *out)
{
    return extreme(run, self, args, -1, out);
}
static sl_status filter_max(tmpl_run *run, tmpl_value self, const tmpl_value *args, tmpl_value *out)
{
    return extreme(run, self, args, 1, out);
}

static sl_status filter_sum(tmpl_run *run, tmpl_value self, const tmpl_value *args, tmpl_value *out)
{
    const tmpl_value *items;
    size_t n;
    SL_TRY(items_of(run, self, false, &items, &n));
    tmpl_value sum = args[1].kind == TMPL_MISSING ? tmpl_int(0) : args[1];
    if (sum.kind == TMPL_STRING)
        return sl_tmpl_fail(run, SL_ERR_ARGUMENT, "sum does not apply to strings: use join");
    for (size_t i = 0; i < n; i++) {
        tmpl_value item;
        SL_TRY(attribute_path(run, items[i], args[0], missing, &item));
        SL_TRY(sl_tmpl_arithmetic(run, TMPL_OP_ADD, sum, item, &sum));
    }
    *out = sum;
    return SL_OK;
}

static sl_status filter_join(tmpl_run *run, tmpl_value self, const tmpl_value *args,
                             tmpl_value *out)
{
    static const tmpl_str nothing = {.s = {"", 0}};
    const tmpl_value *items;
    size_t n;
    const tmpl_str *separator = &nothing;
    if (args[0].kind != TMPL_MISSING) {
        tmpl_str *given;
        SL_TRY(sl_tmpl_to_str(run, args[0], &given));
        separator = given;
    }
    SL_TRY(items_of(run, self, false, &items, &n));
    if (args[1].kind == TMPL_MISSING || args[1].kind == TMPL_NONE)
        return sl_tmpl_join(run, separator, items, n, true, out);
    tmpl_value *attributes;
    SL_TRY(sl_tmpl_new(run, n, sizeof *attributes, &attributes));
    for (size_t i = 0; i < n; i++)
        SL_TRY(attribute_path(run, items[i], args[1], missing, &attributes[i]));
    return sl_tmpl_join(run, separator, attributes, n, true, out);
}

/* ---- the whole sequence, otherwise ---- */

static sl_status filter_list(tmpl_run *run, tmpl_value self, const tmpl_value *args,
                             tmpl_value *out)
{
    (void)args;
    const tmpl_value *items;
    size_t n;
    SL_TRY(items_of(run, self, false, &items, &n));
    return sl_tmpl_new_seq(run, TMPL_LIST, items, n, out);
}

static sl_status filter_reverse(tmpl_run *run, tmpl_value self, const tmpl_value *args,
                                tmpl_value *out)
{
    (void)args;
    if (self.kind == TMPL_STRING) {
        const tmpl_value bounds[3] = {tmpl_none(), tmpl_none(), tmpl_int(-1)};
        return sl_tmpl_slice(run, self, bounds, out);
    }
    const tmpl_value *items;
    size_t n;
    tmpl_value *reversed;
    tmpl_kind kind = self.kind == TMPL_ITERATOR ? TMPL_LIST : TMPL_ITERATOR;
    SL_TRY(items_of(run, self, false, &items, &n));
    SL_TRY(sl_tmpl_new_items(run, kind, n, &reversed, out));
    for (size_t i = 0; i < n; i++)
        reversed[i] = items[n - 1 - i];
    return SL_OK;
}

/* The keys of one item for the attributes "a,b": a tuple. */
static sl_status sort_keys(tmpl_run *run, tmpl_value item, const tmpl_value *args, tmpl_value *out)
{
    tmpl_list_builder keys = {.n = 0};
    tmpl_value key;
    if (args[2].kind != TMPL_STRING) {
        SL_TRY(sort_key(run, item, args[2], args[1], &key));
        SL_TRY(sl_tmpl_list_add(run, &keys, key));
        return sl_tmpl_new_seq(run, TMPL_TUPLE, keys.items, keys.n, out);
    }
    const tmpl_str *paths = args[2].as.string;
    for (size_t begin = 0; begin <= paths->s.n_bytes;) {
        size_t end = begin;
        while (end < paths->s.n_bytes && paths->s.data[end] != ',')
            end++;
        tmpl_value path;
        SL_TRY(sl_tmpl_slice_str(run, paths, begin, end, &path));
        SL_TRY(sort_key(run, item, path, args[1], &key));
        SL_TRY(sl_tmpl_list_add(run, &keys, key));
        begin = end + 1;
    }
    return sl_tmpl_new_seq(run, TMPL_TUPLE, keys.items, keys.n, out);
}

static sl_status filter_sort(tmpl_run *run, tmpl_value self, const tmpl_value *args,
                             tmpl_value *out)
{
    const tmpl_value *items;
    size_t n;
    tmpl_entry *entries;
    tmpl_value *sorted;
    SL_TRY(items_of(run, self, false, &items, &n));
    SL_TRY(sl_tmpl_new(run, n, sizeof *entries, &entries));
    for (size_t i = 0; i < n; i++) {
        entries[i].value = items[i];
        SL_TRY(sort_keys(run, items[i], args, &entries[i].key));
    }
    SL_TRY(sl_tmpl_sort(run, entries, n, sl_tmpl_truth(args[0])));
    SL_TRY(sl_tmpl_new_items(run, TMPL_LIST, n, &sorted, out));
    for (size_t i = 0; i < n; i++)
        sorted[i] = entries[i].value;
    return SL_OK;
}

static sl_status dict_needed(tmpl_run *run, const char *filter, tmpl_value self)
{
    if (self.kind == TMPL_UNDEFINED)
        return sl_tmpl_undefined_error(run, self);
    return sl_tmpl_fail(run, SL_ERR_ARGUMENT, "%s needs a mapping, not %s", filter,
                        sl_tmpl_kind_name((tmpl_kind)self.kind));
}

static sl_status filter_dictsort(tmpl_run *run, tmpl_value self, const tmpl_value *args,
                                 tmpl_value *out)
{
    if (self.kind != TMPL_DICT)
        return dict_needed(run, "dictsort", self);
    const tmpl_dict *dict = self.as.dict;
    bool by_value = args[1].kind == TMPL_STRING && sl_str_is(args[1].as.string->s, "value");
    if (args[1].kind != TMPL_MISSING && !by_value &&
        !(args[1].kind == TMPL_STRING && sl_str_is(args[1].as.string->s, "key")))
        return sl_tmpl_fail(run, SL_ERR_ARGUMENT, "dictsort: by must be 'key' or 'value'");
    tmpl_value pairs;
    tmpl_entry *entries;
    SL_TRY(sl_tmpl_dict_items(run, dict, TMPL_LIST, &pairs));
    SL_TRY(sl_tmpl_new(run, dict->n, sizeof *entries, &entries));
    for (size_t i = 0; i < dict->n; i++) {
        entries[i].value = pairs.as.seq->items[i];
        SL_TRY(sort_key(run, by_value ? dict->entries[i].value : dict->entries[i].key, missing,
                        args[0], &entries[i].key));
    }
    SL_TRY(sl_tmpl_sort(run, entries, dict->n, sl_tmpl_truth(args[2])));
    tmpl_value *sorted;
    SL_TRY(sl_tmpl_new_items(run, TMPL_LIST, dict->n, &sorted, out));
    for (size_t i = 0; i < dict->n; i++)
        sorted[i] = entries[i].value;
    return SL_OK;
}

static sl_status filter_items(tmpl_run *run, tmpl_value self, const tmpl_value *args,
                              tmpl_value *out)
{
    (void)args;
    if (self.kind == TMPL_UNDEFINED)
        return sl_tmpl_new_seq(run, TMPL_ITERATOR, NULL, 0, out);
    if (self.kind != TMPL_DICT)
        return dict_needed(run, "items", self);
    return sl_tmpl_dict_items(run, self.as.dict, TMPL_ITERATOR, out);
}

static sl_status filter_unique(tmpl_run *run, tmpl_value self, const tmpl_value *args,
                               tmpl_value *out)
{
    const tmpl_value *items;
    size_t n;
    tmpl_list_builder kept = {.n = 0};
    tmpl_value seen;
    SL_TRY(items_of(run, self, false, &items, &n));
    SL_TRY(sl_tmpl_new_dict(run, 0, &seen));
    for (size_t i = 0; i < n; i++) {
        tmpl_value key;
        tmpl_entry *entry;
        SL_TRY(sort_key(run, items[i], args[1], args[0], &key));
        SL_TRY(sl_tmpl_dict_find(run, seen.as.dict, key, &entry));
        if (entry)
            continue;
        SL_TRY(sl_tmpl_dict_set(run, seen.as.dict, key, tmpl_none()));
        SL_TRY(sl_tmpl_list_add(run, &kept, items[i]));
    }
    return new_iterator(run, &kept, out);
}

/* Lists of `linecount` items each; the last is filled up with `fill_with` if that is given. */
static sl_status filter_batch(tmpl_run *run, tmpl_value self, const tmpl_value *args,
                              tmpl_value *out)
{
    const tmpl_value *items;
    size_t n;
    int64_t size;
    tmpl_list_builder batches = {.n = 0};
    SL_TRY(items_of(run, self, false, &items, &n));
    if (!sl_tmpl_as_int(args[0], &size) || size <= 0)
        return sl_tmpl_fail(run, SL_ERR_ARGUMENT, "batch: linecount must be a positive integer");
    bool fill = args[1].kind != TMPL_MISSING && args[1].kind != TMPL_NONE;
    for (size_t begin = 0; begin < n;) {
        size_t count = sl_min_size(n - begin, (size_t)size);
        size_t length = fill ? (size_t)size : count;
        tmpl_value *batch, value;
        SL_TRY(sl_tmpl_new_items(run, TMPL_LIST, length, &batch, &value));
        for (size_t i = 0; i < length; i++)
            batch[i] = i < count ? items[begin + i] : args[1];
        SL_TRY(sl_tmpl_list_add(run, &batches, value));
        begin += count;
    }
    return new_iterator(run, &batches, out);
}

/* ---- map, select, reject ---- */

static const tmpl_arg *named_arg(const tmpl_call *call, const char *name)
{
    for (size_t i = call->n_positional; i < call->n; i++) {
        if (sl_str_is(call->args[i].name, name))
            return &call->args[i];
    }
    return NULL;
}

/* A filter or test named by an argument. */
static sl_status callable_named(tmpl_run *run, tmpl_value name, bool test,
                                const tmpl_callable **out)
{
    if (name.kind != TMPL_STRING)
        return sl_tmpl_fail(run, SL_ERR_ARGUMENT, "the name of a %s must be a string",
                            test ? "test" : "filter");
    sl_str s = name.as.string->s;
    *out = test ? sl_tmpl_find_test(s) : sl_tmpl_find_filter(s);
    if (!*out)
        return sl_tmpl_fail(run, SL_ERR_UNSUPPORTED, "%s '%.*s' is not supported",
                            test ? "test" : "filter", (int)sl_min_size(s.n_bytes, 60), s.data);
    return SL_OK;
}

/* The call without its first `n` positional arguments. */
static tmpl_call rest_of(const tmpl_call *call, size_t n)
{
    return (tmpl_call){call->args + n, call->n_positional - n, call->n - n};
}

static sl_status filter_map(tmpl_run *run, tmpl_value self, const tmpl_call *call, tmpl_value *out)
{
    const tmpl_arg *attribute = named_arg(call, "attribute"), *fallback = NULL;
    const tmpl_callable *filter = NULL;
    tmpl_call rest = {.n = 0};
    if (call->n_positional > 0) {
        SL_TRY(callable_named(run, call->args[0].value, false, &filter));
        rest = rest_of(call, 1);
    } else if (!attribute) {
        return sl_tmpl_fail(run, SL_ERR_ARGUMENT, "map needs a filter or an attribute");
    } else {
        fallback = named_arg(call, "default");
        if (call->n != (size_t)1 + (fallback != NULL))
            return sl_tmpl_fail(run, SL_ERR_ARGUMENT, "map has no such argument");
    }
    const tmpl_value *items;
    size_t n;
    tmpl_value *mapped;
    SL_TRY(items_of(run, self, true, &items, &n));
    SL_TRY(sl_tmpl_new_items(run, TMPL_ITERATOR, n, &mapped, out));
    SL_TRY(sl_tmpl_enter(run));
    for (size_t i = 0; i < n; i++) {
        if (filter)
            SL_TRY(sl_tmpl_invoke(run, filter, items[i], &rest, &mapped[i]));
        else
            SL_TRY(attribute_path(run, items[i], attribute->value,
                                  fallback ? fallback->value : missing, &mapped[i]));
    }
    tmpl_leave(run);
    return SL_OK;
}

/* Items whose truth, or whose attribute's, or the test of it, is `wanted`. */
static sl_status choose(tmpl_run *run, tmpl_value self, const tmpl_call *call, bool by_attribute,
                        bool wanted, tmpl_value *out)
{
    const tmpl_callable *test = NULL;
    size_t used = by_attribute;
    tmpl_call rest = {.n = 0};
    if (call->n_positional < used)
        return sl_tmpl_fail(run, SL_ERR_ARGUMENT, "the name of an attribute is missing");
    if (call->n_positional > used) {
        SL_TRY(callable_named(run, call->args[used].value, true, &test));
        rest = rest_of(call, used + 1);
    }
    const tmpl_value *items;
    size_t n;
    tmpl_list_builder chosen = {.n = 0};
    SL_TRY(items_of(run, self, true, &items, &n));
    for (size_t i = 0; i < n; i++) {
        tmpl_value value = items[i];
        if (by_attribute)
            SL_TRY(attribute_path(run, value, call->args[0].value, missing, &value));
        if (test)
            SL_TRY(sl_tmpl_invoke(run, test, value, &rest, &value));
        if (sl_tmpl_truth(value) == wanted)
            SL_TRY(sl_tmpl_list_add(run, &chosen, items[i]));
    }
    return new_iterator(run, &chosen, out);
}
static sl_status filter_select(tmpl_run *run, tmpl_value self, const tmpl_call *call,
                               tmpl_value *out)
{
    return choose(run, self, call, false, true, out);
}
static sl_status filter_reject(tmpl_run *run, tmpl_value self, const tmpl_call *call,
                               tmpl_value *out)
{
    return choose(run, self, call, false, false, out);
}
static sl_status filter_selectattr(tmpl_run *run, tmpl_value self, const tmpl_call *call,
                                   tmpl_value *out)
{
    return choose(run, self, call, true, true, out);
}
static sl_status filter_rejectattr(tmpl_run *run, tmpl_value self, const tmpl_call *call,
                                   tmpl_value *out)
{
    return choose(run, self, call, true, false, out);
}

static const tmpl_callable filters[] = {
    {"length", "", 0, filter_length, NULL},
    {"count", "", 0, filter_length, NULL},
    {"first", "", 0, filter_first, NULL},
    {"last", "", 0, filter_last, NULL},
    {"min", "case_sensitive attribute", 0, filter_min, NULL},
    {"max", "case_sensitive attribute", 0, filter_max, NULL},
    {"sum", "attribute start", 0, filter_sum, NULL},
    {"join", "d attribute", 0, filter_join, NULL},
    {"list", "", 0, filter_list, NULL},
    {"reverse", "", 0, filter_reverse, NULL},
    {"sort", "reverse case_sensitive attribute", 0, filter_sort, NULL},
    {"dictsort", "case_sensitive by reverse", 0, filter_dictsort, NULL},
    {"items", "", 0, filter_items, NULL},
    {"unique", "case_sensitive attribute", 0, filter_unique, NULL},
    {"batch", "linecount fill_with", 1, filter_batch, NULL},
    {"map", "", 0, NULL, filter_map},
    {"select", "", 0, NULL, filter_select},
    {"reject", "", 0, NULL, filter_reject},
    {"selectattr", "", 0, NULL, filter_selectattr},
    {"rejectattr", "", 0, NULL, filter_rejectattr},
};

const tmpl_callable *sl_tmpl_find_seq_filter(sl_str name)
{
    return sl_tmpl_find(filters, SL_COUNTOF(filters), name);
}
