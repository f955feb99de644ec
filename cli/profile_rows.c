#include "profile_rows.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "ceilings.h"

static void add_op(const sl_profile_op *op, sl_profile_row *row)
{
    row->n_ops++;
    row->calls += op->calls;
    row->wall_ns += op->wall_ns;
    row->busy_ns += op->busy_ns;
    row->longest_ns += op->longest_ns;
    row->bytes += op->weight_bytes + op->activation_bytes + op->state_bytes;
    row->memory_bytes += op->memory_bytes;
    row->int8_ops += op->int8_ops;
    row->float_ops += op->float_ops;
}

/* The row with these names among rows[0..*n), a new one if need be. */
static sl_profile_row *find_row(sl_profile_row *rows, size_t *n, const char *part,
                                const char *label, const char *type)
{
    for (size_t i = 0; i < *n; i++) {
        if (strcmp(rows[i].part, part) == 0 && strcmp(rows[i].label, label) == 0 &&
            strcmp(rows[i].type, type) == 0)
            return &rows[i];
    }
    sl_profile_row *row = &rows[(*n)++];
    *row = (sl_profile_row){.part = part, .type = type};
    snprintf(row->label, sizeof row->label, "%s", label);
    return row;
}

/* ---- ceilings ---- */

const char *sl_profile_limit_name(sl_profile_limit limit)
{
    static const char *const names[SL_LIMIT_COUNT] = {"-", "memory", "int8", "float"};
    return names[limit];
}

static void find_bound(const sl_profile_limits *limits, sl_profile_row *row)
{
    const sl_ceilings *ceilings = limits->ceilings;
    if (!ceilings)
        return;
    const double int8_tops = sl_ceilings_int8_tops(ceilings, limits->isa);
    const double memory_ns = row->memory_bytes / sl_ceilings_read_gbs(ceilings);
    const double int8_ns = row->int8_ops / int8_tops / 1e3;
    const double float_ns = row->float_ops / ceilings->f32_tflops / 1e3;
    /* Products of both kinds compete for the same units; reading goes on beside them. */
    const double compute_ns = int8_ns + float_ns;
    if (memory_ns <= 0 && compute_ns <= 0)
        return;
    if (memory_ns >= compute_ns)
        row->limit = SL_LIMIT_MEMORY;
    else
        row->limit = int8_ns >= float_ns ? SL_LIMIT_INT8 : SL_LIMIT_FLOAT;
    row->least_ns = memory_ns >= compute_ns ? memory_ns : compute_ns;
}

/* sum is all rows of its part, or all rows. */
static void sum_bounds(const sl_profile_phase *phase, const char *part, sl_profile_row *sum)
{
    double by_limit[SL_LIMIT_COUNT] = {0};
    for (size_t i = 0; i < phase->n_rows; i++) {
        const sl_profile_row *row = &phase->rows[i];
        if (part && strcmp(row->part, part) != 0)
            continue;
        sum->least_ns += row->least_ns;
        by_limit[row->limit] += row->least_ns;
    }
    for (int limit = 0; limit < SL_LIMIT_COUNT; limit++) {
        if (by_limit[limit] > by_limit[sum->limit])
            sum->limit = (sl_profile_limit)limit;
    }
}

double sl_profile_reached(const sl_profile_row *row)
{
    return row->wall_ns > 0 ? row->least_ns / (double)row->wall_ns : 0;
}

/* ---- phases ---- */

sl_status sl_profile_phase_build(const sl_profile_op *ops, size_t n,
                                 const sl_profile_limits *limits, sl_profile_phase *phase,
                                 sl_error *err)
{
    phase->rows = sl_alloc_array(SL_MEM_GENERAL, n, sizeof *phase->rows);
    phase->parts = sl_alloc_array(SL_MEM_GENERAL, n, sizeof *phase->parts);
    phase->n_rows = phase->n_parts = 0;
    phase->total = (sl_profile_row){.part = "all ops", .type = ""};
    if (!phase->rows || !phase->parts) {
        sl_profile_phase_free(phase);
        return sl_fail(err, SL_ERR_MEMORY, "out of memory for the rows of a profile");
    }
    for (size_t i = 0; i < n; i++) {
        char label[64];
        const bool named = ops[i].name[0] != '\0';
        snprintf(label, sizeof label, "%s%s%s", ops[i].op, named ? " " : "", ops[i].name);
        add_op(&ops[i], find_row(phase->rows, &phase->n_rows, ops[i].part, label, ops[i].type));
        add_op(&ops[i], find_row(phase->parts, &phase->n_parts, ops[i].part, "", ""));
        add_op(&ops[i], &phase->total);
    }
    for (size_t i = 0; i < phase->n_rows; i++)
        find_bound(limits, &phase->rows[i]);
    for (size_t i = 0; i < phase->n_parts; i++)
        sum_bounds(phase, phase->parts[i].part, &phase->parts[i]);
    sum_bounds(phase, NULL, &phase->total);
    return SL_OK;
}

void sl_profile_phase_free(sl_profile_phase *phase)
{
    sl_free(phase->rows);
    sl_free(phase->parts);
    phase->rows = phase->parts = NULL;
}

double sl_profile_imbalance(const sl_profile_row *row, unsigned n_threads)
{
    if (row->longest_ns == 0)
        return 0;
    return 1 - (double)row->busy_ns / n_threads / (double)row->longest_ns;
}

double sl_profile_waiting(const sl_profile_row *row, unsigned n_threads)
{
    if (row->wall_ns == 0)
        return 0;
    return 1 - (double)row->busy_ns / n_threads / (double)row->wall_ns;
}

const sl_profile_row *sl_profile_fix_first(const sl_profile_phase *phase)
{
    const sl_profile_row *worst = NULL;
    double most = -1;
    for (size_t i = 0; i < phase->n_rows; i++) {
        const sl_profile_row *row = &phase->rows[i];
        const double above = (double)row->wall_ns - row->least_ns;
        if (above > most) {
            most = above;
            worst = row;
        }
    }
    /* All of it faster than memory: what takes longest. */
    for (size_t i = 0; i < phase->n_rows && most < 0; i++) {
        if (!worst || phase->rows[i].wall_ns > worst->wall_ns)
            worst = &phase->rows[i];
    }
    return worst;
}
