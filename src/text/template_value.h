/* The values a template computes with, as Python would have them: none, bool, 64-bit int, float,
 * text, list, tuple, range, dict, namespace, functions, and the undefined value that says what is
 * missing. An int beyond 64 bits, as it comes in with messages, is a kind of its own: it compares
 * and prints exactly, but there is no arithmetic on it. Values are immutable except namespaces,
 * loop state and the position of an iterator; all live in the arena of one render.
 *
 * Text carries marks: ascending byte ranges that came from messages or tools. */
#ifndef SL_TEXT_TEMPLATE_VALUE_H
#define SL_TEXT_TEMPLATE_VALUE_H

#include "text/template_arena.h"
#include "text/tokenizer.h"

typedef enum tmpl_kind {
    TMPL_MISSING, /* an argument that was not given; never seen by a template */
    TMPL_UNDEFINED,
    TMPL_NONE,
    TMPL_BOOL,
    TMPL_INT,
    TMPL_BIG_INT, /* outside int64_t */
    TMPL_FLOAT,
    TMPL_STRING,
    TMPL_LIST,
    TMPL_TUPLE,
    TMPL_RANGE,
    TMPL_VIEW,     /* keys(), values() or items() of a dict */
    TMPL_ITERATOR, /* what map, select, items, ... give: read once, has no length */
    TMPL_DICT,
    TMPL_NAMESPACE,
    TMPL_FUNCTION,
    TMPL_LOOP /* the variable `loop` */
} tmpl_kind;

/* Why a value is undefined: the first half of the sentence shown when it is used. */
typedef enum tmpl_lack {
    TMPL_LACK_NAME,      /* no variable `name` */
    TMPL_LACK_ATTRIBUTE, /* an `owner` without attribute `name` */
    TMPL_LACK_ITEM,      /* an `owner` without that index or key */
    TMPL_LACK_UNSAFE,    /* a method that would change a value */
    TMPL_LACK_ARGUMENT,  /* a macro's parameter that the caller left out */
    TMPL_LACK_ELSE,      /* an inline if whose condition is false */
    TMPL_LACK_EMPTY,     /* first, last, min, max of nothing */
    TMPL_LACK_NEIGHBOUR  /* loop.previtem of the first, loop.nextitem of the last */
} tmpl_lack;

/* In front of bytes or marks that may grow in place: whoever holds all `used` bytes may append. */
typedef struct tmpl_room {
    size_t used, capacity;
} tmpl_room;

typedef struct tmpl_str {
    sl_str s;
    const sl_range *marks; /* ascending, may touch, within [0, s.n_bytes) */
    size_t n_marks;
    size_t n_chars;               /* SIZE_MAX = not counted yet (never so in a compiled template) */
    tmpl_room *room, *marks_room; /* in front of s.data and marks, or NULL */
    bool markup;                  /* passed through `safe` or `escape`: Markup in Jinja */
} tmpl_str;

typedef struct tmpl_seq tmpl_seq;
typedef struct tmpl_dict tmpl_dict;
typedef struct tmpl_function tmpl_function;
typedef struct tmpl_loop tmpl_loop;

typedef struct tmpl_value {
    uint8_t kind;  /* tmpl_kind */
    uint8_t lack;  /* tmpl_lack, of an undefined value */
    uint8_t owner; /* tmpl_kind of what lacks it */
    union {
        bool boolean;
        int64_t integer;
        const sl_str *digits; /* big int: as str() writes it */
        double real;
        tmpl_str *string;
        tmpl_seq *seq; /* list, tuple, range, view, iterator */
        tmpl_dict *dict;
        tmpl_dict *attributes; /* namespace */
        tmpl_function *function;
        tmpl_loop *loop;
        const sl_str *name; /* undefined; may be NULL */
    } as;
} tmpl_value;

struct tmpl_seq {
    const tmpl_value *items; /* NULL for a range */
    size_t n;
    size_t at;                 /* iterator: items already taken */
    int64_t start, stop, step; /* range */
    const char *view;          /* "dict_items": how a view prints */
};

typedef struct tmpl_entry {
    tmpl_value key, value;
} tmpl_entry;

struct tmpl_dict {
    tmpl_entry *entries; /* in the order of insertion */
    size_t n, capacity;
};

/* An argument as evaluated; positional ones have an empty name and come first. */
typedef struct tmpl_arg {
    sl_str name;
    tmpl_value value;
} tmpl_arg;

typedef struct tmpl_call {
    const tmpl_arg *args;
    size_t n_positional, n;
} tmpl_call;

static inline tmpl_value tmpl_none(void)
{
    return (tmpl_value){.kind = TMPL_NONE};
}
static inline tmpl_value tmpl_bool(bool b)
{
    return (tmpl_value){.kind = TMPL_BOOL, .as.boolean = b};
}
static inline tmpl_value tmpl_int(int64_t i)
{
    return (tmpl_value){.kind = TMPL_INT, .as.integer = i};
}
static inline tmpl_value tmpl_float(double d)
{
    return (tmpl_value){.kind = TMPL_FLOAT, .as.real = d};
}
static inline tmpl_value tmpl_text(tmpl_str *s)
{
    return (tmpl_value){.kind = TMPL_STRING, .as.string = s};
}
static inline tmpl_value tmpl_lacking(tmpl_lack lack, tmpl_kind owner, const sl_str *name)
{
    return (tmpl_value){
        .kind = TMPL_UNDEFINED, .lack = (uint8_t)lack, .owner = (uint8_t)owner, .as.name = name};
}

#endif
