/* Functions that every template can call: range, namespace, dict, raise_exception, strftime_now. */
#include "text/template_run.h"

#include <stdio.h>
#include <string.h>

static sl_status function_range(tmpl_run *run, tmpl_value self, const tmpl_call *call,
                                tmpl_value *out)
{
    (void)self;
    int64_t given[3] = {0, 0, 1};
    if (call->n < 1 || call->n > 3 || call->n != call->n_positional)
        return sl_tmpl_fail(run, SL_ERR_ARGUMENT, "range takes 1 to 3 numbers");
    for (size_t i = 0; i < call->n; i++) {
        tmpl_value arg = call->args[i].value;
        if (!sl_tmpl_as_int(arg, &given[call->n == 1 ? 1 : i]))
            return arg.kind == TMPL_UNDEFINED
                       ? sl_tmpl_undefined_error(run, arg)
                       : sl_tmpl_fail(run, SL_ERR_ARGUMENT, "range needs integers, not %s",
                                      sl_tmpl_kind_name((tmpl_kind)arg.kind));
    }
    int64_t start = given[0], stop = given[1], step = given[2];
    if (step == 0)
        return sl_tmpl_fail(run, SL_ERR_ARGUMENT, "range with step 0");
    /* Unsigned differences, as start and stop may be at both ends of 64 bits. */
    bool empty = step > 0 ? start >= stop : start <= stop;
    uint64_t distance =
        step > 0 ? (uint64_t)stop - (uint64_t)start : (uint64_t)start - (uint64_t)stop;
    uint64_t stride = step > 0 ? (uint64_t)step : (uint64_t)0 - (uint64_t)step;
    uint64_t n = empty ? 0 : (distance - 1) / stride + 1;
    if (n > SL_TEMPLATE_MAX_RANGE)
        return sl_tmpl_fail(run, SL_ERR_LIMIT, "a range of more than %d numbers",
                            SL_TEMPLATE_MAX_RANGE);
    SL_TRY(sl_tmpl_new_seq(run, TMPL_RANGE, NULL, (size_t)n, out));
    tmpl_seq *seq = out->as.seq;
    seq->items = NULL;
    seq->start = start;
    seq->stop = stop;
    seq->step = step;
    return SL_OK;
}

/* The entries of a dict, or of pairs, then keyword arguments. */
static sl_status fill_dict(tmpl_run *run, const char *function, const tmpl_call *call,
                           tmpl_value *out)
{
    SL_TRY(sl_tmpl_new_dict(run, call->n, out));
    if (call->n_positional > 1)
        return sl_tmpl_fail(run, SL_ERR_ARGUMENT, "%s takes one positional argument", function);
    if (call->n_positional == 1 && call->args[0].value.kind == TMPL_DICT) {
        const tmpl_dict *from = call->args[0].value.as.dict;
        for (size_t i = 0; i < from->n; i++)
            SL_TRY(
                sl_tmpl_dict_set(run, out->as.dict, from->entries[i].key, from->entries[i].value));
    } else if (call->n_positional == 1) {
        const tmpl_value *pairs, *pair;
        size_t n, n_pair;
        SL_TRY(sl_tmpl_items(run, call->args[0].value, &pairs, &n));
        for (size_t i = 0; i < n; i++) {
            SL_TRY(sl_tmpl_items(run, pairs[i], &pair, &n_pair));
            if (n_pair != 2)
                return sl_tmpl_fail(run, SL_ERR_ARGUMENT, "%s needs pairs", function);
            SL_TRY(sl_tmpl_dict_set(run, out->as.dict, pair[0], pair[1]));
        }
    }
    for (size_t i = call->n_positional; i < call->n; i++) {
        tmpl_value key;
        SL_TRY(sl_tmpl_make_str(run, call->args[i].name, false, &key));
        SL_TRY(sl_tmpl_dict_set(run, out->as.dict, key, call->args[i].value));
    }
    return SL_OK;
}

static sl_status function_dict(tmpl_run *run, tmpl_value self, const tmpl_call *call,
                               tmpl_value *out)
{
    (void)self;
    return fill_dict(run, "dict", call, out);
}

static sl_status function_namespace(tmpl_run *run, tmpl_value self, const tmpl_call *call,
                                    tmpl_value *out)
{
    (void)self;
    SL_TRY(fill_dict(run, "namespace", call, out));
    tmpl_dict *attributes = out->as.dict;
    *out = (tmpl_value){.kind = TMPL_NAMESPACE, .as.attributes = attributes};
    return SL_OK;
}

static sl_status function_raise_exception(tmpl_run *run, tmpl_value self, const tmpl_value *args,
                                          tmpl_value *out)
{
    (void)self;
    (void)out;
    tmpl_str *message;
    SL_TRY(sl_tmpl_to_str(run, args[0], &message));
    return sl_tmpl_fail(run, SL_ERR_ARGUMENT, "%.*s",
                        (int)sl_min_size(message->s.n_bytes, SL_ERROR_MESSAGE_BYTES),
                        message->s.data);
}

/* ---- strftime_now ---- */

typedef struct calendar {
    int64_t year;
    unsigned month, day, weekday, year_day; /* from 1, 1, Sunday = 0, 0 */
    unsigned hour, minute, second;
} calendar;

/* The proleptic Gregorian date of a count of seconds since 1970, UTC. Years begin in March here,
 * so that the leap day comes last. */
static calendar calendar_of(int64_t seconds)
{
    int64_t days = seconds / 86400, rest = seconds % 86400;
    if (rest < 0) {
        rest += 86400;
        days--;
    }
    int64_t shifted = days + 719468; /* since 0000-03-01 */
    int64_t era = (shifted >= 0 ? shifted : shifted - 146096) / 146097;
    int64_t day_of_era = shifted - era * 146097;
    int64_t year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36524 - day_of_era / 146096) / 365;
    int64_t day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    int64_t month = (5 * day_of_year + 2) / 153; /* March = 0 */
    calendar c = {.year = year_of_era + era * 400 + (month >= 10),
                  .month = (unsigned)(month < 10 ? month + 3 : month - 9),
                  .day = (unsigned)(day_of_year - (153 * month + 2) / 5 + 1),
                  .weekday = (unsigned)(((days + 4) % 7 + 7) % 7),
                  .hour = (unsigned)(rest / 3600),
                  .minute = (unsigned)(rest / 60 % 60),
                  .second = (unsigned)(rest % 60)};
    static const unsigned before[] = {0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334};
    bool leap = (c.year % 4 == 0 && c.year % 100 != 0) || c.year % 400 == 0;
    c.year_day = before[c.month - 1] + c.day - 1 + (leap && c.month > 2);
    return c;
}

/* One conversion of strftime, always in English; false when it is not provided. */
static bool convert_date(const calendar *c, char letter, char *text, size_t size)
{
    static const char *const months[] = {"January",   "February", "March",    "April",
                                         "May",       "June",     "July",     "August",
                                         "September", "October",  "November", "December"};
    static const char *const days[] = {"Sunday",   "Monday", "Tuesday", "Wednesday",
                                       "Thursday", "Friday", "Saturday"};
    unsigned hour12 = c->hour % 12 == 0 ? 12 : c->hour % 12;
    long long year = (long long)c->year;
    switch (letter) {
    case 'Y':
        return snprintf(text, size, "%lld", year) > 0;
    case 'y':
        return snprintf(text, size, "%02lld", year % 100) > 0;
    case 'm':
        return snprintf(text, size, "%02u", c->month) > 0;
    case 'd':
        return snprintf(text, size, "%02u", c->day) > 0;
    case 'e':
        return snprintf(text, size, "%2u", c->day) > 0;
    case 'H':
        return snprintf(text, size, "%02u", c->hour) > 0;
    case 'I':
        return snprintf(text, size, "%02u", hour12) > 0;
    case 'M':
        return snprintf(text, size, "%02u", c->minute) > 0;
    case 'S':
        return snprintf(text, size, "%02u", c->second) > 0;
    case 'p':
        return snprintf(text, size, "%s", c->hour < 12 ? "AM" : "PM") > 0;
    case 'B':
        return snprintf(text, size, "%s", months[c->month - 1]) > 0;
    case 'b':
    case 'h':
        return snprintf(text, size, "%.3s", months[c->month - 1]) > 0;
    case 'A':
        return snprintf(text, size, "%s", days[c->weekday]) > 0;
    case 'a':
        return snprintf(text, size, "%.3s", days[c->weekday]) > 0;
    case 'j':
        return snprintf(text, size, "%03u", c->year_day + 1) > 0;
    case 'w':
        return snprintf(text, size, "%u", c->weekday) > 0;
    case 'u':
        return snprintf(text, size, "%u", c->weekday == 0 ? 7 : c->weekday) > 0;
    case 'F':
        return snprintf(text, size, "%lld-%02u-%02u", year, c->month, c->day) > 0;
    case 'D':
    case 'x':
        return snprintf(text, size, "%02u/%02u/%02lld", c->month, c->day, year % 100) > 0;
    case 'T':
    case 'X':
        return snprintf(text, size, "%02u:%02u:%02u", c->hour, c->minute, c->second) > 0;
    case 'R':
        return snprintf(text, size, "%02u:%02u", c->hour, c->minute) > 0;
    case 'n':
        return snprintf(text, size, "\n") > 0;
    case 't':
        return snprintf(text, size, "\t") > 0;
    case '%':
        return snprintf(text, size, "%%") > 0;
    case 'Z':
    case 'z': /* as for a time without a zone in Python: nothing */
        text[0] = '\0';
        return true;
    default:
        return false;
    }
}

static sl_status function_strftime_now(tmpl_run *run, tmpl_value self, const tmpl_value *args,
                                       tmpl_value *out)
{
    (void)self;
    if (args[0].kind != TMPL_STRING)
        return sl_tmpl_fail(run, SL_ERR_ARGUMENT, "strftime_now needs a string");
    const tmpl_str *format = args[0].as.string;
    calendar now = calendar_of(run->input->now);
    tmpl_capture capture = sl_tmpl_capture(run);
    for (size_t at = 0; at < format->s.n_bytes; at++) {
        SL_TRY(sl_tmpl_spend(run, 1));
        if (format->s.data[at] != '%') {
            SL_TRY(sl_tmpl_put_part(run, format, at, at + 1));
            continue;
        }
        char text[48];
        bool plain = false; /* %-d: without padding */
        if (at + 2 < format->s.n_bytes && format->s.data[at + 1] == '-')
            plain = ++at;
        if (++at == format->s.n_bytes || !convert_date(&now, format->s.data[at], text, sizeof text))
            return sl_tmpl_fail(run, SL_ERR_UNSUPPORTED, "strftime_now: conversion in '%.*s'",
                                (int)sl_min_size(format->s.n_bytes, 60), format->s.data);
        const char *begin = text;
        while (plain && (*begin == '0' || *begin == ' ') && begin[1] != '\0')
            begin++;
        SL_TRY(sl_tmpl_put(run, begin, strlen(begin), false));
    }
    return sl_tmpl_captured(run, capture, out);
}

static const tmpl_callable functions[] = {
    {"range", "", 0, NULL, function_range},
    {"dict", "", 0, NULL, function_dict},
    {"namespace", "", 0, NULL, function_namespace},
    {"raise_exception", "message", 1, function_raise_exception, NULL},
    {"strftime_now", "format", 1, function_strftime_now, NULL},
};

const tmpl_callable *sl_tmpl_find_function(sl_str name)
{
    return sl_tmpl_find(functions, SL_COUNTOF(functions), name);
}
