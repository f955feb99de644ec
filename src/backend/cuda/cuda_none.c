/* What a build without CUDA says. */
#ifndef SL_CUDA

#include "backend/cuda/cuda.h"

sl_status sl_cuda_backend_create(int device, sl_backend **out, sl_error *err)
{
    (void)device;
    (void)out;
    return sl_fail(err, SL_ERR_UNSUPPORTED,
                   "this build has no CUDA backend; build it where nvcc is installed");
}

sl_status sl_cuda_query(int device, sl_cuda_info *out, sl_error *err)
{
    (void)out;
    return sl_cuda_backend_create(device, NULL, err);
}

size_t sl_cuda_packed_bytes(const sl_matrix *matrix)
{
    (void)matrix;
    return 0; /* there is no device that it could lie on */
}

size_t sl_cuda_plan_bytes(const sl_plan *plan)
{
    (void)plan;
    return 0;
}

size_t sl_cuda_run_bytes(const sl_plan *plan, uint32_t n_rows, uint32_t context)
{
    (void)plan;
    (void)n_rows;
    (void)context;
    return 0;
}

#endif
