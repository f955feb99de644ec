/* What operations on states cost, beside a decode step of the same model. Figures, not assertions:
 * medians of repeated runs. usage: bench/state_ops MODEL [TOKENS]
 *
 * Prints: decode step; fork, and fork with its first step (which copies the partly filled blocks);
 * bytes of 100 forks; what rewinds inside the window and further back recompute; saving and
 * loading; bytes of checkpoints along a chat of 200 turns. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "engine/engine.h"

enum { REPEATS = 41, FORKS = 100, TURNS = 200, ASKED = 6, ANSWERED = 8, SAVES = 9 };

static sl_error err;

static void must(sl_status status)
{
    if (status == SL_OK)
        return;
    fprintf(stderr, "state_ops: %s\n", err.message);
    exit(1);
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *samples, size_t n)
{
    qsort(samples, n, sizeof *samples, compare);
    return samples[n / 2];
}

static void append(sl_engine *engine, sl_state *state, uint32_t n)
{
    static int32_t tokens[4096];
    for (uint32_t i = 0; i < n; i++)
        tokens[i] = (int32_t)((sl_state_length(state) + i) * 7919u % 500);
    sl_eval_item item = {.state = state, .tokens = tokens, .n_tokens = n};
    must(sl_engine_eval(engine, &item, 1, NULL, &err));
}

static double ms(uint64_t begin)
{
    return (double)(sl_clock_ns() - begin) / 1e6;
}

static void measure_steps(sl_engine *engine, sl_state *state)
{
    double step[REPEATS], fork[REPEATS], first[REPEATS];
    for (size_t i = 0; i < REPEATS; i++) {
        sl_state *copy;
        uint64_t begin = sl_clock_ns();
        must(sl_state_fork(state, &copy, &err));
        fork[i] = ms(begin);
        begin = sl_clock_ns();
        append(engine, copy, 1);
        first[i] = ms(begin);
        begin = sl_clock_ns();
        append(engine, copy, 1);
        step[i] = ms(begin);
        sl_state_free(copy);
    }
    double s = median(step, REPEATS), f = median(fork, REPEATS);
    printf("decode step at %u tokens       %9.4f ms\n", sl_state_length(state), s);
    printf("fork                           %9.4f ms   %5.2f %% of a step\n", f, 100 * f / s);
    printf("first step of a fork           %9.4f ms   %+.2f %% of a step\n", median(first, REPEATS),
           100 * (median(first, REPEATS) - s) / s);
}

/* Rewinds of a fork by every length from `nearest` to `furthest`, in steps. */
static void measure_rewinds(const sl_state *state, const char *name, uint32_t nearest,
                            uint32_t furthest, uint32_t step)
{
    size_t n = 0, recomputed = 0;
    uint32_t most = 0;
    double total = 0;
    for (uint32_t back = nearest; back <= furthest; back += step, n++) {
        sl_reuse_report report;
        sl_state *copy;
        must(sl_state_fork(state, &copy, &err));
        uint64_t begin = sl_clock_ns();
        must(sl_state_rewind(copy, sl_state_length(copy) - back, &report, &err));
        total += ms(begin);
        recomputed += report.recomputed;
        most = report.recomputed > most ? report.recomputed : most;
        sl_state_free(copy);
    }
    printf("rewind %-22s  %9.4f ms   %zu rewinds by %u to %u, recomputed %.1f tokens, at most %u\n",
           name, total / (double)n, n, nearest, furthest, (double)recomputed / (double)n, most);
}

static void measure_files(sl_engine *engine, sl_state *state)
{
    double save[SAVES], load[SAVES];
    char path[] = "/tmp/sluice-state-ops-XXXXXX";
    int fd = mkstemp(path);
    if (fd < 0) {
        perror(path);
        exit(1);
    }
    close(fd);
    for (size_t i = 0; i < SAVES; i++) {
        sl_state *copy;
        uint64_t begin = sl_clock_ns();
        must(sl_state_save(state, path, NULL, 0, &err));
        save[i] = ms(begin);
        begin = sl_clock_ns();
        must(sl_state_load(engine, path, sl_state_context(state), &copy, NULL, NULL, &err));
        load[i] = ms(begin);
        sl_state_free(copy);
    }
    struct stat info = {0};
    stat(path, &info);
    unlink(path);
    printf("save, synced                   %9.4f ms   %lld bytes\n", median(save, SAVES),
           (long long)info.st_size);
    printf("load, verified                 %9.4f ms\n", median(load, SAVES));
}

static void measure_forks(const sl_state *state)
{
    sl_state *forks[FORKS];
    size_t before = sl_mem_get_stats().bytes[SL_MEM_STATE];
    for (size_t i = 0; i < FORKS; i++)
        must(sl_state_fork(state, &forks[i], &err));
    size_t taken = sl_mem_get_stats().bytes[SL_MEM_STATE] - before;
    sl_state_bytes bytes = sl_state_memory(forks[0]);
    printf("%d forks                      %9.1f kB each, sharing %.1f kB\n", FORKS,
           (double)taken / FORKS / 1e3, (double)bytes.shared / 1e3);
    for (size_t i = 0; i < FORKS; i++)
        sl_state_free(forks[i]);
}

static void measure_chat(sl_engine *engine)
{
    sl_state *state;
    must(sl_state_create(engine, TURNS * (ASKED + ANSWERED), &state, &err));
    size_t most = 0;
    printf("chat of %d turns: checkpoint MB", TURNS);
    for (int turn = 1; turn <= TURNS; turn++) {
        must(sl_state_checkpoint(state, SL_ANCHOR_TURN, &err));
        append(engine, state, ASKED);
        must(sl_state_checkpoint(state, SL_ANCHOR_REPLY, &err));
        append(engine, state, ANSWERED);
        sl_checkpoint_stats stats = sl_engine_checkpoint_stats(engine);
        most = stats.bytes > most ? stats.bytes : most;
        if (turn % 40 == 0)
            printf("  %.1f (%zu)", (double)stats.bytes / 1e6, stats.n_checkpoints);
    }
    sl_checkpoint_stats stats = sl_engine_checkpoint_stats(engine);
    printf("\n  most %.1f MB of a budget of %.1f MB\n", (double)most / 1e6,
           (double)stats.budget / 1e6);
    sl_state_free(state);
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "usage: %s MODEL [TOKENS]\n", argv[0]);
        return 2;
    }
    uint32_t n = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 2000;
    sl_engine *engine;
    sl_engine_params params = sl_engine_params_default();
    params.checkpoint_budget = 32 << 20;
    must(sl_engine_open(argv[1], &params, &engine, &err));
    sl_state *state;
    must(sl_state_create(engine, n + 64, &state, &err));
    append(engine, state, n);
    measure_steps(engine, state);
    measure_forks(state);
    measure_rewinds(state, "inside the window", 1, params.rewind_window, 1);
    printf("checkpoints every %u tokens: ", params.checkpoint_spacing);
    printf("%zu\n", sl_engine_checkpoint_stats(engine).n_checkpoints);
    uint32_t spacing = params.checkpoint_spacing;
    uint32_t furthest = spacing * 2 + params.rewind_window + 1;
    if (furthest < n)
        measure_rewinds(state, "further back", params.rewind_window + 1, furthest, spacing / 2);
    measure_files(engine, state);
    sl_state_free(state);
    measure_chat(engine);
    sl_engine_close(engine);
    return 0;
}
