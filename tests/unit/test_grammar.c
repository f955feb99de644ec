/* Grammars in GBNF and the masks made of them: masks against reading every token byte by byte,
 * forks and returns, characters cut over tokens, counted texts, stops, depth, many readings,
 * hostile grammars on a small stack, failing allocations. */
#include "support.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "grammar/machine.h"

enum { STOP = 256, MAX_TOKENS = 2048 };

/* The 256 bytes, a stop token, and pieces of text. */
static const char *const pieces[] = {"ab",       "abc",      "aab",     "bb",
                                     "\"}",      "\",",      "[[",      "]]",
                                     "]",        "],[",      "{\"a\":", "12",
                                     "123",      " the",     "\n  ",    "\xE2\x98",
                                     "\x83\xC3", "\xC3\xA9", "\xA9",    "aaaaaaaaaaaaaaaaaaaaaaaa",
                                     "ab",       "<call>"};

typedef struct world {
    sl_constraint_vocab *vocab;
    size_t n;
    sl_str tokens[MAX_TOKENS];
} world;

static world make_world(void)
{
    static char bytes[256];
    sl_vocab_token tokens[MAX_TOKENS] = {0};
    const int32_t stop = STOP;
    sl_error err;
    world w = {.n = 257 + SL_COUNTOF(pieces)};
    for (size_t i = 0; i < 256; i++) {
        bytes[i] = (char)i;
        w.tokens[i] = (sl_str){&bytes[i], 1};
    }
    for (size_t i = 0; i < SL_COUNTOF(pieces); i++)
        w.tokens[257 + i] = sl_str_of(pieces[i]);
    for (size_t i = 0; i < w.n; i++)
        tokens[i].bytes = w.tokens[i];
    tokens[w.n - 1].added = true;
    assert_ok(sl_vocab_create(tokens, w.n, &stop, 1, &w.vocab, &err));
    return w;
}

static bool allows(const uint32_t *mask, size_t id)
{
    return mask[id / 32] >> (id % 32) & 1;
}

static sl_constraint *start(const world *w, const char *text, sl_grammar **grammar)
{
    sl_error err;
    sl_constraint *constraint;
    assert_ok(sl_grammar_from_gbnf(sl_str_of(text), grammar, &err));
    assert_ok(sl_constraint_create(*grammar, w->vocab, &constraint, &err));
    return constraint;
}

/* The mask allows exactly the tokens that a fork can take in. */
static size_t check_mask(const world *w, sl_constraint *constraint)
{
    sl_error err;
    sl_constraint *fork;
    const uint32_t *mask;
    size_t n_allowed = 0;
    uint32_t copy[MAX_TOKENS / 32];
    assert_ok(sl_constraint_allowed(constraint, &mask, &err));
    memcpy(copy, mask, (w->n + 31) / 32 * sizeof *copy);
    assert_ok(sl_constraint_fork(constraint, &fork, &err));
    for (size_t id = 0; id < w->n; id++) {
        assert_ok(sl_constraint_assign(fork, constraint, &err));
        const bool taken = sl_constraint_accept(fork, (int32_t)id, &err) == SL_OK;
        if (taken != allows(copy, id))
            fail_msg("token %zu: %s", id, taken ? "not in the mask" : err.message);
        n_allowed += taken;
    }
    sl_constraint_free(fork);
    return n_allowed;
}

static const char *const grammars[] = {
    "root ::= \"a\" b*\nb ::= \"b\" | \"ab\" | \"c\" root",
    "root ::= [a-c]{2,40} \"]\"",
    "root ::= \"[\" (root (\",\" root)*)? \"]\"",
    "root ::= [^\\x00-\\x1F\"]* \"\\\"\" (\"}\" | \",\") root?",
    "root ::= ([0-9]+ | \"12\" \"3\"?)+ \"\\n\" \" \"*",
    "root ::= (\"\u2603\" | [\u00e9\u4e00-\u9fff])+",
    "root ::= x y z\nx ::= \"a\"?\ny ::= x x\nz ::= y \"b\" | [a]{0,30}",
    "root ::= .{3,20}",
    "root ::= \"{\\\"a\\\":\" v \"}\"\nv ::= root | [0-9]+ | \"[\" (v (\",\" v)*)? \"]\"",
};

static void test_masks(void **state)
{
    (void)state;
    const world w = make_world();
    sl_test_rng rng = sl_test_rng_of(3);
    for (size_t g = 0; g < SL_COUNTOF(grammars); g++) {
        sl_grammar *grammar;
        sl_error err;
        sl_constraint *constraint = start(&w, grammars[g], &grammar);
        for (int step = 0; step < (sl_test_shortened() ? 40 : 150); step++) {
            const uint32_t *mask;
            check_mask(&w, constraint);
            assert_ok(sl_constraint_allowed(constraint, &mask, &err));
            size_t id = sl_test_rng_below(&rng, (uint32_t)w.n), tries = 0;
            while (!allows(mask, id) && tries++ < w.n)
                id = (id + 1) % w.n;
            if (!allows(mask, id) || id == STOP)
                sl_constraint_reset(constraint);
            else
                assert_ok(sl_constraint_accept(constraint, (int32_t)id, &err));
        }
        sl_constraint_free(constraint);
        sl_grammar_free(grammar);
    }
    sl_constraint_vocab_free(w.vocab);
}

static void test_forks(void **state)
{
    (void)state;
    const world w = make_world();
    sl_grammar *grammar;
    sl_error err;
    sl_constraint *a = start(&w, grammars[2], &grammar), *b, *begin;
    assert_ok(sl_constraint_fork(a, &begin, &err));
    assert_ok(sl_constraint_accept_text(a, sl_str_of("[[],["), &err));
    assert_ok(sl_constraint_fork(a, &b, &err));
    assert_true(sl_constraint_equal(a, b) && !sl_constraint_equal(a, begin));
    assert_ok(sl_constraint_accept_text(b, sl_str_of("]"), &err));
    assert_false(sl_constraint_equal(a, b));
    assert_ok(sl_constraint_accept_text(a, sl_str_of("]"), &err));
    assert_true(sl_constraint_equal(a, b));
    assert_refused(sl_constraint_accept_text(a, sl_str_of("]x"), &err), SL_ERR_ARGUMENT, "byte 7");
    assert_true(sl_constraint_equal(a, b)); /* a refusal changes nothing */
    assert_ok(sl_constraint_accept_text(a, sl_str_of("]"), &err));
    assert_true(sl_constraint_may_end(a) && sl_constraint_is_done(a));
    assert_ok(sl_constraint_accept(a, STOP, &err));
    assert_false(sl_constraint_may_end(a));
    assert_refused(sl_constraint_accept(a, STOP, &err), SL_ERR_ARGUMENT, "may not end");
    assert_refused(sl_constraint_accept(a, 'a', &err), SL_ERR_ARGUMENT, "does not fit");
    assert_refused(sl_constraint_accept(a, (int32_t)w.n, &err), SL_ERR_ARGUMENT, "there are");
    assert_int_equal(check_mask(&w, a), 0);
    assert_ok(sl_constraint_assign(a, begin, &err));
    assert_true(sl_constraint_equal(a, begin));
    sl_constraint_reset(b);
    assert_true(sl_constraint_equal(b, begin));
    sl_grammar *other;
    sl_constraint *stranger = start(&w, grammars[0], &other);
    assert_refused(sl_constraint_assign(a, stranger, &err), SL_ERR_ARGUMENT, "another constraint");
    assert_false(sl_constraint_equal(a, stranger));
    sl_constraint_free(stranger);
    sl_grammar_free(other);
    sl_constraint_free(a); /* the forks go on */
    assert_ok(sl_constraint_accept_text(b, sl_str_of("[]"), &err));
    sl_constraint_free(begin);
    sl_constraint_free(b);
    sl_grammar_free(grammar);
    sl_constraint_vocab_free(w.vocab);
}

static void test_forced(void **state)
{
    (void)state;
    const world w = make_world();
    const struct {
        const char *grammar, *before, *forced;
    } cases[] = {
        {"root ::= \"abc\" \"def\"", "", "abcdef"},
        {"root ::= \"abc\" (\"def\" | \"dxy\")", "a", "bcd"},
        {"root ::= \"abc\" \"d\"?", "", "abc"},
        {"root ::= [ab] \"c\"", "", ""},
        {"root ::= \"x\" r \"z\"\nr ::= \"(\" \")\" | \"(\" r \")\"", "x", "("},
    };
    for (size_t i = 0; i < SL_COUNTOF(cases); i++) {
        sl_grammar *grammar;
        sl_error err;
        char bytes[16];
        size_t n;
        sl_constraint *constraint = start(&w, cases[i].grammar, &grammar);
        assert_ok(sl_constraint_accept_text(constraint, sl_str_of(cases[i].before), &err));
        assert_ok(sl_constraint_forced(constraint, bytes, sizeof bytes, &n, &err));
        assert_int_equal(n, strlen(cases[i].forced));
        assert_memory_equal(bytes, cases[i].forced, n);
        assert_ok(sl_constraint_forced(constraint, bytes, 2, &n, &err));
        assert_true(n <= 2);
        sl_constraint_free(constraint);
        sl_grammar_free(grammar);
    }
    sl_constraint_vocab_free(w.vocab);
}

/* At the limit of depth nothing more may be opened, and everything can be closed. */
static void test_depth(void **state)
{
    (void)state;
    const world w = make_world();
    sl_grammar *grammar;
    sl_error err;
    sl_constraint *constraint = start(&w, grammars[2], &grammar);
    size_t depth = 0;
    while (sl_constraint_accept_text(constraint, sl_str_of("["), &err) == SL_OK) {
        depth++;
        if (depth % 100 == 0 || depth > SL_MACHINE_DEPTH - 3)
            check_mask(&w, constraint);
        assert_true(depth <= SL_MACHINE_DEPTH + 1);
    }
    assert_true(depth >= SL_MACHINE_DEPTH - 1);
    check_mask(&w, constraint);
    for (; depth > 0; depth--) {
        assert_false(sl_constraint_may_end(constraint));
        assert_ok(sl_constraint_accept_text(constraint, sl_str_of("]"), &err));
    }
    assert_true(sl_constraint_is_done(constraint));
    sl_constraint_free(constraint);
    sl_grammar_free(grammar);
    sl_constraint_vocab_free(w.vocab);
}

/* Stacks that nobody has any more are given up, once there are many; places that are kept go on. */
static void test_many_stacks(void **state)
{
    (void)state;
    enum { DEPTH = 900, ROUNDS = 1500 };
    const world w = make_world();
    sl_grammar *grammar;
    sl_error err;
    sl_test_rng rng = sl_test_rng_of(11);
    char open[DEPTH], close[DEPTH];
    sl_constraint *kept;
    sl_constraint *constraint =
        start(&w, "root ::= \"a\" root \"x\" | \"b\" root \"y\" | \"c\"", &grammar);
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < DEPTH; i++) {
            const bool a = sl_test_rng_below(&rng, 2);
            open[i] = a ? 'a' : 'b';
            if (round == 0)
                close[DEPTH - 1 - i] = a ? 'x' : 'y';
        }
        sl_constraint_reset(constraint);
        assert_ok(sl_constraint_accept_text(constraint, (sl_str){open, DEPTH}, &err));
        if (round == 0)
            assert_ok(sl_constraint_fork(constraint, &kept, &err));
        if (round % 100 == 0)
            check_mask(&w, constraint);
    }
    check_mask(&w, kept);
    assert_ok(sl_constraint_accept_text(kept, sl_str_of("c"), &err));
    assert_ok(sl_constraint_accept_text(kept, (sl_str){close, DEPTH}, &err));
    assert_true(sl_constraint_is_done(kept));
    assert_true(sl_mem_get_stats().bytes[SL_MEM_TEXT] < (size_t)100 << 20);
    sl_constraint_free(kept);
    sl_constraint_free(constraint);
    sl_grammar_free(grammar);
    sl_constraint_vocab_free(w.vocab);
}

/* A rule that ends with itself needs no stack: such lists have no limit. */
static void test_long_lists(void **state)
{
    (void)state;
    const world w = make_world();
    sl_grammar *grammar;
    sl_error err;
    sl_constraint *constraint = start(&w, "root ::= \"ab\" | \"ab\" \",\" root", &grammar);
    for (int i = 0; i < 5000; i++)
        assert_ok(sl_constraint_accept_text(constraint, sl_str_of("ab,"), &err));
    assert_ok(sl_constraint_accept_text(constraint, sl_str_of("ab"), &err));
    assert_true(sl_constraint_may_end(constraint));
    sl_constraint_free(constraint);
    sl_grammar_free(grammar);
    sl_constraint_vocab_free(w.vocab);
}

/* More readings than are kept: fewer texts, all of them good, and never a dead end. */
static void test_many_readings(void **state)
{
    (void)state;
    const world w = make_world();
    sl_grammar *grammar;
    sl_error err;
    sl_constraint *constraint = start(
        &w, "root ::= e\ne ::= \"a\" | \"a\" e e | \"a\" e \"b\" | \"a\" e e \"b\"", &grammar);
    for (int i = 0; i < 60; i++) {
        const uint32_t *mask;
        assert_ok(sl_constraint_allowed(constraint, &mask, &err));
        const size_t token = i % 3 == 2 && allows(mask, 'b') ? 'b' : 'a';
        if (!allows(mask, token))
            break;
        const sl_status status = sl_constraint_accept(constraint, (int32_t)token, &err);
        assert_true(status == SL_OK || status == SL_ERR_LIMIT);
    }
    sl_constraint_free(constraint);
    sl_grammar_free(grammar);
    sl_constraint_vocab_free(w.vocab);
}

/* ---- what is refused ---- */

static void refuse(const char *text, sl_status expected, const char *part)
{
    sl_error err;
    sl_grammar *grammar;
    assert_refused(sl_grammar_from_gbnf(sl_str_of(text), &grammar, &err), expected, part);
    assert_null(grammar);
}

static void test_places(void **state)
{
    (void)state;
    refuse("", SL_ERR_FORMAT, "no rule \"root\"");
    refuse("a ::= \"x\"", SL_ERR_FORMAT, "no rule \"root\"");
    refuse("root ::= \"x\n", SL_ERR_FORMAT, "line 1, column 10: a string that is not closed");
    refuse("root ::= \"x\"\n  y ::= z", SL_ERR_FORMAT, "line 2, column 9: there is no rule");
    refuse("root ::= \"x\"\nroot ::= \"y\"", SL_ERR_FORMAT, "line 2, column 1");
    refuse("root = \"x\"", SL_ERR_FORMAT, "\"::=\"");
    refuse("root ::= \"\\q\"", SL_ERR_FORMAT, "unknown escape");
    refuse("root ::= \"\\x4\"", SL_ERR_FORMAT, "hexadecimal");
    refuse("root ::= \"\\uD800\"", SL_ERR_FORMAT, "no character");
    refuse("root ::= [z-a]", SL_ERR_FORMAT, "whose end is first");
    refuse("root ::= [a", SL_ERR_FORMAT, "not closed");
    refuse("root ::= (\"a\" | ", SL_ERR_FORMAT, "not closed");
    refuse("root ::= \"a\")", SL_ERR_FORMAT, "')' without");
    refuse("root ::= \"a\"{3,2}", SL_ERR_FORMAT, "whose end is first");
    refuse("root ::= \"a\"{x}", SL_ERR_FORMAT, "a repetition is");
    refuse("root ::= \"a\" | *", SL_ERR_FORMAT, "nothing to repeat");
    refuse("root ::= \"a\" %", SL_ERR_FORMAT, "does not belong");
    refuse("root ::= \"\xFF\"", SL_ERR_FORMAT, "not UTF-8");
    refuse("root ::= a \"x\"\na ::= b? root", SL_ERR_FORMAT, "line 2, column 7");
    refuse("root ::= a \"x\"\nb ::= \"y\"\na ::= b? root", SL_ERR_UNSUPPORTED, "left-recursive");
    refuse("root ::= a\na ::= (\"\" a)* \"x\"", SL_ERR_UNSUPPORTED, "left-recursive");
    refuse("root ::= \"x\" root", SL_ERR_UNSUPPORTED, "no text fits");
    refuse("root ::= []", SL_ERR_UNSUPPORTED, "no text fits");
    refuse("root ::= \"a\"{9999999}", SL_ERR_LIMIT, "1048576");
    refuse("root ::= (\"abc\" \"def\"){1000000}", SL_ERR_LIMIT, "automaton nodes");
    refuse("root ::= ((((\"a\"{99}){99}){99}){99}){99}", SL_ERR_LIMIT, "automaton nodes");
}

static char *repeated(const char *begin, const char *part, size_t n, const char *end)
{
    char *text = malloc(strlen(begin) + n * strlen(part) + strlen(end) + 1);
    char *at = text + sprintf(text, "%s", begin);
    for (size_t i = 0; i < n; i++)
        at += sprintf(at, "%s", part);
    sprintf(at, "%s", end);
    return text;
}

static void *hostile(void *failures)
{
    const struct {
        const char *begin, *part, *end;
        size_t n;
    } cases[] = {
        {"root ::= ", "(", "", 60000},      {"root ::= \"a\"", "(\"a\"", ")", 60000},
        {"root ::= ", "[", "", 60000},      {"root ::= \"a\"", "|", "", 60000},
        {"root ::= \"a\"", "?", "", 60000}, {"", "root ::= ", "", 60000},
        {"root ::= a ", "a ", "", 60000},   {"root ::= \"a\"", "{2}", "", 600},
        {"root ::= ", "#", "", 60000},
    };
    size_t *n_failed = failures;
    for (size_t i = 0; i < SL_COUNTOF(cases); i++) {
        sl_error err = {0};
        sl_grammar *grammar;
        char *text = repeated(cases[i].begin, cases[i].part, cases[i].n, cases[i].end);
        const sl_status status = sl_grammar_from_gbnf(sl_str_of(text), &grammar, &err);
        *n_failed += status != SL_OK && strlen(err.message) < 10;
        *n_failed += status == SL_ERR_MEMORY;
        sl_grammar_free(status == SL_OK ? grammar : NULL);
        free(text);
    }
    /* A chain of rules as deep as it goes, and schemas nested as deep as they are read. */
    char *chain = malloc(2000000);
    size_t at = 0;
    for (int i = 0; i < 30000; i++)
        at += (size_t)sprintf(chain + at, "%s%d ::= \"(\" r%d \")\"\n", i ? "r" : "root ::= r0\nr",
                              i, i + 1);
    sprintf(chain + at, "r30000 ::= \"x\"\n");
    sl_error err = {0};
    sl_grammar *grammar;
    *n_failed += sl_grammar_from_gbnf(sl_str_of(chain), &grammar, &err) != SL_ERR_LIMIT;
    free(chain);
    static const char *const nested[][3] = {
        {"{\"items\":", "true", "}"}, {"{\"enum\":[{\"a\":", "1", "}]}"}, {"{\"not\":", "{}", "}"}};
    for (size_t i = 0; i < SL_COUNTOF(nested); i++) {
        char *schema = repeated("", nested[i][0], 20, nested[i][1]);
        char *whole = repeated(schema, nested[i][2], 20, "");
        const sl_status status = sl_grammar_from_json_schema(sl_str_of(whole), &grammar, &err);
        *n_failed += i < 2 ? status != SL_OK : status != SL_ERR_UNSUPPORTED;
        sl_grammar_free(status == SL_OK ? grammar : NULL);
        free(schema);
        free(whole);
    }
    return NULL;
}

/* All of it on a stack of 64 KiB; under the sanitizers, whose frames are larger, on 256. */
static void test_hostile_on_a_small_stack(void **state)
{
    (void)state;
    pthread_attr_t attr;
    pthread_t thread;
    size_t n_failed = 0;
    pthread_attr_init(&attr);
    assert_int_equal(pthread_attr_setstacksize(&attr, sl_test_shortened() ? 256 << 10 : 64 << 10),
                     0);
    assert_int_equal(pthread_create(&thread, &attr, hostile, &n_failed), 0);
    pthread_join(thread, NULL);
    pthread_attr_destroy(&attr);
    assert_int_equal(n_failed, 0);
}

/* ---- failing allocations ---- */

static sl_status use(const world *w, const char *text, sl_error *err)
{
    sl_grammar *grammar = NULL;
    sl_constraint *constraint = NULL;
    const uint32_t *mask;
    sl_status status = sl_grammar_from_gbnf(sl_str_of(text), &grammar, err);
    if (status == SL_OK)
        status = sl_constraint_create(grammar, w->vocab, &constraint, err);
    for (int i = 0; i < 12 && status == SL_OK; i++) {
        status = sl_constraint_allowed(constraint, &mask, err);
        size_t id = 0;
        while (status == SL_OK && id < w->n && !allows(mask, id))
            id++;
        if (status == SL_OK && id < w->n)
            status = sl_constraint_accept(constraint, (int32_t)id, err);
    }
    sl_constraint_free(constraint);
    sl_grammar_free(grammar);
    return status;
}

static void test_failing_allocations(void **state)
{
    (void)state;
    const world w = make_world();
    for (size_t g = 0; g < SL_COUNTOF(grammars); g++) {
        const size_t blocks = sl_mem_get_stats().blocks;
        sl_status status = SL_ERR_MEMORY;
        for (uint64_t n = 1; status != SL_OK; n++) {
            sl_error err = {0};
            sl_mem_fail_at(n, n % 2);
            status = use(&w, grammars[g], &err);
            sl_mem_fail_at(0, false);
            if (status != SL_OK && status != SL_ERR_MEMORY)
                fail_msg("request %llu: %s", (unsigned long long)n, err.message);
            assert_int_equal(sl_mem_get_stats().blocks, blocks);
        }
    }
    sl_vocab_token token = {.bytes = sl_str_of("a")};
    sl_status status = SL_ERR_MEMORY;
    for (uint64_t n = 1; status != SL_OK; n++) {
        sl_constraint_vocab *vocab;
        sl_error err;
        sl_mem_fail_at(n, false);
        status = sl_vocab_create(&token, 1, NULL, 0, &vocab, &err);
        sl_mem_fail_at(0, false);
        sl_constraint_vocab_free(vocab);
    }
    sl_constraint_vocab_free(w.vocab);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_masks),
        cmocka_unit_test(test_forks),
        cmocka_unit_test(test_forced),
        cmocka_unit_test(test_depth),
        cmocka_unit_test(test_many_stacks),
        cmocka_unit_test(test_long_lists),
        cmocka_unit_test(test_many_readings),
        cmocka_unit_test(test_places),
        cmocka_unit_test(test_hostile_on_a_small_stack),
        cmocka_unit_test(test_failing_allocations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
