#include "engine/checkpoint.h"

#include <string.h>

/* How many tokens of recomputation one token saved by an anchor is worth: positions that a caller
 * named are asked for again far more often than those that merely came by. */
static const double anchor_weight[SL_ANCHOR_COUNT] = {
    [SL_ANCHOR_REGULAR] = 1, [SL_ANCHOR_SYSTEM] = 16, [SL_ANCHOR_TURN] = 2,
    [SL_ANCHOR_REPLY] = 4,   [SL_ANCHOR_TOOL] = 2,    [SL_ANCHOR_FORK] = 8,
};

void sl_store_init(sl_checkpoint_store *store, size_t budget)
{
    *store = (sl_checkpoint_store){.budget = budget};
}

/* ---- bytes: a block counts when the first checkpoint holds it ---- */

static sl_block *hold(sl_checkpoint_store *store, sl_block *block)
{
    if (block->held++ == 0)
        store->bytes += block->pool->n_bytes;
    return sl_block_ref(block);
}

static void let_go(sl_checkpoint_store *store, sl_block *block)
{
    if (!block)
        return;
    if (--block->held == 0)
        store->bytes -= block->pool->n_bytes;
    sl_block_release(block);
}

static size_t own_bytes(const sl_checkpoint *checkpoint)
{
    return sizeof *checkpoint + checkpoint->length * sizeof *checkpoint->tokens +
           checkpoint->n_kv_pages * sizeof *checkpoint->kv;
}

static void free_checkpoint(sl_checkpoint_store *store, sl_checkpoint *checkpoint)
{
    let_go(store, checkpoint->chunk.border);
    for (int i = 0; i < SL_TAPE_CHUNK_PAGES; i++)
        let_go(store, checkpoint->chunk.tape[i]);
    let_go(store, checkpoint->conv);
    for (size_t i = 0; i < checkpoint->n_kv_pages; i++)
        let_go(store, checkpoint->kv[i]);
    store->bytes -= own_bytes(checkpoint);
    sl_free(checkpoint->kv);
    sl_free(checkpoint->tokens);
    sl_free(checkpoint);
}

void sl_store_free(sl_checkpoint_store *store)
{
    while (store->first) {
        sl_checkpoint *checkpoint = store->first;
        store->first = checkpoint->next;
        free_checkpoint(store, checkpoint);
    }
    store->n_checkpoints = 0;
}

/* ---- lookup ---- */

static bool begins(const sl_checkpoint *checkpoint, const int32_t *tokens, size_t n)
{
    return checkpoint->length <= n &&
           memcmp(checkpoint->tokens, tokens, checkpoint->length * sizeof *tokens) == 0;
}

sl_checkpoint *sl_store_find(const sl_checkpoint_store *store, const int32_t *tokens, size_t n,
                             size_t max_length)
{
    sl_checkpoint *best = NULL;
    for (sl_checkpoint *c = store->first; c; c = c->next) {
        if (c->length <= max_length && (!best || c->length > best->length) && begins(c, tokens, n))
            best = c;
    }
    return best;
}

/* ---- eviction ---- */

/* Finds the line of every checkpoint: each tells its ancestors of itself. */
static void trace_lines(sl_checkpoint_store *store)
{
    for (sl_checkpoint *c = store->first; c; c = c->next)
        c->line =
            (sl_checkpoint_line){.next = UINT32_MAX, .tip = c->length, .last_used = c->last_used};
    for (const sl_checkpoint *c = store->first; c; c = c->next) {
        for (sl_checkpoint *ancestor = c->parent; ancestor; ancestor = ancestor->parent) {
            sl_checkpoint_line *line = &ancestor->line;
            line->next = c->length < line->next ? c->length : line->next;
            line->tip = c->length > line->tip ? c->length : line->tip;
            line->last_used = c->last_used > line->last_used ? c->last_used : line->last_used;
        }
    }
}

/* Tokens that would have to be computed again without the checkpoint, per token of distance from
 * the tip of its line: keeping this ratio even makes gaps grow geometrically backwards. */
static double usefulness(const sl_checkpoint_store *store, const sl_checkpoint *checkpoint)
{
    const sl_checkpoint_line *line = &checkpoint->line;
    uint32_t before = checkpoint->parent ? checkpoint->parent->length : 0;
    uint32_t after = line->next == UINT32_MAX ? checkpoint->length : line->next;
    double gap = (double)(after - before), distance = (double)(line->tip - checkpoint->length);
    double age = (double)(store->clock - line->last_used);
    return anchor_weight[checkpoint->anchor] * gap / (distance + store->spacing) / (1 + age);
}

static void evict(sl_checkpoint_store *store, sl_checkpoint *victim)
{
    sl_checkpoint **link = &store->first;
    while (*link != victim)
        link = &(*link)->next;
    *link = victim->next;
    for (sl_checkpoint *c = store->first; c; c = c->next) {
        if (c->parent == victim)
            c->parent = victim->parent;
    }
    store->n_checkpoints--;
    free_checkpoint(store, victim);
}

/* Evicts until the budget is met. The newest one, just made or restored from, goes last. */
static void meet_budget(sl_checkpoint_store *store)
{
    while (store->bytes > store->budget && store->first) {
        trace_lines(store);
        sl_checkpoint *victim = NULL;
        double least = 0;
        for (sl_checkpoint *c = store->first; c; c = c->next) {
            if (c->last_used == store->clock && store->n_checkpoints > 1)
                continue;
            double u = usefulness(store, c);
            if (!victim || u < least) {
                victim = c;
                least = u;
            }
        }
        evict(store, victim);
    }
}

/* ---- adding ---- */

/* Row i of a layer in a state's ring of conv rows, counted back from its last token, and in the
 * tail of a checkpoint. */
static float *conv_row(const sl_state *state, uint32_t layer, uint32_t i)
{
    const sl_state_shape *shape = &state->engine->shape;
    uint32_t row = (state->length - 1 - i) % shape->n_conv_rows;
    return (float *)state->conv->data +
           ((size_t)layer * shape->n_conv_rows + row) * shape->n_channels;
}

static float *tail_row(const sl_state *state, const sl_block *tail, uint32_t layer, uint32_t i)
{
    return (float *)tail->data +
           ((size_t)layer * SL_CONV_HISTORY + i) * state->engine->shape.n_channels;
}

/* Copies the rows of the state's last three positions into the tail of a checkpoint, or back. */
static void copy_conv_tail(const sl_state *state, const sl_block *tail, bool back)
{
    const sl_state_shape *shape = &state->engine->shape;
    sl_backend *backend = state->engine->backend;
    uint32_t n = state->length < SL_CONV_HISTORY ? state->length : SL_CONV_HISTORY;
    for (uint32_t layer = 0; layer < shape->n_gdn; layer++) {
        for (uint32_t i = 0; i < n; i++) {
            float *live = conv_row(state, layer, i), *kept = tail_row(state, tail, layer, i);
            backend->copy(backend, back ? live : kept, back ? kept : live,
                          shape->n_channels * sizeof(float));
        }
    }
}

static sl_status new_checkpoint(sl_checkpoint_store *store, const sl_state *state,
                                sl_checkpoint **out, sl_error *err)
{
    sl_checkpoint *c = sl_alloc_zero(SL_MEM_STATE, sizeof *c);
    sl_block *tail = NULL;
    size_t n_pages = sl_kv_pages_of(state->length);
    if (c) {
        c->tokens = sl_alloc(SL_MEM_STATE, state->length * sizeof *c->tokens);
        c->kv = sl_alloc_array(SL_MEM_STATE, n_pages, sizeof *c->kv);
    }
    if (!c || !c->tokens || !c->kv ||
        sl_block_acquire(&state->engine->conv_tails, &tail, NULL) != SL_OK) {
        if (c) {
            sl_free(c->tokens);
            sl_free(c->kv);
        }
        sl_free(c);
        return sl_fail(err, SL_ERR_MEMORY, "out of memory for a checkpoint at position %u",
                       state->length);
    }
    c->length = state->length;
    c->mtp_length = state->mtp_length;
    memcpy(c->tokens, state->tokens, state->length * sizeof *c->tokens);
    copy_conv_tail(state, tail, false);
    c->conv = hold(store, tail);
    sl_block_release(tail);
    if (state->length >= SL_GDN_CHUNK)
        c->chunk.border = hold(store, state->current.border);
    for (size_t i = 0; i < sl_tape_pages_of(state->length); i++)
        c->chunk.tape[i] = hold(store, state->current.tape[i]);
    c->n_kv_pages = n_pages;
    for (size_t i = 0; i < n_pages; i++)
        c->kv[i] = hold(store, state->kv[i]);
    store->bytes += own_bytes(c);
    *out = c;
    return SL_OK;
}

sl_status sl_store_add(sl_checkpoint_store *store, const sl_state *state, sl_anchor anchor,
                       sl_error *err)
{
    if (store->budget == 0 || state->length == 0)
        return SL_OK;
    sl_checkpoint *parent = sl_store_find(store, state->tokens, state->length, state->length);
    if (parent && parent->length == state->length) {
        parent->last_used = ++store->clock;
        if (anchor_weight[anchor] > anchor_weight[parent->anchor])
            parent->anchor = anchor;
        meet_budget(store);
        return SL_OK;
    }
    sl_checkpoint *c = NULL;
    SL_TRY(new_checkpoint(store, state, &c, err));
    c->anchor = anchor;
    c->parent = parent;
    c->last_used = ++store->clock;
    /* Longer checkpoints of the same line that hung on the parent now hang on this one. */
    for (sl_checkpoint *other = store->first; other; other = other->next) {
        if (other->parent == parent && other->length > c->length &&
            begins(c, other->tokens, other->length))
            other->parent = c;
    }
    c->next = store->first;
    store->first = c;
    store->n_checkpoints++;
    meet_budget(store);
    return SL_OK;
}

/* ---- restoring ---- */

/* Puts a reference to `from` in place of *to; NULL leaves *to, whose content then does not count.
 */
static void replace(sl_block **to, sl_block *from)
{
    if (!from || *to == from)
        return;
    sl_block_release(*to);
    *to = sl_block_ref(from);
}

sl_status sl_store_restore(sl_checkpoint_store *store, sl_checkpoint *checkpoint, sl_state *state,
                           sl_error *err)
{
    SL_TRY(sl_block_make_own(&state->engine->convs, &state->conv, false, err));
    replace(&state->current.border, checkpoint->chunk.border);
    for (int i = 0; i < SL_TAPE_CHUNK_PAGES; i++)
        replace(&state->current.tape[i], checkpoint->chunk.tape[i]);
    for (size_t i = 0; i < checkpoint->n_kv_pages; i++)
        replace(&state->kv[i], checkpoint->kv[i]);
    memcpy(state->tokens, checkpoint->tokens, checkpoint->length * sizeof *state->tokens);
    state->length = checkpoint->length;
    state->mtp_length = checkpoint->mtp_length;
    copy_conv_tail(state, checkpoint->conv, true);
    state->conv_low =
        checkpoint->length > SL_CONV_HISTORY ? checkpoint->length - SL_CONV_HISTORY : 0;
    state->has_previous = false;
    state->failed = false;
    checkpoint->last_used = ++store->clock;
    return SL_OK;
}
