/* What the processor and the operating system allow. The compiler's run-time checks look at CPUID
 * and at the registers that the system saves; AMX tiles need the system's permission besides. */
#include "backend/cpu/kernels/isa.h"

#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

static const char *const names[SL_ISA_COUNT] = {
    [SL_ISA_SCALAR] = "scalar",         [SL_ISA_AVX2] = "avx2", [SL_ISA_AVX512] = "avx512",
    [SL_ISA_AVX512VNNI] = "avx512vnni", [SL_ISA_AMX] = "amx",   [SL_ISA_NEON] = "neon",
};

const char *sl_isa_name(sl_isa isa)
{
    return names[isa];
}

#if defined(__x86_64__)

/* No name of the compilers' check in every version. */
static bool has_f16c(void)
{
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

static bool has_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           has_f16c();
}

static bool has_avx512(void)
{
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

static bool has_amx(void)
{
    enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18, TILE_BIT = 1 << 24, INT8_BIT = 1 << 25 };
    unsigned a, b, c, d;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d & TILE_BIT) || !(d & INT8_BIT))
        return false;
    return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
}

bool sl_isa_usable(sl_isa isa)
{
    switch (isa) {
    case SL_ISA_SCALAR:
        return true;
    case SL_ISA_AVX2:
        return has_avx2();
    case SL_ISA_AVX512:
        return has_avx512();
    case SL_ISA_AVX512VNNI:
        return has_avx512() && __builtin_cpu_supports("avx512vnni");
    case SL_ISA_AMX:
        return sl_isa_usable(SL_ISA_AVX512VNNI) && has_amx();
    default:
        return false;
    }
}

#elif defined(__aarch64__)

bool sl_isa_usable(sl_isa isa)
{
    return isa == SL_ISA_SCALAR ||
           (isa == SL_ISA_NEON && (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0);
}

#else

bool sl_isa_usable(sl_isa isa)
{
    return isa == SL_ISA_SCALAR;
}

#endif

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
