/* The tokens of a template. Whitespace control, comments and raw blocks end here: the parser sees
 * text, tags and what is inside the tags. */
#ifndef SL_TEXT_TEMPLATE_LEX_H
#define SL_TEXT_TEMPLATE_LEX_H

#include "text/template_arena.h"

typedef enum tmpl_token_kind {
    TMPL_TOKEN_END,
    TMPL_TOKEN_TEXT,
    TMPL_TOKEN_PRINT_BEGIN, /* {{ */
    TMPL_TOKEN_PRINT_END,
    TMPL_TOKEN_BLOCK_BEGIN, /* {% */
    TMPL_TOKEN_BLOCK_END,
    TMPL_TOKEN_NAME,
    TMPL_TOKEN_STRING, /* text has its escapes resolved */
    TMPL_TOKEN_INT,
    TMPL_TOKEN_FLOAT,
    TMPL_TOKEN_OPERATOR
} tmpl_token_kind;

typedef struct tmpl_token {
    tmpl_token_kind kind;
    uint32_t line;
    sl_str text; /* of an operator or number: as written */
    int64_t integer;
    double real;
} tmpl_token;

enum { TMPL_MAX_BRACKETS = 64 };

typedef struct tmpl_lexer {
    sl_str source;
    size_t at;
    uint32_t line;
    const char *name; /* of the template, for messages */
    tmpl_arena *arena;
    enum { TMPL_LEX_TEXT, TMPL_LEX_PRINT, TMPL_LEX_BLOCK } state;
    bool line_starting; /* the last tag ended with a newline, or nothing was read yet */
    char closers[TMPL_MAX_BRACKETS];
    unsigned n_closers;
} tmpl_lexer;

void sl_tmpl_lex_init(tmpl_lexer *lexer, sl_str source, const char *name, tmpl_arena *arena);
sl_status sl_tmpl_lex_next(tmpl_lexer *lexer, tmpl_token *out, sl_error *err);

/* What str.isspace says in Python. */
bool sl_tmpl_is_space(uint32_t code);

/* The longest prefix of s that is whitespace, and the length of s without trailing whitespace. */
size_t sl_tmpl_leading_space(sl_str s);
size_t sl_tmpl_without_trailing_space(sl_str s);

/* The double nearest to a decimal number (digits, '.', exponent; checked by the caller), whatever
 * the locale. False when it is longer than any sensible number. */
bool sl_tmpl_parse_double(sl_str digits, double *out);

#endif
