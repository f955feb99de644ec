/* Steps of several answers: one evaluation for all of them. Whoever writes gets a row; what is left
 * of a step goes to prompts, in the order of the answers. Neither changes a bit of what comes out
 * (docs/EXACTNESS.md): an answer is that of a run by itself. */
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "engine/completion.h"

enum { MOST_ANSWERS = 4096 };

/* What one answer has evaluated in this step. */
typedef struct part {
    sl_completion *answer;
    uint32_t before, end; /* lengths of its state; with `end` it has what it asked for */
} part;

/* Where reading the prompt pauses next: at a mark, or its end. */
static size_t reading_end(const sl_completion *a)
{
    for (size_t i = 0; i < a->params.n_marks; i++) {
        const size_t position = a->params.marks[i].position;
        if (position > a->state->length && position < a->n_prompt)
            return position;
    }
    return a->n_prompt;
}

/* The rows of the prompt that the answer reads in this step, at most `rows`. */
static size_t rows_to_read(const sl_completion *a, size_t rows)
{
    if (a->params.max_rows > 0)
        rows = sl_min_size(rows, a->params.max_rows);
    return sl_min_size(rows, reading_end(a) - a->state->length);
}

/* Tells that reading begins; whether it does. */
static bool begin(sl_completion *a)
{
    if (!a->begun) {
        a->begun = true;
        a->begin_ns = sl_clock_ns();
        sl_completion_tell_progress(a);
    }
    return !a->cancelled;
}

static void cancel(sl_completion *a)
{
    a->result.finish = SL_FINISH_CANCELLED;
    sl_completion_end(a, SL_OK, NULL);
}

/* The item of an answer, which takes of the step's rows for prompts; false: nothing. */
static bool make_item(sl_completion *a, size_t *rows, sl_eval_item *item)
{
    *item = (sl_eval_item){.state = a->state, .keep_logits = true};
    if (a->phase == SL_COMPLETION_WRITING) {
        item->tokens = &a->token;
        item->n_tokens = 1;
        return true;
    }
    item->tokens = a->prompt + a->state->length;
    item->n_tokens = rows_to_read(a, *rows);
    item->keep_logits = a->state->length + item->n_tokens == a->n_prompt;
    *rows -= item->n_tokens;
    return item->n_tokens > 0;
}

/* A mark that the state has come to. */
static void keep_mark(sl_completion *a)
{
    for (size_t i = 0; i < a->params.n_marks; i++) {
        const sl_prompt_mark *mark = &a->params.marks[i];
        if (mark->position != a->state->length || mark->position >= a->n_prompt)
            continue;
        /* A convenience: without memory for it the answer is still good. */
        if (sl_state_checkpoint(a->state, mark->anchor, NULL) != SL_OK)
            sl_log(SL_LOG_WARNING, "no memory for a checkpoint at position %u", mark->position);
    }
}

static void go_on(const part *p, sl_status status, const sl_error *why)
{
    sl_completion *a = p->answer;
    const bool was_reading = a->phase == SL_COMPLETION_READING;
    if (a->state->failed) {
        sl_completion_end(a, status, why);
        return;
    }
    if (a->state->length == p->before)
        return; /* the evaluation ended before its turn */
    if (was_reading) {
        keep_mark(a);
        sl_completion_tell_progress(a);
        if (a->cancelled) {
            cancel(a);
            return;
        }
    } else {
        a->result.n_steps++;
    }
    if (a->state->length < p->end || (was_reading && p->end < a->n_prompt))
        return;
    if (was_reading) {
        a->read_ns = sl_clock_ns();
        a->result.prompt_ns = a->read_ns - a->begin_ns;
    }
    sl_completion_choose(a);
}

/* Whether any answer has come further, or to its end. */
static bool has_moved(const part *parts, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (parts[i].answer->state->failed || parts[i].answer->state->length != parts[i].before)
            return true;
    }
    return false;
}

static sl_status check_answers(const sl_engine *engine, sl_completion *const *answers, size_t n,
                               sl_error *err)
{
    if (n > MOST_ANSWERS)
        return sl_fail(err, SL_ERR_ARGUMENT, "a step of %zu answers, it may have %d", n,
                       MOST_ANSWERS);
    for (size_t i = 0; i < n; i++) {
        if (answers[i]->engine != engine)
            return sl_fail(err, SL_ERR_ARGUMENT, "answer %zu belongs to another engine", i);
    }
    return SL_OK;
}

static sl_status step(sl_engine *engine, sl_completion *const *answers, size_t n, size_t rows,
                      sl_eval_item *items, part *parts, sl_error *err)
{
    size_t n_items = 0;
    for (size_t i = 0; i < n; i++) {
        sl_completion *a = answers[i];
        if (a->phase == SL_COMPLETION_ENDED)
            continue;
        if (a->cancelled || !begin(a)) {
            cancel(a);
            continue;
        }
        if (!make_item(a, &rows, &items[n_items]))
            continue;
        parts[n_items] = (part){.answer = a,
                                .before = a->state->length,
                                .end = a->state->length + (uint32_t)items[n_items].n_tokens};
        n_items++;
    }
    if (n_items == 0)
        return SL_OK;
    sl_error why;
    const sl_status status = sl_engine_eval(engine, items, n_items, NULL, &why);
    if (status != SL_OK && !has_moved(parts, n_items)) {
        if (err)
            *err = why;
        return status;
    }
    for (size_t i = 0; i < n_items; i++)
        go_on(&parts[i], status, &why);
    return SL_OK;
}

sl_status sl_engine_step(sl_engine *engine, sl_completion *const *answers, size_t n,
                         uint32_t prompt_rows, sl_error *err)
{
    enum { FEW = 8 };
    sl_eval_item few_items[FEW];
    part few_parts[FEW];
    SL_TRY(check_answers(engine, answers, n, err));
    const size_t rows = prompt_rows > 0 ? prompt_rows : engine->params.max_rows;
    if (n <= FEW)
        return step(engine, answers, n, rows, few_items, few_parts, err);
    sl_eval_item *items = sl_alloc_array(SL_MEM_GENERAL, n, sizeof *items);
    part *parts = sl_alloc_array(SL_MEM_GENERAL, n, sizeof *parts);
    const sl_status status = items && parts
                                 ? step(engine, answers, n, rows, items, parts, err)
                                 : sl_fail(err, SL_ERR_MEMORY, "out of memory for a step");
    sl_free(parts);
    sl_free(items);
    return status;
}
