/* Reads and extends the file of typed lines. */
#include "chat_history.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/filemap.h"
#include "base/outfile.h"

enum { HISTORY_LIMIT = 16 << 20, PATH_LIMIT = 4096 };

/* ---- where ---- */

static bool find_path(sl_buf *path)
{
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    sl_buf_init(path, SL_MEM_GENERAL, PATH_LIMIT);
    /* A relative path is to be ignored, says the XDG specification. */
    if (state && *state == '/')
        return sl_buf_printf(path, NULL, "%s/sluice/history", state) == SL_OK;
    return home && *home == '/' &&
           sl_buf_printf(path, NULL, "%s/.local/state/sluice/history", home) == SL_OK;
}

static void make_folders(const sl_buf *path)
{
    for (size_t i = 1; i < path->n_bytes; i++) {
        if (path->data[i] != '/')
            continue;
        path->data[i] = '\0';
        mkdir(path->data, 0700);
        path->data[i] = '/';
    }
}

/* ---- entries and lines ---- */

static sl_status append_line(sl_buf *out, const char *text)
{
    for (; *text; text++) {
        if (*text == '\n' || *text == '\\')
            SL_TRY(sl_buf_append_char(out, '\\', NULL));
        SL_TRY(sl_buf_append_char(out, (char)(*text == '\n' ? 'n' : *text), NULL));
    }
    return sl_buf_append_char(out, '\n', NULL);
}

static sl_status read_line(const char *line, size_t n, sl_buf *text)
{
    sl_buf_clear(text);
    for (size_t i = 0; i < n; i++) {
        const bool escaped = line[i] == '\\' && i + 1 < n;
        i += escaped;
        SL_TRY(sl_buf_append_char(text, (char)(escaped && line[i] == 'n' ? '\n' : line[i]), NULL));
    }
    return SL_OK;
}

/* ---- the file ---- */

static void replace_file(const char *path, const char *bytes, size_t n)
{
    sl_outfile *file;
    const mode_t before = umask(077);
    if (sl_outfile_open(path, &file, NULL) == SL_OK) {
        if (sl_outfile_write(file, bytes, n, NULL) == SL_OK)
            (void)sl_outfile_commit(file, NULL);
        else
            sl_outfile_abandon(file);
    }
    umask(before);
}

/* Where the newest entries begin. */
static size_t find_newest(const char *data, size_t n)
{
    size_t i = n, n_lines = 0;
    while (i > 0) {
        if (data[i - 1] == '\n' && ++n_lines > SL_HISTORY_LINES)
            break;
        i--;
    }
    return i;
}

static void give_entries(const char *data, size_t n, void (*take)(void *user, const char *text),
                         void *user)
{
    sl_buf text;
    sl_buf_init(&text, SL_MEM_TEXT, HISTORY_LIMIT);
    for (size_t i = 0; i < n;) {
        const char *end = memchr(data + i, '\n', n - i);
        const size_t n_line = end ? (size_t)(end - data) - i : n - i;
        if (n_line > 0 && read_line(data + i, n_line, &text) == SL_OK &&
            !memchr(text.data, '\0', text.n_bytes))
            take(user, text.data);
        i += n_line + 1;
    }
    sl_buf_free(&text);
}

void sl_history_load(void (*take)(void *user, const char *text), void *user)
{
    sl_buf path;
    char *data;
    size_t n;
    if (find_path(&path) && sl_read_file(path.data, HISTORY_LIMIT, &data, &n, NULL) == SL_OK &&
        n > 0) {
        const size_t newest = find_newest(data, n);
        give_entries(data + newest, n - newest, take, user);
        if (newest > 0)
            replace_file(path.data, data + newest, n - newest);
        sl_free(data);
    }
    sl_buf_free(&path);
}

void sl_history_add(const char *text)
{
    sl_buf path, line;
    sl_buf_init(&line, SL_MEM_TEXT, HISTORY_LIMIT);
    if (find_path(&path) && append_line(&line, text) == SL_OK) {
        make_folders(&path);
        /* One write: lines of chats that run at the same time stay whole. */
        const int fd = open(path.data, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
        if (fd >= 0) {
            const ssize_t written = write(fd, line.data, line.n_bytes);
            (void)written;
            close(fd);
        }
    }
    sl_buf_free(&line);
    sl_buf_free(&path);
}
