/* One render in progress: what its parts share. Nothing here is needed after it; everything the
 * template made lies in the run's arena. */
#ifndef SL_TEXT_TEMPLATE_RUN_H
#define SL_TEXT_TEMPLATE_RUN_H

#include "text/template_ast.h"

typedef struct tmpl_run tmpl_run;

/* Variables of one block. Loops reuse theirs: an iteration begins with none set. */
typedef struct tmpl_var {
    struct tmpl_var *next;
    sl_str name;
    tmpl_value value;
    bool is_set;
} tmpl_var;

typedef struct tmpl_scope {
    struct tmpl_scope *parent;
    tmpl_var *vars;
} tmpl_scope;

struct tmpl_loop {
    const tmpl_value *items; /* what the loop goes over, filtered */
    size_t n, index0;
    tmpl_value changed; /* the arguments of the last loop.changed, as a tuple */
};

struct tmpl_function {
    const tmpl_callable *callable; /* built in, of `self` if it is a method */
    tmpl_value self;
    const tmpl_stmt *macro; /* or a macro or call block, in the scope of its definition */
    tmpl_scope *scope;
};

/* Where a piece of text being built began. */
typedef struct tmpl_capture {
    size_t n_bytes, n_marks, first_mark;
} tmpl_capture;

/* A filter, test, method or function. `params` lists its parameters by name; n_required of them
 * must be given. `raw` ones take their arguments as they come. */
enum { TMPL_MAX_PARAMS = 6, TMPL_MAX_ARGS_STACK = 1024 };
struct tmpl_callable {
    const char *name;
    const char *params;
    unsigned n_required;
    sl_status (*bound)(tmpl_run *run, tmpl_value self, const tmpl_value *args, tmpl_value *out);
    sl_status (*raw)(tmpl_run *run, tmpl_value self, const tmpl_call *call, tmpl_value *out);
};

struct tmpl_run {
    const sl_template *compiled;
    const sl_template_input *input;
    sl_error *err;
    uint32_t line; /* of the statement or step at work */
    uint64_t steps;
    unsigned depth, n_calls; /* nested evaluations; of them, macros */
    tmpl_arena arena;
    tmpl_arg *args; /* stack of evaluated arguments */
    size_t n_args;
    tmpl_scope *scope;
    tmpl_value messages, tools, variables;
    /* Text under construction: the output, behind it the captures that are open. */
    sl_buf text;
    sl_range *ranges;
    size_t n_ranges, capacity_ranges, first_range;
};

/* ---- template_run.c ---- */

/* "NAME: line N: sentence" */
sl_status sl_tmpl_fail(tmpl_run *run, sl_status status, const char *format, ...) SL_PRINTF(3, 4);

/* Counts work: one step per call and one per 256 bytes (or 16 items: see callers). */
sl_status sl_tmpl_spend(tmpl_run *run, size_t steps);

/* One more level of recursion on the C stack, or SL_ERR_LIMIT; undone by tmpl_leave. */
sl_status sl_tmpl_enter(tmpl_run *run);
static inline void tmpl_leave(tmpl_run *run)
{
    run->depth--;
}

/* Memory of the run for `count` objects; out is the address of a pointer. */
sl_status sl_tmpl_new(tmpl_run *run, size_t count, size_t size, void *out);

/* ---- template_text.c: building and cutting marked text ---- */

tmpl_capture sl_tmpl_capture(tmpl_run *run);
/* Takes what was put since; *out is a string value. */
sl_status sl_tmpl_captured(tmpl_run *run, tmpl_capture capture, tmpl_value *out);
sl_status sl_tmpl_too_long(tmpl_run *run); /* SL_ERR_LIMIT */
sl_status sl_tmpl_put(tmpl_run *run, const char *bytes, size_t n, bool untrusted);
sl_status sl_tmpl_put_str(tmpl_run *run, const tmpl_str *s);
sl_status sl_tmpl_put_part(tmpl_run *run, const tmpl_str *s, size_t begin, size_t end);
/* "&<>'\"" as HTML entities; the entity is marked as its character was. */
sl_status sl_tmpl_put_escaped(tmpl_run *run, const tmpl_str *s);

/* A string of borrowed bytes, all trusted or all untrusted. */
sl_status sl_tmpl_make_str(tmpl_run *run, sl_str bytes, bool untrusted, tmpl_value *out);
/* Bytes [begin, end) of s, sharing its memory. */
sl_status sl_tmpl_slice_str(tmpl_run *run, const tmpl_str *s, size_t begin, size_t end,
                            tmpl_value *out);
sl_status sl_tmpl_join_two(tmpl_run *run, const tmpl_str *a, const tmpl_str *b, tmpl_value *out);
size_t sl_tmpl_count_chars(tmpl_str *s);
/* The byte offset of character `index` <= the count. */
size_t sl_tmpl_char_offset(tmpl_str *s, size_t index);

/* The first place at or behind `from` where the needle stands, or SIZE_MAX. */
sl_status sl_tmpl_find_bytes(tmpl_run *run, sl_str text, size_t from, sl_str needle, size_t *out);

/* The last place where the needle stands, or SIZE_MAX. */
sl_status sl_tmpl_find_last(tmpl_run *run, sl_str text, sl_str needle, size_t *out);

/* Walks over the bytes of a string in order and tells which are marked. */
typedef struct tmpl_mark_cursor {
    const tmpl_str *s;
    size_t next;
} tmpl_mark_cursor;
bool sl_tmpl_marked_at(tmpl_mark_cursor *cursor, size_t offset);

/* ---- template_strings.c: str methods and the filters that are like them ---- */

typedef enum tmpl_case {
    TMPL_CASE_UPPER,
    TMPL_CASE_LOWER,
    TMPL_CASE_TITLE, /* str.title */
    TMPL_CASE_WORDS, /* the filter title */
    TMPL_CASE_CAPITALIZE,
    TMPL_CASE_SWAP
} tmpl_case;
sl_status sl_tmpl_change_case(tmpl_run *run, const tmpl_str *s, tmpl_case to, tmpl_value *out);
/* chars: NULL for whitespace. */
sl_status sl_tmpl_strip(tmpl_run *run, const tmpl_str *s, const tmpl_str *chars, bool left,
                        bool right, tmpl_value *out);
/* separator: NULL for whitespace; most: SIZE_MAX for no limit. */
sl_status sl_tmpl_split(tmpl_run *run, const tmpl_str *s, const tmpl_str *separator, size_t most,
                        tmpl_value *out);
sl_status sl_tmpl_split_right(tmpl_run *run, const tmpl_str *s, const tmpl_str *separator,
                              size_t most, tmpl_value *out);
sl_status sl_tmpl_split_lines(tmpl_run *run, const tmpl_str *s, bool keep_ends, tmpl_value *out);
sl_status sl_tmpl_replace(tmpl_run *run, const tmpl_str *s, const tmpl_str *old,
                          const tmpl_str *new, size_t most, tmpl_value *out);
/* Items that are no strings are refused, or converted when `convert`. */
sl_status sl_tmpl_join(tmpl_run *run, const tmpl_str *separator, const tmpl_value *items, size_t n,
                       bool convert, tmpl_value *out);
/* In a field of `width` characters, what lacks filled up with `fill` (NULL: blanks). */
typedef enum tmpl_side { TMPL_SIDE_LEFT, TMPL_SIDE_CENTRE, TMPL_SIDE_RIGHT } tmpl_side;
sl_status sl_tmpl_justify(tmpl_run *run, tmpl_str *s, tmpl_side side, int64_t width,
                          const tmpl_str *fill, tmpl_value *out);
/* str.isupper, str.islower */
sl_status sl_tmpl_all_cased(tmpl_run *run, const tmpl_str *s, bool upper, bool *out);
/* A list that grows while its length is not known. */
typedef struct tmpl_list_builder {
    tmpl_value *items;
    size_t n, capacity;
} tmpl_list_builder;
sl_status sl_tmpl_list_add(tmpl_run *run, tmpl_list_builder *list, tmpl_value value);

/* ---- template_value.c: what holds for all values ---- */

const char *sl_tmpl_kind_name(tmpl_kind kind);
/* SL_ERR_ARGUMENT with the reason why `value` is undefined. */
sl_status sl_tmpl_undefined_error(tmpl_run *run, tmpl_value value);
bool sl_tmpl_truth(tmpl_value value);
/* Of strings, sequences and dicts; false for what has no length. */
bool sl_tmpl_length(tmpl_value value, size_t *out);
sl_status sl_tmpl_equal(tmpl_run *run, tmpl_value a, tmpl_value b, bool *out);
/* -1, 0, 1, or 2 when one is a NaN. SL_ERR_ARGUMENT for values without an order. */
sl_status sl_tmpl_compare(tmpl_run *run, tmpl_value a, tmpl_value b, int *out);
sl_status sl_tmpl_contains(tmpl_run *run, tmpl_value container, tmpl_value item, bool *out);

tmpl_value sl_tmpl_seq_item(const tmpl_seq *seq, size_t index);
sl_status sl_tmpl_new_seq(tmpl_run *run, tmpl_kind kind, const tmpl_value *items, size_t n,
                          tmpl_value *out);
/* Room for n items and a sequence over them. */
sl_status sl_tmpl_new_items(tmpl_run *run, tmpl_kind kind, size_t n, tmpl_value **items,
                            tmpl_value *out);
/* What iterating gives, as an array; exhausts iterators. Refuses what cannot be iterated. */
sl_status sl_tmpl_items(tmpl_run *run, tmpl_value value, const tmpl_value **items, size_t *n);

sl_status sl_tmpl_new_dict(tmpl_run *run, size_t capacity, tmpl_value *out);
sl_status sl_tmpl_dict_find(tmpl_run *run, const tmpl_dict *dict, tmpl_value key, tmpl_entry **out);
tmpl_entry *sl_tmpl_dict_find_name(const tmpl_dict *dict, sl_str name);
sl_status sl_tmpl_dict_set(tmpl_run *run, tmpl_dict *dict, tmpl_value key, tmpl_value value);
/* A tuple (key, value) per entry. */
sl_status sl_tmpl_dict_items(tmpl_run *run, const tmpl_dict *dict, tmpl_kind kind, tmpl_value *out);

/* Sorts by key, stably; reverse keeps equal entries in their order, as Python does. */
sl_status sl_tmpl_sort(tmpl_run *run, tmpl_entry *entries, size_t n, bool reverse);

/* json as a value; strings and keys are marked if untrusted. */
sl_status sl_tmpl_from_json(tmpl_run *run, const json_t *json, bool untrusted, tmpl_value *out);

/* ---- template_print.c ---- */

/* Appends str(value). */
sl_status sl_tmpl_put_value(tmpl_run *run, tmpl_value value);
/* str(value); a string stays itself. */
sl_status sl_tmpl_to_str(tmpl_run *run, tmpl_value value, tmpl_str **out);
sl_status sl_tmpl_put_repr(tmpl_run *run, tmpl_value value);
sl_status sl_tmpl_filter_tojson(tmpl_run *run, tmpl_value self, const tmpl_value *args,
                                tmpl_value *out);

/* ---- template_number.c ---- */

bool sl_tmpl_is_number(tmpl_value value); /* bool, int of any size, or float */
/* Infinite for a big int beyond the doubles. */
double sl_tmpl_as_double(tmpl_value number);
/* True and the value when `value` is a 64-bit int or a bool. */
bool sl_tmpl_as_int(tmpl_value value, int64_t *out);
/* The int that borrowed digits (as str() writes them) outside int64_t stand for. */
sl_status sl_tmpl_big_int(tmpl_run *run, sl_str digits, tmpl_value *out);
/* -1, 0, 1 as Python compares them; 2 when one is a NaN or no number. */
int sl_tmpl_compare_numbers(tmpl_value a, tmpl_value b);
bool sl_tmpl_is_negative(tmpl_value number); /* the sign bit of a float */
sl_status sl_tmpl_number_arithmetic(tmpl_run *run, tmpl_op op, tmpl_value a, tmpl_value b,
                                    tmpl_value *out);
sl_status sl_tmpl_negate(tmpl_run *run, tmpl_value value, tmpl_value *out);
/* The integer part of a finite d. */
sl_status sl_tmpl_int_of_float(tmpl_run *run, double d, tmpl_value *out);
/* Python's int(text) of what sl_tmpl_parse_int refused; *found is false if it is no integer. */
sl_status sl_tmpl_parse_big_int(tmpl_run *run, sl_str text, tmpl_value *out, bool *found);
/* Python's int(text, base) and float(text): false when text is no such number. */
bool sl_tmpl_parse_int(sl_str text, int base, int64_t *out);
bool sl_tmpl_parse_float(sl_str text, double *out);
double sl_tmpl_power_of_ten(int64_t exponent);
/* Rounded to `digits` decimals, halves of the exact value to even, as Python's round. */
double sl_tmpl_round(double value, int digits);
/* repr(value); `digits` >= 0 asks for that many decimals instead. */
sl_status sl_tmpl_put_float(tmpl_run *run, double value, int digits);

/* ---- template_operators.c ---- */

sl_status sl_tmpl_arithmetic(tmpl_run *run, tmpl_op op, tmpl_value a, tmpl_value b,
                             tmpl_value *out);
/* format % args, args being a tuple, a dict or one value. */
sl_status sl_tmpl_format(tmpl_run *run, const tmpl_str *format, tmpl_value args, tmpl_value *out);

/* ---- template_access.c ---- */

sl_status sl_tmpl_attribute(tmpl_run *run, tmpl_value owner, const sl_str *name, tmpl_value *out);
sl_status sl_tmpl_item(tmpl_run *run, tmpl_value owner, tmpl_value key, tmpl_value *out);
/* Bounds are TMPL_NONE when absent. */
sl_status sl_tmpl_slice(tmpl_run *run, tmpl_value owner, const tmpl_value bounds[3],
                        tmpl_value *out);

/* ---- template_eval.c ---- */

sl_status sl_tmpl_eval(tmpl_run *run, const tmpl_expr *expr, tmpl_value *out);
/* Applies postfix steps up to `until` (NULL: all of them). */
sl_status sl_tmpl_apply_steps(tmpl_run *run, const tmpl_step *steps, const tmpl_step *until,
                              tmpl_value *value);
sl_status sl_tmpl_call_value(tmpl_run *run, tmpl_value callee, const tmpl_call *call,
                             tmpl_value *out);
sl_status sl_tmpl_invoke(tmpl_run *run, const tmpl_callable *callable, tmpl_value self,
                         const tmpl_call *call, tmpl_value *out);
/* Evaluates arguments onto the stack of arguments; more can be pushed behind them. The caller sets
 * run->n_args back after the call. */
sl_status sl_tmpl_eval_args(tmpl_run *run, const tmpl_link *args, tmpl_call *call);
sl_status sl_tmpl_push_arg(tmpl_run *run, tmpl_call *call, sl_str name, tmpl_value value);

/* ---- template_exec.c ---- */

sl_status sl_tmpl_exec(tmpl_run *run, const tmpl_stmt *body);
sl_status sl_tmpl_call_macro(tmpl_run *run, const tmpl_function *function, const tmpl_call *call,
                             tmpl_value *out);
sl_status sl_tmpl_lookup(tmpl_run *run, const sl_str *name, tmpl_value *out);

/* ---- tables of what is built in ---- */

const tmpl_callable *sl_tmpl_find(const tmpl_callable *table, size_t n, sl_str name);
const tmpl_callable *sl_tmpl_find_function(sl_str name);
const tmpl_callable *sl_tmpl_find_method(tmpl_kind kind, sl_str name);
/* A method of Python's that changes its object, or that is not provided. */
bool sl_tmpl_is_unsafe_method(tmpl_kind kind, sl_str name);

#endif
