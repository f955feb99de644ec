/* Statements, variables and macros. `if` shares its surroundings' variables; loops, macros, call,
 * set, filter, with and generation blocks have their own, as in Jinja. */
#include "text/template_run.h"

#include <string.h>

/* How a list of statements ended. */
typedef enum flow { FLOW_ON, FLOW_BREAK, FLOW_CONTINUE } flow;

static sl_status exec_body(tmpl_run *run, const tmpl_stmt *body, flow *out);

/* ---- variables ---- */

static tmpl_var *find_var(tmpl_scope *scope, sl_str name, size_t *walked)
{
    for (tmpl_var *var = scope->vars; var; var = var->next) {
        ++*walked;
        if (sl_str_equal(var->name, name))
            return var;
    }
    return NULL;
}

static sl_status set_var(tmpl_run *run, sl_str name, tmpl_value value)
{
    size_t walked = 0;
    tmpl_var *var = find_var(run->scope, name, &walked);
    SL_TRY(sl_tmpl_spend(run, walked / 16));
    if (!var) {
        SL_TRY(sl_tmpl_new(run, 1, sizeof *var, &var));
        *var = (tmpl_var){.next = run->scope->vars, .name = name};
        run->scope->vars = var;
    }
    var->value = value;
    var->is_set = true;
    return SL_OK;
}

/* What every template sees: the input's variables, then the functions. */
static sl_status lookup_global(tmpl_run *run, const sl_str *name, tmpl_value *out)
{
    if (sl_str_is(*name, "messages")) {
        *out = run->messages;
        return SL_OK;
    }
    if (sl_str_is(*name, "tools") && run->input->tools) {
        *out = run->tools;
        return SL_OK;
    }
    if (sl_str_is(*name, "add_generation_prompt")) {
        *out = tmpl_bool(run->input->add_generation_prompt);
        return SL_OK;
    }
    if (run->variables.kind == TMPL_DICT) {
        SL_TRY(sl_tmpl_spend(run, run->variables.as.dict->n / 16));
        const tmpl_entry *entry = sl_tmpl_dict_find_name(run->variables.as.dict, *name);
        if (entry) {
            *out = entry->value;
            return SL_OK;
        }
    }
    const tmpl_callable *callable = sl_tmpl_find_function(*name);
    if (!callable) {
        *out = tmpl_lacking(TMPL_LACK_NAME, TMPL_NONE, name);
        return SL_OK;
    }
    tmpl_function *function;
    SL_TRY(sl_tmpl_new(run, 1, sizeof *function, &function));
    *function = (tmpl_function){.callable = callable};
    *out = (tmpl_value){.kind = TMPL_FUNCTION, .as.function = function};
    return SL_OK;
}

sl_status sl_tmpl_lookup(tmpl_run *run, const sl_str *name, tmpl_value *out)
{
    size_t walked = 0;
    const tmpl_var *var = NULL;
    for (tmpl_scope *scope = run->scope; scope && !var; scope = scope->parent) {
        var = find_var(scope, *name, &walked);
        if (var && !var->is_set)
            var = NULL;
    }
    SL_TRY(sl_tmpl_spend(run, walked / 16));
    if (!var)
        return lookup_global(run, name, out);
    *out = var->value;
    return SL_OK;
}

static sl_status push_scope(tmpl_run *run, tmpl_scope *parent, tmpl_scope **out)
{
    SL_TRY(sl_tmpl_new(run, 1, sizeof **out, out));
    **out = (tmpl_scope){.parent = parent};
    run->scope = *out;
    return SL_OK;
}

static sl_status assign(tmpl_run *run, const tmpl_target *target, tmpl_value value);

static sl_status assign_parts(tmpl_run *run, const tmpl_target *tuple, tmpl_value value)
{
    const tmpl_value *items;
    size_t n, i = 0;
    if (value.kind == TMPL_UNDEFINED)
        return sl_tmpl_undefined_error(run, value);
    SL_TRY(sl_tmpl_items(run, value, &items, &n));
    if (n != tuple->n_parts)
        return sl_tmpl_fail(run, SL_ERR_ARGUMENT, "%zu values for %zu names", n, tuple->n_parts);
    for (const tmpl_target *part = tuple->parts; part; part = part->next)
        SL_TRY(assign(run, part, items[i++]));
    return SL_OK;
}

static sl_status assign(tmpl_run *run, const tmpl_target *target, tmpl_value value)
{
    if (target->parts)
        return assign_parts(run, target, value);
    if (!target->attribute.data)
        return set_var(run, target->name, value);
    tmpl_value owner;
    SL_TRY(sl_tmpl_lookup(run, &target->name, &owner));
    if (owner.kind != TMPL_NAMESPACE)
        return sl_tmpl_fail(run, SL_ERR_ARGUMENT,
                            "'%.*s' is no namespace: its attributes cannot be set",
                            (int)sl_min_size(target->name.n_bytes, 60), target->name.data);
    tmpl_value key;
    SL_TRY(sl_tmpl_make_str(run, target->attribute, false, &key));
    return sl_tmpl_dict_set(run, owner.as.attributes, key, value);
}

/* ---- statements ---- */

static sl_status exec_text(tmpl_run *run, const tmpl_stmt *stmt, flow *out)
{
    (void)out;
    return sl_tmpl_put_str(run, stmt->as.text);
}

static sl_status exec_print(tmpl_run *run, const tmpl_stmt *stmt, flow *out)
{
    (void)out;
    tmpl_value value;
    SL_TRY(sl_tmpl_eval(run, stmt->as.print, &value));
    run->line = stmt->line;
    if (value.kind == TMPL_STRING)
        SL_TRY(sl_tmpl_spend(run, value.as.string->s.n_bytes / 256));
    return sl_tmpl_put_value(run, value);
}

static sl_status exec_if(tmpl_run *run, const tmpl_stmt *stmt, flow *out)
{
    for (const tmpl_branch *branch = stmt->as.branches; branch; branch = branch->next) {
        tmpl_value test = tmpl_bool(true);
        if (branch->test)
            SL_TRY(sl_tmpl_eval(run, branch->test, &test));
        if (sl_tmpl_truth(test))
            return exec_body(run, branch->body, out);
    }
    return SL_OK;
}

/* Every variable of the loop's scope unset: an iteration sees nothing of the one before. */
static void clear_scope(tmpl_scope *scope)
{
    for (tmpl_var *var = scope->vars; var; var = var->next)
        var->is_set = false;
}

/* The items for which the loop's `if` holds. */
static sl_status filter_items(tmpl_run *run, const tmpl_stmt *stmt, const tmpl_value **items,
                              size_t *n)
{
    tmpl_value *kept;
    size_t n_kept = 0;
    SL_TRY(sl_tmpl_new(run, *n, sizeof *kept, &kept));
    for (size_t i = 0; i < *n; i++) {
        tmpl_value test;
        clear_scope(run->scope);
        SL_TRY(assign(run, stmt->as.loop.target, (*items)[i]));
        SL_TRY(sl_tmpl_eval(run, stmt->as.loop.filter, &test));
        if (sl_tmpl_truth(test))
            kept[n_kept++] = (*items)[i];
    }
    *items = kept;
    *n = n_kept;
    return SL_OK;
}

/* *completed: an iteration came to its end, not cut short by break or continue. */
static sl_status run_loop(tmpl_run *run, const tmpl_stmt *stmt, const tmpl_value *items, size_t n,
                          bool *completed)
{
    tmpl_loop *loop;
    SL_TRY(sl_tmpl_new(run, 1, sizeof *loop, &loop));
    *loop = (tmpl_loop){.items = items, .n = n};
    const tmpl_value loop_value = {.kind = TMPL_LOOP, .as.loop = loop};
    tmpl_scope *scope = run->scope;
    for (size_t i = 0; i < n; i++) {
        flow end = FLOW_ON;
        SL_TRY(sl_tmpl_spend(run, 1));
        clear_scope(scope);
        loop->index0 = i;
        SL_TRY(set_var(run, (sl_str){"loop", 4}, loop_value));
        SL_TRY(assign(run, stmt->as.loop.target, items[i]));
        SL_TRY(exec_body(run, stmt->body, &end));
        *completed |= end == FLOW_ON;
        if (end == FLOW_BREAK)
            break;
    }
    return SL_OK;
}

static sl_status exec_for(tmpl_run *run, const tmpl_stmt *stmt, flow *out)
{
    tmpl_value iterable;
    const tmpl_value *items;
    size_t n;
    SL_TRY(sl_tmpl_eval(run, stmt->as.loop.iterable, &iterable));
    run->line = stmt->line;
    SL_TRY(sl_tmpl_items(run, iterable, &items, &n));
    tmpl_scope *outer = run->scope, *scope;
    SL_TRY(push_scope(run, outer, &scope));
    if (stmt->as.loop.filter)
        SL_TRY(filter_items(run, stmt, &items, &n));
    bool completed = false;
    if (n > 0)
        SL_TRY(run_loop(run, stmt, items, n, &completed));
    if (!completed && stmt->as.loop.otherwise) { /* as Jinja decides it */
        clear_scope(scope);
        SL_TRY(exec_body(run, stmt->as.loop.otherwise, out));
    }
    run->scope = outer;
    return SL_OK;
}

static sl_status exec_set(tmpl_run *run, const tmpl_stmt *stmt, flow *out)
{
    (void)out;
    tmpl_value value;
    SL_TRY(sl_tmpl_eval(run, stmt->as.set.value, &value));
    run->line = stmt->line;
    return assign(run, stmt->as.set.target, value);
}

/* The text of a body that has its own variables. */
static sl_status capture_body(tmpl_run *run, const tmpl_stmt *stmt, flow *out, tmpl_value *text)
{
    tmpl_scope *outer = run->scope, *scope;
    SL_TRY(push_scope(run, outer, &scope));
    tmpl_capture capture = sl_tmpl_capture(run);
    SL_TRY(exec_body(run, stmt->body, out));
    SL_TRY(sl_tmpl_captured(run, capture, text));
    run->scope = outer;
    return SL_OK;
}

static sl_status exec_set_block(tmpl_run *run, const tmpl_stmt *stmt, flow *out)
{
    tmpl_value text;
    SL_TRY(capture_body(run, stmt, out, &text));
    if (*out != FLOW_ON)
        return SL_OK;
    SL_TRY(sl_tmpl_apply_steps(run, stmt->as.set.filters, NULL, &text));
    return assign(run, stmt->as.set.target, text);
}

static sl_status exec_filter_block(tmpl_run *run, const tmpl_stmt *stmt, flow *out)
{
    tmpl_value text;
    SL_TRY(capture_body(run, stmt, out, &text));
    if (*out != FLOW_ON)
        return SL_OK;
    SL_TRY(sl_tmpl_apply_steps(run, stmt->as.filters, NULL, &text));
    return sl_tmpl_put_value(run, text);
}

static sl_status exec_with(tmpl_run *run, const tmpl_stmt *stmt, flow *out)
{
    tmpl_scope *outer = run->scope, *scope;
    SL_TRY(push_scope(run, outer, &scope));
    for (const tmpl_link *link = stmt->as.with; link; link = link->next) {
        tmpl_value value;
        run->scope = outer; /* values do not see each other's names */
        SL_TRY(sl_tmpl_eval(run, link->expr, &value));
        run->scope = scope;
        SL_TRY(set_var(run, link->name, value));
    }
    SL_TRY(exec_body(run, stmt->body, out));
    run->scope = outer;
    return SL_OK;
}

static sl_status exec_scope(tmpl_run *run, const tmpl_stmt *stmt, flow *out)
{
    tmpl_scope *outer = run->scope, *scope;
    SL_TRY(push_scope(run, outer, &scope));
    SL_TRY(exec_body(run, stmt->body, out));
    run->scope = outer;
    return SL_OK;
}

static sl_status exec_jump(tmpl_run *run, const tmpl_stmt *stmt, flow *out)
{
    (void)run;
    *out = stmt->kind == TMPL_STMT_BREAK ? FLOW_BREAK : FLOW_CONTINUE;
    return SL_OK;
}

/* ---- macros ---- */

static sl_status new_macro(tmpl_run *run, const tmpl_stmt *macro, tmpl_value *out)
{
    tmpl_function *function;
    SL_TRY(sl_tmpl_new(run, 1, sizeof *function, &function));
    *function = (tmpl_function){.macro = macro, .scope = run->scope};
    *out = (tmpl_value){.kind = TMPL_FUNCTION, .as.function = function};
    return SL_OK;
}

static sl_status exec_macro(tmpl_run *run, const tmpl_stmt *stmt, flow *out)
{
    (void)out;
    tmpl_value macro;
    SL_TRY(new_macro(run, stmt, &macro));
    return set_var(run, stmt->as.macro.signature.name, macro);
}

/* The call in the tag gets the body as the keyword argument `caller`. */
static sl_status exec_call_block(tmpl_run *run, const tmpl_stmt *stmt, flow *out)
{
    (void)out;
    const tmpl_expr *expr = stmt->as.macro.call;
    tmpl_value caller, result;
    SL_TRY(new_macro(run, stmt, &caller));
    SL_TRY(sl_tmpl_eval(run, expr->as.postfix.base, &result));
    const tmpl_step *last = expr->as.postfix.steps;
    while (last->next)
        last = last->next;
    SL_TRY(sl_tmpl_apply_steps(run, expr->as.postfix.steps, last, &result));
    size_t n_args = run->n_args;
    tmpl_call call;
    SL_TRY(sl_tmpl_eval_args(run, last->args, &call));
    SL_TRY(sl_tmpl_push_arg(run, &call, (sl_str){"caller", 6}, caller));
    SL_TRY(sl_tmpl_call_value(run, result, &call, &result));
    run->n_args = n_args;
    return sl_tmpl_put_value(run, result);
}

static const tmpl_arg *find_arg(const tmpl_call *call, sl_str name)
{
    for (size_t i = call->n_positional; i < call->n; i++) {
        if (sl_str_equal(call->args[i].name, name))
            return &call->args[i];
    }
    return NULL;
}

static bool is_param(const tmpl_signature *signature, sl_str name)
{
    for (const tmpl_link *param = signature->params; param; param = param->next) {
        if (sl_str_equal(param->name, name))
            return true;
    }
    return false;
}

/* Arguments without a parameter: varargs, kwargs and caller where the body asks for them. */
static sl_status bind_rest(tmpl_run *run, const tmpl_signature *signature, const tmpl_call *call)
{
    tmpl_value rest;
    int n_name = (int)sl_min_size(signature->name.n_bytes, 60);
    size_t n_extra =
        call->n_positional > signature->n_params ? call->n_positional - signature->n_params : 0;
    if (n_extra > 0 && !signature->uses_varargs)
        return sl_tmpl_fail(run, SL_ERR_ARGUMENT, "macro '%.*s' takes at most %zu arguments",
                            n_name, signature->name.data, signature->n_params);
    if (signature->uses_varargs) {
        tmpl_value *items;
        SL_TRY(sl_tmpl_new_items(run, TMPL_TUPLE, n_extra, &items, &rest));
        for (size_t i = 0; i < n_extra; i++)
            items[i] = call->args[signature->n_params + i].value;
        SL_TRY(set_var(run, (sl_str){"varargs", 7}, rest));
    }
    SL_TRY(sl_tmpl_new_dict(run, 0, &rest));
    for (size_t i = call->n_positional; i < call->n; i++) {
        const tmpl_arg *arg = &call->args[i];
        tmpl_value key;
        if (is_param(signature, arg->name))
            continue;
        if (signature->uses_caller && sl_str_is(arg->name, "caller")) {
            SL_TRY(set_var(run, arg->name, arg->value));
            continue;
        }
        if (!signature->uses_kwargs)
            return sl_tmpl_fail(run, SL_ERR_ARGUMENT, "macro '%.*s' has no parameter '%.*s'",
                                n_name, signature->name.data,
                                (int)sl_min_size(arg->name.n_bytes, 60), arg->name.data);
        SL_TRY(sl_tmpl_make_str(run, arg->name, false, &key));
        SL_TRY(sl_tmpl_dict_set(run, rest.as.dict, key, arg->value));
    }
    if (signature->uses_kwargs)
        SL_TRY(set_var(run, (sl_str){"kwargs", 6}, rest));
    if (signature->uses_caller && !find_arg(call, (sl_str){"caller", 6}) &&
        !is_param(signature, (sl_str){"caller", 6}))
        SL_TRY(set_var(run, (sl_str){"caller", 6},
                       tmpl_lacking(TMPL_LACK_ARGUMENT, TMPL_FUNCTION, &signature->name)));
    return SL_OK;
}

/* Defaults are evaluated at the call, in the macro's scope, after the parameters before them. */
static sl_status bind_params(tmpl_run *run, const tmpl_signature *signature, const tmpl_call *call)
{
    size_t index = 0;
    for (const tmpl_link *param = signature->params; param; param = param->next, index++) {
        tmpl_value value = tmpl_lacking(TMPL_LACK_ARGUMENT, TMPL_FUNCTION, &param->name);
        const tmpl_arg *arg = find_arg(call, param->name);
        if (arg && index < call->n_positional)
            return sl_tmpl_fail(run, SL_ERR_ARGUMENT, "macro '%.*s' got '%.*s' twice",
                                (int)sl_min_size(signature->name.n_bytes, 60), signature->name.data,
                                (int)sl_min_size(param->name.n_bytes, 60), param->name.data);
        if (index < call->n_positional)
            value = call->args[index].value;
        else if (arg)
            value = arg->value;
        else if (param->expr)
            SL_TRY(sl_tmpl_eval(run, param->expr, &value));
        SL_TRY(set_var(run, param->name, value));
    }
    return bind_rest(run, signature, call);
}

sl_status sl_tmpl_call_macro(tmpl_run *run, const tmpl_function *function, const tmpl_call *call,
                             tmpl_value *out)
{
    const tmpl_stmt *macro = function->macro;
    if (run->n_calls == SL_TEMPLATE_MAX_CALLS)
        return sl_tmpl_fail(run, SL_ERR_LIMIT, "more than %d nested macro calls",
                            SL_TEMPLATE_MAX_CALLS);
    run->n_calls++;
    tmpl_scope *caller = run->scope, *scope;
    flow end = FLOW_ON;
    SL_TRY(push_scope(run, function->scope, &scope));
    SL_TRY(bind_params(run, &macro->as.macro.signature, call));
    tmpl_capture capture = sl_tmpl_capture(run);
    SL_TRY(exec_body(run, macro->body, &end));
    SL_TRY(sl_tmpl_captured(run, capture, out));
    run->scope = caller;
    run->n_calls--;
    return SL_OK;
}

/* ---- bodies ---- */

static sl_status exec_body(tmpl_run *run, const tmpl_stmt *body, flow *out)
{
    static sl_status (*const exec[TMPL_STMT_KINDS])(tmpl_run *, const tmpl_stmt *, flow *) = {
        [TMPL_STMT_TEXT] = exec_text,
        [TMPL_STMT_PRINT] = exec_print,
        [TMPL_STMT_IF] = exec_if,
        [TMPL_STMT_FOR] = exec_for,
        [TMPL_STMT_SET] = exec_set,
        [TMPL_STMT_SET_BLOCK] = exec_set_block,
        [TMPL_STMT_MACRO] = exec_macro,
        [TMPL_STMT_CALL_BLOCK] = exec_call_block,
        [TMPL_STMT_FILTER_BLOCK] = exec_filter_block,
        [TMPL_STMT_WITH] = exec_with,
        [TMPL_STMT_SCOPE] = exec_scope,
        [TMPL_STMT_BREAK] = exec_jump,
        [TMPL_STMT_CONTINUE] = exec_jump,
    };
    SL_TRY(sl_tmpl_enter(run));
    for (const tmpl_stmt *stmt = body; stmt && *out == FLOW_ON; stmt = stmt->next) {
        run->line = stmt->line;
        SL_TRY(sl_tmpl_spend(run, 1));
        SL_TRY(exec[stmt->kind](run, stmt, out));
    }
    tmpl_leave(run);
    return SL_OK;
}

sl_status sl_tmpl_exec(tmpl_run *run, const tmpl_stmt *body)
{
    flow end = FLOW_ON;
    return exec_body(run, body, &end);
}
