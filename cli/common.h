/* Options that several commands take, each described in one place.
 *
 * A command names the groups it takes in sl_command.common, and its struct begins with an
 * sl_common_options. A new option is a member here, a row in common.c and, when it is about opening
 * models, a line in sl_common_engine_params. */
#ifndef SL_CLI_COMMON_H
#define SL_CLI_COMMON_H

#include "opts.h"
#include "sluice.h"

typedef struct sl_common_options {
    const char *file;
    sl_opt_count ctx, threads, prefill_chunk;
    const char *isa, *device;
    const char *shape, *type; /* of random weights */
    int kv;                   /* 0 f16, 1 f32 */
    bool json, ceilings;
} sl_common_options;

/* Groups of options. */
enum {
    SL_TAKES_FILE = 1 << 0,     /* a text from a file */
    SL_TAKES_CONTEXT = 1 << 1,  /* the length of a context */
    SL_TAKES_COMPUTE = 1 << 2,  /* how the model is evaluated; the result does not depend on it */
    SL_TAKES_KV = 1 << 3,       /* the number format of the attention cache */
    SL_TAKES_JSON = 1 << 4,     /* output as JSON */
    SL_TAKES_MEASURING = 1 << 5 /* random weights, the size of pieces, what the machine can do */
};

/* The i-th of the options in these groups, NULL after the last one. Offsets are those in an
 * sl_common_options. */
const sl_opt *sl_common_opt(unsigned groups, size_t i);

/* The library's defaults and what the options change of them. */
sl_engine_params sl_common_engine_params(const sl_common_options *options);

/* What an engine computes on, for people: "2 threads, avx2", "NVIDIA H200 (cuda:0)". */
enum { SL_COMPUTES_ON_BYTES = 160 };
const char *sl_common_computes_on(const sl_model_info *model, char text[SL_COMPUTES_ON_BYTES]);

/* The model of random weights that --shape and --type name. */
sl_synthetic sl_common_synthetic(const sl_common_options *options);

/* The length that --ctx gives, else `wanted`, which ends at the model's. SL_ERR_ARGUMENT: --ctx is
 * more than the model's. */
sl_status sl_common_context(const sl_common_options *options, const sl_engine *engine,
                            uint64_t wanted, uint32_t *context, sl_error *err);

#endif
