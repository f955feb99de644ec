/* Recording and finishing plans.
 *
 * Invariants of a finished plan, checked by sl_plan_finish:
 *   1. every input was written by an earlier op;
 *   2. two values whose life times overlap do not overlap in the arena;
 *   3. an op never writes a value that it also reads, except in place where the op is defined so.
 * Refused: widths that do not match between an op and its operands or weights. */
#include "plan/plan.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum {
    MAX_OPS = 64 * 1024,
    MAX_VALUES = 32 * 1024, /* below SL_NO_VALUE */
    ARENA_ALIGN = 64
};

struct sl_plan {
    char *name;
    uint32_t capacity;
    sl_state_shape shape;
    sl_op *ops;
    size_t n_ops, ops_capacity;
    sl_value_info *values;
    size_t n_values, values_capacity;
    size_t arena_bytes;
    int layer;
    sl_error error; /* the first failure while recording */
};

sl_status sl_plan_create(const char *name, uint32_t capacity, const sl_state_shape *shape,
                         sl_plan **out, sl_error *err)
{
    if (capacity == 0)
        return sl_fail(err, SL_ERR_ARGUMENT, "a plan for no rows");
    sl_plan *plan = sl_alloc_zero(SL_MEM_GENERAL, sizeof *plan);
    if (!plan)
        return sl_fail(err, SL_ERR_MEMORY, "out of memory for a plan");
    plan->name = sl_strndup(SL_MEM_GENERAL, name, strlen(name));
    if (!plan->name) {
        sl_free(plan);
        return sl_fail(err, SL_ERR_MEMORY, "out of memory for a plan");
    }
    plan->capacity = capacity;
    plan->shape = *shape;
    plan->layer = -1;
    *out = plan;
    return SL_OK;
}

void sl_plan_free(sl_plan *plan)
{
    if (!plan)
        return;
    for (size_t i = 0; i < plan->n_ops; i++)
        sl_free((char *)(uintptr_t)plan->ops[i].tap);
    sl_free(plan->ops);
    sl_free(plan->values);
    sl_free(plan->name);
    sl_free(plan);
}

/* ---- values and ops ---- */

static void SL_PRINTF(3, 4) record_failure(sl_plan *plan, sl_status status, const char *format, ...)
{
    if (plan->error.status != SL_OK)
        return;
    char text[256];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    sl_fail(&plan->error, status, "plan %s, op %zu: %s", plan->name, plan->n_ops, text);
}

/* Grows an array by one item; false (and the failure recorded) when it cannot. */
static bool grow(sl_plan *plan, void **items, size_t n, size_t *capacity, size_t size, size_t limit)
{
    if (n < *capacity)
        return true;
    size_t wanted = sl_min_size(limit, *capacity ? *capacity * 2 : 64);
    void *bigger = n < limit ? sl_realloc(SL_MEM_GENERAL, *items, wanted * size) : NULL;
    if (!bigger) {
        record_failure(plan, n < limit ? SL_ERR_MEMORY : SL_ERR_LIMIT, "the plan is too large");
        return false;
    }
    *items = bigger;
    *capacity = wanted;
    return true;
}

static sl_value new_value(sl_plan *plan, const char *name, sl_form form, uint32_t n_cols)
{
    void *values = plan->values;
    if (plan->error.status != SL_OK || !grow(plan, &values, plan->n_values, &plan->values_capacity,
                                             sizeof *plan->values, MAX_VALUES))
        return SL_NO_VALUE;
    plan->values = values;
    plan->values[plan->n_values] =
        (sl_value_info){.name = name, .form = form, .n_cols = n_cols, .first_op = UINT32_MAX};
    return (sl_value)plan->n_values++;
}

/* The float rows are always there: int8 blocks are made from them. */
static sl_act new_act(sl_plan *plan, const char *name, uint32_t n_cols, unsigned need)
{
    sl_act act = {new_value(plan, name, SL_FORM_F32, n_cols), SL_NO_VALUE};
    if (need & SL_NEED_Q8)
        act.q8 = new_value(plan, name, SL_FORM_Q8, n_cols);
    return act;
}

static uint32_t cols(const sl_plan *plan, sl_value v)
{
    return v < plan->n_values ? plan->values[v].n_cols : 0;
}

static sl_op *new_op(sl_plan *plan, sl_op_kind kind)
{
    void *ops = plan->ops;
    if (plan->error.status != SL_OK ||
        !grow(plan, &ops, plan->n_ops, &plan->ops_capacity, sizeof *plan->ops, MAX_OPS))
        return NULL;
    plan->ops = ops;
    sl_op *op = &plan->ops[plan->n_ops++];
    memset(op, 0, sizeof *op);
    op->kind = kind;
    op->layer = plan->layer;
    for (int i = 0; i < SL_OP_MAX_IN; i++)
        op->in[i] = SL_NO_VALUE;
    for (int i = 0; i < SL_OP_MAX_OUT; i++)
        op->out[i] = SL_NO_VALUE;
    return op;
}

/* Widths are checked while recording, where the message can still name the op. */
static void expect_cols(sl_plan *plan, const char *what, uint32_t found, uint64_t expected)
{
    if (found != expected)
        record_failure(plan, SL_ERR_FORMAT, "%s has %u columns, expected %llu", what, found,
                       (unsigned long long)expected);
}

/* ---- recording ---- */

void sl_plan_layer(sl_plan *plan, int layer)
{
    plan->layer = layer;
}

unsigned sl_matrix_need(const sl_matrix *matrix)
{
    return sl_dtype_get(matrix->dtype)->quantised ? SL_NEED_Q8 : SL_NEED_F32;
}

/* The form of an activation that a product with w reads. */
static sl_value product_input(sl_plan *plan, sl_act x, const sl_matrix *w)
{
    sl_value v = sl_matrix_need(w) == SL_NEED_Q8 ? x.q8 : x.f32;
    if (v == SL_NO_VALUE)
        record_failure(plan, SL_ERR_ARGUMENT, "the activation lacks the form a %s matrix reads",
                       sl_dtype_get(w->dtype)->name);
    return v;
}

sl_value sl_plan_embed(sl_plan *plan, const sl_matrix *table)
{
    sl_value x = new_value(plan, "x", SL_FORM_F32, table->n_cols);
    sl_op *op = new_op(plan, SL_OP_EMBED);
    if (op) {
        op->out[0] = x;
        op->args.matrix = *table;
    }
    return x;
}

sl_act sl_plan_norm(sl_plan *plan, sl_value x, const float *w, float eps, unsigned need)
{
    sl_act y = new_act(plan, "normed", cols(plan, x), need);
    sl_op *op = new_op(plan, SL_OP_NORM);
    if (op) {
        op->in[0] = x;
        op->out[0] = y.f32;
        op->out[1] = y.q8;
        op->args.norm = (sl_norm_args){.w = w, .eps = eps};
    }
    return y;
}

sl_value sl_plan_project(sl_plan *plan, sl_act x, const sl_matrix *w, const char *name)
{
    sl_value in = product_input(plan, x, w);
    expect_cols(plan, name, cols(plan, in), w->n_cols);
    sl_value y = new_value(plan, name, SL_FORM_F32, w->n_rows);
    sl_op *op = new_op(plan, SL_OP_PROJECT);
    if (op) {
        op->in[0] = in;
        op->out[0] = y;
        op->args.matrix = *w;
    }
    return y;
}

sl_act sl_plan_gdn(sl_plan *plan, sl_value qkv, sl_value z, sl_value a, sl_value b,
                   const sl_gdn_args *args, unsigned need)
{
    uint64_t values = (uint64_t)args->n_value_heads * SL_GDN_DIM;
    uint64_t channels = 2 * (uint64_t)args->n_key_heads * SL_GDN_DIM + values;
    expect_cols(plan, "gdn qkv", cols(plan, qkv), channels);
    expect_cols(plan, "gdn z", cols(plan, z), values);
    expect_cols(plan, "gdn a", cols(plan, a), args->n_value_heads);
    expect_cols(plan, "gdn b", cols(plan, b), args->n_value_heads);
    sl_act y = new_act(plan, "gdn_out", (uint32_t)values, need);
    sl_value c = new_value(plan, "gdn_conv", SL_FORM_F32, (uint32_t)channels);
    sl_value beta = new_value(plan, "gdn_beta", SL_FORM_F32, args->n_value_heads);
    sl_value g = new_value(plan, "gdn_g", SL_FORM_F32, args->n_value_heads);
    sl_op *op = new_op(plan, SL_OP_GDN);
    if (op) {
        memcpy(op->in, (sl_value[]){qkv, z, a, b}, sizeof op->in);
        memcpy(op->out, (sl_value[]){y.f32, y.q8, c, beta, g, SL_NO_VALUE}, sizeof op->out);
        op->args.gdn = *args;
    }
    return y;
}

sl_act sl_plan_attention(sl_plan *plan, sl_value q, sl_value k, sl_value v,
                         const sl_attention_args *args, unsigned need)
{
    uint64_t width = (uint64_t)args->n_heads * SL_ATTN_DIM;
    expect_cols(plan, "attention q", cols(plan, q), 2 * width);
    expect_cols(plan, "attention k", cols(plan, k), (uint64_t)args->n_kv_heads * SL_ATTN_DIM);
    expect_cols(plan, "attention v", cols(plan, v), (uint64_t)args->n_kv_heads * SL_ATTN_DIM);
    sl_act y = new_act(plan, "attn_out", (uint32_t)width, need);
    sl_op *op = new_op(plan, SL_OP_ATTENTION);
    if (op) {
        memcpy(op->in, (sl_value[]){q, k, v, SL_NO_VALUE}, sizeof op->in);
        op->out[0] = y.f32;
        op->out[1] = y.q8;
        op->args.attention = *args;
    }
    return y;
}

sl_act sl_plan_swiglu(sl_plan *plan, sl_value gate, sl_value up, unsigned need)
{
    expect_cols(plan, "swiglu up", cols(plan, up), cols(plan, gate));
    sl_act y = new_act(plan, "ffn_act", cols(plan, gate), need);
    sl_op *op = new_op(plan, SL_OP_SWIGLU);
    if (op) {
        op->in[0] = gate;
        op->in[1] = up;
        op->out[0] = y.f32;
        op->out[1] = y.q8;
    }
    return y;
}

sl_value sl_plan_add(sl_plan *plan, sl_value x, sl_value y)
{
    expect_cols(plan, "add", cols(plan, y), cols(plan, x));
    sl_op *op = new_op(plan, SL_OP_ADD);
    if (op) {
        op->in[0] = x;
        op->in[1] = y;
        op->out[0] = x;
    }
    return x;
}

sl_routed sl_plan_route(sl_plan *plan, sl_value logits, uint32_t top_k)
{
    if (top_k == 0 || top_k > cols(plan, logits))
        record_failure(plan, SL_ERR_FORMAT, "%u of %u experts", top_k, cols(plan, logits));
    sl_routed routed = {.ids = new_value(plan, "expert_ids", SL_FORM_U32, top_k),
                        .weights = new_value(plan, "expert_weights", SL_FORM_F32, top_k)};
    sl_value scratch = new_value(plan, "router_p", SL_FORM_F32, cols(plan, logits));
    sl_op *op = new_op(plan, SL_OP_ROUTE);
    if (op) {
        op->in[0] = logits;
        op->out[0] = routed.ids;
        op->out[1] = routed.weights;
        op->out[2] = scratch;
        op->args.top_k = top_k;
    }
    return routed;
}

/* Columns of a scratch value that holds one row of n per chosen expert. */
static uint32_t per_expert(sl_plan *plan, uint32_t top_k, uint32_t n)
{
    uint64_t total = (uint64_t)top_k * n;
    if (total > UINT32_MAX / 8) {
        record_failure(plan, SL_ERR_LIMIT, "%u experts of width %u", top_k, n);
        return 0;
    }
    return (uint32_t)total;
}

sl_value sl_plan_experts(sl_plan *plan, sl_act x, sl_routed routed, const sl_experts_args *args)
{
    sl_value in = product_input(plan, x, &args->gate);
    if (sl_matrix_need(&args->gate) != sl_matrix_need(&args->up))
        record_failure(plan, SL_ERR_UNSUPPORTED,
                       "gate and up experts of types that read different activations (%s, %s)",
                       sl_dtype_get(args->gate.dtype)->name, sl_dtype_get(args->up.dtype)->name);
    expect_cols(plan, "experts", cols(plan, in), args->gate.n_cols);
    expect_cols(plan, "experts' up", args->up.n_rows, args->gate.n_rows);
    expect_cols(plan, "experts' down", args->down.n_cols, args->gate.n_rows);
    uint32_t inner = args->gate.n_rows;
    bool q8 = sl_matrix_need(&args->down) == SL_NEED_Q8;
    /* Blocks must not span two experts' rows. */
    uint32_t inner_padded = (inner + SL_Q8_BLOCK - 1) / SL_Q8_BLOCK * SL_Q8_BLOCK;
    sl_value y = new_value(plan, "experts_out", SL_FORM_F32, args->down.n_rows);
    sl_value gate =
        new_value(plan, "experts_gate", SL_FORM_F32, per_expert(plan, args->top_k, inner));
    sl_value up = new_value(plan, "experts_up", SL_FORM_F32, per_expert(plan, args->top_k, inner));
    sl_value act =
        q8 ? new_value(plan, "experts_act", SL_FORM_Q8, per_expert(plan, args->top_k, inner_padded))
           : gate;
    sl_value down = new_value(plan, "experts_down", SL_FORM_F32,
                              per_expert(plan, args->top_k, args->down.n_rows));
    /* The pairs of rows and experts sorted by expert, and where each expert's begin. */
    sl_value order =
        new_value(plan, "experts_order", SL_FORM_U32, args->top_k + args->gate.n_stack + 1);
    sl_op *op = new_op(plan, SL_OP_EXPERTS);
    if (op) {
        memcpy(op->in, (sl_value[]){in, routed.ids, routed.weights, SL_NO_VALUE}, sizeof op->in);
        memcpy(op->out, (sl_value[]){y, gate, up, act, down, order}, sizeof op->out);
        op->args.experts = *args;
    }
    return y;
}

sl_value sl_plan_add_gated(sl_plan *plan, sl_value x, sl_value gate, sl_value y)
{
    expect_cols(plan, "add_gated gate", cols(plan, gate), 1);
    expect_cols(plan, "add_gated", cols(plan, y), cols(plan, x));
    sl_op *op = new_op(plan, SL_OP_ADD_GATED);
    if (op) {
        memcpy(op->in, (sl_value[]){x, gate, y, SL_NO_VALUE}, sizeof op->in);
        op->out[0] = x;
    }
    return x;
}

sl_act sl_plan_mtp_input(sl_plan *plan, sl_value x, const sl_mtp_input_args *args, unsigned need)
{
    sl_act y = new_act(plan, "mtp_in", 2 * cols(plan, x), need);
    sl_op *op = new_op(plan, SL_OP_MTP_INPUT);
    if (op) {
        op->in[0] = x;
        op->out[0] = y.f32;
        op->out[1] = y.q8;
        op->args.mtp_input = *args;
    }
    return y;
}

void sl_plan_keep(sl_plan *plan, sl_value x)
{
    sl_op *op = new_op(plan, SL_OP_KEEP);
    if (op)
        op->in[0] = x;
}

void sl_plan_head(sl_plan *plan, sl_act x, const sl_matrix *w)
{
    sl_value in = product_input(plan, x, w);
    expect_cols(plan, "head", cols(plan, in), w->n_cols);
    sl_op *op = new_op(plan, SL_OP_HEAD);
    if (op) {
        op->in[0] = in;
        op->args.matrix = *w;
    }
}

void sl_plan_tap(sl_plan *plan, const char *format, ...)
{
    if (plan->error.status != SL_OK || plan->n_ops == 0)
        return;
    char name[64];
    va_list args;
    va_start(args, format);
    vsnprintf(name, sizeof name, format, args);
    va_end(args);
    sl_op *op = &plan->ops[plan->n_ops - 1];
    sl_free((char *)(uintptr_t)op->tap);
    op->tap = sl_strndup(SL_MEM_GENERAL, name, strlen(name));
    if (!op->tap)
        record_failure(plan, SL_ERR_MEMORY, "out of memory for a name");
}

/* ---- finishing: life times, hazards, places ---- */

static sl_status use_value(sl_plan *plan, sl_value v, uint32_t op, bool write, sl_error *err)
{
    if (v == SL_NO_VALUE)
        return SL_OK;
    sl_value_info *value = &plan->values[v];
    if (!write && value->first_op == UINT32_MAX)
        return sl_fail(err, SL_ERR_FORMAT, "plan %s, op %u (%s): reads %s before it is written",
                       plan->name, op, sl_op_name(plan->ops[op].kind), value->name);
    if (value->first_op == UINT32_MAX)
        value->first_op = op;
    value->last_op = op;
    return SL_OK;
}

/* Only these ops write an operand that they read. */
static bool in_place(sl_op_kind kind)
{
    return kind == SL_OP_ADD || kind == SL_OP_ADD_GATED;
}

static sl_status find_life_times(sl_plan *plan, sl_error *err)
{
    for (uint32_t i = 0; i < plan->n_ops; i++) {
        const sl_op *op = &plan->ops[i];
        for (int k = 0; k < SL_OP_MAX_IN; k++)
            SL_TRY(use_value(plan, op->in[k], i, false, err));
        for (int k = 0; k < SL_OP_MAX_OUT; k++) {
            for (int j = 0; j < SL_OP_MAX_IN; j++) {
                if (op->out[k] != SL_NO_VALUE && op->out[k] == op->in[j] && !in_place(op->kind))
                    return sl_fail(err, SL_ERR_FORMAT, "plan %s, op %u (%s): overwrites its input",
                                   plan->name, i, sl_op_name(op->kind));
            }
            SL_TRY(use_value(plan, op->out[k], i, true, err));
        }
    }
    return SL_OK;
}

static size_t q8_blocks(uint32_t n_cols)
{
    return ((size_t)n_cols + SL_Q8_BLOCK - 1) / SL_Q8_BLOCK;
}

static bool value_bytes(const sl_plan *plan, const sl_value_info *value, size_t *n_bytes)
{
    size_t per_row =
        value->form == SL_FORM_Q8
            ? q8_blocks(value->n_cols) * (SL_Q8_BLOCK + sizeof(float) + 2 * sizeof(int16_t))
            : (size_t)value->n_cols * 4;
    return sl_size_mul(per_row, plan->capacity, n_bytes) &&
           sl_size_align(*n_bytes, ARENA_ALIGN, n_bytes);
}

static bool lives_overlap(const sl_value_info *a, const sl_value_info *b)
{
    return a->first_op <= b->last_op && b->first_op <= a->last_op;
}

/* First fit: the lowest offset where the value does not touch a placed value that lives at the same
 * time. Values are placed in the order of their birth, so the arena stays close to the largest sum
 * of live values. */
static sl_status place_values(sl_plan *plan, sl_error *err)
{
    for (size_t i = 0; i < plan->n_values; i++) {
        sl_value_info *value = &plan->values[i];
        if (!value_bytes(plan, value, &value->n_bytes))
            return sl_fail(err, SL_ERR_LIMIT, "plan %s: %s is too large", plan->name, value->name);
        if (value->first_op == UINT32_MAX)
            value->n_bytes = 0; /* recorded and never used */
        size_t offset = 0;
        bool moved = value->n_bytes > 0;
        while (moved) {
            moved = false;
            for (size_t j = 0; j < i; j++) {
                const sl_value_info *other = &plan->values[j];
                if (lives_overlap(value, other) && offset < other->offset + other->n_bytes &&
                    other->offset < offset + value->n_bytes) {
                    offset = other->offset + other->n_bytes;
                    moved = true;
                }
            }
        }
        value->offset = offset;
        size_t end;
        if (!sl_size_add(offset, value->n_bytes, &end))
            return sl_fail(err, SL_ERR_LIMIT, "plan %s: the arena is too large", plan->name);
        plan->arena_bytes = sl_max_size(plan->arena_bytes, end);
    }
    return SL_OK;
}

sl_status sl_plan_finish(sl_plan *plan, sl_error *err)
{
    if (plan->error.status != SL_OK)
        return sl_fail(err, plan->error.status, "%s", plan->error.message);
    SL_TRY(find_life_times(plan, err));
    return place_values(plan, err);
}

/* ---- reading ---- */

const char *sl_plan_name(const sl_plan *plan)
{
    return plan->name;
}
uint32_t sl_plan_capacity(const sl_plan *plan)
{
    return plan->capacity;
}
const sl_state_shape *sl_plan_shape(const sl_plan *plan)
{
    return &plan->shape;
}
size_t sl_plan_op_count(const sl_plan *plan)
{
    return plan->n_ops;
}
const sl_op *sl_plan_op(const sl_plan *plan, size_t i)
{
    return &plan->ops[i];
}
size_t sl_plan_value_count(const sl_plan *plan)
{
    return plan->n_values;
}
size_t sl_plan_arena_bytes(const sl_plan *plan)
{
    return plan->arena_bytes;
}

const sl_value_info *sl_plan_value(const sl_plan *plan, sl_value value)
{
    return &plan->values[value];
}

static void *place_of(const sl_plan *plan, void *arena, sl_value value)
{
    return (char *)arena + plan->values[value].offset;
}

float *sl_plan_f32(const sl_plan *plan, void *arena, sl_value value)
{
    return value == SL_NO_VALUE ? NULL : place_of(plan, arena, value);
}

uint32_t *sl_plan_u32(const sl_plan *plan, void *arena, sl_value value)
{
    return place_of(plan, arena, value);
}

sl_q8_rows sl_plan_q8(const sl_plan *plan, void *arena, sl_value value)
{
    if (value == SL_NO_VALUE)
        return (sl_q8_rows){0};
    size_t n_blocks = q8_blocks(plan->values[value].n_cols);
    char *base = place_of(plan, arena, value);
    char *scales = base + plan->capacity * n_blocks * SL_Q8_BLOCK;
    char *sums = scales + plan->capacity * n_blocks * sizeof(float);
    return (sl_q8_rows){
        .q = (int8_t *)base,
        .d = (float *)(void *)scales,
        .sums = (int16_t *)(void *)sums,
        .n_padded = n_blocks * SL_Q8_BLOCK,
        .n_blocks = n_blocks,
    };
}
