/* What this machine can do, measured with loops that do nothing else: the limits that shares of a
 * ceiling are quoted against (sl_measure_ceilings of sluice.h). The loops themselves are in
 * ceilings_x86.c; other machines use plain C. */
#ifndef SL_BACKEND_CPU_CEILINGS_H
#define SL_BACKEND_CPU_CEILINGS_H

#include "base/base.h"

/* One round of a loop. Each returns something that depends on all of its work. */
typedef struct sl_ceiling_loop {
    const char *name; /* the instruction: "vpdpbusd zmm" */
    uint64_t (*run)(size_t n_rounds);
    double ops_per_round; /* a multiply-add counts as two */
} sl_ceiling_loop;

/* Reads p[0..n), n a multiple of 256, touching memory `ahead` bytes further on (0 = not). */
typedef uint64_t (*sl_ceiling_read)(const uint8_t *p, size_t n, size_t ahead);

/* The best loops that processor and operating system allow. */
typedef struct sl_ceiling_loops {
    sl_ceiling_loop int8, f32;
    sl_ceiling_loop amx; /* run is NULL when there is none */
    sl_ceiling_read read;
} sl_ceiling_loops;

sl_ceiling_loops sl_ceiling_loops_best(void);

/* Replaces what this kind of processor does better. */
void sl_ceiling_loops_x86(sl_ceiling_loops *loops);

#endif
