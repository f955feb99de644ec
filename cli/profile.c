/* `sluice profile`: where the time of reading a prompt and of decoding goes, op by op, and how far
 * that is from what the machine can do. */
#include <time.h>

#include "base/clock.h"
#include "base/cpus.h"
#include "base/outfile.h"
#include "commands.h"
#include "common.h"
#include "interrupt.h"
#include "model.h"
#include "out.h"
#include "profile_report.h"
#include "target.h"

typedef struct profile_options {
    sl_common_options common;
    sl_opt_count prefill, decode, depth;
    const char *html;
} profile_options;

enum { WARM_STEPS = 4, MAX_PAGE = 64 << 20 };

#define AT(member) offsetof(profile_options, member)
static const sl_opt options_table[] = {
    {.name = "prefill",
     .letter = 'p',
     .type = SL_OPT_COUNT,
     .offset = AT(prefill),
     .value_name = "N",
     .max = UINT32_MAX,
     .help = "tokens of the prompt (default: 512; 0 = no prompt)"},
    {.name = "decode",
     .letter = 'n',
     .type = SL_OPT_COUNT,
     .offset = AT(decode),
     .value_name = "N",
     .max = UINT32_MAX,
     .help = "steps of decoding (default: 64; 0 = none)"},
    {.name = "depth",
     .letter = 'd',
     .type = SL_OPT_COUNT,
     .offset = AT(depth),
     .value_name = "N",
     .max = UINT32_MAX,
     .help = "tokens that the sequence holds before either (default: 0)"},
    {.name = "html",
     .type = SL_OPT_TEXT,
     .offset = AT(html),
     .value_name = "FILE",
     .help = "also write a page with a picture"},
};
#undef AT

/* ---- measuring ---- */

typedef struct bench {
    const profile_options *options;
    sl_engine *engine;
    int32_t *tokens; /* as many as a sequence holds at most */
    float *logits;
    sl_state *base; /* at the depth */
    sl_profile_limits limits;
    sl_progress progress;
    size_t n_done, n_pass; /* tokens of the pass under way */
} bench;

/* Each pass has a line of its own, with the rate of that pass. */
static void begin_pass(bench *b, const char *label, size_t n_tokens)
{
    sl_progress_clear(&b->progress);
    b->progress = (sl_progress){.label = label};
    b->n_done = 0;
    b->n_pass = n_tokens;
}

static bool on_progress(void *context, size_t done, size_t total)
{
    bench *b = context;
    (void)total;
    sl_progress_update(&b->progress, b->n_done + done, b->n_pass);
    return sl_interrupted();
}

static sl_status evaluate(bench *b, sl_state *state, size_t n, float *logits, sl_error *err)
{
    const sl_eval_item item = {.state = state,
                               .tokens = b->tokens + sl_state_length(state),
                               .n_tokens = n,
                               .logits = logits};
    const sl_eval_options how = {.progress = on_progress, .progress_context = b};
    if (sl_interrupted())
        return sl_fail(err, SL_ERR_CANCELLED, "interrupted");
    SL_TRY(sl_engine_eval(b->engine, &item, 1, &how, err));
    b->n_done += n;
    return SL_OK;
}

static sl_status prefill(bench *b, sl_state *state, size_t n, sl_error *err)
{
    return evaluate(b, state, n, b->logits, err);
}

static sl_status decode(bench *b, sl_state *state, size_t n, sl_error *err)
{
    for (size_t i = 0; i < n; i++)
        SL_TRY(evaluate(b, state, 1, b->logits, err));
    return SL_OK;
}

typedef sl_status (*work_fn)(bench *b, sl_state *state, size_t n, sl_error *err);

static sl_status work_from_base(bench *b, work_fn work, size_t n, uint64_t *wall_ns, sl_error *err)
{
    sl_state *state;
    SL_TRY(sl_state_fork(b->base, &state, err));
    const uint64_t start = sl_clock_ns();
    const sl_status status = work(b, state, n, err);
    *wall_ns = sl_clock_ns() - start;
    sl_state_free(state);
    return status;
}

/* Once unseen, so that weights and buffers are in memory, once by the clock alone, then once with
 * the records on. */
static sl_status measure(bench *b, work_fn work, size_t n_warm, sl_profile_phase *phase,
                         sl_error *err)
{
    sl_profile_op *ops;
    size_t n_ops;
    begin_pass(b, "warming up", n_warm);
    SL_TRY(work_from_base(b, work, n_warm, &phase->plain_ns, err));
    begin_pass(b, "measuring", phase->n_tokens);
    SL_TRY(work_from_base(b, work, phase->n_tokens, &phase->plain_ns, err));
    begin_pass(b, "recording", phase->n_tokens);
    SL_TRY(sl_engine_profile_start(b->engine, err));
    const sl_status status = work_from_base(b, work, phase->n_tokens, &phase->wall_ns, err);
    sl_engine_profile_stop(b->engine);
    SL_TRY(status);
    SL_TRY(sl_engine_profile_ops(b->engine, &ops, &n_ops, err));
    const sl_status built = sl_profile_phase_build(ops, n_ops, &b->limits, phase, err);
    sl_free(ops);
    return built;
}

static sl_profile_phase *next_phase(const bench *b, sl_profile_report *report, const char *name,
                                    uint64_t n_tokens)
{
    sl_profile_phase *phase = &report->phases[report->n_phases++];
    *phase = (sl_profile_phase){.name = name,
                                .n_tokens = (uint32_t)n_tokens,
                                .depth = (uint32_t)b->options->depth.value,
                                .n_threads = report->model.n_threads};
    return phase;
}

static sl_status measure_phases(bench *b, uint32_t context, sl_profile_report *report,
                                sl_error *err)
{
    const profile_options *options = b->options;
    const size_t n_prefill = options->prefill.value, n_decode = options->decode.value;
    SL_TRY(sl_state_create(b->engine, context, &b->base, err));
    begin_pass(b, "filling the sequence", options->depth.value);
    if (options->depth.value > 0)
        SL_TRY(evaluate(b, b->base, options->depth.value, NULL, err));
    if (n_prefill > 0)
        SL_TRY(measure(b, prefill, n_prefill, next_phase(b, report, "prefill", n_prefill), err));
    if (n_decode > 0)
        SL_TRY(measure(b, decode, sl_min_size(n_decode, WARM_STEPS),
                       next_phase(b, report, "decode", n_decode), err));
    return SL_OK;
}

/* Any ids do: only the choice of experts depends on them. */
static void fill_tokens(int32_t *tokens, size_t n, uint32_t vocab)
{
    uint32_t x = 1;
    for (size_t i = 0; i < n; i++) {
        x = x * 1664525u + 1013904223u;
        tokens[i] = (int32_t)((x >> 8) % vocab);
    }
}

static sl_status profile_engine(const profile_options *options, sl_engine *engine, uint32_t context,
                                sl_profile_report *report, sl_error *err)
{
    bench b = {.options = options, .engine = engine};
    b.limits.ceilings = report->ceilings;
    b.limits.isa = report->model.isa;
    sl_status status;
    b.tokens = sl_alloc_array(SL_MEM_GENERAL, context, sizeof *b.tokens);
    b.logits = sl_alloc_array(SL_MEM_GENERAL, sl_engine_vocab(engine), sizeof *b.logits);
    if (!b.tokens || !b.logits) {
        status = sl_fail(err, SL_ERR_MEMORY, "out of memory for %u tokens", context);
        goto done;
    }
    fill_tokens(b.tokens, context, sl_engine_vocab(engine));
    status = measure_phases(&b, context, report, err);
done:
    sl_progress_clear(&b.progress);
    sl_state_free(b.base);
    sl_free(b.logits);
    sl_free(b.tokens);
    return status;
}

/* ---- showing ---- */

/* Takes the file. */
static sl_status write_page(sl_outfile *file, const sl_profile_report *report, sl_error *err)
{
    sl_buf page;
    sl_status status;
    sl_buf_init(&page, SL_MEM_GENERAL, MAX_PAGE);
    SL_CHECK(sl_profile_append_html(report, &page, err));
    SL_CHECK(sl_outfile_write(file, page.data, page.n_bytes, err));
    status = sl_outfile_commit(file, err);
    file = NULL;
done:
    sl_outfile_abandon(file);
    sl_buf_free(&page);
    return status;
}

static int print(const profile_options *options, const sl_profile_report *report)
{
    sl_error err;
    if (options->common.json) {
        sl_json_out json;
        sl_json_out_init(&json);
        sl_profile_write_json(report, &json);
        return sl_json_finish(&json);
    }
    sl_buf text;
    sl_buf_init(&text, SL_MEM_GENERAL, MAX_PAGE);
    const sl_status status = sl_profile_append_text(report, &text, &err);
    return sl_out_finish(&text, status, &err);
}

/* Either report is there when the other fails. */
static int show(const profile_options *options, sl_outfile **page, const sl_profile_report *report)
{
    sl_error err;
    const int exit_status = print(options, report);
    sl_outfile *file = *page;
    *page = NULL;
    if (file && write_page(file, report, &err) != SL_OK)
        return sl_fail_with(&err);
    return exit_status;
}

/* ---- the command ---- */

static uint64_t context_of(const profile_options *options)
{
    const uint64_t prefill = options->prefill.value, decode = options->decode.value;
    return options->depth.value + (prefill > decode ? prefill : decode);
}

static int profile_model(const profile_options *options, sl_engine *engine,
                         sl_profile_report *report, sl_outfile **page)
{
    sl_error err;
    sl_ceilings ceilings;
    sl_engine_model_info(engine, &report->model);
    sl_status status = SL_OK;
    if (options->common.ceilings) {
        status = sl_engine_measure_ceilings(engine, &ceilings, &err);
        report->ceilings = &ceilings;
    }
    if (status == SL_OK)
        status = profile_engine(options, engine, (uint32_t)context_of(options), report, &err);
    sl_machine_look("", &report->after);
    sl_machine_doubts(&report->before, &report->after, report->model.n_threads, sl_cpus_usable(),
                      &report->notes);
    int exit_status = status == SL_ERR_CANCELLED ? SL_EXIT_INTERRUPTED : SL_EXIT_FAILURE;
    if (status == SL_OK)
        exit_status = show(options, page, report);
    else if (status != SL_ERR_CANCELLED)
        exit_status = sl_fail_with(&err);
    for (size_t i = 0; i < report->n_phases; i++)
        sl_profile_phase_free(&report->phases[i]);
    return exit_status;
}

/* What can be told before a model is opened. -1, or an exit status. */
static int check_options(const profile_options *options, const sl_args *args)
{
    const int exit_status = sl_measured_check(&sl_command_profile, &options->common, args);
    if (exit_status >= 0)
        return exit_status;
    if (options->prefill.value == 0 && options->decode.value == 0)
        return sl_usage_error("profile", "there is nothing to measure: --prefill and --decode are "
                                         "both 0");
    return sl_target_check("profile", "--html", options->html, args->n > 0 ? args->items[0] : NULL);
}

static int open_engine(const sl_measured *model, const sl_engine_params *params, sl_engine **engine)
{
    sl_error err;
    if (model->path)
        return sl_model_open(model->path, params, engine);
    *engine = NULL;
    const sl_status status = sl_measured_open(model, params, engine, &err);
    if (status == SL_OK)
        return -1;
    return status == SL_ERR_ARGUMENT ? sl_usage_error("profile", "%s", err.message)
                                     : sl_model_refused(status, &err);
}

/* The page is opened first: a minute of measuring should not be lost to a name. */
static int open_and_profile(const profile_options *options, const sl_args *args)
{
    sl_error err;
    sl_engine *engine = NULL;
    sl_outfile *page = NULL;
    const sl_measured model = {.path = args->n > 0 ? args->items[0] : NULL,
                               .synthetic = sl_common_synthetic(&options->common)};
    /* The sequence at the depth, and the fork that goes on from it. */
    const sl_measured_use use = {.context = context_of(options), .n_states = 2, .n_logits = 1};
    sl_profile_report report = {.random_weights = !model.path, .time = (int64_t)time(NULL)};
    sl_engine_params params = sl_common_engine_params(&options->common);
    params.checkpoint_budget = 0; /* or taking them would be measured */
    sl_interrupt_install();
    sl_machine_look("", &report.before);
    const sl_engine_params *const all[] = {&params};
    int exit_status = sl_measured_fits("profile", &model, all, 1, &use);
    if (exit_status >= 0)
        return exit_status;
    if (options->html && sl_outfile_open(options->html, &page, &err) != SL_OK)
        return sl_fail_with(&err);
    exit_status = open_engine(&model, &params, &engine);
    if (exit_status < 0)
        exit_status = profile_model(options, engine, &report, &page);
    sl_outfile_abandon(page);
    sl_engine_close(engine);
    return exit_status;
}

static int run_profile(int argc, char *const *argv)
{
    sl_args args;
    profile_options options = {
        .common.ceilings = true, .prefill = {.value = 512}, .decode = {.value = 64}};
    int exit_status = sl_opts_parse(&sl_command_profile, argc, argv, &options, &args);
    if (exit_status >= 0)
        return exit_status;
    exit_status = check_options(&options, &args);
    if (exit_status < 0)
        exit_status = open_and_profile(&options, &args);
    sl_args_free(&args);
    return exit_status;
}

const sl_command sl_command_profile = {
    .name = "profile",
    .usage = "MODEL | --shape NAME",
    .summary = "Shows where the time goes, op by op, and how near the limits that is.",
    .details =
        "Measures a prompt and steps of decoding, each after the same number of tokens. "
        "For every op: calls, time and its share, bytes and arithmetic as the plan counts "
        "them, the ceiling that bounds it and how much of that was reached, how uneven the "
        "threads' shares were, and how much of the threads' time went without work. "
        "Products of one input run as one sweep, whose time is divided by their weights. Ops "
        "that only move activations between caches have no ceiling. The ceilings are "
        "measured just before; on a shared machine they are good for that minute only.",
    .common = SL_TAKES_COMPUTE | SL_TAKES_KV | SL_TAKES_JSON | SL_TAKES_MEASURING,
    .opts = options_table,
    .n_opts = SL_COUNTOF(options_table),
    .max_args = 1,
    .run = run_profile,
};
