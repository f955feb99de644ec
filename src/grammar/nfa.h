/* Nondeterministic automata being built: nodes in one growing array, and fragments of them that are
 * joined, chosen between, repeated and copied. A grammar is one over bytes, with calls of rules; a
 * regular expression is one over code points first.
 *
 * Nothing here recurses. A fragment's nodes lie behind each other, from `first` to the end of the
 * array at the time when it was the last one built: that is what makes a copy cheap. */
#ifndef SL_GRAMMAR_NFA_H
#define SL_GRAMMAR_NFA_H

#include "base/err.h"

#define SL_NFA_NONE UINT32_MAX
#define SL_NFA_INF  UINT32_MAX /* of a repetition: without end */

enum { SL_NFA_MAX_NODES = 1 << 20 };

typedef enum sl_nfa_kind {
    SL_NFA_SPLIT,    /* to next and to other, either may be SL_NFA_NONE */
    SL_NFA_RANGE,    /* by one of low .. high to next; low > high: never */
    SL_NFA_CALL,     /* through the rule `other` to next */
    SL_NFA_COUNT,    /* through the counted text `other` to next */
    SL_NFA_ITEM_END, /* the end of one item of a counted text */
    SL_NFA_END,      /* the end of a rule, of a counted text, or of a regular expression */
    SL_NFA_AT_BEGIN, /* to next, at the beginning of the text (regular expressions) */
    SL_NFA_AT_END    /* to next, at the end of the text */
} sl_nfa_kind;

typedef struct sl_nfa_node {
    uint32_t next, other;
    uint32_t low, high;
    sl_nfa_kind kind;
} sl_nfa_node;

typedef struct sl_nfa {
    sl_nfa_node *nodes;
    uint32_t n, room;
    uint32_t limit; /* of nodes, at most SL_NFA_MAX_NODES */
} sl_nfa;

/* Entered at `entry`; left through `exit`, a split whose next is still open. */
typedef struct sl_frag {
    uint32_t first, entry, exit;
} sl_frag;

typedef struct sl_code_range {
    uint32_t low, high;
} sl_code_range;

void sl_nfa_init(sl_nfa *nfa, uint32_t limit);
void sl_nfa_free(sl_nfa *nfa);

/* Errors of all of these: SL_ERR_LIMIT (too many nodes), SL_ERR_MEMORY. */
sl_status sl_nfa_add(sl_nfa *nfa, sl_nfa_node node, uint32_t *id, sl_error *err);
sl_status sl_nfa_empty(sl_nfa *nfa, sl_frag *out, sl_error *err);
sl_status sl_nfa_never(sl_nfa *nfa, sl_frag *out, sl_error *err);
sl_status sl_nfa_range(sl_nfa *nfa, uint32_t low, uint32_t high, sl_frag *out, sl_error *err);
sl_status sl_nfa_bytes(sl_nfa *nfa, const char *s, size_t n, sl_frag *out, sl_error *err);
sl_status sl_nfa_call(sl_nfa *nfa, sl_nfa_kind kind, uint32_t which, sl_frag *out, sl_error *err);

/* One code point out of the ranges, as UTF-8; surrogates are left out. Ranges may overlap. */
sl_status sl_nfa_utf8(sl_nfa *nfa, const sl_code_range *ranges, size_t n, sl_frag *out,
                      sl_error *err);
/* The same as a node for each range, over code points. */
sl_status sl_nfa_codes(sl_nfa *nfa, const sl_code_range *ranges, size_t n, sl_frag *out,
                       sl_error *err);

/* a and then b. */
sl_frag sl_nfa_join(sl_nfa *nfa, sl_frag a, sl_frag b);

/* A choice between fragments that are built between begin and the end of it. Without any it is
 * never passed. */
sl_status sl_nfa_choice(sl_nfa *nfa, sl_frag *choice, sl_error *err);
sl_status sl_nfa_choose(sl_nfa *nfa, sl_frag *choice, sl_frag branch, sl_error *err);

/* frag, the last one built, low to high times; high may be SL_NFA_INF. */
sl_status sl_nfa_repeat(sl_nfa *nfa, sl_frag *frag, uint32_t low, uint32_t high, sl_error *err);

/* ---- expressions with groups ---- */

/* What parsers of grammars and of regular expressions share: sequences of atoms with choices
 * between them, in groups, and a repetition that applies to the last atom. */
enum { SL_NFA_MAX_GROUPS = 512 };

typedef struct sl_nfa_group {
    sl_frag choice, sequence, atom;
    bool has_sequence, has_atom;
    size_t offset; /* where it was opened */
} sl_nfa_group;

typedef struct sl_nfa_parser {
    sl_nfa *nfa;
    sl_nfa_group *groups; /* [n_groups], the innermost last */
    size_t n_groups, room;
} sl_nfa_parser;

void sl_nfa_parser_init(sl_nfa_parser *parser, sl_nfa *nfa);
void sl_nfa_parser_free(sl_nfa_parser *parser);
sl_status sl_nfa_open(sl_nfa_parser *parser, size_t offset, sl_error *err);
void sl_nfa_atom(sl_nfa_parser *parser, sl_frag atom);
sl_status sl_nfa_bar(sl_nfa_parser *parser, sl_error *err);
/* The group as a fragment: an atom of the one around it. */
sl_status sl_nfa_close(sl_nfa_parser *parser, sl_frag *out, sl_error *err);
/* Makes the last atom part of the sequence: it cannot be repeated any more. */
void sl_nfa_settle(sl_nfa_parser *parser);
bool sl_nfa_has_atom(const sl_nfa_parser *parser);
sl_status sl_nfa_repeat_atom(sl_nfa_parser *parser, uint32_t low, uint32_t high, sl_error *err);

#endif
