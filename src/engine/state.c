#include "engine/state.h"

#include <string.h>

#include "engine/engine_internal.h"

enum { CHUNK = SL_GDN_CHUNK, KV_POSITIONS = 64 };

static sl_status acquire(sl_block_pool *pool, sl_block **out, sl_error *err)
{
    *out = sl_block_acquire(pool);
    if (!*out)
        return sl_fail(err, SL_ERR_MEMORY, "out of memory for a state: a block of %zu bytes",
                       pool->n_bytes);
    return SL_OK;
}

static sl_status acquire_chunk(sl_engine *engine, sl_chunk *chunk, sl_error *err)
{
    SL_TRY(acquire(&engine->borders, &chunk->border, err));
    for (int i = 0; i < SL_TAPE_CHUNK_PAGES; i++)
        SL_TRY(acquire(&engine->tapes, &chunk->tape[i], err));
    return SL_OK;
}

static void release_chunk(sl_chunk *chunk)
{
    sl_block_release(chunk->border);
    for (int i = 0; i < SL_TAPE_CHUNK_PAGES; i++)
        sl_block_release(chunk->tape[i]);
}

static sl_status acquire_all(sl_state *state, sl_error *err)
{
    sl_engine *engine = state->engine;
    SL_TRY(acquire_chunk(engine, &state->current, err));
    SL_TRY(acquire_chunk(engine, &state->previous, err));
    SL_TRY(acquire_chunk(engine, &state->spare, err));
    SL_TRY(acquire(&engine->convs, &state->conv, err));
    for (size_t i = 0; i < state->n_kv_pages; i++) {
        SL_TRY(acquire(&engine->kvs, &state->kv[i], err));
        state->kv_pages[i] = state->kv[i]->data;
    }
    return SL_OK;
}

sl_status sl_state_create(sl_engine *engine, uint32_t context, sl_state **out, sl_error *err)
{
    if (context == 0 || context > engine->config.context_length)
        return sl_fail(err, SL_ERR_ARGUMENT, "a context of %u tokens, the model has up to %u",
                       context, engine->config.context_length);
    sl_state *state = sl_alloc_zero(SL_MEM_STATE, sizeof *state);
    if (!state)
        return sl_fail(err, SL_ERR_MEMORY, "out of memory for a state");
    state->engine = engine;
    state->context = context;
    state->n_kv_pages = ((size_t)context + KV_POSITIONS - 1) / KV_POSITIONS;
    state->tokens = sl_alloc_array(SL_MEM_STATE, context, sizeof *state->tokens);
    state->kv = sl_alloc_array(SL_MEM_STATE, state->n_kv_pages, sizeof *state->kv);
    state->kv_pages = sl_alloc_array(SL_MEM_STATE, state->n_kv_pages, sizeof *state->kv_pages);
    sl_status status =
        state->tokens && state->kv && state->kv_pages
            ? acquire_all(state, err)
            : sl_fail(err, SL_ERR_MEMORY, "out of memory for a state of %u tokens", context);
    if (status != SL_OK) {
        sl_state_free(state);
        return status;
    }
    *out = state;
    return SL_OK;
}

void sl_state_free(sl_state *state)
{
    if (!state)
        return;
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

/* ---- around a run ---- */

/* Borders that n_rows more rows reach. */
static uint32_t borders_reached(const sl_state *state, uint32_t n_rows)
{
    return (state->length % CHUNK + n_rows) / CHUNK;
}

static void use_chunk(sl_segment *segment, int border_place, int tape_place, const sl_chunk *chunk)
{
    if (border_place >= 0)
        segment->border_out[border_place] = chunk->border->data;
    for (int i = 0; i < SL_TAPE_CHUNK_PAGES; i++)
        segment->tape[tape_place][i] = chunk->tape[i]->data;
}

void sl_state_begin(sl_state *state, uint32_t first_row, uint32_t n_rows, sl_segment *segment)
{
    *segment = (sl_segment){
        .pos = state->length,
        .first_row = first_row,
        .n_rows = n_rows,
        .border = state->length >= CHUNK ? state->current.border->data : NULL,
        .conv = state->conv->data,
        .kv_pages = state->kv_pages,
    };
    /* Odd chunks of this run go to spare, even ones to previous, whose content is then out of
     * reach of any rewind. */
    use_chunk(segment, -1, 0, &state->current);
    if (borders_reached(state, n_rows) >= 1)
        use_chunk(segment, 1, 2, &state->spare);
    if (borders_reached(state, n_rows) >= 2)
        use_chunk(segment, 0, 1, &state->previous);
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
    memcpy(state->tokens + state->length, tokens, n_rows * sizeof *tokens);
    state->length += n_rows;
}
