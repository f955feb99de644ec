/* The floating-point environment of the contract (docs/EXACTNESS.md): round to nearest even,
 * denormals on, no traps. Hosts change it (FTZ, other rounding), so the library sets it at its
 * entry points and restores the host's on the way out; pool threads set it once. */
#ifndef SL_BASE_FPENV_H
#define SL_BASE_FPENV_H

#include "base/base.h"

typedef struct sl_fpenv {
    uint64_t saved; /* MXCSR or FPCR of the caller */
} sl_fpenv;

sl_fpenv sl_fpenv_enter(void);
void sl_fpenv_leave(sl_fpenv env);

#endif
