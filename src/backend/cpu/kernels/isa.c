/* Levels against what base/cpuid.h tells of the processor and the operating system; AMX tiles need
 * the system's permission besides. */
#include "backend/cpu/kernels/isa.h"

#include <string.h>

#include "base/cpuid.h"

static const char *const names[SL_ISA_COUNT] = {
    [SL_ISA_SCALAR] = "scalar",         [SL_ISA_AVX2] = "avx2", [SL_ISA_AVX512] = "avx512",
    [SL_ISA_AVX512VNNI] = "avx512vnni", [SL_ISA_AMX] = "amx",   [SL_ISA_NEON] = "neon",
};

const char *sl_isa_name(sl_isa isa)
{
    return names[isa];
}

bool sl_isa_usable(sl_isa isa)
{
    const sl_cpuid cpu = sl_cpuid_read();
    const bool avx2 = cpu.avx2 && cpu.fma && cpu.f16c;
    const bool avx512 = avx2 && cpu.avx512f && cpu.avx512bw && cpu.avx512dq && cpu.avx512vl;
    const bool vnni = avx512 && cpu.avx512vnni;
    switch (isa) {
    case SL_ISA_SCALAR:
        return true;
    case SL_ISA_AVX2:
        return avx2;
    case SL_ISA_AVX512:
        return avx512;
    case SL_ISA_AVX512VNNI:
        return vnni;
    case SL_ISA_AMX:
        return vnni && cpu.amx_int8 && sl_cpuid_allow_amx();
    case SL_ISA_NEON:
        return cpu.dotprod;
    default:
        return false;
    }
}

static sl_isa best(void)
{
    int isa = SL_ISA_COUNT - 1;
    while (!sl_isa_usable((sl_isa)isa))
        isa--;
    return (sl_isa)isa;
}

sl_status sl_isa_choose(const char *name, sl_isa *out, sl_error *err)
{
    if (!name || strcmp(name, "auto") == 0) {
        *out = best();
        return SL_OK;
    }
    for (int isa = 0; isa < SL_ISA_COUNT; isa++) {
        if (strcmp(name, names[isa]) != 0)
            continue;
        if (!sl_isa_usable((sl_isa)isa))
            return sl_fail(err, SL_ERR_UNSUPPORTED,
                           "this machine cannot run the %s kernels; its best are %s", name,
                           names[best()]);
        *out = (sl_isa)isa;
        return SL_OK;
    }
    return sl_fail(err, SL_ERR_ARGUMENT,
                   "'%s' is no instruction-set level: auto, scalar, avx2, avx512, avx512vnni, amx "
                   "or neon",
                   name);
}
