/* Calls of the public header about the machine, and about what an engine computes on. */
#include <string.h>

#include "backend/cpu/cpu.h"
#include "backend/cuda/cuda.h"
#include "engine/engine_internal.h"

sl_status sl_cpu_level(const char *wanted, const char **out, sl_error *err)
{
    sl_isa isa;
    SL_TRY(sl_isa_choose(wanted, &isa, err));
    *out = sl_isa_name(isa);
    return SL_OK;
}

sl_status sl_engine_measure_ceilings(sl_engine *engine, sl_ceilings *out, sl_error *err)
{
    if (!engine->backend)
        return sl_fail(err, SL_ERR_ARGUMENT, "an engine without weights computes on nothing");
    return engine->backend->ceilings(engine->backend, out, err);
}

sl_status sl_cuda_device_info(int device, sl_device_info *out, sl_error *err)
{
    sl_cuda_info info;
    SL_TRY(sl_cuda_query(device, &info, err));
    *out = (sl_device_info){.capability_major = info.capability_major,
                            .capability_minor = info.capability_minor,
                            .n_multiprocessors = info.n_multiprocessors,
                            .memory_total = info.memory_total,
                            .memory_free = info.memory_free};
    memcpy(out->name, info.name, sizeof out->name);
    return SL_OK;
}
