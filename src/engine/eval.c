/* Evaluating rows: from items of the caller to runs of a plan.
 *
 * The rows of all items are laid one after the other and cut into runs of at most max_rows. Where
 * they are cut changes no bit (docs/EXACTNESS.md); it only decides how much memory a run needs and
 * how soon a caller hears of progress. */
#include <string.h>
#include <unistd.h>

#include "base/bits.h"
#include "base/fpenv.h"
#include "base/log.h"
#include "engine/checkpoint.h"

/* ---- checking the call ---- */

static sl_status check_process(const sl_engine *engine, sl_error *err)
{
    if (engine->process == getpid())
        return SL_OK;
    return sl_fail(err, SL_ERR_ARGUMENT,
                   "the engine was opened by process %ld, of which this one is a fork without its "
                   "threads; open an engine here",
                   (long)engine->process);
}

static sl_status check_state(const sl_engine *engine, const sl_state *state, size_t item,
                             sl_error *err)
{
    if (state->engine != engine)
        return sl_fail(err, SL_ERR_ARGUMENT, "item %zu: the state belongs to another engine", item);
    if (state->failed)
        return sl_fail(err, SL_ERR_ARGUMENT,
                       "item %zu: an earlier evaluation of this state failed; reset it", item);
    return SL_OK;
}

static sl_status check_tokens(const sl_engine *engine, const int32_t *tokens, size_t n, size_t item,
                              sl_error *err)
{
    for (size_t i = 0; i < n; i++) {
        if (tokens[i] < 0 || (uint32_t)tokens[i] >= engine->config.vocab)
            return sl_fail(err, SL_ERR_ARGUMENT, "item %zu: token %zu is %d, the vocabulary has %u",
                           item, i, tokens[i], engine->config.vocab);
    }
    return SL_OK;
}

static sl_status check_item(const sl_engine *engine, const sl_eval_item *item, size_t i,
                            sl_error *err)
{
    SL_TRY(sl_check_reserved(item->reserved, SL_COUNTOF(item->reserved), "sl_eval_item", err));
    SL_TRY(check_state(engine, item->state, i, err));
    if (item->keep_logits && item->logits)
        return sl_fail(err, SL_ERR_ARGUMENT, "item %zu: its logits are both kept and wanted", i);
    if (item->n_tokens > item->state->context - item->state->length)
        return sl_fail(err, SL_ERR_CONTEXT,
                       "%zu tokens after %u do not fit in a context of %u tokens", item->n_tokens,
                       item->state->length, item->state->context);
    return check_tokens(engine, item->tokens, item->n_tokens, i, err);
}

/* Marks the states as part of this call, so that one named twice is found. */
static sl_status enter_items(const sl_engine *engine, const sl_eval_item *items, size_t n_items,
                             sl_error *err)
{
    sl_status status = SL_OK;
    size_t entered = 0;
    for (; entered < n_items && status == SL_OK; entered++) {
        status = check_item(engine, &items[entered], entered, err);
        if (status != SL_OK)
            break;
        if (items[entered].state->in_call) {
            status = sl_fail(err, SL_ERR_ARGUMENT, "item %zu: the same state twice", entered);
            break;
        }
        items[entered].state->in_call = true;
    }
    if (status != SL_OK) {
        for (size_t i = 0; i < entered; i++)
            items[i].state->in_call = false;
    }
    return status;
}

/* ---- one run ---- */

/* Where a call stands: the next row to evaluate. */
typedef struct cursor {
    const sl_eval_item *items;
    size_t n_items, item, offset;
    uint32_t n_kept; /* rows of logits kept so far */
} cursor;

/* Rows until the state's next regular checkpoint, where a run must end. */
static size_t rows_to_checkpoint(const sl_engine *engine, const sl_state *state)
{
    if (engine->store.budget == 0)
        return SIZE_MAX;
    return engine->store.spacing - state->length % engine->store.spacing;
}

static void want_logits(sl_engine *engine, sl_run *run, float *to)
{
    engine->logit_rows[run->n_logit_rows] = run->n_rows;
    engine->logits[run->n_logit_rows++] = to;
}

/* Takes up to `limit` rows into the engine's run arrays. */
static sl_status fill_run(sl_engine *engine, cursor *at, uint32_t limit, sl_run *run, sl_error *err)
{
    *run = (sl_run){.tokens = engine->tokens,
                    .segments = engine->segments,
                    .logit_rows = engine->logit_rows,
                    .logits = engine->logits,
                    .first_kept = at->n_kept,
                    .n_kept = engine->n_kept,
                    .shortlists = engine->shortlists,
                    .hidden_out = engine->hidden,
                    .faults = engine->faults,
                    .row_flags = engine->row_flags};
    size_t vocab = engine->config.vocab, hidden = engine->config.hidden;
    bool cut = false; /* an item stopped short of its end: the next run goes on with it */
    while (run->n_rows < limit && at->item < at->n_items && !cut) {
        const sl_eval_item *item = &at->items[at->item];
        size_t wanted = item->n_tokens - at->offset;
        uint32_t n = (uint32_t)sl_min_size(sl_min_size(limit - run->n_rows, wanted),
                                           rows_to_checkpoint(engine, item->state));
        cut = n < wanted;
        if (n > 0) {
            SL_TRY(sl_state_begin(item->state, run->n_rows, n, &engine->segments[run->n_segments],
                                  err));
            memcpy(engine->tokens + run->n_rows, item->tokens + at->offset, n * sizeof(int32_t));
            engine->segment_states[run->n_segments] = item->state;
            engine->faults[run->n_segments++] = (sl_fault){0};
        }
        for (uint32_t i = 0; i < n; i++, run->n_rows++, at->offset++) {
            engine->row_flags[run->n_rows] = 0;
            engine->hidden[run->n_rows] = item->hidden ? item->hidden + at->offset * hidden : NULL;
            bool last = at->offset + 1 == item->n_tokens;
            if (item->logits && (item->all_logits || last))
                want_logits(engine, run,
                            item->logits + (item->all_logits ? at->offset * vocab : 0));
            if (item->keep_logits && last) {
                want_logits(engine, run, sl_kept_row(engine, at->n_kept));
                item->state->kept_in = engine->evaluation;
                item->state->kept_place = at->n_kept++;
            }
        }
        if (at->offset == item->n_tokens) {
            at->item++;
            at->offset = 0;
        }
    }
    return SL_OK;
}

/* Keeps states whose length has just reached a multiple of the spacing. A checkpoint is a
 * convenience: when there is no memory for it the evaluation is still good. */
static void take_regular_checkpoints(sl_engine *engine, const sl_run *run)
{
    if (engine->store.budget == 0)
        return;
    for (uint32_t s = 0; s < run->n_segments; s++) {
        const sl_state *state = engine->segment_states[s];
        if (!state->failed && state->length % engine->store.spacing == 0 &&
            sl_store_add(&engine->store, state, SL_ANCHOR_REGULAR, NULL) != SL_OK)
            sl_log(SL_LOG_WARNING, "out of memory for a checkpoint at position %u", state->length);
    }
}

/* A logit that is not finite is the segment's fault too; -inf cannot come out of a product. */
static void check_logits(sl_engine *engine, const sl_run *run)
{
    const sl_segment *segment = run->segments;
    for (uint32_t i = 0; i < run->n_logit_rows; i++) {
        if (!run->logits[i]) /* the backend looks at what it keeps */
            continue;
        if (sl_all_finite(run->logits[i], engine->config.vocab))
            continue;
        uint32_t row = run->logit_rows[i];
        while (row >= segment->first_row + segment->n_rows)
            segment++;
        sl_fault *fault = &run->faults[segment - run->segments];
        if (!fault->found)
            *fault = (sl_fault){.found = true,
                                .layer = -1,
                                .pos = segment->pos + row - segment->first_row,
                                .op = "head"};
    }
}

static sl_status describe_fault(const sl_fault *fault, sl_error *err)
{
    if (fault->layer >= 0)
        return sl_fail(err, SL_ERR_NUMERIC,
                       "the activations after layer %d (%s) are not finite at position %u",
                       fault->layer, fault->op, fault->pos);
    return sl_fail(err, SL_ERR_NUMERIC, "the logits are not finite at position %u", fault->pos);
}

/* Runs and commits. States at fault, or all of them when the run itself failed, become unusable. */
static sl_status execute(sl_engine *engine, const sl_run *run, sl_error *err)
{
    sl_status status = engine->backend->run(engine->backend, engine->plan, engine->arena, run, err);
    if (status == SL_OK)
        status = sl_weights_check(engine->weights, err);
    if (status != SL_OK) {
        for (uint32_t s = 0; s < run->n_segments; s++)
            engine->segment_states[s]->failed = true;
        return status;
    }
    sl_profile_note(engine->profile, run);
    check_logits(engine, run);
    for (uint32_t s = 0; s < run->n_segments; s++) {
        if (run->faults[s].found) {
            engine->segment_states[s]->failed = true;
            status = describe_fault(&run->faults[s], err);
        } else {
            sl_state_commit(engine->segment_states[s], run->tokens + run->segments[s].first_row,
                            run->segments[s].n_rows);
        }
    }
    return status;
}

/* ---- the calls ---- */

static sl_status eval_items(sl_engine *engine, const sl_eval_item *items, size_t n_items,
                            const sl_eval_options *options, sl_error *err)
{
    static const sl_eval_options none;
    if (!options)
        options = &none;
    SL_TRY(check_process(engine, err));
    SL_TRY(sl_check_reserved(options->reserved, SL_COUNTOF(options->reserved), "sl_eval_options",
                             err));
    SL_TRY(enter_items(engine, items, n_items, err));
    uint32_t limit = engine->params.max_rows;
    if (options->max_rows > 0 && options->max_rows < limit)
        limit = options->max_rows;
    size_t total = 0, done = 0;
    uint32_t n_kept = 0;
    for (size_t i = 0; i < n_items; i++) {
        total += items[i].n_tokens;
        n_kept += items[i].keep_logits && items[i].n_tokens > 0;
    }

    sl_status status = sl_kept_begin(engine, n_kept, err);
    cursor at = {.items = items, .n_items = n_items};
    while (done < total && status == SL_OK) {
        sl_run run;
        status = fill_run(engine, &at, limit, &run, err);
        if (status != SL_OK)
            break;
        run.tap = engine->tap;
        run.tap_context = engine->tap_context;
        run.records = sl_profile_records(engine->profile);
        status = execute(engine, &run, err);
        take_regular_checkpoints(engine, &run);
        done += run.n_rows;
        if (status == SL_OK && done < total && options->progress &&
            options->progress(options->progress_context, done, total))
            status = sl_fail(err, SL_ERR_CANCELLED, "stopped after %zu of %zu tokens", done, total);
    }
    for (size_t i = 0; i < n_items; i++)
        items[i].state->in_call = false;
    return status;
}

sl_status sl_engine_eval(sl_engine *engine, const sl_eval_item *items, size_t n_items,
                         const sl_eval_options *options, sl_error *err)
{
    sl_fpenv env = sl_fpenv_enter();
    sl_status status = eval_items(engine, items, n_items, options, err);
    sl_fpenv_leave(env);
    return status;
}

static sl_status eval_mtp(sl_engine *engine, sl_state *state, const int32_t *next_tokens,
                          const float *hidden, uint32_t first, size_t n, float *logits,
                          sl_error *err)
{
    if (!engine->mtp_plan)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "%s: the model has no draft (MTP) head",
                       sl_weights_path(engine->weights));
    SL_TRY(check_process(engine, err));
    SL_TRY(check_state(engine, state, 0, err));
    SL_TRY(check_tokens(engine, next_tokens, n, 0, err));
    if (first > state->mtp_length || n > state->length - first)
        return sl_fail(err, SL_ERR_ARGUMENT,
                       "draft rows from %u, %zu of them: the state has %u tokens and %u draft rows",
                       first, n, state->length, state->mtp_length);
    SL_TRY(sl_state_own_kv(state, first, n, err));
    state->mtp_length = first; /* later rows read these */
    for (size_t done = 0; done < n;) {
        uint32_t rows = (uint32_t)sl_min_size(engine->params.max_rows, n - done);
        /* Draft rows touch the state's KV pages only. */
        engine->segments[0] = (sl_segment){
            .pos = first + (uint32_t)done, .n_rows = rows, .kv_pages = state->kv_pages};
        engine->faults[0] = (sl_fault){0};
        for (uint32_t i = 0; i < rows; i++) {
            engine->logit_rows[i] = i;
            engine->logits[i] = logits + (done + i) * engine->config.vocab;
            engine->row_flags[i] = 0;
        }
        sl_run run = {.n_rows = rows,
                      .tokens = next_tokens + done,
                      .segments = engine->segments,
                      .n_segments = 1,
                      .logit_rows = engine->logit_rows,
                      .n_logit_rows = rows,
                      .logits = engine->logits,
                      .hidden_in = hidden + done * engine->config.hidden,
                      .faults = engine->faults,
                      .row_flags = engine->row_flags};
        SL_TRY(engine->backend->run(engine->backend, engine->mtp_plan, engine->arena, &run, err));
        SL_TRY(sl_weights_check(engine->weights, err));
        check_logits(engine, &run);
        if (run.faults[0].found)
            return describe_fault(&run.faults[0], err);
        done += rows;
    }
    state->mtp_length = first + (uint32_t)n;
    if (n > 0 && state->mtp_length == state->length && state->length < state->context)
        state->tokens[state->length] = next_tokens[n - 1];
    return SL_OK;
}

sl_status sl_engine_eval_mtp(sl_engine *engine, sl_state *state, const int32_t *next_tokens,
                             const float *hidden, uint32_t first, size_t n, float *logits,
                             sl_error *err)
{
    sl_fpenv env = sl_fpenv_enter();
    sl_status status = eval_mtp(engine, state, next_tokens, hidden, first, n, logits, err);
    sl_fpenv_leave(env);
    return status;
}
