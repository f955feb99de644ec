/* `sluice doctor`: what this machine is to sluice, and what stands in the way of more. */
#include <string.h>
#include <time.h>

#include "base/pool.h"
#include "base/utf8.h"
#include "ceilings.h"
#include "circumstances.h"
#include "commands.h"
#include "common.h"
#include "doctor_facts.h"
#include "model.h"
#include "out.h"

typedef struct doctor_options {
    sl_common_options common;
    sl_opt_count threads;
    bool measure;
} doctor_options;

#define AT(member) offsetof(doctor_options, member)
static const sl_opt options_table[] = {
    {.name = "threads",
     .letter = 't',
     .type = SL_OPT_COUNT,
     .offset = AT(threads),
     .value_name = "N",
     .min = 1,
     .max = SL_POOL_MAX_THREADS,
     .help = "measure with N threads (default: one per core)"},
    {.name = "isa",
     .type = SL_OPT_TEXT,
     .offset = AT(common.isa),
     .value_name = "LEVEL",
     .help = "the highest instruction-set level to use (default: the best there is)"},
    {.name = "measure",
     .type = SL_OPT_FLAG,
     .offset = AT(measure),
     .help = "measure bandwidth and arithmetic, 2 seconds (default; --measure=off)"},
};
#undef AT

enum { DEFAULT_CONTEXT = 4096, MAX_TEXT = 1 << 20 };

typedef struct checkup {
    sl_doctor_facts facts;
    const sl_doctor_model *model; /* or NULL */
    const sl_ceilings *ceilings;  /* or NULL */
    sl_advice_list advice;
} checkup;

static double mib(uint64_t bytes)
{
    return (double)bytes / (1 << 20);
}

/* A step of decoding reads the weights that it uses once, and the state: the limit of `bench`. */
static double most_tokens(const checkup *c)
{
    const double bytes = c->model->step.weight_bytes + c->model->step.state_bytes;
    return bytes > 0 ? sl_ceilings_read_gbs(c->ceilings) * 1e9 / bytes : 0;
}

/* The instructions that kernels are written for. */
typedef struct feature {
    const char *name;
    bool usable;
} feature;

enum { N_FEATURES = 13 };

static void list_features(const sl_cpuid *cpu, feature out[N_FEATURES])
{
    const feature all[N_FEATURES] = {
        {"avx2", cpu->avx2},         {"fma", cpu->fma},           {"f16c", cpu->f16c},
        {"avxvnni", cpu->avxvnni},   {"avx512f", cpu->avx512f},   {"avx512bw", cpu->avx512bw},
        {"avx512dq", cpu->avx512dq}, {"avx512vl", cpu->avx512vl}, {"avx512vnni", cpu->avx512vnni},
        {"amx_int8", cpu->amx_int8}, {"neon", cpu->neon},         {"dotprod", cpu->dotprod},
        {"i8mm", cpu->i8mm},
    };
    for (size_t i = 0; i < N_FEATURES; i++)
        out[i] = all[i];
}

static const char *level_of(const sl_doctor_facts *facts)
{
    return facts->capped ? facts->capped : facts->level;
}

/* ---- text ---- */

static sl_status append_processor(const sl_doctor_facts *facts, sl_buf *out, sl_error *err)
{
    feature features[N_FEATURES];
    const char *missing = sl_doctor_missing(facts);
    SL_TRY(sl_buf_printf(out, err, "processor     %s%s\ninstructions ",
                         facts->cpu_name[0] != '\0' ? facts->cpu_name : "unknown",
                         facts->cpu.hypervisor ? ", in a virtual machine" : ""));
    list_features(&facts->cpu, features);
    for (size_t i = 0; i < N_FEATURES; i++) {
        if (features[i].usable)
            SL_TRY(sl_buf_printf(out, err, " %s", features[i].name));
    }
    SL_TRY(sl_buf_printf(out, err, "\nkernels       %s", level_of(facts)));
    if (facts->capped)
        SL_TRY(sl_buf_printf(out, err, ", as --isa asks; without it %s", facts->level));
    else if (missing[0] != '\0')
        SL_TRY(sl_buf_printf(out, err, "; the next level needs %s", missing));
    SL_TRY(sl_buf_printf(out, err,
                         "\nthreads       %u by default; %u processors, %u cores, %u memory "
                         "node%s, %u allowed",
                         facts->n_usable, facts->n_online, facts->n_cores, facts->n_nodes,
                         facts->n_nodes == 1 ? "" : "s", facts->n_allowed));
    if (facts->quota > 0)
        SL_TRY(sl_buf_printf(out, err, ", quota of %u", facts->quota));
    SL_TRY(sl_buf_printf(out, err, "\nclock         governor %s, turbo %s",
                         facts->governor[0] != '\0' ? facts->governor : "not told",
                         facts->turbo < 0 ? "not told"
                         : facts->turbo   ? "on"
                                          : "off"));
    if (facts->load >= 0)
        SL_TRY(sl_buf_printf(out, err, "\nload          %.2f", facts->load));
    if (facts->steal >= 0)
        SL_TRY(sl_buf_printf(out, err, ", %.1f %% of the time went to other guests",
                             100 * facts->steal));
    return sl_buf_append_char(out, '\n', err);
}

static sl_status append_memory(const sl_doctor_facts *facts, sl_buf *out, sl_error *err)
{
    const sl_hostmem *memory = &facts->memory;
    SL_TRY(sl_buf_printf(out, err, "memory        %.0f MiB, %.0f available", mib(memory->total),
                         mib(memory->available)));
    if (memory->limit > 0)
        SL_TRY(sl_buf_printf(out, err, ", limit of %.0f", mib(memory->limit)));
    if (memory->left < UINT64_MAX)
        SL_TRY(sl_buf_printf(out, err, "; %.0f can be had", mib(memory->left)));
    return sl_buf_printf(out, err, "; huge pages: %s\n",
                         facts->huge_pages[0] != '\0' ? facts->huge_pages : "not told");
}

static sl_status append_ceilings(const sl_ceilings *ceilings, sl_buf *out, sl_error *err)
{
    if (!ceilings)
        return SL_OK;
    SL_TRY(sl_buf_printf(out, err, "measured      %u thread%s: ", ceilings->n_threads,
                         ceilings->n_threads == 1 ? "" : "s"));
    SL_TRY(sl_ceilings_append(ceilings, "", out, err));
    return sl_buf_append_char(out, '\n', err);
}

static sl_status append_model(const checkup *c, sl_buf *out, sl_error *err)
{
    const sl_doctor_model *model = c->model;
    if (!model)
        return SL_OK;
    const uint64_t weights = sl_doctor_weights(&model->plan);
    const char *path = model->info.path;
    char shown[SL_SHOWN_BYTES];
    SL_TRY(sl_buf_printf(out, err,
                         "model         %s: %.0f MiB of weights in memory, %.0f MiB mapped, and "
                         "%.0f MiB for a context of %u tokens\n",
                         sl_utf8_show(path, strlen(path), shown, sizeof shown), mib(weights),
                         mib(model->plan.weights_mapped),
                         mib(sl_doctor_must_have(&model->plan) - weights), model->context));
    if (!c->ceilings)
        return SL_OK;
    return sl_buf_printf(out, err,
                         "              reading weights and state from memory allows %.1f "
                         "tokens/s of decoding\n",
                         most_tokens(c));
}

static sl_status append_gpu(const sl_doctor_facts *facts, sl_buf *out, sl_error *err)
{
    const sl_device_info *gpu = &facts->gpu;
    if (gpu->name[0] != '\0')
        return sl_buf_printf(
            out, err,
            "GPU           %s, compute capability %d.%d, %d multiprocessors, %.1f of %.1f GiB "
            "free: --device cuda:0\n",
            gpu->name, gpu->capability_major, gpu->capability_minor, gpu->n_multiprocessors,
            mib(gpu->memory_free) / 1024, mib(gpu->memory_total) / 1024);
    return sl_buf_printf(out, err, "GPU           %s\n",
                         facts->has_nvidia_device && facts->has_cuda_library ? facts->no_gpu.message
                         : facts->has_nvidia_device ? "NVIDIA device without a driver library"
                         : facts->has_cuda_library  ? "CUDA driver library without a device"
                                                    : "none");
}

static sl_status append_page(const checkup *c, sl_buf *out, sl_error *err)
{
    const sl_doctor_facts *facts = &c->facts;
    SL_TRY(sl_buf_printf(out, err, "sluice        %s\n", sl_version()));
    SL_TRY(append_processor(facts, out, err));
    SL_TRY(append_memory(facts, out, err));
    SL_TRY(append_gpu(facts, out, err));
    SL_TRY(append_ceilings(c->ceilings, out, err));
    SL_TRY(append_model(c, out, err));
    SL_TRY(sl_buf_append_char(out, '\n', err));
    for (size_t i = 0; i < c->advice.n; i++)
        SL_TRY(sl_buf_printf(out, err, "%s: %s\n", c->advice.items[i].fatal ? "problem" : "advice",
                             c->advice.items[i].text));
    if (!sl_doctor_can_run(&c->advice))
        return sl_buf_append_str(out, "It cannot run like this.\n", err);
    return sl_buf_append_str(
        out, c->advice.n == 0 ? "Nothing stands in the way.\n" : "It runs, and could do better.\n",
        err);
}

/* ---- JSON ---- */

static void write_processor(const sl_doctor_facts *facts, sl_json_out *json)
{
    feature features[N_FEATURES];
    list_features(&facts->cpu, features);
    sl_json_open(json, "cpu", '{');
    sl_json_text(json, "name", facts->cpu_name, strlen(facts->cpu_name));
    sl_json_bool(json, "virtual_machine", facts->cpu.hypervisor);
    sl_json_string(json, "level", level_of(facts));
    sl_json_string(json, "next_level_needs", sl_doctor_missing(facts));
    sl_json_open(json, "instructions", '[');
    for (size_t i = 0; i < N_FEATURES; i++) {
        if (features[i].usable)
            sl_json_string(json, NULL, features[i].name);
    }
    sl_json_close(json, ']');
    sl_json_open(json, "enabled_by_system", '{');
    sl_json_bool(json, "avx", facts->cpu.os_avx);
    sl_json_bool(json, "avx512", facts->cpu.os_avx512);
    sl_json_bool(json, "amx", facts->cpu.os_amx && !facts->amx_refused);
    sl_json_close(json, '}');
    sl_json_uint(json, "online", facts->n_online);
    sl_json_uint(json, "cores", facts->n_cores);
    sl_json_uint(json, "nodes", facts->n_nodes);
    sl_json_uint(json, "allowed", facts->n_allowed);
    sl_json_uint(json, "quota", facts->quota);
    sl_json_uint(json, "usable", facts->n_usable);
    sl_json_text(json, "governor", facts->governor, strlen(facts->governor));
    if (facts->turbo < 0)
        sl_json_null(json, "turbo");
    else
        sl_json_bool(json, "turbo", facts->turbo == 1);
    sl_json_double(json, "load", facts->load);
    sl_json_double(json, "steal", facts->steal);
    sl_json_close(json, '}');
}

static void write_memory(const sl_doctor_facts *facts, sl_json_out *json)
{
    sl_json_open(json, "memory", '{');
    sl_json_uint(json, "total", facts->memory.total);
    sl_json_uint(json, "available", facts->memory.available);
    sl_json_uint(json, "limit", facts->memory.limit);
    if (facts->memory.left < UINT64_MAX)
        sl_json_uint(json, "left", facts->memory.left);
    else
        sl_json_null(json, "left");
    sl_json_text(json, "huge_pages", facts->huge_pages, strlen(facts->huge_pages));
    sl_json_close(json, '}');
}

static void write_model(const checkup *c, sl_json_out *json)
{
    const sl_doctor_model *model = c->model;
    if (!model) {
        sl_json_null(json, "model");
        return;
    }
    sl_json_open(json, "model", '{');
    sl_json_text(json, "path", model->info.path, strlen(model->info.path));
    sl_json_uint(json, "context", model->context);
    sl_json_uint(json, "weight_bytes", sl_doctor_weights(&model->plan));
    sl_json_uint(json, "mapped_bytes", model->plan.weights_mapped);
    sl_json_uint(json, "needed_bytes", sl_doctor_must_have(&model->plan));
    if (c->ceilings)
        sl_json_double(json, "most_tokens_per_s", most_tokens(c));
    sl_json_close(json, '}');
}

static int print_json(const checkup *c)
{
    sl_json_out json;
    sl_json_out_init(&json);
    sl_json_open(&json, NULL, '{');
    sl_json_program(&json, "sluice doctor", (int64_t)time(NULL));
    write_processor(&c->facts, &json);
    write_memory(&c->facts, &json);
    sl_json_open(&json, "gpu", '{');
    sl_json_bool(&json, "nvidia_device", c->facts.has_nvidia_device);
    sl_json_bool(&json, "cuda_library", c->facts.has_cuda_library);
    if (c->facts.gpu.name[0] != '\0') {
        sl_json_string(&json, "name", c->facts.gpu.name);
        sl_json_uint(&json, "memory_bytes", c->facts.gpu.memory_total);
        sl_json_uint(&json, "memory_free_bytes", c->facts.gpu.memory_free);
    }
    sl_json_close(&json, '}');
    sl_json_ceilings(&json, "ceilings", c->ceilings);
    write_model(c, &json);
    sl_json_open(&json, "advice", '[');
    for (size_t i = 0; i < c->advice.n; i++) {
        sl_json_open(&json, NULL, '{');
        sl_json_bool(&json, "fatal", c->advice.items[i].fatal);
        sl_json_string(&json, "text", c->advice.items[i].text);
        sl_json_close(&json, '}');
    }
    sl_json_close(&json, ']');
    sl_json_bool(&json, "can_run", sl_doctor_can_run(&c->advice));
    sl_json_close(&json, '}');
    return sl_json_finish(&json);
}

/* ---- the command ---- */

/* Returns -1, or an exit status after telling what was wrong. */
static int look_at_model(const doctor_options *options, const char *path, sl_engine **engine,
                         sl_doctor_model *model)
{
    sl_error err;
    sl_engine_params params = sl_common_engine_params(&options->common);
    params.level = SL_OPEN_HEADERS;
    const int exit_status = sl_model_open(path, &params, engine);
    if (exit_status >= 0)
        return exit_status;
    sl_engine_model_info(*engine, &model->info);
    if (sl_common_context(&options->common, *engine, DEFAULT_CONTEXT, &model->context, &err) !=
        SL_OK)
        return sl_usage_error("doctor", "%s", err.message);
    const sl_run_shape step = {.n_sequences = 1, .n_rows = 1, .n_logits = 1};
    sl_status status = sl_engine_memory_plan(*engine, model->context, &model->plan, &err);
    if (status == SL_OK)
        status = sl_engine_run_cost(*engine, &step, &model->step, &err);
    return status == SL_OK ? -1 : sl_model_refused(status, &err);
}

static int examine(const doctor_options *options, const sl_doctor_model *model)
{
    sl_error err;
    sl_ceilings ceilings;
    checkup c = {.model = model};
    sl_doctor_read("", &c.facts);
    sl_doctor_ask(&c.facts);
    const char *level = c.facts.level;
    if (sl_cpu_level(options->common.isa, &level, &err) == SL_OK && level != c.facts.level)
        c.facts.capped = level;
    sl_doctor_advise(&c.facts, model, &c.advice);
    /* Not where it would take the last memory. */
    if (options->measure && sl_doctor_can_run(&c.advice)) {
        if (sl_measure_ceilings((unsigned)options->threads.value, &ceilings, &err) == SL_OK)
            c.ceilings = &ceilings;
        else
            sl_doctor_add_failure(&c.advice, &err);
    }
    int exit_status;
    if (options->common.json) {
        exit_status = print_json(&c);
    } else {
        sl_buf page;
        sl_buf_init(&page, SL_MEM_GENERAL, MAX_TEXT);
        const sl_status status = append_page(&c, &page, &err);
        exit_status = sl_out_finish(&page, status, &err);
    }
    return exit_status == SL_EXIT_DONE && !sl_doctor_can_run(&c.advice) ? SL_EXIT_FAILURE
                                                                        : exit_status;
}

static int run_doctor(int argc, char *const *argv)
{
    sl_args args;
    doctor_options options = {.measure = true};
    int exit_status = sl_opts_parse(&sl_command_doctor, argc, argv, &options, &args);
    if (exit_status >= 0)
        return exit_status;
    sl_error err;
    const char *level;
    sl_engine *engine = NULL;
    sl_doctor_model model = {0};
    if (sl_cpu_level(options.common.isa, &level, &err) != SL_OK)
        exit_status = sl_usage_error("doctor", "--isa: %s", err.message);
    else if (args.n > 0)
        exit_status = look_at_model(&options, args.items[0], &engine, &model);
    else if (options.common.ctx.set)
        exit_status = sl_usage_error("doctor", "--ctx goes with a MODEL");
    if (exit_status < 0)
        exit_status = examine(&options, args.n > 0 ? &model : NULL);
    sl_engine_close(engine);
    sl_args_free(&args);
    return exit_status;
}

const sl_command sl_command_doctor = {
    .name = "doctor",
    .usage = "[MODEL]",
    .summary = "Looks at this machine and says what stands in the way of more speed.",
    .details = "Tells which kernels are chosen and why, processors and limits, memory, huge "
               "pages, and what the machine reads and computes in a second; with a MODEL also "
               "whether it fits. One line of advice for every problem found. The exit status is "
               "0 also when there is advice, and 1 when nothing can run.",
    .common = SL_TAKES_CONTEXT | SL_TAKES_KV | SL_TAKES_JSON,
    .opts = options_table,
    .n_opts = SL_COUNTOF(options_table),
    .max_args = 1,
    .run = run_doctor,
};
