/* `sluice bench`: how fast a model runs here, and how near that is to what the machine can do. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/cpus.h"
#include "bench.h"
#include "commands.h"
#include "common.h"
#include "interrupt.h"
#include "model.h"
#include "out.h"
#include "target.h"

enum { MAX_TOKENS = 1 << 24, MAX_BATCH = 1024, MAX_LOADS = 100 };

typedef struct bench_options {
    sl_common_options common;
    const char *save;
    sl_opt_count layers, seed;
    const char *pp, *tg, *depth, *batch, *ab;
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
     .help = "times that the model is opened (default: 1)"},
    {.name = "ab",
     .type = SL_OPT_TEXT,
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
                             .n_loads = (uint32_t)count_or(&options->loads, 1)};
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

static bool contains(const char *(*name_at)(size_t), const char *name)
{
    for (size_t i = 0; name_at(i); i++) {
        if (strcmp(name_at(i), name) == 0)
            return true;
    }
    return false;
}

/* The names of shape and type, so that a wrong one is wrong usage. Returns -1 or an exit status. */
static int check_names(const bench_options *options)
{
    const sl_synthetic model = synthetic_model(options);
    if (!contains(sl_synthetic_shape_name, model.shape))
        return sl_usage_error("bench", "--shape: there is no shape '%s'", model.shape);
    if (!contains(sl_synthetic_type_name, model.type))
        return sl_usage_error("bench", "--type: there is no type '%s'", model.type);
    return -1;
}

/* ---- memory ---- */

static void print_memory(const char *part, double bytes)
{
    sl_err_printf("  %-30s %10.1f MiB\n", part, bytes / (1 << 20));
}

/* What the run takes: all arms are open at a time. */
static double memory_of(const sl_bench *bench, const sl_bench_limits *limits,
                        const sl_memory_plan *plan)
{
    double states = 2; /* one to measure with, one that keeps the depth */
    for (size_t i = 0; i < limits->batches.n; i++)
        states = limits->batches.items[i] + 1 > states ? limits->batches.items[i] + 1 : states;
    double weights = (double)plan->weights_packed + (double)plan->weights_owned;
    if (!bench->path) { /* random weights are given up as they are rearranged */
        weights += (double)plan->weights_mapped;
        weights = (double)plan->weights > weights ? (double)plan->weights : weights;
    }
    return (double)bench->n_arms *
           (weights + (double)plan->scratch + states * (double)plan->state_fixed +
            2 * (double)plan->state_context);
}

static void print_plan(const sl_bench *bench, const sl_memory_plan *plan, double needed)
{
    sl_err_printf("memory for a context of %u tokens, %zu engine%s at a time\n", bench->context,
                  bench->n_arms, bench->n_arms > 1 ? "s" : "");
    print_memory(bench->path ? "weights in the file" : "weights", (double)plan->weights);
    print_memory("of these not rearranged", (double)plan->weights_mapped);
    print_memory("rearranged weights", (double)plan->weights_packed);
    print_memory("vectors", (double)plan->weights_owned);
    print_memory("a state", (double)plan->state_fixed);
    print_memory("its context", (double)plan->state_context);
    print_memory("scratch", (double)plan->scratch);
    print_memory(bench->path ? "needed beside the file" : "needed", needed);
    if (bench->before.memory > 0)
        print_memory("there is", (double)bench->before.memory);
}

/* Opens the headers: lengths against the model's context, memory against what there is. Returns -1
 * or an exit status. */
static int check_model(sl_bench *bench, const sl_bench_limits *limits, sl_memory_plan *plan)
{
    sl_error err;
    sl_engine *engine = NULL;
    sl_model_info info;
    sl_engine_params params = bench->arms[0].params;
    params.level = SL_OPEN_HEADERS;
    sl_status status = bench->path
                           ? sl_engine_open(bench->path, &params, &engine, &err)
                           : sl_engine_open_synthetic(&bench->synthetic, &params, &engine, &err);
    if (status != SL_OK)
        return sl_model_refused(status, &err);
    sl_engine_model_info(engine, &info);
    if (bench->context > info.context_length) {
        sl_engine_close(engine);
        return sl_usage_error("bench",
                              "lengths and depths come to %u tokens, the model's context is %u",
                              bench->context, info.context_length);
    }
    status = sl_engine_memory_plan(engine, bench->context, plan, &err);
    sl_engine_close(engine);
    if (status != SL_OK)
        return sl_model_refused(status, &err);
    const double needed = memory_of(bench, limits, plan);
    if (bench->before.memory == 0 || needed <= (double)bench->before.memory)
        return -1;
    const int exit_status = sl_failf("there is not enough memory");
    print_plan(bench, plan, needed);
    return exit_status;
}

/* ---- the command ---- */

static int tell_failure(const sl_bench *bench, const sl_bench_limits *limits,
                        const sl_memory_plan *plan, sl_status status, const sl_error *err)
{
    if (status == SL_ERR_CANCELLED)
        return SL_EXIT_INTERRUPTED;
    if (status == SL_ERR_ARGUMENT)
        return sl_usage_error("bench", "%s", err->message);
    sl_fail_with(err);
    if (status == SL_ERR_MEMORY)
        print_plan(bench, plan, memory_of(bench, limits, plan));
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
    sl_memory_plan plan;
    sl_bench_test *tests;
    size_t n_tests;
    if (sl_bench_tests(limits, &tests, &n_tests, &bench->context, &err) != SL_OK)
        return sl_fail_with(&err);
    sl_free(tests);
    sl_machine_look("", &bench->before);
    int exit_status = check_model(bench, limits, &plan);
    if (exit_status >= 0)
        return exit_status;
    sl_interrupt_install();
    const sl_status status = sl_bench_measure(bench, limits, &err);
    exit_status =
        status == SL_OK ? report(bench, options) : tell_failure(bench, limits, &plan, status, &err);
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
    sl_bench bench = {.path = path,
                      .synthetic = synthetic_model(options),
                      .with_ceilings = options->common.ceilings,
                      .time = (int64_t)time(NULL)};
    const sl_engine_params params = engine_params(options);
    if (read_limits(options, &limits, &err) != SL_OK ||
        sl_bench_arms(options->ab, &params, bench.arms, &bench.n_arms, &err) != SL_OK)
        return sl_usage_error("bench", "%s", err.message);
    return measure(&bench, &limits, options);
}

static int dispatch(const bench_options *options, const sl_args *args)
{
    if (options->compare) {
        if (args->n != 2)
            return sl_usage_error("bench", "--compare takes two files");
        return sl_bench_compare(args->items[0], args->items[1]);
    }
    if (args->n + (options->common.shape != NULL) != 1)
        return sl_usage_error("bench", "either a MODEL or --shape is needed");
    if (options->common.json && options->csv)
        return sl_usage_error("bench", "--json and --csv exclude each other");
    if (!options->common.shape && (options->save || options->common.type || options->layers.set))
        return sl_usage_error("bench", "--save, --type and --layers belong to --shape");
    int exit_status = options->common.shape ? check_names(options) : -1;
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
