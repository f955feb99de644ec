/* Places in a text of a grammar, and the masks of what may come there.
 *
 * A mask is put together from parts: what a thread alone lets through, whatever is on its stack, is
 * found once for each state by a walk over the whole vocabulary and kept. Tokens that leave the
 * rule of the state with bytes to come are noted as exits and read on from the stack at hand. The
 * result is kept by the set of threads, so that the same place costs a look-up the next time. */
#include "grammar/constraint.h"

#include "base/mem.h"
#include "grammar/machine.h"

enum {
    MAX_PART_BYTES = 64 << 20,
    MAX_MASK_BYTES = 32 << 20,
    MIN_MASKS = 16,
    MAX_MASKS = 4096,
    N_BUCKETS = 4096
};

/* What one thread lets through on its own. */
typedef struct part {
    struct part *chain;
    uint32_t state, min, max;
    uint32_t *mask; /* all words, or NULL: */
    uint32_t *tokens;
    size_t n_tokens;
    sl_exits exits;
} part;

typedef struct kept_mask {
    struct kept_mask *chain;
    uint64_t used; /* when */
    bool may_end;
    uint32_t n;
    sl_thread *threads; /* [n] */
    uint32_t *mask;
} kept_mask;

/* What a constraint and its forks share. */
typedef struct shared {
    const sl_grammar *grammar;
    const sl_constraint_vocab *vocab;
    sl_machine machine;
    sl_constraint *first; /* all of them */
    size_t max_stacks;    /* before those not in use are given up */
    part *parts[N_BUCKETS];
    size_t part_bytes;
    kept_mask *buckets[N_BUCKETS];
    kept_mask **masks; /* [max_masks] */
    size_t n_masks, max_masks;
    uint64_t clock;
    uint32_t *nothing; /* an empty mask */
    uint32_t *fresh;   /* a mask being made */
    sl_thread work[2][SL_MACHINE_WORK];
    sl_thread begin[SL_MACHINE_THREADS];
    uint32_t n_begin;
    bool begin_may_end;
} shared;

struct sl_constraint {
    shared *shared;
    sl_constraint *next, **link; /* in the list of all */
    size_t offset;               /* bytes read */
    uint32_t n;
    bool may_end, stopped;
    sl_thread threads[SL_MACHINE_THREADS]; /* [n], in order */
};

/* ---- threads as a key ---- */

static int compare(const sl_thread *a, const sl_thread *b)
{
    if (a->state != b->state)
        return a->state < b->state ? -1 : 1;
    if (a->stack != b->stack)
        return a->stack < b->stack ? -1 : 1;
    if (a->min != b->min)
        return a->min < b->min ? -1 : 1;
    return a->max < b->max ? -1 : a->max > b->max;
}

static void sort_threads(sl_thread *threads, size_t n)
{
    for (size_t i = 1; i < n; i++) {
        const sl_thread thread = threads[i];
        size_t j = i;
        for (; j > 0 && compare(&threads[j - 1], &thread) > 0; j--)
            threads[j] = threads[j - 1];
        threads[j] = thread;
    }
}

/* Numbers of items that no token can use up or reach are as good as endless, or as one another. */
static sl_thread clipped(const shared *s, sl_thread thread)
{
    const size_t most = s->vocab->max_bytes + 1;
    if (thread.max != SL_NFA_INF && thread.max > most)
        thread.max = SL_NFA_INF;
    if (thread.min > most)
        thread.min = (uint32_t)most;
    return thread;
}

static uint32_t mix(uint32_t hash, uint32_t value)
{
    hash = (hash ^ value) * 0x9E3779B1u;
    return hash ^ hash >> 15;
}

static uint32_t hash_threads(const sl_thread *threads, size_t n, bool may_end)
{
    uint32_t hash = may_end;
    for (size_t i = 0; i < n; i++) {
        hash = mix(hash, threads[i].state);
        hash = mix(hash, threads[i].stack);
        hash = mix(hash, threads[i].min);
        hash = mix(hash, threads[i].max);
    }
    return hash % N_BUCKETS;
}

/* ---- parts ---- */

static void free_part(part *p)
{
    sl_free(p->mask);
    sl_free(p->tokens);
    sl_free(p->exits.nodes);
    sl_free(p);
}

static void free_parts(shared *s)
{
    for (size_t i = 0; i < N_BUCKETS; i++) {
        while (s->parts[i]) {
            part *p = s->parts[i];
            s->parts[i] = p->chain;
            free_part(p);
        }
    }
    s->part_bytes = 0;
}

static size_t count_bits(const uint32_t *mask, size_t n_words)
{
    size_t n = 0;
    for (size_t i = 0; i < n_words; i++) {
        for (uint32_t word = mask[i]; word != 0; word &= word - 1)
            n++;
    }
    return n;
}

/* Few tokens as a list, many as a mask. */
static sl_status keep_tokens(shared *s, part *p, sl_error *err)
{
    const size_t n_words = s->vocab->n_words, n = count_bits(s->fresh, n_words);
    const bool few = n < n_words;
    uint32_t *kept = sl_alloc(SL_MEM_TEXT, (few ? n : n_words) * sizeof *kept);
    if (!kept)
        return sl_fail(err, SL_ERR_MEMORY, "out of memory for a mask");
    s->part_bytes += (few ? n : n_words) * sizeof *kept + p->exits.room * sizeof *p->exits.nodes;
    if (!few) {
        memcpy(kept, s->fresh, n_words * sizeof *kept);
        p->mask = kept;
        return SL_OK;
    }
    p->tokens = kept;
    for (size_t i = 0; i < n_words; i++) {
        for (uint32_t b = 0; b < 32 && s->fresh[i] >> b != 0; b++) {
            if (s->fresh[i] >> b & 1)
                p->tokens[p->n_tokens++] = (uint32_t)(32 * i + b);
        }
    }
    return SL_OK;
}

static sl_status make_part(shared *s, part *p, sl_error *err)
{
    const sl_thread thread = {p->state, SL_STACK_PART, p->min, p->max};
    const uint32_t mark = sl_machine_mark(&s->machine);
    memset(s->fresh, 0, s->vocab->n_words * sizeof *s->fresh);
    const sl_status status =
        sl_machine_walk(&s->machine, s->vocab, &thread, 1, 0, s->vocab->n_nodes, 0,
                        SL_MACHINE_REACH, s->fresh, &p->exits, err);
    sl_machine_forget(&s->machine, mark);
    SL_TRY(status);
    return keep_tokens(s, p, err);
}

static sl_status find_part(shared *s, sl_thread thread, part **out, sl_error *err)
{
    thread = clipped(s, thread);
    const uint32_t hash = mix(mix(thread.state, thread.min), thread.max) % N_BUCKETS;
    for (part *p = s->parts[hash]; p; p = p->chain) {
        if (p->state == thread.state && p->min == thread.min && p->max == thread.max) {
            *out = p;
            return SL_OK;
        }
    }
    if (s->part_bytes > MAX_PART_BYTES)
        free_parts(s);
    part *p = sl_alloc_zero(SL_MEM_TEXT, sizeof *p);
    if (!p)
        return sl_fail(err, SL_ERR_MEMORY, "out of memory for a mask");
    p->state = thread.state;
    p->min = thread.min;
    p->max = thread.max;
    const sl_status status = make_part(s, p, err);
    if (status != SL_OK) {
        free_part(p);
        return status;
    }
    s->part_bytes += sizeof *p;
    p->chain = s->parts[hash];
    s->parts[hash] = p;
    *out = p;
    return SL_OK;
}

/* ---- masks ---- */

/* The tokens that go on behind the end of the thread's part. */
static sl_status add_exits(shared *s, const part *p, uint32_t stack, uint32_t *mask, sl_error *err)
{
    if (p->exits.n == 0 || stack < SL_STACK_FIRST)
        return SL_OK;
    const sl_stack top = s->machine.stacks[stack];
    size_t n;
    bool ended;
    SL_TRY(sl_machine_resume(&s->machine, top.back, top.parent, SL_MACHINE_DEPTH, s->work[0], &n,
                             &ended, err));
    for (size_t i = 0; i < p->exits.n && n > 0; i++) {
        const uint32_t node = p->exits.nodes[i];
        const sl_trie_node *at = &s->vocab->nodes[node];
        SL_TRY(sl_machine_walk(&s->machine, s->vocab, s->work[0], n, node + 1, at->skip, at->depth,
                               SL_MACHINE_DEPTH, mask, NULL, err));
    }
    return SL_OK;
}

static sl_status add_thread(shared *s, sl_thread thread, uint32_t *mask, sl_error *err)
{
    part *p = NULL;
    SL_TRY(find_part(s, thread, &p, err));
    if (p->mask) {
        for (size_t i = 0; i < s->vocab->n_words; i++)
            mask[i] |= p->mask[i];
    }
    for (size_t i = 0; i < p->n_tokens; i++)
        mask[p->tokens[i] / 32] |= (uint32_t)1 << (p->tokens[i] % 32);
    return add_exits(s, p, thread.stack, mask, err);
}

/* Near the limit of depth what is kept for all depths does not hold. */
static bool is_deep(const shared *s, const sl_constraint *c)
{
    for (size_t i = 0; i < c->n; i++) {
        if (s->machine.stacks[c->threads[i].stack].depth > SL_MACHINE_DEPTH - SL_MACHINE_REACH)
            return true;
    }
    return false;
}

static sl_status make_mask(shared *s, const sl_constraint *c, uint32_t *mask, sl_error *err)
{
    const size_t n_words = s->vocab->n_words;
    memset(mask, 0, n_words * sizeof *mask);
    if (is_deep(s, c)) {
        SL_TRY(sl_machine_walk(&s->machine, s->vocab, c->threads, c->n, 0, s->vocab->n_nodes, 0,
                               SL_MACHINE_DEPTH, mask, NULL, err));
    } else {
        for (size_t i = 0; i < c->n; i++)
            SL_TRY(add_thread(s, c->threads[i], mask, err));
    }
    for (size_t i = 0; i < n_words; i++) {
        if (!s->grammar->added_tokens)
            mask[i] &= ~s->vocab->added[i];
        if (c->may_end)
            mask[i] |= s->vocab->stops[i];
    }
    return SL_OK;
}

static void free_mask(kept_mask *kept)
{
    if (!kept)
        return;
    sl_free(kept->threads);
    sl_free(kept->mask);
    sl_free(kept);
}

static void free_masks(shared *s)
{
    for (size_t i = 0; i < s->n_masks; i++)
        free_mask(s->masks[i]);
    s->n_masks = 0;
    memset(s->buckets, 0, sizeof s->buckets);
}

/* Takes the mask that was not used for longest out of its bucket. */
static void drop_oldest(shared *s)
{
    size_t oldest = 0;
    for (size_t i = 1; i < s->n_masks; i++) {
        if (s->masks[i]->used < s->masks[oldest]->used)
            oldest = i;
    }
    kept_mask *kept = s->masks[oldest];
    kept_mask **link = &s->buckets[hash_threads(kept->threads, kept->n, kept->may_end)];
    while (*link != kept)
        link = &(*link)->chain;
    *link = kept->chain;
    free_mask(kept);
    s->masks[oldest] = s->masks[--s->n_masks];
}

static sl_status new_mask(shared *s, const sl_constraint *c, const sl_thread *key, kept_mask **out,
                          sl_error *err)
{
    kept_mask *kept = sl_alloc_zero(SL_MEM_TEXT, sizeof *kept);
    if (kept) {
        kept->threads = sl_alloc(SL_MEM_TEXT, c->n * sizeof *kept->threads);
        kept->mask = sl_alloc(SL_MEM_TEXT, s->vocab->n_words * sizeof *kept->mask);
    }
    if (!kept || !kept->threads || !kept->mask) {
        free_mask(kept);
        return sl_fail(err, SL_ERR_MEMORY, "out of memory for a mask");
    }
    const uint32_t mark = sl_machine_mark(&s->machine);
    const sl_status status = make_mask(s, c, kept->mask, err);
    sl_machine_forget(&s->machine, mark);
    if (status != SL_OK) {
        free_mask(kept);
        return status;
    }
    memcpy(kept->threads, key, c->n * sizeof *key);
    kept->n = c->n;
    kept->may_end = c->may_end;
    *out = kept;
    return SL_OK;
}

sl_status sl_constraint_allowed(sl_constraint *constraint, const uint32_t **allowed, sl_error *err)
{
    shared *s = constraint->shared;
    sl_thread key[SL_MACHINE_THREADS];
    *allowed = s->nothing;
    if (constraint->stopped)
        return SL_OK;
    for (size_t i = 0; i < constraint->n; i++)
        key[i] = clipped(s, constraint->threads[i]);
    const uint32_t hash = hash_threads(key, constraint->n, constraint->may_end);
    kept_mask *kept = s->buckets[hash];
    while (kept && (kept->n != constraint->n || kept->may_end != constraint->may_end ||
                    memcmp(kept->threads, key, constraint->n * sizeof *key) != 0))
        kept = kept->chain;
    if (!kept) {
        SL_TRY(new_mask(s, constraint, key, &kept, err));
        if (s->n_masks == s->max_masks)
            drop_oldest(s);
        kept->chain = s->buckets[hash];
        s->buckets[hash] = kept;
        s->masks[s->n_masks++] = kept;
    }
    kept->used = ++s->clock;
    *allowed = kept->mask;
    return SL_OK;
}

/* ---- reading ---- */

/* Gives up the stacks that no constraint has any more. */
static sl_status collect(shared *s, sl_error *err)
{
    sl_machine *m = &s->machine;
    uint32_t *used = sl_alloc_array(SL_MEM_TEXT, m->n_stacks, sizeof *used);
    if (!used)
        return sl_fail(err, SL_ERR_MEMORY, "out of memory for stacks");
    for (size_t i = 0; i < s->n_begin; i++)
        used[s->begin[i].stack] = 1;
    for (const sl_constraint *c = s->first; c; c = c->next) {
        for (size_t i = 0; i < c->n; i++)
            used[c->threads[i].stack] = 1;
    }
    free_masks(s); /* their keys have the old numbers */
    sl_machine_compact(m, used);
    for (size_t i = 0; i < s->n_begin; i++)
        s->begin[i].stack = used[s->begin[i].stack];
    for (sl_constraint *c = s->first; c; c = c->next) {
        for (size_t i = 0; i < c->n; i++)
            c->threads[i].stack = used[c->threads[i].stack];
        sort_threads(c->threads, c->n);
    }
    sl_free(used);
    s->max_stacks = sl_max_size(SL_MACHINE_STACKS, 2 * (size_t)m->n_stacks);
    return SL_OK;
}

/* Reads text[0..n); *bad is the first byte that does not fit, or n. */
static sl_status read_bytes(sl_constraint *c, const char *text, size_t n, size_t *bad,
                            sl_error *err)
{
    shared *s = c->shared;
    if (s->machine.n_stacks > s->max_stacks)
        SL_TRY(collect(s, err));
    sl_thread *from = s->work[0], *to = s->work[1];
    size_t n_from = c->n;
    bool ended = c->may_end;
    memcpy(from, c->threads, n_from * sizeof *from);
    for (*bad = 0; *bad < n; ++*bad) {
        size_t n_to;
        SL_TRY(sl_machine_step(&s->machine, from, n_from, (uint8_t)text[*bad], SL_MACHINE_DEPTH, to,
                               &n_to, &ended, err));
        if (n_to == 0 && !ended)
            return s->machine.crowded ? sl_fail(err, SL_ERR_LIMIT,
                                                "the grammar allows more than %d readings at once",
                                                SL_MACHINE_THREADS)
                                      : SL_OK;
        sl_thread *const swap = from;
        from = to;
        to = swap;
        n_from = n_to;
    }
    sort_threads(from, n_from);
    memcpy(c->threads, from, n_from * sizeof *from);
    c->n = (uint32_t)n_from;
    c->may_end = ended;
    c->offset += n;
    return SL_OK;
}

sl_status sl_constraint_accept_text(sl_constraint *constraint, sl_str text, sl_error *err)
{
    size_t bad = 0;
    if (!constraint->stopped)
        SL_TRY(read_bytes(constraint, text.data, text.n_bytes, &bad, err));
    if (bad == text.n_bytes)
        return SL_OK;
    return sl_fail(err, SL_ERR_ARGUMENT, "byte %zu of the text does not fit the grammar",
                   constraint->offset + bad);
}

static bool has_bit(const uint32_t *mask, int32_t token)
{
    return mask[token / 32] >> (token % 32) & 1;
}

sl_status sl_constraint_accept(sl_constraint *constraint, int32_t token, sl_error *err)
{
    const shared *s = constraint->shared;
    const sl_constraint_vocab *vocab = s->vocab;
    if (token < 0 || (size_t)token >= vocab->n_vocab)
        return sl_fail(err, SL_ERR_ARGUMENT, "token %d, there are %zu", token, vocab->n_vocab);
    if (has_bit(vocab->stops, token)) {
        if (!constraint->may_end || constraint->stopped)
            return sl_fail(err, SL_ERR_ARGUMENT, "the text may not end at byte %zu",
                           constraint->offset);
        constraint->stopped = true;
        constraint->may_end = false;
        constraint->n = 0;
        return SL_OK;
    }
    const uint32_t begin = vocab->offsets[token], end = vocab->offsets[token + 1];
    const bool is_text = end > begin && (s->grammar->added_tokens || !has_bit(vocab->added, token));
    size_t bad = 0;
    if (is_text && !constraint->stopped)
        SL_TRY(read_bytes(constraint, vocab->bytes + begin, end - begin, &bad, err));
    if (is_text && bad == end - begin)
        return SL_OK;
    return sl_fail(err, SL_ERR_ARGUMENT, "token %d does not fit the grammar at byte %zu", token,
                   constraint->offset + bad);
}

size_t sl_constraint_n_vocab(const sl_constraint *constraint)
{
    return constraint->shared->vocab->n_vocab;
}

bool sl_constraint_is_calls(const sl_constraint *constraint)
{
    return constraint->shared->grammar->added_tokens;
}

bool sl_constraint_may_end(const sl_constraint *constraint)
{
    return constraint->may_end;
}

bool sl_constraint_is_done(const sl_constraint *constraint)
{
    return constraint->n == 0;
}

bool sl_constraint_equal(const sl_constraint *a, const sl_constraint *b)
{
    return a->shared == b->shared && a->n == b->n && a->may_end == b->may_end &&
           a->stopped == b->stopped &&
           memcmp(a->threads, b->threads, a->n * sizeof *a->threads) == 0;
}

/* *byte: the one that all readings go on with, or -1. Leaves what follows in `to`. */
static sl_status only_byte(shared *s, const sl_thread *from, size_t n_from, sl_thread *to,
                           size_t *n_to, bool *ended, int *byte, sl_error *err)
{
    const sl_grammar *grammar = s->grammar;
    sl_thread found[SL_MACHINE_THREADS];
    size_t n_found = 0;
    bool found_ended = false;
    *byte = -1;
    for (uint32_t class = 0; class < grammar->n_classes; class ++) {
        const uint8_t sample = grammar->sample[class];
        SL_TRY(sl_machine_step(&s->machine, from, n_from, sample, SL_MACHINE_DEPTH, to, n_to, ended,
                               err));
        if (*n_to == 0 && !*ended)
            continue;
        const bool alone = sample == 255 || grammar->class_of[sample + 1] != class;
        if (*byte >= 0 || !alone) {
            *byte = -1;
            return SL_OK;
        }
        *byte = sample;
        n_found = *n_to;
        found_ended = *ended;
        memcpy(found, to, n_found * sizeof *found);
    }
    memcpy(to, found, n_found * sizeof *found);
    *n_to = n_found;
    *ended = found_ended;
    return SL_OK;
}

sl_status sl_constraint_forced(sl_constraint *constraint, char *bytes, size_t capacity, size_t *n,
                               sl_error *err)
{
    shared *s = constraint->shared;
    sl_thread *from = s->work[0], *to = s->work[1];
    size_t n_from = constraint->n, n_to;
    bool ended = constraint->may_end;
    *n = 0;
    memcpy(from, constraint->threads, n_from * sizeof *from);
    while (*n < capacity && n_from > 0 && !ended) {
        int byte;
        SL_TRY(only_byte(s, from, n_from, to, &n_to, &ended, &byte, err));
        if (byte < 0)
            return SL_OK;
        bytes[(*n)++] = (char)byte;
        sl_thread *const swap = from;
        from = to;
        to = swap;
        n_from = n_to;
    }
    return SL_OK;
}

/* ---- life ---- */

static void free_shared(shared *s)
{
    free_parts(s);
    free_masks(s);
    sl_machine_free(&s->machine);
    sl_free(s->masks);
    sl_free(s->nothing);
    sl_free(s->fresh);
    sl_free(s);
}

static sl_status fill_shared(shared *s, sl_error *err)
{
    const size_t n_bytes = s->vocab->n_words * sizeof *s->fresh;
    size_t n;
    s->max_stacks = SL_MACHINE_STACKS;
    s->max_masks = sl_max_size(MIN_MASKS, sl_min_size(MAX_MASKS, MAX_MASK_BYTES / n_bytes));
    s->masks = sl_alloc_array(SL_MEM_TEXT, s->max_masks, sizeof(kept_mask *));
    s->nothing = sl_alloc_zero(SL_MEM_TEXT, n_bytes);
    s->fresh = sl_alloc_zero(SL_MEM_TEXT, n_bytes);
    if (!s->masks || !s->nothing || !s->fresh)
        return sl_fail(err, SL_ERR_MEMORY, "out of memory for a constraint");
    SL_TRY(sl_machine_init(&s->machine, s->grammar, s->vocab->max_bytes, err));
    SL_TRY(sl_machine_begin(&s->machine, SL_MACHINE_DEPTH, s->work[0], &n, &s->begin_may_end, err));
    sort_threads(s->work[0], n);
    memcpy(s->begin, s->work[0], n * sizeof *s->begin);
    s->n_begin = (uint32_t)n;
    return SL_OK;
}

static sl_status new_constraint(shared *s, sl_constraint **out, sl_error *err)
{
    sl_constraint *c = sl_alloc_zero(SL_MEM_TEXT, sizeof *c);
    if (!c)
        return sl_fail(err, SL_ERR_MEMORY, "out of memory for a constraint");
    c->shared = s;
    c->next = s->first;
    c->link = &s->first;
    if (c->next)
        c->next->link = &c->next;
    s->first = c;
    sl_constraint_reset(c);
    *out = c;
    return SL_OK;
}

sl_status sl_constraint_create(const sl_grammar *grammar, const sl_constraint_vocab *vocab,
                               sl_constraint **out, sl_error *err)
{
    *out = NULL;
    shared *s = sl_alloc_zero(SL_MEM_TEXT, sizeof *s);
    if (!s)
        return sl_fail(err, SL_ERR_MEMORY, "out of memory for a constraint");
    s->grammar = grammar;
    s->vocab = vocab;
    sl_status status = fill_shared(s, err);
    if (status == SL_OK)
        status = new_constraint(s, out, err);
    if (status != SL_OK)
        free_shared(s);
    return status;
}

sl_status sl_constraint_fork(const sl_constraint *constraint, sl_constraint **out, sl_error *err)
{
    *out = NULL;
    SL_TRY(new_constraint(constraint->shared, out, err));
    return sl_constraint_assign(*out, constraint, err);
}

void sl_constraint_free(sl_constraint *constraint)
{
    if (!constraint)
        return;
    shared *s = constraint->shared;
    *constraint->link = constraint->next;
    if (constraint->next)
        constraint->next->link = constraint->link;
    sl_free(constraint);
    if (!s->first)
        free_shared(s);
}

void sl_constraint_reset(sl_constraint *constraint)
{
    const shared *s = constraint->shared;
    memcpy(constraint->threads, s->begin, s->n_begin * sizeof *s->begin);
    constraint->n = s->n_begin;
    constraint->may_end = s->begin_may_end;
    constraint->stopped = false;
    constraint->offset = 0;
}

sl_status sl_constraint_assign(sl_constraint *constraint, const sl_constraint *from, sl_error *err)
{
    if (constraint->shared != from->shared)
        return sl_fail(err, SL_ERR_ARGUMENT, "a place of another constraint");
    if (constraint == from)
        return SL_OK;
    memcpy(constraint->threads, from->threads, from->n * sizeof *from->threads);
    constraint->n = from->n;
    constraint->may_end = from->may_end;
    constraint->stopped = from->stopped;
    constraint->offset = from->offset;
    return SL_OK;
}
