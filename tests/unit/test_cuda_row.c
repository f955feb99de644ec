/* Products of one row: the kernel made for them gives the bits of the one for several rows, with a
 * norm before, a sum or SwiGLU after, for rows of any length and with values that are not finite.
 * Skipped, with the reason, where no device can be used. */
#include "device.h"
#include "support.h"

#ifdef SL_CUDA

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "backend/cuda/kernels/launch.h"
#include "base/mem.h"

enum { BLOCK = SL_Q8_BLOCK, PANEL = 16, MOST_OUT = 1088, MOST_COLS = 4096, NORM_AT = 7 };

typedef struct rig {
    sl_test_rng rng;
    sl_cu_queue queue;
    sl_cu_step step;
    float *y[SL_CU_STEP_TARGETS], *act;
    uint32_t *flags;
    float x[MOST_COLS + NORM_AT]; /* the norm's weights from NORM_AT on */
} rig;

/* What both kernels write. */
typedef struct results {
    float y[SL_CU_STEP_TARGETS][MOST_OUT], act[MOST_OUT];
    int8_t q[MOST_OUT];
    float d[MOST_OUT / BLOCK];
    int16_t sums[MOST_OUT / PANEL];
    uint32_t flag;
} results;

static void *device_copy(const void *from, size_t n_bytes)
{
    void *memory = NULL;
    assert_int_equal(cudaMalloc(&memory, n_bytes), cudaSuccess);
    if (from)
        assert_int_equal(cudaMemcpy(memory, from, n_bytes, cudaMemcpyDefault), cudaSuccess);
    else
        assert_int_equal(cudaMemset(memory, 0, n_bytes), cudaSuccess);
    return memory;
}

static void open_rig(rig *r)
{
    struct cudaDeviceProp p;
    sl_test_need_device();
    memset(r, 0, sizeof *r);
    r->rng = sl_test_rng_of(11);
    assert_int_equal(cudaGetDeviceProperties(&p, 0), cudaSuccess);
    assert_int_equal(cudaStreamCreate(&r->queue.stream), cudaSuccess);
    r->queue.overlap = p.major >= 9;
}

/* Panels of n_rows outputs: any codes, scales around 2^-9; rows beyond the last are zeros. */
static sl_cu_matrix random_matrix(rig *r, uint32_t n_rows, uint32_t n_cols)
{
    const uint32_t n_panels = (n_rows + PANEL - 1) / PANEL, n_blocks = n_cols / BLOCK;
    sl_cu_matrix w = {.kind = SL_CU_PLAIN, .n_rows = n_rows, .n_cols = n_cols, .n_stack = 1};
    w.panel_bytes = (size_t)n_blocks * SL_CU_PLAIN_BYTES;
    uint8_t *data = test_malloc(n_panels * w.panel_bytes);
    for (size_t b = 0; b < (size_t)n_panels * n_blocks; b++) {
        uint8_t *block = data + b * SL_CU_PLAIN_BYTES;
        for (size_t i = 0; i < PANEL * BLOCK; i++)
            block[i] = (uint8_t)sl_test_rng_next(&r->rng);
        for (uint32_t i = 0; i < PANEL; i++) {
            const bool exists = b / n_blocks * PANEL + i < n_rows;
            const uint16_t d = (uint16_t)(0x1800 + sl_test_rng_below(&r->rng, 0x400));
            memcpy(block + PANEL * BLOCK + 2 * i, exists ? &d : &(uint16_t){0}, sizeof d);
        }
    }
    w.data = device_copy(data, n_panels * w.panel_bytes);
    test_free(data);
    return w;
}

static sl_cu_q8 device_codes(uint32_t n)
{
    return (sl_cu_q8){.q = device_copy(NULL, n),
                      .d = device_copy(NULL, n / BLOCK * sizeof(float)),
                      .sums = device_copy(NULL, n / PANEL * sizeof(int16_t)),
                      .n_blocks = n / BLOCK};
}

static void free_codes(sl_cu_q8 *q8)
{
    cudaFree(q8->q);
    cudaFree(q8->d);
    cudaFree(q8->sums);
}

static void read_results(rig *r, results *out)
{
    sl_cu_step *s = &r->step;
    memset(out, 0, sizeof *out);
    assert_int_equal(cudaGetLastError(), cudaSuccess);
    assert_int_equal(cudaStreamSynchronize(r->queue.stream), cudaSuccess);
    for (uint32_t i = 0; i < s->n_targets && !s->swiglu; i++)
        cudaMemcpy(out->y[i], r->y[i], s->targets[i].w.n_rows * sizeof(float), cudaMemcpyDefault);
    if (s->swiglu) {
        const uint32_t n_blocks = s->act_q8.n_blocks;
        cudaMemcpy(out->act, r->act, s->targets[0].w.n_rows * sizeof(float), cudaMemcpyDefault);
        cudaMemcpy(out->q, s->act_q8.q, n_blocks * BLOCK, cudaMemcpyDefault);
        cudaMemcpy(out->d, s->act_q8.d, n_blocks * sizeof(float), cudaMemcpyDefault);
        cudaMemcpy(out->sums, s->act_q8.sums, n_blocks * 2 * sizeof(int16_t), cudaMemcpyDefault);
    }
    cudaMemcpy(&out->flag, r->flags, sizeof out->flag, cudaMemcpyDefault);
}

/* The same outputs before each of the two. */
static void reset(rig *r)
{
    float before[MOST_OUT];
    for (size_t i = 0; i < MOST_OUT; i++)
        before[i] = (float)(i % 17) - 8.0f;
    for (uint32_t i = 0; i < r->step.n_targets; i++)
        cudaMemcpy(r->y[i], before, sizeof before, cudaMemcpyDefault);
    cudaMemset(r->flags, 0, sizeof *r->flags);
    assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
}

/* NaN is as good as any other NaN. */
static void assert_same(const float *a, const float *b, size_t n, const char *what)
{
    for (size_t i = 0; i < n; i++) {
        if (memcmp(&a[i], &b[i], sizeof *a) != 0 && !(isnan(a[i]) && isnan(b[i])))
            fail_msg("%s: output %zu is %a, not %a", what, i, (double)b[i], (double)a[i]);
    }
}

static void assert_same_results(const results *a, const results *b, const char *what)
{
    for (uint32_t i = 0; i < SL_CU_STEP_TARGETS; i++)
        assert_same(a->y[i], b->y[i], MOST_OUT, what);
    assert_same(a->act, b->act, MOST_OUT, what);
    assert_same(a->d, b->d, MOST_OUT / BLOCK, what);
    assert_memory_equal(a->q, b->q, sizeof b->q);
    assert_memory_equal(a->sums, b->sums, sizeof b->sums);
    assert_int_equal(a->flag, b->flag);
}

typedef struct row_case {
    uint32_t n_cols, n_targets, n_rows[SL_CU_STEP_TARGETS];
    int norm, add, swiglu;
} row_case;

static void check(rig *r, const row_case *c)
{
    enum { FEW_PROCESSORS = 16 };
    static results expected, got;
    char what[80];
    snprintf(what, sizeof what, "%u inputs, %u targets of %u, norm %d, add %d, swiglu %d",
             c->n_cols, c->n_targets, c->n_rows[0], c->norm, c->add, c->swiglu);
    float *x = device_copy(r->x, sizeof r->x), *norm = device_copy(r->x + NORM_AT, c->n_cols * 4);
    sl_cu_q8 q8 = device_codes(MOST_COLS);
    sl_cu_quantise(r->queue.stream, x, 1, c->n_cols, q8);
    r->flags = device_copy(NULL, sizeof *r->flags);
    r->act = device_copy(NULL, MOST_OUT * sizeof(float));
    r->step = (sl_cu_step){.n_rows = 1,
                           .n_cols = c->n_cols,
                           .eps = 1e-6f,
                           .n_targets = c->n_targets,
                           .add = c->add,
                           .flags = r->flags,
                           .mark = 5,
                           .swiglu = c->swiglu,
                           .act = r->act,
                           .act_q8 = device_codes(MOST_OUT)};
    r->step.act_q8.n_blocks = (c->n_rows[0] + BLOCK - 1) / BLOCK;
    if (c->norm) {
        r->step.x = x;
        r->step.norm = norm;
    } else {
        r->step.q8 = q8;
    }
    for (uint32_t i = 0; i < c->n_targets; i++) {
        r->y[i] = device_copy(NULL, MOST_OUT * sizeof(float));
        r->step.targets[i] =
            (sl_cu_target){random_matrix(r, c->n_rows[i], c->n_cols), r->y[i], c->n_rows[i]};
    }
    /* On few multiprocessors a block of threads has many panels, on many it has one. */
    static const int spreads[] = {FEW_PROCESSORS, 132};
    r->queue.n_multiprocessors = FEW_PROCESSORS;
    assert_true(sl_cu_step_fits(&r->queue, &r->step));
    assert_true(sl_cu_row_fits(&r->step));
    reset(r);
    sl_cu_run_step(&r->queue, &r->step);
    read_results(r, &expected);
    for (size_t k = 0; k < SL_COUNTOF(spreads); k++) {
        r->queue.n_multiprocessors = spreads[k];
        reset(r);
        sl_cu_run_row(&r->queue, &r->step);
        read_results(r, &got);
        assert_same_results(&expected, &got, what);
    }
    for (uint32_t i = 0; i < c->n_targets; i++) {
        cudaFree(r->y[i]);
        cudaFree((void *)(uintptr_t)r->step.targets[i].w.data);
    }
    free_codes(&r->step.act_q8);
    free_codes(&q8);
    cudaFree(r->act);
    cudaFree(r->flags);
    cudaFree(x);
    cudaFree(norm);
}

static const row_case cases[] = {
    {1024, 4, {1088, 512, 16, 16}, 1, 0, 0},
    {1024, 3, {640, 50, 7}, 1, 0, 0},
    {256, 2, {64, 33}, 1, 0, 0},
    {1024, 2, {1024, 1024}, 1, 0, 1},
    {512, 2, {80, 80}, 1, 0, 1},
    {1024, 1, {1024}, 1, 1, 0},
    {2048, 1, {1024}, 0, 1, 0},
    {3584, 1, {1024}, 0, 1, 0},
    {4096, 1, {48}, 0, 1, 0},
    {96, 1, {100}, 0, 1, 0},
    {1056, 1, {40}, 0, 1, 0},
    {1024, 4, {512, 128, 16, 9}, 0, 0, 0},
    {288, 2, {160, 160}, 0, 0, 1},
};

static void test_same_bits(void **state)
{
    static rig r;
    (void)state;
    open_rig(&r);
    for (int hostile = 0; hostile < 3; hostile++) {
        for (size_t i = 0; i < SL_COUNTOF(r.x); i++)
            r.x[i] = sl_test_rng_normal(&r.rng);
        memset(r.x + 64, 0, 64 * sizeof *r.x);
        if (hostile == 1)
            r.x[40] = 0x1p100f; /* the squares overflow */
        if (hostile == 2)
            r.x[41] = NAN;
        for (size_t i = 0; i < SL_COUNTOF(cases); i++)
            check(&r, &cases[i]);
    }
    cudaStreamDestroy(r.queue.stream);
}

static void test_refusals(void **state)
{
    (void)state;
    sl_cu_step step = {.n_rows = 1, .n_cols = 1024, .n_targets = 1};
    step.targets[0].w = (sl_cu_matrix){.kind = SL_CU_PLAIN, .n_rows = 16, .n_cols = 1024};
    assert_true(sl_cu_row_fits(&step));
    step.n_rows = 2;
    assert_false(sl_cu_row_fits(&step));
    step.n_rows = 1;
    step.targets[0].w.kind = SL_CU_GENERAL;
    assert_false(sl_cu_row_fits(&step));
    step.targets[0].w.kind = SL_CU_PLAIN;
    step.n_cols = 4128; /* more segments than warps */
    assert_false(sl_cu_row_fits(&step));
    step.n_cols = 1056;
    assert_true(sl_cu_row_fits(&step));
    step.norm = (const float *)(const void *)&step;
    assert_false(sl_cu_row_fits(&step)); /* the norm wants whole segments */
    step.n_cols = 2048;
    assert_false(sl_cu_row_fits(&step)); /* and a thread for two inputs */
}

#else

static void test_same_bits(void **state)
{
    (void)state;
    skip_because("built without CUDA");
}

static void test_refusals(void **state)
{
    (void)state;
    skip_because("built without CUDA");
}

#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_bits),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
