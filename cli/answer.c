/* Splits generated tokens into thinking and answer, and writes both as whole characters. */
#include "answer.h"

#include <string.h>

#include "out.h"

enum { ANSWER_LIMIT = 1 << 30 };

bool sl_prompt_thinks(const sl_tokenizer *tokenizer, const sl_ids *prompt)
{
    const int32_t think = sl_tokenizer_find(tokenizer, "<think>");
    const int32_t end_think = sl_tokenizer_find(tokenizer, "</think>");
    for (size_t i = prompt->n; i > 0 && think >= 0; i--) {
        const int32_t id = prompt->ids[i - 1];
        if (id == think || id == end_think)
            return id == think;
    }
    return false;
}

void sl_answer_begin(sl_answer *answer, sl_answer_mode mode, bool split,
                     const sl_tokenizer *tokenizer, const sl_ids *prompt, const sl_stops *stops)
{
    *answer = (sl_answer){.mode = mode, .think = -1, .end_think = -1};
    answer->decoder = sl_decoder_of(tokenizer, true);
    sl_buf_init(&answer->piece, SL_MEM_TEXT, ANSWER_LIMIT);
    answer->stop = sl_stop_stream_of(stops);
    sl_buf_init(&answer->certain, SL_MEM_TEXT, ANSWER_LIMIT);
    sl_buf_init(&answer->text, SL_MEM_TEXT, ANSWER_LIMIT);
    sl_buf_init(&answer->thinking_text, SL_MEM_TEXT, ANSWER_LIMIT);
    if (!split)
        return;
    answer->think = sl_tokenizer_find(tokenizer, "<think>");
    answer->end_think = sl_tokenizer_find(tokenizer, "</think>");
    answer->thinking = sl_prompt_thinks(tokenizer, prompt);
    answer->thought = answer->thinking;
    if (answer->thinking && mode == SL_ANSWER_THINKING)
        sl_out_write("<think>\n", 8);
    else if (answer->thinking && mode == SL_ANSWER_PLAIN)
        sl_err_dim(true);
}

void sl_answer_free(sl_answer *answer)
{
    sl_buf_free(&answer->piece);
    sl_buf_free(&answer->certain);
    sl_buf_free(&answer->text);
    sl_buf_free(&answer->thinking_text);
}

static void write_out(sl_answer *answer, const char *s, size_t n)
{
    if (n == 0)
        return;
    sl_out_write(s, n);
    answer->last = s[n - 1];
}

/* Shows the part of the answer that the stop strings let through. */
static sl_status show_certain(sl_answer *answer, sl_error *err)
{
    const sl_buf *certain = &answer->certain;
    if (answer->mode == SL_ANSWER_COLLECT)
        return sl_buf_append(&answer->text, certain->data, certain->n_bytes, err);
    write_out(answer, certain->data, certain->n_bytes);
    return SL_OK;
}

/* Whole characters of the answer or of the thinking. */
static sl_status deliver(sl_answer *answer, const char *s, size_t n, sl_error *err)
{
    if (answer->thinking) {
        if (answer->mode == SL_ANSWER_COLLECT)
            return sl_buf_append(&answer->thinking_text, s, n, err);
        if (answer->mode == SL_ANSWER_PLAIN)
            sl_err_write(s, n);
        else
            write_out(answer, s, n);
        return SL_OK;
    }
    /* The line ends between </think> and the answer belong to neither. */
    if (answer->thought && !answer->begun) {
        size_t n_ends = 0;
        while (n_ends < n && s[n_ends] == '\n')
            n_ends++;
        if (answer->mode == SL_ANSWER_THINKING)
            write_out(answer, s, n_ends);
        s += n_ends;
        n -= n_ends;
    }
    answer->begun = answer->begun || n > 0;
    sl_buf_clear(&answer->certain);
    SL_TRY(sl_stop_push(&answer->stop, s, n, &answer->certain, err));
    return show_certain(answer, err);
}

static sl_status finish_character(sl_answer *answer, sl_error *err)
{
    sl_buf_clear(&answer->piece);
    SL_TRY(sl_decoder_flush(&answer->decoder, &answer->piece, err));
    return deliver(answer, answer->piece.data, answer->piece.n_bytes, err);
}

/* The tag itself is shown only where thinking is shown as part of the output. */
static sl_status switch_thinking(sl_answer *answer, bool on, sl_str tag, sl_error *err)
{
    SL_TRY(finish_character(answer, err));
    if (answer->mode == SL_ANSWER_THINKING)
        write_out(answer, tag.data, tag.n_bytes);
    else if (answer->mode == SL_ANSWER_PLAIN)
        sl_err_dim(on);
    if (answer->mode == SL_ANSWER_PLAIN && !on)
        sl_err_write("\n", 1);
    answer->thinking = on;
    answer->thought = true;
    return SL_OK;
}

sl_status sl_answer_push(sl_answer *answer, int32_t token, sl_error *err)
{
    const sl_str tag = sl_tokenizer_bytes(answer->decoder.tokenizer, token);
    if (answer->thinking && token == answer->end_think)
        return switch_thinking(answer, false, tag, err);
    if (token == answer->think && answer->think >= 0 && !answer->thought && !answer->begun)
        return switch_thinking(answer, true, tag, err);
    sl_buf_clear(&answer->piece);
    SL_TRY(sl_decoder_push(&answer->decoder, token, &answer->piece, err));
    return deliver(answer, answer->piece.data, answer->piece.n_bytes, err);
}

static sl_status take_token(void *user, int32_t token, bool *stop, sl_error *err)
{
    SL_TRY(sl_answer_push(user, token, err));
    *stop = sl_answer_stopped(user);
    return SL_OK;
}

sl_token_sink sl_answer_sink(sl_answer *answer)
{
    return (sl_token_sink){take_token, answer};
}

bool sl_answer_stopped(const sl_answer *answer)
{
    return answer->stop.found >= 0;
}

static void trim_line_ends(sl_buf *text)
{
    while (text->n_bytes > 0 && text->data[text->n_bytes - 1] == '\n')
        text->data[--text->n_bytes] = '\0';
}

sl_status sl_answer_finish(sl_answer *answer, sl_error *err)
{
    SL_TRY(finish_character(answer, err));
    sl_buf_clear(&answer->certain);
    SL_TRY(sl_stop_flush(&answer->stop, &answer->certain, err));
    SL_TRY(show_certain(answer, err));
    if (answer->thinking && answer->mode == SL_ANSWER_PLAIN) {
        sl_err_dim(false);
        sl_err_write("\n", 1);
    }
    trim_line_ends(&answer->thinking_text);
    if (answer->mode != SL_ANSWER_COLLECT && answer->last != 0 && answer->last != '\n')
        sl_out_write("\n", 1);
    return SL_OK;
}
