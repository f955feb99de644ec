/* Calls of the public header about the machine, not about a model. */
#include "backend/cpu/cpu.h"

sl_status sl_cpu_level(const char *wanted, const char **out, sl_error *err)
{
    sl_isa isa;
    SL_TRY(sl_isa_choose(wanted, &isa, err));
    *out = sl_isa_name(isa);
    return SL_OK;
}
