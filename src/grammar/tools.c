/* Calls of tools as a grammar, in the form the family is taught:
 *
 *   <tool_call>\n<function=NAME>\n<parameter=P>\nVALUE\n</parameter>\n...</function>\n</tool_call>
 *
 * A value that can only be a string is written as it is and holds no tag of this form; all others
 * are JSON, whose strings have no '<'. Owns which parameters can be told apart that way. */
#include "base/mem.h"
#include "grammar/schema.h"

enum { MAX_BRANCH_DEPTH = 8 };

static const char tags[] = "</?(think|tool_call|function|parameter)";

typedef struct tool_set {
    sl_schema s;
    sl_nfa *nfa;
    sl_cdfa tagless; /* texts without tags */
} tool_set;

static json_t *function_of(const json_t *tool)
{
    json_t *function = json_object_get(tool, "function");
    return json_is_object(function) ? function : (json_t *)(uintptr_t)tool;
}

/* A name between '=' and '>'. */
static bool is_plain_name(const char *name)
{
    return name && *name && !strpbrk(name, "<>\"'\n\r\t ");
}

/* ---- values ---- */

static unsigned types_of_values(const json_t *schema)
{
    static const unsigned by_type[] = {
        [JSON_OBJECT] = SL_JSON_OBJECT, [JSON_ARRAY] = SL_JSON_ARRAY,
        [JSON_STRING] = SL_JSON_STRING, [JSON_INTEGER] = SL_JSON_INTEGER,
        [JSON_REAL] = SL_JSON_NUMBER,   [JSON_TRUE] = SL_JSON_BOOLEAN,
        [JSON_FALSE] = SL_JSON_BOOLEAN, [JSON_NULL] = SL_JSON_NULL};
    const json_t *list = json_object_get(schema, "enum"),
                 *constant = json_object_get(schema, "const");
    unsigned types = constant ? by_type[json_typeof(constant)] : 0;
    for (size_t i = 0; i < json_array_size(list); i++)
        types |= by_type[json_typeof(json_array_get(list, i))];
    return types;
}

/* What a parameter may be, through its choices. */
static sl_status types_of(tool_set *t, json_t *schema, unsigned depth, unsigned *types,
                          sl_error *err)
{
    json_t *flat;
    SL_TRY(sl_schema_flatten(&t->s, schema, &flat, err));
    const json_t *branches = json_object_get(flat, "anyOf");
    sl_status status = SL_OK;
    *types = 0;
    if (!json_is_object(flat))
        *types = json_is_false(flat) ? 0 : SL_JSON_ANY;
    else if (types_of_values(flat) != 0)
        *types = types_of_values(flat);
    else if (branches && depth == MAX_BRANCH_DEPTH)
        status = sl_schema_fail(&t->s, SL_ERR_LIMIT, "anyOf", "nested deeper than 8 levels", err);
    else if (!branches)
        status = sl_schema_types(&t->s, flat, types, err);
    for (size_t i = 0; status == SL_OK && i < json_array_size(branches); i++) {
        unsigned more;
        status = types_of(t, json_array_get(branches, i), depth + 1, &more, err);
        *types |= status == SL_OK ? more : 0;
    }
    json_decref(flat);
    return status;
}

/* A string as it is: one without tags that its schema allows. */
static sl_status add_text(tool_set *t, const json_t *schema, sl_frag *choice, sl_error *err)
{
    bool any;
    sl_cdfa allowed, both;
    sl_frag text;
    SL_TRY(sl_schema_language(&t->s, schema, &any, &allowed, err));
    sl_status status = any ? SL_OK : sl_cdfa_intersect(&allowed, &t->tagless, &both, err);
    sl_cdfa_free(&allowed);
    SL_TRY(status);
    status = sl_schema_raw_text(&t->s, any ? &t->tagless : &both, &text, err);
    if (!any)
        sl_cdfa_free(&both);
    return status == SL_OK ? sl_nfa_choose(t->nfa, choice, text, err) : status;
}

static sl_status add_literal(tool_set *t, const char *text, size_t n, sl_frag *choice,
                             sl_error *err)
{
    sl_frag literal;
    SL_TRY(sl_nfa_bytes(t->nfa, text, n, &literal, err));
    return sl_nfa_choose(t->nfa, choice, literal, err);
}

static sl_status add_values(tool_set *t, const json_t *schema, sl_frag *choice, sl_error *err)
{
    const json_t *list = json_object_get(schema, "enum"),
                 *constant = json_object_get(schema, "const");
    bool any;
    sl_cdfa allowed;
    SL_TRY(sl_schema_language(&t->s, schema, &any, &allowed, err));
    sl_status status = SL_OK;
    const size_t n = list ? json_array_size(list) : 1;
    for (size_t i = 0; i < n && status == SL_OK; i++) {
        const json_t *value = list ? json_array_get(list, i) : constant;
        const sl_str text = {json_string_value(value), json_string_length(value)};
        if (constant && !json_equal(constant, value))
            continue;
        if (json_is_null(value))
            status = add_literal(t, "null", 4, choice, err);
        else if (sl_cdfa_matches(&t->tagless, text) && (any || sl_cdfa_matches(&allowed, text)))
            status = add_literal(t, text.data, text.n_bytes, choice, err);
    }
    sl_cdfa_free(&allowed);
    return status;
}

/* Strings, and null besides: no quotes. */
static sl_status add_strings(tool_set *t, json_t *schema, sl_frag *choice, sl_error *err)
{
    json_t *flat;
    SL_TRY(sl_schema_flatten(&t->s, schema, &flat, err));
    const json_t *branches = json_object_get(flat, "anyOf");
    unsigned types = 0;
    sl_status status = SL_OK;
    if (types_of_values(flat) != 0) {
        status = add_values(t, flat, choice, err);
    } else if (branches && !sl_schema_is_only(flat, "anyOf")) {
        status =
            sl_schema_unsupported(&t->s, "anyOf", "beside other keywords, in a parameter", err);
    } else if (!branches) {
        status = sl_schema_types(&t->s, flat, &types, err);
        if (status == SL_OK && !json_object_get(flat, "type"))
            status = sl_schema_unsupported(&t->s, "type", "a parameter needs one", err);
        if (status == SL_OK && (types & SL_JSON_STRING))
            status = add_text(t, flat, choice, err);
        if (status == SL_OK && types == (SL_JSON_STRING | SL_JSON_NULL))
            status = add_literal(t, "null", 4, choice, err);
        if (status == SL_OK && types == SL_JSON_NULL)
            status = add_literal(t, "null", 4, choice, err);
    }
    for (size_t i = 0; status == SL_OK && i < json_array_size(branches); i++)
        status = add_strings(t, json_array_get(branches, i), choice, err);
    json_decref(flat);
    return status;
}

static sl_status add_value(tool_set *t, const char *name, json_t *schema, sl_frag *out,
                           sl_error *err)
{
    unsigned types;
    SL_TRY(types_of(t, schema, 0, &types, err));
    if (!(types & SL_JSON_STRING)) {
        uint32_t rule;
        SL_TRY(sl_schema_rule(&t->s, schema, name, &rule, err));
        return sl_nfa_call(t->nfa, SL_NFA_CALL, rule, out, err);
    }
    SL_TRY(sl_nfa_choice(t->nfa, out, err));
    if (json_is_true(schema) ||
        (types == SL_JSON_ANY && sl_schema_is_only(schema, NULL))) /* whatever it says is right */
        return add_text(t, schema, out, err);
    if (types & ~(unsigned)(SL_JSON_STRING | SL_JSON_NULL))
        return sl_schema_unsupported(&t->s, name, "a parameter that is a string or something else",
                                     err);
    return add_strings(t, schema, out, err);
}

/* ---- calls ---- */

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

static sl_status add_parameter(tool_set *t, const char *name, json_t *schema, bool required,
                               sl_frag *call, sl_error *err)
{
    sl_frag parameter, value;
    if (!is_plain_name(name))
        return sl_schema_unsupported(&t->s, name, "the name of a parameter", err);
    SL_TRY(sl_nfa_bytes(t->nfa, "<parameter=", 11, &parameter, err));
    SL_TRY(sl_schema_text(&t->s, &parameter, name, strlen(name), err));
    SL_TRY(sl_schema_text(&t->s, &parameter, ">\n", 2, err));
    SL_TRY(add_value(t, name, schema, &value, err));
    parameter = sl_nfa_join(t->nfa, parameter, value);
    SL_TRY(sl_schema_text(&t->s, &parameter, "\n</parameter>\n", 14, err));
    if (!required)
        SL_TRY(sl_nfa_repeat(t->nfa, &parameter, 0, 1, err));
    *call = sl_nfa_join(t->nfa, *call, parameter);
    return SL_OK;
}

static sl_status add_call(tool_set *t, const json_t *function, sl_frag *out, sl_error *err)
{
    const char *name = json_string_value(json_object_get(function, "name"));
    json_t *schema = json_object_get(function, "parameters");
    const size_t first = t->s.n_items;
    const char *key;
    json_t *property, *one;
    size_t i;
    if (!schema)
        schema = json_object_get(function, "input_schema");
    if (!is_plain_name(name))
        return sl_fail(err, SL_ERR_ARGUMENT,
                       "tools: a function without a name that can be written");
    sl_schema_forget(&t->s);
    t->s.root = schema;
    SL_TRY(sl_nfa_bytes(t->nfa, "<tool_call>\n<function=", 22, out, err));
    SL_TRY(sl_schema_text(&t->s, out, name, strlen(name), err));
    SL_TRY(sl_schema_text(&t->s, out, ">\n", 2, err));
    json_object_foreach(json_object_get(schema, "properties"), key, property)
    {
        const sl_status status =
            add_parameter(t, key, property, is_required(schema, key), out, err);
        if (status != SL_OK)
            return status == SL_ERR_MEMORY ? status : sl_fail_within(err, status, "tool %s", name);
    }
    json_array_foreach(json_object_get(schema, "required"), i, one)
    {
        if (!json_object_get(json_object_get(schema, "properties"), json_string_value(one)))
            return sl_fail(err, SL_ERR_UNSUPPORTED,
                           "tool %s: \"required\" names a parameter without a schema", name);
    }
    SL_TRY(sl_schema_text(&t->s, out, "</function>\n</tool_call>", 24, err));
    const sl_status status = sl_schema_define(&t->s, first, err);
    return status == SL_OK || status == SL_ERR_MEMORY
               ? status
               : sl_fail_within(err, status, "tool %s", name);
}

static sl_status compile(tool_set *t, const json_t *tools, const char *wanted, size_t max_calls,
                         sl_error *err)
{
    uint32_t root, one;
    sl_frag choice, first, more;
    size_t i, n = 0;
    json_t *tool;
    SL_TRY(sl_cdfa_pattern(sl_str_of(tags), &t->tagless, err));
    sl_cdfa_invert(&t->tagless);
    SL_TRY(sl_grammar_add_rule(t->s.grammar, sl_str_of("calls"), &root, err));
    SL_TRY(sl_grammar_add_rule(t->s.grammar, sl_str_of("call"), &one, err));
    SL_TRY(sl_schema_begin(&t->s, err));
    SL_TRY(sl_nfa_choice(t->nfa, &choice, err));
    json_array_foreach((json_t *)(uintptr_t)tools, i, tool)
    {
        const json_t *function = function_of(tool);
        const char *name = json_string_value(json_object_get(function, "name"));
        sl_frag call;
        if (wanted && (!name || strcmp(name, wanted) != 0))
            continue;
        n++;
        SL_TRY(add_call(t, function, &call, err));
        SL_TRY(sl_nfa_choose(t->nfa, &choice, call, err));
    }
    if (n == 0)
        return sl_fail(err, SL_ERR_ARGUMENT, "tools: there is no function %s",
                       wanted ? wanted : "at all");
    SL_TRY(sl_grammar_define(t->s.grammar, one, choice, err));
    SL_TRY(sl_nfa_call(t->nfa, SL_NFA_CALL, one, &first, err));
    SL_TRY(sl_nfa_bytes(t->nfa, "\n", 1, &more, err));
    SL_TRY(sl_schema_call(&t->s, &more, one, err));
    SL_TRY(sl_nfa_repeat(
        t->nfa, &more, 0,
        max_calls == 0 || max_calls > SL_SCHEMA_MAX_ITEMS ? SL_NFA_INF : (uint32_t)max_calls - 1,
        err));
    first = sl_nfa_join(t->nfa, first, more);
    SL_TRY(sl_grammar_define(t->s.grammar, root, first, err));
    t->s.grammar->added_tokens = true;
    return sl_grammar_finish(t->s.grammar, err);
}

sl_status sl_grammar_from_tools(sl_str tools, const char *name, size_t max_calls, sl_grammar **out,
                                sl_error *err)
{
    json_t *list;
    sl_json_limits limits = sl_json_limits_default();
    tool_set t = {.s = {.space = SL_NFA_NONE, .character = SL_NFA_NONE, .no_tags = true}};
    limits.max_bytes = SL_GRAMMAR_MAX_TEXT;
    *out = NULL;
    SL_TRY(sl_json_parse(tools.data, tools.n_bytes, "tools", limits, &list, err));
    sl_status status = json_is_array(list)
                           ? sl_grammar_new(&t.s.grammar, err)
                           : sl_fail(err, SL_ERR_ARGUMENT, "tools: not a JSON array");
    if (status == SL_OK) {
        t.nfa = &t.s.grammar->nfa;
        status = compile(&t, list, name, max_calls, err);
    }
    sl_schema_free(&t.s);
    sl_cdfa_free(&t.tagless);
    json_decref(list);
    if (status != SL_OK)
        sl_grammar_free(t.s.grammar);
    else
        *out = t.s.grammar;
    return status;
}
