/* What a machine can do, as shares of it are quoted and as it is shown. */
#ifndef SL_CLI_CEILINGS_H
#define SL_CLI_CEILINGS_H

#include "base/json_out.h"
#include "sluice.h"

/* The better of all threads and of one: on a shared machine the others may slow each other. */
double sl_ceilings_read_gbs(const sl_ceilings *ceilings);

/* Of products as an engine of that level computes them: on tiles where it has some. */
double sl_ceilings_int8_tops(const sl_ceilings *ceilings, const char *isa);

/* "24.6 GB/s read (one thread 25.9), ...": without an end. isa "" leaves open which of the int8
 * rates counts. */
sl_status sl_ceilings_append(const sl_ceilings *ceilings, const char *isa, sl_buf *out,
                             sl_error *err);

/* An object; null when they were not measured. */
void sl_json_ceilings(sl_json_out *json, const char *key, const sl_ceilings *ceilings);

#endif
