/* The tokens of a vocabulary as a trie over their bytes, laid out in the order of a walk: a node's
 * children follow it, and `skip` is the node behind all of them. */
#ifndef SL_GRAMMAR_VOCAB_H
#define SL_GRAMMAR_VOCAB_H

#include "base/str.h"

enum { SL_VOCAB_MAX_TOKEN = 4096 /* bytes */ };

#define SL_VOCAB_NONE UINT32_MAX

typedef struct sl_trie_node {
    uint32_t skip;
    uint32_t token; /* the first whose bytes end here, or SL_VOCAB_NONE; see `same` */
    uint16_t depth; /* bytes up to and with this one, from 1 */
    uint8_t byte;
} sl_trie_node;

struct sl_constraint_vocab {
    size_t n_vocab;
    size_t n_words; /* of a mask */
    sl_trie_node *nodes;
    uint32_t n_nodes;
    uint32_t *same;    /* [n_vocab]: the next token of the same bytes, or SL_VOCAB_NONE */
    uint32_t *offsets; /* [n_vocab + 1]: a token's bytes; none for those that never fit */
    char *bytes;
    uint32_t *stops;  /* a mask */
    uint32_t *added;  /* a mask: user-defined tokens */
    size_t max_bytes; /* of a token */
};

/* A token as the trie takes it: empty for one that never fits. */
typedef struct sl_vocab_token {
    sl_str bytes;
    bool added;
} sl_vocab_token;

/* From texts. stops[0..n_stops) below n. */
sl_status sl_vocab_create(const sl_vocab_token *tokens, size_t n, const int32_t *stops,
                          size_t n_stops, sl_constraint_vocab **out, sl_error *err);

#endif
