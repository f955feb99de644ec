/* Reads GBNF: rules `name ::= ...` of strings, character classes, references, groups, choices and
 * repetitions. Owns the messages with line and column. A rule ends with its line, unless a group is
 * open or a choice goes on in the next line. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "grammar/grammar.h"

enum {
    MAX_CLASS_RANGES = 4096,
    MAX_REPEAT = 1 << 20, /* what a number in braces may say at most */
    COUNT_FROM = 16       /* repetitions of a class above this are counted, not spelled out */
};

static const sl_code_range any_code = {0, 0x10FFFF};

typedef struct gbnf {
    const char *text;
    size_t n, at;
    sl_grammar *grammar;
    sl_nfa_parser parser;
    uint32_t *slots; /* [n_slots]: rules by the hash of their name */
    size_t n_slots;
    uint32_t *used_at; /* of each rule: where it was first named */
    size_t used_room;
    /* The last atom, when it is a class: what it would be counted as. */
    sl_code_range *ranges;
    size_t n_ranges;
    bool is_class;
} gbnf;

/* ---- places and messages ---- */

static sl_status fail_at(const gbnf *g, size_t at, sl_status status, const char *what,
                         sl_error *err)
{
    size_t line = 1, column = 1;
    for (size_t i = 0; i < at && i < g->n; i++) {
        column = g->text[i] == '\n' ? 1 : column + ((g->text[i] & 0xC0) != 0x80);
        line += g->text[i] == '\n';
    }
    return sl_fail(err, status, "grammar, line %zu, column %zu: %s", line, column, what);
}

/* The place of an error that comes from below. */
static sl_status placed(const gbnf *g, size_t at, sl_status status, sl_error *err)
{
    if (status == SL_OK || status == SL_ERR_MEMORY)
        return status;
    sl_error inner = {0};
    if (err)
        inner = *err;
    return fail_at(g, at, status, inner.message, err);
}

static bool at_end(const gbnf *g)
{
    return g->at >= g->n;
}

static char peek(const gbnf *g)
{
    return at_end(g) ? '\0' : g->text[g->at];
}

/* White space and comments; line ends only where a rule goes on over them. */
static void skip_space(gbnf *g, bool lines)
{
    for (; !at_end(g); g->at++) {
        const char c = g->text[g->at];
        if (c == '#') {
            while (!at_end(g) && peek(g) != '\n' && peek(g) != '\r')
                g->at++;
            g->at--;
        } else if (c != ' ' && c != '\t' && !(lines && (c == '\n' || c == '\r'))) {
            return;
        }
    }
}

/* ---- names ---- */

static bool is_name_char(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_';
}

static sl_str read_name(gbnf *g)
{
    const size_t begin = g->at;
    while (!at_end(g) && is_name_char(peek(g)))
        g->at++;
    return (sl_str){g->text + begin, g->at - begin};
}

static size_t hash_name(sl_str name)
{
    uint64_t hash = 14695981039346656037u;
    for (size_t i = 0; i < name.n_bytes; i++)
        hash = (hash ^ (unsigned char)name.data[i]) * 1099511628211u;
    return (size_t)(hash ^ hash >> 32);
}

static uint32_t *slot_of(const gbnf *g, sl_str name)
{
    size_t i = hash_name(name) & (g->n_slots - 1);
    while (g->slots[i] != SL_NFA_NONE && !sl_str_equal(g->grammar->rules[g->slots[i]].name, name))
        i = (i + 1) & (g->n_slots - 1);
    return &g->slots[i];
}

static sl_status make_slots(gbnf *g, sl_error *err)
{
    const size_t n_slots = g->n_slots > 0 ? 4 * g->n_slots : 256;
    uint32_t *slots = sl_alloc(SL_MEM_TEXT, n_slots * sizeof *slots);
    uint32_t *used = sl_realloc(SL_MEM_TEXT, g->used_at, n_slots * sizeof *used);
    if (used)
        g->used_at = used;
    if (!slots || !used) {
        sl_free(slots);
        return sl_fail(err, SL_ERR_MEMORY, "out of memory for a grammar");
    }
    sl_free(g->slots);
    g->slots = slots;
    g->n_slots = n_slots;
    memset(slots, 0xFF, n_slots * sizeof *slots);
    for (uint32_t rule = 0; rule < g->grammar->n_rules; rule++)
        *slot_of(g, g->grammar->rules[rule].name) = rule;
    return SL_OK;
}

/* The rule of a name, made when it is new. */
static sl_status find_rule(gbnf *g, sl_str name, size_t at, uint32_t *rule, sl_error *err)
{
    if (g->n_slots < 2 * ((size_t)g->grammar->n_rules + 1))
        SL_TRY(make_slots(g, err));
    uint32_t *slot = slot_of(g, name);
    if (*slot == SL_NFA_NONE) {
        SL_TRY(placed(g, at, sl_grammar_add_rule(g->grammar, name, slot, err), err));
        g->used_at[*slot] = (uint32_t)at;
    }
    *rule = *slot;
    return SL_OK;
}

/* ---- characters ---- */

static sl_status read_hex(gbnf *g, size_t n_digits, uint32_t *code, sl_error *err)
{
    const size_t begin = g->at;
    *code = 0;
    for (size_t i = 0; i < n_digits; i++, g->at++) {
        const char c = peek(g);
        const int digit = c >= '0' && c <= '9'   ? c - '0'
                          : c >= 'a' && c <= 'f' ? c - 'a' + 10
                          : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                                 : -1;
        if (digit < 0)
            return fail_at(g, begin, SL_ERR_FORMAT, "an escape with too few hexadecimal digits",
                           err);
        *code = *code << 4 | (uint32_t)digit;
    }
    if (*code > 0x10FFFF || (*code >= 0xD800 && *code <= 0xDFFF))
        return fail_at(g, begin, SL_ERR_FORMAT, "an escape that is no character", err);
    return SL_OK;
}

static sl_status read_escape(gbnf *g, uint32_t *code, sl_error *err)
{
    static const char letters[] = "nrtbf\\\"[]-^/", values[] = "\n\r\t\b\f\\\"[]-^/";
    const char c = peek(g);
    const char *letter = c ? strchr(letters, c) : NULL;
    g->at++;
    if (letter) {
        *code = (unsigned char)values[letter - letters];
        return SL_OK;
    }
    if (c == 'x' || c == 'u' || c == 'U')
        return read_hex(g, c == 'x' ? 2 : c == 'u' ? 4 : 8, code, err);
    return fail_at(g, g->at - 2, SL_ERR_FORMAT, "an unknown escape", err);
}

/* One character of a string or class, up to `close`. */
static sl_status read_char(gbnf *g, const char *unclosed, size_t begin, uint32_t *code,
                           sl_error *err)
{
    if (at_end(g) || peek(g) == '\n' || peek(g) == '\r')
        return fail_at(g, begin, SL_ERR_FORMAT, unclosed, err);
    if (peek(g) == '\\') {
        g->at++;
        return read_escape(g, code, err);
    }
    g->at += sl_utf8_decode(g->text + g->at, g->n - g->at, code);
    return SL_OK;
}

static sl_status read_string(gbnf *g, sl_error *err)
{
    const size_t begin = g->at++;
    sl_nfa *nfa = &g->grammar->nfa;
    sl_frag string;
    SL_TRY(placed(g, begin, sl_nfa_empty(nfa, &string, err), err));
    while (peek(g) != '"') {
        uint32_t code;
        char bytes[4];
        sl_frag next;
        SL_TRY(read_char(g, "a string that is not closed", begin, &code, err));
        const size_t n = sl_utf8_encode(code, bytes);
        SL_TRY(placed(g, begin, sl_nfa_bytes(nfa, bytes, n, &next, err), err));
        string = sl_nfa_join(nfa, string, next);
    }
    g->at++;
    sl_nfa_atom(&g->parser, string);
    return SL_OK;
}

/* ---- classes ---- */

static int compare_ranges(const void *a, const void *b)
{
    const sl_code_range *x = a, *y = b;
    return x->low < y->low ? -1 : x->low > y->low;
}

/* Ascending ranges that do not touch; of a negated class what is between them. */
static void normalise_class(gbnf *g, bool negated)
{
    size_t n = 0;
    sl_code_range *ranges = g->ranges;
    qsort(ranges, g->n_ranges, sizeof *ranges, compare_ranges);
    for (size_t i = 0; i < g->n_ranges; i++) {
        if (n > 0 && ranges[i].low <= ranges[n - 1].high + 1) {
            if (ranges[i].high > ranges[n - 1].high)
                ranges[n - 1].high = ranges[i].high;
        } else {
            ranges[n++] = ranges[i];
        }
    }
    if (negated) {
        uint32_t low = 0;
        size_t n_between = 0;
        for (size_t i = 0; i < n; i++) {
            const sl_code_range range = ranges[i];
            if (range.low > low)
                ranges[n_between++] = (sl_code_range){low, range.low - 1};
            low = range.high + 1;
        }
        if (low <= any_code.high)
            ranges[n_between++] = (sl_code_range){low, any_code.high};
        n = n_between;
    }
    g->n_ranges = n;
}

static sl_status add_class(gbnf *g, size_t begin, sl_error *err)
{
    sl_frag class;
    SL_TRY(
        placed(g, begin, sl_nfa_utf8(&g->grammar->nfa, g->ranges, g->n_ranges, &class, err), err));
    sl_nfa_atom(&g->parser, class);
    g->is_class = true;
    return SL_OK;
}

static sl_status read_class(gbnf *g, sl_error *err)
{
    const size_t begin = g->at++;
    const bool negated = peek(g) == '^';
    g->at += negated;
    g->n_ranges = 0;
    while (peek(g) != ']') {
        sl_code_range range;
        SL_TRY(read_char(g, "a class that is not closed", begin, &range.low, err));
        range.high = range.low;
        if (peek(g) == '-' && g->at + 1 < g->n && g->text[g->at + 1] != ']') {
            g->at++;
            SL_TRY(read_char(g, "a class that is not closed", begin, &range.high, err));
        }
        if (range.low > range.high)
            return fail_at(g, begin, SL_ERR_FORMAT, "a class with a range whose end is first", err);
        if (g->n_ranges == MAX_CLASS_RANGES)
            return fail_at(g, begin, SL_ERR_LIMIT, "a class with more than 4096 parts", err);
        g->ranges[g->n_ranges++] = range;
    }
    g->at++;
    normalise_class(g, negated);
    return add_class(g, begin, err);
}

/* ---- repetition ---- */

/* A class many times: counted. What was built of it stays unreachable. */
static sl_status count_class(gbnf *g, uint32_t low, uint32_t high, sl_error *err)
{
    sl_frag item, whole;
    uint32_t counted;
    SL_TRY(sl_nfa_utf8(&g->grammar->nfa, g->ranges, g->n_ranges, &item, err));
    SL_TRY(sl_grammar_add_counted(g->grammar, item, NULL, &counted, err));
    SL_TRY(sl_grammar_count(g->grammar, counted, low, high, &whole, err));
    g->parser.groups[g->parser.n_groups - 1].atom = whole;
    return SL_OK;
}

static sl_status repeat(gbnf *g, size_t at, uint32_t low, uint32_t high, sl_error *err)
{
    if (!sl_nfa_has_atom(&g->parser))
        return fail_at(g, at, SL_ERR_FORMAT, "there is nothing to repeat", err);
    const bool counts =
        g->is_class && (low >= COUNT_FROM || (high != SL_NFA_INF && high >= COUNT_FROM));
    const sl_status status =
        counts ? count_class(g, low, high, err) : sl_nfa_repeat_atom(&g->parser, low, high, err);
    g->is_class = false;
    return placed(g, at, status, err);
}

static sl_status read_number(gbnf *g, uint32_t *value, bool *found, sl_error *err)
{
    const size_t begin = g->at;
    *value = 0;
    for (; peek(g) >= '0' && peek(g) <= '9'; g->at++) {
        *value = 10 * *value + (uint32_t)(peek(g) - '0');
        if (*value > MAX_REPEAT)
            return fail_at(g, begin, SL_ERR_LIMIT, "a repetition of more than 1048576 times", err);
    }
    *found = g->at > begin;
    return SL_OK;
}

static sl_status read_braces(gbnf *g, sl_error *err)
{
    const size_t begin = g->at++;
    uint32_t low, high;
    bool has_low, has_high = true;
    skip_space(g, false);
    SL_TRY(read_number(g, &low, &has_low, err));
    skip_space(g, false);
    high = low;
    if (peek(g) == ',') {
        g->at++;
        skip_space(g, false);
        SL_TRY(read_number(g, &high, &has_high, err));
        skip_space(g, false);
        if (!has_high)
            high = SL_NFA_INF;
    }
    if (peek(g) != '}' || (!has_low && !has_high))
        return fail_at(g, begin, SL_ERR_FORMAT, "a repetition is {m}, {m,}, {,n} or {m,n}", err);
    g->at++;
    if (low > high)
        return fail_at(g, begin, SL_ERR_FORMAT, "a repetition whose end is first", err);
    return repeat(g, begin, low, high, err);
}

/* ---- rules ---- */

static sl_status read_reference(gbnf *g, sl_error *err)
{
    uint32_t rule;
    sl_frag call;
    const size_t begin = g->at;
    SL_TRY(find_rule(g, read_name(g), begin, &rule, err));
    SL_TRY(placed(g, begin, sl_nfa_call(&g->grammar->nfa, SL_NFA_CALL, rule, &call, err), err));
    sl_nfa_atom(&g->parser, call);
    return SL_OK;
}

static sl_status close_group(gbnf *g, sl_error *err)
{
    sl_frag group;
    if (g->parser.n_groups == 1)
        return fail_at(g, g->at, SL_ERR_FORMAT, "a ')' without a '('", err);
    SL_TRY(placed(g, g->at, sl_nfa_close(&g->parser, &group, err), err));
    g->at++;
    sl_nfa_atom(&g->parser, group);
    return SL_OK;
}

/* One part of a rule; *done at its end. */
static sl_status read_part(gbnf *g, bool *done, sl_error *err)
{
    const size_t begin = g->at;
    const char c = peek(g);
    const bool was_class = g->is_class;
    g->is_class = false;
    switch (c) {
    case '"':
        return read_string(g, err);
    case '[':
        return read_class(g, err);
    case '.':
        g->at++;
        g->ranges[0] = any_code;
        g->n_ranges = 1;
        return add_class(g, begin, err);
    case '(':
        g->at++;
        return placed(g, begin, sl_nfa_open(&g->parser, begin, err), err);
    case ')':
        return close_group(g, err);
    case '|':
        g->at++;
        SL_TRY(placed(g, begin, sl_nfa_bar(&g->parser, err), err));
        skip_space(g, true);
        return SL_OK;
    case '?':
    case '*':
    case '+':
        g->at++;
        g->is_class = was_class;
        return repeat(g, begin, c == '+', c == '?' ? 1 : SL_NFA_INF, err);
    case '{':
        g->is_class = was_class;
        return read_braces(g, err);
    default:
        break;
    }
    if (is_name_char(c))
        return read_reference(g, err);
    if (!at_end(g) && c != '\n' && c != '\r')
        return fail_at(g, begin, SL_ERR_FORMAT, "a character that does not belong in a rule", err);
    /* The line ends, and the rule too unless the next one goes on with a choice. */
    skip_space(g, true);
    *done = peek(g) != '|';
    return SL_OK;
}

static sl_status read_body(gbnf *g, uint32_t rule, sl_error *err)
{
    bool done = false;
    sl_frag body;
    const size_t begin = g->at;
    g->is_class = false;
    SL_TRY(placed(g, begin, sl_nfa_open(&g->parser, begin, err), err));
    while (!done) {
        const bool nested = g->parser.n_groups > 1;
        skip_space(g, nested);
        if (nested && at_end(g))
            return fail_at(g, g->parser.groups[g->parser.n_groups - 1].offset, SL_ERR_FORMAT,
                           "a '(' that is not closed", err);
        SL_TRY(read_part(g, &done, err));
    }
    SL_TRY(placed(g, begin, sl_nfa_close(&g->parser, &body, err), err));
    return placed(g, begin, sl_grammar_define(g->grammar, rule, body, err), err);
}

static sl_status read_rule(gbnf *g, sl_error *err)
{
    const size_t begin = g->at;
    uint32_t rule;
    const sl_str name = read_name(g);
    if (name.n_bytes == 0)
        return fail_at(g, begin, SL_ERR_FORMAT, "a rule begins with its name", err);
    skip_space(g, false);
    if (g->n - g->at < 3 || memcmp(g->text + g->at, "::=", 3) != 0)
        return fail_at(g, g->at, SL_ERR_FORMAT, "\"::=\" belongs behind the name of a rule", err);
    g->at += 3;
    SL_TRY(find_rule(g, name, begin, &rule, err));
    if (g->grammar->rules[rule].entry != SL_NFA_NONE)
        return fail_at(g, begin, SL_ERR_FORMAT, "a rule of this name was defined before", err);
    skip_space(g, true);
    return read_body(g, rule, err);
}

static sl_status check_defined(const gbnf *g, sl_error *err)
{
    const sl_grammar *grammar = g->grammar;
    if (grammar->rules[0].entry == SL_NFA_NONE)
        return sl_fail(err, SL_ERR_FORMAT, "grammar: there is no rule \"root\"");
    for (uint32_t rule = 0; rule < grammar->n_rules; rule++) {
        if (grammar->rules[rule].entry == SL_NFA_NONE)
            return fail_at(g, g->used_at[rule], SL_ERR_FORMAT, "there is no rule of this name",
                           err);
    }
    return SL_OK;
}

static sl_status read_grammar(gbnf *g, sl_error *err)
{
    uint32_t root;
    size_t bad;
    if (g->n > SL_GRAMMAR_MAX_TEXT)
        return sl_fail(err, SL_ERR_LIMIT, "a grammar of %zu bytes, the limit is %d", g->n,
                       SL_GRAMMAR_MAX_TEXT);
    if (!sl_utf8_valid(g->text, g->n, &bad))
        return fail_at(g, bad, SL_ERR_FORMAT, "text that is not UTF-8", err);
    g->ranges = sl_alloc_array(SL_MEM_TEXT, MAX_CLASS_RANGES + 1, sizeof *g->ranges);
    if (!g->ranges)
        return sl_fail(err, SL_ERR_MEMORY, "out of memory for a grammar");
    SL_TRY(find_rule(g, sl_str_of("root"), 0, &root, err));
    for (skip_space(g, true); !at_end(g); skip_space(g, true))
        SL_TRY(read_rule(g, err));
    SL_TRY(check_defined(g, err));
    return sl_grammar_finish(g->grammar, err);
}

sl_status sl_grammar_from_gbnf(sl_str text, sl_grammar **out, sl_error *err)
{
    *out = NULL;
    gbnf g = {.text = text.data, .n = text.n_bytes};
    sl_status status = sl_grammar_new(&g.grammar, err);
    if (status == SL_OK) {
        sl_nfa_parser_init(&g.parser, &g.grammar->nfa);
        status = read_grammar(&g, err);
    }
    sl_nfa_parser_free(&g.parser);
    sl_free(g.slots);
    sl_free(g.used_at);
    sl_free(g.ranges);
    if (status != SL_OK) {
        sl_grammar_free(g.grammar);
        return status;
    }
    *out = g.grammar;
    return SL_OK;
}
