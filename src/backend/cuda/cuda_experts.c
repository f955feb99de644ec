/* Mixtures of experts: the choice, and the products of the chosen ones. Many rows are brought
 * together by expert, so that an expert's weights are read once; where that does not fit, every
 * pair of a row and an expert is a product of its own. */
#ifdef SL_CUDA

#include "backend/cuda/cuda_internal.h"

enum { ALIGN = 256 };

enum { IN_X, IN_IDS, IN_WEIGHTS };
enum { OUT_Y, OUT_GATE, OUT_UP, OUT_ACT, OUT_DOWN };

static uint32_t blocks_of(uint32_t n_cols)
{
    return (n_cols + SL_Q8_BLOCK - 1) / SL_Q8_BLOCK;
}

void sl_cuda_run_route(const sl_cuda_step *s)
{
    enum { OUT_IDS, OUT_WEIGHTS };
    const sl_op *op = s->op;
    sl_cu_route(&s->cuda->queue, sl_cuda_f32(s, op->in[0]), s->run->n_rows,
                sl_plan_value(s->plan, op->in[0])->n_cols, op->args.top_k,
                sl_cuda_u32(s, op->out[OUT_IDS]), sl_cuda_f32(s, op->out[OUT_WEIGHTS]),
                s->rows.flags, s->op_index + 1);
}

/* ---- rows by expert ---- */

/* The buffer `experts`. */
typedef struct layout {
    uint32_t n_pairs, group_rows, n_groups, room; /* groups and rows: at most so many */
    size_t place, pair, stack, n, counts, q, d, sums, scales, act_q, act_d, act_sums, act_scales,
        down, n_bytes;
} layout;

static size_t take(size_t *end, size_t n, size_t bytes_each)
{
    const size_t at = *end;
    *end = (at + n * bytes_each + ALIGN - 1) / ALIGN * ALIGN;
    return at;
}

static layout layout_of(const sl_experts_args *args, uint32_t n_rows)
{
    enum { FEW = 32, MANY = 64 };
    layout at = {.n_pairs = n_rows * args->top_k};
    at.group_rows = at.n_pairs / args->gate.n_stack < MANY * 3 / 4 ? FEW : MANY;
    at.n_groups = sl_cu_most_groups(at.n_pairs, args->gate.n_stack, at.group_rows);
    at.room = at.n_groups * at.group_rows;
    const size_t room = at.room;
    const uint32_t n_in = blocks_of(args->gate.n_cols), n_act = blocks_of(args->gate.n_rows);
    size_t *end = &at.n_bytes;
    at.place = take(end, at.n_pairs, sizeof(uint32_t));
    at.pair = take(end, room, sizeof(uint32_t));
    at.stack = take(end, at.n_groups, sizeof(uint32_t));
    at.n = take(end, 1, sizeof(uint32_t));
    at.counts = take(end, args->gate.n_stack, sizeof(uint32_t));
    at.q = take(end, room * n_in, SL_Q8_BLOCK);
    at.d = take(end, room * n_in, sizeof(float));
    at.sums = take(end, room * n_in, 2 * sizeof(int16_t));
    at.scales = take(end, sl_cu_many_scales(at.room, n_in), sizeof(float));
    at.act_q = take(end, room * n_act, SL_Q8_BLOCK);
    at.act_d = take(end, room * n_act, sizeof(float));
    at.act_sums = take(end, room * n_act, 2 * sizeof(int16_t));
    at.act_scales = take(end, sl_cu_many_scales(at.room, n_act), sizeof(float));
    const size_t n_down = args->down.n_rows, n_gate_up = 2 * (size_t)args->gate.n_rows;
    at.down = take(end, room * sl_max_size(n_down, n_gate_up), sizeof(float));
    return at;
}

static const sl_op *find_experts(const sl_plan *plan)
{
    for (size_t i = 0; i < sl_plan_op_count(plan); i++) {
        if (sl_plan_op(plan, i)->kind == SL_OP_EXPERTS)
            return sl_plan_op(plan, i);
    }
    return NULL;
}

static bool are_grouped(uint32_t n_rows)
{
    return n_rows > 1;
}

size_t sl_cuda_experts_bytes(const sl_plan *plan, uint32_t n_rows)
{
    const sl_op *op = find_experts(plan);
    return op && are_grouped(n_rows) ? layout_of(&op->args.experts, n_rows).n_bytes : 0;
}

/* The same by kernels that do one product each. */
static void run_apart(const sl_cu_queue *queue, const sl_cu_many *gate_up, const sl_cu_many *down,
                      uint32_t n_inner)
{
    enum { AT_ONCE = 1 << 15 /* rows of a grid */ };
    const sl_cu_target *last = &down->targets[0];
    const sl_cu_q8 *act = &gate_up->act_q8;
    sl_cu_product p = {.n = gate_up->n_rows,
                       .row_divisor = 1,
                       .q8 = gate_up->q8,
                       .y = last->y,
                       .y_stride = n_inner,
                       .groups = gate_up->groups};
    float *gate = p.y, *up = gate + (size_t)p.n * n_inner;
    sl_cu_matrix_product(queue, &gate_up->targets[0].w, &p);
    p.y = up;
    sl_cu_matrix_product(queue, &gate_up->targets[1].w, &p);
    for (uint32_t first = 0; first < p.n; first += AT_ONCE) {
        const size_t at = (size_t)first * n_inner, block = (size_t)first * act->n_blocks;
        const sl_cu_q8 to = {act->q + block * SL_Q8_BLOCK, act->d + block, act->sums + 2 * block,
                             act->n_blocks};
        sl_cu_swiglu(queue->stream, gate + at, up + at,
                     p.n - first < AT_ONCE ? p.n - first : AT_ONCE, n_inner, gate + at, to);
    }
    p.q8 = down->q8;
    p.y = last->y;
    p.y_stride = last->y_stride;
    sl_cu_matrix_product(queue, &last->w, &p);
}

static bool run_grouped(const sl_cuda_step *s)
{
    enum { FEW_ROWS = 16 /* for which pairs by themselves are quicker than tiles */ };
    const sl_op *op = s->op;
    const sl_experts_args *args = &op->args.experts;
    if (!are_grouped(s->run->n_rows) || op->out[OUT_ACT] == op->out[OUT_GATE] ||
        sl_plan_value(s->plan, op->in[IN_X])->form != SL_FORM_Q8)
        return false;
    const sl_cu_queue *queue = &s->cuda->queue;
    const layout at = layout_of(args, s->run->n_rows);
    char *memory = s->cuda->experts.data;
    const sl_cu_grouping grouping = {.n_pairs = at.n_pairs,
                                     .n_experts = args->gate.n_stack,
                                     .group_rows = at.group_rows,
                                     .ids = sl_cuda_u32(s, op->in[IN_IDS]),
                                     .place = (uint32_t *)(void *)(memory + at.place),
                                     .pair = (uint32_t *)(void *)(memory + at.pair),
                                     .stack = (uint32_t *)(void *)(memory + at.stack),
                                     .n_groups = (uint32_t *)(void *)(memory + at.n),
                                     .counts = (uint32_t *)(void *)(memory + at.counts)};
    const sl_cu_groups groups = {at.group_rows, grouping.stack, grouping.n_groups};
    const sl_cu_q8 from = sl_cuda_q8(s, op->in[IN_X]);
    const sl_cu_many gate_up = {.n_rows = at.room,
                                .q8 = {.q = (int8_t *)(memory + at.q),
                                       .d = (float *)(void *)(memory + at.d),
                                       .sums = (int16_t *)(void *)(memory + at.sums),
                                       .n_blocks = from.n_blocks},
                                .scales = (float *)(void *)(memory + at.scales),
                                .n_targets = 2,
                                .targets = {{.w = *(const sl_cu_matrix *)args->gate.packed},
                                            {.w = *(const sl_cu_matrix *)args->up.packed}},
                                .swiglu = 1,
                                .act_q8 = {.q = (int8_t *)(memory + at.act_q),
                                           .d = (float *)(void *)(memory + at.act_d),
                                           .sums = (int16_t *)(void *)(memory + at.act_sums),
                                           .n_blocks = blocks_of(args->gate.n_rows)},
                                .act_scales = (float *)(void *)(memory + at.act_scales),
                                .groups = groups};
    const sl_cu_many down = {.n_rows = at.room,
                             .q8 = gate_up.act_q8,
                             .scales = gate_up.act_scales,
                             .scales_are_there = gate_up.act_q8.n_blocks % SL_CU_MANY_BLOCKS == 0,
                             .n_targets = 1,
                             .targets = {{.w = *(const sl_cu_matrix *)args->down.packed,
                                          .y = (float *)(void *)(memory + at.down),
                                          .y_stride = args->down.n_rows}},
                             .groups = groups};
    const bool many = sl_cu_many_fits(&gate_up) && sl_cu_many_fits(&down);
    if (!many && s->run->n_rows <= FEW_ROWS)
        return false;
    sl_cu_group_pairs(queue, &grouping);
    sl_cu_gather_pairs(queue, &grouping, args->top_k, &from, &gate_up.q8);
    if (many) {
        sl_cu_run_many(queue, &gate_up);
        sl_cu_run_many(queue, &down);
    } else {
        run_apart(queue, &gate_up, &down, args->gate.n_rows);
    }
    sl_cu_combine(queue, down.targets[0].y, grouping.place, sl_cuda_f32(s, op->in[IN_WEIGHTS]),
                  s->run->n_rows, args->top_k, args->down.n_rows, sl_cuda_f32(s, op->out[OUT_Y]));
    return true;
}

/* ---- pairs by themselves ---- */

static void run_pairs(const sl_cuda_step *s)
{
    const sl_op *op = s->op;
    const sl_experts_args *args = &op->args.experts;
    const uint32_t inner = args->gate.n_rows, n_out = args->down.n_rows;
    const uint32_t pairs = s->run->n_rows * args->top_k;
    cudaStream_t stream = s->cuda->queue.stream;
    float *gate = sl_cuda_f32(s, op->out[OUT_GATE]), *up = sl_cuda_f32(s, op->out[OUT_UP]);
    sl_cu_product p = {.n = pairs,
                       .stack = sl_cuda_u32(s, op->in[IN_IDS]),
                       .row_divisor = args->top_k,
                       .y = gate,
                       .y_stride = inner};
    sl_cuda_set_input(s, op->in[IN_X], &p);
    sl_cu_matrix_product(&s->cuda->queue, args->gate.packed, &p);
    p.y = up;
    sl_cu_matrix_product(&s->cuda->queue, args->up.packed, &p);

    sl_cu_product down = {.n = pairs,
                          .stack = p.stack,
                          .row_divisor = 1,
                          .y = sl_cuda_f32(s, op->out[OUT_DOWN]),
                          .y_stride = n_out};
    sl_cu_q8 act = {0};
    if (op->out[OUT_ACT] != op->out[OUT_GATE]) {
        act = sl_cuda_q8(s, op->out[OUT_ACT]);
        act.n_blocks /= args->top_k; /* a pair is a row of its own blocks */
        down.q8 = act;
    } else {
        down.f32 = gate;
        down.f32_stride = inner;
    }
    sl_cu_swiglu(stream, gate, up, pairs, inner, gate, act);
    sl_cu_matrix_product(&s->cuda->queue, args->down.packed, &down);
    sl_cu_combine(&s->cuda->queue, down.y, NULL, sl_cuda_f32(s, op->in[IN_WEIGHTS]), s->run->n_rows,
                  args->top_k, n_out, sl_cuda_f32(s, op->out[OUT_Y]));
}

/* ---- one row: the whole feed-forward part ---- */

static const sl_op *op_at(const sl_cuda_step *s, uint32_t i)
{
    return i < sl_plan_op_count(s->plan) ? sl_plan_op(s->plan, i) : NULL;
}

static bool is_quantised(const sl_op *op)
{
    return sl_cu_is_quantised(op->args.matrix.packed);
}

/* The ops of a mixture from the router on, up to the sum into the residual stream. */
typedef struct mixture {
    const sl_op *router, *route, *experts;
    const sl_op *logit, *gate, *up, *act,
        *down; /* of the shared expert; NULL where there is none */
    const sl_op *add;
    uint32_t n_ops;
} mixture;

/* The shared expert at op i, and its sum with y; the number of ops, 0 where there is none. */
static uint32_t find_shared(const sl_cuda_step *s, uint32_t i, sl_value y, sl_value x, mixture *out)
{
    const sl_op *op[6];
    static const sl_op_kind kinds[] = {SL_OP_PROJECT, SL_OP_PROJECT, SL_OP_PROJECT,
                                       SL_OP_SWIGLU,  SL_OP_PROJECT, SL_OP_ADD_GATED};
    for (uint32_t k = 0; k < 6; k++) {
        op[k] = op_at(s, i + k);
        if (!op[k] || op[k]->kind != kinds[k])
            return 0;
    }
    const sl_op *logit = op[0], *gate = op[1], *up = op[2], *act = op[3], *down = op[4];
    const sl_op *sum = op[5];
    if (logit->in[0] != out->router->in[0] || gate->in[0] != x || up->in[0] != x ||
        act->in[0] != gate->out[0] || act->in[1] != up->out[0] || act->out[1] == SL_NO_VALUE ||
        down->in[0] != act->out[1] || sum->in[0] != y || sum->in[1] != logit->out[0] ||
        sum->in[2] != down->out[0] || !is_quantised(gate) || !is_quantised(up) ||
        !is_quantised(down))
        return 0;
    out->logit = logit;
    out->gate = gate;
    out->up = up;
    out->act = act;
    out->down = down;
    return 6;
}

static bool find_mixture(const sl_cuda_step *s, mixture *out)
{
    const uint32_t i = s->op_index;
    *out = (mixture){.router = op_at(s, i), .route = op_at(s, i + 1), .experts = op_at(s, i + 2)};
    const sl_op *experts = out->experts;
    if (!experts || out->route->kind != SL_OP_ROUTE || experts->kind != SL_OP_EXPERTS ||
        out->route->in[0] != out->router->out[0] || experts->in[IN_IDS] != out->route->out[0] ||
        experts->in[IN_WEIGHTS] != out->route->out[1] ||
        experts->out[OUT_ACT] == experts->out[OUT_GATE] ||
        sl_plan_value(s->plan, out->router->in[0])->form != SL_FORM_F32 ||
        sl_plan_value(s->plan, experts->in[IN_X])->form != SL_FORM_Q8)
        return false;
    const sl_value y = experts->out[OUT_Y];
    const uint32_t n = 3 + find_shared(s, i + 3, y, experts->in[IN_X], out);
    out->add = op_at(s, i + n);
    out->n_ops = n + 1;
    return out->add && out->add->kind == SL_OP_ADD && out->add->in[1] == y &&
           out->add->in[0] != y && sl_plan_value(s->plan, y)->last_op == i + n;
}

static sl_cu_matrix packed_of(const sl_op *op)
{
    return *(const sl_cu_matrix *)op->args.matrix.packed;
}

uint32_t sl_cuda_run_mixture(const sl_cuda_step *s)
{
    mixture m;
    if (s->run->n_rows != 1 || !find_mixture(s, &m))
        return 0;
    const sl_experts_args *args = &m.experts->args.experts;
    sl_cu_experts e = {.top_k = args->top_k,
                       .x_f32 = sl_cuda_f32(s, m.router->in[0]),
                       .x = sl_cuda_q8(s, m.experts->in[IN_X]),
                       .act = sl_cuda_q8(s, m.experts->out[OUT_ACT]),
                       .logits = sl_cuda_f32(s, m.router->out[0]),
                       .x_out = sl_cuda_f32(s, m.add->in[0]),
                       .router = packed_of(m.router),
                       .gate = *(const sl_cu_matrix *)args->gate.packed,
                       .up = *(const sl_cu_matrix *)args->up.packed,
                       .down = *(const sl_cu_matrix *)args->down.packed,
                       .flags = s->rows.flags,
                       .route_mark = s->op_index + 2,
                       .mark = s->op_index + m.n_ops};
    e.act.n_blocks /= args->top_k;
    if (m.logit) {
        e.shared_logit = sl_cuda_f32(s, m.logit->out[0]);
        e.shared_act = sl_cuda_q8(s, m.act->out[1]);
        e.shared_logit_w = packed_of(m.logit);
        e.shared_gate = packed_of(m.gate);
        e.shared_up = packed_of(m.up);
        e.shared_down = packed_of(m.down);
    }
    if (!sl_cu_experts_fit(&s->cuda->queue, &e))
        return 0;
    sl_cu_run_experts(&s->cuda->queue, &e);
    return m.n_ops;
}

void sl_cuda_run_experts(const sl_cuda_step *s)
{
    if (!run_grouped(s))
        run_pairs(s);
}

#endif
