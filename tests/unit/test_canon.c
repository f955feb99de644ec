/* The scalar kernels against tools/canon.py, an implementation of docs/EXACTNESS.md that shares no
 * code with them: equal bits on ordinary and hostile inputs. */
#include "numbers.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backend/cpu/kernels/kernels.h"
#include "backend/cpu/kernels/math.h"

/* What canon.py has to answer: the bits of one array. */
typedef struct expectation {
    char what[80]; /* the line of the operation */
    bool is_float;
    size_t n_bytes;
    uint8_t *bytes;
} expectation;

enum { MAX_EXPECTATIONS = 2000 };

typedef struct job {
    char folder[256], in_path[300], out_path[300];
    FILE *in;
    char op[80];
    expectation expected[MAX_EXPECTATIONS];
    size_t n_expected;
} job;

static void job_open(job *j)
{
    memset(j, 0, sizeof *j);
    const char *temp = getenv("TMPDIR");
    snprintf(j->folder, sizeof j->folder, "%s/sluice-canon-XXXXXX", temp ? temp : "/tmp");
    assert_non_null(mkdtemp(j->folder));
    snprintf(j->in_path, sizeof j->in_path, "%s/in", j->folder);
    snprintf(j->out_path, sizeof j->out_path, "%s/out", j->folder);
    j->in = fopen(j->in_path, "wb");
    assert_non_null(j->in);
}

SL_PRINTF(2, 3) static void begin(job *j, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(j->op, sizeof j->op, format, args);
    va_end(args);
    fprintf(j->in, "op %s\n", j->op);
}

static void put(job *j, const char *type, const void *data, size_t count, size_t size)
{
    fprintf(j->in, "%s %zu\n", type, count);
    assert_int_equal(fwrite(data, size, count, j->in), count);
}

static void put_floats(job *j, const float *x, size_t n)
{
    put(j, "f4", x, n, sizeof *x);
}

static void end(job *j)
{
    fprintf(j->in, "end\n");
}

static void expect(job *j, bool is_float, const void *data, size_t n_bytes)
{
    assert_true(j->n_expected < MAX_EXPECTATIONS);
    expectation *e = &j->expected[j->n_expected++];
    *e = (expectation){.is_float = is_float, .n_bytes = n_bytes, .bytes = malloc(n_bytes + 1)};
    assert_non_null(e->bytes);
    memcpy(e->bytes, data, n_bytes);
    snprintf(e->what, sizeof e->what, "%s", j->op);
}

static void expect_floats(job *j, const float *x, size_t n)
{
    expect(j, true, x, n * sizeof *x);
}

/* A Python with numpy, or NULL. */
static const char *find_python(void)
{
    static const char *const candidates[] = {"/usr/bin/python3", "python3"};
    for (size_t i = 0; i < SL_COUNTOF(candidates); i++) {
        char command[200];
        snprintf(command, sizeof command, "%s -c 'import numpy' 2>/dev/null", candidates[i]);
        if (system(command) == 0)
            return candidates[i];
    }
    return NULL;
}

static void compare(const job *j, FILE *out)
{
    for (size_t i = 0; i < j->n_expected; i++) {
        const expectation *e = &j->expected[i];
        uint8_t *got = malloc(e->n_bytes + 1);
        assert_non_null(got);
        if (fread(got, 1, e->n_bytes, out) != e->n_bytes)
            fail_msg("%s: the answer is too short", e->what);
        if (e->is_float)
            sl_assert_same_floats((const float *)(void *)got, (const float *)(void *)e->bytes,
                                  e->n_bytes / sizeof(float), e->what, __FILE__, __LINE__);
        else if (memcmp(got, e->bytes, e->n_bytes) != 0)
            fail_msg("%s: bytes differ", e->what);
        free(got);
    }
    assert_int_equal(fgetc(out), EOF);
}

/* Runs canon.py over the operations and compares; closes the job. */
static void job_run(job *j, const char *python)
{
    assert_int_equal(fclose(j->in), 0);
    char command[800];
    snprintf(command, sizeof command, "%s tools/canon.py '%s' '%s'", python, j->in_path,
             j->out_path);
    assert_int_equal(system(command), 0);
    FILE *out = fopen(j->out_path, "rb");
    assert_non_null(out);
    compare(j, out);
    fclose(out);
    for (size_t i = 0; i < j->n_expected; i++)
        free(j->expected[i].bytes);
    unlink(j->in_path);
    unlink(j->out_path);
    rmdir(j->folder);
}

/* ---- operations ---- */

enum { MAX_N = 1024 };

static void put_quantiser(job *j, sl_test_rng *rng, sl_test_fill fill, size_t n)
{
    float x[MAX_N], d[MAX_N / 32];
    int8_t q[MAX_N];
    int16_t sums[MAX_N / 16];
    size_t n_blocks = (n + 31) / 32;
    sl_fill_floats(rng, fill, x, n);
    sl_quantise_row_scalar(x, n, q, d, sums);
    begin(j, "quantise");
    put_floats(j, x, n);
    end(j);
    expect(j, false, q, 32 * n_blocks);
    expect_floats(j, d, n_blocks);
    expect(j, false, sums, 2 * n_blocks * sizeof *sums);
}

/* Where the halves of a block lie; random bytes there would often be NaN. */
static const struct {
    sl_dtype dtype;
    int halves[2];
} blocks[] = {
    {SL_Q8_0, {0, -1}},   {SL_Q4_0, {0, -1}},   {SL_Q4_1, {0, 2}},    {SL_Q5_0, {0, -1}},
    {SL_Q5_1, {0, 2}},    {SL_Q2_K, {80, 82}},  {SL_Q3_K, {108, -1}}, {SL_Q4_K, {0, 2}},
    {SL_Q5_K, {0, 2}},    {SL_Q6_K, {208, -1}}, {SL_IQ4_NL, {0, -1}}, {SL_IQ4_XS, {0, -1}},
    {SL_MXFP4, {-1, -1}},
};

static void put_dot_q8(job *j, sl_test_rng *rng, size_t type, sl_test_fill fill, size_t n)
{
    const sl_dtype_info *info = sl_dtype_get(blocks[type].dtype);
    _Alignas(8) uint8_t raw[4096];
    size_t n_blocks = n / info->block_elems, n_bytes = n_blocks * info->block_bytes;
    uint8_t filling = (uint8_t)sl_test_rng_below(rng, 256);
    bool plain = sl_test_rng_below(rng, 3) == 0; /* the same byte everywhere: extremes */
    for (size_t i = 0; i < n_bytes; i++)
        raw[i] = plain ? filling : (uint8_t)sl_test_rng_below(rng, 256);
    for (size_t b = 0; b < n_blocks; b++) {
        for (int h = 0; h < 2; h++) {
            uint16_t half = (uint16_t)sl_test_rng_below(rng, 1 << 16);
            if (sl_test_rng_below(rng, 2) || (half & 0x7C00) == 0x7C00)
                half = sl_f32_to_f16(0.01f * sl_test_rng_normal(rng));
            if (blocks[type].halves[h] >= 0)
                memcpy(raw + b * info->block_bytes + blocks[type].halves[h], &half, sizeof half);
        }
    }
    float x[MAX_N], d[MAX_N / 32];
    int8_t q[MAX_N];
    int16_t sums[MAX_N / 16];
    sl_fill_floats(rng, fill, x, n);
    sl_quantise_row_scalar(x, n, q, d, sums);
    float y = sl_dot_q8_scalar[blocks[type].dtype](raw, q, d, sums, n);
    begin(j, "dot_q8 %s", info->name);
    put(j, "u1", raw, n_bytes, 1);
    put(j, "i1", q, n, 1);
    put_floats(j, d, n / 32);
    end(j);
    expect_floats(j, &y, 1);
}

static void put_dot_float(job *j, sl_test_rng *rng, sl_dtype dtype, sl_test_fill fill, size_t n)
{
    float w[MAX_N], x[MAX_N];
    uint16_t halves[MAX_N];
    sl_fill_floats(rng, fill, w, n);
    sl_fill_floats(rng, fill, x, n);
    for (size_t i = 0; i < n; i++)
        halves[i] =
            dtype == SL_F16 ? sl_f32_to_f16(w[i]) : (uint16_t)(sl_bits_of_float(w[i]) >> 16);
    const void *raw = dtype == SL_F32 ? (const void *)w : halves;
    float y = sl_dot_float_scalar[dtype](raw, x, n);
    begin(j, "dot_float %s", sl_dtype_get(dtype)->name);
    put(j, "u1", raw, n * (dtype == SL_F32 ? 4 : 2), 1);
    put_floats(j, x, n);
    end(j);
    expect_floats(j, &y, 1);
}

static void put_norms(job *j, sl_test_rng *rng, sl_test_fill fill, size_t n)
{
    float x[MAX_N], w[MAX_N], y[MAX_N];
    sl_fill_floats(rng, fill, x, n);
    sl_fill_floats(rng, SL_FILL_NORMAL, w, n);
    sl_rms_norm_scalar(x, w, n, 1e-6f, y);
    begin(j, "rms_norm %a", (double)1e-6f);
    put_floats(j, x, n);
    put_floats(j, w, n);
    end(j);
    expect_floats(j, y, n);
    sl_l2_norm_scalar(x, n, 0.0883883476f, y);
    begin(j, "l2_norm %a", (double)0.0883883476f);
    put_floats(j, x, n);
    end(j);
    expect_floats(j, y, n);
}

static void put_functions(job *j, sl_test_rng *rng, sl_test_fill fill, float scale)
{
    enum { N = 100 };
    float x[N], y[N], z[N];
    sl_fill_floats(rng, fill, x, N);
    for (size_t i = 0; i < N; i++)
        x[i] *= scale;

    begin(j, "exp");
    put_floats(j, x, N);
    end(j);
    for (size_t i = 0; i < N; i++)
        y[i] = sl_expf(x[i]);
    expect_floats(j, y, N);

    begin(j, "log");
    put_floats(j, x, N);
    end(j);
    for (size_t i = 0; i < N; i++)
        y[i] = sl_logf(x[i]);
    expect_floats(j, y, N);

    begin(j, "log1p");
    put_floats(j, x, N);
    end(j);
    for (size_t i = 0; i < N; i++)
        y[i] = sl_log1pf(x[i]);
    expect_floats(j, y, N);

    begin(j, "sincos");
    put_floats(j, x, N);
    end(j);
    for (size_t i = 0; i < N; i++)
        sl_sincos(x[i], &y[i], &z[i]);
    expect_floats(j, y, N);
    expect_floats(j, z, N);
}

/* Many values of the function that nearly every layer uses; one is cheap here. */
static void put_exp(job *j, sl_test_rng *rng)
{
    enum { N = 60000 };
    static float x[N], y[N];
    for (size_t i = 0; i < N; i++) {
        x[i] = (float)(sl_test_rng_next(rng) >> 40) * (177.0f * 0x1p-24f) - 88.0f;
        y[i] = sl_expf(x[i]);
    }
    begin(j, "exp");
    put_floats(j, x, N);
    end(j);
    expect_floats(j, y, N);
}

static void put_elementwise(job *j, sl_test_rng *rng, sl_test_fill fill, float scale)
{
    enum { N = 100 };
    float a[N], b[N], c[N], d[N], y[N], z[N];
    sl_fill_floats(rng, fill, a, N);
    sl_fill_floats(rng, fill, b, N);
    sl_fill_floats(rng, SL_FILL_NORMAL, c, N);
    sl_fill_floats(rng, SL_FILL_NORMAL, d, N);
    for (size_t i = 0; i < N; i++)
        a[i] *= scale;

    sl_swiglu_scalar(a, b, N, y);
    begin(j, "swiglu");
    put_floats(j, a, N);
    put_floats(j, b, N);
    end(j);
    expect_floats(j, y, N);

    memcpy(y, b, sizeof y);
    sl_mul_silu_scalar(a, N, y);
    begin(j, "swiglu");
    put_floats(j, a, N);
    put_floats(j, b, N);
    end(j);
    expect_floats(j, y, N);

    memcpy(y, b, sizeof y);
    sl_mul_sigmoid_scalar(a, N, y);
    begin(j, "mul_sigmoid");
    put_floats(j, a, N);
    put_floats(j, b, N);
    end(j);
    expect_floats(j, y, N);

    memcpy(y, b, sizeof y);
    sl_axpy_scalar(c[0], a, N, y);
    begin(j, "axpy %a", (double)c[0]);
    put_floats(j, a, N);
    put_floats(j, b, N);
    end(j);
    expect_floats(j, y, N);

    sl_gdn_gates_scalar(a, b, c, d, N, y, z);
    begin(j, "gates");
    put_floats(j, a, N);
    put_floats(j, b, N);
    put_floats(j, c, N);
    put_floats(j, d, N);
    end(j);
    expect_floats(j, y, N);
    expect_floats(j, z, N);
}

static void put_rope(job *j, sl_test_rng *rng, sl_test_fill fill, uint32_t position)
{
    float inv_freq[32], c[32], s[32], x[64];
    for (int i = 0; i < 32; i++)
        inv_freq[i] = (float)pow(1e7, -i / 32.0);
    sl_rope_angles_scalar(position, inv_freq, 1.1386294f, 32, c, s);
    begin(j, "rope_angles %u %a", position, (double)1.1386294f);
    put_floats(j, inv_freq, 32);
    end(j);
    expect_floats(j, c, 32);
    expect_floats(j, s, 32);

    sl_fill_floats(rng, fill, x, 64);
    begin(j, "rope");
    put_floats(j, x, 64);
    put_floats(j, c, 32);
    put_floats(j, s, 32);
    end(j);
    sl_rope_scalar(x, c, s, 32);
    expect_floats(j, x, 64);
}

static void put_conv(job *j, sl_test_rng *rng, sl_test_fill fill, unsigned present)
{
    enum { N = 70 };
    float rows[SL_CONV_TAPS * N], w[SL_CONV_TAPS * N], y[N];
    const float *row[SL_CONV_TAPS];
    char mask[SL_CONV_TAPS + 1] = "";
    sl_fill_floats(rng, fill, rows, SL_CONV_TAPS * N);
    sl_fill_floats(rng, SL_FILL_NORMAL, w, SL_CONV_TAPS * N);
    for (unsigned t = 0; t < SL_CONV_TAPS; t++) {
        row[t] = present >> t & 1 ? rows + N * t : NULL;
        mask[t] = row[t] ? '1' : '0';
    }
    sl_conv_silu_scalar(&(sl_conv_rows){.x = row, .n = 1, .w = w, .end = N, .y = (float *[]){y}});
    begin(j, "conv %s", mask);
    put_floats(j, w, SL_CONV_TAPS * N);
    put_floats(j, rows, SL_CONV_TAPS * N);
    end(j);
    expect_floats(j, y, N);
}

/* ---- the gated delta rule ---- */

typedef struct chunk {
    float S[SL_GDN_DIM * SL_GDN_DIM], k[SL_GDN_CHUNK * SL_GDN_DIM], u[SL_GDN_CHUNK * SL_GDN_DIM];
    float q[SL_GDN_CHUNK * SL_GDN_DIM], v[SL_GDN_CHUNK * SL_GDN_DIM];
    float o[SL_GDN_CHUNK * SL_GDN_DIM], g[SL_GDN_CHUNK], beta[SL_GDN_CHUNK];
} chunk;

/* strength: how far the log decays reach below zero. */
static void fill_chunk(sl_test_rng *rng, sl_test_fill fill, float strength, chunk *c)
{
    enum { ROWS = SL_GDN_CHUNK * SL_GDN_DIM };
    sl_fill_floats(rng, fill, c->S, SL_GDN_DIM * SL_GDN_DIM);
    sl_fill_floats(rng, fill, c->v, ROWS);
    sl_fill_floats(rng, SL_FILL_NORMAL, c->q, ROWS);
    sl_fill_floats(rng, SL_FILL_NORMAL, c->k, ROWS);
    memset(c->u, 0, sizeof c->u);
    for (size_t i = 0; i < SL_GDN_CHUNK; i++) {
        sl_l2_norm_scalar(c->k + SL_GDN_DIM * i, SL_GDN_DIM, 1.0f, c->k + SL_GDN_DIM * i);
        sl_l2_norm_scalar(c->q + SL_GDN_DIM * i, SL_GDN_DIM, 0.0883883476f, c->q + SL_GDN_DIM * i);
        c->g[i] = -strength * (float)sl_test_rng_below(rng, 1000) / 1000.0f;
        c->beta[i] = (float)sl_test_rng_below(rng, 1001) / 1000.0f;
    }
}

static void put_gdn(job *j, sl_test_rng *rng, sl_test_fill fill, float strength, size_t first)
{
    static chunk c;
    fill_chunk(rng, fill, strength, &c);
    const float *k[SL_GDN_CHUNK], *q[SL_GDN_CHUNK], *v[SL_GDN_CHUNK];
    float *u[SL_GDN_CHUNK], *o[SL_GDN_CHUNK];
    for (size_t i = 0; i < SL_GDN_CHUNK; i++) {
        k[i] = c.k + SL_GDN_DIM * i;
        q[i] = c.q + SL_GDN_DIM * i;
        v[i] = c.v + SL_GDN_DIM * i;
        u[i] = c.u + SL_GDN_DIM * i;
        o[i] = c.o + SL_GDN_DIM * i;
    }
    /* The rows in two calls: the first ones, then the rest on top of their tape. */
    const size_t cuts[3] = {0, first, SL_GDN_CHUNK};
    for (int part = 0; part < 2; part++) {
        size_t b = cuts[part], n = cuts[part + 1] - b;
        sl_gdn_rows rows = {c.S,   k,          u,     c.g, b,          n,   q + b,
                            v + b, c.beta + b, o + b, 0,   SL_GDN_DIM, NULL};
        sl_gdn_rows_scalar(&rows);
        begin(j, "gdn_rows %zu", b);
        put_floats(j, c.S, SL_GDN_DIM * SL_GDN_DIM);
        put_floats(j, c.k, SL_GDN_DIM * (b + n));
        put_floats(j, c.u, SL_GDN_DIM * b);
        put_floats(j, c.g, b + n);
        put_floats(j, q[b], SL_GDN_DIM * n);
        put_floats(j, v[b], SL_GDN_DIM * n);
        put_floats(j, c.beta + b, n);
        end(j);
        expect_floats(j, u[b], SL_GDN_DIM * n);
        expect_floats(j, o[b], SL_GDN_DIM * n);
    }
    begin(j, "gdn_border");
    put_floats(j, c.S, SL_GDN_DIM * SL_GDN_DIM);
    put_floats(j, c.k, SL_GDN_DIM * SL_GDN_CHUNK);
    put_floats(j, c.u, SL_GDN_DIM * SL_GDN_CHUNK);
    put_floats(j, c.g, SL_GDN_CHUNK);
    end(j);
    sl_gdn_border_scalar(c.S, k, (const float *const *)u, c.g, 0, SL_GDN_DIM, c.S);
    expect_floats(j, c.S, SL_GDN_DIM * SL_GDN_DIM);
}

/* ---- attention and experts ---- */

static void put_attention(job *j, sl_test_rng *rng, sl_kv_type type, sl_test_fill fill, float scale,
                          size_t n_keys)
{
    enum { MAX_KEYS = 600, PAGES = (MAX_KEYS + SL_KV_PAGE - 1) / SL_KV_PAGE };
    enum { HALF_PAGE = SL_KV_PAGE * SL_ATTN_DIM }; /* floats of the keys, or of the values */
    static float k[MAX_KEYS * SL_ATTN_DIM], v[MAX_KEYS * SL_ATTN_DIM];
    static float pages[PAGES][2 * HALF_PAGE];
    void *page[PAGES];
    float q[SL_ATTN_DIM], o[SL_ATTN_DIM];
    sl_fill_floats(rng, SL_FILL_NORMAL, q, SL_ATTN_DIM);
    sl_fill_floats(rng, fill, k, SL_ATTN_DIM * n_keys);
    sl_fill_floats(rng, fill, v, SL_ATTN_DIM * n_keys);
    for (size_t i = 0; i < SL_ATTN_DIM; i++)
        q[i] *= scale;
    memset(pages, 0xFF, sizeof pages); /* NaN where no key is */
    for (size_t i = 0; i < PAGES; i++)
        page[i] = pages[i];
    for (size_t i = 0; i < n_keys; i++)
        sl_kv_store_scalar(&(sl_kv_rows){.type = type,
                                         .k = k + SL_ATTN_DIM * i,
                                         .v = v + SL_ATTN_DIM * i,
                                         .slot = i % SL_KV_PAGE,
                                         .n = 1,
                                         .k_page = pages[i / SL_KV_PAGE],
                                         .v_page = pages[i / SL_KV_PAGE] + HALF_PAGE});
    sl_attention_scalar(type, q, page, 0, HALF_PAGE * sizeof(float), n_keys, o);
    begin(j, "attention %s", type == SL_KV_F16 ? "f16" : "f32");
    put_floats(j, q, SL_ATTN_DIM);
    put_floats(j, k, SL_ATTN_DIM * n_keys);
    put_floats(j, v, SL_ATTN_DIM * n_keys);
    end(j);
    expect_floats(j, o, SL_ATTN_DIM);
}

static void put_route(job *j, sl_test_rng *rng, sl_test_fill fill, size_t n, size_t top_k)
{
    float logits[MAX_N], scratch[MAX_N], weights[MAX_N];
    uint32_t ids[MAX_N];
    sl_fill_floats(rng, fill, logits, n);
    assert_true(sl_route_scalar(logits, n, top_k, scratch, ids, weights));
    begin(j, "route %zu", top_k);
    put_floats(j, logits, n);
    end(j);
    expect(j, false, ids, top_k * sizeof *ids);
    expect_floats(j, weights, top_k);
}

/* ---- tests ---- */

typedef void (*write_ops)(job *j, sl_test_rng *rng);

static void run(write_ops write, uint64_t seed)
{
    const char *python = find_python();
    if (!python)
        skip_because("no python3 with numpy for tools/canon.py");
    static job j;
    job_open(&j);
    sl_test_rng rng = sl_test_rng_of(seed);
    write(&j, &rng);
    job_run(&j, python);
}

static void write_rows(job *j, sl_test_rng *rng)
{
    static const size_t lengths[] = {1, 15, 31, 32, 33, 64, 100, 257};
    static const uint32_t positions[] = {0, 1, 31, 4095, 262143, 1000003, UINT32_MAX};
    static const float scales[] = {1.0f, 10.0f, 60.0f, 3e4f};
    for (int fill = 0; fill < SL_FILL_COUNT; fill++) {
        sl_test_fill kind = (sl_test_fill)fill;
        for (size_t i = 0; i < SL_COUNTOF(lengths); i++) {
            put_quantiser(j, rng, kind, lengths[i]);
            put_norms(j, rng, kind, lengths[i]);
        }
        for (size_t i = 0; i < SL_COUNTOF(positions); i++)
            put_rope(j, rng, kind, positions[i]);
        for (size_t i = 0; i < SL_COUNTOF(scales); i++)
            put_elementwise(j, rng, kind, scales[i]);
        for (unsigned present = 0; present < 16; present += 3)
            put_conv(j, rng, kind, present);
    }
}

static void write_functions(job *j, sl_test_rng *rng)
{
    static const float scales[] = {1.0f, 40.0f, 0x1p20f};
    put_exp(j, rng);
    for (int fill = 0; fill < SL_FILL_COUNT; fill++) {
        for (size_t i = 0; i < SL_COUNTOF(scales); i++)
            put_functions(j, rng, (sl_test_fill)fill, scales[i]);
    }
}

static void write_products(job *j, sl_test_rng *rng)
{
    static const sl_dtype floats[] = {SL_F32, SL_F16, SL_BF16};
    static const size_t lengths[] = {1, 31, 33, 256, 300};
    for (int fill = 0; fill < SL_FILL_COUNT; fill++) {
        for (size_t t = 0; t < SL_COUNTOF(blocks); t++) {
            size_t elems = sl_dtype_get(blocks[t].dtype)->block_elems;
            put_dot_q8(j, rng, t, (sl_test_fill)fill, elems);
            put_dot_q8(j, rng, t, (sl_test_fill)fill, 256);
            put_dot_q8(j, rng, t, (sl_test_fill)fill, 256 + elems);
            put_dot_q8(j, rng, t, (sl_test_fill)fill, 512 + elems);
        }
        for (size_t t = 0; t < SL_COUNTOF(floats); t++) {
            for (size_t i = 0; i < SL_COUNTOF(lengths); i++)
                put_dot_float(j, rng, floats[t], (sl_test_fill)fill, lengths[i]);
        }
    }
}

static void write_gdn(job *j, sl_test_rng *rng)
{
    put_gdn(j, rng, SL_FILL_NORMAL, 0.1f, SL_GDN_CHUNK - 1);
    put_gdn(j, rng, SL_FILL_NORMAL, 20.0f, 5);
    put_gdn(j, rng, SL_FILL_TINY, 0.5f, 1);
    put_gdn(j, rng, SL_FILL_NAN, 0.1f, 8);
}

static void write_attention(job *j, sl_test_rng *rng)
{
    static const size_t n_keys[] = {1, 63, 255, 256, 257, 520};
    for (size_t i = 0; i < SL_COUNTOF(n_keys); i++) {
        put_attention(j, rng, SL_KV_F16, SL_FILL_NORMAL, 1.0f, n_keys[i]);
        put_attention(j, rng, SL_KV_F32, SL_FILL_NORMAL, 20.0f, n_keys[i]);
    }
    put_attention(j, rng, SL_KV_F16, SL_FILL_WIDE, 0x1p-40f, 40); /* every rounding to half */
    put_attention(j, rng, SL_KV_F16, SL_FILL_ZEROS, 1.0f, 300);
    put_attention(j, rng, SL_KV_F32, SL_FILL_TINY, 1.0f, 300);
    put_attention(j, rng, SL_KV_F32, SL_FILL_NAN, 1.0f, 300);
    for (size_t n = 1; n <= 512; n *= 2) {
        put_route(j, rng, SL_FILL_NORMAL, n, n < 10 ? n : 10);
        put_route(j, rng, SL_FILL_INTEGERS, n, n < 10 ? n : 10); /* many ties */
        put_route(j, rng, SL_FILL_WIDE, n, 1);
    }
}

static void test_rows(void **state)
{
    (void)state;
    run(write_rows, 1);
}

static void test_functions(void **state)
{
    (void)state;
    run(write_functions, 2);
}

static void test_products(void **state)
{
    (void)state;
    run(write_products, 3);
}

static void test_gdn(void **state)
{
    (void)state;
    run(write_gdn, 4);
}

static void test_attention_and_routes(void **state)
{
    (void)state;
    run(write_attention, 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_functions),
        cmocka_unit_test(test_products),
        cmocka_unit_test(test_gdn),
        cmocka_unit_test(test_attention_and_routes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
