/* The gated delta rule in tape form: against the serial recurrence in float64 (tests/data/gdn),
 * against what the serial rule itself loses in float32, and bit for bit against itself however the
 * work is cut up. With an argument it also prints the table of docs/GDN-ACCURACY.md. */
#include "support.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/kernels/kernels.h"
#include "golden.h"
#include "hash.h"

enum { DIM = SL_GDN_DIM, CHUNK = SL_GDN_CHUNK, STATE = DIM * DIM, MOST_TOKENS = 129 };

static bool print_table;
static sl_cpu_kernels kernels; /* of the level under test */

/* The inputs of one value head: token t's key is k + t * key_stride, and so on. */
typedef struct head {
    const float *q, *k, *v, *g, *beta;
    size_t key_stride, value_stride, gate_stride;
} head;

static head single_head(const sl_golden *golden)
{
    return (head){sl_golden_f32(golden, "q", 0),
                  sl_golden_f32(golden, "k", 0),
                  sl_golden_f32(golden, "v", 0),
                  sl_golden_f32(golden, "g", 0),
                  sl_golden_f32(golden, "beta", 0),
                  DIM,
                  DIM,
                  1};
}

static sl_golden *open_case(const char *name)
{
    char path[256];
    snprintf(path, sizeof path, "tests/data/gdn/%s.safetensors", name);
    return sl_golden_open(path);
}

/* ---- drivers ---- */

/* How run_tape cuts up its work; the result must not depend on it. */
typedef struct cuts {
    sl_test_rng *rng;      /* cuts rows into calls and columns into ranges; NULL cuts nothing */
    size_t page_rows;      /* tape rows that lie together */
    bool border_elsewhere; /* the border goes to other memory first */
} cuts;

static const cuts whole = {NULL, CHUNK, false};

static size_t next_column(const cuts *cut, size_t c)
{
    return cut->rng ? c + 1 + sl_test_rng_below(cut->rng, (uint32_t)(DIM - c)) : DIM;
}

typedef struct chunk_tape {
    float *pages[CHUNK]; /* page_rows keys, then page_rows updates */
    float *k[CHUNK], *u[CHUNK];
    float g[CHUNK];
} chunk_tape;

static void tape_init(chunk_tape *t, size_t page_rows)
{
    memset(t, 0, sizeof *t);
    for (size_t j = 0; j < CHUNK; j++) {
        float **page = &t->pages[j / page_rows];
        if (!*page)
            *page = calloc(2 * page_rows * DIM, sizeof **page);
        assert_non_null(*page);
        t->k[j] = *page + j % page_rows * DIM;
        t->u[j] = t->k[j] + page_rows * DIM;
    }
}

static void tape_free(chunk_tape *t)
{
    for (size_t j = 0; j < CHUNK; j++)
        free(t->pages[j]);
}

static void tape_border(const chunk_tape *t, const cuts *cut, float *S)
{
    static float elsewhere[STATE];
    float *out = cut->border_elsewhere ? elsewhere : S;
    for (size_t c = 0, end; c < DIM; c = end) {
        end = next_column(cut, c);
        kernels.gdn_border(S, (const float *const *)t->k, (const float *const *)t->u, t->g, c, end,
                           out);
    }
    if (out != S)
        memcpy(S, out, sizeof elsewhere);
}

/* n_tokens from the state S; o[n_tokens][DIM]. S becomes the state after the last token: rows of
 * zeros, which change nothing, fill up the last chunk. */
static void run_tape(const head *h, size_t n_tokens, const cuts *cut, float *S, float *o)
{
    chunk_tape t;
    tape_init(&t, cut->page_rows);
    for (size_t token = 0; token < n_tokens;) {
        const size_t begin = token % CHUNK;
        size_t n = sl_min_size(CHUNK - begin, n_tokens - token);
        if (cut->rng)
            n = 1 + sl_test_rng_below(cut->rng, (uint32_t)n);
        const float *q[CHUNK], *v[CHUNK];
        float beta[CHUNK], *out[CHUNK];
        for (size_t i = 0; i < n; i++, token++) {
            memcpy(t.k[begin + i], h->k + token * h->key_stride, DIM * sizeof(float));
            t.g[begin + i] = h->g[token * h->gate_stride];
            q[i] = h->q + token * h->key_stride;
            v[i] = h->v + token * h->value_stride;
            beta[i] = h->beta[token * h->gate_stride];
            out[i] = o + token * DIM;
        }
        for (size_t c = 0, end; c < DIM; c = end) {
            end = next_column(cut, c);
            kernels.gdn_rows(&(sl_gdn_rows){.S = S,
                                            .k = (const float *const *)t.k,
                                            .u = t.u,
                                            .g = t.g,
                                            .begin = begin,
                                            .n = n,
                                            .q = q,
                                            .v = v,
                                            .beta = beta,
                                            .o = out,
                                            .col_begin = c,
                                            .col_end = end});
        }
        if (begin + n == CHUNK)
            tape_border(&t, cut, S);
    }
    if (n_tokens % CHUNK != 0) {
        for (size_t j = n_tokens % CHUNK; j < CHUNK; j++) {
            memset(t.k[j], 0, DIM * sizeof(float));
            memset(t.u[j], 0, DIM * sizeof(float));
            t.g[j] = 0.0f;
        }
        tape_border(&t, cut, S);
    }
    tape_free(&t);
}

static void run_serial(const head *h, size_t n_tokens, float *S, float *o)
{
    for (size_t t = 0; t < n_tokens; t++)
        sl_gdn_serial_scalar(S, h->q + t * h->key_stride, h->k + t * h->key_stride,
                             h->v + t * h->value_stride, h->g[t * h->gate_stride],
                             h->beta[t * h->gate_stride], o + t * DIM);
}

/* ---- measures ---- */

typedef struct deviation {
    double largest, rms; /* absolute */
    double scale;        /* of the reference: its largest value */
    double cosine;
} deviation;

static deviation measure(const float *got, size_t got_stride, const float *want, size_t want_stride,
                         size_t n_rows, size_t n_cols)
{
    deviation result = {0};
    double squares = 0.0, gg = 0.0, ww = 0.0, gw = 0.0;
    for (size_t r = 0; r < n_rows; r++) {
        for (size_t c = 0; c < n_cols; c++) {
            const double g = (double)got[r * got_stride + c], w = (double)want[r * want_stride + c];
            assert_true(isfinite(g));
            result.largest = fmax(result.largest, fabs(g - w));
            result.scale = fmax(result.scale, fabs(w));
            squares += (g - w) * (g - w);
            gg += g * g;
            ww += w * w;
            gw += g * w;
        }
    }
    result.rms = sqrt(squares / (double)(n_rows * n_cols));
    result.cosine = gg == 0.0 && ww == 0.0 ? 1.0 : gw / sqrt(gg * ww);
    return result;
}

/* How far the tape form may lie above the serial rule in float32. In beta0 the state only decays: a
 * chunk of 64 adds 64 decays in float32 before it takes the exponential once, which loses more than
 * 64 factors rounded one by one (docs/GDN-ACCURACY.md). */
static double allowed_ratio(const char *name)
{
    return CHUNK > 32 && strstr(name, "beta0") ? 10.0 : 2.5;
}

static void check_accuracy(const char *name, deviation of_tape, deviation of_serial)
{
    const double ratio = allowed_ratio(name);
    const bool ok = of_tape.cosine >= 0.99999 && of_tape.largest <= 2e-6 * of_tape.scale &&
                    of_tape.largest <= ratio * of_serial.largest &&
                    of_tape.rms <= ratio * of_serial.rms;
    if (!ok)
        fail_msg("%s: cosine %.9f, largest error %.3g of %.3g, rms %.3g; serial rule %.3g, %.3g",
                 name, of_tape.cosine, of_tape.largest, of_tape.scale, of_tape.rms,
                 of_serial.largest, of_serial.rms);
}

/* Worst figures of one file and start, for the table. */
typedef struct worst {
    double relative, largest_ratio, rms_ratio;
} worst;

static void summarise(worst *s, deviation of_tape, deviation of_serial)
{
    if (of_serial.largest == 0.0)
        return; /* then the tape form's is zero as well */
    s->relative = fmax(s->relative, of_tape.largest / of_tape.scale);
    s->largest_ratio = fmax(s->largest_ratio, of_tape.largest / of_serial.largest);
    s->rms_ratio = fmax(s->rms_ratio, of_tape.rms / of_serial.rms);
}

static void print_summary(const char *name, const char *start, const char *what, worst s)
{
    if (print_table)
        printf("| %s | %s | %s | %.2g | %.2f | %.2f |\n", name, start, what, s.relative,
               s.largest_ratio, s.rms_ratio);
}

/* ---- one head, all prompt lengths ---- */

static float S_tape[STATE], S_serial[STATE];
static float o_tape[MOST_TOKENS * DIM], o_serial[MOST_TOKENS * DIM];

static void start_from(const float *S0)
{
    for (size_t i = 0; i < STATE; i++)
        S_tape[i] = S_serial[i] = S0 ? S0[i] : 0.0f;
}

/* Compares S_tape and S_serial with a tensor of all or the first 16 value columns. */
static void check_state(const char *name, const sl_golden_tensor *want, worst *summary)
{
    const size_t n_cols = want->shape[2];
    const deviation of_tape = measure(S_tape, DIM, want->f32, n_cols, DIM, n_cols);
    const deviation of_serial = measure(S_serial, DIM, want->f32, n_cols, DIM, n_cols);
    check_accuracy(name, of_tape, of_serial);
    summarise(summary, of_tape, of_serial);
}

static void check_outputs(const char *name, const float *want, size_t want_stride, size_t n_tokens,
                          worst *summary)
{
    const deviation of_tape = measure(o_tape, DIM, want, want_stride, n_tokens, DIM);
    const deviation of_serial = measure(o_serial, DIM, want, want_stride, n_tokens, DIM);
    check_accuracy(name, of_tape, of_serial);
    summarise(summary, of_tape, of_serial);
}

/* Every prompt length on its own; returns how many states the file had to compare with. */
static size_t check_start(const char *name, const sl_golden *golden, const char *start,
                          const float *S0)
{
    static const size_t lengths[] = {1, 7, 8, 9, 16, 31, 32, 33, 64, 65, 129};
    const head h = single_head(golden);
    char label[64];
    snprintf(label, sizeof label, "o_%s", start);
    const sl_golden_tensor *want = sl_golden_get(golden, label);
    worst outputs = {0}, states = {0};
    size_t n_states = 0;
    for (size_t i = 0; i < SL_COUNTOF(lengths); i++) {
        const size_t n_tokens = lengths[i];
        if (n_tokens > want->shape[0])
            break;
        start_from(S0);
        run_tape(&h, n_tokens, &whole, S_tape, o_tape);
        run_serial(&h, n_tokens, S_serial, o_serial);
        snprintf(label, sizeof label, "%s, %s start, %zu tokens", name, start, n_tokens);
        check_outputs(label, want->f32, DIM, n_tokens, &outputs);

        static const char *const suffixes[] = {"", ".cols16"};
        for (size_t s = 0; s < SL_COUNTOF(suffixes); s++) {
            char tensor[64];
            snprintf(tensor, sizeof tensor, "S_%s.T%zu%s", start, n_tokens, suffixes[s]);
            const sl_golden_tensor *state = sl_golden_find(golden, tensor);
            if (!state)
                continue;
            check_state(label, state, &states);
            n_states++;
        }
    }
    print_summary(name, start, "o", outputs);
    print_summary(name, start, "S", states);
    return n_states;
}

static void test_every_case_and_length(void **state)
{
    (void)state;
    static const char *const names[] = {"random", "period3", "nodecay",  "strong",
                                        "beta1",  "beta0",   "identical"};
    sl_golden *start = open_case("S0");
    const float *S0 = sl_golden_f32(start, "S0", STATE);
    if (print_table)
        printf("| case | start | | largest error, relative | largest / serial | rms / serial |\n"
               "|---|---|---|---|---|---|\n");
    for (size_t i = 0; i < SL_COUNTOF(names); i++) {
        sl_golden *golden = open_case(names[i]);
        assert_int_equal(check_start(names[i], golden, "zero", NULL), 1);
        assert_int_equal(check_start(names[i], golden, "S0", S0), i == 0 ? 11 : 5);
        sl_golden_close(golden);
    }
    sl_golden_close(start);
}

/* Keys and queries of norms down to 1e-8 and two exact zeros, normalised by our own rule. */
static void test_tiny_norms(void **state)
{
    (void)state;
    enum { T = 65 };
    sl_golden *start = open_case("S0"), *golden = open_case("tinynorm");
    static float q[T * DIM], k[T * DIM];
    const float *q_raw = sl_golden_f32(golden, "q_raw", T * DIM);
    const float *k_raw = sl_golden_f32(golden, "k_raw", T * DIM);
    for (size_t t = 0; t < T; t++) {
        sl_l2_norm_scalar(q_raw + t * DIM, DIM, 0x1.6a09e6p-4f, q + t * DIM); /* 1 / sqrt(128) */
        sl_l2_norm_scalar(k_raw + t * DIM, DIM, 1.0f, k + t * DIM);
    }
    const head h = {q,
                    k,
                    sl_golden_f32(golden, "v", T * DIM),
                    sl_golden_f32(golden, "g", T),
                    sl_golden_f32(golden, "beta", T),
                    DIM,
                    DIM,
                    1};
    for (int i = 0; i < 2; i++) {
        const char *name = i == 0 ? "zero" : "S0";
        worst outputs = {0}, states = {0};
        char o_name[32], S_name[32];
        snprintf(o_name, sizeof o_name, "o_%s_add", name);
        snprintf(S_name, sizeof S_name, "S_%s_add.T%d", name, T);
        start_from(i == 0 ? NULL : sl_golden_f32(start, "S0", STATE));
        run_tape(&h, T, &whole, S_tape, o_tape);
        run_serial(&h, T, S_serial, o_serial);
        check_outputs("tinynorm", sl_golden_f32(golden, o_name, T * DIM), DIM, T, &outputs);
        check_state("tinynorm", sl_golden_get(golden, S_name), &states);
        print_summary("tinynorm", name, "o", outputs);
        print_summary("tinynorm", name, "S", states);
    }
    sl_golden_close(golden);
    sl_golden_close(start);
}

/* ---- many heads ---- */

typedef enum head_pairing { GROUPED, TILED } head_pairing;

static size_t key_head(head_pairing pairing, size_t value_head, size_t nk, size_t nv)
{
    return pairing == GROUPED ? value_head / (nv / nk) : value_head % nk;
}

static head head_of(const sl_golden *golden, head_pairing pairing, size_t value_head, size_t nk,
                    size_t nv)
{
    const size_t kh = key_head(pairing, value_head, nk, nv);
    return (head){sl_golden_f32(golden, "q", 0) + kh * DIM,
                  sl_golden_f32(golden, "k", 0) + kh * DIM,
                  sl_golden_f32(golden, "v", 0) + value_head * DIM,
                  sl_golden_f32(golden, "g", 0) + value_head,
                  sl_golden_f32(golden, "beta", 0) + value_head,
                  nk * DIM,
                  nv * DIM,
                  nv};
}

static void test_heads_and_pairings(void **state)
{
    (void)state;
    enum { T = 17, NK = 2 };
    for (size_t nv = 2; nv <= 6; nv += 2) {
        char name[32];
        snprintf(name, sizeof name, "heads_2_%zu", nv);
        sl_golden *golden = open_case(name);
        for (int i = 0; i < (nv == NK ? 1 : 2); i++) {
            const head_pairing pairing = i == 0 ? GROUPED : TILED;
            const float *want =
                sl_golden_f32(golden, i == 0 ? "o_grouped" : "o_tiled", T * nv * DIM);
            const sl_golden_tensor *want_S =
                sl_golden_get(golden, i == 0 ? "S_grouped.T17.cols16" : "S_tiled.T17.cols16");
            worst outputs = {0}, states = {0};
            size_t n_wrong = 0;
            for (size_t vh = 0; vh < nv; vh++) {
                const head h = head_of(golden, pairing, vh, NK, nv);
                start_from(NULL);
                run_tape(&h, T, &whole, S_tape, o_tape);
                run_serial(&h, T, S_serial, o_serial);
                check_outputs(name, want + vh * DIM, nv * DIM, T, &outputs);
                const sl_golden_tensor S = {.shape = {1, DIM, 16},
                                            .f32 = want_S->f32 + vh * DIM * 16};
                check_state(name, &S, &states);
                /* The trap: the other pairing must not pass. */
                const head wrong =
                    head_of(golden, pairing == GROUPED ? TILED : GROUPED, vh, NK, nv);
                start_from(NULL);
                run_tape(&wrong, T, &whole, S_tape, o_tape);
                const deviation d = measure(o_tape, DIM, want + vh * DIM, nv * DIM, T, DIM);
                n_wrong += d.largest > 0.01 * d.scale && d.cosine < 0.9;
            }
            size_t n_differ = 0;
            for (size_t vh = 0; vh < nv; vh++)
                n_differ += key_head(GROUPED, vh, NK, nv) != key_head(TILED, vh, NK, nv);
            assert_int_equal(n_wrong, n_differ);
            assert_int_equal(n_differ == 0, nv == NK);
            print_summary(name, i == 0 ? "grouped" : "tiled", "o", outputs);
            print_summary(name, i == 0 ? "grouped" : "tiled", "S", states);
        }
        sl_golden_close(golden);
    }
}

/* ---- bits ---- */

static void test_bits_do_not_depend_on_cuts(void **state)
{
    (void)state;
    static const char *const names[] = {"random", "strong", "identical"};
    static float S[STATE], o[MOST_TOKENS * DIM];
    sl_golden *start = open_case("S0");
    const float *S0 = sl_golden_f32(start, "S0", STATE);
    sl_test_rng rng = sl_test_rng_of(1);
    for (size_t i = 0; i < SL_COUNTOF(names); i++) {
        sl_golden *golden = open_case(names[i]);
        const head h = single_head(golden);
        const size_t T = sl_golden_get(golden, "v")->shape[0];
        start_from(S0);
        run_tape(&h, T, &whole, S_tape, o_tape);
        for (int round = 0; round < 12; round++) {
            static const size_t page_rows[] = {1, 4, 8, CHUNK};
            const cuts cut = {round ? &rng : NULL, page_rows[round % 4], round % 2 == 0};
            /* A shorter prompt first: its rows are the first rows of the longer one. */
            const size_t n = round % 3 ? T : 1 + sl_test_rng_below(&rng, (uint32_t)T);
            memcpy(S, S0, sizeof S);
            memset(o, 0xFF, sizeof o);
            run_tape(&h, n, &cut, S, o);
            assert_memory_equal(o, o_tape, n * DIM * sizeof *o);
            if (n == T)
                assert_memory_equal(S, S_tape, sizeof S);
        }
        sl_golden_close(golden);
    }
    sl_golden_close(start);
}

/* The bits of record: they change only when the canonical arithmetic does. */
static void test_bits_of_record(void **state)
{
    (void)state;
    static const struct {
        size_t chunk;
        uint64_t o, S;
    } record[] = {{16, 0xc425535facfcf709, 0x715f494ab1e89567},
                  {32, 0x57f1438a0d9f783f, 0x7a87e075917b8755},
                  {64, 0xf43c111e7d937eec, 0x44d6a42660989181}};
    sl_golden *start = open_case("S0"), *golden = open_case("random");
    const head h = single_head(golden);
    start_from(sl_golden_f32(start, "S0", STATE));
    run_tape(&h, MOST_TOKENS, &whole, S_tape, o_tape);
    size_t i = 0;
    while (record[i].chunk != CHUNK)
        i++;
    assert_int_equal(sl_test_hash(o_tape, sizeof o_tape), record[i].o);
    assert_int_equal(sl_test_hash(S_tape, sizeof S_tape), record[i].S);
    sl_golden_close(golden);
    sl_golden_close(start);
}

/* One call on a tape of its own that starts with two rows, for tests of what is read and written.
 */
typedef struct one_call {
    float S[STATE], k[CHUNK][DIM], u[CHUNK][DIM], g[CHUNK];
    float q[CHUNK][DIM], v[CHUNK][DIM], beta[CHUNK], o[CHUNK][DIM];
} one_call;

static void one_call_random(one_call *call, uint64_t seed)
{
    sl_test_rng rng = sl_test_rng_of(seed);
    float *all = (float *)call;
    for (size_t i = 0; i < sizeof *call / sizeof *all; i++)
        all[i] = 0.1f * sl_test_rng_normal(&rng);
    for (size_t j = 0; j < CHUNK; j++)
        call->g[j] = -fabsf(call->g[j]);
}

static void one_call_run(one_call *call, size_t begin, size_t n, size_t col_begin, size_t col_end)
{
    const float *k[CHUNK], *q[CHUNK], *v[CHUNK];
    float *u[CHUNK], *o[CHUNK];
    for (size_t j = 0; j < CHUNK; j++) {
        k[j] = call->k[j];
        u[j] = call->u[j];
        q[j] = call->q[j];
        v[j] = call->v[j];
        o[j] = call->o[j];
    }
    kernels.gdn_rows(&(sl_gdn_rows){call->S, k, u, call->g, begin, n, q, v, call->beta, o,
                                    col_begin, col_end, NULL});
}

static void test_writes_only_its_own(void **state)
{
    (void)state;
    static one_call call, before;
    one_call_random(&call, 2);
    before = call;
    const size_t begin = 2, n = 5, c0 = 17, c1 = 90;
    one_call_run(&call, begin, n, c0, c1);
    for (size_t j = 0; j < CHUNK; j++) {
        for (size_t c = 0; c < DIM; c++) {
            const bool in_range = c >= c0 && c < c1;
            assert_int_equal(call.u[j][c] != before.u[j][c],
                             in_range && j >= begin && j < begin + n);
            assert_int_equal(call.o[j][c] != before.o[j][c], in_range && j < n);
        }
    }
    assert_memory_equal(call.S, before.S, sizeof call.S);
    assert_memory_equal(call.k, before.k, sizeof call.k);

    float *u[CHUNK], *k[CHUNK];
    for (size_t j = 0; j < CHUNK; j++) {
        u[j] = call.u[j];
        k[j] = call.k[j];
    }
    kernels.gdn_border(call.S, (const float *const *)k, (const float *const *)u, call.g, c0, c1,
                       call.S);
    for (size_t i = 0; i < STATE; i++)
        assert_int_equal(call.S[i] != before.S[i], i % DIM >= c0 && i % DIM < c1);
}

static void test_nan_stays_in_its_column(void **state)
{
    (void)state;
    static one_call call, clean;
    one_call_random(&call, 3);
    clean = call;
    call.v[1][7] = NAN; /* row 2 of a call of three */
    call.S[5 * DIM + 11] = -NAN;
    one_call_run(&call, 0, 3, 0, DIM);
    one_call_run(&clean, 0, 3, 0, DIM);
    for (size_t i = 0; i < 3; i++) {
        for (size_t c = 0; c < DIM; c++) {
            const bool broken = c == 11 || (c == 7 && i >= 1);
            assert_int_equal(isnan(call.u[i][c]) != 0, broken);
            assert_int_equal(isnan(call.o[i][c]) != 0, broken);
            if (!broken)
                assert_true(call.u[i][c] == clean.u[i][c] && call.o[i][c] == clean.o[i][c]);
        }
    }
    const float *u[CHUNK], *k[CHUNK];
    for (size_t j = 0; j < CHUNK; j++) {
        u[j] = call.u[j];
        k[j] = call.k[j];
    }
    kernels.gdn_border(call.S, k, u, call.g, 0, DIM, call.S);
    for (size_t i = 0; i < STATE; i++)
        assert_int_equal(isnan(call.S[i]) != 0, i % DIM == 7 || i % DIM == 11);
}

static uint32_t bits(float f)
{
    uint32_t b;
    memcpy(&b, &f, sizeof b);
    return b;
}

static void test_tiny_values_become_zero(void **state)
{
    (void)state;
    static one_call call;
    memset(&call, 0, sizeof call);
    const float least = 0x1p-100f, below = 0x1.fffffep-101f;
    const float v[] = {least, -least, below, -below, 0x1p-149f, -0.0f, 1.0f};
    call.beta[0] = 1.0f;
    memcpy(call.v[0], v, sizeof v);
    one_call_run(&call, 0, 1, 0, DIM);
    assert_true(call.u[0][0] == least && call.u[0][1] == -least && call.u[0][6] == 1.0f);
    for (size_t c = 2; c < 6; c++)
        assert_int_equal(bits(call.u[0][c]), 0);

    const float *u[CHUNK], *k[CHUNK];
    for (size_t j = 0; j < CHUNK; j++) {
        u[j] = call.u[CHUNK - 1];
        k[j] = call.k[j];
    }
    memcpy(call.S + DIM, v, sizeof v);
    kernels.gdn_border(call.S, k, u, call.g, 0, DIM, call.S);
    assert_true(call.S[DIM] == least && call.S[DIM + 1] == -least && call.S[DIM + 6] == 1.0f);
    for (size_t c = 2; c < 6; c++)
        assert_int_equal(bits(call.S[DIM + c]), 0);
}

/* A decay that underflows forgets the state and nothing else. */
static void test_forgetting(void **state)
{
    (void)state;
    static one_call call, fresh;
    one_call_random(&call, 4);
    call.g[0] = -1000.0f;
    fresh = call;
    memset(fresh.S, 0, sizeof fresh.S);
    one_call_run(&call, 0, CHUNK, 0, DIM);
    one_call_run(&fresh, 0, CHUNK, 0, DIM);
    for (size_t i = 0; i < CHUNK; i++) {
        for (size_t c = 0; c < DIM; c++)
            assert_true(call.u[i][c] == fresh.u[i][c] && call.o[i][c] == fresh.o[i][c]);
    }
}

/* The kernel that speeds are compared with computes the rule that it says it does. */
static void test_serial_tokens(void **state)
{
    (void)state;
    enum { T = 65 };
    sl_golden *start = open_case("S0"), *golden = open_case("random");
    const head h = single_head(golden);
    const float *k[T], *q[T], *v[T];
    float *o[T];
    for (size_t t = 0; t < T; t++) {
        k[t] = h.k + t * DIM;
        q[t] = h.q + t * DIM;
        v[t] = h.v + t * DIM;
        o[t] = o_tape + t * DIM;
    }
    for (int isa = 0; isa < SL_ISA_COUNT; isa++) {
        if (!sl_isa_usable((sl_isa)isa))
            continue;
        start_from(sl_golden_f32(start, "S0", STATE));
        run_serial(&h, T, S_serial, o_serial);
        memset(o_tape, 0xFF, sizeof o_tape);
        const sl_cpu_kernels level = sl_cpu_kernels_of((sl_isa)isa);
        level.gdn_tokens(&(sl_gdn_tokens){S_tape, T, k, q, v, h.g, h.beta, o, 0, 37});
        level.gdn_tokens(&(sl_gdn_tokens){S_tape, T, k, q, v, h.g, h.beta, o, 37, DIM});
        const deviation in_o = measure(o_tape, DIM, o_serial, DIM, T, DIM);
        const deviation in_S = measure(S_tape, DIM, S_serial, DIM, DIM, DIM);
        assert_true(in_o.largest <= 2e-6 * in_o.scale && in_S.largest <= 2e-6 * in_S.scale);
    }
    sl_golden_close(golden);
    sl_golden_close(start);
}

/* What holds for the rule holds at every level of this machine. */
static int test_level(sl_isa isa)
{
    kernels = sl_cpu_kernels_of(isa);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_case_and_length),
        cmocka_unit_test(test_tiny_norms),
        cmocka_unit_test(test_heads_and_pairings),
        cmocka_unit_test(test_bits_do_not_depend_on_cuts),
        cmocka_unit_test(test_bits_of_record),
        cmocka_unit_test(test_writes_only_its_own),
        cmocka_unit_test(test_nan_stays_in_its_column),
        cmocka_unit_test(test_tiny_values_become_zero),
        cmocka_unit_test(test_forgetting),
        cmocka_unit_test(test_serial_tokens),
    };
    return cmocka_run_group_tests_name(sl_isa_name(isa), tests, NULL, NULL);
}

int main(int argc, char **argv)
{
    (void)argv;
    print_table = argc > 1;
    int failed = 0;
    for (int isa = 0; isa < SL_ISA_COUNT; isa++) {
        if (sl_isa_usable((sl_isa)isa))
            failed |= test_level((sl_isa)isa);
        print_table = false;
    }
    return failed;
}
