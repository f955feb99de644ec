/* The options of `sluice run`. */
#ifndef SL_CLI_RUN_OPTIONS_H
#define SL_CLI_RUN_OPTIONS_H

#include "sampling.h"

typedef struct sl_run_options {
    const char *file, *system, *tools;
    bool raw, trust_content;
    int think; /* 0 on, 1 off, -1 as the template has it */
    sl_opt_count max_tokens, ctx, threads;
    sl_sampling_options sampling;
    int kv;     /* 0 f16, 1 f32 */
    int format; /* 0 text, 1 JSON */
    bool show_thinking, json, verbose, plan;
} sl_run_options;

enum { SL_N_RUN_OPTS = 35 };
extern const sl_opt sl_run_opts[SL_N_RUN_OPTS];

#endif
