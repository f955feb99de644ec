/* Owns states, stacks and the reading of bytes; machine.h says what they are. */
#include "grammar/machine.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

enum { DEAD = 0, FIRST_BUCKETS = 1024 };
#define UNKNOWN UINT32_MAX

/* ---- growing ---- */

static sl_status out_of_memory(sl_error *err)
{
    return sl_fail(err, SL_ERR_MEMORY, "out of memory for the states of a grammar");
}

static sl_status grow(void **block, size_t n_wanted, size_t size, size_t *room, sl_error *err)
{
    if (n_wanted <= *room)
        return SL_OK;
    const size_t more = sl_max_size(n_wanted, sl_max_size(256, *room + *room / 2));
    if (more > SL_MACHINE_MAX_BYTES / size)
        return sl_fail(err, SL_ERR_LIMIT, "the grammar takes more than %zu bytes of states",
                       SL_MACHINE_MAX_BYTES);
    void *p = sl_realloc(SL_MEM_TEXT, *block, more * size);
    if (!p)
        return out_of_memory(err);
    *block = p;
    *room = more;
    return SL_OK;
}

#define GROW(machine, array, n_wanted, room) \
    do { \
        void *grow_block_ = (machine)->array; \
        size_t grow_room_ = (machine)->room; \
        SL_TRY(grow(&grow_block_, (n_wanted), sizeof *(machine)->array, &grow_room_, err)); \
        (machine)->array = grow_block_; \
        (machine)->room = grow_room_; \
    } while (0)

static uint32_t mix(uint32_t hash, uint32_t value)
{
    hash = (hash ^ value) * 0x9E3779B1u;
    return hash ^ hash >> 15;
}

/* ---- states ---- */

static uint32_t hash_found(const sl_machine *m, uint32_t counted, bool ends, bool completes)
{
    uint32_t hash = mix(counted, (uint32_t)ends * 2 + completes);
    for (uint32_t i = 0; i < m->n_found; i++)
        hash = mix(hash, m->found[i]);
    return hash;
}

static uint32_t hash_state(const sl_machine *m, const sl_mstate *state)
{
    uint32_t hash = mix(state->counted, (uint32_t)state->ends * 2 + state->completes);
    for (uint32_t i = 0; i < state->n_items; i++)
        hash = mix(hash, m->items[state->items + i]);
    return hash;
}

static sl_status rehash_states(sl_machine *m, sl_error *err)
{
    const uint32_t n = m->n_buckets > 0 ? 4 * m->n_buckets : FIRST_BUCKETS;
    uint32_t *buckets = sl_alloc_zero(SL_MEM_TEXT, n * sizeof *buckets);
    if (!buckets)
        return out_of_memory(err);
    sl_free(m->buckets);
    m->buckets = buckets;
    m->n_buckets = n;
    for (uint32_t s = 1; s < m->n_states; s++) {
        uint32_t *bucket = &buckets[hash_state(m, &m->states[s]) & (n - 1)];
        m->states[s].chain = *bucket;
        *bucket = s;
    }
    return SL_OK;
}

static void look_at(sl_machine *m, uint32_t id, size_t *n_pending)
{
    if (id == SL_NFA_NONE || m->seen[id] == m->stamp || m->grammar->need[id] == SL_NEED_NEVER)
        return;
    m->seen[id] = m->stamp;
    m->pending[(*n_pending)++] = id;
}

static int compare_ids(const void *a, const void *b)
{
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

/* Short lists as a rule, and nearly in order. */
static void sort_ids(uint32_t *ids, size_t n)
{
    if (n > 64) {
        qsort(ids, n, sizeof *ids, compare_ids);
        return;
    }
    for (size_t i = 1; i < n; i++) {
        const uint32_t id = ids[i];
        size_t j = i;
        for (; j > 0 && ids[j - 1] > id; j--)
            ids[j] = ids[j - 1];
        ids[j] = id;
    }
}

static bool is_same(const sl_machine *m, const sl_mstate *state, uint32_t counted, bool ends,
                    bool completes)
{
    return state->counted == counted && state->ends == ends && state->completes == completes &&
           state->n_items == m->n_found &&
           memcmp(m->items + state->items, m->found, m->n_found * sizeof *m->found) == 0;
}

/* A state of the found nodes. */
static sl_status new_state(sl_machine *m, uint32_t hash, sl_mstate state, uint32_t *out,
                           sl_error *err)
{
    const uint32_t n_classes = m->grammar->n_classes;
    if (m->n_states == SL_MACHINE_MAX_STATES)
        return sl_fail(err, SL_ERR_LIMIT, "the grammar takes more than %d states",
                       SL_MACHINE_MAX_STATES);
    GROW(m, states, (size_t)m->n_states + 1, state_room);
    GROW(m, items, (size_t)m->n_items + m->n_found, item_room);
    GROW(m, edges, m->n_edges + n_classes, edge_room);
    if (m->n_states >= m->n_buckets)
        SL_TRY(rehash_states(m, err));
    const sl_nfa_node *nodes = m->grammar->nfa.nodes;
    state.need = state.ends || state.completes ? 0 : SL_NEED_NEVER;
    for (uint32_t i = 0; i < m->n_found; i++) {
        const uint32_t id = m->found[i];
        if (m->grammar->need[id] < state.need)
            state.need = m->grammar->need[id];
        state.reads = state.reads || nodes[id].kind == SL_NFA_RANGE;
        state.has_calls = state.has_calls || nodes[id].kind != SL_NFA_RANGE;
        m->items[m->n_items + i] = id;
    }
    state.items = m->n_items;
    state.n_items = m->n_found;
    state.edges = (uint32_t)m->n_edges;
    state.ready = !state.has_calls;
    state.chain = m->buckets[hash & (m->n_buckets - 1)];
    m->buckets[hash & (m->n_buckets - 1)] = m->n_states;
    m->n_items += m->n_found;
    memset(m->edges + m->n_edges, 0xFF, n_classes * sizeof *m->edges);
    m->n_edges += n_classes;
    *out = m->n_states;
    m->states[m->n_states++] = state;
    return SL_OK;
}

/* Nothing is left to be read behind a call: what is called may stand in its place, so that choices
 * between rules become one state. */
static bool is_last(const sl_machine *m, const sl_nfa_node *call)
{
    const sl_nfa_node *node = &m->grammar->nfa.nodes[call->next];
    enum { FAR = 16 }; /* a join of parts leaves a few splits without a choice */
    for (int i = 0; i < FAR && node->kind == SL_NFA_SPLIT && node->other == SL_NFA_NONE; i++)
        node = &m->grammar->nfa.nodes[node->next];
    return node->kind == SL_NFA_END;
}

/* The state of the places that can be reached from seeds[0..n) without reading. */
static sl_status close_state(sl_machine *m, size_t n, uint32_t counted, uint32_t *out,
                             sl_error *err)
{
    size_t n_pending = 0;
    sl_mstate state = {.counted = counted};
    m->stamp++;
    m->n_found = 0;
    for (size_t i = 0; i < n; i++)
        look_at(m, m->seeds[i], &n_pending);
    while (n_pending > 0) {
        const uint32_t id = m->pending[--n_pending];
        const sl_nfa_node *node = &m->grammar->nfa.nodes[id];
        switch (node->kind) {
        case SL_NFA_SPLIT:
            look_at(m, node->next, &n_pending);
            look_at(m, node->other, &n_pending);
            break;
        case SL_NFA_END:
            state.ends = true;
            break;
        case SL_NFA_ITEM_END:
            state.completes = true;
            break;
        case SL_NFA_CALL:
            if (is_last(m, node))
                look_at(m, m->grammar->rules[node->other].entry, &n_pending);
            else
                m->found[m->n_found++] = id;
            break;
        default:
            m->found[m->n_found++] = id;
            break;
        }
    }
    if (m->n_found == 0 && !state.ends && !state.completes) {
        *out = DEAD;
        return SL_OK;
    }
    sort_ids(m->found, m->n_found);
    const uint32_t hash = hash_found(m, counted, state.ends, state.completes);
    for (uint32_t s = m->buckets[hash & (m->n_buckets - 1)]; s != 0; s = m->states[s].chain) {
        if (is_same(m, &m->states[s], counted, state.ends, state.completes)) {
            *out = s;
            return SL_OK;
        }
    }
    return new_state(m, hash, state, out, err);
}

static sl_status find_edge(sl_machine *m, uint32_t s, uint32_t class, uint32_t *out, sl_error *err)
{
    const uint32_t byte = m->grammar->sample[class];
    size_t n = 0;
    for (uint32_t i = 0; i < m->states[s].n_items; i++) {
        const sl_nfa_node *node = &m->grammar->nfa.nodes[m->items[m->states[s].items + i]];
        if (node->kind == SL_NFA_RANGE && node->low <= byte && byte <= node->high)
            m->seeds[n++] = node->next;
    }
    SL_TRY(close_state(m, n, m->states[s].counted, out, err));
    m->edges[m->states[s].edges + class] = *out;
    return SL_OK;
}

static sl_status rule_start(sl_machine *m, uint32_t rule, uint32_t *out, sl_error *err)
{
    if (m->rule_starts[rule] == 0) {
        m->seeds[0] = m->grammar->rules[rule].entry;
        SL_TRY(close_state(m, 1, 0, &m->rule_starts[rule], err));
    }
    *out = m->rule_starts[rule];
    return SL_OK;
}

/* Where a counted text is between items. */
static sl_status count_start(sl_machine *m, uint32_t counted, uint32_t min, uint32_t max,
                             uint32_t *out, sl_error *err)
{
    const unsigned which = max == 0 ? 2 : min > 0 ? 0 : 1;
    uint32_t *start = &m->count_starts[3 * counted + which];
    if (*start == 0) {
        const sl_counted *c = &m->grammar->counted[counted];
        size_t n = 0;
        if (which != 2)
            m->seeds[n++] = c->item;
        if (which != 0)
            m->seeds[n++] = c->tail;
        SL_TRY(close_state(m, n, counted + 1, start, err));
    }
    *out = *start;
    return SL_OK;
}

/* The calls of a state: for each rule called, where reading goes on after it. */
static sl_status find_calls(sl_machine *m, uint32_t s, sl_error *err)
{
    const uint32_t first = m->n_calls;
    const sl_mstate state = m->states[s];
    for (uint32_t i = 0; i < state.n_items && m->n_calls - first < SL_MACHINE_WORK; i++) {
        const sl_nfa_node node = m->grammar->nfa.nodes[m->items[state.items + i]];
        if (node.kind == SL_NFA_RANGE)
            continue;
        bool again = false; /* all calls of one rule go on in one state */
        size_t n = 0;
        for (uint32_t j = 0; j < state.n_items; j++) {
            const sl_nfa_node *other = &m->grammar->nfa.nodes[m->items[state.items + j]];
            if (other->kind != node.kind || other->other != node.other)
                continue;
            again = again || j < i;
            m->seeds[n++] = other->next;
        }
        if (again)
            continue;
        sl_mcall call = {0};
        SL_TRY(close_state(m, n, 0, &call.back, err));
        if (node.kind == SL_NFA_CALL) {
            SL_TRY(rule_start(m, node.other, &call.state, err));
        } else {
            const sl_count_use *use = &m->grammar->uses[node.other];
            call.min = use->min;
            call.max = use->max;
            SL_TRY(count_start(m, use->counted, call.min, call.max, &call.state, err));
        }
        GROW(m, calls, (size_t)m->n_calls + 1, call_room);
        m->calls[m->n_calls++] = call;
    }
    m->states[s].calls = first;
    m->states[s].n_calls = m->n_calls - first;
    m->states[s].ready = true;
    return SL_OK;
}

/* ---- stacks ---- */

static sl_status rehash_stacks(sl_machine *m, uint32_t n, sl_error *err)
{
    uint32_t *buckets = sl_alloc_zero(SL_MEM_TEXT, n * sizeof *buckets);
    if (!buckets)
        return out_of_memory(err);
    sl_free(m->stack_buckets);
    m->stack_buckets = buckets;
    m->n_stack_buckets = n;
    for (uint32_t i = SL_STACK_FIRST; i < m->n_stacks; i++) {
        sl_stack *stack = &m->stacks[i];
        uint32_t *bucket = &buckets[mix(stack->back, stack->parent) & (n - 1)];
        stack->chain = *bucket;
        *bucket = i;
    }
    return SL_OK;
}

static sl_status push(sl_machine *m, uint32_t back, uint32_t parent, uint32_t *out, sl_error *err)
{
    const uint32_t hash = mix(back, parent);
    for (uint32_t i = m->stack_buckets[hash & (m->n_stack_buckets - 1)]; i != 0;
         i = m->stacks[i].chain) {
        if (m->stacks[i].back == back && m->stacks[i].parent == parent) {
            *out = i;
            return SL_OK;
        }
    }
    GROW(m, stacks, (size_t)m->n_stacks + 1, stack_room);
    if (m->n_stacks >= m->n_stack_buckets)
        SL_TRY(rehash_stacks(m, 4 * m->n_stack_buckets, err));
    uint32_t *bucket = &m->stack_buckets[hash & (m->n_stack_buckets - 1)];
    m->stacks[m->n_stacks] = (sl_stack){back, parent, *bucket, m->stacks[parent].depth + 1};
    *bucket = m->n_stacks;
    *out = m->n_stacks++;
    return SL_OK;
}

/* The last ones are at the front of their chains. */
void sl_machine_forget(sl_machine *machine, uint32_t mark)
{
    while (machine->n_stacks > mark) {
        const sl_stack *stack = &machine->stacks[--machine->n_stacks];
        machine->stack_buckets[mix(stack->back, stack->parent) & (machine->n_stack_buckets - 1)] =
            stack->chain;
    }
}

void sl_machine_compact(sl_machine *machine, uint32_t *used)
{
    for (uint32_t i = machine->n_stacks; i-- > SL_STACK_FIRST;) {
        if (used[i])
            used[machine->stacks[i].parent] = 1;
    }
    used[SL_STACK_WHOLE] = SL_STACK_WHOLE;
    used[SL_STACK_PART] = SL_STACK_PART;
    uint32_t n = SL_STACK_FIRST;
    for (uint32_t i = SL_STACK_FIRST; i < machine->n_stacks; i++) {
        if (!used[i])
            continue;
        sl_stack stack = machine->stacks[i];
        stack.parent = used[stack.parent]; /* below it, so renumbered already */
        machine->stacks[n] = stack;
        used[i] = n++;
    }
    machine->n_stacks = n;
    memset(machine->stack_buckets, 0, machine->n_stack_buckets * sizeof *machine->stack_buckets);
    for (uint32_t i = SL_STACK_FIRST; i < n; i++) {
        sl_stack *stack = &machine->stacks[i];
        uint32_t *bucket =
            &machine
                 ->stack_buckets[mix(stack->back, stack->parent) & (machine->n_stack_buckets - 1)];
        stack->chain = *bucket;
        *bucket = i;
    }
}

/* ---- threads ---- */

typedef struct reading {
    sl_machine *m;
    uint32_t limit;
    sl_thread *out; /* [SL_MACHINE_WORK] */
    size_t n;
    bool ended;
} reading;

static bool fits(const reading *r, uint32_t state, uint32_t stack)
{
    return r->m->stacks[stack].depth + r->m->states[state].need <= r->limit;
}

static void add(reading *r, sl_thread thread)
{
    if (thread.state == DEAD || !fits(r, thread.state, thread.stack))
        return;
    for (size_t i = 0; i < r->n; i++) {
        if (memcmp(&r->out[i], &thread, sizeof thread) == 0)
            return;
    }
    if (r->n < SL_MACHINE_WORK)
        r->out[r->n++] = thread;
    else
        r->m->crowded = true;
}

static sl_status add_call(reading *r, const sl_thread *thread, const sl_mcall *call, sl_error *err)
{
    sl_machine *m = r->m;
    const sl_mstate *back = &m->states[call->back];
    if (call->state == DEAD || call->back == DEAD)
        return SL_OK;
    sl_thread next = {call->state, thread->stack, call->min, call->max};
    const bool comes_back = !back->ends || back->n_items > 0;
    if (comes_back) {
        if (!fits(r, call->back, thread->stack) ||
            m->stacks[thread->stack].depth + 1u + m->states[call->state].need > r->limit)
            return SL_OK;
        SL_TRY(push(m, call->back, thread->stack, &next.stack, err));
    }
    add(r, next);
    return SL_OK;
}

/* Whatever follows from the threads in r->out without reading; then those that read. */
static sl_status follow(reading *r, sl_error *err)
{
    sl_machine *m = r->m;
    for (size_t i = 0; i < r->n; i++) {
        const sl_thread thread = r->out[i];
        if (!m->states[thread.state].ready)
            SL_TRY(find_calls(m, thread.state, err));
        const sl_mstate state = m->states[thread.state];
        if (state.ends && thread.stack < SL_STACK_FIRST) {
            r->ended = true;
        } else if (state.ends) {
            const sl_stack stack = m->stacks[thread.stack];
            add(r, (sl_thread){.state = stack.back, .stack = stack.parent});
        }
        for (uint32_t c = 0; c < state.n_calls; c++) {
            const sl_mcall call = m->calls[state.calls + c];
            SL_TRY(add_call(r, &thread, &call, err));
        }
    }
    size_t n = 0;
    for (size_t i = 0; i < r->n; i++) {
        if (!m->states[r->out[i].state].reads)
            continue;
        if (n == SL_MACHINE_THREADS) {
            m->crowded = true;
            break;
        }
        r->out[n++] = r->out[i];
    }
    r->n = n;
    return SL_OK;
}

/* Where a thread is after a byte, before anything follows. */
static inline sl_status next_thread(sl_machine *m, sl_thread thread, uint8_t byte, sl_thread *out,
                                    sl_error *err)
{
    const uint32_t class = m->grammar->class_of[byte];
    uint32_t next = m->edges[m->states[thread.state].edges + class];
    if (next == UNKNOWN)
        SL_TRY(find_edge(m, thread.state, class, &next, err));
    *out = thread;
    out->state = next;
    if (!m->states[next].completes)
        return SL_OK;
    out->min -= thread.min > 0;
    out->max -= thread.max != SL_NFA_INF;
    return count_start(m, m->states[next].counted - 1, out->min, out->max, &out->state, err);
}

sl_status sl_machine_step(sl_machine *machine, const sl_thread *from, size_t n_from, uint8_t byte,
                          uint32_t limit, sl_thread *out, size_t *n, bool *ended, sl_error *err)
{
    reading r = {.m = machine, .limit = limit, .out = out};
    machine->crowded = false;
    for (size_t i = 0; i < n_from; i++) {
        sl_thread next;
        SL_TRY(next_thread(machine, from[i], byte, &next, err));
        add(&r, next);
    }
    SL_TRY(follow(&r, err));
    *n = r.n;
    *ended = r.ended;
    return SL_OK;
}

sl_status sl_machine_resume(sl_machine *machine, uint32_t back, uint32_t stack, uint32_t limit,
                            sl_thread *out, size_t *n, bool *ended, sl_error *err)
{
    reading r = {.m = machine, .limit = limit, .out = out};
    add(&r, (sl_thread){.state = back, .stack = stack});
    SL_TRY(follow(&r, err));
    *n = r.n;
    *ended = r.ended;
    return SL_OK;
}

sl_status sl_machine_begin(sl_machine *machine, uint32_t limit, sl_thread *out, size_t *n,
                           bool *ended, sl_error *err)
{
    uint32_t start;
    SL_TRY(rule_start(machine, 0, &start, err));
    return sl_machine_resume(machine, start, SL_STACK_WHOLE, limit, out, n, ended, err);
}

/* ---- walks ---- */

static sl_status add_exit(sl_exits *exits, uint32_t node, sl_error *err)
{
    if (exits->n == exits->room) {
        const size_t room = sl_max_size(64, 2 * exits->room);
        uint32_t *nodes = sl_realloc(SL_MEM_TEXT, exits->nodes, room * sizeof *nodes);
        if (!nodes)
            return out_of_memory(err);
        exits->nodes = nodes;
        exits->room = room;
    }
    exits->nodes[exits->n++] = node;
    return SL_OK;
}

static inline void set_tokens(const sl_constraint_vocab *vocab, uint32_t token, uint32_t *mask)
{
    for (; token != SL_VOCAB_NONE; token = vocab->same[token])
        mask[token / 32] |= (uint32_t)1 << (token % 32);
}

/* One byte in a walk: as a rule one thread that stays in its rule. */
static inline sl_status walk_step(sl_machine *m, const sl_thread *from, size_t n, uint8_t byte,
                                  uint32_t limit, sl_thread *out, size_t *n_out, bool *ended,
                                  sl_error *err)
{
    if (n == 1) {
        SL_TRY(next_thread(m, *from, byte, out, err));
        const sl_mstate *state = &m->states[out->state];
        *ended = false;
        *n_out = 0;
        if (out->state == DEAD)
            return SL_OK;
        if (!state->has_calls && !state->ends) {
            *n_out = m->stacks[out->stack].depth + state->need <= limit;
            return SL_OK;
        }
    }
    return sl_machine_step(m, from, n, byte, limit, out, n_out, ended, err);
}

sl_status sl_machine_walk(sl_machine *machine, const sl_constraint_vocab *vocab,
                          const sl_thread *threads, size_t n, uint32_t first, uint32_t last,
                          uint32_t depth, uint32_t limit, uint32_t *mask, sl_exits *exits,
                          sl_error *err)
{
    uint32_t *begin = machine->level_begin, *count = machine->level_n;
    GROW(machine, scratch, n + SL_MACHINE_WORK, scratch_room);
    memcpy(machine->scratch, threads, n * sizeof *threads);
    begin[0] = 0;
    count[0] = (uint32_t)n;
    for (uint32_t i = first; i < last;) {
        const sl_trie_node node = vocab->nodes[i];
        const uint32_t level = node.depth - depth; /* from 1 */
        size_t n_next;
        bool ended;
        begin[level] = begin[level - 1] + count[level - 1];
        GROW(machine, scratch, (size_t)begin[level] + SL_MACHINE_WORK, scratch_room);
        SL_TRY(walk_step(machine, machine->scratch + begin[level - 1], count[level - 1], node.byte,
                         limit, machine->scratch + begin[level], &n_next, &ended, err));
        count[level] = (uint32_t)n_next;
        if (n_next > 0 || ended)
            set_tokens(vocab, node.token, mask);
        if (ended && exits && node.skip > i + 1)
            SL_TRY(add_exit(exits, i, err));
        i = n_next > 0 ? i + 1 : node.skip;
    }
    return SL_OK;
}

/* ---- making one ---- */

static sl_status begin_tables(sl_machine *m, sl_error *err)
{
    GROW(m, states, 1, state_room);
    GROW(m, edges, m->grammar->n_classes, edge_room);
    GROW(m, stacks, SL_STACK_FIRST, stack_room);
    m->states[DEAD] = (sl_mstate){.ready = true, .need = SL_NEED_NEVER};
    memset(m->edges, 0, m->grammar->n_classes * sizeof *m->edges);
    m->n_states = 1;
    m->n_edges = m->grammar->n_classes;
    m->stacks[SL_STACK_WHOLE] = m->stacks[SL_STACK_PART] = (sl_stack){0};
    m->n_stacks = SL_STACK_FIRST;
    SL_TRY(rehash_states(m, err));
    return rehash_stacks(m, FIRST_BUCKETS, err);
}

sl_status sl_machine_init(sl_machine *machine, const sl_grammar *grammar, size_t max_bytes,
                          sl_error *err)
{
    *machine = (sl_machine){.grammar = grammar};
    const size_t n = (size_t)grammar->nfa.n + 1;
    /* A node waits once, and comes as a seed once for each item at most. */
    machine->seeds = sl_alloc_array(SL_MEM_TEXT, 4 * n, sizeof *machine->seeds);
    machine->rule_starts =
        sl_alloc_array(SL_MEM_TEXT, grammar->n_rules, sizeof *machine->rule_starts);
    machine->count_starts =
        sl_alloc_array(SL_MEM_TEXT, 3 * (size_t)grammar->n_counted, sizeof *machine->count_starts);
    machine->level_begin =
        sl_alloc_array(SL_MEM_TEXT, 2 * (max_bytes + 2), sizeof *machine->level_begin);
    if (!machine->seeds || !machine->rule_starts || !machine->count_starts || !machine->level_begin)
        return out_of_memory(err);
    machine->pending = machine->seeds + n;
    machine->found = machine->pending + n;
    machine->seen = machine->found + n;
    machine->level_n = machine->level_begin + max_bytes + 2;
    return begin_tables(machine, err);
}

void sl_machine_free(sl_machine *machine)
{
    sl_free(machine->states);
    sl_free(machine->items);
    sl_free(machine->edges);
    sl_free(machine->calls);
    sl_free(machine->buckets);
    sl_free(machine->rule_starts);
    sl_free(machine->count_starts);
    sl_free(machine->stacks);
    sl_free(machine->stack_buckets);
    sl_free(machine->seeds);
    sl_free(machine->scratch);
    sl_free(machine->level_begin);
    *machine = (sl_machine){0};
}
