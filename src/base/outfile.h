/* A file being written that appears under its name only when it is complete: bytes go to a
 * temporary file in the same folder, which takes the name at the end. A reader, or a crash, sees
 * the old file or the new one, never a part. Devices and pipes are written directly. */
#ifndef SL_BASE_OUTFILE_H
#define SL_BASE_OUTFILE_H

#include "base/err.h"

typedef struct sl_outfile sl_outfile;

/* Errors: SL_ERR_IO naming the path, SL_ERR_MEMORY. */
sl_status sl_outfile_open(const char *path, sl_outfile **out, sl_error *err);

/* Appends. SL_ERR_IO naming the path ("No space left on device"). */
sl_status sl_outfile_write(sl_outfile *file, const void *bytes, size_t n, sl_error *err);

/* Brings everything to the disk, gives the file its name and releases it. On failure the temporary
 * file is gone and so is `file`. */
sl_status sl_outfile_commit(sl_outfile *file, sl_error *err);

/* Removes what was written and releases the file. file may be NULL. */
void sl_outfile_abandon(sl_outfile *file);

#endif
