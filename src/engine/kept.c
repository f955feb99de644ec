/* Owns the logits that an evaluation keeps: on the host for a backend that computes there, else
 * with the backend, of which rows are fetched one at a time when somebody asks. It refuses logits
 * that are no longer those of a state's last token. */
#include "base/fpenv.h"
#include "engine/engine_internal.h"
#include "engine/sampler.h"

static sl_status reserve(void **items, size_t *room, size_t n, size_t size, sl_error *err)
{
    if (n <= *room)
        return SL_OK;
    sl_free(*items);
    *room = 0;
    *items = sl_alloc_array(SL_MEM_SCRATCH, n, size);
    if (!*items)
        return sl_fail(err, SL_ERR_MEMORY, "out of memory for %zu rows of logits", n);
    *room = n;
    return SL_OK;
}

static sl_status reserve_rows(sl_engine *engine, size_t n, sl_error *err)
{
    void *rows = engine->kept;
    const sl_status status =
        reserve(&rows, &engine->kept_room, n, engine->config.vocab * sizeof *engine->kept, err);
    engine->kept = rows;
    return status;
}

static bool backend_keeps(const sl_engine *engine)
{
    return engine->backend->fetch_logits != NULL;
}

sl_status sl_kept_begin(sl_engine *engine, uint32_t n, sl_error *err)
{
    engine->evaluation++;
    engine->n_kept = n;
    engine->fetched = UINT32_MAX;
    if (!backend_keeps(engine))
        return reserve_rows(engine, n, err);
    void *lists = engine->shortlists;
    const sl_status status =
        reserve(&lists, &engine->shortlist_room, n, sizeof *engine->shortlists, err);
    engine->shortlists = lists;
    for (uint32_t i = 0; i < n && status == SL_OK; i++)
        engine->shortlists[i].n = 0;
    return status;
}

float *sl_kept_row(const sl_engine *engine, uint32_t place)
{
    return backend_keeps(engine) ? NULL : engine->kept + (size_t)place * engine->config.vocab;
}

void sl_kept_free(sl_engine *engine)
{
    sl_free(engine->kept);
    sl_free(engine->shortlists);
}

static sl_status check_kept(const sl_state *state, sl_error *err)
{
    SL_TRY(sl_state_check_sound(state, err));
    SL_TRY(sl_state_check_idle(state, err));
    if (state->kept_in == 0 || state->kept_in != state->engine->evaluation)
        return sl_fail(err, SL_ERR_ARGUMENT,
                       "the last evaluation kept no logits of this state, or the state has changed "
                       "since");
    return SL_OK;
}

static sl_status find_row(sl_state *state, const float **logits, sl_error *err)
{
    sl_engine *engine = state->engine;
    SL_TRY(check_kept(state, err));
    *logits = sl_kept_row(engine, state->kept_place);
    if (*logits)
        return SL_OK;
    SL_TRY(reserve_rows(engine, 1, err));
    if (engine->fetched != state->kept_place) {
        engine->fetched = UINT32_MAX;
        SL_TRY(
            engine->backend->fetch_logits(engine->backend, state->kept_place, engine->kept, err));
        engine->fetched = state->kept_place;
    }
    *logits = engine->kept;
    return SL_OK;
}

sl_status sl_state_logits(sl_state *state, const float **logits, sl_error *err)
{
    sl_fpenv env = sl_fpenv_enter();
    sl_status status = find_row(state, logits, err);
    sl_fpenv_leave(env);
    return status;
}

sl_status sl_state_sample(sl_state *state, sl_sampler *sampler, const sl_sample_context *context,
                          int32_t *token, sl_error *err)
{
    const sl_engine *engine = state->engine;
    const size_t vocab = engine->config.vocab;
    SL_TRY(check_kept(state, err));
    if (backend_keeps(engine)) {
        bool decided;
        SL_TRY(sl_sample_shortlist(sampler, &engine->shortlists[state->kept_place], vocab, context,
                                   token, &decided, err));
        if (decided)
            return SL_OK;
    }
    const float *logits;
    SL_TRY(sl_state_logits(state, &logits, err));
    return sl_sample_next(sampler, logits, vocab, context, token, err);
}
