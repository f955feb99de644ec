/* What every layer computes, against the same layers of transformers; and the three classic ways to
 * read this family's files wrong, each of which must be visible. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "models.h"

#include "backend/cpu/cpu.h"
#include "base/mem.h"
#include "engine/engine_internal.h"
#include "model/graph.h"

/* ---- collecting taps ---- */

typedef struct layer_check {
    const sl_golden *golden;
    bool tiled; /* the file's value heads are in the order of GGUF */
    uint32_t n_key_heads, n_value_heads;
    double worst;
    char worst_name[64];
    size_t compared;
} layer_check;

/* Column of our (possibly tiled) value-head order for column i of the reference's grouped order. */
static size_t our_column(const layer_check *check, const char *name, size_t n_cols, size_t i)
{
    size_t nk = check->n_key_heads, nv = check->n_value_heads, unit, first = 0;
    if (!check->tiled)
        return i;
    if (strstr(name, "in_proj_qkv"))
        first = n_cols - nv * 128, unit = 128;
    else if (strstr(name, "in_proj_z"))
        unit = 128;
    else if (strstr(name, "in_proj_a") || strstr(name, "in_proj_b"))
        unit = 1;
    else
        return i;
    if (i < first)
        return i;
    size_t head = (i - first) / unit, ratio = nv / nk;
    size_t ours = head % ratio * nk + head / ratio;
    return first + ours * unit + (i - first) % unit;
}

static void compare_tap(void *context, const char *name, const float *rows, uint32_t n_rows,
                        uint32_t n_cols)
{
    layer_check *check = context;
    const sl_golden_tensor *tensor = sl_golden_find(check->golden, name);
    if (!tensor)
        return;
    assert_int_equal(tensor->n_elems, (size_t)n_rows * n_cols);
    double scale = 0, worst = 0;
    for (size_t row = 0; row < n_rows; row++) {
        for (size_t i = 0; i < n_cols; i++) {
            double golden = tensor->f32[row * n_cols + i];
            double ours = rows[row * n_cols + our_column(check, name, n_cols, i)];
            scale = fmax(scale, fabs(golden));
            worst = fmax(worst, fabs(ours - golden));
        }
    }
    check->compared++;
    if (worst / scale > check->worst) {
        check->worst = worst / scale;
        snprintf(check->worst_name, sizeof check->worst_name, "%s", tensor->name);
    }
}

static layer_check run_layers(sl_engine *engine, const char *model, const char *set)
{
    char path[256];
    snprintf(path, sizeof path, "tests/data/logits/%s-layers.safetensors", model);
    sl_golden *golden = sl_golden_open(path);
    const sl_config *config = sl_engine_config(engine);
    layer_check check = {
        .golden = golden,
        .tiled = config->hf_names == NULL,
        .n_key_heads = config->gdn_key_heads,
        .n_value_heads = config->gdn_value_heads,
        .worst_name = "nothing",
    };
    sl_prompt prompt = sl_test_prompt(set, "B");
    sl_error err;
    sl_state *state = NULL;
    assert_ok(sl_state_create(engine, 64, &state, &err));
    sl_eval_item item = {.state = state, .tokens = prompt.ids, .n_tokens = prompt.n};
    sl_engine_set_tap(engine, compare_tap, &check);
    assert_ok(sl_engine_eval(engine, &item, 1, NULL, &err));
    sl_state_free(state);
    sl_golden_close(golden);
    return check;
}

static void check_layers(const char *path, const char *model, const char *set, size_t at_least)
{
    sl_engine *engine = sl_test_engine(path, 2, true);
    layer_check check = run_layers(engine, model, set);
    sl_engine_close(engine);
    print_message("%-9s %zu tensors, worst relative difference %.1e\n", model, check.compared,
                  check.worst);
    assert_true(check.compared >= at_least);
    assert_true(check.worst <= 2e-5);
}

static void test_layers_of_random_models(void **state)
{
    (void)state;
    check_layers(sl_model_path("rand-r1-bf16.gguf"), "rand-r1", "rand", 18);
    check_layers(sl_model_path("rand-r1"), "rand-r1", "rand", 18);
    check_layers(sl_model_path("rand-r3-bf16.gguf"), "rand-r3", "rand", 18);
    check_layers(sl_model_path("rand-r3"), "rand-r3", "rand", 18);
    check_layers(sl_model_path("rand-moe-bf16.gguf"), "rand-moe", "rand", 22);
    check_layers(sl_model_path("rand-moe"), "rand-moe", "rand", 22);
}

static void test_layers_of_tiny(void **state)
{
    (void)state;
    if (!sl_tiny_folder())
        skip_because("the demonstration model's Hugging Face folder is not here");
    check_layers(sl_tiny_folder(), "tiny", "tiny", 26);
}

/* ---- planted faults ---- */

/* Records the engine's plan again after the test has changed the model under it. */
static void record_again(sl_engine *engine)
{
    sl_error err;
    sl_plan *plan = NULL;
    assert_ok(sl_plan_create("planted", engine->params.max_rows, &engine->shape, &plan, &err));
    sl_graph_record(engine->model, plan);
    assert_ok(sl_plan_finish(plan, &err));
    sl_plan_free(engine->plan);
    engine->plan = plan;
}

static double worst_after(const char *name, void (*plant)(sl_model *))
{
    sl_engine *engine = sl_test_engine(sl_model_path("rand-r3-bf16.gguf"), 1, true);
    plant(engine->model);
    record_again(engine);
    layer_check check = run_layers(engine, "rand-r3", "rand");
    sl_engine_close(engine);
    print_message("%-22s worst relative difference %.1e at %s\n", name, check.worst,
                  check.worst_name);
    return check.worst;
}

static void plant_nothing(sl_model *model)
{
    (void)model;
}

static void plant_wrong_pairing(sl_model *model)
{
    model->config.pairing = SL_PAIRING_GROUPED;
}

/* Takes the query's rows for the gate's and the other way round. */
static void plant_gate_swap(sl_model *model)
{
    for (uint32_t i = 0; i < model->config.n_layers; i++) {
        sl_layer *layer = &model->layers[i];
        if (layer->kind != SL_LAYER_ATTENTION)
            continue;
        sl_matrix *q = &layer->attention.q;
        uint8_t *swapped = sl_alloc(SL_MEM_GENERAL, q->n_rows * q->row_bytes);
        assert_non_null(swapped);
        for (size_t row = 0; row < q->n_rows; row++)
            memcpy(swapped + row * q->row_bytes, sl_matrix_row(q, 0, row ^ 256), q->row_bytes);
        q->data = swapped;
        q->packed = NULL; /* read as it lies */
        /* The model frees what it owns. */
        model->owned =
            sl_realloc(SL_MEM_GENERAL, model->owned, (model->n_owned + 1) * sizeof *model->owned);
        assert_non_null(model->owned);
        model->owned[model->n_owned++] = swapped;
        model->owned_capacity = model->n_owned;
    }
}

static void plant_missing_one(sl_model *model)
{
    float *w = (float *)(uintptr_t)model->layers[1].post_norm;
    for (uint32_t i = 0; i < model->config.hidden; i++)
        w[i] -= 1.0f;
}

static void test_planted_faults_are_seen(void **state)
{
    (void)state;
    assert_true(worst_after("as it is", plant_nothing) <= 2e-5);
    assert_true(worst_after("wrong head pairing", plant_wrong_pairing) > 1e-2);
    assert_true(worst_after("query and gate swapped", plant_gate_swap) > 1e-2);
    assert_true(worst_after("norm without its one", plant_missing_one) > 1e-2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layers_of_random_models),
        cmocka_unit_test(test_layers_of_tiny),
        cmocka_unit_test(test_planted_faults_are_seen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
