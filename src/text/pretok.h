/* The split of plain text into pieces that are tokenised on their own, by the rules of the family.
 * A rule is written as a regular expression in tokenizer.json; here it is a scanner that looks at
 * every character a bounded number of times, whatever the text. */
#ifndef SL_TEXT_PRETOK_H
#define SL_TEXT_PRETOK_H

#include "text/tokenizer.h"

/* The end of the piece of text[0..n) that begins at pos < n, a piece border or 0. Every piece has
 * at least one character and ends at one. The text is UTF-8 (broken sequences count as U+FFFD). */
size_t sl_pretok_next(sl_pretok_rule rule, const char *text, size_t n, size_t pos);

/* The same; adds the number of characters looked at to *n_looks. Over all pieces of a text that is
 * at most SL_PRETOK_MAX_LOOKS times its characters. */
enum { SL_PRETOK_MAX_LOOKS = 5 };
size_t sl_pretok_next_counted(sl_pretok_rule rule, const char *text, size_t n, size_t pos,
                              size_t *n_looks);

/* The pattern of a rule as tokenizer.json spells it, and the rule of a pattern. */
const char *sl_pretok_pattern(sl_pretok_rule rule);
bool sl_pretok_rule_of(const char *pattern, sl_pretok_rule *rule);

#endif
