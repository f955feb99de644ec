/* State operations as properties: whatever was forked, taken back, restored or shared, the logits
 * that follow are the bits of a plain run; budgets and bounds hold. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "models.h"

#include "base/mem.h"
#include "engine/checkpoint.h"

enum { VOCAB = 512, LENGTH = 320 };

static const char small[] = "rand-r1-q8_0.gguf";

typedef struct fixture {
    sl_engine *engine;
    int32_t tokens[LENGTH];
    float *expected; /* [LENGTH][VOCAB], of a plain run */
} fixture;

static sl_engine *open_engine(uint32_t window, size_t budget, uint32_t spacing)
{
    sl_error err;
    sl_engine *engine = NULL;
    sl_engine_params params = sl_engine_params_default();
    params.n_threads = 1;
    params.max_rows = 64;
    params.rewind_window = window;
    params.checkpoint_budget = budget;
    params.checkpoint_spacing = spacing;
    assert_ok(sl_engine_open(sl_model_path(small), &params, &engine, &err));
    return engine;
}

static fixture open_fixture(uint32_t window, size_t budget, uint32_t spacing)
{
    fixture f = {.engine = open_engine(window, budget, spacing)};
    sl_test_rng rng = sl_test_rng_of(3);
    for (int i = 0; i < LENGTH; i++)
        f.tokens[i] = (int32_t)sl_test_rng_below(&rng, 500);
    sl_engine *plain = open_engine(1, 0, 512);
    f.expected = sl_test_logits(plain, f.tokens, LENGTH, 0);
    sl_engine_close(plain);
    return f;
}

static void close_fixture(fixture *f)
{
    sl_engine_close(f->engine);
    sl_free(f->expected);
}

static sl_state *new_state(sl_engine *engine)
{
    sl_error err;
    sl_state *state = NULL;
    assert_ok(sl_state_create(engine, LENGTH + 64, &state, &err));
    return state;
}

/* Appends tokens[length .. end) and checks every row's bits. */
static void advance(const fixture *f, sl_state *state, uint32_t end)
{
    sl_error err;
    uint32_t begin = sl_state_length(state);
    float *logits = sl_alloc_array(SL_MEM_GENERAL, (size_t)(end - begin) * VOCAB, sizeof(float));
    sl_eval_item item = {.state = state,
                         .tokens = f->tokens + begin,
                         .n_tokens = end - begin,
                         .all_logits = true,
                         .logits = logits};
    assert_ok(sl_engine_eval(f->engine, &item, 1, NULL, &err));
    assert_memory_equal(logits, f->expected + (size_t)begin * VOCAB,
                        (size_t)(end - begin) * VOCAB * sizeof(float));
    sl_free(logits);
}

/* ---- forks ---- */

static void test_forks_do_not_touch_each_other(void **state_)
{
    (void)state_;
    fixture f = open_fixture(16, 0, 512);
    sl_error err;
    int32_t other[40];
    for (int i = 0; i < 40; i++)
        other[i] = (f.tokens[i] + 17) % 500;
    static const uint32_t points[] = {1, 3, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 128, 200};
    for (size_t p = 0; p < SL_COUNTOF(points); p++) {
        sl_state *parent = new_state(f.engine), *child = NULL, *grandchild = NULL;
        advance(&f, parent, points[p]);
        assert_ok(sl_state_fork(parent, &child, &err));
        /* The child diverges first, then the parent goes on, then a fork of the parent. */
        sl_eval_item item = {.state = child, .tokens = other, .n_tokens = 40};
        assert_ok(sl_engine_eval(f.engine, &item, 1, NULL, &err));
        advance(&f, parent, points[p] + 20);
        assert_ok(sl_state_fork(parent, &grandchild, &err));
        advance(&f, parent, points[p] + 70);
        advance(&f, grandchild, points[p] + 90);
        assert_int_equal(sl_state_length(child), points[p] + 40);
        /* The child, taken back to the fork point, is the parent's line again. */
        assert_ok(sl_state_rewind(child, points[p], NULL, &err));
        advance(&f, child, points[p] + 50);
        sl_state_free(child);
        advance(&f, parent, points[p] + 80);
        sl_state_free(parent);
        advance(&f, grandchild, points[p] + 110);
        sl_state_free(grandchild);
    }
    close_fixture(&f);
}

static void test_forks_share_what_is_full(void **state_)
{
    (void)state_;
    fixture f = open_fixture(16, 0, 512);
    sl_error err;
    sl_state *parent = new_state(f.engine);
    advance(&f, parent, 300);
    size_t before = sl_mem_get_stats().bytes[SL_MEM_STATE];
    sl_state *forks[100];
    for (int i = 0; i < 100; i++)
        assert_ok(sl_state_fork(parent, &forks[i], &err));
    size_t per_fork = (sl_mem_get_stats().bytes[SL_MEM_STATE] - before) / 100;
    /* Ids and page tables only. */
    assert_true(per_fork < 8192);
    for (int i = 0; i < 100; i++) {
        assert_int_equal(forks[i]->current.border, parent->current.border);
        for (size_t page = 0; page < sl_kv_pages_of(300); page++)
            assert_ptr_equal(forks[i]->kv[page], parent->kv[page]);
    }
    /* One more token on one fork takes the partly filled blocks and nothing else. */
    advance(&f, forks[0], 301);
    assert_ptr_equal(forks[0]->current.border, parent->current.border);
    for (size_t page = 0; page + 1 < sl_kv_pages_of(300); page++)
        assert_ptr_equal(forks[0]->kv[page], parent->kv[page]);
    assert_ptr_not_equal(forks[0]->kv[sl_kv_pages_of(300) - 1],
                         parent->kv[sl_kv_pages_of(300) - 1]);
    sl_state_bytes bytes = sl_state_memory(forks[1]);
    print_message("%zu bytes a fork; it shares %zu\n", per_fork, bytes.shared);
    assert_true(bytes.shared > 20 * per_fork);
    for (int i = 0; i < 100; i++)
        sl_state_free(forks[i]);
    sl_state_free(parent);
    close_fixture(&f);
}

/* ---- rewinding ---- */

static void test_rewind_any_length(void **state_)
{
    (void)state_;
    static const uint32_t windows[] = {1, 4, 16};
    for (size_t w = 0; w < SL_COUNTOF(windows); w++) {
        fixture f = open_fixture(windows[w], 64 << 20, 64);
        sl_error err;
        sl_state *state = new_state(f.engine);
        advance(&f, state, 305);
        for (uint32_t n = 1; n <= 300; n += sl_test_shortened() ? 13 : 1) {
            sl_reuse_report report;
            uint32_t target = 305 - n;
            sl_state *back = NULL;
            assert_ok(sl_state_fork(state, &back, &err));
            assert_ok(sl_state_rewind(back, target, &report, &err));
            assert_int_equal(sl_state_length(back), target);
            if (n <= windows[w]) {
                assert_int_equal(report.source, SL_REUSE_WINDOW);
                assert_int_equal(report.recomputed, 0);
            } else {
                assert_in_range(report.recomputed, 0, 63);
                assert_int_equal(report.reused + report.recomputed, target);
            }
            /* The same tokens again, over the next border. */
            advance(&f, back, target + 1);
            advance(&f, back, (uint32_t)sl_min_size(target + 35, LENGTH));
            sl_state_free(back);
        }
        advance(&f, state, LENGTH);
        sl_state_free(state);
        close_fixture(&f);
    }
}

/* A walk of small steps back and forth never reads rows that are gone. */
static void test_random_walk(void **state_)
{
    (void)state_;
    fixture f = open_fixture(16, 0, 512);
    sl_error err;
    sl_test_rng rng = sl_test_rng_of(11);
    sl_state *state = new_state(f.engine);
    for (int i = 0; i < (sl_test_shortened() ? 60 : 600); i++) {
        uint32_t length = sl_state_length(state);
        if (length < LENGTH - 20 && (length == 0 || sl_test_rng_below(&rng, 2)))
            advance(&f, state, length + 1 + sl_test_rng_below(&rng, 20));
        else
            assert_ok(sl_state_rewind(
                state, length - sl_test_rng_below(&rng, length < 24 ? length + 1 : 24), NULL,
                &err));
    }
    sl_state_free(state);
    close_fixture(&f);
}

static void test_rewind_refuses(void **state_)
{
    (void)state_;
    fixture f = open_fixture(16, 0, 512);
    sl_error err;
    sl_state *state = new_state(f.engine);
    advance(&f, state, 10);
    assert_refused(sl_state_rewind(state, 11, NULL, &err), SL_ERR_ARGUMENT,
                   "rewinding to 11 tokens, the state has 10");
    assert_ok(sl_state_rewind(state, 10, NULL, &err));
    assert_ok(sl_state_rewind(state, 0, NULL, &err));
    advance(&f, state, 40);
    assert_refused(sl_state_checkpoint(state, SL_ANCHOR_COUNT, &err), SL_ERR_ARGUMENT,
                   "is no reason for a checkpoint");
    assert_refused(sl_state_checkpoint(state, (sl_anchor)-1, &err), SL_ERR_ARGUMENT,
                   "-1 is no reason for a checkpoint");
    sl_state_free(state);
    close_fixture(&f);
}

/* ---- checkpoints ---- */

static void test_sync_finds_prefixes(void **state_)
{
    (void)state_;
    fixture f = open_fixture(16, 64 << 20, 64);
    sl_error err;
    sl_state *state = new_state(f.engine), *second = new_state(f.engine);
    advance(&f, state, 150);
    assert_ok(sl_state_checkpoint(state, SL_ANCHOR_REPLY, &err));
    advance(&f, state, 220);
    sl_reuse_report report;

    /* The same tokens again: all but the last are reused. */
    assert_ok(sl_state_sync(state, f.tokens, 220, &report, &err));
    assert_int_equal(report.source, SL_REUSE_WINDOW);
    assert_int_equal(report.reused, 219);
    assert_int_equal(report.matched, 220);
    assert_string_equal(report.why, "the last token is evaluated again for its logits");
    advance(&f, state, 220);

    /* More of the same: nothing to take back. */
    assert_ok(sl_state_sync(state, f.tokens, 230, &report, &err));
    assert_int_equal(report.source, SL_REUSE_LIVE);
    assert_int_equal(report.reused, 220);
    assert_string_equal(report.why, "neither the state nor a checkpoint has more of these tokens");

    /* Another text from position 170 on: the checkpoint at 150 serves. */
    int32_t changed[LENGTH];
    memcpy(changed, f.tokens, sizeof changed);
    changed[170] = (changed[170] + 1) % 500;
    assert_ok(sl_state_sync(state, changed, 200, &report, &err));
    assert_int_equal(report.source, SL_REUSE_CHECKPOINT);
    assert_int_equal(report.matched, 170);
    assert_int_equal(report.checkpoint, 150);
    assert_int_equal(report.reused, 150);
    assert_non_null(strstr(report.why, "rewind window"));
    advance(&f, state, 220);

    /* A state that has seen nothing finds what another one left. */
    assert_ok(sl_state_sync(second, f.tokens, 150, &report, &err));
    assert_int_equal(report.source, SL_REUSE_CHECKPOINT);
    assert_int_equal(report.reused, 128);
    assert_string_equal(report.why, "neither the state nor a checkpoint has more of these tokens");
    advance(&f, second, 200);
    assert_ok(sl_state_sync(second, f.tokens, 151, &report, &err));
    assert_int_equal(report.reused, 150);
    advance(&f, second, 151);

    /* Nothing in common. */
    int32_t foreign[8] = {499, 498, 497, 496, 1, 2, 3, 4};
    assert_ok(sl_state_sync(second, foreign, 8, &report, &err));
    assert_int_equal(report.source, SL_REUSE_NOTHING);
    assert_int_equal(report.reused, 0);
    assert_int_equal(sl_state_length(second), 0);
    assert_string_equal(report.why, "the tokens differ from there on");
    advance(&f, second, 70);

    /* A difference inside the window. */
    changed[65] = (f.tokens[65] + 1) % 500;
    memcpy(changed, f.tokens, 65 * sizeof *changed);
    assert_ok(sl_state_sync(second, changed, 90, &report, &err));
    assert_int_equal(report.source, SL_REUSE_WINDOW);
    assert_int_equal(report.reused, 65);
    assert_string_equal(report.why, "the tokens differ from there on");
    advance(&f, second, 70);

    /* What a failed state had does not count. */
    second->failed = true;
    assert_ok(sl_state_sync(second, f.tokens, 68, &report, &err));
    assert_int_equal(report.source, SL_REUSE_CHECKPOINT);
    assert_int_equal(report.reused, 64);
    assert_int_equal(report.matched, 68);
    assert_non_null(strstr(report.why, "evaluation of the state failed"));
    advance(&f, second, 70);

    assert_refused(sl_state_sync(second, foreign, 0, &report, &err), SL_ERR_ARGUMENT, "0 tokens");
    assert_refused(sl_state_sync(second, foreign, LENGTH + 65, &report, &err), SL_ERR_CONTEXT,
                   "context");
    sl_state_free(second);
    sl_state_free(state);
    close_fixture(&f);
}

/* Every offset: a hit is bit-equal to a cold run. */
static void test_every_offset(void **state_)
{
    (void)state_;
    fixture f = open_fixture(4, 256 << 20, 32);
    sl_error err;
    sl_state *state = new_state(f.engine);
    advance(&f, state, 300);
    for (uint32_t n = 1; n <= 300; n += sl_test_shortened() ? 17 : 1) {
        sl_reuse_report report;
        assert_ok(sl_state_sync(state, f.tokens, n, &report, &err));
        assert_in_range(n - report.reused, 1, 32);
        advance(&f, state, n);
        /* And from a fresh state. */
        if (n % 10 == 0) {
            sl_state *fresh = new_state(f.engine);
            assert_ok(sl_state_sync(fresh, f.tokens, n, &report, &err));
            assert_in_range(n - report.reused, 1, 32);
            advance(&f, fresh, n);
            sl_state_free(fresh);
        }
    }
    sl_state_free(state);
    close_fixture(&f);
}

/* A long line under a small budget: never above it, and survivors thin out geometrically. */
static void test_budget_and_thinning(void **state_)
{
    (void)state_;
    enum { LONG = 2048, SPACING = 32 };
    sl_error err;
    sl_engine *engine = open_engine(16, 0, SPACING);
    /* Room for about 24 checkpoints beside the shared KV pages. */
    size_t one = engine->borders.n_bytes + engine->conv_tails.n_bytes + LONG * 4;
    engine->store.budget = 24 * one + sl_kv_pages_of(LONG) * engine->kvs.n_bytes;
    sl_state *state = NULL;
    assert_ok(sl_state_create(engine, LONG, &state, &err));
    int32_t token = 5;
    size_t most = 0;
    for (uint32_t i = 0; i < LONG; i++) {
        token = (token * 7 + 1) % 500;
        sl_eval_item item = {.state = state, .tokens = &token, .n_tokens = 1};
        assert_ok(sl_engine_eval(engine, &item, 1, NULL, &err));
        sl_checkpoint_stats stats = sl_engine_checkpoint_stats(engine);
        assert_true(stats.bytes <= stats.budget);
        most = stats.n_checkpoints > most ? stats.n_checkpoints : most;
    }
    assert_in_range(most, 12, 64);
    /* Going back by d tokens recomputes at most the spacing plus half of d. */
    uint32_t kept[128], n_kept = 0;
    for (const sl_checkpoint *c = engine->store.first; c; c = c->next)
        kept[n_kept++] = c->length;
    for (uint32_t target = 1; target <= LONG; target++) {
        uint32_t nearest = 0;
        for (uint32_t i = 0; i < n_kept; i++)
            nearest = kept[i] <= target && kept[i] > nearest ? kept[i] : nearest;
        assert_true(target - nearest <= SPACING + (LONG - target) / 2);
    }
    print_message("%u checkpoints left of %d\n", n_kept, LONG / SPACING);
    sl_state_free(state);
    sl_engine_close(engine);
}

/* Observes the budget from inside: when the conv rows of a checkpoint are copied, its memory has
 * been taken and room for it must have been made. */
static struct {
    sl_engine *engine;
    void (*copy)(sl_backend *, void *, const void *, size_t);
    size_t n_seen, worst;
} spy;

static void spying_copy(sl_backend *backend, void *to, const void *from, size_t n_bytes)
{
    const sl_checkpoint_store *store = &spy.engine->store;
    size_t bytes = store->bytes + sl_block_bytes(&spy.engine->conv_tails);
    spy.worst = bytes > spy.worst ? bytes : spy.worst;
    spy.n_seen++;
    spy.copy(backend, to, from, n_bytes);
}

static void test_budget_holds_while_adding(void **state_)
{
    (void)state_;
    sl_error err;
    sl_engine *engine = open_engine(16, 0, 32);
    engine->store.budget = 6 * engine->borders.n_bytes;
    sl_state *state = new_state(engine);
    int32_t tokens[LENGTH] = {0};
    spy.engine = engine;
    spy.copy = engine->backend->copy;
    engine->backend->copy = spying_copy;
    sl_eval_item item = {.state = state, .tokens = tokens, .n_tokens = LENGTH};
    assert_ok(sl_engine_eval(engine, &item, 1, NULL, &err));
    for (int i = 0; i < 5; i++) {
        assert_ok(sl_state_rewind(state, LENGTH - 1 - (uint32_t)i, NULL, &err));
        assert_ok(sl_state_checkpoint(state, SL_ANCHOR_TURN, &err));
    }
    engine->backend->copy = spy.copy;
    sl_checkpoint_stats stats = sl_engine_checkpoint_stats(engine);
    assert_true(spy.n_seen > 50);
    assert_in_range(stats.n_checkpoints, 1, LENGTH / 32); /* of as many and five more */
    assert_true(spy.worst <= stats.budget);
    sl_state_free(state);
    sl_engine_close(engine);
}

static void test_a_checkpoint_that_is_too_large_costs_no_other(void **state_)
{
    (void)state_;
    fixture f = open_fixture(16, 0, 512);
    sl_error err;
    sl_state *state = new_state(f.engine), *other = new_state(f.engine);
    f.engine->store.budget = SIZE_MAX;
    advance(&f, state, 5); /* before the first border, and so without one */
    assert_ok(sl_state_checkpoint(state, SL_ANCHOR_SYSTEM, &err));
    advance(&f, state, 10);
    assert_ok(sl_state_checkpoint(state, SL_ANCHOR_TURN, &err));
    sl_checkpoint_stats before = sl_engine_checkpoint_stats(f.engine);
    assert_int_equal(before.n_checkpoints, 2);
    /* The budget is just met; 310 tokens alone need more. */
    f.engine->store.budget = before.bytes;
    advance(&f, state, 310);
    size_t alone = f.engine->borders.n_bytes + sl_kv_pages_of(310) * f.engine->kvs.n_bytes +
                   2 * f.engine->tapes.n_bytes;
    assert_true(alone > before.bytes);
    assert_ok(sl_state_checkpoint(state, SL_ANCHOR_TURN, &err));
    sl_checkpoint_stats after = sl_engine_checkpoint_stats(f.engine);
    assert_int_equal(after.n_checkpoints, 2);
    assert_int_equal(after.bytes, before.bytes);
    sl_reuse_report report;
    assert_ok(sl_state_sync(other, f.tokens, 100, &report, &err));
    assert_int_equal(report.reused, 10);
    advance(&f, other, 100);
    sl_state_free(other);
    sl_state_free(state);
    close_fixture(&f);
}

/* Anchors outlive regular checkpoints; an old conversation goes before a live one. */
static void test_least_useful_goes_first(void **state_)
{
    (void)state_;
    fixture f = open_fixture(16, 0, 64);
    sl_error err;
    f.engine->store.budget = SIZE_MAX;
    sl_state *old = new_state(f.engine), *live = new_state(f.engine);
    int32_t other[64];
    for (int i = 0; i < 64; i++)
        other[i] = 499 - i;
    sl_eval_item item = {.state = old, .tokens = other, .n_tokens = 64};
    assert_ok(sl_engine_eval(f.engine, &item, 1, NULL, &err));
    advance(&f, live, 50);
    assert_ok(sl_state_checkpoint(live, SL_ANCHOR_SYSTEM, &err));
    advance(&f, live, 320);
    size_t n = sl_engine_checkpoint_stats(f.engine).n_checkpoints;
    assert_int_equal(n, 1 + 1 + 5);
    /* Shrink the budget until two are left. */
    while (sl_engine_checkpoint_stats(f.engine).n_checkpoints > 2) {
        f.engine->store.budget = sl_engine_checkpoint_stats(f.engine).bytes - 1;
        assert_ok(sl_state_checkpoint(live, SL_ANCHOR_REGULAR, &err));
        advance(&f, live, 320);
        assert_ok(sl_store_add(&f.engine->store, live, SL_ANCHOR_TURN, &err));
        sl_checkpoint_stats stats = sl_engine_checkpoint_stats(f.engine);
        if (stats.bytes > stats.budget)
            fail_msg("%zu bytes over a budget of %zu", stats.bytes, stats.budget);
    }
    assert_null(sl_store_find(&f.engine->store, other, 64, 64));
    assert_non_null(sl_store_find(&f.engine->store, f.tokens, 50, 50));
    sl_state_free(old);
    sl_state_free(live);
    close_fixture(&f);
}

/* Memory gives out in an engine that goes on living: whatever failed, every state is what it was
 * and has the bits of a plain run. */
static sl_status hard_work(const fixture *f, sl_state *state, sl_state **fork, sl_state **fresh,
                           const char *file, sl_error *err)
{
    sl_eval_item item = {.tokens = f->tokens + 70, .n_tokens = 30};
    SL_TRY(sl_state_fork(state, fork, err));
    item.state = *fork;
    SL_TRY(sl_engine_eval(f->engine, &item, 1, NULL, err));
    SL_TRY(sl_state_checkpoint(*fork, SL_ANCHOR_TURN, err));
    item.state = state;
    SL_TRY(sl_engine_eval(f->engine, &item, 1, NULL, err));
    SL_TRY(sl_state_rewind(state, 60, NULL, err));
    SL_TRY(sl_state_save(state, file, NULL, 0, err));
    SL_TRY(sl_state_load(f->engine, file, LENGTH, fresh, NULL, NULL, err));
    return sl_state_sync(*fork, f->tokens, 80, NULL, err);
}

static void test_states_survive_failed_allocations(void **state_)
{
    (void)state_;
    fixture f = open_fixture(16, 64 << 20, 48);
    char file[] = "/tmp/sluice-survive-XXXXXX";
    int fd = mkstemp(file);
    assert_true(fd >= 0);
    close(fd);
    sl_engine_close(f.engine);
    size_t failures = 0, blocks = sl_mem_get_stats().blocks;
    for (int forever = 0; forever <= 1; forever++) {
        for (uint64_t n = 1, hit = 1; hit; n += sl_test_shortened() ? 7 : 1) {
            sl_error err;
            f.engine = open_engine(16, 64 << 20, 48);
            sl_state *state = new_state(f.engine), *fork = NULL, *fresh = NULL;
            advance(&f, state, 70);
            uint64_t before = sl_mem_get_stats().requests;
            sl_mem_fail_at(n, forever);
            sl_status status = hard_work(&f, state, &fork, &fresh, file, &err);
            sl_mem_fail_at(0, false);
            hit = sl_mem_get_stats().requests - before >= n;
            failures += hit;
            if (status != SL_OK && status != SL_ERR_MEMORY)
                fail_msg("allocation %d: %s", (int)n, err.message);
            sl_state *const all[] = {state, fork, fresh};
            for (size_t i = 0; i < SL_COUNTOF(all); i++) {
                if (!all[i])
                    continue;
                assert_memory_equal(sl_state_tokens(all[i]), f.tokens,
                                    sl_state_length(all[i]) * sizeof *f.tokens);
                advance(&f, all[i], sl_state_length(all[i]) + 3);
                sl_state_free(all[i]);
            }
            sl_engine_close(f.engine);
            assert_int_equal(sl_mem_get_stats().blocks, blocks);
        }
    }
    print_message("%zu failed allocations\n", failures);
    assert_true(failures > 20);
    unlink(file);
    sl_free(f.expected);
}

static float last_logits[2][VOCAB]; /* of the latest run of `everything` that succeeded */

static sl_status everything(sl_error *err)
{
    sl_engine_params params = sl_engine_params_default();
    params.n_threads = 1;
    params.max_rows = 32;
    params.checkpoint_spacing = 16;
    sl_engine *engine;
    SL_TRY(sl_engine_open(sl_model_path(small), &params, &engine, err));
    sl_state *state = NULL, *fork = NULL;
    int32_t tokens[100] = {1, 2, 3};
    sl_eval_item item = {.tokens = tokens, .n_tokens = 50, .logits = last_logits[0]};
    sl_status status;
    SL_CHECK(sl_state_create(engine, 128, &state, err));
    item.state = state;
    SL_CHECK(sl_engine_eval(engine, &item, 1, NULL, err));
    SL_CHECK(sl_state_fork(state, &fork, err));
    SL_CHECK(sl_engine_eval(engine, &item, 1, NULL, err));
    item.state = fork;
    item.logits = last_logits[1];
    SL_CHECK(sl_engine_eval(engine, &item, 1, NULL, err));
    SL_CHECK(sl_state_checkpoint(fork, SL_ANCHOR_TURN, err));
    SL_CHECK(sl_state_rewind(fork, 20, NULL, err));
    SL_CHECK(sl_state_sync(state, tokens, 30, NULL, err));
done:
    sl_state_free(fork);
    sl_state_free(state);
    sl_engine_close(engine);
    return status;
}

static void test_every_allocation_may_fail(void **state)
{
    (void)state;
    sl_error err;
    static float expected[2][VOCAB];
    assert_ok(everything(&err));
    memcpy(expected, last_logits, sizeof expected);
    size_t blocks = sl_mem_get_stats().blocks;
    for (int forever = 0; forever <= 1; forever++) {
        sl_status status = SL_ERR_MEMORY;
        size_t tolerated = 0;
        for (uint64_t n = 1;; n++) {
            assert_true(n < 10000);
            uint64_t before = sl_mem_get_stats().requests;
            sl_mem_fail_at(n, forever);
            status = everything(&err);
            sl_mem_fail_at(0, false);
            bool hit = sl_mem_get_stats().requests - before >= n;
            if (status != SL_OK && status != SL_ERR_MEMORY)
                fail_msg("allocation %d: %s: %s", (int)n, sl_status_name(status), err.message);
            assert_int_equal(sl_mem_get_stats().blocks, blocks);
            if (status == SL_OK)
                assert_memory_equal(last_logits, expected, sizeof expected);
            tolerated += hit && status == SL_OK; /* a regular checkpoint that was not taken */
            if (!hit)
                break;
        }
        assert_true(tolerated < 400);
    }
    memset(last_logits, 0, sizeof last_logits);
    assert_ok(everything(&err));
    assert_memory_equal(last_logits, expected, sizeof expected);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_forks_do_not_touch_each_other),
        cmocka_unit_test(test_forks_share_what_is_full),
        cmocka_unit_test(test_rewind_any_length),
        cmocka_unit_test(test_random_walk),
        cmocka_unit_test(test_rewind_refuses),
        cmocka_unit_test(test_sync_finds_prefixes),
        cmocka_unit_test(test_every_offset),
        cmocka_unit_test(test_budget_and_thinning),
        cmocka_unit_test(test_budget_holds_while_adding),
        cmocka_unit_test(test_a_checkpoint_that_is_too_large_costs_no_other),
        cmocka_unit_test(test_least_useful_goes_first),
        cmocka_unit_test(test_states_survive_failed_allocations),
        cmocka_unit_test(test_every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
