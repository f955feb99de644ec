#include "engine/checkpoint.h"

#include <string.h>

/* How many tokens of recomputation one token saved by an anchor is worth: positions that a caller
 * named are asked for again far more often than those that merely came by. */
static const double anchor_weight[SL_ANCHOR_COUNT] = {
    [SL_ANCHOR_REGULAR] = 1, [SL_ANCHOR_SYSTEM] = 16, [SL_ANCHOR_TURN] = 2,
    [SL_ANCHOR_REPLY] = 4,   [SL_ANCHOR_TOOL] = 2,    [SL_ANCHOR_FORK] = 8,
};

void sl_store_init(sl_checkpoint_store *store, size_t budget, uint32_t spacing)
{
    *store = (sl_checkpoint_store){.budget = budget, .spacing = spacing};
}

/* ---- records: what a checkpoint is without its blocks ---- */

/* Gives a record room for that many KV pages; false when there is no memory. */
static bool fit_record(sl_checkpoint *record, size_t n_kv_pages)
{
    if (record->kv_capacity >= n_kv_pages)
        return true;
    sl_block **kv = sl_alloc_array(SL_MEM_STATE, n_kv_pages, sizeof *kv);
    if (!kv)
        return false;
    sl_free(record->kv);
    record->kv = kv;
    record->kv_capacity = n_kv_pages;
    return true;
}

static void put_record_back(sl_checkpoint_store *store, sl_checkpoint *record)
{
    *record = (sl_checkpoint){
        .kv = record->kv, .kv_capacity = record->kv_capacity, .next = store->unused};
    store->unused = record;
}

static bool add_record(sl_checkpoint_store *store)
{
    sl_checkpoint *record = sl_alloc_zero(SL_MEM_STATE, sizeof *record);
    if (!record)
        return false;
    store->n_records++;
    put_record_back(store, record);
    return true;
}

/* NULL when there is no memory. */
static sl_checkpoint *take_record(sl_checkpoint_store *store, size_t n_kv_pages)
{
    if (!store->unused && !add_record(store))
        return NULL;
    sl_checkpoint *record = store->unused;
    if (!fit_record(record, n_kv_pages))
        return NULL;
    store->unused = record->next;
    record->next = NULL;
    return record;
}

static void free_records(sl_checkpoint_store *store)
{
    while (store->unused) {
        sl_checkpoint *record = store->unused;
        store->unused = record->next;
        sl_free(record->kv);
        sl_free(record);
    }
}

/* ---- bytes: a block counts when the first checkpoint holds it ---- */

static void hold(sl_checkpoint_store *store, sl_block *block)
{
    if (!block)
        return;
    if (block->held++ == 0)
        store->bytes += sl_block_bytes(block->pool);
    sl_block_ref(block);
}

static void let_go(sl_checkpoint_store *store, sl_block *block)
{
    if (!block)
        return;
    if (--block->held == 0)
        store->bytes -= sl_block_bytes(block->pool);
    sl_block_release(block);
}

static void for_each_block(sl_checkpoint_store *store, const sl_checkpoint *checkpoint,
                           void (*act)(sl_checkpoint_store *, sl_block *))
{
    act(store, checkpoint->chunk.border);
    for (int i = 0; i < SL_TAPE_CHUNK_PAGES; i++)
        act(store, checkpoint->chunk.tape[i]);
    for (size_t i = 0; i < checkpoint->n_kv_pages; i++)
        act(store, checkpoint->kv[i]);
}

static size_t own_bytes(const sl_checkpoint *checkpoint)
{
    return sizeof *checkpoint + checkpoint->kv_capacity * sizeof *checkpoint->kv;
}

static size_t block_bytes(const sl_block *block, bool alone)
{
    return block && (alone || block->held == 0) ? sl_block_bytes(block->pool) : 0;
}

/* What a checkpoint whose blocks are not held yet adds, or would take if it were alone. */
static size_t bytes_to_hold(const sl_checkpoint *checkpoint, size_t tail_bytes, bool alone)
{
    size_t bytes = own_bytes(checkpoint) + tail_bytes;
    bytes += block_bytes(checkpoint->chunk.border, alone);
    for (int i = 0; i < SL_TAPE_CHUNK_PAGES; i++)
        bytes += block_bytes(checkpoint->chunk.tape[i], alone);
    for (size_t i = 0; i < checkpoint->n_kv_pages; i++)
        bytes += block_bytes(checkpoint->kv[i], alone);
    return bytes;
}

static void drop_blocks(sl_checkpoint_store *store, sl_checkpoint *checkpoint)
{
    for_each_block(store, checkpoint, let_go);
    let_go(store, checkpoint->conv);
    store->bytes -= own_bytes(checkpoint);
    put_record_back(store, checkpoint);
}

void sl_store_free(sl_checkpoint_store *store)
{
    while (store->first) {
        sl_checkpoint *checkpoint = store->first;
        store->first = checkpoint->next;
        drop_blocks(store, checkpoint);
    }
    free_records(store);
    store->n_checkpoints = store->n_records = 0;
}

void sl_store_reserve(sl_engine *engine, size_t n_kv_pages)
{
    sl_checkpoint_store *store = &engine->store;
    const sl_state_demand *demand = &engine->demand;
    if (store->budget == 0 || demand->n_checkpoints == 0)
        return;
    /* Along one sequence a checkpoint adds at least this much. */
    const size_t each = sizeof(sl_checkpoint) + n_kv_pages * sizeof(sl_block *) +
                        sl_block_bytes(&engine->borders) + sl_block_bytes(&engine->conv_tails) +
                        store->spacing / SL_KV_PAGE * sl_block_bytes(&engine->kvs);
    const size_t n = sl_min_size(demand->n_checkpoints, store->budget / each);
    /* Where it ends inside a chunk or a page, the state goes on in copies of those. */
    const size_t n_tapes = store->spacing % SL_GDN_CHUNK ? n * SL_TAPE_CHUNK_PAGES : 0;
    const size_t n_pages = store->spacing % SL_KV_PAGE ? n : 0;
    sl_block_pool_grow(&engine->borders, SL_STATE_CHUNKS * demand->n_states + n);
    sl_block_pool_grow(&engine->tapes,
                       SL_STATE_CHUNKS * SL_TAPE_CHUNK_PAGES * demand->n_states + n_tapes);
    sl_block_pool_grow(&engine->conv_tails, n);
    sl_block_pool_grow(&engine->kvs, demand->n_kv_pages + n_pages);
    /* One more: a new checkpoint is described before others go for it. */
    while (store->n_records < n + 1 && add_record(store)) {
    }
    for (sl_checkpoint *record = store->unused; record; record = record->next) {
        if (!fit_record(record, n_kv_pages))
            break;
    }
}

/* ---- lookup ---- */

/* Ids of a checkpoint that lie in a page. */
static size_t ids_in_page(const sl_checkpoint *checkpoint, size_t page)
{
    return sl_min_size(SL_KV_PAGE, checkpoint->length - page * SL_KV_PAGE);
}

static bool begins(const sl_checkpoint *checkpoint, const int32_t *tokens, size_t n)
{
    if (checkpoint->length > n)
        return false;
    for (size_t page = 0; page < checkpoint->n_kv_pages; page++) {
        if (memcmp(checkpoint->kv[page]->ids, tokens + page * SL_KV_PAGE,
                   ids_in_page(checkpoint, page) * sizeof *tokens) != 0)
            return false;
    }
    return true;
}

static bool is_prefix(const sl_checkpoint *checkpoint, const sl_checkpoint *of)
{
    if (checkpoint->length > of->length)
        return false;
    for (size_t page = 0; page < checkpoint->n_kv_pages; page++) {
        const sl_block *a = checkpoint->kv[page], *b = of->kv[page];
        if (a != b && memcmp(a->ids, b->ids, ids_in_page(checkpoint, page) * sizeof *a->ids) != 0)
            return false;
    }
    return true;
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

static void link_in(sl_checkpoint_store *store, sl_checkpoint *added)
{
    /* Longer checkpoints of the same line that hung on the parent now hang on this one. */
    for (sl_checkpoint *c = store->first; c; c = c->next) {
        if (c->parent == added->parent && c->length > added->length && is_prefix(added, c))
            c->parent = added;
    }
    added->next = store->first;
    store->first = added;
    store->n_checkpoints++;
}

static void unlink_from(sl_checkpoint_store *store, const sl_checkpoint *leaving)
{
    sl_checkpoint **link = &store->first;
    while (*link != leaving)
        link = &(*link)->next;
    *link = leaving->next;
    for (sl_checkpoint *c = store->first; c; c = c->next) {
        if (c->parent == leaving)
            c->parent = leaving->parent;
    }
    store->n_checkpoints--;
}

static sl_checkpoint *least_useful(sl_checkpoint_store *store, const sl_checkpoint *kept)
{
    sl_checkpoint *victim = NULL;
    double least = 0;
    trace_lines(store);
    for (sl_checkpoint *c = store->first; c; c = c->next) {
        double u = usefulness(store, c);
        if (c != kept && (!victim || u < least)) {
            victim = c;
            least = u;
        }
    }
    return victim;
}

/* Evicts others until the checkpoint, which is in the list but may hold nothing yet, fits. */
static void make_room(sl_checkpoint_store *store, const sl_checkpoint *kept, size_t tail_bytes)
{
    for (;;) {
        size_t missing = kept->conv ? 0 : bytes_to_hold(kept, tail_bytes, false);
        if (store->bytes <= store->budget && missing <= store->budget - store->bytes)
            return;
        sl_checkpoint *victim = least_useful(store, kept);
        if (!victim)
            return;
        unlink_from(store, victim);
        drop_blocks(store, victim);
    }
}

/* ---- adding ---- */

static float *tail_row(const sl_state *state, const sl_block *tail, uint32_t layer, uint32_t i)
{
    return (float *)tail->data +
           ((size_t)layer * SL_CONV_HISTORY + i) * state->engine->shape.n_channels;
}

/* Copies the last raw rows of the state into the tail of a checkpoint, or back. */
static void copy_conv_tail(const sl_state *state, const sl_block *tail, bool back)
{
    const sl_state_shape *shape = &state->engine->shape;
    sl_backend *backend = state->engine->backend;
    for (uint32_t layer = 0; layer < shape->n_gdn; layer++) {
        for (uint32_t i = 0; i < sl_conv_reach(state->length); i++) {
            float *live = sl_conv_row(state, layer, state->length - 1 - i);
            float *kept = tail_row(state, tail, layer, i);
            backend->copy(backend, back ? live : kept, back ? kept : live,
                          shape->n_channels * sizeof(float));
        }
    }
}

/* The state's present position, as a record that refers to blocks but does not hold them yet. */
static void describe(const sl_state *state, sl_anchor anchor, sl_checkpoint *c)
{
    c->length = state->length;
    c->mtp_length = sl_state_mtp_certain(state);
    c->anchor = anchor;
    if (state->length >= SL_GDN_CHUNK)
        c->chunk.border = state->current.border;
    for (size_t i = 0; i < sl_tape_pages_of(state->length); i++)
        c->chunk.tape[i] = state->current.tape[i];
    c->n_kv_pages = sl_kv_pages_of(state->length);
    memcpy(c->kv, state->kv, c->n_kv_pages * sizeof(sl_block *));
}

static sl_status no_memory(const sl_state *state, sl_error *err)
{
    return sl_fail(err, SL_ERR_MEMORY, "out of memory for a checkpoint at position %u",
                   state->length);
}

sl_status sl_store_add(sl_checkpoint_store *store, const sl_state *state, sl_anchor anchor,
                       sl_error *err)
{
    if (store->budget == 0 || state->length == 0)
        return SL_OK;
    sl_block_pool *tails = &state->engine->conv_tails;
    const size_t tail_bytes = sl_block_bytes(tails);
    sl_checkpoint *parent = sl_store_find(store, state->tokens, state->length, state->length);
    if (parent && parent->length == state->length) {
        parent->last_used = ++store->clock;
        if (anchor_weight[anchor] > anchor_weight[parent->anchor])
            parent->anchor = anchor;
        make_room(store, parent, tail_bytes);
        return SL_OK;
    }
    sl_checkpoint *c = take_record(store, state->n_kv_pages);
    if (!c)
        return no_memory(state, err);
    describe(state, anchor, c);
    if (bytes_to_hold(c, tail_bytes, true) > store->budget) {
        put_record_back(store, c);
        return SL_OK;
    }
    c->parent = parent;
    c->last_used = ++store->clock;
    link_in(store, c);
    make_room(store, c, tail_bytes);
    sl_block *tail;
    if (sl_block_acquire(tails, &tail, NULL) != SL_OK) {
        unlink_from(store, c);
        put_record_back(store, c);
        return no_memory(state, err);
    }
    copy_conv_tail(state, tail, false);
    c->conv = tail;
    hold(store, tail);
    sl_block_release(tail);
    for_each_block(store, c, hold);
    store->bytes += own_bytes(c);
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
    for (size_t i = 0; i < checkpoint->n_kv_pages; i++)
        memcpy(state->tokens + i * SL_KV_PAGE, checkpoint->kv[i]->ids,
               ids_in_page(checkpoint, i) * sizeof *state->tokens);
    state->length = checkpoint->length;
    state->kept_in = 0;
    state->mtp_length = checkpoint->mtp_length;
    copy_conv_tail(state, checkpoint->conv, true);
    state->conv_low = checkpoint->length - sl_conv_reach(checkpoint->length);
    state->has_previous = false;
    state->failed = false;
    checkpoint->last_used = ++store->clock;
    return SL_OK;
}
