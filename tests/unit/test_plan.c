/* Plans: hazards and shapes are refused, buffers that live together never share bytes, and a plan
 * can list itself. */
#include <string.h>

#include "models.h"

#include "base/mem.h"
#include "engine/engine_internal.h"

static const sl_state_shape shape = {
    .n_gdn = 1, .n_key_heads = 2, .n_value_heads = 2, .n_channels = 768, .n_conv_rows = 19};

static sl_matrix matrix(sl_dtype dtype, uint32_t n_rows, uint32_t n_cols)
{
    static const uint8_t bytes[1];
    sl_matrix m = {.data = bytes, .dtype = dtype, .n_rows = n_rows, .n_cols = n_cols, .n_stack = 1};
    assert_true(sl_dtype_row_bytes(dtype, n_cols, &m.row_bytes));
    return m;
}

static sl_plan *new_plan(void)
{
    sl_error err;
    sl_plan *plan = NULL;
    assert_ok(sl_plan_create("test", 8, &shape, &plan, &err));
    return plan;
}

static void test_widths_are_checked(void **state)
{
    (void)state;
    sl_error err;
    sl_plan *plan = new_plan();
    sl_matrix embed = matrix(SL_F32, 10, 64), wrong = matrix(SL_F32, 32, 128);
    sl_act x = {sl_plan_embed(plan, &embed), SL_NO_VALUE};
    sl_plan_project(plan, x, &wrong, "narrow");
    assert_refused(sl_plan_finish(plan, &err), SL_ERR_FORMAT,
                   "narrow has 64 columns, expected 128");
    sl_plan_free(plan);
}

static void test_the_form_a_product_reads(void **state)
{
    (void)state;
    sl_error err;
    sl_plan *plan = new_plan();
    sl_matrix embed = matrix(SL_F32, 10, 64), quantised = matrix(SL_Q8_0, 32, 64);
    sl_act x = {sl_plan_embed(plan, &embed), SL_NO_VALUE};
    sl_plan_project(plan, x, &quantised, "y");
    assert_refused(sl_plan_finish(plan, &err), SL_ERR_ARGUMENT, "lacks the form a Q8_0 matrix");
    sl_plan_free(plan);
}

static void test_reading_before_writing(void **state)
{
    (void)state;
    sl_error err;
    sl_plan *plan = new_plan();
    sl_matrix embed = matrix(SL_F32, 10, 64), head = matrix(SL_F32, 10, 64);
    sl_value x = sl_plan_embed(plan, &embed);
    /* The expert weights of a routing that was never recorded. */
    sl_value y = sl_plan_embed(plan, &embed);
    sl_plan_add(plan, x, y);
    sl_plan_head(plan, (sl_act){(sl_value)(y + 1), SL_NO_VALUE}, &head);
    assert_int_not_equal(sl_plan_finish(plan, &err), SL_OK);
    sl_plan_free(plan);
}

/* Every pair of values that live at the same time lies apart. */
static void check_placement(const sl_plan *plan)
{
    size_t pairs = 0;
    for (sl_value a = 0; a < sl_plan_value_count(plan); a++) {
        const sl_value_info *x = sl_plan_value(plan, a);
        assert_true(x->offset + x->n_bytes <= sl_plan_arena_bytes(plan));
        for (sl_value b = 0; b < a; b++) {
            const sl_value_info *y = sl_plan_value(plan, b);
            if (x->first_op > y->last_op || y->first_op > x->last_op)
                continue;
            pairs++;
            assert_true(x->offset >= y->offset + y->n_bytes || y->offset >= x->offset + x->n_bytes);
        }
    }
    assert_true(pairs > 10);
}

static void test_placement_and_listing(void **state)
{
    (void)state;
    static const char *const names[] = {"rand-r3-q8_0.gguf", "rand-moe-bf16.gguf",
                                        "tiny-q8_0.gguf"};
    for (size_t i = 0; i < SL_COUNTOF(names); i++) {
        sl_engine *engine = sl_test_engine(sl_model_path(names[i]), 1, false);
        check_placement(engine->plan);
        if (engine->mtp_plan)
            check_placement(engine->mtp_plan);
        /* Buffers are reused: far less than all of them together. */
        size_t sum = 0;
        for (sl_value v = 0; v < sl_plan_value_count(engine->plan); v++)
            sum += sl_plan_value(engine->plan, v)->n_bytes;
        assert_true(sl_plan_arena_bytes(engine->plan) < sum / 2);

        sl_error err;
        char *text;
        size_t n_bytes;
        assert_ok(sl_engine_dump_plan(engine, 1, 100, &text, &n_bytes, &err));
        assert_int_equal(n_bytes, strlen(text));
        assert_non_null(strstr(text, "plan main:"));
        assert_non_null(strstr(text, "(L0.mixer)"));
        assert_non_null(strstr(text, i == 1 ? "experts" : "swiglu"));
        assert_non_null(strstr(text, "y = x / rms(x) * w"));
        assert_null(strstr(text, "mtp_input")); /* only what the plan uses is explained */
        sl_free(text);
        sl_engine_close(engine);
    }
}

/* Weight bytes of a decode step = the bytes of every matrix that a token passes through. */
static void test_costs_add_up(void **state)
{
    (void)state;
    sl_engine *engine = sl_test_engine(sl_model_path("rand-r3-q8_0.gguf"), 1, false);
    double counted = 0, products = 0;
    for (size_t i = 0; i < sl_plan_op_count(engine->plan); i++) {
        const sl_op *op = sl_plan_op(engine->plan, i);
        if (op->kind != SL_OP_PROJECT && op->kind != SL_OP_HEAD)
            continue;
        products++;
        counted += sl_plan_op_cost(engine->plan, i, 1, 0).weight_bytes;
    }
    double expected = 0;
    for (size_t i = 0; i < sl_weights_count(engine->weights); i++) {
        const sl_tensor *tensor = sl_weights_at(engine->weights, i);
        bool embedding = strcmp(tensor->name, "token_embd.weight") == 0;
        if (tensor->n_dims == 2 && !embedding && !strstr(tensor->name, "conv1d"))
            expected += (double)tensor->n_bytes;
    }
    /* 3 gated delta layers of 5 products, 1 attention layer of 4, 4 times 3 for the
     * feed-forward, the head. */
    assert_int_equal(products, 3 * 5 + 4 + 4 * 3 + 1);
    assert_true(counted == expected);
    sl_engine_close(engine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_widths_are_checked),
        cmocka_unit_test(test_the_form_a_product_reads),
        cmocka_unit_test(test_reading_before_writing),
        cmocka_unit_test(test_placement_and_listing),
        cmocka_unit_test(test_costs_add_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
