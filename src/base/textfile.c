#include "base/textfile.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

bool sl_textfile_read(const char *path, char *text, size_t capacity)
{
    text[0] = '\0';
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    /* Such files may come in pieces, each a whole number of lines. */
    size_t n = 0;
    while (n < capacity - 1) {
        const ssize_t got = read(fd, text + n, capacity - 1 - n);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            break;
        n += (size_t)got;
    }
    close(fd);
    text[n] = '\0';
    return n > 0;
}

bool sl_textfile_read_line(const char *root, const char *name, char *text, size_t capacity)
{
    char path[1200];
    text[0] = '\0';
    const int n = snprintf(path, sizeof path, "%s/%s", root, name);
    if (n < 0 || (size_t)n >= sizeof path || !sl_textfile_read(path, text, capacity))
        return false;
    size_t end = strlen(text);
    while (end > 0 && isspace((unsigned char)text[end - 1]))
        end--;
    text[end] = '\0';
    return end > 0;
}

/* strtoull takes signs and wraps negative numbers around. */
static bool parse_number(const char *text, uint64_t *out)
{
    while (*text == ' ' || *text == '\t')
        text++;
    if (!isdigit((unsigned char)*text))
        return false;
    errno = 0;
    const unsigned long long value = strtoull(text, NULL, 10);
    if (errno != 0)
        return false;
    *out = value;
    return true;
}

bool sl_textfile_number(const char *root, const char *name, uint64_t *out)
{
    char text[64];
    return sl_textfile_read_line(root, name, text, sizeof text) && parse_number(text, out);
}

bool sl_textfile_find(const char *text, const char *key, uint64_t *out)
{
    const size_t n = strlen(key);
    for (const char *line = text; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, key, n) == 0)
            return parse_number(line + n, out);
    }
    return false;
}

void sl_textfile_field(const char *root, const char *name, const char *key, char *out,
                       size_t capacity)
{
    char text[16384];
    out[0] = '\0';
    if (!sl_textfile_read_line(root, name, text, sizeof text))
        return;
    const char *line = text;
    while (line && strncmp(line, key, strlen(key)) != 0) {
        line = strchr(line, '\n');
        line += line != NULL;
    }
    if (!line)
        return;
    line += strlen(key);
    line += strspn(line, " \t:");
    snprintf(out, capacity, "%.*s", (int)strcspn(line, "\n"), line);
}
