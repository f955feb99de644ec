/* Units of an op over the pool's threads: each exactly once, whoever takes it; threads that help
 * others; which products run together. */
#include "support.h"

#include <sched.h>
#include <stdatomic.h>

#include "backend/cpu/cpu_internal.h"

enum { MOST_UNITS = 1000, COLS = 64 };

/* A step of a plan with nothing to look ahead to. */
typedef struct small_run {
    sl_backend *backend;
    sl_plan *plan;
    float table[COLS];
    sl_run run;
    sl_cpu_step step;
} small_run;

static void begin_run(small_run *r, unsigned n_threads)
{
    sl_error err;
    const sl_state_shape shape = {0};
    *r = (small_run){.run = {.n_rows = 1}};
    const sl_matrix table = {.data = (const uint8_t *)r->table,
                             .dtype = SL_F32,
                             .n_rows = 1,
                             .n_cols = COLS,
                             .row_bytes = sizeof r->table,
                             .n_stack = 1};
    assert_ok(sl_cpu_backend_create(NULL, n_threads, &r->backend, &err));
    assert_ok(sl_plan_create("spread", 1, &shape, &r->plan, &err));
    sl_plan_keep(r->plan, sl_plan_embed(r->plan, &table));
    assert_ok(sl_plan_finish(r->plan, &err));
    r->step = (sl_cpu_step){.cpu = (const sl_cpu *)(const void *)r->backend,
                            .plan = r->plan,
                            .run = &r->run,
                            .op = sl_plan_op(r->plan, 0),
                            .n_ops = 1};
}

static void end_run(small_run *r)
{
    sl_plan_free(r->plan);
    r->backend->destroy(r->backend);
}

static atomic_uint done[MOST_UNITS];

static void clear_done(void)
{
    for (size_t i = 0; i < MOST_UNITS; i++)
        atomic_store(&done[i], 0);
}

static void do_unit(const sl_cpu_step *step, size_t i)
{
    (void)step;
    atomic_fetch_add(&done[i], 1);
}

static size_t grain_of_ranges;

static void do_range(const sl_cpu_step *step, size_t begin, size_t end)
{
    assert_true(begin < end && begin % grain_of_ranges == 0);
    for (size_t i = begin; i < end; i++)
        do_unit(step, i);
}

static void assert_done_once(size_t count)
{
    for (size_t i = 0; i < MOST_UNITS; i++)
        assert_int_equal(atomic_load(&done[i]), i < count ? 1 : 0);
}

static void test_each_unit_once(void **state)
{
    (void)state;
    static const size_t counts[] = {0, 1, 2, 3, 7, 8, 9, 63, 64, 65, MOST_UNITS};
    for (unsigned n_threads = 1; n_threads <= 5; n_threads++) {
        small_run r;
        begin_run(&r, n_threads);
        for (size_t c = 0; c < SL_COUNTOF(counts); c++) {
            clear_done();
            sl_cpu_for_each(&r.step, counts[c], do_unit);
            assert_done_once(counts[c]);
            for (grain_of_ranges = 1; grain_of_ranges <= 48; grain_of_ranges += 47) {
                clear_done();
                sl_cpu_for_ranges(&r.step, counts[c], grain_of_ranges, do_range);
                assert_done_once(counts[c]);
            }
        }
        end_run(&r);
    }
}

enum { LOPSIDED = 100 };
static atomic_uint n_done, n_helped;

/* Thread 0, to which all units belong, does not go on after its first piece until all others are
 * done. */
static void lopsided_task(void *context, unsigned i, unsigned n)
{
    const sl_cpu_step *step = context;
    sl_cpu_taker taker = {.i = i, .n = n};
    size_t begin, end;
    while (sl_cpu_take(step, &taker, 3, &begin, &end)) {
        assert_int_equal(taker.from, 0);
        for (size_t unit = begin; unit < end; unit++)
            do_unit(step, unit);
        atomic_fetch_add(&n_done, (unsigned)(end - begin));
        if (i != 0)
            atomic_fetch_add(&n_helped, (unsigned)(end - begin));
        while (i == 0 && atomic_load(&n_done) < LOPSIDED)
            sched_yield();
    }
}

static void test_others_help(void **state)
{
    (void)state;
    for (unsigned n_threads = 2; n_threads <= 4; n_threads++) {
        small_run r;
        begin_run(&r, n_threads);
        clear_done();
        atomic_store(&n_done, 0);
        atomic_store(&n_helped, 0);
        for (unsigned i = 0; i < n_threads; i++)
            sl_cpu_share_out(&r.step, i, 0, i == 0 ? LOPSIDED : 0);
        sl_cpu_region(&r.step, lopsided_task, &r.step);
        assert_done_once(LOPSIDED);
        assert_in_range(atomic_load(&n_helped), LOPSIDED - 3, LOPSIDED);
        end_run(&r);
    }
}

/* ---- products that run together ---- */

static sl_matrix matrix_of(const void *packed)
{
    static const uint8_t weights[COLS][COLS / 32 * sizeof(sl_block_q8_0)];
    return (sl_matrix){.data = weights[0],
                       .dtype = SL_Q8_0,
                       .n_rows = COLS,
                       .n_cols = COLS,
                       .row_bytes = sizeof weights[0],
                       .n_stack = 1,
                       .packed = packed};
}

/* x -> gate, up -> swiglu -> out; `packed` of the three. Op 2 is the first product. */
static sl_plan *plan_of_products(const void *gate_packed, const void *up_packed)
{
    static const float ones[COLS];
    sl_error err;
    sl_plan *plan;
    const sl_state_shape shape = {0};
    const sl_matrix table = {.data = (const uint8_t *)ones,
                             .dtype = SL_F32,
                             .n_rows = 1,
                             .n_cols = COLS,
                             .row_bytes = sizeof ones,
                             .n_stack = 1};
    const sl_matrix gate = matrix_of(gate_packed), up = matrix_of(up_packed);
    assert_ok(sl_plan_create("products", 4, &shape, &plan, &err));
    const sl_act x =
        sl_plan_norm(plan, sl_plan_embed(plan, &table), ones, 1e-6f, sl_matrix_need(&gate));
    const sl_value g = sl_plan_project(plan, x, &gate, "gate");
    const sl_value u = sl_plan_project(plan, x, &up, "up");
    const sl_act act = sl_plan_swiglu(plan, g, u, sl_matrix_need(&up));
    sl_plan_keep(plan, sl_plan_project(plan, act, &up, "out"));
    assert_ok(sl_plan_finish(plan, &err));
    return plan;
}

static void test_products_together(void **state)
{
    (void)state;
    static const sl_panels panels;
    sl_plan *plan = plan_of_products(&panels, &panels);
    static const size_t expected[] = {1, 1, 2, 1, 1, 1, 1};
    assert_int_equal(sl_plan_op_count(plan), SL_COUNTOF(expected));
    for (size_t i = 0; i < SL_COUNTOF(expected); i++)
        assert_int_equal(sl_cpu_products_together(plan, i), expected[i]);
    sl_plan_free(plan);

    plan = plan_of_products(&panels, NULL);
    assert_int_equal(sl_cpu_products_together(plan, 2), 1);
    sl_plan_free(plan);
    plan = plan_of_products(NULL, &panels);
    assert_int_equal(sl_cpu_products_together(plan, 2), 1);
    sl_plan_free(plan);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_each_unit_once),
                                       cmocka_unit_test(test_others_help),
                                       cmocka_unit_test(test_products_together)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
