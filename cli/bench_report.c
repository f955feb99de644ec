/* Writes what was measured: a table for people, JSON with every run, CSV with a line a test. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/cpus.h"
#include "base/json_out.h"
#include "base/utf8.h"
#include "bench.h"
#include "ceilings.h"
#include "circumstances.h"
#include "common.h"
#include "opts.h"
#include "out.h"

bool sl_bench_is_rate(const sl_bench_test *test)
{
    return test->kind == SL_BENCH_PROMPT || test->kind == SL_BENCH_DECODE;
}

static double tokens_of(const sl_bench_test *test)
{
    return (double)test->n_tokens * test->n_sequences;
}

double sl_bench_value(const sl_bench_test *test, const sl_bench_run *run)
{
    const double seconds = (double)run->ns / 1e9;
    if (!sl_bench_is_rate(test))
        return seconds * 1e3;
    return seconds > 0 ? tokens_of(test) / seconds : 0;
}

static const char *unit_of(const sl_bench_test *test)
{
    return sl_bench_is_rate(test) ? "tok/s" : "ms";
}

static size_t values_of(const sl_bench_row *row, double values[SL_MAX_RUNS])
{
    for (size_t i = 0; i < row->n_runs; i++)
        values[i] = sl_bench_value(&row->test, &row->runs[i]);
    return row->n_runs;
}

static sl_spread spread_of(const sl_bench_row *row)
{
    double values[SL_MAX_RUNS];
    const size_t n = values_of(row, values);
    return sl_spread_of(values, n);
}

/* NAN when a run has none. */
static double median_share(const sl_bench_row *row)
{
    double shares[SL_MAX_RUNS];
    for (size_t i = 0; i < row->n_runs; i++) {
        if (isnan(row->runs[i].share))
            return NAN;
        shares[i] = row->runs[i].share;
    }
    return row->n_runs > 0 ? sl_spread_of(shares, row->n_runs).median : NAN;
}

static double joules_per_token(const sl_bench_row *row)
{
    double joules[SL_MAX_RUNS];
    for (size_t i = 0; i < row->n_runs; i++) {
        if (isnan(row->runs[i].joules) || !sl_bench_is_rate(&row->test))
            return NAN;
        joules[i] = row->runs[i].joules / tokens_of(&row->test);
    }
    return row->n_runs > 0 ? sl_spread_of(joules, row->n_runs).median : NAN;
}

static const char *limit_of(const sl_bench_row *row)
{
    return row->limit_is_bytes ? "memory" : "compute";
}

static double median_of(const sl_bench_ceilings *c, size_t offset)
{
    double values[SL_MAX_RUNS];
    const size_t n = sl_min_size(c->n, SL_MAX_RUNS);
    for (size_t i = 0; i < n; i++)
        memcpy(&values[i], (const char *)&c->rounds[i] + offset, sizeof values[i]);
    return sl_spread_of(values, n).median;
}

/* The medians of all rounds, of which there is one. */
static sl_ceilings median_ceilings(const sl_bench_ceilings *c)
{
    sl_ceilings median = c->rounds[0];
    median.read_gbs = median_of(c, offsetof(sl_ceilings, read_gbs));
    median.read_gbs_1 = median_of(c, offsetof(sl_ceilings, read_gbs_1));
    median.int8_tops = median_of(c, offsetof(sl_ceilings, int8_tops));
    median.f32_tflops = median_of(c, offsetof(sl_ceilings, f32_tflops));
    median.amx_tops = median_of(c, offsetof(sl_ceilings, amx_tops));
    for (size_t i = 0; i < c->n; i++)
        median.read_bytes = sl_min_size(median.read_bytes, c->rounds[i].read_bytes);
    return median;
}

/* The level that all arms compute at; "" when they differ. */
static const char *common_level(const sl_bench *bench)
{
    sl_model_info first, info;
    sl_engine_model_info(bench->arms[0].engine, &first);
    for (size_t a = 1; a < bench->n_arms; a++) {
        sl_engine_model_info(bench->arms[a].engine, &info);
        if (strcmp(info.isa, first.isa) != 0)
            return "";
    }
    return first.isa;
}

/* The first arm's row of the same test. */
static const sl_bench_row *first_arm_row(const sl_bench *bench, const sl_bench_row *row)
{
    for (size_t i = 0; i < bench->n_rows; i++) {
        const sl_bench_row *other = &bench->rows[i];
        if (other->arm == 0 && memcmp(&other->test, &row->test, sizeof row->test) == 0)
            return other;
    }
    return row;
}

/* ---- text ---- */

static sl_status append_model(const sl_bench *bench, sl_buf *out, sl_error *err)
{
    sl_model_info info;
    char path[SL_SHOWN_BYTES];
    sl_engine_model_info(bench->arms[0].engine, &info);
    SL_TRY(sl_buf_printf(out, err, "model     %s%s%s, %.1f M parameters, mostly %s, %s KV\n",
                         sl_utf8_show(info.path, strlen(info.path), path, sizeof path),
                         *info.name ? ": " : "", info.name, (double)info.n_parameters / 1e6,
                         info.main_type, info.kv_f32 ? "f32" : "f16"));
    SL_TRY(sl_buf_printf(out, err, "machine   %s%s%u of %u processors", bench->before.cpu,
                         *bench->before.cpu ? ", " : "", sl_cpus_usable(), bench->before.n_online));
    char text[SL_COMPUTES_ON_BYTES];
    if (bench->n_arms == 1)
        SL_TRY(sl_buf_printf(out, err, "; %s", sl_common_computes_on(&info, text)));
    return sl_buf_append_char(out, '\n', err);
}

static sl_status append_ceilings(const sl_bench *bench, sl_buf *out, sl_error *err)
{
    for (size_t i = 0; i < bench->n_ceilings; i++) {
        const sl_bench_ceilings *c = &bench->ceilings[i];
        if (c->n == 0)
            continue;
        const sl_ceilings median = median_ceilings(c);
        SL_TRY(sl_buf_printf(out, err, "ceilings  %u thread%s: ", c->n_threads,
                             c->n_threads == 1 ? "" : "s"));
        SL_TRY(sl_ceilings_append(&median, common_level(bench), out, err));
        SL_TRY(sl_buf_append_char(out, '\n', err));
    }
    return SL_OK;
}

static sl_status append_ratio(const sl_bench *bench, const sl_bench_row *row, sl_buf *out,
                              sl_error *err)
{
    const sl_bench_row *first = first_arm_row(bench, row);
    if (first == row)
        return SL_OK;
    double a[SL_MAX_RUNS], b[SL_MAX_RUNS];
    const size_t n_a = values_of(first, a), n_b = values_of(row, b);
    const sl_verdict v = sl_bench_judge(a, n_a, b, n_b, sl_bench_is_rate(&row->test));
    return sl_buf_printf(out, err, "  %.3fx %s", v.ratio, v.word);
}

static sl_status append_row(const sl_bench *bench, const sl_bench_row *row, sl_buf *out,
                            sl_error *err)
{
    char name[SL_BENCH_NAME_BYTES];
    sl_bench_test_name(&row->test, name);
    const sl_spread s = spread_of(row);
    const double share = median_share(row), joules = joules_per_token(row);
    SL_TRY(sl_buf_printf(out, err, "%-18s", name));
    if (bench->n_arms > 1)
        SL_TRY(sl_buf_printf(out, err, " %-16s", bench->arms[row->arm].name));
    SL_TRY(sl_buf_printf(out, err, " %10.2f %-5s %10.2f %10.2f %10.2f %10.2f", s.median,
                         unit_of(&row->test), s.min, s.max, s.q1, s.q3));
    if (isnan(share))
        SL_TRY(sl_buf_append_str(out, "              -", err));
    else
        SL_TRY(sl_buf_printf(out, err, "  %5.1f %% %s", 100 * share,
                             row->limit_is_bytes ? "memory " : "compute"));
    if (!isnan(joules))
        SL_TRY(sl_buf_printf(out, err, " %8.3f", joules));
    SL_TRY(append_ratio(bench, row, out, err));
    return sl_buf_append_char(out, '\n', err);
}

static sl_status append_table(const sl_bench *bench, sl_buf *out, sl_error *err)
{
    SL_TRY(append_model(bench, out, err));
    SL_TRY(append_ceilings(bench, out, err));
    SL_TRY(sl_buf_printf(out, err, "memory    %.1f MiB at most\n", bench->peak_mib));
    SL_TRY(sl_append_doubts(&bench->notes, out, err));
    SL_TRY(sl_buf_printf(out, err, "\n%-18s", "test"));
    if (bench->n_arms > 1)
        SL_TRY(sl_buf_printf(out, err, " %-16s", "arm"));
    SL_TRY(sl_buf_printf(out, err, " %10s %-5s %10s %10s %10s %10s  %13s", "median", "", "min",
                         "max", "quarter", "3 quarters", "of the limit"));
    if (bench->energy.n > 0)
        SL_TRY(sl_buf_printf(out, err, " %8s", "J/token"));
    if (bench->n_arms > 1)
        SL_TRY(sl_buf_append_str(out, "  to the first arm", err));
    SL_TRY(sl_buf_append_char(out, '\n', err));
    bool is_above = false;
    for (size_t i = 0; i < bench->n_rows; i++) {
        is_above = is_above || median_share(&bench->rows[i]) > 1;
        SL_TRY(append_row(bench, &bench->rows[i], out, err));
    }
    if (!is_above)
        return SL_OK;
    return sl_buf_append_str(out,
                             "above 100 %: weights that stay in a cache, or a machine that was "
                             "slower while its ceilings were measured\n",
                             err);
}

int sl_bench_table(const sl_bench *bench)
{
    sl_buf out;
    sl_error err;
    sl_buf_init(&out, SL_MEM_GENERAL, (size_t)64 << 20);
    const sl_status status = append_table(bench, &out, &err);
    return sl_out_finish(&out, status, &err);
}

/* ---- JSON ---- */

static void json_number(sl_json_out *json, const char *key, double value)
{
    if (isnan(value))
        sl_json_null(json, key);
    else
        sl_json_double(json, key, value);
}

/* One entry for each number of threads. */
static void json_ceilings(sl_json_out *json, const sl_bench *bench)
{
    sl_json_open(json, "ceilings", '[');
    for (size_t i = 0; i < bench->n_ceilings; i++) {
        const sl_bench_ceilings *c = &bench->ceilings[i];
        sl_json_open(json, NULL, '{');
        sl_json_uint(json, "threads", c->n_threads);
        sl_json_open(json, "rounds", '[');
        for (size_t k = 0; k < c->n; k++)
            sl_json_ceilings(json, NULL, &c->rounds[k]);
        sl_json_close(json, ']');
        sl_json_close(json, '}');
    }
    sl_json_close(json, ']');
}

static void json_arms(sl_json_out *json, const sl_bench *bench)
{
    sl_json_open(json, "arms", '[');
    for (size_t a = 0; a < bench->n_arms; a++) {
        sl_model_info info;
        sl_engine_model_info(bench->arms[a].engine, &info);
        sl_json_open(json, NULL, '{');
        sl_json_string(json, "name", bench->arms[a].name);
        sl_json_computing(json, &info);
        if (bench->arms[a].first_token < 0)
            sl_json_null(json, "first_token");
        else
            sl_json_uint(json, "first_token", (uint64_t)bench->arms[a].first_token);
        sl_json_close(json, '}');
    }
    sl_json_close(json, ']');
}

static void json_row(sl_json_out *json, const sl_bench *bench, const sl_bench_row *row)
{
    static const char *const kinds[] = {"load", "first", "prompt", "decode"};
    char name[SL_BENCH_NAME_BYTES];
    sl_bench_test_name(&row->test, name);
    const sl_spread s = spread_of(row);
    const double share = median_share(row);
    sl_json_open(json, NULL, '{');
    sl_json_string(json, "test", name);
    sl_json_string(json, "arm", bench->arms[row->arm].name);
    sl_json_string(json, "kind", kinds[row->test.kind]);
    sl_json_uint(json, "tokens", row->test.n_tokens);
    sl_json_uint(json, "depth", row->test.depth);
    sl_json_uint(json, "sequences", row->test.n_sequences);
    sl_json_string(json, "unit", unit_of(&row->test));
    sl_json_bool(json, "higher_is_better", sl_bench_is_rate(&row->test));
    sl_json_double(json, "median", s.median);
    sl_json_double(json, "min", s.min);
    sl_json_double(json, "max", s.max);
    sl_json_double(json, "q1", s.q1);
    sl_json_double(json, "q3", s.q3);
    json_number(json, "share_of_limit", share);
    sl_json_string(json, "limit", isnan(share) ? NULL : limit_of(row));
    json_number(json, "joules_per_token", joules_per_token(row));
    sl_json_double(json, "weight_bytes", row->cost.weight_bytes);
    sl_json_double(json, "state_bytes", row->cost.state_bytes);
    sl_json_double(json, "int8_macs", row->cost.int8_macs);
    sl_json_double(json, "float_flops", row->cost.float_flops);
    sl_json_open(json, "values", '[');
    for (size_t i = 0; i < row->n_runs; i++)
        sl_json_double(json, NULL, sl_bench_value(&row->test, &row->runs[i]));
    sl_json_close(json, ']');
    sl_json_open(json, "runs_ns", '[');
    for (size_t i = 0; i < row->n_runs; i++)
        sl_json_uint(json, NULL, row->runs[i].ns);
    sl_json_close(json, ']');
    sl_json_close(json, '}');
}

int sl_bench_json(const sl_bench *bench)
{
    sl_json_out json;
    sl_json_out_init(&json);
    sl_json_open(&json, NULL, '{');
    sl_json_program(&json, "sluice bench", bench->time);
    sl_model_info info;
    sl_engine_model_info(bench->arms[0].engine, &info);
    sl_json_model(&json, &info, bench->model.path == NULL);
    sl_json_machine(&json, &bench->before, &bench->notes);
    json_ceilings(&json, bench);
    json_arms(&json, bench);
    sl_json_double(&json, "peak_memory_mib", bench->peak_mib);
    sl_json_open(&json, "rows", '[');
    for (size_t i = 0; i < bench->n_rows; i++)
        json_row(&json, bench, &bench->rows[i]);
    sl_json_close(&json, ']');
    sl_json_close(&json, '}');
    return sl_json_finish(&json);
}

/* ---- CSV ---- */

static sl_status append_optional(sl_buf *out, double value, sl_error *err)
{
    return isnan(value) ? sl_buf_append_char(out, ',', err)
                        : sl_buf_printf(out, err, "%.6g,", value);
}

static sl_status append_csv_row(const sl_bench *bench, const sl_bench_row *row, sl_buf *out,
                                sl_error *err)
{
    char name[SL_BENCH_NAME_BYTES];
    sl_bench_test_name(&row->test, name);
    const sl_spread s = spread_of(row);
    const double share = median_share(row);
    SL_TRY(sl_buf_printf(out, err, "%s,%s,%u,%u,%u,%s,%.6g,%.6g,%.6g,%.6g,%.6g,", name,
                         bench->arms[row->arm].name, row->test.n_tokens, row->test.depth,
                         row->test.n_sequences, unit_of(&row->test), s.median, s.min, s.max, s.q1,
                         s.q3));
    SL_TRY(append_optional(out, share, err));
    SL_TRY(sl_buf_printf(out, err, "%s,", isnan(share) ? "" : limit_of(row)));
    SL_TRY(append_optional(out, joules_per_token(row), err));
    for (size_t i = 0; i < row->n_runs; i++)
        SL_TRY(sl_buf_printf(out, err, "%s%.6g", i ? " " : "",
                             sl_bench_value(&row->test, &row->runs[i])));
    return sl_buf_append_char(out, '\n', err);
}

static sl_status append_csv(const sl_bench *bench, sl_buf *out, sl_error *err)
{
    SL_TRY(sl_buf_append_str(out,
                             "test,arm,tokens,depth,sequences,unit,median,min,max,q1,q3,"
                             "share_of_limit,limit,joules_per_token,values\n",
                             err));
    for (size_t i = 0; i < bench->n_rows; i++)
        SL_TRY(append_csv_row(bench, &bench->rows[i], out, err));
    return SL_OK;
}

int sl_bench_csv(const sl_bench *bench)
{
    sl_buf out;
    sl_error err;
    sl_buf_init(&out, SL_MEM_GENERAL, (size_t)64 << 20);
    for (size_t i = 0; i < bench->notes.n; i++)
        sl_err_printf("doubtful  %s\n", bench->notes.texts[i]);
    const sl_status status = append_csv(bench, &out, &err);
    return sl_out_finish(&out, status, &err);
}
