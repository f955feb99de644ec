/* The loop of `sluice run`: evaluate, draw, show. */
#include "generate.h"

#include "base/clock.h"
#include "base/mem.h"
#include "interrupt.h"
#include "out.h"

/* Prompt tokens between two looks at Ctrl-C and two reports of progress. A larger piece would be
 * no faster, and takes minutes on a large model. */
enum { PIECE_ROWS = 32 };

const char *sl_finish_name(sl_finish finish)
{
    static const char *const names[] = {"stop", "length", "interrupted"};
    return names[finish];
}

/* The progress of a prompt that is read in several calls. */
typedef struct prefill {
    sl_progress line;
    size_t done, total; /* tokens, before the present call */
} prefill;

static bool on_prefill(void *context, size_t done, size_t total)
{
    (void)total;
    prefill *p = context;
    sl_progress_update(&p->line, p->done + done, p->total);
    return sl_interrupted();
}

/* Reads the prompt up to `end`. */
static sl_status read_to(const sl_generation *generation, sl_state *state, uint32_t end,
                         float *logits, prefill *p, sl_error *err)
{
    const uint32_t start = sl_state_length(state);
    const sl_eval_item item = {
        .state = state,
        .tokens = generation->prompt->ids + start,
        .n_tokens = end - start,
        .logits = logits,
    };
    const sl_eval_options options = {
        .max_rows = PIECE_ROWS, .progress = on_prefill, .progress_context = p};
    const sl_status status = sl_engine_eval(generation->engine, &item, 1, &options, err);
    p->done += end - start;
    return status;
}

static sl_status read_with_marks(const sl_generation *generation, sl_state *state, float *logits,
                                 prefill *p, sl_error *err)
{
    for (size_t i = 0; i < generation->n_marks; i++) {
        const sl_prompt_mark *mark = &generation->marks[i];
        if (mark->position <= sl_state_length(state) || mark->position >= generation->prompt->n)
            continue;
        SL_TRY(read_to(generation, state, mark->position, NULL, p, err));
        SL_TRY(sl_state_checkpoint(state, mark->anchor, err));
    }
    return read_to(generation, state, (uint32_t)generation->prompt->n, logits, p, err);
}

static sl_status evaluate_prompt(const sl_generation *generation, sl_state *state, float *logits,
                                 sl_generated *out, sl_error *err)
{
    const sl_ids *prompt = generation->prompt;
    const uint64_t start = sl_clock_ns();
    SL_TRY(sl_state_sync(state, prompt->ids, prompt->n, &out->reuse, err));
    prefill p = {.line = {.label = "reading the prompt"}, .total = prompt->n - out->reuse.reused};
    sl_progress_update(&p.line, 0, p.total);
    const sl_status status = read_with_marks(generation, state, logits, &p, err);
    sl_progress_clear(&p.line);
    out->prefill_ns = sl_clock_ns() - start;
    return status;
}

static bool must_stop(void)
{
    return sl_interrupted() || sl_out_failed();
}

static sl_think_budget begin_budget(const sl_generation *generation)
{
    if (!generation->think)
        return (sl_think_budget){0};
    const sl_ids *prompt = generation->prompt;
    const sl_tokenizer *tokenizer = sl_text_tokenizer(generation->text);
    return sl_think_budget_begin(generation->think, generation->thinking,
                                 sl_tokenizer_bytes(tokenizer, prompt->ids[prompt->n - 1]));
}

static sl_status generate_tokens(const sl_generation *generation, sl_state *state,
                                 sl_sampler *sampler, float *logits, sl_generated *out,
                                 sl_error *err)
{
    const size_t vocab = sl_engine_vocab(generation->engine);
    const sl_think_rules *think = generation->think;
    sl_think_budget budget = begin_budget(generation);
    for (;;) {
        int32_t token;
        const int32_t forced = think ? sl_think_budget_forced(&budget, think) : -1;
        const sl_sample_context context = {
            .history = {.tokens = sl_state_tokens(state),
                        .n_tokens = sl_state_length(state),
                        .n_prompt = generation->prompt->n},
            .position = sl_state_length(state),
            .forced = forced >= 0 ? &forced : NULL,
        };
        SL_TRY(sl_sample_next(sampler, logits, vocab, &context, &token, err));
        out->n_tokens++;
        if (think) {
            const sl_tokenizer *tokenizer = sl_text_tokenizer(generation->text);
            sl_think_budget_push(&budget, think, token, sl_tokenizer_bytes(tokenizer, token));
            out->n_forced = budget.n_forced;
        }
        if (sl_text_is_stop(generation->text, token)) {
            out->finish = SL_FINISH_STOP;
            return SL_OK;
        }
        bool stop = false;
        SL_TRY(generation->sink.push(generation->sink.user, token, &stop, err));
        if (stop) {
            out->finish = SL_FINISH_STOP;
            return SL_OK;
        }
        if (must_stop()) {
            out->finish = SL_FINISH_INTERRUPTED;
            return SL_OK;
        }
        if (out->n_tokens >= generation->max_tokens ||
            sl_state_length(state) >= sl_state_context(state)) {
            out->finish = SL_FINISH_LENGTH;
            return SL_OK;
        }
        const sl_eval_item item = {
            .state = state, .tokens = &token, .n_tokens = 1, .logits = logits};
        const uint64_t start = sl_clock_ns();
        SL_TRY(sl_engine_eval(generation->engine, &item, 1, NULL, err));
        out->decode_ns += sl_clock_ns() - start;
        out->n_steps++;
    }
}

sl_status sl_generate(const sl_generation *generation, sl_generated *out, sl_error *err)
{
    *out = (sl_generated){.finish = SL_FINISH_INTERRUPTED};
    const size_t vocab = sl_engine_vocab(generation->engine);
    sl_state *own = NULL, *state = generation->state;
    sl_sampler *sampler = NULL;
    float *logits = sl_alloc_array(SL_MEM_GENERAL, vocab, sizeof *logits);
    sl_status status = SL_OK;
    if (!logits)
        status = sl_fail(err, SL_ERR_MEMORY, "out of memory for %zu logits", vocab);
    if (status == SL_OK)
        status = sl_sampler_create(vocab, &sampler, err);
    if (status == SL_OK)
        status = sl_sampler_set(sampler, generation->sampling, err);
    if (status == SL_OK && !state) {
        status = sl_state_create(generation->engine, generation->context, &own, err);
        state = own;
    }
    if (status == SL_OK) {
        sl_sampler_set_banned(sampler, sl_text_banned(generation->text));
        sl_sampler_set_breakers(sampler, generation->breakers);
        out->state_bytes = sl_mem_get_stats().bytes[SL_MEM_STATE];
        status = evaluate_prompt(generation, state, logits, out, err);
    }
    if (status == SL_OK)
        status = generate_tokens(generation, state, sampler, logits, out, err);
    if (status == SL_ERR_CANCELLED)
        status = SL_OK;
    sl_state_free(own);
    sl_sampler_destroy(sampler);
    sl_free(logits);
    return status;
}
