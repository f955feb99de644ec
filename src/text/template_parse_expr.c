/* Expressions of templates, by operator precedence. One call of parse_operators per level of
 * nesting keeps the stack small; what nests deeper than SL_TEMPLATE_MAX_NESTING is refused. */
#include "text/template_parse.h"

#include <string.h>

/* Loosest first, as in Jinja: `**` binds to the left, and unary minus binds tighter than it. */
typedef enum level {
    LEVEL_OR,
    LEVEL_AND,
    LEVEL_NOT,
    LEVEL_COMPARE,
    LEVEL_ADD,
    LEVEL_CONCAT,
    LEVEL_MULTIPLY,
    LEVEL_POWER,
    LEVEL_UNARY
} level;

static const struct {
    const char *text;
    tmpl_op op;
    level level;
} operators[] = {
    {"or", TMPL_OP_OR, LEVEL_OR},       {"and", TMPL_OP_AND, LEVEL_AND},
    {"in", TMPL_OP_IN, LEVEL_COMPARE},  {"==", TMPL_OP_EQ, LEVEL_COMPARE},
    {"!=", TMPL_OP_NE, LEVEL_COMPARE},  {"<", TMPL_OP_LT, LEVEL_COMPARE},
    {"<=", TMPL_OP_LE, LEVEL_COMPARE},  {">", TMPL_OP_GT, LEVEL_COMPARE},
    {">=", TMPL_OP_GE, LEVEL_COMPARE},  {"+", TMPL_OP_ADD, LEVEL_ADD},
    {"-", TMPL_OP_SUB, LEVEL_ADD},      {"~", TMPL_OP_CONCAT, LEVEL_CONCAT},
    {"*", TMPL_OP_MUL, LEVEL_MULTIPLY}, {"/", TMPL_OP_DIV, LEVEL_MULTIPLY},
    {"%", TMPL_OP_MOD, LEVEL_MULTIPLY}, {"//", TMPL_OP_FLOORDIV, LEVEL_MULTIPLY},
    {"**", TMPL_OP_POW, LEVEL_POWER},
};

static const tmpl_expr_kind chain_kind[] = {
    [LEVEL_OR] = TMPL_EXPR_OR,
    [LEVEL_AND] = TMPL_EXPR_AND,
    [LEVEL_COMPARE] = TMPL_EXPR_COMPARE,
    [LEVEL_ADD] = TMPL_EXPR_ARITHMETIC,
    [LEVEL_CONCAT] = TMPL_EXPR_CONCAT,
    [LEVEL_MULTIPLY] = TMPL_EXPR_ARITHMETIC,
    [LEVEL_POWER] = TMPL_EXPR_ARITHMETIC,
};

/* The binary operator at the current token, TMPL_OP_NONE if it is none. */
static tmpl_op binary_operator(const tmpl_parser *parser, level *at)
{
    const tmpl_token *token = &parser->token;
    if (sl_tmpl_parse_is_name(token, "not") && sl_tmpl_parse_is_name(&parser->ahead, "in")) {
        *at = LEVEL_COMPARE;
        return TMPL_OP_NOT_IN;
    }
    if (token->kind != TMPL_TOKEN_OPERATOR && token->kind != TMPL_TOKEN_NAME)
        return TMPL_OP_NONE;
    for (size_t i = 0; i < SL_COUNTOF(operators); i++) {
        bool is_word = operators[i].op == TMPL_OP_OR || operators[i].op == TMPL_OP_AND ||
                       operators[i].op == TMPL_OP_IN;
        if (is_word == (token->kind == TMPL_TOKEN_NAME) &&
            sl_str_is(token->text, operators[i].text)) {
            *at = operators[i].level;
            return operators[i].op;
        }
    }
    return TMPL_OP_NONE;
}

static sl_status new_expr(tmpl_parser *parser, tmpl_expr_kind kind, tmpl_expr **out)
{
    SL_TRY(sl_tmpl_parse_new(parser, sizeof **out, out));
    (*out)->kind = kind;
    (*out)->line = parser->token.line;
    return SL_OK;
}

/* Appends a link with this expression at *tail and moves the tail. */
static sl_status append_link(tmpl_parser *parser, tmpl_link ***tail, tmpl_expr *expr,
                             tmpl_link **out)
{
    tmpl_link *link;
    SL_TRY(sl_tmpl_parse_new(parser, sizeof *link, &link));
    link->expr = expr;
    **tail = link;
    *tail = &link->next;
    if (out)
        *out = link;
    return SL_OK;
}

static sl_status parse_constant(tmpl_parser *parser, tmpl_value value, tmpl_expr **out)
{
    SL_TRY(new_expr(parser, TMPL_EXPR_CONSTANT, out));
    (*out)->as.constant = value;
    return sl_tmpl_parse_advance(parser);
}

/* Neighbouring strings are one string. */
static sl_status parse_string(tmpl_parser *parser, tmpl_expr **out)
{
    SL_TRY(new_expr(parser, TMPL_EXPR_CONSTANT, out));
    sl_str text = parser->token.text;
    SL_TRY(sl_tmpl_parse_advance(parser));
    while (parser->token.kind == TMPL_TOKEN_STRING) {
        sl_str more = parser->token.text;
        char *joined;
        SL_TRY(sl_tmpl_parse_new(parser, text.n_bytes + more.n_bytes, &joined));
        memcpy(joined, text.data, text.n_bytes);
        memcpy(joined + text.n_bytes, more.data, more.n_bytes);
        text = (sl_str){joined, text.n_bytes + more.n_bytes};
        SL_TRY(sl_tmpl_parse_advance(parser));
    }
    tmpl_str *string;
    SL_TRY(sl_tmpl_parse_text(parser, text, &string));
    (*out)->as.constant = tmpl_text(string);
    return SL_OK;
}

static sl_status parse_name(tmpl_parser *parser, tmpl_expr **out)
{
    static const char *const reserved[] = {"and", "or", "not", "in", "is", "if", "elif", "else"};
    sl_str name = parser->token.text;
    if (sl_str_is(name, "true") || sl_str_is(name, "True"))
        return parse_constant(parser, tmpl_bool(true), out);
    if (sl_str_is(name, "false") || sl_str_is(name, "False"))
        return parse_constant(parser, tmpl_bool(false), out);
    if (sl_str_is(name, "none") || sl_str_is(name, "None"))
        return parse_constant(parser, tmpl_none(), out);
    for (size_t i = 0; i < SL_COUNTOF(reserved); i++) {
        if (sl_str_is(name, reserved[i]))
            return sl_tmpl_parse_unexpected(parser, "an expression");
    }
    if (parser->signature) {
        parser->signature->uses_caller |= sl_str_is(name, "caller");
        parser->signature->uses_varargs |= sl_str_is(name, "varargs");
        parser->signature->uses_kwargs |= sl_str_is(name, "kwargs");
    }
    SL_TRY(new_expr(parser, TMPL_EXPR_NAME, out));
    (*out)->as.name = name;
    return sl_tmpl_parse_advance(parser);
}

/* "(...)": a parenthesised expression, or a tuple. */
static sl_status parse_parenthesis(tmpl_parser *parser, tmpl_expr **out)
{
    SL_TRY(sl_tmpl_parse_advance(parser));
    if (sl_tmpl_parse_is_operator(&parser->token, ")"))
        SL_TRY(new_expr(parser, TMPL_EXPR_TUPLE, out));
    else
        SL_TRY(sl_tmpl_parse_tuple(parser, false, out));
    return sl_tmpl_parse_expect_operator(parser, ")");
}

static sl_status parse_list(tmpl_parser *parser, tmpl_expr **out)
{
    SL_TRY(new_expr(parser, TMPL_EXPR_LIST, out));
    SL_TRY(sl_tmpl_parse_advance(parser));
    tmpl_link **tail = &(*out)->as.literal.items;
    while (!sl_tmpl_parse_is_operator(&parser->token, "]")) {
        if ((*out)->as.literal.n > 0) {
            SL_TRY(sl_tmpl_parse_expect_operator(parser, ","));
            if (sl_tmpl_parse_is_operator(&parser->token, "]"))
                break;
        }
        tmpl_expr *item;
        SL_TRY(sl_tmpl_parse_expr(parser, false, &item));
        SL_TRY(append_link(parser, &tail, item, NULL));
        (*out)->as.literal.n++;
    }
    return sl_tmpl_parse_advance(parser);
}

static sl_status parse_dict(tmpl_parser *parser, tmpl_expr **out)
{
    SL_TRY(new_expr(parser, TMPL_EXPR_DICT, out));
    SL_TRY(sl_tmpl_parse_advance(parser));
    tmpl_link **tail = &(*out)->as.literal.items;
    while (!sl_tmpl_parse_is_operator(&parser->token, "}")) {
        if ((*out)->as.literal.n > 0) {
            SL_TRY(sl_tmpl_parse_expect_operator(parser, ","));
            if (sl_tmpl_parse_is_operator(&parser->token, "}"))
                break;
        }
        tmpl_expr *part;
        SL_TRY(sl_tmpl_parse_expr(parser, false, &part));
        SL_TRY(append_link(parser, &tail, part, NULL));
        SL_TRY(sl_tmpl_parse_expect_operator(parser, ":"));
        SL_TRY(sl_tmpl_parse_expr(parser, false, &part));
        SL_TRY(append_link(parser, &tail, part, NULL));
        (*out)->as.literal.n++;
    }
    return sl_tmpl_parse_advance(parser);
}

static sl_status parse_primary(tmpl_parser *parser, tmpl_expr **out)
{
    const tmpl_token *token = &parser->token;
    switch (token->kind) {
    case TMPL_TOKEN_NAME:
        return parse_name(parser, out);
    case TMPL_TOKEN_STRING:
        return parse_string(parser, out);
    case TMPL_TOKEN_INT:
        return parse_constant(parser, tmpl_int(token->integer), out);
    case TMPL_TOKEN_FLOAT:
        return parse_constant(parser, tmpl_float(token->real), out);
    default:
        break;
    }
    if (sl_tmpl_parse_is_operator(token, "("))
        return parse_parenthesis(parser, out);
    if (sl_tmpl_parse_is_operator(token, "["))
        return parse_list(parser, out);
    if (sl_tmpl_parse_is_operator(token, "{"))
        return parse_dict(parser, out);
    return sl_tmpl_parse_unexpected(parser, "an expression");
}

static sl_status parse_args(tmpl_parser *parser, tmpl_link **out)
{
    tmpl_link **tail = out;
    size_t n = 0;
    bool named = false;
    SL_TRY(sl_tmpl_parse_advance(parser));
    while (!sl_tmpl_parse_is_operator(&parser->token, ")")) {
        if (n > 0) {
            SL_TRY(sl_tmpl_parse_expect_operator(parser, ","));
            if (sl_tmpl_parse_is_operator(&parser->token, ")"))
                break;
        }
        uint32_t line = parser->token.line;
        if (sl_tmpl_parse_is_operator(&parser->token, "*") ||
            sl_tmpl_parse_is_operator(&parser->token, "**"))
            return sl_tmpl_parse_fail(parser, SL_ERR_UNSUPPORTED, line,
                                      "arguments from '*' or '**' are not supported");
        sl_str name = {NULL, 0};
        if (parser->token.kind == TMPL_TOKEN_NAME &&
            sl_tmpl_parse_is_operator(&parser->ahead, "=")) {
            name = parser->token.text;
            named = true;
            SL_TRY(sl_tmpl_parse_advance(parser));
            SL_TRY(sl_tmpl_parse_advance(parser));
        } else if (named) {
            return sl_tmpl_parse_fail(parser, SL_ERR_FORMAT, line,
                                      "a positional argument after a keyword argument");
        }
        tmpl_expr *value;
        SL_TRY(sl_tmpl_parse_expr(parser, false, &value));
        tmpl_link *link;
        SL_TRY(append_link(parser, &tail, value, &link));
        link->name = name;
        if (++n > SL_TEMPLATE_MAX_ARGUMENTS)
            return sl_tmpl_parse_fail(parser, SL_ERR_LIMIT, line, "more than %d arguments",
                                      SL_TEMPLATE_MAX_ARGUMENTS);
    }
    return sl_tmpl_parse_advance(parser);
}

static sl_status new_step(tmpl_parser *parser, tmpl_step_kind kind, tmpl_step **out)
{
    SL_TRY(sl_tmpl_parse_new(parser, sizeof **out, out));
    (*out)->kind = kind;
    (*out)->line = parser->token.line;
    return SL_OK;
}

/* ".name" or ".0" */
static sl_status parse_attribute(tmpl_parser *parser, tmpl_step **out)
{
    SL_TRY(new_step(parser, TMPL_STEP_ATTRIBUTE, out));
    SL_TRY(sl_tmpl_parse_advance(parser));
    if (parser->token.kind == TMPL_TOKEN_INT) {
        (*out)->kind = TMPL_STEP_ITEM;
        return parse_constant(parser, tmpl_int(parser->token.integer), &(*out)->index);
    }
    if (parser->token.kind != TMPL_TOKEN_NAME)
        return sl_tmpl_parse_unexpected(parser, "a name after '.'");
    (*out)->name = parser->token.text;
    return sl_tmpl_parse_advance(parser);
}

/* One bound of a slice: absent before ':' and ']'. */
static sl_status parse_bound(tmpl_parser *parser, tmpl_expr **out)
{
    if (sl_tmpl_parse_is_operator(&parser->token, ":") ||
        sl_tmpl_parse_is_operator(&parser->token, "]"))
        return SL_OK;
    return sl_tmpl_parse_expr(parser, false, out);
}

static sl_status parse_subscript(tmpl_parser *parser, tmpl_step **out)
{
    SL_TRY(new_step(parser, TMPL_STEP_ITEM, out));
    tmpl_step *step = *out;
    SL_TRY(sl_tmpl_parse_advance(parser));
    SL_TRY(parse_bound(parser, &step->start));
    if (sl_tmpl_parse_is_operator(&parser->token, ":")) {
        step->kind = TMPL_STEP_SLICE;
        SL_TRY(sl_tmpl_parse_advance(parser));
        SL_TRY(parse_bound(parser, &step->stop));
        if (sl_tmpl_parse_is_operator(&parser->token, ":")) {
            SL_TRY(sl_tmpl_parse_advance(parser));
            SL_TRY(parse_bound(parser, &step->stride));
        }
    } else if (!step->start) {
        return sl_tmpl_parse_unexpected(parser, "an index");
    } else {
        step->index = step->start;
        step->start = NULL;
    }
    return sl_tmpl_parse_expect_operator(parser, "]");
}

sl_status sl_tmpl_parse_filters(tmpl_parser *parser, bool bare, tmpl_step **out)
{
    tmpl_step **tail = out;
    while (bare || sl_tmpl_parse_is_operator(&parser->token, "|")) {
        if (!bare)
            SL_TRY(sl_tmpl_parse_advance(parser));
        bare = false;
        tmpl_step *step;
        SL_TRY(new_step(parser, TMPL_STEP_FILTER, &step));
        if (parser->token.kind != TMPL_TOKEN_NAME)
            return sl_tmpl_parse_unexpected(parser, "the name of a filter");
        step->name = parser->token.text;
        step->callable = sl_tmpl_find_filter(step->name);
        if (!step->callable)
            return sl_tmpl_parse_fail(parser, SL_ERR_UNSUPPORTED, step->line,
                                      "filter '%.*s' is not supported", (int)step->name.n_bytes,
                                      step->name.data);
        SL_TRY(sl_tmpl_parse_advance(parser));
        if (sl_tmpl_parse_is_operator(&parser->token, "("))
            SL_TRY(parse_args(parser, &step->args));
        *tail = step;
        tail = &step->next;
    }
    return SL_OK;
}

static sl_status parse_postfix_steps(tmpl_parser *parser, tmpl_expr **expr, bool with_filters);

/* Whether the current token begins the argument of a test written without parentheses. */
static bool begins_test_argument(const tmpl_parser *parser)
{
    const tmpl_token *token = &parser->token;
    if (token->kind == TMPL_TOKEN_NAME)
        return !sl_tmpl_parse_is_name(token, "else") && !sl_tmpl_parse_is_name(token, "or") &&
               !sl_tmpl_parse_is_name(token, "and") && !sl_tmpl_parse_is_name(token, "if") &&
               !sl_tmpl_parse_is_name(token, "is");
    return token->kind == TMPL_TOKEN_STRING || token->kind == TMPL_TOKEN_INT ||
           token->kind == TMPL_TOKEN_FLOAT || sl_tmpl_parse_is_operator(token, "[") ||
           sl_tmpl_parse_is_operator(token, "{");
}

static sl_status parse_test(tmpl_parser *parser, tmpl_step **out)
{
    SL_TRY(new_step(parser, TMPL_STEP_TEST, out));
    tmpl_step *step = *out;
    SL_TRY(sl_tmpl_parse_advance(parser));
    if (sl_tmpl_parse_is_name(&parser->token, "not")) {
        step->negated = true;
        SL_TRY(sl_tmpl_parse_advance(parser));
    }
    if (parser->token.kind != TMPL_TOKEN_NAME)
        return sl_tmpl_parse_unexpected(parser, "the name of a test");
    step->name = parser->token.text;
    step->callable = sl_tmpl_find_test(step->name);
    if (!step->callable)
        return sl_tmpl_parse_fail(parser, SL_ERR_UNSUPPORTED, step->line,
                                  "test '%.*s' is not supported", (int)step->name.n_bytes,
                                  step->name.data);
    SL_TRY(sl_tmpl_parse_advance(parser));
    if (sl_tmpl_parse_is_operator(&parser->token, "("))
        return parse_args(parser, &step->args);
    if (sl_tmpl_parse_is_name(&parser->token, "is"))
        return sl_tmpl_parse_fail(parser, SL_ERR_FORMAT, step->line,
                                  "tests cannot be chained with 'is'");
    if (!begins_test_argument(parser))
        return SL_OK;
    tmpl_expr *argument;
    SL_TRY(parse_primary(parser, &argument));
    SL_TRY(parse_postfix_steps(parser, &argument, false));
    tmpl_link **tail = &step->args;
    return append_link(parser, &tail, argument, NULL);
}

/* Everything that may follow an operand: .a, [i], (args), |filter, is test. A test must be the last
 * but for calls and filters, whose operand it is, as in Jinja. */
static sl_status parse_postfix_steps(tmpl_parser *parser, tmpl_expr **expr, bool with_filters)
{
    tmpl_step **tail = NULL;
    bool filtered = false;
    for (;;) {
        const tmpl_token *token = &parser->token;
        tmpl_step *step = NULL;
        uint32_t line = token->line;
        if (!filtered && sl_tmpl_parse_is_operator(token, ".")) {
            SL_TRY(parse_attribute(parser, &step));
        } else if (!filtered && sl_tmpl_parse_is_operator(token, "[")) {
            SL_TRY(parse_subscript(parser, &step));
        } else if (sl_tmpl_parse_is_operator(token, "(")) {
            SL_TRY(new_step(parser, TMPL_STEP_CALL, &step));
            SL_TRY(parse_args(parser, &step->args));
        } else if (with_filters && sl_tmpl_parse_is_operator(token, "|")) {
            SL_TRY(sl_tmpl_parse_filters(parser, false, &step));
            filtered = true;
        } else if (with_filters && sl_tmpl_parse_is_name(token, "is")) {
            SL_TRY(parse_test(parser, &step));
            filtered = true;
        } else {
            return SL_OK;
        }
        if (!tail) {
            tmpl_expr *postfix;
            SL_TRY(new_expr(parser, TMPL_EXPR_POSTFIX, &postfix));
            postfix->line = line;
            postfix->as.postfix.base = *expr;
            *expr = postfix;
            tail = &postfix->as.postfix.steps;
        }
        *tail = step;
        while (*tail)
            tail = &(*tail)->next;
    }
}

static sl_status parse_operators(tmpl_parser *parser, level least, tmpl_expr **out);

static sl_status parse_unary(tmpl_parser *parser, bool with_filters, tmpl_expr **out)
{
    bool minus = sl_tmpl_parse_is_operator(&parser->token, "-");
    if (minus || sl_tmpl_parse_is_operator(&parser->token, "+")) {
        SL_TRY(sl_tmpl_parse_enter(parser));
        SL_TRY(new_expr(parser, minus ? TMPL_EXPR_NEGATE : TMPL_EXPR_PLUS, out));
        SL_TRY(sl_tmpl_parse_advance(parser));
        SL_TRY(parse_unary(parser, false, &(*out)->as.chain.first));
        tmpl_parse_leave(parser);
    } else {
        SL_TRY(parse_primary(parser, out));
    }
    return parse_postfix_steps(parser, out, with_filters);
}

/* A chain of operators that bind at least as tightly as `least`. Operators of one level make one
 * node; a looser operator takes what was read so far as its left operand. */
static sl_status parse_operators(tmpl_parser *parser, level least, tmpl_expr **out)
{
    SL_TRY(sl_tmpl_parse_enter(parser));
    if (least <= LEVEL_NOT && sl_tmpl_parse_is_name(&parser->token, "not")) {
        SL_TRY(new_expr(parser, TMPL_EXPR_NOT, out));
        SL_TRY(sl_tmpl_parse_advance(parser));
        SL_TRY(parse_operators(parser, LEVEL_NOT, &(*out)->as.chain.first));
    } else {
        SL_TRY(parse_unary(parser, true, out));
    }
    level chain = LEVEL_UNARY; /* of the node in *out, if this call made it */
    tmpl_link **tail = NULL;
    for (;;) {
        level at = LEVEL_UNARY;
        tmpl_op op = binary_operator(parser, &at);
        if (op == TMPL_OP_NONE || at < least)
            break;
        if (at != chain) {
            tmpl_expr *first = *out;
            SL_TRY(new_expr(parser, chain_kind[at], out));
            (*out)->as.chain.first = first;
            tail = &(*out)->as.chain.rest;
            chain = at;
        }
        SL_TRY(sl_tmpl_parse_advance(parser));
        if (op == TMPL_OP_NOT_IN)
            SL_TRY(sl_tmpl_parse_advance(parser));
        tmpl_expr *operand;
        SL_TRY(parse_operators(parser, (level)(at + 1), &operand));
        tmpl_link *link;
        SL_TRY(append_link(parser, &tail, operand, &link));
        link->op = op;
    }
    tmpl_parse_leave(parser);
    return SL_OK;
}

/* "a if test else b"; the part after `else` may hold further ones. */
sl_status sl_tmpl_parse_expr(tmpl_parser *parser, bool without_if, tmpl_expr **out)
{
    SL_TRY(parse_operators(parser, LEVEL_OR, out));
    unsigned depth = parser->depth;
    while (!without_if && sl_tmpl_parse_is_name(&parser->token, "if")) {
        SL_TRY(sl_tmpl_parse_enter(parser));
        tmpl_expr *then = *out;
        SL_TRY(new_expr(parser, TMPL_EXPR_CONDITIONAL, out));
        (*out)->as.conditional.then = then;
        SL_TRY(sl_tmpl_parse_advance(parser));
        SL_TRY(parse_operators(parser, LEVEL_OR, &(*out)->as.conditional.test));
        if (sl_tmpl_parse_is_name(&parser->token, "else")) {
            SL_TRY(sl_tmpl_parse_advance(parser));
            SL_TRY(sl_tmpl_parse_expr(parser, false, &(*out)->as.conditional.otherwise));
        }
    }
    parser->depth = depth;
    return SL_OK;
}

sl_status sl_tmpl_parse_tuple(tmpl_parser *parser, bool without_if, tmpl_expr **out)
{
    SL_TRY(sl_tmpl_parse_expr(parser, without_if, out));
    if (!sl_tmpl_parse_is_operator(&parser->token, ","))
        return SL_OK;
    tmpl_expr *first = *out;
    SL_TRY(new_expr(parser, TMPL_EXPR_TUPLE, out));
    tmpl_link **tail = &(*out)->as.literal.items;
    SL_TRY(append_link(parser, &tail, first, NULL));
    (*out)->as.literal.n = 1;
    while (sl_tmpl_parse_is_operator(&parser->token, ",")) {
        SL_TRY(sl_tmpl_parse_advance(parser));
        if (parser->token.kind == TMPL_TOKEN_PRINT_END ||
            parser->token.kind == TMPL_TOKEN_BLOCK_END ||
            sl_tmpl_parse_is_operator(&parser->token, ")"))
            break;
        tmpl_expr *item;
        SL_TRY(sl_tmpl_parse_expr(parser, without_if, &item));
        SL_TRY(append_link(parser, &tail, item, NULL));
        (*out)->as.literal.n++;
    }
    return SL_OK;
}
