/* The draft head (multi-token prediction) of the demonstration model against reference values:
 * teacher-forced over two documents. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "models.h"

#include "base/mem.h"

static size_t argmax(const float *row, size_t n)
{
    size_t best = 0;
    for (size_t i = 1; i < n; i++)
        best = row[i] > row[best] ? i : best;
    return best;
}

typedef struct draft_result {
    double hidden_max_abs, logits_max_abs;
    size_t rows, argmax_equal, main_argmax_equal;
} draft_result;

static void check_document(sl_engine *engine, const sl_golden *golden, const char *name,
                           draft_result *result)
{
    sl_error err;
    char key[64];
    size_t vocab = sl_engine_vocab(engine), width = sl_engine_config(engine)->hidden;
    sl_prompt prompt = sl_test_prompt("tiny", name);
    sl_state *state = NULL;
    assert_ok(sl_state_create(engine, (uint32_t)prompt.n, &state, &err));
    float *logits = sl_alloc_array(SL_MEM_GENERAL, prompt.n * vocab, sizeof(float));
    float *hidden = sl_alloc_array(SL_MEM_GENERAL, prompt.n * width, sizeof(float));
    sl_eval_item item = {.state = state,
                         .tokens = prompt.ids,
                         .n_tokens = prompt.n,
                         .all_logits = true,
                         .logits = logits,
                         .hidden = hidden};
    assert_ok(sl_engine_eval(engine, &item, 1, NULL, &err));
    snprintf(key, sizeof key, "%s.h", name);
    const sl_golden_tensor *h = sl_golden_find(golden, key);
    for (size_t i = 0; h && i < h->n_elems; i++)
        result->hidden_max_abs = fmax(result->hidden_max_abs, fabs((double)hidden[i] - h->f32[i]));
    snprintf(key, sizeof key, "%s.main_argmax", name);
    const int32_t *main_argmax = sl_golden_i32(golden, key, prompt.n);
    for (size_t i = 0; i < prompt.n; i++)
        result->main_argmax_equal += argmax(logits + i * vocab, vocab) == (size_t)main_argmax[i];

    /* In pieces, as drafting will do it. */
    size_t rows = prompt.n - 1;
    for (size_t done = 0; done < rows;) {
        size_t n = sl_min_size(done == 0 ? 17 : 5, rows - done);
        assert_ok(sl_engine_eval_mtp(engine, state, prompt.ids + done + 1, hidden + done * width,
                                     (uint32_t)done, n, logits + done * vocab, &err));
        done += n;
    }
    snprintf(key, sizeof key, "%s.draft_logits", name);
    const sl_golden_tensor *draft = sl_golden_get(golden, key);
    for (size_t i = 0; i < draft->n_elems; i++)
        result->logits_max_abs =
            fmax(result->logits_max_abs, fabs((double)logits[i] - draft->f32[i]));
    snprintf(key, sizeof key, "%s.draft_argmax", name);
    const int32_t *draft_argmax = sl_golden_i32(golden, key, rows);
    for (size_t i = 0; i < rows; i++)
        result->argmax_equal += argmax(logits + i * vocab, vocab) == (size_t)draft_argmax[i];
    result->rows += rows;
    sl_free(hidden);
    sl_free(logits);
    sl_state_free(state);
}

static draft_result check_file(const char *path, const char *golden_path)
{
    sl_engine *engine = sl_test_engine(path, 2, true);
    assert_true(sl_engine_has_mtp(engine));
    sl_golden *golden = sl_golden_open(golden_path);
    draft_result result = {0};
    check_document(engine, golden, "M0", &result);
    check_document(engine, golden, "M1", &result);
    sl_golden_close(golden);
    sl_engine_close(engine);
    print_message("%zu rows: hidden %.1e, draft logits max abs %.1e, draft argmax equal %zu, main "
                  "%zu\n",
                  result.rows, result.hidden_max_abs, result.logits_max_abs, result.argmax_equal,
                  result.main_argmax_equal);
    return result;
}

static void test_float_weights(void **state)
{
    (void)state;
    if (!sl_tiny_folder())
        skip_because("the demonstration model's Hugging Face folder is not here");
    draft_result r = check_file(sl_tiny_folder(), "tests/data/logits/tiny-mtp-f32.safetensors");
    assert_true(r.hidden_max_abs <= 1e-3);
    assert_true(r.logits_max_abs <= 1e-3);
    assert_int_equal(r.argmax_equal, r.rows);
    assert_int_equal(r.main_argmax_equal, r.rows + 2);
}

/* Activations are rounded to int8, so only the choice is compared. */
static void test_q8_0_weights(void **state)
{
    (void)state;
    draft_result r =
        check_file(sl_model_path("tiny-q8_0.gguf"), "tests/data/logits/tiny-mtp-q8_0.safetensors");
    assert_true(r.argmax_equal * 100 >= r.rows * 97);
    assert_true(r.logits_max_abs <= 0.5);
}

static void test_models_without_a_head(void **state)
{
    (void)state;
    sl_engine *engine = sl_test_engine(sl_model_path("rand-r1-q8_0.gguf"), 1, false);
    assert_false(sl_engine_has_mtp(engine));
    sl_state *s = NULL;
    sl_error err;
    assert_ok(sl_state_create(engine, 8, &s, &err));
    int32_t token = 1;
    float hidden[64] = {0}, logits[512];
    assert_refused(sl_engine_eval_mtp(engine, s, &token, hidden, 0, 1, logits, &err),
                   SL_ERR_UNSUPPORTED, "no draft (MTP) head");
    sl_state_free(s);
    sl_engine_close(engine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_float_weights),
        cmocka_unit_test(test_q8_0_weights),
        cmocka_unit_test(test_models_without_a_head),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
