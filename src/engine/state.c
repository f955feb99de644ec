/* States as sets of blocks: creating, forking, rewinding inside the window, and which blocks the
 * rows of a run read and write. See the invariants at struct sl_state. */
#include <string.h>

#include "engine/checkpoint.h"

enum { CHUNK = SL_GDN_CHUNK };

size_t sl_kv_pages_of(size_t n_tokens)
{
    return (n_tokens + SL_KV_PAGE - 1) / SL_KV_PAGE;
}

/* ---- chunks ---- */

static void release_chunk(sl_chunk *chunk)
{
    sl_block_release(chunk->border);
    for (int i = 0; i < SL_TAPE_CHUNK_PAGES; i++)
        sl_block_release(chunk->tape[i]);
    *chunk = (sl_chunk){0};
}

static void ref_chunk(sl_chunk *to, const sl_chunk *from, bool border, size_t n_pages)
{
    if (border)
        to->border = sl_block_ref(from->border);
    for (size_t i = 0; i < n_pages; i++)
        to->tape[i] = sl_block_ref(from->tape[i]);
}

/* Makes the chunk ready to be written from its first row on. */
static sl_status clear_chunk(sl_engine *engine, sl_chunk *chunk, sl_error *err)
{
    SL_TRY(sl_block_make_own(&engine->borders, &chunk->border, false, err));
    for (int i = 0; i < SL_TAPE_CHUNK_PAGES; i++)
        SL_TRY(sl_block_make_own(&engine->tapes, &chunk->tape[i], false, err));
    return SL_OK;
}

/* States by the token-serial rule (sl_engine_params.gdn_serial) know no chunks: the border block of
 * `current` holds the recurrent state at `length`, rewritten in place by every run; there is no
 * previous chunk, and tapes are scratch. */
static bool is_serial(const sl_state *state)
{
    return state->engine->shape.gdn_serial;
}

/* ---- creating and freeing ---- */

static sl_status new_state(sl_engine *engine, uint32_t context, sl_state **out, sl_error *err)
{
    sl_state *state = sl_alloc_zero(SL_MEM_STATE, sizeof *state);
    if (!state)
        return sl_fail(err, SL_ERR_MEMORY, "out of memory for a state");
    state->engine = engine;
    state->context = context;
    state->n_kv_pages = sl_kv_pages_of(context);
    state->tokens = sl_alloc(SL_MEM_STATE, (size_t)context * sizeof *state->tokens);
    state->kv = sl_alloc_array(SL_MEM_STATE, state->n_kv_pages, sizeof *state->kv);
    state->kv_pages = sl_alloc_array(SL_MEM_STATE, state->n_kv_pages, sizeof *state->kv_pages);
    if (!state->tokens || !state->kv || !state->kv_pages) {
        sl_state_free(state);
        return sl_fail(err, SL_ERR_MEMORY, "out of memory for a state of %u tokens", context);
    }
    *out = state;
    return SL_OK;
}

static sl_status acquire_all(sl_state *state, sl_error *err)
{
    sl_engine *engine = state->engine;
    SL_TRY(clear_chunk(engine, &state->current, err));
    SL_TRY(clear_chunk(engine, &state->previous, err));
    SL_TRY(clear_chunk(engine, &state->spare, err));
    SL_TRY(sl_block_acquire(&engine->convs, &state->conv, err));
    for (size_t i = 0; i < state->n_kv_pages; i++)
        SL_TRY(sl_block_acquire(&engine->kvs, &state->kv[i], err));
    return SL_OK;
}

static size_t regular_checkpoints(const sl_state *state)
{
    return state->context / state->engine->store.spacing;
}

static void count_demand(sl_state *state)
{
    sl_engine *engine = state->engine;
    state->counted = true;
    engine->demand.n_states++;
    engine->demand.n_kv_pages += state->n_kv_pages;
    engine->demand.n_checkpoints += regular_checkpoints(state);
    sl_store_reserve(engine, state->n_kv_pages);
}

sl_status sl_state_create(sl_engine *engine, uint32_t context, sl_state **out, sl_error *err)
{
    SL_TRY(sl_engine_need_weights(engine, err));
    if (context == 0 || context > engine->config.context_length)
        return sl_fail(err, SL_ERR_ARGUMENT, "a context of %u tokens, the model has up to %u",
                       context, engine->config.context_length);
    sl_state *state;
    SL_TRY(new_state(engine, context, &state, err));
    sl_status status = acquire_all(state, err);
    if (status != SL_OK) {
        sl_state_free(state);
        return status;
    }
    count_demand(state);
    *out = state;
    return SL_OK;
}

void sl_state_free(sl_state *state)
{
    if (!state)
        return;
    if (state->counted) {
        sl_state_demand *demand = &state->engine->demand;
        demand->n_states--;
        demand->n_kv_pages -= state->n_kv_pages;
        demand->n_checkpoints -= regular_checkpoints(state);
    }
    release_chunk(&state->current);
    release_chunk(&state->previous);
    release_chunk(&state->spare);
    sl_block_release(state->conv);
    for (size_t i = 0; state->kv && i < state->n_kv_pages; i++)
        sl_block_release(state->kv[i]);
    sl_free(state->kv);
    sl_free(state->kv_pages);
    sl_free(state->tokens);
    sl_free(state);
}

void sl_state_reset(sl_state *state)
{
    state->length = 0;
    state->kept_in = 0;
    state->conv_low = 0;
    state->mtp_length = 0;
    state->has_previous = false;
    state->failed = false;
}

uint32_t sl_state_context(const sl_state *state)
{
    return state->context;
}
uint32_t sl_state_length(const sl_state *state)
{
    return state->length;
}
const int32_t *sl_state_tokens(const sl_state *state)
{
    return state->tokens;
}

sl_status sl_state_check_sound(const sl_state *state, sl_error *err)
{
    if (state->failed)
        return sl_fail(err, SL_ERR_ARGUMENT, "an evaluation of this state failed; reset it");
    return SL_OK;
}

sl_status sl_state_check_idle(const sl_state *state, sl_error *err)
{
    if (state->in_call)
        return sl_fail(err, SL_ERR_ARGUMENT, "an evaluation of this state is going on");
    return SL_OK;
}

sl_status sl_state_fork(const sl_state *state, sl_state **out, sl_error *err)
{
    SL_TRY(sl_state_check_sound(state, err));
    sl_state *fork;
    SL_TRY(new_state(state->engine, state->context, &fork, err));
    fork->length = state->length;
    fork->conv_low = state->conv_low;
    fork->mtp_length = sl_state_mtp_certain(state);
    memcpy(fork->tokens, state->tokens, state->length * sizeof *fork->tokens);
    if (is_serial(state))
        ref_chunk(&fork->current, &state->current, state->length > 0, 0);
    else
        ref_chunk(&fork->current, &state->current, state->length >= CHUNK,
                  sl_tape_pages_of(state->length));
    fork->has_previous = state->has_previous;
    if (state->has_previous)
        ref_chunk(&fork->previous, &state->previous, state->length >= 2 * CHUNK,
                  SL_TAPE_CHUNK_PAGES);
    fork->conv = sl_block_ref(state->conv);
    for (size_t i = 0; i < sl_kv_pages_of(state->length); i++)
        fork->kv[i] = sl_block_ref(state->kv[i]);
    *out = fork;
    return SL_OK;
}

uint32_t sl_state_mtp_certain(const sl_state *state)
{
    return state->mtp_length < state->length || state->length == 0 ? state->mtp_length
                                                                   : state->length - 1;
}

bool sl_state_rewind_free(sl_state *state, uint32_t length)
{
    if (length == state->length)
        return true;
    if (length == 0) {
        sl_state_reset(state);
        return true;
    }
    if (is_serial(state))
        return false;
    uint32_t first_row = length > SL_CONV_HISTORY ? length - SL_CONV_HISTORY : 0;
    uint32_t chunks_back = state->length / CHUNK - length / CHUNK;
    if (length > state->length || first_row < state->conv_low ||
        chunks_back > (state->has_previous ? 1u : 0u))
        return false;
    if (chunks_back == 1) {
        sl_chunk dropped = state->current;
        state->current = state->previous;
        state->previous = dropped;
        state->has_previous = false;
    }
    state->length = length;
    state->kept_in = 0;
    state->mtp_length = state->mtp_length < length ? state->mtp_length : length;
    return true;
}

/* ---- around a run ---- */

/* Borders that n_rows more rows reach. */
static uint32_t borders_reached(const sl_state *state, uint32_t n_rows)
{
    return is_serial(state) ? 0 : (state->length % CHUNK + n_rows) / CHUNK;
}

sl_status sl_state_own_kv(sl_state *state, size_t first, size_t n, sl_error *err)
{
    size_t end = sl_kv_pages_of(first + n);
    for (size_t page = first / SL_KV_PAGE; page < end; page++)
        SL_TRY(sl_block_make_own(&state->engine->kvs, &state->kv[page],
                                 page * SL_KV_PAGE < state->length, err));
    for (size_t page = 0; page < end; page++)
        state->kv_pages[page] = state->kv[page]->data;
    return SL_OK;
}

static sl_status own_serial_blocks(sl_state *state, sl_error *err)
{
    sl_chunk *chunk = &state->current;
    SL_TRY(sl_block_make_own(&state->engine->borders, &chunk->border, state->length > 0, err));
    return clear_chunk(state->engine, chunk, err); /* the border is its own already */
}

/* Blocks with rows that stay are copied when they are shared, the others just replaced. */
static sl_status own_chunk_blocks(sl_state *state, uint32_t n_rows, sl_error *err)
{
    sl_engine *engine = state->engine;
    uint32_t reached = borders_reached(state, n_rows);
    uint32_t filled = state->length % CHUNK;
    uint32_t end = reached > 0 ? CHUNK : filled + n_rows; /* rows of the current chunk afterwards */
    for (uint32_t page = filled / SL_TAPE_PAGE; page * SL_TAPE_PAGE < end; page++)
        SL_TRY(sl_block_make_own(&engine->tapes, &state->current.tape[page],
                                 page * SL_TAPE_PAGE < filled, err));
    if (reached >= 1)
        SL_TRY(clear_chunk(engine, &state->spare, err));
    if (reached >= 2)
        SL_TRY(clear_chunk(engine, &state->previous, err));
    return SL_OK;
}

static sl_status own_written_blocks(sl_state *state, uint32_t n_rows, sl_error *err)
{
    SL_TRY(is_serial(state) ? own_serial_blocks(state, err) : own_chunk_blocks(state, n_rows, err));
    SL_TRY(sl_block_make_own(&state->engine->convs, &state->conv, state->length > 0, err));
    return sl_state_own_kv(state, state->length, n_rows, err);
}

static void use_chunk(sl_segment *segment, int border_place, int tape_place, const sl_chunk *chunk)
{
    if (border_place >= 0)
        segment->border_out[border_place] = chunk->border->data;
    for (int i = 0; i < SL_TAPE_CHUNK_PAGES; i++)
        segment->tape[tape_place][i] = chunk->tape[i] ? chunk->tape[i]->data : NULL;
}

sl_status sl_state_begin(sl_state *state, uint32_t first_row, uint32_t n_rows, sl_segment *segment,
                         sl_error *err)
{
    if (borders_reached(state, n_rows) >= 2)
        state->has_previous = false; /* it will be written over */
    SL_TRY(own_written_blocks(state, n_rows, err));
    *segment = (sl_segment){
        .pos = state->length,
        .first_row = first_row,
        .n_rows = n_rows,
        .border = state->length >= CHUNK ? state->current.border->data : NULL,
        .conv = state->conv->data,
        .kv_pages = state->kv_pages,
    };
    if (is_serial(state)) {
        for (int place = 0; place < SL_STATE_CHUNKS; place++)
            use_chunk(segment, 0, place, &state->current);
        return SL_OK;
    }
    /* Odd chunks of this run go to spare, even ones to previous. */
    use_chunk(segment, -1, 0, &state->current);
    if (borders_reached(state, n_rows) >= 1)
        use_chunk(segment, 1, 2, &state->spare);
    if (borders_reached(state, n_rows) >= 2)
        use_chunk(segment, 0, 1, &state->previous);
    return SL_OK;
}

void sl_state_commit(sl_state *state, const int32_t *tokens, uint32_t n_rows)
{
    uint32_t reached = borders_reached(state, n_rows);
    sl_chunk current = state->current, previous = state->previous, spare = state->spare;
    if (reached == 1) {
        state->previous = current;
        state->current = spare;
        state->spare = previous;
    } else if (reached >= 2) {
        bool odd = reached & 1;
        state->current = odd ? spare : previous;
        state->previous = odd ? previous : spare;
        state->spare = current;
    }
    if (reached >= 1)
        state->has_previous = true;
    if (state->mtp_length > 0 && state->mtp_length == state->length &&
        state->tokens[state->length] != tokens[0])
        state->mtp_length = sl_state_mtp_certain(state); /* another token came */
    memcpy(state->tokens + state->length, tokens, n_rows * sizeof *tokens);
    state->length += n_rows;
    for (uint32_t pos = state->length - n_rows; pos < state->length; pos++)
        state->kv[pos / SL_KV_PAGE]->ids[pos % SL_KV_PAGE] = state->tokens[pos];
    uint32_t kept = state->engine->shape.n_conv_rows;
    if (state->length > kept && state->length - kept > state->conv_low)
        state->conv_low = state->length - kept;
}

/* ---- memory ---- */

static void count_block(const sl_block *block, sl_state_bytes *bytes)
{
    if (!block)
        return;
    size_t *sum = block->refs == 1 ? &bytes->own : &bytes->shared;
    *sum += block->pool->n_bytes;
}

sl_state_bytes sl_state_memory(const sl_state *state)
{
    sl_state_bytes bytes = {0};
    const sl_chunk *const chunks[] = {&state->current, &state->previous, &state->spare};
    for (size_t i = 0; i < SL_COUNTOF(chunks); i++) {
        count_block(chunks[i]->border, &bytes);
        for (int k = 0; k < SL_TAPE_CHUNK_PAGES; k++)
            count_block(chunks[i]->tape[k], &bytes);
    }
    count_block(state->conv, &bytes);
    for (size_t i = 0; i < state->n_kv_pages; i++)
        count_block(state->kv[i], &bytes);
    bytes.own += state->context * sizeof *state->tokens +
                 state->n_kv_pages * (sizeof *state->kv + sizeof *state->kv_pages);
    return bytes;
}
