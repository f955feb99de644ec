/* The parts of `sluice bench`: what is measured, with which engines, and what came out. */
#ifndef SL_CLI_BENCH_H
#define SL_CLI_BENCH_H

#include "base/buf.h"
#include "bench_machine.h"
#include "bench_stats.h"
#include "measured.h"

/* ---- what is measured ---- */

typedef enum sl_bench_kind {
    SL_BENCH_LOAD,   /* opening the model */
    SL_BENCH_FIRST,  /* opening it, a prompt of n_tokens, the first token */
    SL_BENCH_PROMPT, /* n_tokens after `depth` others */
    SL_BENCH_DECODE  /* n_tokens steps of n_sequences at `depth` */
} sl_bench_kind;

typedef struct sl_bench_test {
    sl_bench_kind kind;
    uint32_t n_tokens, depth, n_sequences;
} sl_bench_test;

enum { SL_BENCH_NAME_BYTES = 48 };
/* "pp512", "tg128 @4096", "tg128 x8", "load", "first token 512" */
void sl_bench_test_name(const sl_bench_test *test, char name[SL_BENCH_NAME_BYTES]);

enum { SL_BENCH_MAX_LIST = 16, SL_BENCH_MAX_ARMS = 8 };

/* "128,512": whole numbers in [min, max]; "none" is empty. The sentence begins with `option`. */
typedef struct sl_bench_list {
    uint32_t items[SL_BENCH_MAX_LIST];
    size_t n;
} sl_bench_list;
sl_status sl_bench_parse_list(const char *option, const char *text, uint32_t min, uint32_t max,
                              sl_bench_list *out, sl_error *err);

typedef struct sl_bench_limits {
    sl_bench_list prompts, steps, depths, batches;
    uint32_t first;  /* tokens of the prompt before the first token; 0 = not measured */
    uint32_t n_runs; /* of each test */
    uint32_t n_loads;
} sl_bench_limits;

/* All tests, those at smaller depths first. The context they need is below 2^32. Release with
 * sl_free. */
sl_status sl_bench_tests(const sl_bench_limits *limits, sl_bench_test **out, size_t *n,
                         uint32_t *context, sl_error *err);

/* The sequences that are there at a time, without those of a depth; tokens of the k-th. */
size_t sl_bench_sequences(const sl_bench_test *tests, size_t n);
uint32_t sl_bench_context_of(const sl_bench_test *tests, size_t n, size_t k);

/* ---- with which engines ---- */

/* One way to open the model; several are measured in turn, round by round. */
typedef struct sl_bench_arm {
    char name[64]; /* "threads=2"; "" when there is only one */
    sl_engine_params params;
    sl_engine *engine;
    sl_state *base;      /* as many tokens as the depth being measured */
    int32_t first_token; /* what it chose after the prompt; -1 when that was not measured */
} sl_bench_arm;

/* "threads=1,2": the arms of --ab, each with `params` but for the one setting. text NULL: one. */
sl_status sl_bench_arms(const char *text, const sl_engine_params *params,
                        sl_bench_arm arms[SL_BENCH_MAX_ARMS], size_t *n, sl_error *err);

/* ---- what came out ---- */

typedef struct sl_bench_run {
    uint64_t ns;
    double joules; /* NAN when the counters cannot be read */
    double share;  /* of the limit at the ceilings of its round; NAN when they were not measured */
} sl_bench_run;

typedef struct sl_bench_row {
    size_t arm;
    sl_bench_test test;
    sl_run_cost cost;    /* of one run */
    bool limit_is_bytes; /* reading takes longer than computing, at the ceilings */
    sl_bench_run *runs;  /* [n_runs] */
    size_t n_runs;
} sl_bench_row;

/* Ceilings of one number of threads, one entry a round. */
typedef struct sl_bench_ceilings {
    unsigned n_threads;
    size_t arm; /* the first with so many */
    sl_ceilings *rounds;
    size_t n;
} sl_bench_ceilings;

typedef struct sl_bench {
    sl_measured model;
    sl_bench_arm arms[SL_BENCH_MAX_ARMS];
    size_t n_arms;
    sl_bench_row *rows;
    size_t n_rows, capacity;
    bool with_ceilings;
    sl_bench_ceilings ceilings[SL_BENCH_MAX_ARMS];
    size_t n_ceilings;
    uint32_t context;
    sl_machine before, after;
    sl_machine_notes notes;
    double peak_mib;    /* without what measuring ceilings takes */
    bool peak_is_final; /* it cannot be told from that any more */
    sl_energy energy;
    int64_t time; /* seconds since the epoch, of the start */
} sl_bench;

/* ---- measuring (bench_run.c) ---- */

/* Opens the engines and measures: fills the rows. SL_ERR_CANCELLED when the user asked to stop. */
sl_status sl_bench_measure(sl_bench *bench, const sl_bench_limits *limits, sl_error *err);
void sl_bench_close(sl_bench *bench); /* engines and rows */

/* ---- reports (bench_report.c); each returns an exit status ---- */

/* Tokens a second, or milliseconds for those that open the model. */
bool sl_bench_is_rate(const sl_bench_test *test);
double sl_bench_value(const sl_bench_test *test, const sl_bench_run *run);

int sl_bench_table(const sl_bench *bench);
int sl_bench_json(const sl_bench *bench);
int sl_bench_csv(const sl_bench *bench);

/* ---- comparing (bench_compare.c) ---- */

/* Two files of `bench --json`; returns an exit status. */
int sl_bench_compare(const char *path_a, const char *path_b);

/* "1.23x", and whether that is more than noise. higher: larger values are better. */
typedef struct sl_verdict {
    double ratio;     /* of the medians, b to a, so that above 1 is better */
    double low, high; /* the same of the ends of the middle halves */
    double p;
    const char *word; /* "faster", "slower", "within noise", "too few runs" */
} sl_verdict;
sl_verdict sl_bench_judge(const double *a, size_t n_a, const double *b, size_t n_b, bool higher);

#endif
