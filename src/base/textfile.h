/* Small text files that the kernel makes up, as under /proc and /sys. */
#ifndef SL_BASE_TEXTFILE_H
#define SL_BASE_TEXTFILE_H

#include "base/base.h"

/* The first capacity - 1 bytes of a file, NUL-terminated. False, and the empty text, when it is
 * empty or cannot be read. */
bool sl_textfile_read(const char *path, char *text, size_t capacity);

/* The same for the path root/name without the white space at its end. */
bool sl_textfile_read_line(const char *root, const char *name, char *text, size_t capacity);

/* The number at the beginning of root/name; false when there is none. */
bool sl_textfile_number(const char *root, const char *name, uint64_t *out);

/* The number behind "key" at the beginning of a line of `text`, as "MemTotal:   24683656 kB". */
bool sl_textfile_find(const char *text, const char *key, uint64_t *out);

/* The text behind "key" and a colon or white space, to the end of the line, in root/name; "" when
 * there is none. */
void sl_textfile_field(const char *root, const char *name, const char *key, char *out,
                       size_t capacity);

#endif
