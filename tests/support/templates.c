#include "templates.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "support.h"

json_t *sl_test_json_of(const char *text)
{
    char *copy = strdup(text);
    assert_non_null(copy);
    for (char *c = copy; *c; c++)
        *c = *c == '\'' ? '"' : *c;
    sl_error err;
    json_t *json;
    const sl_json_limits limits = sl_json_limits_default();
    if (sl_json_parse(copy, strlen(copy), copy, limits, &json, &err) != SL_OK)
        fail_msg("%s", err.message);
    free(copy);
    return json;
}

sl_status sl_test_render(const char *source, size_t n, const sl_template_input *input,
                         sl_marked_text *out, sl_error *err)
{
    sl_template *compiled;
    *out = (sl_marked_text){.n_untrusted = 0};
    sl_status status = sl_template_compile(source, n, "t", &compiled, err);
    if (status != SL_OK)
        return status;
    json_t *nothing = json_array();
    sl_template_input given = *input;
    if (!given.messages)
        given.messages = nothing;
    status = sl_template_render(compiled, &given, out, err);
    if (status != SL_OK)
        sl_marked_text_free(out);
    json_decref(nothing);
    sl_template_free(compiled);
    return status;
}

sl_status sl_test_render_json(const char *source, const char *messages, const char *variables,
                              sl_marked_text *out, sl_error *err)
{
    json_t *m = messages ? sl_test_json_of(messages) : NULL;
    json_t *v = variables ? sl_test_json_of(variables) : NULL;
    sl_template_input input = {.messages = m, .variables = v};
    sl_status status = sl_test_render(source, strlen(source), &input, out, err);
    json_decref(m);
    json_decref(v);
    return status;
}

char *sl_test_show_marks(const sl_marked_text *text)
{
    char *shown = malloc(text->text.n_bytes + 4 * text->n_untrusted + 1);
    assert_non_null(shown);
    size_t n = 0, at = 0;
    for (size_t i = 0; i < text->n_untrusted; i++) {
        sl_range range = text->untrusted[i];
        memcpy(shown + n, text->text.data + at, range.begin - at);
        n += range.begin - at;
        memcpy(shown + n, "\xC2\xAB", 2);
        memcpy(shown + n + 2, text->text.data + range.begin, range.end - range.begin);
        n += 2 + range.end - range.begin;
        memcpy(shown + n, "\xC2\xBB", 2);
        n += 2;
        at = range.end;
    }
    memcpy(shown + n, text->text.data + at, text->text.n_bytes - at);
    shown[n + text->text.n_bytes - at] = '\0';
    return shown;
}

void sl_test_check_marks(const sl_marked_text *text)
{
    size_t end = 0;
    for (size_t i = 0; i < text->n_untrusted; i++) {
        sl_range range = text->untrusted[i];
        assert_true(range.begin < range.end);
        assert_true(i == 0 || range.begin > end);
        assert_true(range.end <= text->text.n_bytes);
        end = range.end;
    }
}

/* Sanitizers need several times the stack. */
#if defined(__SANITIZE_ADDRESS__)
enum { STACK = 1 << 20 };
#else
enum { STACK = 64 << 10 };
#endif

void sl_test_on_small_stack(void *(*fn)(void *), void *arg)
{
    pthread_attr_t attributes;
    pthread_t thread;
    assert_int_equal(pthread_attr_init(&attributes), 0);
    assert_int_equal(pthread_attr_setstacksize(&attributes, STACK), 0);
    assert_int_equal(pthread_create(&thread, &attributes, fn, arg), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    pthread_attr_destroy(&attributes);
}
