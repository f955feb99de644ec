/* Going back: the choice between what the state still holds and the checkpoints. */
#include <string.h>

#include "engine/checkpoint.h"

static const char window_left[] =
    "the position lies outside the rewind window and no checkpoint is "
    "nearer";
static const char last_token[] = "the last token is evaluated again for its logits";
static const char tokens_differ[] = "the tokens differ from there on";
static const char all_there_is[] = "neither the state nor a checkpoint has more of these tokens";
static const char failed_state[] =
    "the last evaluation of the state failed and no checkpoint is nearer";

static uint32_t common_prefix(const sl_state *state, const int32_t *tokens, size_t n)
{
    uint32_t i = 0;
    while (i < state->length && i < n && state->tokens[i] == tokens[i])
        i++;
    return i;
}

/* Brings the state to a prefix of tokens[0..target), as long as can be had without evaluating. */
static sl_status go_back(sl_state *state, const int32_t *tokens, uint32_t target,
                         sl_reuse_report *report, sl_error *err)
{
    sl_checkpoint_store *store = &state->engine->store;
    report->matched = common_prefix(state, tokens, target);
    bool live = !state->failed && report->matched == state->length;
    if (live) {
        report->source = state->length > 0 ? SL_REUSE_LIVE : SL_REUSE_NOTHING;
        report->reused = state->length;
    } else if (!state->failed && sl_state_rewind_free(state, report->matched)) {
        report->source = report->matched > 0 ? SL_REUSE_WINDOW : SL_REUSE_NOTHING;
        report->reused = report->matched;
    }
    sl_checkpoint *checkpoint = sl_store_find(store, tokens, target, target);
    bool settled = live || (report->source == SL_REUSE_WINDOW);
    if (checkpoint && checkpoint->length <= state->context &&
        (!settled || checkpoint->length > report->reused)) {
        SL_TRY(sl_store_restore(store, checkpoint, state, err));
        report->source = SL_REUSE_CHECKPOINT;
        report->reused = report->checkpoint = checkpoint->length;
    } else if (!settled) {
        sl_state_reset(state);
        report->source = SL_REUSE_NOTHING;
        report->reused = 0;
    }
    return SL_OK;
}

sl_status sl_state_rewind(sl_state *state, uint32_t length, sl_reuse_report *report, sl_error *err)
{
    sl_reuse_report ignored;
    report = report ? report : &ignored;
    *report = (sl_reuse_report){.matched = length, .why = ""};
    SL_TRY(sl_state_check_sound(state, err));
    SL_TRY(sl_state_check_idle(state, err));
    if (length > state->length)
        return sl_fail(err, SL_ERR_ARGUMENT, "rewinding to %u tokens, the state has %u", length,
                       state->length);
    if (sl_state_rewind_free(state, length)) {
        report->source = SL_REUSE_WINDOW;
        report->reused = length;
        return SL_OK;
    }
    /* The ids outlive whatever happens to the rest: they are only ever overwritten by themselves.
     */
    const int32_t *tokens = state->tokens;
    sl_checkpoint *checkpoint = sl_store_find(&state->engine->store, tokens, length, length);
    if (checkpoint) {
        SL_TRY(sl_store_restore(&state->engine->store, checkpoint, state, err));
        report->source = SL_REUSE_CHECKPOINT;
        report->reused = report->checkpoint = checkpoint->length;
    } else {
        sl_state_reset(state);
    }
    report->recomputed = length - state->length;
    if (report->recomputed == 0)
        return SL_OK;
    report->why = window_left;
    sl_eval_item item = {
        .state = state, .tokens = tokens + state->length, .n_tokens = report->recomputed};
    return sl_engine_eval(state->engine, &item, 1, NULL, err);
}

sl_status sl_state_sync(sl_state *state, const int32_t *tokens, size_t n, sl_reuse_report *report,
                        sl_error *err)
{
    sl_reuse_report ignored;
    report = report ? report : &ignored;
    *report = (sl_reuse_report){.why = ""};
    if (n == 0 || n > state->context)
        return sl_fail(err, n == 0 ? SL_ERR_ARGUMENT : SL_ERR_CONTEXT,
                       "%zu tokens for a context of %u", n, state->context);
    SL_TRY(sl_state_check_idle(state, err));
    uint32_t in_common = common_prefix(state, tokens, n), had = state->length;
    const bool failed = state->failed;
    SL_TRY(go_back(state, tokens, (uint32_t)n - 1, report, err));
    report->matched = in_common;
    if (report->reused == n - 1)
        report->why = in_common == n ? last_token : "";
    else if (report->reused < in_common)
        report->why = failed ? failed_state : window_left;
    else if (report->reused == in_common && in_common < had)
        report->why = tokens_differ;
    else
        report->why = all_there_is;
    return SL_OK;
}

sl_status sl_state_checkpoint(sl_state *state, sl_anchor anchor, sl_error *err)
{
    SL_TRY(sl_state_check_sound(state, err));
    if ((unsigned)anchor >= SL_ANCHOR_COUNT)
        return sl_fail(err, SL_ERR_ARGUMENT, "%d is no reason for a checkpoint", (int)anchor);
    return sl_store_add(&state->engine->store, state, anchor, err);
}
