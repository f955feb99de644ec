/* Finds added tokens in text: leftmost first, the longest of those that begin at one place, in one
 * pass whose time does not depend on the tokens. */
#ifndef SL_TEXT_ADDED_H
#define SL_TEXT_ADDED_H

#include "text/vocab.h"

enum { SL_ADDED_MAX_BYTES = 1 << 20 }; /* of all added tokens */

typedef struct sl_added_node sl_added_node;
typedef struct sl_added_edge sl_added_edge;

/* An Aho-Corasick automaton of the added tokens spelt backwards. Text is read from its end, so that
 * the state at a place knows the longest token that begins there. */
typedef struct sl_added {
    sl_added_node *nodes; /* in order of depth; nodes[0] is the root */
    uint32_t n_nodes;
    sl_added_edge *edges; /* hash table by parent and byte */
    size_t n_edges;       /* a power of two */
    uint32_t first[256];  /* children of the root, 0 = none */
} sl_added;

/* Errors: SL_ERR_LIMIT, SL_ERR_MEMORY. On failure there is nothing to free. */
sl_status sl_added_init(sl_added *added, const sl_vocab *vocab, sl_error *err);
void sl_added_free(sl_added *added);

typedef struct sl_added_match {
    size_t pos;
    int32_t id;
} sl_added_match;

/* Matches from the last to the first place: a list to be read backwards. */
typedef struct sl_added_matches {
    sl_added_match *list;
    size_t n, capacity;
    uint64_t n_steps; /* states visited so far: what the time is proportional to */
} sl_added_matches;

/* Sets *matches to every place in text[begin..end) where a token of a wanted kind begins that ends
 * before `end`, with the longest such token. They may overlap: the caller takes them from the left.
 * Release with sl_free(matches->list). */
sl_status sl_added_find(const sl_added *added, const char *text, size_t begin, size_t end,
                        bool control, bool user_defined, sl_added_matches *matches, sl_error *err);

#endif
