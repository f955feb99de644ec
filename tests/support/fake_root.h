/* A folder that stands for / in tests of what /proc, /sys and /dev tell. */
#ifndef SL_TESTS_FAKE_ROOT_H
#define SL_TESTS_FAKE_ROOT_H

#include "support.h"

/* An empty folder; the path is static, valid until the next call. sl_fake_root_remove takes it and
 * everything in it away. */
const char *sl_fake_root_create(void);
void sl_fake_root_remove(const char *root);

/* Writes root/name with the folders on the way to it. */
void sl_fake_root_file(const char *root, const char *name, const char *text);

#endif
