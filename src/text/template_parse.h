/* What the two halves of the parser share: template_parse.c reads statements, template_parse_expr.c
 * expressions. */
#ifndef SL_TEXT_TEMPLATE_PARSE_H
#define SL_TEXT_TEMPLATE_PARSE_H

#include "text/template_ast.h"
#include "text/template_lex.h"

typedef struct tmpl_parser {
    sl_template *compiled;
    tmpl_lexer lexer;
    tmpl_token token, ahead;
    unsigned depth;            /* of statements and operators that are open */
    unsigned n_loops;          /* open loops that break and continue can mean */
    tmpl_signature *signature; /* of the innermost macro or call block, or NULL */
    sl_error *err;
} tmpl_parser;

sl_status sl_tmpl_parse_fail(const tmpl_parser *parser, sl_status status, uint32_t line,
                             const char *format, ...) SL_PRINTF(4, 5);

/* "expected WHAT, got the token": SL_ERR_FORMAT. */
sl_status sl_tmpl_parse_unexpected(const tmpl_parser *parser, const char *what);

sl_status sl_tmpl_parse_advance(tmpl_parser *parser);

/* Arena memory, cleared, or SL_ERR_MEMORY / SL_ERR_LIMIT. */
sl_status sl_tmpl_parse_new(tmpl_parser *parser, size_t n, void *out);

sl_status sl_tmpl_parse_enter(tmpl_parser *parser);

static inline void tmpl_parse_leave(tmpl_parser *parser)
{
    parser->depth--;
}

bool sl_tmpl_parse_is_name(const tmpl_token *token, const char *name);
bool sl_tmpl_parse_is_operator(const tmpl_token *token, const char *op);
sl_status sl_tmpl_parse_expect_operator(tmpl_parser *parser, const char *op);

/* A text constant of the arena. */
sl_status sl_tmpl_parse_text(tmpl_parser *parser, sl_str text, tmpl_str **out);

/* An expression; without_if leaves a following `if` alone, as in "for x in y if z". */
sl_status sl_tmpl_parse_expr(tmpl_parser *parser, bool without_if, tmpl_expr **out);
/* The same, or several separated by commas: a tuple. */
sl_status sl_tmpl_parse_tuple(tmpl_parser *parser, bool without_if, tmpl_expr **out);
/* "|name(args)|..." as far as it goes; the first '|' may be missing when `bare`. */
sl_status sl_tmpl_parse_filters(tmpl_parser *parser, bool bare, tmpl_step **out);

#endif
