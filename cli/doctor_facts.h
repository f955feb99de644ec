/* What `sluice doctor` looks at, and what it makes of it. */
#ifndef SL_CLI_DOCTOR_FACTS_H
#define SL_CLI_DOCTOR_FACTS_H

#include "base/buf.h"
#include "base/cpuid.h"
#include "base/hostmem.h"
#include "sluice.h"

/* What could not be read is empty, 0, or where that means something negative. */
typedef struct sl_doctor_facts {
    sl_cpuid cpu;
    char cpu_name[96];
    const char *level;   /* instruction-set level that engines choose */
    const char *capped;  /* a lower one that they were asked for, or NULL */
    bool amx_refused;    /* the kernel did not give the tile registers when asked */
    unsigned n_online;   /* processors of the system */
    unsigned n_cores;    /* cores that they belong to */
    unsigned n_nodes;    /* of memory */
    unsigned n_allowed;  /* processors by the affinity mask */
    unsigned quota;      /* processors by the CPU quota, rounded up; 0 = none */
    unsigned n_usable;   /* what is left of all that: threads of an engine by default */
    sl_hostmem memory;   /* of the system and the control groups */
    char huge_pages[16]; /* "always", "madvise", "never" */
    char governor[32];   /* of the first processor */
    char driver[32];     /* of its frequency: "intel_pstate" */
    int turbo;           /* 1 on, 0 off, -1 not known */
    double load;         /* average of the last minute; -1 not known */
    double steal;        /* share of the time since the start that other guests got; -1 */
    bool on_battery;
    bool has_nvidia_device; /* /dev/nvidia0 */
    bool has_cuda_library;  /* libcuda.so.1 where the loader looks */
    sl_device_info gpu;     /* the first that can be used; no name = none */
    sl_error no_gpu;        /* why there is none */
} sl_doctor_facts;

/* Everything that files tell. root goes before /proc, /sys and /dev: "" outside of tests. */
void sl_doctor_read(const char *root, sl_doctor_facts *facts);

/* What the processor, the loader and the library tell. */
void sl_doctor_ask(sl_doctor_facts *facts);

/* A model and what running it takes, against what there is. */
typedef struct sl_doctor_model {
    sl_model_info info;
    uint32_t context;
    sl_memory_plan plan;
    sl_run_cost step; /* of one sequence at its beginning */
} sl_doctor_model;

/* Memory of the weights outside of the file; what has to be there with them, and with the mapped
 * weights what should be. */
uint64_t sl_doctor_weights(const sl_memory_plan *plan);
uint64_t sl_doctor_must_have(const sl_memory_plan *plan);
uint64_t sl_doctor_should_have(const sl_memory_plan *plan);

/* "AVX-512 VNNI, which the processor does not have": what the next level needs; "" at the top. */
const char *sl_doctor_missing(const sl_doctor_facts *facts);

enum { SL_MAX_ADVICE = 16, SL_ADVICE_BYTES = 256 };

typedef struct sl_advice {
    bool fatal; /* nothing can run like this */
    char text[SL_ADVICE_BYTES];
} sl_advice;

typedef struct sl_advice_list {
    sl_advice items[SL_MAX_ADVICE];
    size_t n;
} sl_advice_list;

/* One line for every problem found. model may be NULL. */
void sl_doctor_advise(const sl_doctor_facts *facts, const sl_doctor_model *model,
                      sl_advice_list *out);

/* One more: bandwidth and arithmetic could not be measured. */
void sl_doctor_add_failure(sl_advice_list *out, const sl_error *err);
bool sl_doctor_can_run(const sl_advice_list *advice);

#endif
