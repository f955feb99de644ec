/* The gated delta layer on a CUDA device by itself: close to the token-serial rule in double, and
 * the same bits in one run, token by token, and in pieces. Skipped where no device can be used. */
#include "support.h"

#ifdef SL_CUDA

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cuda/kernels/launch.h"
#include "base/mem.h"

enum {
    DIM = SL_GDN_DIM,
    CHUNK = SL_GDN_CHUNK,
    ROWS = 4 * CHUNK + 7,
    KEY_HEADS = 2,
    HEADS = 4,
    CHANNELS = (2 * KEY_HEADS + HEADS) * DIM,
    CONV_ROWS = 19,
    N_CHUNKS = ROWS / CHUNK + 1,
    PAGE_FLOATS = (KEY_HEADS + HEADS) * SL_TAPE_PAGE * DIM + HEADS * SL_TAPE_PAGE,
    STATE_FLOATS = HEADS * DIM * DIM,
    OUTPUTS = ROWS * HEADS * DIM
};

/* Everything of one layer and one sequence, on the host and again on the device. */
typedef struct rig {
    float conv[CHANNELS * SL_CONV_TAPS], a_coef[HEADS], dt[HEADS], norm[DIM];
    float qkv[ROWS * CHANNELS], z[OUTPUTS], a[ROWS * HEADS], b[ROWS * HEADS];
    float y[OUTPUTS];
    float borders[(N_CHUNKS + 1) * STATE_FLOATS]; /* border c is the state at chunk c's beginning */
    float pages[(N_CHUNKS + 1) * SL_TAPE_CHUNK_PAGES * PAGE_FLOATS];
    float raw[CONV_ROWS * CHANNELS];
    sl_cu_segment segment;
} rig;

typedef struct bench {
    rig *host, *device;
    void *chunks;
    sl_cu_queue queue;
} bench;

static void fill(sl_test_rng *rng, float *x, size_t n, float scale, float offset)
{
    for (size_t i = 0; i < n; i++)
        x[i] = offset + scale * ((float)sl_test_rng_below(rng, 1u << 24) * 0x1p-23f - 1.0f);
}

/* Random inputs; with a period, keys and queries repeat but for 1 %, and next to nothing decays. */
static bench make_bench(size_t period)
{
    bench out = {.host = sl_alloc_zero(SL_MEM_GENERAL, sizeof(rig))};
    sl_test_rng rng = sl_test_rng_of(7);
    rig *r = out.host;
    if (cudaStreamCreate(&out.queue.stream) != cudaSuccess) {
        sl_free(r);
        skip_because("no CUDA device can be used");
    }
    int major = 0;
    assert_int_equal(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0), 0);
    out.queue.overlap = major >= 9;
    fill(&rng, r->conv, SL_COUNTOF(r->conv), 0.5f, 0.0f);
    fill(&rng, r->a_coef, HEADS, period ? 0.0f : 0.03f, period ? -1.5e-4f : -0.04f);
    fill(&rng, r->norm, DIM, 0.1f, 1.0f);
    fill(&rng, r->qkv, SL_COUNTOF(r->qkv), 2.0f, 0.0f);
    for (size_t i = period * CHANNELS; period && i < SL_COUNTOF(r->qkv); i++)
        r->qkv[i] = r->qkv[i % (period * CHANNELS)] + 0.01f * r->qkv[i];
    fill(&rng, r->z, SL_COUNTOF(r->z), 2.0f, 0.0f);
    fill(&rng, r->a, SL_COUNTOF(r->a), 1.0f, 0.0f);
    fill(&rng, r->b, SL_COUNTOF(r->b), period ? 0.0f : 2.0f, period ? 6.9f : 0.0f);
    assert_int_equal(cudaMalloc((void **)&out.device, sizeof(rig)), cudaSuccess);
    assert_int_equal(cudaMemcpy(out.device, r, sizeof(rig), cudaMemcpyHostToDevice), cudaSuccess);
    assert_int_equal(
        cudaMalloc(&out.chunks, sl_cu_gdn_chunk_bytes(ROWS / CHUNK + 2, KEY_HEADS, HEADS)),
        cudaSuccess);
    return out;
}

static void free_bench(bench *b)
{
    (void)cudaFree(b->device);
    (void)cudaFree(b->chunks);
    (void)cudaStreamDestroy(b->queue.stream);
    sl_free(b->host);
}

static sl_cu_segment segment_of(rig *r, uint32_t pos, uint32_t n)
{
    const uint32_t chunk = pos / CHUNK, n_full = (pos % CHUNK + n) / CHUNK;
    const uint32_t last = (pos % CHUNK + n - 1) / CHUNK;
    sl_cu_segment out = {.pos = pos,
                         .n_rows = n,
                         .border = chunk > 0 ? r->borders + chunk * STATE_FLOATS : NULL,
                         .conv = r->raw};
    for (uint32_t m = n_full > 1 ? n_full - 1 : 1; m <= n_full; m++)
        out.border_out[m & 1] = r->borders + (chunk + m) * STATE_FLOATS;
    for (uint32_t m = 0; m <= last; m++) {
        for (uint32_t page = 0; page < SL_TAPE_CHUNK_PAGES; page++)
            out.tape[m == 0 ? 0 : 1 + (m & 1)][page] =
                r->pages + ((chunk + m) * SL_TAPE_CHUNK_PAGES + page) * PAGE_FLOATS;
    }
    return out;
}

/* Rows pos .. pos + n. A step does all at once; outputs of the others stay without their norm when
 * they are asked for raw. */
static void run_rows(const bench *b, uint32_t pos, uint32_t n, bool as_step, bool raw)
{
    rig *r = b->device;
    const sl_cu_segment segment = segment_of(r, pos, n);
    assert_int_equal(cudaMemcpy(&r->segment, &segment, sizeof segment, cudaMemcpyHostToDevice), 0);
    const sl_cu_rows rows = {
        .n_rows = n, .n_segments = 1, .n_chunks = n / CHUNK + 2, .segments = &r->segment};
    const size_t at = (size_t)pos * HEADS;
    const sl_cu_gdn gdn = {.n_key_heads = KEY_HEADS,
                           .n_value_heads = HEADS,
                           .n_conv_rows = CONV_ROWS,
                           .n_channels = CHANNELS,
                           .layer_floats = PAGE_FLOATS,
                           .conv = r->conv,
                           .a_coef = r->a_coef,
                           .dt = r->dt,
                           .norm = r->norm,
                           .eps = 1e-6f,
                           .qkv = r->qkv + (size_t)pos * CHANNELS,
                           .z = r->z + at * DIM,
                           .a = r->a + at,
                           .b = r->b + at,
                           .y = r->y + at * DIM,
                           .keeps_y = 1,
                           .chunks = b->chunks};
    if (as_step) {
        sl_cu_gdn_step(&b->queue, &rows, &gdn);
    } else {
        sl_cu_gdn_prepare(&b->queue, &rows, &gdn);
        sl_cu_gdn_rule(&b->queue, &rows, &gdn);
        if (!raw)
            sl_cu_gdn_finish(&b->queue, &rows, &gdn);
    }
    assert_int_equal(cudaStreamSynchronize(b->queue.stream), cudaSuccess);
}

static rig *fetch(const bench *b)
{
    rig *out = sl_alloc_zero(SL_MEM_GENERAL, sizeof *out);
    assert_int_equal(cudaMemcpy(out, b->device, sizeof *out, cudaMemcpyDeviceToHost), cudaSuccess);
    return out;
}

/* ---- against the serial rule ---- */

static double channel_of(const rig *r, size_t row, size_t channel)
{
    double sum = 0;
    for (size_t j = 0; j < SL_CONV_TAPS; j++) {
        if (row + j >= SL_CONV_HISTORY)
            sum += (double)r->conv[channel * SL_CONV_TAPS + j] *
                   (double)r->qkv[(row + j - SL_CONV_HISTORY) * CHANNELS + channel];
    }
    return sum / (1 + exp(-sum));
}

static void unit_vector(const rig *r, size_t row, size_t head, double scale, double out[DIM])
{
    double squares = 0;
    for (size_t a = 0; a < DIM; a++) {
        out[a] = channel_of(r, row, head * DIM + a);
        squares += out[a] * out[a];
    }
    for (size_t a = 0; a < DIM; a++)
        out[a] *= scale / sqrt(squares + 1e-6);
}

/* Outputs before their norm, and the state after each full chunk, of one value head. */
static void serial_rule(const rig *r, size_t head, double *outputs, double *state, size_t n_rows)
{
    double k[DIM], q[DIM];
    for (size_t row = 0; row < n_rows; row++) {
        const size_t gate = row * HEADS + head, key_head = head / (HEADS / KEY_HEADS);
        unit_vector(r, row, KEY_HEADS + key_head, 1.0, k);
        unit_vector(r, row, key_head, 1.0 / sqrt(DIM), q);
        const double decay = exp((double)r->a_coef[head] * log1p(exp((double)r->a[gate])));
        for (size_t c = 0; c < DIM; c++) {
            double kS = 0, out = 0;
            for (size_t a = 0; a < DIM; a++)
                kS += decay * state[a * DIM + c] * k[a];
            const double v = channel_of(r, row, (2 * KEY_HEADS + head) * DIM + c);
            const double u = (v - kS) / (1 + exp(-(double)r->b[gate]));
            for (size_t a = 0; a < DIM; a++) {
                state[a * DIM + c] = decay * state[a * DIM + c] + k[a] * u;
                out += state[a * DIM + c] * q[a];
            }
            outputs[gate * DIM + c] = out;
        }
    }
}

static double distance(const float *x, const double *y, size_t n)
{
    double difference = 0, norm = 0;
    for (size_t i = 0; i < n; i++) {
        difference += pow((double)x[i] - y[i], 2);
        norm += y[i] * y[i];
    }
    return sqrt(difference / norm);
}

/* Relative L2 error below 2e-6; measured are 4e-7 for the outputs and 6e-7 for the state. */
static void test_error(void **state)
{
    (void)state;
    enum { FULL = ROWS / CHUNK * CHUNK };
    for (size_t period = 0; period <= 3; period += 3) {
        bench b = make_bench(period);
        double *outputs = sl_alloc_array(SL_MEM_GENERAL, OUTPUTS, sizeof *outputs);
        double *S = sl_alloc_zero(SL_MEM_GENERAL, STATE_FLOATS * sizeof *S);
        for (size_t head = 0; head < HEADS; head++)
            serial_rule(b.host, head, outputs, S + head * DIM * DIM, FULL);
        run_rows(&b, 0, FULL, false, true);
        rig *got = fetch(&b);
        const double of_outputs = distance(got->y, outputs, (size_t)FULL * HEADS * DIM);
        const double of_state =
            distance(got->borders + FULL / CHUNK * STATE_FLOATS, S, STATE_FLOATS);
        print_message("period %zu: outputs %.1e, state %.1e\n", period, of_outputs, of_state);
        assert_true(of_outputs < 2e-6);
        assert_true(of_state < 2e-6);
        sl_free(got);
        sl_free(S);
        sl_free(outputs);
        free_bench(&b);
    }
}

/* ---- schedules ---- */

static void test_schedules(void **state)
{
    (void)state;
    bench b = make_bench(0);
    run_rows(&b, 0, ROWS, false, false);
    rig *whole = fetch(&b);
    static const uint32_t pieces[] = {1, 1, 2, 5, 16, CHUNK - 1, CHUNK + 1, 3 * CHUNK};
    for (size_t i = 0; i < SL_COUNTOF(pieces); i++) {
        assert_int_equal(cudaMemcpy(b.device, b.host, sizeof(rig), cudaMemcpyHostToDevice), 0);
        for (uint32_t pos = 0, n; pos < ROWS; pos += n) {
            n = pieces[i] < ROWS - pos ? pieces[i] : ROWS - pos;
            run_rows(&b, pos, n, i == 0, false);
        }
        rig *got = fetch(&b);
        const size_t page = (size_t)(ROWS / CHUNK) * SL_TAPE_CHUNK_PAGES * PAGE_FLOATS;
        const size_t border = (size_t)(ROWS / CHUNK) * STATE_FLOATS;
        assert_memory_equal(got->y, whole->y, sizeof got->y);
        assert_memory_equal(got->borders + border, whole->borders + border,
                            STATE_FLOATS * sizeof(float));
        assert_memory_equal(got->pages + page, whole->pages + page,
                            SL_TAPE_CHUNK_PAGES * PAGE_FLOATS * sizeof(float));
        assert_memory_equal(got->raw, whole->raw, sizeof got->raw);
        sl_free(got);
    }
    sl_free(whole);
    free_bench(&b);
}

#else

static void test_error(void **state)
{
    (void)state;
    skip_because("built without CUDA");
}

static void test_schedules(void **state)
{
    (void)state;
    skip_because("built without CUDA");
}

#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_error),
        cmocka_unit_test(test_schedules),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
