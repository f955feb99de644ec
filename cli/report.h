/* What is told about an answer beside the answer: settings, times, memory. */
#ifndef SL_CLI_REPORT_H
#define SL_CLI_REPORT_H

#include "answer.h"

typedef struct sl_report {
    const sl_engine *engine;
    const sl_sampling *sampling;
    size_t n_prompt; /* tokens */
    uint32_t context;
    uint64_t load_ns;
    const sl_generate_result *generated;
    size_t state_bytes; /* set aside for the context */
    const sl_answer *answer;
} sl_report;

/* On standard error: what is known before the answer, and what after it. */
void sl_report_settings(const sl_report *report);
void sl_report_times(const sl_report *report);

/* One JSON object on standard output, answer included; returns an exit status. */
int sl_report_json(const sl_report *report);

#endif
