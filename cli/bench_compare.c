/* Compares two files of `sluice bench --json`: the rows that both have, by test and arm.
 *
 * Refused: files that are no such output. A row that only one of them has is listed as such. */
#include <math.h>
#include <string.h>

#include "base/filemap.h"
#include "base/json.h"
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

static sl_status load(const char *path, json_t **out, sl_error *err)
{
    char *text;
    size_t n;
    const sl_json_limits limits = sl_json_limits_default();
    SL_TRY(sl_read_file(path, limits.max_bytes, &text, &n, err));
    const sl_status status = sl_json_parse(text, n, path, limits, out, err);
    sl_free(text);
    SL_TRY(status);
    if (json_is_array(json_object_get(*out, "rows")))
        return SL_OK;
    json_decref(*out);
    *out = NULL;
    return sl_fail(err, SL_ERR_FORMAT, "%s has no rows: it is not the output of bench --json",
                   path);
}

/* The values of a row; the sentence names what is wrong with it. */
static sl_status read_values(const char *path, const json_t *row, double values[SL_MAX_RUNS],
                             size_t *n, sl_error *err)
{
    const json_t *list = json_object_get(row, "values");
    *n = json_array_size(list);
    if (*n == 0 || *n > SL_MAX_RUNS)
        return sl_fail(err, SL_ERR_FORMAT, "%s: a row has %zu values, expected 1 to %d", path, *n,
                       SL_MAX_RUNS);
    for (size_t i = 0; i < *n; i++) {
        values[i] = json_number_value(json_array_get(list, i));
        if (!json_is_number(json_array_get(list, i)) || !(values[i] > 0))
            return sl_fail(err, SL_ERR_FORMAT, "%s: a row's value %zu is no positive number", path,
                           i);
    }
    return SL_OK;
}

static const char *text_of(const json_t *row, const char *key)
{
    const char *text = json_string_value(json_object_get(row, key));
    return text ? text : "";
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

/* ---- the table ---- */

typedef struct side {
    const char *path;
    json_t *json;
} side;

static sl_status append_name(const json_t *row, sl_buf *out, sl_error *err)
{
    return sl_buf_printf(out, err, "%-18s %-16s", text_of(row, "test"), text_of(row, "arm"));
}

static sl_status append_pair(const side *a, const side *b, const json_t *row, sl_buf *out,
                             sl_error *err)
{
    double x[SL_MAX_RUNS], y[SL_MAX_RUNS];
    size_t n_x, n_y;
    const json_t *other = find_row(b->json, row);
    SL_TRY(append_name(row, out, err));
    if (!other)
        return sl_buf_printf(out, err, "  only in %s\n", a->path);
    SL_TRY(read_values(a->path, row, x, &n_x, err));
    SL_TRY(read_values(b->path, other, y, &n_y, err));
    const bool higher = json_is_true(json_object_get(row, "higher_is_better"));
    const sl_verdict v = sl_bench_judge(x, n_x, y, n_y, higher);
    return sl_buf_printf(out, err, " %10.2f %10.2f %-5s %7.3fx  %.3f .. %.3f  p %.3f  %s\n",
                         sl_spread_of(x, n_x).median, sl_spread_of(y, n_y).median,
                         text_of(row, "unit"), v.ratio, v.low, v.high, v.p, v.word);
}

static sl_status append_doubts(const side *s, sl_buf *out, sl_error *err)
{
    const json_t *doubts = json_object_get(json_object_get(s->json, "machine"), "doubts");
    for (size_t i = 0; i < json_array_size(doubts); i++) {
        const char *text = json_string_value(json_array_get(doubts, i));
        SL_TRY(sl_buf_printf(out, err, "doubtful  %s: %s\n", s->path, text ? text : ""));
    }
    return SL_OK;
}

static sl_status append_all(const side *a, const side *b, sl_buf *out, sl_error *err)
{
    SL_TRY(append_doubts(a, out, err));
    SL_TRY(append_doubts(b, out, err));
    SL_TRY(sl_buf_printf(out, err, "%-18s %-16s %10s %10s %-5s %8s  %s\n", "test", "arm", "A", "B",
                         "", "B to A", "middle halves; above 1 is faster"));
    const json_t *rows = json_object_get(a->json, "rows");
    for (size_t i = 0; i < json_array_size(rows); i++)
        SL_TRY(append_pair(a, b, json_array_get(rows, i), out, err));
    rows = json_object_get(b->json, "rows");
    for (size_t i = 0; i < json_array_size(rows); i++) {
        const json_t *row = json_array_get(rows, i);
        if (find_row(a->json, row))
            continue;
        SL_TRY(append_name(row, out, err));
        SL_TRY(sl_buf_printf(out, err, "  only in %s\n", b->path));
    }
    return SL_OK;
}

int sl_bench_compare(const char *path_a, const char *path_b)
{
    side a = {path_a, NULL}, b = {path_b, NULL};
    sl_error err;
    sl_buf out;
    sl_buf_init(&out, SL_MEM_GENERAL, (size_t)64 << 20);
    sl_status status = load(path_a, &a.json, &err);
    if (status == SL_OK)
        status = load(path_b, &b.json, &err);
    if (status == SL_OK)
        status = append_all(&a, &b, &out, &err);
    json_decref(a.json);
    json_decref(b.json);
    return sl_out_finish(&out, status, &err);
}
