/* Jinja's tokens with trim_blocks and lstrip_blocks on, as Hugging Face sets them: the newline
 * after a block tag goes, and so do the blanks before a block tag that begins its line. */
#include "text/template_lex.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"

/* Longer numbers are refused. The smallest double written out has 751 digits. */
enum { TMPL_MAX_DIGITS = 760 };

bool sl_tmpl_is_space(uint32_t code)
{
    return (code >= 0x09 && code <= 0x0D) || (code >= 0x1C && code <= 0x20) || code == 0x85 ||
           code == 0xA0 || code == 0x1680 || (code >= 0x2000 && code <= 0x200A) || code == 0x2028 ||
           code == 0x2029 || code == 0x202F || code == 0x205F || code == 0x3000;
}

size_t sl_tmpl_leading_space(sl_str s)
{
    size_t at = 0;
    while (at < s.n_bytes) {
        uint32_t code;
        size_t used = sl_utf8_decode(s.data + at, s.n_bytes - at, &code);
        if (!sl_tmpl_is_space(code))
            break;
        at += used;
    }
    return at;
}

size_t sl_tmpl_without_trailing_space(sl_str s)
{
    size_t n = s.n_bytes;
    while (n > 0) {
        size_t begin = n - 1;
        while (begin > 0 && ((unsigned char)s.data[begin] & 0xC0) == 0x80)
            begin--;
        uint32_t code;
        sl_utf8_decode(s.data + begin, n - begin, &code);
        if (!sl_tmpl_is_space(code))
            break;
        n = begin;
    }
    return n;
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* strtod reads the decimal point of the process's locale, so it is given none. */
bool sl_tmpl_parse_double(sl_str number, double *out)
{
    char text[800];
    size_t n = 0, i = 0;
    long exponent = 0, n_decimals = 0;
    bool behind_point = false;
    for (; i < number.n_bytes && (is_digit(number.data[i]) || number.data[i] == '.'); i++) {
        if (number.data[i] == '.') {
            behind_point = true;
            continue;
        }
        if (n == TMPL_MAX_DIGITS)
            return false;
        text[n++] = number.data[i];
        n_decimals += behind_point;
    }
    if (i + 1 < number.n_bytes) {
        bool negative = number.data[++i] == '-';
        i += (size_t)(negative || number.data[i] == '+');
        for (; i < number.n_bytes; i++) /* beyond 99999 nothing changes any more */
            exponent = exponent > 99999 ? exponent : exponent * 10 + (number.data[i] - '0');
        exponent = negative ? -exponent : exponent;
    }
    snprintf(text + n, sizeof text - n, "e%ld", exponent - n_decimals);
    *out = strtod(text, NULL);
    return true;
}

void sl_tmpl_lex_init(tmpl_lexer *lexer, sl_str source, const char *name, tmpl_arena *arena)
{
    *lexer = (tmpl_lexer){.source = source,
                          .line = 1,
                          .name = name,
                          .arena = arena,
                          .state = TMPL_LEX_TEXT,
                          .line_starting = true};
}

static sl_str rest(const tmpl_lexer *lexer)
{
    return (sl_str){lexer->source.data + lexer->at, lexer->source.n_bytes - lexer->at};
}

static void advance(tmpl_lexer *lexer, size_t n)
{
    for (size_t i = 0; i < n; i++)
        lexer->line += lexer->source.data[lexer->at + i] == '\n';
    lexer->at += n;
}

static bool starts_with(sl_str s, size_t at, const char *prefix)
{
    size_t n = strlen(prefix);
    return at <= s.n_bytes && n <= s.n_bytes - at && memcmp(s.data + at, prefix, n) == 0;
}

static bool is_name_start(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || (unsigned char)c >= 0x80;
}

static bool is_name(char c)
{
    return is_name_start(c) || is_digit(c);
}

/* The length of the end tag ("%}", with an optional sign) at s[at..), with the whitespace that it
 * swallows, or 0. Print tags know no '+' and keep the newline. */
static size_t end_tag(sl_str s, size_t at, const char *closer, bool is_block)
{
    size_t begin = at;
    char sign = at < s.n_bytes ? s.data[at] : '\0';
    if (sign == '-' || (sign == '+' && is_block))
        at++;
    else
        sign = '\0';
    if (!starts_with(s, at, closer))
        return 0;
    at += 2;
    if (sign == '-')
        at += sl_tmpl_leading_space((sl_str){s.data + at, s.n_bytes - at});
    else if (sign == '\0' && is_block && at < s.n_bytes && s.data[at] == '\n')
        at++;
    return at - begin;
}

static void after_tag(tmpl_lexer *lexer)
{
    lexer->line_starting = lexer->at > 0 && lexer->source.data[lexer->at - 1] == '\n';
}

/* The text before a tag without what the tag's sign, or lstrip_blocks, takes away. */
static sl_str text_before_tag(const tmpl_lexer *lexer, sl_str text, char sign, bool is_print)
{
    if (sign == '-') {
        text.n_bytes = sl_tmpl_without_trailing_space(text);
        return text;
    }
    if (sign == '+' || is_print)
        return text;
    size_t line = text.n_bytes;
    while (line > 0 && text.data[line - 1] != '\n')
        line--;
    if (line == 0 && !lexer->line_starting)
        return text;
    sl_str tail = {text.data + line, text.n_bytes - line};
    if (sl_tmpl_leading_space(tail) == tail.n_bytes)
        text.n_bytes = line;
    return text;
}

/* If "{% raw %}" stands at s[at..): the length of the tag, else 0. */
static size_t raw_tag(sl_str s, size_t at)
{
    size_t begin = at;
    at += 2;
    if (at < s.n_bytes && (s.data[at] == '-' || s.data[at] == '+'))
        at++;
    at += sl_tmpl_leading_space((sl_str){s.data + at, s.n_bytes - at});
    if (!starts_with(s, at, "raw"))
        return 0;
    at += 3;
    at += sl_tmpl_leading_space((sl_str){s.data + at, s.n_bytes - at});
    if (starts_with(s, at, "%}"))
        return at + 2 - begin;
    if (!starts_with(s, at, "-%}"))
        return 0;
    at += 3;
    at += sl_tmpl_leading_space((sl_str){s.data + at, s.n_bytes - at});
    return at - begin;
}

static char sign_at(sl_str s, size_t at)
{
    return at < s.n_bytes && (s.data[at] == '-' || s.data[at] == '+') ? s.data[at] : '\0';
}

/* Behind "{% raw %}": the text up to "{% endraw %}". */
static sl_status lex_raw(tmpl_lexer *lexer, uint32_t line, sl_str *text, sl_error *err)
{
    sl_str s = rest(lexer);
    for (size_t at = 0; at < s.n_bytes; at++) {
        if (!starts_with(s, at, "{%"))
            continue;
        size_t end = at + 2;
        char sign = sign_at(s, end);
        end += sign != '\0';
        end += sl_tmpl_leading_space((sl_str){s.data + end, s.n_bytes - end});
        if (!starts_with(s, end, "endraw"))
            continue;
        end += 6;
        end += sl_tmpl_leading_space((sl_str){s.data + end, s.n_bytes - end});
        size_t length = end_tag(s, end, "%}", true);
        if (length == 0)
            continue;
        *text = text_before_tag(lexer, (sl_str){s.data, at}, sign, false);
        advance(lexer, end + length);
        after_tag(lexer);
        return SL_OK;
    }
    return sl_fail(err, SL_ERR_FORMAT, "%s: line %u: raw block without endraw", lexer->name, line);
}

static sl_status skip_comment(tmpl_lexer *lexer, sl_error *err)
{
    sl_str s = rest(lexer);
    for (size_t at = 2 + (size_t)(sign_at(s, 2) != '\0'); at < s.n_bytes; at++) {
        size_t length = end_tag(s, at, "#}", true);
        if (length == 0)
            continue;
        advance(lexer, at + length);
        after_tag(lexer);
        return SL_OK;
    }
    return sl_fail(err, SL_ERR_FORMAT, "%s: line %u: comment without an end", lexer->name,
                   lexer->line);
}

/* Text up to the next tag. Comments are skipped and raw blocks given as text of their own; *got
 * says whether there is a token, as text that whitespace control leaves empty gives none. */
static sl_status lex_text(tmpl_lexer *lexer, tmpl_token *out, bool *got, sl_error *err)
{
    sl_str s = rest(lexer);
    size_t at = 0;
    while (at < s.n_bytes &&
           !(s.data[at] == '{' && at + 1 < s.n_bytes && memchr("{%#", s.data[at + 1], 3)))
        at++;
    sl_str text = {s.data, at};
    *out = (tmpl_token){.kind = TMPL_TOKEN_TEXT, .line = lexer->line, .text = text};
    if (at == s.n_bytes) {
        advance(lexer, at);
        out->kind = at > 0 ? TMPL_TOKEN_TEXT : TMPL_TOKEN_END;
        *got = true;
        return SL_OK;
    }
    char tag = s.data[at + 1];
    out->text = text_before_tag(lexer, text, sign_at(s, at + 2), tag == '{');
    *got = out->text.n_bytes > 0;
    advance(lexer, at);
    if (*got) /* the tag itself comes with the next call */
        return SL_OK;
    *out = (tmpl_token){.line = lexer->line};
    if (tag == '#')
        return skip_comment(lexer, err);
    size_t raw = tag == '%' ? raw_tag(s, at) : 0;
    if (raw > 0) {
        advance(lexer, raw);
        after_tag(lexer);
        out->kind = TMPL_TOKEN_TEXT;
        SL_TRY(lex_raw(lexer, out->line, &out->text, err));
        *got = out->text.n_bytes > 0;
        return SL_OK;
    }
    out->kind = tag == '%' ? TMPL_TOKEN_BLOCK_BEGIN : TMPL_TOKEN_PRINT_BEGIN;
    lexer->state = tag == '%' ? TMPL_LEX_BLOCK : TMPL_LEX_PRINT;
    lexer->n_closers = 0;
    advance(lexer, 2 + (size_t)(sign_at(s, at + 2) != '\0'));
    *got = true;
    return SL_OK;
}

static sl_status bad_escape(const tmpl_lexer *lexer, sl_error *err)
{
    return sl_fail(err, SL_ERR_FORMAT, "%s: line %u: string with a malformed escape", lexer->name,
                   lexer->line);
}

static int hex_digit(char c)
{
    if (is_digit(c))
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* \xhh, \uhhhh, \Uhhhhhhhh: the code point, or false. */
static bool hex_escape(sl_str s, size_t at, size_t n_digits, uint32_t *code)
{
    if (n_digits > s.n_bytes - at)
        return false;
    *code = 0;
    for (size_t i = 0; i < n_digits; i++) {
        int digit = hex_digit(s.data[at + i]);
        if (digit < 0)
            return false;
        *code = *code << 4 | (uint32_t)digit;
    }
    return *code <= 0x10FFFF && !(*code >= 0xD800 && *code <= 0xDFFF);
}

static char simple_escape(char c)
{
    static const char pairs[] = "\\\\''\"\"a\ab\bf\fn\nr\rt\tv\v";
    for (size_t i = 0; i + 1 < sizeof pairs; i += 2) {
        if (pairs[i] == c)
            return pairs[i + 1];
    }
    return '\0';
}

/* Python's escapes. A backslash before anything else stays. */
static sl_status unescape(const tmpl_lexer *lexer, sl_str s, sl_str *out, sl_error *err)
{
    if (s.n_bytes == 0 || !memchr(s.data, '\\', s.n_bytes)) {
        *out = s;
        return SL_OK;
    }
    char *text = sl_tmpl_arena_take(lexer->arena, s.n_bytes);
    if (!text)
        return sl_fail(err, lexer->arena->over_budget ? SL_ERR_LIMIT : SL_ERR_MEMORY,
                       "%s: out of memory for a string of %zu bytes", lexer->name, s.n_bytes);
    size_t n = 0;
    for (size_t i = 0; i < s.n_bytes;) {
        char c = s.data[i++];
        if (c != '\\') {
            text[n++] = c;
            continue;
        }
        c = s.data[i++]; /* the lexer saw to it that one follows */
        uint32_t code;
        if (c == '\n') {
            continue;
        } else if (c == 'x' || c == 'u' || c == 'U') {
            size_t n_digits = c == 'x' ? 2 : c == 'u' ? 4 : 8;
            if (!hex_escape(s, i, n_digits, &code))
                return bad_escape(lexer, err);
            i += n_digits;
            n += sl_utf8_encode(code, text + n);
        } else if (c >= '0' && c <= '7') {
            code = (uint32_t)(c - '0');
            for (int k = 0; k < 2 && i < s.n_bytes && s.data[i] >= '0' && s.data[i] <= '7'; k++)
                code = code << 3 | (uint32_t)(s.data[i++] - '0');
            n += sl_utf8_encode(code, text + n);
        } else if (c == 'N') {
            return bad_escape(lexer, err);
        } else if (simple_escape(c) != '\0') {
            text[n++] = simple_escape(c);
        } else {
            text[n++] = '\\';
            text[n++] = c;
        }
    }
    *out = (sl_str){text, n};
    return SL_OK;
}

static sl_status lex_string(tmpl_lexer *lexer, tmpl_token *out, sl_error *err)
{
    sl_str s = rest(lexer);
    char quote = s.data[0];
    size_t at = 1;
    while (at < s.n_bytes && s.data[at] != quote)
        at += s.data[at] == '\\' ? 2 : 1;
    if (at >= s.n_bytes)
        return sl_fail(err, SL_ERR_FORMAT, "%s: line %u: string without an end", lexer->name,
                       lexer->line);
    SL_TRY(unescape(lexer, (sl_str){s.data + 1, at - 1}, &out->text, err));
    out->kind = TMPL_TOKEN_STRING;
    advance(lexer, at + 1);
    return SL_OK;
}

/* Digits with single underscores between them; appends them to digits[] without. */
static size_t digit_run(sl_str s, size_t at, char *digits, size_t *n)
{
    size_t begin = at;
    while (at < s.n_bytes) {
        if (s.data[at] == '_' && at > begin && at + 1 < s.n_bytes && is_digit(s.data[at + 1]))
            at++;
        if (!is_digit(s.data[at]))
            break;
        if (*n < TMPL_MAX_DIGITS)
            digits[*n] = s.data[at];
        ++*n;
        at++;
    }
    return at - begin;
}

static sl_status bad_number(const tmpl_lexer *lexer, const char *why, sl_error *err)
{
    return sl_fail(err, SL_ERR_FORMAT, "%s: line %u: number %s", lexer->name, lexer->line, why);
}

/* 0x, 0o and 0b. */
static sl_status lex_based_int(tmpl_lexer *lexer, tmpl_token *out, sl_error *err)
{
    sl_str s = rest(lexer);
    char letter = (char)(s.data[1] | 0x20);
    int base = letter == 'x' ? 16 : letter == 'o' ? 8 : 2;
    size_t at = 2, n_digits = 0;
    int64_t value = 0;
    for (; at < s.n_bytes && (hex_digit(s.data[at]) >= 0 || s.data[at] == '_'); at++) {
        if (s.data[at] == '_')
            continue;
        int digit = hex_digit(s.data[at]);
        if (digit >= base)
            return bad_number(lexer, "with a digit outside its base", err);
        if (value > (INT64_MAX - digit) / base)
            return bad_number(lexer, "beyond 64 bits", err);
        value = value * base + digit;
        n_digits++;
    }
    if (n_digits == 0)
        return bad_number(lexer, "without digits", err);
    out->kind = TMPL_TOKEN_INT;
    out->integer = value;
    advance(lexer, at);
    return SL_OK;
}

static sl_status lex_number(tmpl_lexer *lexer, tmpl_token *out, sl_error *err)
{
    sl_str s = rest(lexer);
    if (s.n_bytes > 1 && s.data[0] == '0' && memchr("xXoObB", s.data[1], 6))
        return lex_based_int(lexer, out, err);
    char digits[TMPL_MAX_DIGITS];
    size_t n = 0, at = digit_run(s, 0, digits, &n);
    size_t n_whole = n;
    bool is_float = false;
    bool after_dot = lexer->at > 0 && lexer->source.data[lexer->at - 1] == '.';
    if (!after_dot && at + 1 < s.n_bytes && s.data[at] == '.' && is_digit(s.data[at + 1])) {
        is_float = true;
        if (n < TMPL_MAX_DIGITS)
            digits[n] = '.';
        n++;
        at++;
        at += digit_run(s, at, digits, &n);
    }
    size_t exponent = at + 1;
    if (exponent < s.n_bytes && (s.data[exponent] == '+' || s.data[exponent] == '-'))
        exponent++;
    if (!after_dot && exponent < s.n_bytes && (s.data[at] == 'e' || s.data[at] == 'E') &&
        is_digit(s.data[exponent])) {
        is_float = true;
        for (; at < exponent; at++, n++) {
            if (n < TMPL_MAX_DIGITS)
                digits[n] = s.data[at];
        }
        at += digit_run(s, at, digits, &n);
    }
    if (n > TMPL_MAX_DIGITS)
        return bad_number(lexer, "with too many digits", err);
    out->text = (sl_str){s.data, at};
    if (is_float) {
        out->kind = TMPL_TOKEN_FLOAT;
        if (!sl_tmpl_parse_double((sl_str){digits, n}, &out->real))
            return bad_number(lexer, "with too many digits", err);
        advance(lexer, at);
        return SL_OK;
    }
    out->kind = TMPL_TOKEN_INT;
    for (size_t i = 0; i < n_whole; i++) {
        int digit = digits[i] - '0';
        if (n_whole > 1 && digits[0] == '0' && digit != 0)
            return bad_number(lexer, "with a leading zero", err);
        if (out->integer > (INT64_MAX - digit) / 10)
            return bad_number(lexer, "beyond 64 bits", err);
        out->integer = out->integer * 10 + digit;
    }
    advance(lexer, at);
    return SL_OK;
}

static sl_status lex_operator(tmpl_lexer *lexer, tmpl_token *out, sl_error *err)
{
    static const char *const operators[] = {"//", "**", "==", "!=", "<=", ">=", "+", "-", "*",
                                            "/",  "%",  "~",  "<",  ">",  "=",  ".", ",", ":",
                                            "|",  "(",  ")",  "[",  "]",  "{",  "}"};
    sl_str s = rest(lexer);
    for (size_t i = 0; i < SL_COUNTOF(operators); i++) {
        if (!starts_with(s, 0, operators[i]))
            continue;
        size_t n = strlen(operators[i]);
        char c = s.data[0];
        if (c == '(' || c == '[' || c == '{') {
            if (lexer->n_closers == TMPL_MAX_BRACKETS)
                return sl_fail(err, SL_ERR_LIMIT, "%s: line %u: more than %d nested brackets",
                               lexer->name, lexer->line, TMPL_MAX_BRACKETS);
            lexer->closers[lexer->n_closers++] = c == '(' ? ')' : c == '[' ? ']' : '}';
        } else if (c == ')' || c == ']' || c == '}') {
            if (lexer->n_closers == 0 || lexer->closers[lexer->n_closers - 1] != c)
                return sl_fail(err, SL_ERR_FORMAT, "%s: line %u: '%c' without its opening bracket",
                               lexer->name, lexer->line, c);
            lexer->n_closers--;
        }
        out->kind = TMPL_TOKEN_OPERATOR;
        out->text = (sl_str){s.data, n};
        advance(lexer, n);
        return SL_OK;
    }
    return sl_fail(err, SL_ERR_FORMAT, "%s: line %u: unexpected character '%c' in a tag",
                   lexer->name, lexer->line, s.data[0]);
}

static sl_status lex_inside_tag(tmpl_lexer *lexer, tmpl_token *out, sl_error *err)
{
    bool is_block = lexer->state == TMPL_LEX_BLOCK;
    for (;;) {
        sl_str s = rest(lexer);
        size_t end = lexer->n_closers > 0 ? 0 : end_tag(s, 0, is_block ? "%}" : "}}", is_block);
        *out = (tmpl_token){.line = lexer->line};
        if (end > 0) {
            out->kind = is_block ? TMPL_TOKEN_BLOCK_END : TMPL_TOKEN_PRINT_END;
            advance(lexer, end);
            after_tag(lexer);
            lexer->state = TMPL_LEX_TEXT;
            return SL_OK;
        }
        size_t space = sl_tmpl_leading_space(s);
        if (space == 0)
            break;
        advance(lexer, space);
    }
    sl_str s = rest(lexer);
    if (s.n_bytes == 0) {
        out->kind = TMPL_TOKEN_END;
        return SL_OK;
    }
    char c = s.data[0];
    if (c == '\'' || c == '"')
        return lex_string(lexer, out, err);
    if (is_digit(c))
        return lex_number(lexer, out, err);
    if (!is_name_start(c))
        return lex_operator(lexer, out, err);
    size_t n = 1;
    while (n < s.n_bytes && is_name(s.data[n]))
        n++;
    out->kind = TMPL_TOKEN_NAME;
    out->text = (sl_str){s.data, n};
    advance(lexer, n);
    return SL_OK;
}

sl_status sl_tmpl_lex_next(tmpl_lexer *lexer, tmpl_token *out, sl_error *err)
{
    if (lexer->state != TMPL_LEX_TEXT)
        return lex_inside_tag(lexer, out, err);
    bool got = false;
    while (!got)
        SL_TRY(lex_text(lexer, out, &got, err));
    return SL_OK;
}
