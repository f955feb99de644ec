/* Opening and closing engines; recording their plans. Evaluation is in eval.c. */
#include "engine/engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backend/cpu/cpu.h"
#include "backend/cuda/cuda.h"
#include "base/fpenv.h"
#include "base/hostmem.h"
#include "base/log.h"
#include "engine/checkpoint.h"
#include "engine/engine_internal.h"
#include "model/graph.h"
#include "model/synthetic.h"

/* A run of so many rows keeps the device busy: a CPU needs few, a GPU needs thousands. */
enum { CPU_ROWS = 256, CUDA_ROWS = 4096 };
/* A run ends at a regular checkpoint. Evaluating so many tokens again takes about a second, or on a
 * GPU a fortieth of one. */
enum { CPU_SPACING = 512, CUDA_SPACING = 4096 };
enum { MAX_ROWS_LIMIT = 65536, MAX_LISTING = 64 << 20, MIB = 1 << 20 };

sl_engine_params sl_engine_params_default(void)
{
    return (sl_engine_params){
        .n_threads = 0,
        .rewind_window = 16,
        .checkpoint_budget = (size_t)256 << 20,
    };
}

static const char cuda_prefix[] = "cuda:";

static bool is_cuda(const sl_engine_params *params)
{
    return params->device && strncmp(params->device, cuda_prefix, sizeof cuda_prefix - 1) == 0;
}

static uint32_t rows_of(const sl_engine_params *params)
{
    if (params->max_rows > 0)
        return params->max_rows;
    return is_cuda(params) ? CUDA_ROWS : CPU_ROWS;
}

static uint32_t spacing_of(const sl_engine_params *params)
{
    if (params->checkpoint_spacing > 0)
        return params->checkpoint_spacing;
    return is_cuda(params) ? CUDA_SPACING : CPU_SPACING;
}

/* Once the device is known. */
static void settle_params(sl_engine_params *params)
{
    params->max_rows = rows_of(params);
    params->checkpoint_spacing = spacing_of(params);
}

static sl_status check_params(const sl_engine_params *params, sl_error *err)
{
    if (params->max_rows > MAX_ROWS_LIMIT)
        return sl_fail(err, SL_ERR_ARGUMENT, "a prefill piece of %u rows, expected at most %d",
                       params->max_rows, MAX_ROWS_LIMIT);
    /* A state keeps the tapes of two chunks, so one border can be crossed backwards. */
    if (params->rewind_window > SL_GDN_CHUNK)
        return sl_fail(err, SL_ERR_ARGUMENT, "a rewind window of %u tokens, expected at most %d",
                       params->rewind_window, SL_GDN_CHUNK);
    if ((unsigned)params->level > SL_OPEN_HEADERS)
        return sl_fail(err, SL_ERR_ARGUMENT, "%d is no level to open a model at",
                       (int)params->level);
    if (params->gdn_serial && params->device && strcmp(params->device, "cpu") != 0)
        return sl_fail(err, SL_ERR_ARGUMENT,
                       "the token-serial rule is for the CPU only, not for %s", params->device);
    return sl_check_reserved(params->reserved, SL_COUNTOF(params->reserved), "sl_engine_params",
                             err);
}

sl_state_shape sl_shape_of(const sl_config *config, const sl_engine_params *params)
{
    return (sl_state_shape){
        .n_gdn = config->n_gdn_layers,
        .n_key_heads = config->gdn_key_heads,
        .n_value_heads = config->gdn_value_heads,
        .n_channels = sl_config_channels(config),
        .n_conv_rows = params->rewind_window + SL_CONV_HISTORY,
        .n_kv = config->n_attention_layers + config->n_mtp,
        .n_kv_heads = config->n_kv_heads,
        .kv_f32 = params->kv_f32,
        .gdn_serial = params->gdn_serial,
    };
}

static sl_status record_plan(const sl_model *model, const sl_state_shape *shape, uint32_t capacity,
                             bool mtp, sl_plan **out, sl_error *err)
{
    sl_plan *plan;
    SL_TRY(sl_plan_create(mtp ? "mtp" : "main", capacity, shape, &plan, err));
    if (mtp)
        sl_graph_record_mtp(model, plan);
    else
        sl_graph_record(model, plan);
    sl_status status = sl_plan_finish(plan, err);
    if (status != SL_OK) {
        sl_plan_free(plan);
        return status;
    }
    *out = plan;
    return SL_OK;
}

static sl_status record_plans(sl_engine *engine, sl_error *err)
{
    uint32_t rows = engine->params.max_rows;
    SL_TRY(record_plan(engine->model, &engine->shape, rows, false, &engine->plan, err));
    if (engine->model->has_mtp)
        SL_TRY(record_plan(engine->model, &engine->shape, rows, true, &engine->mtp_plan, err));
    size_t arena = sl_plan_arena_bytes(engine->plan);
    if (engine->mtp_plan)
        arena = sl_max_size(arena, sl_plan_arena_bytes(engine->mtp_plan));
    engine->arena = engine->backend->alloc(engine->backend, SL_MEM_SCRATCH, arena);
    if (!engine->arena)
        return sl_fail(err, SL_ERR_MEMORY,
                       "out of memory for an arena of %zu bytes; smaller prefill pieces need less",
                       arena);
    return SL_OK;
}

static sl_status allocate_run(sl_engine *engine, sl_error *err)
{
    size_t rows = engine->params.max_rows;
    engine->tokens = sl_alloc_array(SL_MEM_GENERAL, rows, sizeof *engine->tokens);
    engine->segments = sl_alloc_array(SL_MEM_GENERAL, rows, sizeof *engine->segments);
    engine->segment_states = sl_alloc_array(SL_MEM_GENERAL, rows, sizeof *engine->segment_states);
    engine->faults = sl_alloc_array(SL_MEM_GENERAL, rows, sizeof *engine->faults);
    engine->logit_rows = sl_alloc_array(SL_MEM_GENERAL, rows, sizeof *engine->logit_rows);
    engine->logits = sl_alloc_array(SL_MEM_GENERAL, rows, sizeof *engine->logits);
    engine->hidden = sl_alloc_array(SL_MEM_GENERAL, rows, sizeof *engine->hidden);
    engine->row_flags = sl_alloc_array(SL_MEM_GENERAL, rows, sizeof *engine->row_flags);
    if (!engine->tokens || !engine->segments || !engine->segment_states || !engine->faults ||
        !engine->logit_rows || !engine->logits || !engine->hidden || !engine->row_flags)
        return sl_fail(err, SL_ERR_MEMORY, "out of memory for runs of %zu rows", rows);
    return SL_OK;
}

static void read_name(sl_engine *engine)
{
    const sl_gguf *gguf = sl_weights_gguf(engine->weights);
    const sl_str none = {"", 0};
    sl_str name = none;
    if (gguf && sl_gguf_get_string_or(gguf, "general.name", none, &name, NULL) != SL_OK)
        name = none; /* not a string: nothing depends on it */
    sl_shown(name, engine->name);
}

/* A text side that cannot be used is remembered, not refused: token ids need none. */
static sl_status open_text(sl_engine *engine, sl_error *err)
{
    const sl_status status =
        sl_text_open(engine->weights, &engine->config, &engine->text, &engine->why_no_text);
    if (status == SL_ERR_MEMORY)
        return sl_fail(err, status, "%s", engine->why_no_text.message);
    return SL_OK;
}

/* One matrix into the backend's form; what it was made from is given back at once, so that loading
 * never holds more than one matrix twice. */
static sl_status load_matrix(void *context, sl_matrix *matrix, sl_error *err)
{
    sl_engine *engine = context;
    SL_TRY(engine->backend->load(engine->backend, matrix, err));
    if (!matrix->packed || sl_model_release(engine->model, matrix))
        return SL_OK;
    /* A head that is the embedding as well: that goes on being read. */
    if (matrix->data == engine->model->embed.data && !sl_weights_come_back(engine->weights))
        return SL_OK;
    for (uint32_t i = 0; i < matrix->n_stack; i++)
        sl_weights_release(engine->weights, sl_matrix_row(matrix, i, 0),
                           matrix->n_rows * matrix->row_bytes);
    return SL_OK;
}

/* That a device or its instructions are not there is about the call, not about the model. */
static sl_status about_the_call(sl_status status)
{
    return status == SL_ERR_UNSUPPORTED ? SL_ERR_ARGUMENT : status;
}

static sl_status open_cpu(sl_engine *engine, sl_error *err)
{
    SL_TRY(about_the_call(sl_cpu_backend_create(engine->params.isa, engine->params.n_threads,
                                                &engine->backend, err)));
    engine->params.device = "cpu";
    engine->params.isa = sl_isa_name(sl_cpu_backend_isa(engine->backend));
    engine->params.n_threads = sl_cpu_backend_threads(engine->backend);
    return SL_OK;
}

static sl_status open_cuda(sl_engine *engine, int device, sl_error *err)
{
    SL_TRY(sl_cuda_backend_create(device, &engine->backend, err));
    snprintf(engine->device, sizeof engine->device, "%s%d", cuda_prefix, device);
    engine->params.device = engine->device;
    engine->params.isa = "cuda";
    engine->params.n_threads = 1; /* the host's part of a run */
    return SL_OK;
}

static sl_status open_backend(sl_engine *engine, sl_error *err)
{
    const char *device = engine->params.device;
    if (!device || strcmp(device, "cpu") == 0)
        return open_cpu(engine, err);
    if (strcmp(device, "auto") == 0) {
        sl_error why;
        if (open_cuda(engine, 0, &why) == SL_OK)
            return SL_OK;
        sl_log(SL_LOG_INFO, "on the CPU: %s", why.message);
        return open_cpu(engine, err);
    }
    const char *number = device + sizeof cuda_prefix - 1;
    if (strncmp(device, cuda_prefix, sizeof cuda_prefix - 1) != 0 || *number < '0' ||
        *number > '9' || strlen(number) > 2 || strspn(number, "0123456789") != strlen(number))
        return sl_fail(err, SL_ERR_ARGUMENT, "'%s' is no device: cpu, auto, or cuda:0", device);
    return about_the_call(open_cuda(engine, (int)strtoul(number, NULL, 10), err));
}

typedef struct packing_sum {
    sl_isa isa;
    uint64_t bytes;
} packing_sum;

static sl_status add_packed(void *context, sl_matrix *matrix, sl_error *err)
{
    packing_sum *sum = context;
    (void)err;
    sum->bytes += sl_cpu_packed_bytes(sum->isa, matrix);
    return SL_OK;
}

/* Loads all matrices, or says what they need and what there is: a system that promises more memory
 * than it has would end the process half way. Random weights are given up as they are packed. */
static sl_status load_matrices(sl_engine *engine, sl_error *err)
{
    const uint64_t left = sl_hostmem_read("/proc", "/sys/fs/cgroup").left;
    const bool on_cpu = strcmp(engine->params.device, "cpu") == 0;
    packing_sum sum = {0};
    if (on_cpu) {
        sum.isa = sl_cpu_backend_isa(engine->backend);
        SL_TRY(sl_model_visit(engine->model, add_packed, &sum, err));
    }
    const bool fits = sum.bytes <= left || !sl_weights_come_back(engine->weights);
    sl_backend *backend = engine->backend;
    sl_status status = fits ? SL_OK : SL_ERR_MEMORY;
    if (status == SL_OK && backend->reserve)
        status = backend->reserve(backend, sum.bytes, err);
    if (status == SL_OK)
        status = sl_model_visit(engine->model, load_matrix, engine, err);
    if (status == SL_ERR_MEMORY && on_cpu)
        return sl_fail(err, status,
                       "%s: out of memory: its matrices need %.1f MiB beside the file, %.1f MiB "
                       "are left",
                       sl_weights_path(engine->weights), (double)sum.bytes / MIB,
                       (double)left / MIB);
    return status;
}

sl_status sl_memory_plan_fits_device(const sl_memory_plan *plan, const char *path,
                                     const char *device, size_t left, sl_error *err)
{
    const size_t must = plan->weights_packed + plan->scratch + plan->state_fixed;
    if (must <= left)
        return SL_OK;
    return sl_fail(err, SL_ERR_MEMORY,
                   "%s does not fit on %s: weights %.1f MiB, scratch %.1f MiB and one sequence "
                   "%.1f MiB and more with every token make %.1f MiB, %.1f MiB are free there",
                   path, device, (double)plan->weights_packed / MIB, (double)plan->scratch / MIB,
                   (double)plan->state_fixed / MIB, (double)must / MIB, (double)left / MIB);
}

/* Before anything goes to a device: a model that is larger than it is refused with the figures. */
static sl_status check_device_memory(const sl_engine *engine, sl_error *err)
{
    sl_memory_plan plan;
    sl_cuda_info info;
    if (engine->params.device != engine->device)
        return SL_OK;
    SL_TRY(
        sl_memory_plan_compute(engine->weights, &engine->config, &engine->params, 0, &plan, err));
    SL_TRY(
        sl_cuda_query((int)strtol(engine->device + sizeof cuda_prefix - 1, NULL, 10), &info, err));
    return sl_memory_plan_fits_device(&plan, sl_weights_path(engine->weights), engine->device,
                                      info.memory_free, err);
}

/* The weights in the form that they are computed with, and all that computing needs. */
static sl_status open_model(sl_engine *engine, sl_error *err)
{
    SL_TRY(sl_model_bind(engine->weights, &engine->config, &engine->model, err));
    /* The file may lack the draft head that its configuration announces. */
    engine->config = engine->model->config;
    SL_TRY(open_backend(engine, err));
    settle_params(&engine->params);
    SL_TRY(check_device_memory(engine, err));
    if (!sl_weights_come_back(engine->weights)) {
        uint8_t kept[SL_FINGERPRINT_BYTES];
        SL_TRY(sl_engine_fingerprint(engine, kept, err)); /* while it can be had */
    }
    SL_TRY(load_matrices(engine, err));
    engine->shape = sl_shape_of(&engine->config, &engine->params);
    const sl_state_shape *shape = &engine->shape;
    sl_block_pool_init(&engine->borders, "border", engine->backend,
                       sl_shape_border_floats(shape) * sizeof(float), 0);
    sl_block_pool_init(&engine->tapes, "tape", engine->backend,
                       sl_shape_tape_floats(shape) * sizeof(float), 0);
    sl_block_pool_init(&engine->convs, "conv", engine->backend,
                       sl_shape_conv_floats(shape) * sizeof(float), 0);
    sl_block_pool_init(&engine->conv_tails, "conv tail", engine->backend,
                       (size_t)shape->n_gdn * SL_CONV_HISTORY * shape->n_channels * sizeof(float),
                       0);
    sl_block_pool_init(&engine->kvs, "KV", engine->backend, sl_shape_kv_bytes(shape), SL_KV_PAGE);
    sl_store_init(&engine->store, engine->params.checkpoint_budget,
                  engine->params.checkpoint_spacing);
    SL_TRY(record_plans(engine, err));
    SL_TRY(allocate_run(engine, err));
    return SL_OK;
}

/* From path, or random weights. */
static sl_status open_weights(sl_engine *engine, const char *path, const sl_synthetic *synthetic,
                              sl_error *err)
{
    if (!synthetic)
        return sl_weights_open(path, &engine->weights, err);
    const bool headers_only = engine->params.level != SL_OPEN_ALL;
    return sl_synthetic_weights(synthetic, headers_only, &engine->weights, err);
}

static sl_status open_parts(sl_engine *engine, const char *path, const sl_synthetic *synthetic,
                            sl_error *err)
{
    SL_TRY(open_weights(engine, path, synthetic, err));
    SL_TRY(sl_config_load(engine->weights, &engine->config, err));
    read_name(engine);
    if (engine->params.level == SL_OPEN_HEADERS)
        sl_fail(&engine->why_no_text, SL_ERR_ARGUMENT, "%s was opened without its tokenizer",
                sl_weights_path(engine->weights));
    else
        SL_TRY(open_text(engine, err));
    if (engine->params.level == SL_OPEN_ALL)
        SL_TRY(open_model(engine, err));
    else
        settle_params(&engine->params);
    return sl_weights_check(engine->weights, err);
}

static sl_status open_engine(const char *path, const sl_synthetic *synthetic,
                             const sl_engine_params *params, sl_engine **out, sl_error *err)
{
    const sl_engine_params defaults = sl_engine_params_default();
    params = params ? params : &defaults;
    SL_TRY(check_params(params, err));
    sl_engine *engine = sl_alloc_zero(SL_MEM_GENERAL, sizeof *engine);
    if (!engine)
        return sl_fail(err, SL_ERR_MEMORY, "out of memory for an engine");
    engine->params = *params;
    engine->process = getpid();
    if (params->gdn_serial)
        engine->params.checkpoint_budget = 0;
    sl_fpenv env = sl_fpenv_enter();
    sl_status status = open_parts(engine, path, synthetic, err);
    sl_fpenv_leave(env);
    if (status != SL_OK) {
        sl_engine_close(engine);
        return status;
    }
    *out = engine;
    return SL_OK;
}

sl_status sl_engine_open(const char *path, const sl_engine_params *params, sl_engine **out,
                         sl_error *err)
{
    return open_engine(path, NULL, params, out, err);
}

sl_status sl_engine_open_synthetic(const sl_synthetic *model, const sl_engine_params *params,
                                   sl_engine **out, sl_error *err)
{
    return open_engine(NULL, model, params, out, err);
}

void sl_engine_close(sl_engine *engine)
{
    if (!engine || engine->process != getpid())
        return;
    sl_kept_free(engine);
    sl_free(engine->row_flags);
    sl_free(engine->hidden);
    sl_free(engine->logits);
    sl_free(engine->logit_rows);
    sl_free(engine->faults);
    sl_free(engine->segment_states);
    sl_free(engine->segments);
    sl_free(engine->tokens);
    sl_profile_free(engine->profile);
    sl_plan_free(engine->plan);
    sl_plan_free(engine->mtp_plan);
    if (engine->backend) {
        sl_store_free(&engine->store);
        sl_block_pool_free(&engine->kvs);
        sl_block_pool_free(&engine->conv_tails);
        sl_block_pool_free(&engine->convs);
        sl_block_pool_free(&engine->tapes);
        sl_block_pool_free(&engine->borders);
        engine->backend->free(engine->backend, engine->arena);
        engine->backend->destroy(engine->backend);
    }
    sl_model_free(engine->model);
    sl_constraint_vocab_free(engine->constraint_vocab);
    sl_text_close(engine->text);
    sl_weights_close(engine->weights);
    sl_free(engine);
}

const sl_weights *sl_engine_weights(const sl_engine *engine)
{
    return engine->weights;
}
const sl_config *sl_engine_config(const sl_engine *engine)
{
    return &engine->config;
}
const sl_engine_params *sl_engine_get_params(const sl_engine *engine)
{
    return &engine->params;
}
uint32_t sl_engine_vocab(const sl_engine *engine)
{
    return engine->config.vocab;
}
bool sl_engine_has_mtp(const sl_engine *engine)
{
    return engine->model->has_mtp;
}

sl_status sl_engine_need_weights(const sl_engine *engine, sl_error *err)
{
    if (engine->model)
        return SL_OK;
    return sl_fail(err, SL_ERR_ARGUMENT, "%s was opened without its weights",
                   sl_weights_path(engine->weights));
}

void sl_engine_set_tap(sl_engine *engine, sl_tap_fn tap, void *context)
{
    engine->tap = tap;
    engine->tap_context = context;
}

sl_checkpoint_stats sl_engine_checkpoint_stats(const sl_engine *engine)
{
    return (sl_checkpoint_stats){.n_checkpoints = engine->store.n_checkpoints,
                                 .bytes = engine->store.bytes,
                                 .budget = engine->store.budget};
}

sl_status sl_engine_dump_plan(const sl_engine *engine, uint32_t n_rows, uint32_t pos, char **text,
                              size_t *n_bytes, sl_error *err)
{
    SL_TRY(sl_engine_need_weights(engine, err));
    sl_buf listing;
    sl_buf_init(&listing, SL_MEM_TEXT, MAX_LISTING);
    const sl_status status = sl_plan_dump(engine->plan, n_rows, pos, &listing, err);
    if (status == SL_OK)
        *text = sl_buf_take(&listing, n_bytes);
    sl_buf_free(&listing);
    return status;
}

/* ---- memory before loading ---- */

static size_t tensor_bytes(const sl_weights *weights)
{
    size_t total = 0;
    for (size_t i = 0; i < sl_weights_count(weights); i++)
        total += sl_weights_at(weights, i)->n_bytes;
    return total;
}

typedef struct weighing {
    const sl_model *model;
    bool cuda;
    sl_isa isa;
    sl_memory_plan *plan;
} weighing;

static size_t matrix_bytes(const sl_matrix *matrix)
{
    return matrix->n_rows * matrix->row_bytes * matrix->n_stack;
}

/* An sl_matrix_visit over a measured model. */
static sl_status weigh(void *context, sl_matrix *matrix, sl_error *err)
{
    (void)err;
    const weighing *w = context;
    const bool converted = sl_model_has_no_rows(matrix);
    const bool is_embedding = w->model->config.tied && matrix == &w->model->head;
    const size_t packed =
        w->cuda ? sl_cuda_packed_bytes(matrix) : sl_cpu_packed_bytes(w->isa, matrix);
    w->plan->weights_packed += packed;
    if (packed > 0 && converted)
        w->plan->weights_owned -= matrix_bytes(matrix);
    if (packed == 0 && !converted && !is_embedding)
        w->plan->weights_mapped += matrix_bytes(matrix);
    return SL_OK;
}

static sl_status weigh_all(const sl_engine_params *params, sl_model *model, sl_memory_plan *plan,
                           sl_error *err)
{
    weighing w = {.model = model, .cuda = is_cuda(params), .plan = plan};
    if (!w.cuda)
        SL_TRY(about_the_call(sl_isa_choose(params->isa, &w.isa, err)));
    plan->weights_mapped = matrix_bytes(&model->embed); /* its rows are looked up */
    if (model->mtp && model->mtp->embed.data != model->embed.data)
        plan->weights_mapped += matrix_bytes(&model->mtp->embed);
    return sl_model_visit(model, weigh, &w, err);
}

sl_status sl_plan_measure(const sl_weights *weights, const sl_config *config,
                          const sl_engine_params *params, sl_model **model, sl_plan **plan,
                          sl_error *err)
{
    SL_TRY(sl_model_measure(weights, config, model, err));
    const sl_state_shape shape = sl_shape_of(&(*model)->config, params);
    const sl_status status = record_plan(*model, &shape, rows_of(params), false, plan, err);
    if (status != SL_OK)
        sl_model_free(*model);
    return status;
}

sl_status sl_memory_plan_compute(const sl_weights *weights, const sl_config *config,
                                 const sl_engine_params *params, uint32_t context,
                                 sl_memory_plan *out, sl_error *err)
{
    SL_TRY(check_params(params, err));
    sl_model *model;
    SL_TRY(sl_model_measure(weights, config, &model, err));
    sl_state_shape shape = sl_shape_of(&model->config, params);
    size_t chunk =
        (sl_shape_border_floats(&shape) + SL_TAPE_CHUNK_PAGES * sl_shape_tape_floats(&shape)) *
        sizeof(float);
    *out = (sl_memory_plan){
        .weights = tensor_bytes(weights),
        .weights_owned = model->owned_bytes,
        .state_fixed = SL_STATE_CHUNKS * chunk + sl_shape_conv_floats(&shape) * sizeof(float),
        .state_context = sl_kv_pages_of(context) * sl_shape_kv_bytes(&shape),
    };
    sl_status status = weigh_all(params, model, out, err);
    size_t arena = 0, own = 0, shared = 0;
    for (int mtp = 0; mtp <= (int)model->has_mtp && status == SL_OK; mtp++) {
        sl_plan *plan;
        status = record_plan(model, &shape, rows_of(params), mtp, &plan, err);
        if (status != SL_OK)
            break;
        arena = sl_max_size(arena, sl_plan_arena_bytes(plan));
        if (is_cuda(params)) {
            own += sl_cuda_plan_bytes(plan);
            shared = sl_max_size(shared, sl_cuda_run_bytes(plan, rows_of(params), context));
        }
        sl_plan_free(plan);
    }
    out->scratch = arena + own + shared;
    sl_model_free(model);
    return status;
}
