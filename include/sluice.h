/* sluice: inference for the Qwen3.5 / 3.6 / 3.8 hybrid models (gated DeltaNet + gated attention).
 *
 * The public header. It holds what every other part of the library shares with its users: the
 * version, the status codes and the error value. Functions that can fail return an sl_status and
 * take an optional sl_error that receives one sentence naming what was wrong (file, tensor, field,
 * offset where they apply). Nothing in the library exits, aborts or prints. */
#ifndef SLUICE_H
#define SLUICE_H

#ifdef __cplusplus
extern "C" {
#endif

#define SL_VERSION_MAJOR 0
#define SL_VERSION_MINOR 1
#define SL_VERSION_PATCH 0

/* What kind of thing went wrong. The sentence in sl_error says what exactly. */
typedef enum sl_status {
    SL_OK = 0,
    SL_ERR_MEMORY,      /* an allocation failed */
    SL_ERR_IO,          /* the operating system refused a file operation, or a file shrank */
    SL_ERR_FORMAT,      /* a file is malformed or contradicts itself */
    SL_ERR_UNSUPPORTED, /* a well-formed file or request that this version does not handle */
    SL_ERR_ARGUMENT,    /* a caller's argument is out of range */
    SL_ERR_LIMIT,       /* a size, depth or step limit was reached */
    SL_ERR_CONTEXT,     /* the sequence would grow past its context length */
    SL_ERR_NUMERIC,     /* a value that must be finite is not */
    SL_ERR_CANCELLED    /* the caller asked to stop */
} sl_status;

enum { SL_ERROR_MESSAGE_BYTES = 512 };

typedef struct sl_error {
    sl_status status;
    char message[SL_ERROR_MESSAGE_BYTES]; /* UTF-8, NUL-terminated, cut at a character if long */
} sl_error;

/* "memory", "io", "format", ...: a stable lower-case word for a status. */
const char *sl_status_name(sl_status status);

/* "0.1.0" */
const char *sl_version(void);

#ifdef __cplusplus
}
#endif
#endif
