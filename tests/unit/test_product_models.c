/* Packed weights in whole models: every instruction-set level gives the logits of the scalar one
 * bit for bit, in pieces of any size, for dense models and mixtures of experts, and loading takes
 * the memory it said it would and gives it back. */
#include <stdio.h>
#include <string.h>

#include "models.h"
#include "numbers.h"

#include "backend/cpu/kernels/isa.h"
#include "base/mem.h"

static const char *const models[] = {"rand-r1-q8_0.gguf",  "rand-r3-q8_0.gguf",
                                     "rand-moe-q8_0.gguf", "rand-r3-bf16.gguf",
                                     "rand-moe-bf16.gguf", "rand-moe"};

/* A file, or random weights. */
typedef struct source {
    const char *path;
    sl_synthetic random;
} source;

static sl_status open_level(const source *from, sl_isa isa, unsigned n_threads, sl_engine **out,
                            sl_error *err)
{
    sl_engine_params params = sl_engine_params_default();
    params.isa = sl_isa_name(isa);
    params.n_threads = n_threads;
    params.max_rows = 64;
    params.checkpoint_budget = 0;
    return from->path ? sl_engine_open(from->path, &params, out, err)
                      : sl_engine_open_synthetic(&from->random, &params, out, err);
}

static float *logits_of(const source *from, sl_isa isa, unsigned n_threads, uint32_t max_rows,
                        const sl_prompt *prompt, size_t *n)
{
    sl_error err;
    sl_engine *engine = NULL;
    assert_ok(open_level(from, isa, n_threads, &engine, &err));
    *n = prompt->n * sl_engine_vocab(engine);
    float *logits = sl_test_logits(engine, prompt->ids, prompt->n, max_rows);
    sl_engine_close(engine);
    return logits;
}

/* Every level against the scalar one; pieces[i] rows at a time on 1 + i threads. */
static void check_levels(const source *from, const char *what, const uint32_t pieces[],
                         unsigned n_pieces)
{
    sl_prompt prompt = sl_test_prompt("rand", "A");
    prompt.n = sl_min_size(prompt.n, 40);
    size_t n;
    float *expected = logits_of(from, SL_ISA_SCALAR, 2, 64, &prompt, &n);
    for (int isa = 1; isa < SL_ISA_COUNT; isa++) {
        if (!sl_isa_usable((sl_isa)isa))
            continue;
        for (unsigned i = 0; i < n_pieces; i++) {
            float *got = logits_of(from, (sl_isa)isa, 1 + i, pieces[i], &prompt, &n);
            for (size_t k = 0; k < n; k++) {
                if (!sl_same_float(got[k], expected[k]))
                    fail_msg("%s, %s, pieces of %u: logit %zu is %a, expected %a", what,
                             sl_isa_name((sl_isa)isa), pieces[i], k, (double)got[k],
                             (double)expected[k]);
            }
            sl_free(got);
        }
    }
    sl_free(expected);
}

static void test_every_level(void **state)
{
    (void)state;
    static const uint32_t pieces[] = {64, 1, 7};
    for (size_t m = 0; m < SL_COUNTOF(models); m++) {
        char path[256];
        snprintf(path, sizeof path, "%s", sl_model_path(models[m]));
        check_levels(&(source){.path = path}, models[m], pieces, SL_COUNTOF(pieces));
    }
}

/* Every type of weights, in a dense model and in a mixture, whose experts are products of rows
 * picked out of a run. */
static void test_every_type(void **state)
{
    (void)state;
    static const char *const shapes[] = {"tiny", "tiny-moe"};
    static const uint32_t pieces[] = {64, 1};
    for (size_t i = 0; i < SL_COUNTOF(shapes); i++) {
        const char *type;
        for (size_t t = 0; (type = sl_synthetic_type_name(t)); t++) {
            char what[64];
            snprintf(what, sizeof what, "%s %s", shapes[i], type);
            const source from = {.random = {.shape = shapes[i], .type = type}};
            check_levels(&from, what, pieces, SL_COUNTOF(pieces));
        }
    }
}

/* At every level: what the plan announces is what is taken, about, and all of it comes back. */
static void test_memory(void **state)
{
    (void)state;
    sl_error err;
    for (size_t m = 0; m < SL_COUNTOF(models); m++) {
        for (int isa = 0; isa < SL_ISA_COUNT; isa++) {
            if (!sl_isa_usable((sl_isa)isa))
                continue;
            const sl_mem_stats before = sl_mem_get_stats();
            sl_engine *engine = NULL;
            sl_memory_plan plan;
            const source from = {.path = sl_model_path(models[m])};
            assert_ok(open_level(&from, (sl_isa)isa, 2, &engine, &err));
            assert_ok(sl_memory_plan_compute(sl_engine_weights(engine), sl_engine_config(engine),
                                             sl_engine_get_params(engine), 100, &plan, &err));
            const size_t taken = sl_mem_get_stats().bytes[SL_MEM_WEIGHTS];
            const size_t planned = plan.weights_packed + plan.weights_owned;
            assert_in_range(taken - before.bytes[SL_MEM_WEIGHTS], planned, planned + 40000);
            sl_engine_close(engine);
            assert_int_equal(sl_mem_get_stats().blocks, before.blocks);
        }
    }
}

/* Every allocation of loading may fail: a sentence, nothing left behind. */
static void test_allocation_failures(void **state)
{
    (void)state;
    char path[256];
    snprintf(path, sizeof path, "%s", sl_model_path("rand-moe-bf16.gguf"));
    const size_t blocks = sl_mem_get_stats().blocks;
    bool said_what_there_is = false;
    sl_status status = SL_ERR_MEMORY;
    for (uint64_t n = 1; status != SL_OK; n += n < 20 ? 1 : 7) {
        sl_error err = {0};
        sl_engine *engine = NULL;
        sl_mem_fail_at(n, true);
        status =
            open_level(&(source){.path = path},
                       sl_isa_usable(SL_ISA_AVX2) ? SL_ISA_AVX2 : SL_ISA_SCALAR, 1, &engine, &err);
        sl_mem_fail_at(0, false);
        if (status == SL_OK)
            sl_engine_close(engine);
        else
            assert_true(status == SL_ERR_MEMORY && strlen(err.message) > 10);
        said_what_there_is = said_what_there_is || strstr(err.message, "MiB are left");
        assert_int_equal(sl_mem_get_stats().blocks, blocks);
    }
    assert_true(said_what_there_is || !sl_isa_usable(SL_ISA_AVX2));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_level),
        cmocka_unit_test(test_every_type),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_allocation_failures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
