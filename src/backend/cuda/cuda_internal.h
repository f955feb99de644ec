/* Shared by the files of the CUDA backend. */
#ifndef SL_BACKEND_CUDA_CUDA_INTERNAL_H
#define SL_BACKEND_CUDA_CUDA_INTERNAL_H

#include "backend/cuda/cuda.h"
#include "backend/cuda/kernels/launch.h"
#include "base/pool.h"

/* Memory that grows on demand and is never shrunk: on the device, or pinned on the host. */
typedef struct sl_cuda_buffer {
    void *data;
    size_t n_bytes;
} sl_cuda_buffer;

/* The vectors of an op's arguments on the device, in the order of its arguments' members. */
enum { SL_CUDA_VECTORS = 4 };
typedef struct sl_cuda_vectors {
    const float *v[SL_CUDA_VECTORS];
} sl_cuda_vectors;

/* What a plan needs besides its arena: made at its first run. */
typedef struct sl_cuda_plan {
    struct sl_cuda_plan *next;
    const sl_plan *plan;
    sl_cuda_vectors *vectors; /* one per op */
} sl_cuda_plan;

typedef struct sl_cuda {
    sl_backend base;
    int device;
    cudaStream_t stream;
    cudaError_t failed; /* of a copy, which cannot report it: the next run does */
    sl_pool *pool;      /* rearranges weights while loading; NULL until then */
    void **weights;     /* device memory that lives as long as the backend */
    size_t n_weights, weights_capacity;
    sl_cu_matrix **matrices;
    size_t n_matrices, matrices_capacity;
    sl_cuda_plan *plans;
    sl_cuda_buffer host_rows, device_rows;    /* segments, rows, pages */
    sl_cuda_buffer host_embed, device_hidden; /* embedded rows; hidden states for MTP */
    sl_cuda_buffer device_logits, device_flags, host_flags, attention;
} sl_cuda;

/* SL_OK or a sentence: what failed, and CUDA's own reason. */
sl_status sl_cuda_check(cudaError_t error, const char *what, sl_error *err);

sl_status sl_cuda_reserve(sl_cuda_buffer *buffer, size_t n_bytes, bool on_host, sl_error *err);

/* Device memory for weights, filled from the host. */
sl_status sl_cuda_upload(sl_cuda *cuda, const void *data, size_t n_bytes, void **out,
                         sl_error *err);

sl_status sl_cuda_load(sl_backend *backend, sl_matrix *matrix, sl_error *err);
sl_status sl_cuda_run(sl_backend *backend, const sl_plan *plan, void *arena, const sl_run *run,
                      sl_error *err);

#endif
