/* Owns automata over code points: made deterministic, intersected, inverted, asked. */
#include <stdlib.h>

#include "base/utf8.h"
#include "grammar/cdfa_build.h"

enum { N_BUCKETS = 4096, LAST_CODE = 0x10FFFF, MAX_LOOKS = 1 << 26 };

static sl_status out_of_memory(sl_error *err)
{
    return sl_fail(err, SL_ERR_MEMORY, "out of memory for an automaton");
}

static sl_status too_large(sl_error *err)
{
    return sl_fail(err, SL_ERR_LIMIT, "it takes more than %d states, or %d steps between them",
                   SL_CDFA_MAX_STATES, SL_CDFA_MAX_EDGES);
}

void sl_cdfa_free(sl_cdfa *dfa)
{
    sl_free(dfa->bounds);
    sl_free(dfa->next);
    sl_free(dfa->accepts);
    *dfa = (sl_cdfa){0};
}

static int compare_ranges(const void *a, const void *b)
{
    const sl_code_range *x = a, *y = b;
    return x->low < y->low ? -1 : x->low > y->low;
}

size_t sl_code_ranges_join(sl_code_range *ranges, size_t n)
{
    size_t n_joined = 0;
    qsort(ranges, n, sizeof *ranges, compare_ranges);
    for (size_t i = 0; i < n; i++) {
        if (n_joined > 0 && ranges[i].low <= ranges[n_joined - 1].high + 1) {
            if (ranges[i].high > ranges[n_joined - 1].high)
                ranges[n_joined - 1].high = ranges[i].high;
        } else {
            ranges[n_joined++] = ranges[i];
        }
    }
    return n_joined;
}

static int compare_codes(const void *a, const void *b)
{
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

/* Sorts bounds and drops repeated ones. */
static uint32_t unique(uint32_t *bounds, size_t n)
{
    uint32_t n_kept = 0;
    qsort(bounds, n, sizeof *bounds, compare_codes);
    for (size_t i = 0; i < n; i++) {
        if (n_kept == 0 || bounds[i] != bounds[n_kept - 1])
            bounds[n_kept++] = bounds[i];
    }
    return n_kept;
}

/* Room for one more state; the table grows with it. */
static sl_status add_state(sl_cdfa *dfa, uint32_t *room, sl_error *err)
{
    if (dfa->n_states == SL_CDFA_MAX_STATES ||
        (size_t)(dfa->n_states + 1) * dfa->n_classes > SL_CDFA_MAX_EDGES)
        return too_large(err);
    if (dfa->n_states == *room) {
        const uint32_t more = *room > 0 ? 2 * *room : 16;
        uint32_t *next =
            sl_realloc(SL_MEM_TEXT, dfa->next, (size_t)more * dfa->n_classes * sizeof *next);
        if (next)
            dfa->next = next;
        uint8_t *accepts = next ? sl_realloc(SL_MEM_TEXT, dfa->accepts, more) : NULL;
        if (accepts)
            dfa->accepts = accepts;
        if (!next || !accepts)
            return out_of_memory(err);
        *room = more;
    }
    dfa->n_states++;
    return SL_OK;
}

/* ---- from nodes ---- */

/* A state is the sorted list of its nodes: those that read, and borders at the end of the text. */
typedef struct builder {
    const sl_nfa *nfa;
    bool anything_after;
    sl_cdfa *dfa;
    uint32_t room;
    uint32_t *pool; /* the nodes of all states */
    size_t n_pool, pool_room;
    uint32_t *begin; /* [SL_CDFA_MAX_STATES + 1] */
    uint32_t *chain; /* [SL_CDFA_MAX_STATES] */
    uint32_t *buckets;
    uint32_t *seeds, *pending, *found, *seen; /* [n nodes + 1] */
    uint32_t stamp;
    size_t n_found, n_looks;
    bool matched;
} builder;

static void look_at(builder *b, uint32_t id, size_t *n_pending)
{
    if (id == SL_NFA_NONE || b->seen[id] == b->stamp)
        return;
    b->seen[id] = b->stamp;
    b->pending[(*n_pending)++] = id;
}

/* What is reached from seeds[0..n) without reading. */
static void close_over(builder *b, size_t n, bool at_begin, bool at_end)
{
    size_t n_pending = 0;
    b->stamp++;
    b->n_found = 0;
    b->matched = false;
    for (size_t i = 0; i < n; i++)
        look_at(b, b->seeds[i], &n_pending);
    while (n_pending > 0) {
        const uint32_t id = b->pending[--n_pending];
        const sl_nfa_node *node = &b->nfa->nodes[id];
        b->n_looks++;
        if (node->kind == SL_NFA_SPLIT) {
            look_at(b, node->next, &n_pending);
            look_at(b, node->other, &n_pending);
        } else if (node->kind == SL_NFA_END) {
            b->matched = true;
        } else if (node->kind == SL_NFA_AT_BEGIN) {
            if (at_begin)
                look_at(b, node->next, &n_pending);
        } else {
            b->found[b->n_found++] = id;
            if (node->kind == SL_NFA_AT_END && at_end)
                look_at(b, node->next, &n_pending);
        }
    }
}

static sl_status keep_nodes(builder *b, sl_error *err)
{
    if (b->n_pool + b->n_found > b->pool_room) {
        const size_t room = sl_max_size(1024, 2 * (b->n_pool + b->n_found));
        if (room > 8 * (size_t)SL_CDFA_MAX_EDGES)
            return too_large(err);
        uint32_t *pool = sl_realloc(SL_MEM_TEXT, b->pool, room * sizeof *pool);
        if (!pool)
            return out_of_memory(err);
        b->pool = pool;
        b->pool_room = room;
    }
    if (b->n_found > 0)
        memcpy(b->pool + b->n_pool, b->found, b->n_found * sizeof *b->found);
    b->n_pool += b->n_found;
    return SL_OK;
}

/* The state of seeds[0..n), new or not. */
static sl_status state_of(builder *b, size_t n, bool at_begin, uint32_t *out, sl_error *err)
{
    if (b->n_looks > MAX_LOOKS)
        return sl_fail(err, SL_ERR_LIMIT, "it takes too much work to make it deterministic");
    close_over(b, n, at_begin, true);
    bool accepts = b->matched; /* if the text ends here */
    close_over(b, n, at_begin, false);
    if (b->matched && b->anything_after) {
        b->n_found = 0; /* all that is the same: it has been found */
        b->found[b->n_found++] = b->nfa->n;
        accepts = true;
    }
    qsort(b->found, b->n_found, sizeof *b->found, compare_codes);
    uint32_t hash = accepts;
    for (size_t i = 0; i < b->n_found; i++)
        hash = (hash ^ b->found[i]) * 0x9E3779B1u;
    hash = (hash ^ hash >> 16) % N_BUCKETS;
    for (uint32_t s = b->buckets[hash]; s != SL_NFA_NONE; s = b->chain[s]) {
        if (b->begin[s + 1] - b->begin[s] == b->n_found && b->dfa->accepts[s] == accepts &&
            memcmp(b->pool + b->begin[s], b->found, b->n_found * sizeof *b->found) == 0) {
            *out = s;
            return SL_OK;
        }
    }
    const uint32_t s = b->dfa->n_states;
    SL_TRY(add_state(b->dfa, &b->room, err));
    SL_TRY(keep_nodes(b, err));
    b->begin[s + 1] = (uint32_t)b->n_pool;
    b->chain[s] = b->buckets[hash];
    b->buckets[hash] = s;
    b->dfa->accepts[s] = accepts;
    *out = s;
    return SL_OK;
}

static sl_status add_edges(builder *b, uint32_t s, sl_error *err)
{
    for (uint32_t class = 0; class < b->dfa->n_classes; class ++) {
        const uint32_t code = b->dfa->bounds[class];
        size_t n = 0;
        uint32_t next;
        for (uint32_t i = b->begin[s]; i < b->begin[s + 1]; i++) {
            if (b->pool[i] == b->nfa->n) { /* found, for good */
                b->seeds[n++] = b->nfa->n - 1;
                continue;
            }
            const sl_nfa_node *node = &b->nfa->nodes[b->pool[i]];
            if (node->kind == SL_NFA_RANGE && node->low <= code && code <= node->high)
                b->seeds[n++] = node->next;
        }
        SL_TRY(state_of(b, n, false, &next, err));
        b->dfa->next[(size_t)s * b->dfa->n_classes + class] = next;
    }
    return SL_OK;
}

static sl_status find_bounds(const sl_nfa *nfa, sl_cdfa *dfa, sl_error *err)
{
    size_t n = 0;
    dfa->bounds = sl_alloc_array(SL_MEM_TEXT, 2 * (size_t)nfa->n + 1, sizeof *dfa->bounds);
    if (!dfa->bounds)
        return out_of_memory(err);
    dfa->bounds[n++] = 0;
    for (uint32_t i = 0; i < nfa->n; i++) {
        const sl_nfa_node *node = &nfa->nodes[i];
        if (node->kind != SL_NFA_RANGE || node->low > node->high)
            continue;
        dfa->bounds[n++] = node->low;
        if (node->high < LAST_CODE)
            dfa->bounds[n++] = node->high + 1;
    }
    dfa->n_classes = unique(dfa->bounds, n);
    return SL_OK;
}

static sl_status build(builder *b, uint32_t start, sl_error *err)
{
    const size_t n = (size_t)b->nfa->n + 1;
    uint32_t first;
    SL_TRY(find_bounds(b->nfa, b->dfa, err));
    b->seeds = sl_alloc_array(SL_MEM_TEXT, 4 * n, sizeof *b->seeds);
    b->begin =
        sl_alloc_array(SL_MEM_TEXT, 2 * (SL_CDFA_MAX_STATES + 1) + N_BUCKETS, sizeof *b->begin);
    if (!b->seeds || !b->begin)
        return out_of_memory(err);
    b->pending = b->seeds + n;
    b->found = b->pending + n;
    b->seen = b->found + n;
    b->chain = b->begin + SL_CDFA_MAX_STATES + 1;
    b->buckets = b->chain + SL_CDFA_MAX_STATES + 1;
    memset(b->buckets, 0xFF, N_BUCKETS * sizeof *b->buckets);
    b->seeds[0] = start;
    SL_TRY(state_of(b, 1, true, &first, err));
    for (uint32_t s = 0; s < b->dfa->n_states; s++)
        SL_TRY(add_edges(b, s, err));
    return SL_OK;
}

sl_status sl_cdfa_determinise(const sl_nfa *nfa, uint32_t start, bool anything_after, sl_cdfa *out,
                              sl_error *err)
{
    *out = (sl_cdfa){0};
    builder b = {.nfa = nfa, .anything_after = anything_after, .dfa = out};
    const sl_status status = build(&b, start, err);
    sl_free(b.pool);
    sl_free(b.seeds);
    sl_free(b.begin);
    if (status != SL_OK)
        sl_cdfa_free(out);
    return status;
}

/* ---- lengths and texts ---- */

sl_status sl_cdfa_length(uint32_t min, uint32_t max, sl_cdfa *out, sl_error *err)
{
    uint32_t room = 0;
    sl_status status = SL_OK;
    const bool endless = max == SL_NFA_INF;
    const uint32_t last = endless ? min : max;
    *out = (sl_cdfa){.n_classes = 1};
    out->bounds = sl_alloc_zero(SL_MEM_TEXT, sizeof *out->bounds);
    if (!out->bounds) {
        status = out_of_memory(err);
        goto done;
    }
    for (uint32_t s = 0; s <= last; s++) {
        SL_CHECK(add_state(out, &room, err));
        out->accepts[s] = s >= min;
        out->next[s] = s + 1;
    }
    if (endless) {
        out->next[last] = last;
    } else { /* too long, for good */
        SL_CHECK(add_state(out, &room, err));
        out->accepts[last + 1] = false;
        out->next[last + 1] = last + 1;
    }
done:
    if (status != SL_OK)
        sl_cdfa_free(out);
    return status;
}

static sl_status add_text(sl_nfa *nfa, sl_str text, sl_frag *choice, sl_error *err)
{
    sl_frag whole;
    SL_TRY(sl_nfa_empty(nfa, &whole, err));
    for (size_t i = 0; i < text.n_bytes;) {
        uint32_t code;
        sl_frag one;
        i += sl_utf8_decode(text.data + i, text.n_bytes - i, &code);
        SL_TRY(sl_nfa_range(nfa, code, code, &one, err));
        whole = sl_nfa_join(nfa, whole, one);
    }
    return sl_nfa_choose(nfa, choice, whole, err);
}

sl_status sl_cdfa_texts(const sl_str *texts, size_t n, sl_cdfa *out, sl_error *err)
{
    sl_nfa nfa;
    sl_frag choice;
    uint32_t end;
    sl_status status;
    *out = (sl_cdfa){0};
    sl_nfa_init(&nfa, SL_REGEX_MAX_NODES);
    SL_CHECK(sl_nfa_choice(&nfa, &choice, err));
    for (size_t i = 0; i < n; i++)
        SL_CHECK(add_text(&nfa, texts[i], &choice, err));
    SL_CHECK(sl_nfa_add(
        &nfa, (sl_nfa_node){.kind = SL_NFA_END, .next = SL_NFA_NONE, .other = SL_NFA_NONE}, &end,
        err));
    nfa.nodes[choice.exit].next = end;
    SL_CHECK(sl_cdfa_determinise(&nfa, choice.entry, false, out, err));
done:
    sl_nfa_free(&nfa);
    return status;
}

/* ---- operations ---- */

void sl_cdfa_invert(sl_cdfa *dfa)
{
    for (uint32_t s = 0; s < dfa->n_states; s++)
        dfa->accepts[s] = !dfa->accepts[s];
}

bool sl_cdfa_is_sink(const sl_cdfa *dfa, uint32_t state)
{
    for (uint32_t c = 0; c < dfa->n_classes; c++) {
        if (dfa->next[(size_t)state * dfa->n_classes + c] != state)
            return false;
    }
    return true;
}

static uint32_t class_of(const sl_cdfa *dfa, uint32_t code)
{
    uint32_t low = 0, high = dfa->n_classes;
    while (high - low > 1) {
        const uint32_t middle = low + (high - low) / 2;
        if (dfa->bounds[middle] <= code)
            low = middle;
        else
            high = middle;
    }
    return low;
}

bool sl_cdfa_matches(const sl_cdfa *dfa, sl_str text)
{
    uint32_t state = 0;
    for (size_t i = 0; i < text.n_bytes;) {
        uint32_t code;
        i += sl_utf8_decode(text.data + i, text.n_bytes - i, &code);
        state = dfa->next[(size_t)state * dfa->n_classes + class_of(dfa, code)];
    }
    return dfa->accepts[state];
}

/* Pairs of states, found by a hash. */
typedef struct product {
    const sl_cdfa *a, *b;
    uint8_t *a_fails, *b_fails; /* states from which no text fits any more, whatever follows */
    sl_cdfa *out;
    uint32_t room;
    uint32_t *pairs; /* [2 SL_CDFA_MAX_STATES] */
    uint32_t *chain, *buckets;
} product;

static sl_status pair_of(product *p, uint32_t a, uint32_t b, uint32_t *out, sl_error *err)
{
    if (p->a_fails[a] || p->b_fails[b])
        a = b = SL_NFA_NONE; /* all failures are one */
    const uint32_t hash = ((a * 0x9E3779B1u) ^ (b * 0x85EBCA6Bu)) >> 12 & (N_BUCKETS - 1);
    for (uint32_t s = p->buckets[hash]; s != SL_NFA_NONE; s = p->chain[s]) {
        if (p->pairs[2 * s] == a && p->pairs[2 * s + 1] == b) {
            *out = s;
            return SL_OK;
        }
    }
    const uint32_t s = p->out->n_states;
    SL_TRY(add_state(p->out, &p->room, err));
    p->pairs[2 * s] = a;
    p->pairs[2 * s + 1] = b;
    p->chain[s] = p->buckets[hash];
    p->buckets[hash] = s;
    p->out->accepts[s] = a != SL_NFA_NONE && p->a->accepts[a] && p->b->accepts[b];
    *out = s;
    return SL_OK;
}

static sl_status multiply(product *p, sl_error *err)
{
    sl_cdfa *out = p->out;
    uint32_t first;
    const size_t n_bounds = (size_t)p->a->n_classes + p->b->n_classes;
    out->bounds = sl_alloc_array(SL_MEM_TEXT, n_bounds, sizeof *out->bounds);
    p->pairs = sl_alloc_array(SL_MEM_TEXT, 3 * SL_CDFA_MAX_STATES + N_BUCKETS, sizeof *p->pairs);
    p->a_fails = sl_alloc_zero(SL_MEM_TEXT, (size_t)p->a->n_states + p->b->n_states);
    if (!out->bounds || !p->pairs || !p->a_fails)
        return out_of_memory(err);
    p->b_fails = p->a_fails + p->a->n_states;
    for (uint32_t s = 0; s < p->a->n_states; s++)
        p->a_fails[s] = !p->a->accepts[s] && sl_cdfa_is_sink(p->a, s);
    for (uint32_t s = 0; s < p->b->n_states; s++)
        p->b_fails[s] = !p->b->accepts[s] && sl_cdfa_is_sink(p->b, s);
    p->chain = p->pairs + 2 * SL_CDFA_MAX_STATES;
    p->buckets = p->chain + SL_CDFA_MAX_STATES;
    memset(p->buckets, 0xFF, N_BUCKETS * sizeof *p->buckets);
    memcpy(out->bounds, p->a->bounds, p->a->n_classes * sizeof *out->bounds);
    memcpy(out->bounds + p->a->n_classes, p->b->bounds, p->b->n_classes * sizeof *out->bounds);
    out->n_classes = unique(out->bounds, n_bounds);
    SL_TRY(pair_of(p, 0, 0, &first, err));
    for (uint32_t s = 0; s < out->n_states; s++) {
        for (uint32_t c = 0; c < out->n_classes; c++) {
            const uint32_t a = p->pairs[2 * s], b = p->pairs[2 * s + 1], code = out->bounds[c];
            uint32_t next = s;
            if (a != SL_NFA_NONE)
                SL_TRY(pair_of(p, p->a->next[(size_t)a * p->a->n_classes + class_of(p->a, code)],
                               p->b->next[(size_t)b * p->b->n_classes + class_of(p->b, code)],
                               &next, err));
            out->next[(size_t)s * out->n_classes + c] = next;
        }
    }
    return SL_OK;
}

sl_status sl_cdfa_intersect(const sl_cdfa *a, const sl_cdfa *b, sl_cdfa *out, sl_error *err)
{
    product p = {.a = a, .b = b, .out = out};
    *out = (sl_cdfa){0};
    const sl_status status = multiply(&p, err);
    sl_free(p.pairs);
    sl_free(p.a_fails);
    if (status != SL_OK)
        sl_cdfa_free(out);
    return status;
}

/* Only states that are reached exist. */
bool sl_cdfa_is_empty(const sl_cdfa *dfa)
{
    for (uint32_t s = 0; s < dfa->n_states; s++) {
        if (dfa->accepts[s])
            return false;
    }
    return true;
}
