/* Messages for people that are not results: the host decides where they go. Silent by default. */
#ifndef SL_BASE_LOG_H
#define SL_BASE_LOG_H

#include "base/base.h"
#include "sluice.h"

void sl_log(sl_log_level level, const char *format, ...) SL_PRINTF(2, 3);

#endif
