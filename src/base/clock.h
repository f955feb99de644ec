/* Monotonic time. */
#ifndef SL_BASE_CLOCK_H
#define SL_BASE_CLOCK_H

#include "base/base.h"

uint64_t sl_clock_ns(void);

#endif
