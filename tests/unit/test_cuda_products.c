/* Products on a CUDA device have the bits of the scalar dots of the CPU, whatever the type of the
 * weights, the number of rows and the kernel that takes them, alone or joined with what lies around
 * them. Skipped, with the reason, where no device can be used. */
#include "device.h"
#include "support.h"

#include <stdlib.h>
#include <string.h>

#include "backend/cpu/kernels/kernels.h"
#include "backend/cpu/kernels/math.h"
#include "backend/cuda/cuda.h"
#include "model/random_weights.h"

#ifdef SL_CUDA
#include "backend/cuda/cuda_internal.h"

enum { BLOCK = SL_Q8_BLOCK, MAX_ROWS = 300, MAX_OUTPUTS = 530, MAX_COLS = 1056 };

typedef struct fixture {
    sl_cuda *cuda;
    sl_test_rng rng;
    uint32_t n_rows, n_cols;
    float *x;
    int8_t *q;
    float *d;
    int16_t *sums;
    sl_cu_q8 on_device;
    float *scales;
} fixture;

static sl_cuda *open_device(void)
{
    sl_backend *backend = NULL;
    sl_error err;
    sl_test_need_device();
    assert_ok(sl_cuda_backend_create(0, &backend, &err));
    return (sl_cuda *)(void *)backend;
}

static void *device_memory(size_t n_bytes)
{
    void *memory = NULL;
    assert_int_equal(cudaMalloc(&memory, n_bytes), cudaSuccess);
    assert_int_equal(cudaMemset(memory, 0, n_bytes), cudaSuccess);
    assert_int_equal(cudaDeviceSynchronize(), cudaSuccess); /* other streams do not wait for it */
    return memory;
}

static void upload(void *to, const void *from, size_t n_bytes)
{
    assert_int_equal(cudaMemcpy(to, from, n_bytes, cudaMemcpyHostToDevice), cudaSuccess);
    assert_int_equal(cudaDeviceSynchronize(), cudaSuccess); /* it may return before */
}

static sl_cu_q8 device_codes(size_t n_rows, size_t n_blocks)
{
    return (sl_cu_q8){.q = device_memory(n_rows * n_blocks * BLOCK),
                      .d = device_memory(n_rows * n_blocks * sizeof(float)),
                      .sums = device_memory(n_rows * n_blocks * 2 * sizeof(int16_t)),
                      .n_blocks = (uint32_t)n_blocks};
}

static void free_codes(sl_cu_q8 *codes)
{
    cudaFree(codes->q);
    cudaFree(codes->d);
    cudaFree(codes->sums);
}

static void open_fixture(fixture *f, uint32_t n_rows, uint32_t n_cols)
{
    const size_t n = (size_t)n_rows * n_cols, n_blocks = n_cols / BLOCK, all = n_rows * n_blocks;
    f->n_rows = n_rows;
    f->n_cols = n_cols;
    f->x = test_malloc(n * sizeof *f->x);
    f->q = test_malloc(n);
    f->d = test_malloc(all * sizeof *f->d);
    f->sums = test_malloc(2 * all * sizeof *f->sums);
    for (size_t i = 0; i < n; i++)
        f->x[i] = sl_test_rng_normal(&f->rng);
    for (uint32_t i = 0; i < n_rows; i++)
        sl_quantise_row_scalar(f->x + (size_t)i * n_cols, n_cols, f->q + (size_t)i * n_cols,
                               f->d + i * n_blocks, f->sums + 2 * i * n_blocks);
    f->on_device = device_codes(n_rows, n_blocks);
    f->scales = device_memory(sl_cu_many_scales(n_rows, (uint32_t)n_blocks) * sizeof(float));
    upload(f->on_device.q, f->q, n);
    upload(f->on_device.d, f->d, all * sizeof *f->d);
    upload(f->on_device.sums, f->sums, 2 * all * sizeof *f->sums);
}

static void close_fixture(fixture *f)
{
    test_free(f->x);
    test_free(f->q);
    test_free(f->d);
    test_free(f->sums);
    free_codes(&f->on_device);
    cudaFree(f->scales);
}

static sl_matrix random_stack(fixture *f, sl_dtype dtype, uint32_t n_rows, uint32_t n_stack)
{
    sl_matrix m = {.dtype = dtype, .n_rows = n_rows, .n_cols = f->n_cols, .n_stack = n_stack};
    assert_true(sl_dtype_row_bytes(dtype, f->n_cols, &m.row_bytes));
    m.stack_bytes = n_rows * m.row_bytes;
    uint8_t *data = test_malloc(n_stack * m.stack_bytes);
    sl_random_source *source = NULL;
    sl_error err;
    assert_ok(sl_random_open(dtype, (size_t)n_stack * n_rows * f->n_cols, SL_RANDOM_NORMAL, 0.05,
                             sl_test_rng_next(&f->rng), &source, &err));
    sl_random_read(source, data, n_stack * m.stack_bytes);
    sl_random_close(source);
    m.data = data;
    assert_ok(sl_cuda_load(&f->cuda->base, &m, &err));
    return m;
}

static sl_matrix random_matrix(fixture *f, sl_dtype dtype, uint32_t n_rows)
{
    return random_stack(f, dtype, n_rows, 1);
}

static float expected_of(const fixture *f, const sl_matrix *m, uint32_t stack, uint32_t row,
                         uint32_t output)
{
    const size_t n_blocks = f->n_cols / BLOCK;
    return sl_dot_q8_scalar[m->dtype](sl_matrix_row(m, stack, output),
                                      f->q + (size_t)row * f->n_cols, f->d + row * n_blocks,
                                      f->sums + 2 * row * n_blocks, f->n_cols);
}

static float expected_at(const fixture *f, const sl_matrix *m, uint32_t row, uint32_t output)
{
    return expected_of(f, m, 0, row, output);
}

static void fetch(const fixture *f, void *to, const void *from, size_t n_bytes)
{
    assert_int_equal(cudaStreamSynchronize(f->cuda->queue.stream), cudaSuccess);
    assert_int_equal(cudaMemcpy(to, from, n_bytes, cudaMemcpyDeviceToHost), cudaSuccess);
}

/* got[row][output] = before + product. */
static void check_all(const fixture *f, const sl_matrix *m, const float *y, float before)
{
    const size_t n = (size_t)f->n_rows * m->n_rows;
    float *got = test_malloc(n * sizeof *got);
    fetch(f, got, y, n * sizeof *got);
    size_t n_wrong = 0;
    for (size_t i = 0; i < n; i++) {
        const float product =
            expected_at(f, m, (uint32_t)(i / m->n_rows), (uint32_t)(i % m->n_rows));
        const float expected = before != 0.0f ? before + product : product;
        n_wrong += memcmp(&got[i], &expected, sizeof expected) != 0;
    }
    if (n_wrong > 0)
        print_message("%s, %u rows, %u outputs, %u inputs\n", sl_dtype_get(m->dtype)->name,
                      f->n_rows, m->n_rows, m->n_cols);
    assert_int_equal(n_wrong, 0);
    test_free(got);
}

static void test_every_type(void **state)
{
    (void)state;
    static const sl_dtype types[] = {SL_Q8_0, SL_Q4_0,   SL_Q5_0, SL_IQ4_NL, SL_Q4_1,
                                     SL_Q5_1, SL_Q2_K,   SL_Q3_K, SL_Q4_K,   SL_Q5_K,
                                     SL_Q6_K, SL_IQ4_XS, SL_MXFP4};
    static const uint32_t rows[] = {1, 8, 9, 65, 130};
    fixture f = {.cuda = open_device(), .rng = sl_test_rng_of(1)};
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        open_fixture(&f, rows[r], 512);
        float *y = device_memory(rows[r] * 100 * sizeof *y);
        for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
            const sl_matrix m = random_matrix(&f, types[i], 100);
            const sl_cu_product p = {
                .n = rows[r], .row_divisor = 1, .q8 = f.on_device, .y = y, .y_stride = 100};
            sl_cu_matrix_product(&f.cuda->queue, m.packed, &p);
            check_all(&f, &m, y, 0.0f);
            test_free((void *)(uintptr_t)m.data);
        }
        cudaFree(y);
        close_fixture(&f);
    }
    f.cuda->base.destroy(&f.cuda->base);
}

/* Float weights: their loads and kernels depend on the numbers of rows and columns. */
static void check_float(fixture *f, sl_dtype dtype, uint32_t n_outputs)
{
    const sl_matrix m = random_matrix(f, dtype, n_outputs);
    float *x = device_memory((size_t)f->n_rows * f->n_cols * sizeof *x);
    float *y = device_memory((size_t)f->n_rows * n_outputs * sizeof *y);
    float *got = test_malloc((size_t)f->n_rows * n_outputs * sizeof *got);
    upload(x, f->x, (size_t)f->n_rows * f->n_cols * sizeof *x);
    const sl_cu_product p = {.n = f->n_rows,
                             .row_divisor = 1,
                             .f32 = x,
                             .f32_stride = f->n_cols,
                             .y = y,
                             .y_stride = n_outputs};
    sl_cu_matrix_product(&f->cuda->queue, m.packed, &p);
    fetch(f, got, y, (size_t)f->n_rows * n_outputs * sizeof *got);
    for (uint32_t i = 0; i < f->n_rows * n_outputs; i++) {
        const float expected =
            sl_dot_float_scalar[dtype](sl_matrix_row(&m, 0, i % n_outputs),
                                       f->x + (size_t)(i / n_outputs) * f->n_cols, f->n_cols);
        assert_memory_equal(&got[i], &expected, sizeof expected);
    }
    test_free(got);
    test_free((void *)(uintptr_t)m.data);
    cudaFree(x);
    cudaFree(y);
}

static void test_float_weights(void **state)
{
    (void)state;
    static const sl_dtype types[] = {SL_F32, SL_F16, SL_BF16};
    static const uint32_t rows[] = {1, 3, 7, 16, 70}, cols[] = {32, 250, 288, 2080, 2400};
    fixture f = {.cuda = open_device(), .rng = sl_test_rng_of(7)};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        for (size_t k = 0; k < sizeof cols / sizeof *cols; k++) {
            open_fixture(&f, rows[i], (cols[k] + BLOCK - 1) / BLOCK * BLOCK);
            f.n_cols = cols[k];
            for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
                check_float(&f, types[t], 1);
                check_float(&f, types[t], 45);
            }
            close_fixture(&f);
        }
    }
    f.cuda->base.destroy(&f.cuda->base);
}

static void check_route(fixture *f, uint32_t n_rows, uint32_t n, uint32_t top_k)
{
    const size_t all = (size_t)n_rows * n, chosen = (size_t)n_rows * top_k;
    float *logits = test_malloc(all * sizeof *logits), *p = test_malloc(n * sizeof *p);
    for (size_t i = 0; i < all; i++) /* some are equal, some differ by much */
        logits[i] = (float)(int)(sl_test_rng_normal(&f->rng) * 8.0f) * (i % 3 == 0 ? 9.0f : 0.25f);
    float *w = test_malloc(chosen * sizeof *w), *expected_w = test_malloc(top_k * sizeof *w);
    uint32_t *ids = test_malloc(chosen * sizeof *ids), *expected = test_malloc(top_k * sizeof *ids);
    float *on_device = device_memory(all * sizeof *logits);
    float *w_there = device_memory(chosen * sizeof *w);
    uint32_t *ids_there = device_memory(chosen * sizeof *ids);
    uint32_t *flags = device_memory(n_rows * sizeof *flags);
    upload(on_device, logits, all * sizeof *logits);
    sl_cu_route(&f->cuda->queue, on_device, n_rows, n, top_k, ids_there, w_there, flags, 1);
    fetch(f, w, w_there, chosen * sizeof *w);
    fetch(f, ids, ids_there, chosen * sizeof *ids);
    for (uint32_t i = 0; i < n_rows; i++) {
        assert_true(sl_route_scalar(logits + (size_t)i * n, n, top_k, p, expected, expected_w));
        assert_memory_equal(ids + (size_t)i * top_k, expected, top_k * sizeof *ids);
        assert_memory_equal(w + (size_t)i * top_k, expected_w, top_k * sizeof *w);
    }
    void *const here[] = {logits, p, w, expected_w, ids, expected};
    void *const there[] = {on_device, w_there, ids_there, flags};
    for (size_t i = 0; i < sizeof here / sizeof *here; i++)
        test_free(here[i]);
    for (size_t i = 0; i < sizeof there / sizeof *there; i++)
        cudaFree(there[i]);
}

static void test_route(void **state)
{
    (void)state;
    fixture f = {.cuda = open_device(), .rng = sl_test_rng_of(8)};
    check_route(&f, 1, 256, 8);
    check_route(&f, 70, 256, 8);
    check_route(&f, 5, 4, 2);
    check_route(&f, 6, 3, 3);
    check_route(&f, 9, 512, 10);
    check_route(&f, 3, 600, 40);
    check_route(&f, 2, SL_CU_MOST_EXPERTS, 64);
    f.cuda->base.destroy(&f.cuda->base);
}

/* Several matrices of awkward sizes at once, then each of them into sums. */
static void check_many(fixture *f, const uint32_t n_outputs[SL_CU_MANY_TARGETS])
{
    sl_cu_many many = {.n_rows = f->n_rows,
                       .q8 = f->on_device,
                       .scales = f->scales,
                       .n_targets = SL_CU_MANY_TARGETS};
    sl_matrix m[SL_CU_MANY_TARGETS];
    for (size_t k = 0; k < SL_CU_MANY_TARGETS; k++) {
        m[k] = random_matrix(f, SL_Q8_0, n_outputs[k]);
        many.targets[k].w = *(const sl_cu_matrix *)m[k].packed;
        many.targets[k].y = device_memory(f->n_rows * n_outputs[k] * sizeof(float));
        many.targets[k].y_stride = n_outputs[k];
    }
    if (!sl_cu_many_fits(&many)) {
        print_message("skipped: the device has no such kernel\n");
        skip();
    }
    sl_cu_run_many(&f->cuda->queue, &many);
    uint32_t *flags = device_memory(f->n_rows * sizeof *flags);
    for (size_t k = 0; k < SL_CU_MANY_TARGETS; k++) {
        check_all(f, &m[k], many.targets[k].y, 0.0f);
        sl_cu_many sum = {.n_rows = f->n_rows,
                          .q8 = f->on_device,
                          .scales = f->scales,
                          .n_targets = 1,
                          .flags = flags};
        sum.targets[0] = many.targets[k];
        const size_t n = (size_t)f->n_rows * n_outputs[k];
        float *ones = test_malloc(n * sizeof *ones);
        for (size_t i = 0; i < n; i++)
            ones[i] = 1.0f;
        upload(sum.targets[0].y, ones, n * sizeof *ones);
        sl_cu_run_many(&f->cuda->queue, &sum);
        check_all(f, &m[k], sum.targets[0].y, 1.0f);
        test_free(ones);
        test_free((void *)(uintptr_t)m[k].data);
        cudaFree(many.targets[k].y);
    }
    cudaFree(flags);
}

static void test_many_targets(void **state)
{
    (void)state;
    static const uint32_t rows[] = {1, 33, 64, 128, MAX_ROWS}, cols[] = {32, 288, 1024, MAX_COLS};
    static const uint32_t n_outputs[2][SL_CU_MANY_TARGETS] = {{MAX_OUTPUTS, 16, 1, 128},
                                                              {64, 100, 17, 256}};
    fixture f = {.cuda = open_device(), .rng = sl_test_rng_of(2)};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        for (size_t k = 0; k < sizeof cols / sizeof *cols; k++) {
            open_fixture(&f, rows[i], cols[k]);
            check_many(&f, n_outputs[(i + k) % 2]);
            close_fixture(&f);
        }
    }
    f.cuda->base.destroy(&f.cuda->base);
}

/* Rows enough for the tiles of a full device. */
static void test_wide_tiles(void **state)
{
    (void)state;
    fixture f = {.cuda = open_device(), .rng = sl_test_rng_of(3)};
    open_fixture(&f, 1100, 160);
    static const uint32_t n_outputs[SL_CU_MANY_TARGETS] = {2000, 16, 300, 33};
    check_many(&f, n_outputs);
    close_fixture(&f);
    f.cuda->base.destroy(&f.cuda->base);
}

/* Rows with a result that is not finite are marked, and only those. */
static void test_marks(void **state)
{
    (void)state;
    enum { ROWS = 200, OUTPUTS = 128, MARK = 7, BAD = 77 };
    fixture f = {.cuda = open_device(), .rng = sl_test_rng_of(4)};
    open_fixture(&f, ROWS, 256);
    const sl_matrix m = random_matrix(&f, SL_Q8_0, OUTPUTS);
    sl_cu_many sum = {
        .n_rows = ROWS, .q8 = f.on_device, .scales = f.scales, .n_targets = 1, .mark = MARK};
    sum.targets[0].w = *(const sl_cu_matrix *)m.packed;
    sum.targets[0].y = device_memory(ROWS * OUTPUTS * sizeof(float));
    sum.targets[0].y_stride = OUTPUTS;
    sum.flags = device_memory(ROWS * sizeof *sum.flags);
    if (!sl_cu_many_fits(&sum)) {
        print_message("skipped: the device has no such kernel\n");
        skip();
    }
    const float infinite = INFINITY;
    upload(sum.targets[0].y + BAD * OUTPUTS + 5, &infinite, sizeof infinite);
    sl_cu_run_many(&f.cuda->queue, &sum);
    uint32_t flags[ROWS];
    fetch(&f, flags, sum.flags, sizeof flags);
    for (uint32_t i = 0; i < ROWS; i++)
        assert_int_equal(flags[i], i == BAD ? MARK : 0);
    cudaFree(sum.targets[0].y);
    cudaFree(sum.flags);
    test_free((void *)(uintptr_t)m.data);
    close_fixture(&f);
    f.cuda->base.destroy(&f.cuda->base);
}

/* A product of what SwiGLU left, with the scales as it left them. */
static void check_following(const fixture *f, const sl_cu_many *swiglu, int8_t *q, float *d,
                            int16_t *sums)
{
    enum { OUTPUTS = 48 };
    fixture g = *f;
    g.n_cols = swiglu->act_q8.n_blocks * BLOCK;
    g.q = q;
    g.d = d;
    g.sums = sums;
    const sl_matrix m = random_matrix(&g, SL_Q8_0, OUTPUTS);
    sl_cu_many down = {.n_rows = f->n_rows, .q8 = swiglu->act_q8, .n_targets = 1};
    down.scales = swiglu->act_scales;
    down.scales_are_there = 1;
    down.targets[0].w = *(const sl_cu_matrix *)m.packed;
    down.targets[0].y = device_memory(f->n_rows * OUTPUTS * sizeof(float));
    down.targets[0].y_stride = OUTPUTS;
    sl_cu_run_many(&f->cuda->queue, &down);
    check_all(&g, &m, down.targets[0].y, 0.0f);
    cudaFree(down.targets[0].y);
    test_free((void *)(uintptr_t)m.data);
}

static void check_swiglu(fixture *f, uint32_t n)
{
    const size_t n_blocks = (n + BLOCK - 1) / BLOCK;
    sl_cu_many many = {
        .n_rows = f->n_rows, .q8 = f->on_device, .scales = f->scales, .n_targets = 2, .swiglu = 1};
    sl_matrix m[2];
    for (size_t k = 0; k < 2; k++) {
        m[k] = random_matrix(f, SL_Q8_0, n);
        many.targets[k].w = *(const sl_cu_matrix *)m[k].packed;
    }
    many.act_q8 = device_codes(f->n_rows, n_blocks);
    many.act_scales =
        device_memory(sl_cu_many_scales(f->n_rows, (uint32_t)n_blocks) * sizeof(float));
    if (!sl_cu_many_fits(&many)) {
        print_message("skipped: the device has no such kernel\n");
        skip();
    }
    sl_cu_run_many(&f->cuda->queue, &many);
    const size_t all = f->n_rows * n_blocks;
    int8_t *q = test_malloc(all * BLOCK), *expected_q = test_malloc(n_blocks * BLOCK);
    float *d = test_malloc(all * sizeof *d), *expected_d = test_malloc(n_blocks * sizeof *d);
    int16_t *sums = test_malloc(2 * all * sizeof *sums);
    int16_t *expected_sums = test_malloc(2 * n_blocks * sizeof *sums);
    float *act = test_malloc(n * sizeof *act);
    fetch(f, q, many.act_q8.q, all * BLOCK);
    fetch(f, d, many.act_q8.d, all * sizeof *d);
    fetch(f, sums, many.act_q8.sums, 2 * all * sizeof *sums);
    for (uint32_t row = 0; row < f->n_rows; row++) {
        for (uint32_t i = 0; i < n; i++)
            act[i] = sl_silu(expected_at(f, &m[0], row, i)) * expected_at(f, &m[1], row, i);
        sl_quantise_row_scalar(act, n, expected_q, expected_d, expected_sums);
        assert_memory_equal(q + row * n_blocks * BLOCK, expected_q, n_blocks * BLOCK);
        assert_memory_equal(d + row * n_blocks, expected_d, n_blocks * sizeof *d);
        assert_memory_equal(sums + 2 * row * n_blocks, expected_sums, 2 * n_blocks * sizeof *sums);
    }
    if (n_blocks % SL_CU_MANY_BLOCKS == 0)
        check_following(f, &many, q, d, sums);
    cudaFree(many.act_scales);
    test_free(q);
    test_free(d);
    test_free(sums);
    test_free(expected_q);
    test_free(expected_d);
    test_free(expected_sums);
    test_free(act);
    free_codes(&many.act_q8);
    for (size_t k = 0; k < 2; k++)
        test_free((void *)(uintptr_t)m[k].data);
}

static void test_swiglu(void **state)
{
    (void)state;
    static const uint32_t rows[] = {1, 40, 129}, outputs[] = {32, 256, 500};
    fixture f = {.cuda = open_device(), .rng = sl_test_rng_of(5)};
    for (size_t i = 0; i < 3; i++) {
        open_fixture(&f, rows[i], 320);
        check_swiglu(&f, outputs[i]);
        close_fixture(&f);
    }
    open_fixture(&f, 1100, 64); /* tiles enough for a full device */
    check_swiglu(&f, 1024);
    close_fixture(&f);
    f.cuda->base.destroy(&f.cuda->base);
}

static void same(const fixture *f, const void *a, const void *b, size_t n_bytes)
{
    char *got = test_malloc(n_bytes), *expected = test_malloc(n_bytes);
    fetch(f, got, a, n_bytes);
    fetch(f, expected, b, n_bytes);
    assert_memory_equal(got, expected, n_bytes);
    test_free(got);
    test_free(expected);
}

/* Norms of many rows have the bits of those of few, and their scales lie where products that find
 * them there look. */
static void test_norms(void **state)
{
    (void)state;
    static const uint32_t rows[] = {1, 65, 1000}, cols[] = {128, 384, 1024, 2048};
    enum { OUTPUTS = 40 };
    fixture f = {.cuda = open_device(), .rng = sl_test_rng_of(6)};
    for (size_t i = 0; i < sizeof rows / sizeof *rows * (sizeof cols / sizeof *cols); i++) {
        const uint32_t n_rows = rows[i % 3], n = cols[i / 3];
        const size_t all = (size_t)n_rows * n, n_blocks = n / BLOCK;
        open_fixture(&f, n_rows, n);
        float *x = device_memory(all * sizeof *x), *w = device_memory(n * sizeof *w);
        float *y[2] = {device_memory(all * sizeof *x), device_memory(all * sizeof *x)};
        f.x[all / 2] = 0x1p-140f;
        upload(x, f.x, all * sizeof *x);
        upload(w, f.x, n * sizeof *w);
        sl_cu_q8 few = device_codes(n_rows, n_blocks), many = device_codes(n_rows, n_blocks);
        assert_true(sl_cu_norm_many_fits(n));
        sl_cu_norm(&f.cuda->queue, x, NULL, w, n_rows, n, 1e-6f, y[0], n, few, NULL, 0);
        sl_cu_norm_many(&f.cuda->queue, x, w, n_rows, n, 1e-6f, y[1], n, many, f.scales);
        same(&f, y[1], y[0], all * sizeof *x);
        same(&f, many.q, few.q, all);
        same(&f, many.d, few.d, n_rows * n_blocks * sizeof *many.d);
        same(&f, many.sums, few.sums, 2 * n_rows * n_blocks * sizeof *many.sums);
        const sl_matrix m = random_matrix(&f, SL_Q8_0, OUTPUTS);
        sl_cu_many product = {.n_rows = n_rows, .q8 = many, .scales = f.scales, .n_targets = 1};
        product.targets[0] = (sl_cu_target){.w = *(const sl_cu_matrix *)m.packed, .y = y[0]};
        product.targets[0].y_stride = OUTPUTS;
        if (sl_cu_many_fits(&product)) {
            product.scales_are_there = 1;
            sl_cu_run_many(&f.cuda->queue, &product);
            product.scales_are_there = 0;
            product.targets[0].y = y[1];
            sl_cu_run_many(&f.cuda->queue, &product);
            same(&f, y[1], y[0], (size_t)n_rows * OUTPUTS * sizeof *x);
        }
        test_free((void *)(uintptr_t)m.data);
        free_codes(&few);
        free_codes(&many);
        cudaFree(x);
        cudaFree(w);
        cudaFree(y[0]);
        cudaFree(y[1]);
        close_fixture(&f);
    }
    f.cuda->base.destroy(&f.cuda->base);
}

/* Every pair has a place in a group of its expert, in order; the rest of a group is empty. */
static void check_grouping(const fixture *f, const sl_cu_grouping *g, const uint32_t *ids,
                           uint32_t *place)
{
    const uint32_t most = sl_cu_most_groups(g->n_pairs, g->n_experts, g->group_rows);
    const size_t room = (size_t)most * g->group_rows;
    uint32_t n_groups = 0, *pair = test_malloc(room * sizeof *pair);
    uint32_t *stack = test_malloc(most * sizeof *stack), n_placed = 0;
    fetch(f, place, g->place, g->n_pairs * sizeof *place);
    fetch(f, pair, g->pair, room * sizeof *pair);
    fetch(f, stack, g->stack, most * sizeof *stack);
    fetch(f, &n_groups, g->n_groups, sizeof n_groups);
    assert_true(n_groups <= most);
    for (uint32_t i = 0; i < n_groups; i++) {
        assert_true(i == 0 || stack[i - 1] <= stack[i]);
        for (uint32_t k = 0; k < g->group_rows; k++) {
            const uint32_t at = i * g->group_rows + k;
            if (pair[at] == UINT32_MAX)
                continue;
            n_placed++;
            assert_true(pair[at] < g->n_pairs);
            assert_int_equal(place[pair[at]], at);
            assert_int_equal(ids[pair[at]], stack[i]);
            assert_true(k == 0 || (pair[at - 1] != UINT32_MAX && pair[at - 1] < pair[at]));
        }
    }
    assert_int_equal(n_placed, g->n_pairs);
    test_free(pair);
    test_free(stack);
}

/* Rows by expert, gathered, and their products. */
static void check_groups(fixture *f, uint32_t top_k, uint32_t n_experts, uint32_t group_rows)
{
    enum { OUTPUTS = 40 };
    const uint32_t n_pairs = f->n_rows * top_k;
    const uint32_t most = sl_cu_most_groups(n_pairs, n_experts, group_rows);
    const size_t room = (size_t)most * group_rows, n_blocks = f->n_cols / BLOCK;
    uint32_t *ids = test_malloc(n_pairs * sizeof *ids), *place = test_malloc(n_pairs * sizeof *ids);
    for (uint32_t i = 0; i < n_pairs; i++) { /* some are chosen much more often */
        const uint32_t r = (uint32_t)sl_test_rng_next(&f->rng);
        ids[i] = r % 3 == 0 ? n_experts / 2 : r / 3 % n_experts;
    }
    uint32_t *on_device = device_memory(n_pairs * sizeof *ids);
    upload(on_device, ids, n_pairs * sizeof *ids);
    const sl_cu_grouping g = {.n_pairs = n_pairs,
                              .n_experts = n_experts,
                              .group_rows = group_rows,
                              .ids = on_device,
                              .place = device_memory(n_pairs * sizeof(uint32_t)),
                              .pair = device_memory(room * sizeof(uint32_t)),
                              .stack = device_memory(most * sizeof(uint32_t)),
                              .n_groups = device_memory(sizeof(uint32_t)),
                              .counts = device_memory(n_experts * sizeof(uint32_t))};
    sl_cu_group_pairs(&f->cuda->queue, &g);
    check_grouping(f, &g, ids, place);
    const sl_matrix m = random_stack(f, SL_Q8_0, OUTPUTS, n_experts);
    sl_cu_many many = {.n_rows = (uint32_t)room,
                       .q8 = device_codes(room, n_blocks),
                       .scales =
                           device_memory(sl_cu_many_scales((uint32_t)room, (uint32_t)n_blocks) * 4),
                       .n_targets = 1,
                       .groups = {group_rows, g.stack, g.n_groups}};
    many.targets[0].w = *(const sl_cu_matrix *)m.packed;
    many.targets[0].y = device_memory(room * OUTPUTS * sizeof(float));
    many.targets[0].y_stride = OUTPUTS;
    if (!sl_cu_many_fits(&many)) {
        print_message("skipped: the device has no such kernel\n");
        skip();
    }
    sl_cu_gather_pairs(&f->cuda->queue, &g, top_k, &f->on_device, &many.q8);
    sl_cu_run_many(&f->cuda->queue, &many);
    float *got = test_malloc(room * OUTPUTS * sizeof *got);
    fetch(f, got, many.targets[0].y, room * OUTPUTS * sizeof *got);
    for (uint32_t i = 0; i < n_pairs; i++) {
        for (uint32_t o = 0; o < OUTPUTS; o += 3) {
            const float expected = expected_of(f, &m, ids[i], i / top_k, o);
            assert_memory_equal(&got[(size_t)place[i] * OUTPUTS + o], &expected, sizeof expected);
        }
    }
    test_free(got);
    test_free(ids);
    test_free(place);
    test_free((void *)(uintptr_t)m.data);
    free_codes(&many.q8);
    void *const memory[] = {on_device,  g.place,  g.pair,      g.stack,
                            g.n_groups, g.counts, many.scales, many.targets[0].y};
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++)
        cudaFree(memory[i]);
}

static void test_groups(void **state)
{
    (void)state;
    static const struct {
        uint32_t n_rows, top_k, n_experts;
    } cases[] = {{1, 2, 4}, {65, 3, 8}, {200, 8, 64}, {300, 4, 1024}, {1200, 2, 5}, {1030, 8, 100}};
    fixture f = {.cuda = open_device(), .rng = sl_test_rng_of(6)};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        open_fixture(&f, cases[i].n_rows, 288);
        check_groups(&f, cases[i].top_k, cases[i].n_experts, 32);
        check_groups(&f, cases[i].top_k, cases[i].n_experts, 64);
        close_fixture(&f);
    }
    f.cuda->base.destroy(&f.cuda->base);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_type),    cmocka_unit_test(test_many_targets),
        cmocka_unit_test(test_wide_tiles),    cmocka_unit_test(test_marks),
        cmocka_unit_test(test_swiglu),        cmocka_unit_test(test_groups),
        cmocka_unit_test(test_float_weights), cmocka_unit_test(test_route),
        cmocka_unit_test(test_norms),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#else
static void test_without(void **state)
{
    (void)state;
    print_message("skipped: built without CUDA\n");
    skip();
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_without)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#endif
