/* Statements of templates. What lies outside the subset (include, import, extends, block,
 * autoescape, do, trans, recursive loops) is refused by name. */
#include "text/template_parse.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/utf8.h"

sl_status sl_tmpl_parse_fail(const tmpl_parser *parser, sl_status status, uint32_t line,
                             const char *format, ...)
{
    char text[SL_ERROR_MESSAGE_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return sl_fail(parser->err, status, "%s: line %u: %s", parser->compiled->name, (unsigned)line,
                   text);
}

sl_status sl_tmpl_parse_unexpected(const tmpl_parser *parser, const char *what)
{
    const tmpl_token *token = &parser->token;
    static const char *const names[] = {
        [TMPL_TOKEN_END] = "the end of the template",
        [TMPL_TOKEN_TEXT] = "text",
        [TMPL_TOKEN_PRINT_BEGIN] = "'{{'",
        [TMPL_TOKEN_PRINT_END] = "'}}'",
        [TMPL_TOKEN_BLOCK_BEGIN] = "'{%'",
        [TMPL_TOKEN_BLOCK_END] = "'%}'",
        [TMPL_TOKEN_STRING] = "a string",
        [TMPL_TOKEN_INT] = "a number",
        [TMPL_TOKEN_FLOAT] = "a number",
    };
    if (token->kind == TMPL_TOKEN_NAME || token->kind == TMPL_TOKEN_OPERATOR)
        return sl_tmpl_parse_fail(parser, SL_ERR_FORMAT, token->line, "expected %s, got '%.*s'",
                                  what, (int)sl_min_size(token->text.n_bytes, 60),
                                  token->text.data);
    return sl_tmpl_parse_fail(parser, SL_ERR_FORMAT, token->line, "expected %s, got %s", what,
                              names[token->kind]);
}

sl_status sl_tmpl_parse_advance(tmpl_parser *parser)
{
    parser->token = parser->ahead;
    if (parser->token.kind == TMPL_TOKEN_END)
        return SL_OK;
    return sl_tmpl_lex_next(&parser->lexer, &parser->ahead, parser->err);
}

sl_status sl_tmpl_parse_new(tmpl_parser *parser, size_t n, void *out)
{
    tmpl_arena *arena = &parser->compiled->arena;
    void *p = sl_tmpl_arena_take(arena, n);
    if (!p && arena->over_budget)
        return sl_tmpl_parse_fail(parser, SL_ERR_LIMIT, parser->token.line,
                                  "the compiled template would be too large");
    if (!p)
        return sl_tmpl_parse_fail(parser, SL_ERR_MEMORY, parser->token.line, "out of memory");
    memset(p, 0, n);
    memcpy(out, &p, sizeof p);
    return SL_OK;
}

sl_status sl_tmpl_parse_enter(tmpl_parser *parser)
{
    if (parser->depth == SL_TEMPLATE_MAX_NESTING)
        return sl_tmpl_parse_fail(parser, SL_ERR_LIMIT, parser->token.line,
                                  "nested deeper than %d levels", SL_TEMPLATE_MAX_NESTING);
    parser->depth++;
    return SL_OK;
}

bool sl_tmpl_parse_is_name(const tmpl_token *token, const char *name)
{
    return token->kind == TMPL_TOKEN_NAME && sl_str_is(token->text, name);
}

bool sl_tmpl_parse_is_operator(const tmpl_token *token, const char *op)
{
    return token->kind == TMPL_TOKEN_OPERATOR && sl_str_is(token->text, op);
}

sl_status sl_tmpl_parse_expect_operator(tmpl_parser *parser, const char *op)
{
    if (!sl_tmpl_parse_is_operator(&parser->token, op)) {
        char what[8];
        snprintf(what, sizeof what, "'%s'", op);
        return sl_tmpl_parse_unexpected(parser, what);
    }
    return sl_tmpl_parse_advance(parser);
}

sl_status sl_tmpl_parse_text(tmpl_parser *parser, sl_str text, tmpl_str **out)
{
    SL_TRY(sl_tmpl_parse_new(parser, sizeof **out, out));
    (*out)->s = text;
    for (size_t i = 0; i < text.n_bytes; i++)
        (*out)->n_chars += ((unsigned char)text.data[i] & 0xC0) != 0x80;
    return SL_OK;
}

static sl_status expect_name(tmpl_parser *parser, const char *name)
{
    if (!sl_tmpl_parse_is_name(&parser->token, name)) {
        char what[24];
        snprintf(what, sizeof what, "'%s'", name);
        return sl_tmpl_parse_unexpected(parser, what);
    }
    return sl_tmpl_parse_advance(parser);
}

static sl_status expect_block_end(tmpl_parser *parser)
{
    if (sl_tmpl_parse_is_operator(&parser->token, ":"))
        SL_TRY(sl_tmpl_parse_advance(parser));
    if (parser->token.kind != TMPL_TOKEN_BLOCK_END)
        return sl_tmpl_parse_unexpected(parser, "'%}'");
    return sl_tmpl_parse_advance(parser);
}

/* Statements up to the tag that begins with one of the given names (NULL: none), whose name is then
 * the current token. Called behind the name of the opening tag: reads the opening tag's end. */
typedef struct terminators {
    const char *first, *second, *third;
} terminators;

static sl_status parse_statements(tmpl_parser *parser, const terminators *until, tmpl_stmt **out);

static sl_status parse_body(tmpl_parser *parser, const char *first, const char *second,
                            const char *third, tmpl_stmt **out)
{
    SL_TRY(expect_block_end(parser));
    terminators until = {first, second, third};
    return parse_statements(parser, &until, out);
}

static sl_status parse_target_tuple(tmpl_parser *parser, tmpl_target *tuple);

/* A name, "name.attribute" or "(targets)". */
static sl_status parse_target_part(tmpl_parser *parser, tmpl_target **out)
{
    SL_TRY(sl_tmpl_parse_new(parser, sizeof **out, out));
    if (sl_tmpl_parse_is_operator(&parser->token, "(")) {
        SL_TRY(sl_tmpl_parse_enter(parser));
        SL_TRY(sl_tmpl_parse_advance(parser));
        SL_TRY(parse_target_tuple(parser, *out));
        tmpl_parse_leave(parser);
        return sl_tmpl_parse_expect_operator(parser, ")");
    }
    static const char *const constants[] = {"true", "false", "none", "True", "False",
                                            "None", "and",   "or",   "not",  "in",
                                            "is",   "if",    "elif", "else"};
    bool is_name = parser->token.kind == TMPL_TOKEN_NAME;
    for (size_t i = 0; i < SL_COUNTOF(constants) && is_name; i++)
        is_name = !sl_str_is(parser->token.text, constants[i]);
    if (!is_name)
        return sl_tmpl_parse_unexpected(parser, "a name to assign to");
    (*out)->name = parser->token.text;
    SL_TRY(sl_tmpl_parse_advance(parser));
    if (!sl_tmpl_parse_is_operator(&parser->token, "."))
        return SL_OK;
    SL_TRY(sl_tmpl_parse_advance(parser));
    if (parser->token.kind != TMPL_TOKEN_NAME)
        return sl_tmpl_parse_unexpected(parser, "a name after '.'");
    (*out)->attribute = parser->token.text;
    return sl_tmpl_parse_advance(parser);
}

/* Targets separated by commas; a single one without a comma becomes *tuple itself. */
static sl_status parse_target_tuple(tmpl_parser *parser, tmpl_target *tuple)
{
    tmpl_target **tail = &tuple->parts;
    bool comma = false;
    do {
        tmpl_target *part;
        SL_TRY(parse_target_part(parser, &part));
        *tail = part;
        tail = &part->next;
        tuple->n_parts++;
        comma = sl_tmpl_parse_is_operator(&parser->token, ",");
        if (comma)
            SL_TRY(sl_tmpl_parse_advance(parser));
        else if (tuple->n_parts == 1)
            *tuple = *part;
    } while (
        comma &&
        (parser->token.kind == TMPL_TOKEN_NAME || sl_tmpl_parse_is_operator(&parser->token, "(")) &&
        !sl_tmpl_parse_is_name(&parser->token, "in"));
    return SL_OK;
}

static sl_status parse_target(tmpl_parser *parser, tmpl_target **out)
{
    SL_TRY(sl_tmpl_parse_new(parser, sizeof **out, out));
    return parse_target_tuple(parser, *out);
}

static sl_status parse_if(tmpl_parser *parser, tmpl_stmt *stmt)
{
    tmpl_branch **tail = &stmt->as.branches;
    for (;;) {
        tmpl_branch *branch;
        SL_TRY(sl_tmpl_parse_new(parser, sizeof *branch, &branch));
        *tail = branch;
        tail = &branch->next;
        SL_TRY(sl_tmpl_parse_tuple(parser, true, &branch->test));
        SL_TRY(parse_body(parser, "elif", "else", "endif", &branch->body));
        if (!sl_tmpl_parse_is_name(&parser->token, "elif"))
            break;
        SL_TRY(sl_tmpl_parse_advance(parser));
    }
    if (sl_tmpl_parse_is_name(&parser->token, "else")) {
        SL_TRY(sl_tmpl_parse_advance(parser));
        tmpl_branch *branch;
        SL_TRY(sl_tmpl_parse_new(parser, sizeof *branch, &branch));
        *tail = branch;
        SL_TRY(parse_body(parser, "endif", NULL, NULL, &branch->body));
    }
    return sl_tmpl_parse_advance(parser);
}

static sl_status parse_for(tmpl_parser *parser, tmpl_stmt *stmt)
{
    SL_TRY(parse_target(parser, &stmt->as.loop.target));
    SL_TRY(expect_name(parser, "in"));
    SL_TRY(sl_tmpl_parse_tuple(parser, true, &stmt->as.loop.iterable));
    if (sl_tmpl_parse_is_name(&parser->token, "if")) {
        SL_TRY(sl_tmpl_parse_advance(parser));
        SL_TRY(sl_tmpl_parse_expr(parser, false, &stmt->as.loop.filter));
    }
    if (sl_tmpl_parse_is_name(&parser->token, "recursive"))
        return sl_tmpl_parse_fail(parser, SL_ERR_UNSUPPORTED, stmt->line,
                                  "recursive loops are not supported");
    parser->n_loops++;
    SL_TRY(parse_body(parser, "else", "endfor", NULL, &stmt->body));
    parser->n_loops--;
    if (sl_tmpl_parse_is_name(&parser->token, "else")) {
        SL_TRY(sl_tmpl_parse_advance(parser));
        SL_TRY(parse_body(parser, "endfor", NULL, NULL, &stmt->as.loop.otherwise));
    }
    return sl_tmpl_parse_advance(parser);
}

static sl_status parse_set(tmpl_parser *parser, tmpl_stmt *stmt)
{
    SL_TRY(parse_target(parser, &stmt->as.set.target));
    if (sl_tmpl_parse_is_operator(&parser->token, "=")) {
        SL_TRY(sl_tmpl_parse_advance(parser));
        return sl_tmpl_parse_tuple(parser, false, &stmt->as.set.value);
    }
    stmt->kind = TMPL_STMT_SET_BLOCK;
    SL_TRY(sl_tmpl_parse_filters(parser, false, &stmt->as.set.filters));
    SL_TRY(parse_body(parser, "endset", NULL, NULL, &stmt->body));
    return sl_tmpl_parse_advance(parser);
}

/* "(a, b=1)" */
static sl_status parse_signature(tmpl_parser *parser, tmpl_signature *signature)
{
    SL_TRY(sl_tmpl_parse_expect_operator(parser, "("));
    tmpl_link **tail = &signature->params;
    while (!sl_tmpl_parse_is_operator(&parser->token, ")")) {
        if (signature->n_params > 0)
            SL_TRY(sl_tmpl_parse_expect_operator(parser, ","));
        tmpl_link *param;
        SL_TRY(sl_tmpl_parse_new(parser, sizeof *param, &param));
        if (parser->token.kind != TMPL_TOKEN_NAME)
            return sl_tmpl_parse_unexpected(parser, "the name of a parameter");
        param->name = parser->token.text;
        for (const tmpl_link *other = signature->params; other; other = other->next) {
            if (sl_str_equal(other->name, param->name))
                return sl_tmpl_parse_fail(parser, SL_ERR_FORMAT, parser->token.line,
                                          "parameter '%.*s' appears twice",
                                          (int)param->name.n_bytes, param->name.data);
        }
        *tail = param;
        tail = &param->next;
        SL_TRY(sl_tmpl_parse_advance(parser));
        if (sl_tmpl_parse_is_operator(&parser->token, "=")) {
            SL_TRY(sl_tmpl_parse_advance(parser));
            SL_TRY(sl_tmpl_parse_expr(parser, false, &param->expr));
        }
        if (++signature->n_params > SL_TEMPLATE_MAX_ARGUMENTS)
            return sl_tmpl_parse_fail(parser, SL_ERR_LIMIT, parser->token.line,
                                      "more than %d parameters", SL_TEMPLATE_MAX_ARGUMENTS);
    }
    return sl_tmpl_parse_advance(parser);
}

/* The body of a macro or call block, which starts with no loop around it. */
static sl_status parse_macro_body(tmpl_parser *parser, tmpl_stmt *stmt, const char *end)
{
    unsigned n_loops = parser->n_loops;
    tmpl_signature *outer = parser->signature;
    parser->n_loops = 0;
    parser->signature = &stmt->as.macro.signature;
    SL_TRY(parse_body(parser, end, NULL, NULL, &stmt->body));
    /* A name used in an inner block is one that the outer macro may have to provide. */
    if (outer && stmt->kind == TMPL_STMT_CALL_BLOCK) {
        outer->uses_caller |= parser->signature->uses_caller;
        outer->uses_varargs |= parser->signature->uses_varargs;
        outer->uses_kwargs |= parser->signature->uses_kwargs;
    }
    parser->n_loops = n_loops;
    parser->signature = outer;
    return sl_tmpl_parse_advance(parser);
}

static sl_status parse_macro(tmpl_parser *parser, tmpl_stmt *stmt)
{
    if (parser->token.kind != TMPL_TOKEN_NAME)
        return sl_tmpl_parse_unexpected(parser, "the name of a macro");
    stmt->as.macro.signature.name = parser->token.text;
    SL_TRY(sl_tmpl_parse_advance(parser));
    SL_TRY(parse_signature(parser, &stmt->as.macro.signature));
    return parse_macro_body(parser, stmt, "endmacro");
}

static sl_status parse_call_block(tmpl_parser *parser, tmpl_stmt *stmt)
{
    stmt->as.macro.signature.name = sl_str_of("caller");
    if (sl_tmpl_parse_is_operator(&parser->token, "("))
        SL_TRY(parse_signature(parser, &stmt->as.macro.signature));
    SL_TRY(sl_tmpl_parse_expr(parser, false, &stmt->as.macro.call));
    const tmpl_expr *call = stmt->as.macro.call;
    const tmpl_step *last = call->kind == TMPL_EXPR_POSTFIX ? call->as.postfix.steps : NULL;
    while (last && last->next)
        last = last->next;
    if (!last || last->kind != TMPL_STEP_CALL)
        return sl_tmpl_parse_fail(parser, SL_ERR_FORMAT, stmt->line,
                                  "a call block needs a call in its tag");
    return parse_macro_body(parser, stmt, "endcall");
}

static sl_status parse_filter_block(tmpl_parser *parser, tmpl_stmt *stmt)
{
    SL_TRY(sl_tmpl_parse_filters(parser, true, &stmt->as.filters));
    SL_TRY(parse_body(parser, "endfilter", NULL, NULL, &stmt->body));
    return sl_tmpl_parse_advance(parser);
}

static sl_status parse_with(tmpl_parser *parser, tmpl_stmt *stmt)
{
    tmpl_link **tail = &stmt->as.with;
    while (parser->token.kind != TMPL_TOKEN_BLOCK_END) {
        if (stmt->as.with)
            SL_TRY(sl_tmpl_parse_expect_operator(parser, ","));
        if (parser->token.kind != TMPL_TOKEN_NAME)
            return sl_tmpl_parse_unexpected(parser, "a name to assign to");
        tmpl_link *link;
        SL_TRY(sl_tmpl_parse_new(parser, sizeof *link, &link));
        link->name = parser->token.text;
        SL_TRY(sl_tmpl_parse_advance(parser));
        SL_TRY(sl_tmpl_parse_expect_operator(parser, "="));
        SL_TRY(sl_tmpl_parse_expr(parser, false, &link->expr));
        *tail = link;
        tail = &link->next;
    }
    SL_TRY(parse_body(parser, "endwith", NULL, NULL, &stmt->body));
    return sl_tmpl_parse_advance(parser);
}

/* Hugging Face's marker of what the assistant wrote: its body is a block of its own. */
static sl_status parse_generation(tmpl_parser *parser, tmpl_stmt *stmt)
{
    unsigned n_loops = parser->n_loops;
    parser->n_loops = 0;
    SL_TRY(parse_body(parser, "endgeneration", NULL, NULL, &stmt->body));
    parser->n_loops = n_loops;
    return sl_tmpl_parse_advance(parser);
}

static sl_status parse_jump(tmpl_parser *parser, tmpl_stmt *stmt)
{
    if (parser->n_loops == 0)
        return sl_tmpl_parse_fail(parser, SL_ERR_FORMAT, stmt->line,
                                  "break or continue outside of a loop");
    return SL_OK;
}

static const struct {
    const char *name;
    tmpl_stmt_kind kind;
    sl_status (*parse)(tmpl_parser *parser, tmpl_stmt *stmt);
} statements[] = {
    {"if", TMPL_STMT_IF, parse_if},
    {"for", TMPL_STMT_FOR, parse_for},
    {"set", TMPL_STMT_SET, parse_set},
    {"macro", TMPL_STMT_MACRO, parse_macro},
    {"call", TMPL_STMT_CALL_BLOCK, parse_call_block},
    {"filter", TMPL_STMT_FILTER_BLOCK, parse_filter_block},
    {"with", TMPL_STMT_WITH, parse_with},
    {"generation", TMPL_STMT_SCOPE, parse_generation},
    {"break", TMPL_STMT_BREAK, parse_jump},
    {"continue", TMPL_STMT_CONTINUE, parse_jump},
};

/* Behind "{%": one statement with its body and its closing tag's name. */
static sl_status parse_tag(tmpl_parser *parser, tmpl_stmt *stmt)
{
    if (parser->token.kind != TMPL_TOKEN_NAME)
        return sl_tmpl_parse_unexpected(parser, "the name of a statement");
    sl_str name = parser->token.text;
    for (size_t i = 0; i < SL_COUNTOF(statements); i++) {
        if (!sl_str_is(name, statements[i].name))
            continue;
        stmt->kind = statements[i].kind;
        SL_TRY(sl_tmpl_parse_advance(parser));
        SL_TRY(statements[i].parse(parser, stmt));
        if (parser->token.kind != TMPL_TOKEN_BLOCK_END)
            return sl_tmpl_parse_unexpected(parser, "'%}'");
        return sl_tmpl_parse_advance(parser);
    }
    bool is_end = name.n_bytes > 3 && memcmp(name.data, "end", 3) == 0;
    if (is_end || sl_str_is(name, "else") || sl_str_is(name, "elif"))
        return sl_tmpl_parse_fail(parser, SL_ERR_FORMAT, stmt->line,
                                  "'%.*s' does not close an open block",
                                  (int)sl_min_size(name.n_bytes, 60), name.data);
    return sl_tmpl_parse_fail(parser, SL_ERR_UNSUPPORTED, stmt->line,
                              "statement '%.*s' is not supported",
                              (int)sl_min_size(name.n_bytes, 60), name.data);
}

static sl_status parse_statement(tmpl_parser *parser, tmpl_stmt *stmt)
{
    const tmpl_token *token = &parser->token;
    if (token->kind == TMPL_TOKEN_TEXT) {
        stmt->kind = TMPL_STMT_TEXT;
        SL_TRY(sl_tmpl_parse_text(parser, token->text, &stmt->as.text));
        return sl_tmpl_parse_advance(parser);
    }
    if (token->kind == TMPL_TOKEN_PRINT_BEGIN) {
        stmt->kind = TMPL_STMT_PRINT;
        SL_TRY(sl_tmpl_parse_advance(parser));
        SL_TRY(sl_tmpl_parse_tuple(parser, false, &stmt->as.print));
        if (token->kind != TMPL_TOKEN_PRINT_END)
            return sl_tmpl_parse_unexpected(parser, "'}}'");
        return sl_tmpl_parse_advance(parser);
    }
    SL_TRY(sl_tmpl_parse_advance(parser)); /* "{%" */
    return parse_tag(parser, stmt);
}

static bool is_one_of(const tmpl_token *token, const terminators *until)
{
    return (until->first && sl_tmpl_parse_is_name(token, until->first)) ||
           (until->second && sl_tmpl_parse_is_name(token, until->second)) ||
           (until->third && sl_tmpl_parse_is_name(token, until->third));
}

static sl_status parse_statements(tmpl_parser *parser, const terminators *until, tmpl_stmt **out)
{
    SL_TRY(sl_tmpl_parse_enter(parser));
    tmpl_stmt **tail = out;
    for (;;) {
        const tmpl_token *token = &parser->token;
        if (token->kind == TMPL_TOKEN_END && !until->first)
            break;
        if (token->kind == TMPL_TOKEN_END)
            return sl_tmpl_parse_fail(parser, SL_ERR_FORMAT, token->line,
                                      "the template ends without '%s'",
                                      until->third    ? until->third
                                      : until->second ? until->second
                                                      : until->first);
        if (token->kind == TMPL_TOKEN_BLOCK_BEGIN && is_one_of(&parser->ahead, until)) {
            SL_TRY(sl_tmpl_parse_advance(parser));
            break;
        }
        tmpl_stmt *stmt;
        SL_TRY(sl_tmpl_parse_new(parser, sizeof *stmt, &stmt));
        stmt->line = token->line;
        SL_TRY(parse_statement(parser, stmt));
        *tail = stmt;
        tail = &stmt->next;
    }
    tmpl_parse_leave(parser);
    return SL_OK;
}

sl_status sl_tmpl_parse(sl_template *compiled, sl_str source, sl_error *err)
{
    tmpl_parser parser = {.compiled = compiled, .err = err};
    sl_tmpl_lex_init(&parser.lexer, source, compiled->name, &compiled->arena);
    SL_TRY(sl_tmpl_lex_next(&parser.lexer, &parser.ahead, err));
    SL_TRY(sl_tmpl_parse_advance(&parser));
    static const terminators none = {NULL, NULL, NULL};
    return parse_statements(&parser, &none, &compiled->body);
}
