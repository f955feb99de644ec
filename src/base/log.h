/* Messages for people that are not results: the host decides where they go. Silent by default. */
#ifndef SL_BASE_LOG_H
#define SL_BASE_LOG_H

#include "base/base.h"

typedef enum sl_log_level { SL_LOG_ERROR, SL_LOG_WARNING, SL_LOG_INFO, SL_LOG_DEBUG } sl_log_level;

typedef void (*sl_log_callback)(void *context, sl_log_level level, const char *message);

/* One callback for the process; NULL = silent. Set it before other threads use the library. */
void sl_log_set_callback(sl_log_callback callback, void *context, sl_log_level most_verbose);

void sl_log(sl_log_level level, const char *format, ...) SL_PRINTF(2, 3);

#endif
