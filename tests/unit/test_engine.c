/* Engines and states: what calls refuse, that refusals lose nothing, and what happens when memory,
 * the file or the numbers give out. */
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gguf_build.h"
#include "models.h"

#include "backend/cpu/kernels/isa.h"
#include "base/mem.h"
#include "engine/engine_internal.h"

static const char small[] = "rand-r1-q8_0.gguf";

static sl_state *new_state(sl_engine *engine, uint32_t context)
{
    sl_error err;
    sl_state *state = NULL;
    assert_ok(sl_state_create(engine, context, &state, &err));
    return state;
}

static sl_status eval(sl_engine *engine, sl_state *state, const int32_t *tokens, size_t n,
                      float *logits, sl_error *err)
{
    sl_eval_item item = {.state = state, .tokens = tokens, .n_tokens = n, .logits = logits};
    return sl_engine_eval(engine, &item, 1, NULL, err);
}

/* ---- refusals ---- */

/* A fork has none of the engine's threads: it would wait for them for ever. */
static void test_forked_process(void **state_)
{
    (void)state_;
    sl_engine *engine = sl_test_engine(sl_model_path(small), 2, false);
    sl_state *state = new_state(engine, 8);
    const int32_t tokens[2] = {1, 2};
    sl_error err;
    assert_ok(eval(engine, state, tokens, 1, NULL, &err));
    const pid_t child = fork();
    if (child == 0) {
        const sl_status status = eval(engine, state, tokens, 2, NULL, &err);
        const bool says_why = strstr(err.message, "opened by process") != NULL;
        sl_engine_close(engine);
        _exit(status == SL_ERR_ARGUMENT && says_why ? 0 : 1);
    }
    assert_true(child > 0);
    int ended = 0;
    assert_int_equal(waitpid(child, &ended, 0), child);
    assert_true(WIFEXITED(ended));
    assert_int_equal(WEXITSTATUS(ended), 0);
    assert_ok(eval(engine, state, tokens, 2, NULL, &err));
    sl_state_free(state);
    sl_engine_close(engine);
}

static void test_arguments(void **state_)
{
    (void)state_;
    sl_error err;
    sl_engine *engine = NULL;
    sl_engine_params params = sl_engine_params_default();
    params.max_rows = 65537;
    assert_refused(sl_engine_open(sl_model_path(small), &params, &engine, &err), SL_ERR_ARGUMENT,
                   "a prefill piece of 65537 rows");
    params = sl_engine_params_default();
    params.rewind_window = 100000;
    assert_refused(sl_engine_open(sl_model_path(small), &params, &engine, &err), SL_ERR_ARGUMENT,
                   "rewind window");

    engine = sl_test_engine(sl_model_path(small), 1, false);
    assert_int_equal(sl_engine_get_params(engine)->max_rows, 256);
    assert_int_equal(sl_engine_get_params(engine)->checkpoint_spacing, 512);
    sl_engine *other = sl_test_engine(sl_model_path(small), 1, false);
    sl_state *state = NULL;
    assert_refused(sl_state_create(engine, 0, &state, &err), SL_ERR_ARGUMENT, "a context of 0");
    assert_refused(sl_state_create(engine, 1u << 20, &state, &err), SL_ERR_ARGUMENT, "up to 32768");

    state = new_state(engine, 8);
    int32_t tokens[9] = {1, 2, 3, 4, 5, 6, 7, 8, 9};
    assert_refused(eval(engine, state, tokens, 9, NULL, &err), SL_ERR_CONTEXT,
                   "9 tokens after 0 do not fit in a context of 8");
    int32_t bad[2] = {1, 512};
    assert_refused(eval(engine, state, bad, 2, NULL, &err), SL_ERR_ARGUMENT,
                   "token 1 is 512, the vocabulary has 512");
    bad[1] = -1;
    assert_refused(eval(engine, state, bad, 2, NULL, &err), SL_ERR_ARGUMENT, "token 1 is -1");
    assert_refused(eval(other, state, tokens, 1, NULL, &err), SL_ERR_ARGUMENT, "another engine");
    sl_eval_item twice[2] = {{.state = state, .tokens = tokens, .n_tokens = 1},
                             {.state = state, .tokens = tokens, .n_tokens = 1}};
    assert_refused(sl_engine_eval(engine, twice, 2, NULL, &err), SL_ERR_ARGUMENT,
                   "item 1: the same state twice");
    /* None of it touched the state. */
    assert_int_equal(sl_state_length(state), 0);
    assert_ok(eval(engine, state, tokens, 8, NULL, &err));
    assert_int_equal(sl_state_length(state), 8);
    assert_memory_equal(sl_state_tokens(state), tokens, 8 * sizeof *tokens);
    assert_refused(eval(engine, state, tokens, 1, NULL, &err), SL_ERR_CONTEXT, "1 tokens after 8");
    sl_state_free(state);
    sl_engine_close(other);
    sl_engine_close(engine);
}

static bool stop_after_first(void *context, size_t done, size_t total)
{
    size_t *calls = context;
    assert_int_equal(done, 4);
    assert_int_equal(total, 10);
    return ++*calls == 1;
}

static void test_cancelling_keeps_what_is_done(void **state_)
{
    (void)state_;
    sl_error err;
    sl_engine *engine = sl_test_engine(sl_model_path(small), 1, false);
    sl_state *state = new_state(engine, 16);
    int32_t tokens[10] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
    float cancelled[512], straight[512];
    sl_eval_item item = {.state = state, .tokens = tokens, .n_tokens = 10, .logits = cancelled};
    size_t calls = 0;
    sl_eval_options options = {
        .max_rows = 4, .progress = stop_after_first, .progress_context = &calls};
    assert_refused(sl_engine_eval(engine, &item, 1, &options, &err), SL_ERR_CANCELLED,
                   "stopped after 4 of 10");
    assert_int_equal(sl_state_length(state), 4);
    assert_ok(eval(engine, state, tokens + 4, 6, cancelled, &err));
    sl_state_reset(state);
    assert_ok(eval(engine, state, tokens, 10, straight, &err));
    assert_memory_equal(cancelled, straight, sizeof straight);
    sl_state_free(state);
    sl_engine_close(engine);
}

/* A progress function may look at the states of its call, keep them and fork them, but not move
 * them: rows to come were placed behind what is there. */
typedef struct meddler {
    sl_engine *engine;
    sl_state *state;
    const int32_t *tokens;
    size_t calls;
} meddler;

static bool meddle(void *context, size_t done, size_t total)
{
    meddler *m = context;
    sl_error err;
    sl_state *fork = NULL;
    assert_true(done < total);
    assert_refused(sl_state_rewind(m->state, 1, NULL, &err), SL_ERR_ARGUMENT, "going on");
    assert_refused(sl_state_sync(m->state, m->tokens, 12, NULL, &err), SL_ERR_ARGUMENT, "going on");
    assert_refused(eval(m->engine, m->state, m->tokens, 1, NULL, &err), SL_ERR_ARGUMENT, "twice");
    assert_ok(sl_state_checkpoint(m->state, SL_ANCHOR_TURN, &err));
    assert_ok(sl_state_fork(m->state, &fork, &err));
    assert_ok(eval(m->engine, fork, m->tokens, 3, NULL, &err));
    sl_state_free(fork);
    m->calls++;
    return false;
}

static void test_meddling_progress_functions(void **state_)
{
    (void)state_;
    sl_error err;
    sl_engine *engine = sl_test_engine(sl_model_path(small), 1, false);
    sl_state *state = new_state(engine, 16);
    int32_t tokens[16] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
    float disturbed[512], straight[512];
    meddler m = {engine, state, tokens, 0};
    sl_eval_item item = {.state = state, .tokens = tokens, .n_tokens = 13, .logits = disturbed};
    sl_eval_options options = {.max_rows = 3, .progress = meddle, .progress_context = &m};
    assert_ok(sl_engine_eval(engine, &item, 1, &options, &err));
    assert_int_equal(m.calls, 4);
    sl_state_reset(state);
    assert_ok(eval(engine, state, tokens, 13, straight, &err));
    assert_memory_equal(disturbed, straight, sizeof straight);
    sl_state_free(state);
    sl_engine_close(engine);
}

/* ---- draft rows ---- */

/* Rows 0 to length - 1 of the draft head and their logits; the last is fed `next`. */
static void draft(sl_engine *engine, sl_state *state, const float *hidden, uint32_t first,
                  int32_t next, float *logits)
{
    sl_error err;
    int32_t fed[64];
    uint32_t n = sl_state_length(state) - first;
    memcpy(fed, sl_state_tokens(state) + first + 1, (n - 1) * sizeof *fed);
    fed[n - 1] = next;
    assert_ok(sl_engine_eval_mtp(engine, state, fed,
                                 hidden + (size_t)first * sl_engine_config(engine)->hidden, first,
                                 n, logits, &err));
}

static void test_draft_rows_follow_the_state(void **state_)
{
    (void)state_;
    sl_error err;
    sl_engine *engine = sl_test_engine(sl_model_path("tiny-q8_0.gguf"), 1, false);
    size_t vocab = sl_engine_vocab(engine), width = sl_engine_config(engine)->hidden;
    float *hidden = sl_alloc_array(SL_MEM_GENERAL, 64 * width, sizeof *hidden);
    float *logits = sl_alloc_array(SL_MEM_GENERAL, 64 * vocab, sizeof *logits);
    sl_state *state = new_state(engine, 64), *fork = NULL, *back = NULL;
    int32_t tokens[40];
    for (int32_t i = 0; i < 40; i++)
        tokens[i] = 3 * i + 1;
    sl_eval_item item = {.state = state, .tokens = tokens, .n_tokens = 20, .hidden = hidden};
    assert_ok(sl_engine_eval(engine, &item, 1, NULL, &err));

    assert_refused(sl_engine_eval_mtp(engine, state, tokens, hidden, 1, 1, logits, &err),
                   SL_ERR_ARGUMENT, "the state has 20 tokens and 0 draft rows");
    assert_refused(sl_engine_eval_mtp(engine, state, tokens, hidden, 0, 21, logits, &err),
                   SL_ERR_ARGUMENT, "the state has 20 tokens");
    assert_refused(sl_engine_eval_mtp(engine, state, tokens, hidden, UINT32_MAX, 1, logits, &err),
                   SL_ERR_ARGUMENT, "draft rows from 4294967295");
    draft(engine, state, hidden, 0, 7, logits);
    assert_int_equal(state->mtp_length, 20);

    /* A fork and a file have the rows that need no token to come. */
    assert_ok(sl_state_fork(state, &fork, &err));
    assert_int_equal(fork->mtp_length, 19);
    char path[] = "/tmp/sluice-draft-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    assert_ok(sl_state_save(state, path, NULL, 0, &err));
    assert_ok(sl_state_load(engine, path, 64, &back, NULL, NULL, &err));
    assert_int_equal(back->mtp_length, 19);
    assert_ok(sl_state_checkpoint(state, SL_ANCHOR_TURN, &err));
    unlink(path);

    /* The token that was drafted with comes: the row stays. Another one: it does not. */
    int32_t next = 7;
    assert_ok(eval(engine, state, &next, 1, NULL, &err));
    assert_int_equal(state->mtp_length, 20);
    assert_ok(sl_state_rewind(state, 20, NULL, &err));
    assert_int_equal(state->mtp_length, 20);
    next = 8;
    assert_ok(eval(engine, state, &next, 1, NULL, &err));
    assert_int_equal(state->mtp_length, 19);
    assert_ok(sl_state_sync(state, tokens, 21, NULL, &err));
    assert_int_equal(sl_state_length(state), 20);
    assert_int_equal(state->mtp_length, 19);

    /* All of them give the same drafts from there on. */
    sl_state *const all[] = {state, fork, back};
    float *first = sl_alloc_array(SL_MEM_GENERAL, 4 * vocab, sizeof *first);
    for (size_t i = 0; i < SL_COUNTOF(all); i++) {
        item = (sl_eval_item){
            .state = all[i], .tokens = tokens + 20, .n_tokens = 3, .hidden = hidden + 20 * width};
        assert_ok(sl_engine_eval(engine, &item, 1, NULL, &err));
        assert_int_equal(all[i]->mtp_length, 19);
        draft(engine, all[i], hidden, 19, 9, i == 0 ? first : logits);
        if (i > 0)
            assert_memory_equal(logits, first, 4 * vocab * sizeof *first);
        sl_state_free(all[i]);
    }
    sl_free(first);
    sl_free(logits);
    sl_free(hidden);
    sl_engine_close(engine);
}

/* ---- memory ---- */

static sl_status open_and_evaluate(sl_error *err)
{
    sl_engine_params params = sl_engine_params_default();
    params.n_threads = 2;
    params.max_rows = 16;
    sl_engine *engine;
    SL_TRY(sl_engine_open(sl_model_path(small), &params, &engine, err));
    sl_state *state;
    sl_status status = sl_state_create(engine, 40, &state, err);
    if (status == SL_OK) {
        int32_t tokens[40] = {5};
        status = eval(engine, state, tokens, 40, NULL, err);
        sl_state_free(state);
    }
    sl_engine_close(engine);
    return status;
}

static void test_every_allocation_may_fail(void **state)
{
    (void)state;
    sl_error err;
    size_t blocks = sl_mem_get_stats().blocks;
    for (int forever = 0; forever <= 1; forever++) {
        sl_status status = SL_ERR_MEMORY;
        uint64_t n = 1;
        for (; status != SL_OK; n++) {
            assert_true(n < 10000);
            sl_mem_fail_at(n, forever);
            status = open_and_evaluate(&err);
            sl_mem_fail_at(0, false);
            if (status != SL_OK && status != SL_ERR_MEMORY)
                fail_msg("allocation %d: %s: %s", (int)n, sl_status_name(status), err.message);
            assert_int_equal(sl_mem_get_stats().blocks, blocks);
        }
        assert_true(n > 20);
    }
}

/* ---- the file goes away ---- */

static void copy_to_temp(const char *path, char *temp)
{
    sl_gguf_build b;
    sl_gguf_build_read(&b, path);
    int fd = mkstemp(temp);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, b.data, b.n_bytes), b.n_bytes);
    close(fd);
    sl_gguf_build_free(&b);
}

/* cmocka takes SIGBUS for itself while a test runs; main() notes the library's handler. */
static struct sigaction guard;

static void test_truncated_while_in_use(void **state_)
{
    (void)state_;
    sl_error err;
    struct sigaction of_cmocka;
    assert_int_equal(sigaction(SIGBUS, &guard, &of_cmocka), 0);
    char temp[] = "/tmp/sluice-test-XXXXXX";
    copy_to_temp(sl_model_path(small), temp);
    sl_engine *engine = sl_test_engine(temp, 2, false);
    sl_state *state = new_state(engine, 16);
    int32_t tokens[4] = {1, 2, 3, 4};
    assert_ok(eval(engine, state, tokens, 4, NULL, &err));
    assert_int_equal(truncate(temp, 8192), 0);
    assert_refused(eval(engine, state, tokens, 4, NULL, &err), SL_ERR_IO, temp);
    /* The state is not to be trusted any more. */
    assert_refused(eval(engine, state, tokens, 1, NULL, &err), SL_ERR_ARGUMENT, "reset it");
    sl_state_free(state);
    sl_engine_close(engine);
    unlink(temp);
    assert_int_equal(sigaction(SIGBUS, &of_cmocka, NULL), 0);
}

/* ---- numbers that are not finite ---- */

static void test_poisoned_weights_are_named(void **state_)
{
    (void)state_;
    sl_error err;
    sl_engine *engine = sl_test_engine(sl_model_path(small), 2, false);
    /* A feed-forward norm of layer 2 goes bad. */
    float *w = (float *)(uintptr_t)engine->model->layers[2].post_norm;
    float kept = w[3];
    w[3] = NAN;
    sl_state *state = new_state(engine, 64);
    int32_t tokens[40] = {7};
    float logits[512], healthy[512];
    assert_refused(eval(engine, state, tokens, 40, logits, &err), SL_ERR_NUMERIC,
                   "after layer 2 (add) are not finite at position 0");
    w[3] = kept;
    assert_refused(eval(engine, state, tokens, 1, logits, &err), SL_ERR_ARGUMENT, "reset it");
    sl_state_reset(state);
    assert_ok(eval(engine, state, tokens, 40, logits, &err));
    sl_state *fresh = new_state(engine, 64);
    assert_ok(eval(engine, fresh, tokens, 40, healthy, &err));
    assert_memory_equal(logits, healthy, sizeof healthy);
    sl_state_free(fresh);
    sl_state_free(state);
    sl_engine_close(engine);
}

static void test_router_and_head_faults(void **state_)
{
    (void)state_;
    sl_error err;
    sl_engine *engine = sl_test_engine(sl_model_path("rand-moe-bf16.gguf"), 1, false);
    float *w = (float *)(uintptr_t)engine->model->layers[1].post_norm;
    w[0] = INFINITY;
    sl_state *state = new_state(engine, 16);
    int32_t tokens[2] = {7, 8};
    assert_refused(eval(engine, state, tokens, 2, NULL, &err), SL_ERR_NUMERIC,
                   "layer 1 (route) are not finite at position 0");
    w[0] = 1.0f;
    float *norm = (float *)(uintptr_t)engine->model->output_norm;
    norm[5] = NAN;
    float logits[512];
    sl_state_reset(state);
    assert_refused(eval(engine, state, tokens, 2, logits, &err), SL_ERR_NUMERIC,
                   "the logits are not finite at position 1");
    sl_state_free(state);
    sl_engine_close(engine);
}

/* ---- memory before loading ---- */

static void test_memory_plan_is_what_is_taken(void **state_)
{
    (void)state_;
    sl_error err;
    sl_engine *engine = NULL;
    sl_engine_params params = sl_engine_params_default();
    params.checkpoint_budget = 0; /* else a state brings the memory of its checkpoints along */
    assert_ok(sl_engine_open(sl_model_path(small), &params, &engine, &err));
    sl_memory_plan plan;
    assert_ok(sl_memory_plan_compute(sl_engine_weights(engine), sl_engine_config(engine),
                                     sl_engine_get_params(engine), 1000, &plan, &err));
    assert_int_equal(plan.scratch, sl_mem_get_stats().bytes[SL_MEM_SCRATCH]);
    size_t before = sl_mem_get_stats().bytes[SL_MEM_STATE];
    sl_state *state = new_state(engine, 1000);
    size_t taken = sl_mem_get_stats().bytes[SL_MEM_STATE] - before;
    assert_true(taken >= plan.state_fixed + plan.state_context);
    assert_true(taken <= plan.state_fixed + plan.state_context + 16384);
    sl_state_free(state);
    sl_engine_close(engine);
}

/* With every level of instructions, those that rearrange matrices and those that do not; a folder's
 * matrices are converted besides. */
static void test_plan_of_the_weights(void **state_)
{
    (void)state_;
    static const char *const models[] = {"rand-r1-q8_0.gguf", "rand-moe-q8_0.gguf", "rand-moe"};
    for (size_t i = 0; i < SL_COUNTOF(models); i++) {
        for (int level = 0; level < SL_ISA_COUNT; level++) {
            if (!sl_isa_usable((sl_isa)level))
                continue;
            sl_error err;
            sl_engine *engine;
            sl_engine_params params = sl_engine_params_default();
            params.isa = sl_isa_name((sl_isa)level);
            params.n_threads = 1;
            const size_t before = sl_mem_get_stats().bytes[SL_MEM_WEIGHTS];
            assert_ok(sl_engine_open(sl_model_path(models[i]), &params, &engine, &err));
            const size_t taken = sl_mem_get_stats().bytes[SL_MEM_WEIGHTS] - before;
            sl_memory_plan plan;
            assert_ok(sl_engine_memory_plan(engine, 1000, &plan, &err));
            assert_true(plan.weights_mapped <= plan.weights);
            if (level == SL_ISA_SCALAR)
                assert_int_equal(plan.weights_packed, 0);
            else if (strstr(models[i], "q8_0"))
                assert_true(plan.weights_packed > plan.weights_mapped);
            const size_t planned = plan.weights_packed + plan.weights_owned;
            print_message("%s, %s: %zu mapped, %zu packed, %zu owned; %zu taken\n", models[i],
                          params.isa, plan.weights_mapped, plan.weights_packed, plan.weights_owned,
                          taken);
            assert_in_range(taken, planned, planned + 32768); /* lists of matrices and layers */
            sl_engine_close(engine);
        }
    }
}

/* The exact border, and the figures of a model that does not fit. */
static void test_model_larger_than_a_device(void **state)
{
    (void)state;
    sl_error err;
    const sl_memory_plan plan = {
        .weights_packed = 7 << 20, .scratch = 2 << 20, .state_fixed = 1 << 20};
    assert_ok(sl_memory_plan_fits_device(&plan, "big.gguf", "cuda:3", 10 << 20, &err));
    assert_int_equal(sl_memory_plan_fits_device(&plan, "big.gguf", "cuda:3", (10 << 20) - 1, &err),
                     SL_ERR_MEMORY);
    assert_non_null(strstr(err.message, "big.gguf does not fit on cuda:3: weights 7.0 MiB"));
    assert_non_null(strstr(err.message, "make 10.0 MiB, 10.0 MiB are free"));
}

int main(void)
{
    sl_weights *weights;
    if (sl_weights_open(sl_model_path(small), &weights, NULL) == SL_OK)
        sl_weights_close(weights);
    sigaction(SIGBUS, NULL, &guard);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_arguments),
        cmocka_unit_test(test_forked_process),
        cmocka_unit_test(test_cancelling_keeps_what_is_done),
        cmocka_unit_test(test_meddling_progress_functions),
        cmocka_unit_test(test_draft_rows_follow_the_state),
        cmocka_unit_test(test_every_allocation_may_fail),
        cmocka_unit_test(test_truncated_while_in_use),
        cmocka_unit_test(test_poisoned_weights_are_named),
        cmocka_unit_test(test_router_and_head_faults),
        cmocka_unit_test(test_memory_plan_is_what_is_taken),
        cmocka_unit_test(test_model_larger_than_a_device),
        cmocka_unit_test(test_plan_of_the_weights),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
