/* Schemas that say several things at once, brought into one: references with siblings, allOf, and
 * choices (anyOf, oneOf) beside other keywords. Owns what each keyword becomes when two schemas
 * have it, and when the branches of oneOf are certain to exclude each other. */
#include "base/mem.h"
#include "grammar/schema.h"

enum { MAX_HOPS = 32, MAX_ONE_OF = 256, MAX_DISJOINT_DEPTH = 4, MAX_LOOKS = 1 << 20 };

static sl_status out_of_memory(sl_error *err)
{
    return sl_fail(err, SL_ERR_MEMORY, "out of memory for a schema");
}

/* ---- what says nothing about values ---- */

bool sl_schema_is_annotation(const char *keyword)
{
    static const char *const names[] = {"title",
                                        "description",
                                        "default",
                                        "examples",
                                        "example",
                                        "$comment",
                                        "$schema",
                                        "$id",
                                        "$defs",
                                        "definitions",
                                        "deprecated",
                                        "readOnly",
                                        "writeOnly",
                                        "$vocabulary",
                                        "contentMediaType",
                                        "externalDocs",
                                        "xml",
                                        "contentEncoding",
                                        "propertyOrdering",
                                        "strict",
                                        "markdownDescription",
                                        "enumDescriptions",
                                        "$anchor",
                                        "discriminator",
                                        "contentSchema"};
    if (strncmp(keyword, "x-", 2) == 0)
        return true;
    for (size_t i = 0; i < SL_COUNTOF(names); i++) {
        if (strcmp(names[i], keyword) == 0)
            return true;
    }
    return false;
}

bool sl_schema_is_only(const json_t *schema, const char *keyword)
{
    const char *key;
    json_t *value;
    if (!json_is_object(schema))
        return false;
    json_object_foreach((json_t *)(uintptr_t)schema, key, value)
    {
        if (!sl_schema_is_annotation(key) && (!keyword || strcmp(key, keyword) != 0))
            return false;
    }
    return true;
}

/* ---- references ---- */

/* The next part of a JSON pointer, unescaped; false for a bad escape. */
static bool read_token(const char **at, sl_buf *token, sl_error *err, sl_status *status)
{
    sl_buf_clear(token);
    const char *p = *at;
    for (; *p && *p != '/' && *status == SL_OK; p++) {
        char c = *p;
        if (c == '~' && (p[1] == '0' || p[1] == '1')) {
            c = *++p == '0' ? '~' : '/';
        } else if (c == '%' && p[1] && p[2]) {
            static const char hex[] = "0123456789abcdef";
            const char *high = strchr(hex, p[1] | 32), *low = strchr(hex, p[2] | 32);
            if (!high || !low)
                return false;
            c = (char)((high - hex) * 16 + (low - hex));
            p += 2;
        }
        *status = sl_buf_append_char(token, c, err);
    }
    *at = p;
    return true;
}

static json_t *child_of(json_t *value, const char *token)
{
    if (json_is_object(value))
        return json_object_get(value, token);
    if (!json_is_array(value) || !*token)
        return NULL;
    size_t index = 0;
    for (const char *c = token; *c; c++) {
        if (*c < '0' || *c > '9' || index > json_array_size(value))
            return NULL;
        index = 10 * index + (size_t)(*c - '0');
    }
    return json_array_get(value, index);
}

sl_status sl_schema_resolve(const sl_schema *s, const char *reference, json_t **out, sl_error *err)
{
    if (reference[0] != '#' || (reference[1] != '\0' && reference[1] != '/'))
        return sl_schema_unsupported(s, "$ref", "only references inside of the schema, \"#/...\"",
                                     err);
    sl_buf token;
    sl_status status = SL_OK;
    sl_buf_init(&token, SL_MEM_TEXT, SL_GRAMMAR_MAX_TEXT);
    json_t *value = s->root;
    const char *at = reference + 1;
    bool good = true;
    while (good && value && *at == '/' && status == SL_OK) {
        at++;
        good = read_token(&at, &token, err, &status);
        if (good && status == SL_OK)
            value = child_of(value, token.data);
    }
    sl_buf_free(&token);
    SL_TRY(status);
    if (!good || !value)
        return sl_schema_fail(s, SL_ERR_FORMAT, "$ref", "it leads nowhere", err);
    *out = value;
    return SL_OK;
}

/* Follows references that have no siblings. */
static sl_status target_of(const sl_schema *s, json_t *schema, json_t **out, sl_error *err)
{
    for (int hop = 0; hop < MAX_HOPS; hop++) {
        const json_t *reference = json_object_get(schema, "$ref");
        if (!reference || !sl_schema_is_only(schema, "$ref")) {
            *out = schema;
            return SL_OK;
        }
        if (!json_is_string(reference))
            return sl_schema_fail(s, SL_ERR_FORMAT, "$ref", "it must be a string", err);
        SL_TRY(sl_schema_resolve(s, json_string_value(reference), &schema, err));
    }
    return sl_schema_unsupported(s, "$ref", "references that lead in a circle", err);
}

/* ---- merging two schemas ---- */

static sl_status set_new(json_t *object, const char *key, json_t *value, sl_error *err)
{
    return value && json_object_set_new(object, key, value) == 0 ? SL_OK : out_of_memory(err);
}

/* {"allOf": [a, b]}: merged when its turn comes. */
static json_t *both_of(const json_t *a, const json_t *b)
{
    if (json_equal(a, b))
        return json_incref((json_t *)(uintptr_t)a);
    return json_pack("{s:[O, O]}", "allOf", a, b);
}

/* What additionalProperties says of a property that a schema does not list; NULL: nothing. */
static const json_t *of_others(const json_t *schema, const char *name)
{
    const json_t *properties = json_object_get(schema, "properties");
    if (properties && json_object_get(properties, name))
        return NULL;
    return json_object_get(schema, "additionalProperties");
}

static sl_status merge_properties(const json_t *a, const json_t *b, json_t *out, sl_error *err)
{
    const json_t *const sides[] = {a, b};
    json_t *merged = json_object();
    sl_status status = set_new(out, "properties", merged, err);
    for (int i = 0; i < 2 && status == SL_OK; i++) {
        const char *name;
        json_t *property;
        json_t *properties = json_object_get(sides[i], "properties");
        json_object_foreach(properties, name, property)
        {
            if (json_object_get(merged, name))
                continue;
            const json_t *other =
                json_object_get(json_object_get(sides[1 - i], "properties"), name);
            if (!other)
                other = of_others(sides[1 - i], name);
            status = set_new(merged, name, other ? both_of(property, other) : json_incref(property),
                             err);
            if (status != SL_OK)
                break;
        }
    }
    return status;
}

static sl_status merge_required(const json_t *a, const json_t *b, json_t *out, sl_error *err)
{
    json_t *merged = json_deep_copy(a);
    size_t i;
    json_t *name;
    sl_status status = set_new(out, "required", merged, err);
    if (status != SL_OK || !json_is_array(a) || !json_is_array(b))
        return status;
    json_array_foreach((json_t *)(uintptr_t)b, i, name)
    {
        size_t j = 0;
        while (j < json_array_size(a) && !json_equal(json_array_get(a, j), name))
            j++;
        if (j == json_array_size(a) && json_array_append(merged, name) != 0)
            return out_of_memory(err);
    }
    return SL_OK;
}

static json_t *as_list(const json_t *value)
{
    return json_is_array(value) ? json_incref((json_t *)(uintptr_t)value) : json_pack("[O]", value);
}

static bool type_within(const char *type, const json_t *list)
{
    size_t i;
    json_t *other;
    json_array_foreach((json_t *)(uintptr_t)list, i, other)
    {
        const char *name = json_string_value(other);
        if (name && (strcmp(name, type) == 0 ||
                     (strcmp(name, "number") == 0 && strcmp(type, "integer") == 0)))
            return true;
    }
    return false;
}

/* The types that both lists have; integers are numbers. */
static sl_status merge_types(const json_t *a, const json_t *b, json_t *out, sl_error *err)
{
    json_t *const lists[] = {as_list(a), as_list(b)};
    json_t *merged = json_array();
    sl_status status = lists[0] && lists[1] && merged ? SL_OK : out_of_memory(err);
    for (int side = 0; side < 2 && status == SL_OK; side++) {
        size_t i;
        json_t *type;
        json_array_foreach(lists[side], i, type)
        {
            const char *name = json_string_value(type);
            if (name && type_within(name, lists[1 - side]) && !type_within(name, merged) &&
                json_array_append(merged, type) != 0)
                status = out_of_memory(err);
        }
    }
    json_decref(lists[0]);
    json_decref(lists[1]);
    if (status == SL_OK)
        return set_new(out, "type", merged, err);
    json_decref(merged);
    return status;
}

/* Values that both lists have. */
static sl_status merge_values(const char *key, const json_t *a, const json_t *b, json_t *out,
                              sl_error *err)
{
    json_t *merged = json_array();
    size_t i, j;
    json_t *x, *y;
    SL_TRY(set_new(out, key, merged, err));
    json_array_foreach((json_t *)(uintptr_t)a, i, x)
    {
        json_array_foreach((json_t *)(uintptr_t)b, j, y)
        {
            if (!json_equal(x, y))
                continue;
            if (json_array_append(merged, x) != 0)
                return out_of_memory(err);
            break;
        }
    }
    return SL_OK;
}

static bool is_one_of(const char *key, const char *const *names, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (strcmp(key, names[i]) == 0)
            return true;
    }
    return false;
}

/* The choices of one with those of the other. */
static sl_status cross(sl_schema *s, const json_t *a, const json_t *b, json_t *out, sl_error *err)
{
    json_t *merged = json_array();
    size_t i, j;
    json_t *x, *y;
    SL_TRY(set_new(out, "anyOf", merged, err));
    if (json_array_size(a) * json_array_size(b) > SL_SCHEMA_MAX_BRANCHES)
        return sl_schema_unsupported(s, "anyOf", "choices that multiply to more than 1024", err);
    json_array_foreach((json_t *)(uintptr_t)a, i, x)
    {
        json_array_foreach((json_t *)(uintptr_t)b, j, y)
        {
            json_t *both = both_of(x, y);
            if (!both || json_array_append_new(merged, both) != 0)
                return out_of_memory(err);
        }
    }
    return SL_OK;
}

static sl_status merge_arrays(const sl_schema *s, const char *key, const json_t *a, const json_t *b,
                              json_t *out, sl_error *err)
{
    json_t *merged = json_array();
    SL_TRY(set_new(out, key, merged, err));
    if (!json_is_array(a) || !json_is_array(b) || json_array_size(a) != json_array_size(b))
        return sl_schema_unsupported(s, key, "merged with one of another length", err);
    for (size_t i = 0; i < json_array_size(a); i++) {
        json_t *both = both_of(json_array_get(a, i), json_array_get(b, i));
        if (!both || json_array_append_new(merged, both) != 0)
            return out_of_memory(err);
    }
    return SL_OK;
}

/* A keyword that both have, with different values. */
static sl_status merge_key(sl_schema *s, const char *key, const json_t *a, const json_t *b,
                           json_t *out, sl_error *err)
{
    static const char *const largest[] = {"minLength", "minItems", "minProperties", "minimum",
                                          "exclusiveMinimum"};
    static const char *const smallest[] = {"maxLength", "maxItems", "maxProperties", "maximum",
                                           "exclusiveMaximum"};
    static const char *const joined[] = {"items", "additionalProperties", "propertyNames"};
    const bool numbers = json_is_number(a) && json_is_number(b);
    if (sl_schema_is_annotation(key) || strcmp(key, "properties") == 0)
        return SL_OK;
    if (numbers && (is_one_of(key, largest, SL_COUNTOF(largest)) ||
                    is_one_of(key, smallest, SL_COUNTOF(smallest)))) {
        const bool b_is_less = json_number_value(b) < json_number_value(a);
        const bool wants_less = is_one_of(key, smallest, SL_COUNTOF(smallest));
        return set_new(out, key,
                       json_incref((json_t *)(uintptr_t)(b_is_less == wants_less ? b : a)), err);
    }
    if (strcmp(key, "required") == 0)
        return merge_required(a, b, out, err);
    if (strcmp(key, "type") == 0)
        return merge_types(a, b, out, err);
    if (strcmp(key, "enum") == 0)
        return merge_values(key, a, b, out, err);
    if (strcmp(key, "const") == 0) /* they differ: nothing is both */
        return set_new(out, "enum", json_array(), err);
    if (is_one_of(key, joined, SL_COUNTOF(joined)))
        return set_new(out, key, both_of(a, b), err);
    if (strcmp(key, "anyOf") == 0)
        return cross(s, a, b, out, err);
    if (strcmp(key, "prefixItems") == 0)
        return merge_arrays(s, key, a, b, out, err);
    if (strcmp(key, "nullable") == 0)
        return set_new(out, key, json_boolean(json_is_true(a) && json_is_true(b)), err);
    if (strcmp(key, "pattern") == 0) {
        json_t *all = as_list(a), *more = as_list(b);
        const bool good = all && more && set_new(out, key, json_array(), NULL) == SL_OK &&
                          json_array_extend(json_object_get(out, key), all) == 0 &&
                          json_array_extend(json_object_get(out, key), more) == 0;
        json_decref(all);
        json_decref(more);
        return good ? SL_OK : out_of_memory(err);
    }
    return sl_schema_unsupported(s, key, "two different ones that must hold at once", err);
}

static bool is_about_properties(const json_t *schema)
{
    return json_object_get(schema, "properties") || json_object_get(schema, "patternProperties") ||
           json_object_get(schema, "additionalProperties");
}

static sl_status fill_merged(sl_schema *s, const json_t *a, const json_t *b, json_t *out,
                             sl_error *err)
{
    const char *key;
    json_t *value;
    if (json_object_update(out, (json_t *)(uintptr_t)a) != 0)
        return out_of_memory(err);
    json_object_foreach((json_t *)(uintptr_t)b, key, value)
    {
        const json_t *own = json_object_get(a, key);
        if (!own && json_object_set(out, key, value) != 0)
            return out_of_memory(err);
        if (own && !json_equal(own, value))
            SL_TRY(merge_key(s, key, own, value, out, err));
    }
    const bool has_properties = json_object_get(out, "properties") != NULL;
    const bool patterns = json_object_get(out, "patternProperties") != NULL;
    const bool others = json_object_get(out, "additionalProperties") != NULL;
    if (patterns && others && is_about_properties(a) && is_about_properties(b))
        return sl_schema_unsupported(s, "patternProperties",
                                     "merged with properties of another schema", err);
    return has_properties ? merge_properties(a, b, out, err) : SL_OK;
}

sl_status sl_schema_merge(sl_schema *s, const json_t *a, const json_t *b, json_t **out,
                          sl_error *err)
{
    *out = NULL;
    if (++s->n_merges > SL_SCHEMA_MAX_MERGES)
        return sl_schema_fail(s, SL_ERR_LIMIT, "allOf", "too many schemas to merge", err);
    if (json_is_false(a) || json_is_false(b)) {
        *out = json_false();
        return SL_OK;
    }
    if (json_is_true(a) || json_is_true(b)) {
        *out = json_incref((json_t *)(uintptr_t)(json_is_true(a) ? b : a));
        return SL_OK;
    }
    if (!json_is_object(a) || !json_is_object(b))
        return sl_schema_fail(s, SL_ERR_FORMAT, NULL, "a schema is an object, true or false", err);
    json_t *merged = json_object();
    const sl_status status = merged ? fill_merged(s, a, b, merged, err) : out_of_memory(err);
    if (status != SL_OK) {
        json_decref(merged);
        return status;
    }
    *out = merged;
    return SL_OK;
}

/* ---- oneOf ---- */

/* The values that a schema lists, as a new array; NULL: it lists none. */
static json_t *values_of(const json_t *schema)
{
    const json_t *constant = json_object_get(schema, "const");
    json_t *list = json_object_get(schema, "enum");
    if (constant)
        return json_pack("[O]", constant);
    return json_is_array(list) ? json_incref(list) : NULL;
}

static bool share_a_value(const json_t *a, const json_t *b)
{
    size_t i, j;
    json_t *x, *y;
    json_array_foreach((json_t *)(uintptr_t)a, i, x)
    {
        json_array_foreach((json_t *)(uintptr_t)b, j, y)
        {
            if (json_equal(x, y) || (json_is_number(x) && json_is_number(y)))
                return true;
        }
    }
    return false;
}

/* Types, with those of the listed values where there are any. */
static sl_status all_types(const sl_schema *s, const json_t *schema, const json_t *values,
                           unsigned *types, sl_error *err)
{
    size_t i;
    json_t *value;
    if (!values || json_object_get(schema, "type"))
        return sl_schema_types(s, schema, types, err);
    *types = 0;
    json_array_foreach((json_t *)(uintptr_t)values, i, value)
    {
        *types |= sl_schema_type_of(value);
    }
    return SL_OK;
}

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

/* An object of `has` needs a property that one of `closed` cannot have. */
static bool needs_what_is_closed(const json_t *has, const json_t *closed)
{
    size_t i;
    json_t *name;
    if (!json_is_false(json_object_get(closed, "additionalProperties")) ||
        json_object_get(closed, "patternProperties"))
        return false;
    json_array_foreach(json_object_get(has, "required"), i, name)
    {
        if (json_is_string(name) &&
            !json_object_get(json_object_get(closed, "properties"), json_string_value(name)))
            return true;
    }
    return false;
}

typedef struct pair {
    json_t *a, *b;
} pair;

/* Whether no value can be of both. Looks at properties that both require, level by level. */
static sl_status disjoint(sl_schema *s, pair first, unsigned depth, bool *out, sl_error *err)
{
    json_t *a, *b;
    *out = false;
    if (++s->n_looks > MAX_LOOKS)
        return sl_schema_fail(s, SL_ERR_LIMIT, "oneOf", "too many branches to tell apart", err);
    SL_TRY(target_of(s, first.a, &a, err));
    SL_TRY(target_of(s, first.b, &b, err));
    if (!json_is_object(a) || !json_is_object(b))
        return SL_OK;
    json_t *const values_a = values_of(a), *const values_b = values_of(b);
    unsigned types_a = 0, types_b = 0;
    sl_status status = all_types(s, a, values_a, &types_a, err);
    if (status == SL_OK)
        status = all_types(s, b, values_b, &types_b, err);
    *out = (values_a && values_b && !share_a_value(values_a, values_b)) || !(types_a & types_b);
    json_decref(values_a);
    json_decref(values_b);
    if (status != SL_OK || *out || (types_a & types_b) != SL_JSON_OBJECT || depth == 0)
        return status;
    *out = needs_what_is_closed(a, b) || needs_what_is_closed(b, a);
    const char *name;
    json_t *property;
    json_object_foreach(json_object_get(a, "properties"), name, property)
    {
        json_t *other = json_object_get(json_object_get(b, "properties"), name);
        if (*out)
            break;
        if (other && is_required(a, name) && is_required(b, name))
            SL_TRY(disjoint(s, (pair){property, other}, depth - 1, out, err));
    }
    return SL_OK;
}

static sl_status check_one_of(sl_schema *s, const json_t *branches, sl_error *err)
{
    const size_t n = json_array_size(branches);
    if (n > MAX_ONE_OF)
        return sl_schema_unsupported(s, "oneOf", "more than 256 branches", err);
    for (size_t i = 0; i < n; i++) {
        for (size_t j = i + 1; j < n; j++) {
            bool apart;
            const pair both = {json_array_get(branches, i), json_array_get(branches, j)};
            SL_TRY(disjoint(s, both, MAX_DISJOINT_DEPTH, &apart, err));
            if (!apart)
                return sl_schema_unsupported(
                    s, "oneOf",
                    "branches that do not exclude each other for certain; anyOf would do", err);
        }
    }
    return SL_OK;
}

/* ---- flattening ---- */

/* merged becomes merged and `more`, which may itself have to be flattened. */
static sl_status take_in(sl_schema *s, json_t **merged, json_t *more, unsigned depth,
                         sl_error *err);

static sl_status flatten(sl_schema *s, json_t *schema, unsigned depth, json_t **out, sl_error *err)
{
    json_t *const reference = json_object_get(schema, "$ref");
    json_t *const all = json_object_get(schema, "allOf");
    json_t *const one = json_object_get(schema, "oneOf");
    *out = NULL;
    if (!reference && !all && !one) {
        *out = json_incref(schema);
        return SL_OK;
    }
    if (depth == MAX_HOPS)
        return sl_schema_fail(s, SL_ERR_LIMIT, reference ? "$ref" : "allOf",
                              "references or allOf nested deeper than 32 levels, or in a circle",
                              err);
    json_t *merged = json_copy(schema);
    sl_status status = merged ? SL_OK : out_of_memory(err);
    if (status == SL_OK) {
        json_object_del(merged, "$ref");
        json_object_del(merged, "allOf");
        json_object_del(merged, "oneOf");
    }
    if (status == SL_OK && one) {
        json_t *choice = json_pack("{s:O}", "anyOf", one);
        status = json_is_array(one)
                     ? check_one_of(s, one, err)
                     : sl_schema_fail(s, SL_ERR_FORMAT, "oneOf", "it must be an array", err);
        if (status == SL_OK)
            status = choice ? take_in(s, &merged, choice, depth, err) : out_of_memory(err);
        json_decref(choice);
    }
    if (status == SL_OK && reference) {
        json_t *target = NULL;
        status = json_is_string(reference)
                     ? sl_schema_resolve(s, json_string_value(reference), &target, err)
                     : sl_schema_fail(s, SL_ERR_FORMAT, "$ref", "it must be a string", err);
        if (status == SL_OK)
            status = take_in(s, &merged, target, depth, err);
    }
    if (status == SL_OK && all && !json_is_array(all))
        status = sl_schema_fail(s, SL_ERR_FORMAT, "allOf", "it must be an array", err);
    for (size_t i = 0; status == SL_OK && i < json_array_size(all); i++)
        status = take_in(s, &merged, json_array_get(all, i), depth, err);
    if (status != SL_OK) {
        json_decref(merged);
        return status;
    }
    *out = merged;
    return SL_OK;
}

static sl_status take_in(sl_schema *s, json_t **merged, json_t *more, unsigned depth, sl_error *err)
{
    json_t *flat, *both;
    SL_TRY(flatten(s, more, depth + 1, &flat, err));
    const sl_status status = sl_schema_merge(s, *merged, flat, &both, err);
    json_decref(flat);
    if (status != SL_OK)
        return status;
    json_decref(*merged);
    *merged = both;
    return SL_OK;
}

sl_status sl_schema_flatten(sl_schema *s, json_t *schema, json_t **out, sl_error *err)
{
    return flatten(s, schema, 0, out, err);
}
