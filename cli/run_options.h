/* The options of `sluice run`, beside the common ones. */
#ifndef SL_CLI_RUN_OPTIONS_H
#define SL_CLI_RUN_OPTIONS_H

#include "common.h"
#include "sampling.h"

typedef struct sl_run_options {
    sl_common_options common;
    const char *system, *tools;
    const char *json_schema, *grammar; /* files */
    bool json_object;
    bool raw, trust_content;
    int think; /* 0 on, 1 off, -1 as the template has it */
    sl_opt_count max_tokens;
    sl_sampling_options sampling;
    int format; /* 0 text, 1 JSON */
    bool show_thinking, verbose, plan;
} sl_run_options;

enum { SL_N_RUN_OPTS = 33 };
extern const sl_opt sl_run_opts[SL_N_RUN_OPTS];

#endif
