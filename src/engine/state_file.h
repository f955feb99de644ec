/* States on disk: one file holds one state, and goes on with the same bits in another process.
 *
 * docs/STATE-FORMAT.md has the table of bytes. Everything is verified before anything live is
 * touched: loading makes a new state or none. */
#ifndef SL_ENGINE_STATE_FILE_H
#define SL_ENGINE_STATE_FILE_H

#include "engine/state.h"

/* Writes the state, and n bytes of the caller's own (a conversation, sampler settings; may be
 * NULL), to path: complete or not at all, on the disk when the call returns. Errors:
 * SL_ERR_ARGUMENT (a failed state), SL_ERR_IO, SL_ERR_MEMORY. */
sl_status sl_state_save(sl_state *state, const char *path, const void *own, size_t n,
                        sl_error *err);

/* Reads a state into a new one of at least `context` tokens (0 = the length it was saved with plus
 * nothing). *own (may be NULL) receives the caller's bytes, NUL-terminated, to be sl_free'd.
 * Errors: SL_ERR_FORMAT (not a state file, damaged: names section and offset), SL_ERR_UNSUPPORTED
 * (a newer version or an unknown feature, by name; another model, arithmetic mode or chunk
 * constant), SL_ERR_CONTEXT, SL_ERR_IO, SL_ERR_MEMORY. */
sl_status sl_state_load(sl_engine *engine, const char *path, uint32_t context, sl_state **out,
                        char **own, size_t *n, sl_error *err);

#endif
