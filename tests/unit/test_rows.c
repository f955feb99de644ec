/* Ops on rows of activations: wide rows are cut into pieces, and the pieces of one row may fall to
 * different threads. No two threads may write to one place, whatever rows, threads and pieces. */
#include <pthread.h>
#include <string.h>

#include "support.h"

#include "backend/cpu/cpu_internal.h"
#include "base/mem.h"

enum { VOCAB = 7, OUT = 16, MOST_ROWS = 16, MOST_WRITES = 1024 };

/* ---- a SwiGLU that notes who writes where ---- */

typedef struct written {
    const float *begin, *end;
    pthread_t thread;
} written;

static written writes[MOST_WRITES];
static size_t n_writes;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static sl_cpu_kernels real;

static void noted_swiglu(const float *gate, const float *up, size_t n, float *y)
{
    pthread_mutex_lock(&lock);
    if (n_writes < MOST_WRITES)
        writes[n_writes++] = (written){.begin = y, .end = y + n, .thread = pthread_self()};
    pthread_mutex_unlock(&lock);
    real.swiglu(gate, up, n, y);
}

static void assert_threads_keep_apart(void)
{
    assert_in_range(n_writes, 1, MOST_WRITES - 1);
    for (size_t i = 0; i < n_writes; i++) {
        for (size_t k = 0; k < i; k++) {
            const bool apart = writes[i].end <= writes[k].begin || writes[k].end <= writes[i].begin;
            assert_true(apart || pthread_equal(writes[i].thread, writes[k].thread));
        }
    }
}

/* ---- a plan of two tables, SwiGLU and a product ---- */

typedef struct small_model {
    float *tables[2];
    sl_block_q8_0 *weights;
    sl_matrix embed[2], head;
} small_model;

static void make_model(small_model *m, uint32_t width)
{
    sl_test_rng rng = sl_test_rng_of(width);
    const size_t n_blocks = (size_t)OUT * width / 32;
    for (int i = 0; i < 2; i++) {
        m->tables[i] = sl_alloc_array(SL_MEM_GENERAL, (size_t)VOCAB * width, sizeof(float));
        assert_non_null(m->tables[i]);
        for (size_t k = 0; k < (size_t)VOCAB * width; k++)
            m->tables[i][k] = (float)sl_test_rng_below(&rng, 2001) / 500.0f - 2.0f;
        m->embed[i] = (sl_matrix){.data = (const uint8_t *)m->tables[i],
                                  .dtype = SL_F32,
                                  .n_rows = VOCAB,
                                  .n_cols = width,
                                  .row_bytes = width * sizeof(float),
                                  .n_stack = 1};
    }
    m->weights = sl_alloc_zero(SL_MEM_GENERAL, n_blocks * sizeof *m->weights);
    assert_non_null(m->weights);
    for (size_t b = 0; b < n_blocks; b++) {
        m->weights[b].d = 0x2000;
        for (size_t i = 0; i < 32; i++)
            m->weights[b].q[i] = (int8_t)(sl_test_rng_below(&rng, 255) - 127);
    }
    m->head = (sl_matrix){.data = (const uint8_t *)m->weights,
                          .dtype = SL_Q8_0,
                          .n_rows = OUT,
                          .n_cols = width,
                          .row_bytes = width / 32 * sizeof *m->weights,
                          .n_stack = 1};
}

static void free_model(small_model *m)
{
    sl_free(m->weights);
    sl_free(m->tables[1]);
    sl_free(m->tables[0]);
}

static void run_model(const small_model *m, unsigned n_threads, uint32_t n_rows,
                      float logits[MOST_ROWS][OUT])
{
    sl_error err;
    sl_backend *backend = NULL;
    sl_plan *plan = NULL;
    sl_matrix head = m->head;
    const sl_state_shape shape = {0};
    assert_ok(sl_cpu_backend_create(NULL, n_threads, &backend, &err));
    const size_t n_bytes = sl_cpu_packed_bytes(sl_cpu_backend_isa(backend), &head);
    assert_ok(backend->reserve(backend, n_bytes, &err));
    assert_ok(backend->load(backend, &head, &err));
    sl_cpu *cpu = (sl_cpu *)(void *)backend;
    real = cpu->kernels;
    cpu->kernels.swiglu = noted_swiglu;
    n_writes = 0;

    assert_ok(sl_plan_create("rows", n_rows, &shape, &plan, &err));
    const sl_value gate = sl_plan_embed(plan, &m->embed[0]), up = sl_plan_embed(plan, &m->embed[1]);
    sl_plan_head(plan, sl_plan_swiglu(plan, gate, up, sl_matrix_need(&head)), &head);
    assert_ok(sl_plan_finish(plan, &err));
    void *arena = backend->alloc(backend, SL_MEM_SCRATCH, sl_plan_arena_bytes(plan));
    assert_non_null(arena);

    int32_t tokens[MOST_ROWS];
    uint32_t rows[MOST_ROWS];
    float *places[MOST_ROWS];
    uint8_t flags[MOST_ROWS] = {0};
    sl_fault fault = {0};
    for (uint32_t i = 0; i < n_rows; i++) {
        tokens[i] = (int32_t)(i * 3 % VOCAB);
        rows[i] = i;
        places[i] = logits[i];
    }
    const sl_segment segment = {.n_rows = n_rows};
    const sl_run run = {.n_rows = n_rows,
                        .tokens = tokens,
                        .segments = &segment,
                        .n_segments = 1,
                        .logit_rows = rows,
                        .n_logit_rows = n_rows,
                        .logits = places,
                        .faults = &fault,
                        .row_flags = flags};
    assert_ok(backend->run(backend, plan, arena, &run, &err));
    backend->free(backend, arena);
    sl_plan_free(plan);
    backend->destroy(backend);
}

/* Widths of one to five pieces, those of the 0.8b, 4b, 9b and 27b shapes among them. */
static void test_swiglu_of_wide_rows(void **state)
{
    (void)state;
    static const uint32_t widths[] = {3584, 6144, 9216, 12288, 17408};
    static float expected[MOST_ROWS][OUT], got[MOST_ROWS][OUT];
    for (size_t i = 0; i < SL_COUNTOF(widths); i++) {
        small_model m;
        make_model(&m, widths[i]);
        run_model(&m, 1, MOST_ROWS, expected);
        for (unsigned n_threads = 2; n_threads <= 7; n_threads++) {
            for (uint32_t n_rows = 1; n_rows <= MOST_ROWS; n_rows += n_rows < 8 ? 1 : 4) {
                run_model(&m, n_threads, n_rows, got);
                assert_threads_keep_apart();
                assert_memory_equal(got, expected, n_rows * sizeof *got);
            }
        }
        free_model(&m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_swiglu_of_wide_rows)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
