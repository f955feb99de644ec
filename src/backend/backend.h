/* What a device has to offer: memory for states and arenas, and running a plan. */
#ifndef SL_BACKEND_BACKEND_H
#define SL_BACKEND_BACKEND_H

#include "base/mem.h"
#include "plan/plan.h"

typedef struct sl_backend sl_backend;

struct sl_backend {
    const char *name; /* "cpu" */
    void (*destroy)(sl_backend *backend);
    /* Memory that the backend's kernels can use, aligned to SL_MEM_ALIGN, uninitialised; NULL when
     * there is none left. */
    void *(*alloc)(sl_backend *backend, sl_mem_tag tag, size_t n_bytes);
    void (*free)(sl_backend *backend, void *memory);
    /* Copies between such memories, or between one and the host's. */
    void (*copy)(sl_backend *backend, void *to, const void *from, size_t n_bytes);
    /* Room for all matrices that will be loaded, n_bytes as the backend counts them: called once,
     * before the first; NULL when the backend finds room for each by itself. */
    sl_status (*reserve)(sl_backend *backend, size_t n_bytes, sl_error *err);
    /* Brings a matrix that products read into the form that the backend computes with and sets
     * matrix->packed; its rows are not read any more then. Leaves it NULL when that form is the
     * file's. What was made lives as long as the backend. */
    sl_status (*load)(sl_backend *backend, sl_matrix *matrix, sl_error *err);
    /* Runs every op of the plan over the rows of `run`. `arena` has sl_plan_arena_bytes. Values
     * that are not finite are no error here: they are noted in run->faults and stay in their rows.
     */
    sl_status (*run)(sl_backend *backend, const sl_plan *plan, void *arena, const sl_run *run,
                     sl_error *err);
    /* Measures what the device can do, which takes a second or two and some memory. */
    sl_status (*ceilings)(sl_backend *backend, sl_ceilings *out, sl_error *err);
    /* Copies a row of logits that an earlier run kept to out[vocabulary]. NULL: the backend keeps
     * none, and no run may ask for it. */
    sl_status (*fetch_logits)(sl_backend *backend, uint32_t place, float *out, sl_error *err);
};

#endif
