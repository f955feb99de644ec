/* What a JSON schema allows a parameter to be, and the JSON value of its text. Schemas come from
 * requests: they are walked with a bounded list, never by recursion, and whatever is odd in them
 * says nothing about the type. */
#include "text/outparse_value.h"

#include "text/outparse_tag.h"

enum { MAX_SCHEMAS = 64 }; /* parts of one parameter's schema that are looked at */

/* ---- schemas ---- */

static const json_t *function_of(const json_t *tool)
{
    const json_t *function = json_object_get(tool, "function");
    return json_is_object(function) ? function : tool;
}

const json_t *sl_outparse_function(const json_t *tools, sl_str name)
{
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const json_t *function = function_of(json_array_get(tools, i));
        const json_t *text = json_object_get(function, "name");
        sl_str candidate = {json_string_value(text), json_string_length(text)};
        if (sl_json_is_string(text) && sl_str_equal(candidate, name))
            return function;
    }
    return NULL;
}

const json_t *sl_outparse_schema(const json_t *function)
{
    const json_t *schema = json_object_get(function, "parameters");
    if (!schema)
        schema = json_object_get(function, "input_schema");
    return json_is_object(json_object_get(schema, "properties")) ? schema : NULL;
}

const json_t *sl_outparse_parameter(const json_t *schema, sl_str name)
{
    return json_object_getn(json_object_get(schema, "properties"), name.data, name.n_bytes);
}

static unsigned type_named(const char *name)
{
    static const struct {
        const char *name;
        unsigned type;
    } names[] = {
        {"string", SL_VALUE_STRING},   {"str", SL_VALUE_STRING},    {"text", SL_VALUE_STRING},
        {"integer", SL_VALUE_INTEGER}, {"int", SL_VALUE_INTEGER},   {"number", SL_VALUE_NUMBER},
        {"float", SL_VALUE_NUMBER},    {"double", SL_VALUE_NUMBER}, {"boolean", SL_VALUE_BOOLEAN},
        {"bool", SL_VALUE_BOOLEAN},    {"null", SL_VALUE_NULL},     {"none", SL_VALUE_NULL},
        {"array", SL_VALUE_ARRAY},     {"list", SL_VALUE_ARRAY},    {"tuple", SL_VALUE_ARRAY},
        {"object", SL_VALUE_OBJECT},   {"dict", SL_VALUE_OBJECT},
    };
    for (size_t i = 0; i < SL_COUNTOF(names); i++)
        if (strcmp(name, names[i].name) == 0)
            return names[i].type;
    return 0;
}

static unsigned type_of(const json_t *value)
{
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        return SL_VALUE_OBJECT;
    case JSON_ARRAY:
        return SL_VALUE_ARRAY;
    case JSON_STRING:
        return sl_json_is_string(value) ? SL_VALUE_STRING : SL_VALUE_INTEGER;
    case JSON_INTEGER:
        return SL_VALUE_INTEGER;
    case JSON_REAL:
        return SL_VALUE_NUMBER;
    case JSON_TRUE:
    case JSON_FALSE:
        return SL_VALUE_BOOLEAN;
    case JSON_NULL:
        break;
    }
    return SL_VALUE_NULL;
}

/* What one schema says itself. */
static unsigned own_types(const json_t *schema)
{
    unsigned types = 0;
    const json_t *type = json_object_get(schema, "type");
    if (json_is_string(type))
        types |= type_named(json_string_value(type));
    for (size_t i = 0; i < json_array_size(type); i++) {
        const json_t *item = json_array_get(type, i);
        types |= json_is_string(item) ? type_named(json_string_value(item)) : 0;
    }
    if (types == 0) {
        const json_t *values = json_object_get(schema, "enum");
        for (size_t i = 0; i < json_array_size(values); i++)
            types |= type_of(json_array_get(values, i));
        const json_t *constant = json_object_get(schema, "const");
        types |= constant ? type_of(constant) : 0;
        types |= json_object_get(schema, "properties") ? SL_VALUE_OBJECT : 0;
        types |= json_object_get(schema, "items") ? SL_VALUE_ARRAY : 0;
    }
    if (json_is_true(json_object_get(schema, "nullable")))
        types |= SL_VALUE_NULL;
    return types;
}

/* The place of "#/$defs/Name" and the like; NULL when there is none. */
static const json_t *referenced(const json_t *root, const char *reference)
{
    if (reference[0] != '#')
        return NULL;
    const json_t *place = root;
    const char *s = reference + 1;
    for (int steps = 0; place && *s == '/' && steps < MAX_SCHEMAS; steps++) {
        size_t n = strcspn(++s, "/");
        place = json_object_getn(place, s, n);
        s += n;
    }
    return *s == '\0' ? place : NULL;
}

unsigned sl_outparse_types(const json_t *root, const json_t *parameter)
{
    static const char *const branches[] = {"anyOf", "oneOf", "allOf"};
    if (!parameter)
        return SL_VALUE_STRING;
    const json_t *list[MAX_SCHEMAS] = {parameter};
    size_t n = 1;
    unsigned types = 0;
    for (size_t i = 0; i < n; i++) {
        const json_t *schema = list[i];
        unsigned own = own_types(schema);
        types |= own;
        const char *reference = json_string_value(json_object_get(schema, "$ref"));
        const json_t *target = reference ? referenced(root, reference) : NULL;
        if (target && n < MAX_SCHEMAS)
            list[n++] = target;
        if ((own & ~(unsigned)SL_VALUE_NULL) != 0)
            continue; /* a type of its own: branches only narrow it */
        for (size_t b = 0; b < SL_COUNTOF(branches); b++) {
            const json_t *parts = json_object_get(schema, branches[b]);
            for (size_t j = 0; j < json_array_size(parts) && n < MAX_SCHEMAS; j++)
                list[n++] = json_array_get(parts, j);
        }
    }
    return types == 0 ? SL_VALUE_ANY : types;
}

/* ---- values ---- */

sl_status sl_outparse_escape(sl_buf *out, sl_str s, sl_error *err)
{
    static const char plain[] = "\"\\\b\f\n\r\t", letters[] = "\"\\bfnrt";
    size_t begin = 0;
    for (size_t i = 0; i < s.n_bytes; i++) {
        char c = s.data[i];
        if ((unsigned char)c >= 0x20 && c != '"' && c != '\\')
            continue;
        SL_TRY(sl_buf_append(out, s.data + begin, i - begin, err));
        begin = i + 1;
        const char *found = memchr(plain, c, sizeof plain - 1);
        SL_TRY(found ? sl_buf_printf(out, err, "\\%c", letters[found - plain])
                     : sl_buf_printf(out, err, "\\u%04x", (unsigned)c));
    }
    return sl_buf_append(out, s.data + begin, s.n_bytes - begin, err);
}

static sl_str trimmed(sl_str s)
{
    while (s.n_bytes > 0 && sl_outparse_is_space(s.data[s.n_bytes - 1]))
        s.n_bytes--;
    while (s.n_bytes > 0 && sl_outparse_is_space(s.data[0])) {
        s.data++;
        s.n_bytes--;
    }
    return s;
}

static sl_str without(sl_str s, size_t n)
{
    return (sl_str){s.data + n, s.n_bytes - n};
}

/* Digits with an optional sign in front and ".000" behind: *out is the integer as JSON has it. */
static bool is_integer(sl_str s, bool exact, sl_str *sign, sl_str *digits)
{
    size_t n_sign = s.n_bytes > 0 && (s.data[0] == '-' || (!exact && s.data[0] == '+'));
    *sign = (sl_str){s.data, n_sign == 1 && s.data[0] == '-'};
    s = without(s, n_sign);
    size_t n = 0;
    while (n < s.n_bytes && s.data[n] >= '0' && s.data[n] <= '9')
        n++;
    if (n == 0)
        return false;
    size_t end = n;
    if (end < s.n_bytes && s.data[end] == '.') {
        end++;
        while (end < s.n_bytes && s.data[end] == '0')
            end++;
        if (end == n + 1)
            return false;
    }
    if (end != s.n_bytes)
        return false;
    size_t zeros = 0;
    while (zeros + 1 < n && s.data[zeros] == '0')
        zeros++;
    *digits = (sl_str){s.data + zeros, n - zeros};
    return !(exact && zeros > 0);
}

static sl_status append_str(sl_buf *out, sl_str s, sl_error *err)
{
    return sl_buf_append(out, s.data, s.n_bytes, err);
}

/* Makes "+5", "007", "5." and ".5" numbers of JSON, at the end of out; takes back what it wrote
 * when the text is none. */
static sl_status append_loose_number(sl_str s, sl_buf *out, bool *done, sl_error *err)
{
    size_t begin = out->n_bytes;
    if (s.n_bytes > 0 && (s.data[0] == '+' || s.data[0] == '-')) {
        if (s.data[0] == '-')
            SL_TRY(sl_buf_append_char(out, '-', err));
        s = without(s, 1);
    }
    while (s.n_bytes > 1 && s.data[0] == '0' && s.data[1] >= '0' && s.data[1] <= '9')
        s = without(s, 1);
    size_t whole = 0;
    while (whole < s.n_bytes && s.data[whole] >= '0' && s.data[whole] <= '9')
        whole++;
    if (whole == 0 && s.n_bytes > 1 && s.data[0] == '.')
        SL_TRY(sl_buf_append_char(out, '0', err));
    SL_TRY(append_str(out, s, err));
    if (whole > 0 && whole + 1 == s.n_bytes && s.data[whole] == '.')
        SL_TRY(sl_buf_append_char(out, '0', err));
    *done = sl_lax_is_number((sl_str){out->data + begin, out->n_bytes - begin});
    if (!*done)
        out->n_bytes = begin;
    return SL_OK;
}

/* null, booleans and numbers. */
static sl_status append_scalar(unsigned types, sl_str s, sl_buf *out, bool *done, bool *repaired,
                               sl_error *err)
{
    bool any = (types & SL_VALUE_ANY) != 0, exact = any || (types & SL_VALUE_STRING) != 0;
    *done = true;
    bool python = !any && sl_str_is(s, "None");
    if ((types & (SL_VALUE_NULL | SL_VALUE_ANY)) && (sl_str_is(s, "null") || python)) {
        *repaired = *repaired || python;
        return sl_buf_append_str(out, "null", err);
    }
    if (types & (SL_VALUE_BOOLEAN | SL_VALUE_ANY)) {
        bool yes = sl_str_is(s, "true") || (!any && sl_str_is(s, "True"));
        bool no = sl_str_is(s, "false") || (!any && sl_str_is(s, "False"));
        *repaired = *repaired || ((yes || no) && s.data[0] < 'a');
        if (yes || no)
            return sl_buf_append_str(out, yes ? "true" : "false", err);
    }
    sl_str sign, digits;
    if ((types & SL_VALUE_INTEGER) && is_integer(s, exact, &sign, &digits)) {
        SL_TRY(append_str(out, sign, err));
        return append_str(out, digits, err);
    }
    if (types & (SL_VALUE_NUMBER | SL_VALUE_ANY)) {
        if (sl_lax_is_number(s))
            return append_str(out, s, err);
        if (!exact)
            return append_loose_number(s, out, done, err);
    }
    *done = false;
    return SL_OK;
}

static sl_status append_container(unsigned types, sl_str s, sl_lax_json *scratch, sl_buf *out,
                                  bool *done, bool *repaired, sl_error *err)
{
    *done = false;
    unsigned wanted = s.data[0] == '{' ? SL_VALUE_OBJECT : SL_VALUE_ARRAY;
    bool any = (types & SL_VALUE_ANY) != 0;
    if (!(types & wanted) && !any)
        return SL_OK;
    size_t used;
    sl_lax_result result;
    sl_lax_reset(scratch);
    SL_TRY(sl_lax_push(scratch, s.data, s.n_bytes, &used, &result, err));
    if (result != SL_LAX_DONE || used != s.n_bytes || (any && scratch->repaired))
        return SL_OK;
    *done = true;
    *repaired = *repaired || scratch->repaired;
    return sl_buf_append(out, scratch->out.data, scratch->out.n_bytes, err);
}

sl_status sl_outparse_value(unsigned types, sl_str text, sl_lax_json *scratch, sl_buf *out,
                            bool *fits, bool *repaired, sl_error *err)
{
    bool done = false, may_be_string = (types & (SL_VALUE_STRING | SL_VALUE_ANY)) != 0;
    sl_str s = trimmed(text);
    *fits = true;
    if (types != SL_VALUE_STRING && s.n_bytes > 0) {
        char first = s.data[0];
        if (first == '{' || first == '[') {
            SL_TRY(append_container(types, s, scratch, out, &done, repaired, err));
        } else {
            bool quoted = !may_be_string && s.n_bytes > 2 && (first == '"' || first == '\'') &&
                          s.data[s.n_bytes - 1] == first;
            sl_str inside = quoted ? (sl_str){s.data + 1, s.n_bytes - 2} : s;
            *repaired = *repaired || quoted;
            SL_TRY(append_scalar(types, inside, out, &done, repaired, err));
        }
    }
    if (done)
        return SL_OK;
    *fits = may_be_string;
    SL_TRY(sl_buf_append_char(out, '"', err));
    SL_TRY(sl_outparse_escape(out, text, err));
    return sl_buf_append_char(out, '"', err);
}
