/* The table of common options, and what they do. */
#include "common.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/pool.h"

enum { MAX_CHUNK = 65536 };

#define AT(member) offsetof(sl_common_options, member)
static const struct {
    unsigned group;
    sl_opt opt;
} table[] = {
    {SL_TAKES_FILE,
     {.name = "file",
      .letter = 'f',
      .type = SL_OPT_TEXT,
      .offset = AT(file),
      .value_name = "FILE",
      .help = "read the text from FILE, - is standard input"}},
    {SL_TAKES_CONTEXT,
     {.name = "ctx",
      .letter = 'c',
      .type = SL_OPT_COUNT,
      .offset = AT(ctx),
      .value_name = "N",
      .min = 1,
      .max = UINT32_MAX,
      .help = "a context of N tokens, prompt and answer together; at most the model's"}},
    {SL_TAKES_COMPUTE,
     {.name = "threads",
      .letter = 't',
      .type = SL_OPT_COUNT,
      .offset = AT(threads),
      .value_name = "N",
      .min = 1,
      .max = SL_POOL_MAX_THREADS,
      .help = "threads (default: one per core); the result does not depend on it"}},
    {SL_TAKES_COMPUTE,
     {.name = "isa",
      .type = SL_OPT_TEXT,
      .offset = AT(isa),
      .value_name = "LEVEL",
      .help = "the highest instruction-set level to use (default: the best there is)"}},
    {SL_TAKES_COMPUTE,
     {.name = "device",
      .type = SL_OPT_TEXT,
      .offset = AT(device),
      .value_name = "NAME",
      .help = "cpu (default), cuda:0, or auto: a CUDA device where there is one"}},
    {SL_TAKES_KV,
     {.name = "kv",
      .type = SL_OPT_CHOICE,
      .offset = AT(kv),
      .value_name = "f16|f32",
      .help = "number format of the attention cache (default: f16)"}},
    {SL_TAKES_MEASURING,
     {.name = "shape",
      .type = SL_OPT_TEXT,
      .offset = AT(shape),
      .value_name = "NAME",
      .help = "random weights instead of a model: 0.8b, 2b, 4b, 9b, 27b, 35b-a3b, tiny, tiny-moe"}},
    {SL_TAKES_MEASURING,
     {.name = "type",
      .type = SL_OPT_TEXT,
      .offset = AT(type),
      .value_name = "TYPE",
      .help =
          "their element type (default: q8_0): q4_0, q4_1, q5_0, q5_1, q2_k, q3_k, q4_k, q5_k, "
          "q6_k, iq4_nl, iq4_xs, mxfp4, bf16, f16, f32, or q4_k_m and q5_k_m, the usual mixtures"}},
    {SL_TAKES_MEASURING,
     {.name = "prefill-chunk",
      .type = SL_OPT_COUNT,
      .offset = AT(prefill_chunk),
      .value_name = "N",
      .min = 1,
      .max = MAX_CHUNK,
      .help = "evaluate N tokens of a prompt at a time (default: the engine's)"}},
    {SL_TAKES_MEASURING,
     {.name = "ceilings",
      .type = SL_OPT_FLAG,
      .offset = AT(ceilings),
      .help = "measure what the machine can do as well (default: on)"}},
    {SL_TAKES_JSON,
     {.name = "json", .type = SL_OPT_FLAG, .offset = AT(json), .help = "print a JSON object"}},
};
#undef AT

const sl_opt *sl_common_opt(unsigned groups, size_t i)
{
    for (size_t row = 0; row < SL_COUNTOF(table); row++) {
        if ((table[row].group & groups) != 0 && i-- == 0)
            return &table[row].opt;
    }
    return NULL;
}

sl_engine_params sl_common_engine_params(const sl_common_options *options)
{
    sl_engine_params params = sl_engine_params_default();
    params.n_threads = (unsigned)options->threads.value;
    params.kv_f32 = options->kv == 1;
    params.isa = options->isa;
    params.device = options->device;
    if (options->prefill_chunk.set)
        params.max_rows = (uint32_t)options->prefill_chunk.value;
    return params;
}

const char *sl_common_computes_on(const sl_model_info *model, char text[SL_COMPUTES_ON_BYTES])
{
    sl_error err;
    sl_device_info gpu;
    const char *number = strchr(model->device, ':');
    if (!number)
        snprintf(text, SL_COMPUTES_ON_BYTES, "%u thread%s, %s", model->n_threads,
                 model->n_threads == 1 ? "" : "s", model->isa);
    else if (sl_cuda_device_info((int)strtol(number + 1, NULL, 10), &gpu, &err) == SL_OK)
        snprintf(text, SL_COMPUTES_ON_BYTES, "%s (%s)", gpu.name, model->device);
    else
        snprintf(text, SL_COMPUTES_ON_BYTES, "%s", model->device);
    return text;
}

sl_synthetic sl_common_synthetic(const sl_common_options *options)
{
    return (sl_synthetic){.shape = options->shape, .type = options->type ? options->type : "q8_0"};
}

sl_status sl_common_context(const sl_common_options *options, const sl_engine *engine,
                            uint64_t wanted, uint32_t *context, sl_error *err)
{
    sl_model_info model;
    sl_engine_model_info(engine, &model);
    const uint32_t limit = model.context_length;
    if (options->ctx.set && options->ctx.value > limit)
        return sl_fail(err, SL_ERR_ARGUMENT, "--ctx %llu: the model's context is %u tokens",
                       (unsigned long long)options->ctx.value, limit);
    if (options->ctx.set)
        wanted = options->ctx.value;
    *context = wanted < limit ? (uint32_t)wanted : limit;
    return SL_OK;
}
