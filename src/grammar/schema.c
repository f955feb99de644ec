/* JSON schemas to grammars: the list of rules to be defined, which keywords are known, choices and
 * listed values. Whatever is not known is refused by name and JSON pointer. */
#include "grammar/schema.h"

#include "base/mem.h"

static sl_status out_of_memory(sl_error *err)
{
    return sl_fail(err, SL_ERR_MEMORY, "out of memory for a schema");
}

/* ---- messages ---- */

sl_status sl_schema_fail(const sl_schema *s, sl_status status, const char *keyword,
                         const char *what, sl_error *err)
{
    const char *pointer = s->at ? s->at->pointer : "#";
    if (!keyword)
        return sl_fail(err, status, "JSON schema at \"%.300s\": %s", pointer, what);
    return sl_fail(err, status, "JSON schema at \"%.300s\", \"%.60s\": %s", pointer, keyword, what);
}

sl_status sl_schema_unsupported(const sl_schema *s, const char *keyword, const char *what,
                                sl_error *err)
{
    const char *pointer = s->at ? s->at->pointer : "#";
    return sl_fail(err, SL_ERR_UNSUPPORTED,
                   "JSON schema at \"%.300s\": \"%.60s\" is not supported here (%.150s)", pointer,
                   keyword, what);
}

/* ---- rules ---- */

static uint32_t hash_of(const char *key)
{
    uint64_t hash = 14695981039346656037u;
    for (; *key; key++)
        hash = (hash ^ (unsigned char)*key) * 1099511628211u;
    return (uint32_t)(hash ^ hash >> 32);
}

static uint32_t *slot_of(const sl_schema *s, const char *key)
{
    size_t i = hash_of(key) & (s->n_slots - 1);
    while (s->slots[i] != SL_NFA_NONE && strcmp(s->items[s->slots[i]].key, key) != 0)
        i = (i + 1) & (s->n_slots - 1);
    return &s->slots[i];
}

static sl_status make_room(sl_schema *s, sl_error *err)
{
    if (s->n_items < s->item_room)
        return SL_OK;
    const size_t room = s->item_room > 0 ? 2 * s->item_room : 64;
    const sl_schema_item *const old = s->items;
    const size_t at = s->at ? (size_t)(s->at - old) : 0;
    sl_schema_item *items = sl_realloc(SL_MEM_TEXT, s->items, room * sizeof *items);
    if (!items)
        return out_of_memory(err);
    s->items = items;
    s->item_room = room;
    if (s->at)
        s->at = &items[at];
    uint32_t *slots = sl_alloc(SL_MEM_TEXT, 2 * room * sizeof *slots);
    if (!slots)
        return out_of_memory(err);
    sl_free(s->slots);
    s->slots = slots;
    s->n_slots = 2 * room;
    memset(slots, 0xFF, s->n_slots * sizeof *slots);
    for (size_t i = s->first; i < s->n_items; i++)
        *slot_of(s, s->items[i].key) = (uint32_t)i;
    return SL_OK;
}

/* A new item of this text; takes the text over. */
static sl_status add_item(sl_schema *s, json_t *schema, const char *below, char *key,
                          uint32_t *rule, sl_error *err)
{
    sl_buf pointer;
    size_t n;
    sl_buf_init(&pointer, SL_MEM_TEXT, 1 << 16);
    sl_schema_item item = {.key = key};
    sl_status status = make_room(s, err);
    if (status == SL_OK && s->n_items == SL_SCHEMA_MAX_WORK)
        status = sl_schema_fail(s, SL_ERR_LIMIT, NULL, "more than 16384 different schemas", err);
    if (status == SL_OK)
        status = sl_buf_printf(&pointer, err, "%.400s%s%.250s", s->at ? s->at->pointer : "#",
                               s->at && *below ? "/" : "", below);
    if (status == SL_OK)
        item.pointer = sl_buf_take(&pointer, &n);
    if (status == SL_OK)
        status = sl_grammar_add_rule(s->grammar, sl_str_of(item.pointer), &item.rule, err);
    if (status != SL_OK) {
        sl_buf_free(&pointer);
        sl_free(item.pointer);
        sl_free(key);
        return status;
    }
    item.schema = json_incref(schema);
    *slot_of(s, key) = (uint32_t)s->n_items;
    s->items[s->n_items++] = item;
    *rule = item.rule;
    return SL_OK;
}

sl_status sl_schema_rule(sl_schema *s, json_t *schema, const char *below, uint32_t *rule,
                         sl_error *err)
{
    sl_buf text;
    size_t n;
    json_t *target = schema;
    const json_t *reference = json_object_get(schema, "$ref");
    if (json_is_string(reference) && sl_schema_is_only(schema, "$ref"))
        SL_TRY(sl_schema_resolve(s, json_string_value(reference), &target, err));
    sl_buf_init(&text, SL_MEM_TEXT, SL_SCHEMA_MAX_KEYS - s->n_key_bytes);
    const sl_status status = sl_json_append(&text, target, err);
    if (status != SL_OK) {
        sl_buf_free(&text);
        return status == SL_ERR_LIMIT
                   ? sl_schema_fail(s, status, NULL, "its parts are too large or nested too deep",
                                    err)
                   : status;
    }
    if (s->n_slots > 0) {
        const uint32_t slot = *slot_of(s, text.data);
        if (slot != SL_NFA_NONE) {
            *rule = s->items[slot].rule;
            sl_buf_free(&text);
            return SL_OK;
        }
    }
    s->n_key_bytes += text.n_bytes;
    return add_item(s, target, below, sl_buf_take(&text, &n), rule, err);
}

/* ---- parts ---- */

sl_status sl_schema_text(sl_schema *s, sl_frag *frag, const char *text, size_t n, sl_error *err)
{
    sl_frag more;
    SL_TRY(sl_nfa_bytes(&s->grammar->nfa, text, n, &more, err));
    *frag = sl_nfa_join(&s->grammar->nfa, *frag, more);
    return SL_OK;
}

sl_status sl_schema_call(sl_schema *s, sl_frag *frag, uint32_t rule, sl_error *err)
{
    sl_frag more;
    SL_TRY(sl_nfa_call(&s->grammar->nfa, SL_NFA_CALL, rule, &more, err));
    *frag = sl_nfa_join(&s->grammar->nfa, *frag, more);
    return SL_OK;
}

/* Nothing, a space, or a line break with at most 20 spaces: what people and models write, and no
 * loop. */
static sl_status define_space(sl_schema *s, sl_error *err)
{
    enum { MAX_INDENT = 20 };
    sl_nfa *nfa = &s->grammar->nfa;
    sl_frag choice, one, line, indent;
    SL_TRY(sl_nfa_choice(nfa, &choice, err));
    SL_TRY(sl_nfa_empty(nfa, &one, err));
    SL_TRY(sl_nfa_choose(nfa, &choice, one, err));
    SL_TRY(sl_nfa_bytes(nfa, " ", 1, &one, err));
    SL_TRY(sl_nfa_choose(nfa, &choice, one, err));
    SL_TRY(sl_nfa_bytes(nfa, "\n", 1, &line, err));
    SL_TRY(sl_nfa_bytes(nfa, " ", 1, &indent, err));
    SL_TRY(sl_nfa_repeat(nfa, &indent, 0, MAX_INDENT, err));
    SL_TRY(sl_nfa_choose(nfa, &choice, sl_nfa_join(nfa, line, indent), err));
    return sl_grammar_define(s->grammar, s->space, choice, err);
}

sl_status sl_schema_space(sl_schema *s, sl_frag *frag, sl_error *err)
{
    return sl_schema_call(s, frag, s->space, err);
}

sl_status sl_schema_count(const sl_schema *s, const json_t *schema, const char *keyword,
                          uint32_t fallback, uint32_t *out, sl_error *err)
{
    const json_t *value = json_object_get(schema, keyword);
    *out = fallback;
    if (!value)
        return SL_OK;
    const double number = json_number_value(value);
    if (!json_is_number(value) || number < 0 || number != (double)(int64_t)number)
        return sl_schema_fail(s, SL_ERR_FORMAT, keyword, "it must be a whole number from 0 on",
                              err);
    if (number > 1e9 && fallback == 0)
        return sl_schema_fail(s, SL_ERR_LIMIT, keyword, "more than 1000000000", err);
    *out = number > 1e9 ? fallback : (uint32_t)number;
    return SL_OK;
}

/* ---- types ---- */

static unsigned type_named(const char *name)
{
    static const struct {
        const char *name;
        unsigned types;
    } types[] = {{"null", SL_JSON_NULL},       {"boolean", SL_JSON_BOOLEAN},
                 {"integer", SL_JSON_INTEGER}, {"number", SL_JSON_NUMBER | SL_JSON_INTEGER},
                 {"string", SL_JSON_STRING},   {"array", SL_JSON_ARRAY},
                 {"object", SL_JSON_OBJECT},   {"any", SL_JSON_ANY}};
    for (size_t i = 0; i < SL_COUNTOF(types); i++) {
        if (strcmp(types[i].name, name) == 0)
            return types[i].types;
    }
    return 0;
}

/* Keywords that say something about values, and of which types. */
static const struct keyword {
    const char *name;
    unsigned types; /* 0: of all */
} keywords[] = {
    {"type", 0},
    {"enum", 0},
    {"const", 0},
    {"anyOf", 0},
    {"nullable", 0},
    {"properties", SL_JSON_OBJECT},
    {"required", SL_JSON_OBJECT},
    {"additionalProperties", SL_JSON_OBJECT},
    {"patternProperties", SL_JSON_OBJECT},
    {"propertyNames", SL_JSON_OBJECT},
    {"minProperties", SL_JSON_OBJECT},
    {"maxProperties", SL_JSON_OBJECT},
    {"items", SL_JSON_ARRAY},
    {"prefixItems", SL_JSON_ARRAY},
    {"additionalItems", SL_JSON_ARRAY},
    {"minItems", SL_JSON_ARRAY},
    {"maxItems", SL_JSON_ARRAY},
    {"uniqueItems", SL_JSON_ARRAY},
    {"minLength", SL_JSON_STRING},
    {"maxLength", SL_JSON_STRING},
    {"pattern", SL_JSON_STRING},
    {"format", SL_JSON_STRING},
    {"minimum", SL_JSON_NUMBER | SL_JSON_INTEGER},
    {"maximum", SL_JSON_NUMBER | SL_JSON_INTEGER},
    {"exclusiveMinimum", SL_JSON_NUMBER | SL_JSON_INTEGER},
    {"exclusiveMaximum", SL_JSON_NUMBER | SL_JSON_INTEGER},
    {"multipleOf", SL_JSON_NUMBER | SL_JSON_INTEGER},
};

static const struct keyword *find_keyword(const char *name)
{
    for (size_t i = 0; i < SL_COUNTOF(keywords); i++) {
        if (strcmp(keywords[i].name, name) == 0)
            return &keywords[i];
    }
    return NULL;
}

static sl_status types_given(const sl_schema *s, const json_t *type, unsigned *types, sl_error *err)
{
    *types = 0;
    const size_t n = json_is_array(type) ? json_array_size(type) : 1;
    for (size_t i = 0; i < n; i++) {
        const json_t *one = json_is_array(type) ? json_array_get(type, i) : type;
        const unsigned named = json_is_string(one) ? type_named(json_string_value(one)) : 0;
        if (named == 0)
            return sl_schema_fail(s, SL_ERR_FORMAT, "type", "there is no such type", err);
        *types |= named;
    }
    return SL_OK;
}

sl_status sl_schema_types(const sl_schema *s, const json_t *schema, unsigned *types, sl_error *err)
{
    const json_t *type = json_object_get(schema, "type");
    const char *key;
    json_t *value;
    if (type) {
        SL_TRY(types_given(s, type, types, err));
        if (json_is_true(json_object_get(schema, "nullable")))
            *types |= SL_JSON_NULL;
        return SL_OK;
    }
    *types = 0;
    json_object_foreach((json_t *)(uintptr_t)schema, key, value)
    {
        const struct keyword *keyword = find_keyword(key);
        *types |= keyword ? keyword->types : 0;
    }
    if (*types == 0)
        *types = SL_JSON_ANY;
    return SL_OK;
}

/* Every keyword is known, and what is asked of it can be done. */
static sl_status check_keywords(const sl_schema *s, const json_t *schema, sl_error *err)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)schema, key, value)
    {
        if (sl_schema_is_annotation(key) || strcmp(key, "$ref") == 0 || strcmp(key, "allOf") == 0 ||
            strcmp(key, "oneOf") == 0)
            continue;
        if (strcmp(key, "uniqueItems") == 0 && json_is_false(value))
            continue;
        if (!find_keyword(key) || strcmp(key, "uniqueItems") == 0)
            return sl_schema_unsupported(s, key, "no grammar is made of this keyword", err);
    }
    return SL_OK;
}

/* ---- listed values ---- */

typedef struct listing {
    sl_schema *s;
    const json_t *schema;
    unsigned types;
    bool any;
    sl_cdfa language; /* of strings */
    sl_frag choice;
} listing;

unsigned sl_schema_type_of(const json_t *value)
{
    switch (json_typeof(value)) {
    case JSON_NULL:
        return SL_JSON_NULL;
    case JSON_TRUE:
    case JSON_FALSE:
        return SL_JSON_BOOLEAN;
    case JSON_INTEGER:
        return SL_JSON_INTEGER;
    case JSON_REAL:
        return SL_JSON_NUMBER;
    case JSON_STRING:
        return sl_json_big_int(value, NULL) ? SL_JSON_INTEGER : SL_JSON_STRING;
    case JSON_ARRAY:
        return SL_JSON_ARRAY;
    default:
        return SL_JSON_OBJECT;
    }
}

/* Whether the keywords about the value's type allow it. */
static bool fits(const listing *l, const json_t *value)
{
    const unsigned type = sl_schema_type_of(value);
    if (!(type & l->types))
        return false;
    if (type == SL_JSON_STRING)
        return l->any || sl_cdfa_matches(&l->language, (sl_str){json_string_value(value),
                                                                json_string_length(value)});
    if (type & (SL_JSON_INTEGER | SL_JSON_NUMBER))
        return sl_schema_number_fits(l->schema, value);
    return true;
}

static sl_status add_value(listing *l, const json_t *value, sl_error *err)
{
    sl_nfa *nfa = &l->s->grammar->nfa;
    sl_frag literal;
    sl_buf text;
    if (!fits(l, value))
        return SL_OK;
    sl_buf_init(&text, SL_MEM_TEXT, SL_GRAMMAR_MAX_TEXT);
    sl_status status = sl_json_append(&text, value, err);
    if (status == SL_OK)
        status = sl_nfa_bytes(nfa, text.data, text.n_bytes, &literal, err);
    if (status == SL_OK)
        status = sl_nfa_choose(nfa, &l->choice, literal, err);
    sl_buf_free(&text);
    return status;
}

/* What else the schema says has to be something that can be asked of a value. */
static sl_status check_listed(const listing *l, const json_t *values, sl_error *err)
{
    unsigned asked = 0;
    const char *key;
    json_t *value;
    size_t i;
    json_object_foreach((json_t *)(uintptr_t)l->schema, key, value)
    {
        const struct keyword *keyword = find_keyword(key);
        const unsigned of = keyword ? keyword->types : 0;
        if (strcmp(key, "anyOf") == 0 || strcmp(key, "multipleOf") == 0)
            return sl_schema_unsupported(l->s, key, "beside listed values", err);
        asked |= of & (SL_JSON_OBJECT | SL_JSON_ARRAY);
    }
    json_array_foreach((json_t *)(uintptr_t)values, i, value)
    {
        if (sl_schema_type_of(value) & asked)
            return sl_schema_unsupported(l->s, "enum", "with more about its objects or arrays",
                                         err);
    }
    return SL_OK;
}

static sl_status list_values(listing *l, const json_t *values, const json_t *constant,
                             sl_error *err)
{
    size_t i;
    json_t *value;
    SL_TRY(check_listed(l, values, err));
    SL_TRY(sl_schema_language(l->s, l->schema, &l->any, &l->language, err));
    SL_TRY(sl_nfa_choice(&l->s->grammar->nfa, &l->choice, err));
    json_array_foreach((json_t *)(uintptr_t)values, i, value)
    {
        if (!constant || json_equal(value, constant))
            SL_TRY(add_value(l, value, err));
    }
    return SL_OK;
}

/* enum and const. */
static sl_status compile_values(sl_schema *s, const json_t *schema, sl_frag *out, sl_error *err)
{
    const json_t *list = json_object_get(schema, "enum"),
                 *constant = json_object_get(schema, "const");
    listing l = {.s = s, .schema = schema, .types = SL_JSON_ANY};
    if (list && !json_is_array(list))
        return sl_schema_fail(s, SL_ERR_FORMAT, "enum", "it must be an array", err);
    if (json_object_get(schema, "type"))
        SL_TRY(sl_schema_types(s, schema, &l.types, err));
    json_t *const one = list ? NULL : json_pack("[O]", constant);
    if (!list && !one)
        return out_of_memory(err);
    const sl_status status = list_values(&l, list ? list : one, constant, err);
    json_decref(one);
    sl_cdfa_free(&l.language);
    *out = l.choice;
    return status;
}

/* ---- choices and types ---- */

/* The branches of anyOf, each with everything else that the schema says. */
static sl_status compile_any_of(sl_schema *s, const json_t *schema, sl_frag *out, sl_error *err)
{
    json_t *const branches = json_object_get(schema, "anyOf");
    const size_t n = json_array_size(branches);
    if (!json_is_array(branches) || n == 0)
        return sl_schema_fail(s, SL_ERR_FORMAT, "anyOf", "it must be an array of schemas", err);
    if (n > SL_SCHEMA_MAX_BRANCHES)
        return sl_schema_fail(s, SL_ERR_LIMIT, "anyOf", "more than 1024 branches", err);
    json_t *const rest = json_copy((json_t *)(uintptr_t)schema);
    sl_status status = rest ? sl_nfa_choice(&s->grammar->nfa, out, err) : out_of_memory(err);
    if (status == SL_OK)
        json_object_del(rest, "anyOf");
    const bool alone = sl_schema_is_only(rest, NULL);
    for (size_t i = 0; i < n && status == SL_OK; i++) {
        json_t *const branch = json_array_get(branches, i);
        json_t *const whole =
            alone ? json_incref(branch) : json_pack("{s:[O, O]}", "allOf", rest, branch);
        sl_buf below;
        uint32_t rule;
        sl_frag call;
        sl_buf_init(&below, SL_MEM_TEXT, 64);
        status = whole ? sl_buf_printf(&below, err, "anyOf/%zu", i) : out_of_memory(err);
        if (status == SL_OK)
            status = sl_schema_rule(s, whole, below.data, &rule, err);
        if (status == SL_OK)
            status = sl_nfa_call(&s->grammar->nfa, SL_NFA_CALL, rule, &call, err);
        if (status == SL_OK)
            status = sl_nfa_choose(&s->grammar->nfa, out, call, err);
        sl_buf_free(&below);
        json_decref(whole);
    }
    json_decref(rest);
    return status;
}

static sl_status add_literal(sl_schema *s, const char *text, sl_frag *choice, sl_error *err)
{
    sl_frag literal;
    SL_TRY(sl_nfa_bytes(&s->grammar->nfa, text, strlen(text), &literal, err));
    return sl_nfa_choose(&s->grammar->nfa, choice, literal, err);
}

static sl_status compile_types(sl_schema *s, const json_t *schema, sl_frag *out, sl_error *err)
{
    sl_nfa *nfa = &s->grammar->nfa;
    sl_frag branch;
    unsigned types;
    SL_TRY(sl_schema_types(s, schema, &types, err));
    SL_TRY(sl_nfa_choice(nfa, out, err));
    if (types & SL_JSON_NULL)
        SL_TRY(add_literal(s, "null", out, err));
    if (types & SL_JSON_BOOLEAN) {
        SL_TRY(add_literal(s, "true", out, err));
        SL_TRY(add_literal(s, "false", out, err));
    }
    if (types & (SL_JSON_INTEGER | SL_JSON_NUMBER)) {
        SL_TRY(sl_schema_number(s, schema, !(types & SL_JSON_NUMBER), &branch, err));
        SL_TRY(sl_nfa_choose(nfa, out, branch, err));
    }
    if (types & SL_JSON_STRING) {
        SL_TRY(sl_schema_string(s, schema, &branch, err));
        SL_TRY(sl_nfa_choose(nfa, out, branch, err));
    }
    if (types & SL_JSON_ARRAY) {
        SL_TRY(sl_schema_array(s, schema, &branch, err));
        SL_TRY(sl_nfa_choose(nfa, out, branch, err));
    }
    if (types & SL_JSON_OBJECT) {
        SL_TRY(sl_schema_object(s, schema, &branch, err));
        SL_TRY(sl_nfa_choose(nfa, out, branch, err));
    }
    return SL_OK;
}

static sl_status compile_flat(sl_schema *s, const json_t *schema, sl_frag *out, sl_error *err)
{
    if (json_is_false(schema))
        return sl_nfa_never(&s->grammar->nfa, out, err);
    SL_TRY(check_keywords(s, schema, err));
    if (json_object_get(schema, "enum") || json_object_get(schema, "const"))
        return compile_values(s, schema, out, err);
    if (json_object_get(schema, "anyOf"))
        return compile_any_of(s, schema, out, err);
    return compile_types(s, schema, out, err);
}

/* A schema that is only allOf or $ref of one is that one. */
static sl_status compile(sl_schema *s, json_t *schema, sl_frag *out, sl_error *err)
{
    json_t *flat;
    if (json_is_true(schema)) {
        json_t *const anything = json_object();
        const sl_status status =
            anything ? compile_types(s, anything, out, err) : out_of_memory(err);
        json_decref(anything);
        return status;
    }
    if (!json_is_object(schema) && !json_is_false(schema))
        return sl_schema_fail(s, SL_ERR_FORMAT, NULL, "a schema is an object, true or false", err);
    if (json_is_object(schema))
        SL_TRY(check_keywords(s, schema, err));
    SL_TRY(sl_schema_flatten(s, schema, &flat, err));
    sl_status status;
    if (flat != schema && !json_is_false(flat)) { /* merged: known by its text, as any other */
        uint32_t rule;
        status = sl_schema_rule(s, flat, "", &rule, err);
        if (status == SL_OK)
            status = sl_nfa_call(&s->grammar->nfa, SL_NFA_CALL, rule, out, err);
    } else {
        status = compile_flat(s, flat, out, err);
    }
    json_decref(flat);
    return status;
}

/* ---- the whole ---- */

sl_status sl_schema_begin(sl_schema *s, sl_error *err)
{
    SL_TRY(sl_grammar_add_rule(s->grammar, sl_str_of("white space"), &s->space, err));
    return define_space(s, err);
}

sl_status sl_schema_define(sl_schema *s, size_t first, sl_error *err)
{
    for (size_t i = first; i < s->n_items; i++) {
        sl_frag body;
        s->at = &s->items[i];
        SL_TRY(compile(s, s->items[i].schema, &body, err));
        SL_TRY(sl_grammar_define(s->grammar, s->items[i].rule, body, err));
    }
    s->at = NULL;
    return SL_OK;
}

void sl_schema_forget(sl_schema *s)
{
    s->first = s->n_items;
    for (size_t i = 0; i < s->n_slots; i++)
        s->slots[i] = SL_NFA_NONE;
}

void sl_schema_free(sl_schema *s)
{
    for (size_t i = 0; i < s->n_items; i++) {
        json_decref(s->items[i].schema);
        sl_free(s->items[i].pointer);
        sl_free(s->items[i].key);
    }
    sl_free(s->items);
    sl_free(s->slots);
}

static sl_status compile_all(sl_schema *s, sl_error *err)
{
    uint32_t root;
    SL_TRY(sl_schema_rule(s, s->root, "", &root, err));
    SL_TRY(sl_schema_begin(s, err));
    SL_TRY(sl_schema_define(s, 0, err));
    return sl_grammar_finish(s->grammar, err);
}

static sl_status compile_root(json_t *root, sl_grammar **out, sl_error *err)
{
    sl_schema s = {.root = root, .space = SL_NFA_NONE, .character = SL_NFA_NONE};
    *out = NULL;
    SL_TRY(sl_grammar_new(&s.grammar, err));
    const sl_status status = compile_all(&s, err);
    sl_schema_free(&s);
    if (status != SL_OK) {
        sl_grammar_free(s.grammar);
        return status;
    }
    *out = s.grammar;
    return SL_OK;
}

sl_status sl_grammar_from_json_schema(sl_str schema, sl_grammar **out, sl_error *err)
{
    json_t *root;
    sl_json_limits limits = sl_json_limits_default();
    limits.max_bytes = SL_GRAMMAR_MAX_TEXT;
    limits.max_depth = SL_SCHEMA_MAX_DEPTH;
    *out = NULL;
    SL_TRY(sl_json_parse(schema.data, schema.n_bytes, "JSON schema", limits, &root, err));
    const sl_status status = compile_root(root, out, err);
    json_decref(root);
    return status;
}

sl_status sl_grammar_json_object(sl_grammar **out, sl_error *err)
{
    return sl_grammar_from_json_schema(sl_str_of("{\"type\": \"object\"}"), out, err);
}
