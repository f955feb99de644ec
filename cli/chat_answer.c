/* Takes the tokens of an answer apart and puts the parts on the terminal. */
#include "chat_answer.h"

#include "base/str.h"
#include "out.h"

enum { ANSWER_LIMIT = 1 << 30 };

/* ---- showing ---- */

/* Text with the controls of a terminal made visible: C0 but line end and tab, DEL, C1. */
static sl_status append_plain(sl_buf *out, sl_str text, sl_error *err)
{
    for (size_t i = 0; i < text.n_bytes; i++) {
        const unsigned char c = (unsigned char)text.data[i];
        const unsigned char next = i + 1 < text.n_bytes ? (unsigned char)text.data[i + 1] : 0;
        if ((c < 0x20 && c != '\n' && c != '\t') || c == 0x7F) {
            SL_TRY(sl_buf_printf(out, err, "^%c", c ^ 0x40));
        } else if (c == 0xC2 && next >= 0x80 && next < 0xA0) {
            SL_TRY(sl_buf_printf(out, err, "^[%c", next - 0x40)); /* ESC [ for CSI, and so on */
            i++;
        } else {
            SL_TRY(sl_buf_append_char(out, (char)c, err));
        }
    }
    return SL_OK;
}

/* Begins to show another kind of text: on a new line, and dim when it is thinking. */
static void turn_to(sl_chat_answer *answer, sl_outparse_kind kind)
{
    if (answer->shown == (int)kind)
        return;
    if (answer->shown >= 0 && !answer->line_ended) {
        if (answer->shown == SL_OUTPARSE_THINKING)
            sl_err_write("\n", 1);
        else
            sl_out_write("\n", 1);
        answer->line_ended = true;
    }
    if (answer->shown == SL_OUTPARSE_THINKING)
        sl_err_dim(false);
    if (kind == SL_OUTPARSE_THINKING)
        sl_err_dim(true);
    answer->shown = (int)kind;
}

static sl_status show(sl_chat_answer *answer, sl_outparse_kind kind, sl_str text, sl_error *err)
{
    if (answer->quiet || text.n_bytes == 0)
        return SL_OK;
    turn_to(answer, kind);
    sl_buf_clear(&answer->piece);
    SL_TRY(append_plain(&answer->piece, text, err));
    if (kind == SL_OUTPARSE_THINKING)
        sl_err_write(answer->piece.data, answer->piece.n_bytes);
    else
        sl_out_write(answer->piece.data, answer->piece.n_bytes);
    answer->line_ended = text.data[text.n_bytes - 1] == '\n';
    return SL_OK;
}

/* ---- taking in ---- */

static sl_status keep_call(sl_chat_answer *answer, sl_error *err)
{
    const sl_buf *name = &answer->name, *arguments = &answer->arguments;
    json_t *call = json_pack("{s:s, s:{s:o, s:o}}", "type", "function", "function", "name",
                             sl_json_new_string(name->data, name->n_bytes), "arguments",
                             sl_json_new_string(arguments->data, arguments->n_bytes));
    if (!call || json_array_append_new(answer->calls, call) != 0)
        return sl_fail(err, SL_ERR_MEMORY, "out of memory for a call");
    return SL_OK;
}

sl_status sl_chat_answer_take(void *user, const sl_outparse_event *event, sl_error *err)
{
    sl_chat_answer *answer = user;
    switch (event->kind) {
    case SL_OUTPARSE_THINKING:
        SL_TRY(sl_buf_append(&answer->thinking, event->text.data, event->text.n_bytes, err));
        return show(answer, event->kind, event->text, err);
    case SL_OUTPARSE_CONTENT:
        SL_TRY(sl_buf_append(&answer->content, event->text.data, event->text.n_bytes, err));
        return show(answer, event->kind, event->text, err);
    case SL_OUTPARSE_CALL_BEGIN:
        sl_buf_clear(&answer->name);
        sl_buf_clear(&answer->arguments);
        SL_TRY(sl_buf_append(&answer->name, event->name.data, event->name.n_bytes, err));
        SL_TRY(show(answer, event->kind, sl_str_of("-> "), err));
        return show(answer, SL_OUTPARSE_CALL_BEGIN, event->name, err);
    case SL_OUTPARSE_CALL_ARGUMENTS:
        SL_TRY(sl_buf_append(&answer->arguments, event->text.data, event->text.n_bytes, err));
        return SL_OK;
    case SL_OUTPARSE_CALL_END:
        SL_TRY(keep_call(answer, err));
        SL_TRY(show(answer, SL_OUTPARSE_CALL_BEGIN, sl_str_of(" "), err));
        SL_TRY(show(answer, SL_OUTPARSE_CALL_BEGIN,
                    (sl_str){answer->arguments.data, answer->arguments.n_bytes}, err));
        return show(answer, SL_OUTPARSE_CALL_BEGIN, sl_str_of("\n"), err);
    }
    return SL_OK;
}

/* ---- life ---- */

sl_status sl_chat_answer_begin(sl_chat_answer *answer, bool quiet, sl_error *err)
{
    *answer = (sl_chat_answer){.quiet = quiet, .shown = -1};
    sl_buf *const bufs[] = {&answer->piece, &answer->thinking, &answer->content, &answer->name,
                            &answer->arguments};
    for (size_t i = 0; i < SL_COUNTOF(bufs); i++)
        sl_buf_init(bufs[i], SL_MEM_TEXT, ANSWER_LIMIT);
    answer->calls = json_array();
    return answer->calls ? SL_OK : sl_fail(err, SL_ERR_MEMORY, "out of memory for the answer");
}

void sl_chat_answer_free(sl_chat_answer *answer)
{
    if (!answer->calls)
        return;
    json_decref(answer->calls);
    sl_buf *const bufs[] = {&answer->piece, &answer->thinking, &answer->content, &answer->name,
                            &answer->arguments};
    for (size_t i = 0; i < SL_COUNTOF(bufs); i++)
        sl_buf_free(bufs[i]);
    *answer = (sl_chat_answer){0};
}

void sl_chat_answer_finish(sl_chat_answer *answer)
{
    if (!answer->quiet)
        turn_to(answer, SL_OUTPARSE_CALL_END); /* ends the line and the dim text */
}

sl_status sl_chat_answer_message(const sl_chat_answer *answer, bool cut, json_t **out,
                                 sl_error *err)
{
    const sl_buf *content = &answer->content, *thinking = &answer->thinking;
    json_t *message = json_pack("{s:s, s:o}", "role", "assistant", "content",
                                sl_json_new_string(content->data, content->n_bytes));
    bool ok = message != NULL;
    if (ok && thinking->n_bytes > 0)
        ok = json_object_set_new(message, "reasoning_content",
                                 sl_json_new_string(thinking->data, thinking->n_bytes)) == 0;
    if (ok && json_array_size(answer->calls) > 0)
        ok = json_object_set(message, "tool_calls", answer->calls) == 0;
    if (ok && cut)
        ok = json_object_set_new(message, "cut", json_true()) == 0;
    if (!ok) {
        json_decref(message);
        return sl_fail(err, SL_ERR_MEMORY, "out of memory for the answer");
    }
    *out = message;
    return SL_OK;
}
