/* A read-only view of a whole file. The file may be truncated, replaced or lost under us: a page
 * that can no longer be read becomes zeros and the map is marked damaged, instead of the process
 * dying of SIGBUS. Whoever computed from the map asks sl_filemap_check before using the result. */
#ifndef SL_BASE_FILEMAP_H
#define SL_BASE_FILEMAP_H

#include "base/err.h"

typedef struct sl_filemap sl_filemap;

/* Maps the regular file at path. Errors: SL_ERR_IO (missing, a folder, a device, no permission,
 * empty), SL_ERR_MEMORY, SL_ERR_LIMIT (too many maps open). The message names the path. */
sl_status sl_filemap_open(const char *path, sl_filemap **out, sl_error *err);
void sl_filemap_close(sl_filemap *map);

const uint8_t *sl_filemap_data(const sl_filemap *map);
size_t sl_filemap_size(const sl_filemap *map);
const char *sl_filemap_path(const sl_filemap *map);

/* SL_ERR_IO when a read of the map hit bytes that are gone. Cheap: one atomic load. */
sl_status sl_filemap_check(const sl_filemap *map, sl_error *err);

/* The bytes data[0..n) of the map, if they are its, are not needed soon: whole pages among them
 * leave the process's memory and are read anew when they are touched. */
void sl_filemap_release(const sl_filemap *map, const uint8_t *data, size_t n);

/* Reads a small file whole (configuration, templates) into a NUL-terminated block to sl_free. */
sl_status sl_read_file(const char *path, size_t limit, char **text, size_t *n_bytes, sl_error *err);

#endif
