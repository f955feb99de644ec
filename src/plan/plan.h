/* A plan: ops recorded once, checked, with all their buffers placed in one arena.
 *
 * Life cycle: sl_plan_create; the model calls the recording functions in program order;
 * sl_plan_finish checks shapes and hazards and places the buffers; a backend runs it any number of
 * times. A recording call that fails makes the plan remember its first error, so that graph code
 * reads like the formulas and sl_plan_finish reports it. */
#ifndef SL_PLAN_PLAN_H
#define SL_PLAN_PLAN_H

#include "base/buf.h"
#include "plan/op.h"

typedef struct sl_value_info {
    const char *name;
    sl_form form;
    uint32_t n_cols;
    size_t offset, n_bytes;     /* in the arena */
    uint32_t first_op, last_op; /* life time: written first, used last */
} sl_value_info;

typedef struct sl_plan sl_plan;

/* capacity: the most rows of one run. */
sl_status sl_plan_create(const char *name, uint32_t capacity, const sl_state_shape *shape,
                         sl_plan **out, sl_error *err);
void sl_plan_free(sl_plan *plan);

/* ---- recording ---- */

/* The layer that following ops belong to (-1 = none). */
void sl_plan_layer(sl_plan *plan, int layer);

/* An activation in the forms its consumers need; f32 is always there. */
typedef struct sl_act {
    sl_value f32, q8;
} sl_act;

enum { SL_NEED_F32 = 1, SL_NEED_Q8 = 2 };

/* Which form a product with this matrix reads. */
unsigned sl_matrix_need(const sl_matrix *matrix);

sl_value sl_plan_embed(sl_plan *plan, const sl_matrix *table);
sl_act sl_plan_norm(sl_plan *plan, sl_value x, const float *w, float eps, unsigned need);
sl_value sl_plan_project(sl_plan *plan, sl_act x, const sl_matrix *w, const char *name);
sl_act sl_plan_gdn(sl_plan *plan, sl_value qkv, sl_value z, sl_value a, sl_value b,
                   const sl_gdn_args *args, unsigned need);
sl_act sl_plan_attention(sl_plan *plan, sl_value q, sl_value k, sl_value v,
                         const sl_attention_args *args, unsigned need);
sl_act sl_plan_swiglu(sl_plan *plan, sl_value gate, sl_value up, unsigned need);
sl_value sl_plan_add(sl_plan *plan, sl_value x, sl_value y); /* in place: returns x */

typedef struct sl_routed {
    sl_value ids, weights;
} sl_routed;
sl_routed sl_plan_route(sl_plan *plan, sl_value logits, uint32_t top_k);
sl_value sl_plan_experts(sl_plan *plan, sl_act x, sl_routed routed, const sl_experts_args *args);
sl_value sl_plan_add_gated(sl_plan *plan, sl_value x, sl_value gate, sl_value y); /* returns x */
sl_act sl_plan_mtp_input(sl_plan *plan, sl_value x, const sl_mtp_input_args *args, unsigned need);
void sl_plan_keep(sl_plan *plan, sl_value x);
void sl_plan_head(sl_plan *plan, sl_act x, const sl_matrix *w);

/* Names the result of the last recorded op for observers: "L3.mixer". The text is copied. */
void sl_plan_tap(sl_plan *plan, const char *format, ...) SL_PRINTF(2, 3);

/* ---- finishing and reading ---- */

sl_status sl_plan_finish(sl_plan *plan, sl_error *err);

const char *sl_plan_name(const sl_plan *plan);
uint32_t sl_plan_capacity(const sl_plan *plan);
const sl_state_shape *sl_plan_shape(const sl_plan *plan);
size_t sl_plan_op_count(const sl_plan *plan);
const sl_op *sl_plan_op(const sl_plan *plan, size_t i);
size_t sl_plan_value_count(const sl_plan *plan);
const sl_value_info *sl_plan_value(const sl_plan *plan, sl_value value);
size_t sl_plan_arena_bytes(const sl_plan *plan);

/* Where a value lies in an arena. */
float *sl_plan_f32(const sl_plan *plan, void *arena, sl_value value);
uint32_t *sl_plan_u32(const sl_plan *plan, void *arena, sl_value value);
sl_q8_rows sl_plan_q8(const sl_plan *plan, void *arena, sl_value value);

/* What a run is like, as far as its costs depend on it: n_sequences sequences of n_rows rows each,
 * all from position pos on. */
typedef struct sl_workload {
    uint32_t n_sequences, n_rows, pos;
    uint32_t n_logits; /* rows of all sequences whose logits are wanted */
} sl_workload;

/* Bytes read and written and arithmetic of an op, for the listing, bench and profile. A
 * multiply-add is two flops. */
typedef struct sl_op_cost {
    double weight_bytes, activation_bytes, state_bytes; /* state: recurrent states, tapes, KV */
    double flops;                                       /* all together */
    double int8_macs; /* of flops: multiply-adds of quantised matrices */
} sl_op_cost;
sl_op_cost sl_plan_op_cost_of(const sl_plan *plan, size_t i, const sl_workload *work);

/* One sequence of n_rows rows at position pos. */
sl_op_cost sl_plan_op_cost(const sl_plan *plan, size_t i, uint32_t n_rows, uint32_t pos);

/* All ops together. */
sl_op_cost sl_plan_cost(const sl_plan *plan, const sl_workload *work);

/* ---- listing (dump.c) ---- */

const char *sl_op_name(sl_op_kind kind);

/* The EXPLAIN-style listing: the arena, one line an op, the totals, and what each kind of op does.
 */
sl_status sl_plan_dump(const sl_plan *plan, uint32_t n_rows, uint32_t pos, sl_buf *out,
                       sl_error *err);

#endif
