/* Attention on a CUDA device by itself: every schedule gives a row the same bits, and they are
 * close to the exact result. Shapes beyond the models: groups of 1 to 16 query heads, other rotated
 * sizes. Slots without a key hold NaN. Skipped where no device can be used. */
#include "support.h"

#ifdef SL_CUDA

#include <math.h>

#include "cuda_attention.h"

enum { DIM = SL_ATTN_DIM };

static sl_attention_rig *need_rig(const sl_attention_shape *shape, uint32_t seed)
{
    sl_attention_rig *rig = sl_attention_rig_create(shape, seed);
    if (!rig)
        skip_because("no CUDA device can be used");
    return rig;
}

static void check_schedules(const sl_attention_shape *shape, uint32_t seed)
{
    sl_attention_rig *rig = need_rig(shape, seed);
    size_t n_rows = 0;
    const size_t different = sl_attention_rig_schedules(rig, 3, &n_rows);
    if (different != 0)
        fail_msg("%u query heads, %u KV heads, KV %s: %zu of %zu rows differ", shape->n_heads,
                 shape->n_kv_heads, shape->kv_f32 ? "f32" : "f16", different, n_rows);
    assert_true(n_rows == 3 * (size_t)shape->n_sequences * shape->n_positions);
    sl_attention_rig_free(rig);
}

static void check_shapes(bool is_older)
{
    static const struct {
        uint32_t n_heads, n_kv_heads, n_pairs;
    } shapes[] = {{8, 2, 32}, {2, 2, 128}, {6, 3, 1}, {6, 1, 32}, {16, 2, 32}, {17, 1, 20}};
    for (size_t i = 0; i < SL_COUNTOF(shapes); i++) {
        for (int f32 = 0; f32 < 2; f32++) {
            const sl_attention_shape shape = {.n_heads = shapes[i].n_heads,
                                              .n_kv_heads = shapes[i].n_kv_heads,
                                              .n_pairs = shapes[i].n_pairs,
                                              .n_sequences = 3,
                                              .n_positions = i == 0 ? 1100 : 530,
                                              .n_layers = 1,
                                              .kv_f32 = f32,
                                              .is_older = is_older,
                                              .most_rows = 3300};
            check_schedules(&shape, (uint32_t)i + 1);
        }
    }
}

static void test_schedules(void **state)
{
    (void)state;
    check_shapes(false);
}

static void test_schedules_on_older_devices(void **state)
{
    (void)state;
    check_shapes(true);
}

/* Few rows after a deep context, which are shared out over its key blocks: so many that these go in
 * more than one turn, too. */
static void check_deep_contexts(bool is_older)
{
    static const uint32_t sizes[] = {1, 1, 3, 16, 1, 17, 100, 300};
    static const uint32_t lengths[] = {1500, 16000};
    for (size_t i = 0; i < SL_COUNTOF(lengths); i++) {
        const sl_attention_shape shape = {.n_heads = 8,
                                          .n_kv_heads = 2,
                                          .n_pairs = 32,
                                          .n_sequences = 1,
                                          .n_positions = lengths[i],
                                          .n_layers = 1,
                                          .is_older = is_older,
                                          .most_rows = lengths[i]};
        sl_attention_rig *rig = need_rig(&shape, 5);
        size_t n_rows = 0;
        assert_int_equal(sl_attention_rig_last(rig, sizes, SL_COUNTOF(sizes), &n_rows), 0);
        assert_int_equal(n_rows, 439);
        sl_attention_rig_free(rig);
    }
}

static void test_deep_contexts(void **state)
{
    (void)state;
    check_deep_contexts(false);
    check_deep_contexts(true);
}

/* Relative L2 error of some rows below 2e-5 with halves; the sum of a million roundings. */
static void test_error(void **state)
{
    (void)state;
    for (int f32 = 0; f32 < 2; f32++) {
        const sl_attention_shape shape = {.n_heads = 8,
                                          .n_kv_heads = 2,
                                          .n_pairs = 32,
                                          .n_sequences = 1,
                                          .n_positions = 1500,
                                          .n_layers = 1,
                                          .kv_f32 = f32,
                                          .most_rows = 1500};
        sl_attention_rig *rig = need_rig(&shape, 3);
        const sl_attention_piece whole = {0, 0, 1500};
        const float *y;
        const int8_t *codes;
        assert_true(sl_attention_rig_run(rig, &whole, 1, &y, &codes));
        static const uint32_t positions[] = {0, 1, 63, 64, 255, 256, 257, 800, 1499};
        for (size_t i = 0; i < SL_COUNTOF(positions); i++) {
            const uint32_t pos = positions[i], head = (uint32_t)i % 8;
            double expected[DIM], difference = 0.0, square = 0.0;
            sl_attention_rig_reference(rig, 0, pos, head, expected);
            for (uint32_t d = 0; d < DIM; d++) {
                const double e = (double)y[((size_t)pos * 8 + head) * DIM + d] - expected[d];
                difference += e * e;
                square += expected[d] * expected[d];
            }
            assert_true(sqrt(difference / square) < 2e-5);
        }
        sl_attention_rig_free(rig);
    }
}

#else

static void test_schedules(void **state)
{
    (void)state;
    skip_because("built without CUDA");
}

static void test_schedules_on_older_devices(void **state)
{
    test_schedules(state);
}

static void test_deep_contexts(void **state)
{
    test_schedules(state);
}

static void test_error(void **state)
{
    test_schedules(state);
}

#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_schedules),
        cmocka_unit_test(test_deep_contexts),
        cmocka_unit_test(test_error),
        cmocka_unit_test(test_schedules_on_older_devices),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
