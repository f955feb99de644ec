/* A file of reference values for `sluice parity`: which tensors it holds, and of which prompt and
 * positions each of them is.
 *
 * The prompt is the file's own `tokens` (files of `sluice logits`), or comes by name from a JSON
 * file {"set": {"A": [ids], "B": [ids], ...}, ...}. Tensors are recognised by name:
 *
 *   logits           the last rows of the file's own tokens
 *   P.firstN         logits of the first N positions of prompt P
 *   P.N.lastK        logits of the last K positions of the first N tokens of P
 *   P.all            logits of all positions of P
 *   embed, final_norm, Li.VALUE
 *                    layer values at all positions: of the own tokens, else of prompt B
 *
 * Other tensors are listed as skipped. */
#ifndef SL_CLI_REFERENCES_H
#define SL_CLI_REFERENCES_H

#include "sluice.h"

typedef struct sl_reference {
    const char *name;
    size_t prompt; /* index */
    size_t first_row, n_rows, n_cols;
    bool is_logits;      /* else a layer value */
    const uint8_t *data; /* float32 [n_rows][n_cols], unaligned */
} sl_reference;

typedef struct sl_reference_prompt {
    const char *name; /* "A"; "tokens" for the file's own */
    sl_ids ids;
} sl_reference_prompt;

typedef struct sl_references sl_references;

/* prompts_path: the JSON file, NULL = prompts.json beside the file. set: a name in it, NULL = the
 * set with the largest id below n_vocab. Errors: SL_ERR_IO, SL_ERR_FORMAT, SL_ERR_ARGUMENT naming
 * file and tensor. */
sl_status sl_references_open(const char *path, const char *prompts_path, const char *set,
                             size_t n_vocab, sl_references **out, sl_error *err);
void sl_references_close(sl_references *references);

size_t sl_references_count(const sl_references *references);
const sl_reference *sl_references_at(const sl_references *references, size_t i);
size_t sl_references_prompt_count(const sl_references *references);
const sl_reference_prompt *sl_references_prompt(const sl_references *references, size_t i);
size_t sl_references_skipped_count(const sl_references *references);
const char *sl_references_skipped(const sl_references *references, size_t i);

/* SL_ERR_IO when part of the file went away while it was read. */
sl_status sl_references_check(const sl_references *references, sl_error *err);

/* Copies row i of the reference. */
void sl_reference_row(const sl_reference *reference, size_t i, float *row);

/* What a tensor's name says. False when it is none of the above. last: the rows are the last of a
 * prefix; whole: they are all rows. n_prefix is 0 for the whole prompt. */
typedef struct sl_reference_name {
    char prompt[16]; /* "" = the file's own tokens, else B */
    bool is_logits, last, whole;
    size_t n_prefix, n_rows;
} sl_reference_name;
bool sl_reference_parse_name(const char *name, sl_reference_name *out);

#endif
