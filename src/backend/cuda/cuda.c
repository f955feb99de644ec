/* The backend's device, memory and life. */
#ifdef SL_CUDA

#include <string.h>

#include "backend/cuda/cuda_internal.h"

/* The kernels use instructions from Ampere on. */
enum { OLDEST_CAPABILITY = 8, OVERLAP_CAPABILITY = 9 };

sl_status sl_cuda_check(cudaError_t error, const char *what, sl_error *err)
{
    if (error == cudaSuccess)
        return SL_OK;
    return sl_fail(err, error == cudaErrorMemoryAllocation ? SL_ERR_MEMORY : SL_ERR_IO,
                   "CUDA: %s failed: %s", what, cudaGetErrorString(error));
}

/* What the device's pool has taken and nobody uses: as good as free. */
static size_t pool_unused(int device)
{
    cudaMemPool_t pool;
    uint64_t reserved = 0, used = 0;
    if (cudaDeviceGetDefaultMemPool(&pool, device) != cudaSuccess ||
        cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReservedMemCurrent, &reserved) !=
            cudaSuccess ||
        cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, &used) != cudaSuccess)
        return 0;
    return reserved > used ? (size_t)(reserved - used) : 0;
}

sl_status sl_cuda_query(int device, sl_cuda_info *out, sl_error *err)
{
    int count = 0;
    cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess || count == 0)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "no CUDA device can be used here: %s",
                       error == cudaSuccess ? "none was found" : cudaGetErrorString(error));
    if (device < 0 || device >= count)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "there is no CUDA device %d: the last one is %d",
                       device, count - 1);
    struct cudaDeviceProp p;
    SL_TRY(sl_cuda_check(cudaGetDeviceProperties(&p, device), "asking for the device", err));
    *out = (sl_cuda_info){.device = device,
                          .capability_major = p.major,
                          .capability_minor = p.minor,
                          .n_multiprocessors = p.multiProcessorCount};
    memcpy(out->name, p.name, sizeof out->name - 1);
    if (p.major < OLDEST_CAPABILITY)
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "%s has compute capability %d.%d; %d.0 or later is needed", out->name,
                       p.major, p.minor, OLDEST_CAPABILITY);
    SL_TRY(sl_cuda_check(cudaSetDevice(device), "choosing the device", err));
    SL_TRY(sl_cuda_check(cudaMemGetInfo(&out->memory_free, &out->memory_total),
                         "asking for its memory", err));
    out->memory_free += pool_unused(device);
    return SL_OK;
}

/* ---- memory ---- */

sl_status sl_cuda_reserve(sl_cuda *cuda, sl_cuda_buffer *buffer, size_t n_bytes, bool on_host,
                          sl_error *err)
{
    if (n_bytes <= buffer->n_bytes)
        return SL_OK;
    const size_t before = buffer->n_bytes;
    if (buffer->data)
        sl_cuda_forget_graphs(cuda);
    cudaError_t error = cudaSuccess;
    if (buffer->data)
        error = on_host ? cudaFreeHost(buffer->data) : cudaFree(buffer->data);
    *buffer = (sl_cuda_buffer){0};
    if (error == cudaSuccess)
        error =
            on_host ? cudaMallocHost(&buffer->data, n_bytes) : cudaMalloc(&buffer->data, n_bytes);
    SL_TRY(sl_cuda_check(error, "reserving memory for a run", err));
    buffer->n_bytes = n_bytes;
    if (on_host)
        return SL_OK;
    cuda->n_bytes += n_bytes - before;
    /* Kernels copy whole structures of which they use parts: once written, all of it counts as
     * initialised for the tools that look for reads of what is not. */
    return sl_cuda_check(cudaMemsetAsync(buffer->data, 0, n_bytes, cuda->queue.stream),
                         "clearing memory for a run", err);
}

static void release(sl_cuda_buffer *buffer, bool on_host)
{
    if (buffer->data)
        (void)(on_host ? cudaFreeHost(buffer->data) : cudaFree(buffer->data));
    *buffer = (sl_cuda_buffer){0};
}

sl_status sl_cuda_upload(sl_cuda *cuda, const void *data, size_t n_bytes, void **out, sl_error *err)
{
    sl_cuda_memory *record = sl_alloc_zero(SL_MEM_GENERAL, sizeof *record);
    if (!record)
        return sl_fail(err, SL_ERR_MEMORY, "out of memory for the list of weights");
    record->next = cuda->memory;
    cuda->memory = record;
    cudaError_t error = cudaMalloc(&record->data, n_bytes);
    if (error == cudaErrorMemoryAllocation) {
        size_t free = 0, total = 0;
        (void)cudaGetLastError();
        (void)cudaMemGetInfo(&free, &total);
        return sl_fail(err, SL_ERR_MEMORY,
                       "the weights do not fit on the device: %.2f GB wanted, %.2f of %.2f GB free",
                       (double)n_bytes / 1e9, (double)free / 1e9, (double)total / 1e9);
    }
    SL_TRY(sl_cuda_check(error, "reserving memory for weights", err));
    cuda->n_bytes += n_bytes;
    *out = record->data;
    if (!data)
        return SL_OK;
    return sl_cuda_check(cudaMemcpy(record->data, data, n_bytes, cudaMemcpyHostToDevice),
                         "uploading weights", err);
}

/* From the stream's pool: blocks of states come and go, and reserving device memory the plain way
 * stops the device each time. */
static void *cuda_alloc(sl_backend *backend, sl_mem_tag tag, size_t n_bytes)
{
    (void)tag;
    sl_cuda *cuda = (sl_cuda *)(void *)backend;
    void *memory = NULL;
    (void)cudaSetDevice(cuda->device);
    if (cudaMallocAsync(&memory, n_bytes > 0 ? n_bytes : 1, cuda->queue.stream) != cudaSuccess) {
        (void)cudaGetLastError();
        return NULL;
    }
    return memory;
}

static void cuda_free(sl_backend *backend, void *memory)
{
    sl_cuda *cuda = (sl_cuda *)(void *)backend;
    if (memory)
        (void)cudaFreeAsync(memory, cuda->queue.stream);
}

static void cuda_copy(sl_backend *backend, void *to, const void *from, size_t n_bytes)
{
    sl_cuda *cuda = (sl_cuda *)(void *)backend;
    (void)cudaSetDevice(cuda->device);
    cudaError_t error = cudaMemcpyAsync(to, from, n_bytes, cudaMemcpyDefault, cuda->queue.stream);
    if (error == cudaSuccess)
        error = cudaStreamSynchronize(cuda->queue.stream);
    if (error != cudaSuccess)
        cuda->failed = error;
}

void sl_cuda_forget_graphs(sl_cuda *cuda)
{
    for (size_t i = 0; i < SL_CUDA_GRAPHS; i++) {
        if (cuda->graphs[i].exec)
            (void)cudaGraphExecDestroy(cuda->graphs[i].exec);
        cuda->graphs[i] = (sl_cuda_graph){0};
    }
}

/* ---- life ---- */

/* The pool keeps what states give back, for those that come: not beyond the engine, for others may
 * want the memory, and what is not of states is not taken from the pool. */
static void empty_pool(const sl_cuda *cuda)
{
    cudaMemPool_t pool;
    if (cudaDeviceGetDefaultMemPool(&pool, cuda->device) == cudaSuccess)
        (void)cudaMemPoolTrimTo(pool, 0);
}

static void cuda_destroy(sl_backend *backend)
{
    if (!backend)
        return;
    sl_cuda *cuda = (sl_cuda *)(void *)backend;
    if (cuda->queue.stream)
        (void)cudaStreamSynchronize(cuda->queue.stream);
    sl_cuda_forget_graphs(cuda);
    while (cuda->memory) {
        sl_cuda_memory *memory = cuda->memory;
        cuda->memory = memory->next;
        (void)cudaFree(memory->data);
        sl_free(memory);
    }
    while (cuda->matrices) {
        sl_cuda_matrix *matrix = cuda->matrices;
        cuda->matrices = matrix->next;
        sl_free(matrix);
    }
    while (cuda->plans) {
        sl_cuda_plan *plan = cuda->plans;
        cuda->plans = plan->next;
        sl_free(plan->vectors);
        sl_free(plan->places);
        sl_free(plan);
    }
    release(&cuda->host_rows, true);
    release(&cuda->host_flags, true);
    release(&cuda->device_rows, false);
    release(&cuda->device_hidden, false);
    release(&cuda->device_logits, false);
    release(&cuda->device_flags, false);
    release(&cuda->host_logits, true);
    release(&cuda->kept, false);
    release(&cuda->groups, false);
    release(&cuda->host_lists, true);
    release(&cuda->attention, false);
    release(&cuda->chunks, false);
    release(&cuda->many, false);
    release(&cuda->experts, false);
    if (cuda->queue.stream) {
        (void)cudaStreamSynchronize(cuda->queue.stream);
        (void)cudaStreamDestroy(cuda->queue.stream);
        empty_pool(cuda);
    }
    sl_pool_destroy(cuda->pool);
    sl_free(cuda);
}

static sl_status open_stream(sl_cuda *cuda, sl_error *err)
{
    SL_TRY(sl_cuda_check(cudaStreamCreateWithFlags(&cuda->queue.stream, cudaStreamNonBlocking),
                         "opening a stream", err));
    cudaMemPool_t pool;
    uint64_t keep = UINT64_MAX;
    SL_TRY(sl_cuda_check(cudaDeviceGetDefaultMemPool(&pool, cuda->device),
                         "finding the memory pool", err));
    return sl_cuda_check(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep),
                         "setting up the memory pool", err);
}

static sl_status reserve_carry(sl_cuda *cuda, sl_error *err)
{
    const size_t n_bytes = sl_cu_carry_bytes(cuda->queue.n_multiprocessors);
    SL_TRY(sl_cuda_upload(cuda, NULL, n_bytes, &cuda->queue.carry, err));
    return sl_cuda_check(cudaMemsetAsync(cuda->queue.carry, 0, n_bytes, cuda->queue.stream),
                         "clearing memory", err);
}

sl_status sl_cuda_backend_create(int device, sl_backend **out, sl_error *err)
{
    sl_cuda_info info;
    SL_TRY(sl_cuda_query(device, &info, err));
    sl_cuda *cuda = sl_alloc_zero(SL_MEM_GENERAL, sizeof *cuda);
    if (!cuda)
        return sl_fail(err, SL_ERR_MEMORY, "out of memory for the CUDA backend");
    cuda->device = device;
    cuda->queue.n_multiprocessors = info.n_multiprocessors;
    cuda->queue.overlap = info.capability_major >= OVERLAP_CAPABILITY;
    cuda->base = (sl_backend){.name = "cuda",
                              .destroy = cuda_destroy,
                              .alloc = cuda_alloc,
                              .free = cuda_free,
                              .copy = cuda_copy,
                              .load = sl_cuda_load,
                              .run = sl_cuda_run,
                              .fetch_logits = sl_cuda_fetch_logits,
                              .ceilings = sl_cuda_ceilings};
    sl_status status = open_stream(cuda, err);
    if (status == SL_OK)
        status = reserve_carry(cuda, err);
    if (status == SL_OK)
        status = sl_pool_create(0, &cuda->pool, err);
    if (status != SL_OK) {
        cuda_destroy(&cuda->base);
        return status;
    }
    *out = &cuda->base;
    return SL_OK;
}

#endif
