/* Expressions. Recursion is only as deep as the source nests, and counted. */
#include "text/template_run.h"

#include <string.h>

static sl_status eval_constant(tmpl_run *run, const tmpl_expr *expr, tmpl_value *out)
{
    (void)run;
    *out = expr->as.constant;
    return SL_OK;
}

static sl_status eval_name(tmpl_run *run, const tmpl_expr *expr, tmpl_value *out)
{
    return sl_tmpl_lookup(run, &expr->as.name, out);
}

static sl_status eval_sequence(tmpl_run *run, const tmpl_expr *expr, tmpl_value *out)
{
    tmpl_kind kind = expr->kind == TMPL_EXPR_LIST ? TMPL_LIST : TMPL_TUPLE;
    tmpl_value *items;
    SL_TRY(sl_tmpl_new_items(run, kind, expr->as.literal.n, &items, out));
    for (const tmpl_link *link = expr->as.literal.items; link; link = link->next)
        SL_TRY(sl_tmpl_eval(run, link->expr, items++));
    return SL_OK;
}

static sl_status eval_dict(tmpl_run *run, const tmpl_expr *expr, tmpl_value *out)
{
    SL_TRY(sl_tmpl_new_dict(run, expr->as.literal.n, out));
    for (const tmpl_link *link = expr->as.literal.items; link; link = link->next->next) {
        tmpl_value key, value;
        SL_TRY(sl_tmpl_eval(run, link->expr, &key));
        SL_TRY(sl_tmpl_eval(run, link->next->expr, &value));
        SL_TRY(sl_tmpl_dict_set(run, out->as.dict, key, value));
    }
    return SL_OK;
}

static sl_status eval_not(tmpl_run *run, const tmpl_expr *expr, tmpl_value *out)
{
    SL_TRY(sl_tmpl_eval(run, expr->as.chain.first, out));
    *out = tmpl_bool(!sl_tmpl_truth(*out));
    return SL_OK;
}

static sl_status eval_sign(tmpl_run *run, const tmpl_expr *expr, tmpl_value *out)
{
    tmpl_value operand;
    int64_t i;
    SL_TRY(sl_tmpl_eval(run, expr->as.chain.first, &operand));
    if (operand.kind == TMPL_UNDEFINED)
        return sl_tmpl_undefined_error(run, operand);
    if (expr->kind == TMPL_EXPR_NEGATE || !sl_tmpl_is_number(operand))
        return sl_tmpl_negate(run, operand, out);
    *out = sl_tmpl_as_int(operand, &i) ? tmpl_int(i) : operand;
    return SL_OK;
}

/* The first operand that decides, or the last. */
static sl_status eval_logic(tmpl_run *run, const tmpl_expr *expr, tmpl_value *out)
{
    bool decides = expr->kind == TMPL_EXPR_OR;
    SL_TRY(sl_tmpl_eval(run, expr->as.chain.first, out));
    for (const tmpl_link *link = expr->as.chain.rest; link; link = link->next) {
        if (sl_tmpl_truth(*out) == decides)
            break;
        SL_TRY(sl_tmpl_eval(run, link->expr, out));
    }
    return SL_OK;
}

static sl_status compare(tmpl_run *run, tmpl_op op, tmpl_value a, tmpl_value b, bool *out)
{
    int order = 2;
    switch (op) {
    case TMPL_OP_EQ:
        return sl_tmpl_equal(run, a, b, out);
    case TMPL_OP_NE:
        SL_TRY(sl_tmpl_equal(run, a, b, out));
        *out = !*out;
        return SL_OK;
    case TMPL_OP_IN:
        return sl_tmpl_contains(run, b, a, out);
    case TMPL_OP_NOT_IN:
        SL_TRY(sl_tmpl_contains(run, b, a, out));
        *out = !*out;
        return SL_OK;
    default:
        break;
    }
    SL_TRY(sl_tmpl_compare(run, a, b, &order));
    *out = order != 2 && ((op == TMPL_OP_LT && order < 0) || (op == TMPL_OP_LE && order <= 0) ||
                          (op == TMPL_OP_GT && order > 0) || (op == TMPL_OP_GE && order >= 0));
    return SL_OK;
}

/* a < b < c means a < b and b < c. */
static sl_status eval_compare(tmpl_run *run, const tmpl_expr *expr, tmpl_value *out)
{
    tmpl_value left, right;
    bool holds = true;
    SL_TRY(sl_tmpl_eval(run, expr->as.chain.first, &left));
    for (const tmpl_link *link = expr->as.chain.rest; link && holds; link = link->next) {
        SL_TRY(sl_tmpl_eval(run, link->expr, &right));
        SL_TRY(compare(run, link->op, left, right, &holds));
        left = right;
    }
    *out = tmpl_bool(holds);
    return SL_OK;
}

static sl_status eval_concat(tmpl_run *run, const tmpl_expr *expr, tmpl_value *out)
{
    tmpl_str *joined, *more;
    SL_TRY(sl_tmpl_eval(run, expr->as.chain.first, out));
    SL_TRY(sl_tmpl_to_str(run, *out, &joined));
    for (const tmpl_link *link = expr->as.chain.rest; link; link = link->next) {
        SL_TRY(sl_tmpl_eval(run, link->expr, out));
        SL_TRY(sl_tmpl_to_str(run, *out, &more));
        SL_TRY(sl_tmpl_join_two(run, joined, more, out));
        joined = out->as.string;
    }
    return SL_OK;
}

static sl_status eval_arithmetic(tmpl_run *run, const tmpl_expr *expr, tmpl_value *out)
{
    tmpl_value left, right;
    SL_TRY(sl_tmpl_eval(run, expr->as.chain.first, &left));
    for (const tmpl_link *link = expr->as.chain.rest; link; link = link->next) {
        SL_TRY(sl_tmpl_eval(run, link->expr, &right));
        run->line = expr->line;
        SL_TRY(sl_tmpl_arithmetic(run, link->op, left, right, out));
        left = *out;
    }
    return SL_OK;
}

static sl_status eval_conditional(tmpl_run *run, const tmpl_expr *expr, tmpl_value *out)
{
    SL_TRY(sl_tmpl_eval(run, expr->as.conditional.test, out));
    if (sl_tmpl_truth(*out))
        return sl_tmpl_eval(run, expr->as.conditional.then, out);
    if (expr->as.conditional.otherwise)
        return sl_tmpl_eval(run, expr->as.conditional.otherwise, out);
    *out = tmpl_lacking(TMPL_LACK_ELSE, TMPL_NONE, NULL);
    return SL_OK;
}

/* ---- calls ---- */

sl_status sl_tmpl_push_arg(tmpl_run *run, tmpl_call *call, sl_str name, tmpl_value value)
{
    if (run->n_args == TMPL_MAX_ARGS_STACK)
        return sl_tmpl_fail(run, SL_ERR_LIMIT, "too many arguments in nested calls");
    run->args[run->n_args++] = (tmpl_arg){name, value};
    call->n++;
    call->n_positional += name.n_bytes == 0;
    return SL_OK;
}

sl_status sl_tmpl_eval_args(tmpl_run *run, const tmpl_link *args, tmpl_call *call)
{
    /* An argument may itself hold calls, which leave the stack as they found it. */
    *call = (tmpl_call){.args = run->args + run->n_args};
    for (const tmpl_link *link = args; link; link = link->next) {
        tmpl_value value;
        SL_TRY(sl_tmpl_eval(run, link->expr, &value));
        SL_TRY(sl_tmpl_push_arg(run, call, link->name, value));
    }
    return SL_OK;
}

/* The position of `name` in the blank-separated list of parameters, or SIZE_MAX. */
static size_t parameter_index(const char *params, sl_str name)
{
    for (size_t index = 0; *params; index++) {
        size_t n = strcspn(params, " ");
        if (n == name.n_bytes && memcmp(params, name.data, n) == 0)
            return index;
        params += n + (params[n] == ' ');
    }
    return SIZE_MAX;
}

static size_t count_parameters(const char *params)
{
    size_t n = *params != '\0';
    for (; *params; params++)
        n += *params == ' ';
    return n;
}

static sl_status invoke_bound(tmpl_run *run, const tmpl_callable *callable, tmpl_value self,
                              const tmpl_call *call, tmpl_value *out)
{
    tmpl_value bound[TMPL_MAX_PARAMS];
    memset(bound, 0, sizeof bound); /* TMPL_MISSING */
    size_t n_params = count_parameters(callable->params);
    if (call->n_positional > n_params)
        return sl_tmpl_fail(run, SL_ERR_ARGUMENT, "%s takes at most %zu arguments", callable->name,
                            n_params);
    for (size_t i = 0; i < call->n; i++) {
        const tmpl_arg *arg = &call->args[i];
        size_t index = i < call->n_positional ? i : parameter_index(callable->params, arg->name);
        if (index == SIZE_MAX || bound[index].kind != TMPL_MISSING)
            return sl_tmpl_fail(run, SL_ERR_ARGUMENT, "%s has no (further) argument '%.*s'",
                                callable->name, (int)sl_min_size(arg->name.n_bytes, 60),
                                arg->name.data);
        bound[index] = arg->value;
    }
    for (size_t i = 0; i < callable->n_required; i++) {
        if (bound[i].kind == TMPL_MISSING)
            return sl_tmpl_fail(run, SL_ERR_ARGUMENT, "%s needs %u argument%s", callable->name,
                                callable->n_required, callable->n_required > 1 ? "s" : "");
    }
    return callable->bound(run, self, bound, out);
}

sl_status sl_tmpl_invoke(tmpl_run *run, const tmpl_callable *callable, tmpl_value self,
                         const tmpl_call *call, tmpl_value *out)
{
    SL_TRY(sl_tmpl_spend(run, 1));
    if (self.kind == TMPL_UNDEFINED && self.lack == TMPL_LACK_UNSAFE)
        return sl_tmpl_undefined_error(run, self);
    return callable->raw ? callable->raw(run, self, call, out)
                         : invoke_bound(run, callable, self, call, out);
}

sl_status sl_tmpl_call_value(tmpl_run *run, tmpl_value callee, const tmpl_call *call,
                             tmpl_value *out)
{
    if (callee.kind == TMPL_UNDEFINED)
        return sl_tmpl_undefined_error(run, callee);
    if (callee.kind != TMPL_FUNCTION)
        return sl_tmpl_fail(run, SL_ERR_ARGUMENT, "%s cannot be called",
                            sl_tmpl_kind_name((tmpl_kind)callee.kind));
    const tmpl_function *function = callee.as.function;
    if (function->macro)
        return sl_tmpl_call_macro(run, function, call, out);
    return sl_tmpl_invoke(run, function->callable, function->self, call, out);
}

/* ---- postfix steps ---- */

static sl_status apply_slice(tmpl_run *run, const tmpl_step *step, tmpl_value *value)
{
    const tmpl_expr *const given[3] = {step->start, step->stop, step->stride};
    tmpl_value bounds[3], owner = *value;
    for (int i = 0; i < 3; i++) {
        bounds[i] = tmpl_none();
        if (given[i])
            SL_TRY(sl_tmpl_eval(run, given[i], &bounds[i]));
    }
    run->line = step->line;
    return sl_tmpl_slice(run, owner, bounds, value);
}

static sl_status apply_item(tmpl_run *run, const tmpl_step *step, tmpl_value *value)
{
    tmpl_value key, owner = *value;
    SL_TRY(sl_tmpl_eval(run, step->index, &key));
    run->line = step->line;
    return sl_tmpl_item(run, owner, key, value);
}

/* A call of `*value`, of the method `method` of it, or of a filter or test on it. */
static sl_status apply_call(tmpl_run *run, const tmpl_step *step, const tmpl_callable *callable,
                            tmpl_value *value)
{
    tmpl_call call;
    tmpl_value self = *value;
    size_t n_args = run->n_args;
    SL_TRY(sl_tmpl_eval_args(run, step->args, &call));
    run->line = step->line;
    if (callable)
        SL_TRY(sl_tmpl_invoke(run, callable, self, &call, value));
    else
        SL_TRY(sl_tmpl_call_value(run, self, &call, value));
    run->n_args = n_args;
    return SL_OK;
}

sl_status sl_tmpl_apply_steps(tmpl_run *run, const tmpl_step *steps, const tmpl_step *until,
                              tmpl_value *value)
{
    for (const tmpl_step *step = steps; step != until; step = step->next) {
        tmpl_value owner = *value;
        const tmpl_callable *method;
        run->line = step->line;
        SL_TRY(sl_tmpl_spend(run, 1));
        switch (step->kind) {
        case TMPL_STEP_ATTRIBUTE:
            method = step->next != until && step->next->kind == TMPL_STEP_CALL
                         ? sl_tmpl_find_method((tmpl_kind)owner.kind, step->name)
                         : NULL;
            if (method) {
                step = step->next;
                SL_TRY(apply_call(run, step, method, value));
                break;
            }
            SL_TRY(sl_tmpl_attribute(run, owner, &step->name, value));
            break;
        case TMPL_STEP_ITEM:
            SL_TRY(apply_item(run, step, value));
            break;
        case TMPL_STEP_SLICE:
            SL_TRY(apply_slice(run, step, value));
            break;
        case TMPL_STEP_CALL:
            SL_TRY(apply_call(run, step, NULL, value));
            break;
        case TMPL_STEP_FILTER:
        case TMPL_STEP_TEST:
            SL_TRY(apply_call(run, step, step->callable, value));
            if (step->negated)
                *value = tmpl_bool(!sl_tmpl_truth(*value));
            break;
        }
    }
    return SL_OK;
}

static sl_status eval_postfix(tmpl_run *run, const tmpl_expr *expr, tmpl_value *out)
{
    SL_TRY(sl_tmpl_eval(run, expr->as.postfix.base, out));
    return sl_tmpl_apply_steps(run, expr->as.postfix.steps, NULL, out);
}

sl_status sl_tmpl_eval(tmpl_run *run, const tmpl_expr *expr, tmpl_value *out)
{
    static sl_status (*const eval[TMPL_EXPR_KINDS])(tmpl_run *, const tmpl_expr *, tmpl_value *) = {
        [TMPL_EXPR_CONSTANT] = eval_constant,
        [TMPL_EXPR_NAME] = eval_name,
        [TMPL_EXPR_LIST] = eval_sequence,
        [TMPL_EXPR_TUPLE] = eval_sequence,
        [TMPL_EXPR_DICT] = eval_dict,
        [TMPL_EXPR_NOT] = eval_not,
        [TMPL_EXPR_NEGATE] = eval_sign,
        [TMPL_EXPR_PLUS] = eval_sign,
        [TMPL_EXPR_OR] = eval_logic,
        [TMPL_EXPR_AND] = eval_logic,
        [TMPL_EXPR_COMPARE] = eval_compare,
        [TMPL_EXPR_CONCAT] = eval_concat,
        [TMPL_EXPR_ARITHMETIC] = eval_arithmetic,
        [TMPL_EXPR_CONDITIONAL] = eval_conditional,
        [TMPL_EXPR_POSTFIX] = eval_postfix,
    };
    run->line = expr->line;
    SL_TRY(sl_tmpl_spend(run, 1));
    SL_TRY(sl_tmpl_enter(run));
    SL_TRY(eval[expr->kind](run, expr, out));
    tmpl_leave(run);
    return SL_OK;
}
