/* Reads bytes by a grammar. A reading is a set of threads, each a state and a stack of returns.
 *
 * A state is a set of places in one rule (or counted text): states are made when they are first
 * needed, with a table of where each class of bytes leads, so that a byte costs a look-up. Calls of
 * rules push the state to go on in; stacks are interned, so that equal ones have equal numbers.
 *
 * Nothing runs into a dead end: a thread is given up where its stack and the calls that it needs at
 * least to end would pass the limit of depth, and a way that never ends is not taken. Where more
 * readings are possible at once than SL_MACHINE_THREADS, the last ones are given up: fewer texts
 * fit then, and all of those do. */
#ifndef SL_GRAMMAR_MACHINE_H
#define SL_GRAMMAR_MACHINE_H

#include "grammar/grammar.h"
#include "grammar/vocab.h"

enum {
    SL_MACHINE_THREADS = 128,
    SL_MACHINE_WORK = 512,       /* threads while one byte is read */
    SL_MACHINE_DEPTH = 1024,     /* returns on a stack */
    SL_MACHINE_REACH = 256,      /* of them that one token may add where a mask is kept for later */
    SL_MACHINE_STACKS = 1 << 20, /* kept before those not in use are given up */
    SL_MACHINE_MAX_STATES = 1 << 18
};
#define SL_MACHINE_MAX_BYTES ((size_t)256 << 20) /* of states and their tables */

/* min, max: items that a counted text still needs, and still may have. */
typedef struct sl_thread {
    uint32_t state, stack, min, max;
} sl_thread;

/* Two stacks are empty: that of a whole text, and that of a part whose surroundings are not known,
 * for masks that hold in all of them. */
enum { SL_STACK_WHOLE = 0, SL_STACK_PART = 1, SL_STACK_FIRST = 2 };

typedef struct sl_mstate {
    uint32_t items, n_items; /* nodes of the grammar: what can be read or called here */
    uint32_t edges;          /* [n_classes], by class of byte */
    uint32_t calls, n_calls; /* set when ready */
    uint32_t counted;        /* of a counted text: its number plus 1; else 0 */
    uint32_t chain;          /* of the same hash */
    uint8_t need;
    bool ends, completes; /* the rule may end here; an item of a counted text does */
    bool reads, has_calls, ready;
} sl_mstate;

typedef struct sl_mcall {
    uint32_t state, back; /* where it begins, and where reading goes on after it */
    uint32_t min, max;
} sl_mcall;

typedef struct sl_stack {
    uint32_t back, parent, chain;
    uint32_t depth;
} sl_stack;

/* Where a walk left the part that it began in, with bytes of tokens still to come. */
typedef struct sl_exits {
    uint32_t *nodes;
    size_t n, room;
} sl_exits;

typedef struct sl_machine {
    const sl_grammar *grammar;
    sl_mstate *states;
    uint32_t n_states;
    size_t state_room;
    uint32_t *items, n_items;
    size_t item_room;
    uint32_t *edges;
    size_t n_edges, edge_room;
    sl_mcall *calls;
    uint32_t n_calls;
    size_t call_room;
    uint32_t *buckets; /* [n_buckets], states by hash */
    uint32_t n_buckets;
    uint32_t *rule_starts;  /* [n_rules], 0 = not made yet */
    uint32_t *count_starts; /* [3 n_counted]: only items, both, only the tail */

    sl_stack *stacks;
    uint32_t n_stacks;
    size_t stack_room;
    uint32_t *stack_buckets, n_stack_buckets;

    uint32_t *seeds, *pending, *found; /* [n nodes + 1]: of closures */
    uint32_t n_found;
    uint32_t *seen, stamp; /* [n nodes] */
    sl_thread *scratch;    /* of walks */
    size_t scratch_room;
    uint32_t *level_begin; /* [max_bytes + 2] */
    uint32_t *level_n;
    bool crowded; /* the last step gave up threads because they were too many */
} sl_machine;

/* max_bytes: of a token. */
sl_status sl_machine_init(sl_machine *machine, const sl_grammar *grammar, size_t max_bytes,
                          sl_error *err);
void sl_machine_free(sl_machine *machine);

/* What reading the beginning of the grammar, or the state `back` on the stack, is. out has room for
 * SL_MACHINE_WORK threads; *ended: the whole (or part) may end here. Errors of all of these:
 * SL_ERR_LIMIT, SL_ERR_MEMORY. */
sl_status sl_machine_begin(sl_machine *machine, uint32_t limit, sl_thread *out, size_t *n,
                           bool *ended, sl_error *err);
sl_status sl_machine_resume(sl_machine *machine, uint32_t back, uint32_t stack, uint32_t limit,
                            sl_thread *out, size_t *n, bool *ended, sl_error *err);

/* The threads after one more byte. limit: of depth. */
sl_status sl_machine_step(sl_machine *machine, const sl_thread *from, size_t n_from, uint8_t byte,
                          uint32_t limit, sl_thread *out, size_t *n, bool *ended, sl_error *err);

/* Reads the tokens below nodes [first, last) of the trie, whose bytes before `depth` the threads
 * have read: the bits of those that fit. exits may be NULL. */
sl_status sl_machine_walk(sl_machine *machine, const sl_constraint_vocab *vocab,
                          const sl_thread *threads, size_t n, uint32_t first, uint32_t last,
                          uint32_t depth, uint32_t limit, uint32_t *mask, sl_exits *exits,
                          sl_error *err);

/* Stacks made after a mark can be forgotten when nothing refers to them. */
static inline uint32_t sl_machine_mark(const sl_machine *machine)
{
    return machine->n_stacks;
}
void sl_machine_forget(sl_machine *machine, uint32_t mark);

/* Gives up all stacks but those marked in `used` (by number, [n_stacks]) and what is below them;
 * afterwards used[i] is the new number of stack i. */
void sl_machine_compact(sl_machine *machine, uint32_t *used);

#endif
