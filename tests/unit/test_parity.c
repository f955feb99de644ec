/* The measures of `sluice parity` on rows whose distances are known, the names of reference
 * tensors, and the command itself on good and on spoiled references. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "models.h"
#include "parity_metrics.h"
#include "process.h"
#include "references.h"
#include "taps.h"

#include "base/mem.h"

#define assert_near(a, b, tolerance) assert_true(fabs((double)(a) - (double)(b)) <= (tolerance))

/* ---- rows ---- */

static void test_row_distances(void **state)
{
    (void)state;
    const float a[] = {3, 4, 0}, twice[] = {6, 8, 0}, across[] = {-4, 3, 0}, zero[3] = {0};
    sl_row_distance d = sl_row_compare(a, a, 3);
    assert_true(d.cosine == 1 && d.max_abs == 0 && d.norm_ratio == 1);
    d = sl_row_compare(a, twice, 3);
    assert_true(d.cosine == 1 && d.max_abs == 4 && d.norm_ratio == 2);
    d = sl_row_compare(a, across, 3);
    assert_true(d.cosine == 0 && d.max_abs == 7 && d.norm_ratio == 1);
    d = sl_row_compare(a, zero, 3);
    assert_true(d.cosine == 0 && d.max_abs == 4 && d.norm_ratio == 0);
    d = sl_row_compare(zero, zero, 3);
    assert_true(d.cosine == 1 && d.max_abs == 0 && d.norm_ratio == 1);
}

/* Values that are not numbers never look like agreement. */
static void test_rows_that_are_not_finite(void **state)
{
    (void)state;
    const float good[] = {1, 2, 3}, nan_row[] = {1, NAN, 3}, inf_row[] = {1, INFINITY, 3};
    assert_true(isinf(sl_row_compare(good, nan_row, 3).max_abs));
    assert_true(isinf(sl_row_compare(nan_row, good, 3).max_abs));
    assert_true(isinf(sl_row_compare(nan_row, nan_row, 3).max_abs));
    assert_true(isinf(sl_row_compare(good, inf_row, 3).max_abs));
    assert_true(sl_row_compare(inf_row, inf_row, 3).max_abs == 0);
    assert_true(isinf(sl_logits_compare(good, nan_row, 3).kl));
    assert_true(isinf(sl_logits_compare(nan_row, good, 3).kl));

    sl_parity_summary summary = {0};
    sl_row_distance row = sl_row_compare(good, nan_row, 3);
    sl_parity_add(&summary, &row, NULL);
    row = sl_row_compare(good, good, 3);
    sl_parity_add(&summary, &row, NULL);
    assert_true(isinf(summary.max_abs));
    assert_false(summary.min_norm_ratio >= 1 && summary.max_norm_ratio <= 1);
}

static void test_divergence_of_logits(void **state)
{
    (void)state;
    /* softmax: (1/2, 1/4, 1/4) and (1/4, 1/4, 1/2), shifted by constants that must not matter. */
    const float ln2 = 0.69314718f;
    const float p[] = {5 + ln2, 5, 5}, q[] = {-7, -7, -7 + ln2};
    const sl_logits_distance d = sl_logits_compare(p, q, 3);
    assert_near(d.kl, 0.25 * log(2), 1e-6);
    assert_int_equal(d.golden_top, 0);
    assert_int_equal(d.our_top, 2);
    assert_near(d.margin, log(2), 1e-6);
    assert_true(sl_logits_compare(p, p, 3).kl == 0);
    /* Large logits do not overflow, tiny probabilities do not spoil the sum. */
    const float high[] = {3e38f, -3e38f, 0};
    assert_true(sl_logits_compare(high, high, 3).kl == 0);
    /* Ties go to the lowest index. */
    const float tie[] = {1, 2, 2};
    assert_int_equal(sl_logits_compare(tie, tie, 3).our_top, 1);
    assert_true(sl_logits_compare(tie, tie, 3).margin == 0);
}

static void test_summary_of_rows(void **state)
{
    (void)state;
    sl_parity_summary summary = {0};
    const float golden[4][2] = {{1, 0}, {1, 0}, {1, 0.5f}, {0, 1}};
    const float ours[4][2] = {{1, 0}, {1, 0.25f}, {1, 2}, {3, 1}};
    for (int i = 0; i < 4; i++) {
        const sl_row_distance row = sl_row_compare(golden[i], ours[i], 2);
        const sl_logits_distance logits = sl_logits_compare(golden[i], ours[i], 2);
        sl_parity_add(&summary, &row, &logits);
    }
    assert_int_equal(summary.n_rows, 4);
    assert_true(summary.max_abs == 3);
    assert_int_equal(summary.max_abs_row, 3);
    assert_int_equal(summary.n_same_top, 2);
    assert_true(summary.diverged);
    assert_int_equal(summary.first_divergent, 2);
    assert_int_equal(summary.divergent_golden, 0);
    assert_int_equal(summary.divergent_ours, 1);
    assert_true(summary.divergent_margin == 0.5);
    assert_true(summary.max_kl >= sl_parity_mean_kl(&summary) && sl_parity_mean_kl(&summary) > 0);
    assert_true(summary.max_norm_ratio > 3 && summary.min_norm_ratio == 1);
}

/* ---- names ---- */

static void test_names_of_references(void **state)
{
    (void)state;
    sl_reference_name name;
    assert_true(sl_reference_parse_name("A.first65", &name));
    assert_string_equal(name.prompt, "A");
    assert_true(name.is_logits && !name.last && !name.whole && name.n_rows == 65);
    assert_true(sl_reference_parse_name("A.127.last4", &name));
    assert_true(name.last && name.n_prefix == 127 && name.n_rows == 4);
    assert_true(sl_reference_parse_name("B.all", &name));
    assert_true(name.whole && name.is_logits);
    assert_true(sl_reference_parse_name("logits", &name));
    assert_true(name.last && name.prompt[0] == '\0');
    static const char *const layers[] = {"embed", "final_norm", "L0.mixer", "L12.in_proj_qkv"};
    for (size_t i = 0; i < SL_COUNTOF(layers); i++) {
        assert_true(sl_reference_parse_name(layers[i], &name));
        assert_true(name.whole && !name.is_logits);
    }
    static const char *const others[] = {"",
                                         "A",
                                         "A.",
                                         "A.router_gap",
                                         "A.first",
                                         "A.first4x",
                                         "A.127.last",
                                         "A.127",
                                         "L.mixer",
                                         "L1",
                                         "L1.",
                                         "M0.draft_logits",
                                         "a_very_long_prompt_name.all"};
    for (size_t i = 0; i < SL_COUNTOF(others); i++)
        assert_false(sl_reference_parse_name(others[i], &name));
}

/* Value heads of a GGUF model (tiled) are brought into grouped order: 2 key heads, 6 value heads.
 */
static void test_order_of_value_heads(void **state)
{
    (void)state;
    sl_error err;
    const sl_model_info model = {
        .value_heads_tiled = true, .gdn_key_heads = 2, .gdn_value_heads = 6, .gdn_dim = 128};
    float rows[2][6];
    for (int i = 0; i < 12; i++)
        rows[i / 6][i % 6] = (float)i;
    sl_taps taps;
    sl_taps_init(&taps, 2);
    sl_taps_collect(&taps, "L0.in_proj_a", rows[0], 1, 6);
    sl_taps_collect(&taps, "L0.mixer", rows[0], 2, 6);
    sl_taps_collect(&taps, "L0.in_proj_a", rows[1], 1, 6);
    assert_ok(sl_taps_finish(&taps, &model, &err));
    const float expected[] = {0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11};
    assert_memory_equal(sl_taps_find(&taps, "L0.in_proj_a")->values, expected, sizeof expected);
    assert_memory_equal(sl_taps_find(&taps, "L0.mixer")->values, rows, sizeof rows);
    assert_null(sl_taps_find(&taps, "L1.mixer"));

    /* More rows than announced are refused, not written. */
    sl_taps_collect(&taps, "L0.mixer", rows[0], 1, 6);
    assert_refused(sl_taps_finish(&taps, &model, &err), SL_ERR_ARGUMENT, "L0.mixer");
    sl_taps_free(&taps);
}

/* ---- the command ---- */

static const char *golden_path(const char *name)
{
    static char path[256];
    snprintf(path, sizeof path, "tests/data/logits/%s.safetensors", name);
    return path;
}

static void expect_parity(const char *model, const char *golden, const char *limit, int status)
{
    sl_process p = sl_sluice(NULL, "parity", sl_model_path(model), "--golden", golden, "--kv",
                             "f32", "--max-abs", limit);
    sl_process_expect(&p, status, status == 0 ? "within the limits" : "OUTSIDE the limits", NULL);
    sl_process_free(&p);
}

static void test_float_models_agree(void **state)
{
    (void)state;
    expect_parity("rand-r3-bf16.gguf", golden_path("rand-r3-f32"), "5e-4", 0);
    expect_parity("rand-r3-bf16.gguf", golden_path("rand-r3-layers"), "5e-4", 0);
    expect_parity("rand-moe", golden_path("rand-moe-layers"), "5e-4", 0);
    /* Rounded weights and activations are further away than that. */
    expect_parity("rand-r3-q8_0.gguf", golden_path("rand-r3-f32"), "5e-4", 1);
}

static sl_process write_logits(const char *path)
{
    return sl_sluice(NULL, "logits", sl_model_path("rand-r3-q8_0.gguf"), "--tokens",
                     "5,6,7,200,100,9,1", "--all", "--layers", "--out", path);
}

/* What `logits` wrote, `parity` reads back without any difference; one changed value is found. */
static void test_planted_error(void **state)
{
    (void)state;
    char path[512];
    snprintf(path, sizeof path, "%s", sl_build_path("test_parity.safetensors"));
    sl_process p = write_logits(path);
    sl_process_expect(&p, 0, NULL, NULL);
    sl_process_free(&p);
    const char *model = sl_model_path("rand-r3-q8_0.gguf");
    p = sl_sluice(NULL, "parity", model, "--golden", path, "--max-abs", "0", "--max-kl", "0");
    sl_process_expect(&p, 0, "within the limits", NULL);
    sl_process_free(&p);

    sl_golden *golden = sl_golden_open(path);
    const sl_golden_tensor *tokens = sl_golden_get(golden, "tokens");
    const sl_golden_tensor *logits = sl_golden_get(golden, "logits");
    assert_int_equal(tokens->n_elems, 7);
    assert_int_equal(logits->shape[0], 7);
    float *spoiled = malloc(logits->n_bytes);
    assert_non_null(spoiled);
    memcpy(spoiled, logits->f32, logits->n_bytes);
    spoiled[3 * logits->shape[1] + 17] += 64; /* position 3 now prefers token 17 */
    const sl_array entries[] = {
        {"tokens", SL_ARRAY_I32, 1, {7}, tokens->i32},
        {"logits", SL_ARRAY_F32, 2, {7, logits->shape[1]}, spoiled},
    };
    sl_error err;
    assert_ok(sl_arrays_write(path, entries, 2, NULL, 0, &err));
    p = sl_sluice(NULL, "parity", model, "--golden", path, "--max-kl", "1e-3", "--json");
    sl_process_expect(&p, 1, "\"max_abs\": ", NULL);
    json_t *result = json_loads(p.out, 0, NULL);
    const json_t *tensor = json_array_get(json_object_get(result, "tensors"), 0);
    const json_t *first = json_object_get(tensor, "first_divergent");
    assert_near(json_real_value(json_object_get(tensor, "max_abs")), 64, 1e-4);
    assert_int_equal(json_integer_value(json_object_get(tensor, "same_top")), 6);
    assert_int_equal(json_integer_value(json_object_get(tensor, "max_abs_row")), 3);
    assert_int_equal(json_integer_value(json_object_get(first, "position")), 3);
    assert_int_equal(json_integer_value(json_object_get(first, "reference")), 17);
    assert_false(json_boolean_value(json_object_get(result, "within_limits")));
    json_decref(result);
    sl_process_free(&p);

    /* Without limits the table is the result. */
    p = sl_sluice(NULL, "parity", model, "--golden", path);
    sl_process_expect(&p, 0, "first other choice at position 3", NULL);
    sl_process_free(&p);
    free(spoiled);
    sl_golden_close(golden);
    remove(path);
}

static void test_references_that_do_not_fit(void **state)
{
    (void)state;
    static const char *const cases[][3] = {
        {"rand-r1-q8_0.gguf", "tests/data/logits/tiny-f32.safetensors", "vocabulary"},
        {"rand-r1-q8_0.gguf", "tests/data/logits/no-such-file.safetensors", "no-such-file"},
        {"rand-r1-q8_0.gguf", "tests/data/logits/prompts.json", "header"},
        {"rand-r1-q8_0.gguf", "tests/data/quants/blocks.safetensors", "prompts.json"},
    };
    for (size_t i = 0; i < SL_COUNTOF(cases); i++) {
        sl_process p =
            sl_sluice(NULL, "parity", sl_model_path(cases[i][0]), "--golden", cases[i][1]);
        sl_process_expect(&p, 1, NULL, cases[i][2]);
        sl_process_free(&p);
    }
    sl_process p = sl_sluice(NULL, "parity", sl_model_path("rand-r1-q8_0.gguf"), "--golden",
                             golden_path("rand-r1-f32"), "--prompt-set", "none");
    sl_process_expect(&p, 1, NULL, "there is no set 'none'");
    sl_process_free(&p);
    p = sl_sluice(NULL, "parity", sl_model_path("rand-r1-q8_0.gguf"), "--golden",
                  "tests/data/quants/blocks.safetensors", "--prompts",
                  "tests/data/logits/prompts.json");
    sl_process_expect(&p, 1, NULL, "nothing to compare");
    sl_process_free(&p);
}

/* As many prompts as a file may hold, and one more. */
static void test_limit_of_prompts(void **state)
{
    (void)state;
    char path[4096];
    snprintf(path, sizeof path, "%s", sl_build_path("test_parity_prompts.json"));
    for (int n = 32; n <= 33; n++) {
        sl_error err;
        sl_references *references;
        FILE *file = fopen(path, "w");
        assert_non_null(file);
        fprintf(file, "{\"set\": {\"A\": [1]");
        for (int i = 1; i < n; i++)
            fprintf(file, ", \"%d\": [1, 2]", i);
        fprintf(file, "}}");
        assert_int_equal(fclose(file), 0);
        const sl_status status = sl_references_open("tests/data/logits/rand-r1-f32.safetensors",
                                                    path, NULL, 512, &references, &err);
        if (n == 32) /* its prompt A is too short, but they were read */
            assert_refused(status, SL_ERR_FORMAT, "do not fit prompt A of 1 tokens");
        else
            assert_refused(status, SL_ERR_LIMIT, "more than 32 prompts");
    }
    remove(path);
}

/* Own tokens, prompts of another model, no set that fits. */
static void test_prompts_outside_the_vocabulary(void **state)
{
    (void)state;
    sl_error err;
    sl_references *references;
    const char *golden = "tests/data/logits/rand-r1-f32.safetensors";
    assert_refused(sl_references_open(golden, NULL, NULL, 100, &references, &err), SL_ERR_ARGUMENT,
                   "no set of prompts fits a vocabulary of 100");
    assert_refused(sl_references_open(golden, NULL, "tiny", 512, &references, &err),
                   SL_ERR_ARGUMENT, "outside the model's vocabulary of 512");
    assert_ok(sl_references_open(golden, NULL, NULL, 512, &references, &err));
    assert_true(sl_references_count(references) >= 8);
    sl_references_close(references);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_row_distances),
        cmocka_unit_test(test_rows_that_are_not_finite),
        cmocka_unit_test(test_divergence_of_logits),
        cmocka_unit_test(test_summary_of_rows),
        cmocka_unit_test(test_names_of_references),
        cmocka_unit_test(test_order_of_value_heads),
        cmocka_unit_test(test_limit_of_prompts),
        cmocka_unit_test(test_prompts_outside_the_vocabulary),
        cmocka_unit_test(test_float_models_agree),
        cmocka_unit_test(test_planted_error),
        cmocka_unit_test(test_references_that_do_not_fit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
