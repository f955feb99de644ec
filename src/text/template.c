#include "text/template.h"

#include <string.h>

#include "base/utf8.h"
#include "text/template_run.h"

/* The compiled tree of the largest source stays below this. */
enum { MAX_COMPILED = 256 << 20 };

/* A copy with "\n" for "\r\n" and "\r", and without one newline at the end: what Jinja reads. */
static sl_status normalise_newlines(sl_template *compiled, const char *source, size_t n,
                                    sl_str *out, sl_error *err)
{
    char *text = sl_tmpl_arena_take(&compiled->arena, n);
    if (!text)
        return sl_fail(err, SL_ERR_MEMORY, "%s: out of memory for a template of %zu bytes",
                       compiled->name, n);
    size_t length = 0;
    for (size_t i = 0; i < n; i++) {
        if (source[i] == '\r' && i + 1 < n && source[i + 1] == '\n')
            continue;
        text[length++] = source[i] == '\r' ? '\n' : source[i];
    }
    if (length > 0 && text[length - 1] == '\n')
        length--;
    *out = (sl_str){text, length};
    return SL_OK;
}

sl_status sl_template_compile(const char *source, size_t n, const char *name, sl_template **out,
                              sl_error *err)
{
    *out = NULL;
    size_t bad;
    if (n > SL_TEMPLATE_MAX_SOURCE)
        return sl_fail(err, SL_ERR_LIMIT, "%s: a template of %zu bytes, more than %d", name, n,
                       SL_TEMPLATE_MAX_SOURCE);
    if (!sl_utf8_valid(source, n, &bad))
        return sl_fail(err, SL_ERR_FORMAT, "%s: byte %zu is not UTF-8", name, bad);
    sl_template *compiled = sl_alloc_zero(SL_MEM_TEXT, sizeof *compiled);
    if (!compiled)
        return sl_fail(err, SL_ERR_MEMORY, "%s: out of memory", name);
    sl_status status;
    sl_str text;
    sl_tmpl_arena_init(&compiled->arena, MAX_COMPILED);
    size_t n_name = strlen(name);
    char *copy = sl_tmpl_arena_take(&compiled->arena, n_name + 1);
    if (!copy) {
        status = sl_fail(err, SL_ERR_MEMORY, "%s: out of memory", name);
        goto done;
    }
    memcpy(copy, name, n_name + 1);
    compiled->name = copy;
    SL_CHECK(normalise_newlines(compiled, source, n, &text, err));
    SL_CHECK(sl_tmpl_parse(compiled, text, err));
    *out = compiled;
    return SL_OK;
done:
    sl_template_free(compiled);
    return status;
}

void sl_template_free(sl_template *compiled)
{
    if (!compiled)
        return;
    sl_tmpl_arena_free(&compiled->arena);
    sl_free(compiled);
}

void sl_marked_text_free(sl_marked_text *text)
{
    sl_buf_free(&text->text);
    sl_free(text->untrusted);
    text->untrusted = NULL;
    text->n_untrusted = 0;
}

static sl_status check_input(const sl_template *compiled, const sl_template_input *input,
                             sl_error *err)
{
    if (!json_is_array(input->messages))
        return sl_fail(err, SL_ERR_ARGUMENT, "%s: messages must be an array", compiled->name);
    if (input->variables && !json_is_object(input->variables))
        return sl_fail(err, SL_ERR_ARGUMENT, "%s: variables must be an object", compiled->name);
    return SL_OK;
}

static sl_status render(tmpl_run *run)
{
    const sl_template_input *input = run->input;
    tmpl_scope root = {NULL, NULL};
    SL_TRY(sl_tmpl_from_json(run, input->messages, true, &run->messages));
    if (input->tools)
        SL_TRY(sl_tmpl_from_json(run, input->tools, true, &run->tools));
    if (input->variables)
        SL_TRY(sl_tmpl_from_json(run, input->variables, false, &run->variables));
    run->scope = &root;
    return sl_tmpl_exec(run, run->compiled->body);
}

sl_status sl_template_render(const sl_template *compiled, const sl_template_input *input,
                             sl_marked_text *out, sl_error *err)
{
    *out = (sl_marked_text){.n_untrusted = 0};
    sl_buf_init(&out->text, SL_MEM_TEXT, SL_TEMPLATE_MAX_OUTPUT);
    SL_TRY(check_input(compiled, input, err));
    tmpl_run run = {.compiled = compiled, .input = input, .err = err, .line = 1};
    sl_status status;
    sl_tmpl_arena_init(&run.arena, SL_TEMPLATE_MAX_MEMORY);
    sl_buf_init(&run.text, SL_MEM_TEXT, SL_TEMPLATE_MAX_OUTPUT);
    run.args = sl_alloc_array(SL_MEM_TEXT, TMPL_MAX_ARGS_STACK, sizeof *run.args);
    if (!run.args) {
        status = sl_tmpl_fail(&run, SL_ERR_MEMORY, "out of memory");
        goto done;
    }
    SL_CHECK(render(&run));
    out->text = run.text;
    out->untrusted = run.ranges;
    out->n_untrusted = run.n_ranges;
    sl_buf_init(&run.text, SL_MEM_TEXT, SL_TEMPLATE_MAX_OUTPUT);
    run.ranges = NULL;
done:
    sl_buf_free(&run.text);
    sl_free(run.ranges);
    sl_free(run.args);
    sl_tmpl_arena_free(&run.arena);
    return status;
}
