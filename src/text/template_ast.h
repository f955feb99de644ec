/* A compiled template: a tree in one arena, never changed after compilation. Chains of operators
 * and of postfix steps are lists, so that the depth of the tree is the depth of nesting in the
 * source. */
#ifndef SL_TEXT_TEMPLATE_AST_H
#define SL_TEXT_TEMPLATE_AST_H

#include "text/template.h"
#include "text/template_value.h"

typedef enum tmpl_op {
    TMPL_OP_NONE,
    TMPL_OP_ADD,
    TMPL_OP_SUB,
    TMPL_OP_MUL,
    TMPL_OP_DIV,
    TMPL_OP_FLOORDIV,
    TMPL_OP_MOD,
    TMPL_OP_POW,
    TMPL_OP_CONCAT,
    TMPL_OP_EQ,
    TMPL_OP_NE,
    TMPL_OP_LT,
    TMPL_OP_LE,
    TMPL_OP_GT,
    TMPL_OP_GE,
    TMPL_OP_IN,
    TMPL_OP_NOT_IN,
    TMPL_OP_AND,
    TMPL_OP_OR
} tmpl_op;

typedef struct tmpl_expr tmpl_expr;
typedef struct tmpl_stmt tmpl_stmt;
typedef struct tmpl_callable tmpl_callable;

/* One operand of a chain (with the operator before it), item of a literal, or argument. */
typedef struct tmpl_link {
    struct tmpl_link *next;
    tmpl_expr *expr;
    sl_str name; /* of a keyword argument or of a macro's parameter */
    tmpl_op op;
} tmpl_link;

typedef enum tmpl_step_kind {
    TMPL_STEP_ATTRIBUTE, /* .name */
    TMPL_STEP_ITEM,      /* [index] */
    TMPL_STEP_SLICE,     /* [start:stop:step], each may be NULL */
    TMPL_STEP_CALL,      /* (args) */
    TMPL_STEP_FILTER,    /* |name(args) */
    TMPL_STEP_TEST       /* is name(args), is not name(args) */
} tmpl_step_kind;

typedef struct tmpl_step {
    struct tmpl_step *next;
    tmpl_step_kind kind;
    uint32_t line;
    sl_str name;
    bool negated;
    const tmpl_callable *callable; /* filter or test */
    tmpl_link *args;               /* positional first */
    tmpl_expr *index;
    tmpl_expr *start, *stop, *stride;
} tmpl_step;

typedef enum tmpl_expr_kind {
    TMPL_EXPR_CONSTANT,
    TMPL_EXPR_NAME,
    TMPL_EXPR_LIST,
    TMPL_EXPR_TUPLE,
    TMPL_EXPR_DICT, /* links alternate key, value */
    TMPL_EXPR_NOT,
    TMPL_EXPR_NEGATE,
    TMPL_EXPR_PLUS,
    TMPL_EXPR_OR,
    TMPL_EXPR_AND,
    TMPL_EXPR_COMPARE,
    TMPL_EXPR_CONCAT,
    TMPL_EXPR_ARITHMETIC, /* operators of one precedence, left to right */
    TMPL_EXPR_CONDITIONAL,
    TMPL_EXPR_POSTFIX,
    TMPL_EXPR_KINDS
} tmpl_expr_kind;

struct tmpl_expr {
    tmpl_expr_kind kind;
    uint32_t line;
    union {
        tmpl_value constant;
        sl_str name;
        struct {
            tmpl_expr *first;
            tmpl_link *rest; /* empty for not, negate, plus */
        } chain;
        struct {
            tmpl_link *items;
            size_t n; /* of a dict: pairs */
        } literal;
        struct {
            tmpl_expr *then, *test, *otherwise; /* otherwise may be NULL */
        } conditional;
        struct {
            tmpl_expr *base;
            tmpl_step *steps;
        } postfix;
    } as;
};

/* Where `set` and `for` put a value: a name, a namespace's attribute, or a tuple of targets. */
typedef struct tmpl_target {
    struct tmpl_target *next;  /* sibling in a tuple */
    struct tmpl_target *parts; /* of a tuple, with n_parts */
    size_t n_parts;
    sl_str name, attribute; /* attribute.data is NULL for a plain name */
} tmpl_target;

typedef enum tmpl_stmt_kind {
    TMPL_STMT_TEXT,
    TMPL_STMT_PRINT,
    TMPL_STMT_IF,
    TMPL_STMT_FOR,
    TMPL_STMT_SET,
    TMPL_STMT_SET_BLOCK,
    TMPL_STMT_MACRO,
    TMPL_STMT_CALL_BLOCK,
    TMPL_STMT_FILTER_BLOCK,
    TMPL_STMT_WITH,
    TMPL_STMT_SCOPE, /* a generation block: its text as it is, its variables its own */
    TMPL_STMT_BREAK,
    TMPL_STMT_CONTINUE,
    TMPL_STMT_KINDS
} tmpl_stmt_kind;

typedef struct tmpl_branch {
    struct tmpl_branch *next;
    tmpl_expr *test; /* NULL: else */
    tmpl_stmt *body;
} tmpl_branch;

/* What a macro or call block takes, and which of the special names its body mentions. */
typedef struct tmpl_signature {
    sl_str name;
    tmpl_link *params; /* name, and expr = default or NULL */
    size_t n_params;
    bool uses_caller, uses_varargs, uses_kwargs;
} tmpl_signature;

struct tmpl_stmt {
    tmpl_stmt *next;
    tmpl_stmt_kind kind;
    uint32_t line;
    tmpl_stmt *body;
    union {
        tmpl_str *text;
        tmpl_expr *print;
        tmpl_branch *branches;
        struct {
            tmpl_target *target;
            tmpl_expr *iterable, *filter; /* filter may be NULL */
            tmpl_stmt *otherwise;
        } loop;
        struct {
            tmpl_target *target;
            tmpl_expr *value;
            tmpl_step *filters; /* of a set block */
        } set;
        struct {
            tmpl_signature signature;
            tmpl_expr *call; /* of a call block; NULL for a macro */
        } macro;
        tmpl_step *filters;
        tmpl_link *with; /* name, value */
    } as;
};

struct sl_template {
    tmpl_arena arena;
    const char *name;
    tmpl_stmt *body;
};

/* NULL when there is none of that name. */
const tmpl_callable *sl_tmpl_find_filter(sl_str name);
const tmpl_callable *sl_tmpl_find_test(sl_str name);

/* Parses source (newlines normalised, valid UTF-8) into compiled->body. */
sl_status sl_tmpl_parse(sl_template *compiled, sl_str source, sl_error *err);

#endif
