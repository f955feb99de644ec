/* Compares two files of `sluice bench --json`: the rows that both have, by test and arm.
 *
 * Refused: files that are no such output, two rows of one name, a row in two units. A row that only
 * one of them has is listed as such, and so is what else differs between the two. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/filemap.h"
#include "base/json.h"
#include "base/utf8.h"
#include "bench.h"
#include "opts.h"
#include "out.h"

static double ratio_of(double a, double b, bool higher)
{
    const double good = higher ? b : a, bad = higher ? a : b;
    return bad > 0 ? good / bad : 0;
}

sl_verdict sl_bench_judge(const double *a, size_t n_a, const double *b, size_t n_b, bool higher)
{
    const sl_spread x = sl_spread_of(a, n_a), y = sl_spread_of(b, n_b);
    sl_verdict v = {
        .ratio = ratio_of(x.median, y.median, higher),
        .low = higher ? ratio_of(x.q3, y.q1, true) : ratio_of(x.q1, y.q3, false),
        .high = higher ? ratio_of(x.q1, y.q3, true) : ratio_of(x.q3, y.q1, false),
        .p = sl_rank_test(a, n_a, b, n_b),
    };
    if (sl_rank_test_limit(n_a, n_b) > SL_NOISE)
        v.word = "too few runs to tell";
    else if (v.p > SL_NOISE)
        v.word = "within noise";
    else
        v.word = v.ratio > 1 ? "faster" : "slower";
    return v;
}

/* ---- files ---- */

typedef struct side {
    const char *path;
    json_t *json;
} side;

/* Long enough for every name that bench writes. */
enum { NAME_BYTES = 64, ROW_BYTES = 2 * NAME_BYTES, MAX_ROWS = 4096 };

static const char *text_of(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

/* The text of a file, which may have come from anywhere, fit to be shown. */
static const char *shown_of(const json_t *object, const char *key, char text[NAME_BYTES])
{
    const char *raw = text_of(object, key);
    return sl_utf8_show(raw, strlen(raw), text, NAME_BYTES);
}

/* "pp512 threads=2" */
static const char *row_name(const json_t *row, char name[ROW_BYTES])
{
    char test[NAME_BYTES], arm[NAME_BYTES];
    shown_of(row, "test", test);
    shown_of(row, "arm", arm);
    snprintf(name, ROW_BYTES, "%s%s%s", test, *arm ? " " : "", arm);
    return name;
}

static bool same_row(const json_t *a, const json_t *b)
{
    return strcmp(text_of(a, "test"), text_of(b, "test")) == 0 &&
           strcmp(text_of(a, "arm"), text_of(b, "arm")) == 0;
}

static const json_t *find_row(const json_t *file, const json_t *row)
{
    const json_t *rows = json_object_get(file, "rows");
    for (size_t i = 0; i < json_array_size(rows); i++) {
        if (same_row(json_array_get(rows, i), row))
            return json_array_get(rows, i);
    }
    return NULL;
}

static sl_status check(const side *s, sl_error *err)
{
    const json_t *rows = json_object_get(s->json, "rows");
    if (strcmp(text_of(s->json, "program"), "sluice bench") != 0 || !json_is_array(rows))
        return sl_fail(err, SL_ERR_FORMAT, "%s is not the output of sluice bench --json", s->path);
    if (json_array_size(rows) > MAX_ROWS)
        return sl_fail(err, SL_ERR_FORMAT, "%s has %zu rows, at most %d are compared", s->path,
                       json_array_size(rows), MAX_ROWS);
    for (size_t i = 0; i < json_array_size(rows); i++) {
        const json_t *row = json_array_get(rows, i);
        char name[ROW_BYTES];
        if (find_row(s->json, row) != row)
            return sl_fail(err, SL_ERR_FORMAT, "%s has two rows '%s'", s->path,
                           row_name(row, name));
    }
    return SL_OK;
}

static sl_status load(side *s, sl_error *err)
{
    char *text;
    size_t n;
    const sl_json_limits limits = sl_json_limits_default();
    SL_TRY(sl_read_file(s->path, limits.max_bytes, &text, &n, err));
    const sl_status status = sl_json_parse(text, n, s->path, limits, &s->json, err);
    sl_free(text);
    SL_TRY(status);
    return check(s, err);
}

/* The values of a row; the sentence names what is wrong with it. */
static sl_status read_values(const char *path, const json_t *row, double values[SL_MAX_RUNS],
                             size_t *n, sl_error *err)
{
    char name[ROW_BYTES];
    const json_t *list = json_object_get(row, "values");
    *n = json_array_size(list);
    if (*n == 0 || *n > SL_MAX_RUNS)
        return sl_fail(err, SL_ERR_FORMAT, "%s: the row '%s' has %zu values, expected 1 to %d",
                       path, row_name(row, name), *n, SL_MAX_RUNS);
    for (size_t i = 0; i < *n; i++) {
        values[i] = json_number_value(json_array_get(list, i));
        if (!json_is_number(json_array_get(list, i)) || !(values[i] > 0))
            return sl_fail(err, SL_ERR_FORMAT,
                           "%s: value %zu of the row '%s' is no positive number", path, i,
                           row_name(row, name));
    }
    return SL_OK;
}

/* ---- the table ---- */

static sl_status append_name(const json_t *row, sl_buf *out, sl_error *err)
{
    char test[NAME_BYTES], arm[NAME_BYTES];
    return sl_buf_printf(out, err, "%-18s %-16s", shown_of(row, "test", test),
                         shown_of(row, "arm", arm));
}

static sl_status append_only(const json_t *row, const side *s, sl_buf *out, sl_error *err)
{
    char path[SL_SHOWN_BYTES];
    SL_TRY(append_name(row, out, err));
    return sl_buf_printf(out, err, "  only in %s\n",
                         sl_utf8_show(s->path, strlen(s->path), path, sizeof path));
}

static sl_status append_pair(const side *a, const side *b, const json_t *row, sl_buf *out,
                             sl_error *err)
{
    double x[SL_MAX_RUNS], y[SL_MAX_RUNS];
    size_t n_x, n_y;
    char name[ROW_BYTES], unit[NAME_BYTES], other_unit[NAME_BYTES];
    const json_t *other = find_row(b->json, row);
    if (!other)
        return append_only(row, a, out, err);
    SL_TRY(read_values(a->path, row, x, &n_x, err));
    SL_TRY(read_values(b->path, other, y, &n_y, err));
    const bool higher = json_is_true(json_object_get(row, "higher_is_better"));
    if (strcmp(shown_of(row, "unit", unit), shown_of(other, "unit", other_unit)) != 0 ||
        higher != json_is_true(json_object_get(other, "higher_is_better")))
        return sl_fail(err, SL_ERR_FORMAT,
                       "the row '%s' is in '%s' in one file, in '%s' in the other",
                       row_name(row, name), unit, other_unit);
    const sl_verdict v = sl_bench_judge(x, n_x, y, n_y, higher);
    SL_TRY(append_name(row, out, err));
    return sl_buf_printf(out, err, " %10.2f %10.2f %-5s %7.3fx  %.3f .. %.3f  p %.3f  %s\n",
                         sl_spread_of(x, n_x).median, sl_spread_of(y, n_y).median, unit, v.ratio,
                         v.low, v.high, v.p, v.word);
}

/* ---- circumstances ---- */

static sl_status append_difference(const char *what, const json_t *a, const json_t *b,
                                   const char *key, sl_buf *out, sl_error *err)
{
    char x[NAME_BYTES], y[NAME_BYTES];
    const json_t *p = json_object_get(a, key), *q = json_object_get(b, key);
    if (json_equal(p, q) || (!p && !q))
        return SL_OK;
    if (json_is_integer(p) && json_is_integer(q))
        return sl_buf_printf(out, err, "differs   %s: %lld in A, %lld in B\n", what,
                             (long long)json_integer_value(p), (long long)json_integer_value(q));
    return sl_buf_printf(out, err, "differs   %s: '%s' in A, '%s' in B\n", what,
                         shown_of(a, key, x), shown_of(b, key, y));
}

/* Of the first arm, which is the only one of most runs. */
static sl_status append_differences(const side *a, const side *b, sl_buf *out, sl_error *err)
{
    static const struct {
        const char *what, *of, *key;
    } items[] = {
        {"model", "model", "name"},
        {"parameters of the model", "model", "parameters"},
        {"type", "model", "type"},
        {"processor", "machine", "cpu"},
        {"usable processors", "machine", "usable"},
        {"threads", "arms", "threads"},
        {"isa", "arms", "isa"},
        {"kv", "arms", "kv"},
        {"device", "arms", "device"},
    };
    for (size_t i = 0; i < SL_COUNTOF(items); i++) {
        const json_t *x = json_object_get(a->json, items[i].of);
        const json_t *y = json_object_get(b->json, items[i].of);
        if (json_is_array(x) && json_is_array(y)) {
            x = json_array_get(x, 0);
            y = json_array_get(y, 0);
        }
        SL_TRY(append_difference(items[i].what, x, y, items[i].key, out, err));
    }
    return SL_OK;
}

static sl_status append_doubts(const char *name, const side *s, sl_buf *out, sl_error *err)
{
    const json_t *doubts = json_object_get(json_object_get(s->json, "machine"), "doubts");
    for (size_t i = 0; i < json_array_size(doubts); i++) {
        const char *text = json_string_value(json_array_get(doubts, i));
        char shown[SL_SHOWN_BYTES];
        SL_TRY(sl_buf_printf(
            out, err, "doubtful  %s: %s\n", name,
            sl_utf8_show(text ? text : "", text ? strlen(text) : 0, shown, sizeof shown)));
    }
    return SL_OK;
}

static sl_status append_all(const side *a, const side *b, sl_buf *out, sl_error *err)
{
    SL_TRY(append_differences(a, b, out, err));
    SL_TRY(append_doubts("A", a, out, err));
    SL_TRY(append_doubts("B", b, out, err));
    SL_TRY(sl_buf_printf(out, err, "%-18s %-16s %10s %10s %-5s %8s  %s\n", "test", "arm", "A", "B",
                         "", "B to A", "middle halves; above 1 is faster"));
    const json_t *rows = json_object_get(a->json, "rows");
    for (size_t i = 0; i < json_array_size(rows); i++)
        SL_TRY(append_pair(a, b, json_array_get(rows, i), out, err));
    rows = json_object_get(b->json, "rows");
    for (size_t i = 0; i < json_array_size(rows); i++) {
        const json_t *row = json_array_get(rows, i);
        if (!find_row(a->json, row))
            SL_TRY(append_only(row, b, out, err));
    }
    return SL_OK;
}

int sl_bench_compare(const char *path_a, const char *path_b)
{
    side a = {path_a, NULL}, b = {path_b, NULL};
    sl_error err;
    sl_buf out;
    sl_buf_init(&out, SL_MEM_GENERAL, (size_t)64 << 20);
    sl_status status = load(&a, &err);
    if (status == SL_OK)
        status = load(&b, &err);
    if (status == SL_OK)
        status = append_all(&a, &b, &out, &err);
    json_decref(a.json);
    json_decref(b.json);
    return sl_out_finish(&out, status, &err);
}
