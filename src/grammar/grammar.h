/* A compiled grammar: rules over bytes, never changed once it is finished.
 *
 * Rules call each other, so a text is read with a stack of returns. A counted text is the one thing
 * that is not spelled out node by node: between min and max items, then a tail ("a JSON string of
 * at most 5,000 characters" is one of characters with the closing quote as its tail). */
#ifndef SL_GRAMMAR_GRAMMAR_H
#define SL_GRAMMAR_GRAMMAR_H

#include "base/str.h"
#include "grammar/nfa.h"

enum {
    SL_GRAMMAR_MAX_TEXT = 4 << 20, /* bytes of a grammar or schema */
    SL_GRAMMAR_MAX_RULES = 1 << 16,
    SL_GRAMMAR_MAX_NEED = 200 /* levels of calls that it takes at least to end a rule */
};

typedef struct sl_rule {
    sl_str name;    /* of a text that the builder keeps, for messages */
    uint32_t entry; /* SL_NFA_NONE until it is defined */
} sl_rule;

/* Items in a row and what ends them. No item begins another, and no item begins like the tail. */
typedef struct sl_counted {
    uint32_t item, tail; /* entries; the item ends in SL_NFA_ITEM_END, the tail in SL_NFA_END */
} sl_counted;

typedef struct sl_count_use {
    uint32_t counted;
    uint32_t min, max; /* items; max may be SL_NFA_INF */
} sl_count_use;

struct sl_grammar {
    sl_nfa nfa;
    sl_rule *rules;
    uint32_t n_rules, rule_room;
    sl_counted *counted;
    uint32_t n_counted, counted_room;
    sl_count_use *uses;
    uint32_t n_uses, use_room;
    bool added_tokens; /* user-defined tokens may stand for their text */

    /* Set by sl_grammar_finish. */
    uint8_t *need;     /* of each node: levels of calls to reach the end of its rule at least; 255:
                        * it never does */
    uint8_t *nullable; /* of each rule: it may be empty */
    uint8_t class_of[256];
    uint8_t sample[256]; /* of each class, a byte in it */
    uint32_t n_classes;
};

enum { SL_NEED_NEVER = 255 };

sl_status sl_grammar_new(sl_grammar **out, sl_error *err);

/* A new rule without a definition; SL_ERR_LIMIT for too many. */
sl_status sl_grammar_add_rule(sl_grammar *grammar, sl_str name, uint32_t *rule, sl_error *err);
sl_status sl_grammar_define(sl_grammar *grammar, uint32_t rule, sl_frag body, sl_error *err);

/* item and tail (NULL: none) become a counted text. */
sl_status sl_grammar_add_counted(sl_grammar *grammar, sl_frag item, const sl_frag *tail,
                                 uint32_t *counted, sl_error *err);
sl_status sl_grammar_count(sl_grammar *grammar, uint32_t counted, uint32_t min, uint32_t max,
                           sl_frag *out, sl_error *err);

/* Rule 0 is the whole. Refuses, SL_ERR_UNSUPPORTED, rules that call themselves before any text, and
 * a rule 0 that never ends; SL_ERR_LIMIT, rules nested too deep. */
sl_status sl_grammar_finish(sl_grammar *grammar, sl_error *err);

#endif
