/* Owns grammars while they are made and what is checked before one is used: that it can end, how
 * deep its shortest text nests, and that no rule calls itself without having read anything. */
#include "grammar/grammar.h"

#include <string.h>

#include "base/mem.h"

sl_status sl_grammar_new(sl_grammar **out, sl_error *err)
{
    sl_grammar *grammar = sl_alloc_zero(SL_MEM_TEXT, sizeof *grammar);
    if (!grammar)
        return sl_fail(err, SL_ERR_MEMORY, "out of memory for a grammar");
    sl_nfa_init(&grammar->nfa, SL_NFA_MAX_NODES);
    *out = grammar;
    return SL_OK;
}

void sl_grammar_free(sl_grammar *grammar)
{
    if (!grammar)
        return;
    sl_nfa_free(&grammar->nfa);
    sl_free(grammar->rules);
    sl_free(grammar->counted);
    sl_free(grammar->uses);
    sl_free(grammar->need);
    sl_free(grammar->nullable);
    sl_free(grammar);
}

/* Room for one more of n entries. */
static sl_status grow(void **entries, uint32_t n, uint32_t *room, size_t size, sl_error *err)
{
    if (n < *room)
        return SL_OK;
    const uint32_t more = *room > 0 ? 2 * *room : 16;
    void *p = sl_realloc(SL_MEM_TEXT, *entries, more * size);
    if (!p)
        return sl_fail(err, SL_ERR_MEMORY, "out of memory for a grammar");
    *entries = p;
    *room = more;
    return SL_OK;
}

sl_status sl_grammar_add_rule(sl_grammar *grammar, sl_str name, uint32_t *rule, sl_error *err)
{
    if (grammar->n_rules == SL_GRAMMAR_MAX_RULES)
        return sl_fail(err, SL_ERR_LIMIT, "more than %d rules", SL_GRAMMAR_MAX_RULES);
    void *rules = grammar->rules;
    SL_TRY(grow(&rules, grammar->n_rules, &grammar->rule_room, sizeof(sl_rule), err));
    grammar->rules = rules;
    *rule = grammar->n_rules;
    grammar->rules[grammar->n_rules++] = (sl_rule){name, SL_NFA_NONE};
    return SL_OK;
}

/* What is behind a fragment. */
static sl_status close_with(sl_grammar *grammar, sl_frag frag, sl_nfa_kind kind, sl_error *err)
{
    uint32_t id;
    const sl_nfa_node node = {.kind = kind, .next = SL_NFA_NONE, .other = SL_NFA_NONE};
    SL_TRY(sl_nfa_add(&grammar->nfa, node, &id, err));
    grammar->nfa.nodes[frag.exit].next = id;
    return SL_OK;
}

sl_status sl_grammar_define(sl_grammar *grammar, uint32_t rule, sl_frag body, sl_error *err)
{
    SL_TRY(close_with(grammar, body, SL_NFA_END, err));
    grammar->rules[rule].entry = body.entry;
    return SL_OK;
}

sl_status sl_grammar_add_counted(sl_grammar *grammar, sl_frag item, const sl_frag *tail,
                                 uint32_t *counted, sl_error *err)
{
    sl_frag end;
    if (tail)
        end = *tail;
    else
        SL_TRY(sl_nfa_empty(&grammar->nfa, &end, err));
    SL_TRY(close_with(grammar, item, SL_NFA_ITEM_END, err));
    SL_TRY(close_with(grammar, end, SL_NFA_END, err));
    void *entries = grammar->counted;
    SL_TRY(grow(&entries, grammar->n_counted, &grammar->counted_room, sizeof(sl_counted), err));
    grammar->counted = entries;
    *counted = grammar->n_counted;
    grammar->counted[grammar->n_counted++] = (sl_counted){item.entry, end.entry};
    return SL_OK;
}

sl_status sl_grammar_count(sl_grammar *grammar, uint32_t counted, uint32_t min, uint32_t max,
                           sl_frag *out, sl_error *err)
{
    if (min > max)
        return sl_nfa_never(&grammar->nfa, out, err);
    uint32_t use = 0;
    for (; use < grammar->n_uses; use++) {
        const sl_count_use *u = &grammar->uses[use];
        if (u->counted == counted && u->min == min && u->max == max)
            break;
    }
    if (use == grammar->n_uses) {
        void *entries = grammar->uses;
        SL_TRY(grow(&entries, grammar->n_uses, &grammar->use_room, sizeof(sl_count_use), err));
        grammar->uses = entries;
        grammar->uses[grammar->n_uses++] = (sl_count_use){counted, min, max};
    }
    return sl_nfa_call(&grammar->nfa, SL_NFA_COUNT, use, out, err);
}

/* ---- how each node reaches the end ---- */

/* Nodes in the order in which their level becomes known, backwards from the ends: a node's level is
 * how many calls deep the shortest way to its end goes. */
typedef struct settling {
    const sl_grammar *grammar;
    bool through_bytes; /* or only ways that read nothing */
    uint32_t *heads;    /* [n]: a node's list of nodes that lead to it */
    uint32_t *links;    /* [2 n] */
    uint32_t *callers;  /* [n_rules]: lists of call nodes, linked through links + n */
    uint32_t *rule_of;  /* of each node: the rule that begins there */
    uint32_t *now, *next;
    size_t n_now, n_next;
    uint8_t *level; /* [n], the result */
} settling;

static void link_nodes(settling *s)
{
    const sl_nfa *nfa = &s->grammar->nfa;
    memset(s->heads, 0xFF, nfa->n * sizeof *s->heads);
    memset(s->callers, 0xFF, s->grammar->n_rules * sizeof *s->callers);
    for (uint32_t i = 0; i < nfa->n; i++) {
        const sl_nfa_node *node = &nfa->nodes[i];
        uint32_t *const by_next = &s->links[i], *const by_other = &s->links[nfa->n + i];
        if (node->next != SL_NFA_NONE) {
            *by_next = s->heads[node->next];
            s->heads[node->next] = i;
        }
        if (node->kind == SL_NFA_SPLIT && node->other != SL_NFA_NONE) {
            *by_other = s->heads[node->other];
            s->heads[node->other] = nfa->n + i;
        } else if (node->kind == SL_NFA_CALL) {
            *by_other = s->callers[node->other];
            s->callers[node->other] = i;
        }
    }
}

/* A call node both of whose parts are known. */
static uint8_t level_of_call(const settling *s, const sl_nfa_node *node)
{
    const uint8_t behind = s->level[node->next];
    const uint8_t inside = s->level[s->grammar->rules[node->other].entry];
    if (behind == SL_NEED_NEVER || inside == SL_NEED_NEVER)
        return SL_NEED_NEVER;
    return inside + 1 > behind ? (uint8_t)(inside + 1) : behind;
}

/* Whether a node can be settled now, its successor being so. */
static bool passes(const settling *s, const sl_nfa_node *node)
{
    switch (node->kind) {
    case SL_NFA_SPLIT:
        return true;
    case SL_NFA_RANGE:
        return s->through_bytes && node->low <= node->high;
    case SL_NFA_COUNT: {
        const sl_count_use *use = &s->grammar->uses[node->other];
        const uint32_t tail = s->grammar->counted[use->counted].tail;
        const bool empty = use->min == 0 && s->grammar->nfa.nodes[tail].kind == SL_NFA_SPLIT;
        return s->through_bytes || empty;
    }
    default:
        return false;
    }
}

static void settle(settling *s, uint32_t id, unsigned level)
{
    if (s->level[id] != SL_NEED_NEVER)
        return;
    s->level[id] = (uint8_t)level;
    s->now[s->n_now++] = id;
}

static void settle_before(settling *s, uint32_t id, unsigned level)
{
    const sl_nfa *nfa = &s->grammar->nfa;
    for (uint32_t link = s->heads[id]; link != SL_NFA_NONE; link = s->links[link]) {
        const uint32_t before = link < nfa->n ? link : link - nfa->n;
        const sl_nfa_node *node = &nfa->nodes[before];
        if (passes(s, node)) {
            settle(s, before, level);
        } else if (node->kind == SL_NFA_CALL) {
            const uint8_t needed = level_of_call(s, node);
            if (needed == level)
                settle(s, before, level);
            else if (needed != SL_NEED_NEVER)
                s->next[s->n_next++] = before;
        }
    }
}

/* A rule whose entry got this level can be called on the next. */
static void settle_callers(settling *s, uint32_t id)
{
    const uint32_t rule = s->rule_of[id];
    if (rule == SL_NFA_NONE)
        return;
    const uint32_t n = s->grammar->nfa.n;
    for (uint32_t c = s->callers[rule]; c != SL_NFA_NONE; c = s->links[n + c]) {
        if (level_of_call(s, &s->grammar->nfa.nodes[c]) != SL_NEED_NEVER)
            s->next[s->n_next++] = c;
    }
}

/* The ends are known; whatever leads to them follows, level by level. True when there were more
 * levels than are counted. */
static bool settle_all(settling *s)
{
    const sl_nfa *nfa = &s->grammar->nfa;
    memset(s->level, SL_NEED_NEVER, nfa->n);
    for (uint32_t i = 0; i < nfa->n; i++) {
        if (nfa->nodes[i].kind == SL_NFA_END || nfa->nodes[i].kind == SL_NFA_ITEM_END)
            settle(s, i, 0);
    }
    for (unsigned level = 0; level < SL_NEED_NEVER - 1; level++) {
        for (size_t i = 0; i < s->n_now; i++) {
            settle_before(s, s->now[i], level);
            settle_callers(s, s->now[i]);
        }
        s->n_now = 0;
        const size_t n_next = s->n_next;
        s->n_next = 0;
        for (size_t i = 0; i < n_next; i++)
            settle(s, s->next[i], level + 1);
        if (s->n_now == 0)
            return false;
    }
    return true;
}

/* level[] for every node; 255 where the end is never reached (or not without reading bytes), or
 * only on more levels than are counted, *too_deep. */
static sl_status find_levels(const sl_grammar *grammar, bool through_bytes, uint8_t *level,
                             bool *too_deep, sl_error *err)
{
    const size_t n = grammar->nfa.n, n_rules = grammar->n_rules;
    settling s = {.grammar = grammar, .through_bytes = through_bytes, .level = level};
    uint32_t *const block = sl_alloc_array(SL_MEM_TEXT, 7 * n + n_rules, sizeof *block);
    if (!block)
        return sl_fail(err, SL_ERR_MEMORY, "out of memory for a grammar");
    s.heads = block;
    s.links = block + n;
    s.rule_of = block + 3 * n;
    s.now = block + 4 * n;
    s.next = block + 5 * n; /* a call may come twice: by its rule and by what is behind it */
    s.callers = block + 7 * n;
    memset(s.rule_of, 0xFF, n * sizeof *s.rule_of);
    for (uint32_t rule = 0; rule < n_rules; rule++)
        s.rule_of[grammar->rules[rule].entry] = rule;
    link_nodes(&s);
    *too_deep = settle_all(&s);
    sl_free(block);
    return SL_OK;
}

/* ---- left recursion ---- */

/* A walk over the rules that a rule calls before it has read anything. */
typedef struct left_walk {
    const sl_grammar *grammar;
    uint8_t *colour;        /* of each rule: 0 new, 1 on the path, 2 done */
    uint8_t *seen;          /* of each node */
    uint32_t *pending;      /* nodes to look at, of all rules on the path */
    uint32_t *path, *begin; /* the rules on the path, and where their pending nodes begin */
    size_t n_pending, n_path;
} left_walk;

static void enter_rule(left_walk *w, uint32_t rule)
{
    w->colour[rule] = 1;
    w->begin[w->n_path] = (uint32_t)w->n_pending;
    w->path[w->n_path++] = rule;
    w->pending[w->n_pending++] = w->grammar->rules[rule].entry;
}

static void look_at(left_walk *w, uint32_t id)
{
    if (id != SL_NFA_NONE && !w->seen[id])
        w->pending[w->n_pending++] = id;
}

static sl_status refuse_cycle(const left_walk *w, uint32_t rule, sl_error *err)
{
    const sl_str name = w->grammar->rules[rule].name;
    const sl_str last = w->grammar->rules[w->path[w->n_path - 1]].name;
    return sl_fail(err, SL_ERR_UNSUPPORTED,
                   "rule \"%.*s\" is left-recursive: it comes to itself again before any text "
                   "(through \"%.*s\"); write it as a repetition",
                   (int)sl_min_size(name.n_bytes, 80), name.data,
                   (int)sl_min_size(last.n_bytes, 80), last.data);
}

/* The next node of the innermost rule, or the end of that rule. */
static sl_status left_step(left_walk *w, sl_error *err)
{
    if (w->n_pending == w->begin[w->n_path - 1]) {
        w->colour[w->path[--w->n_path]] = 2;
        return SL_OK;
    }
    const uint32_t id = w->pending[--w->n_pending];
    const sl_nfa_node *node = &w->grammar->nfa.nodes[id];
    if (w->seen[id])
        return SL_OK;
    w->seen[id] = 1;
    if (node->kind == SL_NFA_SPLIT) {
        look_at(w, node->next);
        look_at(w, node->other);
    } else if (node->kind == SL_NFA_COUNT) {
        look_at(w, node->next); /* as if it could be empty: no harm, a counted text calls nothing */
    } else if (node->kind == SL_NFA_CALL) {
        if (w->grammar->nullable[node->other])
            look_at(w, node->next);
        if (w->colour[node->other] == 1)
            return refuse_cycle(w, node->other, err);
        if (w->colour[node->other] == 0)
            enter_rule(w, node->other);
    }
    return SL_OK;
}

static sl_status check_left_recursion(const sl_grammar *grammar, sl_error *err)
{
    const size_t n = grammar->nfa.n, n_rules = grammar->n_rules;
    sl_status status = SL_OK;
    left_walk w = {.grammar = grammar};
    w.colour = sl_alloc_zero(SL_MEM_TEXT, n + n_rules);
    /* A node waits twice at most: once from each side of a split. */
    w.pending = sl_alloc_array(SL_MEM_TEXT, 2 * n + 3 * n_rules, sizeof *w.pending);
    if (!w.colour || !w.pending) {
        status = sl_fail(err, SL_ERR_MEMORY, "out of memory for a grammar");
        goto done;
    }
    w.seen = w.colour + n_rules;
    w.path = w.pending + 2 * n + n_rules;
    w.begin = w.path + n_rules;
    for (uint32_t rule = 0; rule < n_rules; rule++) {
        if (w.colour[rule] == 0)
            enter_rule(&w, rule);
        while (w.n_path > 0)
            SL_CHECK(left_step(&w, err));
    }
done:
    sl_free(w.colour);
    sl_free(w.pending);
    return status;
}

/* ---- finishing ---- */

/* Bytes that no range tells apart share a class. */
static void find_classes(sl_grammar *grammar)
{
    bool begins[257] = {true};
    for (uint32_t i = 0; i < grammar->nfa.n; i++) {
        const sl_nfa_node *node = &grammar->nfa.nodes[i];
        if (node->kind == SL_NFA_RANGE && node->low <= node->high)
            begins[node->low] = begins[node->high + 1] = true;
    }
    for (unsigned byte = 0; byte < 256; byte++) {
        if (begins[byte])
            grammar->sample[grammar->n_classes++] = (uint8_t)byte;
        grammar->class_of[byte] = (uint8_t)(grammar->n_classes - 1);
    }
}

static sl_status find_nullable(sl_grammar *grammar, sl_error *err)
{
    bool too_deep;
    SL_TRY(find_levels(grammar, false, grammar->need, &too_deep, err));
    for (uint32_t rule = 0; rule < grammar->n_rules; rule++)
        grammar->nullable[rule] = grammar->need[grammar->rules[rule].entry] != SL_NEED_NEVER;
    return SL_OK;
}

sl_status sl_grammar_finish(sl_grammar *grammar, sl_error *err)
{
    grammar->need = sl_alloc_zero(SL_MEM_TEXT, grammar->nfa.n);
    grammar->nullable = sl_alloc_zero(SL_MEM_TEXT, grammar->n_rules);
    if (!grammar->need || !grammar->nullable)
        return sl_fail(err, SL_ERR_MEMORY, "out of memory for a grammar");
    SL_TRY(find_nullable(grammar, err));
    SL_TRY(check_left_recursion(grammar, err));
    bool too_deep;
    SL_TRY(find_levels(grammar, true, grammar->need, &too_deep, err));
    find_classes(grammar);
    const uint8_t need = grammar->need[grammar->rules[0].entry];
    if (need == SL_NEED_NEVER && !too_deep)
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "no text fits: every way through rule \"%.*s\" "
                       "goes on without an end",
                       (int)sl_min_size(grammar->rules[0].name.n_bytes, 80),
                       grammar->rules[0].name.data);
    if (need > SL_GRAMMAR_MAX_NEED)
        return sl_fail(err, SL_ERR_LIMIT,
                       "rules call each other %u levels deep at least, the limit is %d", need,
                       SL_GRAMMAR_MAX_NEED);
    for (uint32_t rule = 0; rule < grammar->n_rules; rule++)
        grammar->rules[rule].name = (sl_str){"", 0}; /* of the caller's text */
    return SL_OK;
}
