/* Owns the line editor. */
#include "chat_input.h"

#include <errno.h>
#include <histedit.h>
#include <langinfo.h>
#include <locale.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/select.h>
#include <unistd.h>
#include <wchar.h>

#include "base/utf8.h"
#include "chat_history.h"
#include "interrupt.h"
#include "out.h"
#include "terminal.h"

enum { MAX_PROMPT = 64, MAX_PASTE = 1 << 20 };

static const char paste_ends[] = "\033[201~";

struct sl_input {
    EditLine *editor;
    HistoryW *history;
    wchar_t prompt[MAX_PROMPT];
    bool interrupted;
};

/* ---- bytes ---- */

static const wchar_t *get_prompt(EditLine *editor)
{
    sl_input *input;
    el_wget(editor, EL_CLIENTDATA, &input);
    return input->prompt;
}

static void after_signal(EditLine *editor)
{
    if (sl_terminal_resized())
        el_resize(editor);
    if (sl_terminal_continued()) {
        el_wset(editor, EL_PREP_TERM, 0);
        el_wset(editor, EL_PREP_TERM, 1);
        sl_terminal_mark_pastes(true);
        el_wset(editor, EL_REFRESH);
    }
}

/* Waits for a byte. False: Ctrl-C, or the terminal is gone. Signals come only while it waits, so
 * that none is missed. */
static bool wait_for_byte(EditLine *editor)
{
    sigset_t watched, before;
    sigemptyset(&watched);
    sigaddset(&watched, SIGINT);
    sigaddset(&watched, SIGWINCH);
    sigaddset(&watched, SIGCONT);
    sigprocmask(SIG_BLOCK, &watched, &before);
    bool ready = false;
    while (!ready) {
        after_signal(editor);
        if (sl_interrupted())
            break;
        fd_set set;
        FD_ZERO(&set);
        FD_SET(STDIN_FILENO, &set);
        const int n = pselect(STDIN_FILENO + 1, &set, NULL, NULL, NULL, &before);
        if (n < 0 && errno != EINTR)
            break;
        ready = n > 0;
    }
    sigprocmask(SIG_SETMASK, &before, NULL);
    return ready;
}

/* The next byte, or -1. */
static int next_byte(EditLine *editor)
{
    unsigned char byte;
    if (!wait_for_byte(editor))
        return -1;
    return read(STDIN_FILENO, &byte, 1) == 1 ? byte : -1;
}

/* ---- pastes ---- */

/* Wide text on the heap (free), or NULL. */
static wchar_t *widen(const char *s, size_t n)
{
    wchar_t *wide = calloc(n + 1, sizeof *wide);
    size_t n_wide = 0;
    for (size_t i = 0; wide && i < n;) {
        uint32_t code;
        i += sl_utf8_decode(s + i, n - i, &code);
        wide[n_wide++] = (wchar_t)code;
    }
    return wide;
}

/* The line ends of terminals, "\r" or "\r\n", become '\n', other controls go; one at the end is not
 * part of it. */
static void clean_paste(sl_buf *text)
{
    size_t n = 0;
    char before = '\0';
    for (size_t i = 0; i < text->n_bytes; i++) {
        const char c = text->data[i];
        if (c == '\r' || (c == '\n' && before != '\r'))
            text->data[n++] = '\n';
        else if ((unsigned char)c >= 0x20 || c == '\t')
            text->data[n++] = c;
        before = c;
    }
    if (n > 0 && text->data[n - 1] == '\n')
        n--;
    text->n_bytes = n;
}

/* A command of the editor: puts into the line what comes after the mark of a paste. */
static unsigned char take_paste(EditLine *editor, wint_t key)
{
    (void)key;
    const size_t n_end = sizeof paste_ends - 1;
    sl_buf text;
    sl_buf_init(&text, SL_MEM_TEXT, MAX_PASTE);
    bool ended = false;
    while (!ended) {
        const int byte = next_byte(editor);
        if (byte < 0 || sl_buf_append_char(&text, (char)byte, NULL) != SL_OK)
            break;
        ended = text.n_bytes >= n_end &&
                memcmp(text.data + text.n_bytes - n_end, paste_ends, n_end) == 0;
    }
    text.n_bytes -= ended ? n_end : 0;
    clean_paste(&text);
    wchar_t *wide = widen(text.data, text.n_bytes);
    if (wide && *wide)
        el_winsertstr(editor, wide);
    free(wide);
    sl_buf_free(&text);
    return CC_REFRESH;
}

/* ---- characters ---- */

/* libedit asks for the next character. */
static int get_character(EditLine *editor, wchar_t *out)
{
    sl_input *input;
    el_wget(editor, EL_CLIENTDATA, &input);
    const int byte = next_byte(editor);
    if (byte < 0) {
        input->interrupted = sl_interrupted();
        return -1;
    }
    char bytes[4] = {(char)byte};
    const size_t n = byte >= 0xF0 ? 4 : byte >= 0xE0 ? 3 : byte >= 0xC2 ? 2 : 1;
    for (size_t i = 1; i < n; i++) {
        const int more = next_byte(editor);
        if (more < 0)
            return -1;
        bytes[i] = (char)more;
    }
    uint32_t code;
    sl_utf8_decode(bytes, n, &code);
    *out = (wchar_t)code;
    return 1;
}

/* ---- life ---- */

static void remember(void *user, const char *text)
{
    sl_input *input = user;
    HistEventW event;
    wchar_t *wide = widen(text, strlen(text));
    if (wide)
        history_w(input->history, &event, H_ENTER, wide);
    free(wide);
}

static void set_locale(void)
{
    setlocale(LC_CTYPE, "");
    if (strcmp(nl_langinfo(CODESET), "UTF-8") != 0)
        setlocale(LC_CTYPE, "C.UTF-8");
}

sl_input *sl_input_open(void)
{
    sl_input *input = sl_alloc_zero(SL_MEM_GENERAL, sizeof *input);
    if (!input)
        return NULL;
    set_locale();
    HistEventW event;
    input->history = history_winit();
    input->editor = el_init("sluice", stdin, stdout, stderr);
    if (!input->history || !input->editor) {
        sl_input_close(input);
        return NULL;
    }
    history_w(input->history, &event, H_SETSIZE, SL_HISTORY_LINES);
    history_w(input->history, &event, H_SETUNIQUE, 1);
    sl_history_load(remember, input);
    EditLine *editor = input->editor;
    el_wset(editor, EL_CLIENTDATA, input);
    el_wset(editor, EL_PROMPT, get_prompt);
    el_wset(editor, EL_GETCFN, get_character);
    el_wset(editor, EL_HIST, history_w, input->history);
    el_wset(editor, EL_EDITOR, L"emacs");
    /* Neither becomes the other while lines are edited: "\r\n" in a paste is one line end. */
    el_wset(editor, EL_SETTY, L"-d", L"-icrnl", L"-inlcr", NULL);
    el_wset(editor, EL_BIND, L"^R", L"em-inc-search-prev", NULL);
    el_wset(editor, EL_BIND, L"^W", L"ed-delete-prev-word", NULL);
    el_wset(editor, EL_ADDFN, L"sluice-paste", L"Take pasted text", take_paste);
    el_wset(editor, EL_BIND, L"\\e[200~", L"sluice-paste", NULL);
    el_source(editor, NULL); /* the user's ~/.editrc has the last word */
    return input;
}

void sl_input_close(sl_input *input)
{
    if (!input)
        return;
    if (input->editor)
        el_end(input->editor);
    if (input->history)
        history_wend(input->history);
    sl_free(input);
}

/* ---- reading ---- */

/* Appends wide[0..n) without a line end. */
static sl_status append_wide(sl_buf *text, const wchar_t *wide, size_t n)
{
    while (n > 0 && wide[n - 1] == L'\n')
        n--;
    for (size_t i = 0; i < n; i++) {
        char bytes[4];
        SL_TRY(sl_buf_append(text, bytes, sl_utf8_encode((uint32_t)wide[i], bytes), NULL));
    }
    return SL_OK;
}

/* Appends one line. */
static sl_input_result read_line(sl_input *input, const char *prompt, sl_buf *text)
{
    int n = 0;
    wchar_t *wide_prompt = widen(prompt, strlen(prompt));
    if (wide_prompt)
        wcsncpy(input->prompt, wide_prompt, MAX_PROMPT - 1);
    free(wide_prompt);
    input->interrupted = false;
    sl_interrupt_clear();
    /* Before the prompt is seen: what is typed at once is the editor's already. */
    el_wset(input->editor, EL_PREP_TERM, 1);
    sl_terminal_mark_pastes(true);
    const wchar_t *line = el_wgets(input->editor, &n);
    sl_terminal_mark_pastes(false);
    if (input->interrupted) {
        const LineInfoW *info = el_wline(input->editor);
        const bool empty = info->lastchar == info->buffer;
        sl_interrupt_clear();
        sl_out_write("^C\n", 3);
        return empty ? SL_INPUT_INTERRUPT : SL_INPUT_DROPPED;
    }
    if (!line || n <= 0) {
        sl_out_write("\n", 1);
        return SL_INPUT_END;
    }
    return append_wide(text, line, (size_t)n) == SL_OK ? SL_INPUT_TEXT : SL_INPUT_DROPPED;
}

static bool is_quotes(const char *line, size_t n)
{
    while (n > 0 && (line[n - 1] == ' ' || line[n - 1] == '\t'))
        n--;
    return n == 3 && memcmp(line, "\"\"\"", 3) == 0;
}

/* The lines after the first one, which is in *text. */
static sl_input_result read_more(sl_input *input, sl_buf *text)
{
    static const char more[] = "... ";
    const bool block = is_quotes(text->data, text->n_bytes);
    if (block)
        sl_buf_clear(text);
    sl_input_result result = SL_INPUT_TEXT;
    while (block || (text->n_bytes > 0 && text->data[text->n_bytes - 1] == '\\')) {
        if (!block)
            text->data[text->n_bytes - 1] = '\n';
        const size_t start = text->n_bytes;
        result = read_line(input, more, text);
        if (result != SL_INPUT_TEXT)
            return result == SL_INPUT_INTERRUPT ? SL_INPUT_DROPPED : result;
        if (block && is_quotes(text->data + start, text->n_bytes - start)) {
            text->n_bytes = start > 0 ? start - 1 : 0;
            text->data[text->n_bytes] = '\0';
            return SL_INPUT_BLOCK;
        }
        if (block && sl_buf_append_char(text, '\n', NULL) != SL_OK)
            return SL_INPUT_DROPPED;
    }
    return result;
}

sl_input_result sl_input_read(sl_input *input, const char *prompt, sl_buf *text)
{
    sl_buf_clear(text);
    sl_input_result result = read_line(input, prompt, text);
    if (result == SL_INPUT_TEXT)
        result = read_more(input, text);
    if ((result != SL_INPUT_TEXT && result != SL_INPUT_BLOCK) || text->n_bytes == 0)
        return result;
    if (!memchr(text->data, '\0', text->n_bytes)) {
        remember(input, text->data);
        sl_history_add(text->data);
    }
    return result;
}
