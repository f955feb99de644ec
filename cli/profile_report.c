/* Profiles as a table and as JSON. */
#include "profile_report.h"

#include <stdio.h>
#include <string.h>

#include "base/utf8.h"
#include "ceilings.h"
#include "circumstances.h"
#include "common.h"
#include "out.h"

static double share_of(uint64_t part, uint64_t whole)
{
    return whole > 0 ? (double)part / (double)whole : 0;
}

/* Amounts per nanosecond are billions a second. */
static double rate(double amount, uint64_t ns)
{
    return ns > 0 ? amount / (double)ns : 0;
}

/* ---- the table ---- */

static sl_status append_row(const sl_profile_phase *phase, const sl_profile_row *row, sl_buf *out,
                            sl_error *err)
{
    const double ops = row->int8_ops + row->float_ops;
    char reached[16] = "-";
    if (row->limit != SL_LIMIT_NONE)
        snprintf(reached, sizeof reached, "%.1f%%", 100 * sl_profile_reached(row));
    return sl_buf_printf(out, err,
                         "  %-12s %-16s %-5s %6llu %10.3f %5.1f%% %10.2f %9.3f %7.2f %8.1f  %-6s "
                         "%7s %6.1f%% %6.1f%%\n",
                         row->part, row->label, row->type, (unsigned long long)row->calls,
                         (double)row->wall_ns / 1e6,
                         100 * share_of(row->wall_ns, phase->total.wall_ns), row->bytes / 1e6,
                         ops / 1e9, rate(row->bytes, row->wall_ns), rate(ops, row->wall_ns),
                         sl_profile_limit_name(row->limit), reached,
                         100 * sl_profile_imbalance(row, phase->n_threads),
                         100 * sl_profile_waiting(row, phase->n_threads));
}

sl_status sl_profile_append_advice(const sl_profile_phase *phase, sl_buf *out, sl_error *err)
{
    const sl_profile_row *row = sl_profile_fix_first(phase);
    if (!row)
        return sl_buf_append_str(out, "nothing was measured", err);
    SL_TRY(sl_buf_printf(out, err, "%s / %s: %.3f ms, %.1f %% of the ops", row->part, row->label,
                         (double)row->wall_ns / 1e6,
                         100 * share_of(row->wall_ns, phase->total.wall_ns)));
    if (row->limit == SL_LIMIT_NONE)
        return SL_OK;
    return sl_buf_printf(out, err, ", where its ceiling (%s) allows %.3f ms",
                         sl_profile_limit_name(row->limit), row->least_ns / 1e6);
}

static sl_status append_phase(const sl_profile_phase *phase, sl_buf *out, sl_error *err)
{
    const double seconds = (double)phase->wall_ns / 1e9;
    SL_TRY(sl_buf_printf(out, err,
                         "\n%s of %u tokens at depth %u: %.3f ms, %.1f tokens/s; without "
                         "recording %.1f tokens/s\n",
                         phase->name, phase->n_tokens, phase->depth, seconds * 1e3,
                         rate(phase->n_tokens * 1e9, phase->wall_ns),
                         rate(phase->n_tokens * 1e9, phase->plain_ns)));
    SL_TRY(sl_buf_append_str(out,
                             "  part         op               type   calls    time ms  share       "
                             "  MB       Gop    GB/s     GOPS  limit  reached uneven waiting\n",
                             err));
    for (size_t i = 0; i < phase->n_rows; i++)
        SL_TRY(append_row(phase, &phase->rows[i], out, err));
    SL_TRY(sl_buf_append_char(out, '\n', err));
    for (size_t i = 0; i < phase->n_parts; i++)
        SL_TRY(append_row(phase, &phase->parts[i], out, err));
    SL_TRY(append_row(phase, &phase->total, out, err));
    const uint64_t outside =
        phase->wall_ns > phase->total.wall_ns ? phase->wall_ns - phase->total.wall_ns : 0;
    SL_TRY(sl_buf_printf(out, err, "  outside of the ops: %.3f ms, %.2f %% of the whole\n",
                         (double)outside / 1e6, 100 * share_of(outside, phase->wall_ns)));
    SL_TRY(sl_buf_append_str(out, "  what to fix first: ", err));
    SL_TRY(sl_profile_append_advice(phase, out, err));
    return sl_buf_append_char(out, '\n', err);
}

const char *sl_profile_legend(void)
{
    return "Limit: what bounds the op; reached: its share of that, above 100 % where weights stay "
           "in a "
           "cache.\nUneven: how far the threads' mean is below the slowest: 50 % of two threads is "
           "one "
           "that does it alone.\nWaiting: the threads' time without work: for each other, at start "
           "and "
           "end, and beside ops of one thread.\n";
}

sl_status sl_profile_append_text(const sl_profile_report *report, sl_buf *out, sl_error *err)
{
    const sl_model_info *model = &report->model;
    char text[SL_COMPUTES_ON_BYTES], path[SL_SHOWN_BYTES];
    SL_TRY(sl_buf_printf(out, err, "model     %s: %s, %s KV\nmachine   %s%s%s\n",
                         sl_utf8_show(model->path, strlen(model->path), path, sizeof path),
                         model->main_type, model->kv_f32 ? "f32" : "f16", report->before.cpu,
                         report->before.cpu[0] != '\0' ? "; " : "",
                         sl_common_computes_on(model, text)));
    if (report->ceilings) {
        SL_TRY(sl_buf_append_str(out, "ceilings  ", err));
        SL_TRY(sl_ceilings_append(report->ceilings, model->isa, out, err));
        SL_TRY(sl_buf_append_char(out, '\n', err));
    }
    SL_TRY(sl_append_doubts(&report->notes, out, err));
    for (size_t i = 0; i < report->n_phases; i++)
        SL_TRY(append_phase(&report->phases[i], out, err));
    SL_TRY(sl_buf_append_char(out, '\n', err));
    return sl_buf_append_str(out, sl_profile_legend(), err);
}

/* ---- JSON ---- */

static void write_row(const sl_profile_phase *phase, const sl_profile_row *row, const char *key,
                      sl_json_out *json)
{
    sl_json_open(json, key, '{');
    sl_json_string(json, "part", row->part);
    if (row->label[0] != '\0')
        sl_json_string(json, "op", row->label);
    if (row->type[0] != '\0')
        sl_json_string(json, "type", row->type);
    sl_json_uint(json, "ops", row->n_ops);
    sl_json_uint(json, "calls", row->calls);
    sl_json_uint(json, "ns", row->wall_ns);
    sl_json_double(json, "share", share_of(row->wall_ns, phase->total.wall_ns));
    sl_json_uint(json, "busy_ns", row->busy_ns);
    sl_json_uint(json, "longest_ns", row->longest_ns);
    sl_json_double(json, "imbalance", sl_profile_imbalance(row, phase->n_threads));
    sl_json_double(json, "waiting", sl_profile_waiting(row, phase->n_threads));
    sl_json_double(json, "bytes", row->bytes);
    sl_json_double(json, "memory_bytes", row->memory_bytes);
    sl_json_double(json, "int8_ops", row->int8_ops);
    sl_json_double(json, "float_ops", row->float_ops);
    sl_json_double(json, "gb_per_s", rate(row->bytes, row->wall_ns));
    sl_json_double(json, "gops", rate(row->int8_ops + row->float_ops, row->wall_ns));
    if (row->limit == SL_LIMIT_NONE) {
        sl_json_null(json, "limit");
        sl_json_null(json, "share_of_limit");
    } else {
        sl_json_string(json, "limit", sl_profile_limit_name(row->limit));
        sl_json_double(json, "share_of_limit", sl_profile_reached(row));
    }
    sl_json_close(json, '}');
}

static void write_phase(const sl_profile_phase *phase, sl_json_out *json)
{
    sl_json_open(json, NULL, '{');
    sl_json_string(json, "phase", phase->name);
    sl_json_uint(json, "tokens", phase->n_tokens);
    sl_json_uint(json, "depth", phase->depth);
    sl_json_uint(json, "wall_ns", phase->wall_ns);
    sl_json_uint(json, "plain_ns", phase->plain_ns);
    sl_json_uint(json, "ops_ns", phase->total.wall_ns);
    sl_json_double(json, "outside", 1 - share_of(phase->total.wall_ns, phase->wall_ns));
    sl_json_double(json, "tokens_per_s", rate(phase->n_tokens * 1e9, phase->wall_ns));
    sl_json_double(json, "tokens_per_s_without_recording",
                   rate(phase->n_tokens * 1e9, phase->plain_ns));
    sl_json_open(json, "ops", '[');
    for (size_t i = 0; i < phase->n_rows; i++)
        write_row(phase, &phase->rows[i], NULL, json);
    sl_json_close(json, ']');
    sl_json_open(json, "parts", '[');
    for (size_t i = 0; i < phase->n_parts; i++)
        write_row(phase, &phase->parts[i], NULL, json);
    sl_json_close(json, ']');
    write_row(phase, &phase->total, "total", json);
    const sl_profile_row *first = sl_profile_fix_first(phase);
    if (first)
        write_row(phase, first, "fix_first", json);
    sl_json_close(json, '}');
}

void sl_profile_write_json(const sl_profile_report *report, sl_json_out *json)
{
    sl_json_open(json, NULL, '{');
    sl_json_program(json, "sluice profile", report->time);
    sl_json_model(json, &report->model, report->random_weights);
    sl_json_machine(json, &report->before, &report->notes);
    sl_json_computing(json, &report->model);
    sl_json_ceilings(json, "ceilings", report->ceilings);
    sl_json_open(json, "phases", '[');
    for (size_t i = 0; i < report->n_phases; i++)
        write_phase(&report->phases[i], json);
    sl_json_close(json, ']');
    sl_json_close(json, '}');
}
