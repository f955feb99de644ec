/* Truth, equality, order, membership and containers, as in Python. */
#include "text/template_run.h"

#include <string.h>

const char *sl_tmpl_kind_name(tmpl_kind kind)
{
    static const char *const names[] = {
        [TMPL_MISSING] = "nothing",
        [TMPL_UNDEFINED] = "Undefined",
        [TMPL_NONE] = "None",
        [TMPL_BOOL] = "bool",
        [TMPL_INT] = "int",
        [TMPL_FLOAT] = "float",
        [TMPL_STRING] = "str",
        [TMPL_LIST] = "list",
        [TMPL_TUPLE] = "tuple",
        [TMPL_RANGE] = "range",
        [TMPL_VIEW] = "dict view",
        [TMPL_ITERATOR] = "iterator",
        [TMPL_DICT] = "dict",
        [TMPL_NAMESPACE] = "namespace",
        [TMPL_FUNCTION] = "function",
        [TMPL_LOOP] = "loop",
        [TMPL_BIG_INT] = "int beyond 64 bits",
    };
    return names[kind];
}

sl_status sl_tmpl_undefined_error(tmpl_run *run, tmpl_value value)
{
    const sl_str name = value.as.name ? *value.as.name : (sl_str){"?", 1};
    int n = (int)sl_min_size(name.n_bytes, 100);
    const char *owner = sl_tmpl_kind_name((tmpl_kind)value.owner);
    switch ((tmpl_lack)value.lack) {
    case TMPL_LACK_NAME:
        return sl_tmpl_fail(run, SL_ERR_ARGUMENT, "'%.*s' is undefined", n, name.data);
    case TMPL_LACK_ATTRIBUTE:
        return sl_tmpl_fail(run, SL_ERR_ARGUMENT, "%s has no attribute '%.*s'", owner, n,
                            name.data);
    case TMPL_LACK_ITEM:
        return sl_tmpl_fail(run, SL_ERR_ARGUMENT, "%s has no such item", owner);
    case TMPL_LACK_UNSAFE:
        return sl_tmpl_fail(run, SL_ERR_UNSUPPORTED,
                            "%s.%.*s is not supported (values cannot be changed)", owner, n,
                            name.data);
    case TMPL_LACK_ARGUMENT:
        return sl_tmpl_fail(run, SL_ERR_ARGUMENT, "parameter '%.*s' was not given", n, name.data);
    case TMPL_LACK_ELSE:
        return sl_tmpl_fail(run, SL_ERR_ARGUMENT,
                            "the inline if is false and has no else: its value is undefined");
    case TMPL_LACK_EMPTY:
        return sl_tmpl_fail(run, SL_ERR_ARGUMENT, "an item of an empty sequence is undefined");
    case TMPL_LACK_NEIGHBOUR:
        break;
    }
    return sl_tmpl_fail(run, SL_ERR_ARGUMENT, "the loop has no such neighbouring item");
}

/* ---- sequences ---- */

tmpl_value sl_tmpl_seq_item(const tmpl_seq *seq, size_t index)
{
    if (seq->items)
        return seq->items[index];
    return tmpl_int(seq->start + seq->step * (int64_t)index);
}

sl_status sl_tmpl_new_seq(tmpl_run *run, tmpl_kind kind, const tmpl_value *items, size_t n,
                          tmpl_value *out)
{
    static const tmpl_value nothing;
    tmpl_seq *seq;
    SL_TRY(sl_tmpl_new(run, 1, sizeof *seq, &seq));
    *seq = (tmpl_seq){.items = items ? items : &nothing, .n = n};
    *out = (tmpl_value){.kind = (uint8_t)kind, .as.seq = seq};
    return SL_OK;
}

sl_status sl_tmpl_new_items(tmpl_run *run, tmpl_kind kind, size_t n, tmpl_value **items,
                            tmpl_value *out)
{
    SL_TRY(sl_tmpl_spend(run, n / 16));
    SL_TRY(sl_tmpl_new(run, n, sizeof **items, items));
    return sl_tmpl_new_seq(run, kind, *items, n, out);
}

/* The characters of a string, as strings. */
static sl_status characters(tmpl_run *run, tmpl_str *s, const tmpl_value **items, size_t *n)
{
    *n = sl_tmpl_count_chars(s);
    tmpl_value *chars;
    SL_TRY(sl_tmpl_spend(run, *n));
    SL_TRY(sl_tmpl_new(run, *n, sizeof *chars, &chars));
    tmpl_mark_cursor cursor = {s, 0};
    size_t begin = 0;
    for (size_t i = 0; i < *n; i++) {
        size_t end = begin + 1;
        while (end < s->s.n_bytes && ((unsigned char)s->s.data[end] & 0xC0) == 0x80)
            end++;
        SL_TRY(sl_tmpl_make_str(run, (sl_str){s->s.data + begin, end - begin},
                                sl_tmpl_marked_at(&cursor, begin), &chars[i]));
        begin = end;
    }
    *items = chars;
    return SL_OK;
}

sl_status sl_tmpl_items(tmpl_run *run, tmpl_value value, const tmpl_value **items, size_t *n)
{
    tmpl_value *copy;
    switch ((tmpl_kind)value.kind) {
    case TMPL_UNDEFINED:
        *items = NULL;
        *n = 0;
        return value.lack == TMPL_LACK_UNSAFE ? sl_tmpl_undefined_error(run, value) : SL_OK;
    case TMPL_STRING:
        return characters(run, value.as.string, items, n);
    case TMPL_LIST:
    case TMPL_TUPLE:
    case TMPL_VIEW:
        *items = value.as.seq->items;
        *n = value.as.seq->n;
        return SL_OK;
    case TMPL_ITERATOR:
        *items = value.as.seq->items + value.as.seq->at;
        *n = value.as.seq->n - value.as.seq->at;
        value.as.seq->at = value.as.seq->n;
        return SL_OK;
    case TMPL_RANGE:
        *n = value.as.seq->n;
        SL_TRY(sl_tmpl_spend(run, *n / 16));
        SL_TRY(sl_tmpl_new(run, *n, sizeof *copy, &copy));
        for (size_t i = 0; i < *n; i++)
            copy[i] = sl_tmpl_seq_item(value.as.seq, i);
        *items = copy;
        return SL_OK;
    case TMPL_DICT:
        *n = value.as.dict->n;
        SL_TRY(sl_tmpl_spend(run, *n / 16));
        SL_TRY(sl_tmpl_new(run, *n, sizeof *copy, &copy));
        for (size_t i = 0; i < *n; i++)
            copy[i] = value.as.dict->entries[i].key;
        *items = copy;
        return SL_OK;
    default:
        return sl_tmpl_fail(run, SL_ERR_ARGUMENT, "%s cannot be iterated over",
                            sl_tmpl_kind_name((tmpl_kind)value.kind));
    }
}

bool sl_tmpl_length(tmpl_value value, size_t *out)
{
    switch ((tmpl_kind)value.kind) {
    case TMPL_UNDEFINED:
        *out = 0;
        return true;
    case TMPL_STRING:
        *out = sl_tmpl_count_chars(value.as.string);
        return true;
    case TMPL_LIST:
    case TMPL_TUPLE:
    case TMPL_RANGE:
    case TMPL_VIEW:
        *out = value.as.seq->n;
        return true;
    case TMPL_DICT:
        *out = value.as.dict->n;
        return true;
    case TMPL_LOOP:
        *out = value.as.loop->n;
        return true;
    default:
        return false;
    }
}

bool sl_tmpl_truth(tmpl_value value)
{
    switch ((tmpl_kind)value.kind) {
    case TMPL_MISSING:
    case TMPL_UNDEFINED:
    case TMPL_NONE:
        return false;
    case TMPL_BOOL:
        return value.as.boolean;
    case TMPL_INT:
        return value.as.integer != 0;
    case TMPL_FLOAT:
        return value.as.real != 0;
    case TMPL_STRING:
        return value.as.string->s.n_bytes > 0;
    case TMPL_LIST:
    case TMPL_TUPLE:
    case TMPL_RANGE:
    case TMPL_VIEW:
        return value.as.seq->n > 0;
    case TMPL_DICT:
        return value.as.dict->n > 0;
    default:
        return true;
    }
}

/* ---- equality and order ---- */

static sl_status equal_seqs(tmpl_run *run, const tmpl_seq *a, const tmpl_seq *b, bool *out)
{
    *out = a->n == b->n;
    SL_TRY(sl_tmpl_spend(run, a->n / 16));
    for (size_t i = 0; i < a->n && *out; i++)
        SL_TRY(sl_tmpl_equal(run, sl_tmpl_seq_item(a, i), sl_tmpl_seq_item(b, i), out));
    return SL_OK;
}

static sl_status equal_dicts(tmpl_run *run, const tmpl_dict *a, const tmpl_dict *b, bool *out)
{
    *out = a->n == b->n;
    for (size_t i = 0; i < a->n && *out; i++) {
        tmpl_entry *entry;
        SL_TRY(sl_tmpl_dict_find(run, b, a->entries[i].key, &entry));
        *out = entry != NULL;
        if (entry)
            SL_TRY(sl_tmpl_equal(run, a->entries[i].value, entry->value, out));
    }
    return SL_OK;
}

sl_status sl_tmpl_equal(tmpl_run *run, tmpl_value a, tmpl_value b, bool *out)
{
    int order = sl_tmpl_compare_numbers(a, b);
    *out = order == 0;
    if (order != 2 || a.kind != b.kind)
        return SL_OK;
    SL_TRY(sl_tmpl_spend(run, 1));
    switch ((tmpl_kind)a.kind) {
    case TMPL_UNDEFINED:
    case TMPL_NONE:
        *out = true;
        return SL_OK;
    case TMPL_STRING:
        SL_TRY(sl_tmpl_spend(run, a.as.string->s.n_bytes / 256));
        *out = sl_str_equal(a.as.string->s, b.as.string->s);
        return SL_OK;
    case TMPL_LIST:
    case TMPL_TUPLE:
    case TMPL_RANGE:
        SL_TRY(sl_tmpl_enter(run));
        SL_TRY(equal_seqs(run, a.as.seq, b.as.seq, out));
        tmpl_leave(run);
        return SL_OK;
    case TMPL_DICT:
        SL_TRY(sl_tmpl_enter(run));
        SL_TRY(equal_dicts(run, a.as.dict, b.as.dict, out));
        tmpl_leave(run);
        return SL_OK;
    case TMPL_VIEW:
    case TMPL_ITERATOR:
        *out = a.as.seq == b.as.seq;
        return SL_OK;
    case TMPL_NAMESPACE:
        *out = a.as.attributes == b.as.attributes;
        return SL_OK;
    case TMPL_FUNCTION:
        *out = a.as.function == b.as.function;
        return SL_OK;
    case TMPL_LOOP:
        *out = a.as.loop == b.as.loop;
        return SL_OK;
    default: /* numbers, compared above; a NaN among them */
        return SL_OK;
    }
}

static int compare_str(sl_str a, sl_str b)
{
    size_t n = sl_min_size(a.n_bytes, b.n_bytes);
    int order = n > 0 ? memcmp(a.data, b.data, n) : 0;
    if (order == 0)
        return (a.n_bytes > b.n_bytes) - (a.n_bytes < b.n_bytes);
    return order < 0 ? -1 : 1;
}

static sl_status compare_seqs(tmpl_run *run, const tmpl_seq *a, const tmpl_seq *b, int *out)
{
    size_t n = sl_min_size(a->n, b->n);
    SL_TRY(sl_tmpl_spend(run, n / 16));
    for (size_t i = 0; i < n; i++) {
        bool equal;
        SL_TRY(sl_tmpl_equal(run, a->items[i], b->items[i], &equal));
        if (!equal)
            return sl_tmpl_compare(run, a->items[i], b->items[i], out);
    }
    *out = (a->n > b->n) - (a->n < b->n);
    return SL_OK;
}

sl_status sl_tmpl_compare(tmpl_run *run, tmpl_value a, tmpl_value b, int *out)
{
    SL_TRY(sl_tmpl_spend(run, 1));
    *out = sl_tmpl_compare_numbers(a, b);
    if (*out != 2)
        return SL_OK;
    if (sl_tmpl_is_number(a) && sl_tmpl_is_number(b)) /* a NaN */
        return SL_OK;
    if (a.kind == TMPL_UNDEFINED)
        return sl_tmpl_undefined_error(run, a);
    if (b.kind == TMPL_UNDEFINED)
        return sl_tmpl_undefined_error(run, b);
    if (a.kind == TMPL_STRING && b.kind == TMPL_STRING) {
        *out = compare_str(a.as.string->s, b.as.string->s);
        return sl_tmpl_spend(run, a.as.string->s.n_bytes / 256);
    }
    if (a.kind == b.kind && (a.kind == TMPL_LIST || a.kind == TMPL_TUPLE)) {
        SL_TRY(sl_tmpl_enter(run));
        SL_TRY(compare_seqs(run, a.as.seq, b.as.seq, out));
        tmpl_leave(run);
        return SL_OK;
    }
    return sl_tmpl_fail(run, SL_ERR_ARGUMENT, "%s and %s have no order",
                        sl_tmpl_kind_name((tmpl_kind)a.kind), sl_tmpl_kind_name((tmpl_kind)b.kind));
}

sl_status sl_tmpl_contains(tmpl_run *run, tmpl_value container, tmpl_value item, bool *out)
{
    *out = false;
    if (container.kind == TMPL_STRING) {
        if (item.kind != TMPL_STRING)
            return sl_tmpl_fail(run, SL_ERR_ARGUMENT, "'in' a string needs a string, not %s",
                                sl_tmpl_kind_name((tmpl_kind)item.kind));
        size_t at;
        SL_TRY(sl_tmpl_find_bytes(run, container.as.string->s, 0, item.as.string->s, &at));
        *out = at != SIZE_MAX;
        return SL_OK;
    }
    if (container.kind == TMPL_DICT) {
        tmpl_entry *entry;
        SL_TRY(sl_tmpl_dict_find(run, container.as.dict, item, &entry));
        *out = entry != NULL;
        return SL_OK;
    }
    const tmpl_value *items;
    size_t n, at = container.kind == TMPL_ITERATOR ? container.as.seq->at : 0;
    SL_TRY(sl_tmpl_items(run, container, &items, &n));
    SL_TRY(sl_tmpl_spend(run, n / 4));
    for (size_t i = 0; i < n && !*out; i++, at++)
        SL_TRY(sl_tmpl_equal(run, items[i], item, out));
    if (container.kind == TMPL_ITERATOR) /* was read up to the item */
        container.as.seq->at = at;
    return SL_OK;
}

/* ---- dicts ---- */

sl_status sl_tmpl_new_dict(tmpl_run *run, size_t capacity, tmpl_value *out)
{
    tmpl_dict *dict;
    SL_TRY(sl_tmpl_new(run, 1, sizeof *dict, &dict));
    *dict = (tmpl_dict){.capacity = capacity};
    SL_TRY(sl_tmpl_new(run, capacity, sizeof *dict->entries, &dict->entries));
    *out = (tmpl_value){.kind = TMPL_DICT, .as.dict = dict};
    return SL_OK;
}

static bool is_hashable(tmpl_value value)
{
    if (value.kind != TMPL_TUPLE)
        return value.kind != TMPL_LIST && value.kind != TMPL_DICT;
    for (size_t i = 0; i < value.as.seq->n; i++) {
        if (value.as.seq->items[i].kind == TMPL_TUPLE || !is_hashable(value.as.seq->items[i]))
            return false; /* no tuples of tuples as keys */
    }
    return true;
}

tmpl_entry *sl_tmpl_dict_find_name(const tmpl_dict *dict, sl_str name)
{
    for (size_t i = 0; i < dict->n; i++) {
        tmpl_entry *entry = &dict->entries[i];
        if (entry->key.kind == TMPL_STRING && sl_str_equal(entry->key.as.string->s, name))
            return entry;
    }
    return NULL;
}

sl_status sl_tmpl_dict_find(tmpl_run *run, const tmpl_dict *dict, tmpl_value key, tmpl_entry **out)
{
    *out = NULL;
    if (!is_hashable(key))
        return sl_tmpl_fail(run, SL_ERR_ARGUMENT, "%s cannot be a key of a dict",
                            sl_tmpl_kind_name((tmpl_kind)key.kind));
    SL_TRY(sl_tmpl_spend(run, dict->n / 8));
    if (key.kind == TMPL_STRING) {
        *out = sl_tmpl_dict_find_name(dict, key.as.string->s);
        return SL_OK;
    }
    for (size_t i = 0; i < dict->n && !*out; i++) {
        bool equal = false;
        if (dict->entries[i].key.kind != TMPL_STRING)
            SL_TRY(sl_tmpl_equal(run, dict->entries[i].key, key, &equal));
        if (equal)
            *out = &dict->entries[i];
    }
    return SL_OK;
}

sl_status sl_tmpl_dict_set(tmpl_run *run, tmpl_dict *dict, tmpl_value key, tmpl_value value)
{
    tmpl_entry *entry;
    SL_TRY(sl_tmpl_dict_find(run, dict, key, &entry));
    if (entry) {
        entry->value = value;
        return SL_OK;
    }
    if (dict->n == dict->capacity) {
        size_t capacity = sl_max_size(8, dict->capacity * 2);
        tmpl_entry *entries;
        SL_TRY(sl_tmpl_new(run, capacity, sizeof *entries, &entries));
        if (dict->n > 0)
            memcpy(entries, dict->entries, dict->n * sizeof *entries);
        dict->entries = entries;
        dict->capacity = capacity;
    }
    dict->entries[dict->n++] = (tmpl_entry){key, value};
    return SL_OK;
}

sl_status sl_tmpl_dict_items(tmpl_run *run, const tmpl_dict *dict, tmpl_kind kind, tmpl_value *out)
{
    tmpl_value *pairs;
    SL_TRY(sl_tmpl_spend(run, dict->n / 4));
    SL_TRY(sl_tmpl_new_items(run, kind, dict->n, &pairs, out));
    for (size_t i = 0; i < dict->n; i++) {
        tmpl_value *pair;
        SL_TRY(sl_tmpl_new_items(run, TMPL_TUPLE, 2, &pair, &pairs[i]));
        pair[0] = dict->entries[i].key;
        pair[1] = dict->entries[i].value;
    }
    return SL_OK;
}

/* ---- sorting ---- */

/* entries[begin..middle) and [middle..end), each in order, merged into out. */
static sl_status merge(tmpl_run *run, const tmpl_entry *entries, size_t begin, size_t middle,
                       size_t end, bool reverse, tmpl_entry *out)
{
    size_t i = begin, j = middle;
    for (size_t k = begin; k < end; k++) {
        bool right = i == middle;
        if (!right && j < end) {
            int order;
            SL_TRY(reverse ? sl_tmpl_compare(run, entries[i].key, entries[j].key, &order)
                           : sl_tmpl_compare(run, entries[j].key, entries[i].key, &order));
            right = order == -1;
        }
        out[k] = right ? entries[j++] : entries[i++];
    }
    return SL_OK;
}

sl_status sl_tmpl_sort(tmpl_run *run, tmpl_entry *entries, size_t n, bool reverse)
{
    tmpl_entry *other;
    SL_TRY(sl_tmpl_new(run, n, sizeof *other, &other));
    for (size_t width = 1; width < n; width *= 2) {
        for (size_t begin = 0; begin < n; begin += 2 * width)
            SL_TRY(merge(run, entries, begin, sl_min_size(n, begin + width),
                         sl_min_size(n, begin + 2 * width), reverse, other));
        memcpy(entries, other, n * sizeof *other);
    }
    return SL_OK;
}

/* ---- from JSON ---- */

static sl_status array_from_json(tmpl_run *run, const json_t *json, bool untrusted, tmpl_value *out)
{
    tmpl_value *items;
    size_t n = json_array_size(json);
    SL_TRY(sl_tmpl_new_items(run, TMPL_LIST, n, &items, out));
    for (size_t i = 0; i < n; i++)
        SL_TRY(sl_tmpl_from_json(run, json_array_get(json, i), untrusted, &items[i]));
    return SL_OK;
}

static sl_status object_from_json(tmpl_run *run, const json_t *json, bool untrusted,
                                  tmpl_value *out)
{
    SL_TRY(sl_tmpl_new_dict(run, json_object_size(json), out));
    tmpl_dict *dict = out->as.dict;
    json_t *object = (json_t *)(uintptr_t)json; /* jansson's iterators only read */
    for (void *at = json_object_iter(object); at; at = json_object_iter_next(object, at)) {
        sl_str key = {json_object_iter_key(at), json_object_iter_key_len(at)};
        tmpl_entry *entry = &dict->entries[dict->n];
        SL_TRY(sl_tmpl_make_str(run, key, untrusted, &entry->key));
        SL_TRY(sl_tmpl_from_json(run, json_object_iter_value(at), untrusted, &entry->value));
        dict->n++;
    }
    return SL_OK;
}

static sl_status string_from_json(tmpl_run *run, const json_t *json, bool untrusted,
                                  tmpl_value *out)
{
    size_t n;
    const char *digits = sl_json_big_int(json, &n);
    if (digits)
        return sl_tmpl_big_int(run, (sl_str){digits, n}, out);
    return sl_tmpl_make_str(run, (sl_str){json_string_value(json), json_string_length(json)},
                            untrusted, out);
}

sl_status sl_tmpl_from_json(tmpl_run *run, const json_t *json, bool untrusted, tmpl_value *out)
{
    switch (json_typeof(json)) {
    case JSON_NULL:
        *out = tmpl_none();
        return SL_OK;
    case JSON_TRUE:
    case JSON_FALSE:
        *out = tmpl_bool(json_is_true(json));
        return SL_OK;
    case JSON_INTEGER:
        *out = tmpl_int(json_integer_value(json));
        return SL_OK;
    case JSON_REAL:
        *out = tmpl_float(json_real_value(json));
        return SL_OK;
    case JSON_STRING:
        return string_from_json(run, json, untrusted, out);
    case JSON_ARRAY:
    case JSON_OBJECT:
        break;
    }
    SL_TRY(sl_tmpl_enter(run));
    SL_TRY(json_is_array(json) ? array_from_json(run, json, untrusted, out)
                               : object_from_json(run, json, untrusted, out));
    tmpl_leave(run);
    return SL_OK;
}
