/* The rows of a profile: ops that are the same in every layer put together, with the ceiling that
 * bounds each. */
#ifndef SL_CLI_PROFILE_ROWS_H
#define SL_CLI_PROFILE_ROWS_H

#include "base/err.h"

typedef enum sl_profile_limit {
    SL_LIMIT_NONE, /* nothing that the plan counts, or no ceilings: what is worth folding away */
    SL_LIMIT_MEMORY,
    SL_LIMIT_INT8,
    SL_LIMIT_FLOAT,
    SL_LIMIT_COUNT
} sl_profile_limit;
const char *sl_profile_limit_name(sl_profile_limit limit); /* "-", "memory", "int8", "float" */

typedef struct sl_profile_row {
    const char *part; /* "gated delta" */
    char label[64];   /* "project qkv"; "" in rows of a whole part */
    const char *type; /* "Q8_0", or "" */
    size_t n_ops;     /* of the plan */
    uint64_t calls, wall_ns, busy_ns, longest_ns;
    double bytes; /* read and written, wherever from */
    double memory_bytes, int8_ops, float_ops;
    /* What the work would take at the ceiling that bounds it. Of several rows together: the sum,
     * since ops come one after the other, and the limit that most of it is due to. */
    double least_ns;
    sl_profile_limit limit;
} sl_profile_row;

/* One measured stretch of work: a prompt, or steps of decoding. */
typedef struct sl_profile_phase {
    const char *name; /* "prefill", "decode" */
    uint32_t n_tokens, depth;
    unsigned n_threads;
    uint64_t wall_ns;     /* of the evaluating calls, as their caller sees it */
    uint64_t plain_ns;    /* the same of a time without records */
    sl_profile_row *rows; /* [n_rows], in the order of the plan */
    size_t n_rows;
    sl_profile_row *parts; /* [n_parts] */
    size_t n_parts;
    sl_profile_row total;
} sl_profile_phase;

/* What bounds the ops: ceilings NULL means that nothing is known to. */
typedef struct sl_profile_limits {
    const sl_ceilings *ceilings;
    const char *isa; /* the level that the engine computes at */
} sl_profile_limits;

/* Fills rows, parts and total. Release with sl_profile_phase_free. SL_ERR_MEMORY. */
sl_status sl_profile_phase_build(const sl_profile_op *ops, size_t n,
                                 const sl_profile_limits *limits, sl_profile_phase *phase,
                                 sl_error *err);
void sl_profile_phase_free(sl_profile_phase *phase);

/* The share of its ceiling that a row reached; 0 without one. */
double sl_profile_reached(const sl_profile_row *row);

/* 1 - mean / longest of the threads' times inside of parallel work. */
double sl_profile_imbalance(const sl_profile_row *row, unsigned n_threads);

/* The part of the threads' time that went by without work: waiting for each other, starting and
 * ending of pieces of work, and what one thread does alone. */
double sl_profile_waiting(const sl_profile_row *row, unsigned n_threads);

/* The row with the most time above its bound: time x (1 - share of ceiling). NULL without rows. */
const sl_profile_row *sl_profile_fix_first(const sl_profile_phase *phase);

#endif
