/* How a profile is shown: as a table, as JSON, as a page with a picture. */
#ifndef SL_CLI_PROFILE_REPORT_H
#define SL_CLI_PROFILE_REPORT_H

#include "base/json_out.h"
#include "bench_machine.h"
#include "measured.h"
#include "profile_rows.h"

enum { SL_PROFILE_MAX_PHASES = 2 };

typedef struct sl_profile_report {
    sl_model_info model;
    bool random_weights;
    int64_t time; /* seconds since the epoch, of the start */
    sl_machine before, after;
    sl_machine_notes notes;
    const sl_ceilings *ceilings; /* NULL: not measured */
    sl_profile_phase phases[SL_PROFILE_MAX_PHASES];
    size_t n_phases;
} sl_profile_report;

sl_status sl_profile_append_text(const sl_profile_report *report, sl_buf *out, sl_error *err);
void sl_profile_write_json(const sl_profile_report *report, sl_json_out *json);

/* One page that refers to nothing outside of itself. */
sl_status sl_profile_append_html(const sl_profile_report *report, sl_buf *out, sl_error *err);

/* What the columns mean, in lines. */
const char *sl_profile_legend(void);

/* "what to fix first": a sentence without an end, for one phase. */
sl_status sl_profile_append_advice(const sl_profile_phase *phase, sl_buf *out, sl_error *err);

#endif
