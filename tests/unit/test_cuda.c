/* The CUDA backend keeps the contract: a row of logits has the same bits however its sequence is
 * cut, with its neighbours, after fork and rewind; and it is close to the CPU's row, also when a
 * state moves between the two through a file. Skipped, with the reason, where no device can be
 * used. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "device.h"
#include "models.h"

#include "backend/cuda/cuda.h"
#include "base/mem.h"
#include "engine/engine_internal.h"

enum { LENGTH = 150, N_STATES = 3 };

/* Relative distance of a row of logits from the CPU's, in the Euclidean norm. Float sums in another
 * order now and then round an activation to the neighbouring code, 1/127 of its block's largest. */
static const double CLOSE = 0.05;

static const char *const model_names[] = {
    "rand-r1-q8_0.gguf", "rand-r3-q8_0.gguf",  "rand-moe-q8_0.gguf",
    "rand-r3-bf16.gguf", "rand-moe-bf16.gguf", "tiny-q8_0.gguf",
};

/* Every type that a matrix can have; the model's shape is the one for tests. */
static const char *const types[] = {"q8_0",  "q4_0", "q4_1", "q5_0", "q5_1",   "q2_k",
                                    "q3_k",  "q4_k", "q5_k", "q6_k", "iq4_nl", "iq4_xs",
                                    "mxfp4", "f16",  "f32",  "bf16"};

static sl_engine *open_on(const char *device, const char *name, bool kv_f32)
{
    sl_engine_params params = sl_engine_params_default();
    params.device = device;
    params.kv_f32 = kv_f32;
    sl_engine *engine = NULL;
    sl_error err;
    assert_ok(sl_engine_open(sl_model_path(name), &params, &engine, &err));
    return engine;
}

static void random_tokens(sl_test_rng *rng, int32_t *tokens, size_t n)
{
    for (size_t i = 0; i < n; i++)
        tokens[i] = (int32_t)sl_test_rng_below(rng, 500);
}

static void assert_same_rows(const float *got, const float *expected, size_t n_rows, size_t vocab,
                             const char *what)
{
    size_t rows = 0;
    for (size_t i = 0; i < n_rows; i++)
        rows += memcmp(got + i * vocab, expected + i * vocab, vocab * sizeof *got) != 0;
    if (rows > 0) {
        size_t i = 0;
        while (memcmp(got + i, expected + i, sizeof *got) == 0)
            i++;
        fail_msg("%s: %zu of %zu rows differ, first at row %zu, logit %zu: %a, expected %a", what,
                 rows, n_rows, i / vocab, i % vocab, (double)got[i], (double)expected[i]);
    }
}

static int compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Every row is close; of a mixture half of them: where two experts are equal but for rounding,
 * another one is chosen, and the row is another one too. */
static void assert_close_rows(const float *got, const float *expected, size_t n_rows, size_t vocab,
                              bool is_mixture, const char *what)
{
    double *distance = sl_alloc_array(SL_MEM_GENERAL, n_rows, sizeof *distance);
    for (size_t row = 0; row < n_rows; row++) {
        double difference = 0, norm = 0;
        for (size_t i = row * vocab; i < (row + 1) * vocab; i++) {
            difference += pow((double)got[i] - (double)expected[i], 2);
            norm += pow((double)expected[i], 2);
        }
        distance[row] = sqrt(difference / norm);
    }
    qsort(distance, n_rows, sizeof *distance, compare_doubles);
    const double median = distance[n_rows / 2], worst = distance[n_rows - 1];
    print_message("%s: half of the rows within %.1e of the CPU, all within %.1e\n", what, median,
                  worst);
    assert_true((is_mixture ? median : worst) <= CLOSE);
    sl_free(distance);
}

/* All logits of `tokens`, three sequences side by side in random pieces; the other two are fed
 * other tokens. */
static void check_splits(sl_engine *engine, const int32_t *tokens, const float *expected,
                         sl_test_rng *rng, const char *what)
{
    sl_error err;
    const size_t vocab = sl_engine_vocab(engine);
    float *logits = sl_alloc_array(SL_MEM_GENERAL, LENGTH * vocab, sizeof *logits);
    int32_t others[N_STATES][LENGTH];
    sl_state *states[N_STATES];
    for (size_t s = 0; s < N_STATES; s++) {
        assert_ok(sl_state_create(engine, 2 * LENGTH, &states[s], &err));
        random_tokens(rng, others[s], LENGTH);
    }
    memcpy(others[1], tokens, LENGTH * sizeof *tokens);
    static const uint32_t most[] = {1, 2, 9, 17, 33, 64, LENGTH};
    while (sl_state_length(states[1]) < LENGTH) {
        sl_eval_item items[N_STATES];
        size_t n_items = 0;
        for (size_t s = 0; s < N_STATES; s++) {
            const size_t at = sl_state_length(states[s]);
            size_t n = 1 + sl_test_rng_below(rng, most[sl_test_rng_below(rng, SL_COUNTOF(most))]);
            n = sl_min_size(n, LENGTH - at);
            if (n == 0 || (s != 1 && sl_test_rng_below(rng, 3) == 0))
                continue;
            items[n_items++] = (sl_eval_item){.state = states[s],
                                              .tokens = others[s] + at,
                                              .n_tokens = n,
                                              .all_logits = s == 1,
                                              .logits = s == 1 ? logits + at * vocab : NULL};
        }
        sl_eval_options options = {.max_rows = 1 + sl_test_rng_below(rng, 200)};
        assert_ok(sl_engine_eval(engine, items, n_items, &options, &err));
    }
    assert_same_rows(logits, expected, LENGTH, vocab, what);

    /* Fork, go on with other tokens, rewind the original, and come back. */
    sl_state *fork = NULL;
    assert_ok(sl_state_fork(states[1], &fork, &err));
    sl_eval_item stray = {.state = fork, .tokens = others[0], .n_tokens = 40};
    assert_ok(sl_engine_eval(engine, &stray, 1, NULL, &err));
    for (uint32_t back = 1; back < LENGTH; back = 3 * back + 1) {
        sl_reuse_report report;
        assert_ok(sl_state_rewind(states[1], LENGTH - back, &report, &err));
        sl_eval_item again = {.state = states[1],
                              .tokens = tokens + LENGTH - back,
                              .n_tokens = back,
                              .all_logits = true,
                              .logits = logits};
        assert_ok(sl_engine_eval(engine, &again, 1, NULL, &err));
        assert_same_rows(logits, expected + (LENGTH - back) * vocab, back, vocab, "after a rewind");
    }
    sl_state_free(fork);
    for (size_t s = 0; s < N_STATES; s++)
        sl_state_free(states[s]);
    sl_free(logits);
}

static void check_engines(sl_engine *cpu, sl_engine *cuda, const char *what)
{
    sl_test_rng rng = sl_test_rng_of(5);
    int32_t tokens[LENGTH];
    random_tokens(&rng, tokens, LENGTH);
    float *of_cpu = sl_test_logits(cpu, tokens, LENGTH, 0);
    float *one_by_one = sl_test_logits(cuda, tokens, LENGTH, 1);
    assert_close_rows(one_by_one, of_cpu, LENGTH, sl_engine_vocab(cpu), strstr(what, "moe") != NULL,
                      what);
    sl_free(of_cpu);
    for (int round = 0; round < 6; round++)
        check_splits(cuda, tokens, one_by_one, &rng, what);
    sl_free(one_by_one);
}

static void test_models(void **state)
{
    (void)state;
    sl_test_need_device();
    for (size_t m = 0; m < SL_COUNTOF(model_names); m++) {
        if (access(sl_model_path(model_names[m]), R_OK) != 0)
            continue;
        for (int kv_f32 = 0; kv_f32 < 2; kv_f32++) {
            sl_engine *cpu = open_on("cpu", model_names[m], kv_f32);
            sl_engine *cuda = open_on("cuda:0", model_names[m], kv_f32);
            check_engines(cpu, cuda, model_names[m]);
            sl_engine_close(cuda);
            sl_engine_close(cpu);
        }
    }
}

static void check_synthetic(const char *shape, const char *type)
{
    sl_engine *engines[2] = {NULL, NULL};
    sl_engine_params params = sl_engine_params_default();
    sl_error err;
    char what[64];
    for (int i = 0; i < 2; i++) {
        params.device = i == 0 ? "cpu" : "cuda:0";
        assert_ok(sl_engine_open_synthetic(&(sl_synthetic){.shape = shape, .type = type}, &params,
                                           &engines[i], &err));
    }
    snprintf(what, sizeof what, "%s %s", shape, type);
    check_engines(engines[0], engines[1], what);
    sl_engine_close(engines[1]);
    sl_engine_close(engines[0]);
}

static void test_types(void **state)
{
    (void)state;
    sl_test_need_device();
    for (size_t t = 0; t < SL_COUNTOF(types); t++)
        check_synthetic("tiny", types[t]);
}

/* One of each form that experts' weights have on the device. */
static void test_mixtures(void **state)
{
    (void)state;
    sl_test_need_device();
    static const char *const forms[] = {"q8_0", "q4_k_m", "q5_k", "q6_k", "q4_1", "q3_k"};
    for (size_t t = 0; t < SL_COUNTOF(forms); t++)
        check_synthetic("tiny-moe", forms[t]);
}

/* The last row of a prompt, read in pieces of max_rows. */
static float *last_row(const char *device, const int32_t *tokens, size_t n, uint32_t max_rows,
                       size_t *vocab)
{
    sl_engine_params params = sl_engine_params_default();
    sl_error err;
    sl_engine *engine = NULL;
    sl_state *s = NULL;
    params.device = device;
    params.max_rows = max_rows;
    assert_ok(sl_engine_open_synthetic(
        &(sl_synthetic){.shape = "0.8b", .type = "q8_0", .n_layers = 4}, &params, &engine, &err));
    *vocab = sl_engine_vocab(engine);
    float *logits = sl_alloc_array(SL_MEM_GENERAL, *vocab, sizeof *logits);
    assert_ok(sl_state_create(engine, (uint32_t)n, &s, &err));
    sl_eval_item item = {.state = s, .tokens = tokens, .n_tokens = n, .logits = logits};
    assert_ok(sl_engine_eval(engine, &item, 1, NULL, &err));
    sl_state_free(s);
    sl_engine_close(engine);
    return logits;
}

/* A prompt that fills the device many times over, in one run: blocks of a kernel that are far apart
 * must not see each other's results. */
static void test_long_prompt(void **state)
{
    (void)state;
    sl_test_need_device();
    enum { LONG = 3000 };
    size_t vocab;
    int32_t tokens[LONG];
    sl_test_rng rng = sl_test_rng_of(9);
    random_tokens(&rng, tokens, LONG);
    float *at_once = last_row("cuda:0", tokens, LONG, LONG, &vocab);
    static const uint32_t pieces[] = {777, 16, 1};
    for (size_t i = 0; i < SL_COUNTOF(pieces); i++) {
        float *in_pieces = last_row("cuda:0", tokens, LONG, pieces[i], &vocab);
        assert_same_rows(in_pieces, at_once, 1, vocab, "a long prompt in pieces");
        sl_free(in_pieces);
    }
    float *of_cpu = last_row("cpu", tokens, LONG, LONG, &vocab);
    assert_close_rows(at_once, of_cpu, 1, vocab, false, "a long prompt");
    sl_free(of_cpu);
    sl_free(at_once);
}

/* A sequence that is read by turns on the CPU and on the device, moving through a file. */
static void test_moving_states(void **state)
{
    (void)state;
    sl_test_need_device();
    static const char model[] = "rand-r3-q8_0.gguf";
    enum { PIECE = 37 };
    sl_error err;
    int32_t tokens[LENGTH];
    sl_test_rng rng = sl_test_rng_of(11);
    random_tokens(&rng, tokens, LENGTH);
    sl_engine *engines[2] = {open_on("cpu", model, false), open_on("cuda:0", model, false)};
    const size_t vocab = sl_engine_vocab(engines[0]);
    float *of_cpu = sl_test_logits(engines[0], tokens, LENGTH, 0);
    float *rows = sl_alloc_array(SL_MEM_GENERAL, LENGTH * vocab, sizeof *rows);
    char path[] = "/tmp/sluice-moving-XXXXXX";
    const int fd = mkstemp(path);
    assert_true(fd >= 0 && close(fd) == 0);
    sl_state *s = NULL;
    assert_ok(sl_state_create(engines[0], LENGTH, &s, &err));
    for (size_t at = 0, turn = 0; at < LENGTH; turn++) {
        const size_t n = sl_min_size(PIECE, LENGTH - at);
        sl_eval_item item = {.state = s,
                             .tokens = tokens + at,
                             .n_tokens = n,
                             .all_logits = true,
                             .logits = rows + at * vocab};
        assert_ok(sl_engine_eval(engines[turn % 2], &item, 1, NULL, &err));
        at += n;
        assert_ok(sl_state_save(s, path, NULL, 0, &err));
        sl_state_free(s);
        assert_ok(sl_state_load(engines[(turn + 1) % 2], path, LENGTH, &s, NULL, NULL, &err));
    }
    assert_close_rows(rows, of_cpu, LENGTH, vocab, false, "a state that moves");
    sl_state_free(s);
    (void)unlink(path);
    sl_free(rows);
    sl_free(of_cpu);
    sl_engine_close(engines[1]);
    sl_engine_close(engines[0]);
}

/* Takes what the device has left, in pieces of ever smaller size. */
static size_t take_all_memory(sl_backend *backend, void **taken, size_t most)
{
    size_t n = 0;
    for (size_t bytes = (size_t)1 << 36; bytes >= 1 << 16; bytes /= 2) {
        while (n < most && (taken[n] = backend->alloc(backend, SL_MEM_SCRATCH, bytes)) != NULL)
            n++;
    }
    return n;
}

/* Without memory left on the device a request fails with a sentence, and nothing else does: the
 * state goes on from where it was, with the same bits. */
static void test_no_memory_left(void **state)
{
    (void)state;
    sl_test_need_device();
    enum { MOST = 4096, FIRST = 40 };
    static void *taken[MOST];
    sl_error err;
    sl_engine *engine = open_on("cuda:0", "rand-r3-q8_0.gguf", false);
    const size_t vocab = sl_engine_vocab(engine);
    int32_t tokens[LENGTH];
    sl_test_rng rng = sl_test_rng_of(13);
    random_tokens(&rng, tokens, LENGTH);
    float *expected = sl_test_logits(engine, tokens, LENGTH, 0);
    float *rows = sl_alloc_array(SL_MEM_GENERAL, LENGTH * vocab, sizeof *rows);
    sl_state *s = NULL;
    assert_ok(sl_state_create(engine, LENGTH, &s, &err));
    sl_eval_item item = {
        .state = s, .tokens = tokens, .n_tokens = FIRST, .all_logits = true, .logits = rows};
    assert_ok(sl_engine_eval(engine, &item, 1, NULL, &err));
    const size_t n = take_all_memory(engine->backend, taken, MOST);
    assert_in_range(n, 1, MOST - 1);

    sl_state *others[64];
    size_t n_others = 0;
    sl_status status = SL_OK;
    for (; n_others < SL_COUNTOF(others) && status == SL_OK; n_others += status == SL_OK) {
        sl_eval_item more = {.tokens = tokens, .n_tokens = LENGTH};
        status = sl_state_create(engine, LENGTH, &others[n_others], &err);
        if (status != SL_OK)
            break;
        more.state = others[n_others];
        status = sl_engine_eval(engine, &more, 1, NULL, &err);
        if (status != SL_OK)
            sl_state_free(others[n_others]);
    }
    assert_int_equal(status, SL_ERR_MEMORY);
    print_message("after %zu states: %s\n", n_others, err.message);
    while (n_others > 0)
        sl_state_free(others[--n_others]);
    for (size_t i = 0; i < n; i++)
        engine->backend->free(engine->backend, taken[i]);

    item = (sl_eval_item){.state = s,
                          .tokens = tokens + FIRST,
                          .n_tokens = LENGTH - FIRST,
                          .all_logits = true,
                          .logits = rows + FIRST * vocab};
    assert_ok(sl_engine_eval(engine, &item, 1, NULL, &err));
    assert_same_rows(rows, expected, LENGTH, vocab, "after a failure");
    sl_state_free(s);
    sl_free(rows);
    sl_free(expected);
    sl_engine_close(engine);
}

static void test_no_device(void **state)
{
    (void)state;
    sl_backend *backend = NULL;
    sl_error err;
    assert_int_equal(sl_cuda_backend_create(99, &backend, &err), SL_ERR_UNSUPPORTED);
    assert_null(backend);
    assert_true(strlen(err.message) > 20);
    sl_engine_params params = sl_engine_params_default();
    sl_engine *engine = NULL;
    static const char *const wrong[] = {"gpu",      "cuda",    "cuda:", "cuda:x",
                                        "cuda:123", "cuda:-1", ""};
    for (size_t i = 0; i < SL_COUNTOF(wrong); i++) {
        params.device = wrong[i];
        assert_int_equal(sl_engine_open(sl_model_path("rand-r1-q8_0.gguf"), &params, &engine, &err),
                         SL_ERR_ARGUMENT);
        assert_non_null(strstr(err.message, "cuda:0"));
    }
    params.device = "auto";
    assert_ok(sl_engine_open(sl_model_path("rand-r1-q8_0.gguf"), &params, &engine, &err));
    sl_engine_close(engine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_models),        cmocka_unit_test(test_types),
        cmocka_unit_test(test_mixtures),      cmocka_unit_test(test_long_prompt),
        cmocka_unit_test(test_moving_states), cmocka_unit_test(test_no_memory_left),
        cmocka_unit_test(test_no_device),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
