/* Reads regular expressions of the ECMA-262 form into automata over code points. Look-around, word
 * borders, back references and Unicode properties are refused by name. */
#include "grammar/regex.h"

#include "base/utf8.h"
#include "grammar/cdfa_build.h"

enum { MAX_RANGES = 4096, LAST_CODE = 0x10FFFF };

typedef struct regex {
    const char *text;
    size_t n, at;
    sl_nfa nfa;
    sl_nfa_parser parser;
    sl_code_range *ranges; /* of the class being read */
    size_t n_ranges;
} regex;

static const sl_code_range digits[] = {{'0', '9'}};
static const sl_code_range words[] = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
static const sl_code_range spaces[] = {
    {9, 13},          {32, 32},         {0xA0, 0xA0},     {0x1680, 0x1680}, {0x2000, 0x200A},
    {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
static const sl_code_range line_ends[] = {{10, 10}, {13, 13}, {0x2028, 0x2029}};

static sl_status refuse(const regex *r, size_t at, sl_status status, const char *what,
                        sl_error *err)
{
    return sl_fail(err, status, "regular expression \"%.*s\", offset %zu: %s",
                   (int)sl_min_size(r->n, 100), r->text, at, what);
}

static char peek(const regex *r)
{
    return r->at < r->n ? r->text[r->at] : '\0';
}

static bool next_is(const regex *r, const char *s)
{
    const size_t n = strlen(s);
    return r->n - r->at >= n && memcmp(r->text + r->at, s, n) == 0;
}

/* ---- classes ---- */

static sl_status add_range(regex *r, uint32_t low, uint32_t high, sl_error *err)
{
    if (r->n_ranges == MAX_RANGES)
        return refuse(r, r->at, SL_ERR_LIMIT, "a class with more than 4096 ranges", err);
    r->ranges[r->n_ranges++] = (sl_code_range){low, high};
    return SL_OK;
}

/* Ranges in order that do not touch, or what is between them. */
static sl_status add_set(regex *r, const sl_code_range *set, size_t n, bool inverted, sl_error *err)
{
    uint32_t low = 0;
    for (size_t i = 0; i < n; i++) {
        if (!inverted)
            SL_TRY(add_range(r, set[i].low, set[i].high, err));
        else if (set[i].low > low)
            SL_TRY(add_range(r, low, set[i].low - 1, err));
        low = set[i].high + 1;
    }
    return inverted ? add_range(r, low, LAST_CODE, err) : SL_OK;
}

/* \d, \w and so on; false when c is none of them. */
static sl_status add_named_set(regex *r, char c, bool *known, sl_error *err)
{
    *known = true;
    switch (c) {
    case 'd':
    case 'D':
        return add_set(r, digits, SL_COUNTOF(digits), c == 'D', err);
    case 'w':
    case 'W':
        return add_set(r, words, SL_COUNTOF(words), c == 'W', err);
    case 's':
    case 'S':
        return add_set(r, spaces, SL_COUNTOF(spaces), c == 'S', err);
    default:
        *known = false;
        return SL_OK;
    }
}

static sl_status invert_class(regex *r, sl_error *err)
{
    sl_code_range *ranges = r->ranges;
    const size_t n = sl_code_ranges_join(ranges, r->n_ranges);
    uint32_t low = 0;
    r->n_ranges = 0;
    for (size_t i = 0; i < n; i++) {
        const sl_code_range range = ranges[i];
        if (range.low > low)
            ranges[r->n_ranges++] = (sl_code_range){low, range.low - 1};
        low = range.high + 1;
    }
    return low <= LAST_CODE ? add_range(r, low, LAST_CODE, err) : SL_OK;
}

static sl_status add_class(regex *r, sl_error *err)
{
    sl_frag class;
    r->n_ranges = sl_code_ranges_join(r->ranges, r->n_ranges);
    SL_TRY(sl_nfa_codes(&r->nfa, r->ranges, r->n_ranges, &class, err));
    sl_nfa_atom(&r->parser, class);
    return SL_OK;
}

static sl_status add_code(regex *r, uint32_t code, sl_error *err)
{
    sl_frag atom;
    SL_TRY(sl_nfa_range(&r->nfa, code, code, &atom, err));
    sl_nfa_atom(&r->parser, atom);
    return SL_OK;
}

/* ---- escapes ---- */

static int hex_digit(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

static sl_status read_hex(regex *r, unsigned n_digits, uint32_t *code, sl_error *err)
{
    *code = 0;
    for (unsigned i = 0; i < n_digits; i++, r->at++) {
        const int digit = hex_digit(peek(r));
        if (digit < 0)
            return refuse(r, r->at, SL_ERR_FORMAT, "too few hexadecimal digits", err);
        *code = *code << 4 | (uint32_t)digit;
    }
    return SL_OK;
}

static sl_status read_braced_hex(regex *r, uint32_t *code, sl_error *err)
{
    *code = 0;
    r->at++;
    do {
        const int digit = hex_digit(peek(r));
        if (digit < 0)
            return refuse(r, r->at, SL_ERR_FORMAT, "no hexadecimal number in \\u{...}", err);
        *code = *code << 4 | (uint32_t)digit;
        if (*code > LAST_CODE)
            return refuse(r, r->at, SL_ERR_FORMAT, "a code point above U+10FFFF", err);
        r->at++;
    } while (peek(r) != '}');
    r->at++;
    return SL_OK;
}

static sl_status read_unicode(regex *r, uint32_t *code, sl_error *err)
{
    const size_t begin = r->at;
    if (peek(r) == '{') {
        SL_TRY(read_braced_hex(r, code, err));
    } else {
        SL_TRY(read_hex(r, 4, code, err));
        if (*code >= 0xD800 && *code < 0xDC00 && next_is(r, "\\u")) {
            uint32_t low;
            r->at += 2;
            SL_TRY(read_hex(r, 4, &low, err));
            *code = low >= 0xDC00 && low < 0xE000
                        ? 0x10000 + ((*code - 0xD800) << 10) + (low - 0xDC00)
                        : 0xD800;
        }
    }
    if (*code >= 0xD800 && *code < 0xE000)
        return refuse(r, begin, SL_ERR_UNSUPPORTED, "half of a surrogate pair", err);
    return SL_OK;
}

/* The character of an escape, `at` being behind the backslash. */
static sl_status read_escape(regex *r, bool in_class, uint32_t *code, sl_error *err)
{
    static const char letters[] = "tnrfv0", values[] = "\t\n\r\f\v";
    const size_t begin = r->at - 1;
    const char c = peek(r);
    if (r->at >= r->n)
        return refuse(r, begin, SL_ERR_FORMAT, "a backslash at the end", err);
    r->at++;
    const char *letter = c ? strchr(letters, c) : NULL;
    if (letter) {
        *code = (unsigned char)values[letter - letters];
        return SL_OK;
    }
    if (c == 'x')
        return read_hex(r, 2, code, err);
    if (c == 'u')
        return read_unicode(r, code, err);
    if (c == 'b' && in_class) {
        *code = '\b';
        return SL_OK;
    }
    if (c == 'c' && ((peek(r) | 32) >= 'a' && (peek(r) | 32) <= 'z')) {
        *code = (uint32_t)(r->text[r->at++] & 31);
        return SL_OK;
    }
    if (c == 'b' || c == 'B')
        return refuse(r, begin, SL_ERR_UNSUPPORTED, "word borders (\\b, \\B) are not supported",
                      err);
    if (c == 'p' || c == 'P')
        return refuse(r, begin, SL_ERR_UNSUPPORTED, "Unicode properties (\\p) are not supported",
                      err);
    if ((c >= '1' && c <= '9') || c == 'k')
        return refuse(r, begin, SL_ERR_UNSUPPORTED, "back references are not supported", err);
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'))
        return refuse(r, begin, SL_ERR_FORMAT, "an unknown escape", err);
    r->at--;
    r->at += sl_utf8_decode(r->text + r->at, r->n - r->at, code);
    return SL_OK;
}

static sl_status read_escaped_atom(regex *r, sl_error *err)
{
    bool is_set;
    uint32_t code;
    r->at++;
    r->n_ranges = 0;
    SL_TRY(add_named_set(r, peek(r), &is_set, err));
    if (is_set) {
        r->at++;
        return add_class(r, err);
    }
    SL_TRY(read_escape(r, false, &code, err));
    return add_code(r, code, err);
}

/* One end of a range, or a named set (*is_set). */
static sl_status read_class_part(regex *r, size_t begin, uint32_t *code, bool *is_set,
                                 sl_error *err)
{
    *is_set = false;
    if (r->at >= r->n)
        return refuse(r, begin, SL_ERR_FORMAT, "a class that is not closed", err);
    if (peek(r) != '\\') {
        r->at += sl_utf8_decode(r->text + r->at, r->n - r->at, code);
        return SL_OK;
    }
    r->at++;
    SL_TRY(add_named_set(r, peek(r), is_set, err));
    if (*is_set) {
        r->at++;
        return SL_OK;
    }
    return read_escape(r, true, code, err);
}

static sl_status read_class(regex *r, sl_error *err)
{
    const size_t begin = r->at++;
    const bool inverted = peek(r) == '^';
    r->at += inverted;
    r->n_ranges = 0;
    while (r->at >= r->n || peek(r) != ']') {
        uint32_t low = 0, high;
        bool is_set;
        SL_TRY(read_class_part(r, begin, &low, &is_set, err));
        if (is_set)
            continue;
        high = low;
        if (peek(r) == '-' && r->at + 1 < r->n && r->text[r->at + 1] != ']') {
            r->at++;
            SL_TRY(read_class_part(r, begin, &high, &is_set, err));
            if (is_set) { /* [a-\d]: the three of them */
                SL_TRY(add_range(r, '-', '-', err));
                high = low;
            }
        }
        if (low > high)
            return refuse(r, begin, SL_ERR_FORMAT, "a class with a range whose end is first", err);
        SL_TRY(add_range(r, low, high, err));
    }
    r->at++;
    if (inverted)
        SL_TRY(invert_class(r, err));
    return add_class(r, err);
}

/* ---- repetitions ---- */

static bool read_number(regex *r, uint32_t *value)
{
    const size_t begin = r->at;
    *value = 0;
    for (; peek(r) >= '0' && peek(r) <= '9'; r->at++) {
        if (*value <= SL_REGEX_MAX_REPEAT)
            *value = 10 * *value + (uint32_t)(peek(r) - '0');
    }
    return r->at > begin;
}

/* {m}, {m,} or {m,n}; false, and nothing taken, for a brace that stands for itself. */
static bool read_braces(regex *r, uint32_t *low, uint32_t *high)
{
    const size_t begin = r->at++;
    bool good = read_number(r, low);
    *high = *low;
    if (good && peek(r) == ',') {
        r->at++;
        if (peek(r) == '}')
            *high = SL_NFA_INF;
        else
            good = read_number(r, high);
    }
    if (good && peek(r) == '}') {
        r->at++;
        return true;
    }
    r->at = begin;
    return false;
}

static sl_status repeat(regex *r, size_t begin, uint32_t low, uint32_t high, sl_error *err)
{
    if (!sl_nfa_has_atom(&r->parser))
        return refuse(r, begin, SL_ERR_FORMAT, "there is nothing to repeat", err);
    if (low > SL_REGEX_MAX_REPEAT || (high != SL_NFA_INF && high > SL_REGEX_MAX_REPEAT))
        return refuse(r, begin, SL_ERR_LIMIT, "a repetition of more than 65536 times", err);
    if (low > high)
        return refuse(r, begin, SL_ERR_FORMAT, "a repetition whose end is first", err);
    if (peek(r) == '?')
        r->at++; /* lazy: the same texts */
    const size_t again = r->at;
    SL_TRY(sl_nfa_repeat_atom(&r->parser, low, high, err));
    uint32_t m, n;
    const char c = peek(r);
    if (c == '*' || c == '+' || c == '?' || (c == '{' && read_braces(r, &m, &n)))
        return refuse(r, again, SL_ERR_FORMAT, "there is nothing to repeat", err);
    return SL_OK;
}

/* ---- the rest ---- */

/* Zero-width, and nothing that could be repeated. */
static sl_status add_border(regex *r, sl_nfa_kind kind, sl_error *err)
{
    sl_frag border, behind;
    r->at++;
    SL_TRY(sl_nfa_call(&r->nfa, kind, SL_NFA_NONE, &border, err));
    sl_nfa_atom(&r->parser, border);
    SL_TRY(sl_nfa_empty(&r->nfa, &behind, err));
    sl_nfa_atom(&r->parser, behind);
    sl_nfa_settle(&r->parser);
    return SL_OK;
}

static sl_status open_group(regex *r, sl_error *err)
{
    const size_t begin = r->at++;
    if (next_is(r, "?=") || next_is(r, "?!") || next_is(r, "?<=") || next_is(r, "?<!"))
        return refuse(r, begin, SL_ERR_UNSUPPORTED, "look-around is not supported", err);
    if (next_is(r, "?<")) {
        while (r->at < r->n && peek(r) != '>')
            r->at++;
        if (r->at == r->n)
            return refuse(r, begin, SL_ERR_FORMAT, "a group's name without an end", err);
        r->at++;
    } else if (next_is(r, "?:")) {
        r->at += 2;
    } else if (peek(r) == '?') {
        return refuse(r, begin, SL_ERR_UNSUPPORTED, "an unknown kind of group", err);
    }
    return sl_nfa_open(&r->parser, begin, err);
}

static sl_status close_group(regex *r, sl_error *err)
{
    sl_frag group;
    if (r->parser.n_groups == 1)
        return refuse(r, r->at, SL_ERR_FORMAT, "a ')' without a '('", err);
    r->at++;
    SL_TRY(sl_nfa_close(&r->parser, &group, err));
    sl_nfa_atom(&r->parser, group);
    return SL_OK;
}

static sl_status read_part(regex *r, sl_error *err)
{
    const size_t begin = r->at;
    uint32_t low, high;
    const char c = peek(r);
    switch (c) {
    case '\\':
        return read_escaped_atom(r, err);
    case '[':
        return read_class(r, err);
    case '(':
        return open_group(r, err);
    case ')':
        return close_group(r, err);
    case '|':
        r->at++;
        return sl_nfa_bar(&r->parser, err);
    case '^':
        return add_border(r, SL_NFA_AT_BEGIN, err);
    case '$':
        return add_border(r, SL_NFA_AT_END, err);
    case '.':
        r->at++;
        r->n_ranges = 0;
        SL_TRY(add_set(r, line_ends, SL_COUNTOF(line_ends), true, err));
        return add_class(r, err);
    case '*':
    case '+':
    case '?':
        r->at++;
        return repeat(r, begin, c == '+', c == '?' ? 1 : SL_NFA_INF, err);
    case '{':
        if (read_braces(r, &low, &high))
            return repeat(r, begin, low, high, err);
        break;
    default:
        break;
    }
    uint32_t code;
    r->at += sl_utf8_decode(r->text + r->at, r->n - r->at, &code);
    return add_code(r, code, err);
}

/* Any text, and then the expression: JSON Schema looks for it anywhere. */
static sl_status read_regex(regex *r, uint32_t *start, sl_error *err)
{
    sl_frag before, whole;
    uint32_t end;
    SL_TRY(sl_nfa_range(&r->nfa, 0, LAST_CODE, &before, err));
    SL_TRY(sl_nfa_repeat(&r->nfa, &before, 0, SL_NFA_INF, err));
    SL_TRY(sl_nfa_open(&r->parser, 0, err));
    while (r->at < r->n)
        SL_TRY(read_part(r, err));
    if (r->parser.n_groups > 1)
        return refuse(r, r->parser.groups[r->parser.n_groups - 1].offset, SL_ERR_FORMAT,
                      "a '(' that is not closed", err);
    SL_TRY(sl_nfa_close(&r->parser, &whole, err));
    whole = sl_nfa_join(&r->nfa, before, whole);
    SL_TRY(sl_nfa_add(&r->nfa,
                      (sl_nfa_node){.kind = SL_NFA_END, .next = SL_NFA_NONE, .other = SL_NFA_NONE},
                      &end, err));
    r->nfa.nodes[whole.exit].next = end;
    *start = whole.entry;
    return SL_OK;
}

sl_status sl_cdfa_pattern(sl_str pattern, sl_cdfa *out, sl_error *err)
{
    regex r = {.text = pattern.data, .n = pattern.n_bytes};
    uint32_t start = 0;
    *out = (sl_cdfa){0};
    if (pattern.n_bytes > SL_REGEX_MAX_BYTES)
        return sl_fail(err, SL_ERR_LIMIT, "a regular expression of %zu bytes, the limit is %d",
                       pattern.n_bytes, SL_REGEX_MAX_BYTES);
    sl_nfa_init(&r.nfa, SL_REGEX_MAX_NODES);
    sl_nfa_parser_init(&r.parser, &r.nfa);
    r.ranges = sl_alloc_array(SL_MEM_TEXT, MAX_RANGES, sizeof *r.ranges);
    sl_status status =
        r.ranges ? SL_OK : sl_fail(err, SL_ERR_MEMORY, "out of memory for an expression");
    if (status == SL_OK)
        status = read_regex(&r, &start, err);
    if (status == SL_OK)
        status = sl_cdfa_determinise(&r.nfa, start, true, out, err);
    if (status == SL_ERR_LIMIT && err && strncmp(err->message, "regular", 7) != 0)
        status = sl_fail_within(err, status, "regular expression \"%.*s\"",
                                (int)sl_min_size(r.n, 100), r.text);
    sl_free(r.ranges);
    sl_nfa_parser_free(&r.parser);
    sl_nfa_free(&r.nfa);
    return status;
}
