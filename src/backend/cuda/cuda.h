/* The CUDA backend. Built where nvcc is (make CUDA=1); a build without it, or a machine without
 * driver or device, says so in a sentence. */
#ifndef SL_BACKEND_CUDA_CUDA_H
#define SL_BACKEND_CUDA_CUDA_H

#include "backend/backend.h"

typedef struct sl_cuda_info {
    char name[128];
    int device, capability_major, capability_minor, n_multiprocessors;
    size_t memory_total, memory_free;
} sl_cuda_info;

/* Device number `device` (0 is the first). Errors: SL_ERR_UNSUPPORTED (built without CUDA, no
 * driver, no such device, too old a device), SL_ERR_MEMORY. */
sl_status sl_cuda_backend_create(int device, sl_backend **out, sl_error *err);

/* What a device is; the same errors. */
sl_status sl_cuda_query(int device, sl_cuda_info *out, sl_error *err);

/* What a matrix takes on a device. */
size_t sl_cuda_packed_bytes(const sl_matrix *matrix);

/* What a plan takes there besides its arena, and what the runs of one sequence take, up to n_rows
 * rows at a time and context tokens in all. Runs of all plans share the latter. */
size_t sl_cuda_plan_bytes(const sl_plan *plan);
size_t sl_cuda_run_bytes(const sl_plan *plan, uint32_t n_rows, uint32_t context);

#endif
