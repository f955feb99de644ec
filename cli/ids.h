/* Lists of token ids as users write them. */
#ifndef SL_CLI_IDS_H
#define SL_CLI_IDS_H

#include "sluice.h"

/* Appends the ids in text, separated by commas or white space, each below n_vocab. The sentence
 * names a bad one. */
sl_status sl_parse_ids(const char *text, size_t n_vocab, sl_ids *ids, sl_error *err);

#endif
