/* Objects and arrays of a schema. Properties come in the order of the schema, those that are not
 * required may be left out, and further ones follow. */
#include "base/mem.h"
#include "grammar/schema.h"

enum { MAX_PATTERNS = 16 };

/* One property in its place. */
typedef struct property {
    const char *name;
    json_t *schema; /* its own reference */
    bool required;
} property;

/* Keys that share a schema: those of a pattern, or all others. */
typedef struct key_group {
    sl_cdfa keys;
    bool any; /* without an automaton: all strings */
    json_t *schema;
} key_group;

typedef struct object {
    sl_schema *s;
    sl_nfa *nfa;
    const json_t *schema;
    property *properties;
    size_t n_properties;
    sl_cdfa patterns[MAX_PATTERNS];
    json_t *pattern_schemas[MAX_PATTERNS]; /* borrowed */
    size_t n_patterns;
    bool has_names;
    sl_cdfa names; /* what propertyNames allows */
    key_group groups[MAX_PATTERNS + 1];
    size_t n_groups;
} object;

static sl_status out_of_memory(sl_error *err)
{
    return sl_fail(err, SL_ERR_MEMORY, "out of memory for a schema");
}

/* ---- what there is ---- */

static bool is_required(const json_t *schema, const char *name)
{
    size_t i;
    json_t *one;
    json_array_foreach(json_object_get(schema, "required"), i, one)
    {
        if (json_is_string(one) && strcmp(json_string_value(one), name) == 0)
            return true;
    }
    return false;
}

static sl_status read_patterns(object *o, sl_error *err)
{
    json_t *all = json_object_get(o->schema, "patternProperties");
    const char *pattern;
    json_t *schema;
    if (all && !json_is_object(all))
        return sl_schema_fail(o->s, SL_ERR_FORMAT, "patternProperties", "it must be an object",
                              err);
    json_object_foreach(all, pattern, schema)
    {
        if (o->n_patterns == MAX_PATTERNS)
            return sl_schema_unsupported(o->s, "patternProperties", "more than 16 patterns", err);
        sl_cdfa *dfa = &o->patterns[o->n_patterns];
        const sl_status status = sl_cdfa_pattern(sl_str_of(pattern), dfa, err);
        if (status == SL_ERR_MEMORY)
            return status;
        if (status != SL_OK) {
            const sl_error inner = err ? *err : (sl_error){0};
            return sl_schema_fail(o->s, status, "patternProperties", inner.message, err);
        }
        o->pattern_schemas[o->n_patterns++] = schema;
    }
    return SL_OK;
}

static sl_status check_patterns_apart(const object *o, sl_error *err)
{
    for (size_t i = 0; i < o->n_patterns; i++) {
        for (size_t j = i + 1; j < o->n_patterns; j++) {
            sl_cdfa both;
            SL_TRY(sl_cdfa_intersect(&o->patterns[i], &o->patterns[j], &both, err));
            const bool apart = sl_cdfa_is_empty(&both);
            sl_cdfa_free(&both);
            if (!apart)
                return sl_schema_unsupported(o->s, "patternProperties",
                                             "two patterns that one name can match", err);
        }
    }
    return SL_OK;
}

/* The names that propertyNames allows. */
static sl_status read_names(object *o, sl_error *err)
{
    json_t *names = json_object_get(o->schema, "propertyNames");
    const char *key;
    json_t *value;
    static const char *const known[] = {"type", "pattern", "minLength", "maxLength", "format"};
    if (!names || json_is_true(names))
        return SL_OK;
    if (!json_is_object(names))
        return sl_schema_unsupported(o->s, "propertyNames", "false", err);
    json_object_foreach(names, key, value)
    {
        bool good = sl_schema_is_annotation(key);
        for (size_t i = 0; i < SL_COUNTOF(known); i++)
            good = good || strcmp(known[i], key) == 0;
        if (!good)
            return sl_schema_unsupported(o->s, "propertyNames", key, err);
    }
    bool any;
    SL_TRY(sl_schema_language(o->s, names, &any, &o->names, err));
    o->has_names = !any;
    return SL_OK;
}

/* A property with what every pattern that its name matches says too. */
static sl_status add_property(object *o, const char *name, json_t *schema, bool required,
                              sl_error *err)
{
    json_t *whole = json_incref(schema);
    for (size_t i = 0; i < o->n_patterns; i++) {
        if (!sl_cdfa_matches(&o->patterns[i], sl_str_of(name)))
            continue;
        json_t *both = json_pack("{s:[o, O]}", "allOf", whole, o->pattern_schemas[i]);
        if (!both)
            return out_of_memory(err);
        whole = both;
    }
    if (o->has_names && !sl_cdfa_matches(&o->names, sl_str_of(name))) {
        json_decref(whole);
        whole = json_false();
    }
    o->properties[o->n_properties++] = (property){name, whole, required};
    return SL_OK;
}

static sl_status read_properties(object *o, sl_error *err)
{
    json_t *properties = json_object_get(o->schema, "properties");
    json_t *required = json_object_get(o->schema, "required");
    json_t *others = json_object_get(o->schema, "additionalProperties");
    json_t *any = json_true();
    const char *name;
    json_t *schema, *one;
    size_t i;
    if (properties && !json_is_object(properties))
        return sl_schema_fail(o->s, SL_ERR_FORMAT, "properties", "it must be an object", err);
    if (required && !json_is_array(required) && !json_is_boolean(required)) /* draft 3 */
        return sl_schema_fail(o->s, SL_ERR_FORMAT, "required", "it must be an array", err);
    const size_t n = json_object_size(properties) + json_array_size(required);
    o->properties = sl_alloc_array(SL_MEM_TEXT, n, sizeof *o->properties);
    if (!o->properties)
        return out_of_memory(err);
    json_object_foreach(properties, name, schema)
    {
        SL_TRY(add_property(o, name, schema, is_required(o->schema, name), err));
    }
    json_array_foreach(required, i, one)
    {
        if (!json_is_string(one))
            return sl_schema_fail(o->s, SL_ERR_FORMAT, "required", "it must hold names", err);
        name = json_string_value(one);
        size_t j = 0;
        while (j < o->n_properties && strcmp(o->properties[j].name, name) != 0)
            j++;
        if (j < o->n_properties)
            continue;
        bool matched = false;
        for (size_t p = 0; p < o->n_patterns; p++)
            matched = matched || sl_cdfa_matches(&o->patterns[p], sl_str_of(name));
        SL_TRY(add_property(o, name, matched || !others ? any : others, true, err));
    }
    return SL_OK;
}

/* ---- keys of further properties ---- */

/* Takes `more` over, inverted if it says what is not wanted. */
static sl_status narrow(key_group *group, const sl_cdfa *more, bool inverted, sl_error *err)
{
    sl_cdfa both;
    sl_cdfa copy = *more; /* of the same tables */
    if (inverted)
        sl_cdfa_invert(&copy);
    const sl_cdfa *const left = group->any ? &copy : &group->keys;
    const sl_status status = sl_cdfa_intersect(left, &copy, &both, err);
    if (inverted)
        sl_cdfa_invert(&copy);
    SL_TRY(status);
    sl_cdfa_free(&group->keys);
    group->keys = both;
    group->any = false;
    return SL_OK;
}

/* The keys of pattern `which`, or of none of them; never one that has its own place. */
static sl_status add_group(object *o, size_t which, json_t *schema, const sl_cdfa *listed,
                           sl_error *err)
{
    if (json_is_false(schema))
        return SL_OK;
    key_group *group = &o->groups[o->n_groups++];
    *group = (key_group){.any = true, .schema = schema};
    if (o->has_names)
        SL_TRY(narrow(group, &o->names, false, err));
    for (size_t i = 0; i < o->n_patterns; i++) {
        if (which == i || which == o->n_patterns)
            SL_TRY(narrow(group, &o->patterns[i], which != i, err));
    }
    if (listed)
        SL_TRY(narrow(group, listed, true, err));
    if (!group->any && sl_cdfa_is_empty(&group->keys)) {
        sl_cdfa_free(&group->keys);
        o->n_groups--;
    }
    return SL_OK;
}

static sl_status find_groups(object *o, sl_error *err)
{
    json_t *others = json_object_get(o->schema, "additionalProperties");
    sl_cdfa listed = {0};
    sl_status status = SL_OK;
    if (others && !json_is_object(others) && !json_is_boolean(others))
        return sl_schema_fail(o->s, SL_ERR_FORMAT, "additionalProperties", "it must be a schema",
                              err);
    if (json_is_false(others) && o->n_patterns == 0)
        return SL_OK;
    SL_TRY(check_patterns_apart(o, err));
    if (o->n_properties > 0) {
        sl_str *names = sl_alloc_array(SL_MEM_TEXT, o->n_properties, sizeof *names);
        if (!names)
            return out_of_memory(err);
        for (size_t i = 0; i < o->n_properties; i++)
            names[i] = sl_str_of(o->properties[i].name);
        status = sl_cdfa_texts(names, o->n_properties, &listed, err);
        sl_free(names);
    }
    const sl_cdfa *const taken = o->n_properties > 0 ? &listed : NULL;
    for (size_t i = 0; i < o->n_patterns && status == SL_OK; i++)
        status = add_group(o, i, o->pattern_schemas[i], taken, err);
    if (status == SL_OK)
        status = add_group(o, o->n_patterns, others ? others : json_true(), taken, err);
    sl_cdfa_free(&listed);
    return status;
}

/* ---- from parts to nodes ---- */

/* The node goes to `entry` too. */
static sl_status also(sl_nfa *nfa, uint32_t node, uint32_t entry, sl_error *err)
{
    uint32_t split;
    const sl_nfa_node both = {.kind = SL_NFA_SPLIT, .next = nfa->nodes[node].next, .other = entry};
    SL_TRY(sl_nfa_add(nfa, both, &split, err));
    nfa->nodes[node].next = split;
    return SL_OK;
}

/* A comma and white space from one node to another. */
static sl_status comma(sl_schema *s, uint32_t from, uint32_t to, sl_error *err)
{
    sl_nfa *nfa = &s->grammar->nfa;
    sl_frag frag;
    SL_TRY(sl_nfa_empty(nfa, &frag, err));
    SL_TRY(sl_schema_text(s, &frag, ",", 1, err));
    SL_TRY(sl_schema_space(s, &frag, err));
    nfa->nodes[frag.exit].next = to;
    return also(nfa, from, frag.entry, err);
}

static sl_status value_of(object *o, json_t *schema, const char *below, sl_frag *frag,
                          sl_error *err)
{
    uint32_t rule;
    SL_TRY(sl_schema_text(o->s, frag, ":", 1, err));
    SL_TRY(sl_schema_space(o->s, frag, err));
    SL_TRY(sl_schema_rule(o->s, schema, below, &rule, err));
    return sl_schema_call(o->s, frag, rule, err);
}

static sl_status pair_of(object *o, const property *p, sl_frag *out, sl_error *err)
{
    sl_buf key;
    sl_buf_init(&key, SL_MEM_TEXT, SL_GRAMMAR_MAX_TEXT);
    sl_status status = sl_nfa_empty(o->nfa, out, err);
    if (status == SL_OK)
        status = sl_json_append_string(&key, p->name, strlen(p->name), err);
    if (status == SL_OK)
        status = sl_schema_text(o->s, out, key.data, key.n_bytes, err);
    sl_buf_clear(&key);
    if (status == SL_OK)
        status = sl_buf_printf(&key, err, "properties/%.200s", p->name);
    if (status == SL_OK)
        status = value_of(o, p->schema, key.data, out, err);
    sl_buf_free(&key);
    return status;
}

/* Any further property. */
static sl_status other_pair(object *o, sl_frag *out, sl_error *err)
{
    SL_TRY(sl_nfa_choice(o->nfa, out, err));
    for (size_t i = 0; i < o->n_groups; i++) {
        const key_group *group = &o->groups[i];
        sl_frag pair;
        SL_TRY(sl_schema_string_of(o->s, group->any ? NULL : &group->keys, &pair, err));
        SL_TRY(value_of(o, group->schema, "additionalProperties", &pair, err));
        SL_TRY(sl_nfa_choose(o->nfa, out, pair, err));
    }
    return SL_OK;
}

/* Two nodes for each place: `none` while there was no property yet, `some` after one. */
typedef struct places {
    uint32_t none, some;
} places;

static sl_status new_places(object *o, places *out, sl_error *err)
{
    sl_frag none, some;
    SL_TRY(sl_nfa_empty(o->nfa, &none, err));
    SL_TRY(sl_nfa_empty(o->nfa, &some, err));
    *out = (places){none.entry, some.entry};
    return SL_OK;
}

static sl_status add_pair(object *o, const property *p, places *at, sl_error *err)
{
    places next;
    sl_frag pair;
    SL_TRY(pair_of(o, p, &pair, err));
    SL_TRY(new_places(o, &next, err));
    o->nfa->nodes[pair.exit].next = next.some;
    SL_TRY(also(o->nfa, at->none, pair.entry, err));
    SL_TRY(comma(o->s, at->some, pair.entry, err));
    if (!p->required) {
        SL_TRY(also(o->nfa, at->none, next.none, err));
        SL_TRY(also(o->nfa, at->some, next.some, err));
    }
    *at = next;
    return SL_OK;
}

/* Between low and high further properties. */
static sl_status add_others(object *o, uint32_t low, uint32_t high, places *at, sl_error *err)
{
    for (uint32_t i = 0; i < low || (high != SL_NFA_INF && i < high); i++) {
        places next;
        sl_frag pair;
        SL_TRY(other_pair(o, &pair, err));
        SL_TRY(new_places(o, &next, err));
        o->nfa->nodes[pair.exit].next = next.some;
        SL_TRY(also(o->nfa, at->none, pair.entry, err));
        SL_TRY(comma(o->s, at->some, pair.entry, err));
        if (i >= low) {
            SL_TRY(also(o->nfa, at->none, next.none, err));
            SL_TRY(also(o->nfa, at->some, next.some, err));
        }
        *at = next;
    }
    if (high != SL_NFA_INF || o->n_groups == 0)
        return SL_OK;
    sl_frag pair;
    SL_TRY(other_pair(o, &pair, err));
    o->nfa->nodes[pair.exit].next = at->some;
    SL_TRY(also(o->nfa, at->none, pair.entry, err));
    return comma(o->s, at->some, pair.entry, err);
}

/* How many further properties there may be for minProperties and maxProperties to hold; *some: one
 * at least, of whatever kind. */
static sl_status count_others(const object *o, uint32_t *low, uint32_t *high, bool *some,
                              sl_error *err)
{
    uint32_t min, max, n_required = 0;
    const uint32_t n = (uint32_t)o->n_properties;
    SL_TRY(sl_schema_count(o->s, o->schema, "minProperties", 0, &min, err));
    SL_TRY(sl_schema_count(o->s, o->schema, "maxProperties", SL_NFA_INF, &max, err));
    for (size_t i = 0; i < o->n_properties; i++)
        n_required += o->properties[i].required;
    *low = 0;
    *high = o->n_groups > 0 ? SL_NFA_INF : 0;
    *some = min == 1 && n_required == 0;
    if (min > n_required && min > 1) {
        if (n_required < n || min > n_required + 1)
            return sl_schema_unsupported(o->s, "minProperties",
                                         "more than the required properties and one more", err);
        *low = min - n_required;
    }
    if (max != SL_NFA_INF && (o->n_groups > 0 || max < n)) {
        if (n_required < n)
            return sl_schema_unsupported(o->s, "maxProperties",
                                         "beside properties that may be left out", err);
        if (max < n_required || max - n_required < *low)
            *low = SL_NFA_INF; /* nothing fits */
        else
            *high = max - n_required;
    }
    if (*low != SL_NFA_INF && *high != SL_NFA_INF && *high > SL_SCHEMA_MAX_ITEMS)
        return sl_schema_fail(o->s, SL_ERR_LIMIT, "maxProperties", "more than 4096", err);
    return SL_OK;
}

static sl_status write_object(object *o, sl_frag *out, sl_error *err)
{
    uint32_t low, high;
    bool some;
    places at;
    sl_frag close, empty;
    SL_TRY(count_others(o, &low, &high, &some, err));
    if (low == SL_NFA_INF)
        return sl_nfa_never(o->nfa, out, err);
    SL_TRY(sl_nfa_bytes(o->nfa, "{", 1, out, err));
    SL_TRY(sl_schema_space(o->s, out, err));
    SL_TRY(new_places(o, &at, err));
    o->nfa->nodes[out->exit].next = at.none;
    for (size_t i = 0; i < o->n_properties; i++)
        SL_TRY(add_pair(o, &o->properties[i], &at, err));
    SL_TRY(add_others(o, low, high, &at, err));
    SL_TRY(sl_nfa_empty(o->nfa, &close, err));
    SL_TRY(sl_schema_space(o->s, &close, err));
    SL_TRY(sl_schema_text(o->s, &close, "}", 1, err));
    SL_TRY(also(o->nfa, at.some, close.entry, err));
    if (!some) { /* white space was read already */
        SL_TRY(sl_nfa_bytes(o->nfa, "}", 1, &empty, err));
        o->nfa->nodes[empty.exit].next = close.exit;
        SL_TRY(also(o->nfa, at.none, empty.entry, err));
    }
    out->exit = close.exit;
    return SL_OK;
}

static void free_object(object *o)
{
    for (size_t i = 0; i < o->n_properties; i++)
        json_decref(o->properties[i].schema);
    for (size_t i = 0; i < o->n_patterns; i++)
        sl_cdfa_free(&o->patterns[i]);
    for (size_t i = 0; i < o->n_groups; i++)
        sl_cdfa_free(&o->groups[i].keys);
    sl_cdfa_free(&o->names);
    sl_free(o->properties);
    sl_free(o);
}

sl_status sl_schema_object(sl_schema *s, const json_t *schema, sl_frag *out, sl_error *err)
{
    object *o = sl_alloc_zero(SL_MEM_TEXT, sizeof *o);
    if (!o)
        return out_of_memory(err);
    o->s = s;
    o->nfa = &s->grammar->nfa;
    o->schema = schema;
    sl_status status = read_patterns(o, err);
    if (status == SL_OK)
        status = read_names(o, err);
    if (status == SL_OK)
        status = read_properties(o, err);
    if (status == SL_OK)
        status = find_groups(o, err);
    if (status == SL_OK)
        status = write_object(o, out, err);
    free_object(o);
    return status;
}

/* ---- arrays ---- */

typedef struct items {
    json_t *first, *rest; /* the array of those with a place, and the schema of all others */
    size_t n_first;
    bool has_rest;
} items;

static sl_status read_items(const sl_schema *s, const json_t *schema, items *out, sl_error *err)
{
    json_t *rest = json_object_get(schema, "items");
    *out = (items){.first = json_object_get(schema, "prefixItems"), .rest = rest};
    if (out->first && !json_is_array(out->first))
        return sl_schema_fail(s, SL_ERR_FORMAT, "prefixItems", "it must be an array", err);
    if (!out->first && json_is_array(rest)) { /* drafts up to 2019-09 */
        out->first = rest;
        out->rest = json_object_get(schema, "additionalItems");
    } else if (json_object_get(schema, "additionalItems") && !json_is_object(rest) && rest) {
        return sl_schema_unsupported(s, "additionalItems", "beside items that are no array", err);
    }
    if (!out->rest)
        out->rest = json_true();
    out->n_first = json_array_size(out->first);
    out->has_rest = !json_is_false(out->rest);
    return SL_OK;
}

static sl_status add_item(sl_schema *s, const items *all, size_t i, places *at, uint32_t back,
                          sl_error *err)
{
    sl_nfa *nfa = &s->grammar->nfa;
    sl_frag item;
    uint32_t rule;
    sl_buf below;
    sl_buf_init(&below, SL_MEM_TEXT, 64);
    const bool placed = i < all->n_first;
    sl_status status = placed ? sl_buf_printf(&below, err, "prefixItems/%zu", i)
                              : sl_buf_append_str(&below, "items", err);
    if (status == SL_OK)
        status = sl_schema_rule(s, placed ? json_array_get(all->first, i) : all->rest, below.data,
                                &rule, err);
    sl_buf_free(&below);
    SL_TRY(status);
    SL_TRY(sl_nfa_call(nfa, SL_NFA_CALL, rule, &item, err));
    nfa->nodes[item.exit].next = back;
    SL_TRY(also(nfa, at->none, item.entry, err));
    return comma(s, at->some, item.entry, err);
}

sl_status sl_schema_array(sl_schema *s, const json_t *schema, sl_frag *out, sl_error *err)
{
    sl_nfa *nfa = &s->grammar->nfa;
    items all;
    uint32_t min, max;
    sl_frag close, empty, end;
    object o = {.nfa = nfa};
    places at, next;
    SL_TRY(read_items(s, schema, &all, err));
    SL_TRY(sl_schema_count(s, schema, "minItems", 0, &min, err));
    SL_TRY(sl_schema_count(s, schema, "maxItems", SL_NFA_INF, &max, err));
    if (!all.has_rest && max > all.n_first)
        max = (uint32_t)all.n_first;
    const bool endless = max == SL_NFA_INF;
    const size_t n = endless ? sl_max_size(min, all.n_first) : max;
    if (min > max)
        return sl_nfa_never(nfa, out, err);
    if (n > SL_SCHEMA_MAX_ITEMS)
        return sl_schema_fail(s, SL_ERR_LIMIT, endless ? "minItems" : "maxItems",
                              "more than 4096 items are counted", err);
    SL_TRY(sl_nfa_bytes(nfa, "[", 1, out, err));
    SL_TRY(sl_schema_space(s, out, err));
    SL_TRY(sl_nfa_empty(nfa, &close, err));
    end = close;
    SL_TRY(sl_schema_space(s, &end, err));
    SL_TRY(sl_schema_text(s, &end, "]", 1, err));
    SL_TRY(new_places(&o, &at, err));
    nfa->nodes[out->exit].next = at.none;
    for (size_t i = 0;; i++) {
        if (i == 0 && min == 0) {
            SL_TRY(sl_nfa_bytes(nfa, "]", 1, &empty, err));
            nfa->nodes[empty.exit].next = end.exit;
            SL_TRY(also(nfa, at.none, empty.entry, err));
        } else if (i >= min) {
            SL_TRY(also(nfa, at.some, close.entry, err));
        }
        if (i == n)
            break;
        SL_TRY(new_places(&o, &next, err));
        SL_TRY(add_item(s, &all, i, &at, next.some, err));
        at = next;
    }
    if (endless) {
        if (n == 0) { /* the first has no comma before it */
            SL_TRY(also(nfa, at.some, close.entry, err));
        }
        SL_TRY(add_item(s, &all, n, &at, at.some, err));
    }
    out->exit = end.exit;
    return SL_OK;
}
