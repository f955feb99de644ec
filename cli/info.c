/* `sluice info`: what a model file holds, and what running it will take. */
#include <string.h>

#include "base/utf8.h"
#include "commands.h"
#include "engine/engine.h"
#include "model.h"
#include "out.h"

typedef struct info_options {
    sl_opt_count ctx;
    int kv; /* 0 f16, 1 f32 */
    bool tensors, json;
} info_options;

#define AT(member) offsetof(info_options, member)
static const sl_opt options_table[] = {
    {.name = "ctx",
     .letter = 'c',
     .type = SL_OPT_COUNT,
     .offset = AT(ctx),
     .value_name = "N",
     .min = 1,
     .max = UINT32_MAX,
     .help = "plan the memory for a context of N tokens (default: 4096, at most the model's)"},
    {.name = "kv",
     .type = SL_OPT_CHOICE,
     .offset = AT(kv),
     .value_name = "f16|f32",
     .help = "number format of the attention cache (default: f16)"},
    {.name = "tensors", .type = SL_OPT_FLAG, .offset = AT(tensors), .help = "list every tensor"},
    {.name = "json", .type = SL_OPT_FLAG, .offset = AT(json), .help = "print a JSON object"},
};
#undef AT

enum { DEFAULT_CONTEXT = 4096, DESCRIPTION_BYTES = 160, NAME_BYTES = 256 };

/* A name from the file, fit to be shown: valid UTF-8, no control characters, cut when long. */
static const char *shown(sl_str name, char text[NAME_BYTES])
{
    size_t n = 0;
    for (size_t i = 0; i < name.n_bytes && n + 4 < NAME_BYTES;) {
        uint32_t code;
        i += sl_utf8_decode(name.data + i, name.n_bytes - i, &code);
        const bool control = code < 0x20 || (code >= 0x7F && code < 0xA0);
        n += sl_utf8_encode(control ? SL_UTF8_REPLACEMENT : code, text + n);
    }
    text[n] = '\0';
    return text;
}

typedef struct info_page {
    const info_options *options;
    const sl_weights *weights;
    const sl_config *config;
    uint32_t context;
    sl_memory_plan memory;
    /* tensors by type */
    size_t n_of_type[SL_DTYPE_COUNT], bytes_of_type[SL_DTYPE_COUNT];
} info_page;

static const char *container_name(const info_page *page)
{
    return sl_weights_container(page->weights) == SL_CONTAINER_GGUF ? "gguf" : "safetensors";
}

/* The few numbers that tell a model's size, in the order of both outputs. */
typedef struct info_number {
    const char *name;
    uint64_t value;
} info_number;

enum { MAX_NUMBERS = 24 };

static size_t config_numbers(const sl_config *config, info_number out[MAX_NUMBERS])
{
    const info_number numbers[] = {
        {"layers", config->n_layers},
        {"gdn_layers", config->n_gdn_layers},
        {"attention_layers", config->n_attention_layers},
        {"mtp_layers", config->n_mtp},
        {"hidden", config->hidden},
        {"vocab", config->vocab},
        {"context_length", config->context_length},
        {"attention_heads", config->n_heads},
        {"kv_heads", config->n_kv_heads},
        {"head_dim", config->head_dim},
        {"rope_dim", config->rope_dim},
        {"gdn_key_heads", config->gdn_key_heads},
        {"gdn_value_heads", config->gdn_value_heads},
        {"gdn_dim", config->gdn_dim},
        {"ffn", config->ffn},
        {"experts", config->n_experts},
        {"experts_used", config->top_k},
        {"expert_ffn", config->expert_ffn},
        {"shared_ffn", config->shared_ffn},
    };
    size_t n = 0;
    for (size_t i = 0; i < SL_COUNTOF(numbers); i++) {
        if (numbers[i].value > 0)
            out[n++] = numbers[i];
    }
    return n;
}

static size_t memory_numbers(const sl_memory_plan *memory, info_number out[MAX_NUMBERS])
{
    const info_number numbers[] = {
        {"weights_mapped", memory->weights},  {"weights_owned", memory->weights_owned},
        {"state_fixed", memory->state_fixed}, {"state_context", memory->state_context},
        {"scratch", memory->scratch},
    };
    memcpy(out, numbers, sizeof numbers);
    return SL_COUNTOF(numbers);
}

static uint64_t sum(const info_number *numbers, size_t n)
{
    uint64_t total = 0;
    for (size_t i = 0; i < n; i++)
        total += numbers[i].value;
    return total;
}

/* ---- text ---- */

static sl_status append_heading(sl_buf *out, const char *heading, sl_error *err)
{
    return sl_buf_printf(out, err, "\n%s\n", heading);
}

static sl_status append_metadata(const info_page *page, sl_buf *out, sl_error *err)
{
    const sl_gguf *gguf = sl_weights_gguf(page->weights);
    if (!gguf)
        return SL_OK;
    SL_TRY(append_heading(out, "metadata", err));
    for (size_t i = 0; i < sl_gguf_key_count(gguf); i++) {
        char text[DESCRIPTION_BYTES], name[NAME_BYTES];
        SL_TRY(sl_gguf_describe(gguf, i, text, sizeof text));
        SL_TRY(sl_buf_printf(out, err, "  %-44s %s\n", shown(sl_gguf_key_at(gguf, i), name), text));
    }
    return SL_OK;
}

static sl_status append_types(const info_page *page, sl_buf *out, sl_error *err)
{
    SL_TRY(append_heading(out, "tensors by type", err));
    for (size_t type = 0; type < SL_DTYPE_COUNT; type++) {
        if (page->n_of_type[type] == 0)
            continue;
        SL_TRY(sl_buf_printf(out, err, "  %-8s %6zu tensors %12.1f MiB\n",
                             sl_dtype_get((sl_dtype)type)->name, page->n_of_type[type],
                             (double)page->bytes_of_type[type] / (1 << 20)));
    }
    return SL_OK;
}

static sl_status append_tensors(const info_page *page, sl_buf *out, sl_error *err)
{
    SL_TRY(append_heading(out, "tensors", err));
    for (size_t i = 0; i < sl_weights_count(page->weights); i++) {
        char name[NAME_BYTES];
        const sl_tensor *tensor = sl_weights_at(page->weights, i);
        SL_TRY(sl_buf_printf(out, err, "  %-60s %-6s", shown(sl_str_of(tensor->name), name),
                             sl_dtype_get(tensor->dtype)->name));
        for (uint32_t d = 0; d < tensor->n_dims; d++)
            SL_TRY(sl_buf_printf(out, err, " %llu", (unsigned long long)tensor->ne[d]));
        SL_TRY(sl_buf_append_char(out, '\n', err));
    }
    return SL_OK;
}

static sl_status append_memory(const info_page *page, sl_buf *out, sl_error *err)
{
    info_number numbers[MAX_NUMBERS];
    const size_t n = memory_numbers(&page->memory, numbers);
    SL_TRY(sl_buf_printf(out, err, "\nmemory for a context of %u tokens\n", page->context));
    for (size_t i = 0; i < n; i++)
        SL_TRY(sl_buf_printf(out, err, "  %-20s %12.1f MiB\n", numbers[i].name,
                             (double)numbers[i].value / (1 << 20)));
    return sl_buf_printf(out, err, "  %-20s %12.1f MiB\n", "total",
                         (double)sum(numbers, n) / (1 << 20));
}

static sl_status append_page(const info_page *page, sl_buf *out, sl_error *err)
{
    info_number numbers[MAX_NUMBERS];
    const size_t n = config_numbers(page->config, numbers);
    SL_TRY(sl_buf_printf(out, err, "%s\n", sl_weights_path(page->weights)));
    SL_TRY(sl_buf_printf(out, err, "  %-20s %12s\n  %-20s %12s\n  %-20s %12.1f M\n", "container",
                         container_name(page), "architecture", sl_arch_name(page->config->arch),
                         "parameters", (double)sl_model_parameters(page->weights) / 1e6));
    for (size_t i = 0; i < n; i++)
        SL_TRY(sl_buf_printf(out, err, "  %-20s %12llu\n", numbers[i].name,
                             (unsigned long long)numbers[i].value));
    SL_TRY(append_metadata(page, out, err));
    SL_TRY(append_types(page, out, err));
    if (page->options->tensors)
        SL_TRY(append_tensors(page, out, err));
    return append_memory(page, out, err);
}

/* ---- JSON ---- */

static void json_numbers(sl_json_out *json, const char *key, const info_number *numbers, size_t n)
{
    sl_json_open(json, key, '{');
    for (size_t i = 0; i < n; i++)
        sl_json_uint(json, numbers[i].name, numbers[i].value);
    sl_json_close(json, '}');
}

static void json_metadata(const info_page *page, sl_json_out *json)
{
    const sl_gguf *gguf = sl_weights_gguf(page->weights);
    if (!gguf)
        return;
    sl_json_open(json, "metadata", '{');
    for (size_t i = 0; i < sl_gguf_key_count(gguf) && json->status == SL_OK; i++) {
        char text[DESCRIPTION_BYTES], name[NAME_BYTES];
        json->status = sl_gguf_describe(gguf, i, text, sizeof text);
        sl_json_string(json, shown(sl_gguf_key_at(gguf, i), name), text);
    }
    sl_json_close(json, '}');
}

static void json_tensors(const info_page *page, sl_json_out *json)
{
    sl_json_open(json, "tensors", '[');
    for (size_t i = 0; i < sl_weights_count(page->weights); i++) {
        char name[NAME_BYTES];
        const sl_tensor *tensor = sl_weights_at(page->weights, i);
        sl_json_open(json, NULL, '{');
        sl_json_string(json, "name", shown(sl_str_of(tensor->name), name));
        sl_json_string(json, "type", sl_dtype_get(tensor->dtype)->name);
        sl_json_open(json, "ne", '[');
        for (uint32_t d = 0; d < tensor->n_dims; d++)
            sl_json_uint(json, NULL, tensor->ne[d]);
        sl_json_close(json, ']');
        sl_json_uint(json, "bytes", tensor->n_bytes);
        sl_json_close(json, '}');
    }
    sl_json_close(json, ']');
}

static int print_json(const info_page *page)
{
    sl_json_out json;
    info_number numbers[MAX_NUMBERS];
    sl_json_out_init(&json);
    sl_json_open(&json, NULL, '{');
    sl_json_string(&json, "path", sl_weights_path(page->weights));
    sl_json_string(&json, "container", container_name(page));
    sl_json_string(&json, "architecture", sl_arch_name(page->config->arch));
    sl_json_uint(&json, "parameters", sl_model_parameters(page->weights));
    json_numbers(&json, "config", numbers, config_numbers(page->config, numbers));
    json_metadata(page, &json);
    sl_json_open(&json, "types", '{');
    for (size_t type = 0; type < SL_DTYPE_COUNT; type++) {
        if (page->n_of_type[type] == 0)
            continue;
        sl_json_open(&json, sl_dtype_get((sl_dtype)type)->name, '{');
        sl_json_uint(&json, "tensors", page->n_of_type[type]);
        sl_json_uint(&json, "bytes", page->bytes_of_type[type]);
        sl_json_close(&json, '}');
    }
    sl_json_close(&json, '}');
    if (page->options->tensors)
        json_tensors(page, &json);
    sl_json_uint(&json, "context", page->context);
    json_numbers(&json, "memory", numbers, memory_numbers(&page->memory, numbers));
    sl_json_close(&json, '}');
    if (json.status == SL_OK)
        json.status = sl_weights_check(page->weights, &json.err);
    return sl_json_finish(&json);
}

/* ---- the command ---- */

static int show(const info_options *options, const sl_model_file *model)
{
    sl_error err;
    info_page page = {.options = options, .weights = model->weights, .config = &model->config};
    const uint64_t wanted = options->ctx.set ? options->ctx.value : DEFAULT_CONTEXT;
    const uint32_t limit = model->config.context_length;
    if (options->ctx.set && wanted > limit)
        return sl_failf("--ctx %llu: the model's context is %u tokens", (unsigned long long)wanted,
                        limit);
    page.context = wanted < limit ? (uint32_t)wanted : limit;
    sl_engine_params params = sl_engine_params_default();
    params.kv_f32 = options->kv == 1;
    const sl_status status = sl_memory_plan_compute(model->weights, &model->config, &params,
                                                    page.context, &page.memory, &err);
    if (status != SL_OK)
        return sl_model_refused(status, &err);
    for (size_t i = 0; i < sl_weights_count(model->weights); i++) {
        const sl_tensor *tensor = sl_weights_at(model->weights, i);
        page.n_of_type[tensor->dtype]++;
        page.bytes_of_type[tensor->dtype] += tensor->n_bytes;
    }
    if (options->json)
        return print_json(&page);
    sl_buf out;
    sl_buf_init(&out, SL_MEM_GENERAL, (size_t)1 << 30);
    sl_status written = append_page(&page, &out, &err);
    if (written == SL_OK) /* values are read from the file as they are shown */
        written = sl_weights_check(model->weights, &err);
    return sl_out_finish(&out, written, &err);
}

static int run_info(int argc, char *const *argv)
{
    sl_args args;
    info_options options = {0};
    int exit_status = sl_opts_parse(&sl_command_info, argc, argv, &options, &args);
    if (exit_status >= 0)
        return exit_status;
    sl_model_file model;
    exit_status = sl_model_file_open(args.items[0], false, &model);
    if (exit_status < 0) {
        exit_status = show(&options, &model);
        sl_model_file_close(&model);
    }
    sl_args_free(&args);
    return exit_status;
}

const sl_command sl_command_info = {
    .name = "info",
    .usage = "MODEL",
    .summary = "Shows what a model file holds and the memory it will take.",
    .details = "Reads the headers only; the weights are not loaded.",
    .opts = options_table,
    .n_opts = SL_COUNTOF(options_table),
    .min_args = 1,
    .max_args = 1,
    .run = run_info,
};
