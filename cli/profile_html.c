/* The page of a profile: one picture (a bar for each phase, one piece an op; a roofline plot with
 * one mark an op) and the tables. No scripts, no fonts, nothing from elsewhere; colours follow the
 * reader's dark or light setting. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/utf8.h"
#include "ceilings.h"
#include "circumstances.h"
#include "common.h"
#include "profile_report.h"

/* The picture's own units. */
enum {
    WIDTH = 1120,
    LEFT = 80, /* of bars and plot */
    RIGHT = 1090,
    BAR_HEIGHT = 34,
    BAR_STEP = 78,
    TOP = 28,
    PLOT_HEIGHT = 420,
    N_COLOURS = 6
};

/* ---- text ---- */

static sl_status append_escaped(sl_buf *out, const char *text, sl_error *err)
{
    for (const char *c = text; *c != '\0'; c++) {
        switch (*c) {
        case '<':
            SL_TRY(sl_buf_append_str(out, "&lt;", err));
            break;
        case '>':
            SL_TRY(sl_buf_append_str(out, "&gt;", err));
            break;
        case '&':
            SL_TRY(sl_buf_append_str(out, "&amp;", err));
            break;
        case '"':
            SL_TRY(sl_buf_append_str(out, "&quot;", err));
            break;
        default:
            SL_TRY(sl_buf_append_char(out, *c, err));
        }
    }
    return SL_OK;
}

/* Parts of the model have the same colour in every phase: by their place among the first's. */
static unsigned colour_of(const sl_profile_report *report, const sl_profile_row *row)
{
    const sl_profile_phase *first = &report->phases[0];
    unsigned i = 0;
    while (i < first->n_parts && strcmp(first->parts[i].part, row->part) != 0)
        i++;
    return i % N_COLOURS;
}

static const char style[] =
    ":root { color-scheme: light dark; --ink: #1c2128; --soft: #667; --line: #d4d8de;\n"
    "  --paper: #fff; --c0: #8a63d2; --c1: #2f7ed8; --c2: #d9822b; --c3: #2e9e5b;\n"
    "  --c4: #c8425a; --c5: #6b7785; }\n"
    "@media (prefers-color-scheme: dark) { :root { --ink: #e3e6ea; --soft: #9aa4b0;\n"
    "  --line: #3a414b; --paper: #15181c; --c0: #b195ee; --c1: #68aaf2; --c2: #f0a95c;\n"
    "  --c3: #5cc98a; --c4: #ee7a8e; --c5: #98a4b3; } }\n"
    "body { font: 15px/1.45 system-ui, sans-serif; color: var(--ink);\n"
    "  background: var(--paper); max-width: 1160px; margin: 2em auto; padding: 0 1em; }\n"
    "h1 { font-size: 1.4em; } h2 { font-size: 1.15em; margin-top: 2em; }\n"
    "svg { width: 100%; height: auto; } svg text { fill: var(--ink); font-size: 13px; }\n"
    "svg .soft { fill: var(--soft); font-size: 12px; } svg .grid { stroke: var(--line); }\n"
    "svg .roof { stroke: var(--ink); stroke-width: 1.6; fill: none; }\n"
    "svg .low { stroke-dasharray: 6 4; } svg .edge { stroke: var(--paper); }\n"
    ".c0 { fill: var(--c0); } .c1 { fill: var(--c1); } .c2 { fill: var(--c2); }\n"
    ".c3 { fill: var(--c3); } .c4 { fill: var(--c4); } .c5 { fill: var(--c5); }\n"
    "table { border-collapse: collapse; width: 100%; font-size: 13.5px; }\n"
    "th, td { text-align: right; padding: 3px 8px; border-bottom: 1px solid var(--line); }\n"
    "th:first-child, td:first-child, .name { text-align: left; }\n"
    "th { color: var(--soft); font-weight: 600; } tr.sum td { font-weight: 600; }\n"
    ".first { border-left: 4px solid var(--c4); padding: .4em 1em; }\n";

/* ---- bars ---- */

static sl_status append_bar(const sl_profile_report *report, const sl_profile_phase *phase,
                            double y, sl_buf *out, sl_error *err)
{
    const double whole = fmax((double)phase->wall_ns, 1), width = RIGHT - LEFT;
    double x = LEFT;
    SL_TRY(sl_buf_printf(out, err,
                         "<text x=\"%d\" y=\"%.1f\">%s: %u tokens at depth %u, %.3f ms</text>\n",
                         LEFT, y - 8, phase->name, phase->n_tokens, phase->depth, whole / 1e6));
    for (size_t i = 0; i < phase->n_rows; i++) {
        const sl_profile_row *row = &phase->rows[i];
        const double share = (double)row->wall_ns / whole;
        SL_TRY(sl_buf_printf(out, err,
                             "<rect class=\"c%u edge\" x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" "
                             "height=\"%d\"><title>",
                             colour_of(report, row), x, y, share * width, BAR_HEIGHT));
        SL_TRY(append_escaped(out, row->part, err));
        SL_TRY(sl_buf_append_str(out, " / ", err));
        SL_TRY(append_escaped(out, row->label, err));
        SL_TRY(sl_buf_printf(out, err, ": %.3f ms, %.1f %%</title></rect>\n",
                             (double)row->wall_ns / 1e6, 100 * share));
        x += share * width;
    }
    return SL_OK;
}

static sl_status append_legend(const sl_profile_report *report, double y, sl_buf *out,
                               sl_error *err)
{
    const sl_profile_phase *first = &report->phases[0];
    double x = LEFT;
    for (size_t i = 0; i < first->n_parts; i++) {
        const char *part = first->parts[i].part;
        SL_TRY(sl_buf_printf(out, err,
                             "<rect class=\"c%u\" x=\"%.1f\" y=\"%.1f\" width=\"12\" "
                             "height=\"12\"/><text x=\"%.1f\" y=\"%.1f\">",
                             colour_of(report, &first->parts[i]), x, y - 11, x + 18, y));
        SL_TRY(append_escaped(out, part, err));
        SL_TRY(sl_buf_append_str(out, "</text>\n", err));
        x += 44 + 7.5 * (double)strlen(part);
    }
    return SL_OK;
}

/* ---- the roofline plot ---- */

/* Both axes in powers of ten: x operations a byte, y billions of operations a second. */
typedef struct plot {
    double x_low, x_high, y_low, y_high;
    double top;
} plot;

static double plot_x(const plot *p, double x)
{
    return LEFT + (log10(x) - p->x_low) / (p->x_high - p->x_low) * (RIGHT - LEFT);
}

static double plot_y(const plot *p, double y)
{
    return p->top + PLOT_HEIGHT -
           (log10(y) - p->y_low) / (p->y_high - p->y_low) * (double)PLOT_HEIGHT;
}

/* What moves no bytes from memory or computes nothing that the plan counts has no place. */
static bool place(const sl_profile_row *row, double *x, double *y)
{
    const double ops = row->int8_ops + row->float_ops;
    if (ops <= 0 || row->memory_bytes <= 0 || row->wall_ns == 0)
        return false;
    *x = ops / row->memory_bytes;
    *y = ops / (double)row->wall_ns;
    return true;
}

static void include(plot *p, double x, double y)
{
    p->x_low = fmin(p->x_low, floor(log10(x)));
    p->x_high = fmax(p->x_high, ceil(log10(x) + 1e-9));
    p->y_low = fmin(p->y_low, floor(log10(y)));
    p->y_high = fmax(p->y_high, ceil(log10(y) + 1e-9));
}

static plot plot_of(const sl_profile_report *report, double top)
{
    plot p = {.x_low = 0, .x_high = 3, .y_low = 1, .y_high = 3, .top = top};
    double x, y;
    for (size_t k = 0; k < report->n_phases; k++) {
        for (size_t i = 0; i < report->phases[k].n_rows; i++) {
            if (place(&report->phases[k].rows[i], &x, &y))
                include(&p, x, y);
        }
    }
    if (report->ceilings) {
        const double roof = fmax(report->ceilings->int8_tops, report->ceilings->amx_tops);
        include(&p, roof * 1e3 / sl_ceilings_read_gbs(report->ceilings), roof * 1e3);
    }
    return p;
}

static sl_status append_grid(const plot *p, sl_buf *out, sl_error *err)
{
    const double bottom = p->top + PLOT_HEIGHT;
    for (double e = p->x_low; e <= p->x_high; e++) {
        const double x = plot_x(p, pow(10, e));
        SL_TRY(sl_buf_printf(out, err,
                             "<line class=\"grid\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" "
                             "y2=\"%.1f\"/><text class=\"soft\" x=\"%.1f\" y=\"%.1f\" "
                             "text-anchor=\"middle\">%g</text>\n",
                             x, x, p->top, bottom, x, bottom + 18, pow(10, e)));
    }
    for (double e = p->y_low; e <= p->y_high; e++) {
        const double y = plot_y(p, pow(10, e));
        SL_TRY(sl_buf_printf(out, err,
                             "<line class=\"grid\" x1=\"%d\" x2=\"%d\" y1=\"%.1f\" "
                             "y2=\"%.1f\"/><text class=\"soft\" x=\"%d\" y=\"%.1f\" "
                             "text-anchor=\"end\">%g</text>\n",
                             LEFT, RIGHT, y, y, LEFT - 8, y + 4, pow(10, e)));
    }
    return sl_buf_printf(out, err,
                         "<text class=\"soft\" x=\"%d\" y=\"%.1f\" text-anchor=\"end\">operations "
                         "a byte from memory</text>\n<text class=\"soft\" x=\"%d\" "
                         "y=\"%.1f\">GOPS</text>\n",
                         RIGHT, bottom + 36, LEFT - 60, p->top - 10);
}

/* The slope of the bandwidth up to one arithmetic ceiling, and that ceiling. */
static sl_status append_roof(const plot *p, const char *name, double gbs, double gops,
                             const char *kind, sl_buf *out, sl_error *err)
{
    if (gops <= 0)
        return SL_OK;
    const double low_x = fmax(pow(10, p->x_low), pow(10, p->y_low) / gbs);
    const double ridge = gops / gbs, right = pow(10, p->x_high);
    SL_TRY(sl_buf_printf(out, err,
                         "<polyline class=\"roof %s\" points=\"%.1f,%.1f %.1f,%.1f %.1f,%.1f\"/>\n",
                         kind, plot_x(p, low_x), plot_y(p, low_x * gbs), plot_x(p, ridge),
                         plot_y(p, gops), plot_x(p, right), plot_y(p, gops)));
    return sl_buf_printf(out, err,
                         "<text class=\"soft\" x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%s %.0f "
                         "GOPS</text>\n",
                         RIGHT - 6, plot_y(p, gops) - 6, name, gops);
}

static sl_status append_mark(const sl_profile_report *report, const sl_profile_phase *phase,
                             const sl_profile_row *row, const plot *p, sl_buf *out, sl_error *err)
{
    double x, y;
    if (!place(row, &x, &y))
        return SL_OK;
    const double share = (double)row->wall_ns / (double)phase->wall_ns;
    const double r = 3.5 + 22 * sqrt(share), cx = plot_x(p, x), cy = plot_y(p, y);
    /* Circles for the first phase, squares standing on a corner for the second. */
    if (phase == &report->phases[0])
        SL_TRY(sl_buf_printf(out, err,
                             "<circle class=\"c%u edge\" fill-opacity=\"0.75\" cx=\"%.1f\" "
                             "cy=\"%.1f\" r=\"%.1f\">",
                             colour_of(report, row), cx, cy, r));
    else
        SL_TRY(sl_buf_printf(out, err,
                             "<polygon class=\"c%u edge\" fill-opacity=\"0.75\" points=\"%.1f,%.1f "
                             "%.1f,%.1f %.1f,%.1f %.1f,%.1f\">",
                             colour_of(report, row), cx, cy - r, cx + r, cy, cx, cy + r, cx - r,
                             cy));
    SL_TRY(sl_buf_printf(out, err, "<title>%s: ", phase->name));
    SL_TRY(append_escaped(out, row->part, err));
    SL_TRY(sl_buf_append_str(out, " / ", err));
    SL_TRY(append_escaped(out, row->label, err));
    SL_TRY(sl_buf_printf(out, err, ", %.1f GOPS, %.2f operations a byte", y, x));
    if (row->limit != SL_LIMIT_NONE)
        SL_TRY(sl_buf_printf(out, err, ", %.1f %% of the ceiling (%s)",
                             100 * sl_profile_reached(row), sl_profile_limit_name(row->limit)));
    return sl_buf_printf(out, err, "</title></%s>\n",
                         phase == &report->phases[0] ? "circle" : "polygon");
}

static sl_status append_plot(const sl_profile_report *report, double top, sl_buf *out,
                             sl_error *err)
{
    const plot p = plot_of(report, top);
    const sl_ceilings *ceilings = report->ceilings;
    SL_TRY(append_grid(&p, out, err));
    if (ceilings) {
        const double gbs = sl_ceilings_read_gbs(ceilings);
        SL_TRY(append_roof(&p, "float", gbs, ceilings->f32_tflops * 1e3, "low", out, err));
        SL_TRY(append_roof(&p, "int8", gbs, ceilings->int8_tops * 1e3, "", out, err));
        SL_TRY(append_roof(&p, "int8 on tiles", gbs, ceilings->amx_tops * 1e3, "", out, err));
        const double x = pow(10, (p.x_low + log10(ceilings->int8_tops * 1e3 / gbs)) / 2);
        if (x * gbs > pow(10, p.y_low))
            SL_TRY(sl_buf_printf(out, err,
                                 "<text class=\"soft\" x=\"%.1f\" y=\"%.1f\" "
                                 "text-anchor=\"end\">%.1f GB/s</text>\n",
                                 plot_x(&p, x) - 8, plot_y(&p, x * gbs) - 4, gbs));
    }
    for (size_t k = 0; k < report->n_phases; k++) {
        for (size_t i = 0; i < report->phases[k].n_rows; i++)
            SL_TRY(
                append_mark(report, &report->phases[k], &report->phases[k].rows[i], &p, out, err));
    }
    return SL_OK;
}

static sl_status append_picture(const sl_profile_report *report, sl_buf *out, sl_error *err)
{
    const double legend = TOP + (double)report->n_phases * BAR_STEP;
    const double plot_top = legend + 56;
    SL_TRY(sl_buf_printf(out, err,
                         "<svg viewBox=\"0 0 %d %.0f\" role=\"img\" aria-label=\"time by op, and "
                         "every op against the ceilings of the machine\">\n",
                         WIDTH, plot_top + PLOT_HEIGHT + 48));
    for (size_t k = 0; k < report->n_phases; k++)
        SL_TRY(append_bar(report, &report->phases[k], TOP + (double)k * BAR_STEP, out, err));
    SL_TRY(append_legend(report, legend, out, err));
    SL_TRY(append_plot(report, plot_top, out, err));
    return sl_buf_append_str(out, "</svg>\n", err);
}

/* ---- tables ---- */

static sl_status append_cells(const sl_profile_phase *phase, const sl_profile_row *row, bool sum,
                              sl_buf *out, sl_error *err)
{
    const double ns = (double)row->wall_ns, ops = row->int8_ops + row->float_ops;
    char reached[16] = "";
    if (row->limit != SL_LIMIT_NONE)
        snprintf(reached, sizeof reached, "%.1f %%", 100 * sl_profile_reached(row));
    SL_TRY(sl_buf_append_str(out, sum ? "<tr class=\"sum\"><td>" : "<tr><td>", err));
    SL_TRY(append_escaped(out, row->part, err));
    SL_TRY(sl_buf_append_str(out, "</td><td class=\"name\">", err));
    SL_TRY(append_escaped(out, row->label, err));
    SL_TRY(sl_buf_append_str(out, "</td><td class=\"name\">", err));
    SL_TRY(append_escaped(out, row->type, err));
    return sl_buf_printf(
        out, err,
        "</td><td>%llu</td><td>%.3f</td><td>%.1f %%</td><td>%.2f</td><td>%.3f</td>"
        "<td>%.2f</td><td>%.1f</td><td>%s</td><td>%s</td><td>%.1f %%</td><td>%.1f %%</td></tr>\n",
        (unsigned long long)row->calls, ns / 1e6,
        phase->total.wall_ns > 0 ? 100 * ns / (double)phase->total.wall_ns : 0, row->bytes / 1e6,
        ops / 1e9, ns > 0 ? row->bytes / ns : 0, ns > 0 ? ops / ns : 0,
        sl_profile_limit_name(row->limit), reached,
        100 * sl_profile_imbalance(row, phase->n_threads),
        100 * sl_profile_waiting(row, phase->n_threads));
}

static sl_status append_table(const sl_profile_phase *phase, sl_buf *out, sl_error *err)
{
    const double wall = fmax((double)phase->wall_ns, 1);
    SL_TRY(sl_buf_printf(out, err,
                         "<h2>%s of %u tokens at depth %u</h2>\n<p>%.3f ms, %.1f tokens/s, "
                         "without recording %.1f; %.2f %% of it outside of the ops.</p>\n<p "
                         "class=\"first\">What to fix "
                         "first: ",
                         phase->name, phase->n_tokens, phase->depth, wall / 1e6,
                         phase->n_tokens * 1e9 / wall,
                         phase->n_tokens * 1e9 / fmax((double)phase->plain_ns, 1),
                         100 * (1 - (double)phase->total.wall_ns / wall)));
    sl_buf advice;
    sl_buf_init(&advice, SL_MEM_GENERAL, 4096);
    sl_status status = sl_profile_append_advice(phase, &advice, err);
    if (status == SL_OK)
        status = append_escaped(out, advice.data, err);
    sl_buf_free(&advice);
    SL_TRY(status);
    SL_TRY(sl_buf_append_str(out,
                             ".</p>\n<table>\n<tr><th>part</th><th class=\"name\">op</th>"
                             "<th class=\"name\">type</th><th>calls</th><th>ms</th><th>share</th>"
                             "<th>MB</th><th>Gop</th><th>GB/s</th><th>GOPS</th><th>limit</th>"
                             "<th>reached</th><th>uneven</th><th>waiting</th></tr>\n",
                             err));
    for (size_t i = 0; i < phase->n_rows; i++)
        SL_TRY(append_cells(phase, &phase->rows[i], false, out, err));
    for (size_t i = 0; i < phase->n_parts; i++)
        SL_TRY(append_cells(phase, &phase->parts[i], true, out, err));
    SL_TRY(append_cells(phase, &phase->total, true, out, err));
    return sl_buf_append_str(out, "</table>\n", err);
}

sl_status sl_profile_append_html(const sl_profile_report *report, sl_buf *out, sl_error *err)
{
    SL_TRY(sl_buf_printf(out, err,
                         "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
                         "<meta name=\"viewport\" content=\"width=device-width\">\n"
                         "<title>sluice profile</title>\n<style>\n%s</style>\n</head>\n<body>\n"
                         "<h1>",
                         style));
    const sl_model_info *model = &report->model;
    char text[SL_COMPUTES_ON_BYTES], path[SL_SHOWN_BYTES], when[SL_TIME_BYTES];
    SL_TRY(append_escaped(out, sl_utf8_show(model->path, strlen(model->path), path, sizeof path),
                          err));
    SL_TRY(sl_buf_printf(out, err, "</h1>\n<p>%s, %s KV. ", model->main_type,
                         model->kv_f32 ? "f32" : "f16"));
    SL_TRY(append_escaped(out, report->before.cpu, err));
    SL_TRY(sl_buf_printf(out, err, "%s%s, sluice %s, %s.", *report->before.cpu ? "; " : "",
                         sl_common_computes_on(model, text), sl_version(),
                         sl_time_shown(report->time, when)));
    if (report->ceilings) {
        SL_TRY(sl_buf_append_str(out, " Ceilings of the same minute: ", err));
        SL_TRY(sl_ceilings_append(report->ceilings, model->isa, out, err));
        SL_TRY(sl_buf_append_char(out, '.', err));
    }
    for (size_t i = 0; i < report->notes.n; i++)
        SL_TRY(sl_buf_printf(out, err, " Doubtful: %s.", report->notes.texts[i]));
    SL_TRY(sl_buf_append_str(out,
                             " Bars: time by op. Below: every op against the ceilings, with areas "
                             "as the shares of time; circles are the first bar, squares the "
                             "second.</p>\n",
                             err));
    SL_TRY(append_picture(report, out, err));
    for (size_t k = 0; k < report->n_phases; k++)
        SL_TRY(append_table(&report->phases[k], out, err));
    SL_TRY(sl_buf_printf(out, err, "<p>%s</p>\n", sl_profile_legend()));
    return sl_buf_append_str(out, "</body>\n</html>\n", err);
}
