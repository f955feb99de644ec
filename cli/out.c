/* Owns the two standard streams of the program. Nothing else in cli/ writes to them. */
#include "out.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/clock.h"
#include "opts.h"

static struct {
    bool out_terminal, err_terminal, colour;
    bool failed;
} streams;

/* A standard stream that is closed would be the next file to be opened, and messages would end up
 * in that. On these, reading and writing fail as they do on a closed one. */
static void occupy_closed_streams(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF)
            (void)open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
    }
}

void sl_out_init(void)
{
    occupy_closed_streams();
    const char *no_color = getenv("NO_COLOR");
    const char *term = getenv("TERM");
    streams.out_terminal = isatty(STDOUT_FILENO) == 1;
    streams.err_terminal = isatty(STDERR_FILENO) == 1;
    streams.colour =
        streams.err_terminal && !(no_color && *no_color) && !(term && strcmp(term, "dumb") == 0);
    /* As errors of write, a closed pipe and a file at its size limit have a message. */
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
}

/* Writes all of it or returns the errno that stopped it. */
static int write_all(int fd, const char *bytes, size_t n)
{
    while (n > 0) {
        const ssize_t written = write(fd, bytes, n);
        if (written < 0 && errno == EINTR)
            continue;
        if (written < 0)
            return errno;
        bytes += written;
        n -= (size_t)written;
    }
    return 0;
}

bool sl_out_write(const void *bytes, size_t n)
{
    if (streams.failed)
        return false;
    const int error = write_all(STDOUT_FILENO, bytes, n);
    if (error == 0)
        return true;
    streams.failed = true;
    sl_failf("standard output: %s", strerror(error));
    return false;
}

bool sl_out_failed(void)
{
    return streams.failed;
}

bool sl_out_is_terminal(void)
{
    return streams.out_terminal;
}

bool sl_err_is_terminal(void)
{
    return streams.err_terminal;
}

void sl_err_write(const void *bytes, size_t n)
{
    (void)write_all(STDERR_FILENO, bytes, n);
}

void sl_err_dim(bool on)
{
    if (streams.colour)
        sl_err_write(on ? "\033[2m" : "\033[0m", 4);
}

static void write_formatted(const char *before, const char *format, va_list list, const char *after)
{
    char text[2048];
    int n = snprintf(text, sizeof text - 2, "%s", before);
    const int added = vsnprintf(text + n, sizeof text - 2 - (size_t)n, format, list);
    n = (int)strlen(text);
    if (added >= 0)
        n += snprintf(text + n, sizeof text - (size_t)n, "%s", after);
    sl_err_write(text, (size_t)n);
}

void sl_err_printf(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    write_formatted("", format, list, "");
    va_end(list);
}

int sl_failf(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    write_formatted("sluice: ", format, list, "\n");
    va_end(list);
    return SL_EXIT_FAILURE;
}

int sl_fail_with(const sl_error *err)
{
    return sl_failf("%s", err->message);
}

/* ---- progress ---- */

/* The width of the terminal. */
static size_t err_columns(void)
{
    struct winsize size;
    return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1 ? size.ws_col : 80;
}

static const uint64_t progress_delay_ns = 500000000;

void sl_progress_update(sl_progress *progress, size_t done, size_t total)
{
    if (!streams.err_terminal)
        return;
    const uint64_t now = sl_clock_ns();
    if (progress->start_ns == 0)
        progress->start_ns = now;
    if (now - progress->start_ns < progress_delay_ns)
        return;
    char text[160];
    const double seconds = (double)(now - progress->start_ns) / 1e9;
    const char *unit = progress->unit ? progress->unit : "tokens";
    int n = snprintf(text, sizeof text, "%s: %zu of %zu %s", progress->label, done, total, unit);
    if (done > 0 && n < (int)sizeof text)
        n +=
            snprintf(text + n, sizeof text - (size_t)n, ", %.3g %s/s, %.0f s left",
                     (double)done / seconds, unit, (double)(total - done) * seconds / (double)done);
    n = (int)sl_min_size((size_t)n, err_columns() - 1); /* a wrapped line could not be replaced */
    const int padding = progress->n_shown > n ? progress->n_shown - n : 0;
    sl_err_printf("\r%.*s%*s", n, text, padding, "");
    progress->n_shown = n;
}

void sl_progress_clear(sl_progress *progress)
{
    if (progress->n_shown > 0)
        sl_err_printf("\r%*s\r", progress->n_shown, "");
    progress->n_shown = 0;
}

int sl_json_finish(sl_json_out *json)
{
    if (json->status == SL_OK)
        json->status = sl_buf_append_char(&json->buf, '\n', &json->err);
    return sl_out_finish(&json->buf, json->status, &json->err);
}

int sl_out_finish(sl_buf *buf, sl_status status, const sl_error *err)
{
    int result = SL_EXIT_DONE;
    if (status != SL_OK)
        result = sl_fail_with(err);
    else if (!sl_out_write(buf->data, buf->n_bytes))
        result = SL_EXIT_FAILURE;
    sl_buf_free(buf);
    return result;
}
