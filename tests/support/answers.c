#include "answers.h"

#include <stdlib.h>

#include "base/utf8.h"
#include "support.h"

typedef struct gathered {
    sl_buf thinking, content, arguments;
    json_t *calls, *call;
    bool whole; /* the text came in one piece: every event is whole characters */
} gathered;

static json_t *names_of(unsigned flags)
{
    json_t *names = json_array();
    for (unsigned flag = 1; flag <= SL_OUTPARSE_THINKING_OPEN; flag <<= 1)
        if (flags & flag)
            json_array_append_new(names, json_string(sl_outparse_flag_name(flag)));
    return names;
}

static json_t *json_of(const sl_buf *text)
{
    json_t *value = json_stringn(text->data, text->n_bytes);
    assert_non_null(value);
    return value;
}

static sl_status gather(void *user, const sl_outparse_event *event, sl_error *err)
{
    gathered *g = user;
    bool of_call = event->kind >= SL_OUTPARSE_CALL_BEGIN;
    assert_int_equal(g->call != NULL, event->kind == SL_OUTPARSE_CALL_ARGUMENTS ||
                                          event->kind == SL_OUTPARSE_CALL_END);
    size_t n_calls = json_array_size(g->calls);
    if (of_call)
        assert_int_equal(event->index, g->call ? n_calls - 1 : n_calls);
    if (event->kind == SL_OUTPARSE_CALL_BEGIN) {
        assert_true(event->name.n_bytes > 0);
        g->call = json_object();
        json_object_set_new(g->call, "name", json_stringn(event->name.data, event->name.n_bytes));
        json_array_append_new(g->calls, g->call);
        sl_buf_clear(&g->arguments);
    } else if (event->kind == SL_OUTPARSE_CALL_END) {
        json_object_set_new(g->call, "arguments", json_of(&g->arguments));
        json_object_set_new(g->call, "flags", names_of(event->flags));
        g->call = NULL;
    } else {
        assert_true(event->text.n_bytes > 0);
        assert_true(!g->whole || sl_utf8_valid(event->text.data, event->text.n_bytes, NULL));
        sl_buf *to = event->kind == SL_OUTPARSE_THINKING  ? &g->thinking
                     : event->kind == SL_OUTPARSE_CONTENT ? &g->content
                                                          : &g->arguments;
        return sl_buf_append(to, event->text.data, event->text.n_bytes, err);
    }
    return SL_OK;
}

json_t *sl_test_answer(const char *text, size_t n, const sl_outparse_options *options,
                       sl_test_cuts cuts, void *user)
{
    sl_error err;
    gathered g = {.calls = json_array()};
    sl_buf_init(&g.thinking, SL_MEM_TEXT, SIZE_MAX / 2);
    sl_buf_init(&g.content, SL_MEM_TEXT, SIZE_MAX / 2);
    sl_buf_init(&g.arguments, SL_MEM_TEXT, SIZE_MAX / 2);
    sl_outparse *parser;
    assert_ok(sl_outparse_new(options, gather, &g, &parser, &err));
    for (size_t at = 0; at < n;) {
        size_t piece = cuts(user, n - at);
        assert_true(piece > 0 && piece <= n - at);
        g.whole = piece == n;
        /* A copy of its own, so that the sanitizer sees every read outside it. */
        char *copy = malloc(piece);
        memcpy(copy, text + at, piece);
        assert_ok(sl_outparse_push(parser, copy, piece, &err));
        free(copy);
        at += piece;
    }
    assert_ok(sl_outparse_finish(parser, &err));
    assert_null(g.call);
    assert_int_equal(sl_outparse_n_calls(parser), json_array_size(g.calls));
    json_t *answer = json_object();
    json_object_set_new(answer, "reasoning_content", json_of(&g.thinking));
    json_object_set_new(answer, "content", json_of(&g.content));
    json_object_set_new(answer, "tool_calls", g.calls);
    json_object_set_new(answer, "flags", names_of(sl_outparse_flags_of(parser)));
    sl_outparse_free(parser);
    sl_buf_free(&g.thinking);
    sl_buf_free(&g.content);
    sl_buf_free(&g.arguments);
    return answer;
}

static size_t cut_once(void *user, size_t n_left)
{
    size_t *at = user, piece = *at > 0 && *at < n_left ? *at : n_left;
    *at = 0;
    return piece;
}

json_t *sl_test_answer_whole(const char *text, size_t n, const sl_outparse_options *options)
{
    return sl_test_answer_cut_at(text, n, options, 0);
}

json_t *sl_test_answer_cut_at(const char *text, size_t n, const sl_outparse_options *options,
                              size_t at)
{
    return sl_test_answer(text, n, options, cut_once, &at);
}

typedef struct random_cuts {
    sl_test_rng rng;
    size_t most;
} random_cuts;

static size_t cut_randomly(void *user, size_t n_left)
{
    random_cuts *cuts = user;
    size_t piece = 1 + sl_test_rng_below(&cuts->rng, (uint32_t)cuts->most);
    return sl_min_size(piece, n_left);
}

json_t *sl_test_answer_in_pieces(const char *text, size_t n, const sl_outparse_options *options,
                                 size_t most, uint64_t seed)
{
    random_cuts cuts = {sl_test_rng_of(seed), most};
    return sl_test_answer(text, n, options, cut_randomly, &cuts);
}

void sl_test_same_answer(const char *name, const json_t *got, const json_t *wanted)
{
    if (json_equal(got, wanted))
        return;
    char *a = json_dumps(got, JSON_COMPACT | JSON_SORT_KEYS);
    char *b = json_dumps(wanted, JSON_COMPACT | JSON_SORT_KEYS);
    fail_msg("%s:\n  got    %s\n  wanted %s", name, a, b);
}
