/* Strings of a schema: lengths, patterns and formats as languages over code points, and languages
 * as JSON strings. */
#include "base/mem.h"
#include "grammar/schema.h"

/* Characters that stand for themselves; between tags all but '<'. */
static const sl_code_range plain_codes[] = {{0x20, 0x21}, {0x23, 0x5B}, {0x5D, 0x10FFFF}};
static const sl_code_range tagless_codes[] = {
    {0x20, 0x21}, {0x23, 0x3B}, {0x3D, 0x5B}, {0x5D, 0x10FFFF}};

typedef struct code_set {
    const sl_code_range *ranges;
    size_t n;
} code_set;

static code_set plain_of(const sl_schema *s)
{
    return s->no_tags ? (code_set){tagless_codes, SL_COUNTOF(tagless_codes)}
                      : (code_set){plain_codes, SL_COUNTOF(plain_codes)};
}

/* ---- formats ---- */

#define DAYS \
    "((0[13578]|1[02])-(0[1-9]|[12]\\d|3[01])|(0[469]|11)-(0[1-9]|[12]\\d|30)|02-(0[1-9]|1\\d|2[" \
    "0-8]))"
#define YEAR    "(\\d{3}[1-9]|\\d{2}[1-9]\\d|\\d[1-9]\\d{2}|[1-9]\\d{3})"
#define LEAP    "((\\d{2}(0[48]|[2468][048]|[13579][26])|(0[48]|[2468][048]|[13579][26])00)-02-29)"
#define DATE    "(" YEAR "-" DAYS "|" LEAP ")"
#define TIME    "([01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(\\.\\d{1,9})?"
#define ZONE    "(Z|[+-]([01]\\d|2[0-3]):[0-5]\\d)"
#define BYTE    "(25[0-5]|2[0-4]\\d|1\\d{2}|[1-9]?\\d)"
#define IPV4    BYTE "(\\." BYTE "){3}"
#define H16     "[0-9a-fA-F]{1,4}"
#define LABEL   "[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
#define HOST    LABEL "(\\." LABEL "){0,7}"
#define PERCENT "%[0-9a-fA-F]{2}"
#define PATH    "([a-zA-Z0-9._~!$&'()*+,;=:@/-]|" PERCENT ")*"
#define TAIL \
    "(\\?([a-zA-Z0-9._~!$&'()*+,;=:@/?-]|" PERCENT \
    ")*)?(#([a-zA-Z0-9._~!$&'()*+,;=:@/?-]|" PERCENT ")*)?"

/* What is generated of a format always is of it; where the format allows more, docs/GRAMMAR.md says
 * so. */
static const struct format {
    const char *name, *pattern; /* pattern NULL: refused */
} formats[] = {
    {"date", "^" DATE "$"},
    {"time", "^" TIME ZONE "$"},
    {"date-time", "^" DATE "T" TIME ZONE "$"},
    {"duration", "^P(\\d{1,6}W|(\\d{1,6}Y(\\d{1,6}M(\\d{1,6}D)?)?|\\d{1,6}M(\\d{1,6}D)?|\\d{1,6}D)"
                 "(T(\\d{1,6}H(\\d{1,6}M(\\d{1,6}S)?)?|\\d{1,6}M(\\d{1,6}S)?|\\d{1,6}S))?|"
                 "T(\\d{1,6}H(\\d{1,6}M(\\d{1,6}S)?)?|\\d{1,6}M(\\d{1,6}S)?|\\d{1,6}S))$"},
    {"uuid", "^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$"},
    {"ipv4", "^" IPV4 "$"},
    {"ipv6", "^((" H16 ":){7}" H16 "|::(" H16 "(:" H16 "){0,5})?|" H16 "::(" H16 "(:" H16
             "){0,4})?|" H16 ":" H16 "::(" H16 "(:" H16 "){0,3})?|(" H16 ":){2}" H16 "::(" H16
             "(:" H16 "){0,2})?|(" H16 ":){3}" H16 "::(" H16 "(:" H16 ")?)?|(" H16 ":){4}" H16
             "::(" H16 ")?|(" H16 ":){5}" H16 "::|(" H16 ":){6}" IPV4 ")$"},
    {"hostname", "^" HOST "$"},
    {"email", "^[a-zA-Z0-9!#$%&'*+/=?^_`{|}~-]{1,32}(\\.[a-zA-Z0-9!#$%&'*+/=?^_`{|}~-]{1,32})?@"
              "[a-zA-Z0-9]([a-zA-Z0-9-]{0,30}[a-zA-Z0-9])?"
              "(\\.[a-zA-Z0-9]([a-zA-Z0-9-]{0,30}[a-zA-Z0-9])?){1,4}$"},
    {"uri",
     "^[a-zA-Z][a-zA-Z0-9+.-]{0,30}:(//([a-zA-Z0-9._~!$&'()*+,;=-]{1,64}@)?[a-zA-Z0-9.-]{1,255}"
     "(:[0-9]{1,5})?(/" PATH ")?|[a-zA-Z0-9._~@/-]" PATH ")" TAIL "$"},
    {"idn-email", NULL},
    {"idn-hostname", NULL},
    {"iri", NULL},
    {"iri-reference", NULL},
    {"uri-reference", NULL},
    {"uri-template", NULL},
    {"json-pointer", NULL},
    {"relative-json-pointer", NULL},
    {"regex", NULL},
};

/* ---- languages ---- */

/* *all becomes what is in it and in `more`; takes `more` over. */
static sl_status narrow(bool *any, sl_cdfa *all, sl_cdfa *more, sl_error *err)
{
    sl_cdfa both = {0};
    if (*any) {
        *any = false;
        *all = *more;
        return SL_OK;
    }
    const sl_status status = sl_cdfa_intersect(all, more, &both, err);
    sl_cdfa_free(more);
    if (status != SL_OK)
        return status;
    sl_cdfa_free(all);
    *all = both;
    return SL_OK;
}

static sl_status placed(const sl_schema *s, const char *keyword, sl_status status, sl_error *err)
{
    if (status == SL_OK || status == SL_ERR_MEMORY)
        return status;
    sl_error inner = {0};
    if (err)
        inner = *err;
    return sl_schema_fail(s, status, keyword, inner.message, err);
}

static sl_status add_pattern(const sl_schema *s, const char *keyword, const char *text, size_t n,
                             bool *any, sl_cdfa *all, sl_error *err)
{
    sl_cdfa pattern;
    SL_TRY(placed(s, keyword, sl_cdfa_pattern((sl_str){text, n}, &pattern, err), err));
    return placed(s, keyword, narrow(any, all, &pattern, err), err);
}

/* Merged schemas have an array of patterns, all of which hold. */
static sl_status add_patterns(const sl_schema *s, const json_t *value, bool *any, sl_cdfa *all,
                              sl_error *err)
{
    if (sl_json_is_string(value))
        return add_pattern(s, "pattern", json_string_value(value), json_string_length(value), any,
                           all, err);
    if (!json_is_array(value))
        return sl_schema_fail(s, SL_ERR_FORMAT, "pattern", "it must be a string", err);
    for (size_t i = 0; i < json_array_size(value); i++) {
        const json_t *one = json_array_get(value, i);
        if (!sl_json_is_string(one))
            return sl_schema_fail(s, SL_ERR_FORMAT, "pattern", "it must be a string", err);
        SL_TRY(add_pattern(s, "pattern", json_string_value(one), json_string_length(one), any, all,
                           err));
    }
    return SL_OK;
}

/* Formats that no standard names say nothing here, as the specification has it. */
static sl_status add_format(const sl_schema *s, const json_t *value, bool *any, sl_cdfa *all,
                            sl_error *err)
{
    if (!sl_json_is_string(value))
        return sl_schema_fail(s, SL_ERR_FORMAT, "format", "it must be a string", err);
    for (size_t i = 0; i < SL_COUNTOF(formats); i++) {
        if (strcmp(formats[i].name, json_string_value(value)) != 0)
            continue;
        if (!formats[i].pattern)
            return sl_schema_unsupported(s, "format", json_string_value(value), err);
        return add_pattern(s, "format", formats[i].pattern, strlen(formats[i].pattern), any, all,
                           err);
    }
    return SL_OK;
}

static sl_status find_language(const sl_schema *s, const json_t *schema, bool *any, sl_cdfa *out,
                               sl_error *err)
{
    uint32_t min, max;
    const json_t *pattern = json_object_get(schema, "pattern");
    const json_t *format = json_object_get(schema, "format");
    SL_TRY(sl_schema_count(s, schema, "minLength", 0, &min, err));
    SL_TRY(sl_schema_count(s, schema, "maxLength", SL_NFA_INF, &max, err));
    if (pattern)
        SL_TRY(add_patterns(s, pattern, any, out, err));
    if (format)
        SL_TRY(add_format(s, format, any, out, err));
    if (min > max) {
        sl_cdfa none;
        SL_TRY(sl_cdfa_texts(NULL, 0, &none, err));
        return narrow(any, out, &none, err);
    }
    if (min > 0 || max != SL_NFA_INF) {
        sl_cdfa length;
        const char *keyword = max != SL_NFA_INF ? "maxLength" : "minLength";
        SL_TRY(placed(s, keyword, sl_cdfa_length(min, max, &length, err), err));
        SL_TRY(placed(s, keyword, narrow(any, out, &length, err), err));
    }
    return SL_OK;
}

sl_status sl_schema_language(const sl_schema *s, const json_t *schema, bool *any, sl_cdfa *out,
                             sl_error *err)
{
    *any = true;
    *out = (sl_cdfa){0};
    const sl_status status = find_language(s, schema, any, out, err);
    if (status != SL_OK)
        sl_cdfa_free(out);
    return status;
}

/* ---- JSON strings ---- */

/* One character of a JSON string, as it stands or escaped. */
static sl_status make_character(sl_schema *s, sl_error *err)
{
    sl_nfa *nfa = &s->grammar->nfa;
    static const char letters[] = "\"\\/bfnrt";
    sl_frag item, branch, escape, letter, quote;
    SL_TRY(sl_nfa_choice(nfa, &item, err));
    const code_set plain = plain_of(s);
    SL_TRY(sl_nfa_utf8(nfa, plain.ranges, plain.n, &branch, err));
    SL_TRY(sl_nfa_choose(nfa, &item, branch, err));
    SL_TRY(sl_nfa_bytes(nfa, "\\", 1, &escape, err));
    sl_code_range set[sizeof letters - 1];
    for (size_t i = 0; i < sizeof letters - 1; i++)
        set[i] = (sl_code_range){(unsigned char)letters[i], (unsigned char)letters[i]};
    SL_TRY(sl_nfa_utf8(nfa, set, SL_COUNTOF(set), &letter, err));
    SL_TRY(sl_nfa_choose(nfa, &item, sl_nfa_join(nfa, escape, letter), err));
    /* \uXXXX: not a surrogate, or two that belong together. */
    static const sl_code_range hex[] = {{'0', '9'}, {'A', 'F'}, {'a', 'f'}};
    static const sl_code_range not_d[] = {
        {'0', '9'}, {'A', 'C'}, {'E', 'F'}, {'a', 'c'}, {'e', 'f'}};
    static const sl_code_range d[] = {{'D', 'D'}, {'d', 'd'}};
    static const sl_code_range low[] = {{'0', '7'}};
    static const sl_code_range high[] = {{'8', '9'}, {'A', 'B'}, {'a', 'b'}};
    static const sl_code_range tail[] = {{'C', 'F'}, {'c', 'f'}};
    static const sl_code_range slash[] = {{'\\', '\\'}}, u[] = {{'u', 'u'}};
#define SET(x) \
    { \
        x, SL_COUNTOF(x) \
    }
    static const struct part {
        const sl_code_range *ranges;
        size_t n;
    } ways[3][12] = {
        {SET(slash), SET(u), SET(not_d), SET(hex), SET(hex), SET(hex)},
        {SET(slash), SET(u), SET(d), SET(low), SET(hex), SET(hex)},
        {SET(slash), SET(u), SET(d), SET(high), SET(hex), SET(hex), SET(slash), SET(u), SET(d),
         SET(tail), SET(hex), SET(hex)},
    };
#undef SET
    for (size_t i = 0; i < SL_COUNTOF(ways); i++) {
        SL_TRY(sl_nfa_empty(nfa, &branch, err));
        for (size_t j = 0; j < 12 && ways[i][j].n > 0; j++) {
            sl_frag digit;
            SL_TRY(sl_nfa_utf8(nfa, ways[i][j].ranges, ways[i][j].n, &digit, err));
            branch = sl_nfa_join(nfa, branch, digit);
        }
        SL_TRY(sl_nfa_choose(nfa, &item, branch, err));
    }
    SL_TRY(sl_nfa_bytes(nfa, "\"", 1, &quote, err));
    return sl_grammar_add_counted(s->grammar, item, &quote, &s->character, err);
}

/* The rest of a string of min to max characters, with its closing quote. */
static sl_status rest_of_string(sl_schema *s, uint32_t min, uint32_t max, sl_frag *out,
                                sl_error *err)
{
    if (s->character == SL_NFA_NONE)
        SL_TRY(make_character(s, err));
    return sl_grammar_count(s->grammar, s->character, min, max, out, err);
}

/* The code points of ranges[0..n) in a JSON string, each written in one way only. */
static sl_status add_codes(const sl_schema *s, const sl_code_range *ranges, size_t n,
                           sl_frag *choice, sl_error *err)
{
    sl_nfa *nfa = &s->grammar->nfa;
    const code_set all = plain_of(s);
    static const char special[] = "\"\\\b\f\n\r\t", letters[] = "\"\\bfnrt";
    sl_frag branch;
    for (size_t i = 0; i < n; i++) {
        if (s->no_tags && ranges[i].low <= '<' && '<' <= ranges[i].high) {
            SL_TRY(sl_nfa_bytes(nfa, "\\u003c", 6, &branch, err));
            SL_TRY(sl_nfa_choose(nfa, choice, branch, err));
        }
        for (size_t j = 0; j < all.n; j++) {
            sl_code_range plain = all.ranges[j];
            plain.low = plain.low > ranges[i].low ? plain.low : ranges[i].low;
            plain.high = plain.high < ranges[i].high ? plain.high : ranges[i].high;
            if (plain.low > plain.high)
                continue;
            SL_TRY(sl_nfa_utf8(nfa, &plain, 1, &branch, err));
            SL_TRY(sl_nfa_choose(nfa, choice, branch, err));
        }
        for (size_t j = 0; j < sizeof special - 1; j++) {
            const uint32_t code = (unsigned char)special[j];
            if (code < ranges[i].low || code > ranges[i].high)
                continue;
            const char escape[2] = {'\\', letters[j]};
            SL_TRY(sl_nfa_bytes(nfa, escape, 2, &branch, err));
            SL_TRY(sl_nfa_choose(nfa, choice, branch, err));
        }
    }
    return SL_OK;
}

/* Where the states of a language are among the nodes. */
typedef struct language_nodes {
    sl_schema *s;
    const sl_cdfa *dfa;
    sl_code_range *ranges; /* [n_classes] */
    uint32_t *nodes;       /* of each state */
    uint32_t end;
    bool raw; /* the characters themselves, without quotes and escapes */
} language_nodes;

/* From the state's node to whatever it may be now or also `entry`. */
static sl_status also(const language_nodes *l, uint32_t state, uint32_t entry, sl_error *err)
{
    sl_nfa *nfa = &l->s->grammar->nfa;
    uint32_t split;
    const sl_nfa_node node = {
        .kind = SL_NFA_SPLIT, .next = nfa->nodes[l->nodes[state]].next, .other = entry};
    SL_TRY(sl_nfa_add(nfa, node, &split, err));
    nfa->nodes[l->nodes[state]].next = split;
    return SL_OK;
}

/* The characters that lead from state to `next`. */
static sl_status connect(const language_nodes *l, uint32_t state, uint32_t next, sl_error *err)
{
    const sl_cdfa *dfa = l->dfa;
    sl_nfa *nfa = &l->s->grammar->nfa;
    sl_frag choice;
    size_t n = 0;
    for (uint32_t c = 0; c < dfa->n_classes; c++) {
        if (dfa->next[(size_t)state * dfa->n_classes + c] != next)
            continue;
        const uint32_t high = c + 1 < dfa->n_classes ? dfa->bounds[c + 1] - 1 : 0x10FFFF;
        if (n > 0 && l->ranges[n - 1].high + 1 == dfa->bounds[c])
            l->ranges[n - 1].high = high;
        else
            l->ranges[n++] = (sl_code_range){dfa->bounds[c], high};
    }
    if (!l->raw)
        SL_TRY(sl_nfa_choice(nfa, &choice, err));
    SL_TRY(l->raw ? sl_nfa_utf8(nfa, l->ranges, n, &choice, err)
                  : add_codes(l->s, l->ranges, n, &choice, err));
    nfa->nodes[choice.exit].next = l->nodes[next];
    return also(l, state, choice.entry, err);
}

static bool seen_before(const sl_cdfa *dfa, uint32_t state, uint32_t class)
{
    const uint32_t *next = dfa->next + (size_t)state * dfa->n_classes;
    for (uint32_t c = 0; c < class; c++) {
        if (next[c] == next[class])
            return true;
    }
    return false;
}

static sl_status add_state(const language_nodes *l, uint32_t state, sl_error *err)
{
    const sl_cdfa *dfa = l->dfa;
    sl_nfa *nfa = &l->s->grammar->nfa;
    sl_frag tail;
    const bool sink = sl_cdfa_is_sink(dfa, state);
    if (sink && !dfa->accepts[state])
        return SL_OK;
    if (sink && !l->raw) { /* whatever follows: in all its ways of being written */
        SL_TRY(rest_of_string(l->s, 0, SL_NFA_INF, &tail, err));
        nfa->nodes[tail.exit].next = l->end;
        return also(l, state, tail.entry, err);
    }
    if (dfa->accepts[state]) {
        SL_TRY(sl_nfa_bytes(nfa, "\"", l->raw ? 0 : 1, &tail, err));
        nfa->nodes[tail.exit].next = l->end;
        SL_TRY(also(l, state, tail.entry, err));
    }
    for (uint32_t c = 0; c < dfa->n_classes; c++) {
        if (!seen_before(dfa, state, c))
            SL_TRY(connect(l, state, dfa->next[(size_t)state * dfa->n_classes + c], err));
    }
    return SL_OK;
}

static sl_status write_language(language_nodes *l, sl_frag *out, sl_error *err)
{
    sl_nfa *nfa = &l->s->grammar->nfa;
    sl_frag quote, end;
    SL_TRY(sl_nfa_bytes(nfa, "\"", l->raw ? 0 : 1, &quote, err));
    for (uint32_t state = 0; state < l->dfa->n_states; state++) {
        sl_frag node;
        SL_TRY(sl_nfa_empty(nfa, &node, err));
        l->nodes[state] = node.entry;
    }
    SL_TRY(sl_nfa_empty(nfa, &end, err));
    l->end = end.entry;
    for (uint32_t state = 0; state < l->dfa->n_states; state++)
        SL_TRY(add_state(l, state, err));
    nfa->nodes[quote.exit].next = l->nodes[0];
    *out = (sl_frag){quote.first, quote.entry, l->end};
    return SL_OK;
}

static sl_status write_out(language_nodes *l, sl_frag *out, sl_error *err)
{
    l->ranges = sl_alloc_array(SL_MEM_TEXT, l->dfa->n_classes, sizeof *l->ranges);
    l->nodes = sl_alloc_array(SL_MEM_TEXT, l->dfa->n_states, sizeof *l->nodes);
    const sl_status status = l->ranges && l->nodes
                                 ? write_language(l, out, err)
                                 : sl_fail(err, SL_ERR_MEMORY, "out of memory for an automaton");
    sl_free(l->ranges);
    sl_free(l->nodes);
    return status;
}

sl_status sl_schema_raw_text(sl_schema *s, const sl_cdfa *language, sl_frag *out, sl_error *err)
{
    language_nodes l = {.s = s, .dfa = language, .raw = true};
    return write_out(&l, out, err);
}

sl_status sl_schema_string_of(sl_schema *s, const sl_cdfa *language, sl_frag *out, sl_error *err)
{
    if (!language) {
        sl_frag rest;
        SL_TRY(sl_nfa_bytes(&s->grammar->nfa, "\"", 1, out, err));
        SL_TRY(rest_of_string(s, 0, SL_NFA_INF, &rest, err));
        *out = sl_nfa_join(&s->grammar->nfa, *out, rest);
        return SL_OK;
    }
    language_nodes l = {.s = s, .dfa = language};
    return write_out(&l, out, err);
}

sl_status sl_schema_string(sl_schema *s, const json_t *schema, sl_frag *out, sl_error *err)
{
    if (!json_object_get(schema, "pattern") && !json_object_get(schema, "format")) {
        uint32_t min, max; /* counted: masks and states are those of all strings */
        sl_frag rest;
        SL_TRY(sl_schema_count(s, schema, "minLength", 0, &min, err));
        SL_TRY(sl_schema_count(s, schema, "maxLength", SL_NFA_INF, &max, err));
        SL_TRY(sl_nfa_bytes(&s->grammar->nfa, "\"", 1, out, err));
        SL_TRY(rest_of_string(s, min, max, &rest, err));
        *out = sl_nfa_join(&s->grammar->nfa, *out, rest);
        return SL_OK;
    }
    bool any;
    sl_cdfa language;
    SL_TRY(sl_schema_language(s, schema, &any, &language, err));
    const sl_status status = sl_schema_string_of(s, any ? NULL : &language, out, err);
    sl_cdfa_free(&language);
    return placed(s, json_object_get(schema, "pattern") ? "pattern" : "format", status, err);
}
