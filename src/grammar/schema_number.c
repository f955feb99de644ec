/* Numbers of a schema: decimal numbers between two bounds as an automaton that compares digit by
 * digit. Integers keep to the 64-bit range. A number with a bound is written without an exponent
 * and with so few digits that rounding to double cannot bring it past the bound. */
#include <math.h>
#include <stdlib.h>

#include "base/mem.h"
#include "grammar/schema.h"

enum {
    MAX_DIGITS = 40,    /* of a bound, before and behind the point each */
    FREE_DIGITS = 20,   /* of a number without bounds, before and behind the point */
    EXACT_DIGITS = 15,  /* decimal digits that a double tells apart */
    MAX_MULTIPLE = 128, /* a divisor that digits are counted by */
    MAX_LISTED = 2048,  /* multiples between bounds */
    MULTIPLE_DIGITS = 18
};

/* A decimal number from 0 on. */
typedef struct decimal {
    char whole[MAX_DIGITS + 1]; /* without leading zeros, "0" at least */
    char part[MAX_DIGITS + 1];  /* behind the point, without zeros at the end */
    size_t n_whole, n_part;
    bool excluded;
} decimal;

/* Numbers from 0 on. */
typedef struct bounds {
    decimal low, high;
    bool endless;               /* no high */
    size_t max_whole, max_part; /* digits that are written */
} bounds;

typedef struct limit {
    bool is_set, negative, excluded;
    decimal value; /* without its sign */
} limit;

/* ---- reading bounds ---- */

/* A number's text: digits, a point, an exponent. */
static bool read_decimal(const char *text, size_t n, decimal *out)
{
    char digits[2 * MAX_DIGITS + 1];
    size_t n_digits = 0, i = 0;
    long point = 0;
    bool behind = false;
    *out = (decimal){0};
    for (; i < n && text[i] != 'e' && text[i] != 'E'; i++) {
        if (text[i] == '.') {
            behind = true;
            continue;
        }
        if (n_digits == sizeof digits - 1)
            return false;
        digits[n_digits++] = text[i];
        point += !behind;
    }
    if (i < n)
        point += strtol(text + i + 1, NULL, 10);
    if (point < -MAX_DIGITS || point > MAX_DIGITS)
        return false;
    for (long at = point < 0 ? point : 0; at < (long)n_digits || at < point; at++) {
        const char digit = at >= 0 && at < (long)n_digits ? digits[at] : '0';
        if (at < point) {
            if (out->n_whole > 0 || digit != '0')
                out->whole[out->n_whole++] = digit;
        } else if (out->n_part < MAX_DIGITS) {
            out->part[out->n_part++] = digit;
        } else {
            return false;
        }
    }
    while (out->n_part > 0 && out->part[out->n_part - 1] == '0')
        out->n_part--;
    if (out->n_whole == 0)
        out->whole[out->n_whole++] = '0';
    return true;
}

static bool is_zero(const decimal *d)
{
    return d->n_part == 0 && d->n_whole == 1 && d->whole[0] == '0';
}

static sl_status read_limit(const sl_schema *s, const char *keyword, const json_t *value,
                            bool excluded, limit *out, sl_error *err)
{
    sl_buf buf;
    sl_buf_init(&buf, SL_MEM_TEXT, 1 << 16);
    *out = (limit){.is_set = true, .excluded = excluded};
    if (!json_is_number(value) && !sl_json_big_int(value, NULL))
        return sl_schema_fail(s, SL_ERR_FORMAT, keyword, "it must be a number", err);
    sl_status status = sl_json_append(&buf, value, err);
    if (status == SL_OK) {
        out->negative = buf.data[0] == '-';
        if (!read_decimal(buf.data + out->negative, buf.n_bytes - out->negative, &out->value))
            status = sl_schema_unsupported(s, keyword, "a number of more than 40 digits", err);
        out->value.excluded = excluded;
        if (is_zero(&out->value))
            out->negative = false;
    }
    sl_buf_free(&buf);
    return status;
}

/* The sign of a - b, of magnitudes. */
static int compare_decimals(const decimal *a, const decimal *b)
{
    if (a->n_whole != b->n_whole)
        return a->n_whole < b->n_whole ? -1 : 1;
    const int whole = memcmp(a->whole, b->whole, a->n_whole);
    if (whole != 0)
        return whole;
    const size_t n = a->n_part < b->n_part ? a->n_part : b->n_part;
    const int part = memcmp(a->part, b->part, n);
    if (part != 0)
        return part;
    return a->n_part < b->n_part ? -1 : a->n_part > b->n_part;
}

static int compare_limits(const limit *a, const limit *b)
{
    if (a->negative != b->negative)
        return a->negative ? -1 : 1;
    const int order = compare_decimals(&a->value, &b->value);
    return a->negative ? -order : order;
}

/* The tighter of the inclusive and the exclusive keyword. */
static sl_status read_side(const sl_schema *s, const json_t *schema, bool high, limit *out,
                           sl_error *err)
{
    const char *keyword = high ? "maximum" : "minimum";
    const char *exclusive = high ? "exclusiveMaximum" : "exclusiveMinimum";
    const json_t *value = json_object_get(schema, keyword);
    const json_t *beyond = json_object_get(schema, exclusive);
    *out = (limit){0};
    if (value)
        SL_TRY(read_limit(s, keyword, value, json_is_true(beyond), out, err)); /* draft 4 */
    if (!beyond || json_is_boolean(beyond))
        return SL_OK;
    limit other;
    SL_TRY(read_limit(s, exclusive, beyond, true, &other, err));
    const int order = out->is_set ? compare_limits(&other, out) : 0;
    if (!out->is_set || (high ? order <= 0 : order >= 0))
        *out = other;
    return SL_OK;
}

/* ---- comparing digit by digit ---- */

/* What the digits so far say: LOW: they are those of the lower bound; HIGH: of the upper. */
enum { LOW = 1, HIGH = 2, N_SIDES = 4 };

typedef struct comparing {
    sl_nfa *nfa;
    const bounds *b;
    uint32_t exit;
    uint32_t part_entry[N_SIDES]; /* behind the digits before the point */
} comparing;

/* Whether the number may end where `at` digits of the part behind the point were read. */
static bool may_end(const bounds *b, unsigned sides, size_t at)
{
    if (sides & LOW) {
        const bool equal = at >= b->low.n_part; /* its last digit is no zero */
        if (!equal || b->low.excluded)
            return false;
    }
    if (sides & HIGH) {
        if (at >= b->high.n_part && b->high.excluded)
            return false;
    }
    return true;
}

/* *entry: or by a digit of low .. high to next. */
static sl_status or_digit(const comparing *c, uint32_t *entry, char low, char high, uint32_t next,
                          sl_error *err)
{
    uint32_t range;
    if (low > high || next == SL_NFA_NONE)
        return SL_OK;
    const sl_nfa_node node = {.kind = SL_NFA_RANGE,
                              .next = next,
                              .other = SL_NFA_NONE,
                              .low = (unsigned char)low,
                              .high = (unsigned char)high};
    SL_TRY(sl_nfa_add(c->nfa, node, &range, err));
    const sl_nfa_node split = {.kind = SL_NFA_SPLIT, .next = range, .other = *entry};
    return sl_nfa_add(c->nfa, split, entry, err);
}

/* One digit after `sides`, between low and high where those count, to next[] by what it says. */
static sl_status compare_digit(const comparing *c, unsigned sides, char least, char low, char high,
                               const uint32_t next[N_SIDES], uint32_t *entry, sl_error *err)
{
    const char first = sides & LOW ? low : least, last = sides & HIGH ? high : '9';
    *entry = SL_NFA_NONE;
    if (sides == (LOW | HIGH) && low == high)
        return or_digit(c, entry, low, low, next[LOW | HIGH], err);
    if (first > last)
        return SL_OK;
    if (sides & LOW)
        SL_TRY(or_digit(c, entry, low, low, next[LOW], err));
    if (sides & HIGH)
        SL_TRY(or_digit(c, entry, high, high, next[HIGH], err));
    const char from = sides & LOW ? (char)(first + 1) : first;
    const char to = sides & HIGH ? (char)(last - 1) : last;
    return or_digit(c, entry, from, to, next[0], err);
}

/* The digits behind the point, from the last to the first. */
static sl_status build_part(comparing *c, sl_error *err)
{
    const bounds *b = c->b;
    uint32_t next[N_SIDES], entry[N_SIDES];
    for (unsigned sides = 0; sides < N_SIDES; sides++)
        next[sides] = may_end(b, sides, b->max_part) ? c->exit : SL_NFA_NONE;
    for (size_t at = b->max_part; at > 0; at--) {
        const char low = at <= b->low.n_part ? b->low.part[at - 1] : '0';
        const char high = at <= b->high.n_part ? b->high.part[at - 1] : '0';
        for (unsigned sides = 0; sides < N_SIDES; sides++) {
            SL_TRY(compare_digit(c, sides, '0', low, high, next, &entry[sides], err));
            if (at > 1 && may_end(b, sides, at - 1)) {
                const sl_nfa_node split = {
                    .kind = SL_NFA_SPLIT, .next = c->exit, .other = entry[sides]};
                SL_TRY(sl_nfa_add(c->nfa, split, &entry[sides], err));
            }
        }
        memcpy(next, entry, sizeof next);
    }
    for (unsigned sides = 0; sides < N_SIDES; sides++) {
        const bool ends = may_end(b, sides, 0);
        c->part_entry[sides] = ends ? c->exit : SL_NFA_NONE;
        if (b->max_part == 0 || next[sides] == SL_NFA_NONE)
            continue;
        uint32_t point;
        const sl_nfa_node node = {.kind = SL_NFA_RANGE,
                                  .next = next[sides],
                                  .other = SL_NFA_NONE,
                                  .low = '.',
                                  .high = '.'};
        SL_TRY(sl_nfa_add(c->nfa, node, &point, err));
        const sl_nfa_node split = {
            .kind = SL_NFA_SPLIT, .next = point, .other = c->part_entry[sides]};
        SL_TRY(sl_nfa_add(c->nfa, split, &c->part_entry[sides], err));
    }
    return SL_OK;
}

/* Numbers with n digits before the point. */
static sl_status build_whole(const comparing *c, size_t n, uint32_t *start, sl_error *err)
{
    const bounds *b = c->b;
    uint32_t next[N_SIDES], entry[N_SIDES];
    const unsigned first =
        (n == b->low.n_whole ? LOW : 0u) | (!b->endless && n == b->high.n_whole ? HIGH : 0u);
    memcpy(next, c->part_entry, sizeof next);
    for (size_t at = n; at > 0; at--) {
        const char low = at <= b->low.n_whole ? b->low.whole[at - 1] : '0';
        const char high = at <= b->high.n_whole ? b->high.whole[at - 1] : '0';
        const char least = at == 1 && n > 1 ? '1' : '0';
        for (unsigned sides = 0; sides < N_SIDES; sides++)
            SL_TRY(compare_digit(c, sides & first, least, low, high, next, &entry[sides], err));
        memcpy(next, entry, sizeof next);
    }
    *start = next[first];
    return SL_OK;
}

/* Numbers from 0 on between bounds, one more branch of the choice. */
static sl_status add_between(sl_schema *s, const bounds *b, const char *sign, sl_frag *choice,
                             sl_error *err)
{
    sl_nfa *nfa = &s->grammar->nfa;
    sl_frag begin, end;
    comparing c = {.nfa = nfa, .b = b};
    if (!b->endless && compare_decimals(&b->low, &b->high) > 0)
        return SL_OK;
    SL_TRY(sl_nfa_bytes(nfa, sign, strlen(sign), &begin, err));
    SL_TRY(sl_nfa_empty(nfa, &end, err));
    c.exit = end.entry;
    SL_TRY(build_part(&c, err));
    const size_t last = b->endless ? b->max_whole : b->high.n_whole;
    uint32_t entry = SL_NFA_NONE;
    for (size_t n = b->low.n_whole; n <= last; n++) {
        uint32_t start;
        SL_TRY(build_whole(&c, n, &start, err));
        const sl_nfa_node split = {.kind = SL_NFA_SPLIT, .next = start, .other = entry};
        SL_TRY(sl_nfa_add(nfa, split, &entry, err));
    }
    nfa->nodes[begin.exit].next = entry;
    return sl_nfa_choose(nfa, choice, (sl_frag){begin.first, begin.entry, end.exit}, err);
}

/* low .. high with signs: the part below 0 and the part from 0 on. */
static sl_status add_signed(sl_schema *s, const limit *low, const limit *high, size_t max_whole,
                            size_t max_part, sl_frag *choice, sl_error *err)
{
    static const decimal zero = {.whole = "0", .n_whole = 1};
    bounds b = {.max_whole = max_whole, .max_part = max_part};
    if (!high->is_set || !high->negative) {
        b.low = low->is_set && !low->negative ? low->value : zero;
        b.high = high->value;
        b.endless = !high->is_set;
        SL_TRY(add_between(s, &b, "", choice, err));
    }
    if (low->is_set && !low->negative)
        return SL_OK;
    b.low = zero;
    b.low.excluded = true; /* "-0" is left out where there are bounds */
    if (high->is_set && high->negative)
        b.low = high->value;
    b.high = low->value;
    b.endless = !low->is_set;
    return add_between(s, &b, "-", choice, err);
}

/* ---- integers ---- */

/* The whole number at or inside of a limit, in [INT64_MIN, INT64_MAX] or beyond it (false). */
static bool round_limit(const limit *l, bool high, int64_t *out)
{
    decimal d = l->value;
    uint64_t size = 0;
    for (size_t i = 0; i < d.n_whole; i++) {
        const uint64_t digit = (uint64_t)(d.whole[i] - '0');
        if (size > (UINT64_MAX - digit) / 10)
            return false;
        size = 10 * size + digit;
    }
    const bool outward = high != l->negative; /* the magnitude grows towards the limit */
    if (!outward && (d.n_part > 0 || l->excluded))
        size += size < UINT64_MAX;
    else if (outward && d.n_part == 0 && l->excluded) {
        if (size == 0) { /* below 0: -1; above 0: 1 */
            *out = high ? -1 : 1;
            return true;
        }
        size--;
    }
    if (size > (uint64_t)INT64_MAX + l->negative)
        return false;
    *out = l->negative ? (int64_t)(0 - size) : (int64_t)size;
    return true;
}

static limit limit_of(int64_t value)
{
    limit l = {.is_set = true, .negative = value < 0};
    uint64_t size = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
    char digits[24];
    size_t n = 0;
    do
        digits[n++] = (char)('0' + size % 10);
    while ((size /= 10) > 0);
    while (n > 0)
        l.value.whole[l.value.n_whole++] = digits[--n];
    return l;
}

/* false: no integer is between the limits. */
static bool integer_range(const limit *low, const limit *high, int64_t *from, int64_t *to)
{
    *from = INT64_MIN;
    *to = INT64_MAX;
    if (low->is_set && !round_limit(low, false, from)) {
        if (!low->negative)
            return false;
        *from = INT64_MIN;
    }
    if (high->is_set && !round_limit(high, true, to)) {
        if (high->negative)
            return false;
        *to = INT64_MAX;
    }
    return *from <= *to;
}

static sl_status add_integers(sl_schema *s, int64_t from, int64_t to, sl_frag *out, sl_error *err)
{
    const limit low = limit_of(from), high = limit_of(to);
    SL_TRY(sl_nfa_choice(&s->grammar->nfa, out, err));
    return add_signed(s, &low, &high, 0, 0, out, err);
}

/* ---- multiples ---- */

static sl_status list_multiples(sl_schema *s, int64_t from, int64_t to, int64_t of, sl_frag *out,
                                sl_error *err)
{
    SL_TRY(sl_nfa_choice(&s->grammar->nfa, out, err));
    int64_t value = from - from % of;
    if (value < from)
        value += of;
    for (; value <= to; value += of) {
        sl_frag branch;
        sl_buf text;
        sl_buf_init(&text, SL_MEM_TEXT, 64);
        sl_status status = sl_buf_printf(&text, err, "%lld", (long long)value);
        if (status == SL_OK)
            status = sl_nfa_bytes(&s->grammar->nfa, text.data, text.n_bytes, &branch, err);
        sl_buf_free(&text);
        SL_TRY(status);
        SL_TRY(sl_nfa_choose(&s->grammar->nfa, out, branch, err));
        if (value > INT64_MAX - of)
            break;
    }
    return SL_OK;
}

/* A digit after a number with remainder r leads to remainder (10 r + digit) mod of. */
static sl_status count_multiples(sl_schema *s, uint32_t of, sl_frag *out, sl_error *err)
{
    sl_nfa *nfa = &s->grammar->nfa;
    uint32_t next[MAX_MULTIPLE], entry[MAX_MULTIPLE];
    sl_frag end, zero;
    const comparing c = {.nfa = nfa};
    SL_TRY(sl_nfa_choice(nfa, out, err));
    SL_TRY(sl_nfa_bytes(nfa, "0", 1, &zero, err));
    SL_TRY(sl_nfa_choose(nfa, out, zero, err));
    SL_TRY(sl_nfa_empty(nfa, &end, err));
    for (uint32_t r = 0; r < of; r++)
        next[r] = r == 0 ? end.entry : SL_NFA_NONE;
    for (int at = MULTIPLE_DIGITS; at > 0; at--) {
        for (uint32_t r = 0; r < (at > 1 ? of : 1); r++) {
            entry[r] = r == 0 && at > 1 ? end.entry : SL_NFA_NONE;
            for (char digit = at > 1 ? '0' : '1'; digit <= '9'; digit++)
                SL_TRY(or_digit(&c, &entry[r], digit, digit,
                                next[(10 * r + (uint32_t)(digit - '0')) % of], err));
        }
        memcpy(next, entry, sizeof next);
    }
    const uint32_t first = next[0] != SL_NFA_NONE ? next[0] : end.entry;
    return sl_nfa_choose(nfa, out, (sl_frag){zero.first, first, end.exit}, err);
}

static sl_status multiples(sl_schema *s, const json_t *multiple, const limit *low,
                           const limit *high, sl_frag *out, sl_error *err)
{
    int64_t from, to;
    const json_int_t of = json_integer_value(multiple);
    if (!json_is_integer(multiple) || of < 1)
        return sl_schema_unsupported(s, "multipleOf", "only whole numbers from 1 on", err);
    if (!integer_range(low, high, &from, &to))
        return sl_nfa_never(&s->grammar->nfa, out, err);
    if (of == 1)
        return add_integers(s, from, to, out, err);
    if (((uint64_t)to - (uint64_t)from) / (uint64_t)of < MAX_LISTED)
        return list_multiples(s, from, to, of, out, err);
    const bool from_zero = low->is_set && from == 0;
    if (of > MAX_MULTIPLE || high->is_set || (low->is_set && !from_zero))
        return sl_schema_unsupported(s, "multipleOf", "with these bounds, or a divisor above 128",
                                     err);
    SL_TRY(count_multiples(s, (uint32_t)of, out, err));
    if (from_zero)
        return SL_OK;
    sl_frag sign;
    SL_TRY(sl_nfa_bytes(&s->grammar->nfa, "-", 1, &sign, err));
    SL_TRY(sl_nfa_repeat(&s->grammar->nfa, &sign, 0, 1, err));
    *out = sl_nfa_join(&s->grammar->nfa, sign, *out);
    return SL_OK;
}

/* ---- numbers ---- */

static sl_status digits(sl_nfa *nfa, char least, uint32_t min, uint32_t max, sl_frag *out,
                        sl_error *err)
{
    SL_TRY(sl_nfa_range(nfa, (unsigned char)least, '9', out, err));
    return sl_nfa_repeat(nfa, out, min, max, err);
}

/* Any number: a sign, digits, a part behind the point, an exponent of two digits. */
static sl_status any_number(sl_nfa *nfa, sl_frag *out, sl_error *err)
{
    sl_frag whole, first, rest, zero, part, more, exponent, sign, plus;
    SL_TRY(sl_nfa_bytes(nfa, "-", 1, out, err));
    SL_TRY(sl_nfa_repeat(nfa, out, 0, 1, err));
    SL_TRY(sl_nfa_choice(nfa, &whole, err));
    SL_TRY(sl_nfa_bytes(nfa, "0", 1, &zero, err));
    SL_TRY(sl_nfa_choose(nfa, &whole, zero, err));
    SL_TRY(digits(nfa, '1', 1, 1, &first, err));
    SL_TRY(digits(nfa, '0', 0, FREE_DIGITS - 1, &rest, err));
    SL_TRY(sl_nfa_choose(nfa, &whole, sl_nfa_join(nfa, first, rest), err));
    *out = sl_nfa_join(nfa, *out, whole);
    SL_TRY(sl_nfa_bytes(nfa, ".", 1, &part, err));
    SL_TRY(digits(nfa, '0', 1, FREE_DIGITS, &more, err));
    part = sl_nfa_join(nfa, part, more);
    SL_TRY(sl_nfa_repeat(nfa, &part, 0, 1, err));
    *out = sl_nfa_join(nfa, *out, part);
    static const sl_code_range e[] = {{'E', 'E'}, {'e', 'e'}}, signs[] = {{'+', '+'}, {'-', '-'}};
    SL_TRY(sl_nfa_utf8(nfa, e, SL_COUNTOF(e), &exponent, err));
    SL_TRY(sl_nfa_utf8(nfa, signs, SL_COUNTOF(signs), &plus, err));
    SL_TRY(sl_nfa_repeat(nfa, &plus, 0, 1, err));
    exponent = sl_nfa_join(nfa, exponent, plus);
    SL_TRY(digits(nfa, '0', 1, 2, &sign, err));
    exponent = sl_nfa_join(nfa, exponent, sign);
    SL_TRY(sl_nfa_repeat(nfa, &exponent, 0, 1, err));
    *out = sl_nfa_join(nfa, *out, exponent);
    return SL_OK;
}

/* Digits behind the point that a double still tells apart beside those before it. */
static size_t part_digits(const limit *low, const limit *high)
{
    size_t n_whole = 1, n_part = 1;
    const limit *const limits[] = {low, high};
    for (size_t i = 0; i < 2; i++) {
        if (!limits[i]->is_set)
            continue;
        n_whole = sl_max_size(n_whole, limits[i]->value.n_whole);
        n_part = sl_max_size(n_part, limits[i]->value.n_part);
    }
    return sl_max_size(n_part, n_whole < EXACT_DIGITS ? EXACT_DIGITS - n_whole : 0);
}

sl_status sl_schema_number(sl_schema *s, const json_t *schema, bool integer, sl_frag *out,
                           sl_error *err)
{
    limit low, high;
    int64_t from, to;
    const json_t *multiple = json_object_get(schema, "multipleOf");
    SL_TRY(read_side(s, schema, false, &low, err));
    SL_TRY(read_side(s, schema, true, &high, err));
    if (multiple)
        return multiples(s, multiple, &low, &high, out, err);
    if (integer) {
        if (!integer_range(&low, &high, &from, &to))
            return sl_nfa_never(&s->grammar->nfa, out, err);
        return add_integers(s, from, to, out, err);
    }
    if (!low.is_set && !high.is_set)
        return any_number(&s->grammar->nfa, out, err);
    SL_TRY(sl_nfa_choice(&s->grammar->nfa, out, err));
    return add_signed(s, &low, &high, sl_max_size(FREE_DIGITS, low.value.n_whole + 1),
                      part_digits(&low, &high), out, err);
}

/* ---- listed values ---- */

static double number_of(const json_t *value)
{
    const char *digits_of = sl_json_big_int(value, NULL);
    return digits_of ? strtod(digits_of, NULL) : json_number_value(value);
}

bool sl_schema_number_fits(const json_t *schema, const json_t *value)
{
    const double x = number_of(value);
    const json_t *low = json_object_get(schema, "minimum"),
                 *high = json_object_get(schema, "maximum");
    const json_t *above = json_object_get(schema, "exclusiveMinimum");
    const json_t *below = json_object_get(schema, "exclusiveMaximum");
    if (low && (json_is_true(above) ? x <= number_of(low) : x < number_of(low)))
        return false;
    if (high && (json_is_true(below) ? x >= number_of(high) : x > number_of(high)))
        return false;
    if (json_is_number(above) && x <= number_of(above))
        return false;
    return !json_is_number(below) || x < number_of(below);
}
