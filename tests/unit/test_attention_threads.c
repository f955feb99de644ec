/* Attention at depth gives the same bits however its blocks are shared out: among fewer and more
 * threads than there are pairs of sequence and KV head, in one round and in several, for one row
 * and for some, with blocks that begin inside of what is appended. */
#include "models.h"

#include <string.h>

#include "base/mem.h"

enum { DEPTH = 2500, STEPS = 24, LENGTH = DEPTH + STEPS };

static int32_t tokens[LENGTH];

/* Evaluates positions begin .. end - 1 in pieces of n rows; logits of all of them. */
static void append(sl_engine *engine, sl_state *state, size_t begin, size_t end, size_t n,
                   float *logits)
{
    sl_error err;
    const size_t vocab = sl_engine_vocab(engine);
    for (size_t at = begin; at < end; at += n) {
        sl_eval_item item = {.state = state,
                             .tokens = tokens + at,
                             .n_tokens = sl_min_size(n, end - at),
                             .all_logits = logits != NULL,
                             .logits = logits ? logits + (at - begin) * vocab : NULL};
        assert_ok(sl_engine_eval(engine, &item, 1, NULL, &err));
    }
}

/* Logits of the steps after each depth, whose tokens come in pieces of n. */
static float *logits_at(const char *path, unsigned n_threads, const size_t *depths, size_t n_depths,
                        size_t n)
{
    sl_error err;
    sl_engine *engine = sl_test_engine(path, n_threads, false);
    const size_t each = STEPS * sl_engine_vocab(engine);
    float *logits = sl_alloc_array(SL_MEM_GENERAL, n_depths * each, sizeof *logits);
    sl_state *state;
    assert_non_null(logits);
    assert_ok(sl_state_create(engine, LENGTH, &state, &err));
    size_t done = 0;
    for (size_t i = 0; i < n_depths; i++) {
        append(engine, state, done, depths[i], 512, NULL);
        append(engine, state, depths[i], depths[i] + STEPS, n, logits + i * each);
        done = depths[i] + STEPS;
    }
    sl_state_free(state);
    sl_engine_close(engine);
    return logits;
}

static void check_model(const char *name, bool deep)
{
    /* Steps over the borders of blocks, far from them, and where blocks need several rounds. */
    static const size_t depths[] = {250, 500, 700, DEPTH};
    static const struct {
        unsigned threads;
        size_t rows;
    } ways[] = {{2, 1}, {2, 12}, {3, 2}, {4, 3}, {5, 6}, {7, 1}, {16, 4}};
    const size_t n_depths = deep ? SL_COUNTOF(depths) : SL_COUNTOF(depths) - 1;
    const char *path = sl_model_path(name);
    sl_engine *engine = sl_test_engine(path, 1, false);
    const size_t n_bytes = n_depths * STEPS * sl_engine_vocab(engine) * sizeof(float);
    sl_engine_close(engine);
    float *want = logits_at(sl_model_path(name), 1, depths, n_depths, STEPS);
    for (size_t i = 0; i < SL_COUNTOF(ways); i++) {
        float *got =
            logits_at(sl_model_path(name), ways[i].threads, depths, n_depths, ways[i].rows);
        if (memcmp(got, want, n_bytes) != 0)
            fail_msg("%s: %u threads and pieces of %zu rows give other bits", name, ways[i].threads,
                     ways[i].rows);
        sl_free(got);
    }
    sl_free(want);
}

static void test_shared_blocks(void **state)
{
    (void)state;
    sl_test_rng rng = sl_test_rng_of(1);
    for (size_t i = 0; i < LENGTH; i++)
        tokens[i] = (int32_t)sl_test_rng_below(&rng, 500);
    check_model("rand-r1-q8_0.gguf", !sl_test_shortened());
    check_model("rand-r3-q8_0.gguf", false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_shared_blocks)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
