/* What every figure has to be read with, as members of a JSON object that bench and profile write
 * alike: the program, when, which model, which machine, how an engine computes. */
#ifndef SL_CLI_CIRCUMSTANCES_H
#define SL_CLI_CIRCUMSTANCES_H

#include "base/json_out.h"
#include "bench_machine.h"
#include "sluice.h"

/* program, version, time */
void sl_json_program(sl_json_out *json, const char *program, int64_t seconds);

/* "2026-11-29T21:14:07Z"; "" for a time that has none. */
enum { SL_TIME_BYTES = 32 };
const char *sl_time_shown(int64_t seconds, char text[SL_TIME_BYTES]);

void sl_json_model(sl_json_out *json, const sl_model_info *model, bool random_weights);
void sl_json_machine(sl_json_out *json, const sl_machine *machine, const sl_machine_notes *doubts);

/* threads, isa, device, kv, prefill_chunk: members of the object that is open */
void sl_json_computing(sl_json_out *json, const sl_model_info *model);

/* "doubtful  ..." lines */
sl_status sl_append_doubts(const sl_machine_notes *doubts, sl_buf *out, sl_error *err);

#endif
