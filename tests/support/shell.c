#include "shell.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

enum { MAX_COMMAND = 16384 };

static int run(char **out, const char *format, va_list args)
{
    static const char both[] = " 2>&1";
    char command[MAX_COMMAND];
    command[0] = '{';
    command[1] = ' ';
    const int n = vsnprintf(command + 2, sizeof command - 16, format, args);
    assert_in_range(n, 1, MAX_COMMAND - 20);
    strcat(command, "\n}");
    strcat(command, both);
    fflush(NULL);
    FILE *pipe = popen(command, "r");
    assert_non_null(pipe);
    size_t n_bytes = 0, capacity = 1 << 16;
    char *text = malloc(capacity + 1);
    assert_non_null(text);
    for (size_t got; (got = fread(text + n_bytes, 1, capacity - n_bytes, pipe)) > 0;) {
        n_bytes += got;
        if (n_bytes == capacity) {
            capacity *= 2;
            text = realloc(text, capacity + 1);
            assert_non_null(text);
        }
    }
    text[n_bytes] = '\0';
    const int status = pclose(pipe);
    if (out)
        *out = text;
    else
        free(text);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

int sl_shell(char **out, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    const int status = run(out, format, args);
    va_end(args);
    return status;
}

char *sl_shell_ok(const char *format, ...)
{
    char *out;
    va_list args;
    va_start(args, format);
    const int status = run(&out, format, args);
    va_end(args);
    if (status != 0) {
        print_error("exit status %d:\n%s\n", status, out);
        fail();
    }
    return out;
}

bool sl_shell_has(const char *program)
{
    return sl_shell(NULL, "command -v %s", program) == 0;
}
