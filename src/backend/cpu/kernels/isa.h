/* Instruction-set levels of the CPU kernels. Every level gives the same bits; a higher one is
 * faster. */
#ifndef SL_BACKEND_CPU_KERNELS_ISA_H
#define SL_BACKEND_CPU_KERNELS_ISA_H

#include "base/err.h"

/* In ascending order within a family: a level may use the kernels of those below it.
 *   avx2        AVX2, FMA, F16C
 *   avx512      AVX-512 F, BW, DQ, VL
 *   avx512vnni  the same with VNNI
 *   amx         the same with AMX int8 tiles, which the system must grant
 *   neon        Armv8.2 with dot products */
typedef enum sl_isa {
    SL_ISA_SCALAR,
    SL_ISA_AVX2,
    SL_ISA_AVX512,
    SL_ISA_AVX512VNNI,
    SL_ISA_AMX,
    SL_ISA_NEON,
    SL_ISA_COUNT
} sl_isa;

const char *sl_isa_name(sl_isa isa);

/* Whether this build, this processor and this operating system can run the level. Asks the system
 * for the AMX tile registers the first time it is asked about them. */
bool sl_isa_usable(sl_isa isa);

/* The level for a name; NULL or "auto" = the best usable one. Errors: SL_ERR_ARGUMENT (no such
 * level, the sentence lists them), SL_ERR_UNSUPPORTED (not on this machine). */
sl_status sl_isa_choose(const char *name, sl_isa *out, sl_error *err);

#endif
