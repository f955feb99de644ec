/* What every fuzz target shares. A target is one file, fuzz_NAME.c, that defines
 * LLVMFuzzerTestOneInput: libFuzzer calls it with mutated inputs (`make fuzz`), replay.c with those
 * of tests/fuzz/corpus/NAME (`make test`). A target may refuse or accept an input, but every
 * refusal needs a sentence, nothing may leak, and what it accepted must keep its promises. */
#ifndef SL_TESTS_FUZZ_H
#define SL_TESTS_FUZZ_H

#include "base/buf.h"
#include "base/json.h"
#include "base/str.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

/* Ends the program unless cond holds: the input at hand is then the report. */
#define sl_fuzz_check(cond) ((cond) ? (void)0 : sl_fuzz_broken(#cond, __FILE__, __LINE__))
void sl_fuzz_broken(const char *what, const char *file, int line);

/* The status of a call that may fail: true when it is SL_OK. Otherwise err must tell why. */
bool sl_fuzz_ok(sl_status status, const sl_error *err);

/* Runs the body twice: as it is, then with one allocation failing, chosen by the input. Both times
 * every block must be released. jansson allocates for itself: its failures are left out. */
typedef void (*sl_fuzz_body)(const uint8_t *data, size_t n);
int sl_fuzz_run(sl_fuzz_body body, const uint8_t *data, size_t n);

/* Takes pieces off the front of an input. */
typedef struct sl_fuzz_input {
    const uint8_t *data;
    size_t n;
} sl_fuzz_input;
uint8_t sl_fuzz_byte(sl_fuzz_input *in); /* 0 when there is none left */
/* Up to the next line of the form "--- NAME\n", whose name goes to *name; or to the end. */
sl_str sl_fuzz_section(sl_fuzz_input *in, sl_str *name);

/* The bytes in a block of exactly their size, so that the sanitizers see a read past the end.
 * Release with sl_free; NULL when out of memory. */
char *sl_fuzz_copy(const void *data, size_t n);

/* A file with these bytes and n_zeros zeros behind them. */
void sl_fuzz_write(const char *path, const void *data, size_t n, size_t n_zeros);

/* A new folder for the files of this process, removed at its end; the same at every call. */
const char *sl_fuzz_folder(void);

/* folder/name; static, valid until the next call. */
const char *sl_fuzz_path(const char *name);

#endif
