/* What an engine tells of its model: numbers as a struct, and everything in the file as JSON.
 * Nothing here needs the weights themselves. */
#include <stdio.h>
#include <string.h>

#include "base/fpenv.h"
#include "base/json_out.h"
#include "base/utf8.h"
#include "engine/engine_internal.h"

enum { DESCRIPTION_BYTES = 160, DESCRIBED_DEPTH = 4 };

const char *sl_shown(sl_str name, char text[SL_SHOWN_BYTES])
{
    return sl_utf8_show(name.data, name.n_bytes, text, SL_SHOWN_BYTES);
}

/* ---- the tensors together ---- */

static uint64_t elements(const sl_tensor *tensor)
{
    uint64_t n = 1;
    for (uint32_t d = 0; d < tensor->n_dims; d++)
        n *= tensor->ne[d];
    return n;
}

typedef struct totals {
    uint64_t n_parameters, n_bytes;
    size_t n_of_type[SL_DTYPE_COUNT], bytes_of_type[SL_DTYPE_COUNT];
    sl_dtype main_type;
} totals;

static totals total_of(const sl_weights *weights)
{
    totals t = {0};
    for (size_t i = 0; i < sl_weights_count(weights); i++) {
        const sl_tensor *tensor = sl_weights_at(weights, i);
        t.n_parameters += elements(tensor);
        t.n_bytes += tensor->n_bytes;
        t.n_of_type[tensor->dtype]++;
        t.bytes_of_type[tensor->dtype] += tensor->n_bytes;
    }
    for (size_t type = 1; type < SL_DTYPE_COUNT; type++) {
        if (t.bytes_of_type[type] > t.bytes_of_type[t.main_type])
            t.main_type = (sl_dtype)type;
    }
    return t;
}

static const char *container_name(const sl_engine *engine)
{
    return sl_weights_container(engine->weights) == SL_CONTAINER_GGUF ? "gguf" : "safetensors";
}

/* ---- as a struct ---- */

void sl_engine_model_info(const sl_engine *engine, sl_model_info *out)
{
    const sl_config *config = &engine->config;
    const totals t = total_of(engine->weights);
    *out = (sl_model_info){
        .path = sl_weights_path(engine->weights),
        .container = container_name(engine),
        .arch = sl_arch_name(config->arch),
        .name = engine->name,
        .main_type = sl_dtype_get(t.main_type)->name,
        .n_parameters = t.n_parameters,
        .n_weight_bytes = t.n_bytes,
        .n_layers = config->n_layers,
        .n_gdn_layers = config->n_gdn_layers,
        .n_attention_layers = config->n_attention_layers,
        .hidden = config->hidden,
        .vocab = config->vocab,
        .context_length = config->context_length,
        .n_heads = config->n_heads,
        .n_kv_heads = config->n_kv_heads,
        .head_dim = config->head_dim,
        .gdn_key_heads = config->gdn_key_heads,
        .gdn_value_heads = config->gdn_value_heads,
        .gdn_dim = config->gdn_dim,
        .ffn = config->ffn,
        .n_experts = config->n_experts,
        .n_experts_used = config->top_k,
        .has_draft_head = engine->model ? engine->model->has_mtp : config->n_mtp > 0,
        .has_tokenizer = engine->text != NULL,
        .has_template = engine->text != NULL && sl_text_has_template(engine->text),
        .value_heads_tiled = config->pairing == SL_PAIRING_TILED,
        .kv_f32 = engine->params.kv_f32,
        .n_threads = engine->model ? engine->params.n_threads : 0,
        .isa = engine->model ? engine->params.isa : "",
        .max_rows = engine->params.max_rows,
        .device = engine->model ? engine->params.device : "",
    };
}

sl_status sl_engine_memory_plan(const sl_engine *engine, uint32_t context, sl_memory_plan *out,
                                sl_error *err)
{
    sl_fpenv env = sl_fpenv_enter();
    const sl_status status = sl_memory_plan_compute(engine->weights, &engine->config,
                                                    &engine->params, context, out, err);
    sl_fpenv_leave(env);
    return status;
}

/* ---- what runs cost ---- */

static void add_cost(const sl_plan *plan, const sl_workload *work, sl_run_cost *sum)
{
    const sl_op_cost cost = sl_plan_cost(plan, work);
    sum->weight_bytes += cost.weight_bytes;
    sum->state_bytes += cost.state_bytes;
    sum->int8_macs += cost.int8_macs;
    sum->float_flops += cost.flops - 2.0 * cost.int8_macs;
}

/* Pieces as sl_engine_eval makes them; logits come with the last one. */
static void add_pieces(const sl_plan *plan, uint32_t max_rows, const sl_run_shape *run,
                       sl_run_cost *sum)
{
    const uint32_t share = max_rows / run->n_sequences, step = share ? share : 1;
    for (uint32_t done = 0; done < run->n_rows;) {
        const uint32_t left = run->n_rows - done, n = left < step ? left : step;
        const sl_workload work = {.n_sequences = run->n_sequences,
                                  .n_rows = n,
                                  .pos = run->pos + done,
                                  .n_logits = n == left ? run->n_logits : 0};
        add_cost(plan, &work, sum);
        done += n;
    }
}

sl_status sl_engine_run_cost(const sl_engine *engine, const sl_run_shape *run, sl_run_cost *out,
                             sl_error *err)
{
    SL_TRY(sl_check_reserved(run->reserved, SL_COUNTOF(run->reserved), "sl_run_shape", err));
    if (run->n_sequences == 0 || run->n_rows == 0)
        return sl_fail(err, SL_ERR_ARGUMENT, "the cost of a run of no rows");
    *out = (sl_run_cost){0};
    if (engine->plan) {
        add_pieces(engine->plan, engine->params.max_rows, run, out);
        return SL_OK;
    }
    sl_model *model;
    sl_plan *plan;
    const sl_fpenv env = sl_fpenv_enter();
    const sl_status status =
        sl_plan_measure(engine->weights, &engine->config, &engine->params, &model, &plan, err);
    if (status == SL_OK) {
        add_pieces(plan, engine->params.max_rows, run, out);
        sl_plan_free(plan);
        sl_model_free(model);
    }
    sl_fpenv_leave(env);
    return status;
}

/* ---- as JSON ---- */

typedef struct number {
    const char *name;
    uint64_t value;
} number;

static void add_numbers(sl_json_out *json, const char *key, const number *numbers, size_t n)
{
    sl_json_open(json, key, '{');
    for (size_t i = 0; i < n; i++)
        sl_json_uint(json, numbers[i].name, numbers[i].value);
    sl_json_close(json, '}');
}

/* The few numbers that tell a model's size; those that do not apply are 0 and left out. */
static void add_config(sl_json_out *json, const sl_config *config)
{
    const number all[] = {
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
    number used[SL_COUNTOF(all)];
    size_t n = 0;
    for (size_t i = 0; i < SL_COUNTOF(all); i++) {
        if (all[i].value > 0)
            used[n++] = all[i];
    }
    add_numbers(json, "config", used, n);
}

static void add_memory(sl_json_out *json, const sl_memory_plan *memory)
{
    const number numbers[] = {
        {"weights_mapped", memory->weights_mapped}, {"weights_packed", memory->weights_packed},
        {"weights_owned", memory->weights_owned},   {"state_fixed", memory->state_fixed},
        {"state_context", memory->state_context},   {"scratch", memory->scratch},
    };
    add_numbers(json, "memory", numbers, SL_COUNTOF(numbers));
}

static void add_keys(sl_json_out *json, const sl_gguf *gguf)
{
    for (size_t i = 0; i < sl_gguf_key_count(gguf) && json->status == SL_OK; i++) {
        char text[DESCRIPTION_BYTES], name[SL_SHOWN_BYTES];
        json->status = sl_gguf_describe(gguf, i, text, sizeof text);
        sl_json_string(json, sl_shown(sl_gguf_key_at(gguf, i), name), text);
    }
}

/* A value as JSON text; a long one is cut. */
static void add_value(sl_json_out *json, const char *name, const json_t *value)
{
    static const char more[] = "...";
    char shown[SL_SHOWN_BYTES];
    sl_buf text;
    sl_buf_init(&text, SL_MEM_FORMAT, SIZE_MAX / 2);
    if (json->status == SL_OK)
        json->status = sl_json_append(&text, value, &json->err);
    if (json->status == SL_OK && text.n_bytes >= DESCRIPTION_BYTES) {
        size_t n = DESCRIPTION_BYTES - sizeof more;
        while (((unsigned char)text.data[n] & 0xC0) == 0x80)
            n--; /* not inside of a character */
        memcpy(text.data + n, more, sizeof more);
        text.n_bytes = n + sizeof more - 1;
    }
    if (json->status == SL_OK)
        sl_json_string(json, name, sl_shown((sl_str){text.data, text.n_bytes}, shown));
    sl_buf_free(&text);
}

/* The members of an object and of the objects in it, by their path. */
static void add_members(sl_json_out *json, const char *path, const json_t *object, int depth)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)object, key, value)
    {
        char name[SL_SHOWN_BYTES], shown[SL_SHOWN_BYTES];
        snprintf(name, sizeof name, "%s.%s", path, key);
        sl_shown(sl_str_of(name), shown);
        if (depth > 1 && json_object_size(value) > 0)
            add_members(json, shown, value, depth - 1);
        else
            add_value(json, shown, value);
    }
}

static void add_metadata(sl_json_out *json, const sl_weights *weights)
{
    sl_json_open(json, "metadata", '{');
    if (sl_weights_gguf(weights)) {
        add_keys(json, sl_weights_gguf(weights));
    } else {
        add_members(json, "config", sl_weights_config(weights), DESCRIBED_DEPTH);
        add_members(json, "generation_config", sl_weights_generation_config(weights),
                    DESCRIBED_DEPTH);
    }
    sl_json_close(json, '}');
}

static void add_types(sl_json_out *json, const totals *t)
{
    sl_json_open(json, "types", '{');
    for (size_t type = 0; type < SL_DTYPE_COUNT; type++) {
        if (t->n_of_type[type] == 0)
            continue;
        sl_json_open(json, sl_dtype_get((sl_dtype)type)->name, '{');
        sl_json_uint(json, "tensors", t->n_of_type[type]);
        sl_json_uint(json, "bytes", t->bytes_of_type[type]);
        sl_json_close(json, '}');
    }
    sl_json_close(json, '}');
}

static void add_tensors(sl_json_out *json, const sl_weights *weights)
{
    sl_json_open(json, "tensors", '[');
    for (size_t i = 0; i < sl_weights_count(weights); i++) {
        char name[SL_SHOWN_BYTES];
        const sl_tensor *tensor = sl_weights_at(weights, i);
        sl_json_open(json, NULL, '{');
        sl_json_string(json, "name", sl_shown(sl_str_of(tensor->name), name));
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

sl_status sl_engine_info_json(const sl_engine *engine, uint32_t context, unsigned flags,
                              char **json, size_t *n_bytes, sl_error *err)
{
    sl_memory_plan memory;
    SL_TRY(sl_engine_memory_plan(engine, context, &memory, err));
    const totals t = total_of(engine->weights);
    sl_json_out out;
    sl_fpenv env = sl_fpenv_enter(); /* metadata has numbers */
    sl_json_out_init(&out);
    sl_json_open(&out, NULL, '{');
    sl_json_string(&out, "path", sl_weights_path(engine->weights));
    sl_json_string(&out, "container", container_name(engine));
    sl_json_string(&out, "architecture", sl_arch_name(engine->config.arch));
    sl_json_uint(&out, "parameters", t.n_parameters);
    add_config(&out, &engine->config);
    add_metadata(&out, engine->weights);
    add_types(&out, &t);
    if (flags & SL_INFO_TENSORS)
        add_tensors(&out, engine->weights);
    sl_json_uint(&out, "context", context);
    add_memory(&out, &memory);
    sl_json_close(&out, '}');
    sl_fpenv_leave(env);
    if (out.status == SL_OK) /* values were read from the file as they were written */
        out.status = sl_weights_check(engine->weights, &out.err);
    const sl_status status = out.status;
    if (status == SL_OK)
        *json = sl_buf_take(&out.buf, n_bytes);
    else
        sl_fail(err, status, "%s", out.err.message);
    sl_json_out_free(&out);
    return status;
}
