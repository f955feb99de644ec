/* Reads prompts. Pipes and devices are as good as files here, so nothing is mapped. */
#include "prompt.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "base/utf8.h"
#include "interrupt.h"
#include "out.h"

enum { PROMPT_LIMIT = 64 << 20, READ_PIECE = 1 << 16 };

sl_status sl_clean_utf8(const char *s, size_t n, sl_buf *out, size_t *n_replaced, sl_error *err)
{
    static const char replacement[3] = {'\xEF', '\xBF', '\xBD'};
    *n_replaced = 0;
    for (size_t i = 0; i < n;) {
        size_t n_valid = 0; /* bytes up to the next invalid sequence */
        if (sl_utf8_valid(s + i, n - i, &n_valid))
            return sl_buf_append(out, s + i, n - i, err);
        SL_TRY(sl_buf_append(out, s + i, n_valid, err));
        SL_TRY(sl_buf_append(out, replacement, sizeof replacement, err));
        uint32_t code;
        i += n_valid;
        i += sl_utf8_decode(s + i, n - i, &code);
        *n_replaced += 1;
    }
    return SL_OK;
}

void sl_tell_replaced(const char *what, size_t n_replaced)
{
    if (n_replaced > 0)
        sl_err_printf("sluice: %s is not valid UTF-8: %zu place%s read as U+FFFD\n", what,
                      n_replaced, n_replaced == 1 ? "" : "s");
}

static sl_status read_all(int fd, const char *name, sl_buf *bytes, sl_error *err)
{
    for (;;) {
        SL_TRY(sl_buf_reserve(bytes, READ_PIECE, err));
        const ssize_t n = read(fd, bytes->data + bytes->n_bytes, READ_PIECE);
        if (n == 0)
            return SL_OK;
        if (n < 0 && errno == EINTR && !sl_interrupted())
            continue;
        if (n < 0 && errno == EINTR)
            return sl_fail(err, SL_ERR_CANCELLED, "interrupted");
        if (n < 0)
            return sl_fail(err, SL_ERR_IO, "%s: %s", name, strerror(errno));
        bytes->n_bytes += (size_t)n;
        bytes->data[bytes->n_bytes] = '\0';
        if (bytes->n_bytes > PROMPT_LIMIT)
            return sl_fail(err, SL_ERR_LIMIT, "%s: the text is larger than %d MiB", name,
                           PROMPT_LIMIT >> 20);
    }
}

static sl_status read_file(const char *path, sl_buf *bytes, sl_error *err)
{
    if (strcmp(path, "-") == 0)
        return read_all(STDIN_FILENO, "standard input", bytes, err);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return sl_fail(err, SL_ERR_IO, "%s: %s", path, strerror(errno));
    const sl_status status = read_all(fd, path, bytes, err);
    close(fd);
    return status;
}

/* argument and file may be NULL; "-" is standard input in both. */
static sl_status read_parts(const char *argument, const char *file, sl_buf *text, sl_error *err)
{
    sl_buf bytes;
    sl_status status;
    sl_buf_init(text, SL_MEM_TEXT, (size_t)4 * PROMPT_LIMIT);
    sl_buf_init(&bytes, SL_MEM_TEXT, (size_t)PROMPT_LIMIT + 2 * READ_PIECE);
    if (argument && strcmp(argument, "-") == 0)
        SL_CHECK(read_file("-", &bytes, err));
    else if (argument)
        SL_CHECK(sl_buf_append_str(&bytes, argument, err));
    if (argument && file)
        SL_CHECK(sl_buf_append_str(&bytes, "\n\n", err));
    const size_t n_before = bytes.n_bytes;
    if (file)
        SL_CHECK(read_file(file, &bytes, err));
    if (argument && file && bytes.n_bytes == n_before)
        bytes.n_bytes -= 2; /* there is no second part */
    size_t n_replaced = 0;
    SL_CHECK(sl_clean_utf8(bytes.data, bytes.n_bytes, text, &n_replaced, err));
    sl_tell_replaced("the text", n_replaced);
done:
    sl_buf_free(&bytes);
    if (status != SL_OK)
        sl_buf_free(text);
    return status;
}

sl_status sl_prompt_read(const char *argument, const char *file, sl_buf *text, sl_error *err)
{
    return argument ? read_parts(argument, NULL, text, err)
                    : read_parts(NULL, file ? file : "-", text, err);
}

sl_status sl_prompt_read_parts(const char *argument, const char *file, sl_buf *text, sl_error *err)
{
    const bool stdin_is_first = argument && strcmp(argument, "-") == 0;
    if (!file && !stdin_is_first && sl_prompt_on_stdin())
        file = "-";
    return read_parts(argument, file, text, err);
}

sl_status sl_tools_read(const char *path, json_t **tools, sl_error *err)
{
    sl_buf text;
    SL_TRY(sl_prompt_read(NULL, path, &text, err));
    sl_status status =
        sl_json_parse(text.data, text.n_bytes, path, sl_json_limits_default(), tools, err);
    sl_buf_free(&text);
    if (status == SL_OK && !json_is_array(*tools)) {
        json_decref(*tools);
        *tools = NULL;
        status = sl_fail(err, SL_ERR_FORMAT, "%s: the tools are not a JSON array", path);
    }
    return status;
}

bool sl_prompt_on_stdin(void)
{
    const int flags = fcntl(STDIN_FILENO, F_GETFL);
    return flags >= 0 && (flags & O_ACCMODE) != O_WRONLY && isatty(STDIN_FILENO) != 1;
}
