/* The contract, as far as it can be tested with one sequence or several: the logits of a position
 * are the same bits however the prompt is cut, whatever the number of threads, and whoever else is
 * in the batch. */
#include <stdio.h>
#include <string.h>

#include "models.h"

#include "base/mem.h"

enum { LENGTH = 80, MAX_SEQUENCES = 5 };

static const char *const model_names[] = {"rand-r1-q8_0.gguf", "rand-r3-q8_0.gguf",
                                          "rand-moe-q8_0.gguf", "rand-r3-bf16.gguf"};

static size_t differing_bits(const float *a, const float *b, size_t n)
{
    size_t bits = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t x, y;
        memcpy(&x, &a[i], 4);
        memcpy(&y, &b[i], 4);
        bits += (size_t)__builtin_popcount(x ^ y);
    }
    return bits;
}

/* One token at a time on one thread: what everything else is compared with. */
static float *reference_logits(const char *path, const int32_t *tokens, size_t n)
{
    sl_engine *engine = sl_test_engine(path, 1, false);
    float *logits = sl_test_logits(engine, tokens, n, 1);
    sl_engine_close(engine);
    return logits;
}

static sl_prompt random_prompt(uint64_t seed, size_t n)
{
    sl_test_rng rng = sl_test_rng_of(seed);
    sl_prompt prompt = {.n = n};
    for (size_t i = 0; i < n; i++)
        prompt.ids[i] = (int32_t)sl_test_rng_below(&rng, 500);
    return prompt;
}

/* Appends the prompt in random pieces: calls of random length, cut inside into random runs. */
static void eval_in_pieces(sl_engine *engine, sl_state *state, const sl_prompt *prompt,
                           float *logits, sl_test_rng *rng)
{
    sl_error err;
    static const uint32_t limits[] = {1, 2, 3, 16, 31, 32, 33, 64, 256};
    for (size_t done = 0; done < prompt->n;) {
        size_t most = sl_test_rng_below(rng, 3) == 0 ? 4 : prompt->n;
        size_t n = 1 + sl_test_rng_below(rng, (uint32_t)sl_min_size(most, prompt->n - done));
        sl_eval_item item = {.state = state,
                             .tokens = prompt->ids + done,
                             .n_tokens = n,
                             .all_logits = true,
                             .logits = logits + done * sl_engine_vocab(engine)};
        sl_eval_options options = {.max_rows = limits[sl_test_rng_below(rng, SL_COUNTOF(limits))]};
        assert_ok(sl_engine_eval(engine, &item, 1, &options, &err));
        done += n;
    }
}

static void test_random_splits_and_threads(void **state_)
{
    (void)state_;
    size_t runs = 0, bits = 0;
    for (size_t m = 0; m < SL_COUNTOF(model_names); m++) {
        char path[256];
        snprintf(path, sizeof path, "%s", sl_model_path(model_names[m]));
        sl_prompt prompt = random_prompt(m, LENGTH);
        float *expected = reference_logits(path, prompt.ids, prompt.n);
        sl_test_rng rng = sl_test_rng_of(77 + m);
        for (unsigned n_threads = 1; n_threads <= 4; n_threads++) {
            sl_engine *engine = sl_test_engine(path, n_threads, false);
            size_t vocab = sl_engine_vocab(engine);
            float *logits = sl_alloc_array(SL_MEM_GENERAL, LENGTH * vocab, sizeof(float));
            sl_state *state = NULL;
            sl_error err;
            assert_ok(sl_state_create(engine, LENGTH, &state, &err));
            for (int i = 0; i < (sl_test_shortened() ? 2 : 19); i++, runs++) {
                sl_state_reset(state);
                eval_in_pieces(engine, state, &prompt, logits, &rng);
                bits += differing_bits(logits, expected, LENGTH * vocab);
            }
            sl_state_free(state);
            sl_free(logits);
            sl_engine_close(engine);
        }
        sl_free(expected);
    }
    print_message("%zu random splits and thread counts, %zu differing bits\n", runs, bits);
    assert_true(runs >= (sl_test_shortened() ? 32 : 300));
    assert_int_equal(bits, 0);
}

/* Several sequences advance in one call, joining and leaving at random. */
static void test_neighbours_do_not_matter(void **state_)
{
    (void)state_;
    for (size_t m = 0; m < SL_COUNTOF(model_names); m++) {
        char path[256];
        snprintf(path, sizeof path, "%s", sl_model_path(model_names[m]));
        sl_engine *engine = sl_test_engine(path, 2, false);
        size_t vocab = sl_engine_vocab(engine), row_bytes = vocab * sizeof(float);
        sl_test_rng rng = sl_test_rng_of(5 + m);
        sl_prompt prompts[MAX_SEQUENCES];
        float *expected[MAX_SEQUENCES], *logits[MAX_SEQUENCES];
        sl_state *states[MAX_SEQUENCES];
        sl_error err;
        for (size_t s = 0; s < MAX_SEQUENCES; s++) {
            prompts[s] = random_prompt(100 * m + s, 40 + 20 * s);
            expected[s] = reference_logits(path, prompts[s].ids, prompts[s].n);
            logits[s] = sl_alloc_array(SL_MEM_GENERAL, prompts[s].n, row_bytes);
            assert_ok(sl_state_create(engine, 256, &states[s], &err));
        }
        for (bool unfinished = true; unfinished;) {
            sl_eval_item items[MAX_SEQUENCES];
            size_t n_items = 0;
            unfinished = false;
            for (size_t s = 0; s < MAX_SEQUENCES; s++) {
                size_t done = sl_state_length(states[s]), left = prompts[s].n - done;
                unfinished |= left > 0;
                if (left == 0 || sl_test_rng_below(&rng, 3) == 0)
                    continue;
                items[n_items++] = (sl_eval_item){
                    .state = states[s],
                    .tokens = prompts[s].ids + done,
                    .n_tokens = 1 + sl_test_rng_below(&rng, (uint32_t)sl_min_size(left, 40)),
                    .all_logits = true,
                    .logits = logits[s] + done * vocab};
            }
            sl_eval_options options = {.max_rows = 1 + sl_test_rng_below(&rng, 64)};
            assert_ok(sl_engine_eval(engine, items, n_items, &options, &err));
        }
        for (size_t s = 0; s < MAX_SEQUENCES; s++) {
            assert_int_equal(differing_bits(logits[s], expected[s], prompts[s].n * vocab), 0);
            sl_state_free(states[s]);
            sl_free(logits[s]);
            sl_free(expected[s]);
        }
        sl_engine_close(engine);
    }
}

/* The trained model, a longer prompt over several attention blocks. */
static void test_tiny_long_prompt(void **state_)
{
    (void)state_;
    char path[256];
    snprintf(path, sizeof path, "%s", sl_model_path("tiny-q8_0.gguf"));
    sl_prompt prompt = sl_test_prompt("tiny", "A");
    if (sl_test_shortened())
        prompt.n = 300;
    float *expected = reference_logits(path, prompt.ids, prompt.n);
    sl_engine *engine = sl_test_engine(path, 2, false);
    float *logits = sl_test_logits(engine, prompt.ids, prompt.n, 0);
    assert_int_equal(differing_bits(logits, expected, prompt.n * sl_engine_vocab(engine)), 0);
    sl_free(logits);
    sl_free(expected);
    sl_engine_close(engine);
}

/* Decodes a whole context in several states, one after the other on the same engine; the number of
 * allocations meanwhile. */
static uint64_t allocations(size_t budget, uint32_t spacing, size_t *n_checkpoints)
{
    enum { CONTEXT = 400 };
    sl_error err;
    sl_engine *engine = NULL;
    sl_engine_params params = sl_engine_params_default();
    params.n_threads = 1;
    params.checkpoint_budget = budget;
    params.checkpoint_spacing = spacing;
    assert_ok(sl_engine_open(sl_model_path("rand-moe-q8_0.gguf"), &params, &engine, &err));
    float *logits = sl_alloc_array(SL_MEM_GENERAL, sl_engine_vocab(engine), sizeof(float));
    sl_state *states[2] = {NULL};
    uint64_t n = 0;
    for (int32_t s = 0; s < 2; s++) {
        assert_ok(sl_state_create(engine, CONTEXT, &states[s], &err));
        uint64_t before = sl_mem_get_stats().requests;
        for (int32_t i = 0; i < CONTEXT; i++) {
            int32_t token = (i + 7 * s) % 500;
            sl_eval_item item = {
                .state = states[s], .tokens = &token, .n_tokens = 1, .logits = logits};
            assert_ok(sl_engine_eval(engine, &item, 1, NULL, &err));
        }
        n += sl_mem_get_stats().requests - before;
    }
    *n_checkpoints = sl_engine_checkpoint_stats(engine).n_checkpoints;
    sl_state_free(states[0]);
    sl_state_free(states[1]);
    sl_free(logits);
    sl_engine_close(engine);
    return n;
}

/* Decoding takes no memory: every block is there from the start, those of regular checkpoints too,
 * whether they end at borders and pages or inside, and whether the budget holds them all or not. */
static void test_no_allocation_while_decoding(void **state_)
{
    (void)state_;
    static const struct {
        size_t budget;
        uint32_t spacing;
        size_t least, most; /* checkpoints in the end */
    } cases[] = {{0, 64, 0, 0},
                 {(size_t)256 << 20, 64, 12, 12},
                 {(size_t)256 << 20, 50, 16, 16},
                 {3 << 20, 40, 1, 19},
                 {1000, 40, 0, 0}};
    for (size_t i = 0; i < SL_COUNTOF(cases); i++) {
        size_t n_checkpoints;
        uint64_t n = allocations(cases[i].budget, cases[i].spacing, &n_checkpoints);
        print_message("budget %zu, spacing %u: %zu checkpoints, %u allocations\n", cases[i].budget,
                      cases[i].spacing, n_checkpoints, (unsigned)n);
        assert_int_equal(n, 0);
        assert_in_range(n_checkpoints, cases[i].least, cases[i].most);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_splits_and_threads),
        cmocka_unit_test(test_neighbours_do_not_matter),
        cmocka_unit_test(test_tiny_long_prompt),
        cmocka_unit_test(test_no_allocation_while_decoding),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
