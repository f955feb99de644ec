/* What can stand behind `is`, and in select and reject. */
#include "text/template_run.h"

#include <string.h>

/* A test that looks at the kind of its value only: bit k stands for kind k. */
#define KIND(k) (1u << (k))

static sl_status is_kind(tmpl_value self, unsigned kinds, tmpl_value *out)
{
    *out = tmpl_bool((kinds >> self.kind & 1) != 0);
    return SL_OK;
}

#define KIND_TEST(name, kinds) \
    static sl_status name(tmpl_run *run, tmpl_value self, const tmpl_value *args, tmpl_value *out) \
    { \
        (void)run; \
        (void)args; \
        return is_kind(self, kinds, out); \
    }

KIND_TEST(test_undefined, KIND(TMPL_UNDEFINED))
KIND_TEST(test_defined, ~KIND(TMPL_UNDEFINED))
KIND_TEST(test_none, KIND(TMPL_NONE))
KIND_TEST(test_boolean, KIND(TMPL_BOOL))
KIND_TEST(test_integer, KIND(TMPL_INT) | KIND(TMPL_BIG_INT))
KIND_TEST(test_float, KIND(TMPL_FLOAT))
KIND_TEST(test_number, KIND(TMPL_BOOL) | KIND(TMPL_INT) | KIND(TMPL_BIG_INT) | KIND(TMPL_FLOAT))
KIND_TEST(test_string, KIND(TMPL_STRING))
KIND_TEST(test_mapping, KIND(TMPL_DICT))
/* An undefined value has every operator, so it passes for these three. */
KIND_TEST(test_callable, KIND(TMPL_FUNCTION) | KIND(TMPL_UNDEFINED))
KIND_TEST(test_sequence, KIND(TMPL_STRING) | KIND(TMPL_LIST) | KIND(TMPL_TUPLE) | KIND(TMPL_RANGE) |
                             KIND(TMPL_DICT) | KIND(TMPL_UNDEFINED))
KIND_TEST(test_iterable, KIND(TMPL_STRING) | KIND(TMPL_LIST) | KIND(TMPL_TUPLE) | KIND(TMPL_RANGE) |
                             KIND(TMPL_DICT) | KIND(TMPL_VIEW) | KIND(TMPL_ITERATOR) |
                             KIND(TMPL_LOOP) | KIND(TMPL_UNDEFINED))

static sl_status test_true(tmpl_run *run, tmpl_value self, const tmpl_value *args, tmpl_value *out)
{
    (void)run;
    (void)args;
    *out = tmpl_bool(self.kind == TMPL_BOOL && self.as.boolean);
    return SL_OK;
}
static sl_status test_false(tmpl_run *run, tmpl_value self, const tmpl_value *args, tmpl_value *out)
{
    (void)run;
    (void)args;
    *out = tmpl_bool(self.kind == TMPL_BOOL && !self.as.boolean);
    return SL_OK;
}
static sl_status test_escaped(tmpl_run *run, tmpl_value self, const tmpl_value *args,
                              tmpl_value *out)
{
    (void)run;
    (void)args;
    *out = tmpl_bool(self.kind == TMPL_STRING && self.as.string->markup);
    return SL_OK;
}

static sl_status cased(tmpl_run *run, tmpl_value self, bool upper, tmpl_value *out)
{
    tmpl_str *s;
    bool all;
    SL_TRY(sl_tmpl_to_str(run, self, &s));
    SL_TRY(sl_tmpl_all_cased(run, s, upper, &all));
    *out = tmpl_bool(all);
    return SL_OK;
}
static sl_status test_upper(tmpl_run *run, tmpl_value self, const tmpl_value *args, tmpl_value *out)
{
    (void)args;
    return cased(run, self, true, out);
}
static sl_status test_lower(tmpl_run *run, tmpl_value self, const tmpl_value *args, tmpl_value *out)
{
    (void)args;
    return cased(run, self, false, out);
}

static sl_status has_remainder(tmpl_run *run, tmpl_value self, tmpl_value divisor, int64_t wanted,
                               tmpl_value *out)
{
    tmpl_value remainder;
    SL_TRY(sl_tmpl_arithmetic(run, TMPL_OP_MOD, self, divisor, &remainder));
    *out = tmpl_bool(sl_tmpl_compare_numbers(remainder, tmpl_int(wanted)) == 0);
    return SL_OK;
}
static sl_status test_odd(tmpl_run *run, tmpl_value self, const tmpl_value *args, tmpl_value *out)
{
    (void)args;
    return has_remainder(run, self, tmpl_int(2), 1, out);
}
static sl_status test_even(tmpl_run *run, tmpl_value self, const tmpl_value *args, tmpl_value *out)
{
    (void)args;
    return has_remainder(run, self, tmpl_int(2), 0, out);
}
static sl_status test_divisibleby(tmpl_run *run, tmpl_value self, const tmpl_value *args,
                                  tmpl_value *out)
{
    return has_remainder(run, self, args[0], 0, out);
}

static sl_status test_eq(tmpl_run *run, tmpl_value self, const tmpl_value *args, tmpl_value *out)
{
    bool equal;
    SL_TRY(sl_tmpl_equal(run, self, args[0], &equal));
    *out = tmpl_bool(equal);
    return SL_OK;
}
static sl_status test_ne(tmpl_run *run, tmpl_value self, const tmpl_value *args, tmpl_value *out)
{
    bool equal;
    SL_TRY(sl_tmpl_equal(run, self, args[0], &equal));
    *out = tmpl_bool(!equal);
    return SL_OK;
}
static sl_status test_lt(tmpl_run *run, tmpl_value self, const tmpl_value *args, tmpl_value *out)
{
    int order;
    SL_TRY(sl_tmpl_compare(run, self, args[0], &order));
    *out = tmpl_bool(order == -1);
    return SL_OK;
}
static sl_status test_le(tmpl_run *run, tmpl_value self, const tmpl_value *args, tmpl_value *out)
{
    int order;
    SL_TRY(sl_tmpl_compare(run, self, args[0], &order));
    *out = tmpl_bool(order == -1 || order == 0);
    return SL_OK;
}
static sl_status test_gt(tmpl_run *run, tmpl_value self, const tmpl_value *args, tmpl_value *out)
{
    int order;
    SL_TRY(sl_tmpl_compare(run, self, args[0], &order));
    *out = tmpl_bool(order == 1);
    return SL_OK;
}
static sl_status test_ge(tmpl_run *run, tmpl_value self, const tmpl_value *args, tmpl_value *out)
{
    int order;
    SL_TRY(sl_tmpl_compare(run, self, args[0], &order));
    *out = tmpl_bool(order == 0 || order == 1);
    return SL_OK;
}
static sl_status test_in(tmpl_run *run, tmpl_value self, const tmpl_value *args, tmpl_value *out)
{
    bool found;
    SL_TRY(sl_tmpl_contains(run, args[0], self, &found));
    *out = tmpl_bool(found);
    return SL_OK;
}

/* Identity; equal numbers and strings of one type count as the same object. */
static sl_status test_sameas(tmpl_run *run, tmpl_value self, const tmpl_value *args,
                             tmpl_value *out)
{
    tmpl_value other = args[0];
    bool same = self.kind == other.kind;
    if (same && (self.kind == TMPL_STRING || sl_tmpl_is_number(self)))
        SL_TRY(sl_tmpl_equal(run, self, other, &same));
    else if (same && self.kind != TMPL_NONE)
        same = memcmp(&self.as, &other.as, sizeof self.as) == 0;
    *out = tmpl_bool(same);
    return SL_OK;
}

static const tmpl_callable tests[] = {
    {"undefined", "", 0, test_undefined, NULL}, {"defined", "", 0, test_defined, NULL},
    {"none", "", 0, test_none, NULL},           {"boolean", "", 0, test_boolean, NULL},
    {"true", "", 0, test_true, NULL},           {"false", "", 0, test_false, NULL},
    {"integer", "", 0, test_integer, NULL},     {"float", "", 0, test_float, NULL},
    {"number", "", 0, test_number, NULL},       {"string", "", 0, test_string, NULL},
    {"mapping", "", 0, test_mapping, NULL},     {"callable", "", 0, test_callable, NULL},
    {"sequence", "", 0, test_sequence, NULL},   {"iterable", "", 0, test_iterable, NULL},
    {"escaped", "", 0, test_escaped, NULL},     {"upper", "", 0, test_upper, NULL},
    {"lower", "", 0, test_lower, NULL},         {"odd", "", 0, test_odd, NULL},
    {"even", "", 0, test_even, NULL},           {"divisibleby", "num", 1, test_divisibleby, NULL},
    {"sameas", "other", 1, test_sameas, NULL},  {"in", "seq", 1, test_in, NULL},
    {"eq", "other", 1, test_eq, NULL},          {"equalto", "other", 1, test_eq, NULL},
    {"==", "other", 1, test_eq, NULL},          {"ne", "other", 1, test_ne, NULL},
    {"!=", "other", 1, test_ne, NULL},          {"lt", "other", 1, test_lt, NULL},
    {"lessthan", "other", 1, test_lt, NULL},    {"<", "other", 1, test_lt, NULL},
    {"le", "other", 1, test_le, NULL},          {"<=", "other", 1, test_le, NULL},
    {"gt", "other", 1, test_gt, NULL},          {"greaterthan", "other", 1, test_gt, NULL},
    {">", "other", 1, test_gt, NULL},           {"ge", "other", 1, test_ge, NULL},
    {">=", "other", 1, test_ge, NULL},
};

const tmpl_callable *sl_tmpl_find_test(sl_str name)
{
    return sl_tmpl_find(tests, SL_COUNTOF(tests), name);
}
