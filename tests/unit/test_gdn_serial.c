/* Engines whose gated delta layers go by the token-serial rule: the logits of the chunk form up to
 * rounding, the same bits however the rows are cut, and what such engines refuse. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "models.h"

#include "base/mem.h"

enum { VOCAB = 512, LENGTH = 100 };

static sl_engine_params params_of(bool serial, unsigned n_threads)
{
    sl_engine_params params = sl_engine_params_default();
    params.n_threads = n_threads;
    params.gdn_serial = serial;
    return params;
}

/* Float weights: rounded activations would turn a last bit into much more. n_layers 0 = all. */
static sl_status open_tiny(const sl_engine_params *params, uint32_t n_layers, sl_engine **out,
                           sl_error *err)
{
    const sl_synthetic model = {.shape = "tiny", .type = "f32", .seed = 5, .n_layers = n_layers};
    return sl_engine_open_synthetic(&model, params, out, err);
}

static sl_engine *open_engine(bool serial, unsigned n_threads)
{
    sl_error err;
    sl_engine *engine = NULL;
    const sl_engine_params params = params_of(serial, n_threads);
    assert_ok(open_tiny(&params, 0, &engine, &err));
    return engine;
}

static void make_tokens(int32_t tokens[LENGTH])
{
    for (int i = 0; i < LENGTH; i++)
        tokens[i] = i * 37 % VOCAB;
}

static sl_state *new_state(sl_engine *engine)
{
    sl_error err;
    sl_state *state = NULL;
    assert_ok(sl_state_create(engine, LENGTH, &state, &err));
    return state;
}

/* What every test compares with: serial, one thread, in one piece. */
typedef struct fixture {
    sl_engine *engine;
    int32_t tokens[LENGTH];
    float *expected; /* [LENGTH][VOCAB] */
} fixture;

static fixture open_fixture(void)
{
    fixture f = {.engine = open_engine(true, 1)};
    make_tokens(f.tokens);
    f.expected = sl_test_logits(f.engine, f.tokens, LENGTH, 0);
    return f;
}

static void close_fixture(fixture *f)
{
    sl_free(f->expected);
    sl_engine_close(f->engine);
}

/* Appends tokens[length .. end) and checks the bits of the last row. */
static void advance(const fixture *f, sl_state *state, uint32_t end)
{
    sl_error err;
    float logits[VOCAB];
    const uint32_t begin = sl_state_length(state);
    const sl_eval_item item = {
        .state = state, .tokens = f->tokens + begin, .n_tokens = end - begin, .logits = logits};
    assert_ok(sl_engine_eval(f->engine, &item, 1, NULL, &err));
    assert_memory_equal(logits, f->expected + (size_t)(end - 1) * VOCAB, sizeof logits);
}

static void test_logits_of_the_chunk_form(void **state)
{
    (void)state;
    fixture f = open_fixture();
    sl_engine *chunked = open_engine(false, 1);
    float *reference = sl_test_logits(chunked, f.tokens, LENGTH, 0);
    double largest = 0, error = 0;
    for (size_t i = 0; i < (size_t)LENGTH * VOCAB; i++) {
        largest = fmax(largest, fabs((double)reference[i]));
        error = fmax(error, fabs((double)reference[i] - (double)f.expected[i]));
    }
    assert_true(error <= 1e-3 * largest);
    assert_true(error > 0); /* another rule it is */
    sl_free(reference);
    sl_engine_close(chunked);
    close_fixture(&f);
}

/* Prefill in pieces and decode; one sweep, and (three threads share two key heads) three. */
static void test_any_split_has_the_same_bits(void **state)
{
    (void)state;
    static const uint32_t pieces[] = {0, 1, 7, 32, 33, 64};
    fixture f = open_fixture();
    for (unsigned n_threads = 1; n_threads <= 3; n_threads += 2) {
        sl_engine *engine = open_engine(true, n_threads);
        for (size_t i = 0; i < SL_COUNTOF(pieces); i++) {
            float *logits = sl_test_logits(engine, f.tokens, LENGTH, pieces[i]);
            assert_memory_equal(logits, f.expected, (size_t)LENGTH * VOCAB * sizeof *logits);
            sl_free(logits);
        }
        sl_engine_close(engine);
    }
    close_fixture(&f);
}

static void test_forks_and_batches(void **state)
{
    (void)state;
    sl_error err;
    fixture f = open_fixture();
    sl_state *a = new_state(f.engine), *empty, *b, *c;
    assert_ok(sl_state_fork(a, &empty, &err));
    advance(&f, a, 5);
    assert_ok(sl_state_fork(a, &b, &err));
    advance(&f, b, 70);
    assert_ok(sl_state_fork(b, &c, &err)); /* a fork of one that has all of its blocks copied */
    advance(&f, a, 6);
    advance(&f, c, 71);
    advance(&f, empty, 40);

    static float logits[3][VOCAB];
    sl_state *const states[] = {a, b, c};
    sl_eval_item items[3];
    for (size_t i = 0; i < 3; i++)
        items[i] = (sl_eval_item){.state = states[i],
                                  .tokens = f.tokens + sl_state_length(states[i]),
                                  .n_tokens = i + 1,
                                  .logits = logits[i]};
    assert_ok(sl_engine_eval(f.engine, items, 3, NULL, &err));
    for (size_t i = 0; i < 3; i++) {
        const size_t last = sl_state_length(states[i]) - 1;
        assert_memory_equal(logits[i], f.expected + last * VOCAB, sizeof logits[i]);
        sl_state_free(states[i]);
    }
    sl_state_free(empty);
    close_fixture(&f);
}

static void test_going_back_evaluates_again(void **state_)
{
    (void)state_;
    sl_error err;
    fixture f = open_fixture();
    sl_reuse_report report;
    sl_state *state = new_state(f.engine);
    advance(&f, state, 50);
    assert_ok(sl_state_checkpoint(state, SL_ANCHOR_TURN, &err));
    assert_int_equal(sl_engine_checkpoint_stats(f.engine).n_checkpoints, 0);
    assert_int_equal(sl_engine_checkpoint_stats(f.engine).budget, 0);
    assert_ok(sl_state_rewind(state, 49, &report, &err));
    assert_int_equal(report.recomputed, 49);
    advance(&f, state, 60);
    assert_ok(sl_state_sync(state, f.tokens, 40, &report, &err));
    assert_int_equal(report.reused, 0);
    advance(&f, state, 40);
    assert_ok(sl_state_rewind(state, 40, &report, &err));
    assert_int_equal(report.recomputed, 0);
    sl_state_reset(state);
    advance(&f, state, 1);
    sl_state_free(state);
    close_fixture(&f);
}

static void test_refusals(void **state_)
{
    (void)state_;
    sl_error err;
    fixture f = open_fixture();
    sl_state *state = new_state(f.engine), *loaded = NULL;
    const char *path = sl_build_path("gdn-serial.state");
    advance(&f, state, 9);
    assert_refused(sl_state_save(state, path, NULL, 0, &err), SL_ERR_UNSUPPORTED, "no file form");
    assert_refused(sl_state_load(f.engine, path, 0, &loaded, NULL, NULL, &err), SL_ERR_UNSUPPORTED,
                   "no file form");
    sl_state_free(state);
    close_fixture(&f);

    static const char *const devices[] = {"cuda:0", "auto"};
    for (size_t i = 0; i < SL_COUNTOF(devices); i++) {
        sl_engine *engine = NULL;
        sl_engine_params params = params_of(true, 1);
        params.device = devices[i];
        assert_refused(open_tiny(&params, 0, &engine, &err), SL_ERR_ARGUMENT, devices[i]);
        assert_refused(open_tiny(&params, 0, &engine, &err), SL_ERR_ARGUMENT, "for the CPU only");
    }
}

/* A state is read and written once a run, whatever it holds. */
static void test_costs(void **state)
{
    (void)state;
    sl_error err;
    sl_run_cost one, many;
    sl_engine *engine = open_engine(true, 1);
    sl_run_shape run = {.n_sequences = 1, .n_rows = 1, .n_logits = 1};
    assert_ok(sl_engine_run_cost(engine, &run, &one, &err));
    run.n_rows = 2;
    assert_ok(sl_engine_run_cost(engine, &run, &many, &err));
    const double states = 3 * 4 * 2 * 65536.0, kv = 2 * 1024; /* a row of keys and values */
    assert_true(one.state_bytes >= states && one.state_bytes <= states + kv);
    assert_true(many.state_bytes >= states && many.state_bytes <= states + 2 * kv);
    assert_true(many.float_flops > 1.9 * one.float_flops);
    sl_engine_close(engine);
}

/* ---- memory ---- */

static float last_logits[2][VOCAB];

static sl_status everything(sl_error *err)
{
    const sl_engine_params params = params_of(true, 1);
    sl_engine *engine = NULL;
    sl_state *state = NULL, *fork = NULL;
    int32_t tokens[LENGTH];
    sl_status status = SL_OK;
    make_tokens(tokens);
    sl_eval_item item = {.tokens = tokens, .n_tokens = 20, .logits = last_logits[0]};
    SL_CHECK(open_tiny(&params, 1, &engine, err));
    SL_CHECK(sl_state_create(engine, LENGTH, &state, err));
    item.state = state;
    SL_CHECK(sl_engine_eval(engine, &item, 1, NULL, err));
    SL_CHECK(sl_state_fork(state, &fork, err));
    item.state = fork;
    item.logits = last_logits[1];
    SL_CHECK(sl_engine_eval(engine, &item, 1, NULL, err));
    item.state = state;
    SL_CHECK(sl_engine_eval(engine, &item, 1, NULL, err));
done:
    sl_state_free(fork);
    sl_state_free(state);
    sl_engine_close(engine);
    return status;
}

static void test_every_allocation_may_fail(void **state)
{
    (void)state;
    sl_error err;
    static float expected[2][VOCAB];
    assert_ok(everything(&err));
    memcpy(expected, last_logits, sizeof expected);
    const size_t blocks = sl_mem_get_stats().blocks;
    for (uint64_t n = 1;; n += sl_test_shortened() ? 5 : 1) {
        assert_true(n < 10000);
        const uint64_t before = sl_mem_get_stats().requests;
        sl_mem_fail_at(n, false);
        const sl_status status = everything(&err);
        sl_mem_fail_at(0, false);
        assert_true(status == SL_OK || status == SL_ERR_MEMORY);
        assert_int_equal(sl_mem_get_stats().blocks, blocks);
        if (status == SL_OK)
            assert_memory_equal(last_logits, expected, sizeof expected);
        if (sl_mem_get_stats().requests - before < n)
            break;
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_logits_of_the_chunk_form),
        cmocka_unit_test(test_any_split_has_the_same_bits),
        cmocka_unit_test(test_forks_and_batches),
        cmocka_unit_test(test_going_back_evaluates_again),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_costs),
        cmocka_unit_test(test_every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
