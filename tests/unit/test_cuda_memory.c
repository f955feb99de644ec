/* What a memory plan says that a device needs is not less than what opening a model and computing
 * with it take there. Skipped, with the reason, where no device can be used. */
#include "device.h"
#include "models.h"
#include "support.h"

#ifdef SL_CUDA
#include "backend/cuda/cuda_internal.h"
#include "engine/engine_internal.h"

enum { CONTEXT = 600, ROWS = 200, STEPS = 3 };

static void evaluate(sl_engine *engine, sl_state *state, size_t n_tokens, float *logits)
{
    int32_t tokens[CONTEXT];
    for (size_t i = 0; i < n_tokens; i++)
        tokens[i] = (int32_t)(i * 7 % 200);
    const sl_eval_item item = {
        .state = state, .tokens = tokens, .n_tokens = (uint32_t)n_tokens, .logits = logits};
    sl_error err;
    assert_ok(sl_engine_eval(engine, &item, 1, NULL, &err));
}

static void check_plan(const char *path)
{
    sl_engine_params params = sl_engine_params_default();
    params.device = "cuda:0";
    params.max_rows = ROWS;
    sl_engine *engine;
    sl_state *state;
    sl_memory_plan plan;
    sl_error err;
    assert_ok(sl_engine_open(path, &params, &engine, &err));
    assert_ok(sl_engine_memory_plan(engine, CONTEXT, &plan, &err));
    const sl_cuda *cuda = (const sl_cuda *)(const void *)engine->backend;
    assert_true(plan.weights_packed <= cuda->n_bytes);
    float *logits = test_malloc(sl_engine_vocab(engine) * sizeof *logits);
    assert_ok(sl_state_create(engine, CONTEXT, &state, &err));
    evaluate(engine, state, CONTEXT - 2 * STEPS - 20, logits);
    for (int i = 0; i < STEPS; i++)
        evaluate(engine, state, 1, logits);
    evaluate(engine, state, 16, logits);
    const size_t taken = cuda->n_bytes + sl_plan_arena_bytes(engine->plan);
    if (plan.weights_packed + plan.scratch < taken)
        print_message("%s: %zu planned, %zu taken\n", path, plan.weights_packed + plan.scratch,
                      taken);
    assert_true(plan.weights_packed + plan.scratch >= taken);
    sl_state_free(state);
    sl_engine_close(engine);
    test_free(logits);
}

static void test_plan(void **state)
{
    (void)state;
    sl_test_need_device();
    static const char *const models[] = {"rand-r1-q8_0.gguf", "rand-moe-q8_0.gguf",
                                         "rand-moe-bf16.gguf"};
    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        check_plan(sl_model_path(models[i]));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_plan)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#else
static void test_without(void **state)
{
    (void)state;
    print_message("skipped: built without CUDA\n");
    skip();
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_without)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#endif
