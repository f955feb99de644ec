/* Writes the parts of an answer, or gathers them. */
#include "answer.h"

#include "out.h"

enum { ANSWER_LIMIT = 1 << 30 };

sl_status sl_answer_begin(sl_answer *answer, sl_answer_mode mode, sl_error *err)
{
    *answer = (sl_answer){.mode = mode};
    sl_buf *const bufs[] = {&answer->text, &answer->thinking_text, &answer->name,
                            &answer->arguments};
    for (size_t i = 0; i < SL_COUNTOF(bufs); i++)
        sl_buf_init(bufs[i], SL_MEM_TEXT, ANSWER_LIMIT);
    answer->calls = json_array();
    return answer->calls ? SL_OK : sl_fail(err, SL_ERR_MEMORY, "out of memory for the answer");
}

void sl_answer_free(sl_answer *answer)
{
    if (!answer->calls)
        return;
    sl_buf_free(&answer->text);
    sl_buf_free(&answer->thinking_text);
    sl_buf_free(&answer->name);
    sl_buf_free(&answer->arguments);
    json_decref(answer->calls);
    *answer = (sl_answer){0};
}

static sl_status keep_call(sl_answer *answer, sl_error *err)
{
    const sl_buf *name = &answer->name, *arguments = &answer->arguments;
    json_t *call = json_pack("{s:o, s:o}", "name", sl_json_new_string(name->data, name->n_bytes),
                             "arguments", sl_json_new_string(arguments->data, arguments->n_bytes));
    if (!call || json_array_append_new(answer->calls, call) != 0)
        return sl_fail(err, SL_ERR_MEMORY, "out of memory for a call");
    return SL_OK;
}

static sl_status collect(sl_answer *answer, const sl_outparse_event *event, sl_error *err)
{
    const sl_str text = event->text, name = event->name;
    switch (event->kind) {
    case SL_OUTPARSE_THINKING:
        return sl_buf_append(&answer->thinking_text, text.data, text.n_bytes, err);
    case SL_OUTPARSE_CONTENT:
        return sl_buf_append(&answer->text, text.data, text.n_bytes, err);
    case SL_OUTPARSE_CALL_BEGIN:
        sl_buf_clear(&answer->name);
        sl_buf_clear(&answer->arguments);
        return sl_buf_append(&answer->name, name.data, name.n_bytes, err);
    case SL_OUTPARSE_CALL_ARGUMENTS:
        return sl_buf_append(&answer->arguments, text.data, text.n_bytes, err);
    case SL_OUTPARSE_CALL_END:
        break;
    }
    return keep_call(answer, err);
}

static void write_out(sl_answer *answer, const char *s, size_t n)
{
    if (n == 0)
        return;
    sl_out_write(s, n);
    answer->last = s[n - 1];
}

/* Between thinking and answer. */
static void turn_to(sl_answer *answer, bool thinking)
{
    if (answer->thinking == thinking)
        return;
    if (answer->mode == SL_ANSWER_THINKING) {
        static const char opens[] = "<think>\n", closes[] = "\n</think>\n\n";
        if (thinking)
            write_out(answer, opens, sizeof opens - 1);
        else
            write_out(answer, closes, sizeof closes - 1);
    } else {
        sl_err_dim(thinking);
        if (!thinking)
            sl_err_write("\n\n", 2);
    }
    answer->thinking = thinking;
}

sl_status sl_answer_take(void *user, const sl_outparse_event *event, sl_error *err)
{
    sl_answer *answer = user;
    const bool thinking = event->kind == SL_OUTPARSE_THINKING;
    answer->thought = answer->thought || thinking;
    if (answer->mode == SL_ANSWER_COLLECT)
        return collect(answer, event, err);
    turn_to(answer, thinking);
    if (thinking && answer->mode == SL_ANSWER_PLAIN)
        sl_err_write(event->text.data, event->text.n_bytes);
    else
        write_out(answer, event->text.data, event->text.n_bytes);
    return SL_OK;
}

void sl_answer_finish(sl_answer *answer)
{
    if (answer->mode == SL_ANSWER_COLLECT)
        return;
    if (answer->thinking && answer->mode == SL_ANSWER_PLAIN) {
        sl_err_dim(false);
        sl_err_write("\n", 1);
    }
    if (answer->last != 0 && answer->last != '\n')
        sl_out_write("\n", 1);
}
