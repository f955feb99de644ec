#include "measured.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hostmem.h"
#include "base/str.h"
#include "model.h"
#include "out.h"

/* ---- options ---- */

/* "q8_0, q4_0, ...": all names, or as many as there is room for. */
static const char *list_names(const char *(*name_at)(size_t), char text[512])
{
    size_t n = 0;
    text[0] = '\0';
    for (size_t i = 0; name_at(i) && n < 512; i++)
        n += (size_t)snprintf(text + n, 512 - n, "%s%s", i > 0 ? ", " : "", name_at(i));
    return text;
}

static bool contains(const char *(*name_at)(size_t), const char *name)
{
    for (size_t i = 0; name_at(i); i++) {
        if (sl_same_name(name_at(i), name))
            return true;
    }
    return false;
}

int sl_measured_check(const sl_command *command, const sl_common_options *options,
                      const sl_args *args)
{
    char names[512];
    const char *isa;
    sl_error err;
    if ((args->n == 1) == (options->shape != NULL) || args->n > 1)
        return sl_usage_error(command->name, "give either a MODEL or --shape");
    if (!options->shape && sl_args_gave(args, command, "type"))
        return sl_usage_error(command->name, "--type goes with --shape");
    if (options->shape && !contains(sl_synthetic_shape_name, options->shape))
        return sl_usage_error(command->name, "--shape: there is no shape '%s': %s", options->shape,
                              list_names(sl_synthetic_shape_name, names));
    const char *type = sl_common_synthetic(options).type;
    if (options->shape && !contains(sl_synthetic_type_name, type))
        return sl_usage_error(command->name, "--type: there is no type '%s': %s", type,
                              list_names(sl_synthetic_type_name, names));
    if (sl_cpu_level(options->isa, &isa, &err) != SL_OK)
        return sl_usage_error(command->name, "--isa: %s", err.message);
    return -1;
}

/* ---- opening ---- */

sl_status sl_measured_open(const sl_measured *model, const sl_engine_params *params,
                           sl_engine **out, sl_error *err)
{
    return model->path ? sl_engine_open(model->path, params, out, err)
                       : sl_engine_open_synthetic(&model->synthetic, params, out, err);
}

/* Returns -1 or an exit status. */
static int open_headers(const char *command, const sl_measured *model,
                        const sl_engine_params *params, sl_engine **engine)
{
    sl_error err;
    sl_engine_params headers = *params;
    headers.level = SL_OPEN_HEADERS;
    if (model->path)
        return sl_model_open(model->path, &headers, engine);
    *engine = NULL;
    const sl_status status = sl_measured_open(model, &headers, engine, &err);
    if (status == SL_OK)
        return -1;
    if (status != SL_ERR_ARGUMENT)
        return sl_model_refused(status, &err);
    /* The names are known to be right. */
    return sl_usage_error(command, "%s%s", model->synthetic.n_layers > 0 ? "--layers: " : "",
                          err.message);
}

/* ---- memory ---- */

/* Bytes of all engines together. */
typedef struct need {
    double weights, states, batch_states, logits, scratch;
    double mapped; /* matrices that are read where they lie in the file: the system may drop them */
} need;

static double total_of(const need *n)
{
    return n->weights + n->states + n->batch_states + n->logits + n->scratch;
}

static bool is_cuda(const sl_engine_params *params)
{
    return params->device && strncmp(params->device, "cuda:", 5) == 0;
}

/* "auto" as opening an engine takes it. */
static sl_engine_params with_device(const sl_engine_params *params)
{
    sl_engine_params resolved = *params;
    sl_device_info gpu;
    if (params->device && strcmp(params->device, "auto") == 0)
        resolved.device = sl_cuda_device_info(0, &gpu, NULL) == SL_OK ? "cuda:0" : "cpu";
    return resolved;
}

static double weights_of(const sl_measured *model, const sl_memory_plan *plan, bool cuda)
{
    if (cuda)
        return (double)plan->weights_packed;
    double bytes = (double)plan->weights_packed + (double)plan->weights_owned;
    if (!model->path) { /* random weights are given up as they are rearranged */
        bytes += (double)plan->weights_mapped;
        bytes = (double)plan->weights > bytes ? (double)plan->weights : bytes;
    }
    return bytes;
}

static sl_status add_need(const sl_measured *model, const sl_engine *engine, bool cuda,
                          const sl_measured_use *use, need *sum, sl_error *err)
{
    sl_memory_plan plan, batch = {0};
    sl_model_info info;
    sl_engine_model_info(engine, &info);
    SL_TRY(sl_engine_memory_plan(engine, (uint32_t)use->context, &plan, err));
    if (use->n_batch_states > 0)
        SL_TRY(sl_engine_memory_plan(engine, use->batch_context, &batch, err));
    sum->weights += weights_of(model, &plan, cuda);
    sum->states += (double)use->n_states * ((double)plan.state_fixed + (double)plan.state_context);
    sum->batch_states +=
        (double)use->n_batch_states * ((double)batch.state_fixed + (double)batch.state_context);
    sum->logits += (double)use->n_logits * info.vocab * sizeof(float);
    sum->scratch += (double)plan.scratch;
    if (model->path && !cuda)
        sum->mapped += (double)plan.weights_mapped;
    return SL_OK;
}

static void print_part(const char *part, double bytes)
{
    sl_err_printf("  %-34s %10.1f MiB\n", part, bytes / (1 << 20));
}

static void print_states(size_t n, uint64_t context, double bytes)
{
    char part[64];
    if (n == 0)
        return;
    snprintf(part, sizeof part, "%zu state%s of %llu tokens", n, n == 1 ? "" : "s",
             (unsigned long long)context);
    print_part(part, bytes);
}

static int refuse(const need *sum, size_t n_engines, const sl_measured_use *use, double memory)
{
    const int exit_status = sl_failf("there is not enough memory");
    if (n_engines > 1)
        sl_err_printf("%zu engines at a time, each with the same states:\n", n_engines);
    print_part("weights", sum->weights);
    print_states(n_engines * use->n_states, use->context, sum->states);
    print_states(n_engines * use->n_batch_states, use->batch_context, sum->batch_states);
    print_part("logits", sum->logits);
    print_part("scratch", sum->scratch);
    print_part("needed", total_of(sum));
    if (sum->mapped > 0)
        print_part("read from the file as it lies", sum->mapped);
    print_part("there is", memory);
    return exit_status;
}

/* The memory of the device that computes; what it holds of random weights passes through the
 * host's. */
static int compare(const sl_measured *model, const sl_engine_params *params, const need *sum,
                   size_t n_engines, const sl_measured_use *use)
{
    sl_device_info gpu;
    double there = (double)sl_hostmem_read("/proc", "/sys/fs/cgroup").left;
    if (is_cuda(params)) {
        const int device = (int)strtol(params->device + 5, NULL, 10);
        if (sl_cuda_device_info(device, &gpu, NULL) != SL_OK)
            return -1; /* opening will say why */
        if (!model->path && sum->weights > there)
            return refuse(sum, n_engines, use, there);
        there = (double)gpu.memory_free;
    }
    return total_of(sum) <= there ? -1 : refuse(sum, n_engines, use, there);
}

int sl_measured_fits(const char *command, const sl_measured *model,
                     const sl_engine_params *const *params, size_t n, const sl_measured_use *use)
{
    need sum = {0};
    sl_engine_params resolved = {0};
    for (size_t i = 0; i < n; i++) {
        sl_error err;
        sl_engine *engine;
        sl_model_info info;
        resolved = with_device(params[i]);
        const int exit_status = open_headers(command, model, &resolved, &engine);
        if (exit_status >= 0)
            return exit_status;
        sl_engine_model_info(engine, &info);
        if (use->context > info.context_length) {
            sl_engine_close(engine);
            return sl_usage_error(
                command, "lengths and depths come to %llu tokens, the model's context is %u",
                (unsigned long long)use->context, info.context_length);
        }
        const sl_status status = add_need(model, engine, is_cuda(&resolved), use, &sum, &err);
        sl_engine_close(engine);
        if (status == SL_ERR_ARGUMENT)
            return sl_usage_error(command, "%s", err.message);
        if (status != SL_OK)
            return sl_model_refused(status, &err);
    }
    return compare(model, &resolved, &sum, n, use);
}
