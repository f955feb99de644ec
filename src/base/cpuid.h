/* The processor: its name and the vector instructions that it has and that the operating system
 * lets programs use. All members are false and empty on processors other than x86-64 and ARM64. */
#ifndef SL_BASE_CPUID_H
#define SL_BASE_CPUID_H

#include "base/base.h"

typedef struct sl_cpuid {
    char brand[64]; /* "Intel(R) Xeon(R) Processor"; "" when the processor does not tell */
    /* x86-64: usable, that is in the processor and enabled by the operating system. */
    bool avx2, fma, f16c, avxvnni;
    bool avx512f, avx512bw, avx512dq, avx512vl, avx512vnni;
    bool amx_int8; /* the process has to ask for it, see sl_cpuid_allow_amx */
    /* In the processor, whether enabled or not. */
    bool has_avx, has_avx512f, has_amx_int8;
    bool os_avx, os_avx512, os_amx; /* enabled by the operating system */
    bool hypervisor;                /* a virtual machine */
    /* ARM64. */
    bool neon, dotprod, i8mm;
} sl_cpuid;

sl_cpuid sl_cpuid_read(void);

/* Asks the kernel for the tile registers, for the whole process; false when it refuses. */
bool sl_cpuid_allow_amx(void);

#endif
