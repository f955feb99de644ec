/* States on disk: the same bits in another process, every damage seen, old or new after a kill. */
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <xxhash.h>

#include "gguf_build.h"
#include "models.h"

#include "base/mem.h"

extern char **environ;

enum { VOCAB = 512, LENGTH = 300, AFTER = 40, WINDOW = 16 };

/* Kinds of sections. */
enum { TAPE = 4, CONV = 5, KV = 6, OWN = 7, WINDOW_ROWS = 8, PREVIOUS = 9 };

static char small[256], own_program[4096], folder[] = "/tmp/sluice-state-XXXXXX", path[64];

static sl_engine *open_engine(const char *model)
{
    sl_error err;
    sl_engine *engine = NULL;
    sl_engine_params params = sl_engine_params_default();
    params.n_threads = 1;
    params.max_rows = 64;
    params.checkpoint_budget = 0;
    assert_ok(sl_engine_open(model, &params, &engine, &err));
    return engine;
}

static void random_tokens(int32_t *tokens)
{
    sl_test_rng rng = sl_test_rng_of(21);
    for (int i = 0; i < LENGTH + AFTER; i++)
        tokens[i] = (int32_t)sl_test_rng_below(&rng, 500);
}

static sl_state *state_of(sl_engine *engine, uint32_t length)
{
    sl_error err;
    int32_t tokens[LENGTH + AFTER];
    sl_state *state = NULL;
    random_tokens(tokens);
    assert_ok(sl_state_create(engine, LENGTH + AFTER, &state, &err));
    sl_eval_item item = {.state = state, .tokens = tokens, .n_tokens = length};
    assert_ok(sl_engine_eval(engine, &item, 1, NULL, &err));
    return state;
}

/* Logits of AFTER more tokens. */
static sl_status go_on(sl_engine *engine, sl_state *state, float *logits, sl_error *err)
{
    int32_t tokens[LENGTH + AFTER];
    random_tokens(tokens);
    sl_eval_item item = {.state = state,
                         .tokens = tokens + sl_state_length(state),
                         .n_tokens = AFTER,
                         .all_logits = true,
                         .logits = logits};
    return sl_engine_eval(engine, &item, 1, NULL, err);
}

/* ---- another process ---- */

/* This program, called with "load FILE": loads it, goes on, writes the logits to standard output.
 */
static int load_and_go_on(const char *file)
{
    static float logits[AFTER * VOCAB];
    sl_error err = {0};
    sl_engine_params params = sl_engine_params_default();
    params.n_threads = 2;
    sl_engine *engine = NULL;
    sl_state *state = NULL;
    if (sl_engine_open(small, &params, &engine, &err) != SL_OK ||
        sl_state_load(engine, file, LENGTH + AFTER, &state, NULL, NULL, &err) != SL_OK ||
        go_on(engine, state, logits, &err) != SL_OK) {
        fprintf(stderr, "%s\n", err.message);
        return 1;
    }
    size_t written = fwrite(logits, sizeof logits, 1, stdout);
    sl_state_free(state);
    sl_engine_close(engine);
    return written == 1 ? 0 : 1;
}

static void in_another_process(const char *file, float *logits)
{
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], 1);
    posix_spawn_file_actions_addclose(&actions, ends[0]);
    char *args[] = {own_program, (char *)(uintptr_t) "load", (char *)(uintptr_t)file, NULL};
    pid_t child;
    assert_int_equal(posix_spawn(&child, own_program, &actions, NULL, args, environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    size_t got = 0, wanted = (size_t)AFTER * VOCAB * sizeof(float);
    for (ssize_t n; got < wanted && (n = read(ends[0], (char *)logits + got, wanted - got)) > 0;)
        got += (size_t)n;
    close(ends[0]);
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_int_equal(got, wanted);
}

static void test_same_bits_after_loading(void **state_)
{
    (void)state_;
    static float expected[AFTER * VOCAB], loaded[AFTER * VOCAB];
    static const uint32_t lengths[] = {0, 1, 2, 3, 16, 31, 32, 33, 48, 64, 65, 100, 200, 300};
    sl_error err;
    sl_engine *engine = open_engine(small);
    for (size_t i = 0; i < SL_COUNTOF(lengths); i++) {
        sl_state *state = state_of(engine, lengths[i]), *back = NULL;
        assert_ok(sl_state_save(state, path, "my own\0bytes", 12, &err));
        assert_ok(go_on(engine, state, expected, &err));
        char *own = NULL;
        size_t n_own = 0;
        assert_ok(sl_state_load(engine, path, LENGTH + AFTER, &back, &own, &n_own, &err));
        assert_int_equal(n_own, 12);
        assert_memory_equal(own, "my own\0bytes", 13);
        sl_free(own);
        assert_int_equal(sl_state_length(back), lengths[i]);
        assert_ok(go_on(engine, back, loaded, &err));
        assert_memory_equal(loaded, expected, sizeof expected);
        memset(loaded, 0, sizeof loaded);
        in_another_process(path, loaded);
        assert_memory_equal(loaded, expected, sizeof expected);
        /* Saving what was loaded gives the same file. */
        sl_state_free(back);
        sl_state_free(state);
    }
    sl_engine_close(engine);
}

static void test_saving_is_deterministic(void **state_)
{
    (void)state_;
    sl_error err;
    sl_engine *engine = open_engine(small);
    sl_state *state = state_of(engine, 77), *back = NULL;
    assert_ok(sl_state_save(state, path, NULL, 0, &err));
    assert_ok(sl_state_load(engine, path, 0, &back, NULL, NULL, &err));
    assert_int_equal(sl_state_context(back), 77);
    sl_gguf_build a, b;
    sl_gguf_build_read(&a, path);
    assert_ok(sl_state_save(back, path, NULL, 0, &err));
    sl_gguf_build_read(&b, path);
    assert_int_equal(a.n_bytes, b.n_bytes);
    assert_memory_equal(a.data, b.data, a.n_bytes);
    sl_gguf_build_free(&a);
    sl_gguf_build_free(&b);
    sl_state_free(back);
    sl_state_free(state);
    sl_engine_close(engine);
}

/* ---- damage ---- */

static void must_refuse(sl_engine *engine, sl_status status, const char *part)
{
    sl_error err;
    sl_state *state = NULL;
    assert_refused(sl_state_load(engine, path, 0, &state, NULL, NULL, &err), status, part);
    assert_non_null(strstr(err.message, path));
}

/* The table entry of a section; NULL when the file has none. */
static uint8_t *entry_of(const sl_gguf_build *f, uint32_t wanted)
{
    uint32_t n_sections, kind;
    memcpy(&n_sections, f->data + 32, 4);
    for (uint32_t i = 0; i < n_sections; i++) {
        uint8_t *entry = f->data + 64 + 40 * i;
        memcpy(&kind, entry, 4);
        if (kind == wanted)
            return entry;
    }
    return NULL;
}

static void test_every_flipped_byte_and_truncation(void **state_)
{
    (void)state_;
    sl_error err;
    sl_engine *engine = open_engine(small);
    sl_state *state = state_of(engine, 3), *back = NULL;
    assert_ok(sl_state_save(state, path, "note", 4, &err));
    sl_gguf_build file;
    sl_gguf_build_read(&file, path);
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    size_t step = sl_test_shortened() ? 37 : 1;
    for (size_t i = 0; i < file.n_bytes; i += step) {
        uint8_t flipped = file.data[i] ^ (uint8_t)(1u << i % 8);
        assert_int_equal(pwrite(fd, &flipped, 1, (off_t)i), 1);
        if (sl_state_load(engine, path, 0, &back, NULL, NULL, &err) == SL_OK)
            fail_msg("a flipped byte at %zu was not seen", i);
        assert_int_equal(pwrite(fd, &file.data[i], 1, (off_t)i), 1);
    }
    assert_ok(sl_state_load(engine, path, 0, &back, NULL, NULL, &err));
    sl_state_free(back);
    for (size_t n = file.n_bytes - 1; n > 0; n--) {
        assert_int_equal(ftruncate(fd, (off_t)n), 0);
        if (sl_state_load(engine, path, 0, &back, NULL, NULL, &err) == SL_OK)
            fail_msg("a file cut to %zu bytes was not seen", n);
    }
    print_message("%zu bytes, each flipped and each cut\n", file.n_bytes);
    close(fd);
    sl_gguf_build_free(&file);
    sl_state_free(state);
    sl_engine_close(engine);
}

/* Here and there in a longer state, which has every kind of section. */
static void test_flips_in_every_section(void **state_)
{
    (void)state_;
    sl_error err;
    sl_engine *engine = open_engine(small);
    sl_state *state = state_of(engine, 2 * SL_GDN_CHUNK + 1), *back = NULL;
    assert_ok(sl_state_save(state, path, "note", 4, &err));
    sl_gguf_build file;
    sl_gguf_build_read(&file, path);
    assert_non_null(entry_of(&file, WINDOW_ROWS));
    assert_non_null(entry_of(&file, PREVIOUS));
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    for (size_t i = 0; i < file.n_bytes; i += file.n_bytes / 400 | 1) {
        uint8_t flipped = file.data[i] ^ (uint8_t)(1u << i % 8);
        assert_int_equal(pwrite(fd, &flipped, 1, (off_t)i), 1);
        if (sl_state_load(engine, path, 0, &back, NULL, NULL, &err) == SL_OK)
            fail_msg("a flipped byte at %zu was not seen", i);
        assert_int_equal(pwrite(fd, &file.data[i], 1, (off_t)i), 1);
    }
    assert_ok(sl_state_load(engine, path, 0, &back, NULL, NULL, &err));
    sl_state_free(back);
    close(fd);
    sl_gguf_build_free(&file);
    sl_state_free(state);
    sl_engine_close(engine);
}

static void write_back(const sl_gguf_build *f)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(f->data, 1, f->n_bytes, file), f->n_bytes);
    fclose(file);
}

/* Makes the checksums of a changed file right again. */
static void rehash(sl_gguf_build *f)
{
    uint32_t n_sections;
    memcpy(&n_sections, f->data + 32, 4);
    for (uint32_t i = 0; i < n_sections; i++) {
        uint8_t *entry = f->data + 64 + 40 * i;
        uint64_t at, size, hash;
        memcpy(&at, entry + 8, 8);
        memcpy(&size, entry + 16, 8);
        if (at <= f->n_bytes && size <= f->n_bytes - at) {
            hash = XXH3_64bits(f->data + at, size);
            memcpy(entry + 24, &hash, 8);
        }
    }
    uint64_t hash = XXH3_64bits(f->data + 64, 40 * (size_t)n_sections);
    memcpy(f->data + 48, &hash, 8);
    hash = XXH3_64bits(f->data, 56);
    memcpy(f->data + 56, &hash, 8);
}

/* Sets bytes of a good file, with checksums that are right. */
static void patch(sl_engine *engine, size_t offset, const void *bytes, size_t n)
{
    sl_error err;
    sl_state *state = state_of(engine, 40);
    assert_ok(sl_state_save(state, path, NULL, 0, &err));
    sl_state_free(state);
    sl_gguf_build f;
    sl_gguf_build_read(&f, path);
    memcpy(f.data + offset, bytes, n);
    rehash(&f);
    write_back(&f);
    sl_gguf_build_free(&f);
}

static void patch_u32(sl_engine *engine, size_t offset, uint32_t value)
{
    patch(engine, offset, &value, 4);
}

/* Where the table entry of a section of the file to be patched is. */
static size_t place_of(sl_engine *engine, uint32_t kind)
{
    const uint32_t same = 1;
    patch(engine, 8, &same, 2);
    sl_gguf_build f;
    sl_gguf_build_read(&f, path);
    const uint8_t *entry = entry_of(&f, kind);
    assert_non_null(entry);
    const size_t place = (size_t)(entry - f.data);
    sl_gguf_build_free(&f);
    return place;
}

static void test_other_versions_and_lies(void **state_)
{
    (void)state_;
    sl_engine *engine = open_engine(small);
    const size_t last = place_of(engine, KV);
    sl_gguf_build f;
    uint64_t model;
    sl_gguf_build_read(&f, path);
    memcpy(&model, f.data + 64 + 8, 8); /* the model section comes first */
    sl_gguf_build_free(&f);
    patch_u32(engine, 8, 2);
    must_refuse(engine, SL_ERR_UNSUPPORTED, "state format version 2.0, this program reads 1.x");
    patch_u32(engine, 8, 1 | 9 << 16); /* a newer minor version is fine */
    sl_error err;
    sl_state *back = NULL;
    assert_ok(sl_state_load(engine, path, 0, &back, NULL, NULL, &err));
    sl_state_free(back);
    patch_u32(engine, 16, 4);
    must_refuse(engine, SL_ERR_UNSUPPORTED, "needs features (0x4)");
    patch_u32(engine, 24, 4); /* one that may be ignored */
    assert_ok(sl_state_load(engine, path, 0, &back, NULL, NULL, &err));
    sl_state_free(back);
    patch_u32(engine, last, 99);
    must_refuse(engine, SL_ERR_UNSUPPORTED, "needs a section (99)");
    patch_u32(engine, last, TAPE);
    must_refuse(engine, SL_ERR_FORMAT, "its tape section twice");
    const uint64_t huge = UINT64_MAX - 63;
    patch(engine, last + 8, &huge, 8);
    must_refuse(engine, SL_ERR_FORMAT, "reaches beyond the file");
    patch_u32(engine, model + 16, 7);
    must_refuse(engine, SL_ERR_UNSUPPORTED, "arithmetic 7");
    patch_u32(engine, model + 20, 24);
    must_refuse(engine, SL_ERR_UNSUPPORTED, "chunks of 24 tokens");
    patch_u32(engine, model + 28, 1);
    must_refuse(engine, SL_ERR_UNSUPPORTED, "KV in float32");
    patch_u32(engine, model + 32, 99);
    must_refuse(engine, SL_ERR_FORMAT, "contradicts itself");
    patch_u32(engine, model + 68, 41);
    must_refuse(engine, SL_ERR_FORMAT, "the tokens section has 160 bytes, expected 164");
    patch_u32(engine, model + 72, 41);
    must_refuse(engine, SL_ERR_FORMAT, "contradicts itself");
    patch_u32(engine, model + 128 + 8, 512); /* the tokens come next */
    must_refuse(engine, SL_ERR_FORMAT, "token 2 is 512");
    patch_u32(engine, 0, 0);
    must_refuse(engine, SL_ERR_FORMAT, "not a state file");
    patch_u32(engine, 8, 1);
    assert_refused(sl_state_load(engine, path, 39, &back, NULL, NULL, &err), SL_ERR_CONTEXT,
                   "has 40 tokens, the context is 39");
    sl_engine_close(engine);
}

/* A section of a later version that may be skipped: it is, but damage in it is seen. */
static void test_sections_that_may_be_skipped(void **state_)
{
    (void)state_;
    sl_error err;
    sl_engine *engine = open_engine(small);
    sl_state *state = state_of(engine, 40), *back = NULL;
    assert_ok(sl_state_save(state, path, "note", 4, &err));
    sl_gguf_build f;
    sl_gguf_build_read(&f, path);
    const uint32_t later = 77;
    uint64_t at;
    uint8_t *own = entry_of(&f, OWN);
    memcpy(own, &later, 4);
    memcpy(&at, own + 8, 8);
    rehash(&f);
    write_back(&f);
    char *bytes = NULL;
    size_t n_bytes = 1;
    assert_ok(sl_state_load(engine, path, 0, &back, &bytes, &n_bytes, &err));
    assert_int_equal(n_bytes, 0);
    assert_string_equal(bytes, "");
    sl_free(bytes);
    sl_state_free(back);
    f.data[at] ^= 1;
    write_back(&f);
    must_refuse(engine, SL_ERR_FORMAT, "the unknown section is damaged");
    sl_gguf_build_free(&f);
    sl_state_free(state);
    sl_engine_close(engine);
}

/* ---- going back ---- */

/* Makes the file at `path` one of version 1.0: without what came later, which lies at its end. */
static void make_it_old(void)
{
    sl_gguf_build f;
    sl_gguf_build_read(&f, path);
    uint32_t n_sections;
    memcpy(&n_sections, f.data + 32, 4);
    for (uint32_t kind = PREVIOUS; kind >= WINDOW_ROWS; kind--) {
        uint8_t *entry = entry_of(&f, kind);
        if (!entry)
            continue;
        assert_ptr_equal(entry, f.data + 64 + 40 * --n_sections);
        uint64_t at;
        memcpy(&at, entry + 8, 8);
        f.n_bytes = at;
        memset(entry, 0, 40);
        memcpy(f.data + 32, &n_sections, 4);
    }
    const uint64_t n_bytes = f.n_bytes;
    memcpy(f.data + 40, &n_bytes, 8);
    memset(f.data + 10, 0, 2);
    rehash(&f);
    write_back(&f);
    sl_gguf_build_free(&f);
}

/* Adds a section of zeros at the end of the file at `path`, an old one. */
static void append_section(uint32_t kind, uint64_t n_bytes)
{
    sl_gguf_build f;
    sl_gguf_build_read(&f, path);
    const uint64_t at = f.n_bytes, size = (at + n_bytes + 63) / 64 * 64;
    f.data = realloc(f.data, size);
    assert_non_null(f.data);
    memset(f.data + at, 0, size - at);
    f.n_bytes = size;
    uint32_t n_sections;
    memcpy(&n_sections, f.data + 32, 4);
    uint8_t *entry = f.data + 64 + 40 * n_sections++;
    memcpy(entry, &kind, 4);
    memcpy(entry + 8, &at, 8);
    memcpy(entry + 16, &n_bytes, 8);
    memcpy(f.data + 32, &n_sections, 4);
    memcpy(f.data + 40, &size, 8);
    rehash(&f);
    write_back(&f);
    sl_gguf_build_free(&f);
}

static void test_windows_that_lie(void **state_)
{
    (void)state_;
    sl_error err;
    sl_engine *engine = open_engine(small);
    sl_state *state = state_of(engine, 2 * SL_GDN_CHUNK), *back;
    assert_ok(sl_state_save(state, path, NULL, 0, &err));
    sl_state_free(state);
    sl_gguf_build f;
    uint64_t row;
    sl_gguf_build_read(&f, path);
    memcpy(&row, entry_of(&f, CONV) + 16, 8);
    row /= 3;
    sl_gguf_build_free(&f);
    make_it_old();
    append_section(WINDOW_ROWS, row * SL_GDN_CHUNK);
    assert_ok(sl_state_load(engine, path, 0, &back, NULL, NULL, &err));
    sl_state_free(back);
    make_it_old();
    append_section(WINDOW_ROWS, row * (SL_GDN_CHUNK + 1));
    must_refuse(engine, SL_ERR_FORMAT, "the window section has");
    make_it_old();
    append_section(WINDOW_ROWS, row + 4);
    must_refuse(engine, SL_ERR_FORMAT, "the window section has");
    make_it_old();
    append_section(PREVIOUS, 1000);
    must_refuse(engine, SL_ERR_FORMAT, "the previous chunk section has 1000 bytes, expected");

    state = state_of(engine, 7);
    assert_ok(sl_state_save(state, path, NULL, 0, &err));
    sl_state_free(state);
    make_it_old();
    append_section(WINDOW_ROWS, row * 5);
    must_refuse(engine, SL_ERR_FORMAT, "the window section has 5 rows");
    make_it_old();
    append_section(PREVIOUS, 1000);
    must_refuse(engine, SL_ERR_FORMAT, "the previous chunk section is out of place");
    sl_engine_close(engine);
}

/* What a loaded state takes back without recomputing, and its logits from there on. */
static sl_reuse_report back_by(sl_engine *engine, uint32_t n, float *logits)
{
    sl_error err;
    sl_state *state;
    sl_reuse_report report;
    assert_ok(sl_state_load(engine, path, LENGTH + AFTER, &state, NULL, NULL, &err));
    assert_ok(sl_state_rewind(state, sl_state_length(state) - n, &report, &err));
    assert_ok(go_on(engine, state, logits, &err));
    sl_state_free(state);
    return report;
}

/* A loaded state goes back as far as the saved one, over a border of a chunk too. */
static void test_going_back_after_loading(void **state_)
{
    (void)state_;
    static float expected[AFTER * VOCAB], loaded[AFTER * VOCAB];
    const uint32_t C = SL_GDN_CHUNK;
    const uint32_t lengths[] = {2, 4, C - 1, C, C + 1, 2 * C - 1, 2 * C, 2 * C + 5, 4 * C, 200};
    static const uint32_t steps[] = {1, 2, 7, WINDOW - 1, WINDOW, WINDOW + 1};
    sl_error err;
    sl_engine *engine = open_engine(small);
    for (size_t i = 0; i < SL_COUNTOF(lengths); i++) {
        for (size_t k = 0; k < SL_COUNTOF(steps) && steps[k] < lengths[i]; k++) {
            sl_reuse_report live;
            sl_state *state = state_of(engine, lengths[i]);
            assert_ok(sl_state_save(state, path, NULL, 0, &err));
            assert_ok(sl_state_rewind(state, lengths[i] - steps[k], &live, &err));
            assert_ok(go_on(engine, state, expected, &err));
            sl_state_free(state);
            assert_int_equal(live.recomputed == 0, steps[k] <= WINDOW || lengths[i] < WINDOW + 3);
            const sl_reuse_report report = back_by(engine, steps[k], loaded);
            assert_int_equal(report.source, live.source);
            assert_int_equal(report.recomputed, live.recomputed);
            assert_memory_equal(loaded, expected, sizeof expected);
            make_it_old();
            back_by(engine, steps[k], loaded);
            assert_memory_equal(loaded, expected, sizeof expected);
        }
    }
    sl_engine_close(engine);
}

/* The tokens of the state once more, as a conversation that goes on after a restart asks. */
static void test_the_same_tokens_after_loading(void **state_)
{
    (void)state_;
    int32_t tokens[LENGTH + AFTER];
    sl_error err;
    sl_engine *engine = open_engine(small);
    sl_state *state = state_of(engine, 200), *back;
    sl_reuse_report report;
    random_tokens(tokens);
    assert_ok(sl_state_save(state, path, NULL, 0, &err));
    assert_ok(sl_state_load(engine, path, LENGTH, &back, NULL, NULL, &err));
    assert_ok(sl_state_sync(back, tokens, 200, &report, &err));
    assert_int_equal(report.source, SL_REUSE_WINDOW);
    assert_int_equal(report.reused, 199);
    sl_state_free(back);
    sl_state_free(state);
    sl_engine_close(engine);
}

/* Of the rows that a larger window saved, a smaller one takes what it can hold. */
static void test_another_window(void **state_)
{
    (void)state_;
    static float expected[AFTER * VOCAB], loaded[AFTER * VOCAB];
    sl_error err;
    sl_engine *engine = open_engine(small);
    sl_state *state = state_of(engine, 200);
    assert_ok(sl_state_save(state, path, NULL, 0, &err));
    assert_ok(go_on(engine, state, expected, &err));
    sl_state_free(state);
    for (uint32_t window = 0; window <= SL_GDN_CHUNK; window += SL_GDN_CHUNK / 8) {
        sl_engine *other;
        sl_engine_params params = sl_engine_params_default();
        params.n_threads = 1;
        params.checkpoint_budget = 0;
        params.rewind_window = window;
        assert_ok(sl_engine_open(small, &params, &other, &err));
        const uint32_t free = window < WINDOW ? window : WINDOW;
        assert_ok(sl_state_load(other, path, LENGTH + AFTER, &state, NULL, NULL, &err));
        assert_ok(go_on(other, state, loaded, &err));
        assert_memory_equal(loaded, expected, sizeof expected);
        sl_state_free(state);
        assert_int_equal(back_by(other, free, loaded).recomputed, 0);
        assert_int_equal(back_by(other, free + 1, loaded).recomputed, 199 - free);
        sl_engine_close(other);
    }
    sl_engine_close(engine);
}

/* The same shapes, one byte of one weight different. */
static void test_another_model_is_refused(void **state_)
{
    (void)state_;
    sl_error err;
    sl_engine *engine = open_engine(small);
    sl_state *state = state_of(engine, 10);
    assert_ok(sl_state_save(state, path, NULL, 0, &err));
    sl_gguf_build model;
    sl_gguf_build_read(&model, small);
    model.data[model.n_bytes - 100] ^= 1;
    char changed[80];
    snprintf(changed, sizeof changed, "%s/changed.gguf", folder);
    FILE *file = fopen(changed, "wb");
    assert_int_equal(fwrite(model.data, 1, model.n_bytes, file), model.n_bytes);
    fclose(file);
    sl_gguf_build_free(&model);
    sl_engine *other = open_engine(changed);
    must_refuse(other, SL_ERR_UNSUPPORTED, "belongs to another model than");
    sl_engine_close(other);
    unlink(changed);
    sl_state_free(state);
    sl_engine_close(engine);
}

/* ---- interruptions ---- */

static void remove_parts(void)
{
    char command[128];
    snprintf(command, sizeof command, "rm -f %s/*.part", folder);
    assert_int_equal(system(command), 0);
}

static void test_kill_while_saving(void **state_)
{
    (void)state_;
    sl_error err;
    sl_engine *engine = open_engine(small);
    sl_state *one = state_of(engine, 10), *two = state_of(engine, 200), *back = NULL;
    assert_ok(sl_state_save(one, path, NULL, 0, &err));
    sl_test_rng rng = sl_test_rng_of(9);
    size_t of_one = 0, kills = sl_test_shortened() ? 8 : 50;
    for (size_t i = 0; i < kills; i++) {
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            for (;;) {
                sl_state_save(two, path, NULL, 0, NULL);
                sl_state_save(one, path, NULL, 0, NULL);
            }
        }
        usleep(200 + sl_test_rng_below(&rng, 20000));
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
        assert_ok(sl_state_load(engine, path, 0, &back, NULL, NULL, &err));
        assert_true(sl_state_length(back) == 10 || sl_state_length(back) == 200);
        of_one += sl_state_length(back) == 10;
        sl_state_free(back);
        remove_parts();
    }
    print_message("%zu kills, %zu times the shorter state\n", kills, of_one);
    sl_state_free(one);
    sl_state_free(two);
    sl_engine_close(engine);
}

static void test_full_disk_leaves_the_old_file(void **state_)
{
    (void)state_;
    sl_error err;
    sl_engine *engine = open_engine(small);
    sl_state *one = state_of(engine, 10), *two = state_of(engine, 200), *back = NULL;
    assert_ok(sl_state_save(one, path, NULL, 0, &err));
    struct rlimit old, low;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    for (rlim_t limit = 0; limit < 600000; limit += 20011) {
        low = (struct rlimit){limit, old.rlim_max};
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &low), 0);
        sl_status status = sl_state_save(two, path, NULL, 0, &err);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
        if (status == SL_OK)
            break;
        assert_int_equal(status, SL_ERR_IO);
        assert_non_null(strstr(err.message, path));
        assert_ok(sl_state_load(engine, path, 0, &back, NULL, NULL, &err));
        assert_int_equal(sl_state_length(back), 10);
        sl_state_free(back);
    }
    signal(SIGXFSZ, handler);
    sl_state_free(one);
    sl_state_free(two);
    sl_engine_close(engine);
}

static void test_every_allocation_may_fail(void **state_)
{
    (void)state_;
    sl_error err;
    sl_engine *engine = open_engine(small);
    sl_state *state = state_of(engine, 50), *back = NULL;
    assert_ok(sl_state_save(state, path, "x", 1, &err));
    for (int forever = 0; forever <= 1; forever++) {
        sl_status status = SL_ERR_MEMORY;
        for (uint64_t n = 1; status != SL_OK; n++) {
            assert_true(n < 1000);
            size_t blocks = sl_mem_get_stats().blocks;
            char *own = NULL;
            size_t n_own;
            sl_mem_fail_at(n, forever);
            status = sl_state_save(state, path, "x", 1, &err);
            if (status == SL_OK)
                status = sl_state_load(engine, path, 60, &back, &own, &n_own, &err);
            sl_mem_fail_at(0, false);
            assert_true(status == SL_OK || status == SL_ERR_MEMORY);
            if (status == SL_OK) {
                sl_state_free(back);
                sl_free(own);
            } else {
                /* Blocks that were acquired before the failure wait in the engine's pools. */
                assert_in_range(sl_mem_get_stats().blocks, blocks, blocks + 64);
            }
            remove_parts();
        }
    }
    sl_state_free(state);
    sl_engine_close(engine);
}

static int make_folder(void **state)
{
    (void)state;
    if (!mkdtemp(folder))
        return -1;
    snprintf(path, sizeof path, "%s/state", folder);
    return 0;
}

static int remove_folder(void **state)
{
    (void)state;
    remove_parts();
    unlink(path);
    return rmdir(folder);
}

int main(int argc, char **argv)
{
    snprintf(small, sizeof small, "%s", sl_model_path("rand-r1-q8_0.gguf"));
    if (argc == 3 && strcmp(argv[1], "load") == 0)
        return load_and_go_on(argv[2]);
    snprintf(own_program, sizeof own_program, "%s", argv[0]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_bits_after_loading),
        cmocka_unit_test(test_saving_is_deterministic),
        cmocka_unit_test(test_every_flipped_byte_and_truncation),
        cmocka_unit_test(test_flips_in_every_section),
        cmocka_unit_test(test_other_versions_and_lies),
        cmocka_unit_test(test_sections_that_may_be_skipped),
        cmocka_unit_test(test_windows_that_lie),
        cmocka_unit_test(test_going_back_after_loading),
        cmocka_unit_test(test_the_same_tokens_after_loading),
        cmocka_unit_test(test_another_window),
        cmocka_unit_test(test_another_model_is_refused),
        cmocka_unit_test(test_kill_while_saving),
        cmocka_unit_test(test_full_disk_leaves_the_old_file),
        cmocka_unit_test(test_every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
