/* `sluice parity`: how far the model's values lie from stored reference values. */
#include <stdio.h>
#include <string.h>

#include "commands.h"
#include "common.h"
#include "interrupt.h"
#include "model.h"
#include "out.h"
#include "parity_metrics.h"
#include "references.h"
#include "taps.h"

typedef struct parity_options {
    sl_common_options common;
    const char *golden, *prompts, *prompt_set;
    sl_opt_number max_abs, max_kl;
} parity_options;

#define AT(member) offsetof(parity_options, member)
static const sl_opt options_table[] = {
    {.name = "golden",
     .letter = 'g',
     .type = SL_OPT_TEXT,
     .offset = AT(golden),
     .value_name = "FILE",
     .help = "the safetensors file with the reference values"},
    {.name = "prompts",
     .type = SL_OPT_TEXT,
     .offset = AT(prompts),
     .value_name = "FILE",
     .help = "the prompts as token ids (default: prompts.json beside the reference file)"},
    {.name = "prompt-set",
     .type = SL_OPT_TEXT,
     .offset = AT(prompt_set),
     .value_name = "NAME",
     .help = "which set of prompts (default: by the size of the vocabulary)"},
    {.name = "max-abs",
     .type = SL_OPT_NUMBER,
     .offset = AT(max_abs),
     .value_name = "X",
     .high = 1e30,
     .help = "fail when a value differs by more than X"},
    {.name = "max-kl",
     .type = SL_OPT_NUMBER,
     .offset = AT(max_kl),
     .value_name = "X",
     .high = 1e30,
     .help = "fail when the divergence of a position is above X"},
};
#undef AT

enum { LOGIT_ROWS = 32 }; /* rows of logits held at a time */

typedef struct parity {
    const parity_options *options;
    sl_engine *engine;
    sl_references *references;
    sl_parity_summary *summaries; /* one per reference */
    float *logits;                /* [LOGIT_ROWS][vocab] */
    float *golden;                /* the widest row */
    sl_progress progress;
} parity;

/* ---- evaluating ---- */

static bool covers(const sl_reference *reference, size_t prompt, size_t row)
{
    return reference->prompt == prompt && row >= reference->first_row &&
           row < reference->first_row + reference->n_rows;
}

static bool wants_logits(const parity *p, size_t prompt, size_t row)
{
    for (size_t i = 0; i < sl_references_count(p->references); i++) {
        const sl_reference *reference = sl_references_at(p->references, i);
        if (reference->is_logits && covers(reference, prompt, row))
            return true;
    }
    return false;
}

/* How many tokens of the prompt have to be evaluated, and whether layer values are wanted. */
static size_t rows_needed(const parity *p, size_t prompt, bool *layers)
{
    size_t n = 0;
    *layers = false;
    for (size_t i = 0; i < sl_references_count(p->references); i++) {
        const sl_reference *reference = sl_references_at(p->references, i);
        if (reference->prompt != prompt)
            continue;
        n = sl_max_size(n, reference->first_row + reference->n_rows);
        *layers = *layers || !reference->is_logits;
    }
    return n;
}

/* The rows from `row` on that are alike: all wanted, at most LOGIT_ROWS, or none wanted. */
static size_t run_length(const parity *p, size_t prompt, size_t row, size_t n_rows, bool wanted)
{
    size_t n = 1;
    while (row + n < n_rows && (!wanted || n < LOGIT_ROWS) &&
           wants_logits(p, prompt, row + n) == wanted)
        n++;
    return n;
}

static void compare_logits(parity *p, size_t prompt, size_t row, const float *ours)
{
    for (size_t i = 0; i < sl_references_count(p->references); i++) {
        const sl_reference *reference = sl_references_at(p->references, i);
        if (!reference->is_logits || !covers(reference, prompt, row))
            continue;
        sl_reference_row(reference, row - reference->first_row, p->golden);
        const sl_row_distance distance = sl_row_compare(p->golden, ours, reference->n_cols);
        const sl_logits_distance logits = sl_logits_compare(p->golden, ours, reference->n_cols);
        sl_parity_add(&p->summaries[i], &distance, &logits);
    }
}

static sl_status compare_layers(parity *p, size_t prompt, const sl_taps *taps, sl_error *err)
{
    for (size_t i = 0; i < sl_references_count(p->references); i++) {
        const sl_reference *reference = sl_references_at(p->references, i);
        if (reference->is_logits || reference->prompt != prompt)
            continue;
        const sl_tap_values *ours = sl_taps_find(taps, reference->name);
        if (!ours || ours->n_cols != reference->n_cols)
            return sl_fail(err, SL_ERR_ARGUMENT, "the model has no value %s of %zu columns",
                           reference->name, reference->n_cols);
        for (size_t row = 0; row < reference->n_rows; row++) {
            sl_reference_row(reference, row, p->golden);
            const sl_row_distance distance = sl_row_compare(
                p->golden, ours->values + row * reference->n_cols, reference->n_cols);
            sl_parity_add(&p->summaries[i], &distance, NULL);
        }
    }
    return SL_OK;
}

static bool on_progress(void *context, size_t done, size_t total)
{
    (void)context, (void)done, (void)total;
    return sl_interrupted();
}

/* Evaluates the prompt from its first token on, in runs of rows with and without logits: how a
 * prompt is cut does not change any value. */
static sl_status evaluate(parity *p, size_t prompt, size_t n_rows, sl_state *state, sl_taps *taps,
                          sl_error *err)
{
    const size_t vocab = sl_engine_vocab(p->engine);
    const int32_t *tokens = sl_references_prompt(p->references, prompt)->ids.ids;
    const sl_eval_options how = {.progress = on_progress};
    sl_engine_set_tap(p->engine, taps ? sl_taps_collect : NULL, taps);
    for (size_t row = 0; row < n_rows;) {
        const bool wanted = wants_logits(p, prompt, row);
        const size_t n = run_length(p, prompt, row, n_rows, wanted);
        const sl_eval_item item = {.state = state,
                                   .tokens = tokens + row,
                                   .n_tokens = n,
                                   .all_logits = wanted,
                                   .logits = wanted ? p->logits : NULL};
        sl_progress_update(&p->progress, row, n_rows);
        SL_TRY(sl_engine_eval(p->engine, &item, 1, &how, err));
        for (size_t i = 0; wanted && i < n; i++)
            compare_logits(p, prompt, row + i, p->logits + i * vocab);
        row += n;
    }
    return SL_OK;
}

static sl_status compare_prompt(parity *p, size_t prompt, sl_error *err)
{
    bool layers;
    sl_taps taps = {0};
    sl_state *state = NULL;
    sl_status status;
    sl_model_info model;
    sl_engine_model_info(p->engine, &model);
    const size_t n_rows = rows_needed(p, prompt, &layers);
    if (n_rows == 0)
        return SL_OK;
    if (n_rows > model.context_length)
        return sl_fail(err, SL_ERR_CONTEXT, "prompt %s has %zu tokens, the model's context is %u",
                       sl_references_prompt(p->references, prompt)->name, n_rows,
                       model.context_length);
    sl_taps_init(&taps, n_rows);
    SL_CHECK(sl_state_create(p->engine, (uint32_t)n_rows, &state, err));
    SL_CHECK(evaluate(p, prompt, n_rows, state, layers ? &taps : NULL, err));
    if (layers) {
        SL_CHECK(sl_taps_finish(&taps, &model, err));
        SL_CHECK(compare_layers(p, prompt, &taps, err));
    }
done:
    sl_state_free(state);
    sl_taps_free(&taps);
    return status;
}

/* ---- the verdict ---- */

static bool within_limits(const parity *p)
{
    const parity_options *options = p->options;
    for (size_t i = 0; i < sl_references_count(p->references); i++) {
        const sl_parity_summary *summary = &p->summaries[i];
        if (options->max_abs.set && !(summary->max_abs <= options->max_abs.value))
            return false;
        if (options->max_kl.set && summary->has_logits &&
            !(summary->max_kl <= options->max_kl.value))
            return false;
    }
    return true;
}

/* ---- output ---- */

static sl_status append_row(const sl_reference *reference, const sl_parity_summary *summary,
                            sl_buf *out, sl_error *err)
{
    SL_TRY(sl_buf_printf(out, err, "%-18s %5zu %12.9f %10.3g %6zu %9.6f %9.6f", reference->name,
                         summary->n_rows, summary->min_cosine, summary->max_abs,
                         summary->max_abs_row, summary->min_norm_ratio, summary->max_norm_ratio));
    if (summary->has_logits)
        SL_TRY(sl_buf_printf(out, err, " %10.3g %10.3g %6zu/%zu", sl_parity_mean_kl(summary),
                             summary->max_kl, summary->n_same_top, summary->n_rows));
    SL_TRY(sl_buf_append_char(out, '\n', err));
    if (!summary->diverged)
        return SL_OK;
    return sl_buf_printf(out, err,
                         "    first other choice at position %zu: reference %zu, here %zu; the "
                         "reference's margin was %.3g\n",
                         reference->first_row + summary->first_divergent, summary->divergent_golden,
                         summary->divergent_ours, summary->divergent_margin);
}

static sl_status append_table(const parity *p, sl_buf *out, sl_error *err)
{
    SL_TRY(sl_buf_printf(out, err, "%-18s %5s %12s %10s %6s %9s %9s %10s %10s %8s\n", "tensor",
                         "rows", "min cosine", "max abs", "at row", "norm min", "norm max",
                         "mean KL", "max KL", "same top"));
    for (size_t i = 0; i < sl_references_count(p->references); i++)
        SL_TRY(append_row(sl_references_at(p->references, i), &p->summaries[i], out, err));
    for (size_t i = 0; i < sl_references_skipped_count(p->references); i++)
        SL_TRY(sl_buf_printf(out, err, "%-18s not compared\n",
                             sl_references_skipped(p->references, i)));
    if (p->options->max_abs.set || p->options->max_kl.set)
        SL_TRY(sl_buf_append_str(
            out, within_limits(p) ? "within the limits\n" : "OUTSIDE the limits\n", err));
    return SL_OK;
}

static void json_divergence(sl_json_out *json, const sl_reference *reference,
                            const sl_parity_summary *summary)
{
    if (!summary->diverged) {
        sl_json_null(json, "first_divergent");
        return;
    }
    sl_json_open(json, "first_divergent", '{');
    sl_json_uint(json, "position", reference->first_row + summary->first_divergent);
    sl_json_uint(json, "reference", summary->divergent_golden);
    sl_json_uint(json, "here", summary->divergent_ours);
    sl_json_double(json, "margin", summary->divergent_margin);
    sl_json_close(json, '}');
}

static void json_tensor(const parity *p, size_t i, sl_json_out *json)
{
    const sl_reference *reference = sl_references_at(p->references, i);
    const sl_parity_summary *summary = &p->summaries[i];
    sl_json_open(json, NULL, '{');
    sl_json_string(json, "name", reference->name);
    sl_json_string(json, "prompt", sl_references_prompt(p->references, reference->prompt)->name);
    sl_json_uint(json, "first_position", reference->first_row);
    sl_json_uint(json, "rows", summary->n_rows);
    sl_json_double(json, "min_cosine", summary->min_cosine);
    sl_json_double(json, "max_abs", summary->max_abs);
    sl_json_uint(json, "max_abs_row", summary->max_abs_row);
    sl_json_double(json, "min_norm_ratio", summary->min_norm_ratio);
    sl_json_double(json, "max_norm_ratio", summary->max_norm_ratio);
    if (summary->has_logits) {
        sl_json_double(json, "mean_kl", sl_parity_mean_kl(summary));
        sl_json_double(json, "max_kl", summary->max_kl);
        sl_json_uint(json, "same_top", summary->n_same_top);
        json_divergence(json, reference, summary);
    }
    sl_json_close(json, '}');
}

static int print_json(const parity *p)
{
    sl_json_out json;
    sl_json_out_init(&json);
    sl_json_open(&json, NULL, '{');
    sl_json_string(&json, "golden", p->options->golden);
    sl_json_open(&json, "tensors", '[');
    for (size_t i = 0; i < sl_references_count(p->references); i++)
        json_tensor(p, i, &json);
    sl_json_close(&json, ']');
    sl_json_open(&json, "skipped", '[');
    for (size_t i = 0; i < sl_references_skipped_count(p->references); i++)
        sl_json_string(&json, NULL, sl_references_skipped(p->references, i));
    sl_json_close(&json, ']');
    if (p->options->max_abs.set || p->options->max_kl.set)
        sl_json_bool(&json, "within_limits", within_limits(p));
    else
        sl_json_null(&json, "within_limits");
    sl_json_close(&json, '}');
    return sl_json_finish(&json);
}

static int print_result(const parity *p)
{
    int exit_status;
    if (p->options->common.json) {
        exit_status = print_json(p);
    } else {
        sl_buf out;
        sl_error err;
        sl_buf_init(&out, SL_MEM_GENERAL, (size_t)1 << 30);
        exit_status = sl_out_finish(&out, append_table(p, &out, &err), &err);
    }
    if (exit_status == SL_EXIT_DONE && !within_limits(p))
        exit_status = SL_EXIT_FAILURE;
    return exit_status;
}

/* ---- the command ---- */

static sl_status allocate(parity *p, sl_error *err)
{
    const size_t vocab = sl_engine_vocab(p->engine), n = sl_references_count(p->references);
    size_t n_logits, widest = 0;
    for (size_t i = 0; i < n; i++)
        widest = sl_max_size(widest, sl_references_at(p->references, i)->n_cols);
    if (!sl_size_mul(LOGIT_ROWS, vocab, &n_logits))
        return sl_fail(err, SL_ERR_LIMIT, "a vocabulary of %zu is too large", vocab);
    p->summaries = sl_alloc_array(SL_MEM_GENERAL, n, sizeof *p->summaries);
    p->logits = sl_alloc_array(SL_MEM_GENERAL, n_logits, sizeof *p->logits);
    p->golden = sl_alloc_array(SL_MEM_GENERAL, widest, sizeof *p->golden);
    if (!p->summaries || !p->logits || !p->golden)
        return sl_fail(err, SL_ERR_MEMORY, "out of memory for %d rows of logits", LOGIT_ROWS);
    return SL_OK;
}

static int compare(parity *p)
{
    sl_error err;
    const parity_options *options = p->options;
    sl_status status = sl_references_open(options->golden, options->prompts, options->prompt_set,
                                          sl_engine_vocab(p->engine), &p->references, &err);
    if (status == SL_OK)
        status = allocate(p, &err);
    p->progress.label = "evaluating";
    for (size_t i = 0; status == SL_OK && i < sl_references_prompt_count(p->references); i++)
        status = compare_prompt(p, i, &err);
    if (status == SL_OK)
        status = sl_references_check(p->references, &err);
    sl_progress_clear(&p->progress);
    if (status == SL_ERR_CANCELLED)
        return SL_EXIT_INTERRUPTED;
    return status == SL_OK ? print_result(p) : sl_fail_with(&err);
}

static int run_parity(int argc, char *const *argv)
{
    sl_args args;
    parity_options options = {0};
    int exit_status = sl_opts_parse(&sl_command_parity, argc, argv, &options, &args);
    if (exit_status >= 0)
        return exit_status;
    if (!options.golden)
        exit_status = sl_usage_error("parity", "--golden FILE is missing");
    if (exit_status < 0) {
        parity p = {.options = &options};
        sl_engine_params params = sl_common_engine_params(&options.common);
        params.checkpoint_budget = 0; /* one pass, nothing goes back */
        sl_interrupt_install();
        exit_status = sl_model_open(args.items[0], &params, &p.engine);
        if (exit_status < 0)
            exit_status = compare(&p);
        sl_free(p.summaries);
        sl_free(p.logits);
        sl_free(p.golden);
        sl_references_close(p.references);
        sl_engine_close(p.engine);
    }
    sl_args_free(&args);
    return exit_status;
}

const sl_command sl_command_parity = {
    .name = "parity",
    .usage = "MODEL --golden FILE",
    .summary = "Compares the model's values with stored reference values.",
    .details =
        "FILE holds float32 tensors: logits named P.firstN, P.N.lastK or P.all, for a prompt P of "
        "the prompts file; layer values named embed, Li.mixer, Li.ffn, Li.out, final_norm, for "
        "prompt B; or what 'sluice logits' wrote, which brings its own tokens.\n"
        "The table gives for each tensor the smallest cosine of a position, the largest "
        "difference and where it is, the range of the ratio of norms, and for logits the "
        "divergence KL(reference || here) in nats and how often the likeliest token agrees. With "
        "--max-abs or --max-kl the exit status is 1 when a limit is passed.",
    .opts = options_table,
    .n_opts = SL_COUNTOF(options_table),
    .common = SL_TAKES_COMPUTE | SL_TAKES_KV | SL_TAKES_JSON,
    .min_args = 1,
    .max_args = 1,
    .run = run_parity,
};
