/* Models of random weights: the same for the same seed, of the shapes and types they are named
 * after, with values that keep activations finite, and equal to the file that is saved of them. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "model_build.h"
#include "models.h"

#include "base/mem.h"
#include "model/config.h"
#include "model/model.h"
#include "model/synthetic.h"

static sl_weights *open_weights(const char *shape, const char *type, uint64_t seed)
{
    sl_error err;
    sl_weights *weights;
    const sl_synthetic model = {.shape = shape, .type = type, .seed = seed};
    assert_ok(sl_synthetic_weights(&model, false, &weights, &err));
    return weights;
}

static size_t n_elements(const sl_tensor *tensor)
{
    return (size_t)(tensor->ne[0] * tensor->ne[1] * tensor->ne[2] * tensor->ne[3]);
}

static void assert_same_weights(const sl_weights *a, const sl_weights *b)
{
    assert_int_equal(sl_weights_count(a), sl_weights_count(b));
    for (size_t i = 0; i < sl_weights_count(a); i++) {
        const sl_tensor *tensor = sl_weights_at(a, i);
        const sl_tensor *other = sl_weights_find(b, tensor->name);
        assert_non_null(other);
        assert_int_equal(tensor->dtype, other->dtype);
        assert_memory_equal(tensor->ne, other->ne, sizeof tensor->ne);
        assert_int_equal(tensor->n_bytes, other->n_bytes);
        assert_memory_equal(tensor->data, other->data, tensor->n_bytes);
    }
}

static void test_a_function_of_the_seed(void **state)
{
    (void)state;
    sl_weights *a = open_weights("tiny", "q4_k_m", 5), *b = open_weights("tiny", "q4_k_m", 5);
    assert_same_weights(a, b);
    sl_weights_close(b);
    b = open_weights("tiny", "q4_k_m", 6);
    for (size_t i = 0; i < sl_weights_count(a); i++) {
        const sl_tensor *tensor = sl_weights_at(a, i);
        assert_memory_not_equal(tensor->data, sl_weights_find(b, tensor->name)->data,
                                tensor->n_bytes);
    }
    sl_weights_close(b);
    sl_weights_close(a);
}

/* A mixture chooses by the number of layers, a plain type does not. */
static void test_fewer_layers_change_nothing_else(void **state)
{
    (void)state;
    sl_error err;
    sl_weights *all = open_weights("tiny", "q8_0", 1), *some;
    const sl_synthetic model = {.shape = "tiny", .type = "q8_0", .seed = 1, .n_layers = 2};
    assert_ok(sl_synthetic_weights(&model, false, &some, &err));
    assert_true(sl_weights_count(some) < sl_weights_count(all));
    for (size_t i = 0; i < sl_weights_count(some); i++) {
        const sl_tensor *tensor = sl_weights_at(some, i);
        assert_memory_equal(tensor->data, sl_weights_find(all, tensor->name)->data,
                            tensor->n_bytes);
    }
    sl_weights_close(some);
    sl_weights_close(all);
}

/* ---- shapes and types ---- */

static void bind_one(const sl_shape *shape, const sl_synthetic *model)
{
    sl_error err;
    sl_weights *weights;
    sl_config config;
    sl_model *bound;
    assert_ok(sl_synthetic_weights_of(shape, model, true, &weights, &err));
    assert_ok(sl_config_load(weights, &config, &err));
    assert_int_equal(config.n_layers, model->n_layers);
    assert_int_equal(config.vocab, shape->vocab);
    assert_int_equal(config.tied, shape->tied);
    assert_int_equal(config.n_experts, shape->n_experts);
    assert_ok(sl_model_measure(weights, &config, &bound, &err));
    sl_model_free(bound);
    sl_weights_close(weights);
}

static void test_every_shape_binds_in_every_type(void **state)
{
    (void)state;
    size_t n = 0;
    const char *shape_name, *type;
    for (size_t s = 0; (shape_name = sl_synthetic_shape_name(s)); s++) {
        for (size_t t = 0; (type = sl_synthetic_type_name(t)); t++, n++) {
            const sl_synthetic model = {.shape = shape_name, .type = type, .n_layers = 4};
            sl_shape shape = *sl_shape_find(shape_name);
            shape.vocab = 512;
            bind_one(&shape, &model);
        }
    }
    assert_int_equal(n, 8 * 18);
}

/* The parameters that the makers count, in millions (without draft head and vision). */
static void test_shapes_have_the_size_they_are_named_after(void **state)
{
    (void)state;
    static const struct size {
        const char *shape;
        double millions;
    } sizes[] = {{"0.8b", 752}, {"2b", 1882},   {"4b", 4206},
                 {"9b", 8954},  {"27b", 26895}, {"35b-a3b", 34660}};
    sl_engine_params params = sl_engine_params_default();
    params.level = SL_OPEN_HEADERS;
    for (size_t i = 0; i < SL_COUNTOF(sizes); i++) {
        sl_error err;
        sl_engine *engine;
        sl_model_info info;
        sl_memory_plan plan;
        const sl_synthetic model = {.shape = sizes[i].shape, .type = "q8_0"};
        assert_ok(sl_engine_open_synthetic(&model, &params, &engine, &err));
        sl_engine_model_info(engine, &info);
        assert_true(fabs((double)info.n_parameters / 1e6 - sizes[i].millions) < 1.0);
        assert_string_equal(info.main_type, "Q8_0");
        assert_ok(sl_engine_memory_plan(engine, 4096, &plan, &err));
        assert_true((double)plan.weights > sizes[i].millions * 1e6 * 34 / 32);
        sl_run_cost cost;
        const sl_run_shape run = {.n_sequences = 1, .n_rows = 1, .n_logits = 1};
        assert_ok(sl_engine_run_cost(engine, &run, &cost, &err));
        assert_true(cost.weight_bytes > 0 && cost.weight_bytes <= (double)plan.weights);
        /* Of a mixture, the experts that a token chooses. */
        assert_true((info.n_experts > 0) == (cost.weight_bytes < 0.2 * (double)plan.weights));
        sl_engine_close(engine);
    }
}

static sl_dtype type_of(const sl_weights *weights, const char *name)
{
    const sl_tensor *tensor = sl_weights_find(weights, name);
    assert_non_null(tensor);
    return tensor->dtype;
}

static void test_mixtures(void **state)
{
    (void)state;
    sl_error err;
    sl_weights *weights;
    const sl_synthetic model = {.shape = "0.8b", .type = "q4_k_m"};
    assert_ok(sl_synthetic_weights(&model, true, &weights, &err));
    assert_int_equal(type_of(weights, "token_embd.weight"), SL_Q6_K); /* it is the head */
    assert_int_equal(type_of(weights, "blk.0.attn_qkv.weight"), SL_Q6_K);
    assert_int_equal(type_of(weights, "blk.2.ffn_down.weight"), SL_Q6_K);
    assert_int_equal(type_of(weights, "blk.3.attn_v.weight"), SL_Q4_K);
    assert_int_equal(type_of(weights, "blk.5.ffn_down.weight"), SL_Q6_K);
    assert_int_equal(type_of(weights, "blk.20.ffn_down.weight"), SL_Q6_K);
    assert_int_equal(type_of(weights, "blk.19.ffn_down.weight"), SL_Q4_K);
    assert_int_equal(type_of(weights, "blk.23.attn_v.weight"), SL_Q6_K);
    assert_int_equal(type_of(weights, "blk.0.ssm_alpha.weight"), SL_Q4_K);
    sl_weights_close(weights);
    const sl_synthetic untied = {.shape = "9b", .type = "q5_k_m"};
    assert_ok(sl_synthetic_weights(&untied, true, &weights, &err));
    assert_int_equal(type_of(weights, "output.weight"), SL_Q6_K);
    assert_int_equal(type_of(weights, "token_embd.weight"), SL_Q5_K);
    sl_weights_close(weights);
}

/* ---- values ---- */

static void check_tensor(const sl_tensor *tensor)
{
    const size_t n = n_elements(tensor);
    float *x = malloc(n * sizeof *x);
    double sum = 0, squares = 0, low = INFINITY, high = -INFINITY;
    assert_non_null(x);
    sl_dequantise(tensor->dtype, tensor->data, x, n);
    for (size_t i = 0; i < n; i++) {
        assert_true(isfinite(x[i]));
        sum += x[i];
        squares += (double)x[i] * x[i];
        low = fmin(low, x[i]);
        high = fmax(high, x[i]);
    }
    free(x);
    if (strstr(tensor->name, "_norm.weight")) {
        assert_true(low >= 0.9f && high <= 1.1f);
    } else if (strstr(tensor->name, "ssm_a") && tensor->n_dims == 1) {
        assert_true(low >= -8.0001 && high <= -0.0999);
    } else if (strstr(tensor->name, "ssm_dt")) {
        assert_true(log1p(exp(low)) >= 0.000999 && log1p(exp(high)) <= 0.10001);
    } else if (n >= 1 << 12) { /* enough of them to tell */
        const double wanted = 1.0 / sqrt((double)tensor->ne[0]);
        assert_true(fabs(sqrt(squares / (double)n) / wanted - 1.0) < 0.05);
        assert_true(fabs(sum / (double)n) < 0.05 * wanted);
    }
}

static void test_values_are_spread_as_they_should(void **state)
{
    (void)state;
    const char *type;
    for (size_t t = 0; (type = sl_synthetic_type_name(t)); t++) {
        sl_weights *weights = open_weights(t % 2 ? "tiny-moe" : "tiny", type, 3);
        for (size_t i = 0; i < sl_weights_count(weights); i++)
            check_tensor(sl_weights_at(weights, i));
        sl_weights_close(weights);
    }
}

static sl_engine *open_engine(const char *shape, const char *type)
{
    sl_error err;
    sl_engine *engine;
    sl_engine_params params = sl_engine_params_default();
    params.n_threads = 1;
    const sl_synthetic model = {.shape = shape, .type = type, .seed = 11};
    assert_ok(sl_engine_open_synthetic(&model, &params, &engine, &err));
    return engine;
}

static void test_logits_are_finite_and_of_the_usual_size(void **state)
{
    (void)state;
    const char *type;
    int32_t tokens[40];
    for (int i = 0; i < 40; i++)
        tokens[i] = i * 37 % 512;
    for (size_t t = 0; (type = sl_synthetic_type_name(t)); t++) {
        if (sl_test_shortened() && t > 3)
            break;
        for (int moe = 0; moe < 2; moe++) {
            sl_engine *engine = open_engine(moe ? "tiny-moe" : "tiny", type);
            float *logits = sl_test_logits(engine, tokens, 40, 0);
            double squares = 0;
            for (size_t i = 0; i < 40 * 512; i++)
                squares += (double)logits[i] * logits[i];
            const double rms = sqrt(squares / (40 * 512));
            assert_true(rms > 0.9 && rms < 1.1);
            sl_free(logits);
            sl_engine_close(engine);
        }
    }
}

/* ---- the file ---- */

static void test_the_saved_file_is_the_same_model(void **state)
{
    (void)state;
    static const char *const types[] = {"q8_0", "q4_k_m", "mxfp4"};
    const int32_t tokens[] = {5, 300, 17, 17, 511, 0, 98};
    for (size_t i = 0; i < SL_COUNTOF(types); i++) {
        sl_error err;
        sl_weights *weights;
        const sl_tokenizer *tokenizer;
        const char *shape = i % 2 ? "tiny-moe" : "tiny";
        const char *folder = sl_temp_make();
        const char *path = sl_path(folder, "model.gguf");
        const sl_synthetic model = {.shape = shape, .type = types[i], .seed = 11};
        assert_ok(sl_synthetic_save(&model, path, NULL, NULL, &err));

        sl_weights *made = open_weights(shape, types[i], 11);
        assert_ok(sl_weights_open(path, &weights, &err));
        assert_same_weights(made, weights);
        sl_weights_close(weights);
        sl_weights_close(made);

        sl_engine *in_memory = open_engine(shape, types[i]), *file = sl_test_engine(path, 1, false);
        float *a = sl_test_logits(in_memory, tokens, SL_COUNTOF(tokens), 0);
        float *b = sl_test_logits(file, tokens, SL_COUNTOF(tokens), 0);
        assert_memory_equal(a, b, SL_COUNTOF(tokens) * 512 * sizeof *a);
        uint8_t of_memory[SL_FINGERPRINT_BYTES], of_file[SL_FINGERPRINT_BYTES];
        assert_ok(sl_engine_fingerprint(in_memory, of_memory, &err));
        assert_ok(sl_engine_fingerprint(file, of_file, &err));
        assert_memory_equal(of_memory, of_file, sizeof of_file);
        assert_refused(sl_engine_tokenizer(in_memory, &tokenizer, &err), SL_ERR_FORMAT, "");
        assert_ok(sl_engine_tokenizer(file, &tokenizer, &err));
        assert_int_equal(sl_tokenizer_count(tokenizer), 512);
        sl_ids ids = {0};
        assert_ok(sl_tokenizer_encode(tokenizer, "xab ", 4, NULL, &ids, NULL, &err));
        assert_int_equal(ids.n, 3);
        assert_int_equal(ids.ids[0], 'x');
        assert_int_equal(ids.ids[1], 256);
        assert_int_equal(ids.ids[2], ' ');
        assert_int_equal(sl_tokenizer_find(tokenizer, "<|im_end|>"), 259);
        assert_true(sl_engine_is_stop(file, 259));
        sl_ids_free(&ids);
        sl_free(a);
        sl_free(b);
        sl_engine_close(in_memory);
        sl_engine_close(file);
        sl_temp_remove(folder);
    }
}

/* ---- costs ---- */

static void test_costs(void **state)
{
    (void)state;
    sl_error err;
    sl_run_cost one, four, long_run, sum = {0};
    sl_engine *engine = open_engine("tiny", "q8_0");
    sl_run_shape run = {.n_sequences = 1, .n_rows = 1, .pos = 100, .n_logits = 1};
    assert_ok(sl_engine_run_cost(engine, &run, &one, &err));
    /* Three gated delta layers, one of attention, and the head. */
    const double gdn = 256.0 * (1024 + 512 + 4 + 4) + 512 * 256, ffn = 3.0 * 256 * 512;
    const double attention = 256.0 * (1024 + 256 + 256) + 512 * 256, head = 512 * 256;
    const double macs = 3 * gdn + attention + 4 * ffn + head;
    assert_true(one.int8_macs == macs);
    assert_true(one.weight_bytes > macs * 34 / 32 && one.weight_bytes < macs * 34 / 32 * 1.1);
    assert_true(one.state_bytes > 3 * 4 * 65536 && one.float_flops > 0);

    run.n_sequences = run.n_logits = 4;
    assert_ok(sl_engine_run_cost(engine, &run, &four, &err));
    assert_true(four.int8_macs == 4 * one.int8_macs);
    assert_true(four.state_bytes == 4 * one.state_bytes);
    assert_true(four.weight_bytes < 1.01 * one.weight_bytes);

    run = (sl_run_shape){.n_sequences = 1, .n_rows = 600, .n_logits = 1};
    assert_ok(sl_engine_run_cost(engine, &run, &long_run, &err));
    assert_true(long_run.int8_macs == 600 * (macs - head) + head);
    for (uint32_t pos = 0; pos < 600; pos += 256) {
        sl_run_cost piece;
        run = (sl_run_shape){1, pos < 512 ? 256 : 88, pos, pos == 512, {0}};
        assert_ok(sl_engine_run_cost(engine, &run, &piece, &err));
        sum.weight_bytes += piece.weight_bytes;
        sum.float_flops += piece.float_flops;
    }
    assert_true(sum.weight_bytes == long_run.weight_bytes);
    assert_true(sum.float_flops == long_run.float_flops);
    run.n_rows = 0;
    assert_refused(sl_engine_run_cost(engine, &run, &one, &err), SL_ERR_ARGUMENT, "no rows");
    sl_engine_close(engine);
}

/* From the headers alone the costs are the same, and none of it stays. */
static void test_costs_of_headers(void **state)
{
    (void)state;
    sl_error err;
    static const char *const shapes[] = {"tiny", "tiny-moe"};
    for (size_t i = 0; i < SL_COUNTOF(shapes); i++) {
        sl_run_cost full, headers;
        const sl_run_shape run = {.n_sequences = 2, .n_rows = 300, .pos = 7, .n_logits = 2};
        sl_engine *engine = open_engine(shapes[i], "q4_k_m");
        assert_ok(sl_engine_run_cost(engine, &run, &full, &err));
        sl_engine_close(engine);
        sl_engine_params params = sl_engine_params_default();
        params.level = SL_OPEN_HEADERS;
        const sl_synthetic model = {.shape = shapes[i], .type = "q4_k_m"};
        assert_ok(sl_engine_open_synthetic(&model, &params, &engine, &err));
        const size_t blocks = sl_mem_get_stats().blocks;
        sl_status status = SL_ERR_MEMORY;
        for (uint64_t n = 1; status == SL_ERR_MEMORY; n++) {
            sl_mem_fail_at(n, false);
            status = sl_engine_run_cost(engine, &run, &headers, &err);
            sl_mem_fail_at(0, false);
            assert_int_equal(sl_mem_get_stats().blocks, blocks);
        }
        assert_int_equal(status, SL_OK);
        assert_memory_equal(&headers, &full, sizeof full);
        sl_engine_close(engine);
    }
}

/* ---- refusals ---- */

static void test_refusals(void **state)
{
    (void)state;
    sl_error err;
    sl_engine *engine;
    const sl_synthetic no_shape = {.shape = "1b", .type = "q8_0"};
    const sl_synthetic no_type = {.shape = "tiny", .type = "q9_0"};
    const sl_synthetic deep = {.shape = "tiny", .type = "q8_0", .n_layers = 5};
    const sl_synthetic reserved = {.shape = "tiny", .type = "q8_0", .reserved = {1}};
    assert_refused(sl_engine_open_synthetic(&no_shape, NULL, &engine, &err), SL_ERR_ARGUMENT,
                   "no shape '1b'");
    assert_refused(sl_engine_open_synthetic(&no_type, NULL, &engine, &err), SL_ERR_ARGUMENT,
                   "no type 'q9_0'");
    assert_refused(sl_engine_open_synthetic(&deep, NULL, &engine, &err), SL_ERR_ARGUMENT,
                   "5 layers: the shape tiny has 4");
    assert_refused(sl_engine_open_synthetic(&reserved, NULL, &engine, &err), SL_ERR_ARGUMENT,
                   "sl_synthetic");
    assert_refused(sl_synthetic_save(&no_shape, "x", NULL, NULL, &err), SL_ERR_ARGUMENT,
                   "no shape");
    sl_shape odd = *sl_shape_find("tiny");
    odd.hidden = 288;
    sl_weights *weights;
    assert_refused(sl_synthetic_weights_of(&odd, &(sl_synthetic){.shape = "odd", .type = "q4_k"},
                                           true, &weights, &err),
                   SL_ERR_ARGUMENT, "token_embd.weight has a shape");
}

static void test_out_of_memory(void **state)
{
    (void)state;
    const size_t blocks = sl_mem_get_stats().blocks;
    const sl_synthetic model = {.shape = "tiny", .type = "q4_0", .n_layers = 1};
    sl_status status = SL_ERR_MEMORY;
    for (uint64_t n = 1; status != SL_OK; n++) {
        sl_error err;
        sl_weights *weights = NULL;
        sl_mem_fail_at(n, false);
        status = sl_synthetic_weights(&model, true, &weights, &err);
        sl_mem_fail_at(0, false);
        assert_true(status == SL_OK || status == SL_ERR_MEMORY);
        assert_true((status == SL_OK) == (weights != NULL));
        sl_weights_close(weights);
        assert_int_equal(sl_mem_get_stats().blocks, blocks);
    }
    status = SL_ERR_MEMORY;
    const char *folder = sl_temp_make();
    for (uint64_t n = 1; status != SL_OK; n++) {
        sl_error err;
        sl_mem_fail_at(n, false);
        status = sl_synthetic_save(&model, sl_path(folder, "m.gguf"), NULL, NULL, &err);
        sl_mem_fail_at(0, false);
        assert_true(status == SL_OK || status == SL_ERR_MEMORY);
        assert_int_equal(sl_mem_get_stats().blocks, blocks);
    }
    sl_temp_remove(folder);
}

/* Stops at the n-th call; what is told only grows. */
typedef struct stopping {
    size_t n_left, n_done;
} stopping;

static bool stop_later(void *context, size_t done, size_t total)
{
    stopping *s = context;
    assert_true(done > s->n_done && done <= total);
    s->n_done = done;
    return s->n_left-- == 0;
}

static void test_saving_can_be_stopped(void **state)
{
    (void)state;
    const sl_synthetic model = {.shape = "tiny", .type = "q8_0"};
    const char *folder = sl_temp_make();
    const size_t blocks = sl_mem_get_stats().blocks;
    for (size_t n = 0; n < 3; n++) {
        sl_error err;
        stopping s = {.n_left = n};
        assert_refused(sl_synthetic_save(&model, sl_path(folder, "m.gguf"), stop_later, &s, &err),
                       SL_ERR_CANCELLED, "stopped");
        assert_int_equal(sl_mem_get_stats().blocks, blocks);
        assert_int_equal(rmdir(folder), 0); /* nothing is left in it */
        assert_int_equal(mkdir(folder, 0777), 0);
    }
    sl_temp_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_saving_can_be_stopped),
        cmocka_unit_test(test_a_function_of_the_seed),
        cmocka_unit_test(test_fewer_layers_change_nothing_else),
        cmocka_unit_test(test_every_shape_binds_in_every_type),
        cmocka_unit_test(test_shapes_have_the_size_they_are_named_after),
        cmocka_unit_test(test_mixtures),
        cmocka_unit_test(test_values_are_spread_as_they_should),
        cmocka_unit_test(test_logits_are_finite_and_of_the_usual_size),
        cmocka_unit_test(test_the_saved_file_is_the_same_model),
        cmocka_unit_test(test_costs),
        cmocka_unit_test(test_costs_of_headers),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
