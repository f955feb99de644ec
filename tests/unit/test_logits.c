/* Logits of the four reference models against transformers in float32.
 *
 * Bounds: float weights with float32 KV 5e-4, with half KV 5e-3 (the references differ by 3e-5
 * among themselves). Q8_0 files round activations to int8, which the f32 references do not: KL for
 * the trained model, looser KL for the random ones, and close agreement of the first rows with a
 * reference that rounds in the same way. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "models.h"

#include "base/mem.h"
#include "parity_metrics.h"

/* ---- measures ---- */

typedef struct measure {
    double max_abs, kl_sum;
    size_t rows, argmax_wrong; /* argmax differs although the reference's margin exceeds 0.3 */
} measure;

static void compare_row(const float *ours, const float *golden, size_t n, measure *m)
{
    sl_logits_distance logits = sl_logits_compare(golden, ours, n);
    m->max_abs = fmax(m->max_abs, sl_row_compare(golden, ours, n).max_abs);
    m->kl_sum += logits.kl;
    m->rows++;
    m->argmax_wrong += logits.margin > 0.3 && logits.our_top != logits.golden_top;
}

/* Compares every stored position of prompts A, B and R. The rows of a short prompt are the first
 * rows of a long one, so one evaluation of each prompt serves all. */
static measure compare_all(sl_engine *engine, const char *set, const char *golden_name)
{
    char path[256];
    snprintf(path, sizeof path, "tests/data/logits/%s.safetensors", golden_name);
    sl_golden *golden = sl_golden_open(path);
    size_t vocab = sl_engine_vocab(engine);
    measure m = {0};
    for (const char *name = sl_test_shortened() ? "BR" : "ABR"; *name; name++) {
        sl_prompt prompt = sl_test_prompt(set, (char[]){*name, '\0'});
        float *ours = sl_test_logits(engine, prompt.ids, prompt.n, 0);
        for (size_t t = 0; t < sl_golden_count(golden); t++) {
            const sl_golden_tensor *tensor = sl_golden_at(golden, t);
            if (tensor->name[0] != *name || strstr(tensor->name, "router_gap"))
                continue;
            size_t first = 0, length;
            if (sscanf(tensor->name, "A.%zu.last4", &length) == 1)
                first = length - 4;
            for (size_t i = 0; i < tensor->shape[0]; i++)
                compare_row(ours + (first + i) * vocab, tensor->f32 + i * vocab, vocab, &m);
        }
        sl_free(ours);
    }
    sl_golden_close(golden);
    assert_true(m.rows >= (sl_test_shortened() ? 33 : 98));
    print_message("%-28s %zu rows, max abs %.2e, mean KL %.2e, %zu argmaxes wrong\n", golden_name,
                  m.rows, m.max_abs, m.kl_sum / (double)m.rows, m.argmax_wrong);
    return m;
}

/* ---- float weights ---- */

static void check_float(const char *path, const char *set, const char *golden)
{
    for (int kv_f32 = 0; kv_f32 <= 1; kv_f32++) {
        sl_engine *engine = sl_test_engine(path, 2, kv_f32);
        measure m = compare_all(engine, set, golden);
        sl_engine_close(engine);
        assert_true(m.max_abs <= (kv_f32 ? 5e-4 : 5e-3));
    }
}

static void test_rand_r1_gguf(void **state)
{
    (void)state;
    check_float(sl_model_path("rand-r1-bf16.gguf"), "rand", "rand-r1-f32");
}

static void test_rand_r1_folder(void **state)
{
    (void)state;
    check_float(sl_model_path("rand-r1"), "rand", "rand-r1-f32");
}

static void test_rand_r3_gguf(void **state)
{
    (void)state;
    check_float(sl_model_path("rand-r3-bf16.gguf"), "rand", "rand-r3-f32");
}

static void test_rand_r3_folder(void **state)
{
    (void)state;
    check_float(sl_model_path("rand-r3"), "rand", "rand-r3-f32");
}

static void test_rand_moe_gguf(void **state)
{
    (void)state;
    check_float(sl_model_path("rand-moe-bf16.gguf"), "rand", "rand-moe-f32");
}

static void test_rand_moe_folder(void **state)
{
    (void)state;
    check_float(sl_model_path("rand-moe"), "rand", "rand-moe-f32");
}

static void test_tiny_folder(void **state)
{
    (void)state;
    if (!sl_tiny_folder())
        skip_because("the demonstration model's Hugging Face folder is not here");
    check_float(sl_tiny_folder(), "tiny", "tiny-f32");
}

/* ---- Q8_0 ---- */

static void check_q8(const char *model, const char *set, double mean_kl, bool argmax_equal)
{
    char path[64], golden[64];
    snprintf(path, sizeof path, "%s-q8_0.gguf", model);
    snprintf(golden, sizeof golden, "%s-q8_0", model);
    sl_engine *engine = sl_test_engine(sl_model_path(path), 2, false);
    measure m = compare_all(engine, set, golden);
    sl_engine_close(engine);
    assert_true(m.kl_sum / (double)m.rows <= mean_kl);
    if (argmax_equal)
        assert_int_equal(m.argmax_wrong, 0);
}

static void test_tiny_q8_0(void **state)
{
    (void)state;
    check_q8("tiny", "tiny", 5e-5, true);
}

static void test_rand_r1_q8_0(void **state)
{
    (void)state;
    check_q8("rand-r1", "rand", 2e-2, false);
}

static void test_rand_r3_q8_0(void **state)
{
    (void)state;
    check_q8("rand-r3", "rand", 2e-2, false);
}

static void test_rand_moe_q8_0(void **state)
{
    (void)state;
    check_q8("rand-moe", "rand", 0.2, false);
}

/* The reference that rounds activations as sluice does agrees until one value rounds the other way;
 * at least the first rows of B come before that. */
static void test_rounded_activations(void **state)
{
    (void)state;
    static const char *const models[] = {"tiny", "rand-r1", "rand-r3", "rand-moe"};
    for (size_t i = 0; i < SL_COUNTOF(models); i++) {
        char path[256];
        snprintf(path, sizeof path, "%s-q8_0.gguf", models[i]);
        sl_engine *engine = sl_test_engine(sl_model_path(path), 2, true);
        snprintf(path, sizeof path, "tests/data/logits/%s-q8_0-act8.safetensors", models[i]);
        sl_golden *golden = sl_golden_open(path);
        const sl_golden_tensor *all = sl_golden_get(golden, "B.all");
        sl_prompt prompt = sl_test_prompt(i == 0 ? "tiny" : "rand", "B");
        float *ours = sl_test_logits(engine, prompt.ids, prompt.n, 0);
        size_t vocab = sl_engine_vocab(engine), agreeing = 0;
        for (; agreeing < prompt.n; agreeing++) {
            measure m = {0};
            compare_row(ours + agreeing * vocab, all->f32 + agreeing * vocab, vocab, &m);
            if (m.max_abs > 1e-3)
                break;
        }
        print_message("%-10s agrees to 1e-3 on the first %zu of %zu rows\n", models[i], agreeing,
                      prompt.n);
        assert_true(agreeing >= 3);
        sl_free(ours);
        sl_golden_close(golden);
        sl_engine_close(engine);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rand_r1_gguf),  cmocka_unit_test(test_rand_r1_folder),
        cmocka_unit_test(test_rand_r3_gguf),  cmocka_unit_test(test_rand_r3_folder),
        cmocka_unit_test(test_rand_moe_gguf), cmocka_unit_test(test_rand_moe_folder),
        cmocka_unit_test(test_tiny_folder),   cmocka_unit_test(test_tiny_q8_0),
        cmocka_unit_test(test_rand_r1_q8_0),  cmocka_unit_test(test_rand_r3_q8_0),
        cmocka_unit_test(test_rand_moe_q8_0), cmocka_unit_test(test_rounded_activations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
