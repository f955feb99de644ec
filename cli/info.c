/* `sluice info`: what a model file holds, and what running it will take. */
#include "base/json.h"
#include "commands.h"
#include "common.h"
#include "model.h"
#include "out.h"

typedef struct info_options {
    sl_common_options common;
    bool tensors;
} info_options;

#define AT(member) offsetof(info_options, member)
static const sl_opt options_table[] = {
    {.name = "tensors", .type = SL_OPT_FLAG, .offset = AT(tensors), .help = "list every tensor"},
};
#undef AT

enum { DEFAULT_CONTEXT = 4096 };

/* ---- text ---- */

static double mib(const json_t *bytes)
{
    return (double)json_integer_value(bytes) / (1 << 20);
}

static sl_status append_heading(sl_buf *out, const char *heading, sl_error *err)
{
    return sl_buf_printf(out, err, "\n%s\n", heading);
}

static sl_status append_metadata(json_t *info, sl_buf *out, sl_error *err)
{
    json_t *metadata = json_object_get(info, "metadata");
    const char *key;
    json_t *value;
    SL_TRY(append_heading(out, "metadata", err));
    json_object_foreach(metadata, key, value)
    {
        SL_TRY(sl_buf_printf(out, err, "  %-44s %s\n", key, json_string_value(value)));
    }
    return SL_OK;
}

static sl_status append_types(json_t *info, sl_buf *out, sl_error *err)
{
    const char *name;
    json_t *type;
    SL_TRY(append_heading(out, "tensors by type", err));
    json_object_foreach(json_object_get(info, "types"), name, type)
    {
        SL_TRY(sl_buf_printf(out, err, "  %-8s %6lld tensors %12.1f MiB\n", name,
                             (long long)json_integer_value(json_object_get(type, "tensors")),
                             mib(json_object_get(type, "bytes"))));
    }
    return SL_OK;
}

static sl_status append_tensors(const json_t *info, sl_buf *out, sl_error *err)
{
    const json_t *tensors = json_object_get(info, "tensors");
    if (!tensors)
        return SL_OK;
    SL_TRY(append_heading(out, "tensors", err));
    for (size_t i = 0; i < json_array_size(tensors); i++) {
        const json_t *tensor = json_array_get(tensors, i), *ne = json_object_get(tensor, "ne");
        SL_TRY(sl_buf_printf(out, err, "  %-60s %-6s",
                             json_string_value(json_object_get(tensor, "name")),
                             json_string_value(json_object_get(tensor, "type"))));
        for (size_t d = 0; d < json_array_size(ne); d++)
            SL_TRY(sl_buf_printf(out, err, " %lld",
                                 (long long)json_integer_value(json_array_get(ne, d))));
        SL_TRY(sl_buf_append_char(out, '\n', err));
    }
    return SL_OK;
}

static sl_status append_memory(json_t *info, sl_buf *out, sl_error *err)
{
    const char *name;
    json_t *bytes;
    double total = 0;
    SL_TRY(sl_buf_printf(out, err, "\nmemory for a context of %lld tokens\n",
                         (long long)json_integer_value(json_object_get(info, "context"))));
    json_object_foreach(json_object_get(info, "memory"), name, bytes)
    {
        total += mib(bytes);
        SL_TRY(sl_buf_printf(out, err, "  %-20s %12.1f MiB\n", name, mib(bytes)));
    }
    return sl_buf_printf(out, err, "  %-20s %12.1f MiB\n", "total", total);
}

static sl_status append_page(json_t *info, sl_buf *out, sl_error *err)
{
    const char *name;
    json_t *value;
    SL_TRY(sl_buf_printf(out, err, "%s\n", json_string_value(json_object_get(info, "path"))));
    SL_TRY(sl_buf_printf(out, err, "  %-20s %12s\n  %-20s %12s\n  %-20s %12.1f M\n", "container",
                         json_string_value(json_object_get(info, "container")), "architecture",
                         json_string_value(json_object_get(info, "architecture")), "parameters",
                         (double)json_integer_value(json_object_get(info, "parameters")) / 1e6));
    json_object_foreach(json_object_get(info, "config"), name, value)
    {
        SL_TRY(sl_buf_printf(out, err, "  %-20s %12lld\n", name,
                             (long long)json_integer_value(value)));
    }
    SL_TRY(append_metadata(info, out, err));
    SL_TRY(append_types(info, out, err));
    SL_TRY(append_tensors(info, out, err));
    return append_memory(info, out, err);
}

/* ---- the command ---- */

static int print_json(const char *text, size_t n)
{
    return sl_out_write(text, n) && sl_out_write("\n", 1) ? SL_EXIT_DONE : SL_EXIT_FAILURE;
}

static int print_page(const char *text, size_t n)
{
    json_t *info;
    sl_buf out;
    sl_error err;
    if (sl_json_parse(text, n, "info", sl_json_limits_default(), &info, &err) != SL_OK)
        return sl_fail_with(&err);
    sl_buf_init(&out, SL_MEM_GENERAL, (size_t)1 << 30);
    const sl_status status = append_page(info, &out, &err);
    json_decref(info);
    return sl_out_finish(&out, status, &err);
}

static int show(const info_options *options, const sl_engine *engine)
{
    sl_error err;
    uint32_t context;
    if (sl_common_context(&options->common, engine, DEFAULT_CONTEXT, &context, &err) != SL_OK)
        return sl_fail_with(&err);
    char *text;
    size_t n;
    const sl_status status = sl_engine_info_json(
        engine, context, options->tensors ? SL_INFO_TENSORS : 0, &text, &n, &err);
    if (status != SL_OK)
        return sl_model_refused(status, &err);
    const int exit_status = options->common.json ? print_json(text, n) : print_page(text, n);
    sl_free(text);
    return exit_status;
}

static int run_info(int argc, char *const *argv)
{
    sl_args args;
    info_options options = {0};
    int exit_status = sl_opts_parse(&sl_command_info, argc, argv, &options, &args);
    if (exit_status >= 0)
        return exit_status;
    sl_engine *engine;
    sl_engine_params params = sl_common_engine_params(&options.common);
    params.level = SL_OPEN_HEADERS;
    exit_status = sl_model_open(args.items[0], &params, &engine);
    if (exit_status < 0)
        exit_status = show(&options, engine);
    sl_engine_close(engine);
    sl_args_free(&args);
    return exit_status;
}

const sl_command sl_command_info = {
    .name = "info",
    .usage = "MODEL",
    .summary = "Shows what a model file holds and the memory it will take.",
    .details = "Reads the headers only; the weights are not loaded. Without --ctx the memory is "
               "that of a context of 4096 tokens, or of the model's if that is smaller.",
    .opts = options_table,
    .n_opts = SL_COUNTOF(options_table),
    .common = SL_TAKES_CONTEXT | SL_TAKES_KV | SL_TAKES_JSON,
    .min_args = 1,
    .max_args = 1,
    .run = run_info,
};
