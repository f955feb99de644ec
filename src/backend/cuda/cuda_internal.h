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

/* What a plan needs besides its arena: made at its first run. Runs of few rows have their values in
 * memory of their own, each in another place: kernels that do several ops at once, and kernels that
 * begin before others end, would trip over places that the arena gives away again. */
typedef struct sl_cuda_plan {
    struct sl_cuda_plan *next;
    const sl_plan *plan;
    sl_cuda_vectors *vectors; /* one per op */
    size_t *places;           /* of the values in few_rows */
    char *few_rows;
    const sl_op *embed, *head, *gdn, *attention; /* the first of their kind; the last two or NULL */
    const sl_cu_matrix *table;                   /* of embeddings; NULL: the host looks them up */
} sl_cuda_plan;

/* A Q8 value of few rows: codes, scales and sums one after the other. */
enum { SL_CUDA_Q8_BLOCK_BYTES = SL_Q8_BLOCK + sizeof(float) + 2 * sizeof(int16_t) };
static inline uint32_t sl_cuda_n_blocks(const sl_value_info *value)
{
    return (value->n_cols + SL_Q8_BLOCK - 1) / SL_Q8_BLOCK;
}

/* Memory of the device, and a matrix in it, that live as long as the backend. */
typedef struct sl_cuda_memory {
    struct sl_cuda_memory *next;
    void *data;
} sl_cuda_memory;
typedef struct sl_cuda_matrix {
    struct sl_cuda_matrix *next;
    sl_cu_matrix matrix;
} sl_cuda_matrix;

/* A captured run: replayed for every run of the same shape. */
typedef struct sl_cuda_shape {
    const sl_plan *plan;
    const void *arena;
    uint32_t n_rows, n_segments, n_logit_rows;
    uint32_t n_pages, n_key_blocks;   /* rounded up, so that a shape lasts while a sequence grows */
    uint32_t n_split_rows, most_rows; /* see sl_cu_rows */
    uint32_t n_kept, first_kept;      /* rows of logits that stay */
    bool one_row_each;
} sl_cuda_shape;
enum { SL_CUDA_GRAPHS = 32 };
typedef struct sl_cuda_graph {
    sl_cuda_shape shape;
    cudaGraphExec_t exec;
    uint64_t used;
} sl_cuda_graph;

typedef struct sl_cuda {
    sl_backend base;
    int device;
    sl_cu_queue queue;
    sl_cuda_graph graphs[SL_CUDA_GRAPHS];
    uint64_t clock;     /* counts runs, for the graph least recently used */
    sl_cuda_shape last; /* a shape is captured when it comes a second time */
    cudaError_t failed; /* of a copy, which cannot report it: the next run does */
    sl_pool *pool;      /* rearranges weights while loading */
    sl_cuda_memory *memory;
    sl_cuda_matrix *matrices;
    sl_cuda_plan *plans;
    sl_cuda_buffer host_rows, device_rows; /* segments, pages, rows; tokens and embedded rows */
    sl_cuda_buffer device_hidden;          /* hidden states for MTP */
    sl_cuda_buffer device_logits, host_logits, device_flags, host_flags, attention, chunks;
    sl_cuda_buffer many;               /* of sl_cuda_run_fused_many */
    sl_cuda_buffer experts;            /* of sl_cuda_run_experts */
    sl_cuda_buffer kept;               /* rows of logits of the present evaluation */
    size_t vocab;                      /* of those */
    size_t n_bytes;                    /* of the device in buffers, weights and plans */
    sl_cuda_buffer groups, host_lists; /* for short lists of the likeliest tokens */
} sl_cuda;

/* SL_OK or a sentence: what failed, and CUDA's own reason. */
sl_status sl_cuda_check(cudaError_t error, const char *what, sl_error *err);

/* May move the buffer, which makes captured runs void. */
sl_status sl_cuda_reserve(sl_cuda *cuda, sl_cuda_buffer *buffer, size_t n_bytes, bool on_host,
                          sl_error *err);

/* Device memory that lives as long as the backend; filled from the host unless data is NULL. */
sl_status sl_cuda_upload(sl_cuda *cuda, const void *data, size_t n_bytes, void **out,
                         sl_error *err);

sl_status sl_cuda_load(sl_backend *backend, sl_matrix *matrix, sl_error *err);

/* Bytes of the buffers that a run uses. */
typedef struct sl_cuda_needs {
    size_t host_rows, host_flags, host_logits, host_lists;
    size_t device_rows, device_flags, device_hidden, device_logits, kept, groups, chunks, many,
        experts, attention;
} sl_cuda_needs;

/* One run, as the op runners see it. */
typedef struct sl_cuda_step {
    sl_cuda *cuda;
    const sl_plan *plan;
    void *arena;
    const sl_run *run;
    const sl_cuda_plan *prepared;
    sl_cu_rows rows;
    sl_cu_begin begin;          /* where the run's rows come from */
    const uint32_t *logit_rows; /* on the device */
    sl_cuda_shape shape;
    struct sl_cuda_profile *profile; /* while the run is recorded */
    uint32_t op_index;
    const sl_op *op;
} sl_cuda_step;

float *sl_cuda_f32(const sl_cuda_step *s, sl_value v);
uint32_t *sl_cuda_u32(const sl_cuda_step *s, sl_value v);
sl_cu_q8 sl_cuda_q8(const sl_cuda_step *s, sl_value v);
const float *sl_cuda_vector(const sl_cuda_step *s, uint32_t op, int i);
/* The input of a product, in the form that the plan made for its matrix. */
void sl_cuda_set_input(const sl_cuda_step *s, sl_value v, sl_cu_product *p);

/* Runs the op at s->op_index and as many after it as one kernel can do together; *n_ops is their
 * number, 0 when there is no such kernel. */
sl_status sl_cuda_run_fused(const sl_cuda_step *s, uint32_t *n_ops, sl_error *err);

bool sl_cuda_wants_hidden(const sl_run *run);

/* Times of ops, for a run with records. *out is NULL for others, and then nothing happens. */
typedef struct sl_cuda_profile sl_cuda_profile;
sl_status sl_cuda_profile_open(const sl_cuda_step *s, sl_cuda_profile **out, sl_error *err);

/* Before each group of ops that are carried out together, with the first of them; behind the last
 * with the number of ops. */
sl_status sl_cuda_profile_group(sl_cuda_profile *profile, const sl_cuda_step *s, uint32_t op,
                                sl_error *err);

/* Adds to the run's records, once the stream has come to its end. */
sl_status sl_cuda_profile_collect(const sl_cuda_profile *profile, const sl_cuda_step *s,
                                  sl_error *err);
void sl_cuda_profile_close(sl_cuda_profile *profile);

sl_status sl_cuda_ceilings(sl_backend *backend, sl_ceilings *out, sl_error *err);

/* The ops that a run asks for by name. */
void sl_cuda_look_through(const sl_plan *plan, sl_cuda_plan *out);

/* Made at a plan's first run. */
sl_status sl_cuda_prepare_plan(sl_cuda *cuda, const sl_plan *plan, const sl_cuda_plan **out,
                               sl_error *err);

/* The same for runs of more rows than a step takes. */
uint32_t sl_cuda_run_fused_many(const sl_cuda_step *s);

/* What sl_cuda_run_fused_many wants of the buffer `many`. */
size_t sl_cuda_many_bytes(const sl_plan *plan, uint32_t n_rows);

/* Mixtures of experts; what they want of the buffer `experts`. */
void sl_cuda_run_route(const sl_cuda_step *s);
void sl_cuda_run_experts(const sl_cuda_step *s);
/* A run of one row: everything from the router on, where it can be done together; the number of
 * ops, or 0. */
uint32_t sl_cuda_run_mixture(const sl_cuda_step *s);
size_t sl_cuda_experts_bytes(const sl_plan *plan, uint32_t n_rows);

void sl_cuda_forget_graphs(sl_cuda *cuda);

/* ---- logits ---- */

enum { SL_CUDA_FETCHED = 16 /* up to so many rows of logits come back through pinned memory */ };

/* Memory for what a run does with its logits. */
void sl_cuda_need_logits(const sl_cuda_step *s, sl_cuda_needs *needs);
/* Where the head puts them. */
float *sl_cuda_logits(const sl_cuda_step *s);
/* Puts on the stream what follows the head: lists and copies. */
sl_status sl_cuda_enqueue_logits(const sl_cuda_step *s, uint32_t head_op, sl_error *err);
/* Before a run starts, and until it has ended. */
void sl_cuda_expect_logits(const sl_cuda_step *s);
sl_status sl_cuda_await(const sl_cuda_step *s, sl_error *err);
/* After the run: to the caller. */
void sl_cuda_deliver_logits(const sl_cuda_step *s);
sl_status sl_cuda_fetch_logits(sl_backend *backend, uint32_t place, float *out, sl_error *err);

sl_status sl_cuda_run(sl_backend *backend, const sl_plan *plan, void *arena, const sl_run *run,
                      sl_error *err);

#endif
