/* What the program writes: results on standard output, everything else on standard error. */
#ifndef SL_CLI_OUT_H
#define SL_CLI_OUT_H

#include "base/json_out.h"

/* Looks at the terminal and NO_COLOR, and makes a closed pipe an error instead of a signal. */
void sl_out_init(void);

/* Writes to standard output at once. False when it is closed or full; the first failure has then
 * been told on standard error (a closed pipe is nothing to talk about) and later calls do
 * nothing. */
bool sl_out_write(const void *bytes, size_t n);
bool sl_out_failed(void);

bool sl_out_is_terminal(void); /* standard output */
bool sl_err_is_terminal(void); /* standard error */

/* Dim text on standard error: nothing unless it is a terminal and NO_COLOR is unset. */
void sl_err_dim(bool on);

/* Bytes to standard error; failures are ignored, there is nobody left to tell. */
void sl_err_write(const void *bytes, size_t n);
void sl_err_printf(const char *format, ...) SL_PRINTF(1, 2);

/* "sluice: sentence" on standard error; returns SL_EXIT_FAILURE. */
int sl_fail_with(const sl_error *err);
int sl_failf(const char *format, ...) SL_PRINTF(1, 2);

/* A line that replaces itself, for long work. Shown only on a terminal and only after the work has
 * taken half a second. Zero-initialise. */
typedef struct sl_progress {
    const char *label; /* "reading the prompt" */
    const char *unit;  /* of what is counted; NULL = tokens */
    uint64_t start_ns;
    int n_shown; /* characters of the line */
} sl_progress;
void sl_progress_update(sl_progress *progress, size_t done, size_t total);
void sl_progress_clear(sl_progress *progress);

/* Writes the value and a newline to standard output and releases it. Returns an exit status. */
int sl_json_finish(sl_json_out *json);

/* Writes the buffer to standard output and releases it; status and err tell how building it went.
 * Returns an exit status. */
int sl_out_finish(sl_buf *buf, sl_status status, const sl_error *err);

#endif
