/* Languages of texts as deterministic automata over code points: patterns, lengths, names. They can
 * be intersected and inverted, which is what several rules for one string come to. */
#ifndef SL_GRAMMAR_REGEX_H
#define SL_GRAMMAR_REGEX_H

#include "base/str.h"
#include "grammar/nfa.h"

enum {
    SL_CDFA_MAX_STATES = 1 << 14,
    SL_CDFA_MAX_EDGES = 1 << 21,
    SL_REGEX_MAX_BYTES = 1 << 16,
    SL_REGEX_MAX_NODES = 1 << 18,
    SL_REGEX_MAX_REPEAT = 1 << 16
};

/* Zero-initialise. Begins in state 0. Class c is the code points bounds[c] .. bounds[c + 1] - 1,
 * the last one ends with U+10FFFF. */
typedef struct sl_cdfa {
    uint32_t n_states, n_classes;
    uint32_t *bounds; /* [n_classes] */
    uint32_t *next;   /* [n_states][n_classes] */
    uint8_t *accepts; /* [n_states] */
} sl_cdfa;

void sl_cdfa_free(sl_cdfa *dfa);

/* The texts in which an ECMA-262 regular expression (with the flag u) is found, as JSON Schema
 * means it. Errors: SL_ERR_FORMAT with the offset, SL_ERR_UNSUPPORTED naming the construct,
 * SL_ERR_LIMIT, SL_ERR_MEMORY. */
sl_status sl_cdfa_pattern(sl_str pattern, sl_cdfa *out, sl_error *err);

/* min to max code points; max may be SL_NFA_INF. */
sl_status sl_cdfa_length(uint32_t min, uint32_t max, sl_cdfa *out, sl_error *err);

/* These texts (valid UTF-8) and no others. */
sl_status sl_cdfa_texts(const sl_str *texts, size_t n, sl_cdfa *out, sl_error *err);

void sl_cdfa_invert(sl_cdfa *dfa);
sl_status sl_cdfa_intersect(const sl_cdfa *a, const sl_cdfa *b, sl_cdfa *out, sl_error *err);
bool sl_cdfa_matches(const sl_cdfa *dfa, sl_str text);

/* Every code point leads back here; the text then fits or not, whatever follows. */
bool sl_cdfa_is_sink(const sl_cdfa *dfa, uint32_t state);

/* Whether no text fits. */
bool sl_cdfa_is_empty(const sl_cdfa *dfa);

#endif
