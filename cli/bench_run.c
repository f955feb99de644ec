/* Measures: opens the engines, runs every test in every arm round by round, and keeps the times.
 *
 * Arms take turns within each round, so that a machine that gets slower slows all of them. What a
 * test needs beforehand (an empty or a filled state) is made outside of the time measured; the
 * first run of each test warms caches and pages and is not kept. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "bench.h"
#include "ceilings.h"
#include "interrupt.h"
#include "out.h"

enum { WARM_UP_STEPS = 8 };

/* The states and buffers that runs of one arm need. */
typedef struct bench_states {
    sl_state **states;
    size_t n;
    uint32_t vocab;
    int32_t *tokens; /* [context] */
} bench_states;

typedef struct runner {
    sl_bench *bench;
    const sl_bench_limits *limits;
    const sl_bench_test *tests;
    size_t n_tests;
    bench_states of[SL_BENCH_MAX_ARMS];
    sl_progress progress;
    size_t n_done, n_all;
} runner;

static bool stop_asked(void *context, size_t done, size_t total)
{
    (void)context;
    (void)done;
    (void)total;
    return sl_interrupted();
}

static const sl_eval_options stoppable = {.progress = stop_asked};

static void step_done(runner *r)
{
    sl_progress_update(&r->progress, ++r->n_done, r->n_all);
}

/* ---- rows ---- */

static sl_status add_row(runner *r, size_t arm, const sl_bench_test *test, sl_error *err)
{
    sl_bench *bench = r->bench;
    if (bench->n_rows == bench->capacity) {
        const size_t capacity = bench->capacity ? 2 * bench->capacity : 64;
        sl_bench_row *rows = sl_realloc(SL_MEM_GENERAL, bench->rows, capacity * sizeof *rows);
        if (!rows)
            return sl_fail(err, SL_ERR_MEMORY, "out of memory for results");
        bench->rows = rows;
        bench->capacity = capacity;
    }
    sl_bench_row *row = &bench->rows[bench->n_rows];
    *row = (sl_bench_row){.arm = arm, .test = *test};
    row->runs = sl_alloc_array(SL_MEM_GENERAL, SL_MAX_RUNS, sizeof *row->runs);
    if (!row->runs)
        return sl_fail(err, SL_ERR_MEMORY, "out of memory for results");
    bench->n_rows++;
    return SL_OK;
}

static sl_bench_row *row_of(const runner *r, size_t arm, const sl_bench_test *test)
{
    for (size_t i = 0; i < r->bench->n_rows; i++) {
        sl_bench_row *row = &r->bench->rows[i];
        if (row->arm == arm && memcmp(&row->test, test, sizeof *test) == 0)
            return row;
    }
    return NULL;
}

/* ---- opening ---- */

/* Ids below n that follow no pattern. */
static void fill_tokens(int32_t *tokens, size_t n, uint32_t vocab)
{
    uint64_t state = 1;
    for (size_t i = 0; i < n; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        tokens[i] = (int32_t)((state >> 33) % vocab);
    }
}

static sl_status make_states(runner *r, size_t a, sl_error *err)
{
    bench_states *s = &r->of[a];
    const size_t n = sl_bench_sequences(r->tests, r->n_tests);
    s->vocab = sl_engine_vocab(r->bench->arms[a].engine);
    s->states = sl_alloc_array(SL_MEM_GENERAL, n, sizeof *s->states);
    s->tokens = sl_alloc_array(SL_MEM_GENERAL, r->bench->context, sizeof *s->tokens);
    if (!s->states || !s->tokens)
        return sl_fail(err, SL_ERR_MEMORY, "out of memory for %zu sequences", n);
    fill_tokens(s->tokens, r->bench->context, s->vocab);
    for (; s->n < n; s->n++)
        SL_TRY(sl_state_create(r->bench->arms[a].engine,
                               sl_bench_context_of(r->tests, r->n_tests, s->n), &s->states[s->n],
                               err));
    return SL_OK;
}

static void free_states(bench_states *s)
{
    for (size_t i = 0; i < s->n; i++)
        sl_state_free(s->states[i]);
    sl_free(s->states);
    sl_free(s->tokens);
    *s = (bench_states){0};
}

/* ---- one run ---- */

static sl_status eval_prompt(const runner *r, size_t a, sl_state *state, uint32_t from, uint32_t n,
                             sl_error *err)
{
    const bench_states *s = &r->of[a];
    const sl_eval_item item = {
        .state = state, .tokens = s->tokens + from, .n_tokens = n, .keep_logits = true};
    return sl_engine_eval(r->bench->arms[a].engine, &item, 1, &stoppable, err);
}

/* n steps of the first n_sequences of `states`. */
static sl_status eval_steps(const runner *r, size_t a, sl_state *const *states,
                            uint32_t n_sequences, uint32_t n, sl_error *err)
{
    const bench_states *s = &r->of[a];
    sl_eval_item *items = sl_alloc_array(SL_MEM_GENERAL, n_sequences, sizeof *items);
    if (!items)
        return sl_fail(err, SL_ERR_MEMORY, "out of memory for a batch");
    sl_status status = SL_OK;
    for (uint32_t step = 0; step < n && status == SL_OK; step++) {
        for (uint32_t k = 0; k < n_sequences; k++)
            items[k] = (sl_eval_item){.state = states[k],
                                      .tokens = &s->tokens[(step + k) % r->bench->context],
                                      .n_tokens = 1,
                                      .keep_logits = true};
        status = sl_engine_eval(r->bench->arms[a].engine, items, n_sequences, &stoppable, err);
    }
    sl_free(items);
    return status;
}

/* The token a greedy choice takes. */
static int32_t likeliest(const float *logits, uint32_t n)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++) {
        if (logits[i] > logits[best])
            best = i;
    }
    return (int32_t)best;
}

static double seconds_of_bytes(const sl_run_cost *cost, const sl_ceilings *c)
{
    return (cost->weight_bytes + cost->state_bytes) / (sl_ceilings_read_gbs(c) * 1e9);
}

static double seconds_of_work(const sl_run_cost *cost, const sl_ceilings *c, const char *isa)
{
    const double int8 = sl_ceilings_int8_tops(c, isa);
    return 2.0 * cost->int8_macs / (int8 * 1e12) + cost->float_flops / (c->f32_tflops * 1e12);
}

static void keep_run(const runner *r, sl_bench_row *row, uint64_t ns, double joules)
{
    const sl_bench *bench = r->bench;
    sl_bench_run *run = &row->runs[row->n_runs++];
    *run = (sl_bench_run){.ns = ns, .joules = bench->energy.n > 0 ? joules : NAN, .share = NAN};
    if (bench->n_ceilings == 0 || row->cost.weight_bytes <= 0)
        return;
    sl_model_info info;
    sl_engine_model_info(bench->arms[row->arm].engine, &info);
    const sl_bench_ceilings *c = bench->ceilings;
    while (c->n_threads != info.n_threads)
        c++;
    const sl_ceilings *now = &c->rounds[c->n - 1];
    const double bytes = seconds_of_bytes(&row->cost, now);
    const double work = seconds_of_work(&row->cost, now, info.isa);
    row->limit_is_bytes = bytes > work;
    run->share = (bytes > work ? bytes : work) / ((double)ns / 1e9);
}

/* What the test's state has to be like beforehand. *state is to be freed when it is not the
 * arm's. */
static sl_status begin(const runner *r, size_t a, const sl_bench_test *test, sl_state **state,
                       sl_error *err)
{
    const bench_states *s = &r->of[a];
    *state = s->states[0];
    if (test->depth > 0)
        return sl_state_fork(r->bench->arms[a].base, state, err);
    for (uint32_t k = 0; k < test->n_sequences; k++)
        sl_state_reset(s->states[k]);
    return SL_OK;
}

/* row NULL: a run to warm up. */
static sl_status run_once(runner *r, size_t a, const sl_bench_test *test, sl_bench_row *row,
                          sl_error *err)
{
    sl_state *state;
    SL_TRY(begin(r, a, test, &state, err));
    const bool forked = test->depth > 0;
    sl_state *const *states = forked ? &state : r->of[a].states;
    uint32_t n = test->n_tokens;
    if (!row && test->kind == SL_BENCH_DECODE && n > WARM_UP_STEPS)
        n = WARM_UP_STEPS;
    const double joules = sl_energy_joules(&r->bench->energy);
    const uint64_t start = sl_clock_ns();
    const sl_status status = test->kind == SL_BENCH_PROMPT
                                 ? eval_prompt(r, a, state, test->depth, n, err)
                                 : eval_steps(r, a, states, test->n_sequences, n, err);
    const uint64_t ns = sl_clock_ns() - start;
    if (forked)
        sl_state_free(state);
    if (status == SL_OK && row)
        keep_run(r, row, ns, sl_energy_joules(&r->bench->energy) - joules);
    step_done(r);
    return status;
}

/* ---- opening, measured ---- */

static sl_status open_once(runner *r, size_t a, bool keep, sl_error *err)
{
    sl_bench_arm *arm = &r->bench->arms[a];
    const sl_bench_test *load = &r->tests[0], *first = &r->tests[1];
    const uint64_t start = sl_clock_ns();
    SL_TRY(sl_measured_open(&r->bench->model, &arm->params, &arm->engine, err));
    keep_run(r, row_of(r, a, load), sl_clock_ns() - start, 0);
    const bool with_first = r->n_tests > 1 && first->kind == SL_BENCH_FIRST;
    if (with_first || keep)
        SL_TRY(make_states(r, a, err));
    if (with_first) {
        SL_TRY(eval_prompt(r, a, r->of[a].states[0], 0, first->n_tokens, err));
        const float *logits;
        SL_TRY(sl_state_logits(r->of[a].states[0], &logits, err));
        arm->first_token = likeliest(logits, r->of[a].vocab);
        keep_run(r, row_of(r, a, first), sl_clock_ns() - start, 0);
    }
    step_done(r);
    if (keep)
        return SL_OK;
    free_states(&r->of[a]);
    sl_engine_close(arm->engine);
    arm->engine = NULL;
    return SL_OK;
}

static sl_status open_arms(runner *r, sl_error *err)
{
    for (size_t a = 0; a < r->bench->n_arms; a++) {
        for (size_t i = 0; i < r->n_tests && r->tests[i].kind <= SL_BENCH_FIRST; i++)
            SL_TRY(add_row(r, a, &r->tests[i], err));
    }
    for (uint32_t i = 0; i < r->limits->n_loads; i++) {
        for (size_t a = 0; a < r->bench->n_arms; a++)
            SL_TRY(open_once(r, a, i + 1 == r->limits->n_loads, err));
    }
    return SL_OK;
}

/* ---- ceilings ---- */

/* One entry for each number of threads among the arms. */
static sl_status list_ceilings(runner *r, size_t n_rounds, sl_error *err)
{
    sl_bench *bench = r->bench;
    for (size_t a = 0; a < bench->n_arms && bench->with_ceilings; a++) {
        sl_model_info info;
        size_t i = 0;
        sl_engine_model_info(bench->arms[a].engine, &info);
        while (i < bench->n_ceilings && bench->ceilings[i].n_threads != info.n_threads)
            i++;
        if (i < bench->n_ceilings)
            continue;
        sl_bench_ceilings *c = &bench->ceilings[bench->n_ceilings];
        c->rounds = sl_alloc_array(SL_MEM_GENERAL, n_rounds, sizeof *c->rounds);
        if (!c->rounds)
            return sl_fail(err, SL_ERR_MEMORY, "out of memory for results");
        c->n_threads = info.n_threads;
        c->arm = a;
        bench->n_ceilings++;
    }
    return SL_OK;
}

static void note_peak(sl_bench *bench)
{
    if (!bench->peak_is_final)
        bench->peak_mib = fmax(bench->peak_mib, sl_peak_memory_mib());
}

static sl_status measure_ceilings(sl_bench *bench, sl_error *err)
{
    if (bench->n_ceilings == 0)
        return SL_OK;
    note_peak(bench);
    for (size_t i = 0; i < bench->n_ceilings; i++) {
        sl_bench_ceilings *c = &bench->ceilings[i];
        SL_TRY(sl_engine_measure_ceilings(bench->arms[c->arm].engine, &c->rounds[c->n], err));
        c->n++;
    }
    bench->peak_is_final = bench->peak_is_final || !sl_peak_memory_forget();
    return SL_OK;
}

/* ---- all tests ---- */

static sl_status add_costs(const sl_engine *engine, sl_bench_row *row, sl_error *err)
{
    const sl_bench_test *test = &row->test;
    const bool prompt = test->kind == SL_BENCH_PROMPT;
    sl_run_shape run = {.n_sequences = test->n_sequences,
                        .n_rows = prompt ? test->n_tokens : 1,
                        .n_logits = test->n_sequences};
    const uint32_t n_steps = prompt ? 1 : test->n_tokens;
    for (uint32_t i = 0; i < n_steps; i++) {
        sl_run_cost cost;
        run.pos = test->depth + i;
        SL_TRY(sl_engine_run_cost(engine, &run, &cost, err));
        row->cost.weight_bytes += cost.weight_bytes;
        row->cost.state_bytes += cost.state_bytes;
        row->cost.int8_macs += cost.int8_macs;
        row->cost.float_flops += cost.float_flops;
    }
    return SL_OK;
}

/* The base state of every arm with `depth` tokens, from the one before. */
static sl_status deepen(runner *r, uint32_t depth, sl_error *err)
{
    for (size_t a = 0; a < r->bench->n_arms && depth > 0; a++) {
        sl_bench_arm *arm = &r->bench->arms[a];
        if (!arm->base)
            SL_TRY(sl_state_create(arm->engine, r->bench->context, &arm->base, err));
        const uint32_t have = sl_state_length(arm->base);
        SL_TRY(eval_prompt(r, a, arm->base, have, depth - have, err));
    }
    return SL_OK;
}

/* The tests of one depth, [first, last). */
static sl_status run_depth(runner *r, size_t first, size_t last, sl_error *err)
{
    sl_bench *bench = r->bench;
    SL_TRY(deepen(r, r->tests[first].depth, err));
    for (size_t i = first; i < last; i++) {
        for (size_t a = 0; a < bench->n_arms; a++) {
            SL_TRY(add_row(r, a, &r->tests[i], err));
            SL_TRY(add_costs(bench->arms[a].engine, &bench->rows[bench->n_rows - 1], err));
            SL_TRY(run_once(r, a, &r->tests[i], NULL, err));
        }
    }
    for (uint32_t round = 0; round < r->limits->n_runs; round++) {
        SL_TRY(measure_ceilings(bench, err));
        for (size_t i = first; i < last; i++) {
            for (size_t a = 0; a < bench->n_arms; a++)
                SL_TRY(run_once(r, a, &r->tests[i], row_of(r, a, &r->tests[i]), err));
        }
    }
    return SL_OK;
}

static sl_status run_all(runner *r, sl_error *err)
{
    size_t first = 0;
    SL_TRY(open_arms(r, err));
    SL_TRY(list_ceilings(r, r->limits->n_runs * r->n_tests, err));
    while (first < r->n_tests && r->tests[first].kind <= SL_BENCH_FIRST)
        first++;
    while (first < r->n_tests) {
        size_t last = first + 1;
        while (last < r->n_tests && r->tests[last].depth == r->tests[first].depth)
            last++;
        SL_TRY(run_depth(r, first, last, err));
        first = last;
    }
    return SL_OK;
}

sl_status sl_bench_measure(sl_bench *bench, const sl_bench_limits *limits, sl_error *err)
{
    runner r = {
        .bench = bench, .limits = limits, .progress = {.label = "measuring", .unit = "runs"}};
    sl_bench_test *tests;
    uint32_t context;
    SL_TRY(sl_bench_tests(limits, &tests, &r.n_tests, &context, err));
    r.tests = tests;
    r.n_all = bench->n_arms * (limits->n_loads + r.n_tests * (limits->n_runs + 1));
    sl_energy_open("", &bench->energy);
    const sl_status status = run_all(&r, err);
    note_peak(bench);
    sl_machine_look("", &bench->after);
    sl_progress_clear(&r.progress);
    for (size_t a = 0; a < bench->n_arms; a++)
        free_states(&r.of[a]);
    sl_free(tests);
    return status;
}

void sl_bench_close(sl_bench *bench)
{
    for (size_t a = 0; a < bench->n_arms; a++) {
        sl_state_free(bench->arms[a].base);
        sl_engine_close(bench->arms[a].engine);
    }
    for (size_t i = 0; i < bench->n_rows; i++)
        sl_free(bench->rows[i].runs);
    for (size_t i = 0; i < bench->n_ceilings; i++)
        sl_free(bench->ceilings[i].rounds);
    sl_free(bench->rows);
}
