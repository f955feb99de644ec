/* Numbers as Python has them, but for integers: these are 64 bits wide, and a result that would not
 * fit is an error of the template, never a wrapped or rounded value. Integers beyond 64 bits can
 * come in from outside; they compare and change their sign, the rest is refused. */
#include "text/template_run.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/dmath.h"
#include "text/template_lex.h"

bool sl_tmpl_is_number(tmpl_value value)
{
    return value.kind == TMPL_BOOL || value.kind == TMPL_INT || value.kind == TMPL_FLOAT ||
           value.kind == TMPL_BIG_INT;
}

bool sl_tmpl_as_int(tmpl_value value, int64_t *out)
{
    if (value.kind == TMPL_BOOL)
        *out = value.as.boolean;
    else if (value.kind == TMPL_INT)
        *out = value.as.integer;
    return value.kind == TMPL_BOOL || value.kind == TMPL_INT;
}

static sl_str trimmed(sl_str s)
{
    s.n_bytes = sl_tmpl_without_trailing_space(s);
    size_t leading = sl_tmpl_leading_space(s);
    return (sl_str){s.data + leading, s.n_bytes - leading};
}

/* Whether s is digits, with single underscores between them. */
static bool is_digit_run(sl_str s)
{
    bool digit_before = false;
    for (size_t i = 0; i < s.n_bytes; i++) {
        bool digit = s.data[i] >= '0' && s.data[i] <= '9';
        if (!digit && !(s.data[i] == '_' && digit_before))
            return false;
        digit_before = digit;
    }
    return digit_before;
}

/* ---- integers beyond 64 bits ---- */

sl_status sl_tmpl_big_int(tmpl_run *run, sl_str digits, tmpl_value *out)
{
    sl_str *own;
    SL_TRY(sl_tmpl_new(run, 1, sizeof *own, &own));
    *own = digits;
    *out = (tmpl_value){.kind = TMPL_BIG_INT, .as.digits = own};
    return SL_OK;
}

sl_status sl_tmpl_int_of_float(tmpl_run *run, double d, tmpl_value *out)
{
    char text[400], *own;
    if (d >= -0x1p63 && d < 0x1p63) {
        *out = tmpl_int((int64_t)d);
        return SL_OK;
    }
    size_t n = (size_t)snprintf(text, sizeof text, "%.0f", d);
    SL_TRY(sl_tmpl_new(run, n, 1, &own));
    memcpy(own, text, n);
    return sl_tmpl_big_int(run, (sl_str){own, n}, out);
}

sl_status sl_tmpl_parse_big_int(tmpl_run *run, sl_str text, tmpl_value *out, bool *found)
{
    sl_str s = trimmed(text);
    bool negative = s.n_bytes > 0 && s.data[0] == '-';
    size_t at = negative || (s.n_bytes > 0 && s.data[0] == '+'), n_digits = 0, n = 0;
    char *digits;
    *found = is_digit_run((sl_str){s.data + at, s.n_bytes - at});
    if (!*found)
        return SL_OK;
    while (at < s.n_bytes && (s.data[at] == '0' || s.data[at] == '_'))
        at++;
    for (size_t i = at; i < s.n_bytes; i++)
        n_digits += s.data[i] != '_';
    if (n_digits > SL_JSON_MAX_DIGITS)
        return sl_tmpl_fail(run, SL_ERR_LIMIT, "int: more than %d digits", SL_JSON_MAX_DIGITS);
    SL_TRY(sl_tmpl_new(run, n_digits + 1, 1, &digits));
    if (negative)
        digits[n++] = '-';
    for (; at < s.n_bytes; at++)
        if (s.data[at] != '_')
            digits[n++] = s.data[at];
    return sl_tmpl_big_int(run, (sl_str){digits, n}, out);
}

static bool has_minus(sl_str digits)
{
    return digits.data[0] == '-';
}

static sl_str magnitude_of(sl_str digits)
{
    size_t sign = has_minus(digits);
    return (sl_str){digits.data + sign, digits.n_bytes - sign};
}

static double big_as_double(sl_str digits)
{
    enum { MAX_DIGITS_OF_DOUBLE = 309 };
    sl_str magnitude = magnitude_of(digits);
    double d = (double)INFINITY;
    if (magnitude.n_bytes <= MAX_DIGITS_OF_DOUBLE)
        sl_tmpl_parse_double(magnitude, &d);
    return has_minus(digits) ? -d : d;
}

static int compare_digits(sl_str a, sl_str b)
{
    bool negative = has_minus(a);
    if (negative != has_minus(b))
        return negative ? -1 : 1;
    int order = (a.n_bytes > b.n_bytes) - (a.n_bytes < b.n_bytes);
    if (order == 0)
        order = memcmp(a.data, b.data, a.n_bytes);
    return order == 0 ? 0 : (order < 0) == negative ? 1 : -1;
}

/* A big integer against any number: a 64-bit one is nearer to zero, and so is every double within
 * 64 bits; a double beyond them is an integer, of which "%.0f" writes every digit. */
static int compare_big(sl_str big, tmpl_value other)
{
    char text[400];
    int away = has_minus(big) ? -1 : 1;
    if (other.kind == TMPL_BIG_INT)
        return compare_digits(big, *other.as.digits);
    if (other.kind != TMPL_FLOAT)
        return away;
    double d = other.as.real;
    if (d != d)
        return 2;
    if (isinf(d))
        return d > 0 ? -1 : 1;
    if (d >= -0x1p63 && d < 0x1p63)
        return away;
    int n = snprintf(text, sizeof text, "%.0f", d);
    return compare_digits(big, (sl_str){text, (size_t)n});
}

/* -value of a big integer; the least 64-bit one is the negative of a big one. */
static sl_status negate_big(tmpl_run *run, sl_str digits, tmpl_value *out)
{
    int64_t i;
    char *text;
    if (has_minus(digits))
        return sl_tmpl_big_int(run, magnitude_of(digits), out);
    SL_TRY(sl_tmpl_new(run, digits.n_bytes + 1, 1, &text));
    text[0] = '-';
    memcpy(text + 1, digits.data, digits.n_bytes);
    sl_str negated = {text, digits.n_bytes + 1};
    if (sl_tmpl_parse_int(negated, 10, &i)) {
        *out = tmpl_int(i);
        return SL_OK;
    }
    return sl_tmpl_big_int(run, negated, out);
}

/* ---- all numbers ---- */

double sl_tmpl_as_double(tmpl_value number)
{
    int64_t i = 0;
    if (number.kind == TMPL_BIG_INT)
        return big_as_double(*number.as.digits);
    return sl_tmpl_as_int(number, &i) ? (double)i : number.as.real;
}

/* An integer against a double, exactly. */
static int compare_mixed(int64_t i, double d)
{
    if (d != d)
        return 2;
    if (d >= 0x1p63)
        return -1;
    if (d < -0x1p63)
        return 1;
    double whole = trunc(d);
    int64_t w = (int64_t)whole;
    if (i != w)
        return i < w ? -1 : 1;
    return (d < whole) - (d > whole);
}

int sl_tmpl_compare_numbers(tmpl_value a, tmpl_value b)
{
    int64_t i = 0, j = 0;
    bool a_int = sl_tmpl_as_int(a, &i), b_int = sl_tmpl_as_int(b, &j);
    if (!sl_tmpl_is_number(a) || !sl_tmpl_is_number(b))
        return 2;
    if (a_int && b_int)
        return (i > j) - (i < j);
    if (a.kind == TMPL_BIG_INT)
        return compare_big(*a.as.digits, b);
    if (b.kind == TMPL_BIG_INT) {
        int order = compare_big(*b.as.digits, a);
        return order == 2 ? 2 : -order;
    }
    if (a_int)
        return compare_mixed(i, b.as.real);
    if (b_int) {
        int order = compare_mixed(j, a.as.real);
        return order == 2 ? 2 : -order;
    }
    double x = a.as.real, y = b.as.real;
    return x != x || y != y ? 2 : (x > y) - (x < y);
}

bool sl_tmpl_is_negative(tmpl_value number)
{
    return number.kind == TMPL_FLOAT ? signbit(number.as.real) != 0
                                     : sl_tmpl_compare_numbers(number, tmpl_int(0)) < 0;
}

static sl_status overflow(tmpl_run *run)
{
    return sl_tmpl_fail(run, SL_ERR_ARGUMENT, "an integer beyond 64 bits");
}

static sl_status division_by_zero(tmpl_run *run)
{
    return sl_tmpl_fail(run, SL_ERR_ARGUMENT, "division by zero");
}

static bool add_fits(int64_t a, int64_t b)
{
    return b >= 0 ? a <= INT64_MAX - b : a >= INT64_MIN - b;
}

static bool mul_fits(int64_t a, int64_t b)
{
    if (a == 0 || b == 0)
        return true;
    if (a == INT64_MIN || b == INT64_MIN)
        return a == 1 || b == 1;
    int64_t x = a < 0 ? -a : a, y = b < 0 ? -b : b;
    return x <= INT64_MAX / y;
}

static sl_status int_power(tmpl_run *run, int64_t base, int64_t exponent, tmpl_value *out)
{
    int64_t power = 1;
    if (base == 0 || base == 1)
        exponent = exponent > 0; /* so that the loop is short whatever the exponent */
    if (base == -1)
        exponent %= 2;
    for (int64_t i = 0; i < exponent; i++) {
        if (!mul_fits(power, base))
            return overflow(run);
        power *= base;
    }
    *out = tmpl_int(power);
    return SL_OK;
}

static sl_status float_arithmetic(tmpl_run *run, tmpl_op op, double x, double y, tmpl_value *out)
{
    double r;
    switch (op) {
    case TMPL_OP_ADD:
        r = x + y;
        break;
    case TMPL_OP_SUB:
        r = x - y;
        break;
    case TMPL_OP_MUL:
        r = x * y;
        break;
    case TMPL_OP_POW:
        if (x == 0 && y < 0)
            return division_by_zero(run);
        if (x < 0 && isfinite(y) && floor(y) != y)
            return sl_tmpl_fail(run, SL_ERR_ARGUMENT, "a complex number as the result of '**'");
        r = sl_pow_f64(fabs(x), y);
        if (signbit(x) && fmod(y, 2) != 0 && floor(y) == y && isfinite(y))
            r = -r;
        if (isinf(r) && !isinf(x) && !isinf(y))
            return sl_tmpl_fail(run, SL_ERR_ARGUMENT, "the result of '**' is too large");
        break;
    default:
        if (y == 0)
            return division_by_zero(run);
        if (op == TMPL_OP_DIV) {
            r = x / y;
            break;
        }
        /* The sign of the remainder is that of the divisor. */
        double mod = fmod(x, y);
        double quotient = (x - mod) / y;
        if (mod != 0 && (y < 0) != (mod < 0)) {
            mod += y;
            quotient -= 1;
        } else if (mod == 0) {
            mod = copysign(0.0, y);
        }
        double floored = floor(quotient);
        if (quotient - floored > 0.5)
            floored += 1;
        if (quotient == 0)
            floored = copysign(0.0, x / y);
        r = op == TMPL_OP_MOD ? mod : floored;
    }
    *out = tmpl_float(r);
    return SL_OK;
}

static sl_status int_arithmetic(tmpl_run *run, tmpl_op op, int64_t a, int64_t b, tmpl_value *out)
{
    switch (op) {
    case TMPL_OP_ADD:
        if (!add_fits(a, b))
            return overflow(run);
        *out = tmpl_int(a + b);
        return SL_OK;
    case TMPL_OP_SUB:
        if (b == INT64_MIN ? a >= 0 : !add_fits(a, -b))
            return overflow(run);
        *out = tmpl_int(a - b);
        return SL_OK;
    case TMPL_OP_MUL:
        if (!mul_fits(a, b))
            return overflow(run);
        *out = tmpl_int(a * b);
        return SL_OK;
    case TMPL_OP_FLOORDIV:
    case TMPL_OP_MOD:
        if (b == 0)
            return division_by_zero(run);
        if (b == -1) { /* INT64_MIN / -1 does not fit */
            if (op == TMPL_OP_FLOORDIV && a == INT64_MIN)
                return overflow(run);
            *out = tmpl_int(op == TMPL_OP_MOD ? 0 : -a);
            return SL_OK;
        }
        int64_t quotient = a / b, remainder = a % b;
        if (remainder != 0 && (remainder < 0) != (b < 0)) {
            quotient--;
            remainder += b;
        }
        *out = tmpl_int(op == TMPL_OP_MOD ? remainder : quotient);
        return SL_OK;
    case TMPL_OP_POW:
        if (b >= 0)
            return int_power(run, a, b, out);
        return float_arithmetic(run, op, (double)a, (double)b, out);
    default: /* '/' */
        return float_arithmetic(run, op, (double)a, (double)b, out);
    }
}

sl_status sl_tmpl_number_arithmetic(tmpl_run *run, tmpl_op op, tmpl_value a, tmpl_value b,
                                    tmpl_value *out)
{
    int64_t i = 0, j = 0;
    if (a.kind == TMPL_BIG_INT || b.kind == TMPL_BIG_INT)
        return sl_tmpl_fail(run, SL_ERR_UNSUPPORTED,
                            "arithmetic on an integer beyond 64 bits is not supported");
    if (sl_tmpl_as_int(a, &i) && sl_tmpl_as_int(b, &j))
        return int_arithmetic(run, op, i, j, out);
    return float_arithmetic(run, op, sl_tmpl_as_double(a), sl_tmpl_as_double(b), out);
}

sl_status sl_tmpl_negate(tmpl_run *run, tmpl_value value, tmpl_value *out)
{
    int64_t i;
    if (value.kind == TMPL_FLOAT) {
        *out = tmpl_float(-value.as.real);
        return SL_OK;
    }
    if (value.kind == TMPL_BIG_INT)
        return negate_big(run, *value.as.digits, out);
    if (!sl_tmpl_as_int(value, &i))
        return sl_tmpl_fail(run, SL_ERR_ARGUMENT, "%s has no negative",
                            sl_tmpl_kind_name((tmpl_kind)value.kind));
    if (i == INT64_MIN)
        return sl_tmpl_big_int(run, (sl_str){"9223372036854775808", 19}, out);
    *out = tmpl_int(-i);
    return SL_OK;
}

static int digit_value(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'z')
        return c - 'a' + 10;
    return c >= 'A' && c <= 'Z' ? c - 'A' + 10 : 99;
}

bool sl_tmpl_parse_int(sl_str text, int base, int64_t *out)
{
    sl_str s = trimmed(text);
    size_t at = 0;
    bool negative = s.n_bytes > 0 && s.data[0] == '-';
    if (s.n_bytes > 0 && (s.data[0] == '-' || s.data[0] == '+'))
        at++;
    if (s.n_bytes - at > 2 && s.data[at] == '0') {
        char letter = (char)(s.data[at + 1] | 0x20);
        int marked = letter == 'x' ? 16 : letter == 'o' ? 8 : letter == 'b' ? 2 : 0;
        if (marked != 0 && (base == marked || base == 0)) {
            at += 2;
            base = marked;
        }
    }
    if (base == 0)
        base = 10;
    int64_t value = 0; /* counted downwards: INT64_MIN has no positive counterpart */
    bool digit_before = false;
    for (; at < s.n_bytes; at++) {
        if (s.data[at] == '_' && digit_before) {
            digit_before = false;
            continue;
        }
        int digit = digit_value(s.data[at]);
        if (digit >= base || value < (INT64_MIN + digit) / base)
            return false;
        value = value * base - digit;
        digit_before = true;
    }
    if (!digit_before || (!negative && value == INT64_MIN))
        return false;
    *out = negative ? value : -value;
    return true;
}

static bool is_word(sl_str s, const char *word)
{
    if (s.n_bytes != strlen(word))
        return false;
    for (size_t i = 0; i < s.n_bytes; i++) {
        if ((s.data[i] | 0x20) != word[i])
            return false;
    }
    return true;
}

bool sl_tmpl_parse_float(sl_str text, double *out)
{
    sl_str s = trimmed(text);
    char plain[760];
    size_t n = 0;
    double sign = 1;
    if (s.n_bytes > 0 && (s.data[0] == '-' || s.data[0] == '+')) {
        sign = s.data[0] == '-' ? -1 : 1;
        s = (sl_str){s.data + 1, s.n_bytes - 1};
    }
    if (is_word(s, "inf") || is_word(s, "infinity")) {
        *out = sign * (double)INFINITY;
        return true;
    }
    if (is_word(s, "nan")) {
        *out = (double)NAN;
        return true;
    }
    size_t exponent = 0;
    while (exponent < s.n_bytes && (s.data[exponent] | 0x20) != 'e')
        exponent++;
    size_t point = 0;
    while (point < exponent && s.data[point] != '.')
        point++;
    sl_str whole = {s.data, point};
    sl_str fraction = {s.data + point + (point < exponent),
                       exponent - point - (size_t)(point < exponent)};
    if ((whole.n_bytes > 0 && !is_digit_run(whole)) ||
        (fraction.n_bytes > 0 && !is_digit_run(fraction)) || whole.n_bytes + fraction.n_bytes == 0)
        return false;
    if (exponent < s.n_bytes) {
        sl_str power = {s.data + exponent + 1, s.n_bytes - exponent - 1};
        if (power.n_bytes > 0 && (power.data[0] == '-' || power.data[0] == '+'))
            power = (sl_str){power.data + 1, power.n_bytes - 1};
        if (!is_digit_run(power))
            return false;
    }
    for (size_t i = 0; i < s.n_bytes; i++) {
        if (s.data[i] == '_')
            continue;
        if (n == sizeof plain)
            return false;
        plain[n++] = s.data[i];
    }
    if (!sl_tmpl_parse_double((sl_str){plain, n}, out))
        return false;
    *out *= sign;
    return true;
}

/* "%.*f" with '.', whatever bytes the locale puts between the digits. */
static size_t plain_decimals(char *text, size_t size, double value, int digits)
{
    snprintf(text, size, "%.*f", digits, value);
    size_t n = 0;
    bool in_point = false;
    for (const char *s = text; *s; s++) {
        bool is_point = *s != '-' && !(*s >= '0' && *s <= '9');
        if (!is_point || !in_point)
            text[n++] = is_point ? '.' : *s;
        in_point = is_point;
    }
    return n;
}

double sl_tmpl_power_of_ten(int64_t exponent)
{
    char text[32];
    double power = 1;
    int n = snprintf(text, sizeof text, "1e%lld", (long long)exponent);
    sl_tmpl_parse_double((sl_str){text, (size_t)n}, &power);
    return power;
}

double sl_tmpl_round(double value, int digits)
{
    if (!isfinite(value) || digits > 308 + 17)
        return value;
    if (digits < 0) {
        if (digits < -308)
            return copysign(0.0, value);
        double unit = sl_tmpl_power_of_ten(-digits);
        return nearbyint(value / unit) * unit;
    }
    char text[720];
    double rounded;
    size_t n = plain_decimals(text, sizeof text, fabs(value), digits);
    return sl_tmpl_parse_double((sl_str){text, n}, &rounded) ? copysign(rounded, value) : value;
}

sl_status sl_tmpl_put_float(tmpl_run *run, double value, int digits)
{
    if (!isfinite(value)) {
        const char *word = value != value ? "nan" : value < 0 ? "-inf" : "inf";
        return sl_tmpl_put(run, word, strlen(word), false);
    }
    if (digits >= 0) {
        char text[400];
        size_t n = plain_decimals(text, sizeof text, value, digits > 60 ? 60 : digits);
        return sl_tmpl_put(run, text, n, false);
    }
    if (run->text.n_bytes > SL_TEMPLATE_MAX_OUTPUT - 32)
        return sl_tmpl_too_long(run);
    sl_status status = sl_json_append_double(&run->text, value, NULL);
    return status == SL_OK ? SL_OK : sl_tmpl_fail(run, status, "out of memory");
}
