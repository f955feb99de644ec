/* The rules, with W = [\p{L}\p{M}] for qwen35 and \p{L} for qwen2. Alternatives are tried in this
 * order at every piece border, each as long as it can be:
 *
 *   contraction  (?i:'s|'t|'re|'ve|'m|'ll|'d)
 *   word         [^\r\n\p{L}\p{N}]?W+
 *   digit        \p{N}
 *   symbols       ?[^\s\p{N}W]+[\r\n]*
 *   lines        \s*[\r\n]+        the white space up to its last line break
 *   spaces       \s+(?!\S)         the white space, less its last character when text follows
 *   space        \s+
 *
 * One of them matches at any character, so there is no text between pieces. Only white space is
 * looked at again: a run is scanned once for its last line break, once more for what follows the
 * break, and its last character a third time. */
#include "text/pretok.h"

#include "base/utf8.h"
#include "text/unicode_tables.h"

enum { END = 0 }; /* flags at the end of the text: no class holds, and no symbol either */

typedef struct scanner {
    const char *text;
    size_t n;
    unsigned word; /* the classes of W */
    size_t n_looks;
} scanner;

/* A character: its flags, with SYMBOL added, and where the next one begins. */
typedef struct look {
    unsigned flags;
    size_t next;
} look;

enum { SYMBOL = 1 << 8 };

static look look_at(scanner *s, size_t pos)
{
    if (pos >= s->n)
        return (look){END, pos};
    s->n_looks++;
    uint32_t code;
    size_t next = pos + sl_utf8_decode(s->text + pos, s->n - pos, &code);
    unsigned flags = sl_unicode_flags(code);
    if (!(flags & (SL_UNICODE_SPACE | SL_UNICODE_NUMBER | s->word)))
        flags |= SYMBOL;
    return (look){flags, next};
}

/* The end of the run of characters with any of `flags` from pos on. */
static size_t run_end(scanner *s, size_t pos, unsigned flags)
{
    look at = look_at(s, pos);
    while (at.flags & flags) {
        pos = at.next;
        at = look_at(s, pos);
    }
    return pos;
}

static bool is_break(char c)
{
    return c == '\r' || c == '\n';
}

/* Bytes of the contraction that begins with the apostrophe at pos, or 0. */
static size_t contraction(const scanner *s, size_t pos)
{
    unsigned char c[3] = {0};
    for (size_t i = 0; i < 3 && pos + i < s->n; i++)
        c[i] = (unsigned char)s->text[pos + i];
    unsigned first = c[1] | 0x20, second = c[2] | 0x20; /* lower case, for letters */
    if (first == 's' || first == 't' || first == 'm' || first == 'd')
        return 2;
    if (((first == 'r' || first == 'v') && second == 'e') || (first == 'l' && second == 'l'))
        return 3;
    if (c[1] == 0xC5 && c[2] == 0xBF)
        return 3; /* U+017F, the long s: the only other character that folds into these letters */
    return 0;
}

/* The end of the piece that begins with white space at pos and is not the prefix of a word or of
 * symbols. */
static size_t white_space(scanner *s, size_t pos)
{
    size_t end = pos, last = pos, after_break = pos;
    look at = look_at(s, pos);
    while (at.flags & SL_UNICODE_SPACE) {
        last = end;
        end = at.next;
        if (is_break(s->text[last]))
            after_break = end;
        at = look_at(s, end);
    }
    if (after_break > pos)
        return after_break;
    return end == s->n || last == pos ? end : last;
}

static size_t next_piece(scanner *s, size_t pos)
{
    const char first = s->text[pos];
    if (first == '\'') {
        size_t used = contraction(s, pos);
        if (used > 0)
            return pos + used;
    }
    look at = look_at(s, pos);
    if (at.flags & s->word)
        return run_end(s, at.next, s->word);
    if (at.flags & SL_UNICODE_NUMBER)
        return at.next;
    look after = look_at(s, at.next);
    if ((after.flags & s->word) && !is_break(first))
        return run_end(s, after.next, s->word);
    if ((at.flags & SYMBOL) || (first == ' ' && (after.flags & SYMBOL))) {
        size_t end = run_end(s, at.next, SYMBOL);
        while (end < s->n && is_break(s->text[end])) {
            end++;
            s->n_looks++;
        }
        return end;
    }
    return white_space(s, pos);
}

size_t sl_pretok_next_counted(sl_pretok_rule rule, const char *text, size_t n, size_t pos,
                              size_t *n_looks)
{
    scanner s = {.text = text, .n = n, .word = SL_UNICODE_LETTER};
    if (rule == SL_PRETOK_QWEN35)
        s.word |= SL_UNICODE_MARK;
    size_t end = next_piece(&s, pos);
    *n_looks += s.n_looks;
    return end;
}

size_t sl_pretok_next(sl_pretok_rule rule, const char *text, size_t n, size_t pos)
{
    size_t n_looks = 0;
    return sl_pretok_next_counted(rule, text, n, pos, &n_looks);
}

static const char *const patterns[] = {
    [SL_PRETOK_QWEN35] = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}"
                         "| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
    [SL_PRETOK_QWEN2] = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}"
                        "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
};

const char *sl_pretok_pattern(sl_pretok_rule rule)
{
    return patterns[rule];
}

bool sl_pretok_rule_of(const char *pattern, sl_pretok_rule *rule)
{
    for (size_t i = 0; i < SL_COUNTOF(patterns); i++) {
        if (strcmp(pattern, patterns[i]) == 0) {
            *rule = (sl_pretok_rule)i;
            return true;
        }
    }
    return false;
}
