/* Invariance torture: random schedules of everything that can be done to states, every logits row
 * compared with the one-token-at-a-time run.
 *
 * A few documents share prefixes of different lengths. Whatever a schedule does (evaluate pieces of
 * several states in one batch, fork, rewind, checkpoint, sync to another document, save and load,
 * on engines with one to four threads and different instruction-set levels), a state holds a prefix
 * of a document, and the next row must have the bits that the plain run of that document has there.
 *
 * `make test` runs a short form. SL_TORTURE=1000 (make torture) runs that many schedules. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "models.h"

#include "backend/cpu/cpu_internal.h"
#include "base/mem.h"
#include "engine/engine_internal.h"

enum {
    N_DOCUMENTS = 4,
    DOCUMENT = 220,
    N_ENGINES = 4,
    MAX_STATES = 6,
    CONTEXT = DOCUMENT + 8,
    OPS = 24
};

static char file_path[] = "/tmp/sluice-torture-XXXXXX";

typedef struct world {
    const char *model;
    int32_t tokens[N_DOCUMENTS][DOCUMENT];
    size_t shared[N_DOCUMENTS]; /* tokens in common with document 0 */
    uint64_t hashes[N_DOCUMENTS][DOCUMENT];
    sl_engine *engines[N_ENGINES]; /* with 1, 2, 3, 4 threads, on the levels of the machine */
    bool scalar;                   /* on the scalar level all of them */
    uint32_t vocab;
    float *logits; /* room for MAX_STATES documents */
    size_t rows, differing;
} world;

typedef struct sequence {
    sl_state *state;
    size_t engine, document;
} sequence;

/* ---- the world ---- */

/* Set to "cuda:0", the schedules run there, and the plain run they are compared with. */
static const char *device(void)
{
    return getenv("SL_TORTURE_DEVICE");
}

/* The i-th of the levels that this machine has, the best first, in turn. */
static const char *level(size_t i)
{
    const char *levels[SL_ISA_COUNT];
    size_t n = 0;
    for (int isa = SL_ISA_COUNT - 1; isa >= 0; isa--) {
        if (sl_isa_usable((sl_isa)isa))
            levels[n++] = sl_isa_name((sl_isa)isa);
    }
    return levels[i % n];
}

static sl_engine *open_engine(const char *model, unsigned n_threads, const char *isa,
                              const char *where)
{
    sl_error err;
    sl_engine *engine = NULL;
    sl_engine_params params = sl_engine_params_default();
    params.n_threads = n_threads;
    params.isa = isa;
    params.device = where;
    params.max_rows = 96;
    params.checkpoint_budget = 4 << 20; /* small: eviction is part of the game */
    params.checkpoint_spacing = 48;
    assert_ok(sl_engine_open(sl_model_path(model), &params, &engine, &err));
    return engine;
}

static uint64_t hash_row(const world *w, const float *row)
{
    return XXH3_64bits(row, w->vocab * sizeof *row);
}

static void open_world(world *w, const char *model, bool scalar)
{
    *w = (world){.model = model, .scalar = scalar};
    sl_test_rng rng = sl_test_rng_of(strlen(model));
    for (int d = 0; d < N_DOCUMENTS; d++) {
        w->shared[d] = d == 0 ? DOCUMENT : (size_t)(20 + 45 * d);
        for (size_t i = 0; i < DOCUMENT; i++)
            w->tokens[d][i] =
                i < w->shared[d] && d > 0 ? w->tokens[0][i] : (int32_t)sl_test_rng_below(&rng, 500);
        w->tokens[d][w->shared[d] % DOCUMENT] = (w->tokens[0][w->shared[d] % DOCUMENT] + d) % 500;
    }
    sl_engine *plain = open_engine(model, 1, "scalar", w->scalar ? "cpu" : device());
    w->vocab = sl_engine_vocab(plain);
    for (int d = 0; d < N_DOCUMENTS; d++) {
        float *rows = sl_test_logits(plain, w->tokens[d], DOCUMENT, 1);
        for (size_t i = 0; i < DOCUMENT; i++)
            w->hashes[d][i] = hash_row(w, rows + i * w->vocab);
        sl_free(rows);
    }
    sl_engine_close(plain);
    for (unsigned i = 0; i < N_ENGINES; i++)
        w->engines[i] = open_engine(model, i + 1, w->scalar ? "scalar" : level(i),
                                    w->scalar ? "cpu" : device());
    w->logits =
        sl_alloc_array(SL_MEM_GENERAL, (size_t)MAX_STATES * DOCUMENT * w->vocab, sizeof *w->logits);
    assert_non_null(w->logits);
}

static void close_world(world *w)
{
    for (size_t i = 0; i < N_ENGINES; i++)
        sl_engine_close(w->engines[i]);
    sl_free(w->logits);
}

/* ---- one operation each ---- */

/* A document that has the state's tokens as a prefix, chosen at random. */
static void maybe_change_document(const world *w, sequence *s, sl_test_rng *rng)
{
    size_t d = sl_test_rng_below(rng, N_DOCUMENTS), length = sl_state_length(s->state);
    if (length <= w->shared[d] && length <= w->shared[s->document])
        s->document = d;
}

/* Pieces of several states of one engine in one call. */
static void evaluate(world *w, sequence *sequences, size_t engine, sl_test_rng *rng)
{
    sl_error err;
    sl_eval_item items[MAX_STATES];
    const sequence *of[MAX_STATES];
    size_t n_items = 0;
    for (size_t i = 0; i < MAX_STATES; i++) {
        const sequence *s = &sequences[i];
        if (!s->state || s->engine != engine || sl_test_rng_below(rng, 4) == 0)
            continue;
        size_t length = sl_state_length(s->state), left = DOCUMENT - length;
        if (left == 0)
            continue;
        size_t most = sl_test_rng_below(rng, 3) ? 8 : 100;
        of[n_items] = s;
        items[n_items] = (sl_eval_item){
            .state = s->state,
            .tokens = w->tokens[s->document] + length,
            .n_tokens = 1 + sl_test_rng_below(rng, (uint32_t)sl_min_size(left, most)),
            .all_logits = true,
            .logits = w->logits + n_items * DOCUMENT * w->vocab};
        n_items++;
    }
    sl_eval_options options = {.max_rows = 1 + sl_test_rng_below(rng, 96)};
    assert_ok(sl_engine_eval(w->engines[engine], items, n_items, &options, &err));
    for (size_t i = 0; i < n_items; i++) {
        size_t first = sl_state_length(of[i]->state) - items[i].n_tokens;
        for (size_t row = 0; row < items[i].n_tokens; row++, w->rows++)
            w->differing += hash_row(w, items[i].logits + row * w->vocab) !=
                            w->hashes[of[i]->document][first + row];
    }
}

static void fork_into(const sequence *from, sequence *to)
{
    sl_error err;
    sl_state_free(to->state);
    *to = *from;
    assert_ok(sl_state_fork(from->state, &to->state, &err));
}

static void take_back(sequence *s, sl_test_rng *rng)
{
    sl_error err;
    uint32_t length = sl_state_length(s->state);
    uint32_t most = sl_test_rng_below(rng, 2) ? 16 : length;
    uint32_t n = sl_test_rng_below(rng, (most < length ? most : length) + 1);
    assert_ok(sl_state_rewind(s->state, length - n, NULL, &err));
}

static void sync_to(const world *w, sequence *s, sl_test_rng *rng)
{
    sl_error err;
    s->document = sl_test_rng_below(rng, N_DOCUMENTS);
    assert_ok(sl_state_sync(s->state, w->tokens[s->document], 1 + sl_test_rng_below(rng, DOCUMENT),
                            NULL, &err));
}

/* To disk, and back into an engine with another number of threads. */
static void move(const world *w, sequence *s, sl_test_rng *rng)
{
    sl_error err;
    assert_ok(sl_state_save(s->state, file_path, NULL, 0, &err));
    sl_state_free(s->state);
    s->state = NULL;
    s->engine = sl_test_rng_below(rng, N_ENGINES);
    assert_ok(
        sl_state_load(w->engines[s->engine], file_path, CONTEXT, &s->state, NULL, NULL, &err));
}

static void run_schedule(world *w, uint64_t seed)
{
    sl_error err;
    sl_test_rng rng = sl_test_rng_of(seed);
    sequence sequences[MAX_STATES] = {0};
    for (int op = 0; op < OPS; op++) {
        sequence *s = &sequences[sl_test_rng_below(&rng, MAX_STATES)];
        if (!s->state) {
            *s = (sequence){.engine = sl_test_rng_below(&rng, N_ENGINES),
                            .document = sl_test_rng_below(&rng, N_DOCUMENTS)};
            assert_ok(sl_state_create(w->engines[s->engine], CONTEXT, &s->state, &err));
        }
        switch (sl_test_rng_below(&rng, 10)) {
        case 0:
            fork_into(s, &sequences[(size_t)(s - sequences + 1) % MAX_STATES]);
            break;
        case 1:
        case 2:
            take_back(s, &rng);
            break;
        case 3:
            sync_to(w, s, &rng);
            break;
        case 4:
            assert_ok(sl_state_checkpoint(
                s->state, (sl_anchor)sl_test_rng_below(&rng, SL_ANCHOR_COUNT), &err));
            break;
        case 5:
            if (sl_test_rng_below(&rng, 3) == 0)
                move(w, s, &rng);
            break;
        default:
            maybe_change_document(w, s, &rng);
            evaluate(w, sequences, s->engine, &rng);
        }
    }
    for (size_t i = 0; i < MAX_STATES; i++)
        sl_state_free(sequences[i].state);
    for (size_t i = 0; i < N_ENGINES; i++) {
        sl_checkpoint_stats stats = sl_engine_checkpoint_stats(w->engines[i]);
        assert_true(stats.bytes <= stats.budget);
    }
}

static size_t n_schedules(void)
{
    const char *wanted = getenv("SL_TORTURE");
    if (wanted)
        return strtoul(wanted, NULL, 10);
    return sl_test_shortened() ? 8 : 40;
}

static void test_schedules(void **state)
{
    (void)state;
    static const char *const models[] = {"rand-r1-q8_0.gguf", "rand-r3-q8_0.gguf",
                                         "rand-moe-q8_0.gguf", "rand-r3-bf16.gguf",
                                         "tiny-q8_0.gguf"};
    size_t rows = 0, differing = 0, total = n_schedules(), done = 0;
    for (size_t m = 0; m < SL_COUNTOF(models); m++) {
        world w;
        open_world(&w, models[m], false);
        for (size_t end = total * (m + 1) / SL_COUNTOF(models); done < end; done++)
            run_schedule(&w, done);
        rows += w.rows;
        differing += w.differing;
        close_world(&w);
    }
    print_message("%zu schedules, %zu logits rows, %zu differing\n", done, rows, differing);
    assert_true(done >= total && rows > 40 * total);
    assert_int_equal(differing, 0);
}

/* ---- a planted violation ---- */

/* Sums a row in as many parts as the engine under test has threads: right to rounding, and exactly
 * what the contract forbids. */
static unsigned planted_threads;

static float split_dot(const void *row, const int8_t *q, const float *d, const int16_t *sums,
                       size_t n)
{
    size_t n_blocks = n / 32, part = (n_blocks + planted_threads - 1) / planted_threads;
    float total = 0;
    for (size_t b = 0; b < n_blocks; b += part) {
        size_t blocks = sl_min_size(part, n_blocks - b);
        total += sl_dot_q8_scalar[SL_Q8_0]((const char *)row + b * sizeof(sl_block_q8_0),
                                           q + b * 32, d + b, sums + 2 * b, blocks * 32);
    }
    return total;
}

static void test_a_planted_violation_is_caught(void **state)
{
    (void)state;
    world w;
    open_world(&w, "tiny-q8_0.gguf", true);
    sl_cpu *cpu = (sl_cpu *)(void *)w.engines[2]->backend;
    cpu->kernels.dot_q8[SL_Q8_0] = split_dot;
    planted_threads = 3;
    size_t seed = 0;
    for (; seed < 40 && w.differing == 0; seed++)
        run_schedule(&w, seed);
    print_message("caught in schedule %zu: %zu of %zu rows differ\n", seed, w.differing, w.rows);
    assert_true(w.differing > 0);
    close_world(&w);
}

static int make_temp(void **state)
{
    (void)state;
    int fd = mkstemp(file_path);
    return fd < 0 ? -1 : close(fd);
}

static int remove_temp(void **state)
{
    (void)state;
    return unlink(file_path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_schedules),
        cmocka_unit_test(test_a_planted_violation_is_caught),
    };
    return cmocka_run_group_tests(tests, make_temp, remove_temp);
}
