/* `sluice bench`: how fast a model runs here, and how near that is to what the machine can do. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/cpus.h"
#include "bench.h"
#include "commands.h"
#include "common.h"
#include "interrupt.h"
#include "out.h"
#include "target.h"

enum { MAX_TOKENS = 1 << 24, MAX_BATCH = 1024, MAX_LOADS = 100 };

typedef struct bench_options {
    sl_common_options common;
    const char *save;
    sl_opt_count layers, seed;
    const char *pp, *tg, *depth, *batch;
    sl_opt_list ab;
    sl_opt_count first, repeat, loads;
    bool csv, compare;
} bench_options;

#define AT(member) offsetof(bench_options, member)
static const sl_opt options_table[] = {
    {.name = "pp",
     .letter = 'p',
     .type = SL_OPT_TEXT,
     .offset = AT(pp),
     .value_name = "N,..",
     .help = "lengths of prompts (default: 128,512,2048), or none"},
    {.name = "tg",
     .letter = 'n',
     .type = SL_OPT_TEXT,
     .offset = AT(tg),
     .value_name = "N,..",
     .help = "steps of decoding (default: 128), or none"},
    {.name = "depth",
     .letter = 'd',
     .type = SL_OPT_TEXT,
     .offset = AT(depth),
     .value_name = "N,..",
     .help = "tokens that are already there (default: 0)"},
    {.name = "batch",
     .letter = 'b',
     .type = SL_OPT_TEXT,
     .offset = AT(batch),
     .value_name = "N,..",
     .help = "decode so many sequences together as well, from the start"},
    {.name = "first",
     .type = SL_OPT_COUNT,
     .offset = AT(first),
     .value_name = "N",
     .max = MAX_TOKENS,
     .help = "length of the prompt before the first token (default: 512), 0 = do not measure it"},
    {.name = "repeat",
     .letter = 'r',
     .type = SL_OPT_COUNT,
     .offset = AT(repeat),
     .value_name = "N",
     .min = 1,
     .max = SL_MAX_RUNS,
     .help = "runs of each test (default: 5), after one to warm up"},
    {.name = "loads",
     .type = SL_OPT_COUNT,
     .offset = AT(loads),
     .value_name = "N",
     .min = 1,
     .max = MAX_LOADS,
     .help = "times that the model is opened (default: 3)"},
    {.name = "ab",
     .type = SL_OPT_LIST,
     .offset = AT(ab),
     .value_name = "NAME=A,B",
     .help = "compare settings, in turn in one run: threads, isa, kv, gdn, prefill-chunk"},
    {.name = "layers",
     .type = SL_OPT_COUNT,
     .offset = AT(layers),
     .value_name = "N",
     .min = 1,
     .max = UINT16_MAX,
     .help = "only the first N layers of the shape"},
    {.name = "seed",
     .type = SL_OPT_COUNT,
     .offset = AT(seed),
     .value_name = "N",
     .max = UINT64_MAX,
     .help = "of the random weights (default: 0)"},
    {.name = "save",
     .type = SL_OPT_TEXT,
     .offset = AT(save),
     .value_name = "FILE",
     .help = "write the random weights as a GGUF file and measure nothing"},
    {.name = "csv", .type = SL_OPT_FLAG, .offset = AT(csv), .help = "print CSV, a line a test"},
    {.name = "compare",
     .type = SL_OPT_FLAG,
     .offset = AT(compare),
     .help = "compare two files that --json wrote"},
};
#undef AT

static uint64_t count_or(const sl_opt_count *count, uint64_t fallback)
{
    return count->set ? count->value : fallback;
}

static const char *text_or(const char *text, const char *fallback)
{
    return text ? text : fallback;
}

/* ---- from options to what is measured ---- */

static sl_status read_limits(const bench_options *options, sl_bench_limits *out, sl_error *err)
{
    *out = (sl_bench_limits){.first = (uint32_t)count_or(&options->first, 512),
                             .n_runs = (uint32_t)count_or(&options->repeat, 5),
                             .n_loads = (uint32_t)count_or(&options->loads, 3)};
    SL_TRY(sl_bench_parse_list("--pp", text_or(options->pp, "128,512,2048"), 1, MAX_TOKENS,
                               &out->prompts, err));
    SL_TRY(
        sl_bench_parse_list("--tg", text_or(options->tg, "128"), 1, MAX_TOKENS, &out->steps, err));
    SL_TRY(sl_bench_parse_list("--depth", text_or(options->depth, "0"), 0, MAX_TOKENS, &out->depths,
                               err));
    return sl_bench_parse_list("--batch", text_or(options->batch, "none"), 1, MAX_BATCH,
                               &out->batches, err);
}

static sl_engine_params engine_params(const bench_options *options)
{
    sl_engine_params params = sl_common_engine_params(&options->common);
    params.checkpoint_budget = 0; /* nothing but the evaluation is measured */
    return params;
}

static sl_synthetic synthetic_model(const bench_options *options)
{
    sl_synthetic model = sl_common_synthetic(&options->common);
    model.n_layers = (uint32_t)options->layers.value;
    model.seed = options->seed.value;
    return model;
}

/* What sl_bench_measure will hold at a time. */
static sl_status measured_use(sl_bench *bench, const sl_bench_limits *limits, sl_measured_use *out,
                              sl_error *err)
{
    sl_bench_test *tests;
    size_t n;
    SL_TRY(sl_bench_tests(limits, &tests, &n, &bench->context, err));
    const size_t n_sequences = sl_bench_sequences(tests, n);
    bool is_deep = false; /* takes one more that keeps the depth, and a fork of that */
    for (size_t i = 0; i < n; i++)
        is_deep = is_deep || tests[i].depth > 0;
    *out = (sl_measured_use){.context = bench->context,
                             .n_states = is_deep ? 3 : 1,
                             .batch_context = sl_bench_context_of(tests, n, 1),
                             .n_batch_states = n_sequences - 1,
                             .n_logits = n_sequences};
    sl_free(tests);
    return SL_OK;
}

static int check_model(const sl_bench *bench, const sl_measured_use *use)
{
    const sl_engine_params *params[SL_BENCH_MAX_ARMS];
    for (size_t a = 0; a < bench->n_arms; a++)
        params[a] = &bench->arms[a].params;
    return sl_measured_fits("bench", &bench->model, params, bench->n_arms, use);
}

/* ---- the command ---- */

static int tell_failure(sl_status status, const sl_error *err)
{
    if (status == SL_ERR_CANCELLED)
        return SL_EXIT_INTERRUPTED;
    if (status == SL_ERR_ARGUMENT)
        return sl_usage_error("bench", "%s", err->message);
    sl_fail_with(err);
    return status == SL_ERR_FORMAT || status == SL_ERR_UNSUPPORTED ? SL_EXIT_MODEL
                                                                   : SL_EXIT_FAILURE;
}

static int report(sl_bench *bench, const bench_options *options)
{
    unsigned most = 0;
    for (size_t a = 0; a < bench->n_arms; a++) {
        sl_model_info info;
        sl_engine_model_info(bench->arms[a].engine, &info);
        most = info.n_threads > most ? info.n_threads : most;
    }
    sl_machine_doubts(&bench->before, &bench->after, most, sl_cpus_usable(), &bench->notes);
    if (options->common.json)
        return sl_bench_json(bench);
    return options->csv ? sl_bench_csv(bench) : sl_bench_table(bench);
}

static int measure(sl_bench *bench, const sl_bench_limits *limits, const bench_options *options)
{
    sl_error err;
    sl_measured_use use;
    if (measured_use(bench, limits, &use, &err) != SL_OK)
        return sl_fail_with(&err);
    sl_machine_look("", &bench->before);
    int exit_status = check_model(bench, &use);
    if (exit_status >= 0)
        return exit_status;
    sl_interrupt_install();
    const sl_status status = sl_bench_measure(bench, limits, &err);
    exit_status = status == SL_OK ? report(bench, options) : tell_failure(status, &err);
    sl_bench_close(bench);
    return exit_status;
}

static bool on_saving(void *context, size_t done, size_t total)
{
    sl_progress_update(context, done >> 20, total >> 20);
    return sl_interrupted();
}

static int save(const bench_options *options)
{
    sl_error err;
    sl_progress progress = {.label = "writing", .unit = "MiB"};
    const sl_synthetic model = synthetic_model(options);
    sl_interrupt_install();
    const sl_status status = sl_synthetic_save(&model, options->save, on_saving, &progress, &err);
    sl_progress_clear(&progress);
    if (status == SL_ERR_CANCELLED)
        return SL_EXIT_INTERRUPTED;
    if (status == SL_ERR_ARGUMENT)
        return sl_usage_error("bench", "%s", err.message);
    return status == SL_OK ? SL_EXIT_DONE : sl_fail_with(&err);
}

static int run_model(const char *path, const bench_options *options)
{
    sl_error err;
    sl_bench_limits limits;
    sl_bench bench = {.model = {.path = path, .synthetic = synthetic_model(options)},
                      .with_ceilings = options->common.ceilings,
                      .time = (int64_t)time(NULL)};
    const sl_engine_params params = engine_params(options);
    if (read_limits(options, &limits, &err) != SL_OK ||
        sl_bench_arms(options->ab.n > 0 ? options->ab.items[0] : NULL, &params, bench.arms,
                      &bench.n_arms, &err) != SL_OK)
        return sl_usage_error("bench", "%s", err.message);
    return measure(&bench, &limits, options);
}

/* What would be left out without a word. Returns -1 or an exit status. */
static int check_together(const bench_options *options, const sl_args *args)
{
    static const char *const of_shape[] = {"save", "layers", "seed"};
    static const char *const for_saving[] = {"save", "shape", "type", "layers", "seed", NULL};
    for (size_t i = 0; !options->common.shape && i < SL_COUNTOF(of_shape); i++) {
        if (sl_args_gave(args, &sl_command_bench, of_shape[i]))
            return sl_usage_error("bench", "--%s goes with --shape", of_shape[i]);
    }
    const char *other = sl_args_other(args, &sl_command_bench, for_saving);
    if (options->save && other)
        return sl_usage_error("bench", "--save measures nothing: --%s does not go with it", other);
    if (options->common.json && options->csv)
        return sl_usage_error("bench", "--json and --csv exclude each other");
    if (options->ab.n > 1)
        return sl_usage_error("bench", "--ab is given twice: one setting can be varied in a run");
    char axis[32] = "";
    if (options->ab.n == 1)
        snprintf(axis, sizeof axis, "%.*s",
                 (int)sl_min_size(strcspn(options->ab.items[0], "="), 31), options->ab.items[0]);
    if (*axis && sl_args_gave(args, &sl_command_bench, axis))
        return sl_usage_error("bench", "--%s: --ab gives its values", axis);
    return -1;
}

static int compare(const sl_args *args)
{
    static const char *const for_comparing[] = {"compare", NULL};
    const char *other = sl_args_other(args, &sl_command_bench, for_comparing);
    if (other)
        return sl_usage_error("bench", "--compare measures nothing: --%s does not go with it",
                              other);
    if (args->n != 2)
        return sl_usage_error("bench", "--compare takes two files");
    return sl_bench_compare(args->items[0], args->items[1]);
}

static int dispatch(const bench_options *options, const sl_args *args)
{
    if (options->compare)
        return compare(args);
    int exit_status = sl_measured_check(&sl_command_bench, &options->common, args);
    if (exit_status < 0)
        exit_status = check_together(options, args);
    if (exit_status < 0)
        exit_status = sl_target_check("bench", "--save", options->save, NULL);
    if (exit_status >= 0)
        return exit_status;
    return options->save ? save(options) : run_model(args->n ? args->items[0] : NULL, options);
}

static int run_bench(int argc, char *const *argv)
{
    sl_args args;
    bench_options options = {.common.ceilings = true};
    int exit_status = sl_opts_parse(&sl_command_bench, argc, argv, &options, &args);
    if (exit_status >= 0)
        return exit_status;
    exit_status = dispatch(&options, &args);
    sl_args_free(&args);
    return exit_status;
}

const sl_command sl_command_bench = {
    .name = "bench",
    .usage = "MODEL | --shape NAME | --compare A.json B.json",
    .summary = "Measures how fast a model runs, beside what the machine can do.",
    .details =
        "Every test gives its median, extremes and quarters over the runs. \"Of the limit\" is the "
        "time that reading the bytes of weights and state at the machine's read bandwidth, or "
        "computing at its int8 and float rates, takes at least, whichever is longer, over the time "
        "measured; the rates are measured in the same run. Arms of --ab take turns.",
    .opts = options_table,
    .n_opts = SL_COUNTOF(options_table),
    .common = SL_TAKES_COMPUTE | SL_TAKES_KV | SL_TAKES_JSON | SL_TAKES_MEASURING,
    .max_args = 2,
    .run = run_bench,
};
